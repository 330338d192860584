//! The command line, in the form that mount(8) gives to its helpers.
//!
//! `mount.pramfs REGION MOUNTPOINT [-fnsvV] [-o OPTIONS]`. Called by mount(8)
//! as `mount.fuse.pramfs`, `-f` is its "fake": everything but the mount.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};

use crate::exit::Failure;
use crate::options::{self, MountSettings, Refused};

/// Hidden first argument of the process that serves a background mount.
pub(crate) const SERVE_IN_BACKGROUND: &str = "--serve-in-background";

/// Hidden first argument of a server that a supervisor has started.
pub(crate) const SERVE_FOR_SUPERVISOR: &str = "--serve-for-supervisor";

const MORE_HELP: &str = "\
The log goes to the system log, with -f to standard error. PRAMFS_LOG in the
environment sets what is logged: error, warn, info (the default), debug, trace,
or by module, for example PRAMFS_LOG=warn,pramfs=debug.

UUID=... and LABEL=... are looked for in /dev/disk, among the pmem and dax devices,
and in the files that /etc/pramfs/regions lists. mount(8) passes them on if they
begin with pramfs: (pramfs:UUID=...).

Unmount with umount(8), or fusermount3 -u without root.
Exit status: 0, 1 wrong invocation, 2 system error, 4 bug, 8 interrupted,
32 mount failure.";

#[derive(Debug, Parser)]
#[command(
    name = "mount.pramfs",
    version = pramfs::VERSION,
    about = "Mount a pramfs region",
    after_help = format!("{}\n{MORE_HELP}", options::help()),
    override_usage = "mount.pramfs REGION MOUNTPOINT [-fnsv] [-o OPTION[,OPTION...]]"
)]
struct Arguments {
    /// The region: a file, a device-DAX or a pmem device, or UUID=... or LABEL=...
    // The parser of paths refuses an empty one without saying where it comes from.
    #[arg(value_parser = OsStringValueParser::new().map(PathBuf::from))]
    region: PathBuf,
    /// The directory to mount on
    mountpoint: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Ignore unknown mount options
    #[arg(short = 's', long)]
    sloppy: bool,
    /// Log more; -vv also logs every refused request
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Accepted for mount(8): there is no mtab
    #[arg(short = 'n', long = "no-mtab")]
    no_mtab: bool,
    /// Do everything but the mount
    #[arg(long)]
    fake: bool,
    /// Accepted for mount(8)
    #[arg(short = 't', long = "types", value_name = "TYPE", hide = true)]
    fs_type: Option<String>,
    /// Accepted for mount(8)
    #[arg(short = 'N', long = "namespace", value_name = "NS", hide = true)]
    namespace: Option<String>,
    /// Fail unless the region is mapped with DAX
    #[arg(long)]
    require_dax: bool,
    /// Also serve a guest, by a virtiofs device whose VMM connects to this socket; the mount
    /// has nosuid,nodev then (docs/virtiofs.md)
    #[arg(long, value_name = "SOCKET")]
    virtiofs: Vec<PathBuf>,
    /// With --virtiofs: let guests map files (DAX), in a window of this many bytes (2M to 512M, a
    /// power of two); the mount has no page cache then
    #[arg(long, value_name = "BYTES")]
    dax_window: Option<String>,
    /// With --dax-window: whoever runs the VMM may reach the whole region. Needed where others
    /// can reach the socket
    #[arg(long)]
    trust_vmm: bool,
    /// With --virtiofs: the tag, for a VMM that asks the server; most have an option of their own
    #[arg(long)]
    tag: Option<String>,
    /// auto, libpmem2 or native
    #[arg(long, value_name = "BACKEND")]
    backend: Option<String>,
    /// power or process
    #[arg(long, value_name = "DURABILITY")]
    durability: Option<String>,
    #[arg(long = "serve-in-background", hide = true)]
    serve_in_background: bool,
    #[arg(long = "serve-for-supervisor", hide = true)]
    serve_for_supervisor: bool,
}

/// The process that serves the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerProcess {
    /// A new process in the background, still to be started.
    Background,
    /// This process, which was started as the background server.
    BackgroundChild,
    /// This process, attached to the terminal.
    Foreground,
    /// This process, which a supervisor has started (`takeover=on`).
    Supervised {
        /// The supervisor is attached to the terminal.
        foreground: bool,
    },
}

/// A parsed command line.
#[derive(Debug)]
pub struct Invocation {
    /// The region, as given.
    pub region: PathBuf,
    /// The mount point, as given.
    pub mountpoint: PathBuf,
    /// Options.
    pub settings: MountSettings,
    /// The process that serves the mount.
    pub process: ServerProcess,
    /// Do everything but the mount.
    pub fake: bool,
    /// Verbosity: 0, 1, 2.
    pub verbose: u8,
    /// Options that were ignored, by name.
    pub ignored: Vec<String>,
}

