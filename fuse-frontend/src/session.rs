//! A mount from end to end: region, engine, kernel.
//!
//! Order:
//! 1. the mount point is checked before the region is touched;
//! 2. the region is locked and recovered before the kernel mounts;
//! 3. privileges are dropped in two steps (see [`privileges`]), the second one before the
//!    first request is served;
//! 4. when [`mount`] returns, requests are accepted.
//!
//! An unmount takes the reverse order, and the engine is closed last.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs::pmem::{PmemError, Region, RegionOptions};
use pramfs::{
    MountOptions,
    inode::{Fs, LeaseMode, RegionView},
};
use pramfs_control::{
    Admission, ControlError, DIRECTORY, Directory, Identity, Leases, Listener, RequestCounts,
    Served, Server, Service, Users,
};
use pramfs_fuse_protocol::Opcode;

use crate::adapter::{Adapter, CacheMode, Counts, Notifier, OpenedBy};
use crate::direct::{Direct, DirectPolicy, Opens, Policy};
use crate::exit::Failure;
use crate::kernel::{self, OwnMount};
use crate::memory;
use crate::mountinfo;
use crate::mountpoint;
use crate::oom;
use crate::options::MountSettings;
use crate::privileges::{self, Extra, Privileges};
use crate::readonly;
use crate::relock;
use crate::second_mount;
use crate::shutdown::{Signals, Watch};
use crate::summary;
use crate::transport::{self, Session};
use pramfs_medium::pmem::{Permissions, RegionAccess};

/// How long to wait for a server that closes the region after an unmount. umount(8)
/// does not wait for it.
const CLOSING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Read-ahead of the kernel in KiB: the size of one request.
const READ_AHEAD_KIB: u32 = 1024;

/// A live mount that does not serve yet.
pub struct Mounted {
    session: Session,
    fs: Arc<Fs>,
    signals: Signals,
    own_mount: OwnMount,
    counts: Arc<Counts>,
    /// Answers queries about the region; only mounts of root have it.
    control: Option<Server>,
    /// Messages to show in any case.
    pub notices: Vec<String>,
    /// The part of the summary to show even without `-v`.
    pub warnings: Vec<String>,
    /// What was mounted, how, and the result of recovery, in a few lines.
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
    if settings.cache == CacheMode::Writeback {
        do_not_wait_for_own_pages();
    }
    let point = mountpoint::prepare(mountpoint, settings.nonempty)?;
    pramfs::pmem::install_fault_guard().map_err(|error| Failure::system(error.to_string()))?;

