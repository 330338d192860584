//! The file system that a workload runs on, its model, and the processes that hold leases.

use std::collections::BTreeSet;
use std::sync::Arc;

use pramfs::inode::{Fs, Ino, Time};
use pramfs::{DataMode, MountOptions};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::media::{Geometry, Medium};
use pramfs_medium::pmem::{Event, EventKind, LINE, SimBackend};

use super::act::act;
use super::action::Action;
use super::fixture::{Fixture, START};
use super::leased::{self, Held, Kept};
use super::machine::Machine;
use super::oracle::{Still, options};
use crate::model::{Call, Follower};
use crate::region;

/// A mounted file system whose stores are recorded.
pub(super) struct Live {
    fs: Option<Fs>,
    sim: SimBackend,
    /// The model.
    pub f: Follower,
    options: MountOptions,
    clock: Arc<Still>,
    geo: Geometry,
    now: i64,
    /// The slots that processes hold.
    pub held: Held,
    /// What they could map so far.
    promised: Kept,
    /// Files that were made shorter beside a lease, or have had an append window. Their
    /// blocks past the end go with the last lease.
    cut: BTreeSet<Ino>,
}

/// A thread of no workload.
const NOBODY: u32 = u32::MAX;

impl Live {
    /// Mounts a fixture.
    ///
    /// # Errors
    /// Those of the mount, in words.
    pub(super) fn new(fixture: &Fixture, rules: Rules) -> Result<Live, String> {
        let clock = Still::at(START + 1000);
        let options = MountOptions {
            rules: Rules {
                inode_batches: false,
                long_windows: false,
                ..rules
            },
            data: match fixture.keeps_data {
                true => fixture.data,
                false => DataMode::InPlace,
            },
            ..options(&clock)
        };
        let sim = SimBackend::from_image(&fixture.image).map_err(|e| e.to_string())?;
        sim.recording(true);
        let mut live = Live {
            fs: None,
            geo: pramfs_medium::media::probe_superblock(&region::region_of(&sim))
                .map_err(|e| e.to_string())?
                .geometry(),
            sim,
            f: fixture.follower.clone(),
            options,
            clock,
            now: START + 1000,
            held: fixture.held.clone(),
            promised: Kept::new(),
            cut: BTreeSet::new(),
        };
        live.mount()?;
        Ok(live)
    }

    fn mount(&mut self) -> Result<(), String> {
        let region = leased::hold(region::region_of(&self.sim), &self.held);
        let fs = Fs::open(region, self.options.clone()).map_err(|e| e.to_string())?;
        self.fs = Some(fs);
        Ok(())
    }

