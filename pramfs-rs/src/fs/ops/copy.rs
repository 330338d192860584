//! Copying a range between two files, or within one, as copy_file_range(2) does. The
//! bytes go from the medium to the medium, without a buffer in between.
//!
//! Invariant: for the target, a copy is a write ([`write`](crate::fs::ops::write)). Written
//! blocks are overwritten in place, and no aligned word of them is torn; other blocks are
//! allocated record by record. A crash leaves a prefix.
//!
//! Holes and unwritten blocks of the source become unwritten blocks of the target, which
//! read as zeros and take no time to write. The copied range thus has its space allocated,
//! as on other file systems.

use std::cell::Cell;

use crate::credentials::Credentials;
use crate::fs::Engine;
use crate::fs::engine::completeness::Hole;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::lock::InodeGuard;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::ops::write::{WORD, whole_words};
use crate::fs::ops::write_source::MediumRange;
use crate::fs::policy::chattr;
use crate::fs::policy::suid::sgid;
use crate::fs::steps::attributes::lock_and_check_group;
use crate::fs::steps::copies::part_of;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::sync::RwLockReadGuard;
use pramfs_medium::types::{Bno, Ino, RegionOffset};

/// The locked source and target.
struct Ends<'a> {
    /// `None` if source and target are the same file.
    source: Option<RwLockReadGuard<'a, InodeState>>,
    target: InodeGuard<'a>,
}

impl<'a> Ends<'a> {
    /// Locks both inodes, in ascending order of numbers.
    fn lock(source: &'a Inode, target: &'a Inode) -> Ends<'a> {
        if source.ino < target.ino {
            let read = source.state.read();
            return Ends {
                source: Some(read),
                target: target.state.write(),
            };
        }
        let write = target.state.write();
        Ends {
            source: (source.ino != target.ino).then(|| source.state.read()),
            target: write,
        }
    }

    fn source(&self) -> &InodeState {
        self.source.as_deref().unwrap_or(&self.target)
    }
}

impl Engine {
    /// Copies `len` bytes from `from` to `to`, each an inode and an offset. Returns the
    /// number of bytes that were copied; they are durable. It is less than `len` if:
    ///
    /// - the source ends (0 at or past its end),
    /// - the region is full,
    /// - the target reaches the largest offset,
    /// - a lost range follows in the source.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for overlapping ranges of one file, and for other inodes than
    ///   regular files;
    /// - those of [`read`](Self::read);
    /// - those of [`write`](Self::write), if no byte was written.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> pramfs::Result<()> {
    /// # use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions, format::FormatOptions};
    /// # let region = pramfs::pmem::Region::new("test", pramfs::pmem::HeapBackend::boxed(4 << 20));
    /// # pramfs::format::format(&region, &FormatOptions::default())?;
    /// # let fs = Fs::open(region, MountOptions::default())?;
    /// let from = fs.create(&Credentials::ROOT, Ino::ROOT, b"from", 0o644)?.ino;
    /// let to = fs.create(&Credentials::ROOT, Ino::ROOT, b"to", 0o644)?.ino;
    /// fs.write(&Credentials::ROOT, from, 0, b"some bytes")?;
    /// assert_eq!(fs.copy_range(&Credentials::ROOT, (from, 5), (to, 0), 100)?, 5);
    /// # fs.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_range(
        &self,
        caller: &Credentials<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64> {
        // What is in hand: the bytes of the source that the attempt that has failed was to store.
        let place = Cell::new((0, 0));
        let targets = || [place.get()];
        self.op_past_bad_blocks_of(to.0, targets, || {
            place.set((0, 0));
            let (source, target) = (self.iget_user(from.0)?, self.iget_user(to.0)?);
            self.touch_atime(&source);
            let (mut ends, keeps_sgid) = lock_and_check_group(
                caller,
                || Ends::lock(&source, &target),
                |ends| sgid(&ends.target.disk),
            );
            check_file(source.ino, ends.source())?;
            check_file(target.ino, &ends.target)?;
            chattr::check_write(&ends.target.disk)?;
            let left = ends.source().disk.size.saturating_sub(from.1);
            let max = self.vol.geo.max_file_size();
            let len = len.min(left);
            if len == 0 {
                return Ok(0);
            }
            if to.1 >= max {
                return Err(Error::TooLarge(to.1));
            }
            let len = len.min(max - to.1);
            if ends.source.is_none() && from.1 < to.1 + len && to.1 < from.1 + len {
                return Err(Error::Invalid("ranges of one file that overlap"));
            }
            if !keeps_sgid {
                self.drop_sgid(&target, &mut ends.target)?;
            }
            let done = match self.is_atomic(&ends.target) {
                true => self.copy_in_parts(&target, &mut ends, (from.1, to.1), len, &place)?,
                false => self.copy_locked(&target, &mut ends, (from.1, to.1), len, &place)?,
            };
            self.sync_if_flagged(&ends.target)?;
            Ok(done)
        })
    }

