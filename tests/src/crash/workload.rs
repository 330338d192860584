//! Workloads: sequences of operations on a small tree, all of them up to a
//! length (the bounded black-box way of CrashMonkey's ACE).
//!
//! An operation names paths. Where a sequence has removed what it needs, the
//! operation does not apply, and the sequence is left out; where a name exists
//! already, it is refused, and a refused operation must change nothing.

use pramfs::Access;
use pramfs::{
    Fallocate, RenameFlags, XattrMode,
    inode::{Credentials, Fs, Gathered, Ino, LeaseMode, SetAttr, SetTime, Time, Vacated},
};

use super::leased;
use super::state::Promise;
use crate::model::{Body, Call, Follower, Make, NodeId, nodes_of};

/// One step of an operation.
#[derive(Debug, Clone)]
pub enum Action {
    /// A call of the engine.
    Call(Call),
    /// A store through a view of a file, and its `persist`.
    Map {
        /// The file.
        node: NodeId,
        /// Where in the file.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
        /// Whether `persist` follows; otherwise the stores may be lost.
        persist: bool,
    },
    /// A new label.
    Label(&'static str),
    /// Everything that is free goes back to the host.
    Trim,
    /// The first part of a file is moved into blocks that follow each other.
    Gather {
        /// The file.
        node: NodeId,
    },
    /// What a file has in the leaf of its last block is moved elsewhere.
    Vacate {
        /// The file.
        node: NodeId,
    },
    /// A process gets a lease of a file, and holds it.
    Lease {
        /// The file.
        node: NodeId,
        /// What the process may do.
        mode: LeaseMode,
    },
    /// The holder of a lease to write stores to blocks of the file, and makes that durable.
    Store {
        /// The file.
        node: NodeId,
        /// Where in the file.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// The same, past the end of the file: the holder still has blocks in its view that a
    /// truncation has cut off.
    StoreToCut {
        /// The file.
        node: NodeId,
        /// How many bytes from the end on, as far as there are blocks.
        len: u64,
    },
    /// The server opens an append window for the holder of a lease to write.
    OpenWindow {
        /// The file.
        node: NodeId,
        /// Room for so many bytes.
        bytes: u64,
    },
    /// The holder appends in its window. Refused if it has none, or no room.
    Append {
        /// The file.
        node: NodeId,
        /// What.
        bytes: Vec<u8>,
    },
    /// Processes that hold leases have ended, and the engine finds that out.
    EndLeases {
        /// One lease of this file; `None`: all leases of all files.
        node: Option<NodeId>,
    },
    /// A clean unmount, and the next mount. The leases stay.
    Remount,
}

impl Action {
    /// The call that has the same effect in the model; `None` for what is no
    /// matter of names and files.
    pub fn as_call(&self) -> Option<Call> {
        Some(match self {
            Action::Label(_)
            | Action::Trim
            | Action::Gather { .. }
            | Action::Vacate { .. }
            | Action::Lease { .. }
            | Action::StoreToCut { .. }
            | Action::OpenWindow { .. }
            | Action::Append { .. }
            | Action::EndLeases { .. }
            | Action::Remount => return None,
            Action::Call(c) => c.clone(),
            Action::Map {
                node,
                offset,
                bytes,
                ..
            }
            | Action::Store {
                node,
                offset,
                bytes,
            } => Call::Write {
                node: *node,
                offset: Some(*offset),
                bytes: bytes.clone(),
            },
        })
    }

    /// Whether the nodes that it uses exist.
    pub fn applies(&self, f: &Follower) -> bool {
        let exist = |call: &Call| nodes_of(call).iter().all(|id| f.model.get(*id).is_some());
        self.as_call().is_none_or(|call| exist(&call))
    }

    /// Whether the engine changes bytes of a file, by an operation that may be atomic.
    pub fn changes_data_by_engine(&self) -> bool {
        let Action::Call(call) = self else {
            return false;
        };
        match call {
            Call::Write { .. } | Call::Copy { .. } => true,
            Call::Fallocate { what, .. } => !matches!(what, Fallocate::Allocate { .. }),
            _ => false,
        }
    }

    /// What a crash in it may leave.
    pub fn promise(&self, f: &Follower) -> Promise {
        let data = |node: &NodeId, from: u64, len: u64| Promise::Data {
            ino: f.ino(*node),
            range: from..from.saturating_add(len),
        };
        let size = |node: &NodeId| f.model.node(*node).size();
        // A chain of records allocates the blocks, from the one that holds the end.
        if let Action::OpenWindow { node, bytes } = self {
            let from = size(node).saturating_sub(MOST_BLOCK);
            return data(node, from, bytes + 2 * MOST_BLOCK);
        }
        match self.as_call() {
            Some(Call::Write {
                node,
                offset,
                bytes,
            }) => data(&node, offset.unwrap_or(size(&node)), bytes.len() as u64),
            Some(
                Call::Fallocate {
                    node, offset, len, ..
                }
                | Call::Copy {
                    node, offset, len, ..
                },
            ) => data(&node, offset, len),
            _ => Promise::Atomic,
        }
    }
}

/// The largest block of a fixture.
const MOST_BLOCK: u64 = 4096;

/// An operation of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// Its name, by which reports call it.
    pub name: &'static str,
    /// Changes names and attributes, not the bytes of files.
    pub metadata: bool,
    /// Stores through a view, which needs blocks of 4096 bytes.
    pub map: bool,
    /// Leaves so many lines uncertain that it is not explored with others.
    pub wide: bool,
    /// What it stores is not durable when it returns, and never: it is the last
    /// of its sequence.
    pub lossy: bool,
    pub(super) steps: fn(&Follower) -> Option<Vec<Action>>,
}

impl Op {
    /// What it does now; `None` where it does not apply.
    pub fn actions(&self, f: &Follower) -> Option<Vec<Action>> {
        (self.steps)(f)
    }
}

const CX: Credentials<'_> = Credentials::new(0, 0);

/// Directory and name of a path.
fn place(f: &Follower, path: &str) -> Option<(NodeId, Vec<u8>)> {
    let (dir, name) = path.rsplit_once('/')?;
    let id = f.find(dir)?;
    let is_dir = matches!(f.model.node(id).body, Body::Dir { .. });
    is_dir.then(|| (id, name.as_bytes().to_vec()))
}

pub(super) fn file(f: &Follower, path: &str) -> Option<NodeId> {
    let id = f.find(path)?;
    matches!(f.model.node(id).body, Body::File { .. }).then_some(id)
}

fn one(c: Call) -> Option<Vec<Action>> {
    Some(vec![Action::Call(c)])
}

pub(super) fn make(f: &Follower, path: &str, what: Make) -> Option<Vec<Action>> {
    let (parent, name) = place(f, path)?;
    one(Call::Make {
        ctx: CX,
        parent,
        name,
        what,
        pin: false,
    })
}

pub(super) fn link(f: &Follower, path: &str, new: &str) -> Option<Vec<Action>> {
    let (parent, name) = place(f, new)?;
    let node = file(f, path)?;
    one(Call::Link { node, parent, name })
}

fn unlink(f: &Follower, path: &str) -> Option<Vec<Action>> {
    let (parent, name) = place(f, path)?;
    one(Call::Unlink { parent, name })
}

fn rmdir(f: &Follower, path: &str) -> Option<Vec<Action>> {
    let (parent, name) = place(f, path)?;
    one(Call::Rmdir { parent, name })
}

const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};
const NOREPLACE: RenameFlags = RenameFlags {
    noreplace: true,
    ..PLAIN
};
const EXCHANGE: RenameFlags = RenameFlags {
    exchange: true,
    ..PLAIN
};
const WHITEOUT: RenameFlags = RenameFlags {
    whiteout: true,
    ..PLAIN
};

