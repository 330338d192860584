#!/usr/bin/env bash
# Real power cuts on a real (emulated) NVDIMM: boots Debian's own kernel in
# QEMU, tests pramfs on each kind of medium that the device can be, kills the
# machine in the middle of a load, boots it again, and checks what is there.
# Boots systemd with what README.md says for /etc/fstab and udev.
# See docs/vm-testing.md.
#
#   tests/vm/run.sh [--media "systemd fsdax pmem devdax eadr"] [--cuts N]
#                   [--seconds N] [--build-all] [--keep]
#
# --media M    on these media, each made anew (all of them); eadr is fsdax
#              where the processor's caches are persistent, too; systemd is
#              devdax, mounted at boot by systemd, without power cuts
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

media="systemd fsdax pmem devdax eadr" cuts=2 seconds=0 keep= build_all=
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
    [[ -n $keep ]] || rm -rf "$work/nvdimm" "$work/shared" "$work/initrd" "$work/initrd.d" "$work/layer"
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

# The first file system: busybox, and the modules in the order of loading, those
# for the host's root and those for the media (systemd leaves these to udev).
initrd() {
    local dir=$work/initrd.d
    rm -rf "$dir" && mkdir -p "$dir"/{bin,proc,sys,dev,host,layers,root,modules}
    cp "$(command -v busybox)" "$dir/bin/busybox"
    cp tests/vm/init "$dir/init" && chmod 0755 "$dir/init"
    : >"$work/modules"
    modules root virtio_pci 9pnet_virtio 9p overlay
    modules media nfit nd_pmem dax_pmem device_dax ext4 fuse loop quota_v2
    (cd "$dir" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initrd"
}

# Modules and what they need, but for those that are there already.
modules() {
    local dir=$work/initrd.d/modules/$1 n=100 module
    mkdir "$dir"
    # No file of this machine's configuration has a say in it.
    for module in $(modprobe -C /dev/null -d "$kernel" -S "$version" -a --show-depends "${@:2}" |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
        ! grep -qxF "$module" "$work/modules" || continue
        printf '%s\n' "$module" >>"$work/modules"
        case $module in
        *.xz) xz -dc "$module" >"$dir/$n.ko" ;;
        *.zst) zstd -qdc "$module" >"$dir/$n.ko" ;;
        *) cp "$module" "$dir/$n.ko" ;;
        esac
        n=$((n + 1))
    done
}

# 16 MiB of labels, and what is left a multiple of 16 MiB, the kernel's unit.
device_mib=2064
label_mib=16

build() {
    say "building the programs"
    local what=(-p pramfs-tests --test media --test host_full)
    if [[ -z $build_all && $media == systemd ]]; then
        cargo build -q -p pramfs-tools -p pramfs-fuse --bins
        return
    fi
    if [[ -n $build_all ]]; then
        cargo test -q --workspace --exclude pramfs-tests --no-run
        what=(-p pramfs-tests)
    else
        cargo build -q -p pramfs-tools -p pramfs-fuse --bins
        cargo build -q -p pramfs --example log_and_counters
        cargo build -q -p pramfs-tests --example kill
    fi
    cargo test "${what[@]}" --no-run --message-format=json 2>"$work/build" |
        grep -o '"executable":"[^"]*/\(media\|host_full\)-[^"]*"' | cut -d'"' -f4 >"$work/shared/tests" || true
    { grep -q /media- "$work/shared/tests" && grep -q /host_full- "$work/shared/tests"; } || {
        cat "$work/build"
        fail "the tests were not built"
    }
}

# The block of README.md after the first line with this text.
readme() {
    awk -v text="$1" '
        block && /^```/ { exit }
        block { print }
        found && /^```/ { block = 1 }
        index($0, text) { found = 1 }' README.md >"$work/shared/readme/$2"
    [[ -s $work/shared/readme/$2 ]] || fail "README.md has no block after: $1"
}

