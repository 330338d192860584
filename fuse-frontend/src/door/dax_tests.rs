//! Files that a guest maps, and what others do to them meanwhile. The window is played by the test:
//! what the VMM would map is the region's file, so loads and stores are reads and writes of it.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::pmem::RegionOptions;
use pramfs::{Fallocate, MountOptions, inode};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::wire::{RemovemappingOne, SetupmappingIn};
use tempfile::TempDir;

use super::*;

#[path = "dax_stores_tests.rs"]
mod stores;

/// Longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

const MIB: u64 = 1 << 20;
const RANGE: u64 = 2 * MIB;
const SIZE: u64 = 16 * MIB;
const ROOT: &Credentials<'static> = &Credentials::ROOT;

/// What the VMM has mapped, by place: descriptor, offset in the region, length.
#[derive(Default)]
struct Mapped {
    pieces: BTreeMap<u64, (File, u64, u64)>,
    messages: usize,
    /// Refuses maps after so many.
    refuses_after: Option<usize>,
    /// Unmaps nothing.
    keeps_all: bool,
}

#[derive(Default)]
struct Vmm(Mutex<Mapped>);

impl Window for Vmm {
    fn size(&self) -> u64 {
        SIZE
    }

    fn map(&self, of: BorrowedFd<'_>, from: u64, at: u64, len: u64) -> io::Result<()> {
        let mut mapped = self.0.lock().unwrap();
        mapped.messages += 1;
        if mapped
            .refuses_after
            .is_some_and(|n| mapped.pieces.len() >= n)
        {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        for (there, (_, _, bytes)) in &mapped.pieces {
            assert!(at + len <= *there || there + bytes <= at, "maps overlap");
        }
        let file = File::from(of.try_clone_to_owned()?);
        mapped.pieces.insert(at, (file, from, len));
        Ok(())
    }

    fn unmap(&self, at: u64, len: u64) -> io::Result<()> {
        let mut mapped = self.0.lock().unwrap();
        mapped.messages += 1;
        if mapped.keeps_all {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let removed = mapped.pieces.remove(&at);
        assert!(removed.is_some_and(|(_, _, bytes)| bytes == len));
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Vmm {
    /// Calls with the pieces of a part of the window. Panics where nothing is mapped.
    fn each(&self, at: u64, len: u64, mut with: impl FnMut(&File, u64, usize, usize)) {
        let mapped = self.0.lock().unwrap();
        let mut done = 0;
        while done < len {
            let place = at + done;
            let (start, (file, from, bytes)) = mapped.pieces.range(..=place).next_back().unwrap();
            assert!(place < start + bytes, "nothing is mapped at {place}");
            let n = (start + bytes - place).min(len - done);
            with(file, from + (place - start), done as usize, n as usize);
            done += n;
        }
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.each(at, bytes.len() as u64, |file, place, from, n| {
            file.write_all_at(&bytes[from..from + n], place).unwrap();
        });
    }

    fn load(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.each(at, len, |file, place, from, n| {
            file.read_exact_at(&mut bytes[from..from + n], place)
                .unwrap();
        });
        bytes
    }

    fn messages(&self) -> usize {
        self.0.lock().unwrap().messages
    }

    fn pieces(&self) -> usize {
        self.0.lock().unwrap().pieces.len()
    }
}

struct Scene {
    _dir: TempDir,
    fs: Fs,
    vmm: Arc<Vmm>,
    dax: Dax,
}

/// Ends so many leases, whose descriptors this process has closed. A child that another test has
/// just forked holds all descriptors until its exec.
fn end_leases(fs: &Fs, count: usize) {
    let begun = Instant::now();
    let mut ended = fs.end_released_leases().unwrap();
    while ended < count {
        assert!(begun.elapsed() < LONG, "{ended} of {count} leases end");
        std::thread::yield_now();
        ended += fs.end_released_leases().unwrap();
    }
    assert_eq!(ended, count);
}

/// Ends all leases, in the same way.
fn end_all_leases(fs: &Fs) {
    let begun = Instant::now();
    while !fs.leases().is_empty() {
        assert!(begun.elapsed() < LONG, "a lease stays");
        std::thread::yield_now();
        end_released(fs);
    }
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let region = RegionOptions::new()
            .create(dir.path().join("region"), 64 << 20)
            .unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let vmm = Arc::new(Vmm::default());
        Scene {
            _dir: dir,
            fs: Fs::open(region, options).unwrap(),
            dax: Dax::new(Arc::clone(&vmm) as Arc<dyn Window>),
            vmm,
        }
    }

    fn file(&self, name: &[u8], bytes: &[u8]) -> Ino {
        let ino = self.fs.create(ROOT, Ino::ROOT, name, 0o644).unwrap().ino;
        self.fs.write(ROOT, ino, 0, bytes).unwrap();
        ino
    }

    /// Maps for writing.
    fn setup(&self, ino: Ino, offset: u64, at: u64) -> Result<(), Errno> {
        self.setup_with(ino, offset, at, MappingFlags::WRITE)
    }

    fn setup_with(&self, ino: Ino, offset: u64, at: u64, flags: MappingFlags) -> Result<(), Errno> {
        let arg = SetupmappingIn {
            foffset: offset,
            len: RANGE,
            flags: flags | MappingFlags::READ,
            moffset: at,
            ..SetupmappingIn::default()
        };
        self.dax.setup(&self.fs, ino.0, &arg)
    }

    /// The door of another guest of the region.
    fn other(&self) -> Dax {
        Dax::new(Arc::new(Vmm::default()))
    }

    fn set_mtime(&self, ino: Ino, sec: i64) {
        let set = SetAttr {
            mtime: Some(inode::SetTime::At(inode::Time { sec, nsec: 0 })),
            ..SetAttr::default()
        };
        self.fs.setattr(ROOT, ino, &set).unwrap();
    }

    fn mtime(&self, ino: Ino) -> i64 {
        self.fs.getattr(ino).unwrap().mtime.sec
    }

    fn remove(&self, at: u64) {
        let one = RemovemappingOne {
            moffset: at,
            len: RANGE,
        };
        self.dax.remove(&self.fs, &one);
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let n = self.fs.read(ino, offset, &mut bytes).unwrap();
        bytes.truncate(n);
        bytes
    }

    /// A change by another door, then a store to what it has made, which must not get lost.
    fn store_after(&self, change: impl FnOnce(&Fs, Ino)) {
        let ino = self.file(b"file", &[7; 10_000]);
        self.setup(ino, 0, 0).unwrap();
        assert_eq!(self.vmm.load(0, 10_000), [7; 10_000]);
        let before = self.vmm.messages();
        change(&self.fs, ino);
        let size = self.fs.getattr(ino).unwrap().size;
        assert_eq!(self.vmm.load(0, size), self.read(ino, 0, size as usize));
        for at in [0, 4096, 9000, size - 4] {
            self.vmm.store(at, b"word");
            assert_eq!(self.read(ino, at, 4), b"word", "the store to {at} is lost");
        }
        assert_eq!(self.vmm.messages(), before, "a piece was added or removed");
    }
}

#[test]
fn store_after_extending_write_is_in_file() {
    Scene::new().store_after(|fs, ino| {
        fs.write(ROOT, ino, 10_000, &[8; 300_000]).unwrap();
    });
}

#[test]
fn store_after_truncate_up_is_in_file() {
    Scene::new().store_after(|fs, ino| truncate(fs, ino, RANGE));
}

#[test]
fn store_after_truncate_down_and_up_is_in_file() {
    Scene::new().store_after(|fs, ino| {
        truncate(fs, ino, 100);
        truncate(fs, ino, MIB);
    });
}

#[test]
fn store_after_fallocate_is_in_file() {
    Scene::new().store_after(|fs, ino| {
        let mode = Fallocate::Allocate { keep_size: false };
        fs.fallocate(ROOT, ino, mode, 0, MIB).unwrap();
    });
}

#[test]
fn store_after_punched_hole_is_in_file() {
    Scene::new().store_after(|fs, ino| {
        fs.fallocate(ROOT, ino, Fallocate::PunchHole, 4096, 4096)
            .unwrap();
    });
}

#[test]
fn store_after_zeroed_and_filled_range_is_in_file() {
    Scene::new().store_after(|fs, ino| {
        let zero = Fallocate::ZeroRange { keep_size: true };
        fs.fallocate(ROOT, ino, zero, 0, 8192).unwrap();
        fs.write(ROOT, ino, 4096, &[9; 100]).unwrap();
    });
}

#[test]
fn store_to_hole_is_in_file() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[1]);
    truncate(&scene.fs, ino, 5 * MIB);
    for (at, offset) in [(0, 2 * MIB), (RANGE, 4 * MIB)] {
        scene.setup(ino, offset, at).unwrap();
        assert_eq!(scene.vmm.load(at, MIB), vec![0; MIB as usize]);
        scene.vmm.store(at + MIB - 8, b"in holes");
        assert_eq!(scene.read(ino, offset + MIB - 8, 8), b"in holes");
    }
}

fn truncate(fs: &Fs, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(ROOT, ino, &set).unwrap();
}

#[test]
fn range_is_one_map_and_its_lease_ends_with_it() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 10_000]);
    scene.setup(ino, 0, 0).unwrap();
    let maps = scene.vmm.pieces();
    assert!(maps <= 2, "{maps} maps");
    assert_eq!(scene.fs.leases().len(), 1);
    // Again, to store; and another range of the same file.
    scene.setup(ino, 0, 0).unwrap();
    assert_eq!(scene.vmm.messages(), maps);
    truncate(&scene.fs, ino, RANGE + 1);
    scene.setup(ino, RANGE, RANGE).unwrap();
    assert_eq!(scene.fs.leases().len(), 1);
    truncate(&scene.fs, ino, 10_000);
    scene.remove(0);
    assert_eq!(scene.fs.end_released_leases().unwrap(), 0);
    scene.remove(RANGE);
    assert_eq!(scene.vmm.pieces(), 0);
    end_leases(&scene.fs, 1);
    // The blocks past the end are free again.
    assert!(scene.fs.getattr(ino).unwrap().blocks < 100);
    // A place that is taken for another range is given up first.
    truncate(&scene.fs, ino, RANGE + 1);
    scene.setup(ino, 0, 0).unwrap();
    scene.setup(ino, RANGE, MIB).unwrap();
    scene.setup(ino, 0, 4 * MIB).unwrap();
    scene.dax.remove_all(&scene.fs);
    assert_eq!(scene.vmm.pieces(), 0);
}

