//! Runs the corpus of the fuzz targets, and changes of it, without a fuzzer.
//!
//! Each file of `fuzz/corpus/` runs through the fuzz target of its folder, and so do some
//! thousand random changes of these files, the same in every run. `PRAMFS_FUZZ_CASES`
//! sets their number, `PRAMFS_FUZZ_SEED` their seed. A failing case is saved in the
//! temporary folder; the message contains its path. `fuzz/README.md` describes how to
//! minimize it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::exercise::bases;
use pramfs_tests::exercise::image::Outcome;
use pramfs_tests::exercise::input::Case;
use pramfs_tests::exercise::repair::{Repair, repair};
use pramfs_tests::exercise::{control, fuse, image, ops};
use pramfs_tests::random::Random;
use pramfs_tests::watchdog::Watchdog;

/// Time limit of one case.
const TIMEOUT: Duration = Duration::from_secs(10);

type Corpus = Vec<(PathBuf, Vec<u8>)>;

fn corpus(target: &str) -> Corpus {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let dir = dir.join(target);
    let list = std::fs::read_dir(&dir).expect("the corpus is part of the repository");
    let mut all: Corpus = list
        .map(|e| {
            let path = e.expect("the folder can be read").path();
            let bytes = std::fs::read(&path).expect("it is a file");
            (path, bytes)
        })
        .collect();
    all.sort();
    assert!(all.len() >= 10, "{} holds no corpus", dir.display());
    all
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |v| v.parse().expect("a number"))
}

/// Runs a case that must not end in a panic and must not take long.
fn run<T>(name: &str, bytes: &[u8], f: impl Fn(&[u8]) -> T) -> T {
    // Saved before the run, since a case that hangs ends the process.
    let left = std::env::temp_dir().join("pramfs-fuzz-case");
    std::fs::write(&left, bytes).expect("the temporary folder can be written to");
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| f(bytes)));
    let took = start.elapsed();
    match result {
        Ok(value) if took < TIMEOUT => value,
        other => {
            let why = if other.is_ok() {
                "took"
            } else {
                "ended in a panic after"
            };
            panic!("{name} {why} {took:?}; the case: {}", left.display());
        }
    }
}

/// Changes a case as a fuzzer does: bytes, whole parts, and the end of another case.
fn mutate(random: &mut Random, all: &Corpus) -> Vec<u8> {
    let any = |random: &mut Random| random.below(all.len() as u64) as usize;
    let mut bytes = all[any(random)].1.clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let word = random.word().to_le_bytes();
        let n = random.below(8) as usize + 1;
        match random.below(6) {
            0 | 1 if at < bytes.len() => bytes[at] = word[0],
            2 if at < bytes.len() => bytes[at] ^= 1 << (word[0] % 8),
            3 => bytes
                .splice(at..at, word[..n].iter().copied())
                .for_each(drop),
            4 => bytes.drain(at..(at + n).min(bytes.len())).for_each(drop),
            _ => {
                let other = &all[any(random)].1;
                let from = random.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

/// Aims most changes of an image at one that can be mounted, past its checksums.
fn aim(random: &mut Random, bytes: &mut [u8]) {
    if let [base, repair, ..] = bytes
        && !random.one_in(4)
    {
        *base = random.below(bases::ALL.len() as u64) as u8 + 1;
        *repair = match random.below(4) {
            0 => random.word() as u8,
            _ => Repair::ALL.0,
        };
    }
}

fn run_all<T: Ord + std::fmt::Debug>(
    target: &str,
    cases: u64,
    aim: impl Fn(&mut Random, &mut [u8]),
    f: impl Fn(&[u8]) -> T,
) {
    let dog = Watchdog::new(target, Duration::from_secs(60));
    let all = corpus(target);
    let mut outcomes: BTreeMap<T, u32> = BTreeMap::new();
    for (path, bytes) in &all {
        *outcomes
            .entry(run(&path.display().to_string(), bytes, &f))
            .or_default() += 1;
        dog.touch();
    }
    println!("{target}: {} files: {outcomes:?}", all.len());
    let seed = number("PRAMFS_FUZZ_SEED", 1);
    let mut random = Random::new(seed);
    outcomes.clear();
    for i in 0..number("PRAMFS_FUZZ_CASES", cases) {
        let mut bytes = mutate(&mut random, &all);
        aim(&mut random, &mut bytes);
        let name = format!("{target}, change {i} of seed {seed}");
        *outcomes.entry(run(&name, &bytes, &f)).or_default() += 1;
        dog.touch();
    }
    println!("{target}: changes: {outcomes:?}");
}

#[test]
fn fuzz_corpus_images_cause_no_panic() {
    run_all("image", 3000, aim, |bytes| match image(bytes) {
        Outcome::Refused => "refused",
        Outcome::Damaged => "damaged",
        Outcome::Clean => "clean",
    });
}

#[test]
fn fuzz_corpus_operations_match_model() {
    run_all("ops", 250, |_, _| (), ops);
}

#[test]
fn fuzz_corpus_messages_cause_no_panic() {
    run_all("control", 100_000, |_, _| (), |bytes| control(bytes) > 0);
}

#[test]
fn fuzz_corpus_fuse_requests_cause_no_panic() {
    run_all("fuse_request", 20_000, |_, _| (), fuse);
}

/// The repair restores valid checksums: a clean image stays unchanged, and one with only
/// damaged checksums becomes clean.
#[test]
fn repair_keeps_clean_images_and_fixes_checksums() {
    for base in &bases::ALL {
        use pramfs::pmem::{HeapBackend, Region};
        let image = base.image();
        let after = |bytes: &[u8]| {
            let region = Region::new(base.name, HeapBackend::boxed(bytes.len()));
            let stored = region.window().store_unflushed(0, bytes);
            stored.expect("it fits");
            repair(&region, Repair::ALL);
            let mut out = vec![0; bytes.len()];
            region.read(0, &mut out).expect("it is as long");
            out
        };
        let differs = |a: &[u8]| (0..a.len()).find(|i| a[*i] != image[*i]);
        assert_eq!(differs(&after(image)), None, "{}: first byte", base.name);
        // CRC of the static part, CRC of the inode of the inode table, check of its root,
        // seal of the checkpoint.
        let mut bytes = image.to_vec();
        for page in [0, 0x10000] {
            for at in [0x1fd, 0x401, 0x447, 0x217] {
                bytes[page + at] ^= 0x5a;
            }
        }
        assert_eq!(differs(&after(&bytes)), None, "{}: first byte", base.name);
    }
}

#[test]
fn every_byte_string_is_valid_fuzz_input() {
    let mut random = Random::new(3);
    for len in 0..300 {
        let mut bytes = vec![0; len];
        random.fill(&mut bytes);
        let case = Case::decode(&bytes);
        assert!((128 << 10..=8 << 20).contains(&case.bytes.len()));
    }
}
