//! The nodes and open files that a guest was given.
//!
//! Purpose: a guest is not trusted. A request counts only if its nodes are here, and a guest
//! gives back no more than it was given: the engine counts the references of all doors together.
//!
//! Invariants:
//! * a node is here before the guest sees the reply that brings it;
//! * as long as a node is here, the engine holds at least one reference for this guest. So its
//!   number means the same inode, also for a request that runs while another one forgets it;
//! * the counts have limits, so a guest cannot make the table grow without bound.
//!
//! The engine learns of a forget only when the node leaves the table, all references at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pramfs_fuse_protocol::numbers::ROOT_ID;

/// Most nodes of a guest: about 400 MiB of memory, with the engine's own counts.
const MAX_NODES: usize = 4 << 20;

/// Most open files of a guest.
const MAX_OPENS: usize = 1 << 20;

/// What a guest has of a node.
#[derive(Debug, Default)]
struct Node {
    /// Lookups that it may forget.
    given: u64,
    /// References of the engine that stand for them, forgotten or not.
    held: u64,
    /// Requests that use the node at this moment.
    pins: u32,
    /// Open files by handle, with how often each is open. There are as many handles as the
    /// adapter has kinds of opens.
    opens: Vec<(u64, u64)>,
}

impl Node {
    fn is_unused(&self) -> bool {
        self.given == 0 && self.pins == 0 && self.opens.is_empty()
    }
}

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Node>,
    opens: usize,
}

impl Table {
    /// Removes a node that nothing uses. Returns the references to give back.
    fn settle(&mut self, id: u64) -> Option<u64> {
        match self.nodes.entry(id) {
            Entry::Occupied(found) if found.get().is_unused() => Some(found.remove().held),
            _ => None,
        }
    }
}

/// References that the engine is to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forgotten {
    pub(super) node: u64,
    pub(super) lookups: u64,
}

/// What is left of a guest at its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remains {
    pub(super) forgotten: Forgotten,
    /// Handles, with how often each is open.
    pub(super) opens: Vec<(u64, u64)>,
}

/// The table.
#[derive(Debug)]
pub(super) struct Nodes {
    table: Mutex<Table>,
    max_nodes: usize,
    max_opens: usize,
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes::with_limits(MAX_NODES, MAX_OPENS)
    }
}

