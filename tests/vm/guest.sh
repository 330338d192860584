#!/bin/bash
# Inside the virtual machine: runs the steps that the host requests, in order. Each
# step is a function below with its arguments.
# In a boot with systemd, a systemd service runs this script (tests/vm/systemd).
#
#   /run/shared        the directory shared with the host
#   /run/shared/steps  the steps, one per line
#   /run/mnt           where pramfs is mounted
#   /run/dax           where ext4 with DAX is mounted
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
shared=/run/shared
record=$shared/record
programs=$(cat $shared/programs)
seed=$(cat $shared/seed)
region='' dax='' leases=''

say() { printf '   %s\n' "$*"; }

# Prints the value of a key of a JSON object, with dashes for spaces.
value() { grep -o "\"$1\": *[^,}]*" | head -n 1 | sed 's/^[^:]*: *//; s/"//g; s/ /-/g'; }

expect() {
    local name=$1 wanted=$2 is=$3
    if [[ $is != "$wanted" ]]; then
        say "$name is \"$is\", not \"$wanted\""
        return 1
    fi
    say "$name: $is"
}

# Makes an empty namespace of this mode. The first namespace of a fresh device covers
# the whole device and has no label, so the labels are initialized first.
namespace() {
    local mode=$1 name
    for name in $(ndctl list -N | grep -o '"dev":"namespace[^"]*"' | cut -d'"' -f4); do
        ndctl destroy-namespace -f "$name" >/dev/null
    done
    if [[ ! -e $shared/labelled ]]; then
        ndctl disable-region all >/dev/null
        ndctl init-labels all >/dev/null
        ndctl enable-region all >/dev/null
        touch $shared/labelled
    fi
    # No wait for udev is needed: the kernel itself makes the nodes in /dev.
    ndctl create-namespace -m "$mode" >/dev/null
}

# Sets the region for a medium that was made, or found again after a boot.
attach() {
    case $1 in
    fsdax | eadr)
        mount -t ext4 -o dax=always /dev/pmem0 /run/dax
        dax=/run/dax
        region=$dax/region
        leases=granted
        ;;
    pmem) region=/dev/pmem0 ;;
    devdax) region=/dev/dax0.0 ;;
    reboot) region=/dev/pmem0 ;;
    physical) region=physaddr:1G+512M ;;
    esac
}

make() {
    case $1 in
    fsdax | eadr)
        namespace fsdax
        mkfs.ext4 -q -F /dev/pmem0
        ;;
    pmem)
        namespace fsdax
        wipefs -aq /dev/pmem0
        ;;
    devdax) namespace devdax ;;
    esac
    attach "$1"
}

# Checks that `pramfs doctor` recognizes the medium.
doctor() {
    local report place=$region
    [[ -e $place || $place == physaddr:* ]] || place=${place%/*}
    "$programs/pramfs" doctor "$place" | sed 's/^/   /'
    report=$("$programs/pramfs" doctor --json "$place")
    expect kind "$1" "$(value kind <<<"$report")"
    expect granularity "$2" "$(value granularity <<<"$report")"
    expect map_sync "$3" "$(value map_sync <<<"$report")"
}

# Runs the library's own tests. They destroy the contents of the medium.
library() {
    local medium=${dax:-$region} test
    for test in $(grep /media- $shared/tests); do
        PRAMFS_TEST_MEDIA=$medium "$test" --test-threads 1 2>&1 | grep -v '^$' | sed 's/^/   /'
    done
}

# Takes a page of a mounted region away, by madvise(MADV_HWPOISON), until the next boot.
poison() {
    local medium=${dax:-$region} test said
    test=$(grep '/poison-' $shared/tests | head -n 1)
    said=$(PRAMFS_TEST_MEDIA=$medium "$test" --nocapture --test-threads 1 2>&1) &&
        ! grep SKIPPED <<<"$said" &&
        grep -q '^passed on' <<<"$said" ||
        { printf '%s\n' "$said" && return 1; }
    grep '^poisoned\|^passed' <<<"$said" | sed 's/^/   /'
}

# Tests a user's quota on the host file system. Debian's kernel has quotas for ext4,
# but not in every version for tmpfs.
quota() {
    local test said
    test=$(grep /host_full- $shared/tests | head -n 1)
    said=$("$test" --exact exceeded_host_quota_acts_as_full_host --nocapture 2>&1) &&
        grep -q 'a quota on ext4 was met' <<<"$said" ||
        { printf '%s\n' "$said" && return 1; }
    grep 'was met' <<<"$said" | sed 's/^/   /'
}

# Tests stray stores at a region that keys of the processor protect. This processor has them.
protect() {
    local test said
    for test in $(grep '/\(protect\|protect_openings\|pramfs_medium\)-' $shared/tests); do
        local names=(pkey view_for protected_region)
        # Files: those of the media are stored to by the step `protected`.
        [[ $test != */pramfs_medium-* ]] || names=(pmem::protect:: --skip reaches_a_file)
        said=$("$test" "${names[@]}" --nocapture --test-threads 1 2>&1) &&
            ! grep SKIPPED <<<"$said" &&
            grep -q '^test result: ok\. [1-9][0-9]* passed' <<<"$said" ||
            { printf '%s\n' "$said" && return 1; }
        grep 'test result\|protect=\|^  [a-z_]* *[0-9]$' <<<"$said" | sed 's/^/   /'
    done
}

