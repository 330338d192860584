//! Structures of a region for the tools that read them: of the region itself while nobody uses it,
//! else of a copy of a live mount from one moment.
//!
//! The copy is what a crash at that moment would leave. It is a file without a name, so that it
//! ends with the tool, in `TMPDIR` or /var/tmp. It has all blocks in use: the tools find out by
//! reading which are metadata.

use std::path::Path;

use pramfs::pmem::Region;

use crate::failure::shown;
use crate::open::{self, Intent};
use crate::{Failure, output};

/// A region to read, and whether it is a copy of a live mount.
pub(crate) struct Structures {
    pub(crate) region: Region,
    pub(crate) is_live: bool,
}

/// Opens a region to read its structures, or copies those of its mount. `path` is a region, or
/// a mount point.
///
/// # Errors
/// Those of [`open::region`]. The region is in use, and no server of root has it; the copy cannot
/// be made.
pub(crate) fn structures(path: &Path) -> Result<Structures, Failure> {
    let refused = match path.is_dir() {
        true => None,
        false => match open::region(path, Intent::Read) {
            Ok(region) => {
                let is_live = false;
                return Ok(Structures { region, is_live });
            }
            Err(failure) if failure.reason != "in-use" => return Err(failure),
            Err(failure) => Some(failure),
        },
    };
    copied(path, refused)
}

#[cfg(not(feature = "save"))]
fn copied(path: &Path, refused: Option<Failure>) -> Result<Structures, Failure> {
    Err(refused.unwrap_or_else(|| {
        let text = "is a directory; this program was built without copies of live mounts";
        Failure::new("in-use", format!("{}: {text}", shown(path)))
    }))
}

#[cfg(feature = "save")]
fn copied(path: &Path, refused: Option<Failure>) -> Result<Structures, Failure> {
    use std::os::fd::AsRawFd as _;

    use crate::commands::live_mount_itself;

    let server = live_mount_itself(path).map_err(|found| match refused {
        // It says who has the region open.
        Some(mut refused) => {
            refused.message += ". While it is mounted by root, root gets a copy from one moment";
            refused
        }
        None => found,
    })?;
    let file = copy::of_mount(path, server)?;
    // The region keeps the file open.
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let region = pramfs::pmem::RegionOptions::new()
        .read_only(true)
        .open(by_descriptor)
        .map_err(|e| Failure::about(shown(path), e.into()))?;
    Ok(Structures {
        region,
        is_live: true,
    })
}

#[cfg(feature = "save")]
mod copy {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    use std::path::PathBuf;

    use pramfs_control::{Connection, ControlError};
    use pramfs_medium::size::human;
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::archive::live::{Live, write_back};
    use crate::archive::writer::{Contents as _, Stop, Zeroed};

    /// Memory for blocks that programs change before they are copied, as of `pramfs save`.
    const MEMORY: u64 = 256 << 20;

    /// Where the copy is made.
    fn directory() -> PathBuf {
        match std::env::var_os("TMPDIR") {
            Some(dir) if !dir.is_empty() => dir.into(),
            _ => "/var/tmp".into(),
        }
    }

    /// Copies the blocks in use of a mount to a file without a name.
    pub(super) fn of_mount(path: &Path, server: (Connection, u64)) -> Result<File, Failure> {
        let ((server, device), name) = (server, shown(path));
        let about = |e: ControlError| Failure::new("os", format!("{name}: {e}"));
        let dir = directory();
        let elsewhere = |why: String| {
            let text = format!("{name}: {why}; set TMPDIR to another directory");
            Failure::new("no-space", text)
        };
        let cannot =
            |e: io::Error| Failure::os("cannot make a copy of the blocks in use in", &dir, e);
        let made = rustix::fs::open(
            &dir,
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        );
        let file = File::from(made.map_err(|e| cannot(e.into()))?);
        if file.metadata().map_err(cannot)?.dev() == device {
            return Err(elsewhere(format!(
                "{} is on this mount, which would wait for itself",
                shown(&dir)
            )));
        }
        write_back(path, &name)?;
        let live = Live::new(server.snapshot(MEMORY).map_err(about)?, &name)?;
        let size = live.header().block_size();
        let (needed, space) = (
            live.blocks() * size,
            rustix::fs::fstatvfs(&file).map_err(|e| cannot(e.into()))?,
        );
        if space.f_bavail.saturating_mul(space.f_frsize) < needed {
            return Err(elsewhere(format!(
                "the blocks in use are {}, for which {} has no room",
                human(needed),
                shown(&dir)
            )));
        }
        file.set_len(live.header().region_len).map_err(cannot)?;
        let bar = output::bar(needed, &name);
        let mut bytes = Vec::new();
        let copied = live.runs(&mut |run| {
            bytes.resize(((run.end - run.start) * size) as usize, 0);
            // What is looked at is not file data.
            live.read_blocks(run.start, &mut bytes, &mut Zeroed::default())?;
            bar.inc(bytes.len() as u64);
            file.write_all_at(&bytes, run.start * size)
        });
        bar.finish_and_clear();
        match copied {
            Ok(()) => Ok(file),
            Err(Stop::Io(e)) => Err(cannot(e)),
            Err(Stop::Damage(what)) => Err(Failure::new("damaged", format!("{name}: {what}"))),
        }
    }
}
