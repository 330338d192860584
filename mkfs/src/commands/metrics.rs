//! `pramfs metrics`: the metrics of all live mounts over HTTP, for Prometheus.
//!
//! Two processes: the first one asks the servers over their control sockets, which takes root,
//! and speaks no HTTP. It starts the second one, which becomes another user, without rights, and
//! speaks HTTP. The only way between them is a pair of sockets: a byte asks for the metrics, and the
//! answer is their length and text. So HTTP enters neither a server of a mount nor a process of
//! root.

mod http;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::status::parted;
use super::{Subcommand, live, prometheus};
use crate::Failure;
use crate::failure::shown;

/// User and group of the process that speaks HTTP: nobody.
const NOBODY: u32 = 65_534;

/// Time for which collected metrics are cached. To collect them, each server makes a whole
/// document of its state for an answer, and any local user may ask over HTTP.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Metrics {
    /// Where to answer HTTP: ADDRESS:PORT (an IPv6 address in brackets), or unix:PATH
    #[arg(
        long,
        value_name = "ADDRESS:PORT|unix:PATH",
        default_value = "127.0.0.1:9842"
    )]
    listen: Listen,
    /// Allow an address that other machines can reach: there is no encryption and no password
    #[arg(long)]
    allow_remote: bool,
    /// User id, and group id, of the process that speaks HTTP, if root starts it
    #[arg(long, value_name = "UID", default_value_t = NOBODY,
          value_parser = clap::value_parser!(u32).range(1..))]
    user: u32,
    /// Speak HTTP: the process that `pramfs metrics` starts. Standard input is the pair of
    /// sockets, standard output what it listens on.
    #[arg(long, hide = true)]
    serve: bool,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match Path::new(path).is_absolute() {
                true => Ok(Listen::Unix(path.into())),
                false => Err("the path after unix: is not absolute".to_owned()),
            };
        }
        let tcp = text.parse().map_err(|_| {
            "neither ADDRESS:PORT, as in 127.0.0.1:9842 or [::1]:9842, nor unix:PATH".to_owned()
        })?;
        Ok(Listen::Tcp(tcp))
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "http://{address}/metrics"),
            Listen::Unix(path) => write!(f, "unix:{} (GET /metrics)", shown(path)),
        }
    }
}

impl Subcommand for Metrics {
    const NAME: &'static str = "metrics";
    const ABOUT: &'static str = "Serve the metrics of live mounts over HTTP, for Prometheus";

    fn run(&self) -> Result<(), Failure> {
        if self.serve {
            // A terminal and a service manager signal both processes. The first one ends, and
            // this one with it.
            for signal in [SIGTERM, SIGINT] {
                signal_hook::flag::register(signal, Arc::default())
                    .map_err(|e| Failure::os("cannot handle", "signals", e))?;
            }
            return http::serve(self.user, matches!(self.listen, Listen::Tcp(_)));
        }
        self.check()?;
        let listener = bind(&self.listen)?;
        let pair = UnixStream::pair();
        let (ours, theirs) =
            pair.map_err(|e| Failure::os("cannot make", "a pair of sockets", e))?;
        let mut child = self.start(listener, theirs)?;
        // With the end of the pair the child ends, too.
        let ended = end_at_signals(&ours);
        ended.map_err(|e| Failure::os("cannot handle", "signals", e))?;
        eprintln!("pramfs metrics: answering at {}", self.listen);
        let answered = answer(ours);
        if let Listen::Unix(path) = &self.listen {
            // Nobody listens there any more.
            let _gone = std::fs::remove_file(path);
        }
        let status = child
            .wait()
            .map_err(|e| Failure::os("cannot wait for", "the process that speaks HTTP", e))?;
        answered.map_err(|e| Failure::os("cannot answer", "the process that speaks HTTP", e))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(
                "os",
                format!("the process that speaks HTTP ended: {status}"),
            )),
        }
    }
}

impl Metrics {
    fn check(&self) -> Result<(), Failure> {
        if let Listen::Tcp(address) = &self.listen
            && !address.ip().is_loopback()
            && !self.allow_remote
        {
            return Err(Failure::usage(format!(
                "other machines could read the metrics at {address}, without encryption and password: listen on 127.0.0.1 or unix:PATH, behind a proxy, or give --allow-remote"
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new(
                "permission",
                "only root may ask the servers of mounts for their state: start it as root, or by its unit (pramfs-metrics.service); HTTP is spoken by a process of another user in any case",
            ));
        }
        Ok(())
    }

    /// Starts the process that speaks HTTP.
    fn start(&self, listener: OwnedFd, pair: UnixStream) -> Result<Child, Failure> {
        let program = std::env::current_exe();
        let program = program.map_err(|e| Failure::os("cannot find", "this program", e))?;
        let listen = match &self.listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(path) => format!("unix:{}", path.display()),
        };
        // It drops the rights itself, before anything else: the other user may not be able to
        // reach this program.
        let mut command = Command::new(program);
        command
            .arg0("pramfs-metrics")
            .args(["metrics", "--serve", "--listen", &listen])
            .args(["--user", &self.user.to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(pair)))
            .stdout(Stdio::from(listener));
        command
            .spawn()
            .map_err(|e| Failure::os("cannot start", "the process that speaks HTTP", e))
    }
}

/// Binds the address.
fn bind(listen: &Listen) -> Result<OwnedFd, Failure> {
    match listen {
        Listen::Tcp(address) => match TcpListener::bind(address) {
            Ok(listener) => Ok(listener.into()),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(Failure::new(
                "in-use",
                format!(
                    "another process listens on {address}: choose another port with --listen; `ss -ltnp 'sport = :{}'` shows which process it is",
                    address.port()
                ),
            )),
            Err(e) => Err(Failure::os("cannot listen on", address.to_string(), e)),
        },
        Listen::Unix(path) => bind_unix(path).map(Into::into),
    }
}

fn bind_unix(path: &Path) -> Result<UnixListener, Failure> {
    let failed = |e| Failure::os("cannot listen on", path, e);
    let is_socket = |path: &Path| {
        std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
    };
    let bound = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_socket(path) => {
            if UnixStream::connect(path).is_ok() {
                return Err(Failure::new(
                    "in-use",
                    format!(
                        "another process listens on {}: choose another path with --listen",
                        shown(path)
                    ),
                ));
            }
            // Left by a process that was killed.
            std::fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path)
        }
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            return Err(Failure::new(
                "exists",
                format!(
                    "{} exists and is no socket: choose another path with --listen",
                    shown(path)
                ),
            ));
        }
        bound => bound,
    };
    let listener = bound.map_err(failed)?;
    // Metrics are no secret of root; the directory says who reaches the socket.
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(listener)
}

