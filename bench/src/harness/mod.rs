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

pub use compare::{
    Measured, NEW, OLD, Ops, Side, interleave, interleave_rounds, interleave_with_control,
};
pub use report::{Group, Report, Row};
pub use rng::Rng;
pub use scratch::{Huge, Scratch};

/// The programs of two builds, each in a directory of its own.
#[derive(Debug, Clone)]
pub struct Builds {
    /// What is measured.
    pub new: PathBuf,
    /// What it is held against, and against itself.
    pub old: PathBuf,
}

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
    /// Two builds to be compared.
    pub builds: Option<Builds>,
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
            builds: None,
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
