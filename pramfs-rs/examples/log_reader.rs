//! A log that one thread writes and another reads while it grows.
//!
//! An append of up to one journal record is atomic: the reader sees a line whole or
//! not at all, and so does the next run after a crash.

use std::error::Error;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{FileSystem, MountOptions, OpenOptions};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Appends lines on this thread and returns what a reader on another one has seen.
pub fn run(fs: &FileSystem, lines: u64) -> Result<Vec<String>> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(fs, "/log")?;
    let file = fs.open("/log")?;
    let ended = AtomicBool::new(false);
    thread::scope(|s| {
        let reader = s.spawn(|| -> Result<Vec<String>> {
            let (mut cursor, mut seen) = (file.cursor(), Vec::new());
            loop {
                // Before the read: what was appended until then is found by it.
                let last = ended.load(Ordering::Acquire);
                let mut line = String::new();
                match cursor.read_line(&mut line)? {
                    0 if last => return Ok(seen),
                    0 => thread::yield_now(),
                    _ => seen.push(line),
                }
            }
        });
        let written =
            (0..lines).try_for_each(|i| log.append(format!("event {i}\n").as_bytes()).map(drop));
        ended.store(true, Ordering::Release);
        let seen = reader.join().map_err(|_| "the reader panicked")??;
        written?;
        Ok(seen)
    })
}

pub(crate) fn main() -> Result<()> {
    let region = RegionOptions::new().memfd("log", 16 << 20)?;
    format(&region, &FormatOptions::default())?;
    let fs = FileSystem::mount(region, MountOptions::default())?;
    let seen = run(&fs, 1000)?;
    println!("{} lines, the last is {:?}", seen.len(), seen.last());
    Ok(fs.unmount()?)
}
