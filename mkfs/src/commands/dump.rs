//! `pramfs dump`: accounts for the blocks of an image, and lists its lanes,
//! groups and inodes.

use std::path::PathBuf;

use clap::Args;
use pramfs::Damage;
use pramfs::{
    Error, FileType, MountOptions,
    inode::{Fs, Ino},
};
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::superblock::PAGE;
use pramfs_medium::pmem::RegionView;
use serde::Serialize;

use super::Subcommand;
use crate::failure::shown;
use crate::image::{Group, Image, InodeRow, Lane, Slot};
use crate::moment::structures;
use crate::open;
use crate::{Failure, output};
use pramfs_medium::size::human;

#[derive(Debug, Args)]
pub(super) struct Dump {
    /// File or device that holds the file system, or a mount point: a mount is copied first
    region: PathBuf,
    /// List the journal lanes
    #[arg(long)]
    lanes: bool,
    /// List the block groups and inode groups in use
    #[arg(long)]
    groups: bool,
    /// List the inodes in use
    #[arg(long)]
    inodes: bool,
    /// Maximum number of lines in each list; 0 for no limit
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// One owner of blocks.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    /// Number of objects of this kind.
    count: u64,
    /// Number of blocks that they own.
    blocks: u64,
    detail: String,
}

/// A list, possibly truncated.
#[derive(Debug, Serialize)]
struct List<T> {
    rows: Vec<T>,
    left_out: u64,
    #[serde(skip)]
    limit: usize,
}

