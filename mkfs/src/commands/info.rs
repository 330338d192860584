//! `pramfs info`: prints the superblock, for people and scripts.

use std::path::PathBuf;

use clap::Args;
use pramfs::inode::Time;
use pramfs::pmem::RegionOptions;
use pramfs_medium::media::bad_blocks::read_list_of;
use pramfs_medium::media::default_options::DefaultOptions;
use pramfs_medium::media::scrub::{ScrubSlots, status_of};
use pramfs_medium::media::superblock::ErrorMark;
use pramfs_medium::media::{Medium, SuperblockInfo, probe_superblock};
use pramfs_medium::pmem::RegionView;
use serde::Serialize;

use super::Subcommand;
use super::export::export;
use super::scrub::FindingMark;
use crate::failure::{printable, shown};
use crate::open::{self, Intent};
use crate::tree::Timestamp;
use crate::{Failure, output};
use pramfs_medium::pmem::ScrubStatus;
use pramfs_medium::size::human;

#[derive(Debug, Args)]
pub(super) struct Info {
    /// File or device that holds the file system
    region: PathBuf,
    /// Read even if the region is in use; fields that change during the read may be
    /// old or new
    #[arg(long)]
    in_use: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Print the properties that udev reads (ID_FS_TYPE, ID_FS_UUID, ...), of a region in use
    /// too; without a file system, nothing, with exit status 2
    #[arg(long, conflicts_with_all = ["json", "in_use"])]
    export: bool,
}

/// The first or the latest error.
#[derive(Debug, Serialize)]
struct Mark {
    time: Timestamp,
    errno: u32,
    inode: u64,
    count: u32,
}

#[derive(Debug, Serialize)]
struct Report {
    region: String,
    version: u32,
    uuid: String,
    label: String,
    clean: bool,
    read_from_copy: bool,
    features: Vec<String>,
    region_bytes: u64,
    bytes: u64,
    can_grow: bool,
    block_size: u32,
    blocks: u64,
    reserved_blocks: u64,
    /// What mounts do that say nothing else.
    default_options: Vec<&'static str>,
    /// Bits of default options that this version does not know.
    unknown_default_options: u64,
    blocks_per_group: u32,
    inodes: u64,
    inodes_per_group: u32,
    superblock_copy: u64,
    copy_damaged: bool,
    journal_offset: u64,
    journal_bytes: u64,
    lanes: u32,
    slot_bytes: u32,
    checkpoint: Option<u64>,
    created: Timestamp,
    created_by: String,
    mounts: u64,
    last_mount: Option<Timestamp>,
    first_error: Option<Mark>,
    last_error: Option<Mark>,
    /// Scrubs that read everything since mkfs or fsck.
    scrubs: u64,
    last_scrub: Option<Timestamp>,
    /// Findings of scrubs since mkfs or fsck.
    scrub_findings: u64,
    first_finding: Option<FindingMark>,
    last_finding: Option<FindingMark>,
    /// Blocks in the list of bad blocks; none if the list is damaged.
    bad_blocks: Option<u64>,
    /// Bytes that the kernel names as bad; none if that is not known.
    kernel_bad_bytes: Option<u64>,
}

impl Subcommand for Info {
    const NAME: &'static str = "info";
    const ABOUT: &'static str = "Show the superblock";

    fn run(&self) -> Result<(), Failure> {
        if self.export {
            return export(&self.region);
        }
        let region = if self.in_use {
            RegionOptions::new()
                .read_only(true)
                .lock(false)
                .open(&self.region)?
        } else {
            open::region(&self.region, Intent::Read)?
        };
        let name = shown(&self.region);
        let info = probe_superblock(&region).map_err(|e| open::not_ours(&self.region, e))?;
        let geo = info.geometry();
        let scrubs = ScrubSlots::read(&region, &geo).newest;
        let scrubs = scrubs.map_or_else(ScrubStatus::default, |record| status_of(&record));
        let medium = Medium {
            region: &region,
            geo: &geo,
        };
        let list = read_list_of(medium, info.fixed.badblock_root);
        let listed = list.map(|list| {
            let runs = list.iter().flat_map(|block| &block.extents);
            runs.map(|run| run.len).sum()
        });
        let kernel = RegionView::from(&region).kernel_bad();
        let mut report = Report::new(name, region.len(), &info, &scrubs);
        report.bad_blocks = listed.ok();
        report.kernel_bad_bytes = kernel
            .ok()
            .filter(|k| k.notice.is_none())
            .map(|k| k.bytes());
        if self.json {
            output::json(&report)
        } else {
            output::line(&report.text())
        }
    }
}

