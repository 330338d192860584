//! Who makes a request, and the groups and capabilities that a request does not carry.
//!
//! A kernel that may map a mount to other ids (ALLOW_IDMAP, Linux 6.12) gives user and group
//! only with requests that make an inode, as the mount maps them. All other requests come
//! without ([`CallerIds::Withheld`]), from every mount. Other kernels always give them.
//!
//! Groups and capabilities are read from `/proc/PID/status`, only for the few requests that
//! need them.
//! * If the process is not visible there (another PID namespace, or gone), it has neither:
//!   only known rights count.
//! * Capabilities count only if the process is in the user namespace of the server,
//!   because any user can be root in a new one.
//! * A request on behalf of another user (from overlayfs or the NFS server) has the user
//!   and group of that user, and no rights of the requesting process. Without ids, it cannot be
//!   told from others: it has the rights of the requesting process, which is the program that
//!   uses the overlay. What the kernel checks, it checks for the other user, who has mounted the
//!   overlay.
//! * A thread of the kernel (the NFS server) shows itself as root with all capabilities. Without
//!   ids, it has no user, no groups and no capabilities: it may act for anybody.
//!
//! `/proc` shows ids as they are outside of mapped mounts. So, where ids are withheld, what
//! depends on the owner or the group of a file is left to the kernel, which knows the mapping
//! and has checked before:
//!
//! | decision | checked in the kernel by |
//! |---|---|
//! | chmod keeps sgid | `setattr_prepare` |
//! | an access ACL keeps sgid | `fuse_set_acl`, which sets `FUSE_SETXATTR_ACL_KILL_SGID` |
//! | chattr by the owner, `+i` and `+a` | `vfs_fileattr_set`, `fileattr_set_prepare` |

use pramfs::inode::{Credentials, Groups};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::numbers::INVALID_UIDGID;
use pramfs_fuse_protocol::wire::InHeader;

use super::serve::{Refusal, Served};

/// The right to act as the owner of any file.
pub(super) const CAP_FOWNER: u32 = 3;
/// The right to keep sgid when changing a file of a foreign group.
const CAP_FSETID: u32 = 4;
/// The right to set and clear `chattr +i` and `+a`.
const CAP_LINUX_IMMUTABLE: u32 = 9;
/// The right to administer file systems.
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// User and group of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerIds {
    /// Those that the caller has, as the mount maps them.
    Given {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// The kernel does not say.
    Withheld,
}

impl CallerIds {
    /// Returns the ids of a request.
    pub(super) fn of(req: &InHeader) -> CallerIds {
        match (req.uid, req.gid) {
            (INVALID_UIDGID, _) | (_, INVALID_UIDGID) => CallerIds::Withheld,
            (uid, gid) => CallerIds::Given { uid, gid },
        }
    }

    /// Returns the credentials for an operation that makes an inode.
    ///
    /// # Errors
    /// EOVERFLOW, as from other file systems, if the ids have no number here.
    pub(super) fn creator(self, umask: u32) -> Served<Credentials<'static>> {
        match self {
            CallerIds::Given { uid, gid } => Ok(Credentials::new(uid, gid).with_umask(umask)),
            CallerIds::Withheld => Err(Refusal::Request(
                Errno::EOVERFLOW,
                "the new file would have no owner",
            )),
        }
    }
}

/// Groups and capabilities of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// User for file systems, if the process is visible.
    user: Option<u32>,
    groups: Vec<u32>,
    capabilities: u64,
    /// The process is known to act for another user.
    is_proxy: bool,
    /// It is a thread of the kernel.
    is_kernel: bool,
}

impl Caller {
    /// Returns the groups and capabilities of the caller of a request.
    pub(super) fn of(req: &InHeader) -> Caller {
        let status = match req.pid {
            0 => Vec::new(),
            pid => std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default(),
        };
        // A thread may give itself a name that is not UTF-8.
        let status = String::from_utf8_lossy(&status);
        let mut caller = Caller::parse(&status).with_ids(CallerIds::of(req));
        if !caller.is_proxy && !is_in_our_namespace(req.pid) {
            caller.capabilities = 0;
        }
        caller
    }

