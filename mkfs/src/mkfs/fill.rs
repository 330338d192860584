//! `mkfs.pramfs -d`: fills a new file system from a directory or a tar archive.
//!
//! Invariants:
//! * an entry of an archive is made below the root of the new file system: a name with `..` is
//!   refused, and no symbolic link is followed;
//! * after a failure, a file that mkfs has made is removed; a device or an older file has a file system
//!   that is not filled, as the message says;
//! * a signal that ends it is noted: then such a device or file has no file system.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::atomic::AtomicUsize;

use pramfs::inode::{Attr, Credentials, Fs, Ino, SetAttr, SetTime, Time};
use pramfs::pmem::Region;
use pramfs::{Error, FileType, MountOptions, XattrMode};
use pramfs_medium::media::SuperblockInfo;
use pramfs_medium::pmem::RegionAccess;
use rustix::event::{PollFd, PollFlags, Timespec};
use tar::{Archive, Entry, EntryType};

use super::acl;
use crate::commands::put_tree;
use crate::failure::{printable, shown};
use crate::tree::{self, CHUNK};
use crate::{Failure, signals};

/// How the PAX format names an extended attribute.
const XATTR: &str = "SCHILY.xattr.";
/// How it names the time of the last change, with a fraction of a second.
const MTIME: &[u8] = b"mtime";
/// Name and value of an extended attribute.
type Xattr = (Vec<u8>, Vec<u8>);
/// Most bytes of the headers of one entry. The library reads them into memory, with the map of a
/// sparse file, which takes 24 bytes for a piece.
const MOST_HEADERS: u64 = 64 << 20;
/// Largest file that is taken from an archive if the region is not larger, bytes: what it holds may be
/// zeros that the archive does not.
const MOST_SPARSE: u64 = 1 << 40;
/// How the PAX format begins what it says of sparse files: their contents are not their bytes then.
const SPARSE: &[u8] = b"GNU.sparse.";

/// Fills the file system in a region that was just formatted, as `made`. `-` is an archive on standard
/// input. A noted signal ends it.
pub(super) fn fill(
    region: Region,
    name: &str,
    from: &Path,
    made: &SuperblockInfo,
    signal: &AtomicUsize,
) -> Result<(), Failure> {
    let quiet = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    let interrupted = || match signals::noted(signal) {
        None => Ok(()),
        Some(_) => Err(Failure::new(
            "interrupted",
            "a signal has ended it; there is no file system now",
        )),
    };
    let object = region.ownership().map(|ownership| ownership.object());
    let fs = Fs::open(region, quiet).map_err(|e| Failure::about(name, e))?;
    let filled = match from.is_dir() {
        true => put_tree(&fs, from, object, &interrupted),
        false => archive(&fs, from, &interrupted),
    };
    // Once, at the end: a signal may come during the unmount too.
    let closed = fs.close_with(|region| match interrupted() {
        Ok(()) => Ok(Ok(())),
        Err(failure) => clear(region, made).map(|()| Err(failure)),
    });
    let done = match closed.and_then(|(_region, cleared)| cleared) {
        // A read that a signal has ended failed with another error.
        Ok(ended) => ended.and(filled),
        // The superblock may be there still.
        Err(e) if interrupted().is_err() => Err(Failure::about(name, e)),
        Err(e) => filled.and(Err(Failure::about(name, e))),
    };
    done.map_err(|failure| Failure {
        message: format!("{name}: not filled: {}", failure.message),
        ..failure
    })
}

/// Removes the superblock and its copy.
fn clear(region: &Region, made: &SuperblockInfo) -> pramfs::Result<()> {
    let w = region.window();
    let pending = w.store(0, &[0; 8])?;
    let pending = pending.join(w.store(made.fixed.copy_offset, &[0; 8])?);
    let _durable = w.fence(pending);
    region
        .sync_all()
        .map_err(|e| Error::io_failed("the superblock could not be removed", e))
}

/// Gives up when it says so.
type Interrupted<'a> = &'a dyn Fn() -> Result<(), Failure>;

