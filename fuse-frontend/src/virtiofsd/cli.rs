//! The command line of `pramfs-virtiofsd`, with the option names of virtiofsd.
//!
//! An option of virtiofsd either does here what it does there, or it is refused by name with the
//! reason, or it asks for what is always so.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};
use pramfs::DataMode;
use pramfs::pmem::Protect;

use crate::adapter::CacheMode;
use crate::door::{LARGEST_WINDOW, Translations, XattrMap};
use crate::exit::Failure;
use crate::transport::virtio::{GuestSettings, MAX_QUEUES, MAX_TAG};

/// Most threads of a pool.
const MAX_POOL: u16 = 64;

const MORE_HELP: &str = "\
The server runs in the foreground until SIGTERM, and logs to standard error. With
--fd it also ends with the VMM that has connected. docs/virtiofs.md has the lines
for QEMU and libvirt, and docs/security.md says what a guest can do.

These options of virtiofsd ask for what is always so: --xattr, --posix-acl,
--allow-direct-io, --allow-mmap, --killpriv-v2, --security-label,
--no-announce-submounts.

Exit status: 0, 1 wrong invocation, 2 system error, 4 bug, 32 region failure.";

#[derive(Debug, Parser)]
#[command(
    name = "pramfs-virtiofsd",
    version = pramfs::VERSION,
    about = "Serve a pramfs region to virtual machines, as a virtiofs device (vhost-user)",
    after_help = MORE_HELP,
    override_usage = "pramfs-virtiofsd --socket-path SOCKET --shared-dir REGION [OPTION...]"
)]
struct Arguments {
    /// The socket to make, for one VMM at a time; several sockets for several guests
    #[arg(long, value_name = "SOCKET")]
    socket_path: Vec<PathBuf>,
    /// The number of a socket that listens already, instead of --socket-path
    #[arg(long, value_name = "NUMBER", conflicts_with = "socket_path")]
    fd: Option<i32>,
    /// The region: a file, a device-DAX or a pmem device
    #[arg(long, value_name = "REGION", visible_alias = "region")]
    shared_dir: PathBuf,
    /// The tag, for a VMM that asks the server; most have an option of their own
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Threads that serve each guest; 0: one for each queue
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    thread_pool_size: u16,
    /// Queues for requests that a VMM may use, as many as processors by default
    #[arg(long, value_name = "NUMBER")]
    num_request_queues: Option<usize>,
    /// Caching in guests: auto, always, never or metadata
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    cache: String,
    /// No guest changes anything
    #[arg(long)]
    readonly: bool,
    /// Translate users: map:GUEST:REGION:COUNT, or guest:, host:, squash-guest:, squash-host:,
    /// forbid-guest:GUEST:COUNT
    #[arg(long, value_name = "MAP")]
    translate_uid: Vec<String>,
    /// Translate groups, as --translate-uid
    #[arg(long, value_name = "MAP")]
    translate_gid: Vec<String>,
    /// Translate names of extended attributes, in the form of virtiofsd:
    /// :map:trusted.:user.guest.: stores a guest's trusted.X as user.guest.trusted.X
    #[arg(long, value_name = "MAP")]
    xattrmap: Option<String>,
    /// Let guests map files (DAX), in a window of this many bytes (suffixes M, G)
    #[arg(long, value_name = "BYTES")]
    dax_window: Option<String>,
    /// With --dax-window: the user who runs the VMM may reach the whole region. Needed with --fd, and
    /// where others can reach the socket
    #[arg(long)]
    trust_vmm: bool,
    /// A write that a crash interrupts: a part of it stays (inplace), or all or nothing (atomic)
    #[arg(long, value_name = "MODE", default_value = "inplace")]
    data: String,
    /// Protection of the region from stray stores of the server: off, auto, pkey or mprotect
    #[arg(long, value_name = "WAY", default_value = "off")]
    protect: String,
    /// errno: forbidden system calls fail; none: nothing is forbidden
    #[arg(long, value_name = "ACTION", default_value = "errno")]
    seccomp: String,
    /// landlock: the server opens no files of the host but the region; none: it could
    #[arg(long, value_name = "MODE", default_value = "landlock")]
    sandbox: String,
    /// off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

/// Options of virtiofsd that ask for what is always so.
const ALWAYS: &[&str] = &[
    "--xattr",
    "--posix-acl",
    "--allow-direct-io",
    "--allow-mmap",
    "--killpriv-v2",
    "--security-label",
    "--no-announce-submounts",
];

/// Options of virtiofsd that are refused, with the reason.
const REFUSED: &[(&str, &str)] = &[
    (
        "--announce-submounts",
        "a region is one file system and has no mounts in it",
    ),
    (
        "--inode-file-handles",
        "the server opens no files of the host for a guest",
    ),
    (
        "--writeback",
        "a guest takes no notifications, which write-back of a file with chattr +i or +a needs",
    ),
    (
        "--no-killpriv-v2",
        "the server always clears set-user-ID when the guest says so",
    ),
    (
        "--no-readdirplus",
        "the guest decides: it asks for names alone where that is quicker",
    ),
    (
        "--socket-group",
        "whoever connects reaches the whole region; run the server as the user of the VMM, or hand a socket over with --fd",
    ),
    (
        "--uid-map",
        "the server has no user namespace; use --translate-uid",
    ),
    (
        "--gid-map",
        "the server has no user namespace; use --translate-gid",
    ),
    ("--modcaps", "the server keeps no capability"),
    (
        "--rlimit-nofile",
        "the server opens no files of the host for a guest",
    ),
    (
        "--preserve-noatime",
        "the policy of access times is that of the region",
    ),
    (
        "--syslog",
        "the log goes to standard error, where systemd and libvirt take it",
    ),
    (
        "--daemonize",
        "the server stays in the foreground; let systemd or libvirt start it",
    ),
    (
        "--migration-mode",
        "a guest with a region cannot be migrated",
    ),
    (
        "--migration-on-error",
        "a guest with a region cannot be migrated",
    ),
    (
        "--migration-verify-handles",
        "a guest with a region cannot be migrated",
    ),
    (
        "--migration-confirm-paths",
        "a guest with a region cannot be migrated",
    ),
    ("-o", "this form of options is no longer that of virtiofsd"),
];

/// A parsed command line.
#[derive(Debug)]
pub struct Invocation {
    /// Sockets to make.
    pub sockets: Vec<PathBuf>,
    /// A socket that is there.
    pub fd: Option<i32>,
    /// The region, as given.
    pub region: PathBuf,
    /// The tag.
    pub tag: Option<String>,
    /// Threads of each guest.
    pub pool: usize,
    /// Queues for requests.
    pub queues: usize,
    /// What the page cache of a guest serves.
    pub cache: CacheMode,
    /// Guests cache neither names nor attributes.
    pub caches_nothing: bool,
    /// No guest changes anything.
    pub read_only: bool,
    /// Whoever reaches a socket may have the window, and with it the whole region.
    pub trusts_vmm: bool,
    /// Bytes of the window that files are mapped in.
    pub window: Option<u64>,
    /// Translations.
    pub translations: Translations,
    /// How bytes of files change.
    pub data: DataMode,
    /// What keeps stray stores from the region.
    pub protect: Protect,
    /// System calls are filtered.
    pub filter: bool,
    /// Files of the host are out of reach.
    pub sandbox: bool,
    /// What is logged.
    pub log_level: String,
}

/// What the command line requests.
#[derive(Debug)]
pub enum Request {
    /// Serve.
    Serve(Box<Invocation>),
    /// Print this text (help, version) and exit with status 0.
    Say(String),
}

/// Returns the definition of the command line, for the man page and the completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Reads a command line, program name first.
///
/// # Errors
/// Wrong invocation, with the sentence to print.
pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Request, Failure> {
    let mut kept = Vec::new();
    for arg in args {
        let text = arg.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            return Err(Failure::usage(format!("{name} is not supported: {why}")));
        }
        if !ALWAYS.contains(&&*text) {
            kept.push(arg);
        }
    }
    let arguments = match Arguments::try_parse_from(kept) {
        Ok(arguments) => arguments,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) =>
        {
            return Ok(Request::Say(error.to_string()));
        }
        Err(error) => {
            let text = error.to_string();
            let text = text.trim_start_matches("error: ").trim_end();
            return Err(Failure::usage(text));
        }
    };
    invocation(arguments).map(|invocation| Request::Serve(Box::new(invocation)))
}

