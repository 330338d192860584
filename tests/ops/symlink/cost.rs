//! What symlink costs: fences, lines and bytes.

use pramfs::inode::Credentials;

use crate::support::cost::{OPS, hold, name, row};

#[test]
fn symlink_stays_within_fence_budget() {
    let ctx = Credentials::ROOT;
    hold(&[
        row("symlink, target of 12 bytes", 1.05, 3, |b| {
            let d = b.dir;
            for i in 0..OPS {
                b.count(|fs| fs.symlink(&ctx, d, &name(i), b"../elsewhere"));
            }
        }),
        row("symlink, target of 200 bytes", 2.05, 4, |b| {
            let d = b.dir;
            for i in 0..OPS {
                b.count(|fs| fs.symlink(&ctx, d, &name(i), &[b'x'; 200]));
            }
        }),
    ]);
}
