//! What statfs promises: free and available blocks.

use crate::support::library::{fill, small};

/// `available` excludes the reserve, `free` includes it.
#[test]
fn statfs_reserve_is_free_but_not_available() {
    let (_sim, fs) = small();
    let s = fs.statfs().unwrap();
    assert!(s.available < s.free && s.free < s.blocks);
    fill(&fs);
    let s = fs.statfs().unwrap();
    assert!(s.free > 0, "the reserve is still there");
    assert!(
        s.available < 8,
        "what is left is too little for a file: {}",
        s.available
    );
}
