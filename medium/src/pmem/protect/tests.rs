use super::*;
use crate::pmem::tests::when_free;
use crate::pmem::{BackendKind, Region, RegionOptions, Unfenced};

const LEN: u64 = 1 << 20;

fn options(protect: Protect) -> RegionOptions {
    RegionOptions::new().protect(protect)
}

/// The rights of each mapping of a source, as the kernel shows them.
fn rights(of: &str) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut rights: Vec<String> = maps
        .lines()
        .filter(|line| line.contains(of))
        .map(|line| line.split(' ').nth(1).unwrap().to_owned())
        .collect();
    rights.sort();
    rights
}

/// Keys where there are any. Says what is not tested without.
fn key_or_mprotect(what: &str) -> Protect {
    match free_protection_keys() {
        Ok(_) => Protect::Pkey,
        Err(why) => {
            println!("SKIPPED: {what} with protect=pkey: {why}");
            Protect::Mprotect
        }
    }
}

/// Everything that stores, in one region.
fn exercise(region: &Region) {
    region.take_all_room().unwrap();
    region.populate(0, LEN).unwrap();
    let w = region.window();
    let mut pending = w.store(3, b"some bytes").unwrap();
    w.store_u64_unflushed(4096, 7).unwrap();
    pending = pending.join(w.flush(4096, 8).unwrap());
    pending = pending.join(w.nt_store(8192 + 5, &[9; 5000]).unwrap());
    pending = pending.join(w.nt_zero(8192 + 100, 200).unwrap());
    let fenced = w.fence(pending);
    pending = w.publish_u64(16, 0x55, fenced).unwrap();
    pending = pending.join(w.nt_copy(65536, 8192, 8192).unwrap());
    drop(w);
    region.write_back().fence(pending);
    region.sync_all().unwrap();
    let mut bytes = [0; 10];
    region.read(3, &mut bytes).unwrap();
    assert_eq!(&bytes, b"some bytes");
    assert_eq!(region.load_u64(4096).unwrap(), 7);
    assert_eq!(region.load_u64(16).unwrap(), 0x55);
    let (mut from, mut to) = (vec![0; 8192], vec![0; 8192]);
    region.read(8192, &mut from).unwrap();
    region.read(65536, &mut to).unwrap();
    assert_eq!((from[5], from[100], from[5004], from[5005]), (9, 0, 9, 0));
    assert!(from == to);
    if region.backend().can_discard() {
        region.window().discard(8192, 8192).unwrap();
        assert_eq!(region.load_u64(8192 + 512).unwrap(), 0);
    }
    assert_eq!(region.faults(), 0);
}

#[test]
fn every_store_of_protected_region_reaches_memory() {
    for way in [Protect::Mprotect, key_or_mprotect("stores to memory")] {
        for backend in [BackendKind::Auto, BackendKind::Native] {
            let options = options(way).backend(backend);
            exercise(&options.memfd("stores", LEN).unwrap());
        }
    }
}

#[test]
fn every_store_of_protected_region_reaches_a_file() {
    let exe = std::env::current_exe().unwrap();
    let ways = [
        Protect::Mprotect,
        Protect::Auto,
        key_or_mprotect("stores to a file"),
    ];
    for way in ways {
        for backend in [BackendKind::Auto, BackendKind::Native] {
            let options = options(way).backend(backend);
            // Its medium has pages instead of lines, unless it lies on tmpfs.
            let dir = tempfile::tempdir_in(exe.parent().unwrap()).unwrap();
            let path = dir.path().join("region");
            exercise(&options.create(&path, LEN).unwrap());
            let unprotected = when_free(|| RegionOptions::new().open(&path));
            assert_eq!(unprotected.load_u64(4096).unwrap(), 7);
        }
    }
}

