//! A server is killed while it serves a request on names, and the next one is asked again.
//!
//! Operations on data are not decided by one record: a write, a truncation and a fallocate may be
//! there in part after a death. Done again from the start, they have the same outcome.
//!
//! Each operation is cut at every store, flush and fence, with its note ([`Outcomes`]) as it was
//! at that moment. The next server recovers, and either knows that the operation is done, or does
//! it again. That one is cut at every event as well: in its recovery, in the operation that it
//! does again, and after it. In any case the operation has happened once, and the answer names
//! the inode that it made.
//!
//! A killed process leaves all stores that it has made, in their order: nothing is lost from the
//! caches of the processor, as it is when the power fails (`crash_sweep.rs`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use pramfs::inode::{
    Credentials, Fs, Ino, KeptReferences, Outcomes, RecordId, SetAttr, Survivor, Time,
};
use pramfs::{Fallocate, FileType, MountOptions, RenameFlags, XattrMode};
use pramfs_medium::journal::Rules;
use pramfs_medium::pmem::{Event, SimBackend};
use pramfs_tests::crash::Machine;
use pramfs_tests::recorded::options;
use pramfs_tests::region;

const CX: &Credentials<'_> = &Credentials::ROOT;

/// The note of the request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Note {
    record: Option<RecordId>,
    made: Option<Ino>,
    done: bool,
}

impl Note {
    /// A request that is done refers to what it has made, until it is answered.
    fn references_to(self, ino: Ino) -> u64 {
        u64::from(self.done && self.made == Some(ino))
    }
}

/// The memory that outlives a server, and its history.
#[derive(Debug)]
struct Kept {
    sim: SimBackend,
    now: Mutex<Life>,
}

/// What happened while one server lived.
#[derive(Debug, Default, Clone)]
struct Life {
    serving: bool,
    /// Events before the first operation.
    recovery: usize,
    note: Note,
    events: Vec<Event>,
    /// Each new note, and how many events were before it.
    notes: Vec<(usize, Note)>,
}

impl Life {
    fn change(&mut self, sim: &SimBackend, note: Note) {
        self.events.append(&mut sim.take_record());
        self.note = note;
        self.notes.push((self.events.len(), note));
    }

    /// What a death leaves: so many events, and the notes that are possible then.
    fn notes_at(&self, moment: usize) -> Vec<Note> {
        let upto = |before: bool| {
            let happened = |(at, _): &&(usize, Note)| *at < moment || *at == moment && !before;
            self.notes.iter().rfind(happened).map(|(_, note)| *note)
        };
        let mut all: Vec<Note> = [upto(true), upto(false)].into_iter().flatten().collect();
        all.dedup();
        all
    }
}

impl Outcomes for Kept {
    fn decided_by(&self, record: RecordId, made: Option<Ino>) {
        let mut now = self.now.lock();
        if now.serving {
            let note = Note {
                record: Some(record),
                made,
                done: false,
            };
            now.change(&self.sim, note);
        }
    }

    fn settle(&self, is_durable: &dyn Fn(RecordId) -> bool) {
        let mut now = self.now.lock();
        let Some(record) = now.note.record.filter(|_| !now.note.done) else {
            return;
        };
        let note = match is_durable(record) {
            true => Note {
                done: true,
                ..now.note
            },
            false => Note::default(),
        };
        now.change(&self.sim, note);
    }
}

impl KeptReferences for Kept {
    fn references(&self, of: Ino) -> u64 {
        self.now.lock().note.references_to(of)
    }

    /// The operations here add none: their callers would.
    fn add_references(&self, _: Ino, _: u64) {}

    fn sub_references(&self, _: Ino, _: u64) -> u64 {
        0
    }
}

