# A client of NFS 4 in user space (libnfs), since a kernel may have none.
#
# nfs.py URL DIRECTORY: works over NFS and looks at each result in DIRECTORY,
# which is what is exported, and the other way round.
import ctypes
import os
import sys

lib = ctypes.CDLL("libnfs.so.13")
lib.nfs_init_context.restype = ctypes.c_void_p
lib.nfs_parse_url_dir.restype = ctypes.POINTER(ctypes.c_char_p)
lib.nfs_get_error.restype = ctypes.c_char_p
nfs = ctypes.c_void_p(lib.nfs_init_context())


def call(function, *arguments):
    """Calls libnfs; an error is an OSError."""
    kinds = {bytes: ctypes.c_char_p, int: ctypes.c_uint64}
    converted = [kinds[type(a)](a) if type(a) in kinds else a for a in arguments]
    result = getattr(lib, function)(nfs, *converted)
    if result < 0:
        shown = [a for a in arguments if not isinstance(a, bytes) or len(a) < 300]
        raise OSError(-result, f"{function} {shown}: {lib.nfs_get_error(nfs).decode()}")
    return result


def put(path, data, at=0, flags=os.O_RDWR | os.O_CREAT):
    handle = ctypes.c_void_p()
    call("nfs_open", path, ctypes.c_int(flags), ctypes.byref(handle))
    done = 0
    while done < len(data):
        # Version 4.0 of the library cannot encode requests of NFS 4 of a page.
        part = data[done : done + 2048]
        done += call("nfs_pwrite", handle, at + done, len(part), part)
    call("nfs_fsync", handle)
    call("nfs_close", handle)


def get(path):
    handle = ctypes.c_void_p()
    call("nfs_open", path, ctypes.c_int(os.O_RDONLY), ctypes.byref(handle))
    data = b""
    buffer = ctypes.create_string_buffer(65536)
    while True:
        count = call("nfs_pread", handle, len(data), 65536, buffer)
        if count == 0:
            break
        data += buffer.raw[:count]
    call("nfs_close", handle)
    return data


def refused(function, *arguments):
    try:
        call(function, *arguments)
    except OSError as error:
        return error.errno
    raise AssertionError(f"{function} {arguments} was not refused")


url, here = sys.argv[1:]
parts = lib.nfs_parse_url_dir(nfs, ctypes.c_char_p(url.encode()))
server, path = parts[0], parts[1]
call("nfs_mount", server, path)

# There: made over NFS, seen here.
call("nfs_mkdir", b"/dir")
big = os.urandom(1_500_000)
put(b"/dir/big", big)
assert open(f"{here}/dir/big", "rb").read() == big
put(b"/dir/big", b"changed", 1_000_000, os.O_RDWR)
big = big[:1_000_000] + b"changed" + big[1_000_007:]
assert open(f"{here}/dir/big", "rb").read() == big
for i in range(300):
    put(f"/dir/f{i}".encode(), f"contents of {i}".encode())
assert len(os.listdir(f"{here}/dir")) == 301
assert all(open(f"{here}/dir/f{i}").read() == f"contents of {i}" for i in range(300))
call("nfs_rename", b"/dir/f1", b"/renamed")
call("nfs_link", b"/renamed", b"/linked")
call("nfs_symlink", b"renamed", b"/symlink")
call("nfs_unlink", b"/dir/f2")
call("nfs_truncate", b"/dir/f3", 5)
assert open(f"{here}/renamed").read() == "contents of 1"
assert os.stat(f"{here}/linked").st_nlink == 2
assert os.readlink(f"{here}/symlink") == "renamed"
assert not os.path.exists(f"{here}/dir/f2")
assert open(f"{here}/dir/f3").read() == "conte"
assert refused("nfs_rmdir", b"/dir") in (39, 17), "ENOTEMPTY, or EEXIST as old NFS has it"
assert refused("nfs_unlink", b"/nothing") == 2

# Here: made without NFS, seen over it.
os.mkdir(f"{here}/mine")
for i in range(100):
    with open(f"{here}/mine/f{i}", "wb") as f:
        f.write(b"%d" % i * 1000)
assert all(get(f"/mine/f{i}".encode()) == b"%d" % i * 1000 for i in range(100))
assert get(b"/dir/big") == big
assert get(b"/linked") == b"contents of 1"

# What is held open by its handle stays when the names are moved here.
handle = ctypes.c_void_p()
call("nfs_open", b"/mine/f7", ctypes.c_int(os.O_RDWR), ctypes.byref(handle))
os.rename(f"{here}/mine/f7", f"{here}/moved")
os.rename(f"{here}/mine", f"{here}/yours")
call("nfs_pwrite", handle, 0, 5, b"by id")
call("nfs_close", handle)
assert open(f"{here}/moved", "rb").read(6) == b"by id7"
print("over NFS as it should")
