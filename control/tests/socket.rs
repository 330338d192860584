//! Both ends of a control socket, with slow, faulty and hostile peers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pramfs_control::{
    Client, Connection, ControlError, Directory, Identity, MAX_MESSAGE, Refusal, Request,
    RequestCounts, Served, Server, Service,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use tempfile::TempDir;

const MALLORY: u32 = 4242;

/// More counts, and longer, than the FUSE protocol has.
#[derive(Debug)]
struct ManyCounts;

impl RequestCounts for ManyCounts {
    fn counts(&self) -> BTreeMap<String, u64> {
        let name = |n| (format!("{n:_>18}"), u64::MAX);
        (0..64).map(name).collect()
    }
}

#[test]
fn counts_of_requests_fit_an_answer() {
    let scene = Scene::new();
    let name = scene.identity().socket_name();
    let connect = || {
        Connection::open(&scene.directory(), &name)
            .unwrap()
            .unwrap()
    };
    let service = || Service::new(SERVED, &scene.region, &scene.connection).unwrap();
    let server = Server::start(scene.directory(), service()).unwrap();
    let refused = connect().requests().unwrap_err();
    assert!(
        matches!(
            refused,
            ControlError::Refused {
                reason: Refusal::Unsupported,
                ..
            }
        ),
        "{refused}"
    );
    drop(server);
    let service = service().with_counts(Arc::new(ManyCounts));
    let _server = Server::start(scene.directory(), service).unwrap();
    assert_eq!(connect().requests().unwrap(), ManyCounts.counts());
}

const SERVED: Served = Served {
    device: (0, 77),
    user_id: 0,
    read_only: false,
    nosuid: true,
    nodev: false,
    noexec: false,
    nosymfollow: false,
};

/// A directory for sockets, a region, and a file in place of the connection.
struct Scene {
    dir: TempDir,
    region: File,
    connection: File,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sockets")).unwrap();
        Scene {
            region: File::create(dir.path().join("region")).unwrap(),
            connection: File::open("/dev/zero").unwrap(),
            dir,
        }
    }

    fn directory(&self) -> Directory {
        let path = self.dir.path().join("sockets");
        Directory::open(path).unwrap().expect("it is there")
    }

    fn identity(&self) -> Identity {
        Identity::of(&self.region).unwrap()
    }

    fn socket(&self) -> std::path::PathBuf {
        let name = format!("{}.sock", self.identity());
        self.dir.path().join("sockets").join(name)
    }

    fn serve(&self) -> Server {
        let service = Service::new(SERVED, &self.region, &self.connection).unwrap();
        Server::start(self.directory(), service).unwrap()
    }

    fn connect(&self) -> Option<Client> {
        Client::connect(&self.directory(), self.identity()).unwrap()
    }

    /// Returns a connected socket that has sent nothing yet.
    fn raw(&self) -> OwnedFd {
        let socket = seqpacket();
        let address = SocketAddrUnix::new(self.socket()).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        socket
    }

    /// Returns the answer of the server to these bytes.
    fn answer_to(&self, bytes: &[u8]) -> String {
        let socket = self.raw();
        rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        let mut answer = vec![0; 2 * MAX_MESSAGE];
        let (len, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).unwrap();
        String::from_utf8(answer[..len].to_vec()).unwrap()
    }

    /// Runs a fake server that answers one client with these bytes and descriptors.
    fn answer_with(&self, reply: &str, shows: &[&File]) -> ControlError {
        let listener = seqpacket();
        rustix::net::bind(&listener, &SocketAddrUnix::new(self.socket()).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let client = self.connect().expect("a server listens");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let peer = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
                let mut request = [0; MAX_MESSAGE];
                rustix::net::recv(&peer, &mut request[..], RecvFlags::empty()).unwrap();
                let shown: Vec<_> = shows
                    .iter()
                    .map(|file| std::os::fd::AsFd::as_fd(*file))
                    .collect();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
                if !shown.is_empty() {
                    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&shown)));
                }
                let bytes = [IoSlice::new(reply.as_bytes())];
                rustix::net::sendmsg(&peer, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
            });
            client.ask(Request::Status).expect_err("it must be refused")
        })
    }
}

fn seqpacket() -> OwnedFd {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap()
}