impl Survivor for Kept {
    fn prepare(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn inodes(&self) -> Option<u64> {
        None
    }

    fn note_times(&self, _: Ino, _: Time) {}

    fn list_lazy(&self, _: Ino) {}

    fn listed_lazy(&self) -> Vec<(Ino, Time)> {
        Vec::new()
    }

    fn end_of_lazy(&self) -> u64 {
        0
    }

    fn lazy_are_written(&self, _: u64) {}
}

/// What a name shows, without times and numbers.
type Shown = (FileType, u32, u32, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// All names below the root.
fn names(fs: &Fs) -> BTreeMap<Vec<u8>, Shown> {
    let (mut found, mut left) = (BTreeMap::new(), vec![(Ino::ROOT, Vec::new())]);
    while let Some((dir, path)) = left.pop() {
        let mut entries = Vec::new();
        let mut take = |e: pramfs::inode::DirEntry<'_>| {
            if e.name != b"." && e.name != b".." {
                entries.push((e.ino, e.name.to_vec()));
            }
            ControlFlow::Continue(())
        };
        fs.readdir(dir, 0, &mut take).unwrap();
        for (ino, name) in entries {
            let path = [&path[..], b"/", &name].concat();
            let a = fs.getattr(ino).unwrap();
            assert_eq!(fs.lookup(dir, &name).unwrap().ino, ino);
            let mut data = vec![0; a.size as usize];
            match a.kind {
                FileType::Directory => left.push((ino, path.clone())),
                FileType::Symlink => data = fs.readlink(ino).unwrap(),
                FileType::Regular => {
                    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
                }
                _ => {}
            }
            let list = fs.listxattr(ino).unwrap();
            let xattrs = list.split(|b| *b == 0).filter(|n| !n.is_empty());
            let xattrs = xattrs
                .map(|n| (n.to_vec(), fs.getxattr(ino, n).unwrap()))
                .collect();
            found.insert(path, (a.kind, a.perm, a.nlink, data, xattrs));
        }
    }
    found
}

/// An operation on names.
struct Case {
    what: &'static str,
    prepare: fn(&Fs),
    /// Returns the inode that it has made, which it has in any run under this name.
    operation: fn(&Fs) -> pramfs::Result<Option<Ino>>,
    makes: Option<&'static [u8]>,
    /// No record decides it: it is done again from the start, whatever part of it is there.
    repeats: bool,
}

/// One server: its recovery, and then `serve`.
fn live<T>(image: &[u8], note: Note, serve: impl FnOnce(&Fs, Note) -> T) -> (Life, T) {
    let sim = SimBackend::from_image(image).unwrap();
    let kept = Arc::new(Kept {
        sim: sim.clone(),
        now: Mutex::new(Life {
            note,
            notes: vec![(0, note)],
            ..Life::default()
        }),
    });
    sim.recording(true);
    let survivor = Some(Arc::clone(&kept) as Arc<dyn Survivor>);
    let fs = region::mount(
        &sim,
        MountOptions {
            survivor,
            ..options(Rules::default())
        },
    )
    .unwrap();
    let settled = {
        let mut now = kept.now.lock();
        now.events.append(&mut sim.take_record());
        (now.recovery, now.serving) = (now.events.len(), true);
        now.note
    };
    let served = serve(&fs, settled);
    let mut now = kept.now.lock();
    now.serving = false;
    now.events.append(&mut sim.take_record());
    let life = now.clone();
    drop(now);
    sim.recording(false);
    (life, served)
}

/// Counts what the servers did that were asked again.
#[derive(Debug, Default)]
struct Count {
    answered: usize,
    repeated: usize,
}

struct Explorer<'a> {
    case: &'a Case,
    before: BTreeMap<Vec<u8>, Shown>,
    after: BTreeMap<Vec<u8>, Shown>,
    count: Count,
}

