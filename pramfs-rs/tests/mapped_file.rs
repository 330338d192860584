//! [`MappedFile`]: atomics, values, bounds, durability.

use std::sync::atomic::{AtomicBool, Ordering};

use pramfs::format::{FormatOptions, format};
use pramfs::{Access, Advice, Error, File, FileSystem, MappedFile, MountOptions};
use pramfs_medium::pmem::{Region, SimBackend};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const LEN: u64 = 64 << 10;

fn mapped() -> (SimBackend, FileSystem, File, MappedFile) {
    let sim = SimBackend::new(4 << 20).unwrap();
    let region = || Region::new("test", Box::new(sim.clone()));
    format(&region(), &FormatOptions::default()).unwrap();
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region(), options).unwrap();
    let file = fs.create("table").unwrap();
    file.set_len(LEN).unwrap();
    let view = file.map(0..LEN, Access::Write).unwrap();
    (sim, fs, file, view)
}

#[test]
fn atomics_of_each_size_load_store_exchange() {
    let (_sim, _fs, file, view) = mapped();
    view.store(1, 0xabu8).unwrap();
    view.store(2, 0xcdefu16).unwrap();
    view.store(4, 0x0123_4567u32).unwrap();
    view.store(8, u64::MAX).unwrap();
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..8], [0, 0xab, 0xef, 0xcd, 0x67, 0x45, 0x23, 0x01]);
    assert_eq!(view.fetch_add(8, 2u64).unwrap(), u64::MAX);
    assert_eq!(view.fetch_add(1, 0x55u8).unwrap(), 0xab);
    assert_eq!(
        (view.load::<u64>(8).unwrap(), view.load::<u8>(1).unwrap()),
        (1, 0)
    );
    assert_eq!(view.swap(2, 7u16).unwrap(), 0xcdef);
    assert_eq!(view.compare_exchange(4, 5u32, 6).unwrap(), Err(0x0123_4567));
    assert_eq!(
        view.compare_exchange(4, 0x0123_4567u32, 6).unwrap(),
        Ok(0x0123_4567)
    );
    assert_eq!(view.load::<u32>(4).unwrap(), 6);
}

#[test]
fn access_past_end_or_misaligned_fails() {
    let (_sim, _fs, _file, view) = mapped();
    for at in [LEN, LEN - 7, u64::MAX, u64::MAX - 7] {
        assert!(
            matches!(view.load::<u64>(at), Err(Error::Invalid(_))),
            "{at}"
        );
        assert!(
            matches!(view.store(at, 1u64), Err(Error::Invalid(_))),
            "{at}"
        );
        assert!(
            matches!(view.swap(at, 1u64), Err(Error::Invalid(_))),
            "{at}"
        );
        assert!(view.compare_exchange(at, 0u64, 1).is_err(), "{at}");
        assert!(view.read_value::<[u8; 8]>(at).is_err(), "{at}");
        assert!(view.write_value(at, &[0u8; 8]).is_err(), "{at}");
        assert!(
            view.flush(at..at.saturating_add(8)).is_err() || at == u64::MAX,
            "{at}"
        );
    }
    for (errno, size) in [
        (view.load::<u16>(1).unwrap_err().errno(), 2),
        (view.store(2, 0u32).unwrap_err().errno(), 4),
        (view.fetch_add(4, 0u64).unwrap_err().errno(), 8),
    ] {
        assert_eq!(errno, libc::EINVAL, "{size}");
    }
    view.load::<u8>(LEN - 1).unwrap();
}

