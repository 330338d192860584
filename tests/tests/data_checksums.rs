//! Checksums of file data: what is forged is found, by reads, writes, and the checker; files that
//! are mapped for writing are marked meanwhile.

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode};
use pramfs::{Access, Error, Fallocate, OpenOptions};
use pramfs_fsck::{CheckOptions, Issue, Policy, RepairOptions, check, repair};
use pramfs_medium::format::format;
use pramfs_medium::journal::Rules;
use pramfs_medium::pmem::{HeapBackend, Region, SimBackend};
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, recover};
use pramfs_tests::region::{mount, quiet, region_of};
use pramfs_tests::sums::{file, forge, fresh, is_wrong, place, sum_place, summed, text};

const CX: Credentials<'_> = Credentials::ROOT;
const BLOCK: usize = 4096;

/// Reads all of a file, piece by piece, past what is wrong.
fn read_all(fs: &Fs, ino: Ino, len: usize) -> Vec<Option<Vec<u8>>> {
    (0..len)
        .step_by(BLOCK)
        .map(|at| {
            let mut bytes = vec![0; BLOCK.min(len - at)];
            match fs.read(ino, at as u64, &mut bytes) {
                Ok(n) if n == bytes.len() => Some(bytes),
                Ok(n) => panic!("{n} bytes at {at}"),
                Err(Error::WrongSum { .. }) => None,
                Err(e) => panic!("{e}"),
            }
        })
        .collect()
}

#[test]
fn forged_byte_is_eio_for_its_block_alone() {
    let (sim, fs) = fresh(4 << 20, 4096);
    let bytes = text(5 * BLOCK + 100);
    let ino = file(&fs, "file", &bytes);
    forge(&fs, place(&fs, ino, 2 * BLOCK as u64 + 77));
    let found = read_all(&fs, ino, bytes.len());
    for (i, part) in found.iter().enumerate() {
        let want = &bytes[i * BLOCK..bytes.len().min((i + 1) * BLOCK)];
        match i {
            2 => assert_eq!(*part, None),
            _ => assert_eq!(part.as_deref(), Some(want), "block {i}"),
        }
    }
    let wrong = 2 * BLOCK as u64;
    // A read that begins before it ends there; one in another part of the block is refused too.
    let mut into = vec![0; 4 * BLOCK];
    assert_eq!(fs.read(ino, 10, &mut into).unwrap(), 2 * BLOCK - 10);
    assert!(is_wrong(
        &fs.read(ino, wrong + 4000, &mut into[..8]),
        ino,
        wrong
    ));
    // The same by an open file, which reads without a lock.
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/file")
        .unwrap();
    assert_eq!(open.read_at(&mut into[..BLOCK], 0).unwrap(), BLOCK);
    for _ in 0..2 {
        assert!(is_wrong(
            &open.read_at(&mut into[..BLOCK], wrong),
            ino,
            wrong
        ));
        assert_eq!(
            open.read_at(&mut into[..BLOCK], wrong + BLOCK as u64)
                .unwrap(),
            BLOCK
        );
        assert!(into[..BLOCK] == bytes[3 * BLOCK..4 * BLOCK]);
    }
    assert!(
        fs.with_contiguous(ino, 0, BLOCK, &mut |_| ())
            .unwrap()
            .is_none()
    );
    assert!(!fs.is_read_only(), "what is wrong is this block alone");
    let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
    let expected = wrong..wrong + BLOCK as u64;
    assert_eq!(verified.wrong, vec![expected]);
    assert_eq!(verified.compared, bytes.len() as u64);
    // A new sum would hide it, so a part of it cannot be written.
    assert!(is_wrong(&fs.write(&CX, ino, wrong + 5, b"xyz"), ino, wrong));
    let punched = fs.fallocate(&CX, ino, Fallocate::PunchHole, wrong + 5, 10);
    assert!(is_wrong(&punched, ino, wrong));
    drop(open);
    fs.close().unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    let expected = Issue::DataSum {
        ino,
        offset: wrong,
        len: BLOCK as u64,
    };
    let found = report.findings.iter().find(|f| f.issue == expected);
    let path = found.expect("found").path.clone();
    assert_eq!(path.as_deref(), Some(&b"/file"[..]), "{report}");
    let repaired = repair(&region_of(&sim), &RepairOptions::new(Policy::Yes)).unwrap();
    assert!(!repaired.is_sound(), "the bytes are lost: {repaired}");
    // Writing the whole block makes it readable again.
    let fs = mount(&sim, quiet()).unwrap();
    assert_eq!(
        fs.write(&CX, ino, wrong, &bytes[2 * BLOCK..3 * BLOCK])
            .unwrap(),
        BLOCK
    );
    assert!(read_all(&fs, ino, bytes.len()).concat_all() == bytes);
    fs.close().unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    let left: Vec<_> = report.issues().collect();
    assert!(
        matches!(left[..], [Issue::ErrorsRecorded { .. }]),
        "{report}"
    );
}

