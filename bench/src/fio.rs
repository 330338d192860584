//! fio, unchanged, in a process of its own, with or without the preload library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::fixture::{debian_program, filled_file};
use crate::harness::Context;

/// The preload library.
const LIBRARY: &str = "libpramfs_preload.so";
/// Percent of the data calls that the library must serve where it can serve them.
pub const LEAST_SERVED: f64 = 95.0;

/// Runs under the library until it serves enough.
const ATTEMPTS: u32 = 3;

/// Returns the path of the preload library.
///
/// # Errors
/// If it is not built; the message names the command to build it.
pub fn preload_library(cx: &Context) -> Result<PathBuf> {
    let library = cx.programs.join(LIBRARY);
    ensure!(
        library.is_file(),
        "{LIBRARY} is not built: cargo build --release -p pramfs-preload"
    );
    Ok(library)
}

/// Makes a program print how many of its data calls the library serves.
pub fn preload(command: &mut Command, library: &Path) {
    command
        .env("LD_PRELOAD", library)
        .env("PRAMFS_PRELOAD_STATS", "1");
}

/// Returns the percent of data calls that the library has served, of all processes together;
/// `None` if it has seen none.
pub fn served(stderr: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(stderr);
    let (mut served, mut all) = (0.0, 0.0);
    for line in text.lines() {
        let Some((_, counts)) = line
            .strip_prefix("pramfs-preload: process ")
            .and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let mut numbers = counts.split(' ').filter_map(|w| w.parse::<f64>().ok());
        served += numbers.next()?;
        all += numbers.next()?;
    }
    (all > 0.0).then(|| 100.0 * served / all)
}

/// Fails if the library served less than it must.
///
/// # Errors
/// With the share.
pub fn check_served(served: Option<f64>) -> Result<()> {
    let share = served.context("the preload library saw no data call")?;
    ensure!(
        share >= LEAST_SERVED,
        "the preload library served {share:.1} % of the data calls, not {LEAST_SERVED} %"
    );
    Ok(())
}

/// Makes the files of the jobs, all written.
///
/// # Errors
/// If one cannot be made.
pub fn make_files(directory: &Path, jobs: usize, bytes: u64) -> Result<()> {
    for job in 0..jobs {
        drop(filled_file(&directory.join(format!("file.{job}")), bytes)?);
    }
    Ok(())
}

/// One way to run fio, for 4 KiB at a time.
#[derive(Debug, Clone)]
pub struct Fio {
    program: PathBuf,
    directory: PathBuf,
    bytes: u64,
    arguments: Vec<String>,
    library: Option<PathBuf>,
    must_serve: bool,
}

/// What fio counts.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Operations a second, of all jobs together.
    pub iops: f64,
    /// Mean latency of an operation, its submission included.
    pub mean_ns: f64,
    /// 99th percentile of the latency.
    pub p99_ns: f64,
    /// Percent of data calls that the preload library served.
    pub served: Option<f64>,
}

impl Fio {
    /// Runs on the files of [`make_files`] in a directory.
    ///
    /// # Errors
    /// If fio is not installed.
    pub fn new(directory: &Path, bytes: u64) -> Result<Fio> {
        Ok(Fio {
            program: debian_program("fio", "fio")?,
            directory: directory.to_owned(),
            bytes,
            arguments: Vec::new(),
            library: None,
            must_serve: false,
        })
    }

    /// Adds arguments.
    pub fn with(&self, arguments: &[&str]) -> Fio {
        let mut new = self.clone();
        new.arguments
            .extend(arguments.iter().map(|a| (*a).to_owned()));
        new
    }

    /// Runs in another directory.
    pub fn on(&self, directory: &Path) -> Fio {
        Fio {
            directory: directory.to_owned(),
            ..self.clone()
        }
    }

    /// Runs under the preload library. A run fails unless it serves [`LEAST_SERVED`]. The
    /// close of the program before reaches the server a little late, and until then a file may
    /// count as busy, so there are three attempts.
    pub fn under(&self, library: &Path) -> Fio {
        Fio {
            library: Some(library.to_owned()),
            must_serve: true,
            ..self.clone()
        }
    }

    /// Runs under the preload library, which knows nothing of the engine's system calls.
    pub fn passing_under(&self, library: &Path) -> Fio {
        Fio {
            must_serve: false,
            ..self.under(library)
        }
    }

