//! `pramfs cat`: prints the contents of files, also of a region that is mounted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;

use super::Subcommand;
use crate::files::Files;
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Cat {
    /// File or device that holds the file system, mounted or not
    region: PathBuf,
    /// Paths in the file system
    #[arg(required = true)]
    path: Vec<OsString>,
}

impl Subcommand for Cat {
    const NAME: &'static str = "cat";
    const ABOUT: &'static str = "Print the contents of files";

    fn run(&self) -> Result<(), Failure> {
        let files = Files::open(&self.region)?;
        for path in &self.path {
            files.contents(path.as_bytes(), output::bytes)?;
        }
        Ok(())
    }
}
