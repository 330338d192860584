//! `pramfs-virtiofsd`: serves a region to guests, without a mount.
//!
//! Order:
//! 1. the sockets are made before the region is touched;
//! 2. the region is locked and recovered before a guest is served;
//! 3. privileges are dropped before the first guest is served, all of them: the server opens no
//!    file any more.
//!
//! The end takes the reverse order: the guests are disconnected, give back what they have, and the
//! engine is closed last.

pub mod cli;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs::inode::Fs;
use pramfs::pmem::SourceKind;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

use crate::adapter::{Adapter, CacheMode, Notifier};
use crate::direct::Opens;
use crate::door::{Door, DoorSettings, others_may_store};
use crate::exit::Failure;
use crate::guests::check_window;
use crate::memory;
use crate::oom;
use crate::opening::{name_of, open_engine, open_region};
use crate::options::MountSettings;
use crate::privileges::{Extra, Privileges, View};
use crate::relock;

use crate::shutdown::Signals;
use crate::transport::virtio::{Gate, GuestSettings, Socket, Stop};
use cli::Invocation;

/// How often leases are looked at: a lock has no event for its end.
const LEASES: Duration = Duration::from_millis(500);

/// How long the last thread of a guest may take to let go of the engine.
const LETTING_GO: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT, or, over a socket that was handed over, until the VMM is gone.
///
/// # Errors
/// What failed, on which object, and what to do.
pub fn serve(invocation: &Invocation) -> Result<(), Failure> {
    let mut signals = Signals::catch()
        .map_err(|error| Failure::system(format!("cannot handle signals: {error}")))?;
    oom::keep_alive();
    memory::allow_descriptors();
    pramfs::pmem::install_fault_guard().map_err(|error| Failure::system(error.to_string()))?;
    let sockets = sockets(invocation)?;
    let given = &invocation.region;
    let path = name_of(given);
    let mut settings = MountSettings {
        read_only: invocation.read_only,
        cache: invocation.cache,
        data: invocation.data,
        protect: invocation.protect,
        ..MountSettings::default()
    };
    let (region, protected) = open_region(&path, &settings)?;
    let info = region.info();
    if let Some(why) = &info.protect_notice {
        tracing::warn!(
            "--protect=auto protects nothing: {why}; --protect=mprotect works here, and is slow"
        );
    }
    if protected {
        settings.read_only = true;
        tracing::warn!("{} is write-protected, served read-only", path.display());
    }
    // Before the first thread starts, which is the engine's.
    let view = View {
        region: &path,
        on_device: matches!(
            region.info().kind,
            Some(SourceKind::FsDax | SourceKind::DevDax | SourceKind::BlockDevice)
        ),
    };
    let privileges = Privileges::shed_all(invocation.filter, invocation.sandbox.then_some(view))
        .map_err(|why| Failure::system(format!("no guest is served: {why}")))?;
    let fs = open_engine(
        region,
        &path,
        &settings,
        protected,
        None,
        sockets.len() > 1,
        pramfs_contents::instead,
    )?;
    if !fs.recovery().was_clean {
        tracing::warn!(
            "{}: the last server did not close it; {} records replayed",
            path.display(),
            fs.recovery().records
        );
    }
    if invocation.window.is_some() {
        check_window(&fs, &path)?;
    }
    let extra = Extra {
        guests_only: true,
        ..Extra::default()
    };
    let refused = privileges.confine(false, extra);
    if !refused.is_empty() {
        return Err(Failure::system(format!(
            "no guest is served: {}; with --seccomp none, it is served nevertheless",
            refused.join("; ")
        )));
    }
    let stop = Stop::new().map(Arc::new);
    let stop = stop.map_err(|error| Failure::system(format!("cannot serve: {error}")))?;
    let stops = Arc::clone(&stop);
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let name = signals.wait_for_end();
            tracing::info!("{name}: disconnecting all guests");
            stops.stop();
        })
        .map_err(|error| Failure::system(format!("cannot start a thread: {error}")))?;
    relock::watch(&fs);
    // Also of those that only read: they keep blocks from being freed.
    if invocation.window.is_some() || fs.has_unknown_lease() || !fs.leases().is_empty() {
        leases_end(&fs)
            .map_err(|error| Failure::system(format!("cannot start a thread: {error}")))?;
    }
    tracing::info!("{}: ready for guests", path.display());
    let served = serve_all(invocation, sockets, &fs, settings.read_only, &stop);
    close(fs, &path)?;
    served.map_err(|error| Failure::system(format!("serving {}: {error}", path.display())))
}

/// Whether files may be stored to without a request: by guests, or by what a lease of an earlier
/// server allows.
fn may_be_stored_to(invocation: &Invocation, fs: &Fs) -> bool {
    invocation.window.is_some() || others_may_store(fs)
}

