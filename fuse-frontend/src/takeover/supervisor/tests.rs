//! The supervisor with processes that only sleep. The tests speak for them.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::cli::{self, Request};
use crate::takeover::messages::Channel;

/// Longer than anything takes on a loaded machine. For so long there may be no server here, unless
/// a test waits for the end of that time.
const LONG: Duration = Duration::from_secs(60);

/// The limit of a test that waits for its end.
const SOON: Duration = Duration::from_millis(600);

/// The other ends of what was started.
#[derive(Default)]
struct Started {
    channels: RefCell<Vec<Channel>>,
    /// How many starts fail.
    to_fail: Cell<usize>,
}

impl Started {
    fn count(&self) -> usize {
        self.channels.borrow().len()
    }

    /// The server that was started last says this.
    fn say(&self, message: &Outgoing<'_>) {
        self.channels
            .borrow()
            .last()
            .unwrap()
            .send(message)
            .unwrap();
    }

    fn start(&self, program: &Rc<Program>, purpose: Purpose) -> io::Result<Server> {
        if let Some(left) = self.to_fail.get().checked_sub(1) {
            self.to_fail.set(left);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (ours, theirs) = Channel::pair()?;
        self.channels.borrow_mut().push(theirs);
        let child = Command::new("sleep")
            .arg("100")
            .stdin(Stdio::null())
            .spawn()?;
        Server::of(child, ours, program, Stage::Reads, purpose)
    }
}

struct Supervised<'a> {
    supervisor: Supervisor<'a>,
    started: Rc<Started>,
    signals: UnixStream,
    is_over: Arc<AtomicBool>,
}

