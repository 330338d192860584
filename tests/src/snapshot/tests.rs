//! A difference of each kind, planted under each tolerance.

use std::collections::BTreeMap;

use pramfs::{
    FileType,
    inode::{Ino, Time},
};

use super::*;

const FILE: &[u8] = b"/dir/file";
const SIZE: u64 = 20;

fn time(sec: i64) -> Time {
    Time { sec, nsec: 0 }
}

fn node(ino: u64, kind: FileType) -> Node {
    Node {
        id: (Ino(ino), 7),
        kind,
        perm: 0o644,
        nlink: 1,
        owner: (1, 2),
        rdev: 0,
        size: 0,
        blocks: 8,
        times: (time(100), time(100)),
        flags: 0,
        data: Sparse::default(),
        xattrs: BTreeMap::from([(b"user.a".to_vec(), b"value".to_vec())]),
        allocated: vec![(0, 4096, false)],
    }
}

/// A directory, and in it a file of ones and a link.
fn snapshot() -> Snapshot {
    let mut file = node(12, FileType::Regular);
    (file.size, file.data) = (SIZE, Sparse::from(&[1; SIZE as usize][..]));
    let mut link = node(13, FileType::Symlink);
    (link.size, link.data) = (6, Sparse::from(&b"target"[..]));
    let nodes = [
        (&b"/"[..], node(1, FileType::Directory)),
        (b"/dir", node(11, FileType::Directory)),
        (FILE, file),
        (b"/dir/link", link),
    ];
    Snapshot {
        nodes: nodes.map(|(path, n)| (path.to_vec(), n)).into(),
        free: 1000,
        free_inodes: 100,
        label: "label".into(),
        unread: BTreeMap::new(),
    }
}

type Change = fn(&mut Node);

/// A change of each field, by name.
const FIELDS: [(&str, Change); 15] = [
    ("ino", |n| n.id.0 = Ino(99)),
    ("generation", |n| n.id.1 += 1),
    ("kind", |n| n.kind = FileType::Fifo),
    ("perm", |n| n.perm = 0o600),
    ("nlink", |n| n.nlink += 1),
    ("owner", |n| n.owner.0 += 1),
    ("group", |n| n.owner.1 += 1),
    ("rdev", |n| n.rdev += 1),
    ("size", |n| n.size += 1),
    ("blocks", |n| n.blocks += 1),
    ("mtime", |n| n.times.0.nsec = 1),
    ("ctime", |n| n.times.1.nsec = 1),
    ("flags", |n| n.flags |= 1),
    ("data", |n| n.data.write(3, b"x")),
    ("allocated", |n| n.allocated[0].2 = true),
];

const XATTRS: [(&str, Change); 3] = [
    ("xattr value", |n| {
        n.xattrs.insert(b"user.a".to_vec(), b"valuf".to_vec());
    }),
    ("xattr lost", |n| n.xattrs.clear()),
    ("xattr added", |n| {
        n.xattrs.insert(b"user.b".to_vec(), Vec::new());
    }),
];

fn changed(path: &[u8], change: Change) -> Snapshot {
    let mut s = snapshot();
    change(s.nodes.get_mut(path).expect("it is there"));
    s
}

/// Asserts which of the changes of a node a tolerance lets pass.
#[track_caller]
fn passes(path: &[u8], tolerance: &Tolerance<'_>, names: &[&str]) {
    let right = snapshot();
    assert!(
        right.allows(&right, tolerance),
        "the same under {tolerance:?}"
    );
    for (name, change) in FIELDS.iter().chain(&XATTRS) {
        let found = changed(path, *change);
        let allowed = right.allows(&found, tolerance);
        assert_eq!(allowed, names.contains(name), "{name} under {tolerance:?}");
        let text = right.differences_beyond(&found, tolerance);
        assert_eq!(text.is_empty(), allowed, "{name}: {text}");
    }
}

/// A snapshot with a name more, with one less, and with other totals.
fn other_names() -> [Snapshot; 5] {
    let mut all = [(); 5].map(|()| snapshot());
    all[0]
        .nodes
        .insert(b"/more".to_vec(), node(50, FileType::Fifo));
    all[1].nodes.remove(FILE);
    all[2].label.push('x');
    all[3].free -= 1;
    all[4].free_inodes -= 1;
    all
}

#[track_caller]
fn names_and_totals(tolerance: &Tolerance<'_>, allowed: [bool; 5]) {
    let right = snapshot();
    let found = other_names().map(|s| right.allows(&s, tolerance));
    assert_eq!(found, allowed, "more, less, label, free, free inodes");
}

