//! Lanes: where records become durable.

use crate::media::Medium;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam::utils::CachePadded;
use smallvec::SmallVec;

use super::buffer::RecordBuf;
use super::copies::Copies;
use super::dead::DeadLsn;
use super::last_record::{LastRecord, RecordId};
use super::lines::Lines;
use super::outcomes::Outcomes;
use crate::alloc::Freed;
use crate::error::{Error, Result};
use crate::media::Geometry;
use crate::media::checksum::{SEALED_BITS, seal};
use crate::media::retired::Session;
use crate::pmem::{Region, Unfenced};
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::Ino;

#[derive(Debug)]
struct LaneState {
    /// Slot of the next record.
    slot: u32,
    /// LSNs of the last two records, older first; 0 = none.
    last: [u64; 2],
    /// Homes of the last record: stored, not flushed.
    homes: Lines,
    /// A record is durable, but not all of its homes could be stored or written back. Only
    /// recovery can complete it, so no further record of this lane may become dead.
    broken: bool,
    /// What records have freed, with their LSNs, until the records are dead.
    pending: VecDeque<(u64, Freed)>,
    /// `pending` holds more than inode numbers.
    urgent: bool,
}

/// Number of inode numbers freed together: each free takes a lock.
const RETIRE_BATCH: usize = 16;

fn is_number(f: &Freed) -> bool {
    matches!(f, Freed::Inodes(_))
}

impl LaneState {
    /// Moves what records up to `dead` have freed to `reusable`.
    fn free_dead(&mut self, dead: u64, reusable: &mut Reusable) {
        while let Some((_, f)) = self.pending.front().copied().filter(|(at, _)| *at <= dead) {
            self.pending.pop_front();
            match (reusable.last_mut(), f) {
                // Consecutive frees are often consecutive numbers.
                (Some(Freed::Inodes(run)), Freed::Inodes(next))
                    if run.start.0 + run.len == next.start.0 =>
                {
                    run.len += next.len;
                }
                _ => reusable.push(f),
            }
        }
        self.urgent = self.urgent && self.pending.iter().any(|(_, f)| !is_number(f));
    }
}

#[derive(Debug)]
struct Lane {
    state: Mutex<LaneState, rank::Lane>,
    /// Records of this lane up to this LSN are dead: replay never sees them.
    dead: DeadLsn,
}

/// The lanes of a mounted file system.
#[derive(Debug)]
pub struct Journal {
    lanes: Box<[CachePadded<Lane>]>,
    next_lsn: CachePadded<AtomicU64>,
    pub(super) copies: Copies,
    /// Switches for tests.
    pub rules: Rules,
    /// Notes which requests are done, if another process may take over.
    pub outcomes: Option<Arc<dyn Outcomes>>,
    /// Failed fences of the medium at mount.
    failed_fences: u64,
    /// Objects that have moved from one lane to another.
    hand_overs: AtomicU64,
}

/// Switches that break a rule of the protocol, so that tests can show the purpose of each
/// rule. All are on outside tests.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Rule 1: a hand-over between lanes retires the older record.
    pub hand_over: bool,
    /// Rule 2: blocks and numbers that a record frees wait until the record is dead.
    pub delayed_release: bool,
    /// Rule 3: bits change by masks (off: by whole words).
    pub bit_masks: bool,
    /// Rule 4: a chain of records runs under an orphan slot.
    pub orphan_chain: bool,
    /// Rule 5: a record never overwrites the one before it.
    pub two_slots: bool,
    /// Rule 6: no block leaves the map of a leased inode.
    pub leased_blocks: bool,
    /// Rule 7: what the holder of a lease has appended is merged into the size.
    pub merged_sizes: bool,
    /// Rule 8: data change without a record only after the record that copied them is dead.
    pub copies_retired: bool,
    /// A record marks blocks before anybody may store to them without one (off: a lease never
    /// does, and a view when it ends).
    pub marks: bool,
    /// New data is fenced before the record that makes it reachable.
    pub data_fence: bool,
    /// All records are dead when a snapshot begins.
    pub snapshot_retires: bool,
    /// Not a rule: inode numbers are freed in batches (off: each as soon as possible, so
    /// that a few operations suffice to reuse one).
    pub inode_batches: bool,
    /// Not a rule: append windows are longer than was asked for.
    pub long_windows: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            hand_over: true,
            delayed_release: true,
            bit_masks: true,
            orphan_chain: true,
            two_slots: true,
            leased_blocks: true,
            merged_sizes: true,
            copies_retired: true,
            marks: true,
            data_fence: true,
            snapshot_retires: true,
            inode_batches: true,
            long_windows: true,
        }
    }
}

