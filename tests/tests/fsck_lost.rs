//! Damage that hides data: metadata pages and lines that read as zeros, and pairs of
//! damaged places of which one is needed to repair the other.
//!
//! The contents of each file identify it, so the test sees what a repair loses: every
//! file reads as before, or its loss is reported by path. Nothing is freed without a
//! message.

use std::collections::{BTreeMap, BTreeSet};

use pramfs::{
    XattrMode,
    inode::{Bno, Credentials, Fs, Ino},
};
use pramfs_fsck::{CheckOptions, Loss, Lost, Policy, RepairOptions, Report, check, repair};
use pramfs_medium::media::pointer::{Ptr, PtrAt};
use pramfs_medium::media::superblock::{BLOCK_GROUPS_OFFSET, INODE_TABLE_OFFSET};
use pramfs_medium::media::{DiskInode, probe_superblock};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::random::Random;
use pramfs_tests::readable::{Readable, Tree, bytes_of, copy_of, tree, worse};
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};

fn run(region: &pramfs::pmem::Region, policy: Policy) -> Report {
    repair(region, &RepairOptions::new(policy)).unwrap()
}

/// An image, its contents, and its blocks by use.
struct Intact {
    image: Vec<u8>,
    tree: Tree,
    block: usize,
    /// Blocks with file data.
    data: BTreeSet<usize>,
    /// Bytes of the journal.
    journal: std::ops::Range<usize>,
}

/// Files of several tree heights, a sparse one, directories with an index block, links,
/// attributes in line and in blocks.
fn varied(block: u32, len: usize) -> Intact {
    let sim = formatted(len, &repeatable(block)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let root = Ino::ROOT;
    let mark = |name: &str, len: usize| {
        let line = format!("DATA of {name}; ");
        line.bytes().cycle().take(len).collect::<Vec<u8>>()
    };
    let step = block as usize;
    for (name, blocks) in [("one", 1), ("few", 9), ("many", 90), ("more", 70)] {
        let ino = fs.create(&ctx, root, name.as_bytes(), 0o644).unwrap().ino;
        fs.write(&Credentials::ROOT, ino, 0, &mark(name, blocks * step))
            .unwrap();
    }
    let sparse = fs.create(&ctx, root, b"sparse", 0o644).unwrap().ino;
    for at in [0u64, 30, 31, 64, 100, 200] {
        let at = at * u64::from(block);
        fs.write(&Credentials::ROOT, sparse, at, &mark("sparse", step))
            .unwrap();
    }
    let dir = fs.mkdir(&ctx, root, b"dir", 0o755).unwrap().ino;
    for i in 0..150usize {
        let name = format!("a file with a name {i}");
        let ino = fs.create(&ctx, dir, name.as_bytes(), 0o644).unwrap().ino;
        if i % 10 == 0 {
            fs.write(&Credentials::ROOT, ino, 0, &mark(&name, 700))
                .unwrap();
        }
    }
    let sub = fs.mkdir(&ctx, dir, b"sub", 0o755).unwrap().ino;
    let ino = fs.create(&ctx, sub, b"below", 0o644).unwrap().ino;
    fs.write(&Credentials::ROOT, ino, 0, &mark("below", 40))
        .unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        ino,
        b"user.large",
        &mark("attribute", 9000),
        XattrMode::Set,
    )
    .unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        sub,
        b"user.small",
        b"small",
        XattrMode::Set,
    )
    .unwrap();
    fs.symlink(&ctx, root, b"link", &[b'x'; 300]).unwrap();
    fs.close().unwrap();
    let image = sim.image();
    let tree = tree(&image).unwrap();
    let region = copy_of(&image);
    let geo = probe_superblock(&region).unwrap().geometry();
    let is_data = |b: &usize| {
        image[b * step..(b + 1) * step]
            .windows(8)
            .any(|w| w == b"DATA of ")
    };
    let data = (0..image.len() / step).filter(is_data).collect();
    assert!(check(&region, &CheckOptions::default()).is_clean());
    Intact {
        image,
        tree,
        block: step,
        data,
        journal: geo.journal_offset.0 as usize..(geo.journal_offset.0 + geo.journal_len) as usize,
    }
}

