//! Taking a snapshot: every operation that reads is used, and what they say
//! must fit together.
//!
//! A strict one ends with the first error or contradiction. A lenient one, of a
//! damaged file system, notes what cannot be read and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use pramfs::{FileType, inode::Ino};

use super::source::{Entry, Source};
use super::{Node, Part, Snapshot, Sparse, join, split};

/// Why no snapshot can be taken.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Of the call that failed; EUCLEAN also of a contradiction.
    pub errno: i32,
    /// In words.
    pub what: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl From<pramfs::Error> for Trouble {
    fn from(e: pramfs::Error) -> Trouble {
        Trouble {
            errno: e.errno(),
            what: e.to_string(),
        }
    }
}

impl Trouble {
    /// Two answers of a file system that do not fit together.
    pub fn contradiction(what: impl Into<String>) -> Trouble {
        Trouble {
            errno: libc::EUCLEAN,
            what: what.into(),
        }
    }

    fn at(self, path: &[u8]) -> Trouble {
        Trouble {
            what: format!("{}: {}", path.escape_ascii(), self.what),
            ..self
        }
    }
}

/// Some paths.
pub type Paths<'a> = dyn Fn(&[u8]) -> bool + 'a;

/// What errors do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// The first ends it.
    End,
    /// Those of extended attributes are noted.
    InXattrs,
    /// All are noted, and contradictions are left to the comparison.
    Noted,
}

/// How a snapshot is taken; by default strictly, of everything.
#[derive(Clone, Copy)]
pub struct Take<'a> {
    /// Only of these paths, each of whose directories is among them.
    pub only: Option<&'a Paths<'a>>,
    /// What errors do.
    pub errors: Errors,
    /// What is expected: its names are looked up and its bytes read even where
    /// the file system does not show them by itself.
    pub guide: Option<&'a Snapshot>,
    /// Files up to this size are read whole, larger ones where they have data.
    pub whole: u64,
    /// Inodes that are held, with or without names, and paths for them. Those of
    /// directories do not begin with a slash: what is in them has another path.
    pub held: &'a [(Vec<u8>, Ino)],
    /// Free blocks, free inodes and the label. Asking for them makes the engine free what
    /// it can, so a test that records its stores does not ask.
    pub totals: bool,
}

impl Default for Take<'_> {
    fn default() -> Self {
        Take {
            only: None,
            errors: Errors::End,
            guide: None,
            whole: 64 << 20,
            held: &[],
            totals: true,
        }
    }
}

/// Bytes that are read at once.
const CHUNK: u64 = 1 << 20;
/// Bytes of a piece that cannot be read.
pub(super) const PIECE: u64 = 512;
/// Bytes that are read around a piece that is expected, in a file that is not
/// read whole, and at its end: holes must still be holes.
const AROUND: u64 = 1024;

type Result<T = ()> = std::result::Result<T, Trouble>;

impl Snapshot {
    /// Everything. Contradictions within what is read are errors.
    ///
    /// # Errors
    /// Those of the file system, and contradictions.
    pub fn of<S: Source>(source: &S) -> Result<Snapshot> {
        Snapshot::take(source, &Take::default())
    }

    /// As much as is asked for.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn take<S: Source>(source: &S, how: &Take<'_>) -> Result<Snapshot> {
        let mut walk = Walk {
            source,
            how,
            out: Snapshot::default(),
            links: BTreeMap::new(),
            walked: BTreeSet::new(),
            left: Vec::new(),
        };
        let root = source.root()?;
        walk.left.push(Step {
            handle: root,
            path: b"/".to_vec(),
            entry: None,
            parent: None,
        });
        for (path, ino) in how.held {
            if let Some(handle) = source.by_ino(*ino) {
                walk.left.push(Step {
                    handle,
                    path: path.clone(),
                    entry: None,
                    parent: None,
                });
            }
        }
        while let Some(step) = walk.left.pop() {
            walk.visit(step)?;
        }
        walk.finish()
    }
}

