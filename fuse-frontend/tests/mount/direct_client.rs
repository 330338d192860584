//! The other process of the tests of direct access: a client that this program starts as
//! itself, perhaps as another user, and that says what it has done.

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Lines, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use pramfs_client::Access;
use pramfs_control::{Connection, DIRECTORY, Directory, Identity};
use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use pramfs_tests::mounted::{Mounted, copy_program};
use rustix::fs::{FlockOperation, Gid, Uid};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::direct::BLOCK;
use crate::direct_write::opened_at;

/// A client process that has said that it is ready. Killed on drop.
pub(super) struct Client {
    pub child: Child,
    pub said: String,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    /// Lets it go on, and returns what it says next.
    pub(super) fn asks(&mut self) -> Option<String> {
        self.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        self.says()
    }

    /// Returns what it says next; `None` if it has ended.
    pub(super) fn says(&mut self) -> Option<String> {
        next_said(&mut self.lines)
    }
}

fn next_said(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<String> {
    lines.find_map(|line| line.ok()?.strip_prefix("client: ").map(str::to_owned))
}

impl Drop for Client {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Starts this program as a client, perhaps as another user, and waits for its first line.
pub(super) fn start(user: Option<u32>, mount: &Mounted, what: &str, args: &[String]) -> Client {
    start_in_groups(user, &[], mount, what, args)
}

/// As [`start`], with supplementary groups of the user.
pub(super) fn start_in_groups(
    user: Option<u32>,
    groups: &[u32],
    mount: &Mounted,
    what: &str,
    args: &[String],
) -> Client {
    let dir = tempfile::tempdir().unwrap();
    let mut program = std::env::current_exe().unwrap();
    if user.is_some() {
        // In a place where that user may execute it.
        let copy = dir.path().join("program");
        copy_program(&program, &copy);
        let open = |path: &Path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, mode).unwrap();
        };
        open(&copy);
        open(dir.path());
        open(mount.path().parent().unwrap());
        program = copy;
    }
    let mut command = Command::new(program);
    command
        .args(["--exact", "direct_client::client_process", "--nocapture"])
        .env("PRAMFS_TEST_CLIENT", what)
        .env("PRAMFS_TEST_FILE", mount.at("file"))
        .env("PRAMFS_TEST_REGION", mount.region())
        .env("PRAMFS_TEST_ARGS", args.join(" "))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if let Some(user) = user {
        let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let become_user = move || {
            rustix::thread::set_thread_groups(&groups)?;
            rustix::thread::set_thread_gid(Gid::from_raw(user))?;
            Ok(rustix::thread::set_thread_uid(Uid::from_raw(user))?)
        };
        // SAFETY: makes system calls and allocates nothing. The child has one thread.
        unsafe { command.pre_exec(become_user) };
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = next_said(&mut lines).expect("the client says something");
    Client { child, said, lines }
}

pub(super) fn as_user(user: u32, mount: &Mounted, what: &str, args: &[String]) -> String {
    start(Some(user), mount, what, args).said.clone()
}

/// Runs in the processes that the tests start.
#[test]
fn client_process() {
    let Ok(what) = std::env::var("PRAMFS_TEST_CLIENT") else {
        return;
    };
    let env = |name| std::env::var(name).unwrap();
    let path = env("PRAMFS_TEST_FILE");
    let say = |what: &str| {
        println!("client: {what}");
        std::io::stdout().flush().unwrap();
    };
    let refusal = |result: Result<(), pramfs_control::ControlError>| match result {
        Err(pramfs_control::ControlError::Refused { reason, .. }) => format!("refused: {reason:?}"),
        other => format!("{other:?}"),
    };
    // Only root can reach the socket.
    let server = || {
        let directory = Directory::open(DIRECTORY).ok().flatten()?;
        let identity = Identity::of_path(env("PRAMFS_TEST_REGION").as_ref()).ok()?;
        let opened = Connection::open(&directory, &identity.socket_name());
        opened.ok().flatten()
    };
    let address = || {
        let identity = Identity::of_path(env("PRAMFS_TEST_REGION").as_ref()).unwrap();
        SocketAddrUnix::new(Path::new(DIRECTORY).join(identity.socket_name())).unwrap()
    };
    let wait = || {
        let mut byte = [0];
        let _ended = rustix::io::read(std::io::stdin(), &mut byte);
    };
    match what.as_str() {
        "open" => match pramfs_client::File::open(path) {
            Ok(_) => say("opened"),
            Err(error) => say(&format!("error: {} {error}", error.errno())),
        },
        "redeem" => {
            let ticket = env("PRAMFS_TEST_ARGS").parse().unwrap();
            let lease = |server: Connection| refusal(server.lease(ticket).map(drop));
            say(&server().map_or("no connection".into(), lease));
        }
        "leases" => {
            let list = |server: Connection| refusal(server.leases().map(drop));
            say(&server().map_or("no connection".into(), list));
        }
        "requests" => {
            let count = |server: Connection| refusal(server.requests().map(drop));
            say(&server().map_or("no connection".into(), count));
        }
        "pass" => {
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
            let socket = socket.unwrap();
            rustix::net::connect(&socket, &address()).unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let passed = [std::io::stdin().as_fd().try_clone_to_owned().unwrap()];
            let passed = passed.each_ref().map(AsFd::as_fd);
            assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
            let bytes = [IoSlice::new(b"{}")];
            let sent = rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::empty());
            say(&sent.map_or_else(|error| format!("refused: {error}"), |_| "sent".into()));
        }
        "connect" => {
            let mut open = std::collections::VecDeque::new();
            for _ in 0..10_000 {
                if open.len() == 500 {
                    open.pop_front();
                }
                let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
                let socket = socket.unwrap();
                rustix::net::connect(&socket, &address()).unwrap();
                open.push_back(socket);
            }
            say("connected");
            wait();
        }
        "hold" => {
            let file = pramfs_client::File::open(path).unwrap();
            let view = file.map(0..file.len().unwrap(), Access::Read).unwrap();
            say("holding");
            wait();
            drop((view, file));
        }
        "no-room" => {
            let file = opened_at(path.as_ref());
            let refusals = without_room(&path, &file);
            // With room again, the same file is mapped.
            let view = file.map(0..BLOCK as u64, Access::Write).unwrap();
            view.store(8, 7u8).unwrap();
            for refused in refusals {
                say(&refused);
            }
        }
        "hold-only-view" => {
            let file = pramfs_client::File::open(path).unwrap();
            let view = file.map(0..file.len().unwrap(), Access::Read).unwrap();
            drop(file);
            // The open file of the mount would keep it busy.
            close_files_of_mount();
            say("holding");
            wait();
            drop(view);
        }
        "churn" => {
            say("churning");
            let dir = Path::new(&path).parent().unwrap().to_owned();
            for n in (0..8).cycle() {
                let file = pramfs_client::File::open(dir.join(format!("file{n}"))).unwrap();
                let mut bytes = [0; 5000];
                file.read_exact_at(&mut bytes, 3 * BLOCK as u64).unwrap();
                let view = file.map(0..BLOCK as u64, Access::Read).unwrap();
                assert_eq!(view.load::<u8>(0).unwrap(), 1);
            }
        }
        "hold-for-writing" => {
            let file = opened_at(path.as_ref());
            let view = file.map(0..file.len().unwrap(), Access::Write).unwrap();
            say("holding");
            wait();
            drop((view, file));
        }
        "count" => {
            let file = opened_at(path.as_ref());
            let view = file.map(0..BLOCK as u64, Access::Write).unwrap();
            say("counting");
            for _ in 0..100_000 {
                view.fetch_add(64, 1u64).unwrap();
            }
            view.persist(64..72).unwrap();
            say("done");
        }
        "write" => {
            let file = opened_at(path.as_ref());
            for n in 1u64.. {
                let at = n % (BLOCK as u64 / 8) * 8;
                file.write_all_at(&n.to_le_bytes(), at).unwrap();
                say(&n.to_string());
            }
        }
        "scrub" => {
            let start = pramfs_medium::pmem::ScrubRequest::Start {
                resume: false,
                limit: None,
            };
            match crate::scrub::ask(env("PRAMFS_TEST_ARGS").as_ref(), start) {
                Ok(_) => say("started"),
                Err(e) => say(&format!("errno {}", e.raw_os_error().unwrap_or(0))),
            }
        }
        "grow" => match crate::grow::grow(env("PRAMFS_TEST_ARGS").as_ref(), Some(128 << 20)) {
            Ok((_, to)) => say(&format!("grown to {to}")),
            Err(error) => say(&format!("errno {}", error.raw_os_error().unwrap())),
        },
        "open-for-writing" => match pramfs_client::OpenOptions::new().write(true).open(path) {
            Ok(_) => say("opened"),
            Err(error) => say(&format!("error: {} {error}", error.errno())),
        },
        "revoke" => {
            let lease = pramfs_control::LeaseKey { slot: 0, id: 1 };
            let revoke = |server: Connection| refusal(server.revoke(lease));
            say(&server().map_or("no connection".into(), revoke));
        }
        "reopen" => {
            let (_, descriptor) = raw_lease(&path, &server().unwrap());
            let way = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
            let again = fs::File::options().write(true).open(way);
            say(&again.map_or_else(|error| format!("refused: {error}"), |_| "opened".into()));
        }
        "connections" => {
            let mut open = Vec::new();
            for _ in 0..40 {
                let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
                let socket = socket.unwrap();
                rustix::net::connect(&socket, &address()).unwrap();
                open.push(socket);
            }
            // Those without a place are told so and closed; others after their time of silence.
            let request = br#"{"version":1,"request":"status"}"#;
            let mut answer = [0; 4096];
            let served = open.iter().filter(|socket| {
                rustix::net::send(socket, request, SendFlags::NOSIGNAL).is_ok()
                    && rustix::net::recv(socket, &mut answer[..], RecvFlags::empty()).is_ok_and(
                        |(len, _)| {
                            let said = String::from_utf8_lossy(&answer[..len]);
                            len > 0 && !said.contains(r#""reason":"full""#)
                        },
                    )
            });
            say(&served.count().to_string());
            wait();
        }
        "lock" => {
            let (granted, descriptor) = raw_lease(&path, &server().unwrap());
            let at = granted.blocks.extents[0].region_offset;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let map = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    BLOCK,
                    ProtFlags::READ,
                    MapFlags::SHARED,
                    &descriptor,
                    at,
                )
            };
            let map = map.unwrap().cast::<u8>();
            say("leased");
            rustix::fs::flock(&descriptor, FlockOperation::LockExclusive).unwrap();
            say("locked");
            loop {
                wait();
                // SAFETY: the mapping is never removed.
                say(&unsafe { map.read_volatile() }.to_string());
            }
        }
        "map-only" => {
            let connection = server().unwrap();
            let (granted, descriptor) = raw_lease(&path, &connection);
            let [extent] = &granted.blocks.extents[..] else {
                panic!("{:?}", granted.blocks.extents)
            };
            let len = usize::try_from(extent.len).unwrap();
            // SAFETY: a new mapping at an address that the kernel chooses.
            let map = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ,
                    MapFlags::SHARED,
                    &descriptor,
                    extent.region_offset,
                )
            };
            let map = map.unwrap().cast::<u8>();
            drop((descriptor, connection));
            close_files_of_mount();
            say("mapped");
            loop {
                wait();
                // SAFETY: the mapping is never removed, and `at` lies in it.
                let bytes = (0..len).map(|at| unsafe { map.add(at).read_volatile() });
                let mut blocks: Vec<u8> = bytes.collect();
                blocks.dedup();
                say(&format!("{blocks:?}"));
            }
        }
        "lock-in-socket" => {
            let (_, descriptor) = raw_lease(&path, &server().unwrap());
            let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
            say("leased");
            rustix::fs::flock(&descriptor, FlockOperation::LockExclusive).unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let passed = [descriptor.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
            let bytes = [IoSlice::new(b"x")];
            rustix::net::sendmsg(&ours, &bytes, &mut control, SendFlags::empty()).unwrap();
            drop(descriptor);
            say("locked");
            wait();
            drop(theirs);
        }
        "flicker" => {
            let (_, descriptor) = raw_lease(&path, &server().unwrap());
            say("leased");
            wait();
            say("flickers");
            loop {
                let _locked = rustix::fs::flock(&descriptor, FlockOperation::LockExclusive);
                std::thread::yield_now();
                let _free = rustix::fs::flock(&descriptor, FlockOperation::Unlock);
            }
        }
        "serve" => {
            let sign = env("PRAMFS_TEST_ARGS");
            let region = env("PRAMFS_TEST_REGION");
            let mut served = 0;
            say("serves");
            for _ in 0..100 {
                let opened = pramfs::pmem::RegionOptions::new().open(&region);
                let Ok(region) = opened else {
                    continue;
                };
                // Fails if another one serves.
                let alive = fs::File::create_new(&sign);
                std::thread::yield_now();
                if alive.is_err() || fs::remove_file(&sign).is_err() {
                    say("two servers");
                    return;
                }
                drop(region);
                served += 1;
            }
            say(&served.to_string());
        }
        "append" => crate::direct_append::append_records(&path, &say),
        other => panic!("unknown: {other}"),
    }
}

