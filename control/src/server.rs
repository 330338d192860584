//! The server end of a control socket.
//!
//! One thread answers all clients. It waits for none of them: a client that does not read
//! its answers is disconnected, and one that says nothing and has no lease is disconnected
//! after a few seconds.
//!
//! Order at the start: the socket gets its mode, then a hidden name, then it listens. A
//! rename gives it the name that clients look for and replaces the socket of a killed
//! server. Order at the end: the name is removed first, so that no client connects to a
//! socket that will not answer. Then the thread ends, and disconnects all.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix};

use crate::client::Client;
use crate::connections::{Connections, Limits};
use crate::directory::Directory;
use crate::error::ControlError;
use crate::identity::Identity;
use crate::lease::Leases;
use crate::message::Served;
use crate::wire;

/// Time limit for a client without a lease, from one message to the next.
const IO_TIMEOUT: Duration = Duration::from_secs(3);

/// Clients that may wait to be accepted.
const QUEUE: i32 = 64;

/// The data and descriptors that a server sends.
#[derive(Debug)]
pub struct Service {
    pub(crate) served: Served,
    pub(crate) region: OwnedFd,
    pub(crate) connection: OwnedFd,
    pub(crate) leases: Option<Arc<dyn Leases>>,
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
            limits: Limits {
                silence: IO_TIMEOUT,
                ..Limits::default()
            },
        })
    }

    /// Grants leases, to root and the user of this process: nobody else can connect. (A
    /// client of another user could make the thread wait, by passing it a descriptor whose
    /// close takes long.)
    #[must_use]
    pub fn with_leases(mut self, leases: Arc<dyn Leases>) -> Service {
        self.leases = Some(leases);
        self
    }
}

/// A thread that answers for a region until this value is dropped.
#[derive(Debug)]
pub struct Server {
    directory: Directory,
    name: String,
    /// Inode of the socket's name: a name with another inode is not removed.
    inode: u64,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the socket of the region that `service` has open, and answers.
    ///
    /// # Errors
    /// [`ControlError::Taken`] if another server answers there; errors of the system.
    pub fn start(directory: Directory, service: Service) -> Result<Server, ControlError> {
        let identity = Identity::of(&service.region)?;
        // Several servers may have a region mounted read-only.
        if Client::connect(&directory, identity)?.is_some() {
            return Err(ControlError::Taken);
        }
        let listener = wire::socket()?;
        let name = identity.socket_name();
        let hidden = format!(".{name}.{}", std::process::id());
        match rustix::fs::unlinkat(&directory, &hidden, AtFlags::empty()) {
            // A leftover of a killed process with the same pid.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(ControlError::os("cannot clear a control socket")(error)),
        }
        let bind = || -> rustix::io::Result<u64> {
            rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
            rustix::net::bind(&listener, &SocketAddrUnix::new(directory.way_to(&hidden))?)?;
            rustix::net::listen(&listener, QUEUE)?;
            let stat = rustix::fs::statat(&directory, &hidden, AtFlags::SYMLINK_NOFOLLOW)?;
            rustix::fs::renameat(&directory, &hidden, &directory, &name)?;
            Ok(stat.st_ino)
        };
        let inode = bind().map_err(ControlError::os("cannot bind the control socket"))?;
        wire::do_not_wait(&listener)?;
        let listener = Arc::new(listener);
        let heard = Arc::clone(&listener);
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || Connections::new(&heard, &service, service.limits).serve());
        let mut server = Server {
            directory,
            name,
            inode,
            listener,
            thread: None,
        };
        server.thread = Some(thread.map_err(|source| ControlError::Os {
            what: "cannot start the thread of the control socket",
            source,
        })?);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stat = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| stat.st_ino == self.inode) {
            // If the name stays, clients find that no process listens.
            let _stays = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
        // Wakes the thread, which ends. Cannot fail: the socket listens.
        let _listens = rustix::net::shutdown(&self.listener, Shutdown::Both);
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
                let socket = dir.path().join("sockets").join(&server.name);
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
