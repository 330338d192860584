#!/usr/bin/env python3
"""In the guest: maps files of a region with DAX, stores, and checks what is where.

dax.py work DIR      all of it
dax.py check DIR     what `work` has left, after another boot
dax.py live DIR FILE stores numbers, and tells the last one in FILE, until the machine ends

On the host, under the preload library:

dax.py watch DIR PRAMFS  sees these numbers in a mapping, while the server is asked nothing
"""

import mmap
import os
import sqlite3
import subprocess
import sys
import time

MIB = 1 << 20


def pattern(n, length):
    return bytes((n * 31 + i * 7) & 0xFF for i in range(256)) * (length // 256)


def map_file(path, length, flags=os.O_RDWR | os.O_CREAT):
    fd = os.open(path, flags, 0o644)
    if os.fstat(fd).st_size < length:
        os.ftruncate(fd, length)
    view = mmap.mmap(fd, length)
    return fd, view


def touched(at):
    """A file of 64 MiB: the first touch of each 2 MiB, then loads and stores."""
    fd, view = map_file(at + "/touched", 64 * MIB)
    begun = time.monotonic()
    for n in range(32):
        view[n * 2 * MIB] = n + 1
    first = time.monotonic()
    for n in range(100000):
        view[(n * 4097) % (64 * MIB)] = (n * 3) & 0xFF
    stored = time.monotonic()
    print("   dax: first touch of 32 ranges: %.3f s; 100,000 stores: %.3f s" % (first - begun, stored - first))
    for n in range(32):
        view[n * 2 * MIB : n * 2 * MIB + 8] = b"%08d" % n
    for n in range(32):
        os.lseek(fd, n * 2 * MIB, os.SEEK_SET)
        assert os.read(fd, 8) == b"%08d" % n
    view.flush()
    os.fsync(fd)
    os.close(fd)
    view.close()


def grown(at):
    """A store to bytes that the file did not have when it was mapped."""
    path = at + "/grown"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, pattern(1, 4096) + b"tail")
    view = mmap.mmap(fd, 4096)
    assert view[:4096] == pattern(1, 4096)
    # By write, by truncation, by fallocate: each in the range that is mapped.
    os.pwrite(fd, pattern(2, 8192), 4096)
    view.resize(16384)
    assert view[4096:12288] == pattern(2, 8192)
    view[12288:12292] = b"here"
    os.ftruncate(fd, 1 * MIB)
    view.resize(1 * MIB)
    view[MIB - 4 : MIB] = b"last"
    assert os.pread(fd, 4, MIB - 4) == b"last"
    os.posix_fallocate(fd, 0, 3 * MIB)
    view.resize(3 * MIB)
    assert view[2 * MIB : 2 * MIB + 8] == bytes(8)
    view[3 * MIB - 4 :] = b"more"
    assert os.pread(fd, 4, 12288) == b"here" and os.pread(fd, 4, 3 * MIB - 4) == b"more"
    os.close(fd)
    view.close()


def holes(at):
    """Stores to holes, and to a hole that was punched into a mapped range."""
    fd, view = map_file(at + "/holes", 4 * MIB)
    assert view[:4096] == bytes(4096) and view[-4096:] == bytes(4096)
    view[MIB : MIB + 4] = b"hole"
    assert os.pread(fd, 4, MIB) == b"hole"
    # fallocate(1): Python has no punch of its own.
    os.system("fallocate -p -o %d -l %d %s/holes" % (MIB - 4096, 12288, at))
    assert view[MIB : MIB + 4] == bytes(4)
    view[MIB : MIB + 4] = b"fill"
    assert os.pread(fd, 4, MIB) == b"fill"
    view.flush()
    os.close(fd)
    view.close()


def shortened(at):
    """A truncation and a removal below a mapping."""
    fd, view = map_file(at + "/short", 4 * MIB)
    view[: 4 * MIB] = pattern(3, 4 * MIB)
    os.ftruncate(fd, 4096)
    assert view[:4096] == pattern(3, 4096)
    os.ftruncate(fd, 4 * MIB)
    assert view[4096 : 4 * MIB] == bytes(4 * MIB - 4096)
    os.unlink(at + "/short")
    view[MIB : MIB + 4] = b"gone"
    assert os.pread(fd, 4, MIB) == b"gone"
    os.close(fd)
    view.close()


