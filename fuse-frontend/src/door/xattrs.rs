//! Attributes whose names are translated: in requests, in the security contexts of new files, and
//! where a write takes one away.

use pramfs::Error;
use pramfs::inode::Ino;
use pramfs_fuse_protocol::flags::{MappingFlags, OpenInFlags, SetattrValid};
use pramfs_fuse_protocol::{Errno, Extensions, Operation};

use super::Door;

/// The rights of a program. A write takes them away.
const CAPABILITY: &[u8] = b"security.capability";

impl Door {
    /// Returns the name in the region of the attribute that a request names, if it has another one
    /// there.
    pub(super) fn name_in_region(&self, asked: &Operation<'_>) -> Result<Option<Vec<u8>>, Errno> {
        let (name, reads) = match asked {
            Operation::Setxattr { name, .. } | Operation::Removexattr { name } => (*name, false),
            Operation::Getxattr { name, .. } => (*name, true),
            _ => return Ok(None),
        };
        match &self.translations.xattrs {
            Some(map) => map
                .to_region(name, reads)
                .map(|name| Some(name.into_owned())),
            None => Ok(None),
        }
    }

    /// Checks the security contexts of a new file: the engine takes names of `security.` alone, so
    /// the map must leave theirs.
    ///
    /// # Errors
    /// The guest may not use one of them.
    pub(super) fn check_contexts(&self, asked: &Operation<'_>) -> Result<(), Errno> {
        let (Some(map), Some(contexts)) = (&self.translations.xattrs, extensions(asked).contexts)
        else {
            return Ok(());
        };
        for (name, _) in contexts.iter() {
            map.to_region(name, false)?;
            if !map.keeps(name) {
                return Err(Errno::EOPNOTSUPP);
            }
        }
        Ok(())
    }

    /// Removes what the guest calls `security.capability`, if a request changes the bytes of a file:
    /// the engine knows the attribute by that name alone, and the guest's kernel leaves it to the
    /// server.
    ///
    /// # Errors
    /// It cannot be removed. The request must not be served then.
    pub(super) fn drop_mapped_capability(
        &self,
        node: u64,
        asked: &Operation<'_>,
    ) -> Result<(), Errno> {
        let Some(map) = &self.translations.xattrs else {
            return Ok(());
        };
        let Some(changed) = changes_bytes_of(node, asked) else {
            return Ok(());
        };
        let Ok(name) = map.to_region(CAPABILITY, false) else {
            return Ok(());
        };
        if *name == *CAPABILITY {
            return Ok(());
        }
        match self.adapter.fs().strip_attribute(Ino(changed), &name) {
            // The request itself fails for the same reason.
            Ok(()) | Err(Error::Stale(_)) => Ok(()),
            Err(error) => {
                tracing::debug!("the capability of node {changed} stays: {error}");
                Err(Errno::new(error.errno()).unwrap_or(Errno::EIO))
            }
        }
    }
}

/// Returns the node of a file whose bytes a request changes, as a write does.
fn changes_bytes_of(node: u64, asked: &Operation<'_>) -> Option<u64> {
    let changes = match asked {
        Operation::Write { .. } | Operation::Fallocate(_) => true,
        Operation::Setattr(arg) => arg.valid.contains(SetattrValid::SIZE),
        Operation::Open(arg) => arg.open_flags.contains(OpenInFlags::KILL_SUIDGID),
        Operation::Setupmapping(arg) => arg.flags.contains(MappingFlags::WRITE),
        Operation::CopyFileRange(arg) | Operation::CopyFileRange64(arg) => {
            return Some(arg.nodeid_out);
        }
        _ => false,
    };
    changes.then_some(node)
}

/// Returns the extensions of a request.
fn extensions<'a>(asked: &Operation<'a>) -> Extensions<'a> {
    match asked {
        Operation::Symlink { extensions, .. }
        | Operation::Mknod { extensions, .. }
        | Operation::Mkdir { extensions, .. }
        | Operation::Create { extensions, .. }
        | Operation::Tmpfile { extensions, .. } => *extensions,
        _ => Extensions::default(),
    }
}

/// Returns a request for an attribute with another name.
pub(super) fn named<'a>(asked: Operation<'a>, to: &'a [u8]) -> Operation<'a> {
    let mut asked = asked;
    match &mut asked {
        Operation::Setxattr { name, .. }
        | Operation::Getxattr { name, .. }
        | Operation::Removexattr { name } => *name = to,
        _ => {}
    }
    asked
}
