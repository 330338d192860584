//! read, write, fallocate, lseek and copy_file_range.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pramfs::inode::{Credentials, Fs};
use pramfs::{Fallocate, SeekWhence, inode::Ino};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::flags::WriteFlags;
use pramfs_fuse_protocol::numbers::UNIQUE_RESEND;
use pramfs_fuse_protocol::wire::{CopyFileRangeIn, InHeader, WriteIn};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};
use pramfs_medium::pmem::Lent;

use super::Adapter;
use super::answer::{Answer, Reply};
use super::attributes::drop_rights;
use super::caller::{Caller, CallerIds};
use super::convert::{Node, ino};
use super::enospc_retry::PendingFrees;
use super::init::MAX_REQUEST;
use super::lent;
use super::serve::{Refusal, Served};

thread_local! {
    /// Buffer for reads that cannot be answered directly from the medium. Each serving
    /// thread keeps one, as long as its largest request so far.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Limit of bytes for one copy_file_range request, because it occupies its serving thread.
const MAX_COPY: u64 = 16 << 20;

/// Longest wait of a part of an append for the parts before it.
const EARLIER_PARTS: Duration = Duration::from_millis(200);

pub(super) fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        work(&mut buffer[..len])
    })
}

/// Reads all that the file has of a range. Returns how much it is.
fn read_to(fs: &Fs, ino: Ino, offset: u64, buffer: &mut [u8]) -> Served<usize> {
    let got = fs.read(ino, offset, buffer)?;
    if got < buffer.len() {
        // End of file, or an error.
        fs.read(ino, offset + got as u64, &mut [0])?;
    }
    Ok(got.min(buffer.len()))
}

