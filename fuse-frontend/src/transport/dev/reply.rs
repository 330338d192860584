//! Writes replies to the device.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use pramfs_fuse_protocol::{Errno, Message, reply};

use crate::adapter::{Answer, Reply};

/// Most pieces of a reply: header, structures, data.
const PIECES: usize = 4;

/// The reply to one request of a channel.
#[derive(Debug)]
pub(super) struct DeviceReply<'c> {
    channel: BorrowedFd<'c>,
    /// The number of the request, until it is answered.
    unanswered: Option<u64>,
    /// The bytes of a reply are touched before they are sent.
    touches: bool,
}

impl<'c> DeviceReply<'c> {
    pub(super) fn new(channel: BorrowedFd<'c>, unique: u64) -> DeviceReply<'c> {
        DeviceReply {
            channel,
            unanswered: Some(unique),
            touches: false,
        }
    }

    /// Touches the bytes of the reply before it is sent, if `touches`. A killed thread cannot
    /// fault a page in, and the kernel would answer EIO for it.
    pub(super) fn touching(mut self, touches: bool) -> DeviceReply<'c> {
        self.touches = touches;
        self
    }

    /// Answers with an error.
    pub(super) fn refuse(mut self, errno: Errno) {
        if let Some(unique) = self.unanswered.take() {
            self.write(&reply::error(unique, errno));
        }
    }

    fn write(&self, message: &Message<'_>) {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let written = match message.io_slices(&mut pieces) {
            // By one call: the kernel takes a message as a whole.
            Ok(pieces) => {
                if self.touches {
                    pieces.iter().for_each(|piece| touch(piece));
                }
                rustix::io::retry_on_intr(|| rustix::io::writev(self.channel, pieces))
            }
            Err(_) => Err(rustix::io::Errno::MSGSIZE),
        };
        if let Err(error) = written {
            // ENOENT: the connection was aborted meanwhile. EFAULT: the data could not be read
            // from the medium, and the kernel has answered EIO.
            let unique = message.header().unique;
            tracing::debug!("the kernel does not take the reply to {unique}: {error}");
        }
    }
}

/// Loads a byte of each page.
fn touch(bytes: &[u8]) {
    const PAGE: usize = 4096;
    for byte in bytes.iter().step_by(PAGE).chain(bytes.last()) {
        std::hint::black_box(*byte);
    }
}

impl Reply for DeviceReply<'_> {
    fn send(mut self, answer: Answer<'_>) {
        let Some(unique) = self.unanswered.take() else {
            return;
        };
        match answer.message(unique) {
            Ok(message) => self.write(&message),
            Err(error) => {
                tracing::error!("a reply cannot be made: {error}");
                self.write(&reply::error(unique, Errno::EIO));
            }
        }
    }

    fn dismiss(mut self) {
        self.unanswered = None;
    }
}

impl Drop for DeviceReply<'_> {
    fn drop(&mut self) {
        if let Some(unique) = self.unanswered {
            self.write(&reply::error(unique, Errno::EIO));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Returns what a reply writes.
    fn written(with: impl FnOnce(DeviceReply<'_>)) -> Vec<u8> {
        let (read, write) = std::io::pipe().unwrap();
        with(DeviceReply::new(write.as_fd(), 7));
        drop(write);
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut { read }, &mut all).unwrap();
        all
    }

    #[test]
    fn each_reply_is_written_once() {
        let data = written(|reply| reply.send(Answer::Data(b"abc")));
        assert_eq!(data, reply::data(7, &b"abc"[..]).unwrap().to_vec());
        let refused = written(|reply| reply.refuse(Errno::EINVAL));
        assert_eq!(refused, reply::error(7, Errno::EINVAL).to_vec());
        assert!(written(|reply| reply.dismiss()).is_empty());
    }

    #[test]
    fn dropped_reply_refuses_with_eio() {
        assert_eq!(
            written(|reply| drop(reply)),
            reply::error(7, Errno::EIO).to_vec()
        );
    }

    #[test]
    fn reply_to_closed_connection_is_dropped() {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        DeviceReply::new(write.as_fd(), 7).send(Answer::Done);
    }
}
