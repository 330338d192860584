//! The state of a mount as text, for people.

use std::fmt::Write;
use std::time::Duration;

use crate::status::{DamageStatus, MountStatus, OperationStatus, ScrubReport, Space};

/// Bytes in the largest unit that leaves a number of at least 1: `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut size = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, next);
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ => format!("{size:.1} {unit}"),
    }
}

/// A time with three digits: `850 ns`, `12.3 us`, `1.50 ms`.
pub fn time(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    let (number, unit) = match nanos {
        ..1e3 => return format!("{nanos:.0} ns"),
        ..1e6 => (nanos / 1e3, "us"),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    match number {
        ..10.0 => format!("{number:.2} {unit}"),
        ..100.0 => format!("{number:.1} {unit}"),
        _ => format!("{number:.0} {unit}"),
    }
}

/// A long time: `2 d 03:04:05`.
pub fn uptime(millis: u64) -> String {
    let seconds = millis / 1000;
    let clock = format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    );
    match seconds / 86_400 {
        0 => clock,
        days => format!("{days} d {clock}"),
    }
}

/// A moment as in RFC 3339, in UTC.
pub fn moment(seconds: i64) -> String {
    // Days since 0000-03-01, by the proleptic Gregorian calendar (Howard Hinnant's algorithm).
    let days = seconds.div_euclid(86_400) + 719_468;
    let of_day = seconds.rem_euclid(86_400);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Text from another program, with control characters escaped, and those that set the direction of
/// text: they show what follows in another order.
fn plain(text: &str) -> String {
    let is_safe = |c: char| {
        let reorders = matches!(
            c,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        );
        !c.is_control() && !reorders
    };
    let escape = |c: char| match is_safe(c) {
        true => c.to_string(),
        false => c.escape_default().to_string(),
    };
    text.chars().map(escape).collect()
}

impl MountStatus {
    /// Returns the state in lines for people. The lines may change between versions; programs
    /// read the JSON.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let mut row = |name: &str, value: &str| {
            let _ = writeln!(text, "  {:<12} {}", format!("{name}:"), plain(value));
        };
        row("server", &self.server_line());
        row("options", &self.options);
        let note = self.transport_note.as_deref();
        let why = note.map_or(String::new(), |why| format!(" ({why})"));
        row("transport", &format!("{}{why}", self.transport));
        let medium = &self.medium;
        row(
            "medium",
            &format!(
                "{}, backend {}, survives: {}",
                medium.kind, medium.backend, medium.persistence
            ),
        );
        row("durability", &medium.durability);
        row("protection", &medium.protection);
        row("recovery", &medium.recovery);
        row("uuid", &self.uuid);
        if !self.label.is_empty() {
            row("label", &self.label);
        }
        match &self.space {
            Some(space) => {
                row("space", &space_line(space));
                row("inodes", &inodes_line(space));
            }
            None => row("space", "unknown: the file system has failed or ends"),
        }
        let memory = &self.memory;
        row(
            "cache",
            &format!(
                "{} inodes, {}; the kernel refers to {}",
                memory.inodes,
                bytes(memory.inode_bytes),
                memory.referenced
            ),
        );
        row(
            "journal",
            &format!(
                "{} lanes, {} hand-overs",
                self.journal.lanes, self.journal.hand_overs
            ),
        );
        if let Some(takeover) = &self.takeover {
            row(
                "takeover",
                &format!(
                    "{} so far, {} requests sent again, {} answered from records{}",
                    takeover.takeovers,
                    takeover.asked_again,
                    takeover.from_records,
                    if takeover.supervised {
                        ""
                    } else {
                        "; NO SUPERVISOR: mount again to have takeover"
                    }
                ),
            );
        }
        let leases = &self.leases;
        row(
            "leases",
            &format!(
                "{} to read, {} to write ({} since an earlier mount)",
                leases.read, leases.write, leases.adopted
            ),
        );
        row("damage", &damage_line(&self.damage));
        row("scrub", &scrub_line(&self.scrub));
        row("log", &self.log_line());
        text.insert_str(0, &format!("{}\n", self.head()));
        text.push_str(&self.operations_text());
        text.push_str(&self.slowest_text());
        text
    }

    fn head(&self) -> String {
        let state = match (self.failed, self.writable) {
            (true, _) => "FAILED: each request gets EIO; unmount it and mount it again",
            (false, true) => "read-write",
            (false, false) => "read-only",
        };
        plain(&format!(
            "{} on {} ({state})",
            self.region, self.mount_point
        ))
    }

    fn server_line(&self) -> String {
        format!(
            "pid {}, version {}, up {} since {}",
            self.pid,
            self.version,
            uptime(self.uptime_ms),
            moment(self.started_sec)
        )
    }

    fn log_line(&self) -> String {
        let slow = match self.logging.slow_us {
            0 => "off".to_owned(),
            micros => time(Duration::from_micros(micros)),
        };
        let lost = match self.logging.lost_lines {
            0 => String::new(),
            lines => format!("; {lines} LINES LOST: nobody reads the log, or not in time"),
        };
        format!(
            "{} to {}, slow operations: {slow}{lost}",
            self.logging.filter, self.logging.to
        )
    }

    /// The table of operations, the most frequent first.
    fn operations_text(&self) -> String {
        if self.operations.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "\n  {:<18} {:>12} {:>9} {:>8} {:>8} {:>8} {:>10} {:>10}\n",
            "OPERATION", "REQUESTS", "ERRORS", "P50", "P99", "MAX", "FENCES", "TO MEDIUM"
        );
        let mut rows: Vec<&OperationStatus> = self.operations.iter().collect();
        rows.sort_by_key(|one| (std::cmp::Reverse(one.count), one.name.clone()));
        for one in rows {
            let at = |percent| one.latency.percentile(percent).map_or("-".to_owned(), time);
            let max = match one.latency.count {
                0 => "-".to_owned(),
                _ => time(Duration::from_nanos(one.latency.max_ns)),
            };
            let _ = writeln!(
                text,
                "  {:<18} {:>12} {:>9} {:>8} {:>8} {:>8} {:>10} {:>10}",
                plain(&one.name),
                one.count,
                one.errors,
                at(50.0),
                at(99.0),
                max,
                one.fences,
                bytes(one.medium_bytes())
            );
        }
        if !self.metrics {
            text.push_str("  Latencies are not recorded (metrics=off).\n");
        }
        text
    }

    fn slowest_text(&self) -> String {
        if self.slowest.is_empty() {
            return String::new();
        }
        let mut text = "\n  Slowest of the last minutes:\n".to_owned();
        for one in &self.slowest {
            let errno = match one.errno {
                0 => String::new(),
                errno => format!(", errno {errno}"),
            };
            let _ = writeln!(
                text,
                "  {:>8}  {} of inode {}, {} ago{errno}",
                time(one.duration()),
                plain(&one.name),
                one.inode,
                time(Duration::from_millis(one.ago_ms)),
            );
        }
        text
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

/// How much space is used: `1.2 GiB of 4.0 GiB used (30.0 %), ...`.
pub fn space_line(space: &Space) -> String {
    format!(
        "{} of {} used ({:.1} %), {} available, blocks of {}",
        bytes(space.used_bytes()),
        bytes(space.bytes()),
        percent(space.used_bytes(), space.bytes()),
        bytes(space.available_bytes()),
        bytes(space.block_size)
    )
}

fn inodes_line(space: &Space) -> String {
    let used = space.inodes.saturating_sub(space.free_inodes);
    format!("{used} of {} used", space.inodes)
}

/// Damage since mkfs or fsck, and what to do about it.
pub fn damage_line(damage: &DamageStatus) -> String {
    let Some(last) = damage.last.filter(|_| damage.errors > 0) else {
        return "none found".to_owned();
    };
    let inode = match last.inode {
        0 => String::new(),
        inode => format!(", inode {inode}"),
    };
    format!(
        "{} ERRORS since mkfs or fsck, the last one at {} (errno {}{inode}); unmount it and run fsck.pramfs",
        damage.errors,
        moment(last.time_sec),
        last.errno
    )
}

/// The scrub that runs, or the last one, and its findings.
pub fn scrub_line(scrub: &ScrubReport) -> String {
    let findings = match scrub.findings {
        0 => "no findings".to_owned(),
        n => format!("{n} FINDINGS, see pramfs scrub"),
    };
    let state = match scrub.running {
        true => format!(
            "running, {} of {}",
            bytes(scrub.done_bytes),
            bytes(scrub.total_bytes)
        ),
        false if scrub.completed == 0 => "never completed".to_owned(),
        false => format!("completed at {}", moment(scrub.completed_sec)),
    };
    format!("{state}; {findings}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;
    use crate::status::{ErrorSeen, SlowOperation};

    #[test]
    fn numbers_have_units_of_their_size() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        let times = [
            (999, "999 ns"),
            (1_500, "1.50 us"),
            (12_300_000, "12.3 ms"),
            (250_000_000_000, "250 s"),
        ];
        for (nanos, shown) in times {
            assert_eq!(time(Duration::from_nanos(nanos)), shown);
        }
        assert_eq!(uptime(3_600_000), "01:00:00");
        assert_eq!(uptime(180_000_000), "2 d 02:00:00");
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        let moments = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ];
        for (seconds, shown) in moments {
            assert_eq!(moment(seconds), shown);
        }
    }

    #[test]
    fn text_shows_damage_failure_and_latencies() {
        let mut latency = Latency::default();
        latency.add(5_000);
        let status = MountStatus {
            region: "/dev/pmem0".into(),
            mount_point: "/mnt/a\n b".into(),
            failed: true,
            damage: DamageStatus {
                errors: 3,
                first: None,
                last: Some(ErrorSeen {
                    time_sec: 0,
                    inode: 77,
                    errno: 5,
                }),
            },
            operations: vec![OperationStatus {
                name: "READ".into(),
                count: 9,
                errors: 1,
                latency,
                ..OperationStatus::default()
            }],
            slowest: vec![SlowOperation {
                name: "FSYNC".into(),
                inode: 78,
                duration_ns: 2_000_000,
                ago_ms: 1500,
                errno: 0,
            }],
            ..MountStatus::default()
        };
        let text = status.text();
        for part in [
            "/dev/pmem0 on /mnt/a\\n b (FAILED",
            "3 ERRORS since mkfs or fsck, the last one at 1970-01-01T00:00:00Z (errno 5, inode 77)",
            "5.00 us",
            "2.00 ms  FSYNC of inode 78, 1.50 s ago",
            "metrics=off",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
