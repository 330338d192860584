//! What mkdir and rmdir cost: fences, lines and bytes.

use pramfs::inode::Credentials;

use crate::support::cost::{OPS, hold, name, row};

#[test]
fn mkdir_and_rmdir_stay_within_fence_budget() {
    let ctx = Credentials::ROOT;
    hold(&[
        row("mkdir", 1.05, 3, |b| {
            let d = b.dir;
            for i in 0..OPS {
                b.count(|fs| fs.mkdir(&ctx, d, &name(i), 0o755));
            }
        }),
        row("rmdir", 1.05, 2, |b| {
            let d = b.dir;
            (0..OPS).for_each(|i| {
                b.fs.mkdir(&ctx, d, &name(i), 0o755).unwrap();
            });
            for i in 0..OPS {
                b.count(|fs| fs.rmdir(d, &name(i)));
            }
        }),
    ]);
}
