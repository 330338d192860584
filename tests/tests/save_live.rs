//! Saves of a live file system: what is saved is the file system at one moment, whatever is
//! changed meanwhile.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, Snapshot, SnapshotEnd};
use pramfs::pmem::{HeapBackend, Protect, Region, RegionOptions};
use pramfs::{Access, DataMode, Fallocate, FileType, MountOptions, OpenOptions};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, check_fs, repair};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::mounted::{self, Mounted, wait_until};
use pramfs_tests::random::Random;
use pramfs_tests::region::{formatted, mount, quiet};
use pramfs_tests::skip::skipped;

const CX: Credentials<'static> = Credentials::ROOT;
const LEN: u64 = 64 << 20;
const FILES: u64 = 24;
/// One write of the server, and of the engine.
const PIECE: usize = 64 << 10;

/// A region with the blocks of a snapshot that are in use, read as a save does it.
fn restored(snapshot: &Snapshot, each: &mut dyn FnMut()) -> Region {
    let region = Region::new("restored", HeapBackend::boxed(LEN as usize));
    let size = snapshot.block_size();
    let mut block = vec![0; size as usize];
    let mut copy = |at: u64| {
        snapshot.read(at, &mut block).unwrap();
        let stored = region.window().store_unflushed(at * size, &block);
        stored.unwrap();
    };
    snapshot
        .fixed()
        .iter()
        .cloned()
        .flatten()
        .for_each(&mut copy);
    snapshot.release_fixed();
    for (group, bitmap) in snapshot.bitmaps().iter().enumerate() {
        let Some(bitmap) = bitmap else { continue };
        let mut bits = vec![0; size as usize];
        snapshot.read(*bitmap, &mut bits).unwrap();
        for bit in 0..snapshot.blocks_per_group() {
            let at = group as u64 * snapshot.blocks_per_group() + bit;
            if snapshot.fixed().iter().any(|run| run.contains(&at)) {
                // Read and released.
                continue;
            }
            if bits[bit as usize / 8] >> (bit % 8) & 1 != 0 {
                copy(at);
                snapshot.release_below(at + 1);
                each();
            }
        }
    }
    region
}

/// Changes files until `stop`: each file holds one byte, in all of its pieces that one write
/// makes. Counts the changes.
fn change(fs: &Fs, seed: u64, stop: &AtomicBool, changes: &AtomicU64) {
    let mut rng = Random::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let name = format!("file-{seed}-{}", rng.below(FILES));
        match rng.below(4) {
            0 => {
                // It may not exist.
                let _gone = fs.unlink(Ino::ROOT, name.as_bytes());
            }
            1 => {
                let other = format!("file-{seed}-{}", rng.below(FILES));
                let flags = pramfs::RenameFlags::default();
                let (from, to) = (name.as_bytes(), other.as_bytes());
                let _moved = fs.rename(&CX, Ino::ROOT, from, Ino::ROOT, to, flags);
            }
            _ => {
                let made = fs.create(&CX, Ino::ROOT, name.as_bytes(), 0o644);
                let found = made.or_else(|_| fs.lookup(Ino::ROOT, name.as_bytes()));
                let data = vec![rng.below(255) as u8 + 1; PIECE];
                // The region may be full.
                let _written = fs.write(&CX, found.unwrap().ino, 0, &data);
            }
        }
        changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the writers, also after a failed assertion: the scope waits for them.
struct EndsLoad<'s>(&'s AtomicBool);

impl Drop for EndsLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Every file is the result of whole operations.
fn assert_whole(fs: &Fs) -> usize {
    let mut count = 0;
    for seed in 0..4 {
        for number in 0..FILES {
            let name = format!("file-{seed}-{number}");
            let Ok(found) = fs.lookup(Ino::ROOT, name.as_bytes()) else {
                continue;
            };
            assert_eq!(found.kind, FileType::Regular);
            let mut data = vec![0; PIECE];
            let len = fs.read(found.ino, 0, &mut data).unwrap();
            assert!(len == 0 || len == found.size as usize, "{name}: {len}");
            assert!(
                data[..len].iter().all(|byte| *byte == data[0]),
                "{name} is torn"
            );
            count += 1;
        }
    }
    count
}

