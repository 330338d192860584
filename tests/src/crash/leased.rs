//! Leases beside the explorer: which slots processes hold, and the blocks that they map.
//!
//! The maps are read from the medium, not through the engine: rule 6 is a promise about
//! pointers, and the engine would hide those past the end of a file.

use std::collections::{BTreeMap, BTreeSet};

use pramfs::inode::{Fs, Ino, LeaseMode, SetAttr, Time};
use pramfs_medium::media::inode::INODE_SIZE;
use pramfs_medium::media::lease::{LeaseSlot, SlotContents, VIEW_OFFSET};
use pramfs_medium::media::superblock::INODE_TABLE_OFFSET;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, Medium};
use pramfs_medium::pmem::{PmemError, Region, RegionAccess as _, Unfenced};
use pramfs_medium::types::{Bno, FileBlock, RegionOffset};

use super::action::Action;
use super::operations::{Op, ops};
use super::oracle::LATER;
use super::state::{Piece, State};
use super::steps::file;
use crate::appender::{Appended, Appender};
use crate::model::{Body, Call, Follower, NodeId};

/// Slots of the lease table that processes hold.
pub type Held = BTreeSet<u32>;

/// What a process maps by a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mapped {
    /// The leased file.
    pub ino: Ino,
    /// The process may store to them.
    pub may_store: bool,
    /// Its blocks by their index in the file, also those past its end.
    pub blocks: BTreeMap<u64, u64>,
}

/// What processes map, by slot.
pub type Kept = BTreeMap<u32, Mapped>;

/// Lets processes hold these slots of a region.
#[must_use]
pub fn hold(region: Region, held: &Held) -> Region {
    held.iter()
        .for_each(|slot| region.pretend_lease(*slot, true));
    region
}

/// The slots of the leases that a mount keeps.
pub fn slots_of(fs: &Fs) -> Held {
    fs.leases().iter().map(|lease| lease.slot).collect()
}

/// The places of the slots of the lease table, whatever they hold.
///
/// # Errors
/// Where the table cannot be read.
pub fn places(medium: Medium<'_>) -> Result<Vec<RegionOffset>, String> {
    let table = inode(medium, Ino::LEASES)?;
    let slots = table.size / LeaseSlot::SIZE as u64;
    (0..slots)
        .map(|slot| place(medium, &table, slot * LeaseSlot::SIZE as u64))
        .collect()
}

/// Where readers watch the words of a slot.
pub fn view_line(slot: RegionOffset) -> usize {
    (slot + VIEW_OFFSET).0 as usize
}

/// The slots in use, with the blocks of their files.
///
/// # Errors
/// Where the table, or the map of such a file, cannot be read; a damaged slot; a slot that
/// names no inode.
pub fn kept(region: &Region, geo: &Geometry) -> Result<Kept, String> {
    let medium = Medium { region, geo };
    let mut all = Kept::new();
    for (slot, at) in (0u32..).zip(places(medium)?) {
        let home: LeaseSlot = medium.read_pod(at).map_err(|e| e.to_string())?;
        let lease = match home.contents(geo.seed, slot) {
            SlotContents::Free => continue,
            SlotContents::Used(lease) => lease,
            SlotContents::Damaged => return Err(format!("slot {slot} is damaged")),
        };
        let file = inode(medium, lease.ino)?;
        if file.generation != lease.generation {
            return Err(format!("slot {slot} names another file of {}", lease.ino));
        }
        let mapped = Mapped {
            ino: lease.ino,
            may_store: lease.mode == LeaseMode::Write,
            blocks: blocks(medium, &file)?,
        };
        all.insert(slot, mapped);
    }
    Ok(all)
}

/// Which promise is broken, if one is: all that was mapped must be so still.
///
/// # Errors
/// That, in words.
pub fn compare(promised: &Kept, found: &Kept) -> Result<(), String> {
    for (slot, old) in promised {
        let Some(new) = found.get(slot).filter(|new| new.ino == old.ino) else {
            return Err(format!("slot {slot} does not name {} any more", old.ino));
        };
        for (index, block) in &old.blocks {
            let now = new.blocks.get(index);
            if now != Some(block) {
                let ino = old.ino;
                return Err(format!(
                    "a process maps block {block} as number {index} of {ino}; there is {now:?} now"
                ));
            }
        }
    }
    Ok(())
}

