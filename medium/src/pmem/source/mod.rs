//! Opens sources of a region: files, devices, shared memory.
//!
//! Purpose: turns a path, a descriptor or a size into a [`Source`]: an open and locked
//! descriptor, its length, and its kind as the kernel reports it.
//!
//! Invariant: a [`Source`] can be mapped. Its length is not zero and is a multiple of its
//! unit. Unless the caller asked otherwise, no other process has it open as a region.
//!
//! Not handled here: mapping and the choice of instructions (`native`, `libpmem2`), and
//! judging the configuration (`probe`).

mod acl;
mod detect;
mod grow;
mod holders;
mod lock;
mod opening;
mod ownership;
mod persistence;
mod physical;
mod substitute;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

pub use acl::Permissions;
pub(super) use detect::{
    DetectedSource, SysDevice, identify, identify_by_filesystem, is_block_exclusive_holder,
    missing_device,
};
pub(super) use lock::holder_of;
pub use lock::inherit_standard_streams_only;
pub use ownership::Ownership;
pub use physical::is_physical;
pub(super) use physical::{MEMORY, PhysicalRange, map_refusal, open_when_released};
pub(super) use substitute::is_held_by;
pub use substitute::served_without_lock;

use super::backend::Persistence;
use super::error::PmemError;
use super::fork::NotInheritedFd;
use crate::grows::Grows;
use opening::{open_checked, open_error, refuse_others};

/// The length of every region is a multiple of this many bytes.
pub const REGION_UNIT: u64 = 4096;

/// The kind of object that holds a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A file on a file system mounted with DAX: the mapping is the medium.
    FsDax,
    /// A devdax character device.
    DevDax,
    /// A block device, `/dev/pmemN` included: its mapping is the page cache.
    BlockDevice,
    /// A file on tmpfs or ramfs.
    Tmpfs,
    /// A file on hugetlbfs, or a memfd made of huge pages.
    Hugetlbfs,
    /// Anonymous shared memory behind a descriptor.
    Memfd,
    /// A file on any other file system.
    File,
    /// A range of physical memory, through `/dev/mem`.
    Physical,
}

impl SourceKind {
    /// Returns the name for messages, one or two words.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::FsDax => "fsdax",
            SourceKind::DevDax => "devdax",
            SourceKind::BlockDevice => "block device",
            SourceKind::Tmpfs => "tmpfs",
            SourceKind::Hugetlbfs => "hugetlbfs",
            SourceKind::Memfd => "memfd",
            SourceKind::File => "file",
            SourceKind::Physical => "physical memory",
        }
    }

    /// Whether it is memory of the machine, without storage.
    pub fn is_memory(self) -> bool {
        matches!(
            self,
            SourceKind::Tmpfs | SourceKind::Hugetlbfs | SourceKind::Memfd
        )
    }

    /// Whether it has a fixed size, and its memory is there.
    pub(super) fn is_device(self) -> bool {
        matches!(
            self,
            SourceKind::DevDax | SourceKind::BlockDevice | SourceKind::Physical
        )
    }

    /// Whether it is persistent memory that the processor addresses directly.
    pub fn is_dax(self) -> bool {
        matches!(self, SourceKind::FsDax | SourceKind::DevDax)
    }
}

/// How a source is opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    /// Open for reading only; the medium is never written.
    pub read_only: bool,
    /// Refuse a region that another process has open, and keep others out. Read-only
    /// openings share the lock.
    pub lock: bool,
    /// Share the lock, although it is not read-only.
    pub shared: bool,
    /// When creating a region, take over an existing object, even if others own it or may write
    /// it.
    pub whoever_owns: bool,
}

impl Access {
    fn is_exclusive(self) -> bool {
        !self.read_only && !self.shared
    }
}

/// What may be created at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Making {
    /// Only a new file.
    New,
    /// A new file, or an existing object if that destroys nothing.
    NewOrExisting,
}

/// An open object that can be mapped as a region.
#[derive(Debug)]
pub struct Source {
    // Before the descriptor, which stays open while this value lives.
    _not_inherited: NotInheritedFd,
    fd: OwnedFd,
    kind: SourceKind,
    /// Offset in the descriptor of the region's first byte.
    first: u64,
    /// Bytes that are mapped.
    len: Grows,
    /// Address space to reserve, if the caller says.
    room: Option<u64>,
    path: PathBuf,
    alignment: u64,
    persistence: Persistence,
    read_only: bool,
    locked: bool,
    /// The lock of the region, if a reader has the usual one.
    substitute: Option<substitute::Substitute>,
    /// It lost its lock to another process, when an exclusive one was refused.
    was_unlocked: AtomicBool,
    created: bool,
}

