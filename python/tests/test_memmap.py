"""Arrays of numpy on the medium."""

import pickle

import pytest

import pramfs

from conftest import needs, run

np = needs("numpy")


def test_frombuffer_is_the_medium(fs):
    fs.write_bytes("/f", np.arange(1000, dtype="<u4").tobytes())
    m = fs.map("/f", writable=True)
    array = np.frombuffer(m, dtype="<u4")
    assert array.ctypes.data == m.address
    array[7] = 70
    m.persist()
    assert fs.read_bytes("/f")[28:32] == (70).to_bytes(4, "little")
    with pytest.raises(BufferError):
        m.close()
    del array
    m.close()


def test_frombuffer_of_map_for_reading_is_read_only(fs):
    fs.write_bytes("/f", bytes(64))
    array = np.frombuffer(fs.map("/f"), dtype="u1")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_memmap_creates_opens_and_persists(fs):
    made = fs.memmap("/a", "float32", "w+", shape=(100, 20))
    assert made.shape == (100, 20) and not made.any()
    made[3] = 1.5
    made[3].persist()
    made.flush()
    assert fs.getsize("/a") == 8000
    again = fs.memmap("/a", "float32", shape=(100, 20))
    assert isinstance(again, pramfs.numpy.memmap)
    assert float(again.sum()) == 30.0
    with pytest.raises(ValueError, match="read-only"):
        again[0, 0] = 1
    with fs.memmap("/a", "float32", "r+", offset=80, shape=(5,))._map as part:
        assert len(part) == 20
    # A shape of integers that numpy has calculated.
    assert fs.memmap("/a", "float32", shape=np.int64(2000)).shape == (2000,)
    assert fs.memmap("/a", "float32", shape=[np.int32(100), 20]).shape == (100, 20)
    with pytest.raises(TypeError):
        fs.memmap("/a", "float32", shape=2.5)
    fortran = fs.memmap("/a", "float32", shape=(20, 100), order="F")
    assert fortran.flags.f_contiguous and fortran[0, 3] == 1.5


def test_memmap_persists_the_range_of_a_slice(fs):
    array = fs.memmap("/a", "u1", "w+", shape=10000)
    ranges = []

    class Spy:
        address = array._map.address

        def persist(self, offset, length):
            ranges.append((offset, length))

    part = array[5000:6000:10]
    part._map = Spy()
    part.persist()
    assert ranges == [(5000, 991)]


def test_persist_with_numpy_before_2_takes_its_old_name(fs, monkeypatch):
    bounds = (np.lib.array_utils if hasattr(np.lib, "array_utils") else np).byte_bounds
    monkeypatch.delattr(np.lib, "array_utils", raising=False)
    monkeypatch.setattr(np, "byte_bounds", bounds, raising=False)
    array = fs.memmap("/a", "u1", "w+", shape=100)
    array[3:5] = 7
    array[3:5].persist()
    assert fs.read_bytes("/a")[2:6] == b"\0\7\7\0"


def test_copies_and_results_are_ordinary(fs):
    array = fs.memmap("/a", "f8", "w+", shape=10)
    assert type(array + 1) is np.ndarray
    assert type(array.sum()) is np.float64
    assert type(array[2:4]) is pramfs.numpy.memmap
    assert type(array[[1, 2]]) is np.ndarray
    with pytest.raises(ValueError, match="copy"):
        array.copy().persist()
    kept = pickle.loads(pickle.dumps(array))
    assert type(kept) is np.ndarray and kept.shape == (10,)


def test_memmap_with_impossible_arguments_is_refused(fs):
    fs.write_bytes("/f", bytes(10))
    with pytest.raises(ValueError, match="multiple"):
        fs.memmap("/f", "f8")
    with pytest.raises(ValueError, match="shape must be given"):
        fs.memmap("/g", "f8", "w+")
    with pytest.raises(ValueError, match="mode must be"):
        fs.memmap("/f", "u1", "c")
    with pytest.raises(TypeError, match="objects"):
        fs.memmap("/f", "O")
    with pytest.raises(OSError, match="past the end"):
        fs.memmap("/f", "u1", shape=11)
    with pytest.raises(FileNotFoundError):
        fs.memmap("/no", "u1")


def test_array_outlives_map_file_and_file_system(region):
    fs = pramfs.open(region)
    array = fs.memmap("/a", "u4", "w+", shape=1 << 20)
    array[:] = 7
    fs.truncate("/a", 0)
    fs.unlink("/a")
    fs.close()
    assert int(array.sum()) == 7 << 20
    array[5] = 8
    array.persist()
    del array
    with pramfs.open(region) as fs:
        assert fs.listdir("/") == []


def test_large_array_has_huge_leaves(region):
    with pramfs.open(region) as fs:
        array = fs.memmap("/a", "u1", "w+", shape=8 << 20)
        array[:] = 1
        with fs.open("/a", "rb", 0) as file:
            assert any(extent.length >= 2 << 20 for extent in file.extents())
        assert array.ctypes.data % (2 << 20) == 0
        del array


def test_without_numpy_only_the_helper_fails():
    said = run(
        """
import sys
sys.modules["numpy"] = None
import pramfs
fs = pramfs.memory(4 << 20)
fs.write_bytes("/f", b"works")
with fs.map("/f") as m:
    print(m.read().decode())
try:
    fs.memmap("/f")
except ImportError as error:
    print(error)
"""
    )
    assert said.splitlines()[0] == "works"
    assert "pip install numpy" in said