fn rename(f: &Follower, from: &str, to: &str, flags: RenameFlags) -> Option<Vec<Action>> {
    let (parent, name) = place(f, from)?;
    let (new_parent, new_name) = place(f, to)?;
    one(Call::Rename {
        ctx: CX,
        parent,
        name,
        new_parent,
        new_name,
        flags,
    })
}

fn set(f: &Follower, path: &str, set: SetAttr) -> Option<Vec<Action>> {
    let node = f.find(path)?;
    one(Call::SetAttr { node, set })
}

pub(super) fn truncate(f: &Follower, path: &str, size: u64) -> Option<Vec<Action>> {
    file(f, path)?;
    set(
        f,
        path,
        SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
    )
}

/// Bytes of which no two words are alike.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let word = |i: usize| [seed, i as u8, (i >> 8) as u8, 0x5a, seed, !(i as u8), 1, 2];
    (0..len).map(|i| word(i / 8)[i % 8]).collect()
}

pub(super) fn write(f: &Follower, path: &str, at: Option<u64>, len: usize) -> Option<Vec<Action>> {
    one(Call::Write {
        node: file(f, path)?,
        offset: at,
        bytes: pattern(0xc0, len),
    })
}

pub(super) fn fallocate(
    f: &Follower,
    path: &str,
    what: Fallocate,
    at: u64,
    len: u64,
) -> Option<Vec<Action>> {
    one(Call::Fallocate {
        node: file(f, path)?,
        what,
        offset: at,
        len,
    })
}

