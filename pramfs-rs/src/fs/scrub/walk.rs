//! The steps of a scrub.

use std::sync::atomic::Ordering;

use crate::fs::Engine;
use crate::fs::scrub::finding::ScrubFinding;
use crate::fs::scrub::position::Phase;
use crate::fs::scrub::unit::{Look, Scrubber, Unit};
use pramfs_medium::error::Result;

/// Looks at what seems wrong before the last one, which no operation disturbs.
const LOOKS: u32 = 3;

/// What a step has read and found.
#[derive(Debug)]
pub(crate) struct Stepped {
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong there.
    pub found: Vec<ScrubFinding>,
}

impl Scrubber<'_> {
    /// Takes a step; `None` if all was read.
    ///
    /// # Errors
    /// The file system is closed or has failed; memory ran out. The scrub stays where it is.
    pub(crate) fn step(&mut self) -> Result<Option<Stepped>> {
        if self.at.phase == Phase::End {
            return Ok(None);
        }
        let mut looks = 0;
        let unit = loop {
            let before = self.counted;
            let unit = match looks {
                0 => self.under_gate(Look::First)?,
                1..LOOKS => self.under_gate(Look::Again)?,
                _ => break self.alone()?,
            };
            if unit.found.is_empty() {
                break unit;
            }
            looks += 1;
            self.counted = before;
        };
        self.at = unit.next;
        if !unit.found.is_empty() {
            // What is damaged cannot be counted.
            self.counted.version = None;
        }
        Ok(Some(Stepped {
            bytes: unit.bytes,
            found: unit.found,
        }))
    }

    fn under_gate(&mut self, look: Look) -> Result<Unit> {
        let _gate = self.engine.enter()?;
        self.unit(look)
    }

    /// Looks while no operation is under way.
    #[cold]
    fn alone(&mut self) -> Result<Unit> {
        let engine = self.engine;
        let _all = engine.gate.write().map_err(|_| engine.ended())?;
        if !engine.is_up() {
            return Err(engine.ended());
        }
        self.unit(Look::Again)
    }

    fn unit(&mut self, look: Look) -> Result<Unit> {
        match self.at.phase {
            Phase::Pages => self.pages(),
            Phase::Journal => self.lane(),
            Phase::BlockGroups | Phase::InodeGroups => self.group(),
            Phase::Tables => self.table(),
            Phase::Inodes => self.inode(look),
            Phase::End => Ok(Unit::done(self.at, 0)),
        }
    }
}

impl Engine {
    /// Whether a scrub may keep its record on the medium.
    pub(crate) fn keeps_scrubs(&self) -> bool {
        !self.quiet.load(Ordering::Relaxed) && !self.vol.region.info().read_only
    }

    /// Bytes that a scrub of everything reads, an estimate.
    pub(crate) fn bytes_to_scrub(&self) -> u64 {
        let (free, _) = self.vol.free_blocks();
        let geo = &self.vol.geo;
        geo.bytes(geo.blocks().saturating_sub(free))
    }
}
