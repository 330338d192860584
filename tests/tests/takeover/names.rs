//! A thread that makes, moves and removes names, and knows what there must be.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use pramfs_tests::random::Random;
use rustix::fs::{CWD, RenameFlags, XattrFlags};

/// Most files at a time.
const FILES: usize = 60;

/// The directory of the thread, and the contents of its files.
struct Work {
    dir: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
    random: Random,
    made: u64,
    changes: u64,
}

/// Works until `done`, and checks all names and contents. Returns the number of changes.
pub fn work(dir: &Path, seed: u64, done: &AtomicBool) -> u64 {
    let mut work = Work {
        dir: crate::fresh(dir).to_owned(),
        files: BTreeMap::new(),
        random: Random::new(seed),
        made: 0,
        changes: 0,
    };
    while !done.load(Ordering::Relaxed) {
        work.step();
    }
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    assert!(names.iter().eq(work.files.keys()), "{names:?}");
    for (path, contents) in &work.files {
        assert!(fs::read(path).unwrap() == *contents, "{}", path.display());
    }
    work.changes
}

impl Work {
    fn step(&mut self) {
        let full = self.files.len() >= FILES;
        match self.random.below(9) {
            0..3 if !full => self.create(),
            3 => self.rename(),
            4 => self.exchange(),
            5 => self.append(),
            6 => self.directory(),
            7 => self.link(),
            _ if full => self.unlink(),
            _ => self.read(),
        }
    }

    fn new_name(&mut self) -> PathBuf {
        self.made += 1;
        self.dir.join(self.made.to_string())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 + self.random.below(3000) as usize];
        self.random.fill(&mut bytes);
        bytes
    }

    fn any(&mut self) -> Option<PathBuf> {
        let nth = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(nth).cloned()
    }

    fn create(&mut self) {
        let (path, bytes) = (self.new_name(), self.bytes());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all(&bytes).unwrap();
        self.changes += 1;
        if self.random.one_in(3) {
            // It stays as long as it is open, whoever serves.
            fs::remove_file(&path).unwrap();
            let mut there = vec![0; bytes.len()];
            file.read_exact_at(&mut there, 0).unwrap();
            assert!(there == bytes, "an open file without a name");
            self.changes += 1;
        } else {
            self.files.insert(path, bytes);
        }
    }

    fn rename(&mut self) {
        if let Some(from) = self.any() {
            let to = self.new_name();
            fs::rename(&from, &to).unwrap();
            let bytes = self.files.remove(&from).unwrap();
            self.files.insert(to, bytes);
            self.changes += 1;
        }
    }

    fn exchange(&mut self) {
        if let (Some(one), Some(other)) = (self.any(), self.any())
            && one != other
        {
            rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            let [a, b] = [&one, &other].map(|path| self.files.remove(path).unwrap());
            self.files.insert(one, b);
            self.files.insert(other, a);
            self.changes += 1;
        }
    }

    fn append(&mut self) {
        if let Some(path) = self.any() {
            let bytes = self.bytes();
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(&bytes).unwrap();
            let contents = self.files.get_mut(&path).unwrap();
            contents.extend(bytes);
            if contents.len() > 20_000 {
                contents.truncate(10);
                file.set_len(10).unwrap();
            }
        }
    }

    fn directory(&mut self) {
        let dir = self.new_name();
        fs::create_dir(&dir).unwrap();
        let link = dir.join("link");
        std::os::unix::fs::symlink("target", &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("target"));
        fs::remove_file(&link).unwrap();
        fs::remove_dir(&dir).unwrap();
        self.changes += 4;
    }

    fn link(&mut self) {
        if let Some(from) = self.any() {
            let to = self.new_name();
            fs::hard_link(&from, &to).unwrap();
            rustix::fs::setxattr(&to, "user.a", b"value", XattrFlags::CREATE).unwrap();
            rustix::fs::removexattr(&to, "user.a").unwrap();
            fs::remove_file(&from).unwrap();
            let bytes = self.files.remove(&from).unwrap();
            self.files.insert(to, bytes);
            self.changes += 4;
        }
    }

    fn unlink(&mut self) {
        if let Some(path) = self.any() {
            fs::remove_file(&path).unwrap();
            self.files.remove(&path);
            self.changes += 1;
        }
    }

    fn read(&mut self) {
        if let Some(path) = self.any() {
            let mut there = Vec::new();
            std::io::Read::read_to_end(&mut File::open(&path).unwrap(), &mut there).unwrap();
            assert!(there == self.files[&path], "{}", path.display());
        }
    }
}
