//! What chown costs: fences, lines and bytes.

use pramfs::inode::{Credentials, SetAttr};

use crate::support::cost::{OPS, hold, row};

#[test]
fn chown_stays_within_fence_budget() {
    hold(&[row("chown", 1.0, 1, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let set = SetAttr {
                uid: Some(i as u32),
                gid: Some(i as u32),
                ..SetAttr::default()
            };
            b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
        }
    })]);
}
