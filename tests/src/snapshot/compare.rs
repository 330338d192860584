//! The one comparison of what a file system should show with what it shows.
//!
//! Invariant: a tolerance names what may differ; everything else must be equal.
//! A field that is added to [`Node`] does not compile until it is compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use pramfs::{
    FileType,
    inode::{Ino, Time},
};

use super::take::PIECE;
use super::{Node, Part, Snapshot, Sparse, split};

/// An expected time that stands for all.
pub const ANY_TIME: Time = Time {
    sec: i64::MIN,
    nsec: u32::MAX,
};

/// mtime and ctime that an inode may show besides those that are expected,
/// since those of overwrites lag.
pub type Lag = BTreeMap<Ino, Vec<(Time, Time)>>;

/// What may differ.
#[derive(Debug, Clone, Copy)]
pub enum Tolerance<'a> {
    /// Nothing.
    Exact,
    /// After a crash: the times of overwrites may be older.
    Lag(&'a Lag),
    /// A crash has cut short a change of the bytes of one file.
    Cut(&'a Cut<'a>),
    /// Damage: what it may affect may be reported as damaged.
    Damage(&'a Damage<'a>),
    /// A repair: what could be read before it is there, and there may be more.
    Repair,
}

/// A crash in a change of bytes. Within its range each aligned word is old or
/// new, the size goes with a prefix, and blocks of the range may be there or
/// not. No byte outside changes.
#[derive(Debug, Clone)]
pub struct Cut<'a> {
    /// What the whole change would have led to.
    pub after: &'a Snapshot,
    /// The file.
    pub ino: Ino,
    /// Bytes that the call names.
    pub range: Range<u64>,
    /// Times that may lag, before and after.
    pub lag: [&'a Lag; 2],
}

/// What damage may affect.
#[derive(Clone, Copy)]
pub struct Damage<'a> {
    /// One of the inodes on the way to an object, itself included.
    pub hits: &'a dyn Fn(&[Ino]) -> bool,
    /// The extended attributes of an inode.
    pub hits_xattrs: &'a dyn Fn(Ino) -> bool,
    /// An inode that may show anything, with all below it.
    pub changed: Option<Ino>,
}

impl std::fmt::Debug for Damage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Damage")
    }
}

/// A difference that the tolerance does not cover.
enum Mismatch<'a> {
    Missing(&'a [u8], &'a Node),
    Extra(&'a [u8], &'a Node),
    Other(&'a [u8], &'a Node, &'a Node),
    Unread(&'a [u8], &'a Part, i32),
    Free,
    Label,
}

impl Snapshot {
    /// Whether a snapshot is this one, but for what the tolerance names.
    pub fn allows(&self, found: &Snapshot, tolerance: &Tolerance<'_>) -> bool {
        self.mismatches(found, tolerance).next().is_none()
    }

    /// All differences in words; empty where there are none.
    pub fn differences(&self, found: &Snapshot) -> String {
        self.differences_beyond(found, &Tolerance::Exact)
    }

    /// The differences that the tolerance does not cover, in words.
    pub fn differences_beyond(&self, found: &Snapshot, tolerance: &Tolerance<'_>) -> String {
        let mut out = String::new();
        for m in self.mismatches(found, tolerance) {
            self.describe(&m, found, &mut out);
        }
        out
    }

