//! Protection against stray stores: threads of the process store at random places of a region
//! while others work in its file system.
//!
//! `tests/vm` runs this on a processor with protection keys.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pramfs::format::format;
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::{Protect, Region, RegionOptions, free_protection_keys};
use pramfs::{Access, FileSystem};
use pramfs_fsck::{CheckOptions, check_fs};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::random::Random;
use pramfs_tests::region::{quiet, repeatable};
use pramfs_tests::skip::{say, skipped};
use pramfs_tests::watchdog::Watchdog;
use pramfs_tests::wild::{self, Refused, SEGV_ACCERR, SEGV_PKUERR, mappings};

const LEN: u64 = 16 << 20;
/// Wild stores of a run.
const STORES: u64 = 100_000;
const STORERS: u64 = 2;
const WORKERS: u64 = 2;
const CTX: Credentials<'static> = Credentials::ROOT;

/// A region in memory that outlives its mappings.
struct Memory {
    fd: OwnedFd,
    name: String,
}

impl Memory {
    fn new(name: &str) -> Memory {
        let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(fd.try_clone().unwrap()).set_len(LEN).unwrap();
        Memory {
            fd,
            name: format!("memfd:{name}"),
        }
    }

    fn open(&self, protect: Protect) -> Region {
        let options = RegionOptions::new().protect(protect);
        let region = options.from_fd(self.fd.try_clone().unwrap(), &self.name);
        region.unwrap()
    }
}

/// Whether the processor has keys. Says why not.
fn has_keys(what: &str) -> bool {
    match free_protection_keys() {
        Ok(_) => true,
        Err(why) => {
            skipped(format_args!("{what} with protect=pkey: {why}"));
            false
        }
    }
}

/// What a worker has made: names and contents.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// Works in a directory of its own until the wild stores are over: creates, writes, appends,
/// renames, removes, and reads everything again. `turn` is held during each operation.
///
/// # Errors
/// What the file system says, or shows, that it should not.
fn work(
    fs: &Fs,
    dir: Ino,
    seed: u64,
    done: &AtomicBool,
    turn: &RwLock<()>,
) -> Result<Files, String> {
    let mut random = Random::new(seed);
    let mut files = Files::new();
    let mut next = 0;
    while !done.load(Ordering::Relaxed) || next < 50 {
        let _turn = turn.read().unwrap();
        let said = |e: pramfs::Error| e.to_string();
        let any = files.keys().nth(random.below(files.len() as u64) as usize);
        match (random.below(6), any.cloned()) {
            (0 | 1, _) | (_, None) if files.len() < 60 => {
                let name = format!("file-{next}").into_bytes();
                let mut bytes = vec![0; random.below(30_000) as usize];
                random.fill(&mut bytes);
                let ino = fs.create(&CTX, dir, &name, 0o644).map_err(said)?.ino;
                fs.write(&CTX, ino, 0, &bytes).map_err(said)?;
                files.insert(name, bytes);
                next += 1;
            }
            (2, Some(name)) => {
                let ino = fs.lookup(dir, &name).map_err(said)?.ino;
                let more = vec![next as u8; random.below(5000) as usize];
                fs.append(&CTX, ino, &more).map_err(said)?;
                files.get_mut(&name).unwrap().extend(more);
            }
            (3, Some(name)) => {
                let to = format!("moved-{next}").into_bytes();
                fs.rename(&CTX, dir, &name, dir, &to, Default::default())
                    .map_err(said)?;
                let bytes = files.remove(&name).unwrap();
                files.insert(to, bytes);
                next += 1;
            }
            (4, Some(name)) => {
                fs.unlink(dir, &name).map_err(said)?;
                files.remove(&name);
            }
            (_, Some(name)) => compare(fs, dir, &name, &files[&name])?,
            (_, None) => {}
        }
    }
    Ok(files)
}

fn compare(fs: &Fs, dir: Ino, name: &[u8], bytes: &[u8]) -> Result<(), String> {
    let said = |e: pramfs::Error| e.to_string();
    let ino = fs.lookup(dir, name).map_err(said)?.ino;
    let mut read = vec![0; bytes.len() + 1];
    let len = fs.read(ino, 0, &mut read).map_err(said)?;
    match read[..len] == *bytes {
        true => Ok(()),
        false => Err(format!("{} differs", name.escape_ascii())),
    }
}

/// Where and when threads store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// Anywhere, at any time.
    Anywhere,
    /// Through the mapping for loads at any time; through the one for stores while no
    /// operation runs.
    AroundWindows,
}

/// What became of a run.
#[derive(Debug, Default)]
struct Outcome {
    refused: u64,
    reached: u64,
    /// How the region or its files differ from what they should be.
    broken: Vec<String>,
}

