//! What the tests of the scrub share.

use super::finding::ScrubFinding;
use super::run::{Order, Progress, ScrubHost, ScrubOptions};
use super::verify::Checksums;
use crate::fs::inode::state::InodeState;
use crate::fs::{Engine, Fs, MountOptions};
use crate::inode::Credentials;
use pramfs_medium::error::Damage;
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::scrub::ScrubRecord;
use pramfs_medium::pmem::{Region, RegionAccess as _, SimBackend};
use pramfs_medium::types::{Ino, XattrMode};
use std::cell::{Cell, RefCell};
use std::time::Duration;

pub(super) const LEN: usize = 24 << 20;
pub(super) const ROOT: Credentials<'static> = Credentials::ROOT;

pub(super) struct Host {
    /// Time that each step takes, and what it has been so far.
    pub(super) step: Duration,
    pub(super) time: Cell<Duration>,
    pub(super) waited: Cell<Duration>,
    /// Steps until the order to stop.
    pub(super) left: Cell<u64>,
    pub(super) order: Order,
    pub(super) found: RefCell<Vec<ScrubFinding>>,
    pub(super) last: Cell<Option<Progress>>,
}

impl Host {
    pub(super) fn new() -> Host {
        Host::stopping(u64::MAX, Order::GoOn)
    }

    pub(super) fn stopping(after: u64, order: Order) -> Host {
        Host {
            step: Duration::from_micros(1),
            time: Cell::default(),
            waited: Cell::default(),
            left: Cell::new(after),
            order,
            found: RefCell::default(),
            last: Cell::default(),
        }
    }

    pub(super) fn kinds(&self) -> Vec<Damage> {
        self.found.borrow().iter().map(|found| found.kind).collect()
    }
}

impl ScrubHost for Host {
    fn now(&self) -> Duration {
        self.time.get()
    }
    fn wait(&self, at_most: Option<Duration>) -> Order {
        let wait = at_most.unwrap_or_default();
        self.waited.set(self.waited.get() + wait);
        self.time.set(self.time.get() + wait + self.step);
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Order::GoOn
            }
            None => self.order,
        }
    }
    fn show(&self, progress: &Progress, found: &[ScrubFinding]) {
        self.found.borrow_mut().extend(found.iter().cloned());
        self.last.set(Some(*progress));
    }
}

pub(super) fn quiet() -> MountOptions {
    MountOptions {
        background: false,
        ..MountOptions::default()
    }
}

pub(super) fn open(sim: &SimBackend) -> Fs {
    Fs::open(Region::new("scrub", Box::new(sim.clone())), quiet()).unwrap()
}

pub(super) struct Planted {
    pub(super) sim: SimBackend,
    pub(super) fs: Fs,
    pub(super) file: Ino,
    pub(super) dir: Ino,
    pub(super) link: Ino,
    /// Blocks of the file that are written one after the other.
    pub(super) data: u64,
}

/// A file system with something of each kind.
pub(super) fn planted() -> Planted {
    planted_with(&[])
}

/// As [`planted`], made with features.
pub(super) fn planted_with(features: &[&str]) -> Planted {
    let on = |name: &&str| ((*name).to_owned(), true);
    let sim = SimBackend::new(LEN).unwrap();
    let region = Region::new("scrub", Box::new(sim.clone()));
    let options = FormatOptions {
        block_size: 1024,
        features: features.iter().map(on).collect(),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    drop(region);
    let fs = open(&sim);
    let file = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let data = 400;
    fs.write(&ROOT, file, 0, &vec![7; data as usize * 1024])
        .unwrap();
    fs.setxattr(&ROOT, file, b"user.large", &[6; 5000], XattrMode::Set)
        .unwrap();
    fs.setxattr(&ROOT, file, b"user.small", b"12345", XattrMode::Set)
        .unwrap();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    for i in 0..300 {
        let name = format!("a name of some length {i}");
        fs.create(&ROOT, dir, name.as_bytes(), 0o644).unwrap();
    }
    let target = [b'x'; 500];
    let link = fs.symlink(&ROOT, Ino::ROOT, b"link", &target).unwrap().ino;
    Planted {
        sim,
        fs,
        file,
        dir,
        link,
        data,
    }
}

pub(super) fn scrub_with(fs: &Fs, host: &Host, resume: bool) -> ScrubRecord {
    let options = ScrubOptions {
        resume,
        limit: None,
    };
    fs.run_scrub(options, &Checksums, host).unwrap()
}

pub(super) fn scrub(fs: &Fs) -> (ScrubRecord, Vec<ScrubFinding>) {
    let host = Host::new();
    let record = scrub_with(fs, &host, false);
    (record, host.found.into_inner())
}

pub(super) fn flip(fs: &Engine, at: u64) {
    let region = fs.region_to_damage();
    let word = region.load_u64(at & !7).unwrap();
    let pending = region.window().store(at & !7, &(word ^ 4).to_le_bytes());
    let _ = region.window().fence(pending.unwrap());
}

pub(super) fn state<T>(fs: &Fs, ino: Ino, f: impl FnOnce(&InodeState) -> T) -> T {
    f(&fs.iget(ino).unwrap().state.read())
}

/// Offset of the block to which a pointer leads.
pub(super) fn to(fs: &Fs, ptr: u64) -> u64 {
    fs.vol.geo.offset(Ptr(ptr).block()).0
}
