//! Which addresses show which files: the mappings of the region that stand for mappings of
//! files.
//!
//! The list is exact: it changes after the call that changes the memory, and only if that has
//! succeeded. So a change must not fail for want of memory. [`ViewList::reserve`] comes before
//! the call, and the changes after it allocate nothing.

use std::ops::Range;

/// A file, by its device and its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The device.
    pub device: u64,
    /// The number of the inode.
    pub inode: u64,
}

/// Addresses that show a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// The file.
    pub file: FileId,
    /// Whether the program could ever store to them.
    pub stores: bool,
}

/// The mappings of the process, in the order of their addresses. None overlap.
#[derive(Debug, Default)]
pub struct ViewList {
    views: Vec<View>,
}

impl ViewList {
    /// No mappings.
    pub const fn new() -> ViewList {
        ViewList { views: Vec::new() }
    }

    /// Returns the number of views.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Makes room for one change that begins with this range. False if there is no memory.
    #[must_use]
    pub fn reserve(&mut self, range: &Range<u64>) -> bool {
        // Pieces that move, and those that are split at both ends of two ranges.
        let pieces = self.in_range(range).len() + 4;
        self.views.try_reserve(pieces).is_ok()
    }

    /// Returns the views that have addresses of a range.
    pub fn in_range(&self, range: &Range<u64>) -> &[View] {
        &self.views[self.indexes(range)]
    }

    fn indexes(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.views.partition_point(|view| view.end <= range.start);
        let rest = &self.views[first..];
        first..first + rest.partition_point(|view| view.start < range.end)
    }

    /// Makes two views of one that has this address inside.
    fn split(&mut self, at: u64) {
        let index = self.views.partition_point(|view| view.end <= at);
        if let Some(view) = self.views.get_mut(index)
            && view.start < at
        {
            let rest = View { start: at, ..*view };
            view.end = at;
            self.views.insert(index + 1, rest);
        }
    }

    /// Makes one view of neighbours that are alike.
    fn join(&mut self) {
        self.views.dedup_by(|next, last| {
            let alike = (last.end, last.file, last.stores) == (next.start, next.file, next.stores);
            if alike {
                last.end = next.end;
            }
            alike
        });
    }

    /// Notes a mapping, in the place of what was there.
    pub fn add(&mut self, view: View) {
        self.cut(&(view.start..view.end));
        let index = self.views.partition_point(|other| other.start < view.start);
        self.views.insert(index, view);
        self.join();
    }

    /// Notes that something else, or nothing, is in a range.
    pub fn cut(&mut self, gone: &Range<u64>) {
        self.split(gone.start);
        self.split(gone.end);
        self.views.drain(self.indexes(gone));
    }

    /// Notes that the program can store to a range from now on.
    pub fn allow_stores(&mut self, range: &Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        let indexes = self.indexes(range);
        for view in &mut self.views[indexes] {
            view.stores = true;
        }
        self.join();
    }

    /// Notes that mremap(2) has moved or shortened a range. `stays`: it shows the file in both
    /// places now (MREMAP_DONTUNMAP).
    pub fn moved(&mut self, from: &Range<u64>, to: &Range<u64>, stays: bool) {
        if from.start == to.start {
            return self.cut(&(to.end..from.end.max(to.end)));
        }
        // The ranges do not overlap: the kernel refuses that.
        self.cut(to);
        self.split(from.start);
        self.split(from.end);
        let len = (from.end - from.start).min(to.end - to.start);
        self.split(from.start + len);
        let moving = self.indexes(&(from.start..from.start + len));
        let gone = self.indexes(from);
        let delta = to.start.wrapping_sub(from.start);
        for index in moving {
            let view = self.views[index];
            self.views.push(View {
                start: view.start.wrapping_add(delta),
                end: view.end.wrapping_add(delta),
                ..view
            });
        }
        if !stays {
            self.views.drain(gone);
        }
        self.views.sort_unstable_by_key(|view| view.start);
        self.join();
    }

