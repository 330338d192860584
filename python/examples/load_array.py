#!/usr/bin/env python3
"""Load an array of 1 GiB without copying it.

    load_array.py REGION [MIB]

Makes a region at REGION with an array in it, unless it is there; opens it as a program does when
it starts, and prints how long it takes until the array can be used, beside the time of a copy.
"""

import os
import sys
import time

import numpy as np

import pramfs

ROW = 1024  # numbers of 4 bytes


def make(region: str, size: int) -> None:
    """Make a region with an array of `size` bytes."""
    pramfs.format(region, size + size // 8 + (16 << 20))
    with pramfs.open(region) as fs:
        array = fs.memmap("/array", "float32", "w+", shape=(size // 4 // ROW, ROW))
        for at in range(0, len(array), 4096):
            array[at : at + 4096] = np.arange(at, min(at + 4096, len(array)))[:, None]
        array.persist()
        del array


def main() -> None:
    """Run the example."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    region, size = sys.argv[1], int(sys.argv[2] if len(sys.argv) == 3 else 1024) << 20
    if not os.path.exists(region):
        make(region, size)

    begin = time.perf_counter()
    fs = pramfs.open(region)
    opened = time.perf_counter()
    array = fs.memmap("/array", "float32").reshape(-1, ROW)
    last = float(array[-1, -1])
    mapped = time.perf_counter()
    copy = np.frombuffer(fs.read_bytes("/array"), "float32").reshape(-1, ROW)
    copied = time.perf_counter()

    assert last == len(array) - 1 == copy[-1, 0]
    assert np.shares_memory(array, np.frombuffer(array._map, "float32"))
    print(f"array of {array.nbytes >> 20} MiB, {array.shape[0]} rows of {array.shape[1]} numbers")
    print(f"region opened          {(opened - begin) * 1e6:12.0f} us")
    print(f"array mapped, used     {(mapped - opened) * 1e6:12.0f} us")
    print(f"array copied instead   {(copied - mapped) * 1e6:12.0f} us")
    del array
    fs.unmount()


if __name__ == "__main__":
    main()
