//! Space: operations on a full region, holes, limits of a file.

use pramfs::{
    Error, Fallocate, SeekWhence, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_tests::region::{fresh, quiet};

use super::{MIB, ROOT, contents, file, fill, find, names, small};

fn errno<T: std::fmt::Debug>(result: pramfs::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

/// On a full region, each operation that needs space fails without changes, and
/// operations that free space succeed.
#[test]
fn full_region_fails_atomically_and_allows_frees() {
    for block_size in [512, 4096] {
        let (_sim, fs) = fresh(2 * MIB, block_size).unwrap();
        let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
        let kept = file(&fs, "kept");
        fs.append(&Credentials::ROOT, kept, &[3; 9000]).unwrap();
        let made = fill(&fs);
        let before = (contents(&fs, kept), names(&fs, Ino::ROOT), names(&fs, dir));

        let large = vec![1; 64 << 10];
        assert_eq!(
            errno(fs.append(&Credentials::ROOT, kept, &large)),
            libc::ENOSPC
        );
        assert_eq!(
            errno(fs.setxattr(&Credentials::ROOT, kept, b"user.a", &large, XattrMode::Set)),
            libc::ENOSPC
        );
        let room = Fallocate::Allocate { keep_size: false };
        assert_eq!(
            errno(fs.fallocate(&Credentials::ROOT, kept, room, 0, 1 << 20)),
            libc::ENOSPC
        );
        assert_eq!(
            errno(fs.symlink(&ROOT, dir, b"s", &[b'x'; 4095])),
            libc::ENOSPC
        );
        let after = (contents(&fs, kept), names(&fs, Ino::ROOT), names(&fs, dir));
        assert!(before == after);

        // Operations that free space succeed one after the other, until everything is
        // free.
        let shrink = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, kept, &shrink).unwrap();
        for name in made {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        fs.rmdir(Ino::ROOT, b"dir").unwrap();
        fs.append(&Credentials::ROOT, kept, &large).unwrap();
    }
}

/// `available` excludes the reserve, `free` includes it.
#[test]
fn statfs_reserve_is_free_but_not_available() {
    let (_sim, fs) = small();
    let s = fs.statfs().unwrap();
    assert!(s.available < s.free && s.free < s.blocks);
    fill(&fs);
    let s = fs.statfs().unwrap();
    assert!(s.free > 0, "the reserve is still there");
    assert!(
        s.available < 8,
        "what is left is too little for a file: {}",
        s.available
    );
}

#[test]
fn append_is_all_or_nothing_and_write_may_be_short() {
    let (_sim, fs) = fresh(2 * MIB, 4096).unwrap();
    let ino = file(&fs, "f");
    let more = vec![1; 4 * MIB];
    assert_eq!(
        errno(fs.append(&Credentials::ROOT, ino, &more)),
        libc::ENOSPC
    );
    assert_eq!(fs.getattr(ino).unwrap().size, 0);
    let n = fs.write(&Credentials::ROOT, ino, 0, &more).unwrap();
    assert!(n > 0 && n < more.len());
    assert_eq!(fs.getattr(ino).unwrap().size, n as u64);
    assert_eq!(
        errno(fs.write(&Credentials::ROOT, ino, n as u64, &more)),
        libc::ENOSPC
    );
}

/// A caller that assigns the offsets of an append itself may store its parts in any
/// order. A failed part leaves the size unchanged.
#[test]
fn append_parts_in_any_order_are_atomic() {
    for block_size in [512, 4096] {
        let (_sim, fs) = fresh(8 * MIB, block_size).unwrap();
        let ino = file(&fs, "f");
        fs.append(&Credentials::ROOT, ino, b"an odd end").unwrap();
        let bytes: Vec<u8> = (0..3 * MIB as u32).map(|n| (n >> 9) as u8).collect();
        for part in [2, 0, 1] {
            let at = part * MIB;
            fs.append_part(
                &Credentials::ROOT,
                ino,
                10 + at as u64,
                &bytes[at..at + MIB],
            )
            .unwrap();
        }
        let got = contents(&fs, ino);
        assert!(got.starts_with(b"an odd end") && got[10..] == bytes);

        let (size, more) = (got.len() as u64, vec![1; 8 * MIB]);
        for at in [size, size + MIB as u64] {
            assert_eq!(
                errno(fs.append_part(&Credentials::ROOT, ino, at, &more)),
                libc::ENOSPC
            );
            assert_eq!(fs.getattr(ino).unwrap().size, size);
        }
        assert_eq!(
            errno(fs.append_part(&Credentials::ROOT, ino, i64::MAX as u64, b"ab")),
            libc::EFBIG
        );
    }
}

/// One record, so it is atomic over a crash: two fences, one for the data and one for the
/// record.
#[test]
fn append_of_1_mib_uses_one_record() {
    for block_size in [512, 1024, 2048, 4096] {
        let (sim, fs) = fresh(16 * MIB, block_size).unwrap();
        let ino = file(&fs, "f");
        fs.append(&Credentials::ROOT, ino, b"an odd end").unwrap();
        let before = sim.counters();
        fs.append(&Credentials::ROOT, ino, &vec![1; MIB]).unwrap();
        assert_eq!(
            (sim.counters() - before).fences,
            2,
            "blocks of {block_size}"
        );
    }
}

/// Allocated blocks read as zeros, whatever their old contents, and count as a hole for
/// SEEK_DATA.
#[test]
fn fallocated_blocks_read_zero_and_seek_as_hole() {
    let (_sim, fs) = small();
    let old = file(&fs, "old");
    fs.append(&Credentials::ROOT, old, &[0xee; 1 << 20])
        .unwrap();
    fs.unlink(Ino::ROOT, b"old").unwrap();
    fs.sync().unwrap();
    let ino = file(&fs, "f");
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::Allocate { keep_size: false },
        0,
        1 << 20,
    )
    .unwrap();
    assert!(contents(&fs, ino).iter().all(|&b| b == 0));
    assert_eq!(errno(fs.seek(ino, 0, SeekWhence::Data)), libc::ENXIO);
    fs.write(&Credentials::ROOT, ino, 100_000, b"data").unwrap();
    assert_eq!(fs.seek(ino, 0, SeekWhence::Data).unwrap(), 98_304);
    assert_eq!(fs.seek(ino, 98_304, SeekWhence::Hole).unwrap(), 102_400);
    assert_eq!(fs.getattr(ino).unwrap().size, 1 << 20);
}

/// An aligned 2 MiB range is one leaf and becomes data as a whole. Its zero blocks are
/// holes for seek, from any offset.
#[test]
fn fallocated_2_mib_leaf_becomes_data_as_whole() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::Allocate { keep_size: false },
        0,
        4 << 20,
    )
    .unwrap();
    fs.write(&Credentials::ROOT, ino, (2 << 20) + 100_000, b"data")
        .unwrap();
    let (data, end) = ((2 << 20) + 98_304, (2 << 20) + 102_400);
    let seek = |at, whence| fs.seek(ino, at, whence);
    assert_eq!(seek(0, SeekWhence::Data).unwrap(), data);
    assert_eq!(seek(data + 17, SeekWhence::Data).unwrap(), data + 17);
    assert_eq!(seek(data, SeekWhence::Hole).unwrap(), end);
    assert_eq!(seek(2 << 20, SeekWhence::Hole).unwrap(), 2 << 20);
    assert_eq!(seek(end + 5, SeekWhence::Hole).unwrap(), end + 5);
    assert_eq!(errno(seek(end, SeekWhence::Data)), libc::ENXIO);
    fs.write(&Credentials::ROOT, ino, 2 << 20, &vec![1; 2 << 20])
        .unwrap();
    assert_eq!(seek(2 << 20, SeekWhence::Hole).unwrap(), 4 << 20);
    fs.write(&Credentials::ROOT, ino, 2 << 20, &vec![0; 2 << 20])
        .unwrap();
    fs.write(&Credentials::ROOT, ino, (2 << 20) + 100_000, b"data")
        .unwrap();
    let bytes = contents(&fs, ino);
    assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), 4);
}

