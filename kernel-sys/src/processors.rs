//! Which processors there are, and on which a thread runs.

use std::io;

/// Most processors that a set has room for.
const MOST: usize = 8 * size_of::<libc::cpu_set_t>();

/// Binds the calling thread to one processor.
///
/// # Errors
/// EINVAL if the thread may not run there, or there is no such processor.
pub fn bind_to(processor: usize) -> io::Result<()> {
    if processor >= MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a set of processors is valid with all bits clear.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number was checked against the size of the set.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the kernel reads the set, which lives for the call; 0 is the calling thread.
    let done = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the processors on which the calling thread may run.
///
/// # Errors
/// Of sched_getaffinity(2): more processors than fit a set.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a set of processors is valid with all bits clear.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the set, which lives for the call; 0 is the calling thread.
    let done = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the numbers are within the set.
    let is_set = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &set) };
    Ok((0..MOST).filter(is_set).collect())
}

/// Returns how many processors the kernel may ever have, present or not.
///
/// # Errors
/// If `/sys` does not say so.
pub fn possible() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(text.trim()).ok_or_else(|| io::Error::other(format!("no list of processors: {text}")))
}

/// Counts the numbers of a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let mut all = 0usize;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all = all.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for wrong in ["", "a", "3-1", "1-", "0-18446744073709551615"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        assert!(possible().unwrap() >= 1);
    }

    #[test]
    fn thread_is_bound_to_one_processor() {
        let here = allowed().unwrap();
        let first = here[0];
        let bound = std::thread::spawn(move || {
            bind_to(first).unwrap();
            allowed().unwrap()
        });
        assert_eq!(bound.join().unwrap(), [first]);
        assert!(bind_to(MOST).is_err());
        assert_eq!(allowed().unwrap(), here);
    }
}
