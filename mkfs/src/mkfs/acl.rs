//! The access control lists of a tar archive, which are text, as the extended attributes that the
//! kernel has for them.

/// How the PAX format of star, GNU tar and bsdtar names such lists.
pub(super) const PREFIX: &str = "SCHILY.acl.";
/// The name of the list that files of a directory inherit.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The name of the list of the file itself.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";

/// The layout of the attribute.
const VERSION: u32 = 2;
/// The number of entries for owner, group and others.
const NO_ID: u32 = u32::MAX;

/// Tags of entries.
const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Parses a list. `None` if it says nothing.
///
/// # Errors
/// What is wrong with it.
pub(super) fn attribute(text: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']) {
        // GNU tar remarks which rights the mask leaves.
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            entries.push(parsed(entry)?);
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    entries.sort_unstable();
    if entries.windows(2).any(|two| two[0].0 == two[1].0) {
        return Err("it has two entries for the same".into());
    }
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for ((tag, id), perm) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Ok(Some(bytes))
}

/// Whether a list of a file says more than its mode: it has more than the three entries of every file.
pub(super) fn is_more_than_mode(attribute: &[u8]) -> bool {
    attribute.len() > 4 + 3 * 8
}

/// Parses `user::rwx`, `user:1000:r--` or, as bsdtar writes it, `user:name:r--:1000`. Returns tag and
/// number, and the permission bits.
fn parsed(entry: &str) -> Result<((u16, u32), u16), String> {
    let malformed = || format!("its entry {entry:?} is malformed");
    let fields: Vec<&str> = entry.split(':').map(str::trim).collect();
    let (kind, who, rights, number) = match fields[..] {
        // `mask:rwx` and `other:r--` are short for those with two colons.
        [kind, rights] => (kind, "", rights, None),
        [kind, who, rights] => (kind, who, rights, None),
        [kind, who, rights, number] => (kind, who, rights, Some(number)),
        _ => return Err(malformed()),
    };
    let tag = match (kind, who.is_empty()) {
        ("user" | "u", true) => OWNER,
        ("user" | "u", false) => USER,
        ("group" | "g", true) => OWNING_GROUP,
        ("group" | "g", false) => GROUP,
        ("mask" | "m", true) => MASK,
        ("other" | "o", true) => OTHERS,
        _ => return Err(malformed()),
    };
    let id = match who {
        "" => NO_ID,
        who => number
            .unwrap_or(who)
            .parse()
            .map_err(|_| format!("it names {who:?} without a number"))?,
    };
    let mut perm = 0;
    for right in rights.chars() {
        perm |= match right {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return Err(malformed()),
        };
    }
    Ok(((tag, id), perm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(bytes: &[u8]) -> Vec<(u16, u16, u32)> {
        assert_eq!(bytes[..4], VERSION.to_le_bytes());
        let (entries, rest) = bytes[4..].as_chunks::<8>();
        assert!(rest.is_empty());
        let short = |bytes: &[u8]| u16::from_le_bytes(bytes.try_into().unwrap());
        let entry = |bytes: &[u8; 8]| {
            let id = u32::from_le_bytes(bytes[4..].try_into().unwrap());
            (short(&bytes[..2]), short(&bytes[2..4]), id)
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn lists_of_tar_programs_are_parsed() {
        let expected = [
            (OWNER, 6, NO_ID),
            (USER, 4, 7),
            (USER, 7, 1000),
            (OWNING_GROUP, 4, NO_ID),
            (GROUP, 0, 5),
            (MASK, 7, NO_ID),
            (OTHERS, 0, NO_ID),
        ];
        for text in [
            "user::rw-\nuser:1000:rwx\t#effective:r--\nuser:7:r--\ngroup::r--\ngroup:5:---\nmask::rwx\nother::---\n",
            "user::rw-,user:lisa:rwx:1000,user:x:r--:7,group::r--,group:y:---:5,mask::rwx,other::---",
            "u::rw-,u:1000:rwx,u:7:r--,g::r--,g:5:---,mask:rwx,other:---",
        ] {
            let bytes = attribute(text.as_bytes()).unwrap().unwrap();
            assert_eq!(entries(&bytes), expected, "{text}");
        }
        assert_eq!(attribute(b""), Ok(None));
        let mode = attribute(b"user::rw-,group::r--,other::---")
            .unwrap()
            .unwrap();
        assert!(!is_more_than_mode(&mode));
    }

    #[test]
    fn malformed_lists_and_names_without_numbers_are_refused() {
        for text in [
            "user:lisa:rwx",
            "user::rwz",
            "x::r--",
            "user",
            "mask:5:r--",
            "\u{ff}:",
            "user:1:r--:-2",
        ] {
            assert!(attribute(text.as_bytes()).is_err(), "{text}");
        }
        assert!(attribute(b"\xff").is_err());
        assert!(attribute(b"user::r--,user::rw-").is_err());
        let why = attribute(b"group:staff:rwx").unwrap_err();
        assert_eq!(why, "it names \"staff\" without a number");
    }
}
