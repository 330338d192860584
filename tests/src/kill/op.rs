//! Operations of a writer: which comes next, what it changes, how it is done.

use pramfs::{
    Fallocate, FileType, RenameFlags, XattrMode,
    inode::{Credentials, SetAttr, SetTime, Time},
};

use super::state::State;
use crate::model::{Body, Call, Make, Model, Node, NodeId, ROOT, brief};
use crate::random::Random;
use crate::stress::Target;
use crate::syscalls::Sys;

/// Inodes of a writer, at most, with the directories above them.
const NODES: usize = 41;
/// Bytes of a file, at most.
const SIZE: u64 = 192 << 10;
/// Names that lead to a directory in which something is made, at most.
const DEPTH: usize = 4;
/// Files without a name that a writer keeps open.
const HELD: usize = 3;

/// How a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// As it is.
    Plain,
    /// What an unlink removes stays open, and is written to once more.
    Held,
    /// Words through a mapping, and a persist.
    Stored,
}

/// An operation.
#[derive(Clone)]
pub struct Op {
    call: Call,
    how: How,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.how, brief(&self.call))
    }
}

impl Op {
    /// The operation that follows from the state and the generator.
    pub fn next(state: &State, random: &mut Random) -> Op {
        loop {
            if let Some((call, how)) = draw(state, random) {
                return Op { call, how };
            }
        }
    }

    /// What the call answers when it has done all of it.
    pub fn whole(&self) -> i64 {
        match &self.call {
            Call::Write { bytes, .. } => bytes.len() as i64,
            _ => 0,
        }
    }

    /// The file whose bytes it changes, and which of them, in a state before it.
    pub fn range(&self, state: &State) -> Option<(NodeId, std::ops::Range<u64>)> {
        let (node, from, len) = match &self.call {
            Call::Write {
                node,
                offset,
                bytes,
            } => {
                let end = || state.model.node(*node).size();
                (*node, offset.unwrap_or_else(end), bytes.len() as u64)
            }
            Call::Fallocate {
                node, offset, len, ..
            } => (*node, *offset, *len),
            _ => return None,
        };
        Some((node, from..from + len))
    }

    /// The effect of a call that answered `returned`: less than zero is an
    /// error and changes nothing.
    ///
    /// # Errors
    /// What the model refuses.
    pub fn apply(&self, state: &mut State, returned: i64) -> Result<(), String> {
        let Ok(count) = u64::try_from(returned) else {
            return Ok(());
        };
        let done = state.model.call(&self.call.shortened(count));
        done.map_err(|e| format!("{self:?} is not possible: {e:?}"))?;
        Ok(())
    }

    /// Does it. The answer is that of the call.
    ///
    /// # Errors
    /// An errno.
    pub fn perform<D: Target>(
        &self,
        access: &D,
        state: &State,
        held: &mut Vec<D::Node>,
    ) -> Sys<i64> {
        let node = |id: &NodeId| reach(access, &state.model, *id);
        match &self.call {
            Call::Make {
                parent, name, what, ..
            } => {
                let dir = node(parent)?;
                match what {
                    Make::File { .. } => access.create(&dir, name).map(drop),
                    Make::Dir { .. } => access.mkdir(&dir, name),
                    Make::Node { mode, .. } => access.mknod(&dir, name, *mode),
                    Make::Symlink { target } => access.symlink(&dir, name, target),
                }
            }
            Call::Link {
                node: id,
                parent,
                name,
            } => access.link(&node(id)?, &node(parent)?, name),
            Call::Unlink { parent, name } if self.how == How::Held => {
                let dir = node(parent)?;
                let open = access.lookup(&dir, name)?;
                access.unlink(&dir, name)?;
                let gone = state.model.child(*parent, name);
                let gone = gone.map(|id| state.model.node(id));
                if gone.is_some_and(|n| is_file(n) && n.nlink == 1) {
                    // Nobody sees it; it must not be in anybody's way either.
                    match access.write(&open, 5000, &[0xdd; 9000]) {
                        Ok(_) | Err(libc::ENOSPC) => {}
                        // The unlink itself has returned, and stands.
                        Err(e) if super::is_death(access, e) => {}
                        Err(e) => return Err(e),
                    }
                }
                held.push(open);
                if held.len() > HELD {
                    held.remove(0);
                }
                Ok(())
            }
            Call::Unlink { parent, name } => access.unlink(&node(parent)?, name),
            Call::Rmdir { parent, name } => access.rmdir(&node(parent)?, name),
            Call::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
                ..
            } => {
                let (from, to) = (node(parent)?, node(new_parent)?);
                access.rename((&from, name), (&to, new_name), *flags)
            }
            Call::Write {
                node: id,
                offset: Some(at),
                bytes,
            } => {
                let node = node(id)?;
                if D::VIEWS && self.how == How::Stored {
                    let words = bytes.as_chunks().0.iter().copied();
                    let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
                    match access.store(&node, *at, &words, true) {
                        // Small blocks have no views, devdax those of whole 2 MiB leaves.
                        Err(libc::EINVAL | libc::EOPNOTSUPP) => {}
                        stored => return stored.map(|()| self.whole()),
                    }
                }
                // Through a mount a write has to do for a mapping.
                return access.write(&node, *at, bytes).map(|n| n as i64);
            }
            Call::Write {
                node: id,
                offset: None,
                bytes,
            } => return access.append(&node(id)?, bytes).map(|n| n as i64),
            Call::Fallocate {
                node: id,
                what,
                offset,
                len,
            } => access.fallocate(&node(id)?, *what, *offset, *len),
            Call::SetAttr { node: id, set } => match (set.size, set.perm, set.mtime) {
                (Some(size), ..) => access.truncate(&node(id)?, size),
                (_, Some(perm), _) => access.chmod(&node(id)?, perm),
                (_, _, Some(SetTime::At(t))) => access.utimes(&node(id)?, t.sec),
                _ => Err(libc::ENOSYS),
            },
            Call::SetXattr {
                node: id,
                name,
                value,
                mode,
            } => access.set_xattr(&node(id)?, name, value, *mode),
            Call::RemoveXattr { node: id, name } => access.remove_xattr(&node(id)?, name),
            Call::Fsync { node: id } => access.fsync(&node(id)?),
            _ => Err(libc::ENOSYS),
        }
        .map(|()| 0)
    }
}