#[test]
fn blocks_of_unlinked_file_stay_while_they_are_mapped() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 1 << 20]);
    scene.setup(ino, 0, 0).unwrap();
    scene.fs.unlink(Ino::ROOT, b"file").unwrap();
    truncate(&scene.fs, ino, 0);
    // New files get other blocks.
    let others: Vec<Ino> = (0..8u8)
        .map(|n| scene.file(&[b'a' + n], &vec![n; 1 << 20]))
        .collect();
    scene.vmm.store(0, &vec![0xee; RANGE as usize]);
    for (n, other) in (0..8u8).zip(&others) {
        assert_eq!(scene.read(*other, 0, 1 << 20), vec![n; 1 << 20]);
    }
    scene.remove(0);
    end_leases(&scene.fs, 1);
    assert!(scene.fs.getattr(ino).is_err());
}

#[test]
fn two_guests_map_one_file_and_see_each_others_stores() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 10_000]);
    let other = Arc::new(Vmm::default());
    let dax = Dax::new(Arc::clone(&other) as Arc<dyn Window>);
    let arg = SetupmappingIn {
        len: RANGE,
        moffset: RANGE,
        ..SetupmappingIn::default()
    };
    scene.setup(ino, 0, 0).unwrap();
    dax.setup(&scene.fs, ino.0, &arg).unwrap();
    scene.vmm.store(9000, b"one");
    other.store(RANGE + 9003, b"two");
    assert_eq!(scene.vmm.load(9000, 6), b"onetwo");
    assert_eq!(other.load(RANGE + 9000, 6), b"onetwo");
    // The end of one leaves the other's blocks alone.
    scene.fs.unlink(Ino::ROOT, b"file").unwrap();
    scene.dax.remove_all(&scene.fs);
    end_leases(&scene.fs, 1);
    let new = scene.file(b"new", &vec![1; 1 << 20]);
    other.store(RANGE, &vec![9; RANGE as usize]);
    assert_eq!(scene.read(new, 0, 1 << 20), vec![1; 1 << 20]);
    dax.remove_all(&scene.fs);
    end_leases(&scene.fs, 1);
    assert!(scene.fs.getattr(ino).is_err());
}

