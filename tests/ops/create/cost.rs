//! What create costs: fences, lines and bytes.

use pramfs::XattrMode;
use pramfs::inode::Credentials;

use crate::support::cost::{OPS, acl, hold, name, row};

#[test]
fn create_stays_within_fence_budget() {
    let ctx = Credentials::ROOT;
    hold(&[
        row("create", 1.05, 3, |b| {
            let d = b.dir;
            for i in 0..OPS {
                b.count(|fs| fs.create(&ctx, d, &name(i), 0o644));
            }
        }),
        row("mknod", 1.05, 3, |b| {
            let d = b.dir;
            for i in 0..OPS {
                b.count(|fs| fs.mknod(&ctx, d, &name(i), libc::S_IFIFO | 0o600, 0));
            }
        }),
        // The attributes of each file have their own leaf: new data.
        row("create under a default ACL", 2.05, 4, |b| {
            let d = b.dir;
            let name_of = b"system.posix_acl_default";
            b.fs.setxattr(&Credentials::ROOT, d, name_of, &acl(5), XattrMode::Set)
                .unwrap();
            for i in 0..OPS {
                b.count(|fs| fs.create(&ctx, d, &name(i), 0o666));
            }
        }),
    ]);
}