impl Explorer<'_> {
    /// Serves the operation that a dead server may have done.
    fn asked_again(&mut self, image: &[u8], note: Note, deaths: usize) {
        let Explorer {
            case,
            before,
            after,
            count,
        } = self;
        let (life, ()) = live(image, note, |fs, settled| {
            let made = match settled.done {
                true => {
                    count.answered += 1;
                    assert!(names(fs) == *after, "{}: done, and not there", case.what);
                    settled.made
                }
                false => {
                    count.repeated += 1;
                    let untouched = case.repeats || names(fs) == *before;
                    assert!(untouched, "{}: not done, but there", case.what);
                    let made = (case.operation)(fs);
                    made.unwrap_or_else(|e| panic!("{} again: {e}", case.what))
                }
            };
            assert!(names(fs) == *after, "{}: {:?}", case.what, names(fs));
            match (case.makes, made) {
                (Some(name), made) => {
                    assert_eq!(made, Some(fs.lookup(Ino::ROOT, name).unwrap().ino));
                }
                // Without a name, but there.
                (None, Some(made)) => assert_eq!(fs.getattr(made).unwrap().nlink, 0),
                (None, None) => {}
            }
        });
        if deaths > 0 {
            self.die_everywhere(image, &life, 0, deaths - 1);
        }
    }

    /// Kills a server at each of its events from `first` on.
    fn die_everywhere(&mut self, image: &[u8], life: &Life, first: usize, deaths: usize) {
        let mut machine = Machine::new(image.to_vec());
        machine.run_all(&life.events[..first]);
        for moment in first..=life.events.len() {
            for note in life.notes_at(moment) {
                self.asked_again(machine.current(), note, deaths);
            }
            if let Some(event) = life.events.get(moment) {
                machine.run(event);
            }
        }
    }
}

fn explore(case: &Case) -> Count {
    let sim = region::formatted(region::SMALLEST, &region::repeatable(1024)).unwrap();
    let fs = region::mount(&sim, options(Rules::default())).unwrap();
    (case.prepare)(&fs);
    let before = names(&fs);
    fs.close().unwrap();
    let image = sim.image();
    let mut after = BTreeMap::new();
    let (life, ()) = live(&image, Note::default(), |fs, _| {
        (case.operation)(fs).unwrap();
        after = names(fs);
    });
    let is_decided = life.notes.iter().any(|(_, note)| note.record.is_some());
    assert_eq!(is_decided, !case.repeats, "{}: the record", case.what);
    let mut explorer = Explorer {
        case,
        before,
        after,
        count: Count::default(),
    };
    explorer.die_everywhere(&image, &life, life.recovery, 1);
    explorer.count
}

fn make(fs: &Fs, name: &[u8]) -> Ino {
    let made = fs.create(CX, Ino::ROOT, name, 0o644).unwrap().ino;
    fs.write(CX, made, 0, name).unwrap();
    made
}

fn nothing(_: &Fs) {}

fn a_and_b(fs: &Fs) {
    make(fs, b"a");
    make(fs, b"b");
}

fn found(fs: &Fs, name: &[u8]) -> Ino {
    fs.lookup(Ino::ROOT, name).unwrap().ino
}

