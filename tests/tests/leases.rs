//! Leases in the engine: what stays where it is while another process maps a file, and
//! what the next mount does with a lease that outlived its server. `docs/leases.md` has
//! the rules.

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, LeasedExtents, SetAttr};
use pramfs::{ErrorPolicy, Fallocate, MountOptions};
use pramfs_fsck::{self as fsck, CheckOptions, Policy, RepairOptions};
use pramfs_medium::media::features::PARKED_LEASES;
use pramfs_medium::media::lease::LeaseSlot;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::{Region, RegionAccess, RegionOptions, SimBackend};
use pramfs_tests::region::{fresh, quiet, region_of};

const CX: Credentials<'_> = Credentials::ROOT;
const LEN: usize = 4 << 20;
const BLOCK: u64 = 4096;

/// A file system with a file of `blocks` blocks of sevens, which another process maps.
struct Leased {
    sim: SimBackend,
    fs: Fs,
    file: Ino,
    id: u64,
    /// Where its blocks were when the lease was granted.
    at: Vec<u64>,
}

fn leased(block_size: u32, blocks: u64) -> Leased {
    let (sim, fs) = fresh(LEN, block_size).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let bytes = vec![7; (blocks * u64::from(block_size)) as usize];
    assert_eq!(fs.write(&CX, file, 0, &bytes).unwrap(), bytes.len());
    let id = lease(&fs, file);
    let extents = extents(&fs, id);
    let at = extents
        .extents
        .iter()
        .flat_map(|e| {
            let first = e.region_offset.unwrap();
            (0..e.len / u64::from(block_size)).map(move |i| first + i * u64::from(block_size))
        })
        .collect::<Vec<_>>();
    assert_eq!(at.len() as u64, blocks);
    Leased {
        sim,
        fs,
        file,
        id,
        at,
    }
}

/// Grants a lease and holds it, in the first free slot.
fn lease(fs: &Fs, file: Ino) -> u64 {
    let generation = fs.getattr(file).unwrap().generation;
    let grant = fs
        .grant_lease(file, generation, LeaseMode::Read, 100, 1000)
        .unwrap();
    hold(fs, grant.lease().slot, true);
    grant.lease().id
}

fn hold(fs: &Fs, slot: u32, held: bool) {
    fs.region_to_damage().pretend_lease(slot, held);
}

fn extents(fs: &Fs, id: u64) -> LeasedExtents {
    let slot = fs.leases().iter().find(|l| l.id == id).unwrap().slot;
    fs.leased_extents(slot, id, 0, usize::MAX).unwrap()
}

fn truncate(fs: &Fs, file: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&CX, file, &set).unwrap();
}

fn read(fs: &Fs, file: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; fs.getattr(file).unwrap().size as usize];
    assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Writes to a new file until the region is full.
fn fill_up(fs: &Fs) {
    let file = match fs.lookup(Ino::ROOT, b"filler") {
        Ok(file) => file.ino,
        Err(_) => fs.create(&CX, Ino::ROOT, b"filler", 0o644).unwrap().ino,
    };
    while fs.append(&CX, file, &[9; BLOCK as usize]).is_ok() {}
    while fs.append(&CX, file, &[9; 512]).is_ok() {}
}

/// The first byte of each block, on the medium.
fn bytes_at(sim: &SimBackend, places: &[u64]) -> Vec<u8> {
    let image = sim.image();
    places.iter().map(|at| image[*at as usize]).collect()
}

fn free(fs: &Fs) -> u64 {
    fs.statfs().unwrap().free
}

fn has_feature(sim: &SimBackend) -> bool {
    probe_superblock(&region_of(sim)).unwrap().fixed.ro_compat & PARKED_LEASES != 0
}

