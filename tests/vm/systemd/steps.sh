# shellcheck shell=bash
# Part of tests/vm/guest.sh: the steps of the boots with systemd. The text that
# they test is that of docs/mounting.md: run.sh has put it into $shared/shown.

# A file system for these boots, with the uuid that the fstab names.
format() {
    fstab
    "$programs/mkfs-pramfs" -f -L fast -U "${source#UUID=}" "$region" | sed 's/^/   /'
}

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
    device=/dev/dax0.0
    read -r source place fs_type options _ <"$shared/shown/fstab"
    by_uuid=/dev/disk/by-uuid/${source#UUID=}
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
    # As systemd and mount(8) name the region.
    server=$(pgrep -f "^/.*mount.* /dev/[^ ]* $place")
    expect "the server is in" "$1" "$(sed 's|.*/||' "/proc/$server/cgroup")"
}

# The device is there and systemd does not know it.
unmounted() {
    expect "$unit" inactive "$(state_of "$unit")"
    expect user.service inactive "$(state_of user.service)"
    expect "its device" inactive "$(state_of "$(systemd-escape --path --suffix=device "$by_uuid")")"
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
    expect "link by uuid" "$device" "$(realpath "$by_uuid")"
    expect "link by label" "$device" "$(realpath /dev/disk/by-label/fast)"
    udevadm info "$device" | grep 'ID_FS_\|SYSTEMD' | sed 's/^/   /'
    expect ID_FS_TYPE pramfs "$(udevadm info --query property --property ID_FS_TYPE --value "$device")"
    systemctl start "$unit"
    systemctl start user.service
}

# A service that needs the mount has found it.
used() { expect user.service active "$(state_of user.service)"; }

write() { printf 'written by %s' "$1" >"$place/$1"; }
reads() { expect "$place/$1" "written by $1" "$(cat "$place/$1")"; }

# The server of $place says how the mount before this one had ended.
ended_cleanly() {
    local recovery
    journalctl --sync
    recovery=$(journalctl -q --no-pager -o cat -t mount.pramfs | sed -n "s|.* on $place (.*; \(recovery: .*\)|\1|p" | tail -n 1)
    say "log: $recovery"
    [[ $recovery == *"the last unmount was clean"* ]]
}

