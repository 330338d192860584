//! End-to-end tests of `mount.pramfs`: they start the program, the kernel mounts, and they
//! make ordinary system calls. They need root and /dev/fuse; elsewhere every test reports
//! that it was skipped.

mod appends;
mod attacks;
mod attributes;
mod counted;
mod crash;
mod cut;
mod damage;
mod data;
mod direct;
mod direct_append;
mod direct_client;
mod direct_limits;
mod direct_policy;
mod direct_rights;
mod direct_window;
mod direct_write;
mod grow;
mod guests;
mod idmapped;
mod kernel_opens;
mod lifecycle;
mod logging;
mod names;
mod namespaces;
mod privileges;
mod protect;
mod refusals;
mod requests;
mod scrub;
mod second_mount;
mod service;
mod tags;
mod takeover;
mod takeover_files;
mod takeover_processes;
mod tools;
mod transports;
mod unmounting;
mod writeback;

use std::path::Path;
use std::time::Duration;

use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::watchdog::Watchdog;

const MIB: u64 = 1 << 20;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mount-pramfs"))
}

/// Makes a mount for one test, with a watchdog against hangs. Returns `None` if nothing can
/// be mounted.
fn mounted(test: &str, options: &str) -> Option<(Mounted, Watchdog)> {
    let (mount, watchdog) = unmounted(test)?;
    mount.mount(options);
    Some((mount, watchdog))
}

/// As [`mounted`], but without mounting.
fn unmounted(test: &str) -> Option<(Mounted, Watchdog)> {
    if !mounted::available(test) {
        return None;
    }
    // Tests that kill a process as often as asked take as long as that takes.
    let long = std::env::var_os("PRAMFS_TEST_KILLS").is_some();
    let limit = Duration::from_secs(if long { 7200 } else { 60 });
    let watchdog = Watchdog::new(test, limit);
    Some((Mounted::unmounted(program(), 64 * MIB), watchdog))
}

#[test]
fn server_under_test_has_no_test_hooks() {
    let version = mounted::version_of(program());
    assert_eq!(
        version,
        concat!("mount.pramfs ", env!("CARGO_PKG_VERSION")),
        "built together with pramfs-tests, which adds test hooks; type: make test"
    );
}
