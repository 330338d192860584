//! Plants one defect of each kind, and repairs it. Afterwards a check finds
//! nothing, and everything that could be read before reads the same.

use super::clean::quiet;
use super::each::CASES;
use super::plant::Plant;
use super::readable::{bytes_of, copy_of, grow, tree, worse};
use crate::{Outcome, Policy, RepairOptions, Report, check, repair};
use pramfs::inode::Credentials;
use pramfs::inode::Fs;
use pramfs_medium::media::checksum::seal;
use pramfs_medium::media::retired::RetiredCopy;
use pramfs_medium::pmem::{Region, RegionAccess};

pub fn run(region: &Region, policy: Policy) -> Report {
    repair(region, &RepairOptions::new(policy)).unwrap()
}

/// Findings that no repair can fix.
const FATAL: &[&str] = &["no-superblock", "unknown-features"];

/// Whether the repair of a defect is expected to lose this.
fn expected(code: &str, what: &str) -> bool {
    match code {
        // One of two names is removed.
        "directory-names" => what.starts_with("/link"),
        // An invalid target is readable before the repair.
        "bad-target" => what == "/short is gone" || what == "/long is gone",
        // A malformed ACL is removed.
        "acl-damaged" => what == "/sparse has lost attributes",
        // The pipe had a size.
        "inode-field" => what == "/pipe is another file",
        _ => false,
    }
}

