//! The tree from which workloads start.

use std::sync::Arc;

use pramfs::format::FormatOptions;
use pramfs::inode::{LeaseMode, Time};
use pramfs::{DataMode, XattrMode};
use pramfs_medium::pmem::SimBackend;

use super::act::act;
use super::action::Action;
use super::leased::{self, Held};
use super::oracle::{Still, options};
use super::state::Promise;
use super::steps::{GROW, KEEP, fallocate, link, make, setacl, setxattr, write};
use crate::model::{Follower, Make};
use crate::recorded::STALE;
use crate::region;

/// A formatted tree from which workloads start.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// Bytes of a block.
    pub block_size: u32,
    /// The region, cleanly unmounted.
    pub image: Arc<Vec<u8>>,
    /// The model of it.
    pub follower: Follower,
    /// So little is free that operations may be refused.
    pub full: bool,
    /// The slots of its leases. Processes hold them.
    pub held: Held,
    /// What is left to be had in it, and what else is special.
    pub room: Room,
    /// How workloads change bytes of files.
    pub data: DataMode,
    /// Whether the mount is told so. Otherwise it breaks the promise, which the explorer notices.
    pub keeps_data: bool,
}

/// What is left to be had, and what else is special.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room {
    /// Free blocks; `None`: as many as there are.
    pub blocks: Option<u64>,
    /// Free inodes; `None`: as many as there are.
    pub inodes: Option<u64>,
    /// Each file of the tree is leased.
    pub leased: bool,
    /// Its data have checksums.
    pub summed: bool,
}

/// When the tree was made, and the time of the first operation.
pub const START: i64 = 1_700_000_000;

impl Fixture {
    /// The usual one: `/foo` (which is `/A/link` too) of 1300 bytes with a small
    /// and a large attribute, `/A/foo` of 600 bytes with blocks for 3000,
    /// `/A/bar` empty, `/A/sub/`, `/B/` with a default
    /// ACL, and `/foo` with an ACL.
    ///
    /// # Errors
    /// Those of the engine, and where the model differs.
    pub fn new(block_size: u32, len: usize) -> Result<Fixture, String> {
        Fixture::with(block_size, len, Room::default())
    }