fn invocation(arguments: Arguments) -> Result<Invocation, Failure> {
    let wrong = |what: String| Err(Failure::usage(what));
    let doors = arguments.socket_path.len() + usize::from(arguments.fd.is_some());
    if doors == 0 {
        return wrong("--socket-path or --fd is missing: where will the VMM connect?".into());
    }
    let (cache, caches_nothing) = match &*arguments.cache {
        "auto" => (CacheMode::Auto, false),
        "never" => (CacheMode::None, true),
        policy @ ("always" | "metadata") if doors > 1 => {
            return wrong(format!(
                "--cache={policy} is for one guest alone: the kernels of several learn nothing of each other's changes; use --cache=auto"
            ));
        }
        "always" => (CacheMode::Auto, false),
        "metadata" => (CacheMode::None, false),
        other => {
            return wrong(format!(
                "--cache={other}: the policies are auto, always, never and metadata"
            ));
        }
    };
    let data = match &*arguments.data {
        "inplace" => DataMode::InPlace,
        "atomic" => DataMode::Atomic,
        other => return wrong(format!("--data={other}: the modes are inplace and atomic")),
    };
    let protect = match &*arguments.protect {
        "off" => Protect::Off,
        "auto" => Protect::Auto,
        "pkey" => Protect::Pkey,
        "mprotect" => Protect::Mprotect,
        other => {
            return wrong(format!(
                "--protect={other}: the ways are off, auto, pkey and mprotect"
            ));
        }
    };
    let filter = match &*arguments.seccomp {
        "errno" => true,
        "none" => false,
        other => {
            return wrong(format!(
                "--seccomp={other}: a forbidden system call fails with EPERM and is logged by the kernel (errno), or nothing is forbidden (none)"
            ));
        }
    };
    let sandbox = match &*arguments.sandbox {
        "landlock" => true,
        "none" => false,
        other => {
            return wrong(format!(
                "--sandbox={other}: the server has no directory to be confined to; it takes all files of the host away from itself (landlock), or none"
            ));
        }
    };
    let window = window(arguments.dax_window.as_deref())?;
    if window.is_some() && arguments.readonly {
        return wrong(
            "--dax-window needs a region that can be written: the blocks of a mapped file are allocated; leave --readonly out, or the window"
                .into(),
        );
    }
    if window.is_some() && arguments.fd.is_some() && !arguments.trust_vmm {
        return wrong(
            "--dax-window with --fd needs --trust-vmm: the VMM gets the whole region, and the server cannot see who runs it"
                .into(),
        );
    }
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    if !levels.contains(&&*arguments.log_level) {
        return wrong(format!(
            "--log-level={}: the levels are {}",
            arguments.log_level,
            levels.join(", ")
        ));
    }
    let queues = arguments.num_request_queues;
    let queues = queues.unwrap_or_else(|| GuestSettings::of_processors().request_queues);
    if !(1..=MAX_QUEUES).contains(&queues) {
        return wrong(format!(
            "--num-request-queues={queues}: a guest has 1 to {MAX_QUEUES} of them"
        ));
    }
    if arguments.thread_pool_size > MAX_POOL {
        return wrong(format!(
            "--thread-pool-size={}: at most {MAX_POOL} threads serve a guest",
            arguments.thread_pool_size
        ));
    }
    check_tag(arguments.tag.as_deref())?;
    let mut translations = Translations::default();
    for (option, maps, all) in [
        ("uid", &arguments.translate_uid, &mut translations.users),
        ("gid", &arguments.translate_gid, &mut translations.groups),
    ] {
        for map in maps {
            all.add(map)
                .map_err(|why| Failure::usage(format!("--translate-{option}={why}")))?;
        }
    }
    if let Some(map) = &arguments.xattrmap {
        let parsed = XattrMap::parse(map);
        let parsed = parsed.map_err(|why| Failure::usage(format!("--xattrmap={map}: {why}")))?;
        translations.xattrs = Some(parsed);
    }
    Ok(Invocation {
        sockets: arguments.socket_path,
        fd: arguments.fd,
        region: arguments.shared_dir,
        tag: arguments.tag,
        pool: arguments.thread_pool_size.into(),
        queues,
        cache,
        caches_nothing,
        read_only: arguments.readonly,
        trusts_vmm: arguments.trust_vmm,
        window,
        translations,
        data,
        protect,
        filter,
        sandbox,
        log_level: arguments.log_level,
    })
}

