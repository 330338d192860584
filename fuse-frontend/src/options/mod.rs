//! The options of `-o`.
//!
//! `table` has one row for each option. The parser, the refusals, `--help` and the table
//! in `docs/mounting.md` come from it. If options contradict each other, the last one
//! wins, as for mount(8).

mod flags;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod values;

pub use flags::Flag;
pub(crate) use flags::{NOATIME, RELATIME, STRICTATIME};
pub(crate) use text::help;
pub use values::MAX_THREADS;

use pramfs::pmem::{BackendKind, Durability};
use pramfs::{AtimePolicy, ErrorPolicy};

use crate::adapter::{CacheMode, OpenedBy};
use crate::direct::DirectPolicy;
use crate::mountinfo::FS_TYPE;
use crate::transport::Transport;

use table::Takes;

/// The settings of `-o`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// The mount is read-only.
    pub read_only: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-id bits work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Symbolic links are followed.
    pub symlinks: bool,
    /// Every change is durable when it returns. The kernel does that for FUSE only for
    /// writes: see [`Self::durability()`].
    pub sync: bool,
    /// Every change of a directory is durable when it returns.
    pub dirsync: bool,
    /// Policy of access times.
    pub atime: AtimePolicy,
    /// Directories have access times too.
    pub dir_atime: bool,
    /// What damage does to the mount.
    pub errors: ErrorPolicy,
    /// Use of the page cache.
    pub cache: CacheMode,
    /// Who opens files.
    pub opens: OpenedBy,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Serving threads; by default one for each processor.
    pub threads: Option<usize>,
    /// Limit of the inode cache in bytes.
    pub cache_bytes: Option<u64>,
    /// Other users may access the mount; by default if root mounts.
    pub allow_other: Option<bool>,
    /// Backend.
    pub backend: BackendKind,
    /// Which failure a completed operation survives, on media that need an msync.
    pub durability: Durability,
    /// Fail unless the region is mapped with DAX.
    pub require_dax: bool,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// Freed blocks are returned to the host at once.
    pub discard: bool,
    /// The medium stays as a crash left it; the journal is replayed in private memory.
    /// Every read-only mount of a write-protected region does that too.
    pub no_recovery: bool,
    /// Name to show as the source instead of the region's path.
    pub source: Option<String>,
    /// Show the type as plain `fuse`.
    pub plain_type: bool,
    /// Root's server drops the privileges that serving does not need.
    pub sandbox: bool,
    /// Who may access files directly.
    pub direct: DirectPolicy,
    /// Users of a policy for others may also store.
    pub direct_write_is_root: bool,
    /// Change the flags of a live mount.
    pub remount: bool,
    /// Options that only a remount may repeat, by name.
    pub kernel_options: Vec<String>,
    /// The flags of a mount that were given, for a remount.
    pub flags_given: Vec<(Flag, bool)>,
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
            opens: OpenedBy::Server,
            transport: Transport::default(),
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
            direct: DirectPolicy::Off,
            direct_write_is_root: false,
            remount: false,
            kernel_options: Vec::new(),
            flags_given: Vec::new(),
        }
    }
}

impl MountSettings {
    /// Tells whether a mount of this type can be a pramfs mount. One mounted as plain
    /// `fuse` is identified by its source and its owner.
    pub fn is_type(&self, fs_type: &str) -> bool {
        fs_type == FS_TYPE || (self.plain_type && fs_type == "fuse")
    }

    /// Checks options that depend on each other, after all lists are parsed.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<(), Refused> {
        if self.cache == CacheMode::Writeback && self.direct != DirectPolicy::Off {
            return wrong(format!(
                "cache=writeback cannot be combined with direct={}: the kernel would hold bytes back that a program with direct access must see; leave one of them out",
                self.direct.name()
            ));
        }
        if self.opens == OpenedBy::Kernel && self.cache == CacheMode::Writeback {
            return wrong(
                "opens=kernel cannot be combined with cache=writeback: the server has to keep files out of the cache whose writes chattr restricts; leave one of them out",
            );
        }
        if self.opens == OpenedBy::Kernel && self.cache == CacheMode::None {
            return wrong(
                "opens=kernel cannot be combined with cache=none: the kernel opens every file through the page cache; leave one of them out",
            );
        }
        if self.opens == OpenedBy::Kernel && self.direct != DirectPolicy::Off {
            return wrong(format!(
                "opens=kernel cannot be combined with direct={}: the server has to know which files are open through the page cache, which sees no direct store; leave one of them out",
                self.direct.name()
            ));
        }
        let others = matches!(self.direct, DirectPolicy::Group | DirectPolicy::All);
        match self.direct_write_is_root && !others {
            false => Ok(()),
            true => wrong(format!(
                "direct-write-is-root=yes has no effect with direct={}: it is about the users of direct=group and direct=all; leave it out, or give one of these",
                self.direct.name()
            )),
        }
    }

    /// Returns which failure a completed operation survives: that of `durability=`, but
    /// always a power failure with `sync` or `dirsync`.
    pub fn durability(&self) -> Durability {
        match self.sync || self.dirsync {
            true => Durability::Power,
            false => self.durability,
        }
    }
}

/// Why an option is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// No option has this name.
    Unknown(String),
    /// The option exists, but not in this form. The sentence gives the reason.
    Wrong(String),
}

/// Parses one `-o` list into `settings`.
///
/// # Errors
/// The first refused option, by name.
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
                return wrong(format!("{name}={value} is not a valid value: {list}"));
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
        (Takes::Anything, _) => {}
        (Takes::FromKernel, Some(_)) => to.kernel_options.push(name.to_owned()),
        (Takes::FromKernel, None) => return Err(Refused::Unknown(name.to_owned())),
        (Takes::Refused(why), _) => return wrong(format!("{name}= {why}")),
    }
    to.set(row.flags);
    Ok(())
}

/// What to say of an option that other file systems have, behind its name.
pub fn hint(name: &str) -> &'static str {
    match name.split('=').next() {
        Some("dax") => {
            " (the server maps the region with DAX wherever possible, and require-dax enforces it; the kernel gives DAX to no FUSE file system through a mount)"
        }
        _ => "",
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Wrong(why.into()))
}

/// Parses the value of `--backend`.
///
/// # Errors
/// An unknown name.
pub fn backend(name: &str) -> Result<BackendKind, Refused> {
    let mut settings = MountSettings::default();
    apply(&format!("backend={name}"), &mut settings)?;
    Ok(settings.backend)
}

/// Parses the value of `--durability`.
///
/// # Errors
/// An unknown name.
pub fn durability(name: &str) -> Result<Durability, Refused> {
    let mut settings = MountSettings::default();
    apply(&format!("durability={name}"), &mut settings)?;
    Ok(settings.durability)
}
