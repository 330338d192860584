//! The table of mount options: one row for each.

use pramfs::pmem::{BackendKind, Durability, Protect};
use pramfs::{DataMode, ErrorPolicy};

use super::flags::{Flag, Flags, NOATIME, RELATIME, STRICTATIME};
use super::{MountSettings, values};
use crate::adapter::{CacheMode, OpenedBy};
use crate::direct::DirectPolicy;
use crate::transport::Transport;

pub(super) type Set = fn(&mut MountSettings);

/// One of the values of an option.
pub(super) struct Choice {
    pub value: &'static str,
    pub set: Set,
}

/// What an option takes after its name.
pub(super) enum Takes {
    /// No value.
    Nothing(Set),
    /// One of a list; the first is the default.
    OneOf(&'static [Choice]),
    /// A text that the function parses; it returns false unless the text is `what`.
    Text {
        shown: &'static str,
        what: &'static str,
        /// The default, if it is a value.
        default: Option<fn() -> String>,
        set: fn(&mut MountSettings, &str) -> bool,
        /// The value in force, if one was given or there is a default.
        get: fn(&MountSettings) -> Option<String>,
    },
    /// A value or none, which does not matter.
    Anything,
    /// A value that the kernel shows of a mount and that only a remount may repeat.
    FromKernel,
    /// Never allowed; for this reason.
    Refused(&'static str),
}

/// One option.
pub(super) struct Row {
    /// Its names. A final `*` stands for any ending.
    pub names: &'static [&'static str],
    pub takes: Takes,
    /// The flags of the mount that it sets and clears. A remount changes these; otherwise it
    /// accepts the option and leaves the mount as it is, since mount(8) repeats the options
    /// of fstab.
    pub flags: Flags,
    /// The sentence for `--help` and the documents. Empty for an option that only
    /// mount(8), fstab or the kernel needs.
    pub help: &'static str,
}

/// Returns the row of a name.
pub(super) fn row(name: &str) -> Option<&'static Row> {
    OPTIONS.iter().find(|row| {
        row.names.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *known,
        })
    })
}

/// Returns the options in force, in the order of the help.
///
/// An option is in force if it would change nothing.
pub(super) fn in_force(settings: &MountSettings) -> String {
    let now = MountSettings {
        kernel_options: Vec::new(),
        flags_given: Vec::new(),
        ..settings.clone()
    };
    let changes_nothing = |set: &dyn Fn(&mut MountSettings)| {
        let mut changed = now.clone();
        set(&mut changed);
        changed.flags_given.clear();
        changed == now
    };
    let shown = OPTIONS.iter().filter(|row| !row.help.is_empty());
    let options = shown.filter_map(|row| {
        let name = row.names[0];
        match &row.takes {
            Takes::Nothing(set) => changes_nothing(&|s| {
                set(s);
                s.set(row.flags);
            })
            .then(|| name.to_owned()),
            Takes::OneOf(choices) => {
                let choice = choices.iter().find(|choice| changes_nothing(&choice.set))?;
                Some(format!("{name}={}", choice.value))
            }
            Takes::Text { get, .. } => get(&now).map(|value| format!("{name}={value}")),
            Takes::Anything | Takes::FromKernel | Takes::Refused(_) => None,
        }
    });
    options.collect::<Vec<_>>().join(",")
}

const fn flag(names: &'static [&'static str], flags: Flags, help: &'static str) -> Row {
    Row {
        names,
        takes: Takes::Nothing(|_| {}),
        flags,
        help,
    }
}

const fn switch(names: &'static [&'static str], set: Set, help: &'static str) -> Row {
    Row {
        names,
        takes: Takes::Nothing(set),
        flags: &[],
        help,
    }
}

const fn one_of(
    names: &'static [&'static str],
    choices: &'static [Choice],
    help: &'static str,
) -> Row {
    Row {
        names,
        takes: Takes::OneOf(choices),
        flags: &[],
        help,
    }
}

const fn to(value: &'static str, set: Set) -> Choice {
    Choice { value, set }
}

