//! A crash in one operation: at every fence that its run records, the images
//! that a power failure could leave are mounted, and must show the file system
//! as it was before the operation or as it is after it.

use std::sync::Arc;

use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs_medium::journal::{Rules, set_thread_lane};

use super::images::Limits;
use super::machine::Torn;
use super::oracle::Oracle;
use super::state::bytes_between;
use crate::random::Random;
use crate::recorded::{Recorded, recovered_tree};
use crate::region::repeatable;
use crate::tree::Tree;

/// What a crash in an operation may leave.
#[derive(Debug, Clone, Copy)]
pub enum Allowed {
    /// The state before or after.
    Exact,
    /// The same, but times of inodes may be old.
    Lagging,
    /// The same. And until the operation has returned, each aligned word within these bytes of
    /// a file may be old or new, and its size and number of blocks lie between.
    Words {
        /// The path of the file.
        path: &'static str,
        /// The first byte, and the end.
        range: (u64, u64),
    },
    /// Anything that the check accepts, given the states before and after.
    Between(fn(&Tree, &Tree, &Tree) -> bool),
}

/// One operation.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name, by which `CASE=` picks it.
    pub name: &'static str,
    /// Bytes of a block.
    pub block_size: u32,
    /// What is there before it.
    pub setup: fn(&Fs),
    /// The operation.
    pub run: fn(&Fs),
    /// What may be seen after a crash in it.
    pub allowed: Allowed,
}

impl Case {
    /// A case of blocks of 4096 bytes and nothing in between.
    pub const fn new(name: &'static str, setup: fn(&Fs), run: fn(&Fs)) -> Case {
        Case {
            name,
            block_size: 4096,
            setup,
            run,
            allowed: Allowed::Exact,
        }
    }

    /// The same with other blocks.
    #[must_use]
    pub const fn blocks(self, block_size: u32) -> Case {
        Case { block_size, ..self }
    }

    /// The same with other states allowed.
    #[must_use]
    pub const fn allow(self, allowed: Allowed) -> Case {
        Case { allowed, ..self }
    }
}

/// The caller of everything.
pub const CX: Credentials<'_> = Credentials::new(0, 0);

/// The inode of a path.
///
/// # Panics
/// Where there is none.
pub fn ino(fs: &Fs, path: &str) -> Ino {
    fs.resolve(path.as_bytes()).unwrap().ino
}

/// A new file in the root.
///
/// # Panics
/// Where it cannot be made.
pub fn file(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let f = fs
        .create(&CX, Ino::ROOT, name.as_bytes(), 0o644)
        .unwrap()
        .ino;
    assert_eq!(fs.write(&CX, f, 0, data).unwrap(), data.len());
    f
}

/// Random bytes.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

/// Changes attributes of a path.
///
/// # Panics
/// Where that is refused.
pub fn setattr(fs: &Fs, path: &str, set: SetAttr) {
    fs.setattr(&CX, ino(fs, path), &set).unwrap();
}

/// `/f`, whose blocks take several records to free.
///
/// # Panics
/// Where it cannot be written.
pub fn fragmented(fs: &Fs) {
    let f = file(fs, "f", b"");
    for i in 0..40u64 {
        fs.write(&CX, f, i << 24, &pattern(600, i)).unwrap();
    }
}

/// A region of the size of most cases.
const LEN: usize = 512 << 10;

/// Single lines, some pairs and some random combinations: what all of them
/// leave, of other operations, is the explorer's.
const LIMITS: Limits = Limits {
    lines: 3,
    pairs: 12,
    random: 6,
    torn: Torn::Edges,
};

