//! The state of a live mount, as its server reports it: `pramfs status`.
//!
//! The server makes the document, as JSON, and sends it in pieces. A field that one side does
//! not know is ignored, or has its default, so that fields can be added. No field has a name or
//! path of a file in the mount. Units are in the names of the fields: `_ns` and `_ms` are
//! nanoseconds and milliseconds, `_sec` are seconds since the epoch, `bytes` are bytes.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::latency::Latency;

/// Longest document, in bytes. A client reads no further.
pub const MAX_STATUS: usize = 1 << 20;

/// Reports the state of a mount. The calls come from one thread.
pub trait Report: fmt::Debug + Send + Sync {
    /// Returns the state.
    fn status(&self) -> MountStatus;

    /// Sets what is logged from now on. Returns what is in force then.
    ///
    /// # Errors
    /// Why it cannot be set.
    fn set_logging(&self, change: &SetLogging) -> Result<Logging, String>;
}

/// What is to be logged. What is missing stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetLogging {
    /// The lowest level that is logged.
    pub level: Option<LogLevel>,
    /// Log operations that take at least so long, microseconds; 0 logs none.
    pub slow_us: Option<u64>,
}

/// A level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Damage, and failures of the medium.
    Error,
    /// Also events that need an administrator.
    Warn,
    /// Also mounts, recoveries and unmounts. The default.
    Info,
    /// Also refused requests.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels.
    pub const ALL: [LogLevel; 5] = [
        LogLevel::Error,
        LogLevel::Warn,
        LogLevel::Info,
        LogLevel::Debug,
        LogLevel::Trace,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }

    /// Returns the level of a name.
    pub fn of_name(name: &str) -> Option<LogLevel> {
        LogLevel::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// What is logged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Logging {
    /// The filter in force, in the syntax of `PRAMFS_LOG`.
    pub filter: String,
    /// Operations that take so long are logged, microseconds; 0: none.
    pub slow_us: u64,
    /// Where the log goes: `stderr`, `journal` or `syslog`.
    pub to: String,
    /// Lines of this server that whoever reads the socket of the log did not take in time.
    pub lost_lines: u64,
}

/// The state of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountStatus {
    /// Version of the server.
    pub version: String,
    /// Process that serves.
    pub pid: u32,
    /// Start of the server, seconds since the epoch.
    pub started_sec: i64,
    /// Time since then, milliseconds.
    pub uptime_ms: u64,
    /// The region.
    pub region: String,
    /// Where it is mounted; a second mount is not listed.
    pub mount_point: String,
    /// Device number of the file system: major, minor.
    pub device: (u32, u32),
    /// Its uuid.
    pub uuid: String,
    /// Its label.
    pub label: String,
    /// It can be changed. False also after damage (`errors=remount-ro`).
    pub writable: bool,
    /// It has failed: each request gets EIO until the region is mounted again.
    pub failed: bool,
    /// The options in force, as for `-o`.
    pub options: String,
    /// How requests come from the kernel: `fuser`, `dev` or `uring`.
    pub transport: String,
    /// Why another transport serves than the one that was asked for.
    pub transport_note: Option<String>,
    /// What the region lies on.
    pub medium: MediumStatus,
    /// Blocks and inodes. Missing if they cannot be counted.
    pub space: Option<Space>,
    /// Memory of caches.
    pub memory: MemoryStatus,
    /// The journal.
    pub journal: JournalStatus,
    /// Servers that have died, with `takeover=on`.
    pub takeover: Option<TakeoverStatus>,
    /// Direct access by other processes.
    pub leases: LeaseCounts,
    /// Damage found since mkfs or fsck.
    pub damage: DamageStatus,
    /// Reading everything against its checksums.
    pub scrub: ScrubReport,
    /// Latencies are recorded (`metrics=on`).
    pub metrics: bool,
    /// What is logged.
    pub logging: Logging,
    /// Requests of the kernel since the start of the server, those that came.
    pub operations: Vec<OperationStatus>,
    /// The slowest operations of the last minutes, the slowest first.
    pub slowest: Vec<SlowOperation>,
}

/// What a region lies on, and how it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MediumStatus {
    /// The kind of medium: `tmpfs`, `fsdax`, ...
    pub kind: String,
    /// The code that stores to it.
    pub backend: String,
    /// What its contents survive: `power`, `reboot`, `machine` or `process`.
    pub persistence: String,
    /// What a completed operation survives, in words.
    pub durability: String,
    /// What keeps stray stores off, in words.
    pub protection: String,
    /// What the recovery at the mount did, in words.
    pub recovery: String,
}

