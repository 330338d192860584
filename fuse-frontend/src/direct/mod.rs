//! Direct access to files of a mount: the policy, and the leases that clients get.
//!
//! A client opens a file through the mount, so the kernel has decided that it may read the
//! file. It asks for a ticket by an ioctl on the descriptor ([`Direct::ticket`]), and
//! redeems it at the control socket ([`Leases::grant`]). `docs/leases.md` has the protocol.
//!
//! A client can read the whole region through the descriptor of its lease, and write it if
//! the lease is to write. So the policy, and not the permissions of one file, decides who gets
//! one.
//!
//! Not here: what a lease does to the file (the engine), connections (`pramfs_control`).

mod grown;
mod lending;
mod opens;
mod policy;
mod tickets;

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pramfs::inode::{Fs, HeldLease, Ino, LeaseMode, LeasedExtents};
use pramfs::{Error, FileType};

use pramfs_control::{
    Blocks, Coherence, Extent, Granted, LeaseKey, LeaseRow, Leases, Peer, Refusal, Refused, Ticket,
    TicketReply, Window,
};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};
use pramfs_medium::pmem::Permissions;

pub(crate) use opens::OpenedHow;
pub use opens::Opens;
pub use policy::{DirectPolicy, Policy};
use tickets::{Claim, Tickets};

const IMMUTABLE: &str = "the file is immutable or append-only";

/// Bytes that one request fills, so that the thread answers the others soon.
const FILLED_AT_ONCE: u64 = 2 << 20;

/// Leases that one user other than root may have.
const OF_USER: usize = 512;

/// Leases of all users but root and the owner of the region. The other slots are kept for these two.
const OF_OTHERS: usize = 3072;

