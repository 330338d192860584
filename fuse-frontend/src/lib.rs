//! The FUSE door to a pramfs region, and the program `mount.pramfs`.
//!
//! Purpose: [`adapter`] turns requests of the kernel into calls of
//! [`pramfs::inode::Fs`] and its answers into replies; the rest is what a mount
//! program is made of: [`cli`] and [`options`] read the command line,
//! [`mountpoint`] looks at where to mount, [`kernel`] mounts, [`session`] brings region, engine
//! and kernel together, [`shutdown`] takes them apart again, [`daemon`] does
//! it in the background, [`privileges`] says what the process that serves may do,
//! [`mod@remount`] changes the flags of a live mount, [`second_mount`] mounts what
//! is mounted in a second place, and [`unmount`] is what umount(8) calls.
//!
//! Invariant: no file-system logic lives here. What a request means is
//! decided by the engine; who may do it, by the kernel (`default_permissions`).
#![deny(missing_docs)]
// One place, `adapter/lent.rs`; tests/unsafe_code.rs keeps it so.
#![deny(unsafe_code)]

pub mod adapter;
pub mod cli;
pub mod daemon;
pub mod exit;
pub mod kernel;
pub mod logging;
pub mod memory;
pub mod mountinfo;
pub mod mountpoint;
pub mod oom;
pub mod options;
pub mod privileges;
pub mod readonly;
pub mod remount;
pub mod second_mount;
pub mod session;
pub mod shutdown;
pub mod summary;
pub mod unmount;