/// The place of an inode.
pub(crate) fn home(medium: Medium<'_>, ino: Ino) -> Result<RegionOffset, String> {
    let table: DiskInode = medium
        .read_pod(RegionOffset(INODE_TABLE_OFFSET))
        .map_err(|e: PmemError| e.to_string())?;
    place(medium, &table, ino.0 * INODE_SIZE)
}

/// An inode in use.
pub(crate) fn inode(medium: Medium<'_>, ino: Ino) -> Result<DiskInode, String> {
    let inode: DiskInode = medium
        .read_pod(home(medium, ino)?)
        .map_err(|e: PmemError| e.to_string())?;
    match inode.ino == ino.0 && inode.crc == inode.expected_crc(medium.geo.seed, ino) {
        true => Ok(inode),
        false => Err(format!("there is no {ino}")),
    }
}

/// The place of a byte of a file without holes.
fn place(medium: Medium<'_>, file: &DiskInode, at: u64) -> Result<RegionOffset, String> {
    let geo = medium.geo;
    let leaf = MapRoot::of(file).find(medium.region, geo, geo.file_block(at));
    let leaf = leaf.map_err(|e| e.to_string())?;
    let block = leaf
        .block
        .ok_or_else(|| format!("byte {at} has no block"))?;
    Ok(geo.offset(block) + geo.within_block(at))
}

fn blocks(medium: Medium<'_>, file: &DiskInode) -> Result<BTreeMap<u64, u64>, String> {
    let map = MapRoot::of(file);
    let (mut at, end) = (FileBlock(0), map.end(medium.geo));
    let mut blocks = BTreeMap::new();
    while file.root != 0 && at < end {
        let leaf = map.look(medium, at).map_err(|e| e.to_string())?;
        if let Some(first) = leaf.block {
            blocks.extend((0..leaf.count).map(|i| (leaf.first.0 + i, first.0 + i)));
        }
        at = FileBlock(leaf.first.0 + leaf.count);
    }
    Ok(blocks)
}

/// Grants a lease of a file, and holds it.
///
/// # Errors
/// Those of the engine.
pub fn grant(fs: &Fs, f: &mut Follower, node: NodeId, mode: LeaseMode) -> pramfs::Result<()> {
    let ino = f.ino(node);
    let generation = fs.getattr(ino)?.generation;
    let grant = fs.grant_lease(ino, generation, mode, 100, 1000)?;
    fs.region_to_damage()
        .pretend_lease(grant.lease().slot, true);
    drop(grant);
    // A lease keeps the inode, as an open file does.
    let pinned = f.model.call(&Call::Pin { node });
    debug_assert!(pinned.is_ok());
    Ok(())
}

/// Stores to blocks of a file as the holder of its lease does, after holes have been filled.
/// False if the region is full. Without the note of the holder, which the next mount may
/// find after a crash, and take its own time for the store.
///
/// # Errors
/// Nobody has leased the file to write; a byte has no written block.
pub fn store(
    fs: &Fs,
    f: &Follower,
    node: NodeId,
    offset: u64,
    bytes: &[u8],
) -> Result<bool, String> {
    let words = |e: pramfs::Error| e.to_string();
    let ino = f.ino(node);
    let leases = fs.leases();
    let lease = leases
        .iter()
        .find(|lease| lease.ino == ino && lease.mode == LeaseMode::Write)
        .ok_or("nobody has leased the file to write")?;
    match fs.fill(ino, offset, bytes.len() as u64) {
        Err(pramfs::Error::NoSpace(_)) if f.full => return Ok(false),
        filled => filled.map_err(words)?,
    }
    let found = fs
        .leased_extents(lease.slot, lease.id, 0, usize::MAX)
        .map_err(words)?;
    let window = fs.region_to_damage().window();
    let (mut pending, mut done) = (Unfenced::none(), 0);
    for extent in &found.extents {
        let start = offset.max(extent.file_offset);
        let end = (offset + bytes.len() as u64).min(extent.file_offset + extent.len);
        if start < end {
            let at = extent.region_offset.unwrap_or(0) + (start - extent.file_offset);
            let part = &bytes[(start - offset) as usize..(end - offset) as usize];
            let stored = window.nt_store(at, part).map_err(|e| e.to_string())?;
            (pending, done) = (pending.join(stored), done + part.len());
        }
    }
    window.fence(pending);
    if done < bytes.len() {
        return Err(format!("a store to {done} of {} bytes", bytes.len()));
    }
    Ok(true)
}

