//! A snapshot of a live file system, read over a socket of its own.
//!
//! The server passes the socket in its answer. It first sends the plan, or why there is no
//! snapshot, then answers requests one at a time. The snapshot ends with the socket. All numbers
//! are u64, little-endian:
//!
//! | | |
//! |---|---|
//! | request | operation, two arguments |
//! | answer | errno or 0, number of bytes, the bytes: what was asked for, or a sentence |
//!
//! | operation | arguments | answer |
//! |---|---|---|
//! | 1: read | first block, number of blocks, at most [`MOST_BYTES`] | the blocks |
//! | 2: the fixed blocks are read | 0, 0 | none |
//! | 3: blocks below this one are read | block, 0 | none |
//! | 4: files mapped for writing | 0, 0 | a JSON array of [`SnapshotFile`] |
//!
//! The plan: bytes of a block, blocks of a group, number of fixed runs, first block and end of
//! each, number of groups, the block of each group's bitmap or [`u64::MAX`].

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const READ: u64 = 1;
const RELEASE_FIXED: u64 = 2;
const RELEASE_BELOW: u64 = 3;
const FILES: u64 = 4;

/// Most bytes that one request reads.
pub const MOST_BYTES: u64 = 1 << 20;
/// Most bytes of an answer: a plan of 1 PiB.
const MOST_ANSWER: u64 = 256 << 20;
/// Time for an answer, and from one request to the next. The first answer waits for the end of all
/// operations under way.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks of the superblock pages and the journal, which are read first.
    pub fixed: Vec<Range<u64>>,
    /// Blocks of a group.
    pub per_group: u64,
    /// The block of each group's bitmap; `None`: all blocks of the group are free.
    pub bitmaps: Vec<Option<u64>>,
}

/// A file that a program stored to meanwhile without the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFile {
    /// Number of the inode.
    pub inode: u64,
    /// Its path in the file system, if the server knows it.
    pub path: Option<String>,
}

/// Why a request failed: errno and a sentence.
pub type Failed = (i32, String);

/// A snapshot, for the thread that serves it.
pub trait SnapshotSource {
    /// What it holds.
    fn plan(&self) -> SnapshotPlan;
    /// Reads whole blocks.
    ///
    /// # Errors
    /// The snapshot has ended; the medium failed.
    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Failed>;
    /// The fixed blocks are read.
    fn release_fixed(&self);
    /// Blocks below this one are read.
    fn release_below(&self, block: u64);
    /// Files that are, or were, mapped for writing.
    ///
    /// # Errors
    /// The snapshot has ended: nothing that was read after its end is of its moment.
    fn files(&self) -> Result<Vec<SnapshotFile>, Failed>;
}

/// Makes snapshots. The calls come from the thread that answers all clients.
pub trait Snapshots: std::fmt::Debug + Send + Sync {
    /// Starts a thread that makes a snapshot with so many bytes of memory, and
    /// [serves](serve_snapshot) it.
    ///
    /// # Errors
    /// There is no thread.
    fn start(&self, most: u64, socket: UnixStream) -> io::Result<()>;
}

/// Serves a snapshot, or says why there is none, until the other side closes its socket.
///
/// # Errors
/// Those of the socket; a request that makes no sense.
pub fn serve_snapshot(
    mut socket: UnixStream,
    source: Result<&dyn SnapshotSource, Failed>,
) -> io::Result<()> {
    let source = match source {
        Ok(source) => source,
        Err(failed) => return answer(&mut socket, Err(failed), &[]),
    };
    // A reader that stops keeps no snapshot, which is in the way of others.
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let plan = source.plan();
    answer(&mut socket, Ok(()), &encode(&plan))?;
    let mut buffer = Vec::new();
    loop {
        let mut request = [0; 24];
        match socket.read_exact(&mut request) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [op, a, b] = words(&request);
        match op {
            READ => {
                let len = b.checked_mul(plan.block_size).filter(|l| *l <= MOST_BYTES);
                let len = len.ok_or_else(|| invalid("a read of too many blocks"))?;
                buffer.resize(len as usize, 0);
                let read = source.read(a, &mut buffer);
                answer(&mut socket, read, &buffer)?;
            }
            RELEASE_FIXED => source.release_fixed(),
            RELEASE_BELOW => source.release_below(a),
            FILES => {
                let files = source.files().map(|files| serde_json::to_vec(&files));
                match files {
                    Ok(files) => answer(&mut socket, Ok(()), &files.map_err(io::Error::other)?)?,
                    Err(failed) => answer(&mut socket, Err(failed), &[])?,
                }
            }
            _ => return Err(invalid("an unknown request about a snapshot")),
        }
    }
}

fn answer(socket: &mut UnixStream, done: Result<(), Failed>, bytes: &[u8]) -> io::Result<()> {
    let (errno, bytes) = match &done {
        Ok(()) => (0, bytes),
        // 0 would be no error.
        Err((errno, why)) => (u64::from(errno.unsigned_abs().max(1)), why.as_bytes()),
    };
    socket.write_all(&errno.to_le_bytes())?;
    socket.write_all(&(bytes.len() as u64).to_le_bytes())?;
    socket.write_all(bytes)
}

