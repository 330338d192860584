"""Uses LMDB: `use_lmdb.py change|acknowledge|count DIRECTORY plain|writemap ROUNDS`."""

import random
import subprocess
import sys

import lmdb

DELETED = b""


def open_env(path, mode, **more):
    return lmdb.open(path, map_size=128 << 20, writemap=mode == "writemap", max_dbs=4, **more)


def check(txn):
    """Every transaction keeps the sum of all lengths."""
    total = sum(len(value) for key, value in txn.cursor() if key[:1] == b"k")
    kept = txn.get(b"sum")
    assert kept is None or int(kept) == total, (int(kept), total)
    return txn.get(b"round")


def read(path, mode, rounds):
    """Another process, which sees whole transactions only."""
    env = open_env(path, mode, readonly=True)
    seen, last = 0, None
    while last != b"%d" % (rounds - 1):
        with env.begin() as txn:
            last = check(txn)
        seen += 1
    assert seen > 1
    env.close()


def change(path, mode, rounds):
    chance = random.Random(7)
    env = open_env(path, mode)
    reader = subprocess.Popen([sys.executable, __file__, "read", path, mode, str(rounds)])
    model = {}
    for number in range(rounds):
        with env.begin(write=True) as txn:
            # Grows, shrinks, and then replaces: later rounds use freed pages.
            growing = number < rounds // 3
            for _ in range(200):
                key = b"k%d" % chance.randrange(3000)
                if not growing and chance.random() < 0.5:
                    txn.delete(key)
                    model.pop(key, None)
                else:
                    value = chance.randbytes(chance.choice([8, 100, 900, 3000, 9000]))
                    txn.put(key, value)
                    model[key] = value
            txn.put(b"sum", b"%d" % sum(map(len, model.values())))
            txn.put(b"round", b"%d" % number)
        if number % 20 == 7:
            # An aborted transaction leaves nothing.
            txn = env.begin(write=True)
            for key in list(model)[:100]:
                txn.delete(key)
            txn.put(b"k-new", bytes(20_000))
            txn.abort()
    for name in b"one", b"two":
        other = env.open_db(name, dupsort=name == b"two")
        with env.begin(write=True, db=other) as txn:
            for number in range(500):
                txn.put(b"%d" % (number % 50), b"%d" % number)
    with env.begin() as txn:
        check(txn)
        for key, value in model.items():
            assert txn.get(key) == value, key
    env.sync(True)
    env.close()
    assert reader.wait() == 0


def acknowledge(path, mode, _):
    """Commits until it is killed."""
    env = open_env(path, mode)
    number = 0
    while True:
        with env.begin(write=True) as txn:
            txn.put(b"%08d" % number, b"v" * (number % 2000))
            txn.put(b"again", b"%d" % number)
        print(number, flush=True)
        number += 1


def count(path, mode, _):
    env = open_env(path, mode)
    with env.begin() as txn:
        number = 0
        for key, value in txn.cursor():
            if key == b"again":
                continue
            assert key == b"%08d" % number and value == b"v" * (number % 2000), key
            number += 1
        assert txn.get(b"again") == b"%d" % (number - 1)
    # It goes on after the kill.
    with env.begin(write=True) as txn:
        txn.put(b"after", b"x")
    env.close()
    print(number)


globals()[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