/// Lets workers and wild stores run side by side, and checks what is left of the region.
fn run(name: &str, protect: Protect, aim: Aim) -> Outcome {
    let _dog = Watchdog::new("wild stores", std::time::Duration::from_secs(500));
    let seed = Random::seed_from_env("PRAMFS_WILD_SEED");
    let memory = Memory::new(name);
    let region = memory.open(protect);
    format(&region, &repeatable(4096)).unwrap();
    assert_eq!(region.info().protect, protect);
    let mapped = mappings(&memory.name);
    assert_eq!(mapped.len(), if protect == Protect::Off { 1 } else { 2 });
    // The mapping for stores is the one that a store goes through.
    let loads = region.raw_range(0, 8).unwrap().addr();
    let fs = Fs::open(region, quiet()).unwrap();
    let dirs: Vec<Ino> = (0..WORKERS)
        .map(|i| {
            let name = format!("worker-{i}");
            fs.mkdir(&CTX, Ino::ROOT, name.as_bytes(), 0o755)
                .unwrap()
                .ino
        })
        .collect();

    let (refused, reached) = (AtomicU64::new(0), AtomicU64::new(0));
    let (done, turn) = (AtomicBool::new(false), RwLock::new(()));
    let mut outcome = Outcome::default();
    let mut made = Vec::new();
    let storer = |nth: u64| {
        let mut random = Random::new(seed ^ nth);
        for _ in 0..STORES / STORERS {
            let range = &mapped[random.below(mapped.len() as u64) as usize];
            let alone = aim == Aim::AroundWindows && range.start != loads;
            let _turn = alone.then(|| turn.write().unwrap());
            let at = range.start + random.below(LEN / 8) as usize * 8;
            // SAFETY: the address lies in a mapping of the region, which holds no object of
            // the language.
            match unsafe { wild::store(at, random.word()) } {
                Ok(()) => reached.fetch_add(1, Ordering::Relaxed),
                Err(Refused { place, code }) => {
                    assert_eq!(place, at, "the place of a refused store");
                    let by_key = protect == Protect::Pkey && range.start != loads;
                    assert_eq!(code, if by_key { SEGV_PKUERR } else { SEGV_ACCERR });
                    refused.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    };
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|i| {
                let (fs, dir, done, turn) = (&fs, dirs[i as usize], &done, &turn);
                s.spawn(move || work(fs, dir, seed ^ (i << 8), done, turn))
            })
            .collect();
        let storer = &storer;
        let storers: Vec<_> = (0..STORERS).map(|i| s.spawn(move || storer(i))).collect();
        storers.into_iter().for_each(|s| s.join().unwrap());
        done.store(true, Ordering::Relaxed);
        for (i, worker) in workers.into_iter().enumerate() {
            match worker.join() {
                Ok(Ok(files)) => made.push((format!("worker-{i}"), files)),
                Ok(Err(e)) => outcome.broken.push(format!("worker {i}: {e}")),
                Err(_) => outcome.broken.push(format!("worker {i} has panicked")),
            }
        }
    });
    outcome.refused = refused.into_inner();
    outcome.reached = reached.into_inner();
    if let Err(e) = fs.close() {
        outcome.broken.push(format!("the end of the mount: {e}"));
    }

    // By another mount, without anything that was kept in memory.
    let fs = match Fs::open(memory.open(Protect::Off), quiet()) {
        Ok(fs) => fs,
        Err(e) => {
            outcome.broken.push(format!("the next mount: {e}"));
            return outcome;
        }
    };
    for (dir, files) in &made {
        let found = fs
            .lookup(Ino::ROOT, dir.as_bytes())
            .map_err(|e| e.to_string());
        for (name, bytes) in files {
            let same = found.as_ref().map_err(Clone::clone);
            if let Err(e) = same.and_then(|dir| compare(&fs, dir.ino, name, bytes)) {
                outcome.broken.push(format!("{dir}: {e}"));
            }
        }
    }
    match check_fs(fs, &CheckOptions::default()) {
        Ok((_, report)) if report.is_clean() => {}
        Ok((_, report)) => outcome.broken.push(format!("fsck: {report}")),
        Err(e) => outcome.broken.push(format!("fsck: {e}")),
    }
    outcome
}

