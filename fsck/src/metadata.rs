//! The metadata of a file system without its file data, for reports of defects.
//!
//! Invariants:
//! - A check of the image finds what it finds on the original: the image has each block that a
//!   check reads, and damage stays. Sums of file data become those of zeros where they fit, and
//!   do not fit where they did not.
//! - No block that is file data to anyone is in it, whatever else names it. So of a block with
//!   two owners the check may find more in the image.
//! - Nothing is stored: changes are an overlay in memory.
//!
//! What is scrambled, and what that hides, is in `scramble.rs`; `sums.rs` makes the sums.

mod scramble;
mod sums;

use std::collections::HashSet;
use std::ops::Range;

use super::owners::{DataOf, Owned, Owner};
use super::repair::replay::replay;
use super::report::Report;
use super::view::View;
use super::{CheckOptions, Checker, superblock};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::{parse, records};
use pramfs_medium::media::features::{METADATA_IMAGE, SCRAMBLED};
use pramfs_medium::media::record::{ENTRIES_AT, EntryKind, SlotState};
use pramfs_medium::media::{Geometry, SuperStatic, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::types::{BlockRun, RegionOffset};
use sums::Sums;
use zerocopy::IntoBytes;

/// Bytes to store at an offset.
type Edit = (RegionOffset, Vec<u8>);

/// The metadata of a region.
pub struct Metadata<'r> {
    view: View<'r>,
    geo: Geometry,
    fixed: SuperStatic,
    /// Blocks of the image but those with fixed places, in ascending order.
    runs: Vec<Range<u64>>,
    left_out: u64,
    complete: bool,
    sums: Sums,
}

impl std::fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata")
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl<'r> Metadata<'r> {
    /// Walks an unmounted region, which may be damaged. `scramble`: names, targets of symbolic
    /// links, and names and values of attributes are replaced by others of the same length.
    ///
    /// # Errors
    /// The region holds no file system that this version knows, or cannot be read.
    ///
    /// ```
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::{HeapBackend, Region};
    /// use pramfs_fsck::Metadata;
    ///
    /// let region = Region::new("example", HeapBackend::boxed(1 << 20));
    /// format(&region, &FormatOptions::default())?;
    /// let image = Metadata::of(&region, false)?;
    /// assert!(image.blocks() < 100);
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    pub fn of(region: &'r Region, scramble: bool) -> Result<Metadata<'r>> {
        region.check_owner()?;
        let mut report = Report::default();
        let Some(geo) = superblock::open(region.into(), &CheckOptions::default(), &mut report)
        else {
            let why = report.issues().next().map(ToString::to_string);
            return Err(Error::NotMountable(why.unwrap_or_default()));
        };
        let fixed = probe_superblock(region)?.fixed;
        let crashed = View::new(region);
        let mut replayed = View::new(region);
        let journal = replay(&mut replayed, &geo)?;
        // As a crash has left it, if a replay needs nothing that the image lacks.
        let continues = journal.live.iter().any(|record| needs_data(record));
        let is_raw = journal.live.is_empty() || !(scramble || continues);
        let mut walk = Walk::default();
        let mut sums = Sums::default();
        for (is_replayed, view) in [(false, &crashed), (true, &replayed)] {
            if is_replayed && journal.live.is_empty() {
                continue;
            }
            let options = CheckOptions::default();
            let mut checker = Checker::new(view, geo.clone(), &options, Report::default());
            let owned = checker.run_for_owners();
            // What only the crash has left, a replay has freed, and no scrambling knows.
            if is_raw || is_replayed {
                walk.add(&owned);
            }
            walk.add_data(&owned);
            if is_replayed != is_raw {
                walk.complete = checker.report.complete && !checker.hidden_blocks;
                if geo.data_sums {
                    sums = Sums::of(&mut checker, &owned)?;
                }
                if scramble {
                    walk.edits.extend(checker.scramble(&owned)?);
                }
            }
        }
        let mut view = if is_raw { crashed } else { replayed };
        for (at, bytes) in walk.edits.drain(..) {
            view.store(at, &bytes)?;
        }
        if scramble {
            blank_slots(&mut view, &geo)?;
        }
        let fixed = mark(&mut view, &geo, fixed, scramble)?;
        let (runs, left_out) = walk.runs(&geo);
        Ok(Metadata {
            view,
            fixed,
            runs,
            left_out,
            complete: walk.complete,
            sums,
            geo,
        })
    }

    /// Returns the static part of the superblock.
    pub fn fixed(&self) -> &SuperStatic {
        &self.fixed
    }

    /// Returns the number of blocks in the image.
    pub fn blocks(&self) -> u64 {
        self.runs().map(|run| run.end - run.start).sum()
    }

    /// Returns the blocks of the image: first those with fixed places, then the others, each in
    /// ascending order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.geo
            .fixed_runs()
            .into_iter()
            .chain(self.runs.iter().cloned())
    }

    /// Returns the number of blocks that are metadata to one owner and file data to another.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether the walk has reached everything: nothing is hidden behind damage.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the number of pages that the image changes in memory.
    #[cfg(test)]
    pub(super) fn changed_pages(&self) -> usize {
        self.view.changed_pages()
    }

    /// Reads whole blocks of the image. Bytes that have failed read as 0xff.
    ///
    /// # Errors
    /// They lie outside of the region.
    pub fn read(&self, first: u64, into: &mut [u8]) -> Result<()> {
        let at = RegionOffset(self.geo.bytes(first));
        self.view.read(at, into)?;
        self.sums.put(&self.view, &self.geo, first, into)
    }
}

