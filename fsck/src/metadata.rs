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
//! What is scrambled, and what that hides, is in `scramble.rs`.

mod scramble;

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
use pramfs_medium::media::sums::{SUM_BLOCKS, SumState, check_word, data_crc, sum_word};
use pramfs_medium::media::{DiskInode, Geometry, SuperStatic, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::types::{BlockRun, Bno, Ino, RegionOffset};
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
                    walk.edits.extend(checker.no_sums()?);
                    walk.edits.extend(checker.sums_of_zeros(&owned)?);
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

    /// Reads blocks of the image. Bytes that have failed read as 0xff.
    ///
    /// # Errors
    /// They lie outside of the region.
    pub fn read(&self, first: u64, into: &mut [u8]) -> Result<()> {
        let at = RegionOffset(self.geo.bytes(first));
        Ok(self.view.read(at, into)?)
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

impl Checker<'_> {
    /// Returns zeros for all sums: those of files are stored over them, and those of blocks that were
    /// freed would tell what was in them.
    fn no_sums(&self) -> Result<Vec<Edit>> {
        let geo = &self.geo;
        let mut edits = Vec::new();
        let mut first = Bno(0);
        while first.0 < geo.blocks() {
            if let Some(at) = self.sum_at(first) {
                edits.push((at, vec![0; geo.bytes(SUM_BLOCKS) as usize]));
            }
            first = first.after(geo.bits_per_group());
        }
        Ok(edits)
    }

    /// Returns the words for the sums of files whose data have become zeros: right where they
    /// were right, wrong where they were wrong. A damaged word stays.
    fn sums_of_zeros(&mut self, owned: &[Owned]) -> Result<Vec<Edit>> {
        let mut edits = Vec::new();
        let size = self.geo.block_size;
        let mut bytes = vec![0; size as usize];
        let mut known: Option<(Ino, Option<DiskInode>)> = None;
        for of in owned {
            let Owner::Data {
                ino,
                of: DataOf::File,
                first,
                unwritten: false,
            } = of.owner
            else {
                continue;
            };
            let inode = match known {
                Some((at, inode)) if at == ino => inode,
                _ => {
                    let inode = self
                        .home(ino)
                        .map(|home| self.read_inode(home))
                        .transpose()?;
                    known = Some((ino, inode));
                    inode
                }
            };
            let Some(inode) = inode.filter(|d| self.is_summed(d)) else {
                continue;
            };
            for (i, block) in (0..).zip(of.blocks.blocks()) {
                let offset = (first.0 + i).saturating_mul(size);
                let len = inode.size.saturating_sub(offset).min(size) as usize;
                let Some(at) = self.sum_at(block).filter(|_| len > 0) else {
                    continue;
                };
                self.region
                    .read(self.geo.offset(block), &mut bytes[..len])?;
                let word = self.region.load_u64(at)?;
                let zeros = data_crc(&vec![0; len]);
                let sum = match check_word(self.geo.seed, block, word, data_crc(&bytes[..len])) {
                    SumState::Right => zeros,
                    SumState::Wrong => !zeros,
                    SumState::Damaged => {
                        edits.push((at, word.to_le_bytes().to_vec()));
                        continue;
                    }
                };
                let word = sum_word(self.geo.seed, block, sum);
                edits.push((at, word.to_le_bytes().to_vec()));
            }
        }
        Ok(edits)
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
