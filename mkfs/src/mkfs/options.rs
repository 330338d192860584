//! The command line of `mkfs.pramfs`.

use std::path::PathBuf;

use clap::Parser;
use pramfs::format::FormatOptions;
use pramfs_medium::media::features::FEATURES;
use uuid::Uuid;

use crate::{Failure, size};

/// Make a pramfs file system
///
/// REGION is a devdax device (/dev/dax0.0), a file (on a file system mounted
/// with dax, on tmpfs, or on any other), or a block device. With SIZE, a missing
/// file is created, sparse.
#[derive(Debug, Parser)]
#[command(
    name = "mkfs.pramfs",
    version = pramfs::VERSION,
    override_usage = "mkfs.pramfs [OPTIONS] REGION [SIZE]",
    after_help = "Sizes are bytes, or end in K, M, G or T: binary units, 1K = 1024 bytes.\n\
                  Exit status: 0 made (or, with -n, would be made), 1 not made."
)]
pub struct Options {
    /// File or device to make the file system in
    #[arg(value_name = "REGION")]
    pub region: Option<PathBuf>,
    /// Size of the file system; the whole of REGION when left out
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
    /// Bytes of a block: 512, 1024, 2048 or 4096 (the default)
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = size::parse, default_value = "4096", hide_default_value = true)]
    pub block_size: u64,
    /// The most inodes there can be
    #[arg(
        short = 'N',
        long,
        value_name = "NUMBER",
        conflicts_with = "bytes_per_inode"
    )]
    pub inodes: Option<u64>,
    /// One inode for so many bytes (default 2048)
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size::parse)]
    pub bytes_per_inode: Option<u64>,
    /// Features to switch on, or off with ^; "list" says which there are
    #[arg(
        short = 'O',
        long,
        value_name = "FEATURE[,^FEATURE...]",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub features: Vec<String>,
    /// Print the features and end
    #[arg(long)]
    pub list_features: bool,
    /// Journal lanes, 1 to 64; about one for each thread that writes at a time
    #[arg(long, value_name = "NUMBER")]
    pub lanes: Option<u32>,

    /// Owner of the root directory (default: who runs this)
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Group of the root directory (default: that of who runs this)
    #[arg(long, value_name = "GID")]
    pub gid: Option<u32>,
    /// Mode of the root directory, octal (default 755)
    #[arg(long, value_name = "MODE", value_parser = octal, default_value = "755", hide_default_value = true)]
    pub mode: u32,

    /// Called by mkfs(8).
    #[arg(skip)]
    pub helper: bool,
    /// Overwrite what is there, and resize an existing file, without the
    /// question that is asked at a terminal. Never overrides the refusal of a
    /// region in use
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Check everything, say what would be made, write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Take all the memory or storage that the file system may come to need now,
    /// so that it never runs out of it later
    #[arg(long)]
    pub allocate: bool,
    /// Give the memory or storage behind REGION back before it is formatted
    #[arg(long)]
    pub discard: bool,
    /// Print errors only, and ask nothing
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Print the result, or the error, as JSON, and ask nothing
    #[arg(long)]
    pub json: bool,
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|m| *m <= 0o7777)
        .ok_or_else(|| format!("\"{text}\" is no mode: octal digits up to 7777, as in 1777"))
}

impl Options {
    /// What the library is to make.
    ///
    /// # Errors
    /// A uuid or a feature list that cannot be read.
    pub fn format(&self) -> Result<FormatOptions, Failure> {
        let uuid = match self.uuid.as_str() {
            "random" => None,
            text => match Uuid::try_parse(text) {
                Ok(uuid) if uuid.is_nil() => {
                    return Err(Failure::usage(
                        "the uuid of all zeros cannot tell file systems apart; say \"random\"",
                    ));
                }
                Ok(uuid) => Some(uuid.into_bytes()),
                Err(_) => {
                    return Err(Failure::usage(format!(
                        "\"{text}\" is no uuid; give one as uuidgen(1) prints it, or \"random\""
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

    /// Whether the features are to be printed.
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
