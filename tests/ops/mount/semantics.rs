//! What mount promises: one writer or many readers, read-only mounts, remounts, and the
//! state that the next mount finds.

use pramfs::format::format;
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::{Error, MountOptions, OpenOptions as Direct};
use pramfs_medium::pmem::{Region, RegionOptions, SimBackend};
use pramfs_tests::region::{mount, quiet, repeatable};

use crate::support::library::{ROOT, contents, file, find, remount, small};
use crate::support::mount::{mounted, one_at_a_time};

fn read_only() -> MountOptions {
    MountOptions {
        read_only: true,
        ..quiet()
    }
}

#[test]
fn region_allows_one_writer_or_many_readers() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 1 << 20).unwrap();
    format(&region, &repeatable(4096)).unwrap();
    let busy = |options: RegionOptions| {
        let e = options.open(&path).unwrap_err();
        assert_eq!(e.errno(), libc::EBUSY);
        assert!(
            e.to_string().contains(&std::process::id().to_string()),
            "{e}"
        );
    };
    busy(RegionOptions::new());
    busy(RegionOptions::new().read_only(true));
    drop(region);
    let open = || RegionOptions::new().read_only(true).open(&path).unwrap();
    let (first, second) = (open(), open());
    busy(RegionOptions::new());
    for region in [first, second] {
        Fs::open(region, quiet()).unwrap();
    }
}

#[test]
fn read_only_mount_fails_changes_with_erofs() {
    let (sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, b"bytes").unwrap();
    let fs = remount(&sim, fs, read_only());
    let before = sim.image();
    let refused = |r: Result<(), Error>| assert_eq!(r.unwrap_err().errno(), libc::EROFS);
    refused(fs.create(&ROOT, Ino::ROOT, b"g", 0o644).map(drop));
    refused(fs.write(&Credentials::ROOT, ino, 0, b"x").map(drop));
    refused(fs.unlink(Ino::ROOT, b"f"));
    refused(fs.strip_suid(ino));
    assert_eq!(contents(&fs, ino), b"bytes");
    fs.fsync(ino, false).unwrap();
    fs.close().unwrap();
    assert!(sim.image() == before);
}

/// A region opened read-only is recovered in private memory: the mount shows the
/// recovered file system, and the medium stays unchanged.
#[test]
fn read_only_region_recovers_in_private_memory() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 4 << 20).unwrap();
    format(&region, &repeatable(4096)).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, b"bytes").unwrap();
    // The current state, as a crash leaves it.
    let image = std::fs::read(&path).unwrap();
    drop(fs);
    std::fs::write(&path, &image).unwrap();
    let region: Region = RegionOptions::new().read_only(true).open(&path).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    assert!(!fs.recovery().was_clean && fs.recovery().records > 0);
    assert_eq!(contents(&fs, find(&fs, "f").unwrap()), b"bytes");
    fs.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == image);
}

/// A read-only mount replays the journal and finishes nothing else after a crash. The
/// rest is finished when it becomes writable.
#[test]
fn remount_rw_finishes_crash_recovery() {
    let (sim, fs) = small();
    let kept = file(&fs, "kept");
    fs.append(&Credentials::ROOT, kept, b"bytes").unwrap();
    let gone = file(&fs, "gone");
    fs.append(&Credentials::ROOT, gone, &[7; 1 << 20]).unwrap();
    fs.hold(gone).into_count();
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    let crashed = SimBackend::from_image(&sim.image()).unwrap();
    let fs = mount(&crashed, read_only()).unwrap();
    assert_eq!(fs.recovery().orphans, 1);
    let free = fs.statfs().unwrap().free;
    assert!(fs.append(&Credentials::ROOT, kept, b"!").is_err());
    fs.make_writable().unwrap();
    assert!(!fs.is_read_only());
    assert!(fs.statfs().unwrap().free >= free + 256, "the orphan stays");
    fs.append(&Credentials::ROOT, kept, b"!").unwrap();
    fs.make_writable().unwrap();
    // Another crash, then a clean end.
    let again = SimBackend::from_image(&crashed.image()).unwrap();
    let after = mount(&again, quiet()).unwrap();
    assert!(after.recovery().records > 0 && after.recovery().orphans == 0);
    assert_eq!(contents(&after, find(&after, "kept").unwrap()), b"bytes!");
    fs.close().unwrap();
    let report = pramfs_fsck::check(
        &pramfs_tests::region::region_of(&crashed),
        &Default::default(),
    );
    assert!(report.is_clean(), "{report}");
}

#[test]
fn remount_rw_without_write_access_fails() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 1 << 20).unwrap();
    format(&region, &repeatable(4096)).unwrap();
    drop(region);
    let region = RegionOptions::new().read_only(true).open(&path).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    assert_eq!(fs.make_writable().unwrap_err().errno(), libc::EROFS);
    assert!(fs.is_read_only());
}

/// Completed operations are found, however the process ended.
#[test]
fn completed_ops_survive_process_end() {
    let (sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, b"some bytes").unwrap();
    fs.write(&Credentials::ROOT, ino, 0, b"SOME").unwrap();
    fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap();
    let image = pramfs_medium::pmem::SimBackend::from_image(&sim.image()).unwrap();
    let after = mount(&image, quiet()).unwrap();
    assert!(!after.recovery().was_clean);
    assert_eq!(contents(&after, find(&after, "f").unwrap()), b"SOME bytes");
    find(&after, "d").unwrap();
}

#[test]
fn lock_shared_fails_after_stores() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    format(
        &RegionOptions::new().create(&path, 1 << 20).unwrap(),
        &repeatable(4096),
    )
    .unwrap();
    let reader = || RegionOptions::new().read_only(true).open(&path);
    let refused = |fs: &Fs| {
        assert!(matches!(fs.lock_shared(), Err(Error::Invalid(_))));
        assert_eq!(reader().unwrap_err().errno(), libc::EBUSY);
    };

    let fs = Fs::open(RegionOptions::new().open(&path).unwrap(), read_only()).unwrap();
    fs.lock_shared().unwrap();
    drop(reader().unwrap());
    fs.make_writable().unwrap();
    refused(&fs);
    fs.close().unwrap();

    let fs = Fs::open(RegionOptions::new().open(&path).unwrap(), quiet()).unwrap();
    refused(&fs);
    fs.close().unwrap();

    // Because of the region, not of an option.
    let fs = Fs::open(reader().unwrap(), quiet()).unwrap();
    fs.lock_shared().unwrap();
    drop(reader().unwrap());
}

/// One process has the region at a time. After the mount has ended, the direct API sees
/// its writes, and vice versa.
#[test]
fn direct_api_and_mount_alternate_without_overlap() {
    let Some((_one, mount)) = mounted("mount, then library", "") else {
        return;
    };
    std::fs::write(mount.at("f"), b"by the mount").unwrap();
    let busy = RegionOptions::new().open(mount.region()).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);
    mount.unmount();
    let fs = Fs::open(
        RegionOptions::new().open(mount.region()).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let file = Direct::new()
        .read(true)
        .write(true)
        .open(&fs, "/f")
        .unwrap();
    let view = file.map(0..12, pramfs::Access::Write).unwrap();
    let mut bytes = [0; 12];
    view.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by the mount");
    view.write(0, b"BY").unwrap();
    view.persist(0..2).unwrap();
    drop((view, file));
    fs.close().unwrap();
    mount.mount("");
    assert_eq!(std::fs::read(mount.at("f")).unwrap(), b"BY the mount");
}