fn mounted_in_memory(features: &[&str], data: DataMode) -> Fs {
    let region = Region::new("region", HeapBackend::boxed(LEN as usize));
    let options = FormatOptions {
        features: features
            .iter()
            .map(|name| ((*name).to_owned(), true))
            .collect(),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    let options = MountOptions {
        data,
        ..MountOptions::default()
    };
    Fs::open(region, options).unwrap()
}

#[test]
fn snapshot_under_load_is_one_moment_and_checks_clean() {
    snapshots_under_load(mounted_in_memory(&[], DataMode::InPlace));
}

/// The data of atomic writes are in blocks that no bitmap names, until their record is dead.
#[test]
fn snapshot_under_load_of_atomic_writes_is_one_moment() {
    snapshots_under_load(mounted_in_memory(&[], DataMode::Atomic));
}

#[test]
fn snapshot_under_load_with_checksums_is_one_moment() {
    snapshots_under_load(mounted_in_memory(&["data_checksums"], DataMode::InPlace));
}

fn snapshots_under_load(fs: Fs) {
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (fs, stop, changes) = (&fs, &stop, &changes);
            scope.spawn(move || change(fs, seed, stop, changes));
        }
        let at_least = |count: u64| {
            while changes.load(Ordering::Relaxed) < count {
                std::thread::yield_now();
            }
        };
        let ends_load = EndsLoad(&stop);
        for round in 0..6u64 {
            at_least(round * 400 + 100);
            // Little memory: the writers wait for the reader.
            let snapshot = fs
                .snapshot([64 << 20, 256 << 10][round as usize % 2])
                .unwrap();
            let since = changes.load(Ordering::Relaxed);
            let mut read = 0;
            let region = restored(&snapshot, &mut || {
                read += 1;
                if read % 256 == 0 {
                    // So that something changes while blocks are read.
                    std::thread::yield_now();
                }
            });
            assert_eq!(snapshot.end(), None);
            drop(snapshot);
            let during = changes.load(Ordering::Relaxed) - since;
            let other = Fs::open(region, MountOptions::default()).unwrap();
            let files = assert_whole(&other);
            let (_, report) = check_fs(other, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "round {round}: {report}");
            println!("round {round}: {files} files, {during} changes while it was read");
        }
        drop(ends_load);
    });
    fs.close().unwrap();
}

/// Without the rule, the record of an atomic write lives on in the snapshot, and the mount of what
/// was restored copies from blocks that were not saved.
#[test]
fn snapshot_after_atomic_write_has_all_of_it() {
    for is_retired in [true, false] {
        let region = Region::new("region", HeapBackend::boxed(LEN as usize));
        format(&region, &FormatOptions::default()).unwrap();
        let mut options = MountOptions {
            data: DataMode::Atomic,
            ..quiet()
        };
        options.rules.snapshot_retires = is_retired;
        let fs = Fs::open(region, options).unwrap();
        let ino = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
        for byte in 1..=3 {
            fs.write(&CX, ino, 0, &[byte; PIECE]).unwrap();
        }
        let snapshot = fs.snapshot(LEN).unwrap();
        let restored = restored(&snapshot, &mut || ());
        drop(snapshot);
        let other = Fs::open(restored, quiet()).unwrap();
        let mut data = vec![0; PIECE];
        other.read(ino, 0, &mut data).unwrap();
        assert_eq!(data == [3; PIECE], is_retired);
    }
}

