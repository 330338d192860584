//! What gather costs: fences, lines and bytes.

use pramfs::inode::{Credentials, Gathered};

use crate::support::cost::{BLOCK, hold, row};

/// Leaves that are made. Each copies 2 MiB.
const LEAVES: u64 = 100;

#[test]
fn gather_stays_within_fence_budget() {
    let page = [0x5au8; BLOCK as usize];
    let gathers = row("gather of a leaf of 2 MiB", 2.1, 4, |b| {
        let files = [b.file(b"f"), b.file(b"g")];
        let leaf = b.fs.gather_unit();
        for i in 0..LEAVES {
            b.size(files[0], 0);
            // The blocks of the two alternate.
            for at in (0..leaf).step_by(BLOCK as usize) {
                for (file, offset) in files.iter().zip([at, i * leaf + at]) {
                    let written = b.fs.write(&Credentials::ROOT, *file, offset, &page);
                    assert_eq!(written.unwrap(), page.len());
                }
            }
            let done = b.count(|fs| fs.gather(files[0], 0));
            assert_eq!(done, Gathered::Moved);
        }
    });
    hold(&[gathers.of(LEAVES)]);
}
