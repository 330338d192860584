//! A mount from end to end: region, engine, kernel.
//!
//! Order: the mount point is looked at before the region is touched; the
//! region is locked and recovered before the kernel hears of it; privileges go
//! in two steps (see [`privileges`]), the second of them before the first request is
//! served; when [`mount`] returns, requests are taken. Taking it apart goes the other way,
//! and the engine is closed last.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use pramfs::pmem::{PmemError, Region, RegionOptions};
use pramfs::{MountOptions, inode::Fs};
use pramfs_control::{ControlError, DIRECTORY, Directory, Served, Server, Service};

use crate::adapter::Adapter;
use crate::exit::Failure;
use crate::kernel::{self, Place};
use crate::memory;
use crate::mountinfo;
use crate::mountpoint;
use crate::oom;
use crate::options::MountSettings;
use crate::privileges::{self, Privileges};
use crate::readonly;
use crate::second_mount;
use crate::shutdown::{Signals, Watch};
use crate::summary;

/// After an unmount the process that served it needs a moment to close the
/// region, of which umount(8) does not know.
const CLOSING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Pages that the kernel reads ahead, as KiB: as much as one request carries.
const READ_AHEAD_KIB: u32 = 1024;

/// A live mount that has not begun to serve.
pub struct Mounted {
    session: Session<Adapter>,
    fs: Arc<Fs>,
    signals: Signals,
    place: Place,
    /// Answers for the region; root's mounts have it.
    control: Option<Server>,
    /// What the user should know in any case.
    pub notices: Vec<String>,
    /// What the summary says that the user should know without asking for it.
    pub warnings: Vec<String>,
    /// What was mounted, how, and what recovery did, in a few lines.
    pub summary: String,
}

/// Mounts `region` on `mountpoint`.
///
/// # Errors
/// What failed, on which object, and what to do.
pub fn mount(
    region: &Path,
    mountpoint: &Path,
    settings: &MountSettings,
) -> Result<Mounted, Failure> {
    let signals = Signals::catch()
        .map_err(|error| Failure::system(format!("cannot handle signals: {error}")))?;
    oom::keep_alive();
    let point = mountpoint::prepare(mountpoint, settings.nonempty)?;
    pramfs::pmem::install_fault_guard().map_err(|error| Failure::system(error.to_string()))?;

    let given = region;
    let path = given.canonicalize().unwrap_or_else(|_| given.to_owned());
    let (region, protected) = open_region(&path, settings)?;
    // What is in force from here on.
    let mut settings = settings.clone();
    let mut notices = point.notices.clone();
    if protected {
        settings.read_only = true;
        notices.push(format!(
            "WARNING: {} is write-protected, mounted read-only",
            path.display()
        ));
    }
    let distrusted = privileges::region::distrust(region.ownership(), &path, &mut settings)?;
    notices.extend(distrusted);
    let settings = &settings;
    // Before the first thread, which is the engine's.
    let privileges = Privileges::shed(settings);
    let fs = open_engine(region, &path, settings, protected)?;
    if !fs.recovery().was_clean {
        tracing::warn!(
            "{}: the last mount did not end by an unmount: its server, or the machine, was stopped; {} records replayed",
            path.display(),
            fs.recovery().records
        );
    }
    memory::check(&path, thread_count(settings))?;
    let source = mountinfo::source_name(&name_to_show(given, &path, settings));
    let (connection, place) = kernel::connect(&point, &source, settings)?;
    let control = match answer_for(&fs, &connection, &place, settings) {
        Ok(control) => control,
        Err(error) => {
            notices.push(format!(
                "WARNING: no second mount of {} is possible: {error}",
                path.display()
            ));
            None
        }
    };
    let adapter = Adapter::new(Arc::clone(&fs), settings.cache);
    let kernel = adapter.kernel();
    let session = Session::from_fd(
        adapter,
        connection,
        who_may_come_in(settings),
        threads(settings),
    );
    let session = session.map_err(|error| {
        if let Err(error) = place.detach() {
            tracing::warn!("cannot unmount {}: {error}", place.path.display());
        }
        Failure::mount(format!(
            "cannot mount on {}: the kernel and this program do not agree: {error}",
            place.path.display()
        ))
    })?;
    // Nobody has set it before: the adapter is new.
    let _first = kernel.set(session.notifier());
    raise_read_ahead(&place);
    notices.extend(privileges.confine(place.by_helper));
    Ok(Mounted {
        session,
        warnings: summary::warnings(&fs.region().info(), fs.recovery()),
        summary: summary::of(&fs, &place.path, settings),
        fs,
        signals,
        place,
        control,
        notices,
    })
}

/// Opens the control socket of the region that is mounted, for root.
fn answer_for(
    fs: &Fs,
    connection: impl AsFd,
    place: &Place,
    settings: &MountSettings,
) -> Result<Option<Server>, ControlError> {
    let user = rustix::process::geteuid();
    let (true, Some(device)) = (user.is_root(), place.device) else {
        return Ok(None);
    };
    let handle = fs.region().handle();
    let handle = handle.map_err(|source| ControlError::Os {
        what: "cannot open the region once more",
        source,
    })?;
    let Some(region) = handle else {
        return Ok(None);
    };
    let served = Served {
        device,
        user_id: user.as_raw(),
        read_only: settings.read_only,
        nosuid: !settings.suid,
        nodev: !settings.dev,
        noexec: !settings.exec,
        nosymfollow: !settings.symlinks,
    };
    let service = Service::new(served, region, connection)?;
    Server::start(Directory::make(DIRECTORY)?, service).map(Some)
}