#[test]
fn stores_through_read_only_mapping_fail() {
    let (_sim, _fs, file, view) = mapped();
    let read = file.map(0..LEN, Access::Read).unwrap();
    view.store(0, 5u32).unwrap();
    assert_eq!(read.load::<u32>(0).unwrap(), 5);
    assert_eq!(read.store(0, 1u8).unwrap_err().errno(), libc::EACCES);
    assert_eq!(read.swap(0, 1u16).unwrap_err().errno(), libc::EACCES);
    assert_eq!(read.fetch_add(0, 1u32).unwrap_err().errno(), libc::EACCES);
    assert_eq!(
        read.write_value(0, &1u64).unwrap_err().errno(),
        libc::EACCES
    );
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Row {
    key: u64,
    value: [u8; 56],
}

#[test]
fn mapped_values_round_trip() {
    let (_sim, _fs, _file, view) = mapped();
    let row = Row {
        key: 7,
        value: std::array::from_fn(|i| i as u8),
    };
    view.write_value(100, &row).unwrap();
    assert_eq!(view.read_value::<Row>(100).unwrap(), row);
    assert_eq!(view.load::<u32>(100).unwrap(), 7);
}

#[test]
fn flush_of_several_ranges_takes_one_fence() {
    let (sim, fs, _file, view) = mapped();
    let before = sim.counters();
    for i in 0..8 {
        view.store(i * 4096, i).unwrap();
        view.flush(i * 4096..i * 4096 + 8).unwrap();
    }
    let flushed = sim.counters() - before;
    assert_eq!((flushed.flushes, flushed.fences), (8, 0));
    view.drain().unwrap();
    assert_eq!((sim.counters() - before).fences, 1);
    // What has been drained outlives a power failure.
    drop((view, fs));
}

/// For holders of leases that cannot flush by themselves, as programs of a guest.
#[test]
fn persist_stores_flushes_range_sets_times_and_takes_one_fence() {
    let (sim, fs, file, view) = mapped();
    view.store(4096, 7u64).unwrap();
    let engine = fs.inodes();
    let changed = engine.getattr(file.ino()).unwrap().change;
    let before = sim.counters();
    engine.persist_stores(file.ino(), 4096..8192).unwrap();
    let counted = sim.counters() - before;
    assert!(counted.flushes >= 1, "{counted:?}");
    assert_eq!(counted.fences, 1);
    assert_ne!(engine.getattr(file.ino()).unwrap().change, changed);
    // Nothing is there past the end.
    let before = sim.counters();
    engine.persist_stores(file.ino(), LEN..2 * LEN).unwrap();
    assert_eq!((sim.counters() - before).fences, 0);
    drop((view, file, fs));
}

#[test]
fn concurrent_fetch_add_loses_nothing() {
    let (_sim, _fs, _file, view) = mapped();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let counters: Vec<_> = (0..4)
            .map(|_| {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        view.fetch_add(64, 1u32).unwrap();
                    }
                })
            })
            .collect();
        s.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let now = view.load::<u32>(64).unwrap();
                assert!(now >= last);
                last = now;
            }
        });
        counters.into_iter().for_each(|c| c.join().unwrap());
        done.store(true, Ordering::Release);
    });
    assert_eq!(view.load::<u32>(64).unwrap(), 40_000);
}