#[test]
fn exact_comparison_detects_each_difference() {
    for path in [&b"/"[..], b"/dir", FILE, b"/dir/link"] {
        passes(path, &Tolerance::Exact, &[]);
    }
    names_and_totals(&Tolerance::Exact, [false; 5]);
    for s in other_names() {
        assert!(!snapshot().differences(&s).is_empty());
    }
}

#[test]
fn any_time_stands_for_times_alone() {
    let mut right = snapshot();
    let file = right.nodes.get_mut(FILE).expect("it is there");
    file.times = (ANY_TIME, ANY_TIME);
    for (name, change) in FIELDS.iter().chain(&XATTRS) {
        let allowed = right.allows(&changed(FILE, *change), &Tolerance::Exact);
        assert_eq!(allowed, ["mtime", "ctime"].contains(name), "{name}");
    }
}

#[test]
fn lag_allows_listed_times_of_that_inode_alone() {
    let (older, mixed) = ((time(50), time(60)), (time(50), time(100)));
    let lag = Lag::from([(Ino(12), vec![older])]);
    let tolerance = Tolerance::Lag(&lag);
    passes(FILE, &tolerance, &[]);
    names_and_totals(&tolerance, [false; 5]);
    let with = |path: &[u8], times, also: Change| {
        let mut s = changed(path, also);
        s.nodes.get_mut(path).expect("it is there").times = times;
        snapshot().allows(&s, &tolerance)
    };
    assert!(with(FILE, older, |_| ()));
    assert!(!with(FILE, mixed, |_| ()));
    assert!(!with(b"/dir/link", older, |_| ()));
    for (name, change) in FIELDS.iter().filter(|f| !f.0.contains("time")) {
        assert!(!with(FILE, older, *change), "{name} with older times");
    }
}

/// A write of twos from byte 4 on, to a file of 20 ones, up to byte 30.
fn write() -> Snapshot {
    changed(FILE, |n| {
        n.data.write(4, &[2; 26]);
        (n.size, n.blocks, n.times) = (30, 16, (time(200), time(200)));
        n.allocated[0].1 = 8192;
    })
}

fn cut<'a>(after: &'a Snapshot, none: &'a Lag) -> Cut<'a> {
    Cut {
        after,
        ino: Ino(12),
        range: 4..30,
        lag: [none, none],
    }
}

#[test]
fn cut_allows_change_of_bytes_of_that_file_alone() {
    let (after, none) = (write(), Lag::new());
    let cut = cut(&after, &none);
    let tolerance = Tolerance::Cut(&cut);
    assert!(snapshot().allows(&after, &tolerance), "all of it");
    for path in [&b"/"[..], b"/dir", b"/dir/link"] {
        passes(path, &tolerance, &[]);
    }
    // A size between the two needs bytes that are new.
    passes(FILE, &tolerance, &["blocks", "allocated"]);
    names_and_totals(&tolerance, [false; 5]);
    for (times, allowed) in [
        ((100, 100), true),
        ((200, 200), true),
        ((100, 200), true),
        ((200, 100), false),
        ((150, 150), false),
    ] {
        let mut s = snapshot();
        let file = s.nodes.get_mut(FILE).expect("it is there");
        file.times = (time(times.0), time(times.1));
        assert_eq!(snapshot().allows(&s, &tolerance), allowed, "{times:?}");
    }
    let mut s = snapshot();
    s.nodes.get_mut(FILE).expect("it is there").blocks = 17;
    assert!(!snapshot().allows(&s, &tolerance), "too many blocks");
}

#[test]
fn cut_file_has_whole_words_and_prefix() {
    let (after, none) = (write(), Lag::new());
    let allows = |size: u64, twos: &[(u64, u64)]| {
        let found = changed(FILE, |_| ());
        let mut found = found;
        let n = found.nodes.get_mut(FILE).expect("it is there");
        n.size = size;
        n.data.zero(size, u64::MAX);
        for (from, to) in twos {
            n.data.write(*from, &vec![2; (to - from) as usize]);
        }
        snapshot().allows(&found, &Tolerance::Cut(&cut(&after, &none)))
    };
    assert!(allows(20, &[]));
    assert!(allows(20, &[(8, 16)]));
    assert!(allows(20, &[(4, 8), (16, 20)]));
    assert!(allows(25, &[(4, 8), (16, 25)]));
    assert!(allows(30, &[(4, 30)]));
    assert!(!allows(20, &[(8, 12)]), "half a word");
    assert!(!allows(20, &[(17, 20)]), "a part of the last word");
    assert!(!allows(20, &[(0, 4)]), "bytes before the range");
    assert!(!allows(19, &[]), "too short");
    assert!(!allows(31, &[(4, 31)]), "too long");
    assert!(!allows(25, &[(4, 20)]), "a hole past the old end");
    assert!(!allows(25, &[(20, 25)]), "a torn word at the old end");
    assert!(
        !allows(30, &[(4, 22), (23, 30)]),
        "a hole in what was added"
    );
}

