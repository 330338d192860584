//! [`Failure`]: why a tool gave up, for a person, a script and the shell.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pramfs::pmem::PmemError;
use pramfs_contents::ProbeError;
pub(crate) use pramfs_contents::printable;

/// An error, in the forms that people, scripts and the shell need.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// One word that stays the same between versions, for `--json`.
    pub reason: &'static str,
    /// A sentence that names the object, the cause, and the remedy.
    pub message: String,
    /// The existing contents that prevented the operation, for `--json`.
    pub found: Option<serde_json::Value>,
}

impl Failure {
    /// A failure with exit status 1.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Failure {
        Failure {
            status: 1,
            reason,
            message: message.into(),
            found: None,
        }
    }

    /// A failure that was already reported.
    pub fn silent() -> Failure {
        Failure::new("reported", "")
    }

    /// Wrong usage of options or arguments, with the status that clap has for it. mkfs(8) and
    /// fsck(8) have others.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure {
            status: 2,
            ..Failure::new("usage", message)
        }
    }

    /// A system call on `path` failed: "cannot read PATH: why".
    pub fn os(what: &str, path: impl AsRef<Path>, e: impl Into<std::io::Error>) -> Failure {
        Failure::new(
            "os",
            format!(
                "{what} {}: {}",
                shown(path.as_ref()),
                strip_os_code(&e.into())
            ),
        )
    }

    /// An error of the library about `object`.
    pub fn about(object: impl std::fmt::Display, e: pramfs::Error) -> Failure {
        match e {
            // These name the region already.
            pramfs::Error::Pmem(e) => e.into(),
            e => Failure {
                message: format!("{object}: {e}"),
                ..Failure::from(e)
            },
        }
    }
}

impl From<pramfs::Error> for Failure {
    fn from(e: pramfs::Error) -> Failure {
        let reason = match &e {
            pramfs::Error::Pmem(e) => return Failure::new(reason_of(e), e.to_string()),
            pramfs::Error::NotMountable(_) => "not-mountable",
            pramfs::Error::Corrupt { .. } => "damaged",
            pramfs::Error::NotFound => "not-found",
            pramfs::Error::NoSpace(_) => "no-space",
            pramfs::Error::Exists => "exists",
            pramfs::Error::Busy(_) => "in-use",
            _ => "failed",
        };
        Failure::new(reason, e.to_string())
    }
}

impl From<PmemError> for Failure {
    fn from(e: PmemError) -> Failure {
        Failure::new(reason_of(&e), e.to_string())
    }
}

impl From<ProbeError> for Failure {
    fn from(e: ProbeError) -> Failure {
        match e {
            ProbeError::Os { what, path, source } => Failure::os(what, path, source),
            e => Failure::new("os", e.to_string()),
        }
    }
}

fn reason_of(e: &PmemError) -> &'static str {
    match e.errno() {
        libc::EBUSY => "in-use",
        libc::ENOENT => "not-found",
        libc::EACCES | libc::EPERM => "permission",
        libc::EROFS => "read-only",
        libc::EISDIR | libc::ENODEV => "not-a-region",
        libc::EINVAL => "size",
        libc::ENOSPC => "no-space",
        _ => "os",
    }
}

/// Returns a path with its control characters escaped, for a message.
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Returns a path as a word of a shell, for a command in a message. Words that only some shells
/// have, `$'...'`, are for names with bytes that cannot be shown.
pub(crate) fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./:,+@%=-".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return shown(path);
    }
    match path.to_str() {
        Some(text) if printable(text) == text => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let escaped = bytes.iter().map(|&byte| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(byte)),
                b' '..=b'~' => char::from(byte).to_string(),
                _ => format!("\\{byte:03o}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

/// "No such file or directory", without "(os error 2)".
fn strip_os_code(e: &std::io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    #[test]
    fn quoted_path_is_one_word_of_a_shell() {
        for plain in ["/dev/pmem0", "physaddr:0x40000000+512M"] {
            assert_eq!(quoted(Path::new(plain)), plain);
        }
        assert_eq!(quoted(Path::new("/a b")), "'/a b'");
        assert_eq!(quoted(Path::new("/ä")), "'/ä'");
        for odd in [
            &b"/it's; $(x) \"y\""[..],
            b"/two\nlines\\'",
            b"/\xff8 \x1b[2J",
            b"*",
            b"",
            b"~",
        ] {
            let word = quoted(Path::new(OsStr::from_bytes(odd)));
            assert!(!word.contains(char::is_control), "{word:?}");
            let script = format!("printf %s {word}");
            let Ok(out) = Command::new("bash").args(["-c", &script]).output() else {
                return;
            };
            assert_eq!(out.stdout, odd, "{word}");
        }
    }
}
