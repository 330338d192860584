//! Restricts a mount by root of a region that other users may write.
//!
//! A user who can write the region can put a set-user-ID program of root or any device
//! file into it. The kernel trusts mounts of root, so such a region is mounted with
//! nosuid and nodev. The check uses the mapped descriptor, not the name: a name in a
//! directory of another user may be replaced and then refers to another file with
//! another owner.

use std::path::Path;

use pramfs_medium::pmem::Ownership;

use crate::exit::Failure;
use crate::options::{Flag, MountSettings};

/// Sets nosuid and nodev if root mounts a region that others may write. Returns a
/// message for the user.
///
/// # Errors
/// If the options ask for `suid` or `dev`.
pub fn distrust(
    ownership: Option<Ownership>,
    path: &Path,
    settings: &mut MountSettings,
) -> Result<Option<String>, Failure> {
    const ROOT: u32 = 0;
    let by_root = rustix::process::geteuid().is_root();
    let Some(why) = ownership
        .filter(|_| by_root)
        .and_then(|ownership| ownership.objection(ROOT))
    else {
        return Ok(None);
    };
    let shown = path.display();
    for (flag, option) in [(Flag::NoSuid, "suid"), (Flag::NoDev, "dev")] {
        let last = settings.flags_given.iter().rev().find(|f| f.0 == flag);
        if last.is_some_and(|(_, on)| !on) {
            return Err(Failure::mount(format!(
                "{shown} {why}: with the option {option}, any user who may write it could become root; leave the option out, or type: chown root {shown} && chmod 600 {shown}"
            )));
        }
    }
    if !settings.suid && !settings.dev {
        return Ok(None);
    }
    settings.suid = false;
    settings.dev = false;
    Ok(Some(format!("{shown} {why}: mounted with nosuid,nodev")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;
    use crate::options;

    fn settings(list: &str) -> MountSettings {
        let mut settings = MountSettings::default();
        options::parse(list, &mut settings).unwrap();
        settings
    }

    #[test]
    fn distrust_clears_suid_and_dev() {
        if !rustix::process::geteuid().is_root() {
            return pramfs_tests::skip::skipped("not root: nothing to be trusted with");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let asked = |list: &str| {
            let mut settings = settings(list);
            let said = distrust(Some(Ownership::of(&file).unwrap()), path, &mut settings);
            said.map(|said| (said.is_some(), settings.suid, settings.dev))
        };
        assert_eq!(asked("suid,dev").unwrap(), (false, true, true));
        rustix::fs::fchmod(&file, 0o666.into()).unwrap();
        assert_eq!(asked("").unwrap(), (true, false, false));
        assert_eq!(asked("defaults,rw").unwrap(), (true, false, false));
        assert_eq!(asked("nosuid,nodev").unwrap(), (false, false, false));
        assert_eq!(asked("suid,nosuid").unwrap(), (true, false, false));
        for list in ["suid", "dev", "nosuid,suid"] {
            let failure = asked(list).unwrap_err();
            assert_eq!(failure.status, Status::Mount, "{list}");
            assert!(
                failure.message.contains("leave the option out"),
                "{failure}"
            );
        }
        // A region in the memory of this process has no other writers.
        assert!(
            distrust(None, path, &mut settings("suid"))
                .unwrap()
                .is_none()
        );
    }
}
