//! [`RegionView`]: read-only access to a region.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::error::PmemError;
use super::region::{Region, RegionInfo};
use super::source::Permissions;

/// A region without the right to store to it. A mounted file system exposes its medium only
/// in this form. Reads return the current bytes, even in the middle of an operation.
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
///
/// ```compile_fail
/// # use pramfs_medium::pmem::RegionView;
/// # fn overwrite(view: RegionView<'_>) {
/// view.region.window();
/// # }
/// ```
///
/// ```compile_fail
/// # use pramfs_medium::pmem::{Region, RegionView};
/// # fn overwrite<'a>(view: RegionView<'a>) -> &'a Region {
/// view.into()
/// # }
/// ```
///
/// ```compile_fail
/// # use pramfs_medium::pmem::RegionView;
/// # fn overwrite(view: RegionView<'_>) {
/// pramfs_medium::pmem::region_behind(view).window();
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

impl<'a> RegionView<'a> {
    /// Returns the region, for code of this crate that stores nothing to it.
    pub(crate) fn region(self) -> &'a Region {
        self.region
    }

    /// Returns the size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(self) -> u64 {
        self.region.len()
    }

    /// Returns the properties of the region.
    pub fn info(self) -> RegionInfo {
        self.region.info()
    }

    /// See [`Region::check_owner`].
    ///
    /// # Errors
    /// As for [`Region::check_owner`].
    pub fn check_owner(self) -> Result<(), PmemError> {
        self.region.check_owner()
    }

    /// Returns the number of failed pages and fences so far.
    pub fn faults(self) -> u64 {
        self.region.faults()
    }

    /// See [`Region::is_faulted`].
    pub fn is_faulted(self, offset: u64, len: u64) -> bool {
        self.region.is_faulted(offset, len)
    }

    /// Returns a descriptor that identifies the mapped file or device (`O_PATH`). No call
    /// reads, writes or locks through it. A process that may open the file can open it
    /// through this descriptor, as by its name. `None` for memory without a source.
    ///
    /// # Errors
    /// Errors of open(2).
    pub fn handle(self) -> std::io::Result<Option<OwnedFd>> {
        let Some((fd, _)) = self.region.backend().source_fd() else {
            return Ok(None);
        };
        // Opens through the descriptor and not by name, so that the result is the mapped
        // object.
        let way = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let handle = rustix::fs::open(way, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Some(handle))
    }

    /// Returns owner and group of the source, and the right of others to write it, as they are now. `None`
    /// for memory without a source.
    ///
    /// # Errors
    /// Errors of fstat(2) and fgetxattr(2).
    pub fn permissions(self) -> std::io::Result<Option<Permissions>> {
        let source = self.region.backend().source_fd();
        source.map(|(fd, _)| Permissions::of(fd)).transpose()
    }

    /// Takes the usual lock of the region, if it is open without that and nobody has it by now
    /// (see [`RegionInfo::lock_notice`]). Returns whether this process has it.
    pub fn retake_lock(self) -> bool {
        self.region.backend().retake_lock()
    }

    /// See [`Region::populate`]. Changes no byte, but allocates the holes on the host.
    ///
    /// # Errors
    /// As for [`Region::populate`].
    pub fn populate(self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.region.populate(offset, len)
    }

    /// See [`Region::check`].
    ///
    /// # Errors
    /// As for [`Region::check`].
    pub fn check(self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.region.check(offset, len)
    }

    /// See [`Region::read`].
    ///
    /// # Errors
    /// As for [`Region::read`].
    pub fn read(self, offset: u64, into: &mut [u8]) -> Result<(), PmemError> {
        self.region.read(offset, into)
    }

    /// See [`Region::read_pod`].
    ///
    /// # Errors
    /// As for [`Region::read_pod`].
    pub fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        self,
        offset: u64,
    ) -> Result<T, PmemError> {
        self.region.read_pod(offset)
    }

    /// See [`Region::load_u64`].
    ///
    /// # Errors
    /// As for [`Region::load_u64`].
    pub fn load_u64(self, offset: u64) -> Result<u64, PmemError> {
        self.region.load_u64(offset)
    }
}
