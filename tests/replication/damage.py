"""Damages a region that is not mounted: overwrites bytes of file data, of inodes, and of the names or the
attributes of a directory.

damage.py PRAMFS REGION BRICK SEED    BRICK is the path of the brick in the region.

Prints what it damages. 64 bytes are a line of the processor's cache, the likely loss of this medium.
"""

import json
import random
import subprocess
import sys

pramfs, region, brick, seed = sys.argv[1:]
rng = random.Random(int(seed))


def ask(*arguments):
    out = subprocess.run([pramfs, *arguments], stdout=subprocess.PIPE, check=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


files, dirs = {}, {}
for entry in ask("ls", "-R", "--json", region, brick):
    # Names for the users; what GlusterFS keeps for itself has the same inodes, or is made again.
    if not entry["path"].startswith(f"{brick}/.glusterfs"):
        {"regular file": files, "directory": dirs}.get(entry["kind"], {})[entry["path"]] = entry
places = {row["inode"]: row["offset"] for row in ask("dump", "--json", "--inodes", "--limit", "0", region)[0]["inodes"]["rows"]}
large = [path for path, entry in files.items() if entry["size"] > 8192]
by_data = rng.sample(sorted(large), 6)
others = sorted(p for p in files if files[p]["inode"] not in {files[q]["inode"] for q in by_data})
by_inode = rng.sample(others, 6)

with open(region, "r+b") as medium:

    def overwrite(at, count):
        medium.seek(at)
        before = medium.read(count)
        after = rng.randbytes(count)
        assert after != before
        medium.seek(at)
        medium.write(after)

    for path in by_data:
        extents = [e for e in ask("extents", "--json", region, path)[0] if e["region_offset"] is not None and not e["unwritten"]]
        extent = rng.choice(extents)
        overwrite(extent["region_offset"] + extent["len"] // 2, min(64, extent["len"] - extent["len"] // 2))
        print(f"data of {path}")
    for path in by_inode:
        overwrite(places[files[path]["inode"]] + 64, 64)
        print(f"inode of {path}")
    # A leaf names its owner at byte 16; the names begin at byte 64.
    medium.seek(0)
    contents = medium.read()
    names = {entry["inode"]: path for path, entry in dirs.items()}
    leaves = [at for at in range(0, len(contents), 4096) if contents[at : at + 4] == b"hlf1"]
    owned = [(at, names[owner]) for at in leaves if (owner := int.from_bytes(contents[at + 16 : at + 24], "little")) in names]
    at, path = rng.choice(owned)
    overwrite(at + 64, 512)
    print(f"names or attributes of {path}")
