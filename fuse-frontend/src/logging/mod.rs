//! Logging: to standard error in the foreground, to the system log in the background.
//! By default the log has mounts, recoveries, unmounts, damage, and events that need
//! an administrator.
//!
//! Like syslog(3), the server sends one datagram for each line to `/dev/log`. If that
//! socket does not exist, the lines are lost; `datagrams` counts them.
//!
//! Under systemd, standard error is a stream to the journal: then entries go to the journal
//! itself, with fields (`journal`).

mod datagrams;
mod journal;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pramfs_control::LogLevel;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use datagrams::{Datagrams, notice};
use journal::Journal;

/// Environment variable with the filter, in the syntax of `tracing`.
const FILTER: &str = "PRAMFS_LOG";
const SOCKET: &str = "/dev/log";
/// syslog's facility "daemon".
const DAEMON: u8 = 3;
/// Longest text of a line, in bytes. The rest is cut off: a datagram has a limit.
const LONGEST: usize = 1 << 16;

fn filter(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 | 1 => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    filter_of(level.name())
}

/// The filter of the environment, or that of a level.
fn filter_of(level: &str) -> EnvFilter {
    EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(directives(level)))
}

/// The filter of a level. `fuser` logs every request; our own lines say more. What the crates of
/// rust-vmm log is left out, whatever the level: a guest could fill the log.
fn directives(level: &str) -> String {
    format!("{level},fuser=error,virtio_queue=off,vhost=off,vhost_user_backend=error")
}

type Filter = reload::Layer<EnvFilter, Registry>;

/// Where the log goes, and what changes its level.
struct Running {
    to: &'static str,
    filter: reload::Handle<EnvFilter, Registry>,
    lines: Option<Arc<Datagrams>>,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Starts logging to a layer, and lets [`set_level`] change the level. `lines` counts what is lost.
fn start<L>(to: &'static str, filter: EnvFilter, layer: L, lines: Option<Arc<Datagrams>>)
where
    L: Layer<Layered<Filter, Registry>> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter).with(layer);
    // Fails only if an embedding program has set up logging.
    if let Err(error) = registry.try_init() {
        tracing::debug!("logging is set up already: {error}");
        return;
    }
    let _first = RUNNING.set(Running {
        to,
        filter: handle,
        lines,
    });
}

/// Logs what has this level, from now on.
///
/// # Errors
/// Why that is impossible.
pub fn set_level(level: LogLevel) -> Result<(), String> {
    let running = RUNNING
        .get()
        .ok_or("the program that contains this server has set up its log")?;
    let reloaded = running
        .filter
        .reload(EnvFilter::new(directives(level.name())));
    reloaded.map_err(|error| format!("the level of the log cannot be changed: {error}"))
}

/// Returns the filter in force, where the log goes, and how many lines of this process it did not
/// take.
pub fn in_force() -> (String, &'static str, u64) {
    let Some(running) = RUNNING.get() else {
        return (String::new(), "", 0);
    };
    let filter = running.filter.with_current(ToString::to_string);
    let lost = running.lines.as_ref().map_or(0, |lines| lines.lost());
    (filter.unwrap_or_default(), running.to, lost)
}

/// Starts logging to standard error; to the journal, with fields, if that is standard error.
/// `fields` go with each entry there.
pub fn to_stderr(verbose: u8, fields: &[(&'static str, &Path)]) {
    if is_journal(rustix::stdio::stderr()) {
        let lines = Datagrams::to(Path::new(journal::SOCKET));
        match lines.and_then(|lines| lines.reach().map(|()| Arc::new(lines))) {
            Ok(lines) => {
                let layer = Journal::new(Arc::clone(&lines), fields);
                return start("journal", filter(verbose), layer, Some(lines));
            }
            Err(error) => {
                start_to_stderr(filter(verbose));
                tracing::warn!("the journal gets lines without fields: {error}");
                return;
            }
        }
    }
    start_to_stderr(filter(verbose));
}

/// Starts logging to standard error, by the name of a level.
pub fn to_stderr_at(level: &str) {
    start_to_stderr(filter_of(level));
}

/// Whether a descriptor is a stream to the journal, by what systemd says of it (see
/// systemd.exec(5)).
fn is_journal(fd: impl AsFd) -> bool {
    let (Some(said), Ok(stat)) = (std::env::var_os("JOURNAL_STREAM"), rustix::fs::fstat(fd)) else {
        return false;
    };
    said.to_str() == Some(&format!("{}:{}", stat.st_dev, stat.st_ino))
}

fn start_to_stderr(filter: EnvFilter) {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    start("stderr", filter, layer, None);
}

/// Starts logging to the system log.
pub fn to_syslog(verbose: u8) {
    // Without a socket there is nobody to tell that.
    let Ok(lines) = Datagrams::to(Path::new(SOCKET)).map(Arc::new) else {
        return;
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(SystemLog(Arc::clone(&lines)))
        .with_ansi(false)
        .with_target(false)
        .with_level(false)
        .without_time();
    start("syslog", filter(verbose), layer, Some(lines));
}

/// Sends panics to the log.
pub fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        tracing::error!("{panic}\n{trace}");
    }));
}

struct SystemLog(Arc<Datagrams>);

/// One line, sent when it is complete.
struct Line<'a> {
    lines: &'a Datagrams,
    level: Level,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            lines: &self.0,
            level: Level::INFO,
            text: Vec::new(),
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        let mut line = self.make_writer();
        line.level = *meta.level();
        line
    }
}

/// The severity in syslog(3).
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// A datagram for `/dev/log`.
fn datagram(level: Level, text: &[u8]) -> Vec<u8> {
    let priority = DAEMON * 8 + severity(level);
    let mut line = format!("<{priority}>mount.pramfs[{}]: ", std::process::id()).into_bytes();
    line.extend_from_slice(&text[..text.len().min(LONGEST)]);
    line
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let text = self.text.trim_ascii();
        if !text.is_empty() {
            self.lines.send(&datagram(self.level, text), |lost| {
                datagram(Level::WARN, notice(lost).as_bytes())
            });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use pramfs::Clock;
    use pramfs::inode::Time;

    use super::*;

    /// A clock that stands still.
    #[derive(Debug)]
    pub(crate) struct Still;

    impl Clock for Still {
        fn now(&self) -> Time {
            Time { sec: 1, nsec: 0 }
        }
    }

    /// Keeps all lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns what this thread logs meanwhile, by default.
    pub(crate) fn lines_of(work: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || to.clone())
            .with_ansi(false);
        let filter = EnvFilter::new(directives("info"));
        let log = tracing_subscriber::registry().with(filter).with(layer);
        tracing::subscriber::with_default(log, work);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn filter_of_every_level_leaves_out_what_a_guest_provokes_in_crates() {
        for level in ["error", "info", "debug", "trace"] {
            let filter = EnvFilter::new(directives(level)).to_string();
            for crates in ["virtio_queue=off", "vhost=off", "vhost_user_backend=error"] {
                assert!(filter.contains(crates), "{filter}");
            }
        }
    }
}
