//! What the oracle has seen: images, media and states, by hash.
//!
//! Workers share it. A long run forgets, and then looks at some images twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::state::State;

/// A state that was seen; equal states have the same number.
pub type StateId = u32;

/// Recovered media that are known, by hash.
#[derive(Debug, Default)]
pub struct Known {
    pub(super) images: Shards<StateId>,
    pub(super) media: Shards<StateId>,
    recoveries: Shards<()>,
    states: Mutex<States>,
    pub(super) checked: AtomicU64,
}

#[derive(Debug, Default)]
struct States {
    all: Vec<Arc<State>>,
    by_text: HashMap<u64, Vec<StateId>>,
}

/// Entries of a shard; 16 of these are some 200 MB.
const MOST: usize = 500_000;

#[derive(Debug)]
pub(super) struct Shards<T>(Vec<Mutex<HashMap<u64, T>>>);

impl<T> Default for Shards<T> {
    fn default() -> Self {
        Shards((0..16).map(|_| Mutex::default()).collect())
    }
}

impl<T: Copy> Shards<T> {
    pub(super) fn get(&self, hash: u64) -> Option<T> {
        self.0[(hash >> 60) as usize].lock().get(&hash).copied()
    }
    /// Whether it is new.
    pub(super) fn put(&self, hash: u64, value: T) -> bool {
        let mut shard = self.0[(hash >> 60) as usize].lock();
        // Long runs forget, and look at some images twice.
        if shard.len() >= MOST {
            shard.clear();
        }
        shard.insert(hash, value).is_none()
    }
}

impl Known {
    /// The number of a state.
    pub fn number(&self, state: State) -> StateId {
        let text = hash_of(&state);
        let mut states = self.states.lock();
        let candidates = states.by_text.get(&text).cloned().unwrap_or_default();
        if let Some(id) = candidates
            .iter()
            .find(|id| *states.all[**id as usize] == state)
        {
            return *id;
        }
        let id = states.all.len() as StateId;
        states.all.push(Arc::new(state));
        states.by_text.entry(text).or_default().push(id);
        id
    }

    /// A state by its number.
    pub fn state(&self, id: StateId) -> Arc<State> {
        Arc::clone(&self.states.lock().all[id as usize])
    }

    /// States that were seen.
    pub fn states(&self) -> usize {
        self.states.lock().all.len()
    }

    /// Media that were checked and used so far.
    pub fn media_checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Whether a recovery of these events on this medium is new.
    pub fn is_new_recovery(&self, hash: u64) -> bool {
        self.recoveries.put(hash, ())
    }
}

fn hash_of(state: &State) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut h = DefaultHasher::new();
    for (path, n) in &state.tree.nodes {
        path.hash(&mut h);
        (n.id.0, n.id.1, n.nlink, n.size, n.blocks, n.perm, n.flags).hash(&mut h);
        n.data.hash(&mut h);
        n.xattrs.hash(&mut h);
        [n.times.0, n.times.1].map(|t| (t.sec, t.nsec)).hash(&mut h);
    }
    (&state.label, &state.pieces, &state.kept).hash(&mut h);
    h.finish()
}
