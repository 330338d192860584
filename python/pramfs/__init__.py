"""A crash-safe file system for persistent memory, as a library.

>>> import pramfs
>>> fs = pramfs.memory(16 << 20)            # or pramfs.open("/dev/dax0.0")
>>> fs.makedirs("/var/log")
>>> with fs.open("/var/log/events", "a") as log:
...     print(log.write("durable when the file is flushed\\n"))
33
>>> fs.read_text("/var/log/events")
'durable when the file is flushed\\n'
>>> fs.close()

Files are ``io.RawIOBase``; :class:`Map` is a range of a file as memory, with the buffer
protocol. ``docs/python.md`` of the project describes the package.
"""

from ._file import Extent, File
from ._filesystem import DirEntry, FileSystem, format, memory, open
from ._lease import Lease, lease
from ._native import (
    VERSION as __version__,
    BusyError,
    CorruptError,
    ForkedError,
    LostError,
    Map,
    NotMountableError,
)

__all__ = [
    "BusyError",
    "CorruptError",
    "DirEntry",
    "Extent",
    "File",
    "FileSystem",
    "ForkedError",
    "Lease",
    "LostError",
    "Map",
    "NotMountableError",
    "__version__",
    "format",
    "lease",
    "memory",
    "open",
]