trait ConcatAll {
    fn concat_all(&self) -> Vec<u8>;
}

impl ConcatAll for Vec<Option<Vec<u8>>> {
    fn concat_all(&self) -> Vec<u8> {
        let parts: Vec<Vec<u8>> = self.iter().flatten().cloned().collect();
        parts.concat()
    }
}

#[test]
fn forged_sum_is_eio_for_its_block_alone() {
    for block_size in [512, 4096] {
        let (sim, fs) = fresh(1 << 20, block_size);
        let size = block_size as usize;
        let bytes = text(4 * size);
        let ino = file(&fs, "file", &bytes);
        for byte in [0, 5] {
            let at = sum_place(&fs, place(&fs, ino, size as u64)) + byte;
            forge(&fs, at);
            let mut into = vec![0; size];
            assert!(is_wrong(
                &fs.read(ino, size as u64, &mut into),
                ino,
                size as u64
            ));
            for good in [0, 2, 3] {
                assert_eq!(fs.read(ino, (good * size) as u64, &mut into).unwrap(), size);
                assert!(into == bytes[good * size..][..size]);
            }
            // Writing the block sets its sum.
            fs.write(&CX, ino, size as u64, &bytes[size..2 * size])
                .unwrap();
            assert_eq!(fs.read(ino, size as u64, &mut into).unwrap(), size);
        }
        fs.close().unwrap();
        let report = check(&region_of(&sim), &CheckOptions::default());
        assert!(
            report
                .findings
                .iter()
                .all(|f| !matches!(f.issue, Issue::DataSum { .. })),
            "{report}"
        );
    }
}

/// The block keeps a sum that fits no part of it.
#[test]
fn truncation_does_not_hide_forged_byte() {
    let (_, fs) = fresh(4 << 20, 4096);
    let ino = file(&fs, "file", &text(3 * BLOCK));
    forge(&fs, place(&fs, ino, BLOCK as u64 + 50));
    let set = pramfs::inode::SetAttr {
        size: Some(BLOCK as u64 + 100),
        ..Default::default()
    };
    fs.setattr(&CX, ino, &set).unwrap();
    let mut into = [0; 100];
    assert!(is_wrong(
        &fs.read(ino, BLOCK as u64, &mut into),
        ino,
        BLOCK as u64
    ));
    assert_eq!(fs.read(ino, 0, &mut into).unwrap(), 100);
    // Nothing of the block is kept.
    let set = pramfs::inode::SetAttr {
        size: Some(BLOCK as u64),
        ..Default::default()
    };
    fs.setattr(&CX, ino, &set).unwrap();
    fs.append(&CX, ino, b"new").unwrap();
    assert_eq!(fs.read(ino, BLOCK as u64, &mut into).unwrap(), 3);
}

/// Bytes past the end of a file change without a record, so no sum covers them.
#[test]
fn bytes_past_end_are_in_no_sum() {
    let (_, fs) = fresh(4 << 20, 4096);
    let ino = file(&fs, "file", &text(100));
    forge(&fs, place(&fs, ino, 0) + 200);
    let mut into = [0; 300];
    assert_eq!(fs.read(ino, 0, &mut into).unwrap(), 100);
    fs.write(&CX, ino, 250, b"later").unwrap();
    assert_eq!(fs.read(ino, 0, &mut into).unwrap(), 255);
    assert!(into[100..250] == [0; 150], "they were zeroed");
    assert!(fs.verify_data(ino, 0..1).unwrap().wrong.is_empty());
}

