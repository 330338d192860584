//! States of mounts in the text format of Prometheus.
//!
//! A mount is told by its uuid and its device number;
//! no sample has a path or a name of a file. Times are in seconds, sizes in bytes, as the
//! conventions of Prometheus have it.

use std::fmt::Write;

use pramfs_control::{MountStatus, OperationStatus};

/// A metric without further labels: name, type, help, value.
type Gauge = (
    &'static str,
    &'static str,
    &'static str,
    fn(&MountStatus) -> Option<f64>,
);

const MOUNT: &[Gauge] = &[
    (
        "pramfs_uptime_seconds",
        "gauge",
        "Time since the start of the server.",
        |s| Some(s.uptime_ms as f64 / 1e3),
    ),
    (
        "pramfs_start_time_seconds",
        "gauge",
        "Start of the server since the epoch.",
        |s| Some(s.started_sec as f64),
    ),
    (
        "pramfs_writable",
        "gauge",
        "1 if the file system can be changed.",
        |s| Some(flag(s.writable)),
    ),
    (
        "pramfs_failed",
        "gauge",
        "1 if each request gets EIO until the next mount.",
        |s| Some(flag(s.failed)),
    ),
    (
        "pramfs_size_bytes",
        "gauge",
        "Size of the file system.",
        |s| Some(s.space?.bytes() as f64),
    ),
    ("pramfs_used_bytes", "gauge", "Space in use.", |s| {
        Some(s.space?.used_bytes() as f64)
    }),
    (
        "pramfs_available_bytes",
        "gauge",
        "Space that files can have.",
        |s| Some(s.space?.available_bytes() as f64),
    ),
    ("pramfs_inodes", "gauge", "Inodes in all.", |s| {
        Some(s.space?.inodes as f64)
    }),
    ("pramfs_inodes_free", "gauge", "Free inodes.", |s| {
        Some(s.space?.free_inodes as f64)
    }),
    (
        "pramfs_cached_inodes",
        "gauge",
        "Inodes in the cache of the server.",
        |s| Some(s.memory.inodes as f64),
    ),
    (
        "pramfs_cached_inode_bytes",
        "gauge",
        "Memory of these inodes.",
        |s| Some(s.memory.inode_bytes as f64),
    ),
    (
        "pramfs_referenced_inodes",
        "gauge",
        "Inodes that the kernel refers to.",
        |s| Some(s.memory.referenced as f64),
    ),
    (
        "pramfs_journal_lanes",
        "gauge",
        "Lanes of the journal.",
        |s| Some(f64::from(s.journal.lanes)),
    ),
    (
        "pramfs_journal_hand_overs_total",
        "counter",
        "Objects that moved from one lane to another.",
        |s| Some(s.journal.hand_overs as f64),
    ),
    (
        "pramfs_takeovers_total",
        "counter",
        "Servers that another one has taken over from.",
        |s| Some(s.takeover?.takeovers as f64),
    ),
    (
        "pramfs_supervised",
        "gauge",
        "1 if a supervisor watches the server (takeover=on).",
        |s| Some(flag(s.takeover?.supervised)),
    ),
    (
        "pramfs_damage_errors",
        "gauge",
        "Errors on the medium since mkfs or fsck.",
        |s| Some(s.damage.errors as f64),
    ),
    (
        "pramfs_damage_last_timestamp_seconds",
        "gauge",
        "Time of the latest of these errors.",
        |s| Some(s.damage.last?.time_sec as f64),
    ),
    (
        "pramfs_scrub_running",
        "gauge",
        "1 while a scrub runs.",
        |s| Some(flag(s.scrub.running)),
    ),
    (
        "pramfs_scrub_findings",
        "gauge",
        "Findings of scrubs since mkfs or fsck.",
        |s| Some(s.scrub.findings as f64),
    ),
    (
        "pramfs_scrubs_completed",
        "gauge",
        "Scrubs that have read everything.",
        |s| Some(s.scrub.completed as f64),
    ),
    (
        "pramfs_scrub_completed_timestamp_seconds",
        "gauge",
        "End of the last of these.",
        |s| (s.scrub.completed != 0).then_some(s.scrub.completed_sec as f64),
    ),
];

/// Counters of each operation.
type Counter = (&'static str, &'static str, fn(&OperationStatus) -> u64);

const OPERATION: &[Counter] = &[
    ("pramfs_requests_total", "Requests of the kernel.", |o| {
        o.count
    }),
    (
        "pramfs_request_errors_total",
        "Requests that were answered with an errno, ENOENT too.",
        |o| o.errors,
    ),
    (
        "pramfs_request_io_errors_total",
        "Requests that were answered EIO.",
        |o| o.io_errors,
    ),
    (
        "pramfs_request_fences_total",
        "Fences for these requests.",
        |o| o.fences,
    ),
    (
        "pramfs_request_medium_bytes_total",
        "Bytes written to the medium for these requests.",
        |o| o.medium_bytes(),
    ),
];

