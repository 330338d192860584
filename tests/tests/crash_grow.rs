//! A crash in a grow, at every fence, and in the recovery from it: the old size or the new one,
//! files as they were, and the next grow goes on.

use pramfs::inode::{Credentials, Fs, Ino};
use pramfs_fsck::{CheckOptions, Issue, check};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::media::superblock::COPY_OFFSET;
use pramfs_medium::media::{SuperStatic, probe_superblock};
use pramfs_medium::pmem::{RegionAccess, SimBackend};
use pramfs_tests::crash::images::{Limits, everywhere};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::recorded::{Recorded, STALE, options, recover};
use pramfs_tests::region::{formatted, mount, region_of, repeatable};
use pramfs_tests::tree::Tree;

const CX: Credentials<'_> = Credentials::new(0, 0);
const MIB: u64 = 1 << 20;

const LIMITS: Limits = Limits {
    lines: 3,
    pairs: 6,
    random: 4,
    torn: Torn::Edges,
};

const FEW: Limits = Limits {
    lines: 0,
    pairs: 0,
    random: 0,
    torn: Torn::Half,
};

/// A file system in the first part of a region.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    block_size: u32,
    from: u64,
    to: u64,
    bytes_per_inode: Option<u64>,
    /// A file has all free blocks.
    full: bool,
    /// Many fences and a large region: fewer images of each moment.
    large: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "the last group becomes longer",
        block_size: 4096,
        from: MIB,
        to: 2 * MIB,
        bytes_per_inode: None,
        full: false,
        large: false,
    },
    Case {
        name: "new groups in blocks of the tables",
        block_size: 512,
        from: MIB,
        to: 5 * MIB,
        bytes_per_inode: None,
        full: false,
        large: false,
    },
    // 16 descriptors in a block; 4096 inodes in a group.
    Case {
        name: "a table gets blocks and a level",
        block_size: 512,
        from: MIB,
        to: 18 * MIB,
        bytes_per_inode: Some(256),
        full: false,
        large: true,
    },
    // More blocks of tables than the reserve has.
    Case {
        name: "a full region grows in steps",
        block_size: 512,
        from: MIB,
        to: 34 * MIB,
        bytes_per_inode: Some(256),
        full: true,
        large: true,
    },
];

fn file(fs: &Fs, name: &str, len: usize) {
    let ino = fs
        .create(&CX, Ino::ROOT, name.as_bytes(), 0o600)
        .unwrap()
        .ino;
    let data: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
    assert_eq!(fs.write(&CX, ino, 0, &data).unwrap(), len);
}

/// Fills all free blocks.
fn fill(fs: &Fs) {
    let ino = fs.create(&CX, Ino::ROOT, b"ballast", 0o600).unwrap().ino;
    let mut at = 0;
    for piece in [64 << 10, 4096, 512] {
        while let Ok(n @ 1..) = fs.write(&CX, ino, at, &vec![1; piece]) {
            at += n as u64;
        }
    }
    assert!(fs.statfs().unwrap().available < 4);
}

fn start(case: &Case) -> Recorded {
    set_thread_lane(0);
    let sim = SimBackend::from_image(&vec![STALE; case.to as usize]).unwrap();
    let options = FormatOptions {
        lanes: Some(2),
        size: Some(case.from),
        bytes_per_inode: case.bytes_per_inode,
        ..repeatable(case.block_size)
    };
    format(&region_of(&sim), &options).unwrap();
    let rec = Recorded::from_image(&sim.image(), Rules::default()).unwrap();
    file(&rec.fs, "file", 3000);
    if case.full {
        fill(&rec.fs);
    }
    rec
}

fn tree(fs: &Fs) -> Tree {
    let tree = Tree::of(fs).unwrap();
    Tree {
        free: 0,
        free_inodes: 0,
        ..tree
    }
}

