#!/usr/bin/env bash
# Real power cuts on a real (emulated) NVDIMM: boots Debian's own kernel in
# QEMU, tests pramfs on each kind of medium that the device can be, kills the
# machine in the middle of a load, boots it again, and checks what is there.
# See docs/vm-testing.md.
#
#   tests/vm/run.sh [--media "fsdax pmem devdax eadr"] [--cuts N] [--seconds N]
#                   [--build-all] [--keep]
#
# --media M    on these media, each made anew (all of them); eadr is fsdax
#              where the processor's caches are persistent, too
# --cuts N     power cuts on each medium (2)
# --seconds N  begins nothing more after that time, building not counted, and
#              says so (no limit)
# --build-all  builds all that `make test` builds, which then finds it done
# --keep       leaves the device and the console's text behind
#
# Ends with status 0 where all that was begun has passed, 1 where something
# failed, and 77 where it cannot run here; then it says why.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/sbin:/sbin

media="fsdax pmem devdax eadr" cuts=2 seconds=0 keep= build_all=
while (($#)); do
    case $1 in
    --media) media=$2 && shift ;;
    --cuts) cuts=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --build-all) build_all=1 ;;
    --keep) keep=1 ;;
    *)
        sed -n '/^#   tests/,/^# --keep/s/^# *//p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done

say() { printf 'vm: %s\n' "$*"; }
cannot() {
    printf '\n*** SKIPPED: %s: the tests in the virtual machine have not been run ***\n\n' "$*" >&2
    exit 77
}

[[ $(uname -m) == x86_64 ]] || cannot "the machine is no x86_64, and neither would be its programs in the guest"
for tool in qemu-system-x86_64 ndctl busybox cpio depmod modprobe xz apt-get mkfs.ext4; do
    command -v $tool >/dev/null || cannot "there is no $tool (scripts/deps.sh --vm installs it)"
done

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/vm
mkdir -p "$work"
exec 9>"$work/lock"
flock -n 9 || cannot "another run has $work"

qemu=
end() {
    if [[ -n $qemu ]]; then
        kill -KILL "$qemu" 2>/dev/null || true
        wait "$qemu" 2>/dev/null || true
    fi
    [[ -n $keep ]] || rm -rf "$work/nvdimm" "$work/shared" "$work/initrd" "$work/initrd.d"
}
trap end EXIT

