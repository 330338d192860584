//! Any bytes as messages of a control socket: `tests/src/exercise/control.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pramfs_tests::exercise::control(input);
});
