# LMDB without syncs.
#
# acknowledged.py write DIR    a transaction for each line of the input, and a line of output
#                              when it has been committed
# acknowledged.py count DIR    how many there are, whole
import sys

import lmdb

EACH = 20

what, path = sys.argv[1:]
env = lmdb.open(path, map_size=256 << 20, sync=False, metasync=False)


def value(n):
    return b"%d " % n * (1 + n * 37 % 300)


with env.begin() as txn:
    n = int(txn.get(b"count", b"0"))
if what == "write":
    for _ in sys.stdin:
        with env.begin(write=True) as txn:
            for i in range(n * EACH, (n + 1) * EACH):
                txn.put(b"k%d" % i, value(i))
            n += 1
            txn.put(b"count", b"%d" % n)
        print("OK", flush=True)
else:
    with env.begin() as txn:
        for i in range(n * EACH):
            assert txn.get(b"k%d" % i) == value(i), i
        assert txn.stat()["entries"] == n * EACH + (n > 0)
    print(n)
