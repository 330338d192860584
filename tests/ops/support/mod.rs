//! What the tests of several operations share.

pub mod cost;
pub mod file;
pub mod ioctl;
pub mod library;
pub mod lost;
pub mod mode;
pub mod mount;
pub mod times;
pub mod transcript;
