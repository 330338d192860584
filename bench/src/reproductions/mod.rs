//! Public experiments that this project answers, reproduced on the user's own
//! machine: the shape of each (who beats whom, by what ratio), not its figures.

pub mod odirect;
pub mod parallel;
mod sites;
mod table;
pub mod unmapped;
pub mod xip;
