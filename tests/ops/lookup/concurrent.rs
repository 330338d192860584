//! Results of `lookup` and `getattr` beside changes of the same inodes and names. Cached
//! answers take no lock, but must never show a state before a completed call, or a state
//! that does not exist yet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::pmem::{HeapBackend, Region};
use pramfs::{Error, MountOptions, RenameFlags};
use pramfs_fsck::{self as fsck, CheckOptions};

const CX: Credentials<'_> = Credentials::new(0, 0);
const TIME: Duration = Duration::from_millis(1500);

fn fresh() -> Fs {
    let region = Region::new("look-ups", HeapBackend::boxed(16 << 20));
    format(&region, &FormatOptions::default()).unwrap();
    Fs::open(region, MountOptions::default()).unwrap()
}

/// Stops the other threads, also after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits some tenths of a microsecond.
fn pause(tenths: u64) {
    (0..tenths * 10).for_each(|_| std::hint::spin_loop());
}

/// One thread makes changes, others look. A result is checked if no change was in
/// progress from before the look until after it.
struct Steps {
    begun: AtomicU64,
    ended: AtomicU64,
    stop: AtomicBool,
}

impl Steps {
    fn run(change: impl Fn(u64) + Sync, look: impl Fn() -> u64 + Sync, what: impl Fn(u64) -> u64) {
        let steps = &Steps {
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        };
        std::thread::scope(|s| {
            let (change, look) = (&change, &look);
            s.spawn(move || {
                let _stop = Stop(&steps.stop);
                let until = Instant::now() + TIME;
                let mut step = 0;
                while Instant::now() < until {
                    step += 1;
                    steps.begun.store(step, Ordering::SeqCst);
                    change(step);
                    steps.ended.store(step, Ordering::SeqCst);
                    // Gives the others time to look, now and then.
                    pause(step % 16);
                }
            });
            let (mut settled, mut all) = (0u64, 0u64);
            while !steps.stop.load(Ordering::SeqCst) {
                let step = steps.ended.load(Ordering::SeqCst);
                let seen = look();
                let wanted = what(step);
                all += 1;
                if steps.begun.load(Ordering::SeqCst) == step {
                    assert_eq!(seen, wanted, "step {step}");
                    settled += 1;
                }
            }
            println!("{settled} of {all} looks between changes");
            assert!(settled > 1000);
        });
    }
}

#[test]
fn getattr_beside_changes_shows_last_call() {
    let fs = fresh();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let change = |step| {
        let set = SetAttr {
            size: Some(step),
            ..SetAttr::default()
        };
        fs.setattr(&CX, file, &set).unwrap();
        // The thread that made the change sees it.
        assert_eq!(fs.getattr(file).unwrap().size, step);
    };
    let look = || {
        let by_name = fs.lookup(Ino::ROOT, b"file").unwrap().size;
        let by_number = fs.getattr(file).unwrap().size;
        assert!(by_name <= by_number, "{by_name} and then {by_number}");
        by_number
    };
    Steps::run(change, look, |step| step);
}

#[test]
fn lookup_beside_renames_follows_last_one() {
    let fs = fresh();
    // Its inode number is lower than those of its directories, so its lock is taken
    // before theirs.
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let dirs = [b"d0", b"d1"].map(|n| fs.mkdir(&CX, Ino::ROOT, n, 0o755).unwrap().ino);
    fs.rename(
        &CX,
        Ino::ROOT,
        b"file",
        dirs[0],
        b"name",
        RenameFlags::default(),
    )
    .unwrap();
    // Between two directories, and within one.
    let place = |step: u64| match step % 4 {
        0 => (dirs[0], b"name"),
        1 => (dirs[1], b"name"),
        2 => (dirs[1], b"eman"),
        _ => (dirs[0], b"eman"),
    };
    let change = |step: u64| {
        let ((from, name), (to, new_name)) = (place(step - 1), place(step));
        fs.rename(&CX, from, name, to, new_name, RenameFlags::default())
            .unwrap();
        if step.is_multiple_of(2) {
            assert_eq!(fs.lookup(to, new_name).unwrap().ino, file);
        }
    };
    let looks = AtomicU64::new(0);
    let look = || {
        let first = looks.fetch_add(1, Ordering::Relaxed);
        let mut found = 0;
        for i in 0..4 {
            let at = (first + i) % 4;
            let (dir, name) = place(at);
            match fs.lookup(dir, name) {
                Ok(attr) => {
                    assert_eq!(attr.ino, file);
                    found |= 1 << at;
                }
                Err(Error::NotFound) => {}
                Err(e) => panic!("{e}"),
            }
        }
        found
    };
    Steps::run(change, look, |step| 1 << (step % 4));
}