/// Held while a child is forked, which has all descriptors of this process until its exec; and by
/// a test whose socket must end when it is dropped.
fn no_forks() -> MutexGuard<'static, ()> {
    static FORKS: Mutex<()> = Mutex::new(());
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn server_sends_region_and_connection() {
    let scene = Scene::new();
    assert!(scene.connect().is_none(), "no server yet");
    let server = scene.serve();
    let mode = fs::metadata(scene.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let client = scene.connect().unwrap();
    assert_eq!(client.pid(), std::process::id().cast_signed());
    let proved = client.ask(Request::Status).unwrap();
    assert_eq!(proved.served, SERVED);
    assert!(proved.connection.is_none());
    let proved = scene.connect().unwrap().ask(Request::Connection).unwrap();
    let connection = proved.connection.unwrap();
    assert_eq!(Identity::of(&connection).unwrap(), Identity::Char(1, 5));

    drop(server);
    assert!(!scene.socket().exists());
    assert!(scene.connect().is_none());
}

#[test]
fn identity_distinguishes_device_and_inode() {
    let scene = Scene::new();
    let _server = scene.serve();
    let other = scene.dir.path().join("other");
    fs::write(&other, "").unwrap();
    let other = Identity::of_path(&other).unwrap();
    assert!(
        Client::connect(&scene.directory(), other)
            .unwrap()
            .is_none()
    );
    // The identity does not depend on the name.
    let link = scene.dir.path().join("link");
    std::os::unix::fs::symlink("region", &link).unwrap();
    assert_eq!(Identity::of_path(&link).unwrap(), scene.identity());
}

/// A killed server leaves its socket.
#[test]
fn stale_control_socket_is_replaced() {
    let scene = Scene::new();
    let no_forks = no_forks();
    let stale = seqpacket();
    rustix::net::bind(&stale, &SocketAddrUnix::new(scene.socket()).unwrap()).unwrap();
    rustix::net::listen(&stale, 1).unwrap();
    drop(stale);
    assert!(scene.socket().exists() && scene.connect().is_none());
    drop(no_forks);
    let _server = scene.serve();
    scene.connect().unwrap().ask(Request::Status).unwrap();
}

#[test]
fn live_control_socket_is_kept() {
    let scene = Scene::new();
    let server = scene.serve();
    let service = Service::new(SERVED, &scene.region, &scene.connection).unwrap();
    let second = Server::start(scene.directory(), service).unwrap_err();
    assert!(matches!(second, ControlError::Taken), "{second}");
    // The first server does not remove a socket that has replaced its own.
    fs::remove_file(scene.socket()).unwrap();
    let later = scene.serve();
    drop(server);
    scene.connect().unwrap().ask(Request::Status).unwrap();
    drop(later);
}

#[test]
fn malformed_message_does_not_stop_server() {
    let scene = Scene::new();
    let _server = scene.serve();
    for (bytes, says) in [
        (
            &b"{\"version\":2,\"request\":\"status\"}"[..],
            "\"version\"",
        ),
        (b"{\"version\":1,\"request\":\"frobnicate\"}", "\"unknown\""),
        (b"{\"version\":1}", "\"unknown\""),
        (b"\xff\x00 nonsense", "\"malformed\""),
        (b"[", "\"malformed\""),
    ] {
        let answer = scene.answer_to(bytes);
        assert!(
            answer.contains("\"refused\"") && answer.contains(says),
            "{answer}"
        );
        assert!(answer.contains("\"version\":1"), "{answer}");
    }
    // Too long, empty, and disconnected: no answer.
    let socket = scene.raw();
    rustix::net::send(&socket, &vec![b' '; MAX_MESSAGE + 1], SendFlags::NOSIGNAL).unwrap();
    let mut byte = [0];
    let ended = rustix::net::recv(&socket, &mut byte[..], RecvFlags::empty());
    assert!(
        matches!(ended, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)),
        "{ended:?}"
    );
    drop(scene.raw());
    let known = b"{\"version\":1,\"request\":\"status\",\"later\":[1]}";
    assert!(scene.answer_to(known).contains("\"serves\""));
}

