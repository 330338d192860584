//! What the fuzz targets run, and the test that runs their corpus.
//!
//! [`image()`] takes any bytes for a region and uses it as a careless program
//! would; [`ops()`] takes any bytes for a list of operations and runs it beside
//! the reference model; [`control()`] takes them for messages of a control socket,
//! [`fuse()`] for a request of a FUSE kernel.
//! None has a result: what must not happen ends in a panic.
//!
//! * [`input`]: how the bytes of a case stand for an image.
//! * [`bases`]: the images that most cases are a change of.
//! * [`repair`]: renews checksums, so that damage gets past them.

pub mod bases;
pub mod control;
pub mod fuse;
pub mod image;
pub mod input;
pub mod ops;
pub mod repair;

pub use control::control;
pub use fuse::fuse;
pub use image::image;
pub use ops::ops;
