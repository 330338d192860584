//! The library in twenty lines, as the README shows them.

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{Access, FileSystem, MountOptions};

/// Makes a file system in memory, appends to a log, counts in place.
pub fn main() -> Result<(), pramfs::Error> {
    let region = RegionOptions::new().memfd("demo", 64 << 20)?; // or .open("/dev/dax0.0")
    format(&region, &FormatOptions::default())?; // mkfs.pramfs does the same
    let fs = FileSystem::mount(region, MountOptions::default())?; // recovery included
    let log = fs.create("/log")?;
    let at = log.append(b"durable when append returns")?;
    let table = fs.create("/table")?;
    table.set_len(1 << 20)?;
    let view = table.map(0..1 << 20, Access::Write)?; // the medium itself, one address range
    view.fetch_add::<u64>(4096, 1)?; // a store, no system call
    view.persist(4096..4104)?; // flush and fence: now it is durable
    println!("log ends at {}, count {}", at + 27, view.load::<u64>(4096)?);
    drop((log, table, view));
    Ok(fs.unmount()?)
}