/// What the command line requests.
#[derive(Debug)]
pub enum Request {
    /// Mount, or change a mount.
    Run(Box<Invocation>),
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
    let args: Vec<OsString> = args.into_iter().collect();
    // For a helper of mount(8), -f means "fake".
    let helper = args
        .first()
        .is_some_and(|program| Path::new(program).ends_with("mount.fuse.pramfs"));
    let arguments = match Arguments::try_parse_from(&args) {
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
            return Err(Failure::usage(
                text.trim_start_matches("error: ").trim_end(),
            ));
        }
    };
    if arguments.region.as_os_str().is_empty() {
        return Err(Failure::usage(
            "the REGION is empty; pramfs@.service takes it from REGION= in /etc/pramfs/mounts/",
        ));
    }
    let mut ignored = Vec::new();
    let settings = settings(&arguments, &mut ignored)?;
    let foreground = arguments.foreground && !helper;
    Ok(Request::Run(Box::new(Invocation {
        process: match (arguments.serve_in_background, foreground) {
            _ if arguments.serve_for_supervisor => ServerProcess::Supervised { foreground },
            (true, _) => ServerProcess::BackgroundChild,
            (false, true) => ServerProcess::Foreground,
            (false, false) => ServerProcess::Background,
        },
        fake: arguments.fake || (arguments.foreground && helper),
        region: arguments.region,
        mountpoint: arguments.mountpoint,
        settings,
        verbose: arguments.verbose,
        ignored,
    })))
}

fn settings(arguments: &Arguments, ignored: &mut Vec<String>) -> Result<MountSettings, Failure> {
    let mut settings = MountSettings::default();
    // One option at a time, so that -s ignores only the unknown ones.
    for option in arguments.options.iter().flat_map(|list| list.split(',')) {
        match options::parse(option, &mut settings) {
            Ok(()) => {}
            Err(Refused::Unknown(name)) if arguments.sloppy => ignored.push(name),
            Err(refused) => return Err(refusal(refused)),
        }
    }
    if let Some(name) = settings.kernel_options.first()
        && !settings.remount
    {
        return Err(refusal(Refused::Unknown(name.clone())));
    }
    settings.virtiofs.clone_from(&arguments.virtiofs);
    settings.window = crate::virtiofsd::cli::window(arguments.dax_window.as_deref())?;
    settings.trusts_vmm = arguments.trust_vmm;
    crate::virtiofsd::cli::check_tag(arguments.tag.as_deref())?;
    settings.tag.clone_from(&arguments.tag);
    settings.check().map_err(refusal)?;
    if settings.takeover && pramfs_medium::pmem::is_physical(&arguments.region) {
        return Err(Failure::usage(format!(
            "takeover=on cannot be combined with {}: the lock of a range of physical memory cannot be told from the descriptor that a later server inherits; leave it out, or use memmap=SIZE!ADDRESS and /dev/pmem0",
            arguments.region.display()
        )));
    }
    if !settings.virtiofs.is_empty() {
        (settings.suid, settings.dev) = (false, false);
    }
    settings.require_dax |= arguments.require_dax;
    if let Some(name) = &arguments.backend {
        settings.backend = options::backend(name).map_err(refusal)?;
    }
    if let Some(name) = &arguments.durability {
        settings.durability = options::durability(name).map_err(refusal)?;
    }
    Ok(settings)
}

