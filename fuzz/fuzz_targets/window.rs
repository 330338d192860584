//! Maps of a guest: `fuse-frontend/src/exercise/window.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _reached = pramfs_fuse::exercise::window::exercise(input);
});
