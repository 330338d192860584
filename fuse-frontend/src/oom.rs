//! The OOM score of the server.
//!
//! When memory runs out, the kernel kills the process with the most memory, and that
//! includes the mapped pages of a region on tmpfs. So the server would be killed first.
//! That would free nothing of the region and leave all users of the mount with
//! ENOTCONN. Like other storage daemons, the server therefore asks to be killed last.
//! Its own memory is bounded (`cache_mem=`, `threads=`).
//!
//! It does not ask for "never": the server may be alone in a memory cgroup, which also
//! counts the pages of a region on tmpfs. If the kernel could not kill it, every process
//! that needs a page of that cgroup would hang.

use std::io;

const KNOB: &str = "/proc/self/oom_score_adj";
/// One above -1000, which means "never".
const LAST: &str = "-999";

/// Makes the OOM killer choose this process last, unless its score has already been set
/// (`OOMScoreAdjust=`, choom(1)). Needs root.
pub fn keep_alive() {
    let set = || -> io::Result<()> {
        if std::fs::read_to_string(KNOB)?.trim() == "0" {
            std::fs::write(KNOB, LAST)?;
        }
        Ok(())
    };
    if let Err(error) = set() {
        tracing::debug!("{KNOB} stays unchanged: {error}");
    }
}
