//! Operations of a writer: which comes next, what it changes, how it is done.

use pramfs::{Fallocate, RenameFlags, XattrMode};

use super::found::{COMMON, home};
use super::state::{Body, Node, OWN, SHARED, State};
use crate::random::Random;
use crate::stress::Target;
use crate::syscalls::Sys;

/// Inodes of a writer, at most.
const NODES: usize = 40;
/// Bytes of a file, at most.
pub(super) const SIZE: u64 = 192 << 10;
/// Directories above a name, at most.
const DEPTH: usize = 4;
/// Files without a name that a writer keeps open.
const HELD: usize = 3;

/// A name in a directory of the state.
pub type Name = (u32, Vec<u8>);

/// An operation.
#[derive(Debug, Clone)]
pub enum Op {
    Create(Name),
    Mkdir(Name),
    Fifo(Name),
    Symlink(Name, Vec<u8>),
    Link(Name, Name),
    /// With true the file stays open, and is written to once more.
    Unlink(Name, bool),
    Rmdir(Name),
    Rename(Name, Name, RenameFlags),
    Write(Name, u64, Bytes),
    Append(Name, Bytes),
    /// Words through a mapping, and a persist.
    Store(Name, u64, Bytes),
    Truncate(Name, u64),
    Fallocate(Name, Fallocate, u64, u64),
    Chmod(Name, u32),
    Utimes(Name, i64),
    SetXattr(Name, Vec<u8>, Bytes),
    RemoveXattr(Name, Vec<u8>),
    Fsync(Name),
}

