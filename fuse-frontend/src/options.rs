//! The options of `-o`.
//!
//! Every option has its name in `apply`; one that is not known is refused by
//! its name. The last of several that contradict each other counts, as for
//! mount(8).

use pramfs::pmem::{BackendKind, Durability};
use pramfs::{AtimePolicy, ErrorPolicy};

use crate::adapter::CacheMode;
use crate::mountinfo::FS_TYPE;

/// Everything that `-o` can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// Nothing may be changed.
    pub read_only: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-id bits work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Symbolic links are followed.
    pub symlinks: bool,
    /// Every change is durable when it returns. The kernel sees to that for
    /// writes, and for nothing else of FUSE: see [`Self::durability()`].
    pub sync: bool,
    /// Every change of a directory is.
    pub dirsync: bool,
    /// Access times.
    pub atime: AtimePolicy,
    /// Directories have access times, too.
    pub dir_atime: bool,
    /// What damage does to the mount.
    pub errors: ErrorPolicy,
    /// Use of the page cache.
    pub cache: CacheMode,
    /// Threads that serve requests; by default as many as there are processors.
    pub threads: Option<usize>,
    /// Bound of the inode cache in bytes.
    pub cache_bytes: Option<u64>,
    /// Users other than the one who mounts may come in; by default if that
    /// one is root.
    pub allow_other: Option<bool>,
    /// Backend.
    pub backend: BackendKind,
    /// What a completed operation survives on media that take an msync.
    pub durability: Durability,
    /// Fail unless the region is mapped with DAX.
    pub require_dax: bool,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// Freed blocks go back to the host at once.
    pub discard: bool,
    /// The medium is left as a crash has left it. So it is by any mount that is
    /// read-only, which replays the journal in memory of its own.
    pub no_recovery: bool,
    /// Name to show as the source instead of the region's path.
    pub source: Option<String>,
    /// Show the type as plain `fuse`.
    pub plain_type: bool,
    /// Root's server gives up what serving does not take.
    pub sandbox: bool,
    /// Change the flags of a live mount.
    pub remount: bool,
    /// Options that only a remount may repeat, by name.
    pub kernel_options: Vec<String>,
    /// The flags of a mount that were given, for a remount.
    pub flags_given: Vec<(String, bool)>,
}

impl Default for MountSettings {
    fn default() -> Self {
        MountSettings {
            read_only: false,
            dev: true,
            suid: true,
            exec: true,
            symlinks: true,
            sync: false,
            dirsync: false,
            atime: AtimePolicy::Relatime,
            dir_atime: true,
            errors: ErrorPolicy::RemountRo,
            cache: CacheMode::Auto,
            threads: None,
            cache_bytes: None,
            allow_other: None,
            backend: BackendKind::Auto,
            durability: Durability::Power,
            require_dax: false,
            nonempty: false,
            discard: false,
            no_recovery: false,
            source: None,
            plain_type: false,
            sandbox: true,
            remount: false,
            kernel_options: Vec::new(),
            flags_given: Vec::new(),
        }
    }
}

impl MountSettings {
    /// Whether a mount of this type can be one of ours. What is mounted as plain
    /// `fuse` is known by its source and by who says so.
    pub fn is_type(&self, fs_type: &str) -> bool {
        fs_type == FS_TYPE || (self.plain_type && fs_type == "fuse")
    }

    /// What a completed operation is to survive: what `durability=` says, but
    /// with `sync` and `dirsync` a power failure in any case.
    pub fn durability(&self) -> Durability {
        match self.sync || self.dirsync {
            true => Durability::Power,
            false => self.durability,
        }
    }
}

/// Most threads that make sense for one mount.
pub const MAX_THREADS: usize = 64;

/// An option that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// There is no such option.
    Unknown(String),
    /// It is known, and wrong here; the sentence says why.
    Wrong(String),
}

/// Reads one `-o` list into `settings`.
///
/// # Errors
/// The first option that is refused, by name.
pub fn parse(list: &str, settings: &mut MountSettings) -> Result<(), Refused> {
    list.split(',')
        .filter(|option| !option.is_empty())
        .try_for_each(|option| apply(option, settings))
}

