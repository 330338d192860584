//! Model and engine side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pramfs::{
    AtimePolicy, Clock, Error, ErrorPolicy, FileExtent, FileType, MountOptions,
    inode::{Fs, Gathered, Time, Vacated},
};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_medium::format::FormatOptions;
use pramfs_medium::media::inode::FL_IMMUTABLE;
use pramfs_medium::pmem::SimBackend;

use super::compare::{Answer, Differs, Ids, Times, call, compare, compare_tree, no_data};
use super::ops::{Op, Pick, expand, part};
use super::state::{Body, Call, Failure, Model, Node, NodeId, Value};
use crate::region::{formatted, mount, region_of, repeatable};

/// Where and how to run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the file system at first. The region is twice as large: it can grow.
    pub region: usize,
    /// Bytes of a block.
    pub block_size: u32,
    /// Operations between two comparisons of the whole tree.
    pub compare_every: usize,
    /// Writes of megabytes.
    pub huge: bool,
}

/// A clock that goes on by one second with each call.
#[derive(Debug, Default)]
struct Ticks(AtomicI64);

const START: i64 = 1_700_000_000;

impl Clock for Ticks {
    fn now(&self) -> Time {
        Time {
            sec: START + self.0.load(Ordering::Relaxed),
            nsec: 77,
        }
    }
}

/// A model and an engine.
#[derive(Debug)]
pub struct Runner {
    options: Options,
    /// The model, for tests that look at it.
    pub model: Model,
    fs: Option<Fs>,
    sim: SimBackend,
    ids: Ids,
    clock: Arc<Ticks>,
    /// Bytes of the file system.
    size: u64,
    steps: usize,
    /// Calls that were answered with ENOSPC.
    pub full: usize,
    /// Calls made.
    pub calls: usize,
    /// Parts of files that were moved.
    pub gathered: usize,
    /// Parts of files that have left a leaf.
    pub vacated: usize,
    /// Times that the file system became larger.
    pub grown: usize,
}

impl Runner {
    /// A fresh file system of both.
    ///
    /// # Errors
    /// What went wrong.
    pub fn new(options: Options) -> Differs<Runner> {
        let format = FormatOptions {
            size: Some(options.region as u64),
            ..repeatable(options.block_size)
        };
        let sim = formatted(2 * options.region, &format).map_err(|e| e.to_string())?;
        let clock = Arc::new(Ticks::default());
        let mut runner = Runner {
            options,
            model: Model::new(Time {
                sec: START,
                nsec: 0,
            }),
            fs: None,
            sim,
            ids: Ids::root(),
            clock,
            size: options.region as u64,
            steps: 0,
            full: 0,
            calls: 0,
            gathered: 0,
            vacated: 0,
            grown: 0,
        };
        runner.open()?;
        Ok(runner)
    }