impl Drop for Supervised<'_> {
    fn drop(&mut self) {
        self.supervisor.end_all();
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn invocation() -> Box<Invocation> {
    let line = "mount.pramfs /region /mnt -o takeover=on";
    match cli::read(line.split(' ').map(OsString::from)).unwrap() {
        Request::Run(invocation) => invocation,
        Request::Say(text) => panic!("{text}"),
    }
}

fn program() -> Program {
    Program::own(Path::new("/proc/self/exe")).unwrap()
}

impl<'a> Supervised<'a> {
    /// A server serves, and another one reads the state.
    fn new(invocation: &'a Invocation) -> Supervised<'a> {
        let started = Rc::new(Started::default());
        let starts = Rc::clone(&started);
        let start = Box::new(move |program: &Rc<Program>, _: Option<&Held>, purpose| {
            starts.start(program, purpose)
        });
        let mut supervisor = Supervisor::new(invocation, start, "/proc/self/exe".into(), program());
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        supervisor.held = Some(Held {
            channels: vec![null()],
            memory: [null(), null()],
            region: None,
            minor: 0,
            state: Vec::new(),
        });
        let first = supervisor.started(&Rc::clone(&supervisor.program), Purpose::Mount);
        let mut first = first.unwrap();
        (first.stage, first.deadline) = (Stage::Serves, None);
        supervisor.current = Some(first);
        (supervisor.is_live, supervisor.limit) = (true, LONG);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        // So that each step ends.
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let _full = rustix::io::write(&theirs, &[0]);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut all = Supervised {
            supervisor,
            started,
            signals: ours,
            is_over,
        };
        all.until(|s| s.next.is_some());
        all
    }

    /// Goes on until something is so. Returns how it has ended, if that comes before.
    fn run(&mut self, is_so: impl Fn(&Supervisor<'_>) -> bool) -> Option<String> {
        let begun = Instant::now();
        while !is_so(&self.supervisor) {
            assert!(begun.elapsed() < LONG, "nothing happens");
            if let Some(ended) = self.supervisor.step(&self.signals) {
                return Some(ended.map_or_else(|failure| failure.message, |()| String::new()));
            }
        }
        None
    }

    fn until(&mut self, is_so: impl Fn(&Supervisor<'_>) -> bool) {
        assert_eq!(self.run(is_so), None);
    }

    fn until_end(&mut self) -> String {
        self.run(|_| false).unwrap()
    }

    /// There is no time left but a moment.
    fn hurry(&mut self) {
        self.supervisor.limit = SOON;
        if let Some(next) = &mut self.supervisor.next {
            let soon = Instant::now() + SOON;
            next.deadline = next.deadline.map(|at| at.min(soon));
        }
    }

    /// The next server says that it can read the state.
    fn stands_by(&mut self) {
        self.started.say(&Outgoing::Ready);
        self.until(|s| {
            s.next
                .as_ref()
                .is_some_and(|next| next.stage == Stage::Waits)
        });
    }

    fn kill_current(&mut self) {
        self.supervisor
            .current
            .as_mut()
            .unwrap()
            .signal(Signal::KILL);
    }

    /// The server that was started last serves, and another one is started.
    fn takes_over(&mut self) {
        self.until(|s| is_in(s, Stage::Opens));
        let count = self.started.count();
        self.started.say(&Outgoing::Serving([0, 0]));
        self.until(|s| is_in(s, Stage::Serves) && s.next.is_some());
        assert_eq!(self.started.count(), count + 1);
    }

    /// A server of another program is started, and may take its turn.
    fn upgrade(&mut self) {
        self.supervisor.upgrade();
        self.stands_by();
        self.until(|s| is_in(s, Stage::Syncs));
        // The one that is replaced may write back for as long as the test takes.
        let current = self.supervisor.current.as_mut().unwrap();
        assert!(current.deadline.take().is_some());
    }
}

fn is_in(supervisor: &Supervisor<'_>, stage: Stage) -> bool {
    supervisor
        .current
        .as_ref()
        .is_some_and(|server| server.stage == stage)
}

#[test]
fn standby_takes_over_after_death() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    for _ in 0..3 {
        all.stands_by();
        all.kill_current();
        all.takes_over();
    }
    assert_eq!(all.supervisor.deaths.len(), 3);
}

/// The signal that ends the current server, which does not handle any.
fn ends_by(all: &mut Supervised<'_>) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    let mut current = all.supervisor.current.take().unwrap();
    current.wait().unwrap().signal()
}

#[test]
fn sigusr1_is_passed_on_to_the_server_that_serves() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    all.supervisor.on_signal(Signal::USR1);
    all.run(|s| !s.state_is_asked);
    assert_eq!(ends_by(&mut all), Some(libc::SIGUSR1));
}

#[test]
fn sigusr1_between_two_servers_waits_for_the_next() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    all.stands_by();
    all.kill_current();
    all.until(|s| is_in(s, Stage::Opens));
    all.supervisor.on_signal(Signal::USR1);
    assert!(all.supervisor.step(&all.signals).is_none());
    assert!(all.supervisor.state_is_asked, "no server serves yet");
    all.started.say(&Outgoing::Serving([0, 0]));
    all.run(|s| !s.state_is_asked);
    assert_eq!(ends_by(&mut all), Some(libc::SIGUSR1));
}

#[test]
fn sigusr1_to_server_that_is_replaced_waits_for_the_next() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    all.upgrade();
    let replaced = all.supervisor.current.as_ref().unwrap().pid();
    all.supervisor.on_signal(Signal::USR1);
    assert!(all.supervisor.step(&all.signals).is_none());
    assert!(all.supervisor.state_is_asked, "it is about to be killed");
    all.started.channels.borrow()[0]
        .send(&Outgoing::Synced)
        .unwrap();
    all.until(|s| is_in(s, Stage::Opens));
    all.started.say(&Outgoing::Serving([0, 0]));
    all.run(|s| !s.state_is_asked);
    assert_ne!(all.supervisor.current.as_ref().unwrap().pid(), replaced);
    assert_eq!(ends_by(&mut all), Some(libc::SIGUSR1));
}

#[test]
fn upgrade_that_dies_before_the_end_of_the_replaced_one_is_replaced_itself() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    all.upgrade();
    // The kernel ends it later.
    all.supervisor.current.as_mut().unwrap().stage = Stage::Replaced;
    all.supervisor.since = Instant::now();
    all.supervisor.next.as_ref().unwrap().signal(Signal::KILL);
    all.until(|s| s.next.is_none());
    all.kill_current();
    all.until(|s| s.current.is_none() && s.next.is_some());
    all.started.say(&Outgoing::Ready);
    all.takes_over();
    assert_eq!(all.supervisor.deaths.len(), 0);
}

#[test]
fn server_stays_if_upgrade_dies_while_it_writes_back() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    all.upgrade();
    let pid = all.supervisor.current.as_ref().unwrap().pid();
    all.supervisor.next.as_ref().unwrap().signal(Signal::KILL);
    all.until(|s| s.next.is_none());
    all.started.channels.borrow()[0]
        .send(&Outgoing::Synced)
        .unwrap();
    all.until(|s| is_in(s, Stage::Serves) && s.next.is_some());
    assert_eq!(all.supervisor.current.as_ref().unwrap().pid(), pid);
    // It is told, so that its own death counts again.
    let channels = all.started.channels.borrow();
    while !matches!(channels[0].receive().unwrap(), Some(Message::Stays)) {}
}

