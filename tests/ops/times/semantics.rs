//! Times: lagging updates, their bound, and the operations that store them.

use std::time::Duration;

use pramfs::inode::{Credentials, Fs, Ino, SetAttr, SetTime, Time};
use pramfs::{AtimePolicy, MountOptions};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{formatted, mount, quiet, repeatable};
use pramfs_tests::watchdog::Watchdog;

use crate::support::library::{
    MIB, ROOT, Stopped, after_a_crash, file, find, names, remount, small,
};

fn mtime(fs: &Fs, ino: Ino) -> i64 {
    fs.getattr(ino).unwrap().mtime.sec
}

fn atime(fs: &Fs, ino: Ino) -> i64 {
    fs.getattr(ino).unwrap().atime.sec
}

fn read(fs: &Fs, ino: Ino) {
    fs.read(ino, 0, &mut [0; 4]).unwrap();
}

/// The mtime of an overwrite is visible at once, but reaches the medium later.
#[test]
fn overwrite_mtime_may_lag_on_medium() {
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let fs = mount(&sim, clock.options()).unwrap();
    let ino = file(&fs, "f");
    fs.write(&Credentials::ROOT, ino, 0, b"first").unwrap();
    clock.set(2_000);
    fs.write(&Credentials::ROOT, ino, 0, b"again").unwrap();
    assert_eq!(mtime(&fs, ino), 2_000);
    assert_eq!(mtime(&after_a_crash(&sim).1, ino), 1_000);
    fs.fsync(ino, true).unwrap();
    assert_eq!(
        mtime(&after_a_crash(&sim).1, ino),
        1_000,
        "fdatasync leaves times alone"
    );
    fs.fsync(ino, false).unwrap();
    assert_eq!(mtime(&after_a_crash(&sim).1, ino), 2_000);
    // The next record of the inode includes it.
    clock.set(3_000);
    fs.write(&Credentials::ROOT, ino, 0, b"third").unwrap();
    fs.link(ino, Ino::ROOT, b"g").unwrap();
    assert_eq!(mtime(&after_a_crash(&sim).1, ino), 3_000);
    // The unmount stores it too.
    clock.set(4_000);
    fs.write(&Credentials::ROOT, ino, 0, b"fourth").unwrap();
    let fs = remount(&sim, fs, clock.options());
    assert_eq!(mtime(&fs, ino), 4_000);
}

/// With the timer on, the lag ends within a second.
#[test]
fn lagging_mtime_is_stored_within_one_second() {
    let _dog = Watchdog::new("lagging mtime", Duration::from_secs(30));
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let options = MountOptions {
        background: true,
        ..clock.options()
    };
    let fs = mount(&sim, options).unwrap();
    let ino = file(&fs, "f");
    fs.write(&Credentials::ROOT, ino, 0, b"first").unwrap();
    clock.set(2_000);
    fs.write(&Credentials::ROOT, ino, 0, b"again").unwrap();
    // The image is taken while the timer stores. What cannot be read in it is not stored yet.
    let stored = || {
        let image = SimBackend::from_image(&sim.image()).unwrap();
        let fs = mount(&image, quiet()).ok()?;
        fs.getattr(ino).ok().map(|attr| attr.mtime.sec)
    };
    while stored() != Some(2_000) {
        // A second; more on a busy machine.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A write that changes the size stores its times at once.
#[test]
fn extending_write_stores_mtime_at_once() {
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let fs = mount(&sim, clock.options()).unwrap();
    let ino = file(&fs, "f");
    clock.set(2_000);
    fs.append(&Credentials::ROOT, ino, b"more").unwrap();
    assert_eq!(mtime(&after_a_crash(&sim).1, ino), 2_000);
}

fn with_policy(atime: AtimePolicy, dir_atime: bool) -> (Stopped, Fs, Ino) {
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let options = MountOptions {
        atime,
        dir_atime,
        ..clock.options()
    };
    let fs = mount(&sim, options).unwrap();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, b"contents").unwrap();
    (clock, fs, ino)
}

#[test]
fn relatime_sets_atime_after_change_and_daily() {
    let (clock, fs, ino) = with_policy(AtimePolicy::Relatime, true);
    clock.set(1_010);
    read(&fs, ino);
    assert_eq!(atime(&fs, ino), 1_010);
    clock.set(1_020);
    read(&fs, ino);
    assert_eq!(atime(&fs, ino), 1_010, "nothing has changed since");
    fs.write(&Credentials::ROOT, ino, 0, b"C").unwrap();
    clock.set(1_030);
    read(&fs, ino);
    assert_eq!(atime(&fs, ino), 1_030);
    clock.set(1_030 + 86_399);
    read(&fs, ino);
    assert_eq!(atime(&fs, ino), 1_030);
    clock.set(1_030 + 86_400);
    read(&fs, ino);
    assert_eq!(atime(&fs, ino), 1_030 + 86_400);
}

#[test]
fn noatime_never_and_strictatime_always_sets_atime() {
    let (clock, fs, ino) = with_policy(AtimePolicy::NoAtime, true);
    clock.set(200_000);
    read(&fs, ino);
    assert_eq!(atime(&fs, ino), 1_000);
    let (clock, fs, ino) = with_policy(AtimePolicy::StrictAtime, true);
    for now in [1_001, 1_002, 1_003] {
        clock.set(now);
        read(&fs, ino);
        assert_eq!(atime(&fs, ino), now);
    }
}

#[test]
fn full_listing_sets_atime_unless_nodiratime() {
    for (dir_atime, expected) in [(true, 2_000), (false, 1_000)] {
        let (clock, fs, _) = with_policy(AtimePolicy::StrictAtime, dir_atime);
        let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
        clock.set(2_000);
        names(&fs, dir);
        assert_eq!(atime(&fs, dir), expected);
    }
}

/// atime is not durable: a crash may lose it, an unmount does not.
#[test]
fn atime_is_not_durable_before_sync() {
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let fs = mount(&sim, clock.options()).unwrap();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, b"contents").unwrap();
    clock.set(2_000);
    read(&fs, ino);
    assert_eq!(atime(&after_a_crash(&sim).1, ino), 1_000);
    fs.sync().unwrap();
    assert_eq!(atime(&after_a_crash(&sim).1, ino), 2_000);
}

#[test]
fn times_keep_nanoseconds_over_full_range() {
    let (sim, fs) = small();
    let ino = file(&fs, "f");
    let times = [
        (i64::MIN, 0),
        (-1, 999_999_999),
        (0, 1),
        (1 << 34, 5),
        (i64::MAX, 999_999_999),
    ];
    let mut fs = fs;
    for (sec, nsec) in times {
        let t = Time { sec, nsec };
        let set = SetAttr {
            mtime: Some(SetTime::At(t)),
            atime: Some(SetTime::At(t)),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
        fs = remount(&sim, fs, quiet());
        let a = fs.getattr(find(&fs, "f").unwrap()).unwrap();
        assert_eq!((a.mtime, a.atime), (t, t));
    }
}