# What systemd's machine has over this one's root: the programs as they are
# installed, and what README.md says for the fstab. Of the rule only the text.
layer() {
    local layer=$work/layer readme=$work/shared/readme device place generator unit
    rm -rf "$layer" "$readme" && mkdir -p "$layer" "$readme"
    readme 'In `/etc/fstab`:' fstab
    readme '`/etc/udev/rules.d/' rule
    grep -o '/etc/udev/rules\.d/[^`]*' README.md >"$readme/rule_file"
    sed -n 's/.*`\(udevadm control[^`]*\)`.*/\1/p' README.md >"$readme/reload"
    [[ $(wc -l <"$readme/fstab") == 1 && $(wc -l <"$readme/rule_file") == 1 && $(wc -l <"$readme/reload") == 1 ]] ||
        fail "README.md says more than one thing, or nothing, for the fstab, the rule's file or udevadm"
    read -r device place _ <"$readme/fstab"
    [[ $device == /dev/dax0.0 ]] || fail "README.md mounts another device than there is: $device"

    make -s install DESTDIR="$layer" CARGO=none target="$target/debug" >"$work/build" 2>&1 || {
        cat "$work/build"
        fail "make install"
    }
    install -D -m 0644 -t "$layer/etc/systemd/system" tests/vm/systemd/steps.{service,target}
    sed "s|@place@|$place|" tests/vm/systemd/user.service >"$layer/etc/systemd/system/user.service"
    cp "$readme/fstab" "$layer/etc/fstab"
    # Without a number it is a machine's first boot, which enables everything.
    printf '%032x\n' "$$" >"$layer/etc/machine-id"
    # Of the generators that this machine has, the one for the fstab.
    mkdir "$layer/etc/systemd/system-generators"
    for generator in /lib/systemd/system-generators/*; do
        [[ $generator == */systemd-fstab-generator ]] ||
            ln -s /dev/null "$layer/etc/systemd/system-generators/${generator##*/}"
    done
    mkdir -p "$layer/usr/lib/modules"
    ln -s "$kernel/lib/modules/$version" "$layer/usr/lib/modules/$version"
    # Modules and units that cost half of the boot and have nothing to do with it.
    mkdir "$layer/etc/modprobe.d"
    printf 'blacklist %s\n' kvm_amd kvm_intel ccp {aesni,ghash_clmulni,crc32c}_intel sha{1,256,512}_ssse3 \
        crc{t10dif,32}_pclmul ahci iTCO_wdt psmouse >"$layer/etc/modprobe.d/vm.conf"
    for unit in cryptsetup.target integritysetup.target veritysetup.target timers.target dbus.socket \
        dev-hugepages.mount dev-mqueue.mount sys-kernel-{config,debug,tracing}.mount \
        modprobe@{configfs,dm_mod,drm,loop}.service proc-sys-fs-binfmt_misc.automount \
        systemd-{ask-password-console,ask-password-wall}.path \
        systemd-{binfmt,firstboot,journal-flush,logind,random-seed,sysusers,tmpfiles-setup,update-utmp}.service; do
        ln -s /dev/null "$layer/etc/systemd/system/$unit"
    done
}

boots=0 cuts_done=0

# Boots and does the steps; with --cut the machine is killed while they run, with
# --systemd it is systemd's, and switches itself off.
boot() {
    local cut='' more=''
    [[ $1 != --cut ]] || { cut=1 && shift; }
    [[ $1 != --systemd ]] || { more="pramfs.systemd=$work/layer systemd.unit=steps.target systemd.show_status=error TERM=dumb" && shift; }
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
        -append "console=ttyS0 quiet panic=-1 $more" \
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
    if [[ $(cat "$work/shared/status") != 0 ]]; then
        show
        fail "a step failed"
    fi
    wait_for "the machine to switch itself off" has_ended
    wait "$qemu" || true
    qemu=
    show
}

has_ended() { ! kill -0 "$qemu" 2>/dev/null; }
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

# Without the rule systemd does not mount what the fstab says; then the rule comes,
# as README.md has it, and is all that it took. The next boot has everything from
# the start. Each shutdown must have unmounted the file system, though in the first
# one somebody still had it in use.
systemd() {
    if [[ ! -x /lib/systemd/systemd || ! -x /lib/systemd/systemd-udevd ]]; then
        say "*** SKIPPED: there is no systemd with udev (scripts/deps.sh --vm installs it): no boot with them ***"
        return
    fi
    boot "make devdax" format
    layer
    # Not the 90 s for which systemd waits.
    mkdir -p "$work/layer/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultDeviceTimeoutSec=3s\n' >"$work/layer/etc/systemd/system.conf.d/short.conf"
    boot --systemd booted unmounted rule mounted used by_hand "write first" busy
    rm "$work/layer/etc/systemd/system.conf.d/short.conf"
    install -D -m 0644 "$work/shared/readme/rule" "$work/layer$(cat "$work/shared/readme/rule_file")"
    boot --systemd booted mounted used ended_cleanly "reads first" "write second"
    boot "attach devdax" "remains first second"
}

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
    [[ $medium == systemd || -n ${is[$medium]-} ]] || fail "there is no medium $medium"
    left "$medium" || break
    persistence=mem-ctrl
    [[ $medium != eadr ]] || persistence=cpu
    if [[ $medium == systemd ]]; then
        systemd
        continue
    fi
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
