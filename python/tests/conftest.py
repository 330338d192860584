"""What the tests share: a region in memory, and packages that may be missing."""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import pytest

import pramfs

MIB = 1 << 20


def skipped(reason):
    """Skip conspicuously; with CI set, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}: nothing may be skipped here")
    warnings.warn(f"SKIPPED: {reason}", ResourceWarning, stacklevel=2)
    pytest.skip(reason)


def needs(module):
    """Import a module that a test needs, or skip."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return skipped(f"the package {module} is missing (pip install {module})")


def run(code, *args, env=None):
    """Run a program of Python. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def scratch():
    """A directory in memory, where there is one."""
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shm) as directory:
        yield pathlib.Path(directory)


@pytest.fixture
def region(scratch):
    """A formatted region of 32 MiB."""
    path = scratch / "region"
    pramfs.format(path, 32 * MIB)
    return path


@pytest.fixture
def fs():
    """A file system in memory."""
    fs = pramfs.memory(32 * MIB)
    yield fs
    if not fs.closed:
        fs.unmount(force=True)
