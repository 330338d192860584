//! Checks a group on the medium while the file system is in use.
//!
//! Invariant: a word and the sum of its group change under the lock of the group, so a check
//! under it sees both before a change or both after it.

use crate::media::Medium;
use zerocopy::IntoBytes;

use super::BitmapSet;
use crate::error::{Damage, Result};
use crate::media::bitmap::GroupDesc;
use crate::media::checksum::word_sum;

impl BitmapSet {
    /// Reads the descriptor and the bits of a group and checks them against their sum. Returns
    /// the words of the bits, none for a group that is not in use. `None` for a group that does
    /// not exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::error::Error::Corrupt); errors of the region.
    pub fn check_group(&self, medium: Medium<'_>, group: u64) -> Result<Option<Vec<u64>>> {
        let geo = medium.geo;
        let Some(cell) = self.cells.get(group).filter(|_| group < self.groups()) else {
            return Ok(None);
        };
        // Nothing is loaded under it: a damaged group is found all the same.
        let _locked = cell.state.lock();
        let Some((bitmap, desc)) = self.bitmap_offset(medium, group)? else {
            let desc: GroupDesc = medium.read_pod(self.desc_offset(medium, group)?)?;
            return match desc.sum {
                0 => Ok(Some(Vec::new())),
                _ => Err(self.bad_sum(group)),
            };
        };
        let mut words = vec![0u64; (self.per_group / 64) as usize];
        medium.read(bitmap, words.as_mut_bytes())?;
        let mut sum = 0u64;
        for (word, i) in words.iter_mut().zip(0..) {
            *word = u64::from_le(*word);
            sum = sum.wrapping_add(word_sum(geo.seed, i, *word));
        }
        if sum != medium.load_u64(desc.word(1))? {
            return Err(self.bad_sum(group));
        }
        Ok(Some(words))
    }

    fn bad_sum(&self, group: u64) -> crate::error::Error {
        self.damaged(
            Damage::BitmapSum,
            group,
            "the checksum of its bitmap does not match",
        )
    }
}
