//! Offsets, lengths and sizes at and past every limit, for each operation that takes one:
//! limits of a block, of 2 MiB, of 16 TiB, of the largest file, and of integer
//! arithmetic.
//!
//! Each call fails with the errno of Linux and changes nothing.
//! (`fuse-frontend/tests/mount/requests.rs` compares a mount with tmpfs for the same
//! requests.)

use crate::bad_support::fixture::{BLOCK_SIZES, Fixture, bed_of, fixture, still};
use crate::bad_support::model::CX;
use pramfs::Access;
use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{
    Fallocate, Result, SeekWhence,
    inode::{Fs, SetAttr},
};
use pramfs_tests::tree::Tree;

/// The largest size of a file.
const LARGEST: u64 = i64::MAX as u64;

/// Offsets around each limit of the format and of the arithmetic.
fn offsets(block: u64) -> Vec<u64> {
    let mut list = vec![0, 1, block - 1, block, block + 1];
    for limit in [2 << 20, 16 << 40, 1 << 52, 1 << 62, LARGEST + 1] {
        list.extend([
            limit - block - 1,
            limit - block,
            limit - 2,
            limit - 1,
            limit,
            limit + 1,
        ]);
    }
    list.extend([u64::MAX - block, u64::MAX - 1, u64::MAX]);
    list
}

#[test]
fn read_and_seek_at_any_offset_stop_at_eof() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        let size = b.fs.getattr(b.file).unwrap().size;
        let before = Tree::of(&b.fs).unwrap();
        for at in offsets(block_size.into()) {
            for len in [0, 1, 4096, 100_000] {
                let mut into = vec![9; len];
                let n = b.fs.read(b.file, at, &mut into).unwrap();
                assert_eq!(n as u64, size.saturating_sub(at).min(len as u64), "{at}");
                assert!(into[n..].iter().all(|x| *x == 9));
            }
            for len in [0, 1, 5000, usize::MAX] {
                b.fs.with_contiguous(b.file, at, len, &mut |bytes| {
                    assert!(bytes.len() as u64 <= size.saturating_sub(at));
                })
                .unwrap();
            }
            for len in [0, 1, LARGEST, u64::MAX] {
                let list = b.fs.file_extents(b.file, at, len).unwrap();
                let sum: u64 = list.iter().map(|e| e.len).sum();
                assert_eq!(sum, size.saturating_sub(at).min(len), "{at} + {len}");
            }
            for whence in [SeekWhence::Data, SeekWhence::Hole] {
                let found = b.fs.seek(b.file, at, whence);
                match found {
                    Ok(to) => assert!(at < size && (at..=size).contains(&to), "{at}: {to}"),
                    Err(e) => {
                        assert!(at >= size, "{at}: {e}");
                        assert_eq!(e.errno(), libc::ENXIO);
                    }
                }
            }
        }
        let after = Tree::of(&b.fs).unwrap();
        assert!(before == after, "{}", before.differences(&after));
        b.end();
    }
}

#[test]
fn write_past_maximum_offset_is_efbig() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        b.fs.write(&CX, b.file, LARGEST + 5, b"").unwrap();
        for at in offsets(block_size.into()) {
            for len in [1, 5, 9000] {
                let bytes = vec![5; len as usize];
                if at >= LARGEST {
                    b.refused("write", &[libc::EFBIG], |fs| {
                        fs.write(&CX, b.file, at, &bytes)
                    });
                    continue;
                }
                // Its own file, which is removed again.
                let f = b.fs.create(&CX, b.dir, b"far", 0o644).unwrap().ino;
                let n = b.fs.write(&CX, f, at, &bytes).unwrap() as u64;
                assert_eq!(n, len.min(LARGEST - at), "{at} + {len}");
                assert_eq!(b.fs.getattr(f).unwrap().size, at + n);
                let mut back = vec![0; len as usize];
                assert_eq!(b.fs.read(f, at, &mut back).unwrap() as u64, n);
                assert!(back[..n as usize] == bytes[..n as usize]);
                let left = LARGEST - (at + n);
                if left < 9000 {
                    let more = vec![6; left as usize + 1];
                    b.refused("append", &[libc::EFBIG], |fs| fs.append(&CX, f, &more));
                    assert_eq!(b.fs.append(&CX, f, &more[..left as usize]).unwrap(), at + n);
                }
                b.fs.unlink(b.dir, b"far").unwrap();
            }
        }
        b.end();
    }
}

