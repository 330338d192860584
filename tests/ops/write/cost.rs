//! What an overwrite costs: fences, lines and bytes.

use pramfs::inode::{Credentials, SetAttr};
use pramfs_medium::media::inode::FL_ATOMIC;
use pramfs_tests::random::Random;

use crate::support::cost::{BLOCK, Bench, OPS, hold, row};

#[test]
fn overwrite_stays_within_fence_budget() {
    let page = [0x5au8; BLOCK as usize];
    let file = |b: &Bench, flags: u32| {
        let f = b.file(b"f");
        let whole = vec![1; 16 << 20];
        b.fs.write(&Credentials::ROOT, f, 0, &whole).unwrap();
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        b.fs.setattr(&Credentials::ROOT, f, &set).unwrap();
        // The first atomic write marks the region.
        b.fs.write(&Credentials::ROOT, f, 0, &page).unwrap();
        f
    };
    hold(&[
        row("overwrite 4 KiB", 1.0, 1, |b| {
            let f = file(b, 0);
            let mut random = Random::new(1);
            for _ in 0..OPS {
                let at = random.below(4096) * BLOCK;
                b.count(|fs| fs.write(&Credentials::ROOT, f, at, &page));
            }
        }),
        row("overwrite 4 KiB, atomic", 3.0, 3, |b| {
            let f = file(b, FL_ATOMIC);
            let mut random = Random::new(1);
            for _ in 0..OPS {
                let at = random.below(4096) * BLOCK;
                b.count(|fs| fs.write(&Credentials::ROOT, f, at, &page));
            }
        }),
    ]);
}
