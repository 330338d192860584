//! The view, in memory, with states of our own, and the picture in the documentation.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use pramfs_control::{
    DamageStatus, ErrorSeen, Latency, LeaseCounts, MountStatus, OperationStatus, SlowOperation,
    Space,
};
use pramfs_tests::watchdog::Watchdog;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyEvent, KeyEventState};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::model::Order;
use super::*;

fn operation(name: &str, count: u64, micros: u64, lines: u64) -> OperationStatus {
    let mut latency = Latency::default();
    for nth in 0..count {
        // Some take much longer.
        let factor = if nth % 50 == 49 { 40 } else { 1 + nth % 3 };
        latency.add(micros * 1000 * factor);
    }
    OperationStatus {
        name: name.into(),
        count,
        errors: count / 10,
        fences: lines,
        lines,
        latency,
        ..OperationStatus::default()
    }
}

fn state(mount_point: &str, minor: u32, scale: u64) -> MountStatus {
    MountStatus {
        region: format!("/dev/pmem{minor}"),
        mount_point: mount_point.into(),
        device: (0, minor),
        pid: 700 + minor,
        uptime_ms: 93_784_000,
        writable: true,
        metrics: true,
        transport: "uring".into(),
        space: Some(Space {
            block_size: 4096,
            blocks: 1 << 20,
            free: 1 << 19,
            available: 1 << 19,
            inodes: 1 << 16,
            free_inodes: 1 << 15,
        }),
        leases: LeaseCounts {
            read: 3,
            write: 1,
            adopted: 0,
        },
        operations: vec![
            operation("LOOKUP", 400 * scale, 3, 0),
            operation("WRITE", 150 * scale, 12, 9_600 * scale),
            operation("CREATE", 50 * scale, 18, 400 * scale),
        ],
        slowest: vec![SlowOperation {
            name: "FSYNC".into(),
            inode: 4711,
            duration_ns: 8_400_000,
            ago_ms: 12_000,
            errno: 0,
        }],
        ..MountStatus::default()
    }
}

fn moment(at: Instant, states: Vec<MountStatus>) -> Moment {
    Moment {
        at,
        states,
        failures: Vec::new(),
    }
}

/// Two looks, a second apart.
fn model(start: Instant) -> Model {
    let mut model = Model::default();
    for (nth, scale) in [(0, 1), (1, 3)] {
        let mut worn = state("/srv/worn", 1, scale);
        worn.damage = DamageStatus {
            errors: 2,
            first: None,
            last: Some(ErrorSeen::default()),
        };
        let at = start + Duration::from_secs(nth);
        let mut look = moment(at, vec![state("/srv/data", 0, scale), worn]);
        look.failures.push("/mnt/dead: its server has died".into());
        model.add(look);
    }
    model
}

fn drawn(model: &Model, width: u16, height: u16) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw::screen(model, area, &mut buffer);
    buffer
}

fn line<'t>(text: &'t str, start: &str) -> &'t str {
    let found = text.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("{start}: {text}"))
}

fn press(model: &mut Model, code: KeyCode) -> Next {
    event(model, code, KeyModifiers::NONE, KeyEventKind::Press)
}

fn event(model: &mut Model, code: KeyCode, modifiers: KeyModifiers, kind: KeyEventKind) -> Next {
    let key = KeyEvent {
        code,
        modifiers,
        kind,
        state: KeyEventState::NONE,
    };
    handle(model, &Event::Key(key))
}

