//! Reading without a call: a copy that is made while the server may change the file.
//!
//! The server shows the holder of a lease two words, after each change and before the next
//! (`pramfs-rs/src/fs/inode/leases.rs`): a counter, `layout`, and the size. No block leaves
//! the file while the lease lives, so every copy is of its blocks. Invariant: an accepted
//! copy has no byte that was stored after the layout changed, and no byte that is older than
//! the size that it was made for.
//!
//! Which blocks belong to a layout is left to `blocks` and `leased`.

use pramfs_medium::sync::atomic::fence;
use pramfs_medium::sync::order::acquire;

/// The two words. Both loads acquire.
pub(crate) trait Shown {
    /// Why a word cannot be loaded.
    type Error;

    /// Loads the counter.
    fn layout(&self) -> Result<u64, Self::Error>;

    /// Loads the size.
    fn size(&self) -> Result<u64, Self::Error>;
}

/// Makes a copy. `copy` gets the layout and the size, and returns `None` if it does not know
/// the blocks of that layout. Also returns `None` if the layout has changed meanwhile.
pub(crate) fn copy_of_one_layout<S: Shown, T>(
    shown: &S,
    copy: impl FnOnce(u64, u64) -> Result<Option<T>, S::Error>,
) -> Result<Option<T>, S::Error> {
    // Acquire: a later layout comes with its size, and a size with the bytes up to it.
    let layout = shown.layout()?;
    let size = shown.size()?;
    let Some(copied) = copy(layout, size)? else {
        return Ok(None);
    };
    Ok(is_still(shown, layout)?.then_some(copied))
}

/// Whether a layout is still the current one, after a copy.
pub(crate) fn is_still<S: Shown>(shown: &S, layout: u64) -> Result<bool, S::Error> {
    // If the copy has a byte of a later layout, this load sees that layout.
    fence(acquire("lease-copied"));
    Ok(shown.layout()? == layout)
}
