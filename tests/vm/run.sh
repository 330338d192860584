#!/usr/bin/env bash
# Real power cuts on a real (emulated) NVDIMM: boots Debian's own kernel in
# QEMU, tests pramfs on each kind of medium that the device can be, kills the
# machine in the middle of a load, boots it again, and checks the contents.
# Also boots systemd with the /etc/fstab lines of docs/mounting.md and the installed udev rule,
# a guest that mounts a region of this machine by virtiofs, and a machine that is reset.
# See docs/vm-testing.md.
#
#   tests/vm/run.sh [--media "systemd virtiofs dax reboot fsdax pmem devdax eadr databases"] [--cuts N]
#                   [--seconds N] [--build-all] [--keep]
#
# --media M    the media to test, each made anew (default: all but databases); eadr is fsdax
#              with persistent processor caches; systemd is devdax and a region on
#              tmpfs, mounted at boot by systemd, with one reset; virtiofs and dax have no NVDIMM,
#              and dax needs a newer QEMU, which is fetched from Debian and not installed;
#              reboot is RAM, whose machine is reset; databases is devdax, with SQLite and
#              PostgreSQL. One more is not among all: machines, the parts of
#              tests/replication/run.sh that need modules of the kernel
# --cuts N     power cuts (or resets) on each medium, for databases with each of the two and each
#              mode of data (default: 2)
# --seconds N  starts nothing new after that time, not counting the build, and
#              reports what it leaves out (default: no limit)
# --build-all  also builds everything that a later `make test` needs
# --keep       keeps the device and the console output
#
# Exit status: 0 if everything that was started passed, 1 if something failed, 77
# with a reason if this machine cannot run the tests. A part that cannot run is named in the last
# line, and with CI set it is a failure.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/sbin:/sbin

media="systemd virtiofs dax reboot fsdax pmem devdax eadr" cuts=2 seconds=0 keep= build_all=
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
# shellcheck source=tests/vm/skips.sh
. "$root/tests/vm/skips.sh"
cannot() {
    printf '\n*** SKIPPED: %s: the tests in the virtual machine have not been run ***\n\n' "$*" >&2
    exit 77
}

[[ $(uname -m) == x86_64 ]] || cannot "this machine is not x86_64, so its programs cannot run in the guest"
for tool in qemu-system-x86_64 ndctl busybox cpio depmod modprobe xz apt-get mkfs.ext4 kexec; do
    command -v $tool >/dev/null || cannot "$tool is missing (scripts/deps.sh --vm installs it)"
done

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/vm
mkdir -p "$work"
exec 9>"$work/lock"
flock -n 9 || cannot "another run uses $work"

qemu=
virtiofs_server='' virtiofs_mounted='' databases_dir=''
end() {
    [[ -z $databases_dir ]] || databases_end
    [[ -z $virtiofs_mounted ]] || umount -l "$virtiofs_mounted" || true
    if [[ -n $virtiofs_server ]]; then
        kill -KILL "$virtiofs_server" 2>/dev/null || true
        wait "$virtiofs_server" 2>/dev/null || true
    fi
    if [[ -n $qemu ]]; then
        kill -KILL "$qemu" 2>/dev/null || true
        wait "$qemu" 2>/dev/null || true
    fi
    [[ -n $keep ]] || rm -rf "$work/nvdimm" "$work/shared" "$work/initrd" "$work/initrd.d" "$work/layer" "$work/virtiofs" "$work"/monitor.{in,out}
}
trap end EXIT

# Unpacks the kernel without installing it, because this machine must not boot it.
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

