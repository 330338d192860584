# shellcheck shell=bash
# Part of tests/vm/run.sh: power cuts under databases that rely on atomic writes: SQLite without a
# journal, in transactions of one page, and PostgreSQL without full pages in its log. With
# data=atomic no page may be torn. With data=inplace the same load must show torn pages, or it
# would prove nothing.
#
# The medium is /dev/dax0.0 on an NVDIMM without labels: part of a file of this machine, with every
# store of the guest in it at once. So each cut begins with a copy of the same image, and its
# outcome is checked here, on a copy of the file, without another boot.
#
# A cut at a random moment seldom hits a write: it lasts for microseconds. Every second cut is
# aimed: this machine watches the pages in the file, and cuts when one of them begins to change
# (databases.py cut).
#
# Most of the time of a cut is the boot. So ten cuts share one: the first nine stop QEMU, all of its
# threads, and let it go on after the check. Nothing of the machine outlives a cut but the file, and
# what is in it at such a moment is what SIGKILL would leave. The last one is a SIGKILL.
#
# Variables of the environment: PRAMFS_VM_CUTS_PER_BOOT, and PRAMFS_VM_DATABASES and PRAMFS_VM_DATA,
# if not both databases or modes are to be tested.

databases_dir='' databases_server=''
databases_mib=256
databases_per_boot=${PRAMFS_VM_CUTS_PER_BOOT:-10}

# Called at the end of run.sh, however it ends.
databases_end() {
    [[ -n $databases_dir ]] || return 0
    if [[ -n $databases_server ]]; then
        kill -QUIT "$databases_server" 2>/dev/null || true
        wait "$databases_server" 2>/dev/null || true
    fi
    ! mountpoint -q "$databases_dir/mnt" || umount -l "$databases_dir/mnt" || true
    rm -rf "$databases_dir"
}

databases() {
    if ((EUID != 0)) || [[ ! -e /dev/fuse ]]; then
        skip "not root, or no /dev/fuse: the databases cannot be checked"
        return
    fi
    # In memory, where a check takes no time for syncs. The user postgres must reach it.
    databases_dir=$(mktemp -d -p /dev/shm pramfs-vm-XXXXXX)
    chmod 0755 "$databases_dir"
    mkdir "$databases_dir/mnt"
    rm -f "$work/nvdimm"
    truncate -s ${databases_mib}M "$work/nvdimm"
    database_boot database_medium
    wait_for "the end of the steps" test -e "$work/shared/status"
    wait_for "the machine to switch itself off" has_ended
    wait "$qemu" || true
    qemu=
    show
    [[ $(cat "$work/shared/status") == 0 ]] || fail "a step failed"
    databases_offset=$(cat "$work/shared/offset")
    cp --sparse=always "$work/nvdimm" "$databases_dir/empty"
    local database
    for database in ${PRAMFS_VM_DATABASES:-sqlite postgres}; do
        if "database_has_$database"; then
            database_cuts "$database"
        else
            skip "no $database is installed"
        fi
    done
    databases_end
    databases_dir=
}

# A machine with the NVDIMM, which runs until it is killed, or switches itself off.
database_boot() {
    printf '%s\n' "$@" >"$work/shared/steps"
    rm -f "$work/shared/status"
    : >"$work/console"
    rm -f "$work"/monitor.{in,out}
    mkfifo "$work"/monitor.{in,out}
    boots=$((boots + 1))
    # As in `boot`: the two processors take turns in one thread. The kernel would panic if this
    # machine is so busy that the timer does not tick while it is tested.
    qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 2 \
        -machine q35,nvdimm=on -m 1G,slots=2,maxmem=4G \
        -object "memory-backend-file,id=nvdimm,share=on,mem-path=$work/nvdimm,size=${databases_mib}M" \
        -device nvdimm,memdev=nvdimm,id=nvdimm0 \
        -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check" \
        -nodefaults -display none -no-reboot -serial "file:$work/console" \
        -chardev "pipe,id=monitor,path=$work/monitor" -mon chardev=monitor,mode=readline -D /dev/null \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$work/shared,mount_tag=shared,security_model=none" \
        </dev/null &
    qemu=$!
    # Both ends of the pipes stay open, so that the monitor sees no end of its input.
    exec 7<>"$work/monitor.in" 8<>"$work/monitor.out"
}

