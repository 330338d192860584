//! Agrees with the other side, at INIT.

use crate::errno::Errno;
use crate::flags::InitFlags;
use crate::message::Message;
use crate::numbers::{INIT_OUT_22_SIZE, MAJOR, MIN_READ_BUFFER, MINOR, OLDEST_MINOR};
use crate::reply;
use crate::request::InitRequest;
use crate::rules::{Rules, XATTR_VALUE_MAX};
use crate::wire::InitOut;

/// Pages of a request if the other side cannot negotiate them.
const PAGES_OF_OLD: u16 = 32;

/// The least that the kernel takes for `max_write`.
pub(crate) const WRITE_MIN: u32 = 4096;

/// Room of a request beside data: headers, names.
const HEADERS: usize = 4096;

/// The first minor version that says in a request's header where extensions begin.
const EXTENSIONS: u32 = 38;

/// The first minor version with a second word of flags.
pub(crate) const SECOND_WORD: u32 = 36;

/// The first minor version with the long reply.
const LONG_REPLY: u32 = 23;

/// What a server wants. The other side's offer bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Taken where they are offered. `INIT_EXT` is added where it is needed.
    pub flags: InitFlags,
    /// Without these there is no agreement. They are taken like `flags`.
    pub required: InitFlags,
    /// Most bytes of reading ahead.
    pub max_readahead: u32,
    /// Most bytes of a write: 4096 or more. With `MAX_PAGES`, a read has at most the same number
    /// of pages.
    pub max_write: u32,
    /// Most requests in the background.
    pub max_background: u16,
    /// From how many of them on the kernel calls the file system congested.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds: 1 to 1,000,000,000.
    pub time_gran: u32,
    /// Bytes of a page of the other side, a power of two from 4096 to 65536.
    pub page_size: u32,
    /// Binary logarithm of the alignment of mappings, for `MAP_ALIGNMENT`.
    pub map_alignment: u16,
    /// Depth of file systems beneath files that are passed through, for `PASSTHROUGH`.
    pub max_stack_depth: u32,
    /// Seconds until the kernel ends the connection because of a request without answer,
    /// for `REQUEST_TIMEOUT`.
    pub request_timeout: u16,
}

impl Default for Wanted {
    /// No flags, requests of 1 MiB, 64 requests in the background.
    fn default() -> Wanted {
        Wanted {
            flags: InitFlags::empty(),
            required: InitFlags::empty(),
            max_readahead: u32::MAX,
            max_write: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_gran: 1,
            page_size: 4096,
            map_alignment: 12,
            max_stack_depth: 0,
            request_timeout: 0,
        }
    }
}

/// Why there is no agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The other side is too old.
    #[error(
        "the other side speaks version {major}.{minor}, and 7.{OLDEST_MINOR} is the oldest that is understood"
    )]
    TooOld {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The other side does not offer what is required.
    #[error("the other side does not offer {0:?}")]
    Missing(InitFlags),
    /// The server's wishes contradict each other.
    #[error("the wishes contradict each other: {0}")]
    Contradiction(&'static str),
}

impl NegotiationError {
    /// The error that answers INIT.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            NegotiationError::Contradiction(_) => Errno::EINVAL,
            _ => Errno::EPROTO,
        }
    }
}

/// What comes of INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both sides agree; [`Negotiated::reply`] says so.
    Agreed(Negotiated),
    /// The other side speaks a newer major version. [`other_major`] answers, and it sends
    /// INIT again.
    OtherMajor,
}

/// What both sides have agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub(crate) minor: u32,
    pub(crate) flags: InitFlags,
    pub(crate) max_readahead: u32,
    pub(crate) max_write: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) time_gran: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) max_stack_depth: u32,
    pub(crate) request_timeout: u16,
    pub(crate) page_size: u32,
}

