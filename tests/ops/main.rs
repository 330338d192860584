//! What each operation does, sorted by operation.
//!
//! Each operation has a folder, named after its system call, and in it a file for each
//! kind of question:
//!
//! * `posix`: on a mount, a program sees the same as on the file systems of the kernel.
//!   Each test makes the same calls on a mount of pramfs, on a tmpfs and on an ext4 (in a
//!   loop device), notes the results, and compares the notes line by line. Where pramfs
//!   differs, the test states the difference and the reason beside the line. Numbers are
//!   those of the xfstests cases about the same.
//! * `semantics`: what `docs/semantics.md` promises. The document names each test.
//! * `cost`: fences, lines and bytes, compared with the table in `docs/consistency.md`.
//! * `limits`: the largest, longest and fullest that it must bear.
//! * `concurrent`, `cached`, `lost` and others: what their first lines say.
//!
//! Tests of all operations together (models, crashes, damage, load) are in
//! `tests/tests/`.

mod support;

// Names and directories.
mod create {
    mod cost;
    mod limits;
    mod posix;
    mod semantics;
    mod unnamed;
}
mod link {
    mod cost;
    mod limits;
    mod semantics;
}
mod lookup {
    mod concurrent;
    mod semantics;
}
mod mkdir {
    mod cost;
    mod limits;
    mod posix;
    mod semantics;
}
mod readdir {
    mod cached;
    mod posix;
    mod semantics;
    mod semantics_damage;
}
mod rename {
    mod cost;
    mod posix;
    mod semantics;
}
mod symlink {
    mod cost;
    mod limits;
    mod semantics;
}
mod unlink {
    mod cost;
    mod limits;
    mod posix;
    mod semantics;
}

// Contents.
mod append {
    mod cost;
    mod semantics;
}
mod copy_range {
    mod lost;
    mod posix;
}
mod fallocate {
    mod cost;
    mod posix;
    mod semantics;
}
mod vacate {
    mod cost;
}
mod gather {
    mod cost;
}
mod lost_ranges {
    mod damage;
    mod model;
}
mod mmap {
    mod posix;
    mod semantics;
}
mod msync {
    mod posix;
    mod semantics;
}
mod read {
    mod lost;
    mod semantics;
}
mod seek {
    mod posix;
}
mod truncate {
    mod cost;
    mod posix;
    mod semantics;
}
mod view {
    mod lost;
    mod semantics;
}
mod write {
    mod cost;
    mod limits;
    mod lost;
    mod posix;
    mod semantics;
    mod semantics_atomic;
}

// Attributes.
mod acl {
    mod cost;
    mod posix;
    mod semantics;
}
mod chattr {
    mod cost;
    mod posix;
    mod semantics;
}
mod chmod {
    mod cost;
    mod posix;
}
mod chown {
    mod cost;
    mod posix;
    mod semantics;
}
mod stat {
    mod semantics;
}
mod suid {
    mod posix;
}
mod times {
    mod posix;
    mod semantics;
}
mod xattr {
    mod cost;
    mod posix;
    mod semantics;
}

// Files and file systems as a whole.
mod errors {
    mod semantics;
}
mod handles {
    mod posix;
}
mod ioctl {
    mod posix;
}
mod label {
    mod cost;
    mod semantics;
}
mod locks {
    mod posix;
    mod semantics;
}
mod mount {
    mod requests;
    mod semantics;
}
mod open {
    mod posix;
    mod semantics;
}
mod statfs {
    mod semantics;
}
mod trim {
    mod block_device;
    mod posix;
    mod semantics;
}
mod unsupported {
    mod semantics;
}

mod document;
