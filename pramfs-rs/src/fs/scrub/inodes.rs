//! Inodes, directories, attributes, and the slots of the orphan and lease tables.

use crate::fs::inode::large_values::{map_of_value, parse_large};
use crate::fs::inode::{Inode, state::InodeState};
use crate::fs::scrub::contents::Contents;
use crate::fs::scrub::position::{Part, Position};
use crate::fs::scrub::unit::{Look, Scrubber, Unit, Version};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::map;
use pramfs_medium::media::checksum::orphan_of;
use pramfs_medium::media::inode::INODE_SIZE;
use pramfs_medium::media::lease::{LeaseSlot, SlotContents};
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino};

/// Bytes of a slot of the orphan table.
const ORPHAN_SLOT: u64 = 8;

/// Whether a number may be one of an inode. The bits of all reserved numbers are set.
fn may_exist(ino: Ino) -> bool {
    ino >= Ino::FIRST_FREE || (Ino::ROOT..=Ino::LEASES).contains(&ino)
}

fn version(ino: Ino, state: &InodeState) -> Version {
    (ino, state.disk.generation, state.disk.change)
}

impl Scrubber<'_> {
    /// Takes a step in an inode.
    pub(super) fn inode(&mut self, look: Look) -> Result<Unit> {
        let ino = match self.at.part {
            Part::Inode => match self.next_inode(self.at.object)? {
                Some(ino) => ino,
                None => return Ok(Unit::done(self.next_phase(), 0)),
            },
            _ => Ino(self.at.object),
        };
        let gone = Unit::done(self.at.object(ino.0.saturating_add(1)), 0);
        if !may_exist(ino) {
            return Ok(gone);
        }
        let inode = match self.engine.iget(ino) {
            Ok(inode) => inode,
            Err(Error::Stale(_)) => return Ok(gone),
            Err(e) => {
                let mut unit = gone;
                unit.add(e, Some(ino), None)?;
                return Ok(unit);
            }
        };
        let state = inode.state.read();
        if state.alive(ino).is_err() {
            return Ok(gone);
        }
        let here = Position {
            object: ino.0,
            ..self.at
        };
        match self.at.part {
            Part::Inode => self.counted.begin(version(ino, &state)),
            _ => self.counted.go_on(version(ino, &state)),
        }
        match self.at.part {
            Part::Inode => {
                let mut unit = Unit::done(here.part(Part::Contents), INODE_SIZE);
                if let Err(e) = Inode::load(&self.engine.vol, ino, inode.home) {
                    unit.add(e, Some(ino), None)?;
                }
                Ok(unit)
            }
            Part::Contents => match state.kind() {
                FileType::Directory => {
                    let tree = TreeRef::directory(&state.disk);
                    self.tree(&state, &tree, here.part(Part::Xattrs))
                }
                FileType::Regular | FileType::Symlink => {
                    let chunk = self.chunk(&state.map(), FileBlock(self.at.offset));
                    let next = match chunk.next {
                        Some(next) => here.offset(next.0),
                        None => here.part(Part::Xattrs),
                    };
                    let mut unit = Unit::done(next, chunk.bytes);
                    let is_table = matches!(ino, Ino::ORPHANS | Ino::LEASES);
                    if let (true, Some((first, block, count))) = (is_table, chunk.run) {
                        self.slots(&mut unit, &state, (first, block, count))?;
                    }
                    if self.at.offset == 0
                        && state.kind() == FileType::Symlink
                        && let Err(e) = self.engine.target(&state)
                    {
                        unit.add(e, Some(ino), None)?;
                    }
                    let is_data = state.kind() == FileType::Regular && !is_table;
                    let sums = match is_data {
                        true => self.sums_of(&chunk, &mut unit, &state)?,
                        false => Vec::new(),
                    };
                    let kind = match is_data {
                        true => Contents::Data(&sums),
                        false => Contents::Metadata,
                    };
                    // The first look keeps nobody from the file while it reads.
                    let _locked = (look == Look::Again).then_some(state);
                    self.read_chunk(chunk, &mut unit, ino, kind)?;
                    Ok(unit)
                }
                _ => Ok(Unit::done(here.part(Part::Xattrs), 0)),
            },
            Part::Xattrs => {
                let tree = TreeRef::xattrs(&state.disk);
                self.tree(&state, &tree, here.part(Part::Counts))
            }
            Part::Counts => {
                let mut unit = gone;
                if let Err(e) = self.counts(ino, &state) {
                    unit.add(e, Some(ino), None)?;
                }
                Ok(unit)
            }
        }
    }

    /// Returns the first inode from a number on. A group whose bitmap is damaged is skipped:
    /// that is a finding of its own.
    fn next_inode(&mut self, mut from: u64) -> Result<Option<Ino>> {
        let vol = &self.engine.vol;
        let per_group = vol.geo.bits_per_group();
        loop {
            let group = from / per_group;
            if !matches!(&self.bits, Some((known, _)) if *known == group) {
                let words = match vol.inodes.check_group(vol.medium(), group) {
                    Ok(None) => return Ok(None),
                    Ok(Some(words)) => words,
                    Err(Error::Corrupt { .. } | Error::Pmem(_)) => Vec::new(),
                    Err(e) => return Err(e),
                };
                self.bits = Some((group, words));
            }
            let words = self.bits.as_ref().map_or(&[][..], |(_, words)| words);
            let is_used = |ino: u64| {
                let word = words.get((ino % per_group / 64) as usize).copied();
                word.is_some_and(|word| word >> (ino % 64) & 1 != 0) && may_exist(Ino(ino))
            };
            let end = (group + 1) * per_group;
            let end_of_bits = end.min(group * per_group + words.len() as u64 * 64);
            while from < end_of_bits {
                let rest = words[(from % per_group / 64) as usize] >> (from % 64);
                if rest == 0 {
                    from = (from / 64 + 1) * 64;
                    continue;
                }
                from += u64::from(rest.trailing_zeros());
                if is_used(from) {
                    return Ok(Some(Ino(from)));
                }
                from += 1;
            }
            from = end;
        }
    }

    /// Checks a leaf of a directory or of the attributes. `after`: where the scrub goes on
    /// behind the tree.
    fn tree(&mut self, state: &InodeState, tree: &TreeRef, after: Position) -> Result<Unit> {
        let vol = &self.engine.vol;
        let geo = &vol.geo;
        let ino = Ino(state.disk.ino);
        if self.at.offset == 0 {
            self.counted.path = htree::Path::default();
        }
        let mut large = Vec::new();
        let step = htree::step(
            vol,
            tree,
            self.at.offset,
            &mut self.counted.path,
            &mut |name, value| large.push((name.to_vec(), value.to_vec())),
        );
        let next = match step.next {
            Some(next) => Position {
                object: ino.0,
                offset: next,
                ..self.at
            },
            None => after,
        };
        let mut unit = Unit::done(next, geo.bytes(step.tables));
        self.counted.blocks += step.tables;
        match step.items {
            Ok(None) => {}
            Ok(Some(items)) => {
                self.counted.blocks += 1;
                if tree.kind == htree::TreeKind::Directory {
                    self.counted.items += items;
                }
                unit.bytes += geo.block_size;
            }
            Err(e) => unit.add(e, Some(ino), None)?,
        }
        for (name, value) in large {
            match self.large_value(state, &name, &value) {
                Ok(bytes) => unit.bytes += bytes,
                Err(e) => unit.add(e, Some(ino), None)?,
            }
        }
        Ok(unit)
    }

    /// Checks an attribute whose value is in blocks. Returns its length.
    fn large_value(&mut self, state: &InodeState, name: &[u8], stored: &[u8]) -> Result<u64> {
        let (engine, ino) = (self.engine, Ino(state.disk.ino));
        let value = engine.read_large(ino, name, stored)?;
        let large = parse_large(&engine.vol.geo, ino, stored)?;
        let map = map_of_value(&engine.vol.geo, &large, ino, name);
        let blocks = map::count(&engine.vol, &map, state.disk.blocks)?;
        let total = self.counted.blocks.checked_add(blocks.unwrap_or(u64::MAX));
        self.counted.blocks = total.unwrap_or(u64::MAX);
        Ok(value.len() as u64)
    }

    /// Compares the blocks and entries that were counted with those that the inode counts.
    fn counts(&self, ino: Ino, state: &InodeState) -> Result<()> {
        let (disk, counted) = (&state.disk, &self.counted);
        if counted.version.is_none() {
            return Ok(());
        }
        if counted.blocks != disk.blocks {
            let what = format!(
                "it has {} blocks, but counts {}",
                counted.blocks, disk.blocks
            );
            return Err(Error::corrupt(Damage::BlockCount, ino, what));
        }
        if state.is_dir() && counted.items != disk.size {
            let what = format!("it has {} entries, but counts {}", counted.items, disk.size);
            return Err(Error::corrupt(Damage::EntryCount, ino, what));
        }
        Ok(())
    }

    /// Checks the slots of the orphan or lease table in some of its blocks.
    fn slots(
        &self,
        unit: &mut Unit,
        state: &InodeState,
        (first, block, count): (FileBlock, Bno, u64),
    ) -> Result<()> {
        let geo = &self.engine.vol.geo;
        let orphans = state.disk.ino == Ino::ORPHANS.0;
        let size = match orphans {
            true => ORPHAN_SLOT,
            false => LeaseSlot::SIZE as u64,
        };
        let start = geo.file_offset(first);
        let end = start
            .saturating_add(geo.bytes(count))
            .min(state.disk.size / size * size);
        for at in (start..end).step_by(size as usize) {
            let place = geo.offset(block) + (at - start);
            let checked = match orphans {
                true => self.orphan_slot(at / size, place),
                false => self.lease_slot(at / size, place),
            };
            if let Err(e) = checked {
                unit.add(e, Some(Ino(state.disk.ino)), None)?;
            }
        }
        Ok(())
    }

    fn orphan_slot(&self, slot: u64, place: pramfs_medium::types::RegionOffset) -> Result<()> {
        let vol = &self.engine.vol;
        let word = vol.medium().load_u64(place)?;
        if word == 0 || orphan_of(vol.geo.seed, slot, word).is_some() {
            return Ok(());
        }
        Err(Error::corrupt(
            Damage::OrphanSlotDamaged,
            "the orphan table",
            format!("slot {slot} is damaged"),
        ))
    }

    fn lease_slot(&self, slot: u64, place: pramfs_medium::types::RegionOffset) -> Result<()> {
        let (vol, number) = (&self.engine.vol, u32::try_from(slot).unwrap_or(u32::MAX));
        let home: LeaseSlot = vol.medium().read_pod(place)?;
        let bad = |kind, what: &str| {
            let what = format!("slot {slot}: {what}");
            Err(Error::corrupt(kind, "the lease table", what))
        };
        match home.contents(vol.geo.seed, number) {
            SlotContents::Free => Ok(()),
            SlotContents::Damaged => bad(Damage::LeaseSlotDamaged, "its checksum does not match"),
            SlotContents::Used(_) => match home.append_window(vol.geo.seed, number) {
                Ok(_) => Ok(()),
                Err(what) => bad(Damage::AppendWindowDamaged, what),
            },
        }
    }
}
