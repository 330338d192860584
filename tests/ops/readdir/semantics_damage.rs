//! What readdir shows of a directory with damaged parts.

use pramfs::inode::{Fs, Ino, InodeRefs, Taken};
use pramfs::{Error, ErrorPolicy, MountOptions};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{inode_home, mount, quiet, region_of};

use crate::support::library::{ROOT, file, find, names, small};

/// Name, number, whether there were attributes.
type Listed = (Vec<u8>, Ino, bool);

/// Reads a directory with attributes, in as many calls as needed. Returns the entries,
/// and how it ended.
fn listed(fs: &Fs, dir: Ino) -> (Vec<Listed>, Vec<InodeRefs>, Result<(), Error>) {
    let (mut all, mut held, mut cookie) = (Vec::new(), Vec::new(), 2);
    loop {
        let before = all.len();
        let walked = fs.holding().readdir(dir, cookie, &mut |e, attr| {
            if all.len() - before == 100 {
                return Taken::Full;
            }
            cookie = e.cookie;
            all.push((e.name.to_vec(), e.ino, attr.is_some()));
            Taken::Kept
        });
        let ended = walked.map(|refs| held.push(refs));
        if ended.is_err() || all.len() == before {
            return (all, held, ended);
        }
    }
}

fn change(sim: &SimBackend, at: usize) {
    let region = region_of(sim);
    let byte = !sim.image()[at];
    let pending = region.window().store(at as u64, &[byte]).unwrap();
    let _ = region.window().fence(pending);
}

#[test]
fn damaged_inode_hides_no_other_name() {
    let (sim, fs) = small();
    let inodes: Vec<Ino> = (0..8).map(|n| file(&fs, &format!("file{n}"))).collect();
    fs.close().unwrap();
    change(&sim, inode_home(&sim.image(), inodes[3]) + 0x18);
    let errors = ErrorPolicy::Continue;
    let fs = mount(&sim, MountOptions { errors, ..quiet() }).unwrap();
    assert_eq!(names(&fs, Ino::ROOT).len(), 8);
    let (mut all, _held, ended) = listed(&fs, Ino::ROOT);
    ended.unwrap();
    all.sort();
    for (n, (name, ino, whole)) in all.iter().enumerate() {
        assert_eq!(*name, format!("file{n}").into_bytes());
        assert_eq!((*ino, *whole), (inodes[n], n != 3));
    }
    assert_eq!(all.len(), 8);
    assert_eq!(find(&fs, "file3").unwrap_err().errno(), libc::EUCLEAN);
    assert_eq!(fs.getattr(inodes[4]).unwrap().nlink, 1);
}

/// Entries before a damaged leaf are returned, with their references. The request that
/// starts at the leaf fails and leaves no reference.
#[test]
fn damaged_leaf_hides_only_entries_behind_it() {
    let (sim, fs) = small();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    for n in 0..1000 {
        let name = format!("an entry that is number {n}");
        fs.create(&ROOT, dir, name.as_bytes(), 0o644).unwrap();
    }
    let order = names(&fs, dir);
    let free = fs.statfs().unwrap().free_inodes;
    fs.close().unwrap();
    let (image, last) = (sim.image(), order.last().unwrap());
    // File blocks lie after the journal, which contains the name too.
    let at = image.windows(last.len()).rposition(|w| w == last).unwrap();
    change(&sim, at);
    let errors = ErrorPolicy::Continue;
    let fs = mount(&sim, MountOptions { errors, ..quiet() }).unwrap();
    let (all, held, ended) = listed(&fs, dir);
    assert_eq!(ended.unwrap_err().errno(), libc::EUCLEAN);
    assert!(all.len() > 100 && all.len() < 1000, "{}", all.len());
    for (n, (name, ..)) in all.iter().enumerate() {
        assert_eq!(*name, order[n]);
        fs.unlink(dir, name).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().free_inodes, free);
    drop(held);
    assert_eq!(fs.statfs().unwrap().free_inodes, free + all.len() as u64);
}
