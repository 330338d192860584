#!/usr/bin/env bash
# The inside of a run: the first process of a PID namespace, in a separate mount
# namespace. `run` starts it. When it ends, all processes that it started end.
set -uo pipefail

readonly STAGE=/mnt
die() {
    printf 'xfstests-config/run: %s\n' "$*" >&2
    exit 2
}
# A signal ends the run, and with it everything in the namespaces. Until a loop device is
# open and detached, and a sparse file has lost its name, they have to be given back.
space='' TEST_DEV='' SCRATCH_DEV=''
give_back() {
    local disk
    for disk in $TEST_DEV $SCRATCH_DEV; do losetup --detach "$disk"; done
    [[ -z $space ]] || rm -rf -- "$space"
}
trap give_back EXIT
trap 'trap "" INT TERM HUP; exit 143' INT TERM HUP

# A stage that only this namespace sees. Descriptors opened before the mount reach
# the directories that it hides.
exec 3<"$XFSTESTS_DIR" 4<"$PRAMFS_BIN" 5<"$RUN_OUTPUT" 6<"$RUN_HERE" || die "cannot open the directories"
space=$(mktemp -d "${RUN_SPACE:-/var/tmp}/pramfs-xfstests.XXXXXX") || die "no place for the sparse files"
for disk in test scratch; do
    truncate -s "$RUN_SIZE" "$space/$disk" || die "cannot make a sparse file of $RUN_SIZE"
done
exec 7<>"$space/test" 8<>"$space/scratch"
rm -rf -- "$space" && space=''

mount -c -n -t tmpfs -o mode=755 stage "$STAGE" || die "cannot mount a tmpfs on $STAGE"
mkdir -p "$STAGE"/{xfstests,bin,out,config,sbin,tmp,test,scratch}
chmod 1777 "$STAGE/tmp"
for pair in 3:xfstests 4:bin 5:out 6:config; do
    mount -c --bind "/proc/$$/fd/${pair%%:*}" "$STAGE/${pair#*:}" || die "cannot bind ${pair#*:}"
