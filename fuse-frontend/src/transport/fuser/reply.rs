//! Carries answers by the replies of `fuser`, which has a type for each form.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use pramfs_fuse_protocol::numbers::ROOT_ID;
use pramfs_fuse_protocol::wire::{Attr, EntryOut};
use pramfs_fuse_protocol::{BadName, Fit, Listing};

use super::unpack::{attr, kind};
use crate::adapter::{Answer, Listed, Reply};

/// A reply that the handler fills. `fuser` refuses a request with EIO if its reply is dropped.
pub(super) enum Form {
    Attr(ReplyAttr),
    Create(ReplyCreate),
    Data(ReplyData),
    Directory(ReplyDirectory),
    DirectoryPlus(ReplyDirectoryPlus),
    Empty(ReplyEmpty),
    Entry(ReplyEntry),
    Ioctl(ReplyIoctl),
    Lseek(ReplyLseek),
    /// The request has no reply.
    None,
    Open(ReplyOpen),
    Poll(ReplyPoll),
    Statfs(ReplyStatfs),
    Write(ReplyWrite),
    Xattr(ReplyXattr),
}

macro_rules! forms {
    ($($Form:ident($Reply:ty)),* $(,)?) => {
        $(impl From<$Reply> for Form {
            fn from(reply: $Reply) -> Form {
                Form::$Form(reply)
            }
        })*

        impl Form {
            fn refuse(self, errno: Errno) {
                match self {
                    $(Form::$Form(reply) => reply.error(errno),)*
                    Form::None => {}
                }
            }
        }
    };
}

forms!(
    Attr(ReplyAttr),
    Create(ReplyCreate),
    Data(ReplyData),
    Directory(ReplyDirectory),
    DirectoryPlus(ReplyDirectoryPlus),
    Empty(ReplyEmpty),
    Entry(ReplyEntry),
    Ioctl(ReplyIoctl),
    Lseek(ReplyLseek),
    Open(ReplyOpen),
    Poll(ReplyPoll),
    Statfs(ReplyStatfs),
    Write(ReplyWrite),
    Xattr(ReplyXattr),
);

fn seconds(valid: u64) -> Duration {
    Duration::from_secs(valid)
}

/// Returns the parts of an entry: how long the attributes are valid, the attributes, the
/// generation. `fuser` takes the number of the node from the attributes.
fn entry(of: &EntryOut) -> (Duration, FileAttr, Generation) {
    let shown = FileAttr {
        ino: INodeNo(of.nodeid),
        ..attr(&of.attr)
    };
    // The root has the protocol's number then, which `stat` must not show.
    let valid = if of.nodeid == ROOT_ID {
        0
    } else {
        of.attr_valid
    };
    (seconds(valid), shown, Generation(of.generation))
}

fn open_flags(flags: pramfs_fuse_protocol::flags::OpenOutFlags) -> FopenFlags {
    FopenFlags::from_bits_retain(flags.bits())
}

/// Returns an entry without attributes. `fuser` cannot omit them, so this one has impossible
/// ones: the kernel passes name, number and type to the reader, rejects the rest and releases
/// the reference. A reader that needs attributes looks the name up.
fn name_only(of: &Listed<'_>) -> FileAttr {
    FileAttr {
        ino: INodeNo(of.ino),
        size: u64::MAX,
        kind: kind(of.kind << 12),
        ..attr(&Attr::default())
    }
}

fn fit(full: bool) -> Fit {
    match full {
        true => Fit::Full,
        false => Fit::Added,
    }
}

impl Reply for Form {
    /// The kernel takes a reference first, see `name_only`.
    const LISTS_BARE_NAMES: bool = false;

    fn list(&mut self, _: &mut Listing<'_>, of: &Listed<'_>) -> Result<Fit, BadName> {
        let Form::Directory(reply) = self else {
            return Ok(Fit::Full);
        };
        let name = OsStr::from_bytes(of.name);
        let full = reply.add(INodeNo(of.ino), of.cookie, kind(of.kind << 12), name);
        Ok(fit(full))
    }

