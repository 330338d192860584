//! The end of a mount by a signal.
//!
//! * SIGTERM and SIGINT unmount.
//! * SIGUSR1 writes the state of the mount to the log.
//! * Other signals whose default action ends a process do nothing: SIGHUP, so that
//!   mounts survive the end of a session, and signals sent to request log rotation, or by mistake.
//! * Signals that report a fault of the process (SIGSEGV, SIGABRT and the like) still
//!   end it.
//!
//! If the mount is in use when the signal arrives, the kernel is asked to write back what it
//! holds (stores to mappings, and all writes with `cache=writeback`). Then the mount is detached
//! and its connection aborted: access to open files fails from then on. No completed operation
//! is lost, because each one is on the medium. The next mount removes orphans.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use pramfs::inode::Fs;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};

use crate::exit::Status;
use crate::kernel::OwnMount;
use crate::notify;

/// Signals that unmount.
const END: [i32; 2] = [SIGTERM, SIGINT];
/// Signals that do nothing.
const IGNORED: [i32; 12] = [
    SIGHUP,
    SIGQUIT,
    SIGUSR1,
    SIGUSR2,
    SIGALRM,
    SIGVTALRM,
    SIGPROF,
    SIGIO,
    SIGXCPU,
    SIGXFSZ,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// How long the kernel may take to end a connection at each step.
const GRACE: Duration = Duration::from_secs(1);

/// How long a write-back by the kernel and the final sync may take, each.
const SYNC_GRACE: Duration = Duration::from_secs(10);

/// After how long without a write the kernel has nothing left to write back.
const WRITE_BACK_QUIET: Duration = Duration::from_millis(500);

/// How long to wait before the kernel is woken again.
const WRITE_BACK_PAUSE: Duration = Duration::from_millis(50);

/// Caught signals. Once constructed, none of them ends the process.
#[derive(Debug)]
pub struct Signals(signal_hook::iterator::Signals);

impl Signals {
    /// Catches the signals of both lists. They are caught rather than ignored, because
    /// child programs inherit ignored signals.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn catch() -> io::Result<Signals> {
        signal_hook::iterator::Signals::new(END.iter().chain(&IGNORED)).map(Signals)
    }

    /// Forgets what has come so far.
    pub fn forget(&mut self) {
        for signal in self.0.pending() {
            tracing::debug!("{}: ignored", name(signal));
        }
    }

    /// Starts a thread that passes the signals on: as one byte each, their number, over a socket
    /// that does not wait.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn forward(mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in self.0.forever() {
                    let byte = u8::try_from(signal).unwrap_or_default();
                    if rustix::io::write(&theirs, &[byte]).is_err() {
                        return;
                    }
                }
            })?;
        Ok(ours)
    }

    /// Waits for a signal that ends the server. Returns its name.
    pub fn wait_for_end(&mut self) -> &'static str {
        for signal in self.0.forever() {
            if END.contains(&signal) {
                return name(signal);
            }
            tracing::debug!("{}: ignored", name(signal));
        }
        "the end of all signals"
    }
}

/// The state that ending a mount needs.
pub struct Watch {
    /// The mount.
    pub own_mount: OwnMount,
    /// The engine, while it is open.
    pub fs: Weak<Fs>,
    /// Returns how many writes the kernel has asked for.
    pub writes: Box<dyn Fn() -> u64 + Send>,
    /// Writes the state of the mount to the log.
    pub reports: Box<dyn Fn() + Send>,
    /// Is called before this process ends although it still serves.
    pub leaves: Box<dyn Fn() + Send>,
}

impl Watch {
    /// Starts the thread that waits for signals. The caller drops the returned sender
    /// when the connection has ended.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self, mut signals: Signals) -> io::Result<Sender<()>> {
        let (ended, has_ended) = channel();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.0.forever() {
                    if END.contains(&signal) {
                        self.stop(signal, &has_ended);
                    } else if signal == SIGUSR1 {
                        (self.reports)();
                    } else {
                        tracing::debug!("{}: ignored", name(signal));
                    }
                }
            })?;
        Ok(ended)
    }

    fn stop(&self, signal: i32, has_ended: &Receiver<()>) {
        let path = self.own_mount.path.display();
        tracing::info!("{}: unmounting {path}", name(signal));
        notify::stopping(&format!("{}: unmounts {path}", name(signal)));
        if let Err(error) = self.own_mount.unmount() {
            tracing::warn!("{path} is in use ({error}): detaching it; its open files will fail");
            if let Err(error) = self.write_back() {
                tracing::error!(
                    "{path}: what the kernel held back of files in use may be lost: {error}"
                );
            }
            if let Err(error) = self.own_mount.detach() {
                tracing::warn!("cannot detach {path}: {error}");
            }
        }
        if wait(has_ended) {
            return;
        }
        match self.own_mount.abort() {
            Ok(()) if wait(has_ended) => return,
            Ok(()) => {}
            Err(error) => tracing::debug!("cannot abort the connection of {path}: {error}"),
        }
        // Either an open file keeps the connection, or a request does not finish.
        // Exiting the process ends both.
        let status = match self.sync() {
            Ok(()) => {
                (self.leaves)();
                0
            }
            Err(error) => {
                tracing::error!("{path}: {error}; the next mount recovers unfinished operations");
                Status::System as u8
            }
        };
        std::process::exit(i32::from(status));
    }

    /// Waits until the kernel has written back what it holds of files in use, in bounded time.
    /// Nothing tells when that is: the flusher is woken again and again, until no write has come
    /// for a while. The serving threads serve meanwhile.
    fn write_back(&self) -> io::Result<()> {
        let begun = Instant::now();
        let (mut writes, mut quiet_since) = ((self.writes)(), Instant::now());
        loop {
            let own_mount = self.own_mount.clone();
            // Opening the mount is a request to this server, which may be stuck.
            in_time("write-back", move || own_mount.begin_write_back())?;
            std::thread::sleep(WRITE_BACK_PAUSE);
            let now = (self.writes)();
            if now != writes {
                (writes, quiet_since) = (now, Instant::now());
            }
            if quiet_since.elapsed() >= WRITE_BACK_QUIET {
                return Ok(());
            }
            if begun.elapsed() >= SYNC_GRACE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Makes pending stores durable, in bounded time.
    fn sync(&self) -> io::Result<()> {
        let Some(fs) = self.fs.upgrade() else {
            return Ok(());
        };
        in_time("sync", move || fs.sync().map_err(io::Error::from))
    }
}

/// Does something in a thread of this name, in bounded time.
fn in_time(name: &str, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, is_done) = channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // The receiver may have given up.
            let _ = done.send(work());
        })?;
    match is_done.recv_timeout(SYNC_GRACE) {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

fn wait(has_ended: &Receiver<()>) -> bool {
    has_ended.recv_timeout(GRACE) != Err(RecvTimeoutError::Timeout)
}
