//! Options of a new file system.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::media::features::{self, Mask};
use crate::media::sums::usable_blocks;
use crate::media::superblock::*;
use crate::media::{Geometry, SuperStatic};
use crate::types::{Ino, Time};

/// Options of mkfs. The default fits a region of any size from 256 KiB.
///
/// ```
/// # use pramfs_medium as pramfs;
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::{HeapBackend, Region};
/// let region = Region::new("example", HeapBackend::boxed(1 << 20));
/// let made = format(&region, &FormatOptions { label: "demo".into(), ..Default::default() })?;
/// assert_eq!(made.label(), "demo");
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Label, up to 63 bytes of UTF-8.
    pub label: String,
    /// uuid; random if `None`.
    pub uuid: Option<[u8; 16]>,
    /// Block size: 512, 1024, 2048 or 4096 bytes.
    pub block_size: u32,
    /// Maximum number of inodes; derived from `bytes_per_inode` if `None`.
    pub max_inodes: Option<u64>,
    /// Bytes of the region per inode; 2048 if `None`.
    pub bytes_per_inode: Option<u64>,
    /// Number of journal lanes; derived from the size of the region if `None`.
    pub lanes: Option<u32>,
    /// Features to switch on or off by name, relative to the defaults.
    pub features: Vec<(String, bool)>,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Time of creation; the system clock if `None`.
    pub time: Option<Time>,
    /// Key of the name hash; random if `None`.
    pub hash_seed: Option<[u8; 16]>,
    /// Bytes of the file system; the size of the region if `None`. The file system can grow
    /// into the rest later.
    pub size: Option<u64>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        FormatOptions {
            label: String::new(),
            uuid: None,
            block_size: 4096,
            max_inodes: None,
            bytes_per_inode: None,
            lanes: None,
            features: Vec::new(),
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
            time: None,
            hash_seed: None,
            size: None,
        }
    }
}

const SLOT_SIZE: u32 = 4096;