    fn list_plus(
        &mut self,
        _: &mut Listing<'_>,
        of: &Listed<'_>,
        node: Option<&EntryOut>,
    ) -> Result<Fit, BadName> {
        let Form::DirectoryPlus(reply) = self else {
            return Ok(Fit::Full);
        };
        let (valid, shown, generation) = match node {
            None => (Duration::ZERO, name_only(of), Generation(0)),
            // The kernel shows the number of `.` and `..`, and nothing else of them.
            Some(node) if matches!(of.name, b"." | b"..") => {
                (Duration::ZERO, attr(&node.attr), Generation(0))
            }
            Some(node) => entry(node),
        };
        let name = OsStr::from_bytes(of.name);
        let full = reply.add(shown.ino, of.cookie, name, &valid, &shown, generation);
        Ok(fit(full))
    }

    fn send(self, answer: Answer<'_>) {
        match (self, answer) {
            (form, Answer::Refused(errno)) => form.refuse(Errno::from_i32(errno.number())),
            (Form::Empty(reply), Answer::Done) => reply.ok(),
            (Form::Entry(reply), Answer::Entry(found)) => {
                let (valid, shown, generation) = entry(&found);
                let name = seconds(found.entry_valid);
                reply.entry_with_ttls(&valid, &name, &shown, generation);
            }
            (Form::Create(reply), Answer::Created(made, open)) => {
                let (valid, shown, generation) = entry(&made);
                let flags = open_flags(open.open_flags);
                reply.created(&valid, &shown, generation, FileHandle(open.fh), flags);
            }
            (Form::Attr(reply), Answer::Attr(of)) => {
                reply.attr(&seconds(of.attr_valid), &attr(&of.attr));
            }
            (Form::Open(reply), Answer::Opened(open)) => {
                reply.opened(FileHandle(open.fh), open_flags(open.open_flags));
            }
            (Form::Data(reply), Answer::Data(data)) => reply.data(data),
            // `fuser` has packed the entries already.
            (Form::Directory(reply), Answer::Listing(_)) => reply.ok(),
            (Form::DirectoryPlus(reply), Answer::Listing(_)) => reply.ok(),
            (Form::Xattr(reply), Answer::XattrSize(size)) => reply.size(size),
            (Form::Xattr(reply), Answer::Data(data)) => reply.data(data),
            (Form::Write(reply), Answer::Written(size)) => reply.written(size),
            (Form::Lseek(reply), Answer::Offset(offset)) => reply.offset(offset.cast_signed()),
            (Form::Statfs(reply), Answer::Statfs(of)) => reply.statfs(
                of.blocks, of.bfree, of.bavail, of.files, of.ffree, of.bsize, of.namelen, of.frsize,
            ),
            (Form::Ioctl(reply), Answer::Ioctl(out)) => reply.ioctl(0, out),
            (form, answer) => {
                tracing::error!("an answer of another form than its request: {answer:?}");
                form.refuse(Errno::EIO);
            }
        }
    }

    fn dismiss(self) {
        if !matches!(self, Form::None) {
            tracing::error!("a request that has a reply was not answered");
            self.refuse(Errno::EIO);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use fuser::FileType;

    use super::*;

    #[test]
    fn root_entry_is_not_cached_by_its_protocol_number() {
        let mut root = EntryOut {
            nodeid: ROOT_ID,
            attr_valid: 9,
            ..EntryOut::default()
        };
        assert_eq!(entry(&root).0, Duration::ZERO);
        root.nodeid = 16;
        assert_eq!(entry(&root).0, Duration::from_secs(9));
        assert_eq!(kind(libc::S_IFIFO), FileType::NamedPipe);
        assert_eq!(attr(&root.attr).crtime, UNIX_EPOCH);
    }
}
