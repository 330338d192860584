//! Reproduces public experiments that this project answers, on the user's own
//! machine: the ratios between the contenders, not the absolute figures.

pub mod odirect;
pub mod parallel;
pub mod part;
pub mod sites;
pub mod unmapped;
pub mod xip;
