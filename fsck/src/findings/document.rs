//! The table in `docs/fsck.md`.

use std::fmt::Write as _;

use super::table::ROWS;
use super::{NEVER, Row};
use crate::tests::each::CASES;
use crate::tests::plant::Plant;

fn cell(words: &'static str) -> &'static str {
    match words {
        "true" => "yes",
        "false" => "no",
        "NEVER" => "none",
        words => words,
    }
}

fn document() -> String {
    let mut text = String::from(
        "| id | severity | phase | `-p` | meaning | repair |\n|---|---|---|---|---|---|\n",
    );
    for row in ROWS {
        let Row {
            severity, remedy, ..
        } = row;
        let (code, meaning) = (row.kind.code(), row.meaning.trim());
        let (phase, safe) = (cell(row.phase), cell(row.safe));
        let _ = writeln!(
            text,
            "| `{code}` | {severity} | {phase} | {safe} | {meaning} | {remedy} |"
        );
    }
    text
}

/// `PRAMFS_BLESS=1` writes the table of the document anew.
#[test]
fn fsck_document_lists_every_finding() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/fsck.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (start, end) = ("<!-- findings -->\n", "<!-- end of findings -->");
    let (before, rest) = page.split_once(start).expect("the mark before the table");
    let (table, after) = rest.split_once(end).expect("the mark after the table");
    let wanted = document();
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        std::fs::write(path, format!("{before}{start}{wanted}{end}{after}")).unwrap();
    } else {
        assert_eq!(table, wanted, "PRAMFS_BLESS=1 rewrites docs/fsck.md");
    }
}

#[test]
fn every_kind_of_damage_has_one_row() {
    let kinds: Vec<_> = ROWS.iter().map(|row| row.kind).collect();
    for kind in pramfs_medium::error::Damage::ALL {
        assert_eq!(kinds.iter().filter(|k| *k == kind).count(), 1, "{kind:?}");
    }
}

#[test]
fn every_phase_is_among_those_of_its_row() {
    for issue in CASES.iter().flat_map(|(_, case)| case(&Plant::new())) {
        let row = ROWS.iter().find(|row| row.kind == issue.kind()).unwrap();
        let phase = issue.phase().to_string();
        let named = row.phase.split([',', ' ']).any(|word| word == phase);
        assert!(named || issue.phase() == NEVER, "{issue:?}: {}", row.phase);
    }
}
