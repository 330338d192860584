//! fallocate at every boundary: the result, the size, each byte and the times afterwards
//! (xfstests 008 009 012 071 086 092 228 255 350 511 688).

use std::os::unix::fs::FileExt;

use pramfs_tests::syscalls::errno;
use rustix::fs::{FallocateFlags, fallocate};

use crate::support::file::{BLOCK, LARGE, new, size_and_runs};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;
use crate::support::times::tick;
use crate::support::transcript::Transcript;

/// The last block that a file can have. ext4 files end at 16 TiB.
const LAST: (u64, u64) = (i64::MAX as u64 - BLOCK, BLOCK);

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
                let file = new(&dir.join("f"));
                file.write_all_at(&vec![0xdd; written as usize], 0)
                    .expect("write");
                let what = format!("{flags:?} {offset}+{len} of {written}");
                n.call(&what, errno(fallocate(&file, flags, offset, len)));
                n.note(&what, size_and_runs(&file));
                // The resulting file is an ordinary one.
                file.write_all_at(b"again", BLOCK - 2).expect("write");
                n.note(&what, size_and_runs(&file));
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

/// Also if everything is allocated already, or there is nothing to punch.
#[test]
fn fallocate_sets_mtime_and_ctime() {
    use rustix::fs::FallocateFlags as F;
    use std::os::unix::fs::MetadataExt as _;
    agree("times of fallocate", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; 10_000]).expect("a file");
        let file = std::fs::File::options().write(true).open(&path);
        let file = file.expect("open");
        let keep = F::KEEP_SIZE;
        for (what, flags, from, len) in [
            ("past the end", keep, 0, 100_000),
            ("all allocated, kept", keep, 0, 100_000),
            ("all allocated", F::empty(), 0, 4096),
            ("grows", F::empty(), 0, 50_000),
            ("punch", F::PUNCH_HOLE | keep, 0, 4096),
            ("punch a hole", F::PUNCH_HOLE | keep, 0, 4096),
        ] {
            let times = || {
                let m = std::fs::metadata(&path).expect("stat");
                [(m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())]
            };
            let before = times();
            tick();
            rustix::fs::fallocate(&file, flags, from, len).expect("fallocate");
            let after = times();
            n.note(what, [0, 1].map(|i| after[i] != before[i]));
        }
    });
}
