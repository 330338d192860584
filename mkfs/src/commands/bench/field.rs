//! The directory in which operations are measured, and its files.
//!
//! Invariant: the directory is ours, and it is used by its descriptor alone. Whoever may rename it
//! in its parent cannot have another file opened, overwritten or removed in its place.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pramfs_medium::pmem::mount_table;
use pramfs_medium::size;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::rows::{LARGE, SMALL};
use crate::Failure;
use crate::failure::shown;

/// O_DIRECT takes aligned memory.
#[derive(Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

const PAGES: usize = LARGE / 4096;
/// All names that are made in the directory.
const NAMES: [&str; 4] = ["data", "small", "renamed", "new"];
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const NEW: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory of our own, with files.
pub(super) struct Field {
    parent: OwnedFd,
    /// Name in the parent.
    name: String,
    directory: OwnedFd,
    file: Option<File>,
    size: u64,
    buffer: Vec<Page>,
    random: u64,
    is_renamed: bool,
    pub(super) direct_io: bool,
}

impl Field {
    /// Makes the directory, if there is room for a file of so many bytes.
    pub(super) fn make(parent: &Path, size: u64) -> Result<Field, Failure> {
        let failed = |e: Errno| Failure::os("cannot make a directory in", parent, e);
        // The parent itself may be a link, as for each tool.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|e| Failure::os("cannot open the directory", parent, e))?;
        let stat = rustix::fs::fstatvfs(&at)
            .map_err(|e| Failure::os("cannot look at the space of", parent, e))?;
        let room = stat.f_bavail.saturating_mul(stat.f_frsize);
        // Another user of a full file system is not to meet an error because of a measurement.
        // Some file systems do not count their blocks.
        if stat.f_blocks > 0 && size > room / 2 {
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
        let name = make_directory(&at).map_err(failed)?;
        let directory = rustix::fs::openat(&at, &name, DIRECTORY, Mode::empty()).map_err(failed)?;
        let found = rustix::fs::fstat(&directory).map_err(failed)?;
        let is_ours = found.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || found.st_mode & 0o077 != 0 {
            return Err(Failure::new(
                "permission",
                format!(
                    "{}: somebody has replaced the new directory {name}; measure in a directory that only you can write",
                    shown(parent)
                ),
            ));
        }
        let mut buffer = vec![Page([0; 4096]); PAGES];
        for (i, byte) in buffer.as_mut_slice().as_mut_bytes().iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        Ok(Field {
            parent: at,
            name,
            directory,
            file: None,
            size,
            buffer,
            random: 0x9e37_79b9_7f4a_7c15,
            is_renamed: false,
            direct_io: true,
        })
    }

    /// Makes the files, while `goes_on` is true.
    pub(super) fn fill(&mut self, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let small = self.open("small", NEW | OFlags::WRONLY)?;
        small.write_all_at(b"small", 0)?;
        let file = self.open_data()?;
        let bytes = self.buffer.as_slice().as_bytes();
        let mut at = 0;
        while at < self.size && goes_on() {
            file.write_all_at(bytes, at)?;
            at += LARGE as u64;
        }
        file.sync_all()?;
        self.file = Some(file);
        Ok(())
    }

    /// Opens the large file with O_DIRECT, if that takes pages.
    fn open_data(&mut self) -> io::Result<File> {
        let flags = NEW | OFlags::RDWR;
        let is_refused = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
        let direct = self.open("data", flags | OFlags::DIRECT).and_then(|file| {
            file.write_all_at(&self.buffer.as_slice().as_bytes()[..SMALL], 0)?;
            Ok(file)
        });
        match direct {
            Err(e) if is_refused(&e) => {
                self.direct_io = false;
                match rustix::fs::unlinkat(&self.directory, "data", AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => self.open("data", flags),
                    Err(e) => Err(e.into()),
                }
            }
            opened => opened,
        }
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.directory, name, flags, mode)?.into())
    }

    /// Removes the files and the directory.
    pub(super) fn remove(self) -> io::Result<()> {
        drop(self.file);
        for name in NAMES {
            match rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(rustix::fs::unlinkat(
            &self.parent,
            &self.name,
            AtFlags::REMOVEDIR,
        )?)
    }

    pub(super) fn create_and_remove(&self) -> io::Result<()> {
        drop(self.open("new", NEW | OFlags::WRONLY)?);
        Ok(rustix::fs::unlinkat(
            &self.directory,
            "new",
            AtFlags::empty(),
        )?)
    }

    pub(super) fn rename(&mut self) -> io::Result<()> {
        let names = match self.is_renamed {
            false => ["small", "renamed"],
            true => ["renamed", "small"],
        };
        rustix::fs::renameat(&self.directory, names[0], &self.directory, names[1])?;
        self.is_renamed = !self.is_renamed;
        Ok(())
    }

    pub(super) fn open_and_close(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open("data", flags).map(drop)
    }

    /// Reads so many bytes of the large file.
    pub(super) fn read(&mut self, len: usize, at: u64) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = self.buffer.as_mut_slice().as_mut_bytes();
        file.read_exact_at(&mut bytes[..len], at)
    }

    /// Writes so many bytes of the large file, and makes them durable.
    pub(super) fn write(&mut self, len: usize, at: u64) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.write_all_at(&self.buffer.as_slice().as_bytes()[..len], at)?;
        file.sync_data()
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
        let (flags, asked) = (AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        let stat = rustix::fs::statx(&self.directory, "", flags, asked).ok()?;
        let mut mounts = mount_table::read().ok()?.into_iter();
        let mount = mounts.find(|mount| mount.id == stat.stx_mnt_id)?;
        Some(mount.fs_type)
    }
}

/// Makes a directory with a name that nobody can have made before. Returns the name.
fn make_directory(parent: &OwnedFd) -> rustix::io::Result<String> {
    loop {
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        let name = format!(".pramfs-bench.{:016x}", u64::from_ne_bytes(random));
        match rustix::fs::mkdirat(parent, &name, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => return made.map(|()| name),
        }
    }
}
