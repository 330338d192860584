//! The server end of a control socket.
//!
//! One thread answers all clients. It waits for none of them: a client that does not read
//! its answers is disconnected, and one that says nothing and has no lease is disconnected
//! after a few seconds.
//!
//! Order at the start: the socket gets its mode, then a hidden name, perhaps an owner, then
//! it listens. A rename gives it the name that clients look for and replaces the socket of a
//! killed server. Order at the end: the name is removed first, so that no client connects to a
//! socket that will not answer. Then the thread ends, and disconnects all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix};

use crate::admission::Admission;
use crate::client::Client;
use crate::connections::{Connections, Limits};
use crate::directory::Directory;
use crate::error::ControlError;
use crate::identity::Identity;
use crate::lease::Leases;
use crate::message::{RequestCounts, Served};
use crate::snapshot::Snapshots;
use crate::status::Report;
use crate::wire;

/// Time limit for a client without a lease, from one message to the next.
const IO_TIMEOUT: Duration = Duration::from_secs(3);

/// For the errors of bind and listen.
const BIND: fn(Errno) -> ControlError =
    |error| ControlError::os("cannot bind the control socket")(error);

/// Clients that may wait to be accepted.
const QUEUE: i32 = 64;

/// The data and descriptors that a server sends.
#[derive(Debug)]
pub struct Service {
    pub(crate) served: Served,
    pub(crate) region: OwnedFd,
    pub(crate) connection: OwnedFd,
    pub(crate) leases: Option<Arc<dyn Leases>>,
    pub(crate) counts: Option<Arc<dyn RequestCounts>>,
    pub(crate) snapshots: Option<Arc<dyn Snapshots>>,
    pub(crate) report: Option<Arc<dyn Report>>,
    limits: Limits,
}

impl Service {
    /// Makes the service of a live mount. `region` is the mapped descriptor, `connection`
    /// the one to the kernel; the caller keeps both.
    ///
    /// # Errors
    /// Errors of open(2) and fcntl(2).
    pub fn new(
        served: Served,
        region: impl AsFd,
        connection: impl AsFd,
    ) -> Result<Service, ControlError> {
        use std::os::fd::AsRawFd;
        // Through the descriptor and not by name, so that it is the mapped region. With
        // O_PATH, so that a client can neither read nor lock it.
        let way = format!("/proc/self/fd/{}", region.as_fd().as_raw_fd());
        let region = rustix::fs::open(way, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(ControlError::os("cannot reopen the region"))?;
        let connection = rustix::io::fcntl_dupfd_cloexec(connection, 0)
            .map_err(ControlError::os("cannot copy the connection to the kernel"))?;
        Ok(Service {
            served,
            region,
            connection,
            leases: None,
            counts: None,
            snapshots: None,
            report: None,
            limits: Limits {
                silence: IO_TIMEOUT,
                ..Limits::default()
            },
        })
    }

    /// Tells how many requests the mount has served.
    #[must_use]
    pub fn with_counts(mut self, counts: Arc<dyn RequestCounts>) -> Service {
        self.counts = Some(counts);
        self
    }

    /// Makes snapshots.
    #[must_use]
    pub fn with_snapshots(mut self, snapshots: Arc<dyn Snapshots>) -> Service {
        self.snapshots = Some(snapshots);
        self
    }

    /// Reports the state of the mount.
    #[must_use]
    pub fn with_report(mut self, report: Arc<dyn Report>) -> Service {
        self.report = Some(report);
        self
    }

    /// Grants leases, to those who can connect.
    #[must_use]
    pub fn with_leases(mut self, leases: Arc<dyn Leases>) -> Service {
        self.leases = Some(leases);
        self
    }
}

/// A control socket that nobody can find yet.
#[derive(Debug)]
pub struct Listener {
    directory: Directory,
    name: String,
    hidden: String,
    socket: OwnedFd,
    admission: Option<Admission>,
    started: bool,
}

impl Listener {
    /// Binds the socket of a region, for root and the user of this process.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn bind(directory: Directory, region: impl AsFd) -> Result<Listener, ControlError> {
        let name = Identity::of(region)?.socket_name();
        let hidden = format!(".{name}.{}", std::process::id());
        match rustix::fs::unlinkat(&directory, &hidden, AtFlags::empty()) {
            // A leftover of a killed process with the same pid.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(ControlError::os("cannot clear a control socket")(error)),
        }
        let socket = wire::socket()?;
        let bind = || -> rustix::io::Result<()> {
            rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(directory.way_to(&hidden))?)
        };
        bind().map_err(BIND)?;
        Ok(Listener {
            directory,
            name,
            hidden,
            socket,
            admission: None,
            started: false,
        })
    }

    /// Admits more users, who can ask for leases and for nothing else.
    ///
    /// `refuse_descriptors` must see to it that clients cannot pass descriptors to the socket.
    /// (The close of one may take long, and the thread that answers all clients would wait.)
    ///
    /// # Errors
    /// Those of `refuse_descriptors` and of the system: the socket stays as it was.
    pub fn admit(
        &mut self,
        admission: Admission,
        refuse_descriptors: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<(), ControlError> {
        refuse_descriptors(self.socket.as_fd()).map_err(|source| ControlError::Os {
            what: "clients could pass descriptors to the control socket (Linux 6.16 can refuse them)",
            source,
        })?;
        let open = || -> rustix::io::Result<()> {
            // Others can reach the names in it, but not list them.
            rustix::fs::chmod(
                self.directory.way_to("."),
                Mode::RWXU | Mode::XGRP | Mode::XOTH,
            )?;
            let owner = Some(rustix::fs::Uid::from_raw(admission.users.owner()));
            let (mode, group) = admission.users.socket();
            let group = group.map(rustix::fs::Gid::from_raw);
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            // The group before the mode that lets it in.
            rustix::fs::chownat(&self.directory, &self.hidden, owner, group, flags)?;
            rustix::fs::chmod(self.directory.way_to(&self.hidden), mode)
        };
        open().map_err(ControlError::os("cannot admit users to the control socket"))?;
        self.admission = Some(admission);
        Ok(())
    }

    /// Answers for the region.
    ///
    /// # Errors
    /// [`ControlError::Taken`] if another server answers there; errors of the system.
    pub fn start(self, service: Service) -> Result<Server, ControlError> {
        let identity = Identity::of(&service.region)?;
        // Several servers may have a region mounted read-only.
        if Client::connect(&self.directory, identity)?.is_some() {
            return Err(ControlError::Taken);
        }
        self.start_instead(service)
    }

    /// Answers for the region, whoever has answered before: for a server that has the exclusive
    /// lock of the region from another one, which is dead, although the kernel may not have closed
    /// its socket yet.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn start_instead(mut self, service: Service) -> Result<Server, ControlError> {
        let listen = || -> rustix::io::Result<u64> {
            let (directory, hidden) = (&self.directory, &self.hidden);
            rustix::net::listen(&self.socket, QUEUE)?;
            let stat = rustix::fs::statat(directory, hidden, AtFlags::SYMLINK_NOFOLLOW)?;
            rustix::fs::renameat(directory, hidden, directory, &self.name)?;
            Ok(stat.st_ino)
        };
        let os = |what| move |source| ControlError::Os { what, source };
        let inode = listen().map_err(BIND)?;
        self.started = true;
        // From here on, an error removes the name.
        let mut server = Server {
            inode,
            thread: None,
            listener: self,
        };
        let Listener {
            socket, admission, ..
        } = &server.listener;
        wire::do_not_wait(socket)?;
        let heard = socket
            .try_clone()
            .map_err(os("cannot copy the control socket"))?;
        let admission = *admission;
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || Connections::new(&heard, &service, service.limits, admission).serve());
        server.thread = Some(thread.map_err(os("cannot start the thread of the control socket"))?);
        Ok(server)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.started {
            let _gone = rustix::fs::unlinkat(&self.directory, &self.hidden, AtFlags::empty());
        }
    }
}

