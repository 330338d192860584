//! A key-value store in a mapped file: loads and stores, no system call. A slot is made
//! durable first; the store of its sequence number, one word, then makes it the value of
//! its key. A crash leaves the old value or the new one.

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{Access, FileSystem, MappedFile, MountOptions, OpenOptions, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Slot {
    /// 0 for a free slot; of two slots with one key the larger number counts.
    sequence: u64,
    key: u64,
    value: [u8; 112],
}
const SLOT: u64 = size_of::<Slot>() as u64;

pub(crate) struct Store {
    slots: MappedFile,
}

impl Store {
    pub(crate) fn open(fs: &FileSystem, path: &str, slots: u64) -> Result<Store> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).open(fs, path)?;
        file.set_len(slots * SLOT)?;
        let slots = file.map(0..slots * SLOT, Access::Write)?;
        Ok(Store { slots })
    }

    fn places(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.slots.len()).step_by(SLOT as usize)
    }

    fn find(&self, key: u64) -> Result<Option<(u64, Slot)>> {
        let mut found: Option<(u64, Slot)> = None;
        for at in self.places() {
            let slot: Slot = self.slots.read_value(at)?;
            if slot.key == key && slot.sequence > found.map_or(0, |(_, s)| s.sequence) {
                found = Some((at, slot));
            }
        }
        Ok(found)
    }

    pub(crate) fn get(&self, key: u64) -> Result<Option<[u8; 112]>> {
        Ok(self.find(key)?.map(|(_, slot)| slot.value))
    }

    /// False where no slot is free.
    pub(crate) fn put(&mut self, key: u64, value: [u8; 112]) -> Result<bool> {
        let old = self.find(key)?;
        let is_free = |at: &u64| self.slots.load::<u64>(*at).is_ok_and(|s| s == 0);
        let Some(at) = self.places().find(is_free) else {
            return Ok(false);
        };
        self.slots.write_value(at + 8, &key)?;
        self.slots.write_value(at + 16, &value)?;
        self.slots.persist(at..at + SLOT)?;
        self.slots
            .store(at, old.map_or(1, |(_, slot)| slot.sequence + 1))?;
        self.slots.persist(at..at + 8)?;
        if let Some((old, _)) = old {
            self.slots.store(old, 0u64)?;
            self.slots.persist(old..old + 8)?;
        }
        Ok(true)
    }
}

pub(crate) fn main() -> Result<()> {
    let region = RegionOptions::new().memfd("key-value", 16 << 20)?;
    format(&region, &FormatOptions::default())?;
    let fs = FileSystem::mount(region, MountOptions::default())?;
    let mut store = Store::open(&fs, "/store", 1000)?;
    store.put(7, [b'x'; 112])?;
    store.get(7).map(|value| println!("{value:?}"))
}
