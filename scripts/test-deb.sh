#!/usr/bin/env bash
# Tests the Debian packages of target/deb: what is in them, and that they are installed, used,
# upgraded and purged in a clean Debian. Needs root, and the archive that apt of this machine uses.
#
#   sudo make test-deb                   builds the packages first if there are none
#   sudo make test-deb SUITE=trixie      in another Debian than this machine's
#
# make passes on what its command line sets, so sudo needs no -E. If `make deb` had a CARGO_TARGET_DIR,
# give it in the same way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'test-deb: FAILED: %s\n' "$*" >&2
    exit 1
}
passed() { printf 'test-deb: %s: passed\n' "$*"; }

if ((EUID != 0)); then
    echo "test-deb: a chroot and a mount need root: type 'sudo make test-deb${CARGO_TARGET_DIR:+ CARGO_TARGET_DIR=$CARGO_TARGET_DIR}' after 'make deb'" >&2
    exit 1
fi
. scripts/chroot.sh
if [[ -z ${PRAMFS_UNSHARED:-} ]]; then
    scripts/deps.sh --packages
    compgen -G "${CARGO_TARGET_DIR:-target}/deb/pramfs_*.deb" >/dev/null || scripts/deb.sh
    # What an earlier commit built says nothing about this one.
    scripts/deb.sh --check
    run_unshared "$@"
fi

out=$(realpath "${CARGO_TARGET_DIR:-target}")/deb
# All packages that debian/control describes.
mapfile -t all < <(sed -n 's/^Package: //p' debian/control)
suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
make_work test-deb

# --- What is in the packages -------------------------------------------------------------------

packages=("$out"/*.deb)
names=$(for deb in "${packages[@]}"; do dpkg-deb -f "$deb" Package; done | sort | tr '\n' ' ')
for name in "${all[@]}"; do
    [[ " $names" == *" $name "* ]] || fail "there is no package $name among: $names"
done
for deb in "${packages[@]}"; do
    bytes=$(stat -c %s "$deb")
    ((bytes <= 6000000)) || fail "$(basename "$deb") has $bytes bytes, and 6 MB are allowed"
done
passed "size ($(cat "${packages[@]}" | wc -c) bytes in all, at most 6 MB each)"
lintian --fail-on error,warning --tag-display-limit 0 "$out"/*.changes || fail "lintian"
passed "lintian"

# The places of this machine that a build could leave in a file. Under sudo, the home directory of the
# user who built is another one than HOME.
home=$(getent passwd "$(stat -c %u "${packages[0]}")" | cut -d: -f6)
paths="$PWD|$out|${home%/}/|${HOME%/}/|${CARGO_HOME:-$HOME/.cargo}|/rustup/toolchains"
elf=0
for deb in "${packages[@]}"; do
    tree=$work/tree/$(basename "$deb")
    mkdir -p "$tree"
    dpkg-deb -x "$deb" "$tree"
    while IFS= read -r -d '' file; do
        ! grep -aqE "$paths" "$file" ||
            fail "${file#"$tree"} has a path of the builder: $(grep -aoE -m1 "($paths)[[:print:]]{0,60}" "$file" | head -n1)"
        [[ $(od -An -tx1 -N 4 "$file" | tr -d ' ') == 7f454c46 ]] || continue
        elf=$((elf + 1))
        headers=$(readelf -W -h -l -d -S "$file")
        grep -q 'Type: *DYN' <<<"$headers" || fail "${file#"$tree"} is not position-independent"
        grep -q 'GNU_RELRO' <<<"$headers" || fail "${file#"$tree"} has no RELRO"
        grep -qE 'BIND_NOW|Flags:.* NOW' <<<"$headers" || fail "${file#"$tree"} binds its symbols late"
        ! grep -qE '\.symtab|\.debug_' <<<"$headers" || fail "${file#"$tree"} is not stripped"
        ! grep -qE 'GNU_STACK.* RWE' <<<"$headers" || fail "${file#"$tree"} has an executable stack"
        ! grep -q 'NEEDED.*libpmem2' <<<"$headers" || fail "${file#"$tree"} links libpmem2"
    done < <(find "$tree" -type f -print0)
done
((elf >= 8)) || fail "only $elf programs and libraries were found"
passed "$elf programs and libraries are stripped, hardened, and without paths of the builder"

# The extension module has the library in it, and serves each CPython from its floor on.
module=$(echo "$work"/tree/python3-pramfs_*/usr/lib/python3/dist-packages/pramfs/_native.abi3.so)
needed=$(readelf -W -d "$module" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | xargs)
! grep -qE 'pramfs|python' <<<"$needed" || fail "the extension module links: $needed"
exported=$(readelf -W --dyn-syms "$module" | awk '$5 == "GLOBAL" && $7 != "UND" { print $8 }')
[[ $exported == PyInit__native ]] || fail "the extension module exports: $exported"
passed "the extension module exports its entry alone, and links $needed"

