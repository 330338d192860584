//! The expected contents of a file system, and their comparison with the real ones.
//!
//! The rule for damage: an object that the damage cannot affect is unchanged; an object
//! that it may affect is unchanged, or the call reports damage. No read returns bytes
//! that were never written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use pramfs::{
    Error, FileType, Result,
    inode::{Attr, Credentials, Fs, Ino},
};

use super::anatomy::Reach;

/// Contents of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A file: its size, and its nonzero pieces by offset.
    File(u64, Vec<(u64, Vec<u8>)>),
    /// A directory: names of its entries.
    Dir(BTreeSet<Vec<u8>>),
    /// A symbolic link.
    Link(Vec<u8>),
    /// A device, pipe or socket.
    Special(FileType, u64),
}

/// One inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub body: Body,
    pub perm: u32,
    pub nlink: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One name: directory, name in it, inode.
pub type Name = (Ino, Vec<u8>, Ino);

/// A whole file system.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub objects: BTreeMap<Ino, Object>,
    /// Parents before children.
    pub names: Vec<Name>,
}

impl Model {
    /// Reads everything of an undamaged file system.
    pub fn of(fs: &Fs) -> Result<Model> {
        let mut model = Model::default();
        let mut todo = vec![Ino::ROOT];
        while let Some(dir) = todo.pop() {
            let mut names = BTreeSet::new();
            for (name, ino) in entries(fs, dir)? {
                let attr = fs.lookup(dir, &name)?;
                assert_eq!(attr.ino, ino, "readdir and lookup name the same inode");
                if attr.kind == FileType::Directory {
                    todo.push(ino);
                } else if let Entry::Vacant(e) = model.objects.entry(ino) {
                    e.insert(object(fs, &attr)?);
                }
                names.insert(name.clone());
                model.names.push((dir, name, ino));
            }
            let mut o = object(fs, &fs.getattr(dir)?)?;
            o.body = Body::Dir(names);
            model.objects.insert(dir, o);
        }
        Ok(model)
    }

    /// The inodes on the path to an object by one of its names, itself included.
    fn on_the_way(&self, (dir, _, ino): &Name) -> Vec<Ino> {
        let mut way = vec![*ino, *dir];
        let mut at = *dir;
        while at != Ino::ROOT {
            let up = self.names.iter().find(|(_, _, i)| *i == at);
            at = up.expect("every directory has a name").0;
            way.push(at);
        }
        way
    }

    /// Compares. Affected objects may report damage, the others may not.
    pub fn compare(&self, fs: &Fs, reach: &Reach) -> Result<(), String> {
        let root = &self.objects[&Ino::ROOT];
        let hit = reach.hits(&[Ino::ROOT]);
        self.compare_object(fs, Ino::ROOT, root, hit, reach.hits_xattrs(Ino::ROOT))?;
        let mut seen = BTreeSet::new();
        for name in &self.names {
            let (dir, text, ino) = name;
            let hit = reach.hits(&self.on_the_way(name));
            let what = || format!("{:?} in {dir}", String::from_utf8_lossy(text));
            let Some(attr) = or_damaged(fs.lookup(*dir, text), hit, what)? else {
                continue;
            };
            if attr.ino != *ino {
                return Err(format!("{} is {}, not {ino}", what(), attr.ino));
            }
            if seen.insert(*ino) {
                let xattrs_hit = hit || reach.hits_xattrs(*ino);
                self.compare_object(fs, *ino, &self.objects[ino], hit, xattrs_hit)?;
            }
        }
        Ok(())
    }

    /// Compares one inode, whatever its names.
    pub fn compare_object(
        &self,
        fs: &Fs,
        ino: Ino,
        o: &Object,
        hit: bool,
        xattrs_hit: bool,
    ) -> Result<(), String> {
        let what = || format!("{ino}");
        let Some(attr) = or_damaged(fs.getattr(ino), hit, what)? else {
            return Ok(());
        };
        if (attr.perm, attr.nlink) != (o.perm, o.nlink) {
            return Err(format!(
                "{ino}: mode {:o} and {} links, not {:o} and {}",
                attr.perm, attr.nlink, o.perm, o.nlink
            ));
        }
        match &o.body {
            Body::Dir(names) => {
                let Some(found) = or_damaged(entries(fs, ino), hit, what)? else {
                    return self.compare_xattrs(fs, ino, o, xattrs_hit);
                };
                let found: BTreeSet<_> = found.into_iter().map(|(name, _)| name).collect();
                if found != *names {
                    return Err(format!("{ino}: the directory has other entries"));
                }
            }
            Body::File(size, parts) => {
                if attr.kind != FileType::Regular || attr.size != *size {
                    return Err(format!("{ino}: {} bytes, not {size}", attr.size));
                }
                compare_bytes(fs, ino, *size, parts, hit)?;
            }
            Body::Link(target) => {
                let found = or_damaged(fs.readlink(ino), hit, what)?;
                if found.is_some_and(|t| t != *target) {
                    return Err(format!("{ino}: another target"));
                }
            }
            Body::Special(kind, rdev) => {
                if (attr.kind, attr.rdev) != (*kind, *rdev) {
                    return Err(format!("{ino}: another device"));
                }
            }
        }
        self.compare_xattrs(fs, ino, o, xattrs_hit)
    }

