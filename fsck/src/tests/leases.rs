//! Repairs of append windows: what was appended becomes part of the file, or its loss is
//! reported.

use super::clean::quiet;
use super::plant::{Plant, WINDOW_START};
use super::readable::bytes_of;
use super::repair::run;
use crate::{Issue, Lost, Outcome, Part, Policy, Report, check, repair};
use pramfs::inode::Fs;
use pramfs_medium::error::Error;
use pramfs_medium::media::features::APPEND_WINDOWS;
use pramfs_medium::media::lease::{LeaseSlot, SlotContents};
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::types::{Ino, LeaseMode};

/// Bytes of the window of [`Plant::put_window`].
const LEN: u64 = (300 << 10) - WINDOW_START;

fn slot(p: &Plant) -> LeaseSlot {
    p.region.read_pod(p.lease_slot(1)).unwrap()
}

/// Expects a repair to have closed the window of slot 1, and the file to end there.
#[track_caller]
fn assert_closed(p: &Plant, report: &Report, size: u64) {
    assert!(report.is_sound(), "{report}");
    assert_eq!(p.inode(p.file).size, size, "{report}");
    let home = slot(p);
    assert_eq!((home.append_window(p.geo.seed, 1), home.end), (Ok(None), 0));
    let again = p.check();
    assert!(again.is_clean(), "{again}");
}

fn losses(report: &Report) -> Vec<(Option<&[u8]>, &Lost)> {
    let lost = report.lost.iter();
    lost.map(|l| (l.path.as_deref(), &l.what)).collect()
}

#[test]
fn open_window_is_added_to_size_by_preen() {
    let p = Plant::new();
    p.put_window(|_| {});
    let report = run(&p.region, Policy::Preen);
    assert_closed(&p, &report, WINDOW_START + 1000);
    assert_eq!(losses(&report), []);
    // The lease is left to the next mount, which sets the times of the file.
    let contents = slot(&p).contents(p.geo.seed, 1);
    assert!(matches!(contents, SlotContents::Used(_)));
    assert_eq!(slot(&p).stored, 1);
}

#[test]
fn window_with_one_wrong_byte_is_corrected() {
    for at in [0x00, 0x38, 0xc0, 0xc9, 0xd0, 0xe8, 0xff, 0x88, 0x8f] {
        let p = Plant::new();
        p.put_window(|_| {});
        p.flip(p.lease_slot(1) + at, 0x12);
        let found = p.check().findings;
        assert!(!found[0].issue.is_safe(), "{at:#x}");
        let report = run(&p.region, Policy::Yes);
        assert_closed(&p, &report, WINDOW_START + 1000);
        assert_eq!(report.findings[0].done, Some(crate::Done::Corrected));
        assert_eq!(losses(&report), [], "{at:#x}");
    }
}

