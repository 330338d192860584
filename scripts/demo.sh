#!/usr/bin/env bash
# Takes a pramfs region from mkfs to kill -9 and back, in under two minutes.
# `make demo` runs this. It makes everything below one temporary directory,
# kills only what it started, and leaves nothing behind, even on Ctrl-C.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/sbin:/sbin

readonly SIZE=1G MIN_FILES=5000 MAX_MIB=380
work='' daemon='' copier='' own_tmpfs=''
step=0 since=0

now() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }
begin() { since=$(now); }
took() {
    local us=$(($(now) - since))
    if ((us < 1000000)); then printf '%d ms' $((us / 1000)); else printf '%d.%d s' $((us / 1000000)) $((us / 100000 % 10)); fi
}
# say NAME TEXT: prints one numbered line, with the time since `begin` if that was called.
say() {
    step=$((step + 1))
    local time=''
    ((since)) && time="  [$(took)]"
    printf '%2d  %-9s %s%s\n' "$step" "$1" "$2" "$time"
    since=0
}
die() {
    printf '\ndemo: FAILED: %s\n' "$*" >&2
    exit 1
}

unmount() {
    if ((EUID == 0)); then umount "$@" "$mnt"; else fusermount3 -u ${1:+-z} "$mnt"; fi
}
mounted() { grep -qF " $1 " /proc/self/mountinfo; }

cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    # Kill the remaining children. The pid of a child is cleared after its wait.
    [[ -n $copier ]] && kill "$copier" 2>/dev/null
    [[ -n $daemon ]] && kill -KILL "$daemon" 2>/dev/null
    { wait; } 2>/dev/null
    if [[ -n $work ]]; then
        if mounted "$work/mnt"; then unmount -l 2>/dev/null; fi
        # A background daemon ends after its mount has gone.
        for _ in {1..50}; do
            [[ -z $own_tmpfs ]] && break
            umount "$work/mem" 2>/dev/null && own_tmpfs='' || sleep 0.1
        done
        [[ -n $own_tmpfs ]] && umount -l "$work/mem" 2>/dev/null
        [[ -n ${shm:-} ]] && rm -rf -- "$shm"
        rm -rf --one-file-system -- "$work"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- requirements ------------------------------------------------------------
scripts/deps.sh || exit 1
if [[ ! -c /dev/fuse ]]; then
    ((EUID == 0)) && modprobe fuse 2>/dev/null
    [[ -c /dev/fuse ]] || die "/dev/fuse does not exist; load the module (modprobe fuse), or give the container the device"
fi
free_mib=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) / 1024))
((free_mib >= 1300)) || die "the region takes up to 1 GiB of memory, but only $free_mib MiB are available"

echo "pramfs: a region of persistent memory, from mkfs to kill -9 and back"
begin
target=${CARGO_TARGET_DIR:-$PWD/target}/release
[[ -x $target/mount-pramfs && -x $target/mkfs-pramfs ]] || echo "    building; the first build takes a few minutes"
cargo build --release -q -p pramfs-tools -p pramfs-fuse --bins --example demo_map || die "the build failed"
say build "mkfs.pramfs, mount.pramfs, pramfs; release"
SECONDS=0

# --- a region in separate memory ----------------------------------------------
work=$(mktemp -d "${TMPDIR:-/tmp}/pramfs-demo.XXXXXX") || die "cannot make a temporary directory"
work=$(cd "$work" && pwd -P)
mnt=$work/mnt
mkdir "$work/mnt" "$work/mem" "$work/bin"
ln -s "$target/mkfs-pramfs" "$work/bin/mkfs.pramfs"
ln -s "$target/mount-pramfs" "$work/bin/mount.pramfs"
ln -s "$target/pramfs" "$work/bin/pramfs"
PATH=$work/bin:$PATH
if ((EUID == 0)) && mount -t tmpfs -o size=1100m,mode=0700 pramfs-demo "$work/mem" 2>/dev/null; then
    own_tmpfs=1
    region=$work/mem/region
    where="a private tmpfs"
else
    shm=$(mktemp -d /dev/shm/pramfs-demo.XXXXXX) || die "neither a private tmpfs nor /dev/shm is available"
    region=$shm/region
    where=/dev/shm
fi
begin
mkfs.pramfs -q -L demo "$region" $SIZE || die "mkfs.pramfs failed"
say mkfs "mkfs.pramfs -L demo REGION $SIZE, on $where (volatile; stands in for pmem)"

begin
mount.pramfs "$region" "$mnt" >"$work/mount.log" 2>&1 || { cat "$work/mount.log" >&2; die "mount.pramfs failed"; }
say mount "mount.pramfs REGION MOUNTPOINT: $(awk -v m="$mnt" '$2 == m { print $3 }' /proc/mounts)"

