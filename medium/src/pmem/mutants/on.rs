//! The implementation with the feature turned on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::backend::PmemBackend;
use crate::sync::{Mutex, RwLock, rank};

/// The step that is omitted, or moved, at a place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A flush is omitted.
    Flush,
    /// A non-temporal store becomes an ordinary one that is not flushed.
    Stream,
    /// A fence is omitted.
    Fence,
    /// A fence comes after the stores that follow it, up to the next streaming store or
    /// flush: data to be published after the fence is published before it.
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
    /// The mistake possible there.
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

/// Mistakes found in other file systems for persistent memory (Chipmunk, EuroSys 2023), in
/// the form they would take here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A link count is stored and flushed in place, but not fenced.
    LinkCountUnfenced,
    /// rename removes the old name in one record and adds the new one in the
    /// next.
    RenameRemovesFirst,
    /// Files unlinked or truncated before the crash are freed before the records are
    /// replayed.
    TruncateBeforeReplay,
    /// The edge of an unaligned write is stored, but not flushed.
    EdgeNotFlushed,
    /// Recovery ignores the last entry of a record.
    RecordCutShort,
    /// Both superblocks get their dynamic words in halves, under one fence.
    SuperblocksTogether,
    /// Recovery replays dead records.
    ReplaysTheDead,
    /// A directory entry is stored in place before its record is durable, with its name
    /// last.
    EntryBeforeName,
}

impl Bug {
    /// All bugs.
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
    /// A known mistake.
    Bug(Bug),
}

static CHOSEN: RwLock<Option<Mutant>, rank::Leaf> = RwLock::new(None);
static ANY: AtomicBool = AtomicBool::new(false);
static LISTENING: AtomicBool = AtomicBool::new(false);
static SITES: Mutex<BTreeSet<Site>, rank::Leaf> = Mutex::new(BTreeSet::new());

/// The mistake's name, for a process that was started with it.
static FROM_OUTSIDE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(CHOICE).ok());
/// Environment variable that names a mistake, as [`Site`] or [`Bug`] is printed.
pub const CHOICE: &str = "PRAMFS_MUTANT";
/// Environment variable that names a file. The places that are passed are appended to it,
/// as they are printed.
pub const NOTES: &str = "PRAMFS_MUTANT_SITES";
static NOTES_FILE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(NOTES).ok());

thread_local! {
    /// Places that this thread has noted.
    static SEEN: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
    /// The mapping whose fence is delayed until after the next store to it.
    static LATE: Cell<usize> = const { Cell::new(0) };
}

/// Enables this mistake from now on, in the whole process; `None` disables it.
pub fn choose(mutant: Option<Mutant>) {
    let mut chosen = CHOSEN.write();
    *chosen = mutant;
    ANY.store(mutant.is_some(), Ordering::Release);
}

/// Sets whether the places that are passed are noted.
pub fn listen(yes: bool) {
    LISTENING.store(yes, Ordering::Relaxed);
}

/// Returns the places noted so far.
pub fn sites() -> Vec<Site> {
    SITES.lock().iter().copied().collect()
}

#[cold]
fn note(site: Site) {
    if SEEN.with_borrow_mut(|seen| seen.insert(site))
        && SITES.lock().insert(site)
        && let Some(path) = &*NOTES_FILE
    {
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(e) = file.and_then(|mut f| f.write_all(format!("{site}\n").as_bytes())) {
            panic!("cannot note a place in {path}: {e}");
        }
    }
}

/// Whether to make the mistake here.
#[track_caller]
pub fn hit(kind: Kind) -> bool {
    let at = Location::caller();
    let here = || Site {
        file: at.file(),
        line: at.line(),
        column: at.column(),
        kind,
    };
    if LISTENING.load(Ordering::Relaxed) || NOTES_FILE.is_some() {
        note(here());
    }
    if let Some(name) = &*FROM_OUTSIDE {
        return here().to_string() == *name;
    }
    ANY.load(Ordering::Acquire) && *CHOSEN.read() == Some(Mutant::At(here()))
}

/// Whether the engine has this mistake.
pub fn has(bug: Bug) -> bool {
    if let Some(name) = &*FROM_OUTSIDE {
        return format!("{bug:?}") == *name;
    }
    ANY.load(Ordering::Acquire) && *CHOSEN.read() == Some(Mutant::Bug(bug))
}

/// Delays the fence of a mapping until after the next store to it.
pub fn later(backend: &dyn PmemBackend) {
    LATE.set(backend.base() as usize);
}

/// A store to a mapping was streamed, or is about to be flushed: a delayed fence is issued
/// now.
#[inline]
pub fn stored(backend: &dyn PmemBackend) {
    if LATE.get() == backend.base() as usize {
        LATE.set(0);
        backend.fence();
    }
}
