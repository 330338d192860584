//! Leases over a control socket, with slow and hostile clients. The leases themselves are
//! faked: a file stands in for the descriptor.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pramfs_control::{
    Blocks, Coherence, Connection, ControlError, Directory, Extent, Granted, Identity, LeaseKey,
    LeaseRow, Leases, Peer, Refusal, Refused, Served, Server, Service, Ticket, Window,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use tempfile::TempDir;

const TICKET: Ticket = Ticket([5; 16]);

/// Grants a lease for [`TICKET`], any number of times, to any user.
#[derive(Debug)]
struct Fake {
    granted: AtomicUsize,
    tested: AtomicUsize,
    revoked: Mutex<Vec<LeaseKey>>,
    descriptor: File,
}

fn key(n: usize) -> LeaseKey {
    LeaseKey {
        slot: n as u32,
        id: 1000 + n as u64,
    }
}

fn blocks(start: u64, most: usize) -> Blocks {
    let extents = (0..most as u64).map(|i| Extent {
        file_offset: start + 2 * i * 4096,
        region_offset: (1 << 40) + i * 4096,
        len: 4096,
    });
    Blocks {
        layout: 7,
        size: u64::MAX / 2,
        start,
        end: start + 2 * most as u64 * 4096,
        extents: extents.collect(),
    }
}

impl Leases for Fake {
    fn grant(
        &self,
        ticket: Ticket,
        coherence: Coherence,
        peer: &Peer,
        most: usize,
        send: &mut dyn FnMut(&Granted, BorrowedFd<'_>),
    ) -> Result<LeaseKey, Refused> {
        assert_eq!(peer.pid, std::process::id());
        if ticket != TICKET {
            return Err(Refused::new(Refusal::Ticket, "it is another one"));
        }
        let lease = key(self.granted.fetch_add(1, Ordering::Relaxed));
        let granted = Granted {
            lease,
            filesystem: (1, 2),
            inode: 77,
            generation: 5,
            block_size: 4096,
            view: 64,
            stored: 128,
            coherence,
            blocks: blocks(0, most),
        };
        send(&granted, self.descriptor.as_fd());
        Ok(lease)
    }

    fn cohere(&self, lease: LeaseKey, coherence: Coherence) -> Result<(), Refused> {
        match lease == key(0) && coherence == Coherence::Kept {
            true => Ok(()),
            false => Err(Refused::new(Refusal::Busy, "mapped for stores")),
        }
    }

    fn blocks(&self, lease: LeaseKey, offset: u64, most: usize) -> Result<Blocks, Refused> {
        match self.revoked.lock().unwrap().contains(&lease) {
            true => Err(Refused::new(Refusal::Ended, "revoked")),
            false => Ok(blocks(offset, most)),
        }
    }

    fn fill(&self, _: LeaseKey, range: Range<u64>, _: bool) -> Result<u64, Refused> {
        Ok(range.end.min(range.start + 4096))
    }

    fn window(&self, lease: LeaseKey, bytes: u64, _: u32) -> Result<Window, Refused> {
        if bytes > 1 << 20 {
            return Err(Refused::new(Refusal::Busy, "another lease"));
        }
        Ok(Window {
            number: u64::MAX - 1,
            start: lease.id,
            limit: lease.id + bytes,
            key: u64::MAX,
        })
    }

    fn end_released(&self) {
        self.tested.fetch_add(1, Ordering::Relaxed);
    }

    fn list(&self, from: u32, most: usize) -> (Vec<LeaseRow>, Option<u32>) {
        let all = self.granted.load(Ordering::Relaxed);
        let row = |n: usize| LeaseRow {
            lease: key(n),
            inode: 77,
            pid: 1,
            uid: 2,
            write: false,
            bytes: 3,
            granted_sec: 4,
            adopted: false,
            revoked: false,
        };
        let end = (from as usize + most).min(all);
        let next = (end < all).then_some(end as u32);
        ((from as usize..end).map(row).collect(), next)
    }

    fn revoke(&self, lease: LeaseKey) -> Result<(), Refused> {
        self.revoked.lock().unwrap().push(lease);
        Ok(())
    }
}

struct Scene {
    dir: TempDir,
    region: File,
    fake: Arc<Fake>,
    server: Option<Server>,
}

fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sockets")).unwrap();
    let region = File::create(dir.path().join("region")).unwrap();
    let fake = Arc::new(Fake {
        granted: AtomicUsize::new(0),
        tested: AtomicUsize::new(0),
        revoked: Mutex::default(),
        descriptor: File::open("/dev/zero").unwrap(),
    });
    let served = Served {
        device: (0, 77),
        user_id: 0,
        read_only: false,
        nosuid: true,
        nodev: false,
        noexec: false,
        nosymfollow: false,
    };
    let service = Service::new(served, &region, &region).unwrap();
    let service = service.with_leases(Arc::clone(&fake) as Arc<dyn Leases>);
    let mut scene = Scene {
        dir,
        region,
        fake,
        server: None,
    };
    scene.server = Some(Server::start(scene.directory(), service).unwrap());
    scene
}

