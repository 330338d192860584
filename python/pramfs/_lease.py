"""Direct access to a file of a mount, beside its server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _native
from ._filesystem import Path, encoded

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer, Self

__all__ = ["Lease", "lease"]


class Lease:
    """A file of a mount whose blocks this process accesses without a system call.

    The kernel has checked the permissions when it was opened; the server of the mount grants
    the access (mount option ``direct=owner``). Other programs go on using the mount.
    """

    def __init__(
        self, raw: _native.RawLease, path: bytes, writable: bool, control: bytes | None = None
    ) -> None:
        """Made by :func:`lease`."""
        self._raw = raw
        self._path = path
        self._writable = writable
        self._control = control
        self.name = os.fsdecode(path)

    def __repr__(self) -> str:
        return f"<pramfs.Lease name={self.name!r}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle: by the path of the file on the mount, which is opened again."""
        control = None if self._control is None else os.path.abspath(self._control)
        return _reopened, (os.path.abspath(self.name), self._writable, control)

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._raw.closed

    def close(self) -> None:
        """Give the lease back. Maps stay valid."""
        self._raw.close()

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._raw.size()

    def pread(self, size: int, offset: int, /) -> bytes:
        """Read at an offset."""
        return self._raw.pread(size, offset)

    def preadinto(self, buffer: Buffer, offset: int, /) -> int:
        """Read at an offset into a buffer. Returns the number of bytes."""
        return self._raw.preadinto(buffer, offset)

    def pwrite(self, data: Buffer, offset: int, /) -> int:
        """Write at an offset. The bytes are durable when it returns."""
        return self._raw.pwrite(data, offset)

    def append(self, data: Buffer, /) -> int:
        """Append. Returns the offset of the first byte."""
        return self._raw.append(data)

    def map(
        self, offset: int = 0, length: int | None = None, *, writable: bool | None = None
    ) -> _native.Map:
        """Map a range as memory. Writable by default if the file is."""
        return self._raw.map(offset, length, self._writable if writable is None else writable)


def lease(path: Path, *, writable: bool = False, control: Path | None = None) -> Lease:
    """Open a file of a mounted file system for direct access.

    ``control`` is the directory of control sockets, if it is not the usual one. Raises
    ``OSError``: EOPNOTSUPP or ENOTTY if the file is on no mount that grants it, EACCES if its
    policy does not allow this user. Ordinary system calls work in these cases.
    """
    name = encoded(path)
    directory = None if control is None else encoded(control)
    return Lease(_native.lease(name, writable, directory), name, writable, directory)


def _reopened(path: str, writable: bool, control: bytes | None) -> Lease:
    """Open what a pickle names."""
    return lease(path, writable=writable, control=control)
