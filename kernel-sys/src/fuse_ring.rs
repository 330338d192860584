//! Requests of `/dev/fuse` over io_uring (Linux 6.14).
//!
//! The kernel has a queue for each processor. An *entry* of a ring serves one queue: it has
//! memory for a request and its reply. The entry is registered once; then the kernel completes
//! it with a request, and gets it back with the reply, by one system call that also waits for
//! the next request.
//!
//! A ring can submit nothing but commands to the connection that it was made for.
//!
//! Invariant: the memory of an entry is the kernel's, unless the entry has [`Arrived`], which
//! exists at most once for a ring and gives it back. The kernel copies only in system calls of
//! the ring's thread, so even then nobody else stores there.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::opcode::UringCmd80;
use io_uring::register::Restriction;
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};
use pramfs_fuse_protocol::numbers::{URING_CMD_COMMIT_AND_FETCH, URING_CMD_REGISTER};
use pramfs_fuse_protocol::wire::{OutHeader, UringCmdReq, UringReqHeader};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of memory for the headers of an entry: a page.
const HEADERS: usize = 4096;

/// Parts of an entry's memory that the kernel is told: headers and payload.
const PARTS: u32 = 2;

/// The offset of `len` in a submission, in units of 4 bytes.
const SQE_LEN: usize = 24 / 4;

/// A queue that no kernel has.
const NO_QUEUE: u16 = u16::MAX;

/// Payload that an idle entry keeps; more of it is given back.
const KEPT: usize = 64 << 10;

/// The connection among the files of a ring.
const CONNECTION: Fixed = Fixed(0);

/// The pause before another try if the kernel lacks memory.
const SHORTAGE: Duration = Duration::from_millis(1);

/// After this time without a request, an entry is idle.
const IDLE: Timespec = Timespec::new().sec(1);

/// A ring with entries for some queues. It belongs to the thread that makes it.
pub struct FuseRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    /// Entries that the kernel has not ended.
    live: usize,
    /// Requests that came while other entries were registered.
    early: Vec<usize>,
    /// Replies that the kernel does not have yet.
    unsent: bool,
    /// The kernel knows one thread of a ring.
    _of_one_thread: PhantomData<*const ()>,
}

/// The parts of an entry's memory, as the kernel is told of them.
type Parts = [libc::iovec; PARTS as usize];

struct Entry {
    queue: u16,
    memory: Memory,
    /// The parts of the memory, for the kernel. A submission that failed stays in the ring with
    /// their address, and the next system call makes it.
    parts: Box<Parts>,
    /// How the kernel calls the request that has arrived.
    commit_id: u64,
    /// Bytes of the payload that may be in memory.
    touched: usize,
}