impl Scene {
    fn directory(&self) -> Directory {
        let path = self.dir.path().join("sockets");
        Directory::open(path).unwrap().unwrap()
    }

    fn name(&self) -> String {
        Identity::of(&self.region).unwrap().socket_name()
    }

    fn connect(&self) -> Connection {
        let opened = Connection::open(&self.directory(), &self.name());
        opened.unwrap().expect("a server listens")
    }

    fn raw(&self) -> OwnedFd {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
        let socket = socket.unwrap();
        let path = self.dir.path().join("sockets").join(self.name());
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }
}

fn reason<T: std::fmt::Debug>(result: Result<T, ControlError>) -> Refusal {
    match result {
        Err(ControlError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn coherent_lease_says_so_and_is_kept_on_request() {
    let scene = scene();
    let server = scene.connect();
    let (granted, _descriptor) = server.coherent_lease(TICKET, Coherence::Recalled).unwrap();
    assert_eq!(granted.coherence, Coherence::Recalled);
    let keep = |server: &Connection, lease| server.cohere(lease, Coherence::Kept);
    keep(&server, granted.lease).unwrap();
    let (other, _descriptor) = server.lease(TICKET).unwrap();
    assert_eq!(other.coherence, Coherence::WriteBack);
    assert_eq!(reason(keep(&server, other.lease)), Refusal::Busy);
    // One of another connection.
    assert_eq!(
        reason(keep(&scene.connect(), granted.lease)),
        Refusal::Ended
    );
}

#[test]
fn lease_is_granted_with_its_descriptor() {
    let scene = scene();
    let server = scene.connect();
    assert_eq!(reason(server.lease(Ticket([6; 16]))), Refusal::Ticket);
    let (granted, descriptor) = server.lease(TICKET).unwrap();
    assert_eq!(Identity::of(&descriptor).unwrap(), Identity::Char(1, 5));
    assert_eq!((granted.lease, granted.view), (key(0), 64));
    // The largest answer fits a message.
    assert!(granted.blocks.extents.len() >= 40);
    let more = server.blocks(granted.lease, granted.blocks.end).unwrap();
    assert_eq!(more.start, granted.blocks.end);
    server.release(granted.lease).unwrap();
    assert_eq!(scene.fake.tested.load(Ordering::Relaxed), 1);
    assert_eq!(reason(server.blocks(granted.lease, 0)), Refusal::Ended);
}

#[test]
fn lease_of_other_connection_gets_no_blocks() {
    let scene = scene();
    let (first, second) = (scene.connect(), scene.connect());
    let (granted, _descriptor) = first.lease(TICKET).unwrap();
    assert_eq!(reason(second.blocks(granted.lease, 0)), Refusal::Ended);
    assert_eq!(reason(second.release(granted.lease)), Refusal::Ended);
    let other = LeaseKey {
        id: granted.lease.id + 1,
        ..granted.lease
    };
    assert_eq!(reason(first.blocks(other, 0)), Refusal::Ended);
    first.blocks(granted.lease, 0).unwrap();
}

#[test]
fn window_is_opened_for_lease_of_this_connection_only() {
    let scene = scene();
    let (first, second) = (scene.connect(), scene.connect());
    let (granted, _descriptor) = first.lease(TICKET).unwrap();
    let window = first.window(granted.lease, 4096, 1).unwrap();
    // Numbers of 64 bits survive the way.
    assert_eq!((window.number, window.key), (u64::MAX - 1, u64::MAX));
    assert_eq!(window.limit - window.start, 4096);
    let refused = first.window(granted.lease, 1 << 30, 1);
    assert_eq!(reason(refused), Refusal::Busy);
    let of_other = second.window(granted.lease, 4096, 1);
    assert_eq!(reason(of_other), Refusal::Ended);
    first.release(granted.lease).unwrap();
    assert_eq!(reason(first.window(granted.lease, 1, 1)), Refusal::Ended);
}

#[test]
fn end_of_connection_tests_its_leases() {
    let scene = scene();
    let server = scene.connect();
    let _lease = server.lease(TICKET).unwrap();
    drop(server);
    while scene.fake.tested.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn long_listing_comes_in_pages() {
    let scene = scene();
    let server = scene.connect();
    let held: Vec<_> = (0..50).map(|_| server.lease(TICKET).unwrap()).collect();
    let rows = scene.connect().leases().unwrap();
    let slots: Vec<u32> = rows.iter().map(|row| row.lease.slot).collect();
    assert_eq!(slots, (0..50).collect::<Vec<_>>());
    drop(held);
}

#[test]
fn revoked_lease_gets_no_blocks() {
    let scene = scene();
    let server = scene.connect();
    let (granted, _descriptor) = server.lease(TICKET).unwrap();
    scene.connect().revoke(granted.lease).unwrap();
    assert_eq!(reason(server.blocks(granted.lease, 0)), Refusal::Ended);
}

#[test]
fn client_beyond_bound_of_connections_is_told_so() {
    let scene = scene();
    // With a lease, a silent one stays.
    let held: Vec<_> = (0..256)
        .map(|_| {
            let server = scene.connect();
            let lease = server.lease(TICKET).unwrap();
            (server, lease)
        })
        .collect();
    for _ in 0..10 {
        assert_eq!(reason(scene.connect().lease(TICKET)), Refusal::Full);
    }
    drop(held);
}

#[test]
fn connections_are_bounded() {
    let scene = scene();
    let mut open = Vec::new();
    // Many more than are served at a time. Refused ones are closed at once.
    for _ in 0..2000 {
        open.push(scene.raw());
        if open.len() > 300 {
            open.remove(0);
        }
    }
    drop(open);
    // The server still answers. Until it has noticed that the others are gone, it refuses.
    let answered = std::iter::repeat_with(|| scene.connect().lease(TICKET));
    let (granted, _descriptor) = answered.into_iter().find_map(Result::ok).unwrap();
    assert_eq!(granted.inode, 77);
}

#[test]
fn client_that_reads_no_answer_is_disconnected() {
    let scene = scene();
    let silent = scene.raw();
    let request = br#"{"version":1,"request":"status"}"#;
    let mut sent = 0;
    let failed = loop {
        match rustix::net::send(&silent, request, SendFlags::NOSIGNAL) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 100_000, "the server keeps {sent} answers");
    };
    use rustix::io::Errno;
    assert!(matches!(failed, Errno::PIPE | Errno::CONNRESET), "{failed}");
    assert!(sent > 10);
    scene.connect().lease(TICKET).unwrap();
}

/// The kernel drops descriptors that a server has no room for.
#[test]
fn descriptors_sent_to_server_are_closed() {
    let scene = scene();
    let client = scene.raw();
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let shown = [theirs.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&shown)));
    let request = br#"{"version":1,"request":"status"}"#;
    let bytes = [std::io::IoSlice::new(request)];
    rustix::net::sendmsg(&client, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
    let mut answer = [0; 4096];
    rustix::net::recv(&client, &mut answer[..], RecvFlags::empty()).unwrap();
    drop(theirs);
    // The end of the pipe comes only when the server has closed its copy too.
    let mut byte = [0];
    assert_eq!(rustix::io::read(&ours, &mut byte), Ok(0));
}

#[test]
fn malformed_requests_about_leases_are_refused() {
    let scene = scene();
    let client = scene.raw();
    for (request, says) in [
        (r#"{"version":1,"request":"lease"}"#, "unknown"),
        (
            r#"{"version":1,"request":"lease","ticket":"05"}"#,
            "unknown",
        ),
        (
            r#"{"version":1,"request":"blocks","lease":{"slot":-1,"id":0},"offset":0}"#,
            "unknown",
        ),
        (
            r#"{"version":1,"request":"blocks","lease":{"slot":1,"id":0},"offset":1e99}"#,
            "unknown",
        ),
        (
            r#"{"version":1,"request":"window","lease":{"slot":1,"id":0},"bytes":-1}"#,
            "unknown",
        ),
        (
            r#"{"version":1,"request":"window","lease":{"slot":1,"id":0},"bytes":4096}"#,
            "ended",
        ),
        (
            r#"{"version":1,"request":"blocks","lease":{"slot":1,"id":0},"offset":0}"#,
            "ended",
        ),
    ] {
        rustix::net::send(&client, request.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; 4096];
        let (n, _) = rustix::net::recv(&client, &mut answer[..], RecvFlags::empty()).unwrap();
        let answer = std::str::from_utf8(&answer[..n]).unwrap();
        assert!(
            answer.contains(&format!("\"{says}\"")),
            "{request}: {answer}"
        );
    }
}
