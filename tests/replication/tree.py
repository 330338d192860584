"""Writes a tree step by step, and compares a tree with what the steps must have made.

tree.py write DIR SEED FROM TO      does the steps FROM to TO - 1 below DIR. Prints the number of
                                    each step when all of its calls have returned.
tree.py compare DIR SEED N [M]      DIR must be what the first N steps made. With M, what any number
                                    of steps from N to M made, and perhaps parts of the next one.
tree.py either DIR SEED N M         each file below DIR must have the contents that it has after N steps or
                                    after M steps, and each that has the same in both must be there.
tree.py --brick compare ...         DIR is a brick of GlusterFS: it has files and links of its own.
tree.py --no-contents compare ...   what files hold is not compared: bricks of a dispersed volume have
                                    fragments of it. With --brick.
tree.py --no-attributes ...         no step sets an extended attribute.

A step is chosen by SEED and by what the steps before have made, so it needs no record. Exit status:
0 if the trees are the same, 1 with the differences.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import random
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE = 1, 2
SIZES = [0, 1, 100, 4000, 4096, 10_000, 70_000, 300_000, 1_500_000]


class Node:
    """A file, directory or symbolic link of the model. Links of a file share it."""

    def __init__(self, kind, mode, data=b""):
        self.kind, self.mode, self.data = kind, mode, bytearray(data)
        self.uid, self.attributes, self.sum = 0, {}, None

    def digest(self):
        self.sum = self.sum or digest(self.data)
        return self.sum


class Model:
    """What the steps so far have made: a dictionary of paths."""

    no_attributes = False

    def __init__(self, seed):
        self.seed, self.done, self.nodes = seed, 0, {"": Node("dir", 0o755)}

    def pick(self, rng, *kinds):
        names = [n for n, node in self.nodes.items() if node.kind in kinds]
        return rng.choice(names) if names else None

    def step(self, real):
        """Does the next step in the model and by `real`, and returns the paths it touches."""
        rng = random.Random(self.seed * 1_000_003 + self.done)
        parent = self.pick(rng, "dir")
        new = (parent + "/" if parent else "") + f"{self.done:05}-{rng.randrange(16**6):06x}"
        file = self.pick(rng, "file")
        action = rng.choices(
            ["create", "mkdir", "write", "append", "truncate", "rename", "unlink", "link", "symlink", "chmod", "chown", "setxattr", "punch", "direct"],
            [40, 8, 12, 8, 5, 7, 5, 4, 4, 3, 2, 4, 3, 3],
        )[0]
        if file is None and action not in ("mkdir", "symlink"):
            action = "create"
        self.done += 1
        node = self.nodes.get(file)
        touched = {new, file}
        if node is not None:
            node.sum = None
        if action == "create":
            node = self.nodes[new] = Node("file", 0o644, rng.randbytes(rng.choice(SIZES)))
            real.create(new, node.data)
        elif action == "mkdir":
            self.nodes[new] = Node("dir", 0o755)
            real.mkdir(new)
        elif action == "symlink":
            self.nodes[new] = Node("link", 0o777, f"to/{new}".encode())
            real.symlink(new, bytes(self.nodes[new].data))
        elif action in ("write", "append", "direct"):
            at, data = len(node.data), rng.randbytes(rng.choice(SIZES[1:]))
            if action == "write":
                # Also past the end, which leaves a hole.
                at = rng.randrange(len(node.data) + 20_000)
            elif action == "direct":
                at = at // 4096 * 4096
                data = rng.randbytes(65536)
            if at > len(node.data):
                node.data += bytes(at - len(node.data))
            node.data[at : at + len(data)] = data
            real.write(file, at, data, action == "direct")
        elif action == "truncate":
            size = rng.randrange(len(node.data) + 50_000)
            node.data = node.data[:size] + bytes(max(0, size - len(node.data)))
            real.truncate(file, size)
        elif action == "punch":
            at = rng.randrange(len(node.data) + 1)
            count = min(rng.randrange(1, 100_000), len(node.data) - at)
            if count:
                node.data[at : at + count] = bytes(count)
                real.punch(file, at, count)
        elif action == "rename":
            other = self.pick(rng, "file") if rng.random() < 0.4 else new
            replaced = self.nodes.get(other)
            # Of two names of one file, rename(2) leaves both.
            if self.nodes.get(other) is not node:
                self.nodes[other] = self.nodes.pop(file)
            touched |= {other} | {n for n, o in self.nodes.items() if o is replaced}
            real.rename(file, other)
        elif action == "unlink":
            del self.nodes[file]
            real.unlink(file)
        elif action == "link":
            self.nodes[new] = node
            real.link(file, new)
        elif action == "chmod":
            node.mode = rng.choice([0o600, 0o640, 0o755, 0o444])
            real.chmod(file, node.mode)
        elif action == "chown":
            node.uid = rng.randrange(1000, 2000)
            real.chown(file, node.uid)
        elif action == "setxattr" and not self.no_attributes:
            name, value = f"user.k{rng.randrange(3)}", rng.randbytes(rng.choice([1, 20, 900]))
            node.attributes[name] = value
            real.setxattr(file, name, value)
        # All names of a file change with it.
        return touched | {n for n, other in self.nodes.items() if other is node}


class Nothing:
    """Does nothing: only the model changes."""

    def __getattr__(self, name):
        return lambda *arguments: None


class Directory:
    """Does the steps below a directory."""

    def __init__(self, root):
        self.root = root

    def at(self, path):
        return os.path.join(self.root, path)

    def create(self, path, data):
        fd = os.open(self.at(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.fill(fd, 0, data)

    @staticmethod
    def fill(fd, at, data):
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, at)
            view, at = view[done:], at + done
        os.fsync(fd)
        os.close(fd)

    def write(self, path, at, data, direct):
        fd = os.open(self.at(path), os.O_WRONLY | (os.O_DIRECT if direct else 0))
        if direct:
            # Aligned memory.
            memory = mmap.mmap(-1, len(data))
            memory.write(data)
            data = memory
        self.fill(fd, at, data)

    def truncate(self, path, size):
        os.truncate(self.at(path), size)

    def punch(self, path, at, count):
        fd = os.open(self.at(path), os.O_WRONLY)
        if libc.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(count)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate", path)
        os.close(fd)

    def mkdir(self, path):
        os.mkdir(self.at(path), 0o755)

    def symlink(self, path, target):
        os.symlink(target, self.at(path))

    def rename(self, path, other):
        os.rename(self.at(path), self.at(other))

    def unlink(self, path):
        os.unlink(self.at(path))

    def link(self, path, other):
        os.link(self.at(path), self.at(other))

    def chmod(self, path, mode):
        os.chmod(self.at(path), mode)

    def chown(self, path, uid):
        os.chown(self.at(path), uid, -1)

    def setxattr(self, path, name, value):
        os.setxattr(self.at(path), name, value)


def digest(data):
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


def actual(root, brick, plain=False, contents=True):
    """What is below a directory, as a dictionary of paths to descriptions; `plain`: kind and contents of
    files, which are not read without `contents`."""
    found, inodes = {}, {}

    def look(path):
        place = os.path.join(root, path)
        try:
            info = os.lstat(place)
            kind = stat.S_IFMT(info.st_mode)
            names = {}
            if kind != stat.S_IFLNK:
                names = {n: os.getxattr(place, n) for n in os.listxattr(place) if n.startswith("user.")}
            what = data = ""
            if kind == stat.S_IFDIR:
                what = "dir"
            elif kind == stat.S_IFLNK:
                what, data = "link", digest(os.readlink(os.fsencode(place)))
            elif kind == stat.S_IFREG:
                what = "file"
                if contents:
                    with open(place, "rb") as file:
                        data = digest(file.read())
            links = info.st_nlink if what == "file" else 1
            if brick and what == "file":
                # GlusterFS has links of its own, so the names are counted instead.
                inodes.setdefault(info.st_ino, []).append(path)
                links = None
            found[path] = (what, stat.S_IMODE(info.st_mode), info.st_uid, links, data, names)
        except OSError as error:
            found[path] = f"cannot be read: {errno.errorcode.get(error.errno)}"
            for paths in inodes.values():
                paths[:] = [p for p in paths if p != path]
            return
        if what == "dir":
            try:
                children = sorted(os.listdir(place))
            except OSError as error:
                found[path] = f"cannot be listed: {errno.errorcode.get(error.errno)}"
                return
            for name in children:
                if path == "" and (name == "lost+found" or (brick and name.startswith(".glusterfs"))):
                    continue
                look(os.path.join(path, name))

    look("")
    for paths in inodes.values():
        for path in paths:
            kind, mode, uid, _, data, names = found[path]
            found[path] = kind, mode, uid, len(paths), data, names
    # Unless it cannot be read, it belongs to the volume or to the mount.
    if not isinstance(found[""], str):
        del found[""]
    if plain:
        return {p: what if isinstance(what, str) else (what[0], what[4] or digest(b"")) for p, what in found.items()}
    found = {p: what if isinstance(what, str) else describe(*what, contents) for p, what in found.items()}
    return found


def describe(kind, mode, uid, links, data, attributes, contents=True):
    if kind == "file" and not contents:
        data = ""
    names = ", ".join(f"{n}={digest(v)}" for n, v in sorted(attributes.items()))
    return f"{kind} {mode:o} uid {uid} links {links} {data} {names}".rstrip()


def expected(model, contents=True):
    counts = {}
    for node in model.nodes.values():
        counts[id(node)] = counts.get(id(node), 0) + 1
    return {
        path: describe(
            node.kind,
            node.mode,
            node.uid,
            counts[id(node)] if node.kind == "file" else 1,
            node.digest() if node.kind != "dir" else "",
            node.attributes,
            contents,
        )
        for path, node in model.nodes.items()
        if path
    }


def differences(found, wanted):
    return {p: (wanted.get(p), found.get(p)) for p in sorted(found.keys() | wanted.keys()) if found.get(p) != wanted.get(p)}


def compare(root, seed, first, last, brick, contents):
    model = Model(seed)
    while model.done < first:
        model.step(Nothing())
    found = actual(root, brick, contents=contents)
    nearest = None
    while True:
        steps, different = model.done, differences(found, expected(model, contents))
        touched = model.step(Nothing())
        if not different or (last > first and different.keys() <= touched):
            print(f"{root}: {len(found)} names as {steps} steps made them" + (f", and part of the next: {sorted(different)}" if different else ""))
            return 0
        if nearest is None or len(different) < len(nearest[1]):
            nearest = steps, different
        if steps >= last:
            break
    steps, different = nearest
    print(f"{root}: {len(different)} differences from what {steps} steps made:")
    for path, (wanted, got) in list(different.items())[:10]:
        print(f"  {path}: must be {wanted or 'absent'}; is {got or 'absent'}")
    return 1


def either(root, seed, first, last):
    states = []
    model = Model(seed)
    for steps in (first, last):
        while model.done < steps:
            model.step(Nothing())
        states.append({p: (n.kind, n.digest()) for p, n in model.nodes.items() if p})
    wrong, old, new = [], 0, 0
    found = actual(root, False, plain=True)
    # Of a file that was not complete, in the name that rsync gives it until then.
    parts = {p for p in found if os.path.basename(p).startswith(".")}
    for path in (states[0].keys() | states[1].keys() | found.keys()) - parts:
        is_now, was, will_be = found.get(path), states[0].get(path), states[1].get(path)
        old += is_now == was != will_be
        new += is_now == will_be != was
        if is_now not in (was, will_be):
            wrong.append(f"  {path}: is {is_now}, was {was}, becomes {will_be}")
    print(f"{root}: {old} names are as {first} steps made them, {new} as {last} did, {len(parts)} files are partial, under names of their own", *wrong[:10], sep="\n")
    return 1 if wrong else 0


def main(arguments):
    options = {a for a in arguments if a.startswith("--")}
    Model.no_attributes = "--no-attributes" in options
    brick = "--brick" in options
    action, root, *numbers = (a for a in arguments if a not in options)
    seed, first, *rest = map(int, numbers)
    if action == "either":
        return either(root, seed, first, rest[0])
    if action == "compare":
        return compare(root, seed, first, rest[0] if rest else first, brick, "--no-contents" not in options)
    os.umask(0o022)
    model = Model(seed)
    while model.done < rest[0]:
        number = model.done
        model.step(Directory(root) if number >= first else Nothing())
        if number >= first:
            print(number, flush=True)
    return 0


sys.exit(main(sys.argv[1:]))
