//! [`RegionAccess`]: what the crates of pramfs do with a region.
//!
//! Purpose: programs name [`Region`] as `pramfs::pmem::Region`, and open, mount, check and
//! format it. They read and store through the file system. So the methods that reach the
//! bytes, the host and the backend are private to this crate, and a trait that `pramfs`
//! does not pass on offers them to the engine, fsck and the tools.
//!
//! Not handled here: the methods themselves (`region`, `room`).

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::aside::{Aside, AsideEnd, AsidePlan};
use super::backend::PmemBackend;
use super::error::PmemError;
use super::kernel_bad::KernelBad;
use super::lent::Lent;
use super::protect::WriteScope;
use super::region::Region;
use super::room::HostSpace;
use super::source::Ownership;
use super::window::{WriteBack, WriteWindow};
use crate::types::LeaseMode;

macro_rules! region_access {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        /// The operations of the engine, fsck and the tools on a region.
        ///
        /// ```
        /// use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess};
        /// let region = Region::new("example", HeapBackend::boxed(1 << 20));
        /// let w = region.window();
        /// let pending = w.store(4096, &7u64.to_le_bytes())?;
        /// let _durable = w.fence(pending);
        /// assert_eq!(region.load_u64(4096)?, 7);
        /// # Ok::<(), pramfs_medium::pmem::PmemError>(())
        /// ```
        pub trait RegionAccess: sealed::Sealed {
            /// See [`Region::any_faults`].
            fn any_faults() -> bool;

            /// See [`Region::read_pod`].
            ///
            /// # Errors
            /// [`PmemError::OutOfBounds`], [`PmemError::Faulted`].
            fn read_pod<T: FromBytes + IntoBytes + Immutable>(
                &self,
                offset: u64,
            ) -> Result<T, PmemError>;

            $(
                #[doc = concat!("See [`Region::", stringify!($name), "`].")]
                $(#[$meta])*
                fn $name(&self, $($arg: $type),*) -> $out;
            )*
        }

        #[doc(hidden)]
        impl RegionAccess for Region {
            #[inline]
            fn any_faults() -> bool {
                Region::any_faults()
            }

            #[inline]
            fn read_pod<T: FromBytes + IntoBytes + Immutable>(
                &self,
                offset: u64,
            ) -> Result<T, PmemError> {
                Region::read_pod(self, offset)
            }

            $(
                #[inline]
                fn $name(&self, $($arg: $type),*) -> $out {
                    Region::$name(self, $($arg),*)
                }
            )*
        }
    };
}

region_access! {
    fn check_owner() -> Result<(), PmemError>;
    fn ownership() -> Option<Ownership>;
    fn lock_shared() -> Result<(), PmemError>;
    fn lock_exclusive() -> Result<(), PmemError>;
    fn backend() -> &dyn PmemBackend;
    fn locked_descriptor() -> std::io::Result<Option<OwnedFd>>;
    fn lease_descriptor(slot: u32, mode: LeaseMode) -> std::io::Result<OwnedFd>;
    fn is_lease_held(slot: u32) -> std::io::Result<bool>;
    fn try_lease_lock() -> std::io::Result<()>;
    fn is_any_lease_held() -> std::io::Result<bool>;
    fn grow(size: Option<u64>) -> Result<u64, PmemError>;
    fn faults() -> u64;
    fn faults_seen() -> u64;
    fn is_faulted(offset: u64, len: u64) -> bool;
    fn mark_bad(range: Range<u64>) -> ();
    fn bad_ranges() -> Vec<Range<u64>>;
    fn rewrite_failed(page: Range<u64>, bytes: &[u8]) -> Result<(), PmemError>;
    fn is_cut() -> bool;
    fn kernel_bad() -> Result<KernelBad, PmemError>;
    fn sync_all() -> std::io::Result<()>;
    fn read(offset: u64, into: &mut [u8]) -> Result<(), PmemError>;
    #[must_use]
    fn read_wide(offset: u64, into: &mut [u8]) -> bool;
    fn load_u64(offset: u64) -> Result<u64, PmemError>;
    fn touch(offset: u64, len: u64) -> Result<(), PmemError>;
    fn prefetch(offset: u64) -> ();
    fn raw_range(offset: u64, len: u64) -> Result<*mut [u8], PmemError>;
    fn is_lendable() -> bool;
    fn lend(offset: u64, len: u64) -> Result<Lent<'_>, PmemError>;
    fn begin_aside(plan: AsidePlan) -> Option<Arc<Aside>>;
    fn end_aside(aside: &Arc<Aside>, why: AsideEnd) -> ();
    fn wait_for_aside() -> ();
    fn copies_aside() -> bool;
    fn set_aside(offset: u64, len: u64) -> ();
    fn needs_aside(offset: u64, len: u64) -> bool;
    fn window() -> WriteWindow<'_>;
    fn write_scope() -> Option<WriteScope<'_>>;
    fn close_for_wait() -> ();
    fn is_protected() -> bool;
    fn write_back() -> WriteBack<'_>;
    fn has_room(offset: u64, len: u64) -> bool;
    fn need_room(offset: u64, len: u64) -> Result<(), PmemError>;
    fn host_is_full() -> bool;
    fn take_room(offset: u64, len: u64) -> Result<(), PmemError>;
    fn take_some_room(offset: u64, len: u64) -> Result<(), PmemError>;
    fn take_all_room() -> Result<(), PmemError>;
    fn host_space() -> Option<HostSpace>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Region {}
}
