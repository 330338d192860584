//! What chattr costs: fences, lines and bytes.

use pramfs::inode::{Credentials, SetAttr};

use crate::support::cost::{OPS, hold, row};

#[test]
fn chattr_stays_within_fence_budget() {
    hold(&[row("chattr", 1.0, 1, |b| {
        let f = b.file(b"f");
        for i in 0..OPS {
            let set = SetAttr {
                flags: Some([0x40, 0x80][i as usize & 1]),
                ..SetAttr::default()
            };
            b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
        }
    })]);
}
