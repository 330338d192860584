//! The options of `-o`.
//!
//! `table` has one row for each option. The parser, the refusals, `--help` and the table
//! in `docs/mounting.md` come from it. The last of several options that contradict each
//! other counts, as for mount(8).

mod table;
#[cfg(test)]
mod tests;
mod text;
mod values;

pub(crate) use text::help;
pub use values::MAX_THREADS;

use pramfs::pmem::{BackendKind, Durability};
use pramfs::{AtimePolicy, ErrorPolicy};

use crate::adapter::CacheMode;
use crate::mountinfo::FS_TYPE;

use table::Takes;

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

/// An option that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// No option has this name.
    Unknown(String),
    /// The option exists, but not like this. The sentence tells why.
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
    let Some(row) = table::row(name) else {
        return Err(Refused::Unknown(name.to_owned()));
    };
    match (&row.takes, value) {
        (Takes::Nothing(set), None) => set(to),
        (Takes::Nothing(_), Some(_)) => return wrong(format!("{name} takes no value")),
        (Takes::OneOf(choices), Some(value)) => match choices.iter().find(|c| c.value == value) {
            Some(choice) => (choice.set)(to),
            None => {
                let list = text::choices(row);
                return wrong(format!("{name}={value} is not a choice: {list}"));
            }
        },
        (Takes::Text { what, set, .. }, Some(value)) => {
            if !set(to, value) {
                return wrong(format!("{name}={value} is not {what}"));
            }
        }
        (Takes::OneOf(_), None) => {
            return wrong(format!("{name} needs a value: {}", text::choices(row)));
        }
        (Takes::Text { what, .. }, None) => return wrong(format!("{name} needs a value: {what}")),
        (Takes::Anything(set), _) => set(to),
        (Takes::FromKernel, Some(_)) => to.kernel_options.push(name.to_owned()),
        (Takes::FromKernel, None) => return Err(Refused::Unknown(name.to_owned())),
        (Takes::Refused(why), _) => return wrong(format!("{name}= {why}")),
    }
    Ok(())
}

impl MountSettings {
    /// Sets a flag of the kernel's mount, by the name of its option.
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

/// Value of `--backend`.
///
/// # Errors
/// A name that is not a choice.
pub fn backend(name: &str) -> Result<BackendKind, Refused> {
    let mut settings = MountSettings::default();
    apply(&format!("backend={name}"), &mut settings)?;
    Ok(settings.backend)
}

/// Value of `--durability`.
///
/// # Errors
/// A name that is not a choice.
pub fn durability(name: &str) -> Result<Durability, Refused> {
    let mut settings = MountSettings::default();
    apply(&format!("durability={name}"), &mut settings)?;
    Ok(settings.durability)
}
