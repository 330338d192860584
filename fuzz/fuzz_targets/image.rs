//! Any bytes as a region: `tests/src/exercise/image.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pramfs_tests::exercise::image(input);
});
