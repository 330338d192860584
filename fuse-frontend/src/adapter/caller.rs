//! What the kernel knows of a caller and a request does not say: the groups
//! and capabilities of its process.
//!
//! Read from `/proc/PID/status`, only for the few requests that need it. Whose
//! process cannot be seen there (another PID namespace, or gone) has neither:
//! what is not known to be allowed is refused. Capabilities are those of a user
//! namespace, and count only in our own: anybody can be root in a new one. A
//! request in somebody else's name (an overlay's, the NFS server's) has that
//! one's user and group, and nothing of the process that brought it about.

use fuser::Request;
use pramfs::inode::{Credentials, Groups};

/// The right to do with others' files what their owners may.
pub(super) const CAP_FOWNER: u32 = 3;
/// The right to change files of others' groups and keep sgid.
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
    /// It is who the request says.
    in_own_name: bool,
}

impl Caller {
    /// Who has sent a request.
    pub(super) fn of(req: &Request) -> Caller {
        let status = match req.pid() {
            0 => String::new(),
            pid => std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(),
        };
        let mut caller = Caller::parse(&status);
        caller.in_own_name = fs_user(&status) == Some(req.uid());
        if !caller.in_own_name {
            // The kernel has asked whoever it is about what they may do: root
            // is let through.
            caller = Caller::default();
            if req.uid() == 0 {
                caller.capabilities = 1 << CAP_FOWNER | 1 << CAP_FSETID | 1 << CAP_LINUX_IMMUTABLE;
            }
        } else if !is_in_our_namespace(req.pid()) {
            caller.capabilities = 0;
        }
        caller.groups.push(req.gid());
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

    /// Whether who sent a request may change a file that runs with its owner's
    /// rights, and leave it these: by the capability of that process itself. An
    /// overlay asks in the name of who mounted it for anybody.
    pub(super) fn keeps_rights(req: &Request) -> bool {
        let caller = Caller::of(req);
        caller.in_own_name && caller.can(CAP_FSETID)
    }

    /// Whether who sent a request is in a group, or need not be to keep sgid.
    /// Looks only when it is asked.
    pub(super) fn in_group(req: &Request) -> impl Fn(u32) -> bool {
        move |group| {
            if req.gid() == group {
                return true;
            }
            let caller = Caller::of(req);
            caller.is_in(group) || caller.can(CAP_FSETID)
        }
    }

    /// The credentials for an operation that may clear sgid. `is_member` is
    /// [`in_group`](Self::in_group) of the same request.
    pub(super) fn credentials<'a>(
        req: &Request,
        is_member: &'a (dyn Fn(u32) -> bool + Sync),
    ) -> Credentials<'a> {
        Credentials::new(req.uid(), req.gid()).with_groups(Groups::Ask(is_member))
    }

    /// Whether who sent a request is shown the names of `trusted.` attributes.
    /// Root in whose name somebody else's request is made (an overlay's) is.
    pub(super) fn sees_trusted(req: &Request) -> bool {
        let caller = Caller::of(req);
        caller.can(CAP_SYS_ADMIN) || !caller.in_own_name && req.uid() == 0
    }

    /// Whether it has this capability.
    pub(super) fn can(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 != 0
    }

    /// Whether it may change chattr flags, as user `uid`, of a file of `owner`:
    /// `forbids` those that forbid something. Why not, if not.
    pub(super) fn may_set_flags(
        &self,
        uid: u32,
        owner: u32,
        forbids: bool,
    ) -> Result<(), &'static str> {
        if uid != owner && !self.can(CAP_FOWNER) {
            return Err("chattr is for the owner of a file, or needs CAP_FOWNER");
        }
        if forbids && !self.can(CAP_LINUX_IMMUTABLE) {
            return Err("chattr +i and +a need CAP_LINUX_IMMUTABLE");
        }
        Ok(())
    }

    /// Whether it is in this group.
    pub(super) fn is_in(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }
}

/// The user as whom a process meets file systems: the last of the four.
fn fs_user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(3)?.parse().ok()
}

/// Whether a process is in the user namespace of this one. What cannot be read
/// is not.
fn is_in_our_namespace(pid: u32) -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    matches!((of("self"), of(&pid.to_string())), (Ok(ours), Ok(theirs)) if ours == theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let text = "Name:\tcat\nGroups:\t4 24 1000 \nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000000210\n";
        let caller = Caller::parse(text);
        assert!(caller.can(CAP_FSETID) && caller.can(CAP_LINUX_IMMUTABLE));
        assert!(!caller.can(CAP_SYS_ADMIN));
        assert!(caller.is_in(24) && caller.is_in(1000) && !caller.is_in(0));
    }

    #[test]
    fn the_user_that_counts_is_the_last_of_four() {
        assert_eq!(fs_user("Name:\tcat\nUid:\t1\t2\t3\t4\n"), Some(4));
        assert_eq!(fs_user("Name:\tcat\n"), None);
        assert!(is_in_our_namespace(std::process::id()));
        assert!(!is_in_our_namespace(0));
    }

    #[test]
    fn flags_are_changed_by_the_owner_and_those_that_forbid_by_who_may() {
        let with = |capabilities: u64| Caller {
            groups: Vec::new(),
            capabilities,
            in_own_name: true,
        };
        let (none, fowner, both) = (with(0), with(1 << 3), with(1 << 3 | 1 << 9));
        // Its own file; somebody else's.
        assert!(none.may_set_flags(1000, 1000, false).is_ok());
        assert!(none.may_set_flags(1000, 1001, false).is_err());
        assert!(none.may_set_flags(0, 1001, false).is_err());
        assert!(fowner.may_set_flags(1000, 1001, false).is_ok());
        // What forbids something, of its own file too.
        assert!(none.may_set_flags(1000, 1000, true).is_err());
        assert!(fowner.may_set_flags(1000, 1001, true).is_err());
        assert!(both.may_set_flags(1000, 1001, true).is_ok());
        assert!(with(1 << 9).may_set_flags(1000, 1000, true).is_ok());
        assert!(with(1 << 9).may_set_flags(1000, 1001, true).is_err());
    }

    #[test]
    fn who_is_not_seen_has_nothing() {
        assert_eq!(Caller::parse(""), Caller::default());
        assert!(!Caller::default().can(CAP_SYS_ADMIN));
    }
}