fn damage<'a>(
    hits: &'a dyn Fn(&[Ino]) -> bool,
    hits_xattrs: &'a dyn Fn(Ino) -> bool,
) -> Damage<'a> {
    let changed = None;
    Damage {
        hits,
        hits_xattrs,
        changed,
    }
}

#[test]
fn damage_changes_nothing_that_is_read() {
    let damage = damage(&|_| true, &|_| true);
    let tolerance = Tolerance::Damage(&damage);
    // What the tests of damage change themselves.
    let lags = ["blocks", "mtime", "ctime", "allocated"];
    passes(FILE, &tolerance, &lags);
    let of_others = [&lags[..], &["size", "data"]].concat();
    passes(b"/dir", &tolerance, &of_others);
    passes(b"/dir/link", &tolerance, &[&lags[..], &["size"]].concat());
    // A missing name needs a reason.
    names_and_totals(&tolerance, [false, false, true, true, true]);
}

/// The snapshot without a part, with the errno of its reading.
fn unread(path: &[u8], part: Part, errno: i32) -> Snapshot {
    let mut s = snapshot();
    let n = s.nodes.get_mut(path).expect("it is there");
    match &part {
        Part::Node => drop(s.nodes.remove(path)),
        Part::Bytes(at) => n.data.zero(*at, at + 512),
        Part::Target => n.data = Sparse::default(),
        Part::Xattr(name) => drop(n.xattrs.remove(name)),
        Part::XattrNames => n.xattrs.clear(),
        Part::Names | Part::Unlisted => {}
    }
    s.unread.insert((path.to_vec(), part), errno);
    s
}

#[test]
fn damage_may_be_reported_only_of_what_it_hits() {
    let parts = [
        (FILE, Part::Node, false),
        (FILE, Part::Bytes(0), false),
        (b"/dir", Part::Names, false),
        (b"/dir/link", Part::Target, false),
        (FILE, Part::XattrNames, true),
        (FILE, Part::Xattr(b"user.a".to_vec()), true),
    ];
    for (path, part, xattrs) in parts {
        let found = |errno| unread(path, part.clone(), errno);
        let allows = |s: &Snapshot, hit: u64, xattrs_hit: u64| {
            let (way, attributes) = (
                move |way: &[Ino]| way.contains(&Ino(hit)),
                move |ino: Ino| ino == Ino(xattrs_hit),
            );
            let damage = damage(&way, &attributes);
            snapshot().allows(s, &Tolerance::Damage(&damage))
        };
        let reported = found(libc::EUCLEAN);
        let ino = snapshot().nodes[path].id.0.0;
        assert!(allows(&reported, ino, 0), "{part:?} of what is hit");
        assert!(allows(&reported, 11, 0), "{part:?} below what is hit");
        assert!(!allows(&reported, 77, 0), "{part:?} of another");
        assert_eq!(allows(&reported, 77, ino), xattrs, "{part:?} of attributes");
        assert!(
            !allows(&found(libc::EIO), ino, ino),
            "{part:?} by another error"
        );
    }
    let all = damage(&|_| true, &|_| true);
    let tolerance = Tolerance::Damage(&all);
    let mut strange = snapshot();
    let stranger = (b"/dir/stranger".to_vec(), Part::Node);
    strange.unread.insert(stranger, libc::EUCLEAN);
    let name = Part::Xattr(b"user.strange".to_vec());
    for found in [
        unread(FILE, Part::Unlisted, 0),
        unread(FILE, name, libc::EUCLEAN),
        strange,
    ] {
        assert!(!snapshot().allows(&found, &tolerance), "{:?}", found.unread);
    }
}

#[test]
fn damage_hides_no_difference_beside_unread_part() {
    let all = damage(&|_| true, &|_| true);
    let tolerance = Tolerance::Damage(&all);
    let mut right = snapshot();
    let long = Sparse::from(&[5; 2000][..]);
    let file = right.nodes.get_mut(FILE).expect("it is there");
    (file.size, file.data) = (2000, long);
    let mut found = right.clone();
    let file = found.nodes.get_mut(FILE).expect("it is there");
    file.data.zero(512, 1024);
    assert!(!right.allows(&found, &tolerance));
    found
        .unread
        .insert((FILE.to_vec(), Part::Bytes(512)), libc::EUCLEAN);
    assert!(right.allows(&found, &tolerance));
    for at in [511, 1024] {
        let mut found = found.clone();
        let file = found.nodes.get_mut(FILE).expect("it is there");
        file.data.write(at, b"x");
        assert!(!right.allows(&found, &tolerance), "byte {at}");
    }
}