impl Nodes {
    pub(super) fn with_limits(max_nodes: usize, max_opens: usize) -> Nodes {
        Nodes {
            table: Mutex::default(),
            max_nodes,
            max_opens,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the nodes of a request. `None` if the guest was not given one of them. It has the
    /// root without a lookup.
    pub(super) fn pin(&self, ids: [u64; 2]) -> Option<Pinned> {
        let mut pinned = Pinned([ROOT_ID; 2]);
        let mut table = self.lock();
        for (slot, id) in ids.into_iter().enumerate() {
            if id == ROOT_ID {
                continue;
            }
            let Some(node) = table.nodes.get_mut(&id) else {
                for taken in pinned.0.into_iter().filter(|id| *id != ROOT_ID) {
                    if let Some(node) = table.nodes.get_mut(&taken) {
                        node.pins -= 1;
                    }
                }
                return None;
            };
            node.pins += 1;
            pinned.0[slot] = id;
        }
        Some(pinned)
    }

    /// Lets the nodes of a request go. Returns what the engine is to forget.
    pub(super) fn unpin(&self, pinned: Pinned) -> impl Iterator<Item = Forgotten> + use<> {
        let mut table = self.lock();
        let left = pinned.0.map(|id| {
            let node = table.nodes.get_mut(&id).filter(|_| id != ROOT_ID)?;
            node.pins -= 1;
            let lookups = table.settle(id)?;
            Some(Forgotten { node: id, lookups })
        });
        left.into_iter().flatten()
    }

    /// Counts a lookup. Returns false if the guest has as many nodes as it may have.
    pub(super) fn add(&self, id: u64) -> bool {
        let mut table = self.lock();
        let full = table.nodes.len() >= self.max_nodes;
        match table.nodes.entry(id) {
            Entry::Vacant(_) if full => return false,
            entry => {
                let node = entry.or_default();
                node.given = node.given.saturating_add(1);
                node.held = node.held.saturating_add(1);
            }
        }
        true
    }

    /// Counts lookups of a listing. [`room`](Self::room) has said that they fit.
    pub(super) fn add_all(&self, ids: &[u64]) {
        let mut table = self.lock();
        for id in ids {
            let node = table.nodes.entry(*id).or_default();
            node.given = node.given.saturating_add(1);
            node.held = node.held.saturating_add(1);
        }
    }

    /// Whether so many more nodes fit. Other requests may add some meanwhile, no more than one
    /// listing each.
    pub(super) fn room(&self, more: usize) -> bool {
        self.lock().nodes.len().saturating_add(more) < self.max_nodes
    }

    /// Forgets lookups, as many as were given at most.
    pub(super) fn forget(&self, id: u64, lookups: u64) -> Option<Forgotten> {
        let mut table = self.lock();
        let node = table.nodes.get_mut(&id)?;
        node.given = node.given.saturating_sub(lookups);
        let lookups = table.settle(id)?;
        Some(Forgotten { node: id, lookups })
    }

    /// Counts an open file. Returns false if the guest has as many as it may have.
    pub(super) fn opened(&self, id: u64, handle: u64) -> bool {
        let mut table = self.lock();
        if table.opens >= self.max_opens {
            return false;
        }
        table.opens += 1;
        let opens = &mut table.nodes.entry(id).or_default().opens;
        match opens.iter_mut().find(|(of, _)| *of == handle) {
            Some((_, count)) => *count += 1,
            None => opens.push((handle, 1)),
        }
        true
    }

    /// Takes one open file off. Returns false if the guest has no such one.
    pub(super) fn closed(&self, id: u64, handle: u64) -> bool {
        let mut table = self.lock();
        let Some(node) = table.nodes.get_mut(&id) else {
            return false;
        };
        let Some(at) = node.opens.iter().position(|(of, _)| *of == handle) else {
            return false;
        };
        node.opens[at].1 -= 1;
        if node.opens[at].1 == 0 {
            node.opens.swap_remove(at);
        }
        // The request that closes has the node pinned: it stays here until that has ended.
        table.opens -= 1;
        true
    }

    /// Empties the table. No request runs.
    pub(super) fn take_all(&self) -> Vec<Remains> {
        let table = std::mem::take(&mut *self.lock());
        let remains = |(id, node): (u64, Node)| Remains {
            forgotten: Forgotten {
                node: id,
                lookups: node.held,
            },
            opens: node.opens,
        };
        table.nodes.into_iter().map(remains).collect()
    }

    /// Nodes and open files.
    pub(super) fn len(&self) -> (usize, usize) {
        let table = self.lock();
        (table.nodes.len(), table.opens)
    }
}

/// The nodes that a request uses; the root stands for none.
#[derive(Debug)]
#[must_use = "the nodes stay until they are let go"]
pub(super) struct Pinned([u64; 2]);

#[cfg(test)]
mod tests {
    use super::*;

    fn forgotten(node: u64, lookups: u64) -> Option<Forgotten> {
        Some(Forgotten { node, lookups })
    }

    #[test]
    fn pin_of_unknown_node_fails_and_keeps_nothing() {
        let nodes = Nodes::default();
        assert!(nodes.add(20));
        assert!(nodes.pin([20, 21]).is_none());
        assert!(nodes.pin([0, ROOT_ID]).is_none());
        assert_eq!(nodes.forget(20, 1), forgotten(20, 1));
        assert!(nodes.pin([20, ROOT_ID]).is_none());
        let root = nodes.pin([ROOT_ID; 2]).unwrap();
        assert_eq!(nodes.unpin(root).count(), 0);
    }

    #[test]
    fn forget_gives_back_no_more_than_was_given() {
        let nodes = Nodes::default();
        assert!(nodes.add(20) && nodes.add(20) && nodes.add(20));
        assert_eq!(nodes.forget(21, 1), None);
        assert_eq!(nodes.forget(20, 2), None);
        assert_eq!(nodes.forget(20, u64::MAX), forgotten(20, 3));
        assert_eq!(nodes.forget(20, 1), None);
        assert_eq!(nodes.len(), (0, 0));
    }

    #[test]
    fn node_in_use_outlives_forget() {
        let nodes = Nodes::default();
        assert!(nodes.add(20));
        let one = nodes.pin([20, 20]).unwrap();
        let other = nodes.pin([20, ROOT_ID]).unwrap();
        assert_eq!(nodes.forget(20, 1), None);
        assert_eq!(nodes.unpin(one).count(), 0);
        assert_eq!(nodes.unpin(other).next(), forgotten(20, 1));
    }

    #[test]
    fn close_needs_open_with_same_handle() {
        let nodes = Nodes::default();
        assert!(nodes.add(20) && nodes.opened(20, 3) && nodes.opened(20, 3));
        assert!(!nodes.closed(20, 1) && !nodes.closed(21, 3));
        // Forgotten, but still open.
        assert_eq!(nodes.forget(20, 1), None);
        for _ in 0..2 {
            let pinned = nodes.pin([20, ROOT_ID]).unwrap();
            assert!(nodes.closed(20, 3));
            let last = nodes.len() == (1, 0);
            assert_eq!(nodes.unpin(pinned).next().is_some(), last);
        }
        assert!(!nodes.closed(20, 3));
    }

    #[test]
    fn limits_refuse_nodes_and_opens() {
        let nodes = Nodes::with_limits(2, 1);
        assert!(nodes.add(20) && nodes.add(21) && !nodes.add(22));
        assert!(nodes.add(20), "a known node takes no more memory");
        assert!(!nodes.room(0));
        assert!(nodes.opened(20, 1) && !nodes.opened(20, 1));
        let mut all = nodes.take_all();
        all.sort_by_key(|remains| remains.forgotten.node);
        assert_eq!(all[0].forgotten, forgotten(20, 2).unwrap());
        assert_eq!(all[0].opens, [(1, 1)]);
        assert_eq!(nodes.len(), (0, 0));
    }
}
