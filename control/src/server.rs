//! The end that answers.
//!
//! Order: the socket has its mode before it has a name, listens before it has
//! the name that clients look for, and takes that name by a rename, which
//! replaces what a killed server has left. At the end the name goes first, so
//! that nobody connects to what will not answer; and a client that says nothing,
//! or takes no answer, is cut off rather than waited for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix, SocketFlags};

use crate::client::Client;
use crate::directory::Directory;
use crate::error::ControlError;
use crate::identity::Identity;
use crate::message::{self, Refusal, Reply, Request, Served};
use crate::wire;

/// Longest wait for a client, twice: to send, and to take the answer.
const IO_TIMEOUT: Duration = Duration::from_secs(3);

/// Clients that may wait.
const QUEUE: i32 = 16;

/// Wait after an accept that failed for want of something.
const PAUSE: Duration = Duration::from_millis(100);

/// What a server has to give.
#[derive(Debug)]
pub struct Service {
    served: Served,
    region: OwnedFd,
    connection: OwnedFd,
    patience: Duration,
}

impl Service {
    /// Of a live mount. `region` is a descriptor of what is mapped, `connection` the
    /// one to the kernel; both stay with the caller.
    ///
    /// # Errors
    /// Of open(2) and fcntl(2).
    pub fn new(
        served: Served,
        region: impl AsFd,
        connection: impl AsFd,
    ) -> Result<Service, ControlError> {
        use std::os::fd::AsRawFd;
        // Through the descriptor and not by name, so that it is what is mapped;
        // to look at only, so that whoever gets it can neither read nor lock it.
        let way = format!("/proc/self/fd/{}", region.as_fd().as_raw_fd());
        let region = rustix::fs::open(way, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(ControlError::os("cannot open the region once more"))?;
        let connection = rustix::io::fcntl_dupfd_cloexec(connection, 0)
            .map_err(ControlError::os("cannot copy the connection to the kernel"))?;
        Ok(Service {
            served,
            region,
            connection,
            patience: IO_TIMEOUT,
        })
    }

    fn answer(&self, client: &OwnedFd) -> Result<(), ControlError> {
        wire::limit(client, self.patience)?;
        wire::check_peer(client)?;
        let (bytes, _closed) = wire::receive(client, self.patience)?;
        let region = self.region.as_fd();
        let (reply, descriptors) = match message::request(&bytes) {
            Ok(Request::Status) => (Reply::Serves(self.served), vec![region]),
            Ok(Request::Connection) => (
                Reply::Serves(self.served),
                vec![region, self.connection.as_fd()],
            ),
            Err(refused) => (refused, Vec::new()),
        };
        let bytes = message::encode(&reply).or_else(|error| {
            message::encode(&Reply::Refused {
                reason: Refusal::System,
                message: error.to_string(),
            })
        })?;
        wire::send(client, &bytes, &descriptors, self.patience)
    }
}

/// Whom the thread is talking to.
#[derive(Debug)]
enum Talk {
    /// Nobody.
    Idle,
    /// This client.
    With(Arc<OwnedFd>),
    /// Nobody any more.
    Over,
}

/// A thread that answers for a region, until this is dropped.
#[derive(Debug)]
pub struct Server {
    directory: Directory,
    name: String,
    /// Of the socket's name: what has another number is not ours to remove.
    inode: u64,
    listener: Arc<OwnedFd>,
    talk: Arc<Mutex<Talk>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the socket of the region that `service` has open, and answers.
    ///
    /// # Errors
    /// [`ControlError::Taken`] where another server answers there; those of the
    /// system.
    pub fn start(directory: Directory, service: Service) -> Result<Server, ControlError> {
        let identity = Identity::of(&service.region)?;
        // Those who only read a region share it.
        if Client::connect(&directory, identity)?.is_some() {
            return Err(ControlError::Taken);
        }
        let listener = wire::socket()?;
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR).map_err(ControlError::os(
            "cannot set the mode of the control socket",
        ))?;
        let name = identity.socket_name();
        let hidden = format!(".{name}.{}", std::process::id());
        match rustix::fs::unlinkat(&directory, &hidden, AtFlags::empty()) {
            // Of a process that had this number before, and was killed.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(ControlError::os("cannot clear a control socket")(error)),
        }
        let bind = || -> rustix::io::Result<u64> {
            rustix::net::bind(&listener, &SocketAddrUnix::new(directory.way_to(&hidden))?)?;
            rustix::net::listen(&listener, QUEUE)?;
            let stat = rustix::fs::statat(&directory, &hidden, AtFlags::SYMLINK_NOFOLLOW)?;
            rustix::fs::renameat(&directory, &hidden, &directory, &name)?;
            Ok(stat.st_ino)
        };
        let inode = bind().map_err(ControlError::os("cannot bind the control socket"))?;
        let listener = Arc::new(listener);
        let talk = Arc::new(Mutex::new(Talk::Idle));
        let (heard, spoken) = (Arc::clone(&listener), Arc::clone(&talk));
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || serve(&heard, &spoken, &service));
        let mut server = Server {
            directory,
            name,
            inode,
            listener,
            talk,
            thread: None,
        };
        server.thread = Some(thread.map_err(|source| ControlError::Os {
            what: "cannot start the thread of the control socket",
            source,
        })?);
        Ok(server)
    }
}

fn serve(listener: &OwnedFd, talk: &Mutex<Talk>, service: &Service) {
    loop {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => {
                let client = Arc::new(client);
                match &mut *talk.lock() {
                    Talk::Over => return,
                    talk => *talk = Talk::With(Arc::clone(&client)),
                }
                // A client that fails has its own error; the next one is waiting.
                drop(service.answer(&client));
                match &mut *talk.lock() {
                    Talk::Over => return,
                    talk => *talk = Talk::Idle,
                }
            }
            // Shut down.
            Err(Errno::INVAL | Errno::BADF) => return,
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stat = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| stat.st_ino == self.inode) {
            // What stays behind is taken for what it is: nobody listens.
            let _stays = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
        // Fails only on what is not connected and does not listen.
        let _listens = rustix::net::shutdown(&self.listener, Shutdown::Both);
        // Its patience with a client is seconds, which an unmount would wait for.
        if let Talk::With(client) = std::mem::replace(&mut *self.talk.lock(), Talk::Over) {
            let _talks = rustix::net::shutdown(&client, Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // It has no panic of its own, and ours must not follow from one.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::channel;

    use super::*;

    /// An unmount ends the server. A client that is connected does not delay it.
    #[test]
    fn a_silent_client_does_not_delay_the_end() {
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
        service.patience = Duration::from_secs(3600);
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
        while !matches!(*server.talk.lock(), Talk::With(_)) {
            std::thread::yield_now();
        }
        let (end, ended) = channel();
        std::thread::spawn(move || {
            drop(server);
            end.send(()).unwrap();
        });
        ended
            .recv_timeout(Duration::from_secs(300))
            .expect("the server waits for a client that says nothing");
        drop(clients);
    }
}
