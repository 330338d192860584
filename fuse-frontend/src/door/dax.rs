//! The window of a guest: ranges of files that its programs load from and store to.
//!
//! The guest asks for a range of a file at a place of its window (SETUPMAPPING). The server has the
//! VMM map the blocks there. From then on loads and stores land on the medium, and nobody hears of
//! them.
//!
//! Invariants:
//! * **Every byte of a range is mapped from the moment that SETUPMAPPING is answered until
//!   REMOVEMAPPING is**, whatever happens to the file. The blocks are allocated first, to the end of
//!   the range, also past the end of the file. A lease to write then keeps every block of the file in
//!   its map (rule 6 of `docs/consistency.md`): a truncation, a punched hole and an unlink leave them
//!   where they are, and a file that grows grows into them. So no piece is ever added or replaced;
//! * nothing that a guest has mapped is unmapped before it removes the mapping, or its session ends;
//! * the lease lasts as long as the VMM has a page mapped, even if this server ends: the VMM maps
//!   the descriptor of the lease;
//! * the maps and the leases of a guest have a limit, and a refused range leaves no lease behind;
//! * stores are flushed, and the times set for them, only in ranges that the guest has asked to write
//!   to. The VMM maps every range for reading and writing, so that such a request adds no map. A
//!   guest that stores without the request loses the flush of its own stores;
//! * that request clears set-user-ID, set-group-ID and `security.capability`, as a write by an
//!   unprivileged program does.
//!
//! A range whose blocks are scattered over more than [`MAX_PIECES`] places is refused with EIO, and
//! a line in the log. So is a file that cannot have a lease to write (chattr +i, +a).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pramfs::inode::{Fs, HeldLease, Ino, LeaseMode, Repeats};
use pramfs::{Error, FileType};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::flags::MappingFlags;
use pramfs_fuse_protocol::wire::{RemovemappingOne, SetupmappingIn};

use crate::adapter::stores;

/// Most places that the blocks of a range lie in.
const MAX_PIECES: usize = 16;

/// Most maps of a guest, one for each piece.
const MAX_MAPS: usize = 512;

/// Most leases of a guest, those included that are released and not ended yet. All guests share
/// the table of leases.
const MAX_LEASES: usize = 256;

/// Most bytes of a range, and what Linux asks for (`FUSE_DAX_SHIFT`).
const LEAF: u64 = 2 << 20;

/// Most bytes of a window: a guest that fills it has two maps for each range.
pub const LARGEST_WINDOW: u64 = MAX_MAPS as u64 / 2 * LEAF;

/// How often the blocks of a range are filled, if the file grows meanwhile.
const ATTEMPTS: usize = 64;

/// In the place of more nodes than are remembered. No file has it.
const EVERY_NODE: u64 = 0;

/// Alignment of everything.
const PAGE: u64 = 4096;

/// A piece of a file: where it begins in the file and in the region, and its length.
type Piece = (u64, u64, u64);

/// What has the VMM map and unmap.
pub trait Window: Send + Sync {
    /// Bytes of the window.
    fn size(&self) -> u64;

    /// Has `len` bytes of a descriptor mapped, from `from` on, at a place of the window. They are
    /// when [`settle`](Self::settle) has returned.
    ///
    /// # Errors
    /// The VMM refuses, or is gone; `Interrupted` if the device is being stopped.
    fn map(&self, of: BorrowedFd<'_>, from: u64, at: u64, len: u64) -> io::Result<()>;

    /// Has what was mapped at a place unmapped.
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    fn unmap(&self, at: u64, len: u64) -> io::Result<()>;

    /// Waits until all maps are in force.
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    fn settle(&self) -> io::Result<()>;
}

/// A range of the window.
#[derive(Debug, Clone)]
struct Mapped {
    node: u64,
    /// Where it begins in the file.
    offset: u64,
    len: u64,
    /// Places and lengths in the window, each one map of the VMM.
    pieces: Vec<(u64, u64)>,
    /// The guest has asked to write to it, so it may be stored to until it is removed.
    stored: bool,
    /// The times are to be set for stores. Not after the guest has set them itself.
    owes_times: bool,
}

impl Mapped {
    fn note_flags(&mut self, flags: MappingFlags) {
        if flags.contains(MappingFlags::WRITE) {
            (self.stored, self.owes_times) = (true, true);
        }
    }

