//! [`Credentials`]: the caller of an operation.

use std::fmt;

/// The groups of a caller.
#[derive(Clone, Copy, Default)]
pub enum Groups<'a> {
    /// The caller has the rights of every group, as root does.
    All,
    /// The caller is in its effective group only. User 0 has the rights of every group.
    #[default]
    Effective,
    /// The function tells whether the caller is in a group, or has the rights of the
    /// group without that (`CAP_FSETID`). The engine calls it with no inode locked, and only
    /// if the answer matters. It may block, but must not call the same file system: the
    /// operation goes on meanwhile, and if another thread waits to end the mount, a call
    /// within it waits for that thread.
    Ask(&'a (dyn Fn(u32) -> bool + Sync)),
}

impl fmt::Debug for Groups<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Groups::All => "All",
            Groups::Effective => "Effective",
            Groups::Ask(_) => "Ask",
        })
    }
}

/// The caller of an operation.
///
/// The engine does not check permissions: the kernel does that for a mount. It uses the
/// credentials for the owner of new inodes, and to decide whether a file keeps sgid: a
/// change by a caller outside the file's group clears sgid.
///
/// ```
/// use pramfs::inode::{Credentials, Groups};
///
/// let groups = [100, 101];
/// let is_member = |group| groups.contains(&group);
/// let alice = Credentials::new(1000, 1000)
///     .with_umask(0o022)
///     .with_groups(Groups::Ask(&is_member));
/// assert!(alice.in_group(1000) && alice.in_group(101) && !alice.in_group(0));
/// assert!(Credentials::ROOT.in_group(7));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    /// Effective user: the owner of new inodes.
    pub uid: u32,
    /// Effective group: the group of new inodes, unless their directory has sgid.
    pub gid: u32,
    /// Permission bits to clear in new inodes. A default ACL of the directory replaces it.
    pub umask: u32,
    /// The groups of the caller.
    pub groups: Groups<'a>,
}

impl Credentials<'static> {
    /// User 0 and group 0 with all rights and a umask of 0. The direct API uses them by
    /// default.
    pub const ROOT: Credentials<'static> = Credentials {
        uid: 0,
        gid: 0,
        umask: 0,
        groups: Groups::All,
    };

    /// Returns the credentials of a user in a single group, with a umask of 0.
    pub const fn new(uid: u32, gid: u32) -> Credentials<'static> {
        Credentials {
            uid,
            gid,
            umask: 0,
            groups: Groups::Effective,
        }
    }
}

impl<'a> Credentials<'a> {
    /// Returns the same credentials with another umask.
    pub const fn with_umask(self, umask: u32) -> Credentials<'a> {
        Credentials { umask, ..self }
    }

    /// Returns the same credentials with other groups.
    pub const fn with_groups<'b>(self, groups: Groups<'b>) -> Credentials<'b> {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            umask: self.umask,
            groups,
        }
    }

    /// Returns whether the caller is in a group, or has its rights without membership.
    pub fn in_group(&self, group: u32) -> bool {
        match self.groups {
            Groups::All => true,
            Groups::Effective => self.uid == 0 || self.gid == group,
            Groups::Ask(is_member) => self.gid == group || is_member(group),
        }
    }
}

impl Default for Credentials<'_> {
    /// [`Credentials::ROOT`].
    fn default() -> Self {
        Credentials::ROOT
    }
}
