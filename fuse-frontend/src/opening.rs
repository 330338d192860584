//! Opens the region and its engine.
//!
//! A region whose server is just ending after an unmount is waited for. With
//! [`takeover`](crate::takeover), a later server opens the region by the descriptor that the
//! supervisor holds, and with it the lock, which nobody else gets between two servers.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs::inode::{Fs, Survivor};
use pramfs::pmem::{PmemError, Region, RegionOptions};
use pramfs::{DistinctClock, MountOptions};
use pramfs_contents::Contents;

use rustix::fs::OFlags;

use crate::exit::Failure;
use crate::mountinfo;
use crate::options::MountSettings;
use crate::second_mount;
use crate::takeover::memory::Memory;

/// How long to wait for a server that closes the region after an unmount. umount(8)
/// does not wait for it.
const CLOSING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// The same at a takeover, where programs wait.
const TAKING_OVER: Duration = Duration::from_secs(8);
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// Opens the region. Also returns whether the mount should be writable, but its device
/// is write-protected, so that the region is open read-only.
///
/// A read-only mount also opens the region for writing if possible: the journal is
/// replayed on the medium, like kernel file systems do, and `remount,rw` works. With
/// `norecovery` it does neither.
///
/// # Errors
/// It cannot be opened, or is mounted.
pub(crate) fn open_region(
    path: &Path,
    settings: &MountSettings,
) -> Result<(Region, bool), Failure> {
    let at_once = |options: &RegionOptions, path: &Path| options.open(path);
    open(path, settings, at_once, open_patiently)
}

/// The name of a region, without symbolic links. A range of physical memory is no file, even if
/// there is one of the same name.
pub(crate) fn name_of(given: &Path) -> PathBuf {
    match pramfs_medium::pmem::is_physical(given) {
        true => given.to_owned(),
        false => given.canonicalize().unwrap_or_else(|_| given.to_owned()),
    }
}

/// As [`open_region`], for a server that takes over: by the descriptor that the server before has
/// locked, if there is one. Otherwise waits until the region is not in use any more.
///
/// The lock is never released nor changed meanwhile: the descriptor is a copy of the one that has
/// it. The kernel notes the process that took the lock first, which has ended.
///
/// # Errors
/// It cannot be opened, or is in use by another program.
pub(crate) fn open_again(
    path: &Path,
    locked: Option<&OwnedFd>,
    settings: &MountSettings,
) -> Result<(Region, bool), Failure> {
    let Some(locked) = locked else {
        return open_when_free(path, settings);
    };
    let flags = rustix::fs::fcntl_getfl(locked)
        .map_err(|error| Failure::system(format!("{}: {error}", path.display())))?;
    // As the server before has opened it.
    let mut settings = settings.clone();
    settings.read_only |= !flags.contains(OFlags::RDWR);
    let is_shared = is_shared(locked).unwrap_or(settings.read_only);
    settings.read_only |= is_shared;
    let by_descriptor = |options: &RegionOptions| -> Opened {
        let name = path.display().to_string();
        let copy = locked.try_clone().map_err(|source| PmemError::Os {
            what: "cannot copy the descriptor of",
            path: name.clone(),
            source,
        })?;
        options.clone().shared_lock(is_shared).from_fd(copy, &name)
    };
    open(
        path,
        &settings,
        |options, _| by_descriptor(options),
        |_, options| Ok(by_descriptor(options)),
    )
}

