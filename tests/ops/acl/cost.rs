//! What a new ACL costs: fences, lines and bytes.

use pramfs::XattrMode;
use pramfs::inode::Credentials;

use crate::support::cost::{ACCESS, OPS, acl, hold, row};

#[test]
fn acl_change_stays_within_fence_budget() {
    hold(&[row("an ACL over another", 1.0, 1, |b| {
        let f = b.file(b"f");
        b.fs.setxattr(&Credentials::ROOT, f, ACCESS, &acl(0), XattrMode::Set)
            .unwrap();
        for i in 0..OPS {
            let value = acl(i as u8 & 7);
            b.count(|fs| fs.setxattr(&Credentials::ROOT, f, ACCESS, &value, XattrMode::Set));
        }
    })]);
}
