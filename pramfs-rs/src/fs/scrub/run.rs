//! A scrub from its start to its end: the limit, the progress, and what the medium keeps.
//!
//! Invariant: the position on the medium is one up to which all was read, and all that was found
//! there is in the same record. So a scrub that was interrupted, by a crash too, finds nothing
//! twice but what it reads twice, and misses nothing.

use std::time::Duration;

use zerocopy::FromZeros;

use crate::fs::Engine;
use crate::fs::scrub::finding::ScrubFinding;
use crate::fs::scrub::pace::Pace;
use crate::fs::scrub::position::{Phase, Position};
use crate::fs::scrub::unit::Scrubber;
use crate::fs::scrub::verify::VerifyData;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::scrub::{
    CANCELLED, FINISHED, SCRUB_OFFSET, SCRUB_SLOTS, ScrubRecord, ScrubSlots, UNDER_WAY,
    store_scrub_record,
};
use pramfs_medium::pmem::RegionAccess as _;

/// Time between two records on the medium. A crash repeats what was read since the last.
const KEEP_EACH: Duration = Duration::from_secs(5);
/// Findings that are logged one by one.
const LOGGED: u64 = 100;

/// Options of a scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Most bytes to read in a second; `None`: as fast as one thread can.
    pub limit: Option<u64>,
    /// Go on where the last scrub stopped, if it did not finish.
    pub resume: bool,
}

/// What tells a scrub the time, and to stop.
pub(crate) trait ScrubHost {
    /// Time since some moment.
    fn now(&self) -> Duration;
    /// Waits for at most so long; none: only looks. Says whether to stop.
    fn wait(&self, at_most: Option<Duration>) -> Order;
    /// Shows the progress, and findings that are new.
    fn show(&self, progress: &Progress, found: &[ScrubFinding]);
}

/// What a scrub is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// Go on.
    #[default]
    GoOn,
    /// Stop here, so that a later scrub may go on.
    Interrupt,
    /// Stop because somebody wants it to.
    Cancel,
}

/// How far a scrub is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// As on the medium.
    pub record: ScrubRecord,
    /// Bytes read by this run.
    pub run_done: u64,
    /// Bytes that the scrub will have read, an estimate.
    pub total: u64,
}

impl Engine {
    /// Reads the record of the scrubs; `None` if there is none, or it is damaged.
    pub(crate) fn scrub_record(&self) -> Option<ScrubRecord> {
        ScrubSlots::read(&self.vol.region, &self.vol.geo).newest
    }

    /// Scrubs until the end, or until the host orders to stop. Returns the last record.
    ///
    /// # Errors
    /// The file system is closed or has failed; memory ran out. The scrub is interrupted then.
    pub(crate) fn run_scrub(
        &self,
        options: ScrubOptions,
        verify: &dyn VerifyData,
        host: &dyn ScrubHost,
    ) -> Result<ScrubRecord> {
        let slots = ScrubSlots::read(&self.vol.region, &self.vol.geo);
        let mut record = slots.newest.unwrap_or_else(ScrubRecord::new_zeroed);
        let goes_on = options.resume && matches!(record.state, UNDER_WAY | CANCELLED);
        let at = match goes_on {
            true => Position::from_record(&record),
            false => Position::START,
        };
        if !goes_on {
            record.started_sec = self.now().sec;
            (record.done, record.found) = (0, 0);
        }
        let mut scrub = Run {
            engine: self,
            scrubber: Scrubber::new(self, verify, at),
            progress: Progress {
                record,
                run_done: 0,
                total: 0,
            },
            kept: host.now(),
            host,
        };
        // Before the first record of this scrub takes the place of what is damaged.
        let bytes = SCRUB_SLOTS * ScrubRecord::SIZE as u64;
        let fails = |page| self.vol.region.is_faulted(page + SCRUB_OFFSET, bytes);
        // A page that has failed is a finding of its own.
        if slots.is_damaged() && !self.vol.geo.pages().iter().any(|page| fails(page.0)) {
            let what = match slots.newest {
                Some(_) => "more of it is damaged than a crash leaves",
                None => {
                    "it is damaged: the scrub starts from the beginning, and counts its findings anew"
                }
            };
            let e = Error::corrupt(
                Damage::ScrubRecordDamaged,
                "the record of earlier scrubs",
                what,
            );
            if let Some(finding) = ScrubFinding::of(&e, None, None) {
                scrub.note(&finding);
                host.show(&scrub.progress, &[finding]);
            }
        }
        let end = scrub.read_all(options.limit);
        // Also after an error: what was found stays known.
        let state = match &end {
            Ok(Order::GoOn) => FINISHED,
            Ok(Order::Cancel) => CANCELLED,
            Ok(Order::Interrupt) | Err(_) => UNDER_WAY,
        };
        scrub.keep(state);
        host.show(&scrub.progress, &[]);
        end.map(|_| scrub.progress.record)
    }
}