static NEXT_LANE: AtomicU32 = AtomicU32::new(0);
thread_local! {
    static THREAD_LANE: Cell<u32> = const { Cell::new(u32::MAX) };
}
/// Set in a thread's lane number if [`set_thread_lane`] chose it.
const LANE_IS_CHOSEN: u32 = 1 << 31;

/// Chooses the lane of this thread (modulo the number of lanes) for all its operations. A
/// run can then be repeated exactly, with hand-overs at the intended places.
#[cfg(any(test, feature = "testing"))]
pub fn set_thread_lane(lane: u32) {
    THREAD_LANE.with(|l| l.set((lane & 0xffff) | LANE_IS_CHOSEN));
}

/// A lane taken for the next record.
#[derive(Debug)]
pub struct LaneGuard<'a> {
    st: MutexGuard<'a, LaneState>,
    lane: u32,
    lsn: u64,
    /// Homes of the lane's last record: flushed, not fenced.
    homes: Unfenced,
}

/// A change to commit.
#[derive(Debug)]
pub struct Change<'a> {
    /// The record.
    pub record: &'a mut RecordBuf,
    /// New data that the record makes reachable: stored, not fenced.
    pub data: Option<Unfenced>,
    /// What the record frees.
    pub freed: &'a [Freed],
    /// Whether the record completes the request of this thread, and what inode it makes.
    pub decides: Option<Option<Ino>>,
}

/// The result of a commit.
#[derive(Debug)]
pub struct Committed {
    /// Lane and LSN of the record.
    pub record_id: RecordId,
    /// Blocks and numbers that may return to the allocators now.
    pub reusable: Reusable,
}

/// Blocks and numbers without any reference, on their way back to the allocators.
pub type Reusable = SmallVec<[Freed; 2]>;

impl Journal {
    /// Creates the lanes; their records up to `checkpoint` are all dead. `failed_fences` is
    /// the region's current count.
    pub fn new(geo: &Geometry, checkpoint: u64, rules: Rules, failed_fences: u64) -> Journal {
        let lane = |nth| {
            CachePadded::new(Lane {
                state: Mutex::numbered(
                    u64::from(nth),
                    LaneState {
                        slot: 0,
                        last: [0; 2],
                        homes: Lines::default(),
                        broken: false,
                        pending: VecDeque::new(),
                        urgent: false,
                    },
                ),
                dead: DeadLsn::new(checkpoint),
            })
        };
        Journal {
            lanes: (0..geo.lanes).map(lane).collect(),
            next_lsn: CachePadded::new(AtomicU64::new(checkpoint + 1)),
            copies: Copies::new(),
            rules,
            outcomes: None,
            failed_fences,
            hand_overs: AtomicU64::new(0),
        }
    }