    let given = region;
    let path = given.canonicalize().unwrap_or_else(|_| given.to_owned());
    let (region, protected) = open_region(&path, settings)?;
    // The settings in force from here on.
    let mut settings = settings.clone();
    let mut notices = point.notices.clone();
    if protected {
        settings.read_only = true;
        notices.push(format!(
            "WARNING: {} is write-protected, mounted read-only",
            path.display()
        ));
    }
    let policy = Policy::new(settings.direct, settings.direct_write_is_root);
    notices.extend(check_policy(&region, policy, &settings)?);
    let distrusted = privileges::region::distrust(region.ownership(), &path, &mut settings)?;
    notices.extend(distrusted);
    let settings = &settings;
    // With the rights of root, which the next step drops.
    let (listener, admitted) = listen(&region, policy, settings, &mut notices);
    // Whoever cannot reach the socket gets no ticket either.
    let policy = match admitted {
        Some(_) => policy,
        None => policy.of_root(),
    };
    // Before the first thread starts, which is the engine's.
    let foreign = admitted.is_some_and(|users| users.owner() != 0);
    let privileges = Privileges::shed(settings, foreign);
    let fs = open_engine(region, &path, settings, protected)?;
    if !fs.recovery().was_clean {
        tracing::warn!(
            "{}: the last mount did not end with an unmount, because its server or the machine stopped; {} records replayed",
            path.display(),
            fs.recovery().records
        );
    }
    check_opens(&fs, &path, settings)?;
    let serving = memory::affordable(&path, transport_settings(settings))?;
    let source = mountinfo::source_name(&name_to_show(given, &path, settings));
    let (connection, own_mount) = kernel::connect(&point, &source, settings)?;
    let notifier = connection.try_clone().map(Notifier::new);
    let notifier = notifier
        .map_err(|error| Failure::system(format!("cannot copy the connection: {error}")))?;
    let opens = Opens::of(&fs, notifier.clone());
    let direct = match direct_access(&fs, policy, settings, &opens) {
        Ok(direct) => direct,
        Err(why) => {
            notices.push(format!("WARNING: no direct access: {why}"));
            None
        }
    };
    let counts = Arc::new(Counts::default());
    let answer = |listener| {
        let offers = (&counts, direct.as_ref());
        answer_for(&fs, listener, &connection, &own_mount, settings, offers)
    };
    let control = match listener.and_then(|listener| listener.map_or(Ok(None), answer)) {
        Ok(control) => control,
        Err(error) => {
            notices.push(format!(
                "WARNING: {} cannot be mounted a second time: {error}",
                path.display()
            ));
            None
        }
    };
    if direct.is_some() && control.is_none() {
        notices.push("WARNING: no direct access: the control socket is missing".into());
    }
    let direct = direct.filter(|_| control.is_some());
    // Also without direct access: a process may still store by a lease of an earlier mount.
    let opens = Some(opens).filter(|opens| direct.is_some() || opens.are_written());
    let adapter = Adapter::new(Arc::clone(&fs), settings.cache, notifier)
        .with_counts(Arc::clone(&counts))
        .with_files_opened_by(settings.opens)
        .with_opens(opens)
        .with_direct(direct);
    let session = Session::negotiate(Arc::new(adapter), connection, serving);
    let session = session.map_err(|error| {
        if let Err(error) = own_mount.detach() {
            tracing::warn!("cannot unmount {}: {error}", own_mount.path.display());
        }
        Failure::mount(format!(
            "cannot mount on {}: negotiation with the kernel failed: {error}",
            own_mount.path.display()
        ))
    })?;
    if let Some(why) = &session.instead {
        notices.push(format!(
            "WARNING: no io_uring, /dev/fuse is used instead: {why}"
        ));
    }
    raise_read_ahead(&own_mount);
    let extra = Extra {
        io_uring: session.uses_io_uring(),
    };
    notices.extend(privileges.confine(own_mount.by_helper, extra));
    Ok(Mounted {
        session,
        warnings: summary::warnings(&fs.region().info(), fs.recovery()),
        summary: summary::of(&fs, &own_mount.path, settings),
        fs,
        signals,
        own_mount,
        counts,
        control,
        notices,
    })
}

/// Refuses a region that the users of a policy could write. Returns what the policy gives away.
///
/// # Errors
/// The reason, and what to do.
fn check_policy(
    region: &Region,
    policy: Policy,
    settings: &MountSettings,
) -> Result<Option<String>, Failure> {
    // Such mounts give no lease, and say so.
    if settings.read_only || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let Some(permissions) = permissions(region)? else {
        return Ok(None);
    };
    match policy.objection(&permissions) {
        Some(why) => Err(Failure::mount(format!("{}: {why}", region.info().name))),
        None => Ok(policy
            .warning(&permissions)
            .map(|what| format!("WARNING: {what}"))),
    }
}

/// Refuses `opens=kernel` while a process stores to files without the kernel.
///
/// # Errors
/// The reason, and what to do.
fn check_opens(fs: &Fs, path: &Path, settings: &MountSettings) -> Result<(), Failure> {
    let stores = |fs: &Fs| {
        let mut leases = fs.leases().into_iter();
        fs.has_unknown_lease() || leases.any(|lease| lease.mode == LeaseMode::Write)
    };
    let (option, instead) = match (settings.opens, settings.cache) {
        (OpenedBy::Kernel, _) => ("opens=kernel", "opens=server"),
        (_, CacheMode::Writeback) => ("cache=writeback", "cache=auto"),
        _ => return Ok(()),
    };
    match stores(fs) {
        false => Ok(()),
        true => Err(Failure::mount(format!(
            "{}: a process stores directly to a file of this region, by a lease of an earlier mount, and with {option} the page cache would not see it; end that process, or mount with {instead}",
            path.display()
        ))),
    }
}

