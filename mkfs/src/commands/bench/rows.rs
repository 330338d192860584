//! The kinds of operations that are measured.

use std::io;

use super::field::Field;

pub(super) const SMALL: usize = 4096;
pub(super) const LARGE: usize = 1 << 20;

/// A kind of operation.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Bytes that one operation moves, 0 = none.
    pub(super) bytes: usize,
    /// What a failure says, before the directory.
    pub(super) failed: &'static str,
    pub(super) work: fn(&mut Field, u64) -> io::Result<()>,
}

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "create and remove a file",
        bytes: 0,
        failed: "cannot create and remove a file in",
        work: |field, _| field.create_and_remove(),
    },
    Row {
        name: "rename a file",
        bytes: 0,
        failed: "cannot rename a file in",
        work: |field, _| field.rename(),
    },
    Row {
        name: "open and close a file",
        bytes: 0,
        failed: "cannot open a file in",
        work: |field, _| field.open_and_close(),
    },
    Row {
        name: "read 4 KiB, random",
        bytes: SMALL,
        failed: "cannot read a file in",
        work: |field, _| {
            let at = field.random(SMALL);
            field.read(SMALL, at)
        },
    },
    Row {
        name: "write 4 KiB, random, durable",
        bytes: SMALL,
        failed: "cannot write and sync a file in",
        work: |field, _| {
            let at = field.random(SMALL);
            field.write(SMALL, at)
        },
    },
    Row {
        name: "read 1 MiB, in order",
        bytes: LARGE,
        failed: "cannot read a file in",
        work: |field, n| field.read(LARGE, field.in_order(n)),
    },
    Row {
        name: "write 1 MiB, in order, durable",
        bytes: LARGE,
        failed: "cannot write and sync a file in",
        work: |field, n| field.write(LARGE, field.in_order(n)),
    },
];
