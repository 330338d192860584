//! What rename costs: fences, lines and bytes.

use pramfs::RenameFlags;
use pramfs::inode::{Credentials, Ino};

use crate::support::cost::{BLOCK, OPS, SET, hold, name, row};

#[test]
fn rename_stays_within_fence_budget() {
    let ctx = Credentials::ROOT;
    let plain = RenameFlags::default();
    hold(&[
        row("rename in a directory", 1.05, 2, |b| {
            let d = b.dir;
            (0..SET).for_each(|i| {
                b.file(&name(i));
            });
            for i in 0..OPS {
                b.count(|fs| fs.rename(&ctx, d, &name(i), d, &name(i + SET), plain));
            }
        }),
        row("rename across directories", 1.05, 2, |b| {
            let mut ends = [b.dir, b.fs.mkdir(&ctx, Ino::ROOT, b"e", 0o755).unwrap().ino];
            (0..SET).for_each(|i| {
                b.file(&name(i));
            });
            for i in 0..OPS {
                if i > 0 && i.is_multiple_of(SET) {
                    ends.swap(0, 1);
                }
                let n = name(i % SET);
                b.count(|fs| fs.rename(&ctx, ends[0], &n, ends[1], &n, plain));
            }
        }),
        row("rename over a file of 4 KiB", 1.05, 2, |b| {
            let d = b.dir;
            for i in 0..OPS {
                let (old, new) = (b.file(b"new"), name(i % SET));
                b.fs.write(&Credentials::ROOT, old, 0, &[7; BLOCK as usize])
                    .unwrap();
                if i < SET {
                    let there = b.file(&new);
                    b.fs.write(&Credentials::ROOT, there, 0, &[7; BLOCK as usize])
                        .unwrap();
                }
                b.count(|fs| fs.rename(&ctx, d, b"new", d, &new, plain));
            }
        }),
    ]);
}
