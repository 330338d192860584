//! Passes views to the kernel: system calls that take their bytes from the medium itself,
//! without an intermediate buffer of ours.
//!
//! Invariant: when a call returns, the kernel no longer references the view. For this
//! reason vmsplice(2) is not offered: pages given to a pipe may be read long after, when
//! they hold the bytes of another file.
//!
//! Not handled here: whether a page of the view has faulted (`direct` checks before and
//! after). An inaccessible page is EFAULT here, not a SIGBUS.

use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::StitchedMap;
use crate::pmem::error::PmemError;

/// From asm-generic/socket.h; the libc crate has no name for it.
const SO_ZEROCOPY: i32 = 60;
/// From linux/errqueue.h.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// From linux/errqueue.h: the kernel made a copy after all.
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
/// Bytes of one send; the pinned part of a view grows in these steps.
const CHUNK: u64 = 1 << 20;
/// Delay before an error queue that should hold a report is read again.
const PAUSE: Duration = Duration::from_millis(1);

/// The result of sending bytes from a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Bytes that the socket accepted. Fewer than requested only on a non-blocking socket,
    /// or on one that failed meanwhile; the next call returns the error.
    pub bytes: u64,
    /// The kernel copied some of them, because
    /// * the socket is of a kind that does not send pages (unix sockets),
    /// * the peer is on this machine,
    /// * the network device cannot gather, or
    /// * too little memory may be locked (`ulimit -l`).
    pub copied: bool,
}

fn failed(what: &'static str, source: Error) -> PmemError {
    PmemError::Os {
        what,
        path: "a mapped file".into(),
        source,
    }
}