    /// The engine.
    pub fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("it is open but during a remount")
    }

    /// The medium. A crash replaces it by a copy, which records if the old one did.
    pub fn sim(&self) -> &SimBackend {
        &self.sim
    }

    fn open(&mut self) -> Differs {
        let options = MountOptions {
            background: false,
            atime: AtimePolicy::NoAtime,
            errors: ErrorPolicy::Continue,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            ..MountOptions::default()
        };
        let fs = mount(&self.sim, options).map_err(|e| format!("the mount: {e}"))?;
        if !fs.recovery().damage.is_empty() {
            return Err(format!(
                "the mount found damage: {:?}",
                fs.recovery().damage
            ));
        }
        self.fs = Some(fs);
        Ok(())
    }

    /// One operation on both.
    ///
    /// # Errors
    /// What differs.
    pub fn step(&mut self, op: &Op) -> Differs {
        match op {
            Op::Remount => self.remount()?,
            Op::Crash => self.crash()?,
            Op::Statfs => self.statfs()?,
            Op::Gather(p, at) => self.gather(*p, *at)?,
            Op::Vacate(p, at, leaf) => self.vacate(*p, *at, *leaf)?,
            Op::Grow(n) => self.grow(*n)?,
            _ => {
                for c in expand(&self.model, op, self.options.huge) {
                    // An earlier call of the same operation may have ended a
                    // node's life.
                    self.call(&c).map_err(|e| format!("{}: {e}", brief(&c)))?;
                }
            }
        }
        self.steps += 1;
        if self.steps.is_multiple_of(self.options.compare_every) {
            self.compare_all(Times::Exact)?;
        }
        Ok(())
    }

    /// Compares the whole trees, before and after a remount.
    ///
    /// # Errors
    /// What differs.
    pub fn finish(&mut self) -> Differs {
        self.compare_all(Times::Exact)?;
        self.remount()
    }

    fn compare_all(&mut self, times: Times) -> Differs {
        let fs = self.fs.as_ref().ok_or("not mounted")?;
        compare_tree(fs, &mut self.model, &self.ids, times)
    }

    fn remount(&mut self) -> Differs {
        let orphans = self.model.nodes().filter(|(_, n)| n.nlink == 0).count();
        let before = self.fs().statfs().map_err(|e| e.to_string())?;
        if let Some(fs) = self.fs.take() {
            fs.close().map_err(|e| format!("the unmount: {e}"))?;
        }
        self.check(orphans as u64)?;
        self.model.end_of_mount();
        self.open()?;
        if !self.fs().recovery().was_clean {
            return Err("after an unmount the file system is not clean".into());
        }
        self.compare_all(Times::Exact)
            .map_err(|e| format!("after a remount: {e}"))?;
        let after = self.fs().statfs().map_err(|e| e.to_string())?;
        if orphans == 0 && before != after {
            return Err(format!(
                "statfs before the unmount and after the mount:\n  {before:?}\n  {after:?}"
            ));
        }
        self.statfs()
    }

    /// Checks what an unmount has left.
    fn check(&self, orphans: u64) -> Differs {
        let report = fsck::check(&region_of(&self.sim), &CheckOptions::default());
        if !report.is_clean() {
            return Err(format!("fsck after the unmount: {report}"));
        }
        let c = report.counts;
        let named = |n: &&Node| n.nlink > 0;
        let nodes: Vec<_> = self.model.nodes().map(|(_, n)| n).filter(named).collect();
        let entries: usize = nodes
            .iter()
            .map(|n| match &n.body {
                Body::Dir { entries, .. } => entries.len(),
                _ => 0,
            })
            .sum();
        let xattrs: usize = self.model.nodes().map(|(_, n)| n.xattrs.len()).sum();
        let got = (c.inodes, c.entries, c.xattrs, c.orphans);
        let expected = (
            nodes.len() as u64 + orphans,
            entries as u64,
            xattrs as u64,
            orphans,
        );
        if got != expected {
            return Err(format!(
                "fsck counts {got:?} inodes, entries, xattrs, orphans; {expected:?} are right"
            ));
        }
        Ok(())
    }

    fn crash(&mut self) -> Differs {
        let image = SimBackend::from_image(&self.sim.image()).map_err(|e| e.to_string())?;
        // What the old engine does from here on, it does to its own memory.
        let old = self.fs.take();
        image.recording(self.sim.recording(false));
        self.sim = image;
        self.model.end_of_mount();
        self.open().map_err(|e| format!("after a crash: {e}"))?;
        drop(old);
        self.compare_all(Times::MayLag)
            .map_err(|e| format!("after a crash: {e}"))?;
        self.remount().map_err(|e| format!("after a crash: {e}"))
    }

    fn statfs(&mut self) -> Differs {
        let s = self.fs().statfs().map_err(|e| e.to_string())?;
        let in_use = self.model.nodes().count() as u64;
        let sane = s.available <= s.free
            && s.free < s.blocks
            && s.name_max == 255
            && s.block_size == self.options.block_size
            && s.blocks == self.size / u64::from(self.options.block_size)
            && s.free_inodes + in_use < s.inodes;
        if sane {
            Ok(())
        } else {
            Err(format!("statfs with {in_use} inodes in use: {s:?}"))
        }
    }

    /// The first part of each file, and another part. The model stays as it is.
    fn gather(&mut self, p: Pick, at: u16) -> Differs {
        let all = self.model.nodes();
        let files = all.filter(|(_, n)| n.kind() == FileType::Regular && n.size() > 0);
        let starts: Vec<_> = files.map(|(id, _)| (id, 0)).collect();
        // Few parts are scattered and have no holes.
        (starts.into_iter().chain([part(&self.model, p, at)]))
            .try_for_each(|(node, offset)| self.gather_part(node, offset))
    }

    fn gather_part(&mut self, node: NodeId, offset: u64) -> Differs {
        let right = match self.model.node(node).kind() {
            FileType::Regular => None,
            FileType::Directory => Some(libc::EISDIR),
            _ => Some(libc::EINVAL),
        };
        let got = self.fs().gather(self.ids.ino(node), offset);
        match (&got, right) {
            (Ok(done), None) => self.gathered_right(node, offset, *done),
            (Err(e), Some(errno)) if e.errno() == errno => Ok(()),
            _ => Err(format!(
                "gather of node {node} at {offset}: {got:?}; errno {right:?} is right"
            )),
        }
    }

    /// What an answer says is so.
    fn gathered_right(&mut self, node: NodeId, offset: u64, done: Gathered) -> Differs {
        let (fs, ino) = (self.fs(), self.ids.ino(node));
        let part = fs.gather_unit();
        let wrong = |why: &str| {
            Err(format!(
                "gather of node {node} at {offset}: {done:?}, {why}"
            ))
        };
        let is_immutable = self.model.node(node).flags & FL_IMMUTABLE != 0;
        match done {
            Gathered::Immutable if is_immutable => Ok(()),
            Gathered::Immutable => wrong("and the file is not"),
            _ if is_immutable => wrong("and the file is immutable"),
            Gathered::Moved | Gathered::Whole => {
                let again = fs.gather(ino, offset).map_err(|e| e.to_string())?;
                if again != Gathered::Whole {
                    return wrong(&format!("and then {again:?}"));
                }
                let runs = fs.file_extents(ino, offset / part * part, part);
                let runs = runs.map_err(|e| e.to_string())?;
                let follow = runs.windows(2).all(|two| {
                    two[0].region_offset.map(|at| at + two[0].len) == two[1].region_offset
                });
                self.gathered += usize::from(done == Gathered::Moved);
                match follow && runs.iter().all(|run| run.region_offset.is_some()) {
                    true => Ok(()),
                    false => wrong(&format!("and lies in {runs:?}")),
                }
            }
            Gathered::Holes => Ok(()),
            Gathered::NoSpace => {
                // Pointer blocks are needed, too.
                let free = fs.free_space().map_err(|e| e.to_string())?;
                let power = (part / u64::from(self.options.block_size)).ilog2() as usize + 2;
                let is_roomy = match free.leaves {
                    Some(leaves) => leaves > 1,
                    None => free.runs[power..].iter().any(|runs| *runs > 0),
                };
                match is_roomy {
                    true => wrong(&format!("with {free:?}")),
                    false => Ok(()),
                }
            }
            Gathered::Mapped | Gathered::Leased | Gathered::Unsummed => wrong("and it is not"),
        }
    }

    /// One leaf, of the first part of each file, and of another part. The model stays as it is.
    fn vacate(&mut self, p: Pick, at: u16, leaf: u16) -> Differs {
        let all = self.model.nodes();
        let files = all.filter(|(_, n)| n.kind() == FileType::Regular && n.size() > 0);
        let mut starts: Vec<_> = files.map(|(id, _)| (id, 0)).collect();
        let (node, offset) = part(&self.model, p, at);
        starts.push((node, offset));
        let unit = self.fs().gather_unit();
        let mut leaf = u64::from(leaf) % (self.size / unit).max(1) * unit;
        // Seldom is anything in a leaf that is chosen at random.
        if at.is_multiple_of(4) {
            leaf += 1;
        } else if let Ok(extents) = self.fs().file_extents(self.ids.ino(node), offset, unit)
            && let Some(place) = extents.iter().find_map(|e| e.region_offset)
        {
            leaf = place / unit * unit;
        }
        starts
            .into_iter()
            .try_for_each(|(node, offset)| self.vacate_part(node, offset, leaf))
    }

    fn vacate_part(&mut self, node: NodeId, offset: u64, leaf: u64) -> Differs {
        let (kind, flags) = {
            let node = self.model.node(node);
            (node.kind(), node.flags)
        };
        let (fs, ino) = (self.fs(), self.ids.ino(node));
        let unit = fs.gather_unit();
        let right = match kind {
            _ if !leaf.is_multiple_of(unit) || leaf + unit > self.size => Some(libc::EINVAL),
            FileType::Regular => None,
            FileType::Directory => Some(libc::EISDIR),
            _ => Some(libc::EINVAL),
        };
        let got = fs.vacate(ino, offset, leaf);
        let wrong = |why: &str| {
            Err(format!(
                "vacate of {leaf:#x} from node {node} at {offset}: {got:?}, {why}"
            ))
        };
        let is_immutable = flags & FL_IMMUTABLE != 0;
        match (&got, right) {
            (Err(e), Some(errno)) if e.errno() == errno => Ok(()),
            (_, Some(errno)) => wrong(&format!("and errno {errno} is right")),
            (Err(_), None) => wrong("and no error is right"),
            (Ok(Vacated::Immutable), None) if is_immutable => Ok(()),
            (Ok(_), None) if is_immutable => wrong("and the file is immutable"),
            (Ok(Vacated::Moved | Vacated::Nothing), None) => {
                let again = fs.vacate(ino, offset, leaf);
                if !matches!(again, Ok(Vacated::Nothing)) {
                    return wrong(&format!("and then {again:?}"));
                }
                let part = fs.file_extents(ino, offset / unit * unit, unit);
                let is_there = |e: &FileExtent| {
                    e.region_offset
                        .is_some_and(|place| place < leaf + unit && leaf < place + e.len)
                };
                let is_past_end = offset >= self.model.node(node).size();
                match part {
                    Ok(part) if !is_past_end && part.iter().any(is_there) => {
                        wrong(&format!("and lies in {part:?}"))
                    }
                    Err(e) => wrong(&e.to_string()),
                    Ok(_) => {
                        self.vacated += usize::from(matches!(got, Ok(Vacated::Moved)));
                        Ok(())
                    }
                }
            }
            (Ok(Vacated::Unwritten | Vacated::NoSpace), None) => Ok(()),
            (Ok(Vacated::Whole), None) if self.options.block_size == 4096 => Ok(()),
            (Ok(_), None) => wrong("and it is not"),
        }
    }

    fn grow(&mut self, n: u8) -> Differs {
        if n.is_multiple_of(8) {
            let smaller = self.size - u64::from(self.options.block_size);
            return match self.fs().grow(Some(smaller)) {
                Err(e) if e.errno() == libc::EINVAL => self.statfs(),
                other => Err(format!("shrunk to {smaller}: {other:?}")),
            };
        }
        // By one block, by some, by a part of the region, or to its end.
        let block = u64::from(self.options.block_size);
        let most = 2 * self.options.region as u64;
        let step = match n % 4 {
            0 => block,
            1 => u64::from(n) * block,
            2 => self.options.region as u64 / 4,
            _ => most,
        };
        let (from, to) = (self.size, (self.size + step).min(most));
        let before = self.fs().statfs().map_err(|e| e.to_string())?;
        match self.fs().grow(Some(to)) {
            Ok(grown) if (grown.from, grown.to) == (from, to) => self.size = to,
            Err(Error::NoSpace(why)) => {
                self.full += 1;
                self.near_full(0).map_err(|e| format!("{e} ({why})"))?;
                // It may have grown by a part.
                let blocks = self.fs().statfs().map_err(|e| e.to_string())?.blocks;
                self.size = blocks * block;
            }
            other => return Err(format!("grown from {from} to {to}: {other:?}")),
        }
        let after = self.fs().statfs().map_err(|e| e.to_string())?;
        if !(from..=to).contains(&self.size)
            || after.inodes < before.inodes
            || after.free < before.free
            || after.free_inodes < before.free_inodes
        {
            return Err(format!(
                "grown from {from} to {}, asked for {to}:\n  {before:?}\n  {after:?}",
                self.size
            ));
        }
        self.grown += usize::from(self.size > from);
        self.statfs()
    }

    fn call(&mut self, c: &Call) -> Differs {
        self.calls += 1;
        let tick = self.clock.0.fetch_add(1, Ordering::Relaxed) + 1;
        self.model.now = Time {
            sec: START + tick,
            nsec: 77,
        };
        let fs = self.fs.as_ref().ok_or("not mounted")?;
        let answer = call(fs, &self.ids, c);
        if let Err(Error::NoSpace(why)) = &answer {
            let why = *why;
            return self.out_of_space(c, why);
        }
        let mut shortened = None;
        let next = self.model.next_id();
        if let (Ok(Answer::Count(n)), Some(most)) = (&answer, self.model.wanted(c))
            && *n > 0
            && *n < most
        {
            // As much as there was room for.
            self.full += 1;
            self.near_full(most - n)?;
            shortened = Some(c.shortened(*n));
        }
        let c = shortened.as_ref().unwrap_or(c);
        match (answer, self.model.call(c)) {
            (Ok(answer), Ok(value)) => {
                if let (
                    Call::Make { .. } | Call::MakeUnnamed { .. },
                    Answer::Attr(a),
                    Value::Node(id),
                ) = (c, &answer, &value)
                {
                    self.ids.made(*id, a)?;
                }
                if let (
                    Call::Rename {
                        parent,
                        name,
                        flags,
                        ..
                    },
                    true,
                ) = (c, self.model.next_id() > next)
                {
                    debug_assert!(flags.whiteout);
                    let white = fs
                        .lookup(self.ids.ino(*parent), name)
                        .map_err(|e| e.to_string())?;
                    if white.kind != FileType::CharDevice {
                        return Err(format!("the whiteout is a {:?}", white.kind));
                    }
                    self.ids.made(next, &white)?;
                }
                compare(&self.model, &self.ids, c, &answer, &value)?;
                self.gone(c)
            }
            (Err(e), Ok(_)) if e.errno() == libc::ENXIO && no_data(&self.model, c) => Ok(()),
            (Err(e), Err(Failure(errno))) if e.errno() == errno => Ok(()),
            (Err(e), Err(Failure(errno))) => Err(format!(
                "the engine failed with errno {} ({e}), the model with {errno}",
                e.errno()
            )),
            (Err(e), Ok(_)) => Err(format!("the engine failed: {e} (errno {})", e.errno())),
            (Ok(a), Err(Failure(errno))) => Err(format!(
                "the engine gave {a:?}; it should fail with errno {errno}"
            )),
        }
    }

    /// A node that nothing holds any more has no inode.
    fn gone(&self, c: &Call) -> Differs {
        let Call::Unpin { node } = c else {
            return Ok(());
        };
        if self.model.get(*node).is_some() {
            return Ok(());
        }
        match self.fs().getattr(self.ids.ino(*node)) {
            Err(Error::Stale(_)) => Ok(()),
            other => Err(format!(
                "its last reference is gone, and getattr gives {other:?}"
            )),
        }
    }

    /// The region is full: that is true, the call may say so, and nothing has
    /// changed.
    fn out_of_space(&mut self, c: &Call, why: &str) -> Differs {
        self.full += 1;
        let needs = match c {
            Call::Make { .. }
            | Call::MakeUnnamed { .. }
            | Call::Link { .. }
            | Call::Rename { .. } => 8,
            Call::Write { bytes, .. } => bytes.len() as u64,
            Call::Copy { len, .. } | Call::Fallocate { len, .. } => *len,
            Call::SetXattr { value, .. } => value.len() as u64,
            _ => {
                return Err(format!(
                    "this call needs no space, and failed for want of it: {why}"
                ));
            }
        };
        // Space is no excuse for another error.
        if let Err(Failure(errno)) = self.model.clone().call(c) {
            return Err(format!("ENOSPC ({why}) where errno {errno} is right"));
        }
        // A large value takes few pieces, however much is free.
        let fragmented = matches!(c, Call::SetXattr { .. }) && why.contains("fragmented");
        if fragmented {
            return Ok(());
        }
        self.near_full(needs).map_err(|e| format!("{e} ({why})"))?;
        let Some(id) = subject(c) else { return Ok(()) };
        let a = self
            .fs()
            .getattr(self.ids.ino(id))
            .map_err(|e| e.to_string())?;
        // Blocks that were taken and given back leave new times.
        let n = self.model.node(id);
        let same_time = [n.ctime, self.model.now].contains(&a.ctime);
        if a.size != n.size() || a.nlink != n.nlink || !same_time {
            return Err(format!("after ENOSPC ({why}) node {id} has changed: {a:?}"));
        }
        if (a.mtime, a.ctime) != (n.mtime, n.ctime) && matches!(n.body, Body::File { .. }) {
            self.model.set_times(id, a.mtime, a.ctime);
        }
        Ok(())
    }

    /// Whether a call that needs so many bytes can have met a full region:
    /// there are blocks for pointers, tables and names on top of them.
    fn near_full(&self, bytes: u64) -> Differs {
        let s = self.fs().statfs().map_err(|e| e.to_string())?;
        let needed = bytes.div_ceil(u64::from(s.block_size)) + 48;
        if s.available > needed && s.free_inodes > 0 {
            return Err(format!(
                "no space for {bytes} bytes, with {} free blocks ({} available)",
                s.free, s.available
            ));
        }
        Ok(())
    }
}

/// The node that a call changes above all.
fn subject(c: &Call) -> Option<NodeId> {
    match c {
        Call::Write { node, .. }
        | Call::Copy { node, .. }
        | Call::Fallocate { node, .. }
        | Call::SetXattr { node, .. } => Some(*node),
        Call::Make { parent, .. }
        | Call::MakeUnnamed { parent, .. }
        | Call::Link { parent, .. }
        | Call::Rename { parent, .. } => Some(*parent),
        _ => None,
    }
}

/// A call without its bytes.
pub(super) fn brief(c: &Call) -> String {
    let mut text = format!("{c:?}");
    if text.len() > 400 {
        text.truncate(400);
        text.push_str("...");
    }
    text
}