    fn mismatches<'a>(
        &'a self,
        found: &'a Snapshot,
        tolerance: &'a Tolerance<'a>,
    ) -> impl Iterator<Item = Mismatch<'a>> {
        let (mut mine, mut theirs) = (self.nodes.iter().peekable(), found.nodes.iter().peekable());
        // Both are sorted: one walk over the two.
        let nodes = std::iter::from_fn(move || {
            let order = match (mine.peek(), theirs.peek()) {
                (Some(a), Some(b)) => a.0.cmp(b.0),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => return None,
            };
            let expected = order.is_le().then(|| mine.next()).flatten();
            let is = order.is_ge().then(|| theirs.next()).flatten();
            Some((expected, is))
        });
        let nodes = nodes.filter_map(move |pair| {
            let (allowed, mismatch) = match pair {
                (Some((path, e)), Some((_, f))) => (
                    self.same(path, e, f, found, tolerance),
                    Mismatch::Other(path, e, f),
                ),
                (Some((path, e)), None) => (
                    self.may_miss(path, e, found, tolerance),
                    Mismatch::Missing(path, e),
                ),
                (None, Some((path, f))) => {
                    let may_be = match tolerance {
                        Tolerance::Repair => true,
                        Tolerance::Damage(d) => self.changed(path, d),
                        _ => false,
                    };
                    (may_be, Mismatch::Extra(path, f))
                }
                (None, None) => return None,
            };
            (!allowed).then_some(mismatch)
        });
        let unread = found
            .unread
            .iter()
            .filter_map(move |((path, part), errno)| {
                (!self.may_be_unread(path, part, *errno, tolerance))
                    .then_some(Mismatch::Unread(path, part, *errno))
            });
        let lenient = matches!(tolerance, Tolerance::Damage(_) | Tolerance::Repair);
        let free = (self.free, self.free_inodes) == (found.free, found.free_inodes);
        let cut = matches!(tolerance, Tolerance::Cut(cut) if cut.after.label == found.label);
        let label = self.label == found.label || cut;
        let totals = [
            (!free && !lenient).then_some(Mismatch::Free),
            (!label && !lenient).then_some(Mismatch::Label),
        ];
        nodes.chain(unread).chain(totals.into_iter().flatten())
    }

    fn same(
        &self,
        path: &[u8],
        e: &Node,
        f: &Node,
        found: &Snapshot,
        tolerance: &Tolerance<'_>,
    ) -> bool {
        match tolerance {
            Tolerance::Exact => same_with_times(e, f, &[]),
            Tolerance::Lag(lag) => same_with_times(e, f, lag_of(lag, e.id.0)),
            Tolerance::Cut(cut) if f.id.0 != cut.ino => {
                cut.after.nodes.contains_key(path)
                    && same_with_times(e, f, lag_of(cut.lag[0], e.id.0))
            }
            Tolerance::Cut(cut) => {
                (cut.after.nodes.get(path)).is_some_and(|after| cut.explains(e, f, after))
            }
            Tolerance::Damage(d) => self.changed(path, d) || same_if_read(path, e, f, found),
            Tolerance::Repair => self.kept(path, e, f, found),
        }
    }

    /// Whether a path may be missing.
    fn may_miss(&self, path: &[u8], e: &Node, found: &Snapshot, tolerance: &Tolerance<'_>) -> bool {
        match tolerance {
            // That the reason is allowed is checked with the reasons.
            Tolerance::Damage(d) => has(found, path, &Part::Node) || self.changed(split(path).0, d),
            // Nothing is lost with a link that leads nowhere.
            Tolerance::Repair => e.kind == FileType::Symlink && has(self, path, &Part::Target),
            _ => false,
        }
    }

    fn may_be_unread(
        &self,
        path: &[u8],
        part: &Part,
        errno: i32,
        tolerance: &Tolerance<'_>,
    ) -> bool {
        let damage = match tolerance {
            Tolerance::Damage(damage) => damage,
            // What was readable before a repair is compared with the nodes.
            Tolerance::Repair => return true,
            _ => {
                let this = (path.to_vec(), part.clone());
                return self.unread.get(&this) == Some(&errno);
            }
        };
        // Its name belongs to its directory.
        let name_is_gone = *part == Part::Unlisted || errno == libc::ENOENT;
        let named = if name_is_gone { split(path).0 } else { path };
        if self.changed(named, damage) {
            return true;
        }
        if errno != libc::EUCLEAN || *part == Part::Unlisted {
            return false;
        }
        // What nobody has made is no damage, whether it can be read or not.
        let Some(n) = self.nodes.get(path) else {
            return false;
        };
        let xattrs = match part {
            Part::Xattr(name) if !n.xattrs.contains_key(name) => return false,
            Part::XattrNames | Part::Xattr(_) => true,
            _ => false,
        };
        (damage.hits)(&self.on_the_way(path)) || xattrs && (damage.hits_xattrs)(n.id.0)
    }

    fn changed(&self, path: &[u8], damage: &Damage<'_>) -> bool {
        (damage.changed).is_some_and(|ino| self.on_the_way(path).contains(&ino))
    }

    /// The inodes on the way to a path, as far as they are known; its own too.
    pub fn on_the_way(&self, path: &[u8]) -> Vec<Ino> {
        let (mut at, mut way) = (path, Vec::new());
        loop {
            way.extend(self.nodes.get(at).map(|n| n.id.0));
            if at.len() <= 1 {
                return way;
            }
            at = split(at).0;
        }
    }

    /// Whether what was readable of a node is there after a repair.
    fn kept(&self, path: &[u8], e: &Node, f: &Node, found: &Snapshot) -> bool {
        let size = |n: &Node| if n.is_dir() { 0 } else { n.size };
        let now_unread = |part: &Part| has(found, path, part);
        let lost_bytes =
            unread_bytes(found, path).any(|at| at < e.size && !has(self, path, &Part::Bytes(at)));
        let target_read = e.kind == FileType::Symlink && !has(self, path, &Part::Target);
        (e.id.0, e.kind, size(e)) == (f.id.0, f.kind, size(f))
            && match e.kind {
                FileType::Regular => !lost_bytes && same_bytes(e, f, &[(self, path)]),
                FileType::Symlink if target_read => !now_unread(&Part::Target) && e.data == f.data,
                _ => true,
            }
            && e.xattrs.iter().all(|(n, v)| f.xattrs.get(n) == Some(v))
    }

    fn describe(&self, m: &Mismatch<'_>, found: &Snapshot, out: &mut String) {
        let _ = match m {
            Mismatch::Missing(path, e) => {
                writeln!(out, "{}: is missing: {}", path.escape_ascii(), brief(e))
            }
            Mismatch::Extra(path, f) => {
                writeln!(out, "{}: is there: {}", path.escape_ascii(), brief(f))
            }
            Mismatch::Other(path, e, f) => {
                let path = path.escape_ascii();
                let _ = writeln!(out, "{path}: {}\n   is: {}", brief(e), brief(f));
                if let Some(at) = e.data.first_difference(&f.data, 0, u64::MAX) {
                    let (a, b) = (e.data.byte(at), f.data.byte(at));
                    let _ = writeln!(out, "   byte {at} is {b:#x} instead of {a:#x}");
                }
                for name in e
                    .xattrs
                    .keys()
                    .filter(|n| e.xattrs.get(*n) != f.xattrs.get(*n))
                {
                    let _ = writeln!(out, "   attribute {} differs", name.escape_ascii());
                }
                if e.allocated != f.allocated {
                    let (a, b) = (&e.allocated, &f.allocated);
                    let _ = writeln!(out, "   allocated {a:?}\n   is: {b:?}");
                }
                Ok(())
            }
            Mismatch::Unread(path, part, errno) => {
                let path = path.escape_ascii();
                writeln!(out, "{path}: {part:?} cannot be read: errno {errno}")
            }
            Mismatch::Free => writeln!(
                out,
                "free: {} blocks, {} inodes\n  are: {} blocks, {} inodes",
                self.free, self.free_inodes, found.free, found.free_inodes
            ),
            Mismatch::Label => {
                writeln!(out, "label {:?}\n   is: {:?}", self.label, found.label)
            }
        };
    }
}

