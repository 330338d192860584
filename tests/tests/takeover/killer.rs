//! Kills the server of a mount again and again.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::random::Random;
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal};

/// Pauses between two deaths, in milliseconds. The next server has to serve before it dies:
/// two deaths over one request are its end.
const PAUSE: std::ops::Range<u64> = 60..160;

/// The processes of a mount.
pub struct Killer<'m> {
    mount: &'m Mounted,
    supervisor: Pid,
}

/// Attempts to meet a request.
const ATTEMPTS: u32 = 100;

/// Stops a server in the middle of a request, if that succeeds: at any instruction of it, as a
/// death would meet it.
fn stop_in_request(server: Pid, random: &mut Random) {
    let tasks = format!("/proc/{}/task", server.as_raw_nonzero());
    let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
    let tasks: Vec<PathBuf> = tasks.map(|task| task.path()).collect();
    let stands = |task: &PathBuf| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        // Or it has ended.
        let state = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('T'));
        state.unwrap_or(true)
    };
    // Not in a system call: it does not wait for a request.
    let serves = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("fuse-dev"))
            && fs::read_to_string(task.join("syscall")).is_ok_and(|call| call.starts_with("-1"))
    };
    for _ in 0..ATTEMPTS {
        rustix::process::kill_process(server, Signal::STOP).unwrap();
        assert!(wait_until(|| tasks.iter().all(stands)));
        if tasks.iter().any(serves) {
            return;
        }
        rustix::process::kill_process(server, Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(500)));
    }
}

impl<'m> Killer<'m> {
    /// Finds the supervisor.
    pub fn of(mount: &'m Mounted) -> Killer<'m> {
        let supervisor = mount.supervisor();
        Killer { mount, supervisor }
    }

    /// The server, if one lives.
    fn server(&self) -> Option<Pid> {
        match self.mount.serving()[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Kills the process that would replace the server.
    fn kill_standby(&self, server: Pid) {
        let mut others = self.mount.supervised();
        others.retain(|one| *one != server);
        for other in others {
            // It may have ended, or be the next server by now.
            let _gone = rustix::process::kill_process(other, Signal::KILL);
        }
    }

    /// Kills so many servers. Returns how many it has killed.
    pub fn kill(&self, count: u64, seed: u64) -> u64 {
        let mut random = Random::new(seed);
        let mut killed = 0;
        let mut last = None;
        while killed < count {
            assert!(
                wait_until(|| self.server().is_some_and(|one| Some(one) != last)),
                "no server after {killed} deaths"
            );
            // It answers: otherwise the same request might meet two deaths. The kernel never caches
            // the answer to this one.
            statvfs(self.mount.path()).unwrap();
            let pause = PAUSE.start + random.below(PAUSE.end - PAUSE.start);
            std::thread::sleep(Duration::from_micros(pause * 1000 + random.below(1000)));
            if let Some(server) = self.server() {
                if random.one_in(8) {
                    self.kill_standby(server);
                }
                // Some die wherever they are: in a read of the device, in a reply, at rest.
                if !random.one_in(3) {
                    stop_in_request(server, &mut random);
                }
                rustix::process::kill_process(server, Signal::KILL).unwrap();
                last = Some(server);
                killed += 1;
            }
        }
        // The last one is replaced, too.
        fs::read_dir(self.mount.path()).unwrap().count();
        killed
    }

    /// Kills the supervisor.
    pub fn kill_supervisor(&self) {
        rustix::process::kill_process(self.supervisor, Signal::KILL).unwrap();
        // The one that stands by has nobody to wait for.
        assert!(wait_until(|| self.mount.processes().len() == 1));
    }
}
