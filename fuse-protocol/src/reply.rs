//! Replies, one function for each form.
//!
//! ```
//! use pramfs_fuse_protocol::{Errno, reply};
//! let mut room = [0; 64];
//! let n = reply::error(7, Errno::EINVAL).write_to(&mut room).unwrap();
//! assert_eq!(n, 16);
//! assert_eq!(room[4..8], (-22i32).to_ne_bytes());
//! ```

use crate::data::Data;
use crate::errno::Errno;
use crate::message::{Message, NoRoom};
use crate::wire::*;

/// Refuses a request.
#[must_use]
pub fn error(unique: u64, errno: Errno) -> Message<'static> {
    Message::new(unique, -errno.number())
}

/// Says that a request was done and has no result.
#[must_use]
pub fn empty(unique: u64) -> Message<'static> {
    Message::new(unique, 0)
}

/// Answers LOOKUP, SYMLINK, MKNOD, MKDIR, LINK.
#[must_use]
pub fn entry(unique: u64, entry: &EntryOut) -> Message<'static> {
    Message::new(unique, 0).with(entry)
}

/// Answers CREATE and TMPFILE.
#[must_use]
pub fn create(unique: u64, entry: &EntryOut, open: &OpenOut) -> Message<'static> {
    Message::new(unique, 0).with(entry).with(open)
}

/// Answers OPEN and OPENDIR.
#[must_use]
pub fn open(unique: u64, open: &OpenOut) -> Message<'static> {
    Message::new(unique, 0).with(open)
}

/// Answers GETATTR and SETATTR.
#[must_use]
pub fn attr(unique: u64, attr: &AttrOut) -> Message<'static> {
    Message::new(unique, 0).with(attr)
}

/// Answers STATX.
#[must_use]
pub fn statx(unique: u64, statx: &StatxOut) -> Message<'static> {
    Message::new(unique, 0).with(statx)
}

/// Answers STATFS.
#[must_use]
pub fn statfs(unique: u64, st: &Kstatfs) -> Message<'static> {
    Message::new(unique, 0).with(&StatfsOut { st: *st })
}

/// Answers READ, READLINK, READDIR, READDIRPLUS, and GETXATTR and LISTXATTR with room.
/// There may be no more bytes than the request has asked for.
///
/// # Errors
/// [`NoRoom`] for more bytes than a message can have.
pub fn data<'a>(unique: u64, data: impl Into<Data<'a>>) -> Result<Message<'a>, NoRoom> {
    Message::new(unique, 0).with_data(data.into())
}

/// Answers GETXATTR and LISTXATTR without room.
#[must_use]
pub fn xattr_size(unique: u64, size: u32) -> Message<'static> {
    Message::new(unique, 0).with(&GetxattrOut { size, padding: 0 })
}

/// Answers WRITE and COPY_FILE_RANGE.
#[must_use]
pub fn write(unique: u64, size: u32) -> Message<'static> {
    Message::new(unique, 0).with(&WriteOut { size, padding: 0 })
}

/// Answers COPY_FILE_RANGE_64.
#[must_use]
pub fn copied(unique: u64, bytes_copied: u64) -> Message<'static> {
    Message::new(unique, 0).with(&CopyFileRangeOut { bytes_copied })
}

/// Answers LSEEK.
#[must_use]
pub fn lseek(unique: u64, offset: u64) -> Message<'static> {
    Message::new(unique, 0).with(&LseekOut { offset })
}

/// Answers GETLK.
#[must_use]
pub fn lk(unique: u64, lk: &FileLock) -> Message<'static> {
    Message::new(unique, 0).with(&LkOut { lk: *lk })
}

/// Answers BMAP.
#[must_use]
pub fn bmap(unique: u64, block: u64) -> Message<'static> {
    Message::new(unique, 0).with(&BmapOut { block })
}

/// Answers POLL.
#[must_use]
pub fn poll(unique: u64, revents: u32) -> Message<'static> {
    Message::new(unique, 0).with(&PollOut {
        revents,
        padding: 0,
    })
}

/// Answers IOCTL: the result of the call, and what is copied to the caller, which may be
/// no more than the request has asked for.
///
/// # Errors
/// [`NoRoom`] for more bytes than a message can have.
pub fn ioctl<'a>(
    unique: u64,
    result: i32,
    data: impl Into<Data<'a>>,
) -> Result<Message<'a>, NoRoom> {
    let out = IoctlOut {
        result,
        ..IoctlOut::default()
    };
    Message::new(unique, 0).with(&out).with_data(data.into())
}

/// Answers INIT; see [`Negotiated::reply`](crate::Negotiated::reply).
pub(crate) fn init(unique: u64, out: &InitOut, len: usize) -> Message<'static> {
    use crate::numbers::INIT_OUT_22_SIZE;
    use zerocopy::IntoBytes;
    let short = out.as_bytes().first_chunk::<INIT_OUT_22_SIZE>();
    match short.filter(|_| len == INIT_OUT_22_SIZE) {
        Some(short) => Message::new(unique, 0).with(short),
        None => Message::new(unique, 0).with(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fixed_reply_fits_inline() {
        let all = [
            (entry(1, &EntryOut::default()), 128),
            (create(1, &EntryOut::default(), &OpenOut::default()), 144),
            (open(1, &OpenOut::default()), 16),
            (attr(1, &AttrOut::default()), 104),
            (statx(1, &StatxOut::default()), 288),
            (statfs(1, &Kstatfs::default()), 80),
            (xattr_size(1, 5), 8),
            (write(1, 5), 8),
            (copied(1, 5), 8),
            (lseek(1, 5), 8),
            (lk(1, &FileLock::default()), 24),
            (bmap(1, 5), 8),
            (poll(1, 5), 8),
            (ioctl(1, 5, &b"abc"[..]).unwrap(), 19),
            (data(1, &b"abc"[..]).unwrap(), 3),
            (init(1, &InitOut::default(), 24), 24),
            (init(1, &InitOut::default(), 64), 64),
            (empty(1), 0),
            (error(1, Errno::EIO), 0),
        ];
        for (i, (message, body)) in all.iter().enumerate() {
            assert_eq!(message.body_len(), *body, "reply {i}");
            assert_eq!(message.to_vec().len(), 16 + body, "reply {i}");
        }
    }

    #[test]
    fn data_in_pieces_is_not_copied() {
        let pieces: [&[u8]; 2] = [b"ab", b"cd"];
        let message = data(9, Data::Pieces(&pieces)).unwrap();
        let mut room = [std::io::IoSlice::new(&[]); 3];
        let slices = message.io_slices(&mut room).unwrap();
        assert_eq!(slices.len(), 3);
        assert_eq!(slices[1].as_ptr(), pieces[0].as_ptr());
        let mut too_few = [std::io::IoSlice::new(&[]); 2];
        let refused = message.io_slices(&mut too_few).unwrap_err();
        assert_eq!(refused, NoRoom { need: 3, room: 2 });
    }

    #[test]
    fn message_without_room_leaves_buffer_unchanged() {
        let mut room = [7; 19];
        let message = data(9, &b"abcd"[..]).unwrap();
        let refused = message.write_to(&mut room).unwrap_err();
        assert_eq!((refused.need, refused.room), (20, 19));
        assert_eq!(room, [7; 19]);
        assert_eq!(message.write_body_to(&mut room), Ok(4));
        assert_eq!(&room[..5], b"abcd\x07");
    }
}
