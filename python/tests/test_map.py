"""Maps: the buffer protocol on the medium."""

import errno
import gc
import weakref

import pytest

import pramfs

from conftest import run


@pytest.fixture
def table(fs):
    """A file of 16 KiB."""
    fs.write_bytes("/table", bytes(16384))
    return fs


def test_map_shows_file_without_copy(table):
    with table.map("/table", writable=True) as m:
        assert (len(m), m.readonly, m.exports) == (16384, False, 0)
        with memoryview(m) as view:
            assert (view.format, view.itemsize, view.nbytes, view.readonly) == ("B", 1, 16384, False)
            view[100:105] = b"hello"
            assert table.read_bytes("/table")[100:105] == b"hello"
            assert m.exports == 1
        m.persist(100, 5)
        m.flush(0, 64)
        m.drain()
        m.persist()
        with table.open("/table", "r+b", 0) as file:
            file.pwrite(b"world", 200)
        assert m.read(200, 5) == b"world"
        m.write(300, b"bytes")
        assert bytes(m)[300:305] == b"bytes"


def test_map_for_reading_refuses_stores(table):
    with table.map("/table") as m:
        assert m.readonly
        with memoryview(m) as view, pytest.raises(TypeError):
            view[0] = 1
        for refused in (lambda: m.write(0, b"x"), lambda: m.store(0, 1)):
            with pytest.raises(PermissionError) as caught:
                refused()
            assert caught.value.errno == errno.EACCES
        with table.open("/table", "rb", 0) as file, pytest.raises(BufferError, match="reading only"):
            file.readinto(m)


def test_numbers_are_atomic_and_aligned(table):
    with table.map("/table", 4096, 4096, writable=True) as m:
        assert m.fetch_add(8, 5) == 0
        assert m.load(8) == 5
        assert m.compare_exchange(8, 4, 9) == 5
        assert m.compare_exchange(8, 5, 2**64 - 1) == 5
        assert m.load(8) == 2**64 - 1
        m.store(16, 7)
        assert table.read_bytes("/table")[4096 + 16] == 7
        for at in (1, 4096, 2**63):
            with pytest.raises(OSError) as caught:
                m.load(at)
            assert caught.value.errno == errno.EINVAL
        with pytest.raises(OverflowError):
            m.store(0, -1)


def test_range_outside_of_file_or_map_is_refused(table):
    for at, length in ((0, 16385), (16384, 1), (0, 0), (2**63, 2**63)):
        with pytest.raises(OSError) as caught:
            table.map("/table", at, length)
        assert caught.value.errno in (errno.EINVAL, errno.EFBIG)
    with table.map("/table") as m:
        for at, length in ((0, 16385), (16385, None), (2**64 - 1, 1)):
            with pytest.raises(OSError):
                m.persist(at, length)
        with pytest.raises((OSError, ValueError)):
            m.read(16384, 1)


def test_close_with_exported_buffer_is_refused(table):
    m = table.map("/table", writable=True)
    view = memoryview(m)
    part = view[10:20]
    with pytest.raises(BufferError, match="1 buffers of it exist"):
        m.close()
    part[0] = 9
    assert m.read(10, 1) == b"\x09"
    part.release()
    view.release()
    m.close()
    m.close()
    assert m.closed
    for refused in (lambda: memoryview(m), lambda: m.read(0, 1), lambda: len(m)):
        with pytest.raises((ValueError, BufferError), match="closed"):
            refused()


def test_map_that_is_dropped_lives_as_long_as_its_buffer(table):
    m = table.map("/table", writable=True)
    gone = weakref.ref(m)
    view = memoryview(m)
    del m
    gc.collect()
    assert gone() is not None
    view[0] = 1
    assert table.read_bytes("/table")[0] == 1
    view.release()
    gc.collect()
    assert gone() is None


def test_map_outlives_truncation_removal_and_reuse(table):
    with table.map("/table", writable=True) as m, memoryview(m) as view:
        view[8192:8196] = b"kept"
        table.truncate("/table", 0)
        table.unlink("/table")
        # The blocks are not given to another file.
        table.write_bytes("/other", b"\xee" * (16 << 20))
        assert bytes(view[8192:8196]) == b"kept"
        view[0:4] = b"here"
        m.persist(0, 4)
        assert b"here" not in table.read_bytes("/other")


def test_map_outlives_forced_unmount(region):
    fs = pramfs.open(region)
    fs.write_bytes("/f", b"x" * 8192)
    m = fs.map("/f", writable=True)
    with memoryview(m) as view:
        fs.unmount(force=True)
        assert bytes(view[:4]) == b"xxxx"
        view[0] = 0
        with pytest.raises(OSError) as caught:
            m.persist()
        assert caught.value.errno == errno.EIO
        with pytest.raises(pramfs.BusyError):
            pramfs.open(region)
    m.close()
    with pramfs.open(region) as fs:
        assert len(fs.read_bytes("/f")) == 8192


def test_map_keeps_file_system_mounted(region):
    fs = pramfs.open(region)
    fs.write_bytes("/f", b"x" * 8192)
    m = fs.map("/f", writable=True)
    fs.close()
    m.write(0, b"y")
    m.persist()
    m.close()
    with pramfs.open(region) as fs:
        assert fs.read_bytes("/f")[:2] == b"yx"
        assert fs.info()["was_clean"] is True


def test_region_file_truncated_under_map_gives_error_instead_of_sigbus(region):
    said = run(
        """
import os, sys, pramfs
fs = pramfs.open(sys.argv[1])
fs.write_bytes("/f", b"x" * (4 << 20))
m = fs.map("/f")
view = memoryview(m)
os.truncate(sys.argv[1], 1 << 20)
print(sum(view[::4096]) < 1024 * ord("x"))
try:
    m.read(3 << 20, 4096)
except OSError as error:
    print(error.errno)
""",
        region,
    )
    assert said.split() == ["True", str(errno.EIO)]


def test_map_is_described(table):
    with table.map("/table") as m:
        assert repr(m) == "<pramfs.Map \"/table\" 16384 bytes, readonly>"
        assert m.name == "/table" and m.address % 4096 == 0
        m.populate()
    assert "closed" in repr(m)
