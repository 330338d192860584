//! What the library must not do to a program, or let a program do. They need root, `/dev/fuse` and a
//! C compiler.

mod support;

use support::{Share, end, preloaded, probe, text};

/// Runs a scenario with the library. Returns what it prints, and what the library says.
fn ran(scenario: &str) -> Option<(String, String)> {
    let (mount, _dog) = support::mount(scenario, &["cc"], 64 << 20)?;
    let out = preloaded(probe("guards"))
        .arg(scenario)
        .arg(mount.at("file"))
        .output()
        .unwrap();
    let ran = (text(&out), String::from_utf8_lossy(&out.stderr).into());
    end(&mount);
    Some(ran)
}

fn said(scenario: &str) -> Option<String> {
    ran(scenario).map(|(said, _)| said)
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
fn reader_with_lease_sees_store_of_other_process_through_mapping_at_once() {
    let mut best = 0.0;
    // The file may be found busy, as it was written just before.
    for _ in 0..5 {
        let Some((said, of_library)) = ran("store_of_other_after_reader") else {
            return;
        };
        assert_eq!(said, "Y\nZ\nU\n");
        best = Share::of(&of_library).percent().max(best);
        // The first reader had a lease until the other process came.
        if best > 10.0 {
            break;
        }
    }
    assert!(best > 10.0, "{best:.1} % served");
}

#[test]
fn mapping_for_stores_of_other_process_beside_view_is_refused_until_it_ends() {
    assert_says("store_of_other_beside_view", "U\nrefused\n+\n");
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

#[test]
fn writes_append_after_flag_was_set_out_of_sight() {
    assert_says("append_is_set_elsewhere", "2 a\n2 a\n2 a\n");
}

#[test]
fn pipe_under_number_of_leased_file_stays_a_stream() {
    assert_says("number_is_pipe", "abcd\n");
}

#[test]
fn mtime_of_program_stays_and_stores_before_exit_set_it() {
    assert_says("times_of_stores", "1000 1000\nnoted\nnoted\n");
}

#[test]
fn vector_that_kernel_refuses_changes_nothing() {
    let refused = "-1 Invalid argument";
    assert_says(
        "vectors_are_refused_whole",
        &format!("{refused}, a\n{refused}\n{refused}\n"),
    );
}

#[test]
fn mapping_with_wish_for_address_is_made_after_fork() {
    assert_says("wish_after_fork", "mapped\nmapped\nW\n");
}

#[test]
fn sendfile_shows_store_after_program_has_taken_o_direct_back() {
    assert_says("sends_after_o_direct", "a N, hidden\n");
}

#[test]
fn forked_child_has_no_files_and_sockets_of_library() {
    assert_says("inherited", "0 files, 0 sockets\n");
}

/// The mapping of the region, and the connection that the server takes for one of root.
#[test]
fn program_that_gives_root_away_keeps_no_right_of_library() {
    let (has, has_not) = ("mapped, connected", "not mapped, not connected");
    // A file may be found busy, on a machine under load: then there is nothing to give away.
    for _ in 0..5 {
        let Some(said) = said("gives_root_away") else {
            return;
        };
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines.len(), 8, "{said}");
        for after in [3, 5, 7] {
            assert_eq!(lines[after], has_not, "{said}");
        }
        if [0, 1, 2, 4, 6].iter().all(|at| lines[*at] == has) {
            return;
        }
    }
    panic!("the file never had all its leases");
}
