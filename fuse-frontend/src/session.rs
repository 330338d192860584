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
use std::time::Duration;

use pramfs::inode::{Fs, LeaseMode, RegionView};
use pramfs::pmem::Region;
use pramfs_control::{
    Admission, ControlError, DIRECTORY, Directory, Identity, Leases, Listener, Report,
    RequestCounts, Served, Server, Service, Users,
};
use pramfs_fuse_protocol::Opcode;

use crate::adapter::stores::others_may_store;
use crate::adapter::{Adapter, CacheMode, Counts, Notifier, OpenedBy};
use crate::direct::{Direct, DirectPolicy, Opens, Policy};
use crate::exit::Failure;
use crate::guests::{Beside, Sockets, check_window};
use crate::kernel::{self, OwnMount};
use crate::memory;
use crate::mountinfo;
use crate::mountpoint;
use crate::notify;
use crate::oom;
use crate::opening::{name_of, open_engine, open_region};
use crate::options::MountSettings;
use crate::privileges::{self, Extra, Privileges};
use crate::readonly;
use crate::relock;
use crate::shutdown::{Signals, Watch};
use crate::snapshots::LiveSnapshots;
use crate::status::Reporter;
use crate::summary;
use crate::takeover;
use crate::takeover::first::{keep, locked, memory_to_survive};
use crate::takeover::link::Link;
use crate::takeover::memory::Memory;
use crate::transport::{self, Session};
use pramfs_medium::pmem::{Permissions, RegionAccess};

/// Read-ahead of the kernel in KiB: the size of one request.
const READ_AHEAD_KIB: u32 = 1024;

/// A live mount that does not serve yet.
pub struct Mounted {
    pub(crate) session: Session,
    pub(crate) fs: Arc<Fs>,
    pub(crate) signals: Signals,
    pub(crate) own_mount: OwnMount,
    pub(crate) counts: Arc<Counts>,
    /// Reports the state.
    pub(crate) reporter: Arc<Reporter>,
    /// Answers queries about the region; only mounts of root have it.
    pub(crate) control: Option<Server>,
    /// The supervisor, with `takeover=on`.
    pub(crate) link: Option<Link>,
    /// What outlives this server, with `takeover=on`.
    pub(crate) memory: Option<Arc<Memory>>,
    /// Guests beside the mount, what serves them, and how.
    pub(crate) guests: (Sockets, Arc<Adapter>, Beside),
    /// Messages to show in any case.
    pub notices: Vec<String>,
    /// The part of the summary to show even without `-v`.
    pub warnings: Vec<String>,
    /// What was mounted, how, and the result of recovery, in a few lines.
    pub summary: String,
}

