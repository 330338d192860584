//! What a file system shows of the writers' files, and what it should.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use pramfs::FileType;

use super::is_death;
use super::state::{Body, OWN, SHARED, State};
use crate::stress::Target;

/// The directory that all share.
pub const COMMON: &[u8] = b"common";

/// The name of a writer's directory; with a dash, the beginning of its names
/// in the shared one.
pub fn home(writer: u32) -> Vec<u8> {
    format!("w{writer}").into_bytes()
}

/// What is under a name.
#[derive(Debug, Clone, Eq)]
pub struct Thing {
    kind: FileType,
    /// 0 for a symbolic link.
    perm: u32,
    /// Where it is known.
    mtime: Option<i64>,
    /// The first of its names; of a directory, which has one, nothing.
    first: Vec<u8>,
    pub(super) data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl PartialEq for Thing {
    fn eq(&self, other: &Thing) -> bool {
        let times = match (self.mtime, other.mtime) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        times
            && (self.kind, self.perm, &self.first) == (other.kind, other.perm, &other.first)
            && self.xattrs == other.xattrs
            && self.data == other.data
    }
}

/// Everything by path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found(pub(super) BTreeMap<Vec<u8>, Thing>);

/// Why a file system could not be looked at.
#[derive(Debug)]
pub struct Blind {
    /// Because its server is gone.
    pub died: bool,
    /// In words.
    pub what: String,
}

impl Found {
    /// What a writer's state says.
    pub fn of(state: &State, writer: u32) -> Found {
        let own = [b"/", &home(writer)[..]].concat();
        let shared = [b"/", COMMON].concat();
        let mut paths = vec![(own.clone(), OWN)];
        gather(state, OWN, &own, &mut paths);
        // The directory itself is nobody's.
        gather(state, SHARED, &shared, &mut paths);
        let mut first: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (path, id) in &paths {
            let least = first.entry(*id).or_insert_with(|| path.clone());
            *least = path.min(least).clone();
        }
        let things = paths.into_iter().map(|(path, id)| {
            let thing = thing(state, id, &first[&id]);
            (path, thing)
        });
        Found(things.collect())
    }

    /// What a file system shows: everything, or one writer's.
    ///
    /// # Errors
    /// What cannot be read, and link counts that do not fit the names.
    pub fn see<D: Target>(access: &D, writer: Option<u32>) -> Result<Found, Blind> {
        let mut out = BTreeMap::new();
        let mut names: BTreeMap<u64, (Vec<u8>, u64, u64)> = BTreeMap::new();
        let mut of_path = BTreeMap::new();
        let blind = |path: &[u8], e: i32| Blind {
            died: is_death(access, e),
            what: format!("{}: errno {e}", path.escape_ascii()),
        };
        let root = access.root().map_err(|e| blind(b"/", e))?;
        let mut left = vec![(Vec::new(), root)];
        while let Some((path, dir)) = left.pop() {
            let mut directories = 0;
            for name in access.list(&dir).map_err(|e| blind(&path, e))? {
                let path = [&path[..], b"/", &name].concat();
                if writer.is_some_and(|w| !is_for(&path, w)) {
                    continue;
                }
                let blind = |e| blind(&path, e);
                let node = access.lookup(&dir, &name).map_err(blind)?;
                let about = access.about(&node).map_err(blind)?;
                let data = match about.kind {
                    FileType::Regular => {
                        let mut bytes = vec![0; about.size as usize];
                        let n = access.read(&node, 0, &mut bytes).map_err(blind)?;
                        bytes.truncate(n);
                        bytes
                    }
                    FileType::Symlink => access.readlink(&node).map_err(blind)?,
                    _ => Vec::new(),
                };
                let mut xattrs = BTreeMap::new();
                if matches!(about.kind, FileType::Regular | FileType::Directory) {
                    for name in access.list_xattrs(&node).map_err(blind)? {
                        let value = access.get_xattr(&node, &name).map_err(blind)?;
                        xattrs.insert(name, value);
                    }
                }
                let link = about.kind == FileType::Symlink;
                let thing = Thing {
                    kind: about.kind,
                    perm: if link { 0 } else { about.perm },
                    mtime: Some(about.mtime),
                    first: Vec::new(),
                    data,
                    xattrs,
                };
                out.insert(path.clone(), thing);
                if about.kind == FileType::Directory {
                    directories += 1;
                    left.push((path, node));
                } else {
                    let name = names
                        .entry(about.id)
                        .or_insert_with(|| (path.clone(), 0, about.nlink));
                    name.0 = name.0.clone().min(path.clone());
                    name.1 += 1;
                    of_path.insert(path, about.id);
                }
            }
            let nlink = access.about(&dir).map_err(|e| blind(&path, e))?.nlink;
            // Of a part of a tree they cannot be told.
            if writer.is_none() && nlink != directories + 2 {
                return Err(Blind {
                    died: false,
                    what: format!(
                        "{}/: {nlink} links with {directories} directories in it",
                        path.escape_ascii()
                    ),
                });
            }
        }
        if let Some((path, found, nlink)) = names.values().find(|(_, n, nlink)| n != nlink) {
            return Err(Blind {
                died: false,
                what: format!("{}: {nlink} links and {found} names", path.escape_ascii()),
            });
        }
        for (path, id) in of_path {
            let thing = out.get_mut(&path).expect("a path that was entered");
            thing.first.clone_from(&names[&id].0);
        }
        // Nobody's, and no part of what a writer finds.
        out.remove(&[b"/", COMMON].concat());
        Ok(Found(out))
    }