impl StitchedMap {
    /// Writes a range to a descriptor, directly from the medium: the kernel copies it once,
    /// to its destination. Returns the bytes written, fewer than requested if the
    /// descriptor accepts no more at the moment.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Os`] with the error of write(2) for the
    /// first byte.
    pub fn write_to(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, PmemError> {
        let from = self.at(offset, len)?;
        take_all(len, |done| {
            // SAFETY: `from + done .. from + len` lies in the view, which is mapped for the
            // life of self. The kernel only reads there, and allows for concurrent changes.
            let n = unsafe {
                libc::write(
                    fd.as_raw_fd(),
                    from.add(done as usize).cast(),
                    (len - done) as usize,
                )
            };
            u64::try_from(n).map_err(|_| Error::last_os_error())
        })
        .map_err(|e| failed("cannot write", e))
    }

    /// Sends a range to a connected socket with MSG_ZEROCOPY, and waits until the kernel no
    /// longer needs the pages: with TCP, until the peer has acknowledged them. If the
    /// kernel needs a copy, it makes one, and [`Sent::copied`] reports it.
    ///
    /// Meanwhile no other code may use MSG_ZEROCOPY on this socket or read its error queue.
    /// A peer that reads nothing makes the call wait, on a non-blocking socket too.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Os`] with the error of send(2) for the
    /// first byte.
    pub fn send_zerocopy(
        &self,
        socket: BorrowedFd<'_>,
        offset: u64,
        len: u64,
    ) -> Result<Sent, PmemError> {
        let from = self.at(offset, len)?;
        let mut pages = Pages::new(socket);
        let sent = take_all(len, |done| {
            let n = (len - done).min(CHUNK) as usize;
            loop {
                let flags = libc::MSG_NOSIGNAL | pages.flag();
                // SAFETY: as in write_to. With MSG_ZEROCOPY the kernel also reads the pages
                // after the call: it holds references to them, and `finish` below waits until
                // none remain.
                let n = unsafe {
                    libc::send(socket.as_raw_fd(), from.add(done as usize).cast(), n, flags)
                };
                match u64::try_from(n) {
                    Ok(n) => {
                        pages.sent(n);
                        return Ok(n);
                    }
                    Err(_) => {
                        let e = Error::last_os_error();
                        if e.raw_os_error() != Some(libc::ENOBUFS) || !pages.make_room() {
                            return Err(e);
                        }
                    }
                }
            }
        });
        pages.finish();
        Ok(Sent {
            bytes: sent.map_err(|e| failed("cannot send", e))?,
            copied: pages.copied,
        })
    }
}

/// Calls `some` until it has accepted `len` bytes, passing the number accepted so far.
/// Bytes accepted before an error count.
fn take_all(len: u64, mut some: impl FnMut(u64) -> Result<u64, Error>) -> Result<u64, Error> {
    let mut done = 0;
    while done < len {
        match some(done) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The sends of one socket whose pages the kernel still holds.
struct Pages<'a> {
    socket: BorrowedFd<'a>,
    /// Whether MSG_ZEROCOPY is in use.
    on: bool,
    copied: bool,
    /// Number of sends that use it, and how many of them the kernel has reported as done.
    calls: u32,
    done: u32,
}

impl<'a> Pages<'a> {
    fn new(socket: BorrowedFd<'a>) -> Pages<'a> {
        let one: libc::c_int = 1;
        // SAFETY: the option takes an int, whose address and size are given.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_ZEROCOPY,
                (&raw const one).cast(),
                size_of_val(&one) as libc::socklen_t,
            )
        };
        Pages {
            socket,
            on: set == 0,
            copied: set != 0,
            calls: 0,
            done: 0,
        }
    }

    fn flag(&self) -> libc::c_int {
        if self.on { libc::MSG_ZEROCOPY } else { 0 }
    }

    fn sent(&mut self, bytes: u64) {
        if self.on && bytes > 0 {
            self.calls += 1;
        }
    }

    /// Handles ENOBUFS: no more pages may be locked. Waits for pages to be released, or
    /// continues without MSG_ZEROCOPY. Returns false if that was not the cause.
    fn make_room(&mut self) -> bool {
        if !self.on {
            return false;
        }
        if self.done < self.calls {
            self.wait();
        } else {
            (self.on, self.copied) = (false, true);
        }
        true
    }

    /// Returns when the kernel holds no more pages.
    fn finish(&mut self) {
        while self.done < self.calls {
            self.wait();
        }
    }

    /// Waits for the error queue to be readable, and drains it.
    fn wait(&mut self) {
        let mut fd = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // poll always reports errors. Read the queue whatever poll returns.
        // SAFETY: one structure, at its address, for the length of the call.
        let _ = unsafe { libc::poll(&mut fd, 1, -1) };
        let before = self.done;
        while let Some((sends, copied)) = self.report() {
            self.done = self.done.saturating_add(sends);
            self.copied |= copied;
        }
        if self.done == before {
            // A broken connection polls as an error before its pages are released.
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the next report of the error queue: how many sends are done, and whether
    /// they were copied.
    fn report(&self) -> Option<(u32, bool)> {
        #[repr(C, align(8))]
        struct Control([u8; 256]);
        let mut control = Control([0; 256]);
        // SAFETY: a zeroed msghdr names no buffer.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the header names one buffer, with its true size, which outlives the call.
        let got = unsafe {
            libc::recvmsg(
                self.socket.as_raw_fd(),
                &mut message,
                libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
            )
        };
        if got < 0 {
            return None;
        }
        let (mut sends, mut copied) = (0u32, false);
        // SAFETY: the header is as recvmsg left it, with the buffer in place.
        let mut head = unsafe { libc::CMSG_FIRSTHDR(&message) };
        while !head.is_null() {
            // SAFETY: not null, so it points to a control message within the buffer, which is
            // aligned for it.
            let (level, kind, len) = unsafe {
                (
                    (*head).cmsg_level,
                    (*head).cmsg_type,
                    (*head).cmsg_len as usize,
                )
            };
            let of_errors = (level, kind) == (libc::SOL_IP, libc::IP_RECVERR)
                || (level, kind) == (libc::SOL_IPV6, libc::IPV6_RECVERR);
            let need = size_of::<libc::sock_extended_err>();
            // SAFETY: CMSG_LEN only computes.
            if of_errors && len >= unsafe { libc::CMSG_LEN(need as u32) } as usize {
                // SAFETY: the message holds at least that structure.
                let e = unsafe {
                    libc::CMSG_DATA(head)
                        .cast::<libc::sock_extended_err>()
                        .read_unaligned()
                };
                if e.ee_errno == 0 && e.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
                    // The range is inclusive at both ends.
                    sends =
                        sends.saturating_add(e.ee_data.wrapping_sub(e.ee_info).saturating_add(1));
                    copied |= e.ee_code == SO_EE_CODE_ZEROCOPY_COPIED;
                }
            }
            // SAFETY: as for CMSG_FIRSTHDR.
            head = unsafe { libc::CMSG_NXTHDR(&message, head) };
        }
        Some((sends, copied))
    }
}
