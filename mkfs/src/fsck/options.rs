//! The command line of `fsck.pramfs`.

use std::path::PathBuf;

use clap::Parser;

/// Check a pramfs file system
///
/// Everything in REGION is read and held against everything else. REGION must
/// not be mounted: one that is in use is refused, and who holds it is named.
#[derive(Debug, Parser)]
#[command(
    name = "fsck.pramfs",
    version,
    disable_version_flag = true,
    override_usage = "fsck.pramfs [OPTIONS] REGION",
    after_help = "Exit status, as fsck(8) has it, added up where several hold:\n  \
                  0 nothing is wrong        8 it could not be checked\n  \
                  1 damage was repaired    16 wrong usage\n  \
                  4 damage is left         32 cancelled"
)]
pub struct Options {
    /// File or device with the file system
    #[arg(value_name = "REGION")]
    pub region: PathBuf,

    /// Change nothing, and answer no to every question
    #[arg(short = 'n', long)]
    pub no: bool,
    /// Check even what was unmounted cleanly. (Without -p it always is.)
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Say what was looked at, and how long that took
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
