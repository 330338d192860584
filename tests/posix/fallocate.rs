//! fallocate and truncate at every boundary: the result, the size and each byte
//! afterwards (xfstests 008 009 012 071 086 092 228 255 350 511 688).

use std::fs::File;
use std::os::unix::fs::FileExt;

use pramfs_tests::syscalls::errno;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use crate::Reference::{Ext4, Tmpfs};
use crate::{Transcript, agree};

const BLOCK: u64 = 4096;
/// Size of a large leaf of a file map, used where space is contiguous.
const LARGE: u64 = 2 << 20;

/// The last block that a file can have. ext4 files end at 16 TiB.
const LAST: (u64, u64) = (i64::MAX as u64 - BLOCK, BLOCK);

fn new(dir: &std::path::Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(dir.join("f"))
        .expect("a file")
}

/// The size, and the runs of equal bytes.
fn contents(file: &File) -> (u64, Vec<(u8, usize)>) {
    let size = file.metadata().expect("stat").len();
    let mut bytes = vec![0; size.min(8 << 20) as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let runs = bytes.chunk_by(|a, b| a == b);
    (size, runs.map(|run| (run[0], run.len())).collect())
}

/// Ranges by offset and length: at, before and after boundaries of blocks, of written
/// data, and of the largest file.
fn ranges(written: u64) -> [(u64, u64); 16] {
    [
        (0, 0),
        (0, 1),
        (0, BLOCK),
        (100, 100),
        (BLOCK - 96, 200),
        (BLOCK, BLOCK),
        (0, 1 << 20),
        (1 << 20, 1 << 20),
        (written, BLOCK),
        (written.saturating_sub(1), 2),
        (LARGE - 5000, 10_000),
        LAST,
        (i64::MAX as u64 - 1, 4),
        (1 << 62, 1 << 62),
        (u64::MAX, 1),
        (0, u64::MAX),
    ]
}

fn each(
    dir: &std::path::Path,
    n: &mut Transcript,
    flags: &[FallocateFlags],
    but: Option<(u64, u64)>,
) {
    for written in [0, 10, BLOCK, 5000, LARGE + 5000] {
        for &flags in flags {
            for range in ranges(written) {
                let (offset, len) = range;
                if Some(range) == but {
                    continue;
                }
                let file = new(dir);
                file.write_all_at(&vec![0xdd; written as usize], 0)
                    .expect("write");
                let what = format!("{flags:?} {offset}+{len} of {written}");
                n.call(&what, errno(fallocate(&file, flags, offset, len)));
                n.note(&what, contents(&file));
                // The resulting file is an ordinary one.
                file.write_all_at(b"again", BLOCK - 2).expect("write");
                n.note(&what, contents(&file));
            }
        }
    }
}

#[test]
fn fallocate_modes_match_kernel_at_every_range() {
    use FallocateFlags as F;
    let both = [
        F::empty(),
        F::KEEP_SIZE,
        F::PUNCH_HOLE,
        F::PUNCH_HOLE | F::KEEP_SIZE,
        F::PUNCH_HOLE | F::ZERO_RANGE | F::KEEP_SIZE,
        F::NO_HIDE_STALE,
    ];
    agree("fallocate", &[Tmpfs], |dir, n| each(dir, n, &both, None));
    let but = Some(LAST);
    agree("fallocate", &[Ext4], |dir, n| each(dir, n, &both, but));
}

/// tmpfs does not have these modes.
#[test]
fn zero_range_matches_ext4() {
    use FallocateFlags as F;
    let flags = [F::ZERO_RANGE, F::ZERO_RANGE | F::KEEP_SIZE];
    agree("ZERO_RANGE", &[Ext4], |dir, n| {
        each(dir, n, &flags, Some(LAST))
    });
}

#[test]
fn truncate_then_extend_shows_zeros() {
    agree("truncate", &[Tmpfs, Ext4], |dir, n| {
        let sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, LARGE, LARGE + 1];
        for written in [0, 10, 5000, LARGE + 5000] {
            for first in sizes {
                for second in sizes {
                    let file = new(dir);
                    file.write_all_at(&vec![0xdd; written as usize], 0)
                        .expect("write");
                    let what = format!("{written}, {first}, {second}");
                    n.call(&what, errno(ftruncate(&file, first)));
                    n.call(&what, errno(ftruncate(&file, second)));
                    n.note(&what, contents(&file));
                }
            }
        }
        let file = new(dir);
        n.call("too far", errno(ftruncate(&file, 1 << 63)));
        n.call(
            "a directory",
            errno(ftruncate(File::open(dir).expect("open"), 1)),
        );
        let reading = File::open(dir.join("f")).expect("open");
        n.call("for reading", errno(ftruncate(&reading, 1)));
        let none = FallocateFlags::empty();
        n.call("for reading", errno(fallocate(&reading, none, 0, 1)));
        let dir = File::open(dir).expect("open");
        n.call("a directory", errno(fallocate(&dir, none, 0, 1)));
    });
}
