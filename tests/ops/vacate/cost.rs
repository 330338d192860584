//! What vacating a leaf costs: fences, lines and bytes.

use pramfs::inode::{Credentials, Fs, Ino, Vacated};

use crate::support::cost::{BLOCK, hold, row};

const CALLS: u64 = 100;
/// Blocks that are moved, each by itself.
const BLOCKS: u64 = 128;

#[test]
fn vacate_stays_within_fence_budget() {
    let page = [0x5au8; BLOCK as usize];
    let vacates = row("vacate of 128 scattered blocks", 2.1, 4, |b| {
        let write = |fs: &Fs, file: Ino, block: u64| {
            let written = fs.write(&Credentials::ROOT, file, block * BLOCK, &page);
            assert_eq!(written.unwrap(), page.len());
        };
        // Leaves with room for single blocks, at least a leaf of them.
        let [kept, gone] = [b.file(b"kept"), b.file(b"gone")];
        for block in 0..1024 {
            write(&b.fs, kept, block);
            write(&b.fs, gone, block);
        }
        b.size(gone, 0);
        let [file, other] = [b.file(b"f"), b.file(b"g")];
        let unit = b.fs.gather_unit();
        for i in 0..CALLS {
            b.size(file, 0);
            // The blocks of the two alternate.
            for block in 0..BLOCKS {
                write(&b.fs, file, block);
                write(&b.fs, other, i * BLOCKS + block);
            }
            let place = b.fs.file_extents(file, 0, 1).unwrap()[0].region_offset;
            let place = place.unwrap();
            let done = b.count(|fs| fs.vacate(file, 0, place - place % unit));
            assert_eq!(done, Vacated::Moved);
        }
    });
    hold(&[vacates.of(CALLS)]);
}