/// Checks the tag of a device.
///
/// # Errors
/// It does not fit.
pub(crate) fn check_tag(tag: Option<&str>) -> Result<(), Failure> {
    match tag {
        Some(tag) if tag.is_empty() || tag.len() > MAX_TAG || tag.contains('\0') => Err(
            Failure::usage(format!("--tag={tag}: a tag has 1 to {MAX_TAG} bytes")),
        ),
        _ => Ok(()),
    }
}

/// Reads the size of a window.
///
/// # Errors
/// It is no size of a window.
pub(crate) fn window(text: Option<&str>) -> Result<Option<u64>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let refused = || {
        Failure::usage(format!(
            "--dax-window={text}: a window has 2M to {}M, a power of two",
            LARGEST_WINDOW >> 20
        ))
    };
    window_size(text).map(Some).ok_or_else(refused)
}

fn window_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix(['M', 'm']) {
        Some(digits) => (digits, 20),
        None => match text.strip_suffix(['G', 'g']) {
            Some(digits) => (digits, 30),
            None => (text, 0),
        },
    };
    let size = digits.parse::<u64>().ok()?.checked_shl(shift)?;
    let fits = (2 << 20..=LARGEST_WINDOW).contains(&size) && size.is_power_of_two();
    fits.then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    fn parse(line: &str) -> Result<Request, Failure> {
        read(line.split(' ').map(OsString::from))
    }

    fn run(line: &str) -> Invocation {
        match parse(line) {
            Ok(Request::Serve(invocation)) => *invocation,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_of_virtiofsd_are_parsed() {
        let plain = run("pramfs-virtiofsd --socket-path /s --shared-dir /r");
        assert_eq!(plain.sockets, [PathBuf::from("/s")]);
        assert_eq!(
            (plain.cache, plain.caches_nothing),
            (CacheMode::Auto, false)
        );
        assert!(plain.filter && plain.sandbox && !plain.read_only && plain.queues >= 1);
        // As libvirt types it.
        let libvirt = run(
            "pramfs-virtiofsd --fd=22 --shared-dir /r --readonly --xattr --thread-pool-size=4 --cache=never --sandbox=none --seccomp=none --translate-uid map:0:1000:10 --tag t",
        );
        assert_eq!((libvirt.fd, libvirt.pool), (Some(22), 4));
        assert!(libvirt.read_only && libvirt.caches_nothing);
        assert!(!libvirt.filter && !libvirt.sandbox);
        assert_eq!(libvirt.translations.users.to_region(3), Some(1003));
        let mapped = run(
            "pramfs-virtiofsd --socket-path /s --shared-dir /r --xattrmap=:map:trusted.:user.g.:",
        );
        assert!(mapped.translations.xattrs.is_some() && libvirt.translations.xattrs.is_none());
        let dax = run("pramfs-virtiofsd --socket-path /s --shared-dir /r --dax-window 256M");
        assert_eq!(dax.window, Some(256 << 20));
        assert_eq!((dax.data, dax.protect), (DataMode::InPlace, Protect::Off));
        let safe = run(
            "pramfs-virtiofsd --socket-path /s --shared-dir /r --data atomic --protect=mprotect",
        );
        assert_eq!(
            (safe.data, safe.protect),
            (DataMode::Atomic, Protect::Mprotect)
        );
        let two = run("pramfs-virtiofsd --socket-path /s --socket-path /t --region /r");
        assert_eq!(two.sockets.len(), 2);
    }

    #[test]
    fn wrong_command_line_exits_1_with_reason() {
        for (line, says) in [
            ("--shared-dir /r", "--socket-path"),
            ("--socket-path /s", "--shared-dir"),
            ("--socket-path /s --fd 3 --shared-dir /r", "--fd"),
            (
                "--socket-path /s --shared-dir /r --cache=some",
                "cache=some",
            ),
            (
                "--socket-path /s --socket-path /t --shared-dir /r --cache=always",
                "one guest",
            ),
            ("--socket-path /s --shared-dir /r --seccomp=kill", "EPERM"),
            (
                "--socket-path /s --shared-dir /r --sandbox=chroot",
                "--sandbox=chroot",
            ),
            ("--socket-path /s --shared-dir /r --log-level=loud", "loud"),
            ("--socket-path /s --shared-dir /r --data=some", "data=some"),
            (
                "--socket-path /s --shared-dir /r --protect=yes",
                "protect=yes",
            ),
            (
                "--socket-path /s --shared-dir /r --tag=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "36",
            ),
            (
                "--socket-path /s --shared-dir /r --num-request-queues=0",
                "queues=0",
            ),
            (
                "--socket-path /s --shared-dir /r --thread-pool-size=65",
                "64",
            ),
            (
                "--socket-path /s --shared-dir /r --translate-uid map:0:0",
                "map:0:0",
            ),
            (
                "--socket-path /s --shared-dir /r --xattrmap :ok:",
                "--xattrmap=:ok:: a rule is",
            ),
            (
                "--socket-path /s --shared-dir /r --frobnicate",
                "--frobnicate",
            ),
        ] {
            let failure = parse(&format!("pramfs-virtiofsd {line}")).expect_err(line);
            assert_eq!(failure.status, Status::Usage, "{line}");
            assert!(failure.message.contains(says), "{line}: {failure}");
        }
    }

    #[test]
    fn option_that_makes_no_sense_is_refused_by_name() {
        for (name, why) in REFUSED {
            let line = format!("pramfs-virtiofsd --socket-path /s --shared-dir /r {name}");
            let failure = parse(&line).expect_err(name);
            assert!(failure.message.contains(name) && failure.message.contains(why));
        }
        for name in ALWAYS {
            run(&format!(
                "pramfs-virtiofsd --socket-path /s --shared-dir /r {name}"
            ));
        }
    }

    #[test]
    fn help_and_version_exit_0() {
        for (line, says) in [("--help", "--translate-uid"), ("-V", pramfs::VERSION)] {
            let said = parse(&format!("pramfs-virtiofsd {line}"));
            assert!(matches!(said, Ok(Request::Say(text)) if text.contains(says)));
        }
    }
}
