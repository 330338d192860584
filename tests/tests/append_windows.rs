//! Append windows, in the engine: what opens and closes them, what the size is meanwhile, and
//! what becomes of the blocks. Crashes are in `crash_explorer.rs` and `rules.rs`.

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, SetAttr};
use pramfs::{Error, Fallocate, MountOptions};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_medium::media::features::APPEND_WINDOWS;
use pramfs_medium::media::inode::FL_APPEND;
use pramfs_medium::media::lease::{
    ALL_CLOSED, APPENDING_OFFSET, CLOSED_WORD, END_OFFSET, VIEW_OFFSET,
};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::{RegionAccess, SimBackend};
use pramfs_tests::appender::{Appended, Appender};
use pramfs_tests::region::{fresh, quiet, region_of};

const CX: Credentials<'_> = Credentials::ROOT;
const LEN: usize = 8 << 20;
const BLOCK: u64 = 4096;
/// Not a whole number of blocks.
const SIZE: u64 = 3 * BLOCK - 1000;

struct Scene {
    sim: SimBackend,
    fs: Fs,
    file: Ino,
    holder: Appender,
}

fn lease(fs: &Fs, file: Ino, mode: LeaseMode) -> u32 {
    let generation = fs.getattr(file).unwrap().generation;
    let grant = fs.grant_lease(file, generation, mode, 1, 1).unwrap();
    let slot = grant.lease().slot;
    fs.region_to_damage().pretend_lease(slot, true);
    slot
}

fn scene() -> Scene {
    let (sim, fs) = fresh(LEN, BLOCK as u32).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&CX, file, 0, &[7; SIZE as usize]).unwrap();
    lease(&fs, file, LeaseMode::Write);
    let holder = Appender::of(&fs, file).unwrap();
    Scene {
        sim,
        fs,
        file,
        holder,
    }
}

impl Scene {
    fn append(&self, byte: u8, len: usize) -> Appended {
        self.holder.append(&self.fs, &vec![byte; len]).unwrap()
    }

    /// With a window, in which 5,000 bytes have been appended.
    fn appended() -> Scene {
        let s = scene();
        s.holder.open(&s.fs, 1).unwrap();
        assert_eq!(s.append(8, 5000), Appended::Yes);
        s
    }

    fn size(&self) -> u64 {
        self.fs.getattr(self.file).unwrap().size
    }

    fn is_open(&self) -> bool {
        self.holder.window(&self.fs).unwrap().is_some()
    }

    fn read(&self) -> Vec<u8> {
        read(&self.fs, self.file)
    }

    fn let_go(&self) {
        self.fs
            .region_to_damage()
            .pretend_lease(self.holder.lease.0, false);
        assert_eq!(self.fs.end_released_leases().unwrap(), 1);
    }

    fn finish(self) {
        let report = fsck::check(&region_of(&self.sim), &CheckOptions::default());
        drop(self.fs);
        let after = fsck::check(&region_of(&self.sim), &CheckOptions::default());
        assert!(after.is_clean(), "{after}\nbefore: {report}");
    }
}

fn read(fs: &Fs, file: Ino) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let n = fs.read(file, 0, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

fn expected(parts: &[(u8, u64)]) -> Vec<u8> {
    let bytes = parts
        .iter()
        .flat_map(|&(byte, len)| vec![byte; len as usize]);
    bytes.collect()
}

fn set_size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

fn has_feature(sim: &SimBackend) -> bool {
    probe_superblock(&region_of(sim)).unwrap().fixed.incompat & APPEND_WINDOWS != 0
}

#[test]
fn file_of_process_serves_program_that_knows_trait() {
    let (_sim, fs) = fresh(LEN, BLOCK as u32).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"any", 0o644).unwrap().ino;
    pramfs_tests::any_file::count_records(&fs.open_file(file).unwrap(), 50).unwrap();
}

