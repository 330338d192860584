//! Mutants: the engine with one mistake in it, to show that the tests would
//! find that mistake.
//!
//! With the feature `mutants`, which nothing but the tests of the tests turns
//! on, each place in the code that flushes, streams or fences can be made to
//! leave that out, and mistakes that other file systems had can be put in.
//! Without it all of this is nothing.

#[cfg(feature = "mutants")]
mod on;
#[cfg(feature = "mutants")]
pub use on::{Bug, CHOICE, Kind, Mutant, NOTES, Site, choose, listen, sites};
#[cfg(feature = "mutants")]
pub use on::{has, hit, later, stored};

#[cfg(not(feature = "mutants"))]
pub(super) use off::{Kind, hit, later, stored};

/// Whether the engine has a known [`Bug`](on::Bug): never, without the feature.
#[macro_export]
macro_rules! has_bug {
    ($bug:ident) => {{
        #[cfg(feature = "mutants")]
        {
            $crate::pmem::mutants::has($crate::pmem::mutants::Bug::$bug)
        }
        #[cfg(not(feature = "mutants"))]
        {
            false
        }
    }};
}
pub use crate::has_bug;

#[cfg(not(feature = "mutants"))]
mod off {
    use super::super::backend::PmemBackend;

    #[derive(Debug, Clone, Copy)]
    pub enum Kind {
        Flush,
        Stream,
        Fence,
        Late,
    }

    #[inline(always)]
    pub fn hit(_kind: Kind) -> bool {
        false
    }

    #[inline(always)]
    pub fn later(_backend: &dyn PmemBackend) {}

    #[inline(always)]
    pub fn stored(_backend: &dyn PmemBackend) {}
}