impl Adapter {
    /// Sends a contiguous range directly from the mapped region, by the one `writev` of
    /// the reply.
    ///
    /// The kernel treats a short answer as the end of the file: it shows zeros behind it
    /// and may adopt it as the size. So a read returns all requested bytes or an error. If
    /// a request reaches into a lost range, the kernel asks again, page by page.
    pub(super) fn on_read<R: Reply>(&self, node: Node, offset: u64, size: u32, reply: R) {
        let size = size as usize;
        let work = |fs: &Fs, reply: &mut Option<R>| {
            let ino = ino(node)?;
            if let Some(room) = reply.room(size) {
                let got = read_to(fs, ino, offset, room)?;
                reply.take().send_room(got);
                return Ok(());
            }
            let mut lend = |bytes: Lent<'_>| {
                if let Some(reply) = reply.take() {
                    lent::send(reply, bytes);
                }
            };
            // Other processes store to the bytes of some files: those are copied.
            let may_lend = self.opens.as_ref().map(|opens| opens.lend(ino));
            if may_lend.as_ref().is_none_or(Option::is_some)
                && fs.with_contiguous(ino, offset, size, &mut lend)?.is_some()
            {
                return Ok(());
            }
            drop(may_lend);
            with_buffer(size, |buffer| {
                let got = read_to(fs, ino, offset, buffer)?;
                reply.take().send(Answer::Data(&buffer[..got]));
                Ok(())
            })
        };
        // Nothing lent and no error: end of file.
        self.serve("read", node, Some(reply), work, |reply, ()| {
            reply.send(Answer::Data(&[]))
        });
    }

    pub(super) fn on_write(&self, req: &InHeader, arg: &WriteIn, data: &[u8], reply: impl Reply) {
        let (node, offset, flags) = (Node(req.nodeid), arg.offset, arg.flags.cast_signed());
        let (paged, len) = (arg.write_flags.contains(WriteFlags::CACHE), data.len());
        let forbidden = Cell::new(false);
        let work = |fs: &Fs, _: &mut _| {
            let ino = ino(node)?;
            if arg.write_flags.contains(WriteFlags::KILL_SUIDGID) {
                fs.strip_suid(ino)?;
            } else if !paged {
                // The kernel checks this attribute only for writes through the page cache.
                let has_rights = fs.strip_capability(ino)?;
                // Without the flag the caller has CAP_FSETID. Through overlayfs, that is the user
                // who mounted it, and the program may have no right to it.
                if has_rights && CallerIds::of(req) == CallerIds::Withheld {
                    drop_rights(fs, req, ino, flags & libc::O_APPEND != 0)?;
                }
            }
            // An append uses the offset of the kernel as well. The kernel locks the inode
            // until all parts of an append are answered, and sends its parts of 1 MiB
            // concurrently, so they arrive in any order. Its file size is correct, because
            // nothing else changes the size (docs/semantics.md, Appends). Write-back of a
            // mapping is never an append, whatever the flags.
            //
            // Exception: the holder of a lease appends without the kernel, whose size of the
            // file is too small then, and after the lease until somebody asks for it. So the
            // bytes go where the engine has the end. Another's append may come between two
            // parts. This ignores RWF_NOAPPEND, which the request does not show, and cannot
            // help RWF_APPEND, which looks like a write at that offset.
            let is_member = Caller::in_group(req);
            let caller = Caller::credentials(req, &is_member);
            let written = if paged {
                let written = self.write_back(fs, ino, offset, data);
                let refused = written.as_ref().err().map(Refusal::errno);
                forbidden.set(refused == Some(Errno::EPERM));
                written?
            } else if flags & libc::O_APPEND != 0
                && let Some(opens) = &self.opens
                && opens.may_have_grown(ino)
            {
                wait_for_earlier_parts(fs, ino, offset, opens.are_all_written())?;
                self.removals
                    .wait_for_space(fs, || fs.append(&caller, ino, data))?;
                data.len()
            } else if flags & libc::O_APPEND != 0 {
                let done = match req.unique & UNIQUE_RESEND {
                    0 => 0,
                    _ => appended_before(fs, ino, offset, data)?,
                };
                let (at, rest) = (offset + done as u64, &data[done..]);
                if done == 0 || !rest.is_empty() {
                    self.removals
                        .wait_for_space(fs, || fs.append_chunk(&caller, ino, at, rest))?;
                }
                data.len()
            } else {
                self.removals
                    .wait_for_space(fs, || fs.write(&caller, ino, offset, data))?
            };
            if flags & libc::O_DSYNC != 0 {
                fs.fsync(ino, flags & libc::O_SYNC != libc::O_SYNC)?;
            }
            Ok(written as u32)
        };
        self.serve("write", node, reply, work, |reply, written| {
            reply.send(Answer::Written(written))
        });
        // The kernel keeps the pages as if they were written.
        if forbidden.get() {
            self.refused_pages.drop_soon(node, offset, len);
        }
    }

    /// Writes pages of a mapping: all bytes, or an error. After a short count the kernel marks all
    /// these pages clean.
    fn write_back(&self, fs: &Fs, ino: Ino, offset: u64, data: &[u8]) -> Served<usize> {
        if self.kernel_opens() {
            may_write_back(fs, ino)?;
        }
        if self.holds_writes_back() && fs.getattr(ino)?.flags & (FL_IMMUTABLE | FL_APPEND) != 0 {
            self.late_writes.note(ino);
        }
        self.removals
            .wait_for_space(fs, || fs.write_back(ino, offset, data))?;
        Ok(data.len())
    }

    pub(super) fn on_fallocate(
        &self,
        req: &InHeader,
        node: Node,
        offset: u64,
        len: u64,
        mode: i32,
        reply: impl Reply,
    ) {
        let work = |fs: &Fs, _: &mut _| {
            let (ino, mode) = (ino(node)?, fallocate_mode(mode)?);
            let grows = matches!(mode, Fallocate::Allocate { .. });
            drop_rights(fs, req, ino, grows)?;
            let is_member = Caller::in_group(req);
            let caller = Caller::credentials(req, &is_member);
            self.removals
                .wait_for_space(fs, || fs.fallocate(&caller, ino, mode, offset, len))?;
            Ok(())
        };
        self.serve("fallocate", node, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    pub(super) fn on_lseek(&self, node: Node, offset: i64, whence: i32, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            if self.holds_writes_back() {
                return Err(Refusal::Request(
                    Errno::ENOSYS,
                    "held back bytes are no holes, and the kernel has them (cache=writeback)",
                ));
            }
            let whence = match whence {
                libc::SEEK_DATA => SeekWhence::Data,
                libc::SEEK_HOLE => SeekWhence::Hole,
                _ => {
                    return Err(Refusal::Request(
                        Errno::EINVAL,
                        "lseek from an unknown origin",
                    ));
                }
            };
            let offset = u64::try_from(offset)
                .map_err(|_| Refusal::Request(Errno::ENXIO, "negative offset"))?;
            Ok(fs.seek(ino(node)?, offset, whence)?)
        };
        self.serve("lseek", node, reply, work, |reply, offset| {
            reply.send(Answer::Offset(offset))
        });
    }

    pub(super) fn on_copy_file_range(
        &self,
        req: &InHeader,
        arg: &CopyFileRangeIn,
        reply: impl Reply,
        answer: fn(u64) -> Answer<'static>,
    ) {
        let from = (Node(req.nodeid), arg.off_in);
        let to = (Node(arg.nodeid_out), arg.off_out);
        let work = |fs: &Fs, _: &mut _| {
            if arg.flags != 0 {
                return Err(Refusal::Request(
                    Errno::EINVAL,
                    "copy_file_range with unknown flags",
                ));
            }
            let target = ino(to.0)?;
            drop_rights(fs, req, target, false)?;
            let (copied, stopped) = copy(
                fs,
                &self.removals,
                &Caller::credentials(req, &Caller::in_group(req)),
                (ino(from.0)?, from.1),
                (target, to.1),
                arg.len.min(MAX_COPY),
            )?;
            // The caller gets the error if it asks for the rest. The log gets it in any
            // case, so that damage is reported.
            if let Some(refusal) = stopped {
                self.note("copy_file_range", from.0, &refusal);
            }
            Ok(copied)
        };
        self.serve("copy_file_range", from.0, reply, work, |reply, copied| {
            reply.send(answer(copied))
        });
    }
}