#[test]
fn grown_region_is_closed_in_its_new_part() {
    for way in [Protect::Mprotect, key_or_mprotect("growth")] {
        let options = options(way).room_to_grow(16 * LEN);
        let region = options.memfd("grown", LEN).unwrap();
        region.window().store_u64_unflushed(0, 1).unwrap();
        assert_eq!(region.grow(Some(2 * LEN)).unwrap(), 2 * LEN);
        if way == Protect::Mprotect {
            assert_eq!(rights("memfd:grown"), ["r--s", "r--s"]);
        }
        {
            // A window that is open while the region grows is open in the new part as well.
            let window = region.window();
            window.store_u64_unflushed(2 * LEN - 8, 2).unwrap();
            std::thread::scope(|scope| {
                let grows = scope.spawn(|| region.grow(Some(4 * LEN)).unwrap());
                assert_eq!(grows.join().unwrap(), 4 * LEN);
            });
            window.store_u64_unflushed(4 * LEN - 8, 3).unwrap();
        }
        if way == Protect::Mprotect {
            assert_eq!(rights("memfd:grown"), ["r--s", "r--s"]);
        }
        let loaded = [0, 2 * LEN - 8, 4 * LEN - 8].map(|at| region.load_u64(at).unwrap());
        assert_eq!(loaded, [1, 2, 3]);
        assert_eq!(region.faults(), 0);
        // Past the addresses that are kept.
        assert!(region.grow(Some(1 << 44)).is_err());
        assert_eq!(region.len(), 4 * LEN);
    }
}

#[test]
fn closed_region_is_mapped_for_loads_only() {
    let region = options(Protect::Mprotect).memfd("closed", LEN).unwrap();
    let closed = ["r--s", "r--s"];
    assert_eq!(rights("memfd:closed"), closed);
    let outer = region.window();
    assert_eq!(rights("memfd:closed"), ["r--s", "rw-s"]);
    drop(region.window());
    assert_eq!(
        rights("memfd:closed"),
        ["r--s", "rw-s"],
        "the outer one is open"
    );
    drop(outer);
    assert_eq!(rights("memfd:closed"), closed);
    // What stores nothing opens nothing.
    let before = openings();
    let back = region.write_back();
    back.fence(back.flush(0, 64).unwrap());
    assert_eq!(openings(), before);
}

#[test]
fn windows_of_an_operation_are_joined() {
    let region = options(Protect::Mprotect).memfd("joined", LEN).unwrap();
    let before = openings();
    drop(region.write_scope());
    assert_eq!(openings(), before, "no store, no opening");
    {
        let _scope = region.write_scope();
        assert_eq!(
            rights("memfd:joined"),
            ["r--s", "r--s"],
            "not before the first store"
        );
        for i in 0..100 {
            let w = region.window();
            w.store_u64_unflushed(8 * i, i).unwrap();
        }
        // An operation inside, of this region or another.
        let other = options(Protect::Mprotect).memfd("other", LEN).unwrap();
        {
            let _inner = other.write_scope();
            other.window().store_u64_unflushed(0, 1).unwrap();
            region.window().store_u64_unflushed(0, 1).unwrap();
            assert_eq!(rights("memfd:other"), ["r--s", "rw-s"]);
        }
        assert_eq!(rights("memfd:other"), ["r--s", "r--s"]);
        assert_eq!(rights("memfd:joined"), ["r--s", "rw-s"]);
    }
    assert_eq!(rights("memfd:joined"), ["r--s", "r--s"]);
    assert_eq!(openings(), before + 3);
}

#[test]
fn panic_in_an_operation_closes_the_region() {
    let region = options(Protect::Mprotect).memfd("panic", LEN).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _scope = region.write_scope();
        let _window = region.window();
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    assert_eq!(rights("memfd:panic"), ["r--s", "r--s"]);
    region.window().store_u64_unflushed(0, 1).unwrap();
    assert_eq!(rights("memfd:panic"), ["r--s", "r--s"]);
}

#[test]
fn last_window_of_all_threads_closes_mprotect() {
    let region = options(Protect::Mprotect).memfd("threads", LEN).unwrap();
    std::thread::scope(|s| {
        for t in 0..4 {
            let region = &region;
            s.spawn(move || {
                for i in 0..500 {
                    let w = region.window();
                    w.store_u64_unflushed(4096 * t + 8 * (i % 512), i).unwrap();
                }
            });
        }
    });
    assert_eq!(rights("memfd:threads"), ["r--s", "r--s"]);
}