/// Mounts `region` on `mountpoint`. `link` leads to the supervisor, with `takeover=on`.
///
/// # Errors
/// What failed, on which object, and what to do.
pub fn mount(
    region: &Path,
    mountpoint: &Path,
    settings: &MountSettings,
    link: Option<Link>,
) -> Result<Mounted, Failure> {
    let signals = Signals::catch()
        .map_err(|error| Failure::system(format!("cannot handle signals: {error}")))?;
    oom::keep_alive();
    if settings.cache == CacheMode::Writeback {
        do_not_wait_for_own_pages();
    }
    let point = mountpoint::prepare(mountpoint, settings.nonempty)?;
    pramfs::pmem::install_fault_guard().map_err(|error| Failure::system(error.to_string()))?;
    let sockets = Sockets::bind(&settings.virtiofs)?;

    let given = region;
    let path = name_of(given);
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
    let survives = match &link {
        Some(_) => Some((memory_to_survive()?, locked(&region)?)),
        None => None,
    };
    let memory = survives.as_ref().map(|(memory, _)| memory);
    // With the rights of root, which the next step drops.
    let (listener, admitted) = listen(&region, policy, settings, &mut notices);
    // Whoever cannot reach the socket gets no ticket either.
    let policy = match admitted {
        Some(_) => policy,
        None => policy.of_root(),
    };
    // Before the first thread starts, which is the engine's.
    // The server opens the region anew for each of their leases.
    let owner = permissions(&region)?.map_or(0, |region| region.owner);
    let foreign =
        admitted.is_some_and(|users| users.owner() != 0) || settings.window.is_some() && owner != 0;
    let privileges = Privileges::shed(settings, foreign);
    let fs = open_engine(
        region,
        &path,
        settings,
        protected,
        memory,
        !settings.virtiofs.is_empty(),
        pramfs_contents::instead,
    )?;
    if !fs.recovery().was_clean {
        tracing::warn!(
            "{}: the last mount did not end with an unmount, because its server or the machine stopped; {} records replayed",
            path.display(),
            fs.recovery().records
        );
    }
    check_opens(&fs, &path, settings)?;
    if settings.window.is_some() {
        check_window(&fs, &path)?;
    }
    let serving = memory::affordable(&path, transport_settings(settings))?;
    let source = mountinfo::source_name(&name_to_show(given, &path, settings));
    let (connection, own_mount) = kernel::connect(&point, &source, settings)?;
    let notifier = connection.try_clone().map(Notifier::new);
    let notifier = notifier
        .map_err(|error| Failure::system(format!("cannot copy the connection: {error}")))
        .inspect_err(|_| detach(&own_mount))?;
    let opens = Opens::of(&fs, notifier.clone(), settings.window.is_some());
    let direct = match direct_access(&fs, policy, settings, &opens) {
        Ok(direct) => direct,
        Err(why) => {
            notices.push(format!("WARNING: no direct access: {why}"));
            None
        }
    };
    let counts = Arc::new(Counts::new(settings.metrics, settings.slow));
    let reporter = Reporter::new(&fs, &counts, &own_mount, settings);
    let answer = |listener| {
        let offers = (&counts, &reporter, direct.as_ref());
        answer_for(
            &fs,
            listener,
            &connection,
            &own_mount,
            settings,
            offers,
            false,
        )
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
    // Beside a reader of an earlier mount, where the server has a say in opens.
    let decides = settings.opens == OpenedBy::Server
        && settings.cache == CacheMode::Auto
        && !settings.takeover;
    let is_needed = |opens: &Arc<Opens>| {
        direct.is_some() || opens.are_written() || decides && opens.are_needed()
    };
    let opens = Some(opens).filter(is_needed);
    let mut adapter = Adapter::new(Arc::clone(&fs), settings.cache, notifier)
        .with_counts(Arc::clone(&counts))
        .with_files_opened_by(settings.opens)
        .with_opens(opens)
        .with_direct(direct)
        .with_other_doors(!settings.virtiofs.is_empty())
        .with_maps_of_guests(settings.window.is_some() || others_may_store(&fs));
    if let Some(memory) = memory {
        adapter = adapter.with_takeover(Arc::clone(memory));
    }
    let adapter = Arc::new(adapter);
    let negotiated = Session::negotiate(Arc::clone(&adapter), connection, serving);
    let session = negotiated
        .map_err(|error| {
            Failure::mount(format!(
                "cannot mount on {}: {}",
                own_mount.path.display(),
                why_no_agreement(&error)
            ))
        })
        .and_then(|session| {
            if let (Some(link), Some(survives)) = (&link, &survives) {
                let offered = adapter.offered();
                keep(link, &session, survives, offered, &fs, &path, &own_mount)?;
            }
            Ok(session)
        })
        .inspect_err(|_| detach(&own_mount))?;
    if let Some(why) = &session.instead {
        notices.push(format!(
            "WARNING: no io_uring, /dev/fuse is used instead: {why}"
        ));
    }
    reporter.note_transport(&session);
    raise_read_ahead(&own_mount);
    let extra = Extra {
        io_uring: session.uses_io_uring(),
        guests_only: false,
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
        reporter,
        control,
        link,
        memory: survives.map(|(memory, _)| memory),
        guests: (sockets, adapter, Beside::of(settings)),
        notices,
    })
}

/// Explains why a kernel and this server do not come together.
fn why_no_agreement(error: &std::io::Error) -> String {
    match takeover::why_refused(error) {
        Some(why) => why.to_owned(),
        None => format!("negotiation with the kernel failed: {error}"),
    }
}

