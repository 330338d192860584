//! Two threads at once, reads beside writes, small enough for Miri and meant for
//! it and for ThreadSanitizer: `make sanitize` runs these with both. What a thread
//! may see is checked too, but what counts is that each access is one that the
//! language allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{HeapBackend, Region};
use pramfs::{
    AtimePolicy, Clock, Error, File, MountOptions, OpenOptions,
    inode::{Credentials, Fs, Ino, Time},
};
use pramfs_medium::pmem::RegionAccess;

const CX: Credentials<'_> = Credentials::new(0, 0);
/// How often a thread does what it does.
const ROUNDS: u8 = if cfg!(miri) { 4 } else { 200 };
/// Bytes of a file: some blocks.
const LEN: usize = 1100;

#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time {
            sec: 1_000_000,
            nsec: 0,
        }
    }
}

fn options() -> MountOptions {
    MountOptions {
        background: false,
        cache_bytes: 1 << 16,
        clock: Arc::new(Still),
        atime: AtimePolicy::NoAtime,
        ..MountOptions::default()
    }
}

fn formatted(region: Region) -> Region {
    let how = FormatOptions {
        block_size: 512,
        lanes: Some(2),
        time: Some(Time { sec: 1, nsec: 0 }),
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        ..FormatOptions::default()
    };
    format(&region, &how).unwrap();
    region
}

fn mounted() -> Fs {
    let region = Region::new("two threads", HeapBackend::boxed(256 << 10));
    Fs::open(formatted(region), options()).unwrap()
}

fn file(fs: &Fs, path: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(fs, path)
        .unwrap()
}

/// Runs `work` until `other` has returned.
fn beside(other: impl FnOnce() + Send, mut work: impl FnMut()) {
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            other();
            done.store(true, Ordering::Release);
        });
        loop {
            let last = done.load(Ordering::Acquire);
            work();
            if last {
                break;
            }
        }
    });
}

#[test]
fn region_reads_beside_stores_do_not_race() {
    let region = Region::new("two threads", HeapBackend::boxed(4096));
    // Words, parts of words, and lines: each way in beside each way out.
    let store = || {
        let w = region.window();
        for i in 0..ROUNDS {
            w.store_unflushed(0, &[i; 64]).unwrap();
            w.store_unflushed(3, &[i; 9]).unwrap();
            w.store_unflushed(68, &[i; 4]).unwrap();
            w.store_u64_unflushed(8, 7).unwrap();
            let pending = w.nt_store(61, &[i; 70]).unwrap();
            let pending = pending.join(w.nt_zero(128, 20).unwrap());
            let pending = pending.join(w.nt_copy(256, 5, 40).unwrap());
            w.fence(pending);
        }
    };
    beside(store, || {
        let mut bytes = [0; 300];
        region.read(0, &mut bytes).unwrap();
        region.read(1, &mut bytes[..13]).unwrap();
        region.read(256, &mut bytes[..60]).unwrap();
        region.read_pod::<[u8; 12]>(8).unwrap();
        region.load_u64(8).unwrap();
        region.touch(0, 300).unwrap();
    });
}

#[test]
fn read_beside_writes_sees_one_write() {
    let fs = mounted();
    let (ours, theirs) = (file(&fs, "/f"), file(&fs, "/f"));
    ours.write_at(&[0; LEN], 0).unwrap();
    // So that the next one knows the place, and takes no lock.
    ours.read_at(&mut [0; LEN], 0).unwrap();
    let write = || {
        for i in 0..ROUNDS {
            theirs.write_at(&[i; LEN], 0).unwrap();
        }
    };
    beside(write, || {
        for (at, len) in [(0, LEN), (512, 512), (700, 33)] {
            let mut bytes = [0; LEN];
            assert_eq!(ours.read_at(&mut bytes[..len], at).unwrap(), len);
            assert!(bytes[..len].iter().all(|b| *b == bytes[0]), "{bytes:?}");
        }
    });
}

#[test]
fn read_beside_append_and_truncate_ends_at_size() {
    let fs = mounted();
    let (ours, theirs) = (file(&fs, "/f"), file(&fs, "/f"));
    let change = || {
        for i in 0..ROUNDS {
            theirs.append(&[7; 600]).unwrap();
            if i % 2 == 1 {
                theirs.set_len(10).unwrap();
            }
        }
    };
    beside(change, || {
        let mut bytes = [9; 700];
        let n = ours.read_at(&mut bytes, 0).unwrap();
        assert!(bytes[..n].iter().all(|b| *b == 7), "{bytes:?}");
    });
}

