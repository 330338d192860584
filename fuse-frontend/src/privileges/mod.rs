//! What the process that serves a mount may do, beyond serving it.
//!
//! Root's server reads bytes that others may have written (the region) and
//! requests that others have made. So that a mistake in it is not a program of the
//! attacker's choice at once, it gives up what serving does not take:
//! `capabilities`, then new privileges, core dumps, and all system calls but those
//! of `calls`. It stays a process of user 0 that opens files and talks to sockets:
//! that is no wall (docs/security.md, section 5, says what is left). It starts with an
//! [`environment`] of its own, and starts [`programs`] by their absolute paths.
//!
//! Order: the kernel keeps capabilities for each thread, so they go before the
//! first thread is started, which is the engine's; what mounting takes is among
//! those that are kept. What counts for the whole process goes when the mount is
//! made, before the first request is served.
//!
//! The server of an ordinary user, and one that had to mount by fusermount3, gives
//! up nothing: it has no rights but its user's, and fusermount3, which unmounts
//! for it, is set-user-ID, which is a new privilege.
//!
//! Invariant: giving something up never costs a mount. What the kernel refuses
//! is said, and the server goes on.

mod calls;
mod capabilities;
pub mod environment;
mod filter;
pub mod programs;
pub mod region;

use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;

pub use capabilities::{KEPT, Kept};

use crate::options::MountSettings;

/// What is still to be given up.
#[derive(Debug)]
#[must_use = "a server keeps its privileges until it confines itself"]
pub struct Privileges {
    /// It is root's, and mounts by the system call.
    of_root: bool,
    notices: Vec<String>,
}

/// Something that is given up.
type Step = fn() -> std::io::Result<()>;

impl Privileges {
    /// Gives up capabilities. Before the first thread is started.
    pub fn shed(settings: &MountSettings) -> Privileges {
        let mounts_itself = || {
            rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
        };
        let of_root = settings.sandbox && rustix::process::geteuid().is_root() && mounts_itself();
        let mut notices = Vec::new();
        if of_root && let Err(error) = capabilities::keep_only(capabilities::kept()) {
            notices.push(format!(
                "WARNING: the server keeps all capabilities of root: giving them up: {error}"
            ));
        }
        Privileges { of_root, notices }
    }

    /// Gives up the rest: after the mount, before the first request. `by_helper`
    /// says that fusermount3 has mounted, and has to unmount. Gives what the user
    /// should know.
    #[must_use]
    pub fn confine(mut self, by_helper: bool) -> Vec<String> {
        if !self.of_root || by_helper {
            return self.notices;
        }
        let steps: [(&str, Step); 3] = [
            ("may gain privileges by a program that it starts", || {
                Ok(rustix::thread::set_no_new_privs(true)?)
            }),
            ("may leave a core dump", || {
                Ok(rustix::process::set_dumpable_behavior(
                    DumpableBehavior::NotDumpable,
                )?)
            }),
            ("may make any system call", filter::put_in_force),
        ];
        for (what, step) in steps {
            if let Err(error) = step() {
                self.notices.push(format!(
                    "WARNING: the server {what}: the kernel says: {error}"
                ));
            }
        }
        self.notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the test that has itself run anew, in a process that it may confine.
    const CHILD: &str = "PRAMFS_TEST_CONFINED";

    /// A process that is confined already may not change what it was left with:
    /// to it the kernel refuses everything.
    #[test]
    fn what_the_kernel_refuses_to_take_is_said_and_costs_no_mount() {
        let of_root = || Privileges {
            of_root: true,
            notices: Vec::new(),
        };
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(of_root().confine(false), Vec::<String>::new());
            let notices = of_root().confine(false);
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
        // fusermount3 could not unmount for a process that is confined.
        assert_eq!(of_root().confine(true), Vec::<String>::new());
        assert_eq!(rustix::thread::no_new_privs(), Ok(false));
        let name = "what_the_kernel_refuses_to_take_is_said_and_costs_no_mount";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&format!("privileges::tests::{name}"), "--exact"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
    }
}