#[test]
fn lookup_beside_replacements_finds_new_inode() {
    let fs = fresh();
    let number = AtomicU64::new(0);
    let first = fs.create(&CX, Ino::ROOT, b"name", 0o644).unwrap();
    number.store(first.generation, Ordering::SeqCst);
    let change = |step: u64| {
        if step.is_multiple_of(2) {
            fs.unlink(Ino::ROOT, b"name").unwrap();
            assert!(matches!(
                fs.lookup(Ino::ROOT, b"name"),
                Err(Error::NotFound)
            ));
        }
        let new = fs.create(&CX, Ino::ROOT, b"new", 0o644).unwrap();
        fs.rename(
            &CX,
            Ino::ROOT,
            b"new",
            Ino::ROOT,
            b"name",
            RenameFlags::default(),
        )
        .unwrap();
        number.store(new.generation, Ordering::SeqCst);
    };
    let look = || match fs.lookup(Ino::ROOT, b"name") {
        Ok(attr) => attr.generation,
        Err(Error::NotFound) => 0,
        Err(e) => panic!("{e}"),
    };
    Steps::run(change, look, |_| number.load(Ordering::SeqCst));
}

/// A reference keeps the inode, and an unreferenced inode is freed, in either order.
#[test]
fn unlink_beside_lookups_frees_only_unreferenced_inodes() {
    let fs = fresh();
    let free = fs.statfs().unwrap().free_inodes;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _stop = Stop(&stop);
            let until = Instant::now() + TIME;
            let mut rounds = 0;
            while Instant::now() < until {
                let made = fs.create(&CX, Ino::ROOT, b"name", 0o644).unwrap();
                fs.write(&CX, made.ino, 0, b"bytes").unwrap();
                // Cached from here on.
                fs.lookup(Ino::ROOT, b"name").unwrap();
                pause(rounds % 16);
                fs.unlink(Ino::ROOT, b"name").unwrap();
                rounds += 1;
            }
            println!("{rounds} files");
        });
        let mut pinned = 0;
        while !stop.load(Ordering::SeqCst) {
            match fs.holding().lookup(Ino::ROOT, b"name") {
                Ok((held, attr)) => {
                    let still = fs.getattr(held.ino()).unwrap();
                    assert_eq!(still.generation, attr.generation);
                    pinned += 1;
                }
                Err(Error::NotFound) => {}
                Err(e) => panic!("{e}"),
            }
        }
        println!("{pinned} references");
        assert!(pinned > 100);
    });
    assert_eq!(fs.memory().referenced, 0);
    assert_eq!(fs.statfs().unwrap().free_inodes, free);
    let (_, report) = fsck::check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
}

/// Number 0 is not an inode; empty table places hold it.
#[test]
fn lookup_of_inode_zero_fails() {
    let fs = fresh();
    let none = |fs: &Fs| {
        assert!(matches!(fs.getattr(Ino(0)), Err(Error::Stale(_))));
        for name in [&b""[..], b"a", b".", b".."] {
            fs.lookup(Ino(0), name).unwrap_err();
        }
    };
    none(&fs);
    // Inodes come and go in the slot that the number would have.
    for i in 0..3000 {
        let name = format!("file {i}");
        let made = fs.create(&CX, Ino::ROOT, name.as_bytes(), 0o644).unwrap();
        assert_eq!(fs.getattr(made.ino).unwrap(), made);
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        none(&fs);
    }
}
