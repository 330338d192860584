//! The tool `pramfs`: one table of subcommands that gives help, dispatch and
//! completions, and one file for each subcommand.

mod bench;
mod cat;
pub(crate) mod check;
mod completions;
mod doctor;
mod dump;
mod export;
mod extents;
mod frag;
mod get;
mod grow;
mod help;
#[cfg(feature = "save")]
mod image;
mod info;
mod leases;
mod live;
mod log_level;
mod ls;
mod metrics;
mod names;
mod owner;
mod prometheus;
mod put;
mod requests;
#[cfg(feature = "save")]
mod restore;
mod run;
#[cfg(feature = "save")]
mod save;
mod scrub;
mod set;
mod stat;
mod status;
#[cfg(feature = "top")]
mod top;
mod transports;
mod trim;
mod tune;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, Args};

use crate::{Failure, output};
#[cfg(feature = "save")]
pub(crate) use live::live_mount_itself;
pub(crate) use put::put_tree;

/// A subcommand.
trait Subcommand: Args {
    /// Name.
    const NAME: &'static str;
    /// One line of help, without a full stop.
    const ABOUT: &'static str;
    /// Runs it.
    fn run(&self) -> Result<(), Failure>;
}

/// A line of the table.
struct Entry {
    name: &'static str,
    about: &'static str,
    args: fn(clap::Command) -> clap::Command,
    run: fn(&ArgMatches) -> Result<(), Failure>,
}

const fn entry<T: Subcommand>() -> Entry {
    Entry {
        name: T::NAME,
        about: T::ABOUT,
        args: T::augment_args,
        run: run::<T>,
    }
}

/// Subcommands, in the order of the help.
const TABLE: &[Entry] = &[
    entry::<doctor::Doctor>(),
    entry::<info::Info>(),
    entry::<ls::Ls>(),
    entry::<stat::Stat>(),
    entry::<cat::Cat>(),
    entry::<get::Get>(),
    entry::<put::Put>(),
    entry::<names::Mkdir>(),
    entry::<names::Rm>(),
    entry::<names::Mv>(),
    entry::<names::Ln>(),
    entry::<extents::Extents>(),
    entry::<owner::OwnerOf>(),
    entry::<frag::Frag>(),
    entry::<frag::Defrag>(),
    entry::<check::Check>(),
    entry::<status::Status>(),
    #[cfg(feature = "top")]
    entry::<top::Top>(),
    entry::<metrics::Metrics>(),
    entry::<log_level::SetLogLevel>(),
    entry::<leases::Leases>(),
    entry::<requests::Requests>(),
    entry::<run::Run>(),
    entry::<set::Set>(),
    entry::<trim::Trim>(),
    #[cfg(feature = "save")]
    entry::<save::Save>(),
    #[cfg(feature = "save")]
    entry::<restore::Restore>(),
    #[cfg(feature = "save")]
    entry::<image::Image>(),
    entry::<grow::Grow>(),
    entry::<tune::Tune>(),
    entry::<scrub::Scrub>(),
    entry::<bench::Bench>(),
    entry::<dump::Dump>(),
    entry::<completions::Completions>(),
    entry::<help::Help>(),
];

fn run<T: Subcommand>(matches: &ArgMatches) -> Result<(), Failure> {
    T::from_arg_matches(matches)
        .map_err(|e| Failure::usage(e.to_string()))?
        .run()
}

/// Builds the whole command line.
pub fn command_line() -> clap::Command {
    let top = clap::Command::new("pramfs")
        .version(pramfs::VERSION)
        .about("Inspect pramfs regions, and access their files without a mount")
        .after_help(
            "A region in use is refused, with the name of its holder, by info, stat, get, put, mkdir, rm, mv,\n\
             ln, trim, restore and image. Other commands ask the server of the mount, read through it, or, as\n\
             root, copy it first: check, dump and owner. A PATH starts at the root (/) of the file system in the\n\
             region. mkfs.pramfs makes a file system; mount.pramfs mounts it.\n\
             Exit status: 0 success, 1 failure, 2 wrong usage.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        // Ours shows the manual page.
        .disable_help_subcommand(true);
    TABLE.iter().fold(top, |top, e| {
        top.subcommand((e.args)(clap::Command::new(e.name)).about(e.about))
    })
}

/// Runs the tool.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let matches = match command_line().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) => e.exit(),
    };
    let Some((name, matches)) = matches.subcommand() else {
        return ExitCode::from(2);
    };
    let Some(entry) = TABLE.iter().find(|e| e.name == name) else {
        return ExitCode::from(2);
    };
    match (entry.run)(matches).and_then(|()| output::flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            let as_json = matches
                .try_get_one::<bool>("json")
                .ok()
                .flatten()
                .copied()
                .unwrap_or(false);
            output::failed(&format!("pramfs {name}"), &f, as_json)
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn clap_definition_is_valid() {
        super::command_line().debug_assert();
    }
}