    /// Returns the first view that ends after an address, of those that `is_wanted`.
    pub fn next(&self, after: u64, is_wanted: impl Fn(&View) -> bool) -> Option<View> {
        let first = self.views.partition_point(|view| view.end <= after);
        self.views[first..].iter().copied().find(is_wanted)
    }

    /// Whether a range shows a part of a file.
    pub fn shows(&self, range: &Range<u64>, file: FileId) -> bool {
        self.in_range(range).iter().any(|view| view.file == file)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 48;

    fn file(number: u64) -> FileId {
        FileId {
            device: 7,
            inode: number,
        }
    }

    fn view(start: u64, end: u64, number: u64) -> View {
        View {
            start,
            end,
            file: file(number),
            stores: false,
        }
    }

    fn list(views: &[View]) -> ViewList {
        let mut list = ViewList::new();
        for view in views {
            assert!(list.reserve(&(view.start..view.end)));
            list.add(*view);
        }
        list
    }

    #[test]
    fn hole_in_view_leaves_both_ends() {
        let mut list = list(&[view(10, 20, 1)]);
        list.cut(&(12..15));
        assert_eq!(list.in_range(&(0..99)), [view(10, 12, 1), view(15, 20, 1)]);
        list.cut(&(0..99));
        assert!(list.is_empty());
    }

    #[test]
    fn neighbours_of_one_file_are_one_view() {
        let mut list = list(&[view(10, 20, 1), view(30, 40, 1), view(20, 30, 1)]);
        assert_eq!(list.in_range(&(0..99)), [view(10, 40, 1)]);
        list.allow_stores(&(15..25));
        assert_eq!(list.len(), 3);
        list.allow_stores(&(0..99));
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn view_that_moves_is_only_in_its_new_place() {
        let mut list = list(&[view(10, 20, 1), view(20, 30, 2)]);
        list.moved(&(12..24), &(50..62), false);
        let moved = [
            view(10, 12, 1),
            view(24, 30, 2),
            view(50, 58, 1),
            view(58, 62, 2),
        ];
        assert_eq!(list.in_range(&(0..99)), moved);
        // Shortened on the way.
        list.moved(&(50..62), &(0..4), false);
        let moved = [view(0, 4, 1), view(10, 12, 1), view(24, 30, 2)];
        assert_eq!(list.in_range(&(0..99)), moved);
    }

    #[test]
    fn view_that_is_shortened_in_place_loses_its_tail() {
        let mut list = list(&[view(10, 20, 1), view(20, 30, 2)]);
        list.moved(&(10..25), &(10..13), false);
        assert_eq!(list.in_range(&(0..99)), [view(10, 13, 1), view(25, 30, 2)]);
    }

    #[test]
    fn view_that_stays_is_in_both_places() {
        let mut list = list(&[view(10, 20, 1)]);
        list.moved(&(10..20), &(40..50), true);
        assert_eq!(list.in_range(&(0..99)), [view(10, 20, 1), view(40, 50, 1)]);
    }

    #[test]
    fn range_that_has_become_writable_is_a_view_of_its_own() {
        let mut list = list(&[view(10, 20, 1), view(20, 30, 2)]);
        let stored = |view: &View| view.stores;
        assert_eq!(list.next(0, stored), None);
        list.allow_stores(&(12..14));
        let found = list.next(0, stored).unwrap();
        assert_eq!((found.start, found.end, found.file), (12, 14, file(1)));
        list.cut(&(12..14));
        assert_eq!(list.next(0, stored), None);
    }

    #[test]
    fn views_are_found_one_after_the_other() {
        let list = list(&[view(10, 20, 1), view(20, 30, 2), view(40, 50, 1)]);
        let of_one = |view: &View| view.file == file(1);
        assert_eq!(list.next(0, of_one), Some(view(10, 20, 1)));
        assert_eq!(list.next(20, of_one), Some(view(40, 50, 1)));
        assert_eq!(list.next(50, of_one), None);
        assert!(list.shows(&(29..41), file(2)) && !list.shows(&(30..40), file(2)));
    }

    /// A change of the memory, in pages.
    #[derive(Debug, Clone)]
    enum Change {
        Add(Range<usize>, u64, bool),
        Cut(Range<usize>),
        Stores(Range<usize>),
        Move(Range<usize>, usize, usize, bool),
    }

    fn pages() -> impl Strategy<Value = Range<usize>> {
        (0..PAGES, 1..12_usize).prop_map(|(at, len)| at..(at + len).min(PAGES))
    }

    fn any_change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (pages(), 1..4_u64, any::<bool>())
                .prop_map(|(range, file, stores)| Change::Add(range, file, stores)),
            pages().prop_map(Change::Cut),
            pages().prop_map(Change::Stores),
            (pages(), 0..PAGES, 1..12_usize, any::<bool>())
                .prop_map(|(from, to, len, stays)| Change::Move(from, to, len, stays)),
        ]
    }

