//! The lanes' `retired` words on a failed page, or damaged, after a crash: their copies tell which
//! records are dead, or a mount says that nothing tells it.

use std::time::Duration;

use pramfs::inode::{Credentials, Ino, SetAttr};
use pramfs::{Error, ErrorPolicy, MountOptions};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::crash::images::{Limits, everywhere};
use pramfs_tests::crash::machine::{Machine, Torn};
use pramfs_tests::region::{formatted, lost, mount, quiet, region_of, repeatable};
use pramfs_tests::watchdog::Watchdog;

const PAGE: usize = 4096;
const ROOT: Credentials<'static> = Credentials::ROOT;

fn is_eio<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    result.is_err_and(|e| e.errno() == libc::EIO)
}

/// A file system that crashed, with live records, and with dead ones that only a `retired` word
/// tells: a replay of these would bring old modes back.
fn crashed() -> Vec<u8> {
    crashed_from(&formatted(4 << 20, &repeatable(4096)).expect("formatted"))
}

fn crashed_from(sim: &SimBackend) -> Vec<u8> {
    crashed_with(sim, |_| ())
}

/// As [`crashed`], with something that happens before lane 0 is retired.
fn crashed_with(sim: &SimBackend, then: impl FnOnce(&SimBackend)) -> Vec<u8> {
    let options = MountOptions {
        errors: ErrorPolicy::Continue,
        ..quiet()
    };
    let fs = mount(sim, options).expect("mounted");
    let mode = |ino, mode| {
        let attr = SetAttr {
            perm: Some(mode),
            ..SetAttr::default()
        };
        // An operation that meets a failed page says so.
        let changed = fs.setattr(&ROOT, ino, &attr);
        assert!(changed.is_ok() || is_eio(changed));
    };
    set_thread_lane(0);
    let files = ["one", "two", "three"].map(|name| {
        let made = fs.create(&ROOT, Ino::ROOT, name.as_bytes(), 0o600);
        made.expect("made").ino
    });
    mode(files[0], 0o611);
    mode(files[1], 0o622);
    then(sim);
    // Its first change retires lane 0.
    set_thread_lane(1);
    for last in [0o640, 0o641, 0o642, 0o643] {
        mode(files[0], last);
        mode(files[1], last);
    }
    mode(files[2], 0o644);
    sim.image()
}

fn modes(sim: &SimBackend) -> Vec<u32> {
    let fs = mount(sim, quiet()).expect("mounted");
    let modes = ["one", "two", "three"].map(|name| {
        let found = fs.lookup(Ino::ROOT, name.as_bytes()).expect("there");
        found.perm
    });
    fs.close().expect("unmounted");
    modes.to_vec()
}

#[test]
fn failed_page_of_retired_words_after_crash_is_repaired_from_their_copies() {
    let image = crashed();
    let intact = SimBackend::from_image(&image).expect("a region");
    let geo = probe_superblock(&region_of(&intact))
        .expect("a superblock")
        .geometry();
    assert_eq!(modes(&intact), [0o643, 0o643, 0o644]);
    let lines = geo.retired_offset(0).0 as usize / PAGE;
    for kernel_knows in [false, true] {
        let sim = lost(&image, lines, kernel_knows);
        let failed = mount(&sim, quiet()).expect_err("the page has failed");
        assert_eq!(failed.errno(), libc::EIO);
        let region = region_of(&sim);
        // It asks nothing, and loses nothing.
        let report = repair(&region, &RepairOptions::new(Policy::Preen)).expect("repaired");
        assert!(report.is_sound() && report.lost.is_empty(), "{report}");
        assert!(check(&region, &CheckOptions::default()).is_clean());
        drop(region);
        assert_eq!(modes(&sim), [0o643, 0o643, 0o644], "{kernel_knows}");
    }
}

/// A version without the copies leaves those of an earlier mount behind, perhaps with the same
/// checkpoint: a mount that changes nothing does not raise it.
#[test]
fn copies_of_earlier_mount_are_not_believed() {
    let sim = formatted(4 << 20, &repeatable(4096)).expect("formatted");
    drop(mount(&sim, quiet()).expect("mounted"));
    let idle = sim.image();
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let mut image = crashed_from(&sim);
    let copies = geo.copy_offset.0 as usize + 0x900..geo.copy_offset.0 as usize + PAGE;
    assert!(image[copies.clone()] != idle[copies.clone()]);
    image[copies.clone()].copy_from_slice(&idle[copies]);
    let lines = geo.retired_offset(0).0 as usize / PAGE;
    let region = region_of(&lost(&image, lines, true));
    let report = repair(&region, &RepairOptions::new(Policy::Preen)).expect("looked at");
    assert!(!report.is_sound(), "{report}");
}

