//! Recovery: from the bytes of a region to a volume whose journal records are all dead.
//!
//! Crash safety needs this order ([`recover`]):
//!
//! 1. Finish an interrupted change of the label (store). The fence of step 5 precedes every
//!    store to the other superblock page.
//! 2. Read the checkpoint.
//! 3. Replay the live records (stores, fences).
//! 4. Read the internal inodes, which the replay may have changed.
//! 5. Renew the sums of the bitmap groups that live records touch, and fence all stores.
//! 6. Store and fence the new checkpoint, which makes every record dead.
//!
//! Invariant: until step 6 is durable, the next recovery replays the same records, so a
//! crash at any point loses nothing. A fault of the medium before or during step 6 fails
//! the mount.
//!
//! The replay itself is in `pramfs_medium::journal::recovery`. Orphans and unfinished
//! truncations are left to the mount ([`Fs::open`](crate::fs::Fs::open)).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fs::Engine;
use crate::fs::engine::report::RecoveryReport;
use crate::fs::engine::superblock::{SuperState, finish_change_of_fixed, internal};
use crate::fs::inode::table::InodeTable;
use crate::fs::options::MountOptions;
use pramfs_medium::alloc::BitmapSet;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::journal::recovery::{self, Replay};
use pramfs_medium::journal::{Lines, LostData, Outcomes};
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::checksum::{seal, unseal};
use pramfs_medium::media::features::ATOMIC_DATA;
use pramfs_medium::media::retired::Session;
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, DYNAMIC_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{Medium, SuperDynamic, SuperblockInfo};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::pmem::{PmemError, Region, Unfenced};
use pramfs_medium::types::Ino;
use pramfs_medium::volume::{GroupRoots, Volume};

