#!/usr/bin/env bash
# Several machines with pramfs: bricks of GlusterFS, exports by NFS, and copies by rsync, pramfs save
# and DRBD. Each machine is made of namespaces of this one. See docs/replication.md. BRICKS=ext4
# puts ext4 below the bricks of GlusterFS instead of pramfs (machines.sh).
#
#   tests/replication/run.sh [--only "replicated dispersed deadmount nfs copies nfsd drbd"]
#                            [--steps N] [--region SIZE] [--keep-logs DIR]
#
# --only        the parts to run (default: all but nfsd and drbd, which need a kernel with modules that only
#               the virtual machine of `tests/vm/run.sh --media machines` has for certain)
# --steps N     steps of a writer between two failures (default: 80)
# --region SIZE of each machine (default: 1G, sparse)
# --keep-logs   copies the logs there if something fails
#
# Exit status: 0 if everything that was started passed, 1 if something failed, 77 with a reason if this
# machine cannot run the tests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

parts="replicated dispersed deadmount nfs copies" part=80 region_size=1G keep_logs=''
arguments=("$@")
while (($#)); do
    case $1 in
    --only) parts=$2 && shift ;;
    --steps) part=$2 && shift ;;
    --region) region_size=$2 && shift ;;
    --keep-logs) keep_logs=$2 && shift ;;
    *)
        sed -n '/^#   tests/,/^# --keep/s/^# *//p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done
for name in $parts; do
    [[ " replicated dispersed deadmount nfs copies nfsd drbd " == *" $name "* ]] || { echo "there is no part $name" >&2 && exit 2; }
done

say() { printf 'replication: %3d s: %s\n' "$SECONDS" "$*"; }
passed() {
    say "$*: passed"
    summary+=("passed   $*")
}
fail() {
    printf 'replication: FAILED: %s\n' "$*" >&2
    exit 1
}
skipped() {
    printf '\n*** SKIPPED: %s ***\n\n' "$*" >&2
    summary+=("SKIPPED  $*")
    [[ -z ${CI:-} ]] || fail "a skipped test in CI"
}
cannot() {
    printf '\n*** SKIPPED: %s: the tests of several machines have not been run ***\n\n' "$*" >&2
    exit 77
}
# Until a command succeeds, for at most so many seconds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

((EUID == 0)) || cannot "mounts and namespaces need root"
for tool in python3 ip unshare nsenter pgrep; do
    command -v $tool >/dev/null || cannot "$tool is missing (scripts/deps.sh --replication installs it)"
done
[[ -e /dev/fuse ]] || cannot "there is no /dev/fuse"
# The namespaces of this script hold everything that it starts, mounts and makes in the network, and
# end with it, however it ends.
if [[ -z ${PRAMFS_REPLICATION_UNSHARED:-} ]]; then
    unshare --mount --net --pid --fork true 2>/dev/null || cannot "no namespaces can be made"
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/pramfs-replication.XXXXXX")
    # The network that it was started in.
    exec 9</proc/self/ns/net
    trap 'rmdir "$work"' EXIT
    PRAMFS_REPLICATION_UNSHARED=$work setpriv --pdeathsig KILL \
        unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "${arguments[@]}" </dev/null &
    child=$!
    trap 'kill -KILL "$child"; exit 130' INT TERM
    status=0
    wait "$child" || status=$?
    exit "$status"
fi

work=$PRAMFS_REPLICATION_UNSHARED
bin=$(realpath "${PRAMFS_BIN:-${CARGO_TARGET_DIR:-target}/debug}")
summary=()
declare -A machine=()
mount -t tmpfs -o mode=700 tmpfs "$work"
end() {
    local status=$? n
    trap - EXIT
    if ((status)) && [[ -n $keep_logs ]]; then
        mkdir -p "$keep_logs"
        cp -r "$work"/*.log "$work"/user "$keep_logs" 2>/dev/null || true
        for n in "$work"/[0-9]; do cp -r "$n/var/log/glusterfs" "$keep_logs/${n##*/}" 2>/dev/null || true; done
    fi
    for n in "${!machine[@]}"; do kill -KILL "${machine[$n]}" || true; done
    # Lazily: what uses it ends with the namespace of processes.
    umount -l "$work"
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

takeover_works() {
    local major minor
    IFS=.- read -r major minor _ <<<"$(uname -r)"
    ((major > 6 || (major == 6 && minor >= 9)))
}
tree() { python3 "$here/tree.py" "$@"; }

# shellcheck source=tests/replication/machines.sh
source "$here/machines.sh"
# shellcheck source=tests/replication/gluster.sh
source "$here/gluster.sh"
# shellcheck source=tests/replication/nfs.sh
source "$here/nfs.sh"
# shellcheck source=tests/replication/copies.sh
source "$here/copies.sh"
# shellcheck source=tests/replication/drbd.sh
source "$here/drbd.sh"
network

for name in $parts; do
    started=$SECONDS
    "test_$name"
    say "$name: $((SECONDS - started)) s"
done
say "summary:"
printf '  %s\n' "${summary[@]}"
