//! Storing and reading the copies of the lanes' `retired` words
//! ([`RetiredCopy`](crate::media::retired)).

use zerocopy::IntoBytes;

use super::records::ReadMedium;
use crate::error::{Error, Result};
use crate::media::retired::{RETIRED_COPIES, RetiredCopy, Session};
use crate::media::superblock::DYNAMIC_OFFSET;
use crate::media::{Geometry, Medium, SuperDynamic};
use crate::pmem::{Fenced, PmemError, Unfenced};
use crate::sync::{Mutex, rank};
use crate::types::RegionOffset;

/// The copies of a mount.
#[derive(Debug)]
pub(super) struct Copies {
    /// `None` until the mount may store.
    session: Mutex<Option<Session>, rank::Leaf>,
}

impl Copies {
    pub(super) fn new() -> Copies {
        Copies {
            session: Mutex::new(None),
        }
    }

    /// Stores the copies for all lanes, whose records up to the checkpoint are dead. The dynamic
    /// words of the session are durable, and no record is stored meanwhile.
    pub(super) fn begin(&self, medium: Medium<'_>, session: Session) -> Result<()> {
        *self.session.lock() = Some(session);
        let Medium { region, geo } = medium;
        let Some(at) = RetiredCopy::place(geo, 0) else {
            return Ok(());
        };
        let copies: Vec<RetiredCopy> = (0..geo.lanes.min(RETIRED_COPIES))
            .map(|lane| RetiredCopy::new(geo, lane, session, session.checkpoint))
            .collect();
        let bytes = copies.as_bytes();
        // Copies of an earlier session that stay behind are invalid.
        if !region.is_faulted(at.0, bytes.len() as u64) {
            let w = region.window();
            let _ = w.fence(w.nt_store(at.0, bytes)?);
        }
        Ok(())
    }

    /// Stores the copy of a lane. It may reach the medium before the word itself or after it, since
    /// the homes of the records are durable (`after`). If it cannot be stored, the mark is.
    pub(super) fn store(
        &self,
        medium: Medium<'_>,
        lane: u32,
        lsn: u64,
        after: Fenced,
    ) -> Result<Unfenced> {
        let Some(session) = *self.session.lock() else {
            return Ok(Unfenced::none());
        };
        let Medium { region, geo } = medium;
        let Some(at) = RetiredCopy::place(geo, lane) else {
            return Ok(Unfenced::none());
        };
        let w = region.window();
        let fails = || region.is_faulted(at.0, RetiredCopy::SIZE as u64);
        if !fails() {
            let RetiredCopy { retired, check } = RetiredCopy::new(geo, lane, session, lsn);
            let put = |at: RegionOffset, word| match w.publish_u64(at.0, word, after) {
                Err(PmemError::Faulted { .. }) => Ok(Unfenced::none()),
                done => done.map_err(Error::from),
            };
            let stored = put(at, retired)?.join(put(at.word(1), check)?);
            if !fails() {
                return Ok(stored);
            }
        }
        // Each time: the fence of another lane, which has stored it before, may be still to come.
        let (at, mark) = session.void_mark(geo);
        Ok(w.publish_u64(at.0, mark, after)?)
    }

    /// Whether the copy of a lane tells `retired`, or the checkpoint if that is higher. True if
    /// there is none to look at: no session, a failed page, or the mark.
    pub(super) fn fits(&self, medium: Medium<'_>, lane: u32, retired: u64) -> Result<bool> {
        let Some(session) = *self.session.lock() else {
            return Ok(true);
        };
        let Medium { region, geo } = medium;
        let Some(at) = RetiredCopy::place(geo, lane) else {
            return Ok(true);
        };
        let (mark_at, mark) = session.void_mark(geo);
        if region.is_faulted(at.0, RetiredCopy::SIZE as u64) || region.load_u64(mark_at.0)? == mark
        {
            return Ok(true);
        }
        let copy: RetiredCopy = region.read_pod(at.0)?;
        let told = copy.lsn(geo, lane, session);
        Ok(told == Some(retired.max(session.checkpoint)))
    }
}

/// Returns the session that the dynamic words of both pages tell; `None` if they disagree, if one
/// cannot be read, or if its copies are void.
fn session(from: &impl ReadMedium, geo: &Geometry, checkpoint: u64) -> Option<Session> {
    let at = DYNAMIC_OFFSET + std::mem::offset_of!(SuperDynamic, mounts) as u64;
    let [first, copy] = geo.pages().map(|page| from.load_u64(page + at).ok());
    let mounts = first.filter(|mounts| copy == Some(*mounts))?;
    let session = Session { checkpoint, mounts };
    let (at, mark) = session.void_mark(geo);
    (from.load_u64(at).ok()? != mark).then_some(session)
}

/// Returns the copy of a lane's `retired` word, if there is a valid one.
pub fn retired_copy(
    from: &impl ReadMedium,
    geo: &Geometry,
    lane: u32,
    checkpoint: u64,
) -> Option<u64> {
    let session = session(from, geo, checkpoint)?;
    let at = RetiredCopy::place(geo, lane)?;
    let [retired, check] = [0, 1].map(|word| from.load_u64(at.word(word)).ok());
    let copy = RetiredCopy {
        retired: retired?,
        check: check?,
    };
    copy.lsn(geo, lane, session)
}