/// Agrees on what is offered and wanted.
///
/// ```
/// use pramfs_fuse_protocol::flags::InitFlags;
/// use pramfs_fuse_protocol::{InitRequest, Outcome, Wanted, negotiate};
/// let offer = InitRequest {
///     major: 7,
///     minor: 31,
///     max_readahead: 1 << 17,
///     flags: InitFlags::ASYNC_READ | InitFlags::MAX_PAGES,
/// };
/// let wanted = Wanted {
///     flags: InitFlags::ASYNC_READ | InitFlags::MAX_PAGES | InitFlags::SUBMOUNTS,
///     ..Wanted::default()
/// };
/// let Ok(Outcome::Agreed(agreed)) = negotiate(&offer, &wanted) else {
///     panic!("both speak 7.31");
/// };
/// assert_eq!(agreed.flags(), InitFlags::ASYNC_READ | InitFlags::MAX_PAGES);
/// assert_eq!(agreed.minor(), 31);
/// ```
///
/// # Errors
/// [`NegotiationError`]; its errno answers INIT.
pub fn negotiate(offer: &InitRequest, wanted: &Wanted) -> Result<Outcome, NegotiationError> {
    wanted.check()?;
    let (major, minor) = (offer.major, offer.minor);
    if major > MAJOR {
        return Ok(Outcome::OtherMajor);
    }
    if major < MAJOR || minor < OLDEST_MINOR {
        return Err(NegotiationError::TooOld { major, minor });
    }
    let minor = minor.min(MINOR);
    let offered = usable(offer.flags, minor);
    let missing = wanted.required.difference(offered);
    if !missing.is_empty() {
        return Err(NegotiationError::Missing(missing));
    }
    let mut flags = offered & (wanted.flags | wanted.required);
    flags.remove(InitFlags::INIT_EXT);
    if !flags.second_word().is_empty() {
        flags.insert(InitFlags::INIT_EXT);
    }
    if !flags.contains(InitFlags::DO_READDIRPLUS) {
        flags.remove(InitFlags::READDIRPLUS_AUTO);
    }
    let only_with = |flag, value| if flags.contains(flag) { value } else { 0 };
    let pages = wanted.max_write.div_ceil(wanted.page_size).max(1);
    let pages = u16::try_from(pages).unwrap_or(u16::MAX);
    let max_pages = if flags.contains(InitFlags::MAX_PAGES) {
        pages
    } else {
        PAGES_OF_OLD
    };
    let bytes = u32::from(max_pages).saturating_mul(wanted.page_size);
    Ok(Outcome::Agreed(Negotiated {
        minor,
        flags,
        max_readahead: wanted.max_readahead.min(offer.max_readahead),
        max_write: wanted.max_write.min(bytes),
        max_background: wanted.max_background,
        congestion_threshold: wanted.congestion_threshold,
        time_gran: wanted.time_gran,
        max_pages,
        map_alignment: only_with(InitFlags::MAP_ALIGNMENT, wanted.map_alignment.into()) as u16,
        max_stack_depth: only_with(InitFlags::PASSTHROUGH, wanted.max_stack_depth),
        request_timeout: only_with(InitFlags::REQUEST_TIMEOUT, wanted.request_timeout.into())
            as u16,
        page_size: wanted.page_size,
    }))
}

/// What counts of an offer of a version.
pub(crate) fn usable(offered: InitFlags, minor: u32) -> InitFlags {
    let mut usable = InitFlags::all() & offered;
    usable.remove(InitFlags::INIT_RESERVED);
    if minor < SECOND_WORD {
        usable.remove(InitFlags::INIT_EXT);
    }
    if !usable.contains(InitFlags::INIT_EXT) {
        usable.remove(usable.second_word());
    }
    // Versions 7.36 and 7.37 have security contexts, but do not say where they begin.
    if minor < EXTENSIONS {
        usable.remove(InitFlags::SECURITY_CTX | InitFlags::CREATE_SUPP_GROUP);
    }
    usable
}

