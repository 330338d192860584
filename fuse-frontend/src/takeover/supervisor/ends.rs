//! Ends of servers, and of the mount.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use super::{Ended, MINUTE, Supervisor};
use crate::cli::ServerProcess;
use crate::daemon;
use crate::exit::{Failure, Status};
use crate::takeover::child::{Purpose, Server, Stage};
use crate::takeover::ending;

impl Supervisor<'_> {
    /// A stage has lasted too long.
    pub(super) fn on_deadline(&mut self, is_next: bool) {
        let Some(server) = self.slot(is_next).as_mut() else {
            return;
        };
        server.deadline = None;
        match server.stage {
            Stage::Syncs => {
                tracing::warn!("server {} does not write back in time", server.pid());
                self.replace();
            }
            Stage::Opens => {
                server.stage = Stage::Late;
                server.failure = Some(Failure::system("it does not serve in time"));
                server.kill();
            }
            _ => {
                if let Some(server) = self.slot(is_next).take() {
                    self.discard(server, "it does not say in time that it is ready");
                }
            }
        }
    }

    /// Gives up the next server, which has done nothing yet.
    pub(super) fn discard(&mut self, mut server: Server, why: &str) {
        server.kill();
        self.on_end_of_next(&server, why);
        self.dying.push(server);
    }

    /// The next server has ended, or will not be ready.
    pub(super) fn on_end_of_next(&mut self, server: &Server, how: &str) {
        let pid = server.pid();
        let stays = match self.current {
            Some(_) => "the one before stays",
            None => "the program before goes on",
        };
        match (server.purpose, server.stage) {
            (Purpose::Upgrade, _) => {
                tracing::error!("server {pid} cannot take over, and {stays}: {how}");
                self.not_before = Instant::now();
            }
            // It has died with the one before.
            (_, Stage::Waits) if self.current.is_none() => {
                tracing::warn!("server {pid}, which stood by, has ended ({how})");
                self.not_before = Instant::now();
            }
            _ => {
                tracing::warn!(
                    "server {pid}, which stood by, has ended ({how}): another one is started"
                );
                self.pause();
            }
        }
        self.last = Some(how.to_owned());
    }

    /// A server has ended, or cannot do anything any more.
    pub(super) fn on_end(
        &mut self,
        is_next: bool,
        mut server: Server,
        status: Option<ExitStatus>,
    ) -> Option<Ended> {
        if !self.is_live {
            return Some(Err(self.not_mounted(&mut server, status)));
        }
        let how = match (&server.failure, status) {
            (Some(failure), _) => failure.to_string(),
            (None, Some(status)) => daemon::how_it_ended(status),
            (None, None) => "was killed".to_owned(),
        };
        let (pid, stage) = (server.pid(), server.stage);
        let is_of_program = self.is_of_program(&server);
        if is_next {
            self.on_end_of_next(&server, &how);
        }
        // Its process may end later.
        self.dying.push(server);
        if is_next || stage == Stage::Replaced {
            return None;
        }
        self.not_before = Instant::now();
        if status.is_some_and(|status| status.success()) {
            self.end_all();
            return Some(Ok(()));
        }
        let served = matches!(stage, Stage::Serves | Stage::Syncs);
        if served {
            self.since = Instant::now();
        } else {
            self.last = Some(how.clone());
        }
        if !served && !is_of_program {
            // An upgrade that failed late: the program before may still serve.
            tracing::error!("server {pid} has not taken over: {how}");
            return None;
        }
        if !served && status.is_some_and(|status| status.signal().is_none()) {
            return Some(self.give_up(&format!("server {pid} cannot go on: {how}")));
        }
        tracing::error!(
            "{}: server {pid} has died: {how}; the next one takes over",
            self.invocation.mountpoint.display()
        );
        let now = Instant::now();
        self.deaths.push_back(now);
        while self.deaths.front().is_some_and(|at| now - *at > MINUTE) {
            self.deaths.pop_front();
        }
        if self.deaths.len() >= self.invocation.settings.takeover_deaths {
            let deaths = self.deaths.len();
            return Some(self.give_up(&format!("{deaths} servers have died within a minute")));
        }
        None
    }

    /// Returns why the first server has not mounted the region.
    pub(super) fn not_mounted(&self, server: &mut Server, status: Option<ExitStatus>) -> Failure {
        let failure = server.failure.take();
        let failure = failure.unwrap_or_else(|| match status {
            Some(status) => daemon::ended_early(status),
            None => Failure::mount("the server process was killed before the mount was live"),
        });
        if self.invocation.process != ServerProcess::Foreground {
            daemon::report_failure(&failure);
        }
        failure
    }

    /// Kills the servers that are left.
    pub(super) fn end_all(&mut self) {
        let left = [self.current.take(), self.next.take()];
        ending::end(left.into_iter().flatten().chain(self.dying.drain(..)));
    }

    /// Ends the connection, so that programs get errors instead of waiting.
    pub(super) fn give_up(&mut self, why: &str) -> Ended {
        if let Some(held) = self.held.take() {
            ending::abort(held);
        }
        self.end_all();
        let (region, point) = (
            self.invocation.region.display(),
            self.invocation.mountpoint.display(),
        );
        let message = format!(
            "{point}: {why}: the connection is closed, and programs that use the mount get ENOTCONN; unmount {point}, check the region (fsck.pramfs {region}), and mount it again"
        );
        tracing::error!("{message}");
        Err(Failure {
            status: Status::System,
            message,
        })
    }
}
