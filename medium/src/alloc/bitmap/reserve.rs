//! Finds free bits, reserves them for an operation, and frees them.
//!
//! Everything here happens in memory; on the medium the bits stay free until a record is
//! committed. A search begins near the caller's goal, or at the lane's last position. Where
//! that group is full, each lane goes through the others in an order of its own: in the same
//! order, all lanes would meet in the first group with free bits, and from then on share the
//! lines of its bitmap, in memory and on the medium.

use std::sync::atomic::Ordering;

use super::super::group::Group;
use super::super::{BitRun, Reserved, RunLen, SearchResult};
use super::{BitmapSet, InitGroup};
use crate::error::Damage;
use crate::error::Result;
use crate::media::Medium;
use crate::media::bitmap::BitmapKind;
use crate::types::Bno;

/// Returns the first free run of a group that has room on the host, of these
/// lengths.
fn find_roomy(
    medium: Medium<'_>,
    group: &Group,
    base: u64,
    mut from: u32,
    lengths: RunLen,
) -> Option<(u32, u32)> {
    let Medium { region, geo } = medium;
    while let Some((start, len)) = group.find(from, u32::MAX) {
        let at = geo.offset(Bno(base + u64::from(start)));
        from = start + len;
        let Some((first, end)) = region.roomy_part(at.0, geo.bytes(u64::from(len))) else {
            continue;
        };
        // Whole blocks only. The next iteration looks at the rest of the run.
        let first = start + geo.blocks_for(first - at.0) as u32;
        let end = start + geo.whole_blocks(end - at.0) as u32;
        from = end.max(first + 1).min(from);
        if end.saturating_sub(first) >= lengths.least {
            return Some((first, (end - first).min(lengths.most)));
        }
    }
    None
}

/// Groups that a lane goes through in an order of its own.
const NEIGHBOURS: u64 = 16;
/// Bits of a group from which on lanes have orders of their own (blocks of 4096 bytes). The host
/// gives room in pieces: several groups that are begun waste much of it if they are not larger.
const LARGE_GROUP: u64 = 1 << 15;

/// The order in which a lane goes through `n` groups, each once: the first, its neighbours in an
/// order of the lane, and then one after the other. Lane 0 takes all one after the other.
#[derive(Debug, Clone, Copy)]
struct Order {
    first: u64,
    lane: u64,
    stride: u64,
    neighbours: u64,
    n: u64,
}

impl Order {
    fn new(first: u64, lane: u32, n: u64) -> Order {
        let neighbours = NEIGHBOURS.min(n - 1).max(1);
        let lane = u64::from(lane);
        let mut stride = lane * 2 + 1;
        while gcd(stride, neighbours) != 1 {
            stride += 2;
        }
        Order {
            first,
            lane,
            stride,
            neighbours,
            n,
        }
    }

