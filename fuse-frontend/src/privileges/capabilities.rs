//! The capabilities that root's server keeps, each with its reason.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// A capability that is kept.
#[derive(Debug)]
pub struct Kept {
    /// Which.
    pub set: CapabilitySet,
    /// Its name, as capabilities(7) has it.
    pub name: &'static str,
    /// What it is for.
    pub reason: &'static str,
}

/// All that is kept; docs/security.md has the same table.
pub const KEPT: [Kept; 3] = [
    Kept {
        set: CapabilitySet::SYS_ADMIN,
        name: "CAP_SYS_ADMIN",
        reason: "to unmount when a signal ends the server, and to remount read-only after damage",
    },
    Kept {
        set: CapabilitySet::SYS_PTRACE,
        name: "CAP_SYS_PTRACE",
        reason: "to read the groups, capabilities and user namespace of a caller in /proc, also with hidepid",
    },
    Kept {
        set: CapabilitySet::DAC_READ_SEARCH,
        name: "CAP_DAC_READ_SEARCH",
        reason: "to reach a mount point in a directory that its owner alone may search",
    },
];

/// The kept ones as a set.
pub(super) fn kept() -> CapabilitySet {
    KEPT.iter()
        .fold(CapabilitySet::empty(), |all, kept| all | kept.set)
}

/// Takes all others out of the sets of this thread, and with them of the threads
/// that it starts: bounding, ambient, inheritable, permitted and effective.
///
/// # Errors
/// Of prctl(2) and capset(2).
pub(super) fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    // The bounding set first: that takes CAP_SETPCAP, which goes with the others.
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(one) {
            Ok(true) if !kept.contains(one) => {
                rustix::thread::remove_capability_from_bounding_set(one)?;
            }
            Ok(_) => {}
            // The kernel knows no more of them.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match rustix::thread::clear_ambient_capability_set() {
        // Linux before 4.3 has none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let had = rustix::thread::capabilities(None)?;
    let left = had.permitted & kept;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: left,
            permitted: left,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Capabilities are a thread's own: the test's thread keeps its.
    #[test]
    fn a_thread_that_keeps_some_passes_no_others_on() {
        if !rustix::process::geteuid().is_root() {
            return pramfs_tests::skip::skipped("not root: no capabilities to give up");
        }
        let before = rustix::thread::capabilities(None).unwrap();
        std::thread::spawn(move || {
            keep_only(kept()).unwrap();
            std::thread::spawn(move || {
                let sets = rustix::thread::capabilities(None).unwrap();
                assert_eq!(sets.permitted, before.permitted & kept());
                assert_eq!(sets.effective, sets.permitted);
                assert!(sets.inheritable.is_empty());
                for (one, stays) in [
                    (CapabilitySet::SYS_ADMIN, true),
                    (CapabilitySet::DAC_OVERRIDE, false),
                    (CapabilitySet::SETUID, false),
                ] {
                    assert_eq!(
                        rustix::thread::capability_is_in_bounding_set(one),
                        Ok(stays && before.permitted.contains(one))
                    );
                }
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(rustix::thread::capabilities(None).unwrap(), before);
    }
}