/// A thread that answers for a region until this value is dropped.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    /// Inode of the socket's name: a name with another inode is not removed.
    inode: u64,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the socket of the region that `service` has open, and answers to root and the
    /// user of this process.
    ///
    /// # Errors
    /// Those of [`Listener::bind`] and [`Listener::start`].
    pub fn start(directory: Directory, service: Service) -> Result<Server, ControlError> {
        Listener::bind(directory, &service.region)?.start(service)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Listener {
            directory,
            name,
            socket,
            ..
        } = &self.listener;
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| stat.st_ino == self.inode) {
            // If the name stays, clients find that no process listens.
            let _stays = rustix::fs::unlinkat(directory, name, AtFlags::empty());
        }
        // Wakes the thread, which ends. Cannot fail: the socket listens.
        let _listens = rustix::net::shutdown(socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread must not cause a panic here.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::channel;

    use super::*;

    /// An unmount ends the server. A connected client does not delay it.
    #[test]
    fn silent_client_does_not_delay_server_end() {
        let dir = tempfile::tempdir().unwrap();
        let region = File::create(dir.path().join("region")).unwrap();
        let served = Served {
            device: (0, 77),
            user_id: 0,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            nosymfollow: false,
        };
        let mut service = Service::new(served, &region, &region).unwrap();
        // Longer than the test waits.
        service.limits.silence = Duration::from_secs(3600);
        std::fs::create_dir(dir.path().join("sockets")).unwrap();
        let directory = Directory::open(dir.path().join("sockets"))
            .unwrap()
            .unwrap();
        let server = Server::start(directory, service).unwrap();
        let clients: Vec<OwnedFd> = (0..3)
            .map(|_| {
                let client = wire::socket().unwrap();
                let socket = dir.path().join("sockets").join(&server.listener.name);
                let address = SocketAddrUnix::new(socket).unwrap();
                rustix::net::connect(&client, &address).unwrap();
                client
            })
            .collect();
        let (end, ended) = channel();
        std::thread::spawn(move || {
            drop(server);
            end.send(()).unwrap();
        });
        ended
            .recv_timeout(Duration::from_secs(120))
            .expect("the server waits for a client that says nothing");
        drop(clients);
    }
}
