//! Requests of a kernel that lies: `fuse-frontend/src/exercise/kernel.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _reached = pramfs_fuse::exercise::kernel::exercise(input);
});
