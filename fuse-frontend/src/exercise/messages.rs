//! What passes between the supervisor of a connection and its servers: the fuzz target `takeover`.
//!
//! The input is a list of commands. The first byte of each says what it does:
//!
//! | byte mod 5 | bytes that follow | does |
//! |---|---|---|
//! | 0 | tag (1), descriptors (1), length (1), bytes | sends a message; two bits for each descriptor say which |
//! | 1 | place (2), byte (1), length (2) | changes a byte of a right state, cuts it, and has it read |
//! | 2 | word (4), value (8) | stores to the memory of requests of the dead server |
//! | 3 | word (2), value (8) | stores to its memory of references |
//! | 4 | | has a later server adopt both, and serve what it finds |
//!
//! What must hold of every input: no panic, no wait without end; a message that is understood is
//! the same after it is sent again, and a state that is read is the same after it is written.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pramfs::inode::{Ino, KeptReferences, Outcomes, Survivor};
use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::numbers::UNIQUE_RESEND;
use pramfs_fuse_protocol::{InitRequest, Negotiated, Outcome, Wanted, negotiate};

use super::Input;
use crate::takeover::memory::Memory;
use crate::takeover::messages::{Channel, Message, Outgoing};
use crate::takeover::state::{Found, State};

/// Inodes of the file system.
const INODES: u64 = 100;

fn agreed() -> Negotiated {
    let init = InitRequest {
        major: 7,
        minor: 41,
        max_readahead: 4096,
        flags: InitFlags::all(),
    };
    match negotiate(&init, &Wanted::default()) {
        Ok(Outcome::Agreed(agreed)) => agreed,
        other => panic!("{other:?}"),
    }
}

fn state() -> State {
    State {
        agreed: agreed(),
        offered: InitFlags::all(),
        region: PathBuf::from("/region"),
        mountpoint: PathBuf::from("/mnt"),
        device: Some((0, 50)),
        by_helper: false,
        read_only: false,
        uuid: [7; 16],
        identity: "1:2".to_owned(),
    }
}