/// As long as the VMM has it mapped, even if this server forgets it.
#[test]
fn lease_lasts_as_long_as_vmm_maps_it() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    scene.setup(ino, 0, 0).unwrap();
    let kept = std::mem::take(&mut scene.vmm.0.lock().unwrap().pieces);
    // Another VMM, which knows nothing of it.
    let table = std::mem::take(&mut *scene.dax.lock());
    drop(table);
    assert_eq!(scene.fs.end_released_leases().unwrap(), 0);
    drop(kept);
    end_leases(&scene.fs, 1);
}

#[test]
fn range_that_cannot_be_mapped_is_refused() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    let setup = |foffset, len, moffset| {
        let arg = SetupmappingIn {
            foffset,
            len,
            moffset,
            ..SetupmappingIn::default()
        };
        scene.dax.setup(&scene.fs, ino.0, &arg)
    };
    for (offset, len, at) in [
        (0, 0, 0),
        (1, RANGE, 0),
        (0, RANGE + 1, 0),
        (0, RANGE, 512),
        (0, RANGE, SIZE - MIB),
        (0, RANGE, u64::MAX - 4095),
        (u64::MAX - 4095, RANGE, 0),
        (0, u64::MAX - 4095, 4096),
        // More than a range.
        (0, RANGE + 4096, 0),
        // Past the end: the blocks up to there would be allocated.
        (RANGE, RANGE, 0),
        (1 << 40, RANGE, 0),
    ] {
        assert_eq!(
            setup(offset, len, at),
            Err(Errno::EINVAL),
            "{offset} {len} {at}"
        );
    }
    assert!(scene.fs.leases().is_empty());
    assert!(scene.fs.getattr(ino).unwrap().blocks < 100);
    let dir = scene.fs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    assert_eq!(scene.setup(dir, 0, 0), Err(Errno::EIO));
    let set = SetAttr {
        flags: Some(pramfs_medium::media::inode::FL_IMMUTABLE),
        ..SetAttr::default()
    };
    let fixed = scene.file(b"fixed", &[1]);
    scene.fs.setattr(ROOT, fixed, &set).unwrap();
    assert_eq!(scene.setup(fixed, 0, 0), Err(Errno::EIO));
    assert_eq!(scene.vmm.messages(), 0);
}