# --- a real tree -------------------------------------------------------------
trees=() files=0 mib=0
for d in /usr/include /usr/share/doc /usr/share/man /usr/share/zoneinfo /usr/lib/python3 /usr/share/perl /usr/share \
    "${CARGO_HOME:-$HOME/.cargo}"/registry/src "$(rustc --print sysroot 2>/dev/null)/share"; do
    ((files >= MIN_FILES)) && break
    [[ -d $d ]] || continue
    # Skip a directory that overlaps one already chosen.
    for t in ${trees[@]+"${trees[@]}"}; do [[ $t/ == "$d"/* || $d/ == "$t"/* ]] && continue 2; done
    m=$(du -sxm --apparent-size "$d" 2>/dev/null | cut -f1)
    m=${m:-0}
    ((mib + m <= MAX_MIB)) || continue
    trees+=("$d")
    files=$((files + $(find "$d" -xdev -type f | wc -l)))
    mib=$((mib + m))
done
((files >= MIN_FILES)) || die "found no tree to copy with $MIN_FILES files and at most $MAX_MIB MiB; install some documentation"

begin
mkdir "$mnt/tree"
for i in "${!trees[@]}"; do
    cp -a -x -- "${trees[i]}" "$mnt/tree/$i" || die "cannot copy ${trees[i]} in"
done
say "copy in" "$files files, $mib MiB: ${trees[*]}"

compare() {
    for i in "${!trees[@]}"; do
        diff -r --no-dereference -- "${trees[i]}" "$mnt/tree/$i" >"$work/diff" 2>&1 || {
            head -n 5 "$work/diff" >&2
            die "$1: ${trees[i]} differs from its copy"
        }
    done
}
begin
compare "after the copy"
say compare "every name and every byte is identical"

# --- the library: the same file as memory -------------------------------------
sample=$(find "${trees[0]}" -xdev -type f -size +20k -printf '%s %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
[[ -n $sample ]] || sample=/bin/sh
cp -- "$sample" "$mnt/mapped" || die "cannot copy $sample"
release_region() {
    # The daemon has released the region once another process can lock it.
    for _ in {1..100}; do
        pramfs info "$region" >/dev/null 2>&1 && return
        sleep 0.05
    done
    pramfs info "$region" >/dev/null || die "the region is still in use after the unmount"
}
begin
unmount || die "unmount failed"
release_region
say unmount "umount MOUNTPOINT; $(pramfs info "$region" | sed -n 's/^state *//p')"

offset=8192
text='stored through a map, without a system call'
begin
line=$("$target/examples/demo_map" "$region" /mapped "$sample" "$offset" "$text") || die "the direct API failed"
say library "$line"

mount_for_kill() {
    mount.pramfs -f "$region" "$mnt" >"$work/mount.log" 2>&1 &
    daemon=$!
    for _ in {1..200}; do
        mounted "$mnt" && return
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.01
    done
    cat "$work/mount.log" >&2
    die "cannot mount again"
}
begin
mount_for_kill
seen=$(tail -c +$((offset + 1)) "$mnt/mapped" | head -c ${#text})
[[ $seen == "$text" ]] || die "read \"$seen\" through the mount, not \"$text\""
cmp -s -n "$offset" "$sample" "$mnt/mapped" || die "the map also changed other bytes"
say mount "a read through the mount returns: \"$seen\""

# --- kill -9 in the middle of a copy -------------------------------------------
find "${trees[0]}" -xdev -type f -printf '%P\0' >"$work/todo"
: >"$work/done"
mkdir "$mnt/second"
(
    cd "${trees[0]}" || exit 1
    while IFS= read -r -d '' f; do
        # Recorded only after cp has returned.
        cp -a --parents -- "$f" "$mnt/second" 2>/dev/null || exit 0
        printf '%s\0' "$f" >>"$work/done"
    done <"$work/todo"
) &
copier=$!
count_done() { tr -cd '\0' <"$work/done" | wc -c; }
begin
for _ in {1..300}; do
    sleep 0.05
    (($(count_done) >= 1000)) && break
    kill -0 "$copier" 2>/dev/null || break
done
kill -0 "$copier" 2>/dev/null || die "the copy ended before it could be interrupted"
# Both are in braces, with stderr discarded: the shell reports a killed child as
# soon as it learns of it, and this kill is intended.
{
    kill -KILL "$daemon"
    wait "$daemon"
} 2>/dev/null
daemon=''
{ wait "$copier"; } 2>/dev/null
copier=''
copied=$(count_done)
((copied > 0)) || die "no file was copied before the daemon was killed"
say "kill -9" "of the server in the middle of a second copy, $copied files done"

unmount -l 2>/dev/null
begin
mount_for_kill
recovery=$(sed -n 's/^ *recovery: //p' "$work/mount.log" | head -n 1)
say remount "no check, no repair by hand${recovery:+: $recovery}"

begin
(cd "${trees[0]}" && xargs -0 -a "$work/done" sha256sum --) >"$work/sums" || die "cannot read the sources"
(cd "$mnt/second" && sha256sum --quiet -c "$work/sums") >"$work/diff" 2>&1 || {
    head -n 5 "$work/diff" >&2
    die "a file copied before the kill has changed"
}
compare "after the kill"
echo alive >"$mnt/new" && rm -r -- "${mnt:?}/second" "$mnt/new" || die "the file system cannot be changed after the kill"
say verify "those $copied files and the first $files: identical to the last byte"

begin
unmount || die "the last unmount failed"
wait "$daemon" || die "mount.pramfs ended with status $?"
daemon=''
pramfs check "$region" >"$work/check" || { cat "$work/check" >&2; die "the check found errors"; }
say check "pramfs check: $(sed 's/^[^:]*: //; s/; [0-9.]* s$//' "$work/check" | tail -n 1)"

cat <<END

Everything worked, $SECONDS s after the build. Next:
  make test                                    all tests; as root, also those that mount
  make build && sudo make install              installs the programs; then, as root:
  mkdir -m 0700 /dev/shm/pramfs && mkfs.pramfs /dev/shm/pramfs/region 4G
  mount.pramfs /dev/shm/pramfs/region /mnt
  pramfs doctor /dev/pmem0                     the properties of a path, and how to improve them
  cargo doc -p pramfs --open                   the library, with examples
END
