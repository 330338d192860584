//! Saves a live mount from one moment, which its server keeps
//! ([`pramfs_control::snapshot`]).
//!
//! What is saved is what a crash at that moment would leave: the next mount recovers it. Blocks
//! are released as they are read, so that the server keeps few copies.

use std::io;
use std::ops::Range;
use std::path::Path;

use pramfs_control::snapshot::SnapshotReader;
use pramfs_medium::error::Error;
use pramfs_medium::media::bad_blocks::read_list;
use pramfs_medium::media::superblock::PAGE;
use pramfs_medium::media::{Geometry, SuperStatic, probe_superblock_pages};
use pramfs_medium::types::RegionOffset;
use zerocopy::FromBytes;

use super::format::{Header, Kind};
use super::writer::{Contents, Stop, Zeroed, joined, outside, runs_of};
use crate::{Failure, busy};

/// Bytes that are read and released at once.
const PIECE: u64 = 1 << 20;

/// A live mount at one moment.
pub(crate) struct Live {
    reader: SnapshotReader,
    header: Header,
    /// The bits of each group, if it has a bitmap.
    groups: Vec<Option<Vec<u64>>>,
    /// Blocks in use.
    blocks: u64,
    /// Blocks that were listed as bad at the moment, in ascending order. The server does not read
    /// them, and answers with zeros.
    listed: Vec<Range<u64>>,
}

/// Lets the kernel write back what it holds of a mount, which is not in the region yet. `path` is
/// its region or mount point. Only a mount point reaches it: warns without one.
///
/// # Errors
/// The write-back has failed.
pub(crate) fn write_back(path: &Path, name: &str) -> Result<(), Failure> {
    let root = busy::open_place(path, path.is_dir())?;
    let Some(root) = root else {
        eprintln!(
            "pramfs: warning: {name}: its mount cannot be reached by a path: what the kernel has not written back (cache=writeback) is not read"
        );
        return Ok(());
    };
    let synced = rustix::fs::syncfs(root.directory);
    synced.map_err(|e| Failure::os("cannot sync", &root.at, e))
}

impl Live {
    /// Reads superblock and bitmaps.
    ///
    /// # Errors
    /// They are damaged; the snapshot has ended.
    pub(crate) fn new(reader: SnapshotReader, name: &str) -> Result<Live, Failure> {
        let failed = |e: io::Error| Failure::os("cannot read", name, e);
        let damaged = |why: String| {
            Failure::new(
                "damaged",
                format!("{name}: {why}: run pramfs scrub, then unmount it and run fsck.pramfs"),
            )
        };
        let size = reader.plan().block_size;
        let page = |offset: u64| -> io::Result<Vec<u8>> {
            let end = offset.saturating_add(PAGE).div_ceil(size);
            let mut bytes = vec![0; ((end - offset / size) * size) as usize];
            reader.read(offset / size, &mut bytes)?;
            Ok(bytes.split_off((offset % size) as usize))
        };
        let first = page(0).map_err(failed)?;
        let (fixed, _) = SuperStatic::read_from_prefix(&first)
            .map_err(|_| damaged("its superblock is cut off".into()))?;
        // Before the offset of the copy is believed.
        let copy = match fixed.crc == fixed.expected_crc() {
            true => page(fixed.copy_offset).map_err(failed)?,
            false => return Err(damaged("its superblock is damaged".into())),
        };
        let found = probe_superblock_pages(&first, &copy, fixed.region_len)
            .map_err(|e| damaged(e.to_string()))?
            .fixed;
        let mut live = Live {
            header: Header {
                block_size_log2: found.block_size_log2,
                region_len: found.region_len,
                blocks: found.blocks,
                uuid: found.uuid,
                label: found.label,
                copy_offset: found.copy_offset,
                kind: Kind::Save,
            },
            groups: Vec::new(),
            blocks: 0,
            listed: Vec::new(),
            reader,
        };
        let plan = live.reader.plan();
        let is_ours = live.header.block_size() == size
            && found.blocks.div_ceil(plan.per_group) == plan.bitmaps.len() as u64
            && plan.fixed.iter().all(|run| run.end <= found.blocks);
        if !is_ours {
            return Err(damaged("its server tells of another file system".into()));
        }
        let read = &mut |at: RegionOffset, into: &mut [u8]| {
            let read = live.reader.read(at.0 / size, into);
            read.map_err(|e| Error::io(e.to_string()))
        };
        // A server that cannot read the list has no block of it, and answers with bytes.
        let listed = read_list(&Geometry::new(&found), found.badblock_root, read);
        let listed = listed.unwrap_or_default();
        live.listed = joined(listed.iter().flat_map(|of| &of.extents));
        let plan = live.reader.plan();
        let mut bytes = vec![0; size as usize];
        let mut groups = Vec::new();
        for at in &plan.bitmaps {
            groups.push(match at {
                None => None,
                Some(at) => {
                    live.reader.read(*at, &mut bytes).map_err(failed)?;
                    let words = bytes.as_chunks::<8>().0.iter();
                    let words = words.map(|word| u64::from_le_bytes(*word));
                    Some(words.take(plan.per_group as usize / 64).collect())
                }
            });
        }
        live.groups = groups;
        let mut blocks = 0;
        let count = |run: Range<u64>| {
            blocks += run.end - run.start;
            Ok(())
        };
        // Counting does not fail.
        live.each(count).map_err(failed)?;
        live.blocks = blocks;
        Ok(live)
    }

