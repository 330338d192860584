//! What handlers answer, whatever carries it to the kernel.

use super::counts::Noted;
use pramfs_fuse_protocol::wire::{AttrOut, EntryOut, Kstatfs, OpenOut, StatxOut};
use pramfs_fuse_protocol::{BadName, Errno, Fit, Listing, Message, NoRoom, reply};

/// The answer to a request. It borrows data, perhaps from the medium.
#[derive(Debug, Clone)]
pub enum Answer<'a> {
    /// The request is refused.
    Refused(Errno),
    /// It was done, and has no result.
    Done,
    /// A node.
    Entry(EntryOut),
    /// A new node, which is open.
    Created(EntryOut, OpenOut),
    /// Attributes.
    Attr(AttrOut),
    /// Attributes as statx(2) has them.
    Statx(StatxOut),
    /// An open file or directory.
    Opened(OpenOut),
    /// Bytes of a file, a target, an attribute or names of attributes.
    Data(&'a [u8]),
    /// Entries of a directory, packed.
    Listing(&'a [u8]),
    /// The length of an attribute or of the names.
    XattrSize(u32),
    /// How many bytes were written or copied.
    Written(u32),
    /// How many bytes were copied, for the request that can express more.
    Copied(u64),
    /// An offset in a file.
    Offset(u64),
    /// The state of the file system.
    Statfs(Kstatfs),
    /// What an ioctl gives to its caller. Its result is 0.
    Ioctl(&'a [u8]),
}

impl<'a> Answer<'a> {
    /// Makes the message to the kernel.
    ///
    /// # Errors
    /// [`NoRoom`] for more data than a message can have.
    pub fn message(&self, unique: u64) -> Result<Message<'a>, NoRoom> {
        Ok(match self {
            Answer::Refused(errno) => reply::error(unique, *errno),
            Answer::Done => reply::empty(unique),
            Answer::Entry(entry) => reply::entry(unique, entry),
            Answer::Created(entry, open) => reply::create(unique, entry, open),
            Answer::Attr(attr) => reply::attr(unique, attr),
            Answer::Statx(statx) => reply::statx(unique, statx),
            Answer::Opened(open) => reply::open(unique, open),
            Answer::Data(data) | Answer::Listing(data) => reply::data(unique, *data)?,
            Answer::XattrSize(size) => reply::xattr_size(unique, *size),
            Answer::Written(size) => reply::write(unique, *size),
            Answer::Copied(bytes) => reply::copied(unique, *bytes),
            Answer::Offset(offset) => reply::lseek(unique, *offset),
            Answer::Statfs(st) => reply::statfs(unique, st),
            Answer::Ioctl(out) => reply::ioctl(unique, 0, *out)?,
        })
    }
}

/// An entry of a directory, for a listing.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Its number, as `stat` shows it.
    pub ino: u64,
    /// Where the listing goes on after it.
    pub cookie: u64,
    /// Its type as in `d_type` of readdir(3).
    pub kind: u32,
    /// Its name.
    pub name: &'a [u8],
}

/// Carries the answer to one request.
///
/// One that is dropped without an answer refuses the request with EIO: this happens only
/// while a panic unwinds.
pub trait Reply {
    /// Whether a listing with attributes may have entries without: the kernel then takes no
    /// reference to the node.
    const LISTS_BARE_NAMES: bool = true;

    /// Adds an entry to a listing without attributes.
    ///
    /// # Errors
    /// No kernel lists this name.
    fn list(&mut self, listing: &mut Listing<'_>, of: &Listed<'_>) -> Result<Fit, BadName> {
        listing.entry(of.ino, of.cookie, of.kind, of.name)
    }

    /// Adds an entry to a listing with attributes; without them if `node` is missing.
    ///
    /// # Errors
    /// No kernel lists this name.
    fn list_plus(
        &mut self,
        listing: &mut Listing<'_>,
        of: &Listed<'_>,
        node: Option<&EntryOut>,
    ) -> Result<Fit, BadName> {
        match node {
            Some(node) => listing.entry_plus(node, of.cookie, of.name),
            None => listing.name_only(of.ino, of.cookie, of.kind, of.name),
        }
    }

    /// Room for `len` bytes of data, if the transport copies the data anyway. Bytes of the medium
    /// are read into it then, and not lent.
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let _ = len;
        None
    }

    /// Sends the first `len` bytes of the room.
    fn send_room(self, len: usize)
    where
        Self: Sized,
    {
        let _ = len;
        self.send(Answer::Refused(Errno::EIO));
    }

    /// Sends the answer.
    fn send(self, answer: Answer<'_>);

    /// Ends a request that has no answer.
    fn dismiss(self);
}

/// A reply that the handler itself may have sent already.
impl<R: Reply> Reply for Option<R> {
    const LISTS_BARE_NAMES: bool = R::LISTS_BARE_NAMES;

    fn list(&mut self, listing: &mut Listing<'_>, of: &Listed<'_>) -> Result<Fit, BadName> {
        match self {
            Some(reply) => reply.list(listing, of),
            None => Ok(Fit::Full),
        }
    }

    fn list_plus(
        &mut self,
        listing: &mut Listing<'_>,
        of: &Listed<'_>,
        node: Option<&EntryOut>,
    ) -> Result<Fit, BadName> {
        match self {
            Some(reply) => reply.list_plus(listing, of, node),
            None => Ok(Fit::Full),
        }
    }

    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        self.as_mut()?.room(len)
    }

    fn send_room(self, len: usize) {
        if let Some(reply) = self {
            reply.send_room(len);
        }
    }

    fn send(self, answer: Answer<'_>) {
        if let Some(reply) = self {
            reply.send(answer);
        }
    }

    fn dismiss(self) {
        if let Some(reply) = self {
            reply.dismiss();
        }
    }
}

impl<R: Reply> Reply for Noted<'_, R> {
    const LISTS_BARE_NAMES: bool = R::LISTS_BARE_NAMES;

    fn list(&mut self, listing: &mut Listing<'_>, of: &Listed<'_>) -> Result<Fit, BadName> {
        self.reply.list(listing, of)
    }

    fn list_plus(
        &mut self,
        listing: &mut Listing<'_>,
        of: &Listed<'_>,
        node: Option<&EntryOut>,
    ) -> Result<Fit, BadName> {
        self.reply.list_plus(listing, of, node)
    }

    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reply.room(len)
    }

    fn send_room(self, len: usize) {
        self.reply.send_room(len);
    }

    fn send(self, answer: Answer<'_>) {
        if let Answer::Refused(errno) = &answer {
            self.errno.set(errno.number());
        }
        self.reply.send(answer);
    }

    fn dismiss(self) {
        self.reply.dismiss();
    }
}