/// A reference to a node, by one of its names.
fn reach<D: Target>(access: &D, model: &Model, id: NodeId) -> Sys<D::Node> {
    let mut at = access.root()?;
    for name in model.names_to(id).ok_or(libc::ENOENT)? {
        at = access.lookup(&at, name)?;
    }
    Ok(at)
}

fn is_file(n: &Node) -> bool {
    matches!(n.body, Body::File { .. })
}

/// A name in a directory, and the node that it leads to.
type Name<'s> = (NodeId, &'s [u8], NodeId);

/// A call that can be made, or none.
fn draw(state: &State, random: &mut Random) -> Option<(Call, How)> {
    let model = &state.model;
    let names: Vec<Name<'_>> = model.names().filter(|n| n.0 != ROOT).collect();
    let any = |random: &mut Random| {
        names
            .get(random.below(names.len() as u64) as usize)
            .copied()
    };
    let of = |random: &mut Random, wanted: fn(&Node) -> bool| {
        any(random).filter(|n| wanted(model.node(n.2)))
    };
    let file: fn(&Node) -> bool = is_file;
    let with_xattrs: fn(&Node) -> bool = |n| is_file(n) || n.is_dir();
    let full = model.nodes().count() >= NODES;
    let set = SetAttr::default();
    let call = match random.below(32) {
        0..=2 if !full => make(state, random, Make::File { perm: 0o644 })?,
        3 if !full => make(state, random, Make::Dir { perm: 0o755 })?,
        4 if !full && random.one_in(3) => {
            let mode = libc::S_IFIFO | 0o600;
            make(state, random, Make::Node { mode, rdev: 0 })?
        }
        4 if !full => {
            let most = if random.one_in(3) { 1000 } else { 96 };
            let target = vec![b't'; 1 + random.below(most) as usize];
            make(state, random, Make::Symlink { target })?
        }
        5 => {
            let node = of(random, |n| !n.is_dir())?.2;
            let (parent, name) = new_name(state, random)?;
            Call::Link { node, parent, name }
        }
        6 | 7 => {
            let (parent, name, _) = of(random, |n| !n.is_dir())?;
            let name = name.to_vec();
            let how = if random.one_in(3) {
                How::Held
            } else {
                How::Plain
            };
            return Some((Call::Unlink { parent, name }, how));
        }
        8 => {
            let (parent, name, id) = of(random, Node::is_dir)?;
            let name = name.to_vec();
            model.is_empty(id).then_some(Call::Rmdir { parent, name })?
        }
        9..=12 => rename(state, any(random)?, random)?,
        13..=17 => {
            let node = of(random, file)?.2;
            let at = offset(model.node(node), random);
            let bytes = bytes(random, SIZE - at);
            let offset = Some(at);
            Call::Write {
                node,
                offset,
                bytes,
            }
        }
        18 | 19 => {
            let node = of(random, file)?.2;
            let bytes = bytes(random, SIZE - model.node(node).size());
            let offset = None;
            Call::Write {
                node,
                offset,
                bytes,
            }
        }
        20 => {
            let node = of(random, file)?.2;
            let words = model.node(node).size() / 8;
            let from = random.below(words);
            let count = words.min(from + 1 + random.below(64)) - from;
            let mut bytes = vec![0; count as usize * 8];
            random.fill(&mut bytes);
            let offset = Some(from * 8);
            let store = Call::Write {
                node,
                offset,
                bytes,
            };
            return (count > 0).then_some((store, How::Stored));
        }
        21 | 22 => {
            let node = of(random, file)?.2;
            let size = Some(offset(model.node(node), random));
            let set = SetAttr { size, ..set };
            Call::SetAttr { node, set }
        }
        23 | 24 => {
            let node = of(random, file)?.2;
            let offset = offset(model.node(node), random);
            let len = 1 + random.below((SIZE - offset).min(20_000));
            let what = match random.below(6) {
                0 | 1 => Fallocate::PunchHole,
                2 => Fallocate::ZeroRange { keep_size: false },
                3 => Fallocate::ZeroRange { keep_size: true },
                4 => Fallocate::Allocate { keep_size: false },
                _ => Fallocate::Allocate { keep_size: true },
            };
            Call::Fallocate {
                node,
                what,
                offset,
                len,
            }
        }
        25 => {
            let node = of(random, |n| n.kind() != FileType::Symlink)?.2;
            let perm = Some(0o600 | random.below(0o200) as u32);
            let set = SetAttr { perm, ..set };
            Call::SetAttr { node, set }
        }
        26 => {
            let node = of(random, file)?.2;
            let sec = random.below(1 << 33) as i64;
            // As `Target::utimes` sets it.
            let mtime = Some(SetTime::At(Time { sec, nsec: 1 }));
            let set = SetAttr { mtime, ..set };
            Call::SetAttr { node, set }
        }
        27 | 28 => {
            let node = of(random, with_xattrs)?.2;
            let most = if random.one_in(6) { 6000 } else { 200 };
            let (value, mode) = (bytes(random, most), XattrMode::Set);
            let name = xattr_name(random);
            Call::SetXattr {
                node,
                name,
                value,
                mode,
            }
        }
        29 => {
            let (node, name) = (of(random, with_xattrs)?.2, xattr_name(random));
            let there = model.node(node).xattrs.contains_key(&name);
            there.then_some(Call::RemoveXattr { node, name })?
        }
        30 if random.one_in(4) => {
            let node = of(random, file)?.2;
            Call::Fsync { node }
        }
        _ => return None,
    };
    Some((call, How::Plain))
}