/// Blocks and inodes of the file system.
fn sizes(fs: &Fs) -> (u64, u64) {
    let stat = fs.statfs().unwrap();
    (stat.blocks, stat.inodes)
}

/// Mounts what a crash left, and returns its sizes. The files are as they were; with `again`, a
/// repeated grow reaches the new size, after which there is nothing to find.
fn judge(image: &[u8], before: &Tree, at: &str, again: bool) -> (u64, u64) {
    let sim = SimBackend::from_image(image).unwrap();
    let fs = mount(&sim, options(Rules::default())).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert!(fs.recovery().damage.is_empty(), "{at}: {:?}", fs.recovery());
    let found = tree(&fs);
    assert_eq!(before.differences(&found), "", "{at}");
    let size = sizes(&fs);
    fs.close().unwrap();
    let found = check(&region_of(&sim), &CheckOptions::default());
    assert!(found.is_clean(), "{at}: {found}");
    if !again {
        return size;
    }
    let fs = mount(&sim, options(Rules::default())).unwrap();
    fs.grow(None).unwrap_or_else(|e| panic!("{at}, again: {e}"));
    let block = u64::from(fs.statfs().unwrap().block_size);
    assert_eq!(sizes(&fs).0 * block, image.len() as u64, "{at}");
    file(&fs, "after", 100_000);
    fs.close().unwrap();
    let found = check(&region_of(&sim), &CheckOptions::default());
    assert!(found.is_clean(), "{at}, again: {found}");
    size
}

#[test]
fn crash_in_grow_leaves_old_or_new_size() {
    let only = std::env::var("CASE").unwrap_or_default();
    for case in CASES.iter().filter(|case| case.name.contains(&only)) {
        let mut rec = start(case);
        let (from, before, old) = (rec.now(), tree(&rec.fs), sizes(&rec.fs));
        let grown = rec.fs.grow(None).unwrap();
        assert_eq!(
            (grown.from, grown.to),
            (case.from, case.to),
            "{}",
            case.name
        );
        let new = sizes(&rec.fs);
        assert_eq!(before.differences(&tree(&rec.fs)), "", "{}", case.name);
        let events = rec.events()[from..].to_vec();
        let (mut found, mut images) = (Vec::new(), 0);
        let mut look = |moment: usize, image: &[u8]| {
            let at = format!("{}: crash at event {moment} of {}", case.name, events.len());
            // Of a large region, the use after a crash is looked at for some images only.
            let size = judge(image, &before, &at, !case.large || images % 16 == 0);
            assert!(
                size == new || moment < events.len(),
                "{at}: the grow has returned"
            );
            if !found.contains(&size) {
                found.push(size);
            }
            images += 1;
        };
        let limits = if case.large { FEW } else { LIMITS };
        everywhere(rec.at(from), &events, &limits, 1, &mut look);
        found.sort_unstable();
        println!("{:40} {images} images, sizes {found:?}", case.name);
        assert_eq!((found.first(), found.last()), (Some(&old), Some(&new)));
        // Steps only where the tables could not be made long enough.
        assert_eq!(found.len() > 2, case.full, "{}: {found:?}", case.name);
    }
}

/// The recovery from a crash in a grow is crashed as well. The copy is the new size, the first
/// page the old one, whole or torn.
#[test]
fn crash_in_recovery_of_grow_leaves_old_or_new_size() {
    let case = &CASES[1];
    let mut rec = start(case);
    let before = tree(&rec.fs);
    let old = rec.machine().least();
    rec.fs.grow(None).unwrap();
    let new = rec.machine().least();
    let first = old[..512].to_vec();
    let mut torn = new[..512].to_vec();
    torn[0x88..0x98].copy_from_slice(&old[0x88..0x98]);
    for (what, page, len) in [("whole", first, case.from), ("torn", torn, case.to)] {
        let mut image = new.clone();
        image[..512].copy_from_slice(&page);
        let mut rec = Recorded::from_image(&image, Rules::default()).unwrap();
        let size = sizes(&rec.fs);
        assert_eq!(size.0, len / u64::from(case.block_size), "{what}");
        let events = rec.events().to_vec();
        let images = everywhere(rec.at(0), &events, &LIMITS, 2, &mut |moment, image| {
            let at = format!("{what}: crash at event {moment} of the recovery");
            assert_eq!(judge(image, &before, &at, true), size, "{at}");
        });
        assert!(images > 0);
    }
}