    /// Returns what this process may do in a request with these ids.
    fn with_ids(mut self, ids: CallerIds) -> Caller {
        match ids {
            CallerIds::Given { uid, gid } if self.user != Some(uid) => {
                // The kernel has already checked the rights of that user. User 0 gets the
                // capabilities of root.
                let capabilities = match uid {
                    0 => 1 << CAP_FOWNER | 1 << CAP_FSETID | 1 << CAP_LINUX_IMMUTABLE,
                    _ => 0,
                };
                return Caller {
                    user: Some(uid),
                    groups: vec![gid],
                    capabilities,
                    is_proxy: true,
                    is_kernel: self.is_kernel,
                };
            }
            CallerIds::Given { gid, .. } => self.groups.push(gid),
            CallerIds::Withheld if self.is_kernel => return Caller::default(),
            CallerIds::Withheld => {}
        }
        self
    }

    fn parse(status: &str) -> Caller {
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or("")
        };
        let numbers = |name: &str| {
            let numbers = field(name).split_whitespace();
            numbers.filter_map(|number| number.parse().ok())
        };
        // Real, effective, saved, and that for file systems.
        let of_file_systems = |name| numbers(name).nth(3);
        Caller {
            user: of_file_systems("Uid"),
            groups: numbers("Groups").chain(of_file_systems("Gid")).collect(),
            capabilities: u64::from_str_radix(field("CapEff").trim(), 16).unwrap_or(0),
            is_proxy: false,
            is_kernel: field("Kthread").trim() == "1",
        }
    }

    /// Tells whether the caller may change a file and keep its suid and sgid. Only a
    /// capability of the calling process itself counts, because overlayfs sends requests of
    /// all users on behalf of the user that mounted it.
    pub(super) fn keeps_rights(req: &InHeader) -> bool {
        let caller = Caller::of(req);
        !caller.is_proxy && caller.can(CAP_FSETID)
    }

    /// Tells whether the caller may clear suid and sgid of a file of `owner` for no other reason.
    ///
    /// Without ids, an owner on a mapped mount is not recognized, and a user may clear the bits
    /// of files that belong to that user outside of the mapped mount.
    pub(super) fn may_clear_rights(req: &InHeader, owner: u32) -> bool {
        if let CallerIds::Given { uid, .. } = CallerIds::of(req)
            && uid == owner
        {
            return true;
        }
        let caller = Caller::of(req);
        caller.user == Some(owner) || caller.can(CAP_FOWNER)
    }

    /// Returns a check whether the caller is in a group or has CAP_FSETID, and so keeps
    /// sgid. Reads `/proc` only when it is called.
    ///
    /// Without ids it compares the group with those outside of mapped mounts. It is then asked
    /// only about sgid that gives no rights, because the group may not execute the file: the
    /// server clears the other before ([`keeps_rights`](Self::keeps_rights)).
    pub(super) fn in_group(req: &InHeader) -> impl Fn(u32) -> bool {
        move |group| {
            if matches!(CallerIds::of(req), CallerIds::Given { gid, .. } if gid == group) {
                return true;
            }
            let caller = Caller::of(req);
            caller.is_in(group) || caller.can(CAP_FSETID)
        }
    }

    /// As [`in_group`](Self::in_group), for a change whose sgid the kernel has already cleared if
    /// it does not give ids.
    pub(super) fn in_group_unless_checked(req: &InHeader) -> impl Fn(u32) -> bool {
        move |group| CallerIds::of(req) == CallerIds::Withheld || Caller::in_group(req)(group)
    }

    /// Returns the credentials for an operation that makes no inode but may clear sgid.
    /// `is_member` is [`in_group`](Self::in_group) of the same request.
    pub(super) fn credentials<'a>(
        req: &InHeader,
        is_member: &'a (dyn Fn(u32) -> bool + Sync),
    ) -> Credentials<'a> {
        let credentials = match CallerIds::of(req) {
            CallerIds::Given { uid, gid } => Credentials::new(uid, gid),
            // Ids that no file has: `is_member` alone decides.
            CallerIds::Withheld => Credentials::new(INVALID_UIDGID, INVALID_UIDGID),
        };
        credentials.with_groups(Groups::Ask(is_member))
    }

    /// Tells whether the caller is shown the names of `trusted.` attributes. A request on
    /// behalf of root by another process (overlayfs) is.
    pub(super) fn sees_trusted(req: &InHeader) -> bool {
        let caller = Caller::of(req);
        caller.can(CAP_SYS_ADMIN) || caller.is_proxy && caller.user == Some(0)
    }

    /// Returns the user who is to have direct access. `None` if that user is not known.
    pub(super) fn user(req: &InHeader) -> Option<u32> {
        match CallerIds::of(req) {
            CallerIds::Given { uid, .. } => Some(uid),
            CallerIds::Withheld => Caller::of(req).user,
        }
    }

    /// Tells whether the caller administers this machine, or is the user who runs this server.
    /// Only rights of the calling process itself count, which a guest does not have.
    pub(super) fn owns_server(req: &InHeader) -> bool {
        let caller = Caller::of(req);
        let own = rustix::process::geteuid().as_raw();
        let runs = !caller.is_proxy && !caller.is_kernel && caller.user == Some(own);
        runs || caller.can(CAP_SYS_ADMIN)
    }

    /// Tells whether it has this capability.
    pub(super) fn can(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 != 0
    }

    /// Checks that the caller may change chattr flags of a file of `owner`. `forbids`: `+i` or
    /// `+a` changes. The error is the reason for the refusal.
    pub(super) fn may_set_flags(
        req: &InHeader,
        owner: u32,
        forbids: bool,
    ) -> Result<(), &'static str> {
        match CallerIds::of(req) {
            CallerIds::Given { uid, .. } => Caller::of(req).may_set_flags_as(uid, owner, forbids),
            // The kernel has checked this.
            CallerIds::Withheld => Ok(()),
        }
    }

    fn may_set_flags_as(&self, uid: u32, owner: u32, forbids: bool) -> Result<(), &'static str> {
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