    fn compare_xattrs(&self, fs: &Fs, ino: Ino, o: &Object, hit: bool) -> Result<(), String> {
        let what = || format!("attributes of {ino}");
        if let Some(list) = or_damaged(fs.listxattr(ino), hit, what)? {
            let names: BTreeSet<_> = list.split_inclusive(|&b| b == 0).collect();
            let wanted: Vec<_> = o.xattrs.keys().map(|n| [&n[..], b"\0"].concat()).collect();
            if names != wanted.iter().map(|n| &n[..]).collect() {
                return Err(format!("{}: other names", what()));
            }
        }
        for (name, value) in &o.xattrs {
            let found = or_damaged(fs.getxattr(ino, name), hit, what)?;
            if found.is_some_and(|v| v != *value) {
                return Err(format!("{}: another value", what()));
            }
        }
        Ok(())
    }

    /// Records that bytes of a file were written.
    pub fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) {
        let o = self
            .objects
            .get_mut(&ino)
            .expect("the file is in the model");
        let Body::File(size, parts) = &mut o.body else {
            panic!("only files are written")
        };
        *size = (*size).max(offset + bytes.len() as u64);
        parts.push((offset, bytes.to_vec()));
    }
}

/// The answer, or `None` if damage may have affected the object and the call reports it.
fn or_damaged<T>(
    result: Result<T>,
    hit: bool,
    what: impl Fn() -> String,
) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt { .. }) if hit => Ok(None),
        Err(e) => Err(format!("{}: {e}", what())),
    }
}

/// Names and inodes of a directory, without `.` and `..`.
pub fn entries(fs: &Fs, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
    let mut all = Vec::new();
    fs.readdir(dir, 2, &mut |e| {
        all.push((e.name.to_vec(), e.ino));
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(all)
}

fn object(fs: &Fs, attr: &Attr) -> Result<Object> {
    let ino = attr.ino;
    let body = match attr.kind {
        FileType::Regular => {
            let mut parts = Vec::new();
            for e in fs.file_extents(ino, 0, u64::MAX)? {
                if e.region_offset.is_some() && !e.unwritten {
                    let mut bytes = vec![0; e.len as usize];
                    assert_eq!(fs.read(ino, e.file_offset, &mut bytes)?, bytes.len());
                    parts.push((e.file_offset, bytes));
                }
            }
            Body::File(attr.size, parts)
        }
        FileType::Directory => Body::Dir(BTreeSet::new()),
        FileType::Symlink => Body::Link(fs.readlink(ino)?),
        kind => Body::Special(kind, attr.rdev),
    };
    let mut xattrs = BTreeMap::new();
    for name in fs
        .listxattr(ino)?
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
    {
        xattrs.insert(name.to_vec(), fs.getxattr(ino, name)?);
    }
    Ok(Object {
        body,
        perm: attr.perm,
        nlink: attr.nlink,
        xattrs,
    })
}

/// Bytes compared around each piece, and at the end of the file, to check that holes are
/// still holes.
const AROUND: u64 = 700;

fn compare_bytes(
    fs: &Fs,
    ino: Ino,
    size: u64,
    parts: &[(u64, Vec<u8>)],
    hit: bool,
) -> Result<(), String> {
    let mut ranges: Vec<(u64, u64)> = parts
        .iter()
        .map(|(at, bytes)| {
            (
                at.saturating_sub(AROUND),
                (at + bytes.len() as u64 + AROUND).min(size),
            )
        })
        .collect();
    ranges.push((size.saturating_sub(AROUND), size));
    for (from, to) in ranges {
        let mut want = vec![0; (to - from) as usize];
        for (at, bytes) in parts {
            let (a, b) = ((*at).max(from), (at + bytes.len() as u64).min(to));
            if a < b {
                want[(a - from) as usize..(b - from) as usize]
                    .copy_from_slice(&bytes[(a - at) as usize..(b - at) as usize]);
            }
        }
        let mut found = vec![0xaa; want.len()];
        let what = || format!("{ino}, bytes {from} to {to}");
        match or_damaged(fs.read(ino, from, &mut found), hit, what)? {
            Some(n) if n == found.len() && found == want => {}
            Some(_) => return Err(format!("{}: other bytes than were written", what())),
            None => {}
        }
    }
    Ok(())
}

/// The caller in these tests.
pub const CX: Credentials<'_> = Credentials::new(0, 0);
