//! A mount as a service of systemd, played by the test: what it is told, and when.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use pramfs_tests::mounted::Mounted;
use rustix::process::{Pid, Signal, kill_process};

use crate::unmounted;

/// The socket of a service manager. A thread reads it: a sender waits while the socket is full.
struct Manager(Receiver<String>);

impl Manager {
    fn new(mount: &Mounted) -> Manager {
        let socket = UnixDatagram::bind(Manager::path(mount)).unwrap();
        let (send, messages) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = socket.recv(&mut bytes) {
                let message = String::from_utf8_lossy(&bytes[..len]).into_owned();
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        Manager(messages)
    }

    fn path(mount: &Mounted) -> std::path::PathBuf {
        mount.region().with_file_name("notify")
    }

    fn start(&self, mount: &Mounted, change: impl FnOnce(&mut Command)) -> Child {
        let mut command = mount.command();
        command.arg("-f").env("NOTIFY_SOCKET", Manager::path(mount));
        change(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        command.spawn().unwrap()
    }

    /// The watchdog of the test ends a wait for ever.
    fn next(&self) -> String {
        self.0.recv().expect("a message to the service manager")
    }

    /// Waits for a message that has this line.
    fn wait_for(&self, line: &str) -> String {
        loop {
            let message = self.next();
            if message.lines().any(|one| one == line) {
                return message;
            }
            assert!(
                message.contains("STATUS=") || message.contains("WATCHDOG=1"),
                "{message}"
            );
        }
    }
}

fn end(server: Child) {
    let out = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {said}", out.status);
}

fn terminate(server: &Child) {
    let pid = Pid::from_child(server);
    kill_process(pid, Signal::TERM).unwrap();
}

#[test]
fn service_is_ready_when_mount_is_live() {
    let Some((mount, _dog)) = unmounted("a service") else {
        return;
    };
    let manager = Manager::new(&mount);
    for options in ["rw", "takeover=on,transport=dev,opens=server"] {
        let server = manager.start(&mount, |command| {
            command.args(["-o", options]);
        });
        let ready = manager.wait_for("READY=1");
        fs::write(mount.at("file"), options).unwrap();
        let (region, place) = (mount.region(), mount.path());
        assert!(ready.contains("STATUS=serves "), "{ready}");
        assert!(ready.contains(region.to_str().unwrap()), "{ready}");
        assert!(ready.contains(place.to_str().unwrap()), "{ready}");
        terminate(&server);
        let stopping = manager.wait_for("STOPPING=1");
        assert!(stopping.contains("STATUS="), "{stopping}");
        end(server);
        mount.wait_for_end();
    }
}

#[test]
fn service_that_fails_says_why_and_is_never_ready() {
    let Some((mount, _dog)) = unmounted("a failing service") else {
        return;
    };
    fs::write(mount.region(), "no region").unwrap();
    let manager = Manager::new(&mount);
    let server = manager.start(&mount, |_| {});
    let message = manager.next();
    assert!(message.starts_with("STATUS="), "{message}");
    assert!(
        message.contains(mount.region().to_str().unwrap()),
        "{message}"
    );
    assert!(!server.wait_with_output().unwrap().status.success());
}

#[test]
fn watchdog_of_service_is_told_while_server_works() {
    let Some((mount, _dog)) = unmounted("a watchdog") else {
        return;
    };
    let manager = Manager::new(&mount);
    for options in ["rw", "takeover=on,transport=dev,opens=server"] {
        let server = manager.start(&mount, |command| {
            command.env("WATCHDOG_USEC", "30000").args(["-o", options]);
        });
        manager.wait_for("READY=1");
        for _ in 0..3 {
            manager.wait_for("WATCHDOG=1");
        }
        terminate(&server);
        manager.wait_for("STOPPING=1");
        end(server);
        mount.wait_for_end();
    }
}

/// A service that mounts something for itself is not told of by the server.
#[test]
fn mount_in_background_tells_service_manager_nothing() {
    let Some((mount, _dog)) = unmounted("the background") else {
        return;
    };
    let manager = Manager::new(&mount);
    let mut command = mount.command();
    let out = command.env("NOTIFY_SOCKET", Manager::path(&mount)).output();
    assert!(out.unwrap().status.success());
    mount.unmount();
    mount.wait_for_end();
    // Whatever it had sent would be before this one.
    let own = UnixDatagram::unbound().unwrap();
    own.send_to(b"the end", Manager::path(&mount)).unwrap();
    assert_eq!(manager.next(), "the end");
}
