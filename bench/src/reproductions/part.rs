//! Parts of the experiments that run in a process of their own, under the preload library.
//! The process is this program again: it reads files as every other contender does.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{odirect, parallel, unmapped};
use crate::fio::{check_served, preload, preload_library, served};
use crate::harness::Context;

/// What to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Part {
    /// See [`odirect::Part`].
    Odirect(odirect::Part),
    /// See [`parallel::Part`].
    Parallel(parallel::Part),
    /// See [`unmapped::Part`].
    Unmapped(unmapped::Part),
}

/// Has a part done under the preload library. Returns its answer.
///
/// # Errors
/// If it fails, or the library serves too few of its data calls.
pub fn under_library<T: DeserializeOwned>(cx: &Context, part: &Part) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("part").arg(serde_json::to_string(part)?);
    preload(&mut command, &preload_library(cx)?);
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "under the library: {said}{errors}");
    check_served(served(&done.stderr))?;
    serde_json::from_str(&said).context("a part prints JSON")
}

/// Does a part, and prints its answer.
///
/// # Errors
/// Those of the part.
pub fn child(part: &str) -> Result<()> {
    let answer = match serde_json::from_str(part)? {
        Part::Odirect(part) => serde_json::to_string(&part.run()?)?,
        Part::Parallel(part) => serde_json::to_string(&part.run()?)?,
        Part::Unmapped(part) => serde_json::to_string(&part.run()?)?,
    };
    println!("{answer}");
    Ok(())
}