/// The bounds of the histograms, nanoseconds: those of some buckets of the server, so that no
/// count is split.
const BOUNDS: [u64; 14] = {
    let mut bounds = [0; 14];
    let mut nth = 0;
    while nth < 14 {
        // 1 us, 4 us, ... 68 s, in powers of two of nanoseconds.
        bounds[nth] = 1 << (10 + 2 * nth);
        nth += 1;
    }
    bounds
};

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Escapes the value of a label.
fn label(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

/// Labels that tell a mount from all others.
fn labels(status: &MountStatus) -> String {
    let (major, minor) = status.device;
    format!(
        "uuid=\"{}\",device=\"{major}:{minor}\"",
        label(&status.uuid)
    )
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Returns the metrics of mounts.
pub(super) fn text(states: &[MountStatus]) -> String {
    let mut text = String::new();
    head(
        &mut text,
        "pramfs_mounts",
        "gauge",
        "Mounts of root that answer.",
    );
    let _ = writeln!(text, "pramfs_mounts {}", states.len());
    head(
        &mut text,
        "pramfs_info",
        "gauge",
        "What is mounted, and how: always 1.",
    );
    for status in states {
        let _ = writeln!(
            text,
            "pramfs_info{{{},version=\"{}\",label=\"{}\",medium=\"{}\",backend=\"{}\",persistence=\"{}\",transport=\"{}\"}} 1",
            labels(status),
            label(&status.version),
            label(&status.label),
            label(&status.medium.kind),
            label(&status.medium.backend),
            label(&status.medium.persistence),
            label(&status.transport),
        );
    }
    for (name, kind, help, value) in MOUNT {
        let samples: Vec<_> = states.iter().filter_map(|s| Some((s, value(s)?))).collect();
        if samples.is_empty() {
            continue;
        }
        head(&mut text, name, kind, help);
        for (status, value) in samples {
            let _ = writeln!(text, "{name}{{{}}} {value}", labels(status));
        }
    }
    if !states.is_empty() {
        leases(&mut text, states);
    }
    if states.iter().any(|status| !status.operations.is_empty()) {
        operations(&mut text, states);
    }
    text
}

fn leases(text: &mut String, states: &[MountStatus]) {
    head(
        text,
        "pramfs_leases",
        "gauge",
        "Leases of processes that access files directly.",
    );
    for status in states {
        let leases = &status.leases;
        for (mode, count) in [("read", leases.read), ("write", leases.write)] {
            let _ = writeln!(
                text,
                "pramfs_leases{{{},mode=\"{mode}\"}} {count}",
                labels(status)
            );
        }
    }
}

fn operations(text: &mut String, states: &[MountStatus]) {
    let all = || {
        let each = |status: &'_ MountStatus| labels(status);
        states.iter().flat_map(move |status| {
            let of = each(status);
            status.operations.iter().map(move |one| {
                (
                    format!("{of},operation=\"{}\"", label(&one.name.to_lowercase())),
                    one,
                )
            })
        })
    };
    for (name, help, value) in OPERATION {
        head(text, name, "counter", help);
        for (labels, one) in all() {
            let _ = writeln!(text, "{name}{{{labels}}} {}", value(one));
        }
    }
    if all().all(|(_, one)| one.latency.count == 0) {
        return;
    }
    let name = "pramfs_request_duration_seconds";
    head(
        text,
        name,
        "histogram",
        "Time that requests took in the server.",
    );
    for (labels, one) in all().filter(|(_, one)| one.latency.count > 0) {
        let latency = &one.latency;
        for bound in BOUNDS {
            let below = latency
                .buckets
                .iter()
                .filter(|(end, _)| end.is_some_and(|end| end <= bound));
            let below: u64 = below.map(|(_, count)| count).sum();
            let _ = writeln!(
                text,
                "{name}_bucket{{{labels},le=\"{}\"}} {below}",
                bound as f64 / 1e9
            );
        }
        let _ = writeln!(
            text,
            "{name}_bucket{{{labels},le=\"+Inf\"}} {}",
            latency.count
        );
        let _ = writeln!(
            text,
            "{name}_sum{{{labels}}} {}",
            latency.sum_ns as f64 / 1e9
        );
        let _ = writeln!(text, "{name}_count{{{labels}}} {}", latency.count);
    }
}

#[cfg(test)]
mod tests;
