//! A check of a saved region that goes on where it was interrupted.
//!
//! The position is kept in a file of its own, which is replaced as a whole. It names the saved
//! file by device, inode, size and times. A saved file that has changed since is checked from its
//! beginning. A byte that changes after it was checked is not found.
//!
//! A position vouches for bytes that are not read again. So a position that another user could
//! have written is refused.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::partial::Partial;
use super::restore::{Check, Position, Reader};
use crate::Failure;
use crate::failure::shown;

/// Bytes of the saved region between two positions that are kept.
const STRIDE: u64 = 256 << 20;
/// Bytes of a kept position, at most: two superblock pages as decimal numbers, and a little more.
const POSITION_MAX: u64 = 64 << 10;

/// A position and the file that it belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// What this file is, for a person who finds it.
    what: String,
    file: Identity,
    /// CRC32C of the position as JSON.
    sum: u32,
    position: Position,
}

/// Which file was checked, and since when it has its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    len: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Identity {
    fn of(file: &File) -> io::Result<Identity> {
        let meta = file.metadata()?;
        Ok(Identity {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

const WHAT: &str = "position of an interrupted pramfs restore --check";

/// How a check ended that was not stopped by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The file is sound, and has so many blocks.
    Sound { blocks: u64 },
    /// It was stopped, after so many bytes. The position is kept.
    Stopped { at: u64 },
}

/// Checks a saved region from the position that `kept` names, or from its beginning. `stop` is asked
/// after each chunk with the bytes that are checked. The position is kept until the check has
/// ended.
///
/// # Errors
/// The file is damaged; it, or the position, cannot be read or written; `kept` is something else.
pub(crate) fn check_from(
    file: &File,
    reader: &mut Reader<BufReader<&File>>,
    kept: &Path,
    stop: &mut dyn FnMut(u64) -> bool,
) -> Result<Ended, Failure> {
    let identity = Identity::of(file).map_err(|e| Failure::os("cannot read", "the file", e))?;
    let before = read(kept, identity)?;
    let mut check = Check::new(reader);
    if let Some(position) = before {
        check.resume(position)?;
    }
    let mut at_kept = check.position().len;
    loop {
        // After an error the last position stays: what could not be read may be readable later.
        if let Some(blocks) = check.step()? {
            remove(kept)?;
            return Ok(Ended::Sound { blocks });
        }
        let at = check.at();
        let stops = stop(at);
        if stops || at - at_kept >= STRIDE {
            keep(kept, identity, check.position())?;
            at_kept = at;
        }
        if stops {
            return Ok(Ended::Stopped { at });
        }
    }
}

/// Reads a kept position. `None` if there is none, or if the file has changed since.
fn read(path: &Path, identity: Identity) -> Result<Option<Position>, Failure> {
    let cannot = |e: io::Error| Failure::os("cannot read", path, e);
    let refused = |why: &str| {
        let text = format!("{}: {why}", shown(path));
        Failure::new("position", text)
    };
    // A FIFO of that name does not block.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(cannot)?,
    };
    let meta = file.metadata().map_err(cannot)?;
    let is_own = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_file() || !is_own || meta.nlink() != 1 || meta.mode() & 0o022 != 0 {
        return Err(refused(
            "is not a file that this user alone can write; name another file",
        ));
    }
    let mut text = Vec::new();
    file.take(POSITION_MAX + 1)
        .read_to_end(&mut text)
        .map_err(cannot)?;
    let kept: Option<Kept> = serde_json::from_slice(&text).ok();
    let Some(kept) = kept.filter(|kept| kept.what == WHAT && sum_of(&kept.position) == kept.sum)
    else {
        return Err(refused(
            "is not the position of an interrupted check; name another file",
        ));
    };
    if (kept.file.device, kept.file.inode) != (identity.device, identity.inode) {
        return Err(refused(
            "is the position in another file; name another one, or remove it to check this file from its beginning",
        ));
    }
    match kept.file == identity {
        true => Ok(Some(kept.position)),
        false => Ok(None),
    }
}

fn keep(path: &Path, identity: Identity, position: Position) -> Result<(), Failure> {
    let kept = Kept {
        what: WHAT.to_owned(),
        file: identity,
        sum: sum_of(&position),
        position,
    };
    let mut partial = Partial::of(path)?;
    let cannot = |e: io::Error| Failure::os("cannot write", path, e);
    serde_json::to_writer(&mut partial.file, &kept)
        .map_err(io::Error::from)
        .and_then(|()| partial.file.write_all(b"\n"))
        .and_then(|()| partial.file.sync_all())
        .map_err(cannot)?;
    partial.replace(path, true, false)
}

fn sum_of(position: &Position) -> u32 {
    // It has no map with other keys than text, which is all that can fail.
    serde_json::to_vec(position).map_or(0, |text| crc32c::crc32c(&text))
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::os("cannot remove", path, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::tests::saved_in_chunks;

    struct Case {
        dir: tempfile::TempDir,
        saved: std::path::PathBuf,
        kept: std::path::PathBuf,
    }

    fn case() -> Case {
        let dir = tempfile::tempdir().unwrap();
        let (saved, kept) = (dir.path().join("saved"), dir.path().join("kept"));
        fs::write(&saved, saved_in_chunks(dir.path())).unwrap();
        Case { dir, saved, kept }
    }

    impl Case {
        /// Checks until `chunks` are done. Returns how it ended, and the chunks that were read.
        fn check(&self, chunks: usize) -> (Result<Ended, Failure>, usize) {
            let file = File::open(&self.saved).unwrap();
            let mut done = 0;
            let ended = Reader::new(BufReader::new(&file), "saved").and_then(|mut reader| {
                check_from(&file, &mut reader, &self.kept, &mut |_| {
                    done += 1;
                    done >= chunks
                })
            });
            (ended, done)
        }

        fn stopped_after(&self, chunks: usize) {
            let (ended, done) = self.check(chunks);
            assert!(matches!(ended, Ok(Ended::Stopped { .. })), "{ended:?}");
            assert_eq!(done, chunks);
        }
    }

    #[test]
    fn check_stopped_at_each_chunk_reads_only_the_rest() {
        let case = case();
        let (whole, chunks) = case.check(usize::MAX);
        let whole = whole.unwrap();
        assert!(chunks >= 4, "{chunks}");
        for at in 1..=chunks {
            case.stopped_after(at);
            assert!(case.kept.exists());
            let (ended, rest) = case.check(usize::MAX);
            assert_eq!((ended.unwrap(), rest), (whole, chunks - at));
            assert!(!case.kept.exists());
        }
        // In many parts.
        for _ in 0..chunks {
            case.stopped_after(1);
        }
        assert_eq!(case.check(usize::MAX).0.unwrap(), whole);
    }

    #[test]
    fn damage_behind_the_position_is_found() {
        let case = case();
        case.stopped_after(2);
        let at = usize::try_from(match case.check(1).0.unwrap() {
            Ended::Stopped { at } => at,
            Ended::Sound { .. } => panic!("too few chunks"),
        })
        .unwrap();
        let mut bytes = fs::read(&case.saved).unwrap();
        bytes[at + 40] ^= 1;
        fs::write(&case.saved, bytes).unwrap();
        // As the medium alters a byte: the file looks the same.
        let mut kept: Kept = serde_json::from_slice(&fs::read(&case.kept).unwrap()).unwrap();
        kept.file = Identity::of(&File::open(&case.saved).unwrap()).unwrap();
        fs::write(&case.kept, serde_json::to_vec(&kept).unwrap()).unwrap();
        let (ended, done) = case.check(usize::MAX);
        let error = ended.unwrap_err();
        assert!(
            error.message.contains("chunk 3 is damaged"),
            "{}",
            error.message
        );
        assert_eq!(done, 0);
    }

    #[test]
    fn file_that_was_changed_is_checked_from_its_beginning() {
        let case = case();
        let (_, chunks) = case.check(usize::MAX);
        case.stopped_after(2);
        let bytes = fs::read(&case.saved).unwrap();
        fs::write(&case.saved, bytes).unwrap();
        File::options()
            .write(true)
            .open(&case.saved)
            .unwrap()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        let (ended, done) = case.check(usize::MAX);
        assert!(matches!(ended, Ok(Ended::Sound { .. })), "{ended:?}");
        assert_eq!(done, chunks);
    }

    #[test]
    fn position_of_another_file_or_another_user_is_refused_and_stays() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let case = case();
        case.stopped_after(2);
        let right = fs::read(&case.kept).unwrap();
        let refused = || {
            let error = case.check(usize::MAX).0.unwrap_err();
            assert!(fs::read(&case.kept).unwrap() == right);
            error
        };
        let other = case.dir.path().join("other");
        // Anybody might have written it.
        fs::set_permissions(&case.kept, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(refused().reason, "position");
        fs::set_permissions(&case.kept, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&case.kept, &other).unwrap();
        assert_eq!(refused().reason, "position");
        fs::remove_file(&case.kept).unwrap();
        symlink(&other, &case.kept).unwrap();
        assert!(case.check(usize::MAX).0.is_err());
        fs::rename(&other, &case.kept).unwrap();
        // The same contents under the same name.
        fs::copy(&case.saved, &other).unwrap();
        fs::rename(&other, &case.saved).unwrap();
        let error = refused();
        assert!(
            error.message.contains("position in another file"),
            "{}",
            error.message
        );
    }

    #[test]
    fn position_that_is_none_is_refused_and_stays() {
        let case = case();
        case.stopped_after(2);
        let right = fs::read_to_string(&case.kept).unwrap();
        for wrong in [
            String::new(),
            "a file of somebody".to_owned(),
            right[..right.len() / 2].to_owned(),
            right.replacen("\"chunks\":2", "\"chunks\":3", 1),
            right.replacen("\"blocks\":", "\"blocks\":1", 1),
            " ".repeat(1 << 20),
        ] {
            fs::write(&case.kept, &wrong).unwrap();
            let error = case.check(usize::MAX).0.unwrap_err();
            assert_eq!(error.reason, "position", "{}", error.message);
            assert_eq!(fs::read_to_string(&case.kept).unwrap(), wrong);
        }
    }
}
