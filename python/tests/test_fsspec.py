"""The file system of fsspec."""

import os
import pickle
import threading

import pytest

import pramfs

from conftest import needs, run

fsspec = needs("fsspec")


@pytest.fixture
def spec(fs):
    """The file system in memory, for fsspec."""
    return fsspec.filesystem("pramfs", region=fs, skip_instance_cache=True)


def test_url_names_region_and_path(region):
    url = f"pramfs://{region}!/dir/file"
    with fsspec.open(url, "wb") as file:
        file.write(b"contents")
    with fsspec.open("pramfs:///dir/file", "rt", region=str(region)) as file:
        assert file.read() == "contents"
    spec, path = fsspec.core.url_to_fs(url)
    assert path == "/dir/file"
    assert spec.unstrip_protocol(path) == url
    # The region is open already: it is the same file system.
    assert spec.fs is fsspec.core.url_to_fs(f"pramfs://{region}!/")[0].fs
    spec.close()
    with pramfs.open(region) as fs:
        assert fs.read_bytes("/dir/file") == b"contents"


def test_url_without_region_says_what_to_write():
    with pytest.raises(ValueError, match="no region: write pramfs:///PATH/OF/REGION!/"):
        fsspec.open("pramfs:///a").open()


def test_operations_follow_fsspec(spec):
    spec.pipe({"/a/one": b"1", "/a/two": b"22", "/a/b/three": b"333"})
    assert spec.ls("/a", detail=False) == ["/a/b", "/a/one", "/a/two"]
    assert spec.find("/") == ["/a/b/three", "/a/one", "/a/two"]
    assert spec.glob("/a/*o*") == ["/a/one", "/a/two"]
    assert spec.du("/a") == 6
    assert spec.info("/a/two")["size"] == 2
    assert (spec.isdir("/a"), spec.isfile("/a"), spec.exists("/no")) == (True, False, False)
    assert spec.cat(["/a/one", "/a/two"]) == {"/a/one": b"1", "/a/two": b"22"}
    assert spec.cat_file("/a/b/three", 1) == b"33"
    assert spec.cat_file("/a/b/three", -1) == b"3"
    assert spec.cat_ranges(["/a/two", "/a/two"], [0, 1], [1, 2]) == [b"2", b"2"]
    spec.copy("/a", "/c", recursive=True)
    assert spec.find("/c") == ["/c/b/three", "/c/one", "/c/two"]
    spec.mv("/c", "/d")
    assert not spec.exists("/c") and spec.exists("/d/b/three")
    spec.rm("/d", recursive=True)
    spec.touch("/a/new")
    assert spec.created("/a/new") and spec.modified("/a/new")
    with pytest.raises(FileNotFoundError):
        spec.cat_file("/no")
    with pytest.raises(FileExistsError):
        spec.mkdir("/a")
    with pytest.raises(IsADirectoryError):
        spec.rm("/a")
    with spec.open_map("/a/two") as m:
        assert m.read() == b"22"


