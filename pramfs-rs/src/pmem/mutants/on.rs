//! The feature turned on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::super::backend::PmemBackend;

/// What is left out, or moved, at a place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A flush is left out.
    Flush,
    /// A non-temporal store becomes an ordinary one that nobody flushes.
    Stream,
    /// A fence is left out.
    Fence,
    /// A fence comes after the stores that follow it, up to the next that is
    /// streamed or flushed: what was to be published after it is published
    /// before.
    Late,
}

/// A place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// File, as the compiler names it.
    pub file: &'static str,
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
    /// What can go wrong there.
    pub kind: Kind,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::Flush => "flush left out",
            Kind::Stream => "stream left in the cache",
            Kind::Fence => "fence left out",
            Kind::Late => "fence after the next store",
        };
        let file = self.file.rsplit_once("src/").map_or(self.file, |(_, f)| f);
        write!(f, "{file}:{}: {what}", self.line)
    }
}

/// Mistakes that file systems for persistent memory had (Chipmunk, EuroSys
/// 2023), as they would look here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A count of links is stored and flushed in place, and not fenced.
    LinkCountUnfenced,
    /// rename removes the old name in one record and adds the new one in the
    /// next.
    RenameRemovesFirst,
    /// What was unlinked or cut before the crash is freed before the records
    /// are replayed.
    TruncateBeforeReplay,
    /// The edge of an unaligned write is stored and not flushed.
    EdgeNotFlushed,
    /// Recovery does not see the last entry of a record.
    RecordCutShort,
    /// Both superblocks get their dynamic words by halves, under one fence.
    SuperblocksTogether,
    /// Recovery replays records that are dead.
    ReplaysTheDead,
    /// An entry of a directory is brought home before its record is durable,
    /// its name last.
    EntryBeforeName,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 8] = [
        Bug::LinkCountUnfenced,
        Bug::RenameRemovesFirst,
        Bug::TruncateBeforeReplay,
        Bug::EdgeNotFlushed,
        Bug::RecordCutShort,
        Bug::SuperblocksTogether,
        Bug::ReplaysTheDead,
        Bug::EntryBeforeName,
    ];
}

/// One mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// At a place in the code.
    At(Site),
    /// A known one.
    Bug(Bug),
}

static CHOSEN: RwLock<Option<Mutant>> = RwLock::new(None);
static ANY: AtomicBool = AtomicBool::new(false);
static LISTENING: AtomicBool = AtomicBool::new(false);
static SITES: Mutex<BTreeMap<Site, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The mapping whose fence is to come after the next store to it.
    static LATE: Cell<usize> = const { Cell::new(0) };
}

/// Makes this mistake from now on, in the whole process; `None` for none.
pub fn choose(mutant: Option<Mutant>) {
    let mut chosen = CHOSEN.write();
    *chosen = mutant;
    ANY.store(mutant.is_some(), Ordering::Release);
}

/// Whether the places that are passed are noted.
pub fn listen(yes: bool) {
    LISTENING.store(yes, Ordering::Relaxed);
}

/// The places noted so far, and how often they were passed.
pub fn sites() -> Vec<(Site, u64)> {
    SITES.lock().iter().map(|(s, n)| (*s, *n)).collect()
}

/// Whether the mistake is to be made here.
#[track_caller]
pub(crate) fn hit(kind: Kind) -> bool {
    let at = Location::caller();
    let here = || Site {
        file: at.file(),
        line: at.line(),
        column: at.column(),
        kind,
    };
    if LISTENING.load(Ordering::Relaxed) {
        *SITES.lock().entry(here()).or_insert(0) += 1;
    }
    ANY.load(Ordering::Acquire) && *CHOSEN.read() == Some(Mutant::At(here()))
}

/// Whether the engine has this mistake.
pub(crate) fn has(bug: Bug) -> bool {
    ANY.load(Ordering::Acquire) && *CHOSEN.read() == Some(Mutant::Bug(bug))
}

/// The fence of a mapping is to come after the next store to it.
pub(crate) fn later(backend: &dyn PmemBackend) {
    LATE.set(backend.base() as usize);
}

/// A store to a mapping was streamed, or is about to be flushed: a late fence
/// comes now.
#[inline]
pub(crate) fn stored(backend: &dyn PmemBackend) {
    if LATE.get() == backend.base() as usize {
        LATE.set(0);
        backend.fence();
    }
}
