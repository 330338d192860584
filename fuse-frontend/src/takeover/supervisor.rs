//! The process that survives servers: it starts them, and holds what they need to go on.
//!
//! One server is current, until it ends: it mounts, or takes over, and then serves. The next one
//! stands by meanwhile: it has been started and has read the state, so that it opens the region at
//! once when the current one dies, and needs nothing that may be short then: no process, no
//! program file. SIGHUP replaces it by one of the program that is installed by then, which gets
//! its turn as soon as it has read the state: the current one is killed. SIGUSR1 is passed on to the
//! current one, as soon as that serves.
//!
//! The mount ends with the supervisor, when a server ends with status 0, or fails in a way that
//! the next one would not survive: `Supervisor::give_up`.
//!
//! Invariants:
//! * it reads nothing that the kernel, a user of the mount or the region has written; of what a
//!   server sends it reads only tags, numbers of threads and of the mount, and texts for the user;
//! * no two servers serve at once: the next one gets its turn when no thread of the one before
//!   can do anything any more;
//! * every way out closes the descriptors of the connection, so that no program waits for ever;
//! * whatever a server does or does not do, there is one that serves `LIMIT` after the end of the
//!   last that did, or the connection ends.

mod ends;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use super::child::{Program, Purpose, Server, Stage, is_readable};
use super::death;
use super::messages::{Held, Message, Outgoing};
use crate::cli::{Invocation, ServerProcess};
use crate::daemon;
use crate::exit::Failure;
use crate::notify::{self, Watchdog};
use crate::oom;
use crate::privileges::environment;
use crate::shutdown::Signals;

/// In which deaths are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// How often to look whether all threads of a server that dies have ended.
const SHORT: Duration = Duration::from_micros(200);
/// For how long.
const DYING: Duration = Duration::from_secs(1);
/// How long a server may write back before it is replaced.
const SYNC: Duration = Duration::from_secs(1);
/// How long there may be no server that serves.
const LIMIT: Duration = Duration::from_secs(10);
/// After how long a server is started again, if none serves.
const RETRY: Duration = Duration::from_millis(100);
/// The same for one that stands by.
const STANDBY_RETRY: Duration = Duration::from_secs(5);

/// Starts a server of a program, with what is held.
type Start<'a> = dyn Fn(&Rc<Program>, Option<&Held>, Purpose) -> io::Result<Server> + 'a;

/// A process that supervises servers.
struct Supervisor<'a> {
    invocation: &'a Invocation,
    start: Box<Start<'a>>,
    /// By which this program was started.
    path: PathBuf,
    /// What the current server runs, or the next one if it dies.
    program: Rc<Program>,
    held: Option<Held>,
    current: Option<Server>,
    next: Option<Server>,
    /// Servers that were replaced, and give their memory back.
    dying: Vec<Server>,
    is_live: bool,
    /// The signal that ends the mount.
    ending: Option<Signal>,
    /// SIGUSR1 has come, and no server has got it.
    state_is_asked: bool,
    deaths: VecDeque<Instant>,
    /// When there was no server any more.
    since: Instant,
    limit: Duration,
    /// When the next one may be started.
    not_before: Instant,
    /// Why a server was not ready.
    last: Option<String>,
    /// Of the service that this process is.
    watchdog: Option<Watchdog>,
}

/// How it ends.
type Ended = Result<(), Failure>;