#[test]
fn upgrade_that_does_not_serve_in_time_is_killed_and_program_before_goes_on() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    let before = Rc::clone(&all.supervisor.program);
    all.upgrade();
    all.started.channels.borrow()[0]
        .send(&Outgoing::Synced)
        .unwrap();
    all.until(|s| is_in(s, Stage::Opens));
    // The other half of the time is that of the program before.
    let half = all.supervisor.since + LONG / 2;
    let current = all.supervisor.current.as_mut().unwrap();
    assert_eq!(current.deadline, Some(half));
    // As if it were over.
    current.deadline = Some(Instant::now());
    all.until(|s| s.current.is_none() && s.next.is_some());
    all.started.say(&Outgoing::Ready);
    all.takes_over();
    assert!(Rc::ptr_eq(&all.supervisor.program, &before));
    let current = all.supervisor.current.as_ref().unwrap();
    assert!(Rc::ptr_eq(&current.program, &before));
}

#[test]
fn failed_start_is_tried_again_in_time() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    let begun = Instant::now();
    all.supervisor.next.as_ref().unwrap().signal(Signal::KILL);
    all.until(|s| s.next.is_none());
    // A standby is started later.
    assert!(all.supervisor.not_before >= begun + STANDBY_RETRY);
    all.supervisor.not_before = Instant::now();
    all.until(|s| s.next.is_some());
    all.started.to_fail.set(3);
    // Its end first: the current one's would make it the next to serve.
    all.supervisor.next.as_ref().unwrap().signal(Signal::KILL);
    all.until(|s| s.next.is_none());
    all.kill_current();
    all.until(|s| s.current.is_none() && s.next.is_some());
    assert_eq!(all.started.to_fail.get(), 0);
    all.started.say(&Outgoing::Ready);
    all.takes_over();

    all.started.to_fail.set(usize::MAX);
    all.supervisor.next.as_ref().unwrap().signal(Signal::KILL);
    all.until(|s| s.next.is_none());
    all.hurry();
    all.kill_current();
    let why = all.until_end();
    assert!(why.contains("no server was ready within"), "{why}");
    assert!(why.contains("out of memory"), "{why}");
}

#[test]
fn standby_that_dies_with_server_is_no_death() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    all.stands_by();
    all.kill_current();
    all.supervisor.next.as_ref().unwrap().signal(Signal::KILL);
    for server in [&all.supervisor.current, &all.supervisor.next] {
        let pidfd = &server.as_ref().unwrap().pidfd;
        let mut asked = [PollFd::new(pidfd, PollFlags::IN)];
        rustix::event::poll(&mut asked, None).unwrap();
    }
    all.until(|s| s.current.is_none() && s.next.is_some());
    all.started.say(&Outgoing::Ready);
    all.takes_over();
    assert_eq!(all.supervisor.deaths.len(), 1);
}

#[test]
fn no_server_in_time_ends_mount_whatever_hangs() {
    let invocation = invocation();
    // The one before does not end, although it was killed.
    let mut all = Supervised::new(&invocation);
    all.supervisor.current.as_mut().unwrap().stage = Stage::Replaced;
    all.supervisor.since = Instant::now();
    all.hurry();
    let why = all.until_end();
    assert!(why.contains("no server was ready within"), "{why}");
    // The next one does not read the state.
    let mut all = Supervised::new(&invocation);
    all.hurry();
    all.kill_current();
    let why = all.until_end();
    assert!(why.contains("no server was ready within"), "{why}");
    // It does not open the region.
    let mut all = Supervised::new(&invocation);
    all.stands_by();
    all.kill_current();
    all.until(|s| is_in(s, Stage::Opens));
    all.hurry();
    let why = all.until_end();
    assert!(why.contains("no server was ready within"), "{why}");
}

#[test]
fn each_death_counts_and_too_many_end_mount() {
    let invocation = invocation();
    let mut all = Supervised::new(&invocation);
    for _ in 0..4 {
        all.stands_by();
        all.kill_current();
        all.takes_over();
    }
    all.kill_current();
    let why = all.until_end();
    assert!(why.contains("5 servers have died within a minute"), "{why}");
    assert!(all.supervisor.held.is_none());
}