fn archive(fs: &Fs, from: &Path, interrupted: Interrupted<'_>) -> Result<(), Failure> {
    let read = |file: BorrowedFd<'_>| {
        let reader = io::BufReader::new(Waiting { file, interrupted });
        Filler::new(fs, from, interrupted).all(reader)
    };
    if from.as_os_str() == "-" {
        return read(io::stdin().as_fd());
    }
    let file = File::open(from).map_err(|e| Failure::os("cannot open", from, e))?;
    read(file.as_fd())
}

/// A file that is read. While there is nothing to read, a signal ends it.
struct Waiting<'a> {
    file: BorrowedFd<'a>,
    interrupted: Interrupted<'a>,
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        loop {
            (self.interrupted)().map_err(|failure| io::Error::other(failure.message))?;
            let mut wanted = [PollFd::new(&self.file, PollFlags::IN)];
            match rustix::event::poll(&mut wanted, Some(&moment)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(rustix::io::read(self.file, buffer)?),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// What the reader of an archive may read, and whether it has come to an end.
struct Watch {
    /// Bytes that are left for headers; `None` while the contents of an entry are read.
    left: Cell<Option<u64>>,
    /// Nothing follows.
    is_at_end: Cell<bool>,
}

/// A reader that a [`Watch`] looks at.
struct Watched<'a, R> {
    reader: R,
    watch: &'a Watch,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        if n == 0 && !buffer.is_empty() {
            self.watch.is_at_end.set(true);
        }
        if let Some(left) = self.watch.left.get() {
            let left = left.checked_sub(n as u64).ok_or_else(|| {
                io::Error::other(format!(
                    "the headers of an entry have more than {MOST_HEADERS} bytes"
                ))
            })?;
            self.watch.left.set(Some(left));
        }
        Ok(n)
    }
}

/// What the extended headers of an entry say.
#[derive(Default)]
struct Extended {
    attributes: Vec<Xattr>,
    /// What files of the directory inherit.
    default_acl: Option<Vec<u8>>,
    /// More exactly than the header.
    mtime: Option<Time>,
}

struct Filler<'a> {
    fs: &'a Fs,
    from: &'a Path,
    interrupted: Interrupted<'a>,
    buffer: Vec<u8>,
    /// Directories whose times and default lists are set at the end: what is made in them changes
    /// their times, and would inherit from them.
    directories: Vec<(Ino, SetTime, Option<Vec<u8>>)>,
}

