//! [`MappedFile`]: atomics, values, bounds, durability.

use std::sync::atomic::{AtomicBool, Ordering};

use pramfs::format::{FormatOptions, format};
use pramfs::{Access, Error, File, FileSystem, MappedFile, MountOptions};
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
fn atomics_of_each_size_load_store_and_exchange() {
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
fn access_past_the_end_or_misaligned_is_refused() {
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
fn stores_through_a_mapping_for_reading_are_refused() {
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
fn values_are_copied_in_and_out() {
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

#[test]
fn threads_count_without_loss() {
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
