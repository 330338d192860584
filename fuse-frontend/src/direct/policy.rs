//! The policy of direct access: who may get which lease.
//!
//! The descriptor of a lease shows the whole region, and a descriptor for writing changes it.
//! So the administrator decides by the options `direct` and `direct-write-is-root`, and not the
//! mode of one file.
//!
//! Attack: a client opens a descriptor for reading again, through `/proc/self/fd`, for writing.
//! The kernel lets a user do that who may write the region's file. So users other than its
//! owner get a lease to read only while the owner alone may write the file. This is checked at
//! the mount and at each grant. A holder from before a chmod keeps its descriptor.

use pramfs::inode::LeaseMode;
use pramfs_control::{Refusal, Refused, Users};
use pramfs_medium::pmem::Permissions;

/// Who may access files directly, besides root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectPolicy {
    /// Nobody, nor root.
    #[default]
    Off,
    /// The user who owns the region.
    Owner,
    /// Also the members of the region's group.
    Group,
    /// Everybody.
    All,
}

impl DirectPolicy {
    /// Returns its name, as in the option.
    pub fn name(self) -> &'static str {
        match self {
            DirectPolicy::Off => "off",
            DirectPolicy::Owner => "owner",
            DirectPolicy::Group => "group",
            DirectPolicy::All => "all",
        }
    }

    fn is_for_others(self) -> bool {
        matches!(self, DirectPolicy::Group | DirectPolicy::All)
    }
}

/// The policy of one mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    policy: DirectPolicy,
    /// Users of `group` and `all` may also get leases to write.
    write_is_root: bool,
    /// What the kernel shows for users and groups that have no number in this user namespace.
    overflow: (u32, u32),
}

