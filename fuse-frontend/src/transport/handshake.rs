//! Negotiates with the kernel over `/dev/fuse`: the first request is INIT.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use pramfs_fuse_protocol::numbers::MIN_READ_BUFFER;
use pramfs_fuse_protocol::{
    InitRequest, Message, Negotiated, Operation, Outcome, Request, Rules, Wanted, other_major,
    reply,
};
use rustix::io::Errno;

use crate::adapter::{Adapter, MAX_BACKGROUND, MAX_REQUEST};

/// How often a kernel may begin anew, because it speaks a newer major version.
const ATTEMPTS: u32 = 2;

/// Reads INIT and answers it.
///
/// # Errors
/// The connection failed, the kernel is too old, or it sends something else.
pub(super) fn negotiate(connection: impl AsFd, adapter: &Adapter) -> io::Result<Negotiated> {
    let wanted = Wanted {
        flags: adapter.wanted(),
        max_write: MAX_REQUEST,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        page_size: rustix::param::page_size() as u32,
        ..Wanted::default()
    };
    for _ in 0..ATTEMPTS {
        let (unique, offer) = read_offer(&connection)?;
        match pramfs_fuse_protocol::negotiate(&offer, &wanted) {
            Ok(Outcome::Agreed(agreed)) => {
                adapter.note_offer(offer.flags);
                send(&connection, &agreed.reply(unique))?;
                tracing::debug!(
                    "FUSE 7.{}, in use: {:?}, requests of {} bytes",
                    agreed.minor(),
                    agreed.flags(),
                    agreed.max_write()
                );
                return Ok(agreed);
            }
            Ok(Outcome::OtherMajor) => send(&connection, &other_major(unique))?,
            Err(error) => {
                send(&connection, &reply::error(unique, error.errno()))?;
                return Err(io::Error::new(io::ErrorKind::Unsupported, error));
            }
        }
    }
    let why = "the kernel insists on another major version of FUSE";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Reads INIT. Returns its number, and what it offers.
fn read_offer(connection: impl AsFd) -> io::Result<(u64, InitRequest)> {
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
        Operation::Init(offer) => Ok((request.unique(), offer)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{:?} before INIT", request.opcode),
        )),
    }
}

fn send(connection: impl AsFd, message: &Message<'_>) -> io::Result<()> {
    let mut pieces = [IoSlice::new(&[]); 3];
    let pieces = message.io_slices(&mut pieces).map_err(io::Error::other)?;
    rustix::io::writev(connection, pieces)?;
    Ok(())
}