# Mounts the medium protected by a key, works in it, and checks it.
protected() {
    local said i text
    "$programs/mkfs-pramfs" -f "$region" 64M | sed 's/^/   /'
    said=$("$programs/mount-pramfs" "$region" /run/mnt -v -o protect=pkey 2>&1) &&
        grep 'protection: protect=pkey' <<<"$said" ||
        { printf '%s\n' "$said" && return 1; }
    printf -v text '%20000s' x
    for i in {1..50}; do
        printf '%s' "$text$i" >/run/mnt/file-$i
        mv /run/mnt/file-$i /run/mnt/moved-$i
    done
    for i in {1..50}; do
        [[ $(</run/mnt/moved-$i) == "$text$i" ]] || { say "moved-$i differs" && return 1; }
        ((i % 2)) || rm /run/mnt/moved-$i
    done
    close mount
    "$programs/fsck-pramfs" -n "$region" | sed 's/^/   /'
}

# Runs a program that links the library and makes a log and counters, twice.
example() {
    local place=${dax:+$dax/example}
    place=${place:-$region}
    "$programs/mkfs-pramfs" -f "$place" 64M | sed 's/^/   /'
    for _ in 1 2; do "$programs/examples/log_and_counters" "$place" 64M 500 | sed 's/^/   /'; done
}

# Makes a file system for the writers.
begin() {
    rm -rf "$record" && mkdir "$record"
    "$programs/mkfs-pramfs" -f "$region" 128M | sed 's/^/   /'
    "$programs/examples/kill" begin "$region" "$record" "$seed"
}

door() {
    door=$region
    [[ $1 == mount ]] || return 0
    door=/run/mnt
    local said refusal='no direct access: .*those of a device'
    said=$("$programs/mount-pramfs" "$region" /run/mnt -o direct=owner 2>&1) || { printf '%s\n' "$said" && return 1; }
    [[ -z $said ]] || sed 's/^/   /' <<<"$said"
    # The mount says whether it grants leases.
    if [[ -n $leases ]]; then
        ! grep -q 'no direct access' <<<"$said"
    else
        grep -q "$refusal" <<<"$said"
    fi
}

# The writers with leases beside the mount, and the one for the preload library: OPS
# operations each, or until the power cut.
clients() { "$programs/examples/kill" clients /run/mnt "$record" "$seed" "$@"; }
calls() {
    # With keys where the processor has them: a file that gets none would not be served.
    local protect=off
    if [[ -n $leases ]] && grep -qw pku /proc/cpuinfo; then protect=pkey; fi
    PRAMFS_PRELOAD_APPEND=1 PRAMFS_PRELOAD_STATS=1 PRAMFS_PRELOAD_PROTECT=$protect "$programs/pramfs" run \
        "$programs/examples/kill" calls /run/mnt "$record" "$seed" "$@" 2>&1
}

# Checks that the mount grants leases and the library serves calls, or that both say why
# not and the calls go through the mount.
direct() {
    local said served
    door mount
    if [[ -n $leases ]]; then
        clients 150 | sed 's/^/   /'
    else
        "$programs/examples/kill" refused /run/mnt | sed 's/^/   refused: /'
    fi
    said=$(calls 150) || { printf '%s\n' "$said" && return 1; }
    sed 's/^/   /' <<<"$said"
    # How many depends on how soon the kernel reports closes. Without any lease the library
    # counts nothing.
    read -r served _ <<<"$(grep -o '[0-9][0-9]* of [0-9][0-9]*' <<<"$said" || echo 0)"
    if [[ -n $leases ]]; then
        ((served > 0)) || { say "the library has served no call" && return 1; }
    else
        expect "calls served" 0 "$served"
    fi
    "$programs/examples/kill" check /run/mnt "$record" "$seed" | sed 's/^/   /'
    close mount
    "$programs/fsck-pramfs" -n "$region" | sed 's/^/   /'
}

# umount returns before the server has released the region.
close() {
    [[ $1 == mount ]] || return 0
    umount /run/mnt
    # A range of memory has no name to lock. Its next user waits for the server.
    [[ $region == physaddr:* ]] || flock -w 20 "$region" true
}

# Runs the writers until the power cut.
live() {
    door "$1"
    "$programs/examples/kill" live "$door" "$record" "$seed" &
    if [[ $1 == mount && -n $leases ]]; then
        clients &
        calls &
    fi
    wait -n || true
    say "a writer ended before the power cut"
    return 1
}

# Checks the state after the power cut.
check() {
    "$programs/fsck-pramfs" -n "$region" | sed 's/^/   /'
    door "$1"
    "$programs/examples/kill" check "$door" "$record" "$seed" | sed 's/^/   /'
    close "$1"
    "$programs/fsck-pramfs" -n "$region" | sed 's/^/   /'
}

# The parts of the tests of several machines that need modules of the kernel.
machines() {
    PRAMFS_BIN=$programs "${BASH_SOURCE[0]%/*}/../replication/run.sh" --only "drbd nfsd" --steps 25 --region 256M
}

# shellcheck source=tests/vm/guest_reboot.sh
. "${BASH_SOURCE[0]%/*}/guest_reboot.sh"
# shellcheck source=tests/vm/guest_databases.sh
. "${BASH_SOURCE[0]%/*}/guest_databases.sh"
# shellcheck source=tests/vm/guest_virtiofs.sh
. "${BASH_SOURCE[0]%/*}/guest_virtiofs.sh"
# shellcheck source=tests/vm/systemd/steps.sh
. "${BASH_SOURCE[0]%/*}/systemd/steps.sh"

while read -r step; do
    start=$SECONDS
    printf '== %s\n' "$step"
    # The words of a step are a function name and its arguments.
    # shellcheck disable=SC2086
    $step
    printf '== %s: done (%d s)\n' "$step" $((SECONDS - start))
done <$shared/steps
