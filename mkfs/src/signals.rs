//! Signals that ask a tool to end, when it has something to put away first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::Failure;

/// Lets the first signal that asks the program to end be noted. The second one ends it.
pub(crate) fn note_signals() -> Result<Arc<AtomicUsize>, Failure> {
    let (signal, is_noted) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let register = |number| -> std::io::Result<()> {
        let noted = usize::try_from(number).unwrap_or_default();
        // In this order: the first signal must not find that it has come before.
        signal_hook::flag::register_conditional_default(number, Arc::clone(&is_noted))?;
        signal_hook::flag::register_usize(number, Arc::clone(&signal), noted)?;
        signal_hook::flag::register(number, Arc::clone(&is_noted))?;
        Ok(())
    };
    let ignored = ignored();
    for number in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        // As whoever started the program wants it: nohup(1), a shell's background.
        if ignored >> (number - 1) & 1 != 0 {
            continue;
        }
        register(number).map_err(|e| Failure::os("cannot handle", "signals", e))?;
    }
    Ok(signal)
}

/// The signals that are ignored, signal 1 in the lowest bit.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// The signal that has been noted.
pub(crate) fn noted(signal: &AtomicUsize) -> Option<i32> {
    let number = i32::try_from(signal.load(Ordering::Relaxed)).ok()?;
    (number > 0).then_some(number)
}

/// Ends the tool by the signal, so that who waits for it learns which one it was.
///
/// # Errors
/// The signal could not end it.
pub(crate) fn end_by(number: i32) -> Result<(), Failure> {
    let ended = signal_hook::low_level::emulate_default_handler(number);
    ended.map_err(|e| Failure::os("cannot end by", "the signal", e))
}
