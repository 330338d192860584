//! Large values: extended attributes whose value lies in blocks of its own, which the item in
//! the attribute tree describes.

use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree;
use pramfs_medium::map::MapRef;
use pramfs_medium::media::Geometry;
use pramfs_medium::media::htree::{LargeValue, VALUE_MAX};
use pramfs_medium::types::Ino;

/// Parses the description of a value in blocks from its item.
pub(crate) fn parse_large(geo: &Geometry, ino: Ino, stored: &[u8]) -> Result<LargeValue> {
    let large = LargeValue::parse(stored).ok_or_else(|| {
        Error::corrupt(Damage::XattrItem, ino, "an extended attribute is damaged")
    })?;
    if large.len as usize > VALUE_MAX || large.height > geo.max_height() {
        return Err(Error::corrupt(
            Damage::XattrItem,
            ino,
            "an extended attribute has an impossible size",
        ));
    }
    Ok(large)
}

/// Returns the map of the value's blocks.
pub(crate) fn map_of_value(geo: &Geometry, large: &LargeValue, ino: Ino, name: &[u8]) -> MapRef {
    large.map(ino, htree::name_hash(geo, name)).into()
}