# Makes the machine a hundred times slower, or as fast again: QEMU translates single instructions, and
# writes a line to /dev/null for each. A page is then copied in milliseconds, so that a signal, which
# takes some ten microseconds, comes in time. The command has had another name since QEMU 8.1; the
# one that is not known changes nothing. Meanwhile other programs of a busy machine must not take
# QEMU's turn.
database_slow() {
    local nice=0 items=none
    [[ $1 == off ]] || nice=-15 items=exec,nochain
    printf '%s\n' "singlestep $1" "one-insn-per-tb $1" "log $items" >&7
    # shellcheck disable=SC2046
    renice -n $nice -p $(ls "/proc/$qemu/task") >/dev/null
}

# The cuts of a database in both modes, as many in each.
database_cuts() {
    local database=$1 mode cut signal torn aimed replayed result changed
    database_image "$database"
    database_planted "$database"
    for mode in ${PRAMFS_VM_DATA:-atomic inplace}; do
        torn=0 aimed=0 replayed=0
        for ((cut = 0; cut < cuts; cut++)); do
            left "power cut $((cut + 1)) of $database with data=$mode" || { database_kill && return 0; }
            [[ -n $qemu ]] || database_begin "$database" "$mode"
            signal=SIGSTOP
            ((cut + 1 < cuts && (cut + 1) % databases_per_boot)) || signal=SIGKILL
            database_cut $((cut % 2)) $signal
            database_mount "$work/nvdimm" "$databases_offset" "$mode"
            database_check "$database"
            [[ $signal == SIGKILL ]] || { database_slow off && kill -CONT "$qemu"; }
            say "$database, data=$mode, cut $((cut + 1)), $(wc -l <"$work/shared/record/log") in the log: $result${changed:+, by a replay}"
            [[ -z $changed ]] || replayed=$((replayed + 1))
            [[ $result == torn* ]] || continue
            torn=$((torn + 1)) aimed=$((aimed + cut % 2))
            [[ $mode == inplace ]] || fail "$database: a torn page with data=atomic"
        done
        say "$database, data=$mode: $torn torn pages in $cuts power cuts ($aimed of them aimed)"
        [[ $mode != atomic ]] || say "after $replayed of them, the replay has completed a page"
        # In a few cuts there need not be one. In place, nothing but a torn page shows it.
        local shown=$torn
        [[ $mode == inplace ]] || shown=$((torn + replayed))
        ((cuts < 20 || shown >= 5)) || fail "$database: too few cuts in the middle of a write to show anything"
    done
}

# The image that each cut begins with, and where in it the pages are whose change an aimed cut
# waits for.
database_image() {
    rm -f "$databases_dir"/{copy,extents}
    "$target/debug/mkfs-pramfs" -q "$databases_dir/copy" $((databases_mib * 1024 * 1024 - databases_offset))
    database_mount "$databases_dir/copy" 0 inplace
    "database_make_$1"
    database_unmount
    database_places "$1"
    cp --sparse=always "$databases_dir/empty" "$databases_dir/image"
    dd if="$databases_dir/copy" of="$databases_dir/image" bs=1M seek="$databases_offset" oflag=seek_bytes \
        conv=notrunc,sparse status=none
}

# A page torn by hand must be found, or the check could not fail.
database_planted() {
    local result
    "database_plant_$1"
    : >"$work/shared/record/log"
    database_mount "$databases_dir/copy" 0 inplace
    database_check "$1"
    say "$1, a page torn by hand: $result"
    [[ $result == torn* ]] || fail "the check does not find a torn page"
}

# Sets `result` to what the database says of the mounted copy, "whole ..." or "torn ...", and
# unmounts it. Not in a subshell: databases_end must know of the server.
database_check() {
    local status=0
    "database_check_$1" "$work/shared/record/log" >"$databases_dir/result" || status=1
    result=$(cat "$databases_dir/result")
    ((status == 0)) || { cat "$databases_dir/said" && fail "$1: $result"; }
    database_unmount
}

# Mounts a copy of a region that begins at an offset of a file. The copy need not be durable.
# Sets `changed` if the replay has changed the watched file.
database_mount() {
    [[ $1 -ef $databases_dir/copy ]] || {
        rm -f "$databases_dir/copy"
        dd if="$1" of="$databases_dir/copy" bs=1M skip="$2" iflag=skip_bytes conv=sparse status=none
        truncate -s $((databases_mib * 1024 * 1024 - databases_offset)) "$databases_dir/copy"
    }
    "$target/debug/fsck-pramfs" -n "$databases_dir/copy" >"$databases_dir/said" 2>&1 ||
        { cat "$databases_dir/said" && fail "fsck.pramfs finds errors"; }
    local before
    before=$(database_digest)
    "$target/debug/mount-pramfs" "$databases_dir/copy" "$databases_dir/mnt" -o "data=$3,durability=process" >"$databases_dir/said" 2>&1 ||
        { cat "$databases_dir/said" && fail "the region cannot be mounted"; }
    changed=''
    [[ $(database_digest) == "$before" ]] || changed=1
}

