//! What a later server must know of the connection, as bytes with a version.
//!
//! Invariant: a server takes over only what it reads completely. Another version, and every other
//! deviation, is refused with a reason; the supervisor then keeps the server that it has.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::{Negotiated, RECORD_SIZE};

const MAGIC: &[u8; 8] = b"PRtakeov";
/// Raised by each change of the bytes, and of what they mean.
const VERSION: u32 = 1;
/// Longest path in bytes.
const MAX_PATH: usize = 4096;

/// The state of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// What was agreed upon with the kernel.
    pub agreed: Negotiated,
    /// What the kernel offered: more than that.
    pub offered: InitFlags,
    /// The region, without links.
    pub region: PathBuf,
    /// The mount point, without links.
    pub mountpoint: PathBuf,
    /// The number of the mounted file system, if it is known.
    pub device: Option<(u32, u32)>,
    /// fusermount3 has mounted it and must unmount it.
    pub by_helper: bool,
    /// It was mounted read-only.
    pub read_only: bool,
    /// The file system.
    pub uuid: [u8; 16],
    /// The kernel's numbers of the region, if it has any.
    pub identity: String,
}

/// What a later server finds of the region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file system.
    pub uuid: [u8; 16],
    /// The kernel's numbers.
    pub identity: String,
    /// It was unmounted.
    pub is_clean: bool,
}

impl State {
    /// Returns the bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let (major, minor) = self.device.unwrap_or_default();
        let known = u32::from(self.device.is_some());
        let helper = u32::from(self.by_helper);
        let read_only = u32::from(self.read_only);
        for number in [VERSION, known, major, minor, helper, read_only] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.offered.bits().to_le_bytes());
        bytes.extend(self.agreed.to_record());
        bytes.extend(self.uuid);
        let paths = [&self.region, &self.mountpoint].map(|path| path.as_os_str().as_bytes());
        for text in paths.into_iter().chain([self.identity.as_bytes()]) {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text);
        }
        bytes
    }

    /// Tells why another region was found, or one that another program has mounted meanwhile. A
    /// later server must not go on with that.
    pub fn objection(&self, found: &Found) -> Option<String> {
        if found.uuid != self.uuid {
            return Some("it holds another file system than the one that is mounted".to_owned());
        }
        let is_known = !found.identity.is_empty() && !self.identity.is_empty();
        if is_known && found.identity != self.identity {
            return Some(format!(
                "its path leads to another file or device ({}, not {})",
                found.identity, self.identity
            ));
        }
        // One that was mounted read-only may never have been in use since its unmount.
        (found.is_clean && !self.read_only).then(|| {
            "it was unmounted while no server had it: another program has mounted it meanwhile"
                .to_owned()
        })
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// Why they are refused.
    pub fn from_bytes(bytes: &[u8]) -> Result<State, String> {
        let mut rest = Rest(bytes);
        if rest.take(MAGIC.len()) != Some(MAGIC) {
            return Err("it is not the state of a connection".to_owned());
        }
        match rest.number() {
            Some(VERSION) => {}
            Some(other) => {
                return Err(format!(
                    "it has version {other}, and this program understands version {VERSION}"
                ));
            }
            None => return Err("it is too short".to_owned()),
        }
        rest.state().ok_or("it is damaged")?
    }
}

/// What is left to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.number()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len).filter(|text| text.len() <= MAX_PATH)
    }

    fn path(&mut self) -> Option<PathBuf> {
        let path = self.text()?;
        let is_path = !path.contains(&0) && Path::new(path_of(path)).is_absolute();
        is_path.then(|| OsString::from_vec(path.to_vec()).into())
    }

    fn state(&mut self) -> Option<Result<State, String>> {
        let known = self.flag()?;
        let device = (self.number()?, self.number()?);
        let by_helper = self.flag()?;
        let read_only = self.flag()?;
        let offered = u64::from_le_bytes(self.take(8)?.try_into().ok()?);
        let agreed = match Negotiated::from_record(self.take(RECORD_SIZE)?) {
            Ok(agreed) => agreed,
            Err(error) => return Some(Err(error.to_string())),
        };
        let state = State {
            agreed,
            offered: InitFlags::from_bits_retain(offered),
            uuid: self.take(16)?.try_into().ok()?,
            region: self.path()?,
            mountpoint: self.path()?,
            identity: String::from_utf8(self.text()?.to_vec()).ok()?,
            device: known.then_some(device),
            by_helper,
            read_only,
        };
        self.0.is_empty().then_some(Ok(state))
    }
}

