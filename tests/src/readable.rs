//! What can be read of an image without an error, to be held against what can
//! be read of it after a repair.

use pramfs_medium::pmem::RegionAccess as _;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pramfs::{
    FileType, MountOptions,
    inode::{Fs, Ino},
};
use pramfs_medium::pmem::{HeapBackend, Region, RegionView};

/// Bytes that are read at once.
const CHUNK: usize = 512;
/// Most bytes that are read of a file.
const MOST: u64 = 1 << 20;

/// What was read of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readable {
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileType,
    size: u64,
    chunks: Vec<Option<Vec<u8>>>,
    target: Option<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What was read, by path.
pub type Tree = BTreeMap<Vec<u8>, Readable>;

/// A region of memory with these bytes.
pub fn copy_of(image: &[u8]) -> Region {
    let region = Region::new("copy", HeapBackend::boxed(image.len()));
    region
        .window()
        .store_unflushed(0, image)
        .expect("it has room");
    region
}

/// All bytes of a region; zeros where it has failed.
pub fn bytes_of<'r>(region: impl Into<RegionView<'r>>) -> Vec<u8> {
    let region = region.into();
    let mut image = vec![0; region.len() as usize];
    if region.read(0, &mut image).is_err() {
        for (sector, into) in (0..).zip(image.chunks_mut(512)) {
            if region.read(sector * 512, into).is_err() {
                into.fill(0);
            }
        }
    }
    image
}

/// Everything that can be read of an image; `None` where it cannot be mounted.
pub fn tree(image: &[u8]) -> Option<Tree> {
    tree_of(copy_of(image))
}

/// As [`tree`], of a region.
pub fn tree_of(region: Region) -> Option<Tree> {
    let options = MountOptions {
        read_only: true,
        background: false,
        ..MountOptions::default()
    };
    let fs = Fs::open(region, options).ok()?;
    let mut out = Tree::new();
    let mut dirs = vec![(Vec::new(), Ino::ROOT)];
    let mut walked = std::collections::HashSet::new();
    while let Some((path, dir)) = dirs.pop() {
        if !walked.insert(dir.0) {
            continue;
        }
        let mut names = Vec::new();
        // What comes before an error was read.
        let _ = fs.readdir(dir, 0, &mut |e| {
            if e.cookie > 2 {
                names.push(e.name.to_vec());
            }
            ControlFlow::Continue(())
        });
        for name in names {
            let Ok(attr) = fs.lookup(dir, &name) else {
                continue;
            };
            let path = [&path[..], b"/", &name].concat();
            if attr.kind == FileType::Directory {
                dirs.push((path.clone(), attr.ino));
            }
            out.insert(path, look(&fs, attr.ino, attr.kind, attr.size));
        }
    }
    Some(out)
}

fn look(fs: &Fs, ino: Ino, kind: FileType, size: u64) -> Readable {
    let mut chunks = Vec::new();
    if kind == FileType::Regular {
        for at in (0..size.min(MOST)).step_by(CHUNK) {
            let mut chunk = vec![0; CHUNK.min((size - at) as usize)];
            let read = fs.read(ino, at, &mut chunk);
            chunks.push(read.is_ok().then_some(chunk));
        }
    }
    let list = fs.listxattr(ino).unwrap_or_default();
    let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
    let xattrs = names.filter_map(|n| Some((n.to_vec(), fs.getxattr(ino, n).ok()?)));
    Readable {
        ino: ino.0,
        kind,
        size: if kind == FileType::Directory { 0 } else { size },
        chunks,
        target: fs.readlink(ino).ok(),
        xattrs: xattrs.collect(),
    }
}

/// Lets files of `before` be as long as they are in `after`, if they begin with the same bytes:
/// a repair has added to their sizes what was appended to them.
pub fn grow(before: &mut Tree, after: &Tree, inos: &[u64]) {
    for (path, old) in before.iter_mut().filter(|(_, r)| inos.contains(&r.ino)) {
        let Some(new) = after.get(path).filter(|new| new.size > old.size) else {
            continue;
        };
        let starts = |(old, new): (&Option<Vec<u8>>, &Option<Vec<u8>>)| match (old, new) {
            (None, _) => true,
            (Some(old), Some(new)) => new.starts_with(old),
            (Some(_), None) => false,
        };
        if old.chunks.iter().zip(&new.chunks).all(starts) {
            (old.size, old.chunks) = (new.size, new.chunks.clone());
        }
    }
}

/// What of `before` is not as it was in `after`, in words.
pub fn worse(before: &Tree, after: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for (path, old) in before {
        let shown = path.escape_ascii().to_string();
        let Some(new) = after.get(path) else {
            if old.kind == FileType::Symlink && old.target.is_none() {
                continue;
            }
            out.push(format!("{shown} is gone"));
            continue;
        };
        let whole = |(a, b): (&Option<Vec<u8>>, &Option<Vec<u8>>)| a.is_none() || a == b;
        let same_bytes =
            old.chunks.len() <= new.chunks.len() && old.chunks.iter().zip(&new.chunks).all(whole);
        if old.ino != new.ino || old.kind != new.kind || old.size != new.size {
            out.push(format!("{shown} is another file"));
        } else if !same_bytes {
            out.push(format!("{shown} has other bytes"));
        } else if old.target.is_some() && old.target != new.target {
            out.push(format!("{shown} has another target"));
        } else if old.xattrs.iter().any(|(n, v)| new.xattrs.get(n) != Some(v)) {
            out.push(format!("{shown} has lost attributes"));
        }
    }
    out
}
