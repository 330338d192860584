//! The process that speaks HTTP. It has no rights, and one source of metrics: the pair of
//! sockets to the process that started it.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};

use tiny_http::{Header, Method, Request, Response, Server, StatusCode};

use crate::Failure;

/// Threads that answer. Each can wait for a client that does not read.
const THREADS: usize = 4;

/// Longest metrics, in bytes.
const MAX_TEXT: u32 = 64 << 20;

const CONTENT_TYPE: &[u8] = b"text/plain; version=0.0.4; charset=utf-8";

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
        true => tiny_http::Listener::from(TcpListener::from(listener)),
        false => tiny_http::Listener::from(UnixListener::from(listener)),
    };
    let server = Server::from_listener(listener, None)
        .map_err(|e| Failure::new("os", format!("cannot serve HTTP: {e}")))?;
    let (server, pair) = (
        Arc::new(server),
        Arc::new(Mutex::new(UnixStream::from(pair))),
    );
    for _ in 0..THREADS {
        let (server, pair) = (Arc::clone(&server), Arc::clone(&pair));
        let started = std::thread::Builder::new().spawn(move || {
            for request in server.incoming_requests() {
                reply(request, &pair);
            }
        });
        started.map_err(|e| Failure::os("cannot start", "a thread that speaks HTTP", e))?;
    }
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

/// Answers one request.
fn reply(request: Request, pair: &Mutex<UnixStream>) {
    let path = request.url().split('?').next().unwrap_or_default();
    let is_read = matches!(request.method(), Method::Get | Method::Head);
    let (status, body) = match (path, is_read) {
        (_, false) => (405, "only GET and HEAD\n".to_owned()),
        ("/metrics", _) => match ask(pair) {
            Ok(text) => (200, text),
            Err(e) => (503, format!("no metrics: {e}\n")),
        },
        ("/", _) => (200, "pramfs: the metrics are at /metrics\n".to_owned()),
        _ => (404, "the metrics are at /metrics\n".to_owned()),
    };
    let mut response = Response::from_data(body.into_bytes()).with_status_code(StatusCode(status));
    if let Ok(header) = Header::from_bytes(&b"Content-Type"[..], CONTENT_TYPE) {
        response.add_header(header);
    }
    // The client has gone: nobody to tell.
    let _gone = request.respond(response);
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
