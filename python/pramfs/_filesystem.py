"""A mounted file system, with the interface of ``os`` and ``io.open``."""

from __future__ import annotations

import atexit
import errno
import io
import operator
import os
import stat as stats
import sys
import threading
import warnings
import weakref
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, overload

from . import _native
from ._file import File, stat_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    import numpy
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer, Self

    from .numpy import memmap

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = ["DirEntry", "FileSystem", "format", "memory", "open"]

#: The open file systems of this process, for its end and for pickled ones.
_mounted: weakref.WeakSet[FileSystem] = weakref.WeakSet()
_opening = threading.Lock()
#: So often the attributes of a file are read again because it changes meanwhile.
_TRIES = 100
_attributes_of = operator.attrgetter("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid")


def encoded(path: Path) -> bytes:
    """Encode a path as ``os`` does."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return name


def format(
    region: Path,
    size: int | None = None,
    *,
    force: bool = False,
    label: str = "",
    uuid: bytes | None = None,
    block_size: int = 4096,
    max_inodes: int | None = None,
    lanes: int | None = None,
    features: Mapping[str, bool] | None = None,
) -> None:
    """Make an empty file system in a region.

    Without ``force``, makes a new file of ``size`` bytes, sparse and of mode 0600. With it,
    formats what is there and destroys its contents; without ``size``, all of it. ``size`` is a
    multiple of 4096, at least 262144. ``features`` are those of ``mkfs.pramfs -O``.

    Raises ``FileExistsError``, :class:`BusyError` for a region in use, ``OSError`` with EINVAL
    for impossible values, and the errors of open(2). It does not look for other file systems:
    ``mkfs.pramfs`` does.
    """
    if uuid is not None and len(uuid) != 16:
        raise ValueError("a uuid has 16 bytes")
    _native.format(
        encoded(region),
        size or 0,
        force=force,
        label=label,
        uuid=uuid,
        block_size=block_size,
        max_inodes=max_inodes,
        lanes=lanes,
        features=list((features or {}).items()),
    )


def open(
    region: Path,
    *,
    read_only: bool = False,
    durability: Literal["power", "process"] | None = None,
    protect: Literal["off", "auto", "pkey", "mprotect"] | None = None,
    data: Literal["inplace", "atomic"] | None = None,
    errors: Literal["continue", "remount-ro", "panic"] | None = None,
    atime: Literal["noatime", "relatime", "strictatime"] | None = None,
    backend: Literal["auto", "libpmem2", "native"] | None = None,
    cache_bytes: int | None = None,
    discard: bool | None = None,
    require_dax: bool | None = None,
    preallocate: bool | None = None,
    fault_guard: bool | None = None,
    room_to_grow: int | None = None,
) -> FileSystem:
    """Open the file system of a region in this process.

    ``region`` is a file, a block device, a devdax device, or a range of physical memory
    (``"physaddr:0x40000000+512M"``). After a crash, the journal is replayed first. The region
    is locked until the file system is unmounted; openings with ``read_only`` share the lock.
    The other options are those of the library.

    Raises :class:`BusyError` (in use; the message names the process),
    :class:`NotMountableError`, :class:`CorruptError`, and the errors of open(2).
    """
    options = {
        "read_only": read_only,
        "durability": durability,
        "protect": protect,
        "data": data,
        "errors": errors,
        "atime": atime,
        "backend": backend,
        "cache_bytes": cache_bytes,
        "discard": discard,
        "require_dax": require_dax,
        "preallocate": preallocate,
        "fault_guard": fault_guard,
        "room_to_grow": room_to_grow,
    }
    given = {name: value for name, value in options.items() if value is not None}
    name = encoded(region)
    key, here = _identity(os.fsdecode(name)), os.getpid()
    for fs in list(_mounted):
        mine = fs._key == key and fs._process == here and not fs.closed
        if mine and not (read_only and fs._options.get("read_only")):
            raise _native.BusyError(
                errno.EBUSY, "this process has it open: use that object", os.fsdecode(name)
            )
    return FileSystem(_native.mount(name, given), name, given)


def memory(size: int) -> FileSystem:
    """Make a file system of ``size`` bytes in anonymous memory: for tests, and to try it.

    >>> import pramfs
    >>> with pramfs.memory(4 << 20) as fs:
    ...     fs.write_bytes("/a", b"1")
    ...     fs.listdir("/")
    ['a']
    """
    return FileSystem(_native.memory(size), None, {})


class DirEntry(NamedTuple):
    """An entry of a directory."""

    name: str
    path: str
    inode: int
    #: The bits of ``stat.S_IFMT``.
    type: int

    def is_dir(self) -> bool:
        """Return whether it is a directory. Symbolic links are not followed."""
        return stats.S_ISDIR(self.type)

    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return stats.S_ISREG(self.type)

    def is_symlink(self) -> bool:
        """Return whether it is a symbolic link."""
        return stats.S_ISLNK(self.type)


class FileSystem:
    """A mounted file system. :func:`open` and :func:`memory` make one.

    Every path starts at the root of the file system, with or without a leading slash. A change
    of names, sizes and contents is durable when the call returns; stores through a map are
    after :meth:`Map.persist`.

    It is a context manager. At its end it is unmounted, unless files or maps are still open:
    then it stays mounted, and its region locked, until the last of them is closed, and a
    ``ResourceWarning`` says so. :meth:`unmount` refuses or forces instead.

    All methods may be called by several threads at once; they release the GIL.
    """

    def __init__(
        self, raw: _native.RawFileSystem, region: bytes | None, options: dict[str, Any]
    ) -> None:
        """Made by :func:`open`."""
        self._raw = raw
        self._options = options
        #: The region as it was given; ``None`` for one in memory.
        self.region = None if region is None else os.fsdecode(region)
        self._key = None if self.region is None else _identity(self.region)
        self._process = os.getpid()
        _mounted.add(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        # With its identity: fsspec tells objects apart by this text.
        return f"<pramfs.FileSystem {self.region or 'in memory'!s}, {state}, at {id(self):#x}>"

    def __enter__(self) -> Self:
        if self.closed:
            raise ValueError("operation on a closed file system")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.closed and self._process == os.getpid():
            handles = self._raw.handles()
            if handles:
                warnings.warn(
                    f"{self!r} stays mounted until its {handles} open files and maps are closed",
                    ResourceWarning,
                    stacklevel=2,
                )
        self.close()

    def __reduce__(self) -> tuple[Callable[..., FileSystem], tuple[Any, ...]]:
        """Pickle: by the name of the region, which is opened again."""
        if self.region is None:
            raise TypeError("cannot pickle a file system in memory: no other process can open it")
        if self.closed:
            raise TypeError("cannot pickle a closed file system")
        return _reopen, (_absolute(self.region), self._options)

    @property
    def closed(self) -> bool:
        """Whether it has been closed or unmounted."""
        return self._raw.closed

    def close(self) -> None:
        """Close this object. Files and maps stay usable; the last one closed unmounts.

        Raises ``OSError`` if it unmounts and the medium fails. The next opening recovers.
        """
        self._raw.close()

    def unmount(self, *, force: bool = False) -> None:
        """Unmount, or raise :class:`BusyError` while files or maps are open.

        With ``force``, calls on them fail with EIO afterwards. Maps stay readable memory, and
        the region stays locked, until the last of them is gone; what is stored through them
        after the unmount need not be durable.
        """
        self._raw.unmount(force)

    # Files.

    @overload
    def open(  # type: ignore[overload-overlap]  # the first one that matches is meant
        self, path: Path, mode: str, buffering: Literal[0], *, perm: int = ...
    ) -> File: ...

    @overload
    def open(
        self,
        path: Path,
        mode: str = ...,
        buffering: int = ...,
        encoding: str | None = ...,
        errors: str | None = ...,
        newline: str | None = ...,
        *,
        perm: int = ...,
    ) -> IO[Any]: ...

    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        perm: int = 0o666,
    ) -> IO[Any] | File:
        """Open a file, as the function ``open`` of Python does.

        ``buffering=0`` returns a :class:`File`, whose writes are durable at once. What is in a
        buffer of Python is not, until it is flushed. ``perm`` are the permission bits of a new
        file, less the umask 022.
        """
        kind, update, text = _parsed(mode)
        if text and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        if not text and (encoding, errors, newline) != (None, None, None):
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        how = {"r": "r", "w": "wct", "a": "ac", "x": "wx"}[kind]
        if update:
            how += {"r": "w", "w": "r", "a": "r", "x": "r"}[kind]
        name = encoded(path)
        raw = File(self, self._raw.open(name, how, perm), name, _raw_mode(kind, update))
        try:
            if kind == "a":
                raw.seek(0, os.SEEK_END)
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else 1 << 16
            buffered: io.BufferedReader | io.BufferedWriter | io.BufferedRandom
            if update:
                buffered = io.BufferedRandom(raw, size)
            elif kind == "r":
                buffered = io.BufferedReader(raw, size)
            else:
                buffered = io.BufferedWriter(raw, size)
            if not text:
                return buffered
            return io.TextIOWrapper(
                buffered, encoding, errors, newline, line_buffering=buffering == 1
            )
        except BaseException:
            raw.close()
            raise

    def read_bytes(self, path: Path) -> bytes:
        """Read a whole file."""
        with self.open(path, "rb", 0) as file:
            return file.read()

    def write_bytes(self, path: Path, data: Buffer) -> None:
        """Create a file with these contents, or replace them. Not atomic."""
        with self.open(path, "wb", 0) as file:
            _write_all(file, data)

    def read_text(
        self, path: Path, encoding: str | None = "utf-8", errors: str | None = None
    ) -> str:
        """Read a whole file as text."""
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_text(
        self,
        path: Path,
        text: str,
        encoding: str | None = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Create a file with this text, or replace its contents. Not atomic."""
        with self.open(path, "w", encoding=encoding, errors=errors, newline=newline) as file:
            written: int = file.write(text)
            return written

    def replace_bytes(self, path: Path, data: Buffer) -> None:
        """Create a file or replace it, atomically: after a crash it is the old or the new one.

        The new one has the mode, owner, group and extended attributes of the old one, its ACLs
        among them. Other names of the old one keep the old contents, and a symbolic link is
        replaced itself.
        """
        name = encoded(path)
        file, aside, private = self._create_aside(name)
        try:
            with file:
                _write_all(file, data)
            self._take_place(aside, name, private=private)
        except BaseException:
            self._unlink_aside(aside)
            raise

    def _create_aside(self, name: bytes) -> tuple[File, bytes, bool]:
        """Create a file that is to take the place of another, in the same directory.

        Also returns its name, and whether it is private: no one else may read it before it has
        the mode of the old one.
        """
        old = self._kind(name, follow_symlinks=False)
        private = old is not None and stats.S_ISREG(old)
        return *self._create_beside(name, 0o600 if private else 0o666), private

    def _create_beside(self, name: bytes, perm: int) -> tuple[File, bytes]:
        directory = name[: name.rfind(b"/") + 1]
        while True:
            aside = directory + b".%s.new" % os.urandom(8).hex().encode()
            try:
                return self.open(aside, "xb", 0, perm=perm), aside
            except FileExistsError:
                # It belongs to somebody else.
                continue

    def _take_place(
        self, aside: bytes, name: bytes, *, private: bool, replace: bool = True
    ) -> None:
        """Give a file the attributes of the one that it replaces, and then its name."""
        old = self._attributes(name) if replace else None
        if old is None and private:
            # The old one is gone. It gets the mode and the ACL of a new file, whatever those
            # are in this directory.
            file, new = self._create_beside(name, 0o666)
            try:
                file.close()
                old = self._attributes(new)
            finally:
                self._unlink_aside(new)
        if old is not None:
            self._set_attributes(aside, *old)
        self.rename(aside, name, replace=replace)

    def _unlink_aside(self, aside: bytes) -> None:
        try:
            self.unlink(aside)
        except FileNotFoundError:
            # Somebody else has removed it.
            pass

    def _attributes(self, name: bytes) -> tuple[os.stat_result, dict[str, bytes]] | None:
        """Return status and extended attributes of a regular file, if there is one.

        The calls for extended attributes follow links, and other threads may rename, remove and
        change the file: then it starts again.
        """
        for _ in range(_TRIES):
            try:
                found = self.lstat(name)
            except FileNotFoundError:
                return None
            if not stats.S_ISREG(found.st_mode):
                return None
            try:
                xattrs = {key: self.getxattr(name, key) for key in self.listxattr(name)}
                if _attributes_of(found) == _attributes_of(self.lstat(name)):
                    return found, xattrs
            except OSError as error:
                # The last three are of a symbolic link that has taken its place.
                if error.errno not in (
                    errno.ENOENT,
                    errno.ENODATA,
                    errno.ENOTDIR,
                    errno.ELOOP,
                    errno.ENAMETOOLONG,
                ):
                    raise
        raise OSError(errno.EBUSY, "its attributes change all the time", os.fsdecode(name))

    def _set_attributes(
        self, target: bytes, wanted: os.stat_result, xattrs: dict[str, bytes]
    ) -> None:
        self.chown(target, wanted.st_uid, wanted.st_gid)
        for key in self.listxattr(target):
            # It may have an ACL from its directory.
            if key not in xattrs:
                self.removexattr(target, key)
        for key, value in xattrs.items():
            self.setxattr(target, key, value)
        # Last, because a change of the owner or of an ACL changes the mode.
        self.chmod(target, stats.S_IMODE(wanted.st_mode))

    def map(
        self,
        path: Path,
        offset: int = 0,
        length: int | None = None,
        *,
        writable: bool = False,
    ) -> _native.Map:
        """Map a range of a file as memory: up to its end without a length.

        >>> import pramfs
        >>> fs = pramfs.memory(4 << 20)
        >>> fs.write_bytes("/table", bytes(8192))
        >>> with fs.map("/table", writable=True) as table:
        ...     with memoryview(table) as bytes_:
        ...         bytes_[4096:4101] = b"hello"
        ...     table.persist(4096, 5)
        >>> fs.read_bytes("/table")[4096:4101]
        b'hello'
        """
        with self.open(path, "r+b" if writable else "rb", 0) as file:
            return file.map(offset, length, writable=writable)

    def memmap(
        self,
        path: Path,
        dtype: DTypeLike = "uint8",
        mode: Literal["r", "r+", "w+"] = "r",
        offset: int = 0,
        shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
        order: Literal["C", "F"] = "C",
    ) -> memmap:
        """Return an array of numpy whose bytes are those of the file, as ``numpy.memmap``.

        Raises ``ImportError`` without numpy. See :class:`pramfs.numpy.memmap`.
        """
        from .numpy import memmap

        return memmap(self, path, dtype, mode, offset, shape, order)

    # Names.

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a directory of a mode, less the umask 022."""
        self._raw.mkdir(encoded(path), mode)

    def makedirs(self, path: Path, exist_ok: bool = False) -> None:
        """Make a directory and its missing parents."""
        name = encoded(path)
        if not exist_ok and self.exists(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        self._raw.makedirs(name)

    def listdir(self, path: Path = "/") -> list[str]:
        """Return the names in a directory, in no order."""
        return [name for name, _, _ in self._raw.scandir(encoded(path))]

    def scandir(self, path: Path = "/") -> Iterator[DirEntry]:
        """Return the entries of a directory, in no order."""
        name = encoded(path)
        base = os.fsdecode(name)
        for entry, inode, kind in self._raw.scandir(name):
            yield DirEntry(entry, os.path.join(base, entry), inode, kind)

    def walk(self, top: Path = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """Walk a tree from the top, as ``os.walk``. Symbolic links are not followed."""
        base = os.fsdecode(encoded(top))
        directories: list[str] = []
        others: list[str] = []
        for entry in self.scandir(base):
            (directories if entry.is_dir() else others).append(entry.name)
        yield base, directories, others
        for name in directories:
            yield from self.walk(os.path.join(base, name))

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the metadata. ``st_dev`` is 0."""
        return stat_result(self._raw.stat(encoded(path), follow_symlinks))

    def lstat(self, path: Path) -> os.stat_result:
        """Return the metadata of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: Path) -> bool:
        """Return whether a path exists. A symbolic link that leads nowhere does not."""
        return self._kind(path) is not None

    def isdir(self, path: Path) -> bool:
        """Return whether it is a directory."""
        kind = self._kind(path)
        return kind is not None and stats.S_ISDIR(kind)

    def isfile(self, path: Path) -> bool:
        """Return whether it is a regular file."""
        kind = self._kind(path)
        return kind is not None and stats.S_ISREG(kind)

    def islink(self, path: Path) -> bool:
        """Return whether it is a symbolic link."""
        kind = self._kind(path, follow_symlinks=False)
        return kind is not None and stats.S_ISLNK(kind)

    def getsize(self, path: Path) -> int:
        """Return the size in bytes."""
        return self.stat(path).st_size

    def rename(self, old: Path, new: Path, *, replace: bool = True) -> None:
        """Rename atomically. Replaces what is there, or raises ``FileExistsError``."""
        self._raw.rename(encoded(old), encoded(new), replace, False)

    def replace(self, old: Path, new: Path) -> None:
        """Rename atomically, and replace what is there."""
        self.rename(old, new)

    def exchange(self, one: Path, other: Path) -> None:
        """Exchange two names atomically."""
        self._raw.rename(encoded(one), encoded(other), True, True)

    def unlink(self, path: Path) -> None:
        """Remove the name of a file. An open or mapped file stays usable."""
        self._raw.unlink(encoded(path))

    remove = unlink

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        self._raw.rmdir(encoded(path))

    def rmtree(self, path: Path) -> None:
        """Remove a directory and everything below it. Not atomic."""
        self._raw.rmtree(encoded(path))

    def link(self, original: Path, link: Path) -> None:
        """Give a file another name."""
        self._raw.link(encoded(original), encoded(link))

    def symlink(self, target: Path, link: Path) -> None:
        """Make a symbolic link."""
        self._raw.symlink(encoded(target), encoded(link))

    def readlink(self, path: Path) -> str:
        """Return the target of a symbolic link."""
        return self._raw.readlink(encoded(path))

    def copy(self, source: Path, target: Path) -> int:
        """Copy contents and permission bits, on the medium. Returns the number of bytes."""
        return self._raw.copy(encoded(source), encoded(target))

    def truncate(self, path: Path, size: int) -> None:
        """Set the size of a file."""
        with self.open(path, "r+b", 0) as file:
            file.truncate(size)

    def chmod(self, path: Path, mode: int) -> None:
        """Set the permission bits."""
        self._raw.chmod(encoded(path), mode)

    def chown(self, path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Set owner and group; -1 leaves one unchanged."""
        owner, group = (None if number == -1 else number for number in (uid, gid))
        self._raw.chown(encoded(path), owner, group, follow_symlinks)

    def utime(
        self,
        path: Path,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
    ) -> None:
        """Set the times of the last read and change: seconds or nanoseconds; now by default."""
        if ns is None:
            if times is None:
                import time

                now = time.time_ns()
                ns = (now, now)
            else:
                ns = (int(times[0] * 10**9), int(times[1] * 10**9))
        elif times is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        self._raw.utime(encoded(path), *ns)

    def getxattr(self, path: Path, name: str | bytes) -> bytes:
        """Return the value of an extended attribute."""
        return self._raw.getxattr(encoded(path), encoded(name))

    def setxattr(self, path: Path, name: str | bytes, value: bytes, flags: int = 0) -> None:
        """Set an extended attribute, atomically."""
        self._raw.setxattr(encoded(path), encoded(name), bytes(value), flags)

    def listxattr(self, path: Path) -> list[str]:
        """Return the names of the extended attributes."""
        return self._raw.listxattr(encoded(path))

    def removexattr(self, path: Path, name: str | bytes) -> None:
        """Remove an extended attribute."""
        self._raw.removexattr(encoded(path), encoded(name))

    # The whole.

    def sync(self) -> None:
        """Make everything durable, including times."""
        self._raw.sync()

    def statvfs(self) -> os.statvfs_result:
        """Return the used and free space and inodes."""
        size, blocks, free, available, inodes, free_inodes, name_max, fsid, read_only = (
            self._raw.statvfs()
        )
        flag = os.ST_RDONLY if read_only else 0
        counts = (blocks, free, available, inodes, free_inodes, free_inodes)
        return os.statvfs_result((size, size, *counts, flag, name_max, fsid))

    def grow(self, size: int | None = None) -> tuple[int, int]:
        """Make the file system larger while it is in use. Returns the sizes before and after."""
        return self._raw.grow(size)

    def info(self) -> dict[str, Any]:
        """Return what the region is: medium, durability, backend, how the last mount ended."""
        return self._raw.info()

    def _kind(self, path: Path, *, follow_symlinks: bool = True) -> int | None:
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # Unlike os.path.exists, not for damage, nor in a forked child.
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise


