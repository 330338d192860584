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
        let top = super::command_line();
        let mut line = vec!["pramfs"];
        let mut page = "pramfs".to_owned();
        if let Some(name) = &self.command {
            let found = top.find_subcommand(name).ok_or_else(|| {
                Failure::usage(format!(
                    "{} is not a command of pramfs; pramfs help lists them",
                    printable(name)
                ))
            })?;
            line.push(name);
            // An alias has the page of its command.
            page = format!("pramfs-{}", found.get_name());
        }
        if std::io::stdout().is_terminal() && shows_page(&page) {
            return Ok(());
        }
        line.push("--help");
        match top.try_get_matches_from(line) {
            Err(help) => output::bytes(help.render().to_string().as_bytes()),
            Ok(_) => Ok(()),
        }
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