impl<'a> Filler<'a> {
    fn new(fs: &'a Fs, from: &'a Path, interrupted: Interrupted<'a>) -> Filler<'a> {
        Filler {
            fs,
            from,
            interrupted,
            buffer: vec![0; CHUNK],
            directories: Vec::new(),
        }
    }

    fn wrong(&self, why: &io::Error) -> Failure {
        Failure::new(
            "os",
            format!(
                "{} is no tar archive, or is damaged: {why} (of a compressed one, pipe the contents: zstd -dc FILE | mkfs.pramfs -d - ...)",
                shown(self.from)
            ),
        )
    }

    fn all(&mut self, reader: impl Read) -> Result<(), Failure> {
        let watch = Watch {
            left: Cell::new(Some(MOST_HEADERS)),
            is_at_end: Cell::new(false),
        };
        let watched = Watched {
            reader,
            watch: &watch,
        };
        let mut archive = Archive::new(watched);
        let mut entries = 0u64;
        for entry in archive.entries().map_err(|e| self.wrong(&e))? {
            let mut entry = entry.map_err(|e| self.wrong(&e))?;
            (self.interrupted)()?;
            watch.left.set(None);
            self.entry(&mut entry)?;
            // What was not copied of it counts for no header.
            io::copy(&mut entry, &mut io::sink()).map_err(|e| self.wrong(&e))?;
            watch.left.set(Some(MOST_HEADERS));
            entries += 1;
        }
        if entries == 0 {
            let why = io::Error::other("it has no entries");
            return Err(self.wrong(&why));
        }
        if watch.is_at_end.get() {
            let why = io::Error::other("it ends without its end marker, and may be cut off");
            return Err(self.wrong(&why));
        }
        for (ino, mtime, default_acl) in std::mem::take(&mut self.directories) {
            if let Some(acl) = default_acl {
                let set =
                    (self.fs).setxattr(&Credentials::ROOT, ino, acl::DEFAULT, &acl, XattrMode::Set);
                set.map_err(|e| Failure::about("a directory of the archive", e))?;
            }
            let set = SetAttr {
                mtime: Some(mtime),
                ..SetAttr::default()
            };
            let set = self.fs.setattr(&Credentials::ROOT, ino, &set);
            set.map_err(|e| Failure::about("a directory of the archive", e))?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), Failure> {
        let path = entry.path().map_err(|e| self.wrong(&e))?.into_owned();
        let shown_path = path.as_os_str().as_bytes().to_vec();
        // Before anything is made or removed for it.
        match entry.header().entry_type() {
            // Remarks about the whole archive.
            EntryType::XGlobalHeader => return Ok(()),
            EntryType::Directory
            | EntryType::Regular
            | EntryType::Continuous
            | EntryType::GNUSparse
            | EntryType::Symlink
            | EntryType::Link
            | EntryType::Char
            | EntryType::Block
            | EntryType::Fifo => {}
            other => return Err(self.unknown(other, &shown_path)),
        }
        let parts = self.parts(&path)?;
        let about = |e| tree::about(&shown_path, e);
        let header = entry.header();
        let (uid, gid) = match (header.uid(), header.gid()) {
            (Ok(uid), Ok(gid)) => (clamp(uid), clamp(gid)),
            (Err(e), _) | (_, Err(e)) => return Err(self.wrong(&e)),
        };
        let extended = self.extended(entry)?;
        let header = entry.header();
        let owner = Credentials::new(uid, gid);
        let perm = header.mode().map_err(|e| self.wrong(&e))? & 0o7777;
        let mtime = SetTime::At(match extended.mtime {
            Some(time) => time,
            None => Time {
                sec: header.mtime().map_err(|e| self.wrong(&e))?.cast_signed(),
                nsec: 0,
            },
        });
        let kind = header.entry_type();
        let device = || -> io::Result<u64> {
            let number =
                |n: Option<u32>| n.ok_or_else(|| io::Error::other("a device without number"));
            let (major, minor) = (header.device_major()?, header.device_minor()?);
            Ok(rustix::fs::makedev(number(major)?, number(minor)?))
        };
        let Some((name, parents)) = parts.split_last() else {
            // The root: its owner and mode are options of mkfs.
            return Ok(());
        };
        let parent = self.parent(parents)?;
        let existing = match self.fs.lookup(parent, name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(e) => return Err(about(e)),
        };
        // Before its old name is removed, which may be the last name of the same file.
        let linked = match kind {
            EntryType::Link => {
                let target = self.link_name(entry)?;
                let target = Path::new(std::ffi::OsStr::from_bytes(&target));
                Some(self.existing(&self.parts(target)?, target)?)
            }
            _ => None,
        };
        if linked.is_some() && linked == existing.as_ref().map(|found| found.ino) {
            return Ok(());
        }
        let made: Attr = if kind == EntryType::Directory {
            match existing {
                Some(found) if found.kind == FileType::Directory => found,
                other => {
                    if other.is_some() {
                        self.fs.unlink(parent, name).map_err(about)?;
                    }
                    self.fs.mkdir(&owner, parent, name, perm).map_err(about)?
                }
            }
        } else {
            // The last entry of a name counts, as with tar(1).
            if existing.is_some() {
                self.fs.unlink(parent, name).map_err(about)?;
            }
            if let Some(file) = linked {
                // The file has its attributes already.
                let linked = self.fs.link(file, parent, name);
                return linked.map(drop).map_err(about);
            }
            let node = |kind: FileType, rdev| {
                self.fs
                    .mknod(&owner, parent, name, kind.mode_bits() | perm, rdev)
            };
            match kind {
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    self.fs.create(&owner, parent, name, perm).map_err(about)?
                }
                EntryType::Symlink => {
                    let target = self.link_name(entry)?;
                    self.fs
                        .symlink(&owner, parent, name, &target)
                        .map_err(about)?
                }
                EntryType::Char => {
                    let rdev = device().map_err(|e| self.wrong(&e))?;
                    node(FileType::CharDevice, rdev).map_err(about)?
                }
                EntryType::Block => {
                    let rdev = device().map_err(|e| self.wrong(&e))?;
                    node(FileType::BlockDevice, rdev).map_err(about)?
                }
                EntryType::Fifo => node(FileType::Fifo, 0).map_err(about)?,
                other => return Err(self.unknown(other, &shown_path)),
            }
        };
        if made.kind == FileType::Regular {
            self.contents(entry, made.ino, &shown_path)?;
        }
        for (name, value) in extended.attributes {
            self.fs
                .setxattr(&Credentials::ROOT, made.ino, &name, &value, XattrMode::Set)
                .map_err(about)?;
        }
        let set = SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        let set_attr = |set: &SetAttr| self.fs.setattr(&Credentials::ROOT, made.ino, set);
        set_attr(&set).map_err(about)?;
        // The mode after the owner, whose change clears set-user-ID, and the contents.
        let set = SetAttr {
            perm: (made.kind != FileType::Symlink).then_some(perm),
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        set_attr(&set).map_err(about)?;
        if made.kind == FileType::Directory {
            self.directories
                .push((made.ino, mtime, extended.default_acl));
        }
        Ok(())
    }

    fn unknown(&self, kind: EntryType, path: &[u8]) -> Failure {
        let why = io::Error::other(format!(
            "{}: an entry of type {kind:?}, which is not known",
            tree::name(path)
        ));
        self.wrong(&why)
    }

    /// Splits a name of the archive, which begins at the root with or without a slash.
    fn parts(&self, path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
        let mut parts = Vec::new();
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => parts.push(name.as_bytes().to_vec()),
                Component::ParentDir | Component::Prefix(_) => {
                    let why = io::Error::other(format!("the name {} leads out of it", shown(path)));
                    return Err(self.wrong(&why));
                }
            }
        }
        Ok(parts)
    }

