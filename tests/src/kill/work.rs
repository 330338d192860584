//! What a writer does: every operation, or those that a client with leases does without a call.

use super::op::{Bytes, Name, Op, SIZE, contents};
use super::state::{OWN, State};
use crate::random::Random;

/// What a writer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Every operation.
    Everything,
    /// Overwrites blocks of a file in place, by writes and through maps.
    Overwrites,
    /// Appends to a file, and begins a new one when it is full. A crash leaves each append
    /// whole or not at all.
    Appends,
    /// Overwrites and appends by turns.
    Both,
}

/// The file of a writer that does not do everything.
const FILE: &[u8] = b"file";
/// Size of a file that is overwritten.
const BLOCKS: u64 = 128 << 10;
/// Longest append: the mount too makes one record of it.
const APPEND: u64 = 40_000;

impl Work {
    /// The operation that follows from the state and the generator.
    pub(super) fn next(self, state: &State, writer: u32, random: &mut Random) -> Op {
        let file = || (OWN, FILE.to_vec());
        if self == Work::Everything {
            return Op::next(state, writer, random);
        }
        if state.find(OWN, FILE).is_none() {
            return Op::Create(file());
        }
        let size = contents(state, &file()).len() as u64;
        let appends = match self {
            Work::Overwrites => size < BLOCKS,
            Work::Both => size == 0 || random.one_in(2),
            Work::Everything | Work::Appends => true,
        };
        if !appends {
            return overwrite(file(), size, random);
        }
        let usual = [64, 4096, 9000, APPEND][random.below(4) as usize];
        let new = some_bytes(1 + random.below(usual), random);
        match size + new.0.len() as u64 > SIZE {
            true => Op::Unlink(file(), false),
            false => Op::Append(file(), new),
        }
    }

    /// Whether a crash may leave a part of an append.
    pub(super) fn may_tear(self, op: &Op) -> bool {
        self != Work::Appends || !matches!(op, Op::Append(..))
    }
}

/// Stores to bytes that are there.
fn overwrite(file: Name, size: u64, random: &mut Random) -> Op {
    let from = random.below(size);
    let len = 1 + random.below((size - from).min(9000));
    match random.one_in(2) {
        true => Op::Write(file, from, some_bytes(len, random)),
        // Whole words; a file that is shorter than one has none.
        false if from / 8 < size / 8 => {
            let words = (size / 8 - from / 8).min(1 + random.below(256));
            Op::Store(file, from / 8 * 8, some_bytes(words * 8, random))
        }
        false => Op::Write(file, from, some_bytes(len, random)),
    }
}

fn some_bytes(len: u64, random: &mut Random) -> Bytes {
    let mut new = vec![0; len as usize];
    random.fill(&mut new);
    Bytes(new)
}