#[test]
fn every_defect_is_repaired_without_other_loss() {
    let mut failed = Vec::new();
    for (number, (code, case)) in CASES.iter().enumerate() {
        let name = format!("case {number}, {code}");
        let p = Plant::new();
        let issues = case(&p);
        let image = bytes_of(&p.region);
        let mut before = tree(&image).unwrap_or_default();

        let looked = run(&p.region, Policy::No);
        assert!(bytes_of(&p.region) == image, "{name}: -n changed bytes");
        let report = run(&p.region, Policy::Yes);
        if FATAL.contains(code) {
            assert!(!report.complete, "{name}: {report}");
            assert!(bytes_of(&p.region) == image, "{name}: changed though fatal");
            continue;
        }
        // A check and a repair find the same, except what the replay of the journal
        // resolves.
        let found: Vec<_> = looked.issues().cloned().collect();
        if *code != "live-records" && found != issues {
            failed.push(format!("{name}: found {looked}"));
        }
        let again = check(&p.region, &Default::default());
        if !report.is_sound() || !again.is_clean() {
            failed.push(format!("{name}:\n{report}\nand again:\n{again}"));
            continue;
        }
        if report.fixed().count() == 0 && *code != "live-records" && *code != "clean" {
            failed.push(format!("{name}: nothing was repaired"));
        }
        let image = bytes_of(&p.region);
        match tree(&image) {
            None => failed.push(format!("{name}: it cannot be mounted")),
            Some(after) => {
                if code.starts_with("append-") {
                    grow(&mut before, &after, &[p.file.0]);
                }
                let worse = worse(&before, &after);
                let worse: Vec<_> = worse.iter().filter(|w| !expected(code, w)).collect();
                if !worse.is_empty() {
                    failed.push(format!("{name}: {worse:?}\n{report}"));
                }
            }
        }
        // Use the file system: it stays clean.
        let fs = Fs::open(copy_of(&image), quiet()).unwrap();
        let ctx = pramfs::inode::Credentials::ROOT;
        let new = fs
            .create(&ctx, pramfs_medium::types::Ino::ROOT, b"new", 0o644)
            .unwrap()
            .ino;
        fs.write(&Credentials::ROOT, new, 0, &[1; 100_000]).unwrap();
        let (_, report) = crate::check_fs(fs, &Default::default()).unwrap();
        if !report.is_clean() {
            failed.push(format!("{name}, used: {report}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn preen_repairs_only_safe_findings() {
    for (code, case) in CASES {
        let p = Plant::new();
        case(&p);
        let image = bytes_of(&p.region);
        let mut before = tree(&image).unwrap_or_default();
        let report = run(&p.region, Policy::Preen);
        for f in &report.findings {
            let fixed = f.outcome == Outcome::Fixed;
            assert!(!fixed || f.issue.is_safe(), "{code}: {report}");
        }
        let after = tree(&bytes_of(&p.region)).unwrap_or_default();
        if code.starts_with("append-") {
            grow(&mut before, &after, &[p.file.0]);
        }
        assert_eq!(worse(&before, &after), [""; 0], "{code}: {report}");
        if report.findings.iter().all(|f| f.issue.is_safe()) && !FATAL.contains(code) {
            assert!(report.is_sound(), "{code}: {report}");
            assert!(check(&p.region, &Default::default()).is_clean(), "{code}");
        }
    }
}

#[test]
fn damage_left_keeps_file_system_marked_unclean() {
    let p = Plant::new();
    p.edit(pramfs_medium::types::Ino::ROOT, |d| d.nlink += 1);
    p.flip(p.pointer_of(p.file, 200).0 + 1, 0x20);
    p.dynamic(&p.pages(), |d| {
        d.state = pramfs_medium::media::superblock::STATE_ACTIVE;
        (d.first_error.errno, d.first_error.count) = (117, 1);
        (d.last_error.errno, d.last_error.count) = (5, 3);
    });
    let report = run(&p.region, Policy::Preen);
    let left: Vec<_> = report.left().map(|f| f.issue.code()).collect();
    assert_eq!(
        left,
        ["not-unmounted", "errors-recorded", "map-pointer"],
        "{report}"
    );
    assert!(run(&p.region, Policy::Yes).is_sound());
    assert!(check(&p.region, &Default::default()).is_clean());
}

#[test]
fn declined_findings_stay_and_others_are_repaired() {
    use crate::{Answer, Issue};
    use std::sync::Arc;
    let p = Plant::new();
    p.edit(p.file, |d| d.nlink = 3);
    p.flip(p.pointer_of(p.file, 200).0 + 1, 0x20);
    p.flip(0x60, 1);
    let image = bytes_of(&p.region);
    let ask = |cancel: bool| {
        Policy::Ask(Arc::new(move |f: &crate::Finding| match f.issue {
            Issue::MapPointer { .. } => Answer::No,
            Issue::LinkCount { .. } if cancel => Answer::Cancel,
            _ => Answer::Yes,
        }))
    };
    let report = run(&p.region, ask(true));
    assert!(report.cancelled && report.stored == 0 && bytes_of(&p.region) == image);
    let report = run(&p.region, ask(false));
    let outcomes: Vec<_> = report
        .findings
        .iter()
        .map(|f| (f.issue.code(), f.outcome))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("superblock-damaged", Outcome::Fixed),
            ("map-pointer", Outcome::Declined),
            ("link-count", Outcome::Fixed),
        ],
        "{report}"
    );
    let left = check(&p.region, &Default::default());
    assert_eq!(
        left.issues().map(|i| i.code()).collect::<Vec<_>>(),
        ["map-pointer"]
    );
    let paths: Vec<_> = report.findings.iter().map(|f| f.path.is_some()).collect();
    assert_eq!(paths, [false, true, true]);
}

#[test]
fn without_checkpoints_nothing_is_replayed() {
    let p = Plant::new();
    p.dynamic(&p.pages(), |d| d.checkpoint ^= 1);
    let image = bytes_of(&p.region);
    assert!(tree(&image).is_none(), "it can be mounted");
    for policy in [Policy::No, Policy::Preen] {
        assert!(!run(&p.region, policy).is_sound());
        assert!(bytes_of(&p.region) == image);
    }
    let report = run(&p.region, Policy::Yes);
    let codes: Vec<_> = report.fixed().map(|f| f.issue.code()).collect();
    assert_eq!(codes, ["checkpoint-damaged"; 2], "{report}");
    assert!(check(&p.region, &Default::default()).is_clean());
    assert!(tree(&bytes_of(&p.region)).is_some_and(|t| t.len() > 300));
}

/// It is unknown which records of the lane are live. Regression: such a file
/// system could not be mounted, and no repair completed.
#[test]
fn lane_without_retired_words_is_not_replayed() {
    let p = Plant::new();
    p.dynamic(&p.pages(), |d| d.checkpoint = seal(p.geo.seed, 1));
    let image = bytes_of(&p.region);
    let used = |lane: &u32| image[p.geo.slot_offset(*lane, 1).0 as usize..].starts_with(b"prec");
    let lane = (0..p.geo.lanes).find(used).expect("a lane with records");
    p.put(p.geo.retired_offset(lane).0, &[0x55; 16]);
    p.put(RetiredCopy::place(&p.geo, lane).unwrap().0, &[0x55; 16]);
    let image = bytes_of(&p.region);
    assert!(tree(&image).is_none(), "it can be mounted");
    for policy in [Policy::No, Policy::Preen] {
        assert!(!run(&p.region, policy).is_sound());
        assert!(bytes_of(&p.region) == image);
    }
    let report = run(&p.region, Policy::Yes);
    let codes: Vec<_> = report.fixed().map(|f| f.issue.code()).collect();
    assert_eq!(codes, ["retired-word-damaged"; 2], "{report}");
    assert!(check(&p.region, &Default::default()).is_clean());
    assert!(tree(&bytes_of(&p.region)).is_some_and(|t| t.len() > 300));
}

/// A mount accepts no record of such a lane, so a repair must not write one there.
#[test]
fn lane_with_declined_words_is_not_written() {
    use crate::{Answer, Issue};
    use std::sync::Arc;
    let p = Plant::new();
    p.edit(p.file, |d| d.nlink = 3);
    p.put(p.geo.retired_offset(0).0, &[0x55; 16]);
    let lane = |image: &[u8]| {
        let at = p.geo.slot_offset(0, 0).0 as usize;
        image[at..at + 2 * p.geo.slot_size as usize].to_vec()
    };
    let before = lane(&bytes_of(&p.region));
    let report = run(
        &p.region,
        Policy::Ask(Arc::new(|f: &crate::Finding| match f.issue {
            Issue::RetiredWordDamaged { .. } => Answer::No,
            _ => Answer::Yes,
        })),
    );
    let outcomes: Vec<_> = report
        .findings
        .iter()
        .map(|f| (f.issue.code(), f.outcome))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("retired-word-damaged", Outcome::Declined),
            ("retired-word-damaged", Outcome::Declined),
            ("link-count", Outcome::Fixed),
        ],
        "{report}"
    );
    assert!(lane(&bytes_of(&p.region)) == before, "it was written to");
    let left = check(&p.region, &Default::default());
    let codes: Vec<_> = left.issues().map(|i| i.code()).collect();
    assert_eq!(codes, ["retired-word-damaged"; 2]);
}