/// Stores past the end of a file, to blocks that the holder of its lease could map when the
/// file was longer. False if there is none.
///
/// # Errors
/// Where the map of the file cannot be read.
pub fn store_to_cut(fs: &Fs, f: &Follower, node: NodeId, len: u64) -> Result<bool, String> {
    let region = fs.region_to_damage();
    let geo = fs.superblock().geometry();
    let medium = Medium { region, geo: &geo };
    let file = inode(medium, f.ino(node))?;
    let (window, mut pending) = (region.window(), Unfenced::none());
    let mut any = false;
    for (index, block) in blocks(medium, &file)? {
        let start = geo.file_offset(FileBlock(index));
        let (from, to) = (
            start.max(file.size),
            (start + geo.block_size).min(file.size + len),
        );
        if from < to {
            let at = geo.offset(Bno(block)) + (from - start);
            let garbage = vec![0xcd; (to - from) as usize];
            let stored = window.nt_store(at.0, &garbage).map_err(|e| e.to_string())?;
            (pending, any) = (pending.join(stored), true);
        }
    }
    window.fence(pending);
    Ok(any)
}

/// Opens an append window. False if the region is full, or the file has another lease.
///
/// # Errors
/// Nobody has leased the file to write; those of the engine.
pub fn open_window(fs: &Fs, f: &Follower, node: NodeId, bytes: u64) -> Result<bool, String> {
    match Appender::of(fs, f.ino(node))?.open(fs, bytes) {
        Ok(_) => Ok(true),
        Err(pramfs::Error::NoSpace(_)) if f.full => Ok(false),
        Err(pramfs::Error::Busy(_)) if f.model.node(node).pins > 1 => Ok(false),
        Err(e) => Err(format!("the window: {e}")),
    }
}

/// Appends in the window of a file, if there is one with room.
///
/// # Errors
/// As for [`Appender::append`]; what differs from the model.
pub fn append(fs: &Fs, f: &mut Follower, node: NodeId, bytes: &[u8]) -> Result<bool, String> {
    let holder = Appender::of(fs, f.ino(node))?;
    if holder.append(fs, bytes)? != Appended::Yes {
        return Ok(false);
    }
    let before = f.model.node(node).clone();
    f.stored(fs, node, (before.size(), bytes), &before)?;
    // The mount after a crash merges the bytes, and sets its own time.
    let later = Time {
        sec: LATER,
        nsec: 7,
    };
    f.may_show(node, later, later);
    Ok(true)
}

/// The slots of a file, or of all files. Their processes end.
pub fn let_go(fs: &Fs, f: &Follower, node: Option<NodeId>) -> Held {
    let of = |lease: &pramfs::inode::HeldLease| node.is_none_or(|n| f.ino(n) == lease.ino);
    let leases = fs.leases();
    let mut slots = leases.iter().filter(|lease| of(lease)).map(|l| l.slot);
    let ended: Held = match node {
        // One of several leases.
        Some(_) => slots.next().into_iter().collect(),
        None => slots.collect(),
    };
    for slot in &ended {
        fs.region_to_damage().pretend_lease(*slot, false);
    }
    ended
}

