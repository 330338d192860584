//! The command line of `fsck.pramfs`.

use std::path::PathBuf;

use clap::Parser;

/// Check and repair a pramfs file system
///
/// Reads everything in REGION, cross-checks it, and repairs what is damaged.
/// REGION must not be mounted: fsck refuses a region in use and names its
/// holder. Without -n, -p or -y, fsck asks about each repair, which takes a
/// terminal.
#[derive(Debug, Parser)]
#[command(
    name = "fsck.pramfs",
    version = pramfs::VERSION,
    disable_version_flag = true,
    override_usage = "fsck.pramfs [-n | -p | -y] [OPTIONS] REGION",
    after_help = "fsck repairs in memory first, and stores the repair only when it is complete.\n\
                  A repair that is cancelled or cannot be finished changes nothing. If a repair\n\
                  is interrupted by a kill or a power failure, run fsck again.\n\
                  Files that lost their names are put into lost+found, as #INODE.\n\n\
                  Exit status, as in fsck(8); a sum if several apply:\n  \
                  0 nothing is wrong        8 check or store failed\n  \
                  1 damage was repaired    16 wrong usage\n  \
                  4 damage is left         32 cancelled"
)]
pub struct Options {
    /// File or device with the file system
    #[arg(value_name = "REGION")]
    pub region: PathBuf,

    /// Change nothing: open read-only and answer no to every question
    #[arg(short = 'n', long, conflicts_with_all = ["preen", "yes"])]
    pub no: bool,
    /// Repair without questions what loses nothing (counts, copies, leaked
    /// space); skip a file system that was unmounted cleanly and has no recorded errors
    #[arg(short = 'p', short_alias = 'a', long, conflicts_with = "yes")]
    pub preen: bool,
    /// Answer yes to every question
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// With -p, also check a file system that was unmounted cleanly
    /// (without -p it is always checked)
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Print the short name of each finding, and the time taken
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Print the version and exit
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
    fn command_line_definition_is_valid() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