    /// The same in a region in which so many blocks are left to be had.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn full(block_size: u32, len: usize, blocks: u64) -> Result<Fixture, String> {
        let room = Room {
            blocks: Some(blocks),
            ..Room::default()
        };
        Fixture::with(block_size, len, room)
    }

    /// The same, with checksums of file data.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn summed(block_size: u32, len: usize) -> Result<Fixture, String> {
        let room = Room {
            summed: true,
            ..Room::default()
        };
        Fixture::with(block_size, len, room).map(Fixture::atomic)
    }

    /// The same in a region in which so many blocks are left to be had.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn summed_and_full(block_size: u32, len: usize, blocks: u64) -> Result<Fixture, String> {
        let room = Room {
            blocks: Some(blocks),
            summed: true,
            ..Room::default()
        };
        Fixture::with(block_size, len, room).map(Fixture::atomic)
    }

    /// The same, and a process holds a lease of each file; in a region in which so many blocks are
    /// left to be had, if there is a number.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn summed_and_leased(
        block_size: u32,
        len: usize,
        blocks: Option<u64>,
    ) -> Result<Fixture, String> {
        let room = Room {
            blocks,
            leased: true,
            summed: true,
            ..Room::default()
        };
        Fixture::with(block_size, len, room).map(Fixture::atomic)
    }

    /// The same, on which workloads change bytes atomically.
    #[must_use]
    pub fn atomic(self) -> Fixture {
        let data = DataMode::Atomic;
        Fixture { data, ..self }
    }

    /// What a crash in an action may leave.
    pub fn promise(&self, action: &Action, f: &Follower) -> Promise {
        let is_atomic = self.data == DataMode::Atomic && action.changes_data_by_engine();
        match is_atomic {
            true => Promise::Atomic,
            false => action.promise(f),
        }
    }

    /// The same in a region in which so many inodes are left to be had.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn few_inodes(block_size: u32, len: usize, inodes: u64) -> Result<Fixture, String> {
        let room = Room {
            inodes: Some(inodes),
            ..Room::default()
        };
        Fixture::with(block_size, len, room)
    }

    /// The same, and a process holds a lease of each file; in a region in which so many
    /// blocks are left to be had, if there is a number.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn leased(block_size: u32, len: usize, blocks: Option<u64>) -> Result<Fixture, String> {
        let room = Room {
            blocks,
            leased: true,
            ..Room::default()
        };
        Fixture::with(block_size, len, room)
    }

    /// The same with such room. Workloads change bytes in place.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with(block_size: u32, len: usize, room: Room) -> Result<Fixture, String> {
        let format = FormatOptions {
            lanes: Some(2),
            max_inodes: room.inodes.map(|_| 16),
            features: vec![("data_checksums".to_owned(), room.summed)],
            ..region::repeatable(block_size)
        };
        // Bytes that nobody wrote show where they should not.
        let sim = SimBackend::from_image(&vec![STALE; len]).map_err(|e| e.to_string())?;
        pramfs::format::format(&region::region_of(&sim), &format).map_err(|e| e.to_string())?;
        let clock = Still::at(START);
        let fs = region::mount(&sim, options(&clock)).map_err(|e| e.to_string())?;
        let mut f = Follower::new(Time {
            sec: START,
            nsec: 0,
        });
        pramfs_medium::journal::set_thread_lane(0);
        let mut now = START;
        let mut run = |f: &mut Follower, steps: &dyn Fn(&Follower) -> Option<Vec<Action>>| {
            for a in steps(f).ok_or("the tree cannot be made")? {
                now += 1;
                clock.set(now);
                f.model.now = Time { sec: now, nsec: 7 };
                act(&fs, f, &a)?;
            }
            Ok::<(), String>(())
        };
        let file = || Make::File { perm: 0o644 };
        let dir = || Make::Dir { perm: 0o755 };
        run(&mut f, &|f| make(f, "/A", dir()))?;
        run(&mut f, &|f| make(f, "/B", dir()))?;
        run(&mut f, &|f| make(f, "/foo", file()))?;
        run(&mut f, &|f| write(f, "/foo", Some(0), 1300))?;
        run(&mut f, &|f| {
            setxattr(f, "/foo", "user.small", 12, XattrMode::Set)
        })?;
        run(&mut f, &|f| {
            setxattr(f, "/foo", "user.large", 1100, XattrMode::Set)
        })?;
        run(&mut f, &|f| link(f, "/foo", "/A/link"))?;
        run(&mut f, &|f| make(f, "/A/foo", file()))?;
        run(&mut f, &|f| write(f, "/A/foo", Some(0), 600))?;
        run(&mut f, &|f| fallocate(f, "/A/foo", KEEP, 0, 3000))?;
        run(&mut f, &|f| make(f, "/A/bar", file()))?;
        run(&mut f, &|f| make(f, "/A/sub", dir()))?;
        run(&mut f, &|f| setacl(f, "/B", "default", 0o750))?;
        run(&mut f, &|f| setacl(f, "/foo", "access", 0o640))?;
        if room.leased {
            for node in leased::files(&f) {
                run(&mut f, &|_| {
                    Some(vec![Action::Lease {
                        node,
                        mode: LeaseMode::Write,
                    }])
                })?;
            }
        }
        if let Some(room) = room.inodes {
            for i in 0.. {
                let left = fs.statfs().map_err(|e| e.to_string())?.free_inodes;
                if left <= room {
                    break;
                }
                run(&mut f, &|f| make(f, &format!("/ballast {i}"), file()))?;
            }
        }
        if let Some(blocks) = room.blocks {
            run(&mut f, &|f| make(f, "/ballast", file()))?;
            // Pointer blocks are taken on the way, so it comes in steps.
            let steps: &[u64] = if room.summed { &[16, 2, 0] } else { &[8, 0] };
            for spare in steps.iter().map(|step| blocks + step) {
                let free = fs.statfs().map_err(|e| e.to_string())?.available;
                let size = fs.resolve(b"/ballast").map_err(|e| e.to_string())?.size;
                let more = free.saturating_sub(spare) * u64::from(block_size);
                if more > 0 {
                    run(&mut f, &|f| fallocate(f, "/ballast", GROW, size, more))?;
                }
            }
            let left = fs.statfs().map_err(|e| e.to_string())?.available;
            if left.abs_diff(blocks) > 1 {
                return Err(format!("{left} blocks are left, not {blocks}"));
            }
        }
        f.compare(&fs)?;
        let full = room.blocks.or(room.inodes).is_some();
        f.full = full;
        // A lease outlives the mount.
        let held = leased::slots_of(&fs);
        fs.close().map_err(|e| e.to_string())?;
        Ok(Fixture {
            block_size,
            image: Arc::new(sim.image()),
            follower: f,
            full,
            held,
            room,
            data: DataMode::InPlace,
            keeps_data: true,
        })
    }
}
