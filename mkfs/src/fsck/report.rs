//! Prints findings and actions, for people and for programs.

use pramfs_fsck::{self as fsck, Finding, Issue, Lost, Outcome, Severity};
use serde::Serialize;

use super::Options;
use crate::Failure;
use crate::failure::{printable, shown};
use crate::output;
use crate::tree::Name;

/// Returns a finding with the path of what it concerns.
pub(super) fn sentence(f: &Finding) -> String {
    match &f.path {
        Some(path) => format!("{f} ({})", path.escape_ascii()),
        None => f.to_string(),
    }
}

fn outcome(f: &Finding, looked: bool) -> String {
    match f.outcome {
        Outcome::Fixed => f.done.unwrap_or(fsck::Done::Set).to_string(),
        Outcome::Left if awaits_mount(f) => "the next mount recovers it".to_owned(),
        Outcome::Left if looked => String::new(),
        Outcome::Left => "left".to_owned(),
        Outcome::Declined => "left, as you answered".to_owned(),
        Outcome::Failed => "not fixed: it cannot be repaired".to_owned(),
        Outcome::NoSpace => {
            "not fixed: no free blocks for the repair; delete files, and run fsck.pramfs again"
                .to_owned()
        }
    }
}

/// Whether a finding is not damage but the trace of a kill or a power failure. A
/// mount recovers from it.
fn awaits_mount(f: &Finding) -> bool {
    f.outcome == Outcome::Left
        && matches!(
            f.issue,
            Issue::NotUnmounted
                | Issue::LabelsDiffer
                | Issue::GrowInterrupted
                | Issue::RecordTorn { .. }
                | Issue::AppendWindowOpen { .. }
        )
}

/// Returns the number of findings that are left and that no mount recovers from.
fn left(report: &fsck::Report) -> usize {
    report.left().filter(|f| !awaits_mount(f)).count()
}