# --- A clean Debian ----------------------------------------------------------------------------

# With what compiles a program, and nothing else. It is kept for the next run.
base=$out/debian-$suite.tar
if [[ ! -s $base ]]; then
    bootstrap "$suite" "$base.new.tar" gcc,libc6-dev,pkgconf
    mv "$base.new.tar" "$base"
fi
mkdir "$root"
tar -C "$root" --exclude=./dev/* -xf "$base"
mount_root 1G
mkdir "$root/debs" "$root/debs/new"
cp "${packages[@]}" "$root/debs"
pass=(DEBIAN_FRONTEND=noninteractive)
sh_inside() { inside sh -euc "$1"; }
apt() { inside apt-get -y -q -o APT::Install-Recommends=false "$@" >"$work/apt.log" 2>&1 || { cat "$work/apt.log"; fail "apt-get $*"; }; }
# Names of all files but those that apt, dpkg and mount(8) keep of their own.
files() {
    (cd "$root" && find . -xdev \( -path ./debs -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache \
        -o -path ./var/log -o -path ./run/mount -o -path ./tmp -o -path ./var/tmp -o -path ./dev -o -path ./proc \) -prune -o -print | sort)
}

apt update
# They are not essential, but each installed Debian has them, and apt does not remove them again: Python
# needs tzdata, pip needs ca-certificates, and other packages recommend them. netbase leaves /etc/hosts.
apt install mount ca-certificates tzdata netbase
files >"$work/before"

# --- Installed ---------------------------------------------------------------------------------

# A plain copy, so that the shell's pattern is as a user types it.
sh_inside 'cd /debs && apt-get install -y -q -o APT::Install-Recommends=false ./pramfs_*.deb' >"$work/apt.log" 2>&1 ||
    { cat "$work/apt.log"; fail "apt install ./pramfs_*.deb"; }
[[ $(inside dpkg-query -W -f '${db:Status-Status}' pramfs) == installed ]] || fail "pramfs is not installed"
for tool in mkfs.pramfs fsck.pramfs mount.pramfs mount.fuse.pramfs umount.fuse.pramfs; do
    [[ -x $root/sbin/$tool ]] || fail "mount(8) does not find /sbin/$tool"
done
passed "apt install ./pramfs_*.deb in a clean Debian $suite"

sh_inside '
    mkdir -m 0700 /dev/shm/pramfs
    mkfs.pramfs -L packaged /dev/shm/pramfs/region 64M
    echo "from a package" > /root/one
    pramfs put /dev/shm/pramfs/region /root/one /one
    pramfs ls -l /dev/shm/pramfs/region / | grep -q one
    pramfs get /dev/shm/pramfs/region /one /root/two
    cmp /root/one /root/two
    fsck.pramfs -n /dev/shm/pramfs/region
    fsck -t pramfs /dev/shm/pramfs/region -- -n
    rm /root/one /root/two
' >"$work/log" 2>&1 || { cat "$work/log"; fail "mkfs.pramfs, pramfs put, ls, get, fsck.pramfs"; }
passed "mkfs.pramfs, pramfs put, ls, get, fsck.pramfs"

# libpmem2 is not installed: the tools say so, and go on without it.
sh_inside 'pramfs doctor /dev/shm/pramfs/region' >"$work/log"
grep -q 'apt-get install libpmem2' "$work/log" && grep -qE 'backends +native$' "$work/log" ||
    { cat "$work/log"; fail "pramfs doctor does not say that libpmem2 is missing"; }
# What asks for it gets an error that says what to install.
if sh_inside 'mount.pramfs -o backend=libpmem2 /dev/shm/pramfs/region /mnt' >"$work/log" 2>&1 ||
    ! grep -q 'libpmem2.so.1 cannot be loaded.*apt-get install libpmem2' "$work/log"; then
    cat "$work/log"
    fail "mount.pramfs -o backend=libpmem2 without libpmem2"
fi
apt install libpmem2
sh_inside 'pramfs doctor /dev/shm/pramfs/region' >"$work/log"
grep -qE 'backends +libpmem2, native$' "$work/log" ||
    { cat "$work/log"; fail "pramfs doctor does not find the installed libpmem2"; }
passed "the tools without libpmem2, and with it"

mounts=no
if [[ -e $root/dev/fuse ]] && : 2>/dev/null <>"$root/dev/fuse"; then
    mounts=yes
    # The lines of README.md after the one that installs the package.
    readme=$(sed -n '/apt install .*pramfs_/,/^umount/p' README.md | tail -n +2 | head -n 4)
    [[ $(wc -l <<<"$readme") == 4 && $readme == *mkfs.pramfs*mount.pramfs*umount* ]] ||
        fail "README.md has no four lines after 'apt install': $readme"
    sh_inside 'rm -r /dev/shm/pramfs'
    inside sh -exc "$readme" >"$work/log" 2>&1 || { cat "$work/log"; fail "the four lines of README.md"; }
    passed "the four lines of README.md"
    sh_inside 'fsck.pramfs -n /dev/shm/pramfs/region && mkdir -p /mnt/kept &&
        mount -t pramfs /dev/shm/pramfs/region /mnt/kept && echo kept > /mnt/kept/file' >"$work/log" 2>&1 ||
        { cat "$work/log"; fail "mount -t pramfs"; }
    passed "mount -t pramfs"
else
    printf '\ntest-deb: *** SKIPPED: /dev/fuse cannot be opened here: NOTHING WAS MOUNTED ***\n\n'
    [[ -z ${CI:-} ]] || fail "a skipped test in CI"
fi

# --- The library ---------------------------------------------------------------------------------

cp capi/examples/log_and_counters.c "$root/root/"
sh_inside 'cd /debs && apt-get install -y -q -o APT::Install-Recommends=false ./libpramfs*.deb' >"$work/apt.log" 2>&1 ||
    { cat "$work/apt.log"; fail "apt install ./libpramfs*.deb"; }
sh_inside '
    cd /root
    cc -Wall -Werror -o shared log_and_counters.c $(pkg-config --cflags --libs pramfs)
    ldd ./shared | grep -q "libpramfs.so.1 => /.*/libpramfs.so.1"
    ./shared /dev/shm/shared.pramfs && ./shared /dev/shm/shared.pramfs
    rm log_and_counters.c shared /dev/shm/*.pramfs
' >"$work/log" 2>&1 || { cat "$work/log"; fail "a program in C against libpramfs-dev"; }
passed "a program in C against libpramfs-dev"

# --- Python --------------------------------------------------------------------------------------

sh_inside 'cd /debs && apt-get install -y -q -o APT::Install-Recommends=false ./python3-pramfs_*.deb' >"$work/apt.log" 2>&1 ||
    { cat "$work/apt.log"; fail "apt install ./python3-pramfs_*.deb"; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# A program on the standard input, with every warning an error.
python_inside() { inside python3 -X dev -W error - "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "a program in Python"; }; }
use_python() {
    python_inside "$version" <<'EOF'
import importlib.metadata, importlib.util, os, subprocess, sys
import pramfs

assert importlib.metadata.version("pramfs") == pramfs.__version__ == sys.argv[1], pramfs.__version__
folder = os.path.dirname(pramfs.__file__)
assert folder == "/usr/lib/python3/dist-packages/pramfs", folder
for name in ("py.typed", "_native.pyi"):
    assert os.path.exists(os.path.join(folder, name)), name
entries = importlib.metadata.distribution("pramfs").entry_points
assert [(e.group, e.name, e.value) for e in entries] == [
    ("fsspec.specs", "pramfs", "pramfs.fsspec:PramfsFileSystem")], entries

region = "/dev/shm/python.pramfs"
pramfs.format(region, 64 << 20, label="packaged")
with pramfs.open(region) as fs:
    fs.makedirs("/data/sets")
    fs.write_bytes("/data/sets/one", b"from a package")
    with fs.open("/log", "ab", buffering=0) as log:
        log.append(b"whole or not at all")
    fs.write_bytes("/numbers", bytes(4096))
    with fs.map("/numbers", writable=True) as numbers:
        with memoryview(numbers).cast("Q") as cells:
            cells[3] = 30
        numbers.fetch_add(24, 1)
        numbers.persist(24, 8)
with pramfs.open(region, read_only=True) as fs:
    assert fs.read_bytes("/data/sets/one") == b"from a package"
    assert fs.read_bytes("/log") == b"whole or not at all"
    assert int.from_bytes(fs.read_bytes("/numbers")[24:32], "little") == 31
subprocess.run(["fsck.pramfs", "-n", region], check=True)
if importlib.util.find_spec("numpy") is None:
    try:
        import pramfs.numpy
    except ImportError as error:
        assert "need numpy" in str(error), error
    else:
        raise AssertionError("pramfs.numpy without numpy")
os.unlink(region)
EOF
}
! inside dpkg-query -W -f '${db:Status-Status}' python3-numpy 2>/dev/null | grep -qx installed ||
    fail "python3-pramfs installed numpy"
use_python
passed "python3-pramfs: its files, its description, a region and a map, without numpy"

apt install python3-numpy python3-pip
[[ $(inside python3 -m pip list --format=freeze 2>"$work/log" | grep '^pramfs') == "pramfs==$version" ]] ||
    { cat "$work/log"; fail "pip list does not show pramfs $version"; }
python_inside <<'EOF'
import os
import numpy, pramfs

region = "/dev/shm/numpy.pramfs"
pramfs.format(region, 64 << 20)
with pramfs.open(region) as fs:
    fs.write_bytes("/array", numpy.arange(1000, dtype="<u8").tobytes())
    with fs.map("/array", writable=True) as array:
        cells = numpy.frombuffer(array, dtype="<u8")
        assert cells.sum() == 499500
        cells[0] = 500
        array.persist(0, 8)
        del cells
    array = fs.memmap("/array", dtype="<u8", mode="r")
    assert array.sum() == 500000
    del array
os.unlink(region)
EOF
passed "python3-pramfs in pip list, and numpy $(inside dpkg-query -W -f '${Version}' python3-numpy) on a map"

# --- Upgraded ------------------------------------------------------------------------------------

# The same files with a higher version, as a later release would be.
for deb in "${packages[@]}"; do
    tree=$work/next
    rm -rf "$tree"
    dpkg-deb -R "$deb" "$tree"
    old=$(dpkg-deb -f "$deb" Version)
    sed -i "/^Version: /s/$/+next1/; /^Depends: /s/(= ${old//./\\.})/(= $old+next1)/" "$tree/DEBIAN/control"
    # Quickly, and the same for dpkg.
    dpkg-deb --root-owner-group -Zgzip -z1 -b "$tree" "$root/debs/new" >/dev/null
done
rm -rf "$work/next"
sh_inside 'cd /debs/new && apt-get install -y -q -o APT::Install-Recommends=false ./*.deb' >"$work/apt.log" 2>&1 ||
    { cat "$work/apt.log"; fail "the upgrade"; }
for name in "${all[@]}"; do
    [[ $(inside dpkg-query -W -f '${Version}' "$name") == *+next1 ]] || fail "$name is not upgraded"
done
if [[ $mounts == yes ]]; then
    sh_inside '[ "$(cat /mnt/kept/file)" = kept ] && echo more >> /mnt/kept/file && umount /mnt/kept &&
        mount -t pramfs /dev/shm/pramfs/region /mnt/kept && [ "$(wc -l < /mnt/kept/file)" = 2 ] &&
        umount /mnt/kept && rmdir /mnt/kept /mnt/scratch' >"$work/log" 2>&1 ||
        { cat "$work/log"; fail "a mount over the upgrade"; }
fi
sh_inside 'fsck.pramfs -n /dev/shm/pramfs/region' >"$work/log" 2>&1 || { cat "$work/log"; fail "fsck after the upgrade"; }
use_python
passed "upgrade, beside a mount"

# --- A damaged package ---------------------------------------------------------------------------

for deb in "$root"/debs/pramfs_*.deb "$root"/debs/libpramfs1_*.deb "$root"/debs/python3-pramfs_*.deb; do
    damaged=$root/debs/damaged.deb
    cp "$deb" "$damaged"
    # data.tar is the last member and the largest by far: the middle of the file is in it.
    at=$(($(stat -c %s "$damaged") / 2))
    byte=$(od -An -tu1 -j "$at" -N 1 "$damaged")
    printf '%b' "\\$(printf '%03o' $((byte ^ 255)))" | dd of="$damaged" bs=1 seek="$at" conv=notrunc status=none
    if inside dpkg -i --force-downgrade /debs/damaged.deb >"$work/log" 2>&1; then
        fail "dpkg installed a damaged $(basename "$deb")"
    fi
    name=$(dpkg-deb -f "$deb" Package)
    [[ $(inside dpkg-query -W -f '${db:Status-Status} ${Version}' "$name") == "installed "*+next1 ]] ||
        fail "after a damaged package, $name is: $(inside dpkg-query -W -f '${db:Status-Status} ${Version}' "$name")"
    rm "$damaged"
done
inside pramfs --version >/dev/null || fail "pramfs does not run after a damaged package"
use_python
passed "a damaged package is refused, and what is installed stays"

# --- Purged --------------------------------------------------------------------------------------

apt purge "${all[@]}" libpmem2 python3-numpy python3-pip
apt autoremove --purge
files >"$work/after"
diff "$work/before" "$work/after" || fail "purging left the files above, or removed some"
! inside dpkg-query -W "${all[@]}" 2>/dev/null | grep . || fail "dpkg still knows the packages"
passed "nothing is left after a purge"
printf 'test-deb: all passed in Debian %s\n' "$suite"