#[test]
fn repair_keeps_what_was_readable() {
    let tolerance = Tolerance::Repair;
    let may = [
        "generation",
        "perm",
        "nlink",
        "owner",
        "group",
        "rdev",
        "blocks",
        "mtime",
        "ctime",
        "flags",
        "allocated",
        "xattr added",
    ];
    passes(FILE, &tolerance, &may);
    passes(b"/dir", &tolerance, &[&may[..], &["size", "data"]].concat());
    passes(b"/dir/link", &tolerance, &may);
    names_and_totals(&tolerance, [true, false, true, true, true]);
}

#[test]
fn repair_may_bring_back_what_was_unreadable() {
    let tolerance = Tolerance::Repair;
    for (path, part) in [
        (FILE, Part::Node),
        (FILE, Part::Bytes(0)),
        (FILE, Part::XattrNames),
        (b"/dir/link", Part::Target),
    ] {
        let half = unread(path, part.clone(), libc::EUCLEAN);
        assert!(half.allows(&snapshot(), &tolerance), "{part:?} is back");
        assert!(half.allows(&half, &tolerance), "{part:?} is not back");
        assert!(!snapshot().allows(&half, &tolerance), "{part:?} is lost");
    }
    let mut gone = snapshot();
    gone.nodes.remove(&b"/dir/link"[..]);
    let broken = unread(b"/dir/link", Part::Target, libc::EUCLEAN);
    assert!(broken.allows(&gone, &tolerance), "a link to nowhere");
}

#[test]
fn snapshot_without_ids_keeps_links_together() {
    let linked = |ino| {
        let mut s = snapshot();
        s.nodes
            .insert(b"/other".to_vec(), node(ino, FileType::Regular));
        s.without(&[Trait::Ids])
    };
    let (same, other) = (linked(12), linked(60));
    assert!(same.nodes[&b"/other"[..]].id == same.nodes[FILE].id);
    assert!(!same.allows(&other, &Tolerance::Exact));
    assert!(other.allows(&linked(61), &Tolerance::Exact));
}

#[test]
fn snapshot_without_trait_keeps_all_others() {
    let all = |n: &mut Node| FIELDS.iter().for_each(|(_, change)| change(n));
    for (t, gone) in [
        (Trait::Times, &["mtime", "ctime"][..]),
        (Trait::Ctime, &["ctime"]),
        (Trait::Blocks, &["blocks"]),
        (Trait::Allocated, &["allocated"]),
        (Trait::DirectorySizes, &["size"]),
        (Trait::Ids, &["ino", "generation"]),
        (Trait::Generations, &["generation"]),
    ] {
        let right = snapshot().without(&[t]);
        for (name, change) in FIELDS {
            let found = changed(b"/dir", change).without(&[t]);
            let same = right.allows(&found, &Tolerance::Exact);
            assert_eq!(same, gone.contains(&name), "{name} without {t:?}");
        }
    }
    let mut s = snapshot();
    all(s.nodes.get_mut(FILE).expect("it is there"));
    assert!(!snapshot().allows(&s, &Tolerance::Exact));
}

#[test]
fn changed_inode_may_show_anything_and_no_other() {
    let changed = Some(Ino(12));
    let damage = Damage {
        hits: &|_| false,
        hits_xattrs: &|_| false,
        changed,
    };
    let tolerance = Tolerance::Damage(&damage);
    for (name, change) in FIELDS.iter().chain(&XATTRS) {
        let mut right = snapshot();
        right
            .nodes
            .insert(b"/dir/file/below".to_vec(), node(20, FileType::Fifo));
        for (path, allowed) in [(FILE, true), (b"/dir/file/below", true), (b"/", false)] {
            let mut found = right.clone();
            change(found.nodes.get_mut(path).expect("it is there"));
            let tested = ["blocks", "mtime", "ctime", "allocated", "size", "data"];
            if !tested.contains(name) || allowed {
                assert_eq!(right.allows(&found, &tolerance), allowed, "{name}");
            }
        }
    }
    let allows = |s: &Snapshot| snapshot().allows(s, &tolerance);
    assert!(allows(&unread(FILE, Part::Node, libc::EIO)));
    assert!(
        !allows(&unread(FILE, Part::Node, libc::ENOENT)),
        "not listed"
    );
    assert!(!allows(&unread(FILE, Part::Unlisted, 0)));
    assert!(!allows(&unread(b"/dir", Part::Names, libc::EUCLEAN)));
    let mut gone = snapshot();
    gone.nodes.remove(FILE);
    assert!(!allows(&gone), "neither there nor reported");
}
