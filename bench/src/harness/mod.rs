//! The base of all benchmarks: private mounts, daemons, interleaved rounds, ratios
//! and the report. Nothing here depends on pramfs.

pub mod compare;
pub mod daemon;
pub mod machine;
pub mod report;
pub mod rng;
pub mod scratch;
pub mod table;

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
pub use table::Table;

/// The programs of two builds, each in a directory of its own.
#[derive(Debug, Clone)]
pub struct Builds {
    /// The build under test.
    pub new: PathBuf,
    /// The baseline, also compared with itself.
    pub old: PathBuf,
}

/// Options of a run, and its working directories.
#[derive(Debug)]
pub struct Context {
    /// Fewer and shorter rounds: for a functional check, not for figures.
    pub quick: bool,
    /// Counted rounds of each comparison.
    pub rounds: u32,
    /// Directory for mounts and files.
    pub scratch: Scratch,
    /// Set by SIGINT and SIGTERM.
    pub stop: Arc<AtomicBool>,
    /// Directory of the programs under test.
    pub programs: PathBuf,
    /// The two builds of a comparison.
    pub builds: Option<Builds>,
    /// Processors that the process may use.
    pub cpus: Vec<usize>,
}

impl Context {
    /// Makes a context for tests of this module, which mount nothing.
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

    /// Returns the intended length of a round of one side.
    pub fn round_time(&self) -> Duration {
        Duration::from_millis(if self.quick { 15 } else { 60 })
    }

    /// Returns `full`, or a fifth of it in a quick run.
    pub fn scaled(&self, full: u64) -> u64 {
        if self.quick { (full / 5).max(1) } else { full }
    }

    /// Fails if the user has asked to stop.
    ///
    /// # Errors
    /// After SIGINT or SIGTERM.
    pub fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Returns the path of a pramfs program, which is in the directory of this one.
    ///
    /// # Errors
    /// If it is missing; the message names the command to build it.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.programs.join(name);
        if !path.is_file() {
            bail!("{name} is not built: cargo build --release --bins");
        }
        Ok(path)
    }
}
