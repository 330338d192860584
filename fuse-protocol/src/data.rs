//! Bytes in one piece or in several.

/// Bytes of a request or reply that may lie in several places, as in the buffers of a
/// guest.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// One piece.
    Whole(&'a [u8]),
    /// Several pieces, one after the other. Pieces may be empty.
    Pieces(&'a [&'a [u8]]),
}

impl<'a> Data<'a> {
    /// No bytes.
    pub const EMPTY: Data<'static> = Data::Whole(&[]);

    /// Returns the pieces that have bytes.
    pub fn pieces(self) -> impl Iterator<Item = &'a [u8]> + Clone {
        let (whole, pieces): (&'a [u8], &'a [&'a [u8]]) = match self {
            Data::Whole(bytes) => (bytes, &[]),
            Data::Pieces(pieces) => (&[], pieces),
        };
        let all = std::iter::once(whole).chain(pieces.iter().copied());
        all.filter(|piece| !piece.is_empty())
    }

    /// The number of bytes. It stays at `usize::MAX` if there are more.
    #[must_use]
    pub fn len(self) -> usize {
        let lens = self.pieces().map(<[u8]>::len);
        lens.fold(0, usize::saturating_add)
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.pieces().next().is_none()
    }

    /// Returns the bytes, if they lie in one piece.
    #[must_use]
    pub fn as_slice(self) -> Option<&'a [u8]> {
        let mut pieces = self.pieces();
        let first = pieces.next().unwrap_or_default();
        pieces.next().is_none().then_some(first)
    }

    /// Copies the bytes into one piece.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| all.extend_from_slice(piece));
        all
    }
}

/// By bytes, wherever they lie.
impl PartialEq for Data<'_> {
    fn eq(&self, other: &Data<'_>) -> bool {
        let bytes = |data: Data<'_>| data.to_vec();
        self.len() == other.len() && bytes(*self) == bytes(*other)
    }
}

impl Eq for Data<'_> {}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Data<'a> {
        Data::Whole(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_without_bytes_are_left_out() {
        let pieces: [&[u8]; 4] = [b"", b"ab", b"", b"c"];
        let data = Data::Pieces(&pieces);
        assert_eq!(data.pieces().collect::<Vec<_>>(), [&b"ab"[..], b"c"]);
        assert_eq!((data.len(), data.as_slice()), (3, None));
        assert_eq!(data, Data::Whole(b"abc"));
        assert_ne!(data, Data::Whole(b"abd"));
        let one: [&[u8]; 2] = [b"", b"ab"];
        assert_eq!(Data::Pieces(&one).as_slice(), Some(&b"ab"[..]));
        assert!(Data::Pieces(&[]).is_empty());
        assert_eq!(Data::EMPTY.as_slice(), Some(&b""[..]));
    }
}
