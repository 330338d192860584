//! What an append promises: all or nothing, in any order of its parts.

use pramfs::inode::Credentials;
use pramfs_tests::region::fresh;

use crate::support::library::{MIB, contents, errno, file};

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
            fs.append_chunk(
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
                errno(fs.append_chunk(&Credentials::ROOT, ino, at, &more)),
                libc::ENOSPC
            );
            assert_eq!(fs.getattr(ino).unwrap().size, size);
        }
        assert_eq!(
            errno(fs.append_chunk(&Credentials::ROOT, ino, i64::MAX as u64, b"ab")),
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
