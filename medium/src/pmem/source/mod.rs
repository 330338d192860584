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
mod holders;
mod lock;
mod ownership;
mod persistence;
mod substitute;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

pub use acl::Permissions;
pub(super) use detect::{
    DetectedSource, SysDevice, identify, identify_by_filesystem, is_block_exclusive_holder,
    missing_device,
};
pub(super) use lock::holder_of;
pub use lock::inherit_standard_streams_only;
pub use ownership::Ownership;
pub(super) use substitute::is_held_by;
pub use substitute::served_without_lock;

use super::backend::Persistence;
use super::error::PmemError;
use super::fork::NotInheritedFd;

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
        }
    }

    /// Whether it is memory of the machine, without storage.
    pub fn is_memory(self) -> bool {
        matches!(
            self,
            SourceKind::Tmpfs | SourceKind::Hugetlbfs | SourceKind::Memfd
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
    /// When creating a region, take over an existing object, even if others own it or may write
    /// it.
    pub whoever_owns: bool,
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
    len: u64,
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
        Source::finish(fd, name.to_owned(), access, None)
    }

    fn finish(
        fd: OwnedFd,
        path: PathBuf,
        access: Access,
        create: Option<u64>,
    ) -> Result<Source, PmemError> {
        let found = detect::identify(fd.as_fd(), &path)?;
        let substitute = match access.lock {
            true => lock::acquire(fd.as_fd(), &path, found.kind, !access.read_only)?,
            false => None,
        };
        let mut source = Source {
            _not_inherited: NotInheritedFd::new(fd.as_fd()),
            fd,
            kind: found.kind,
            len: 0,
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
        source.len = match create {
            Some(len) => source.make_len(len)?,
            None => source.found_len()?,
        };
        source.check_len(source.len)?;
        Ok(source)
    }

    /// Returns the current length of the object; block devices lose an odd tail.
    fn found_len(&self) -> Result<u64, PmemError> {
        match self.kind {
            SourceKind::DevDax => detect::devdax_len(self.fd.as_fd(), &self.path),
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
        if matches!(self.kind, SourceKind::DevDax | SourceKind::BlockDevice) {
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
        if matches!(self.kind, SourceKind::DevDax | SourceKind::BlockDevice) {
            return Ok(());
        }
        rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), 0, self.len).map_err(|e| match e {
            Errno::NOSPC | Errno::NOMEM => self.unusable(
                libc::ENOSPC,
                format!("there is no space for all its {} bytes; free some, or choose a smaller region", self.len),
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
        !self.locked || lock::take(self.fd.as_fd(), &self.path, self.kind, !self.read_only).is_ok()
    }

    /// Returns the open descriptor; the lock lives as long as it does.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// Returns the kind.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Always false: an empty source is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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

/// Refuses to create a region in an object that another user owns or may write: that user
/// could write every byte of the file system in it.
fn refuse_others(fd: BorrowedFd<'_>, path: &Path) -> Result<(), PmemError> {
    let ownership = Ownership::of(fd).map_err(|e| PmemError::Os {
        what: "cannot stat",
        path: path.display().to_string(),
        source: e,
    })?;
    match ownership.objection(rustix::process::geteuid().as_raw()) {
        None => Ok(()),
        Some(why) => Err(PmemError::Unusable {
            path: path.display().to_string(),
            why: format!(
                "exists and {why}: a user with write access to a region can change all files in it; choose a name in a directory where no other user can create files, or remove it first"
            ),
            errno: libc::EPERM,
        }),
    }
}

/// Opens an existing path. Refuses an object that cannot be a region, with the reason,
/// before opening it could block or have an effect.
fn open_checked(path: &Path, access: Access) -> Result<OwnedFd, PmemError> {
    let st = rustix::fs::stat(path).map_err(|e| open_error(path, e, access.read_only))?;
    let file_type = FileType::from_raw_mode(st.st_mode);
    detect::refuse_type(file_type, path)?;
    let block = file_type == FileType::BlockDevice;
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= if access.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    if block && access.lock {
        // The kernel's own claim on a device fails while the device is mounted, used as
        // swap, or part of another device.
        flags |= OFlags::EXCL;
    }
    // For root, the kernel opens a write-protected device and then refuses each store to
    // it.
    if block && !access.read_only && detect::block_is_read_only(st.st_rdev) {
        return Err(write_protected(path));
    }
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::BUSY if block => lock::block_in_use(path, st.st_rdev),
        Errno::ACCESS | Errno::ROFS if block && detect::block_is_read_only(st.st_rdev) => {
            write_protected(path)
        }
        e => open_error(path, e, access.read_only),
    })?;
    let now = rustix::fs::fstat(&fd).map_err(|e| open_error(path, e, access.read_only))?;
    if FileType::from_raw_mode(now.st_mode) != file_type {
        return Err(PmemError::Unusable {
            path: path.display().to_string(),
            why: "was replaced by something else while it was being opened; try again".into(),
            errno: libc::EAGAIN,
        });
    }
    Ok(fd)
}

fn write_protected(path: &Path) -> PmemError {
    PmemError::Unusable {
        path: path.display().to_string(),
        why: "the device is read-only; open it read-only, or lift it with `blockdev --setrw`"
            .into(),
        errno: libc::EROFS,
    }
}

fn open_error(path: &Path, e: Errno, read_only: bool) -> PmemError {
    let why = match e {
        Errno::NOENT => {
            "no such file or device; check the path, or make a file system of that name: mkfs.pramfs REGION SIZE"
        }
        Errno::PERM if !read_only => {
            "the system refuses all writes to it, because it is immutable or append-only (see lsattr(1)), or sealed; lift that, or open it read-only"
        }
        Errno::ACCESS | Errno::PERM if read_only => {
            "permission denied for reading; run as its owner or as root, or change its mode"
        }
        Errno::ACCESS | Errno::PERM => {
            "permission denied for reading and writing; run as its owner or as root, change its mode, or open it read-only"
        }
        Errno::ROFS => {
            "lies on a read-only file system; open it read-only, or remount that file system read-write"
        }
        Errno::TXTBSY => "is being executed or used as swap",
        Errno::NXIO | Errno::NODEV => "there is no device behind this node; is its driver loaded?",
        Errno::BUSY => "is in use by the kernel or by another program",
        e => {
            return PmemError::Os {
                what: "cannot open",
                path: path.display().to_string(),
                source: e.into(),
            };
        }
    };
    PmemError::Unusable {
        path: path.display().to_string(),
        why: why.into(),
        errno: e.raw_os_error(),
    }
}

#[cfg(test)]
pub(super) mod tests;
