//! The capabilities that root's server keeps, each with its reason.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// A kept capability.
#[derive(Debug)]
pub struct Kept {
    /// The capability.
    pub set: CapabilitySet,
    /// Its name in capabilities(7).
    pub name: &'static str,
    /// Its purpose.
    pub reason: &'static str,
}

/// All kept capabilities; docs/security.md has the same table.
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

/// One more, kept if the region belongs to another user who may get leases to write.
pub const KEPT_FOR_OWNER: Kept = Kept {
    set: CapabilitySet::DAC_OVERRIDE,
    name: "CAP_DAC_OVERRIDE",
    reason: "to open another user's region for that user's leases to write",
};

/// One more, kept with `transport=uring` and `auto` if `RLIMIT_NICE` cannot be raised instead.
pub const KEPT_TO_YIELD: Kept = Kept {
    set: CapabilitySet::SYS_NICE,
    name: "CAP_SYS_NICE",
    reason: "to give a serving thread that waits for its processor the usual scheduling policy back",
};

/// Returns the kept capabilities as a set.
pub(super) fn kept(leases_of_owner: bool, yields: bool) -> CapabilitySet {
    let for_owner = leases_of_owner.then_some(&KEPT_FOR_OWNER);
    let to_yield = yields.then_some(&KEPT_TO_YIELD);
    KEPT.iter()
        .chain(for_owner)
        .chain(to_yield)
        .fold(CapabilitySet::empty(), |all, kept| all | kept.set)
}

/// Drops all other capabilities from the sets of this thread and of threads that it will
/// start: bounding, ambient, inheritable, permitted and effective.
///
/// # Errors
/// Errors of prctl(2) and capset(2).
pub(super) fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    // The bounding set first: changing it needs CAP_SETPCAP, which is dropped below.
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(one) {
            Ok(true) if !kept.contains(one) => {
                rustix::thread::remove_capability_from_bounding_set(one)?;
            }
            Ok(_) => {}
            // Beyond the last capability of this kernel.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match rustix::thread::clear_ambient_capability_set() {
        // Linux before 4.3 has no ambient set.
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

    /// Capabilities are per thread, so the thread of the test keeps its own.
    #[test]
    fn threads_inherit_only_kept_capabilities() {
        if !rustix::process::geteuid().is_root() {
            return pramfs_tests::skip::skipped("not root: no capabilities to give up");
        }
        let before = rustix::thread::capabilities(None).unwrap();
        std::thread::spawn(move || {
            keep_only(kept(false, false)).unwrap();
            std::thread::spawn(move || {
                let sets = rustix::thread::capabilities(None).unwrap();
                assert_eq!(sets.permitted, before.permitted & kept(false, false));
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