fn lag_of(lag: &Lag, ino: Ino) -> &[(Time, Time)] {
    lag.get(&ino).map_or(&[], |times| times)
}

fn has(snapshot: &Snapshot, path: &[u8], part: &Part) -> bool {
    !snapshot.unread.is_empty() && snapshot.unread.contains_key(&(path.to_vec(), part.clone()))
}

/// Equality of all but the times. All fields are named here.
fn same_but_times(a: &Node, b: &Node) -> bool {
    let Node {
        id,
        kind,
        perm,
        nlink,
        owner,
        rdev,
        size,
        blocks,
        times: _,
        flags,
        data,
        xattrs,
        allocated,
    } = a;
    (*id, *kind, *perm, *nlink, *owner) == (b.id, b.kind, b.perm, b.nlink, b.owner)
        && (*rdev, *size, *blocks, *flags) == (b.rdev, b.size, b.blocks, b.flags)
        && *data == b.data
        && *xattrs == b.xattrs
        && *allocated == b.allocated
}

fn time_is(expected: (Time, Time), found: (Time, Time)) -> bool {
    let is = |e: Time, f: Time| e == f || e == ANY_TIME;
    is(expected.0, found.0) && is(expected.1, found.1)
}

/// Equality, with the times that are expected or others that are allowed.
fn same_with_times(e: &Node, f: &Node, others: &[(Time, Time)]) -> bool {
    same_but_times(e, f) && (time_is(e.times, f.times) || others.contains(&f.times))
}

