//! Counters that threads share and that outlive the program.
//!
//! Each counter is one word, changed in place by an atomic addition. It is durable
//! after `persist`; a crash leaves the old number or the new one. The counters lie a
//! cache line apart, so that threads do not wait for each other's lines.

use std::error::Error;
use std::path::Path;
use std::thread;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{Access, FileSystem, MountOptions, OpenOptions};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const LINE: u64 = 64;

/// Mounts the region, which is made if it does not exist.
fn mount(path: &Path) -> Result<FileSystem> {
    let region = match RegionOptions::new().open(path) {
        Ok(region) => region,
        Err(e) if e.errno() == libc::ENOENT => {
            let region = RegionOptions::new().create(path, 16 << 20)?;
            format(&region, &FormatOptions::default())?;
            region
        }
        Err(e) => return Err(e.into()),
    };
    Ok(FileSystem::mount(region, MountOptions::default())?)
}

/// Counts on several threads; returns the sums, those of earlier runs included.
pub fn run(path: &Path, threads: u64, each: u64) -> Result<Vec<u64>> {
    let fs = mount(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = options.open(&fs, "/counters")?;
    file.set_len(threads * LINE)?;
    let counters = file.map(0..threads * LINE, Access::Write)?;
    thread::scope(|s| {
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                let counters = &counters;
                s.spawn(move || -> Result<()> {
                    for i in 0..each {
                        // To each counter in turn, so that they are shared.
                        let at = (t + i) % threads * LINE;
                        counters.fetch_add(at, 1u64)?;
                        counters.persist(at..at + 8)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().map_err(|_| "a worker panicked")?)
    })?;
    let sums = (0..threads).map(|t| counters.load::<u64>(t * LINE));
    let sums = sums.collect::<Result<_, pramfs::Error>>()?;
    drop((counters, file));
    fs.unmount()?;
    Ok(sums)
}

pub(crate) fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or("usage: counters REGION")?;
    println!("{:?}", run(Path::new(&path), 4, 10_000)?);
    Ok(())
}
