//! Guests beside a mount: `mount.pramfs --virtiofs SOCKET`. The server of the mount serves the
//! guests too, by the same engine.
//!
//! Order: the sockets are made before the region is touched, and the guests are served when the
//! mount is. At the end of the mount, the guests are disconnected first, and give back what they
//! have.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use pramfs::inode::Fs;

use crate::adapter::Adapter;
use crate::direct::DirectPolicy;
use crate::door::{Door, DoorSettings, Translations, others_may_store};
use crate::exit::Failure;
use crate::memory;
use crate::options::MountSettings;
use crate::transport::virtio::{Gate, GuestSettings, Socket, Stop};

/// How guests are served beside a mount.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    read_only: bool,
    /// Bytes of the window of each.
    window: Option<u64>,
    trusts_vmm: bool,
    tag: Option<String>,
    /// Files are stored to without a request, by guests or by programs with leases.
    others_store: bool,
}

impl Beside {
    pub(crate) fn of(settings: &MountSettings) -> Beside {
        Beside {
            read_only: settings.read_only,
            window: settings.window,
            trusts_vmm: settings.trusts_vmm,
            tag: settings.tag.clone(),
            others_store: settings.window.is_some() || settings.direct != DirectPolicy::Off,
        }
    }

    /// A VMM that asks the server makes as many queues as it is told to. Most requests of a guest
    /// with a window are loads and stores.
    fn guest_settings(&self) -> GuestSettings {
        let asks = self.window.is_some() || self.tag.is_some();
        let settings = match asks {
            false => GuestSettings::of_processors(),
            true => GuestSettings {
                request_queues: 1,
                ..GuestSettings::default()
            },
        };
        GuestSettings {
            window: self.window,
            tag: self.tag.clone(),
            ..settings
        }
    }
}

/// Sockets for guests, one for each.
#[derive(Debug)]
pub struct Sockets(Vec<Socket>);

impl Sockets {
    /// Makes the sockets.
    ///
    /// # Errors
    /// Something else has a name.
    pub fn bind(paths: &[PathBuf]) -> Result<Sockets, Failure> {
        let bind = |path: &PathBuf| {
            let bound = Socket::bind(path);
            bound.map_err(|error| Failure::system(format!("{}: {error}", path.display())))
        };
        if !paths.is_empty() {
            memory::allow_descriptors();
        }
        Ok(Sockets(paths.iter().map(bind).collect::<Result<_, _>>()?))
    }

    /// Serves guests, by threads of their own.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn serve(self, adapter: &Arc<Adapter>, how: Beside) -> io::Result<Guests> {
        let mut guests = Guests {
            stop: Arc::new(Stop::new()?),
            threads: Vec::new(),
        };
        for (number, socket) in self.0.into_iter().enumerate() {
            let (adapter, stop) = (Arc::clone(adapter), Arc::clone(&guests.stop));
            let how = how.clone();
            let serve = move || {
                let settings = DoorSettings {
                    shared: true,
                    read_only: how.read_only,
                    maps: how.window.is_some(),
                    copies: how.others_store || others_may_store(adapter.fs()),
                    ..DoorSettings::default()
                };
                let door = || Door::new(adapter.of_guest(), settings, Translations::default());
                let gate = Gate {
                    number,
                    socket,
                    settings: how.guest_settings(),
                    once: false,
                    trusts_vmm: how.trusts_vmm,
                    door: &door,
                };
                if let Err(error) = gate.serve(&stop) {
                    tracing::error!("guests are served no more: {error}");
                }
            };
            let thread = std::thread::Builder::new().name(format!("door-{number}"));
            guests.threads.push(thread.spawn(serve)?);
        }
        Ok(guests)
    }
}

/// Checks that files of the region can be mapped by guests.
///
/// # Errors
/// Why they cannot.
pub(crate) fn check_window(fs: &Fs, path: &Path) -> Result<(), Failure> {
    let refused = |why: String| {
        Err(Failure::mount(format!(
            "{}: guests cannot map files of this region: {why}; leave --dax-window out",
            path.display()
        )))
    };
    if fs.is_read_only() {
        return refused("it is read-only".into());
    }
    match fs.try_lease_lock() {
        Ok(()) => Ok(()),
        Err(error) => refused(format!("its locks do not work for it: {error}")),
    }
}

/// Guests that are served.
#[derive(Debug)]
pub struct Guests {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Guests {
    /// Disconnects all, and waits until they have given back what they have.
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that serves guests panicked");
            }
        }
    }
}