/// The page of the copies fails before a hand-over, and can be read later.
#[test]
fn copies_that_could_not_be_stored_are_void() {
    let sim = formatted(4 << 20, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let page = geo.copy_offset.0 as usize / PAGE;
    let before = {
        drop(mount(&sim, quiet()).expect("mounted"));
        sim.image()
    };
    let mut image = crashed_with(&sim, |sim| sim.lose_page(page));
    // What the page had when it failed: the copies of the session, with the dynamic words.
    let bytes = page * PAGE..(page + 1) * PAGE;
    let began = {
        let sim = SimBackend::from_image(&before).expect("a region");
        drop(mount(&sim, quiet()).expect("mounted"));
        sim.image()
    };
    image[bytes.clone()].copy_from_slice(&began[bytes]);
    let words = geo.retired_offset(0).0 as usize;
    image[words..words + 16].fill(0x55);
    let sim = SimBackend::from_image(&image).expect("a region");
    let failed = mount(&sim, quiet()).expect_err("nothing tells the dead records");
    assert_eq!(failed.errno(), libc::EUCLEAN);
}

/// A mount mends them, too.
#[test]
fn damaged_retired_words_after_crash_are_mended_from_their_copies() {
    let mut image = crashed();
    let region = region_of(&SimBackend::from_image(&image).expect("a region"));
    let geo = probe_superblock(&region).expect("a superblock").geometry();
    let words = geo.retired_offset(0).0 as usize;
    image[words..words + 16].fill(0x55);
    let sim = SimBackend::from_image(&image).expect("a region");
    let options = MountOptions {
        errors: ErrorPolicy::Continue,
        ..quiet()
    };
    let fs = mount(&sim, options).expect("mounted");
    assert!(!fs.recovery().damage.is_empty());
    drop(fs);
    assert_eq!(modes(&sim), [0o643, 0o643, 0o644]);
}

/// Without a crash nothing needs them, and a version that does not know them leaves others behind.
#[test]
fn damaged_copies_after_unmount_are_no_finding_and_are_stored_anew_by_mount() {
    let sim = formatted(4 << 20, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let fs = mount(&sim, quiet()).expect("mounted");
    fs.create(&ROOT, Ino::ROOT, b"file", 0o600).expect("made");
    fs.close().expect("unmounted");
    let mut image = sim.image();
    let copies = geo.copy_offset.0 as usize + 0x900..geo.copy_offset.0 as usize + PAGE;
    image[copies.clone()].fill(0x55);
    let sim = SimBackend::from_image(&image).expect("a region");
    assert!(check(&region_of(&sim), &CheckOptions::default()).is_clean());
    let report = repair(&region_of(&sim), &RepairOptions::new(Policy::Yes)).expect("looked at");
    assert!(report.is_sound() && report.stored == 0, "{report}");
    drop(mount(&sim, quiet()).expect("mounted"));
    let lanes = copies.start..copies.start + 16 * geo.lanes.min(112) as usize;
    let anew = &sim.image()[lanes];
    assert!(anew.chunks(16).all(|copy| copy != [0x55; 16]));
}

/// At each fence since the mount, the power fails and the words of lane 0 are lost. What the copies
/// tell is what the words told, or the mount says that nothing tells it.
#[test]
fn retired_words_lost_in_power_failure_are_told_by_copies_or_by_none() {
    let _dog = Watchdog::new("lost retired words", Duration::from_secs(500));
    let sim = formatted(4 << 20, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let words = geo.retired_offset(0).0 as usize;
    let machine = Machine::new(sim.image());
    sim.recording(true);
    crashed_from(&sim);
    let events = sim.take_record();
    let limits = Limits {
        lines: 3,
        pairs: 6,
        random: 4,
        torn: Torn::Edges,
    };
    let shown = |image: &[u8]| {
        let options = MountOptions {
            errors: ErrorPolicy::Continue,
            ..quiet()
        };
        let fs = mount(&SimBackend::from_image(image).expect("a region"), options)?;
        let mode = |name: &str| {
            fs.lookup(Ino::ROOT, name.as_bytes())
                .map(|found| found.perm)
        };
        let modes = ["one", "two", "three"].map(|name| mode(name).ok());
        // What a failed mount leaves behind is no unmount.
        drop(fs);
        Ok::<_, Error>(modes)
    };
    let (mut told, mut untold) = (0, 0);
    everywhere(machine, &events, &limits, 3, &mut |moment, image| {
        let intact = shown(image).unwrap_or_else(|e| panic!("event {moment}: {e}"));
        let mut lost = image.to_vec();
        lost[words..words + 16].fill(0x55);
        match shown(&lost) {
            Ok(modes) => {
                assert_eq!(modes, intact, "event {moment}");
                told += 1;
            }
            Err(e) => {
                assert_eq!(e.errno(), libc::EUCLEAN, "event {moment}: {e}");
                untold += 1;
            }
        }
    });
    println!("{told} images have a copy that tells, {untold} have none");
    assert!(told > 9 * untold);
}
