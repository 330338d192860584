"""A client of NFS 4 in user space (libnfs), since a kernel may have none.

nfs_client.py write URL N M SECONDS writes the files N to M - 1, one after the other, and a number into the file `held`,
                                    which stays open. Prints the number of a file when the server has
                                    said that it is stable (COMMIT). After an error it connects again, for
                                    at most so many seconds.
nfs_client.py check DIR N           the first N files must be there.
"""

import ctypes
import os
import random
import sys
import time


def content(number):
    return random.Random(number).randbytes(number * 997 % 20_000)


class Client:
    def __init__(self, url):
        self.lib = lib = ctypes.CDLL("libnfs.so.13")
        lib.nfs_init_context.restype = ctypes.c_void_p
        lib.nfs_parse_url_dir.restype = ctypes.POINTER(ctypes.c_char_p)
        lib.nfs_get_error.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p(lib.nfs_init_context())
        # Otherwise it waits for ever for the answers of a server that has ended.
        lib.nfs_set_autoreconnect(self.context, 0)
        lib.nfs_set_timeout(self.context, 5000)
        parts = lib.nfs_parse_url_dir(self.context, ctypes.c_char_p(url.encode()))
        self.call("nfs_mount", parts[0], parts[1])
        self.held = self.open(b"/held")

    def open(self, path):
        # To this library, O_CREAT means O_EXCL too. It does not count an open that fails, so the server
        # answers the next one of the client in the same way: none may fail.
        try:
            self.call("nfs_stat64", path, ctypes.create_string_buffer(512))
            flags = os.O_RDWR
        except FileNotFoundError:
            flags = os.O_RDWR | os.O_CREAT
        handle = ctypes.c_void_p()
        self.call("nfs_open", path, ctypes.c_int(flags), ctypes.byref(handle))
        return handle

    def call(self, function, *arguments):
        kinds = {bytes: ctypes.c_char_p, int: ctypes.c_uint64}
        converted = [kinds[type(a)](a) if type(a) in kinds else a for a in arguments]
        result = getattr(self.lib, function)(self.context, *converted)
        if result < 0:
            raise OSError(-result, f"{function}: {self.lib.nfs_get_error(self.context)}")
        return result

    def pwrite(self, handle, at, data):
        done = 0
        while done < len(data):
            # Version 4.0 of the library cannot encode requests of NFS 4 of a page.
            part = data[done : done + 2048]
            done += self.call("nfs_pwrite", handle, at + done, len(part), part)
        self.call("nfs_fsync", handle)

    def step(self, number):
        handle = self.open(b"/f%d" % number)
        self.pwrite(handle, 0, content(number))
        self.call("nfs_close", handle)
        self.pwrite(self.held, 0, b"%08d" % number)


def write(url, first, end, seconds):
    client, errors = None, 0
    for number in range(first, end):
        deadline = time.monotonic() + seconds
        while True:
            try:
                client = client or Client(url)
                client.step(number)
                break
            except OSError as error:
                client, errors = None, errors + 1
                if errors == 1 or time.monotonic() > deadline:
                    print(f"file {number}: {error}", file=sys.stderr, flush=True)
                if time.monotonic() > deadline:
                    return 1
                time.sleep(0.5)
        print(number, flush=True)
    return 0


def check(root, count):
    wrong = []
    for number in range(count):
        try:
            with open(f"{root}/f{number}", "rb") as file:
                if file.read() != content(number):
                    wrong.append(f"f{number} has other contents")
        except OSError as error:
            wrong.append(str(error))
    with open(f"{root}/held", "rb") as file:
        if int(file.read()) < count - 1:
            wrong.append("the file that was held open is older")
    print(f"{root}: {count - len(wrong)} of {count} files are as they were written", *wrong[:5], sep="\n  ")
    return 1 if wrong else 0


action, place, *numbers = sys.argv[1:]
sys.exit(write(place, *map(int, numbers)) if action == "write" else check(place, int(numbers[0])))