fn sweep(case: &Case) -> usize {
    set_thread_lane(0);
    let mut format = repeatable(case.block_size);
    format.lanes = Some(2);
    let rules = Rules {
        long_windows: false,
        ..Rules::default()
    };
    let mut rec = Recorded::new(LEN, &format, rules);
    // The inode table grows by a record of its own, which is another case.
    rec.fs.create(&CX, Ino::ROOT, b"first", 0o600).unwrap();
    (case.setup)(&rec.fs);
    let from = rec.now();
    let before = recovered_tree(&rec.sim.image()).unwrap();
    (case.run)(&rec.fs);
    let to = rec.now();
    let after = recovered_tree(&rec.sim.image()).unwrap();
    let live = Tree::of(&rec.fs).unwrap();
    let settled = |t: &Tree| Tree {
        free: after.free,
        free_inodes: after.free_inodes,
        ..t.clone()
    };
    if !matches!(case.allowed, Allowed::Lagging | Allowed::Words { .. }) {
        let d = after.differences(&settled(&live));
        assert!(
            d.is_empty(),
            "{}: recovery changes the state:\n{d}",
            case.name
        );
    }
    let events = rec.events()[from..to].to_vec();
    let mut oracle = Oracle::new(&Arc::default(), rec.start()).unwrap();
    let free = |t: &Tree| Tree {
        free: 0,
        free_inodes: 0,
        ..t.clone()
    };
    // The oracle's check knows what is free.
    let (before, after) = (free(&before), free(&after));
    oracle.everywhere(rec.at(from), &events, &LIMITS, &mut |moment, found| {
        let at = || format!("{}: crash at event {moment} of {}", case.name, events.len());
        let found = match found {
            Ok(state) => &state.tree,
            Err(e) => panic!("{}: {e}", at()),
        };
        let returned = moment == events.len();
        let ok = match case.allowed {
            Allowed::Exact if !returned => *found == before || *found == after,
            Allowed::Exact => *found == after,
            Allowed::Lagging => lags(&before, found, &after),
            Allowed::Words { .. } if returned => {
                found.clone().timeless() == after.clone().timeless()
            }
            Allowed::Words { path, range } => {
                words_lie_between(&before, found, &after, path, range)
            }
            Allowed::Between(_) if returned => *found == after,
            Allowed::Between(f) => f(&before, found, &after),
        };
        assert!(
            ok,
            "{}\n--- against the state before:\n{}--- against the state after:\n{}",
            at(),
            before.differences(found),
            after.differences(found)
        );
    })
}

/// Whether a tree is that before or that after, but for times.
fn lags(before: &Tree, found: &Tree, after: &Tree) -> bool {
    let found = found.clone().timeless();
    found == before.clone().timeless() || found == after.clone().timeless()
}

/// Whether a tree is that before or that after, but for times and for words of a file.
fn words_lie_between(
    before: &Tree,
    found: &Tree,
    after: &Tree,
    path: &str,
    range: (u64, u64),
) -> bool {
    let node = |t: &Tree| t.nodes.get(path.as_bytes()).cloned();
    let (Some(a), Some(n), Some(b)) = (node(before), node(found), node(after)) else {
        return false;
    };
    let blocks = a.blocks.min(b.blocks)..=a.blocks.max(b.blocks);
    let with = |t: &Tree| {
        let mut t = t.clone();
        let Some(of) = t.nodes.get_mut(path.as_bytes()) else {
            return t;
        };
        (of.size, of.blocks, of.data) = (n.size, n.blocks, n.data.clone());
        t
    };
    blocks.contains(&n.blocks)
        && bytes_between(&a, &n, &b, &(range.0..range.1))
        && lags(&with(before), found, &with(after))
}

/// All cases, or those that the variable `CASE` names a part of.
///
/// # Panics
/// Where an image shows what it may not.
pub fn sweep_all(cases: &[Case]) {
    let mut images = 0;
    let only = std::env::var("CASE").ok();
    let named = |case: &&Case| only.as_ref().is_none_or(|o| case.name.contains(o.as_str()));
    for case in cases.iter().filter(named) {
        let n = sweep(case);
        println!("{:50} {n:5} images", case.name);
        images += n;
    }
    println!("{images} images");
}