/// Recovers the file system of a region, and creates its engine. Also returns the damage
/// that the recovery found. The order of the steps is that of the module.
///
/// # Errors
/// [`Error::Corrupt`]; [`Error::Io`] if the medium fails.
pub(super) fn recover(
    region: Region,
    info: SuperblockInfo,
    options: MountOptions,
    read_only: bool,
) -> Result<(Engine, Vec<(Damage, String)>)> {
    let geo = info.geometry();
    let medium = Medium {
        region: &region,
        geo: &geo,
    };
    let faults = region.faults();
    let relabelled = !read_only && finish_change_of_fixed(&region, info.from_copy, &info.fixed)?;
    let old = checkpoint(medium, &info)?;
    // Only in mutation tests.
    let stale = has_bug!(TruncateBeforeReplay).then(|| stale_free_blocks(medium));
    let (mut replay, pending) = recovery::replay(
        medium,
        old,
        info.fixed.incompat & ATOMIC_DATA != 0,
        info.is_clean(),
    )?;

    // After the replay, which may change the internal inodes.
    let inode = |at, ino| internal(medium, at, ino);
    let table = inode(INODE_TABLE_OFFSET, Ino::INODE_TABLE)?;
    let roots = GroupRoots {
        inodes: MapRoot::of(&inode(INODE_GROUPS_OFFSET, Ino::INODE_GROUPS)?),
        blocks: MapRoot::of(&inode(BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?),
    };
    // While the records can still be seen. A crash from here on finds the notes settled.
    if let Some(survivor) = &options.survivor {
        survivor.settle(&|record| replay.has(record));
    }
    let newest = replay.newest.max(old);
    let mut vol = Volume::new(region, geo, newest, roots, options.rules());
    vol.journal.outcomes = (options.survivor.clone()).map(|kept| kept as Arc<dyn Outcomes>);
    vol.discard = options.discard;
    if let Some(stale) = stale {
        vol.blocks = stale?;
    }

    let pending = pending.join(renew_sums(&vol, &mut replay)?);
    let _ = vol.region.write_back().fence(pending);

    // Stores to a faulted page are lost. Its records stay live for a recovery
    // that can access the page again. Without records, only reads have met failed pages, and
    // those are errors of their own. Nothing is stored to pages of data that were found to have
    // failed before.
    if replay.records > 0 {
        fail_if_faulted(&vol.region, faults + replay.data_faults)?;
    }
    let faults = vol.region.faults();
    let super_state = SuperState::new(info.dynamic, info.fixed);
    if (!read_only || replay.records > 0) && !replay.unreadable {
        // One store makes every record dead. Until it is durable, the next
        // recovery replays the same records.
        let word = seal(vol.geo.seed, newest);
        let now = options.clock.now().sec;
        let mounts = super_state.mounted(vol.medium(), word, now, !read_only)?;
        if !read_only {
            let checkpoint = newest;
            let session = Session { checkpoint, mounts };
            vol.journal.begin_copies(vol.medium(), session)?;
        }
    }
    fail_if_faulted(&vol.region, faults)?;
    let report = RecoveryReport {
        was_clean: info.is_clean(),
        records: replay.records,
        torn: replay.torn,
        used_copy: info.from_copy && !relabelled,
        copy_damaged: info.copy_damaged,
        ..RecoveryReport::default()
    };
    let table = InodeTable::new(table);
    let engine = Engine::new(vol, table, super_state, info, report, options, read_only);
    if replay.unreadable {
        // No checkpoint was stored, so old records would stay live beside new ones: nothing
        // changes, whatever `errors=` says, until fsck has written the pages anew.
        engine.damaged.store(true, Ordering::Relaxed);
        engine.read_only.store(true, Ordering::Relaxed);
    }
    engine.give_up_lost(&replay, read_only);
    Ok((engine, replay.damage))
}

impl Engine {
    /// Tells what the replay could not store, because its page has failed, and takes these blocks
    /// out of use. A page that is sound again later shows its old contents.
    fn give_up_lost(&self, replay: &Replay, read_only: bool) {
        let region = &self.vol.region;
        for LostData { lsn, ino, range } in &replay.lost {
            let owner = match ino {
                Some(ino) => ino.to_string(),
                None => "the file that owns them".into(),
            };
            let (name, len) = (region.info().name, range.end - range.start);
            tracing::warn!(
                "{name}: {len} bytes of journal record {lsn} are lost: the medium has failed at their place, offset {:#x}; {owner} gives EIO there while the page fails; write the range again",
                range.start
            );
            // Also the next time that the mount becomes writable.
            region.mark_bad(range.clone());
        }
        let Some(first) = replay.lost.first() else {
            return;
        };
        self.note_error(&Error::Pmem(PmemError::Faulted {
            offset: first.range.start,
            len: first.range.end - first.range.start,
        }));
        let ranges: Vec<_> = replay.lost.iter().map(|lost| lost.range.clone()).collect();
        let writable = !read_only && replay.damage.is_empty() && !replay.unreadable;
        if writable {
            self.take_out_known(&ranges, true);
        }
    }
}

/// Returns the checkpoint: the newer of both pages' words that pass their check.
fn checkpoint(medium: Medium<'_>, info: &SuperblockInfo) -> Result<u64> {
    let copy = medium.read_pod::<SuperDynamic>(medium.geo.copy_offset + DYNAMIC_OFFSET);
    let words = [
        Some(info.dynamic.checkpoint),
        copy.ok().map(|c| c.checkpoint),
    ];
    words
        .iter()
        .flatten()
        .filter_map(|w| unseal(medium.geo.seed, *w))
        .max()
        .ok_or_else(|| {
            Error::corrupt(
                Damage::CheckpointDamaged,
                "the superblock",
                "the checkpoint is damaged in both pages",
            )
        })
}

/// Renews the sums of the bitmap groups that live records touch, and flushes them; the
/// caller fences. Notes a damaged group in the replay's damage.
fn renew_sums(vol: &Volume, replay: &mut Replay) -> Result<Unfenced> {
    let mut lines = Lines::default();
    for (&(kind, group), touched) in &replay.groups {
        if let Some(kind) = BitmapKind::from_code(kind) {
            match vol
                .bitmap(kind)
                .renew_sum(vol.medium(), group, touched, &mut lines)
            {
                // Only this group is unusable.
                Err(Error::Corrupt {
                    kind, object, what, ..
                }) => {
                    replay.damage.push((kind, format!("{object}: {what}")));
                }
                other => other?,
            }
        }
    }
    lines.flush(&vol.region)
}

/// Fails the mount if the medium had a fault since `faults` were counted.
pub(super) fn fail_if_faulted(region: &Region, faults: u64) -> Result<()> {
    if region.faults() == faults {
        return Ok(());
    }
    Err(Error::io(format!(
        "{} failed while it was mounted",
        region.info().name
    )))
}

/// Reads the block bitmap before the journal is replayed. Only the mutant
/// `TruncateBeforeReplay` uses this stale state.
fn stale_free_blocks(medium: Medium<'_>) -> Result<BitmapSet> {
    let geo = medium.geo;
    let groups = internal(medium, BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?;
    let set = BitmapSet::new(BitmapKind::Blocks, geo.blocks(), geo, MapRoot::of(&groups));
    for group in 0..set.groups() {
        set.is_made(medium, group)?;
    }
    Ok(set)
}
