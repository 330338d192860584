//! `pramfs help`: the manual page of a command at a terminal, else the text of `--help`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;

use super::Subcommand;
use crate::failure::printable;
use crate::{Failure, output};

/// Absolute: root must not run a program that the caller's PATH chose.
const MAN: &str = "/usr/bin/man";

#[derive(Debug, Args)]
pub(super) struct Help {
    /// A command of pramfs
    command: Option<String>,
}

impl Subcommand for Help {
    const NAME: &'static str = "help";
    const ABOUT: &'static str = "Show the manual page of a command, or its help";

    fn run(&self) -> Result<(), Failure> {
        let mut top = super::command_line();
        top.build();
        let (page, mut command) = match &self.command {
            None => ("pramfs".to_owned(), top),
            Some(name) => {
                let found = top.find_subcommand(name).cloned();
                let found = found.ok_or_else(|| Failure {
                    // As for a command that does not exist.
                    status: 2,
                    ..Failure::usage(format!(
                        "{} is not a command of pramfs; pramfs help lists them",
                        printable(name)
                    ))
                })?;
                // An alias has the page of its command.
                (format!("pramfs-{}", found.get_name()), found)
            }
        };
        if std::io::stdout().is_terminal() && shows_page(&page) {
            return Ok(());
        }
        output::bytes(command.render_long_help().to_string().as_bytes())
    }
}

/// Shows the page, if man(1) and the page are installed.
fn shows_page(page: &str) -> bool {
    let is_installed = Path::new(MAN).is_file()
        && Command::new(MAN)
            .args(["-w", "1", page])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    is_installed
        && Command::new(MAN)
            .args(["1", page])
            .status()
            .is_ok_and(|status| status.success())
}