    /// Takes out what is a writer's.
    pub fn take(&mut self, writer: u32) -> Found {
        let all = std::mem::take(&mut self.0).into_iter();
        let (own, others) = all.partition(|(path, _)| is_of(path, writer));
        self.0 = others;
        Found(own)
    }

    /// In words, what `found` has that is not as here.
    pub fn differences(&self, found: &Found) -> String {
        let mut out = String::new();
        for (path, is) in &found.0 {
            let shown = path.escape_ascii();
            match self.0.get(path) {
                Some(thing) if thing == is => {}
                Some(thing) => {
                    let _ = writeln!(out, "  {shown}: {}\n    is: {}", brief(thing), brief(is));
                    for range in different(&thing.data, &is.data) {
                        let shown = range.start..range.end.min(range.start + 8);
                        let _ = writeln!(
                            out,
                            "    bytes {range:?} differ: {:02x?}, is: {:02x?}{}",
                            &thing.data[shown.clone()],
                            &is.data[shown],
                            if is.data[range.clone()].iter().all(|b| *b == 0) {
                                ", all zero"
                            } else {
                                ""
                            }
                        );
                    }
                }
                None => {
                    let _ = writeln!(out, "  {shown}: is there: {}", brief(is));
                }
            }
        }
        for (path, thing) in &self.0 {
            if !found.0.contains_key(path) {
                let _ = writeln!(
                    out,
                    "  {}: is missing: {}",
                    path.escape_ascii(),
                    brief(thing)
                );
            }
        }
        out
    }

    /// In words, all that there is.
    pub fn differences_from_nothing(&self) -> String {
        Found::default().differences(self)
    }
}

/// The ranges in which the common part of two contents differs. Equal bytes between
/// different ones count as different, up to seven.
fn different(a: &[u8], b: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for at in (0..a.len().min(b.len())).filter(|i| a[*i] != b[*i]) {
        match ranges.last_mut() {
            Some(last) if at < last.end + 8 => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

fn brief(t: &Thing) -> String {
    let xattrs: Vec<_> = t
        .xattrs
        .iter()
        .map(|(n, v)| (n.escape_ascii().to_string(), v.len()))
        .collect();
    format!(
        "{:?} {:o} mtime {:?} data {} crc {:08x} first name {} xattrs {xattrs:?}",
        t.kind,
        t.perm,
        t.mtime,
        t.data.len(),
        crc32c::crc32c(&t.data),
        t.first.escape_ascii(),
    )
}

/// Whether a path is a writer's.
fn is_of(path: &[u8], writer: u32) -> bool {
    let rest = path.strip_prefix(b"/").unwrap_or_default();
    let shared = rest.strip_prefix(COMMON).and_then(|r| r.strip_prefix(b"/"));
    let (part, end) = match shared {
        Some(name) => (name, b'-'),
        None => (rest, b'/'),
    };
    part.strip_prefix(&home(writer)[..])
        .is_some_and(|rest| match rest.first() {
            Some(next) => *next == end,
            None => shared.is_none(),
        })
}

/// Whether a path is a writer's or leads to what is.
fn is_for(path: &[u8], writer: u32) -> bool {
    path == [b"/", COMMON].concat() || is_of(path, writer)
}

fn thing(state: &State, id: u32, first: &[u8]) -> Thing {
    let node = state.node(id);
    let (kind, data) = match &node.body {
        Body::Dir(_) => (FileType::Directory, Vec::new()),
        Body::File(bytes) => (FileType::Regular, bytes.clone()),
        Body::Symlink(target) => (FileType::Symlink, target.clone()),
        Body::Fifo => (FileType::Fifo, Vec::new()),
    };
    let has_names = kind != FileType::Directory;
    Thing {
        kind,
        perm: if kind == FileType::Symlink {
            0
        } else {
            node.perm
        },
        mtime: node.mtime,
        first: if has_names {
            first.to_vec()
        } else {
            Vec::new()
        },
        data,
        xattrs: node.xattrs.clone(),
    }
}

/// All paths below a directory.
fn gather(state: &State, dir: u32, path: &[u8], out: &mut Vec<(Vec<u8>, u32)>) {
    for (name, id) in state.entries(dir) {
        let path = [path, b"/", name].concat();
        out.push((path.clone(), *id));
        if matches!(state.node(*id).body, Body::Dir(_)) {
            gather(state, *id, &path, out);
        }
    }
}

/// The path of a name of the state.
pub fn path(state: &State, (dir, name): &(u32, Vec<u8>), writer: u32) -> Vec<u8> {
    let mut path = [b"/", &name[..]].concat();
    let mut dir = *dir;
    while let Some((up, name)) = state.parent(dir) {
        path = [b"/", &name[..], &path].concat();
        dir = up;
    }
    let root = if dir == OWN {
        home(writer)
    } else {
        COMMON.to_vec()
    };
    [b"/", &root[..], &path].concat()
}
