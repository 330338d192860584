//! Superblocks that are truncated, empty, flipped, random, contradictory, or from another
//! version. Each is rejected with a reason, or the copy is used. None causes a panic, a
//! hang, or use of more memory than the region has.

use std::time::Duration;

use crate::bad_support::image::{End, Image, image};
use crate::bad_support::model::CX;
use crate::bad_support::{region_with, steady};
use pramfs::{
    Error, MountOptions,
    inode::{Fs, Ino},
};
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::superblock::{COPY_OFFSET, PAGE};
use pramfs_medium::media::{SuperStatic, probe_superblock};
use pramfs_tests::random::Random;
use pramfs_tests::watchdog::Watchdog;

const STATIC: usize = SuperStatic::SIZE;
const COPY: usize = COPY_OFFSET as usize;

fn clean_image() -> Image {
    image(4096, End::Clean).expect("the image is made")
}

fn open(bytes: &[u8]) -> Result<Fs, Error> {
    Fs::open(region_with(bytes), steady())
}

/// The rejection of an image, which must come from the mount.
fn refusal(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(_) => panic!("it was mounted"),
        Err(e @ Error::NotMountable(_)) => {
            assert_eq!(e.errno(), libc::EINVAL);
            e.to_string()
        }
        Err(e) => panic!("refused for another reason: {e}"),
    }
}

/// Changes the static part in one page or both, with a valid CRC.
fn edit(bytes: &mut [u8], pages: &[usize], change: impl Fn(&mut [u8])) {
    for &page in pages {
        let part = &mut bytes[page..page + STATIC];
        change(part);
        let sum = crc(0, &part[..STATIC - 4]);
        part[STATIC - 4..].copy_from_slice(&sum.to_le_bytes());
    }
}

const BOTH: [usize; 2] = [0, COPY];

