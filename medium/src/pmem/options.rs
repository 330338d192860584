//! [`RegionOptions`]: how a region is opened.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::backend::{Durability, Granularity, PmemBackend};
use super::error::PmemError;
use super::native::NativeBackend;
use super::protect::Protect;
use super::region::Region;
use super::source::{
    Access, Making, Ownership, Source, is_physical, open_when_released, remove_own,
};
use super::unlock_wait::open_when_unlocked;

/// The code that serves a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// libpmem2 if it is compiled in, installed, and serves the source, else native.
    /// [`RegionInfo`](super::RegionInfo) names the choice.
    #[default]
    Auto,
    /// The system's libpmem2, or an error.
    Libpmem2,
    /// The instructions of the processor, in Rust.
    Native,
}

/// Options for opening or creating a region, as a builder.
///
/// ```
/// # use pramfs_medium as pramfs;
/// use pramfs::pmem::{BackendKind, Durability, RegionOptions};
/// let region = RegionOptions::new()
///     .backend(BackendKind::Native)
///     .durability(Durability::Process)
///     .memfd("example", 1 << 20)?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok::<(), pramfs::pmem::PmemError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RegionOptions {
    backend: BackendKind,
    durability: Durability,
    read_only: bool,
    require_dax: bool,
    lock: bool,
    shared: bool,
    preallocate: bool,
    whoever_owns: bool,
    fault_guard: bool,
    room: Option<u64>,
    protect: Protect,
}

impl Default for RegionOptions {
    fn default() -> Self {
        RegionOptions {
            backend: BackendKind::Auto,
            durability: Durability::Power,
            read_only: false,
            require_dax: false,
            lock: true,
            shared: false,
            preallocate: false,
            whoever_owns: false,
            fault_guard: true,
            room: None,
            protect: Protect::Off,
        }
    }
}