fn make(state: &State, random: &mut Random, what: Make) -> Option<Call> {
    let (parent, name) = new_name(state, random)?;
    let (ctx, pin) = (Credentials::ROOT, false);
    Some(Call::Make {
        ctx,
        parent,
        name,
        what,
        pin,
    })
}

/// A name that is not taken.
fn new_name(state: &State, random: &mut Random) -> Option<(NodeId, Vec<u8>)> {
    let (dir, name) = some_name(state, random);
    state
        .model
        .child(dir, &name)
        .is_none()
        .then_some((dir, name))
}

fn some_name(state: &State, random: &mut Random) -> (NodeId, Vec<u8>) {
    let depth = |id| state.model.names_to(id).map_or(0, |names| names.len());
    let all = state.model.nodes().filter(|(_, n)| n.is_dir());
    let dirs: Vec<NodeId> = all
        .map(|(id, _)| id)
        .filter(|id| (1..=DEPTH).contains(&depth(*id)))
        .collect();
    let dir = dirs[random.below(dirs.len() as u64) as usize];
    let (n, long) = (random.below(12), random.one_in(6));
    let name = match dir {
        dir if dir == state.shared() => format!("w{}-{n}", state.writer),
        // Long ones, so that small directories have several leaves too.
        _ if long => format!("{n}{}", "long".repeat(n as usize * 5)),
        _ => format!("n{n}"),
    };
    (dir, name.into_bytes())
}

fn rename(state: &State, (parent, name, source): Name<'_>, random: &mut Random) -> Option<Call> {
    let model = &state.model;
    let (new_parent, new_name) = some_name(state, random);
    let target = model.child(new_parent, &new_name);
    let is_dir = |id| model.node(id).is_dir();
    // No directory goes into itself, nor over one that has entries.
    if is_dir(source) && model.is_above(source, new_parent) {
        return None;
    }
    let mut flags = RenameFlags::default();
    match target {
        None => flags.noreplace = random.one_in(3),
        Some(target) if random.one_in(2) => {
            if is_dir(target) && model.is_above(target, parent) {
                return None;
            }
            flags.exchange = true;
        }
        Some(target) => {
            let fits = match (is_dir(source), is_dir(target)) {
                (true, true) => target != source && model.is_empty(target),
                (a, b) => a == b,
            };
            if !fits || is_dir(target) && model.is_above(target, parent) {
                return None;
            }
        }
    }
    let (ctx, name) = (Credentials::ROOT, name.to_vec());
    Some(Call::Rename {
        ctx,
        parent,
        name,
        new_parent,
        new_name,
        flags,
    })
}

/// Within the file, at its end, or a little past it.
fn offset(n: &Node, random: &mut Random) -> u64 {
    let size = n.size();
    let offset = match random.below(6) {
        0 => size,
        1 => size + random.below(9000),
        2 => random.below(48) * 4096,
        _ => random.below(size + 1),
    };
    offset.min(SIZE - 1)
}

fn bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let usual = match random.below(5) {
        0 => 64,
        1 => 4096,
        2 => 9000,
        3 => 40_000,
        _ => 150_000,
    };
    let mut new = vec![0; random.below(most.min(usual) + 1) as usize];
    random.fill(&mut new);
    new
}

fn xattr_name(random: &mut Random) -> Vec<u8> {
    format!("user.x{}", random.below(5)).into_bytes()
}
