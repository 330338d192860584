//! The subcommands that ask the server of a live mount, with real mounts: they need root and
//! /dev/fuse. `mount.pramfs` is the one that cargo has built.

#[path = "../common/mod.rs"]
mod common;
mod defrag;
mod leases;
mod logs;
mod metrics;
mod odd_names;
mod set;
mod status;
mod structures;
mod top;

use std::fs;
use std::os::unix::fs::MetadataExt;

use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::watchdog::Watchdog;
use std::time::Duration;

/// A mount for one test, or `None` where nothing can be mounted.
fn live(test: &str, options: &str) -> Option<(Mounted, Watchdog)> {
    if !mounted::available(test) {
        return None;
    }
    let watchdog = Watchdog::new(test, Duration::from_secs(300));
    let mount = Mounted::unmounted(&mounted::program(), 64 << 20);
    mount.mount(options);
    Some((mount, watchdog))
}

/// Makes, writes and reads a file, and looks for one that does not exist.
fn work(mount: &Mounted) {
    let file = mount.at("secret-name");
    fs::write(&file, vec![7; 100_000]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(&file).unwrap().len(), 100_000);
    assert!(fs::metadata(mount.at("missing")).is_err());
    assert!(fs::metadata(&file).unwrap().ino() > 0);
}
