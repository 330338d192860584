//! `pramfs owner`: tells what blocks of a region are, and which files have them.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use clap::Args;
use pramfs::inode::Ino;
use pramfs_fsck::{DataOf, Owned, Owner, Owners, Part, State};
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::size;
use serde::Serialize;

use super::Subcommand;
use crate::failure::{quoted, shown};
use crate::moment::structures;
use crate::open;
use crate::tree::Name;
use crate::{Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "A BLOCK is a number, a range of numbers (100-107), or byte offsets with a unit: 4096B, 64K,\n\
    1M-2M. A file with several names is shown with all of them."
)]
pub(super) struct OwnerOf {
    /// File or device that holds the file system, or a mount point: a mount is copied first
    region: PathBuf,
    /// Blocks
    #[arg(required = true)]
    block: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    /// First block.
    block: u64,
    count: u64,
    /// Offset of the first in the region, bytes.
    offset: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Serialize)]
struct What {
    /// One word or two, the same between versions.
    is: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    /// Offset in the file that the first block holds, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_offset: Option<u64>,
    /// Levels of pointers from here to the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
    unwritten: bool,
    /// Unlinked: the next mount frees it.
    orphan: bool,
    paths: Vec<Name>,
}

impl Subcommand for OwnerOf {
    const NAME: &'static str = "owner";
    const ABOUT: &'static str = "Tell which file or structure has a block";

    fn run(&self) -> Result<(), Failure> {
        pramfs::pmem::install_fault_guard()?;
        let name = shown(&self.region);
        let region = structures(&self.region)?.region;
        let rows = Owners::with(&region, |owners| {
            let rows = self.rows(owners, &name)?;
            if !owners.is_complete() {
                eprintln!(
                    "pramfs: warning: {name}: damage hides owners of blocks; fsck.pramfs -n {} lists it",
                    quoted(&self.region)
                );
            }
            Ok::<_, Failure>(rows)
        })
        .map_err(|e| open::not_ours(&self.region, e))??;
        if region.is_cut() || region.faults() > 0 {
            eprintln!("pramfs: warning: {name}: some of its pages cannot be read");
        }
        if self.json {
            return output::json(&rows);
        }
        for row in rows {
            output::line(&row.to_string())?;
        }
        Ok(())
    }
}

impl OwnerOf {
    fn rows(&self, owners: &mut Owners<'_>, name: &str) -> Result<Vec<Row>, Failure> {
        let mut found = Vec::new();
        for text in &self.block {
            let (first, end) = blocks(text, owners.block_size())?;
            if end > owners.blocks() {
                return Err(Failure::usage(format!(
                    "{text} is past the end of {name}, which has blocks 0 to {}",
                    owners.blocks() - 1
                )));
            }
            between(owners, first, end, &mut found).map_err(|e| Failure::about(name, e))?;
        }
        let wanted: HashSet<Ino> = found
            .iter()
            .filter_map(|(_, is)| is.as_ref().ok()?.ino())
            .collect();
        let paths = owners.paths(&wanted).map_err(|e| Failure::about(name, e))?;
        let size = owners.block_size();
        Ok(found
            .into_iter()
            .map(|((block, count), is)| Row {
                block,
                count,
                offset: block * size,
                what: what(owners, &paths, is),
            })
            .collect())
    }
}

/// Parses `7`, `7-9`, `4096B`, `1M-2M`. Returns the first block and the one after the last.
fn blocks(text: &str, block_size: u64) -> Result<(u64, u64), Failure> {
    let one = |part: &str| -> Result<u64, Failure> {
        let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let number = size::parse(part).map_err(|_| {
            Failure::usage(format!(
                "\"{text}\" is no block: give a number, a range (100-107), or byte offsets with a unit (4096B, 64K)"
            ))
        })?;
        Ok(if plain { number } else { number / block_size })
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (one(first)?, one(last)?),
        None => (one(text)?, one(text)?),
    };
    match first <= last && last < u64::MAX {
        true => Ok((first, last + 1)),
        false => Err(Failure::usage(format!("\"{text}\" ends before it begins"))),
    }
}

/// First block and number of blocks, with their owner or what the bitmap says.
type Found = ((u64, u64), Result<Owner, State>);

/// Adds what the blocks of a range are. Those without an owner are what the bitmap says.
fn between(owners: &Owners<'_>, first: u64, end: u64, out: &mut Vec<Found>) -> pramfs::Result<()> {
    let owned: Vec<Owned> = owners.between(first, end).collect();
    let mut at = first;
    for Owned { blocks, owner } in owned {
        unowned(owners, at, blocks.start.0, out)?;
        out.push(((blocks.start.0, blocks.len), Ok(owner)));
        at = at.max(blocks.end().0);
    }
    unowned(owners, at, end, out)
}