impl Policy {
    /// Makes the policy that the options ask for.
    pub fn new(policy: DirectPolicy, write_is_root: bool) -> Policy {
        const USUAL: u32 = 65534;
        let read = |name| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
            text.and_then(|text| text.trim().parse().ok())
                .unwrap_or(USUAL)
        };
        Policy {
            policy,
            write_is_root,
            overflow: (read("overflowuid"), read("overflowgid")),
        }
    }

    /// The same for root alone: nobody else can reach the socket.
    #[must_use]
    pub fn of_root(self) -> Policy {
        Policy {
            policy: DirectPolicy::Off,
            ..self
        }
    }

    /// Returns who can reach the socket besides root. `None` if nobody.
    pub fn users(self, region: &Permissions) -> Option<Users> {
        let (owner, group) = (region.owner, region.group);
        match self.policy {
            DirectPolicy::Off => None,
            DirectPolicy::Owner => (owner != 0).then_some(Users::Owner(owner)),
            DirectPolicy::Group => Some(Users::Group { owner, group }),
            DirectPolicy::All => Some(Users::All { owner }),
        }
    }

    /// Returns why a region cannot be mounted with this policy, and what to do.
    pub fn objection(self, region: &Permissions) -> Option<String> {
        let why = self.exposed(region)?;
        Some(format!(
            "direct={} would let users of that policy write the region, since {why}; take that right away (chmod go-w, setfacl -b), or mount with direct=owner",
            self.policy.name()
        ))
    }

    /// Returns why a descriptor for reading would not stay one.
    fn exposed(self, region: &Permissions) -> Option<&str> {
        let matters = self.policy.is_for_others() && !self.write_is_root;
        region.objection.as_deref().filter(|_| matters)
    }

    /// Returns what the policy gives away: a sentence for the administrator.
    pub fn warning(self, region: &Permissions) -> Option<String> {
        let whom = match self.policy {
            DirectPolicy::Off | DirectPolicy::Owner => return None,
            DirectPolicy::Group => format!("every member of group {}", region.group),
            DirectPolicy::All => "every user".to_owned(),
        };
        Some(match self.write_is_root {
            false => format!(
                "direct={}: {whom} can read every file of this file system",
                self.policy.name()
            ),
            true => format!(
                "direct={}, direct-write-is-root=yes: {whom} can read and change every file of this file system, and become root by a program in it",
                self.policy.name()
            ),
        })
    }

    /// Checks a user who asks for a ticket, or redeems one. `is_member` tells whether the process
    /// is in a group.
    ///
    /// # Errors
    /// The user gets no such lease.
    pub fn check(
        self,
        uid: u32,
        is_member: &dyn Fn(u32) -> bool,
        mode: LeaseMode,
        region: &Permissions,
    ) -> Result<(), Refused> {
        if uid == 0 {
            return Ok(());
        }
        // Any user of another namespace looks like this one.
        if uid == self.overflow.0 {
            return refused(
                "the server cannot tell the user of this process from others (user namespaces), so it gets no direct access",
            );
        }
        match self.policy {
            DirectPolicy::Off => {
                return refused("the policy of this mount allows direct access to root only");
            }
            _ if uid == region.owner => return Ok(()),
            DirectPolicy::Owner => {
                return refused(
                    "the policy of this mount allows direct access to root and to the owner of the region only",
                );
            }
            DirectPolicy::Group => {
                let known = region.group != self.overflow.1;
                if !known || !is_member(region.group) {
                    return refused(format!(
                        "the policy of this mount allows direct access to members of the region's group ({}) only",
                        region.group
                    ));
                }
            }
            DirectPolicy::All => {}
        }
        if mode == LeaseMode::Write && !self.write_is_root {
            return refused(
                "the policy of this mount allows direct access for writing to root and to the owner of the region only",
            );
        }
        match self.exposed(region) {
            None => Ok(()),
            Some(why) => refused(format!(
                "no leases for users other than the owner of the region, since {why}; its owner must take that right away"
            )),
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::new(Refusal::NotPermitted, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;
    const GROUP: u32 = 50;
    const NOBODY: u32 = 65534;

    fn policy(policy: DirectPolicy, write_is_root: bool) -> Policy {
        Policy {
            policy,
            write_is_root,
            overflow: (NOBODY, NOBODY),
        }
    }

    fn region(objection: Option<&str>) -> Permissions {
        Permissions {
            owner: OWNER,
            group: GROUP,
            objection: objection.map(str::to_owned),
        }
    }

    fn allows(policy: Policy, uid: u32, groups: &[u32], mode: LeaseMode, at: &Permissions) -> bool {
        let is_member = |group| groups.contains(&group);
        policy.check(uid, &is_member, mode, at).is_ok()
    }

    /// For each policy: who may read, who may write. The users: root, the owner, a member of
    /// the group, a stranger, one without a number.
    #[test]
    fn policies_decide_by_user_group_and_mode() {
        use DirectPolicy::{All, Group, Off, Owner};
        let users: [(u32, &[u32]); 5] = [
            (0, &[0]),
            (OWNER, &[7]),
            (1001, &[7, GROUP]),
            (1002, &[7]),
            (NOBODY, &[GROUP]),
        ];
        for (kind, write_is_root, read, write) in [
            (Off, false, "r....", "r...."),
            (Owner, false, "ro...", "ro..."),
            (Group, false, "rom..", "ro..."),
            (Group, true, "rom..", "rom.."),
            (All, false, "roms.", "ro..."),
            (All, true, "roms.", "roms."),
        ] {
            for (mode, expect) in [(LeaseMode::Read, read), (LeaseMode::Write, write)] {
                let policy = policy(kind, write_is_root);
                let at = region(None);
                let found: String = users
                    .iter()
                    .zip("romsn".chars())
                    .map(
                        |((uid, groups), letter)| match allows(policy, *uid, groups, mode, &at) {
                            true => letter,
                            false => '.',
                        },
                    )
                    .collect();
                assert_eq!(found, expect, "{policy:?} {mode:?}");
            }
        }
    }

    #[test]
    fn region_that_others_may_write_gives_leases_to_owner_only() {
        use DirectPolicy::{All, Group, Owner};
        let at = region(Some("its group may write it (mode 0660)"));
        for (kind, write_is_root, others) in [
            (Owner, false, false),
            (Group, false, false),
            (All, false, false),
            // They may write it anyway.
            (Group, true, true),
            (All, true, true),
        ] {
            let policy = policy(kind, write_is_root);
            let refused = policy.objection(&at);
            assert_eq!(refused.is_some(), kind != Owner && !others, "{policy:?}");
            for (uid, expect) in [(0, true), (OWNER, true), (1001, others)] {
                let found = allows(policy, uid, &[GROUP], LeaseMode::Read, &at);
                assert_eq!(found, expect, "{policy:?} {uid}");
            }
        }
        let refused = policy(All, false).objection(&at).unwrap();
        assert!(
            refused.contains("chmod go-w") && refused.contains("0660"),
            "{refused}"
        );
    }

    #[test]
    fn group_without_number_has_no_members() {
        let at = Permissions {
            group: NOBODY,
            ..region(None)
        };
        let policy = policy(DirectPolicy::Group, false);
        assert!(!allows(policy, 1001, &[NOBODY], LeaseMode::Read, &at));
        // The group at the time of the grant counts.
        let at = Permissions {
            group: 51,
            ..region(None)
        };
        assert!(!allows(policy, 1001, &[GROUP], LeaseMode::Read, &at));
        assert!(allows(policy, 1001, &[51], LeaseMode::Read, &at));
    }

    #[test]
    fn owner_without_number_gets_no_lease() {
        let at = Permissions {
            owner: NOBODY,
            ..region(None)
        };
        for kind in [DirectPolicy::Owner, DirectPolicy::All] {
            assert!(!allows(
                policy(kind, true),
                NOBODY,
                &[],
                LeaseMode::Read,
                &at
            ));
        }
    }

    #[test]
    fn warnings_tell_what_is_given_away() {
        let warning = |kind, write| policy(kind, write).warning(&region(None));
        assert_eq!(warning(DirectPolicy::Owner, false), None);
        let all = warning(DirectPolicy::All, false).unwrap();
        assert!(all.contains("every user can read every file"), "{all}");
        let group = warning(DirectPolicy::Group, true).unwrap();
        assert!(
            group.contains("group 50") && group.contains("become root"),
            "{group}"
        );
    }
}
