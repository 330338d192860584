//! The bytes of a saved region (docs/save.md): a header, chunks, and an end.
//!
//! Invariant: nothing read is trusted. Each structure has a CRC32C, which a reader checks
//! before it believes a length. No length makes it allocate more than [`CHUNK_MAX`].

use crate::Failure;

/// First word of a file.
const MAGIC: u64 = u64::from_le_bytes(*b"PRAMFSsv");
/// First word of the end.
const END_MAGIC: u64 = u64::from_le_bytes(*b"PRAMFSen");
/// First bytes of a chunk.
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"chnk");
/// Version of the format.
const VERSION: u32 = 1;
/// Bytes of the structures.
pub(super) const HEADER: usize = 128;
pub(super) const CHUNK_HEADER: usize = 32;
pub(super) const END: usize = 64;
/// Bytes of blocks in a chunk, at most.
pub(super) const CHUNK_DATA: usize = 1 << 20;
/// Bytes of a run in a chunk.
pub(super) const RUN: usize = 16;
/// Bytes of a chunk before compression, at most: each block a run of its own.
pub(super) const CHUNK_MAX: usize = CHUNK_DATA + CHUNK_DATA / 512 * RUN;

/// What a file has of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All blocks in use.
    Save,
    /// Metadata without file data, perhaps damaged.
    Metadata,
}

/// What the region was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub block_size_log2: u32,
    /// Bytes of the file system.
    pub region_len: u64,
    pub blocks: u64,
    pub uuid: [u8; 16],
    pub label: [u8; 64],
    /// Offset of the copy of the superblock page.
    pub copy_offset: u64,
    pub kind: Kind,
}

/// The head of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    /// Bytes that follow.
    pub stored: u32,
    /// Bytes before compression.
    pub payload: u32,
    /// Runs of blocks in it.
    pub runs: u32,
    /// Number of the chunk in its file.
    pub number: u64,
}

/// The end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub chunks: u64,
    /// Blocks in all chunks.
    pub blocks: u64,
    /// Bytes of the whole file.
    pub len: u64,
    /// CRC32C of all bytes before this structure.
    pub crc_of_all: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(&mut out, 12, &self.block_size_log2.to_le_bytes());
        put(&mut out, 16, &self.region_len.to_le_bytes());
        put(&mut out, 24, &self.blocks.to_le_bytes());
        put(&mut out, 32, &self.uuid);
        put(&mut out, 48, &self.label);
        put(&mut out, 112, &self.copy_offset.to_le_bytes());
        let kind = match self.kind {
            Kind::Save => 0u32,
            Kind::Metadata => 1,
        };
        put(&mut out, 120, &kind.to_le_bytes());
        seal(&mut out, 0);
        out
    }

    /// Whether a saved region begins with these bytes.
    pub(super) fn is_at(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes())
    }

    pub(super) fn decode(bytes: &[u8; HEADER]) -> Result<Header, String> {
        if u64_at(bytes, 0) != MAGIC {
            return Err("it is no saved region".into());
        }
        if !is_sealed(bytes, 0) {
            return Err("its header is damaged".into());
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(format!(
                "it has version {version} of the format, and this program knows {VERSION}"
            ));
        }
        let header = Header {
            block_size_log2: u32_at(bytes, 12),
            region_len: u64_at(bytes, 16),
            blocks: u64_at(bytes, 24),
            uuid: array(bytes, 32),
            label: array(bytes, 48),
            copy_offset: u64_at(bytes, 112),
            kind: match u32_at(bytes, 120) {
                0 => Kind::Save,
                1 => Kind::Metadata,
                kind => {
                    return Err(format!(
                        "it is of kind {kind}, which this program does not know"
                    ));
                }
            },
        };
        header.check()?;
        Ok(header)
    }

    /// The geometry that restoring relies on.
    fn check(&self) -> Result<(), String> {
        use pramfs_medium::media::superblock::{MIN_REGION, PAGE};
        let ends = self.copy_offset.checked_add(PAGE);
        let sound = (9..=12).contains(&self.block_size_log2)
            && (MIN_REGION..=i64::MAX as u64).contains(&self.region_len)
            && self.region_len.is_multiple_of(PAGE)
            && self.blocks == self.region_len >> self.block_size_log2
            && self.copy_offset >= PAGE
            && self.copy_offset.is_multiple_of(PAGE)
            && ends.is_some_and(|end| end <= self.region_len);
        match sound {
            true => Ok(()),
            false => Err("its header describes no region".into()),
        }
    }

    pub(crate) fn block_size(&self) -> u64 {
        1 << self.block_size_log2
    }

    /// Seeds the sums of the chunks: those of another file do not fit.
    pub(super) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }
}