/// Prints one line for each finding, and a summary.
///
/// # Errors
/// Writing to standard output failed.
pub(super) fn print(o: &Options, report: &fsck::Report) -> Result<(), Failure> {
    let region = shown(&o.region);
    if report.replayed > 0 {
        let how = if report.stored > 0 {
            "replayed"
        } else {
            "replayed in memory only; a mount or a repair replays them on the medium"
        };
        output::line(&format!(
            "the last unmount was not clean: {} journal records {how}",
            report.replayed
        ))?;
    }
    if report.refused > 0 {
        output::line(&format!(
            "{} journal records of a crash were not replayed: at least one targets a place that no record may change",
            report.refused
        ))?;
    }
    for f in &report.findings {
        let done = outcome(f, o.no || report.cancelled);
        let mut line = printable(&sentence(f));
        if awaits_mount(f) {
            line = line.replacen("warning:", "note:", 1);
        }
        if o.verbose {
            line = format!("[{}] {line}", f.issue.code());
        }
        if !done.is_empty() {
            line = format!("{line}: {done}");
        }
        output::line(&line)?;
    }
    for loss in &report.lost {
        let word = match loss.what {
            Lost::Kept { .. } => "kept",
            Lost::Freed { .. } => "freed",
            _ => "lost",
        };
        output::line(&format!("{word}: {}", printable(&loss.to_string())))?;
    }
    for mark in &report.marked {
        let mark = printable(&mark.to_string());
        output::line(&format!(
            "note: {mark}; reads fail with EIO until they are written"
        ))?;
    }
    let left = left(report);
    let fixed = report.fixed().count();
    let waits = report.left().any(awaits_mount) || report.replayed > 0 && report.stored == 0;
    let state = if report.cancelled {
        "cancelled; nothing was changed".to_owned()
    } else if !report.complete {
        "the check could not be completed; nothing was changed".to_owned()
    } else if fixed + left == 0 && waits {
        "no damage; recovery will be done at the next mount".to_owned()
    } else if report.findings.is_empty() {
        "clean".to_owned()
    } else {
        format!("{fixed} fixed, {left} left")
    };
    let c = &report.counts;
    output::line(&format!(
        "{region}: {state}; {} files, {} directories, {} symlinks, {} others; {} of {} blocks of {} bytes in use",
        c.files, c.directories, c.symlinks, c.special, c.used_blocks, c.blocks, c.block_size
    ))?;
    let advice = match () {
        () if o.no && left > 0 => "run fsck.pramfs -y to repair this",
        () if o.preen && report.left().any(|f| f.severity >= Severity::Error) => {
            "the errors left need a decision: run fsck.pramfs without -p"
        }
        () => "",
    };
    if !advice.is_empty() && report.complete {
        output::line(&format!("{region}: {advice}"))?;
    }
    if o.verbose {
        output::line(&format!(
            "{region}: {:.3} s, {} bytes stored",
            report.time.as_secs_f64(),
            report.stored
        ))?;
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct JsonFinding {
    severity: String,
    code: &'static str,
    message: String,
    outcome: &'static str,
    /// The action taken, in one verb.
    done: Option<&'static str>,
    remedy: &'static str,
    inode: Option<u64>,
    block: Option<u64>,
    path: Option<Name>,
    later: bool,
}

#[derive(Debug, Serialize)]
struct JsonLoss {
    path: Option<Name>,
    inode: Option<u64>,
    what: &'static str,
    message: String,
}

/// The report as one JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Json {
    region: String,
    /// Whether no errors are left; warnings do not count.
    sound: bool,
    complete: bool,
    cancelled: bool,
    replayed: u64,
    refused: u64,
    stored_bytes: u64,
    fixed: usize,
    left: usize,
    findings: Vec<JsonFinding>,
    lost: Vec<JsonLoss>,
    /// Ranges whose reads fail with EIO; not damage.
    marked: Vec<JsonLoss>,
    files: u64,
    directories: u64,
    symlinks: u64,
    special: u64,
    used_blocks: u64,
    blocks: u64,
    block_size: u64,
    seconds: f64,
}

impl Json {
    /// Converts a report.
    pub(super) fn new(region: String, report: &fsck::Report) -> Json {
        let c = &report.counts;
        let finding = |f: &Finding| JsonFinding {
            severity: f.severity.to_string(),
            code: f.issue.code(),
            message: f.issue.to_string(),
            done: f.done.map(fsck::Done::as_str),
            outcome: match f.outcome {
                Outcome::Left if awaits_mount(f) => "at-next-mount",
                Outcome::Fixed => "fixed",
                Outcome::Left => "left",
                Outcome::Declined => "declined",
                Outcome::Failed => "failed",
                Outcome::NoSpace => "no-space",
            },
            remedy: f.issue.remedy(),
            inode: f.issue.ino().map(|i| i.0),
            block: f.issue.block(),
            path: f.path.as_deref().map(Name::from),
            later: f.later,
        };
        let loss = |l: &fsck::Loss| JsonLoss {
            path: l.path.as_deref().map(Name::from),
            inode: l.ino.map(|i| i.0),
            what: l.what.code(),
            message: l.what.to_string(),
        };
        Json {
            region,
            sound: report.is_sound(),
            complete: report.complete,
            cancelled: report.cancelled,
            replayed: report.replayed,
            refused: report.refused,
            stored_bytes: report.stored,
            fixed: report.fixed().count(),
            left: left(report),
            findings: report.findings.iter().map(finding).collect(),
            lost: report.lost.iter().map(loss).collect(),
            marked: report.marked.iter().map(loss).collect(),
            files: c.files,
            directories: c.directories,
            symlinks: c.symlinks,
            special: c.special,
            used_blocks: c.used_blocks,
            blocks: c.blocks,
            block_size: c.block_size,
            seconds: report.time.as_secs_f64(),
        }
    }
}