fn permissions(region: &Region) -> Result<Option<Permissions>, Failure> {
    RegionView::from(region).permissions().map_err(|error| {
        let name = region.info().name;
        Failure::mount(format!(
            "cannot find out who may write the region {name}: {error}"
        ))
    })
}

/// Keeps the threads of this process from waiting until the kernel has fewer dirty pages: with
/// `cache=writeback`, these may be pages that only this process can clean, and its stores to a
/// region in a file make pages dirty, too. Needs CAP_SYS_RESOURCE; without it, such a wait ends
/// when other pages are clean.
fn do_not_wait_for_own_pages() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("dirty pages may throttle this server: {error}");
    }
}

/// Makes the direct access that the options ask for.
///
/// # Errors
/// Why this mount can have none.
fn direct_access(
    fs: &Arc<Fs>,
    policy: Policy,
    settings: &MountSettings,
    opens: &Arc<Opens>,
) -> Result<Option<Arc<Direct>>, String> {
    if settings.direct == DirectPolicy::Off {
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        return Err("only mounts of root have the control socket that it needs".into());
    }
    if fs.is_read_only() {
        return Err("the mount is read-only".into());
    }
    let Ok(Some(handle)) = fs.region().handle() else {
        return Err("the region is memory of the server".into());
    };
    fs.try_lease_lock()
        .map_err(|error| format!("the locks of this region do not work for it: {error}"))?;
    let identity = Identity::of(&handle).map_err(|error| error.to_string())?;
    let direct = Direct::new(
        Arc::clone(fs),
        policy,
        identity.socket_name(),
        Arc::clone(opens),
    );
    Ok(Some(Arc::new(direct)))
}

/// Binds the control socket, if root mounts. Also returns who can connect to it, besides root.
fn listen(
    region: &Region,
    policy: Policy,
    settings: &MountSettings,
    notices: &mut Vec<String>,
) -> (Result<Option<Listener>, ControlError>, Option<Users>) {
    if !rustix::process::geteuid().is_root() {
        return (Ok(None), None);
    }
    let bind = || {
        let handle = RegionView::from(region)
            .handle()
            .map_err(|source| ControlError::Os {
                what: "cannot reopen the region",
                source,
            })?;
        let directory = Directory::make(DIRECTORY)?;
        handle
            .map(|region| Listener::bind(directory, region))
            .transpose()
    };
    let mut listener = match bind() {
        Ok(Some(listener)) => listener,
        none => return (none, None),
    };
    let region = RegionView::from(region).permissions().ok().flatten();
    let users = region.and_then(|region| policy.users(&region));
    let Some(users) = users.filter(|_| !settings.read_only) else {
        return (Ok(Some(listener)), None);
    };
    let admission = Admission {
        users,
        groups: pramfs_kernel_sys::socket::peer_groups,
    };
    let admitted = listener.admit(admission, pramfs_kernel_sys::socket::refuse_descriptors);
    let Err(error) = admitted else {
        return (Ok(Some(listener)), Some(users));
    };
    let whom = match users {
        Users::Owner(user) => format!("user {user}, who owns the region"),
        Users::Group { group, .. } => format!("the members of group {group}"),
        Users::All { .. } => "other users".to_owned(),
    };
    notices.push(format!(
        "WARNING: direct access for root only, not for {whom}: {error}"
    ));
    (Ok(Some(listener)), None)
}