    /// The directory of an entry, made if need be. Symbolic links are not followed.
    fn parent(&self, parts: &[Vec<u8>]) -> Result<Ino, Failure> {
        let mut at = Ino::ROOT;
        for (number, name) in parts.iter().enumerate() {
            let about = |e| tree::about(&parts[..=number].join(&b'/'), e);
            at = match self.fs.lookup(at, name) {
                Ok(found) if found.kind == FileType::Directory => found.ino,
                Ok(_) => return Err(about(Error::NotDirectory)),
                Err(Error::NotFound) => {
                    let made = self.fs.mkdir(&Credentials::ROOT, at, name, 0o755);
                    made.map_err(about)?.ino
                }
                Err(e) => return Err(about(e)),
            };
        }
        Ok(at)
    }

    fn existing(&self, parts: &[Vec<u8>], path: &Path) -> Result<Ino, Failure> {
        parts.iter().try_fold(Ino::ROOT, |at, name| {
            let found = self.fs.lookup(at, name);
            let about = |e| tree::about(path.as_os_str().as_bytes(), e);
            found.map(|found| found.ino).map_err(about)
        })
    }

    fn link_name(&self, entry: &Entry<'_, impl Read>) -> Result<Vec<u8>, Failure> {
        let none = || self.wrong(&io::Error::other("a link without a target"));
        let name = entry.link_name_bytes().ok_or_else(none)?;
        Ok(name.into_owned())
    }

    fn extended(&self, entry: &mut Entry<'_, impl Read>) -> Result<Extended, Failure> {
        let mut found = Extended::default();
        let path = entry.path_bytes().into_owned();
        let unread = |why: &str| {
            Failure::new(
                "unsupported",
                format!(
                    "{}: the access control list of {} cannot be taken over: {}; make the archive with --numeric-owner, or without --acls",
                    shown(self.from),
                    tree::name(&path),
                    printable(why)
                ),
            )
        };
        for extension in entry
            .pax_extensions()
            .map_err(|e| self.wrong(&e))?
            .into_iter()
            .flatten()
        {
            let extension = extension.map_err(|e| self.wrong(&e))?;
            if extension.key_bytes().starts_with(SPARSE) {
                return Err(Failure::new(
                    "unsupported",
                    format!(
                        "{}: has a sparse file in the PAX format, which is not read; make the archive without --sparse, or with --format=gnu",
                        shown(self.from)
                    ),
                ));
            }
            // If it is empty, or written in another way, the header's time counts.
            if extension.key_bytes() == MTIME {
                found.mtime = time(extension.value_bytes());
            }
            let key = extension.key().unwrap_or_default();
            let value = extension.value_bytes();
            let (name, value) = match key.strip_prefix(acl::PREFIX) {
                None => match key.strip_prefix(XATTR) {
                    None => continue,
                    Some(name) => (name.as_bytes(), Some(value.to_vec())),
                },
                Some("access") => {
                    let list = acl::attribute(value).map_err(|why| unread(&why))?;
                    (
                        acl::ACCESS,
                        list.filter(|list| acl::is_more_than_mode(list)),
                    )
                }
                Some("default") => (
                    acl::DEFAULT,
                    acl::attribute(value).map_err(|why| unread(&why))?,
                ),
                Some(other) => return Err(unread(&format!("it is of the kind {other:?}"))),
            };
            match value {
                None => {}
                Some(value) if name == acl::DEFAULT => found.default_acl = Some(value),
                Some(value) => found.attributes.push((name.to_vec(), value)),
            }
        }
        Ok(found)
    }

