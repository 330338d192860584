//! What the environment of the program asks for.

/// What keeps stray stores of the program from the region: `PRAMFS_PRELOAD_PROTECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protection {
    /// Nothing.
    #[default]
    Off,
    /// A protection key, where there is one.
    Auto,
    /// A protection key, or no lease.
    Key,
}

impl Protection {
    /// Returns what a value asks for. A misspelled one leaves no file unprotected: the strictest
    /// is meant.
    pub fn of(value: &[u8]) -> Protection {
        match value {
            b"" | b"off" => Protection::Off,
            b"auto" => Protection::Auto,
            _ => Protection::Key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_protection_is_the_strictest() {
        assert_eq!(Protection::of(b""), Protection::Off);
        assert_eq!(Protection::of(b"off"), Protection::Off);
        assert_eq!(Protection::of(b"auto"), Protection::Auto);
        for strict in [&b"pkey"[..], b"Auto", b"1"] {
            assert_eq!(Protection::of(strict), Protection::Key);
        }
    }
}
