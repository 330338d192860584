//! What the kernel knows of a caller and a request does not say: the groups
//! and capabilities of its process.
//!
//! Read from `/proc/PID/status`, only for the few requests that need it. Whose
//! process cannot be seen there (another PID namespace, or gone) has neither:
//! what is not known to be allowed is refused.

use fuser::Request;

/// The right to change files of others' groups and keep sgid.
const CAP_FSETID: u32 = 4;
/// The right to set and clear `chattr +i` and `+a`.
pub(super) const CAP_LINUX_IMMUTABLE: u32 = 9;
/// The right to administer file systems.
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// Groups and capabilities of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    groups: Vec<u32>,
    capabilities: u64,
}

impl Caller {
    /// Who has sent a request.
    pub(super) fn of(req: &Request) -> Caller {
        let mut caller = match req.pid() {
            0 => Caller::default(),
            pid => std::fs::read_to_string(format!("/proc/{pid}/status"))
                .map(|status| Caller::parse(&status))
                .unwrap_or_default(),
        };
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
        }
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

    /// Whether it has this capability.
    pub(super) fn can(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 != 0
    }

    /// Whether it is in this group.
    pub(super) fn is_in(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }
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
    fn who_is_not_seen_has_nothing() {
        assert_eq!(Caller::parse(""), Caller::default());
        assert!(!Caller::default().can(CAP_SYS_ADMIN));
    }
}
