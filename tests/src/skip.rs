//! Words that are seen although a test passes: what was not tested, and why.
//!
//! The harness keeps what `println!` and `eprintln!` say of such a test to
//! itself, so a skip that is said by them looks like a test that was run.

use std::fmt::Display;
use std::io::Write;

/// Prints a line on standard error, past the harness.
pub fn say(line: impl Display) {
    let text = format!("{line}\n");
    // Nobody listens: then there is nobody to be told so.
    let _unheard = std::io::stderr().write_all(text.as_bytes());
}

/// Says loudly that something is not tested, and why.
pub fn skipped(what: impl Display) {
    say(format_args!("\n*** SKIPPED: {what} ***\n"));
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    const CHILD: &str = "PRAMFS_TEST_SKIPS";

    /// The child: nothing but what it says is of interest.
    #[test]
    fn child_that_skips() {
        if std::env::var_os(CHILD).is_some() {
            eprintln!("kept by the harness");
            super::skipped("no such thing");
        }
    }

    #[test]
    fn skip_is_reported_by_passing_test() {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "skip::tests::child_that_skips"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{said}");
        assert!(said.contains("*** SKIPPED: no such thing ***"), "{said}");
        assert!(!said.contains("kept by the harness"), "{said}");
    }
}
