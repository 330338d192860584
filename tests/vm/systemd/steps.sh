# shellcheck shell=bash
# Part of tests/vm/guest.sh: the steps of the boots with systemd. The text that
# they test is that of docs/mounting.md: run.sh has put it into $shared/shown.

# A file system for these boots.
format() { "$programs/mkfs-pramfs" -f "$region" | sed 's/^/   /'; }

# The machine has been switched off: the file system was unmounted before that,
# and everything that these boots have written is there.
remains() {
    local report name
    report=$("$programs/fsck-pramfs" -n "$region")
    sed 's/^/   /' <<<"$report"
    if grep -q 'not clean' <<<"$report"; then
        return 1
    fi
    expect clean true "$("$programs/pramfs" info --json "$region" | value clean)"
    for name; do
        expect "/$name" "written by $name" "$("$programs/pramfs" cat "$region" "/$name")"
    done
}

# From here on: in a boot with systemd.
fstab() {
    read -r device place fs_type options _ <"$shared/shown/fstab"
    unit=$(systemd-escape --path --suffix=mount "$place")
}
state_of() { systemctl is-active "$1" || true; }

# Everything that the boot was to do has been done, or has failed.
booted() {
    local state
    fstab
    state=$(systemctl is-system-running --wait) || true
    say "the system is $state; failed: $(systemctl list-units --failed --plain --no-legend | awk '{ printf "%s ", $1 }')"
    expect "first process" systemd "$(cat /proc/1/comm)"
    expect "in a container" none "$(systemd-detect-virt --container || true)"
    expect steps.target active "$(state_of steps.target)"
    udevadm settle
    expect "$device" "character special file" "$(stat -c %F "$device")"
}

# As the fstab says, by the mount unit that systemd has made of it.
mounted() {
    local option
    expect "$unit" active "$(state_of "$unit")"
    expect source "$device" "$(findmnt -no SOURCE "$place")"
    expect type "$fs_type" "$(findmnt -no FSTYPE "$place")"
    say "options: $(findmnt -no OPTIONS "$place")"
    for option in ${options//,/ }; do
        [[ $option != nofail ]] || continue # systemd's own
        [[ ,$(findmnt -no OPTIONS "$place"), == *,"$option",* ]] || {
            say "$option is not among them"
            return 1
        }
    done
    server_in "$unit"
}

# Whose processes systemd takes the server for one of.
server_in() {
    local server
    server=$(pgrep -f "^/.*mount.* $device $place")
    expect "the server is in" "$1" "$(sed 's|.*/||' "/proc/$server/cgroup")"
}

# The device is there and systemd does not know it.
unmounted() {
    expect "$unit" inactive "$(state_of "$unit")"
    expect user.service inactive "$(state_of user.service)"
    expect "its device" inactive "$(state_of "$(systemd-escape --path --suffix=device "$device")")"
    if systemctl start "$unit"; then
        say "systemd has mounted it without the rule"
        return 1
    fi
    if findmnt "$place"; then
        return 1
    fi
}

# As docs/mounting.md says it is done without a boot.
rule() {
    install -D -m 0644 "$shared/shown/rule" "$(cat "$shared/shown/rule_file")"
    say "$(cat "$shared/shown/reload")"
    bash -ec "$(cat "$shared/shown/reload")"
    udevadm settle
    systemctl start "$unit"
    systemctl start user.service
}

# A service that needs the mount has found it.
used() { expect user.service active "$(state_of user.service)"; }

write() { printf 'written by %s' "$1" >"$place/$1"; }
reads() { expect "$place/$1" "written by $1" "$(cat "$place/$1")"; }

# The server says how the mount before this one had ended.
ended_cleanly() {
    local recovery
    journalctl --sync
    recovery=$(journalctl -q --no-pager -o cat -t mount.pramfs | sed -n 's/.*; \(recovery: .*\)/\1/p' | tail -n 1)
    say "log: $recovery"
    [[ $recovery == *"the last unmount was clean"* ]]
}

# Mounted in a session, whose processes end all at once, the server among them, as
# they do at a shutdown.
by_hand() {
    systemctl stop "$unit"
    systemd-run -q --scope --unit=session mount "$place"
    server_in session.scope
    systemctl stop session.scope
    while findmnt "$place"; do sleep 0.1; done
    systemctl start "$unit"
    ended_cleanly
}

# At the end a session has it in use that does not end when it is told to: systemd
# cannot unmount it, and tells all processes to end, the server with them.
busy() {
    server_in "$unit"
    systemd-run -q --scope --unit=stubborn -p TimeoutStopSec=1s bash -c "
        trap '' TERM HUP
        cd '$place' && exec sleep infinity >open </dev/null 2>/dev/null" &
    until [[ -e $place/open ]]; do sleep 0.1; done
}

# A region in memory, by its unit (docs/save.md).
kept_region() {
    local memory=/run/kept/region
    mkdir -p /etc/pramfs
    printf '%s\n' REGION=$memory FILE=/var/lib/pramfs/kept.saved SIZE=16M >/etc/pramfs/kept.conf
    systemctl start pramfs-keep@kept.service
    pramfs put $memory /proc/version /version
    systemctl stop pramfs-keep@kept.service
    rm $memory
    systemctl start pramfs-keep@kept.service
    expect "the file in it" "$(cat /proc/version)" "$(pramfs cat $memory /version)"
    systemctl stop pramfs-keep@kept.service
}

# The installed units (docs/warm-reboot.md), with a directory in the place of pstore.
units() {
    local collect make kept
    collect=pramfs-pstore@$(systemd-escape --path "$place").service
    mkdir -p /run/pstore "/run/systemd/system/$collect.d"
    printf '%s\n' '[Unit]' ConditionDirectoryNotEmpty= ConditionDirectoryNotEmpty=/run/pstore \
        '[Service]' Environment=PSTORE=/run/pstore >"/run/systemd/system/$collect.d/place.conf"
    systemctl daemon-reload
    # Nothing to collect.
    systemctl start "$collect"
    expect "$place/pstore" "" "$(find "$place" -name pstore)"
    printf 'panic' >/run/pstore/dmesg-ramoops-0
    systemctl restart "$collect"
    expect "$collect" active "$(state_of "$collect")"
    kept=$(find "$place/pstore" -name dmesg-ramoops-0)
    expect "its record" panic "$(cat "$kept")"
    expect "records left" "" "$(ls /run/pstore)"
    # A device with a file system stays as it is.
    kept_region
    make=pramfs-mkfs@$(systemd-escape --path "$device").service
    systemctl start "$make"
    journalctl --sync
    journalctl -q --no-pager -o cat -u "$make" | sed 's/^/   /'
    expect "$make" active "$(state_of "$make")"
    reads first
}
