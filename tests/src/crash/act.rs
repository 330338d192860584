//! Carries actions out, by the engine and the model.

use pramfs::Access;
use pramfs::inode::{Fs, Gathered, Ino, Vacated};

use super::action::Action;
use super::leased;
use crate::model::{Follower, NodeId};

/// Carries an action out, but for a remount, which the explorer does.
///
/// # Errors
/// Where engine and model differ.
pub fn act(fs: &Fs, f: &mut Follower, action: &Action) -> Result<bool, String> {
    match action {
        Action::Call(c) => f.call(fs, c),
        Action::Label(label) => fs
            .set_label(label)
            .map(|()| true)
            .map_err(|e| format!("the label: {e}")),
        Action::Trim => fs
            .trim(0, u64::MAX, 0)
            .map(|_| true)
            .map_err(|e| format!("trim: {e}")),
        // What it does not move stays as it is.
        Action::Gather { node } => fs
            .gather(f.ino(*node), 0)
            .map(|done| done == Gathered::Moved)
            .map_err(|e| format!("gather: {e}")),
        Action::Vacate { node } => vacate(fs, f.ino(*node)).map_err(|e| format!("vacate: {e}")),
        Action::Store {
            node,
            offset,
            bytes,
        } => {
            let before = f.model.node(*node).clone();
            let stored = leased::store(fs, f, *node, *offset, bytes)?;
            if stored {
                f.stored(fs, *node, (*offset, bytes), &before)?;
            }
            Ok(stored)
        }
        Action::StoreToCut { node, len } => leased::store_to_cut(fs, f, *node, *len),
        Action::OpenWindow { node, bytes } => leased::open_window(fs, f, *node, *bytes),
        Action::Append { node, bytes } => leased::append(fs, f, *node, bytes),
        Action::Lease { node, mode } => match leased::grant(fs, f, *node, *mode) {
            Ok(()) => Ok(true),
            Err(pramfs::Error::NoSpace(_)) if f.full => Ok(false),
            Err(e) => Err(format!("the lease: {e}")),
        },
        Action::WriteAtomic {
            node,
            offset,
            bytes,
        } => {
            let file = fs.open_file(f.ino(*node));
            let file = file.map_err(|e| format!("the file: {e}"))?;
            match file.write_atomic(bytes, *offset) {
                // Its times are those of a write, exactly.
                Ok(()) => {
                    let written = f.model.write(*node, Some(*offset), bytes);
                    written
                        .map(|_| true)
                        .map_err(|e| format!("the model: {e:?}"))
                }
                Err(pramfs::Error::NoSpace(_)) if f.full => Ok(false),
                Err(e) => Err(format!("the atomic write: {e}")),
            }
        }
        Action::Commit {
            node,
            ranges,
            at_once,
        } => commit(fs, f, *node, ranges, *at_once),
        Action::EndLeases { node } => leased::end(fs, f, *node).map(|()| true),
        Action::Remount => Err("a remount takes the explorer".into()),
        Action::Map {
            node,
            offset,
            bytes,
            persist,
        } => {
            let words = |e: pramfs::Error| format!("the view: {e}");
            let before = f.model.node(*node).clone();
            let file = fs.open_file(f.ino(*node)).map_err(words)?;
            let range = *offset..*offset + bytes.len() as u64;
            let view = file.map(range, Access::Write).map_err(words)?;
            view.write(0, bytes).map_err(words)?;
            if *persist {
                view.persist(0..bytes.len() as u64).map_err(words)?;
            }
            f.stored(fs, *node, (*offset, bytes), &before)?;
            Ok(true)
        }
    }
}

/// Changes ranges of a private copy of a file, and commits them.
fn commit(
    fs: &Fs,
    f: &mut Follower,
    node: NodeId,
    ranges: &[(u64, Vec<u8>)],
    at_once: bool,
) -> Result<bool, String> {
    let words = |e: pramfs::Error| format!("the commit: {e}");
    let size = f.model.node(node).size();
    let file = fs.open_file(f.ino(node)).map_err(words)?;
    let view = file.map(0..size, Access::Write).map_err(words)?;
    let mut staged = view.stage().map_err(words)?;
    let mut places = Vec::new();
    for (offset, bytes) in ranges {
        let place = *offset..*offset + bytes.len() as u64;
        staged[place.start as usize..place.end as usize].copy_from_slice(bytes);
        places.push(place);
    }
    let pieces = if at_once { places.len() } else { 1 };
    for piece in places.chunks(pieces) {
        match staged.commit(piece) {
            Err(pramfs::Error::NoSpace(_)) if f.full => return Ok(false),
            committed => committed.map_err(words)?,
        }
    }
    for (offset, bytes) in ranges {
        let written = f.model.write(node, Some(*offset), bytes);
        written.map_err(|e| format!("the model: {e:?}"))?;
    }
    Ok(true)
}

/// Moves what a file has in the leaf of its last block. Returns whether there was anything.
///
/// # Errors
/// As for `vacate`.
pub fn vacate(fs: &Fs, ino: Ino) -> pramfs::Result<bool> {
    let extents = fs.file_extents(ino, 0, u64::MAX)?;
    let last = extents.iter().rev().find(|e| e.region_offset.is_some());
    let Some((last, place)) = last.and_then(|e| Some((e, e.region_offset?))) else {
        return Ok(false);
    };
    let leaf = place - place % fs.gather_unit();
    // The smallest regions have no whole leaf with large blocks.
    if leaf + fs.gather_unit() > fs.superblock().fixed.region_len {
        return Ok(false);
    }
    Ok(fs.vacate(ino, last.file_offset, leaf)? == Vacated::Moved)
}