/// Every option, in the order of the help.
pub(super) const OPTIONS: &[Row] = &[
    flag(
        &["rw"],
        &[(Flag::ReadOnly, false)],
        "read and write (default)",
    ),
    flag(&["ro"], &[(Flag::ReadOnly, true)], "read only"),
    flag(
        &["relatime", "atime", "nostrictatime"],
        RELATIME,
        "a read sets the access time if it is older than the last change or a day (default)",
    ),
    flag(&["noatime"], NOATIME, "reads set no access times"),
    flag(
        &["strictatime", "norelatime"],
        STRICTATIME,
        "every read sets the access time",
    ),
    flag(
        &["diratime"],
        &[(Flag::NoDirAtime, false)],
        "access times of directories are set as those of files (default)",
    ),
    flag(
        &["nodiratime"],
        &[(Flag::NoDirAtime, true)],
        "access times of directories are not set",
    ),
    flag(
        &["dev"],
        &[(Flag::NoDev, false)],
        "device files work (default for root)",
    ),
    flag(
        &["nodev"],
        &[(Flag::NoDev, true)],
        "device files do not work",
    ),
    flag(
        &["suid"],
        &[(Flag::NoSuid, false)],
        "set-user-id bits work (default for root)",
    ),
    flag(
        &["nosuid"],
        &[(Flag::NoSuid, true)],
        "set-user-id bits have no effect",
    ),
    flag(
        &["exec"],
        &[(Flag::NoExec, false)],
        "programs can be run (default)",
    ),
    flag(
        &["noexec"],
        &[(Flag::NoExec, true)],
        "programs cannot be run",
    ),
    flag(
        &["symfollow"],
        &[(Flag::NoSymfollow, false)],
        "symbolic links are followed (default)",
    ),
    flag(
        &["nosymfollow"],
        &[(Flag::NoSymfollow, true)],
        "symbolic links are not followed",
    ),
    flag(
        &["async"],
        &[(Flag::Sync, false)],
        "writes are as durable as durability= makes them (default)",
    ),
    flag(
        &["sync"],
        &[(Flag::Sync, true)],
        "each write survives a power failure when it returns; if the region is mounted with it, each change does",
    ),
    flag(
        &["dirsync"],
        &[(Flag::DirSync, true)],
        "if the region is mounted with it, each change survives a power failure when it returns",
    ),
    one_of(
        &["cache"],
        &[
            to("auto", |s| s.cache = CacheMode::Auto),
            to("writeback", |s| s.cache = CacheMode::Writeback),
            to("none", |s| s.cache = CacheMode::None),
        ],
        "what the page cache serves: auto: hot reads; writeback: writes too, which are durable after fsync, msync or close (excludes opens=kernel and direct=); none: nothing",
    ),
    one_of(
        &["opens"],
        &[
            to("server", |s| s.opens = OpenedBy::Server),
            to("kernel", |s| s.opens = OpenedBy::Kernel),
        ],
        "who opens files and directories: server: a request for each open and each close; kernel: no request, which has its price (semantics.md); not with cache=none, cache=writeback or direct=",
    ),
    one_of(
        &["errors"],
        &[
            to("remount-ro", |s| s.errors = ErrorPolicy::RemountRo),
            to("continue", |s| s.errors = ErrorPolicy::Continue),
            to("panic", |s| s.errors = ErrorPolicy::Panic),
        ],
        "what damage on the medium does to the mount",
    ),
    one_of(
        &["data"],
        &[
            to("inplace", |s| s.data = DataMode::InPlace),
            to("atomic", |s| s.data = DataMode::Atomic),
        ],
        "what a crash leaves of a write: inplace: a part of it, in words of 8 bytes; atomic: all or nothing of each request, of at most 1 MiB, at about twice the cost; always atomic in a file system made with mkfs.pramfs -O data_checksums",
    ),
    one_of(
        &["durability"],
        &[
            to("power", |s| s.durability = Durability::Power),
            to("process", |s| s.durability = Durability::Process),
        ],
        "what a completed operation survives on media that need an msync: a power failure, or only the death of the process until fsync",
    ),
    one_of(
        &["backend"],
        &[
            to("auto", |s| s.backend = BackendKind::Auto),
            to("libpmem2", |s| s.backend = BackendKind::Libpmem2),
            to("native", |s| s.backend = BackendKind::Native),
        ],
        "the code that maps the region and flushes it",
    ),
    one_of(
        &["protect"],
        &[
            to("off", |s| s.protect = Protect::Off),
            to("auto", |s| s.protect = Protect::Auto),
            to("pkey", |s| s.protect = Protect::Pkey),
            to("mprotect", |s| s.protect = Protect::Mprotect),
        ],
        "what keeps stray stores of the server from the region: auto: keys of the processor where there are any, else nothing; pkey: these keys, or no mount; mprotect: system calls, which is slow (security.md)",
    ),
    switch(
        &["require-dax", "require_dax"],
        |s| s.require_dax = true,
        "fail unless the region is mapped with DAX",
    ),
    switch(
        &["discard"],
        |s| s.discard = true,
        "return freed space to the host at once",
    ),
    switch(
        &["nodiscard"],
        |s| s.discard = false,
        "return freed space to the host by fstrim(8) only (default)",
    ),
    Row {
        names: &["cache_mem"],
        takes: Takes::Text {
            shown: "BYTES",
            what: "a number of bytes, with K, M or G after it if you like",
            default: Some(values::default_cache_mem),
            set: values::cache_mem,
            get: values::cache_mem_in_force,
        },
        flags: &[],
        help: "limit of the inode cache",
    },
    one_of(
        &["transport"],
        &[
            to("auto", |s| s.transport = Transport::Auto),
            to("uring", |s| s.transport = Transport::Uring),
            to("dev", |s| s.transport = Transport::Dev),
            to("fuser", |s| s.transport = Transport::Fuser),
        ],
        "how requests come from the kernel: auto: by io_uring where it can be used, otherwise as dev; uring: as auto, with a warning if it cannot be used; dev: by our own reads and writes of /dev/fuse; fuser: through the crate of that name, without O_TMPFILE, the time of birth and idmapped mounts",
    ),
    Row {
        names: &["threads"],
        takes: Takes::Text {
            shown: "N",
            what: "a number from 1 to 64",
            default: None,
            set: values::threads,
            get: values::threads_in_force,
        },
        flags: &[],
        help: "threads that serve requests (default: one for each processor)",
    },
    switch(
        &["allow_other"],
        |s| s.allow_other = Some(true),
        "let other users in (default if root mounts)",
    ),
    switch(
        &["noallow_other"],
        |s| s.allow_other = Some(false),
        "keep other users out (default for other users)",
    ),
    switch(
        &["norecovery"],
        |s| s.no_recovery = true,
        "with ro: leave the medium as a crash left it; the journal is replayed in memory only",
    ),
    switch(
        &["nonempty"],
        |s| s.nonempty = true,
        "mount over a directory that has entries",
    ),
    switch(
        &["remount"],
        |s| s.remount = true,
        "change the flags of a live mount; options that a remount does not change stay as mounted",
    ),
    one_of(
        &["sandbox"],
        &[
            to("on", |s| s.sandbox = true),
            to("off", |s| s.sandbox = false),
        ],
        "whether root's server drops the privileges that serving does not need; off is for debugging",
    ),
    Row {
        names: &["fsname"],
        takes: Takes::Text {
            shown: "NAME",
            what: "the name to show as the source",
            default: None,
            set: values::source,
            get: values::source_in_force,
        },
        flags: &[],
        help: "the source that mount tables show (default: the path of the region)",
    },
    one_of(
        &["direct"],
        &[
            to("off", |s| s.direct = DirectPolicy::Off),
            to("owner", |s| s.direct = DirectPolicy::Owner),
            to("group", |s| s.direct = DirectPolicy::Group),
            to("all", |s| s.direct = DirectPolicy::All),
        ],
        "who may map files beside the mount, and so read the whole region: nobody; root and the owner of the region, who can also store to it; also the members of its group; everybody",
    ),
    one_of(
        &["direct-write-is-root"],
        &[
            to("no", |s| s.direct_write_is_root = false),
            to("yes", |s| s.direct_write_is_root = true),
        ],
        "with direct=group or direct=all: these users may also store to the whole region, and so become root",
    ),
    Row {
        names: &["busy-poll"],
        takes: Takes::Text {
            shown: "MICROSECONDS",
            what: "a number from 0 to 1000",
            default: Some(values::default_busy_poll),
            set: values::busy_poll,
            get: values::busy_poll_in_force,
        },
        flags: &[],
        help: "with transport=dev: how long a serving thread looks for the next request before it sleeps; it keeps a processor busy meanwhile, and a client on another one need not wake it",
    },
    one_of(
        &["takeover"],
        &[
            to("off", |s| s.takeover = false),
            to("on", |s| s.takeover = true),
        ],
        "whether the mount survives the death of its server: a second process holds the connection, and starts the next server (takeover.md); not with transport=uring or fuser, direct= or cache=writeback",
    ),
    Row {
        names: &["takeover-deaths"],
        takes: Takes::Text {
            shown: "N",
            what: "a number from 1 to 1000000",
            default: Some(values::default_takeover_deaths),
            set: values::takeover_deaths,
            get: values::takeover_deaths_in_force,
        },
        flags: &[],
        help: "with takeover=on: so many deaths within a minute end the mount",
    },
    Row {
        names: &["uid", "gid", "mode"],
        takes: Takes::Refused(
            "belongs to the root directory on the medium and is set when it is made: type \
             mkfs.pramfs with --uid, --gid or --mode; on a mounted file system use chown(1) \
             and chmod(1)",
        ),
        flags: &[],
        help: "refused: the owner and the mode of the root directory are options of mkfs.pramfs",
    },
    one_of(
        &["metrics"],
        &[
            to("on", |s| s.metrics = true),
            to("off", |s| s.metrics = false),
        ],
        "whether the server records how long requests take, for pramfs status and metrics; it counts them in any case (status.md)",
    ),
    Row {
        names: &["slow"],
        takes: Takes::Text {
            shown: "DURATION",
            what: "a time: a number with us, ms or s after it, or off",
            default: Some(values::default_slow),
            set: values::slow,
            get: values::slow_in_force,
        },
        flags: &[],
        help: "log each request that takes the server so long, for example 50ms (logging.md)",
    },
    // For programs that only know the type `fuse`.
    one_of(
        &["subtype"],
        &[
            to("pramfs", |s| s.plain_type = false),
            to("", |s| s.plain_type = true),
        ],
        "",
    ),
    // The right to mount that fstab grants to users implies these flags, unless a later
    // option overrides them.
    Row {
        names: &["user", "users", "owner", "group"],
        takes: Takes::Anything,
        flags: &[
            (Flag::NoDev, true),
            (Flag::NoSuid, true),
            (Flag::NoExec, true),
        ],
        help: "",
    },
    // The kernel shows these for a mount, so a remount repeats them.
    Row {
        names: &["user_id", "group_id", "max_read", "blksize"],
        takes: Takes::FromKernel,
        flags: &[],
        help: "",
    },
    // Options for mount(8) and fstab, and options of other file systems for what pramfs
    // always does. Times reach the medium within a second in any case.
    switch(
        &[
            "defaults",
            "auto",
            "noauto",
            "nofail",
            "_netdev",
            "nouser",
            "silent",
            "loud",
            "iversion",
            "noiversion",
            "mand",
            "nomand",
            "lazytime",
            "nolazytime",
            "acl",
            "user_xattr",
            "default_permissions",
        ],
        |_| {},
        "",
    ),
    Row {
        names: &["comment", "x-*", "X-*"],
        takes: Takes::Anything,
        flags: &[],
        help: "",
    },
];
