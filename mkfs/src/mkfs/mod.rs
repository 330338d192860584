//! `mkfs.pramfs`: makes a file system in a region, and refuses to where that
//! would destroy something.
//!
//! Order: the options are checked, then the target is opened and locked, then
//! looked at; only when nothing speaks against it (or `-f` says so) is
//! something created, resized or written. A region in use is refused whatever
//! the options.
//!
//! Left to others: the medium itself (`pramfs::format`).

pub mod contents;
mod options;
mod path_walk;
pub mod report;
mod target;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{PmemError, Region, RegionOptions};
use pramfs_medium::media::SuperblockInfo;
use pramfs_medium::media::features::{FEATURES, Mask};

use crate::failure::shown;
use crate::{Failure, output};
pub use options::Options;
use report::Report;
use target::{Objection, Target};

/// Runs the tool.
pub fn main(args: Vec<OsString>) -> ExitCode {
    // mkfs(8) finds the type `fuse.pramfs` by this name.
    let helper = args
        .first()
        .is_some_and(|program| Path::new(program).ends_with("mkfs.fuse.pramfs"));
    let options = match Options::try_parse_from(args) {
        Ok(options) => Options { helper, ..options },
        Err(e) => {
            // mkfs(8) knows 0 and 1 only.
            let _ = e.print();
            return ExitCode::from(u8::from(e.use_stderr()));
        }
    };
    match make(&options).and_then(|()| output::flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => output::failed("mkfs.pramfs", &f, options.json),
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
    // Pages of a sparse file are had when they are touched; where there are
    // none left, that is an error and not the end of this process.
    pramfs::pmem::install_fault_guard()?;
    let mut target = Target::open(path, o.size, o.dry_run)?;
    // Options that do not fit are refused before anything is asked or made.
    what.superblock(target.len())
        .map_err(|e| not_made(&name, e))?;
    let objections = target.objections()?;
    if !objections.is_empty() && !o.force {
        consent(o, &objections, &target)?;
    }

    let (created, found) = (target.creates(), target.found().to_vec());
    let mut report = if o.dry_run {
        let made = dry_run(&what, target.len()).map_err(|e| not_made(&name, e))?;
        Report::new(name, &made, None)
    } else {
        let region = target.prepare(o.discard)?;
        let object = region.ownership().map(|ownership| ownership.object());
        let spinner = output::spinner("formatting");
        let made = allocate(&region, &name, o.allocate)
            .and_then(|()| format_region(&region, &name, &what, o.size));
        spinner.finish_and_clear();
        let made = made.inspect_err(|_| {
            let same = |meta: std::fs::Metadata| Some((meta.dev(), meta.ino())) == object;
            if created && path.symlink_metadata().is_ok_and(same) {
                // Of no use to anybody; the error says why.
                let _ = std::fs::remove_file(path);
            }
        })?;
        let mut report = Report::new(name, &made, Some(&region.info()));
        report.warnings.extend(who_else_may_write(&region));
        report.warnings.extend(little_room(&region));
        report
    };
    report.created = created && !o.dry_run;
    if !o.dry_run && found.iter().any(contents::Found::is_foreign) {
        report.warnings.extend(what_blkid_still_sees(path));
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

/// Takes all the room that the region may come to need, if that is asked for.
fn allocate(region: &Region, name: &str, wanted: bool) -> Result<(), Failure> {
    if !wanted {
        return Ok(());
    }
    region.take_all_room().map_err(|e| match e {
        PmemError::NoRoom { .. } => Failure::new(
            "no-space",
            format!(
                "{name}: not made: the file system that holds it has no room for all its {} bytes; make room there, choose a smaller size, or leave out --allocate",
                region.len()
            ),
        ),
        e => e.into(),
    })
}

/// What to expect of a host that cannot give all that the region may need.
fn little_room(region: &Region) -> Option<String> {
    let missing = region.host_space()?.missing();
    (missing > 0).then(|| {
        format!(
            "the file system that holds the region has {} less than it may come to need: writes get ENOSPC when that is full; --allocate takes all at once, or says that it cannot",
            crate::size::human(missing)
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
        region.sync_all().map_err(|e| {
            pramfs::Error::Io(format!("the file system could not be written out: {e}"))
        })?;
        Ok(made)
    });
    // Bytes that went to such a page are lost, whatever else was said.
    match region.faults() {
        0 if matches!(made, Err(pramfs::Error::Pmem(PmemError::NoRoom { .. }))) => {
            Err(Failure::new(
                "no-space",
                format!(
                    "{name}: not made: the file system that holds it is full; make room there, or choose another place"
                ),
            ))
        }
        0 => made.map_err(|e| not_made(name, e)),
        _ => Err(Failure::new(
            "no-space",
            format!(
                "{name}: not made: pages of it could not be had; the file system that holds it is full, or its medium fails. Make room there, or choose another place"
            ),
        )),
    }
}

/// The very same run, in memory that goes away with this process.
fn dry_run(what: &FormatOptions, len: u64) -> pramfs::Result<SuperblockInfo> {
    let region = RegionOptions::new().memfd("mkfs-dry-run", len)?;
    format(&region, what)
}

fn not_made(name: &str, e: pramfs::Error) -> Failure {
    match e {
        // What keeps a file system from being mounted keeps it from being made.
        pramfs::Error::NotMountable(why) => Failure::new("options", format!("{name}: {why}")),
        e => Failure::about(name, e),
    }
}

/// Asks whoever sits at the terminal; anything but yes, and no answer at all, is
/// a no. What a script has on its standard input is not an answer, unless it
/// called mkfs(8), to which `yes` is piped by custom.
fn consent(o: &Options, objections: &[Objection], target: &Target) -> Result<(), Failure> {
    let sentences: Vec<&str> = objections.iter().map(|o| o.sentence.as_str()).collect();
    let refusal = |message: String| Failure {
        found: serde_json::to_value(target.found()).ok(),
        ..Failure::new(objections.first().map_or("exists", |o| o.reason), message)
    };
    if o.quiet || o.json || o.dry_run || !(o.helper || std::io::stdin().is_terminal()) {
        return Err(refusal(format!(
            "{}; use -f to go on",
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
    // The cursor stands behind the question unless a person pressed Enter.
    if !answer.ends_with('\n') || o.helper {
        remark(o, "\n")?;
    }
    Err(refusal(
        "not made; use -f to go on without a question".into(),
    ))
}

/// What is neither the result nor an error, now: on standard error, where a
/// person looks, but below mkfs(8), whose callers take everything there for an
/// error.
fn remark(o: &Options, text: &str) -> Result<(), Failure> {
    if o.helper {
        output::bytes(text.as_bytes())?;
        return output::flush();
    }
    eprint!("{text}");
    let _ = std::io::stderr().flush();
    Ok(())
}

/// After `-f`, or an answer to the question.
fn who_else_may_write(region: &Region) -> Option<String> {
    let why = region
        .ownership()?
        .objection(rustix::process::geteuid().as_raw())?;
    Some(format!(
        "the region {why}; if root mounts it so, set-user-ID bits and device files in it have no effect"
    ))
}

fn what_blkid_still_sees(path: &Path) -> Option<String> {
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
        let state = if f.supported { "" } else { " (reserved)" };
        output::line(&format!("{:<16} {mask:<10} {}{state}", f.name, f.doc))?;
    }
    Ok(())
}