/// Past correction in both pages: nothing else says where the inode table or a
/// bitmap is. The repair reports this and changes nothing.
#[test]
fn internal_inode_lost_in_both_pages_is_fatal() {
    use pramfs_medium::media::superblock::{
        BLOCK_GROUPS_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
    };
    for at in [INODE_TABLE_OFFSET, INODE_GROUPS_OFFSET, BLOCK_GROUPS_OFFSET] {
        let p = Plant::new();
        for page in p.pages() {
            p.put(page + at + 0x20, &[0x55; 40]);
        }
        let image = bytes_of(&p.region);
        let report = run(&p.region, Policy::Yes);
        let left: Vec<_> = report.left().map(|f| f.issue.code()).collect();
        assert!(left.contains(&"internal-inode-lost"), "{report}");
        assert!(!report.is_sound() && report.stored == 0, "{report}");
        assert!(bytes_of(&p.region) == image, "changed though fatal");
    }
}

#[test]
fn records_with_forbidden_targets_are_not_replayed() {
    use pramfs_medium::journal::RecordBuf;
    use pramfs_medium::media::record::EntryKind;
    let p = Plant::new();
    let before = tree(&bytes_of(&p.region)).unwrap();
    let mut record = RecordBuf::new(4096);
    // The magic of the first superblock page.
    assert!(record.push(EntryKind::Leaf, 0, &[0; 8]));
    let bytes = record.seal(p.geo.seed, 1 << 40, 0, 0).to_vec();
    p.put(p.geo.slot_offset(0, 0).0, &bytes);
    let image = bytes_of(&p.region);
    assert!(tree(&image).is_none(), "it can be mounted");
    assert!(!run(&p.region, Policy::Preen).is_sound() && bytes_of(&p.region) == image);
    let report = run(&p.region, Policy::Yes);
    let codes: Vec<_> = report.fixed().map(|f| f.issue.code()).collect();
    assert_eq!(
        (codes, report.refused),
        (vec!["records-refused"], 1),
        "{report}"
    );
    assert!(check(&p.region, &Default::default()).is_clean());
    assert_eq!(
        worse(&before, &tree(&bytes_of(&p.region)).unwrap()),
        [""; 0]
    );
}

