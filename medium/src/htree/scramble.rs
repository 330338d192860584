//! Names in the place of names that a report must not show.
//!
//! A name that is replaced follows from the hash of the old one, which stays. So the item stays
//! where it is in its tree, and a check can still tell whether a name belongs to its hash. The
//! keys of the hashes are removed from such an image: without them nobody can try whether a name
//! that he thinks of has a hash.

use super::{TIE_MASK, TreeKind};
use crate::media::checksum::mix64;

/// Bytes of replaced names.
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
/// Namespaces of attributes, which stay.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Attributes of the file system, which keep their names: ACLs.
const OWN: &[u8] = b"system.";

/// Returns the name of the same length that replaces `name`. Its own replacement is itself.
pub fn scrambled(kind: TreeKind, hash: u64, name: &[u8]) -> Vec<u8> {
    let mut out = name.to_vec();
    let kept = match kind {
        TreeKind::Directory => 0,
        TreeKind::Xattrs if name.starts_with(OWN) => name.len(),
        TreeKind::Xattrs => {
            let of = NAMESPACES.iter().find(|space| name.starts_with(space));
            of.map_or(0, |space| space.len())
        }
    };
    let mut random = hash & !TIE_MASK;
    for part in out[kept..].chunks_mut(8) {
        random = mix64(random.wrapping_add(1));
        for (byte, from) in part.iter_mut().zip(random.to_le_bytes()) {
            *byte = LETTERS[usize::from(from) % LETTERS.len()];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrambled_name_has_the_length_and_is_stable() {
        for len in 1..=255 {
            let name = vec![b'x'; len];
            let new = scrambled(TreeKind::Directory, 0x1234_5600, &name);
            assert_eq!(new.len(), len);
            assert!(new.iter().all(|b| LETTERS.contains(b)));
            // Whatever the tie-breaker, and when it is scrambled again.
            assert_eq!(scrambled(TreeKind::Directory, 0x1234_5607, &new), new);
        }
        let two = [0x100, 0x200].map(|hash| scrambled(TreeKind::Directory, hash, b"12345678"));
        assert_ne!(two[0], two[1]);
    }

    #[test]
    fn namespaces_and_acls_stay() {
        let of = |name: &[u8]| scrambled(TreeKind::Xattrs, 0x100, name);
        assert!(of(b"user.secret").starts_with(b"user."));
        assert_ne!(of(b"user.secret"), b"user.secret");
        assert_eq!(of(b"system.posix_acl_access"), b"system.posix_acl_access");
        assert_eq!(of(b"user."), b"user.");
    }
}
