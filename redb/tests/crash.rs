//! A database on a region: closed in order, killed in the middle, full, opened twice.

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{FileSystem, MountOptions};
use redb::{Database, DatabaseError, ReadableDatabase, StorageError, TableDefinition};

const NUMBERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("numbers");
const TOTALS: TableDefinition<'_, &str, u64> = TableDefinition::new("totals");
/// Set for the process that is killed: the region.
const VICTIM: &str = "PRAMFS_REDB_VICTIM";
const REGION: u64 = 64 << 20;

fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => tempfile::tempdir_in(shm).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

fn made(path: &Path) {
    let region = RegionOptions::new().create_new(path, REGION).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
}

fn mounted(path: &Path) -> FileSystem {
    let region = RegionOptions::new().open(path).unwrap();
    FileSystem::mount(region, MountOptions::default()).unwrap()
}

/// The value of a key: as many bytes as the key says.
fn value(key: u64) -> Vec<u8> {
    key.to_le_bytes().repeat((key % 200) as usize + 1)
}

/// One transaction on two tables.
fn put(db: &Database, key: u64) {
    let change = db.begin_write().unwrap();
    change
        .open_table(NUMBERS)
        .unwrap()
        .insert(key, value(key).as_slice())
        .unwrap();
    change
        .open_table(TOTALS)
        .unwrap()
        .insert("count", key + 1)
        .unwrap();
    change.commit().unwrap();
}

/// Every key below the count is there with its value, and no other. Returns the count.
fn checked(db: &Database) -> u64 {
    let read = db.begin_read().unwrap();
    let Ok(totals) = read.open_table(TOTALS) else {
        return 0;
    };
    let count = totals.get("count").unwrap().unwrap().value();
    let numbers = read.open_table(NUMBERS).unwrap();
    let mut next = 0;
    for entry in numbers.range::<u64>(..).unwrap() {
        let (key, found) = entry.unwrap();
        assert_eq!(key.value(), next);
        assert_eq!(found.value(), value(next));
        next += 1;
    }
    assert_eq!(next, count);
    count
}

#[test]
fn database_closed_in_order_is_there_afterwards() {
    let dir = scratch();
    let path = dir.path().join("region");
    made(&path);
    for turn in 0..3 {
        let fs = mounted(&path);
        assert!(fs.recovery().was_clean);
        let db = pramfs_redb::create(&fs, "/db").unwrap();
        assert_eq!(checked(&db), turn * 100);
        (turn * 100..(turn + 1) * 100).for_each(|key| put(&db, key));
        drop(db);
        fs.unmount().unwrap();
    }
}

/// The process that is killed: it says each transaction that has been committed.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(VICTIM) else {
        return;
    };
    let fs = mounted(Path::new(&path));
    let db = pramfs_redb::create(&fs, "/db").unwrap();
    for key in checked(&db).. {
        put(&db, key);
        println!("committed {key}");
    }
}

#[test]
fn committed_transactions_survive_kills() {
    let dir = scratch();
    let path = dir.path().join("region");
    made(&path);
    let mut known = 0;
    for turn in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut commits) = (String::new(), 0);
        // Killed at an arbitrary point of the transactions after so many.
        while commits < 7 + 13 * turn {
            line.clear();
            assert_ne!(
                said.read_line(&mut line).unwrap(),
                0,
                "the victim has failed"
            );
            if let Some((_, key)) = line.trim().rsplit_once("committed ") {
                known = key.parse::<u64>().unwrap() + 1;
                commits += 1;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        let more = rest.matches("committed ").count() as u64;

        let fs = mounted(&path);
        assert!(!fs.recovery().was_clean);
        let db = pramfs_redb::open(&fs, "/db").unwrap();
        let count = checked(&db);
        // The last line may be cut off, and one transaction may have no line yet.
        assert!(count + 1 >= known + more, "{count} of {known} and {more}");
        assert!(count >= known, "{count} of {known}");
        assert!(count <= known + more + 1, "{count} of {known} and {more}");
        drop(db);
        fs.unmount().unwrap();
        known = count;
    }
}

#[test]
fn second_database_on_same_file_is_refused() {
    let region = RegionOptions::new().memfd("twice", REGION).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let db = pramfs_redb::create(&fs, "/db").unwrap();
    fs.hard_link("/db", "/other-name").unwrap();
    for name in ["/db", "/other-name"] {
        let refused = pramfs_redb::open(&fs, name).unwrap_err();
        let DatabaseError::Storage(StorageError::Io(e)) = refused else {
            panic!("{refused}");
        };
        assert_eq!(e.kind(), std::io::ErrorKind::ResourceBusy, "{e}");
    }
    drop(db);
    drop(pramfs_redb::open(&fs, "/other-name").unwrap());
    fs.unmount().unwrap();
}

#[test]
fn file_that_holds_no_database_is_refused() {
    let region = RegionOptions::new().memfd("none", REGION).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    assert!(pramfs_redb::open(&fs, "/no").is_err());
    fs.write("/empty", "").unwrap();
    assert!(pramfs_redb::open(&fs, "/empty").is_err());
    fs.write("/text", "this is no database".repeat(1000))
        .unwrap();
    assert!(pramfs_redb::open(&fs, "/text").is_err());
    fs.unmount().unwrap();
}

#[test]
fn full_region_fails_transaction_and_keeps_others() {
    let region = RegionOptions::new().memfd("full", 8 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let db = pramfs_redb::create(&fs, "/db").unwrap();
    put(&db, 0);
    let big = vec![7; 1 << 20];
    let filled = (1..100).try_for_each(|key| -> Result<(), redb::Error> {
        let change = db.begin_write()?;
        change.open_table(NUMBERS)?.insert(key, big.as_slice())?;
        change.commit()?;
        Ok(())
    });
    let full = filled.unwrap_err().to_string();
    assert!(full.contains("no space"), "{full}");
    drop(db);
    fs.grow(Some(8 << 20)).unwrap();
    let db = pramfs_redb::open(&fs, "/db").unwrap();
    let read = db.begin_read().unwrap();
    let table = read.open_table(NUMBERS).unwrap();
    assert_eq!(table.get(0).unwrap().unwrap().value(), value(0));
}