/// Tells whether a process is in the user namespace of this one. Returns false if that
/// cannot be read.
fn is_in_our_namespace(pid: u32) -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    matches!((of("self"), of(&pid.to_string())), (Ok(ours), Ok(theirs)) if ours == theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uid: u32, gid: u32) -> InHeader {
        InHeader {
            uid,
            gid,
            pid: std::process::id(),
            ..InHeader::default()
        }
    }

    #[test]
    fn caller_parses_proc_status() {
        let text = "Name:\tcat\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 24 1000 \nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000000210\n";
        let caller = Caller::parse(text);
        assert!(caller.can(CAP_FSETID) && caller.can(CAP_LINUX_IMMUTABLE));
        assert!(!caller.can(CAP_SYS_ADMIN));
        assert!(caller.is_in(24) && caller.is_in(1000) && caller.is_in(8));
        assert!(!caller.is_in(0) && !caller.is_in(5));
        assert_eq!(caller.user, Some(4));
        assert!(is_in_our_namespace(std::process::id()));
        assert!(!is_in_our_namespace(0));
    }

    #[test]
    fn server_is_owned_by_its_user_and_root_but_no_guest() {
        let own = rustix::process::geteuid().as_raw();
        assert!(Caller::owns_server(&request(own, 0)));
        assert!(Caller::owns_server(&request(
            INVALID_UIDGID,
            INVALID_UIDGID
        )));
        // On behalf of another user.
        assert!(!Caller::owns_server(&request(own + 1, 0)));
        // The root of a guest, whose processes have no number here.
        for uid in [0, own] {
            let guest = InHeader {
                pid: 0,
                ..request(uid, 0)
            };
            assert!(!Caller::owns_server(&guest));
        }
    }

    #[test]
    fn withheld_ids_make_no_inode_and_match_no_group() {
        let withheld = request(INVALID_UIDGID, INVALID_UIDGID);
        assert_eq!(CallerIds::of(&withheld), CallerIds::Withheld);
        let refused = CallerIds::of(&withheld).creator(0).unwrap_err();
        assert_eq!(refused.errno(), Errno::EOVERFLOW);
        // Half of the ids are none.
        assert_eq!(
            CallerIds::of(&request(0, INVALID_UIDGID)),
            CallerIds::Withheld
        );
        let nobody = |_: u32| false;
        let credentials = Caller::credentials(&withheld, &nobody);
        assert!(!credentials.in_group(0) && !credentials.in_group(65_534));
        let made = CallerIds::of(&request(5, 6)).creator(0o22).unwrap();
        assert_eq!((made.uid, made.gid, made.umask), (5, 6, 0o22));
    }

    #[test]
    fn withheld_ids_are_those_of_process() {
        let us = rustix::process::geteuid().as_raw();
        let withheld = request(INVALID_UIDGID, INVALID_UIDGID);
        assert_eq!(Caller::user(&withheld), Some(us));
        assert!(Caller::may_clear_rights(&withheld, us));
        assert!(!Caller::of(&withheld).is_proxy);
        // A user other than that of the process: it acts for another one.
        let given = request(us + 1, 7);
        assert_eq!(Caller::user(&given), Some(us + 1));
        let caller = Caller::of(&given);
        assert!(caller.is_proxy && caller.is_in(7) && !caller.can(CAP_FSETID));
        // A process that is not visible has no user and no rights.
        let gone = InHeader { pid: 0, ..withheld };
        assert_eq!(Caller::of(&gone), Caller::default());
        assert_eq!(Caller::user(&gone), None);
        assert!(!Caller::keeps_rights(&gone) && !Caller::sees_trusted(&gone));
        assert!(!Caller::may_clear_rights(&gone, us));
        assert!(!Caller::in_group(&gone)(0));
    }

    #[test]
    fn kernel_thread_has_no_rights_of_its_own_if_ids_are_withheld() {
        let status = |kernel: &str| {
            format!(
                "Name:\tnfsd\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t4 24 \nKthread:\t{kernel}\nCapEff:\t000001ffffffffff\n"
            )
        };
        let of = |kernel: &str, ids| Caller::parse(&status(kernel)).with_ids(ids);
        let thread = of("1", CallerIds::Withheld);
        assert_eq!(thread, Caller::default());
        assert!(!thread.can(CAP_FSETID) && !thread.is_in(0) && !thread.is_in(24));
        let process = of("0", CallerIds::Withheld);
        assert!(process.can(CAP_FSETID) && process.is_in(0) && process.is_in(24));
        // With ids, the user is known.
        let given = of("1", CallerIds::Given { uid: 1000, gid: 7 });
        assert!(given.is_proxy && given.user == Some(1000) && given.is_in(7));
        assert!(!given.can(CAP_FSETID));
        // What this kernel writes.
        let kthreadd = std::fs::read_to_string("/proc/2/status").unwrap_or_default();
        if kthreadd.starts_with("Name:\tkthreadd\n") {
            let told = kthreadd.contains("\nKthread:");
            assert_eq!(Caller::parse(&kthreadd).is_kernel, told);
        } else {
            println!("no thread of the kernel is visible in this PID namespace");
        }
    }

    #[test]
    fn withheld_ids_leave_chmod_acl_and_chattr_to_kernel() {
        let gone = InHeader {
            pid: 0,
            ..request(INVALID_UIDGID, INVALID_UIDGID)
        };
        assert!(Caller::in_group_unless_checked(&gone)(5));
        assert!(Caller::may_set_flags(&gone, 5, true).is_ok());
        let given = InHeader {
            pid: 0,
            ..request(1000, 1000)
        };
        assert!(!Caller::in_group_unless_checked(&given)(5));
        assert!(Caller::in_group_unless_checked(&given)(1000));
        assert!(Caller::may_set_flags(&given, 5, false).is_err());
    }

    #[test]
    fn chattr_flags_need_owner_and_capability() {
        let with = |capabilities: u64| Caller {
            capabilities,
            ..Caller::default()
        };
        let (none, fowner, both) = (with(0), with(1 << 3), with(1 << 3 | 1 << 9));
        // Own file; file of another user.
        assert!(none.may_set_flags_as(1000, 1000, false).is_ok());
        assert!(none.may_set_flags_as(1000, 1001, false).is_err());
        assert!(none.may_set_flags_as(0, 1001, false).is_err());
        assert!(fowner.may_set_flags_as(1000, 1001, false).is_ok());
        // `+i` and `+a`, also of the own file.
        assert!(none.may_set_flags_as(1000, 1000, true).is_err());
        assert!(fowner.may_set_flags_as(1000, 1001, true).is_err());
        assert!(both.may_set_flags_as(1000, 1001, true).is_ok());
        assert!(with(1 << 9).may_set_flags_as(1000, 1000, true).is_ok());
        assert!(with(1 << 9).may_set_flags_as(1000, 1001, true).is_err());
    }

    /// Otherwise a thread of root without capabilities would pass for a proxy, which has some.
    #[test]
    fn caller_with_name_that_is_not_utf8_is_known() {
        let user = rustix::process::geteuid().as_raw();
        let named = std::thread::spawn(move || {
            rustix::thread::set_name(c"odd\xff").unwrap();
            Caller::of(&InHeader {
                pid: rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned(),
                ..request(user, 0)
            })
        });
        let caller = named.join().unwrap();
        assert!(!caller.is_proxy && caller.user == Some(user), "{caller:?}");
    }

    #[test]
    fn unknown_caller_has_no_rights() {
        assert_eq!(Caller::parse(""), Caller::default());
        assert!(!Caller::default().can(CAP_SYS_ADMIN));
    }
}
