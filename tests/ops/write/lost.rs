//! write to a range that a repair could not restore.

use pramfs::Fallocate;
use pramfs::inode::SetAttr;
use pramfs_medium::journal::Rules;
use pramfs_medium::media::inode::FL_ATOMIC;
use pramfs_tests::random::Random;
use pramfs_tests::readable::{bytes_of, copy_of};
use pramfs_tests::recorded::{Recorded, recover};

use crate::support::lost::{
    CX, bytes, close_and_check, geometry, image_of, is_lost, is_only, list, open, repair_all,
    without_a_line,
};

#[test]
fn partial_write_to_lost_block_fails() {
    let block = 4096u64;
    let (image, ino) = image_of(4096, 10 * 4096 + 700);
    // Blocks 8, 9 and 10, of which the last is not full.
    let (region, report) = repair_all(&without_a_line(&image, ino, 8, true));
    assert_eq!(report.marked.len(), 1, "{report}");
    let image = bytes_of(&region);
    let fs = open(region);
    let (at, size) = (8 * block, 10 * block + 700);
    let one = [7; 3 * 4096];
    // Neither the head nor the tail of a block, nor a part in the middle.
    for (at, len) in [(at, 10), (at + 10, 4086), (at + 1, 4094), (10 * block, 699)] {
        assert!(
            is_lost(fs.write(&CX, ino, at, &one[..len as usize])),
            "{at} {len}"
        );
        assert!(
            is_lost(fs.fallocate(&CX, ino, Fallocate::PunchHole, at, len)),
            "{at} {len}"
        );
        let zero = Fallocate::ZeroRange { keep_size: true };
        assert!(is_lost(fs.fallocate(&CX, ino, zero, at, len)), "{at} {len}");
    }
    assert!(is_lost(fs.append(&CX, ino, b"at the end")));
    for keep_size in [false, true] {
        let room = Fallocate::Allocate { keep_size };
        assert!(is_lost(fs.fallocate(&CX, ino, room, 0, 20 * block)));
    }
    assert!(is_lost(fs.fill(ino, 0, size)));
    is_only(&fs, ino, at..size);
    // As much as possible, then the error.
    assert_eq!(
        fs.write(&CX, ino, 7 * block, &one[..2 * 4096 + 9]).unwrap(),
        8192
    );
    is_only(&fs, ino, 9 * block..size);
    // Write-back from a page cache skips it.
    let mut out = [0; 4096];
    assert!(is_lost(fs.write_back(ino, 9 * block - 4, &one[..4 + 4095])));
    fs.read(ino, 9 * block - 4, &mut out[..4]).unwrap();
    assert_eq!(out[..4], [7; 4]);
    // Up to EOF, which is the whole of the last block.
    assert_eq!(fs.write(&CX, ino, 10 * block, &one[..700]).unwrap(), 700);
    is_only(&fs, ino, 9 * block..10 * block);
    close_and_check(fs);

    // A shorter file has a smaller lost range; a longer one has no larger one.
    let fs = open(copy_of(&image));
    let cut = |size| {
        let size = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(&CX, ino, &size).unwrap();
    };
    cut(9 * block + 5);
    is_only(&fs, ino, at..9 * block + 5);
    cut(30 * block);
    is_only(&fs, ino, at..10 * block);
    assert_eq!(fs.read(ino, 10 * block, &mut out).unwrap(), 4096);
    assert_eq!(out, [0; 4096]);
    fs.fallocate(&CX, ino, Fallocate::PunchHole, 9 * block, block)
        .unwrap();
    fs.fallocate(&CX, ino, Fallocate::ZeroRange { keep_size: true }, at, 9)
        .unwrap_err();
    fs.fallocate(
        &CX,
        ino,
        Fallocate::ZeroRange { keep_size: true },
        at,
        block,
    )
    .unwrap();
    assert_eq!(list(&fs, ino), None);
    fs.read(ino, at, &mut out).unwrap();
    assert_eq!(out, [0; 4096]);
    close_and_check(fs);
}

#[test]
fn atomic_write_back_over_lost_block_writes_other_blocks() {
    let block = 4096u64;
    let (image, ino) = image_of(4096, 12 * 4096);
    let (region, _) = repair_all(&without_a_line(&image, ino, 8, true));
    let fs = open(region);
    let atomic = SetAttr {
        flags: Some(FL_ATOMIC),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &atomic).unwrap();
    let pages = vec![7; 2 * 4096 + 100];
    assert!(is_lost(fs.write_back(ino, 6 * block, &pages)));
    let mut out = vec![0; 2 * 4096];
    assert_eq!(fs.read(ino, 6 * block, &mut out).unwrap(), 8192);
    assert!(out == pages[..8192]);
    is_only(&fs, ino, 8 * block..12 * block);
    close_and_check(fs);
}

/// A crash at any moment of a write over lost blocks leaves them lost or written.
#[test]
fn crash_in_write_over_lost_blocks_is_atomic() {
    for block in [512u32, 4096] {
        let step = block as usize;
        let (image, ino) = image_of(block, 20 * step);
        let (region, _) = repair_all(&without_a_line(&image, ino, 8, true));
        let image = bytes_of(&region);
        let geo = geometry(&image);
        let mut rec = Recorded::from_image(&image, Rules::default()).unwrap();
        let from = rec.now();
        let new = vec![0x3c; 8 * step];
        rec.fs.write(&CX, ino, 8 * u64::from(block), &new).unwrap();
        let to = rec.now();
        let (mut before, mut after, mut random) = (0, 0, Random::new(1));
        for moment in from..=to {
            let machine = rec.at(moment);
            let mut images = vec![machine.least(), machine.most()];
            images.extend(machine.journal_apart(&geo));
            images.extend((0..4).map(|_| machine.random(&mut random)));
            for image in images {
                let fs = recover(&image).unwrap();
                let mut out = vec![0; 20 * step];
                let lost = fs.lost_ranges(ino).unwrap();
                let n = fs.read(ino, 0, &mut out).unwrap();
                if lost.is_empty() {
                    after += 1;
                    assert_eq!(n, out.len());
                    assert_eq!(out[8 * step..16 * step], new, "event {moment}");
                } else {
                    before += 1;
                    assert_eq!(n, 8 * step);
                    is_only(&fs, ino, 8 * u64::from(block)..16 * u64::from(block));
                    assert!(moment < to);
                }
                assert_eq!(out[..8 * step], bytes(8 * step));
                close_and_check(fs);
            }
        }
        assert!(before > 0 && after > 0, "{before} {after}");
    }
}
