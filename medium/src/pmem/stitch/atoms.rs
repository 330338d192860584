//! Atomic accesses of 1, 2, 4 and 8 bytes to a view.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::StitchedMap;
use crate::pmem::error::PmemError;

/// An unsigned number that can be loaded and stored atomically: `u8`, `u16`, `u32` or
/// `u64`.
pub trait Atom: Copy + Eq + sealed::Sealed {}

mod sealed {
    /// The accesses, at an address that the caller guarantees to be valid.
    pub trait Sealed: Sized {
        /// # Safety
        /// `at` is aligned to the size of the number and mapped for reading while the
        /// call lasts.
        unsafe fn load(at: *mut u8) -> Self;
        /// # Safety
        /// As for [`load`](Self::load), and mapped for writing.
        unsafe fn store(at: *mut u8, value: Self);
        /// # Safety
        /// As for [`store`](Self::store).
        unsafe fn swap(at: *mut u8, value: Self) -> Self;
        /// # Safety
        /// As for [`store`](Self::store).
        unsafe fn fetch_add(at: *mut u8, value: Self) -> Self;
        /// # Safety
        /// As for [`store`](Self::store).
        unsafe fn compare_exchange(at: *mut u8, current: Self, new: Self) -> Result<Self, Self>;
    }
}

macro_rules! atoms {
    ($($number:ty: $atomic:ty),*) => {$(
        impl Atom for $number {}

        impl sealed::Sealed for $number {
            #[inline]
            unsafe fn load(at: *mut u8) -> $number {
                // SAFETY: aligned and mapped, by contract.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(Ordering::Acquire)
            }
            #[inline]
            unsafe fn store(at: *mut u8, value: $number) {
                // SAFETY: aligned, mapped and writable, by contract.
                unsafe { <$atomic>::from_ptr(at.cast()) }.store(value, Ordering::Release);
            }
            #[inline]
            unsafe fn swap(at: *mut u8, value: $number) -> $number {
                // SAFETY: aligned, mapped and writable, by contract.
                unsafe { <$atomic>::from_ptr(at.cast()) }.swap(value, Ordering::AcqRel)
            }
            #[inline]
            unsafe fn fetch_add(at: *mut u8, value: $number) -> $number {
                // SAFETY: aligned, mapped and writable, by contract.
                unsafe { <$atomic>::from_ptr(at.cast()) }.fetch_add(value, Ordering::AcqRel)
            }
            #[inline]
            unsafe fn compare_exchange(
                at: *mut u8,
                current: $number,
                new: $number,
            ) -> Result<$number, $number> {
                // SAFETY: aligned, mapped and writable, by contract.
                unsafe { <$atomic>::from_ptr(at.cast()) }.compare_exchange(
                    current,
                    new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                )
            }
        }
    )*};
}

atoms!(u8: AtomicU8, u16: AtomicU16, u32: AtomicU32, u64: AtomicU64);

fn check_align<T>(offset: u64) -> Result<(), PmemError> {
    let align = size_of::<T>() as u64;
    if offset.is_multiple_of(align) {
        Ok(())
    } else {
        Err(PmemError::Misaligned { offset, align })
    }
}

impl StitchedMap {
    /// Loads a number, with acquire ordering.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Misaligned`].
    #[inline]
    pub fn load<T: Atom>(&self, offset: u64) -> Result<T, PmemError> {
        check_align::<T>(offset)?;
        let at = self.at(offset, size_of::<T>() as u64)?;
        // SAFETY: aligned, since the base is page-aligned; mapped for the life of self.
        Ok(unsafe { T::load(at) })
    }

    /// Stores a number, with release ordering. Durable after [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`load`](Self::load), and [`PmemError::Unusable`] with EACCES for a hole or a
    /// piece mapped read-only.
    #[inline]
    pub fn store<T: Atom>(&self, offset: u64, value: T) -> Result<(), PmemError> {
        check_align::<T>(offset)?;
        let at = self.at_writable(offset, size_of::<T>() as u64)?;
        // SAFETY: aligned, mapped and writable for the life of self.
        unsafe { T::store(at, value) };
        Ok(())
    }

    /// Stores a number and returns the old one.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn swap<T: Atom>(&self, offset: u64, value: T) -> Result<T, PmemError> {
        check_align::<T>(offset)?;
        let at = self.at_writable(offset, size_of::<T>() as u64)?;
        // SAFETY: aligned, mapped and writable for the life of self.
        Ok(unsafe { T::swap(at, value) })
    }

    /// Adds to a number, with wrap-around, and returns the old one.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn fetch_add<T: Atom>(&self, offset: u64, value: T) -> Result<T, PmemError> {
        check_align::<T>(offset)?;
        let at = self.at_writable(offset, size_of::<T>() as u64)?;
        // SAFETY: aligned, mapped and writable for the life of self.
        Ok(unsafe { T::fetch_add(at, value) })
    }

    /// Stores `new` if the number equals `current`. Returns the old number, as `Err` if it
    /// differs.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn compare_exchange<T: Atom>(
        &self,
        offset: u64,
        current: T,
        new: T,
    ) -> Result<Result<T, T>, PmemError> {
        check_align::<T>(offset)?;
        let at = self.at_writable(offset, size_of::<T>() as u64)?;
        // SAFETY: aligned, mapped and writable for the life of self.
        Ok(unsafe { T::compare_exchange(at, current, new) })
    }
}
