//! `mount.pramfs`: mounts a pramfs region. See `mount.pramfs --help`.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use pramfs_fuse::cli::{self, Invocation, Request, ServerProcess};
use pramfs_fuse::exit::{Failure, Status};
use pramfs_fuse::privileges::environment;
use pramfs_fuse::session::Mounted;
use pramfs_fuse::takeover::link::{Begin, Link};
use pramfs_fuse::takeover::{resume, supervisor};
use pramfs_fuse::{
    daemon, defaults, logging, notify, options, remount, second_mount, session, tags, unmount,
};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let unmounts = args.first().is_some_and(|name| unmount::is_called_by(name));
    let work = || {
        if unmounts {
            unmount::run(&args).map(|text| eprint!("{text}"))
        } else {
            run(&args)
        }
    };
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => return Status::Bug.into(),
    };
    let name = if unmounts {
        "umount.fuse.pramfs"
    } else {
        "mount.pramfs"
    };
    eprintln!("{name}: {failure}");
    notify::status(&failure.message);
    failure.status.into()
}

fn run(args: &[OsString]) -> Result<(), Failure> {
    let mut invocation = match cli::read(args.iter().cloned())? {
        Request::Say(text) => {
            print!("{text}");
            return Ok(());
        }
        Request::Run(invocation) => *invocation,
    };
    // Before any output: a re-executed program would print it twice.
    if invocation.process != ServerProcess::Background
        && !invocation.fake
        && !invocation.settings.remount
    {
        let also = match invocation.process {
            ServerProcess::Foreground => &notify::VARIABLES[..],
            _ => &[],
        };
        environment::begin_anew(args, also)
            .map_err(|error| Failure::system(format!("cannot clean the environment: {error}")))?;
    }
    let is_started_by_us = matches!(
        invocation.process,
        ServerProcess::BackgroundChild | ServerProcess::Supervised { .. }
    );
    if !is_started_by_us {
        for name in &invocation.ignored {
            eprintln!(
                "mount.pramfs: ignoring unknown mount option: {name}{}",
                options::hint(name)
            );
        }
    }
    logging::panics();
    // Not found again by the processes that are started with these arguments.
    let mut args = args.to_vec();
    if !invocation.settings.remount
        && let Some(region) = tags::resolve(&invocation.region)?
    {
        tags::replace(&mut args, &invocation.region, &region);
        invocation.region = region;
    }
    if !invocation.settings.remount && !is_started_by_us {
        invocation = with_defaults(&mut args, invocation)?;
    }
    let args = &args[..];
    if invocation.settings.remount {
        return if invocation.fake {
            Ok(())
        } else {
            remount::remount(&invocation.mountpoint, &invocation.settings)
        };
    }
    match invocation.process {
        _ if invocation.fake => fake(&invocation),
        ServerProcess::Background => {
            eprint!("{}", in_background(&invocation, args)?);
            Ok(())
        }
        ServerProcess::Supervised { foreground } => serve_supervised(&invocation, foreground),
        ServerProcess::BackgroundChild if invocation.settings.takeover => {
            logging::to_syslog(invocation.verbose);
            let ended = supervisor::run(&invocation, args);
            // A failure before the mount is live has been reported.
            ended.map_err(|failure| std::process::exit(i32::from(failure.status as u8)))
        }
        ServerProcess::Foreground if invocation.settings.takeover => {
            log_to_stderr(&invocation);
            supervisor::run(&invocation, args)
        }
        ServerProcess::BackgroundChild => serve_in_background(&invocation),
        ServerProcess::Foreground => serve_in_foreground(&invocation),
    }
}

/// Puts the default options of the region before those of the command line.
fn with_defaults(args: &mut Vec<OsString>, found: Invocation) -> Result<Invocation, Failure> {
    let options = match defaults::of(&found.region) {
        Ok(options) => options,
        Err(error) => {
            // The mount fails for any other reason too, and says so. It may get past a page that
            // cannot be read.
            if error.errno() == rustix::io::Errno::IO.raw_os_error() {
                eprintln!(
                    "mount.pramfs: {}: default options of the region are not applied: {error}",
                    found.region.display()
                );
            }
            return Ok(found);
        }
    };
    if options.unknown() != 0 {
        eprintln!(
            "mount.pramfs: {}: default options that this version does not know are ignored: bits {:#x}",
            found.region.display(),
            options.unknown()
        );
    }
    if options.names().next().is_none() {
        return Ok(found);
    }
    defaults::put_first(args, options);
    match cli::read(args.iter().cloned()) {
        Ok(Request::Run(invocation)) => Ok(Invocation {
            region: found.region,
            ..*invocation
        }),
        Ok(Request::Say(_)) => Ok(found),
        Err(mut failure) => {
            failure.message = format!(
                "{}; the region has the default options {options}",
                failure.message
            );
            Err(failure)
        }
    }
}