def many(at):
    """More than the window: ranges are taken away and come again."""
    views = []
    for n in range(8):
        fd, view = map_file("%s/many%d" % (at, n), 48 * MIB)
        views.append((fd, view))
    for turn in range(2):
        for n, (fd, view) in enumerate(views):
            for at_mib in range(0, 48, 2):
                place = at_mib * MIB + 64 * n
                if turn:
                    assert view[place] == (n + at_mib) & 0xFF, (n, at_mib)
                else:
                    view[place] = (n + at_mib) & 0xFF
    for fd, view in views:
        os.close(fd)
        view.close()


def sqlite(at):
    """SQLite with a WAL, whose index is a shared mapping, and a mapped database."""
    path = at + "/database"
    database = sqlite3.connect(path)
    assert database.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    database.execute("pragma mmap_size=%d" % (16 * MIB))
    database.execute("create table t (n integer primary key, text)")
    other = sqlite3.connect(path)
    for n in range(200):
        with database:
            database.executemany("insert into t values (?, ?)", [(n * 10 + i, "x" * 500) for i in range(10)])
        if n % 50 == 49:
            assert other.execute("select count(*) from t").fetchone() == ((n + 1) * 10,)
    other.execute("pragma wal_checkpoint(truncate)")
    assert other.execute("pragma integrity_check").fetchone() == ("ok",)
    other.close()
    database.close()


def left(at):
    fd = os.open(at + "/left", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 2 * MIB)
    view = mmap.mmap(fd, 2 * MIB)
    view[: 2 * MIB] = pattern(5, 2 * MIB)
    view.flush()
    # Neither unmapped nor closed when the machine ends.
    return fd, view


def live(at, told):
    fd, view = map_file(at + "/live", 4 * MIB)
    n = 0
    while True:
        n += 1
        for place in [0, 4 * MIB - 8]:
            view[place : place + 8] = n.to_bytes(8, "little")
        with open(told + ".part", "w") as file:
            file.write("%d\n" % n)
        os.rename(told + ".part", told)
        time.sleep(0.01)


def watch(at, pramfs):
    fd = os.open(at + "/live", os.O_RDWR)
    view = mmap.mmap(fd, 4 * MIB)

    def last():
        return int.from_bytes(view[4 * MIB - 8 : 4 * MIB], "little")

    def requests():
        told = subprocess.run([pramfs, "requests", "--json", at], check=True, capture_output=True)
        return told.stdout

    seen = last()
    # The guest has made and mapped its file some time ago.
    before, first, changes = requests(), seen, 0
    end = time.monotonic() + 5
    while time.monotonic() < end:
        now = last()
        assert now >= seen, (now, seen)
        changes += now != seen
        seen = now
    assert requests() == before, (before, requests())
    print("dax: this machine saw %d stores of the guest in 5 s, without a request" % changes)
    assert changes >= 20, (first, seen)
    os.close(fd)
    view.close()


def lmdb(at):
    """LMDB, whose whole database is a shared mapping, written through it."""
    try:
        import lmdb
    except ImportError:
        print("   dax: *** SKIPPED: Python has no module lmdb: LMDB is not tested ***")
        return
    with lmdb.open(at + "/lmdb", map_size=32 * MIB, writemap=True, map_async=False) as env:
        for n in range(100):
            with env.begin(write=True) as change:
                for i in range(10):
                    change.put(b"%08d" % (n * 10 + i), b"x" * 500)
    with lmdb.open(at + "/lmdb", map_size=32 * MIB, readonly=True) as env, env.begin() as view:
        found = [(int(key), value) for key, value in view.cursor()]
        assert found == [(n, b"x" * 500) for n in range(1000)], len(found)


def check(at):
    with open(at + "/left", "rb") as file:
        assert file.read() == pattern(5, 2 * MIB)
    with open(at + "/grown", "rb") as file:
        data = file.read()
        assert len(data) == 3 * MIB and data[12288:12292] == b"here" and data[-4:] == b"more"
    assert not os.path.exists(at + "/short")
    database = sqlite3.connect(at + "/database")
    assert database.execute("select count(*) from t").fetchone() == (2000,)
    for n in range(8):
        os.unlink("%s/many%d" % (at, n))


if __name__ == "__main__":
    what, where = sys.argv[1:3]
    if what == "work":
        for step in [touched, grown, holes, shortened, many, sqlite, lmdb]:
            step(where)
            print("   dax: %s: %s" % (step.__name__, step.__doc__), flush=True)
        kept = left(where)
        os._exit(0)
    elif what == "live":
        live(where, sys.argv[3])
    elif what == "watch":
        watch(where, sys.argv[3])
        sys.exit()
    check(where)
