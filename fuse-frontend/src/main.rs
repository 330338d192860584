//! `mount.pramfs`: mounts a pramfs region. See `mount.pramfs --help`.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use pramfs_fuse::cli::{self, Invocation, Request, ServerProcess};
use pramfs_fuse::exit::{Failure, Status};
use pramfs_fuse::privileges::environment;
use pramfs_fuse::{daemon, logging, options, remount, second_mount, session, unmount};

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
    failure.status.into()
}

fn run(args: &[OsString]) -> Result<(), Failure> {
    let invocation = match cli::read(args.iter().cloned())? {
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
        environment::begin_anew(args)
            .map_err(|error| Failure::system(format!("cannot clean the environment: {error}")))?;
    }
    if invocation.process != ServerProcess::BackgroundChild {
        for name in &invocation.ignored {
            eprintln!(
                "mount.pramfs: ignoring unknown mount option: {name}{}",
                options::hint(name)
            );
        }
    }
    logging::panics();
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
        ServerProcess::BackgroundChild => serve_in_background(&invocation),
        ServerProcess::Foreground => serve_in_foreground(&invocation),
    }
}

/// Mounts the region, or adds a mount of a live one. Returns messages for the user.
fn in_background(invocation: &Invocation, args: &[OsString]) -> Result<String, Failure> {
    let again = || {
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

/// Checks both paths and changes nothing.
fn fake(invocation: &Invocation) -> Result<(), Failure> {
    for path in [&invocation.region, &invocation.mountpoint] {
        std::fs::metadata(path)
            .map_err(|error| Failure::mount(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn serve_in_foreground(invocation: &Invocation) -> Result<(), Failure> {
    logging::to_stderr(invocation.verbose);
    let mounted = session::mount(
        &invocation.region,
        &invocation.mountpoint,
        &invocation.settings,
    )?;
    eprint!("{}", words(&mounted.notices, &mounted.summary));
    mounted.serve()
}

/// Serves as the background child. After its report, no process reads its exit status.
fn serve_in_background(invocation: &Invocation) -> Result<(), Failure> {
    logging::to_syslog(invocation.verbose);
    let mounted = match session::mount(
        &invocation.region,
        &invocation.mountpoint,
        &invocation.settings,
    ) {
        Ok(mounted) => mounted,
        Err(failure) => {
            daemon::report_failure(&failure);
            std::process::exit(i32::from(failure.status as u8));
        }
    };
    let text = if invocation.verbose > 0 {
        words(&mounted.notices, &mounted.summary)
    } else {
        words(&[&mounted.notices[..], &mounted.warnings].concat(), "")
    };
    tracing::info!(
        "{}",
        mounted
            .summary
            .lines()
            .map(str::trim)
            .collect::<Vec<_>>()
            .join("; ")
    );
    if let Err(error) = daemon::report_live(&text) {
        // The parent has exited; the mount is live regardless.
        tracing::warn!("cannot report that the mount is live: {error}");
    }
    mounted
        .serve()
        .inspect_err(|failure| tracing::error!("{failure}"))
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
