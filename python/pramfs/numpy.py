"""Arrays of numpy on the medium. The rest of the package needs no numpy."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

try:
    import numpy as np
except ImportError as error:  # pragma: no cover - by a test without numpy
    raise ImportError(
        "pramfs.numpy and FileSystem.memmap need numpy: pip install numpy. "
        "Map has the buffer protocol, which needs nothing"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ._filesystem import FileSystem, Path
    from ._native import Map

__all__ = ["memmap"]


class memmap(np.ndarray[Any, np.dtype[Any]]):
    """An array whose bytes are those of a file: no copy is made, nothing is read ahead.

    The arguments are those of ``numpy.memmap``, with a file system first. Modes: ``"r"`` for
    reading, ``"r+"`` for reading and storing, ``"w+"`` creates a file, or replaces its contents
    with zeros. Without a shape, the array has one dimension and reaches to the end of the file.

    Views and slices share the map, which lives as long as the last of them. Stores are durable
    after :meth:`persist`, which takes the range of the array or slice that it is called on.

    >>> import pramfs
    >>> fs = pramfs.memory(16 << 20)
    >>> a = fs.memmap("/array", "float64", "w+", shape=(1000, 100))
    >>> a[7] = 1.5
    >>> a[7].persist()
    >>> float(fs.memmap("/array", "float64").sum())
    150.0
    """

    _map: Map | None

    def __new__(
        cls,
        fs: FileSystem,
        path: Path,
        dtype: DTypeLike = "uint8",
        mode: Literal["r", "r+", "w+"] = "r",
        offset: int = 0,
        shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
        order: Literal["C", "F"] = "C",
    ) -> memmap:
        if mode not in ("r", "r+", "w+"):
            raise ValueError(f"mode must be one of 'r', 'r+', 'w+' (got {mode!r})")
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError("an array of Python objects cannot be kept in a file")
        lengths = None if shape is None else _lengths(shape)
        if mode == "w+" and lengths is None:
            raise ValueError("shape must be given if mode == 'w+'")
        with fs.open(path, {"r": "rb", "r+": "r+b", "w+": "w+b"}[mode], buffering=0) as file:
            if mode == "w+":
                file.truncate(offset + _bytes(lengths, kind))
            if lengths is None:
                left = file.size() - offset
                if left % kind.itemsize:
                    raise ValueError(
                        "size of available data is not a multiple of the data-type size"
                    )
                lengths = (left // kind.itemsize,)
            # Beyond 2 MiB, the kernel maps huge pages where the blocks allow it.
            mapped = file.map(offset, _bytes(lengths, kind), writable=mode != "r")
        # Its types name those that have a buffer, and not the protocol.
        array = super().__new__(cls, lengths, kind, buffer=mapped, order=order)  # type: ignore[arg-type]
        array._map = mapped
        return array

    def __array_finalize__(self, source: Any) -> None:
        mapped = getattr(source, "_map", None)
        # A copy has memory of its own.
        self._map = mapped if mapped is not None and np.may_share_memory(self, source) else None

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Results of calculations are ordinary arrays, as those of ``numpy.memmap``."""
        if self is array or type(self) is not memmap:
            return array
        if return_scalar or array.shape == ():
            return array[()]
        return np.asarray(array)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if type(found) is memmap and found._map is None:
            return found.view(np.ndarray)
        return found

    def __reduce__(self) -> Any:
        """Pickle the values. Another process maps the file itself."""
        return np.array(self, subok=False).__reduce__()

    def persist(self) -> None:
        """Make the stores to this array or slice durable."""
        if self._map is None:
            raise ValueError("the array is a copy: it has memory of its own, not that of a file")
        low, high = _byte_bounds(self)
        if high > low:
            start = low - self._map.address
            self._map.persist(start, high - low)

    #: As ``numpy.memmap.flush``.
    flush = persist


def _byte_bounds(array: memmap) -> tuple[int, int]:
    """Return the addresses of the first byte and behind the last one."""
    # numpy has it there since 2.0, and no longer in its first place.
    place = getattr(np.lib, "array_utils", None) or np
    low, high = place.byte_bounds(array)
    return int(low), int(high)


def _lengths(shape: Any) -> tuple[int, ...]:
    """Return a shape as integers of Python: one or several, also of numpy, as ``numpy.memmap``."""
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(operator.index(length) for length in shape)


def _bytes(lengths: tuple[int, ...] | None, kind: np.dtype[Any]) -> int:
    count = 1
    for length in lengths or ():
        count *= length
    return count * kind.itemsize
