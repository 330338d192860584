//! What append costs: fences, lines and bytes.

use pramfs::Fallocate;
use pramfs::inode::{Credentials, Ino};

use crate::support::cost::{BLOCK, Bench, OPS, hold, row};

#[test]
fn append_stays_within_fence_budget() {
    let page = [0x5au8; BLOCK as usize];
    // A file of 64 MiB, over and over.
    let laps = |b: &mut Bench, prepare: &dyn Fn(&Bench, Ino)| {
        let f = b.file(b"f");
        for i in 0..OPS {
            if i.is_multiple_of(16_384) {
                b.size(f, 0);
                prepare(b, f);
            }
            b.count(|fs| fs.append(&Credentials::ROOT, f, &page));
        }
    };
    hold(&[
        row("append 4 KiB, preallocated", 2.0, 2, |b| {
            let keep = Fallocate::Allocate { keep_size: true };
            // Without 2 MiB leaves: such a leaf becomes written as a whole, see below.
            laps(b, &|b, f| {
                for at in (0..64 << 20).step_by(1 << 20) {
                    b.fs.fallocate(&Credentials::ROOT, f, keep, at, 1 << 20)
                        .unwrap();
                }
            });
        }),
        row("append 4 KiB, preallocated in 2 MiB leaves", 2.0, 2, |b| {
            let keep = Fallocate::Allocate { keep_size: true };
            laps(b, &|b, f| {
                b.fs.fallocate(&Credentials::ROOT, f, keep, 0, 64 << 20)
                    .unwrap()
            });
        }),
        row("append 4 KiB, allocating", 2.0, 3, |b| laps(b, &|_, _| ())),
    ]);
}