#[test]
fn scattered_range_is_refused() {
    let scene = Scene::new();
    let (one, other) = (scene.file(b"one", &[1]), scene.file(b"other", &[1]));
    for n in 0..2 * MAX_PIECES as u64 {
        for ino in [one, other] {
            scene.fs.write(ROOT, ino, n * 4096, &[1; 4096]).unwrap();
        }
    }
    assert_eq!(scene.setup(one, 0, 0), Err(Errno::EIO));
    assert_eq!(scene.vmm.pieces(), 0);
    end_all_leases(&scene.fs);
}

#[test]
fn refused_ranges_leave_the_table_of_leases_to_others() {
    let scene = Scene::new();
    let other = scene.other();
    let whole = SetupmappingIn {
        len: 4096,
        ..SetupmappingIn::default()
    };
    let files: Vec<Ino> = (0..=MAX_LEASES)
        .map(|n| scene.file(format!("{n}").as_bytes(), &[1; 100]))
        .collect();
    scene.vmm.0.lock().unwrap().refuses_after = Some(0);
    for ino in &files {
        assert_eq!(scene.setup(*ino, 0, 0), Err(Errno::EIO));
        end_all_leases(&scene.fs);
    }
    scene.vmm.0.lock().unwrap().refuses_after = None;
    // One file after the other at the same place: leases are ended before there are too many. A
    // child of another test may hold them at that moment, but not each time.
    let mut most = 0;
    let are_ended_early = (0..10).any(|_| {
        most = 0;
        for ino in files.iter().chain(&files).chain(&files) {
            scene.dax.setup(&scene.fs, ino.0, &whole).unwrap();
            most = most.max(scene.fs.leases().len());
        }
        scene.remove(0);
        end_all_leases(&scene.fs);
        most <= MAX_LEASES
    });
    assert!(are_ended_early, "{most} leases");
    for (n, ino) in files.iter().enumerate() {
        let arg = SetupmappingIn {
            moffset: n as u64 * 4096,
            ..whole
        };
        let mapped = scene.dax.setup(&scene.fs, ino.0, &arg);
        assert_eq!(mapped.is_ok(), n < MAX_LEASES, "file {n}: {mapped:?}");
    }
    other.setup(&scene.fs, files[MAX_LEASES].0, &whole).unwrap();
    assert_eq!(scene.fs.leases().len(), MAX_LEASES + 1);
}

#[test]
fn guest_with_all_maps_gets_no_lease() {
    let scene = Scene::new();
    let (ino, another) = (scene.file(b"file", &[1]), scene.file(b"another", &[1]));
    let arg = |moffset| SetupmappingIn {
        len: 4096,
        moffset,
        ..SetupmappingIn::default()
    };
    for n in 0..MAX_MAPS as u64 {
        scene.dax.setup(&scene.fs, ino.0, &arg(n * 4096)).unwrap();
    }
    let before = scene.fs.getattr(another).unwrap().blocks;
    let refused = scene.dax.setup(&scene.fs, another.0, &arg(8 * MIB));
    assert_eq!(refused, Err(Errno::EIO));
    assert_eq!(scene.fs.leases().len(), 1);
    assert_eq!(scene.fs.getattr(another).unwrap().blocks, before);
}

