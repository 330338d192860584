//! The use of a recovered file system: it must do what it promises until it is empty. Before that,
//! its files are marked where their sums do not hold, and nowhere else.

use pramfs::{
    FileType,
    inode::{Credentials, Fs, Ino},
};

use super::leased::Kept;
use super::state::State;

/// Checks which sums stand for data after an unmount. A block to which a process may store has
/// none, and the unmount has summed all others. (The check has compared them.)
pub(super) fn check_marks(fs: &Fs, state: &State, kept: &Kept) -> Result<(), String> {
    for (path, n) in &state.tree.nodes {
        if n.kind != FileType::Regular {
            continue;
        }
        let verified = fs.verify_data(n.id.0, 0..u64::MAX);
        let verified = verified.map_err(|e| format!("the sums after recovery: {e}"))?;
        let mut leases = kept.values().filter(|mapped| mapped.ino == n.id.0);
        let may_store = leases.clone().any(|mapped| mapped.may_store);
        let wrong = if may_store && verified.compared > 0 {
            "a process may store to blocks that have sums"
        } else if leases.next().is_none() && verified.is_marked {
            "nobody can store to it, and the unmount has left it marked"
        } else {
            continue;
        };
        let path = String::from_utf8_lossy(path);
        return Err(format!("{path}: {wrong}: {verified:?}"));
    }
    Ok(())
}

/// Makes, writes, moves and removes something in every directory, then removes
/// everything. A full region may refuse what needs space.
pub(super) fn use_it(fs: &Fs, state: &State) -> Result<(), String> {
    let ctx = Credentials::ROOT;
    let shown = |p: &[u8]| String::from_utf8_lossy(p).into_owned();
    let tried = |what: &str, path: &[u8], r: pramfs::Result<()>| match r {
        Ok(()) => Ok(true),
        Err(pramfs::Error::NoSpace(_)) => Ok(false),
        Err(e) => Err(format!("{what} in {} after recovery: {e}", shown(path))),
    };
    for (path, n) in &state.tree.nodes {
        if n.kind != FileType::Directory {
            continue;
        }
        let dir = n.id.0;
        let mut made = Ino::ROOT;
        let created = fs
            .create(&ctx, dir, b".explorer", 0o600)
            .map(|a| made = a.ino);
        if !tried("create", path, created)? {
            continue;
        }
        let bytes = [0xa5; 700];
        let mut back = [0; 700];
        let mut read = |at| match fs.read(made, at, &mut back) {
            Ok(700) if back == bytes => Ok(()),
            Ok(_) => Err(pramfs::Error::io("other bytes are read than were written")),
            Err(e) => Err(e),
        };
        if tried(
            "a write",
            path,
            fs.append(&Credentials::ROOT, made, &bytes).map(drop),
        )? {
            tried("a read", path, read(0))?;
        }
        let renamed = fs.rename(
            &ctx,
            dir,
            b".explorer",
            dir,
            b".renamed",
            Default::default(),
        );
        let name: &[u8] = if tried("a rename", path, renamed)? {
            b".renamed"
        } else {
            b".explorer"
        };
        tried("unlink", path, fs.unlink(dir, name))?;
    }
    // Paths in reverse: what is in a directory before it.
    for (path, n) in state.tree.nodes.iter().rev() {
        let Some(slash) = path
            .iter()
            .rposition(|b| *b == b'/')
            .filter(|_| path.len() > 1)
        else {
            continue;
        };
        let parent = &state.tree.nodes[if slash == 0 {
            &b"/"[..]
        } else {
            &path[..slash]
        }];
        let name = &path[slash + 1..];
        let removed = if n.kind == FileType::Directory {
            fs.rmdir(parent.id.0, name)
        } else {
            fs.unlink(parent.id.0, name)
        };
        removed.map_err(|e| format!("{} cannot be removed after recovery: {e}", shown(path)))?;
    }
    Ok(())
}
