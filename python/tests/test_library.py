"""The library of the wheel beside the system's libpramfs, in one process."""

import ctypes
import ctypes.util
import os

import pytest

import pramfs

from conftest import MIB, run, skipped


@pytest.fixture
def library():
    """The path of libpramfs: PRAMFS_LIBRARY, or that of the system."""
    path = os.environ.get("PRAMFS_LIBRARY") or ctypes.util.find_library("pramfs")
    if not path:
        skipped("no libpramfs (make install-lib, or PRAMFS_LIBRARY)")
    return path


def test_both_libraries_work_in_one_process(library, region):
    other = region.with_name("other")
    pramfs.format(other, 32 * MIB)
    said = run(
        """
import ctypes, os, sys
import pramfs

path, mine, theirs = sys.argv[1:]
fs = pramfs.open(mine)
c = ctypes.CDLL(path)
c.pramfs_errormsg.restype = ctypes.c_char_p
handle, file = ctypes.c_void_p(), ctypes.c_void_p()

# One region is for one of them.
print(c.pramfs_open(ctypes.byref(handle), os.fsencode(mine), None))
assert c.pramfs_open(ctypes.byref(handle), os.fsencode(theirs), None) == 0, c.pramfs_errormsg()
try:
    pramfs.open(theirs)
except pramfs.BusyError as error:
    print(error.errno)

# Both work, by turns, and a fault of either medium is its own.
fs.write_bytes("/f", b"x" * (4 << 20))
view = memoryview(fs.map("/f"))
assert c.pramfs_mkdir(handle, b"/d", 0o755) == 0, c.pramfs_errormsg()
assert c.pramfs_mkdir(handle, b"/d", 0o755) == -17
print(c.pramfs_errormsg().decode())
os.truncate(mine, 1 << 20)
sum(view[::4096])
assert c.pramfs_mkdir(handle, b"/e", 0o755) == 0, c.pramfs_errormsg()

# A forked child can use neither, and unmounts nothing.
child = os.fork()
if child == 0:
    refused = c.pramfs_mkdir(handle, b"/child", 0o755) == -5
    try:
        fs.listdir("/")
    except pramfs.ForkedError:
        os._exit(0 if refused else 2)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert c.pramfs_unmount(handle) == 0, c.pramfs_errormsg()
with pramfs.open(theirs) as fs2:
    print(sorted(fs2.listdir()))
""",
        library,
        region,
        other,
    )
    lines = said.splitlines()
    assert lines[0] == "-16" and lines[1] == "16"
    assert lines[2].startswith("cannot make the directory /d") or "/d" in lines[2]
    assert lines[3:] == ["0", "['d', 'e']"]


def test_module_exports_no_symbol_of_libpramfs(library):
    """Neither takes calls of the other, whatever is loaded first and with RTLD_GLOBAL."""
    module = ctypes.CDLL(pramfs._native.__file__)
    assert not hasattr(module, "pramfs_open")
    assert ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL).pramfs_open