/// Space in a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Space {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks, with the reserve.
    pub free: u64,
    /// Free blocks that files can have.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

impl Space {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size)
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.blocks
            .saturating_sub(self.free)
            .saturating_mul(self.block_size)
    }

    /// Bytes that files can have.
    pub fn available_bytes(&self) -> u64 {
        self.available.saturating_mul(self.block_size)
    }
}

/// Memory of caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Inodes in the cache.
    pub inodes: u64,
    /// Bytes of these.
    pub inode_bytes: u64,
    /// Inodes that the kernel refers to.
    pub referenced: u64,
}

/// The journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalStatus {
    /// Lanes.
    pub lanes: u32,
    /// Objects that moved from one lane to another since the mount, at the price of two fences.
    pub hand_overs: u64,
}

/// Servers of a mount that have died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TakeoverStatus {
    /// A supervisor watches this server.
    pub supervised: bool,
    /// Servers that have died, or were replaced, since the mount.
    pub takeovers: u64,
    /// Requests on names that the kernel has sent again.
    pub asked_again: u64,
    /// Of these, those that were answered from the record of a dead server.
    pub from_records: u64,
}

/// Processes that access files directly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseCounts {
    /// Leases to read.
    pub read: u64,
    /// Leases to write.
    pub write: u64,
    /// Of all, those that an earlier server has granted.
    pub adopted: u64,
}

/// Damage on the medium.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DamageStatus {
    /// Errors since mkfs or fsck.
    pub errors: u64,
    /// The first.
    pub first: Option<ErrorSeen>,
    /// The latest.
    pub last: Option<ErrorSeen>,
}

/// An error that the superblock has recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorSeen {
    /// When, seconds since the epoch.
    pub time_sec: i64,
    /// Inode concerned, 0: none.
    pub inode: u64,
    /// The errno.
    pub errno: u32,
}

/// The scrub of a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubReport {
    /// One runs.
    pub running: bool,
    /// Bytes that it has read.
    pub done_bytes: u64,
    /// Bytes that it will have read at its end, an estimate.
    pub total_bytes: u64,
    /// Findings since mkfs or fsck.
    pub findings: u64,
    /// Scrubs that have read all.
    pub completed: u64,
    /// The end of the last of these, seconds since the epoch; 0: none.
    pub completed_sec: i64,
}

/// The requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationStatus {
    /// The name of the operation in the FUSE protocol, without `FUSE_`.
    pub name: String,
    /// Requests.
    pub count: u64,
    /// Those that were answered with an errno, ENOENT too.
    pub errors: u64,
    /// Those of these that were answered EIO.
    pub io_errors: u64,
    /// Fences that the serving threads executed for them.
    pub fences: u64,
    /// Lines of 64 bytes that they wrote back.
    pub lines: u64,
    /// Bytes that they wrote past the caches.
    pub streamed_bytes: u64,
    /// How long they took in the server: empty with `metrics=off`.
    pub latency: Latency,
}

impl OperationStatus {
    /// Bytes that went to the medium.
    pub fn medium_bytes(&self) -> u64 {
        self.streamed_bytes
            .saturating_add(self.lines.saturating_mul(64))
    }
}

/// A slow operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowOperation {
    /// Its name, as in [`OperationStatus`].
    pub name: String,
    /// The inode that it was about; of an operation on a name, the directory.
    pub inode: u64,
    /// How long it took, nanoseconds.
    pub duration_ns: u64,
    /// How long ago it ended, milliseconds.
    pub ago_ms: u64,
    /// The errno that it was answered with, 0: none.
    pub errno: u32,
}

impl SlowOperation {
    /// How long it took.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_of_another_version_has_defaults() {
        let text =
            r#"{"version":"9","pid":7,"later":{"x":[1]},"space":{"blocks":2,"block_size":4096}}"#;
        let status: MountStatus = serde_json::from_str(text).unwrap();
        assert_eq!((status.pid, status.space.unwrap().bytes()), (7, 8192));
        assert!(status.operations.is_empty() && !status.metrics);
    }

    #[test]
    fn level_is_found_by_its_name() {
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::of_name(level.name()), Some(level));
        }
        assert_eq!(LogLevel::of_name("loud"), None);
    }
}
