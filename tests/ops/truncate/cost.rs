//! What truncate costs: fences, lines and bytes.

use pramfs::inode::{Credentials, SetAttr};

use crate::support::cost::{BLOCK, OPS, hold, row};

#[test]
fn truncate_stays_within_fence_budget() {
    hold(&[row("truncate to a shorter size", 1.05, 2, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let left = 4096 - i % 4096;
            if left == 4096 {
                b.fs.write(&Credentials::ROOT, f, 0, &vec![1; 16 << 20])
                    .unwrap();
            }
            b.count(|fs| {
                let set = SetAttr {
                    size: Some((left - 1) * BLOCK),
                    ..SetAttr::default()
                };
                fs.setattr(&Credentials::ROOT, f, &set)
            });
        }
    })]);
}
