//! Puts replies where the ring takes them from.

use pramfs_fuse_protocol::wire::OutHeader;
use pramfs_fuse_protocol::{Errno, Message, reply};

use crate::adapter::{Answer, Reply};

/// Where the body of a reply goes.
#[derive(Debug)]
pub(super) enum Room<'r> {
    /// The payload of the entry.
    Payload(&'r mut [u8]),
    /// Memory that is copied there later.
    Kept(&'r mut Vec<u8>),
}

/// The header of a reply, and the bytes of its body.
pub(super) type Sent = Option<(OutHeader, usize)>;

/// The reply to a request of a ring.
#[derive(Debug)]
pub(super) struct RingReply<'r> {
    /// The number of the request, until it is answered.
    unanswered: Option<u64>,
    room: Room<'r>,
    sent: &'r mut Sent,
}

impl<'r> RingReply<'r> {
    pub(super) fn new(unique: u64, room: Room<'r>, sent: &'r mut Sent) -> RingReply<'r> {
        RingReply {
            unanswered: Some(unique),
            room,
            sent,
        }
    }

    fn put(&mut self, unique: u64, message: &Message<'_>) {
        let len = match &mut self.room {
            Room::Payload(room) => message.write_body_to(room),
            Room::Kept(kept) => {
                kept.clear();
                message
                    .body()
                    .for_each(|piece| kept.extend_from_slice(piece));
                Ok(kept.len())
            }
        };
        *self.sent = Some(match len {
            Ok(len) => (*message.header(), len),
            Err(error) => {
                tracing::error!("a reply has no room: {error}");
                (*reply::error(unique, Errno::EIO).header(), 0)
            }
        });
    }
}

impl Reply for RingReply<'_> {
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        match &mut self.room {
            Room::Payload(room) => room.get_mut(..len),
            Room::Kept(_) => None,
        }
    }

    fn send_room(mut self, len: usize) {
        if let Some(unique) = self.unanswered.take() {
            let whole = OutHeader::SIZE + len;
            let mut header = *reply::empty(unique).header();
            header.len = whole as u32;
            *self.sent = Some((header, len));
        }
    }

    fn send(mut self, answer: Answer<'_>) {
        let Some(unique) = self.unanswered.take() else {
            return;
        };
        match answer.message(unique) {
            Ok(message) => self.put(unique, &message),
            Err(error) => {
                tracing::error!("a reply cannot be made: {error}");
                self.put(unique, &reply::error(unique, Errno::EIO));
            }
        }
    }

    fn dismiss(mut self) {
        self.unanswered = None;
    }
}

impl Drop for RingReply<'_> {
    fn drop(&mut self) {
        if let Some(unique) = self.unanswered.take() {
            self.put(unique, &reply::error(unique, Errno::EIO));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the errno, and what lies in the payload and in the other memory.
    fn put(room: usize, with: impl Fn(RingReply<'_>)) -> [(i32, Vec<u8>); 2] {
        let mut payload = vec![0; room];
        let (mut sent, mut kept) = (None, Vec::new());
        with(RingReply::new(7, Room::Payload(&mut payload), &mut sent));
        let (header, len) = sent.take().unwrap();
        assert_eq!(header.unique, 7);
        let first = (header.error, payload[..len].to_vec());
        with(RingReply::new(7, Room::Kept(&mut kept), &mut sent));
        let (header, len) = sent.unwrap();
        assert_eq!(len, kept.len());
        [first, (header.error, kept)]
    }

    #[test]
    fn body_of_reply_goes_to_its_room() {
        let both = put(8, |reply| reply.send(Answer::Data(b"abc")));
        assert_eq!(both, [(0, b"abc".to_vec()), (0, b"abc".to_vec())]);
        let none = put(8, |reply| reply.send(Answer::Refused(Errno::EINVAL)));
        assert_eq!(none, [(-22, vec![]), (-22, vec![])]);
        let dropped = put(8, |reply| drop(reply));
        assert_eq!(dropped, [(-5, vec![]), (-5, vec![])]);
    }

    #[test]
    fn data_that_fills_the_room_is_sent_from_there() {
        let mut payload = vec![0; 8];
        let mut sent = None;
        let mut reply = RingReply::new(7, Room::Payload(&mut payload), &mut sent);
        assert_eq!(reply.room(9), None);
        reply.room(3).unwrap().copy_from_slice(b"abc");
        reply.send_room(3);
        let expected = *reply::data(7, &b"abc"[..]).unwrap().header();
        assert_eq!(sent, Some((expected, 3)));
        assert_eq!(payload[..3], *b"abc");
    }

    #[test]
    fn reply_without_room_is_an_error() {
        let [payload, kept] = put(2, |reply| reply.send(Answer::Data(b"abc")));
        assert_eq!((payload, kept), ((-5, vec![]), (0, b"abc".to_vec())));
    }
}