/// Whether a record has a part in blocks, copies from some, or sums them: that is file data.
fn needs_data(record: &[u8]) -> bool {
    let mut entries = record.get(ENTRIES_AT..).into_iter().flat_map(parse);
    entries.any(|e| matches!(e.kind, EntryKind::Copy | EntryKind::More | EntryKind::Sum))
}

/// What walks have found.
#[derive(Default)]
struct Walk {
    /// Blocks that are metadata to some owner.
    found: HashSet<u64>,
    /// Runs of blocks that are file data to some owner.
    data: Vec<BlockRun>,
    edits: Vec<Edit>,
    complete: bool,
}

impl Walk {
    fn add(&mut self, owned: &[Owned]) {
        for of in owned {
            let is_data = matches!(
                of.owner,
                Owner::Data {
                    of: DataOf::File,
                    ..
                }
            );
            let is_target =
                matches!(of.owner, Owner::Data { of: DataOf::Target, first, .. } if first.0 > 8);
            if is_data || is_target || of.owner == Owner::BadBlock {
                continue;
            }
            self.found.extend(of.blocks.blocks().map(|block| block.0));
        }
    }

    fn add_data(&mut self, owned: &[Owned]) {
        let is_data = |of: &&Owned| {
            matches!(
                of.owner,
                Owner::Data {
                    of: DataOf::File,
                    ..
                } | Owner::BadBlock
            )
        };
        self.data
            .extend(owned.iter().filter(is_data).map(|of| of.blocks));
    }

    /// Returns the blocks of the image, and the number of those left out.
    fn runs(&self, geo: &Geometry) -> (Vec<Range<u64>>, u64) {
        let fixed = geo.fixed_runs();
        let mut found = self.found.clone();
        found.retain(|block| !fixed.iter().any(|run| run.contains(block)));
        let all = found.len();
        for run in &self.data {
            for block in run.blocks() {
                found.remove(&block.0);
            }
        }
        let left_out = (all - found.len()) as u64;
        let mut blocks: Vec<u64> = found.into_iter().collect();
        blocks.sort_unstable();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        (runs, left_out)
    }
}

/// Empties the record slots, in which names may be. A slot that cannot be read stays one.
fn blank_slots(view: &mut View<'_>, geo: &Geometry) -> Result<()> {
    for lane in 0..geo.lanes {
        for slot in 0..2 {
            let (state, _) = records::read_slot(view, geo, lane, slot)?;
            let mut blank = vec![0; geo.slot_size as usize];
            if state == SlotState::Bad {
                blank[..8].fill(0xff);
            }
            view.store(geo.slot_offset(lane, slot), &blank)?;
        }
    }
    Ok(())
}

/// Says in the valid superblock pages what this is. Returns the static part.
fn mark(
    view: &mut View<'_>,
    geo: &Geometry,
    mut fixed: SuperStatic,
    scramble: bool,
) -> Result<SuperStatic> {
    let changed = |fixed: &mut SuperStatic| {
        fixed.ro_compat |= METADATA_IMAGE;
        if scramble {
            fixed.ro_compat |= SCRAMBLED;
            // Without the key, no one can try names against their hashes.
            fixed.hash_seed = [0; 16];
            for byte in fixed.label.iter_mut().filter(|byte| **byte != 0) {
                *byte = b'x';
            }
        }
    };
    changed(&mut fixed);
    fixed.seal();
    for page in geo.pages() {
        let mut own: SuperStatic = view.read_pod(page)?;
        let is_valid = own.crc == own.expected_crc();
        let crc = own.crc;
        changed(&mut own);
        match is_valid {
            true => own.seal(),
            // What is damaged stays damaged: no sum fits.
            false => own.crc = if own.expected_crc() == crc { !crc } else { crc },
        }
        view.store(page, own.as_bytes())?;
    }
    Ok(fixed)
}