#[test]
fn append_in_window_is_seen_by_each_way_to_look() {
    let s = Scene::appended();
    let all = SIZE + 5000;
    assert_eq!(s.size(), all);
    assert_eq!(s.append(9, 10), Appended::Yes);
    assert_eq!(s.fs.lookup(Ino::ROOT, b"file").unwrap().size, all + 10);
    assert_eq!(s.append(9, 10), Appended::Yes);
    assert_eq!(s.read(), expected(&[(7, SIZE), (8, 5000), (9, 20)]));
    assert_eq!(s.append(9, 10), Appended::Yes);
    let mut buf = [0; 100];
    assert_eq!(s.fs.read(s.file, all + 20, &mut buf).unwrap(), 10);
    // None of them closes the window.
    assert!(s.is_open());
    s.let_go();
    assert_eq!(s.size(), all + 30);
    s.finish();
}

#[test]
fn looks_in_caches_before_window_do_not_hide_its_appends() {
    let s = scene();
    for _ in 0..3 {
        assert_eq!(s.fs.lookup(Ino::ROOT, b"file").unwrap().size, SIZE);
        assert_eq!(s.size(), SIZE);
    }
    s.holder.open(&s.fs, 1).unwrap();
    for n in 1..4 {
        assert_eq!(s.append(n as u8, 100), Appended::Yes);
        assert_eq!(
            s.fs.lookup(Ino::ROOT, b"file").unwrap().size,
            SIZE + n * 100
        );
        assert_eq!(s.append(n as u8, 0), Appended::Yes);
        assert_eq!(s.size(), SIZE + n * 100);
    }
    s.finish();
}

