//! Reports the state of a mount: to clients of the control socket, and at SIGUSR1 to the log.
//!
//! Invariant: nothing here waits for a request that is being served.

use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pramfs::inode::{Fs, FsState, RecordedError};
use pramfs::pmem::Persistence;
use pramfs_control::{
    DamageStatus, ErrorSeen, JournalStatus, LeaseCounts, Logging, MediumStatus, MemoryStatus,
    MountStatus, Report, ScrubReport, SetLogging, Space, TakeoverStatus,
};
use uuid::Uuid;

use crate::adapter::Counts;
use crate::kernel::OwnMount;
use crate::logging;
use crate::options::MountSettings;
use crate::summary;
use crate::transport::Session;

/// Reports the state of a mount.
#[derive(Debug)]
pub struct Reporter {
    fs: Weak<Fs>,
    counts: Arc<Counts>,
    /// What stays the same.
    fixed: MountStatus,
    /// The transport, and why it is another one than asked for.
    transport: OnceLock<(&'static str, Option<String>)>,
}

impl Reporter {
    /// Makes the reporter of a mount that begins.
    pub fn new(
        fs: &Arc<Fs>,
        counts: &Arc<Counts>,
        own_mount: &OwnMount,
        settings: &MountSettings,
    ) -> Arc<Reporter> {
        let info = fs.region().info();
        counts.name_region(info.name.clone());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let kind = info.kind.map_or("memory", |kind| kind.name());
        let medium = MediumStatus {
            kind: kind.to_owned(),
            backend: info.backend.to_owned(),
            persistence: persistence(info.persistence).to_owned(),
            durability: summary::durability(&info).to_owned(),
            protection: summary::protection(&info),
            recovery: summary::recovery(fs.recovery()),
        };
        let fixed = MountStatus {
            version: pramfs::VERSION.to_owned(),
            pid: std::process::id(),
            started_sec: now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0)),
            mount_point: shown(&own_mount.path),
            device: own_mount.device.unwrap_or_default(),
            uuid: Uuid::from_bytes(fs.superblock().fixed.uuid).to_string(),
            region: info.name,
            options: settings.in_force(),
            medium,
            ..MountStatus::default()
        };
        Arc::new(Reporter {
            fs: Arc::downgrade(fs),
            counts: Arc::clone(counts),
            fixed,
            transport: OnceLock::new(),
        })
    }

    /// Notes how requests come from the kernel.
    pub fn note_transport(&self, session: &Session) {
        let _again = self
            .transport
            .set((session.name(), session.instead.clone()));
    }

    /// Writes the state to the log, a line for each row.
    pub fn log(&self) {
        let status = self.status();
        for line in status.text().lines().filter(|line| !line.trim().is_empty()) {
            tracing::info!("{line}");
        }
    }

    fn logging(&self) -> Logging {
        let (filter, to, lost_lines) = logging::in_force();
        let slow = self.counts.slow().map_or(0, |slow| slow.as_micros());
        Logging {
            filter,
            slow_us: u64::try_from(slow).unwrap_or(u64::MAX),
            to: to.to_owned(),
            lost_lines,
        }
    }
}

impl Report for Reporter {
    fn status(&self) -> MountStatus {
        let (transport, transport_note) = self.transport.get().cloned().unwrap_or_default();
        let age = self.counts.age();
        let mut status = MountStatus {
            uptime_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            transport: transport.to_owned(),
            transport_note,
            takeover: self.counts.memory().map(|memory| TakeoverStatus {
                supervised: memory.is_supervised(),
                takeovers: memory.deaths(),
                asked_again: memory.asked_again(),
                from_records: memory.answers_from_record(),
            }),
            metrics: self.counts.records_times(),
            logging: self.logging(),
            operations: self.counts.operations(),
            slowest: self.counts.slowest(),
            ..self.fixed.clone()
        };
        // It ends.
        let Some(fs) = self.fs.upgrade() else {
            return status;
        };
        status.label = fs.label();
        add_state(&mut status, &fs.state());
        let scrub = fs.scrub_status();
        status.scrub = ScrubReport {
            running: scrub.running,
            done_bytes: scrub.done,
            total_bytes: scrub.total,
            findings: scrub.findings,
            completed: scrub.completed,
            completed_sec: scrub.completed_sec,
        };
        status
    }

    fn set_logging(&self, change: &SetLogging) -> Result<Logging, String> {
        if let Some(level) = change.level {
            logging::set_level(level)?;
            tracing::info!(
                "{}: the log has level {} now",
                self.fixed.region,
                level.name()
            );
        }
        if let Some(slow) = change.slow_us {
            self.counts
                .set_slow((slow != 0).then(|| Duration::from_micros(slow)));
        }
        Ok(self.logging())
    }
}

fn add_state(status: &mut MountStatus, state: &FsState) {
    status.writable = state.is_writable;
    status.failed = state.has_failed;
    status.space = state.space.map(|space| Space {
        block_size: space.block_size.into(),
        blocks: space.blocks,
        free: space.free,
        available: space.available,
        inodes: space.inodes,
        free_inodes: space.free_inodes,
    });
    status.memory = MemoryStatus {
        inodes: state.memory.inodes as u64,
        inode_bytes: state.memory.inode_bytes,
        referenced: state.memory.referenced,
    };
    status.journal = JournalStatus {
        lanes: state.lanes,
        hand_overs: state.hand_overs,
    };
    let (read, write) = state.leases;
    status.leases = LeaseCounts {
        read,
        write,
        adopted: state.adopted_leases,
    };
    status.damage = DamageStatus {
        errors: state.errors,
        first: state.first_error.map(seen),
        last: state.last_error.map(seen),
    };
}

fn seen(error: RecordedError) -> ErrorSeen {
    ErrorSeen {
        time_sec: error.time_sec,
        inode: error.ino.map_or(0, |ino| ino.0),
        errno: error.errno,
    }
}

fn persistence(persistence: Persistence) -> &'static str {
    match persistence {
        Persistence::Power => "power",
        Persistence::Reboot => "reboot",
        Persistence::Machine => "machine",
        Persistence::Process => "process",
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