    /// The files that are, or were, mapped for writing, each as a person names it.
    ///
    /// # Errors
    /// The server has ended.
    pub(crate) fn mapped(&self) -> io::Result<Vec<String>> {
        let files = self.reader.files()?.into_iter();
        Ok(files
            .map(|file| match file.path {
                Some(path) => path,
                None => format!("inode {}", file.inode),
            })
            .collect())
    }

    fn each(&self, mut f: impl FnMut(Range<u64>) -> io::Result<()>) -> io::Result<()> {
        let plan = self.reader.plan();
        plan.fixed.iter().cloned().try_for_each(&mut f)?;
        for (group, words) in self.groups.iter().enumerate() {
            let Some(words) = words else { continue };
            let first = group as u64 * plan.per_group;
            let bits = (self.header.blocks - first).min(plan.per_group);
            runs_of(words, bits, |from, to| {
                outside(first + from..first + to, &plan.fixed, &mut f)
            })?;
        }
        Ok(())
    }
}

impl Contents for Live {
    fn header(&self) -> &Header {
        &self.header
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn runs(&self, f: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> Result<(), Stop> {
        let most = (PIECE / self.header.block_size()).max(1);
        let fixed: u64 = (self.reader.plan().fixed.iter())
            .map(|run| run.end - run.start)
            .sum();
        let (mut done, mut unreleased) = (0, 0);
        self.each(|mut run| {
            while !run.is_empty() {
                let piece = run.start..run.end.min(run.start + most);
                run.start = piece.end;
                f(piece.clone())?;
                done += piece.end - piece.start;
                // The others do not begin inside of them.
                if done == fixed {
                    self.reader.release_fixed()?;
                } else if done > fixed {
                    // Not each run: many have one block.
                    unreleased += piece.end - piece.start;
                    if unreleased >= most {
                        self.reader.release_below(piece.end)?;
                        unreleased = 0;
                    }
                }
            }
            Ok(())
        })
        .map_err(Stop::Io)
    }

    fn read_blocks(&self, first: u64, into: &mut [u8], zeroed: &mut Zeroed) -> io::Result<()> {
        self.reader.read(first, into)?;
        let end = first + into.len() as u64 / self.header.block_size();
        let next = self.listed.partition_point(|run| run.end <= first);
        for run in self.listed[next..].iter().take_while(|run| run.start < end) {
            zeroed.add(run.start.max(first)..run.end.min(end));
        }
        Ok(())
    }
}