#[test]
fn view_shows_rates_between_two_looks() {
    let text = picture::text(&drawn(&model(Instant::now()), 120, 36));
    // 600 requests at first and 1800 a second later; half of the space.
    let data = line(&text, "/srv/data");
    assert!(data.contains(" 1200 ") && data.contains(" 120 "), "{text}");
    assert!(data.contains("####....  50 % of 4.0 GiB"), "{text}");
    assert!(line(&text, "/srv/worn").contains("2 ERRORS"), "{text}");
    assert!(line(&text, "LOOKUP").contains(" 800 "), "{text}");
    assert!(line(&text, "/mnt/dead").contains("has died"), "{text}");
    for part in [
        "8.40 ms  FSYNC of inode 4711, 12.0 s ago",
        "leases:    3 to read, 1 to write",
        "transport: uring",
        "damage:    none found",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn keys_select_sort_pause_and_quit() {
    let start = Instant::now();
    let mut model = model(start);
    for (code, selected) in [
        (KeyCode::Tab, 1),
        (KeyCode::Down, 0),
        (KeyCode::Up, 1),
        (KeyCode::BackTab, 0),
        (KeyCode::Tab, 1),
    ] {
        assert_eq!(press(&mut model, code), Next::GoOn);
        assert_eq!(model.selected(), selected, "{code:?}");
    }
    let first = |model: &Model| model.rows()[0].operations[0].name.clone();
    assert_eq!(first(&model), "LOOKUP");
    while model.order != Order::Bytes {
        press(&mut model, KeyCode::Char('s'));
    }
    assert_eq!(first(&model), "WRITE");

    press(&mut model, KeyCode::Char('h'));
    let help = picture::text(&drawn(&model, 120, 36));
    assert!(help.contains("any key closes this"), "{help}");
    assert_eq!(press(&mut model, KeyCode::Char('q')), Next::GoOn);

    let (kind, none) = (KeyEventKind::Press, KeyModifiers::NONE);
    let released = event(&mut model, KeyCode::Char('q'), none, KeyEventKind::Release);
    assert_eq!(released, Next::GoOn);
    assert_eq!(press(&mut model, KeyCode::Char('q')), Next::End);
    assert_eq!(press(&mut model, KeyCode::Esc), Next::End);
    let interrupt = event(&mut model, KeyCode::Char('c'), KeyModifiers::CONTROL, kind);
    assert_eq!(interrupt, Next::End);
}

#[test]
fn paused_view_stays_and_goes_on_with_the_latest() {
    let start = Instant::now();
    let mut model = model(start);
    press(&mut model, KeyCode::Char(' '));
    let rate = |model: &Model| model.rows()[0].all.rate;
    for (seconds, scale) in [(2, 4), (3, 9)] {
        let at = start + Duration::from_secs(seconds);
        model.add(moment(at, vec![state("/srv/data", 0, scale)]));
        assert_eq!((rate(&model), model.rows().len()), (1200.0, 2));
        let text = picture::text(&drawn(&model, 120, 36));
        assert!(text.contains("PAUSED"), "{text}");
    }
    press(&mut model, KeyCode::Char(' '));
    assert_eq!((rate(&model), model.rows().len()), (3000.0, 1));
}

#[test]
fn view_of_any_size_and_of_nothing_is_drawn() {
    let mut model = model(Instant::now());
    for help in [false, true] {
        model.help = help;
        for (width, height) in [(0, 0), (1, 1), (20, 5), (80, 24), (300, 90)] {
            drawn(&model, width, height);
            drawn(&Model::default(), width, height);
        }
    }
    let text = picture::text(&drawn(&Model::default(), 80, 24));
    assert!(text.contains("Nothing is mounted by root."), "{text}");
}

#[test]
fn selected_mount_of_many_is_in_the_list() {
    let many = (0..40).map(|nth| state(&format!("/srv/{nth:02}"), nth, 1));
    let mut model = Model::default();
    model.add(moment(Instant::now(), many.collect()));
    for _ in 0..25 {
        model.select_next();
    }
    let text = picture::text(&drawn(&model, 120, 40));
    assert!(
        text.contains("\n/srv/25 ") && text.contains("on /srv/25: pid 725"),
        "{text}"
    );
    assert!(!text.contains("\n/srv/26 "), "{text}");
}

#[test]
fn mount_that_comes_back_begins_anew_and_stays_selected() {
    let start = Instant::now();
    let mut model = model(start);
    press(&mut model, KeyCode::Tab);
    let minute = start + Duration::from_secs(60);
    model.add(moment(minute, vec![state("/srv/data", 0, 3)]));
    assert_eq!(model.selected(), 0, "the other one has gone");
    let mut again = state("/srv/worn", 1, 1);
    (again.started_sec, again.pid, again.uptime_ms) = (77, 999, 2000);
    let later = minute + Duration::from_secs(5);
    model.add(moment(later, vec![state("/srv/data", 0, 3), again]));
    assert_eq!(model.selected(), 1);
    // 600 requests in the two seconds since its start.
    assert_eq!(model.rows()[1].all.rate, 300.0);
    let text = picture::text(&drawn(&model, 120, 40));
    let news = "/srv/worn: process 999 serves in the place of process 701, since 00:00:00";
    assert!(text.contains(news), "{text}");
}

/// Two looks at mounts, of which the second has three times the requests.
fn looks(mounts: &[MountStatus], more: &[MountStatus]) -> Model {
    let start = Instant::now();
    let mut model = Model::default();
    model.add(moment(start, mounts.to_vec()));
    model.add(moment(start + Duration::from_secs(1), more.to_vec()));
    model
}

#[test]
fn two_live_mounts_on_one_mount_point_have_rates_of_their_own() {
    let both = |first, second| [state("/srv/data", 0, first), state("/srv/data", 1, second)];
    let mut model = looks(&both(1, 2), &both(3, 7));
    let rates = |model: &Model| -> Vec<_> { model.rows().iter().map(|row| row.all.rate).collect() };
    assert_eq!(rates(&model), [1200.0, 3000.0]);
    assert!(model.news().is_none(), "{:?}", model.news());
    press(&mut model, KeyCode::Tab);
    model.add(moment(Instant::now(), both(3, 7).to_vec()));
    assert_eq!(model.selected(), 1, "of the same mount point");
}

#[test]
fn servers_of_one_region_on_one_mount_point_are_no_replacement_while_both_live() {
    let second = |scale| {
        let mut second = state("/srv/data", 0, scale);
        (second.device, second.pid) = ((0, 99), 900);
        second
    };
    let first = state("/srv/data", 0, 1);
    let before = std::slice::from_ref(&first);
    let mut model = looks(before, &[first.clone(), second(1)]);
    assert!(model.news().is_none(), "{:?}", model.news());
    // The one that stays was there before.
    model.add(moment(Instant::now(), vec![first.clone()]));
    assert!(model.news().is_none(), "{:?}", model.news());
    model.add(moment(Instant::now(), vec![second(1)]));
    let news = model.news().unwrap().0;
    assert!(
        news.contains("process 900 serves in the place of process 700"),
        "{news}"
    );
}

#[test]
fn control_characters_of_a_server_are_not_drawn() {
    let mut odd = state("/srv/a\u{1b}[2Jb", 0, 1);
    odd.transport_note = Some("no\nuring".into());
    let mut model = Model::default();
    let mut look = moment(Instant::now(), vec![odd]);
    look.failures.push("/mnt: no\u{1b}[2J\u{202e}way".into());
    model.add(look);
    let screen = picture::text(&drawn(&model, 120, 40));
    assert!(screen.contains(r"/mnt: no\u{1b}[2J\u{202e}way"), "{screen}");
    for text in [screen, view(&model, UNIX_EPOCH)] {
        assert!(
            text.contains(r"/srv/a\u{1b}[2Jb") && text.contains(r"no\nuring"),
            "{text}"
        );
    }
}

#[test]
fn text_has_all_lines_of_all_mounts() {
    let text = view(&model(Instant::now()), UNIX_EPOCH);
    assert!(
        text.starts_with("pramfs top at 1970-01-01T00:00:00Z\n"),
        "{text}"
    );
    assert_eq!(text.matches("LOOKUP").count(), 2, "{text}");
    assert_eq!(text.matches("FSYNC of inode 4711").count(), 2, "{text}");
    assert!(text.ends_with("\n\n"), "{text}");
    let none = view(&Model::default(), UNIX_EPOCH);
    assert!(none.contains("Nothing is mounted by root."), "{none}");
}

/// The variable that makes a test below the program at the terminal.
const AT_TERMINAL: &str = "PRAMFS_TOP_TEST_AT_TERMINAL";

fn is_at_terminal() -> bool {
    std::env::var_os(AT_TERMINAL).is_some()
}

/// Runs a test of this file again, at a terminal of its own.
fn at_terminal(test: &str) -> (Child, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let name = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
    let line = || {
        let opened = File::options().read(true).write(true).open(&name);
        Stdio::from(opened.unwrap())
    };
    let name = format!("commands::top::tests::{test}");
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .env(AT_TERMINAL, "1")
        .stdin(line())
        .stdout(line())
        .stderr(line())
        .spawn();
    (child.unwrap(), File::from(keys))
}

/// All that a child writes until its end.
fn written(terminal: &mut File) -> String {
    let mut written = Vec::new();
    let mut piece = [0; 4096];
    // EIO: nobody has the other end any more.
    while let Ok(len @ 1..) = terminal.read(&mut piece) {
        written.extend_from_slice(&piece[..len]);
    }
    String::from_utf8_lossy(&written).into_owned()
}

/// Checks that these are written, in this order.
fn in_order(written: &str, parts: &[&str]) {
    let mut rest = written;
    for part in parts {
        let at = rest.find(part);
        let at = at.unwrap_or_else(|| panic!("{part:?} is not there, or too early: {written:?}"));
        rest = &rest[at + part.len()..];
    }
}

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

#[test]
fn panic_of_view_restores_terminal_before_its_message() {
    if is_at_terminal() {
        let shown = on_terminal::<()>(|_| panic!("a bug of the view"));
        panic!("nothing has ended the view: {shown:?}");
    }
    let (mut child, mut terminal) =
        at_terminal("panic_of_view_restores_terminal_before_its_message");
    let written = written(&mut terminal);
    assert!(!child.wait().unwrap().success());
    in_order(&written, &[ENTERS, LEAVES, "a bug of the view"]);
}

#[test]
fn panic_of_another_thread_leaves_terminal_to_view_and_is_told_after_it() {
    if is_at_terminal() {
        let shown = on_terminal(|_| {
            let other = std::thread::spawn(|| panic!("a bug of another thread"));
            assert!(other.join().is_err());
            println!("the view goes on");
            Ok(7)
        });
        assert_eq!(shown.unwrap(), 7);
        return;
    }
    let (mut child, mut terminal) =
        at_terminal("panic_of_another_thread_leaves_terminal_to_view_and_is_told_after_it");
    let written = written(&mut terminal);
    assert!(child.wait().unwrap().success(), "{written}");
    let parts = [
        ENTERS,
        "the view goes on",
        LEAVES,
        "a bug of another thread",
    ];
    in_order(&written, &parts);
    assert_eq!(written.matches(LEAVES).count(), 1, "{written:?}");
}

#[test]
fn view_whose_looks_end_ends_with_an_error() {
    let (send, moments) = mpsc::sync_channel(1);
    assert!(next(&moments).unwrap().is_none());
    send.send(moment(Instant::now(), Vec::new())).unwrap();
    drop(send);
    assert!(next(&moments).unwrap().is_some());
    let failure = next(&moments).unwrap_err();
    assert!(failure.message.contains("panicked"), "{failure:?}");
}

#[test]
fn noted_signal_is_told_and_not_the_error_of_the_terminal() {
    let hung_up = || Err(Failure::new("os", "cannot use the terminal"));
    let signal = AtomicUsize::new(0);
    assert!(end(hung_up(), &signal).is_err());
    assert_eq!(end(Ok(End::Asked), &signal).unwrap(), End::Asked);
    signal.store(1, Ordering::Relaxed);
    assert_eq!(end(hung_up(), &signal).unwrap(), End::Signal(SIGHUP));
}

#[test]
fn second_signal_ends_view_whose_terminal_nobody_reads() {
    use std::os::unix::process::ExitStatusExt;
    let test = "second_signal_ends_view_whose_terminal_nobody_reads";
    if is_at_terminal() {
        let signal = note_signals().unwrap();
        // Once the first is noted, the second one. The view goes on to write in both cases.
        std::thread::spawn(move || {
            signal_hook::low_level::raise(SIGTERM).unwrap();
            assert_eq!(noted(&signal), Some(SIGTERM));
            // Not SIGINT: a test in the background of a shell may inherit that it is ignored.
            signal_hook::low_level::raise(SIGTERM).unwrap();
        });
        let shown = on_terminal::<()>(|_| {
            loop {
                println!("nobody reads this");
            }
        });
        panic!("the view has ended: {shown:?}");
    }
    let _dog = Watchdog::new(test, Duration::from_secs(60));
    let (mut child, _unread) = at_terminal(test);
    assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
}

/// The picture of `docs/status.md`: what the program draws of two states that a server has given,
/// two seconds apart, with `PRAMFS_BLESS=1` to write it anew.
#[test]
fn picture_in_docs_is_what_program_draws() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| -> MountStatus {
        let path = here.join("src/commands/top/picture").join(name);
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let looks = [(0, read("first.json")), (2, read("second.json"))];
    let start = Instant::now();
    let mut model = Model::default();
    for (seconds, state) in looks {
        model.add(moment(start + Duration::from_secs(seconds), vec![state]));
    }
    let buffer = drawn(&model, 118, 34);
    let svg = picture::svg::picture(&buffer, "pramfs top, a mount with work");
    let path = here.join("../docs/charts/top.svg");
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        std::fs::write(&path, &svg).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == svg,
        "PRAMFS_BLESS=1 writes docs/charts/top.svg anew"
    );
}
