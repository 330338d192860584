//! Any bytes as a request of a FUSE kernel or guest: `tests/src/exercise/fuse.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pramfs_tests::exercise::fuse(input);
});
