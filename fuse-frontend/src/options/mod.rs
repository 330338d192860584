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
pub use text::{Documented, accepted, documented, help};
pub use values::MAX_THREADS;

use std::path::PathBuf;
use std::time::Duration;

use pramfs::pmem::{BackendKind, Durability, Protect};
use pramfs::{AtimePolicy, DataMode, ErrorPolicy};

use crate::adapter::{CacheMode, OpenedBy};
use crate::direct::DirectPolicy;
use crate::mountinfo::FS_TYPE;
use crate::takeover;
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
    /// How bytes of files change.
    pub data: DataMode,
    /// Use of the page cache.
    pub cache: CacheMode,
    /// Who opens files.
    pub opens: OpenedBy,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Serving threads; by default one for each processor.
    pub threads: Option<usize>,
    /// How long a serving thread of `/dev/fuse` looks for the next request before it sleeps.
    pub busy_poll: Duration,
    /// Limit of the inode cache in bytes.
    pub cache_bytes: Option<u64>,
    /// Other users may access the mount; by default if root mounts.
    pub allow_other: Option<bool>,
    /// Backend.
    pub backend: BackendKind,
    /// Which failure a completed operation survives, on media that need an msync.
    pub durability: Durability,
    /// What keeps stray stores of the server from the region.
    pub protect: Protect,
    /// Fail unless the region is mapped with DAX.
    pub require_dax: bool,
    /// Sockets of guests that use the region beside the mount.
    pub virtiofs: Vec<PathBuf>,
    /// Bytes of the window in which each of these guests maps files.
    pub window: Option<u64>,
    /// Whoever runs the VMM of such a guest may reach the whole region.
    pub trusts_vmm: bool,
    /// Tag of the devices of these guests, for a VMM that asks for it.
    pub tag: Option<String>,
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
    /// The mount survives the death of its server.
    pub takeover: bool,
    /// With it, the deaths within a minute that end the mount.
    pub takeover_deaths: usize,
    /// Record how long requests take.
    pub metrics: bool,
    /// Log requests that take so long.
    pub slow: Option<Duration>,
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
            data: DataMode::InPlace,
            cache: CacheMode::Auto,
            opens: OpenedBy::Server,
            transport: Transport::default(),
            threads: None,
            busy_poll: Duration::ZERO,
            cache_bytes: None,
            allow_other: None,
            backend: BackendKind::Auto,
            durability: Durability::Power,
            protect: Protect::Off,
            require_dax: false,
            virtiofs: Vec::new(),
            window: None,
            trusts_vmm: false,
            tag: None,
            nonempty: false,
            discard: false,
            no_recovery: false,
            source: None,
            plain_type: false,
            sandbox: true,
            direct: DirectPolicy::Off,
            direct_write_is_root: false,
            takeover: false,
            takeover_deaths: takeover::DEATHS,
            metrics: true,
            slow: None,
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

    /// Returns the options in force, as for `-o`: those that have a default too.
    pub fn in_force(&self) -> String {
        table::in_force(self)
    }

    /// Checks options that depend on each other, after all lists are parsed.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<(), Refused> {
        self.check_takeover()?;
        self.check_busy_poll()?;
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
        let of_guests = [
            (self.window.is_some(), "--dax-window"),
            (self.tag.is_some(), "--tag"),
            (self.trusts_vmm, "--trust-vmm"),
        ];
        if let Some((_, option)) = of_guests.iter().find(|(given, _)| *given)
            && self.virtiofs.is_empty()
        {
            return wrong(format!(
                "{option} needs --virtiofs SOCKET: it is about the devices of guests; leave it out, or name the socket"
            ));
        }
        if self.trusts_vmm && self.window.is_none() {
            return wrong(
                "--trust-vmm needs --dax-window: without a window, a VMM reaches files alone; leave it out, or give the window",
            );
        }
        if self.window.is_some() && self.read_only {
            return wrong(
                "--dax-window needs a mount that can be written: the blocks of a mapped file are allocated; leave ro out, or the window",
            );
        }
        if !self.virtiofs.is_empty() {
            self.check_beside_guests()?;
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

    fn check_busy_poll(&self) -> Result<(), Refused> {
        let transport = match self.transport {
            Transport::Uring if !self.busy_poll.is_zero() => "uring",
            Transport::Fuser if !self.busy_poll.is_zero() => "fuser",
            _ => return Ok(()),
        };
        wrong(format!(
            "busy-poll= has no effect with transport={transport}: only threads that read /dev/fuse look for requests before they sleep; leave it out, or use transport=dev"
        ))
    }

    fn check_takeover(&self) -> Result<(), Refused> {
        if !self.takeover {
            return Ok(());
        }
        let other = match self.transport {
            Transport::Auto | Transport::Dev => None,
            Transport::Uring => Some((
                "uring",
                "a ring ends with the server that made it, and its requests are not sent again",
            )),
            Transport::Fuser => Some((
                "fuser",
                "that crate cannot serve a connection that was negotiated before",
            )),
        };
        if let Some((transport, why)) = other {
            return wrong(format!(
                "takeover=on cannot be combined with transport={transport}: {why}; leave one of them out"
            ));
        }
        if !self.virtiofs.is_empty() {
            return wrong(
                "takeover=on cannot be combined with --virtiofs: a guest does not connect to another server; leave one of them out",
            );
        }
        if self.direct != DirectPolicy::Off {
            return wrong(format!(
                "takeover=on cannot be combined with direct={}: a later server does not know the leases that the one before has given; leave one of them out",
                self.direct.name()
            ));
        }
        match self.cache {
            CacheMode::Writeback => wrong(
                "takeover=on cannot be combined with cache=writeback: a later server does not know which sizes and times the kernel holds back; leave one of them out",
            ),
            CacheMode::Auto | CacheMode::None => Ok(()),
        }
    }

    /// Returns the transport to use: with takeover it is `/dev/fuse` from the beginning.
    pub fn transport(&self) -> Transport {
        match self.takeover {
            true => Transport::Dev,
            false => self.transport,
        }
    }

    /// Checks options that need the only door of a region.
    fn check_beside_guests(&self) -> Result<(), Refused> {
        let alone = [
            (self.cache == CacheMode::Writeback, "cache=writeback"),
            (self.opens == OpenedBy::Kernel, "opens=kernel"),
        ];
        if let Some((_, option)) = alone.iter().find(|(given, _)| *given) {
            return wrong(format!(
                "--virtiofs cannot be combined with {option}: guests change files without the kernel of this machine; leave one of them out"
            ));
        }
        for (flag, option) in [(Flag::NoSuid, "suid"), (Flag::NoDev, "dev")] {
            let last = self.flags_given.iter().rev().find(|(of, _)| *of == flag);
            if last.is_some_and(|(_, on)| !on) {
                return wrong(format!(
                    "--virtiofs cannot be combined with {option}: root of a guest could become root of this machine; the mount has nosuid,nodev"
                ));
            }
        }
        Ok(())
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
