//! `mkfs.pramfs`: makes a file system in a region, and refuses if that would
//! destroy something.
//!
//! Order: mkfs checks the options, opens and locks the target, and examines it.
//! Only if there is no objection (or with `-f`) does it create, resize or write
//! anything. It always refuses a region in use, whatever the options.
//!
//! Not here: the structures on the medium (`pramfs::format`).

mod acl;
mod fill;
mod options;
mod path_walk;
pub mod report;
pub(crate) mod target;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{PmemError, Region, RegionOptions};
use pramfs_contents as contents;
use pramfs_medium::media::SuperblockInfo;
use pramfs_medium::media::features::{FEATURES, Mask};

use crate::failure::shown;
use crate::{Failure, output, signals};
pub use options::Options;
pub(crate) use options::octal;
use pramfs_medium::pmem::RegionAccess;
use report::Report;
use target::{Objection, Target};

/// Runs the tool.
pub fn main(args: Vec<OsString>) -> ExitCode {
    // mkfs(8) runs the type `fuse.pramfs` under this name.
    let helper = args
        .first()
        .is_some_and(|program| Path::new(program).ends_with("mkfs.fuse.pramfs"));
    let options = match Options::try_parse_from(args) {
        Ok(options) => Options { helper, ..options },
        Err(e) => {
            // mkfs(8) knows only 0 and 1.
            let _ = e.print();
            return ExitCode::from(u8::from(e.use_stderr()));
        }
    };
    match make(&options).and_then(|()| output::flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            // As above.
            let status = if f.reason == "usage" { 1 } else { f.status };
            output::failed("mkfs.pramfs", &Failure { status, ..f }, options.json)
        }
    }
}

fn make(o: &Options) -> Result<(), Failure> {
    if o.wants_list() {
        return list_features();
    }
    let path = o
        .region
        .as_deref()
        .ok_or_else(|| Failure::usage("REGION is missing; see --help"))?;
    let name = shown(path);
    let what = o.format()?;
    if let Some(from) = o.directory.as_ref().filter(|from| from.as_os_str() != "-") {
        std::fs::metadata(from).map_err(|e| Failure::os("cannot copy from", from, e))?;
    }
    // A sparse file gets its pages when they are touched. If the host is full,
    // the guard turns SIGBUS into an error.
    pramfs::pmem::install_fault_guard()?;
    let mut target = Target::open(path, o.size, o.dry_run)?;
    // Refuse impossible options before asking or creating anything.
    what.superblock(target.len())
        .map_err(|e| not_made(&name, e))?;
    let objections = target.objections()?;
    if !objections.is_empty() && !o.force {
        consent(o, &objections, &target)?;
    }

    let (created, found) = (target.creates(), target.found().to_vec());
    let mut report = if o.dry_run {
        let made = dry_run(&what, target.len()).map_err(|e| not_made(&name, e))?;
        Report::new(name.clone(), &made, None)
    } else {
        // Before there is anything to put away.
        let signal = o.directory.is_some().then(signals::note_signals);
        let signal = signal.transpose()?.unwrap_or_default();
        let region = target.prepare(o.discard)?;
        let object = region.ownership().map(|ownership| ownership.object());
        let spinner = output::spinner("formatting");
        let made = allocate(&region, &name, o.allocate)
            .and_then(|()| format_region(&region, &name, &what, o.size));
        spinner.finish_and_clear();
        let remove = || {
            let same = |meta: std::fs::Metadata| Some((meta.dev(), meta.ino())) == object;
            if created && path.symlink_metadata().is_ok_and(same) {
                // Remove the unusable file; the error gives the reason.
                let _ = std::fs::remove_file(path);
            }
        };
        let made = made.inspect_err(|_| remove())?;
        let mut report = Report::new(name.clone(), &made, Some(&region.info()));
        report.warnings.extend(other_writers(&region));
        report.warnings.extend(space_warning(&region));
        if let Some(from) = &o.directory
            && let Err(failure) = fill::fill(region, &name, from, &made, &signal)
        {
            remove();
            if let Some(number) = signals::noted(&signal) {
                eprintln!("mkfs.pramfs: {}", failure.message);
                signals::end_by(number)?;
            }
            return Err(failure);
        }
        report
    };
    report.created = created && !o.dry_run;
    if !o.dry_run && found.iter().any(contents::Contents::is_foreign) {
        report.warnings.extend(remaining_signatures(path));
    }
    report.overwritten = found;
    if o.json {
        return output::json(&report);
    }
    if !o.quiet {
        output::line(&report.text())?;
        for warning in &report.warnings {
            remark(o, &format!("mkfs.pramfs: note: {warning}\n"))?;
        }
    }
    Ok(())
}

/// With `--allocate`, takes all the space that the region may need.
fn allocate(region: &Region, name: &str, wanted: bool) -> Result<(), Failure> {
    if !wanted {
        return Ok(());
    }
    region.take_all_room().map_err(|e| match e {
        PmemError::NoRoom { .. } => Failure::new(
            "no-space",
            format!(
                "{name}: not made: its host file system has no space for all its {} bytes; free space there, choose a smaller size, or leave out --allocate",
                region.len()
            ),
        ),
        e => e.into(),
    })
}

