//! A file system whose every store, flush and fence since mkfs is recorded, so
//! that it can be crashed at any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pramfs::Damage;
use pramfs::format::FormatOptions;
use pramfs::{
    Clock, MountOptions, Result,
    inode::{Fs, Time},
};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_medium::journal::Rules;
use pramfs_medium::media::Geometry;
use pramfs_medium::pmem::{Event, SimBackend};

use crate::crash::Machine;
use crate::region;
use crate::tree::Tree;

/// A clock that goes on by a second at each look: no two operations have the
/// same time, and each run has the same times.
#[derive(Debug)]
pub struct Ticks(AtomicI64);

impl Ticks {
    /// A clock that starts at `sec`.
    pub fn from(sec: i64) -> Arc<Ticks> {
        Arc::new(Ticks(AtomicI64::new(sec)))
    }
}

impl Clock for Ticks {
    fn now(&self) -> Time {
        Time {
            sec: self.0.fetch_add(1, Ordering::Relaxed),
            nsec: 7,
        }
    }
}

/// What the medium holds before mkfs, so that bytes that nobody wrote show.
pub const STALE: u8 = 0xee;

/// Mount options that a run can be repeated with; damage found later does not
/// stop the walk.
pub fn options(rules: Rules) -> MountOptions {
    MountOptions {
        clock: Ticks::from(1_800_000_000),
        errors: pramfs::ErrorPolicy::Continue,
        rules: Rules {
            inode_batches: false,
            ..rules
        },
        ..region::quiet()
    }
}

/// A mounted file system on a recorded region.
#[derive(Debug)]
pub struct Recorded {
    /// The region.
    pub sim: SimBackend,
    /// The file system.
    pub fs: Fs,
    start: Vec<u8>,
    events: Vec<Event>,
}

impl Recorded {
    /// A fresh file system of `len` bytes, on a medium full of [`STALE`].
    pub fn new(len: usize, format: &FormatOptions, rules: Rules) -> Recorded {
        let sim = SimBackend::from_image(&vec![STALE; len]).unwrap();
        pramfs::format::format(&region::region_of(&sim), format).unwrap();
        Recorded::from_sim(sim, rules).unwrap()
    }

    /// Mounts an image, recovery included in the record.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn from_image(image: &[u8], rules: Rules) -> Result<Recorded> {
        Recorded::from_sim(SimBackend::from_image(image)?, rules)
    }

    fn from_sim(sim: SimBackend, rules: Rules) -> Result<Recorded> {
        let start = sim.image();
        sim.recording(true);
        let fs = region::mount(&sim, options(rules))?;
        Ok(Recorded {
            sim,
            fs,
            start,
            events: Vec::new(),
        })
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.fs.superblock().geometry()
    }

    /// The image at the beginning of the record.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Puts events into the record that the caller has taken from the backend.
    pub fn add(&mut self, mut events: Vec<Event>) {
        self.events.append(&mut events);
    }

    /// All events so far.
    pub fn events(&mut self) -> &[Event] {
        self.events.append(&mut self.sim.take_record());
        &self.events
    }

    /// How many events there are so far: the name of this moment.
    pub fn now(&mut self) -> usize {
        self.events().len()
    }

    /// The machine after so many events.
    pub fn at(&mut self, moment: usize) -> Machine {
        let mut m = Machine::new(self.start.clone());
        m.run_all(&self.events()[..moment]);
        m
    }

    /// The machine now.
    pub fn machine(&mut self) -> Machine {
        let now = self.now();
        self.at(now)
    }
}

/// Mounts an image after a crash.
///
/// # Errors
/// Those of the mount.
pub fn recover(image: &[u8]) -> Result<Fs> {
    region::mount(&SimBackend::from_image(image)?, options(Rules::default()))
}

/// What an image holds after recovery. It is unmounted, checked as
/// `pramfs check` does, and mounted once more before the look.
///
/// # Errors
/// Those of the mounts and of the walk; damage that recovery reports, and
/// whatever the check finds.
pub fn recovered_tree(image: &[u8]) -> Result<Tree> {
    let sim = SimBackend::from_image(image)?;
    let first = region::mount(&sim, options(Rules::default()))?;
    if let Some(damage) = first.recovery().damage.first() {
        return Err(pramfs::Error::corrupt(
            Damage::LaneDamaged,
            "the journal",
            damage.clone(),
        ));
    }
    first.close()?;
    let checked = fsck::check(&region::region_of(&sim), &CheckOptions::default());
    if !checked.is_clean() {
        return Err(pramfs::Error::corrupt(
            Damage::Unreadable,
            "the check",
            checked.to_string(),
        ));
    }
    let second = region::mount(&sim, options(Rules::default()))?;
    let report = second.recovery();
    if report.records > 0 || report.torn > 0 || report.orphans > 0 || !report.was_clean {
        let what = format!("not clean after an unmount: {report:?}");
        return Err(pramfs::Error::corrupt(
            Damage::LaneDamaged,
            "the journal",
            what,
        ));
    }
    Tree::of(&second)
}
