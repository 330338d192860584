# DuckDB without syncs.
#
# acknowledged_duckdb.py write DATABASE   a transaction for each line of the input, and a line of
#                                         output when it has been committed
# acknowledged_duckdb.py count DATABASE   how many there are, whole
import os
import sys

import duckdb

EACH = 20


def value(n):
    return f"{n} " * (1 + n * 37 % 100)


def write(con):
    # Checkpoints now and then, so that a kill may meet one.
    con.execute("SET checkpoint_threshold = '4MB'")
    con.execute("CREATE TABLE IF NOT EXISTS kept (n BIGINT PRIMARY KEY, text VARCHAR)")
    (rows,) = con.execute("SELECT count(*) FROM kept").fetchone()
    for turn, _ in enumerate(sys.stdin):
        con.execute("BEGIN")
        numbers = list(range(rows, rows + EACH))
        con.execute("INSERT INTO kept SELECT unnest(?), unnest(?)", [numbers, [value(n) for n in numbers]])
        con.execute("COMMIT")
        rows += EACH
        # Before the first checkpoint, what is committed is in the log, beside the database.
        assert turn > 0 or os.path.getsize(path + ".wal") > 0
        print("OK", flush=True)


def count(con):
    rows = con.execute("SELECT n, text FROM kept ORDER BY n").fetchall()
    for expected, (n, text) in enumerate(rows):
        assert n == expected and text == value(n), (n, expected)
        # By the index, too.
        if n % 97 == 0:
            assert con.execute("SELECT text FROM kept WHERE n = ?", [n]).fetchone() == (text,), n
    assert len(rows) % EACH == 0, len(rows)
    con.execute("CHECKPOINT")
    print(len(rows) // EACH)


what, path = sys.argv[1:]
con = duckdb.connect(path)
con.execute("SET fsync_mode = 'NONE'")
{"write": write, "count": count}[what](con)