impl RegionOptions {
    /// Read-write, locked, any medium, every fence durable.
    pub fn new() -> RegionOptions {
        RegionOptions::default()
    }
    /// Chooses the code that serves the region.
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.backend = kind;
        self
    }
    /// Sets the guarantee of a fence on page-granular media.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
    /// Opens for reading and maps privately: stores (of a recovery, say) stay in this
    /// process and the medium is never written.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }
    /// Refuses every medium that is not directly mapped persistent memory.
    pub fn require_dax(mut self, yes: bool) -> Self {
        self.require_dax = yes;
        self
    }
    /// Takes the region's lock (the default). Read-only openings share it. Without the lock,
    /// a region may be opened a second time while a file system in it is mounted: open it
    /// [read-only](Self::read_only), since stores would damage that file system.
    pub fn lock(mut self, yes: bool) -> Self {
        self.lock = yes;
        self
    }
    /// Opens with the lock shared, also for reading and writing, as after
    /// `Region::lock_shared`: nothing may be stored before the lock is exclusive. For a
    /// descriptor whose lock is shared already: the kernel drops a lock before it refuses
    /// another kind of it.
    pub fn shared_lock(mut self, yes: bool) -> Self {
        self.shared = yes;
        self
    }
    /// Reserves the space of the whole region on opening, so that no store can fail for
    /// lack of space. No effect on devices.
    pub fn preallocate(mut self, yes: bool) -> Self {
        self.preallocate = yes;
        self
    }

    /// Lets [`create`](Self::create) take over an existing file that others own or may
    /// write. For callers that check [`Region::ownership`] themselves.
    pub fn whoever_owns(mut self, yes: bool) -> Self {
        self.whoever_owns = yes;
        self
    }

    /// Installs the SIGBUS handler of this process when the region is opened (the default;
    /// see [`install_fault_guard`](super::install_fault_guard)). A failed page is then an
    /// error of the operation that accesses it, and everything else continues. A previous
    /// handler receives every SIGBUS outside regions. Without this handler, a failed page
    /// ends the process. A program that later installs its own handler passes on signals
    /// that are not its own.
    pub fn fault_guard(mut self, yes: bool) -> Self {
        self.fault_guard = yes;
        self
    }

    /// Reserves addresses for a region of so many bytes, up to which it can grow while it is
    /// open (`FileSystem::grow`). The default is four times its size, at least 4 TiB and at
    /// most 64 TiB, and nothing more than its size if the address space of the process is
    /// limited (`ulimit -v`). Addresses take no memory. If there are too few, the region
    /// opens, and cannot grow while it is open.
    pub fn room_to_grow(mut self, bytes: u64) -> Self {
        self.room = Some(bytes);
        self
    }

    /// Keeps stray stores of this process from the region (default: [`Protect::Off`]). A
    /// protected region is mapped twice: it takes twice the address space and page tables. A
    /// region that is opened read-only is mapped privately, so no store of this process reaches
    /// it, and nothing else is done.
    ///
    /// Not protected: the ranges of files that the program has mapped for writing, and the
    /// thread that is inside an operation of the library, from its first store to its end. The
    /// kernel, devices and other processes can store to the region as before. A thread must not
    /// jump (longjmp) out of an operation: the region would stay open.
    ///
    /// On devdax and hugetlbfs, a range of a file can then be mapped for writing only if it
    /// consists of whole huge pages of the file; mapping another fails with EOPNOTSUPP. If
    /// mprotect(2) refuses to open the region, operations that store fail with EIO.
    ///
    /// ```
    /// # use pramfs_medium as pramfs;
    /// use pramfs::pmem::{Protect, RegionOptions};
    /// let region = RegionOptions::new()
    ///     .protect(Protect::Mprotect)
    ///     .memfd("example", 1 << 20)?;
    /// assert_eq!(region.info().protect, Protect::Mprotect);
    /// # Ok::<(), pramfs::pmem::PmemError>(())
    /// ```
    ///
    /// # Errors
    /// Opening fails with [`PmemError::Unusable`], EOPNOTSUPP or ENOSPC, if
    /// [`Protect::Pkey`] is asked for and there is no key.
    pub fn protect(mut self, protect: Protect) -> Self {
        self.protect = protect;
        self
    }

    fn access(&self) -> Access {
        Access {
            read_only: self.read_only,
            lock: self.lock,
            shared: self.shared,
            whoever_owns: self.whoever_owns,
        }
    }

    /// Opens an existing region. If its mount has just been unmounted, waits for the server
    /// to release it: see [`open_when_unlocked`]. `physaddr:0x40000000+512M` in the place of a
    /// path names a range of physical memory, which must be reserved ([`is_physical`]).
    ///
    /// # Errors
    /// * [`PmemError::Unusable`] with EBUSY (in use), EISDIR, ENODEV, ENOENT, EACCES,
    ///   EROFS, EINVAL (empty, or a length that is not a multiple of 4096 or of its huge
    ///   page), EOPNOTSUPP (not DAX though required, or not served by the requested
    ///   backend), ENOMEM;
    /// * [`PmemError::Os`] for any other error of the system.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Region, PmemError> {
        let path = path.as_ref();
        let open = || Source::open(path, self.access());
        if is_physical(path) {
            return self.finish(open_when_released(path, open)?);
        }
        self.finish(open_when_unlocked(path, open, is_busy)?)
    }

    /// Opens a region of `len` bytes. Creates the file (sparse, mode 0600) if it is missing
    /// or empty. A file with contents must have exactly `len` bytes; a device must have at
    /// least that many, and only `len` are mapped. An existing object must belong to the
    /// caller, and no other user may have write permission. In a directory where every user
    /// may create files, another user may have placed the file there to gain access to its
    /// future contents.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and EEXIST for a file of another length, EPERM for an
    /// object that others own or may write, ENOSPC for a device that is too small, EFBIG.
    pub fn create(&self, path: impl AsRef<Path>, len: u64) -> Result<Region, PmemError> {
        self.make(path.as_ref(), len, Making::NewOrExisting)
    }

    /// As [`create`](Self::create), but never takes over an existing object, not even an
    /// empty file. The file is new and has mode 0600.
    ///
    /// ```
    /// # use pramfs_medium::pmem::RegionOptions;
    /// # let path = std::env::temp_dir().join(format!("new-{}", std::process::id()));
    /// drop(RegionOptions::new().create_new(&path, 1 << 20)?);
    /// assert!(RegionOptions::new().create_new(&path, 1 << 20).is_err());
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), pramfs_medium::pmem::PmemError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`open`](Self::open), and EEXIST if the name exists.
    pub fn create_new(&self, path: impl AsRef<Path>, len: u64) -> Result<Region, PmemError> {
        self.make(path.as_ref(), len, Making::New)
    }

    fn make(&self, path: &Path, len: u64, making: Making) -> Result<Region, PmemError> {
        if self.read_only {
            return Err(PmemError::Unusable {
                path: path.display().to_string(),
                why: "a region cannot be created read-only; create it first, then open it so"
                    .into(),
                errno: libc::EINVAL,
            });
        }
        let create = || Source::create(path, len, self.access(), making);
        let source = match is_physical(path) {
            true => open_when_released(path, create)?,
            false => open_when_unlocked(path, create, is_busy)?,
        };
        let created = source.created().then(|| Ownership::of(source.fd()));
        let made = self.finish(source);
        if made.is_err()
            && let Some(Ok(ownership)) = created
        {
            // The file was made here and is useless; the error says why.
            remove_own(path, ownership.object());
        }
        made
    }

    /// Creates a region in anonymous shared memory that ends with its descriptors.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn memfd(&self, name: &str, len: u64) -> Result<Region, PmemError> {
        self.finish(Source::memfd(name, len)?)
    }

    /// Opens a region behind an open descriptor. The descriptor must be readable and,
    /// unless [`read_only`](Self::read_only), writable. `name` is for messages.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_fd(&self, fd: OwnedFd, name: &str) -> Result<Region, PmemError> {
        self.finish(Source::from_fd(fd, Path::new(name), self.access())?)
    }

    fn finish(&self, mut source: Source) -> Result<Region, PmemError> {
        if self.fault_guard {
            super::install_fault_guard()?;
        }
        source.set_room(self.room);
        if self.preallocate && !self.read_only {
            source.preallocate()?;
        }
        let name = source.path().display().to_string();
        let kind = source.kind();
        let ownership = Ownership::of(source.fd()).map_err(|e| PmemError::Os {
            what: "cannot stat",
            path: name.clone(),
            source: e,
        })?;
        let backend = self.map(source)?;
        let kind = backend.source_kind().unwrap_or(kind);
        if self.require_dax && !(kind.is_dax() && backend.granularity() != Granularity::Page) {
            return Err(PmemError::Unusable {
                path: name,
                why: format!(
                    "is not directly mapped persistent memory but {} ({}), and DAX was required; see `pramfs doctor`",
                    kind.name(),
                    if kind.is_memory() {
                        "volatile memory"
                    } else {
                        "through the page cache"
                    },
                ),
                errno: libc::EOPNOTSUPP,
            });
        }
        let region = Region::new(name, backend).read_only(self.read_only);
        Ok(region.owned(ownership))
    }

    fn map(&self, source: Source) -> Result<Box<dyn PmemBackend>, PmemError> {
        match self.backend {
            #[cfg(feature = "libpmem2")]
            BackendKind::Auto if super::libpmem2::serves(&source) => {
                Ok(Box::new(super::libpmem2::Libpmem2Backend::new(source, self.durability, self.protect)?))
            }
            #[cfg(feature = "libpmem2")]
            BackendKind::Libpmem2 => {
                Ok(Box::new(super::libpmem2::Libpmem2Backend::new(source, self.durability, self.protect)?))
            }
            #[cfg(not(feature = "libpmem2"))]
            BackendKind::Libpmem2 => Err(source.unusable(
                libc::EOPNOTSUPP,
                "the libpmem2 backend is not in this build; rebuild with the feature `libpmem2`, or use the native one"
                    .into(),
            )),
            BackendKind::Auto | BackendKind::Native => Ok(Box::new(NativeBackend::new(source, self.durability, self.protect)?)),
        }
    }
}
fn is_busy(error: &PmemError) -> bool {
    matches!(
        error,
        PmemError::Unusable {
            errno: libc::EBUSY,
            ..
        }
    )
}
