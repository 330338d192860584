//! The state of a mount over a control socket.

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pramfs_control::{
    Connection, ControlError, Directory, Identity, LogLevel, Logging, MAX_STATUS, MountStatus,
    OperationStatus, Refusal, Report, Served, Server, Service, SetLogging,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use tempfile::TempDir;

const SERVED: Served = Served {
    device: (0, 77),
    user_id: 0,
    read_only: false,
    nosuid: true,
    nodev: false,
    noexec: false,
    nosymfollow: false,
};

/// A mount whose label has this length, and characters that take more room in JSON.
#[derive(Debug)]
struct Fake {
    label: String,
    logging: Mutex<Logging>,
    asked: Mutex<u32>,
}

impl Fake {
    fn new(label: String) -> Arc<Fake> {
        Arc::new(Fake {
            label,
            logging: Mutex::default(),
            asked: Mutex::default(),
        })
    }
}

impl Report for Fake {
    fn status(&self) -> MountStatus {
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        let operation = |nth| OperationStatus {
            name: format!("OPERATION_{nth}"),
            count: u64::MAX,
            ..OperationStatus::default()
        };
        MountStatus {
            label: self.label.clone(),
            pid: *asked,
            operations: (0..50).map(operation).collect(),
            ..MountStatus::default()
        }
    }

    fn set_logging(&self, change: &SetLogging) -> Result<Logging, String> {
        if change.level == Some(LogLevel::Trace) {
            return Err("not today".into());
        }
        let mut logging = self.logging.lock().unwrap();
        if let Some(slow) = change.slow_us {
            logging.slow_us = slow;
        }
        Ok(logging.clone())
    }
}

struct Scene {
    dir: TempDir,
    region: File,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sockets")).unwrap();
        let region = File::create(dir.path().join("region")).unwrap();
        Scene { dir, region }
    }

    fn directory(&self) -> Directory {
        Directory::open(self.dir.path().join("sockets"))
            .unwrap()
            .unwrap()
    }

    fn name(&self) -> String {
        Identity::of(&self.region).unwrap().socket_name()
    }

    fn serve(&self, report: Option<Arc<Fake>>) -> Server {
        let mut service = Service::new(SERVED, &self.region, &self.region).unwrap();
        if let Some(report) = report {
            service = service.with_report(report);
        }
        Server::start(self.directory(), service).unwrap()
    }

    fn connect(&self) -> Connection {
        Connection::open(&self.directory(), &self.name())
            .unwrap()
            .unwrap()
    }
}

#[test]
fn state_of_any_length_and_characters_arrives_whole() {
    let labels = [
        String::new(),
        "\"\\\n\u{1}".repeat(500),
        "\u{1f980}".repeat(3000),
        "\\".repeat(1899) + "\u{20ac}\u{20ac}",
        "x".repeat(200_000),
    ];
    for label in labels {
        let scene = Scene::new();
        let fake = Fake::new(label.clone());
        let _server = scene.serve(Some(fake.clone()));
        let connection = scene.connect();
        for asked in 1..=2 {
            let status = connection.status().unwrap();
            assert_eq!(status.label, label);
            // One document for all its pieces.
            assert_eq!((status.pid, status.operations.len()), (asked, 50));
        }
        assert_eq!(connection.pid(), std::process::id().cast_signed());
    }
}

#[test]
fn state_that_is_too_long_is_refused() {
    let scene = Scene::new();
    let _server = scene.serve(Some(Fake::new("x".repeat(MAX_STATUS))));
    let refused = scene.connect().status().unwrap_err();
    assert!(
        refused.to_string().contains("more than 1048576"),
        "{refused}"
    );
}

#[test]
fn server_without_report_refuses_state_and_logging() {
    let scene = Scene::new();
    let _server = scene.serve(None);
    let connection = scene.connect();
    for refused in [
        connection.status().unwrap_err(),
        connection.set_logging(SetLogging::default()).unwrap_err(),
    ] {
        let is_unsupported = matches!(
            refused,
            ControlError::Refused {
                reason: Refusal::Unsupported,
                ..
            }
        );
        assert!(is_unsupported, "{refused}");
    }
}

#[test]
fn logging_is_set_and_shown() {
    let scene = Scene::new();
    let _server = scene.serve(Some(Fake::new(String::new())));
    let connection = scene.connect();
    let change = SetLogging {
        level: Some(LogLevel::Debug),
        slow_us: Some(50_000),
    };
    assert_eq!(connection.set_logging(change).unwrap().slow_us, 50_000);
    let now = connection.set_logging(SetLogging::default()).unwrap();
    assert_eq!(now.slow_us, 50_000, "what is missing stays");
    let refused = connection.set_logging(SetLogging {
        level: Some(LogLevel::Trace),
        slow_us: None,
    });
    assert!(refused.unwrap_err().to_string().contains("not today"));
}

/// A socket that somebody has bound and never answers on, as a stopped server does.
#[test]
fn silent_server_is_given_up_after_the_limit_of_the_client() {
    let scene = Scene::new();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let path = scene.dir.path().join("sockets").join(scene.name());
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    let limit = Duration::from_millis(100);
    let connection = Connection::open_within(&scene.directory(), &scene.name(), limit);
    let connection = connection.unwrap().expect("a process listens");
    assert_eq!(
        connection.pid(),
        std::process::id().cast_signed(),
        "known without an answer"
    );
    let error = connection.status().unwrap_err();
    assert!(
        matches!(error, ControlError::Timeout(time) if time == limit),
        "{error}"
    );
    assert!(error.to_string().contains("0.1 s"), "{error}");
}
