//! Failing pages of the medium (poison), on each page in use in turn.
//!
//! A page that raises SIGBUS replaces one of a healthy region, before the mount or while
//! everything is cached. Files are read, written, created and removed; then the page is
//! healthy again, with its old contents. Completed operations must be there, and files
//! whose bytes were not hit must be unchanged.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use pramfs::Damage;
use pramfs::format::format;
use pramfs::{
    Clock, Error, MountOptions, Result, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr, Time},
};
use pramfs_medium::pmem::{BackendKind, Region, RegionOptions, SimBackend, install_fault_guard};
use pramfs_tests::poisoned::fail_page;
use pramfs_tests::region::{formatted, mount, quiet, repeatable};
use pramfs_tests::watchdog::Watchdog;

const PAGE: u64 = 4096;
const LEN: u64 = 1 << 20;
const VICTIM: &[u8] = &[0xab; 20_000];

fn open(path: &Path) -> Region {
    let options = RegionOptions::new().backend(BackendKind::Native);
    options.open(path).expect("a region on tmpfs")
}

/// A region with an untouched file and a working directory.
fn make(path: &Path) -> Ino {
    let file = File::create(path).expect("a file on tmpfs");
    file.set_len(LEN).expect("room on tmpfs");
    let region = open(path);
    format(&region, &repeatable(4096)).expect("formatted");
    let fs = Fs::open(region, quiet()).expect("mounted");
    let ctx = Credentials::ROOT;
    let victim = fs.create(&ctx, Ino::ROOT, b"victim", 0o644).expect("made");
    fs.write(&Credentials::ROOT, victim.ino, 0, VICTIM)
        .expect("written");
    fs.setxattr(
        &Credentials::ROOT,
        victim.ino,
        b"user.is",
        b"a victim",
        XattrMode::Set,
    )
    .expect("set");
    let work = fs.mkdir(&ctx, Ino::ROOT, b"work", 0o755).expect("made").ino;
    for i in 0..8 {
        let f = fs
            .create(&ctx, work, name(i).as_bytes(), 0o644)
            .expect("made");
        fs.write(&Credentials::ROOT, f.ino, 0, &[i; 6000])
            .expect("written");
    }
    fs.close().expect("unmounted");
    victim.ino
}

fn name(i: u8) -> String {
    format!("file {i}")
}

/// Changes by the completed operations.
#[derive(Default)]
struct Done {
    /// Files of `work`: contents, or removed. Failed operations are left out.
    files: BTreeMap<String, Option<Vec<u8>>>,
    errors: usize,
}

impl Done {
    fn note<T>(&mut self, result: Result<T>, name: String, now: Option<Vec<u8>>) {
        match result {
            Ok(_) => {
                self.files.insert(name, now);
            }
            Err(e) if may_be(&e) => {
                self.errors += 1;
                self.files.remove(&name);
            }
            Err(e) => panic!("{name}: {e}"),
        }
    }
}

/// Errors that a failed page explains.
fn may_be(e: &Error) -> bool {
    let errnos = [libc::EIO, libc::EUCLEAN, libc::ENOSPC, libc::EROFS];
    errnos.contains(&e.errno())
}

/// A group of blocks that cannot be read has no free blocks: the write is short.
fn all(written: usize, len: usize) -> Result<()> {
    if written == len {
        Ok(())
    } else {
        Err(Error::NoSpace("a short write"))
    }
}

fn use_it(fs: &Fs, done: &mut Done) {
    let ctx = Credentials::ROOT;
    let Ok(work) = fs.lookup(Ino::ROOT, b"work") else {
        done.errors += 1;
        return;
    };
    let work = work.ino;
    for i in 0..4 {
        let write = || {
            let f = fs.lookup(work, name(i).as_bytes())?.ino;
            all(fs.write(&Credentials::ROOT, f, 0, &[i + 100; 9000])?, 9000)
        };
        done.note(write(), name(i), Some(vec![i + 100; 9000]));
    }
    for i in 4..6 {
        done.note(fs.unlink(work, name(i).as_bytes()), name(i), None);
    }
    for i in 20..30 {
        let make = || {
            let f = fs.create(&ctx, work, name(i).as_bytes(), 0o600)?.ino;
            fs.setattr(
                &Credentials::ROOT,
                f,
                &SetAttr {
                    perm: Some(0o640),
                    ..SetAttr::default()
                },
            )?;
            all(fs.write(&Credentials::ROOT, f, 0, &[i; 3000])?, 3000)
        };
        done.note(make(), name(i), Some(vec![i; 3000]));
    }
}

