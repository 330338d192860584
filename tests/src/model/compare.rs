//! The engine's side: carrying calls out, and comparing a whole tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use pramfs::{
    Error, SeekWhence,
    inode::{Attr, Credentials, Fs, Ino, InodeRef, Taken},
};

use super::state::{Body, Call, Make, Model, NodeId, ROOT, Value};

/// What differs, for people.
pub(super) type Differs<T = ()> = Result<T, String>;

/// Which node is which inode.
#[derive(Debug, Clone, Default)]
pub(super) struct Ids {
    inodes: BTreeMap<NodeId, Ino>,
    /// Every inode number with its generation that was ever given.
    seen: BTreeSet<(u64, u64)>,
}

impl Ids {
    pub(super) fn root() -> Ids {
        Ids {
            inodes: BTreeMap::from([(ROOT, Ino::ROOT)]),
            seen: BTreeSet::new(),
        }
    }

    pub(super) fn ino(&self, id: NodeId) -> Ino {
        self.inodes[&id]
    }

    /// Notes a new inode.
    pub(super) fn made(&mut self, id: NodeId, attr: &Attr) -> Differs {
        self.inodes.insert(id, attr.ino);
        match self.seen.insert((attr.ino.0, attr.generation)) {
            true => Ok(()),
            false => Err(format!(
                "{} was given generation {} twice",
                attr.ino, attr.generation
            )),
        }
    }
}

/// What the engine gave.
#[derive(Debug)]
pub(super) enum Answer {
    Unit,
    Attr(Box<Attr>),
    Bytes(Vec<u8>),
    Count(u64),
    Names(BTreeMap<Vec<u8>, Ino>),
    Attributes(Vec<Vec<u8>>),
}

/// Carries a call out on the engine.
pub(super) fn call(fs: &Fs, ids: &Ids, call: &Call) -> pramfs::Result<Answer> {
    let ino = |id: &NodeId| ids.ino(*id);
    let attr = |a: Attr| Answer::Attr(Box::new(a));
    let counted = |(held, a): (InodeRef, Attr)| {
        held.into_count();
        a
    };
    Ok(match call {
        Call::Make {
            ctx,
            parent,
            name,
            what,
            pin,
        } => {
            let p = ino(parent);
            attr(match (what, pin) {
                (Make::File { perm }, false) => fs.create(ctx, p, name, *perm)?,
                (Make::File { perm }, true) => counted(fs.holding().create(ctx, p, name, *perm)?),
                (Make::Dir { perm }, false) => fs.mkdir(ctx, p, name, *perm)?,
                (Make::Dir { perm }, true) => counted(fs.holding().mkdir(ctx, p, name, *perm)?),
                (Make::Node { mode, rdev }, false) => fs.mknod(ctx, p, name, *mode, *rdev)?,
                (Make::Node { mode, rdev }, true) => {
                    counted(fs.holding().mknod(ctx, p, name, *mode, *rdev)?)
                }
                (Make::Symlink { target }, false) => fs.symlink(ctx, p, name, target)?,
                (Make::Symlink { target }, true) => {
                    counted(fs.holding().symlink(ctx, p, name, target)?)
                }
            })
        }
        Call::MakeUnnamed {
            ctx,
            parent,
            perm,
            linkable,
        } => {
            let made = fs
                .holding()
                .create_unnamed(ctx, ino(parent), *perm, *linkable)?;
            attr(counted(made))
        }
        Call::Link { node, parent, name } => attr(fs.link(ino(node), ino(parent), name)?),
        Call::Unlink { parent, name } => fs.unlink(ino(parent), name).map(|()| Answer::Unit)?,
        Call::Rmdir { parent, name } => fs.rmdir(ino(parent), name).map(|()| Answer::Unit)?,
        Call::Rename {
            ctx,
            parent,
            name,
            new_parent,
            new_name,
            flags,
        } => fs
            .rename(ctx, ino(parent), name, ino(new_parent), new_name, *flags)
            .map(|()| Answer::Unit)?,
        Call::Lookup { parent, name } => {
            drop(fs.holding().lookup(ino(parent), name)?);
            attr(fs.lookup(ino(parent), name)?)
        }
        Call::GetAttr { node } => attr(fs.getattr(ino(node))?),
        Call::SetAttr { node, set } => attr(fs.setattr(&Credentials::ROOT, ino(node), set)?),
        Call::Read { node, offset, len } => {
            let mut buf = vec![0xee; *len];
            let n = fs.read(ino(node), *offset, &mut buf)?;
            buf.truncate(n);
            Answer::Bytes(buf)
        }
        Call::Write {
            node,
            offset: Some(at),
            bytes,
        } => Answer::Count(fs.write(&Credentials::ROOT, ino(node), *at, bytes)? as u64),
        Call::Write {
            node,
            offset: None,
            bytes,
        } => Answer::Count(fs.append(&Credentials::ROOT, ino(node), bytes)?),
        Call::Copy {
            from,
            at,
            node,
            offset,
            len,
        } => Answer::Count(fs.copy_range(
            &Credentials::ROOT,
            (ino(from), *at),
            (ino(node), *offset),
            *len,
        )?),
        Call::Fallocate {
            node,
            what,
            offset,
            len,
        } => fs
            .fallocate(&Credentials::ROOT, ino(node), *what, *offset, *len)
            .map(|()| Answer::Unit)?,
        Call::Seek {
            node,
            offset,
            whence,
        } => Answer::Count(fs.seek(ino(node), *offset, *whence)?),
        Call::Readlink { node } => Answer::Bytes(fs.readlink(ino(node))?),
        Call::Readdir { node, chunk } => Answer::Names(read_dir(fs, ino(node), *chunk)?),
        Call::GetXattr { node, name } => Answer::Bytes(fs.getxattr(ino(node), name)?),
        Call::SetXattr {
            node,
            name,
            value,
            mode,
        } => fs
            .setxattr(&Credentials::ROOT, ino(node), name, value, *mode)
            .map(|()| Answer::Unit)?,
        Call::ListXattr { node } => Answer::Attributes(attributes(&fs.listxattr(ino(node))?)),
        Call::RemoveXattr { node, name } => {
            fs.removexattr(ino(node), name).map(|()| Answer::Unit)?
        }
        Call::StripSuid { node } => fs.strip_suid(ino(node)).map(|()| Answer::Unit)?,
        Call::Pin { node } => {
            fs.hold(ino(node)).into_count();
            Answer::Unit
        }
        Call::Unpin { node } => {
            fs.release(ino(node), 1);
            Answer::Unit
        }
        Call::Fsync { node } => fs.fsync(ino(node), false).map(|()| Answer::Unit)?,
    })
}

