//! Regions to test on.
//!
//! A `SimBackend` is the usual one: the test keeps a clone, so that it can
//! count what the engine did and take the memory as a crash would leave it.

use pramfs::format::FormatOptions;
use pramfs::{
    MountOptions,
    inode::{Ino, Time},
};
use pramfs_medium::media::{DiskInode, probe_superblock};
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess};
#[cfg(feature = "testing")]
pub use simulated::{formatted, fresh, lost, mount, region_of};
use zerocopy::FromBytes;

/// The smallest region that can be formatted: 256 KiB.
pub const SMALLEST: usize = 256 << 10;

/// A format that is the same in every run: fixed uuid, hash key and time.
pub fn repeatable(block_size: u32) -> FormatOptions {
    FormatOptions {
        block_size,
        uuid: Some([0x5a; 16]),
        hash_seed: Some([0xc3; 16]),
        time: Some(Time {
            sec: 1_700_000_000,
            nsec: 0,
        }),
        ..FormatOptions::default()
    }
}

/// Options of a mount that does nothing by itself: no timer, orphans are freed
/// before it returns.
pub fn quiet() -> MountOptions {
    MountOptions {
        background: false,
        ..MountOptions::default()
    }
}

/// What needs the simulator, which programs do not contain.
#[cfg(feature = "testing")]
mod simulated {
    use pramfs::format::{FormatOptions, format};
    use pramfs::inode::Fs;
    use pramfs::{MountOptions, Result};
    use pramfs_medium::pmem::{Region, SimBackend};

    use super::{quiet, repeatable};

    /// A region over a backend that the caller keeps.
    pub fn region_of(sim: &SimBackend) -> Region {
        Region::new("simulated region", Box::new(sim.clone()))
    }

    /// A formatted region of `len` bytes.
    ///
    /// # Errors
    /// Those of the formatting.
    pub fn formatted(len: usize, options: &FormatOptions) -> Result<SimBackend> {
        let sim = SimBackend::new(len)?;
        format(&region_of(&sim), options)?;
        Ok(sim)
    }

    /// A copy of an image whose page of 4096 bytes with this number fails when it is read.
    ///
    /// # Panics
    /// If it is no image of a region.
    pub fn lost(image: &[u8], page: usize, kernel_knows: bool) -> SimBackend {
        let sim = SimBackend::from_image(image).expect("a region");
        sim.lose_page(page);
        if kernel_knows {
            let bytes = page as u64 * 4096..(page as u64 + 1) * 4096;
            sim.set_kernel_bad(Vec::from([bytes]));
        }
        sim
    }

    /// Mounts what a backend holds.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn mount(sim: &SimBackend, options: MountOptions) -> Result<Fs> {
        Fs::open(region_of(sim), options)
    }

    /// A fresh file system of `len` bytes with blocks of `block_size`, mounted
    /// [`quiet`]ly.
    ///
    /// # Errors
    /// Those of the formatting and the mount.
    pub fn fresh(len: usize, block_size: u32) -> Result<(SimBackend, Fs)> {
        let sim = formatted(len, &repeatable(block_size))?;
        let fs = mount(&sim, quiet())?;
        Ok((sim, fs))
    }
}

/// Where the inode of a number stands in an image, found by its own number and
/// CRC.
///
/// # Panics
/// Where it is not there, or the image has no file system.
pub fn inode_home(image: &[u8], ino: Ino) -> usize {
    let region = Region::new("image", HeapBackend::boxed(image.len()));
    let copied = region.window().store_unflushed(0, image);
    copied.expect("a region of that size");
    let found = probe_superblock(&region).expect("a superblock");
    let seed = found.geometry().seed;
    let is_home = |at: &usize| {
        let inode = DiskInode::read_from_bytes(&image[*at..][..DiskInode::SIZE]);
        inode.is_ok_and(|inode| inode.ino == ino.0 && inode.crc == inode.expected_crc(seed, ino))
    };
    (0..image.len())
        .step_by(DiskInode::SIZE)
        .find(is_home)
        .expect("the inode")
}

/// Shows the engine's messages in the output of a test, by the filter in
/// `RUST_LOG`; nothing where that is not set.
pub fn show_messages() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    // Another test of this process may have done it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}