fn read(fs: &Fs, ino: Ino) -> Result<Vec<u8>> {
    let mut bytes = vec![0; fs.getattr(ino)?.size as usize];
    let n = fs.read(ino, 0, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// The page is healthy again: every completed operation must be there.
fn verify(path: &Path, victim: Ino, done: &Done, case: &str) {
    let fs = Fs::open(open(path), quiet()).unwrap_or_else(|e| panic!("{case}: mount: {e}"));
    let found = fs.lookup(Ino::ROOT, b"victim").map(|a| a.ino);
    assert_eq!(found.expect(case), victim, "{case}");
    assert!(
        read(&fs, victim).expect(case) == VICTIM,
        "{case}: another file has changed"
    );
    let work = fs.lookup(Ino::ROOT, b"work").expect(case).ino;
    for (name, want) in &done.files {
        match (fs.lookup(work, name.as_bytes()), want) {
            (Err(Error::NotFound), None) => {}
            (Ok(a), Some(want)) => {
                let got = read(&fs, a.ino).expect(case);
                assert!(&got == want, "{case}: {name} is not what was written");
            }
            (got, _) => panic!("{case}: {name}: {got:?}"),
        }
    }
    let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).expect(case);
    // The superblock must have recorded the errors.
    let findings = report.findings.iter();
    let findings: Vec<_> = findings
        .filter(|f| f.issue.kind() != Damage::ErrorsRecorded)
        .map(ToString::to_string)
        .collect();
    assert!(findings.is_empty(), "{case}: {findings:#?}");
}

/// Pages that the healthy image uses, and some unused ones.
fn pages(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).expect("the image");
    let used = |p: &u64| {
        let at = (p * PAGE) as usize;
        bytes[at..at + PAGE as usize].iter().any(|b| *b != 0)
    };
    (0..LEN / PAGE).filter(|p| used(p) || p % 16 == 0).collect()
}

/// A clock that makes the medium fail on request.
#[derive(Debug)]
struct Failing {
    sim: SimBackend,
    armed: AtomicBool,
}

impl Clock for Failing {
    fn now(&self) -> Time {
        if self.armed.load(Ordering::Relaxed) {
            self.sim.inject_fault();
        }
        Time {
            sec: 1_700_000_000,
            nsec: 0,
        }
    }
}

#[test]
fn failed_operation_keeps_no_reference() {
    let sim = formatted(1 << 20, &repeatable(4096)).expect("formatted");
    let clock = Arc::new(Failing {
        sim: sim.clone(),
        armed: AtomicBool::new(false),
    });
    let options = MountOptions {
        clock: clock.clone(),
        ..quiet()
    };
    let fs = mount(&sim, options).expect("mounted");
    let (ctx, root) = (Credentials::ROOT, Ino::ROOT);
    let file = fs.create(&ctx, root, b"file", 0o644).expect("made").ino;
    clock.armed.store(true, Ordering::Relaxed);
    let failed = [
        fs.holding().create(&ctx, root, b"a", 0o644),
        fs.holding().mkdir(&ctx, root, b"b", 0o755),
        fs.holding().symlink(&ctx, root, b"c", b"target"),
        fs.holding().link(file, root, b"d"),
    ];
    for f in failed {
        assert_eq!(f.unwrap_err().errno(), libc::EIO);
    }
    assert_eq!(fs.memory().referenced, 0);
}

/// A clock that is set by the test.
#[derive(Debug, Default)]
struct Set(AtomicI64);

impl Clock for Set {
    fn now(&self) -> Time {
        Time {
            sec: self.0.load(Ordering::Relaxed),
            nsec: 0,
        }
    }
}