#[test]
fn answer_without_region_descriptor_is_refused() {
    let served = r#"{"version":1,"reply":"serves","device":[0,1],"user_id":0,"read_only":false,"nosuid":false,"nodev":false,"noexec":false,"nosymfollow":false}"#;
    let other = tempfile::tempfile().unwrap();
    let answer = |reply: &str, region: bool, others: usize| {
        let scene = Scene::new();
        let mut shows = if region {
            vec![&scene.region]
        } else {
            Vec::new()
        };
        shows.resize(shows.len() + others, &other);
        scene.answer_with(reply, &shows)
    };
    let error = answer(served, false, 1);
    assert!(matches!(error, ControlError::OtherRegion), "{error}");
    for (error, says) in [
        (answer(served, false, 0), "0 descriptors"),
        (answer(served, true, 1), "2 descriptors"),
        (answer(served, true, 6), "too long"),
        (answer("{}", true, 0), "version"),
        (answer("nonsense", true, 0), "malformed answer"),
        (
            answer(r#"{"version":1,"reply":"x"}"#, true, 0),
            "malformed answer",
        ),
    ] {
        assert!(matches!(error, ControlError::Malformed(_)), "{error}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    let error = answer(r#"{"version":9,"reply":"x"}"#, true, 0);
    assert!(matches!(error, ControlError::Version(9)), "{error}");
    let no = r#"{"version":1,"reply":"refused","reason":"not-known-yet","message":"why"}"#;
    let error = answer(no, false, 0);
    assert!(
        matches!(&error, ControlError::Refused { reason: Refusal::Other, message } if message == "why"),
        "{error}"
    );
}

/// A silent client delays the next one only until its timeout. A server that never answers
/// causes a timeout.
#[test]
fn silent_peers_run_into_timeout() {
    let scene = Scene::new();
    let server = scene.serve();
    let _silent = scene.raw();
    scene.connect().unwrap().ask(Request::Status).unwrap();
    let silent = scene.raw();
    drop(server);
    drop(silent);

    let listener = seqpacket();
    rustix::net::bind(&listener, &SocketAddrUnix::new(scene.socket()).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let error = scene.connect().unwrap().ask(Request::Status).unwrap_err();
    assert!(matches!(error, ControlError::Timeout(_)), "{error}");
}

#[test]
fn directory_writable_by_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let refused = |path: &Path| {
        let error = Directory::make(path).expect_err("it must be refused");
        assert!(matches!(error, ControlError::Directory { .. }), "{error}");
        error.to_string()
    };
    let mode = |name: &str, mode| {
        fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    assert!(Directory::open(at("missing")).unwrap().is_none());
    let made = Directory::make(at("made")).unwrap();
    assert_eq!(made.path(), at("made"));
    assert_eq!(
        fs::metadata(at("made")).unwrap().permissions().mode() & 0o777,
        0o700
    );

    mode("made", 0o777);
    assert!(refused(&at("made")).contains("written by others"));
    // A sticky directory protects existing names, but all users can make new ones.
    mode("made", 0o1777);
    refused(&at("made"));
    mode("made", 0o770);
    refused(&at("made"));
    mode("made", 0o755);
    Directory::make(at("made")).unwrap();
    std::os::unix::fs::symlink("made", at("link")).unwrap();
    assert!(refused(&at("link")).contains("symbolic link"));
    refused(&at("link/below"));
    // The same holds for the directories above.
    mode("made", 0o777);
    fs::create_dir(at("made/below")).unwrap();
    refused(&at("made/below"));
    refused(Path::new("run/pramfs"));
    if rustix::process::geteuid().is_root() {
        fs::create_dir(at("theirs")).unwrap();
        std::os::unix::fs::chown(at("theirs"), Some(MALLORY), None).unwrap();
        assert!(refused(&at("theirs")).contains("belongs to user 4242"));
        refused(&at("theirs/below"));
    }
}

/// Runs in the process that the test starts as another user.
#[test]
fn as_another_user() {
    let Some(socket) = std::env::var_os("PRAMFS_TEST_SOCKET") else {
        return;
    };
    let address = SocketAddrUnix::new(Path::new(&socket)).unwrap();
    let ours = seqpacket();
    if std::env::var_os("PRAMFS_TEST_LISTENS").is_some() {
        rustix::net::bind(&ours, &address).unwrap();
        rustix::net::listen(&ours, 1).unwrap();
        println!("listening");
        let mut byte = [0];
        let _ended = rustix::io::read(std::io::stdin(), &mut byte[..]);
        return;
    }
    rustix::net::connect(&ours, &address).unwrap();
    let request = b"{\"version\":1,\"request\":\"connection\"}";
    // The server may have disconnected already.
    let _sent = rustix::net::send(&ours, request, SendFlags::NOSIGNAL);
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let answer = rustix::net::recvmsg(
        &ours,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::empty(),
    );
    assert!(
        !answer.is_ok_and(|answer| answer.bytes > 0) && control.drain().next().is_none(),
        "the server has answered another user"
    );
}

/// Starts a copy of this program as another user, with access to what it needs.
fn start_as_mallory(scene: &Scene, listens: bool) -> Child {
    let program = scene.dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command
        .args(["--exact", "as_another_user", "--nocapture"])
        .env("PRAMFS_TEST_SOCKET", scene.socket())
        .current_dir("/")
        .uid(MALLORY)
        .gid(MALLORY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if listens {
        command.env("PRAMFS_TEST_LISTENS", "1");
    }
    // It returns after the exec.
    let _no_other = no_forks();
    command.spawn().unwrap()
}

/// If file modes do not exclude other users, the kernel's peer credentials do.
#[test]
fn peers_of_other_users_are_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root: no process can be started as another user");
        return;
    }
    let scene = Scene::new();
    let open =
        |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(scene.dir.path(), 0o755);
    let server = scene.serve();
    open(&scene.socket(), 0o666);
    let out = start_as_mallory(&scene, false).wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
    drop(server);

    // A server of another user at the place where root looks.
    let sockets = scene.dir.path().join("sockets");
    let directory = scene.directory();
    std::os::unix::fs::chown(&sockets, Some(MALLORY), None).unwrap();
    let mut child = start_as_mallory(&scene, true);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("listening")));
    let error = Client::connect(&directory, scene.identity()).unwrap_err();
    assert!(matches!(error, ControlError::Peer(MALLORY)), "{error}");
    drop(child.stdin.take());
    child.wait().unwrap();
}
