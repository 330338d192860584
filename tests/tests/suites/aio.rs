//! Linux asynchronous I/O, one request at a time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// `struct iocb` of linux/aio_abi.h on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    reqprio: i16,
    fildes: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

/// A context of requests.
pub struct Aio(libc::c_ulong);

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

impl Aio {
    pub fn new() -> io::Result<Aio> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup stores one word there.
        check(unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) })?;
        Ok(Aio(context))
    }

    pub fn read(&self, file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.one(PREAD, file, into.as_mut_ptr() as u64, into.len(), at)
    }

    pub fn write(&self, file: &File, from: &[u8], at: u64) -> io::Result<usize> {
        self.one(PWRITE, file, from.as_ptr() as u64, from.len(), at)
    }

    /// Submits a request and waits for it, so that its buffer outlives it.
    fn one(&self, opcode: u16, file: &File, buf: u64, len: usize, at: u64) -> io::Result<usize> {
        let mut request = Iocb {
            opcode,
            fildes: file.as_raw_fd() as u32,
            buf,
            nbytes: len as u64,
            offset: at as i64,
            ..Iocb::default()
        };
        let mut list = [&raw mut request];
        // SAFETY: one request, whose buffer the caller holds until its completion.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()) })?;
        let mut event = IoEvent::default();
        loop {
            let none = std::ptr::null_mut::<libc::timespec>();
            let event = &raw mut event;
            // SAFETY: the buffer has room for the one requested event.
            let got =
                check(unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, event, none) });
            match got {
                Ok(1) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        match event.res {
            done @ 0.. => Ok(done as usize),
            error => Err(io::Error::from_raw_os_error(-error as i32)),
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: we own the context, and no request of it is in progress.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
