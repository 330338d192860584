//! Aligned words of 8 bytes of a file, which a crash leaves old or new as a whole.

const WORD: u64 = 8;

/// Whether a buffer of a vector ends, and the next one begins, amid an aligned word of the file.
/// Stored one after the other, they could leave half of it after a crash.
pub fn splits_word(at: u64, lens: impl Iterator<Item = u64>) -> bool {
    let mut end = at;
    let mut splits = false;
    let mut lens = lens.filter(|len| *len > 0).peekable();
    while let Some(len) = lens.next() {
        end = end.wrapping_add(len);
        splits |= lens.peek().is_some() && !end.is_multiple_of(WORD);
    }
    splits
}

#[cfg(test)]
mod tests {
    use super::splits_word;

    #[test]
    fn only_inner_ends_of_buffers_split_words() {
        let of = |at, lens: &[u64]| splits_word(at, lens.iter().copied());
        assert!(!of(0, &[]) && !of(3, &[4]) && !of(3, &[5, 4096, 1]));
        assert!(of(0, &[4, 4]) && of(3, &[8, 8]) && of(0, &[8, 1, 8]));
        // An empty buffer stores nothing.
        assert!(!of(0, &[7, 0]) && !of(0, &[0, 3]) && of(0, &[7, 0, 1]));
        assert!(!of(u64::MAX - 7, &[8, 8]));
    }
}
