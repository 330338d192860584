//! The messages between supervisor and server, over a socket that keeps their boundaries
//! (SOCK_SEQPACKET).
//!
//! A message is one byte, its tag, then a text or the bytes of a [`State`](super::state::State),
//! which the supervisor does not read. Descriptors come with two of them. Supervisor and server
//! may be of different versions, since a server is upgraded under its supervisor: a tag keeps its
//! meaning for ever.
//!
//! Invariant: the receiver checks length, number and kind of what comes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::MAX_CHANNELS;
use crate::exit::{Failure, Status};

/// Longest text or state in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Descriptors of the memory that survives a server.
const OF_MEMORY: usize = 2;
const MAX_DESCRIPTORS: usize = MAX_CHANNELS + OF_MEMORY + 1;
/// Threads that tell by their end that a server dies.
pub const WITNESSES: usize = 2;
/// The number of `/dev/fuse`, which the kernel never changes.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// What a server hands over, for itself and the servers after it.
#[derive(Debug)]
pub struct Held {
    /// The descriptors of the connection, the one that was mounted first.
    pub channels: Vec<OwnedFd>,
    /// The memory.
    pub memory: [OwnedFd; OF_MEMORY],
    /// The region with its lock, so that no other program takes it between two servers; if the
    /// server has the lock.
    pub region: Option<OwnedFd>,
    /// The minor number of the mounted file system, by which the kernel knows the connection; 0 if
    /// it is unknown.
    pub minor: u32,
    /// The bytes of a [`State`](super::state::State).
    pub state: Vec<u8>,
}

/// A message.
#[derive(Debug)]
pub enum Message {
    /// To a server: mount the region.
    Mount,
    /// To a server: take this over. It answers `Ready`, or `Failed` and ends.
    State(Held),
    /// To a server: what it gave is held.
    Kept,
    /// To a server: the one before has ended.
    Go,
    /// To a server: write back what the region does not have yet, and answer `Synced`.
    Sync,
    /// To a server: after `Sync`, the next server cannot take over, and this one stays.
    Stays,
    /// From a server: hold this.
    Keep(Held),
    /// From a server: the region is mounted. With a text for the user.
    Live(String),
    /// From a server: it can read the state, and waits for `Go`.
    Ready,
    /// From a server: it serves now. With the numbers of two of its threads, of which one at least
    /// is gone as soon as it dies.
    Serving([u32; WITNESSES]),
    /// From a server: the answer to `Sync`.
    Synced,
    /// From a server: it ends by itself, and the mount with it.
    Leaves,
    /// From a server: it ends, for this reason.
    Failed(Failure),
}

const MOUNT: u8 = 1;
const STATE: u8 = 2;
const KEPT: u8 = 3;
const GO: u8 = 4;
const SYNC: u8 = 5;
const STAYS: u8 = 6;
const KEEP: u8 = 65;
const LIVE: u8 = 66;
const READY: u8 = 67;
const SERVING: u8 = 68;
const SYNCED: u8 = 69;
const FAILED: u8 = 70;
const LEAVES: u8 = 71;