/// Warns if the host has less space than the region may need.
fn space_warning(region: &Region) -> Option<String> {
    let missing = region.host_space()?.missing();
    (missing > 0).then(|| {
        format!(
            "the host file system lacks {} of the space that the region may need: when the host is full, writes fail with ENOSPC. --allocate takes all the space now, or fails",
            pramfs_medium::size::human(missing)
        )
    })
}

fn format_region(
    region: &Region,
    name: &str,
    what: &FormatOptions,
    size: Option<u64>,
) -> Result<SuperblockInfo, Failure> {
    debug_assert!(size.is_none_or(|len| len == region.len()));
    let made = format(region, what).and_then(|made| {
        region
            .sync_all()
            .map_err(|e| pramfs::Error::io_failed("the file system could not be written out", e))?;
        Ok(made)
    });
    // Stores to a faulted page are lost, even if `format` succeeded.
    match region.faults() {
        0 if matches!(made, Err(pramfs::Error::Pmem(PmemError::NoRoom { .. }))) => {
            Err(Failure::new(
                "no-space",
                format!(
                    "{name}: not made: its host file system is full; free space there, or choose another place"
                ),
            ))
        }
        0 => made.map_err(|e| not_made(name, e)),
        _ => Err(Failure::new(
            "no-space",
            format!(
                "{name}: not made: some of its pages could not be accessed: its host file system is full, or the medium failed. Free space there, or choose another place"
            ),
        )),
    }
}

/// Formats the same way, in memory that this process frees.
fn dry_run(what: &FormatOptions, len: u64) -> pramfs::Result<SuperblockInfo> {
    let region = RegionOptions::new().memfd("mkfs-dry-run", len)?;
    format(&region, what)
}

fn not_made(name: &str, e: pramfs::Error) -> Failure {
    match e {
        // Do not make a file system that cannot be mounted.
        pramfs::Error::NotMountable(why) => Failure::new("options", format!("{name}: {why}")),
        e => Failure::about(name, e),
    }
}

/// Asks at the terminal. Anything but yes means no, and so does no answer. Input
/// from a script is not an answer, unless mkfs(8) is the caller: by custom, `yes` is
/// piped to it.
fn consent(o: &Options, objections: &[Objection], target: &Target) -> Result<(), Failure> {
    let sentences: Vec<&str> = objections.iter().map(|o| o.sentence.as_str()).collect();
    let refusal = |message: String| Failure {
        found: serde_json::to_value(target.found()).ok(),
        ..Failure::new(objections.first().map_or("exists", |o| o.reason), message)
    };
    if o.quiet || o.json || o.dry_run || !(o.helper || std::io::stdin().is_terminal()) {
        return Err(refusal(format!(
            "{}; use -f to continue",
            sentences.join("; ")
        )));
    }
    for sentence in &sentences {
        remark(o, &format!("mkfs.pramfs: {sentence}\n"))?;
    }
    remark(o, "Proceed anyway? (y/N) ")?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES") {
        if o.helper {
            remark(o, "\n")?;
        }
        return Ok(());
    }
    // The cursor follows the question, unless a person pressed Enter.
    if !answer.ends_with('\n') || o.helper {
        remark(o, "\n")?;
    }
    Err(refusal(
        "not made; use -f to continue without a question".into(),
    ))
}

/// Prints a remark, which is neither result nor error. It goes to standard error,
/// but to standard output below mkfs(8), whose callers treat all of standard error as
/// errors.
fn remark(o: &Options, text: &str) -> Result<(), Failure> {
    if o.helper {
        output::bytes(text.as_bytes())?;
        return output::flush();
    }
    eprint!("{text}");
    let _ = std::io::stderr().flush();
    Ok(())
}

/// Names other users with access, after `-f` or a yes.
fn other_writers(region: &Region) -> Option<String> {
    let why = region
        .ownership()?
        .objection(rustix::process::geteuid().as_raw())?;
    Some(format!(
        "the region {why}; if root mounts it like this, set-user-ID bits and device files in it have no effect"
    ))
}

fn remaining_signatures(path: &Path) -> Option<String> {
    match contents::foreign(path) {
        Ok(contents::Foreign::Known(f)) => Some(format!(
            "blkid still sees {} behind the new file system; see wipefs(8)",
            f.sentence()
        )),
        _ => None,
    }
}

fn list_features() -> Result<(), Failure> {
    for f in FEATURES {
        let mask = match f.mask {
            Mask::Compat => "compat",
            Mask::RoCompat => "ro_compat",
            Mask::Incompat => "incompat",
        };
        let state = match f.supported {
            true if f.is_set_by_mounts() => " (set by mounts)",
            true => "",
            false => " (reserved)",
        };
        output::line(&format!("{:<16} {mask:<10} {}{state}", f.name, f.doc))?;
    }
    Ok(())
}
