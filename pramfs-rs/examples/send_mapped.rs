//! Sends a file from persistent memory to sockets, with no buffer in between:
//! the source of the system call is the medium itself.
//!
//! ```sh
//! cargo run --release -p pramfs --example send_mapped [-- REGION]
//! ```
//! With a region, the file is `/send_mapped.data` in it; without, the region
//! is anonymous memory that ends with the program. A peer in another thread
//! takes the bytes in and compares their CRC.
//!
//! `send_zerocopy` asks the kernel to do without a copy of its own too. To a
//! peer on the same machine it cannot, and says so; to a network device that
//! can gather it does.

use std::error::Error;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Instant;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{Access, File, FileSystem, MountOptions, OpenOptions};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const LEN: u64 = 8 << 20;

fn open(region: Option<&Path>) -> Result<FileSystem> {
    let region = match region {
        Some(path) => RegionOptions::new().open(path)?,
        None => {
            let region = RegionOptions::new().memfd("send_mapped", 32 << 20)?;
            format(&region, &FormatOptions::default())?;
            region
        }
    };
    Ok(FileSystem::mount(region, MountOptions::default())?)
}

/// A file of `LEN` bytes, filled in place: stores to its mapped blocks, and
/// one persist.
fn fill(fs: &FileSystem) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(fs, "/send_mapped.data")?;
    file.set_len(LEN)?;
    let view = file.map(0..LEN, Access::Write)?;
    for at in (0..LEN).step_by(8) {
        view.store::<u64>(at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15))?;
    }
    view.persist(0..LEN)?;
    Ok(file)
}

/// Takes everything in; gives the number of bytes and their CRC32C.
fn receiver(mut from: impl Read + Send + 'static) -> JoinHandle<std::io::Result<(u64, u32)>> {
    std::thread::spawn(move || {
        let (mut bytes, mut crc) = (0, 0);
        let mut buffer = vec![0; 1 << 16];
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok((bytes, crc)),
                n => {
                    bytes += n as u64;
                    crc = crc32c::crc32c_append(crc, &buffer[..n]);
                }
            }
        }
    })
}

fn arrived(peer: JoinHandle<std::io::Result<(u64, u32)>>, crc: u32) -> Result<()> {
    let got = peer
        .join()
        .map_err(|_| "the receiving thread has panicked")??;
    if got == (LEN, crc) {
        Ok(())
    } else {
        Err(format!(
            "{} bytes arrived, with CRC {:#010x} and not {crc:#010x}",
            got.0, got.1
        )
        .into())
    }
}

/// Everything the example does.
///
/// # Errors
/// Those of the region, of the sockets, and bytes that arrive changed.
pub fn run(region: Option<&Path>) -> Result<()> {
    let fs = open(region)?;
    let file = fill(&fs)?;
    let view = file.map(0..LEN, Access::Read)?;
    let mut bytes = vec![0; LEN as usize];
    view.read(0, &mut bytes)?;
    let crc = crc32c::crc32c(&bytes);
    drop(bytes);
    let extents = view.extents().len();
    println!("{LEN} bytes, CRC {crc:#010x}; extents: {extents}");

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let peer = receiver(listener.accept()?.0);
    let start = Instant::now();
    let sent = view.send_zerocopy(&socket, 0..LEN)?;
    println!(
        "TCP, MSG_ZEROCOPY: {} bytes in {:?}; the kernel {}",
        sent.bytes,
        start.elapsed(),
        if sent.copied {
            "made a copy (the peer is on this machine)"
        } else {
            "made no copy either"
        },
    );
    drop(socket);
    arrived(peer, crc)?;

    let (socket, theirs) = UnixStream::pair()?;
    let peer = receiver(theirs);
    let start = Instant::now();
    let written = view.write_to(&socket, 0..LEN)?;
    println!(
        "unix socket, write(2) from the mapping: {written} bytes in {:?}",
        start.elapsed()
    );
    drop(socket);
    arrived(peer, crc)?;
    println!("all bytes arrived unchanged");
    drop((view, file));
    fs.unmount()?;
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    let region = args.next();
    if args.next().is_some() {
        return Err("usage: send_mapped [REGION]".into());
    }
    run(region.as_deref().map(Path::new))
}
