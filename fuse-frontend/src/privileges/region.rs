//! A region that somebody besides root may write, mounted by root.
//!
//! Whoever can write the region can put a set-user-ID program of root into it,
//! or a device file for anything. The kernel believes a mount of root's, so such
//! a region is mounted without both. What counts is the descriptor that is
//! mapped, not the name: a name in somebody else's directory may be replaced, and
//! then means another file with another owner.

use std::path::Path;

use pramfs_medium::pmem::Ownership;

use crate::exit::Failure;
use crate::options::MountSettings;

/// Takes set-user-ID bits and device files from a mount by root of a region that
/// others may write. Gives what the user should know.
///
/// # Errors
/// The options ask for just these.
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
    for (flag, option) in [("nosuid", "suid"), ("nodev", "dev")] {
        let last = settings.flags_given.iter().rev().find(|f| f.0 == flag);
        if last.is_some_and(|(_, on)| !on) {
            return Err(Failure::mount(format!(
                "{shown} {why}: the option {option} would let whoever may write it be root; leave the option out, or type: chown root {shown} && chmod 600 {shown}"
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
    fn what_others_may_write_is_mounted_without_suid_and_dev() {
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
        // A region in memory of this process is nobody else's.
        assert!(
            distrust(None, path, &mut settings("suid"))
                .unwrap()
                .is_none()
        );
    }
}