/// Starts the thread that ends the leases of what guests have unmapped. It ends with the engine.
fn leases_end(fs: &Arc<Fs>) -> std::io::Result<()> {
    let (fs, writability) = (Arc::downgrade(fs), fs.writability());
    std::thread::Builder::new()
        .name("leases".into())
        .spawn(move || {
            while !writability.wait_for_end(LEASES) {
                let Some(fs) = fs.upgrade() else { return };
                if !fs.is_read_only()
                    && let Err(error) = fs.end_released_leases()
                {
                    tracing::warn!("could not end the leases of guests that are gone: {error}");
                }
            }
        })?;
    Ok(())
}

/// Makes the sockets, or takes the one that is there.
fn sockets(invocation: &Invocation) -> Result<Vec<Socket>, Failure> {
    let mut sockets = Vec::new();
    for path in &invocation.sockets {
        let socket = Socket::bind(path);
        sockets
            .push(socket.map_err(|error| Failure::system(format!("{}: {error}", path.display())))?);
    }
    if let Some(number) = invocation.fd {
        let socket = inherited(number).and_then(Socket::adopt);
        sockets.push(socket.map_err(|error| Failure::usage(format!("--fd={number}: {error}")))?);
    }
    Ok(sockets)
}

/// Returns a copy of a descriptor that this process was started with.
fn inherited(number: i32) -> std::io::Result<OwnedFd> {
    let this = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let copy = rustix::process::pidfd_getfd(&this, number, PidfdGetfdFlags::empty());
    Ok(copy?)
}

/// Returns the adapter that the adapters of all doors are made of. It keeps files that are stored
/// to without requests out of the page caches of guests: of all files, if `others_map`, several
/// guests that may map them; otherwise those with leases of an earlier server.
fn adapter_of(fs: &Arc<Fs>, cache: CacheMode, others_map: bool) -> Adapter {
    let opens = Opens::of(fs, Notifier::of_guest(), others_map);
    // With other modes, the kernel of the guest has the size of a file.
    let is_needed =
        |opens: &Opens| opens.are_written() || cache == CacheMode::Auto && opens.are_needed();
    Adapter::new(Arc::clone(fs), cache, Notifier::of_guest())
        .with_opens(Some(opens).filter(|opens| is_needed(opens)))
}

fn serve_all(
    invocation: &Invocation,
    sockets: Vec<Socket>,
    fs: &Arc<Fs>,
    read_only: bool,
    stop: &Stop,
) -> std::io::Result<()> {
    let others_map = invocation.window.is_some() && sockets.len() > 1;
    let adapter = adapter_of(fs, invocation.cache, others_map);
    let door_settings = DoorSettings {
        shared: sockets.len() > 1,
        caches_nothing: invocation.caches_nothing,
        read_only,
        maps: invocation.window.is_some(),
        copies: may_be_stored_to(invocation, fs),
    };
    let door = || {
        Door::new(
            adapter.of_guest(),
            door_settings,
            invocation.translations.clone(),
        )
    };
    let settings = GuestSettings {
        request_queues: invocation.queues,
        pool: invocation.pool,
        tag: invocation.tag.clone(),
        window: invocation.window,
    };
    std::thread::scope(|threads| {
        let mut gates = Vec::new();
        for (number, socket) in sockets.into_iter().enumerate() {
            let gate = Gate {
                number,
                socket,
                settings: settings.clone(),
                once: invocation.fd.is_some(),
                trusts_vmm: invocation.trusts_vmm,
                door: &door,
            };
            let thread = std::thread::Builder::new().name(format!("door-{number}"));
            let serve = move || gate.serve(stop);
            match thread.spawn_scoped(threads, serve) {
                Ok(gate) => gates.push(gate),
                Err(error) => {
                    stop.stop();
                    return Err(error);
                }
            }
        }
        let ended = |gate: std::thread::ScopedJoinHandle<'_, _>| {
            let panicked = |_| Err(std::io::Error::other("a thread panicked"));
            gate.join().unwrap_or_else(panicked)
        };
        let results: Vec<_> = gates.into_iter().map(ended).collect();
        results.into_iter().collect()
    })
}

/// Closes the engine.
fn close(fs: Arc<Fs>, path: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    // The last thread of a guest may still hold it.
    while begun.elapsed() < LETTING_GO && Arc::strong_count(&fs) != 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let Some(fs) = Arc::into_inner(fs) else {
        return Err(Failure::system(format!(
            "{}: a thread of a guest does not end; the region is not closed, and the next server recovers it",
            path.display()
        )));
    };
    fs.close().map_err(|error| {
        Failure::system(format!("closing the region {}: {error}", path.display()))
    })?;
    tracing::info!("{}: closed", path.display());
    Ok(())
}

#[cfg(test)]
mod tests;
