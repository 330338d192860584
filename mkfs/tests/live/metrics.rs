//! `pramfs metrics`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pramfs_tests::mounted::wait_until;
use rustix::process::{Pid, Signal};

use crate::common::{PRAMFS, pramfs, scratch};
use crate::{live, work};

/// `pramfs metrics`, which answers.
struct Exporter(Child);

impl Exporter {
    fn start(listen: &str) -> Exporter {
        Exporter::try_start(listen).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Returns its message if it does not answer.
    fn try_start(listen: &str) -> Result<Exporter, String> {
        let mut child = Command::new(PRAMFS)
            .args(["metrics", "--listen", listen])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut words = BufReader::new(child.stderr.take().unwrap());
        words.read_line(&mut said).unwrap();
        if !said.contains("answering at") {
            let _ended = child.kill();
            child.wait().unwrap();
            return Err(said);
        }
        // Whatever it says later must not fill a pipe that nobody reads.
        std::thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
        Ok(Exporter(child))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// The process that speaks HTTP.
    fn http(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        let children = std::fs::read_to_string(children).unwrap();
        let [one] = children.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("one process is to speak HTTP: {children}")
        };
        one.parse().unwrap()
    }

    fn end(mut self) {
        let http = self.http();
        let speaks = Pid::from_raw(http.cast_signed()).unwrap();
        // A terminal and a service manager signal both.
        for pid in [speaks, self.pid()] {
            rustix::process::kill_process(pid, Signal::TERM).unwrap();
        }
        assert!(self.0.wait().unwrap().success());
        assert!(!Path::new(&format!("/proc/{http}")).exists());
    }
}

/// Asks for a path. Returns head and body.
fn get(mut stream: impl Read + Write, request: &str) -> (String, String) {
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_come_over_http_from_process_without_rights() {
    let Some((mount, _dog)) = live("metrics", "metrics=on") else {
        return;
    };
    work(&mount);
    let dir = scratch();
    let socket = dir.path().join("socket");
    let exporter = Exporter::start(&format!("unix:{}", socket.display()));
    let ask = |request: &str| get(UnixStream::connect(&socket).unwrap(), request);
    let (head, body) = ask("GET /metrics");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("version=0.0.4"),
        "{head}"
    );
    let uuid = pramfs([
        "status".as_ref(),
        mount.path().as_os_str(),
        "--json".as_ref(),
    ])
    .ok();
    let uuid = uuid.json()["uuid"].as_str().unwrap().to_owned();
    let sample = |line: &&str| {
        line.starts_with("pramfs_requests_total{")
            && line.contains(&uuid)
            && line.contains("operation=\"create\"")
    };
    let create = body
        .lines()
        .find(sample)
        .unwrap_or_else(|| panic!("{body}"));
    assert!(create.ends_with(" 1"), "{create}");
    assert!(
        body.contains("pramfs_request_duration_seconds_bucket{"),
        "{body}"
    );
    for secret in [
        "secret-name",
        mount.path().to_str().unwrap(),
        mount.region().to_str().unwrap(),
    ] {
        assert!(!body.contains(secret), "{secret}");
    }
    assert!(ask("GET /etc/passwd").0.starts_with("HTTP/1.1 404"));
    assert!(ask("POST /metrics").0.starts_with("HTTP/1.1 405"));
    assert!(ask("GET /").1.contains("/metrics"));

    let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.http())).unwrap();
    for right in [
        "Uid:\t65534\t65534\t65534\t65534",
        "Gid:\t65534\t65534\t65534\t65534",
        "Groups:\t \n",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(right), "{right}: {status}");
    }
    exporter.end();
    assert!(!socket.exists());
}

#[test]
fn silent_client_does_not_stop_metrics() {
    let Some((_mount, _dog)) = live("a silent client", "") else {
        return;
    };
    // Somebody else may take a free port before the exporter has it; then it says so.
    let mut started = Err(String::new());
    for _ in 0..5 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        started = Exporter::try_start(&address.to_string()).map(|exporter| (exporter, address));
        if started.is_ok() {
            break;
        }
    }
    let (exporter, address) = started.unwrap_or_else(|said| panic!("{said}"));
    let silent: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let stream = TcpStream::connect(address).unwrap();
    let limit = Some(std::time::Duration::from_secs(30));
    stream.set_read_timeout(limit).unwrap();
    let (head, body) = get(stream, "GET /metrics");
    assert!(
        head.starts_with("HTTP/1.1 200") && body.contains("pramfs_mounts "),
        "{head}"
    );
    exporter.end();
    drop(silent);
}

#[test]
fn exporter_ends_when_process_that_speaks_http_is_killed() {
    if !crate::common::root_or_skip("pramfs metrics") {
        return;
    }
    let dir = scratch();
    let mut exporter = Exporter::start(&format!("unix:{}", dir.path().join("socket").display()));
    let http = Pid::from_raw(exporter.http().cast_signed()).unwrap();
    rustix::process::kill_process(http, Signal::KILL).unwrap();
    assert!(wait_until(|| exporter.0.try_wait().unwrap().is_some()));
    assert!(!exporter.0.wait().unwrap().success());
}

#[test]
fn metrics_port_in_use_is_named_and_refused() {
    if !crate::common::root_or_skip("pramfs metrics") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let said = pramfs(["metrics", "--listen", &address]);
    said.refused(&[
        "another process listens on",
        &address,
        "--listen",
        "ss -ltnp",
    ]);
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let unix = format!("unix:{}", file.display());
    pramfs(["metrics", "--listen", &unix]).refused(&["is no socket"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}

#[test]
fn address_of_other_machines_is_refused_unless_allowed() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9842"] {
        pramfs(["metrics", "--listen", address]).misused(&["--allow-remote", "without encryption"]);
    }
    for wrong in ["9842", "localhost:1", "unix:relative", ""] {
        assert_eq!(pramfs(["metrics", "--listen", wrong]).status, 2, "{wrong}");
    }
}
