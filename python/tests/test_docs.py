"""What the documents and the types say."""

import doctest
import importlib
import pathlib
import subprocess
import sys

import pytest

import pramfs

from conftest import needs, skipped

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ["pramfs", "pramfs._file", "pramfs._filesystem", "pramfs._lease"]


@pytest.mark.parametrize("name", [*MODULES, "pramfs.numpy", "pramfs.fsspec"])
def test_examples_of_docstrings_print_what_they_say(name):
    if name == "pramfs.numpy":
        needs("numpy")
    if name == "pramfs.fsspec":
        needs("fsspec")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", ["docs/python.md", "python/README.md"])
def test_examples_of_documents_print_what_they_say(name, scratch, monkeypatch):
    path = ROOT / name
    if not path.exists():
        skipped(f"{path} is not here: the tests run outside of the source tree")
    needs("numpy")
    needs("fsspec")
    monkeypatch.setenv("PRAMFS_EXAMPLE", str(scratch))
    monkeypatch.chdir(scratch)
    result = doctest.testfile(str(path), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


def test_every_public_name_is_documented():
    undocumented = [
        f"{kind.__name__}.{name}"
        for kind in (pramfs.FileSystem, pramfs.Map, pramfs.Lease, pramfs.File)
        for name in vars(kind)
        if not name.startswith("_") and not getattr(getattr(kind, name), "__doc__", None)
    ]
    inherited = {"File.readable", "File.writable", "File.seekable", "File.seek", "File.tell"}
    getters = {"Map.readonly", "Map.closed", "Map.name"}
    assert set(undocumented) <= inherited | getters
    assert all(getattr(pramfs, name).__doc__ for name in pramfs.__all__ if name != "__version__")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """What mypy knows of numpy, for all tests: it takes most of the time."""
    return tmp_path_factory.mktemp("mypy")


def mypy(cache, directory, *args):
    """Run mypy. Returns its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, *args],
        capture_output=True,
        text=True,
        cwd=directory,
    )
    return done.returncode, done.stdout + done.stderr


def test_types_are_right(cache):
    needs("mypy")
    needs("numpy")
    if not (ROOT / "python/pyproject.toml").exists():
        skipped("the sources are not here")
    status, said = mypy(cache, ROOT / "python", "-p", "pramfs")
    assert status == 0, said


def test_stub_agrees_with_module(tmp_path):
    needs("mypy")
    # Python has the method of a class with buffers since 3.12.
    allowed = tmp_path / "allowed"
    allowed.write_text("pramfs._native.Map.__buffer__\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", "pramfs._native"),
            *("--allowlist", allowed, "--ignore-unused-allowlist"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_use_of_package_has_types(cache, tmp_path):
    needs("mypy")
    (tmp_path / "use.py").write_text(
        """
import io
import pramfs

fs = pramfs.open("/dev/pmem0", read_only=True)
raw = fs.open("/f", "rb", 0)
reveal_type(raw)
reader = io.BufferedReader(raw)
number: int = raw.readinto(bytearray(4))
view = memoryview(fs.map("/f"))
fs.rename("/a", b"/b", replace=False)
pramfs.open(1)
"""
    )
    _, said = mypy(cache, tmp_path, "use.py")
    lines = [line for line in said.splitlines() if "error:" in line or "note:" in line]
    assert len(lines) == 2, said
    assert 'Revealed type is "pramfs._file.File"' in lines[0]
    assert '"open" has incompatible type "int"' in lines[1]
