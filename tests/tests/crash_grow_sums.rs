//! A crash in a grow of a file system with checksums of file data, at every fence: the old size or
//! the new one, each file with its sums, and blocks of the new groups get sums like all others.
//!
//! Each group has a bitmap and the sums of its blocks. A grow stores neither: the first use of a
//! group makes both. So after a crash, a repeated grow and the use of all groups must work. Every
//! sixteenth image is grown again and used. No crash falls into that use.

use std::time::Duration;

use pramfs::MountOptions;
use pramfs::inode::{Credentials, Fs, Ino, ScrubOptions};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::pmem::{Event, SimBackend};
use pramfs_tests::crash::images::{Limits, everywhere};
use pramfs_tests::crash::machine::Machine;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::recorded::{STALE, options};
use pramfs_tests::region::{mount, region_of};
use pramfs_tests::sums::{file, summed, text};

const CX: Credentials<'_> = Credentials::ROOT;
const BLOCK: u64 = 512;
/// A group of blocks of 512 bytes.
const GROUP: u64 = 2 << 20;
/// A part of the first group.
const FROM: u64 = 1 << 20;
/// The rest of it, two more, and a part of a fourth.
const TO: u64 = 3 * GROUP + (1 << 20);
/// More than the first three groups have free.
const LARGE: usize = (5 << 20) + (768 << 10);

const LIMITS: Limits = Limits {
    lines: 3,
    pairs: 6,
    random: 4,
    torn: Torn::Edges,
};

/// Files of before the grow: one in whole blocks, one that ends within a block.
const FILES: [(&str, usize); 2] = [("whole", 64 << 10), ("part", 3000)];
/// A file that is open during a live grow.
const OPEN: (&str, usize) = ("open", 1700);

fn mount_options() -> MountOptions {
    options(Rules::default())
}

/// A file system in the first part of a region, unmounted.
fn small() -> Vec<u8> {
    set_thread_lane(0);
    let sim = SimBackend::from_image(&vec![STALE; TO as usize]).unwrap();
    let options = FormatOptions {
        lanes: Some(2),
        size: Some(FROM),
        bytes_per_inode: Some(256),
        ..summed(BLOCK as u32)
    };
    format(&region_of(&sim), &options).unwrap();
    let fs = mount(&sim, mount_options()).unwrap();
    for (name, len) in FILES {
        file(&fs, name, &text(len));
    }
    fs.close().unwrap();
    sim.image()
}

fn ino(fs: &Fs, name: &str) -> Ino {
    fs.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino
}

/// A file has these bytes, and all of its blocks fit their sums.
fn holds(fs: &Fs, ino: Ino, bytes: &[u8], at: &str) {
    let mut found = vec![0; bytes.len() + 1];
    let n = fs.read(ino, 0, &mut found);
    assert_eq!(
        n.unwrap_or_else(|e| panic!("{at}: {e}")),
        bytes.len(),
        "{at}"
    );
    assert!(found[..bytes.len()] == *bytes, "{at}: other bytes");
    let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(
        verified.wrong.is_empty() && !verified.is_marked,
        "{at}: {verified:?}"
    );
    assert_eq!(verified.compared, bytes.len() as u64, "{at}");
}

/// Writes to the new groups, and reads it with its sums.
fn use_new_groups(fs: &Fs, at: &str) {
    let large = file(fs, "large", &text(LARGE));
    let extents = fs.file_extents(large, 0, u64::MAX).unwrap();
    let group = |n: u64| n * GROUP..(n + 1) * GROUP;
    for n in 1..=3 {
        let is_used = |e: &pramfs_medium::types::FileExtent| {
            e.region_offset.is_some_and(|at| group(n).contains(&at))
        };
        assert!(extents.iter().any(is_used), "{at}: nothing in group {n}");
    }
    // A part of a block, so the rest of it is compared with its sum.
    assert_eq!(fs.write(&CX, large, 4_000_100, &[9; 333]).unwrap(), 333);
    let mut expected = text(LARGE);
    expected[4_000_100..][..333].fill(9);
    holds(fs, large, &expected, at);
}

fn scrub(fs: &Fs, at: &str) {
    fs.start_scrub(ScrubOptions::default()).unwrap();
    while fs.wait_for_scrub(Duration::from_secs(10)).running {}
    let status = fs.scrub_status();
    assert_eq!((status.found, status.errno), (0, 0), "{at}: {status:?}");
}

