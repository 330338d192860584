//! `pramfs info --export`: the superblock as udev reads it, in the properties of blkid(8).
//!
//! The label comes from an untrusted medium. No property has a byte that ends its line, quotes it,
//! or leads out of a directory: udev makes names of links of them.

use std::path::Path;

use pramfs_medium::media::label::{encoded, is_plain};
use pramfs_medium::media::{SuperblockInfo, identify};

use crate::{Failure, output};

/// Exit status if there is no file system, as that of blkid(8).
const NONE: u8 = 2;

/// Prints the properties of the file system in a file or device, and nothing if there is none.
///
/// # Errors
/// With status 2: there is no valid file system, without a message; or the place cannot be read.
pub(super) fn export(path: &Path) -> Result<(), Failure> {
    let found = identify(path).map_err(|error| Failure {
        status: NONE,
        ..Failure::from(error)
    })?;
    match found {
        Some(info) => output::bytes(properties(&info).as_bytes()),
        None => Err(Failure {
            status: NONE,
            ..Failure::silent()
        }),
    }
}

fn properties(info: &SuperblockInfo) -> String {
    let uuid = info.uuid().to_string();
    let label = until_nul(&info.fixed.label);
    let mut rows = vec![
        ("ID_FS_UUID", uuid.clone()),
        ("ID_FS_UUID_ENC", uuid),
        ("ID_FS_VERSION", info.fixed.version.to_string()),
        ("ID_FS_BLOCKSIZE", info.block_size().to_string()),
        ("ID_FS_SIZE", info.fixed.region_len.to_string()),
        ("ID_FS_TYPE", "pramfs".to_owned()),
        ("ID_FS_USAGE", "filesystem".to_owned()),
    ];
    if !label.is_empty() {
        rows.insert(0, ("ID_FS_LABEL", safe(label)));
        rows.insert(1, ("ID_FS_LABEL_ENC", encoded(label)));
    }
    rows.iter()
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect()
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// For people, and for the rules of udev: words separated by single spaces. What is neither plain,
/// nor one of `/ $%?,`, nor a printable character beyond ASCII, is an underscore.
fn safe(label: &[u8]) -> String {
    let mut text = String::new();
    for chunk in label.utf8_chunks() {
        for c in chunk.valid().chars() {
            match u8::try_from(c) {
                Ok(byte) if c.is_ascii() && (is_plain(byte) || b"/$%?,".contains(&byte)) => {
                    text.push(c);
                }
                _ if c.is_whitespace() => text.push(' '),
                _ if !c.is_ascii() && !c.is_control() => text.push(c),
                _ => text.push('_'),
            }
        }
        text.extend(chunk.invalid().iter().map(|_| '_'));
    }
    text.split(' ')
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_escaped_as_udev_expects() {
        for (label, as_shown, in_link) in [
            (&b"data"[..], "data", "data"),
            (b"my disk", "my disk", r"my\x20disk"),
            (b"  a \t b ", "a b", r"\x20\x20a\x20\x09\x20b\x20"),
            ("gr\u{fc}n".as_bytes(), "gr\u{fc}n", "gr\u{fc}n"),
            (
                b"../../etc/passwd",
                "../../etc/passwd",
                r"..\x2f..\x2fetc\x2fpasswd",
            ),
            (b"..", "..", r"\x2e."),
            (
                b"a\nID_FS_TYPE=ext4",
                "a ID_FS_TYPE=ext4",
                r"a\x0aID_FS_TYPE=ext4",
            ),
            (
                b"\"'`$(reboot)\\",
                "___$_reboot__",
                r"\x22\x27\x60\x24\x28reboot\x29\x5c",
            ),
            (b"\x1b[2J\xff", "__2J_", r"\x1b\x5b2J\xff"),
            ("\u{85}\u{2028}".as_bytes(), "", r"\xc2\x85\xe2\x80\xa8"),
        ] {
            assert_eq!(safe(label), as_shown, "{label:?}");
            assert_eq!(encoded(label), in_link, "{label:?}");
        }
    }

    #[test]
    fn no_label_leaves_line_quote_or_directory() {
        for first in 0..=255 {
            for second in [b'a', b'.', b'/', b'\n', b'"', 0x85] {
                let label = [first, second];
                let link = encoded(&label);
                assert!(
                    !link.contains(['/', '\n', '"', '\'', ' ', '\0']),
                    "{link:?}"
                );
                assert!(link != "." && link != "..", "{label:?}");
                assert!(!safe(&label).contains(['\n', '"', '\'', '\0']));
            }
        }
    }
}
