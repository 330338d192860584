"""Names, directories and metadata: as those of os."""

import errno
import os
import stat

import pytest


def test_directories_are_made_listed_and_removed(fs):
    fs.mkdir("/a")
    fs.makedirs("/a/b/c")
    fs.makedirs("/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("/a/b/c")
    fs.write_bytes("/a/f", b"1")
    fs.symlink("f", "/a/l")
    assert sorted(fs.listdir("/a")) == ["b", "f", "l"]
    entries = {entry.name: entry for entry in fs.scandir("/a")}
    assert entries["b"].is_dir() and entries["f"].is_file() and entries["l"].is_symlink()
    assert entries["f"].path == "/a/f"
    assert entries["f"].inode == fs.stat("/a/f").st_ino
    assert [top for top, _, _ in fs.walk("/")] == ["/", "/a", "/a/b", "/a/b/c"]
    with pytest.raises(OSError, match="not empty") as caught:
        fs.rmdir("/a")
    assert caught.value.errno == errno.ENOTEMPTY
    fs.rmtree("/a")
    assert fs.listdir("/") == []


def test_stat_is_that_of_os(fs):
    fs.write_bytes("/f", b"12345")
    fs.chmod("/f", 0o640)
    fs.utime("/f", ns=(1_500_000_000_123_456_789, 1_600_000_000_987_654_321))
    found = fs.stat("/f")
    assert isinstance(found, os.stat_result)
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o640
    assert (found.st_size, found.st_nlink, found.st_uid) == (5, 1, os.geteuid())
    assert found.st_atime_ns == 1_500_000_000_123_456_789
    assert found.st_mtime_ns == 1_600_000_000_987_654_321
    assert found.st_mtime == pytest.approx(1_600_000_000.987654)
    assert int(found.st_mtime) == found[8]
    fs.utime("/f", (1.5, -1.5))
    assert fs.stat("/f").st_mtime_ns == -1_500_000_000
    assert fs.getsize("/f") == 5


def test_links_lead_to_file(fs):
    fs.write_bytes("/f", b"x")
    fs.link("/f", "/g")
    assert fs.stat("/g").st_nlink == 2
    fs.symlink("f", "/l")
    fs.symlink("nowhere", "/dangling")
    assert fs.readlink("/l") == "f"
    assert fs.islink("/l") and fs.isfile("/l") and not fs.islink("/f")
    assert not fs.exists("/dangling") and stat.S_ISLNK(fs.lstat("/dangling").st_mode)


def test_link_to_itself_does_not_exist(fs):
    fs.symlink("a", "/a")
    assert not fs.exists("/a") and not fs.isdir("/a") and not fs.isfile("/a")
    assert fs.islink("/a")
    fs.unlink("/a")


def test_name_that_is_too_long_does_not_exist(fs):
    assert not fs.exists("/" + "n" * 256)


def test_rename_replaces_refuses_or_exchanges(fs):
    fs.write_bytes("/a", b"a")
    fs.write_bytes("/b", b"b")
    with pytest.raises(FileExistsError):
        fs.rename("/a", "/b", replace=False)
    fs.exchange("/a", "/b")
    assert fs.read_bytes("/a") == b"b"
    fs.rename("/a", "/b")
    assert (fs.listdir("/"), fs.read_bytes("/b")) == (["b"], b"b")


def test_names_that_are_not_utf8_are_escaped(fs):
    name = b"/\xff\xfe"
    fs.write_bytes(name, b"x")
    (listed,) = fs.listdir("/")
    assert os.fsencode(listed) == b"\xff\xfe"
    assert fs.read_bytes("/" + listed) == b"x"
    with pytest.raises(FileNotFoundError) as caught:
        fs.stat(b"/\xff")
    assert caught.value.filename == "/\udcff"


@pytest.mark.parametrize(
    ("act", "kind", "number"),
    [
        (lambda fs: fs.stat("/no"), FileNotFoundError, errno.ENOENT),
        (lambda fs: fs.open("/no/f", "w"), FileNotFoundError, errno.ENOENT),
        (lambda fs: fs.mkdir("/d"), FileExistsError, errno.EEXIST),
        (lambda fs: fs.open("/f", "x"), FileExistsError, errno.EEXIST),
        (lambda fs: fs.open("/d"), IsADirectoryError, errno.EISDIR),
        (lambda fs: fs.unlink("/d"), IsADirectoryError, errno.EISDIR),
        (lambda fs: fs.listdir("/f"), NotADirectoryError, errno.ENOTDIR),
        (lambda fs: fs.stat("/f/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda fs: fs.write_bytes("/" + "n" * 256, b""), OSError, errno.ENAMETOOLONG),
        (lambda fs: fs.readlink("/f"), OSError, errno.EINVAL),
        (lambda fs: fs.stat("/loop"), OSError, errno.ELOOP),
        (lambda fs: fs.getxattr("/f", "user.no"), OSError, errno.ENODATA),
        (lambda fs: fs.rmdir("/"), OSError, errno.EBUSY),
    ],
)
def test_error_has_class_and_errno_of_os(fs, act, kind, number):
    fs.mkdir("/d")
    fs.write_bytes("/f", b"")
    fs.symlink("loop", "/loop")
    with pytest.raises(kind) as caught:
        act(fs)
    assert caught.value.errno == number
    assert caught.value.strerror


def test_path_with_nul_is_refused(fs):
    with pytest.raises(ValueError, match="null byte"):
        fs.stat("/a\0b")


def test_extended_attributes_are_kept(fs):
    fs.write_bytes("/f", b"")
    fs.setxattr("/f", "user.a", b"\0value")
    assert (fs.listxattr("/f"), fs.getxattr("/f", "user.a")) == (["user.a"], b"\0value")
    with pytest.raises(FileExistsError):
        fs.setxattr("/f", "user.a", b"", os.XATTR_CREATE)
    fs.removexattr("/f", "user.a")
    assert fs.listxattr("/f") == []


def test_copy_copies_bytes_and_mode(fs):
    fs.write_bytes("/f", b"x" * 100_000)
    fs.chmod("/f", 0o600)
    assert fs.copy("/f", "/g") == 100_000
    assert fs.read_bytes("/g") == b"x" * 100_000
    assert stat.S_IMODE(fs.stat("/g").st_mode) == 0o600
    fs.truncate("/g", 7)
    assert fs.getsize("/g") == 7


def test_statvfs_counts_blocks(fs):
    before = fs.statvfs()
    fs.write_bytes("/f", bytes(1 << 20))
    after = fs.statvfs()
    assert before.f_bsize == 4096
    assert before.f_bavail - after.f_bavail >= 256
    assert not after.f_flag & os.ST_RDONLY
