//! What link costs: fences, lines and bytes.

use crate::support::cost::{OPS, hold, name, row};

#[test]
fn link_stays_within_fence_budget() {
    hold(&[row("link", 1.05, 2, |b| {
        let (d, f) = (b.dir, b.file(b"f"));
        for i in 0..OPS {
            b.count(|fs| fs.link(f, d, &name(i)));
        }
    })]);
}
