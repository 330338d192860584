//! Programs that some tests need.

use std::process::{Command, Stdio};

/// Whether a program is installed. If not, says that the test is skipped; with CI set, fails.
pub fn has(program: &str, test: &str) -> bool {
    let there = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !there {
        assert!(
            std::env::var_os("CI").is_none(),
            "{program} is missing: scripts/deps.sh --test installs it"
        );
        eprintln!("\n*** SKIPPED: {test}: {program} is not installed ***\n");
    }
    there
}
