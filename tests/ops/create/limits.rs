//! create at its limits: every byte of a name, the longest name, a full region.

use pramfs::Error;
use pramfs::inode::{Credentials, Ino};
use pramfs_tests::region::fresh;

const CX: Credentials<'_> = Credentials::new(0, 0);

/// The next free inode number may lie where the inode table would have to grow.
#[test]
fn create_after_unlink_on_full_region_works() {
    let (_, fs) = fresh(1 << 20, 4096).expect("a file system");
    let ctx = Credentials::ROOT;
    let mut made = 0;
    while fs
        .create(&ctx, Ino::ROOT, format!("{made}").as_bytes(), 0o644)
        .is_ok()
    {
        made += 1;
    }
    let fill = fs.lookup(Ino::ROOT, b"0").expect("made").ino;
    let mut at = 0;
    while fs
        .write(&Credentials::ROOT, fill, at, &[1; 4096])
        .is_ok_and(|n| n == 4096)
    {
        at += 4096;
    }
    for i in (1..made).step_by(made / 5) {
        let name = format!("{i}");
        fs.unlink(Ino::ROOT, name.as_bytes()).expect("removed");
        fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap_or_else(|e| panic!("file {i} of {made} made anew: {e}"));
    }
}

#[test]
fn create_with_longest_name_of_any_byte_works_except_slash() {
    let (_sim, fs) = fresh(8 << 20, 4096).unwrap();
    for byte in 1..=255u8 {
        let name = [byte; 255];
        let made = fs.create(&CX, Ino::ROOT, &name, 0o644);
        if byte == b'/' {
            assert!(matches!(made, Err(Error::Invalid(_))));
            continue;
        }
        assert_eq!(fs.lookup(Ino::ROOT, &name).unwrap().ino, made.unwrap().ino);
    }
    assert!(matches!(
        fs.create(&CX, Ino::ROOT, &[b'a'; 256], 0o644),
        Err(Error::NameTooLong(256, 255))
    ));
    fs.close().unwrap();
}
