//! What unlink costs: fences, lines and bytes.

use pramfs::inode::{Credentials, Ino};

use crate::support::cost::{OPS, hold, name, row};

#[test]
fn unlink_stays_within_fence_budget() {
    hold(&[
        row("unlink, empty file", 1.05, 2, |b| {
            let d = b.dir;
            (0..OPS).for_each(|i| {
                b.file(&name(i));
            });
            for i in 0..OPS {
                b.count(|fs| fs.unlink(d, &name(i)));
            }
        }),
        row("unlink, file of 64 KiB", 1.05, 2, |b| {
            let d = b.dir;
            for i in 0..OPS {
                let f = b.file(&name(i));
                b.fs.write(&Credentials::ROOT, f, 0, &[7; 64 << 10])
                    .unwrap();
                b.count(|fs| fs.unlink(d, &name(i)));
            }
        }),
        row("forget of an unlinked empty file", 0.07, 2, |b| {
            let d = b.dir;
            let files: Vec<Ino> = (0..OPS)
                .map(|i| {
                    let f = b.file(&name(i));
                    b.fs.hold(f).into_count();
                    b.fs.unlink(d, &name(i)).unwrap();
                    f
                })
                .collect();
            for f in files {
                b.count(|fs| {
                    fs.forget(f, 1);
                    Ok(())
                });
            }
        }),
    ]);
}