#[test]
fn punch_frees_blocks_and_zero_range_keeps_them() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[5; 64 << 10]).unwrap();
    let blocks = |fs: &Fs| fs.getattr(ino).unwrap().blocks;
    let before = blocks(&fs);
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::ZeroRange { keep_size: true },
        1000,
        20_000,
    )
    .unwrap();
    assert_eq!(blocks(&fs), before);
    fs.fallocate(&Credentials::ROOT, ino, Fallocate::PunchHole, 4096, 8192)
        .unwrap();
    assert_eq!(blocks(&fs), before - 16);
    let bytes = contents(&fs, ino);
    assert_eq!(bytes.len(), 64 << 10);
    let zeros = |b: &[u8]| b.iter().all(|&b| b == 0);
    assert!(zeros(&bytes[1000..21_000]) && bytes[999] == 5 && bytes[21_000] == 5);
}

/// Truncated data does not reappear when the file grows again.
#[test]
fn truncated_file_grows_with_zeros() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[5; 10_000]).unwrap();
    for size in [100, 10_000] {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
    }
    let bytes = contents(&fs, ino);
    assert!(bytes[..100].iter().all(|&b| b == 5) && bytes[100..].iter().all(|&b| b == 0));
}

#[test]
fn file_grows_to_limit_of_each_block_size() {
    for block_size in [512, 1024, 2048, 4096] {
        let (_sim, fs) = fresh(2 * MIB, block_size).unwrap();
        let ino = file(&fs, "f");
        for at in [16 << 40, i64::MAX as u64 - 4] {
            assert_eq!(fs.write(&Credentials::ROOT, ino, at, b"last").unwrap(), 4);
            let mut back = [0; 4];
            fs.read(ino, at, &mut back).unwrap();
            assert_eq!(&back, b"last");
        }
        assert_eq!(fs.getattr(ino).unwrap().size, i64::MAX as u64);
        assert_eq!(
            errno(fs.write(&Credentials::ROOT, ino, i64::MAX as u64, b"x")),
            libc::EFBIG
        );
        assert_eq!(errno(fs.append(&Credentials::ROOT, ino, b"x")), libc::EFBIG);
        assert!(fs.getattr(ino).unwrap().blocks < 200);
    }
}