/// Whether a report names the loss of a path or of a directory above it, or the move of
/// the inode to `lost+found`.
fn told(report: &Report, path: &[u8], ino: u64, now: &Tree) -> bool {
    let above = |lost: &[u8]| path.strip_prefix(lost).is_some_and(|r| r.starts_with(b"/"));
    let whole = |what: &Lost| matches!(what, Lost::Names { .. } | Lost::Name | Lost::File);
    let moved =
        |(p, seen): (&Vec<u8>, &Readable)| p.starts_with(b"/lost+found/") && seen.ino == ino;
    let lost = |l: &Loss| {
        let lost = l.path.as_deref();
        lost.is_some_and(|lost| path == lost || lost == b"/" || whole(&l.what) && above(lost))
    };
    report.lost.iter().any(lost) || now.iter().any(moved)
}

/// Losses by a repair that the report does not mention.
fn silent(intact: &Intact, report: &Report, after: &[u8]) -> Vec<String> {
    let Some(now) = tree(after) else {
        return vec!["it cannot be mounted".into()];
    };
    let mut out = Vec::new();
    for path in intact.tree.keys() {
        let one: Tree = BTreeMap::from([(path.clone(), intact.tree[path].clone())]);
        let bad = worse(&one, &now);
        if !bad.is_empty() && !told(report, path, intact.tree[path].ino, &now) {
            out.extend(bad);
        }
    }
    out
}

/// Repairs a damaged image in both modes. Returns the errors.
fn judged(intact: &Intact, bad: &[u8]) -> Vec<String> {
    let mut wrong = Vec::new();
    // Preen frees no data, and loses no readable name.
    let region = copy_of(bad);
    let before = tree(bad).unwrap_or_default();
    let preen = run(&region, Policy::Preen);
    let after = bytes_of(&region);
    let lost = worse(&before, &tree(&after).unwrap_or_default());
    wrong.extend(
        lost.first()
            .map(|l| format!("-p: {l} ({} such): {preen}", lost.len())),
    );
    if !preen.lost.is_empty() {
        wrong.push(format!("-p has lost {:?}", preen.lost));
    }
    for image in [bad, &after] {
        let region = copy_of(image);
        let report = run(&region, Policy::Yes);
        let repaired = bytes_of(&region);
        if !report.complete {
            if repaired != image {
                wrong.push("given up, and changed".into());
            }
            continue;
        }
        let again = check(&region, &CheckOptions::default());
        if !report.is_sound() || !again.is_clean() {
            wrong.push(format!("left:\n{report}\nfound again:\n{again}"));
        }
        let silent = silent(intact, &report, &repaired);
        if let Some(first) = silent.first() {
            let lost: Vec<_> = report.lost.iter().map(|l| l.to_string()).collect();
            let said: String = format!("{lost:?}\n{report}").chars().take(3000).collect();
            let n = silent.len();
            wrong.push(format!(
                "-y: {first} ({n} such) and nothing says so: {said}"
            ));
        }
    }
    wrong
}

fn finish(cases: usize, failed: Vec<String>) {
    println!("{cases} images");
    let few = &failed[..failed.len().min(8)];
    assert!(
        failed.is_empty(),
        "{} of {cases}:\n{}",
        failed.len(),
        few.join("\n\n")
    );
}