fn refusal(refused: Refused) -> Failure {
    match refused {
        Refused::Unknown(name) => Failure::usage(format!(
            "unknown mount option: {name}; type mount.pramfs --help for the list of options"
        )),
        Refused::Wrong(why) => Failure::usage(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    fn run(line: &str) -> Invocation {
        match read(line.split(' ').map(OsString::from)) {
            Ok(Request::Run(invocation)) => *invocation,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str) -> Failure {
        read(line.split(' ').map(OsString::from)).expect_err(line)
    }

    #[test]
    fn takeover_of_physical_range_is_refused() {
        let failure = refused("mount.pramfs physaddr:0x40000000+512M /m -o takeover=on");
        assert!(failure.message.contains("physaddr:0x40000000+512M"));
        run("mount.pramfs physaddr:0x40000000+512M /m -o takeover=on,takeover=off");
        run("mount.pramfs /r /m -o takeover=on");
    }

    #[test]
    fn minimal_command_line_is_parsed() {
        let invocation = run("mount.pramfs /r /m");
        assert_eq!(invocation.region, Path::new("/r"));
        assert_eq!(invocation.mountpoint, Path::new("/m"));
        assert_eq!(invocation.settings, MountSettings::default());
        assert_eq!(invocation.process, ServerProcess::Background);
        assert!(!invocation.fake);
    }

    #[test]
    fn mount_8_command_line_is_parsed() {
        let invocation =
            run("/sbin/mount.fuse.pramfs /r /m -sfnv -t fuse.pramfs -o rw,noatime,frobnicate");
        assert!(invocation.fake, "-f means fake here");
        assert_eq!(invocation.process, ServerProcess::Background);
        assert_eq!(invocation.ignored, ["frobnicate"]);
        assert_eq!(invocation.verbose, 1);
        assert_eq!(invocation.settings.atime, pramfs::AtimePolicy::NoAtime);
    }

    #[test]
    fn options_parse_in_any_order() {
        let invocation =
            run("mount.pramfs -f -o ro /r -o cache=none /m --backend native --durability process");
        assert_eq!(invocation.process, ServerProcess::Foreground);
        assert!(invocation.settings.read_only);
        assert_eq!(invocation.settings.cache, crate::adapter::CacheMode::None);
        assert_eq!(
            invocation.settings.backend,
            pramfs::pmem::BackendKind::Native
        );
        assert_eq!(
            invocation.settings.durability,
            pramfs::pmem::Durability::Process
        );
        assert!(run("mount.pramfs /r /m --require-dax").settings.require_dax);
        let beside = run("mount.pramfs /r /m --virtiofs /s --virtiofs /t").settings;
        assert_eq!(beside.virtiofs.len(), 2);
        assert_eq!(beside.window, None);
        let mapping =
            "mount.pramfs /r /m --virtiofs /s --dax-window 256M --trust-vmm -o direct=all";
        let mapping = run(mapping).settings;
        assert_eq!(mapping.window, Some(256 << 20));
        assert!(mapping.trusts_vmm && mapping.direct != crate::direct::DirectPolicy::Off);
        assert!(!beside.suid && !beside.dev);
        assert_eq!(
            run("mount.pramfs --serve-in-background /r /m").process,
            ServerProcess::BackgroundChild
        );
        for (line, foreground) in [("", false), ("-f ", true)] {
            let line = format!("mount.pramfs --serve-for-supervisor {line}/r /m -o takeover=on");
            let invocation = run(&line);
            assert_eq!(invocation.process, ServerProcess::Supervised { foreground });
        }
    }

    #[test]
    fn wrong_command_line_exits_1_with_reason() {
        for (line, says) in [
            ("mount.pramfs", "REGION"),
            ("mount.pramfs /r", "MOUNTPOINT"),
            ("mount.pramfs /r /m /x", "/x"),
            ("mount.pramfs  /m", "REGION is empty"),
            ("mount.pramfs /r /m -o frobnicate", "frobnicate"),
            ("mount.pramfs /r /m -o user_id=0", "user_id"),
            ("mount.pramfs /r /m --frobnicate", "--frobnicate"),
            ("mount.pramfs /r /m -o uid=0", "mkfs.pramfs"),
            ("mount.pramfs /r /m --backend=disk", "backend=disk"),
            ("mount.pramfs /r /m --durability x", "durability=x"),
            (
                "mount.pramfs /r /m --virtiofs /s -o opens=kernel",
                "opens=kernel",
            ),
            (
                "mount.pramfs /r /m --virtiofs /s -o cache=writeback",
                "cache=writeback",
            ),
            (
                "mount.pramfs /r /m --virtiofs /s --dax-window 3M",
                "--dax-window=3M",
            ),
            ("mount.pramfs /r /m --dax-window 2M", "--virtiofs"),
            ("mount.pramfs /r /m --tag t", "--virtiofs"),
            (
                "mount.pramfs /r /m --virtiofs /s --trust-vmm",
                "--dax-window",
            ),
            ("mount.pramfs /r /m --virtiofs /s --tag=", "1 to 36"),
            (
                "mount.pramfs /r /m --virtiofs /s --dax-window 2M -o ro",
                "ro",
            ),
            ("mount.pramfs /r /m --virtiofs /s -o suid", "nosuid,nodev"),
            ("mount.pramfs /r /m --virtiofs /s -o dev", "nosuid,nodev"),
        ] {
            let failure = refused(line);
            assert_eq!(failure.status, Status::Usage, "{line}");
            assert!(
                failure.message.contains(says),
                "{line}: {}",
                failure.message
            );
        }
    }

    #[test]
    fn remount_accepts_options_shown_by_kernel() {
        let invocation = run(
            "mount.fuse.pramfs /r /m -o rw,noatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro",
        );
        assert!(invocation.settings.remount && invocation.settings.read_only);
    }

    #[test]
    fn help_and_version_exit_0() {
        for (line, says) in [
            ("mount.pramfs -h", "cache=auto|writeback|none"),
            ("mount.pramfs -V", pramfs::VERSION),
        ] {
            assert!(
                matches!(read(line.split(' ').map(OsString::from)), Ok(Request::Say(text)) if text.contains(says))
            );
        }
    }
}
