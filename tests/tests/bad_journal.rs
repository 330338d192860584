//! Records with valid checksums and impossible contents. A mount ends soon, with or
//! without an error, and makes no forbidden change.

use std::time::Duration;

use pramfs::{Error, inode::Ino};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::record::{EntryKind, EntryWord, RECORD_MAGIC, RecordHeader};
use pramfs_medium::pmem::{RegionAccess, SimBackend};
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};
use pramfs_tests::watchdog::Watchdog;
use zerocopy::IntoBytes;

/// A formatted region with a record in the first slot of the first lane.
fn with_record(len: usize, lsn: u64, body: &[u64], entries: u32) -> SimBackend {
    let sim = formatted(len, &repeatable(4096)).expect("formatted");
    let region = region_of(&sim);
    let geo = probe_superblock(&region).expect("a superblock").geometry();
    let mut header = RecordHeader {
        magic: RECORD_MAGIC,
        lsn,
        len: (size_of::<RecordHeader>() + size_of_val(body)) as u32,
        entries,
        ..RecordHeader::default()
    };
    let bytes = |h: &RecordHeader| [h.as_bytes(), body.as_bytes()].concat();
    header.crc = RecordHeader::crc_of(geo.seed, &bytes(&header));
    let pending = region
        .window()
        .store_unflushed(geo.slot_offset(0, 0).0, &bytes(&header));
    pending.expect("in the journal");
    sim
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
