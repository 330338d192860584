//! `fsck.pramfs`: checks the file system of an unmounted region and repairs it.
//!
//! Order: fsck parses the options, then opens and locks the region, and only
//! then reads. With `-n` it opens the region read-only, and no byte of the
//! medium changes. It stores the whole repair at the end, and makes it durable
//! (msync on media that need one) before it returns the exit status.
//!
//! Not here: what damage is, and how to repair it (`pramfs_fsck`).

mod ask;
mod options;
mod report;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use pramfs::pmem::Region;
use pramfs_fsck::{self as fsck, CheckOptions, Policy, RepairOptions, Severity};
use pramfs_medium::media::probe_superblock;

use crate::commands::check;
use crate::failure::{printable, quoted, shown};
use crate::open::{self, Intent};
use crate::{Failure, output};
pub use options::Options;
use pramfs_contents::{self as contents, Foreign};

/// fsck(8): errors were corrected.
const CORRECTED: u8 = 1;
/// fsck(8): errors were left uncorrected.
const ERRORS_LEFT: u8 = 4;
/// fsck(8): operational error.
const NOT_DONE: u8 = 8;
/// fsck(8): wrong usage.
const USAGE: u8 = 16;
/// fsck(8): cancelled by the user.
const CANCELLED: u8 = 32;

/// Runs the tool.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { USAGE } else { 0 });
        }
    };
    match run(&options).and_then(|status| output::flush().map(|()| status)) {
        Ok(status) => ExitCode::from(status),
        Err(f) => {
            let failure = Failure {
                status: if f.reason == "usage" { USAGE } else { NOT_DONE },
                ..f
            };
            output::failed("fsck.pramfs", &failure, options.json)
        }
    }
}

fn run(o: &Options) -> Result<u8, Failure> {
    let asks = !(o.no || o.preen || o.yes);
    if asks && (o.json || !std::io::stdin().is_terminal()) {
        return Err(Failure::usage(format!(
            "cannot ask questions with --json or without a terminal: use fsck.pramfs -n {0} to check, -p {0} to repair what loses nothing, or -y {0} to repair everything",
            quoted(&o.region)
        )));
    }
    pramfs::pmem::install_fault_guard()?;
    let intent = if o.no { Intent::Read } else { Intent::Write };
    let region = open::region(&o.region, intent)?;
    if o.preen && !o.force && was_clean(&region) {
        return skipped(o);
    }
    let bar = output::steps();
    let policy = if o.no {
        Policy::No
    } else if o.preen {
        Policy::Preen
    } else if o.yes {
        Policy::Yes
    } else {
        Policy::Ask(ask::at_the_terminal(bar.clone()))
    };
    let options = RepairOptions {
        policy,
        check: CheckOptions {
            progress: Some(check::progress_on(&bar)),
            ..CheckOptions::default()
        },
    };
    let result = fsck::repair(&region, &options);
    bar.finish_and_clear();
    let mut report = result.map_err(|e| Failure::about(shown(&o.region), e))?;
    drop(region);
    for f in &mut report.findings {
        if let fsck::Issue::NoSuperblock { why } = &mut f.issue
            && let Some(other) = another_kind(o)
        {
            *why = other;
        }
    }
    if o.json {
        output::json(&report::Json::new(shown(&o.region), &report))?;
    } else {
        report::print(o, &report)?;
    }
    Ok(status(&report))
}

/// Describes another file system or format in the region, and names its fsck.
fn another_kind(o: &Options) -> Option<String> {
    let Ok(Foreign::Known(found)) = contents::foreign(&o.region) else {
        return None;
    };
    found.is_foreign().then(|| match found.usage.as_str() {
        "filesystem" => format!(
            "the region holds {}; check it with fsck.{}",
            found.sentence(),
            printable(&found.kind)
        ),
        _ => format!("the region holds {}", found.sentence()),
    })
}

/// Returns the exit status, as in fsck(8).
fn status(report: &fsck::Report) -> u8 {
    let errors = report.left().any(|f| f.severity >= Severity::Error);
    let mut status = 0;
    if report.stored > 0 && (report.fixed().count() > 0 || report.replayed > 0) {
        status |= CORRECTED;
    }
    if report.cancelled {
        status |= CANCELLED;
    }
    if errors || !report.complete {
        status |= ERRORS_LEFT;
    }
    // No usable file system, or it cannot be read.
    let fatal = report.left().any(|f| {
        use fsck::Issue::*;
        matches!(
            f.issue,
            NoSuperblock { .. } | UnknownFeatures { .. } | Unreadable { .. }
        )
    });
    if fatal { NOT_DONE } else { status }
}

/// Whether `-p` may skip the region at boot.
fn was_clean(region: &Region) -> bool {
    probe_superblock(region).is_ok_and(|info| {
        info.is_clean()
            && !info.from_copy
            && !info.copy_damaged
            && info
                .checkpoint()
                .is_some_and(|lsn| lsn < fsck::LSNS_USED_UP)
            && info.dynamic.last_error.count == 0
    })
}

fn skipped(o: &Options) -> Result<u8, Failure> {
    let region = shown(&o.region);
    if o.json {
        output::json(&serde_json::json!({ "region": region, "skipped": true, "sound": true }))?;
    } else {
        output::line(&format!(
            "{region}: unmounted cleanly, not checked; use -f to check it"
        ))?;
    }
    Ok(0)
}
