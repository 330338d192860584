//! Crashes in sequences of operations by several threads, two of which share a lane:
//! completed operations are there, the operation in progress has happened or not, and
//! nothing else has changed.
//!
//! Operations run one at a time, each on its own thread, so the state after each is
//! known. A crash finds their unfenced changes, made by different threads.

use std::sync::mpsc::{Receiver, Sender, channel};

use pramfs::{
    Fallocate, FileType, RenameFlags, Result, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, recovered_tree};
use pramfs_tests::region::repeatable;
use pramfs_tests::tree::Tree;

/// Lane of each thread.
const LANES: [u32; 3] = [0, 0, 1];
const LEN: usize = 512 << 10;

type Job = Box<dyn FnOnce(&Fs) -> Result<()> + Send>;

fn worker(fs: &Fs, lane: u32, jobs: Receiver<Job>, done: Sender<Result<()>>) {
    set_thread_lane(lane);
    for job in jobs {
        if done.send(job(fs)).is_err() {
            return;
        }
    }
}

fn directories(t: &Tree) -> Vec<Ino> {
    let is_dir = |n: &&pramfs_tests::tree::Node| n.kind == FileType::Directory;
    t.nodes.values().filter(is_dir).map(|n| n.id.0).collect()
}

/// A random single-record operation, for the current tree.
fn job(t: &Tree, r: &mut Random) -> (String, Job) {
    let ctx = Credentials::ROOT;
    let pick = |list: &[Ino], r: &mut Random| list[r.below(list.len() as u64) as usize];
    let dirs = directories(t);
    let files: Vec<Ino> = t
        .nodes
        .values()
        .filter(|n| n.kind == FileType::Regular)
        .map(|n| n.id.0)
        .collect();
    let name = |r: &mut Random| {
        let long = if r.one_in(3) {
            "-with-a-longer-name-than-the-others"
        } else {
            ""
        };
        format!("{}{long}", (b'a' + r.below(8) as u8) as char).into_bytes()
    };
    let (d, e) = (pick(&dirs, r), pick(&dirs, r));
    let (n, m) = (name(r), name(r));
    let shown = format!(
        "{} {:?} {} {:?}",
        d.0,
        String::from_utf8_lossy(&n),
        e.0,
        String::from_utf8_lossy(&m)
    );
    let kind = r.below(if files.is_empty() { 8 } else { 16 });
    let f = if files.is_empty() {
        Ino::ROOT
    } else {
        pick(&files, r)
    };
    let len = r.below(1500);
    let fill = r.word() as u8;
    let at = r.below(3000);
    let what = match kind {
        0 | 1 => "create",
        2 => "mkdir",
        3 => "symlink",
        4 => "unlink",
        5 => "rmdir",
        6 => "rename",
        7 => "exchange",
        8 | 9 => "append",
        10 => "truncate",
        11 => "link",
        12 => "setxattr",
        13 => "chmod",
        14 => "fallocate",
        _ => "removexattr",
    };
    let text = format!("{what} {shown} file {} len {len} at {at}", f.0);
    let plain = RenameFlags::default();
    let run: Job = Box::new(move |fs| match what {
        "create" => fs.create(&ctx, d, &n, 0o640).map(drop),
        "mkdir" => fs.mkdir(&ctx, d, &n, 0o750).map(drop),
        "symlink" => fs
            .symlink(&ctx, d, &n, &vec![b't'; 1 + len as usize])
            .map(drop),
        "unlink" => fs.unlink(d, &n),
        "rmdir" => fs.rmdir(d, &n),
        "rename" => fs.rename(&ctx, d, &n, e, &m, plain),
        "exchange" => fs.rename(
            &ctx,
            d,
            &n,
            e,
            &m,
            RenameFlags {
                exchange: true,
                ..plain
            },
        ),
        "append" => fs
            .append(&Credentials::ROOT, f, &vec![fill; len as usize])
            .map(drop),
        "truncate" => {
            let set = SetAttr {
                size: Some(at),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, f, &set).map(drop)
        }
        "link" => fs.link(f, d, &n).map(drop),
        "setxattr" => fs.setxattr(
            &Credentials::ROOT,
            f,
            &[b"user.", &n[..]].concat(),
            &vec![fill; len as usize],
            XattrMode::Set,
        ),
        "chmod" => {
            let set = SetAttr {
                perm: Some(u32::from(fill)),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, f, &set).map(drop)
        }
        "fallocate" => fs.fallocate(
            &Credentials::ROOT,
            f,
            Fallocate::Allocate { keep_size: true },
            at,
            len + 1,
        ),
        _ => fs.removexattr(f, &[b"user.", &n[..]].concat()),
    });
    (text, run)
}

