//! Replies to a guest: notes what a reply gives, and writes it for this door.

use std::borrow::Cow;
use std::mem::offset_of;

use pramfs::inode::Ino;
use pramfs_fuse_protocol::flags::{AttrFlags, OpenOutFlags};
use pramfs_fuse_protocol::wire::{Attr, EntryOut, OpenOut};
use pramfs_fuse_protocol::{BadName, Errno, Fit, Listing, Message, reply};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};

use super::Door;
use crate::adapter::{Answer, Listed, Reply};

/// Where the flags of an entry of a listing are.
const FLAGS: usize = offset_of!(EntryOut, attr) + offset_of!(Attr, flags);

/// Where messages to a guest go.
pub trait Outlet {
    /// Writes a message. Called at most once for a request.
    fn put(&mut self, message: &Message<'_>);
}

/// The reply to one request.
pub(super) struct DoorReply<'d, O: Outlet> {
    door: &'d Door,
    outlet: &'d mut O,
    /// The number of the request, until it is answered.
    unanswered: Option<u64>,
    /// The node of the request.
    node: u64,
    /// Nodes of a listing. They count when it is sent.
    listed: Vec<u64>,
    /// Those of a listing that are marked for DAX, and where their flags are: the engine, which is
    /// asked whether they may be, is locked while it lists.
    marked: Vec<(u64, usize)>,
    /// Where bytes of the medium are copied to, in place of being lent: guests may store to them.
    copied: Vec<u8>,
    /// The room that the guest has for a list of attributes, whose names are translated.
    xattrs: Option<u32>,
}

impl<'d, O: Outlet> DoorReply<'d, O> {
    pub(super) fn new(door: &'d Door, outlet: &'d mut O, unique: u64, node: u64) -> Self {
        DoorReply {
            door,
            outlet,
            unanswered: Some(unique),
            node,
            listed: Vec::new(),
            marked: Vec::new(),
            copied: Vec::new(),
            xattrs: None,
        }
    }

    /// The answer is a list of attributes, and the guest has room for so many bytes; with 0 it asks
    /// for the size.
    pub(super) fn lists_xattrs_into(&mut self, room: u32) {
        self.xattrs = Some(room);
    }

    /// Returns the answer to give in place of a list of attributes of the region.
    fn xattrs_of_guest<'b>(&self, answer: Answer<'b>, seen: &'b mut Vec<u8>) -> Answer<'b> {
        let (Some(room), Some(map)) = (self.xattrs, &self.door.translations.xattrs) else {
            return answer;
        };
        let Answer::Data(names) = answer else {
            return answer;
        };
        *seen = map.list_to_guest(names);
        match seen.len() as u32 {
            size if room == 0 => Answer::XattrSize(size),
            size if size > room => Answer::Refused(Errno::ERANGE),
            _ => Answer::Data(seen),
        }
    }

    pub(super) fn refuse(self, errno: Errno) {
        self.send(Answer::Refused(errno));
    }

    /// Counts the node of an entry. Otherwise the engine gets its reference back.
    fn count(&self, entry: &EntryOut) -> Result<(), Errno> {
        match self.door.nodes.add(entry.nodeid) {
            true => Ok(()),
            false => {
                self.door.forget(entry.nodeid, 1);
                Err(Errno::ENFILE)
            }
        }
    }

    /// Counts an open file. Otherwise the adapter closes it.
    fn count_open(&self, node: u64, open: &OpenOut) -> Result<(), Errno> {
        match self.door.nodes.opened(node, open.fh) {
            true => Ok(()),
            false => {
                self.door.close(node, open.fh);
                Err(Errno::ENFILE)
            }
        }
    }

    /// Takes the mark for DAX off those files of a listing that cannot be mapped.
    fn unmark<'b>(&self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let mut bytes = Cow::Borrowed(bytes);
        for (node, at) in &self.marked {
            if bytes.len() >= at + 4 && !self.door.may_be_mapped(*node) {
                bytes.to_mut()[*at..at + 4]
                    .copy_from_slice(&AttrFlags::empty().bits().to_ne_bytes());
            }
        }
        bytes
    }

    /// Notes what an answer gives, before the guest has it.
    fn given(&mut self, answer: &mut Answer<'_>) -> Result<(), Errno> {
        match answer {
            Answer::Entry(entry) => {
                if entry.nodeid != 0 {
                    self.count(entry)?;
                }
                self.door.mark(entry.nodeid, &mut entry.attr);
                self.door.adjust_entry(entry);
            }
            Answer::Created(entry, open) => {
                // Both, or neither.
                if let Err(full) = self.count(entry) {
                    self.door.close(entry.nodeid, open.fh);
                    return Err(full);
                }
                if let Err(full) = self.count_open(entry.nodeid, open) {
                    self.door.forget_given(entry.nodeid, 1);
                    return Err(full);
                }
                self.door.mark(entry.nodeid, &mut entry.attr);
                self.door.adjust_entry(entry);
                self.door.adjust_open(open);
            }
            Answer::Opened(open) => {
                self.count_open(self.node, open)?;
                self.door.adjust_open(open);
            }
            Answer::Attr(out) => {
                out.attr_valid = self.door.seconds_of(self.node, out.attr_valid);
                self.door.mark(self.node, &mut out.attr);
                self.door.adjust_attr(&mut out.attr);
            }
            Answer::Statx(out) => {
                out.attr_valid = self.door.seconds_of(self.node, out.attr_valid);
                out.stat.uid = self.door.translations.users.to_guest(out.stat.uid);
                out.stat.gid = self.door.translations.groups.to_guest(out.stat.gid);
            }
            Answer::Listing(_) => self.door.nodes.add_all(&std::mem::take(&mut self.listed)),
            _ => {}
        }
        Ok(())
    }
}

