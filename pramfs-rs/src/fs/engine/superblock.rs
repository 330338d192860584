//! The dynamic words of the superblock page in a running file system.
//!
//! Each is one aligned word, stored to the first page and to the copy, outside the
//! CRC of the static part. In the static part only these change: the label, the default options,
//! the reserve, some features, the root of the list of bad blocks, and the sizes (a grow).

use pramfs_medium::pmem::RegionAccess as _;
use std::sync::atomic::Ordering;

use zerocopy::{FromZeros, IntoBytes};

use crate::fs::Engine;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::features::{ATOMIC_DATA, RANGED_MARKS};
use pramfs_medium::media::superblock::{DYNAMIC_OFFSET, ErrorMark, STATE_ACTIVE, STATE_CLEAN};
use pramfs_medium::media::{DiskInode, Medium, SuperDynamic, SuperStatic};
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::pmem::{Region, Unfenced};
use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::Ino;

/// The dynamic words and the static part, see the module.
#[derive(Debug)]
pub(crate) struct SuperState {
    dynamic: Mutex<SuperDynamic, rank::Superblock>,
    /// The static part. [`change_fixed`](SuperState::change_fixed) changes it.
    pub fixed: Mutex<SuperStatic, rank::Superblock>,
}

/// Stores the dynamic words to both pages and fences them. The order of the words does not
/// matter: each has a check, or recovery does not need it.
fn store(medium: Medium<'_>, dynamic: &SuperDynamic) -> Result<()> {
    let Medium { region, geo } = medium;
    let w = region.window();
    let mut pending = Unfenced::none();
    for page in geo.pages() {
        let at = page + DYNAMIC_OFFSET;
        if has_bug!(SuperblocksTogether) {
            for (i, half) in dynamic.as_bytes().chunks(4).enumerate() {
                w.store_unflushed(at.0 + i as u64 * 4, half)?;
            }
        }
        for (i, word) in dynamic.as_bytes().as_chunks::<8>().0.iter().enumerate() {
            w.store_u64_unflushed(at.word(i as u64).0, u64::from_le_bytes(*word))?;
        }
        pending = pending.join(w.flush(at.0, SuperDynamic::SIZE as u64)?);
    }
    let _ = w.fence(pending);
    Ok(())
}

/// Finishes a change of the static part that a crash interrupted: copies the valid page to
/// the other. True if there was such a change. A
/// valid page is never changed, and other damage is not mistaken for such a change. `fixed` is
/// the static part in use; `from_copy` tells that it was found in the copy.
pub(crate) fn finish_change_of_fixed(
    region: &Region,
    from_copy: bool,
    fixed: &SuperStatic,
) -> Result<bool> {
    let other = if from_copy { 0 } else { fixed.copy_offset };
    let there: SuperStatic = region.read_pod(other)?;
    if there == *fixed || !fixed.is_same_but_changed(&there) {
        return Ok(false);
    }
    let w = region.window();
    // The next store of the mount fences it, before any store to the valid page.
    drop(w.store(other, fixed.as_bytes())?);
    Ok(true)
}

/// Reads an internal inode from the first page, or from the copy.
pub(crate) fn internal(medium: Medium<'_>, at: u64, ino: Ino) -> Result<DiskInode> {
    let geo = medium.geo;
    for page in geo.pages() {
        // A page that cannot be read counts as damaged.
        let Ok(disk) = medium.read_pod::<DiskInode>(page + at) else {
            continue;
        };
        if disk.crc == disk.expected_crc(geo.seed, ino)
            && disk.ino == ino.0
            && u32::from(disk.height) <= geo.max_height()
        {
            return Ok(disk);
        }
    }
    Err(Error::corrupt(
        Damage::InternalInodeLost,
        "the superblock",
        format!("the inode at {at:#x} is damaged in both pages"),
    ))
}

impl SuperState {
    pub(crate) fn new(dynamic: SuperDynamic, fixed: SuperStatic) -> SuperState {
        SuperState {
            dynamic: Mutex::new(dynamic),
            fixed: Mutex::new(fixed),
        }
    }

