//! Who may connect to a control socket besides root and the user of the server.
//!
//! Such a user can ask for leases and for nothing else. The mode of the socket and this check
//! say the same; whether a lease is granted is decided anew for each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::Mode;

use crate::error::ControlError;
use crate::lease::Peer;

/// The users who may ask for leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// One user, who owns the region.
    Owner(u32),
    /// The owner of the region, and the members of a group.
    Group {
        /// The user.
        owner: u32,
        /// The group.
        group: u32,
    },
    /// Everybody.
    All {
        /// The user who owns the region.
        owner: u32,
    },
}

impl Users {
    /// Returns the user who owns the region.
    pub fn owner(self) -> u32 {
        let (Users::Owner(owner) | Users::Group { owner, .. } | Users::All { owner }) = self;
        owner
    }

    fn contain(self, peer: &Peer) -> bool {
        match self {
            _ if peer.uid == self.owner() => true,
            Users::Owner(_) => false,
            Users::Group { group, .. } => peer.groups.contains(&group),
            Users::All { .. } => true,
        }
    }

    /// Mode and group of the socket.
    pub(crate) fn socket(self) -> (Mode, Option<u32>) {
        let owner = Mode::RUSR | Mode::WUSR;
        let group = Mode::RGRP | Mode::WGRP;
        match self {
            Users::Owner(_) => (owner, None),
            Users::Group { group: gid, .. } => (owner | group, Some(gid)),
            Users::All { .. } => (owner | group | Mode::ROTH | Mode::WOTH, None),
        }
    }
}

/// Returns the supplementary groups of the process at the other end of a socket, as they were
/// when it connected.
pub type PeerGroups = fn(BorrowedFd<'_>) -> io::Result<Vec<u32>>;

/// Admits users to a control socket.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    /// The users.
    pub users: Users,
    /// How to find out their groups.
    pub groups: PeerGroups,
}

impl Admission {
    /// Completes a peer with its groups, and admits it.
    ///
    /// # Errors
    /// It is not one of the users, or its groups cannot be found out.
    pub(crate) fn check(self, socket: impl AsFd, mut peer: Peer) -> Result<Peer, ControlError> {
        let groups = (self.groups)(socket.as_fd()).map_err(|source| ControlError::Os {
            what: "cannot find out the groups of a peer",
            source,
        })?;
        peer.groups.extend(groups);
        match self.users.contain(&peer) {
            true => Ok(peer),
            false => Err(ControlError::Peer(peer.uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_admitted_by_owner_and_group() {
        let peer = |uid, groups: &[u32]| Peer {
            pid: 1,
            uid,
            groups: groups.to_vec(),
        };
        let group = Users::Group {
            owner: 5,
            group: 50,
        };
        for (users, uid, groups, expect) in [
            (Users::Owner(5), 5, &[7][..], true),
            (Users::Owner(5), 6, &[5, 50], false),
            (group, 5, &[7], true),
            (group, 6, &[7, 50], true),
            (group, 50, &[7], false),
            (Users::All { owner: 5 }, 6, &[7], true),
        ] {
            assert_eq!(
                users.contain(&peer(uid, groups)),
                expect,
                "{users:?} {uid} {groups:?}"
            );
        }
    }

    #[test]
    fn socket_has_mode_of_its_users() {
        let group = Users::Group {
            owner: 0,
            group: 50,
        };
        assert_eq!(Users::Owner(5).socket(), (0o600.into(), None));
        assert_eq!(group.socket(), (0o660.into(), Some(50)));
        assert_eq!(Users::All { owner: 0 }.socket(), (0o666.into(), None));
    }
}
