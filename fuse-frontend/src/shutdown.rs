//! The end of a mount by a signal.
//!
//! SIGTERM and SIGINT unmount. Other signals that would end a process which does
//! not know them do nothing: SIGHUP, so that the end of a session does not end
//! its mounts, and those that are sent to ask for a report, for a rotation of
//! logs, or by mistake. What ends the process because it has gone wrong itself
//! (SIGSEGV, SIGABRT and the like) still does. What is in use when the signal comes is
//! detached and its connection cut: whoever has a file open gets an error from
//! then on. Nothing is lost by that, as everything that has returned is on the
//! medium; files that are open and have no name are removed by the next mount.

use std::io;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pramfs::inode::Fs;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};

use crate::exit::Status;
use crate::kernel::Place;

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

/// How long the last write-out may take.
const SYNC_GRACE: Duration = Duration::from_secs(10);

/// Caught signals. From its making on none of them ends the process.
#[derive(Debug)]
pub struct Signals(signal_hook::iterator::Signals);

impl Signals {
    /// Catches what unmounts and what does nothing. (Caught, not ignored: what
    /// is ignored stays so in the programs that this one starts.)
    ///
    /// # Errors
    /// Of the system calls behind it.
    pub fn catch() -> io::Result<Signals> {
        signal_hook::iterator::Signals::new(END.iter().chain(&IGNORED)).map(Signals)
    }
}

/// What it takes to end a mount.
pub struct Watch {
    /// The mount.
    pub place: Place,
    /// The engine, while it is open.
    pub fs: Weak<Fs>,
}

impl Watch {
    /// Starts the thread that waits for signals. Dropping what it returns says
    /// that the connection has ended.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn start(self, mut signals: Signals) -> io::Result<Sender<()>> {
        let (ended, has_ended) = channel();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.0.forever() {
                    if END.contains(&signal) {
                        self.stop(signal, &has_ended);
                    } else {
                        tracing::debug!("{}: ignored", name(signal));
                    }
                }
            })?;
        Ok(ended)
    }

    fn stop(&self, signal: i32, has_ended: &Receiver<()>) {
        let path = self.place.path.display();
        tracing::info!("{}: unmounting {path}", name(signal));
        if let Err(error) = self.place.unmount() {
            tracing::warn!("{path} is in use ({error}): files that are open are cut off");
            if let Err(error) = self.place.detach() {
                tracing::warn!("cannot detach {path}: {error}");
            }
        }
        if wait(has_ended) {
            return;
        }
        match self.place.abort() {
            Ok(()) if wait(has_ended) => return,
            Ok(()) => {}
            Err(error) => tracing::debug!("cannot cut the connection of {path}: {error}"),
        }
        // The kernel holds on to the connection for somebody's open file, or a
        // request does not come to its end. The end of this process ends both.
        let status = match self.sync() {
            Ok(()) => 0,
            Err(error) => {
                tracing::error!("{path}: {error}; the next mount recovers what was under way");
                Status::System as u8
            }
        };
        std::process::exit(i32::from(status));
    }

    /// Writes out what may lag on the medium, in a time that is bounded.
    fn sync(&self) -> io::Result<()> {
        let Some(fs) = self.fs.upgrade() else {
            return Ok(());
        };
        let (done, is_done) = channel();
        std::thread::Builder::new()
            .name("sync".into())
            .spawn(move || {
                // The receiver may have given up.
                let _ = done.send(fs.sync());
            })?;
        match is_done.recv_timeout(SYNC_GRACE) {
            Ok(result) => result.map_err(io::Error::from),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

fn wait(has_ended: &Receiver<()>) -> bool {
    has_ended.recv_timeout(GRACE) != Err(RecvTimeoutError::Timeout)
}
