//! Redis with an append-only file: every acknowledged write survives SIGKILL of the server,
//! also while the file is rewritten. The data and the file are those of a server on tmpfs.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use pramfs_tests::mounted::wait_until;
use pramfs_tests::suite::{Run, find, say};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Both, Place, TIMEOUT, full, same};

/// A connection to a server.
struct Client {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &Path) -> io::Result<Client> {
        let to = UnixStream::connect(socket)?;
        let from = BufReader::new(to.try_clone()?);
        Ok(Client { to, from })
    }

    /// Sends a command, and returns the answer.
    fn ask(&mut self, words: &[&str]) -> io::Result<String> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            write!(command, "${}\r\n{word}\r\n", word.len()).unwrap();
        }
        self.to.write_all(command.as_bytes())?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(len) = line.strip_prefix('$') else {
            return Ok(line.trim().to_owned());
        };
        let Ok(len) = len.trim().parse::<usize>() else {
            return Ok("(nil)".to_owned());
        };
        let mut bytes = vec![0; len + 2];
        self.from.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }
}

/// A server on a socket of its own, in a process group of its own.
struct Server {
    child: Child,
    dir: tempfile::TempDir,
    data: PathBuf,
}

impl Server {
    fn start(place: &Place<'_>, fsync: &str) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = place
            .command(find("redis-server").unwrap())
            .args(["--port", "0", "--unixsocket"])
            .arg(dir.path().join("socket"))
            .arg("--dir")
            .arg(&place.dir)
            .args(["--appendonly", "yes", "--appendfsync", fsync])
            .args(["--daemonize", "no", "--auto-aof-rewrite-percentage", "0"])
            .args(["--enable-debug-command", "yes", "--save", ""])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn();
        let mut server = Server {
            child: child.unwrap(),
            dir,
            data: place.dir.clone(),
        };
        let ready = wait_until(|| {
            let answers = |mut client: Client| client.ask(&["PING"]);
            Client::connect(&server.socket())
                .and_then(answers)
                .is_ok_and(|answer| answer == "+PONG")
                || server.child.try_wait().unwrap().is_some()
        });
        let alive = server.child.try_wait().unwrap().is_none();
        assert!(ready && alive, "redis-server: {}", server.log());
        server
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// Asks, and requires an answer that is no error.
    #[track_caller]
    fn ask(&self, words: &[&str]) -> String {
        let answer = self.client().ask(words).unwrap();
        assert!(!answer.starts_with('-'), "{words:?}: {answer}");
        answer
    }

    /// A field of INFO.
    fn info(&self, field: &str) -> String {
        let info = self.ask(&["INFO"]);
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value
            .unwrap_or_else(|| panic!("no {field}: {info}"))
            .to_owned()
    }

    /// Waits until the rewriting of the file has ended well.
    fn wait_for_rewrite(&self) {
        assert!(wait_until(|| self.info("aof_rewrite_in_progress") == "0"
            && self.info("aof_rewrite_scheduled") == "0"));
        let status = self.info("aof_last_bgrewrite_status");
        assert_eq!(status, "ok", "{}", self.log());
    }

    /// Ends it as an administrator does.
    fn stop(mut self) {
        // The connection ends without an answer.
        let _ended = self.client().ask(&["SHUTDOWN"]);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Kills the server, and a child that rewrites the file.
    fn kill(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            // It may have ended after a failed test.
            let _gone = kill_process_group(group, Signal::KILL);
        }
        self.child.wait().unwrap();
        let uses = |entry: fs::DirEntry| {
            fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == self.data)
        };
        wait_until(|| !fs::read_dir("/proc").unwrap().flatten().any(uses));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.kill();
        }
    }
}

/// Commands of all kinds, the same in each run.
fn work(server: &Server, rounds: u64) {
    let mut client = server.client();
    for n in 0..rounds {
        let (key, value) = (
            format!("s{}", n % 500),
            format!("{n}{}", "x".repeat(n as usize % 900)),
        );
        for words in [
            &["SET", &key, &value][..],
            &["INCRBY", "counter", "7"],
            &["RPUSH", &format!("list{}", n % 3), &value],
            &["HSET", "hash", &key, &value],
            &["ZADD", "sorted", &n.to_string(), &key],
            &["APPEND", "appended", "some bytes"],
        ] {
            let answer = client.ask(words).unwrap();
            assert!(!answer.starts_with('-'), "{words:?}: {answer}");
        }
        if n % 11 == 0 {
            client.ask(&["DEL", &format!("s{}", n % 400)]).unwrap();
        }
    }
}

fn key(n: u64) -> String {
    format!("k{n}")
}

/// Sets one key after the other until the server dies. Returns how many were acknowledged.
fn write_until_death(socket: &Path, acknowledged: &AtomicU64) -> u64 {
    let mut client = Client::connect(socket).unwrap();
    loop {
        let n = acknowledged.load(Ordering::Relaxed);
        match client.ask(&["SET", &key(n), &n.to_string()]).as_deref() {
            Ok("+OK") => acknowledged.store(n + 1, Ordering::Relaxed),
            _ => return n,
        }
    }
}

