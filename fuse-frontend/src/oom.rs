//! The server and a machine that runs out of memory.
//!
//! The kernel ends the process that has most memory, and to that counts what is
//! mapped of a region on tmpfs: the server would go first, its end would free
//! nothing of the region, and each user of the mount would be left with
//! ENOTCONN. So it asks to be the last one, as other daemons do whose end takes
//! storage away. What it takes for itself is bounded (`cache_mem=`, `threads=`).
//!
//! The last one, and not never: the server may be alone in a memory cgroup, which
//! counts the pages of a region on tmpfs, too. If the kernel could not end it, every
//! process that wants a page of that cgroup would hang.

use std::io;

const KNOB: &str = "/proc/self/oom_score_adj";
/// One more than what the kernel takes for "never".
const LAST: &str = "-999";

/// Makes this process the last one that is ended for want of memory, unless somebody has
/// settled that already (`OOMScoreAdjust=`, choom(1)). Only root may.
pub fn keep_alive() {
    let set = || -> io::Result<()> {
        if std::fs::read_to_string(KNOB)?.trim() == "0" {
            std::fs::write(KNOB, LAST)?;
        }
        Ok(())
    };
    if let Err(error) = set() {
        tracing::debug!("{KNOB} stays as it is: {error}");
    }
}
