//! `fsck.pramfs`: checks the file system of a region that nobody has mounted.
//!
//! Order: the options are looked at, then the region is opened and locked;
//! only then is anything read. With `-n` it is opened read-only: what a crash
//! left in the journal is replayed in private memory, and not one byte of the
//! medium changes.
//!
//! Left to others: what is damage (`pramfs::fsck`).

mod options;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use pramfs::fsck::Severity;

use crate::commands::check;
use crate::failure::{printable, shown};
use crate::{Failure, output};
pub use options::Options;

/// fsck(8): errors are left.
const ERRORS_LEFT: u8 = 4;
/// fsck(8): it could not be checked.
const NOT_CHECKED: u8 = 8;
/// fsck(8): wrong usage.
const USAGE: u8 = 16;

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
                status: if f.reason == "usage" {
                    USAGE
                } else {
                    NOT_CHECKED
                },
                ..f
            };
            output::failed("fsck.pramfs", &failure, options.json)
        }
    }
}

fn run(o: &Options) -> Result<u8, Failure> {
    let (report, replayed) = check::region(&o.region, usize::MAX)?;
    let sound = report.complete && report.worst() < Some(Severity::Error);
    if o.json {
        output::json(&check::Report::new(
            shown(&o.region),
            &report,
            sound,
            replayed,
        ))?;
    } else {
        for finding in &report.findings {
            output::line(&printable(&finding.to_string()))?;
        }
        let text = report.to_string();
        let summary = text.lines().last().unwrap_or_default();
        output::line(&format!("{}: {summary}", shown(&o.region)))?;
    }
    Ok(if sound { 0 } else { ERRORS_LEFT })
}