    /// Copies the bytes of a file. Chunks of zeros stay holes.
    fn contents(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        ino: Ino,
        path: &[u8],
    ) -> Result<(), Failure> {
        // First: a sparse file may claim any size, in zeros that take years to read.
        let set = SetAttr {
            size: Some(entry.size()),
            ..SetAttr::default()
        };
        let set = self.fs.setattr(&Credentials::ROOT, ino, &set);
        set.map_err(|e| tree::about(path, e))?;
        if entry.size() > MOST_SPARSE.max(self.fs.region().len()) {
            return Err(tree::about(path, Error::TooLarge(entry.size())));
        }
        let mut at = 0;
        loop {
            (self.interrupted)()?;
            let n = match entry.read(&mut self.buffer) {
                Ok(0) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                n => n.map_err(|e| self.wrong(&e))?,
            };
            let mut rest = &self.buffer[..n];
            if rest.iter().all(|&byte| byte == 0) {
                at += n as u64;
                rest = &[];
            }
            while !rest.is_empty() {
                let written = self
                    .fs
                    .write(&Credentials::ROOT, ino, at, rest)
                    .map_err(|e| tree::about(path, e))?;
                at += written as u64;
                rest = &rest[written..];
            }
        }
        // It may end in zeros.
        let set = SetAttr {
            size: Some(at),
            ..SetAttr::default()
        };
        let set = self.fs.setattr(&Credentials::ROOT, ino, &set);
        set.map(drop).map_err(|e| tree::about(path, e))
    }
}

/// Parses seconds since the epoch, with a fraction: `-1.5`. Digits beyond nanoseconds are cut
/// towards the past, as tar(1) cuts them.
fn time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    if digits.is_empty() || !is_number(digits) || !is_number(fraction) {
        return None;
    }
    let (kept, cut) = fraction.split_at(fraction.len().min(9));
    let kept: u32 = format!("{kept:0<9}").parse().ok()?;
    let sec: i64 = whole.parse().ok()?;
    if !whole.starts_with('-') {
        return Some(Time { sec, nsec: kept });
    }
    // Before the epoch, the fraction counts from the second before.
    let back = kept + u32::from(cut.bytes().any(|byte| byte != b'0'));
    match back {
        0 => Some(Time { sec, nsec: 0 }),
        back => Some(Time {
            sec: sec.checked_sub(1)?,
            nsec: 1_000_000_000 - back,
        }),
    }
}

/// An owner that no system has is nobody.
fn clamp(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(65_534)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_change_has_nanoseconds() {
        let parts = |text: &str| time(text.as_bytes()).map(|time| (time.sec, time.nsec));
        for (text, expected) in [
            ("1700000000.123456789", (1_700_000_000, 123_456_789)),
            ("1700000000", (1_700_000_000, 0)),
            ("7.5", (7, 500_000_000)),
            ("7.", (7, 0)),
            ("7.0000000019", (7, 1)),
            ("-1.5", (-2, 500_000_000)),
            ("-1", (-1, 0)),
            ("-0.25", (-1, 750_000_000)),
            ("-0.0000000001", (-1, 999_999_999)),
            ("-0.9999999999", (-1, 0)),
        ] {
            assert_eq!(parts(text), Some(expected), "{text}");
        }
        for wrong in [
            "",
            "-",
            ".5",
            "1.-5",
            "1e9",
            "+1",
            " 1",
            "99999999999999999999",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