#[test]
fn extend_keeps_addresses_and_shows_file() {
    let (_sim, fs, file, view) = mapped();
    drop(view);
    // From within a block, up to within a block, block by block and many at once.
    let mut view = file
        .map_reserved(100..5000, 1 << 30, Access::Write)
        .unwrap();
    let address = view.as_ptr();
    assert!(view.reserved() >= 1 << 30);
    view.store(4, 1u32).unwrap();
    let other = fs.create("other").unwrap();
    for len in [4901, 7996, 7997, 20_000, 60_000, 200_000, 1 << 20] {
        // So that pieces do not lie together on the medium.
        other.append(&[9; 4096]).unwrap();
        file.set_len(100 + len).unwrap();
        view.extend(len).unwrap();
        assert_eq!((view.len(), view.as_ptr()), (len, address));
        view.write(len - 1, &[len as u8]).unwrap();
        let mut byte = [0];
        file.read_at(&mut byte, 100 + len - 1).unwrap();
        assert_eq!(byte, [len as u8]);
        file.write_at(&[7], 100 + len / 2).unwrap();
        view.read(len / 2, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        view.persist(0..len).unwrap();
    }
    assert_eq!(view.load::<u32>(4).unwrap(), 1);
    let covered: u64 = view.extents().iter().map(|e| e.len).sum();
    assert_eq!(covered, ((1u64 << 20) + 100).next_multiple_of(4096));
    view.extend(10).unwrap();
    assert_eq!(view.len(), 1 << 20);
    drop((view, file, other));
    fs.unmount().unwrap();
}

#[test]
fn failed_extend_leaves_view_unchanged() {
    let (_sim, fs, file, view) = mapped();
    assert_eq!(view.reserved(), LEN);
    drop(view);
    let mut view = file.map_reserved(0..LEN, 4 * LEN, Access::Write).unwrap();
    view.store(0, 5u64).unwrap();
    // Past the end of the file, past the reserved addresses, beyond the free space.
    assert!(matches!(view.extend(LEN + 1), Err(Error::Invalid(_))));
    file.set_len(8 * LEN).unwrap();
    assert!(matches!(view.extend(4 * LEN + 1), Err(Error::Invalid(_))));
    let large = fs.create("large").unwrap();
    while large.append(&[1; 4096]).is_ok() {}
    assert!(matches!(view.extend(4 * LEN), Err(Error::NoSpace(_))));
    assert_eq!((view.len(), view.load::<u64>(0).unwrap()), (LEN, 5));
    assert!(view.load::<u64>(LEN).is_err());
    // And it goes on.
    large.set_len(0).unwrap();
    view.extend(4 * LEN).unwrap();
    view.store(4 * LEN - 8, 6u64).unwrap();
    let mut fixed = file.map(0..LEN, Access::Write).unwrap();
    assert!(matches!(fixed.extend(LEN + 8), Err(Error::Invalid(_))));
}

#[test]
fn extended_read_only_view_shows_holes() {
    let (_sim, _fs, file, view) = mapped();
    drop(view);
    let mut view = file.map_reserved(0..LEN, 1 << 20, Access::Read).unwrap();
    file.set_len(2 * LEN).unwrap();
    file.write_at(&[3; 100], LEN + 8192).unwrap();
    view.extend(2 * LEN).unwrap();
    assert_eq!(view.load::<u8>(LEN + 1).unwrap(), 0);
    assert_eq!(view.load::<u8>(LEN + 8192).unwrap(), 3);
    assert_eq!(
        view.store(LEN + 8192, 1u8).unwrap_err().errno(),
        libc::EACCES
    );
}

/// The blocks of every part stay the file's until the view is dropped.
#[test]
fn truncated_blocks_are_freed_with_extended_view() {
    let (_sim, fs, file, view) = mapped();
    drop(view);
    let empty = {
        file.set_len(0).unwrap();
        fs.sync().unwrap();
        fs.statfs().unwrap().free
    };
    file.set_len(LEN).unwrap();
    let mut view = file.map_reserved(0..LEN, 1 << 20, Access::Write).unwrap();
    file.set_len(4 * LEN).unwrap();
    view.extend(4 * LEN).unwrap();
    view.write(3 * LEN, &[5; 64]).unwrap();
    file.set_len(0).unwrap();
    let other = fs.create("other").unwrap();
    while other.append(&[1; 4096]).is_ok() {}
    let mut bytes = [0; 64];
    view.read(3 * LEN, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 64]);
    other.set_len(0).unwrap();
    drop(view);
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().free, empty);
}

#[test]
fn advice_past_end_of_view_fails() {
    let (_sim, _fs, _file, view) = mapped();
    for advice in [
        Advice::Normal,
        Advice::Random,
        Advice::Sequential,
        Advice::WillNeed,
    ] {
        view.advise(10..LEN - 10, advice).unwrap();
        assert!(view.advise(0..LEN + 1, advice).is_err());
    }
}

/// Bytes that `extend` grants must be the file's, also in a block that is mapped already.
#[test]
fn extend_into_changed_last_block_fails() {
    let (_sim, _fs, file, view) = mapped();
    drop(view);
    file.set_len(100).unwrap();
    let mut view = file.map_reserved(0..100, 1 << 20, Access::Write).unwrap();
    file.set_len(0).unwrap();
    file.set_len(8192).unwrap();
    for len in [4096, 8192] {
        assert!(matches!(view.extend(len), Err(Error::Invalid(_))), "{len}");
        assert_eq!(view.len(), 100);
    }
    drop(view);
    // A hole that has been written since.
    file.set_len(0).unwrap();
    file.set_len(100).unwrap();
    let mut view = file.map_reserved(0..100, 1 << 20, Access::Read).unwrap();
    file.set_len(300).unwrap();
    view.extend(200).unwrap();
    file.write_at(b"new", 250).unwrap();
    assert!(matches!(view.extend(300), Err(Error::Invalid(_))));
    // Mapped again, it is shown.
    let view = file.map(0..300, Access::Read).unwrap();
    assert_eq!(view.load::<u8>(250).unwrap(), b'n');
}
