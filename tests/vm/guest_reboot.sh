# shellcheck shell=bash
# Part of tests/vm/guest.sh: the steps of a machine that is reset while it works, and
# whose RAM keeps what it holds (tests/vm/reboot.sh).

# Runs the writers until the host resets the machine, or asks for one of two ways that need
# the guest's kernel. Neither of them ends a process or unmounts anything.
live_until_reset() {
    local kernel initrd
    { read -r kernel && read -r initrd; } <"$shared/kexec"
    # Beforehand: the writers are at work until the very moment.
    kexec -s -l "$kernel" --initrd="$initrd" --command-line="$(cat /proc/cmdline)"
    door "$1"
    "$programs/examples/kill" live "$door" "$record" "$seed" &
    touch "$shared/live"
    until [[ -e $shared/reset ]]; do
        if ! kill -0 $! 2>/dev/null; then
            say "the writers ended before the reset"
            return 1
        fi
        sleep 0.1
    done
    local way
    way=$(cat "$shared/reset")
    # The next boot waits for a request of its own.
    rm "$shared/reset"
    case $way in
    kexec) kexec -e ;;
    sysrq) echo b >/proc/sysrq-trigger ;;
    *) return 1 ;;
    esac
    sleep 60
    say "the machine was not reset"
    return 1
}

# Loads ramoops with the options of docs/warm-reboot.md.
ramoops() {
    local kernel
    read -r kernel <"$shared/kexec"
    # shellcheck disable=SC2046
    modprobe -C /dev/null -d "${kernel%/boot/*}" ramoops $(cat "$shared/ramoops")
    mountpoint -q /sys/fs/pstore || mount -t pstore pstore /sys/fs/pstore
    dmesg | grep ramoops | sed 's/^/   /'
}

panic() {
    echo "the last words before the crash" >/dev/kmsg
    echo c >/proc/sysrq-trigger
    return 1
}

# Moves the records of the crash to the mounted file system, with the script of the unit.
collected() {
    local root kept
    root=$(cat "$shared/root")
    door "$1"
    "$root/scripts/systemd/collect-pstore" "$door/pstore" | sed 's/^/   /'
    kept=$(grep -l 'sysrq triggered crash' "$door"/pstore/*/dmesg-*)
    grep -h 'the last words before the crash' $kept | sed 's/^/   /'
    expect "records left" "" "$(find /sys/fs/pstore -name 'dmesg-*')"
    # The writers' comparison knows no other files.
    rm -r "$door/pstore"
    close "$1"
}