impl Report {
    fn new(
        region: String,
        region_bytes: u64,
        info: &SuperblockInfo,
        scrubs: &ScrubStatus,
    ) -> Report {
        let (f, d) = (&info.fixed, &info.dynamic);
        let time = |sec, nsec| Timestamp(Time { sec, nsec });
        let mark = |m: &ErrorMark| {
            (m.time_sec != 0).then(|| Mark {
                time: time(m.time_sec, 0),
                errno: m.errno,
                inode: m.ino,
                count: m.count,
            })
        };
        let defaults = DefaultOptions::from_bits(f.default_options);
        Report {
            region,
            version: f.version,
            uuid: info.uuid().to_string(),
            label: info.label(),
            clean: info.is_clean(),
            read_from_copy: info.from_copy,
            features: info.features(),
            region_bytes,
            bytes: f.region_len,
            can_grow: region_bytes >= f.region_len.saturating_add(u64::from(info.block_size())),
            block_size: info.block_size(),
            blocks: f.blocks,
            reserved_blocks: f.reserve_blocks,
            default_options: defaults.names().map(|(name, _)| name).collect(),
            unknown_default_options: defaults.unknown(),
            blocks_per_group: f.blocks_per_group,
            inodes: f.inodes_max,
            inodes_per_group: f.inodes_per_group,
            superblock_copy: f.copy_offset,
            copy_damaged: info.copy_damaged,
            journal_offset: f.journal_offset,
            journal_bytes: f.journal_len,
            lanes: f.lanes,
            slot_bytes: f.slot_size,
            checkpoint: info.checkpoint(),
            created: time(f.created_sec, f.created_nsec),
            created_by: printable(&info.writer()),
            mounts: d.mounts,
            last_mount: (d.last_mount_sec != 0).then(|| time(d.last_mount_sec, 0)),
            first_error: mark(&d.first_error),
            last_error: mark(&d.last_error),
            scrubs: scrubs.completed,
            last_scrub: (scrubs.completed_sec != 0).then(|| time(scrubs.completed_sec, 0)),
            scrub_findings: scrubs.findings,
            first_finding: FindingMark::of(&scrubs.first),
            last_finding: FindingMark::of(&scrubs.last),
            bad_blocks: None,
            kernel_bad_bytes: None,
        }
    }

    fn defaults(&self) -> String {
        let mut all: Vec<String> = self
            .default_options
            .iter()
            .map(|o| (*o).to_owned())
            .collect();
        if self.unknown_default_options != 0 {
            all.push(format!("unknown bits {:#x}", self.unknown_default_options));
        }
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    }

    fn bad(&self) -> String {
        let listed = match self.bad_blocks {
            Some(0) => "none".to_owned(),
            Some(n) => format!("{n} out of use"),
            None => "the list is damaged: run fsck.pramfs".to_owned(),
        };
        match self.kernel_bad_bytes {
            Some(0) => listed,
            Some(n) => format!("{listed}; the kernel names {n} bytes as bad"),
            None => format!("{listed}; the kernel's list could not be read"),
        }
    }

    fn text(&self) -> String {
        let finding = |m: &Option<FindingMark>| {
            (m.as_ref()).map_or_else(|| "none".to_owned(), FindingMark::text)
        };
        let mark = |m: &Option<Mark>| match m {
            None => "none".to_owned(),
            Some(m) => {
                let what = std::io::Error::from_raw_os_error(m.errno as i32);
                format!("{}: {what}, inode {}, number {}", m.time, m.inode, m.count)
            }
        };
        let mut state = if self.clean {
            "clean"
        } else {
            "in use, or not cleanly unmounted"
        }
        .to_owned();
        if self.read_from_copy {
            state += "; the first superblock is damaged, this is the copy";
        }
        let rows = [
            (
                "region",
                format!("{} ({})", self.region, human(self.region_bytes)),
            ),
            ("format", format!("version {}", self.version)),
            ("uuid", self.uuid.clone()),
            (
                "label",
                if self.label.is_empty() {
                    "none".into()
                } else {
                    printable(&self.label)
                },
            ),
            ("state", state),
            (
                "features",
                if self.features.is_empty() {
                    "none".into()
                } else {
                    self.features.join(", ")
                },
            ),
            ("default options", self.defaults()),
            (
                "size",
                match self.can_grow {
                    false => format!("{} bytes ({})", self.bytes, human(self.bytes)),
                    true => format!(
                        "{} bytes ({}), and {} of the region are unused: pramfs grow makes use of them",
                        self.bytes,
                        human(self.bytes),
                        human(self.region_bytes - self.bytes)
                    ),
                },
            ),
            (
                "blocks",
                format!(
                    "{} of {} bytes, {} a group, {} in reserve",
                    self.blocks, self.block_size, self.blocks_per_group, self.reserved_blocks
                ),
            ),
            (
                "inodes",
                format!("at most {}, {} a group", self.inodes, self.inodes_per_group),
            ),
            (
                "superblock copy",
                format!(
                    "at byte {}{}",
                    self.superblock_copy,
                    if self.copy_damaged { ", damaged" } else { "" }
                ),
            ),
            (
                "journal",
                format!(
                    "{} lanes of 2 slots of {} bytes, {} at byte {}",
                    self.lanes,
                    self.slot_bytes,
                    human(self.journal_bytes),
                    self.journal_offset
                ),
            ),
            (
                "checkpoint",
                self.checkpoint
                    .map_or("damaged".into(), |lsn| format!("LSN {lsn}")),
            ),
            (
                "created",
                format!("{} by {}", self.created, self.created_by),
            ),
            ("mounts", self.mounts.to_string()),
            (
                "last mount",
                self.last_mount
                    .map_or_else(|| "never".to_owned(), |t| t.to_string()),
            ),
            ("first error", mark(&self.first_error)),
            ("last error", mark(&self.last_error)),
            (
                "scrubs",
                match &self.last_scrub {
                    None => "none finished".to_owned(),
                    Some(last) => format!("{}, the last at {last}", self.scrubs),
                },
            ),
            ("scrub findings", self.scrub_findings.to_string()),
            ("first finding", finding(&self.first_finding)),
            ("last finding", finding(&self.last_finding)),
            ("bad blocks", self.bad()),
        ];
        rows.iter()
            .map(|(name, value)| format!("{name:<16} {value}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}
