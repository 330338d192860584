//! An image of metadata has the damage of its original, and nothing that a person wrote.

use super::clean::quiet;
use super::each::CASES;
use super::plant::Plant;
use super::readable::bytes_of;
use super::sums::{flip, summed};
use crate::{Issue, Metadata, Policy, RepairOptions, Report, repair};
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, SimBackend};

/// A region with what an image has.
fn restored(image: &Metadata<'_>, len: u64) -> Region {
    let region = Region::new("restored", HeapBackend::boxed(len as usize));
    let size = 1 << image.fixed().block_size_log2;
    for run in image.runs() {
        let mut bytes = vec![0; ((run.end - run.start) * size) as usize];
        image.read(run.start, &mut bytes).unwrap();
        region
            .window()
            .store_unflushed(run.start * size, &bytes)
            .unwrap();
    }
    region
}

fn look(region: &Region) -> Report {
    repair(region, &RepairOptions::new(Policy::No)).unwrap()
}

/// Issues without the words that a scrambled image has in the place of others.
fn what(report: &Report) -> Vec<String> {
    let issue = |issue: &Issue| match issue {
        Issue::TreeLeaf { ino, block, .. } => format!("leaf {block} of {ino}"),
        other => format!("{} {:?} {:?}", other.code(), other.ino(), other.block()),
    };
    let mut all: Vec<_> = report.issues().map(issue).collect();
    all.sort();
    all
}

/// Defects that the restored image has in another form: see the module `metadata` and its
/// `scramble`.
fn is_known(code: &str, scramble: bool) -> bool {
    match code {
        // There is no file system to make an image of.
        "no-superblock" | "unknown-features" => true,
        // A block that is data to one owner is left out.
        "block-used-twice" => true,
        // The pages of another medium have not failed.
        "bad-block-unlisted" => true,
        "records-refused" | "live-records" => scramble,
        _ => false,
    }
}

#[test]
fn image_has_the_findings_of_each_defect() {
    let mut failed = Vec::new();
    for (number, (code, case)) in CASES.iter().enumerate() {
        let p = Plant::new();
        case(&p);
        let before = bytes_of(&p.region);
        let found = what(&look(&p.region));
        for scramble in [false, true] {
            if is_known(code, scramble) {
                continue;
            }
            let image = Metadata::of(&p.region, scramble).unwrap();
            let copy = restored(&image, p.region.len());
            let again = what(&look(&copy));
            if again != found {
                failed.push(format!(
                    "case {number}, {code}, scrambled {scramble}: {found:?} became {again:?}"
                ));
            }
        }
        assert!(
            bytes_of(&p.region) == before,
            "{code}: changed the original"
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Whether bytes are somewhere in a region.
fn has(region: &Region, what: &[u8]) -> bool {
    bytes_of(region).windows(what.len()).any(|at| at == what)
}

#[test]
fn image_has_no_file_data_and_scrambled_one_no_names() {
    let p = Plant::new();
    let written: &[&[u8]] = &[
        b"user.small",
        b"12345",
        b"to/where",
        &[b'l'; 40],
        b"file 17",
        &[6; 100],
    ];
    assert!(has(&p.region, &[0x77; 64]));
    let plain = restored(&Metadata::of(&p.region, false).unwrap(), p.region.len());
    assert!(!has(&plain, &[0x77; 64]) && !has(&plain, b"still here"));
    let scrambled = restored(&Metadata::of(&p.region, true).unwrap(), p.region.len());
    for text in written {
        assert!(
            has(&p.region, text) && has(&plain, text),
            "{}",
            text.escape_ascii()
        );
        assert!(!has(&scrambled, text), "{}", text.escape_ascii());
    }
    let fixed = probe_superblock(&scrambled).unwrap().fixed;
    assert_eq!(fixed.hash_seed, [0; 16]);
    assert!(look(&scrambled).is_sound() && look(&plain).is_sound());
}

#[test]
fn image_keeps_right_and_wrong_sums_of_data() {
    for wrong in [false, true] {
        let (region, _, at) = summed(4096);
        if wrong {
            flip(&region, at + 17);
        }
        let found = what(&look(&region));
        assert_eq!(found.is_empty(), !wrong);
        let image = Metadata::of(&region, false).unwrap();
        // Those of the superblocks: sums take no memory.
        assert_eq!(image.changed_pages(), 2);
        let copy = restored(&image, region.len());
        assert!(!has(&copy, &[0x77; 64]));
        assert_eq!(what(&look(&copy)), found);
    }
}

/// Of a crash after the record of an unlink, and before its homes: what the replay frees is in no
/// image.
#[test]
fn scrambled_image_after_crash_has_nothing_that_replay_frees() {
    let sim = SimBackend::new(4 << 20).unwrap();
    let region = || Region::new("test", Box::new(sim.clone()));
    format(&region(), &FormatOptions::default()).unwrap();
    let fs = Fs::open(region(), quiet()).unwrap();
    let (user, root) = (Credentials::ROOT, Ino::ROOT);
    let target = b"secret/".repeat(60);
    fs.symlink(&user, root, b"link", &target).unwrap();
    let before = sim.image();
    fs.unlink(root, b"link").unwrap();
    let after = sim.image();
    let geo = probe_superblock(&region()).unwrap().geometry();
    let journal = geo.journal_offset.0 as usize..(geo.journal_offset.0 + geo.journal_len) as usize;
    let mut crashed = before;
    crashed[journal.clone()].copy_from_slice(&after[journal]);
    let crashed = SimBackend::from_image(&crashed).unwrap();
    let crashed = Region::new("crashed", Box::new(crashed));
    assert!(has(&crashed, b"secret"));
    let image = Metadata::of(&crashed, true).unwrap();
    assert!(!has(&restored(&image, crashed.len()), b"secret"));
}

#[test]
fn image_is_not_repaired() {
    let p = Plant::new();
    let copy = restored(&Metadata::of(&p.region, false).unwrap(), p.region.len());
    for policy in [Policy::Preen, Policy::Yes] {
        let refused = repair(&copy, &RepairOptions::new(policy)).unwrap_err();
        assert!(refused.to_string().contains("is not repaired"), "{refused}");
    }
}
