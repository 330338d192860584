//! Negotiates with the kernel over `/dev/fuse`: the first request is INIT.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::numbers::{MAJOR, MIN_READ_BUFFER};
use pramfs_fuse_protocol::{
    InitRequest, Message, Negotiated, Operation, Outcome, Request, Rules, Wanted, other_major,
    reply,
};
use rustix::io::Errno;

use crate::adapter::{Adapter, MAX_BACKGROUND, MAX_REQUEST};

/// How often a kernel may begin anew, because it speaks a newer major version.
const ATTEMPTS: u32 = 2;

/// INIT, which is not answered yet.
pub(super) struct Offer {
    unique: u64,
    init: InitRequest,
}

impl Offer {
    /// Reads INIT.
    ///
    /// # Errors
    /// The connection failed, or the kernel sends something else.
    pub(super) fn read(connection: impl AsFd) -> io::Result<Offer> {
        for _ in 0..ATTEMPTS {
            let offer = Offer::read_one(&connection)?;
            if offer.init.major <= MAJOR {
                return Ok(offer);
            }
            send(&connection, &other_major(offer.unique))?;
        }
        Err(other_version())
    }

    fn read_one(connection: impl AsFd) -> io::Result<Offer> {
        let mut buffer = [0; MIN_READ_BUFFER];
        let n = loop {
            match rustix::io::read(&connection, &mut buffer[..]) {
                Ok(n) => break n,
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Err(io::ErrorKind::NotConnected.into()),
                Err(error) => return Err(error.into()),
            }
        };
        let bytes = buffer.get(..n).unwrap_or_default();
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let request = Request::parse(bytes, &Rules::BEFORE_INIT).map_err(invalid)?;
        match request.operation {
            Operation::Init(init) => Ok(Offer {
                unique: request.unique(),
                init,
            }),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{:?} before INIT", request.opcode),
            )),
        }
    }

    /// Whether the kernel offers all of these.
    pub(super) fn has(&self, flags: InitFlags) -> bool {
        self.init.flags.contains(flags)
    }

    /// Answers INIT. `also` is asked for beside what the handlers want.
    ///
    /// # Errors
    /// The connection failed, or the kernel is too old.
    pub(super) fn answer(
        self,
        connection: impl AsFd,
        adapter: &Adapter,
        also: InitFlags,
    ) -> io::Result<Negotiated> {
        let wanted = Wanted {
            flags: adapter.wanted() | adapter.wanted_of_whole_requests() | also,
            required: adapter.required(),
            max_write: MAX_REQUEST,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            page_size: rustix::param::page_size() as u32,
            ..Wanted::default()
        };
        let agreed = match pramfs_fuse_protocol::negotiate(&self.init, &wanted) {
            Ok(Outcome::Agreed(agreed)) => agreed,
            Ok(Outcome::OtherMajor) => return Err(other_version()),
            Err(error) => {
                send(&connection, &reply::error(self.unique, error.errno()))?;
                return Err(io::Error::new(io::ErrorKind::Unsupported, error));
            }
        };
        adapter.note_offer(self.init.flags);
        send(&connection, &agreed.reply(self.unique))?;
        tracing::debug!(
            "FUSE 7.{}, in use: {:?}, requests of {} bytes",
            agreed.minor(),
            agreed.flags(),
            agreed.max_write()
        );
        Ok(agreed)
    }
}

fn other_version() -> io::Error {
    let why = "the kernel insists on another major version of FUSE";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

fn send(connection: impl AsFd, message: &Message<'_>) -> io::Result<()> {
    let mut pieces = [IoSlice::new(&[]); 3];
    let pieces = message.io_slices(&mut pieces).map_err(io::Error::other)?;
    rustix::io::writev(connection, pieces)?;
    Ok(())
}