#[test]
fn truncate_at_and_past_size_limit() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        let to = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        for size in offsets(block_size.into()) {
            if size > LARGEST {
                // No other part of the request takes effect either.
                let set = SetAttr {
                    perm: Some(0o600),
                    ..to(size)
                };
                b.refused("truncate", &[libc::EFBIG], |fs| {
                    fs.setattr(&CX, b.file, &set)
                });
                continue;
            }
            let was = b.fs.getattr(b.file).unwrap().blocks;
            let attr = b.fs.setattr(&CX, b.file, &to(size)).unwrap();
            assert_eq!(attr.size, size);
            assert!(attr.blocks <= was, "{size}: no block is taken for a hole");
        }
        b.refused("truncate of a directory", &[libc::EISDIR], |fs| {
            fs.setattr(&CX, b.dir, &to(0))
        });
        let link = b.fs.lookup(b.dir, b"link").unwrap().ino;
        b.refused("truncate of a link", &[libc::EINVAL], |fs| {
            fs.setattr(&CX, link, &to(0))
        });
        b.end();
    }
}

const MODES: [Fallocate; 5] = [
    Fallocate::Allocate { keep_size: false },
    Fallocate::Allocate { keep_size: true },
    Fallocate::ZeroRange { keep_size: false },
    Fallocate::ZeroRange { keep_size: true },
    Fallocate::PunchHole,
];

#[test]
fn fallocate_past_limits_is_efbig() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        for at in offsets(block_size.into()) {
            for len in [0, 1, 5000, LARGEST, LARGEST + 1, u64::MAX] {
                for mode in MODES {
                    let what = format!("{mode:?} {at} + {len}");
                    let past = at.checked_add(len).is_none_or(|end| end > LARGEST);
                    let request = |fs: &Fs| fs.fallocate(&CX, b.file, mode, at, len);
                    if len == 0 {
                        b.refused(&what, &[libc::EINVAL], request);
                    } else if past {
                        b.refused(&what, &[libc::EFBIG], request);
                    } else if len == LARGEST && mode != Fallocate::PunchHole {
                        // The largest possible amount: it does not fit, and all blocks
                        // taken on the way are freed. The first time, grown map levels
                        // and bitmaps of newly used groups stay.
                        let first = contents(&b);
                        assert_eq!(request(&b.fs).unwrap_err().errno(), libc::ENOSPC);
                        let before = contents(&b);
                        assert!(first.free - before.free < 30, "{what}");
                        assert_eq!(request(&b.fs).unwrap_err().errno(), libc::ENOSPC);
                        let after = contents(&b);
                        assert!(before == after, "{what}: {}", before.differences(&after));
                    }
                }
                if len != 0 {
                    continue;
                }
                b.refused("fill", &[libc::EINVAL], |fs| fs.fill(b.file, at, 0));
            }
        }
        b.refused("fill", &[libc::EFBIG], |fs| {
            fs.fill(b.file, 4096, u64::MAX - 4095)
        });
        for mode in MODES {
            b.refused("of a directory", &[libc::EISDIR], |fs| {
                fs.fallocate(&CX, b.dir, mode, 0, 1)
            });
        }
        b.end();
    }
}

/// Everything except times, which a failed request that frees blocks may set.
fn contents(b: &Fixture) -> Tree {
    Tree::of(&b.fs).unwrap().timeless()
}