impl Source {
    /// Opens an existing region source.
    pub(super) fn open(path: &Path, access: Access) -> Result<Source, PmemError> {
        if let Some(range) = PhysicalRange::of(path)? {
            let fd = range.open(path, access.read_only)?;
            return Source::physical(fd, path, range, access);
        }
        let fd = open_checked(path, access)?;
        Source::finish(fd, path.to_owned(), access, None)
    }

    /// Opens `path` as a region of `len` bytes.
    /// * A missing file is created (mode 0600, sparse).
    /// * An empty file is extended.
    /// * A file with contents must have `len` bytes.
    /// * A device must have at least `len` bytes.
    ///
    /// Only the user of this process may own and write an existing object.
    pub(super) fn create(
        path: &Path,
        len: u64,
        access: Access,
        making: Making,
    ) -> Result<Source, PmemError> {
        if is_physical(path) {
            let mut source = Source::open(path, access)?;
            source.len = Grows::new(source.make_len(len)?);
            return Ok(source);
        }
        if let Some(why) = missing_device(path) {
            return Err(PmemError::Unusable {
                path: path.display().to_string(),
                why: why.into(),
                errno: libc::ENODEV,
            });
        }
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        let ours_alone = Mode::RUSR | Mode::WUSR;
        match rustix::fs::open(path, flags, ours_alone) {
            Ok(fd) => {
                let object = Ownership::of(&fd).map(|ownership| ownership.object());
                // Overrides the umask and the default ACL of the directory.
                let mut made = match rustix::fs::fchmod(&fd, ours_alone) {
                    Ok(()) => Source::finish(fd, path.to_owned(), access, Some(len)),
                    Err(e) => Err(PmemError::Os {
                        what: "cannot set the mode of",
                        path: path.display().to_string(),
                        source: e.into(),
                    }),
                };
                if let Ok(source) = &mut made {
                    source.created = true;
                } else if let Ok(object) = object {
                    // No one has seen the file yet, and it is useless. The returned error says
                    // why.
                    remove_own(path, object);
                }
                made
            }
            Err(Errno::EXIST) if making == Making::New => Err(PmemError::Unusable {
                path: path.display().to_string(),
                why: "exists: another process has created it meanwhile, or it is a symbolic link that leads nowhere; look at it with ls -l, then try again".into(),
                errno: libc::EEXIST,
            }),
            Err(Errno::EXIST) => {
                let fd = open_checked(path, access)?;
                if !access.whoever_owns {
                    refuse_others(fd.as_fd(), path)?;
                }
                Source::finish(fd, path.to_owned(), access, Some(len))
            }
            Err(Errno::NOENT) => Err(PmemError::Unusable {
                path: path.display().to_string(),
                why: "its directory does not exist".into(),
                errno: libc::ENOENT,
            }),
            Err(e) => Err(open_error(path, e, false)),
        }
    }