/// The file is never longer than the range, so that its blocks can always be found. While it grows,
/// they may come to lie in too many places.
#[test]
fn file_that_grows_while_it_is_mapped_is_mapped() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[1]);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                for size in (1..=RANGE).step_by(5 * 4096) {
                    truncate(&scene.fs, ino, size);
                }
            }
        });
        let mapped: Vec<_> = (0..100)
            .map(|_| {
                let mapped = scene.setup(ino, 0, 0);
                scene.remove(0);
                scene.fs.end_released_leases().unwrap();
                mapped
            })
            .collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        let unsettled = scene
            .dax
            .unsettled
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(unsettled, 0, "{mapped:?}");
        let count = mapped.iter().filter(|mapped| mapped.is_ok()).count();
        assert!(count > 50, "{mapped:?}");
    });
}

/// Also where others have left gaps.
#[test]
fn range_without_blocks_is_mapped_in_one_piece() {
    let scene = Scene::new();
    for n in b'a'..b'q' {
        scene.file(&[n], &[1; 4096]);
    }
    for n in (b'a'..b'q').step_by(2) {
        scene.fs.unlink(Ino::ROOT, &[n]).unwrap();
    }
    scene.fs.free_forgotten();
    let ino = scene.file(b"file", &[1; 4096]);
    truncate(&scene.fs, ino, 3 * RANGE);
    for n in 1..3 {
        scene.setup(ino, n * RANGE, n * RANGE).unwrap();
        assert_eq!(scene.vmm.pieces() as u64, n);
    }
}

/// A region whose free blocks hold what removed files have left.
fn scene_with_remains() -> Scene {
    let scene = Scene::new();
    for n in b'a'..b'g' {
        scene.file(&[n], &vec![0x5e; 8 << 20]);
    }
    for n in b'a'..b'g' {
        scene.fs.unlink(Ino::ROOT, &[n]).unwrap();
    }
    scene.fs.free_forgotten();
    scene
}

#[test]
fn blocks_past_the_end_hold_nothing_of_other_files() {
    // The longer one has a leaf of 2 MiB, half of which the write has not stored.
    for len in [100, MIB as usize] {
        let scene = scene_with_remains();
        let ino = scene.file(b"file", &vec![7; len]);
        scene.setup(ino, 0, 0).unwrap();
        let seen = scene.vmm.load(0, RANGE);
        assert!(seen[..len].iter().all(|byte| *byte == 7), "{len} bytes");
        assert!(seen[len..].iter().all(|byte| *byte == 0), "{len} bytes");
    }
}

#[test]
fn leaf_made_beside_a_mapping_holds_nothing_of_other_files() {
    let scene = scene_with_remains();
    let ino = scene.file(b"file", &[7; 100]);
    scene.setup(ino, 0, 0).unwrap();
    let bytes = vec![7; MIB as usize];
    scene.fs.write(ROOT, ino, RANGE, &bytes).unwrap();
    scene.setup(ino, RANGE, RANGE).unwrap();
    let seen = scene.vmm.load(RANGE, RANGE);
    assert_eq!(seen[..bytes.len()], bytes);
    assert!(seen[bytes.len()..].iter().all(|byte| *byte == 0));
}

/// What another holder has had allocated in between is not zeroed for it.
#[test]
fn blocks_ahead_of_another_holder_are_zeroed_before_they_are_mapped() {
    let scene = scene_with_remains();
    let ino = scene.file(b"file", &[7; 100]);
    scene.setup(ino, 0, 0).unwrap();
    let lease = scene.fs.leases()[0];
    let ahead = scene.fs.fill_ahead(lease.slot, lease.id, 0..2 * RANGE);
    assert_eq!(ahead.unwrap(), 2 * RANGE);
    truncate(&scene.fs, ino, RANGE + 100);
    scene.setup(ino, RANGE, RANGE).unwrap();
    let seen = scene.vmm.load(RANGE, RANGE);
    assert!(seen.iter().all(|byte| *byte == 0));
}

#[test]
fn refusal_of_vmm_leaves_nothing_mapped() {
    let scene = Scene::new();
    // In two places: another file lies after its first block.
    let ino = scene.file(b"file", &[7; 4096]);
    scene.file(b"other", &[1; 4096]);
    scene.setup(ino, 0, 0).unwrap();
    let pieces = scene.vmm.pieces();
    scene.remove(0);
    for refuses_after in 0..pieces {
        scene.vmm.0.lock().unwrap().refuses_after = Some(refuses_after);
        assert_eq!(scene.setup(ino, 0, 0), Err(Errno::EIO));
        assert_eq!(scene.vmm.pieces(), 0);
    }
    scene.vmm.0.lock().unwrap().refuses_after = None;
    assert_eq!(scene.setup(ino, 0, 0), Ok(()));
}