#[test]
fn every_other_change_of_size_closes_window_and_keeps_what_was_appended() {
    type Change = fn(&Scene) -> Vec<u8>;
    let all = SIZE + 5000;
    let before = || expected(&[(7, SIZE), (8, 5000)]);
    let changes: [(&str, Change); 8] = [
        ("append", |s| {
            let at = s.fs.append(&CX, s.file, &[1; 300]).unwrap();
            assert_eq!(at, SIZE + 5000);
            expected(&[(7, SIZE), (8, 5000), (1, 300)])
        }),
        ("write past the end", |s| {
            s.fs.write(&CX, s.file, SIZE + 6000, &[1; 300]).unwrap();
            expected(&[(7, SIZE), (8, 5000), (0, 1000), (1, 300)])
        }),
        ("truncate to less than was appended", |s| {
            s.fs.setattr(&CX, s.file, &set_size(SIZE + 4000)).unwrap();
            expected(&[(7, SIZE), (8, 4000)])
        }),
        ("truncate to less than before", |s| {
            s.fs.setattr(&CX, s.file, &set_size(100)).unwrap();
            expected(&[(7, 100)])
        }),
        ("truncate longer", |s| {
            s.fs.setattr(&CX, s.file, &set_size(SIZE + 50_000)).unwrap();
            expected(&[(7, SIZE), (8, 5000), (0, 45_000)])
        }),
        ("fallocate", |s| {
            let what = Fallocate::Allocate { keep_size: false };
            s.fs.fallocate(&CX, s.file, what, SIZE, 9000).unwrap();
            expected(&[(7, SIZE), (8, 5000), (0, 4000)])
        }),
        ("copy over the end", |s| {
            s.fs.copy_range(&CX, (s.file, 0), (s.file, SIZE + 4000), 2000)
                .unwrap();
            expected(&[(7, SIZE), (8, 4000), (7, 2000)])
        }),
        ("another lease", |s| {
            lease(&s.fs, s.file, LeaseMode::Read);
            expected(&[(7, SIZE), (8, 5000)])
        }),
    ];
    for (name, change) in changes {
        let s = Scene::appended();
        let after = change(&s);
        assert!(!s.is_open(), "{name}");
        assert_eq!(s.append(9, 10), Appended::Closed, "{name}");
        assert!(s.read() == after, "{name}");
        let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
        let fs = Fs::open(region_of(&crashed), quiet()).unwrap();
        assert!(read(&fs, s.file) == after, "{name}, after a crash");
        s.finish();
    }
    // These leave it open.
    let s = Scene::appended();
    s.fs.write(&CX, s.file, all - 10, &[1; 10]).unwrap();
    s.fs.fill(s.file, 0, all).unwrap();
    s.fs.setattr(&CX, s.file, &set_size(all)).unwrap();
    s.fs.setattr(
        &CX,
        s.file,
        &SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert!(s.is_open());
    let mut after = before();
    after[all as usize - 10..].fill(1);
    assert!(s.read() == after);
}

/// The holder stores the end of an append after the server has looked.
#[test]
fn end_stored_after_window_was_closed_does_not_count() {
    let s = Scene::appended();
    let (window, _) = s.holder.window(&s.fs).unwrap().unwrap();
    let region = s.fs.region_to_damage();
    s.fs.setattr(&CX, s.file, &set_size(100)).unwrap();
    let w = region.window();
    let late = s.holder.at + END_OFFSET;
    w.store_u64_unflushed(late, window.word_of(SIZE + 6000))
        .unwrap();
    assert_eq!(s.size(), 100);
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    let fs = Fs::open(region_of(&crashed), quiet()).unwrap();
    assert_eq!(fs.getattr(s.file).unwrap().size, 100);
    // Nor for the next window, which begins elsewhere.
    s.holder.open(&s.fs, 1).unwrap();
    assert_eq!(s.size(), 100);
    w.store_u64_unflushed(late, window.word_of(SIZE + 6000))
        .unwrap();
    assert_eq!(s.size(), 100);
    drop(fs);
}

#[test]
fn mount_after_crash_has_what_was_appended_and_frees_the_rest() {
    for held in [true, false] {
        let s = Scene::appended();
        let free = s.fs.statfs().unwrap().free;
        let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
        assert!(has_feature(&crashed));
        let region = region_of(&crashed);
        region.pretend_lease(s.holder.lease.0, held);
        let fs = Fs::open(region, quiet()).unwrap();
        assert!(
            read(&fs, s.file) == expected(&[(7, SIZE), (8, 5000)]),
            "held: {held}"
        );
        assert_eq!(fs.leases().len(), usize::from(held));
        if held {
            // Its holder learns that the window is closed.
            let closed = s.holder.at + VIEW_OFFSET + CLOSED_WORD * 8;
            let number = s.holder.window(&s.fs).unwrap().unwrap().0.number;
            assert_eq!(fs.region_to_damage().load_u64(closed).unwrap(), number);
            assert_eq!(s.holder.append(&fs, &[9; 10]).unwrap(), Appended::Closed);
            // It may go on.
            s.holder.open(&fs, 1).unwrap();
            assert_eq!(s.holder.append(&fs, &[9; 10]).unwrap(), Appended::Yes);
            fs.region_to_damage().pretend_lease(s.holder.lease.0, false);
            fs.end_released_leases().unwrap();
        }
        // The window had 256 KiB.
        assert!(fs.statfs().unwrap().free >= free + 60, "held: {held}");
        fs.close().unwrap();
        assert!(!has_feature(&crashed));
        let report = fsck::check(&region_of(&crashed), &CheckOptions::default());
        assert!(report.is_clean(), "{report}");
    }
}

/// The record that closes a window may be the last thing that a server did.
#[test]
fn holder_whose_server_died_while_closing_learns_that_nothing_is_known() {
    let s = Scene::appended();
    s.fs.append(&CX, s.file, &[1]).unwrap();
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    let region = region_of(&crashed);
    let closed = s.holder.at + VIEW_OFFSET + CLOSED_WORD * 8;
    region.window().store_u64_unflushed(closed, 0).unwrap();
    region.pretend_lease(s.holder.lease.0, true);
    let fs = Fs::open(region, quiet()).unwrap();
    assert_eq!(fs.region_to_damage().load_u64(closed).unwrap(), ALL_CLOSED);
    assert_eq!(fs.getattr(s.file).unwrap().size, SIZE + 5001);
}

#[test]
fn read_only_mount_shows_what_was_appended_and_becomes_writable() {
    let s = Scene::appended();
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    let region = region_of(&crashed);
    region.pretend_lease(s.holder.lease.0, true);
    let options = MountOptions {
        read_only: true,
        ..quiet()
    };
    let fs = Fs::open(region, options).unwrap();
    let all = expected(&[(7, SIZE), (8, 5000)]);
    assert!(read(&fs, s.file) == all);
    assert_eq!(fs.getattr(s.file).unwrap().size, all.len() as u64);
    // The holder has not been told anything, and goes on.
    assert_eq!(s.holder.append(&fs, &[9; 10]).unwrap(), Appended::Yes);
    fs.make_writable().unwrap();
    assert_eq!(fs.getattr(s.file).unwrap().size, SIZE + 5010);
    assert_eq!(s.holder.append(&fs, &[9; 10]).unwrap(), Appended::Closed);
    let again = SimBackend::from_image(&crashed.image()).unwrap();
    let after = Fs::open(region_of(&again), quiet()).unwrap();
    assert_eq!(after.getattr(s.file).unwrap().size, SIZE + 5010);
}

#[test]
fn unmount_closes_window_of_lease_that_stays() {
    let s = Scene::appended();
    s.fs.close().unwrap();
    assert!(!has_feature(&s.sim));
    let region = region_of(&s.sim);
    region.pretend_lease(s.holder.lease.0, true);
    let fs = Fs::open(region, quiet()).unwrap();
    assert!(read(&fs, s.file) == expected(&[(7, SIZE), (8, 5000)]));
    assert_eq!(fs.leases().len(), 1);
}

#[test]
fn next_window_of_lease_follows_and_is_longer() {
    let s = scene();
    let mut expect = SIZE;
    let mut lens = Vec::new();
    for i in 0..4u8 {
        let window = s.holder.open(&s.fs, 1).unwrap();
        assert_eq!(window.start, expect);
        lens.push((window.limit - window.start) >> 10);
        let fill = window.limit - window.start;
        assert_eq!(s.append(i, fill as usize), Appended::Yes);
        assert_eq!(s.append(i, 1), Appended::NoRoom);
        expect += fill;
    }
    assert_eq!(s.size(), expect);
    let doubled = lens.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2);
    assert!(lens[0] >= 253 && doubled, "{lens:?}");
    s.finish();
}

