//! The groups and capabilities of a caller, which a request does not carry.
//!
//! They are read from `/proc/PID/status`, only for the few requests that need them.
//! * If the process is not visible there (another PID namespace, or gone), it has neither:
//!   only known rights count.
//! * Capabilities count only if the process is in the user namespace of the server,
//!   because any user can be root in a new one.
//! * A request on behalf of another user (from overlayfs or the NFS server) has the user
//!   and group of that user, and no rights of the requesting process.

use pramfs::inode::{Credentials, Groups};
use pramfs_fuse_protocol::wire::InHeader;

/// The right to act as the owner of any file.
pub(super) const CAP_FOWNER: u32 = 3;
/// The right to keep sgid when changing a file of a foreign group.
const CAP_FSETID: u32 = 4;
/// The right to set and clear `chattr +i` and `+a`.
const CAP_LINUX_IMMUTABLE: u32 = 9;
/// The right to administer file systems.
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// Groups and capabilities of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    groups: Vec<u32>,
    capabilities: u64,
    /// The process has the user of the request: it does not act for another user.
    in_own_name: bool,
}

impl Caller {
    /// Returns the groups and capabilities of the caller of a request.
    pub(super) fn of(req: &InHeader) -> Caller {
        let status = match req.pid {
            0 => String::new(),
            pid => std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(),
        };
        let mut caller = Caller::parse(&status);
        caller.in_own_name = fs_user(&status) == Some(req.uid);
        if !caller.in_own_name {
            // The kernel has already checked the rights of that user. User 0 gets the
            // capabilities of root.
            caller = Caller::default();
            if req.uid == 0 {
                caller.capabilities = 1 << CAP_FOWNER | 1 << CAP_FSETID | 1 << CAP_LINUX_IMMUTABLE;
            }
        } else if !is_in_our_namespace(req.pid) {
            caller.capabilities = 0;
        }
        caller.groups.push(req.gid);
        caller
    }

    fn parse(status: &str) -> Caller {
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or("")
        };
        Caller {
            groups: field("Groups")
                .split_whitespace()
                .filter_map(|group| group.parse().ok())
                .collect(),
            capabilities: u64::from_str_radix(field("CapEff").trim(), 16).unwrap_or(0),
            in_own_name: false,
        }
    }

    /// Tells whether the caller may change a file and keep its suid and sgid. Only a
    /// capability of the calling process itself counts, because overlayfs sends requests of
    /// all users on behalf of the user that mounted it.
    pub(super) fn keeps_rights(req: &InHeader) -> bool {
        let caller = Caller::of(req);
        caller.in_own_name && caller.can(CAP_FSETID)
    }

    /// Returns a check whether the caller is in a group or has CAP_FSETID, and so keeps
    /// sgid. Reads `/proc` only when it is called.
    pub(super) fn in_group(req: &InHeader) -> impl Fn(u32) -> bool {
        move |group| {
            if req.gid == group {
                return true;
            }
            let caller = Caller::of(req);
            caller.is_in(group) || caller.can(CAP_FSETID)
        }
    }

    /// Returns the credentials for an operation that may clear sgid. `is_member` is
    /// [`in_group`](Self::in_group) of the same request.
    pub(super) fn credentials<'a>(
        req: &InHeader,
        is_member: &'a (dyn Fn(u32) -> bool + Sync),
    ) -> Credentials<'a> {
        Credentials::new(req.uid, req.gid).with_groups(Groups::Ask(is_member))
    }

    /// Tells whether the caller is shown the names of `trusted.` attributes. A request on
    /// behalf of root by another process (overlayfs) is.
    pub(super) fn sees_trusted(req: &InHeader) -> bool {
        let caller = Caller::of(req);
        caller.can(CAP_SYS_ADMIN) || !caller.in_own_name && req.uid == 0
    }

    /// Tells whether it has this capability.
    pub(super) fn can(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 != 0
    }

    /// Checks that user `uid` may change chattr flags of a file of `owner`. `forbids`:
    /// `+i` or `+a` changes. The error is the reason for the refusal.
    pub(super) fn may_set_flags(
        &self,
        uid: u32,
        owner: u32,
        forbids: bool,
    ) -> Result<(), &'static str> {
        if uid != owner && !self.can(CAP_FOWNER) {
            return Err("chattr needs ownership of the file or CAP_FOWNER");
        }
        if forbids && !self.can(CAP_LINUX_IMMUTABLE) {
            return Err("chattr +i and +a need CAP_LINUX_IMMUTABLE");
        }
        Ok(())
    }

    /// Tells whether it is in this group.
    pub(super) fn is_in(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }
}

/// Returns the file-system uid of a process: the last of the four in its status.
fn fs_user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(3)?.parse().ok()
}

/// Tells whether a process is in the user namespace of this one. Returns false if that
/// cannot be read.
fn is_in_our_namespace(pid: u32) -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    matches!((of("self"), of(&pid.to_string())), (Ok(ours), Ok(theirs)) if ours == theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_parses_proc_status() {
        let text = "Name:\tcat\nGroups:\t4 24 1000 \nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000000210\n";
        let caller = Caller::parse(text);
        assert!(caller.can(CAP_FSETID) && caller.can(CAP_LINUX_IMMUTABLE));
        assert!(!caller.can(CAP_SYS_ADMIN));
        assert!(caller.is_in(24) && caller.is_in(1000) && !caller.is_in(0));
    }

    #[test]
    fn fs_user_is_fourth_uid() {
        assert_eq!(fs_user("Name:\tcat\nUid:\t1\t2\t3\t4\n"), Some(4));
        assert_eq!(fs_user("Name:\tcat\n"), None);
        assert!(is_in_our_namespace(std::process::id()));
        assert!(!is_in_our_namespace(0));
    }

    #[test]
    fn chattr_flags_need_owner_and_capability() {
        let with = |capabilities: u64| Caller {
            groups: Vec::new(),
            capabilities,
            in_own_name: true,
        };
        let (none, fowner, both) = (with(0), with(1 << 3), with(1 << 3 | 1 << 9));
        // Own file; file of another user.
        assert!(none.may_set_flags(1000, 1000, false).is_ok());
        assert!(none.may_set_flags(1000, 1001, false).is_err());
        assert!(none.may_set_flags(0, 1001, false).is_err());
        assert!(fowner.may_set_flags(1000, 1001, false).is_ok());
        // `+i` and `+a`, also of the own file.
        assert!(none.may_set_flags(1000, 1000, true).is_err());
        assert!(fowner.may_set_flags(1000, 1001, true).is_err());
        assert!(both.may_set_flags(1000, 1001, true).is_ok());
        assert!(with(1 << 9).may_set_flags(1000, 1000, true).is_ok());
        assert!(with(1 << 9).may_set_flags(1000, 1001, true).is_err());
    }

    #[test]
    fn unknown_caller_has_no_rights() {
        assert_eq!(Caller::parse(""), Caller::default());
        assert!(!Caller::default().can(CAP_SYS_ADMIN));
    }
}
