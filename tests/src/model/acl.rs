//! The model's POSIX ACLs, from acl(5) and the format of their attributes.

use super::state::{Failure, Model, Node, NodeId, Value};

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Tag, permissions, user or group.
type Entry = (u16, u16, u32);

const OWNER: u16 = 1;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHERS: u16 = 32;

fn fail<T>(errno: i32) -> Result<T, Failure> {
    Err(Failure(errno))
}

fn parse(value: &[u8]) -> Result<Vec<Entry>, Failure> {
    if value.len() < 4 {
        return fail(libc::EINVAL);
    }
    if value[..4] != [2, 0, 0, 0] {
        return fail(libc::EOPNOTSUPP);
    }
    if !(value.len() - 4).is_multiple_of(8) {
        return fail(libc::EINVAL);
    }
    let entries: Vec<Entry> = value[4..]
        .chunks(8)
        .map(|e| {
            let half = |at: usize| u16::from_le_bytes([e[at], e[at + 1]]);
            (
                half(0),
                half(2),
                u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            )
        })
        .collect();
    let count = |tag| entries.iter().filter(|e| e.0 == tag).count();
    let named = count(2) + count(8);
    let valid = entries.is_sorted_by_key(|e| e.0)
        && entries
            .iter()
            .all(|e| matches!(e.0, 1 | 2 | 4 | 8 | 16 | 32) && e.1 < 8)
        && entries
            .iter()
            .all(|e| !matches!(e.0, 2 | 8) || e.2 != u32::MAX)
        && count(OWNER) == 1
        && count(GROUP) == 1
        && count(OTHERS) == 1
        && (count(MASK) == 1 || count(MASK) == 0 && named == 0);
    if valid || entries.is_empty() {
        Ok(entries)
    } else {
        fail(libc::EINVAL)
    }
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        let id = if matches!(tag, 2 | 8) { *id } else { u32::MAX };
        value.extend(id.to_le_bytes());
    }
    value
}

/// The entries that the three digits of a mode are about.
fn digits(entries: &mut [Entry]) -> [&mut u16; 3] {
    let masked = entries.iter().any(|e| e.0 == MASK);
    let group = if masked { MASK } else { GROUP };
    let mut found = [None, None, None];
    for (tag, perm, _) in entries {
        let digit = match *tag {
            OWNER => 0,
            t if t == group => 1,
            OTHERS => 2,
            _ => continue,
        };
        found[digit] = Some(perm);
    }
    found.map(|p| p.expect("a valid list has all three"))
}

fn mode_of(entries: &mut [Entry]) -> u32 {
    digits(entries)
        .iter()
        .fold(0, |mode, perm| mode << 3 | u32::from(**perm))
}

/// What a new node has of the default list of its directory.
pub(super) fn inherit(node: &mut Node, dir: &Node, asked: u32) {
    let Some(list) = dir.xattrs.get(DEFAULT) else {
        return;
    };
    if matches!(node.body, super::state::Body::Symlink(_)) {
        return;
    }
    let mut entries = parse(list).expect("stored ACLs are valid");
    if node.is_dir() {
        node.xattrs.insert(DEFAULT.to_vec(), list.clone());
    }
    for (perm, shift) in digits(&mut entries).into_iter().zip([6, 3, 0]) {
        *perm &= (asked >> shift & 7) as u16;
    }
    node.perm = node.perm & 0o7000 | mode_of(&mut entries);
    if entries.len() > 3 {
        node.xattrs.insert(ACCESS.to_vec(), encode(&entries));
    }
}

/// What chmod does to the access list.
pub(super) fn chmod(node: &mut Node) {
    let perm = node.perm;
    if let Some(list) = node.xattrs.get_mut(ACCESS) {
        let mut entries = parse(list).expect("stored ACLs are valid");
        for (p, shift) in digits(&mut entries).into_iter().zip([6, 3, 0]) {
            *p = (perm >> shift & 7) as u16;
        }
        *list = encode(&entries);
    }
}

impl Model {
    pub(super) fn set_acl(
        &mut self,
        id: NodeId,
        name: &[u8],
        value: &[u8],
        check: impl Fn(bool) -> Result<(), Failure>,
    ) -> Result<Value, Failure> {
        let mut entries = parse(value)?;
        let now = self.now;
        let n = self.node_mut(id);
        if matches!(n.body, super::state::Body::Symlink(_)) {
            return fail(libc::EOPNOTSUPP);
        }
        if name == DEFAULT && !n.is_dir() {
            return match entries.is_empty() {
                true => Ok(Value::Unit),
                false => fail(libc::EACCES),
            };
        }
        check(n.xattrs.contains_key(name))?;
        let mut changed = false;
        if name == ACCESS && !entries.is_empty() {
            let perm = n.perm & 0o7000 | mode_of(&mut entries);
            changed = perm != n.perm;
            n.perm = perm;
        }
        if entries.is_empty() || name == ACCESS && entries.len() == 3 {
            changed |= n.xattrs.remove(name).is_some();
        } else {
            n.xattrs.insert(name.to_vec(), encode(&entries));
            changed = true;
        }
        if changed {
            n.touch_ctime(now);
        }
        Ok(Value::Unit)
    }
}
