//! The command line of `fsck.pramfs`.

use std::path::PathBuf;

use clap::Parser;

/// Check and repair a pramfs file system
///
/// Everything in REGION is read and held against everything else, and what is
/// damaged is mended. REGION must not be mounted: one that is in use is refused,
/// and who holds it is named. Without -n, -p or -y each repair is asked about,
/// which takes a terminal.
#[derive(Debug, Parser)]
#[command(
    name = "fsck.pramfs",
    version = pramfs::VERSION,
    disable_version_flag = true,
    override_usage = "fsck.pramfs [-n | -p | -y] [OPTIONS] REGION",
    after_help = "What is found is mended in memory first, and stored only if that has come to an end:\n\
                  a repair that is cancelled, or cannot be finished, changes nothing. One that is\n\
                  killed, or cut off by a power failure, is done again by the next.\n\
                  Files that lost their names are put into lost+found, as #INODE.\n\n\
                  Exit status, as fsck(8) has it, added up where several hold:\n  \
                  0 nothing is wrong        8 it could not be checked or stored\n  \
                  1 damage was repaired    16 wrong usage\n  \
                  4 damage is left         32 cancelled"
)]
pub struct Options {
    /// File or device with the file system
    #[arg(value_name = "REGION")]
    pub region: PathBuf,

    /// Change nothing: open read-only, and answer no to every question
    #[arg(short = 'n', long, conflicts_with_all = ["preen", "yes"])]
    pub no: bool,
    /// Mend without a question what loses nothing (counts, copies, leaked
    /// space); skip a file system that was unmounted cleanly and met no errors
    #[arg(short = 'p', short_alias = 'a', long, conflicts_with = "yes")]
    pub preen: bool,
    /// Answer yes to every question
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// With -p, check what was unmounted cleanly, too. (Otherwise it always is.)
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Say of each finding which it is (its short name), and how long it took
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Print the version and end
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    pub version: Option<bool>,
    /// Print one JSON object, and ask nothing
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