/// `-N` limits the number of inodes; freed ones are reused.
#[test]
fn inode_limit_holds_and_freed_inodes_return() {
    use pramfs::format::FormatOptions;
    use pramfs_tests::region::{formatted, mount, quiet, repeatable};
    let options = FormatOptions {
        max_inodes: Some(100),
        ..repeatable(4096)
    };
    let fs = mount(&formatted(4 * MIB, &options).unwrap(), quiet()).unwrap();
    let free = fs.statfs().unwrap().free_inodes;
    for i in 0..free {
        file(&fs, &format!("f{i}"));
    }
    let create = || fs.create(&ROOT, Ino::ROOT, b"more", 0o644);
    assert!(matches!(create(), Err(Error::NoSpace(_))));
    assert!(matches!(find(&fs, "more"), Err(Error::NotFound)));
    fs.unlink(Ino::ROOT, b"f0").unwrap();
    create().unwrap();
}

/// The simulated medium fills discarded blocks with garbage. No read returns any of it.
#[test]
fn trim_discards_only_free_blocks() {
    use pramfs::Access;
    let (sim, fs) = small();
    let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 512) as u8).collect();
    let (stays, goes) = (file(&fs, "stays"), file(&fs, "goes"));
    for ino in [stays, goes] {
        fs.append(&Credentials::ROOT, ino, &bytes).unwrap();
    }
    // A view holds its blocks after the file has freed them.
    let view = fs
        .open_file(goes)
        .unwrap()
        .map(0..1 << 20, Access::Write)
        .unwrap();
    fs.unlink(Ino::ROOT, b"goes").unwrap();
    let given = |start, len, least| fs.trim(start, len, least).unwrap();
    let free = fs.statfs().unwrap().available * 4096;
    let all = given(0, u64::MAX, 0);
    assert!(all >= free && all >= 2 << 20, "{all} of {free}");
    let mut seen = vec![0; 1 << 20];
    view.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    drop(view);
    assert!(given(0, u64::MAX, 0) >= all + (1 << 20));
    assert_eq!(given(0, u64::MAX, 128 << 20), 0, "no run is so long");
    assert!(given(1 << 20, 1 << 20, 0) <= 1 << 20);
    assert!(contents(&fs, stays) == bytes);
    file(&fs, "more");
    // Also after a crash: contents of free blocks never matter.
    let image = pramfs_medium::pmem::SimBackend::from_image(&sim.image()).unwrap();
    drop(fs);
    let fs = pramfs_tests::region::mount(&image, quiet()).unwrap();
    assert!(contents(&fs, stays) == bytes);
    let errno = |start, len, least| fs.trim(start, len, least).unwrap_err().errno();
    assert_eq!(errno(8 << 20, 4096, 0), libc::EINVAL);
    assert_eq!(errno(0, 4095, 0), libc::EINVAL);
    assert_eq!(errno(0, u64::MAX, 1 << 40), libc::EINVAL);
    fs.close().unwrap();
    let region = pramfs_tests::region::region_of(&image);
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");
}

