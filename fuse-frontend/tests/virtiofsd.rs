//! The program `pramfs-virtiofsd`: its sockets, its privileges, its end. What it serves is tested
//! in `src/door` and `src/transport/virtio`, and in a virtual machine (docs/vm-testing.md).

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;

const PATIENCE: Duration = Duration::from_secs(20);

struct Scene(TempDir);

impl Scene {
    fn new() -> Scene {
        let scene = Scene(tempfile::tempdir().unwrap());
        let region = RegionOptions::new().create(scene.region(), 16 << 20);
        format(&region.unwrap(), &FormatOptions::default()).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn region(&self) -> PathBuf {
        self.path("region")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pramfs-virtiofsd"));
        command.arg("--shared-dir").arg(self.region());
        command
    }

    /// Starts a server with these sockets, and waits until it is ready.
    fn serve(&self, sockets: &[&str]) -> Server {
        let mut command = self.command();
        for socket in sockets {
            command.arg("--socket-path").arg(self.path(socket));
        }
        Server::start(&mut command)
    }
}

struct Server {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = send.send(line);
            }
        });
        let server = Server { child, lines };
        server.says("ready for guests");
        server
    }

    fn says(&self, text: &str) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Ok(line) = self.lines.recv_timeout(PATIENCE)
                && line.contains(text)
            {
                return;
            }
        }
        panic!("the server does not say {text}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end. Returns the exit status.
    fn end(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failure only: otherwise it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(socket: &Path) -> Frontend {
    let frontend = Frontend::connect(socket, 1).unwrap();
    frontend.set_owner().unwrap();
    assert_ne!(frontend.get_features().unwrap(), 0);
    frontend
}

#[test]
fn server_listens_until_sigterm_and_the_next_takes_its_sockets() {
    let scene = Scene::new();
    let server = scene.serve(&["one", "two"]);
    for socket in ["one", "two"] {
        let mode = std::fs::symlink_metadata(scene.path(socket))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // A VMM that goes away, and one that stays.
    drop(connect(&scene.path("one")));
    server.says("the VMM is gone");
    let _one = connect(&scene.path("one"));
    let _two = connect(&scene.path("two"));
    kill_process(server.pid(), Signal::TERM).unwrap();
    server.says("disconnecting all guests");
    assert_eq!(server.end(), Some(0));
    // The region is closed and free.
    let region = RegionOptions::new().open(scene.region()).unwrap();
    let fs = pramfs::inode::Fs::open(region, pramfs::MountOptions::default()).unwrap();
    assert!(fs.recovery().was_clean);
    drop(fs);
    // A server without a view of files leaves their names.
    let next = scene.serve(&["one", "two"]);
    let _again = connect(&scene.path("one"));
    kill_process(next.pid(), Signal::TERM).unwrap();
    assert_eq!(next.end(), Some(0));
}

#[test]
fn server_of_protected_region_with_atomic_data_starts_and_ends_cleanly() {
    let scene = Scene::new();
    for protect in ["auto", "mprotect"] {
        let mut command = scene.command();
        command.args(["--data", "atomic", "--protect", protect]);
        command.arg("--socket-path").arg(scene.path("one"));
        let server = Server::start(&mut command);
        let mappings = std::fs::read_to_string(format!("/proc/{}/maps", server.child.id()));
        let region = scene.region();
        let mappings = mappings.unwrap();
        let of_region = mappings
            .lines()
            .filter(|line| line.ends_with(region.to_str().unwrap()));
        let writable = of_region.filter(|line| line.contains(" rw-s ")).count();
        if protect == "mprotect" {
            assert_eq!(writable, 0, "{mappings}");
        }
        let _vmm = connect(&scene.path("one"));
        kill_process(server.pid(), Signal::TERM).unwrap();
        // The unmount stores under the filter of system calls.
        assert_eq!(server.end(), Some(0), "protect={protect}");
        let region = RegionOptions::new().open(scene.region()).unwrap();
        let fs = pramfs::inode::Fs::open(region, pramfs::MountOptions::default()).unwrap();
        assert!(fs.recovery().was_clean);
    }
}

#[test]
fn second_server_of_region_or_socket_fails() {
    let scene = Scene::new();
    let server = scene.serve(&["socket"]);
    let fails = |socket: &str, says: &str| {
        let out = scene
            .command()
            .arg("--socket-path")
            .arg(scene.path(socket))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(says), "{text}");
    };
    fails("other", "in use");
    assert!(!scene.path("other").exists());
    fails("socket", "another server listens there");
    std::fs::write(scene.path("file"), "kept").unwrap();
    fails("file", "no socket");
    assert_eq!(std::fs::read(scene.path("file")).unwrap(), b"kept");
    // The first one still serves, and after SIGKILL the socket is taken over.
    drop(connect(&scene.path("socket")));
    kill_process(server.pid(), Signal::KILL).unwrap();
    assert_eq!(server.end(), None);
    let next = scene.serve(&["socket"]);
    drop(connect(&scene.path("socket")));
    kill_process(next.pid(), Signal::INT).unwrap();
    assert_eq!(next.end(), Some(0));
}

#[test]
fn server_of_a_socket_that_was_handed_over_ends_with_its_vmm() {
    let scene = Scene::new();
    let listener = UnixListener::bind(scene.path("socket")).unwrap();
    // The program inherits it under the same number.
    rustix::io::fcntl_setfd(&listener, FdFlags::empty()).unwrap();
    let number = listener.as_raw_fd().to_string();
    let server = Server::start(scene.command().args(["--fd", &number]));
    drop(connect(&scene.path("socket")));
    assert_eq!(server.end(), Some(0));
    // No socket, and one that does not listen.
    let (stream, _other) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&stream, FdFlags::empty()).unwrap();
    for number in [stream.as_raw_fd(), 0, 999] {
        let mut command = scene.command();
        let out = command
            .args(["--fd", &number.to_string()])
            .stdin(Stdio::null())
            .output();
        let out = out.unwrap();
        assert_eq!(out.status.code(), Some(1), "{number}: {out:?}");
    }
}

#[test]
fn server_keeps_no_capability_and_filters_system_calls() {
    let scene = Scene::new();
    let server = scene.serve(&["socket"]);
    let _guest = connect(&scene.path("socket"));
    let tasks = format!("/proc/{}/task", server.pid().as_raw_nonzero());
    for task in std::fs::read_dir(tasks).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set} {status}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
        assert_eq!(field("Seccomp:"), "2");
    }
    kill_process(server.pid(), Signal::TERM).unwrap();
    assert_eq!(server.end(), Some(0));
}

#[test]
fn guest_beside_a_mount_has_a_socket_as_long_as_the_mount() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return pramfs_tests::skip::skipped("not root, or no /dev/fuse");
    }
    let scene = Scene::new();
    let (at, socket) = (scene.path("mount"), scene.path("socket"));
    std::fs::create_dir(&at).unwrap();
    let mount = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-pramfs"));
        command.arg(scene.region()).arg(&at).args(more);
        command.arg("--virtiofs").arg(&socket).output().unwrap()
    };
    let mounted = mount(&[]);
    assert!(mounted.status.success(), "{mounted:?}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.contains(at.to_str().unwrap()));
    let line = line.expect("the mount");
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    std::fs::write(at.join("file"), "kept").unwrap();
    drop(connect(&socket));
    let guest = connect(&socket);
    // A mount that is there serves no further guests.
    assert!(!mount(&[]).status.success());
    drop(guest);
    let unmounted = Command::new("umount").arg(&at).status().unwrap();
    assert!(unmounted.success());
    let begun = Instant::now();
    while socket.exists() {
        assert!(begun.elapsed() < PATIENCE, "the server does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}