#[test]
fn zeroed_metadata_is_never_lost_silently() {
    let (mut cases, mut failed) = (0, Vec::new());
    for (block, len) in [(512, 1 << 20), (4096, 4 << 20)] {
        let intact = varied(block, len);
        let mut units = Vec::new();
        for b in 0..intact.image.len() / intact.block {
            if intact.data.contains(&b) {
                continue;
            }
            units.push((b * intact.block, intact.block));
            // Lines of metadata, journal excluded.
            if !intact.journal.contains(&(b * intact.block)) {
                units.extend(
                    (0..intact.block)
                        .step_by(64)
                        .map(|at| (b * intact.block + at, 64)),
                );
            }
        }
        units.retain(|(at, len)| intact.image[*at..at + len].iter().any(|b| *b != 0));
        // Every block, and a fixed selection of the lines.
        let all = std::env::var_os("PRAMFS_FSCK").is_some();
        for (n, (at, len)) in units.into_iter().enumerate() {
            if len == 64 && n % 5 != 0 && !all {
                continue;
            }
            cases += 1;
            let mut bad = intact.image.clone();
            bad[at..at + len].fill(0);
            let wrong = judged(&intact, &bad);
            if !wrong.is_empty() {
                failed.push(format!(
                    "blocks of {block}, {len} bytes at {at:#x}: {}",
                    wrong.join("\n")
                ));
            }
        }
    }
    assert!(cases > 500, "{cases}");
    finish(cases, failed);
}

#[test]
fn two_damaged_places_are_repaired_in_one_run() {
    let (mut cases, mut failed) = (0, Vec::new());
    for (block, len) in [(512, 1 << 20), (4096, 4 << 20)] {
        let intact = varied(block, len);
        let mut places: Vec<usize> = (0x1000..intact.image.len())
            .filter(|at| !intact.journal.contains(at))
            .filter(|at| intact.image[*at] != 0 && !intact.data.contains(&(at / intact.block)))
            .collect();
        places.extend(0x400..0x700);
        for round in 0..300 {
            let mut random = Random::new(u64::from(block) << 32 | round);
            let mut bad = intact.image.clone();
            let mut what = Vec::new();
            for _ in 0..2 {
                let at = places[random.below(places.len() as u64) as usize];
                match random.below(3) {
                    0 | 1 => bad[at] ^= 1 << random.below(8),
                    _ => bad[at / 64 * 64..at / 64 * 64 + 64].fill(0),
                }
                what.push(format!("{at:#x}"));
            }
            cases += 1;
            let wrong = judged(&intact, &bad);
            if !wrong.is_empty() {
                failed.push(format!(
                    "blocks of {block}, round {round}, {what:?}: {}",
                    wrong.join("\n")
                ));
            }
        }
    }
    finish(cases, failed);
}

/// Two exchanged pages.
#[test]
fn swapped_pages_are_never_lost_silently() {
    let (mut cases, mut failed) = (0, Vec::new());
    let intact = varied(4096, 4 << 20);
    let used: Vec<usize> = (1..intact.image.len() / 4096)
        .filter(|b| !intact.journal.contains(&(b * 4096)))
        .filter(|b| {
            intact.image[b * 4096..(b + 1) * 4096]
                .iter()
                .any(|b| *b != 0)
        })
        .filter(|b| !intact.data.contains(b))
        .collect();
    for round in 0..150 {
        let mut random = Random::new(round);
        let pick = |r: &mut Random| used[r.below(used.len() as u64) as usize];
        let (a, b) = (pick(&mut random), pick(&mut random));
        let mut bad = intact.image.clone();
        bad[a * 4096..(a + 1) * 4096].copy_from_slice(&intact.image[b * 4096..(b + 1) * 4096]);
        bad[b * 4096..(b + 1) * 4096].copy_from_slice(&intact.image[a * 4096..(a + 1) * 4096]);
        cases += 1;
        let wrong = judged(&intact, &bad);
        if !wrong.is_empty() {
            failed.push(format!("pages {a} and {b}: {}", wrong.join("\n")));
        }
    }
    finish(cases, failed);
}

