# SQLite's load and check, and the moment of a power cut (tests/vm/databases.sh).
#
# databases.py make DB          a database whose table has one row per page of 64 KiB
# databases.py live DB LOG      transactions of one page until killed; LOG gets a line for each
#                               that has been committed
# databases.py check DB LOG     prints "whole N" or "torn ROW", or fails: what was committed must
#                               be there, and nothing but one page may be torn
# databases.py plant DB         tears a page by hand
# databases.py cut PID SIGNAL FILE
#                               kills or stops the process as soon as one of the places that stdin
#                               names, words of FILE, begins to change; at once if it names none
#
# With what `pramfs extents --json` says of a file, as stdin:
#
# databases.py places OFFSET SIZE FIRST
#                               for each page of SIZE bytes, the place of its byte FIRST on a medium
#                               whose region begins at OFFSET
# databases.py digest REGION    a digest of the file's blocks, without any replay
import hashlib
import json
import mmap
import os
import signal
import sqlite3
import sys
import time

PAGE = 65536
ROWS = 8
# The cell with the body ends where the page ends. So the words of the body are aligned in the page,
# in the file, and on the medium: each of them is old or new, and only the page can be torn.
WORDS = 8170


def connect(path):
    db = sqlite3.connect(path, isolation_level=None)
    # Exclusive locking: otherwise each transaction also counts itself in page 1, as a message to
    # other processes, and would be one of two pages. In this mode only the first one does.
    db.execute("pragma locking_mode=exclusive")
    mode = db.execute("pragma journal_mode=off").fetchone()[0]
    assert mode == "off", mode
    db.execute("pragma synchronous=full")
    return db


# Transaction N writes N to all words of row N mod ROWS, and nothing else. After any number of whole
# transactions, the rows thus follow from the largest number.
def body(n):
    return n.to_bytes(8, "little") * WORDS


def make(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"pragma page_size={PAGE}")
    db.execute("create table page (id integer primary key, body blob)")
    for n in range(ROWS):
        db.execute("insert into page values (?, ?)", (n, body(n)))
    # The schema's page, the root of the table, and a leaf for each row.
    assert os.stat(path).st_size == (2 + ROWS) * PAGE


def live(path, log):
    db = connect(path)
    n = ROWS
    with open(log, "a", buffering=1) as out:
        while True:
            db.execute("update page set body = ? where id = ?", (body(n), n % ROWS))
            out.write(f"{n}\n")
            n += 1


def check(path, log):
    db = sqlite3.connect(path)
    said = [row[0] for row in db.execute("pragma integrity_check")]
    assert said == ["ok"], said
    numbers, torn = {}, {}
    for row, data in db.execute("select id, body from page"):
        assert len(data) == WORDS * 8, f"row {row} has {len(data)} bytes"
        words = set(memoryview(data).cast("Q"))
        if len(words) > 1:
            torn[row] = words
        else:
            numbers[row] = words.pop()
    assert len(numbers) + len(torn) == ROWS, f"rows {list(numbers)} and {list(torn)}"
    last = max(numbers.values())
    # The torn page is that of the transaction in progress, between the last one and the next.
    for row, words in torn.items():
        assert len(torn) == 1 and words == {last + 1, last + 1 - ROWS}, f"{torn}, {numbers}"
    for row, n in numbers.items():
        assert n == last - (last - row) % ROWS, f"row {row} has {n}, the last is {last}"
    with open(log) as lines:
        # Of a last line that was being written, there may be a part.
        logged = [int(line) for line in lines.read().split("\n")[:-1]]
    assert not logged or last >= logged[-1], f"{logged[-1]} was committed, the last is {last}"
    print(*(f"torn {row}" for row in torn) if torn else [f"whole {last}"])


def plant(path):
    with open(path, "r+b") as db:
        # The second half of the leaf of row 0, which the next transaction changes.
        data = db.read()
        middle = data.index(body(0), 2 * PAGE) // PAGE * PAGE + PAGE // 2
        db.seek(middle)
        db.write(ROWS.to_bytes(8, "little") * (PAGE // 2 // 8))


def cut(pid, name, path):
    places = [int(line) // 8 for line in sys.stdin]
    with open(path, "rb") as file:
        medium = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    # A page is copied in some ten microseconds, so each turn of the loop must be short.
    words = memoryview(medium).cast("Q")
    number = signal.Signals[name]
    before, end = [words[place] for place in places], time.monotonic() + 120
    while places and [words[place] for place in places] == before:
        if time.monotonic() > end:
            sys.exit("nothing was written to the watched pages for two minutes")
    os.kill(pid, number)
    while name == "SIGSTOP" and not has_stopped(pid):
        pass


# Each thread stops by itself, the one that emulates the processors included.
def has_stopped(pid):
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] != "T":
                return False
    return True


def places(offset, size, first):
    for extent in json.load(sys.stdin):
        begin = -(-extent["file_offset"] // size) * size
        for page in range(begin, extent["file_offset"] + extent["len"], size):
            print(offset + extent["region_offset"] + page - extent["file_offset"] + first)


def digest(path):
    result = hashlib.sha256()
    with open(path, "rb") as region:
        for extent in json.load(sys.stdin):
            region.seek(extent["region_offset"])
            result.update(region.read(extent["len"]))
    print(result.hexdigest())


what, path, *rest = sys.argv[1:]
if what == "make":
    make(path)
elif what == "live":
    live(path, rest[0])
elif what == "check":
    check(path, rest[0])
elif what == "plant":
    plant(path)
elif what == "places":
    places(int(path), *map(int, rest))
elif what == "digest":
    digest(path)
else:
    cut(int(path), *rest)