#[test]
fn unprotected_and_read_only_regions_have_one_mapping() {
    let region = RegionOptions::new().memfd("single", LEN).unwrap();
    assert_eq!(region.info().protect, Protect::Off);
    assert!(!region.is_protected());
    assert_eq!(rights("memfd:single"), ["rw-s"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region-to-read");
    drop(RegionOptions::new().create(&path, LEN).unwrap());
    let options = options(Protect::Mprotect).read_only(true);
    let region = when_free(|| options.open(&path));
    assert_eq!(region.info().protect, Protect::Off);
    assert_eq!(rights("region-to-read"), ["rw-p"]);
    // Stores stay in this process.
    region.window().store_u64_unflushed(0, 1).unwrap();
}

#[test]
fn keys_are_used_or_missed_with_a_reason() {
    let auto = options(Protect::Auto).memfd("auto", LEN).unwrap().info();
    let pkey = options(Protect::Pkey).memfd("pkey", LEN);
    match free_protection_keys() {
        Ok(free) => {
            assert!(free > 0, "the tests of this process leave some");
            assert_eq!((auto.protect, auto.protect_notice), (Protect::Pkey, None));
            assert_eq!(pkey.unwrap().info().protect, Protect::Pkey);
        }
        Err(why) => {
            assert_eq!(
                (auto.protect, auto.protect_notice),
                (Protect::Off, Some(why.clone()))
            );
            let refused = pkey.unwrap_err();
            assert_eq!(refused.errno(), libc::EOPNOTSUPP);
            let said = refused.to_string();
            assert!(
                said.contains(&why) && said.contains("protect=mprotect"),
                "{said}"
            );
            println!("SKIPPED: the keys themselves: {why}");
        }
    }
}

#[test]
fn page_lost_in_either_mapping_is_lost() {
    let ways = [Protect::Mprotect, key_or_mprotect("a page lost")];
    let lost = ["loads", "stores"];
    for (way, lost) in ways
        .into_iter()
        .flat_map(|way| lost.map(|lost| (way, lost)))
    {
        let region = options(way).memfd("lost", LEN).unwrap();
        let (page, offset) = (4096, 5 * 4096);
        let window = region.window();
        let base = match lost {
            "loads" => region.raw_range(offset, page).unwrap().cast::<u8>(),
            _ => window.to(offset, page).unwrap(),
        };
        let empty = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: replaces a page of a mapping that belongs to `region`, whose users allow for
        // changing contents; a page past the end of the file raises SIGBUS, and the region's
        // guard covers it.
        unsafe {
            rustix::mm::mmap(
                base.cast(),
                page as usize,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED,
                &empty,
                0,
            )
            .unwrap();
        }
        match lost {
            "loads" => assert!(region.load_u64(offset).is_err()),
            _ => window.store_u64_unflushed(offset, 1).unwrap(),
        }
        assert_eq!(region.faults(), 1, "{lost}");
        assert!(region.is_faulted(offset, 8), "{lost}");
        assert!(region.load_u64(offset).is_err(), "{lost}");
        assert!(window.store_u64_unflushed(offset, 1).is_err(), "{lost}");
        assert_eq!(region.load_u64(offset + page).unwrap(), 0);
        let _: Unfenced = window.store(offset + page, &[1; 8]).unwrap();
        assert_eq!(region.load_u64(offset - page).unwrap(), 0);
    }
}

#[test]
fn region_ends_with_both_mappings_and_its_key() {
    let way = key_or_mprotect("the end of a key");
    // More than a process has keys.
    for _ in 0..20 {
        let region = options(way).memfd("ends", LEN).unwrap();
        assert_eq!(rights("memfd:ends").len(), 2);
        drop(region);
        assert!(rights("memfd:ends").is_empty());
    }
}

#[test]
fn leaked_window_closes_with_its_operation() {
    for way in [Protect::Mprotect, key_or_mprotect("a leaked window")] {
        let region = options(way).memfd("leaked", LEN).unwrap();
        let scope = region.write_scope();
        std::mem::forget(region.window());
        drop(scope);
        assert!(is_closed(&region, "memfd:leaked"), "{way}");
        drop(region.window());
        assert!(is_closed(&region, "memfd:leaked"), "{way}");
    }
}

/// Whether this thread cannot store to a region.
fn is_closed(region: &Region, of: &str) -> bool {
    match &region.backend().protection().unwrap().way {
        Way::Pkey(key) => !key.is_open(),
        Way::Mprotect(_) => rights(of) == ["r--s", "r--s"],
    }
}

#[test]
fn key_that_thread_has_open_closes_with_window_and_with_operation() {
    let way = key_or_mprotect("a thread that is created in a window");
    let region = options(way).memfd("younger", LEN).unwrap();
    let Way::Pkey(key) = &region.backend().protection().unwrap().way else {
        return;
    };
    std::thread::scope(|s| {
        let _window = region.window();
        let younger = s.spawn(|| {
            assert!(key.is_open(), "inherited");
            let scope = region.write_scope();
            assert!(!key.is_open(), "an operation that stores nothing");
            drop(scope);
            key.open();
            drop(region.window());
            assert!(!key.is_open());
        });
        younger.join().unwrap();
        assert!(key.is_open(), "in the creator's window");
    });
    assert!(!key.is_open());
}

#[test]
#[cfg(debug_assertions)]
fn windows_dropped_out_of_order_are_refused_in_debug_builds() {
    let region = options(Protect::Mprotect).memfd("order", LEN).unwrap();
    let (outer, inner) = (region.window(), region.window());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(outer)));
    let said = *caught.unwrap_err().downcast::<&str>().unwrap();
    assert!(said.contains("dropped before one that"), "{said}");
    std::mem::forget(inner);
}