# Of the blocks of the watched file.
database_digest() {
    [[ ! -e $databases_dir/extents ]] || python3 tests/vm/databases.py digest "$databases_dir/copy" <"$databases_dir/extents"
}

database_unmount() {
    umount "$databases_dir/mnt" || fail "the copy is in use"
    # umount returns before the server has released the region.
    flock -w 120 "$databases_dir/copy" true || fail "the server of the copy does not end"
}

# Boots a machine with the load.
database_begin() {
    cp --sparse=always "$databases_dir/image" "$work/nvdimm"
    rm -f "$work"/shared/record/*
    database_boot "database_live $1 $2"
    wait_for "the first transactions" database_works
}

# A cut up to three seconds later, and if it is aimed, in the middle of the next write.
database_cut() {
    local aimed=$1 signal=$2 places=/dev/null
    sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 3 }')"
    ((aimed == 0)) || { database_slow on && sleep 0.3; }
    ((aimed == 0)) || places=$databases_dir/places
    # Bash says there that QEMU was killed.
    {
        nice -n -20 python3 tests/vm/databases.py cut "$qemu" "$signal" "$work/nvdimm" \
            <"$places" 2>"$databases_dir/said" || { show && cat "$databases_dir/said" && fail "no cut"; }
    } 2>/dev/null
    [[ $signal != SIGKILL ]] || database_kill
    cuts_done=$((cuts_done + 1))
    # A load that ended before the cut would show nothing.
    [[ ! -e $work/shared/status ]] || { show && fail "the load ended before the cut"; }
}

database_kill() {
    [[ -n $qemu ]] || return 0
    kill -KILL "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    qemu=
}

database_works() { [[ $(wc -l 2>/dev/null <"$work/shared/record/log") -ge 10 ]]; }

# Where in the NVDIMM the watched word of each page of a file is.
database_places() {
    local path size first
    { read -r path size first; } < <("database_watched_$1")
    "$target/debug/pramfs" extents --json "$databases_dir/copy" "$path" >"$databases_dir/extents"
    python3 tests/vm/databases.py places "$databases_offset" "$size" "$first" <"$databases_dir/extents" >"$databases_dir/places"
    [[ $(wc -l <"$databases_dir/places") -gt 4 ]] || fail "no pages to watch"
}

# SQLite.

database_has_sqlite() { python3 -c 'import sqlite3' 2>/dev/null; }
database_make_sqlite() { python3 tests/vm/databases.py make "$databases_dir/mnt/database"; }
# The first word of a body, in a page of one row.
database_watched_sqlite() { echo /database 65536 176; }
database_check_sqlite() { python3 tests/vm/databases.py check "$databases_dir/mnt/database" "$1" 2>"$databases_dir/said"; }
database_plant_sqlite() {
    database_mount "$databases_dir/image" "$databases_offset" inplace
    python3 tests/vm/databases.py plant "$databases_dir/mnt/database"
    database_unmount
}

# PostgreSQL.

database_has_postgres() {
    local newest
    newest=$(find /usr/lib/postgresql -path '*/bin/postgres' 2>/dev/null | sort -V | tail -n 1)
    [[ -n $newest ]] && command -v psql setpriv >/dev/null || return 1
    postgres_bin=${newest%/postgres}
    # The fewest buffers that there can be: a page is then written for each that is changed.
    # No autovacuum: it changes more than the transactions say.
    printf '%s\n' "$newest" -c listen_addresses= -c shared_buffers=128kB -c full_page_writes=off \
        -c autovacuum=off -c dynamic_shared_memory_type=mmap -c max_wal_size=32MB -c min_wal_size=2MB \
        >"$work/shared/postgres"
}

exec_as_postgres() {
    cd "$databases_dir"
    exec setpriv --reuid postgres --regid postgres --init-groups \
        env LC_ALL=C PATH="$postgres_bin:/usr/bin:/bin" PGDATA="$databases_dir/mnt/data" \
        PGHOST="$databases_dir/socket" PGDATABASE=postgres "$@"
}
as_postgres() { (exec_as_postgres "$@"); }

