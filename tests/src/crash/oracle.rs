//! What must hold of an image: the real recovery mounts it, the check finds
//! nothing, and it can be used.
//!
//! An image that was looked at before is not mounted again; its state is kept
//! by its hash. And many images recover to the same medium: what that shows,
//! the check and the use are done once for each medium that an unmount leaves.
//! Two are the same where all that is in use is: blocks that the bitmap calls
//! free, the journal (whose records are all dead) and the count of mounts do
//! not matter, and are left out of the hash. So are the words that holders of leases watch.
//!
//! Processes may hold leases while an image is recovered ([`Oracle::hold`]). Then no block of
//! theirs may leave its map until they end.
//!
//! Left to others: which state is right ([`super::state`], the explorer).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pramfs::{
    AtimePolicy, Clock, ErrorPolicy, MountOptions,
    inode::{Fs, Time},
};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::features::PARKED_LEASES;
use pramfs_medium::media::retired::{RETIRED_COPIES_OFFSET, RetiredCopy};
use pramfs_medium::media::superblock::{BLOCK_GROUPS_OFFSET, DYNAMIC_OFFSET};
use pramfs_medium::media::{DiskInode, Geometry, Medium, Ptr, SuperDynamic, probe_superblock};
use pramfs_medium::pmem::{Event, EventKind, LINE};
use pramfs_medium::types::RegionOffset;
use zerocopy::FromBytes;

use super::images::{Images, Limits, line_hash};
use super::known::{Known, StateId};
use super::leased::{self, Held, Kept};
use super::machine::{Machine, Torn};
use super::scratch::{PAGE, Scratch};
use super::state::State;
use super::usage::{check_marks, use_it};
use crate::random::Random;
use crate::region;

/// A clock that stands still until it is set.
#[derive(Debug)]
pub struct Still(AtomicI64);

impl Still {
    /// A clock that shows a time.
    pub fn at(sec: i64) -> Arc<Still> {
        Arc::new(Still(AtomicI64::new(sec)))
    }

    /// Sets it.
    pub fn set(&self, sec: i64) {
        self.0.store(sec, Ordering::Relaxed);
    }
}

impl Clock for Still {
    fn now(&self) -> Time {
        Time {
            sec: self.0.load(Ordering::Relaxed),
            nsec: 7,
        }
    }
}

/// How the explorer mounts.
pub fn options(clock: &Arc<Still>) -> MountOptions {
    MountOptions {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        errors: ErrorPolicy::Continue,
        atime: AtimePolicy::NoAtime,
        cache_bytes: 1 << 20,
        ..region::quiet()
    }
}

/// What became of an image.
#[derive(Debug)]
pub struct Verdict {
    /// What it shows.
    pub state: StateId,
    /// It was not known.
    pub new: bool,
    /// Its recovery, if it stored something and is to be crashed.
    pub recovery: Option<Recovered>,
}

/// A recovery that stored something.
#[derive(Debug)]
pub struct Recovered {
    /// What it did.
    pub events: Vec<Event>,
    /// None before has done the same on the way to the same medium.
    pub new: bool,
}

/// Judges images, one at a time.
#[derive(Debug)]
pub struct Oracle {
    known: Arc<Known>,
    scratch: Scratch,
    /// What is certain at the moment of the crash.
    base: Vec<u8>,
    base_hash: u64,
    /// Hashes of its units of 512 bytes.
    units: Vec<u64>,
    clock: Arc<Still>,
    geo: Geometry,
    /// The slots that processes hold.
    held: Held,
    /// Makes the hashes of what they hold different.
    held_key: u64,
    /// Whether recoveries are recorded: not those within a recovery, unless
    /// that is asked for.
    pub record: bool,
    /// Whether those are handed over, too, that do what another has done.
    pub every: bool,
}

const UNIT: usize = 512;

/// The time of all that happens after a crash.
pub(super) const LATER: i64 = 1_900_000_000;