    /// Makes durable what was stored.
    fn persist(&self, fs: &Fs) -> Result<(), Error> {
        let (ino, range) = (Ino(self.node), self.offset..self.offset + self.len);
        match (self.stored, self.owes_times) {
            (false, _) => Ok(()),
            (true, true) => fs.persist_stores(ino, range),
            (true, false) => fs.flush_stores(ino, range),
        }
    }
}

/// A lease to write.
#[derive(Debug, Clone)]
struct Held {
    ino: Ino,
    slot: u32,
    id: u64,
    /// Keeps the lease while this guest has a range, even if the VMM maps nothing yet.
    descriptor: Arc<OwnedFd>,
}

/// The lease of a file, and how many ranges need it.
struct Lease {
    held: Held,
    ranges: usize,
}

#[derive(Default)]
struct Table {
    /// By place in the window.
    ranges: BTreeMap<u64, Mapped>,
    leases: HashMap<u64, Lease>,
    /// Leases given up since the last time that such were ended here.
    released: usize,
    maps: usize,
    /// Files whose stores could not be made durable when a range of them was removed. The next
    /// request to make them durable fails.
    lost: BTreeSet<u64>,
}

/// What a guest has mapped.
pub(super) struct Dax {
    window: Arc<dyn Window>,
    /// One change at a time: the window has one VMM. Held while blocks are filled and mapped.
    table: Mutex<Table>,
    /// The files in the table, and the numbers of their leases. Never held for long.
    leased: Mutex<HashMap<u64, u64>>,
    told: Mutex<Repeats>,
    /// Maps that the VMM has not taken back, and may have still.
    stuck: AtomicUsize,
    /// Whether the table has files whose stores are lost.
    has_lost: AtomicBool,
    /// How often a range was not mapped because its blocks changed all the time.
    #[cfg(test)]
    pub(super) unsettled: AtomicUsize,
}

impl Dax {
    pub(super) fn new(window: Arc<dyn Window>) -> Dax {
        Dax {
            window,
            table: Mutex::default(),
            leased: Mutex::default(),
            told: Mutex::default(),
            stuck: AtomicUsize::new(0),
            has_lost: AtomicBool::new(false),
            #[cfg(test)]
            unsettled: AtomicUsize::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leased(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a range of a file.
    pub(super) fn setup(&self, fs: &Fs, node: u64, arg: &SetupmappingIn) -> Result<(), Errno> {
        let (at, offset, len) = (arg.moffset, arg.foffset, arg.len);
        let fits = |from: u64, end: u64| from.checked_add(len).is_some_and(|to| to <= end);
        let aligned = (at | offset | len) % PAGE == 0;
        if len == 0
            || len > LEAF
            || !aligned
            || !fits(at, self.window.size())
            || !fits(offset, 1 << 62)
        {
            return Err(Errno::EINVAL);
        }
        let mut table = self.lock();
        if let Some(there) = table.ranges.get_mut(&at)
            && (there.node, there.offset, there.len) == (node, offset, len)
        {
            // For the first store to a range that was read: it can be stored to from the start.
            drop_rights(fs, Ino(node), arg.flags).map_err(|_| Errno::EIO)?;
            there.note_flags(arg.flags);
            return Ok(());
        }
        // The guest takes the place for another range, without a word.
        self.remove_within(fs, &mut table, at, len);
        self.map(fs, &mut table, node, arg).map_err(|refused| {
            let errno = refused.errno();
            #[cfg(test)]
            if matches!(refused, Refused::Unsettled) {
                self.unsettled.fetch_add(1, Ordering::Relaxed);
            }
            if errno == Errno::EIO {
                self.tell(
                    fs,
                    &refused,
                    &format!("{len} bytes of node {node} at {offset}"),
                );
            }
            errno
        })
    }

    /// Says why something is not mapped: once a minute for each reason, whatever a guest asks for.
    fn tell(&self, fs: &Fs, refused: &Refused, what: &str) {
        let (reason, why) = match refused {
            Refused::Engine(error) => ("engine", error.to_string()),
            Refused::Window(error) => ("window", format!("the VMM does not map it: {error}")),
            Refused::Scattered => (
                "scattered",
                format!("its blocks lie in more than {MAX_PIECES} places; copy the file"),
            ),
            Refused::Unsettled => (
                "unsettled",
                "its blocks change all the time, or some were lost".into(),
            ),
            Refused::TooManyMaps => ("maps", format!("the guest has {MAX_MAPS} maps")),
            Refused::TooManyFiles => ("files", format!("the guest has {MAX_LEASES} files mapped")),
            Refused::PastEnd => ("end", "it begins past the end of the file".into()),
        };
        let now = fs.options().clock.now().sec;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(silent) = told.tell(reason, now) {
            let since = Repeats::since(silent);
            tracing::warn!("a guest cannot map {what}: {why}{since}");
        }
    }

    fn map(
        &self,
        fs: &Fs,
        table: &mut Table,
        node: u64,
        arg: &SetupmappingIn,
    ) -> Result<(), Refused> {
        // First what leaves nothing behind.
        let stuck = self.stuck.load(Ordering::Relaxed);
        let room = MAX_MAPS.saturating_sub(table.maps + stuck);
        if room == 0 {
            return Err(Refused::TooManyMaps);
        }
        let size = fs.getattr(Ino(node))?.size;
        if arg.foffset >= size.max(1).next_multiple_of(LEAF) {
            return Err(Refused::PastEnd);
        }
        let known = table.leases.get(&node).map(|lease| lease.held.clone());
        let is_new = known.is_none();
        let held = match known {
            Some(held) => held,
            None => grant(fs, table, Ino(node))?,
        };
        let dropped = drop_rights(fs, Ino(node), arg.flags).map_err(Refused::from);
        let pieces = match dropped.and_then(|()| self.map_pieces(fs, &held, room, arg)) {
            Ok(pieces) => pieces,
            Err(refused) => {
                drop(held);
                if is_new {
                    end_released(fs);
                }
                return Err(refused);
            }
        };
        tracing::debug!(
            "{} bytes of node {node} at {} are mapped at {}, in {} pieces",
            arg.len,
            arg.foffset,
            arg.moffset,
            pieces.len()
        );
        table.maps += pieces.len();
        self.leased().insert(node, held.id);
        let lease = table.leases.entry(node);
        lease.or_insert(Lease { held, ranges: 0 }).ranges += 1;
        let mut range = Mapped {
            node,
            offset: arg.foffset,
            len: arg.len,
            pieces,
            stored: false,
            owes_times: false,
        };
        range.note_flags(arg.flags);
        table.ranges.insert(arg.moffset, range);
        Ok(())
    }

    /// Maps the blocks of a range, at most `room` pieces, all or none.
    fn map_pieces(
        &self,
        fs: &Fs,
        held: &Held,
        room: usize,
        arg: &SetupmappingIn,
    ) -> Result<Vec<(u64, u64)>, Refused> {
        let start = arg.foffset;
        let pieces = fill(fs, held, start..start + arg.len)?;
        if pieces.len() > room {
            return Err(Refused::TooManyMaps);
        }
        let mut mapped = Vec::new();
        let mut done = Ok(());
        for (offset, from, len) in pieces {
            let at = arg.moffset + (offset - start);
            done = self.window.map(held.descriptor.as_fd(), from, at, len);
            if done.is_err() {
                break;
            }
            mapped.push((at, len));
        }
        match done.and_then(|()| self.window.settle()) {
            Ok(()) => Ok(mapped),
            Err(error) => {
                self.unmap(&mapped);
                Err(Refused::Window(error))
            }
        }
    }

    /// Removes what a guest names.
    pub(super) fn remove(&self, fs: &Fs, one: &RemovemappingOne) {
        let mut table = self.lock();
        self.remove_within(fs, &mut table, one.moffset, one.len);
    }

    /// Removes all.
    pub(super) fn remove_all(&self, fs: &Fs) {
        let mut table = self.lock();
        self.remove_within(fs, &mut table, 0, u64::MAX);
    }

    /// Makes durable what this guest has stored to a file, as far as it is mapped.
    pub(super) fn persist(&self, fs: &Fs, node: u64) -> Result<(), Error> {
        let done = self.persist_mapped(fs, node);
        match self.has_lost.load(Ordering::Relaxed) {
            true => done.and(self.tell_lost(node)),
            false => done,
        }
    }

    fn persist_mapped(&self, fs: &Fs, node: u64) -> Result<(), Error> {
        if !self.has(node) {
            return Ok(());
        }
        let table = self.lock();
        let ranges = table.ranges.values().filter(|range| range.node == node);
        let ranges: Vec<Mapped> = ranges.cloned().collect();
        drop(table);
        ranges.iter().try_for_each(|range| range.persist(fs))
    }

    /// Fails if stores to a file are lost: once, if it is known which files they were.
    #[cold]
    fn tell_lost(&self, node: u64) -> Result<(), Error> {
        let mut table = self.lock();
        let is_lost = table.lost.remove(&node) || table.lost.contains(&EVERY_NODE);
        let has_more = !table.lost.is_empty();
        self.has_lost.store(has_more, Ordering::Relaxed);
        match is_lost {
            false => Ok(()),
            true => Err(stores_lost()),
        }
    }

    /// Forgets whose stores are lost, for another session.
    pub(super) fn forget_lost(&self) {
        self.lock().lost.clear();
        self.has_lost.store(false, Ordering::Relaxed);
    }

    /// Makes durable what this guest has stored to any file.
    pub(super) fn persist_all(&self, fs: &Fs) -> Result<(), Error> {
        // Each file's own fsync tells it, too: sync(2) tells nobody.
        let told = match self.has_lost.load(Ordering::Relaxed) {
            true => Err(stores_lost()),
            false => Ok(()),
        };
        let nodes: Vec<u64> = self.leased().keys().copied().collect();
        for node in nodes {
            self.persist_mapped(fs, node)?;
        }
        told
    }

    /// Notes that the guest sets the times of a file: stores so far set no other ones later.
    pub(super) fn note_times(&self, fs: &Fs, node: u64) -> Result<(), Error> {
        if !self.has(node) {
            return Ok(());
        }
        let mut table = self.lock();
        for range in table.ranges.values_mut().filter(|r| r.node == node) {
            range.owes_times = false;
            range.persist(fs)?;
        }
        Ok(())
    }

    /// Whether a file is mapped: its times may change without a request.
    pub(super) fn has(&self, node: u64) -> bool {
        self.leased().contains_key(&node)
    }

    /// Whether a lease is this guest's.
    fn owns(&self, lease: &HeldLease) -> bool {
        self.leased().get(&lease.ino.0) == Some(&lease.id)
    }

    /// Removes the ranges that overlap a part of the window, each as a whole.
    fn remove_within(&self, fs: &Fs, table: &mut Table, at: u64, len: u64) {
        let end = at.saturating_add(len);
        // Ranges do not overlap, so only one that begins before reaches into it.
        let before = table.ranges.range(..at).next_back();
        let first = before.filter(|(from, range)| *from + range.len > at);
        let from = first.map_or(at, |(from, _)| *from);
        let found: Vec<u64> = table.ranges.range(from..end).map(|(at, _)| *at).collect();
        for at in found {
            let Some(range) = table.ranges.remove(&at) else {
                continue;
            };
            // The VMM drops the cache of nothing: what was stored is on its way to the medium.
            match range.persist(fs) {
                // A file that is gone has nothing to keep.
                Ok(()) | Err(Error::Stale(_)) => {}
                Err(error) => {
                    tracing::debug!("stores to node {} are not flushed: {error}", range.node);
                    let is_new = !table.lost.contains(&range.node);
                    let is_full = is_new && table.lost.len() >= MAX_LEASES;
                    table.lost.insert(match is_full {
                        true => EVERY_NODE,
                        false => range.node,
                    });
                    self.has_lost.store(true, Ordering::Relaxed);
                }
            }
            self.unmap(&range.pieces);
            table.maps -= range.pieces.len();
            if let Some(lease) = table.leases.get_mut(&range.node) {
                lease.ranges -= 1;
                if lease.ranges == 0 {
                    table.leases.remove(&range.node);
                    table.released += 1;
                    self.leased().remove(&range.node);
                }
            }
        }
    }

    /// A piece that the VMM does not unmap keeps its lease, and its place among the maps.
    fn unmap(&self, pieces: &[(u64, u64)]) {
        for (at, len) in pieces {
            if let Err(error) = self.window.unmap(*at, *len) {
                tracing::debug!("the VMM does not unmap {len} bytes at {at}: {error}");
                // While the device is being stopped, the VMM is still asked.
                if error.kind() != io::ErrorKind::Interrupted {
                    self.stuck.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Makes durable what others have stored to leased files, or to one of them: guests of other doors,
/// and those that have mapped files through an earlier server. The times are left to those that
/// have stored. Returns of how many files.
pub(super) fn flush_others(fs: &Fs, own: Option<&Dax>, node: Option<u64>) -> Result<usize, Error> {
    stores::flush(fs, node, |lease| own.is_some_and(|dax| dax.owns(lease)))
}

fn stores_lost() -> Error {
    Error::io("stores through a mapping could not be made durable when it was removed")
}

/// Why a range is not mapped.
enum Refused {
    Engine(Error),
    Window(io::Error),
    Scattered,
    Unsettled,
    TooManyMaps,
    TooManyFiles,
    PastEnd,
}

impl Refused {
    fn errno(&self) -> Errno {
        match self {
            Refused::PastEnd => Errno::EINVAL,
            _ => Errno::EIO,
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Engine(error)
    }
}

/// Gets a lease to write, durable when this returns, and its descriptor of the region.
fn grant(fs: &Fs, table: &mut Table, ino: Ino) -> Result<Held, Refused> {
    let attr = fs.getattr(ino)?;
    if attr.kind != FileType::Regular {
        return Err(Error::Invalid("only regular files are mapped").into());
    }
    if table.leases.len() >= MAX_LEASES {
        return Err(Refused::TooManyFiles);
    }
    if table.leases.len() + table.released >= MAX_LEASES {
        end_released(fs);
        table.released = 0;
    }
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let grant = fs.grant_lease(ino, attr.generation, LeaseMode::Write, pid, uid)?;
    let descriptor = grant.descriptor();
    let (slot, id) = (grant.lease().slot, grant.lease().id);
    drop(grant);
    match descriptor {
        Ok(descriptor) => Ok(Held {
            ino,
            slot,
            id,
            descriptor: Arc::new(descriptor),
        }),
        Err(error) => {
            end_released(fs);
            Err(Refused::Window(error))
        }
    }
}

/// Clears what a write by an unprivileged program clears, before a range can be stored to. A store
/// sends no request, so the server never learns the program that stores.
fn drop_rights(fs: &Fs, ino: Ino, flags: MappingFlags) -> Result<(), Error> {
    if !flags.contains(MappingFlags::WRITE) {
        return Ok(());
    }
    let has_bits = fs.getattr(ino)?.perm & (libc::S_ISUID | libc::S_ISGID) != 0;
    // The first check makes no change, so that it is no error after damage.
    match has_bits || fs.getxattr(ino, b"security.capability").is_ok() {
        true => fs.strip_suid(ino),
        false => Ok(()),
    }
}

/// Ends leases that nobody holds, without waiting for the timer.
fn end_released(fs: &Fs) {
    if let Err(error) = fs.end_released_leases() {
        tracing::debug!("leases are not ended; the timer tries again: {error}");
    }
}

/// Allocates every block of a range, and returns where they lie: offset in the file, in the region,
/// and length. No block contains what it held for another file.
fn fill(fs: &Fs, held: &Held, range: Range<u64>) -> Result<Vec<(u64, u64, u64)>, Refused> {
    // Another door may let the file grow between the two calls, which leaves holes. It grows into
    // blocks that are there after the second one.
    for _ in 0..ATTEMPTS {
        if range.start < fs.getattr(held.ino)?.size {
            fs.fill(held.ino, range.start, range.end - range.start)?;
        }
        let done = fs.fill_ahead_zeroed(held.slot, held.id, range.clone())?;
        if done < range.end {
            continue;
        }
        if let Some(pieces) = pieces_of(fs, held, &range)? {
            return Ok(pieces);
        }
    }
    Err(Refused::Unsettled)
}

/// Returns where the blocks of a range lie. `None` if one is missing.
fn pieces_of(fs: &Fs, held: &Held, range: &Range<u64>) -> Result<Option<Vec<Piece>>, Refused> {
    let mut pieces: Vec<(u64, u64, u64)> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let found = fs.leased_extents(held.slot, held.id, at, MAX_PIECES + 1)?;
        let before = at;
        for extent in &found.extents {
            let (from, to) = (extent.file_offset, extent.file_offset + extent.len);
            let Some(region) = extent.region_offset.filter(|_| from <= at && at < to) else {
                continue;
            };
            let len = to.min(range.end) - at;
            let place = region + (at - from);
            match pieces.last_mut() {
                Some((_, last, bytes)) if *last + *bytes == place => *bytes += len,
                _ => pieces.push((at, place, len)),
            }
            at += len;
            if at == range.end {
                break;
            }
        }
        if pieces.len() > MAX_PIECES {
            return Err(Refused::Scattered);
        }
        if at == before {
            return Ok(None);
        }
    }
    Ok(Some(pieces))
}

#[cfg(test)]
#[path = "dax_tests.rs"]
mod tests;