#[test]
fn failing_time_write_spares_other_files() {
    let _dog = Watchdog::new("times beside a failed page", Duration::from_secs(60));
    install_fault_guard().expect("a handler for SIGBUS");
    let dir = tempfile::tempdir_in("/dev/shm").expect("tmpfs at /dev/shm");
    let path = dir.path().join("region");
    make(&path);
    let clock = Arc::new(Set::default());
    let options = MountOptions {
        clock: clock.clone(),
        ..quiet()
    };
    let fs = Fs::open(open(&path), options).expect("mounted");
    // So many files that the first and the last are in different pages of the table.
    let made: Vec<Ino> = (0..40)
        .map(|i| {
            let name = format!("many {i}");
            let f = fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644);
            let ino = f.expect("made").ino;
            fs.write(&Credentials::ROOT, ino, 0, &[i; 512])
                .expect("written");
            ino
        })
        .collect();
    // A unique time marks the page of the first.
    let mark = 0x0123_4567_89ab_i64;
    clock.0.store(mark, Ordering::Relaxed);
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, made[0], &set).expect("set");
    clock.0.store(2_000_000_000, Ordering::Relaxed);
    // Its record is overwritten in its slot.
    for _ in 0..2 {
        fs.setattr(&Credentials::ROOT, made[39], &set).expect("set");
    }
    fs.sync().expect("synced");
    let bytes = std::fs::read(&path).expect("the image");
    let home = bytes
        .windows(8)
        .enumerate()
        .filter(|(at, w)| at % 8 == 0 && **w == mark.to_le_bytes())
        .map(|(at, _)| at as u64 / PAGE);
    let home: Vec<u64> = home.collect();
    let [home] = home[..] else {
        panic!("the time stands in pages {home:?}")
    };
    fs.close().expect("unmounted");
    let options = MountOptions {
        clock: clock.clone(),
        ..quiet()
    };
    let fs = Fs::open(open(&path), options).expect("mounted");
    clock.0.store(2_000_000_001, Ordering::Relaxed);
    for &ino in [&made[0], &made[39]] {
        fs.write(&Credentials::ROOT, ino, 0, &[7; 512])
            .expect("overwritten");
    }
    fail_page(fs.region_to_damage(), home);
    // The next inode of the page was not cached, so the page is now known to fail.
    fs.getattr(Ino(made[0].0 + 1)).expect_err("its page fails");
    let error = fs.sync().expect_err("the times of the first");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    // As after a kill: no unmount, and the page is healthy again.
    std::mem::forget(fs);
    let again = RegionOptions::new()
        .backend(BackendKind::Native)
        .lock(false)
        .open(&path);
    let fs = Fs::open(again.expect("opened"), quiet()).expect("mounted");
    let last = fs.getattr(made[39]).expect("there");
    assert_eq!(last.mtime.sec, 2_000_000_001);
    fs.close().expect("unmounted");
}

#[test]
fn failing_page_affects_only_itself() {
    let _dog = Watchdog::new("a page that fails", Duration::from_secs(300));
    install_fault_guard().expect("a handler for SIGBUS");
    let dir = tempfile::tempdir_in("/dev/shm").expect("tmpfs at /dev/shm");
    let (healthy, path) = (dir.path().join("healthy"), dir.path().join("region"));
    let victim = make(&healthy);
    let (mut failed, mut worked) = (0, 0);
    let list = pages(&healthy);
    for &page in &list {
        for mounted in [false, true] {
            let when = if mounted {
                "under the mount"
            } else {
                "before the mount"
            };
            let case = format!("page {page} fails {when}");
            std::fs::copy(&healthy, &path).expect("a copy");
            let region = open(&path);
            let mut done = Done::default();
            if !mounted {
                fail_page(&region, page);
            }
            match Fs::open(region, quiet()) {
                Ok(fs) => {
                    if mounted {
                        // Everything is cached.
                        read(&fs, victim).expect(&case);
                        fail_page(fs.region_to_damage(), page);
                    }
                    use_it(&fs, &mut done);
                    // The unmount may fail to mark the file system clean.
                    let _ = fs.close();
                }
                Err(e) if may_be(&e) => done.errors += 1,
                Err(e) => panic!("{case}: {e}"),
            }
            failed += usize::from(done.errors > 0);
            worked += usize::from(!done.files.is_empty());
            verify(&path, victim, &done, &case);
        }
    }
    println!(
        "{} pages: {failed} cases with errors, {worked} with something done",
        list.len()
    );
    assert!(failed > list.len() / 8, "hardly any page was met");
    assert!(worked > list.len() / 2, "hardly anything worked");
}

/// Far more failing pages than any list would hold. Each gives an error to its readers
/// only; everything else works.
#[test]
fn many_failing_pages_are_handled_separately() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("tmpfs at /dev/shm");
    let path = dir.path().join("region");
    let victim = make(&path);
    let fs = Fs::open(open(&path), quiet()).expect("mounted");
    let ctx = Credentials::ROOT;
    let ino = fs.create(&ctx, Ino::ROOT, b"hit", 0o644).expect("made").ino;
    let block = [0xe7; PAGE as usize];
    for i in 0..60 {
        fs.write(&Credentials::ROOT, ino, i * PAGE, &block)
            .expect("written");
    }
    let holds = |page: &u64| {
        let mut bytes = [0; PAGE as usize];
        fs.region().read(page * PAGE, &mut bytes).is_ok() && bytes == block
    };
    let hit: Vec<u64> = (0..LEN / PAGE).filter(holds).collect();
    assert_eq!(hit.len(), 60);
    for page in &hit[..50] {
        fail_page(fs.region_to_damage(), *page);
    }
    let mut bytes = block;
    let failed = (0..60).filter(|i| fs.read(ino, i * PAGE, &mut bytes).is_err());
    assert_eq!(failed.count(), 50);
    assert_eq!(fs.region().faults(), 50);
    assert_eq!(read(&fs, victim).expect("of another file"), VICTIM);
    let new = fs.create(&ctx, Ino::ROOT, b"new", 0o644).expect("made").ino;
    fs.append(&Credentials::ROOT, new, &block)
        .expect("appended");
    assert_eq!(read(&fs, new).expect("of a new file"), block);
}