/// Checks the files of a server that has ended.
fn check_files(place: &Place<'_>) {
    let manifest = place.dir.join("appendonlydir/appendonly.aof.manifest");
    let out = Run::new("redis-check-aof", "redis-check-aof", TIMEOUT)
        .arg(&manifest)
        .succeed();
    assert!(
        out.text.contains("All AOF files and manifest are valid"),
        "{}",
        out.text
    );
}

/// Kills a server while it appends, and rewrites its file if `rewrite`.
fn life(place: &Place<'_>, fsync: &str, rewrite: bool, least: u64) -> u64 {
    let mut server = Server::start(place, fsync);
    let acknowledged = AtomicU64::new(0);
    let has = |n| wait_until(|| acknowledged.load(Ordering::Relaxed) >= n);
    let socket = server.socket();
    let (written, sent) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_death(&socket, &acknowledged));
        assert!(has(least));
        // With `everysec`, a write to the file may wait for an fsync: then the last second may
        // be missing. Without a buffer, it holds all that was acknowledged before.
        let before = acknowledged.load(Ordering::Relaxed);
        assert!(wait_until(|| server.info("aof_buffer_length") == "0"));
        if rewrite {
            server.ask(&["BGREWRITEAOF"]);
        }
        assert!(has(before + least));
        server.kill();
        (before, writer.join().unwrap())
    });
    let server = Server::start(place, fsync);
    let mut client = server.client();
    let there =
        |client: &mut Client, n: u64| client.ask(&["GET", &key(n)]).unwrap() == n.to_string();
    let kept = (0..=sent).take_while(|n| there(&mut client, *n)).count() as u64;
    let must = if fsync == "always" { sent } else { written };
    assert!(
        kept >= must,
        "{kept} of {must} acknowledged writes are there: {}",
        server.log()
    );
    for n in kept..=sent + 1 {
        let answer = client.ask(&["GET", &key(n)]).unwrap();
        assert_eq!(answer, "(nil)", "{n}, and not {kept}");
    }
    drop(client);
    server.stop();
    check_files(place);
    kept
}

/// The commands in the file since the last rewriting.
fn appended(place: &Place<'_>) -> Vec<u8> {
    let dir = place.dir.join("appendonlydir");
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.retain(|path| path.to_string_lossy().ends_with(".incr.aof"));
    files.sort();
    files
        .iter()
        .flat_map(|path| fs::read(path).unwrap())
        .collect()
}

#[test]
fn redis_keeps_acknowledged_writes() {
    let test = "Redis with the preload library";
    let programs = [
        "redis-server",
        "redis-benchmark",
        "redis-check-aof",
        "redis-check-rdb",
    ];
    let Some(both) = Both::new(test, &programs, 512) else {
        return;
    };
    let (rounds, least) = if full() { (20_000, 10_000) } else { (500, 500) };
    for fsync in ["always", "everysec"] {
        let (on_mount, on_tmpfs) = (both.on_mount(fsync), both.on_tmpfs(fsync));
        let digests = [&on_mount, &on_tmpfs].map(|place| {
            let server = Server::start(place, fsync);
            work(&server, rounds);
            let digest = server.ask(&["DEBUG", "DIGEST"]);
            server.stop();
            digest
        });
        same("the data", &digests[0], &digests[1]);
        assert!(
            appended(&on_mount) == appended(&on_tmpfs),
            "the files differ"
        );
        check_files(&on_mount);
        let appends = both.library.share();

        // From the file, rewritten meanwhile, and from a snapshot.
        let server = Server::start(&on_mount, fsync);
        assert_eq!(server.ask(&["DEBUG", "DIGEST"]), digests[0]);
        server.ask(&["BGREWRITEAOF"]);
        let load = Run::new("redis-benchmark", "redis-benchmark", TIMEOUT)
            .arg("-s")
            .arg(server.socket())
            .args([
                "-q",
                "-c",
                "8",
                "-r",
                "1000",
                "-d",
                "300",
                "-t",
                "set,incr,lpush,hset",
            ])
            .args(["-n", &(4 * rounds).to_string()]);
        load.succeed();
        server.wait_for_rewrite();
        server.ask(&["SAVE"]);
        let digest = server.ask(&["DEBUG", "DIGEST"]);
        server.stop();
        check_files(&on_mount);
        Run::new("redis-check-rdb", "redis-check-rdb", TIMEOUT)
            .arg(on_mount.dir.join("dump.rdb"))
            .succeed();
        let server = Server::start(&on_mount, fsync);
        assert_eq!(server.ask(&["DEBUG", "DIGEST"]), digest);
        server.stop();
        let rest = both.library.share();

        let mut kept = 0;
        for rewrite in [false, true] {
            let killed = both.on_mount(&format!("{fsync}-{rewrite}"));
            kept += life(&killed, fsync, rewrite, least);
        }
        say(format_args!(
            "{test}, appendfsync {fsync}: served: appends {appends}, loading and rewriting {rest}; {kept} writes kept over SIGKILL"
        ));
    }
    say(format_args!("{test}: fsck: {}", both.end()));
}