impl Mounted {
    /// Serves requests until the file system is unmounted, by whomever, then
    /// closes the region.
    ///
    /// # Errors
    /// Where the connection to the kernel or the region failed.
    pub fn serve(self) -> Result<(), Failure> {
        let watch = Watch {
            place: self.place.clone(),
            fs: Arc::downgrade(&self.fs),
        };
        readonly::watch(&self.place, &self.fs);
        let served = watch.start(self.signals).and_then(|ended| {
            let served = self.session.run();
            drop(ended);
            served
        });
        let path = self.place.path.display();
        // Nobody is told any more that the region is mounted.
        drop(self.control);
        if served.is_err()
            && let Err(error) = self.place.detach()
        {
            tracing::warn!("cannot unmount {path}: {error}");
        }
        // Closing takes its time; the number of the mount may be somebody else's
        // meanwhile. The threads for signals and damage have nothing left to do.
        self.place.end();
        let region = self.fs.region().info().name;
        // The session has dropped its adapter, so this is the last reference
        // unless the thread for signals holds one for a moment.
        if let Some(fs) = Arc::into_inner(self.fs) {
            fs.close().map_err(|error| {
                Failure::system(format!("closing the region of {path}: {error}"))
            })?;
        }
        served.map_err(|error| Failure::system(format!("serving {path}: {error}")))?;
        tracing::info!("{region}: unmounted from {path}");
        Ok(())
    }
}

/// Opens the region, and tells whether a mount that was to write finds its
/// device write-protected and has it open for reading.
///
/// A read-only mount has the region open for writing, too, if that can be: what
/// a crash has left is replayed on the medium, as kernel file systems do it,
/// and `remount,rw` is possible. With `norecovery` it never is.
fn open_region(path: &Path, settings: &MountSettings) -> Result<(Region, bool), Failure> {
    let options = RegionOptions::new()
        .backend(settings.backend)
        .durability(settings.durability())
        .require_dax(settings.require_dax);
    let to_read = || options.clone().read_only(true);
    if settings.read_only {
        // Whatever is against it, opening to read fails or does not.
        if !settings.no_recovery
            && let Ok(region) = options.open(path)
        {
            return Ok((region, false));
        }
        return Ok((open_patiently(path, &to_read())?.map_err(told)?, false));
    }
    match open_patiently(path, &options)? {
        Ok(_) if settings.no_recovery => Err(Failure::mount(
            "norecovery needs ro: what is changed must be whole first",
        )),
        Ok(region) => Ok((region, false)),
        Err(error) if is_write_protected(path, &error) => {
            Ok((open_patiently(path, &to_read())?.map_err(told)?, true))
        }
        Err(error) => Err(told(error)),
    }
}

fn told(error: PmemError) -> Failure {
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

/// One that is just being let go after an unmount is waited for; one that is
/// mounted is refused at once.
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
        let busy = matches!(
            &error,
            PmemError::Unusable {
                errno: libc::EBUSY,
                ..
            }
        );
        if busy {
            let mount = mountinfo::of_source(path);
            // Root's mount is live when its server answers for it, anybody else's
            // when it is in the table.
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

/// What the kernel shows as the source: the path without links, but the names
/// of the device mapper, which nobody knows by number.
fn name_to_show(given: &Path, path: &Path, settings: &MountSettings) -> PathBuf {
    match &settings.source {
        Some(name) => name.into(),
        None if given.starts_with("/dev/mapper") => given.to_owned(),
        None => path.to_owned(),
    }
}

/// Mounts the region. Where it is write-protected and that was not expected, one
/// that a crash has left is refused: what the mount would show is in memory only.
fn open_engine(
    region: Region,
    path: &Path,
    settings: &MountSettings,
    protected: bool,
) -> Result<Arc<Fs>, Failure> {
    let shown = path.display();
    let defaults = MountOptions::default();
    let options = MountOptions {
        read_only: settings.read_only,
        errors: settings.errors,
        atime: settings.atime,
        dir_atime: settings.dir_atime,
        discard: settings.discard,
        cache_bytes: settings.cache_bytes.unwrap_or(defaults.cache_bytes),
        ..defaults
    };
    let failed = |error: pramfs::Error| Failure::mount(format!("{shown}: {error}"));
    let fs = Fs::open(region, options).map_err(failed)?;
    if protected && !settings.no_recovery && !fs.recovery().was_clean {
        return Err(Failure::mount(format!(
            "no mount: {shown} needs recovery and is write-protected: cannot mount it read-only unless asked to, by ro or norecovery, which replay in memory"
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

/// Threads that serve requests unless told otherwise: two at least, so that a
/// long request does not hold up the others.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |processors| processors.get().clamp(2, 8))
}

fn thread_count(settings: &MountSettings) -> usize {
    settings.threads.unwrap_or_else(default_threads)
}

fn threads(settings: &MountSettings) -> Config {
    let threads = thread_count(settings);
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    config
}

fn who_may_come_in(settings: &MountSettings) -> SessionACL {
    let root = rustix::process::geteuid().is_root();
    if settings.allow_other.unwrap_or(root) {
        SessionACL::All
    } else {
        SessionACL::Owner
    }
}

/// Lets the kernel read ahead as much as a request carries. Only root may;
/// without it sequential reads take more requests and nothing else changes.
fn raise_read_ahead(place: &Place) {
    let Some((major, minor)) = place.device else {
        return;
    };
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!("read-ahead stays as it is: {knob}: {error}");
    }
}