/// Groups get their bitmaps while free blocks are trimmed: no bitmap is lost.
#[test]
fn trim_spares_bitmaps_being_created() {
    // 512-byte blocks: a group has 2 MiB.
    let (sim, fs) = fresh(48 << 20, 512).unwrap();
    let chunk = vec![0x77; 300_000];
    std::thread::scope(|s| {
        let writing = s.spawn(|| {
            for i in 0..100 {
                let ino = file(&fs, &format!("f{i}"));
                fs.append(&Credentials::ROOT, ino, &chunk).unwrap();
            }
        });
        while !writing.is_finished() {
            fs.trim(0, u64::MAX, 0).unwrap();
        }
    });
    for i in 0..100 {
        let ino = find(&fs, &format!("f{i}")).unwrap();
        assert!(contents(&fs, ino) == chunk);
    }
    fs.close().unwrap();
    let region = pramfs_tests::region::region_of(&sim);
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");
}

/// Write-back of the pages of a mapping: a short count would be treated as complete.
#[test]
fn write_back_is_whole_or_returns_first_error() {
    for block_size in [512, 4096] {
        let (_sim, fs) = fresh(2 * MIB, block_size).unwrap();
        let block = u64::from(block_size);
        let ino = file(&fs, "f");
        // Blocks, a hole of 16 blocks, blocks.
        fs.append(&Credentials::ROOT, ino, &vec![1; 4 * block_size as usize])
            .unwrap();
        fs.write(
            &Credentials::ROOT,
            ino,
            20 * block,
            &vec![1; 4 * block_size as usize],
        )
        .unwrap();
        fill(&fs);
        let bytes = vec![2; 24 * block_size as usize];
        assert_eq!(errno(fs.write_back(ino, 0, &bytes)), libc::ENOSPC);
        let stored = contents(&fs, ino);
        let at = |block: usize| stored[block * block_size as usize];
        assert!((0..4).all(|n| at(n) == 2), "in front of the hole");
        assert!((20..24).all(|n| at(n) == 2), "behind it");
        assert_eq!(at(19), 0, "the region was full");
        // If no block has to be allocated, the write is complete.
        fs.write_back(ino, 0, &bytes[..4 * block_size as usize])
            .unwrap();
    }
    let (_sim, fs) = fresh(2 * MIB, 4096).unwrap();
    let ino = file(&fs, "f");
    let last = i64::MAX as u64 - 10;
    assert_eq!(errno(fs.write_back(ino, last, &[3; 20])), libc::EFBIG);
    let mut stored = [0; 10];
    assert_eq!(fs.read(ino, last, &mut stored).unwrap(), 10);
    assert_eq!(stored, [3; 10], "up to the largest offset");
}