/// Mounts the region, or adds a mount of a live one. Returns messages for the user.
fn in_background(invocation: &Invocation, args: &[OsString]) -> Result<String, Failure> {
    let again = || {
        // A second mount has no server of its own that could serve guests.
        if !invocation.settings.virtiofs.is_empty() {
            return Ok(None);
        }
        let mounted = second_mount::mount(
            &invocation.region,
            &invocation.mountpoint,
            &invocation.settings,
        )?;
        Ok(mounted.map(|notices| words(&notices, "")))
    };
    if let Some(text) = again()? {
        return Ok(text);
    }
    daemon::start(args).or_else(|failure| {
        // Another process may have mounted it meanwhile: at boot, all entries of
        // fstab are mounted concurrently.
        again()?.ok_or(failure)
    })
}

/// Starts logging to standard error.
fn log_to_stderr(invocation: &Invocation) {
    let fields = [
        ("PRAMFS_REGION", &*invocation.region),
        ("PRAMFS_MOUNT_POINT", &*invocation.mountpoint),
    ];
    logging::to_stderr(invocation.verbose, &fields);
}

/// Checks both paths and changes nothing.
fn fake(invocation: &Invocation) -> Result<(), Failure> {
    for path in [&invocation.region, &invocation.mountpoint] {
        std::fs::metadata(path)
            .map_err(|error| Failure::mount(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn serve_in_foreground(invocation: &Invocation) -> Result<(), Failure> {
    log_to_stderr(invocation);
    let mounted = session::mount(
        &invocation.region,
        &invocation.mountpoint,
        &invocation.settings,
        None,
    )?;
    daemon::tell(&words(&mounted.notices, &mounted.summary));
    notify::ready(&served(invocation));
    mounted.serve()
}

/// What a service serves, for its status.
fn served(invocation: &Invocation) -> String {
    let (region, place) = (&invocation.region, &invocation.mountpoint);
    format!("serves {} on {}", region.display(), place.display())
}

/// Serves as the background child. After its report, no process reads its exit status.
fn serve_in_background(invocation: &Invocation) -> Result<(), Failure> {
    logging::to_syslog(invocation.verbose);
    let mounted = match session::mount(
        &invocation.region,
        &invocation.mountpoint,
        &invocation.settings,
        None,
    ) {
        Ok(mounted) => mounted,
        Err(failure) => {
            daemon::report_failure(&failure);
            std::process::exit(i32::from(failure.status as u8));
        }
    };
    let text = report_of(&mounted, invocation);
    log_summary(&mounted);
    if let Err(error) = daemon::report_live(&text) {
        // The parent has exited; the mount is live regardless.
        tracing::warn!("cannot report that the mount is live: {error}");
    }
    mounted
        .serve()
        .inspect_err(|failure| tracing::error!("{failure}"))
}

/// Returns what a mount in the background says to the user.
fn report_of(mounted: &Mounted, invocation: &Invocation) -> String {
    if invocation.verbose > 0 {
        words(&mounted.notices, &mounted.summary)
    } else {
        words(&[&mounted.notices[..], &mounted.warnings].concat(), "")
    }
}

fn log_summary(mounted: &Mounted) {
    let lines = mounted.summary.lines().map(str::trim);
    tracing::info!("{}", lines.collect::<Vec<_>>().join("; "));
}

/// Serves for a supervisor: mounts the region, or takes over from another server.
fn serve_supervised(invocation: &Invocation, foreground: bool) -> Result<(), Failure> {
    match foreground {
        true => log_to_stderr(invocation),
        false => logging::to_syslog(invocation.verbose),
    }
    // The supervisor passes on what the terminal sends.
    daemon::leave_session();
    let link = Link::inherited()?;
    match start_supervised(invocation, foreground, link.clone()) {
        Ok(mounted) => mounted
            .serve()
            .inspect_err(|failure| tracing::error!("{failure}")),
        Err(failure) => {
            link.failed(&failure);
            std::process::exit(i32::from(failure.status as u8));
        }
    }
}

fn start_supervised(
    invocation: &Invocation,
    foreground: bool,
    mut link: Link,
) -> Result<Mounted, Failure> {
    let held = match link.begin()? {
        Begin::Mount => None,
        Begin::Resume(held) => Some(held),
    };
    if let Some(held) = held {
        return resume::resume(held, &invocation.settings, link);
    }
    let mounted = session::mount(
        &invocation.region,
        &invocation.mountpoint,
        &invocation.settings,
        Some(link),
    )?;
    let text = match foreground {
        true => words(&mounted.notices, &mounted.summary),
        false => {
            log_summary(&mounted);
            if let Err(error) = daemon::detach() {
                tracing::warn!("the server stays attached to the terminal: {error}");
            }
            report_of(&mounted, invocation)
        }
    };
    mounted.report_live(&text)?;
    Ok(mounted)
}

fn words(notices: &[String], summary: &str) -> String {
    let mut text: String = notices
        .iter()
        .map(|notice| format!("mount.pramfs: {notice}\n"))
        .collect();
    if !summary.is_empty() {
        text.push_str(&format!("mount.pramfs: {summary}"));
    }
    text
}