/// Reads the bytes of a state.
fn read_state(bytes: &[u8]) {
    let found = Found {
        uuid: [7; 16],
        identity: String::new(),
        is_clean: false,
    };
    match State::from_bytes(bytes) {
        Ok(state) => {
            let again = State::from_bytes(&state.to_bytes());
            assert_eq!(again.as_ref(), Ok(&state));
            let _objection = state.objection(&found);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

struct Scene {
    ends: [Channel; 2],
    /// What descriptors of messages may be.
    descriptors: [OwnedFd; 3],
    /// Of a dead server: requests and references.
    memory: [File; 2],
    /// Messages that were understood, and servers that adopted the memory.
    understood: Cell<usize>,
}

impl Scene {
    fn new() -> Scene {
        let (one, other) = Channel::pair().expect("a socket");
        let made = Memory::create().expect("memory");
        made.prepare(INODES).expect("memory");
        let memory = made.descriptors().expect("it was prepared");
        let memory = memory.map(|part| File::from(part.try_clone_to_owned().expect("a copy")));
        let null = File::open("/dev/null").expect("it is always there");
        // It is not there in each sandbox.
        let fuse = File::open("/dev/fuse").or_else(|_| null.try_clone());
        let part = memory[0].try_clone().expect("a copy");
        Scene {
            ends: [one, other],
            descriptors: [fuse.expect("a copy").into(), part.into(), null.into()],
            memory,
            understood: Cell::default(),
        }
    }

    fn note_understood(&self) {
        self.understood.set(self.understood.get() + 1);
    }

    fn send(&self, tag: u8, which: u64, bytes: &[u8]) {
        let descriptors: Vec<BorrowedFd<'_>> = (0..4)
            .map(|n| (which >> (2 * n)) as usize & 3)
            .take_while(|which| *which != 0)
            .map(|which| self.descriptors[which - 1].as_fd())
            .collect();
        let [one, other] = &self.ends;
        one.put(tag, bytes, &descriptors).expect("there is room");
        let Ok(received) = other.receive_now() else {
            return;
        };
        self.note_understood();
        match received.expect("the socket is open") {
            Message::State(held) | Message::Keep(held) => {
                read_state(&held.state);
                other.send(&Outgoing::State(&held)).expect("there is room");
                match one.receive_now() {
                    Ok(Some(Message::State(again))) => {
                        assert_eq!(again.channels.len(), held.channels.len());
                        assert_eq!((again.minor, again.state), (held.minor, held.state));
                    }
                    refused => panic!("{refused:?}"),
                }
            }
            understood => assert!(!format!("{understood:?}").is_empty()),
        }
    }

    /// A later server.
    fn adopt(&self) {
        let copy = |part: &File| OwnedFd::from(part.try_clone().expect("a copy"));
        let [requests, references] = &self.memory;
        let Ok(memory) = Memory::adopt(copy(requests), copy(references)) else {
            return;
        };
        self.note_understood();
        memory.prepare(INODES).expect("it is large enough");
        memory.settle(&|record| record.to_word() % 2 == 0);
        for (ino, times) in memory.listed_lazy() {
            memory.note_times(ino, times);
        }
        for ino in (0..=INODES).chain([u64::MAX]) {
            let before = memory.references(Ino(ino));
            memory.add_references(Ino(ino), 1);
            let left = memory.sub_references(Ino(ino), 1);
            assert!(left <= before || before == u64::MAX, "a reference was made");
        }
        for unique in [2, 3, 4, u64::MAX] {
            let serving = memory.begin(unique | UNIQUE_RESEND);
            if serving.outcome == crate::takeover::memory::Outcome::Open {
                serving.happens_once();
            }
        }
        memory.list_lazy(Ino(7));
        memory.lazy_are_written(memory.end_of_lazy());
        memory.forget_old();
    }

    /// Runs a command. `None` at the end of the input.
    fn run(&self, input: &mut Input<'_>) -> Option<()> {
        match input.number(1)? % 5 {
            0 => {
                let (tag, which) = (input.number(1)?, input.number(1)?);
                let len = input.number(1)?;
                self.send(tag as u8, which, input.bytes(len as usize)?);
            }
            1 => {
                let (at, byte) = (input.number(2)? as usize, input.number(1)?);
                let len = input.number(2)? as usize;
                let mut bytes = state().to_bytes();
                let place = at % bytes.len();
                bytes[place] = byte as u8;
                bytes.resize(len.min(bytes.len() + 1), 0);
                read_state(&bytes);
            }
            which @ (2 | 3) => {
                let part = which as usize - 2;
                let word = input.number(4 - 2 * part)?;
                let value = input.number(8)?;
                let file = &self.memory[part];
                let words = file.metadata().expect("a memfd").len() / 8;
                let at = word % words * 8;
                file.write_all_at(&value.to_le_bytes(), at).expect("memory");
            }
            _ => self.adopt(),
        }
        Some(())
    }
}

/// Runs a case. Returns how many messages were understood, and servers adopted the memory.
///
/// # Panics
/// When something happens that must not happen to any input.
pub fn exercise(input: &[u8]) -> usize {
    let scene = Scene::new();
    let mut input = Input(input);
    while scene.run(&mut input).is_some() {}
    scene.understood.get()
}

/// Cases that a fuzzer can begin with.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let send = |tag: u8, which: u8, bytes: &[u8]| {
        let mut command = vec![0, tag, which, bytes.len() as u8];
        command.extend(bytes);
        command
    };
    let word = |part: u8, word: u32, value: u64| {
        let mut command = vec![2 + part];
        let len = 4 - 2 * usize::from(part);
        command.extend(&word.to_le_bytes()[..len]);
        command.extend(value.to_le_bytes());
        command
    };
    let mut held = 57u32.to_le_bytes().to_vec();
    held.extend(state().to_bytes());
    // A tag of each kind, twice over; the memory twice, then a connection.
    let tags = (0..=80).flat_map(|tag| send(tag, 0, b""));
    let keeps = (0..=80).flat_map(|tag| send(tag, 0b01_10_10, &held));
    // A request that a dead server had begun, one that names another inode, and a long list.
    let slot = 8;
    let begun = [
        word(0, 1, 5),
        word(0, slot, 2),
        word(0, slot + 1, 5),
        word(0, slot + 3, 4),
        word(0, slot + 4, 50),
        vec![4],
        word(0, slot + 8, 3),
        word(0, slot + 13, 1),
        word(0, slot + 14, u64::MAX - 1),
        word(1, 14, u64::MAX),
        vec![4],
        word(0, 7, u64::MAX),
        word(0, 1, u64::MAX),
        vec![4, 4],
    ];
    let cut = (0..200u8).flat_map(|at| [1, at, 0, 255, at, 0]);
    vec![
        ("tags", tags.collect()),
        ("keeps", keeps.collect()),
        ("begun", begun.concat()),
        ("states", cut.collect()),
    ]
}
