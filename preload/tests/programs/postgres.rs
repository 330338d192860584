//! PostgreSQL, run by an ordinary user who owns the region: initdb, pgbench, SIGKILL of all
//! processes, recovery. The tables must equal those of a server on tmpfs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use pramfs_tests::mounted::wait_until;
use pramfs_tests::postgres::{Server, programs};
use pramfs_tests::suite::{Run, say};

use crate::support::Share;
use crate::{Both, TIMEOUT, full, same};

/// The same work each time: one client, and a fixed seed.
const WORK: &str = r#"
pgbench -q -i -s 1
pgbench -n -c 1 -t "$1" --random-seed=7 > /dev/null
psql -qAtc "create table large as select i, repeat(md5(i::text), 20) t from generate_series(1, 20000) i"
psql -qAtc "create index on large (t); update large set t = t || 'x' where i % 3 = 0; delete from large where i % 7 = 0"
psql -qAtc "vacuum full large" -c "reindex table large" -c "vacuum analyze"
"#;

/// All rows, without the times of transactions and the names of their processes.
const VIEW: &str = r#"
for table in pgbench_accounts pgbench_branches pgbench_tellers large; do
    psql -qAtc "select '$table', count(*), md5(string_agg(t::text, ',' order by t::text collate \"C\")) from $table t"
done
psql -qAtc "select tid, bid, aid, delta from pgbench_history order by 1, 2, 3, 4"
"#;

/// Lets users other than root reach a directory.
fn let_others_in(dir: &Path) {
    fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn postgresql_recovers_what_it_has_committed() {
    let test = "PostgreSQL with the preload library";
    let Some(both) = Both::new(test, &["setpriv"], 1024) else {
        return;
    };
    let Some(bin) = programs(test) else {
        return;
    };
    let_others_in(both.mount.path().parent().unwrap());
    let_others_in(both.tmpfs.path());
    // `direct=owner` gives leases to the owner that the region has when it is mounted.
    both.mount.unmount();
    Run::new("chown", "chown", TIMEOUT)
        .arg("postgres")
        .arg(both.mount.region())
        .succeed();
    both.mount.mount("direct=owner");
    let (on_mount, on_tmpfs) = (both.on_mount("data"), both.on_tmpfs("data"));
    let (mut shares, mut last) = (Vec::new(), Share::default());
    let [mut server, other] = [&on_mount, &on_tmpfs].map(|place| {
        let mut server = Server::new(bin.clone(), place.dir.clone());
        if let Some(library) = place.library {
            server.variables.extend(library.variables());
        }
        server.initialize();
        let mut step = |name: &str| {
            if place.library.is_some() {
                last = both.library.share();
                shares.push(format!("{name} {last}"));
            }
        };
        step("initdb");
        server.start();
        let rounds = if full() { "20000" } else { "500" };
        server
            .run("the work", WORK)
            .args(["work", rounds])
            .succeed();
        // A backend says its share at its end.
        server.stop();
        step("pgbench and SQL");
        server.start();
        server
    });
    // Less only if its user gets no leases.
    assert!(last.percent() >= 40.0, "{shares:?}");
    let view = |server: &Server| server.run("the tables", VIEW).succeed().text;
    let is = view(&server);
    same("the tables", &is, &view(&other));
    drop(other);

    let mut committed = server.check();
    for all in [true, false] {
        let before = committed;
        let mut load = server.load(60);
        std::thread::sleep(Duration::from_secs(if full() { 15 } else { 3 }));
        let has_committed = || {
            let query = "psql -qAtc 'select count(*) from pgbench_history'";
            let out = server.run("the count", query).succeed();
            out.text.trim().parse::<u64>().unwrap() > before
        };
        let mut has_ended = || load.try_wait().unwrap().is_some();
        assert!(
            wait_until(|| has_committed() || has_ended()),
            "pgbench commits nothing"
        );
        assert!(
            load.try_wait().unwrap().is_none(),
            "pgbench has ended early"
        );
        if all {
            server.kill_all();
        } else {
            server.kill();
        }
        assert!(
            wait_until(|| load.try_wait().unwrap().is_some()),
            "pgbench hangs"
        );
        server.start();
        let log = server.log();
        assert!(log.contains("automatic recovery in progress"), "{log}");
        committed = server.check();
        assert!(
            committed > before,
            "{committed} transactions, {before} before"
        );
    }
    server.stop();
    server.run("pg_checksums", "pg_checksums --check").succeed();
    let check = both.end();
    say(format_args!(
        "{test}: {} rows and sums the same, {committed} transactions over 2 kills; served: {}; fsck: {check}",
        is.lines().count(),
        shares.join(", ")
    ));
}