/// Ends the pair of sockets when a signal asks this process to end.
fn end_at_signals(ours: &UnixStream) -> io::Result<()> {
    let ours = ours.try_clone()?;
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().spawn(move || {
        if signals.forever().next().is_some() {
            // It is connected, so this cannot fail.
            let _ended = ours.shutdown(std::net::Shutdown::Both);
        }
    })?;
    Ok(())
}

/// Answers the process that speaks HTTP, until it ends.
fn answer(mut pair: UnixStream) -> io::Result<()> {
    let mut asked = [0];
    let mut collected = Collected::default();
    loop {
        match pair.read(&mut asked) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        let text = collected.text(Instant::now, collect);
        let len = u32::try_from(text.len()).map_err(io::Error::other)?;
        let sent = pair
            .write_all(&len.to_le_bytes())
            .and_then(|()| pair.write_all(text.as_bytes()));
        match sent {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            sent => sent?,
        }
    }
}

/// The metrics that were collected last.
#[derive(Debug, Default)]
struct Collected {
    text: String,
    /// When, on a clock that is never set.
    at: Option<Instant>,
}

impl Collected {
    /// Returns the metrics, which are no older than [`FRESH`]. The time counts from the end of a
    /// collection, so that slow servers are not asked without a pause.
    fn text(&mut self, now: impl Fn() -> Instant, collect: impl FnOnce() -> String) -> &str {
        let age = self.at.map(|at| now().saturating_duration_since(at));
        if age.is_none_or(|age| age >= FRESH) {
            self.text = collect();
            self.at = Some(now());
        }
        &self.text
    }
}

/// The metrics of all mounts, and how many mounts gave none.
fn collect() -> String {
    let (states, failures) = match live::status_of_all() {
        Ok(answers) => parted(answers),
        Err(failure) => (Vec::new(), vec![failure]),
    };
    for failure in &failures {
        eprintln!("pramfs metrics: {}", failure.message);
    }
    let mut text = prometheus::text(&states);
    text.push_str(
        "# HELP pramfs_mounts_silent Mounts of root whose server has died or does not answer.\n",
    );
    text.push_str("# TYPE pramfs_mounts_silent gauge\n");
    text.push_str(&format!("pramfs_mounts_silent {}\n", failures.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_of_tcp_or_a_path() {
        let parse = |text: &str| text.parse::<Listen>();
        assert_eq!(parse("unix:/run/x"), Ok(Listen::Unix("/run/x".into())));
        assert!(matches!(parse("[::1]:80"), Ok(Listen::Tcp(_))));
        for wrong in [
            "",
            "80",
            "localhost:80",
            "unix:x",
            "unix:",
            "127.0.0.1",
            "1.2.3.4:99999",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scrapes_within_a_second_cost_one_collection() {
        let start = Instant::now();
        let mut collected = Collected::default();
        let mut asked = 0;
        // Milliseconds, and how often the servers have been asked by then.
        for (millis, expected) in [(0, 1), (1, 1), (999, 1), (1000, 2), (1500, 2), (9000, 3)] {
            let now = || start + Duration::from_millis(millis);
            let text = collected.text(now, || {
                asked += 1;
                format!("{asked}")
            });
            assert_eq!(text, format!("{expected}"), "after {millis} ms");
        }
    }

    #[test]
    fn age_of_metrics_begins_at_the_end_of_their_collection() {
        let start = Instant::now();
        let clock = std::cell::Cell::new(start);
        let mut collected = Collected::default();
        let slow = || {
            clock.set(clock.get() + Duration::from_secs(5));
            "slow".to_owned()
        };
        assert_eq!(collected.text(|| clock.get(), slow), "slow");
        let again = || panic!("they are new");
        assert_eq!(collected.text(|| clock.get(), again), "slow");
    }

    #[test]
    fn socket_of_killed_process_is_replaced_and_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(bind_unix(&path).unwrap());
        let listens = bind_unix(&path).unwrap();
        assert_eq!(bind_unix(&path).unwrap_err().reason, "in-use");
        drop(listens);
        let file = dir.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        assert_eq!(bind_unix(&file).unwrap_err().reason, "exists");
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }
}
