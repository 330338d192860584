//! The library's part of `make demo`: opens a region without a mount, shows a
//! file as memory, and changes it through that memory.
//!
//! ```text
//! demo_map REGION PATH COPY_OF OFFSET TEXT
//! ```
//! `PATH` in the region must hold what `COPY_OF` outside of it holds.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;

use pramfs::pmem::RegionOptions;
use pramfs::{Access, FileSystem, MountOptions, OpenOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [region, path, copy_of, offset, text] = args.as_slice() else {
        return Err("usage: demo_map REGION PATH COPY_OF OFFSET TEXT".into());
    };
    let offset: u64 = offset.parse()?;

    let fs = FileSystem::mount(RegionOptions::new().open(region)?, MountOptions::default())?;
    let file = OpenOptions::new().read(true).write(true).open(&fs, path)?;
    let size = file.metadata()?.len();
    let view = file.map(0..size, Access::Write)?;

    // Loads: the view is the medium itself, whatever the extents are.
    let expected = std::fs::read(copy_of)?;
    let mut seen = vec![0; view.len() as usize];
    view.read(0, &mut seen)?;
    if seen != expected {
        return Err(format!("{path} does not read like {copy_of} through the map").into());
    }

    // Stores: no system call, no copy; durable when `persist` returns.
    let start = Instant::now();
    view.write(offset, text.as_bytes())?;
    view.persist(offset..offset + text.len() as u64)?;
    let took = start.elapsed();

    let extents = view
        .extents()
        .iter()
        .filter(|e| e.region_offset.is_some())
        .count();
    let extents = if extents == 1 {
        "1 extent".to_owned()
    } else {
        format!("{extents} extents")
    };
    println!(
        "{size} bytes in {extents} as one view, all as copied in; stored {} bytes through it, durable after {:.1} us",
        text.len(),
        took.as_secs_f64() * 1e6
    );
    drop(view);
    drop(file);
    fs.unmount()?;
    Ok(())
}