impl ChunkHeader {
    pub(super) fn encode(&self, seed: u32, stored: &[u8]) -> [u8; CHUNK_HEADER] {
        let mut out = [0; CHUNK_HEADER];
        put(&mut out, 0, &CHUNK_MAGIC.to_le_bytes());
        put(&mut out, 4, &self.stored.to_le_bytes());
        put(&mut out, 8, &self.payload.to_le_bytes());
        put(&mut out, 12, &self.runs.to_le_bytes());
        put(&mut out, 16, &self.number.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, stored);
        put(&mut out, 24, &crc.to_le_bytes());
        seal(&mut out, seed);
        out
    }

    /// Whether the bytes that follow are those of this header. The second value is the sum of the
    /// compressed bytes.
    pub(super) fn decode(
        bytes: &[u8; CHUNK_HEADER],
        seed: u32,
    ) -> Result<(ChunkHeader, u32), &'static str> {
        if u32_at(bytes, 0) != CHUNK_MAGIC || !is_sealed(bytes, seed) {
            return Err("the head of a chunk is damaged");
        }
        let head = ChunkHeader {
            stored: u32_at(bytes, 4),
            payload: u32_at(bytes, 8),
            runs: u32_at(bytes, 12),
            number: u64_at(bytes, 16),
        };
        // A compressed chunk may be a little longer than its contents.
        let too_long = head.payload as usize > CHUNK_MAX || head.stored as usize > 2 * CHUNK_MAX;
        match too_long || head.runs as usize > head.payload as usize / RUN {
            true => Err("a chunk is longer than the format allows"),
            false => Ok((head, u32_at(bytes, 24))),
        }
    }
}

impl End {
    pub(super) fn encode(&self, seed: u32) -> [u8; END] {
        let mut out = [0; END];
        put(&mut out, 0, &END_MAGIC.to_le_bytes());
        put(&mut out, 8, &self.chunks.to_le_bytes());
        put(&mut out, 16, &self.blocks.to_le_bytes());
        put(&mut out, 24, &self.len.to_le_bytes());
        put(&mut out, 32, &self.crc_of_all.to_le_bytes());
        seal(&mut out, seed);
        out
    }

    pub(super) fn decode(bytes: &[u8; END], seed: u32) -> Result<End, &'static str> {
        if !End::is_at(bytes) || !is_sealed(bytes, seed) {
            return Err("its end is damaged");
        }
        Ok(End {
            chunks: u64_at(bytes, 8),
            blocks: u64_at(bytes, 16),
            len: u64_at(bytes, 24),
            crc_of_all: u32_at(bytes, 32),
        })
    }

    /// Whether the end begins with these bytes, and no chunk.
    pub(super) fn is_at(bytes: &[u8]) -> bool {
        bytes.starts_with(&END_MAGIC.to_le_bytes())
    }
}

/// Run of blocks in a chunk.
pub(super) fn run_at(payload: &[u8], index: usize) -> (u64, u64) {
    let at = index * RUN;
    (u64_at(payload, at), u64_at(payload, at + 8))
}

/// The error of a file that is not what was written.
pub(super) fn damaged(file: &str, why: &str) -> Failure {
    Failure::new("damaged", format!("{file}: {why}; nothing was changed"))
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// Stores the CRC of all bytes but the last four there.
fn seal(out: &mut [u8], seed: u32) {
    let at = out.len() - 4;
    let crc = crc32c::crc32c_append(seed, &out[..at]);
    put(out, at, &crc.to_le_bytes());
}

fn is_sealed(bytes: &[u8], seed: u32) -> bool {
    let at = bytes.len() - 4;
    u32_at(bytes, at) == crc32c::crc32c_append(seed, &bytes[..at])
}
