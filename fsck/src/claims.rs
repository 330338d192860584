//! The set of blocks that have an owner: one bit for each block. A piece of the
//! set exists only where a bit is set, so memory follows what a sparse region
//! holds.

/// Bits of one piece.
const PIECE: u64 = 1 << 15;
const WORDS: usize = (PIECE / 64) as usize;

#[derive(Debug, Clone)]
pub(super) struct Claims {
    pieces: Vec<Option<Box<[u64; WORDS]>>>,
    blocks: u64,
}

impl Claims {
    pub(super) fn new(blocks: u64) -> Claims {
        Claims {
            pieces: (0..blocks.div_ceil(PIECE)).map(|_| None).collect(),
            blocks,
        }
    }

    /// Claims a run of blocks. Returns the first that was already claimed.
    pub(super) fn claim(&mut self, start: u64, len: u64) -> Option<u64> {
        let mut twice = None;
        let (mut at, end) = (start, (start + len).min(self.blocks));
        while at < end {
            let piece =
                self.pieces[(at / PIECE) as usize].get_or_insert_with(|| Box::new([0; WORDS]));
            let n = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << (at % 64);
            let word = &mut piece[(at % PIECE) as usize / 64];
            let both = *word & mask;
            if both != 0 && twice.is_none() {
                twice = Some(at / 64 * 64 + u64::from(both.trailing_zeros()));
            }
            *word |= mask;
            at += n;
        }
        twice
    }

    /// Adds all claims of another set.
    pub(super) fn merge(&mut self, other: &Claims) {
        for (own, other) in self.pieces.iter_mut().zip(&other.pieces) {
            let Some(other) = other else { continue };
            match own {
                Some(own) => {
                    for (a, b) in own.iter_mut().zip(other.iter()) {
                        *a |= b;
                    }
                }
                None => *own = Some(other.clone()),
            }
        }
    }

    /// Returns the claims of 64 blocks. `start` is a multiple of 64.
    pub(super) fn word(&self, start: u64) -> u64 {
        match self.pieces.get((start / PIECE) as usize) {
            Some(Some(piece)) => piece[(start % PIECE) as usize / 64],
            _ => 0,
        }
    }

    /// Returns the number of claimed blocks.
    pub(super) fn count(&self) -> u64 {
        self.pieces
            .iter()
            .flatten()
            .flat_map(|p| p.iter())
            .map(|w| u64::from(w.count_ones()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_claim_returns_first_claimed_block() {
        let mut c = Claims::new(100_000);
        assert_eq!(c.claim(0, 1), None);
        assert_eq!(c.claim(32_700, 512), None);
        assert_eq!(c.claim(33_211, 2), Some(33_211));
        assert_eq!(c.claim(32_000, 700), None);
        assert_eq!(c.claim(31_000, 1001), Some(32_000));
        assert_eq!(c.claim(99_999, 50), None);
        assert_eq!(c.word(0), 1);
        assert_eq!(c.count(), 1 + 512 + 1 + 700 + 1000 + 1);
        assert_eq!(c.word(50_048), 0);
    }
}
