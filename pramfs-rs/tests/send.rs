//! Views handed to sockets: every byte arrives, and nothing hangs or dies on a
//! peer that is slow, full or gone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Region, RegionOptions, install_fault_guard};
use pramfs::{Access, Error, File, MountOptions, OpenOptions, inode::Fs};

const LEN: usize = 3 << 20;

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

fn mounted(region: Region) -> Fs {
    format(&region, &FormatOptions::default()).unwrap();
    Fs::open(region, MountOptions::default()).unwrap()
}

fn in_memory() -> Fs {
    mounted(RegionOptions::new().memfd("send", 16 << 20).unwrap())
}

/// A file of `LEN` bytes whose extents lie apart from one another.
fn scattered(fs: &Fs) -> File {
    let [file, other] = ["/file", "/other"].map(|p| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(fs, p)
            .unwrap()
    });
    for piece in pattern(LEN).chunks(64 << 10) {
        file.append(piece).unwrap();
        other.append(&[0; 4096]).unwrap();
    }
    assert!(file.extents(0..LEN as u64).unwrap().len() > 10);
    file
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

#[test]
fn send_delivers_every_byte_to_tcp_peer() {
    let fs = in_memory();
    let view = scattered(&fs).map(0..LEN as u64, Access::Read).unwrap();
    let (ours, mut theirs) = tcp_pair();
    let peer = std::thread::spawn(move || {
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        got
    });
    let sent = view.send_zerocopy(&ours, 0..LEN as u64).unwrap();
    assert_eq!(sent.bytes, LEN as u64);
    // Again on the same socket, a part, and by the plain way.
    assert_eq!(view.send_zerocopy(&ours, 5..70_000).unwrap().bytes, 69_995);
    assert_eq!(view.write_to(&ours, 4090..9000).unwrap(), 4910);
    drop(ours);
    let whole = pattern(LEN);
    let expected = [&whole[..], &whole[5..70_000], &whole[4090..9000]].concat();
    assert!(peer.join().unwrap() == expected);
}

#[test]
fn send_to_unix_socket_reports_copy() {
    let fs = in_memory();
    let view = scattered(&fs).map(100..5000, Access::Read).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let sent = view.send_zerocopy(&ours, 0..4900).unwrap();
    assert_eq!((sent.bytes, sent.copied), (4900, true));
    let mut got = vec![0; 4900];
    theirs.read_exact(&mut got).unwrap();
    assert!(got == pattern(LEN)[100..5000]);
}

#[test]
fn send_to_full_descriptor_is_short_then_eagain() {
    let fs = in_memory();
    let view = scattered(&fs).map(0..LEN as u64, Access::Read).unwrap();
    for zerocopy in [false, true] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let send = || {
            if zerocopy {
                view.send_zerocopy(&ours, 0..LEN as u64).map(|s| s.bytes)
            } else {
                view.write_to(&ours, 0..LEN as u64)
            }
        };
        let first = send().unwrap();
        assert!(first > 0 && first < LEN as u64, "{first}");
        assert_eq!(send().unwrap_err().errno(), libc::EAGAIN);
        drop(theirs);
    }
}

#[test]
fn send_to_closed_peer_fails_without_signal() {
    let fs = in_memory();
    let view = scattered(&fs).map(0..LEN as u64, Access::Read).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert_eq!(
        view.send_zerocopy(&ours, 0..9).unwrap_err().errno(),
        libc::EPIPE
    );
    // A TCP peer that closes with bytes unread resets the connection; pages
    // that were under way come back all the same.
    let (mut ours, mut theirs) = tcp_pair();
    ours.write_all(b"unread").unwrap();
    theirs.write_all(b"x").unwrap();
    let peer = std::thread::spawn(move || {
        let mut first = [0; 3];
        theirs.read_exact(&mut first).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
    });
    let ended = loop {
        match view.send_zerocopy(&ours, 0..LEN as u64) {
            Ok(_) => {}
            Err(e) => break e.errno(),
        }
    };
    assert!([libc::EPIPE, libc::ECONNRESET].contains(&ended), "{ended}");
    peer.join().unwrap();
}

#[test]
fn send_checks_ranges() {
    let fs = in_memory();
    let view = scattered(&fs).map(0..4096, Access::Read).unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    for range in [4000..4097, 4097..4097, 10..9, 8..u64::MAX] {
        assert!(
            matches!(view.write_to(&ours, range.clone()), Err(Error::Invalid(_))),
            "{range:?}"
        );
        assert!(matches!(
            view.send_zerocopy(&ours, range),
            Err(Error::Invalid(_))
        ));
    }
    assert_eq!(view.write_to(&ours, 4096..4096).unwrap(), 0);
    assert_eq!(view.send_zerocopy(&ours, 0..0).unwrap().bytes, 0);
}

/// The file behind the region is cut: EIO, whether the kernel or this process
/// meets the missing page first.
#[test]
fn send_of_truncated_page_fails_with_eio() {
    install_fault_guard().unwrap();
    let place = if Path::new("/dev/shm").is_dir() {
        "/dev/shm".into()
    } else {
        std::env::temp_dir()
    };
    let dir = tempfile::tempdir_in(place).unwrap();
    let path = dir.path().join("region");
    let fs = mounted(RegionOptions::new().create(&path, 16 << 20).unwrap());
    let view = scattered(&fs).map(0..LEN as u64, Access::Read).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(matches!(
        view.write_to(&ours, 0..4096),
        Err(Error::Io { .. })
    ));
    assert!(matches!(
        view.send_zerocopy(&ours, 8192..9000),
        Err(Error::Io { .. })
    ));
    assert!(matches!(view.load::<u64>(0), Err(Error::Io { .. })));
    assert!(matches!(
        view.write_to(&ours, 0..4096),
        Err(Error::Io { .. })
    ));
}
