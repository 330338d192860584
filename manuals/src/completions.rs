//! The completion scripts, under the names that the shells look for.

use clap_complete::Shell;

use crate::{programs, with_values};

/// A script.
#[derive(Debug)]
pub struct Script {
    /// The program that it completes.
    pub program: &'static str,
    /// `bash`, `zsh` or `fish`.
    pub shell: &'static str,
    /// The name of its file.
    pub file: String,
    /// The script.
    pub text: String,
}

/// Returns the scripts of all programs for all shells.
pub fn all() -> Vec<Script> {
    let mut scripts = Vec::new();
    for program in programs() {
        for (shell, generator) in [
            ("bash", Shell::Bash),
            ("zsh", Shell::Zsh),
            ("fish", Shell::Fish),
        ] {
            let mut text = Vec::new();
            let mut command = with_values(&program);
            clap_complete::generate(generator, &mut command, program.name, &mut text);
            scripts.push(Script {
                program: program.name,
                shell,
                file: match shell {
                    "zsh" => format!("_{}", program.name),
                    "fish" => format!("{}.fish", program.name),
                    _ => program.name.to_owned(),
                },
                text: String::from_utf8_lossy(&text).into_owned(),
            });
        }
    }
    scripts
}
