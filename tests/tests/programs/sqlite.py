# Writers of a database, and its check.
#
# sqlite.py make DB MODE            a database with accounts
# sqlite.py write DB MODE N LOG     transactions until killed; one line in LOG
#                                   for each that has been committed
# sqlite.py check DB MODE LOG...    everything that was committed is there
#
# MODE is a journal mode; with "+off" behind it, SQLite syncs nothing.
import hashlib
import random
import sqlite3
import sys

ACCOUNTS = 200
EACH = 1000


def connect(path, mode):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    journal, _, synchronous = mode.partition("+")
    got = db.execute(f"pragma journal_mode={journal}").fetchone()[0]
    assert got == journal, f"journal mode {got} instead of {journal}"
    db.execute(f"pragma synchronous={synchronous or 'full'}")
    return db


def blob(writer, n):
    seed = hashlib.sha256(f"{writer} {n}".encode()).digest()
    return seed * (1 + n % 97)


def make(path, mode):
    db = connect(path, mode)
    db.execute("create table account (id integer primary key, amount integer not null)")
    db.execute("create table done (writer integer, n integer, body blob, primary key (writer, n))")
    db.execute("create index body on done (substr(body, 1, 8))")
    db.execute("begin")
    db.executemany("insert into account values (?, ?)", [(i, EACH) for i in range(ACCOUNTS)])
    db.execute("commit")


def write(path, mode, writer, log):
    db = connect(path, mode)
    db.execute("pragma wal_autocheckpoint=50")
    start = db.execute("select coalesce(max(n) + 1, 0) from done where writer = ?", (writer,)).fetchone()[0]
    with open(log, "a") as out:
        n = start
        while True:
            db.execute("begin immediate")
            a, b = random.sample(range(ACCOUNTS), 2)
            amount = random.randrange(100)
            db.execute("update account set amount = amount - ? where id = ?", (amount, a))
            db.execute("update account set amount = amount + ? where id = ?", (amount, b))
            db.execute("insert into done values (?, ?, ?)", (writer, n, blob(writer, n)))
            if n % 50 == 49:
                db.execute("delete from done where writer = ? and n % 3 = 0 and n < ?", (writer, n - 20))
            if n % 13 == 12:
                db.execute("rollback")
                n += 1
                continue
            db.execute("commit")
            out.write(f"{n}\n")
            out.flush()
            n += 1


def check(path, mode, logs):
    db = connect(path, mode)
    said = [row[0] for row in db.execute("pragma integrity_check")]
    assert said == ["ok"], said
    total = db.execute("select sum(amount) from account").fetchone()[0]
    assert total == ACCOUNTS * EACH, f"the accounts hold {total}"
    count = 0
    for writer, log in enumerate(logs):
        committed = [int(line) for line in open(log).read().split("\n")[:-1]]
        rows = dict(db.execute("select n, body from done where writer = ?", (writer,)))
        for n, body in rows.items():
            assert body == blob(writer, n), f"row {writer}, {n}"
        for n in committed:
            gone = n % 3 == 0 and n + 20 < max(committed) + 3
            assert n in rows or gone, f"{writer}, {n} was committed and is not there"
        count += len(committed)
    # Usable, not only readable.
    db.execute("vacuum")
    assert [row[0] for row in db.execute("pragma integrity_check")] == ["ok"]
    print(count)


what, path, mode, *rest = sys.argv[1:]
if what == "make":
    make(path, mode)
elif what == "write":
    write(path, mode, int(rest[0]), rest[1])
else:
    check(path, mode, rest)
