//! O_APPEND with direct I/O: one write is many concurrent requests.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pramfs_tests::mounted::wait_until;
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::{MIB, mounted};

/// More parts of 1 MiB than serving threads.
const LEN: usize = 8 << 20;
const ROUNDS: usize = 20;

/// `LEN` bytes with distinct words, aligned for O_DIRECT.
struct Words {
    memory: Vec<u8>,
    start: usize,
}

impl Words {
    fn new() -> Words {
        let mut memory = vec![0; LEN + 4096];
        let start = memory.as_ptr().align_offset(4096);
        for (n, word) in memory[start..][..LEN].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&n.to_ne_bytes());
        }
        Words { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..LEN]
    }
}

fn append_to(path: &Path, flags: i32) -> File {
    OpenOptions::new()
        .append(true)
        .create(true)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

/// Makes one write by io_submit(2), as libaio does. Returns its result as from write(2).
fn submit(file: &File, bytes: &[u8]) -> Result<usize, Errno> {
    const PWRITE: u16 = 1;
    // SAFETY: the kernel's structures are plain numbers, for which zeros are valid. The
    // kernel reads `bytes` and writes `context` and `event` only during these calls,
    // because io_getevents waits for the one request.
    unsafe {
        let mut context: libc::c_ulong = 0;
        let mut request: libc::iocb = std::mem::zeroed();
        request.aio_fildes = file.as_raw_fd() as u32;
        request.aio_lio_opcode = PWRITE;
        request.aio_buf = bytes.as_ptr() as u64;
        request.aio_nbytes = bytes.len() as u64;
        let list = [&raw mut request];
        // data, obj, res, res2
        let mut event = [0i64; 4];
        assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &raw mut context), 0);
        let submitted = libc::syscall(libc::SYS_io_submit, context, 1, list.as_ptr());
        assert_eq!(submitted, 1, "{}", std::io::Error::last_os_error());
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        let waited = libc::syscall(
            libc::SYS_io_getevents,
            context,
            1,
            1,
            event.as_mut_ptr(),
            no_timeout,
        );
        assert_eq!(waited, 1, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::syscall(libc::SYS_io_destroy, context), 0);
        usize::try_from(event[2]).map_err(|_| Errno::from_raw_os_error(-event[2] as i32))
    }
}

#[test]
fn large_append_keeps_request_order() {
    let Some((mount, _dog)) = mounted("large appends", "threads=4") else {
        return;
    };
    let words = Words::new();
    for round in 0..ROUNDS {
        let path = mount.at(format!("submitted{round}"));
        // Makes the end of the file unaligned.
        fs::write(&path, "before").unwrap();
        let file = append_to(&path, libc::O_DIRECT);
        assert_eq!(submit(&file, words.bytes()), Ok(LEN));
        let got = fs::read(&path).unwrap();
        assert!(
            got.starts_with(b"before") && got[6..] == *words.bytes(),
            "submitted, round {round}"
        );
        fs::remove_file(&path).unwrap();

        let path = mount.at(format!("switched{round}"));
        let mut file = append_to(&path, 0);
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND | OFlags::DIRECT).unwrap();
        file.write_all(words.bytes()).unwrap();
        assert!(
            fs::read(&path).unwrap() == words.bytes(),
            "O_DIRECT after open, round {round}"
        );
        fs::remove_file(&path).unwrap();
    }
}

/// Its requests take effect in order, so the append ends where space ends.
#[test]
fn large_append_on_full_region_is_short() {
    let Some((mount, _dog)) = mounted("append on a full region", "threads=4") else {
        return;
    };
    let words = Words::new();
    let path = mount.at("log");
    fs::write(&path, "before").unwrap();
    let filler = File::create_new(mount.at("filler")).unwrap();
    let available = || rustix::fs::statvfs(mount.path()).unwrap().f_bavail * 4096;
    let filled = available() - 7 * MIB / 2;
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, filled).unwrap();
    let file = append_to(&path, libc::O_DIRECT);
    let written = submit(&file, words.bytes()).unwrap();
    assert!(written > 0 && written < LEN, "{written}");
    let got = fs::read(&path).unwrap();
    assert!(got.starts_with(b"before") && got[6..] == words.bytes()[..written]);
    assert_eq!(submit(&file, words.bytes()), Err(Errno::NOSPC));
    assert_eq!(fs::metadata(&path).unwrap().len(), 6 + written as u64);
    drop(filler);
    fs::remove_file(mount.at("filler")).unwrap();
    // The kernel forgets a removed file at an unspecified time.
    assert!(wait_until(|| available() > 2 * LEN as u64));
    assert_eq!(submit(&file, words.bytes()), Ok(LEN));
    assert!(fs::read(&path).unwrap()[6 + written..] == *words.bytes());
}

#[test]
fn concurrent_mixed_appends_are_atomic() {
    let Some((mount, _dog)) = mounted("mixed appends", "threads=4") else {
        return;
    };
    const PIECE: usize = 2 << 20;
    const PIECES: usize = 4;
    let path = mount.at("log");
    fs::write(&path, "").unwrap();
    std::thread::scope(|scope| {
        for way in 0..3u8 {
            let path = &path;
            scope.spawn(move || {
                let mut words = Words::new();
                let start = words.start;
                words.memory[start..].fill(b'a' + way);
                let bytes = &words.bytes()[..PIECE];
                let mut file = append_to(path, if way == 0 { 0 } else { libc::O_DIRECT });
                for _ in 0..PIECES {
                    match way {
                        2 => assert_eq!(submit(&file, bytes), Ok(PIECE)),
                        _ => assert_eq!(file.write(bytes).unwrap(), PIECE),
                    }
                }
            });
        }
    });
    let log = fs::read(&path).unwrap();
    assert_eq!(log.len(), 3 * PIECES * PIECE);
    for (n, piece) in log.chunks(PIECE).enumerate() {
        assert!(piece.iter().all(|byte| *byte == piece[0]), "piece {n}");
    }
}

/// `RWF_NOAPPEND`, since Linux 6.9: the write goes to its offset despite O_APPEND.
#[test]
fn write_with_rwf_noappend_uses_its_offset() {
    let Some((mount, _dog)) = mounted("RWF_NOAPPEND", "") else {
        return;
    };
    let no_append = ReadWriteFlags::from_bits_retain(0x20);
    for flags in [0, libc::O_DIRECT] {
        let path = mount.at(format!("file{flags}"));
        fs::write(&path, "0123456789").unwrap();
        let file = append_to(&path, flags);
        match rustix::io::pwritev2(&file, &[IoSlice::new(b"ab")], 3, no_append) {
            Err(Errno::OPNOTSUPP) => {
                pramfs_tests::skip::skipped("the kernel has no RWF_NOAPPEND");
                return;
            }
            written => assert_eq!(written, Ok(2)),
        }
        assert_eq!(fs::read(&path).unwrap(), b"012ab56789");
    }
}
