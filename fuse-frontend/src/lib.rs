//! The FUSE frontend of a pramfs region, and the program `mount.pramfs`.
//!
//! Purpose: [`adapter`] turns kernel requests into calls of
//! [`pramfs::inode::Fs`] and the results into replies. The other modules form
//! the mount program:
//! * [`cli`] and [`options`] read the command line;
//! * [`mountpoint`] checks the mount point, [`kernel`] mounts;
//! * [`session`] connects region, engine and kernel, [`shutdown`] ends the mount;
//! * [`daemon`] mounts in the background;
//! * [`direct`] gives other processes direct access to files;
//! * [`door`] stands between the requests of guests and the adapter;
//! * [`guests`] serves guests beside a mount;
//! * [`notify`] tells systemd what becomes of the mount;
//! * [`privileges`] limits the rights of the server;
//! * [`mod@remount`] changes the flags of a live mount;
//! * [`second_mount`] mounts a live region on another directory;
//! * [`status`] reports the state of a mount;
//! * [`tags`] finds a region by its uuid or label;
//! * [`takeover`] lets the mount survive its server;
//! * [`unmount`] is the helper of umount(8);
//! * [`virtiofsd`] serves guests instead of a mount.
//!
//! Invariant: this crate has no file-system logic. The engine defines the effect
//! of a request; the kernel checks permissions (`default_permissions`).
#![deny(missing_docs)]
// One exception, `adapter/lent.rs`; tests/unsafe_code.rs enforces it.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

pub mod adapter;
pub mod cli;
pub mod daemon;
pub mod defaults;
pub mod direct;
pub mod door;
#[doc(hidden)]
pub mod exercise;
pub mod exit;
pub mod guests;
pub mod kernel;
pub mod logging;
pub mod memory;
pub mod mountinfo;
pub mod mountpoint;
pub mod notify;
pub mod oom;
mod opening;
pub mod options;
pub mod privileges;
pub mod readonly;
pub mod relock;
pub mod remount;
pub mod second_mount;
pub mod session;
pub mod shutdown;
mod snapshots;
pub mod status;
pub mod summary;
pub mod tags;
pub mod takeover;
pub mod transport;
pub mod unmount;
pub mod virtiofsd;
