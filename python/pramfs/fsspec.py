"""A file system of fsspec: pandas, pyarrow, zarr, dask and others read and write through it.

A URL names the region and the path in it, or the path alone with the region as an option::

    pramfs:///dev/shm/region!/data/table.parquet
    pramfs:///data/table.parquet        storage_options={"region": "/dev/shm/region"}
"""

from __future__ import annotations

import errno
import io
import os
import stat as stats
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

try:
    from fsspec import AbstractFileSystem
    from fsspec.utils import stringify_path
except ImportError as error:  # pragma: no cover - by a test without fsspec
    raise ImportError("pramfs.fsspec needs fsspec: pip install fsspec") from error

from ._filesystem import FileSystem, _absolute, _reopen

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PramfsFileSystem"]

#: Between a region and a path in a URL, as in the URL of a jar file.
MARK = "!/"


def _split(path: Any) -> tuple[str, str]:
    """Split a URL into region and path. A path has no region, whatever its names are."""
    name: str = stringify_path(path)
    url = name.removeprefix("pramfs://").removeprefix("pramfs:")
    if url == name or MARK not in url:
        return "", url
    region, rest = url.split(MARK, 1)
    return region, "/" + rest


class PramfsFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of a region, by the interface of fsspec.

    Parameters
    ----------
    region:
        The path of a region, which is opened, or which this process has open already; or a
        :class:`pramfs.FileSystem`.
    options:
        Of :func:`pramfs.open`: ``read_only``, ``durability``, ...

    A region has one writer: fork no worker processes that use this object; a pickled one opens
    the region again, which is refused with the reason while another process has it open for
    writing. Open it with ``read_only=True`` for several processes that read.

    >>> import fsspec, pramfs
    >>> fs = fsspec.filesystem("pramfs", region=pramfs.memory(4 << 20))
    >>> fs.pipe("/a/b", b"contents")
    >>> fs.cat("/a/b"), fs.ls("/a", detail=False)
    (b'contents', ['/a/b'])
    """

    protocol = "pramfs"
    root_marker = "/"
    _OPTIONS: ClassVar[tuple[str, ...]] = (
        "read_only",
        "durability",
        "protect",
        "data",
        "errors",
        "atime",
        "backend",
        "cache_bytes",
        "discard",
        "require_dax",
        "preallocate",
        "fault_guard",
        "room_to_grow",
    )

    def __init__(
        self, region: str | os.PathLike[str] | FileSystem | None = None, **options: Any
    ) -> None:
        super().__init__(region=region, **options)
        given = {name: options[name] for name in self._OPTIONS if name in options}
        if region is None:
            raise ValueError(
                "no region: write pramfs:///PATH/OF/REGION!/PATH/OF/FILE, or give the option "
                "region (storage_options of pandas)"
            )
        if isinstance(region, FileSystem):
            if given:
                raise ValueError("options apply to a region that is opened here")
            self.fs = region
        else:
            # As pramfs.open keeps them.
            given.setdefault("read_only", False)
            self.fs = _reopen(_absolute(os.fsdecode(region)), given)

    @property
    def fsid(self) -> str:
        """A name of this file system."""
        return f"pramfs-{self.fs.region or id(self.fs)}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        return "/" + _split(path)[1].strip("/")

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path: with the region, unless it is in memory."""
        path = self._strip_protocol(name)
        if self.fs.region:
            return f"pramfs://{_absolute(self.fs.region)}!{path}"
        # An empty region, so that a mark in the path is not taken for its end.
        return f"pramfs://!{path}" if MARK in path else f"pramfs://{path}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        region = _split(path)[0]
        return {"region": region} if region else {}

    def close(self) -> None:
        """Close the region, unless files or maps of it are open: for all objects of it."""
        try:
            self.fs.close()
        finally:
            # fsspec keeps instances, some of one region: of other threads, and of other options
            # of fsspec. The next one is to open the region again.
            for kind in _with_subclasses(PramfsFileSystem):
                for token, kept in list(kind._cache.items()):
                    if kept.fs.closed:
                        kind._cache.pop(token, None)

    def _details(self, path: str, *, follow: bool) -> dict[str, Any]:
        found = self.fs.lstat(path)
        kinds = {stats.S_IFREG: "file", stats.S_IFDIR: "directory", stats.S_IFLNK: "link"}
        kind = kinds.get(stats.S_IFMT(found.st_mode), "other")
        details = {
            "name": path,
            "size": found.st_size if kind == "file" else 0,
            "type": kind,
            "created": found.st_ctime,
            "mtime": found.st_mtime,
            "mode": found.st_mode,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "islink": kind == "link",
        }
        if kind == "link":
            details["destination"] = self.fs.readlink(path)
            target = self._target(path)
            if target is not None and stats.S_ISREG(target.st_mode):
                details["size"], details["type"] = target.st_size, "file"
            elif target is not None and follow:
                is_directory = stats.S_ISDIR(target.st_mode)
                details["type"] = "directory" if is_directory else "other"
        return details

    def _target(self, path: str) -> os.stat_result | None:
        """Where a symbolic link leads: nowhere if it dangles or leads to itself."""
        try:
            return self.fs.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        """Return size, type and times of a path.

        The type is that of what a symbolic link leads to, and "link" if it leads nowhere.
        """
        return self._details(self._strip_protocol(path), follow=True)

    def exists(self, path: Any, **kwargs: Any) -> bool:
        """Return whether a path exists. A symbolic link that leads nowhere does not."""
        return self.fs.exists(self._strip_protocol(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        """Return whether a path exists, be it a symbolic link that leads nowhere."""
        return self.fs._kind(self._strip_protocol(path), follow_symlinks=False) is not None

    def ls(self, path: Any, detail: bool = False, **kwargs: Any) -> list[Any]:
        """List a directory, or the one file of a path.

        In a list, a symbolic link to a directory has the type "link", so that ``find``, ``walk``
        and recursive copies do not follow it: it may lead to a directory that contains it.
        """
        name = self._strip_protocol(path)
        found = self.info(name)
        if found["type"] != "directory":
            return [found] if detail else [name]
        names = sorted(self.fs.listdir(name))
        paths = [f"{name.rstrip('/')}/{entry}" for entry in names]
        return list(self._listed(paths)) if detail else paths

    def _listed(self, paths: list[str]) -> Iterator[dict[str, Any]]:
        for path in paths:
            try:
                yield self._details(path, follow=False)
            except FileNotFoundError:
                # Removed since it was listed.
                continue

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a directory."""
        name = self._strip_protocol(path)
        if self.fs.exists(name):
            raise FileExistsError(name)
        if create_parents:
            self.fs.makedirs(name)
        else:
            self.fs.mkdir(name)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Make a directory and its missing parents."""
        self.fs.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        """Remove an empty directory."""
        self.fs.rmdir(self._strip_protocol(path))

    def rm_file(self, path: Any) -> None:
        """Remove a file."""
        self.fs.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and trees with ``recursive``.

        A symbolic link is removed itself. A pattern stands for all that it matches, directories
        too, unless a file has that name. Without ``recursive``, a directory among the paths is an
        error, and nothing is removed. ``maxdepth`` keeps what is deeper in a tree: removing a
        directory that is not empty then is an error.
        """
        names: list[str] = []
        for name in self._strip_protocol(path if isinstance(path, list) else [path]):
            names += self._matches(name) if self._is_pattern(name) else [name]
        trees = {name for name in names if not self.fs.islink(name) and self.fs.isdir(name)}
        if trees and not recursive:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), min(trees))
        for name in names:
            # A pattern also matches what is in the trees that it matches.
            above = name.rstrip("/").rsplit("/", 1)[0]
            while above and above not in trees:
                above = above.rsplit("/", 1)[0]
            if above:
                continue
            if name not in trees:
                self.fs.unlink(name)
            elif maxdepth is None:
                self.fs.rmtree(name)
            else:
                self._rm_down_to(name, maxdepth)

    def _is_pattern(self, name: str) -> bool:
        return any(letter in name for letter in "*?[") and not self.lexists(name)

    def _matches(self, pattern: str) -> list[str]:
        found = sorted(each for each in self.glob(pattern) if each != self.root_marker)
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), pattern)
        return found

    def _rm_down_to(self, name: str, maxdepth: int) -> None:
        found = self.find(name, maxdepth=maxdepth, withdirs=True, detail=True)
        found.pop(name, None)
        # Each directory after its contents.
        for each in sorted(found, reverse=True):
            is_tree = found[each]["type"] == "directory"
            (self.fs.rmdir if is_tree else self.fs.unlink)(each)
        self.fs.rmdir(name)

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """Copy a file, on the medium.

        Of a symbolic link to a file, that file is copied; any other link is copied itself.
        """
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.fs.islink(source) and source not in kwargs.get("follow", ()):
            found = self._target(source)
            if found is None or not stats.S_ISREG(found.st_mode):
                self.fs.makedirs(self._parent(target), exist_ok=True)
                self._copy_link(source, target)
                return
        if self.fs.isdir(source):
            self.fs.makedirs(target, exist_ok=True)
            return
        self.fs.makedirs(self._parent(target), exist_ok=True)
        self.fs.copy(source, target)

    def _copy_link(self, source: str, target: str) -> None:
        destination = self.fs.readlink(source)
        try:
            self.fs.symlink(destination, target)
        except FileExistsError:
            # As a file replaces a file.
            self.fs.unlink(target)
            self.fs.symlink(destination, target)

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files, and trees with ``recursive``.

        A path that is named, or that a pattern matches, is followed if it is a symbolic link to
        a directory. Such a link in a tree is copied itself.
        """
        follow: set[str] = set()
        if recursive and not (isinstance(path1, list) and isinstance(path2, list)):
            for each in path1 if isinstance(path1, list) else [path1]:
                name = self._strip_protocol(each)
                follow.add(name)
                if any(letter in name for letter in "*?["):
                    follow.update(self.glob(name, maxdepth=maxdepth))
        follow = {name for name in follow if self.fs.isdir(name)}
        super().copy(path1, path2, recursive, maxdepth, on_error, follow=follow, **kwargs)

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Rename atomically: a file or a tree."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if any(letter in source for letter in "*?["):
            super().mv(source, target, recursive=recursive, maxdepth=maxdepth, **kwargs)
        else:
            self.fs.rename(source, target)

    mv_file = mv

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Read a file, or a range of it; negative numbers count from its end."""
        with self.fs.open(self._strip_protocol(path), "rb", 0) as file:
            size = file.size()
            first, last, _ = slice(start, end).indices(size)
            return file.pread(max(last - first, 0), first)

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file, atomically: after a crash it is the old or the new one."""
        name = self._strip_protocol(path)
        self.fs.makedirs(self._parent(name), exist_ok=True)
        if mode == "create":
            with self.fs.open(name, "xb") as file:
                file.write(value)
        else:
            self.fs.replace_bytes(name, value)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        """Create an empty file, or set the times of an existing one without ``truncate``."""
        name = self._strip_protocol(path)
        with self.fs.open(name, "wb" if truncate else "ab", 0):
            pass
        self.fs.utime(name)

    def created(self, path: Any) -> datetime:
        """Return the time of the last change of attributes: fsspec has one name for both."""
        return self._time(self.fs.stat(self._strip_protocol(path)).st_ctime)

    def modified(self, path: Any) -> datetime:
        """Return the time of the last change of the contents."""
        return self._time(self.fs.stat(self._strip_protocol(path)).st_mtime)

    @staticmethod
    def _time(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, tz=timezone.utc)

    def chmod(self, path: Any, mode: int) -> None:
        """Set the permission bits."""
        self.fs.chmod(self._strip_protocol(path), mode)

    def open_map(self, path: Any, writable: bool = False) -> Any:
        """Map a whole file as memory: a :class:`pramfs.Map`."""
        return self.fs.map(self._strip_protocol(path), writable=writable)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        name = self._strip_protocol(path)
        if "r" not in mode and not self.fs.isdir(self._parent(name)):
            self.fs.makedirs(self._parent(name), exist_ok=True)
        # A file that is only read is no part of a transaction.
        if autocommit or ("r" in mode and "+" not in mode):
            return self.fs.open(name, mode if "b" in mode else mode + "b")
        return _Transacted(self.fs, name, mode)


def _with_subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for below in kind.__subclasses__():
        yield from _with_subclasses(below)


class _Transacted:
    """A file of a transaction of fsspec: it has its name once the transaction is complete."""

    def __init__(self, fs: FileSystem, path: str, mode: str) -> None:
        if "w" not in mode and "x" not in mode:
            raise ValueError(f"a transaction writes whole files: mode {mode!r} is not possible")
        self._fs, self._path = fs, os.fsencode(path)
        self._exclusive = "x" in mode
        raw, self._aside, self._private = fs._create_aside(self._path)
        self._file = io.BufferedWriter(raw, 1 << 16)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Transacted:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def commit(self) -> None:
        """Give the file its name, atomically, or remove what was written."""
        try:
            self._file.close()
            self._fs._take_place(
                self._aside, self._path, private=self._private, replace=not self._exclusive
            )
        except BaseException:
            self._fs._unlink_aside(self._aside)
            raise

    def discard(self) -> None:
        """Remove what was written, if ``commit`` has not done so."""
        try:
            self._file.close()
        finally:
            self._fs._unlink_aside(self._aside)