/// Supervises servers until the mount ends, with the arguments of this process, program name
/// first.
///
/// # Errors
/// The mount failed; or its servers do, so that the connection is closed.
pub fn run(invocation: &Invocation, args: &[OsString]) -> Ended {
    let prepare = || -> io::Result<(UnixStream, PathBuf, Program)> {
        let signals = Signals::catch()?.forward()?;
        if let Err(error) = pramfs_medium::pmem::inherit_standard_streams_only() {
            tracing::warn!("servers keep inherited descriptors open: {error}");
        }
        let path = environment::this_program();
        let program = Program::own(&path)?;
        Ok((signals, path, program))
    };
    let (signals, path, program) =
        prepare().map_err(|error| Failure::system(format!("cannot supervise servers: {error}")))?;
    oom::keep_alive();
    let start = |program: &Rc<Program>, held: Option<&Held>, purpose| {
        Server::start(program, args, held, purpose)
    };
    let mut supervisor = Supervisor::new(invocation, Box::new(start), path, program);
    supervisor.watchdog = Watchdog::of_service();
    let started = (supervisor.start)(&supervisor.program, None, Purpose::Mount);
    supervisor.current = Some(started.map_err(|error| {
        Failure::system(format!(
            "cannot start the server process of the mount: {error}"
        ))
    })?);
    loop {
        if let Some(ended) = supervisor.step(&signals) {
            return ended;
        }
    }
}