#[test]
fn snapshot_with_listed_bad_blocks_reads_them_as_zeros_and_restores() {
    let options = FormatOptions::default();
    let sim = formatted(LEN as usize, &options).unwrap();
    // In the last group, where nothing is.
    let bad = LEN - (1 << 20);
    let ranges = std::iter::once(bad..bad + 8192);
    sim.set_kernel_bad(ranges.collect());
    let fs = mount(&sim, quiet()).unwrap();
    let ino = fs.create(&CX, Ino::ROOT, b"file-0-0", 0o644).unwrap().ino;
    fs.write(&CX, ino, 0, &[1; PIECE]).unwrap();
    let free = fs.statfs().unwrap().free;
    let snapshot = fs.snapshot(LEN).unwrap();
    fs.write(&CX, ino, 0, &[2; PIECE]).unwrap();
    let size = snapshot.block_size();
    let mut block = vec![0xee; size as usize];
    snapshot.read(bad / size, &mut block).unwrap();
    assert!(block.iter().all(|byte| *byte == 0));
    let restored = restored(&snapshot, &mut || ());
    assert_eq!(snapshot.end(), None);
    drop(snapshot);
    fs.close().unwrap();
    let other = Fs::open(restored, quiet()).unwrap();
    // The list of bad blocks is restored with the rest, and the next fsck can empty it.
    assert_eq!(other.statfs().unwrap().free, free);
    let mut data = vec![0; PIECE];
    other.read(ino, 0, &mut data).unwrap();
    assert_eq!(data, [1; PIECE]);
    let (_, report) = check_fs(other, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
}

/// The save names them; a repair of what is restored says which bytes of files are lost.
#[test]
fn snapshot_of_file_in_listed_block_is_zeros_until_repair_marks_them_lost() {
    let sim = formatted(LEN as usize, &FormatOptions::default()).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ino = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&CX, ino, 0, &[1; PIECE]).unwrap();
    let size = 4096;
    let at = fs.file_extents(ino, 2 * size, size).unwrap()[0]
        .region_offset
        .unwrap();
    fs.close().unwrap();
    let sectors = at + 1024..at + 2048;
    sim.set_kernel_bad(vec![sectors]);
    let fs = mount(&sim, quiet()).unwrap();
    let snapshot = fs.snapshot(LEN).unwrap();
    let mut block = vec![0xee; size as usize];
    snapshot.read(at / size, &mut block).unwrap();
    assert!(block.iter().all(|byte| *byte == 0));
    let region = restored(&snapshot, &mut || ());
    drop(snapshot);
    fs.close().unwrap();

    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let lost = 2 * size..3 * size;
    assert_eq!(fs.lost_ranges(ino).unwrap(), vec![lost], "{report}");
    let mut data = vec![0; PIECE];
    let failed = fs.read(ino, 2 * size, &mut data).unwrap_err();
    assert_eq!(failed.errno(), libc::EIO);
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), 2 * size as usize);
    let rest = fs.read(ino, 3 * size, &mut data).unwrap();
    assert_eq!(rest, PIECE - 3 * size as usize);
    assert!(data[..rest].iter().all(|byte| *byte == 1));
}

