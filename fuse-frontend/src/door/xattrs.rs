//! Attributes whose names are translated: in requests, and in the security contexts of new files.

use pramfs_fuse_protocol::{Errno, Extensions, Operation};

use super::Door;

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