pub(super) fn setxattr(
    f: &Follower,
    path: &str,
    name: &str,
    len: usize,
    mode: XattrMode,
) -> Option<Vec<Action>> {
    one(Call::SetXattr {
        node: f.find(path)?,
        name: name.as_bytes().to_vec(),
        value: pattern(0xd0, len),
        mode,
    })
}

fn removexattr(f: &Follower, path: &str, name: &str) -> Option<Vec<Action>> {
    one(Call::RemoveXattr {
        node: f.find(path)?,
        name: name.as_bytes().to_vec(),
    })
}

/// A list that names user 9 and allows what the mode says.
pub(super) fn setacl(f: &Follower, path: &str, which: &str, mode: u32) -> Option<Vec<Action>> {
    let digit = |shift: u32| (mode >> shift & 7) as u8;
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in [
        (1, digit(6), u32::MAX),
        (2, 7, 9),
        (4, 5, u32::MAX),
        (16, digit(3), u32::MAX),
        (32, digit(0), u32::MAX),
    ] {
        value.extend([tag, 0, perm, 0]);
        value.extend(u32::to_le_bytes(id));
    }
    one(Call::SetXattr {
        node: f.find(path)?,
        name: format!("system.posix_acl_{which}").into_bytes(),
        value,
        mode: XattrMode::Set,
    })
}

/// From the beginning of a file.
fn copy(f: &Follower, path: &str, to: &str, offset: u64, len: u64) -> Option<Vec<Action>> {
    one(Call::Copy {
        from: file(f, path)?,
        at: 0,
        node: file(f, to)?,
        offset,
        len,
    })
}

/// Unlink while it is open, then close.
fn unlink_open(f: &Follower, path: &str) -> Option<Vec<Action>> {
    let node = file(f, path)?;
    let mut steps = vec![Action::Call(Call::Pin { node })];
    steps.extend(unlink(f, path)?);
    steps.push(Action::Call(Call::Unpin { node }));
    Some(steps)
}

/// A file that is made without a name in a directory, and written; it gets the name `to`, if
/// any, and is closed.
fn unnamed(f: &Follower, dir: &str, len: usize, to: Option<&str>) -> Option<Vec<Action>> {
    let (parent, _) = place(f, &format!("{dir}/any"))?;
    let node = f.model.next_id();
    let mut calls = vec![
        Call::MakeUnnamed {
            ctx: CX,
            parent,
            perm: 0o640,
            linkable: true,
        },
        Call::Write {
            node,
            offset: Some(0),
            bytes: pattern(0xc8, len),
        },
    ];
    if let Some(to) = to {
        let (parent, name) = place(f, to)?;
        calls.push(Call::Link { node, parent, name });
    }
    calls.push(Call::Unpin { node });
    Some(calls.into_iter().map(Action::Call).collect())
}

