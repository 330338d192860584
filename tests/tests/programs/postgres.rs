//! PostgreSQL: initdb, pgbench, SIGKILL of the database server during the run, recovery;
//! the same with SIGKILL of the server of the mount, also without the syncs of PostgreSQL, and
//! with data=atomic without the full pages in its log.

use std::fs;
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::postgres::{Server, programs};
use pramfs_tests::suite::{mount_for, say, unmount_and_check};

use crate::{alone, full, let_others_in};

/// Works, kills, recovers and checks. Returns the committed work.
fn life(server: &mut Server, mount: &Mounted, options: &str, of_mount: bool) -> u64 {
    let before = server.check();
    let mut load = server.load(60);
    std::thread::sleep(Duration::from_secs(if full() { 15 } else { 4 }));
    assert!(
        load.try_wait().unwrap().is_none(),
        "pgbench has ended early"
    );
    if of_mount {
        mount.crash();
        server.kill_all();
        mount.mount(options);
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
    let after = server.check();
    assert!(after > before + 50, "{after} transactions, {before} before");
    after
}

#[test]
fn postgresql_recovers_after_sigkill() {
    let test = "PostgreSQL";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["setpriv"], 2048, "") else {
        return;
    };
    let Some(bin) = programs(test) else {
        return;
    };
    let_others_in(&mount);
    let data = mount.at("data");
    fs::create_dir(&data).unwrap();
    let mut server = Server::new(bin, data);
    server.initialize();
    server.start();
    let scale = if full() { 10 } else { 1 };
    server
        .run("pgbench -i", &format!("pgbench -q -i -s {scale}"))
        .succeed();
    let mut lives = 0;
    let mut committed = 0;
    for _ in 0..if full() { 4 } else { 1 } {
        for of_mount in [false, true] {
            committed = life(&mut server, &mount, "", of_mount);
            lives += 1;
        }
    }
    server.stop();
    // Writes are durable when they return: the database needs no syncs. Whole pages in its log
    // repair those that are torn.
    server.settings = vec!["fsync=off"];
    server.start();
    committed = committed.max(life(&mut server, &mount, "", true));
    lives += 1;
    server.stop();
    server.run("pg_checksums", "pg_checksums --check").succeed();
    // With data=atomic no page is torn. Then the database needs no whole pages in its log either.
    mount.unmount();
    mount.mount("data=atomic");
    server.settings = vec!["fsync=off", "full_page_writes=off"];
    server.start();
    committed = committed.max(life(&mut server, &mount, "data=atomic", true));
    lives += 1;
    server.stop();
    server.run("pg_checksums", "pg_checksums --check").succeed();
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {committed} transactions, {lives} kills, balances and checksums right; fsck: {check}"
    ));
}
