#!/usr/bin/env bash
# Several machines with pramfs: GlusterFS, NFS, rsync, pramfs save, DRBD. Installs the requirements,
# builds the programs if they are missing, and runs tests/replication/run.sh with the same arguments,
# and what needs modules of the kernel (the parts nfsd and drbd) in the virtual machine of
# tests/vm/run.sh. `--only vm` runs these alone; any other argument leaves them out. Prints a prominent
# message for each part that cannot run here; with CI set, that is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() {
    printf '\n*** SKIPPED: %s ***\n\n' "$1" >&2
    [[ -z ${CI:-} ]] || exit 1
}

if ! scripts/deps.sh --replication; then
    skip "the requirements could not be installed (see above): nothing of several machines has been run"
    exit 0
fi
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
if [[ -z ${PRAMFS_BIN:-} ]]; then
    for program in mkfs-pramfs mount-pramfs fsck-pramfs pramfs; do
        [[ -x ${CARGO_TARGET_DIR:-target}/debug/$program ]] || {
            cargo build -q -p pramfs-tools -p pramfs-fuse --bins
            break
        }
    done
fi
status=0
if [[ $* != "--only vm" ]]; then
    tests/replication/run.sh "$@" || status=$?
    case $status in
    0) ;;
    77) skip "tests/replication/run.sh could not run (see above)" ;;
    *) exit $status ;;
    esac
    # With arguments, only what they name.
    (($# == 0)) || exit 0
fi

if [[ $(uname -m) != x86_64 ]] || ! scripts/deps.sh --vm; then
    skip "no virtual machine: no export by the kernel's NFS server, and no DRBD"
    exit 0
fi
status=0
tests/vm/run.sh --media machines || status=$?
case $status in
0) ;;
77) skip "no virtual machine (see above): no export by the kernel's NFS server, and no DRBD" ;;
*) exit $status ;;
esac
