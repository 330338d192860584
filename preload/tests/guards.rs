//! What the library must not do to a program, or let a program do. They need root, `/dev/fuse` and a
//! C compiler.

mod support;

use support::{end, preloaded, probe, text};

/// Runs a scenario with the library. Returns what it prints.
fn said(scenario: &str) -> Option<String> {
    let (mount, _dog) = support::mount(scenario, &["cc"], 64 << 20)?;
    let out = preloaded(probe("guards"))
        .arg(scenario)
        .arg(mount.at("file"))
        .output()
        .unwrap();
    let said = text(&out);
    end(&mount);
    Some(said)
}

/// Compares what a scenario prints.
#[track_caller]
fn assert_says(scenario: &str, expected: &str) {
    if let Some(said) = said(scenario) {
        assert_eq!(said, expected, "{scenario}");
    }
}

#[test]
fn reader_beside_mapping_for_stores_sees_store_at_once() {
    assert_says("store_beside_reader", "X\n");
}

#[test]
fn reader_with_lease_sees_store_through_later_mapping_at_once() {
    assert_says("store_after_reader", "Y\nZ\n");
}

#[test]
fn mapping_for_stores_beside_view_of_medium_is_refused_or_seen() {
    assert_says("store_beside_view", "coherent\n");
}

#[test]
fn mapping_is_not_made_to_show_or_remove_other_blocks_of_region() {
    let refused = "remap: -1, Invalid argument\nremove: -1, Operation not supported\n";
    assert_says("other_pages", &format!("{refused}{refused}a b\n"));
}

#[test]
fn descriptor_is_not_replaced_by_planted_file() {
    assert_says("planted_proc", "a\nQ, 61 as before\n");
}

#[test]
fn thread_with_own_descriptors_reads_its_own_file() {
    for scenario in ["own_descriptors", "own_descriptors_by_close_range"] {
        assert_says(scenario, "o\na\n");
    }
}
