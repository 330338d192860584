//! The whole tree when all threads have ended.

use std::collections::{BTreeMap, BTreeSet};

use pramfs::FileType;

use super::pattern;
use super::target::Target;
use super::worker::is_target;
use crate::syscalls::Sys;

/// What is under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Identity of the inode.
    pub id: u64,
    /// Type.
    pub kind: FileType,
    /// Bytes.
    pub size: u64,
    /// Links.
    pub nlink: u64,
    /// CRC32C of contents or target.
    pub contents: u32,
    /// CRC32C of each extended attribute.
    pub xattrs: BTreeMap<Vec<u8>, u32>,
}

/// Everything by path, with all contents read: words are where they belong,
/// and the link counts are those of the names.
///
/// # Errors
/// What cannot be explained.
pub fn walk<D: Target>(access: &D) -> Result<BTreeMap<Vec<u8>, Summary>, String> {
    let mut out = BTreeMap::new();
    let mut names: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let root = access.root().map_err(|e| format!("the root: errno {e}"))?;
    let mut left = vec![(Vec::new(), root)];
    while let Some((path, dir)) = left.pop() {
        let shown = || path.escape_ascii().to_string();
        let wrong = |e: i32| format!("{}: errno {e}", shown());
        let mut directories = 0;
        for name in access.list(&dir).map_err(wrong)? {
            let path = [&path[..], b"/", &name].concat();
            let what = |e: i32| format!("{}: errno {e}", path.escape_ascii());
            let node = access.lookup(&dir, &name).map_err(what)?;
            let summary = summary(access, &node, &path)
                .map_err(|e| format!("{}: {e}", path.escape_ascii()))?;
            if summary.kind == FileType::Directory {
                directories += 1;
                left.push((path.clone(), node));
            } else {
                names.entry(summary.id).or_insert((0, summary.nlink)).0 += 1;
            }
            if out.insert(path.clone(), summary).is_some() {
                return Err(format!("{} is listed twice", path.escape_ascii()));
            }
        }
        let nlink = access.about(&dir).map_err(wrong)?.nlink;
        if nlink != directories + 2 {
            return Err(format!(
                "{}: {nlink} links with {directories} directories in it",
                shown()
            ));
        }
    }
    match names.values().find(|(found, nlink)| found != nlink) {
        Some((found, nlink)) => Err(format!("a file has {nlink} links and {found} names")),
        None => Ok(out),
    }
}

/// Asserts that two walks found the same.
///
/// # Panics
/// With each path where they did not.
#[track_caller]
pub fn assert_same(
    before: &BTreeMap<Vec<u8>, Summary>,
    after: &BTreeMap<Vec<u8>, Summary>,
    context: &str,
) {
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differences: String = paths
        .into_iter()
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| {
            let (was, is) = (before.get(path), after.get(path));
            format!("\n{}: {was:?}, then {is:?}", path.escape_ascii())
        })
        .collect();
    assert!(differences.is_empty(), "{context}:{differences}");
}

fn summary<D: Target>(access: &D, node: &D::Node, path: &[u8]) -> Result<Summary, String> {
    let what = |e: i32| format!("errno {e}");
    let about = access.about(node).map_err(what)?;
    let contents = match about.kind {
        FileType::Regular => {
            let mut bytes = vec![0; about.size as usize];
            let n = access.read(node, 0, &mut bytes).map_err(what)?;
            if n as u64 != about.size {
                return Err(format!("{n} of {} bytes were read", about.size));
            }
            // What a thread had for itself it has compared itself.
            if !path.starts_with(b"/own-") {
                pattern::verify(about.id, 0, &bytes, true)?;
            }
            crc32c::crc32c(&bytes)
        }
        FileType::Symlink => {
            let target = access.readlink(node).map_err(what)?;
            if !is_target(&target) {
                return Err(format!("it leads to {}", target.escape_ascii()));
            }
            crc32c::crc32c(&target)
        }
        _ => 0,
    };
    let mut xattrs = BTreeMap::new();
    if matches!(about.kind, FileType::Regular | FileType::Directory) {
        for name in access.list_xattrs(node).map_err(what)? {
            let value = access.get_xattr(node, &name).map_err(what)?;
            xattrs.insert(name, crc32c::crc32c(&value));
        }
    }
    Ok(Summary {
        id: about.id,
        kind: about.kind,
        size: if about.kind == FileType::Directory {
            0
        } else {
            about.size
        },
        nlink: about.nlink,
        contents,
        xattrs,
    })
}

/// Removes everything. No lock is left, no space is needed.
///
/// # Errors
/// An errno.
pub fn remove_all<D: Target>(access: &D) -> Sys {
    empty(access, &access.root()?)
}

fn empty<D: Target>(access: &D, dir: &D::Node) -> Sys {
    for name in access.list(dir)? {
        match access.unlink(dir, &name) {
            Err(libc::EISDIR) => {
                empty(access, &access.lookup(dir, &name)?)?;
                access.rmdir(dir, &name)?;
            }
            other => other?,
        }
    }
    Ok(())
}
