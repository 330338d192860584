//! `pramfs top`, as text and at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};

use pramfs_tests::mounted::wait_until;
use rustix::process::{Pid, Signal};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::{PRAMFS, pramfs, terminal};
use crate::{live, work};

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

/// `pramfs top` at a terminal.
struct AtTerminal {
    child: Child,
    keys: OwnedFd,
    pieces: Receiver<Vec<u8>>,
    written: Vec<u8>,
    size: (u16, u16),
}

impl AtTerminal {
    fn start(place: &Path, args: &[&str]) -> AtTerminal {
        let (keys, name) = terminal();
        let line = || {
            let mut line = File::options();
            line.read(true).write(true).custom_flags(libc::O_NOCTTY);
            Stdio::from(line.open(&name).unwrap())
        };
        let size = (120, 40);
        resize(&keys, size);
        // In the background of a shell, and under nohup, a test inherits that signals are ignored.
        let child = Command::new("env")
            .args(["--default-signal", PRAMFS, "top", "-d", "0.2"])
            .args(args)
            .arg(place)
            .env("TERM", "xterm-256color")
            .stdin(line())
            .stdout(line())
            .stderr(line())
            .spawn()
            .unwrap();
        let mut reader = File::from(keys.try_clone().unwrap());
        let (send, pieces) = mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 16];
            // EIO: nobody has the other end any more.
            while let Ok(len @ 1..) = reader.read(&mut piece) {
                if send.send(piece[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        AtTerminal {
            child,
            keys,
            pieces,
            written: Vec::new(),
            size,
        }
    }

    fn resize(&mut self, size: (u16, u16)) {
        resize(&self.keys, size);
        self.size = size;
    }

    fn types(&self, keys: &str) {
        let mut terminal = File::from(self.keys.try_clone().unwrap());
        terminal.write_all(keys.as_bytes()).unwrap();
    }

    fn stream(&mut self) -> String {
        self.written.extend(self.pieces.try_iter().flatten());
        String::from_utf8_lossy(&self.written).into_owned()
    }

    fn screen(&mut self) -> String {
        let size = self.size;
        screen(&self.stream(), size)
    }

    fn shows(&mut self, what: &str) {
        let shown = wait_until(|| self.screen().contains(what));
        assert!(shown, "{what}:\n{}", self.screen());
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end, after which the terminal must be as it was.
    fn ended(&mut self) -> ExitStatus {
        assert!(wait_until(|| self.child.try_wait().unwrap().is_some()));
        let restored = wait_until(|| self.stream().contains(LEAVES));
        assert!(restored, "the screen is not restored");
        let modes = tcgetattr(&self.keys).unwrap().local_modes;
        let cooked = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        assert!(modes.contains(cooked), "{modes:?}");
        self.child.wait().unwrap()
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        // It has ended, unless the test has failed.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn resize(keys: &OwnedFd, (columns, lines): (u16, u16)) {
    let size = Winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(keys, size).unwrap();
}

/// What a terminal of this size shows after these bytes: places of the cursor, cleared
/// screens, and text. Colours are left out.
fn screen(stream: &str, (columns, lines): (u16, u16)) -> String {
    let (columns, lines) = (usize::from(columns), usize::from(lines));
    let mut cells = vec![vec![' '; columns]; lines];
    let (mut x, mut y) = (0, 0);
    let mut rest = stream.chars();
    while let Some(next) = rest.next() {
        if next != '\x1b' {
            match next {
                '\r' => x = 0,
                '\n' => y += 1,
                _ if y < lines && x < columns => {
                    cells[y][x] = next;
                    x += 1;
                }
                _ => {}
            }
            continue;
        }
        if rest.next() != Some('[') {
            continue;
        }
        let mut numbers = String::new();
        let last = rest.by_ref().find(|next| {
            let is_last = next.is_ascii_alphabetic();
            if !is_last {
                numbers.push(*next);
            }
            is_last
        });
        let mut numbers = numbers.split(';').map(|number| number.parse().unwrap_or(1));
        match last {
            Some('H') => {
                y = numbers.next().unwrap_or(1) - 1;
                x = numbers.next().unwrap_or(1) - 1;
            }
            Some('J') => cells = vec![vec![' '; columns]; lines],
            _ => {}
        }
    }
    let lines: Vec<String> = cells.iter().map(|line| line.iter().collect()).collect();
    lines.join("\n")
}

#[test]
fn top_once_prints_mount_and_its_operations() {
    let Some((mount, _dog)) = live("top --once", "metrics=on") else {
        return;
    };
    work(&mount);
    let path = mount.path();
    let path = path.to_str().unwrap();
    let said = pramfs(["top", "--once", "-d", "0.1", path]).ok();
    let parts = [
        "REQ/s", "FENCES/s", path, "CREATE", "pid ", "slowest", "leases:", "damage:",
    ];
    for part in parts {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(!said.out.contains("secret-name"));
    assert!(!said.out.contains('\x1b'), "{}", said.out);
    let said = pramfs(["top", "-b", "-n", "3", "-d", "0.1", path]).ok();
    assert_eq!(
        said.out.matches("pramfs top at ").count(),
        3,
        "{}",
        said.out
    );
}

#[test]
fn top_draws_on_terminal_obeys_keys_and_ends_at_q() {
    let Some((mount, _dog)) = live("top at a terminal", "") else {
        return;
    };
    work(&mount);
    let mut top = AtTerminal::start(&mount.path(), &[]);
    top.shows("REQ/s");
    top.shows("CREATE");
    assert!(top.stream().contains(ENTERS));
    top.types("s");
    top.shows("sorted by time");
    top.types(" ");
    top.shows("PAUSED");
    top.types("h");
    top.shows("any key closes this");
    top.types("x");
    assert!(wait_until(|| !top.screen().contains("any key closes this")));
    // Nothing is drawn beside a smaller terminal, and a larger one is filled.
    for (columns, lines) in [(70, 20), (150, 50)] {
        top.resize((columns, lines));
        assert!(
            wait_until(|| {
                let screen = top.screen();
                let last = screen.lines().last().unwrap_or_default();
                last.contains("quit") && last.contains("help")
            }),
            "{}",
            top.screen()
        );
    }
    top.types("q");
    assert!(top.ended().success());
}

#[test]
fn top_that_is_signalled_restores_terminal() {
    let Some((mount, _dog)) = live("a signalled top", "") else {
        return;
    };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = AtTerminal::start(&mount.path(), &[]);
        top.shows("REQ/s");
        top.signal(signal);
        assert_eq!(top.ended().signal(), Some(signal.as_raw()));
    }
    let mut top = AtTerminal::start(&mount.path(), &["-n", "2"]);
    assert!(top.ended().success(), "after the last view");
}

#[test]
fn top_says_that_server_died_and_goes_on_with_the_next() {
    let Some((mount, _dog)) = live("top of a server that dies", "takeover=off") else {
        return;
    };
    work(&mount);
    let old = mount.process().as_raw_nonzero();
    let mut top = AtTerminal::start(&mount.path(), &[]);
    top.shows(&format!("pid {old},"));
    mount.crash();
    top.shows("its server has died");
    top.shows("No server answers.");
    mount.unmount();
    mount.mount("takeover=off");
    let new = mount.process().as_raw_nonzero();
    top.shows(&format!("pid {new},"));
    top.shows(&format!(
        "process {new} serves in the place of process {old}"
    ));
    assert!(!top.screen().contains("has died"), "{}", top.screen());
    top.types("q");
    assert!(top.ended().success());
}

#[test]
fn top_without_terminal_is_refused() {
    pramfs(["top"]).misused(&["standard output is not a terminal", "--once", "--batch"]);
    for wrong in [
        &["top", "-n", "0"][..],
        &["top", "--once", "-n", "2"],
        &["top", "-d", "0"],
    ] {
        assert_eq!(pramfs(wrong).status, 2, "{wrong:?}");
    }
    pramfs(["top", "--once", "/nowhere"]).refused(&["/nowhere"]);
}
