//! Removing everything below a directory.

use super::resolve::Resolved;
use crate::fs::{Fs, InodeRef};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::{FileType, Ino};

/// Empties a directory that the caller holds. Keeps the directories on the path on
/// the heap, so that no depth overflows the stack.
pub(super) fn remove_contents(fs: &Fs, top: Ino) -> Result<()> {
    struct Level {
        dir: InodeRef,
        name: Vec<u8>,
        /// Its subdirectories that are not removed yet.
        below: Vec<Vec<u8>>,
    }
    let enter = |dir: InodeRef, name: Vec<u8>| -> Result<Level> {
        let below = remove_all_but_dirs(fs, dir.ino())?;
        Ok(Level { dir, name, below })
    };
    let mut stack = vec![enter(fs.hold(top), Vec::new())?];
    while let Some(level) = stack.last_mut() {
        let dir = level.dir.ino();
        if let Some(name) = level.below.pop() {
            let found = match Resolved::child(fs.engine(), dir, &name) {
                Ok(found) => found,
                // Another thread has removed it.
                Err(Error::NotFound) => continue,
                Err(e) => return Err(e),
            };
            if found.attr().kind == FileType::Directory {
                stack.push(enter(found.into_ref(fs.engine()), name)?);
            } else {
                // Another thread has replaced it.
                ignore_missing(fs.unlink(dir, &name))?;
            }
            continue;
        }
        let done = stack.pop();
        if let (Some(parent), Some(done)) = (stack.last(), done) {
            ignore_missing(fs.rmdir(parent.dir.ino(), &done.name))?;
        }
    }
    Ok(())
}

/// Removes all entries of a directory except directories; returns the names of those.
fn remove_all_but_dirs(fs: &Fs, dir: Ino) -> Result<Vec<Vec<u8>>> {
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    fs.readdir(dir, 0, &mut |e| {
        match e.kind {
            _ if matches!(e.name, b"." | b"..") => {}
            FileType::Directory => dirs.push(e.name.to_vec()),
            _ => files.push(e.name.to_vec()),
        }
        std::ops::ControlFlow::Continue(())
    })?;
    for name in files {
        ignore_missing(fs.unlink(dir, &name))?;
    }
    Ok(dirs)
}

fn ignore_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::NotFound) => Ok(()),
        other => other,
    }
}