/// Allocates and punches one block at each offset that a file can have, in each mode. The
/// blocks become free again and the rest of the file is unchanged.
#[test]
fn block_at_each_offset_is_allocated_and_punched() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        let block = u64::from(block_size);
        for at in offsets(block).into_iter().filter(|at| *at < LARGEST) {
            let f = b.fs.create(&CX, b.dir, b"far", 0o644).unwrap().ino;
            let len = block.min(LARGEST - at);
            for mode in MODES {
                b.fs.fallocate(&CX, f, mode, at, len).unwrap();
                let keep = matches!(
                    mode,
                    Fallocate::PunchHole
                        | Fallocate::Allocate { keep_size: true }
                        | Fallocate::ZeroRange { keep_size: true }
                );
                let attr = b.fs.getattr(f).unwrap();
                assert!(keep || attr.size == at + len, "{mode:?} {at}");
                b.fs.write(&CX, f, at, b"x").unwrap();
                b.fs.fallocate(&CX, f, Fallocate::PunchHole, at, len)
                    .unwrap();
                let mut back = [9];
                b.fs.read(f, at, &mut back).unwrap();
                assert_eq!(back, [0]);
                b.fs.fallocate(&CX, f, Fallocate::PunchHole, 0, LARGEST)
                    .unwrap();
                // The block at the largest offset ends one byte past it, so it can never
                // be punched as a whole.
                let last = (at + len - 1) / block == LARGEST / block;
                let left = b.fs.getattr(f).unwrap().blocks;
                assert!(left == 0 || last, "{mode:?} {at}: {left}");
            }
            b.fs.unlink(b.dir, b"far").unwrap();
        }
        b.end();
    }
}

#[test]
fn map_past_limits_is_refused() {
    let region = RegionOptions::new().memfd("views", 8 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let b = bed_of(Fs::open(region, still()).unwrap());
    let size = b.fs.getattr(b.file).unwrap().size;
    let map =
        |range: std::ops::Range<u64>, access| b.fs.open_file(b.file)?.map(range, access).map(drop);
    for access in [Access::Read, Access::Write] {
        for at in offsets(4096) {
            let what = format!("{access:?} at {at}");
            b.refused(&what, &[libc::EINVAL], |_| map(at..at, access));
            b.refused(&what, &[libc::EINVAL], |_| map(at..0, access));
            if at > size {
                let errnos = [libc::EINVAL, libc::EFBIG];
                b.refused(&what, &errnos, |_| map(0..at, access));
                b.refused(&what, &errnos, |_| map(at - 1..at, access));
                b.refused(&what, &errnos, |_| map(at..u64::MAX, access));
            }
        }
        let dir = |_: &Fs| b.fs.open_file(b.dir)?.map(0..1, access).map(drop);
        b.refused("a directory", &[libc::EISDIR, libc::EINVAL], dir);
    }
    // A file of 8 EiB exceeds the address space and the number of blocks.
    let huge = b.fs.create(&CX, b.dir, b"huge", 0o644).unwrap().ino;
    b.fs.write(&CX, huge, LARGEST - 1, b"x").unwrap();
    for end in [LARGEST, 1 << 60, 1 << 48] {
        b.refused("a view of all of it", &[libc::ENOMEM, libc::EFBIG], |fs| {
            fs.open_file(huge)?.map(0..end, Access::Read).map(drop)
        });
        let before = contents(&b);
        let e = b.fs.open_file(huge).unwrap().map(0..end, Access::Write);
        assert_eq!(e.map(drop).unwrap_err().errno(), libc::ENOSPC);
        assert!(contents(&b) == before);
    }

    let file = b.fs.open_file(b.file).unwrap();
    let view = file.map(100..5000, Access::Write).unwrap();
    let before = Tree::of(&b.fs).unwrap();
    for at in offsets(4096).into_iter().filter(|at| *at > 4900) {
        let einval = |r: Result<()>| assert_eq!(r.unwrap_err().errno(), libc::EINVAL, "{at}");
        einval(view.load::<u64>(at).map(drop));
        einval(view.store::<u64>(at, 1));
        einval(view.fetch_add::<u64>(at, 1).map(drop));
        einval(view.read(at, &mut [0; 8]));
        einval(view.write(at, &[0; 8]));
        einval(view.persist(at - 1..at));
        einval(view.persist(0..at));
        einval(view.persist(at..u64::MAX));
    }
    for at in [4893, 4899, 4900] {
        assert!(view.load::<u64>(at).is_err() && view.store::<u64>(at, 1).is_err());
    }
    let after = Tree::of(&b.fs).unwrap();
    assert!(before == after, "{}", before.differences(&after));
    drop((view, file));
    b.end();
}