    /// Changes the static part durably.
    ///
    /// Stores and fences the copy, then the first page, so that one page is valid at each
    /// moment. A crash leaves the old contents or the new, and the next mount makes both
    /// pages equal.
    pub(crate) fn change_fixed(
        &self,
        medium: Medium<'_>,
        change: impl FnOnce(&mut SuperStatic),
    ) -> Result<()> {
        let Medium { region, geo } = medium;
        let failed_fences = region.backend().failed_fences();
        let mut fixed = self.fixed.lock();
        let mut new = *fixed;
        change(&mut new);
        new.seal();
        let w = region.window();
        for page in geo.pages().into_iter().rev() {
            let pending = w.store(page.0, new.as_bytes())?;
            let _ = w.fence(pending);
            // Stores to a page that faulted are lost. Other faults do not matter here.
            if region.backend().failed_fences() != failed_fences
                || region.is_faulted(page.0, SuperStatic::SIZE as u64)
            {
                // The other page is unchanged, or has the new contents. Either way the old
                // ones hold in memory, and the change may be tried again.
                return Err(Error::io("the superblock could not be written"));
            }
        }
        *fixed = new;
        Ok(())
    }

    /// Marks the file system as mounted, with a new checkpoint. Returns the number of read-write
    /// mounts, this one included.
    pub(crate) fn mounted(
        &self,
        medium: Medium<'_>,
        checkpoint: u64,
        now: i64,
        count: bool,
    ) -> Result<u64> {
        let mut dynamic = self.dynamic.lock();
        dynamic.state = STATE_ACTIVE;
        dynamic.checkpoint = checkpoint;
        dynamic.last_mount_sec = now;
        dynamic.mounts = dynamic.mounts.wrapping_add(u64::from(count));
        store(medium, &dynamic)?;
        Ok(dynamic.mounts)
    }

    /// Returns the first and the latest error since mkfs or fsck.
    pub(crate) fn errors(&self) -> (ErrorMark, ErrorMark) {
        let dynamic = self.dynamic.lock();
        (dynamic.first_error, dynamic.last_error)
    }

    /// Marks the file system as unmounted; every record is dead.
    pub(crate) fn unmounted(&self, medium: Medium<'_>, checkpoint: u64) -> Result<()> {
        let mut dynamic = self.dynamic.lock();
        dynamic.state = STATE_CLEAN;
        dynamic.checkpoint = checkpoint;
        store(medium, &dynamic)
    }
}

impl Engine {
    /// Notes durably, before the first record that copies data, that there may be some. An older
    /// version does not mount the region meanwhile.
    #[inline]
    pub(crate) fn use_copies(&self) -> Result<()> {
        match self.uses_copies.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.set_atomic_data(true),
        }
    }

    /// Notes in both superblock pages whether records may copy data.
    #[cold]
    pub(crate) fn set_atomic_data(&self, in_use: bool) -> Result<()> {
        self.set_feature(|fixed| &mut fixed.incompat, ATOMIC_DATA, in_use)?;
        self.uses_copies.store(in_use, Ordering::Release);
        Ok(())
    }

    /// Notes durably, before the first mark of a range of a file, that there may be some. An older
    /// version mounts the region read-only meanwhile: it would take a marked file for marked as a
    /// whole, and let somebody store beside the range.
    #[inline]
    pub(crate) fn use_ranged_marks(&self) -> Result<()> {
        match self.uses_ranged_marks.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.set_ranged_marks(true),
        }
    }

    /// Notes in both superblock pages whether there may be marks of ranges.
    #[cold]
    pub(crate) fn set_ranged_marks(&self, in_use: bool) -> Result<()> {
        self.set_feature(|fixed| &mut fixed.ro_compat, RANGED_MARKS, in_use)?;
        self.uses_ranged_marks.store(in_use, Ordering::Release);
        Ok(())
    }

    fn set_feature(
        &self,
        mask: impl Fn(&mut SuperStatic) -> &mut u64,
        feature: u64,
        in_use: bool,
    ) -> Result<()> {
        let mut now = *self.super_state.fixed.lock();
        if (*mask(&mut now) & feature != 0) == in_use {
            return Ok(());
        }
        self.super_state.change_fixed(self.vol.medium(), |fixed| {
            let mask = mask(fixed);
            *mask &= !feature;
            if in_use {
                *mask |= feature;
            }
        })
    }

    /// Records an error in the superblock.
    pub(crate) fn note_error(&self, e: &Error) {
        if self.quiet.load(Ordering::Relaxed) {
            return;
        }
        let mut dynamic = self.super_state.dynamic.lock();
        let mark = ErrorMark {
            time_sec: self.now().sec.max(1),
            ino: e.ino().map_or(0, |ino| ino.0),
            errno: e.errno() as u32,
            count: dynamic.last_error.count.saturating_add(1),
            ..ErrorMark::new_zeroed()
        };
        if dynamic.first_error.time_sec == 0 {
            dynamic.first_error = mark;
        }
        dynamic.last_error = mark;
        if let Err(e) = store(self.vol.medium(), &dynamic) {
            tracing::error!(error = %e, "could not record an error in the superblock");
        }
    }
}