#[test]
fn save_of_mount_with_listed_blocks_names_them_and_fails_after_it_is_written() {
    if !mounted::available("saves of a mount") {
        return;
    }
    let mount = Mounted::unmounted(&mounted::program(), LEN);
    // In the last group, where nothing is.
    let block = (LEN - (1 << 20)) / 4096;
    let region = RegionOptions::new().open(mount.region()).unwrap();
    region.mark_bad(block * 4096..(block + 2) * 4096);
    repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    drop(region);
    mount.mount("");
    std::fs::write(mount.path().join("file-0-0"), vec![1; PIECE]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved");
    let saved = save(&mount, &file).output().unwrap();
    assert_eq!(saved.status.code(), Some(1), "{saved:?}");
    let report: serde_json::Value = serde_json::from_slice(&saved.stdout).unwrap();
    assert_eq!(report["zeroed"]["blocks"], 2);
    assert_eq!(report["zeroed"]["runs"][0]["start"], block);
    let said = String::from_utf8(saved.stderr).unwrap();
    let owner = format!(
        "pramfs owner {} {block}-{}`",
        mount.path().display(),
        block + 1
    );
    assert!(said.contains(&owner), "{said}");
    let args = [
        mount.path().into_os_string(),
        format!("{block}-{}", block + 1).into(),
    ];
    let owner = tool("pramfs").arg("owner").args(args).output().unwrap();
    assert!(owner.status.success(), "{owner:?}");
    mount.unmount();
    assert_restores(dir.path(), &file);
}

#[test]
fn snapshot_under_load_of_protected_region_is_one_moment() {
    for protect in [Protect::Mprotect, Protect::Pkey] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("region");
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(LEN).unwrap();
        let region = match RegionOptions::new().protect(protect).open(&path) {
            Ok(region) => region,
            Err(e) if protect == Protect::Pkey => {
                skipped(format_args!("snapshots with protect=pkey: {e}"));
                continue;
            }
            Err(e) => panic!("{e}"),
        };
        assert!(region.is_protected());
        format(&region, &FormatOptions::default()).unwrap();
        snapshots_under_load(Fs::open(region, MountOptions::default()).unwrap());
    }
}

/// A writer waits for a reader that does nothing, and not for ever.
#[test]
fn reader_that_stops_ends_snapshot_and_writer_goes_on() {
    let fs = mounted_in_memory(&[], DataMode::InPlace);
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap();
    fs.write(&CX, file.ino, 0, &[1; PIECE]).unwrap();
    let snapshot = fs.snapshot(4096).unwrap();
    // More than the limit, so that the next operation waits.
    assert_eq!(fs.write(&CX, file.ino, 0, &[2; PIECE]).unwrap(), PIECE);
    assert_eq!(snapshot.end(), None);
    let start = Instant::now();
    assert_eq!(fs.write(&CX, file.ino, 0, &[3; PIECE]).unwrap(), PIECE);
    assert!(start.elapsed() >= Duration::from_secs(9));
    assert_eq!(snapshot.end(), Some(SnapshotEnd::Slow));
    let failed = snapshot.read(0, &mut vec![0; snapshot.block_size() as usize]);
    let failed = failed.unwrap_err().to_string();
    assert!(failed.contains("waited 10 s"), "{failed}");
    // The next one may begin, though the reader has not gone.
    drop(fs.snapshot(64 << 20).unwrap());
    drop(snapshot);
    fs.close().unwrap();
}

/// The tool beside the program that mounts.
fn tool(name: &str) -> Command {
    Command::new(mounted::program().with_file_name(name))
}

fn save(mount: &Mounted, file: &Path) -> Command {
    let mut save = tool("pramfs");
    save.arg("save").arg("--json").arg(mount.path()).arg(file);
    save
}

/// Restores a save, and checks it and its files.
fn assert_restores(dir: &Path, file: &Path) {
    let region = dir.join("restored");
    let restored = tool("pramfs").arg("restore").args([file, &region]).output();
    let restored = restored.unwrap();
    assert!(restored.status.success(), "{restored:?}");
    let opened = RegionOptions::new().open(&region).unwrap();
    let fs = Fs::open(opened, MountOptions::default()).unwrap();
    assert!(assert_whole(&fs) > 0);
    let (_, report) = check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    std::fs::remove_file(region).unwrap();
}