fn unit_hash(unit: usize, bytes: &[u8]) -> u64 {
    let first = unit * UNIT / LINE as usize;
    let lines = bytes.chunks_exact(LINE as usize).enumerate();
    lines.fold(0u64, |sum, (i, line)| {
        sum.wrapping_add(line_hash(first + i, line))
    })
}

/// The lines of the copies of the lanes' `retired` words.
fn copies(geo: &Geometry) -> Vec<usize> {
    let places = (0..geo.lanes).filter_map(|lane| RetiredCopy::place(geo, lane));
    let mut lines: Vec<usize> = places
        .map(|at| at.0 as usize & !(LINE as usize - 1))
        .collect();
    lines.dedup();
    lines
}

impl Oracle {
    /// One for images like this one.
    ///
    /// # Errors
    /// Where there is no file system.
    pub fn new(known: &Arc<Known>, image: &[u8]) -> pramfs::Result<Oracle> {
        let scratch = Scratch::new(image.len());
        scratch.load(image);
        let geo = probe_superblock(&scratch.region())?.geometry();
        let units = image.chunks_exact(UNIT).enumerate();
        let units: Vec<u64> = units.map(|(i, u)| unit_hash(i, u)).collect();
        Ok(Oracle {
            known: Arc::clone(known),
            scratch,
            base: image.to_vec(),
            base_hash: units.iter().fold(0, |a, b| a.wrapping_add(*b)),
            units,
            clock: Still::at(LATER),
            geo,
            held: Held::new(),
            held_key: 0,
            record: true,
            every: false,
        })
    }

    /// What is certain from now on. Two moments of a workload differ in few pages: only those
    /// are copied and hashed.
    ///
    /// # Panics
    /// Where the image is not as long as the last one.
    pub fn set_base(&mut self, image: &[u8]) {
        assert_eq!(image.len(), self.base.len(), "images of one region");
        self.scratch.restore(&self.base);
        let pages = image.chunks_exact(PAGE).zip(self.base.chunks_exact(PAGE));
        let changed: Vec<usize> = pages
            .enumerate()
            .filter(|(_, (new, old))| new != old)
            .map(|(page, _)| page)
            .collect();
        for page in changed {
            let at = page * PAGE;
            let new = &image[at..at + PAGE];
            self.base[at..at + PAGE].copy_from_slice(new);
            self.scratch.copy_in(at, new);
            for (i, bytes) in new.chunks_exact(UNIT).enumerate() {
                let unit = at / UNIT + i;
                let hash = unit_hash(unit, bytes);
                let old = std::mem::replace(&mut self.units[unit], hash);
                self.base_hash = self.base_hash.wrapping_sub(old).wrapping_add(hash);
            }
        }
    }

    /// Lets processes hold these slots of the lease table from now on, through every mount.
    pub fn hold(&mut self, held: &Held) {
        let key =
            |key: u64, slot: &u32| (key ^ u64::from(*slot + 1)).wrapping_mul(0x0100_0000_01b3);
        self.held_key = held.iter().fold(0, key).rotate_left(32);
        self.held.clone_from(held);
    }

    /// What is known.
    pub fn known(&self) -> &Arc<Known> {
        &self.known
    }

    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// What a power failure can leave now, beside what is certain. The copies of the lanes'
    /// `retired` words stay as is certain: they decide nothing where no page is damaged, and
    /// would double the images of each operation. `bad_retired.rs` crashes their stores.
    pub fn images(&self, machine: &Machine, torn: Torn) -> Images {
        Images::new(machine, self.base_hash, torn, &copies(&self.geo))
    }