    fn group(&self, i: u64) -> u64 {
        let distance = match i {
            i if (1..=self.neighbours).contains(&i) => {
                1 + (self.lane + (i - 1) * self.stride) % self.neighbours
            }
            i => i,
        };
        (self.first + distance) % self.n
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

impl BitmapSet {
    /// Runs `pick` over the groups until it finds something, beginning with the group of
    /// `near`, and then in the order of `lane`. Skips damaged groups. With `only_roomy`, a
    /// group that must first be made is the last choice.
    fn search<T>(
        &self,
        medium: Medium<'_>,
        (near, lane): (u64, u32),
        least: u32,
        only_roomy: bool,
        mut pick: impl FnMut(u64, &mut Group) -> Option<T>,
    ) -> Result<Option<T>, InitGroup> {
        let n = self.groups();
        let first = match near >> self.group_log2 {
            group if group < n => group,
            _ => 0,
        };
        let lane = match self.per_group < LARGE_GROUP {
            true => 0,
            false => lane,
        };
        let mut to_init = None;
        // The usual case needs no order.
        let mut order = None;
        for i in 0..n {
            let group = match i {
                0 => first,
                i => order
                    .get_or_insert_with(|| Order::new(first, lane, n))
                    .group(i),
            };
            let cell = self.cells.get(group);
            if cell.is_none_or(|cell| cell.free.load(Ordering::Relaxed) < least) {
                continue;
            }
            let Ok(mut guard) = self.lock(medium, group) else {
                continue;
            };
            let Some(g) = guard.as_deref_mut() else {
                continue;
            };
            if !g.is_initialised() {
                // Prefer groups in use, but take the caller's own group at once.
                if i == 0 && !only_roomy {
                    return Err(InitGroup {
                        group,
                        desc_offset: g.desc_offset,
                    });
                }
                to_init.get_or_insert(InitGroup {
                    group,
                    desc_offset: g.desc_offset,
                });
                if i > NEIGHBOURS && !only_roomy {
                    break;
                }
                continue;
            }
            let found = pick(group, g);
            self.note_free(group, g);
            if found.is_some() {
                return Ok(found);
            }
        }
        match to_init {
            Some(init) => Err(init),
            None => Ok(None),
        }
    }

    /// Reserves a run of up to `want` bits, near `goal` or at this lane's last position.
    /// * `Ok(None)`: no bit is free.
    /// * `Err`: make that group, then call again.
    ///
    /// `only_roomy` restricts blocks to those that have room on the host.
    #[allow(clippy::too_many_arguments)]
    pub fn reserve(
        &self,
        medium: Medium<'_>,
        lane: u32,
        goal: Option<u64>,
        want: u32,
        full: bool,
        only_roomy: bool,
    ) -> Result<Option<SearchResult>, InitGroup> {
        if let Some(found) = goal.and_then(|at| self.reserve_here(medium, at, want)) {
            return Ok(Some(SearchResult::Taken(found)));
        }
        let hint = &self.hints[lane as usize];
        let near = goal
            .filter(|g| *g < self.bits())
            .unwrap_or_else(|| hint.load(Ordering::Relaxed));
        let least = if full { want } else { 1 };
        let only_roomy = only_roomy && self.kind == BitmapKind::Blocks;
        let found = self.search(medium, (near, lane), least, only_roomy, |group, g| {
            let base = group * self.per_group;
            let from = if near >= base && near < base + self.per_group {
                (near - base) as u32
            } else {
                0
            };
            let mut found = |from| {
                if full {
                    g.find_full(from, want).map(|s| (s, want))
                } else {
                    g.find(from, want)
                }
            };
            let (start, len) = if only_roomy {
                let lengths = RunLen { least, most: want };
                let roomy = |from| find_roomy(medium, g, base, from, lengths);
                match roomy(from) {
                    Some(found) => found,
                    None => roomy(0)?,
                }
            } else {
                match found(from) {
                    Some(found) => found,
                    None => found(0)?,
                }
            };
            let found = self.reserved(group, g, start, len);
            if !self.has_room(medium, found.run) {
                return Some(SearchResult::NoHostRoom(found.run));
            }
            g.take(start, len);
            Some(SearchResult::Taken(found))
        })?;
        if let (Some(SearchResult::Taken(Reserved { run, group, .. })), None) = (found, goal) {
            let next = match self.kind {
                // Lowest number first: the homes of short-lived inodes, and what memory has
                // about them, then stay in the processor's caches.
                BitmapKind::Inodes => group * self.per_group,
                BitmapKind::Blocks => run.start + run.len,
            };
            if next != near {
                hint.store(next, Ordering::Relaxed);
            }
        }
        Ok(found)
    }

    /// Reserves exactly these bits if they are free and a cheap check shows it.
    #[inline]
    fn reserve_here(&self, medium: Medium<'_>, start: u64, len: u32) -> Option<Reserved> {
        let group = start >> self.group_log2;
        if start >= self.bits() {
            return None;
        }
        let mut guard = self.lock(medium, group).ok()?;
        let g = guard.as_deref_mut()?;
        let run = BitRun {
            start,
            len: u64::from(len),
        };
        let first = (start & (self.per_group - 1)) as u32;
        // If the run has no room, `search` handles that; it begins here.
        if !self.has_room(medium, run) || !g.take_here(first, len) {
            return None;
        }
        self.note_free(group, g);
        Some(self.reserved(group, g, first, len))
    }

    /// Reserves exactly these bits, of one word, if all are free. The group has a bitmap block.
    ///
    /// # Errors
    /// Errors of its group.
    pub fn reserve_exactly(&self, medium: Medium<'_>, run: BitRun) -> Result<Option<Reserved>> {
        let group = run.start >> self.group_log2;
        let mut guard = self.lock(medium, group)?;
        let first = (run.start & (self.per_group - 1)) as u32;
        let Some(g) = guard.as_deref_mut() else {
            return Ok(None);
        };
        if !g.take_here(first, run.len as u32) {
            return Ok(None);
        }
        self.note_free(group, g);
        Ok(Some(self.reserved(group, g, first, run.len as u32)))
    }

    /// Locates the bits of a run that is reserved and lies in one group.
    ///
    /// # Errors
    /// Errors of its group.
    pub fn taken(&self, medium: Medium<'_>, run: BitRun) -> Result<Reserved> {
        let first = self.at(medium, run.start)?;
        Ok(Reserved { run, ..first })
    }

    /// Locates the bit of a reserved number.
    ///
    /// # Errors
    /// Errors of its group.
    pub fn at(&self, medium: Medium<'_>, bit: u64) -> Result<Reserved> {
        let group = bit >> self.group_log2;
        let guard = self.lock(medium, group)?;
        let g = guard.as_deref().filter(|g| g.is_initialised());
        let first = (bit & (self.per_group - 1)) as u32;
        g.map(|g| self.reserved(group, g, first, 1)).ok_or_else(|| {
            self.damaged(
                Damage::BitmapPointer,
                group,
                "bits in use in a group without a bitmap block",
            )
        })
    }

    #[inline]
    fn reserved(&self, group: u64, g: &Group, first: u32, len: u32) -> Reserved {
        Reserved {
            run: BitRun {
                start: group * self.per_group + u64::from(first),
                len: u64::from(len),
            },
            group,
            first,
            bitmap_offset: g.bitmap_offset,
        }
    }

    /// Reserves `len` bits aligned to `len`, a power of two from 64.
    pub fn reserve_aligned(
        &self,
        medium: Medium<'_>,
        near: u64,
        len: u32,
        only_roomy: bool,
    ) -> Result<Option<SearchResult>, InitGroup> {
        if u64::from(len) > self.per_group {
            return Ok(None);
        }
        // Aligned runs are long: one after the other, so that they leave room for more.
        self.search(medium, (near, 0), len, only_roomy, |group, g| {
            let base = group * self.per_group;
            let has_room = |start| {
                let run = BitRun {
                    start: base + u64::from(start),
                    len: u64::from(len),
                };
                self.has_room(medium, run)
            };
            let start = g.find_aligned(base, len, |at| !only_roomy || has_room(at))?;
            let found = self.reserved(group, g, start, len);
            if !only_roomy && !has_room(start) {
                return Some(SearchResult::NoHostRoom(found.run));
            }
            g.take(start, len);
            Some(SearchResult::Taken(found))
        })
    }

    /// Reserves all clear bits of a run that lies in one group. Returns them by the word; none are
    /// taken from a group without a bitmap block, which has no bit in use.
    ///
    /// # Errors
    /// Errors of its group.
    pub fn take_free(&self, medium: Medium<'_>, run: BitRun) -> Result<Vec<u64>> {
        let group = run.start >> self.group_log2;
        let first = (run.start & (self.per_group - 1)) as u32;
        let mut guard = self.lock(medium, group)?;
        let Some(g) = guard.as_deref_mut().filter(|g| g.is_initialised()) else {
            return Ok(Vec::new());
        };
        let free = g.take_free(first, run.len as u32);
        self.note_free(group, g);
        Ok(free)
    }

    /// Reserves up to `want` bits of aligned runs of `part` bits that are in use in part, and
    /// that the caller does not leave out by their number. Looks near `near` first, and for a
    /// run of the full length.
    pub fn reserve_beside(
        &self,
        medium: Medium<'_>,
        near: u64,
        want: u32,
        part: u32,
        is_left_out: &dyn Fn(u64) -> bool,
    ) -> Option<Reserved> {
        let n = self.groups();
        let first = (near >> self.group_log2) % n;
        for (least, groups) in [(want, n.min(NEIGHBOURS)), (1, n)] {
            for group in (0..groups).map(|i| (first + i) % n) {
                let cell = self.cells.get(group);
                if cell.is_none_or(|cell| cell.free.load(Ordering::Relaxed) < least) {
                    continue;
                }
                let Ok(mut guard) = self.lock(medium, group) else {
                    continue;
                };
                let Some(g) = guard.as_deref_mut() else {
                    continue;
                };
                let base = group * self.per_group;
                let is_out = |first| is_left_out((base + u64::from(first)) / u64::from(part));
                let has_room = |start: u32, len: u32| {
                    let start = base + u64::from(start);
                    let len = u64::from(len);
                    self.has_room(medium, BitRun { start, len })
                };
                let lengths = RunLen { least, most: want };
                if let Some((start, len)) = g.find_beside(part, lengths, is_out, has_room) {
                    g.take(start, len);
                    self.note_free(group, g);
                    return Some(self.reserved(group, g, start, len));
                }
            }
        }
        None
    }

    /// Where each lane looks for bits, if it is told no other place.
    pub fn positions(&self) -> Vec<u64> {
        let hints = self.hints.iter();
        hints.map(|hint| hint.load(Ordering::Relaxed)).collect()
    }

    /// Has the lanes look again where they did.
    pub fn go_back(&self, positions: &[u64]) {
        for (hint, at) in self.hints.iter().zip(positions) {
            hint.store(*at, Ordering::Relaxed);
        }
    }

    /// Whether the blocks of a run have room on the host. Inode numbers need none.
    #[inline]
    fn has_room(&self, medium: Medium<'_>, run: BitRun) -> bool {
        let Medium { region, geo } = medium;
        self.kind != BitmapKind::Blocks
            || region.has_room(geo.offset(Bno(run.start)).0, geo.bytes(run.len))
    }

    /// Frees reserved or released bits.
    pub fn free_run(&self, medium: Medium<'_>, run: BitRun) {
        self.for_groups(run, |group, start, len| {
            if let Ok(mut guard) = self.lock(medium, group)
                && let Some(g) = guard.as_deref_mut()
            {
                g.give(start, len);
                self.note_free(group, g);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_through_all_groups_in_different_orders() {
        for n in [1, 2, 3, 7, 28, 64, 105] {
            let orders: Vec<Vec<u64>> = (0..32)
                .map(|lane| {
                    let order = Order::new(n / 2, lane, n);
                    (0..n).map(|i| order.group(i)).collect()
                })
                .collect();
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..n) && order[0] == n / 2);
            }
            let in_turn = (0..n).map(|i| (n / 2 + i) % n);
            assert!(in_turn.eq(orders[0].iter().copied()));
            // The lanes begin with different neighbours.
            let mut second: Vec<_> = orders.iter().filter_map(|o| o.get(1)).collect();
            second.sort_unstable();
            second.dedup();
            assert_eq!(second.len() as u64, NEIGHBOURS.min(n - 1), "of {n}");
        }
    }
}