fn attributes(list: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = list
        .split_inclusive(|b| *b == 0)
        .map(|n| n[..n.len() - 1].to_vec())
        .collect();
    names.sort();
    names
}

/// All entries but `.` and `..`, so many for each call, by both ways of reading
/// a directory. Entries given twice are an error.
fn read_dir(fs: &Fs, dir: Ino, chunk: usize) -> pramfs::Result<BTreeMap<Vec<u8>, Ino>> {
    let bad = |what: &str, name: &[u8]| {
        Error::io(format!("{dir}: readdir: {what}: {}", name.escape_ascii()))
    };
    let mut plain: Vec<(Vec<u8>, Ino, u64)> = Vec::new();
    let mut cookie = 0;
    loop {
        let before = plain.len();
        fs.readdir(dir, cookie, &mut |e| {
            plain.push((e.name.to_vec(), e.ino, e.cookie));
            if plain.len() - before == chunk {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        match plain.last() {
            Some(last) if plain.len() > before => cookie = last.2,
            _ => break,
        }
    }
    let mut pinned: Vec<(Vec<u8>, Ino, u64)> = Vec::new();
    let mut kinds = Vec::new();
    let mut cookie = 0;
    loop {
        let before = pinned.len();
        fs.holding().readdir(dir, cookie, &mut |e, attr| {
            if pinned.len() - before == chunk {
                return Taken::Full;
            }
            kinds.push(attr.is_some_and(|attr| e.kind == attr.kind && e.ino == attr.ino));
            pinned.push((e.name.to_vec(), e.ino, e.cookie));
            Taken::Kept
        })?;
        if pinned.len() == before {
            break;
        }
        cookie = pinned.last().map_or(0, |l| l.2);
    }
    if plain != pinned || kinds.contains(&false) {
        return Err(bad("it differs from readdir with attributes", b""));
    }
    if plain.iter().take(2).map(|e| &e.0[..]).collect::<Vec<_>>() != [&b"."[..], b".."] {
        return Err(bad("the first two entries are not . and ..", b""));
    }
    let mut out = BTreeMap::new();
    for (name, ino, _) in plain.into_iter().skip(2) {
        if out.insert(name.clone(), ino).is_some() {
            return Err(bad("a name came twice", &name));
        }
    }
    Ok(out)
}

/// Compares the attributes of an inode with a node.
pub(super) fn compare_attr(model: &Model, ids: &Ids, id: NodeId, a: &Attr) -> Differs {
    let n = model.node(id);
    let got = (
        a.ino, a.kind, a.perm, a.uid, a.gid, a.nlink, a.size, a.rdev, a.flags,
    );
    let expected = (
        ids.ino(id),
        n.kind(),
        n.perm,
        n.uid,
        n.gid,
        n.nlink,
        n.size(),
        n.rdev(),
        n.flags,
    );
    if got != expected {
        return Err(format!(
            "attributes of node {id} (ino, kind, perm, uid, gid, nlink, size, rdev, flags):\n  engine {got:?}\n   model {expected:?}"
        ));
    }
    let got = [a.atime, a.mtime, a.ctime, a.btime];
    let expected = [n.atime, n.mtime, n.ctime, n.btime];
    if got != expected {
        return Err(format!(
            "times of node {id}, {} (atime, mtime, ctime, btime):\n  engine {got:?}\n   model {expected:?}",
            a.ino
        ));
    }
    Ok(())
}

/// Compares an answer with what the model gives.
pub(super) fn compare(
    model: &Model,
    ids: &Ids,
    call: &Call,
    answer: &Answer,
    value: &Value,
) -> Differs {
    let same = match (answer, value) {
        (Answer::Unit, Value::Unit) => true,
        (Answer::Attr(a), Value::Node(id)) => return compare_attr(model, ids, *id, a),
        (Answer::Bytes(a), Value::Bytes(v)) => {
            if a != v {
                let at = a
                    .iter()
                    .zip(v)
                    .position(|(x, y)| x != y)
                    .unwrap_or(a.len().min(v.len()));
                return Err(format!(
                    "{} bytes instead of {}; byte {at} is the first that differs",
                    a.len(),
                    v.len()
                ));
            }
            true
        }
        (Answer::Count(a), Value::Count(v)) => a == v,
        (Answer::Names(a), Value::Names(v)) => {
            a.keys().eq(v.keys()) && a.values().copied().eq(v.values().map(|id| ids.ino(*id)))
        }
        (Answer::Attributes(a), Value::Attributes(v)) => a == v,
        (Answer::Count(a), Value::Unit) => return compare_seek(model, call, *a),
        _ => false,
    };
    if same {
        Ok(())
    } else {
        Err(format!("the engine gave {answer:?}, the model {value:?}"))
    }
}

/// Where a seek ended: nothing that is set lies in what it called a hole.
pub(super) fn compare_seek(model: &Model, call: &Call, at: u64) -> Differs {
    let Call::Seek {
        node,
        offset,
        whence,
    } = call
    else {
        return Err("a count that nothing asked for".into());
    };
    let Body::File { size, bytes } = &model.node(*node).body else {
        return Err("not a file".into());
    };
    let ok = match whence {
        SeekWhence::Data => at >= *offset && at < *size && bytes.first_set(*offset, at).is_none(),
        SeekWhence::Hole => at >= *offset && at <= *size && (at == *size || bytes.byte(at) == 0),
    };
    if ok {
        Ok(())
    } else {
        Err(format!(
            "{whence:?} from {offset} gave {at} in a file of {size} bytes"
        ))
    }
}

/// Whether a seek may find nothing.
pub(super) fn no_data(model: &Model, call: &Call) -> bool {
    match call {
        Call::Seek {
            node,
            offset,
            whence: SeekWhence::Data,
        } => match &model.node(*node).body {
            Body::File { size, bytes } => bytes.first_set(*offset, *size).is_none(),
            _ => false,
        },
        _ => false,
    }
}

/// How times are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    /// They are those of the model.
    Exact,
    /// After a crash: those of the last overwrites may be older. The model
    /// takes over what is found.
    MayLag,
}

/// Compares everything.
pub(super) fn compare_tree(fs: &Fs, model: &mut Model, ids: &Ids, times: Times) -> Differs {
    let mut owned: Vec<(u64, u64, NodeId)> = Vec::new();
    let all: Vec<NodeId> = model.nodes().map(|(id, _)| id).collect();
    for id in all {
        let what = |e: Error| format!("node {id}, {}: {e}", ids.ino(id));
        let attr = fs.getattr(ids.ino(id)).map_err(what)?;
        if times == Times::MayLag {
            take_times(model, id, &attr)?;
        }
        compare_attr(model, ids, id, &attr)?;
        let n = model.node(id);
        match &n.body {
            Body::Dir { entries, parent } => {
                let found = read_dir(fs, attr.ino, 50).map_err(what)?;
                compare(
                    model,
                    ids,
                    &Call::GetAttr { node: id },
                    &Answer::Names(found),
                    &Value::Names(entries.clone()),
                )
                .map_err(|e| format!("entries of node {id}: {e}"))?;
                for (name, child) in entries {
                    let a = fs.lookup(attr.ino, name).map_err(what)?;
                    if a.ino != ids.ino(*child) {
                        return Err(format!(
                            "node {id}: {} leads to {}",
                            name.escape_ascii(),
                            a.ino
                        ));
                    }
                }
                if n.nlink > 0 && fs.lookup(attr.ino, b"..").map_err(what)?.ino != ids.ino(*parent)
                {
                    return Err(format!("node {id}: .. leads elsewhere"));
                }
            }
            Body::File { size, .. } => {
                compare_file(fs, model, id, attr.ino, *size)?;
                let mut at = 0;
                for e in fs.file_extents(attr.ino, 0, u64::MAX).map_err(what)? {
                    if e.file_offset != at || e.len == 0 {
                        return Err(format!(
                            "node {id}: the extents do not follow each other: {e:?}, expected {at}"
                        ));
                    }
                    at += e.len;
                    if let Some(r) = e.region_offset {
                        owned.push((r, e.len, id));
                    }
                }
                if at != *size {
                    return Err(format!("node {id}: the extents end at {at}, not at {size}"));
                }
            }
            Body::Symlink(target) => {
                if fs.readlink(attr.ino).map_err(what)? != *target {
                    return Err(format!("node {id}: the target differs"));
                }
            }
            Body::Special { .. } => {}
        }
        if n.xattrs.keys().map(|k| k.len() + 1).sum::<usize>() <= 65_536 {
            let names = attributes(&fs.listxattr(attr.ino).map_err(what)?);
            if !names.iter().eq(n.xattrs.keys()) {
                return Err(format!("node {id}: extended attributes {names:?}"));
            }
        }
        for (name, value) in &n.xattrs {
            if fs.getxattr(attr.ino, name).map_err(what)? != *value {
                return Err(format!(
                    "node {id}: the value of {} differs",
                    name.escape_ascii()
                ));
            }
        }
    }
    owned.sort_unstable();
    for pair in owned.windows(2) {
        if pair[0].0 + pair[0].1 > pair[1].0 {
            return Err(format!(
                "two files own the same bytes: (offset, bytes, node) {pair:?}"
            ));
        }
    }
    Ok(())
}

fn take_times(model: &mut Model, id: NodeId, a: &Attr) -> Differs {
    let n = model.node(id);
    let mut allowed = n.older_times.clone();
    allowed.push((n.mtime, n.ctime));
    if !allowed.contains(&(a.mtime, a.ctime)) {
        return Err(format!(
            "after the crash {} has mtime and ctime {:?}, {:?}; allowed: {allowed:?}",
            a.ino, a.mtime, a.ctime
        ));
    }
    model.set_times(id, a.mtime, a.ctime);
    Ok(())
}

/// Compares the contents of a file: pieces that the model has, and everything
/// that the engine calls data.
fn compare_file(fs: &Fs, model: &Model, id: NodeId, ino: Ino, size: u64) -> Differs {
    let Body::File { bytes, .. } = &model.node(id).body else {
        return Ok(());
    };
    let what = |e: Error| format!("contents of node {id}, {ino}: {e}");
    let check = |at: u64, len: u64| -> Differs {
        let len = len.min(size.saturating_sub(at)) as usize;
        let (mut got, mut expected) = (vec![0xee; len], vec![0; len]);
        let n = fs.read(ino, at, &mut got).map_err(what)?;
        bytes.read(at, &mut expected);
        if n != len {
            return Err(format!("node {id}: {n} of {len} bytes were read at {at}"));
        }
        match got.iter().zip(&expected).position(|(a, b)| a != b) {
            Some(i) => Err(format!(
                "node {id}, {ino}: byte {} is {:#x} instead of {:#x}",
                at + i as u64,
                got[i],
                expected[i]
            )),
            None => Ok(()),
        }
    };
    for (at, piece) in bytes.pieces() {
        if at < size {
            check(at, piece.len() as u64)?;
        }
    }
    let mut at = 0;
    while at < size {
        at = match fs.seek(ino, at, SeekWhence::Data) {
            Ok(at) => at,
            Err(Error::NoSuchAddress(_)) => break,
            Err(e) => return Err(what(e)),
        };
        let end = fs.seek(ino, at, SeekWhence::Hole).map_err(what)?;
        if end <= at {
            return Err(format!("node {id}: a hole at {end} ends data at {at}"));
        }
        while at < end {
            check(at, (end - at).min(1 << 20))?;
            at += (end - at).min(1 << 20);
        }
    }
    Ok(())
}
