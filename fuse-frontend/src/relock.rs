//! Takes the usual lock of a region that was mounted without it.
//!
//! A process that may only read the region had that lock (`lock_notice` of the region). The
//! server uses a substitute, which servers in another mount namespace may not see. So it takes
//! the usual lock as soon as that is free.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pramfs::inode::Fs;

/// Time between two attempts. The lock has no event that does not block.
const PAUSE: Duration = Duration::from_millis(250);

/// Starts the thread, if it is needed. It ends with the mount, and does not keep the engine
/// alive.
pub fn watch(fs: &Arc<Fs>) {
    let info = fs.region().info();
    if info.lock_notice.is_none() {
        return;
    }
    let (fs, writability) = (Arc::downgrade(fs), fs.writability());
    let started = std::thread::Builder::new()
        .name("relock".into())
        .spawn(
            move || {
                while !retaken(&fs) && !writability.wait_for_end(PAUSE) {}
            },
        );
    if let Err(error) = started {
        tracing::warn!(
            "{}: cannot start the thread that takes the usual lock of the region when it is free: {error}",
            info.name
        );
    }
}

/// Whether nothing is left to do.
fn retaken(fs: &Weak<Fs>) -> bool {
    let Some(fs) = fs.upgrade() else {
        return true;
    };
    let taken = fs.region().retake_lock();
    if taken {
        tracing::info!("{}: has its usual lock now", fs.region().info().name);
    }
    taken
}