    /// Copies between locked files, each part whole or not at all. Returns the number of bytes;
    /// an error after the first part makes the copy short.
    fn copy_in_parts(
        &self,
        target: &Inode,
        ends: &mut Ends<'_>,
        (from, to): (u64, u64),
        len: u64,
        place: &Cell<(u64, u64)>,
    ) -> Result<u64> {
        let mut done = 0;
        let mut bytes = Vec::new();
        while done < len {
            let n = part_of(to + done, len - done);
            let copied = match self.piece(ends.source(), from + done, n) {
                Ok((None, zeros)) if zeros == n => {
                    let (state, at) = (&mut ends.target, to + done);
                    place.set((at, n));
                    self.settle_size(target, state)
                        .and_then(|()| self.zero_range(target, state, at, at + n, false))
                        .map(|()| n)
                }
                Ok(_) => {
                    bytes.resize(n as usize, 0);
                    let source = ends.source();
                    let hole = || self.check_hole(source, Hole::Contents);
                    let read = self.read_data(source, from + done, &mut bytes, hole);
                    read.and_then(|read| {
                        place.set((to + done, read as u64));
                        self.write_whole(target, &mut ends.target, to + done, &bytes[..read])
                            .map(|()| read as u64)
                    })
                }
                Err(e) => Err(e),
            };
            match copied {
                Ok(copied) => {
                    done += copied;
                    if copied < n {
                        break;
                    }
                }
                Err(e) if done > 0 && room::ends_short(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Copies piece by piece between locked files. Returns the number of bytes; an error
    /// after the first piece makes the copy short.
    fn copy_locked(
        &self,
        target: &Inode,
        ends: &mut Ends<'_>,
        (from, to): (u64, u64),
        len: u64,
        place: &Cell<(u64, u64)>,
    ) -> Result<u64> {
        let mut done = 0;
        while done < len {
            let (at, n) = match self.piece(ends.source(), from + done, len - done) {
                Err(Error::Lost { .. }) if done > 0 => break,
                piece => piece?,
            };
            // A crash must not tear a word of the target. One that lies in two pieces is stored
            // by itself.
            let is_last = n == len - done;
            let whole = match is_last {
                true => n,
                false => whole_words(to + done, n),
            };
            let word = match (to + done + whole).is_multiple_of(WORD) || is_last {
                true => None,
                false => self.word(ends.source(), from + done, to + done, len - done),
            };
            let n = word.map_or(whole, |(_, n)| n as u64);
            let state = &mut ends.target;
            if let (None, Some(at)) = (word, at) {
                // Detect an unreadable source page before storing to the target.
                place.set((0, 0));
                self.vol.region.touch(at.0, n)?;
            }
            place.set((to + done, n));
            let copied = match (word, at) {
                (Some((word, len)), _) => self
                    .write_locked(target, state, to + done, &word[..len])
                    .map(|n| n as u64),
                (None, Some(at)) => {
                    let bytes = MediumRange {
                        at,
                        len: n as usize,
                    };
                    self.write_locked(target, state, to + done, bytes)
                        .map(|n| n as u64)
                }
                (None, None) => self.write_zeros(target, state, to + done, n),
            };
            match copied {
                Ok(copied) => {
                    done += copied;
                    if copied < n {
                        break;
                    }
                }
                Err(e) if done > 0 && room::ends_short(&e) => break,
                Err(e) => return Err(room::request_room_or_less(&self.vol.region, len - done)(e)),
            }
        }
        Ok(done)
    }

    /// Reads the bytes for the rest of the word of the target at `to`. `None` if not all of them
    /// can be read: the copy ends amid the word, which then gets the bytes of one piece.
    fn word(&self, source: &InodeState, from: u64, to: u64, len: u64) -> Option<([u8; 8], usize)> {
        let n = len.min(WORD - to % WORD) as usize;
        let mut word = [0; WORD as usize];
        let hole = || self.check_hole(source, Hole::Contents);
        let read = self.read_data(source, from, &mut word[..n], hole);
        read.is_ok_and(|read| read == n).then_some((word, n))
    }

    /// Returns the place and the length of the first contiguous piece of a range. The place
    /// is `None` for a hole or unwritten blocks, which read as zeros. A lost range ends the
    /// piece.
    ///
    /// # Errors
    /// [`Error::Lost`] if the range begins with a lost block, [`Error::Corrupt`].
    fn piece(&self, state: &InodeState, at: u64, len: u64) -> Result<(Option<RegionOffset>, u64)> {
        let geo = &self.vol.geo;
        let (mut index, last) = (geo.file_block(at), geo.file_block(at + len - 1));
        let within = at - geo.file_offset(index);
        let map = state.map();
        let mut first: Option<Option<Bno>> = None;
        let mut blocks = 0;
        while index <= last {
            let extent = map::run(&self.vol, &map, index, last - index + 1)?;
            if extent.lost && first.is_none() {
                return Err(self.lost(map.ino, at));
            }
            if extent.lost {
                break;
            }
            if extent.block.is_none() {
                self.check_hole(state, Hole::Contents)?;
            }
            let block = extent.block.filter(|_| !extent.unwritten);
            let is_contiguous = match first {
                None => true,
                Some(first) => block == first.map(|b| b.after(blocks)),
            };
            if !is_contiguous {
                break;
            }
            first.get_or_insert(block);
            blocks += extent.count;
            index += extent.count;
        }
        let place = first.flatten().map(|b| geo.offset(b) + within);
        Ok((place, len.min(geo.bytes(blocks) - within)))
    }

    /// Makes a range of the target read as zeros, without storing zeros. If no space is
    /// left, tries half the length, down to a block. Returns the number of bytes.
    fn write_zeros(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.settle_size(inode, state)?;
        let mut len = len;
        loop {
            match self.zero_range(inode, state, offset, offset + len, false) {
                Ok(()) => return Ok(len),
                Err(e) if len > self.vol.geo.block_size && room::is_out_of_space(&e) => {
                    len = whole_words(offset, len / 2);
                }
                Err(e) => return Err(e),
            }
        }
    }
}