/// Ignores free counts, which the growth of a table changes before the operation that
/// needs it.
fn shown(mut t: Tree) -> Tree {
    (t.free, t.free_inodes) = (0, 0);
    t
}

fn run(seed: u64, operations: usize) -> usize {
    let mut r = Random::new(seed);
    let mut format = repeatable(512);
    format.lanes = Some(2);
    let mut rec = Recorded::new(LEN, &format, Rules::default());
    // The states, and the point from which each is the only valid one.
    let mut states = vec![shown(Tree::of(&rec.fs).unwrap())];
    let mut bounds = vec![rec.now()];
    let mut log = Vec::new();
    let sim = rec.sim.clone();
    let (fs, mut events) = (&rec.fs, Vec::new());
    std::thread::scope(|s| {
        let (to, answers): (Vec<_>, Vec<_>) = LANES
            .iter()
            .map(|&lane| {
                let (to, jobs) = channel::<Job>();
                let (done, answer) = channel();
                s.spawn(move || worker(fs, lane, jobs, done));
                (to, answer)
            })
            .unzip();
        for _ in 0..operations {
            let before = states.last().unwrap();
            let (text, job) = job(before, &mut r);
            let thread = r.below(LANES.len() as u64) as usize;
            to[thread].send(job).unwrap();
            let result = answers[thread].recv().unwrap();
            log.push(format!(
                "thread {thread}: {text}: {:?}",
                result.as_ref().map_err(ToString::to_string)
            ));
            events.append(&mut sim.take_record());
            states.push(shown(Tree::of(fs).unwrap()));
            events.append(&mut sim.take_record());
            bounds.push(bounds[0] + events.len());
            if result.is_err() {
                assert_eq!(
                    states[states.len() - 2],
                    states[states.len() - 1],
                    "{log:#?}"
                );
            }
        }
    });
    rec.add(events);

    let mut machine = rec.at(bounds[0]);
    let events: Vec<_> = rec.events()[bounds[0]..].to_vec();
    let (mut images, mut op) = (0, 0);
    let geo = rec.geometry();
    for (i, e) in events.iter().enumerate() {
        machine.run(e);
        let moment = bounds[0] + i + 1;
        while op + 1 < bounds.len() && bounds[op + 1] <= moment {
            op += 1;
        }
        let candidates: Vec<(&str, Vec<u8>)> = match r.below(8) {
            0 => vec![("all that is certain", machine.least())],
            1 => vec![("all that was stored", machine.most())],
            2 | 3 => vec![("some of what was stored", machine.random(&mut r))],
            4 => {
                let [with, without] = machine.journal_apart(&geo);
                vec![("the journal", with), ("all but the journal", without)]
            }
            _ => vec![],
        };
        for (how, image) in candidates {
            images += 1;
            let at = || {
                let log = log[..(op + 1).min(log.len())].join("\n");
                format!(
                    "seed {seed}, crash at event {moment}, {how}, after:\n{log}\n(the last in progress)"
                )
            };
            let found = match recovered_tree(&image) {
                Ok(t) => shown(t),
                Err(e) => panic!("{}\n{e}", at()),
            };
            let next = states.get(op + 1).unwrap_or(&states[op]);
            assert!(
                found == states[op] || found == *next,
                "{}\n--- against the state before:\n{}--- against the state after:\n{}",
                at(),
                states[op].differences(&found),
                next.differences(&found)
            );
        }
    }
    images
}

#[test]
fn completed_ops_survive_crash_at_any_event() {
    let seeds = match std::env::var("SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=4).collect(),
    };
    for seed in seeds {
        println!("seed {seed}: {} images", run(seed, 60));
    }
}
