//! Reports the result, for people and as JSON.

use pramfs::pmem::{Durability, Granularity, Persistence, RegionInfo, SourceKind};
use pramfs_medium::media::SuperblockInfo;
use serde::Serialize;

use crate::failure::printable;
use pramfs_contents::Contents;
use pramfs_medium::size::human;

/// The result of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Path, as given on the command line.
    pub region: String,
    /// Whether this was a dry run.
    pub dry_run: bool,
    /// Whether the file is new.
    pub created: bool,
    /// Contents that were overwritten.
    pub overwritten: Vec<Contents>,
    /// uuid.
    pub uuid: String,
    /// Label; empty for none.
    pub label: String,
    /// Version of the format.
    pub version: u32,
    /// Bytes of the file system.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks reserved for unlink and truncate.
    pub reserved_blocks: u64,
    /// Maximum number of inodes.
    pub inodes: u64,
    /// Journal lanes.
    pub lanes: u32,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Offset of the second superblock, bytes.
    pub superblock_copy: u64,
    /// Features in use.
    pub features: Vec<String>,
    /// The medium of the region.
    pub medium: Option<MediumSummary>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// The medium of a region.
#[derive(Debug, Serialize)]
pub struct MediumSummary {
    /// Kind of medium.
    pub kind: &'static str,
    /// Backend in use.
    pub backend: &'static str,
    /// Unit of durability.
    pub granularity: &'static str,
    /// Which failures the contents survive.
    pub survives: &'static str,
}

impl Report {
    /// Describes a new file system on `medium` (`None` for a dry run).
    pub fn new(region: String, made: &SuperblockInfo, medium: Option<&RegionInfo>) -> Report {
        let f = &made.fixed;
        Report {
            region,
            dry_run: medium.is_none(),
            created: false,
            overwritten: Vec::new(),
            uuid: made.uuid().to_string(),
            label: made.label(),
            version: f.version,
            bytes: f.region_len,
            block_size: made.block_size(),
            blocks: f.blocks,
            reserved_blocks: f.reserve_blocks,
            inodes: f.inodes_max,
            lanes: f.lanes,
            journal_bytes: f.journal_len,
            superblock_copy: f.copy_offset,
            features: made.features(),
            medium: medium.map(MediumSummary::new),
            warnings: medium.map(warnings).unwrap_or_default(),
        }
    }

    /// Formats a few lines, one subject each.
    pub fn text(&self) -> String {
        let verb = match (self.dry_run, self.created) {
            (true, _) => "would be made; nothing was written",
            (false, true) => "made in a new file",
            (false, false) => "made",
        };
        let mut s = format!(
            "{}: a pramfs file system of {} {verb}\n",
            self.region,
            human(self.bytes)
        );
        let mut row = |name: &str, value: String| s += &format!("  {name:<16} {value}\n");
        row("uuid", self.uuid.clone());
        if !self.label.is_empty() {
            row("label", printable(&self.label));
        }
        row(
            "blocks",
            format!(
                "{} of {} bytes, {} in reserve",
                self.blocks, self.block_size, self.reserved_blocks
            ),
        );
        row("inodes", format!("at most {}", self.inodes));
        row(
            "journal",
            format!("{} lanes, {}", self.lanes, human(self.journal_bytes)),
        );
        row(
            "superblock copy",
            format!("at byte {}", self.superblock_copy),
        );
        if !self.features.is_empty() {
            row("features", self.features.join(", "));
        }
        if let Some(m) = &self.medium {
            row(
                "medium",
                format!(
                    "{}, {} granularity, backend {}, survives {}",
                    m.kind, m.granularity, m.backend, m.survives
                ),
            );
        }
        s.truncate(s.trim_end().len());
        s
    }
}

impl MediumSummary {
    /// Converts the library's description.
    pub fn new(info: &RegionInfo) -> MediumSummary {
        MediumSummary {
            kind: info.kind.map_or("memory", SourceKind::name),
            backend: info.backend,
            granularity: granularity(info.granularity),
            survives: survives(info.persistence),
        }
    }
}

/// Names a granularity in one word.
pub fn granularity(g: Granularity) -> &'static str {
    match g {
        Granularity::Byte => "byte",
        Granularity::CacheLine => "cache-line",
        Granularity::Page => "page",
    }
}

/// Names the failures that contents survive.
pub fn survives(p: Persistence) -> &'static str {
    match p {
        Persistence::Process => "only while a process uses it",
        Persistence::Machine => "the death of processes, but not a reboot",
        Persistence::Reboot => "a reboot, if the firmware leaves it alone, but not a loss of power",
        Persistence::Power => "a power failure",
    }
}

fn warnings(info: &RegionInfo) -> Vec<String> {
    let kind = info.kind.map_or("memory", SourceKind::name);
    let mut all: Vec<String> = info.lock_notice.iter().cloned().collect();
    match info.persistence {
        Persistence::Power => {}
        Persistence::Reboot => all.push(format!(
            "{kind}: the file system survives a reset if the firmware leaves it alone, and no loss of power"
        )),
        Persistence::Machine if info.kind == Some(SourceKind::File) => all.push(
            "the file lies on volatile memory: the file system survives the death of every process, but neither a reboot nor a power failure".to_owned()
        ),
        Persistence::Machine => all.push(format!(
            "{kind} is volatile memory: the file system survives the death of every process, but neither a reboot nor a power failure"
        )),
        Persistence::Process => {
            all.push(format!("{kind} is volatile memory: the file system disappears with the last process that uses it"));
        }
    }
    if info.granularity == Granularity::Page && info.durability == Durability::Power {
        all.push(format!(
            "this {kind} is written back page by page: every operation waits for an msync; see `pramfs doctor` for faster media and `mount.pramfs -o durability=process`"
        ));
    }
    all
}