/// Whether the lock of a descriptor is shared, as that of a mount that was read-only from its
/// start; `None` if the kernel does not tell.
fn is_shared(locked: &OwnedFd) -> Option<bool> {
    let info = format!("/proc/self/fdinfo/{}", locked.as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    let lock = info.lines().find(|line| line.contains(" FLOCK "))?;
    Some(lock.contains(" READ "))
}

fn open_when_free(path: &Path, settings: &MountSettings) -> Result<(Region, bool), Failure> {
    let started = Instant::now();
    loop {
        let was_busy = Cell::new(false);
        let open_once = |options: &RegionOptions| {
            let opened = options.open(path);
            was_busy.set(opened.as_ref().is_err_and(is_busy));
            opened
        };
        let opened = open(
            path,
            settings,
            |options, _| open_once(options),
            |_, options| Ok(open_once(options)),
        );
        if opened.is_ok() || !was_busy.get() || started.elapsed() >= TAKING_OVER {
            return opened;
        }
        std::thread::sleep(SHORT_PAUSE);
    }
}

type Opened = Result<Region, PmemError>;

fn open(
    path: &Path,
    settings: &MountSettings,
    at_once: impl Fn(&RegionOptions, &Path) -> Opened,
    patiently: impl Fn(&Path, &RegionOptions) -> Result<Opened, Failure>,
) -> Result<(Region, bool), Failure> {
    let options = RegionOptions::new()
        .backend(settings.backend)
        .durability(settings.durability())
        .require_dax(settings.require_dax)
        .protect(settings.protect);
    let to_read = || options.clone().read_only(true);
    if settings.read_only {
        if !settings.no_recovery {
            match at_once(&options, path) {
                Ok(region) => return Ok((region, false)),
                Err(error) if may_be_read(&error) => {}
                Err(error) => return Err(told(error)),
            }
        }
        return Ok((patiently(path, &to_read())?.map_err(told)?, false));
    }
    match patiently(path, &options)? {
        Ok(_) if settings.no_recovery => Err(Failure::mount(
            "norecovery needs ro: changes need a recovered file system",
        )),
        Ok(region) => Ok((region, false)),
        Err(error) if is_write_protected(path, &error) => {
            Ok((patiently(path, &to_read())?.map_err(told)?, true))
        }
        Err(error) => Err(told(error)),
    }
}

pub(crate) fn told(error: PmemError) -> Failure {
    Failure::mount(error.to_string())
}

fn is_write_protected(path: &Path, error: &PmemError) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let unusable = matches!(
        error,
        PmemError::Unusable {
            errno: libc::EROFS,
            ..
        }
    );
    unusable && std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Whether a region that cannot be opened for writing may still be opened for reading.
fn may_be_read(error: &PmemError) -> bool {
    // ENODEV: the file system maps files privately only.
    matches!(
        error.errno(),
        libc::EACCES
            | libc::EPERM
            | libc::EROFS
            | libc::ETXTBSY
            | libc::EBUSY
            | libc::EAGAIN
            | libc::ENODEV
    )
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

/// Opens a region, and waits if its server is just releasing it after an unmount. If
/// the region is mounted, it is refused at once.
fn open_patiently(
    path: &Path,
    options: &RegionOptions,
) -> Result<Result<Region, PmemError>, Failure> {
    let started = Instant::now();
    loop {
        let error = match options.open(path) {
            Ok(region) => return Ok(Ok(region)),
            Err(error) => error,
        };
        let busy = is_busy(&error);
        if busy {
            let mount = mountinfo::of_source(path);
            // A mount of root is live if its server answers, any other if it is in the mount
            // table.
            let is_live = match rustix::process::geteuid().is_root() {
                true => second_mount::is_served(path),
                false => mount.is_some(),
            };
            if is_live {
                let there = mount.map_or_else(String::new, |mount| {
                    format!(" (it is mounted on {})", mount.target.display())
                });
                return Err(Failure::mount(format!("{error}{there}")));
            }
        }
        if !busy || started.elapsed() > CLOSING {
            return Ok(Err(error));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Mounts the region. If it is unexpectedly write-protected and needs recovery, the mount
/// is refused: it would show contents that exist in memory only.
///
/// With `several` kernels that cache its files, no two changes have the same time.
///
/// `instead` says what there is if the region holds no file system of ours. It may run a program:
/// a server that takes over, for which programs wait, has none.
///
/// # Errors
/// The region holds no file system that this version can mount.
pub(crate) fn open_engine(
    region: Region,
    path: &Path,
    settings: &MountSettings,
    protected: bool,
    memory: Option<&Arc<Memory>>,
    several: bool,
    instead: fn(&Path) -> Option<Contents>,
) -> Result<Arc<Fs>, Failure> {
    let shown = path.display();
    let defaults = MountOptions::default();
    let options = MountOptions {
        read_only: settings.read_only,
        errors: settings.errors,
        data: settings.data,
        atime: settings.atime,
        dir_atime: settings.dir_atime,
        discard: settings.discard,
        cache_bytes: settings.cache_bytes.unwrap_or(defaults.cache_bytes),
        survivor: memory.map(|memory| Arc::clone(memory) as Arc<dyn Survivor>),
        clock: match several {
            true => Arc::new(DistinctClock::default()),
            false => defaults.clock,
        },
        ..defaults
    };
    let failed = |error: pramfs::Error| {
        let instead = match &error {
            pramfs::Error::NotMountable(_) => instead(path),
            _ => None,
        };
        let instead = instead.map_or_else(String::new, |found| {
            format!("; this is {}", found.sentence())
        });
        Failure::mount(format!("{shown}: {error}{instead}"))
    };
    let fs = Fs::open(region, options).map_err(failed)?;
    if protected && !settings.no_recovery && !fs.recovery().was_clean {
        return Err(Failure::mount(format!(
            "no mount: {shown} needs recovery, but is write-protected: cannot mount it writable; with ro or norecovery, it is mounted read-only and replayed in memory"
        )));
    }
    if settings.read_only {
        fs.lock_shared().map_err(|error| match error {
            pramfs::Error::Pmem(error) => told(error),
            error => failed(error),
        })?;
    }
    Ok(Arc::new(fs))
}
