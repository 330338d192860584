# shellcheck shell=bash
# Sourced by run.sh: a volume of GlusterFS with a brick on a mount of pramfs on each of three machines.

# The users' side: what `mount -t glusterfs` writes goes to this test's files.
network_of_gluster() {
    ! mountpoint -q /var/log/glusterfs || return 0
    mkdir -p "$work/user"
    mkdir -p /var/log/glusterfs && mount --bind "$work/user" /var/log/glusterfs
    local n
    for n in 1 2 3; do
        mkdir -p "$work/$n/var/lib/glusterd"
        # Scripts that glusterd calls, and groups of options; not what identifies this machine.
        tar -C /var/lib/glusterd -c hooks groups 2>/dev/null | tar -C "$work/$n/var/lib/glusterd" -x 2>/dev/null || true
    done
}

gluster() { on 1 gluster --mode=script "$@"; }

brick_of() { on "$1" cat "$(on "$1" sh -c "ls /run/gluster/vols/$2/*.pid")"; }

glusterd_up() { on "$1" glusterd; }

connected() { [[ $(gluster pool list | grep -cw Connected) == 3 ]]; }
bricks_online() { [[ $(gluster volume status "$1" | grep -cE '^Brick .* Y +[0-9]+ *$') == 3 ]]; }
healers_online() { [[ $(gluster volume status "$1" | grep -cE '^Self-heal Daemon .* Y +[0-9]+ *$') == 3 ]]; }
# All three bricks answer, and no entry waits.
healed() {
    local info
    # `info` looks at each entry, with locks.
    sleep 2
    info=$(gluster volume heal "$1" info 2>/dev/null) || return 1
    [[ $(grep -c '^Status: Connected' <<<"$info") == 3 && $(grep -c '^Number of entries: 0$' <<<"$info") == 3 ]]
}
heal_entries() {
    until_true 60 bricks_online "$1" || { gluster volume status "$1"; fail "not all bricks of $1 are online"; }
    until_true 60 healers_online "$1" || fail "not all self-heal daemons of $1 are online"
    local rounds
    for ((rounds = 0; rounds < 20; rounds++)); do
        # The daemons reconnect to a brick within seconds.
        until_true 60 gluster volume heal "$1" >/dev/null 2>&1 || fail "no heal of $1 starts"
        until_true 30 healed "$1" && break
    done
    ((rounds < 20)) || { gluster volume heal "$1" info; fail "$1 is not healed"; }
}
heal() {
    heal_entries "$1"
    [[ $1 == replicated ]] || until_true 120 healed_fully "$1" || { attributes "$1"; fail "a full heal leaves other versions"; }
}
# Dispersed volumes need a full heal: see test_deadmount. Nothing says when it is complete.
healed_fully() {
    gluster volume heal "$1" full >/dev/null 2>&1 || return 1
    sleep 5
    same_versions "$1" && healed "$1"
}
# Each directory and file has the same version on the three bricks.
same_versions() {
    local n
    for n in 1 2 3; do
        # shellcheck disable=SC2016
        on "$n" sh -c 'cd /srv/brick/"$1" && find . -path ./.glusterfs -prune -o -path "./.glusterfs-*" -prune -o \( -type d -o -type f \) \
            -exec getfattr --absolute-names -d -m trusted.ec.version -e hex {} + | grep . | paste - - | grep -v "=0x0*\$" | sort' - "$1" >"$work/versions.$n"
    done
    cmp -s "$work/versions."{1,2} && cmp -s "$work/versions."{1,3}
}
all_connected() { [[ $(cat "$1/.meta/graphs/active/$2-client-"?/private | grep -c '^connected = 1$') == 3 ]]; }

mount_volume() {
    mkdir -p "$work/$1"
    mount -t glusterfs "10.90.0.1:/$1" "$work/$1" || { tail -20 "$work/user/"*.log; fail "mount of the volume $1"; }
}
# With caches of its own empty, reading asks the bricks.
remount_volume() {
    umount "$work/$1"
    mount_volume "$1"
}

# What the bricks say of each name, for those who look for the reason of a failure.
attributes() {
    local n
    for n in "${!machine[@]}"; do
        # shellcheck disable=SC2016
        on "$n" sh -c 'cd /srv/brick/"$1" && echo "--- brick of $(hostname)" && find . -path ./.glusterfs -prune -o -printf "%i %y %p\n" &&
            getfattr -R -h -d -m . -e hex --absolute-names . && ls .glusterfs/indices/*' - "$1" 2>&1 || true
    done >"$work/attributes.log"
}

# Each file as the bricks but N have it: reads from all other bricks alone.
compare_without() {
    local volume=$1 without=$2 seed=$3 steps=$4 pid
    pid=$(brick_of "$without" "$volume")
    on "$without" kill -KILL "$pid"
    remount_volume "$volume"
    # Not the counts of links: a heal leaves links of its own in the bricks, and users see them.
    tree --brick compare "$work/$volume" "$seed" "$steps" ||
        { attributes "$volume"; fail "$volume without brick $without is not what was written"; }
    gluster volume start "$volume" force >/dev/null
    until_true 60 bricks_online "$volume" || fail "brick $without does not start again"
}

# Damages the region of machine N, which is switched off, and repairs it.
damage_region() {
    local n=$1 volume=$2 status=0
    say "  damaged while machine $n is off:"
    python3 "$here/damage.py" "$bin/pramfs" "$work/$n/region/region" "/$volume" 5 | sed 's/^/    /' || fail "damage.py"
    "$bin/fsck-pramfs" -n "$work/$n/region/region" >"$work/check" 2>&1 || status=$?
    ((status == 4)) || fail "fsck.pramfs -n of a damaged region ends with status $status"
    status=0
    "$bin/fsck-pramfs" -y "$work/$n/region/region" >"$work/check" 2>&1 || status=$?
    cut -c 1-150 "$work/check" | sed -n '1,12s/^/    fsck| /p'
    # 1: repaired; 4: data that no longer match their checksums are left.
    (((status & ~5) == 0)) || fail "fsck.pramfs -y ends with status $status"
}

# Makes brick N of a volume anew: what comes after removes what is left of the old one.
reset_brick() {
    local n=$1 volume=$2
    shift 2
    gluster volume reset-brick "$volume" "10.90.0.$n:/srv/brick/$volume" start >/dev/null
    "$@"
    gluster volume reset-brick "$volume" "10.90.0.$n:/srv/brick/$volume"{,} commit force >/dev/null
}
made_anew() {
    on "$1" umount /srv/brick
    until_true 10 make_region "$1" || fail "mkfs.pramfs: $(cat "$work/mkfs.log")"
    serve_region "$1"
}

gluster_volume() {
    local volume=$1 seed=$2 kind=("${@:3}") n
    say "GlusterFS, volume $volume: ${kind[*]}"
    gluster volume create "$volume" "${kind[@]}" 10.90.0.{1,2,3}:/srv/brick/"$volume" >/dev/null
    # A machine without power sends no reset: users wait for the ping, 42 s by default.
    gluster volume set "$volume" network.ping-timeout 5 >/dev/null
    # How long a brick goes on after its mount is dead, 30 s by default.
    gluster volume set "$volume" storage.health-check-interval 5 >/dev/null
    gluster volume start "$volume" >/dev/null
    mount_volume "$volume"
    until_true 60 bricks_online "$volume" || fail "not all bricks of $volume are online"
    until_true 60 all_connected "$work/$volume" "$volume" || fail "the mount of $volume does not reach all bricks"

    tree write "$work/$volume" "$seed" 0 "$part" >"$work/steps" || fail "a writer of $volume"
    tree compare "$work/$volume" "$seed" "$part" || fail "$volume is not what was written"
    ! tree compare "$work/$volume" "$seed" $((part - 1)) >"$work/differences" || fail "a step less is not found"
    passed "$volume: $part steps with all bricks"

    start_writer "$work/$volume" "$seed" "$part" $((2 * part))
    wait_for_steps $((part / 4))
    say "  after $(wc -l <"$work/steps") steps: the file system below brick 2 ends"
    kill_server 2
    writer_ends
    # Until the brick has ended, the answers of a dead mount may reach users.
    tree --brick compare "$work/$volume" "$seed" $((2 * part)) >"$work/differences" ||
        { say "  while the brick is on a dead mount, users see:"; sed -n '1,4s/^/    /p' "$work/differences"; }
    # By itself, or as the unit of docs/replication.md has it.
    if [[ $volume == replicated ]]; then
        until_true 60 brick_down 2 "$volume" || fail "the brick on a dead mount goes on"
    else
        on 2 sh -c "$(line_of_unit ExecStopPost "$volume")" || fail "ExecStopPost= of docs/replication.md"
    fi
    tree --brick compare "$work/$volume" "$seed" $((2 * part)) || fail "$volume is not what was written"
    on 2 umount -l /srv/brick
    serve_region 2
    # If this passed, the comparisons of bricks after the heal would mean nothing.
    ! compare_brick 2 "$volume" "$seed" $((2 * part)) >"$work/differences" || fail "brick 2 has what was written without it"
    say "  before the heal: $(head -n 1 "$work/differences")"
    on 2 sh -c "$(line_of_unit ExecStartPost "$volume")" >/dev/null || fail "ExecStartPost= of docs/replication.md"
    heal "$volume"
    compare_all "$volume" "$seed" $((2 * part))
    passed "$volume: the file system below a brick ended while writing, healed"

    start_writer "$work/$volume" "$seed" $((2 * part)) $((3 * part))
    wait_for_steps $((part / 4))
    say "  after $(wc -l <"$work/steps") steps: the brick's server of machine 1 is killed"
    on 1 kill -KILL "$(brick_of 1 "$volume")"
    wait_for_steps $((part / 2))
    gluster volume start "$volume" force >/dev/null
    writer_ends
    heal "$volume"
    compare_all "$volume" "$seed" $((3 * part))
    passed "$volume: a brick's server killed and started again while writing, healed"

    start_writer "$work/$volume" "$seed" $((3 * part)) $((4 * part))
    wait_for_steps $((part / 4))
    say "  after $(wc -l <"$work/steps") steps: machine 3 loses its power"
    switch_off 3
    writer_ends
    [[ $bricks != pramfs ]] || damage_region 3 "$volume"
    switch_on 3
    serve_region 3
    ! compare_brick 3 "$volume" "$seed" $((4 * part)) >"$work/differences" || fail "brick 3 has what was written without it"
    say "  before the heal: $(head -n 1 "$work/differences")"
    glusterd_up 3
    until_true 60 connected || fail "machine 3 does not join again"
    reset_brick 3 "$volume" on 3 rm -rf "/srv/brick/$volume"
    heal "$volume"
    compare_all "$volume" "$seed" $((4 * part))
    passed "$volume: a machine without power, its region damaged and repaired, its brick reset and healed"

    say "  the region of machine 2 is lost, and made anew"
    reset_brick 2 "$volume" made_anew 2
    heal "$volume"
    compare_all "$volume" "$seed" $((4 * part))
    passed "$volume: a region made anew, healed"

    if [[ $bricks != pramfs ]]; then
        say "  bricks on $bricks: nothing is damaged, and there is no takeover"
    elif takeover_works; then
        on 2 kill -KILL "$(brick_of 2 "$volume")"
        on 2 umount /srv/brick
        serve_region 2 -o takeover=on
        gluster volume start "$volume" force >/dev/null
        heal "$volume"
        start_writer "$work/$volume" "$seed" $((4 * part)) $((5 * part))
        wait_for_steps $((part / 4))
        say "  after $(wc -l <"$work/steps") steps: the pramfs server of machine 2 is killed, with takeover=on"
        on 2 kill -KILL "$(on 2 pgrep -f serve-for-supervisor | head -n 1)"
        writer_ends
        until_true 300 healed "$volume" || fail "something waits for a heal after a takeover"
        compare_all "$volume" "$seed" $((5 * part))
        passed "$volume: takeover under a brick, nothing to heal"
    else
        skipped "Linux older than 6.9: no takeover under a brick"
    fi

    for n in 2 3; do on "$n" kill -KILL "$(brick_of "$n" "$volume")"; done
    until_true 30 refuses "$work/$volume/refused" || fail "one brick of three takes writes"
    gluster volume start "$volume" force >/dev/null
    heal "$volume"
    until_true 30 rm -f "$work/$volume/refused" || fail "no writes with three bricks"
    passed "$volume: one brick alone takes no writes"

    umount "$work/$volume"
    gluster volume stop "$volume" >/dev/null
    gluster volume delete "$volume" >/dev/null
    # Without takeover again.
    until_true 20 on 2 umount /srv/brick || fail "something uses the mount of machine 2"
    serve_region 2
}

# The file may be there already: the users notice the end of a brick a moment later.
refuses() { ! touch "$1" 2>/dev/null; }

# The command of a line of the unit in docs/replication.md, for this volume.
line_of_unit() {
    local line
    line=$(sed -n "s/^$1=-//p" docs/replication.md)
    [[ $(wc -l <<<"$line") == 1 && -n $line ]] || fail "docs/replication.md has no line $1=-..., or several"
    printf '%s' "${line// data/ $2}"
}
brick_down() { gluster volume status "$2" "10.90.0.$1:/srv/brick/$2" | grep -qE '^Brick .* N +N/A *$'; }
# Of a dispersed volume: all but what files hold, since a brick has fragments of it.
compare_brick() {
    local options=(--brick)
    [[ $2 == replicated ]] || options+=(--no-contents)
    on "$1" python3 "$here/tree.py" "${options[@]}" compare "/srv/brick/$2" "$3" "$4"
}

# Each brick of replicas has the tree. Of a dispersed volume, any two bricks have it: so it is read
# without each brick in turn.
compare_all() {
    local volume=$1 seed=$2 steps=$3 n
    for n in 1 2 3; do
        compare_brick "$n" "$volume" "$seed" "$steps" || { attributes "$volume"; fail "brick $n is not what was written"; }
    done
    [[ $volume == replicated ]] || for n in 1 2 3; do compare_without "$volume" "$n" "$seed" "$steps"; done
    remount_volume "$volume"
    # Not the counts of links: a heal leaves links of its own in the bricks, and users see them.
    tree --brick compare "$work/$volume" "$seed" "$steps" || fail "$volume is not what was written"
}

gluster_up() {
    local n
    if ! command -v glusterd >/dev/null || ! command -v mount.glusterfs >/dev/null; then
        skipped "GlusterFS is missing (scripts/deps.sh --replication installs it): no bricks"
        return 1
    fi
    say "$(glusterd --version | head -n 1), $(uname -sr), bricks on $bricks"
    network_of_gluster
    for n in 1 2 3; do
        make_region "$n" || fail "mkfs of $bricks: $(cat "$work/mkfs.log")"
        switch_on "$n"
        serve_region "$n"
        glusterd_up "$n"
    done
    for n in 2 3; do until_true 30 gluster peer probe "10.90.0.$n" >/dev/null || fail "machine $n does not join"; done
    until_true 60 connected || fail "the machines do not join"
}
# The next part begins with other machines.
gluster_down() {
    for n in 1 2 3; do
        switch_off "$n"
        rm -rf "${work:?}/$n/var"
    done
}

test_replicated() {
    gluster_up || return 0
    gluster_volume replicated 1 replica 3
    gluster_down
}
test_dispersed() {
    gluster_up || return 0
    gluster_volume dispersed 2 disperse 3 redundancy 1
    gluster_down
}

# A brick whose file system is dead answers with errors, and stays connected. In a dispersed volume, the
# version of a directory is written up to a second after the change that it counts. If the file system of
# a brick ends in between, the other two bricks have a version that this brick lacks, and nothing tells
# GlusterFS to heal it: `heal info` has no entries, and the directory is EIO without one of the other two.
# Counts such directories before and after a full heal; the same if the process of the brick ends, and
# with the setting that docs/replication.md has.
test_deadmount() {
    gluster_up || return 0
    directories server kill_server on
    directories process kill_brick on
    directories setting kill_server off
    ((different == 0)) || fail "with optimistic-change-log off, $different directories and files are not healed"
    gluster_down
}
kill_brick() { on "$1" kill -KILL "$(brick_of "$1" "$volume")"; }
directories() {
    local volume=$1 event=$2 n files
    gluster volume create "$volume" disperse 3 redundancy 1 10.90.0.{1,2,3}:/srv/brick/"$volume" >/dev/null
    gluster volume set "$volume" disperse.optimistic-change-log "$3" >/dev/null
    # 1 s by default, which a busy machine may miss.
    gluster volume set "$volume" disperse.other-eager-lock-timeout 5 >/dev/null
    # Nothing else ends the brick before.
    gluster volume set "$volume" storage.health-check-interval 0 >/dev/null
    gluster volume start "$volume" >/dev/null
    mount_volume "$volume"
    until_true 60 bricks_online "$volume" || fail "not all bricks of $volume are online"
    until_true 60 all_connected "$work/$volume" "$volume" || fail "the mount of $volume does not reach all bricks"
    mkdir "$work/$volume/"{1..20}
    # Until all versions of before are written.
    sleep 8
    for n in {1..20}; do echo data >"$work/$volume/$n/name"; done
    $event 2
    sleep 8
    if [[ $event == kill_server ]]; then
        kill_brick 2
        on 2 umount -l /srv/brick
        serve_region 2
    fi
    gluster volume start "$volume" force >/dev/null
    heal_entries "$volume"
    same_versions "$volume" || true
    different=$(comm -23 "$work/versions."{1,2} | wc -l)
    files=$(comm -23 "$work/versions."{1,2} | grep -c /name || true)
    local what="$event, optimistic-change-log $3: of 20 directories, $((different - files)) are not healed, and of 20 files, $files"
    until_true 120 healed_fully "$volume" || { attributes "$volume"; fail "a full heal leaves other versions"; }
    # If it ended too late, it shows nothing.
    [[ $event$3 != kill_serveron || $different != 0 ]] || say "  no directory had a version that was to be written"
    for n in 1 2 3; do
        on "$n" sh -c "ls /srv/brick/$volume/*/name | wc -l" | grep -qx 20 || fail "brick $n lacks names"
    done
    passed "deadmount, $what; after a full heal, all are"
    umount "$work/$volume"
    gluster volume stop "$volume" >/dev/null
    gluster volume delete "$volume" >/dev/null
}
