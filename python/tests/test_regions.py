"""Opening, closing, formatting; errors of regions."""

import errno
import gc
import warnings

import pytest

import pramfs

from conftest import MIB


def test_format_and_open_keep_files(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"kept")
        assert fs.info()["was_clean"] is True
    with pramfs.open(region) as fs:
        assert fs.read_bytes("/f") == b"kept"
    assert fs.closed
    with pytest.raises(ValueError, match="closed"):
        fs.listdir("/")


def test_format_refuses_what_exists(region):
    with pytest.raises(FileExistsError):
        pramfs.format(region, 32 * MIB)
    with pytest.raises(ValueError, match="needs a size"):
        pramfs.format(region)
    pramfs.format(region, force=True, label="again", uuid=bytes(range(16)))
    with pytest.raises(ValueError, match="16 bytes"):
        pramfs.format(region, force=True, uuid=b"short")
    with pytest.raises(OSError, match="block") as caught:
        pramfs.format(region.with_name("other"), 32 * MIB, block_size=1000)
    assert caught.value.errno == errno.EINVAL
    assert not region.with_name("other").exists()


def test_open_of_missing_or_foreign_region_says_why(scratch):
    with pytest.raises(FileNotFoundError) as caught:
        pramfs.open(scratch / "no")
    assert caught.value.filename == str(scratch / "no")
    foreign = scratch / "foreign"
    foreign.write_bytes(b"\x55" * MIB)
    with pytest.raises(pramfs.NotMountableError) as caught:
        pramfs.open(foreign)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError):
        pramfs.open(scratch)


def test_open_of_region_in_use_is_busy(region):
    with pramfs.open(region) as fs:
        with pytest.raises(pramfs.BusyError, match="this process has it open") as caught:
            pramfs.open(region)
        assert caught.value.errno == errno.EBUSY
        assert caught.value.filename == str(region)
        # Closed, but not unmounted: the library says who has it.
        file = fs.open("/f", "wb", 0)
        with pytest.warns(ResourceWarning):
            fs.__exit__(None, None, None)
        with pytest.raises(pramfs.BusyError, match="in use"):
            pramfs.open(region)
        file.close()
    pramfs.open(region).close()


def test_damaged_region_is_corrupt_error(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", bytes(8192))
        extents = fs.open("/f", "rb", 0).extents()
    # Every inode and directory of the first groups, but not the superblocks' page.
    place = extents[0].region_offset
    data = bytearray(region.read_bytes())
    for at in range(64 << 10, place, 64):
        data[at + 8] ^= 0xFF
    region.write_bytes(data)
    with pytest.raises(OSError) as caught:
        with pramfs.open(region) as fs:
            fs.read_bytes("/f")
    assert isinstance(caught.value, (pramfs.CorruptError, pramfs.NotMountableError))
    assert caught.value.errno in (errno.EUCLEAN, errno.EINVAL)


def test_read_only_region_refuses_changes_and_is_shared(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"x")
    with pramfs.open(region, read_only=True) as one, pramfs.open(region, read_only=True) as two:
        assert one.read_bytes("/f") == two.read_bytes("/f") == b"x"
        with pytest.raises(OSError) as caught:
            one.write_bytes("/g", b"")
        assert caught.value.errno == errno.EROFS


def test_options_are_checked(region):
    with pytest.raises(ValueError, match='durability="never" is unknown: it is one of power, process'):
        pramfs.open(region, durability="never")
    with pytest.raises(TypeError):
        pramfs.open(region, cache_bytes="much")
    with pytest.raises(TypeError):
        pramfs.open(region, no_such_option=1)
    with pramfs.open(
        region, durability="process", data="atomic", atime="noatime", errors="continue"
    ) as fs:
        assert fs.info()["durability"] in ("process", "power")


def test_close_with_open_file_unmounts_with_last_handle(region):
    with pytest.warns(ResourceWarning, match="stays mounted until its 1 open files"):
        with pramfs.open(region) as fs:
            file = fs.open("/f", "w+b", 0)
    file.write(b"still possible")
    with pytest.raises(pramfs.BusyError):
        pramfs.open(region)
    file.close()
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True
        assert fs.read_bytes("/f") == b"still possible"


def test_unmount_is_refused_or_forced(region):
    fs = pramfs.open(region)
    file = fs.open("/f", "w+b", 0)
    with pytest.raises(pramfs.BusyError, match="1 files or maps are open") as caught:
        fs.unmount()
    assert caught.value.errno == errno.EBUSY
    file.write(b"before")
    fs.unmount(force=True)
    with pytest.raises(OSError) as caught:
        file.write(b"after")
    assert caught.value.errno == errno.EIO
    file.close()
    fs.unmount()
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True
        assert fs.read_bytes("/f") == b"before"


def test_file_system_that_is_dropped_is_unmounted(region):
    fs = pramfs.open(region)
    fs.write_bytes("/f", b"x")
    del fs
    gc.collect()
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True


def test_file_that_is_dropped_is_closed(region):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        fs = pramfs.open(region)
        fs.open("/f", "wb", 0)
        gc.collect()
        fs.unmount()


def test_grow_makes_room(region):
    with pramfs.open(region) as fs:
        before = fs.statvfs().f_blocks
        assert fs.grow(64 * MIB) == (32 * MIB, 64 * MIB)
        assert fs.statvfs().f_blocks > before
