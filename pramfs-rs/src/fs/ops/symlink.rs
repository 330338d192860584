//! symlink and readlink.

use crate::credentials::Credentials;
use crate::fs::inode::state::InodeState;
use crate::fs::ops::create::InodeTemplate;
use crate::fs::policy::names::TARGET_MAX;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::inode::INLINE_TARGET;
use pramfs_medium::types::{Attr, FileType, Ino};

impl Engine {
    /// Creates a symbolic link. The target has 1 to 4,095 bytes without NUL.
    ///
    /// # Errors
    /// As for [`create`](Self::create); [`Error::NameTooLong`] for the target.
    pub fn symlink(
        &self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        self.make(caller, parent, name, &InodeTemplate::symlink(target)?, None)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the inode is not a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            state.alive(ino)?;
            if state.kind() != FileType::Symlink {
                return Err(Error::Invalid("not a symbolic link"));
            }
            self.target(&state)
        })
    }

    /// Reads a target and checks it. The caller holds the lock of the inode.
    pub(crate) fn target(&self, state: &InodeState) -> Result<Vec<u8>> {
        let len = state.disk.size as usize;
        if len > TARGET_MAX {
            return Err(Error::corrupt(
                Damage::BadTarget,
                Ino(state.disk.ino),
                "the target is too long",
            ));
        }
        if len <= INLINE_TARGET {
            return Ok(state.disk.target[..len].to_vec());
        }
        let mut target = vec![0; len];
        let hole = || {
            Err(Error::corrupt(
                Damage::BadTarget,
                Ino(state.disk.ino),
                "a part of the target is missing",
            ))
        };
        match self.read_map(&state.map(), 0, &mut target, hole) {
            // Only regular files can have lost ranges.
            Err(Error::Lost { .. }) => hole()?,
            Ok(read) if read < len => hole()?,
            read => drop(read?),
        }
        if state.disk.target[..4] != crc(self.vol.geo.seed, &target).to_le_bytes() {
            return Err(Error::corrupt(
                Damage::TargetChecksum,
                Ino(state.disk.ino),
                "the checksum of the target does not match",
            ));
        }
        Ok(target)
    }
}