impl<T> List<T> {
    fn new(wanted: bool, limit: usize) -> Option<List<T>> {
        wanted.then(|| List {
            rows: Vec::new(),
            left_out: 0,
            limit: if limit == 0 { usize::MAX } else { limit },
        })
    }
    fn push(list: &mut Option<Self>, row: T) {
        match list {
            Some(l) if l.rows.len() < l.limit => l.rows.push(row),
            Some(l) => l.left_out += 1,
            None => {}
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    region: String,
    bytes: u64,
    block_size: u64,
    blocks: u64,
    rows: Vec<Row>,
    /// Blocks in use according to the bitmaps.
    used: u64,
    /// Sum of the blocks in the rows.
    accounted: u64,
    free: u64,
    damage: Vec<String>,
    damage_left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lanes: Option<List<Lane>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_groups: Option<List<Group>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode_groups: Option<List<Group>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes: Option<List<InodeRow>>,
}

impl Subcommand for Dump {
    const NAME: &'static str = "dump";
    const ABOUT: &'static str = "Account for all blocks; list lanes, groups and inodes";

    fn run(&self) -> Result<(), Failure> {
        let name = shown(&self.region);
        pramfs::pmem::install_fault_guard()?;
        let region = structures(&self.region)?.region;
        let about = |e| open::not_ours(&self.region, e);
        // Read the lanes as a crash left them. Everything else is read after the
        // replay, which happens in private memory.
        let geo = probe_superblock(&region).map_err(about)?.geometry();
        let lanes = Image::new(&region, geo)
            .and_then(|i| i.lanes())
            .map_err(about)?;
        let options = MountOptions {
            read_only: true,
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).map_err(about)?;
        let mut report = self
            .report(name.clone(), fs.region(), lanes)
            .map_err(about)?;
        report.damage.extend(fs.recovery().damage.iter().cloned());
        if self.json {
            output::json(&report)
        } else {
            report.print()
        }
    }
}

const MAX_DAMAGE: usize = 50;

impl Dump {
    fn report(
        &self,
        name: String,
        region: RegionView<'_>,
        lanes: Vec<Lane>,
    ) -> pramfs::Result<Report> {
        let geo = probe_superblock(region)?.geometry();
        let image = Image::new(region, geo.clone())?;
        let (mut damage, mut damage_left_out) = (Vec::new(), 0);
        let mut bad = |e: Error| {
            if damage.len() < MAX_DAMAGE {
                damage.push(e.to_string())
            } else {
                damage_left_out += 1
            }
        };

        let mut block_groups = List::new(self.groups, self.limit);
        let (mut used, mut block_bitmaps) = (0, 0);
        let mut wrong_sums = Vec::new();
        let all_block_groups = image.groups(BitmapKind::Blocks, &mut bad, &mut |g, _| {
            used += g.used;
            block_bitmaps += 1;
            if !g.sum_fits {
                wrong_sums.push(Error::corrupt(
                    Damage::BitmapSum,
                    format!("block group {}", g.group),
                    "the checksum of its bitmap is wrong",
                ));
            }
            List::push(&mut block_groups, g);
        })?;
        let mut inode_groups = List::new(self.groups, self.limit);
        let mut inode_bitmaps = 0;
        let all_inode_groups = image.groups(BitmapKind::Inodes, &mut bad, &mut |g, _| {
            inode_bitmaps += 1;
            if !g.sum_fits {
                wrong_sums.push(Error::corrupt(
                    Damage::BitmapSum,
                    format!("inode group {}", g.group),
                    "the checksum of its bitmap is wrong",
                ));
            }
            List::push(&mut inode_groups, g);
        })?;
        wrong_sums.into_iter().for_each(&mut bad);

        let mut inodes = List::new(self.inodes, self.limit);
        let mut tally = Tally::default();
        image.inodes(&mut bad, &mut |row| {
            tally.add(&row);
            List::push(&mut inodes, row);
        })?;

        let page = geo.whole_blocks(PAGE).max(1);
        let [table, inode_descs, block_descs] = image.table_blocks;
        let bytes = |n: u64| format!("{n} bytes");
        let mut rows = vec![
            row(
                "superblock pages",
                2,
                2 * page,
                format!("at 0 and {}", geo.copy_offset.0),
            ),
            row(
                "journal lanes",
                geo.lanes.into(),
                geo.whole_blocks(geo.journal_len),
                lanes_detail(&lanes),
            ),
            row(
                "block groups",
                all_block_groups,
                block_descs + block_bitmaps,
                format!("{block_bitmaps} in use"),
            ),
            row(
                "inode groups",
                all_inode_groups,
                inode_descs + inode_bitmaps,
                format!("{inode_bitmaps} in use"),
            ),
            row(
                "inode table",
                1,
                table,
                format!("at most {} inodes", geo.inodes_max()),
            ),
        ];
        let t = &tally;
        for (what, of, detail) in [
            (
                "internal files",
                t.internal,
                "orphan and lease tables".to_owned(),
            ),
            ("regular files", t.regular, bytes(t.regular_bytes)),
            (
                "directories",
                t.directories,
                format!("{} entries", t.entries),
            ),
            ("symbolic links", t.symlinks, String::new()),
            (
                "other files",
                t.others,
                "devices, fifos, sockets".to_owned(),
            ),
        ] {
            rows.push(row(what, of.0, of.1, detail));
        }
        if t.orphans > 0 {
            rows.push(row(
                "unlinked files",
                t.orphans,
                0,
                "counted above; freed at the next mount".into(),
            ));
        }
        let mut list = List::new(self.lanes, self.limit);
        lanes.into_iter().for_each(|l| List::push(&mut list, l));
        Ok(Report {
            region: name,
            bytes: geo.region_bytes(),
            block_size: geo.block_size,
            blocks: geo.blocks(),
            used,
            accounted: rows.iter().map(|r| r.blocks).sum(),
            // Groups that are not in use yet are entirely free.
            free: geo.blocks() - used.min(geo.blocks()),
            rows,
            damage,
            damage_left_out,
            lanes: list,
            block_groups,
            inode_groups,
            inodes,
        })
    }
}

/// Number of inodes, and their blocks, by type.
#[derive(Default)]
struct Tally {
    internal: (u64, u64),
    regular: (u64, u64),
    regular_bytes: u64,
    directories: (u64, u64),
    entries: u64,
    symlinks: (u64, u64),
    others: (u64, u64),
    orphans: u64,
}

impl Tally {
    fn add(&mut self, row: &InodeRow) {
        let to = match row.kind {
            _ if row.inode != Ino::ROOT.0 && row.inode < Ino::FIRST_FREE.0 => &mut self.internal,
            Some(FileType::Regular) => {
                self.regular_bytes = self.regular_bytes.saturating_add(row.size);
                &mut self.regular
            }
            Some(FileType::Directory) => {
                self.entries = self.entries.saturating_add(row.size);
                &mut self.directories
            }
            Some(FileType::Symlink) => &mut self.symlinks,
            _ => &mut self.others,
        };
        to.0 += 1;
        to.1 = to.1.saturating_add(row.blocks);
        self.orphans += u64::from(row.links == 0);
    }
}

fn row(what: &'static str, count: u64, blocks: u64, detail: String) -> Row {
    Row {
        what,
        count,
        blocks,
        detail,
    }
}

fn lanes_detail(lanes: &[Lane]) -> String {
    let slots = || lanes.iter().flat_map(|l| l.slots);
    let live = lanes
        .iter()
        .flat_map(|l| l.slots.into_iter().map(|s| (l.retired.unwrap_or(0), s)))
        .filter(|(retired, s)| matches!(s, Slot::Valid { lsn, .. } if lsn > retired))
        .count();
    let bad = slots().filter(|s| *s == Slot::Bad).count();
    let valid = slots().filter(|s| matches!(s, Slot::Valid { .. })).count();
    format!("{valid} records, {live} not retired, {bad} unreadable")
}

impl Report {
    fn print(&self) -> Result<(), Failure> {
        output::line(&format!(
            "{}: {}, {} blocks of {} bytes",
            self.region,
            human(self.bytes),
            self.blocks,
            self.block_size
        ))?;
        output::line(&format!("{:<18} {:>10} {:>12}", "", "number", "blocks"))?;
        for r in &self.rows {
            let line = format!(
                "{:<18} {:>10} {:>12}  {}",
                r.what, r.count, r.blocks, r.detail
            );
            output::line(line.trim_end())?;
        }
        output::line(&format!(
            "{:<18} {:>10} {:>12}",
            "accounted for", "", self.accounted
        ))?;
        let verdict = match self.used.abs_diff(self.accounted) {
            0 => "every block in use has an owner".to_owned(),
            n if self.used > self.accounted => format!("{n} without an owner"),
            n => format!("{n} owned but not in use"),
        };
        output::line(&format!(
            "{:<18} {:>10} {:>12}  {verdict}",
            "in use", "", self.used
        ))?;
        output::line(&format!("{:<18} {:>10} {:>12}", "free", "", self.free))?;
        for d in &self.damage {
            output::line(&format!("damage: {d}"))?;
        }
        if self.damage_left_out > 0 {
            output::line(&format!("damage: {} more", self.damage_left_out))?;
        }
        table(&self.lanes, "\nlane    retired  slot 0, slot 1", |l| {
            let retired = l.retired.map_or("damaged".into(), |r| r.to_string());
            format!(
                "{:>4} {retired:>10}  {}, {}",
                l.lane,
                slot(&l.slots[0]),
                slot(&l.slots[1])
            )
        })?;
        let group = |g: &Group| {
            let sum = if g.sum_fits { "" } else { "  wrong checksum" };
            format!(
                "{:>9} {:>16} {:>8} of {:>8}{sum}",
                g.group, g.bitmap_offset, g.used, g.bits
            )
        };
        table(
            &self.block_groups,
            "\nblk group  bitmap at byte     used of     bits",
            group,
        )?;
        table(
            &self.inode_groups,
            "\nino group  bitmap at byte     used of     bits",
            group,
        )?;
        let title = "\n     inode    mode      links        size      blocks height  at byte";
        table(&self.inodes, title, |i| {
            format!(
                "{:>10} {:>7} {:>10} {:>11} {:>11} {:>6}  {}",
                i.inode, i.mode, i.links, i.size, i.blocks, i.height, i.offset
            )
        })
    }
}

fn table<T>(
    list: &Option<List<T>>,
    title: &str,
    show: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    let Some(list) = list else { return Ok(()) };
    output::line(title)?;
    list.rows.iter().try_for_each(|r| output::line(&show(r)))?;
    if list.left_out > 0 {
        output::line(&format!("... and {} more; see --limit", list.left_out))?;
    }
    Ok(())
}

fn slot(s: &Slot) -> String {
    match s {
        Slot::Empty => "empty".into(),
        Slot::Bad => "unreadable".into(),
        Slot::Valid {
            lsn,
            bytes,
            entries,
            sound,
        } => {
            let note = if *sound { "" } else { " malformed" };
            format!("LSN {lsn} ({entries} entries, {bytes} bytes{note})")
        }
    }
}