/// Answers over the control socket for a mounted region.
fn answer_for(
    fs: &Fs,
    listener: Listener,
    connection: impl AsFd,
    own_mount: &OwnMount,
    settings: &MountSettings,
    (counts, direct): (&Arc<Counts>, Option<&Arc<Direct>>),
) -> Result<Option<Server>, ControlError> {
    let user = rustix::process::geteuid();
    let Some(device) = own_mount.device else {
        return Ok(None);
    };
    let handle = fs.region().handle();
    let handle = handle.map_err(|source| ControlError::Os {
        what: "cannot reopen the region",
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
    let mut service = Service::new(served, region, connection)?
        .with_counts(Arc::clone(counts) as Arc<dyn RequestCounts>);
    if let Some(direct) = direct {
        service = service.with_leases(Arc::clone(direct) as Arc<dyn Leases>);
    }
    listener.start(service).map(Some)
}

impl Mounted {
    /// Serves requests until the file system is unmounted by any process, then closes the
    /// region.
    ///
    /// # Errors
    /// The connection to the kernel, or the region, failed.
    pub fn serve(self) -> Result<(), Failure> {
        let counts = self.counts;
        let watch = Watch {
            own_mount: self.own_mount.clone(),
            fs: Arc::downgrade(&self.fs),
            writes: Box::new(move || counts.of(Opcode::Write)),
        };
        readonly::watch(&self.own_mount, &self.fs);
        relock::watch(&self.fs);
        let served = watch.start(self.signals).and_then(|ended| {
            let served = self.session.run();
            drop(ended);
            served
        });
        let path = self.own_mount.path.display();
        // From here on, no answer says that the region is mounted.
        drop(self.control);
        if served.is_err()
            && let Err(error) = self.own_mount.detach()
        {
            tracing::warn!("cannot unmount {path}: {error}");
        }
        // Closing takes time, and another mount may get our number meanwhile. The threads
        // for signals and damage have nothing left to do.
        self.own_mount.end();
        let region = self.fs.region().info().name;
        // The session has dropped its adapter, so this is the last reference, unless the
        // thread for signals holds one for a moment.
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

/// Opens the region. Also returns whether the mount should be writable, but its device
/// is write-protected, so that the region is open read-only.
///
/// A read-only mount also opens the region for writing if possible: the journal is
/// replayed on the medium, like kernel file systems do, and `remount,rw` works. With
/// `norecovery` it does neither.
fn open_region(path: &Path, settings: &MountSettings) -> Result<(Region, bool), Failure> {
    let options = RegionOptions::new()
        .backend(settings.backend)
        .durability(settings.durability())
        .require_dax(settings.require_dax);
    let to_read = || options.clone().read_only(true);
    if settings.read_only {
        // Whatever the reason, fall back to opening it read-only.
        if !settings.no_recovery
            && let Ok(region) = options.open(path)
        {
            return Ok((region, false));
        }
        return Ok((open_patiently(path, &to_read())?.map_err(told)?, false));
    }
    match open_patiently(path, &options)? {
        Ok(_) if settings.no_recovery => Err(Failure::mount(
            "norecovery needs ro: changes need a recovered file system",
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
        let busy = matches!(
            &error,
            PmemError::Unusable {
                errno: libc::EBUSY,
                ..
            }
        );
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

/// Returns the source that the kernel shows: the path without links. Exception: names
/// of the device mapper stay, because its numbers mean nothing to users.
fn name_to_show(given: &Path, path: &Path, settings: &MountSettings) -> PathBuf {
    match &settings.source {
        Some(name) => name.into(),
        None if given.starts_with("/dev/mapper") => given.to_owned(),
        None => path.to_owned(),
    }
}

/// Mounts the region. If it is unexpectedly write-protected and needs recovery, the mount
/// is refused: it would show contents that exist in memory only.
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

/// Returns the default number of serving threads: at least two, so that a long request
/// does not delay the others.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |processors| processors.get().clamp(2, 8))
}

fn thread_count(settings: &MountSettings) -> usize {
    settings.threads.unwrap_or_else(default_threads)
}

fn transport_settings(settings: &MountSettings) -> transport::Settings {
    let root = rustix::process::geteuid().is_root();
    transport::Settings {
        transport: settings.transport,
        threads: thread_count(settings),
        allow_other: settings.allow_other.unwrap_or(root),
    }
}

/// Sets the kernel's read-ahead to the size of a request. Only root may do that;
/// otherwise sequential reads take more requests, and nothing else changes.
fn raise_read_ahead(own_mount: &OwnMount) {
    let Some((major, minor)) = own_mount.device else {
        return;
    };
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!("read-ahead stays as it is: {knob}: {error}");
    }
}
