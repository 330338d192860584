//! Lives that end suddenly: writers that keep a log outside of the file
//! system, and the check of a file system against such a log.
//!
//! A *life* is one run of some writers over a file system, through either
//! access, until it is killed. Each writer has a directory of its own and names
//! of its own in a directory that all share. Which operation comes next
//! follows from a seed and from what the writer has, so that the log needs
//! only what each call returned: its length says how many did. After the death
//! the check does the same operations in memory and compares: all that had
//! returned must be there, and of the one that was under way before or after,
//! as `docs/consistency.md` has it.
//!
//! * `state`: what a writer has, and its form in a file.
//! * `op`: operations: the next one, its effect, and how it is done.
//! * `found`: what a file system shows.
//! * `partial`: what a crash may leave of a write.
//! * `work`: which operations a writer does.
//!
//! A [`Record`] is a directory that outlives the writers: for each of them
//! what it had at the start, and its log.

mod found;
mod op;
mod partial;
mod state;
mod work;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub use found::Found;
use op::Op;
pub use state::State;
pub use work::Work;

use crate::random::Random;
use crate::stress::Target;
use found::{COMMON, home};

/// Where the logs are, who writes, and from which seed.
#[derive(Debug, Clone)]
pub struct Record {
    dir: PathBuf,
    works: Vec<Work>,
    seed: u64,
}

/// What a check has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Operations that had returned, all of them found.
    pub returned: u64,
    /// Of those, the ones that a full region refused.
    pub refused: u64,
    /// Operations under way that had not happened.
    pub before: u32,
    /// That had.
    pub after: u32,
    /// Writes of which a part was there.
    pub part: u32,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.returned += other.returned;
        self.refused += other.refused;
        self.before += other.before;
        self.after += other.after;
        self.part += other.part;
    }
}

/// Whether an error says that the server of a mount is gone.
///
/// EIO says so only where nothing is answered any more. The kernel gives it to
/// a request that a server was reading when it was killed: copying into a page
/// of the server's that is not there yet fails once the signal is pending.
fn is_death<D: Target>(access: &D, errno: i32) -> bool {
    match errno {
        // ECANCELED: of a request in a queue of io_uring.
        libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => true,
        libc::EIO => !is_alive(access),
        _ => false,
    }
}

/// Whether the server answers. One that has been killed may still answer one
/// request for each of its threads: returning from the next ends the thread.
fn is_alive<D: Target>(access: &D) -> bool {
    const MORE_THAN_THREADS: u32 = 256;
    static ASKED: AtomicU64 = AtomicU64::new(0);
    (0..MORE_THAN_THREADS).all(|_| {
        // A name that nobody has, and that no cache of the kernel's knows.
        let n = ASKED.fetch_add(1, Ordering::Relaxed);
        let name = format!("is anybody there {n}");
        let answer = access
            .root()
            .and_then(|root| access.lookup(&root, name.as_bytes()));
        matches!(answer, Ok(_) | Err(libc::ENOENT))
    })
}

impl Record {
    /// A record in `dir`, which exists, of writers that do everything.
    pub fn new(dir: &Path, writers: u32, seed: u64) -> Record {
        Record::of(dir, &vec![Work::Everything; writers as usize], seed)
    }

    /// A record in `dir`, which exists, of writers with these works.
    pub fn of(dir: &Path, works: &[Work], seed: u64) -> Record {
        Record {
            dir: dir.to_owned(),
            works: works.to_owned(),
            seed,
        }
    }

    fn writers(&self) -> std::ops::Range<u32> {
        0..self.works.len() as u32
    }

    /// Makes the directories of the writers in an empty file system, and
    /// forgets what there is of an earlier one.
    ///
    /// # Errors
    /// What fails, in words.
    pub fn begin<D: Target>(&self, access: &D) -> Result<(), String> {
        let errno = |e: i32| format!("the directories of the writers: errno {e}");
        let root = access.root().map_err(errno)?;
        access.mkdir(&root, COMMON).map_err(errno)?;
        for writer in self.writers() {
            access.mkdir(&root, &home(writer)).map_err(errno)?;
            self.save(writer, &State::new())
                .map_err(|e| self.broken(writer, &e))?;
        }
        Ok(())
    }

    /// One writer of one life: works until the file system is gone, or until
    /// it has done `most` operations.
    ///
    /// # Errors
    /// What it finds at its start that is not what the last check has left,
    /// and calls that fail for no reason.
    pub fn live<D: Target>(&self, access: &D, writer: u32, most: u64) -> Result<(), String> {
        self.live_while(access, writer, |n| n < most)
    }