#[test]
fn lent_bytes_stay_stable_beside_writes() {
    let fs = mounted();
    let f = file(&fs, "/f");
    f.write_at(&[1; 512], 0).unwrap();
    let write = || {
        for i in 2..ROUNDS {
            f.write_at(&[i; 512], 0).unwrap();
        }
    };
    beside(write, || {
        let lent = fs.with_contiguous(f.ino(), 0, 512, &mut |bytes| {
            // SAFETY: nobody here opens a window of the region.
            let slice = unsafe { bytes.as_slice() };
            let first = slice[0];
            thread::yield_now();
            assert!(slice.iter().all(|b| *b == first));
            let mut copy = [0; 20];
            assert_eq!(bytes.copy_to(500, &mut copy), 12);
            assert_eq!(copy[..13], [[first; 12].as_slice(), &[0]].concat());
        });
        assert_eq!(lent.unwrap(), Some(512));
    });
}

#[test]
fn lookup_beside_changes_finds_whole_attributes() {
    let fs = mounted();
    let change = || {
        for _ in 0..ROUNDS / 2 {
            let made = fs.create(&CX, Ino::ROOT, b"a", 0o640).unwrap();
            fs.rename(&CX, Ino::ROOT, b"a", Ino::ROOT, b"b", Default::default())
                .unwrap();
            fs.unlink(Ino::ROOT, b"b").unwrap();
            // What had the number at hand meets what has it next.
            let dir = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap();
            fs.create(&CX, dir.ino, b"in", 0o600).unwrap();
            fs.unlink(dir.ino, b"in").unwrap();
            fs.rmdir(Ino::ROOT, b"d").unwrap();
            let _ = made;
        }
    };
    beside(change, || {
        for name in [b"a".as_slice(), b"b"] {
            match fs.lookup(Ino::ROOT, name) {
                Ok(attr) => {
                    assert_eq!((attr.perm, attr.size), (0o640, 0));
                    match fs.getattr(attr.ino) {
                        Ok(_) | Err(Error::Stale(_)) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
                Err(e) => assert!(matches!(e, Error::NotFound), "{e}"),
            }
        }
        assert_eq!(fs.getattr(Ino::ROOT).unwrap().perm, 0o755);
    });
}

#[test]
fn two_writers_of_directory_keep_all_entries() {
    let fs = mounted();
    let make = |first: u8| {
        for i in 0..ROUNDS.min(20) {
            fs.create(&CX, Ino::ROOT, &[b'a' + first, b'a' + i], 0o600)
                .unwrap();
        }
    };
    thread::scope(|s| {
        s.spawn(|| make(0));
        s.spawn(|| make(1));
    });
    for first in 0..2 {
        for i in 0..ROUNDS.min(20) {
            fs.lookup(Ino::ROOT, &[b'a' + first, b'a' + i]).unwrap();
        }
    }
    let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).unwrap();
    assert!(report.is_clean());
}

/// Miri has no second mapping of a file.
#[cfg(not(miri))]
#[test]
fn view_beside_file_io_does_not_race() {
    use pramfs::Access;
    use pramfs::pmem::RegionOptions;

    let region = RegionOptions::new().memfd("two threads", 4 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, options()).unwrap();
    let (ours, theirs) = (file(&fs, "/f"), file(&fs, "/f"));
    ours.set_len(8192).unwrap();
    let view = ours.map(0..8192, Access::Write).unwrap();
    let change = || {
        for i in 0..ROUNDS {
            theirs.write_at(&[i; 6000], 5).unwrap();
            view.write(3, &[i; 77]).unwrap();
            view.store::<u64>(64, 7).unwrap();
            view.fetch_add::<u64>(72, 1).unwrap();
            view.persist(0..100).unwrap();
        }
    };
    beside(change, || {
        let mut bytes = [0; 7000];
        ours.read_at(&mut bytes, 0).unwrap();
        view.read(1, &mut bytes[..300]).unwrap();
        view.load::<u64>(64).unwrap();
        // Shown by a view for writing, it is not lent.
        let lent = fs.with_contiguous(ours.ino(), 0, 4096, &mut |_| panic!("lent"));
        assert_eq!(lent.unwrap(), None);
    });
}

/// One thread is enough.
#[cfg_attr(miri, ignore)]
#[test]
fn excess_forget_keeps_handle_reference() {
    let fs = mounted();
    let f = file(&fs, "/f");
    f.write_at(&[5; 100], 0).unwrap();
    let held = fs.hold(f.ino());
    (0..2).for_each(|_| {
        fs.hold(f.ino()).into_count();
    });
    for _ in 0..5 {
        fs.release(f.ino(), 3);
        fs.forget(f.ino(), 3);
    }
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.sync().unwrap();
    let mut back = [0; 100];
    assert_eq!(f.read_at(&mut back, 0).unwrap(), 100);
    assert_eq!(back, [5; 100]);
    let ino = f.ino();
    drop(f);
    fs.release(ino, u64::MAX);
    assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
    drop(held);
    assert!(matches!(fs.getattr(ino), Err(Error::Stale(_))));
    // The next inode of that number is nobody's but its own.
    let next = file(&fs, "/next");
    fs.release(next.ino(), 1);
    fs.unlink(Ino::ROOT, b"next").unwrap();
    assert_eq!(next.metadata().unwrap().nlink(), 0);
}
