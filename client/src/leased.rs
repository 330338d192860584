//! A lease, and the memory that it gives access to.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use pramfs_control::{Blocks, ControlError, LeaseKey, Refusal, TicketReply};
use pramfs_medium::pmem::{Region, RegionAccess as _, RegionOptions, lease_ticket};

use crate::blocks::{KnownBlocks, is_sound};
use crate::error::{Error, Result};
use crate::link::Link;
use crate::snapshot::{Shown, copy_of_one_layout, is_still};

/// Attempts to read while the file changes.
const ATTEMPTS: usize = 20;
/// Requests of one attempt.
const REQUESTS: usize = 256;

/// A file with a lease.
#[derive(Debug)]
pub(crate) struct Leased {
    /// Mapped through the descriptor of the lease, which it keeps. Before the release: the
    /// server tests the lock at the request.
    region: Region,
    release: Release,
    /// The open file of the mount. While it is open, the tools can name it.
    pub file: std::fs::File,
    /// Place of the layout counter and the size in the region.
    view: u64,
    /// Inode number and generation.
    pub identity: (u64, u64),
    blocks: RwLock<KnownBlocks>,
}

impl Leased {
    /// Asks for a lease on an open file.
    pub(crate) fn new(file: std::fs::File, directory: Option<&PathBuf>) -> Result<Leased> {
        let ask = || {
            let ticket = lease_ticket(file.as_fd()).map_err(Error::NoTicket)?;
            let ticket = TicketReply::decode(&ticket)?;
            let link = Link::to(directory, &ticket)?;
            let granted = link.ask(|server| server.lease(ticket.ticket))?;
            Ok((link, granted))
        };
        let asked = match ask() {
            // The server has closed a connection that was silent for long; the next one is
            // new.
            Err(Error::ServerGone) => ask(),
            asked => asked,
        };
        let (link, (granted, descriptor)) = asked?;
        let region = RegionOptions::new()
            .read_only(true)
            .lock(false)
            .from_fd(descriptor, "the region of the mount")?;
        if !is_sound(&granted.blocks) || granted.view % 8 != 0 {
            return Err(malformed());
        }
        // Both words lie in the region.
        region.load_u64(granted.view)?;
        region.load_u64(granted.view.saturating_add(8))?;
        Ok(Leased {
            region,
            release: Release {
                link,
                lease: granted.lease,
            },
            file,
            view: granted.view,
            identity: (granted.inode, granted.generation),
            blocks: RwLock::new(KnownBlocks::new(&granted.blocks)),
        })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether blocks below the size of the file are where they were in a layout.
    pub(crate) fn is_current(&self, layout: u64) -> Result<bool> {
        self.region().check_owner()?;
        is_still(self, layout)
    }

    /// Copies bytes out, up to the end of the file.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let region = self.region();
        region.check_owner()?;
        for _ in 0..ATTEMPTS {
            let mut unknown = None;
            let copied = copy_of_one_layout(self, |layout, size| {
                let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
                let n = buf.len().min(most);
                if n == 0 {
                    return Ok(Some(0));
                }
                let end = offset + n as u64;
                let known = self.blocks.read();
                if known.layout != layout || known.end < end {
                    unknown = Some((layout, end));
                    return Ok(None);
                }
                let mut into = &mut buf[..n];
                for (place, len) in known.pieces(offset, end) {
                    let (now, rest) = into.split_at_mut(len as usize);
                    match place {
                        Some(at) => region.read(at, now)?,
                        None => now.fill(0),
                    }
                    into = rest;
                }
                Ok(Some(n))
            })?;
            if let Some(n) = copied {
                return Ok(n);
            }
            let Some((layout, end)) = unknown else {
                continue;
            };
            match self.learn(layout, end) {
                // A part of the file that this range need not touch.
                Err(Error::Refused {
                    reason: Refusal::Damaged,
                    ..
                }) => break,
                learned => learned?,
            }
        }
        // The file changes faster than its blocks can be asked for, or has too many.
        self.read_through_mount(buf, offset)
    }

    fn read_through_mount(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Mount(error)),
            }
        }
        Ok(done)
    }

    /// Asks the server for the blocks of a layout, up to an offset in the file.
    fn learn(&self, layout: u64, end: u64) -> Result<()> {
        let mut known = self.blocks.write();
        // Another thread may have asked meanwhile. A layout that is no longer current is
        // asked for as well: the answer is the current one.
        if known.layout != layout || known.end == 0 {
            *known = KnownBlocks::new(&self.ask(0)?);
        }
        for _ in 0..REQUESTS {
            if known.end >= end {
                break;
            }
            let from = known.end;
            let more = self.ask(from)?;
            if !known.extend(&more) || known.end == from {
                // The layout has changed, or the file is shorter now: the reader looks again,
                // a limited number of times.
                break;
            }
        }
        Ok(())
    }

    fn ask(&self, offset: u64) -> Result<Blocks> {
        let Release { link, lease } = &self.release;
        let blocks = link.ask(|server| server.blocks(*lease, offset))?;
        match is_sound(&blocks) {
            true => Ok(blocks),
            false => Err(malformed()),
        }
    }

    /// Returns the blocks of the current layout, known up to `end` or the end of the file.
    pub(crate) fn known(&self, end: u64) -> Result<KnownBlocks> {
        self.region().check_owner()?;
        for _ in 0..ATTEMPTS {
            let layout = self.layout()?;
            let size = self.size()?;
            if end > size {
                return Err(Error::Range);
            }
            {
                let known = self.blocks.read();
                if known.layout == layout && known.end >= end {
                    return Ok(known.clone());
                }
            }
            self.learn(layout, end)?;
        }
        Err(Error::Unstable)
    }
}

fn malformed() -> Error {
    Error::Control(ControlError::Malformed(
        "the blocks of a file are out of order".into(),
    ))
}

impl Shown for Leased {
    type Error = Error;

    fn layout(&self) -> Result<u64> {
        Ok(self.region().load_u64(self.view)?)
    }

    fn size(&self) -> Result<u64> {
        Ok(self.region().load_u64(self.view + 8)?)
    }
}

/// Tells the server, when it is dropped, that a lease has been given up.
#[derive(Debug)]
struct Release {
    link: Arc<Link>,
    lease: LeaseKey,
}

impl Drop for Release {
    fn drop(&mut self) {
        // Otherwise the server notices by itself, a little later.
        let _noticed = self.link.ask(|server| server.release(self.lease));
    }
}