/// Overwrites the files of a mount, a write for each, until `stop`.
fn overwrite(mount: &Mounted, stop: &AtomicBool, changes: &AtomicU64) {
    use std::os::unix::fs::FileExt;
    let files: Vec<_> = (0..FILES)
        .map(|number| std::fs::File::create(mount.at(format!("file-0-{number}"))).unwrap())
        .collect();
    let mut rng = Random::new(1);
    while !stop.load(Ordering::Relaxed) {
        let data = vec![rng.below(255) as u8 + 1; PIECE];
        files[rng.below(FILES) as usize]
            .write_all_at(&data, 0)
            .unwrap();
        changes.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn save_of_mount_under_load_restores_whole_files() {
    if !mounted::available("saves of a mount") {
        return;
    }
    let mount = Mounted::new(&mounted::program(), LEN, "");
    let dir = tempfile::tempdir().unwrap();
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ends_load = EndsLoad(&stop);
        scope.spawn(|| overwrite(&mount, &stop, &changes));
        let wait = || {
            let until = changes.load(Ordering::Relaxed) + 100;
            while changes.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
        };
        wait();
        let file = dir.path().join("saved");
        let saved = save(&mount, &file).output().unwrap();
        assert!(saved.status.success(), "{saved:?}");
        let report: serde_json::Value = serde_json::from_slice(&saved.stdout).unwrap();
        assert_eq!(report["live"], true);
        assert_eq!(report["mapped"], serde_json::json!([]));
        assert_restores(dir.path(), &file);
        // Replaced, as a save without a mount is.
        let again = save(&mount, &file).output().unwrap();
        assert!(!again.status.success());
        let again = save(&mount, &file)
            .arg("-f")
            .arg("--memory=1M")
            .output()
            .unwrap();
        assert!(again.status.success(), "{again:?}");
        assert_restores(dir.path(), &file);
        // Not onto itself.
        let inside = save(&mount, &mount.at("saved")).output().unwrap();
        let words = String::from_utf8_lossy(&inside.stdout).into_owned();
        assert!(words.contains("would wait for itself"), "{inside:?}");
        // By the region, too; and the region itself is no place for it.
        let region = mount.region();
        let refused = tool("pramfs")
            .args(["save", "-f", "--other"])
            .args([&region, &region])
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(words.contains("is the region itself"), "{refused:?}");
        // Killed in the middle: the mount goes on, and the next one is possible.
        for _ in 0..3 {
            let killed = dir.path().join("killed");
            let mut child = save(&mount, &killed).stdout(Stdio::null()).spawn().unwrap();
            wait();
            child.kill().unwrap();
            child.wait().unwrap();
            wait();
        }
        let other = dir.path().join("other");
        wait_until(|| save(&mount, &other).output().unwrap().status.success());
        assert_restores(dir.path(), &other);
        drop(ends_load);
    });
    mount.unmount();
    let report = check(
        &RegionOptions::new().open(mount.region()).unwrap(),
        &CheckOptions::default(),
    );
    assert!(report.is_clean(), "{report}");
}

/// The copies of the blocks are in the memory of the server: the save ends with it, and says so.
#[test]
fn save_whose_server_is_replaced_fails_and_the_next_succeeds() {
    if !mounted::available("saves of a mount that is taken over") {
        return;
    }
    let options =
        "transport=dev,opens=server,direct=off,data=atomic,takeover=on,takeover-deaths=1000";
    let mount = Mounted::new(&mounted::program(), LEN, options);
    let dir = tempfile::tempdir().unwrap();
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ends_load = EndsLoad(&stop);
        scope.spawn(|| overwrite(&mount, &stop, &changes));
        // Bytes that take long to compress, so that the server dies in the middle.
        let mut noise = vec![0; 24 << 20];
        Random::new(7).fill(&mut noise);
        std::fs::write(mount.at("noise"), noise).unwrap();
        let wait_for = |more: u64| {
            let until = changes.load(Ordering::Relaxed) + more;
            assert!(wait_until(|| changes.load(Ordering::Relaxed) >= until));
        };
        let mut failed = 0;
        assert!(wait_until(|| {
            wait_for(20);
            let killed = dir.path().join("killed");
            let child = save(&mount, &killed)
                .arg("-f")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            wait_for(failed * 10 + 1);
            mount.signal(rustix::process::Signal::KILL);
            let output = child.wait_with_output().unwrap();
            if !output.status.success() {
                failed += 1;
                assert!(!output.stdout.is_empty() || !output.stderr.is_empty());
            }
            // A save that failed leaves no file, or the whole one of an earlier save.
            if killed.exists() {
                assert_restores(dir.path(), &killed);
            }
            failed == 3
        }));
        let file = dir.path().join("saved");
        assert!(wait_until(|| {
            let again = save(&mount, &file).arg("-f").output().unwrap();
            again.status.success()
        }));
        assert_restores(dir.path(), &file);
        drop(ends_load);
    });
    mount.unmount();
}