/// What fsck finds between the two pages, mends by the first one.
#[test]
fn interrupted_grow_is_found_by_name_and_mended() {
    use pramfs_fsck::{Policy, RepairOptions, repair};
    let case = &CASES[1];
    let mut rec = start(case);
    let old = rec.machine().least();
    rec.fs.grow(None).unwrap();
    let Recorded { sim, fs, .. } = rec;
    fs.close().unwrap();
    let mut image = sim.image();
    image[..512].copy_from_slice(&old[..512]);
    let sim = SimBackend::from_image(&image).unwrap();
    let region = region_of(&sim);
    let info = probe_superblock(&region).unwrap();
    assert!(!info.copy_damaged && info.fixed.region_len == case.from);
    let report = check(&region, &CheckOptions::default());
    let found: Vec<_> = report.issues().collect();
    assert_eq!(found, [&Issue::GrowInterrupted], "{report}");
    let report = repair(&region, &RepairOptions::new(Policy::Preen)).unwrap();
    assert!(report.is_sound(), "{report}");
    assert!(check(&region, &CheckOptions::default()).is_clean());
    let copy: SuperStatic = region.read_pod(COPY_OFFSET).unwrap();
    assert_eq!(copy, info.fixed);
}

/// A copy that claims more than the region has is no copy: the first page is used, and without
/// it nothing is.
#[test]
fn forged_size_in_copy_is_refused() {
    use zerocopy::IntoBytes;
    let rec = start(&CASES[0]);
    let Recorded { sim, fs, .. } = rec;
    fs.close().unwrap();
    let mut image = sim.image();
    let copy: SuperStatic = region_of(&sim).read_pod(COPY_OFFSET).unwrap();
    let mut forged = copy.grown(1 << 40);
    forged.seal();
    image[COPY_OFFSET as usize..][..512].copy_from_slice(forged.as_bytes());
    let sim = SimBackend::from_image(&image).unwrap();
    let info = probe_superblock(&region_of(&sim)).unwrap();
    assert!(info.copy_damaged && info.fixed.region_len == CASES[0].from);
    let found = check(&region_of(&sim), &CheckOptions::default());
    let issues: Vec<_> = found.issues().collect();
    assert_eq!(issues, [&Issue::SuperblocksDiffer], "{found}");
    image[0] ^= 1;
    let refused = recover(&image).unwrap_err().to_string();
    assert!(refused.contains("cannot mount"), "{refused}");
}

/// Groups are formatted when they are used: what a grow writes are descriptors.
#[test]
fn grow_from_gib_to_tib_writes_tables_only() {
    let sim = formatted(1 << 30, &repeatable(4096)).unwrap();
    let fs = mount(&sim, options(Rules::default())).unwrap();
    let (before, start) = (sim.counters(), std::time::Instant::now());
    let grown = fs.grow(Some(1 << 40)).unwrap();
    let (took, did) = (start.elapsed(), sim.counters() - before);
    println!(
        "1 GiB to 1 TiB: {took:?}, {} bytes written, {} lines flushed, {} fences",
        did.bytes(),
        did.flushes,
        did.fences
    );
    assert_eq!(grown.to, 1 << 40);
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
    let groups = (1u64 << 40) / (128 << 20) + (1 << 29) / 32_768;
    let tables = groups * 32;
    assert!(
        did.bytes() > tables / 2 && did.bytes() < tables + (128 << 10),
        "{did:?}"
    );
    file(&fs, "after", 100_000);
    fs.close().unwrap();
}