/// One end of the socket.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// What to send with [`Channel::send`].
#[derive(Debug)]
pub enum Outgoing<'a> {
    /// See [`Message::Mount`].
    Mount,
    /// See [`Message::State`].
    State(&'a Held),
    /// See [`Message::Kept`].
    Kept,
    /// See [`Message::Go`].
    Go,
    /// See [`Message::Sync`].
    Sync,
    /// See [`Message::Stays`].
    Stays,
    /// See [`Message::Keep`].
    Keep {
        /// The descriptors of the connection.
        channels: &'a [BorrowedFd<'a>],
        /// The memory.
        memory: [BorrowedFd<'a>; OF_MEMORY],
        /// The region.
        region: Option<BorrowedFd<'a>>,
        /// The minor number of the mount.
        minor: u32,
        /// The bytes of the state.
        state: &'a [u8],
    },
    /// See [`Message::Live`].
    Live(&'a str),
    /// See [`Message::Ready`].
    Ready,
    /// See [`Message::Serving`].
    Serving([u32; WITNESSES]),
    /// See [`Message::Synced`].
    Synced,
    /// See [`Message::Leaves`].
    Leaves,
    /// See [`Message::Failed`].
    Failed(&'a Failure),
}

impl Channel {
    /// Makes a socket, and returns both ends.
    ///
    /// # Errors
    /// Errors of socketpair(2).
    pub fn pair() -> io::Result<(Channel, Channel)> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Channel(one), Channel(other)))
    }

    /// Takes a descriptor that should be an end of such a socket.
    ///
    /// # Errors
    /// It is something else.
    pub fn of(socket: OwnedFd) -> io::Result<Channel> {
        let kind = rustix::net::sockopt::socket_type(&socket)?;
        match kind == rustix::net::SocketType::SEQPACKET {
            true => Ok(Channel(socket)),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Sends a message. Does not wait for room: there is room for all that are under way at once.
    ///
    /// # Errors
    /// EPIPE if nobody holds the other end; errors of sendmsg(2).
    pub fn send(&self, message: &Outgoing<'_>) -> io::Result<()> {
        match message {
            Outgoing::Mount => self.put(MOUNT, b"", &[]),
            Outgoing::State(held) => {
                let channels: Vec<_> = held.channels.iter().map(AsFd::as_fd).collect();
                let memory = held.memory.each_ref().map(AsFd::as_fd);
                let region = held.region.as_ref().map(AsFd::as_fd);
                let about = (held.minor, &*held.state);
                self.put_held(STATE, &channels, memory, region, about)
            }
            Outgoing::Kept => self.put(KEPT, b"", &[]),
            Outgoing::Go => self.put(GO, b"", &[]),
            Outgoing::Sync => self.put(SYNC, b"", &[]),
            Outgoing::Stays => self.put(STAYS, b"", &[]),
            Outgoing::Keep {
                channels,
                memory,
                region,
                minor,
                state,
            } => self.put_held(KEEP, channels, *memory, *region, (*minor, state)),
            Outgoing::Live(text) => self.put(LIVE, shortened(text).as_bytes(), &[]),
            Outgoing::Ready => self.put(READY, b"", &[]),
            Outgoing::Serving(threads) => {
                self.put(SERVING, threads.map(u32::to_le_bytes).as_flattened(), &[])
            }
            Outgoing::Synced => self.put(SYNCED, b"", &[]),
            Outgoing::Leaves => self.put(LEAVES, b"", &[]),
            Outgoing::Failed(failure) => {
                let text = shortened(&failure.message).as_bytes();
                let bytes = [&[failure.status as u8], text].concat();
                self.put(FAILED, &bytes, &[])
            }
        }
    }

    fn put_held(
        &self,
        tag: u8,
        channels: &[BorrowedFd<'_>],
        memory: [BorrowedFd<'_>; OF_MEMORY],
        region: Option<BorrowedFd<'_>>,
        (minor, state): (u32, &[u8]),
    ) -> io::Result<()> {
        let others = memory.into_iter().chain(region);
        let all: Vec<_> = others.chain(channels.iter().copied()).collect();
        self.put(tag, &[&minor.to_le_bytes(), state].concat(), &all)
    }

    pub(crate) fn put(
        &self,
        tag: u8,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        if bytes.len() > MAX_BYTES || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let tag = [tag];
        let pieces = [IoSlice::new(&tag), IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(&self.0, &pieces, &mut control, flags))?;
        Ok(())
    }

    /// Waits for a message. Returns `None` if the other end is closed.
    ///
    /// # Errors
    /// Errors of recvmsg(2); `InvalidData` if the bytes are no message.
    pub fn receive(&self) -> io::Result<Option<Message>> {
        self.get(RecvFlags::empty())
    }

    /// As [`receive`](Self::receive), without waiting.
    ///
    /// # Errors
    /// As there; `WouldBlock` if there is none.
    pub fn receive_now(&self) -> io::Result<Option<Message>> {
        self.get(RecvFlags::DONTWAIT)
    }

    fn get(&self, flags: RecvFlags) -> io::Result<Option<Message>> {
        let mut bytes = vec![0; 1 + MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            let mut data = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&self.0, &mut data, &mut control, flags)
        });
        let received = match received {
            Ok(received) => received,
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.flags.intersects(cut) {
            return Err(invalid("it was cut"));
        }
        bytes.truncate(received.bytes);
        match bytes.split_first() {
            None => Ok(None),
            Some((tag, rest)) => understand(*tag, rest, descriptors).map(Some),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.0
    }
}

/// Returns as much of a text as fits.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a message between supervisor and server is not understood: {why}"),
    )
}

fn understand(tag: u8, rest: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Message> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if tag == STATE || tag == KEEP {
        let held = held(rest, descriptors)?;
        return Ok(match tag {
            STATE => Message::State(held),
            _ => Message::Keep(held),
        });
    }
    if !descriptors.is_empty() {
        return Err(invalid("it has descriptors"));
    }
    let message = match tag {
        LIVE => return Ok(Message::Live(text(rest))),
        FAILED => {
            let (status, message) = rest.split_first().ok_or_else(|| invalid("no status"))?;
            return Ok(Message::Failed(Failure {
                status: Status::from_code(*status).unwrap_or(Status::Bug),
                message: text(message),
            }));
        }
        SERVING => {
            let (threads, []) = rest.as_chunks() else {
                return Err(invalid("its length"));
            };
            let threads = <[[u8; 4]; WITNESSES]>::try_from(threads);
            let threads = threads.map_err(|_| invalid("its length"))?;
            return Ok(Message::Serving(threads.map(u32::from_le_bytes)));
        }
        MOUNT => Message::Mount,
        KEPT => Message::Kept,
        GO => Message::Go,
        SYNC => Message::Sync,
        STAYS => Message::Stays,
        READY => Message::Ready,
        SYNCED => Message::Synced,
        LEAVES => Message::Leaves,
        _ => return Err(invalid("its tag is unknown")),
    };
    match rest {
        [] => Ok(message),
        _ => Err(invalid("it is too long")),
    }
}

fn held(bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Held> {
    let (minor, state) = bytes
        .split_first_chunk()
        .ok_or_else(|| invalid("its length"))?;
    let mut all = descriptors.into_iter();
    let (Some(ledger), Some(counts)) = (all.next(), all.next()) else {
        return Err(invalid("descriptors are missing"));
    };
    let memory = [ledger, counts];
    let mut channels: Vec<OwnedFd> = all.collect();
    let region = match channels.first() {
        Some(first) if !is_fuse(first)? => Some(channels.remove(0)),
        _ => None,
    };
    if channels.is_empty() {
        return Err(invalid("descriptors are missing"));
    }
    for file in &memory {
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("no memory"));
        }
    }
    for channel in &channels {
        if !is_fuse(channel)? {
            return Err(invalid("no connection"));
        }
    }
    Ok(Held {
        channels,
        memory,
        region,
        minor: u32::from_le_bytes(*minor),
        state: state.to_vec(),
    })
}

