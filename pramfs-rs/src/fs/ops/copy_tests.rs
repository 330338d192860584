//! Copies between two files and within one, compared with two plain vectors, at every
//! block size, on a region that was full of other bytes before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::credentials::{Credentials, Groups};
use crate::fs::Fs;
use crate::fs::ops::file_tests::{Rng, check_blocks, mount, new_file, truncate};
use pramfs_medium::error::Error;
use pramfs_medium::pmem::{HeapBackend, PmemBackend, SimBackend};
use pramfs_medium::types::{Fallocate, Ino, SetAttr};

/// Size up to which the files grow, bytes.
const MAX_LEN: u64 = 3 << 20;

struct Two {
    fs: Fs,
    ino: [Ino; 2],
    model: [Vec<u8>; 2],
    rng: Rng,
}

/// The number of copies by outcome.
#[derive(Debug, Default)]
struct Seen {
    complete: u32,
    short: u32,
    refused: u32,
}

impl Two {
    fn new(block_size: u32, len: usize) -> Two {
        let fs = mount(HeapBackend::boxed(len), block_size);
        let ino = [new_file(&fs, b"a"), new_file(&fs, b"b")];
        Two {
            fs,
            ino,
            model: Default::default(),
            rng: Rng(0x9e37 + u64::from(block_size)),
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = match self.rng.below(3) {
            0 => self.rng.below(MAX_LEN) & !0xfff,
            1 => self.rng.below(MAX_LEN) & !0x1f_ffff,
            _ => self.rng.below(MAX_LEN),
        };
        let bits = self.rng.below(20);
        (offset, 1 + self.rng.below(1 << bits))
    }

    fn put(&mut self, which: usize, at: u64, bytes: &[u8]) {
        let (at, map) = (at as usize, &mut self.model[which]);
        if map.len() < at + bytes.len() {
            map.resize(at + bytes.len(), 0);
        }
        map[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn change(&mut self) {
        let which = self.rng.below(2) as usize;
        let (offset, len) = self.range();
        match self.rng.below(5) {
            0 | 1 => {
                let record_id = self.rng.below(200) as u8;
                let bytes: Vec<u8> = (0..len).map(|i| record_id ^ (i % 31) as u8).collect();
                match self
                    .fs
                    .write(&Credentials::ROOT, self.ino[which], offset, &bytes)
                {
                    Ok(n) => self.put(which, offset, &bytes[..n]),
                    Err(Error::NoSpace(_)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            2 => {
                let hole = Fallocate::PunchHole;
                self.fs
                    .fallocate(&Credentials::ROOT, self.ino[which], hole, offset, len)
                    .unwrap();
                let end = (offset + len).min(self.model[which].len() as u64);
                if offset < end {
                    self.model[which][offset as usize..end as usize].fill(0);
                }
            }
            3 => {
                let keep = Fallocate::Allocate { keep_size: true };
                match self
                    .fs
                    .fallocate(&Credentials::ROOT, self.ino[which], keep, offset, len)
                {
                    Ok(()) | Err(Error::NoSpace(_)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            _ => {
                let size = self.rng.below(MAX_LEN);
                truncate(&self.fs, self.ino[which], size).unwrap();
                self.model[which].resize(size as usize, 0);
            }
        }
    }

    fn copy(&mut self, seen: &mut Seen) {
        let (from, to) = (self.rng.below(2) as usize, self.rng.below(2) as usize);
        let ((at, len), (target, _)) = (self.range(), self.range());
        let ends = ((self.ino[from], at), (self.ino[to], target));
        let size = self.model[from].len() as u64;
        let want = len.min(size.saturating_sub(at));
        let overlap = from == to && at < target + want && target < at + want;
        match self.fs.copy_range(&Credentials::ROOT, ends.0, ends.1, len) {
            Ok(done) => {
                assert!(done <= want && !(overlap && want > 0));
                if want == 0 {
                    return;
                }
                let bytes = self.model[from].get(at as usize..).unwrap_or(&[]).to_vec();
                self.put(to, target, &bytes[..done as usize]);
                *(if done == want {
                    &mut seen.complete
                } else {
                    &mut seen.short
                }) += 1;
            }
            Err(Error::Invalid(_)) => assert!(overlap && want > 0),
            Err(Error::NoSpace(_)) => seen.refused += 1,
            Err(e) => panic!("{e}"),
        }
    }

    fn compare(&self) {
        for (ino, model) in self.ino.iter().zip(&self.model) {
            let mut back = vec![0x77; model.len() + 1];
            let n = self.fs.read(*ino, 0, &mut back).unwrap();
            assert_eq!(n, model.len());
            let differs = back.iter().zip(model).position(|(a, b)| a != b);
            assert_eq!(differs, None, "of {n} bytes");
            check_blocks(&self.fs, *ino);
        }
    }

    fn run(&mut self, rounds: u32) -> Seen {
        let mut seen = Seen::default();
        for _ in 0..rounds {
            self.change();
            self.copy(&mut seen);
            self.compare();
        }
        seen
    }
}

#[test]
fn copy_matches_vec_at_every_block_size() {
    for block_size in [512, 1024, 2048, 4096] {
        let mut two = Two::new(block_size, 32 << 20);
        let seen = two.run(300);
        assert!(
            seen.complete > 100 && seen.short + seen.refused == 0,
            "{seen:?}"
        );
    }
}

#[test]
fn copy_in_nearly_full_region_is_short_or_fails() {
    let mut two = Two::new(4096, 2 << 20);
    let seen = two.run(600);
    assert!(
        seen.complete > 50 && seen.short > 0 && seen.refused > 5,
        "{seen:?}"
    );
}

/// A copy allocates the whole range, including holes.
#[test]
fn copied_hole_allocates_blocks_and_stores_little() {
    let sim = SimBackend::new(64 << 20).unwrap();
    let handle = sim.clone();
    let fs = mount(Box::new(sim) as Box<dyn PmemBackend>, 4096);
    let (a, b) = (new_file(&fs, b"a"), new_file(&fs, b"b"));
    truncate(&fs, a, 16 << 20).unwrap();
    fs.write(&Credentials::ROOT, a, 8 << 20, &[9; 4096])
        .unwrap();
    fs.write(&Credentials::ROOT, b, 100, &[7; 4096]).unwrap();
    let before = handle.counters();
    assert_eq!(
        fs.copy_range(&Credentials::ROOT, (a, 0), (b, 0), u64::MAX)
            .unwrap(),
        16 << 20
    );
    let cost = handle.counters() - before;
    let mut back = vec![1; 16 << 20];
    assert_eq!(fs.read(b, 0, &mut back).unwrap(), back.len());
    let data = (8 << 20)..(8 << 20) + 4096;
    assert!(
        back.iter()
            .enumerate()
            .all(|(i, x)| *x == 9 * u8::from(data.contains(&i)))
    );
    assert!(fs.getattr(b).unwrap().blocks * 512 >= 16 << 20);
    // A 2 MiB leaf that gets data becomes written as a whole.
    assert!(cost.bytes() < 3 << 20, "{cost:?}");
}

/// Sets the mode and, if given, the owner of a file, as root.
fn set_mode(fs: &Fs, file: Ino, uid: Option<u32>, perm: Option<u32>) {
    let set = SetAttr {
        uid,
        perm,
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, file, &set).unwrap();
}

/// Aborts the process if the test has not set `done` after ten minutes: a lookup of a group
/// under a lock would wait for ever.
fn abort_unless(done: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(600));
        if !done.load(Ordering::Relaxed) {
            eprintln!("the engine asks for a group under a lock that the answer needs");
            std::process::abort();
        }
    });
}

/// An access ACL with rwx for the owner, r-x for the group and for others, in the format of
/// the attribute.
const ACL: [u8; 28] = [
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255,
    255, 255, 255,
];

/// Checks a change of a file by a caller outside the group. With sgid, the engine asks for
/// the group once and clears sgid. Without sgid it does not ask.
fn check_change(fs: &Fs, file: Ino, asked: &AtomicU32, change: impl Fn() -> crate::Result<()>) {
    set_mode(fs, file, None, Some(0o2755));
    asked.store(0, Ordering::Relaxed);
    change().unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(fs.getattr(file).unwrap().perm & 0o2000, 0);
    set_mode(fs, file, None, Some(0o755));
    let again = change();
    assert!(matches!(again, Ok(()) | Err(Error::Exists)), "{again:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 1, "there is no sgid to lose");
    truncate(fs, file, 1).unwrap();
}

/// The engine asks for the groups of a caller without locks: the answer may need the files
/// of the operation. A change by a caller outside the group clears sgid.
#[test]
fn group_lookup_runs_unlocked() {
    let fs = mount(HeapBackend::boxed(4 << 20), 4096);
    let (f, g) = (new_file(&fs, b"f"), new_file(&fs, b"g"));
    fs.write(&Credentials::ROOT, g, 0, b"from").unwrap();
    let asked = AtomicU32::new(0);
    let done = Arc::new(AtomicBool::new(false));
    abort_unless(Arc::clone(&done));
    let in_group = |group: u32| {
        asked.fetch_add(1, Ordering::Relaxed);
        // These take the locks of both files: they would wait for ever if the thread that
        // asks held one of them.
        std::thread::scope(|s| {
            s.spawn(|| {
                set_mode(&fs, f, Some(7), Some(0o2755));
                set_mode(&fs, g, Some(7), None);
            });
        });
        assert_eq!(group, 0);
        false
    };
    let caller = Credentials::new(1, 1).with_groups(Groups::Ask(&in_group));
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    let acl = b"system.posix_acl_access";
    let set = crate::XattrMode::Set;
    type Change<'a> = &'a dyn Fn() -> crate::Result<()>;
    let changes: [Change<'_>; 6] = [
        &|| fs.write(&caller, f, 0, b"x").map(drop),
        &|| fs.append_chunk(&caller, f, 1, b"x"),
        &|| fs.fallocate(&caller, f, Fallocate::PunchHole, 0, 1),
        &|| fs.setattr(&caller, f, &size).map(drop),
        &|| fs.setxattr(&caller, f, acl, &ACL, set),
        &|| fs.copy_range(&caller, (g, 0), (f, 0), 4).map(drop),
    ];
    for (i, change) in changes.iter().enumerate() {
        println!("change {i}");
        check_change(&fs, f, &asked, change);
    }
    done.store(true, Ordering::Relaxed);
}