# Mounted in a session, whose processes end all at once, the server among them, as
# they do at a shutdown.
by_hand() {
    systemctl stop "$unit"
    systemd-run -q --scope --unit=session mount -t "$fs_type" "pramfs:$source" "$place"
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

# The region in memory, restored and mounted by the second line of the fstab, without nofail.
memory() {
    local source place unit
    read -r source place _ < <(tail -n 1 "$shared/shown/fstab")
    unit=$(systemd-escape --path --suffix=mount "$place")
    expect "$unit" active "$(state_of "$unit")"
    expect "source of $source" /run/scratch/region "$(findmnt -no SOURCE "$place")"
    expect "what it had when it was saved" "saved before" "$(cat "$place/file")"
}

# The machine stops without a shutdown, as by its reset button.
reset() {
    sync
    echo 0 >"$shared/status.part" && mv "$shared/status.part" "$shared/status"
    echo b >/proc/sysrq-trigger
    sleep infinity
}

ended_by_reset() {
    local recovery
    journalctl --sync
    recovery=$(journalctl -q --no-pager -o cat -t mount.pramfs | grep "$place\|$device")
    sed 's/^/   log: /' <<<"$recovery"
    grep -q 'the last mount did not end with an unmount' <<<"$recovery"
}

# A region as a service (docs/mounting.md): its state, its death, its end, and wrong files.
service() {
    local region=/run/service/region where=/srv/service name=pramfs@srv-service.service file server state
    file=/etc/pramfs/mounts/srv-service.conf
    mkdir -p ${region%/*} $where ${file%/*}
    mkfs.pramfs -q -U 11111111-2222-3333-4444-555555555555 $region 16M
    printf '%s\n' /run/scratch/region $region >/etc/pramfs/regions
    sed 's/UUID=.*/UUID=11111111-2222-3333-4444-555555555555/' "$shared/shown/service" >$file
    sed 's/^/   /' $file
    systemctl start $name
    # Live when systemctl returns, for all processes.
    expect "source" $region "$(findmnt -no SOURCE $where)"
    printf 'of a service' >$where/file
    say "$(systemctl show -p StatusText $name)"
    [[ $(systemctl show -p StatusText --value $name) == "serves $region on $where" ]]
    server=$(systemctl show -p MainPID --value $name)
    expect "its OOM score" -999 "$(cat "/proc/$server/oom_score_adj")"
    kill -KILL "$server"
    until [[ $(systemctl show -p NRestarts --value $name) == 1 && $(state_of $name) == active ]]; do
        # Before the restart it is "auto-restart", or "dead" with a job.
        state=$(systemctl show -p SubState -p Job $name)
        if [[ $state$'\n' =~ SubState=(dead|failed)$'\n' && ! $state =~ Job=[1-9] ]]; then
            systemctl status --no-pager $name || true
            return 1
        fi
        sleep 0.1
    done
    expect "after its death" "of a service" "$(cat $where/file)"
    systemctl stop $name
    if findmnt $where; then
        return 1
    fi
    # A wrong option is named, and not tried again.
    sed -i 's/^OPTIONS=.*/OPTIONS=frobnicate/' $file
    ! systemctl start $name || return 1
    expect "with a wrong option" failed "$(systemctl is-failed $name)"
    journalctl --sync
    journalctl -q --no-pager -o cat -u $name | grep 'unknown mount option: frobnicate' | sed 's/^/   /'
    # A region that is nowhere.
    printf 'REGION=pramfs:LABEL=nowhere\n' >$file
    systemctl reset-failed $name
    ! systemctl start $name || return 1
    journalctl --sync
    journalctl -q --no-pager -o cat -u $name | grep 'LABEL=nowhere: no such region' | head -n 1 | sed 's/^/   /'
    systemctl stop $name
    # No file at all. (A unit that has ended may be unloaded, and then has no state to reset.)
    rm $file
    systemctl reset-failed $name 2>/dev/null || true
    ! systemctl start $name || return 1
    journalctl --sync
    journalctl -q --no-pager -o cat -u $name | tail -n 8 | sed 's/^/   /'
    systemctl stop $name
    systemctl reset-failed $name 2>/dev/null || true
}

# Asks for the metrics, as Prometheus does.
scrape() {
    local port=/dev/tcp/127.0.0.1/9842
    # Bash says that nobody listens yet.
    { exec 3<>$port; } 2>/dev/null || return 1
    printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n' >&3
    tr -d '\r' <&3
    exec 3>&-
}

# The unit of docs/status.md: started beside the mounts of the fstab, scraped, and ended.
metrics() {
    local name=pramfs-metrics.service said main speaks user
    systemctl start $name
    # Its process is there when systemctl returns, and listens soon.
    until said=$(scrape); do
        [[ $(state_of $name) == active ]] || { systemctl status --no-pager $name; return 1; }
        sleep 0.1
    done
    expect "answer" "HTTP/1.1 200 OK" "$(head -n 1 <<<"$said")"
    expect "mounts that answer" 2 "$(sed -n 's/^pramfs_mounts //p' <<<"$said")"
    expect "mounts that do not" 0 "$(sed -n 's/^pramfs_mounts_silent //p' <<<"$said")"
    grep '^pramfs_info{.*label="fast"' <<<"$said" | sed 's/^/   /'
    main=$(systemctl show -p MainPID --value $name)
    speaks=$(cat "/proc/$main/task/$main/children")
    user=$(awk '$1 == "Uid:" { print $3 }' "/proc/${speaks// /}/status")
    expect "user of the process that speaks HTTP" 65534 "$user"
    systemctl stop $name
    expect "$name" inactive "$(state_of $name)"
    # By the journal: a unit that has ended may be unloaded, and then has no result.
    journalctl --sync
    said=$(journalctl -q --no-pager -o cat -u $name)
    sed 's/^/   log: /' <<<"$said"
    grep -q "$name: Deactivated successfully" <<<"$said"
    if said=$(scrape); then
        say "it answers after its end"
        return 1
    fi
    # It has no part in the mounts.
    reads first
}