impl<'a> Supervisor<'a> {
    fn new(
        invocation: &'a Invocation,
        start: Box<Start<'a>>,
        path: PathBuf,
        program: Program,
    ) -> Supervisor<'a> {
        Supervisor {
            invocation,
            start,
            path,
            program: Rc::new(program),
            held: None,
            current: None,
            next: None,
            dying: Vec::new(),
            is_live: false,
            ending: None,
            state_is_asked: false,
            deaths: VecDeque::new(),
            since: Instant::now(),
            limit: LIMIT,
            not_before: Instant::now(),
            last: None,
            watchdog: None,
        }
    }

    /// Waits for an event, and handles what is there. Returns how it ends, if it does.
    fn step(&mut self, signals: &UnixStream) -> Option<Ended> {
        self.wait(signals);
        self.watchdog.iter_mut().for_each(Watchdog::tell);
        while let Some(signal) = received(signals) {
            self.on_signal(signal);
        }
        self.dying.retain_mut(|server| {
            let has_ended = is_readable(server.pidfd.as_fd());
            if has_ended && let Err(error) = server.wait() {
                tracing::debug!("server {}: {error}", server.pid());
            }
            !has_ended
        });
        for is_next in [false, true] {
            if let Some(ended) = self.look_at(is_next) {
                return Some(ended);
            }
        }
        self.go_on()
    }

    /// Whether a server is needed that serves.
    fn is_out(&self) -> bool {
        let serves = |server: &Server| matches!(server.stage, Stage::Serves | Stage::Syncs);
        self.is_live && !self.current.as_ref().is_some_and(serves)
    }

    /// Whether a server is to be started: one that takes over, or one that stands by.
    fn needs_next(&self) -> bool {
        let stands_alone = |server: &Server| server.stage == Stage::Serves && self.ending.is_none();
        self.is_live && self.next.is_none() && self.current.as_ref().is_none_or(stands_alone)
    }

    /// When an upgrade must serve, so that the program before can serve if it does not.
    fn half(&self) -> Instant {
        self.since + self.limit / 2
    }

    /// Starts the next server, or lets it take over, where that is needed.
    fn go_on(&mut self) -> Option<Ended> {
        self.pass_on_sigusr1();
        if self.current.is_none()
            && self.is_live
            && let Some(next) = &mut self.next
        {
            let is_upgrade = next.purpose == Purpose::Upgrade;
            match next.stage {
                // It may have been killed with the one before.
                Stage::Waits if next.is_dead() => {
                    let next = self.next.take()?;
                    self.discard(next, "it has died while it stood by");
                }
                Stage::Waits => self.promote(),
                _ if is_upgrade => {
                    let half = self.since + self.limit / 2;
                    next.deadline = next.deadline.map(|at| at.min(half));
                }
                _ => {}
            }
        }
        if self.needs_next() && self.not_before <= Instant::now() {
            self.start_next();
        }
        if self.is_out() && self.since + self.limit <= Instant::now() {
            let seconds = self.limit.as_secs();
            let last = self.last.take();
            let last = last.map_or_else(String::new, |why| format!(" (the last one: {why})"));
            return Some(self.give_up(&format!(
                "no server was ready within {seconds} seconds{last}"
            )));
        }
        None
    }

    fn slot(&mut self, is_next: bool) -> &mut Option<Server> {
        if is_next {
            &mut self.next
        } else {
            &mut self.current
        }
    }

    /// Waits until a signal, a message or the end of a server is there, or a deadline is over.
    fn wait(&self, signals: &UnixStream) {
        let servers = || self.current.iter().chain(&self.next);
        let mut asked = vec![PollFd::new(signals, PollFlags::IN)];
        for server in servers() {
            asked.push(PollFd::new(&server.pidfd, PollFlags::IN));
            if !server.is_silent {
                asked.push(PollFd::new(&server.channel, PollFlags::IN));
            }
            if server.dies_since.is_none() {
                let threads = server.witnesses.iter();
                asked.extend(threads.map(|thread| PollFd::new(thread, PollFlags::IN)));
            }
        }
        for server in &self.dying {
            asked.push(PollFd::new(&server.pidfd, PollFlags::IN));
        }
        let deadlines = servers().filter_map(|server| server.deadline);
        let start = self.needs_next().then_some(self.not_before);
        let end = self.is_out().then(|| self.since + self.limit);
        let tell = self.watchdog.as_ref().map(Watchdog::due);
        let deadline = deadlines.chain(start).chain(end).chain(tell).min();
        let rest = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let dies = servers().any(|server| server.dies_since.is_some());
        let rest = if dies { Some(SHORT) } else { rest };
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        if let Err(error) = rustix::event::poll(&mut asked, rest.as_ref())
            && error != rustix::io::Errno::INTR
        {
            tracing::error!("the supervisor cannot wait: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        if signal == Signal::HUP {
            return self.upgrade();
        }
        self.state_is_asked |= signal == Signal::USR1;
        if signal != Signal::TERM && signal != Signal::INT {
            return;
        }
        self.ending = Some(signal);
        notify::stopping(&format!(
            "unmounts {}",
            self.invocation.mountpoint.display()
        ));
        // A server that does not serve yet gets it as soon as it does. One that mounts may die of
        // it, as without a supervisor.
        if let Some(server) = &self.current
            && matches!(server.stage, Stage::Mounts | Stage::Serves | Stage::Syncs)
        {
            server.signal(signal);
        }
    }

    /// Lets the server write its state to the log. One that does not serve yet would die of the signal,
    /// or forget it: it gets it later. One that writes back to be replaced may be killed before it
    /// handles the signal: the next one gets it.
    fn pass_on_sigusr1(&mut self) {
        if self.state_is_asked
            && let Some(server) = &self.current
            && server.stage == Stage::Serves
        {
            server.signal(Signal::USR1);
            self.state_is_asked = false;
        }
    }

    /// Handles what comes from one of the servers, and its end.
    fn look_at(&mut self, is_next: bool) -> Option<Ended> {
        let server = self.slot(is_next).as_mut()?;
        // First these: what it has sent before its end is there then.
        let has_ended = is_readable(server.pidfd.as_fd());
        let has_died = !has_ended && dies(server);
        self.listen_to(is_next);
        let server = self.slot(is_next).as_mut()?;
        // One that ends by itself tells how by the end of its process.
        if has_ended || has_died && !server.leaves {
            let mut server = self.slot(is_next).take()?;
            if has_died {
                let status = death::how(server.pid());
                return self.on_end(is_next, server, status);
            }
            return match server.wait() {
                Ok(status) => self.on_end(is_next, server, Some(status)),
                Err(error) => Some(self.give_up(&format!("waitpid: {error}"))),
            };
        }
        if server.deadline.is_some_and(|at| at <= Instant::now()) {
            self.on_deadline(is_next);
        }
        None
    }

    /// Handles the messages that are there.
    fn listen_to(&mut self, is_next: bool) {
        while let Some(server) = self.slot(is_next).as_mut()
            && !server.is_silent
        {
            let why = match server.channel.receive_now() {
                Ok(Some(message)) => match self.on_message(is_next, message) {
                    Ok(()) => continue,
                    Err(why) => why.to_owned(),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) => {
                    server.is_silent = true;
                    return;
                }
                Err(error) => error.to_string(),
            };
            if let Some(server) = self.slot(is_next).as_mut() {
                tracing::error!("server {}: {why}: it is killed", server.pid());
                server.kill();
                server.is_silent = true;
            }
        }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// What is wrong with it.
    fn on_message(&mut self, is_next: bool, message: Message) -> Result<(), &'static str> {
        let no_server = "is gone";
        let slot = if is_next {
            &mut self.next
        } else {
            &mut self.current
        };
        let server = slot.as_mut().ok_or(no_server)?;
        match (message, server.stage) {
            (Message::Failed(failure), _) => server.failure = Some(failure),
            (Message::Keep(held), Stage::Mounts) if self.held.is_none() => {
                self.held = Some(held);
                server
                    .send(&Outgoing::Kept)
                    .map_err(|_| "does not listen")?;
            }
            (Message::Live(text), Stage::Mounts) if self.held.is_some() => {
                server.stage = Stage::Serves;
                self.is_live = true;
                self.not_before = Instant::now();
                self.report_live(&text);
            }
            (Message::Ready, Stage::Reads) => {
                server.stage = Stage::Waits;
                server.deadline = None;
                if server.purpose == Purpose::Upgrade {
                    self.take_turns();
                }
            }
            // The first one says so after `Live`.
            (Message::Serving(threads), Stage::Serves) if server.witnesses.is_empty() => {
                server.watch(threads);
            }
            (Message::Serving(threads), Stage::Opens) => {
                server.watch(threads);
                server.stage = Stage::Serves;
                server.deadline = None;
                self.program = Rc::clone(&server.program);
                (self.not_before, self.last) = (Instant::now(), None);
                if let Some(signal) = self.ending {
                    server.signal(signal);
                }
                tracing::warn!(
                    "{}: server {} has taken over, {} ms after the end of the one before",
                    self.invocation.mountpoint.display(),
                    server.pid(),
                    self.since.elapsed().as_millis()
                );
            }
            (Message::Leaves, Stage::Serves | Stage::Syncs | Stage::Opens) => server.leaves = true,
            (Message::Synced, Stage::Syncs) => self.replace(),
            // Late, from one that is killed meanwhile, or stays.
            (Message::Synced | Message::Leaves, Stage::Replaced | Stage::Late) => {}
            (Message::Synced, Stage::Serves) => {}
            (Message::Serving(_), Stage::Late) => {}
            _ => return Err("sends a message out of turn"),
        }
        Ok(())
    }

    fn report_live(&self, text: &str) {
        if self.invocation.process == ServerProcess::Foreground {
            daemon::tell(text);
            let (region, place) = (&self.invocation.region, &self.invocation.mountpoint);
            notify::ready(&format!(
                "serves {} on {}, by a server that may die",
                region.display(),
                place.display()
            ));
        } else if let Err(error) = daemon::report_live(text) {
            // The parent has exited; the mount is live regardless.
            tracing::warn!("cannot report that the mount is live: {error}");
        }
    }

    /// Starts the next server, of the program that serves or has served.
    fn start_next(&mut self) {
        match self.started(&Rc::clone(&self.program), Purpose::Standby) {
            Ok(server) => self.next = Some(server),
            Err(error) => {
                tracing::warn!("the next server cannot be started: {error}");
                self.last = Some(error.to_string());
                self.pause();
            }
        }
    }

    fn started(&self, program: &Rc<Program>, purpose: Purpose) -> io::Result<Server> {
        let mut server = (self.start)(program, self.held.as_ref(), purpose)?;
        server.deadline = Some(Instant::now() + self.limit);
        Ok(server)
    }

    /// Waits a while before the next server is started.
    fn pause(&mut self) {
        let pause = match self.is_out() {
            true => RETRY,
            false => STANDBY_RETRY,
        };
        self.not_before = Instant::now() + pause;
    }

    /// Lets the next server, which has read the state, replace the current one.
    fn take_turns(&mut self) {
        let Some(current) = &mut self.current else {
            return;
        };
        if current.stage != Stage::Serves {
            return;
        }
        current.stage = Stage::Syncs;
        current.deadline = Some(Instant::now() + SYNC);
        if current.send(&Outgoing::Sync).is_err() {
            self.replace();
        }
    }

    /// Kills the current server, for the next one, if that still waits.
    fn replace(&mut self) {
        let waits = |next: &Server| {
            next.stage == Stage::Waits && next.purpose == Purpose::Upgrade && !next.is_dead()
        };
        let is_ready = self.next.as_ref().is_some_and(waits);
        let Some(current) = &mut self.current else {
            return;
        };
        current.deadline = None;
        if !is_ready {
            current.stage = Stage::Serves;
            if let Err(error) = current.send(&Outgoing::Stays) {
                // Its end follows.
                tracing::debug!("server {}: {error}", current.pid());
            }
            return;
        }
        current.stage = Stage::Replaced;
        current.kill();
        self.since = Instant::now();
    }

    /// Makes the next server, which waits, the current one.
    fn promote(&mut self) {
        let Some(mut server) = self.next.take() else {
            return;
        };
        server.stage = Stage::Opens;
        server.deadline = (!self.is_of_program(&server)).then(|| self.half());
        if let Err(error) = server.send(&Outgoing::Go) {
            // Its end follows.
            tracing::debug!("server {}: {error}", server.pid());
        }
        self.current = Some(server);
    }

    /// Whether a server runs the program that has served before.
    fn is_of_program(&self, server: &Server) -> bool {
        Rc::ptr_eq(&server.program, &self.program)
    }

    /// Starts a server of the program that has the path of this one now.
    fn upgrade(&mut self) {
        let serves = |server: &Server| server.stage == Stage::Serves;
        let upgrades = |server: &Server| server.purpose == Purpose::Upgrade;
        let is_quiet =
            self.current.as_ref().is_some_and(serves) && !self.next.as_ref().is_some_and(upgrades);
        if !is_quiet || self.ending.is_some() {
            tracing::warn!("SIGHUP is ignored: no server serves, or it is being replaced");
            return;
        }
        let started = Program::at(&self.path)
            .and_then(|program| self.started(&Rc::new(program), Purpose::Upgrade));
        match started {
            Ok(server) => {
                tracing::info!("SIGHUP: server {} is to take over", server.pid());
                if let Some(mut standby) = self.next.replace(server) {
                    standby.kill();
                    self.dying.push(standby);
                }
            }
            Err(error) => tracing::error!(
                "SIGHUP: {} cannot be started, so the server stays: {error}",
                self.path.display()
            ),
        }
    }
}

/// Whether no thread of a server that serves or was killed can do anything any more. The end of
/// its process may be long after that.
fn dies(server: &mut Server) -> bool {
    let killed = matches!(server.stage, Stage::Replaced | Stage::Late);
    if !killed && !matches!(server.stage, Stage::Serves | Stage::Syncs) {
        return false;
    }
    let mut threads = server.witnesses.iter();
    if server.dies_since.is_none() && threads.any(|thread| is_readable(thread.as_fd())) {
        server.dies_since = Some(Instant::now());
        tracing::debug!("server {}: a thread has ended", server.pid());
    }
    match server.dies_since {
        Some(since) if since.elapsed() > DYING => {
            // Whatever it was: its process tells by its end.
            server.witnesses.clear();
            server.dies_since = None;
            false
        }
        Some(_) => death::is_certain(server.pid()),
        None => false,
    }
}

/// Returns the next signal that was received, if there is one.
fn received(signals: &UnixStream) -> Option<Signal> {
    let mut byte = [0];
    match rustix::io::read(signals, &mut byte) {
        Ok(1) => Signal::from_named_raw(byte[0].into()),
        _ => None,
    }
}
