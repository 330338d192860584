//! Judges a path as a place for a region: the library part of `pramfs doctor`.
//!
//! Invariant: probing changes nothing; it neither locks nor writes. In a directory it may
//! create and drop an unnamed temporary file, the only way to find out whether files there are
//! DAX.
//!
//! Not handled here: printing.

mod advice;
mod mounts;

pub(in crate::pmem) use mounts::of as mount_of;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::backend::{Granularity, Persistence};
use super::cpu::Cpu;
use super::error::PmemError;
use super::hugepage::{self, HugePolicy};
use super::mapped_source::caches_are_persistent;
use super::mapping::{HUGE_2M, Mapping, Share};
use super::source::{self, DetectedSource, PhysicalRange, SourceKind, SysDevice};

/// Properties of a path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The path as given.
    pub path: PathBuf,
    /// The object examined: the path, or, if it does not exist, the directory that would
    /// contain it.
    pub subject: PathBuf,
    /// Whether the path exists.
    pub exists: bool,
    /// The kind of region possible there; `None` if none is (`problem` says why).
    pub kind: Option<SourceKind>,
    /// The reason if no region is possible.
    pub problem: Option<String>,
    /// Bytes of the file or device; `None` for a directory or a missing path.
    pub size: Option<u64>,
    /// Bytes with memory or blocks behind them, for files.
    pub allocated: Option<u64>,
    /// Bytes free on its file system.
    pub free: Option<u64>,
    /// The file system that contains it, or would contain it.
    pub filesystem: Option<FileSystem>,
    /// The unit in which stores become durable.
    pub granularity: Option<Granularity>,
    /// The failure that the contents survive.
    pub persistence: Option<Persistence>,
    /// Unit of a region's length, in bytes.
    pub alignment: u64,
    /// Possible page sizes of a mapping, in bytes.
    pub page_sizes: Vec<u64>,
    /// When the kernel gives huge pages to tmpfs or a memfd; `None` for other kinds, or if
    /// the kernel has none for them.
    pub huge_policy: Option<HugePolicy>,
    /// The kernel's `shmem_enabled` setting.
    pub shmem_enabled: Option<String>,
    /// Free and total pages of the huge page pool, on hugetlbfs.
    pub huge_pool: Option<(u64, u64)>,
    /// The instruction that writes a cache line back: `clwb`, `clflushopt`,
    /// `clflush`, or `none`.
    pub flush_instruction: &'static str,
    /// The width of streaming stores: `avx512`, `avx`, `sse2`, or `none`.
    pub stream_instruction: &'static str,
    /// Whether a mapping with `MAP_SYNC` can be made; `None` if that could not be tried.
    pub map_sync: Option<bool>,
    /// Whether the platform flushes its caches on power failure (eADR).
    pub persistent_caches: bool,
    /// Backends that can serve it, the preferred one first.
    pub backends: Vec<&'static str>,
    /// Why the library libpmem2 cannot be used here, whatever the path is; `None` if it can.
    pub without_libpmem2: Option<String>,
    /// The process that has it open as a region, or another holder.
    pub in_use: Option<String>,
    /// Warnings for the user, each a sentence.
    pub warnings: Vec<String>,
    /// Commands that improve it: each a command, ` # ` and its purpose.
    pub advice: Vec<String>,
}

/// The file system a path lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// Its type, as in `/proc/self/mountinfo`.
    pub fs_type: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The device or name it was mounted from.
    pub device: String,
    /// Options of the mount and of the file system.
    pub options: String,
}

impl Report {
    /// Returns the path for a command: in a directory, that of a future file.
    fn target(&self) -> PathBuf {
        if self.path.is_dir() {
            self.path.join("region.pramfs")
        } else {
            self.path.clone()
        }
    }

    /// Whether a region there survives a power failure, with every fence as cheap as the
    /// hardware allows.
    pub fn is_persistent_memory(&self) -> bool {
        self.kind.is_some_and(SourceKind::is_dax)
            && self.persistence == Some(Persistence::Power)
            && self.granularity.is_some_and(|g| g != Granularity::Page)
    }
}

/// The object being examined.
struct Subject {
    fd: OwnedFd,
    path: PathBuf,
    file_type: FileType,
    stat: rustix::fs::Stat,
}

