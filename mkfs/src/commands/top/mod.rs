//! `pramfs top`: what live mounts do, in a terminal or as text.
//!
//! A thread asks the servers again and again, so that one that does not answer holds up no key.
//! `model` makes rates of two looks, `draw` draws them, `picture` makes text of what is drawn.
//!
//! Invariant: the terminal is as it was when the program ends, by a key, an error, a panic or a
//! signal that asks it to end. The handler of a signal only notes it: the loop restores the
//! terminal, and then lets the signal end the program.

mod draw;
mod model;
mod picture;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::status::{parted, seconds};
use super::{Subcommand, live};
use crate::{Failure, output};
use model::{Model, Moment};

/// How long to wait for a key before the next look at signals and servers.
const KEYS: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct Top {
    /// Mount point, or the region that is mounted; all mounts of root if it is missing
    place: Option<PathBuf>,
    /// Print views as text, with no terminal and no keys, until it is interrupted
    #[arg(short, long)]
    batch: bool,
    /// As --batch -n 1: print one view, after one delay, and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// End after so many views
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<NonZeroU64>,
    /// Time between two looks at the servers, 0.1 to 86400 seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    delay: Duration,
}

impl Subcommand for Top {
    const NAME: &'static str = "top";
    const ABOUT: &'static str = "Watch rates, latencies and space of live mounts in a terminal";

    fn run(&self) -> Result<(), Failure> {
        if self.batch || self.once {
            return self.print();
        }
        if !std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "standard output is not a terminal: use --batch or --once to print text, or pramfs status --json for programs",
            ));
        }
        // A wrong name is told before the screen is cleared.
        let first = look(self.place.as_ref())?;
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
            let noted = usize::try_from(number).unwrap_or_default();
            let registered = signal_hook::flag::register_usize(number, Arc::clone(&signal), noted);
            registered.map_err(|e| Failure::os("cannot handle", "signals", e))?;
        }
        let shown = on_terminal(|terminal| self.show(terminal, first, &signal))?;
        match shown.map_err(|e| Failure::os("cannot use", "the terminal", e))? {
            End::Asked => Ok(()),
            End::Signal(number) => {
                // Whoever waits for this program learns which signal ended it.
                let ended = signal_hook::low_level::emulate_default_handler(number);
                ended.map_err(|e| Failure::os("cannot end by", "the signal", e))
            }
        }
    }
}

/// Runs a view on the terminal, and restores the terminal. A panic does so, too: its message comes
/// after that.
fn on_terminal<T>(view: impl FnOnce(&mut DefaultTerminal) -> T) -> Result<T, Failure> {
    // Sets the hook for panics.
    let mut terminal =
        ratatui::try_init().map_err(|e| Failure::os("cannot set up", "the terminal", e))?;
    let shown = view(&mut terminal);
    let restored = ratatui::try_restore();
    restored.map_err(|e| Failure::os("cannot restore", "the terminal", e))?;
    Ok(shown)
}

/// Asks the servers.
///
/// # Errors
/// The place that was named gives no answer.
fn look(place: Option<&PathBuf>) -> Result<Moment, Failure> {
    let answers = match place {
        Some(place) => vec![Ok(live::status_of(place)?)],
        None => live::status_of_all()?,
    };
    let (states, failures) = parted(answers);
    let failures = failures.into_iter().map(|failure| failure.message);
    Ok(Moment {
        at: Instant::now(),
        states,
        failures: failures.collect(),
    })
}

/// As [`look`], with the failure as what there is to show: the mount may come back.
fn look_again(place: Option<&PathBuf>) -> Moment {
    look(place).unwrap_or_else(|failure| Moment {
        at: Instant::now(),
        states: Vec::new(),
        failures: vec![failure.message],
    })
}

/// Why a view has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// By a key, or after the last view.
    Asked,
    /// By a signal.
    Signal(i32),
}

impl Top {
    /// Views as text. Each has a line with the time in front, and a blank line after it.
    fn print(&self) -> Result<(), Failure> {
        let count = match self.once {
            true => NonZeroU64::new(1),
            false => self.count,
        };
        let mut model = Model::default();
        model.add(look(self.place.as_ref())?);
        let mut views = 0;
        while count.is_none_or(|count| views < count.get()) {
            std::thread::sleep(self.delay);
            model.add(look_again(self.place.as_ref()));
            output::bytes(view(&model, SystemTime::now()).as_bytes())?;
            output::flush()?;
            for failure in model.failures() {
                eprintln!("pramfs top: {failure}");
            }
            views += 1;
        }
        match model.failures() {
            [] => Ok(()),
            _ => Err(Failure::silent()),
        }
    }

    /// Looks at the servers in a thread, which ends with the program.
    fn watch(&self) -> Receiver<Moment> {
        let (send, moments) = mpsc::sync_channel(1);
        let (place, delay) = (self.place.clone(), self.delay);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(delay);
                if send.send(look_again(place.as_ref())).is_err() {
                    return;
                }
            }
        });
        moments
    }

    fn show(
        &self,
        terminal: &mut DefaultTerminal,
        first: Moment,
        signal: &AtomicUsize,
    ) -> std::io::Result<End> {
        let moments = self.watch();
        let mut model = Model::default();
        model.add(first);
        let mut views = 1;
        loop {
            // A terminal of another size than before is drawn anew.
            terminal.draw(|frame| draw::screen(&model, frame.area(), frame.buffer_mut()))?;
            if event::poll(KEYS)? && handle(&mut model, &event::read()?) == Next::End {
                return Ok(End::Asked);
            }
            if let Ok(number @ 1..) = i32::try_from(signal.load(Ordering::Relaxed)) {
                return Ok(End::Signal(number));
            }
            if let Ok(moment) = moments.try_recv() {
                if self.count.is_some_and(|count| views >= count.get()) {
                    return Ok(End::Asked);
                }
                model.add(moment);
                views += 1;
            }
        }
    }
}

/// A view as text.
fn view(model: &Model, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    format!(
        "pramfs top at {}\n{}\n",
        pramfs_control::text::moment(seconds),
        picture::text(&draw::page(model))
    )
}

/// Whether the view goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

fn handle(model: &mut Model, event: &Event) -> Next {
    let Event::Key(key) = event else {
        return Next::GoOn;
    };
    if key.kind == KeyEventKind::Release {
        return Next::GoOn;
    }
    match key.code {
        // The terminal makes no signal of it now.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::End,
        _ if model.help => model.help = false,
        KeyCode::Char('q') | KeyCode::Esc => return Next::End,
        KeyCode::Char(' ') => model.pause(),
        KeyCode::Char('s') => model.sort_by_next(),
        KeyCode::Down | KeyCode::Tab => model.select_next(),
        KeyCode::Up | KeyCode::BackTab => model.select_previous(),
        KeyCode::Char('h' | '?') => model.help = true,
        _ => {}
    }
    Next::GoOn
}