/// A name that is to be looked at.
struct Step<H> {
    handle: H,
    path: Vec<u8>,
    /// What readdir has said of it.
    entry: Option<(Ino, FileType)>,
    parent: Option<Ino>,
}

struct Walk<'a, S: Source> {
    source: &'a S,
    how: &'a Take<'a>,
    out: Snapshot,
    /// Of what is no directory: names found, and the link count.
    links: BTreeMap<Ino, (u32, u32)>,
    /// Directories that were read.
    walked: BTreeSet<Ino>,
    left: Vec<Step<S::Handle>>,
}

impl<S: Source> Walk<'_, S> {
    fn lenient(&self) -> bool {
        self.how.errors == Errors::Noted
    }

    fn notes(&self, part: &Part) -> bool {
        let xattrs = matches!(part, Part::XattrNames | Part::Xattr(_));
        self.lenient() || xattrs && self.how.errors == Errors::InXattrs
    }

    /// What was read, or nothing if it cannot be and that is noted.
    fn got<T>(&mut self, path: &[u8], part: Part, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(e) if self.notes(&part) => {
                self.out.unread.insert((path.to_vec(), part), e.errno);
                Ok(None)
            }
            Err(e) => Err(e.at(path)),
        }
    }

    /// Of a lenient one, contradictions are left to the comparison.
    fn must(&self, holds: bool, path: &[u8], what: impl FnOnce() -> String) -> Result {
        if holds || self.lenient() {
            Ok(())
        } else {
            Err(Trouble::contradiction(what()).at(path))
        }
    }

    fn expected(&self, path: &[u8]) -> Option<&Node> {
        self.how.guide.and_then(|g| g.nodes.get(path))
    }

    fn visit(&mut self, step: Step<S::Handle>) -> Result {
        let Step {
            handle,
            path,
            entry,
            parent,
        } = step;
        let attributes = self.source.attributes(&handle);
        let Some(mut n) = self.got(&path, Part::Node, attributes)? else {
            if self.expected(&path).is_some_and(Node::is_dir) {
                self.unlisted(&handle, &path, &BTreeSet::new(), false)?;
            }
            return Ok(());
        };
        if let Some(entry) = entry {
            self.must(entry == (n.id.0, n.kind), &path, || {
                format!("readdir shows {entry:?}, lookup {:?}", (n.id.0, n.kind))
            })?;
        }
        match n.kind {
            FileType::Directory => self.entries(&handle, &n, &path, parent)?,
            FileType::Regular => {
                n.data = self.contents(&handle, &path, n.size)?;
                if !self.lenient() {
                    let allocated = self.source.allocated(&handle, n.size);
                    n.allocated = allocated.map_err(|e| e.at(&path))?;
                }
            }
            FileType::Symlink => {
                let target = self.source.target(&handle);
                if let Some(target) = self.got(&path, Part::Target, target)? {
                    self.must(target.len() as u64 == n.size, &path, || {
                        format!("a target of {} bytes, not {}", target.len(), n.size)
                    })?;
                    n.data = Sparse::from(&target[..]);
                }
            }
            _ => {}
        }
        n.xattrs = self.xattrs(&handle, &path)?;
        if n.kind != FileType::Directory && path.starts_with(b"/") {
            self.links.entry(n.id.0).or_insert((0, n.nlink)).0 += 1;
        }
        let twice = self.out.nodes.insert(path.clone(), n).is_some();
        self.must(!twice, &path, || "it is listed twice".into())
    }

    fn entries(
        &mut self,
        handle: &S::Handle,
        dir: &Node,
        path: &[u8],
        parent: Option<Ino>,
    ) -> Result {
        let id = dir.id.0;
        let named = path.starts_with(b"/");
        if named && !self.walked.insert(id) {
            return self.must(false, path, || format!("{id} has two names"));
        }
        let mut list = Vec::new();
        let result = self.source.list(handle, &mut list);
        let whole = self.got(path, Part::Names, result)?.is_some();
        if !named {
            let empty = list.iter().all(|e| matches!(&e.name[..], b"." | b".."));
            return self.must(empty || dir.nlink > 0, path, || {
                "it is removed and has entries".into()
            });
        }
        let (mut names, mut directories) = (BTreeSet::new(), 0);
        for Entry { name, ino, kind } in list {
            if matches!(&name[..], b"." | b"..") {
                let up = if name == b"." { Some(id) } else { parent };
                self.dot(handle, path, &name, (ino, up))?;
                continue;
            }
            let child = join(path, &name);
            if self.how.only.is_some_and(|only| !only(&child)) {
                continue;
            }
            directories += u32::from(kind == FileType::Directory);
            let found = self.source.find(handle, &name);
            if let Some(handle) = self.got(&child, Part::Node, found)? {
                self.left.push(Step {
                    handle,
                    path: child,
                    entry: Some((ino, kind)),
                    parent: Some(id),
                });
                names.insert(name);
            }
        }
        // Of a part of a tree they cannot be told, and a removed one has none.
        let known = self.how.only.is_none() && dir.nlink > 0;
        self.must(!known || dir.nlink == directories + 2, path, || {
            format!(
                "{directories} directories and a link count of {}",
                dir.nlink
            )
        })?;
        self.unlisted(handle, path, &names, whole)
    }

    /// `.` or `..`, where the source lists them.
    fn dot(
        &self,
        handle: &S::Handle,
        path: &[u8],
        name: &[u8],
        (ino, right): (Ino, Option<Ino>),
    ) -> Result {
        if self.lenient() || !path.starts_with(b"/") {
            return Ok(());
        }
        let there = |name| self.source.attributes(&self.source.find(handle, name)?);
        let found = there(name).map_err(|e| e.at(path))?.id.0;
        // The root is its own parent.
        let right = right.unwrap_or(Ino::ROOT);
        self.must(ino == right && found == right, path, || {
            let name = name.escape_ascii();
            format!("\"{name}\" is {ino} to readdir, {found} to lookup, not {right}")
        })
    }

    /// Looks up what is expected in a directory and was not found so far.
    fn unlisted(
        &mut self,
        handle: &S::Handle,
        path: &[u8],
        found: &BTreeSet<Vec<u8>>,
        whole: bool,
    ) -> Result {
        let Some(guide) = self.how.guide.filter(|_| self.lenient()) else {
            return Ok(());
        };
        let below = join(path, b"");
        let inside = guide.nodes.range(below.clone()..);
        let inside = inside.take_while(|(p, _)| p.starts_with(&below));
        for (child, n) in inside {
            let (dir, name) = split(child);
            let left_out = self.how.only.is_some_and(|only| !only(child));
            if dir != path || name.is_empty() || found.contains(name) || left_out {
                continue;
            }
            let result = self.source.find(handle, name);
            let by_name = self.got(child, Part::Node, result)?;
            if by_name.is_some() && whole {
                let unlisted = (child.clone(), Part::Unlisted);
                self.out.unread.insert(unlisted, 0);
            }
            // What is expected below it is asked for even so.
            if let Some(handle) = by_name.or_else(|| self.source.by_ino(n.id.0)) {
                self.left.push(Step {
                    handle,
                    path: child.clone(),
                    entry: None,
                    parent: None,
                });
            }
        }
        Ok(())
    }

    fn contents(&mut self, handle: &S::Handle, path: &[u8], size: u64) -> Result<Sparse> {
        let mut data = Sparse::default();
        for range in self.ranges(handle, path, size)? {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + CHUNK);
                self.read(handle, path, at..end, &mut data)?;
                at = end;
            }
        }
        Ok(data)
    }

    /// What of a file is to be read.
    fn ranges(&self, handle: &S::Handle, path: &[u8], size: u64) -> Result<Vec<Range<u64>>> {
        if size <= self.how.whole {
            return Ok(Vec::from([Range {
                start: 0,
                end: size,
            }]));
        }
        let around = |r: &Range<u64>| {
            let from = r.start.saturating_sub(AROUND) / PIECE * PIECE;
            from.min(size)..r.end.saturating_add(AROUND).min(size)
        };
        let expected = self.expected(path).map(|n| n.data.ranges());
        let mut out: Vec<_> = expected.into_iter().flatten().map(|r| around(&r)).collect();
        out.push(around(&(size..size)));
        let mut at = 0;
        while at < size {
            let data = match self.source.next_data(handle, at) {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(_) if self.lenient() => break,
                Err(e) => return Err(e.at(path)),
            };
            if data.end <= data.start || data.start < at {
                let what = format!("data from {at} on is {data:?}");
                return Err(Trouble::contradiction(what).at(path));
            }
            at = data.end;
            out.push(data.start / PIECE * PIECE..data.end.min(size));
        }
        // Each byte once.
        out.sort_by_key(|r| r.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for r in out {
            match merged.last_mut() {
                Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
                _ => merged.push(r),
            }
        }
        Ok(merged)
    }

    fn read(
        &mut self,
        handle: &S::Handle,
        path: &[u8],
        range: Range<u64>,
        data: &mut Sparse,
    ) -> Result {
        let len = range.end - range.start;
        let mut bytes = vec![0xee; len as usize];
        let mut result = self.source.bytes(handle, range.start, &mut bytes);
        if let Ok(n) = result
            && n as u64 != len
        {
            let at = range.start;
            let what = format!("{n} of {len} bytes were read at {at}");
            result = Err(Trouble {
                errno: libc::EIO,
                what,
            });
        }
        if result.is_err() && self.lenient() && len > PIECE {
            for at in range.clone().step_by(PIECE as usize) {
                self.read(handle, path, at..range.end.min(at + PIECE), data)?;
            }
            return Ok(());
        }
        if self.got(path, Part::Bytes(range.start), result)?.is_some() {
            data.write(range.start, &bytes);
        }
        Ok(())
    }

    fn xattrs(&mut self, handle: &S::Handle, path: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let expected = || {
            let n = self.expected(path);
            n.map(|n| n.xattrs.keys().cloned().collect::<Vec<_>>())
        };
        let names = match self.source.xattr_names(handle) {
            // More names than a list can hold.
            Err(e) if e.errno == libc::E2BIG && self.how.guide.is_some() => expected(),
            Err(e) if self.notes(&Part::XattrNames) => {
                let expected = expected();
                self.got::<()>(path, Part::XattrNames, Err(e))?;
                expected
            }
            result => Some(result.map_err(|e| e.at(path))?),
        };
        let mut out = BTreeMap::new();
        for name in names.unwrap_or_default() {
            let value = self.source.xattr(handle, &name);
            if let Some(value) = self.got(path, Part::Xattr(name.clone()), value)? {
                let twice = out.insert(name, value).is_some();
                self.must(!twice, path, || "an attribute is listed twice".into())?;
            }
        }
        Ok(out)
    }

    fn finish(mut self) -> Result<Snapshot> {
        for (ino, (names, nlink)) in &self.links {
            self.must(names == nlink, format!("{ino}").as_bytes(), || {
                format!("{names} names and a link count of {nlink}")
            })?;
        }
        if !self.how.totals {
            return Ok(self.out);
        }
        match self.source.totals() {
            Ok((free, free_inodes, label)) => {
                (self.out.free, self.out.free_inodes) = (free, free_inodes);
                self.out.label = label;
            }
            Err(_) if self.lenient() => {}
            Err(e) => return Err(e),
        }
        Ok(self.out)
    }
}