def test_find_with_links_to_directories_does_not_follow_them(spec, tmp_path):
    spec.pipe({"/one": b"1", "/d/two": b"22"})
    spec.fs.symlink(".", "/loop")
    assert spec.find("/") == ["/d/two", "/loop", "/one"]
    spec.fs.symlink("..", "/d/up")
    assert spec.find("/") == ["/d/two", "/d/up", "/loop", "/one"]
    assert spec.glob("/**/up") == ["/d/up"]
    assert [(top, sorted(files)) for top, _, files in spec.walk("/")] == [
        ("/", ["loop", "one"]),
        ("/d", ["two", "up"]),
    ]
    assert spec.du("/") == 3
    spec.get("/", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out/d/two").read_bytes() == b"22"
    assert os.listdir(tmp_path / "out/loop") == os.listdir(tmp_path / "out/d/up") == []
    spec.copy("/d", "/e", recursive=True)
    assert spec.find("/e") == ["/e/two", "/e/up"]


def test_link_is_what_it_leads_to_and_in_a_list_no_directory(spec):
    spec.pipe({"/f": b"1", "/d/two": b"22"})
    spec.fs.symlink("f", "/to-file")
    spec.fs.symlink("d", "/to-directory")
    spec.fs.symlink("no", "/to-nothing")
    names = ["/to-directory", "/to-file", "/to-nothing"]
    assert [spec.info(name)["type"] for name in names] == ["directory", "file", "link"]
    listed = {entry["name"]: entry for entry in spec.ls("/", detail=True)}
    assert [listed[name]["type"] for name in names] == ["link", "file", "link"]
    assert [listed[name]["size"] for name in names] == [0, 1, 0]
    assert [listed[name]["destination"] for name in names] == ["d", "f", "no"]
    assert all(listed[name]["islink"] for name in names)
    # A path that is named is followed.
    assert spec.ls("/to-directory", detail=False) == ["/to-directory/two"]
    assert spec.find("/to-directory") == ["/to-directory/two"]


def test_link_to_itself_is_listed_and_does_not_exist(spec):
    spec.pipe("/f", b"1")
    spec.fs.symlink("a", "/a")
    assert [(entry["name"], entry["type"]) for entry in spec.ls("/", detail=True)] == [
        ("/a", "link"),
        ("/f", "file"),
    ]
    assert (spec.exists("/a"), spec.lexists("/a"), spec.lexists("/no")) == (False, True, False)
    assert not spec.isfile("/a") and not spec.isdir("/a")
    assert spec.find("/") == ["/a", "/f"]
    spec.rm("/a")
    assert not spec.lexists("/a")


def tree_of_links_and_odd_names(of, top):
    """The same tree in a file system of fsspec, for ours and the local one."""
    for name in ["one", "two", "d/a", "d/e/b", "e/c", "odd*", "odder"]:
        of.makedirs(of._parent(f"{top}/{name}"), exist_ok=True)
        of.pipe_file(f"{top}/{name}", b"1")


@pytest.mark.parametrize(
    ("name", "recursive"),
    [("one", False), ("d", True), ("d/e", True), ("to-d", False), ("to-d", True), ("odd*", False)],
)
def test_rm_removes_what_local_file_system_removes(spec, tmp_path, name, recursive):
    local = fsspec.filesystem("file")
    top = str(tmp_path)
    tree_of_links_and_odd_names(spec, "")
    tree_of_links_and_odd_names(local, top)
    spec.fs.symlink("d", "/to-d")
    os.symlink("d", f"{top}/to-d")
    spec.rm(f"/{name}", recursive=recursive)
    local.rm(f"{top}/{name}", recursive=recursive)
    left = [path.removeprefix(top) for path in local.find(top, withdirs=True)]
    # The local one follows links in lists.
    left = [path for path in left if not path.startswith("/to-d/")]
    assert [path for path in spec.find("/", withdirs=True) if path != "/"] == [
        path for path in left if path
    ]


def test_rm_of_pattern_with_directories_needs_recursive(spec):
    tree_of_links_and_odd_names(spec, "")
    spec.fs.symlink("d", "/to-d")
    before = spec.find("/", withdirs=True)
    for pattern in ["/*", "/**", ["/one", "/d*"]]:
        with pytest.raises(IsADirectoryError):
            spec.rm(pattern)
    with pytest.raises(FileNotFoundError):
        spec.rm("/no*")
    assert spec.find("/", withdirs=True) == before
    spec.rm("/t*")
    assert not spec.lexists("/two") and not spec.lexists("/to-d") and spec.exists("/d/a")
    spec.rm("/d/**", recursive=True)
    spec.rm("/[oe]*", recursive=True)
    assert [path for path in spec.find("/", withdirs=True) if path not in ("/", "/d")] == []


def test_rm_with_maxdepth_keeps_what_is_deeper(spec):
    tree_of_links_and_odd_names(spec, "")
    with pytest.raises(OSError, match="not empty"):
        spec.rm("/d", recursive=True, maxdepth=1)
    assert spec.exists("/d/e/b")
    spec.rm("/d", recursive=True, maxdepth=2)
    assert not spec.exists("/d")


def test_pipe_keeps_mode_of_file(spec):
    spec.pipe("/f", b"1")
    spec.chmod("/f", 0o600)
    spec.pipe("/f", b"22")
    assert spec.info("/f")["mode"] & 0o777 == 0o600


def test_copy_of_tree_copies_links_that_lead_to_no_file(spec):
    spec.pipe({"/t/f": b"1", "/t/d/two": b"22"})
    links = {"to-directory": "d", "to-nothing": "no", "to-itself": "to-itself"}
    for name, target in {**links, "to-file": "f"}.items():
        spec.fs.symlink(target, f"/t/{name}")
    # The second copy replaces the first one.
    for _ in range(2):
        spec.copy("/t/", "/c/", recursive=True)
        assert {name: spec.fs.readlink(f"/c/{name}") for name in links} == links
        assert not spec.fs.islink("/c/to-file") and spec.cat("/c/to-file") == b"1"
        assert spec.find("/c") == ["/c" + name.removeprefix("/t") for name in spec.find("/t")]
    spec.copy("/t/to-nothing", "/e/to-nothing")
    assert spec.fs.readlink("/e/to-nothing") == "no"


@pytest.mark.parametrize("name", ["/to-directory", "/to-*"])
def test_copy_of_named_link_to_directory_copies_directory(spec, name):
    spec.pipe({"/d/two": b"22", "/to-other": b"1"})
    spec.fs.symlink("two", "/d/to-file")
    spec.fs.symlink(".", "/d/up")
    spec.fs.symlink("d", "/to-directory")
    spec.mkdir("/c")
    spec.copy(name, "/c", recursive=True)
    at = "/c/to-directory"
    assert not spec.fs.islink(at) and spec.fs.islink(f"{at}/up")
    assert spec.find(at) == [f"{at}/to-file", f"{at}/two", f"{at}/up"]
    assert spec.cat(f"{at}/two") == spec.cat("/d/two") == b"22"


def test_get_of_link_that_leads_nowhere_names_it(spec, tmp_path):
    spec.pipe("/t/f", b"1")
    for target in ["self", "no"]:
        spec.fs.symlink(target, "/t/self")
        with pytest.raises(OSError, match="'/t/self'"):
            spec.get("/t", str(tmp_path / target), recursive=True)
        spec.rm("/t/self")


def test_files_go_to_and_from_local_disk(spec, tmp_path):
    (tmp_path / "in").write_bytes(b"x" * 100_000)
    spec.put(str(tmp_path / "in"), "/deep/er/file")
    spec.get("/deep/er/file", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"x" * 100_000


def test_transaction_shows_all_files_or_none(spec):
    with spec.transaction:
        with spec.open("/t/one", "wb") as file:
            file.write(b"1")
        assert not spec.exists("/t/one")
    assert spec.find("/t") == ["/t/one"]
    with pytest.raises(RuntimeError), spec.transaction:
        with spec.open("/t/two", "wb") as file:
            file.write(b"2")
        raise RuntimeError
    assert spec.find("/t") == ["/t/one"]


def test_transaction_keeps_mode_and_takes_long_names(spec):
    name = "/" + "n" * 255
    spec.pipe(name, b"1")
    spec.chmod(name, 0o600)
    with spec.transaction, spec.open(name, "wb") as file:
        file.write(b"22")
    assert spec.cat(name) == b"22"
    assert spec.info(name)["mode"] & 0o777 == 0o600
    assert len(spec.ls("/", detail=False)) == 1


def test_commit_that_fails_leaves_nothing_aside(spec):
    spec.pipe("/f", b"1")
    file = spec.open("/f", "xb", autocommit=False)
    file.write(b"22")
    with pytest.raises(FileExistsError):
        file.commit()
    assert spec.ls("/", detail=False) == ["/f"]
    # As fsspec does then.
    file.discard()
    with pytest.raises(FileExistsError), spec.transaction:
        with spec.open("/f", "xb") as file:
            file.write(b"22")
    assert (spec.ls("/", detail=False), spec.cat("/f")) == (["/f"], b"1")


def test_discard_that_cannot_write_leaves_nothing_aside(spec):
    file = spec.open("/f", "wb", autocommit=False)
    file.write(b"x")
    spec.fs.write_bytes("/rest", bytes(spec.fs.statvfs().f_bavail * 4096 // 2))
    with pytest.raises(OSError, match="space"), spec.fs.open("/rest", "ab", 0) as rest:
        while True:
            rest.write(bytes(4096))
    with pytest.raises(OSError, match="space"):
        file.discard()
    assert spec.ls("/", detail=False) == ["/rest"]


def test_transaction_with_file_removed_meanwhile_makes_new_file(spec):
    spec.pipe("/f", b"1")
    spec.chmod("/f", 0o600)
    with spec.transaction, spec.open("/f", "wb") as file:
        file.write(b"22")
        spec.rm("/f")
    spec.pipe("/new", b"1")
    assert spec.cat("/f") == b"22"
    assert spec.info("/f")["mode"] == spec.info("/new")["mode"]
    assert spec.ls("/", detail=False) == ["/f", "/new"]


def test_close_of_one_object_lets_all_open_region_again(region):
    def other_instances():
        others.append(fsspec.filesystem("pramfs", region=str(region)))

    # Those of other threads and of other options are objects of their own.
    others = [fsspec.filesystem("pramfs", region=str(region), use_listings_cache=False)]
    thread = threading.Thread(target=other_instances)
    thread.start()
    thread.join()
    spec = fsspec.filesystem("pramfs", region=str(region))
    assert len({id(each) for each in [spec, *others]}) == 3
    assert all(each.fs is spec.fs for each in others)
    spec.pipe("/f", b"1")
    for other in others:
        other.close()
        again = fsspec.filesystem("pramfs", region=str(region))
        assert again.cat("/f") == b"1"
    again.close()
    again = fsspec.filesystem("pramfs", region=str(region), use_listings_cache=False)
    assert again.cat("/f") == b"1"
    again.close()


def test_pickled_file_system_opens_region_again_or_says_why(region):
    spec = fsspec.filesystem("pramfs", region=str(region))
    spec.pipe("/f", b"1")
    kept = pickle.dumps(spec)
    assert pickle.loads(kept).fs is spec.fs
    program = """
import pickle, sys
try:
    print(pickle.loads(bytes.fromhex(sys.argv[1])).cat("/f"))
except OSError as error:
    print(type(error).__name__)
"""
    assert run(program, kept.hex()) == "BusyError\n"
    spec.close()
    assert run(program, kept.hex()) == "b'1'\n"


def test_memory_of_process_is_not_needed_for_import():
    said = run(
        """
import sys
sys.modules["fsspec"] = None
import pramfs
try:
    import pramfs.fsspec
except ImportError as error:
    print(error)
"""
    )
    assert "pip install fsspec" in said


def test_relative_region_is_absolute_in_url(region, monkeypatch):
    monkeypatch.chdir(os.path.dirname(region))
    spec = fsspec.filesystem("pramfs", region="region", skip_instance_cache=True)
    assert spec.unstrip_protocol("/f") == f"pramfs://{region}!/f"
    spec.close()


@pytest.mark.parametrize("name", ["physaddr:0x40000000+512M", b"physaddr:0x40000000+512M"])
def test_range_of_memory_keeps_its_name(name, monkeypatch):
    opened = []

    def reopen(region, options):
        opened.append(region)
        return pramfs.memory(4 << 20)

    monkeypatch.setattr("pramfs.fsspec._reopen", reopen)
    spec = fsspec.filesystem("pramfs", region=name, skip_instance_cache=True)
    assert opened == ["physaddr:0x40000000+512M"]
    spec.fs.region = opened[0]
    assert spec.unstrip_protocol("/f") == "pramfs://physaddr:0x40000000+512M!/f"
    assert spec.fs.__reduce__()[1][0] == opened[0]
    spec.fs.region = None
    spec.close()


def test_instances_of_two_regions_in_memory_differ():
    first, second = (pramfs.memory(4 << 20) for _ in range(2))
    one = fsspec.filesystem("pramfs", region=first)
    two = fsspec.filesystem("pramfs", region=second)
    assert (one.fs, two.fs) == (first, second)
    assert fsspec.filesystem("pramfs", region=first) is one
    one.close()
    two.close()


def test_instance_of_region_opened_again_has_open_region(region):
    closed = pramfs.open(region)
    fsspec.filesystem("pramfs", region=closed).pipe("/f", b"1")
    closed.close()
    with pramfs.open(region) as again:
        spec = fsspec.filesystem("pramfs", region=again)
        assert spec.fs is again
        assert spec.cat("/f") == b"1"


def test_path_with_mark_of_urls_keeps_its_names(spec, tmp_path):
    spec.pipe({"/a!/f": b"1", "/a!/d/g": b"2", "/f": b"3"})
    assert spec.find("/a!") == ["/a!/d/g", "/a!/f"]
    spec.copy("/a!", "/b!", recursive=True)
    assert spec.find("/b!") == ["/b!/d/g", "/b!/f"]
    spec.get("/a!", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out/f").read_bytes() == b"1"
    spec.rm("/a!/f")
    assert not spec.exists("/a!/f")
    assert spec.cat("/f") == b"3"
    url = spec.unstrip_protocol("/a!/d/g")
    assert spec.cat(url) == b"2"
    assert spec._get_kwargs_from_urls(url) == {}


def test_url_of_path_with_mark_names_region_and_path(region):
    url = f"pramfs://{region}!/a!/f"
    with fsspec.open(url, "wb") as file:
        file.write(b"1")
    spec, path = fsspec.core.url_to_fs(url)
    assert path == "/a!/f"
    assert spec.unstrip_protocol(path) == url
    spec.close()


def test_transaction_reads_files_and_refuses_updates(spec):
    spec.pipe("/in", b"1")
    with spec.transaction:
        with spec.open("/in", "rb") as file:
            assert file.read() == b"1"
        with pytest.raises(ValueError, match="a transaction writes whole files"):
            spec.open("/in", "r+b")
        with spec.open("/out", "wb") as file:
            file.write(b"2")
    assert spec.cat("/out") == b"2"
