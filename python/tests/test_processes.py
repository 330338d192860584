"""Processes: the end of the interpreter, fork, spawn, pickles."""

import contextlib
import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

import pramfs
from pramfs import _filesystem

from conftest import run


def in_fork(work):
    """Run `work` in a forked child; return what it returned, as text."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # The file system has a thread of its own. The child does not wait for it.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, str(work()).encode())
            status = 0
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read().decode()
    assert os.waitpid(child, 0)[1] == 0, said
    return said


def test_forked_child_is_refused_with_reason(region):
    fs = pramfs.open(region)
    fs.write_bytes("/f", b"x" * 8192)
    file = fs.open("/f", "r+b", 0)
    m = fs.map("/f", writable=True)

    def child():
        outcomes = []
        for call in (lambda: fs.listdir("/"), lambda: file.read(1), lambda: m.load(0)):
            try:
                call()
            except pramfs.ForkedError as error:
                outcomes.append((error.errno, "of which this one is a fork" in str(error)))
        try:
            memoryview(m)
        except BufferError as error:
            outcomes.append((0, "of which this one is a fork" in str(error)))
        return outcomes

    assert in_fork(child) == str([(errno.EIO, True)] * 3 + [(0, True)])
    # The parent is as it was.
    file.write(b"parent")
    m.persist()
    file.close()
    m.close()
    fs.unmount()
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True
        assert fs.read_bytes("/f")[:6] == b"parent"


def test_forked_child_reads_zeros_and_stores_nothing(region):
    fs = pramfs.open(region)
    fs.write_bytes("/f", b"x" * 8192)
    m = fs.map("/f", writable=True)
    view = memoryview(m)

    def child():
        before = bytes(view[:4])
        view[:4] = b"evil"
        view.release()
        return before

    assert in_fork(child) == str(bytes(4))
    assert bytes(view[:4]) == b"xxxx"
    view.release()
    m.close()
    fs.close()


def test_forked_child_that_ends_in_order_unmounts_nothing(region):
    said = run(
        """
import os, sys, warnings
import pramfs
warnings.simplefilter("ignore")
fs = pramfs.open(sys.argv[1])
file = fs.open("/f", "w+b")
m = fs.map("/f") if False else None
if os.fork() == 0:
    sys.exit(0)          # with atexit, destructors and all
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
file.write(b"after the child")
file.close()
print(fs.read_bytes("/f").decode())
fs.unmount()
""",
        region,
    )
    assert said == "after the child\n"
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True


def test_forked_child_opens_region_anew_when_it_is_free(region):
    fs = pramfs.open(region)
    assert in_fork(lambda: _attempt(region)).startswith("BusyError")
    fs.close()
    assert in_fork(lambda: _attempt(region)) == "opened"


def _attempt(region):
    try:
        with pramfs.open(region) as fs:
            fs.write_bytes("/by-child", b"")
            return "opened"
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def test_fork_while_threads_work_does_not_block_child(region):
    fs = pramfs.open(region)
    stop = threading.Event()

    def work(number):
        with fs.open(f"/{number}", "w+b", 0) as file:
            while not stop.is_set():
                file.pwrite(b"x" * 4096, 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert in_fork(lambda: _refused(fs)) == "True"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    fs.unmount()


def test_fork_while_thread_reopens_does_not_block_child(region, monkeypatch):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"")
        kept = pickle.dumps(fs)
    opens = _filesystem.open
    inside, go_on = threading.Event(), threading.Event()

    def slowly(*args, **options):
        inside.set()
        assert go_on.wait(60)
        return opens(*args, **options)

    def child():
        # It ends a child that waits for a lock for ever.
        signal.alarm(20)
        monkeypatch.setattr(_filesystem, "open", opens)
        return pickle.loads(kept).listdir()

    monkeypatch.setattr(_filesystem, "open", slowly)
    found = []
    thread = threading.Thread(target=lambda: found.append(pickle.loads(kept)))
    thread.start()
    try:
        assert inside.wait(60)
        assert in_fork(child) == "['f']"
    finally:
        go_on.set()
        thread.join()
    # The parent has its lock still.
    assert pickle.loads(kept) is found[0]
    found[0].close()


def _refused(fs):
    try:
        fs.listdir("/")
    except pramfs.ForkedError:
        return True
    return False


def reads(file):
    """For a spawned process: its argument has been pickled."""
    return file.read()


def lists(fs):
    with fs:
        return fs.listdir("/")


def test_spawned_process_opens_read_only_region_again(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"0123456789")
    with pramfs.open(region, read_only=True) as fs, fs.open("/f", "rb", 0) as file:
        file.seek(4)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(reads, (file,)) == b"456789"
            assert pool.apply(lists, (fs,)) == ["f"]


@contextlib.contextmanager
def forking():
    """A context of multiprocessing that forks, although the process has threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield multiprocessing.get_context("fork")


