//! Detects the contents of a region: a pramfs file system, or anything that
//! blkid(8) recognizes. The tools and `mount.pramfs` say what they have found in the place
//! of a file system of ours.
//!
//! Invariant: nothing is stored, and blkid(8) decides nothing. What it says is for a message, or
//! keeps mkfs from destroying something.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::superblock::{COPY_OFFSET, MAGIC};
use pramfs_medium::pmem::{Region, RegionAccess};
use serde::Serialize;
use thiserror::Error;

/// Why blkid(8) gave no answer.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// A system call failed.
    #[error("{what} {path}: {source}", path = printable(&path.to_string_lossy()))]
    Os {
        /// What failed, as a phrase: `cannot run`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// It failed.
    #[error(
        "{path}: blkid could not look for other file systems ({status}): {said}; use -f to continue without this check",
        path = printable(&path.to_string_lossy())
    )]
    Failed {
        /// The file that it was to look at.
        path: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What it said, printable.
        said: String,
    },
}

/// Returns text from an untrusted source (a label, a name) with its control characters
/// escaped, and those that show what follows in another order.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() || reorders(c) {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

/// Whether this sets the direction of text: marks, embeddings, overrides and isolates.
fn reorders(c: char) -> bool {
    matches!(
        c,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Contents that formatting would destroy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// `filesystem`, `raid`, `crypto`, `partition-table`, `other` or `unknown`.
    pub usage: String,
    /// blkid's name for it: `ext4`, `swap`, `dos`. A pramfs file system is `pramfs`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Label, if any.
    pub label: Option<String>,
    /// uuid, if any.
    pub uuid: Option<String>,
    /// A further remark.
    pub note: Option<String>,
}

impl Contents {
    fn ours() -> Contents {
        Contents {
            usage: "filesystem".into(),
            kind: "pramfs".into(),
            ..Contents::default()
        }
    }

    /// Whether this is anything but a pramfs file system.
    pub fn is_foreign(&self) -> bool {
        self.kind != "pramfs"
    }

    /// `an ext4 file system (label "data", uuid 1234-abcd)`.
    pub fn sentence(&self) -> String {
        let kind = printable(&self.kind);
        let mut text = match self.usage.as_str() {
            "filesystem" => format!("{} {kind} file system", article(&kind)),
            "partition-table" => format!("{} {kind} partition table", article(&kind)),
            "raid" | "crypto" => format!("{} {kind} member or container", article(&kind)),
            "unknown" => kind,
            _ => format!("{} {kind} signature", article(&kind)),
        };
        let mut more = Vec::new();
        more.extend(
            self.label
                .as_ref()
                .map(|l| format!("label \"{}\"", printable(l))),
        );
        more.extend(self.uuid.as_ref().map(|u| format!("uuid {}", printable(u))));
        more.extend(self.note.as_ref().map(|n| printable(n)));
        if !more.is_empty() {
            text += &format!(" ({})", more.join(", "));
        }
        text
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'x']) {
        "an"
    } else {
        "a"
    }
}

/// Detects a pramfs file system, whole or damaged.
pub fn ours(region: &Region) -> Option<Contents> {
    match probe_superblock(region) {
        Ok(info) => {
            let state = if info.is_clean() {
                None
            } else {
                Some("not cleanly unmounted".into())
            };
            let note = if info.from_copy {
                Some("only the superblock copy is intact".into())
            } else {
                state
            };
            Some(Contents {
                label: Some(info.label()).filter(|l| !l.is_empty()),
                uuid: Some(info.uuid().to_string()),
                note,
                ..Contents::ours()
            })
        }
        Err(e) => {
            let marked = |at| region.load_u64(at).is_ok_and(|word| word == MAGIC);
            (marked(0) || marked(COPY_OFFSET)).then(|| Contents {
                note: Some(format!("not usable: {e}")),
                ..Contents::ours()
            })
        }
    }
}

/// As [`ours`], for a file of a length that no region can have.
pub fn ours_by_magic(file: &File) -> Option<Contents> {
    let marked = |at| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at)
            .is_ok_and(|()| u64::from_le_bytes(word) == MAGIC)
    };
    (marked(0) || marked(COPY_OFFSET)).then(Contents::ours)
}

/// The answer of blkid(8).
#[derive(Debug)]
pub enum Foreign {
    /// It recognized nothing.
    Nothing,
    /// It recognized this.
    Known(Contents),
    /// It is not installed.
    NoBlkid,
}

/// Absolute paths of blkid(8): root must not run a program that the caller's PATH
/// chose.
const BLKID: [&str; 5] = [
    "/usr/sbin/blkid",
    "/sbin/blkid",
    "/usr/bin/blkid",
    "/bin/blkid",
    "/usr/local/sbin/blkid",
];

/// Asks blkid(8), bypassing its cache.
///
/// # Errors
/// blkid could not be run, or failed.
pub fn foreign(path: &Path) -> Result<Foreign, ProbeError> {
    ask(path, Command::output)
}