/// How often a process tries to use its last mapping: more than the usual `vm.max_map_count`.
const MAPPINGS: usize = 70_000;

/// What a client says that has no addresses left, and then no mappings, for a view and for
/// another file.
fn without_room(path: &str, file: &pramfs_client::File) -> Vec<String> {
    let error = |refused: Result<(), pramfs_client::Error>| match refused {
        Ok(()) => "no error".to_owned(),
        Err(error) => format!("errno {}: {error}", error.errno()),
    };
    let all = || {
        let opened = pramfs_client::OpenOptions::new().write(true).open(path);
        let mapped = file.map(0..file.len().unwrap(), Access::Write);
        [opened.map(drop), mapped.map(drop)]
    };
    let old = getrlimit(Resource::As);
    let none = Rlimit {
        current: Some(1 << 20),
        ..old
    };
    setrlimit(Resource::As, none).unwrap();
    let addresses = all();
    setrlimit(Resource::As, old).unwrap();
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<usize>().unwrap() >= MAPPINGS {
        let mut said = addresses.map(error).to_vec();
        said.push(format!(
            "skipped: a process may have {} mappings",
            most.trim()
        ));
        return said;
    }
    // Neighbours that differ do not join.
    let mut used = Vec::with_capacity(MAPPINGS);
    for n in 0..MAPPINGS {
        let protection = [ProtFlags::empty(), ProtFlags::READ][n % 2];
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            let private = MapFlags::PRIVATE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), BLOCK, protection, private)
        };
        match at {
            Ok(at) => used.push(at),
            Err(_) => break,
        }
    }
    let mappings = all();
    for at in used {
        // SAFETY: mapped above, and nobody else knows of it.
        unsafe { rustix::mm::munmap(at, BLOCK).unwrap() };
    }
    let all = addresses.into_iter().chain(mappings);
    all.map(error).collect()
}

/// Gets a lease to read, without the client library.
fn raw_lease(path: &str, server: &Connection) -> (pramfs_control::Granted, OwnedFd) {
    let file = fs::File::open(path).unwrap();
    let bytes = lease_ticket(file.as_fd(), LeaseMode::Read).unwrap();
    let ticket = pramfs_control::TicketReply::decode(&bytes).unwrap().ticket;
    server.lease(ticket).unwrap()
}

/// Closes the descriptors of files of the mount, as a program does that only maps.
fn close_files_of_mount() {
    let path = std::env::var("PRAMFS_TEST_FILE").unwrap();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(&path)) {
            let number = entry.file_name().to_str().unwrap().parse().unwrap();
            // SAFETY: the process ends without using the file again.
            drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
        }
    }
}