/// Damages a byte of the pointer to the block bitmap and one of the inode table's map.
/// Each is repaired without loss, and so are both in one run.
#[test]
fn two_damaged_bytes_are_repaired_in_one_run() {
    let intact = varied(4096, 4 << 20);
    let image = &intact.image;
    let region = copy_of(image);
    let geo = probe_superblock(&region).unwrap().geometry();
    let map = |at: u64| {
        let d: DiskInode = region.read_pod(at).unwrap();
        (Ptr(d.root), u32::from(d.height))
    };
    let (descs, 0) = map(BLOCK_GROUPS_OFFSET) else {
        panic!("the descriptors take more than one block")
    };
    let (inodes, 1) = map(INODE_TABLE_OFFSET) else {
        panic!("the inode table has another height")
    };
    let at = |ptr: Ptr| geo.offset(ptr.block()).0 as usize;
    let bitmap: Vec<_> = (at(descs)..at(descs) + 8).collect();
    let used = |at: &usize| image[*at] != 0;
    let table: Vec<_> = (at(inodes)..at(inodes) + 4096).filter(used).collect();
    let table: Vec<_> = table.into_iter().step_by(5).take(12).collect();
    assert!(table.len() >= 4, "{table:?}");
    for b in &bitmap {
        for t in &table {
            let mut bad = image.clone();
            bad[*b] ^= 0x55;
            bad[*t] ^= 0x55;
            let region = copy_of(&bad);
            let report = run(&region, Policy::Yes);
            let again = check(&region, &CheckOptions::default());
            assert!(
                report.is_sound() && again.is_clean(),
                "{report}\nagain: {again}"
            );
            let now = tree(&bytes_of(&region)).unwrap();
            assert_eq!(worse(&intact.tree, &now), [""; 0], "{report}");
            assert_eq!(report.lost, [], "{report}");
        }
    }
}

/// Record numbers near their maximum: a check reports it; a repair restarts them above
/// the generation of every inode; writing works.
#[test]
fn used_up_record_numbers_are_reported_and_restarted() {
    use pramfs_fsck::{Done, Issue};
    use pramfs_medium::media::checksum::{SEALED_BITS, seal};
    let intact = varied(4096, 4 << 20);
    for newest in [
        (1u64 << SEALED_BITS) - 1,
        (1 << SEALED_BITS) - 5,
        1 << (SEALED_BITS - 1),
    ] {
        let region = copy_of(&intact.image);
        let geo = probe_superblock(&region).unwrap().geometry();
        for page in [0, geo.copy_offset.0] {
            let word = seal(geo.seed, newest).to_le_bytes();
            region
                .window()
                .store_unflushed(page + 0x210, &word)
                .unwrap();
        }
        // Every change fails, and an unmount leaves no smaller number behind.
        let sim = pramfs_medium::pmem::SimBackend::from_image(&bytes_of(&region)).unwrap();
        let fs = mount(&sim, quiet()).unwrap();
        let full = newest + 100 > 1 << SEALED_BITS;
        for i in 0..200 * usize::from(full) {
            let _ = fs.create(
                &Credentials::ROOT,
                Ino::ROOT,
                format!("{i}").as_bytes(),
                0o644,
            );
        }
        let _ = fs.close();
        let left = check(&region_of(&sim), &CheckOptions::default());
        assert!(left.issues().any(|i| i.code() == "lsns-used-up"), "{left}");
        // Records of the last changes are replayed first.
        let report = run(&region_of(&sim), Policy::Preen);
        assert!(report.is_sound(), "{report}");
        assert!(check(&region_of(&sim), &CheckOptions::default()).is_clean());
        let looked = run(&region, Policy::No);
        assert!(
            looked
                .issues()
                .any(|i| matches!(i, Issue::LsnsUsedUp { .. })),
            "{looked}"
        );
        let report = run(&region, Policy::Preen);
        let done: Vec<_> = report.findings.iter().filter_map(|f| f.done).collect();
        assert!(done.contains(&Done::Renumbered), "{report}");
        assert!(check(&region, &CheckOptions::default()).is_clean());
        let image = bytes_of(&region);
        let fs = Fs::open(copy_of(&image), quiet()).unwrap();
        let ctx = Credentials::ROOT;
        let old = fs.lookup(Ino::ROOT, b"one").unwrap().generation;
        let new = fs.create(&ctx, Ino::ROOT, b"new", 0o644).unwrap();
        assert!(new.generation > old && new.generation < 1 << 40);
        assert_eq!(worse(&intact.tree, &tree(&image).unwrap()), [""; 0]);
    }
}

