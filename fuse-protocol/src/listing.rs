//! Packs the entries of a directory for READDIR and READDIRPLUS.
//!
//! ```
//! use pramfs_fuse_protocol::{Fit, Listing, reply};
//! let mut room = [0; 64];
//! let mut listing = Listing::new(&mut room);
//! assert_eq!(listing.entry(1, 1, 4, b"."), Ok(Fit::Added));
//! assert_eq!(listing.entry(16, 2, 8, b"file"), Ok(Fit::Added));
//! assert_eq!(listing.entry(17, 3, 8, b"other"), Ok(Fit::Full));
//! let reply = reply::data(7, listing.bytes()).unwrap();
//! assert_eq!(reply.body_len(), 64);
//! ```

use zerocopy::{Immutable, IntoBytes};

use crate::extension::ALIGN;
use crate::numbers::LISTED_NAME_MAX;
use crate::wire::{Dirent, Direntplus, EntryOut};

/// Whether an entry was added.
#[must_use = "an entry that did not fit holds no reference, and the listing ends before it"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is in the listing.
    Added,
    /// There is no room; the listing is unchanged.
    Full,
}

/// No kernel takes a listing with this name: it is empty, too long, or has a slash or a NUL.
/// One such name would make the whole listing fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name of {0} bytes cannot be listed")]
pub struct BadName(pub usize);

/// The entries of one reply. The room is as long as the request says, at most.
#[derive(Debug)]
pub struct Listing<'b> {
    room: &'b mut [u8],
    used: usize,
}

impl<'b> Listing<'b> {
    /// Begins a listing.
    pub fn new(room: &'b mut [u8]) -> Listing<'b> {
        Listing { room, used: 0 }
    }

    /// Adds an entry for READDIR. `off` is where the listing goes on after it, and `kind`
    /// the type as in `d_type`.
    ///
    /// # Errors
    /// [`BadName`]; the listing is unchanged.
    pub fn entry(&mut self, ino: u64, off: u64, kind: u32, name: &[u8]) -> Result<Fit, BadName> {
        let dirent = dirent(ino, off, kind, name)?;
        Ok(self.add(&dirent, name))
    }

    /// Adds an entry with attributes for READDIRPLUS. Number and type are taken from the
    /// attributes.
    ///
    /// # Errors
    /// [`BadName`]; the listing is unchanged.
    pub fn entry_plus(
        &mut self,
        entry_out: &EntryOut,
        off: u64,
        name: &[u8],
    ) -> Result<Fit, BadName> {
        let kind = entry_out.attr.mode >> 12 & 0o17;
        let plus = Direntplus {
            entry_out: *entry_out,
            dirent: dirent(entry_out.attr.ino, off, kind, name)?,
        };
        Ok(self.add(&plus, name))
    }

    /// Adds an entry without attributes for READDIRPLUS. The kernel shows it, takes no
    /// reference to the node, and looks the name up when it needs more.
    ///
    /// # Errors
    /// [`BadName`]; the listing is unchanged.
    pub fn name_only(
        &mut self,
        ino: u64,
        off: u64,
        kind: u32,
        name: &[u8],
    ) -> Result<Fit, BadName> {
        let plus = Direntplus {
            entry_out: EntryOut::default(),
            dirent: dirent(ino, off, kind, name)?,
        };
        Ok(self.add(&plus, name))
    }

    /// The listing.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.room.get(..self.used).unwrap_or_default()
    }

    fn add<T: IntoBytes + Immutable>(&mut self, head: &T, name: &[u8]) -> Fit {
        let head = head.as_bytes();
        let len = (head.len() + name.len()).next_multiple_of(ALIGN);
        let end = self.used.saturating_add(len);
        let Some(place) = self.room.get_mut(self.used..end) else {
            return Fit::Full;
        };
        // The rest is padding, of zeros: nothing of the buffer's past leaves the server.
        let bytes = head.iter().chain(name).copied();
        for (to, byte) in place.iter_mut().zip(bytes.chain(std::iter::repeat(0))) {
            *to = byte;
        }
        self.used = end;
        Fit::Added
    }
}

fn dirent(ino: u64, off: u64, kind: u32, name: &[u8]) -> Result<Dirent, BadName> {
    let bad = name.is_empty() || name.len() > LISTED_NAME_MAX;
    if bad || name.contains(&b'/') || name.contains(&0) {
        return Err(BadName(name.len()));
    }
    Ok(Dirent {
        ino,
        off,
        namelen: name.len() as u32,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Attr;

    #[test]
    fn entries_lie_at_multiples_of_eight_with_zeros_between() {
        let mut room = [0xff; 400];
        let mut listing = Listing::new(&mut room);
        let attr = Attr {
            ino: 20,
            mode: 0o040_755,
            ..Attr::default()
        };
        let entry = EntryOut {
            nodeid: 21,
            attr,
            ..EntryOut::default()
        };
        assert_eq!(listing.entry_plus(&entry, 5, b"abc"), Ok(Fit::Added));
        let bytes = listing.bytes().to_vec();
        assert_eq!(bytes.len(), 160);
        assert_eq!(bytes[..8], 21u64.to_ne_bytes());
        assert_eq!(bytes[128..136], 20u64.to_ne_bytes());
        assert_eq!(bytes[136..144], 5u64.to_ne_bytes());
        assert_eq!(bytes[144..148], 3u32.to_ne_bytes());
        assert_eq!(bytes[148..152], 4u32.to_ne_bytes());
        assert_eq!(&bytes[152..], b"abc\0\0\0\0\0");
        assert_eq!(listing.name_only(22, 6, 8, b"12345678"), Ok(Fit::Added));
        assert_eq!(listing.bytes().len(), 320);
        assert_eq!(listing.bytes()[160..168], [0; 8]);
        assert_eq!(listing.name_only(22, 7, 8, b"1"), Ok(Fit::Full));
        assert_eq!(listing.bytes().len(), 320);
    }

    #[test]
    fn entry_fits_to_the_last_byte() {
        let mut room = [0; 32];
        assert_eq!(
            Listing::new(&mut room).entry(1, 1, 8, b"12345678"),
            Ok(Fit::Added)
        );
        assert_eq!(
            Listing::new(&mut room[..31]).entry(1, 1, 8, b"1"),
            Ok(Fit::Full)
        );
        assert_eq!(Listing::new(&mut []).entry(1, 1, 8, b"1"), Ok(Fit::Full));
    }

    #[test]
    fn names_that_fail_a_listing_are_refused() {
        let mut room = [0; 4096];
        let mut listing = Listing::new(&mut room);
        let long = [b'n'; LISTED_NAME_MAX + 1];
        for name in [&b""[..], b"a/b", b"a\0", &long] {
            assert_eq!(listing.entry(1, 1, 8, name), Err(BadName(name.len())));
            assert_eq!(listing.name_only(1, 1, 8, name), Err(BadName(name.len())));
        }
        assert_eq!(listing.bytes(), b"");
        assert_eq!(listing.entry(1, 1, 8, &long[1..]), Ok(Fit::Added));
    }
}
