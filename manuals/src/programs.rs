//! The programs, with their command lines.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory as _};
use pramfs_fuse::options;

/// A program as it is installed.
#[derive(Debug)]
pub struct Program {
    /// Its name, which is also that of its page.
    pub name: &'static str,
    /// The section of its page.
    pub section: u8,
    /// Other names, under which mount(8), mkfs(8), fsck(8) and umount(8) call it.
    pub also: &'static [&'static str],
    /// The command line.
    pub command: Command,
}

/// Returns all programs.
pub fn programs() -> Vec<Program> {
    let program = |name, section, also, command: Command| Program {
        name,
        section,
        also,
        // As installed: cargo's names have no dot.
        command: command
            .name(name)
            .bin_name(name)
            .subcommand_value_name("COMMAND"),
    };
    vec![
        program(
            "mkfs.pramfs",
            8,
            &["mkfs.fuse.pramfs"],
            pramfs_tools::mkfs::Options::command(),
        ),
        program(
            "fsck.pramfs",
            8,
            &["fsck.fuse.pramfs"],
            pramfs_tools::fsck::Options::command(),
        ),
        program(
            "mount.pramfs",
            8,
            &["mount.fuse.pramfs"],
            pramfs_fuse::cli::command(),
        ),
        program(
            "umount.fuse.pramfs",
            8,
            &[],
            pramfs_fuse::unmount::command(),
        ),
        program(
            "pramfs-virtiofsd",
            8,
            &[],
            pramfs_fuse::virtiofsd::cli::command(),
        ),
        program("pramfs", 1, &[], pramfs_tools::commands::command_line()),
    ]
}

/// Returns the command line with the values that a shell can propose. The parsers of the
/// programs check these themselves, with messages of their own.
pub(crate) fn with_values(program: &Program) -> Command {
    let command = program.command.clone();
    match program.name {
        "mount.pramfs" => command
            .mut_arg("options", |arg| arg.value_parser(mount_options()))
            .mut_arg("backend", |arg| arg.value_parser(values_of("backend")))
            .mut_arg("durability", |arg| {
                arg.value_parser(values_of("durability"))
            }),
        "pramfs-virtiofsd" => command
            .mut_arg("data", |arg| arg.value_parser(values_of("data")))
            .mut_arg("protect", |arg| arg.value_parser(values_of("protect")))
            .mut_arg("cache", |arg| {
                arg.value_parser(["auto", "always", "never", "metadata"])
            })
            .mut_arg("seccomp", |arg| arg.value_parser(["errno", "none"]))
            .mut_arg("sandbox", |arg| arg.value_parser(["landlock", "none"]))
            .mut_arg("log_level", |arg| {
                arg.value_parser(["off", "error", "warn", "info", "debug", "trace"])
            }),
        _ => command,
    }
}

/// Every mount option with each of its values; the name and `=` where any text follows.
fn mount_options() -> PossibleValuesParser {
    let all = options::documented().flat_map(|option| option.proposals());
    // clap keeps words of the program only; this program ends soon.
    let all = all.map(|word| -> &'static str { word.leak() });
    PossibleValuesParser::new(all.collect::<Vec<_>>())
}

fn values_of(name: &str) -> PossibleValuesParser {
    let option = options::documented().find(|option| option.name == name);
    PossibleValuesParser::new(option.map(|option| option.values).unwrap_or_default())
}