fn encode(plan: &SnapshotPlan) -> Vec<u8> {
    let mut all = vec![plan.block_size, plan.per_group, plan.fixed.len() as u64];
    all.extend(plan.fixed.iter().flat_map(|run| [run.start, run.end]));
    all.push(plan.bitmaps.len() as u64);
    all.extend(plan.bitmaps.iter().map(|at| at.unwrap_or(u64::MAX)));
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(bytes: &[u8]) -> Option<SnapshotPlan> {
    let (chunks, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let mut all = chunks.iter().map(|word| u64::from_le_bytes(*word));
    let mut next = || all.next();
    let (block_size, per_group, runs) = (next()?, next()?, next()?);
    let fixed = (0..runs).map(|_| Some(next()?..next()?));
    let fixed = fixed.collect::<Option<Vec<_>>>()?;
    let groups = next()?;
    let bitmaps: Vec<_> = all.map(|at| (at != u64::MAX).then_some(at)).collect();
    let is_sound = block_size.is_power_of_two()
        && (512..=MOST_BYTES).contains(&block_size)
        && per_group != 0
        && per_group.is_multiple_of(64)
        && per_group <= block_size * 8
        && fixed.iter().all(|run| run.start <= run.end)
        && bitmaps.len() as u64 == groups;
    is_sound.then_some(SnapshotPlan {
        block_size,
        fixed,
        per_group,
        bitmaps,
    })
}

fn words<const N: usize, const B: usize>(bytes: &[u8; B]) -> [u64; N] {
    let (chunks, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| chunks.get(i).map_or(0, |word| u64::from_le_bytes(*word)))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The reader's end of a snapshot. Dropping it ends the snapshot.
#[derive(Debug)]
pub struct SnapshotReader {
    socket: UnixStream,
    plan: SnapshotPlan,
}

impl SnapshotReader {
    /// Waits for the snapshot.
    ///
    /// # Errors
    /// The server has made none, for a reason that the error says; no answer in a minute.
    pub fn new(socket: UnixStream) -> io::Result<SnapshotReader> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut bytes = Vec::new();
        receive(&socket, &mut bytes)?;
        let plan = decode(&bytes).ok_or_else(|| invalid("the server sent a senseless plan"))?;
        Ok(SnapshotReader { socket, plan })
    }

    /// What the snapshot holds.
    pub fn plan(&self) -> &SnapshotPlan {
        &self.plan
    }

    fn send(&self, request: [u64; 3]) -> io::Result<()> {
        let mut bytes = [0; 24];
        for (into, word) in bytes.chunks_exact_mut(8).zip(request) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        (&self.socket).write_all(&bytes)
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// The snapshot has ended, or the medium failed: the error says it; the server has ended.
    pub fn read(&self, first: u64, into: &mut [u8]) -> io::Result<()> {
        let size = self.plan.block_size;
        let at_once = (MOST_BYTES / size * size) as usize;
        let mut bytes = Vec::new();
        for (number, part) in into.chunks_mut(at_once).enumerate() {
            let first = first + number as u64 * (MOST_BYTES / size);
            self.send([READ, first, part.len() as u64 / size])?;
            receive(&self.socket, &mut bytes)?;
            if bytes.len() != part.len() {
                return Err(invalid("the server sent another number of blocks"));
            }
            part.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// The fixed blocks are read.
    ///
    /// # Errors
    /// The server has ended.
    pub fn release_fixed(&self) -> io::Result<()> {
        self.send([RELEASE_FIXED, 0, 0])
    }

    /// The blocks below this one are read.
    ///
    /// # Errors
    /// The server has ended.
    pub fn release_below(&self, block: u64) -> io::Result<()> {
        self.send([RELEASE_BELOW, block, 0])
    }

    /// Returns the files that programs may have stored to without the server, so far. To be asked
    /// after the last read: the snapshot has not ended before.
    ///
    /// # Errors
    /// The snapshot or the server has ended.
    pub fn files(&self) -> io::Result<Vec<SnapshotFile>> {
        self.send([FILES, 0, 0])?;
        let mut bytes = Vec::new();
        receive(&self.socket, &mut bytes)?;
        serde_json::from_slice(&bytes).map_err(io::Error::other)
    }
}

/// Receives the bytes of an answer.
fn receive(mut socket: &UnixStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut head = [0; 16];
    socket.read_exact(&mut head).map_err(gone)?;
    let [errno, len]: [u64; 2] = words(&head);
    if len > MOST_ANSWER {
        return Err(invalid("the server sent an answer that is too long"));
    }
    bytes.resize(len as usize, 0);
    socket.read_exact(bytes).map_err(gone)?;
    match errno {
        0 => Ok(()),
        _ => {
            let kind = io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(0)).kind();
            let why = String::from_utf8_lossy(bytes).into_owned();
            Err(io::Error::new(kind, why))
        }
    }
}

fn gone(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the server has not answered for {} s", PATIENCE.as_secs()),
        ),
        io::ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "the server has ended"),
        _ => e,
    }
}

#[cfg(test)]
mod tests;