/// Direct access to the files of a mount.
#[derive(Debug)]
pub struct Direct {
    fs: Arc<Fs>,
    policy: Policy,
    /// Name of the control socket.
    socket: String,
    opens: Arc<Opens>,
    tickets: Mutex<Tickets>,
    /// Leases whose requests have been ended.
    revoked: Mutex<HashSet<LeaseKey>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Direct {
    /// Makes the direct access of a writable mount. `socket` is the name of the control socket.
    pub fn new(fs: Arc<Fs>, policy: Policy, socket: String, opens: Arc<Opens>) -> Direct {
        Direct {
            fs,
            policy,
            socket,
            opens,
            tickets: Mutex::default(),
            revoked: Mutex::default(),
        }
    }

    /// Returns owner, group and writers of the region, as they are now: its owner may change
    /// them at any time.
    fn permissions(&self) -> Result<Permissions, Refused> {
        match self.fs.region().permissions() {
            Ok(Some(permissions)) => Ok(permissions),
            Ok(None) => Err(Refused::new(
                Refusal::Unsupported,
                "the region is memory of the server",
            )),
            Err(error) => Err(Refused::new(
                Refusal::System,
                format!("cannot find out who may write the region: {error}"),
            )),
        }
    }

    /// Keeps slots for root, for the owner of the region, and for each of the other users.
    fn check_room(&self, uid: u32, owner: u32) -> Result<(), Refused> {
        if uid == 0 {
            return Ok(());
        }
        let all = self.fs.leases();
        let of = |is: &dyn Fn(u32) -> bool| all.iter().filter(|lease| is(lease.uid)).count();
        if of(&|other| other == uid) >= OF_USER {
            return Err(Refused::new(
                Refusal::Full,
                format!("user {uid} has {OF_USER} leases"),
            ));
        }
        if uid != owner && of(&|other| other != 0 && other != owner) >= OF_OTHERS {
            return Err(Refused::new(
                Refusal::Full,
                format!("users other than the owner of the region have {OF_OTHERS} leases"),
            ));
        }
        Ok(())
    }

    /// Issues a ticket for a file that `uid` has open for these accesses. `is_member` tells
    /// whether the process is in a group.
    ///
    /// # Errors
    /// The policy forbids it, it is not a regular file, or it must not be changed.
    pub fn ticket(
        &self,
        uid: u32,
        is_member: &dyn Fn(u32) -> bool,
        ino: Ino,
        mode: LeaseMode,
    ) -> Result<TicketReply, Refused> {
        let region = self.permissions()?;
        self.policy.check(uid, is_member, mode, &region)?;
        let attr = self.fs.getattr(ino).map_err(refused)?;
        if attr.kind != FileType::Regular {
            return Err(Refused::new(
                Refusal::Unsupported,
                "only regular files can be accessed directly",
            ));
        }
        if mode == LeaseMode::Write && attr.flags & (FL_IMMUTABLE | FL_APPEND) != 0 {
            return Err(Refused::new(Refusal::Immutable, IMMUTABLE));
        }
        let claim = Claim {
            ino,
            generation: attr.generation,
            mode,
            uid,
        };
        let ticket = lock(&self.tickets).issue(claim, region.owner, Instant::now())?;
        Ok(TicketReply {
            ticket,
            socket: self.socket.clone(),
        })
    }

    /// Clears what a write by this user clears: stores tell nobody.
    fn drop_rights(&self, uid: u32, ino: Ino) -> Result<(), Refused> {
        let dropped = match uid {
            0 => self.fs.strip_capability(ino).map(drop),
            _ => self.fs.strip_suid(ino),
        };
        dropped.map_err(refused)
    }

    fn check_live(&self, lease: LeaseKey) -> Result<(), Refused> {
        match lock(&self.revoked).contains(&lease) {
            false => Ok(()),
            true => Err(Refused::new(Refusal::Ended, "the lease has been revoked")),
        }
    }

    /// Called after blocks have been found, see [`Opens::is_recalled`].
    fn check_recalled(&self, id: u64) -> Result<(), Refused> {
        match self.opens.is_recalled(id) {
            false => Ok(()),
            true => Err(Refused::new(
                Refusal::Ended,
                "the lease has been recalled: a program may store to the file through a mapping",
            )),
        }
    }

    fn held(&self, lease: LeaseKey) -> Result<HeldLease, Refused> {
        let leases = self.fs.leases();
        let held = leases.into_iter().find(|held| key(held) == lease);
        held.ok_or_else(|| Refused::new(Refusal::Ended, "the lease has ended"))
    }

    /// Returns a lease to write that is not revoked.
    fn writer(&self, lease: LeaseKey) -> Result<HeldLease, Refused> {
        self.check_live(lease)?;
        let held = self.held(lease)?;
        match held.mode {
            LeaseMode::Write => Ok(held),
            LeaseMode::Read => Err(Refused::new(
                Refusal::NotPermitted,
                "the lease is for reading only",
            )),
        }
    }

    fn row(&self, lease: &HeldLease) -> LeaseRow {
        let key = key(lease);
        let attr = self.fs.getattr(lease.ino);
        LeaseRow {
            lease: key,
            inode: lease.ino.0,
            pid: lease.pid,
            uid: lease.uid,
            write: lease.mode == LeaseMode::Write,
            bytes: attr.map_or(0, |attr| attr.blocks.saturating_mul(512)),
            granted_sec: lease.granted_sec,
            adopted: lease.is_adopted,
            revoked: lock(&self.revoked).contains(&key),
        }
    }
}

fn key(lease: &HeldLease) -> LeaseKey {
    LeaseKey {
        slot: lease.slot,
        id: lease.id,
    }
}

/// Converts an error of the engine.
fn refused(error: Error) -> Refused {
    let reason = match &error {
        Error::Stale(_) => Refusal::Ended,
        Error::NoSpace(_) => Refusal::Full,
        Error::NotPermitted(_) => Refusal::Immutable,
        // Another lease of the file: the client appends through the mount for a while.
        Error::Busy(_) => Refusal::Busy,
        Error::ReadOnly(_) | Error::NotSupported(_) => Refusal::Unsupported,
        Error::Corrupt { .. }
        | Error::Lost { .. }
        | Error::WrongSum { .. }
        | Error::Io { .. }
        | Error::Pmem(_) => Refusal::Damaged,
        _ => Refusal::System,
    };
    Refused::new(reason, error.to_string())
}

fn blocks(found: LeasedExtents) -> Blocks {
    let extents = found.extents.iter().filter_map(|extent| {
        Some(Extent {
            file_offset: extent.file_offset,
            region_offset: extent.region_offset?,
            len: extent.len,
        })
    });
    Blocks {
        layout: found.layout,
        size: found.size,
        start: found.start,
        end: found.end,
        extents: extents.collect(),
    }
}

impl Leases for Direct {
    fn grant(
        &self,
        ticket: Ticket,
        coherence: Coherence,
        peer: &Peer,
        most: usize,
        send: &mut dyn FnMut(&Granted, std::os::fd::BorrowedFd<'_>),
    ) -> Result<LeaseKey, Refused> {
        let claim = lock(&self.tickets).redeem(ticket, peer.uid, Instant::now())?;
        let Claim {
            ino,
            generation,
            mode,
            ..
        } = claim;
        let region = self.permissions()?;
        // Again: the region, and the groups of the user, may have changed since the ticket.
        let is_member = |group| peer.groups.contains(&group);
        self.policy.check(peer.uid, &is_member, mode, &region)?;
        self.check_room(peer.uid, region.owner)?;
        let writing = match mode {
            LeaseMode::Read => {
                self.opens.check_reader(ino, coherence)?;
                None
            }
            LeaseMode::Write => Some(self.opens.begin_writing(ino)?),
        };
        let grant = self
            .fs
            .grant_lease(ino, generation, mode, peer.pid, peer.uid)
            .map_err(refused)?;
        // Durable in its slot from here on.
        let lease = *grant.lease();
        // Before the first store can be made, and not for a grant that was refused.
        if writing.is_some() {
            self.drop_rights(peer.uid, ino)?;
        }
        if let Some(writing) = writing {
            writing.granted(lease.id);
        }
        // Before the blocks are found: an open for stores finds the lease from here on.
        if mode == LeaseMode::Read && coherence != Coherence::WriteBack {
            self.opens.note_reader(ino, lease.id, coherence)?;
        }
        let descriptor = grant.descriptor().map_err(|error| {
            Refused::new(
                Refusal::System,
                format!("the region cannot be opened for a client: {error}"),
            )
        })?;
        let found = self.fs.leased_extents(lease.slot, lease.id, 0, most);
        let found = found.map_err(refused)?;
        self.check_recalled(lease.id)?;
        let granted = Granted {
            lease: key(&lease),
            filesystem: self.fs.superblock().uuid().as_u64_pair(),
            inode: lease.ino.0,
            generation,
            block_size: self.fs.superblock().geometry().block_size,
            view: found.view,
            stored: found.stored,
            coherence,
            blocks: blocks(found),
        };
        // The message keeps the descriptor open until the client has it or is gone.
        send(&granted, descriptor.as_fd());
        Ok(granted.lease)
    }

    fn blocks(&self, lease: LeaseKey, offset: u64, most: usize) -> Result<Blocks, Refused> {
        self.check_live(lease)?;
        let found = self
            .fs
            .leased_extents(lease.slot, lease.id, offset, most)
            .map_err(refused)?;
        self.check_recalled(lease.id)?;
        Ok(blocks(found))
    }

    fn cohere(&self, lease: LeaseKey, coherence: Coherence) -> Result<(), Refused> {
        self.check_live(lease)?;
        let held = self.held(lease)?;
        if held.mode == LeaseMode::Write {
            // It keeps the page cache away in any case.
            return Ok(());
        }
        self.opens.note_reader(held.ino, held.id, coherence)?;
        // The timer may have ended it meanwhile, and found no note.
        self.held(lease)
            .map(drop)
            .inspect_err(|_| self.opens.reader_ended(held.ino, held.id))
    }

    fn fill(&self, lease: LeaseKey, range: Range<u64>, ahead: bool) -> Result<u64, Refused> {
        let held = self.writer(lease)?;
        // So that the client learns of the end. The engine fills nothing past it.
        let size = self.fs.getattr(held.ino).map_err(refused)?.size;
        let end = range.end.min(size);
        if range.start >= end {
            return match ahead && range.end > range.start {
                true => self
                    .fs
                    .fill_ahead(lease.slot, lease.id, range)
                    .map_err(refused),
                false => Ok(end),
            };
        }
        let stop = end.min(range.start.saturating_add(FILLED_AT_ONCE));
        self.fs
            .fill(held.ino, range.start, stop - range.start)
            .map_err(refused)?;
        Ok(stop)
    }

    fn window(&self, lease: LeaseKey, bytes: u64, opens: u32) -> Result<Window, Refused> {
        let held = self.writer(lease)?;
        let others = || self.opens.opened_direct(held.ino) > u64::from(opens.max(1));
        let busy = || {
            Refused::new(
                Refusal::Busy,
                "the file is open through the mount elsewhere, where its size would be out of date",
            )
        };
        if others() {
            return Err(busy());
        }
        // The engine looks at the lease again, under the lock of the inode.
        let open = self.fs.open_window(lease.slot, lease.id, bytes);
        let open = open.map_err(refused)?;
        // An open counts first, and then closes the window. So one of the two finds the other.
        if others() {
            self.fs
                .close_lease_window(lease.slot, lease.id)
                .map_err(refused)?;
            return Err(busy());
        }
        Ok(Window {
            number: open.number,
            start: open.start,
            limit: open.limit,
            key: open.key,
        })
    }

    fn end_released(&self) {
        if self.fs.is_read_only() {
            return;
        }
        if let Err(error) = self.fs.end_released_leases() {
            tracing::warn!("could not end the leases of processes that are gone: {error}");
        }
        let live: HashSet<LeaseKey> = self.fs.leases().iter().map(key).collect();
        lock(&self.revoked).retain(|lease| live.contains(lease));
    }

    fn list(&self, from: u32, most: usize) -> (Vec<LeaseRow>, Option<u32>) {
        let all = self.fs.leases();
        let mut rest = all.iter().filter(|lease| lease.slot >= from);
        let rows = rest.by_ref().take(most).map(|lease| self.row(lease));
        let rows = rows.collect();
        (rows, rest.next().map(|lease| lease.slot))
    }

    fn revoke(&self, lease: LeaseKey) -> Result<(), Refused> {
        let leases = self.fs.leases();
        let Some(held) = leases.iter().find(|held| key(held) == lease) else {
            return Err(Refused::new(Refusal::Ended, "there is no such lease"));
        };
        if held.pid == std::process::id() {
            return Err(Refused::new(
                Refusal::Unsupported,
                "a guest has mapped the file, and nothing takes that from it; unmount it there, or stop the guest",
            ));
        }
        lock(&self.revoked).insert(lease);
        // Stores through mappings cannot be ended; appends can.
        match self.fs.close_lease_window(lease.slot, lease.id) {
            // The append that is under way is the last one.
            Err(Error::Busy(_)) => Ok(()),
            closed => closed.map_err(refused),
        }
    }
}

#[cfg(test)]
mod tests;
