//! The parts of a descriptor chain: where a guest has put a request, and where it wants the reply.
//!
//! Invariant: guest memory is only accessed by copies of vm-memory, within the memory that the VMM
//! has shared. It may change at any moment. So a request is copied as a whole before anything
//! looks at it, and nothing is read from guest memory a second time.
//!
//! What a guest may do wrong has limits: the crate `virtio-queue` ends chains that go in circles,
//! and this file those with too many pieces or too many bytes.

use std::ops::Deref;

use pramfs_fuse_protocol::wire::{InHeader, OutHeader};
use pramfs_fuse_protocol::{Errno, Message, reply};
use virtio_queue::DescriptorChain;
use vm_memory::{GuestMemory, GuestMemoryMmap, Permissions, VolatileSlice};
use zerocopy::FromBytes;

use crate::door::{Door, Outlet};
use crate::transport::dev::buffer::Buffer;

/// Most pieces of a chain: 1 MiB in pages, and the headers. As many as a queue has entries.
const MAX_PIECES: usize = 1024;

/// Has the request of a chain served. Returns how many bytes of a reply there are.
pub(crate) fn serve<M>(
    door: &Door,
    memory: &GuestMemoryMmap,
    chain: DescriptorChain<M>,
    buffer: &mut Buffer,
) -> u32
where
    M: Deref<Target = GuestMemoryMmap>,
{
    let mut parts = Parts::of(chain, memory);
    let n = parts.read(buffer.room());
    let request = &buffer.room()[..n];
    if let Some(written) = parts.refuse(request) {
        return written;
    }
    let mut room = parts.room();
    door.serve(request, &mut room);
    room.written
}

/// What is wrong with a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Wrong {
    #[error("it has more than {MAX_PIECES} pieces")]
    TooManyPieces,
    #[error("a piece is outside of the guest's memory")]
    Outside,
    #[error("a piece to read follows one to write")]
    Order,
    #[error("the request is longer than any that was agreed upon")]
    TooLong,
}

/// A chain, in pieces of guest memory.
#[derive(Debug)]
struct Parts<'m> {
    readable: Vec<VolatileSlice<'m>>,
    writable: Vec<VolatileSlice<'m>>,
    wrong: Option<Wrong>,
}

impl<'m> Parts<'m> {
    /// Finds the pieces. If something is wrong, those before it are there.
    fn of<M>(chain: DescriptorChain<M>, memory: &'m GuestMemoryMmap) -> Parts<'m>
    where
        M: Deref<Target = GuestMemoryMmap>,
    {
        let mut parts = Parts {
            readable: Vec::new(),
            writable: Vec::new(),
            wrong: None,
        };
        for descriptor in chain {
            if parts.readable.len() + parts.writable.len() >= MAX_PIECES {
                parts.wrong = Some(Wrong::TooManyPieces);
                break;
            }
            let (list, access) = match descriptor.is_write_only() {
                true => (&mut parts.writable, Permissions::Write),
                false if parts.writable.is_empty() => (&mut parts.readable, Permissions::Read),
                false => {
                    parts.wrong = Some(Wrong::Order);
                    break;
                }
            };
            let len = descriptor.len() as usize;
            // One descriptor may lie in several regions of memory, each a piece.
            let pieces = GuestMemory::get_slices(memory, descriptor.addr(), len, access)
                .and_then(|pieces| pieces.take(MAX_PIECES).collect::<Result<Vec<_>, _>>());
            match pieces {
                Ok(pieces) if bytes(&pieces) == len => list.extend(pieces),
                _ => {
                    parts.wrong = Some(Wrong::Outside);
                    break;
                }
            }
        }
        parts
    }

    /// Copies the request. Returns its length.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        if bytes(&self.readable) > buffer.len() {
            self.wrong = self.wrong.or(Some(Wrong::TooLong));
        }
        let mut read = 0;
        for piece in &self.readable {
            let Some(rest) = buffer.get_mut(read..) else {
                break;
            };
            read += piece.copy_to(rest);
        }
        read
    }

    /// Refuses the request of a chain in which something is wrong. `request`: what has been read.
    fn refuse(&self, request: &[u8]) -> Option<u32> {
        let wrong = self.wrong?;
        tracing::debug!("a descriptor chain of a guest is refused: {wrong}");
        let mut room = self.room();
        if let Ok((header, _)) = InHeader::read_from_prefix(request) {
            room.put(&reply::error(header.unique, Errno::EINVAL));
        }
        Some(room.written)
    }

    /// The room for the reply.
    fn room(&self) -> Room<'_, 'm> {
        Room {
            pieces: &self.writable,
            written: 0,
        }
    }
}

fn bytes(pieces: &[VolatileSlice<'_>]) -> usize {
    let lengths = pieces.iter().map(VolatileSlice::len);
    lengths.fold(0, usize::saturating_add)
}

/// Room for a reply.
#[derive(Debug)]
struct Room<'p, 'm> {
    pieces: &'p [VolatileSlice<'m>],
    /// Bytes of the reply.
    written: u32,
}

impl Outlet for Room<'_, '_> {
    fn put(&mut self, message: &Message<'_>) {
        let room = bytes(self.pieces);
        if message.len() <= room {
            self.written = write(self.pieces, message);
        } else if room >= OutHeader::SIZE {
            tracing::debug!(
                "a guest leaves {room} bytes for a reply of {}",
                message.len()
            );
            self.written = write(
                self.pieces,
                &reply::error(message.header().unique, Errno::EIO),
            );
        }
    }
}

/// Copies a message that fits. Returns its length.
fn write(pieces: &[VolatileSlice<'_>], message: &Message<'_>) -> u32 {
    let mut rooms = pieces.iter();
    let mut room: Option<VolatileSlice<'_>> = None;
    let mut written = 0;
    for mut bytes in message.pieces() {
        while !bytes.is_empty() {
            let to = match room.take() {
                Some(room) => room,
                None => match rooms.next() {
                    Some(next) => *next,
                    None => return written,
                },
            };
            let n = to.len().min(bytes.len());
            let (now, later) = bytes.split_at(n);
            to.copy_from(now);
            // The length of a message has 32 bits.
            written += n as u32;
            bytes = later;
            room = to.offset(n).ok().filter(|rest| !rest.is_empty());
        }
    }
    written
}