#[test]
fn every_loss_is_named_by_path() {
    let intact = varied(512, 1 << 20);
    let region = copy_of(&intact.image);
    let fs = Fs::open(copy_of(&intact.image), quiet()).unwrap();
    let ino = fs.lookup(Ino::ROOT, b"few").unwrap().ino;
    drop(fs);
    // Random bytes overwrite its inode.
    let step = 256;
    let at = (0..intact.image.len() / step)
        .map(|i| i * step)
        .find(|at| intact.image[at + 0x80..at + 0x88] == ino.0.to_le_bytes() && *at >= 0x1000)
        .unwrap();
    region
        .window()
        .store_unflushed(at as u64, &[0x5a; 256])
        .unwrap();
    let report = run(&region, Policy::Yes);
    let lost: Vec<_> = report.lost.iter().map(|l| l.to_string()).collect();
    assert!(
        lost.iter().any(|l| l == "/few: the file is lost"),
        "{lost:?}"
    );
    // Its nine blocks are kept, and the pointer block too, since its contents may be
    // data.
    let bytes = kept_bytes(region, &report);
    assert_eq!(bytes.len(), 10 * 512);
    let whole: Vec<u8> = b"DATA of few; "
        .iter()
        .copied()
        .cycle()
        .take(9 * 512)
        .collect();
    assert!(bytes.windows(9 * 512).any(|b| b == whole));
}

