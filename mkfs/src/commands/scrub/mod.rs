//! `pramfs scrub`: reads everything in a file system against its checksums, on a live mount
//! through its server, or without a mount.

mod report;
mod source;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pramfs::inode::ScrubStatus;
use pramfs_medium::media::scrub::{CANCELLED, UNDER_WAY};
use pramfs_medium::pmem::ScrubRequest;
use pramfs_medium::size;

use super::Subcommand;
use crate::failure::shown;
use crate::{Failure, output};
pub(super) use report::Mark as FindingMark;
use report::Report;
use source::Source;

/// Bytes a second on a live mount, unless the user chose: a few percent of what a processor can
/// read.
const LIVE_LIMIT: u64 = 100 << 20;
/// Time between two looks at the progress.
const LOOK: Duration = Duration::from_millis(200);
/// Findings that are printed one by one.
const LISTED: u64 = 1000;
/// How often a scrub is resumed whose server was replaced by another one.
const RESUMED: u32 = 10;

/// Exit status: something was found.
const FOUND: u8 = 4;
/// Exit status: the scrub did not reach the end.
const STOPPED: u8 = 32;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 nothing found, 4 something found, 32 cancelled or \
    interrupted,\n1 failure, 2 wrong usage. Nothing is repaired: fsck.pramfs does that."
)]
pub(super) struct Scrub {
    /// Mount point, or file or device that holds the file system
    place: PathBuf,
    /// Most bytes to read in a second, with K, M, G or T; 0 for no limit (default: 100M on a
    /// live mount, else no limit)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,
    /// Go on where the last scrub stopped, if it did not finish
    #[arg(long)]
    resume: bool,
    /// Start the scrub of a live mount, and do not wait for its end
    #[arg(long)]
    background: bool,
    /// Without a mount: change nothing, not even the record of scrubs
    #[arg(long, conflicts_with_all = ["resume", "background"])]
    read_only: bool,
    /// Only show how far the scrub is, and what scrubs have found
    #[arg(long, conflicts_with_all = ["limit", "resume", "background", "read_only", "cancel"])]
    status: bool,
    /// Stop the scrub of a live mount
    #[arg(long, conflicts_with_all = ["limit", "resume", "background", "read_only"])]
    cancel: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Subcommand for Scrub {
    const NAME: &'static str = "scrub";
    const ABOUT: &'static str = "Read everything against its checksums, mounted or not";

    fn run(&self) -> Result<(), Failure> {
        let only_looks = self.status || self.read_only;
        let source = Source::of(&self.place, only_looks)?;
        let done = self.with(&source);
        let closed = source.close(&self.place);
        // What went wrong first is said.
        let (status, found) = done.and_then(|done| closed.map(|()| done))?;
        let report = Report::new(shown(&self.place), source.mounted(), &status, found);
        match self.json {
            true => output::json(&report)?,
            false => output::line(&report.text())?,
        }
        match self.exit_status(&status) {
            0 => Ok(()),
            status => Err(Failure {
                status,
                ..Failure::silent()
            }),
        }
    }
}

impl Scrub {
    fn with(&self, source: &Source) -> Result<(ScrubStatus, Vec<String>), Failure> {
        if self.status {
            return Ok((source.ask(ScrubRequest::Status)?, Vec::new()));
        }
        if self.cancel {
            return Ok((source.ask(ScrubRequest::Cancel)?, Vec::new()));
        }
        if self.background && !source.mounted() {
            return Err(Failure::usage(
                "--background is for a live mount: without one, this program does the work",
            ));
        }
        let limit = match (self.limit, source.mounted()) {
            (Some(0), _) | (None, false) => None,
            (None, true) => Some(LIVE_LIMIT),
            (limit, _) => limit,
        };
        let resume = self.resume;
        let mut status = source.ask(ScrubRequest::Start { resume, limit })?;
        if self.background {
            return Ok((status, Vec::new()));
        }
        let bar = output::timed_bar(status.total, &shown(&self.place));
        let (mut found, mut resumed) = (Vec::new(), 0);
        loop {
            status = source.wait(LOOK)?;
            bar.set_length(status.total.max(status.done));
            bar.set_position(status.done);
            self.list(source, &status, &mut found, &bar)?;
            if status.running {
                continue;
            }
            // Another server has taken over from the one that was asked.
            let replaced = source.mounted() && status.state == UNDER_WAY && status.errno == 0;
            if !replaced || resumed == RESUMED {
                break;
            }
            resumed += 1;
            let resume = true;
            source.ask(ScrubRequest::Start { resume, limit })?;
        }
        bar.finish_and_clear();
        Ok((status, found))
    }

    /// Prints the findings that are new.
    fn list(
        &self,
        source: &Source,
        status: &ScrubStatus,
        found: &mut Vec<String>,
        bar: &indicatif::ProgressBar,
    ) -> Result<(), Failure> {
        while (found.len() as u64) < status.found.min(LISTED) {
            let Some(text) = source.finding(found.len())? else {
                // Those before an interruption are in the log only.
                return Ok(());
            };
            let text = crate::failure::printable(&text);
            if !self.json {
                bar.suspend(|| output::line(&format!("found: {text}")))?;
            }
            found.push(text);
        }
        Ok(())
    }

    fn exit_status(&self, status: &ScrubStatus) -> u8 {
        let waited = !(self.status || self.cancel || self.background);
        match status {
            _ if self.cancel || self.background => 0,
            status if self.status && status.findings > 0 => FOUND,
            status if waited && status.found > 0 => FOUND,
            status if waited && matches!(status.state, UNDER_WAY | CANCELLED) => STOPPED,
            _ => 0,
        }
    }
}
