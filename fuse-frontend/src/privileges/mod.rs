//! The privileges of the server process.
//!
//! Root's server reads bytes (the region) and requests that other users may control. So
//! that a bug in it does not directly give an attacker arbitrary code, it drops what
//! serving does not need: first `capabilities`, then new privileges, core dumps, and all
//! system calls except those of `calls`. It remains a process of user 0 that opens files
//! and uses sockets, so this is not full isolation (docs/security.md, section 5, lists
//! the remaining rights). It runs with its own [`environment`], and starts [`programs`]
//! by absolute path.
//!
//! Order: capabilities are per thread, so the server drops them before the first thread
//! starts, which is the engine's; the kept ones include those for mounting. Process-wide
//! privileges are dropped after the mount and before the first request.
//!
//! The server of an ordinary user, and one that had to mount by fusermount3, drops
//! nothing: it has only the rights of its user, and it needs fusermount3 to unmount.
//! That program is set-user-ID, which is a new privilege.
//!
//! Invariant: dropping privileges never fails a mount. If the kernel refuses a step, the
//! server reports it and continues.

mod calls;
mod capabilities;
pub mod environment;
mod filter;
pub mod programs;
pub mod region;
mod view;

use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;

pub use capabilities::{KEPT, KEPT_FOR_OWNER, KEPT_TO_YIELD, Kept};
pub use view::View;

use crate::options::MountSettings;

/// The privileges still to be dropped.
#[derive(Debug)]
#[must_use = "a server keeps its privileges until it confines itself"]
pub struct Privileges {
    /// The server may drop them: it runs as root and mounts by system call, or mounts nothing.
    confines: bool,
    notices: Vec<String>,
}

/// What a server needs beside the usual system calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extra {
    /// Its threads wait by io_uring_enter(2).
    pub io_uring: bool,
    /// It serves guests alone: it connects to nobody, and removes no names.
    pub guests_only: bool,
}

/// Drops one privilege.
type Step = fn(Extra) -> std::io::Result<()>;

impl Privileges {
    /// Drops capabilities. Must run before the first thread starts. `leases_of_owner`: another
    /// user owns the region, and may get leases.
    pub fn shed(settings: &MountSettings, leases_of_owner: bool) -> Privileges {
        let mounts_itself = || {
            rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
        };
        let of_root = settings.sandbox && rustix::process::geteuid().is_root() && mounts_itself();
        let mut notices = Vec::new();
        let kept = capabilities::kept(leases_of_owner, settings.transport().needs_sys_nice());
        if of_root && let Err(error) = capabilities::keep_only(kept) {
            notices.push(format!(
                "WARNING: the server keeps all capabilities of root; dropping them failed: {error}"
            ));
        }
        Privileges {
            confines: of_root,
            notices,
        }
    }

    /// Drops all capabilities, for a server without a mount, and all files that it does not need.
    /// Must run before the first thread starts. `filters`: the rest goes too.
    ///
    /// # Errors
    /// What cannot be dropped: a guest is not trusted, so it is not served then.
    pub fn shed_all(filters: bool, view: Option<View<'_>>) -> Result<Privileges, String> {
        if rustix::process::geteuid().is_root()
            && let Err(error) = capabilities::keep_only(CapabilitySet::empty())
        {
            return Err(format!(
                "the capabilities of root cannot be dropped: {error}"
            ));
        }
        let kept = view.map_or(Ok(()), |view| {
            rustix::thread::set_no_new_privs(true)?;
            view.keep_only()
        });
        if let Err(error) = kept {
            return Err(format!(
                "the kernel refuses to take the files of this machine away from the server (Landlock): {error}; with --sandbox none, it is served nevertheless"
            ));
        }
        Ok(Privileges {
            confines: filters,
            notices: Vec::new(),
        })
    }

    /// Drops the rest, after the mount and before the first request. `by_helper`:
    /// fusermount3 has mounted and must unmount. Returns messages for the user.
    #[must_use]
    pub fn confine(mut self, by_helper: bool, extra: Extra) -> Vec<String> {
        if !self.confines || by_helper {
            return self.notices;
        }
        let steps: [(&str, Step); 3] = [
            ("may gain privileges by executing a program", |_| {
                Ok(rustix::thread::set_no_new_privs(true)?)
            }),
            ("may leave a core dump", |_| {
                Ok(rustix::process::set_dumpable_behavior(
                    DumpableBehavior::NotDumpable,
                )?)
            }),
            ("may make any system call", filter::put_in_force),
        ];
        for (what, step) in steps {
            if let Err(error) = step(extra) {
                self.notices.push(format!(
                    "WARNING: the server {what}; the kernel refused to prevent it: {error}"
                ));
            }
        }
        self.notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the child process in which the test runs itself, to confine it.
    const CHILD: &str = "PRAMFS_TEST_CONFINED";

    /// In an already confined process, the kernel refuses all three steps.
    #[test]
    fn refused_confinement_is_reported_without_failing() {
        let of_root = || Privileges {
            confines: true,
            notices: Vec::new(),
        };
        if std::env::var_os(CHILD).is_some() {
            let extra = Extra::default();
            assert_eq!(of_root().confine(false, extra), Vec::<String>::new());
            let notices = of_root().confine(false, extra);
            assert_eq!(notices.len(), 3, "{notices:?}");
            for (notice, says) in notices
                .iter()
                .zip(["privileges", "core dump", "system call"])
            {
                assert!(
                    notice.contains(says) && notice.contains("WARNING"),
                    "{notice}"
                );
            }
            return;
        }
        // fusermount3 could not unmount for a confined process.
        assert_eq!(
            of_root().confine(true, Extra::default()),
            Vec::<String>::new()
        );
        assert_eq!(rustix::thread::no_new_privs(), Ok(false));
        let name = "refused_confinement_is_reported_without_failing";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&format!("privileges::tests::{name}"), "--exact"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
    }
}