impl FuseRing {
    /// Makes a ring that can do nothing but serve `connection`, and has no entries yet.
    /// `queues`: how many entries it will have.
    ///
    /// # Errors
    /// EPERM if io_uring is disabled (`kernel.io_uring_disabled`); others of io_uring_setup(2).
    pub fn new(connection: impl AsFd, queues: usize) -> io::Result<FuseRing> {
        let size = u32::try_from(queues.max(1).next_power_of_two()).map_err(io::Error::other)?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_r_disabled()
            .dontfork()
            .build(size)?;
        let connection = connection.as_fd().as_raw_fd();
        ring.submitter().register_files(&[connection])?;
        let mut only = [
            Restriction::sqe_op(UringCmd80::CODE),
            Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits()),
        ];
        ring.submitter().register_restrictions(&mut only)?;
        ring.submitter().register_enable_rings()?;
        Ok(FuseRing {
            ring,
            entries: Vec::new(),
            live: 0,
            early: Vec::new(),
            unsent: false,
            _of_one_thread: PhantomData,
        })
    }

    /// Registers an entry for each of these queues. A reply has at most `payload` bytes beside
    /// its header, and so has a request. INIT must have been answered.
    ///
    /// # Errors
    /// The kernel refuses one; it serves no queue of the connection by io_uring then. Or there
    /// is no memory.
    pub fn register(&mut self, queues: &[u16], payload: usize) -> io::Result<()> {
        for queue in queues {
            let memory = Memory::new(payload)?;
            let parts = Box::new(memory.parts());
            self.entries.push(Entry {
                queue: *queue,
                memory,
                parts,
                commit_id: 0,
                touched: 0,
            });
            let command = self.registration(self.entries.len() - 1);
            self.submit_registration(&command)?;
        }
        match self.refusal() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Makes the kernel serve the connection without io_uring. Possible until all queues have
    /// an entry.
    ///
    /// # Errors
    /// Of io_uring_enter(2).
    pub fn give_up(&mut self) -> io::Result<()> {
        // The kernel refuses an entry for a queue that it does not have, and does so for good.
        let command = self.registration(usize::MAX);
        self.submit_registration(&command)?;
        match self.refusal() {
            Some(_) => Ok(()),
            None => Err(io::Error::other("the kernel has taken a wrong entry")),
        }
    }

    /// Returns the command that registers an entry; one that the kernel refuses if there is no such
    /// entry.
    fn registration(&self, index: usize) -> squeue::Entry128 {
        let (queue, parts, count) = match self.entries.get(index) {
            Some(entry) => (entry.queue, entry.parts.as_ptr(), PARTS),
            None => (NO_QUEUE, std::ptr::null(), 0),
        };
        let mut command = self
            .command(URING_CMD_REGISTER, 0, queue)
            .addr(Some(parts.expose_provenance() as u64))
            .build()
            .user_data(index as u64);
        // The crate has no way to set this field.
        //
        // SAFETY: `Entry128` is repr(C), has 128 bytes, and begins with `io_uring_sqe`, whose
        // field `len` has 4 bytes at offset 24.
        unsafe { (&raw mut command).cast::<u32>().add(SQE_LEN).write(count) };
        command
    }

    fn submit_registration(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        self.push(command)?;
        // After a failure the command stays in the ring, with addresses in its entry.
        self.ring.submit()?;
        self.live += 1;
        Ok(())
    }

    /// Returns the refusal of an entry, if there is one.
    fn refusal(&mut self) -> Option<io::Error> {
        let mut refused = None;
        for done in self.ring.completion() {
            if done.result() < 0 {
                self.live = self.live.saturating_sub(1);
                refused = Some(io::Error::from_raw_os_error(-done.result()));
            } else {
                self.early.extend(usize::try_from(done.user_data()));
            }
        }
        refused
    }

    fn command(&self, command: u32, commit_id: u64, queue: u16) -> UringCmd80 {
        let request = UringCmdReq {
            commit_id,
            qid: queue,
            ..UringCmdReq::default()
        };
        let mut bytes = [0; 80];
        for (to, byte) in bytes.iter_mut().zip(request.as_bytes()) {
            *to = *byte;
        }
        UringCmd80::new(CONNECTION, command).cmd(bytes)
    }

    fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: a command names an entry's memory, which lives as long as the process, and its
        // parts, which have an address of their own and live as long as the ring: no entry is
        // ever taken away, and nothing changes its parts.
        unsafe { self.ring.submission().push(command) }.map_err(io::Error::other)
    }

    /// Sends the replies that were committed, and waits for the next request. Returns `None`
    /// at the end of the connection, or if no entry is registered.
    ///
    /// # Errors
    /// Of io_uring_enter(2). ENOENT and EIO: the kernel does not know the request of a reply,
    /// which also happens while the connection ends.
    pub fn wait_for_request(&mut self) -> io::Result<Option<Arrived<'_>>> {
        let index = loop {
            if let Some(early) = self.early.pop() {
                break early;
            }
            let Some(done) = self.ring.completion().next() else {
                if self.live == 0 {
                    return Ok(None);
                }
                self.wait()?;
                continue;
            };
            match -done.result() {
                0 => break usize::try_from(done.user_data()).unwrap_or(usize::MAX),
                // The connection has ended.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => {
                    self.live = self.live.saturating_sub(1);
                }
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        };
        // No reply waits until another request has been served.
        while self.unsent {
            self.enter(|ring| ring.submit())?;
        }
        if index >= self.entries.len() {
            return Err(io::Error::other(
                "the kernel completes an entry that is not there",
            ));
        }
        let entry = &mut self.entries[index];
        let headers = entry.memory.headers();
        entry.commit_id = headers.ring_ent_in_out.commit_id;
        let len = headers.ring_ent_in_out.payload_sz as usize;
        entry.touched = entry.touched.max(len);
        Ok(Some(Arrived {
            ring: self,
            index,
            headers,
        }))
    }

    fn wait(&mut self) -> io::Result<()> {
        let has_memory = self.entries.iter().any(|entry| entry.touched > KEPT);
        let is_idle = match has_memory {
            true => self.enter(|ring| {
                let until_idle = SubmitArgs::new().timespec(&IDLE);
                ring.submitter().submit_with_args(1, &until_idle)
            })?,
            false => self.enter(|ring| ring.submit_and_wait(1))?,
        };
        // A request that has arrived lies in the memory.
        if is_idle && self.ring.completion().is_empty() {
            self.give_memory_back();
        }
        Ok(())
    }

    /// Makes a call of io_uring_enter(2), or pauses if the kernel lacks memory for it. Returns
    /// whether it has waited in vain.
    fn enter(
        &mut self,
        call: impl FnOnce(&mut IoUring<squeue::Entry128, cqueue::Entry>) -> io::Result<usize>,
    ) -> io::Result<bool> {
        let done = call(&mut self.ring);
        self.unsent = !self.ring.submission().is_empty();
        match done.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::EINTR), _)) => Ok(false),
            Err((Some(libc::ETIME), _)) => Ok(true),
            Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM), _)) => {
                std::thread::sleep(SHORTAGE);
                Ok(false)
            }
            Err((_, error)) => Err(error),
        }
    }

    fn give_memory_back(&mut self) {
        for entry in &mut self.entries {
            entry.memory.give_back(entry.touched);
            entry.touched = entry.touched.min(KEPT);
        }
    }
}

