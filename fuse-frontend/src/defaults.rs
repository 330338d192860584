//! Default options: what the superblock of a region says that a mount does unless its command line
//! says otherwise (`pramfs tune -o`).
//!
//! They become the first options of the command line. So a later option takes each of them back,
//! and every process of the mount has them. What may be one, and why a region that is not trusted
//! may choose them, is in [`pramfs_medium::media::default_options`].

use std::ffi::OsString;
use std::path::Path;

use pramfs_medium::media::default_options::DefaultOptions;
use pramfs_medium::media::identify;

/// Returns the default options of a region; none if it holds no file system.
///
/// # Errors
/// The superblock cannot be read. The mount may be possible even so.
pub fn of(region: &Path) -> Result<DefaultOptions, pramfs::Error> {
    // A page of a device may have failed.
    pramfs::pmem::install_fault_guard()?;
    let found = identify(region)?;
    Ok(found.map_or_else(DefaultOptions::default, |info| {
        DefaultOptions::from_bits(info.fixed.default_options)
    }))
}

/// Puts default options before the others of a command line.
pub fn put_first(args: &mut Vec<OsString>, options: DefaultOptions) {
    let at = args.len().min(1);
    args.splice(at..at, ["-o".into(), options.to_string().into()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{MountSettings, parse};

    #[test]
    fn each_default_option_is_one_of_a_mount_and_is_taken_back_by_its_opposite() {
        for (name, opposite) in DefaultOptions::all().names() {
            let parsed = |list: &str| {
                let mut settings = MountSettings::default();
                parse(list, &mut settings).unwrap_or_else(|why| panic!("{list}: {why:?}"));
                settings.flags_given.clear();
                settings
            };
            let default = parsed("");
            // What mounts of every user have is on by default.
            assert!(
                parsed(name) != default || ["nosuid", "nodev"].contains(&name),
                "{name}"
            );
            assert_eq!(parsed(&format!("{name},{opposite}")), parsed(opposite));
            assert_ne!(parsed(name), parsed(opposite), "{name}");
        }
    }

    #[test]
    fn default_options_come_before_those_of_the_command_line() {
        let mut args: Vec<OsString> = ["mount.pramfs", "/r", "/m", "-o", "relatime"]
            .map(OsString::from)
            .to_vec();
        let mut options = DefaultOptions::default();
        options.change("noatime,nosuid").unwrap();
        put_first(&mut args, options);
        let expected = [
            "mount.pramfs",
            "-o",
            "noatime,nosuid",
            "/r",
            "/m",
            "-o",
            "relatime",
        ];
        assert_eq!(args, expected.map(OsString::from));
    }

    #[test]
    fn region_without_superblock_has_no_default_options() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        assert!(of(&path).is_err());
        std::fs::write(&path, [0; 4096]).unwrap();
        assert_eq!(of(&path).unwrap(), DefaultOptions::default());
    }
}
