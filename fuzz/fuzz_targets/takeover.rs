//! Messages between supervisor and server: `fuse-frontend/src/exercise/messages.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _reached = pramfs_fuse::exercise::messages::exercise(input);
});