# Starts a server, which recovers. 1 says that it did not.
postgres_start() {
    local server
    mapfile -t server <"$work/shared/postgres"
    exec_as_postgres "${server[@]}" -c fsync=off -k "$databases_dir/socket" </dev/null >"$databases_dir/log" 2>&1 &
    databases_server=$!
    until as_postgres psql -qAtc 'select 1' >/dev/null 2>&1; do
        kill -0 "$databases_server" 2>/dev/null || return 1
        sleep 0.1
    done
}

postgres_stop() {
    kill -INT "$databases_server"
    wait "$databases_server" || return 1
    databases_server=
}

# 256 rows on more than 64 pages, with place for the next versions of the rows in the same page.
database_make_postgres() {
    mkdir -p "$databases_dir/mnt/data" "$databases_dir/socket"
    chown postgres:postgres "$databases_dir/mnt/data" "$databases_dir/socket"
    as_postgres initdb -A trust -N -k -E UTF8 --locale=C --wal-segsize=1 >"$databases_dir/said" 2>&1 ||
        { cat "$databases_dir/said" && fail "initdb"; }
    postgres_start || { cat "$databases_dir/log" && fail "PostgreSQL does not start"; }
    as_postgres psql -qAt -v ON_ERROR_STOP=1 >"$databases_dir/said" 2>&1 <<'END' || { cat "$databases_dir/said" && fail "the table"; }
create table page (id integer primary key, n integer not null, filler text not null) with (fillfactor = 45);
insert into page select i, 0, repeat('filler ', 128) from generate_series(1, 256) i;
create extension amcheck;
END
    postgres_table=$(as_postgres psql -qAtc "select pg_relation_filepath('page')")
    postgres_stop || fail "PostgreSQL does not stop"
}

# The number of the last change (LSN) at the begin of each page of the table.
database_watched_postgres() { echo "/data/$postgres_table" 8192 0; }

# A page of which one half is older than the other.
database_plant_postgres() {
    local table=$databases_dir/mnt/data/$postgres_table
    database_mount "$databases_dir/image" "$databases_offset" inplace
    cp "$table" "$databases_dir/table"
    postgres_start && as_postgres psql -qAtc 'update page set n = n + 1' && postgres_stop ||
        { cat "$databases_dir/log" && fail "PostgreSQL does not run"; }
    dd if="$databases_dir/table" of="$table" bs=4096 count=1 skip=7 seek=7 conv=notrunc status=none
    database_unmount
}

# A torn page does not fit its checksum. Recovery fails with it, or the check of all pages.
database_check_postgres() {
    local said said_torn last logged
    # Its process is not of this machine.
    rm -f "$databases_dir/mnt/data/postmaster.pid"
    if ! postgres_start; then
        databases_server=
        cp "$databases_dir/log" "$databases_dir/said"
        said=$(grep -m 1 -o 'invalid page in block.*\|incorrect checksum in control file' "$databases_dir/log") ||
            { echo "no recovery" && return 1; }
        echo "torn, no recovery: $said"
        return
    fi
    # Whole transactions.
    said=$(as_postgres psql -qAt -v ON_ERROR_STOP=1 2>&1 <<'END'
select max(n), count(*), count(distinct n) from page;
select count(*) from (select bt_index_check(indexrelid, true) from pg_index where indrelid = 'page'::regclass) as i;
END
    ) || said="error: $said"
    postgres_stop || { echo "no stop" && return 1; }
    cp "$databases_dir/log" "$databases_dir/said"
    # Some pages are made anew where they do not fit, with a warning.
    if said_torn=$(grep -m 1 -o 'page verification failed.*' "$databases_dir/log"); then
        echo "torn: $said_torn"
        return
    fi
    if ! as_postgres pg_checksums --check >"$databases_dir/said" 2>&1; then
        said_torn=$(grep -m 1 -o 'in file .*, block [0-9]*:' "$databases_dir/said") ||
            { echo "pg_checksums" && return 1; }
        echo "torn: ${said_torn//"$databases_dir/mnt/data/"/} a checksum"
        return
    fi
    last=${said%%|*}
    [[ $said == "$last|256|1"$'\n'1 ]] || { echo "the table has $said" && return 1; }
    # Of a line that was being written there may be a part, which is a smaller number.
    logged=$(tail -n 1 "$1")
    ((last >= ${logged:-0})) || { echo "$logged was committed, the last is $last" && return 1; }
    echo "whole $last"
}
