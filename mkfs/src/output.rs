//! Output of the tools: results on standard output, everything else on standard
//! error, progress bars only on a terminal.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::ser::Formatter;

use crate::Failure;

/// Prints a structure as JSON on one line of standard output.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Plain);
    value
        .serialize(&mut serializer)
        .map_err(|e| Failure::new("os", format!("cannot write JSON: {e}")))?;
    text.push(b'\n');
    bytes(&text)
}

/// JSON whose strings end no line and give a terminal no orders: it has escapes in the place of all
/// characters that are not printed.
struct Plain;

impl Formatter for Plain {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> std::io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_not_printed) {
            let (before, from) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut chars = from.chars();
            if let Some(character) = chars.next() {
                write!(writer, "\\u{:04x}", u32::from(character))?;
            }
            rest = chars.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Controls, separators of lines, and characters that change the direction of others. All are of four
/// hexadecimal digits.
fn is_not_printed(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Prints a line on standard output.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())?;
    bytes(b"\n")
}

/// Writes bytes to standard output. [`flush`] flushes them.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    std::io::stdout().lock().write_all(bytes).map_err(to_stdout)
}

/// Flushes standard output. Call it once before a tool ends, so that an error of
/// the last write is reported.
pub(crate) fn flush() -> Result<(), Failure> {
    std::io::stdout().lock().flush().map_err(to_stdout)
}

fn to_stdout(e: std::io::Error) -> Failure {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        // The reader of `pramfs ls REGION | head` has closed the pipe.
        return Failure {
            status: BROKEN_PIPE,
            ..Failure::new("os", "")
        };
    }
    Failure::os("cannot write to", "standard output", e)
}

/// The shell's status for a program that SIGPIPE ended.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// A failure as JSON: an object with nothing but `error`.
pub(crate) fn failure_object(failure: &Failure) -> serde_json::Value {
    let mut error = serde_json::json!({ "reason": failure.reason, "message": failure.message });
    if let Some(found) = &failure.found {
        error["found"] = found.clone();
    }
    serde_json::json!({ "error": error })
}

/// Prints a failure, and returns its exit status.
pub(crate) fn failed(tool: &str, failure: &Failure, as_json: bool) -> ExitCode {
    if failure.message.is_empty() {
        return ExitCode::from(failure.status);
    }
    if as_json {
        // If this fails, the status and the line below still report it.
        let _ = json(&failure_object(failure)).and_then(|()| flush());
    }
    eprintln!("{tool}: {}", failure.message);
    ExitCode::from(failure.status)
}

/// Creates a bar for `bytes` bytes, invisible unless standard error is a terminal.
pub(crate) fn bar(bytes: u64, what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes)
        .with_style(style.progress_chars("=> "))
        .with_message(what.to_owned())
}

/// As [`bar`], with the time left.
pub(crate) fn timed_bar(bytes: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} [{bar:30}] {percent}% {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar(bytes, what).with_style(style.progress_chars("=> "))
}

/// As [`bar`], for counted items.
pub(crate) fn steps() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:10} [{bar:30}] {pos}/{len}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> "))
}

/// As [`bar`], for work of unknown length.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