    type Page = Option<(u64, bool)>;

    /// What the kernel does to the pages. False if it refuses.
    fn change_pages(all: &mut [Page], change: &Change) -> bool {
        match change.clone() {
            Change::Add(range, file, stores) => all[range].fill(Some((file, stores))),
            Change::Cut(range) => all[range].fill(None),
            Change::Stores(range) => {
                for page in all[range].iter_mut().flatten() {
                    page.1 = true;
                }
            }
            Change::Move(from, to, len, stays) => {
                let len = match stays {
                    true => from.len(),
                    false => len.min(from.len()),
                };
                let overlaps = to < from.end && from.start < to + len;
                if to + len > PAGES || overlaps && to != from.start || stays && overlaps {
                    return false;
                }
                let moving = all[from.start..from.start + len].to_vec();
                if !stays {
                    all[from].fill(None);
                }
                all[to..to + len].clone_from_slice(&moving);
            }
        }
        true
    }

    fn change_list(list: &mut ViewList, change: &Change) {
        let wide = |range: &Range<usize>| range.start as u64..range.end as u64;
        let (Change::Add(range, ..)
        | Change::Cut(range)
        | Change::Stores(range)
        | Change::Move(range, ..)) = change;
        // No more room than what is asked for.
        list.views.shrink_to_fit();
        assert!(list.reserve(&wide(range)));
        let room = list.views.capacity();
        match change {
            Change::Add(range, number, stores) => list.add(View {
                stores: *stores,
                ..view(range.start as u64, range.end as u64, *number)
            }),
            Change::Cut(range) => list.cut(&wide(range)),
            Change::Stores(range) => list.allow_stores(&wide(range)),
            Change::Move(from, to, len, stays) => {
                let len = match stays {
                    true => from.len(),
                    false => (*len).min(from.len()),
                };
                list.moved(&wide(from), &wide(&(*to..*to + len)), *stays);
            }
        }
        assert_eq!(list.views.capacity(), room, "a change has allocated");
    }

    proptest! {
        #[test]
        fn list_is_exact_after_any_changes(
            changes in prop::collection::vec(any_change(), 1..if cfg!(miri) { 6 } else { 60 })
        ) {
            let (mut all, mut list) = ([None; PAGES], ViewList::new());
            for change in &changes {
                if !change_pages(&mut all, change) {
                    continue;
                }
                change_list(&mut list, change);
                let mut found = [None; PAGES];
                let mut end = 0;
                for view in list.in_range(&(0..PAGES as u64)) {
                    prop_assert!(view.start >= end && view.start < view.end);
                    end = view.end;
                    for page in view.start..view.end {
                        found[page as usize] = Some((view.file.inode, view.stores));
                    }
                }
                prop_assert_eq!(found, all);
            }
        }
    }
}
