"""Three processes change a file in turns: two with the preload library, one without. After each
step all must see what a model says.

    coherence.py FILE LIBRARY SEED
"""

import os
import random
import subprocess
import sys

PROCESS = """
import ctypes, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
print(flush=True)
for line in sys.stdin:
    name, *numbers = line.split()
    at, n, byte = map(int, numbers)
    answer = ''
    if name == 'write':
        os.pwrite(fd, bytes([byte]) * n, at)
    elif name == 'read':
        answer = os.pread(fd, n, at).hex()
    elif name == 'truncate':
        os.ftruncate(fd, at)
    elif name == 'punch':
        assert libc.fallocate(fd, 3, ctypes.c_long(at), ctypes.c_long(n)) == 0
    elif name == 'zero':
        # FALLOC_FL_ZERO_RANGE, with and without FALLOC_FL_KEEP_SIZE.
        mode = 0x11 if byte else 0x10
        assert libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(n)) == 0
    elif name == 'append':
        end = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
        os.write(end, bytes([byte]) * n)
        os.close(end)
    elif name == 'copy':
        # Copies within the file, where the ranges do not overlap.
        answer = str(os.copy_file_range(fd, fd, n, at, at + 10000 + byte))
    elif name == 'names':
        # The file loses a name, gets another one, and then has its own again.
        os.link(sys.argv[1], sys.argv[1] + '.2')
        os.unlink(sys.argv[1])
        os.rename(sys.argv[1] + '.2', sys.argv[1])
    elif name == 'chmod':
        os.fchmod(fd, 0o600 + byte % 2 * 0o44)
    elif name == 'map':
        try:
            with mmap.mmap(fd, 0) as view:
                if at + n <= len(view):
                    view[at:at + n] = bytes([byte]) * n
                    view.flush()
                    answer = 'stored'
        except (OSError, ValueError, OverflowError):
            # An empty file; ENODEV without the library.
            pass
    print(answer, flush=True)
"""


def main(path, library, seed):
    chance = random.Random(seed)
    model = bytearray(b"z" * 200_000)
    with open(path, "wb") as file:
        file.write(model)

    def start(preloaded):
        env = dict(os.environ)
        if preloaded:
            env.update(LD_PRELOAD=library, PRAMFS_PRELOAD_STATS="1")
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        process.stdout.readline()
        return process

    # One after the other: the first one gets its lease before the others open the file.
    processes = [start(True), start(True), start(False)]
    for step in range(2000):
        process = chance.choice(processes)

        def ask(name, *numbers):
            print(name, *numbers, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        kind = chance.randrange(100)
        at, n, byte = chance.randrange(220_000), chance.randrange(1, 9000), chance.randrange(256)
        if kind < 40:
            ask("write", at, n, byte)
            model.extend(bytes(max(0, at + n - len(model))))
            model[at : at + n] = bytes([byte]) * n
        elif kind < 85:
            seen = bytes.fromhex(ask("read", at, n, 0))
            assert seen == model[at : at + n], (step, at, n, processes.index(process))
        elif kind < 88:
            at = at // 4096 * 4096 + (kind == 86) * 17
            ask("truncate", at, 0, 0)
            model = model[:at] + bytes(max(0, at - len(model)))
        elif kind < 90:
            ask("punch", at, n, 0)
            end = min(at + n, len(model))
            if at < end:
                model[at:end] = bytes(end - at)
        elif kind < 92:
            keeps = byte % 2
            ask("zero", at, n, keeps)
            if not keeps:
                model.extend(bytes(max(0, at + n - len(model))))
            end = min(at + n, len(model))
            if at < end:
                model[at:end] = bytes(end - at)
        elif kind < 93 and len(model) < 300_000:
            ask("append", 0, n, byte)
            model.extend(bytes([byte]) * n)
        elif kind < 95:
            copied = int(ask("copy", at, n, byte))
            source = model[at : at + n]
            assert copied == len(source), (step, copied, len(source))
            to = at + 10000 + byte
            if copied:
                model.extend(bytes(max(0, to + copied - len(model))))
                model[to : to + copied] = source
        elif kind < 96:
            ask("names", 0, 0, 0)
        elif kind < 97:
            ask("chmod", 0, 0, byte)
        elif ask("map", at, n, byte) == "stored":
            model[at : at + n] = bytes([byte]) * n
    for process in processes:
        process.stdin.close()
        assert process.wait() == 0
    with open(path, "rb") as file:
        assert file.read() == model


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