    pub(super) fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("a remount that fails ends the run")
    }

    /// Compares everything with the model.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        let fs = self.fs.as_ref().ok_or("not mounted")?;
        self.f.compare(fs)
    }

    /// The memory.
    pub(super) fn image(&self) -> Vec<u8> {
        self.sim.image()
    }

    /// What was stored, flushed and fenced since the last call.
    pub(super) fn events(&self) -> Vec<Event> {
        self.sim.take_record()
    }

    /// Ends the record: what the mount would do when it is dropped is not part of the run.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.sim.recording(false);
        self.check_promises()
    }

    /// Prepares for an action: time goes on, and processes end, if it says so.
    ///
    /// # Errors
    /// A process does not map any more what it could map.
    pub(super) fn begin(&mut self, action: &Action) -> Result<(), String> {
        self.check_promises()?;
        self.now += 1;
        self.clock.set(self.now);
        self.f.model.now = Time {
            sec: self.now,
            nsec: 7,
        };
        if let Action::EndLeases { node } = action {
            for slot in leased::let_go(self.fs(), &self.f, *node) {
                self.held.remove(&slot);
            }
        }
        Ok(())
    }

    /// Carries an action out, on a thread that uses a lane. False if it was refused.
    ///
    /// # Errors
    /// Where engine and model differ.
    pub(super) fn act(&mut self, action: &Action, lane: u32) -> Result<bool, String> {
        let cut = self.cuts(action)?;
        let done = on_lane(lane, || match action {
            Action::Remount => {
                let fs = self.fs.take();
                fs.map_or(Ok(()), Fs::close).map_err(|e| e.to_string())?;
                self.mount().map(|()| true)
            }
            _ => act(self.fs.as_ref().ok_or("not mounted")?, &mut self.f, action),
        })?;
        self.cut.extend(cut.filter(|_| done));
        let leases = self.fs().leases();
        self.cut.retain(|ino| leases.iter().any(|l| l.ino == *ino));
        let slots = leased::slots_of(self.fs());
        if matches!(action, Action::Lease { .. }) {
            // Who gets a lease holds it when the grant returns.
            self.held.extend(&slots);
        }
        match slots == self.held {
            true => Ok(done),
            false => Err(format!("leases {slots:?} of held slots {:?}", self.held)),
        }
    }

    /// The leased file that an action makes shorter, or allocates blocks past the end of.
    fn cuts(&self, action: &Action) -> Result<Option<Ino>, String> {
        if let Action::OpenWindow { node, bytes } = action {
            let ino = self.f.ino(*node);
            let size = self.f.model.node(*node).size();
            let mapped = leased::kept(self.fs().region_to_damage(), &self.geo)?;
            let block = self.geo.block_size;
            let mut ahead = size.div_ceil(block)..(size + bytes).div_ceil(block);
            let has = |index: u64| {
                let mut of_file = mapped.values().filter(|m| m.ino == ino);
                of_file.any(|m| m.blocks.contains_key(&index))
            };
            // Blocks that somebody has preallocated stay.
            return Ok((!ahead.all(has)).then_some(ino));
        }
        let Some(Call::SetAttr { node, set }) = action.as_call() else {
            return Ok(None);
        };
        let Some(new) = set.size else {
            return Ok(None);
        };
        let shorter = new <= self.f.model.node(node).size();
        let ino = self.f.ino(node);
        let is_leased = self.fs().leases().iter().any(|lease| lease.ino == ino);
        Ok((shorter && is_leased).then_some(ino))
    }

    /// Whether the blocks past the end of a file are gone, or go with the next mount, if
    /// processes hold these slots.
    pub(super) fn loses_tail(&self, ino: Ino, held: &Held) -> bool {
        let mut leases = self.fs().leases().into_iter();
        self.cut.contains(&ino) && !leases.any(|l| l.ino == ino && held.contains(&l.slot))
    }

    /// Checks that all is in place still that processes could map before the last action.
    fn check_promises(&mut self) -> Result<(), String> {
        let mut now = leased::kept(self.fs().region_to_damage(), &self.geo)?;
        now.retain(|slot, _| self.held.contains(slot));
        self.promised.retain(|slot, _| self.held.contains(slot));
        leased::compare(&self.promised, &now)?;
        self.promised = now;
        Ok(())
    }

    /// Makes the words certain that holders of leases watch. No later action flushes them;
    /// each would be uncertain to the end.
    ///
    /// # Errors
    /// Where the lease table cannot be read.
    pub(super) fn write_views_back(&self, machine: &mut Machine) -> Result<(), String> {
        let medium = Medium {
            region: self.fs().region_to_damage(),
            geo: &self.geo,
        };
        let event = |kind, offset: usize, bytes: Vec<u8>| Event {
            seq: 0,
            thread: NOBODY,
            kind,
            offset: offset as u64,
            bytes,
        };
        for slot in leased::places(medium)? {
            let at = leased::view_line(slot);
            let line = machine.current()[at..at + LINE as usize].to_vec();
            machine.run(&event(EventKind::Flush, at, line));
        }
        machine.run(&event(EventKind::Fence, 0, Vec::new()));
        Ok(())
    }
}

/// Runs on a thread that uses a lane; the calling thread has lane 0.
fn on_lane<T: Send>(lane: u32, run: impl FnOnce() -> T + Send) -> T {
    if lane == 0 {
        return run();
    }
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            set_thread_lane(lane);
            run()
        });
        match thread.join() {
            Ok(r) => r,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
