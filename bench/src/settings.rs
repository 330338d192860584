//! `pramfs-bench settings`: measures what the compiler's settings are worth.
//!
//! Each setting is a build of this program in a directory of its own. Each build counts
//! the instructions of the operations of `count`. The times are interleaved: a round runs
//! every build once for each operation, so that drift of the machine affects all of them. One
//! run that is not counted precedes them, and the order changes with every round.
//! The ratio is the release profile's time divided by the build's time in the same round.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::count::{self, OPERATIONS, REGION};
use crate::harness::Table;

/// Number of repetitions of an operation in a round.
const TIMES: u64 = 20_000;

/// A setting: changes of the release profile, and flags for the compiler.
struct Setting {
    name: &'static str,
    profile: &'static [(&'static str, &'static str)],
    flags: &'static str,
    profiled: bool,
}

const fn setting(
    name: &'static str,
    profile: &'static [(&'static str, &'static str)],
    flags: &'static str,
) -> Setting {
    Setting {
        name,
        profile,
        flags,
        profiled: false,
    }
}

/// The first is the base of all ratios.
const SETTINGS: &[Setting] = &[
    setting("release profile", &[], ""),
    setting("opt-level=2", &[("OPT_LEVEL", "2")], ""),
    setting("opt-level=s", &[("OPT_LEVEL", "s")], ""),
    setting("lto=off", &[("LTO", "off")], ""),
    setting("lto=thin", &[("LTO", "thin")], ""),
    setting("codegen-units=1", &[("CODEGEN_UNITS", "1")], ""),
    setting("codegen-units=16", &[("CODEGEN_UNITS", "16")], ""),
    setting(
        "lto=thin, codegen-units=1",
        &[("LTO", "thin"), ("CODEGEN_UNITS", "1")],
        "",
    ),
    setting("target-cpu=x86-64-v3", &[], "-Ctarget-cpu=x86-64-v3"),
    setting("target-cpu=native", &[], "-Ctarget-cpu=native"),
    Setting {
        name: "profile-guided",
        profile: &[],
        flags: "",
        profiled: true,
    },
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only settings whose name contains one of these, besides the release profile
    #[arg(long)]
    filter: Vec<String>,
    /// Number of timed rounds, rounded up to an even number
    #[arg(long, default_value_t = 16)]
    rounds: usize,
}

/// A build and its measurements.
struct Build {
    name: &'static str,
    flags: &'static str,
    program: PathBuf,
    took: Duration,
    bytes: u64,
    /// `None` where valgrind cannot run the build.
    instructions: Vec<Option<f64>>,
    /// For each operation, the times of the rounds.
    times: Vec<Vec<Duration>>,
}

/// Builds with each setting, measures, and prints the tables. An unfiltered run also
/// writes them to the directory `results`.
///
/// # Errors
/// If cargo fails, or valgrind with a build for any processor; engine errors.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let wanted = |s: &Setting| {
        args.filter.is_empty()
            || args
                .filter
                .iter()
                .any(|part| s.name.contains(part.as_str()))
    };
    let mut builds = Vec::new();
    for (number, setting) in SETTINGS.iter().enumerate() {
        if number > 0 && !wanted(setting) {
            continue;
        }
        eprintln!("settings: building: {}", setting.name);
        match build(setting) {
            Ok(build) => builds.push(build),
            Err(why) if setting.profiled => {
                println!("{}: *** SKIPPED: {why:#} ***", setting.name);
            }
            Err(why) => return Err(why),
        }
    }
    for build in &mut builds {
        eprintln!("settings: counting: {}", build.name);
        for number in 0..OPERATIONS.len() {
            let each = match count::each(&build.program, number) {
                // valgrind lacks some instructions of new processors.
                Err(why) if build.flags.contains("target-cpu") => {
                    eprintln!("settings: {}: not counted: {why:#}", build.name);
                    None
                }
                counted => Some(counted?),
            };
            build.instructions.push(each);
        }
    }
    let region = PathBuf::from(format!("/dev/shm/pramfs-settings.{}", std::process::id()));
    std::fs::write(&region, vec![0; REGION as usize])?;
    let timed = time(&mut builds, &region, args.rounds);
    std::fs::remove_file(&region)?;
    timed?;
    println!("Instructions of one operation:");
    let instructions = instructions_table(&builds);
    println!("\nSpeed, 1.00 is the release profile (10th to 90th percentile):");
    let speed = speed_table(&builds);
    if !args.filter.is_empty() {
        return Ok(());
    }
    instructions.write_json(&results.join("settings-instructions.json"))?;
    speed.write_json(&results.join("settings-speed.json"))
}

/// Measures an even number of rounds, which change the order of the builds.
fn time(builds: &mut [Build], region: &Path, rounds: usize) -> Result<()> {
    for round in 0..rounds.next_multiple_of(2) {
        eprintln!("settings: round {} of {rounds}", round + 1);
        // The first build would always run after another operation, with its pages cold.
        builds.reverse();
        for number in 0..OPERATIONS.len() {
            if let Some(first) = builds.first() {
                count::time_in(&first.program, region, number, TIMES)?;
            }
            for build in &mut *builds {
                let took = count::time_in(&build.program, region, number, TIMES)?;
                build.times[number].push(took);
            }
        }
    }
    Ok(())
}