    /// Creates anonymous shared memory of `len` bytes, reachable through descriptors only.
    pub(super) fn memfd(name: &str, len: u64) -> Result<Source, PmemError> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let path = PathBuf::from(format!("memfd:{name}"));
        let os = |what, e: Errno| PmemError::Os {
            what,
            path: path.display().to_string(),
            source: e.into(),
        };
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| os("cannot create", e))?;
        let access = Access {
            read_only: false,
            lock: true,
            shared: false,
            whoever_owns: false,
        };
        let source = Source::finish(fd, path.clone(), access, Some(len))?;
        // No receiver of the descriptor can truncate the pages away.
        rustix::fs::fcntl_add_seals(&source.fd, SealFlags::SHRINK)
            .map_err(|e| os("cannot seal", e))?;
        Ok(source)
    }

    /// Takes over an open descriptor. `name` is for messages.
    pub(super) fn from_fd(fd: OwnedFd, name: &Path, access: Access) -> Result<Source, PmemError> {
        if let Some(range) = PhysicalRange::of(name)? {
            return Source::physical(fd, name, range, access);
        }
        Source::finish(fd, name.to_owned(), access, None)
    }

    /// A range of the device that is all memory.
    fn physical(
        fd: OwnedFd,
        path: &Path,
        range: PhysicalRange,
        access: Access,
    ) -> Result<Source, PmemError> {
        physical::check_device(fd.as_fd(), path)?;
        range.check(path)?;
        if access.lock {
            range.lock(fd.as_fd(), path, access.is_exclusive())?;
        }
        let source = Source {
            _not_inherited: NotInheritedFd::new(fd.as_fd()),
            fd,
            kind: SourceKind::Physical,
            first: range.start,
            len: Grows::new(range.len),
            // It never grows.
            room: Some(range.len),
            path: path.to_owned(),
            alignment: REGION_UNIT,
            persistence: Persistence::Reboot,
            read_only: access.read_only,
            locked: access.lock,
            substitute: None,
            was_unlocked: AtomicBool::new(false),
            created: false,
        };
        source.check_len(source.len())?;
        Ok(source)
    }

    fn finish(
        fd: OwnedFd,
        path: PathBuf,
        access: Access,
        create: Option<u64>,
    ) -> Result<Source, PmemError> {
        let found = detect::identify(fd.as_fd(), &path)?;
        let substitute = match access.lock {
            true => lock::acquire(fd.as_fd(), &path, found.kind, access.is_exclusive())?,
            false => None,
        };
        let mut source = Source {
            _not_inherited: NotInheritedFd::new(fd.as_fd()),
            fd,
            kind: found.kind,
            first: 0,
            len: Grows::new(0),
            room: None,
            path,
            alignment: found.alignment,
            persistence: found.persistence,
            read_only: access.read_only,
            locked: access.lock,
            substitute,
            was_unlocked: AtomicBool::new(false),
            created: false,
        };
        // Only now, under the lock, is this the length that will be mapped.
        let len = match create {
            Some(len) => source.make_len(len)?,
            None => source.found_len()?,
        };
        source.check_len(len)?;
        source.len = Grows::new(len);
        Ok(source)
    }

    /// Returns the current length of the object; block devices lose an odd tail.
    fn found_len(&self) -> Result<u64, PmemError> {
        match self.kind {
            SourceKind::DevDax => detect::devdax_len(self.fd.as_fd(), &self.path),
            SourceKind::Physical => Ok(self.len()),
            SourceKind::BlockDevice => {
                let end = rustix::fs::seek(&self.fd, SeekFrom::End(0))
                    .map_err(|e| self.os("cannot find the size of", e))?;
                Ok(end / REGION_UNIT * REGION_UNIT)
            }
            _ => {
                let st = rustix::fs::fstat(&self.fd).map_err(|e| self.os("cannot stat", e))?;
                Ok(u64::try_from(st.st_size).unwrap_or(0))
            }
        }
    }

    /// Sets the length of the object to `len` if that destroys nothing.
    fn make_len(&self, len: u64) -> Result<u64, PmemError> {
        self.check_len(len)?;
        let found = self.found_len()?;
        if self.kind.is_device() {
            if len > found {
                return Err(self.unusable(
                    libc::ENOSPC,
                    format!("the device has {found} bytes and not {len}; ask for less, or leave out the size"),
                ));
            }
            return Ok(len);
        }
        if found != 0 && found != len {
            return Err(self.unusable(
                libc::EEXIST,
                format!(
                    "exists already and has {found} bytes, not {len}; leave out the size to use it as it is, or remove it first"
                ),
            ));
        }
        if found == 0 {
            rustix::fs::ftruncate(&self.fd, len).map_err(|e| match e {
                Errno::FBIG | Errno::INVAL => self.unusable(
                    libc::EFBIG,
                    format!("its file system cannot hold a file of {len} bytes; choose a smaller size or another file system"),
                ),
                e => self.os("cannot set the size of", e),
            })?;
        }
        Ok(len)
    }

    fn check_len(&self, len: u64) -> Result<(), PmemError> {
        let unit = self.alignment;
        if len == 0 {
            let why = match self.kind {
                SourceKind::DevDax | SourceKind::BlockDevice => {
                    "the device has no bytes; is its medium there?"
                }
                _ => "has no bytes; make a file system of it: mkfs.pramfs REGION SIZE",
            };
            return Err(self.unusable(libc::EINVAL, why.into()));
        }
        if usize::try_from(len).is_err() || len > isize::MAX as u64 {
            return Err(self.unusable(
                libc::EFBIG,
                format!("{len} bytes are more than a process can map"),
            ));
        }
        if !len.is_multiple_of(unit) {
            let (down, up) = (len / unit * unit, len.div_ceil(unit).saturating_mul(unit));
            let unit_name = match self.kind {
                SourceKind::Hugetlbfs => " (its huge page)",
                SourceKind::DevDax => " (the alignment of the device)",
                _ => "",
            };
            return Err(self.unusable(
                libc::EINVAL,
                format!(
                    "a length of {len} bytes is not a multiple of {unit}{unit_name}; the nearest multiples are {down} and {up}. If the file was longer before, it has been truncated: restore it, or extend it with truncate(1)"
                ),
            ));
        }
        Ok(())
    }

    /// Allocates every page or block of the source now, so that no later store into it
    /// fails for lack of space.
    pub(super) fn preallocate(&self) -> Result<(), PmemError> {
        if self.kind.is_device() {
            return Ok(());
        }
        rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), 0, self.len()).map_err(|e| match e {
            Errno::NOSPC | Errno::NOMEM => self.unusable(
                libc::ENOSPC,
                format!("there is no space for all its {} bytes; free some, or choose a smaller region", self.len()),
            ),
            e => self.os("cannot reserve the space of", e),
        })
    }

    /// Makes the lock taken when the source was opened exclusive, or shares it with
    /// readers.
    pub(super) fn lock(&self, exclusive: bool) -> Result<(), PmemError> {
        // The substitute is exclusive, also for readers.
        if !self.locked || self.substitute.is_some() {
            return Ok(());
        }
        // The kernel drops the old lock before it refuses the new one. If another process had the
        // region meanwhile, it may have changed it, and this source is never made writable again.
        if exclusive && self.was_unlocked.load(Ordering::Relaxed) {
            return Err(PmemError::Unusable {
                path: self.path.display().to_string(),
                why: "its lock was lost to another process, which may have changed it; unmount it and mount it again"
                    .into(),
                errno: libc::EBUSY,
            });
        }
        if self.kind == SourceKind::Physical {
            // The kernel keeps the old lock if it refuses the new one.
            let (start, len) = (self.first, self.len());
            return PhysicalRange {
                start,
                len,
                is_ram: false,
            }
            .lock(self.fd.as_fd(), &self.path, exclusive);
        }
        let taken = lock::take(self.fd.as_fd(), &self.path, self.kind, exclusive);
        if exclusive && taken.is_err() {
            let shared = lock::take(self.fd.as_fd(), &self.path, self.kind, false);
            if shared.is_err() {
                self.was_unlocked.store(true, Ordering::Relaxed);
            }
        }
        taken
    }

    /// Returns why the region is open without its usual lock, if it is: a sentence for a person.
    pub(super) fn lock_notice(&self) -> Option<&str> {
        Some(self.substitute.as_ref()?.notice.as_str())
    }

    /// Takes the usual lock too, if its holder has released it by now. Returns whether this
    /// process has it.
    pub(super) fn retake_lock(&self) -> bool {
        // A range has no other lock.
        !self.locked
            || self.kind == SourceKind::Physical
            || lock::take(self.fd.as_fd(), &self.path, self.kind, !self.read_only).is_ok()
    }

    /// Returns the open descriptor; the lock lives as long as it does.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// Returns the kind.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }
    /// Returns the offset in the descriptor of the region's first byte.
    pub(super) fn first(&self) -> u64 {
        self.first
    }
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len.get()
    }
    /// Always false: an empty source is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the path or name of the source.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the unit in bytes of a mapping's address, offset and length.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }
    /// Returns the failure that its bytes survive.
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }
    /// Whether it was opened for reading only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the file was created by this opening.
    pub(super) fn created(&self) -> bool {
        self.created
    }

    /// Corrects the kind if a `MAP_SYNC` mapping reveals it.
    pub(super) fn set_fsdax(&mut self) {
        self.kind = SourceKind::FsDax;
    }

    pub(super) fn os(&self, what: &'static str, e: Errno) -> PmemError {
        PmemError::Os {
            what,
            path: self.path.display().to_string(),
            source: e.into(),
        }
    }

    pub(super) fn unusable(&self, errno: i32, why: String) -> PmemError {
        PmemError::Unusable {
            path: self.path.display().to_string(),
            why,
            errno,
        }
    }
}

/// Removes a file created here, unless its name now refers to another file.
pub(super) fn remove_own(path: &Path, object: (u64, u64)) {
    let same = |st: rustix::fs::Stat| (st.st_dev, st.st_ino) == object;
    if rustix::fs::lstat(path).is_ok_and(same) {
        // The file is useless; the caller reports the error.
        let _ = rustix::fs::unlink(path);
    }
}

#[cfg(test)]
pub(super) mod tests;
