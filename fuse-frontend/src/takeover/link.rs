//! The server's end of the socket to its supervisor.
//!
//! Invariant: once the region is mounted, nothing that the supervisor does or does not do ends
//! the server. If it dies, the server goes on as without takeover, and says so in the log.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use pramfs::inode::Fs;
use rustix::fs::{Mode, OFlags};

use super::memory::Memory;
use super::messages::{Channel, Held, Message, Outgoing, WITNESSES};
use crate::exit::Failure;

/// The name of a process that stands by.
const STANDBY: &CStr = c"pramfs-standby";
/// The name of one that serves, by which other programs know it, whatever path it was started by.
const SERVER: &CStr = c"mount.pramfs";

/// The socket.
#[derive(Debug, Clone)]
pub struct Link {
    channel: Arc<Channel>,
    /// This server takes a connection over.
    resumes: bool,
}

/// What a server does first.
#[derive(Debug)]
pub enum Begin {
    /// It mounts the region.
    Mount,
    /// It takes this over.
    Resume(Held),
}

/// A server whose supervisor does not know yet that it serves.
#[derive(Debug)]
pub struct Watched {
    link: Link,
    threads: [u32; WITNESSES],
}

impl Watched {
    /// Reports that this server serves: it has answered what was left to it.
    pub fn serves(&self) {
        if let Err(error) = self.link.channel.send(&Outgoing::Serving(self.threads)) {
            tracing::debug!("the supervisor does not hear that this server serves: {error}");
        }
    }
}

impl Link {
    /// Takes the socket that the supervisor passes as standard input.
    ///
    /// # Errors
    /// There is none: a user has called the program so.
    pub fn inherited() -> Result<Link, Failure> {
        let take = || -> io::Result<Channel> {
            let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
            let channel = Channel::of(socket)?;
            let null = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty())?;
            rustix::stdio::dup2_stdin(&null)?;
            Ok(channel)
        };
        let channel = take().map_err(|error| {
            Failure::usage(format!(
                "a server for takeover=on is started by mount.pramfs alone: standard input is not the socket of a supervisor ({error})"
            ))
        })?;
        Ok(Link {
            channel: Arc::new(channel),
            resumes: false,
        })
    }

    /// Waits for what to do.
    ///
    /// # Errors
    /// The supervisor has ended, or says something else.
    pub fn begin(&mut self) -> Result<Begin, Failure> {
        match self.channel.receive() {
            Ok(Some(Message::Mount)) => Ok(Begin::Mount),
            Ok(Some(Message::State(held))) => {
                self.resumes = true;
                Ok(Begin::Resume(held))
            }
            other => Err(unexpected(other)),
        }
    }

    /// Whether this server takes a connection over.
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// Gives the supervisor what outlives this server, and waits until it holds that.
    ///
    /// # Errors
    /// It does not.
    pub fn keep(
        &self,
        channels: &[OwnedFd],
        memory: [BorrowedFd<'_>; 2],
        region: Option<BorrowedFd<'_>>,
        (minor, state): (u32, &[u8]),
    ) -> Result<(), Failure> {
        let channels: Vec<_> = channels.iter().map(AsFd::as_fd).collect();
        let message = Outgoing::Keep {
            channels: &channels,
            memory,
            region,
            minor,
            state,
        };
        self.channel
            .send(&message)
            .map_err(|error| unexpected(Err(error)))?;
        match self.channel.receive() {
            Ok(Some(Message::Kept)) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Reports that the region is mounted.
    ///
    /// # Errors
    /// The supervisor has ended.
    pub fn live(&self, text: &str) -> Result<(), Failure> {
        let sent = self.channel.send(&Outgoing::Live(text));
        sent.map_err(|error| unexpected(Err(error)))
    }

    /// Reports why this server ends.
    pub fn failed(&self, failure: &Failure) {
        if let Err(error) = self.channel.send(&Outgoing::Failed(failure)) {
            tracing::error!("{failure} (and the supervisor cannot be told: {error})");
        }
    }

    /// Says that the state is understood, and waits for the end of the server before.
    ///
    /// # Errors
    /// The supervisor has ended, or wants no other server.
    pub fn wait_for_turn(&self) -> Result<(), Failure> {
        rename(STANDBY);
        self.channel
            .send(&Outgoing::Ready)
            .map_err(|error| unexpected(Err(error)))?;
        let received = self.channel.receive();
        rename(SERVER);
        match received {
            Ok(Some(Message::Go)) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Reports that this server ends by itself, since the mount has ended: no other one is to go on.
    pub fn leaves(&self) {
        if let Err(error) = self.channel.send(&Outgoing::Leaves) {
            tracing::debug!("the supervisor does not hear that this server ends: {error}");
        }
    }

    /// Starts the thread that listens to the supervisor. [`Watched::serves`] is to be called as soon
    /// as this server answers.
    ///
    /// A process ends with its last thread, which gives all of its memory back before. With much
    /// of a region mapped, that takes longer than all the rest of a takeover. So the supervisor
    /// waits for the end of single threads: of two, since one may be the last.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve(self, fs: Weak<Fs>, memory: Arc<Memory>) -> io::Result<Watched> {
        let link = self.clone();
        let listens = thread("supervisor", move || {
            let why = link.listen(&fs, &memory);
            memory.has_no_supervisor();
            tracing::warn!(
                "the supervisor has ended ({why}): this server goes on, but if it dies, programs get ENOTCONN; unmount the region and mount it again to have takeover"
            );
            loop {
                std::thread::park();
            }
        })?;
        let waits = thread("witness", || {
            loop {
                std::thread::park();
            }
        })?;
        Ok(Watched {
            link: self,
            threads: [listens, waits],
        })
    }

    /// Does what the supervisor asks for. Returns why that has ended.
    fn listen(&self, fs: &Weak<Fs>, memory: &Memory) -> String {
        loop {
            match self.channel.receive() {
                Ok(Some(Message::Sync)) => {
                    memory.will_be_replaced();
                    if let Some(fs) = fs.upgrade()
                        && let Err(error) = fs.sync()
                    {
                        tracing::warn!("before the next server: {error}");
                    }
                    if let Err(error) = self.channel.send(&Outgoing::Synced) {
                        return error.to_string();
                    }
                }
                Ok(Some(Message::Stays)) => memory.will_not_be_replaced(),
                other => return unexpected(other).message,
            }
        }
    }
}

/// Starts a thread of this name, and returns its number.
fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<u32> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let number = rustix::thread::gettid().as_raw_nonzero();
            // The receiver waits.
            let _heard = tell.send(number.get().unsigned_abs());
            work();
        })?;
    told.recv().map_err(io::Error::other)
}

/// Sets the name of this process, as ps(1) and top(1) show it.
fn rename(name: &CStr) {
    if let Err(error) = rustix::thread::set_name(name) {
        tracing::debug!("the process is not renamed: {error}");
    }
}

/// What to say of a message that is none or a wrong one.
fn unexpected(received: io::Result<Option<Message>>) -> Failure {
    Failure::system(match received {
        Ok(None) => "the supervisor of the mount has ended".to_owned(),
        Ok(Some(message)) => format!("the supervisor of the mount sends {message:?}"),
        Err(error) => format!("the supervisor of the mount: {error}"),
    })
}