/// The copy is stored first. So a crash leaves the new bit there alone, or the old one.
#[test]
fn crash_in_change_of_lease_feature_is_finished_by_mount() {
    use pramfs_fsck::{Issue, Policy, RepairOptions, check, repair};
    let clean = clean_image().bytes;
    for (offset, bit) in [(0x18, 1), (0x20, 1 << 4)] {
        for page in BOTH {
            let mut bytes = clean.clone();
            edit(&mut bytes, &[page], |part| part[offset] |= bit);
            let at = format!("bit {bit:#x} of {offset:#x} in the page at {page}");
            let region = region_with(&bytes);
            let info = probe_superblock(&region).unwrap();
            assert!(!info.copy_damaged && !info.from_copy, "{at}");
            let report = check(&region, &Default::default());
            let issues: Vec<_> = report.issues().collect();
            assert_eq!(issues, [&Issue::LabelsDiffer], "{at}: {report}");
            let report = repair(&region, &RepairOptions::new(Policy::Preen)).unwrap();
            assert!(report.is_sound(), "{at}: {report}");
            let repaired = check(&region, &Default::default());
            assert!(repaired.is_clean(), "{at}: {repaired}");

            let fs = open(&bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            let recovery = fs.recovery();
            assert!(!recovery.copy_damaged && !recovery.used_copy, "{at}");
            assert!(recovery.damage.is_empty(), "{at}: {recovery:?}");
            let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).unwrap();
            assert!(report.is_clean(), "{at}: {report}");
        }
        // The page that mounts use is torn, and the copy has the new bit.
        let mut bytes = clean.clone();
        edit(&mut bytes, &[COPY], |part| part[offset] |= bit);
        bytes[offset] |= bit;
        let fs = open(&bytes).unwrap();
        let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn truncated_region_of_any_length_is_rejected() {
    let image = clean_image();
    let full = image.bytes.len();
    let lengths = (1..full).step_by(1021).chain([
        8,
        511,
        512,
        4095,
        4096,
        COPY,
        COPY + 511,
        COPY + 4096,
        full - 4096,
        full - 1,
    ]);
    for len in lengths {
        let why = refusal(&image.bytes[..len]);
        assert!(
            why.contains(&len.to_string()) && why.contains("smallest"),
            "{len} bytes: {why}"
        );
    }
    // A larger file system, truncated to a length that a small one would have.
    let sim = pramfs_tests::region::formatted(1 << 20, &pramfs_tests::region::repeatable(4096))
        .expect("it is formatted");
    for len in [256 << 10, 300 << 10, (1 << 20) - 4096, (1 << 20) - 1] {
        let why = refusal(&sim.image()[..len]);
        assert!(
            why.contains("truncated") && why.contains("1048576") && why.contains(&len.to_string()),
            "{len} bytes: {why}"
        );
    }
}

#[test]
fn zeroed_superblocks_fall_back_or_are_rejected() {
    let image = clean_image();
    let mut bytes = image.bytes.clone();
    bytes[..PAGE as usize].fill(0);
    let fs = open(&bytes).expect("the copy serves");
    assert!(fs.recovery().used_copy && fs.recovery().damage.iter().any(|d| d.contains("copy")));
    image
        .model
        .compare(&fs, &crate::bad_support::anatomy::Reach::Nothing)
        .expect("nothing is lost");
    drop(fs);

    bytes[COPY..COPY + PAGE as usize].fill(0);
    let why = refusal(&bytes);
    assert!(
        why.contains("no pramfs superblock") && why.contains("mkfs.pramfs"),
        "{why}"
    );

    let mut bytes = image.bytes;
    bytes[COPY..COPY + PAGE as usize].fill(0);
    assert!(
        !open(&bytes)
            .expect("the first page serves")
            .recovery()
            .used_copy
    );
}

#[test]
fn damaged_superblock_is_reported() {
    let mut bytes = clean_image().bytes;
    for page in BOTH {
        bytes[page + 0x90] ^= 4;
    }
    let why = refusal(&bytes);
    assert!(why.contains("checksum") && why.contains("backup"), "{why}");
}

#[test]
fn unknown_versions_and_features_are_named() {
    let image = clean_image();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = image.bytes.clone();
        edit(&mut bytes, &BOTH, |s| {
            s[at..at + value.len()].copy_from_slice(value)
        });
        bytes
    };
    let why = refusal(&with(8, &7u32.to_le_bytes()));
    assert!(
        why.contains("version 7") && why.contains("version 1"),
        "{why}"
    );

    // incompat: rejected, also for reading.
    let foreign = with(0x20, &(1u64 | 1 << 2 | 1 << 40).to_le_bytes());
    let why = refusal(&foreign);
    assert!(
        why.contains("members, bit 40") && why.contains("newer pramfs"),
        "{why}"
    );
    let read_only = MountOptions {
        read_only: true,
        ..steady()
    };
    let e = Fs::open(region_with(&foreign), read_only.clone()).expect_err("refused");
    assert!(e.to_string().contains("bit 40"), "{e}");

    // ro_compat: rejected for writing only.
    let foreign = with(0x18, &(1u64 << 2 | 1 << 63).to_le_bytes());
    let why = refusal(&foreign);
    assert!(
        why.contains("quota, bit 63") && why.contains("-o ro"),
        "{why}"
    );
    let fs = Fs::open(region_with(&foreign), read_only).expect("it can be read");
    image
        .model
        .compare(&fs, &crate::bad_support::anatomy::Reach::Nothing)
        .expect("all of it");
    let e = fs
        .create(&CX, Ino::ROOT, b"x", 0o600)
        .expect_err("it is read-only");
    assert_eq!(e.errno(), libc::EROFS);
    drop(fs);

    // compat: ignored.
    let foreign = with(0x10, &u64::MAX.to_le_bytes());
    let fs = open(&foreign).expect("it can be written");
    fs.create(&CX, Ino::ROOT, b"x", 0o600)
        .expect("it can be written");
}

/// Mounts an image that may be nonsense, and uses it briefly. The mount may fail, and
/// operations may report damage.
fn try_to_use(bytes: &[u8]) -> bool {
    let region = region_with(bytes);
    let _ = probe_superblock(&region);
    match Fs::open(region, steady()) {
        Ok(fs) => {
            let _ = fs.statfs();
            let _ = fs.lookup(Ino::ROOT, b"keep");
            if let Ok(new) = fs.create(&CX, Ino::ROOT, b"new", 0o600) {
                let _ = fs.write(&CX, new.ino, 0, &[7; 5000]);
                let _ = fs.unlink(Ino::ROOT, b"new");
            }
            let _ = fs.close();
            true
        }
        Err(Error::NotMountable(_) | Error::Corrupt { .. }) => false,
        Err(e) => panic!("refused for a reason that is none: {e}"),
    }
}

#[test]
fn superblock_fields_at_limits_with_valid_checksum() {
    let image = clean_image();
    let dog = Watchdog::new("limits of superblock fields", Duration::from_secs(60));
    let (mut mounted, mut refused) = (0, 0);
    for at in (0..STATIC - 4).step_by(4) {
        let old = u32::from_le_bytes(image.bytes[at..at + 4].try_into().expect("4 bytes"));
        let mut values = vec![0, 1, 7, 9, 12, 4095, 4096, u32::MAX, u32::MAX - 1, 1 << 31];
        values.extend([
            old.wrapping_add(1),
            old.wrapping_sub(1),
            old ^ 1 << 16,
            old << 1,
        ]);
        for value in values {
            for pages in [&BOTH[..], &BOTH[..1]] {
                let mut bytes = image.bytes.clone();
                edit(&mut bytes, pages, |s| {
                    s[at..at + 4].copy_from_slice(&value.to_le_bytes())
                });
                if try_to_use(&bytes) {
                    mounted += 1;
                } else {
                    refused += 1;
                }
                dog.touch();
            }
        }
    }
    println!("{mounted} mounted, {refused} refused");
    assert!(mounted > 100 && refused > 100);
}

#[test]
fn random_superblocks_cause_no_panic() {
    let image = clean_image();
    let mut random = Random::new(Random::seed_from_env("PRAMFS_BAD_SEED"));
    let dog = Watchdog::new("random superblocks", Duration::from_secs(60));
    for i in 0..2000 {
        let mut bytes = image.bytes.clone();
        match i % 4 {
            // Noise, without and with a magic and a CRC.
            0 => random.fill(&mut bytes[..PAGE as usize]),
            1 => {
                random.fill(&mut bytes[8..PAGE as usize]);
                random.fill(&mut bytes[COPY + 8..COPY + PAGE as usize]);
                edit(&mut bytes, &BOTH, |s| {
                    s[8..12].copy_from_slice(&[1, 0, 0, 0])
                });
            }
            // A few fields of a good one.
            2 => {
                let mut field = || (random.below(0x38) as usize + 0x22, random.word());
                let fields = [field(), field()];
                edit(&mut bytes, &BOTH, |s| {
                    for (at, word) in fields {
                        s[at * 4..at * 4 + 8].copy_from_slice(&word.to_le_bytes());
                    }
                });
            }
            // Everything after the static part.
            _ => {
                random.fill(&mut bytes[STATIC..PAGE as usize]);
                random.fill(&mut bytes[COPY + STATIC..COPY + PAGE as usize]);
            }
        }
        try_to_use(&bytes);
        dog.touch();
    }
}

#[test]
fn random_regions_are_rejected() {
    let mut random = Random::new(Random::seed_from_env("PRAMFS_BAD_SEED"));
    for _ in 0..50 {
        let mut bytes = vec![0; 256 << 10];
        random.fill(&mut bytes);
        assert!(refusal(&bytes).contains("no pramfs superblock"));
    }
}
