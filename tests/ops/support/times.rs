//! The three times of a file, and whether they advance.

use std::path::Path;
use std::time::Duration;

/// Waits until the time of a change differs.
pub fn tick() {
    std::thread::sleep(Duration::from_millis(30));
}

/// Seconds and nanoseconds.
pub type Time = (i64, i64);

/// atime, mtime, ctime.
pub fn times(path: &Path) -> [Time; 3] {
    let s = rustix::fs::stat(path).expect("stat");
    [
        (s.st_atime, s.st_atime_nsec as i64),
        (s.st_mtime, s.st_mtime_nsec as i64),
        (s.st_ctime, s.st_ctime_nsec as i64),
    ]
}

/// Which of the three times have advanced.
pub fn moved(before: [Time; 3], after: [Time; 3]) -> [bool; 3] {
    [0, 1, 2].map(|i| after[i] > before[i])
}
