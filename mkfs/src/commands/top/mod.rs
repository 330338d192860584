//! `pramfs top`: what live mounts do, in a terminal or as text.
//!
//! A thread asks the servers again and again, so that one that does not answer holds up no key.
//! `model` makes rates of two looks, `draw` draws them, `picture` makes text of what is drawn.
//!
//! Invariant: the terminal is as it was when the program ends, by a key, an error, a panic or a
//! signal that asks it to end. The handler of a signal only notes it: the loop restores the
//! terminal, and then lets the signal end the program. A second signal ends it at once: the loop may
//! wait for a terminal that nobody reads.
//!
//! Only the thread that owns the terminal restores it at a panic. The view goes on after a panic of
//! another one, or ends with an error, and shows the message of the panic after its end.

mod draw;
mod model;
mod picture;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::num::NonZeroU64;
use std::panic;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::status::{parted, seconds};
use super::{Subcommand, live};
use crate::signals::{end_by, note_signals, noted};
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
        let signal = note_signals()?;
        let shown = on_terminal(|terminal| self.show(terminal, first, &signal));
        match end(shown, &signal)? {
            End::Asked => Ok(()),
            End::Signal(number) => end_by(number),
        }
    }
}

/// Why the view has ended: by a signal if one was noted. A terminal that hangs up makes errors, too.
fn end(shown: Result<End, Failure>, signal: &AtomicUsize) -> Result<End, Failure> {
    noted(signal).map_or(shown, |number| Ok(End::Signal(number)))
}

/// Runs a view on the terminal, and restores the terminal. A panic of the view does so, too: its
/// message comes after that. The messages of panics of other threads come after the view.
fn on_terminal<T>(
    view: impl FnOnce(&mut DefaultTerminal) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let before = Arc::new(panic::take_hook());
    let told = Arc::clone(&before);
    let owner = std::thread::current().id();
    let held = Arc::new(Mutex::new(Vec::new()));
    let holds = Arc::clone(&held);
    // It sets a hook that restores the terminal for any thread. Ours replaces that one.
    let terminal = ratatui::try_init();
    panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == owner {
            ratatui::restore();
            told(info);
        } else {
            let mut held = holds.lock().unwrap_or_else(PoisonError::into_inner);
            held.push(info.to_string());
        }
    }));
    let shown = terminal
        .map_err(|e| Failure::os("cannot set up", "the terminal", e))
        .and_then(|mut terminal| view(&mut terminal));
    let restored = ratatui::try_restore();
    panic::set_hook(Box::new(move |info| before(info)));
    for message in held
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        eprintln!("{message}");
    }
    let shown = shown?;
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
    ) -> Result<End, Failure> {
        let failed = |error| Failure::os("cannot use", "the terminal", error);
        let moments = self.watch();
        let mut model = Model::default();
        model.add(first);
        let mut views = 1;
        loop {
            // A terminal of another size than before is drawn anew.
            let drawn =
                terminal.draw(|frame| draw::screen(&model, frame.area(), frame.buffer_mut()));
            drawn.map_err(failed)?;
            if event::poll(KEYS).map_err(failed)?
                && handle(&mut model, &event::read().map_err(failed)?) == Next::End
            {
                return Ok(End::Asked);
            }
            if let Some(number) = noted(signal) {
                return Ok(End::Signal(number));
            }
            if let Some(moment) = next(&moments)? {
                if self.count.is_some_and(|count| views >= count.get()) {
                    return Ok(End::Asked);
                }
                model.add(moment);
                views += 1;
            }
        }
    }
}

/// The next look at the servers, if it is there.
///
/// # Errors
/// The thread that looks at them has ended: the view would stay as it is for ever.
fn next(moments: &Receiver<Moment>) -> Result<Option<Moment>, Failure> {
    match moments.try_recv() {
        Ok(moment) => Ok(Some(moment)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => Err(Failure::new(
            "bug",
            "the thread that asks the servers panicked",
        )),
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