    /// Returns how often an object has moved from one lane to another.
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs.load(Ordering::Relaxed)
    }

    /// Returns the lane of the calling thread.
    pub fn thread_lane(&self) -> u32 {
        self.thread_lane_and_choice().0
    }

    /// Also tells whether the thread must use that lane and no other.
    fn thread_lane_and_choice(&self) -> (u32, bool) {
        THREAD_LANE.with(|l| {
            if l.get() == u32::MAX {
                l.set(NEXT_LANE.fetch_add(1, Ordering::Relaxed) & 0xffff);
            }
            let lane = l.get();
            (
                (lane & 0xffff) % self.lanes.len() as u32,
                lane & LANE_IS_CHOSEN != 0,
            )
        })
    }

    /// Returns the lane for a change of `place`, whose lock is held. This is the lane of
    /// the record that last changed `place`, if that record is alive and the lane is idle;
    /// otherwise the thread's own. Records of one lane need no hand-over, which costs two
    /// fences, and a server's threads often take turns on one directory. Threads that work
    /// side by side sooner or later meet in the lane, and then separate.
    pub fn lane_for(&self, place: &LastRecord) -> u32 {
        let (own, chosen) = self.thread_lane_and_choice();
        match place.last() {
            Some(s) if s.lane != own && !chosen && !self.is_dead(s) => {
                // A broken lane takes no record; it returns its error at the hand-over.
                let free = self.lanes[s.lane as usize].state.try_lock();
                let free = free.is_some_and(|st| !st.broken);
                if free { s.lane } else { own }
            }
            _ => own,
        }
    }

    /// Returns a number never returned before, below the LSN of every record that names it.
    pub fn unique(&self) -> u64 {
        self.next_lsn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the largest LSN assigned so far.
    pub fn last_lsn(&self) -> u64 {
        // Numbers past the last one were requested but not assigned: a seal has no room for
        // them.
        let last = self.next_lsn.load(Ordering::Relaxed) - 1;
        last.min((1 << SEALED_BITS) - 1)
    }

    /// Whether replay can no longer see a record.
    #[inline]
    pub fn is_dead(&self, s: RecordId) -> bool {
        self.lanes[s.lane as usize].dead.covers(s.lsn)
    }

    /// Whether [`hand_over`](Self::hand_over) has something to do.
    #[inline]
    pub fn must_hand_over(&self, lane: u32, place: &LastRecord) -> bool {
        matches!(place.last(), Some(s) if s.lane != lane && self.rules.hand_over && !self.is_dead(s))
    }

    /// Rule 1. Before a record of `lane` changes `place`, the last record of another lane
    /// that changed it must be dead. Otherwise its replay could overwrite our change after
    /// our record has been overwritten in its slot.
    #[inline]
    pub fn hand_over(
        &self,
        medium: Medium<'_>,
        lane: u32,
        place: &LastRecord,
        release: impl FnOnce(Reusable),
    ) -> Result<()> {
        if self.must_hand_over(lane, place)
            && let Some(s) = place.last()
        {
            release(self.retire(medium, s.lane)?);
            self.hand_overs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes every record of a lane dead: completes its homes, then records that on the
    /// medium. Costs two fences.
    pub fn retire(&self, medium: Medium<'_>, lane: u32) -> Result<Reusable> {
        let Medium { region, geo } = medium;
        let l = &self.lanes[lane as usize];
        let mut st = l.state.lock();
        let newest = st.last[1];
        if newest == 0 || l.dead.covers(newest) {
            return Ok(SmallVec::new());
        }
        let w = region.window();
        if st.broken {
            return Err(broken());
        }
        self.check_fences(region, &mut st)?;
        let homes = st.homes.flush(region)?;
        let fenced = w.fence(homes);
        self.check_fences(region, &mut st)?;
        let mut retired = Unfenced::none();
        for copy in 0..2 {
            let word = seal(geo.retired_seed(copy), newest);
            let at = geo.retired_offset(lane).word(copy).0;
            retired = retired.join(w.publish_u64(at, word, fenced)?);
        }
        retired = retired.join(self.copies.store(medium, lane, newest, fenced)?);
        let _ = w.fence(retired);
        self.check_fences(region, &mut st)?;
        st.homes.clear();
        l.dead.raise(newest);
        let mut reusable = Reusable::new();
        st.free_dead(newest, &mut reusable);
        Ok(reusable)
    }

    /// Begins a session: from here on, retired lanes have copies of their words. Records up to its
    /// checkpoint are dead.
    ///
    /// # Errors
    /// Errors of the region.
    pub fn begin_copies(&self, medium: Medium<'_>, session: Session) -> Result<()> {
        self.copies.begin(medium, session)
    }

    /// Fails, and breaks the lane, if any fence of the medium has failed since the mount,
    /// whichever lane issued it. A system reports a failed write-back once and then treats
    /// the pages as clean. These may include pages of the homes of any record, flushed or
    /// not, and no later fence would write them. The records still hold the after-images;
    /// the next mount stores them in place.
    #[inline]
    fn check_fences(&self, region: &Region, st: &mut LaneState) -> Result<()> {
        if region.failed_fences() == self.failed_fences {
            return Ok(());
        }
        st.broken = true;
        Err(unwritten())
    }

    /// Flushes and fences the homes of idle lanes. Otherwise these wait for the lane's next
    /// record, which may be long in coming.
    pub fn settle(&self, region: &Region) -> Result<()> {
        for lane in &self.lanes {
            let Some(mut st) = lane.state.try_lock() else {
                continue;
            };
            if st.broken || st.homes.is_empty() {
                continue;
            }
            self.check_fences(region, &mut st)?;
            let homes = st.homes.flush(region)?;
            let _ = region.write_back().fence(homes);
            self.check_fences(region, &mut st)?;
            st.homes.clear();
        }
        Ok(())
    }

    /// Makes every record of every lane dead.
    pub fn retire_all(&self, medium: Medium<'_>, release: &mut dyn FnMut(Reusable)) -> Result<()> {
        for lane in 0..self.lanes.len() as u32 {
            release(self.retire(medium, lane)?);
        }
        Ok(())
    }

    /// Whether anything freed waits for its record to become dead.
    pub fn has_pending(&self) -> bool {
        self.lanes
            .iter()
            .any(|l| !l.state.lock().pending.is_empty())
    }

    /// Calls `look` while nobody stores a record to a lane, unless the lane is broken.
    pub(super) fn with_lane_at_rest(
        &self,
        lane: u32,
        look: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(lane) = self.lanes.get(lane as usize) else {
            return Ok(());
        };
        let st = lane.state.lock();
        // Its last record may be stored in part. Its error has told so.
        if st.broken { Ok(()) } else { look() }
    }

    /// Takes a lane for a record. Until [`commit`](Self::commit), the caller takes no other
    /// lane and retires none.
    pub fn enter(&self, region: &Region, lane: u32) -> Result<LaneGuard<'_>> {
        let mut st = self.lanes[lane as usize].state.lock();
        if st.broken {
            return Err(broken());
        }
        self.check_fences(region, &mut st)?;
        let lsn = self.next_lsn.fetch_add(1, Ordering::Relaxed);
        if lsn >> SEALED_BITS != 0 {
            return Err(Error::io(
                "the log sequence numbers of this file system are used up",
            ));
        }
        // Flush the homes of the previous record here and not when they are stored. A
        // locked instruction waits for the write-backs before it, and many lie between two
        // records; here the write-backs wait together with the record. Flush before new
        // data are stored: the next record mostly changes the same lines, and a line cannot
        // be stored to before its write-back has had its turn.
        let homes = st.homes.flush(region)?;
        Ok(LaneGuard {
            st,
            lane,
            lsn,
            homes,
        })
    }

    /// Commits a record, then stores its after-images in place. `apply` stores the homes.
    /// It runs after the record is durable and must not fail.
    pub fn commit(
        &self,
        medium: Medium<'_>,
        entered: LaneGuard<'_>,
        change: Change<'_>,
        apply: impl FnOnce(&RecordBuf, &mut Lines) -> Result<()>,
    ) -> Result<Committed> {
        let Medium { region, geo } = medium;
        let Change {
            record,
            data,
            freed,
            decides,
        } = change;
        let LaneGuard {
            mut st,
            lane,
            lsn,
            homes,
        } = entered;
        let l = &self.lanes[lane as usize];
        let w = region.window();
        // Build the record while these and new data are being written back.
        let slot = st.slot;
        let bytes = record.seal(geo.seed, lsn, lane, slot);
        // (a) Everything that the record makes reachable is durable before the record.
        let homes = match data {
            Some(data) if self.rules.data_fence => {
                let _ = w.fence(homes.join(data));
                Unfenced::none()
            }
            _ => homes,
        };
        // Before the record: see `outcomes`.
        if let (Some(made), Some(outcomes)) = (decides, &self.outcomes) {
            outcomes.decided_by(RecordId { lane, lsn }, made);
        }
        // (b) The record. This fence also completes the homes of the previous record at the
        //     latest, so the previous record's slot may be overwritten by the record after
        //     this one.
        let pending = homes.join(w.nt_store(geo.slot_offset(lane, slot).0, bytes)?);
        let _ = w.fence(pending);
        // If a fence has failed, it is unknown which stores reached the medium. The slot
        // stays the next one: the other slot holds the previous record.
        self.check_fences(region, &mut st)?;
        if self.rules.two_slots {
            st.slot ^= 1;
        }
        let dead = st.last[0];
        st.last = [st.last[1], lsn];
        if dead > l.dead.get() {
            l.dead.raise(dead);
        }
        // This still runs behind the fence, where nothing waits for it. If the homes cannot
        // be stored, the lane frees nothing further.
        let dead = l.dead.get();
        let mut reusable = Reusable::new();
        if self.rules.delayed_release {
            for f in freed {
                st.urgent |= !is_number(f);
                st.pending.push_back((lsn, *f));
            }
        } else {
            reusable.extend_from_slice(freed);
        }
        if st.urgent || !self.rules.inode_batches || st.pending.len() >= RETIRE_BATCH {
            st.free_dead(dead, &mut reusable);
        }
        // (c) The homes are stored here; this lane's next record flushes and fences them.
        st.homes.clear();
        st.broken = true;
        apply(record, &mut st.homes)?;
        st.broken = false;

        Ok(Committed {
            record_id: RecordId { lane, lsn },
            reusable,
        })
    }
}

#[cold]
fn broken() -> Error {
    Error::io("a change is durable but was not stored in place; mount the file system again")
}

#[cold]
fn unwritten() -> Error {
    Error::io("a change could not be written to the medium; mount the file system again")
}
