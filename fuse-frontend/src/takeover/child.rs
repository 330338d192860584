//! A server as its supervisor sees it: a process, a socket, and how far it has come.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::death;
use super::messages::{Channel, Held, Outgoing, WITNESSES};
use crate::cli::{SERVE_FOR_SUPERVISOR, SERVE_IN_BACKGROUND};
use crate::exit::Failure;
use crate::privileges::environment;

/// A program file. It stays the same file when another one gets its name.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    file: OwnedFd,
}

impl Program {
    /// Opens the program that is at a path now.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn at(path: &Path) -> io::Result<Program> {
        Program::open(path, path)
    }

    /// Opens the program of this process.
    ///
    /// # Errors
    /// `/proc` is missing.
    pub(super) fn own(path: &Path) -> io::Result<Program> {
        Program::open(path, Path::new("/proc/self/exe"))
    }

    fn open(path: &Path, file: &Path) -> io::Result<Program> {
        let file = rustix::fs::open(file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Program {
            path: path.to_owned(),
            file,
        })
    }

    /// Returns a path that leads to the file: its own one if that still does.
    fn to_execute(&self) -> PathBuf {
        let is_same = || -> io::Result<bool> {
            let there = std::fs::metadata(&self.path)?;
            let ours = rustix::fs::fstat(&self.file)?;
            Ok((there.dev(), there.ino()) == (ours.st_dev, ours.st_ino))
        };
        match is_same() {
            Ok(true) => self.path.clone(),
            _ => format!("/proc/self/fd/{}", self.file.as_raw_fd()).into(),
        }
    }
}

/// `PIDFD_THREAD`, Linux 6.9.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
/// What a server is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To mount the region.
    Mount,
    /// To go on when the current one dies.
    Standby,
    /// To go on as soon as it can, instead of the current one.
    Upgrade,
}

/// How far a server has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It mounts the region.
    Mounts,
    /// It reads the state.
    Reads,
    /// It waits for the end of the server before.
    Waits,
    /// It opens the region.
    Opens,
    /// It serves.
    Serves,
    /// It writes back, to be replaced.
    Syncs,
    /// It was killed, to be replaced.
    Replaced,
    /// It was killed, because it was late.
    Late,
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Readable when the process has ended.
    pub(super) pidfd: OwnedFd,
    pub(super) channel: Channel,
    /// The other end of the socket is closed, or sends what nobody understands.
    pub(super) is_silent: bool,
    pub(super) purpose: Purpose,
    pub(super) stage: Stage,
    /// When the stage has to be over.
    pub(super) deadline: Option<Instant>,
    /// Two of its threads, of which one at least ends as soon as the process is killed. (The last
    /// thread gives the memory of the process back first, for as long as that takes.)
    pub(super) witnesses: Vec<OwnedFd>,
    /// Since when one of them has ended, or the process is killed.
    pub(super) dies_since: Option<Instant>,
    /// It ends by itself, as it says.
    pub(super) leaves: bool,
    /// Why it ends, as it says.
    pub(super) failure: Option<Failure>,
    pub(super) program: Rc<Program>,
}

impl Server {
    /// Starts a server with the arguments of this process (program name first). What is held goes to
    /// one that does not mount.
    ///
    /// # Errors
    /// The limit of processes or descriptors; the program cannot be executed.
    pub(super) fn start(
        program: &Rc<Program>,
        args: &[OsString],
        held: Option<&Held>,
        purpose: Purpose,
    ) -> io::Result<Server> {
        let (ours, theirs) = Channel::pair()?;
        // Before the start: the message waits in the socket.
        let (message, stage) = match held {
            Some(held) => (Outgoing::State(held), Stage::Reads),
            None => (Outgoing::Mount, Stage::Mounts),
        };
        ours.send(&message)?;
        let (name, rest) = match args.split_first() {
            Some((name, rest)) => (name.clone(), rest),
            None => (OsString::from("mount.pramfs"), &[][..]),
        };
        let rest = rest.iter().filter(|arg| *arg != SERVE_IN_BACKGROUND);
        let child = environment::clean(&mut Command::new(program.to_execute()))
            .arg0(name)
            .arg(SERVE_FOR_SUPERVISOR)
            .args(rest)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Server::of(child, ours, program, stage, purpose)
    }

    /// Returns the server that a process is.
    ///
    /// # Errors
    /// The limit of descriptors.
    pub(super) fn of(
        child: Child,
        ours: Channel,
        program: &Rc<Program>,
        stage: Stage,
        purpose: Purpose,
    ) -> io::Result<Server> {
        let pid = Pid::from_child(&child);
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let mut child = child;
                child.kill()?;
                child.wait()?;
                return Err(error.into());
            }
        };
        Ok(Server {
            child,
            pidfd,
            channel: ours,
            is_silent: false,
            purpose,
            stage,
            deadline: None,
            leaves: false,
            witnesses: Vec::new(),
            dies_since: None,
            failure: None,
            program: Rc::clone(program),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The server has ended, or reads nothing.
    pub(super) fn send(&self, message: &Outgoing<'_>) -> io::Result<()> {
        self.channel.send(message)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = rustix::process::pidfd_send_signal(self.pidfd.as_fd(), signal) {
            tracing::debug!("{signal:?} for server {}: {error}", self.pid());
        }
    }

    /// Kills it. Its end is still to be awaited.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.dies_since.get_or_insert_with(Instant::now);
    }

    /// Watches these threads of it.
    pub(super) fn watch(&mut self, threads: [u32; WITNESSES]) {
        for number in threads {
            let thread = i32::try_from(number).ok().and_then(Pid::from_raw);
            let opened = thread.map(|thread| rustix::process::pidfd_open(thread, PIDFD_THREAD));
            match opened {
                Some(Ok(thread)) => self.witnesses.push(thread),
                other => tracing::debug!("thread {number} is not watched: {other:?}"),
            }
        }
    }

    /// Whether none of its threads can do anything any more.
    pub(super) fn is_dead(&self) -> bool {
        is_readable(self.pidfd.as_fd()) || death::is_certain(self.pid())
    }

    /// Returns how it has ended; waits for that.
    ///
    /// # Errors
    /// Errors of waitpid(2).
    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Returns how it has ended, if it has.
    pub(super) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

/// Whether a descriptor is readable: a pidfd, if the process has ended.
pub(super) fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let now = Timespec::default();
    let mut asked = [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut asked, Some(&now))) == Ok(1)
}