/// A request that has arrived. The server owns its entry until the reply.
pub struct Arrived<'r> {
    ring: &'r mut FuseRing,
    index: usize,
    headers: UringReqHeader,
}

impl Arrived<'_> {
    /// The headers.
    pub fn headers(&self) -> &UringReqHeader {
        &self.headers
    }

    /// The payload: as much of it as the headers say is the request's, and all of it is room
    /// for the reply.
    pub fn payload(&mut self) -> &mut [u8] {
        self.ring.entries[self.index].memory.payload()
    }

    /// Notes a reply, which is sent when the ring waits for the next request. `len` bytes of
    /// the payload belong to it.
    ///
    /// # Errors
    /// The kernel does not take submissions.
    pub fn reply(self, header: &OutHeader, len: usize) -> io::Result<()> {
        let entry = &mut self.ring.entries[self.index];
        let len = len.min(entry.memory.len);
        entry.touched = entry.touched.max(len);
        entry.memory.answer(header, len as u32);
        let (commit_id, queue) = (entry.commit_id, entry.queue);
        let command = self
            .ring
            .command(URING_CMD_COMMIT_AND_FETCH, commit_id, queue)
            .build()
            .user_data(self.index as u64);
        self.ring.unsent = true;
        self.ring.push(&command)
    }
}

/// The memory of an entry: a page for the headers, then the payload. It is never unmapped,
/// because the kernel may keep its address as long as the connection lives.
struct Memory {
    start: NonNull<u8>,
    /// Bytes of the payload.
    len: usize,
}

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        let whole = len
            .checked_add(HEADERS)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, len })
    }

    fn parts(&self) -> [libc::iovec; PARTS as usize] {
        let part = |offset: usize, len| libc::iovec {
            // The end of the headers lies in the mapping.
            iov_base: self.start.as_ptr().wrapping_add(offset).cast(),
            iov_len: len,
        };
        [part(0, HEADERS), part(HEADERS, self.len)]
    }

    fn headers(&self) -> UringReqHeader {
        // SAFETY: the first page of the mapping, which is never unmapped. Nobody stores to it,
        // as the module says.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), HEADERS) };
        // It is shorter than a page.
        UringReqHeader::read_from_prefix(bytes)
            .map_or_else(|_| UringReqHeader::default(), |(h, _)| h)
    }

    fn answer(&mut self, header: &OutHeader, len: u32) {
        let mut headers = self.headers();
        for (to, byte) in headers.in_out.iter_mut().zip(header.as_bytes()) {
            *to = *byte;
        }
        headers.ring_ent_in_out.payload_sz = len;
        // SAFETY: as in `headers`; `self` is borrowed exclusively.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), HEADERS) };
        for (to, byte) in bytes.iter_mut().zip(headers.as_bytes()) {
            *to = *byte;
        }
    }

    fn payload(&mut self) -> &mut [u8] {
        // SAFETY: the rest of the mapping, which is never unmapped; `self` is borrowed
        // exclusively, and nobody else stores to it, as the module says.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(HEADERS), self.len) }
    }

    /// Gives back what is beyond [`KEPT`] of the first `touched` bytes.
    fn give_back(&mut self, touched: usize) {
        let Some(beyond) = touched.min(self.len).checked_sub(KEPT).filter(|n| *n > 0) else {
            return;
        };
        // SAFETY: whole pages of the mapping, in which no reference exists; the kernel maps
        // zeros in their place. A failure leaves them as they are.
        unsafe {
            let from = self.start.as_ptr().add(HEADERS + KEPT);
            libc::madvise(from.cast(), beyond, libc::MADV_DONTNEED)
        };
    }
}

