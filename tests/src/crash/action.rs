//! One step of an operation, and what a crash in it may leave.

use pramfs::Fallocate;
use pramfs::inode::LeaseMode;

use super::state::Promise;
use crate::model::{Call, Follower, NodeId, nodes_of};

/// One step of an operation.
#[derive(Debug, Clone)]
pub enum Action {
    /// A call of the engine.
    Call(Call),
    /// A store through a view of a file, and its `persist`.
    Map {
        /// The file.
        node: NodeId,
        /// Where in the file.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
        /// Whether `persist` follows; otherwise the stores may be lost.
        persist: bool,
    },
    /// A call of `File::write_atomic`.
    WriteAtomic {
        /// The file.
        node: NodeId,
        /// Where in the file.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Changes of a private copy of a view of the whole file, and its commit.
    Commit {
        /// The file.
        node: NodeId,
        /// Where in the file, and what.
        ranges: Vec<(u64, Vec<u8>)>,
        /// By one commit. By one for each range otherwise, which breaks the promise.
        at_once: bool,
    },
    /// A new label.
    Label(&'static str),
    /// Everything that is free goes back to the host.
    Trim,
    /// The first part of a file is moved into blocks that follow each other.
    Gather {
        /// The file.
        node: NodeId,
    },
    /// What a file has in the leaf of its last block is moved elsewhere.
    Vacate {
        /// The file.
        node: NodeId,
    },
    /// A process gets a lease of a file, and holds it.
    Lease {
        /// The file.
        node: NodeId,
        /// What the process may do.
        mode: LeaseMode,
    },
    /// The holder of a lease to write stores to blocks of the file, and makes that durable.
    Store {
        /// The file.
        node: NodeId,
        /// Where in the file.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// The same, past the end of the file: the holder still has blocks in its view that a
    /// truncation has cut off.
    StoreToCut {
        /// The file.
        node: NodeId,
        /// How many bytes from the end on, as far as there are blocks.
        len: u64,
    },
    /// The server opens an append window for the holder of a lease to write.
    OpenWindow {
        /// The file.
        node: NodeId,
        /// Room for so many bytes.
        bytes: u64,
    },
    /// The holder appends in its window. Refused if it has none, or no room.
    Append {
        /// The file.
        node: NodeId,
        /// What.
        bytes: Vec<u8>,
    },
    /// Processes that hold leases have ended, and the engine finds that out.
    EndLeases {
        /// One lease of this file; `None`: all leases of all files.
        node: Option<NodeId>,
    },
    /// A clean unmount, and the next mount. The leases stay.
    Remount,
}

impl Action {
    /// The call that has the same effect in the model; `None` for what is no
    /// matter of names and files.
    pub fn as_call(&self) -> Option<Call> {
        Some(match self {
            Action::Label(_)
            | Action::Trim
            | Action::Gather { .. }
            | Action::Vacate { .. }
            | Action::Lease { .. }
            | Action::StoreToCut { .. }
            | Action::OpenWindow { .. }
            | Action::Append { .. }
            | Action::EndLeases { .. }
            | Action::Commit { .. }
            | Action::Remount => return None,
            Action::Call(c) => c.clone(),
            Action::Map {
                node,
                offset,
                bytes,
                ..
            }
            | Action::WriteAtomic {
                node,
                offset,
                bytes,
            }
            | Action::Store {
                node,
                offset,
                bytes,
            } => Call::Write {
                node: *node,
                offset: Some(*offset),
                bytes: bytes.clone(),
            },
        })
    }

    /// Whether the nodes that it uses exist.
    pub fn applies(&self, f: &Follower) -> bool {
        let exist = |call: &Call| nodes_of(call).iter().all(|id| f.model.get(*id).is_some());
        match self {
            Action::Commit { node, .. } => f.model.get(*node).is_some(),
            _ => self.as_call().is_none_or(|call| exist(&call)),
        }
    }

    /// Whether the engine changes bytes of a file, by an operation that may be atomic.
    pub fn changes_data_by_engine(&self) -> bool {
        let Action::Call(call) = self else {
            return false;
        };
        match call {
            Call::Write { .. } | Call::Copy { .. } => true,
            Call::Fallocate { what, .. } => !matches!(what, Fallocate::Allocate { .. }),
            _ => false,
        }
    }

    /// What a crash in it may leave.
    pub fn promise(&self, f: &Follower) -> Promise {
        let data = |node: &NodeId, from: u64, len: u64| Promise::Data {
            ino: f.ino(*node),
            range: from..from.saturating_add(len),
        };
        let size = |node: &NodeId| f.model.node(*node).size();
        if let Action::WriteAtomic { .. } | Action::Commit { .. } = self {
            return Promise::Atomic;
        }
        // A chain of records allocates the blocks, from the one that holds the end.
        if let Action::OpenWindow { node, bytes } = self {
            let from = size(node).saturating_sub(MOST_BLOCK);
            return data(node, from, bytes + 2 * MOST_BLOCK);
        }
        match self.as_call() {
            Some(Call::Write {
                node,
                offset,
                bytes,
            }) => data(&node, offset.unwrap_or(size(&node)), bytes.len() as u64),
            Some(
                Call::Fallocate {
                    node, offset, len, ..
                }
                | Call::Copy {
                    node, offset, len, ..
                },
            ) => data(&node, offset, len),
            _ => Promise::Atomic,
        }
    }
}

/// The largest block of a fixture.
const MOST_BLOCK: u64 = 4096;