pub(super) fn map(
    f: &Follower,
    path: &str,
    at: u64,
    len: usize,
    persist: bool,
) -> Option<Vec<Action>> {
    let node = file(f, path)?;
    (f.model.node(node).size() >= at + len as u64).then(|| {
        vec![Action::Map {
            node,
            offset: at,
            bytes: pattern(0xe0, len),
            persist,
        }]
    })
}

pub(super) const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };
pub(super) const GROW: Fallocate = Fallocate::Allocate { keep_size: false };
const ZERO: Fallocate = Fallocate::ZeroRange { keep_size: false };
const ZERO_KEEP: Fallocate = Fallocate::ZeroRange { keep_size: true };
pub(super) const PUNCH: Fallocate = Fallocate::PunchHole;

/// All operations.
pub fn ops() -> Vec<Op> {
    macro_rules! table {
        ($($class:ident $name:literal = |$f:ident| $body:expr;)*) => {
            vec![$(Op {
                name: $name,
                metadata: stringify!($class) == "meta",
                map: matches!(stringify!($class), "mapped" | "lossy"),
                wide: stringify!($class) == "wide",
                lossy: stringify!($class) == "lossy",
                steps: |$f| $body,
            }),*]
        };
    }
    table! {
        meta "create /A/new" = |f| make(f, "/A/new", Make::File { perm: 0o640 });
        meta "create /B/long" = |f| make(f, "/B/a-name-that-takes-much-of-a-leaf-of-its-own", Make::File { perm: 0o600 });
        meta "mkdir /A/dir" = |f| make(f, "/A/dir", Make::Dir { perm: 0o750 });
        meta "mkdir /B/sub" = |f| make(f, "/B/sub", Make::Dir { perm: 0o755 });
        meta "mknod /B/pipe" = |f| make(f, "/B/pipe", Make::Node { mode: libc::S_IFIFO | 0o600, rdev: 0 });
        meta "mknod /A/dev" = |f| make(f, "/A/dev", Make::Node { mode: libc::S_IFCHR | 0o620, rdev: 0x0105 });
        meta "symlink /A/sym" = |f| make(f, "/A/sym", Make::Symlink { target: b"../foo".to_vec() });
        meta "symlink /B/long target" = |f| make(f, "/B/longsym", Make::Symlink { target: vec![b't'; 200] });
        meta "link /A/bar /B/bar" = |f| link(f, "/A/bar", "/B/bar");
        meta "link /foo /A/foo2" = |f| link(f, "/foo", "/A/foo2");
        meta "unlink /foo (two names)" = |f| unlink(f, "/foo");
        meta "unlink /A/foo" = |f| unlink(f, "/A/foo");
        meta "unlink /A/bar (empty)" = |f| unlink(f, "/A/bar");
        meta "rmdir /A/sub" = |f| rmdir(f, "/A/sub");
        meta "rmdir /B" = |f| rmdir(f, "/B");
        meta "rename /A/bar /A/baz" = |f| rename(f, "/A/bar", "/A/baz", PLAIN);
        meta "rename /A/bar /A/foo (over)" = |f| rename(f, "/A/bar", "/A/foo", PLAIN);
        meta "rename /A/foo /B/foo" = |f| rename(f, "/A/foo", "/B/foo", PLAIN);
        meta "rename /A/sub /B/sub" = |f| rename(f, "/A/sub", "/B/sub", PLAIN);
        meta "rename /A/sub /B (over)" = |f| rename(f, "/A/sub", "/B", PLAIN);
        meta "rename noreplace /A/bar /foo" = |f| rename(f, "/A/bar", "/foo", NOREPLACE);
        meta "rename noreplace /A/bar /B/n" = |f| rename(f, "/A/bar", "/B/n", NOREPLACE);
        meta "rename exchange /A/foo /A/bar" = |f| rename(f, "/A/foo", "/A/bar", EXCHANGE);
        meta "rename exchange /A/sub /foo" = |f| rename(f, "/A/sub", "/foo", EXCHANGE);
        meta "rename whiteout /A/bar /B/w" = |f| rename(f, "/A/bar", "/B/w", WHITEOUT);
        meta "truncate /foo 512" = |f| truncate(f, "/foo", 512);
        meta "truncate /foo 777" = |f| truncate(f, "/foo", 777);
        meta "truncate /A/foo 0" = |f| truncate(f, "/A/foo", 0);
        meta "truncate /foo 3000 (longer)" = |f| truncate(f, "/foo", 3000);
        meta "setxattr /A/bar small" = |f| setxattr(f, "/A/bar", "user.small", 20, XattrMode::Create);
        meta "setxattr /foo replace" = |f| setxattr(f, "/foo", "user.small", 31, XattrMode::Replace);
        meta "setxattr /A/foo large" = |f| setxattr(f, "/A/foo", "user.large", 900, XattrMode::Set);
        meta "setxattr /foo large" = |f| setxattr(f, "/foo", "user.large", 1500, XattrMode::Set);
        meta "setxattr /foo large to small" = |f| setxattr(f, "/foo", "user.large", 8, XattrMode::Set);
        meta "removexattr /foo small" = |f| removexattr(f, "/foo", "user.small");
        meta "removexattr /foo large" = |f| removexattr(f, "/foo", "user.large");
        meta "chmod /foo" = |f| set(f, "/foo", SetAttr { perm: Some(0o4711), ..SetAttr::default() });
        meta "setfacl /A/bar" = |f| setacl(f, "/A/bar", "access", 0o700);
        meta "setfacl -b /foo" = |f| removexattr(f, "/foo", "system.posix_acl_access");
        meta "setfacl -d /A" = |f| setacl(f, "/A", "default", 0o770);
        meta "chmod /A" = |f| set(f, "/A", SetAttr { perm: Some(0o2770), ..SetAttr::default() });
        meta "chown /foo" = |f| set(f, "/foo", SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() });
        meta "truncate and chmod /foo" = |f| set(f, "/foo", SetAttr { size: Some(400), perm: Some(0o750), ..SetAttr::default() });
        meta "chattr +d +A /A" = |f| set(f, "/A", SetAttr { flags: Some(0x40 | 0x80), ..SetAttr::default() });
        meta "chattr +i /A/bar" = |f| set(f, "/A/bar", SetAttr { flags: Some(0x10), ..SetAttr::default() });
        meta "label" = |_f| Some(vec![Action::Label("another")]);
        wide "trim" = |_f| Some(vec![Action::Trim]);
        meta "utimes /A/bar" = |f| {
            let t = SetTime::At(Time { sec: -5, nsec: 999_999_999 });
            set(f, "/A/bar", SetAttr { atime: Some(t), mtime: Some(t), ..SetAttr::default() })
        };
        meta "unlink /A/foo open, close" = |f| unlink_open(f, "/A/foo");
        data "create unnamed in /A, write, link to /B/named, close" = |f| unnamed(f, "/A", 900, Some("/B/named"));
        data "create unnamed in /A, write, close" = |f| unnamed(f, "/A", 300, None);
        data "write /foo 8 at 512" = |f| write(f, "/foo", Some(512), 8);
        data "write /foo 300 at 411 (unaligned)" = |f| write(f, "/foo", Some(411), 300);
        data "write /foo 700 at 1000 (spanning)" = |f| write(f, "/foo", Some(1000), 700);
        data "write /A/foo 90 at 5000 (hole)" = |f| write(f, "/A/foo", Some(5000), 90);
        data "write /A/bar 600 (empty)" = |f| write(f, "/A/bar", Some(0), 600);
        data "append /foo 500" = |f| write(f, "/foo", None, 500);
        data "append /A/foo 700 (preallocated)" = |f| write(f, "/A/foo", None, 700);
        data "fallocate /A/bar" = |f| fallocate(f, "/A/bar", GROW, 100, 1500);
        data "fallocate keep /foo" = |f| fallocate(f, "/foo", KEEP, 1000, 2000);
        data "punch /foo" = |f| fallocate(f, "/foo", PUNCH, 300, 800);
        data "zero /foo" = |f| fallocate(f, "/foo", ZERO, 700, 1100);
        data "zero keep /A/foo" = |f| fallocate(f, "/A/foo", ZERO_KEEP, 200, 1200);
        data "copy /foo to /A/bar" = |f| copy(f, "/foo", "/A/bar", 100, 1300);
        data "copy /A/foo into /foo" = |f| copy(f, "/A/foo", "/foo", 200, 600);
        data "append /foo 500, gather it" = |f| {
            let node = file(f, "/foo")?;
            let mut actions = write(f, "/foo", None, 500)?;
            actions.push(Action::Gather { node });
            Some(actions)
        };
        data "append /foo 500, vacate it" = |f| {
            let node = file(f, "/foo")?;
            let mut actions = write(f, "/foo", None, 500)?;
            actions.push(Action::Vacate { node });
            Some(actions)
        };
        data "fsync /foo" = |f| one(Call::Fsync { node: file(f, "/foo")? });
        mapped "map /foo, store, persist" = |f| map(f, "/foo", 100, 300, true);
        lossy "map /foo, store" = |f| map(f, "/foo", 600, 64, false);
    }
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

