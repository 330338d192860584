//! Records with valid checksums and impossible contents. A mount ends soon, with or
//! without an error, and makes no forbidden change.

use std::time::Duration;

use pramfs::{Error, inode::Ino};
use pramfs_fsck::{Policy, RepairOptions, repair};
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::record::{EntryKind, EntryWord, RECORD_MAGIC, RecordHeader};
use pramfs_medium::pmem::{RegionAccess, SimBackend};
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};
use pramfs_tests::watchdog::Watchdog;
use zerocopy::IntoBytes;

/// A formatted region with a record in the first slot of the first lane.
fn with_record(len: usize, lsn: u64, body: &[u64], entries: u32) -> SimBackend {
    let sim = formatted(len, &repeatable(4096)).expect("formatted");
    put_record(&sim, (0, 0), lsn, body, entries);
    sim
}

/// Puts a record into a slot of a lane.
fn put_record(sim: &SimBackend, place: (u32, u32), lsn: u64, body: &[u64], entries: u32) {
    let region = region_of(sim);
    let geo = probe_superblock(&region).expect("a superblock").geometry();
    let (lane, slot) = place;
    let mut header = RecordHeader {
        magic: RECORD_MAGIC,
        lsn,
        lane,
        slot,
        len: (size_of::<RecordHeader>() + size_of_val(body)) as u32,
        entries,
        ..RecordHeader::default()
    };
    let bytes = |h: &RecordHeader| [h.as_bytes(), body.as_bytes()].concat();
    header.crc = RecordHeader::crc_of(geo.seed, &bytes(&header));
    let pending = region
        .window()
        .store_unflushed(geo.slot_offset(lane, slot).0, &bytes(&header));
    pending.expect("in the journal");
}

#[test]
fn extreme_record_numbers_stay_usable() {
    let _dog = Watchdog::new("record numbers", Duration::from_secs(60));
    for lsn in [0, 1 << 52, u64::MAX - 1, u64::MAX] {
        let sim = with_record(1 << 20, lsn, &[], 0);
        let fs = mount(&sim, quiet()).unwrap_or_else(|e| panic!("LSN {lsn:#x}: {e}"));
        let ctx = pramfs::inode::Credentials::ROOT;
        fs.create(&ctx, Ino::ROOT, b"file", 0o644).expect("usable");
        // As after a kill: the completed operation must be there.
        std::mem::forget(fs);
        let again = mount(&sim, quiet()).unwrap_or_else(|e| panic!("LSN {lsn:#x}: {e}"));
        again.lookup(Ino::ROOT, b"file").expect("durable");
    }
}

