//! Snapshots of the live file system, for `pramfs save`: a thread for each.
//!
//! The thread keeps no file system mounted: an unmount ends the snapshot, and the thread tells
//! its reader.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use pramfs::Error;
use pramfs::inode::{Fs, Snapshot};
use pramfs_control::snapshot::{
    Failed, SnapshotFile, SnapshotPlan, SnapshotSource, Snapshots, serve_snapshot,
};

/// Least and most memory for copies, bytes.
const MEMORY: std::ops::RangeInclusive<u64> = 1 << 20..=4 << 30;

/// Makes snapshots of a file system.
#[derive(Debug)]
pub(crate) struct LiveSnapshots(Weak<Fs>);

impl LiveSnapshots {
    pub(crate) fn new(fs: &Arc<Fs>) -> LiveSnapshots {
        LiveSnapshots(Arc::downgrade(fs))
    }
}

impl Snapshots for LiveSnapshots {
    fn start(&self, most: u64, socket: UnixStream) -> io::Result<()> {
        let fs = Weak::clone(&self.0);
        let work = move || {
            let made = make(&fs, most.clamp(*MEMORY.start(), *MEMORY.end()));
            drop(fs);
            let served = match &made {
                Ok(live) => serve_snapshot(socket, Ok(live)),
                Err(failed) => serve_snapshot(socket, Err(failed.clone())),
            };
            if let Err(error) = served {
                tracing::debug!("a save ended early: {error}");
            }
        };
        std::thread::Builder::new()
            .name("pramfs-save".into())
            .spawn(work)
            .map(drop)
    }
}

fn make(fs: &Weak<Fs>, most: u64) -> Result<Live, Failed> {
    let ended = || (libc::EIO, "the file system is being unmounted".to_owned());
    let fs = fs.upgrade().ok_or_else(ended)?;
    fs.snapshot(most).map(Live).map_err(failed)
}

fn failed(error: Error) -> Failed {
    (error.errno(), error.to_string())
}

struct Live(Snapshot);

impl SnapshotSource for Live {
    fn plan(&self) -> SnapshotPlan {
        SnapshotPlan {
            block_size: self.0.block_size(),
            fixed: self.0.fixed().to_vec(),
            per_group: self.0.blocks_per_group(),
            bitmaps: self.0.bitmaps().to_vec(),
        }
    }

    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Failed> {
        self.0.read(first, into).map_err(failed)
    }

    fn release_fixed(&self) {
        self.0.release_fixed();
    }

    fn release_below(&self, block: u64) {
        self.0.release_below(block);
    }

    fn files(&self) -> Result<Vec<SnapshotFile>, Failed> {
        let files = self.0.mapped_files().map_err(failed)?.into_iter();
        Ok(files
            .map(|(ino, path)| SnapshotFile { inode: ino.0, path })
            .collect())
    }
}
