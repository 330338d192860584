//! Queues of a guest out of any bytes: `fuse-frontend/src/exercise/virtqueue.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _reached = pramfs_fuse::exercise::virtqueue::exercise(input);
});