fn apply(option: &str, to: &mut MountSettings) -> Result<(), Refused> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    match (name, value) {
        ("ro", None) => to.set_flag("ro", true),
        ("rw", None) => to.set_flag("ro", false),
        ("dev", None) => to.set_flag("nodev", false),
        ("nodev", None) => to.set_flag("nodev", true),
        ("suid", None) => to.set_flag("nosuid", false),
        ("nosuid", None) => to.set_flag("nosuid", true),
        ("exec", None) => to.set_flag("noexec", false),
        ("noexec", None) => to.set_flag("noexec", true),
        ("symfollow", None) => to.set_flag("nosymfollow", false),
        ("nosymfollow", None) => to.set_flag("nosymfollow", true),
        ("sync", None) => to.set_flag("sync", true),
        ("async", None) => to.set_flag("sync", false),
        ("dirsync", None) => to.set_flag("dirsync", true),
        // The right to mount given to others in fstab takes these with it,
        // unless a later option says otherwise.
        ("user" | "users" | "owner" | "group", _) => {
            for flag in ["nodev", "nosuid", "noexec"] {
                to.set_flag(flag, true);
            }
        }

        ("noatime", None) => to.set_atime(AtimePolicy::NoAtime),
        ("atime" | "relatime" | "nostrictatime", None) => to.set_atime(AtimePolicy::Relatime),
        ("strictatime" | "norelatime", None) => to.set_atime(AtimePolicy::StrictAtime),
        ("diratime", None) => to.set_dir_atime(true),
        ("nodiratime", None) => to.set_dir_atime(false),
        // Times reach the medium within a second in any case.
        ("lazytime" | "nolazytime", None) => {}

        ("errors", Some("continue")) => to.errors = ErrorPolicy::Continue,
        ("errors", Some("remount-ro")) => to.errors = ErrorPolicy::RemountRo,
        ("errors", Some("panic")) => to.errors = ErrorPolicy::Panic,
        ("cache", Some("auto")) => to.cache = CacheMode::Auto,
        ("cache", Some("none")) => to.cache = CacheMode::None,
        ("threads", Some(count)) => to.threads = Some(threads(count)?),
        ("cache_mem", Some(bytes)) => to.cache_bytes = Some(self::bytes("cache_mem", bytes)?),
        ("allow_other", None) => to.allow_other = Some(true),
        ("noallow_other", None) => to.allow_other = Some(false),
        ("backend", Some(name)) => to.backend = backend(name)?,
        ("durability", Some(name)) => to.durability = durability(name)?,
        ("require-dax" | "require_dax", None) => to.require_dax = true,
        ("discard", None) => to.discard = true,
        ("nodiscard", None) => to.discard = false,
        ("norecovery", None) => to.no_recovery = true,
        ("nonempty", None) => to.nonempty = true,
        ("fsname", Some(name)) if !name.is_empty() => to.source = Some(name.to_owned()),
        ("subtype", Some("pramfs")) => to.plain_type = false,
        // For what knows the type `fuse` and no other.
        ("subtype", Some("")) => to.plain_type = true,
        ("default_permissions", None) => {}
        ("direct", Some("off")) => {}
        ("direct", Some("ro" | "owner" | "group")) => {
            return wrong(
                "direct access beside a live mount is not in this version; only direct=off can be given",
            );
        }
        ("sandbox", Some("on")) => to.sandbox = true,
        ("sandbox", Some("off")) => to.sandbox = false,
        ("remount", None) => to.remount = true,

        // What the kernel shows of a mount comes back when it is remounted.
        ("user_id" | "group_id" | "max_read" | "blksize", Some(_)) => {
            to.kernel_options.push(name.to_owned());
        }

        // For mount(8) and fstab, not for us.
        ("defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "nouser", None) => {}
        ("silent" | "loud" | "iversion" | "noiversion" | "mand" | "nomand", None) => {}
        // What there is in any case, and is said of other file systems in fstab.
        ("acl" | "user_xattr", None) => {}
        ("comment", Some(_)) => {}
        (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}

        ("uid" | "gid" | "mode", _) => {
            return wrong(format!(
                "{name}= belongs to the root directory on the medium and is set when it is made: \
                 type: mkfs.pramfs --{name}=... REGION; on a mounted file system use chown(1) and chmod(1)"
            ));
        }
        ("errors" | "cache" | "direct" | "subtype" | "fsname" | "sandbox", value) => {
            return wrong(format!("{}: {}", bad_value(name, value), one_of(name)));
        }
        ("threads" | "cache_mem" | "backend" | "durability", None) => {
            return wrong(format!("{name} needs a value: {}", one_of(name)));
        }
        _ => return Err(Refused::Unknown(name.to_owned())),
    }
    Ok(())
}

