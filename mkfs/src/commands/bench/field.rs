//! The directory in which operations are measured, and its files.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pramfs_medium::size;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::rows::LARGE;
use crate::Failure;
use crate::failure::shown;

/// O_DIRECT takes aligned memory.
#[derive(Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

const PAGES: usize = LARGE / 4096;

/// A directory of our own, with files.
pub(super) struct Field {
    directory: PathBuf,
    file: Option<File>,
    size: u64,
    buffer: Vec<Page>,
    random: u64,
    pub(super) direct_io: bool,
}

impl Field {
    /// Makes the directory, if there is room for a file of so many bytes.
    pub(super) fn make(parent: &Path, size: u64) -> Result<Field, Failure> {
        let stat = rustix::fs::statvfs(parent)
            .map_err(|e| Failure::os("cannot look at the space of", parent, e))?;
        let room = stat.f_bavail.saturating_mul(stat.f_frsize);
        // Another user of a full file system is not to meet an error because of a measurement.
        if size > room / 2 {
            return Err(Failure::new(
                "no-space",
                format!(
                    "{}: {} are free, and a file of {} would take more than half of it; give a smaller --size",
                    shown(parent),
                    size::human(room),
                    size::human(size)
                ),
            ));
        }
        let directory = parent.join(format!(".pramfs-bench.{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|e| Failure::os("cannot make the directory", &directory, e))?;
        let mut buffer = vec![Page([0; 4096]); PAGES];
        for (i, byte) in buffer.as_mut_bytes().iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        Ok(Field {
            directory,
            file: None,
            size,
            buffer,
            random: 0x9e37_79b9_7f4a_7c15,
            direct_io: true,
        })
    }

    /// Makes the files, while `goes_on` is true.
    pub(super) fn fill(&mut self, goes_on: &dyn Fn() -> bool) -> Result<(), Failure> {
        let path = self.at("data");
        let failed = |e| Failure::os("cannot write", &path, e);
        fs::write(self.at("small"), b"small").map_err(failed)?;
        let opened = |flags| {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(&path)
        };
        let file = match opened(libc::O_DIRECT) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.direct_io = false;
                opened(0)
            }
            opened => opened,
        }
        .map_err(failed)?;
        let mut at = 0;
        while at < self.size && goes_on() {
            file.write_all_at(self.buffer.as_bytes(), at)
                .map_err(failed)?;
            at += LARGE as u64;
        }
        file.sync_all().map_err(failed)?;
        self.file = Some(file);
        Ok(())
    }

    /// Removes the directory and its files.
    pub(super) fn remove(self) -> Result<(), Failure> {
        drop(self.file);
        fs::remove_dir_all(&self.directory)
            .map_err(|e| Failure::os("cannot remove", &self.directory, e))
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the file, and so many bytes of memory.
    pub(super) fn file(&mut self, len: usize) -> io::Result<(&File, &mut [u8])> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok((file, &mut self.buffer.as_mut_bytes()[..len]))
    }

    /// Returns a random multiple of `len` in the file, the same ones in each run: splitmix64
    /// (Steele, Lea, Flood, 2014).
    pub(super) fn random(&mut self, len: usize) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % (self.size / len as u64) * len as u64
    }

    /// Returns the place of the n-th large piece, again from the start after the last.
    pub(super) fn in_order(&self, n: u64) -> u64 {
        n % (self.size / LARGE as u64) * LARGE as u64
    }

    /// Returns the type of the file system, as the kernel names it.
    pub(super) fn file_system(&self) -> Option<String> {
        let flags = StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(CWD, &self.directory, AtFlags::empty(), flags).ok()?;
        let id = stat.stx_mnt_id.to_string();
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = table.lines().find(|l| l.split(' ').next() == Some(&id))?;
        let (_, what) = line.split_once(" - ")?;
        what.split(' ').next().map(str::to_owned)
    }
}
