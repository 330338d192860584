//! The actions of operations, with nodes in place of paths. `None` where a path names none.

use pramfs::inode::{Credentials, SetAttr};
use pramfs::{Fallocate, RenameFlags, XattrMode};

use super::action::Action;
use crate::model::{Body, Call, Follower, Make, NodeId};

pub(super) const CX: Credentials<'_> = Credentials::new(0, 0);

/// Directory and name of a path.
pub(super) fn place(f: &Follower, path: &str) -> Option<(NodeId, Vec<u8>)> {
    let (dir, name) = path.rsplit_once('/')?;
    let id = f.find(dir)?;
    let is_dir = matches!(f.model.node(id).body, Body::Dir { .. });
    is_dir.then(|| (id, name.as_bytes().to_vec()))
}

pub(super) fn file(f: &Follower, path: &str) -> Option<NodeId> {
    let id = f.find(path)?;
    matches!(f.model.node(id).body, Body::File { .. }).then_some(id)
}

pub(super) fn one(c: Call) -> Option<Vec<Action>> {
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

pub(super) fn unlink(f: &Follower, path: &str) -> Option<Vec<Action>> {
    let (parent, name) = place(f, path)?;
    one(Call::Unlink { parent, name })
}

pub(super) fn rmdir(f: &Follower, path: &str) -> Option<Vec<Action>> {
    let (parent, name) = place(f, path)?;
    one(Call::Rmdir { parent, name })
}

pub(super) const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};
pub(super) const NOREPLACE: RenameFlags = RenameFlags {
    noreplace: true,
    ..PLAIN
};
pub(super) const EXCHANGE: RenameFlags = RenameFlags {
    exchange: true,
    ..PLAIN
};
pub(super) const WHITEOUT: RenameFlags = RenameFlags {
    whiteout: true,
    ..PLAIN
};

pub(super) fn rename(
    f: &Follower,
    from: &str,
    to: &str,
    flags: RenameFlags,
) -> Option<Vec<Action>> {
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

pub(super) fn set(f: &Follower, path: &str, set: SetAttr) -> Option<Vec<Action>> {
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

pub(super) fn removexattr(f: &Follower, path: &str, name: &str) -> Option<Vec<Action>> {
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
pub(super) fn copy(
    f: &Follower,
    path: &str,
    to: &str,
    offset: u64,
    len: u64,
) -> Option<Vec<Action>> {
    one(Call::Copy {
        from: file(f, path)?,
        at: 0,
        node: file(f, to)?,
        offset,
        len,
    })
}

/// Unlink while it is open, then close.
pub(super) fn unlink_open(f: &Follower, path: &str) -> Option<Vec<Action>> {
    let node = file(f, path)?;
    let mut steps = vec![Action::Call(Call::Pin { node })];
    steps.extend(unlink(f, path)?);
    steps.push(Action::Call(Call::Unpin { node }));
    Some(steps)
}

/// A file that is made without a name in a directory, and written; it gets the name `to`, if
/// any, and is closed.
pub(super) fn unnamed(
    f: &Follower,
    dir: &str,
    len: usize,
    to: Option<&str>,
) -> Option<Vec<Action>> {
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
pub(super) const ZERO: Fallocate = Fallocate::ZeroRange { keep_size: false };
pub(super) const ZERO_KEEP: Fallocate = Fallocate::ZeroRange { keep_size: true };
pub(super) const PUNCH: Fallocate = Fallocate::PunchHole;
