//! Logging: to standard error in the foreground, to the system log in the background.
//! By default the log has mounts, recoveries, unmounts, damage, and events that need
//! an administrator.
//!
//! Like syslog(3), the server sends one datagram for each line to `/dev/log`. If that
//! socket does not exist, the lines are lost.

use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Environment variable with the filter, in the syntax of `tracing`.
const FILTER: &str = "PRAMFS_LOG";
const SOCKET: &str = "/dev/log";
/// syslog's facility "daemon".
const DAEMON: u8 = 3;

fn filter(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 | 1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    // `fuser` logs every request; our own lines say more.
    let default = format!("{level},fuser=error");
    EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(default))
}

/// Starts logging to standard error.
pub fn to_stderr(verbose: u8) {
    start_to_stderr(filter(verbose));
}

/// Starts logging to standard error, by the name of a level. What the crates of rust-vmm log is
/// left out: a guest could fill the log.
pub fn to_stderr_at(level: &str) {
    let default = format!("{level},virtio_queue=off,vhost=off,vhost_user_backend=error");
    start_to_stderr(EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(default)));
}

fn start_to_stderr(filter: EnvFilter) {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    // Fails only if an embedding program has set up logging.
    if let Err(error) = subscriber.try_init() {
        tracing::debug!("logging is set up already: {error}");
    }
}

/// Starts logging to the system log.
pub fn to_syslog(verbose: u8) {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_writer(SystemLog)
        .with_ansi(false)
        .with_target(false)
        .with_level(false)
        .without_time();
    if let Err(error) = subscriber.try_init() {
        tracing::debug!("logging is set up already: {error}");
    }
}

/// Sends panics to the log.
pub fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        tracing::error!("{panic}\n{trace}");
    }));
}

struct SystemLog;

/// One line, sent when it is complete.
struct Line {
    priority: u8,
    text: Vec<u8>,
}

impl MakeWriter<'_> for SystemLog {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line {
            priority: priority(Level::INFO),
            text: Vec::new(),
        }
    }

    fn make_writer_for(&self, meta: &Metadata<'_>) -> Line {
        Line {
            priority: priority(*meta.level()),
            text: Vec::new(),
        }
    }
}

fn priority(level: Level) -> u8 {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    DAEMON * 8 + severity
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = self.text.trim_ascii();
        if text.is_empty() {
            return;
        }
        let mut line =
            format!("<{}>mount.pramfs[{}]: ", self.priority, std::process::id()).into_bytes();
        line.extend_from_slice(text);
        // A failure to reach the log cannot be reported anywhere.
        if let Ok(socket) = UnixDatagram::unbound() {
            let _lost = socket
                .set_nonblocking(true)
                .and_then(|()| socket.send_to(&line, SOCKET));
        }
    }
}