fn detach(own_mount: &OwnMount) {
    if let Err(error) = own_mount.detach() {
        tracing::warn!("cannot unmount {}: {error}", own_mount.path.display());
    }
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
        _ if settings.takeover => ("takeover=on", "takeover=off"),
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
///
/// # Errors
/// Inside: why there is none.
pub(crate) fn listen(
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
pub(crate) fn answer_for(
    fs: &Arc<Fs>,
    listener: Listener,
    connection: impl AsFd,
    own_mount: &OwnMount,
    settings: &MountSettings,
    (counts, reporter, direct): (&Arc<Counts>, &Arc<Reporter>, Option<&Arc<Direct>>),
    resumes: bool,
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
        .with_counts(Arc::clone(counts) as Arc<dyn RequestCounts>)
        .with_snapshots(Arc::new(LiveSnapshots::new(fs)))
        .with_report(Arc::clone(reporter) as Arc<dyn Report>);
    if let Some(direct) = direct {
        service = service.with_leases(Arc::clone(direct) as Arc<dyn Leases>);
    }
    // With the exclusive lock, the server before is dead, even if its socket is not closed yet.
    match resumes && !settings.read_only {
        true => listener.start_instead(service).map(Some),
        false => listener.start(service).map(Some),
    }
}

impl Mounted {
    /// Reports to the supervisor that the region is mounted, with a text for the user.
    ///
    /// # Errors
    /// There is no supervisor any more, and the mount is gone.
    pub fn report_live(&self, text: &str) -> Result<(), Failure> {
        match &self.link {
            Some(link) => link.live(text).inspect_err(|_| detach(&self.own_mount)),
            None => Ok(()),
        }
    }

    /// Serves requests until the file system is unmounted by any process, then closes the
    /// region.
    ///
    /// # Errors
    /// The connection to the kernel, or the region, failed.
    pub fn serve(self) -> Result<(), Failure> {
        let (counts, reporter) = (self.counts, self.reporter);
        let watch = Watch {
            own_mount: self.own_mount.clone(),
            fs: Arc::downgrade(&self.fs),
            writes: Box::new(move || counts.of(Opcode::Write)),
            reports: Box::new(move || reporter.log()),
            leaves: Box::new({
                let link = self.link.clone();
                move || link.iter().for_each(Link::leaves)
            }),
        };
        let link = self.link.clone();
        readonly::watch(&self.own_mount, &self.fs);
        relock::watch(&self.fs);
        let weak = Arc::downgrade(&self.fs);
        let mut session = self.session;
        // Set while another server can go on when this one ends.
        let mut supervised = None;
        let (sockets, adapter, beside) = self.guests;
        let guests = sockets.serve(&adapter, beside);
        let guests = guests.map_err(|error| {
            detach(&self.own_mount);
            Failure::system(format!("cannot start a thread that serves guests: {error}"))
        })?;
        drop(adapter);
        notify::watch(Arc::downgrade(&self.fs));
        let served = watch.start(self.signals).and_then(|ended| {
            if let (Some(link), Some(memory)) = (self.link, self.memory) {
                let watched = link.serve(weak, Arc::clone(&memory))?;
                supervised = Some(memory);
                session = session.when_it_serves(move || watched.serves());
            }
            let served = session.run();
            drop(ended);
            served
        });
        let path = self.own_mount.path.display();
        notify::stopping(&format!("closes the region of {path}"));
        drop(guests);
        // From here on, no answer says that the region is mounted.
        drop(self.control);
        let is_supervised = || supervised.as_ref().is_some_and(|m| m.is_supervised());
        // If another server goes on, the mount stays.
        if served.is_err() && !is_supervised() {
            detach(&self.own_mount);
        }
        // Closing takes time, and another mount may get our number meanwhile. The threads
        // for signals and damage have nothing left to do.
        self.own_mount.end();
        if let (Err(error), true) = (&served, is_supervised()) {
            // The next server recovers the region as after a death, by the notes of this one.
            std::mem::forget(self.fs);
            return Err(Failure::system(format!("serving {path}: {error}")));
        }
        let region = self.fs.region().info().name;
        // The session has dropped its adapter, so this is the last reference, unless the
        // thread for signals, or a save that begins, holds one for a moment.
        if let Some(fs) = last_of(self.fs) {
            fs.close().map_err(|error| {
                Failure::system(format!("closing the region of {path}: {error}"))
            })?;
        }
        served.map_err(|error| Failure::system(format!("serving {path}: {error}")))?;
        tracing::info!("{region}: unmounted from {path}");
        link.iter().for_each(Link::leaves);
        Ok(())
    }
}

/// Waits until the other references are gone, for a few seconds at most.
fn last_of<T>(mut shared: Arc<T>) -> Option<T> {
    for _ in 0..5000 {
        match Arc::try_unwrap(shared) {
            Ok(last) => return Some(last),
            Err(still) => shared = still,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Arc::into_inner(shared)
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
        transport: settings.transport(),
        threads: thread_count(settings),
        busy_poll: settings.busy_poll,
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