#[test]
fn window_on_full_region_is_shorter_or_refused() {
    let s = scene();
    let other = s.fs.create(&CX, Ino::ROOT, b"other", 0o644).unwrap().ino;
    while s.fs.append(&CX, other, &[1; 64 << 10]).is_ok() {}
    let window = s.holder.open(&s.fs, 10_000).unwrap();
    assert!(window.limit - window.start < 256 << 10);
    assert_eq!(s.append(8, 10_000), Appended::Yes);
    while s.fs.append(&CX, other, &[1; 4096]).is_ok() {}
    let refused = loop {
        match s.holder.open(&s.fs, 20_000) {
            Ok(window) => {
                let left = window.limit - window.start;
                assert_eq!(s.append(9, left as usize), Appended::Yes);
            }
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused:?}");
    let size = s.size();
    s.let_go();
    assert_eq!(s.size(), size);
    s.finish();
}

#[test]
fn window_is_refused_to_others_than_the_only_writer() {
    let s = scene();
    let (slot, id) = s.holder.lease;
    let refused = |e: pramfs::Result<_>| {
        e.map(|_: pramfs_medium::media::lease::AppendWindow| ())
            .unwrap_err()
    };
    assert!(matches!(
        refused(s.fs.open_window(slot, id + 1, 1)),
        Error::Stale(_)
    ));
    assert!(matches!(
        refused(s.fs.open_window(slot + 1, id, 1)),
        Error::Stale(_)
    ));
    assert!(matches!(
        refused(s.fs.open_window(slot, id, u64::MAX)),
        Error::TooLarge(_)
    ));
    let reader = lease(&s.fs, s.file, LeaseMode::Read);
    assert!(matches!(
        refused(s.fs.open_window(slot, id, 1)),
        Error::Busy(_)
    ));
    let other =
        s.fs.leases()
            .iter()
            .find(|lease| lease.slot == reader)
            .copied()
            .unwrap();
    assert!(matches!(
        refused(s.fs.open_window(reader, other.id, 1)),
        Error::NotPermitted(_)
    ));
    s.fs.region_to_damage().pretend_lease(reader, false);
    s.fs.end_released_leases().unwrap();
    s.fs.open_window(slot, id, 1).unwrap();
    assert!(!has_garbage(&s));
}

/// Whether line 3 of the slot is used.
fn has_garbage(s: &Scene) -> bool {
    s.holder.window(&s.fs).is_err()
}

impl Scene {
    /// The holder announces an append of so many bytes, and is stopped.
    fn announce(&self, bytes: u64) {
        let (window, end) = self.holder.window(&self.fs).unwrap().unwrap();
        let w = self.fs.region_to_damage().window();
        let place = self.holder.at + APPENDING_OFFSET;
        w.store_u64_unflushed(place, window.word_of(end + bytes))
            .unwrap();
    }

    /// It goes on, whatever has become of its window.
    fn go_on(&self, fs: &Fs) {
        let w = fs.region_to_damage().window();
        let (announced, end) = (
            self.holder.at + APPENDING_OFFSET,
            self.holder.at + END_OFFSET,
        );
        let word = fs.region_to_damage().load_u64(announced).unwrap();
        w.store_u64_unflushed(end, word).unwrap();
        w.store_u64_unflushed(announced, 0).unwrap();
    }
}

fn is_busy<T>(done: pramfs::Result<T>) -> bool {
    matches!(done, Err(Error::Busy(why)) if why.contains("process 1 "))
}

#[test]
fn holder_stopped_in_append_makes_changes_of_size_busy_and_loses_nothing() {
    let s = Scene::appended();
    s.announce(1000);
    assert!(is_busy(s.fs.setattr(&CX, s.file, &set_size(100))));
    assert!(is_busy(s.fs.append(&CX, s.file, &[1])));
    let generation = s.fs.getattr(s.file).unwrap().generation;
    let lease = s.fs.grant_lease(s.file, generation, LeaseMode::Read, 2, 2);
    assert!(is_busy(lease.map(drop)));
    // What does not change the size goes on, and so does the holder, with this append only.
    assert_eq!(s.size(), SIZE + 5000);
    s.fs.write(&CX, s.file, 0, &[7; 100]).unwrap();
    s.go_on(&s.fs);
    assert_eq!(s.append(9, 1), Appended::Closed);
    assert_eq!(s.size(), SIZE + 6000);
    assert_eq!(s.fs.append(&CX, s.file, &[1; 10]).unwrap(), SIZE + 6000);
    s.finish();
}

#[test]
fn holder_killed_in_append_leaves_its_window_to_be_closed() {
    let s = Scene::appended();
    s.announce(1000);
    s.fs.region_to_damage()
        .pretend_lease(s.holder.lease.0, false);
    s.fs.append(&CX, s.file, &[1; 10]).unwrap();
    assert!(s.read() == expected(&[(7, SIZE), (8, 5000), (1, 10)]));
    assert_eq!(s.fs.end_released_leases().unwrap(), 1);
    s.finish();
}

/// A child of the holder keeps the lock, but does not append.
#[test]
fn holder_that_died_in_append_delays_nobody_but_after_next_mount() {
    let s = Scene::appended();
    // No process has this number.
    s.let_go();
    let generation = s.fs.getattr(s.file).unwrap().generation;
    let grant =
        s.fs.grant_lease(s.file, generation, LeaseMode::Write, 0x7fff_fff0, 1);
    let slot = grant.unwrap().lease().slot;
    s.fs.region_to_damage().pretend_lease(slot, true);
    let s = Scene {
        holder: Appender::of(&s.fs, s.file).unwrap(),
        ..s
    };
    s.holder.open(&s.fs, 1).unwrap();
    s.announce(1000);
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    s.fs.append(&CX, s.file, &[1; 10]).unwrap();
    // The number may be one of another namespace.
    let region = region_of(&crashed);
    region.pretend_lease(slot, true);
    let fs = Fs::open(region, quiet()).unwrap();
    let busy = fs.append(&CX, s.file, &[1; 10]).unwrap_err();
    assert!(matches!(busy, Error::Busy(_)), "{busy}");
    s.go_on(&fs);
    assert_eq!(fs.append(&CX, s.file, &[1; 10]).unwrap(), SIZE + 6000);
}

#[test]
fn mount_beside_holder_stopped_in_append_keeps_window_until_it_goes_on() {
    let s = Scene::appended();
    s.announce(1000);
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    let region = region_of(&crashed);
    region.pretend_lease(s.holder.lease.0, true);
    let fs = Fs::open(region, quiet()).unwrap();
    assert_eq!(fs.getattr(s.file).unwrap().size, SIZE + 5000);
    s.go_on(&fs);
    assert_eq!(fs.getattr(s.file).unwrap().size, SIZE + 6000);
    assert_eq!(fs.append(&CX, s.file, &[1]).unwrap(), SIZE + 6000);
    assert_eq!(s.holder.append(&fs, &[9]).unwrap(), Appended::Closed);
}

#[test]
fn file_made_immutable_or_revoked_grows_no_more() {
    let s = Scene::appended();
    let set = SetAttr {
        flags: Some(FL_APPEND),
        ..SetAttr::default()
    };
    s.fs.setattr(&CX, s.file, &set).unwrap();
    assert_eq!(s.append(9, 10), Appended::Closed);
    assert_eq!(s.size(), SIZE + 5000);
    let s = Scene::appended();
    let (slot, id) = s.holder.lease;
    s.fs.close_lease_window(slot, id + 1).unwrap();
    assert_eq!(s.append(9, 10), Appended::Yes);
    s.fs.close_lease_window(slot, id).unwrap();
    assert_eq!(s.append(9, 10), Appended::Closed);
    assert_eq!(s.size(), SIZE + 5010);
}

/// 24 KiB of a preallocation are left, and the append needs more.
#[test]
fn window_longer_than_preallocation_is_freed_with_its_lease() {
    let s = scene();
    let keep = Fallocate::Allocate { keep_size: true };
    s.fs.fallocate(&CX, s.file, keep, 0, 9 * BLOCK).unwrap();
    let window = s.holder.open(&s.fs, 100_000).unwrap();
    assert!(window.limit - window.start >= 100_000);
    assert_eq!(s.append(8, 50_000), Appended::Yes);
    s.let_go();
    let after = s.fs.getattr(s.file).unwrap();
    let used = after.size.div_ceil(BLOCK) * (BLOCK / 512);
    // A block of pointers besides the data.
    assert_eq!(after.blocks, used + BLOCK / 512);
    s.finish();
}

#[test]
fn preallocated_blocks_become_the_window_and_stay() {
    let s = scene();
    let keep = Fallocate::Allocate { keep_size: true };
    s.fs.fallocate(&CX, s.file, keep, 0, 20 * BLOCK).unwrap();
    let blocks = s.fs.getattr(s.file).unwrap().blocks;
    let window = s.holder.open(&s.fs, 5000).unwrap();
    assert_eq!(window.limit, 20 * BLOCK);
    assert_eq!(s.append(8, 5000), Appended::Yes);
    s.let_go();
    let after = s.fs.getattr(s.file).unwrap();
    assert_eq!((after.size, after.blocks), (SIZE + 5000, blocks));
    // What the blocks held is not seen by growth.
    s.fs.setattr(&CX, s.file, &set_size(SIZE + 9000)).unwrap();
    assert!(s.read() == expected(&[(7, SIZE), (8, 5000), (0, 4000)]));
    s.finish();
}

#[test]
fn window_in_huge_leaf_that_begins_before_end_keeps_zeros() {
    let (sim, fs) = fresh(16 << 20, BLOCK as u32).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    // Garbage in the blocks to come.
    fs.write(&CX, file, 0, &vec![0xee; 8 << 20]).unwrap();
    fs.setattr(&CX, file, &set_size(0)).unwrap();
    let keep = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&CX, file, keep, 0, 4 << 20).unwrap();
    fs.setattr(&CX, file, &set_size(1 << 20)).unwrap();
    lease(&fs, file, LeaseMode::Write);
    let holder = Appender::of(&fs, file).unwrap();
    holder.open(&fs, 1).unwrap();
    assert_eq!(holder.append(&fs, &[8; 100]).unwrap(), Appended::Yes);
    let all = read(&fs, file);
    assert!(all == expected(&[(0, 1 << 20), (8, 100)]));
    drop(fs);
    let report = fsck::check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn append_to_unlinked_file_ends_with_its_lease() {
    let s = Scene::appended();
    let free = s.fs.statfs().unwrap().free;
    s.fs.unlink(Ino::ROOT, b"file").unwrap();
    assert!(s.is_open());
    assert_eq!(s.append(9, 100), Appended::Yes);
    assert_eq!(s.size(), SIZE + 5100);
    s.let_go();
    s.fs.free_forgotten();
    assert!(s.fs.getattr(s.file).is_err());
    assert!(s.fs.statfs().unwrap().free > free + 64);
    s.finish();
}

#[test]
fn damaged_end_counts_nothing_and_is_reported() {
    let s = Scene::appended();
    assert_eq!(s.size(), SIZE + 5000);
    let (window, _) = s.holder.window(&s.fs).unwrap().unwrap();
    let place = s.holder.at + END_OFFSET;
    let word = window.word_of(SIZE + 6000) ^ 1;
    let region = s.fs.region_to_damage();
    region.window().store_u64_unflushed(place, word).unwrap();
    assert_eq!(s.size(), SIZE + 5000);
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    let fs = Fs::open(region_of(&crashed), quiet()).unwrap();
    assert_eq!(fs.getattr(s.file).unwrap().size, SIZE + 5000);
    assert!(fs.is_read_only());
}

/// The repair may find out the end. So the window and its blocks stay, also when the holder has
/// ended.
#[test]
fn window_with_damaged_end_stays_until_repair() {
    let s = Scene::appended();
    let (window, _) = s.holder.window(&s.fs).unwrap().unwrap();
    let place = s.holder.at + END_OFFSET;
    let store = |word| {
        let region = s.fs.region_to_damage();
        region.window().store_u64_unflushed(place, word).unwrap();
    };
    store(window.word_of(SIZE + 5000) ^ 1 << 40);
    s.fs.region_to_damage()
        .pretend_lease(s.holder.lease.0, false);
    assert_eq!(s.fs.end_released_leases().unwrap(), 0);
    assert_eq!(s.fs.leases().len(), 1);
    assert!(s.fs.setattr(&CX, s.file, &set_size(0)).is_err());
    store(window.word_of(SIZE + 5000));
    let crashed = SimBackend::from_image(&s.sim.image()).unwrap();
    let fs = Fs::open(region_of(&crashed), quiet()).unwrap();
    assert!(read(&fs, s.file) == expected(&[(7, SIZE), (8, 5000)]));
}