/// Equality of all that was read. Damage tests write to the files: times,
/// blocks and what is allocated follow from that.
fn same_if_read(path: &[u8], e: &Node, f: &Node, found: &Snapshot) -> bool {
    let target = has(found, path, &Part::Target);
    let data = match e.kind {
        FileType::Regular => e.size == f.size && same_bytes(e, f, &[(found, path)]),
        FileType::Symlink => target || e.data == f.data,
        _ => true,
    };
    let unread = |name: &Vec<u8>| has(found, path, &Part::Xattr(name.clone()));
    let names = has(found, path, &Part::XattrNames);
    let values = e.xattrs.iter().all(|(name, v)| match f.xattrs.get(name) {
        Some(value) => value == v,
        None => names || unread(name),
    });
    data && (e.id, e.kind, e.perm, e.nlink) == (f.id, f.kind, f.perm, f.nlink)
        && (e.owner, e.rdev, e.flags) == (f.owner, f.rdev, f.flags)
        && values
        && f.xattrs.keys().all(|name| e.xattrs.contains_key(name))
}

/// Offsets of the chunks of a file that could not be read.
fn unread_bytes<'a>(of: &'a Snapshot, path: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
    let mine = of.unread.keys().filter(move |(p, _)| p == path);
    mine.filter_map(|(_, part)| match part {
        Part::Bytes(at) => Some(*at),
        _ => None,
    })
}

/// Whether contents are equal but for the chunks that one of these could not
/// read.
fn same_bytes(e: &Node, f: &Node, but: &[(&Snapshot, &[u8])]) -> bool {
    let mut from = 0;
    while let Some(at) = e.data.first_difference(&f.data, from, u64::MAX) {
        let unread = but.iter().flat_map(|(of, path)| unread_bytes(of, path));
        let Some(chunk) = unread.into_iter().find(|c| (*c..c + PIECE).contains(&at)) else {
            return false;
        };
        from = chunk + PIECE;
    }
    true
}

impl Cut<'_> {
    /// Whether the file may be seen so.
    fn explains(&self, old: &Node, found: &Node, new: &Node) -> bool {
        let own = |n: &Node| Node {
            size: 0,
            blocks: 0,
            times: Default::default(),
            data: Sparse::default(),
            allocated: Vec::new(),
            ..n.clone()
        };
        let mixed = (old.times.0, new.times.1);
        let lagging = self
            .lag
            .iter()
            .any(|l| lag_of(l, self.ino).contains(&found.times));
        let times = [old.times, new.times, mixed];
        own(old) == own(found)
            && (lagging || times.iter().any(|t| time_is(*t, found.times)))
            && between(old.blocks, found.blocks, new.blocks)
            && between(old.size, found.size, new.size)
            && self.bytes(old, found, new)
    }

    fn bytes(&self, old: &Node, found: &Node, new: &Node) -> bool {
        let same =
            |n: &Node, from: u64, to: u64| n.data.first_difference(&found.data, from, to).is_none();
        let words = old.size.min(found.size) / 8 * 8;
        let mut at = 0;
        while at < found.size {
            // Words that are old are right wherever they are.
            at = match old.data.first_difference(&found.data, at, words) {
                Some(differs) => differs / 8 * 8,
                None => at.max(words),
            };
            let end = found.size.min(at + 8);
            // What the file has grown by is there whole. Words at the edges of
            // the range belong to it in part.
            let grown = old.size.clamp(at, end);
            let outside = end <= self.range.start || at >= self.range.end;
            let whole = same(new, at, end) && (!outside || end > old.size);
            if !(same(new, grown, end) && (whole || at < old.size && same(old, at, end))) {
                return at >= found.size;
            }
            at = end;
        }
        true
    }
}

fn between(a: u64, x: u64, b: u64) -> bool {
    (a.min(b)..=a.max(b)).contains(&x)
}

fn brief(n: &Node) -> String {
    format!(
        "{:?} {} gen {} {:o} links {} owner {:?} rdev {} flags {:#x} size {} blocks {} times {}.{:09} {}.{:09} xattrs {:?}",
        n.kind,
        n.id.0,
        n.id.1,
        n.perm,
        n.nlink,
        n.owner,
        n.rdev,
        n.flags,
        n.size,
        n.blocks,
        n.times.0.sec,
        n.times.0.nsec,
        n.times.1.sec,
        n.times.1.nsec,
        n.xattrs
            .iter()
            .map(|(k, v)| (String::from_utf8_lossy(k), v.len()))
            .collect::<Vec<_>>(),
    )
}
