//! The command line of `mkfs.pramfs`.

use std::path::PathBuf;

use clap::Parser;
use pramfs::format::FormatOptions;
use pramfs_medium::media::features::FEATURES;
use pramfs_medium::size;
use uuid::Uuid;

use crate::Failure;

/// Make a pramfs file system
///
/// REGION is a devdax device (/dev/dax0.0), a block device, or a file: on a file
/// system mounted with dax, on tmpfs, or on any other. With SIZE, mkfs creates a
/// missing file, sparse.
#[derive(Debug, Parser)]
#[command(
    name = "mkfs.pramfs",
    version = pramfs::VERSION,
    override_usage = "mkfs.pramfs [OPTIONS] REGION [SIZE]",
    after_help = "Sizes are in bytes, or have a binary suffix K, M, G or T (1K = 1024 bytes).\n\
                  Exit status: 0 success (with -n: would succeed), 1 failure."
)]
pub struct Options {
    /// File or device to make the file system in
    #[arg(value_name = "REGION")]
    pub region: Option<PathBuf>,
    /// Size of the file system (default: all of REGION)
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,

    /// Label, up to 63 bytes
    #[arg(
        short = 'L',
        long,
        value_name = "LABEL",
        default_value = "",
        hide_default_value = true
    )]
    pub label: String,
    /// A uuid, or "random" (the default)
    #[arg(
        short = 'U',
        long,
        value_name = "UUID",
        default_value = "random",
        hide_default_value = true
    )]
    pub uuid: String,
    /// Block size in bytes: 512, 1024, 2048 or 4096 (the default)
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = size::parse, default_value = "4096", hide_default_value = true)]
    pub block_size: u64,
    /// Maximum number of inodes
    #[arg(
        short = 'N',
        long,
        value_name = "NUMBER",
        conflicts_with = "bytes_per_inode"
    )]
    pub inodes: Option<u64>,
    /// Bytes of the region for each inode (default 2048)
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size::parse)]
    pub bytes_per_inode: Option<u64>,
    /// Features to switch on, or off with ^; "list" prints them
    #[arg(
        short = 'O',
        long,
        value_name = "FEATURE[,^FEATURE...]",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub features: Vec<String>,
    /// Print the features and exit
    #[arg(long)]
    pub list_features: bool,
    /// Journal lanes, 1 to 64; about one for each thread that writes concurrently
    #[arg(long, value_name = "NUMBER")]
    pub lanes: Option<u32>,

    /// Copy into it what a directory or a tar archive has ("-": an archive on standard input),
    /// with owners, modes, times, links and extended attributes
    #[arg(short = 'd', long = "directory", value_name = "DIR|TAR")]
    pub directory: Option<PathBuf>,
    /// Owner of the root directory (default: the caller)
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Group of the root directory (default: the caller's group)
    #[arg(long, value_name = "GID")]
    pub gid: Option<u32>,
    /// Mode of the root directory, octal (default 755)
    #[arg(long, value_name = "MODE", value_parser = octal, default_value = "755", hide_default_value = true)]
    pub mode: u32,

    /// Called by mkfs(8).
    #[arg(skip)]
    pub helper: bool,
    /// Overwrite existing contents, and resize an existing file, without a
    /// question; never overrides the refusal of a region in use
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Check everything and print the result, but write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Take all the memory or storage that the file system may need now, so that
    /// it never runs out later
    #[arg(long)]
    pub allocate: bool,
    /// Return the memory or storage behind REGION to the host before formatting
    #[arg(long)]
    pub discard: bool,
    /// Print only errors, and ask nothing
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Print the result, or the error, as JSON, and ask nothing
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|m| *m <= 0o7777)
        .ok_or_else(|| {
            format!("\"{text}\" is not a mode; give octal digits up to 7777, such as 1777")
        })
}

impl Options {
    /// Builds the library's format options.
    ///
    /// # Errors
    /// The uuid or the feature list is malformed.
    pub fn format(&self) -> Result<FormatOptions, Failure> {
        let uuid = match self.uuid.as_str() {
            "random" => None,
            text => match Uuid::try_parse(text) {
                Ok(uuid) if uuid.is_nil() => {
                    return Err(Failure::usage(
                        "a uuid of all zeros cannot distinguish file systems; use \"random\"",
                    ));
                }
                Ok(uuid) => Some(uuid.into_bytes()),
                Err(_) => {
                    return Err(Failure::usage(format!(
                        "\"{text}\" is not a uuid; give one in the format of uuidgen(1), or \"random\""
                    )));
                }
            },
        };
        let block_size = u32::try_from(self.block_size).unwrap_or(u32::MAX);
        Ok(FormatOptions {
            label: self.label.clone(),
            uuid,
            block_size,
            max_inodes: self.inodes,
            bytes_per_inode: self.bytes_per_inode,
            lanes: self.lanes,
            features: self.feature_list(),
            root_uid: self
                .uid
                .unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            root_gid: self
                .gid
                .unwrap_or_else(|| rustix::process::getegid().as_raw()),
            root_mode: self.mode,
            ..FormatOptions::default()
        })
    }

    /// Whether to print the features.
    pub fn wants_list(&self) -> bool {
        self.list_features || self.features.iter().any(|f| f == "list")
    }

    fn feature_list(&self) -> Vec<(String, bool)> {
        let mut list = Vec::new();
        for word in self
            .features
            .iter()
            .map(|w| w.trim())
            .filter(|w| !w.is_empty())
        {
            match word.strip_prefix('^') {
                Some(off) => list.push((off.to_owned(), false)),
                None if word == "none" => {
                    list.extend(
                        FEATURES
                            .iter()
                            .filter(|f| f.supported)
                            .map(|f| (f.name.to_owned(), false)),
                    );
                }
                None => list.push((word.to_owned(), true)),
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn features_are_parsed_in_order() {
        let o =
            Options::try_parse_from(["mkfs.pramfs", "-O", "none,huge_leaves,^quota", "r"]).unwrap();
        let list = o.feature_list();
        assert_eq!(list.first(), Some(&("huge_leaves".to_owned(), false)));
        assert_eq!(
            &list[list.len() - 2..],
            &[
                ("huge_leaves".to_owned(), true),
                ("quota".to_owned(), false)
            ]
        );
    }

    #[test]
    fn mode_option_is_octal() {
        assert_eq!(octal("1777"), Ok(0o1777));
        for bad in ["8", "-1", "17777", "rwx", ""] {
            assert!(octal(bad).is_err(), "{bad}");
        }
    }
}