def _parsed(mode: str) -> tuple[str, bool, bool]:
    """Read a mode of ``open``: its letter, whether for updates, whether of text."""
    kinds = [letter for letter in mode if letter in "rwax"]
    if len(kinds) != 1 or set(mode) - set("rwax+bt") or len(set(mode)) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    return kinds[0], "+" in mode, "b" not in mode


def _raw_mode(kind: str, update: bool) -> str:
    return f"{kind}b{'+' if update else ''}"


def _write_all(file: File, data: Buffer) -> None:
    with memoryview(data) as view, view.cast("B") as rest:
        done = 0
        while done < len(rest):
            # A full region gives ENOSPC if not one byte fits.
            done += file.write(rest[done:])


def _absolute(region: str) -> str:
    """Return a name of a region that holds in every directory."""
    # A range of physical memory has no directory.
    return region if region.startswith("physaddr:") else os.path.abspath(region)


def _identity(region: str) -> tuple[int, int] | str:
    """What a region is, whatever its name."""
    try:
        found = os.stat(region)
    except OSError:
        return region
    return (found.st_dev, found.st_ino)


def _reopen(region: str, options: dict[str, Any]) -> FileSystem:
    """Open a pickled file system: the one that this process has open, or anew."""
    with _opening:
        key, here = _identity(region), os.getpid()
        for fs in list(_mounted):
            same = fs._key == key and fs._options == options
            if same and fs._process == here and not fs.closed:
                return fs
        return open(region, **options)


def _after_fork() -> None:
    """In a forked child: the thread that opens a region is not there to release the lock."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _unmount_all() -> None:
    """Unmount at the end of the interpreter, whatever is still open."""
    here = os.getpid()
    for fs in list(_mounted):
        if fs._process != here or fs.closed:
            continue
        try:
            fs.unmount(force=True)
        except OSError as error:
            # The next opening recovers.
            print(f"pramfs: {fs!r}: {error}", file=sys.stderr)


atexit.register(_unmount_all)