/// Bytes, of which a message shows only how many there are.
#[derive(Clone)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Op {
    /// The operation that follows from the state and the generator.
    pub fn next(state: &State, writer: u32, random: &mut Random) -> Op {
        loop {
            if let Some(op) = Op::draw(state, writer, random) {
                return op;
            }
        }
    }

    /// One that can be done, or none.
    fn draw(state: &State, writer: u32, random: &mut Random) -> Option<Op> {
        let names: Vec<Name> = state.names().map(|(d, n, _)| (d, n.clone())).collect();
        let any = |random: &mut Random| names.get(random.below(names.len() as u64) as usize);
        let is = |name: &Name, wanted: fn(&Body) -> bool| wanted(&at(state, name).body);
        let of = |random: &mut Random, wanted: fn(&Body) -> bool| {
            any(random).filter(|n| is(n, wanted)).cloned()
        };
        let file: fn(&Body) -> bool = |b| matches!(b, Body::File(_));
        let dir: fn(&Body) -> bool = |b| matches!(b, Body::Dir(_));
        let not_dir: fn(&Body) -> bool = |b| !matches!(b, Body::Dir(_));
        let with_xattrs: fn(&Body) -> bool = |b| matches!(b, Body::File(_) | Body::Dir(_));
        let full = state.nodes.len() >= NODES;
        Some(match random.below(32) {
            0..=2 if !full => Op::Create(new_name(state, writer, random)?),
            3 if !full => Op::Mkdir(new_name(state, writer, random)?),
            4 if !full && random.one_in(3) => Op::Fifo(new_name(state, writer, random)?),
            4 if !full => {
                let most = if random.one_in(3) { 1000 } else { 96 };
                let len = 1 + random.below(most);
                Op::Symlink(new_name(state, writer, random)?, vec![b't'; len as usize])
            }
            5 => Op::Link(of(random, not_dir)?, new_name(state, writer, random)?),
            6 | 7 => Op::Unlink(of(random, not_dir)?, random.one_in(3)),
            8 => {
                let name = of(random, dir)?;
                let id = state.find(name.0, &name.1)?;
                state.entries(id).is_empty().then_some(Op::Rmdir(name))?
            }
            9..=12 => rename(state, writer, any(random)?.clone(), random)?,
            13..=17 => {
                let name = of(random, file)?;
                let offset = offset(state, &name, random);
                Op::Write(name, offset, bytes(random, SIZE - offset))
            }
            18 | 19 => {
                let name = of(random, file)?;
                let room = SIZE - contents(state, &name).len() as u64;
                Op::Append(name, bytes(random, room))
            }
            20 => {
                let name = of(random, file)?;
                let words = contents(state, &name).len() as u64 / 8;
                let from = random.below(words);
                let count = words.min(from + 1 + random.below(64)) - from;
                (count > 0).then(|| {
                    let mut new = vec![0; count as usize * 8];
                    random.fill(&mut new);
                    Op::Store(name, from * 8, Bytes(new))
                })?
            }
            21 | 22 => {
                let name = of(random, file)?;
                let size = offset(state, &name, random);
                Op::Truncate(name, size)
            }
            23 | 24 => {
                let name = of(random, file)?;
                let from = offset(state, &name, random);
                let len = 1 + random.below((SIZE - from).min(20_000));
                let what = match random.below(6) {
                    0 | 1 => Fallocate::PunchHole,
                    2 => Fallocate::ZeroRange { keep_size: false },
                    3 => Fallocate::ZeroRange { keep_size: true },
                    4 => Fallocate::Allocate { keep_size: false },
                    _ => Fallocate::Allocate { keep_size: true },
                };
                Op::Fallocate(name, what, from, len)
            }
            25 => Op::Chmod(
                of(random, |b| !matches!(b, Body::Symlink(_)))?,
                0o600 | random.below(0o200) as u32,
            ),
            26 => Op::Utimes(of(random, file)?, random.below(1 << 33) as i64),
            27 | 28 => {
                let name = of(random, with_xattrs)?;
                let most = if random.one_in(6) { 6000 } else { 200 };
                let value = bytes(random, most);
                Op::SetXattr(name, xattr_name(random), value)
            }
            29 => {
                let (name, xattr) = (of(random, with_xattrs)?, xattr_name(random));
                let there = at(state, &name).xattrs.contains_key(&xattr);
                there.then_some(Op::RemoveXattr(name, xattr))?
            }
            30 if random.one_in(4) => Op::Fsync(of(random, file)?),
            _ => return None,
        })
    }

    /// What the call answers when it has done all of it.
    pub fn whole(&self) -> i64 {
        match self {
            Op::Write(_, _, new) | Op::Append(_, new) | Op::Store(_, _, new) => new.0.len() as i64,
            _ => 0,
        }
    }

    /// The effect of a call that answered `returned`: less than zero is an
    /// error and changes nothing.
    pub fn apply(&self, state: &mut State, returned: i64) {
        let Ok(count) = usize::try_from(returned) else {
            return;
        };
        match self {
            Op::Create((d, n)) => state.add(*d, n, Node::new(Body::File(Vec::new()), 0o644)),
            Op::Mkdir((d, n)) => {
                state.add(*d, n, Node::new(Body::Dir(Default::default()), 0o755));
            }
            Op::Fifo((d, n)) => state.add(*d, n, Node::new(Body::Fifo, 0o600)),
            Op::Symlink((d, n), to) => {
                state.add(*d, n, Node::new(Body::Symlink(to.clone()), 0o777));
            }
            Op::Link(from, (d, n)) => {
                let id = state.find(from.0, &from.1);
                state.set(*d, n, id);
            }
            Op::Unlink((d, n), _) | Op::Rmdir((d, n)) => state.set(*d, n, None),
            Op::Rename((d, n), (to, new), flags) => {
                let (id, other) = (state.find(*d, n), state.find(*to, new));
                // Two names of one file: nothing happens.
                if id != other {
                    state.set(*d, n, if flags.exchange { other } else { None });
                    state.set(*to, new, id);
                }
            }
            Op::Write(name, offset, new) | Op::Store(name, offset, new) => {
                change(state, name, |old| put(old, *offset, &new.0[..count]));
            }
            Op::Append(name, new) => change(state, name, |old| old.extend(&new.0[..count])),
            Op::Truncate(name, size) => change(state, name, |old| old.resize(*size as usize, 0)),
            Op::Fallocate(name, what, from, len) => change(state, name, |old| {
                let (from, to) = (*from as usize, (*from + *len) as usize);
                let keeps = match what {
                    Fallocate::PunchHole => true,
                    Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
                        *keep_size
                    }
                };
                if !keeps && to > old.len() {
                    old.resize(to, 0);
                }
                if !matches!(what, Fallocate::Allocate { .. }) {
                    let end = old.len();
                    old[from.min(end)..to.min(end)].fill(0);
                }
            }),
            Op::Chmod(name, perm) => at_mut(state, name).perm = *perm,
            Op::Utimes(name, mtime) => at_mut(state, name).mtime = Some(*mtime),
            Op::SetXattr(name, xattr, value) => {
                let xattrs = &mut at_mut(state, name).xattrs;
                xattrs.insert(xattr.clone(), value.0.clone());
            }
            Op::RemoveXattr(name, xattr) => {
                at_mut(state, name).xattrs.remove(xattr);
            }
            Op::Fsync(_) => {}
        }
        state.forget_nameless();
    }

    /// Does it. The answer is that of the call.
    ///
    /// # Errors
    /// An errno.
    pub fn perform<D: Target>(
        &self,
        access: &D,
        state: &State,
        writer: u32,
        held: &mut Vec<D::Node>,
    ) -> Sys<i64> {
        let dir = |id| directory(access, state, writer, id);
        let node = |name: &Name| access.lookup(&dir(name.0)?, &name.1);
        match self {
            Op::Create((d, n)) => access.create(&dir(*d)?, n).map(drop),
            Op::Mkdir((d, n)) => access.mkdir(&dir(*d)?, n),
            Op::Fifo((d, n)) => access.mknod(&dir(*d)?, n, libc::S_IFIFO | 0o600),
            Op::Symlink((d, n), to) => access.symlink(&dir(*d)?, n, to),
            Op::Link(from, (d, n)) => access.link(&node(from)?, &dir(*d)?, n),
            Op::Unlink((d, n), hold) => {
                if !hold {
                    return access.unlink(&dir(*d)?, n).map(|()| 0);
                }
                let open = node(&(*d, n.clone()))?;
                access.unlink(&dir(*d)?, n)?;
                let is_file = matches!(at(state, &(*d, n.clone())).body, Body::File(_));
                let last = state
                    .names()
                    .filter(|x| Some(x.2) == state.find(*d, n))
                    .count()
                    == 1;
                if is_file && last {
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
            Op::Rmdir((d, n)) => access.rmdir(&dir(*d)?, n),
            Op::Rename((d, n), (to, new), flags) => {
                access.rename((&dir(*d)?, n), (&dir(*to)?, new), *flags)
            }
            Op::Store(name, offset, new) if D::VIEWS => {
                let words = new.0.as_chunks().0.iter().copied();
                let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
                match access.store(&node(name)?, *offset, &words, true) {
                    // A region with small blocks maps nothing, one on devdax only whole leaves of
                    // 2 MiB.
                    Err(libc::EINVAL | libc::EOPNOTSUPP) => {
                        return access
                            .write(&node(name)?, *offset, &new.0)
                            .map(|n| n as i64);
                    }
                    stored => stored?,
                }
                return Ok(self.whole());
            }
            // Through a mount a write has to do for a mapping.
            Op::Write(name, offset, new) | Op::Store(name, offset, new) => {
                return access
                    .write(&node(name)?, *offset, &new.0)
                    .map(|n| n as i64);
            }
            Op::Append(name, new) => {
                return access.append(&node(name)?, &new.0).map(|n| n as i64);
            }
            Op::Truncate(name, size) => access.truncate(&node(name)?, *size),
            Op::Fallocate(name, what, from, len) => {
                access.fallocate(&node(name)?, *what, *from, *len)
            }
            Op::Chmod(name, perm) => access.chmod(&node(name)?, *perm),
            Op::Utimes(name, mtime) => access.utimes(&node(name)?, *mtime),
            Op::SetXattr(name, xattr, value) => {
                access.set_xattr(&node(name)?, xattr, &value.0, XattrMode::Set)
            }
            Op::RemoveXattr(name, xattr) => access.remove_xattr(&node(name)?, xattr),
            Op::Fsync(name) => access.fsync(&node(name)?),
        }
        .map(|()| 0)
    }
}

fn at<'s>(state: &'s State, (dir, name): &Name) -> &'s Node {
    state.node(state.find(*dir, name).expect("a name of the state"))
}

