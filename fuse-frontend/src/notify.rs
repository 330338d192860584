//! What systemd is told of a mount whose server is a service (`Type=notify`): that it is live, how
//! it is, that it ends, and that it still works (`WatchdogSec=`).
//!
//! systemd names its socket in the environment. Only a server in the foreground keeps these
//! variables ([`environment`](crate::privileges::environment)), so that nothing is sent by the
//! processes that it starts, or by a mount in the background that a service makes for itself.
//!
//! A message that cannot be sent is logged, and changes nothing.

use std::sync::Weak;
use std::time::{Duration, Instant};

use pramfs::inode::{Fs, Ino};
use sd_notify::NotifyState;

/// Variables that name the service manager's socket, and the watchdog.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Longest text that is sent, bytes.
const MAX_TEXT: usize = 1024;

/// Says that the mount is live.
pub fn ready(text: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(text))]);
}

/// Says how the mount is.
pub fn status(text: &str) {
    send(&[NotifyState::Status(&one_line(text))]);
}

/// Says that the mount ends.
pub fn stopping(text: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(&one_line(text))]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd was not told of the mount: {error}");
    }
}

/// The protocol has a line for each word: a text with line ends would add words of its own.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty()) {
        if !line.is_empty() {
            line.push_str("; ");
        }
        line.extend(part.chars().filter(|c| !c.is_control()));
    }
    let mut end = line.len().min(MAX_TEXT);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

/// When systemd is told that this process still works.
#[derive(Debug)]
pub struct Watchdog {
    period: Duration,
    due: Instant,
}

impl Watchdog {
    /// That of this service, if it has one.
    pub fn of_service() -> Option<Watchdog> {
        let period = sd_notify::watchdog_enabled()? / 3;
        (!period.is_zero()).then(|| Watchdog {
            period,
            due: Instant::now(),
        })
    }

    /// When to call [`tell`](Self::tell) again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Tells systemd, if it is time to.
    pub fn tell(&mut self) {
        if self.due <= Instant::now() {
            send(&[NotifyState::Watchdog]);
            self.due = Instant::now() + self.period;
        }
    }
}

/// Tells the watchdog of this service that the engine answers, as long as it does.
pub fn watch(fs: Weak<Fs>) {
    let Some(mut watchdog) = Watchdog::of_service() else {
        return;
    };
    let work = move || {
        loop {
            {
                let Some(fs) = fs.upgrade() else { return };
                // An error is an answer too.
                let _ = fs.getattr(Ino::ROOT);
            }
            watchdog.tell();
            std::thread::sleep(watchdog.due().saturating_duration_since(Instant::now()));
        }
    };
    let started = std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(work);
    if let Err(error) = started {
        tracing::warn!("systemd's watchdog will end the mount: no thread for it: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_many_lines_is_one_line() {
        for (text, line) in [
            ("live", "live"),
            ("a\n  b\n\nREADY=1\n", "a; b; READY=1"),
            ("\u{1b}[2J", "[2J"),
        ] {
            assert_eq!(one_line(text), line);
        }
        assert_eq!(one_line(&"\u{fc}".repeat(900)).len(), MAX_TEXT);
    }
}
