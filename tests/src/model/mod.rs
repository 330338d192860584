//! A reference model: what a POSIX file system does, on plain maps.
//!
//! The model has no blocks, no journal and no locks, so that it is easy to see
//! that it is right. A test makes a list of [`Op`]s, whose operands are indices
//! and not names or inode numbers (so that a list stays meaningful when proptest
//! takes elements out of it), and [`Runner`] carries each out on the model and
//! on the engine, compares the results, the errno among them, and now and then
//! the whole tree. [`Pair`] does the same by system calls, on a mount and on a
//! directory of tmpfs.
//!
//! Left to others: what a crash may lose (all of it is durable here), and
//! operations that run at the same time.

mod acl;
mod compare;
mod files;
mod follow;
mod names;
mod ops;
mod pair;
mod pair_tree;
mod runner;
mod sparse;
mod state;
mod system;

pub use follow::Follower;
pub use ops::{Op, Pick, Who, expand, name, ops, ops_and_growth};
pub use pair::Pair;
pub(crate) use pair::nodes_of;
pub use runner::{Options, Runner};
pub use sparse::Sparse;
pub use state::{Body, Call, Failure, Make, Model, Node, NodeId, Value};
