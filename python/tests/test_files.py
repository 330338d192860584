"""Files: as those of io.open."""

import io
import os
import pickle

import pytest

import pramfs


def test_open_text_writes_and_reads(fs):
    with fs.open("/t", "w", encoding="utf-8") as file:
        assert file.write("äö\nzwei\n") == 8
    with fs.open("/t", encoding="utf-8") as file:
        assert list(file) == ["äö\n", "zwei\n"]
    assert fs.read_text("/t") == "äö\nzwei\n"
    with fs.open("/t", "a+", encoding="utf-8") as file:
        file.write("drei")
        file.seek(0)
        assert file.read() == "äö\nzwei\ndrei"


def test_open_unbuffered_is_raw_io_base(fs):
    with fs.open("/f", "w+b", 0) as file:
        assert isinstance(file, io.RawIOBase)
        assert isinstance(file, pramfs.File)
        assert (file.readable(), file.writable(), file.seekable()) == (True, True, True)
        assert file.write(b"0123456789") == 10
        assert file.seek(2) == 2
        buffer = bytearray(3)
        assert file.readinto(buffer) == 3
        assert buffer == b"234"
        assert (file.tell(), file.read(2), file.read(), file.read()) == (5, b"56", b"789", b"")
        assert file.seek(-4, os.SEEK_END) == 6
        assert io.BufferedReader(file).read() == b"6789"
    with pytest.raises(ValueError, match="closed"):
        file.tell()


def test_open_in_every_mode_agrees_with_io(fs, tmp_path):
    for exists in (True, False):
        for mode in ("rb", "r+b", "wb", "w+b", "ab", "a+b", "xb", "x+b"):
            outcomes = []
            for open_, base in ((fs.open, "/"), (io.open, f"{tmp_path}/")):
                name = f"{base}{mode}{exists}"
                if exists:
                    with open_(name, "wb") as file:
                        file.write(b"before")
                outcome = []
                try:
                    with open_(name, mode) as file:
                        outcome.append((file.readable(), file.writable(), file.tell()))
                        if file.writable():
                            outcome.append(file.write(b"new"))
                        if file.readable():
                            file.seek(0)
                            outcome.append(file.read())
                    with open_(name, "rb") as file:
                        outcome.append(file.read())
                except OSError as error:
                    outcome.append((type(error), error.errno))
                outcomes.append(outcome)
            assert outcomes[0] == outcomes[1], (mode, exists)


@pytest.mark.parametrize("mode", ["", "rw", "rbt", "z", "r++", "+b"])
def test_open_with_invalid_mode_is_refused(fs, mode):
    with pytest.raises(ValueError, match="mode"):
        fs.open("/f", mode)


def test_file_opened_for_reading_refuses_writes(fs):
    fs.write_bytes("/f", b"x")
    with fs.open("/f", "rb", 0) as file:
        for refused in (lambda: file.write(b"y"), lambda: file.truncate(0)):
            with pytest.raises(io.UnsupportedOperation):
                refused()
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
    with fs.open("/f", "wb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.read()


def test_reads_and_writes_at_offsets_leave_position(fs):
    with fs.open("/f", "w+b", 0) as file:
        assert file.pwrite(b"abcdef", 4) == 6
        assert file.tell() == 0
        assert file.pread(100, 0) == b"\0\0\0\0abcdef"
        assert file.pread(100, 1000) == b""
        assert file.preadinto(memoryview(bytearray(3)), 4) == 3
        assert (file.append(b"!"), file.size()) == (10, 11)
        file.write_atomic(b"ABC", 4)
        assert file.pread(4, 4) == b"ABCd"
        assert file.truncate(5) == 5
        assert file.size() == 5


def test_write_takes_any_contiguous_buffer(fs):
    import array

    with fs.open("/f", "w+b", 0) as file:
        assert file.write(array.array("d", [1.0, 2.0])) == 16
        assert file.write(memoryview(b"xyz")) == 3
        with pytest.raises(TypeError):
            file.write("text")
        with pytest.raises(BufferError):
            file.write(memoryview(b"abcd")[::2])
        with pytest.raises(BufferError):
            file.readinto(b"constant")


def test_fallocate_and_extents_describe_file(fs):
    with fs.open("/f", "w+b", 0) as file:
        file.fallocate(0, 1 << 20)
        assert file.size() == 1 << 20
        assert all(extent.unwritten for extent in file.extents())
        file.pwrite(b"x" * 8192, 0)
        first = file.extents()[0]
        assert isinstance(first, pramfs.Extent)
        assert (first.file_offset, first.unwritten, first.lost) == (0, False, False)
        file.fallocate(0, 4096, "punch")
        assert file.pread(2, 4095) == b"\0x"
        with pytest.raises(ValueError, match="allocate, punch or zero"):
            file.fallocate(0, 1, "other")


def test_write_to_full_region_is_enospc(fs):
    with fs.open("/f", "wb", 0) as file, pytest.raises(OSError, match="space") as caught:
        while True:
            file.write(bytes(1 << 20))
    assert caught.value.errno == 28
    assert caught.value.filename == "/f"


def test_removed_file_stays_usable(fs):
    with fs.open("/f", "w+b", 0) as file:
        file.write(b"kept")
        fs.unlink("/f")
        assert file.pread(4, 0) == b"kept"
        assert file.stat().st_nlink == 0


def test_replace_bytes_leaves_nothing_aside(fs):
    fs.replace_bytes("/f", b"one")
    fs.replace_bytes("/f", b"two")
    assert fs.read_bytes("/f") == b"two"
    with pytest.raises(TypeError):
        fs.replace_bytes("/f", "text")
    assert fs.listdir("/") == ["f"]


def test_pickle_of_written_file_is_refused(fs):
    with fs.open("/f", "wb", 0) as file, pytest.raises(TypeError, match="open for writing"):
        pickle.dumps(file)