impl Door {
    /// Returns for how long a guest may cache something.
    fn seconds(&self, wanted: u64) -> u64 {
        match self.settings.may_cache() {
            true => wanted,
            false => 0,
        }
    }

    /// The same, for the attributes of a node. Stores to a mapping change the times.
    fn seconds_of(&self, node: u64, wanted: u64) -> u64 {
        match self.dax.get().is_some_and(|dax| dax.has(node)) {
            true => 0,
            false => self.seconds(wanted),
        }
    }

    /// Whether a file is marked for DAX, as far as its type says. [`mark`](Self::mark) asks
    /// the engine for the rest.
    fn marks(&self, attr: &Attr) -> bool {
        self.dax.get().is_some() && attr.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Marks a file for DAX, unless it has chattr +i or +a: it gets no lease to write then, without
    /// which nothing is mapped.
    fn mark(&self, node: u64, attr: &mut Attr) {
        if self.marks(attr) && self.may_be_mapped(node) {
            attr.flags |= AttrFlags::DAX;
        }
    }

    fn may_be_mapped(&self, node: u64) -> bool {
        let attr = self.adapter.fs().getattr(Ino(node));
        attr.is_ok_and(|attr| attr.flags & (FL_IMMUTABLE | FL_APPEND) == 0)
    }

    fn adjust_attr(&self, attr: &mut Attr) {
        attr.uid = self.translations.users.to_guest(attr.uid);
        attr.gid = self.translations.groups.to_guest(attr.gid);
    }

    fn adjust_entry(&self, entry: &mut EntryOut) {
        entry.entry_valid = self.seconds(entry.entry_valid);
        entry.attr_valid = self.seconds_of(entry.nodeid, entry.attr_valid);
        self.adjust_attr(&mut entry.attr);
    }

    /// With another door, each open begins with an empty page cache.
    fn adjust_open(&self, open: &mut OpenOut) {
        if self.settings.shared {
            open.open_flags.remove(OpenOutFlags::KEEP_CACHE);
        }
    }
}

impl<O: Outlet> Reply for DoorReply<'_, O> {
    fn list_plus(
        &mut self,
        listing: &mut Listing<'_>,
        of: &Listed<'_>,
        node: Option<&EntryOut>,
    ) -> Result<Fit, BadName> {
        let Some(node) = node else {
            return listing.name_only(of.ino, of.cookie, of.kind, of.name);
        };
        let counts = !matches!(of.name, b"." | b"..");
        if counts && !self.door.nodes.room(self.listed.len()) {
            return Ok(Fit::Full);
        }
        let mut entry = *node;
        self.door.adjust_entry(&mut entry);
        let at = listing.bytes().len() + FLAGS;
        if self.door.marks(&entry.attr) {
            entry.attr.flags |= AttrFlags::DAX;
            self.marked.push((entry.nodeid, at));
        }
        let fit = listing.entry_plus(&entry, of.cookie, of.name)?;
        if fit == Fit::Added && counts {
            self.listed.push(node.nodeid);
        }
        Ok(fit)
    }

    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.door.settings.copies {
            return None;
        }
        self.copied.resize(len, 0);
        Some(&mut self.copied)
    }

    fn send_room(mut self, len: usize) {
        let copied = std::mem::take(&mut self.copied);
        match copied.get(..len) {
            Some(copied) => self.send(Answer::Data(copied)),
            None => self.refuse(Errno::EIO),
        }
    }

    fn send(mut self, answer: Answer<'_>) {
        let Some(unique) = self.unanswered.take() else {
            return;
        };
        let unmarked;
        let mut seen = Vec::new();
        let mut answer = self.xattrs_of_guest(answer, &mut seen);
        if let Answer::Listing(bytes) = answer {
            unmarked = self.unmark(bytes);
            answer = Answer::Listing(&unmarked);
        }
        if let Err(full) = self.given(&mut answer) {
            tracing::debug!("a guest has as many nodes or open files as it may have");
            answer = Answer::Refused(full);
        }
        match answer.message(unique) {
            Ok(message) => self.outlet.put(&message),
            Err(error) => {
                tracing::error!("a reply cannot be made: {error}");
                self.outlet.put(&reply::error(unique, Errno::EIO));
            }
        }
    }

    fn dismiss(mut self) {
        self.unanswered = None;
    }
}

impl<O: Outlet> Drop for DoorReply<'_, O> {
    fn drop(&mut self) {
        if let Some(unique) = self.unanswered.take() {
            self.outlet.put(&reply::error(unique, Errno::EIO));
        }
    }
}