    /// Returns the command, as one could type it.
    fn command(&self, time: Duration) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--bs=4k", "--time_based", "--group_reporting"])
            // The submission of libaio does all the work on some of the file systems.
            .args(["--lat_percentiles=1", "--clat_percentiles=0"])
            // The files exist, and stay in the page cache.
            .args(["--fallocate=none", "--fadvise_hint=0", "--invalidate=0"])
            .args(["--filename_format=file.$jobnum", "--output-format=json"])
            .arg(format!("--size={}", self.bytes))
            .arg(format!("--runtime={}ms", time.as_millis()))
            .arg(format!("--directory={}", self.directory.display()))
            .args(&self.arguments)
            .current_dir(&self.directory);
        if let Some(library) = &self.library {
            preload(&mut command, library);
        }
        command
    }

    /// Runs it for a time.
    ///
    /// # Errors
    /// If fio fails or does nothing, or the preload library serves too little.
    pub fn run(&self, time: Duration) -> Result<Counted> {
        for _ in 1..ATTEMPTS {
            let counted = self.run_once(time)?;
            if !self.must_serve || check_served(counted.served).is_ok() {
                return Ok(counted);
            }
        }
        let counted = self.run_once(time)?;
        if self.must_serve {
            check_served(counted.served)?;
        }
        Ok(counted)
    }

    fn run_once(&self, time: Duration) -> Result<Counted> {
        let done = self.command(time).output()?;
        let said = String::from_utf8_lossy(&done.stdout);
        ensure!(
            done.status.success(),
            "fio: {}{said}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(Counted {
            served: served(&done.stderr),
            ..counted(&said)?
        })
    }
}

impl Counted {
    /// Returns the mean time from one operation to the next, of all jobs together.
    pub fn each(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.iops)
    }
}

fn counted(said: &str) -> Result<Counted> {
    let json = said.find('{').map_or("", |start| &said[start..]);
    let json: serde_json::Value =
        serde_json::from_str(json).context("the answer of fio is no JSON")?;
    let way = ["read", "write"]
        .iter()
        .map(|way| &json["jobs"][0][way])
        .find(|way| way["iops"].as_f64().is_some_and(|iops| iops > 0.0))
        .with_context(|| match json["jobs"][0]["error"].as_i64() {
            Some(errno) if errno != 0 => {
                let error = std::io::Error::from_raw_os_error(errno as i32);
                format!("fio has done nothing: {error}")
            }
            _ => "fio has done nothing".to_owned(),
        })?;
    let latency = &way["lat_ns"];
    Ok(Counted {
        iops: way["iops"].as_f64().unwrap_or(f64::NAN),
        mean_ns: latency["mean"].as_f64().unwrap_or(f64::NAN),
        p99_ns: latency["percentile"]["99.000000"]
            .as_f64()
            .unwrap_or(f64::NAN),
        served: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_several_processes_is_that_of_their_sums() {
        let said = b"fio: a warning\n\
            pramfs-preload: process 7: 10 of 10 data calls served (100.0 %)\n\
            pramfs-preload: process 8: 80 of 90 data calls served (88.9 %)\n";
        assert_eq!(served(said), Some(90.0));
        assert_eq!(served(b"fio: a warning\n"), None);
        assert!(check_served(Some(95.0)).is_ok());
        assert!(check_served(Some(94.9)).is_err());
        assert!(check_served(None).is_err());
    }

    #[test]
    fn answer_of_fio_gives_rate_and_latencies_of_what_it_did() {
        let said = "note: both iodepth >= 1\n{\"jobs\":[{\
            \"read\":{\"iops\":0.0,\"lat_ns\":{\"mean\":0.0}},\
            \"write\":{\"iops\":2e6,\"lat_ns\":{\"mean\":450.5,\
            \"percentile\":{\"50.000000\":400,\"99.000000\":900}}}}]}";
        let got = counted(said).unwrap();
        assert_eq!((got.iops, got.mean_ns, got.p99_ns), (2e6, 450.5, 900.0));
        assert_eq!(got.each(), Duration::from_nanos(500));
        assert!(counted("{\"jobs\":[{}]}").is_err());
        let failed = counted("{\"jobs\":[{\"error\":19}]}").unwrap_err();
        assert!(failed.to_string().contains("No such device"), "{failed}");
        assert!(counted("").is_err());
    }
}