impl MountSettings {
    fn set_flag(&mut self, flag: &str, on: bool) {
        match flag {
            "ro" => self.read_only = on,
            "nodev" => self.dev = !on,
            "nosuid" => self.suid = !on,
            "noexec" => self.exec = !on,
            "nosymfollow" => self.symlinks = !on,
            "sync" => self.sync = on,
            _ => self.dirsync = on,
        }
        self.flags_given.push((flag.to_owned(), on));
    }

    /// Sets when reads set the atime, as the option for it does.
    pub(crate) fn set_atime(&mut self, atime: AtimePolicy) {
        self.atime = atime;
        for (flag, policy) in [
            ("noatime", AtimePolicy::NoAtime),
            ("relatime", AtimePolicy::Relatime),
            ("strictatime", AtimePolicy::StrictAtime),
        ] {
            self.flags_given.push((flag.to_owned(), atime == policy));
        }
    }

    /// Sets whether directories have one.
    pub(crate) fn set_dir_atime(&mut self, on: bool) {
        self.dir_atime = on;
        self.flags_given.push(("nodiratime".to_owned(), !on));
    }
}

/// What to say of an option that other file systems have, behind its name.
pub fn hint(name: &str) -> &'static str {
    match name.split('=').next() {
        Some("dax") => {
            " (the region is mapped with DAX wherever it can be; require-dax makes sure of it. Through a mount the kernel gives DAX to no FUSE file system)"
        }
        _ => "",
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Wrong(why.into()))
}

fn bad_value(name: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{name}={value} is not a choice"),
        None => format!("{name} needs a value"),
    }
}

fn one_of(name: &str) -> &'static str {
    match name {
        "errors" => "one of errors=continue, errors=remount-ro, errors=panic",
        "cache" => "one of cache=auto, cache=none",
        "direct" => "only direct=off in this version",
        "sandbox" => "one of sandbox=on, sandbox=off",
        "subtype" => "subtype=pramfs, or nothing after the = for the type fuse",
        "fsname" => "the name to show as the source",
        "threads" => "a number from 1 to 64",
        "cache_mem" => "a number of bytes, with K, M or G after it if you like",
        "backend" => "one of backend=auto, backend=libpmem2, backend=native",
        _ => "one of durability=power, durability=process",
    }
}

fn threads(count: &str) -> Result<usize, Refused> {
    match count.parse() {
        Ok(count) if (1..=MAX_THREADS).contains(&count) => Ok(count),
        _ => wrong(format!("threads={count} is not {}", one_of("threads"))),
    }
}

fn bytes(name: &str, text: &str) -> Result<u64, Refused> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    match digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
    {
        Some(bytes) => Ok(bytes),
        None => wrong(format!("{name}={text} is not {}", one_of(name))),
    }
}

/// Value of `backend=` and `--backend`.
///
/// # Errors
/// A name that is none of the three.
pub fn backend(name: &str) -> Result<BackendKind, Refused> {
    match name {
        "auto" => Ok(BackendKind::Auto),
        "libpmem2" => Ok(BackendKind::Libpmem2),
        "native" => Ok(BackendKind::Native),
        _ => wrong(format!(
            "backend={name} is not a choice: {}",
            one_of("backend")
        )),
    }
}

