//! Asks one question for each finding.

use std::io::Write;
use std::sync::Arc;

use indicatif::ProgressBar;
use pramfs_fsck::{Answer, Ask, Finding};

use super::report::sentence;
use crate::failure::printable;

/// Asks on standard error and reads the answer from standard input. At end of
/// input, for example when the terminal goes away, the run ends and nothing is
/// stored.
pub(super) fn at_the_terminal(bar: ProgressBar) -> Ask {
    Arc::new(move |finding: &Finding| bar.suspend(|| ask(finding)))
}

fn ask(finding: &Finding) -> Answer {
    eprintln!("{}", printable(&sentence(finding)));
    loop {
        eprint!(
            "  Repair it ({})? (y)es, (n)o, (a)ll, (c)ancel: ",
            finding.issue.remedy()
        );
        let _ = std::io::stderr().flush();
        let mut answer = String::new();
        match std::io::stdin().read_line(&mut answer) {
            Ok(n) if n > 0 => {}
            _ => {
                eprintln!();
                return Answer::Cancel;
            }
        }
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Answer::Yes,
            "n" | "no" => return Answer::No,
            "a" | "all" => return Answer::All,
            "c" | "cancel" | "q" => return Answer::Cancel,
            _ => {}
        }
    }
}