# The kernel: unpacked and not installed, since this machine is not to boot it.
kernel() {
    local meta package
    for meta in linux-image-6.12-amd64 linux-image-amd64; do
        package=$(apt-cache depends --important "$meta" 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
        [[ -z $package ]] || break
    done
    [[ -n $package ]] || cannot "apt knows no kernel package linux-image-amd64 (apt-get update)"
    kernel=$work/kernel/$package
    if [[ ! -e $kernel/complete ]]; then
        say "fetching the kernel, $package"
        rm -rf "$work/kernel" && mkdir -p "$kernel"
        (cd "$kernel" && apt-get download -qq "$package" 2>/dev/null) ||
            cannot "the package $package cannot be downloaded"
        dpkg-deb -x "$kernel"/*.deb "$kernel"
        rm "$kernel"/*.deb
        # Newer packages have everything below /usr.
        [[ -d $kernel/lib ]] || ln -s usr/lib "$kernel/lib"
        version=$(ls "$kernel/lib/modules")
        depmod -b "$kernel" "$version"
        touch "$kernel/complete"
    fi
    version=$(ls "$kernel/lib/modules")
}

# The first file system: busybox, and the modules in the order of loading.
initrd() {
    local dir=$work/initrd.d n=100 module
    rm -rf "$dir" && mkdir -p "$dir"/{bin,proc,sys,dev,host,modules}
    cp "$(command -v busybox)" "$dir/bin/busybox"
    cp tests/vm/init "$dir/init" && chmod 0755 "$dir/init"
    # No file of this machine's configuration has a say in it.
    modprobe -C /dev/null -d "$kernel" -S "$version" -a --show-depends \
        nfit nd_pmem dax_pmem device_dax 9pnet_virtio 9p ext4 fuse virtio_pci loop quota_v2 |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/modules"
    while read -r module; do
        case $module in
        *.xz) xz -dc "$module" >"$dir/modules/$n.ko" ;;
        *.zst) zstd -qdc "$module" >"$dir/modules/$n.ko" ;;
        *) cp "$module" "$dir/modules/$n.ko" ;;
        esac
        n=$((n + 1))
    done <"$work/modules"
    (cd "$dir" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initrd"
}

# 16 MiB of labels, and what is left a multiple of 16 MiB, the kernel's unit.
device_mib=2064
label_mib=16

build() {
    say "building the programs"
    local what=(-p pramfs-tests --test media --test host_full)
    if [[ -n $build_all ]]; then
        what=(--workspace)
    else
        cargo build -q -p pramfs-tools -p pramfs-fuse --bins
        cargo build -q -p pramfs --example log_and_counters
        cargo build -q -p pramfs-tests --example life
    fi
    cargo test "${what[@]}" --no-run --message-format=json 2>"$work/build" |
        grep -o '"executable":"[^"]*/\(media\|host_full\)-[^"]*"' | cut -d'"' -f4 >"$work/shared/tests" || true
    { grep -q /media- "$work/shared/tests" && grep -q /host_full- "$work/shared/tests"; } || {
        cat "$work/build"
        fail "the tests were not built"
    }
}

boots=0 cuts_done=0

# Boots and does the steps; with --cut the machine is killed while they run.
boot() {
    local cut=
    [[ $1 != --cut ]] || { cut=1 && shift; }
    printf '%s\n' "$@" >"$work/shared/steps"
    rm -f "$work/shared/status"
    : >"$work/console"
    boots=$((boots + 1))
    local start=$SECONDS
    # The two processors take turns: with a thread for each, one may still hold
    # the breakpoint that the kernel had in place of an instruction while the
    # other patched it, and the guest panics, once in some hundred boots.
    qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 2 \
        -machine "q35,nvdimm=on,nvdimm-persistence=$persistence" -m 1G,slots=2,maxmem=4G \
        -object "memory-backend-file,id=nvdimm,share=on,mem-path=$work/nvdimm,size=${device_mib}M" \
        -device "nvdimm,memdev=nvdimm,id=nvdimm0,label-size=${label_mib}M" \
        -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1" \
        -nodefaults -display none -no-reboot -serial "file:$work/console" \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$work/shared,mount_tag=shared,security_model=none" \
        </dev/null &
    qemu=$!
    if [[ -n $cut ]]; then
        # As soon as all writers are at work, and a little later than that.
        local writer
        for writer in 0 1 2; do
            wait_for "writer $writer" bytes_of "$work/shared/record/w$writer.log" 160
        done
        sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 3 }')"
        kill -KILL "$qemu"
        wait "$qemu" 2>/dev/null || true
        qemu=
        cuts_done=$((cuts_done + 1))
        say "power cut after $((SECONDS - start)) s, with $(operations) operations in the log: ${*: -1}"
        show
        return
    fi
    wait_for "the end of the steps" test -e "$work/shared/status"
    wait "$qemu" || true
    qemu=
    show
    if [[ $(cat "$work/shared/status") != 0 ]]; then
        fail "a step failed"
    fi
}

bytes_of() { [[ $(stat -c %s "$1" 2>/dev/null || echo 0) -ge $2 ]]; }
operations() { cat "$work"/shared/record/*.log | wc -c | awk '{ print $1 / 8 }'; }
show() { tr -d '\r' <"$work/console" | sed 's/^/  guest| /'; }
fail() {
    say "FAILED: $*"
    exit 1
}

wait_for() {
    local what=$1 patience=$((SECONDS + 300))
    shift
    until "$@"; do
        if [[ -e $work/shared/status && $(cat "$work/shared/status") != 0 ]] ||
            ! kill -0 "$qemu" 2>/dev/null || ((SECONDS > patience)); then
            # What came in the last moment counts.
            "$@" && return
            show
            ! grep -q 'Kernel panic' "$work/console" ||
                fail "the guest's kernel panicked before $what (its text is above)"
            fail "waiting for $what"
        fi
        sleep 0.1
    done
}

left() {
    ((seconds == 0 || SECONDS < seconds)) && return
    say "NO TIME LEFT after $SECONDS s: not begun: $*"
    return 1
}

kernel
initrd
rm -rf "$work/shared" "$work/nvdimm" && mkdir -p "$work/shared/record"
printf '%s\n' "$root" >"$work/shared/root"
printf '%s\n' "$target/debug" >"$work/shared/programs"
seed=${PRAMFS_VM_SEED:-$RANDOM}
printf '%s\n' "$seed" >"$work/shared/seed"
say "seed: PRAMFS_VM_SEED=$seed repeats the operations, not the moments of the cuts"
build
truncate -s ${device_mib}M "$work/nvdimm"

# What each medium is to be taken for: kind, granularity, MAP_SYNC.
declare -A is=(
    [fsdax]="fsdax cache-line true"
    [pmem]="block-device page null"
    [devdax]="devdax cache-line null"
    [eadr]="fsdax byte true"
)
SECONDS=0
# No matter on which medium, so once.
quota=(quota)
for medium in $media; do
    [[ -n ${is[$medium]-} ]] || fail "there is no medium $medium"
    left "$medium" || break
    persistence=mem-ctrl
    [[ $medium != eadr ]] || persistence=cpu
    boot "make $medium" "doctor ${is[$medium]}" "library" example \
        "${quota[@]}" begin "doctor ${is[$medium]}"
    quota=()
    doors=(mount region)
    for ((cut = 0; cut < cuts; cut++)); do
        left "power cut $((cut + 1)) on $medium" || break 2
        door=${doors[cut % 2]} other=${doors[(cut + 1) % 2]}
        boot --cut "attach $medium" "live $door"
        boot "attach $medium" "check $other"
    done
done
say "passed: $boots boots, $cuts_done power cuts, $SECONDS s"
