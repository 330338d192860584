//! What fallocate costs: fences, lines and bytes.

use pramfs::Fallocate;
use pramfs::inode::Credentials;

use crate::support::cost::{OPS, hold, row};

#[test]
fn fallocate_stays_within_fence_budget() {
    hold(&[row("fallocate 64 KiB", 1.1, 3, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            if i.is_multiple_of(4096) {
                b.size(f, 0);
            }
            let what = Fallocate::Allocate { keep_size: false };
            b.count(|fs| fs.fallocate(&Credentials::ROOT, f, what, (i % 4096) << 16, 1 << 16));
        }
    })]);
}