/// The inode of the moment does not say that sums of the view's blocks need not hold.
#[test]
fn view_that_begins_during_save_leaves_saved_sums_right() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    let region = RegionOptions::new().open(&path).unwrap();
    let options = FormatOptions {
        features: vec![("data_checksums".to_owned(), true)],
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap();
    let len = 64 * PIECE;
    assert_eq!(fs.write(&CX, file.ino, 0, &vec![1; len]).unwrap(), len);
    // Less than the file has, so that the view waits for the reader.
    let snapshot = fs.snapshot(256 << 10).unwrap();
    let region = std::thread::scope(|scope| {
        let stores = scope.spawn(|| {
            let open = OpenOptions::new().read(true).write(true).open(&fs, "/file");
            let open = open.unwrap();
            let view = open.map(0..len as u64, Access::Write).unwrap();
            for at in (0..len as u64).step_by(4096) {
                view.store(at, 0x0202_0202_0202_0202u64).unwrap();
            }
        });
        let region = restored(&snapshot, &mut || std::thread::yield_now());
        stores.join().unwrap();
        region
    });
    assert_eq!(snapshot.end(), None);
    let named: Vec<_> = snapshot.mapped_files().unwrap();
    assert_eq!(named.len(), 1);
    drop(snapshot);
    let saved = Fs::open(region, quiet()).unwrap();
    let found = saved.verify_data(file.ino, 0..u64::MAX).unwrap();
    assert!(found.wrong.is_empty() && !found.is_marked, "{found:?}");
    let mut data = vec![0; len];
    assert_eq!(saved.read(file.ino, 0, &mut data).unwrap(), len);
    assert!(data.iter().all(|byte| *byte == 1));
    fs.close().unwrap();
}

#[test]
fn lease_to_write_waits_for_end_of_save_with_sums() {
    for (features, refused) in [(&["data_checksums"][..], true), (&[], false)] {
        let fs = mounted_in_memory(features, DataMode::Atomic);
        let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap();
        let generation = fs.getattr(file.ino).unwrap().generation;
        let lease = |mode| fs.grant_lease(file.ino, generation, mode, 1, 0).map(drop);
        let snapshot = fs.snapshot(1 << 20).unwrap();
        lease(LeaseMode::Read).unwrap();
        match lease(LeaseMode::Write) {
            Err(e) => assert!(refused && e.errno() == libc::EBUSY, "{e}"),
            Ok(()) => assert!(!refused),
        }
        drop(snapshot);
        lease(LeaseMode::Write).unwrap();
    }
}

/// It holds locks, so it cannot wait for the reader.
#[test]
fn operation_that_needs_too_many_copies_ends_save_and_says_so() {
    let region = Region::new("region", HeapBackend::boxed(192 << 20));
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap();
    let len = 72u64 << 20;
    let piece = vec![1; 1 << 20];
    for at in (0..len).step_by(1 << 20) {
        assert_eq!(fs.write(&CX, file.ino, at, &piece).unwrap(), piece.len());
    }
    let snapshot = fs.snapshot(4096).unwrap();
    fs.fallocate(
        &CX,
        file.ino,
        Fallocate::ZeroRange { keep_size: true },
        0,
        len,
    )
    .unwrap();
    assert_eq!(snapshot.end(), Some(SnapshotEnd::Excess));
    let failed = snapshot.read(0, &mut vec![0; snapshot.block_size() as usize]);
    let failed = failed.unwrap_err().to_string();
    assert!(failed.contains("so much at once"), "{failed}");
    drop(snapshot);
    fs.close().unwrap();
}