# Makes the initramfs: busybox, and the modules in load order, first those for the
# host's root, then those for the media (in a boot with systemd, udev loads the latter).
initrd() {
    local dir=$work/initrd.d
    rm -rf "$dir" && mkdir -p "$dir"/{bin,proc,sys,dev,host,layers,root,modules}
    cp "$(command -v busybox)" "$dir/bin/busybox"
    cp tests/vm/init "$dir/init" && chmod 0755 "$dir/init"
    : >"$work/modules"
    modules root virtio_pci 9pnet_virtio 9p overlay
    modules media nfit nd_e820 nd_pmem dax_pmem device_dax ext4 fuse virtiofs loop quota_v2
    [[ " $media " != *" machines "* ]] || modules machines veth bridge nfsd nfsv4 drbd
    (cd "$dir" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initrd"
}

# Copies modules and their dependencies, except those already copied.
modules() {
    local dir=$work/initrd.d/modules/$1 n=100 module
    mkdir "$dir"
    # Ignore this machine's modprobe configuration.
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

# 16 MiB of labels. The rest is a multiple of 16 MiB, the kernel's unit.
device_mib=2064
label_mib=16

build() {
    say "building the programs"
    local what=(-p pramfs-tests -p pramfs-medium --lib --test media --test host_full --test protect --test protect_openings --test poison)
    local used='media\|host_full\|protect\|protect_openings\|poison\|pramfs_medium'
    if [[ -z $build_all && "$media " =~ ^((systemd|virtiofs|dax|databases|machines)\ +)+$ ]]; then
        cargo build -q -p pramfs-tools -p pramfs-fuse --bins
        return
    fi
    if [[ -z $build_all && $media == reboot ]]; then
        cargo build -q -p pramfs-tools -p pramfs-fuse --bins
        cargo build -q -p pramfs-tests --example kill
        return
    fi
    if [[ -n $build_all ]]; then
        # Apart, as in scripts/test.sh: the programs must have no test hooks.
        cargo test -q --no-run
        cargo test -q -p pramfs -p pramfs-fsck --no-run
        cargo build -q -p pramfs --example log_and_counters
        what=(-p pramfs-tests -p pramfs-medium)
    else
        cargo build -q -p pramfs-tools -p pramfs-fuse --bins
        cargo build -q -p pramfs --example log_and_counters
        cargo build -q -p pramfs-tests --example kill
    fi
    # Nothing links the library.
    cargo build -q -p pramfs-preload
    cargo test "${what[@]}" --no-run --message-format=json 2>"$work/build" |
        grep -o "\"executable\":\"[^\"]*/\($used\)-[^\"]*\"" | cut -d'"' -f4 >"$work/shared/tests" || true
    [[ $(grep -c "/\($used\)-" "$work/shared/tests") -ge 5 ]] || {
        cat "$work/build"
        fail "the tests were not built"
    }
}

# Extracts the block of docs/mounting.md after the first line with this text.
shown() {
    awk -v text="$1" '
        block && /^```/ { exit }
        block { print }
        found && /^```/ { block = 1 }
        index($0, text) { found = 1 }' docs/mounting.md >"$work/shared/shown/$2"
    [[ -s $work/shared/shown/$2 ]] || fail "docs/mounting.md has no block after: $1"
}

# Extracts from docs/mounting.md what the boots with systemd test: the lines of the fstab, the file
# and the rule of udev, the command that applies it, and the file of a service.
text() {
    local shown=$work/shared/shown
    rm -rf "$shown" && mkdir -p "$shown"
    shown 'In `/etc/fstab`:' fstab
    shown '`/srv/fast`, in `/etc/pramfs/mounts/srv-fast.conf`:' service
    sed -n 's|.*`\(/usr/local/lib/udev/rules\.d/[^`]*\)`.*|\1|p' docs/mounting.md >"$shown/rule_file"
    sed -n 's/.*`\(udevadm control[^`]*\)`.*/\1/p' docs/mounting.md >"$shown/reload"
    [[ $(wc -l <"$shown/fstab") == 2 && $(wc -l <"$shown/rule_file") == 1 && $(wc -l <"$shown/reload") == 1 ]] ||
        fail "docs/mounting.md does not have two lines for the fstab, and one each for the rule's file and udevadm"
    grep -q '^UUID=' "$shown/fstab" || fail "docs/mounting.md mounts nothing by its uuid"
}

# Makes the layer over this machine's root for the boots with systemd: the installed
# programs, units and rule, the fstab of docs/mounting.md, and the saved region of its second line.
layer() {
    local layer=$work/layer shown=$work/shared/shown place generator unit
    rm -rf "$layer" && mkdir -p "$layer"
    read -r _ place _ <"$shown/fstab"
    make -s install-programs DESTDIR="$layer" CARGO=none target="$target/debug" >"$work/build" 2>&1 || {
        cat "$work/build"
        fail "make install-programs"
    }
    install -D -m 0644 -t "$layer/etc/systemd/system" tests/vm/systemd/steps.{service,target}
    sed "s|@place@|$place|" tests/vm/systemd/user.service >"$layer/etc/systemd/system/user.service"
    cp "$shown/fstab" "$layer/etc/fstab"
    mkdir -p "$layer/etc/pramfs" "$layer/var/lib/pramfs"
    printf '/run/scratch/region\n' >"$layer/etc/pramfs/regions"
    printf '%s\n' REGION=/run/scratch/region FILE=/var/lib/pramfs/scratch.saved SIZE=16M >"$layer/etc/pramfs/scratch.conf"
    printf 'saved before' >"$work/scratch.file"
    rm -f "$work/scratch"
    "$target/debug/mkfs-pramfs" -q -L scratch "$work/scratch" 16M
    "$target/debug/pramfs" put "$work/scratch" "$work/scratch.file" /file
    "$target/debug/pramfs" save "$work/scratch" "$layer/var/lib/pramfs/scratch.saved" >/dev/null
    rm "$work"/scratch "$work"/scratch.file
    # Without an ID systemd treats this as a first boot and enables all units.
    printf '%032x\n' "$$" >"$layer/etc/machine-id"
    # Mask all generators of this machine except the one for the fstab.
    mkdir "$layer/etc/systemd/system-generators"
    for generator in /lib/systemd/system-generators/*; do
        [[ $generator == */systemd-fstab-generator ]] ||
            ln -s /dev/null "$layer/etc/systemd/system-generators/${generator##*/}"
    done
    mkdir -p "$layer/usr/lib/modules"
    ln -s "$kernel/lib/modules/$version" "$layer/usr/lib/modules/$version"
    # Mask irrelevant modules and units: they take half of the boot time.
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

# Boots and runs the steps. With --cut it kills the machine while they run. With
# --systemd, systemd is the first process and the machine switches itself off. With
# --virtiofs, the machine has a virtiofs device and no NVDIMM. With --kill-server, it also
# kills the server of that device once the guest writes, and then ends the machine. With
# --plain, it has neither. With
# --dax, the device has a window for mapped files; --dax-kill-server is as --kill-server.
boot() {
    local cut='' more='' kill_server='' beside='' device emulator=(qemu-system-x86_64)
    [[ $1 != --cut ]] || { cut=1 && shift; }
    device=(-machine "q35,nvdimm=on,nvdimm-persistence=$persistence" -m 1G,slots=2,maxmem=4G
        -object "memory-backend-file,id=nvdimm,share=on,mem-path=$work/nvdimm,size=${device_mib}M"
        -device "nvdimm,memdev=nvdimm,id=nvdimm0,label-size=${label_mib}M")
    if [[ $1 == --virtiofs || $1 == --kill-server ]]; then
        [[ $1 != --kill-server ]] || kill_server=1
        shift
        device=(-machine q35,memory-backend=memory -m 1G
            -object "memory-backend-memfd,id=memory,size=1G,share=on"
            -chardev "socket,id=door,path=$virtiofs_dir/socket"
            -device vhost-user-fs-pci,chardev=door,tag=pramfs)
    elif [[ $1 == --dax || $1 == --dax-kill-server || $1 == --dax-beside ]]; then
        [[ $1 != --dax-kill-server ]] || kill_server=1
        [[ $1 != --dax-beside ]] || beside=1
        shift
        emulator=("${newer_qemu[@]}")
        device=(-machine q35,memory-backend=memory -m 1G
            -object "memory-backend-memfd,id=memory,size=1G,share=on"
            -chardev "socket,id=door,path=$virtiofs_dir/socket"
            -device vhost-user-test-device-pci,chardev=door,virtio-id=26,num_vqs=2,vq_size=256,config_size=40)
    fi
    if [[ $1 == --plain ]]; then
        shift
        device=(-machine q35 -m 2G)
    fi
    [[ $1 != --systemd ]] || { more="pramfs.systemd=$work/layer systemd.unit=steps.target systemd.show_status=error TERM=dumb" && shift; }
    printf '%s\n' "$@" >"$work/shared/steps"
    rm -f "$work/shared/status"
    : >"$work/console"
    boots=$((boots + 1))
    local start=$SECONDS
    # The two processors take turns in one thread. With a thread for each, one may
    # still hold the breakpoint that the kernel puts in place of an instruction while
    # the other patches it. The guest then panics, once in some hundred boots.
    # no_timer_check: the kernel takes a busy host for a broken timer.
    "${emulator[@]}" -accel tcg,thread=single -cpu max -smp 2 \
        "${device[@]}" \
        -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check $more" \
        -nodefaults -display none -no-reboot -serial "file:$work/console" \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$work/shared,mount_tag=shared,security_model=none" \
        </dev/null 2> >(grep -v 'vhost-user memory table\|vhost_set_mem_table' >&2) &
    qemu=$!
    if [[ -n $cut ]]; then
        # Wait until all writers are at work, then up to three seconds more.
        local writer
        for writer in $writers; do
            wait_for "writer $writer" bytes_of "$work/shared/record/w$writer.log" 160
        done
        sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 3 }')"
        kill -KILL "$qemu"
        wait "$qemu" 2>/dev/null || true
        qemu=
        cuts_done=$((cuts_done + 1))
        say "power cut after $((SECONDS - start)) s, with $(operations) operations in the logs: ${*: -1}"
        show
        return
    fi
    if [[ -n $kill_server$beside ]]; then
        wait_for "the guest's writes" bytes_of "$work/shared/writes" 3
        if [[ -n $kill_server ]]; then
            kill -KILL "$virtiofs_server"
            wait "$virtiofs_server" 2>/dev/null || true
            virtiofs_server=
            say "the server is killed after $(cat "$work/shared/writes") writes"
        fi
        # The machine still runs, and QEMU still obeys.
        ${meanwhile:-sleep 2}
        ! has_ended || fail "QEMU has ended"
        kill -TERM "$qemu"
        wait_for "QEMU to end" has_ended
        wait "$qemu" || true
        qemu=
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
operations() { stat -c %s "$work"/shared/record/*.log | awk '{ printf "%s%d", sep, $1 / 8; sep = " + " }'; }
show() { tr -d '\r' <"$work/console" | sed 's/^/  guest| /'; }
fail() {
    say "FAILED: $*"
    exit 1
}

wait_for() {
    local what=$1 patience=$((SECONDS + ${patient:-300}))
    shift
    until "$@"; do
        if [[ -e $work/shared/status && $(cat "$work/shared/status") != 0 ]] ||
            ! kill -0 "$qemu" 2>/dev/null || ((SECONDS > patience)); then
            # Check once more: the condition may have become true in the meantime.
            "$@" && return
            show
            ! grep -q 'Kernel panic' "$work/console" ||
                fail "the guest's kernel panicked before $what (its text is above)"
            fail "waiting for $what"
        fi
        sleep 0.1
    done
}

# Whether there is time to start something that takes `reserve` seconds.
left() {
    ((seconds == 0 || SECONDS + ${reserve:-0} < seconds)) && return
    say "NO TIME LEFT after $SECONDS s: not started: $*"
    return 1
}

kernel
initrd
rm -rf "$work/shared" "$work/nvdimm" && mkdir -p "$work/shared/record"
printf '%s\n' "$root" >"$work/shared/root"
printf '%s\n' "$target/debug" >"$work/shared/programs"
seed=${PRAMFS_VM_SEED:-$RANDOM}
printf '%s\n' "$seed" >"$work/shared/seed"
say "seed: PRAMFS_VM_SEED=$seed repeats the operations, but not the times of the cuts"
build
truncate -s ${device_mib}M "$work/nvdimm"

# The first boot has no udev rule, and systemd does not mount the device of the fstab. Adding the
# rule as docs/mounting.md says must be sufficient. The second boot has everything from the start,
# and ends by a reset. The shutdowns of the others must unmount the file system, although a process
# still uses it in the first one.
systemd() {
    if [[ ! -x /lib/systemd/systemd || ! -x /lib/systemd/systemd-udevd ]]; then
        skip "systemd or udev is missing (scripts/deps.sh --vm installs them): no boot with systemd"
        return
    fi
    text
    boot "make devdax" format
    layer
    # For the step `rule`.
    mv "$work/layer$(cat "$work/shared/shown/rule_file")" "$work/shared/shown/rule"
    # Instead of systemd's default wait of 90 s.
    mkdir -p "$work/layer/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultDeviceTimeoutSec=3s\n' >"$work/layer/etc/systemd/system.conf.d/short.conf"
    boot --systemd booted memory unmounted rule mounted used by_hand "write first" busy
    rm "$work/layer/etc/systemd/system.conf.d/short.conf"
    install -D -m 0644 "$work/shared/shown/rule" "$work/layer$(cat "$work/shared/shown/rule_file")"
    boot --systemd booted memory mounted used ended_cleanly "reads first" units service metrics "write second" reset
    boot --systemd booted memory mounted used ended_by_reset "reads first" "reads second" "write third"
    boot "attach devdax" "remains first second third"
}

# Several machines in one: namespaces of the guest's kernel, which has modules that this one may lack.
machines() {
    local tool
    for tool in rpc.nfsd exportfs mount.nfs4 drbdmeta; do
        command -v $tool >/dev/null || cannot "$tool is missing (scripts/deps.sh --replication installs it)"
    done
    patient=1800 boot --plain machines
}

# The expected report for each medium: kind, granularity, MAP_SYNC.
declare -A is=(
    [fsdax]="fsdax cache-line true"
    [pmem]="block-device page null"
    [devdax]="devdax cache-line null"
    [eadr]="fsdax byte true"
    [reboot]="block-device page null"
)
# shellcheck source=tests/vm/virtiofs.sh
. "$root/tests/vm/virtiofs.sh"
# shellcheck source=tests/vm/reboot.sh
. "$root/tests/vm/reboot.sh"
# shellcheck source=tests/vm/databases.sh
. "$root/tests/vm/databases.sh"

lives=(mount region mount) checks=(region mount mount)
SECONDS=0
# Independent of the medium, so run once.
once=(quota protect)
for medium in $media; do
    [[ $medium =~ ^(systemd|virtiofs|dax|databases|machines)$ || -n ${is[$medium]-} ]] || fail "unknown medium $medium"
    left "$medium" || break
    persistence=mem-ctrl
    [[ $medium != eadr ]] || persistence=cpu
    if [[ $medium =~ ^(systemd|virtiofs|dax|reboot|databases|machines)$ ]]; then
        $medium
        continue
    fi
    # A boot of its own, because the page stays away until the next.
    # On pmem, a page is one of the page cache, and the kernel can read it again.
    [[ $medium != fsdax ]] || boot "make $medium" poison
    boot "make $medium" "doctor ${is[$medium]}" "library" example \
        "${once[@]}" protected begin direct "doctor ${is[$medium]}"
    once=()
    for ((cut = 0; cut < cuts; cut++)); do
        left "power cut $((cut + 1)) on $medium" || break 2
        live=${lives[cut % 3]} check=${checks[cut % 3]} writers="0 1 2"
        # A device grants no leases, and the library needs no server.
        [[ ${is[$medium]} != fsdax* || $live != mount ]] || writers="0 1 2 3 4 5"
        boot --cut "attach $medium" "live $live"
        boot "attach $medium" "check $check"
    done
done
summary "$boots boots, $cuts_done power cuts, $SECONDS s"