fn at_mut<'s>(state: &'s mut State, (dir, name): &Name) -> &'s mut Node {
    let id = state.find(*dir, name).expect("a name of the state");
    state.nodes.get_mut(&id).expect("a node of the state")
}

/// The bytes of a regular file.
pub fn contents<'s>(state: &'s State, name: &Name) -> &'s [u8] {
    match &at(state, name).body {
        Body::File(bytes) => bytes,
        other => panic!("{other:?} is no file"),
    }
}

/// Changes the bytes of a regular file.
pub fn change(state: &mut State, name: &Name, how: impl FnOnce(&mut Vec<u8>)) {
    let node = at_mut(state, name);
    node.mtime = None;
    match &mut node.body {
        Body::File(bytes) => how(bytes),
        other => panic!("{other:?} is no file"),
    }
}

fn put(old: &mut Vec<u8>, offset: u64, new: &[u8]) {
    let (from, to) = (offset as usize, offset as usize + new.len());
    if to > old.len() && !new.is_empty() {
        old.resize(to, 0);
    }
    if !new.is_empty() {
        old[from..to].copy_from_slice(new);
    }
}

fn directory<D: Target>(access: &D, state: &State, writer: u32, id: u32) -> Sys<D::Node> {
    let name = match id {
        OWN => home(writer),
        SHARED => COMMON.to_vec(),
        id => {
            let (up, name) = state.parent(id).expect("a directory of the state");
            return access.lookup(&directory(access, state, writer, up)?, name);
        }
    };
    access.lookup(&access.root()?, &name)
}

