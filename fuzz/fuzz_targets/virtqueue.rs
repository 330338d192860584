//! Queues of a guest out of any bytes: `fuse-frontend/src/transport/virtio/exercise.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pramfs_fuse::transport::virtio::exercise::exercise(input);
});
