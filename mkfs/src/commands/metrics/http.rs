//! The process that speaks HTTP. It has no rights, and one source of metrics: the pair of
//! sockets to the process that started it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Failure;

/// Clients that are answered at a time, each by a thread. Others are disconnected.
const CLIENTS: usize = 64;

/// Time for a client to send its request, and for each part of the answer that it reads.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 8 << 10;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Longest metrics, in bytes.
const MAX_TEXT: u32 = 64 << 20;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A connection to a client.
trait Client: Read + Write + Send {
    /// Limits the time of the calls that follow.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Client for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Client for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// What clients connect to.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Client>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept()?.0),
            Listener::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }
}

/// Serves HTTP until the pair of sockets or the listener ends.
///
/// # Errors
/// Standard input and output are not those of `pramfs metrics`.
pub(super) fn serve(user: u32, is_tcp: bool) -> Result<(), Failure> {
    let not_ours = |e: rustix::io::Errno| {
        Failure::usage(format!(
            "--serve is for the process that pramfs metrics starts: its standard streams are missing ({e})"
        ))
    };
    drop_rights(user).map_err(|e| {
        Failure::os(
            "cannot give up the rights of",
            "the process that speaks HTTP",
            e,
        )
    })?;
    let pair = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(not_ours)?;
    let listener = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).map_err(not_ours)?;
    rustix::net::getpeername(&pair).map_err(not_ours)?;
    rustix::net::getsockname(&listener).map_err(not_ours)?;
    let listener = match is_tcp {
        true => Listener::Tcp(listener.into()),
        false => Listener::Unix(listener.into()),
    };
    let pair = Arc::new(Mutex::new(UnixStream::from(pair)));
    let of = Arc::clone(&pair);
    std::thread::Builder::new()
        .spawn(move || accept(&listener, &of))
        .map_err(|e| Failure::os("cannot start", "a thread that speaks HTTP", e))?;
    // The threads end with this process: one may wait for a client.
    wait_for_end(&pair);
    Ok(())
}

/// Gives up all rights of this process, which has one thread.
///
/// # Errors
/// Errors of the system calls: then it must not go on.
fn drop_rights(user: u32) -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    rustix::thread::set_no_new_privs(true)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    match rustix::process::getuid() == uid && rustix::process::geteuid() == uid {
        true => Ok(()),
        false => Err(rustix::io::Errno::PERM),
    }
}

/// Waits until the process that started this one has ended the pair of sockets.
fn wait_for_end(pair: &Mutex<UnixStream>) {
    use rustix::event::{PollFd, PollFlags};
    let copy = pair
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .try_clone();
    let Ok(copy) = copy else {
        return;
    };
    loop {
        // Not for input: that is the answer to another thread.
        let mut asked = [PollFd::new(&copy, PollFlags::RDHUP)];
        match rustix::event::poll(&mut asked, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) if asked[0].revents().is_empty() => {}
            _ => return,
        }
    }
}

/// Answers each client in a thread of its own: a silent one keeps no other waiting.
fn accept(listener: &Listener, pair: &Arc<Mutex<UnixStream>>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok(client) = listener.accept() else {
            // No descriptor is left, or the client has gone.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (pair, here) = (Arc::clone(pair), Arc::clone(&clients));
        let started = std::thread::Builder::new().spawn(move || {
            // The client has gone, or was too slow: nobody to tell.
            let _answered = serve_client(client, &pair);
            here.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads a request and answers it.
fn serve_client(mut client: Box<dyn Client>, pair: &Mutex<UnixStream>) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let asked = loop {
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() || head.len() > MAX_HEAD {
            return Ok(());
        }
        client.limit(rest)?;
        let mut part = [0; 1024];
        let read = client.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        head.extend_from_slice(&part[..read]);
        if let Some(asked) = Asked::parse(&head) {
            break asked;
        }
    };
    client.limit(PATIENCE)?;
    let (status, body) = reply(&asked, pair);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    if !matches!(&asked, Asked::For { method, .. } if method == "HEAD") {
        client.write_all(body.as_bytes())?;
    }
    client.flush()
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    For {
        method: String,
        path: String,
    },
    /// It is no request.
    Nothing,
}

impl Asked {
    /// Parses the head of a request; `None`: there is more of it.
    fn parse(head: &[u8]) -> Option<Asked> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(httparse::Status::Partial) => None,
            Ok(httparse::Status::Complete(_)) => Some(Asked::For {
                method: request.method.unwrap_or_default().to_owned(),
                path: request.path.unwrap_or_default().to_owned(),
            }),
            Err(_) => Some(Asked::Nothing),
        }
    }
}

/// Returns the status and the body of an answer.
fn reply(asked: &Asked, pair: &Mutex<UnixStream>) -> (&'static str, String) {
    let Asked::For { method, path } = asked else {
        return ("400 Bad Request", "no request of HTTP/1\n".to_owned());
    };
    let path = path.split('?').next().unwrap_or_default();
    let is_read = matches!(method.as_str(), "GET" | "HEAD");
    match (path, is_read) {
        (_, false) => ("405 Method Not Allowed", "only GET and HEAD\n".to_owned()),
        ("/metrics", _) => match ask(pair) {
            Ok(text) => ("200 OK", text),
            Err(e) => ("503 Service Unavailable", format!("no metrics: {e}\n")),
        },
        ("/", _) => ("200 OK", "pramfs: the metrics are at /metrics\n".to_owned()),
        _ => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
    }
}

/// Asks for the metrics, one thread at a time.
fn ask(pair: &Mutex<UnixStream>) -> io::Result<String> {
    let mut pair = pair.lock().unwrap_or_else(PoisonError::into_inner);
    pair.write_all(&[1])?;
    let mut len = [0; 4];
    pair.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_TEXT {
        return Err(io::Error::other("the metrics are too long"));
    }
    let mut text = vec![0; len as usize];
    pair.read_exact(&mut text)?;
    String::from_utf8(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_parsed_when_its_head_is_complete() {
        let text = b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n";
        for len in 0..text.len() {
            assert_eq!(Asked::parse(&text[..len]), None, "{len} bytes");
        }
        let (method, path) = ("GET".to_owned(), "/metrics?x=1".to_owned());
        assert_eq!(Asked::parse(text), Some(Asked::For { method, path }));
        for wrong in [&b"\x16\x03\x01\x02"[..], b"GET /\r\n\r\n", b"\0\0"] {
            assert_eq!(Asked::parse(wrong), Some(Asked::Nothing), "{wrong:?}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert_eq!(Asked::parse(many.as_bytes()), Some(Asked::Nothing));
    }
}