    /// Judges one of the images of the moment.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn judge(&mut self, images: &Images, choice: &[u16]) -> Result<Verdict, String> {
        let hash = images.hash(choice) ^ self.held_key;
        if let Some(state) = self.known.images.get(hash) {
            return Ok(Verdict {
                state,
                new: false,
                recovery: None,
            });
        }
        self.scratch.restore(&self.base);
        for (at, value) in images.patch(choice) {
            self.scratch.put(at, value);
        }
        let (state, recovery) = self.run()?;
        self.known.images.put(hash, state);
        Ok(Verdict {
            state,
            new: true,
            recovery,
        })
    }

    /// Fails the power at each fence of a record and at its end, and hands over
    /// what each image shows, with the number of events that had happened.
    /// Returns the number of images.
    pub fn everywhere(
        &mut self,
        mut machine: Machine,
        events: &[Event],
        limits: &Limits,
        look: &mut dyn FnMut(usize, Result<&State, String>),
    ) -> usize {
        let mut count = 0;
        for (i, e) in events.iter().map(Some).chain([None]).enumerate() {
            if e.is_none_or(|e| e.kind == EventKind::Fence) {
                self.set_base(machine.durable());
                let images = self.images(&machine, limits.torn);
                images.each(limits, &mut Random::new(i as u64), &mut |choice| {
                    let verdict = self.judge(&images, choice);
                    look(
                        i,
                        verdict
                            .map(|v| self.known.state(v.state))
                            .as_deref()
                            .map_err(Clone::clone),
                    );
                    count += 1;
                    true
                });
            }
            if let Some(e) = e {
                machine.run(e);
            }
        }
        count
    }

    /// What an image shows from which nothing is lost.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn look(&mut self, image: &[u8]) -> Result<Arc<State>, String> {
        self.set_base(image);
        let images = self.images(&Machine::new(image.to_vec()), Torn::Edges);
        let state = self.judge(&images, &[])?.state;
        Ok(self.known.state(state))
    }

    /// Mounts what is in memory.
    fn run(&mut self) -> Result<(StateId, Option<Recovered>), String> {
        self.clock.set(LATER);
        let words = |what: &'static str| move |e: pramfs::Error| format!("{what}: {e}");
        self.scratch.record(self.record);
        let leases = self.may_have_leases()?;
        let mounted = self.mount();
        let events = self.scratch.record(false);
        let fs = mounted.map_err(words("the mount after the crash fails"))?;
        let report = fs.recovery();
        let replays = report.records > 0 || report.torn > 0;
        let busy = replays || report.orphans > 0 || leases;
        if let Some(damage) = report.damage.first() {
            return Err(format!("recovery finds damage: {damage}"));
        }
        fs.close_now()
            .map_err(words("the unmount after recovery fails"))?;
        let counted = self.counted()?;
        let hash = self.medium_hash(&counted)? ^ self.held_key;
        let state = match self.known.media.get(hash) {
            Some(state) => state,
            None => {
                let found = self.examine()?;
                let state = self.known.number(found);
                self.known.checked.fetch_add(1, Ordering::Relaxed);
                self.known.media.put(hash, state);
                state
            }
        };
        // The end of leases does the same whatever bytes a write has left in the files.
        let medium = if leases && !replays { 0 } else { hash };
        let recovery = (self.record && busy).then(|| Recovered {
            new: self
                .known
                .is_new_recovery(self.trace(medium, &events, &counted)),
            events,
        });
        let recovery = recovery.filter(|r| r.new || self.every);
        Ok((state, recovery))
    }

    /// Hash of a recovery: what it stored where, in which order, and the medium
    /// that it came to. The dynamic words and the [counted](Self::counted) lines differ after
    /// each crash, and decide nothing where no page is damaged.
    fn trace(&self, medium: u64, events: &[Event], counted: &[usize]) -> u64 {
        let dynamic = [0, self.geo.copy_offset.0].map(|page| page + DYNAMIC_OFFSET);
        events.iter().fold(medium, |h, e| {
            let h = h.rotate_left(5) ^ e.offset ^ (e.kind as u64) << 48;
            let h = h.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if dynamic
                .iter()
                .any(|d| (*d..*d + SuperDynamic::SIZE as u64).contains(&e.offset))
                || counted.contains(&(e.offset as usize & !(LINE as usize - 1)))
            {
                return h;
            }
            e.bytes.chunks(8).fold(h, |h, w| {
                let mut word = [0; 8];
                word[..w.len()].copy_from_slice(w);
                let h = (h ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                h.rotate_left(23)
            })
        })
    }

    fn mount(&self) -> pramfs::Result<Fs> {
        let region = leased::hold(self.scratch.region(), &self.held);
        Fs::open(region, options(&self.clock))
    }

    /// Whether the superblock says so.
    fn may_have_leases(&self) -> Result<bool, String> {
        let info = probe_superblock(&self.scratch.region()).map_err(|e| e.to_string())?;
        Ok(info.fixed.ro_compat & PARKED_LEASES != 0)
    }

    /// What processes map. Only the slots that they hold are in use.
    fn kept(&self, when: &str) -> Result<Kept, String> {
        let kept = leased::kept(&self.scratch.region(), &self.geo);
        let kept = kept.map_err(|e| format!("the leases {when}: {e}"))?;
        if !kept.keys().eq(&self.held) {
            let (used, held) = (kept.keys(), &self.held);
            return Err(format!("slots in use {when}: {used:?}; held are {held:?}"));
        }
        if self.may_have_leases()? == kept.is_empty() {
            return Err(format!(
                "the feature {when} is wrong for slots {:?}",
                kept.keys()
            ));
        }
        Ok(kept)
    }

    /// Check, look and use, of a medium that was unmounted.
    fn examine(&mut self) -> Result<State, String> {
        let words = |what: &'static str| move |e: pramfs::Error| format!("{what}: {e}");
        self.check("after recovery and unmount")?;
        let kept = self.kept("after recovery and unmount")?;
        let fs = self.mount().map_err(words("the second mount fails"))?;
        let report = fs.recovery();
        let orphans = report.orphans > 0 && kept.is_empty();
        if report.records > 0 || report.torn > 0 || orphans || !report.was_clean {
            return Err(format!("not clean after an unmount: {report:?}"));
        }
        let mut state = State::of(&fs).map_err(words("the tree cannot be read"))?;
        if self.geo.data_sums {
            check_marks(&fs, &state, &kept)?;
        }
        state
            .stretch(&fs)
            .map_err(words("a file cannot be made longer"))?;
        use_it(&fs, &state)?;
        fs.close_now().map_err(words("the second unmount fails"))?;
        self.check("after use")?;
        leased::compare(&kept, &self.kept("after use")?).map_err(|e| format!("after use: {e}"))?;
        let fs = self.mount().map_err(words("the third mount fails"))?;
        let left = State::of(&fs).map_err(words("the emptied tree cannot be read"))?;
        if left.tree.nodes.len() != 1 {
            return Err(format!(
                "{} names are left of none",
                left.tree.nodes.len() - 1
            ));
        }
        fs.close_now().map_err(words("the third unmount fails"))?;
        if !kept.is_empty() {
            self.end_leases(&kept)?;
        }
        state.kept = kept;
        Ok(state)
    }

    /// All names are gone, and now the processes end that map files without names.
    fn end_leases(&mut self, kept: &Kept) -> Result<(), String> {
        let words = |what: &'static str| move |e: pramfs::Error| format!("{what}: {e}");
        let now = self.kept("after the third unmount")?;
        leased::compare(kept, &now).map_err(|e| format!("after the third unmount: {e}"))?;
        let held = std::mem::take(&mut self.held);
        let fs = self.mount().map_err(words("the fourth mount fails"))?;
        fs.close_now().map_err(words("the fourth unmount fails"))?;
        let ended = self.check("after the end of the leases");
        let ended = ended.and_then(|()| self.kept("after their end"));
        self.held = held;
        ended.map(drop)
    }

    fn check(&self, when: &str) -> Result<(), String> {
        let report = fsck::check(&self.scratch.region(), &CheckOptions::default());
        match report.is_clean() {
            true => Ok(()),
            false => Err(format!("the check {when}: {report}")),
        }
    }

    /// The lines that hold another count after each mount: those that holders of leases watch,
    /// also those of free slots, and the copies of the lanes' `retired` words with the mark
    /// that makes them void.
    fn counted(&self) -> Result<Vec<usize>, String> {
        let (region, geo) = (&self.scratch.region(), &self.geo);
        let slots = leased::places(Medium { region, geo })?;
        let lines = slots.into_iter().map(leased::view_line);
        let mark = RETIRED_COPIES_OFFSET as usize;
        Ok(lines.chain([mark]).chain(copies(geo)).collect())
    }

    /// Hash of all that is in use on the medium after an unmount.
    fn medium_hash(&self, counted: &[usize]) -> Result<u64, String> {
        let mut units = self.units.clone();
        let mut page = [0; PAGE];
        for p in self.scratch.changed_pages() {
            self.scratch.read(p * PAGE, &mut page);
            for (i, bytes) in page.chunks_exact(UNIT).enumerate() {
                let unit = p * PAGE / UNIT + i;
                units[unit] = unit_hash(unit, bytes);
            }
        }
        let geo = &self.geo;
        let mut line = [0; 64];
        for page in [0, geo.copy_offset.0] {
            let at = (page + DYNAMIC_OFFSET) as usize;
            let mut dynamic = [0; SuperDynamic::SIZE];
            self.scratch.read(at, &mut dynamic);
            let d = SuperDynamic::read_from_bytes(&dynamic).map_err(|e| e.to_string())?;
            if d.state != pramfs_medium::media::superblock::STATE_CLEAN || d.first_error.count != 0
            {
                return Err(format!(
                    "the superblock at {page:#x} after an unmount: {d:?}"
                ));
            }
            // The other lines of these words are reserved.
            self.scratch.read(at, &mut line);
            let unit = at / UNIT;
            units[unit] = units[unit].wrapping_sub(line_hash(at / 64, &line));
        }
        for &at in counted {
            self.scratch.read(at, &mut line);
            units[at / UNIT] = units[at / UNIT].wrapping_sub(line_hash(at / 64, &line));
        }
        let journal = geo.journal_offset.0..geo.journal_offset.0 + geo.journal_len;
        let bitmap = self.block_bitmap()?;
        let mut bits = vec![0; geo.block_size as usize];
        self.scratch.read(bitmap, &mut bits);
        let mut sum = 0u64;
        for (i, hash) in units.iter().enumerate() {
            let at = (i * UNIT) as u64;
            let block = geo.block_at(RegionOffset(at)).0 as usize;
            if bits[block / 8] >> (block % 8) & 1 != 0 && !journal.contains(&at) {
                sum = sum.wrapping_add(*hash);
            }
        }
        Ok(sum)
    }

    /// Where the bits of the blocks are. Regions of the explorer have one group.
    fn block_bitmap(&self) -> Result<usize, String> {
        let geo = &self.geo;
        let mut inode = [0; DiskInode::SIZE];
        self.scratch.read(BLOCK_GROUPS_OFFSET as usize, &mut inode);
        let inode = DiskInode::read_from_bytes(&inode).map_err(|e| e.to_string())?;
        if inode.height != 0 || geo.blocks() > geo.bits_per_group() {
            return Err("a region of more than one group is too large to explore".into());
        }
        let mut word = [0; 8];
        let descs = geo.offset(Ptr(inode.root).block()).0 as usize;
        self.scratch.read(descs, &mut word);
        match GroupDesc::state(geo, BitmapKind::Blocks, 0, u64::from_le_bytes(word)) {
            GroupState::Bitmap(b) => Ok(geo.offset(b).0 as usize),
            other => Err(format!("the group of all blocks is {other:?}")),
        }
    }
}