#[test]
fn file_is_marked_while_view_may_store_and_summed_after() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let mut bytes = text(6 * BLOCK);
    let ino = file(&fs, "file", &bytes);
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/file")
        .unwrap();
    let view = open.map(0..2 * BLOCK as u64, Access::Write).unwrap();
    assert!(fs.verify_data(ino, 0..1).unwrap().is_marked);
    assert!(!fs.sum_marked_files(), "the view exists");
    view.store(64, 0x1111_2222_3333_4444u64).unwrap();
    bytes[64..72].copy_from_slice(&0x1111_2222_3333_4444u64.to_le_bytes());
    // Not persisted, and seen.
    let mut into = vec![0; bytes.len()];
    assert_eq!(open.read_at(&mut into, 0).unwrap(), bytes.len());
    assert!(into == bytes);
    // A crash meanwhile leaves the file marked, not wrong.
    let crashed = SimBackend::from_image(&sim.image()).unwrap();
    let again = mount(&crashed, quiet()).unwrap();
    assert_eq!(again.read(ino, 0, &mut into).unwrap(), bytes.len());
    assert!(again.verify_data(ino, 0..1).unwrap().is_marked);
    // Found when the inode is used, and summed.
    assert!(again.sum_marked_files());
    assert!(!again.verify_data(ino, 0..1).unwrap().is_marked);
    again.close().unwrap();
    let report = check(&region_of(&crashed), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    // A write through the engine while the view exists.
    fs.write(&CX, ino, 3 * BLOCK as u64 + 9, b"written")
        .unwrap();
    bytes[3 * BLOCK + 9..][..7].copy_from_slice(b"written");
    drop(view);
    assert!(fs.sum_marked_files());
    let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(
        !verified.is_marked && verified.wrong.is_empty(),
        "{verified:?}"
    );
    assert_eq!(verified.compared, bytes.len() as u64);
    assert_eq!(open.read_at(&mut into, 0).unwrap(), bytes.len());
    assert!(into == bytes);
    forge(&fs, place(&fs, ino, 64));
    assert!(is_wrong(&open.read_at(&mut into, 0), ino, 0));
    drop(open);
    fs.close().unwrap();
}

/// The bytes may be in caches only, until the record that clears the mark has made them durable.
#[test]
fn sums_of_stores_that_were_not_persisted_hold_after_power_loss() {
    let mut rec = Recorded::new(8 << 20, &summed(4096), Rules::default());
    let ino = file(&rec.fs, "file", &text(6 * BLOCK));
    {
        let open = rec.fs.open_file(ino).unwrap();
        let view = open.map(0..2 * BLOCK as u64, Access::Write).unwrap();
        view.store(64, 0x1111_2222_3333_4444u64).unwrap();
        view.store(BLOCK as u64 + 8, 7u64).unwrap();
    }
    let from = rec.now();
    assert!(rec.fs.sum_marked_files());
    let to = rec.now();
    let mut random = Random::new(5);
    for moment in from..=to {
        let machine = rec.at(moment);
        for image in [machine.least(), machine.most(), machine.random(&mut random)] {
            let fs = recover(&image).unwrap();
            let mut into = vec![0; 6 * BLOCK];
            assert_eq!(fs.read(ino, 0, &mut into).unwrap(), into.len(), "{moment}");
            let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
            assert!(verified.wrong.is_empty(), "{moment}: {verified:?}");
        }
    }
}

/// The zeros around the bytes become written with them.
#[test]
fn write_into_unwritten_leaf_of_2_mib_sums_all_of_it() {
    const LEAF: u64 = 2 << 20;
    for at in [0, 5000, LEAF / 2 + 100, LEAF - 50] {
        let (_sim, fs) = fresh(16 << 20, 4096);
        let ino = file(&fs, "file", b"");
        let all = Fallocate::Allocate { keep_size: false };
        fs.fallocate(&CX, ino, all, 0, 2 * LEAF).unwrap();
        assert_eq!(fs.verify_data(ino, 0..u64::MAX).unwrap().compared, 0);
        fs.write(&CX, ino, at, &[5; 100]).unwrap();
        let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
        assert!(verified.wrong.is_empty(), "{at}: {verified:?}");
        assert!(verified.compared >= LEAF, "{at}: {verified:?}");
        let mut into = vec![1; 2 * LEAF as usize];
        assert_eq!(fs.read(ino, 0, &mut into).unwrap(), into.len());
        let (before, rest) = into.split_at(at as usize);
        assert!(rest[..100] == [5; 100]);
        assert!(before.iter().chain(&rest[100..]).all(|byte| *byte == 0));
    }
}