impl Wanted {
    fn check(&self) -> Result<(), NegotiationError> {
        let wrong = |why| Err(NegotiationError::Contradiction(why));
        let flags = self.flags | self.required;
        if !(1..=1_000_000_000).contains(&self.time_gran) {
            return wrong("times have a granularity of 1 to 1,000,000,000 nanoseconds");
        }
        if !is_page_size(self.page_size) {
            return wrong("a page has 4096 to 65536 bytes, a power of two");
        }
        if self.max_write < WRITE_MIN {
            return wrong("no write is limited to less than 4096 bytes");
        }
        if flags.contains(InitFlags::PASSTHROUGH)
            && (flags.contains(InitFlags::WRITEBACK_CACHE) || self.max_stack_depth == 0)
        {
            return wrong("passthrough needs a stack depth, and no write-back cache");
        }
        if flags.contains(InitFlags::EXPORT_SUPPORT | InitFlags::NO_EXPORT_SUPPORT) {
            return wrong("exports are supported or not");
        }
        Ok(())
    }
}

pub(crate) fn is_page_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (4096..=65536).contains(&bytes)
}

/// Answers INIT of a newer major version: with ours, so that the other side begins again.
#[must_use]
pub fn other_major(unique: u64) -> Message<'static> {
    let out = InitOut {
        major: MAJOR,
        minor: MINOR,
        ..InitOut::default()
    };
    reply::init(unique, &out, InitOut::SIZE)
}

impl Negotiated {
    /// Answers INIT, with the length that the other side's version demands.
    #[must_use]
    pub fn reply(&self, unique: u64) -> Message<'static> {
        let (flags, flags2) = self.flags.split();
        let has_pages = self.flags.contains(InitFlags::MAX_PAGES);
        let out = InitOut {
            major: MAJOR,
            minor: self.minor,
            max_readahead: self.max_readahead,
            flags,
            max_background: self.max_background,
            congestion_threshold: self.congestion_threshold,
            max_write: self.max_write,
            time_gran: self.time_gran,
            max_pages: if has_pages { self.max_pages } else { 0 },
            map_alignment: self.map_alignment,
            flags2,
            max_stack_depth: self.max_stack_depth,
            request_timeout: self.request_timeout,
            unused: [0; 11],
        };
        let short = self.minor < LONG_REPLY;
        let len = if short {
            INIT_OUT_22_SIZE
        } else {
            InitOut::SIZE
        };
        reply::init(unique, &out, len)
    }

    /// What requests keep to from now on. No name is longer than `name_max` bytes.
    #[must_use]
    pub fn rules(&self, name_max: usize) -> Rules {
        Rules {
            max_request: self.max_request(),
            max_reply: self.max_reply(),
            name_max,
            target_max: Rules::BEFORE_INIT.target_max,
            setxattr_ext: self.flags.contains(InitFlags::SETXATTR_EXT),
            security_contexts: self.flags.contains(InitFlags::SECURITY_CTX),
            supplementary_groups: self.flags.contains(InitFlags::CREATE_SUPP_GROUP),
        }
    }

    /// Bytes that a buffer for requests needs.
    #[must_use]
    pub fn max_request(&self) -> usize {
        // An ioctl brings as many pages as a read fetches.
        let data = self.max_write.max(self.max_reply()).max(XATTR_VALUE_MAX) as usize;
        MIN_READ_BUFFER.max(data.saturating_add(HEADERS))
    }

    /// Most bytes of a reply beside headers: what one request can read.
    #[must_use]
    pub fn max_reply(&self) -> u32 {
        u32::from(self.max_pages).saturating_mul(self.page_size)
    }

    /// The minor version that both sides speak.
    #[must_use]
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// The flags that both sides keep to.
    #[must_use]
    pub fn flags(&self) -> InitFlags {
        self.flags
    }

    /// Most bytes of reading ahead.
    #[must_use]
    pub fn max_readahead(&self) -> u32 {
        self.max_readahead
    }

    /// Most bytes of a write.
    #[must_use]
    pub fn max_write(&self) -> u32 {
        self.max_write
    }
}
