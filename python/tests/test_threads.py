"""Threads: shared handles, and calls that let other threads go on."""

import sys
import sysconfig
import threading
import time

import pytest

import pramfs

from conftest import run


def in_threads(work, count=8):
    """Run `work(number)` in threads; raise what one of them raised."""
    failures = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_appends_of_threads_do_not_mix(fs):
    with fs.open("/log", "w+b", 0) as log:
        in_threads(lambda n: [log.append(bytes([n]) * 100) for _ in range(200)])
        data = log.pread(1 << 20, 0)
    pieces = [data[at : at + 100] for at in range(0, len(data), 100)]
    assert len(pieces) == 1600
    assert all(len(set(piece)) == 1 for piece in pieces)


def test_counter_of_threads_loses_nothing(fs):
    fs.write_bytes("/count", bytes(4096))
    with fs.map("/count", writable=True) as m:
        in_threads(lambda n: [m.fetch_add(0, 1) for _ in range(2000)])
        assert m.load(0) == 16000


def test_threads_make_and_remove_names(fs):
    def work(number):
        for turn in range(50):
            name = f"/{number}-{turn}"
            fs.write_bytes(name, name.encode())
            assert fs.read_bytes(name) == name.encode()
            fs.rename(name, name + "x")
            fs.unlink(name + "x")

    in_threads(work)
    assert fs.listdir("/") == []


def test_handle_closed_by_another_thread_is_error_not_crash(fs):
    fs.write_bytes("/f", b"x" * 65536)
    for _ in range(20):
        file, m = fs.open("/f", "rb", 0), fs.map("/f")
        ready = threading.Barrier(5)

        def work(number, file=file, m=m, ready=ready):
            ready.wait()
            if number == 0:
                file.close()
                while True:
                    try:
                        m.close()
                        return
                    except BufferError:
                        pass
            try:
                for _ in range(50):
                    assert len(file.pread(65536, 0)) == 65536
                    with memoryview(m) as view:
                        assert view[0] == ord("x")
                    assert m.read(0, 8) == b"xxxxxxxx"
            except (ValueError, BufferError) as error:
                assert "closed" in str(error)

        in_threads(work, 5)
    fs.unmount()


def test_reading_lets_other_threads_run(fs):
    """Another thread gets on although this one does nothing but call the library."""
    fs.write_bytes("/f", bytes(1 << 20))
    turns, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            turns[0] += 1
            # Gives the GIL back, which the interpreter takes from nobody meanwhile.
            time.sleep(0)

    thread = threading.Thread(target=count)
    old = sys.getswitchinterval()
    sys.setswitchinterval(100_000)
    try:
        thread.start()
        with fs.open("/f", "rb", 0) as file:
            buffer = bytearray(1 << 20)
            before = turns[0]
            for _ in range(1_000_000):
                file.preadinto(buffer, 0)
                if turns[0] > before + 3:
                    break
            assert turns[0] > before + 3
    finally:
        stop.set()
        sys.setswitchinterval(old)
        thread.join()


def test_import_keeps_the_gil_disabled():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has a GIL; scripts/python-without-gil.sh builds one without")
    assert run("import sys, pramfs; print(sys._is_gil_enabled())") == "False\n"