/// A name that is not taken.
fn new_name(state: &State, writer: u32, random: &mut Random) -> Option<Name> {
    let name = some_name(state, writer, random);
    state.find(name.0, &name.1).is_none().then_some(name)
}

fn some_name(state: &State, writer: u32, random: &mut Random) -> Name {
    let depth = |mut id| {
        let mut depth = 0;
        while let Some((up, _)) = state.parent(id) {
            (id, depth) = (up, depth + 1);
        }
        depth
    };
    let dirs: Vec<u32> = state
        .nodes
        .iter()
        .filter(|(id, node)| matches!(node.body, Body::Dir(_)) && depth(**id) < DEPTH)
        .map(|(id, _)| *id)
        .collect();
    let dir = dirs[random.below(dirs.len() as u64) as usize];
    let (n, long) = (random.below(12), random.one_in(6));
    let name = match dir {
        SHARED => format!("w{writer}-{n}"),
        // Long ones, so that small directories have several leaves too.
        _ if long => format!("{n}{}", "long".repeat(n as usize * 5)),
        _ => format!("n{n}"),
    };
    (dir, name.into_bytes())
}

fn rename(state: &State, writer: u32, from: Name, random: &mut Random) -> Option<Op> {
    let to = some_name(state, writer, random);
    let source = state.find(from.0, &from.1)?;
    let target = state.find(to.0, &to.1);
    let is_dir = |id| matches!(state.node(id).body, Body::Dir(_));
    // No directory goes into itself, nor over one that has entries.
    if is_dir(source) && state.is_in(to.0, source) {
        return None;
    }
    let mut flags = RenameFlags::default();
    match target {
        None => flags.noreplace = random.one_in(3),
        Some(target) if random.one_in(2) => {
            if is_dir(target) && state.is_in(from.0, target) {
                return None;
            }
            flags.exchange = true;
        }
        Some(target) => {
            let fits = match (is_dir(source), is_dir(target)) {
                (true, true) => target != source && state.entries(target).is_empty(),
                (a, b) => a == b,
            };
            if !fits || state.is_in(from.0, target) && is_dir(target) {
                return None;
            }
        }
    }
    Some(Op::Rename(from, to, flags))
}

/// Within the file, at its end, or a little past it.
fn offset(state: &State, name: &Name, random: &mut Random) -> u64 {
    let size = contents(state, name).len() as u64;
    let offset = match random.below(6) {
        0 => size,
        1 => size + random.below(9000),
        2 => random.below(48) * 4096,
        _ => random.below(size + 1),
    };
    offset.min(SIZE - 1)
}

fn bytes(random: &mut Random, most: u64) -> Bytes {
    let usual = match random.below(5) {
        0 => 64,
        1 => 4096,
        2 => 9000,
        3 => 40_000,
        _ => 150_000,
    };
    let len = random.below(most.min(usual) + 1);
    let mut new = vec![0; len as usize];
    random.fill(&mut new);
    Bytes(new)
}

fn xattr_name(random: &mut Random) -> Vec<u8> {
    format!("user.x{}", random.below(5)).into_bytes()
}
