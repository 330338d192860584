//! Mutants: variants of the engine with one mistake each, to show that the tests find that
//! mistake.
//!
//! Only the tests of the tests turn on the feature `mutants`. With it, each place in the
//! code that flushes, streams or fences can be made to skip that step, and known mistakes
//! of other file systems can be enabled. Without the feature all of this compiles to
//! nothing.

#[cfg(feature = "mutants")]
mod on;
#[cfg(feature = "mutants")]
pub use on::{Bug, CHOICE, Kind, Mutant, NOTES, Site, choose, listen, sites};
#[cfg(feature = "mutants")]
pub use on::{has, hit, later, stored};

#[cfg(not(feature = "mutants"))]
pub(super) use off::{Kind, hit, later, stored};

/// Whether the engine has a known `Bug`: never without the feature.
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
    pub(crate) enum Kind {
        Flush,
        Stream,
        Fence,
        Late,
    }

    #[inline(always)]
    pub(crate) fn hit(_kind: Kind) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn later(_backend: &dyn PmemBackend) {}

    #[inline(always)]
    pub(crate) fn stored(_backend: &dyn PmemBackend) {}
}