done
# Drops the FUSE mounts that the namespace has from the machine. One whose server is
# stopped blocks whatever looks at all mounts, and a reference from here keeps one alive
# that the machine unmounts. Only this namespace changes: nothing is propagated (`run`),
# no helper of umount runs, and the table of libmount, which all namespaces share, stays.
# A parent comes before the mounts in it, and takes them along. What is mounted over one
# at the same point goes first. One below a point that another mount hides is out of reach.
inherited() { # prints the mount points, escaped as in mountinfo: inside or outside of /mnt
    local point rest where
    while read -r _ _ _ _ point rest; do
        rest=${rest##* - } where=outside
        [[ $point/ == "$STAGE"/* ]] && where=inside
        [[ ${rest%% *} =~ ^fuse(blk)?(\.|$) && $point != / && $where == "$1" ]] && printf '%s\n' "$point"
    done </proc/self/mountinfo
}
drop() {
    local point points dropped=yes
    while [[ -n $dropped ]]; do
        dropped=''
        mapfile -t points < <(inherited "$1")
        for point in "${points[@]}"; do
            printf -v point %b "${point//\\/\\0}"
            umount --lazy --internal-only --no-mtab --no-canonicalize "$point" 2>/dev/null && dropped=yes
        done
    done
}
drop outside
# The stage hides those below its own point: it steps aside. The directories that the run
# needs are bound already, whatever file system they are on.
mount -n --move "$STAGE" /tmp || die "cannot move the tmpfs to /tmp"
drop inside
mount -n --move /tmp "$STAGE" || die "cannot move the tmpfs to $STAGE"

mount --bind "$STAGE/tmp" /tmp || die "cannot bind /tmp"
unset TMPDIR # tests leave files there
# Tests must not ask the systemd of this machine to run them.
[[ -d /run/systemd ]] && mount -t tmpfs none /run/systemd

# The helpers lie on top of /sbin, where mount(8), mkfs(8) and fsck(8) look.
for tool in mount mkfs fsck; do
    ln -s "$STAGE/bin/$tool-pramfs" "$STAGE/sbin/$tool.fuse.pramfs"
    ln -s "$STAGE/bin/$tool-pramfs" "$STAGE/sbin/$tool.pramfs"
done
ln -s "$STAGE/bin/mount-pramfs" "$STAGE/sbin/umount.fuse.pramfs"
sbin=$(realpath /sbin)
mount -t overlay -o "lowerdir=$STAGE/sbin:$sbin" helpers "$sbin" || die "cannot mount an overlay on $sbin: is overlayfs missing?"

# Makes a loop device. It disappears when the last process closes it: the kernel
# defers the detach of a device in use until then.
device() {
    local disk
    disk=$(losetup --find --show "/proc/$$/fd/$1") || die "cannot make a loop device"
    printf '%s\n' "$disk"
}
TEST_DEV=$(device 7) && SCRATCH_DEV=$(device 8) || exit 2
exec 3<>"$TEST_DEV" 4<>"$SCRATCH_DEV" 5>&- 6>&- 7>&- 8>&-
losetup --detach "$TEST_DEV" "$SCRATCH_DEV"
trap - EXIT

# Tells the tests that /proc shows only this PID namespace.
export FSTESTS_ISOL=privatens
export TEST_DEV SCRATCH_DEV TEST_DIR=$STAGE/test SCRATCH_MNT=$STAGE/scratch
export HOST_OPTIONS=$STAGE/config/$RUN_CONFIG.config RESULT_BASE=$STAGE/out/results
export PRAMFS_MOUNT_OPTIONS="durability=$RUN_DURABILITY,transport=$RUN_TRANSPORT,opens=$RUN_OPENS"
[[ -n $RUN_GLUE ]] && export BASH_ENV=$STAGE/config/pramfs.glue
if [[ $RUN_CONFIG == ext4 ]]; then
    mkfs.ext4 -q -F "$TEST_DEV" || die "cannot make an ext4 file system on $TEST_DEV"
else
    mkfs -t fuse.pramfs -- --quiet --force "$TEST_DEV" || die "cannot make a pramfs file system on $TEST_DEV"
    [[ $RUN_CONFIG == fuse ]] && mkfs -t fuse.pramfs -- --quiet --force "$SCRATCH_DEV"
fi
mkdir -p "$RESULT_BASE"
rm -f "$RESULT_BASE/check.log"
arguments=(-x dangerous)
# With the glue, do not exclude tests for reasons of xfstests itself. With ext4, exclude
# only the test that harms the machine, to show which of the others fail anyway.
excluded=$STAGE/tmp/exclude
if [[ -n $RUN_GLUE ]]; then grep -v '# harness:' "$STAGE/config/exclude"; else cat "$STAGE/config/exclude"; fi >"$excluded"
[[ $RUN_CONFIG == ext4 ]] && grep -E '^#|/650 ' "$STAGE/config/exclude" >"$excluded"
# These tests write over the device, and stock fuse has no mkfs to undo that.
[[ $RUN_CONFIG == fuse ]] && printf 'generic/%s\n' 570 740 >>"$excluded"
[[ -n $RUN_ALL ]] || arguments+=(-E "$excluded")

# The watchdog. It kills a test that is out of time, with its children. If they do
# not end, they wait for a server, and the watchdog also kills the servers.
parent() { local line; { read -r line <"/proc/$1/stat"; } 2>/dev/null && set -- ${line##*) } && printf '%s' "$2"; }
below() {
    local pid above
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/} above=$pid
        while [[ -n $above && $above != 0 && $above != "$1" ]]; do above=$(parent "$above"); done
        [[ $above == "$1" ]] && printf '%s\n' "$pid"
    done
}
a_test='^([^ ]*/)?bash [^ ]*/(tests/[a-z0-9]+/[0-9]+) '
running() { # prints the running test: PID NAME
    local dir line
    for dir in /proc/[0-9]*; do
        line=$(tr '\0' ' ' 2>/dev/null <"$dir/cmdline")
        [[ $line =~ $a_test ]] || continue
        [[ $(parent "${dir#/proc/}") == "$1" ]] && printf '%s %s\n' "${dir#/proc/}" "${BASH_REMATCH[2]#tests/}"
    done
}
watch() {
    local pid name seen='' since=0
    while sleep 2; do
        read -r pid name < <(running "$1") || pid=''
        if [[ $pid != "$seen" ]]; then
            seen=$pid since=$SECONDS
        elif [[ -n $pid ]] && ((SECONDS - since > RUN_LIMIT)); then
            printf '%s\t%s seconds\n' "$name" "$RUN_LIMIT" >>"$STAGE/out/timeouts"
            kill -TERM $(below "$pid") 2>/dev/null
            sleep 10
            kill -KILL $(below "$pid") 2>/dev/null
            sleep 10
            if [[ -d /proc/$pid ]]; then
                for dir in /proc/[0-9]*; do
                    [[ $(readlink "$dir/exe") == */mount-pramfs ]] && kill -KILL "${dir#/proc/}"
                done
            fi
        fi
    done
}

cd "$STAGE/xfstests" || exit 2
: >"$STAGE/out/check.out"
./check "${arguments[@]}" "$@" >"$STAGE/out/check.out" 2>&1 </dev/null &
check=$!
watch "$check" 2>/dev/null &
tail -n +1 -f --pid="$check" "$STAGE/out/check.out" 2>/dev/null &
wait "$check"
# Without a summary, check ended early, and the run has failed.
grep -q '^\(Passed all\|Failed\) ' "$STAGE/out/check.out" || die "check did not finish: $(tail -n 3 "$STAGE/out/check.out")"
umount "$TEST_DIR" "$SCRATCH_MNT" 2>/dev/null
exit 0