def says(pipe, fs, file):
    """For a forked process: its arguments are the objects of its parent."""
    for call in (fs.listdir, file.read):
        try:
            call()
        except OSError as error:
            pipe.send((type(error).__name__, error.errno))
        else:
            pipe.send("no error")
    pipe.close()


def test_forked_pool_opens_read_only_region_again(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"0123456789")
    with pramfs.open(region, read_only=True) as fs, fs.open("/f", "rb", 0) as file:
        file.seek(4)
        with forking() as context, context.Pool(2) as pool:
            # What a pool is given is pickled.
            assert pool.apply(reads, (file,)) == b"456789"
            assert pool.map(lists, [fs] * 8) == [["f"]] * 8
        assert file.read() == b"456789"


def test_forked_process_is_refused_objects_of_parent(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"x")
        with fs.open("/f", "r+b", 0) as file:
            with forking() as context:
                ours, theirs = context.Pipe()
                process = context.Process(target=says, args=(theirs, fs, file))
                process.start()
            theirs.close()
            assert [ours.recv(), ours.recv()] == [("ForkedError", errno.EIO)] * 2
            process.join(60)
            assert process.exitcode == 0
            ours.close()
            process.close()
            assert file.read() == b"x"
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True


def test_spawned_process_is_refused_while_parent_writes(region):
    with pramfs.open(region) as fs:
        fs.write_bytes("/f", b"x")
        kept = pickle.dumps(fs)
        said = run(
            """
import pickle, sys
try:
    pickle.loads(bytes.fromhex(sys.argv[1]))
except OSError as error:
    print(type(error).__name__, error.errno, str(error))
""",
            kept.hex(),
        )
    assert said.startswith(f"BusyError {errno.EBUSY}"), said
    assert str(region) in said
    assert run("import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).listdir())",
               kept.hex()) == "['f']\n"


def test_pickle_in_same_process_is_same_file_system(region):
    with pramfs.open(region) as fs:
        assert pickle.loads(pickle.dumps(fs)) is fs
        fs.write_bytes("/f", b"abc")
        with fs.open("/f", "rb", 0) as file:
            file.seek(1)
            with pickle.loads(pickle.dumps(file)) as again:
                assert again.read() == b"bc"


def test_pickle_of_what_cannot_be_opened_again_is_refused(fs):
    fs.write_bytes("/f", b"x")
    with pytest.raises(TypeError, match="in memory"):
        pickle.dumps(fs)
    with fs.map("/f") as m, pytest.raises(TypeError, match="Map"):
        pickle.dumps(m)


def test_interpreter_that_ends_with_maps_alive_unmounts(region):
    said = run(
        """
import sys, pramfs
fs = pramfs.open(sys.argv[1])
fs.write_bytes("/f", b"x" * 8192)
m = fs.map("/f", writable=True)
view = memoryview(m)
file = fs.open("/f", "rb", 0)
view[0] = ord("y")
m.persist(0, 1)

class Late:
    "Looks at the map when the interpreter is nearly gone."
    def __init__(self, view):
        self.view = view
    def __del__(self):
        import sys as s
        print(chr(self.view[0]), chr(self.view[1]))

late = Late(view)
late.cycle = late
pramfs.kept = late
""",
        region,
    )
    assert said in ("y x\n", "")
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is True
        assert fs.read_bytes("/f")[:2] == b"yx"


def test_interpreter_that_ends_while_thread_writes_is_clean(region):
    run(
        """
import sys, threading, pramfs
fs = pramfs.open(sys.argv[1])
file = fs.open("/f", "w+b", 0)
begun = threading.Event()
def work():
    n = 0
    while True:
        try:
            file.append(n.to_bytes(8, "little") * 512)
        except OSError:
            return
        if file.size() > 8 << 20:
            file.truncate(0)
        n += 1
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
        region,
    )
    with pramfs.open(region) as fs:
        assert fs.getsize("/f") % 8 == 0


def test_killed_process_loses_nothing_that_was_written(region):
    program = """
import os, sys, signal, pramfs
fs = pramfs.open(sys.argv[1])
log = fs.open("/log", "wb", 0)
for n in range(1000):
    log.append(b"%08d" % n)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(region)], check=False)
    assert done.returncode == -signal.SIGKILL
    with pramfs.open(region) as fs:
        assert fs.info()["was_clean"] is False
        assert fs.read_bytes("/log") == b"".join(b"%08d" % n for n in range(1000))