/// Ends the leases that nobody holds any more.
///
/// # Errors
/// Those of the engine; another number of leases than were let go.
pub fn end(fs: &Fs, f: &mut Follower, node: Option<NodeId>) -> Result<(), String> {
    let mut expected = 0;
    let pinned: Vec<(NodeId, u64)> = (f.model.nodes().map(|(id, n)| (id, n.pins)))
        .filter(|(id, pins)| *pins > 0 && node.is_none_or(|node| node == *id))
        .collect();
    for (node_id, pins) in pinned {
        for _ in 0..if node.is_some() { 1 } else { pins } {
            let unpinned = f.model.call(&Call::Unpin { node: node_id });
            debug_assert!(unpinned.is_ok());
            expected += 1;
        }
    }
    match fs.end_released_leases() {
        Ok(ended) if ended == expected => Ok(()),
        Ok(ended) => Err(format!("{ended} leases ended, not {expected}")),
        Err(e) => Err(format!("the end of a lease: {e}")),
    }
}

/// The regular files of a model.
pub fn files(f: &Follower) -> Vec<NodeId> {
    let is_file = |body: &Body| matches!(body, Body::File { .. });
    let nodes = f.model.nodes().filter(|(_, n)| is_file(&n.body));
    nodes.map(|(id, _)| id).collect()
}

/// The operations of [`ops`], and those of leases.
pub fn lease_ops() -> Vec<Op> {
    let mut all = ops();
    let mut add = |name, steps| {
        all.push(Op {
            name,
            metadata: false,
            map: false,
            wide: false,
            lossy: false,
            steps,
        });
    };
    add("lease /foo", |f| lease(f, "/foo", LeaseMode::Write));
    add("lease /A/foo", |f| lease(f, "/A/foo", LeaseMode::Write));
    add("lease /A/bar (empty, to read)", |f| {
        lease(f, "/A/bar", LeaseMode::Read)
    });
    add("store /foo 300 at 50", |f| direct_store(f, "/foo", 50, 300));
    add("store /foo 700 at 900 (spanning)", |f| {
        direct_store(f, "/foo", 900, 700)
    });
    add("store /A/foo 64 at 512", |f| {
        direct_store(f, "/A/foo", 512, 64)
    });
    add("cut /foo, store past the end, grow", |f| {
        store_past_end(f, "/foo", 512, 2500)
    });
    add("cut /A/foo, store past the end, grow", |f| {
        store_past_end(f, "/A/foo", 100, 4000)
    });
    add("window /foo", |f| windowed(f, "/foo", 1500, &[]));
    add("window /foo, append 40", |f| {
        windowed(f, "/foo", 1500, &[40])
    });
    add("window /A/foo, append 40 (preallocated)", |f| {
        windowed(f, "/A/foo", 40, &[40])
    });
    add("append 60 in window of /foo", |f| {
        let node = leased_file(f, "/foo")?;
        Some(vec![direct_append(node, 60)])
    });
    add("end lease /foo", |f| {
        let node = file(f, "/foo")?;
        let leased = f.model.node(node).pins > 0;
        leased.then(|| vec![Action::EndLeases { node: Some(node) }])
    });
    add("end leases", |f| {
        let leased = f.model.nodes().any(|(_, n)| n.pins > 0);
        leased.then(|| vec![Action::EndLeases { node: None }])
    });
    add("remount", |_| Some(vec![Action::Remount]));
    all
}

/// The operations that matter most to a process that maps a file.
const BESIDE_LEASES: [&str; 27] = [
    "truncate /foo 512",
    "truncate /A/foo 0",
    "truncate /foo 3000 (longer)",
    "truncate and chmod /foo",
    "punch /foo",
    "zero /foo",
    "zero keep /A/foo",
    "unlink /A/foo",
    "rename /A/bar /A/foo (over)",
    "append /foo 500",
    "append /A/foo 700 (preallocated)",
    "write /A/foo 90 at 5000 (hole)",
    "write /foo 700 at 1000 (spanning)",
    "write /A/bar 600 (empty)",
    "fallocate /A/bar",
    "fallocate keep /foo",
    "copy /A/foo into /foo",
    "lease /foo",
    "lease /A/foo",
    "end lease /foo",
    "end leases",
    "store /foo 300 at 50",
    "store /A/foo 64 at 512",
    "cut /foo, store past the end, grow",
    "window /foo, append 40",
    "append 60 in window of /foo",
    "remount",
];