/// The kernel's switch of FUSE over io_uring.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel offers requests over io_uring (`fuse.enable_uring`), as far as it says so:
/// `None` if it does not know of it.
pub fn is_enabled() -> Option<bool> {
    let text = std::fs::read_to_string(SWITCH).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_set_where_the_kernel_reads_it() {
        let mut command = UringCmd80::new(Fixed(3), 1).addr(Some(0x1122)).build();
        // SAFETY: as in `registration`.
        unsafe { (&raw mut command).cast::<u32>().add(SQE_LEN).write(2) };
        assert_eq!(size_of_val(&command), 128);
        // SAFETY: plain memory of 128 bytes.
        let bytes: [u8; 128] = unsafe { std::mem::transmute_copy(&command) };
        assert_eq!(bytes[16..24], 0x1122u64.to_le_bytes());
        assert_eq!(bytes[24..28], 2u32.to_le_bytes());
        let mut expected = [0; 128];
        expected[0] = UringCmd80::CODE;
        expected[1] = squeue::Flags::FIXED_FILE.bits();
        expected[4] = 3;
        expected[8] = 1;
        expected[16..24].copy_from_slice(&0x1122u64.to_le_bytes());
        expected[24] = 2;
        assert_eq!(bytes, expected);
    }

    #[test]
    fn memory_of_entry_is_given_back_beyond_what_is_kept() {
        let mut memory = Memory::new(1 << 20).unwrap();
        memory.payload().fill(7);
        memory.give_back(1 << 20);
        assert_eq!(memory.payload()[KEPT - 1], 7);
        assert!(memory.payload()[KEPT..].iter().all(|byte| *byte == 0));
        memory.payload().fill(8);
        memory.give_back(KEPT);
        assert!(memory.payload().iter().all(|byte| *byte == 8));
        let header = OutHeader {
            len: 16,
            error: -5,
            unique: 9,
        };
        memory.answer(&header, 3);
        let headers = memory.headers();
        assert_eq!(headers.in_out[..16], *header.as_bytes());
        assert_eq!(headers.ring_ent_in_out.payload_sz, 3);
    }

    /// A ring on a file that is no connection. `None` without io_uring.
    fn ring() -> Option<FuseRing> {
        let file = std::fs::File::open("/dev/null").unwrap();
        FuseRing::new(&file, 2)
            .inspect_err(|error| println!("SKIPPED: no io_uring: {error}"))
            .ok()
    }

    /// Also if the system call that makes it fails: the next one makes it.
    #[test]
    fn registration_names_memory_that_stays_where_it_is() {
        let Some(mut ring) = ring() else { return };
        let named = |ring: &FuseRing| {
            let command = ring.registration(0);
            // SAFETY: plain memory of 128 bytes.
            let bytes: [u8; 128] = unsafe { std::mem::transmute_copy(&command) };
            u64::from_le_bytes(*bytes[16..].first_chunk().unwrap())
        };
        // Whether `/dev/null` takes such a command depends on the kernel.
        let _answer = ring.register(&[0], 8192);
        let at = named(&ring);
        assert_eq!(at, ring.entries[0].parts.as_ptr().addr() as u64);
        for queue in 1..40 {
            let _answer = ring.register(&[queue], 8192);
        }
        let moved = Box::new(ring);
        assert_eq!(named(&moved), at);
        let [headers, payload] = *moved.entries[0].parts;
        assert_eq!((headers.iov_len, payload.iov_len), (HEADERS, 8192));
    }

    /// The kernel refuses what the restrictions do not name.
    #[test]
    fn ring_does_nothing_but_commands_to_its_file() {
        let Some(mut ring) = ring() else { return };
        let nothing = io_uring::squeue::Entry128::from(io_uring::opcode::Nop::new().build());
        let unfixed = nothing.clone();
        let fixed = nothing.flags(squeue::Flags::FIXED_FILE);
        for entry in [unfixed, fixed] {
            // SAFETY: it names no memory.
            unsafe { ring.ring.submission().push(&entry) }.unwrap();
            ring.ring.submit_and_wait(1).unwrap();
            let done: Vec<i32> = ring.ring.completion().map(|done| done.result()).collect();
            assert_eq!(done, [-libc::EACCES]);
        }
        // For good.
        let more = ring.ring.submitter().register_files(&[0]);
        assert_eq!(more.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn register_on_unmounted_device_fails() {
        let device = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse");
        let Ok(device) = device else {
            println!("SKIPPED: /dev/fuse cannot be opened");
            return;
        };
        let mut ring = match FuseRing::new(&device, 1) {
            Ok(ring) => ring,
            Err(error) => {
                println!("SKIPPED: no io_uring: {error}");
                return;
            }
        };
        assert!(ring.register(&[0], 8192).is_err());
    }
}
