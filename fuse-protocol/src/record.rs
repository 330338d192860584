//! What was agreed upon, as bytes: for a process that takes a connection over. The kernel
//! does not negotiate again.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::flags::InitFlags;
use crate::negotiate::{Negotiated, WRITE_MIN, is_page_size, usable};
use crate::numbers::{MINOR, OLDEST_MINOR};

/// The first bytes of a record.
const MAGIC: [u8; 8] = *b"PRfuseN\0";

/// The version of the record.
const VERSION: u32 = 1;

/// Bytes of a record.
pub const RECORD_SIZE: usize = size_of::<Record>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    magic: [u8; 8],
    version: U32,
    len: U32,
    flags: U64,
    minor: U32,
    max_readahead: U32,
    max_write: U32,
    time_gran: U32,
    max_stack_depth: U32,
    page_size: U32,
    max_background: U16,
    congestion_threshold: U16,
    max_pages: U16,
    map_alignment: U16,
    request_timeout: U16,
    reserved: [u8; 6],
}

/// Why a record is refused. A process that cannot read it cannot serve the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It is not a record.
    #[error("the bytes are no record of a FUSE connection")]
    NoRecord,
    /// Another version has written it.
    #[error("the record has version {0}, and {VERSION} is understood")]
    Version(u32),
    /// It says what cannot have been agreed upon by this version.
    #[error("the record is not understood: {0}")]
    Invalid(&'static str),
}

impl Negotiated {
    /// Writes a record.
    #[must_use]
    pub fn to_record(&self) -> [u8; RECORD_SIZE] {
        let record = Record {
            magic: MAGIC,
            version: VERSION.into(),
            len: (RECORD_SIZE as u32).into(),
            flags: self.flags.bits().into(),
            minor: self.minor.into(),
            max_readahead: self.max_readahead.into(),
            max_write: self.max_write.into(),
            time_gran: self.time_gran.into(),
            max_stack_depth: self.max_stack_depth.into(),
            page_size: self.page_size.into(),
            max_background: self.max_background.into(),
            congestion_threshold: self.congestion_threshold.into(),
            max_pages: self.max_pages.into(),
            map_alignment: self.map_alignment.into(),
            request_timeout: self.request_timeout.into(),
            reserved: [0; 6],
        };
        zerocopy::transmute!(record)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`RecordError`] for anything but a record that [`Negotiated::to_record`] of this
    /// version can have made.
    pub fn from_record(bytes: &[u8]) -> Result<Negotiated, RecordError> {
        let invalid = RecordError::Invalid;
        // The version first: another one may have another length.
        let (magic, rest) = bytes.split_first_chunk().ok_or(RecordError::NoRecord)?;
        let (version, _) = U32::read_from_prefix(rest).map_err(|_| RecordError::NoRecord)?;
        if *magic != MAGIC {
            return Err(RecordError::NoRecord);
        }
        if version != VERSION {
            return Err(RecordError::Version(version.get()));
        }
        let record = Record::read_from_bytes(bytes).map_err(|_| invalid("length"))?;
        if usize::try_from(record.len.get()) != Ok(RECORD_SIZE) || record.reserved != [0; 6] {
            return Err(invalid("length"));
        }
        let negotiated = Negotiated {
            minor: record.minor.get(),
            flags: InitFlags::from_bits_retain(record.flags.get()),
            max_readahead: record.max_readahead.get(),
            max_write: record.max_write.get(),
            max_background: record.max_background.get(),
            congestion_threshold: record.congestion_threshold.get(),
            time_gran: record.time_gran.get(),
            max_pages: record.max_pages.get(),
            map_alignment: record.map_alignment.get(),
            max_stack_depth: record.max_stack_depth.get(),
            request_timeout: record.request_timeout.get(),
            page_size: record.page_size.get(),
        };
        negotiated.check().map_err(invalid)?;
        Ok(negotiated)
    }

    fn check(&self) -> Result<(), &'static str> {
        let has = |flag| self.flags.contains(flag);
        if !(OLDEST_MINOR..=MINOR).contains(&self.minor) {
            return Err("minor version");
        }
        if self.flags != usable(self.flags, self.minor) {
            return Err("flags");
        }
        let bytes = u32::from(self.max_pages).saturating_mul(self.page_size);
        if !is_page_size(self.page_size) || !(WRITE_MIN..=bytes).contains(&self.max_write) {
            return Err("sizes");
        }
        if !(1..=1_000_000_000).contains(&self.time_gran) {
            return Err("granularity of times");
        }
        let alone = |flag, value: u32| value != 0 && !has(flag);
        if alone(InitFlags::MAP_ALIGNMENT, self.map_alignment.into())
            || alone(InitFlags::PASSTHROUGH, self.max_stack_depth)
            || alone(InitFlags::REQUEST_TIMEOUT, self.request_timeout.into())
        {
            return Err("a value without its flag");
        }
        Ok(())
    }
}