    /// As [`live`](Self::live), until the file system is gone, or until
    /// `go_on`, which is given the number of operations so far, says no.
    ///
    /// # Errors
    /// As for [`live`](Self::live).
    pub fn live_while<D: Target>(
        &self,
        access: &D,
        writer: u32,
        go_on: impl Fn(u64) -> bool,
    ) -> Result<(), String> {
        let mut state = self.load(writer).map_err(|e| self.broken(writer, &e))?;
        let expected = Found::of(&state, writer);
        match Found::see(access, Some(writer)) {
            Ok(found) if found == expected => {}
            Ok(found) => {
                let what = expected.differences(&found);
                return Err(format!("before the first operation:\n{what}"));
            }
            Err(e) if e.died => return Ok(()),
            Err(e) => return Err(e.what),
        }
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(writer, "log"))
            .map_err(|e| self.broken(writer, &e))?;
        // Files without a name that stay open.
        let mut held = Vec::new();
        for n in (0..).take_while(|n| go_on(*n)) {
            let op = self.next(writer, &state, n);
            let returned = match op.perform(access, &state, writer, &mut held) {
                // The kernel splits a write into requests. If the server dies after it has
                // executed one, and before it has replied, the call returns the bytes of those
                // before it, and more may be found: the write was under way.
                Ok(count) if count < op.whole() && !is_alive(access) => return Ok(()),
                Ok(count) => count,
                Err(e) if is_death(access, e) => return Ok(()),
                Err(libc::ENOSPC) => -i64::from(libc::ENOSPC),
                Err(e) => {
                    return Err(format!("writer {writer}, operation {n}: {op:?}: errno {e}"));
                }
            };
            // One write of eight bytes: it is in the log or it is not.
            log.write_all(&returned.to_le_bytes())
                .map_err(|e| self.broken(writer, &e))?;
            op.apply(&mut state, returned);
        }
        Ok(())
    }

    /// Returns how many operations have returned in this life.
    pub fn returned(&self) -> u64 {
        let logs = self.writers().map(|writer| self.path(writer, "log"));
        // A writer that has not begun has no log.
        let bytes = logs.filter_map(|log| Some(std::fs::metadata(log).ok()?.len()));
        bytes.sum::<u64>() / 8
    }

    /// Compares a file system with the record of the life that has ended, and
    /// makes what was found the start of the next.
    ///
    /// # Errors
    /// What is missing or cannot be explained.
    pub fn check<D: Target>(&self, access: &D) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        let mut found = Found::see(access, None).map_err(|e| e.what)?;
        let mut next = Vec::new();
        for writer in self.writers() {
            let mut state = self.load(writer).map_err(|e| self.broken(writer, &e))?;
            let log = self.log(writer).map_err(|e| self.broken(writer, &e))?;
            for (n, returned) in log.iter().enumerate() {
                let op = self.next(writer, &state, n as u64);
                op.apply(&mut state, *returned);
                outcome.returned += 1;
                outcome.refused += u64::from(*returned < 0);
            }
            let under_way = self.next(writer, &state, log.len() as u64);
            let own = found.take(writer);
            state = self
                .explain(writer, state, &under_way, &own, &mut outcome)
                .map_err(|what| {
                    let n = log.len();
                    format!("writer {writer} after {n} operations, with {under_way:?} under way:\n{what}")
                })?;
            state.life += 1;
            next.push(state);
        }
        let strangers = found.differences_from_nothing();
        if !strangers.is_empty() {
            return Err(format!("nobody has made these:\n{strangers}"));
        }
        for (writer, state) in next.iter().enumerate() {
            let writer = writer as u32;
            self.save(writer, state)
                .map_err(|e| self.broken(writer, &e))?;
        }
        Ok(outcome)
    }

    /// The state before the operation under way, after it, or with a part of
    /// it, whichever was found.
    fn explain(
        &self,
        writer: u32,
        before: State,
        under_way: &Op,
        own: &Found,
        outcome: &mut Outcome,
    ) -> Result<State, String> {
        let expected = Found::of(&before, writer);
        if *own == expected {
            outcome.before += 1;
            return Ok(before);
        }
        let mut after = before.clone();
        under_way.apply(&mut after, under_way.whole());
        let expected_after = Found::of(&after, writer);
        if *own == expected_after {
            outcome.after += 1;
            return Ok(after);
        }
        let partial = match self.works[writer as usize].may_tear(under_way) {
            true => partial::explain(&before, &after, under_way, own, writer),
            false => None,
        };
        match partial {
            Some(Ok(state)) => {
                outcome.part += 1;
                return Ok(state);
            }
            Some(Err(what)) => return Err(what),
            None => {}
        }
        Err(format!(
            "neither the state before:\n{}nor the one after:\n{}",
            expected.differences(own),
            expected_after.differences(own)
        ))
    }

    fn next(&self, writer: u32, state: &State, n: u64) -> Op {
        let mut random = Random::new(self.seed ^ u64::from(writer) << 56 ^ state.life << 32 ^ n);
        // Neighbouring seeds have neighbouring first words.
        let mut random = Random::new(random.word());
        self.works[writer as usize].next(state, writer, &mut random)
    }

    fn path(&self, writer: u32, what: &str) -> PathBuf {
        self.dir.join(format!("w{writer}.{what}"))
    }

    fn broken(&self, writer: u32, e: &io::Error) -> String {
        format!(
            "the record of writer {writer} in {}: {e}",
            self.dir.display()
        )
    }

    fn load(&self, writer: u32) -> io::Result<State> {
        let bytes = fs::read(self.path(writer, "state"))?;
        State::decode(&bytes).ok_or_else(|| io::Error::other("the state cannot be read"))
    }

    /// A new start, and an empty log after it.
    fn save(&self, writer: u32, state: &State) -> io::Result<()> {
        let new = self.path(writer, "new");
        let mut file = File::create(&new)?;
        file.write_all(&state.encode())?;
        match fs::remove_file(self.path(writer, "log")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::rename(new, self.path(writer, "state"))
    }

    fn log(&self, writer: u32) -> io::Result<Vec<i64>> {
        let bytes = match fs::read(self.path(writer, "log")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let words = bytes.as_chunks().0.iter().copied();
        Ok(words.map(i64::from_le_bytes).collect())
    }
}
