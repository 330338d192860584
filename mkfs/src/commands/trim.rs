//! `pramfs trim`: returns the free space of a region to the host, without a
//! mount. On a mount, fstrim(8) does the same.

use std::path::PathBuf;

use clap::Args;

use super::Subcommand;
use crate::failure::shown;
use crate::open::{self, Intent};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Trim {
    /// File or device that holds the file system
    region: PathBuf,
}

impl Subcommand for Trim {
    const NAME: &'static str = "trim";
    const ABOUT: &'static str = "Return the memory or disk space of free blocks to the host";

    fn run(&self) -> Result<(), Failure> {
        let fs = open::fs(&self.region, Intent::Write)?;
        let given = fs
            .trim(0, u64::MAX, 0)
            .map_err(|e| Failure::about(shown(&self.region), e));
        let closed = open::close(&self.region, fs);
        // What went wrong first is said.
        let given = given.and_then(|given| closed.map(|()| given))?;
        output::line(&format!(
            "{}: {} bytes of free blocks returned to the host",
            shown(&self.region),
            given
        ))
    }
}
