//! `pramfs cat`: prints the contents of files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;

use super::Subcommand;
use crate::open::{self, Intent};
use crate::tree::{self, CHUNK, Follow};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Cat {
    /// File or device that holds the file system
    region: PathBuf,
    /// Paths in the file system
    #[arg(required = true)]
    path: Vec<OsString>,
}

impl Subcommand for Cat {
    const NAME: &'static str = "cat";
    const ABOUT: &'static str = "Print the contents of files";

    fn run(&self) -> Result<(), Failure> {
        let fs = open::fs(&self.region, Intent::Read)?;
        let mut buffer = vec![0; CHUNK];
        for path in &self.path {
            let path = path.as_bytes();
            let ino = tree::find(&fs, path, Follow::Yes)?.ino;
            let mut at = 0;
            loop {
                let n = fs
                    .read(ino, at, &mut buffer)
                    .map_err(|e| tree::about(path, e))?;
                if n == 0 {
                    break;
                }
                output::bytes(&buffer[..n])?;
                at += n as u64;
            }
        }
        Ok(())
    }
}