fn is_fuse(file: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let number = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    let kind = FileType::from_raw_mode(stat.st_mode);
    Ok(kind == FileType::CharacterDevice && number == FUSE_DEVICE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::takeover::memory::Memory;

    #[test]
    fn messages_without_descriptors_pass() {
        let (one, other) = Channel::pair().unwrap();
        let failure = Failure::mount("no region");
        for (sent, shown) in [
            (Outgoing::Mount, "Mount"),
            (Outgoing::Kept, "Kept"),
            (Outgoing::Go, "Go"),
            (Outgoing::Sync, "Sync"),
            (Outgoing::Stays, "Stays"),
            (Outgoing::Ready, "Ready"),
            (Outgoing::Serving([7, 8]), "Serving([7, 8])"),
            (Outgoing::Synced, "Synced"),
            (Outgoing::Leaves, "Leaves"),
            (Outgoing::Live("text"), "Live(\"text\")"),
            (Outgoing::Failed(&failure), "no region"),
        ] {
            one.send(&sent).unwrap();
            let got = format!("{:?}", other.receive().unwrap().unwrap());
            assert!(got.contains(shown), "{got}");
        }
        let error = other.receive_now().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let long = "ä".repeat(MAX_BYTES);
        one.send(&Outgoing::Live(&long)).unwrap();
        match other.receive().unwrap() {
            Some(Message::Live(text)) => assert!(long.starts_with(&text) && text.len() > 60_000),
            other => panic!("{other:?}"),
        }
        drop(one);
        assert!(other.receive().unwrap().is_none());
        assert!(other.send(&Outgoing::Ready).is_err());
    }

    #[test]
    fn descriptors_are_checked() {
        let Ok(fuse) = File::options().read(true).write(true).open("/dev/fuse") else {
            return pramfs_tests::skip::skipped("/dev/fuse cannot be opened");
        };
        let (one, other) = Channel::pair().unwrap();
        let memory = Memory::create().unwrap();
        pramfs::inode::Survivor::prepare(&memory, 100).unwrap();
        let null = File::open("/dev/null").unwrap();
        let [ledger, counts] = memory.descriptors().unwrap();
        let keep = |channels: &[BorrowedFd<'_>], memory: [BorrowedFd<'_>; 2]| {
            one.send(&Outgoing::Keep {
                channels,
                memory,
                region: None,
                minor: 57,
                state: b"state",
            })
            .unwrap();
            other.receive()
        };
        let many = vec![fuse.as_fd(); MAX_CHANNELS];
        let Ok(Some(Message::Keep(held))) = keep(&many, [ledger, counts]) else {
            panic!("not received");
        };
        assert_eq!((held.channels.len(), &held.state[..]), (64, &b"state"[..]));
        assert_eq!(held.minor, 57);
        one.send(&Outgoing::State(&held)).unwrap();
        assert!(matches!(other.receive(), Ok(Some(Message::State(_)))));
        for (channels, memory) in [
            (&[][..], [ledger, counts]),
            (&[null.as_fd()], [ledger, counts]),
            (
                &[null.as_fd(), null.as_fd(), fuse.as_fd()],
                [ledger, counts],
            ),
            (&[fuse.as_fd(), counts], [ledger, counts]),
            (&[fuse.as_fd()], [ledger, fuse.as_fd()]),
        ] {
            let error = keep(channels, memory).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let Ok(Some(Message::Keep(held))) = keep(&[null.as_fd(), fuse.as_fd()], [ledger, counts])
        else {
            panic!("not received");
        };
        assert!(held.region.is_some() && held.channels.len() == 1);
        let too_many = vec![fuse.as_fd(); MAX_CHANNELS + 2];
        let outgoing = Outgoing::Keep {
            channels: &too_many,
            memory: [ledger, counts],
            region: None,
            minor: 0,
            state: b"",
        };
        assert!(one.send(&outgoing).is_err());
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let (one, other) = Channel::pair().unwrap();
        for tag in [0, 7, 64, 72, 255] {
            one.put(tag, b"", &[]).unwrap();
            assert!(other.receive().is_err(), "{tag}");
        }
        one.put(GO, b"x", &[]).unwrap();
        assert!(other.receive().is_err());
        one.put(SERVING, b"1234567", &[]).unwrap();
        assert!(other.receive().is_err());
        one.put(FAILED, b"", &[]).unwrap();
        assert!(other.receive().is_err());
        one.put(KEEP, b"", &[]).unwrap();
        assert!(other.receive().is_err());
        let null = File::open("/dev/null").unwrap();
        one.put(GO, b"", &[null.as_fd()]).unwrap();
        assert!(other.receive().is_err());
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Channel::of(stream.into()).is_err());
    }
}
