//! `pramfs-virtiofsd`: serves a pramfs region to guests. See `pramfs-virtiofsd --help`.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use pramfs_fuse::exit::{Failure, Status};
use pramfs_fuse::logging;
use pramfs_fuse::privileges::environment;
use pramfs_fuse::virtiofsd::cli::{self, Request};
use pramfs_fuse::virtiofsd::serve;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let failure = match catch_unwind(AssertUnwindSafe(|| run(&args))) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => return Status::Bug.into(),
    };
    eprintln!("pramfs-virtiofsd: {failure}");
    failure.status.into()
}

fn run(args: &[OsString]) -> Result<(), Failure> {
    let invocation = match cli::read(args.iter().cloned())? {
        Request::Say(text) => {
            print!("{text}");
            return Ok(());
        }
        Request::Serve(invocation) => *invocation,
    };
    environment::begin_anew(args, &[])
        .map_err(|error| Failure::system(format!("cannot clean the environment: {error}")))?;
    logging::panics();
    logging::to_stderr_at(&invocation.log_level);
    serve(&invocation)
}
