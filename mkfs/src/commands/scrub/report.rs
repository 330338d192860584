//! How far a scrub is and what was found, for people and for programs.

use pramfs::inode::{ScrubMarkStatus, ScrubStatus, Time};
use pramfs_medium::media::scrub::{CANCELLED, FINISHED, NEVER, UNDER_WAY};
use pramfs_medium::size::human;
use serde::Serialize;

use crate::failure::printable;
use crate::tree::Timestamp;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    place: String,
    mounted: bool,
    /// `never`, `running`, `interrupted`, `finished` or `cancelled`.
    state: &'static str,
    /// Position and findings are kept in the file system.
    kept: bool,
    started: Option<Timestamp>,
    /// Bytes a second; `None`: no limit.
    limit: Option<u64>,
    bytes: u64,
    bytes_total: u64,
    percent: u64,
    /// Of this run.
    milliseconds: u64,
    bytes_per_second: u64,
    /// Findings of this scrub.
    findings: u64,
    /// Findings of all scrubs since mkfs or fsck.
    findings_kept: u64,
    first_finding: Option<Mark>,
    last_finding: Option<Mark>,
    completed: u64,
    last_completed: Option<Timestamp>,
    /// Findings of this run as sentences.
    found: Vec<String>,
}

/// A finding that the file system keeps.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct Mark {
    time: Timestamp,
    kind: String,
    inode: u64,
    offset: u64,
}

fn time(sec: i64) -> Option<Timestamp> {
    (sec != 0).then_some(Timestamp(Time { sec, nsec: 0 }))
}

impl Mark {
    /// Returns what the file system keeps; `None` for no finding.
    pub(in crate::commands) fn of(mark: &ScrubMarkStatus) -> Option<Mark> {
        let kind = mark.kind.split(|byte| *byte == 0).next();
        Some(Mark {
            time: time(mark.time_sec)?,
            kind: printable(&String::from_utf8_lossy(kind.unwrap_or_default())),
            inode: mark.ino,
            offset: mark.place,
        })
    }

    pub(in crate::commands) fn text(&self) -> String {
        match self.inode {
            0 => format!("{}: {}", self.time, self.kind),
            inode => format!("{}: {}, inode {inode}", self.time, self.kind),
        }
    }
}

impl Report {
    pub(super) fn new(
        place: String,
        mounted: bool,
        status: &ScrubStatus,
        found: Vec<String>,
    ) -> Report {
        let state = match status.state {
            _ if status.running => "running",
            NEVER => "never",
            UNDER_WAY => "interrupted",
            FINISHED => "finished",
            CANCELLED => "cancelled",
            _ => "unknown",
        };
        let part = u128::from(status.done) * 100 / u128::from(status.total.max(1));
        let percent = match status.state {
            FINISHED if !status.running => 100,
            _ => part.min(99) as u64,
        };
        let speed = u128::from(status.run_done) * 1000 / u128::from(status.elapsed_ms.max(1));
        Report {
            place,
            mounted,
            state,
            kept: status.kept,
            started: time(status.started_sec),
            limit: (status.limit != 0).then_some(status.limit),
            bytes: status.done,
            bytes_total: status.total,
            percent,
            milliseconds: status.elapsed_ms,
            bytes_per_second: u64::try_from(speed).unwrap_or(u64::MAX),
            findings: status.found,
            findings_kept: status.findings,
            first_finding: Mark::of(&status.first),
            last_finding: Mark::of(&status.last),
            completed: status.completed,
            last_completed: time(status.completed_sec),
            found,
        }
    }

    pub(super) fn text(&self) -> String {
        let place = &self.place;
        let speed = match (self.milliseconds, &self.limit) {
            (0, _) => String::new(),
            (_, None) => format!(", {}/s", human(self.bytes_per_second)),
            (_, Some(limit)) => format!(
                ", {}/s of at most {}/s",
                human(self.bytes_per_second),
                human(*limit)
            ),
        };
        let read = format!("{} read{speed}", human(self.bytes));
        let mut text = match self.state {
            "never" => format!("{place}: has never been scrubbed"),
            "running" => format!("{place}: the scrub runs, {}%, {read}", self.percent),
            "interrupted" => format!(
                "{place}: the scrub was interrupted at {}%, {read}; --resume goes on there",
                self.percent
            ),
            state => format!("{place}: the scrub is {state}, {read}"),
        };
        text += &match (self.state, self.findings) {
            ("never", _) => String::new(),
            (_, 0) => "; nothing found".to_owned(),
            (_, n) => format!("; {n} findings"),
        };
        if let (Some(first), Some(last)) = (&self.first_finding, &self.last_finding) {
            text += &format!(
                "\n{place}: {} findings since the last repair; first {}; last {}\n{place}: unmount it and run fsck.pramfs on its region, and restore files that cannot be read",
                self.findings_kept,
                first.text(),
                last.text()
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(status: ScrubStatus) -> Report {
        Report::new("/mnt".into(), true, &status, Vec::new())
    }

    #[test]
    fn report_tells_state_speed_and_findings() {
        let never = report(ScrubStatus::default());
        assert_eq!(never.text(), "/mnt: has never been scrubbed");
        let runs = report(ScrubStatus {
            running: true,
            state: UNDER_WAY,
            done: 50 << 20,
            run_done: 50 << 20,
            total: 200 << 20,
            elapsed_ms: 500,
            limit: 100 << 20,
            ..ScrubStatus::default()
        });
        assert_eq!(
            runs.text(),
            "/mnt: the scrub runs, 25%, 50 MiB read, 100 MiB/s of at most 100 MiB/s; nothing found"
        );
        let mut kind = [0; 24];
        kind[..13].copy_from_slice(b"inode-damaged");
        let mark = ScrubMarkStatus {
            time_sec: 1,
            ino: 7,
            place: 0,
            kind,
        };
        let done = report(ScrubStatus {
            state: FINISHED,
            found: 2,
            findings: 5,
            first: mark.clone(),
            last: mark,
            ..ScrubStatus::default()
        });
        let text = done.text();
        assert!(text.contains("the scrub is finished"), "{text}");
        assert!(text.contains("; 2 findings\n"), "{text}");
        assert!(text.contains("5 findings since the last repair"), "{text}");
        assert!(text.contains("inode-damaged, inode 7"), "{text}");
    }
}