/// Checks that chattr flags allow write-back, where no open has checked it. The engine allows it
/// for an immutable file: the mapping may be older than the flag.
fn may_write_back(fs: &Fs, ino: Ino) -> Served<()> {
    match fs.getattr(ino)?.flags & FL_IMMUTABLE {
        0 => Ok(()),
        _ => Err(Refusal::Request(
            Errno::EPERM,
            "write-back to an immutable file",
        )),
    }
}

/// Returns how many of the first bytes of an append a dead server has appended. They cannot be
/// appended again: a file with +a refuses what lies before its end.
fn appended_before(fs: &Fs, ino: Ino, offset: u64, data: &[u8]) -> Served<usize> {
    let past = fs.getattr(ino)?.size.saturating_sub(offset);
    let done = usize::try_from(past).map_or(data.len(), |past| past.min(data.len()));
    with_buffer(done, |there| {
        let got = read_to(fs, ino, offset, there)?;
        let same = got == done && *there == data[..done];
        Ok(if same { done } else { 0 })
    })
}

/// Waits until a file that is appended to has the bytes before `offset`, by the kernel's idea of
/// its size. The kernel sends the parts of an append by libaio or io_uring concurrently.
fn wait_for_earlier_parts(fs: &Fs, ino: Ino, offset: u64, others_shorten: bool) -> Served<()> {
    let begun = Instant::now();
    while fs.getattr(ino)?.size < offset {
        // With one serving thread, an earlier part waits behind this one. The kernel then
        // reports what was written before this part.
        if begun.elapsed() > EARLIER_PARTS && others_shorten {
            // The kernel does not know that a guest has truncated the file.
            break;
        }
        if begun.elapsed() > EARLIER_PARTS {
            return Err(Refusal::Request(
                Errno::EAGAIN,
                "a part of an append, before the earlier parts",
            ));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Copies until the source ends or an error occurs. After a partial copy, returns the
/// count and the error.
fn copy(
    fs: &Fs,
    removals: &PendingFrees,
    caller: &Credentials<'_>,
    from: (Ino, u64),
    to: (Ino, u64),
    len: u64,
) -> Served<(u64, Option<Refusal>)> {
    let mut copied = 0;
    while copied < len {
        // In steps, so that other operations can lock the files in between.
        let step = (len - copied).min(u64::from(MAX_REQUEST));
        let (at, target) = ((from.0, from.1 + copied), (to.0, to.1 + copied));
        match removals.wait_for_space(fs, || fs.copy_range(caller, at, target, step)) {
            Ok(0) => break,
            Ok(done) => copied += done,
            Err(error) if copied > 0 => return Ok((copied, Some(error.into()))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((copied, None))
}

fn fallocate_mode(mode: i32) -> Served<Fallocate> {
    const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP_SIZE: i32 = ZERO | KEEP_SIZE;
    match mode {
        0 => Ok(Fallocate::Allocate { keep_size: false }),
        KEEP_SIZE => Ok(Fallocate::Allocate { keep_size: true }),
        PUNCH => Ok(Fallocate::PunchHole),
        ZERO => Ok(Fallocate::ZeroRange { keep_size: false }),
        ZERO_KEEP_SIZE => Ok(Fallocate::ZeroRange { keep_size: true }),
        _ => Err(Refusal::Request(
            Errno::EOPNOTSUPP,
            "fallocate in an unknown mode",
        )),
    }
}