/// The lost leaf may have held an ACL. Then the group bits were its mask, which
/// may exceed the permissions of the group: they are cleared too.
#[test]
fn acl_lost_with_leaf_clears_group_permissions() {
    use pramfs_medium::media::pointer::Ptr;
    let p = Plant::new();
    assert_eq!(p.inode(p.sparse).mode & 0o777, 0o660);
    let root = Ptr(p.inode(p.sparse).xattr_root);
    let leaf = root.block();
    p.put(p.geo.offset(leaf).0, &vec![0x55; p.geo.block_size as usize]);
    assert!(!p.check().is_clean());
    run(&p.region, Policy::Yes);
    assert!(p.check().is_clean());
    assert_eq!(p.inode(p.sparse).mode & 0o777, 0o600);
}

/// The inode of a directory is noise. In addition there is one wrong byte in the
/// leaf that names it or in the parent's inode, or the parent's inode is noise
/// too. No name is lost.
#[test]
fn directory_is_not_freed_while_its_name_is_hidden() {
    use pramfs_medium::htree::TreeKind;
    for which in ["leaf", "inode", "inode lost"] {
        let p = Plant::new();
        let before = tree(&bytes_of(&p.region)).unwrap();
        p.put(p.home(p.sub), &[0x5a; 256]);
        match which {
            "leaf" => {
                let leaf = p.tree(p.dir, TreeKind::Directory).root.block();
                p.flip(p.geo.offset(leaf).0 + 700, 1);
            }
            "inode" => p.flip(p.home(p.dir) + 0x22, 1),
            _ => p.put(p.home(p.dir), &[0xa5; 256]),
        }
        let report = run(&p.region, Policy::Yes);
        assert!(report.is_sound() && p.check().is_clean(), "{report}");
        let after = tree(&bytes_of(&p.region)).unwrap();
        for path in ["/dir", "/dir/sub", "/dir/sub/a", "/dir/sub/b"] {
            let inos = [&before, &after].map(|t| t.get(path.as_bytes()).map(|s| s.ino));
            assert!(
                inos[0].is_some() && inos[0] == inos[1],
                "{which}: {path}: {report}"
            );
        }
        assert!(
            !after.contains_key(&b"/lost+found"[..]),
            "{which}: {report}"
        );
    }
}

/// If nothing was recovered, the verb is not 'corrected'.
#[test]
fn empty_index_block_without_leaves_is_cleared() {
    use crate::{Done, Lost};
    use pramfs_medium::htree::TreeKind;
    use pramfs_medium::media::pointer::Ptr;
    let p = Plant::new();
    let index = p
        .geo
        .offset(p.tree(p.big, TreeKind::Directory).root.block())
        .0;
    for at in (index..index + p.geo.block_size).step_by(8) {
        let leaf = Ptr(p.region.load_u64(at).unwrap()).block();
        p.put(p.geo.offset(leaf).0, &vec![0x55; p.geo.block_size as usize]);
    }
    p.put(index, &vec![0; p.geo.block_size as usize]);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    let empty = report
        .findings
        .iter()
        .find(|f| f.issue.code() == "tree-empty");
    assert_eq!(empty.and_then(|f| f.done), Some(Done::Cleared), "{report}");
    let lost = |l: &crate::Loss| matches!(l.what, Lost::Names { count: 300 });
    assert!(report.lost.iter().any(lost), "{:?}", report.lost);
}

/// The ACL is lost with the index block above its leaf.
#[test]
fn acl_lost_with_index_block_clears_group_permissions() {
    use crate::Lost;
    use pramfs_medium::media::pointer::{Ptr, PtrAt};
    let p = Plant::new();
    let leaf = Ptr(p.inode(p.sparse).xattr_root).block();
    // An index block without pointers replaces the leaf.
    p.put(p.geo.offset(leaf).0, &vec![0; p.geo.block_size as usize]);
    let place = PtrAt {
        fs_seed: p.geo.seed,
        ino: p.sparse,
        level: 32,
        index: 0,
    };
    p.edit(p.sparse, |d| d.xattr_root = Ptr::new(leaf, 0, place).0);
    let codes: Vec<_> = p.check().issues().map(|i| i.code()).collect();
    assert_eq!(codes, ["tree-empty"]);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    assert_eq!(p.inode(p.sparse).mode & 0o777, 0o600);
    let lost: Vec<_> = report.lost.iter().map(|l| l.what.clone()).collect();
    assert!(lost.contains(&Lost::Attributes), "{lost:?}");
}

