//! What an overwrite costs: fences, lines and bytes.

use pramfs::inode::Credentials;
use pramfs_tests::random::Random;

use crate::support::cost::{BLOCK, OPS, hold, row};

#[test]
fn overwrite_stays_within_fence_budget() {
    let page = [0x5au8; BLOCK as usize];
    hold(&[row("overwrite 4 KiB", 1.0, 1, |b| {
        let f = b.file(b"f");
        b.fs.write(&Credentials::ROOT, f, 0, &vec![1; 16 << 20])
            .unwrap();
        let mut random = Random::new(1);
        for _ in 0..OPS {
            let at = random.below(4096) * BLOCK;
            b.count(|fs| fs.write(&Credentials::ROOT, f, at, &page));
        }
    })]);
}
