//! The whole tree when all threads have ended.

use pramfs::FileType;

use super::pattern::{self, identity};
use super::target::Target;
use super::worker::is_target;
use crate::snapshot::{Snapshot, Take, Trait};
use crate::syscalls::Sys;

/// Everything that a remount leaves as it is: words are where they belong.
///
/// # Errors
/// What cannot be explained.
pub fn walk<D: Target>(access: &D) -> Result<Snapshot, String> {
    let all = access.snapshot(&Take::default());
    let all = all.map_err(|e| e.to_string())?;
    for (path, n) in &all.nodes {
        let wrong = |e: String| format!("{}: {e}", path.escape_ascii());
        match n.kind {
            // What a thread had for itself it has compared itself.
            FileType::Regular if !path.starts_with(b"/own-") => {
                let file = identity(n.id.0.0, n.id.1);
                pattern::verify(file, 0, &n.bytes(), true).map_err(wrong)?;
            }
            FileType::Symlink if !is_target(&n.bytes()) => {
                return Err(wrong(format!("it leads to {}", n.bytes().escape_ascii())));
            }
            _ => {}
        }
    }
    Ok(all.without(&[
        Trait::Free,
        Trait::Times,
        Trait::Blocks,
        Trait::Allocated,
        Trait::DirectorySizes,
    ]))
}

/// Asserts that two walks found the same.
///
/// # Panics
/// With each path where they did not.
#[track_caller]
pub fn assert_same(before: &Snapshot, after: &Snapshot, context: &str) {
    let differences = before.differences(after);
    assert!(differences.is_empty(), "{context}:\n{differences}");
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
