//! A server in threads of this process.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Fs, Ino};
use pramfs::pmem::{HeapBackend, Region, RegionOptions};
pub(super) use pramfs_tests::vmm::*;
use tempfile::TempDir;

use super::super::{Gate, GuestSettings, Socket, Stop};
use crate::adapter::{Adapter, CacheMode, Notifier};
use crate::door::{Door, DoorSettings, Translations};

/// The server, in threads of this process.
pub(super) struct Server {
    pub(super) dir: TempDir,
    pub(super) fs: Arc<Fs>,
    pub(super) stop: Arc<Stop>,
    pub(super) thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    pub(super) fn new(settings: &GuestSettings) -> Server {
        let dir = tempfile::tempdir().unwrap();
        // A region in memory has no descriptor that could be mapped.
        let region = match settings.window {
            None => Region::new("test", HeapBackend::boxed(16 << 20)),
            Some(_) => RegionOptions::new()
                .create(dir.path().join("region"), 16 << 20)
                .unwrap(),
        };
        format(&region, &FormatOptions::default()).unwrap();
        let fs = Arc::new(Fs::open(region, MountOptions::default()).unwrap());
        let socket = Socket::bind(&dir.path().join("socket")).unwrap();
        let stop = Arc::new(Stop::new().unwrap());
        let adapter = Adapter::new(Arc::clone(&fs), CacheMode::Auto, Notifier::of_guest());
        let (settings, stops) = (settings.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let door_settings = DoorSettings {
                maps: settings.window.is_some(),
                copies: settings.window.is_some(),
                ..DoorSettings::default()
            };
            let door = || Door::new(adapter.of_guest(), door_settings, Translations::default());
            let gate = Gate {
                number: 0,
                socket,
                settings,
                once: false,
                trusts_vmm: false,
                door: &door,
            };
            gate.serve(&stops)
        });
        Server {
            dir,
            fs,
            stop,
            thread: Some(thread),
        }
    }

    pub(super) fn connect(&self) -> Guest {
        Guest::new(&self.dir.path().join("socket"))
    }

    /// Waits for the removal of an inode.
    pub(super) fn wait_until_gone(&self, ino: Ino) {
        let begun = Instant::now();
        while self.fs.getattr(ino).is_ok() {
            assert!(begun.elapsed() < PATIENCE, "{ino} is still there");
            self.fs.free_forgotten();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        let begun = Instant::now();
        let thread = self.thread.take().unwrap();
        while !thread.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        if !std::thread::panicking() {
            thread.join().unwrap().unwrap();
            assert!(!self.dir.path().join("socket").exists());
        }
    }
}

pub(super) fn settings(pool: usize) -> GuestSettings {
    GuestSettings {
        request_queues: QUEUES - 1,
        pool,
        tag: None,
        window: None,
    }
}