#[test]
fn store_fails_with_eio_where_region_cannot_be_opened() {
    let region = options(Protect::Mprotect).memfd("refused", LEN).unwrap();
    let refused = |e: PmemError| assert_eq!(e.errno(), libc::EIO, "{e}");
    for joined in [false, true] {
        let scope = joined.then(|| region.write_scope());
        REFUSE.set(true);
        let window = region.window();
        refused(window.store(0, b"bytes").unwrap_err());
        refused(window.store_u64_unflushed(0, 1).unwrap_err());
        refused(window.nt_zero(0, 64).unwrap_err());
        drop(window);
        refused(region.populate(0, 4096).unwrap_err());
        REFUSE.set(false);
        region.window().store_u64_unflushed(0, 2).unwrap();
        drop(scope);
        assert_eq!(rights("memfd:refused"), ["r--s", "r--s"]);
        assert_eq!(region.load_u64(0).unwrap(), 2);
    }
}

#[test]
fn operation_that_waits_is_closed_until_its_next_store() {
    for way in [Protect::Mprotect, key_or_mprotect("a wait")] {
        let region = options(way).memfd("waits", LEN).unwrap();
        let scope = region.write_scope();
        region.window().store_u64_unflushed(0, 1).unwrap();
        assert!(!is_closed(&region, "memfd:waits"), "{way}");
        region.close_for_wait();
        assert!(is_closed(&region, "memfd:waits"), "{way}");
        region.close_for_wait();
        region.window().store_u64_unflushed(0, 2).unwrap();
        assert!(!is_closed(&region, "memfd:waits"), "{way}");
        drop(scope);
        assert!(is_closed(&region, "memfd:waits"), "{way}");
    }
}

#[test]
fn room_is_taken_and_populated_in_pieces() {
    let region = options(Protect::Mprotect)
        .memfd("pieces", 160 << 20)
        .unwrap();
    let before = openings();
    region.populate(0, 160 << 20).unwrap();
    assert_eq!(openings(), before + 3);
    // What has its room already opens nothing.
    region.take_all_room().unwrap();
    let before = openings();
    region.take_room(0, 1 << 20).unwrap();
    assert_eq!(openings(), before);
}

/// A jump out of an operation leaves it begun: documented, since nothing tells.
#[test]
fn operation_that_never_ends_leaves_region_open() {
    let region = options(Protect::Mprotect).memfd("jump", LEN).unwrap();
    let thread = || {
        std::mem::forget(region.write_scope());
        drop(region.window());
        assert!(!is_closed(&region, "memfd:jump"));
    };
    std::thread::scope(|s| s.spawn(thread).join().unwrap());
}