#[test]
fn damaged_end_keeps_blocks_and_is_reported_by_path() {
    let p = Plant::new();
    p.put_window(|slot| slot.end ^= 0x0101);
    let report = run(&p.region, Policy::Preen);
    assert_eq!(report.findings[0].outcome, Outcome::Left, "{report}");
    let report = run(&p.region, Policy::Yes);
    assert_closed(&p, &report, WINDOW_START);
    let [(Some(path), Lost::Appended { most: Some(LEN) })] = losses(&report)[..] else {
        panic!("{:?}", report.lost);
    };
    assert!([&b"/file"[..], b"/link"].contains(&path));
    // A mount does not free the blocks.
    let block = p.block_of(p.file, 299);
    let fs = Fs::open(super::readable::copy_of(&bytes_of(&p.region)), quiet()).unwrap();
    let sectors = fs.getattr(p.file).unwrap().blocks;
    assert_eq!(sectors, p.inode(p.file).blocks * 2);
    let (_, report) = crate::check_fs(fs, &Default::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(p.block_of(p.file, 299), block);
}

#[test]
fn damaged_window_keeps_blocks_and_is_reported_by_path() {
    let p = Plant::new();
    p.put_window(|slot| (slot.window, slot.window_limit) = (1, 2));
    let report = run(&p.region, Policy::Yes);
    assert_closed(&p, &report, WINDOW_START);
    let lost = losses(&report);
    assert!(
        matches!(lost[..], [(Some(_), Lost::Appended { most: Some(LEN) })]),
        "{lost:?}"
    );
}

#[test]
fn wrong_window_with_damaged_end_is_reported_as_loss() {
    let p = Plant::new();
    p.put_window_of(LeaseMode::Write, (WINDOW_START, 301 << 10), |slot| {
        slot.end ^= 0x0101;
    });
    let codes: Vec<_> = p.check().issues().map(Issue::code).collect();
    assert_eq!(codes, ["append-end-damaged", "append-window-wrong"]);
    let report = run(&p.region, Policy::Yes);
    assert_closed(&p, &report, WINDOW_START);
    assert_eq!(losses(&report).len(), 1);
}

#[test]
fn damaged_window_of_unlinked_file_loses_nothing() {
    let p = Plant::new();
    p.put_window(|slot| slot.end ^= 0x0101);
    p.put(p.orphan_slot(50), &[0; 8]);
    // Its names go to another file, so that it is an orphan.
    p.edit(p.file, |d| d.nlink = 0);
    let gone = p.slot_word(50, p.file);
    p.put(p.orphan_slot(50), &gone.to_le_bytes());
    for name in [&b"file"[..], b"link"] {
        p.entry(Ino::ROOT, name, p.empty, pramfs::FileType::Regular);
    }
    p.edit(p.empty, |d| d.nlink = 3);
    let report = run(&p.region, Policy::Yes);
    assert_closed(&p, &report, WINDOW_START);
    assert_eq!(losses(&report), []);
}

#[test]
fn slot_past_correction_is_emptied_and_loss_is_reported() {
    for case in 0..2 {
        let p = Plant::new();
        p.put_window(|_| {});
        match case {
            0 => p.put(p.lease_slot(1), &[0x55; 8]),
            _ => p.put(p.lease_slot(1), &[0; 64]),
        }
        let report = run(&p.region, Policy::Preen);
        assert_eq!(report.findings[0].outcome, Outcome::Left, "{report}");
        let report = run(&p.region, Policy::Yes);
        assert_closed(&p, &report, WINDOW_START);
        assert_eq!(losses(&report), [(None, &Lost::Appended { most: None })]);
        assert_eq!(slot(&p).contents(p.geo.seed, 1), SlotContents::Free);
    }
}

#[test]
fn window_without_its_feature_is_closed() {
    let p = Plant::new();
    p.put_window(|_| {});
    for page in p.pages() {
        p.fixed(page, |sb| sb.incompat &= !APPEND_WINDOWS);
    }
    let name = "append_windows";
    let open = Issue::AppendWindowOpen {
        slot: 1,
        ino: p.file,
        bytes: 1000,
    };
    let issues: Vec<_> = p.check().issues().cloned().collect();
    assert_eq!(issues, [Issue::LeaseFeatureMissing { name }, open]);
    let report = run(&p.region, Policy::Preen);
    assert_closed(&p, &report, WINDOW_START + 1000);
    assert_eq!(report.fixed().count(), 2, "{report}");
}

/// A repair of the map before the window is closed would treat the block as unused.
#[test]
fn lost_block_in_window_is_marked_and_not_dropped() {
    let p = Plant::new();
    p.put_window(|slot| {
        let window = slot.append_window(p.geo.seed, 1).unwrap().unwrap();
        slot.end = window.word_of(290 << 10);
    });
    p.put(p.pointer_of(p.file, 250).0, &[0x5a; 6]);
    let report = run(&p.region, Policy::Yes);
    assert_closed_with_mark(&p, &report);
}

#[track_caller]
fn assert_closed_with_mark(p: &Plant, report: &Report) {
    assert!(report.is_sound(), "{report}");
    assert_eq!(p.inode(p.file).size, 290 << 10);
    let what = Lost::Bytes {
        at: 250 << 10,
        len: 1 << 10,
    };
    assert!(report.marked.iter().any(|m| m.what == what), "{report}");
}

#[test]
fn lost_lease_table_is_reported_if_windows_may_be_open() {
    for windows in [false, true] {
        let p = Plant::new();
        for page in p.pages().into_iter().filter(|_| windows) {
            p.fixed(page, |sb| sb.incompat |= APPEND_WINDOWS);
        }
        p.edit(Ino::LEASES, |d| d.root ^= 0x5a5a);
        let report = run(&p.region, Policy::Yes);
        assert!(matches!(
            report.findings[0].issue,
            Issue::MapPointer {
                ino: Ino::LEASES,
                part: Part::Contents,
                ..
            }
        ));
        assert!(report.is_sound(), "{report}");
        let mut lost = losses(&report);
        lost.retain(|(_, what)| matches!(what, Lost::Appended { .. }));
        let expected = [(None, &Lost::Appended { most: None })];
        assert_eq!(lost, expected[..usize::from(windows)]);
    }
}

#[test]
fn window_behind_damaged_pointer_is_added_to_size() {
    let p = Plant::new();
    p.put_window(|_| {});
    p.edit(Ino::LEASES, |d| d.root ^= 1 << 50);
    let report = run(&p.region, Policy::Yes);
    assert_closed(&p, &report, WINDOW_START + 1000);
    assert_eq!(losses(&report), []);
}

#[test]
fn locked_slot_refuses_repair_and_changes_nothing() {
    let p = Plant::new();
    p.put_window(|_| {});
    p.region.pretend_lease(1, true);
    let image = bytes_of(&p.region);
    let refused = repair(&p.region, &crate::RepairOptions::new(Policy::Yes));
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    assert!(bytes_of(&p.region) == image);
    assert_eq!(check(&p.region, &Default::default()).findings.len(), 1);
}
