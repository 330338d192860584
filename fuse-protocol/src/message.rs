//! What a server sends: replies and notifications.

use std::io::IoSlice;

use zerocopy::{Immutable, IntoBytes};

use crate::data::Data;
use crate::wire::{OutHeader, StatxOut};

/// Most bytes of a message that are kept within it.
const INLINE: usize = StatxOut::SIZE;

/// A reply or a notification, ready to be sent. It borrows data, and allocates nothing.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    header: OutHeader,
    head: [u8; INLINE],
    head_len: usize,
    data: Data<'a>,
    nul: bool,
}

/// There is more to send than a message can say, or than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {need} bytes, and there is room for {room}")]
pub struct NoRoom {
    /// Bytes of the message.
    pub need: usize,
    /// Bytes that there is room for.
    pub room: usize,
}

impl<'a> Message<'a> {
    /// A message without body.
    pub(crate) fn new(unique: u64, error: i32) -> Message<'a> {
        Message {
            header: OutHeader {
                len: OutHeader::SIZE as u32,
                error,
                unique,
            },
            head: [0; INLINE],
            head_len: 0,
            data: Data::EMPTY,
            nul: false,
        }
    }

    /// Appends a structure. There are at most two, and [`INLINE`] bytes of them: the test
    /// `each_fixed_reply_fits_inline` makes all.
    pub(crate) fn with<T: IntoBytes + Immutable>(mut self, part: &T) -> Message<'a> {
        let bytes = part.as_bytes();
        let room = self.head.get_mut(self.head_len..).unwrap_or_default();
        debug_assert!(bytes.len() <= room.len(), "a structure does not fit");
        for (to, byte) in room.iter_mut().zip(bytes) {
            *to = *byte;
        }
        self.head_len += bytes.len();
        self.header.len += bytes.len() as u32;
        self
    }

    /// Sets the data at the end.
    pub(crate) fn with_data(mut self, data: Data<'a>) -> Result<Message<'a>, NoRoom> {
        let whole = u64::from(self.header.len).saturating_add(data.len() as u64);
        self.header.len = u32::try_from(whole).map_err(|_| NoRoom {
            need: usize::try_from(whole).unwrap_or(usize::MAX),
            room: u32::MAX as usize,
        })?;
        self.data = data;
        Ok(self)
    }

    /// Sets a name at the end, and a NUL.
    pub(crate) fn with_name(self, name: &'a [u8]) -> Result<Message<'a>, NoRoom> {
        let mut message = self.with_data(Data::Whole(name))?;
        message.header.len = message.header.len.saturating_add(1);
        message.nul = true;
        Ok(message)
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &OutHeader {
        &self.header
    }

    /// Bytes of the whole message.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.header.len as usize
    }

    /// Bytes after the header.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.len().saturating_sub(OutHeader::SIZE)
    }

    /// Returns what follows the header, piece by piece.
    pub fn body(&self) -> impl Iterator<Item = &[u8]> {
        let head = self.head.get(..self.head_len).unwrap_or_default();
        let nul: &[u8] = if self.nul { &[0] } else { &[] };
        let parts = std::iter::once(head).chain(self.data.pieces());
        parts
            .chain(std::iter::once(nul))
            .filter(|piece| !piece.is_empty())
    }

    /// Returns the whole message, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.header.as_bytes()).chain(self.body())
    }

    /// Fills in the pieces for writev(2), and returns those that are filled. `/dev/fuse`
    /// takes a message by one call only.
    ///
    /// # Errors
    /// [`NoRoom`], counted in pieces.
    pub fn io_slices<'m, 's>(
        &'m self,
        room: &'s mut [IoSlice<'m>],
    ) -> Result<&'s [IoSlice<'m>], NoRoom> {
        let (mut need, len) = (0, room.len());
        for piece in self.pieces() {
            if let Some(slot) = room.get_mut(need) {
                *slot = IoSlice::new(piece);
            }
            need += 1;
        }
        room.get(..need).ok_or(NoRoom { need, room: len })
    }

    /// Copies the whole message to the beginning of `room`, and returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]; `room` is unchanged.
    pub fn write_to(&self, room: &mut [u8]) -> Result<usize, NoRoom> {
        copy(self.pieces(), self.len(), room)
    }

    /// Copies what follows the header to the beginning of `room`, and returns its length:
    /// the payload of io_uring.
    ///
    /// # Errors
    /// [`NoRoom`]; `room` is unchanged.
    pub fn write_body_to(&self, room: &mut [u8]) -> Result<usize, NoRoom> {
        copy(self.body(), self.body_len(), room)
    }

    /// Copies the message to memory of its own.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| all.extend_from_slice(piece));
        all
    }
}

fn copy<'m>(
    pieces: impl Iterator<Item = &'m [u8]>,
    need: usize,
    room: &mut [u8],
) -> Result<usize, NoRoom> {
    let len = room.len();
    let mut left = room.get_mut(..need).ok_or(NoRoom { need, room: len })?;
    for piece in pieces {
        let Some((to, rest)) = left.split_at_mut_checked(piece.len()) else {
            break;
        };
        to.copy_from_slice(piece);
        left = rest;
    }
    Ok(need)
}