fn path_of(bytes: &[u8]) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use pramfs_fuse_protocol::{InitRequest, Outcome, Wanted, negotiate};

    use super::*;

    fn state() -> State {
        let flags = InitFlags::MAX_PAGES | InitFlags::HAS_RESEND;
        let offer = InitRequest {
            major: 7,
            minor: 44,
            max_readahead: 1 << 17,
            flags: flags | InitFlags::INIT_EXT,
        };
        let wanted = Wanted {
            flags,
            ..Wanted::default()
        };
        let Ok(Outcome::Agreed(agreed)) = negotiate(&offer, &wanted) else {
            panic!("no agreement");
        };
        State {
            agreed,
            offered: offer.flags,
            region: "/dev/shm/region".into(),
            mountpoint: OsString::from_vec(b"/mnt/\xff".to_vec()).into(),
            device: Some((0, 57)),
            by_helper: false,
            read_only: false,
            uuid: [7; 16],
            identity: "file-0-28-7".to_owned(),
        }
    }

    #[test]
    fn state_passes_as_bytes() {
        let unknown = State {
            device: None,
            by_helper: true,
            ..state()
        };
        for state in [state(), unknown] {
            assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
        }
    }

    #[test]
    fn other_or_unmounted_region_is_refused() {
        let found = Found {
            uuid: [7; 16],
            identity: "file-0-28-7".to_owned(),
            is_clean: false,
        };
        assert_eq!(state().objection(&found), None);
        let clean = Found {
            is_clean: true,
            ..found.clone()
        };
        let why = state().objection(&clean).unwrap();
        assert!(why.contains("another program"), "{why}");
        let read_only = State {
            read_only: true,
            ..state()
        };
        assert_eq!(read_only.objection(&clean), None);
        let other = Found {
            uuid: [8; 16],
            ..found.clone()
        };
        let why = read_only.objection(&other).unwrap();
        assert!(why.contains("another file system"), "{why}");
        let elsewhere = Found {
            identity: "file-0-28-8".to_owned(),
            ..found
        };
        let why = state().objection(&elsewhere).unwrap();
        assert!(why.contains("file-0-28-8"), "{why}");
    }

    #[test]
    fn other_version_is_refused_with_reason() {
        let mut bytes = state().to_bytes();
        bytes[8] = 2;
        let why = State::from_bytes(&bytes).unwrap_err();
        assert!(why.contains("version 2"), "{why}");
        // The record of the negotiation has a version of its own.
        let mut bytes = state().to_bytes();
        bytes[40 + 8] = 9;
        let why = State::from_bytes(&bytes).unwrap_err();
        assert!(why.contains("version 9"), "{why}");
    }

    #[test]
    fn shortened_longer_or_foreign_bytes_are_refused() {
        let bytes = state().to_bytes();
        for len in 0..bytes.len() {
            assert!(State::from_bytes(&bytes[..len]).is_err(), "{len}");
        }
        assert!(State::from_bytes(&[&bytes[..], b"x"].concat()).is_err());
        for (at, value) in [(0, b'x'), (12, 2), (24, 7)] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert!(State::from_bytes(&changed).is_err(), "{at}");
        }
        let relative = State {
            region: "region".into(),
            ..state()
        };
        assert!(State::from_bytes(&relative.to_bytes()).is_err());
    }
}
