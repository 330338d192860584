//! The lock order in `docs/architecture.md` is the one that debug builds assert.

use pramfs_medium::sync::rank::Rank;

const DOC: &str = include_str!("../../docs/architecture.md");

/// The rows of the section, by their first column.
fn documented() -> Vec<&'static str> {
    let (_, section) = DOC.split_once("\n## Locks and their order\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect()
}

#[test]
fn lock_order_in_architecture_doc_matches_ranks() {
    let ranks: Vec<String> = Rank::ALL.iter().map(|rank| format!("{rank:?}")).collect();
    assert_eq!(documented(), ranks);
    assert!(Rank::ALL.is_sorted());
}
