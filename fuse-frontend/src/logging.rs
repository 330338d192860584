//! Logging: to standard error in the foreground, to the system log in the background.
//! By default the log has mounts, recoveries, unmounts, damage, and events that need
//! an administrator.
//!
//! Like syslog(3), the server sends one datagram for each line to `/dev/log`. If that
//! socket does not exist, the lines are lost.
//!
//! Under systemd, standard error is a stream to the journal: then entries go to the journal
//! itself, with fields.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

use pramfs_control::LogLevel;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// Environment variable with the filter, in the syntax of `tracing`.
const FILTER: &str = "PRAMFS_LOG";
const SOCKET: &str = "/dev/log";
/// syslog's facility "daemon".
const DAEMON: u8 = 3;

fn filter(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 | 1 => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(directives(level)))
}

/// The filter of a level.
fn directives(level: LogLevel) -> String {
    // `fuser` logs every request; our own lines say more.
    format!("{},fuser=error", level.name())
}

type Filter = reload::Layer<EnvFilter, Registry>;

/// Where the log goes, and what changes its level.
struct Running {
    to: &'static str,
    filter: reload::Handle<EnvFilter, Registry>,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Starts logging to a layer, and lets [`set_level`] change the level.
fn start<L>(to: &'static str, filter: EnvFilter, layer: L)
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
    let _first = RUNNING.set(Running { to, filter: handle });
}

/// Logs what has this level, from now on.
///
/// # Errors
/// Why that is impossible.
pub fn set_level(level: LogLevel) -> Result<(), String> {
    let running = RUNNING
        .get()
        .ok_or("the program that contains this server has set up its log")?;
    let reloaded = running.filter.reload(EnvFilter::new(directives(level)));
    reloaded.map_err(|error| format!("the level of the log cannot be changed: {error}"))
}

/// Returns the filter in force, and where the log goes.
pub fn in_force() -> (String, &'static str) {
    let Some(running) = RUNNING.get() else {
        return (String::new(), "");
    };
    let filter = running.filter.with_current(ToString::to_string);
    (filter.unwrap_or_default(), running.to)
}

/// Starts logging to standard error; to the journal, with fields, if that is standard error.
/// `fields` go with each entry there.
pub fn to_stderr(verbose: u8, fields: &[(&'static str, &Path)]) {
    if is_journal(rustix::stdio::stderr()) {
        match tracing_journald::layer() {
            Ok(journal) => return start_to_journal(filter(verbose), journal, fields),
            Err(error) => {
                start_to_stderr(filter(verbose));
                tracing::warn!("the journal gets lines without fields: {error}");
                return;
            }
        }
    }
    start_to_stderr(filter(verbose));
}

/// Starts logging to standard error, by the name of a level. What the crates of rust-vmm log is
/// left out: a guest could fill the log.
pub fn to_stderr_at(level: &str) {
    let default = format!("{level},virtio_queue=off,vhost=off,vhost_user_backend=error");
    start_to_stderr(EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(default)));
}

/// Whether a descriptor is a stream to the journal, by what systemd says of it (see
/// systemd.exec(5)).
fn is_journal(fd: impl AsFd) -> bool {
    let (Some(said), Ok(stat)) = (std::env::var_os("JOURNAL_STREAM"), rustix::fs::fstat(fd)) else {
        return false;
    };
    said.to_str() == Some(&format!("{}:{}", stat.st_dev, stat.st_ino))
}

fn start_to_journal(
    filter: EnvFilter,
    journal: tracing_journald::Layer,
    fields: &[(&'static str, &Path)],
) {
    let fields = fields
        .iter()
        .map(|(name, path)| (*name, path.as_os_str().as_bytes()));
    let journal = journal
        .with_syslog_identifier("mount.pramfs".to_owned())
        .with_field_prefix(Some("PRAMFS".to_owned()))
        .with_custom_fields(fields);
    start("journal", filter, journal);
}

fn start_to_stderr(filter: EnvFilter) {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    start("stderr", filter, layer);
}

/// Starts logging to the system log.
pub fn to_syslog(verbose: u8) {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(SystemLog)
        .with_ansi(false)
        .with_target(false)
        .with_level(false)
        .without_time();
    start("syslog", filter(verbose), layer);
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