fn unowned(owners: &Owners<'_>, first: u64, end: u64, out: &mut Vec<Found>) -> pramfs::Result<()> {
    let mut run: Option<(u64, State)> = None;
    for block in first..end {
        let state = owners.state(block)?;
        match run {
            Some((_, before)) if before == state => {}
            _ => {
                let before = run.replace((block, state));
                out.extend(before.map(|(at, state)| ((at, block - at), Err(state))));
            }
        }
    }
    out.extend(run.map(|(at, state)| ((at, end - at), Err(state))));
    Ok(())
}

fn what(
    owners: &mut Owners<'_>,
    paths: &HashMap<Ino, Vec<Vec<u8>>>,
    is: Result<Owner, State>,
) -> What {
    let size = owners.block_size();
    let mut what = What {
        is: "",
        group: None,
        inode: None,
        file_offset: None,
        level: None,
        unwritten: false,
        orphan: false,
        paths: Vec::new(),
    };
    if let Ok(owner) = is
        && let Some(ino) = owner.ino()
    {
        what.inode = Some(ino.0);
        what.orphan = owners.is_orphan(ino);
        let named = paths.get(&ino).into_iter().flatten();
        what.paths = named.map(|path| path[..].into()).collect();
    }
    what.is = match is {
        Err(State::Free) => "free",
        Err(State::Used) => "in use without an owner",
        Err(State::Unknown) => "unknown: the bitmap of its group is damaged",
        Ok(Owner::Superblock) => "superblock",
        Ok(Owner::SuperblockCopy) => "superblock copy",
        Ok(Owner::Journal) => "journal",
        Ok(Owner::BadBlockList) => "list of bad blocks",
        Ok(Owner::BadBlock) => "bad block",
        Ok(Owner::BlockBitmap { group }) => {
            what.group = Some(group);
            "block bitmap"
        }
        Ok(Owner::DataSums { group }) => {
            what.group = Some(group);
            "data checksums"
        }
        Ok(Owner::InodeBitmap { group }) => {
            what.group = Some(group);
            "inode bitmap"
        }
        Ok(Owner::Data {
            ino,
            of,
            first,
            unwritten,
        }) => {
            what.unwritten = unwritten;
            what.file_offset = Some(first.0.saturating_mul(size));
            match of {
                DataOf::File => "data",
                DataOf::Target => "target of a symbolic link",
                DataOf::Value => "attribute value",
                DataOf::Table => table(ino),
            }
        }
        Ok(Owner::Pointers { part, level, .. }) => {
            what.level = Some(level);
            match part {
                Part::XattrValue => "pointers of an attribute value",
                _ => "pointers",
            }
        }
        Ok(Owner::Index { part, .. }) => match part {
            Part::Xattrs => "index of attributes",
            _ => "index of a directory",
        },
        Ok(Owner::Leaf { part, .. }) => match part {
            Part::Xattrs => "attributes",
            _ => "directory entries",
        },
    };
    what
}

fn table(ino: Ino) -> &'static str {
    match ino {
        Ino::INODE_TABLE => "inode table",
        Ino::INODE_GROUPS => "inode-group table",
        Ino::BLOCK_GROUPS => "block-group table",
        Ino::ORPHANS => "orphan table",
        _ => "lease table",
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Row {
            block, count, what, ..
        } = self;
        match count {
            1 => write!(f, "{block}: {}", what.is)?,
            _ => write!(f, "{block}-{}: {}", block + count - 1, what.is)?,
        }
        if let Some(group) = what.group {
            write!(f, " of group {group}")?;
        }
        if what.unwritten {
            f.write_str(", unwritten")?;
        }
        if let Some(level) = what.level {
            write!(f, " of level {level}")?;
        }
        // A table says which it is.
        if let Some(ino) = what.inode.filter(|_| !what.is.ends_with("table")) {
            match Ino(ino) {
                Ino::INODE_TABLE => f.write_str(", inode table")?,
                Ino::INODE_GROUPS => f.write_str(", inode-group table")?,
                Ino::BLOCK_GROUPS => f.write_str(", block-group table")?,
                _ => write!(f, ", inode {ino}")?,
            }
        }
        if let Some(at) = what.file_offset {
            write!(f, ", offset {at}")?;
        }
        if what.orphan {
            f.write_str(", unlinked: the next mount frees it")?;
        }
        for path in &what.paths {
            write!(f, ", {path}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn blocks_are_numbers_ranges_or_byte_offsets() {
        for (text, range) in [
            ("7", (7, 8)),
            ("7-9", (7, 10)),
            ("4096B", (1, 2)),
            ("8191B", (1, 2)),
            ("64K-68K", (16, 18)),
        ] {
            assert_eq!(blocks(text, 4096).unwrap(), range, "{text}");
        }
        for wrong in [
            "",
            "-",
            "7-",
            "-7",
            "9-7",
            "x",
            "1.3K",
            "18446744073709551615",
        ] {
            assert!(blocks(wrong, 4096).is_err(), "{wrong}");
        }
    }
}