fn cases() -> Vec<Case> {
    let case = |what, prepare, operation| Case {
        what,
        prepare,
        operation,
        makes: None,
        repeats: false,
    };
    let repeating = |what, operation| Case {
        what,
        prepare: |fs| {
            let a = make(fs, b"a");
            fs.write(CX, a, 0, &[b'o'; 20_000]).unwrap();
        },
        operation,
        makes: None,
        repeats: true,
    };
    let making = |what, prepare, operation| Case {
        what,
        prepare,
        operation,
        makes: Some(b"new"),
        repeats: false,
    };
    vec![
        making("create", nothing, |fs| {
            Ok(Some(fs.create(CX, Ino::ROOT, b"new", 0o640)?.ino))
        }),
        making("mkdir", nothing, |fs| {
            Ok(Some(fs.mkdir(CX, Ino::ROOT, b"new", 0o750)?.ino))
        }),
        making("mknod", nothing, |fs| {
            let mode = libc::S_IFIFO | 0o600;
            Ok(Some(fs.mknod(CX, Ino::ROOT, b"new", mode, 0)?.ino))
        }),
        making("symlink to a long target", nothing, |fs| {
            Ok(Some(fs.symlink(CX, Ino::ROOT, b"new", &[b't'; 900])?.ino))
        }),
        making("link", a_and_b, |fs| {
            Ok(Some(fs.link(found(fs, b"a"), Ino::ROOT, b"new")?.ino))
        }),
        case("create without a name", nothing, |fs| {
            let (made, attr) = fs.holding().create_unnamed(CX, Ino::ROOT, 0o600, true)?;
            // It is held until the reply, which this server does not live to send.
            std::mem::forget(made);
            Ok(Some(attr.ino))
        }),
        case("unlink", a_and_b, |fs| {
            fs.unlink(Ino::ROOT, b"a").map(|()| None)
        }),
        case(
            "unlink of one of two names",
            |fs| {
                let a = make(fs, b"a");
                fs.link(a, Ino::ROOT, b"b").unwrap();
            },
            |fs| fs.unlink(Ino::ROOT, b"a").map(|()| None),
        ),
        case(
            "rmdir",
            |fs| {
                fs.mkdir(CX, Ino::ROOT, b"d", 0o755).unwrap();
            },
            |fs| fs.rmdir(Ino::ROOT, b"d").map(|()| None),
        ),
        case("rename to a new name", a_and_b, |fs| {
            let flags = RenameFlags::default();
            fs.rename(CX, Ino::ROOT, b"a", Ino::ROOT, b"c", flags)
                .map(|()| None)
        }),
        case("rename over a name", a_and_b, |fs| {
            let flags = RenameFlags::default();
            fs.rename(CX, Ino::ROOT, b"a", Ino::ROOT, b"b", flags)
                .map(|()| None)
        }),
        case("exchange", a_and_b, |fs| {
            let flags = RenameFlags {
                exchange: true,
                ..RenameFlags::default()
            };
            fs.rename(CX, Ino::ROOT, b"a", Ino::ROOT, b"b", flags)
                .map(|()| None)
        }),
        case("rename that leaves a whiteout", a_and_b, |fs| {
            let flags = RenameFlags {
                whiteout: true,
                ..RenameFlags::default()
            };
            fs.rename(CX, Ino::ROOT, b"a", Ino::ROOT, b"c", flags)
                .map(|()| None)
        }),
        case("setxattr that must not replace", a_and_b, |fs| {
            let mode = XattrMode::Create;
            fs.setxattr(CX, found(fs, b"a"), b"user.x", b"value", mode)
                .map(|()| None)
        }),
        case(
            "removexattr",
            |fs| {
                let a = make(fs, b"a");
                fs.setxattr(CX, a, b"user.x", b"value", XattrMode::Set)
                    .unwrap();
            },
            |fs| fs.removexattr(found(fs, b"a"), b"user.x").map(|()| None),
        ),
        repeating("write over old blocks and new ones", |fs| {
            let n = fs.write(CX, found(fs, b"a"), 15_000, &[b'n'; 9000])?;
            assert_eq!(n, 9000);
            Ok(None)
        }),
        repeating("truncation", |fs| {
            let set = SetAttr {
                size: Some(5000),
                ..SetAttr::default()
            };
            fs.setattr(CX, found(fs, b"a"), &set).map(|_| None)
        }),
        repeating("hole in the middle", |fs| {
            let what = Fallocate::PunchHole;
            fs.fallocate(CX, found(fs, b"a"), what, 3000, 12_000)
                .map(|()| None)
        }),
        repeating("fallocate past the end", |fs| {
            let what = Fallocate::Allocate { keep_size: false };
            fs.fallocate(CX, found(fs, b"a"), what, 18_000, 30_000)
                .map(|()| None)
        }),
    ]
}

#[test]
fn operation_asked_again_after_two_deaths_happens_once() {
    let cases = cases();
    std::thread::scope(|scope| {
        let runs: Vec<_> = cases
            .iter()
            .map(|case| (case.what, case.repeats, scope.spawn(move || explore(case))))
            .collect();
        for (what, repeats, run) in runs {
            let Count { answered, repeated } = run.join().unwrap();
            println!(
                "{what}: answered {answered} times from its record, repeated {repeated} times"
            );
            assert!(repeated > 3, "{what}");
            assert!(
                if repeats {
                    answered == 0
                } else {
                    answered > 10
                },
                "{what}"
            );
        }
    });
}
