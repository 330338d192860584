# shellcheck shell=bash
# Part of tests/vm/run.sh: memory that keeps its contents over a reset of the machine
# (docs/warm-reboot.md). One QEMU process boots several times. Its RAM is the medium: the
# kernel sets a range of it aside, by the parameter that docs/warm-reboot.md shows.

# The parameter of the first block of docs/warm-reboot.md after a line with this text.
memmap_of() {
    local parameter
    parameter=$(awk -v text="$1" '
        block && /^```/ { exit }
        block { print }
        found && /^```/ { block = 1 }
        index($0, text) { found = 1 }' docs/warm-reboot.md)
    [[ $parameter == memmap=512M?1G ]] || fail "docs/warm-reboot.md shows no range of 512 MiB at 1 GiB after: $1"
    printf '%s' "$parameter"
}

# The parameter of the range of ramoops in docs/warm-reboot.md. The guest gets the options of the
# module in a file.
ramoops_of() {
    local shown
    shown=$(grep -A 1 '^memmap=1M' docs/warm-reboot.md)
    [[ $shown == memmap=*$'\n'"options ramoops "* ]] || fail "docs/warm-reboot.md has no range for ramoops"
    sed -n 's/^options ramoops //p' <<<"$shown" >"$work/shared/ramoops"
    head -n 1 <<<"$shown"
}

# Starts a machine whose monitor reads commands from a pipe. It is not ended by a reset.
start_to_reset() {
    local parameters=$1
    shift
    next_steps "$@"
    : >"$work/console"
    rm -f "$work"/monitor.{in,out}
    mkfifo "$work"/monitor.{in,out}
    boots=$((boots + 1))
    # As in `boot`: the two processors take turns in one thread.
    qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 2 -machine q35 -m 2G \
        -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check $parameters" \
        -nodefaults -display none -serial "file:$work/console" \
        -chardev "pipe,id=monitor,path=$work/monitor" -mon chardev=monitor,mode=readline \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$work/shared,mount_tag=shared,security_model=none" \
        </dev/null &
    qemu=$!
    # Both ends of the pipes stay open, so that the monitor sees no end of its input.
    exec 7<>"$work/monitor.in" 8<>"$work/monitor.out"
}

# The steps of the next boot. A guest that still runs has read its own.
next_steps() {
    rm -f "$work/shared/status" "$work/shared/reset"
    printf '%s\n' "$@" >"$work/shared/steps.next"
    mv "$work/shared/steps.next" "$work/shared/steps"
    printf '%s\n' "${kernel:?}"/boot/vmlinuz-* "$work/initrd" >"$work/shared/kexec"
}

# Waits for the end of the machine, which the last step brings about, and shows its text.
end_of_resets() {
    wait_for "the end of the steps" test -e "$work/shared/status"
    [[ $(cat "$work/shared/status") == 0 ]] || { show && fail "a step failed"; }
    wait_for "the machine to switch itself off" has_ended
    wait "$qemu" || true
    qemu=
    exec 7>&- 8>&-
    show
    [[ $(grep -c 'Kernel panic' "$work/console") == "${1:-0}" ]] || fail "the guest's kernel panicked"
}

# Resets the machine by one of three ways, while the writers work.
reset_by() {
    local way=$1 writer from=()
    # The logs grow from where the boot before left them.
    wait_for "the writers" test -e "$work/shared/live"
    for writer in $writers; do from[writer]=$(stat -c %s "$work/shared/record/w$writer.log" 2>/dev/null || echo 0); done
    for writer in $writers; do
        wait_for "writer $writer" bytes_of "$work/shared/record/w$writer.log" $((${from[writer]} + 160))
    done
    sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 3 }')"
    rm "$work/shared/live"
    next_steps "${@:2}"
    case $way in
    # As by the machine's reset button.
    button) printf 'system_reset\n' >&7 ;;
    # By the guest's own kernel, without a shutdown.
    *) printf '%s\n' "$way" >"$work/shared/reset.part" && mv "$work/shared/reset.part" "$work/shared/reset" ;;
    esac
    boots=$((boots + 1)) cuts_done=$((cuts_done + 1))
    say "reset by $way, with $(operations) operations in the logs"
}

# The medium is /dev/pmem0, or with `physical` the range itself, through /dev/mem.
reboot_with() {
    local medium=$1 parameter=$2 cut way ways=(button kexec sysrq) live check
    writers="0 1 2"
    rm -f "$work/shared/live"
    start_to_reset "$parameter" "make $medium" "doctor ${is[$medium]}" begin "live_until_reset mount"
    for ((cut = 0; cut < cuts; cut++)); do
        way=${ways[(first_way + cut) % 3]} live=${lives[(cut + 1) % 3]} check=${checks[cut % 3]}
        if ((cut + 1 < cuts)); then
            reset_by "$way" "attach $medium" "check $check" "live_until_reset $live"
        else
            reset_by "$way" "attach $medium" "check $check"
        fi
    done
    end_of_resets
}

# A panic of the kernel: its messages are then in the file system.
panic_with() {
    local medium=$1
    start_to_reset "$2" "attach $medium" begin ramoops panic
    wait_for "the kernel's panic" grep -q 'Kernel panic - not syncing: sysrq triggered crash' "$work/console"
    # The guest starts again by itself (panic=-1).
    next_steps "attach $medium" ramoops "collected mount" "check region"
    boots=$((boots + 1))
    end_of_resets 1
}

# With one cut, one of the two kinds of range, and one of the three ways, by the seed: in CI, all
# of them are tested in the course of some runs. Nothing begins that would not end in time.
reboot() {
    local mapped=$((seed % 2)) first_way=$((seed / 2 % 3))
    is[physical]="physical-memory cache-line null"
    if ((cuts > 1 || mapped == 0)); then
        reserve=100 left "a range as /dev/pmem0" || return 0
        reboot_with reboot "$(memmap_of 'as a block device')"
    fi
    if ((cuts > 1 || mapped == 1)); then
        reserve=100 left "a range through /dev/mem" || return 0
        reboot_with physical "$(memmap_of 'through `/dev/mem`')"
    fi
    reserve=80 left "a panic" || return 0
    panic_with reboot "$(memmap_of 'as a block device') $(ramoops_of)"
}
