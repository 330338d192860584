//! `pramfs info`: prints the superblock, for people and scripts.

use std::path::PathBuf;

use clap::Args;
use pramfs::inode::Time;
use pramfs::pmem::RegionOptions;
use pramfs_medium::media::superblock::ErrorMark;
use pramfs_medium::media::{SuperblockInfo, probe_superblock};
use serde::Serialize;

use super::Subcommand;
use crate::failure::{printable, shown};
use crate::open::{self, Intent};
use crate::tree::Timestamp;
use crate::{Failure, output};
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
    block_size: u32,
    blocks: u64,
    reserved_blocks: u64,
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
}

impl Subcommand for Info {
    const NAME: &'static str = "info";
    const ABOUT: &'static str = "Show the superblock";

    fn run(&self) -> Result<(), Failure> {
        let region = if self.in_use {
            RegionOptions::new()
                .read_only(true)
                .lock(false)
                .open(&self.region)?
        } else {
            open::region(&self.region, Intent::Read)?
        };
        let name = shown(&self.region);
        let info = probe_superblock(&region).map_err(|e| Failure::about(&name, e))?;
        let report = Report::new(name, region.len(), &info);
        if self.json {
            output::json(&report)
        } else {
            output::line(&report.text())
        }
    }
}

impl Report {
    fn new(region: String, region_bytes: u64, info: &SuperblockInfo) -> Report {
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
            block_size: info.block_size(),
            blocks: f.blocks,
            reserved_blocks: f.reserve_blocks,
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
        }
    }

    fn text(&self) -> String {
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
            (
                "size",
                format!("{} bytes ({})", self.bytes, human(self.bytes)),
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
        ];
        rows.iter()
            .map(|(name, value)| format!("{name:<16} {value}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}
