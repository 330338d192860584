"""Direct access to files of a mount, beside its server."""

import errno
import os
import pickle
import shutil
import subprocess
import time

import pytest

import pramfs

from conftest import MIB, skipped


@pytest.fixture
def mount(region, scratch):
    """A mounted region. PRAMFS_MOUNT is the program that mounts."""
    program = os.environ.get("PRAMFS_MOUNT") or shutil.which("mount.pramfs")
    if not program:
        skipped("no mount.pramfs (make install, or PRAMFS_MOUNT)")
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        skipped("mounting needs root and /dev/fuse")
    place = scratch / "mnt"
    place.mkdir()
    subprocess.run([program, region, place, "-o", "direct=owner"], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def test_lease_reads_and_stores_beside_mount(mount):
    (mount / "file").write_bytes(b"0123456789" * 1000)
    with pramfs.lease(mount / "file") as file:
        assert (file.size(), file.pread(4, 2)) == (10_000, b"2345")
        with file.map() as m, memoryview(m) as view:
            assert m.readonly and bytes(view[:3]) == b"012"
        with pytest.raises(OSError) as caught:
            file.pwrite(b"x", 0)
        assert caught.value.errno == errno.EBADF
        assert pickle.loads(pickle.dumps(file)).pread(1, 9) == b"9"
    # A copy asks the directory of control sockets that the lease was given.
    with pramfs.lease(mount / "file", control="/run/pramfs") as file:
        kept = pickle.dumps(file)
        assert b"/run/pramfs" in kept
        assert pickle.loads(kept).pread(1, 9) == b"9"
    for _ in range(3000):
        # The kernel tells the server a little later that the file has been closed.
        try:
            file = pramfs.lease(mount / "file", writable=True)
            break
        except pramfs.BusyError:
            time.sleep(0.01)
    else:
        pytest.fail("the file stays busy")
    with file:
        assert file.pwrite(b"direct", 0) == 6
        with file.map(4096, 4096, writable=True) as m:
            m.write(0, b"mapped")
            m.persist()
    data = (mount / "file").read_bytes()
    assert data[:6] == b"direct" and data[4096:4102] == b"mapped"


def test_lease_of_other_file_says_why(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(OSError, match="direct access") as caught:
        pramfs.lease(tmp_path / "f")
    assert caught.value.errno in (errno.ENOTTY, errno.EOPNOTSUPP)
    with pytest.raises(FileNotFoundError):
        pramfs.lease(tmp_path / "no")


def test_region_of_live_mount_is_busy(mount, region):
    with pytest.raises(pramfs.BusyError):
        pramfs.open(region)
    with pytest.raises(pramfs.BusyError):
        pramfs.format(region, 32 * MIB, force=True)
