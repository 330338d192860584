"""Files: ``io.RawIOBase`` over the library."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from typing_extensions import Buffer

    from ._filesystem import FileSystem

__all__ = ["Extent", "File"]


class Extent(NamedTuple):
    """A run of a file, and its place in the region."""

    file_offset: int
    #: ``None`` for a hole and for a lost range.
    region_offset: int | None
    length: int
    #: Allocated, but reads as zeros.
    unwritten: bool
    #: A repair could not recover the bytes: reading them fails.
    lost: bool


def stat_result(found: _native._Stat) -> os.stat_result:
    """Make the result of ``os.stat``. ``st_dev`` is 0."""
    (mode, ino, nlink, uid, gid, size), (blksize, blocks, rdev), times = found
    seconds = [time // 10**9 for time in times]
    exact = [time / 10**9 for time in times]
    return os.stat_result(
        (mode, ino, 0, nlink, uid, gid, size, *seconds[:3]),
        {
            "st_atime": exact[0],
            "st_mtime": exact[1],
            "st_ctime": exact[2],
            "st_atime_ns": times[0],
            "st_mtime_ns": times[1],
            "st_ctime_ns": times[2],
            "st_blksize": blksize,
            "st_blocks": blocks,
            "st_rdev": rdev,
        },
    )


class File(io.RawIOBase):
    """An open file, without a buffer: what ``FileSystem.open(..., buffering=0)`` returns.

    It is safe for threads: reads and writes at offsets (:meth:`pread`, :meth:`pwrite`) and
    appends of several threads do not disturb each other. Every write is durable when it
    returns.

    >>> import io, pramfs
    >>> fs = pramfs.memory(4 << 20)
    >>> raw = fs.open("/log", "w+b", buffering=0)
    >>> raw.append(b"first"), raw.append(b"second")
    (0, 5)
    >>> raw.pread(6, 5)
    b'second'
    >>> io.BufferedReader(raw).read()
    b'firstsecond'
    """

    def __init__(self, fs: FileSystem, raw: _native.RawFile, path: bytes, mode: str) -> None:
        """Made by ``FileSystem.open``."""
        super().__init__()
        self._fs = fs
        self._raw = raw
        self._path = path
        self.mode = mode
        self.name = os.fsdecode(path)
        self._reads = "r" in mode or "+" in mode
        self._writes = mode.strip("bt") != "r"

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<pramfs.File name={self.name!r} mode={self.mode!r}{state}>"

    def __reduce__(self) -> tuple[Callable[..., File], tuple[Any, ...]]:
        """Pickle a file open for reading: by region and path, to be opened again."""
        if self._writes or self.closed:
            what = "is closed" if self.closed else f"is open for writing (mode {self.mode!r})"
            raise TypeError(f"cannot pickle the file {self.name!r}: it {what}")
        return _reopen, (self._fs, self._path, self.mode, self.tell())

    # What io.RawIOBase asks for.

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._raw.close()

    def readable(self) -> bool:
        self._open()
        return self._reads

    def writable(self) -> bool:
        self._open()
        return self._writes

    def seekable(self) -> bool:
        self._open()
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Read at the position into a buffer. Returns the number of bytes, 0 at the end."""
        self._readable()
        return self._raw.readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at the position: ``size`` bytes, fewer at the end of the file only."""
        self._readable()
        return self._raw.read(None if size is None or size < 0 else size)

    def readall(self) -> bytes:
        """Read from the position to the end."""
        return self.read()

    def write(self, data: Buffer, /) -> int:
        """Write at the position. Returns the number of bytes: fewer if the region is full."""
        self._writable()
        return self._raw.write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._open()
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        self._open()
        return self._raw.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size: to the position without an argument."""
        self._writable()
        if size is None:
            size = self.tell()
        self._raw.truncate(size)
        return size

    def flush(self) -> None:
        """Do nothing: a write is durable when it returns."""
        super().flush()

    # What pramfs has besides.

    def pread(self, size: int, offset: int, /) -> bytes:
        """Read at an offset. The position stays."""
        self._readable()
        return self._raw.pread(size, offset)

    def preadinto(self, buffer: Buffer, offset: int, /) -> int:
        """Read at an offset into a buffer. The position stays."""
        self._readable()
        return self._raw.preadinto(buffer, offset)

    def pwrite(self, data: Buffer, offset: int, /) -> int:
        """Write at an offset. The position stays."""
        self._writable()
        return self._raw.pwrite(data, offset)

    def write_atomic(self, data: Buffer, offset: int, /) -> None:
        """Write all bytes at an offset, or none, whatever happens."""
        self._writable()
        self._raw.write_atomic(data, offset)

    def append(self, data: Buffer, /) -> int:
        """Write all bytes at the end of the file. Returns the offset of the first."""
        self._writable()
        return self._raw.append(data)

    def stat(self) -> os.stat_result:
        """Return the metadata."""
        self._open()
        return stat_result(self._raw.stat())

    def size(self) -> int:
        """Return the size in bytes."""
        self._open()
        return self._raw.size()

    def sync(self) -> None:
        """Make everything durable, including times."""
        self._open()
        self._raw.sync()

    def fallocate(
        self,
        offset: int,
        length: int,
        what: Literal["allocate", "punch", "zero"] = "allocate",
        *,
        keep_size: bool = False,
    ) -> None:
        """Allocate a range, punch a hole, or make a range read as zeros."""
        self._writable()
        self._raw.fallocate(what, offset, length, keep_size)

    def extents(self) -> list[Extent]:
        """Return where the bytes of the file lie in the region."""
        self._open()
        return [Extent(*extent) for extent in self._raw.extents()]

    def map(
        self, offset: int = 0, length: int | None = None, *, writable: bool | None = None
    ) -> _native.Map:
        """Map a range as memory. Writable by default if the file is."""
        self._open()
        if writable is None:
            writable = self._writes and self._reads
        return self._raw.map(offset, length, writable)

    def _open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _readable(self) -> None:
        self._open()
        if not self._reads:
            raise io.UnsupportedOperation("the file is not open for reading")

    def _writable(self) -> None:
        self._open()
        if not self._writes:
            raise io.UnsupportedOperation("the file is not open for writing")


def _reopen(fs: FileSystem, path: bytes, mode: str, position: int) -> File:
    raw = fs.open(path, mode, buffering=0)
    raw.seek(position)
    return raw
