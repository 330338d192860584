"""Files: as those of io.open."""

import io
import os
import pickle
import stat
import struct

import pytest

import pramfs

#: In an entry of an ACL that names no user and no group.
NOBODY = 0xFFFFFFFF


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


def acl_of(*rights):
    """An ACL: rights of the owner, of a user, of the group, the mask, and rights of others."""
    tags = [(1, NOBODY), (2, 1234), (4, NOBODY), (16, NOBODY), (32, NOBODY)]
    entries = zip(tags, rights, strict=True)
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, right, who) for (tag, who), right in entries
    )


def test_replace_bytes_keeps_mode_owner_and_attributes(fs):
    fs.write_bytes("/f", b"one")
    acl = acl_of(6, 4, 0, 4, 0)
    fs.chown("/f", 12, 34)
    fs.setxattr("/f", "user.a", b"value")
    fs.setxattr("/f", "system.posix_acl_access", acl)
    fs.replace_bytes("/f", b"two")
    found = fs.stat("/f")
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 12, 34)
    assert fs.getxattr("/f", "user.a") == b"value"
    assert fs.getxattr("/f", "system.posix_acl_access") == acl
    assert fs.read_bytes("/f") == b"two"


def test_replace_bytes_of_file_without_acl_takes_none_of_directory(fs):
    fs.mkdir("/d")
    fs.write_bytes("/d/f", b"one")
    fs.chmod("/d/f", 0o600)
    acl = acl_of(7, 7, 7, 7, 0)
    fs.setxattr("/d", "system.posix_acl_default", acl)
    fs.replace_bytes("/d/f", b"two")
    assert fs.listxattr("/d/f") == []
    assert stat.S_IMODE(fs.stat("/d/f").st_mode) == 0o600
    # A new file has that of its directory, as any other.
    fs.replace_bytes("/d/new", b"one")
    assert fs.listxattr("/d/new") == ["system.posix_acl_access"]


def test_replace_bytes_of_new_file_has_mode_of_open(fs):
    fs.replace_bytes("/f", b"one")
    fs.write_bytes("/g", b"one")
    assert fs.stat("/f").st_mode == fs.stat("/g").st_mode


def test_replace_bytes_of_symbolic_link_replaces_the_link(fs):
    fs.write_bytes("/f", b"one")
    fs.symlink("f", "/l")
    fs.replace_bytes("/l", b"two")
    assert (fs.islink("/l"), fs.read_bytes("/l"), fs.read_bytes("/f")) == (False, b"two", b"one")


@pytest.mark.parametrize("length", [227, 228, 255])
def test_replace_bytes_of_long_name_works(fs, length):
    name = "/" + "n" * length
    fs.replace_bytes(name, b"one")
    fs.replace_bytes(name, b"two")
    assert (fs.read_bytes(name), len(fs.listdir("/"))) == (b"two", 1)


def test_replace_bytes_with_name_aside_taken_keeps_that_file(fs, monkeypatch):
    taken, open_ = [], fs.open

    def open_later(path, mode="r", *rest, **named):
        if "x" in mode and not taken:
            taken.append(path)
            fs.write_bytes(path, b"foreign")
        return open_(path, mode, *rest, **named)

    monkeypatch.setattr(fs, "open", open_later)
    fs.replace_bytes("/f", b"one")
    assert fs.read_bytes(taken[0]) == b"foreign"
    assert (fs.read_bytes("/f"), len(fs.listdir("/"))) == (b"one", 2)


def changed_in(fs, monkeypatch, call, change, times=1):
    """Change something before a call, as another thread does."""
    original, left = getattr(fs, call), [change] * times

    def later(*args):
        if left:
            left.pop()()
        return original(*args)

    monkeypatch.setattr(fs, call, later)


@pytest.mark.parametrize("call", ["listxattr", "getxattr"])
def test_replace_bytes_with_file_removed_meanwhile_makes_new_file(fs, monkeypatch, call):
    fs.mkdir("/d")
    fs.write_bytes("/d/f", b"one")
    fs.setxattr("/d/f", "user.a", b"value")
    fs.chmod("/d/f", 0o600)
    # A new file has an ACL from there.
    fs.setxattr("/d", "system.posix_acl_default", acl_of(7, 5, 7, 7, 0))
    changed_in(fs, monkeypatch, call, lambda: fs.unlink("/d/f"))
    fs.replace_bytes("/d/f", b"two")
    fs.write_bytes("/d/new", b"two")
    assert fs.read_bytes("/d/f") == b"two"
    assert fs.stat("/d/f").st_mode == fs.stat("/d/new").st_mode
    acl = "system.posix_acl_access"
    assert fs.listxattr("/d/f") == [acl]
    assert fs.getxattr("/d/f", acl) == fs.getxattr("/d/new", acl)
    assert sorted(fs.listdir("/d")) == ["f", "new"]


@pytest.mark.parametrize("target", ["other", "f", "no", "other/below", "n" * 300])
def test_replace_bytes_with_link_in_place_meanwhile_copies_nothing_of_target(
    fs, monkeypatch, target
):
    def becomes_link():
        fs.unlink("/f")
        fs.symlink(target, "/f")

    fs.write_bytes("/f", b"one")
    fs.write_bytes("/other", b"other")
    fs.chmod("/other", 0o777)
    fs.setxattr("/other", "user.other", b"value")
    changed_in(fs, monkeypatch, "listxattr", becomes_link)
    fs.replace_bytes("/f", b"two")
    assert (fs.islink("/f"), fs.read_bytes("/f"), fs.listxattr("/f")) == (False, b"two", [])
    assert stat.S_IMODE(fs.stat("/f").st_mode) == 0o644


def test_replace_bytes_with_attributes_changed_meanwhile_has_new_ones(fs, monkeypatch):
    fs.write_bytes("/f", b"one")
    fs.setxattr("/f", "user.a", b"1")
    fs.setxattr("/f", "user.b", b"2")
    changed_in(fs, monkeypatch, "getxattr", lambda: fs.removexattr("/f", "user.a"))
    fs.replace_bytes("/f", b"two")
    assert fs.listxattr("/f") == ["user.b"]
    changed_in(fs, monkeypatch, "listxattr", lambda: fs.chmod("/f", 0o640))
    fs.replace_bytes("/f", b"three")
    assert stat.S_IMODE(fs.stat("/f").st_mode) == 0o640


def test_replace_bytes_of_file_that_changes_all_the_time_keeps_it(fs, monkeypatch):
    def changes():
        fs.chmod("/f", fs.stat("/f").st_mode ^ 1)

    fs.write_bytes("/f", b"one")
    changed_in(fs, monkeypatch, "listxattr", changes, 1000)
    with pytest.raises(OSError, match="change all the time") as caught:
        fs.replace_bytes("/f", b"two")
    assert (caught.value.errno, caught.value.filename) == (16, "/f")
    assert (fs.read_bytes("/f"), fs.listdir("/")) == (b"one", ["f"])


def test_replace_bytes_that_fails_keeps_old_file_alone(fs):
    fs.write_bytes("/f", b"one")
    fs.mkdir("/d")
    with pytest.raises(OSError, match="space"):
        fs.replace_bytes("/f", bytes(64 << 20))
    with pytest.raises(OSError, match="directory"):
        fs.replace_bytes("/d", b"two")
    assert (fs.read_bytes("/f"), sorted(fs.listdir("/"))) == (b"one", ["d", "f"])


def test_pickle_of_written_file_is_refused(fs):
    with fs.open("/f", "wb", 0) as file, pytest.raises(TypeError, match="open for writing"):
        pickle.dumps(file)