impl Subject {
    fn open(path: &Path) -> rustix::io::Result<Subject> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        Ok(Subject {
            fd,
            path: path.to_owned(),
            file_type,
            stat,
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn device(&self) -> Option<SysDevice> {
        match self.file_type {
            FileType::BlockDevice => Some(SysDevice::block(self.stat.st_rdev)),
            FileType::CharacterDevice => Some(SysDevice::character(self.stat.st_rdev)),
            _ => None,
        }
    }
}

/// Examines a path: a file, a device, a directory, or a name that does not exist yet.
///
/// ```
/// let report = pramfs_medium::pmem::probe("/dev/shm/region-to-be")?;
/// assert!(!report.exists);
/// println!("{:?}: {:?}", report.kind, report.advice);
/// # Ok::<(), pramfs_medium::pmem::PmemError>(())
/// ```
///
/// # Errors
/// [`PmemError::Os`] if neither the path nor its directory can be examined. A path that
/// cannot hold a region is not an error; see [`Report::problem`].
pub fn probe(path: impl AsRef<Path>) -> Result<Report, PmemError> {
    let path = path.as_ref();
    let range = PhysicalRange::of(path)?;
    let object = match range {
        Some(_) => Path::new(source::MEMORY),
        None => path,
    };
    let (subject, exists) = match Subject::open(object) {
        Ok(subject) => (subject, true),
        Err(rustix::io::Errno::NOENT) => {
            let parent = match path.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            (
                Subject::open(parent).map_err(|e| cannot_look(parent, e))?,
                false,
            )
        }
        Err(e) => return Err(cannot_look(path, e)),
    };
    let mut report = Report::empty(path, &subject, exists);
    match range {
        Some(range) => report.fill_physical(&subject, range),
        None => report.fill(&subject),
    }
    advice::advise(&mut report, &subject);
    Ok(report)
}

fn cannot_look(path: &Path, e: rustix::io::Errno) -> PmemError {
    PmemError::Os {
        what: "cannot look at",
        path: path.display().to_string(),
        source: e.into(),
    }
}

impl Report {
    fn empty(path: &Path, subject: &Subject, exists: bool) -> Report {
        let cpu = Cpu::get();
        Report {
            path: path.to_owned(),
            subject: subject.path.clone(),
            exists,
            kind: None,
            problem: None,
            size: None,
            allocated: None,
            free: None,
            filesystem: subject
                .device()
                .is_none()
                .then(|| mounts::of(subject.fd()))
                .flatten(),
            granularity: None,
            persistence: None,
            alignment: source::REGION_UNIT,
            page_sizes: Vec::new(),
            huge_policy: None,
            shmem_enabled: hugepage::shmem_enabled(),
            huge_pool: None,
            flush_instruction: cpu.flush_name(),
            stream_instruction: cpu.stream_name(),
            map_sync: None,
            persistent_caches: caches_are_persistent(),
            backends: Vec::new(),
            without_libpmem2: without_libpmem2(),
            in_use: None,
            warnings: Vec::new(),
            advice: Vec::new(),
        }
    }

    fn fill(&mut self, subject: &Subject) {
        if let Some(why) = source::missing_device(&self.path) {
            self.problem = Some(why.into());
            return;
        }
        let found = if subject.file_type == FileType::Directory {
            self.in_directory(subject)
        } else {
            self.of_object(subject)
        };
        match found {
            Ok(found) => self.describe(subject, &found),
            Err(PmemError::Unusable { why, .. }) => self.problem = Some(why),
            Err(e) => self.problem = Some(e.to_string()),
        }
    }

    /// Judges a range of physical memory.
    fn fill_physical(&mut self, subject: &Subject, range: PhysicalRange) {
        match range.check(&self.path) {
            Ok(()) => {}
            Err(PmemError::Unusable { why, .. }) => {
                self.problem = Some(why);
                return;
            }
            Err(e) => {
                self.problem = Some(e.to_string());
                return;
            }
        }
        self.size = Some(range.len);
        let found = DetectedSource {
            kind: SourceKind::Physical,
            alignment: source::REGION_UNIT,
            persistence: Persistence::Reboot,
        };
        self.describe(subject, &found);
    }

    /// Identifies a file that would be created in this directory.
    fn in_directory(&mut self, subject: &Subject) -> Result<DetectedSource, PmemError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(&subject.path, flags, Mode::RUSR | Mode::WUSR) {
            let mut found = source::identify(file.as_fd(), &subject.path)?;
            if matches!(found.kind, SourceKind::File | SourceKind::FsDax)
                && rustix::fs::ftruncate(&file, source::REGION_UNIT).is_ok()
            {
                self.try_map_sync(file.as_fd(), &mut found);
            }
            return Ok(found);
        }
        source::identify_by_filesystem(subject.fd(), &subject.path)
    }

    fn of_object(&mut self, subject: &Subject) -> Result<DetectedSource, PmemError> {
        let mut found = source::identify(subject.fd(), &subject.path)?;
        match (subject.file_type, subject.device()) {
            (FileType::RegularFile, _) => {
                self.size = Some(u64::try_from(subject.stat.st_size).unwrap_or(0));
                self.allocated = Some(u64::try_from(subject.stat.st_blocks).unwrap_or(0) * 512);
                if matches!(found.kind, SourceKind::File | SourceKind::FsDax) {
                    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
                    if let Ok(file) = rustix::fs::open(&subject.path, flags, Mode::empty()) {
                        self.try_map_sync(file.as_fd(), &mut found);
                    }
                }
            }
            (FileType::BlockDevice, Some(device)) => {
                self.size = device.number("size").map(|sectors| sectors * 512);
                self.in_use = source::is_block_exclusive_holder(subject.stat.st_rdev);
            }
            (_, Some(device)) => self.size = device.number("size"),
            (_, None) => {}
        }
        if let Some((pid, name)) = source::holder_of(subject.stat.st_dev, subject.stat.st_ino) {
            self.in_use = Some(format!("is in use by process {pid} ({name})"));
        }
        Ok(found)
    }

    /// The only proof that flushes from user space suffice.
    fn try_map_sync(&mut self, file: BorrowedFd<'_>, found: &mut DetectedSource) {
        let can = Mapping::new(file, source::REGION_UNIT as usize, Share::SharedSync).is_ok();
        self.map_sync = Some(can);
        if can {
            found.kind = SourceKind::FsDax;
        }
    }

    fn describe(&mut self, subject: &Subject, found: &DetectedSource) {
        let kind = found.kind;
        self.kind = Some(kind);
        self.persistence = Some(found.persistence);
        self.alignment = found.alignment;
        let line_or_byte = if self.persistent_caches {
            Granularity::Byte
        } else {
            Granularity::CacheLine
        };
        self.granularity = Some(match kind {
            SourceKind::DevDax => line_or_byte,
            SourceKind::Physical => Granularity::CacheLine,
            SourceKind::FsDax if self.map_sync != Some(false) && Cpu::WRITES_BACK => line_or_byte,
            kind if kind.is_memory() => Granularity::CacheLine,
            _ => Granularity::Page,
        });
        self.huge_policy = hugepage::policy(subject.fd(), kind);
        let small = rustix::param::page_size() as u64;
        self.page_sizes = match kind {
            SourceKind::Hugetlbfs | SourceKind::DevDax => vec![found.alignment],
            SourceKind::FsDax => vec![small, HUGE_2M as u64],
            _ if self.huge_policy.is_some_and(|p| p != HugePolicy::Never) => {
                vec![small, HUGE_2M as u64]
            }
            _ => vec![small],
        };
        if kind == SourceKind::Hugetlbfs {
            self.huge_pool = hugepage::pool(found.alignment);
        }
        if self.without_libpmem2.is_none()
            && !matches!(kind, SourceKind::BlockDevice | SourceKind::Physical)
        {
            self.backends.push("libpmem2");
        }
        if !matches!(kind, SourceKind::DevDax | SourceKind::Physical) || Cpu::WRITES_BACK {
            self.backends.push("native");
        }
        if !kind.is_device() {
            self.free = rustix::fs::statvfs(&subject.path)
                .ok()
                .map(|v| v.f_bavail * v.f_frsize);
        }
    }
}

#[cfg(feature = "libpmem2")]
fn without_libpmem2() -> Option<String> {
    super::libpmem2::missing()
}

#[cfg(not(feature = "libpmem2"))]
fn without_libpmem2() -> Option<String> {
    Some("this build has no libpmem2 backend (the feature `libpmem2`)".to_owned())
}

#[cfg(test)]
mod tests;
