#!/usr/bin/env bash
# How long mount.pramfs takes from its start until the mount is live, and pramfs info --export, which
# udev runs for each device. Prints minimum, median and maximum; fails if the median of the mount is
# over 15 ms.
#
#   scripts/startup.sh [TIMES [OPTIONS]]     e.g. scripts/startup.sh 200 takeover=on
#
# Needs root and /dev/fuse. PRAMFS_BIN names the directory of the programs; the default is
# target/release, built by `make build`. Measure on an idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=${1:-100} options=${2:-rw} limit_ms=15
programs=${PRAMFS_BIN:-${CARGO_TARGET_DIR:-target}/release}
mount=$programs/mount-pramfs
for program in "$mount" "$programs/mkfs-pramfs" "$programs/pramfs"; do
    [[ -x $program ]] || { echo "$program is missing: type 'make build', or set PRAMFS_BIN" >&2; exit 2; }
done
[[ $EUID == 0 && -e /dev/fuse ]] || { echo "mounting takes root and /dev/fuse" >&2; exit 2; }

dir=$(mktemp -d /dev/shm/pramfs-startup-XXXXXX)
place=$dir/mnt
end() {
    umount -i "$place" 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
mkdir "$place"
"$programs/mkfs-pramfs" -q -L startup "$dir/region" 1G

# Prints how long a command takes, in microseconds.
timed() {
    local start=$EPOCHREALTIME
    "$@" 2>/dev/null >&2
    local stop=$EPOCHREALTIME
    echo $((${stop/./} - ${start/./}))
}

# The server of an unmounted region releases it a moment later.
unmount() {
    umount -i "$place"
    until flock -n "$dir/region" true; do sleep 0.002; done
}

report() {
    sort -n | awk -v what="$1" '{ us[NR] = $1 }
        END { printf "%-36s min %6.2f ms  median %6.2f ms  max %6.2f ms  (%d times)\n",
              what, us[1] / 1000, us[int((NR + 1) / 2)] / 1000, us[NR] / 1000, NR }'
}

for ((i = 0; i < times; i++)); do
    timed "$mount" "$dir/region" "$place" -o "$options"
    unmount
done >"$dir/mount"
for ((i = 0; i < times; i++)); do timed "$programs/pramfs" info --export "$dir/region"; done >"$dir/export"
report "mount.pramfs -o $options" <"$dir/mount"
report "pramfs info --export" <"$dir/export"
median=$(sort -n "$dir/mount" | sed -n "$(((times + 1) / 2))p")
if ((median > limit_ms * 1000)); then
    echo "the median of the mount is over $limit_ms ms" >&2
    exit 1
fi