/// Whether pairs of an operation with others are explored beside leases.
pub fn matters_beside_leases(op: &Op) -> bool {
    BESIDE_LEASES.contains(&op.name)
}

/// Whether an operation grants leases or ends them, or leaves blocks that only a lease keeps.
pub fn grants_or_ends(op: &Op) -> bool {
    let others = ["truncate /foo 512", "unlink /A/foo", "remount"];
    op.name.starts_with("lease") || op.name.starts_with("end") || others.contains(&op.name)
}

fn lease(f: &Follower, path: &str, mode: LeaseMode) -> Option<Vec<Action>> {
    let node = file(f, path)?;
    Some(vec![Action::Lease { node, mode }])
}

/// The file if a process has leased it, and perhaps to write.
fn leased_file(f: &Follower, path: &str) -> Option<NodeId> {
    let node = file(f, path)?;
    (f.model.node(node).pins > 0).then_some(node)
}

fn direct_store(f: &Follower, path: &str, offset: u64, len: usize) -> Option<Vec<Action>> {
    let node = leased_file(f, path)?;
    let fits = offset + len as u64 <= f.model.node(node).size();
    fits.then(|| {
        vec![Action::Store {
            node,
            offset,
            bytes: vec![0xdb; len],
        }]
    })
}

fn direct_append(node: NodeId, len: usize) -> Action {
    Action::Append {
        node,
        bytes: vec![0xad; len],
    }
}

/// A window with room for so many bytes, and appends in it.
fn windowed(f: &Follower, path: &str, bytes: u64, appends: &[usize]) -> Option<Vec<Action>> {
    let node = leased_file(f, path)?;
    let mut actions = vec![Action::OpenWindow { node, bytes }];
    actions.extend(appends.iter().map(|len| direct_append(node, *len)));
    Some(actions)
}

fn store_past_end(f: &Follower, path: &str, short: u64, long: u64) -> Option<Vec<Action>> {
    let node = leased_file(f, path)?;
    let size = |size| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        Action::Call(Call::SetAttr { node, set })
    };
    Some(vec![
        size(short),
        Action::StoreToCut { node, len: 4000 },
        size(long),
    ])
}

/// What a mount must show that shows `live` before a crash. `found` is a recovery without a
/// loss, which alone tells what is allocated past the end of files. `beside_leases` is the
/// same recovery while processes held leases, and `loses_tail` tells which files lose their
/// blocks past the end.
///
/// # Errors
/// Blocks that the recovery has freed or kept, and should not have.
pub fn expected(
    live: State,
    found: &State,
    beside_leases: Option<&State>,
    block_size: u64,
    loses_tail: &dyn Fn(Ino) -> bool,
) -> Result<State, String> {
    let mut state = State {
        pieces: found.pieces.clone(),
        kept: found.kept.clone(),
        ..live
    };
    for (path, n) in &mut state.tree.nodes {
        let (Some(pieces), Some(now)) = (found.pieces.get(path), found.tree.nodes.get(path)) else {
            continue;
        };
        let end = match loses_tail(n.id.0) {
            true => n.size.next_multiple_of(block_size),
            false => u64::MAX,
        };
        let until_end = |pieces: &[Piece]| -> Vec<Piece> {
            let clip = |p: &Piece| (p.0, p.1.min(end.saturating_sub(p.0)), p.2);
            pieces.iter().map(clip).filter(|p| p.1 > 0).collect()
        };
        let right = beside_leases.map_or(pieces, |s| &s.pieces[path]);
        let right = until_end(right);
        if right != *pieces {
            let path = String::from_utf8_lossy(path);
            return Err(format!("{path}: allocated {right:?}\n   is: {pieces:?}"));
        }
        if end != u64::MAX {
            n.blocks = n.blocks.min(now.blocks);
        }
    }
    Ok(state)
}