/// Value of `durability=` and `--durability`.
///
/// # Errors
/// A name that is neither of the two.
pub fn durability(name: &str) -> Result<Durability, Refused> {
    match name {
        "power" => Ok(Durability::Power),
        "process" => Ok(Durability::Process),
        _ => wrong(format!(
            "durability={name} is not a choice: {}",
            one_of("durability")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> MountSettings {
        let mut settings = MountSettings::default();
        parse(list, &mut settings).unwrap_or_else(|refused| panic!("{list}: {refused:?}"));
        settings
    }

    fn refused(list: &str) -> Refused {
        parse(list, &mut MountSettings::default()).expect_err(list)
    }

    #[test]
    fn nothing_said_means_the_defaults() {
        let settings = parsed("");
        assert_eq!(settings, MountSettings::default());
        assert_eq!(parsed(",,defaults,,"), MountSettings::default());
        assert!(settings.dev && settings.suid && settings.exec && !settings.read_only);
    }

    #[test]
    fn flags_and_their_opposites() {
        for (on, off, get) in [
            (
                "ro",
                "rw",
                (|s: &MountSettings| s.read_only) as fn(&MountSettings) -> bool,
            ),
            ("dev", "nodev", |s| s.dev),
            ("suid", "nosuid", |s| s.suid),
            ("exec", "noexec", |s| s.exec),
            ("symfollow", "nosymfollow", |s| s.symlinks),
            ("sync", "async", |s| s.sync),
        ] {
            assert!(get(&parsed(on)), "{on}");
            assert!(!get(&parsed(off)), "{off}");
            assert!(get(&parsed(&format!("{off},{on}"))), "the last one counts");
            assert!(!get(&parsed(&format!("{on},{off}"))), "the last one counts");
        }
        assert!(parsed("dirsync").dirsync);
    }

    #[test]
    fn access_times() {
        assert_eq!(parsed("noatime").atime, AtimePolicy::NoAtime);
        assert_eq!(parsed("strictatime").atime, AtimePolicy::StrictAtime);
        assert_eq!(parsed("norelatime").atime, AtimePolicy::StrictAtime);
        for relatime in ["relatime", "atime", "nostrictatime"] {
            assert_eq!(
                parsed(&format!("noatime,{relatime}")).atime,
                AtimePolicy::Relatime
            );
        }
        assert!(parsed("diratime").dir_atime);
        for other in ["lazytime", "nolazytime"] {
            assert_eq!(parsed(other), MountSettings::default());
        }
        assert!(!parsed("nodiratime").dir_atime);
        assert!(parsed("nodiratime,diratime").dir_atime);
    }

    #[test]
    fn choices() {
        assert_eq!(parsed("errors=continue").errors, ErrorPolicy::Continue);
        assert_eq!(parsed("errors=remount-ro").errors, ErrorPolicy::RemountRo);
        assert_eq!(parsed("errors=panic").errors, ErrorPolicy::Panic);
        assert_eq!(parsed("cache=auto").cache, CacheMode::Auto);
        assert_eq!(parsed("cache=none").cache, CacheMode::None);
        assert_eq!(parsed("backend=auto").backend, BackendKind::Auto);
        assert_eq!(parsed("backend=libpmem2").backend, BackendKind::Libpmem2);
        assert_eq!(parsed("backend=native").backend, BackendKind::Native);
        assert_eq!(parsed("durability=power").durability, Durability::Power);
        assert_eq!(parsed("durability=process").durability, Durability::Process);
        assert_eq!(parsed("direct=off"), MountSettings::default());
        assert_eq!(parsed("subtype=pramfs"), MountSettings::default());
        assert_eq!(parsed("default_permissions"), MountSettings::default());
    }

    #[test]
    fn what_is_to_be_synchronous_survives_a_power_failure() {
        for (list, durability) in [
            ("durability=process", Durability::Process),
            ("durability=process,sync", Durability::Power),
            ("dirsync,durability=process", Durability::Power),
            ("durability=process,sync,async", Durability::Process),
        ] {
            assert_eq!(parsed(list).durability(), durability, "{list}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(parsed("threads=1").threads, Some(1));
        assert_eq!(parsed("threads=64").threads, Some(64));
        assert_eq!(parsed("cache_mem=4096").cache_bytes, Some(4096));
        assert_eq!(parsed("cache_mem=64K").cache_bytes, Some(64 << 10));
        assert_eq!(parsed("cache_mem=8m").cache_bytes, Some(8 << 20));
        assert_eq!(parsed("cache_mem=1G").cache_bytes, Some(1 << 30));
        for bad in [
            "threads=0",
            "threads=65",
            "threads=x",
            "threads=",
            "cache_mem=",
            "cache_mem=K",
            "cache_mem=-1",
        ] {
            assert!(
                matches!(refused(bad), Refused::Wrong(why) if why.contains(bad)),
                "{bad}"
            );
        }
        assert!(matches!(
            refused("cache_mem=99999999999G"),
            Refused::Wrong(_)
        ));
    }

    #[test]
    fn who_may_come_in() {
        assert_eq!(parsed("").allow_other, None);
        assert_eq!(parsed("allow_other").allow_other, Some(true));
        assert_eq!(parsed("noallow_other").allow_other, Some(false));
    }

    #[test]
    fn other_switches() {
        assert!(parsed("nonempty").nonempty);
        assert!(parsed("discard").discard && !parsed("discard,nodiscard").discard);
        assert!(parsed("norecovery,ro").no_recovery && parsed("ro,norecovery").read_only);
        assert!(parsed("require-dax").require_dax);
        assert!(parsed("require_dax").require_dax);
        assert!(parsed("remount").remount);
        assert!(parsed("subtype=").plain_type);
        assert!(!parsed("subtype=,subtype=pramfs").plain_type);
        assert_eq!(parsed("fsname=pool").source.as_deref(), Some("pool"));
    }

    #[test]
    fn what_fstab_needs_is_let_through() {
        let list = "auto,noauto,nofail,_netdev,nouser,silent,loud,mand,nomand,iversion,noiversion,acl,user_xattr,\
                    comment=a b,x-systemd.automount,\
                    x-gvfs-name=P,X-mount.mkdir";
        assert_eq!(parsed(list), MountSettings::default());
    }

    #[test]
    fn a_user_mount_is_a_tame_one() {
        for option in ["user", "user=joe", "users", "owner", "group"] {
            let settings = parsed(option);
            assert!(
                !settings.dev && !settings.suid && !settings.exec,
                "{option}"
            );
        }
        assert!(parsed("user,exec").exec, "a later option says otherwise");
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for (list, name) in [
            ("frobnicate", "frobnicate"),
            ("ro,frobnicate=1,rw", "frobnicate"),
            ("ro=1", "ro"),
            ("allow_root", "allow_root"),
            ("RO", "RO"),
        ] {
            assert_eq!(refused(list), Refused::Unknown(name.to_owned()), "{list}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_the_right_ones() {
        for (list, says) in [
            ("errors=sometimes", "errors=remount-ro"),
            ("errors", "errors=continue"),
            ("cache=maybe", "cache=none"),
            ("direct=owner", "direct=off"),
            ("direct=maybe", "direct=off"),
            ("backend=disk", "backend=native"),
            ("backend", "backend=native"),
            ("durability=none", "durability=power"),
            ("subtype=ext4", "pramfs"),
            ("fsname=", "source"),
            ("threads", "1 to 64"),
        ] {
            assert!(
                matches!(refused(list), Refused::Wrong(why) if why.contains(says)),
                "{list}"
            );
        }
    }

    #[test]
    fn the_owner_of_the_root_is_a_matter_for_mkfs() {
        for list in ["uid=1000", "gid=1000", "mode=700", "uid"] {
            assert!(
                matches!(refused(list), Refused::Wrong(why) if why.contains("mkfs.pramfs")),
                "{list}"
            );
        }
    }
}
