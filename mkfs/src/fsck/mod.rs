//! `fsck.pramfs`: checks the file system of a region that nobody has mounted,
//! and mends it.
//!
//! Order: the options are looked at, then the region is opened and locked;
//! only then is anything read. With `-n` it is opened read-only, and not one
//! byte of the medium changes. A repair is stored in one go at its end, and
//! written out (msync where the medium takes that) before the status is given.
//!
//! Left to others: what is damage, and how it is mended (`pramfs::fsck`).

mod ask;
mod options;
mod report;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use pramfs::fsck::{self, CheckOptions, Policy, RepairOptions, Severity};
use pramfs::media::probe_superblock;
use pramfs::pmem::Region;

use crate::commands::check;
use crate::failure::{printable, shown};
use crate::mkfs::contents::{self, Foreign};
use crate::open::{self, Intent};
use crate::{Failure, output};
pub use options::Options;

/// fsck(8): errors were corrected.
const CORRECTED: u8 = 1;
/// fsck(8): errors are left.
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
            "there is nobody to ask: type fsck.pramfs -n {0} to look, -p {0} to mend what loses nothing, or -y {0} to mend everything",
            shown(&o.region)
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
            progress: Some(check::told_to(&bar)),
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

/// What is there instead of a file system of ours, and what checks that.
fn another_kind(o: &Options) -> Option<String> {
    let Ok(Foreign::Known(found)) = contents::foreign(&o.region) else {
        return None;
    };
    found.is_foreign().then(|| match found.usage.as_str() {
        "filesystem" => format!(
            "it holds {}; fsck.{} checks that",
            found.sentence(),
            printable(&found.kind)
        ),
        _ => format!("it holds {}", found.sentence()),
    })
}

/// Exit status, as fsck(8) has it.
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
    // There is no file system to speak of, or it cannot be read.
    let fatal = report.left().any(|f| {
        use fsck::Issue::*;
        matches!(
            f.issue,
            NoSuperblock { .. } | UnknownFeatures { .. } | Unreadable { .. }
        )
    });
    if fatal { NOT_DONE } else { status }
}

/// What `-p` may pass over at boot.
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
            "{region}: unmounted cleanly, not checked; -f checks it"
        ))?;
    }
    Ok(0)
}