/// The outcome is `NoSpace` after any number of attempts.
#[test]
fn finding_without_space_stays_no_space() {
    use crate::{Answer, Issue};
    use pramfs_medium::media::bitmap::BitmapKind;
    use std::sync::Arc;
    let p = Plant::new();
    let fs = Fs::open(Region::new("test", Box::new(p.sim.clone())), quiet()).unwrap();
    let ctx = pramfs::inode::Credentials::ROOT;
    let all = fs
        .create(&ctx, pramfs_medium::types::Ino::ROOT, b"all", 0o644)
        .unwrap()
        .ino;
    let mut at = 0;
    for step in [1 << 20, 1 << 10] {
        while let Ok(n) = fs.write(&Credentials::ROOT, all, at, &vec![1; step]) {
            at += n as u64;
        }
    }
    fs.close().unwrap();
    // Also use up the engine's reserve.
    for block in 0..p.geo.blocks() {
        p.set_bit(BitmapKind::Blocks, block, true);
    }
    // An inode without a name.
    let free = |ino: &pramfs_medium::types::Ino| {
        let (at, mask, _) = p.bit_at(BitmapKind::Inodes, ino.0);
        p.region.load_u64(at).unwrap() & mask == 0
    };
    let ino = [p.gone, p.gone_dir, p.free].into_iter().find(free).unwrap();
    p.put_inode(ino, p.inode(p.empty));
    p.set_bit(BitmapKind::Inodes, ino.0, true);
    p.edit(p.file, |d| d.nlink = 3);
    p.dynamic(&[p.geo.copy_offset.0], |d| d.mounts += 1);
    let ask = |f: &crate::Finding| match f.issue {
        Issue::BlocksLeaked { .. } => Answer::No,
        _ => Answer::Yes,
    };
    let report = run(&p.region, Policy::Ask(Arc::new(ask)));
    let outcome = |code| {
        let f = report.findings.iter().find(|f| f.issue.code() == code);
        f.map(|f| f.outcome)
    };
    assert_eq!(outcome("inode-leaked"), Some(Outcome::NoSpace), "{report}");
    assert_eq!(outcome("link-count"), Some(Outcome::Fixed), "{report}");
    assert_eq!(outcome("dynamic-words-differ"), Some(Outcome::Fixed));
}

/// The loss below the root pointer of a map of maximum height is reported.
#[test]
fn loss_below_root_of_highest_map_is_reported() {
    use crate::Lost;
    use pramfs_medium::media::pointer::{Ptr, PtrAt};
    let p = Plant::new();
    let height = p.geo.max_height();
    let mut d = p.inode(p.file);
    let mut root = d.root;
    for level in u32::from(d.height) + 1..=height {
        let block = p.free_block();
        p.set_bit(
            pramfs_medium::media::bitmap::BitmapKind::Blocks,
            block,
            true,
        );
        let mut bytes = vec![0; p.geo.block_size as usize];
        bytes[..8].copy_from_slice(&root.to_le_bytes());
        p.put(p.geo.offset(pramfs_medium::types::Bno(block)).0, &bytes);
        let place = PtrAt {
            fs_seed: p.geo.seed,
            ino: p.file,
            level,
            index: 0,
        };
        root = Ptr::new(pramfs_medium::types::Bno(block), 0, place).0;
        d.blocks += 1;
    }
    (d.root, d.height) = (root, height as u8);
    p.put_inode(p.file, d);
    assert!(p.check().is_clean());
    // Neither the pointer nor the block that it led to can be brought back.
    let top = p.geo.offset(Ptr(root).block()).0;
    p.put(top, &vec![0; p.geo.block_size as usize]);
    p.edit(p.file, |d| d.root ^= 0x42 << 40 | 0x1234 << 48);
    let report = run(&p.region, Policy::Yes);
    assert!(report.is_sound() && p.check().is_clean(), "{report}");
    // The pointer blocks further down are found again, except the last: its place
    // has a mark for each block up to the end of the file.
    let lost: Vec<_> = report.lost.iter().map(|l| l.what.clone()).collect();
    let (at, len) = (256 << 10, 44 << 10);
    assert!(lost.contains(&Lost::Bytes { at, len }), "{lost:?}");
}