fn stopped_all(outcome: &Outcome) {
    let Outcome {
        refused,
        reached,
        broken,
    } = outcome;
    assert_eq!((*refused, *reached), (STORES, 0));
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn pkey_stops_every_wild_store() {
    if !has_keys("wild stores") {
        return;
    }
    let outcome = run("pkey-wild", Protect::Pkey, Aim::Anywhere);
    stopped_all(&outcome);
    say(format_args!(
        "protect=pkey: {} wild stores, none has reached the region",
        outcome.refused
    ));
}

#[test]
fn mprotect_stops_wild_stores_outside_windows() {
    let outcome = run("mprotect-wild", Protect::Mprotect, Aim::AroundWindows);
    stopped_all(&outcome);
}

/// The control: without protection the same stores reach the region, and break it.
#[test]
fn wild_stores_break_unprotected_region() {
    let outcome = run("unprotected", Protect::Off, Aim::Anywhere);
    assert_eq!((outcome.refused, outcome.reached), (0, STORES));
    assert!(!outcome.broken.is_empty());
    println!(
        "{} findings, the first: {}",
        outcome.broken.len(),
        outcome.broken[0]
    );
}

/// A window with a key is open to its thread alone, and to no signal handler of that thread.
#[test]
fn window_of_pkey_is_open_to_its_code_alone() {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    static CODE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn stores(_: i32) {
        // SAFETY: a place of the region.
        let said = unsafe { wild::store(PLACE.load(Ordering::Relaxed) as usize, 1) };
        let code = said.map_or_else(|refused| refused.code as u64, |()| 0);
        CODE.store(code, Ordering::Relaxed);
    }
    if !has_keys("windows, handlers and jumps") {
        return;
    }
    // A thread that is older than the key.
    let (place_of, told) = std::sync::mpsc::channel::<usize>();
    let oldest = std::thread::spawn(move || {
        let at = told.recv().unwrap();
        // SAFETY: a place of the region, which is open meanwhile.
        (at, unsafe { wild::store(at, 1) })
    });
    let memory = Memory::new("pkey-window");
    let region = memory.open(Protect::Pkey);
    let loads = region.raw_range(0, 8).unwrap().addr();
    let all = mappings(&memory.name);
    let stores_at = all.iter().find(|range| range.start != loads).unwrap().start;
    PLACE.store(stores_at as u64 + 4096, Ordering::Relaxed);
    // SAFETY: here and below, a place of the region.
    let store = || unsafe { wild::store(stores_at + 8192, 1) };
    let by_key = Err(Refused {
        place: stores_at + 8192,
        code: SEGV_PKUERR,
    });

    assert_eq!(store(), by_key);
    let window = region.window();
    assert_eq!(store(), Ok(()), "this is what a window is for");
    place_of.send(stores_at + 8192).unwrap();
    let (place, said) = oldest.join().unwrap();
    let code = SEGV_PKUERR;
    assert_eq!(said, Err(Refused { place, code }));
    // A thread has the rights of the one that creates it: no operation creates one.
    let at = stores_at + 8192;
    // SAFETY: as above.
    let younger = std::thread::spawn(move || unsafe { wild::store(at, 1) });
    assert_eq!(younger.join().unwrap(), Ok(()));
    std::thread::scope(|s| {
        let (go, wait) = std::sync::mpsc::channel();
        drop(window);
        let older = s.spawn(move || {
            wait.recv().unwrap();
            // SAFETY: as above.
            unsafe { wild::store(stores_at + 8192, 1) }
        });
        let _window = region.window();
        go.send(()).unwrap();
        assert_eq!(older.join().unwrap(), by_key);
    });

    let window = region.window();
    wild::in_signal_handler(stores);
    assert_eq!(
        CODE.load(Ordering::Relaxed),
        SEGV_PKUERR as u64,
        "closed in the handler"
    );
    assert_eq!(store(), Ok(()), "open again after it");
    drop(window);
    assert_eq!(store(), by_key);

    let window = region.window();
    wild::jump_out_of_signal_handler();
    assert_eq!(store(), by_key, "closed after the jump");
    drop(window);
    assert_eq!(store(), by_key);
    let window = region.window();
    window.store_u64_unflushed(0, 7).unwrap();
    drop(window);
    assert_eq!(store(), by_key);
    assert_eq!(region.load_u64(0).unwrap(), 7);
}

/// A program stores to what it has mapped for writing, and nowhere else.
#[test]
fn view_for_writing_is_writable_for_its_range_only() {
    for way in [Protect::Mprotect, Protect::Auto] {
        let memory = Memory::new("view");
        let region = memory.open(way);
        format(&region, &repeatable(4096)).unwrap();
        let protected = region.info().protect != Protect::Off;
        if way == Protect::Auto && !protected {
            has_keys("views");
            continue;
        }
        // No timer that stores meanwhile.
        let fs = FileSystem::mount(region, quiet()).unwrap();
        let file = fs.create("/file").unwrap();
        file.append(&[1; 3 * 4096]).unwrap();
        let whole = mappings(&memory.name);
        let view = file.map(4096..8192, Access::Write).unwrap();
        view.write(0, &[2; 100]).unwrap();
        view.persist(0..100).unwrap();
        // SAFETY: a place of the region.
        unsafe { wild::store(view.as_ptr().addr() + 8, 0x0303_0303_0303_0303) }.unwrap();
        for range in &whole {
            let at = range.start + 8 * 4096;
            // SAFETY: as above.
            assert_eq!(unsafe { wild::store(at, 1) }.unwrap_err().place, at);
        }
        let mut bytes = vec![0; 3 * 4096];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert_eq!(
            (bytes[4095], bytes[4096], bytes[4096 + 8], bytes[4096 + 100]),
            (1, 2, 3, 1)
        );
        drop(view);
        drop(file);
        fs.unmount().unwrap();
    }
}
