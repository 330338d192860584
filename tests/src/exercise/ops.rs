//! Any bytes as a list of operations, on the engine and the reference model.
//!
//! The first byte is the size of a block and of the region; then eight bytes
//! are an operation: its kind, and what it is done to, by index. Frames of one
//! size keep their meaning when a fuzzer takes one out or puts one in; that is
//! why they are not decoded field after field.

use crate::model::{Op, Options, Pick, Runner, Who};

/// Most operations of a case.
pub const MOST: usize = 150;
/// Bytes of an operation.
pub const FRAME: usize = 8;

/// What the bytes of a case stand for.
pub fn decode(input: &[u8]) -> (Options, Vec<Op>) {
    let head = input.first().copied().unwrap_or(0);
    let options = Options {
        region: if head & 0x30 == 0x30 {
            1 << 20
        } else {
            256 << 10
        },
        block_size: 512 << (head & 3),
        compare_every: 40,
        huge: false,
    };
    let (frames, _) = input.get(1..).unwrap_or(&[]).as_chunks::<FRAME>();
    (options, frames.iter().take(MOST).map(op).collect())
}

/// Runs a case: the same results, the same tree, a clean check after the
/// unmount, and the same tree after the next mount.
///
/// # Panics
/// When the engine and the model differ.
pub fn ops(input: &[u8]) {
    let (options, list) = decode(input);
    let fail = |list: &[Op], why: String| -> ! {
        let list: Vec<_> = list.iter().map(|op| format!("    {op:?}\n")).collect();
        panic!("{why}\n{options:?}\noperations:\n{}", list.concat())
    };
    let mut runner = Runner::new(options).unwrap_or_else(|e| fail(&[], e));
    for (i, op) in list.iter().enumerate() {
        if let Err(e) = runner.step(op) {
            fail(&list[..=i], format!("operation {i}, {op:?}: {e}"));
        }
    }
    if let Err(e) = runner.finish() {
        fail(&list, format!("at the end: {e}"));
    }
}

fn op(frame: &[u8; FRAME]) -> Op {
    let &[kind, a, b, c, d, e, f, g] = frame;
    // Nearly always a node of the right kind.
    let pick = |n: u8| Pick {
        n: u16::from(n),
        any: n > 0xf8,
    };
    let word = |low, high| u16::from_le_bytes([low, high]);
    let long = u32::from_le_bytes([c, d, e, f]);
    let pinned = g & 7 == 7;
    match kind % 64 {
        0..=5 => Op::Create(Who(a), pick(b), c, word(d, e), pinned),
        6..=9 => Op::Mkdir(Who(a), pick(b), c, word(d, e), pinned),
        10 => Op::Mknod(Who(a), pick(b), c, d, pinned),
        11 | 12 => Op::Symlink(Who(a), pick(b), c, word(d, e), pinned),
        13..=15 => Op::Link(pick(a), pick(b), c),
        16 | 17 => Op::Unlink(pick(a), b),
        18 => Op::Rmdir(pick(a), b),
        19..=24 => Op::Rename(Who(a), pick(b), c, pick(d), e, f),
        25 => Op::Lookup(pick(a), b),
        26..=28 => Op::Remove(pick(a), word(b, c)),
        29..=34 => Op::Write(pick(a), word(b, c), word(d, e), f),
        35..=37 => Op::Append(pick(a), word(b, c), d),
        38 | 39 => Op::Read(pick(a), word(b, c), word(d, e)),
        40..=42 => Op::Truncate(pick(a), word(b, c)),
        43..=46 => Op::Fallocate(pick(a), b, word(c, d), word(e, f)),
        47 => Op::Seek(pick(a), word(b, c), d & 1 != 0),
        48 => Op::Setattr(pick(a), b, long),
        49..=52 => Op::SetXattr(pick(a), b, word(c, d), e),
        53 => Op::GetXattr(pick(a), b),
        54 | 55 => Op::RemoveXattr(pick(a), b),
        56 => match a & 7 {
            0 => Op::ListXattr(pick(b)),
            1 => Op::StripSuid(pick(b)),
            2 => Op::Fsync(pick(b)),
            3 => Op::Readlink(pick(b)),
            4 => Op::Statfs,
            _ => Op::Readdir(pick(b), c),
        },
        57 => Op::Pin(pick(a)),
        58 => Op::Unpin(word(a, b)),
        59 => Op::Populate(pick(a), b % 64, c),
        60 => Op::Thin(pick(a), b % 5),
        61 => Op::Remount,
        62 => Op::Crash,
        _ => Op::Copy(pick(a), word(0, c), pick(b), word(d, e), word(f, g)),
    }
}
