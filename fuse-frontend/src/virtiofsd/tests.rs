//! What the adapters of guests keep out of page caches.

use std::path::PathBuf;

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Ino, LeaseMode};
use pramfs::pmem::RegionOptions;
use pramfs_fuse_protocol::flags::{InitFlags, OpenOutFlags};
use pramfs_fuse_protocol::wire::{InHeader, OpenIn, OpenOut};
use pramfs_fuse_protocol::{Errno, Operation};

use super::*;
use crate::adapter::{Answer, Reply};

const ROOT: &Credentials<'static> = &Credentials::ROOT;

/// Formats a region in a directory of its own.
fn formatted() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    (dir, path)
}

fn open(path: &Path) -> Arc<Fs> {
    let region = RegionOptions::new().open(path).unwrap();
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    Arc::new(Fs::open(region, options).unwrap())
}

/// Keeps how a file was opened.
struct Heard<'h>(&'h mut Option<Result<OpenOut, Errno>>);

impl Reply for Heard<'_> {
    fn send(self, answer: Answer<'_>) {
        *self.0 = Some(match answer {
            Answer::Opened(opened) => Ok(opened),
            Answer::Refused(errno) => Err(errno),
            _ => panic!("another answer"),
        });
    }

    fn dismiss(self) {}
}

/// Whether a guest gets a file opened past its page cache.
fn bypasses(adapter: &Adapter, ino: Ino) -> bool {
    let header = InHeader {
        nodeid: ino.0,
        ..InHeader::default()
    };
    let open = Operation::Open(OpenIn {
        flags: libc::O_RDWR.cast_unsigned(),
        ..OpenIn::default()
    });
    let mut opened = None;
    adapter
        .of_guest()
        .serve_request(&header, open, Heard(&mut opened));
    let flags = opened.unwrap().unwrap().open_flags;
    flags.contains(OpenOutFlags::DIRECT_IO)
}

#[test]
fn guests_that_map_files_have_no_page_cache_if_there_are_several() {
    let (_dir, path) = formatted();
    let fs = open(&path);
    let file = fs.create(ROOT, Ino::ROOT, b"file", 0o644).unwrap().ino;
    for others_map in [false, true] {
        let adapter = adapter_of(&fs, CacheMode::Auto, others_map);
        assert_eq!(bypasses(&adapter, file), others_map);
        let mapped_past_cache = adapter.wanted().contains(InitFlags::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(mapped_past_cache, !others_map);
    }
}

#[test]
fn file_with_lease_of_earlier_server_stays_out_of_page_cache() {
    let (_dir, path) = formatted();
    let fs = open(&path);
    let [stored, other] = [&b"stored"[..], b"other"].map(|name| {
        let made = fs.create(ROOT, Ino::ROOT, name, 0o644).unwrap();
        (made.ino, made.generation)
    });
    let (pid, uid) = (std::process::id(), 0);
    let lease = fs.grant_lease(stored.0, stored.1, LeaseMode::Write, pid, uid);
    // What the process that stores has.
    let held = lease.unwrap().descriptor().unwrap();
    Arc::into_inner(fs).unwrap().close().unwrap();
    let fs = open(&path);
    let adapter = adapter_of(&fs, CacheMode::Auto, false);
    assert!(bypasses(&adapter, stored.0));
    assert!(!bypasses(&adapter, other.0));
    drop(held);
}