/// The bytes of the one file that a repair moved to `lost+found`.
fn kept_bytes(region: pramfs::pmem::Region, report: &Report) -> Vec<u8> {
    let kept: Vec<_> = report
        .lost
        .iter()
        .filter(|l| matches!(l.what, Lost::Kept { .. }))
        .collect();
    let [kept] = kept[..] else {
        panic!("{:?}", report.lost)
    };
    let path = kept.path.clone().expect("a path");
    let fs = Fs::open(region, quiet()).unwrap();
    let dir = fs.lookup(Ino::ROOT, b"lost+found").unwrap().ino;
    let name = path.strip_prefix(b"/lost+found/").unwrap();
    let file = fs.lookup(dir, name).unwrap();
    let mut bytes = vec![0; file.size as usize];
    assert_eq!(fs.read(file.ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Location of an inode.
fn home(image: &[u8], ino: Ino) -> usize {
    let here = |at: &usize| image[at + 0x80..at + 0x88] == ino.0.to_le_bytes();
    let mut all = (0x1000..image.len() - 256).step_by(256);
    all.find(here).expect("the inode")
}

/// An image with one file of these bytes, and the target of its root pointer.
fn with_file(block: u32, len: usize, bytes: &[u8]) -> (Vec<u8>, Ino, usize) {
    let sim = formatted(len, &repeatable(block)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ino = fs
        .create(&Credentials::ROOT, Ino::ROOT, b"ids", 0o644)
        .unwrap()
        .ino;
    assert_eq!(
        fs.write(&Credentials::ROOT, ino, 0, bytes).unwrap(),
        bytes.len()
    );
    fs.close().unwrap();
    let image = sim.image();
    let d: DiskInode = copy_of(&image).read_pod(home(&image, ino) as u64).unwrap();
    let root = Ptr(d.root).block().0 as usize * block as usize;
    (image, ino, root)
}

/// Numbers below the number of blocks look like pointers without a check.
#[test]
fn data_resembling_pointers_is_kept() {
    let numbers: Vec<u8> = (0..40 * 512u64 / 8)
        .flat_map(|n| (n % 1000 + 1).to_le_bytes())
        .collect();
    let (image, _, root) = with_file(512, 1 << 20, &numbers);
    let mut bad = image;
    bad[root + 64..root + 128].fill(0);
    let region = copy_of(&bad);
    let report = run(&region, Policy::Yes);
    assert!(report.is_sound(), "{report}");
    assert!(
        !report
            .lost
            .iter()
            .any(|l| matches!(l.what, Lost::Freed { .. })),
        "{:?}",
        report.lost
    );
    let kept = kept_bytes(region, &report);
    assert_eq!(kept, numbers[8 * 512..16 * 512]);
}

/// A pointer block of the file, by the slots that lead to it.
fn table(image: &[u8], block: usize, mut at: usize, slots: &[usize]) -> usize {
    for slot in slots {
        let word = image[at + slot * 8..at + slot * 8 + 8].try_into().unwrap();
        at = Ptr(u64::from_le_bytes(word)).block().0 as usize * block;
    }
    at
}

/// Each block of 512 bytes contains its index in the file.
fn numbered(blocks: usize) -> Vec<u8> {
    let line = |n: usize| format!("DATA of block {n:08}; ").into_bytes();
    (0..blocks)
        .flat_map(|n| line(n).into_iter().cycle().take(512))
        .collect()
}

/// The bytes of the file of [`with_file`].
fn read_back(region: pramfs::pmem::Region, ino: Ino) -> Vec<u8> {
    let fs = Fs::open(region, quiet()).unwrap();
    let size = fs.getattr(ino).unwrap().size;
    let mut bytes = vec![0; size as usize];
    let mut done = 0;
    while done < bytes.len() {
        // Lost ranges may give an error.
        let n = fs.read(ino, done as u64, &mut bytes[done..done + 512]);
        done += n.unwrap_or(512).max(1);
    }
    bytes
}

/// The search for the contents of one empty pointer block refills another, which is then
/// no longer empty.
#[test]
fn two_lost_pointer_blocks_of_file_are_found() {
    let bytes = numbered(4096 + 200);
    let (image, ino, root) = with_file(512, 8 << 20, &bytes);
    let mut bad = image.clone();
    // A block with pointers to data, then one with pointers to such blocks.
    for slots in [&[0, 5][..], &[1]] {
        let at = table(&image, 512, root, slots);
        bad[at..at + 512].fill(0);
    }
    let region = copy_of(&bad);
    let report = run(&region, Policy::Yes);
    assert!(report.is_sound(), "{report}");
    let lost: Vec<_> = report.lost.iter().map(|l| l.what.clone()).collect();
    let kept = kept_bytes(copy_of(&bytes_of(&region)), &report);
    assert_eq!(kept, bytes[320 * 512..384 * 512], "{lost:?}");
    let now = read_back(region, ino);
    assert!(now[..320 * 512] == bytes[..320 * 512], "{lost:?}");
    assert!(now[384 * 512..] == bytes[384 * 512..], "{lost:?}");
}

/// The last pointer block of a file may have only one or two entries.
#[test]
fn pointer_block_with_few_entries_is_found() {
    for few in 1..4 {
        let bytes = numbered(64 * 3 + few);
        let (image, ino, root) = with_file(512, 1 << 20, &bytes);
        let mut bad = image;
        bad[root..root + 64].fill(0);
        let region = copy_of(&bad);
        let report = run(&region, Policy::Yes);
        assert!(report.is_sound(), "{report}");
        assert_eq!(report.lost, [], "{report}");
        assert!(read_back(region, ino) == bytes, "{few}");
    }
}

/// An uncorrectable pointer becomes a hole, and the pointer block behind it is found
/// later.
#[test]
fn refound_pointer_block_is_not_reported_as_lost() {
    let bytes = numbered(300);
    let (image, ino, root) = with_file(512, 1 << 20, &bytes);
    let mut bad = image.clone();
    bad[root + 16] ^= 0x81;
    bad[root + 22] ^= 0x42;
    let region = copy_of(&bad);
    let report = run(&region, Policy::Yes);
    assert!(report.is_sound(), "{report}");
    assert_eq!(report.lost, [], "{report}");
    assert!(read_back(region, ino) == bytes);
    // If the pointer block is zeroed too, the range is lost, and reported once.
    let at = table(&image, 512, root, &[2]);
    bad[at..at + 512].fill(0);
    let region = copy_of(&bad);
    let report = run(&region, Policy::Yes);
    assert!(report.is_sound(), "{report}");
    let lost: Vec<_> = report.lost.iter().map(|l| l.what.clone()).collect();
    let (at, len) = (128 * 512, 64 * 512);
    assert!(lost.contains(&Lost::Bytes { at, len }), "{lost:?}");
    let blocks = |l: &Lost| matches!(l, Lost::Blocks { .. });
    assert!(!lost.iter().any(blocks), "{lost:?}");
}

/// Data blocks of a user's file imitate pointer blocks of that file, with pointers to
/// present or former blocks of other files.
#[test]
fn forged_pointer_block_gets_no_foreign_data() {
    let sim = formatted(2 << 20, &repeatable(512)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let secret: Vec<u8> = b"SECRET; ".iter().copied().cycle().take(64 * 512).collect();
    let create = |name: &[u8], bytes: &[u8]| {
        let ino = fs.create(&ctx, Ino::ROOT, name, 0o600).unwrap().ino;
        assert_eq!(
            fs.write(&Credentials::ROOT, ino, 0, bytes).unwrap(),
            bytes.len()
        );
        ino
    };
    let theirs = create(b"theirs", &secret);
    let removed = create(b"removed", &secret);
    let own = numbered(200);
    let ino = create(b"ids", &own);
    let other = create(b"other", &own[..64 * 512]);
    fs.sync().unwrap();
    let full = sim.image();
    fs.unlink(Ino::ROOT, b"removed").unwrap();
    fs.close().unwrap();
    let image = sim.image();
    let root_of = |image: &[u8], ino: Ino| {
        let d: DiskInode = copy_of(image).read_pod(home(image, ino) as u64).unwrap();
        Ptr(d.root).block().0 as usize * 512
    };
    let geo = probe_superblock(&copy_of(&image)).unwrap().geometry();
    let blocks_of = |image: &[u8], ino: Ino| {
        let root = root_of(image, ino);
        let word = |i: usize| u64::from_le_bytes(image[root + i * 8..][..8].try_into().unwrap());
        (0..64).map(|i| Ptr(word(i)).block().0).collect::<Vec<_>>()
    };
    let root = root_of(&image, ino);
    for (from, blocks) in [
        ("another's", blocks_of(&image, theirs)),
        ("free", blocks_of(&full, removed)),
    ] {
        // The pointer block itself has lost its owner, and is reported.
        let mut bad = image.clone();
        let at = table(&image, 512, root, &[1]);
        for (i, block) in (0..).zip(blocks) {
            let place = PtrAt {
                fs_seed: geo.seed,
                ino,
                level: 0,
                index: 64 + i,
            };
            let word = Ptr::new(Bno(block), 0, place).0;
            bad[at + i as usize * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bad[root + 8..root + 16].fill(0);
        let region = copy_of(&bad);
        let report = run(&region, Policy::Yes);
        assert!(report.is_sound(), "{from}: {report}");
        let after = bytes_of(&region);
        let read = read_back(copy_of(&after), ino);
        assert!(
            !read.windows(8).any(|w| w == b"SECRET; "),
            "{from}: {report}"
        );
        assert!(read_back(copy_of(&after), theirs) == secret, "{from}");
        assert!(read_back(region, other) == own[..64 * 512], "{from}");
    }
}
