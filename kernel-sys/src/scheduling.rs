//! How the kernel schedules a thread.

use std::io;

/// A policy of sched(7) without privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The usual one.
    Other,
    /// Runs when nothing else does, and gives way at once. A thread that wakes prefers a
    /// processor that runs only such threads to another idle one.
    Idle,
}

impl Policy {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Policy::Other => libc::SCHED_OTHER,
            Policy::Idle => libc::SCHED_IDLE,
        }
    }
}

/// Sets the policy of a thread of this process; 0 is the calling one.
///
/// # Errors
/// EPERM for [`Policy::Other`] if the thread is idle and `RLIMIT_NICE` is less than 20; ESRCH
/// if there is no such thread.
pub fn set_policy(thread: i32, policy: Policy) -> io::Result<()> {
    // SAFETY: a plain structure, for which all zeros are valid.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 0;
    // SAFETY: the kernel reads the parameter, which lives for the call.
    let done = unsafe { libc::sched_setscheduler(thread, policy.number(), &raw const parameter) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the calling thread has the policy [`Policy::Other`].
///
/// # Errors
/// Of sched_getscheduler(2).
pub fn has_usual_policy() -> io::Result<bool> {
    // SAFETY: the call only looks a number up.
    match unsafe { libc::sched_getscheduler(0) } {
        -1 => Err(io::Error::last_os_error()),
        policy => Ok(policy == Policy::Other.number()),
    }
}

/// Returns the number of the calling thread.
#[must_use]
pub fn thread_number() -> i32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(thread: i32) -> i32 {
        // SAFETY: the call only looks a number up.
        unsafe { libc::sched_getscheduler(thread) }
    }

    #[test]
    fn policy_of_another_thread_is_set() {
        let (number, has_number) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            number.send(thread_number()).unwrap();
            ended.recv().unwrap_err();
        });
        let number = has_number.recv().unwrap();
        set_policy(number, Policy::Idle).unwrap();
        assert_eq!(policy(number), libc::SCHED_IDLE);
        assert_eq!(policy(0), libc::SCHED_OTHER);
        match set_policy(number, Policy::Other) {
            Ok(()) => assert_eq!(policy(number), libc::SCHED_OTHER),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
        drop(end);
        thread.join().unwrap();
        // The join ends when the thread gives up its memory. Its number goes a moment later.
        for _ in 0..10_000 {
            if policy(number) == -1 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let gone = set_policy(number, Policy::Idle).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }
}
