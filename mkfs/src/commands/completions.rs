//! `pramfs completions`: prints completion scripts.

use clap::Args;
use clap_complete::Shell;

use super::Subcommand;
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Subcommand for Completions {
    const NAME: &'static str = "completions";
    const ABOUT: &'static str = "Print a completion script for a shell";

    fn run(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut super::command_line(),
            "pramfs",
            &mut script,
        );
        output::bytes(&script)
    }
}
