//! What a new label costs: fences, lines and bytes.

use crate::support::cost::{OPS, hold, row};

#[test]
fn label_change_stays_within_fence_budget() {
    hold(&[row("a new label", 2.0, 2, |b| {
        for i in 0..OPS {
            let label = format!("label {i}");
            b.count(|fs| fs.set_label(&label));
        }
    })]);
}
