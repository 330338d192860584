//! [`RegionView`]: a region to be looked at.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::error::PmemError;
use super::region::{Region, RegionInfo};

/// A region without the right to store to it: all that a mounted file system gives
/// away of its medium. What it reads is what is there at that moment, in the middle
/// of an operation too.
///
/// ```
/// use pramfs_medium::pmem::{HeapBackend, Region, RegionView};
///
/// let region = Region::new("example", HeapBackend::boxed(1 << 20));
/// let view = RegionView::from(&region);
/// assert_eq!((view.info().name, view.len()), ("example".into(), 1 << 20));
/// ```
///
/// ```compile_fail
/// # use pramfs_medium::pmem::RegionView;
/// # fn overwrite(view: RegionView<'_>) {
/// view.window();
/// # }
/// ```
///
/// ```compile_fail
/// # use pramfs_medium::pmem::RegionView;
/// # fn overwrite(view: RegionView<'_>) {
/// view.region();
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct RegionView<'a> {
    region: &'a Region,
}

impl<'a> From<&'a Region> for RegionView<'a> {
    fn from(region: &'a Region) -> RegionView<'a> {
        RegionView { region }
    }
}

/// The region behind a view, for a check that stores nothing. A function of this internal
/// crate, so that programs, which see `pramfs` alone, cannot store past the engine.
pub fn region_behind(view: RegionView<'_>) -> &Region {
    view.region
}

impl<'a> RegionView<'a> {
    /// The region, for code of this crate, which stores nothing to it.
    pub(crate) fn region(self) -> &'a Region {
        self.region
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(self) -> u64 {
        self.region.len()
    }

    /// What it is.
    pub fn info(self) -> RegionInfo {
        self.region.info()
    }

    /// Pages that have failed so far, and fences.
    pub fn faults(self) -> u64 {
        self.region.faults()
    }

    /// A descriptor that says which file or device is mapped (`O_PATH`): no call reads,
    /// writes or locks by it. Whoever may open the file can open it through that, as
    /// by its name. `None` for memory that came from nowhere.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn handle(self) -> std::io::Result<Option<OwnedFd>> {
        let Some((fd, _)) = self.region.backend().source_fd() else {
            return Ok(None);
        };
        // Through the descriptor and not by name, so that it is what is mapped.
        let way = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let handle = rustix::fs::open(way, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Some(handle))
    }

    /// See [`Region::populate`], which changes no byte, and takes the room of holes
    /// from the host.
    ///
    /// # Errors
    /// As there.
    pub fn populate(self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.region.populate(offset, len)
    }

    /// See [`Region::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.region.check(offset, len)
    }

    /// See [`Region::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(self, offset: u64, into: &mut [u8]) -> Result<(), PmemError> {
        self.region.read(offset, into)
    }

    /// See [`Region::read_pod`].
    ///
    /// # Errors
    /// As there.
    pub fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        self,
        offset: u64,
    ) -> Result<T, PmemError> {
        self.region.read_pod(offset)
    }

    /// See [`Region::load_u64`].
    ///
    /// # Errors
    /// As there.
    pub fn load_u64(self, offset: u64) -> Result<u64, PmemError> {
        self.region.load_u64(offset)
    }
}