/// A sequence of operations, each with the lane of the thread that runs it.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Indices into [`ops`] with lanes.
    pub steps: Vec<(usize, u32)>,
}

impl Workload {
    /// The workload of a name.
    ///
    /// # Errors
    /// What of the name is no operation.
    pub fn parse(name: &str, ops: &[Op]) -> Result<Workload, String> {
        let step = |text: &str| {
            let (op, lane) = match text.trim().rsplit_once(" [lane ") {
                Some((op, lane)) => (op, lane.trim_end_matches(']').parse()),
                None => (text.trim(), Ok(0)),
            };
            let lane = lane.map_err(|e| format!("the lane in \"{text}\": {e}"))?;
            let found = ops.iter().position(|o| o.name == op);
            let op = found.ok_or_else(|| {
                let names: Vec<_> = ops.iter().map(|o| o.name).collect();
                format!(
                    "there is no operation \"{op}\"; there are:\n{}",
                    names.join("\n")
                )
            })?;
            Ok((op, lane))
        };
        let steps = name.split(';').map(step).collect::<Result<_, String>>()?;
        Ok(Workload { steps })
    }

    /// Its name: what runs, and on which lane.
    pub fn name(&self, ops: &[Op]) -> String {
        let step = |(op, lane): &(usize, u32)| format!("{} [lane {lane}]", ops[*op].name);
        self.steps.iter().map(step).collect::<Vec<_>>().join("; ")
    }
}

/// All sequences of a length of the operations that `pick` chooses; each on one
/// lane, and, if `lanes`, each with every operation on another lane than the
/// one before it.
pub fn sequences(
    ops: &[Op],
    length: usize,
    lanes: bool,
    pick: &dyn Fn(&Op) -> bool,
) -> Vec<Workload> {
    let chosen: Vec<usize> = (0..ops.len()).filter(|i| pick(&ops[*i])).collect();
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..length {
        all = all
            .iter()
            .flat_map(|s| chosen.iter().map(|op| [&s[..], &[*op]].concat()))
            .collect();
    }
    let mut out = Vec::new();
    let at_end = |s: &&Vec<usize>| s[..length - 1].iter().all(|op| !ops[*op].lossy);
    for s in all.iter().filter(at_end) {
        let on = |alternate: u32| Workload {
            steps: (0u32..)
                .zip(s)
                .map(|(i, op)| (*op, i % 2 * alternate))
                .collect(),
        };
        out.push(on(0));
        if lanes && length > 1 {
            out.push(on(1));
        }
    }
    out
}

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
