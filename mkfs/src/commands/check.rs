//! `pramfs check`: cross-checks everything on the medium and changes nothing.
//! The check itself is in `pramfs_fsck`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use indicatif::ProgressBar;
use pramfs::{MountOptions, inode::Fs};
use pramfs_fsck::{self as fsck, CheckOptions, Issue, Severity, Step};
use serde::Serialize;

use super::Subcommand;
use crate::failure::{printable, shown};
use crate::moment::{Structures, structures};
use crate::tree::Name;
use crate::{Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 sound, 4 errors found, 8 not checked, 2 wrong usage. Nothing is\n\
    repaired: fsck.pramfs does that."
)]
pub(crate) struct Check {
    /// File or device that holds the file system, or a mount point: a mount is copied first
    region: PathBuf,
    /// Maximum number of findings to print
    #[arg(long, default_value_t = 1000)]
    limit: usize,
    /// Print nothing but findings
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// fsck(8): errors are left.
const ERRORS_LEFT: u8 = 4;
/// fsck(8): the check could not be done.
const NOT_CHECKED: u8 = 8;

#[derive(Debug, Serialize)]
struct Finding {
    severity: String,
    code: &'static str,
    message: String,
    inode: Option<u64>,
    block: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Mark {
    path: Option<Name>,
    inode: Option<u64>,
    message: String,
}

/// A report as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    region: String,
    /// Whether there are no errors; warnings do not count.
    sound: bool,
    /// Whether the check could read everything.
    complete: bool,
    /// Records that the next mount replays. The check replayed them in private
    /// memory.
    replayed: usize,
    /// It was mounted, and is checked as it was at one moment.
    live: bool,
    findings: Vec<Finding>,
    findings_left_out: u64,
    /// Ranges of files that are marked as lost; not damage.
    marked: Vec<Mark>,
    files: u64,
    directories: u64,
    symlinks: u64,
    special: u64,
    entries: u64,
    xattrs: u64,
    orphans: u64,
    used_blocks: u64,
    blocks: u64,
    block_size: u64,
    seconds: f64,
}

impl Subcommand for Check {
    const NAME: &'static str = "check";
    const ABOUT: &'static str =
        "Check everything in a region, and change nothing (exit status 4: errors)";

    fn run(&self) -> Result<(), Failure> {
        let checked = region(&self.region, self.limit).map_err(|f| Failure {
            status: NOT_CHECKED,
            ..f
        })?;
        let report = &checked.report;
        let sound = report.complete && report.worst() < Some(Severity::Error);
        if self.json {
            let report = Report::new(shown(&self.region), report, sound, checked.replayed);
            output::json(&Report {
                live: checked.is_live,
                ..report
            })?;
        } else {
            self.print(&checked)?;
        }
        if sound {
            Ok(())
        } else {
            Err(Failure {
                status: ERRORS_LEFT,
                ..Failure::silent()
            })
        }
    }
}

/// What a check has found.
struct Checked {
    report: fsck::Report,
    /// Records that were replayed in private memory.
    replayed: usize,
    is_live: bool,
}

/// Checks a region, or a mount as it was at one moment.
///
/// # Errors
/// The region cannot be opened, or the mount copied.
fn region(path: &Path, max_findings: usize) -> Result<Checked, Failure> {
    pramfs::pmem::install_fault_guard()?;
    let Structures { region, is_live } = structures(path)?;
    let bar = output::steps();
    let options = CheckOptions {
        max_findings,
        progress: Some(progress_on(&bar)),
    };
    let mut result = (fsck::check(&region, &options), 0);
    let journal_first = result
        .0
        .issues()
        .any(|i| matches!(i, Issue::LiveRecords { .. }));
    if journal_first && !result.0.complete {
        // Replay as the next mount would, but in private memory. If the file
        // system cannot be mounted then, the findings say so.
        let mount = MountOptions {
            read_only: true,
            background: false,
            ..MountOptions::default()
        };
        if let Ok(fs) = Fs::open(region, mount) {
            result = (fsck::check(fs.region(), &options), fs.recovery().records);
        }
    }
    bar.finish_and_clear();
    let (mut report, replayed) = result;
    if is_live {
        // It is mounted, which is no finding.
        let is_mounted = |f: &fsck::Finding| matches!(f.issue, Issue::NotUnmounted);
        report.findings.retain(|f| !is_mounted(f));
    }
    Ok(Checked {
        report,
        replayed,
        is_live,
    })
}

impl Check {
    fn print(&self, checked: &Checked) -> Result<(), Failure> {
        let (report, replayed) = (&checked.report, checked.replayed);
        if checked.is_live && !self.quiet {
            output::line("mounted: checked as it was at one moment")?;
        }
        if replayed > 0 && !self.quiet {
            output::line(&format!(
                "the last unmount was not clean: {replayed} journal records replayed, in memory only; a mount replays them on the medium"
            ))?;
        }
        let text = report.to_string();
        let (findings, summary) = text.rsplit_once('\n').unwrap_or(("", &text));
        if !findings.is_empty() {
            for finding in findings.lines() {
                output::line(&printable(finding))?;
            }
        }
        if self.quiet {
            Ok(())
        } else {
            output::line(&format!("{}: {summary}", shown(&self.region)))
        }
    }
}

impl Report {
    /// Of a region's report; `sound`: no errors, and complete.
    pub(crate) fn new(
        region: String,
        report: &fsck::Report,
        sound: bool,
        replayed: usize,
    ) -> Report {
        let c = &report.counts;
        Report {
            region,
            sound,
            complete: report.complete,
            replayed,
            live: false,
            findings: report
                .findings
                .iter()
                .map(|f| Finding {
                    severity: f.severity.to_string(),
                    code: f.issue.code(),
                    message: f.issue.to_string(),
                    inode: f.issue.ino().map(|i| i.0),
                    block: f.issue.block(),
                })
                .collect(),
            findings_left_out: report.dropped,
            marked: report
                .marked
                .iter()
                .map(|m| Mark {
                    path: m.path.as_deref().map(Name::from),
                    inode: m.ino.map(|i| i.0),
                    message: m.what.to_string(),
                })
                .collect(),
            files: c.files,
            directories: c.directories,
            symlinks: c.symlinks,
            special: c.special,
            entries: c.entries,
            xattrs: c.xattrs,
            orphans: c.orphans,
            used_blocks: c.used_blocks,
            blocks: c.blocks,
            block_size: c.block_size,
            seconds: report.time.as_secs_f64(),
        }
    }
}

/// Shows the progress of a check on `bar`.
pub(crate) fn progress_on(bar: &ProgressBar) -> fsck::Progress {
    let bar = bar.clone();
    Arc::new(move |step: Step, done, total| {
        bar.set_message(step.to_string());
        bar.set_length(total);
        bar.set_position(done);
    })
}
