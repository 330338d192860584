//! How the bytes of a case stand for an image.
//!
//! An image has 256 KiB and more, most of them zero; a fuzzer works best on a
//! few hundred bytes of which each matters. So a case is a head and changes to
//! a base image:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | base: 1 to N, the N-th of [`bases`](super::bases::ALL); 0x80 and more: raw; else zeros |
//! | 1 | which checksums are renewed at the end: `Repair` |
//! | 2 | how it is mounted: [`How`] |
//! | 3 | seed of the operations on it |
//!
//! Raw: the rest is the image from its first byte on. Otherwise the rest is a
//! list of changes, the last of which may be cut short:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..2 | word that is changed: below 0x8000 among the words of the base that are not zero; else among all |
//! | 2 | bits 0..3: bytes less one; 3..6: first byte in the word; 6..8: set, exclusive or, add, copy |
//! | 3.. | the bytes; to copy, two: the word that 64 bytes are taken from |

use super::bases;
use super::repair::Repair;
use crate::region::SMALLEST;

/// Bytes of the head.
pub const HEAD: usize = 4;
/// First byte of a case that is an image as it is.
pub const RAW: u8 = 0x80;
/// Most bytes that a raw case has.
const RAW_MAX: usize = 1 << 20;

/// How the image is mounted and left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How(pub u8);

impl How {
    /// Reading only.
    pub fn read_only(self) -> bool {
        self.0 & 1 != 0
    }
    /// Damage ends writing, as is usual; otherwise the engine goes on.
    pub fn stops_at_damage(self) -> bool {
        self.0 & 2 != 0
    }
    /// The process dies after the changes.
    pub fn killed(self) -> bool {
        self.0 & 4 != 0
    }
    /// The inode cache holds next to nothing.
    pub fn small_cache(self) -> bool {
        self.0 & 8 != 0
    }
    /// Other processes map the files of leases in even slots, and in odd ones, from before
    /// the mount until all is removed.
    pub fn mapped(self, slot: u32) -> bool {
        self.0 >> (4 + slot % 2) & 1 != 0
    }
    /// Leases are granted during the changes.
    pub fn grants(self) -> bool {
        self.0 & 0x40 != 0
    }
    /// The last bytes of the region are missing.
    pub fn truncated(self) -> bool {
        self.0 & 0xf0 == 0xf0
    }
}

/// A case.
#[derive(Debug, Clone)]
pub struct Case {
    /// The image before its checksums are renewed.
    pub bytes: Vec<u8>,
    /// Checksums to renew.
    pub repair: Repair,
    /// How it is mounted.
    pub how: How,
    /// Seed of the operations.
    pub seed: u8,
}

/// A change to a base image, for those who make cases.
#[derive(Debug, Clone)]
pub enum Change {
    /// Bytes at a multiple of 8.
    Set(u32, Vec<u8>),
    /// Flips bits of one byte.
    Flip(u32, u8),
}

impl Case {
    /// What the bytes of a case stand for. Every byte string is a case.
    pub fn decode(input: &[u8]) -> Case {
        let head = |i: usize| input.get(i).copied().unwrap_or(0);
        let rest = input.get(HEAD..).unwrap_or(&[]);
        let mut bytes = match head(0) {
            RAW.. => {
                let mut image = rest[..rest.len().min(RAW_MAX)].to_vec();
                image.resize(image.len().max(SMALLEST), 0);
                image
            }
            n => {
                let base = bases::ALL.get(usize::from(n).wrapping_sub(1));
                let mut image = base.map_or_else(|| vec![0; SMALLEST], |b| b.image().to_vec());
                change(&mut image, base.map_or(&[][..], |b| b.words()), rest);
                image
            }
        };
        let how = How(head(2));
        if how.truncated() {
            let cut = (usize::from(head(3)) + 1) * 512;
            bytes.truncate(bytes.len() - cut);
        }
        Case {
            bytes,
            repair: Repair(head(1)),
            how,
            seed: head(3),
        }
    }
}

/// The bytes of a case: changes to base `base` of [`bases::ALL`], counted from
/// 1. The changes must lie in the first 256 KiB.
pub fn encode(base: u8, repair: Repair, how: How, seed: u8, changes: &[Change]) -> Vec<u8> {
    let mut out = vec![base, repair.0, how.0, seed];
    for c in changes {
        let (at, op, bytes) = match c {
            Change::Set(at, bytes) => (*at, 0u8, &bytes[..]),
            Change::Flip(at, mask) => (*at, 1, std::slice::from_ref(mask)),
        };
        for (i, part) in bytes.chunks(8).enumerate() {
            let at = at + i as u32 * 8;
            let word = u16::try_from(at / 8).expect("in the first 256 KiB") | 0x8000;
            out.extend_from_slice(&word.to_le_bytes());
            out.push(op << 6 | ((at % 8) as u8) << 3 | (part.len() - 1) as u8);
            out.extend_from_slice(part);
        }
    }
    out
}

fn change(image: &mut [u8], words: &[u32], mut list: &[u8]) {
    let total = image.len() / 8;
    let place = |w: u16| {
        if w < 0x8000 && !words.is_empty() {
            words[usize::from(w) % words.len()] as usize * 8
        } else {
            usize::from(w & 0x7fff) % total * 8
        }
    };
    while let [low, high, op, rest @ ..] = list {
        let at = place(u16::from_le_bytes([*low, *high]));
        let len = usize::from(op & 7) + 1;
        let from = at + usize::from(op >> 3 & 7);
        let to = (from + len).min(image.len());
        let (given, after) = rest.split_at(rest.len().min(match op >> 6 {
            3 => 2,
            _ => len,
        }));
        let target = image[from..to].iter_mut().zip(given);
        match op >> 6 {
            0 => target.for_each(|(t, g)| *t = *g),
            1 => target.for_each(|(t, g)| *t ^= *g),
            2 => target.for_each(|(t, g)| *t = t.wrapping_add(*g)),
            _ => {
                let &[low, high] = given else { break };
                let source = place(u16::from_le_bytes([low, high]));
                let n = 64.min(image.len() - source).min(image.len() - at);
                image.copy_within(source..source + n, at);
            }
        }
        list = after;
    }
}
