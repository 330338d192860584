//! What setxattr costs: fences, lines and bytes.

use pramfs::XattrMode;
use pramfs::inode::Credentials;

use crate::support::cost::{OPS, SET, hold, name, row};

#[test]
fn setxattr_stays_within_fence_budget() {
    hold(&[
        row("setxattr, a new name", 1.1, 2, |b| {
            let f = b.file(b"f");
            for i in 0..OPS {
                if i.is_multiple_of(SET) && i > 0 {
                    for j in 0..SET {
                        let n = [b"user.", &name(j)[..]].concat();
                        b.fs.removexattr(f, &n).unwrap();
                    }
                }
                let n = [b"user.", &name(i % SET)[..]].concat();
                b.count(|fs| {
                    fs.setxattr(
                        &Credentials::ROOT,
                        f,
                        &n,
                        b"sixteen bytes...",
                        XattrMode::Create,
                    )
                });
            }
        }),
        row("setxattr, a new value", 1.0, 1, |b| {
            let f = b.file(b"f");
            b.fs.setxattr(&Credentials::ROOT, f, b"user.a", &[0; 16], XattrMode::Set)
                .unwrap();
            for i in 0..OPS {
                let value = [i, i].map(u64::to_le_bytes).concat();
                b.count(|fs| fs.setxattr(&Credentials::ROOT, f, b"user.a", &value, XattrMode::Set));
            }
        }),
    ]);
}
