//! Sends lines of the log as datagrams, to the socket of syslogd or journald.
//!
//! Invariant: no line waits long. The reader of the socket may itself wait for a mount of this
//! server, such as that of `/var/log`, and a server that waited for the reader then would
//! never answer it. So a line that the socket does not take in a short time is lost, and those
//! after it are not waited for at all until one is taken again. One thread waits at most: the
//! lines of the others are lost meanwhile if there is no room. Lost lines are counted, and the
//! first line that is taken again comes after one that says how many they were.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix};

/// How long the first line waits for a reader that is slow. Its queue may hold ten lines only.
const PATIENCE: Duration = Duration::from_millis(100);

/// Lines are taken, and one that finds no room may wait.
const FLOWS: u8 = 0;
/// A line waits.
const WAITS: u8 = 1;
/// A line has waited in vain, and none has been taken since.
const STUCK: u8 = 2;

/// A socket that somebody else reads.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UnixDatagram,
    path: PathBuf,
    /// [`FLOWS`], [`WAITS`] or [`STUCK`]. Only the line that waits ends its wait.
    state: AtomicU8,
    /// Lines that were not taken.
    lost: AtomicU64,
    /// Those of them of which no line in the log says so yet.
    unsaid: AtomicU64,
    /// How many lines have waited.
    #[cfg(test)]
    waits: AtomicU64,
}

impl Datagrams {
    /// Makes one to the socket of a path, which need not exist yet: whoever reads it may start
    /// later, or again.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub(super) fn to(path: &Path) -> io::Result<Datagrams> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Datagrams {
            socket,
            path: path.to_owned(),
            state: AtomicU8::new(FLOWS),
            lost: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
            #[cfg(test)]
            waits: AtomicU64::new(0),
        })
    }

    /// Whether somebody has the socket, by a datagram without contents.
    ///
    /// # Errors
    /// Why nobody can be reached.
    pub(super) fn reach(&self) -> io::Result<()> {
        match self.put(&[], SendFlags::DONTWAIT) {
            Ok(()) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a line, or loses it. `notice` makes the line that says how many are lost, which waits
    /// for nobody.
    pub(super) fn send(&self, line: &[u8], notice: impl FnOnce(u64) -> Vec<u8>) {
        let unsaid = self.unsaid.swap(0, Ordering::Relaxed);
        let is_said = unsaid == 0 || self.put_now(&notice(unsaid)).is_ok();
        let is_lost = !is_said || self.put_patiently(line).is_err();
        self.lost.fetch_add(is_lost.into(), Ordering::Relaxed);
        let again = if is_said { 0 } else { unsaid };
        let unsaid = again.saturating_add(is_lost.into());
        self.unsaid.fetch_add(unsaid, Ordering::Relaxed);
    }

    /// How many lines are lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sends a datagram if there is room.
    fn put_now(&self, datagram: &[u8]) -> Result<(), Errno> {
        self.put(datagram, SendFlags::DONTWAIT)?;
        self.step(STUCK, FLOWS);
        Ok(())
    }

    /// Sends a datagram, and waits for room unless another one does, or has done so in vain.
    fn put_patiently(&self, datagram: &[u8]) -> Result<(), Errno> {
        match self.put_now(datagram) {
            // Before the wait: whoever comes during it does not wait.
            Err(Errno::AGAIN) if self.step(FLOWS, WAITS) => {}
            done => return done,
        }
        #[cfg(test)]
        self.waits.fetch_add(1, Ordering::Relaxed);
        let done = self.put(datagram, SendFlags::empty());
        let state = if done.is_ok() { FLOWS } else { STUCK };
        self.state.store(state, Ordering::Relaxed);
        done
    }

    /// Goes from one state to another, if it is in that one.
    fn step(&self, from: u8, to: u8) -> bool {
        let order = Ordering::Relaxed;
        self.state.compare_exchange(from, to, order, order).is_ok()
    }

    fn put(&self, datagram: &[u8], mut flags: SendFlags) -> Result<(), Errno> {
        let address = SocketAddrUnix::new(&self.path)?;
        loop {
            match rustix::net::sendto(&self.socket, datagram, flags, &address) {
                Ok(_) => return Ok(()),
                // Signals that come again and again would make the wait begin anew each time.
                Err(Errno::INTR) => flags = SendFlags::DONTWAIT,
                Err(error) => return Err(error),
            }
        }
    }
}

/// What the line says that comes after lost ones.
pub(super) fn notice(lost: u64) -> String {
    format!("{lost} lines of the log were lost: its socket was not read in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lost: u64) -> Vec<u8> {
        notice(lost).into_bytes()
    }

    fn waits(lines: &Datagrams) -> u64 {
        lines.waits.load(Ordering::Relaxed)
    }

    /// What there is to read.
    fn read(reader: &UnixDatagram) -> Vec<String> {
        reader.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4096];
        let mut lines = Vec::new();
        while let Ok(len) = reader.recv(&mut bytes) {
            lines.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
        }
        lines
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let reader = UnixDatagram::bind(&path).unwrap();
        let lines = Datagrams::to(&path).unwrap();
        lines.reach().unwrap();
        // Each returns, although nobody reads.
        let mut taken = 0;
        while lines.lost() == 0 {
            lines.send(format!("line {taken}").as_bytes(), said);
            taken += 1;
        }
        for _ in 0..1000 {
            lines.send(b"more", said);
        }
        assert_eq!(lines.lost(), 1001);
        assert_eq!(waits(&lines), 1, "only the first one waits");
        lines.reach().expect("somebody has the socket");

        let read_first = read(&reader);
        assert_eq!(read_first.len(), taken, "with the one without contents");
        lines.send(b"later", said);
        lines.send(b"last", said);
        assert_eq!(read(&reader), [notice(1001).as_str(), "later", "last"]);
        assert_eq!(lines.lost(), 1001);

        // The next one that finds no room waits again.
        while lines.lost() == 1001 {
            lines.send(b"again", said);
        }
        assert_eq!(waits(&lines), 2);
    }

    #[test]
    fn lines_of_many_threads_that_nobody_reads_wait_once_in_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _reader = UnixDatagram::bind(&path).unwrap();
        let lines = Datagrams::to(&path).unwrap();
        // Full: the threads lose all.
        while lines.put(b"fill", SendFlags::DONTWAIT).is_ok() {}
        let (threads, each) = (16, 100);
        let begin = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    begin.wait();
                    for _ in 0..each {
                        lines.send(b"line", said);
                    }
                });
            }
        });
        assert_eq!(waits(&lines), 1);
        assert_eq!(lines.lost(), threads as u64 * each);
        assert_eq!(lines.unsaid.load(Ordering::Relaxed), lines.lost());
    }

    #[test]
    fn lines_go_to_reader_that_starts_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let lines = Datagrams::to(&path).unwrap();
        assert_eq!(lines.reach().unwrap_err().kind(), io::ErrorKind::NotFound);
        lines.send(b"early", said);
        for _ in 0..2 {
            let reader = UnixDatagram::bind(&path).unwrap();
            lines.send(b"line", said);
            assert_eq!(read(&reader), [notice(1).as_str(), "line"]);
            drop(reader);
            lines.send(b"between", said);
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(lines.lost(), 3);
    }
}