/// As [`foreign`], with what runs blkid(8).
fn ask(
    path: &Path,
    run: impl FnOnce(&mut Command) -> io::Result<Output>,
) -> Result<Foreign, ProbeError> {
    let os = |what, path: &Path, source| ProbeError::Os {
        what,
        path: path.to_owned(),
        source,
    };
    let path = std::fs::canonicalize(path).map_err(|e| os("cannot find", path, e))?;
    let Some(program) = BLKID.iter().map(Path::new).find(|p| p.is_file()) else {
        return Ok(Foreign::NoBlkid);
    };
    let mut command = Command::new(program);
    command
        .args(["-p", "-o", "export", "--"])
        .arg(&path)
        .env_clear()
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    let run = run(&mut command).map_err(|e| os("cannot run", program, e))?;
    match run.status.code() {
        Some(0) => {
            Ok(parse(&String::from_utf8_lossy(&run.stdout))
                .map_or(Foreign::Nothing, Foreign::Known))
        }
        Some(2) => Ok(Foreign::Nothing),
        Some(8) => Ok(Foreign::Known(Contents {
            usage: "unknown".into(),
            kind: "signatures of more than one kind".into(),
            note: Some("blkid cannot tell which one is right; see wipefs(8)".into()),
            ..Contents::default()
        })),
        _ => Err(ProbeError::Failed {
            path,
            status: run.status,
            said: printable(String::from_utf8_lossy(&run.stderr).trim()),
        }),
    }
}

/// How long blkid(8) may take where its answer is only a hint.
const HINT: Duration = Duration::from_secs(2);
/// How often to look whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a program that writes little, and kills it if it takes longer than this.
///
/// # Errors
/// It cannot be run, or takes longer.
fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            // What it has written is in the pipes.
            Ok(Some(_)) => return child.wait_with_output(),
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(PAUSE),
            // Not waited for: a device that does not answer would hold it up, and us with it.
            running => {
                child.kill()?;
                running?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// What a file or block device holds in the place of a pramfs file system, if blkid(8) knows it, and
/// says so soon.
pub fn instead(path: &Path) -> Option<Contents> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    // Damaged, it is still one of ours.
    if ours_by_magic(&File::open(path).ok()?).is_some() {
        return None;
    }
    match ask(path, |command| output_within(command, HINT)) {
        Ok(Foreign::Known(found)) => Some(found),
        _ => None,
    }
}

/// Reads the `KEY=value` lines of `blkid -o export`.
fn parse(text: &str) -> Option<Contents> {
    let mut found = Contents::default();
    let mut table = None;
    for (key, value) in text.lines().filter_map(|l| l.split_once('=')) {
        let value = without_escapes(value);
        match key {
            "TYPE" => found.kind = value,
            "USAGE" => found.usage = value,
            "LABEL" => found.label = Some(value),
            "UUID" => found.uuid = Some(value),
            "PTTYPE" => table = Some(value),
            "PTUUID" if found.uuid.is_none() => found.uuid = Some(value),
            _ => {}
        }
    }
    if found.kind.is_empty() {
        found.kind = table?;
        found.usage = "partition-table".into();
    } else if let Some(table) = table {
        found.note = Some(format!("and a {table} partition table"));
    }
    Some(found)
}

fn without_escapes(value: &str) -> String {
    let mut out = String::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blkid_output_is_parsed() {
        let f = parse("DEVNAME=/x\nLABEL=my\\ disk\nUUID=12-34\nTYPE=ext4\nUSAGE=filesystem\n")
            .unwrap();
        assert_eq!(
            f.sentence(),
            "an ext4 file system (label \"my disk\", uuid 12-34)"
        );
        let f = parse("DEVNAME=/x\nPTTYPE=dos\nPTUUID=9\n").unwrap();
        assert_eq!(f.sentence(), "a dos partition table (uuid 9)");
        let f = parse("TYPE=swap\nUSAGE=other\n").unwrap();
        assert_eq!(f.sentence(), "a swap signature");
        assert_eq!(parse("DEVNAME=/x\n"), None);
    }

    #[test]
    fn program_that_does_not_end_is_killed_and_another_one_is_heard() {
        let mut sleeps = Command::new("sleep");
        let error = output_within(sleeps.arg("1000"), Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut says = Command::new("sh");
        says.args(["-c", "echo out; echo err >&2; exit 3"]);
        let output = output_within(&mut says, Duration::MAX).unwrap();
        let said = (output.status.code(), &output.stdout[..], &output.stderr[..]);
        assert_eq!(said, (Some(3), &b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn file_without_contents_and_one_of_ours_are_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(instead(file.path()), None);
        file.as_file()
            .write_all_at(&MAGIC.to_le_bytes(), 0)
            .unwrap();
        assert_eq!(instead(file.path()), None);
        assert_eq!(instead(Path::new("/dev/null")), None);
        assert_eq!(instead(Path::new("/nowhere")), None);
    }

    #[test]
    fn characters_that_reorder_text_are_escaped_and_others_are_not() {
        for odd in "\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{7}\u{9b}".chars() {
            let shown = printable(&format!("a{odd}b"));
            assert_eq!(shown, format!("a\\u{{{:x}}}b", u32::from(odd)));
        }
        let plain = "na\u{ef}ve \u{5d0}\u{200d}\u{2065}";
        assert_eq!(printable(plain), plain);
    }

    #[test]
    fn label_control_characters_are_escaped() {
        let f = Contents {
            label: Some("a\u{1b}[2Jb".into()),
            ..Contents::ours()
        };
        assert_eq!(
            f.sentence(),
            "a pramfs file system (label \"a\\u{1b}[2Jb\")"
        );
    }
}
