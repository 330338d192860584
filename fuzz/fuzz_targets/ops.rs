//! Any bytes as operations beside the model: `tests/src/exercise/ops.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pramfs_tests::exercise::ops(input);
});