/// Returns the directory of a setting's builds: letters, digits and `-`.
fn directory(setting: &Setting) -> PathBuf {
    let name: String = (setting.name.chars())
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/settings")
        .join(name)
}

fn build(setting: &Setting) -> Result<Build> {
    let directory = directory(setting);
    let program = directory.join("release/pramfs-bench");
    let start = Instant::now();
    if setting.profiled {
        let profiles = directory.join("profiles");
        let merged = directory.join("merged.profdata");
        let tool = profdata()?;
        let _ = std::fs::remove_dir_all(&profiles);
        let flags = format!("-Cprofile-generate={}", profiles.display());
        cargo(setting, &directory.join("instrumented"), &flags)?;
        let instrumented = directory.join("instrumented/release/pramfs-bench");
        for number in 0..OPERATIONS.len() {
            let number = number.to_string();
            done(Command::new(&instrumented).args(["count", "--only", &number, "20000"]))?;
        }
        done(
            Command::new(tool)
                .arg("merge")
                .arg("-o")
                .arg(&merged)
                .arg(&profiles),
        )?;
        let flags = format!("-Cprofile-use={}", merged.display());
        cargo(setting, &directory, &flags)?;
    } else {
        cargo(setting, &directory, setting.flags)?;
    }
    let bytes = std::fs::metadata(&program).with_context(|| program.display().to_string())?;
    Ok(Build {
        name: setting.name,
        flags: setting.flags,
        program,
        took: start.elapsed(),
        bytes: bytes.len(),
        instructions: Vec::new(),
        times: vec![Vec::new(); OPERATIONS.len()],
    })
}

fn cargo(setting: &Setting, target: &Path, flags: &str) -> Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "-p", "pramfs-bench"]);
    cargo.arg("--target-dir").arg(target);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    cargo.env("RUSTFLAGS", flags);
    for (key, value) in setting.profile {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
    }
    done(&mut cargo)
}

fn done(command: &mut Command) -> Result<()> {
    let said = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| said.clone())?;
    ensure!(
        output.status.success(),
        "{said}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Finds llvm-profdata of the current compiler.
fn profdata() -> Result<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .output()?;
    let lib = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let tool = lib.join("../bin/llvm-profdata");
    if !tool.exists() {
        bail!("llvm-profdata is missing: rustup component add llvm-tools");
    }
    Ok(tool)
}

/// Returns the 10th percentile, the median and the 90th percentile.
fn spread(mut ratios: Vec<f64>) -> (f64, f64, f64) {
    ratios.sort_by(f64::total_cmp);
    let at = |part: f64| ratios[((ratios.len() - 1) as f64 * part).round() as usize];
    (at(0.1), at(0.5), at(0.9))
}

/// Returns the columns `first`, then one for each operation.
fn columns(first: &[&'static str]) -> Vec<&'static str> {
    let operations = OPERATIONS.iter().map(|(name, _)| *name);
    first.iter().copied().chain(operations).collect()
}

fn instructions_table(builds: &[Build]) -> Table {
    let mut table = Table::new(26, &columns(&["setting", "build, s", "program, MiB"]));
    for build in builds {
        let mut row = vec![
            build.name.to_owned(),
            build.took.as_secs().to_string(),
            format!("{:.1}", build.bytes as f64 / f64::from(1 << 20)),
        ];
        let counts = build.instructions.iter();
        row.extend(counts.map(|n| n.map_or_else(|| "-".to_owned(), |n| format!("{n:.0}"))));
        table.row(row);
    }
    table
}

fn speed_table(builds: &[Build]) -> Table {
    let mut table = Table::new(26, &columns(&["setting"]));
    let Some(base) = builds.first() else {
        return table;
    };
    for build in builds {
        let mut row = vec![build.name.to_owned()];
        for (ours, base) in build.times.iter().zip(&base.times) {
            let ratios = ours
                .iter()
                .zip(base)
                .map(|(t, b)| b.as_secs_f64() / t.as_secs_f64());
            let (low, median, high) = spread(ratios.collect());
            row.push(format!("{median:.2} ({low:.2} to {high:.2})"));
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_rounds_is_median_with_percentiles() {
        let ratios = (0..=10).map(f64::from).collect();
        assert_eq!(spread(ratios), (1.0, 5.0, 9.0));
        assert_eq!(spread(vec![1.5]), (1.5, 1.5, 1.5));
    }

    #[test]
    fn directory_of_every_setting_is_its_own() {
        let mut all: Vec<_> = SETTINGS.iter().map(directory).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), SETTINGS.len());
    }

    #[test]
    fn table_has_line_for_each_build() {
        let build = |name, ms| Build {
            name,
            flags: "",
            program: PathBuf::new(),
            took: Duration::from_secs(60),
            bytes: 3 << 20,
            instructions: vec![Some(100.0); OPERATIONS.len()],
            times: vec![vec![Duration::from_millis(ms)]; OPERATIONS.len()],
        };
        let builds = [build("base", 10), build("faster", 5)];
        let instructions = instructions_table(&builds);
        assert_eq!(instructions.rows()[1][..4], ["faster", "60", "3.0", "100"]);
        let speed = speed_table(&builds);
        assert_eq!(speed.rows()[0][..2], ["base", "1.00 (1.00 to 1.00)"]);
        assert_eq!(speed.rows()[1][..2], ["faster", "2.00 (2.00 to 2.00)"]);
    }
}