#[test]
fn unmount_sums_files_that_were_mapped() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(3 * BLOCK));
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/file")
        .unwrap();
    open.map(0..100, Access::Write)
        .unwrap()
        .store(8, 7u64)
        .unwrap();
    drop(open);
    fs.close().unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(
        !verified.is_marked && verified.wrong.is_empty(),
        "{verified:?}"
    );
    assert_eq!(
        fs.getattr(ino).unwrap().flags,
        0,
        "the mark is no chattr flag"
    );
}

/// A staged view belongs to a view for writing, so its file is marked meanwhile.
#[test]
fn file_is_summed_after_commits_of_staged_view() {
    let (sim, fs) = fresh(8 << 20, 4096);
    let mut bytes = text(3 * BLOCK);
    let ino = file(&fs, "file", &bytes);
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/file")
        .unwrap();
    let view = open.map(0..3 * BLOCK as u64, Access::Write).unwrap();
    let mut staged = view.stage().unwrap();
    let ranges = [10..20u64, 30..40, 4000..5000];
    for range in &ranges {
        let range = range.start as usize..range.end as usize;
        staged[range.clone()].fill(0xee);
        bytes[range].fill(0xee);
    }
    staged.commit(&ranges).unwrap();
    drop(staged);
    assert!(fs.verify_data(ino, 0..1).unwrap().is_marked);
    drop(view);
    drop(open);
    assert!(fs.sum_marked_files());
    let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
    assert!(verified.wrong.is_empty() && !verified.is_marked);
    assert_eq!(verified.compared, bytes.len() as u64);
    assert!(read_all(&fs, ino, bytes.len()).concat_all() == bytes);
    fs.close().unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn last_group_without_room_for_sums_is_left_out() {
    // Blocks of 512 bytes: a group has 2 MiB.
    let group = 2u64 << 20;
    for (len, used) in [
        (group + 65 * 512, group),
        (group + 66 * 512, group + 66 * 512),
        (2 * group, 2 * group),
    ] {
        let region = Region::new("short group", HeapBackend::boxed(len as usize));
        let info = format(&region, &summed(512)).unwrap();
        assert_eq!(info.fixed.region_len, used, "{len}");
        let fs = Fs::open(region, quiet()).unwrap();
        let ino = file(&fs, "file", &text(100_000));
        let mut found = vec![0; 100_000];
        assert_eq!(fs.read(ino, 0, &mut found).unwrap(), found.len());
        assert!(found == text(100_000));
        // Every block, in each group.
        let free = fs.statfs().unwrap().available;
        let mut filled = 0;
        while fs.append(&CX, ino, &[5; 4096]).is_ok() {
            filled += 8;
        }
        // The rest are pointer blocks, and less than an append.
        assert!(
            filled + filled / 32 + 64 > free,
            "{filled} of {free} blocks"
        );
        assert!(fs.verify_data(ino, 0..u64::MAX).unwrap().wrong.is_empty());
        let (_, report) = pramfs_fsck::check_fs(fs, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{report}");
    }
    let tiny = Region::new("tiny", HeapBackend::boxed(256 << 10));
    let refused = format(&tiny, &summed(4096)).unwrap_err().to_string();
    assert!(refused.contains("too small"), "{refused}");
}

#[test]
fn write_lease_marks_file() {
    let (_, fs) = fresh(8 << 20, 4096);
    let ino = file(&fs, "file", &text(2 * BLOCK));
    let generation = fs.getattr(ino).unwrap().generation;
    drop(fs.grant_lease(ino, generation, LeaseMode::Read, 1, 0));
    assert!(
        !fs.verify_data(ino, 0..1).unwrap().is_marked,
        "readers do not store"
    );
    let granted = fs.grant_lease(ino, generation, LeaseMode::Write, 1, 0);
    assert!(granted.is_ok());
    assert!(fs.verify_data(ino, 0..1).unwrap().is_marked);
    assert!(!fs.sum_marked_files(), "the lease exists");
}
