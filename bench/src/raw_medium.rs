//! The raw medium: the stores, flushes and fences of an operation, without a file
//! system.
//!
//! The time that a durable operation must wait for the medium bounds every ratio. It
//! varies more between machines than that of a system call. So each row that is compared
//! with system calls notes the bound of this machine.

use std::cell::Cell;

use anyhow::Result;
use pramfs_medium::pmem::{LINE, Region, RegionAccess, RegionOptions, Unfenced};

use crate::fixture::{MIB, filled_file, random_page};
use crate::harness::report::duration;
use crate::harness::scratch::MountDir;
use crate::harness::{Measured, Rng, Side};

/// Bytes of the region.
pub const SIZE: u64 = 64 * MIB;
/// Size of the part for records and homes; data follows it.
const RECORDS: u64 = MIB;

/// The stores of one operation, as `cost.rs` in its folder of `tests/ops/` counts them.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// New data: bytes streamed to a random index, then fenced.
    pub data: usize,
    /// The record: bytes streamed, then fenced.
    pub record: usize,
    /// Lines of the homes: each is stored to and flushed, and fenced with the next
    /// record.
    pub homes: u64,
}

/// An overwrite of a page.
pub const OVERWRITE: Shape = shape(4096, 0, 0);
/// An atomic overwrite of a page: staging it and the record, then the copy to its place.
pub const ATOMIC: [Shape; 2] = [shape(4096, 128, 0), OVERWRITE];
/// An append of a page, with its allocation.
pub const APPEND: Shape = shape(4096, 256, 4);
/// create, mkdir.
pub const CREATE: Shape = shape(0, 640, 10);
/// unlink of an empty file.
pub const UNLINK: Shape = shape(0, 256, 5);
/// rename within a directory.
pub const RENAME: Shape = shape(0, 384, 7);

const fn shape(data: usize, record: usize, homes: u64) -> Shape {
    Shape {
        data,
        record,
        homes,
    }
}

/// A region on the tmpfs of a row.
#[derive(Debug)]
pub struct RawMedium {
    region: Region,
    bytes: Vec<u8>,
    turn: Cell<u64>,
}

impl RawMedium {
    /// Makes the region, and prefaults all of it.
    ///
    /// # Errors
    /// If the region cannot be made or opened.
    pub fn new(tmpfs: &MountDir) -> Result<RawMedium> {
        let path = tmpfs.join("raw");
        drop(filled_file(&path, SIZE)?);
        let region = RegionOptions::new().open(&path)?;
        region.populate(0, SIZE)?;
        Ok(RawMedium {
            region,
            bytes: vec![0x5a; 4096],
            turn: Cell::new(0),
        })
    }

    fn run(&self, shape: Shape, rng: &mut Rng) -> Result<()> {
        let w = self.region.window();
        if shape.data > 0 {
            let pages = (SIZE - RECORDS) / 4096;
            let at = RECORDS + random_page(rng, pages);
            let _ = w.fence(w.nt_store(at, &self.bytes[..shape.data])?);
        }
        let turn = self.turn.get();
        self.turn.set(turn + 1);
        if shape.record > 0 {
            // Two slots, alternating.
            let at = (turn & 1) * 4096;
            let _ = w.fence(w.nt_store(at, &self.bytes[..shape.record])?);
        }
        // Homes are scattered; some are those of the previous operation.
        for i in 0..shape.homes {
            let index = if i % 2 == 0 { i } else { i + turn * 4 };
            let at = RECORDS / 2 + index * (4096 + LINE) % (RECORDS / 2);
            drop::<Unfenced>(w.store(at / LINE * LINE, &turn.to_le_bytes())?);
        }
        Ok(())
    }

    /// Returns a side of a comparison: each operation does `shapes`, one after the
    /// other.
    pub fn side<'a>(&'a self, shapes: &'a [Shape]) -> Side<'a> {
        Side::whole("the medium alone", move |seed, ops| {
            let mut rng = Rng::new(seed);
            for _ in 0..ops {
                for &shape in shapes {
                    self.run(shape, &mut rng)?;
                }
            }
            Ok(())
        })
    }
}

/// Returns the note of a row: side `raw` of a measurement against side `theirs`.
pub fn note(m: &Measured, raw: usize, theirs: usize, shapes: &[Shape]) -> String {
    let total = |f: fn(&Shape) -> u64| shapes.iter().map(f).sum::<u64>();
    let fences = total(|s| u64::from(s.data > 0) + u64::from(s.record > 0));
    format!(
        "the medium alone ({} bytes streamed, {fences} fences, {} lines flushed; no file system): {}, \
         so a ratio of at most {:.2}",
        total(|s| (s.data + s.record) as u64),
        total(|s| s.homes),
        duration(m.median_ns(raw)),
        m.median_ns(theirs) / m.median_ns(raw)
    )
}
