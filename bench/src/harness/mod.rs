//! What every benchmark stands on: private memory file systems, daemons,
//! interleaved rounds, ratios and the report. Nothing here knows pramfs.

pub mod compare;
pub mod daemon;
pub mod machine;
pub mod report;
pub mod rng;
pub mod scratch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};

pub use compare::{Measured, Ops, Side, interleave, interleave_rounds};
pub use report::{Group, Report, Row};
pub use rng::Rng;
pub use scratch::{Huge, Scratch};

/// What a run was asked for, and where it may work.
#[derive(Debug)]
pub struct Context {
    /// Fewer and shorter rounds: to see that all works, not for figures.
    pub quick: bool,
    /// Counted rounds of each comparison.
    pub rounds: u32,
    /// Where mounts and directories are made.
    pub scratch: Scratch,
    /// Set by SIGINT and SIGTERM.
    pub stop: Arc<AtomicBool>,
    /// Directory of the programs under test.
    pub programs: PathBuf,
    /// Directory of the same programs of another build, where that is the competitor.
    pub other: Option<PathBuf>,
    /// Processors that the process may use.
    pub cpus: Vec<usize>,
}

impl Context {
    /// One for tests of this module, which mount nothing.
    #[cfg(test)]
    pub fn for_tests(rounds: u32) -> Context {
        Context {
            quick: true,
            rounds,
            scratch: Scratch::new().expect("the temporary directory can be written"),
            stop: Arc::default(),
            programs: PathBuf::new(),
            other: None,
            cpus: vec![0],
        }
    }

    /// Length that a round of one side should have.
    pub fn round_time(&self) -> Duration {
        Duration::from_millis(if self.quick { 15 } else { 60 })
    }

    /// `full` operations, or a fifth of them in a quick run.
    pub fn scaled(&self, full: u64) -> u64 {
        if self.quick { (full / 5).max(1) } else { full }
    }

    /// An error when the user has asked to stop.
    ///
    /// # Errors
    /// After SIGINT or SIGTERM.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// One of our programs, which lies beside this one.
    ///
    /// # Errors
    /// When it is not there, with what to type.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.programs.join(name);
        if !path.is_file() {
            bail!("{name} is not built: cargo build --release --bins");
        }
        Ok(path)
    }
}