/// A scrub that runs.
struct Run<'e> {
    engine: &'e Engine,
    scrubber: Scrubber<'e>,
    progress: Progress,
    /// When the record was stored last.
    kept: Duration,
    host: &'e dyn ScrubHost,
}

impl Run<'_> {
    /// Takes steps until all is read, or until the order to stop, which it returns.
    fn read_all(&mut self, limit: Option<u64>) -> Result<Order> {
        self.keep(UNDER_WAY);
        let mut pace = Pace::new(limit, self.host.now());
        let mut wait = None;
        loop {
            let order = self.host.wait(wait);
            if order != Order::GoOn {
                return Ok(order);
            }
            let Some(stepped) = self.scrubber.step()? else {
                return Ok(Order::GoOn);
            };
            self.progress.run_done += stepped.bytes;
            self.progress.record.done = self.progress.record.done.saturating_add(stepped.bytes);
            for finding in &stepped.found {
                self.note(finding);
            }
            let now = self.host.now();
            if !stepped.found.is_empty() || now.saturating_sub(self.kept) >= KEEP_EACH {
                self.keep(UNDER_WAY);
            }
            self.host.show(&self.progress, &stepped.found);
            wait = pace.read(stepped.bytes, now);
        }
    }

    /// Counts a finding, and logs it.
    fn note(&mut self, finding: &ScrubFinding) {
        let record = &mut self.progress.record;
        let mark = finding.mark(self.engine.now().sec);
        record.found = record.found.saturating_add(1);
        record.findings = record.findings.saturating_add(1);
        if record.first.time_sec == 0 {
            record.first = mark;
        }
        record.last = mark;
        let region = self.engine.vol.region.info().name;
        let path = finding.ino.and_then(|ino| self.engine.path_hint(ino));
        let path = path.map_or(String::new(), |path| format!("{path:?}: "));
        match record.found {
            ..=LOGGED => tracing::error!("{region}: scrub: {path}{}", finding.text),
            n if n == LOGGED + 1 => tracing::error!(
                "{region}: scrub: more than {LOGGED} findings; the others are only counted"
            ),
            _ => {}
        }
    }

    /// Stores the record. A scrub without one goes on: it would only start anew after a crash.
    fn keep(&mut self, state: u32) {
        let Progress { record, total, .. } = &mut self.progress;
        *total = self.engine.bytes_to_scrub().max(record.done);
        self.kept = self.host.now();
        record.state = state;
        record.updated_sec = self.engine.now().sec;
        self.scrubber.at.to_record(record);
        if state == FINISHED {
            record.completed = record.completed.saturating_add(1);
            record.completed_sec = record.updated_sec;
            *total = record.done;
            Position::of(Phase::End).to_record(record);
        }
        if !self.engine.keeps_scrubs() {
            return;
        }
        let stored = self
            .engine
            .enter()
            .and_then(|_gate| store_scrub_record(self.engine.vol.medium(), record));
        if let Err(e) = stored {
            tracing::warn!(error = %e, "could not note how far the scrub is; after a crash it would start anew");
        }
    }
}