impl FormatOptions {
    /// Returns the length of the file system in a region of `len` bytes.
    pub(super) fn len_in(&self, len: u64) -> Result<u64> {
        match self.size {
            Some(size) if size > len => Err(Error::NotMountable(format!(
                "a file system of {size} bytes does not fit the region of {len} bytes"
            ))),
            size => Ok(size.unwrap_or(len)),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.time.unwrap_or_else(|| {
            let d = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            Time {
                sec: d.as_secs() as i64,
                nsec: d.subsec_nanos(),
            }
        })
    }

    pub(super) fn preallocate_inodes(&self, geo: &Geometry) -> u64 {
        // Preallocate an explicit number of inodes, as far as this is cheap.
        match self.max_inodes {
            Some(n) => n.min(65_536).min(geo.region_bytes() / 16 / 256),
            None => 0,
        }
    }

    /// Computes the static superblock for a region of `len` bytes, without its CRC.
    ///
    /// # Errors
    /// [`Error::NotMountable`] names the option that does not fit and the possible
    /// values.
    pub fn superblock(&self, len: u64) -> Result<SuperStatic> {
        let no = |why: String| Err(Error::NotMountable(why));
        if !matches!(self.block_size, 512 | 1024 | 2048 | 4096) {
            return no(format!(
                "blocks of {} bytes: 512, 1024, 2048 and 4096 are possible",
                self.block_size
            ));
        }
        if len < MIN_REGION {
            return no(format!(
                "{len} bytes are too few; a region needs at least {MIN_REGION} bytes (256 KiB)"
            ));
        }
        if self.label.len() > 63 || self.label.contains('\0') {
            return no(format!(
                "the label has {} bytes; at most 63 are possible, none of them NUL",
                self.label.len()
            ));
        }
        let bs = u64::from(self.block_size);
        let len = len / bs * bs;
        let lanes = match self.lanes {
            Some(n @ 1..=64) => n,
            Some(n) => return no(format!("{n} journal lanes: 1 to 64 are possible")),
            None => match len {
                0..0x10_0000 => 2,
                0x10_0000..0x100_0000 => 4,
                0x100_0000..0x4000_0000 => 16,
                _ => 32,
            },
        };
        let (compat, ro_compat, incompat) = self.masks()?;
        let per_inode = self.bytes_per_inode.unwrap_or(2048);
        if !(256..=1 << 26).contains(&per_inode) {
            return no(format!(
                "{per_inode} bytes an inode: 256 to 67108864 are possible"
            ));
        }
        let wanted = self.max_inodes.unwrap_or(len / per_inode);
        if self.max_inodes.is_some() && (wanted < 16 || wanted > len / 256) {
            return no(format!(
                "{wanted} inodes: 16 to {} are possible in this region",
                len / 256
            ));
        }
        let inodes_max = wanted.max(Ino::FIRST_FREE.0) + Ino::FIRST_FREE.0;
        let blocks = usable_blocks(ro_compat, len / bs, bs * 8);
        let len = blocks * bs;
        let mut sb = SuperStatic {
            magic: MAGIC,
            version: VERSION,
            block_size_log2: self.block_size.trailing_zeros(),
            compat,
            ro_compat,
            incompat,
            uuid: self
                .uuid
                .unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes()),
            hash_seed: self
                .hash_seed
                .unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes()),
            region_len: len,
            blocks,
            copy_offset: COPY_OFFSET,
            journal_offset: COPY_OFFSET + PAGE,
            journal_len: Geometry::journal_bytes(u64::from(lanes), u64::from(SLOT_SIZE)),
            lanes,
            slot_size: SLOT_SIZE,
            inodes_max: inodes_max.min(1 << 40),
            blocks_per_group: self.block_size * 8,
            inodes_per_group: self.block_size * 8,
            // All lanes may split a 2 MiB leaf at the same time.
            reserve_blocks: (blocks / 64).clamp(2, u64::from(lanes) * 2),
            member_count: 1,
            ..SuperStatic::default()
        };
        sb.label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        let writer = concat!("pramfs-rs ", env!("CARGO_PKG_VERSION"));
        sb.writer[..writer.len()].copy_from_slice(writer.as_bytes());
        sb.members[0] = Member {
            uuid: sb.uuid,
            blocks,
            reserved_flags: 0,
        };
        let now = self.now();
        (sb.created_sec, sb.created_nsec) = (now.sec, now.nsec);
        Ok(sb)
    }

    fn masks(&self) -> Result<(u64, u64, u64)> {
        let (mut compat, mut ro_compat, mut incompat) = (0, 0, 0);
        if self.block_size == 4096 {
            incompat |= features::HUGE_LEAVES;
        }
        for (name, on) in &self.features {
            let Some(f) = features::by_name(name) else {
                let known: Vec<_> = features::FEATURES.iter().map(|f| f.name).collect();
                return Err(Error::NotMountable(format!(
                    "unknown feature \"{name}\"; known are {}",
                    known.join(", ")
                )));
            };
            if !f.supported && *on {
                return Err(Error::NotMountable(format!(
                    "the feature \"{name}\" is reserved: this version cannot make it"
                )));
            }
            if f.is_set_by_mounts() && *on {
                return Err(Error::NotMountable(format!(
                    "a mount sets the feature \"{name}\" while it needs it: make the file system \
                     without it"
                )));
            }
            let mask = match f.mask {
                Mask::Compat => &mut compat,
                Mask::RoCompat => &mut ro_compat,
                Mask::Incompat => &mut incompat,
            };
            *mask = if *on {
                *mask | 1 << f.bit
            } else {
                *mask & !(1 << f.bit)
            };
        }
        if incompat & features::HUGE_LEAVES != 0 && self.block_size != 4096 {
            return Err(Error::NotMountable(
                "the feature \"huge_leaves\" needs blocks of 4096 bytes".into(),
            ));
        }
        Ok((compat, ro_compat, incompat))
    }
}