fn close_and_check(sim: &SimBackend, fs: Fs, at: &str) {
    fs.close().unwrap();
    let found = check(&region_of(sim), &CheckOptions::default());
    assert!(found.is_clean(), "{at}: {found}");
}

/// Mounts what a crash left, and returns its size. The files are as they were. With `again`, a
/// repeated grow reaches the new size, and the new groups can be used.
fn judge(image: &[u8], files: &[(&str, usize)], at: &str, again: bool) -> u64 {
    let sim = SimBackend::from_image(image).unwrap();
    let fs = mount(&sim, mount_options()).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert!(fs.recovery().damage.is_empty(), "{at}: {:?}", fs.recovery());
    for (name, len) in files {
        holds(&fs, ino(&fs, name), &text(*len), at);
    }
    let size = fs.statfs().unwrap().blocks * BLOCK;
    scrub(&fs, at);
    close_and_check(&sim, fs, at);
    if !again {
        return size;
    }
    let at = &format!("{at}, again");
    let fs = mount(&sim, mount_options()).unwrap();
    fs.grow(None).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert_eq!(fs.statfs().unwrap().blocks * BLOCK, TO, "{at}");
    use_new_groups(&fs, at);
    scrub(&fs, at);
    close_and_check(&sim, fs, at);
    let fs = mount(&sim, mount_options()).unwrap();
    assert!(fs.recovery().was_clean, "{at}");
    for (name, len) in files {
        holds(&fs, ino(&fs, name), &text(*len), at);
    }
    size
}

/// Fails the power at each fence of the events from `from` on, and returns the sizes that crashes
/// leave.
fn crash(
    what: &str,
    (start, events): (Vec<u8>, &[Event]),
    from: usize,
    files: &[(&str, usize)],
) -> Vec<u64> {
    let mut machine = Machine::new(start);
    machine.run_all(&events[..from]);
    let events = &events[from..];
    let (mut found, mut images) = (Vec::new(), 0);
    let mut look = |moment: usize, image: &[u8]| {
        let at = format!("{what}: crash at event {moment} of {}", events.len());
        // The large file takes most of the time.
        let size = judge(image, files, &at, images % 16 == 0);
        assert!(
            size == TO || moment < events.len(),
            "{at}: the grow has returned"
        );
        if !found.contains(&size) {
            found.push(size);
        }
        images += 1;
    };
    everywhere(machine, events, &LIMITS, 1, &mut look);
    found.sort_unstable();
    println!("{what}: {images} images, sizes {found:?}");
    found
}

/// As `pramfs grow` does it without a mount: mount, grow, unmount.
#[test]
fn crash_in_offline_grow_with_sums_leaves_old_or_new_size() {
    let start = small();
    let sim = SimBackend::from_image(&start).unwrap();
    sim.recording(true);
    let fs = mount(&sim, mount_options()).unwrap();
    let grown = fs.grow(None).unwrap();
    assert_eq!((grown.from, grown.to), (FROM, TO));
    fs.close().unwrap();
    let events = sim.take_record();
    let found = crash("offline", (start, &events), 0, &FILES);
    assert_eq!(found, [FROM, TO]);
}

/// With a file open, and a record that is not dead.
#[test]
fn crash_in_live_grow_with_sums_leaves_old_or_new_size() {
    let start = small();
    let sim = SimBackend::from_image(&start).unwrap();
    sim.recording(true);
    let fs = mount(&sim, mount_options()).unwrap();
    let ino = file(&fs, OPEN.0, &text(OPEN.1));
    let open = fs.open_file(ino).unwrap();
    let mut events = sim.take_record();
    let from = events.len();
    fs.grow(None).unwrap();
    events.extend(sim.take_record());
    let files = [&FILES[..], &[OPEN]].concat();
    let found = crash("live", (start, &events), from, &files);
    assert_eq!(found, [FROM, TO]);
    // The same mount goes on.
    use_new_groups(&fs, "live");
    assert_eq!(open.write_at(&[7; 600], 300).unwrap(), 600);
    scrub(&fs, "live");
    drop(open);
    close_and_check(&sim, fs, "live");
}