fn assert_clean(sim: &SimBackend) {
    let report = fsck::check(&region_of(sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

/// Mounts as after a crash, while processes hold these slots.
fn mount_again(sim: &SimBackend, held: &[u32], options: MountOptions) -> Fs {
    let region = region_of(sim);
    for slot in held {
        region.pretend_lease(*slot, true);
    }
    Fs::open(region, options).unwrap()
}

/// The machine stops: what the engine has stored so far is there.
fn crash(sim: &SimBackend) -> SimBackend {
    SimBackend::from_image(&sim.image()).unwrap()
}

/// A file that was made without a name is cut while it is leased, and gets its first name:
/// its slot of the orphan table then stands for the blocks past its end.
#[test]
fn link_of_unnamed_file_keeps_slot_for_cut_blocks_of_lease() {
    for ends_first in [false, true] {
        let (sim, fs) = fresh(LEN, 4096).unwrap();
        let (held, made) = (fs.holding())
            .create_unnamed(&CX, Ino::ROOT, 0o644, true)
            .unwrap();
        let file = made.ino;
        let blocks = |fs: &Fs| fs.getattr(file).unwrap().blocks;
        fs.write(&CX, file, 0, &[7; 5 * 4096]).unwrap();
        let whole = blocks(&fs);
        let short = whole - 4 * BLOCK / 512;
        lease(&fs, file);
        truncate(&fs, file, 4096);
        assert_eq!(blocks(&fs), whole);
        let end = || {
            hold(&fs, 0, false);
            assert_eq!(fs.end_released_leases().unwrap(), 1);
        };
        if ends_first {
            end();
            assert_eq!(blocks(&fs), short);
        }
        fs.link(file, Ino::ROOT, b"file").unwrap();
        drop(held);
        if !ends_first {
            assert_eq!(blocks(&fs), whole);
            // The next mount after a crash frees them, when no process holds the lease.
            let after = crash(&sim);
            let again = mount_again(&after, &[], quiet());
            assert_eq!(read(&again, file), [7; 4096]);
            assert_eq!(blocks(&again), short);
            again.close().unwrap();
            assert_clean(&after);
            end();
        }
        assert_eq!((blocks(&fs), read(&fs, file)), (short, vec![7; 4096]));
        fs.close().unwrap();
        assert_clean(&sim);
    }
}

#[test]
fn truncation_beside_lease_gives_no_block_away() {
    for block_size in [512, 4096] {
        let l = leased(block_size, 5);
        let before = free(&l.fs);
        truncate(&l.fs, l.file, 0);
        assert_eq!(free(&l.fs), before);
        fill_up(&l.fs);
        assert_eq!(bytes_at(&l.sim, &l.at), [7; 5]);
        hold(&l.fs, 0, false);
        assert_eq!(l.fs.end_released_leases().unwrap(), 1);
        assert_eq!(l.fs.getattr(l.file).unwrap().blocks, 0);
        fill_up(&l.fs);
        l.fs.close().unwrap();
        assert_clean(&l.sim);
    }
}

#[test]
fn file_that_grows_after_truncation_beside_lease_reads_zeros() {
    let l = leased(4096, 5);
    truncate(&l.fs, l.file, 100);
    truncate(&l.fs, l.file, 3 * BLOCK);
    let mut expect = vec![0; 3 * BLOCK as usize];
    expect[..100].fill(7);
    assert_eq!(read(&l.fs, l.file), expect);
    // Into blocks that it had before, past a gap.
    l.fs.write(&CX, l.file, 4 * BLOCK + 10, b"end").unwrap();
    expect.resize(4 * BLOCK as usize + 10, 0);
    expect.extend(b"end");
    assert_eq!(read(&l.fs, l.file), expect);
    l.fs.append(&CX, l.file, &[5; 5000]).unwrap();
    expect.extend([5; 5000]);
    assert_eq!(read(&l.fs, l.file), expect);
    l.fs.close().unwrap();
    assert_clean(&l.sim);
}

#[test]
fn punch_beside_lease_zeroes_in_place() {
    let l = leased(4096, 5);
    let (before, layout) = (free(&l.fs), extents(&l.fs, l.id).layout);
    let (at, len) = (BLOCK + 100, 2 * BLOCK);
    l.fs.fallocate(&CX, l.file, Fallocate::PunchHole, at, len)
        .unwrap();
    let mut expect = vec![7; 5 * BLOCK as usize];
    expect[at as usize..(at + len) as usize].fill(0);
    assert_eq!(read(&l.fs, l.file), expect);
    assert_eq!(free(&l.fs), before);
    assert_eq!(bytes_at(&l.sim, &l.at), [7, 7, 0, 0, 7]);
    // The blocks are where they were.
    assert_eq!(extents(&l.fs, l.id).layout, layout);
    // The times are durable, as after a punch without a lease.
    let times = |fs: &Fs| fs.getattr(l.file).map(|a| (a.mtime, a.ctime)).unwrap();
    assert_eq!(
        times(&mount_again(&crash(&l.sim), &[0], quiet())),
        times(&l.fs)
    );
    l.fs.close().unwrap();
    assert_clean(&l.sim);
}

/// No process has seen the new blocks. They would be lost to all others until the lease ends.
#[test]
fn failed_append_beside_lease_frees_its_blocks() {
    for block_size in [512, 4096] {
        for cut in [false, true] {
            let l = leased(block_size, 5);
            if cut {
                truncate(&l.fs, l.file, 100);
            }
            let (before, size) = (free(&l.fs), l.fs.getattr(l.file).unwrap().size);
            let expect = read(&l.fs, l.file);
            // More than one record, and more than there is.
            let failed = l.fs.append(&CX, l.file, &vec![8; LEN]).unwrap_err();
            assert_eq!(failed.errno(), libc::ENOSPC);
            assert_eq!(l.fs.getattr(l.file).unwrap().size, size);
            // The tree stays as high as it has become, as without a lease.
            let lost = before - free(&l.fs);
            assert!(lost <= 3, "{lost} blocks of {block_size}, cut: {cut}");
            assert_eq!(read(&l.fs, l.file), expect);
            let places: Vec<u64> = match cut {
                true => vec![l.at[0]],
                false => l.at.clone(),
            };
            assert!(bytes_at(&l.sim, &places).iter().all(|b| *b == 7));
            l.fs.close().unwrap();
            assert_clean(&l.sim);
        }
    }
}

#[test]
fn unlinked_file_exists_until_its_lease_ends() {
    let l = leased(4096, 5);
    l.fs.unlink(Ino::ROOT, b"file").unwrap();
    fill_up(&l.fs);
    assert_eq!(bytes_at(&l.sim, &l.at), [7; 5]);
    hold(&l.fs, 0, false);
    assert_eq!(l.fs.end_released_leases().unwrap(), 1);
    assert!(l.fs.getattr(l.file).is_err());
    l.fs.close().unwrap();
    assert_clean(&l.sim);
}

#[test]
fn blocks_stay_until_last_of_several_leases_ends() {
    let l = leased(4096, 5);
    let second = lease(&l.fs, l.file);
    truncate(&l.fs, l.file, 0);
    hold(&l.fs, 0, false);
    assert_eq!(l.fs.end_released_leases().unwrap(), 1);
    assert_eq!(extents(&l.fs, second).size, 0);
    fill_up(&l.fs);
    assert_eq!(bytes_at(&l.sim, &l.at), [7; 5]);
    hold(&l.fs, 1, false);
    assert_eq!(l.fs.end_released_leases().unwrap(), 1);
    l.fs.close().unwrap();
    assert_clean(&l.sim);
}

#[test]
fn lease_that_outlives_server_keeps_blocks_through_next_mount() {
    for (how, unlink) in [("truncate", false), ("unlink", true)] {
        let l = leased(4096, 5);
        match unlink {
            false => truncate(&l.fs, l.file, 0),
            true => l.fs.unlink(Ino::ROOT, b"file").unwrap(),
        }
        let sim = crash(&l.sim);
        let fs = mount_again(&sim, &[0], quiet());
        assert!(fs.leases()[0].is_adopted, "{how}");
        fill_up(&fs);
        assert_eq!(bytes_at(&sim, &l.at), [7; 5], "{how}");
        // Also through an unmount.
        fs.close().unwrap();
        assert!(has_feature(&sim), "{how}");
        assert_clean(&sim);
        let fs = mount_again(&sim, &[0], quiet());
        assert_eq!(bytes_at(&sim, &l.at), [7; 5], "{how}");
        hold(&fs, 0, false);
        assert_eq!(fs.end_released_leases().unwrap(), 1, "{how}");
        fs.close().unwrap();
        assert!(!has_feature(&sim), "{how}");
        assert_clean(&sim);
    }
}

#[test]
fn lease_that_nobody_holds_ends_at_next_mount() {
    let l = leased(4096, 5);
    truncate(&l.fs, l.file, 0);
    let sim = crash(&l.sim);
    let fs = mount_again(&sim, &[], quiet());
    assert!(fs.leases().is_empty());
    assert_eq!(fs.getattr(l.file).unwrap().blocks, 0);
    fs.close().unwrap();
    assert_clean(&sim);
}

#[test]
fn read_only_mount_keeps_slots_until_it_becomes_writable() {
    let l = leased(4096, 5);
    let sim = crash(&l.sim);
    let read_only = MountOptions {
        read_only: true,
        ..quiet()
    };
    let fs = mount_again(&sim, &[], read_only);
    assert_eq!(fs.leases().len(), 1);
    let generation = fs.getattr(l.file).unwrap().generation;
    let refused = fs
        .grant_lease(l.file, generation, LeaseMode::Read, 1, 1)
        .unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    fs.make_writable().unwrap();
    assert!(fs.leases().is_empty());
    fs.close().unwrap();
    assert_clean(&sim);
}

#[test]
fn damaged_slot_of_live_lease_makes_mount_read_only() {
    let l = leased(4096, 5);
    let view = extents(&l.fs, l.id).view;
    // No record is live that would restore the slot.
    l.fs.close().unwrap();
    let sim = crash(&l.sim);
    let region = region_of(&sim);
    let w = region.window();
    let pending = w.store(view - 0x40, &[0x55; 8]).unwrap();
    let _ = w.fence(pending);
    let options = || MountOptions {
        errors: ErrorPolicy::Continue,
        ..quiet()
    };
    // Nobody holds it: the slot is damage like any other.
    let fs = mount_again(&crash(&sim), &[], options());
    assert!(!fs.is_read_only());
    drop(fs);
    let read_only = MountOptions {
        read_only: true,
        ..options()
    };
    let fs = mount_again(&sim, &[0], read_only);
    assert_eq!(fs.make_writable().unwrap_err().errno(), libc::EROFS);
    drop(fs);
    let fs = mount_again(&sim, &[0], options());
    assert!(fs.is_read_only());
    assert_eq!(fs.make_writable().unwrap_err().errno(), libc::EROFS);
    drop(fs);
    // fsck repairs it after the process has ended.
    region.pretend_lease(0, true);
    let yes = RepairOptions::new(Policy::Yes);
    assert_eq!(
        fsck::repair(&region, &yes).unwrap_err().errno(),
        libc::EBUSY
    );
    region.pretend_lease(0, false);
    assert!(fsck::repair(&region, &yes).unwrap().is_sound());
    assert_clean(&sim);
}

#[test]
fn format_beside_live_lease_is_refused() {
    let l = leased(4096, 1);
    let region = region_of(&crash(&l.sim));
    region.pretend_lease(0, true);
    let again = || pramfs::format::format(&region, &Default::default());
    assert_eq!(again().unwrap_err().errno(), libc::EBUSY);
    region.pretend_lease(0, false);
    again().unwrap();
}

#[test]
fn view_words_tell_readers_of_size_and_layout() {
    let l = leased(4096, 2);
    let first = extents(&l.fs, l.id);
    let view = || {
        let region = l.fs.region_to_damage();
        let word = |i: u64| region.load_u64(first.view + i * 8).unwrap();
        (word(0), word(1))
    };
    assert_eq!(view(), (first.layout, 2 * BLOCK));
    // Growth changes nothing below the size.
    l.fs.append(&CX, l.file, &[1; 4096]).unwrap();
    l.fs.append(&CX, l.file, &[1; 10]).unwrap();
    assert_eq!(view(), (first.layout, 3 * BLOCK + 10));
    // An overwrite in place neither.
    l.fs.write(&CX, l.file, 5, b"over").unwrap();
    assert_eq!(view().0, first.layout);
    // A hole that gets a block, and a shorter file, do.
    truncate(&l.fs, l.file, 8 * BLOCK);
    let grown = view();
    assert_eq!(grown.1, 8 * BLOCK);
    l.fs.write(&CX, l.file, 6 * BLOCK, b"new").unwrap();
    let filled = view();
    assert!(filled.0 > grown.0);
    truncate(&l.fs, l.file, 10);
    assert!(view().0 > filled.0 && view().1 == 10);
}

/// A reader knows the whole last block: a write past the end that fills it must tell.
#[test]
fn write_past_end_into_last_block_changes_layout() {
    for unwritten in [false, true] {
        let (_sim, fs) = fresh(LEN, 4096).unwrap();
        let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
        match unwritten {
            false => truncate(&fs, file, 100),
            true => fs
                .fallocate(&CX, file, Fallocate::Allocate { keep_size: false }, 0, 100)
                .unwrap(),
        }
        let id = lease(&fs, file);
        let before = extents(&fs, id);
        assert!(before.extents.is_empty() && before.end == BLOCK);
        fs.write(&CX, file, 200, b"new").unwrap();
        assert!(extents(&fs, id).layout > before.layout, "{unwritten}");
    }
}

/// The server died between a change and the stores of these words.
#[test]
fn adoption_raises_counter_of_each_lease_and_shows_size() {
    let l = leased(4096, 2);
    let ids = [l.id, lease(&l.fs, l.file)];
    let before = ids.map(|id| extents(&l.fs, id));
    truncate(&l.fs, l.file, 100);
    let sim = crash(&l.sim);
    let region = region_of(&sim);
    for old in &before {
        for (i, word) in [old.layout, old.size].into_iter().enumerate() {
            let at = old.view + i as u64 * 8;
            region.window().store_u64_unflushed(at, word).unwrap();
        }
    }
    let fs = mount_again(&sim, &[0, 1], quiet());
    for (id, old) in ids.into_iter().zip(before) {
        let now = extents(&fs, id);
        assert!(now.layout > old.layout, "{now:?}");
        assert_eq!((now.size, now.view), (100, old.view));
        let shown = fs.region_to_damage().load_u64(old.view + 8).unwrap();
        assert_eq!(shown, 100);
    }
}

/// A 2 MiB leaf that reaches past the end becomes written as a whole.
#[test]
fn write_past_end_into_huge_leaf_changes_layout() {
    let (_sim, fs) = fresh(16 << 20, 4096).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let ahead = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&CX, file, ahead, 0, 2 << 20).unwrap();
    truncate(&fs, file, BLOCK);
    fs.fallocate(&CX, file, ahead, 0, 2 << 20).unwrap();
    let id = lease(&fs, file);
    let before = extents(&fs, id);
    assert!(before.extents.is_empty());
    fs.write(&CX, file, 1 << 20, b"new").unwrap();
    let after = extents(&fs, id);
    assert!(after.layout > before.layout && !after.extents.is_empty());
}

#[test]
fn remount_rw_tells_holders_to_look_again() {
    let l = leased(4096, 5);
    let before = extents(&l.fs, l.id);
    let sim = crash(&l.sim);
    let read_only = MountOptions {
        read_only: true,
        ..quiet()
    };
    let fs = mount_again(&sim, &[0], read_only);
    fs.make_writable().unwrap();
    let after = extents(&fs, l.id);
    assert!(after.layout > before.layout && after.size == before.size);
}

#[test]
fn extents_of_lease_have_no_holes_and_come_in_packets() {
    let l = leased(4096, 2);
    l.fs.write(&CX, l.file, 4 * BLOCK, &[1; 4096]).unwrap();
    l.fs.write(&CX, l.file, 8 * BLOCK, &[1; 100]).unwrap();
    let part = |offset, max| l.fs.leased_extents(0, l.id, offset, max).unwrap();
    let places = |e: &LeasedExtents| -> Vec<_> {
        e.extents.iter().map(|e| (e.file_offset, e.len)).collect()
    };
    let all = part(0, usize::MAX);
    let expect = [(0, 2 * BLOCK), (4 * BLOCK, BLOCK), (8 * BLOCK, BLOCK)];
    assert_eq!((places(&all), all.end), (expect.to_vec(), 9 * BLOCK));
    let two = part(0, 2);
    assert_eq!(places(&two), expect[..2]);
    let rest = part(two.end, 2);
    assert_eq!((places(&rest), rest.end), (expect[2..].to_vec(), 9 * BLOCK));
    // From the middle of a block, and past the end.
    assert_eq!(places(&part(BLOCK + 5, 1)), [(BLOCK, BLOCK)]);
    assert_eq!(places(&part(100 * BLOCK, 1)), []);
    assert_eq!(
        l.fs.leased_extents(0, l.id + 1, 0, 1).unwrap_err().errno(),
        libc::ESTALE
    );
}

#[test]
fn lease_of_anything_but_current_file_is_refused() {
    let (_sim, fs) = fresh(LEN, 4096).unwrap();
    let errno = |ino: Ino, generation| {
        let refused = fs.grant_lease(ino, generation, LeaseMode::Read, 1, 1);
        refused.map(drop).unwrap_err().errno()
    };
    let generation = |ino| fs.getattr(ino).unwrap().generation;
    assert_eq!(errno(Ino::ROOT, generation(Ino::ROOT)), libc::EISDIR);
    let pipe = fs.mknod(&CX, Ino::ROOT, b"pipe", libc::S_IFIFO | 0o600, 0);
    let pipe = pipe.unwrap().ino;
    assert_eq!(errno(pipe, generation(pipe)), libc::EINVAL);
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    assert_eq!(errno(file, generation(file) + 1), libc::ESTALE);
    assert_eq!(errno(Ino::LEASES, 0), libc::ESTALE);
    assert_eq!(errno(Ino(1 << 40), 0), libc::ESTALE);
    assert!(fs.leases().is_empty());
}

#[test]
fn lease_table_has_bounded_number_of_slots_and_reuses_them() {
    let (sim, fs) = fresh(8 << 20, 4096).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let generation = fs.getattr(file).unwrap().generation;
    let mut granted = 0;
    let refused = loop {
        match fs.grant_lease(file, generation, LeaseMode::Read, 1, 1) {
            Ok(_) => granted += 1,
            Err(e) => break e,
        }
    };
    assert_eq!((granted, refused.errno()), (4096, libc::ENOSPC));
    assert_eq!(fs.end_released_leases().unwrap(), 4096);
    let table = fs.statfs().unwrap().free;
    for _ in 0..100 {
        drop(
            fs.grant_lease(file, generation, LeaseMode::Read, 1, 1)
                .unwrap(),
        );
        assert_eq!(fs.end_released_leases().unwrap(), 1);
    }
    assert_eq!(fs.statfs().unwrap().free, table);
    fs.close().unwrap();
    assert_clean(&sim);
}

/// The free slots of a table are known again after a mount.
#[test]
fn lease_table_does_not_grow_with_each_mount() {
    let l = leased(512, 1);
    hold(&l.fs, 0, false);
    l.fs.close().unwrap();
    let mut sizes = Vec::new();
    for _ in 0..20 {
        let fs = mount_again(&l.sim, &[], quiet());
        lease(&fs, l.file);
        hold(&fs, fs.leases()[0].slot, false);
        sizes.push(free(&fs));
        fs.close().unwrap();
    }
    assert_eq!(sizes[0], sizes[19], "{sizes:?}");
    assert_clean(&l.sim);
}

#[test]
fn slot_of_crashed_grant_is_free_or_whole() {
    assert_eq!(LeaseSlot::SIZE, 256);
    let l = leased(4096, 1);
    l.sim.recording(true);
    let start = l.sim.image();
    let second = l.fs.create(&CX, Ino::ROOT, b"second", 0o644).unwrap().ino;
    lease(&l.fs, second);
    hold(&l.fs, 1, false);
    l.fs.end_released_leases().unwrap();
    let events = l.sim.take_record();
    for moment in 0..=events.len() {
        let mut machine = pramfs_tests::crash::Machine::new(start.clone());
        machine.run_all(&events[..moment]);
        for image in [machine.least(), machine.most()] {
            let sim = SimBackend::from_image(&image).unwrap();
            let fs = mount_again(&sim, &[0, 1], quiet());
            assert!(fs.recovery().damage.is_empty());
            assert!(fs.leases().len() <= 2 && !fs.leases().is_empty());
            fs.close().unwrap();
            assert_clean(&sim);
        }
    }
}

/// A grant is not ended before the process has its descriptor.
#[test]
fn lease_being_granted_is_not_ended() {
    let (_sim, fs) = fresh(LEN, 4096).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let generation = fs.getattr(file).unwrap().generation;
    let grant = fs
        .grant_lease(file, generation, LeaseMode::Read, 1, 1)
        .unwrap();
    assert_eq!(fs.end_released_leases().unwrap(), 0);
    drop(grant);
    assert_eq!(fs.end_released_leases().unwrap(), 1);
}

/// With the lock of the kernel, in one process.
#[test]
fn descriptor_of_lease_keeps_it_until_closed() {
    let region: Region = RegionOptions::new().memfd("leased", LEN as u64).unwrap();
    pramfs::format::format(&region, &Default::default()).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let generation = fs.getattr(file).unwrap().generation;
    fs.try_lease_lock().unwrap();
    let grant = fs
        .grant_lease(file, generation, LeaseMode::Read, 1, 1)
        .unwrap();
    let descriptor = grant.descriptor().unwrap();
    drop(grant);
    assert_eq!(fs.end_released_leases().unwrap(), 0);
    drop(descriptor);
    assert_eq!(fs.end_released_leases().unwrap(), 1);
    fs.close().unwrap();
}