#[test]
fn record_zeroing_past_region_is_not_replayed() {
    let _dog = Watchdog::new("zeros over everything", Duration::from_secs(60));
    let len = 16u64 << 20;
    let sim = formatted(len as usize, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let from = geo.journal_offset.0 + geo.journal_len;
    for words in [513, (len - from) / 8, u64::MAX / 8, u64::MAX] {
        let entry = [EntryWord::new(EntryKind::Zero, from, 1).0, words];
        let sim = with_record(len as usize, 100, &entry.repeat(20), 20);
        let before = sim.image();
        match mount(&sim, quiet()) {
            Err(Error::Corrupt { .. }) => {}
            other => panic!("{words} words: {:?}", other.map(|_| ())),
        }
        assert!(sim.image() == before, "{words} words: something was stored");
    }
}

/// The place and the payload of an entry for file data.
fn copy(to: u64, from: u64, len: u64) -> Vec<u64> {
    vec![EntryWord::new(EntryKind::Copy, to, 2).0, from, len]
}

fn more(at: u64, len: u64, sum: u64) -> Vec<u64> {
    vec![EntryWord::new(EntryKind::More, at, 2).0, len, sum]
}

/// Refused before anything is stored, by the mount and by a repair.
fn is_refused(len: usize, what: &str, body: &[u64], entries: u32, elsewhere: &[(u64, Vec<u64>)]) {
    let sim = with_record(len, 100, body, entries);
    for (at, words) in elsewhere {
        let stored = region_of(&sim)
            .window()
            .store_unflushed(*at, words.as_bytes());
        stored.expect("in the region");
    }
    let before = sim.image();
    match mount(&sim, quiet()) {
        Err(Error::Corrupt { .. }) => {}
        other => panic!("{what}: {:?}", other.map(|_| ())),
    }
    assert!(sim.image() == before, "{what}: something was stored");
    let options = RepairOptions::new(Policy::Yes);
    let report = repair(&region_of(&sim), &options).expect("repaired");
    assert!(report.is_sound(), "{what}: {report}");
    let fs = mount(&sim, quiet()).unwrap_or_else(|e| panic!("{what}: {e}"));
    fs.close().expect("closed");
}

#[test]
fn copies_to_and_from_forbidden_places_are_refused() {
    let _dog = Watchdog::new("copies", Duration::from_secs(60));
    let len = 1u64 << 20;
    let sim = formatted(len as usize, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let (journal, copy_page) = (geo.journal_offset.0, geo.copy_offset.0);
    // The last blocks but one are free.
    let free = len - 16 * 4096;
    let cases: &[(&str, Vec<u64>)] = &[
        ("to the first page", copy(0, free, 8)),
        ("to its inodes", copy(0x400, free, 256)),
        ("to the page of the copy", copy(copy_page + 4088, free, 8)),
        ("to the journal", copy(journal - 8, free, 16)),
        ("past the region", copy(len - 8, free, 16)),
        ("of 2^64 - 1 bytes", copy(free, free + 4096, u64::MAX)),
        ("from the journal", copy(free, journal + 64, 8)),
        ("from the first page", copy(free, 8, 8)),
        ("from past the region", copy(free, len - 8, 16)),
        ("from its own target", copy(free, free + 8, 16)),
        ("zeros over the journal", copy(journal, 0, 8)),
        ("zeros past the region", copy(len - 8, 0, 9)),
    ];
    for (what, body) in cases {
        is_refused(len as usize, what, body, 1, &[]);
    }
    let both = [
        copy(free, free + 4096, 64),
        copy(free + 4096, free + 8192, 8),
    ]
    .concat();
    is_refused(len as usize, "over the source of another", &both, 2, &[]);
    let same = [
        copy(free, free + 8192, 64),
        copy(free + 32, free + 16384, 64),
    ]
    .concat();
    is_refused(len as usize, "to the same place", &same, 2, &[]);
    let again = copy(free, 0, 4096).repeat(80);
    is_refused(len as usize, "zeros again and again", &again, 80, &[]);
    let shape = [EntryWord::new(EntryKind::Copy, free, 1).0, free];
    is_refused(len as usize, "of one word", &shape, 1, &[]);
}

#[test]
fn continued_record_with_forged_rest_is_refused() {
    let _dog = Watchdog::new("a record that continues", Duration::from_secs(60));
    let len = 1u64 << 20;
    let sim = formatted(len as usize, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let free = len - 16 * 4096;
    let sum = |words: &[u64]| u64::from(crc(geo.seed, words.as_bytes()));
    let zeros = copy(free + 8192, 0, 8);
    let here = |words: &[u64]| more(free, words.len() as u64 * 8, sum(words));
    let stored = |words: &[u64]| vec![(free, words.to_vec())];
    let refused = |what, body: &[u64], rest: &[u64]| {
        is_refused(len as usize, what, body, 1, &stored(rest));
    };
    refused("a wrong sum", &more(free, 24, sum(&zeros) ^ 1), &zeros);
    refused("nothing there", &here(&zeros), &[0; 3]);
    refused("half an entry", &here(&zeros[..2]), &zeros);
    refused("7 bytes", &more(free, 7, 0), &zeros);
    refused("in the journal", &more(geo.journal_offset.0, 24, 0), &zeros);
    refused("past the region", &more(len - 8, 24, 0), &zeros);
    refused(
        "longer than the region",
        &more(free, u64::MAX - 7, 0),
        &zeros,
    );
    let again = here(&zeros);
    refused("more than once", &here(&again), &again);
    let bad = copy(0, 0, 8);
    refused("a forbidden entry", &here(&bad), &bad);
    let harmless = [EntryWord::new(EntryKind::Pointer, free + 8192, 1).0, 7];
    let twice = here(&harmless).repeat(2);
    is_refused(
        len as usize,
        "twice in the same blocks",
        &twice,
        2,
        &stored(&harmless),
    );
    // A sound one is replayed. No mount writes one without the feature.
    let sim = with_record(len as usize, 100, &here(&zeros), 1);
    let region = region_of(&sim);
    let w = region.window();
    w.store_unflushed(free, zeros.as_bytes()).expect("stored");
    w.store_unflushed(free + 8192, &[1; 16]).expect("stored");
    let fs = mount(&sim, quiet()).expect("mounted");
    assert_eq!(fs.recovery().records, 1);
    let damage = fs.recovery().damage.concat();
    assert!(
        damage.contains("the feature atomic_data is not set"),
        "{damage}"
    );
    let at = (free + 8192) as usize;
    assert_eq!(sim.image()[at..at + 16], [[0; 8], [1; 8]].concat());
}

/// Each record is sound, and all together would copy more than the region holds, or read the same
/// blocks again and again.
#[test]
fn records_that_share_blocks_are_refused() {
    let _dog = Watchdog::new("records that share blocks", Duration::from_secs(60));
    let len = 1u64 << 20;
    let sim = formatted(len as usize, &repeatable(4096)).expect("formatted");
    let geo = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .geometry();
    let places = [(0, 0), (0, 1), (1, 0)];
    assert!(geo.lanes > 1);
    let refused = |what: &str, body: &[u64], records: usize| {
        let sim = formatted(len as usize, &repeatable(4096)).expect("formatted");
        let rest = [EntryWord::new(EntryKind::Pointer, len - 8192, 1).0, 7];
        let region = region_of(&sim);
        let stored = region.window().store_unflushed(len - 4096, rest.as_bytes());
        stored.expect("in the region");
        for (lsn, place) in (100..).zip(&places[..records]) {
            put_record(&sim, *place, lsn, body, 1);
        }
        let before = sim.image();
        match mount(&sim, quiet()) {
            Err(Error::Corrupt { .. }) if records > 1 => {
                assert!(sim.image() == before, "{what}: something was stored");
            }
            Ok(_) if records == 1 => {}
            other => panic!("{what}, {records}: {:?}", other.map(|_| ())),
        }
    };
    let n = 360 << 10;
    let large = copy(len - n, len - 2 * n, n);
    refused("large copies", &large, 1);
    refused("large copies", &large, 3);
    let rest = [EntryWord::new(EntryKind::Pointer, len - 8192, 1).0, 7];
    let more = more(len - 4096, 16, u64::from(crc(geo.seed, rest.as_bytes())));
    refused("the same continuation", &more, 1);
    refused("the same continuation", &more, 2);
}

#[test]
fn record_that_zeroes_too_much_is_refused() {
    let len = 16u64 << 20;
    let zeros = |n: u64| copy(len - n, 0, n);
    is_refused(len as usize, "3 MiB of zeros", &zeros(3 << 20), 1, &[]);
    let sim = with_record(len as usize, 100, &zeros(1 << 20), 1);
    mount(&sim, quiet()).expect("1 MiB and less is usual");
}
