//! What one writer has, by its own account: the model, in which the writer has
//! a directory of its own and names in one that all share.
//!
//! Invariant: times that no call has set are [`ANY_TIME`].

use std::collections::BTreeMap;

use pramfs::{
    FileType,
    inode::{Credentials, Ino, Time},
};

use crate::model::{Call, Make, Model, NodeId};
use crate::snapshot::{ANY_TIME, Node, Snapshot, Sparse, Trait};

/// The directory that all share.
pub const COMMON: &[u8] = b"common";

/// The name of a writer's directory; with a dash, the beginning of its names
/// in the shared one.
pub fn home(writer: u32) -> Vec<u8> {
    format!("w{writer}").into_bytes()
}

/// The directories and files of one writer.
#[derive(Debug, Clone)]
pub struct State {
    /// Lives before this one.
    pub life: u64,
    pub(super) model: Model,
    pub(super) writer: u32,
}

impl State {
    /// Nothing yet.
    pub fn new(writer: u32) -> State {
        let mut model = Model::new(ANY_TIME);
        for name in [home(writer), COMMON.to_vec()] {
            let (ctx, parent) = (Credentials::ROOT, crate::model::ROOT);
            let (what, pin) = (Make::Dir { perm: 0o755 }, false);
            let made = model.call(&Call::Make {
                ctx,
                parent,
                name,
                what,
                pin,
            });
            made.expect("the model is empty");
        }
        State {
            life: 0,
            model,
            writer,
        }
    }

    /// The shared directory.
    pub(super) fn shared(&self) -> NodeId {
        self.model.at(COMMON).expect("it is always there")
    }

    /// What a file system should show of it.
    pub fn shown(&self) -> Snapshot {
        own(self.model.numbered())
    }

    /// The form that [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |bytes: &[u8]| {
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend(bytes);
        };
        put(&self.life.to_le_bytes());
        for (path, n) in &self.model.numbered().nodes {
            put(path);
            let numbers = [
                n.id.0.0,
                (n.kind.mode_bits() | n.perm).into(),
                n.times.0.sec as u64,
                n.times.0.nsec.into(),
                n.xattrs.len() as u64,
            ];
            numbers.iter().for_each(|n| put(&n.to_le_bytes()));
            put(&n.bytes());
            for (name, value) in &n.xattrs {
                put(name);
                put(value);
            }
        }
        out
    }

    /// What [`encode`](Self::encode) has written; nothing if it was not that.
    pub fn decode(writer: u32, bytes: &[u8]) -> Option<State> {
        let mut left = bytes;
        let mut shown = Snapshot::default();
        let life = number(&mut left)?;
        while !left.is_empty() {
            let path = part(&mut left)?.to_vec();
            let mut next = || number(&mut left);
            let (ino, mode, sec, nsec, count) = (next()?, next()?, next()?, next()?, next()?);
            let data = part(&mut left)?;
            let mut xattrs = BTreeMap::new();
            for _ in 0..count {
                xattrs.insert(part(&mut left)?.to_vec(), part(&mut left)?.to_vec());
            }
            let (sec, nsec) = (sec as i64, nsec as u32);
            let kind = FileType::from_mode(mode as u32)?;
            let n = Node {
                perm: mode as u32 & 0o7777,
                size: data.len() as u64,
                times: (Time { sec, nsec }, ANY_TIME),
                data: Sparse::from(data),
                xattrs,
                ..Node::new((Ino(ino), 0), kind)
            };
            shown.nodes.insert(path, n);
        }
        let model = Model::of(&shown, ANY_TIME).ok()?;
        model.at(COMMON)?;
        Some(State {
            life,
            model,
            writer,
        })
    }
}

fn part<'b>(left: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (len, rest) = left.split_first_chunk()?;
    let (part, rest) = rest.split_at_checked(u64::from_le_bytes(*len) as usize)?;
    *left = rest;
    Some(part)
}

fn number(left: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(part(left)?.try_into().ok()?))
}

/// What writers can know of what a file system shows: neither space nor
/// numbers, nor the two directories that are nobody's.
pub fn own(mut shown: Snapshot) -> Snapshot {
    shown.nodes.remove(&b"/"[..]);
    shown.nodes.remove(&[b"/", COMMON].concat());
    shown.label.clear();
    shown.without(&[
        Trait::Ids,
        Trait::Free,
        Trait::Blocks,
        Trait::Allocated,
        Trait::DirectorySizes,
    ])
}

/// Takes out what is a writer's.
pub fn take(found: &mut Snapshot, writer: u32) -> Snapshot {
    let all = std::mem::take(&mut found.nodes).into_iter();
    let (nodes, others) = all.partition(|(path, _)| is_of(path, writer));
    found.nodes = others;
    Snapshot {
        nodes,
        ..Snapshot::default()
    }
}

/// Whether a path is a writer's.
fn is_of(path: &[u8], writer: u32) -> bool {
    let rest = path.strip_prefix(b"/").unwrap_or_default();
    let shared = rest.strip_prefix(COMMON).and_then(|r| r.strip_prefix(b"/"));
    let (part, end) = match shared {
        Some(name) => (name, b'-'),
        None => (rest, b'/'),
    };
    part.strip_prefix(&home(writer)[..])
        .is_some_and(|rest| match rest.first() {
            Some(next) => *next == end,
            None => shared.is_none(),
        })
}

/// Whether a path is a writer's or leads to what is.
pub fn is_for(path: &[u8], writer: u32) -> bool {
    path == [b"/", COMMON].concat() || is_of(path, writer)
}
