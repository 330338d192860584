//! [`FileSystem`] and [`File`], operation by operation.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::{Duration, SystemTime};

use pramfs::format::{FormatOptions, format};
use pramfs::inode::Credentials;
use pramfs::pmem::{HeapBackend, Region};
use pramfs::{
    Access, Cursor, Error, File, FileSystem, FileTimes, FileType, MountOptions, OpenOptions,
    RenameFlags, UnmountError, XattrMode,
};

fn file_system() -> FileSystem {
    let region = Region::new("test", HeapBackend::boxed(16 << 20));
    format(&region, &FormatOptions::default()).unwrap();
    FileSystem::mount(region, MountOptions::default()).unwrap()
}

fn names(fs: &FileSystem, path: &str) -> Vec<String> {
    let entries = fs.read_dir(path).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

macro_rules! assert_error {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => panic!("{}: {other:?}", stringify!($result)),
        }
    };
}

#[test]
fn contradictory_open_options_fail() {
    let fs = file_system();
    fs.write("f", "x").unwrap();
    for options in [
        &mut OpenOptions::new(),
        OpenOptions::new().read(true).create(true),
        OpenOptions::new().read(true).create_new(true),
        OpenOptions::new().read(true).truncate(true),
        OpenOptions::new().append(true).truncate(true),
    ] {
        assert_error!(options.open(&fs, "f"), Error::Invalid(_));
    }
    assert_eq!(fs.read("f").unwrap(), b"x");
}

#[test]
fn open_of_missing_name_needs_create() {
    let fs = file_system();
    assert_error!(fs.open("/f"), Error::NotFound);
    assert_error!(fs.open(""), Error::NotFound);
    assert_error!(fs.create(""), Error::NotFound);
    assert_error!(fs.create("/no/f"), Error::NotFound);
    assert_error!(fs.create("f/"), Error::IsDirectory);
    fs.create_new("f").unwrap();
    assert_error!(fs.create_new("f"), Error::Exists);
    assert_error!(fs.open("f/"), Error::NotDirectory);
    fs.create_dir("d").unwrap();
    assert_error!(fs.open("d"), Error::IsDirectory);
    assert_error!(fs.create("d"), Error::IsDirectory);
}

#[test]
fn create_through_dangling_symlink_makes_target() {
    let fs = file_system();
    fs.create_dir("d").unwrap();
    fs.symlink("../target", "d/relative").unwrap();
    fs.symlink("/d/relative", "absolute").unwrap();
    let write = |path: &str| {
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        options.open(&fs, path).map(drop)
    };
    assert_error!(fs.create_new("absolute"), Error::Exists);
    write("absolute").unwrap();
    assert!(fs.symlink_metadata("target").unwrap().is_file());
    fs.symlink("round", "round").unwrap();
    assert_error!(write("round"), Error::TooManySymlinks(_));
    fs.symlink("no/where", "nowhere").unwrap();
    assert_error!(write("nowhere"), Error::NotFound);
}

#[test]
fn open_rights_limit_file_operations() {
    let fs = file_system();
    fs.write("f", "0123456789").unwrap();
    let options = OpenOptions::new();
    let read = options.clone().read(true).open(&fs, "f").unwrap();
    assert_error!(read.write_at(b"x", 0), Error::BadHandle(_));
    assert_error!(read.append(b"x"), Error::BadHandle(_));
    assert_error!(read.set_len(0), Error::BadHandle(_));
    assert_error!(read.map(0..10, Access::Write), Error::BadHandle(_));
    let write = options.clone().write(true).open(&fs, "f").unwrap();
    assert_error!(write.read_at(&mut [0], 0), Error::BadHandle(_));
    assert_error!(write.map(0..10, Access::Read), Error::BadHandle(_));
    let append = options.clone().append(true).open(&fs, "f").unwrap();
    assert_error!(append.write_at(b"x", 0), Error::BadHandle(_));
    assert_eq!(append.append(b"ab").unwrap(), 10);
    (&append).write_all(b"cd").unwrap();
    assert_eq!(fs.read("f").unwrap(), b"0123456789abcd");
    assert_eq!(Error::BadHandle("").errno(), libc::EBADF);
}

#[test]
fn create_sets_owner_and_mode_without_umask_bits() {
    let creator = Credentials::new(7, 8).with_umask(0o027);
    let fs = file_system().with_creator(creator);
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    options.clone().open(&fs, "usual").unwrap();
    options.mode(0o4777).open(&fs, "mode").unwrap();
    fs.create_dir("d").unwrap();
    fs.symlink("x", "s").unwrap();
    for (path, mode) in [
        ("usual", libc::S_IFREG | 0o640),
        ("mode", libc::S_IFREG | 0o4750),
        ("d", libc::S_IFDIR | 0o750),
        ("s", libc::S_IFLNK | 0o777),
    ] {
        let m = fs.symlink_metadata(path).unwrap();
        assert_eq!((m.mode(), m.uid(), m.gid()), (mode, 7, 8), "{path}");
    }
    let process = file_system();
    process.create_dir("d").unwrap();
    let m = process.metadata("d").unwrap();
    let user = rustix::process::geteuid().as_raw();
    assert_eq!((m.uid(), m.mode() & 0o777), (user, 0o755));
}

#[test]
fn create_dir_all_creates_missing_parents() {
    let fs = file_system();
    fs.create_dir_all("a/b/c").unwrap();
    fs.create_dir_all("/a/b/c/").unwrap();
    fs.create_dir_all("/").unwrap();
    fs.create_dir_all("a/../z/./y/..").unwrap();
    assert_eq!(names(&fs, "/z"), ["y"]);
    assert_error!(fs.create_dir("a"), Error::Exists);
    assert_error!(fs.create_dir("/"), Error::Exists);
    assert_error!(fs.create_dir("x/y"), Error::NotFound);
    fs.symlink("a/b", "link").unwrap();
    fs.create_dir_all("link/d/e").unwrap();
    assert!(fs.metadata("a/b/d/e").unwrap().is_dir());
    fs.write("f", "").unwrap();
    assert_error!(fs.create_dir_all("f"), Error::Exists);
    assert_error!(fs.create_dir_all("f/g"), Error::NotDirectory);
}

#[test]
fn remove_file_and_remove_dir_check_type() {
    let fs = file_system();
    fs.create_dir_all("d/e").unwrap();
    fs.write("f", "").unwrap();
    fs.symlink("d", "link").unwrap();
    assert_error!(fs.remove_file("d"), Error::IsDirectory);
    assert_error!(fs.remove_dir("f"), Error::NotDirectory);
    assert_error!(fs.remove_dir("link"), Error::NotDirectory);
    assert_error!(fs.remove_dir("d"), Error::NotEmpty);
    assert_error!(fs.remove_file("f/"), Error::NotDirectory);
    assert_error!(fs.remove_file("link/"), Error::IsDirectory);
    assert_error!(fs.remove_file("none"), Error::NotFound);
    fs.remove_file("link").unwrap();
    fs.remove_file("f").unwrap();
    fs.remove_dir("d/e/").unwrap();
    fs.remove_dir("d").unwrap();
    assert!(names(&fs, "/").is_empty());
}

#[test]
fn remove_dir_all_follows_no_symlink() {
    let fs = file_system();
    fs.create_dir_all("keep").unwrap();
    fs.write("keep/me", "x").unwrap();
    fs.create_dir_all("top").unwrap();
    let mut path = "top".to_owned();
    for depth in 0..200 {
        path += "/d";
        fs.create_dir(&path).unwrap();
        fs.write(format!("{path}/f{depth}"), "x").unwrap();
    }
    for i in 0..300 {
        fs.create_dir(format!("top/wide{i}")).unwrap();
        fs.create_dir(format!("top/wide{i}/below")).unwrap();
    }
    fs.symlink("/keep", "top/link").unwrap();
    fs.symlink("keep", "link").unwrap();
    fs.remove_dir_all("top").unwrap();
    fs.remove_dir_all("link").unwrap();
    assert_error!(fs.remove_dir_all("keep/me"), Error::NotDirectory);
    assert_error!(fs.remove_dir_all("none"), Error::NotFound);
    assert_eq!(names(&fs, "/"), ["keep"]);
    assert_eq!(fs.read("keep/me").unwrap(), b"x");
}

#[test]
fn rename_replaces_exchanges_or_fails() {
    let fs = file_system();
    fs.write("a", "a").unwrap();
    fs.write("b", "b").unwrap();
    let noreplace = RenameFlags {
        noreplace: true,
        ..RenameFlags::default()
    };
    let exchange = RenameFlags {
        exchange: true,
        ..RenameFlags::default()
    };
    assert_error!(fs.rename_with("a", "b", noreplace), Error::Exists);
    fs.rename_with("a", "b", exchange).unwrap();
    assert_eq!(fs.read("a").unwrap(), b"b");
    fs.rename("a", "b").unwrap();
    assert_eq!(
        (names(&fs, "/"), fs.read("b").unwrap()),
        (vec!["b".to_owned()], b"b".to_vec())
    );
    fs.create_dir_all("d/e").unwrap();
    assert_error!(fs.rename("d", "d/e/f"), Error::Invalid(_));
    assert_error!(fs.rename("b/", "c"), Error::NotDirectory);
    assert_error!(fs.rename("b", "c/"), Error::NotDirectory);
    fs.rename("d/e/", "f/").unwrap();
    assert!(fs.metadata("f").unwrap().is_dir());
}

#[test]
fn unnamed_file_gets_name_from_its_file_system_only() {
    let (fs, other) = (file_system(), file_system());
    fs.create_dir("/d").unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open_unnamed(&fs, "/d")
        .unwrap();
    file.write_all_at(b"contents", 0).unwrap();
    assert_eq!(names(&fs, "/d"), [""; 0]);
    assert_error!(other.hard_link_file(&file, "/f"), Error::Invalid(_));
    fs.hard_link_file(&file, "/d/f").unwrap();
    assert_error!(fs.hard_link_file(&file, "/d/f"), Error::Exists);
    drop(file);
    assert_eq!(fs.read("/d/f").unwrap(), b"contents");
    let open = fs.open("/d/f").unwrap();
    fs.remove_file("/d/f").unwrap();
    assert_error!(fs.hard_link_file(&open, "/d/f"), Error::NotFound);

    let unnamed = |options: &mut OpenOptions, dir| options.open_unnamed(&fs, dir);
    let write = || OpenOptions::new().write(true).clone();
    assert_error!(
        unnamed(OpenOptions::new().read(true), "/d"),
        Error::Invalid(_)
    );
    assert_error!(unnamed(write().create(true), "/d"), Error::Invalid(_));
    assert_error!(unnamed(write().truncate(true), "/d"), Error::Invalid(_));
    assert_error!(unnamed(&mut write(), "/none"), Error::NotFound);
    fs.write("/file", "x").unwrap();
    assert_error!(unnamed(&mut write(), "/file"), Error::NotDirectory);
}

#[test]
fn links_share_inode_and_symlinks_hold_path() {
    let fs = file_system();
    fs.write("f", "x").unwrap();
    fs.hard_link("f", "g").unwrap();
    fs.symlink("f", "s").unwrap();
    fs.hard_link("s", "t").unwrap();
    let (f, g) = (fs.metadata("f").unwrap(), fs.metadata("g").unwrap());
    assert_eq!((f.ino(), f.nlink()), (g.ino(), 2));
    assert!(fs.symlink_metadata("t").unwrap().is_symlink());
    assert_eq!(fs.read_link("t").unwrap().to_str(), Some("f"));
    assert_error!(fs.read_link("f"), Error::Invalid(_));
    assert_eq!(fs.metadata("s").unwrap().ino(), f.ino());
    fs.create_dir("d").unwrap();
    assert_error!(fs.hard_link("d", "e"), Error::NotPermitted(_));
    assert_error!(fs.hard_link("f", "new/"), Error::NotFound);
    assert_error!(fs.symlink("f", "f/"), Error::NotDirectory);
    assert_error!(fs.symlink("f", "d/"), Error::Exists);
}

#[test]
fn exists_separates_missing_from_errors() {
    let fs = file_system();
    fs.write("f", "").unwrap();
    fs.symlink("nowhere", "dangling").unwrap();
    fs.symlink("round", "round").unwrap();
    assert!(fs.exists("f").unwrap() && fs.exists("/").unwrap());
    for path in ["none", "f/g", "dangling", "none/x", ""] {
        assert!(!fs.exists(path).unwrap(), "{path}");
    }
    assert_error!(fs.exists("round"), Error::TooManySymlinks(_));
    assert_error!(fs.exists("x".repeat(256)), Error::NameTooLong(..));
}

#[test]
fn metadata_set_by_path_or_file_is_returned() {
    let fs = file_system();
    fs.write("f", "12345").unwrap();
    fs.symlink("f", "s").unwrap();
    fs.set_permissions("s", Permissions::from_mode(0o600))
        .unwrap();
    let (early, late) = (
        SystemTime::UNIX_EPOCH - Duration::new(5, 1),
        SystemTime::UNIX_EPOCH + Duration::new(1 << 33, 7),
    );
    let times = FileTimes::new().set_accessed(late).set_modified(early);
    fs.set_times("f", times).unwrap();
    fs.chown("s", Some(3), None).unwrap();
    fs.lchown("s", None, Some(4)).unwrap();
    let m = fs.metadata("f").unwrap();
    assert_eq!((m.len(), m.file_type()), (5, FileType::Regular));
    assert_eq!(m.permissions().mode() & 0o7777, 0o600);
    assert_eq!(
        (m.accessed().unwrap(), m.modified().unwrap()),
        (late, early)
    );
    assert_eq!(m.uid(), 3);
    assert_eq!(fs.symlink_metadata("s").unwrap().gid(), 4);
    assert!(m.changed().unwrap() >= m.created().unwrap());
    let file = fs.open("f").unwrap();
    file.set_times(FileTimes::new().set_modified(late)).unwrap();
    file.set_permissions(Permissions::from_mode(0o400)).unwrap();
    let m = file.metadata().unwrap();
    assert_eq!((m.modified().unwrap(), m.mode() & 0o777), (late, 0o400));
}

#[test]
fn read_dir_returns_each_entry_once() {
    let fs = file_system();
    fs.create_dir("d").unwrap();
    for i in 0..500 {
        fs.write(format!("d/f{i}"), "").unwrap();
    }
    fs.symlink("f1", "d/link").unwrap();
    let mut entries = fs.read_dir("d").unwrap();
    let first = entries.next().unwrap().unwrap();
    // Changes behind and before the place where it stands.
    fs.rename("d", "moved").unwrap();
    assert_eq!(first.path(), std::path::Path::new("d").join(first.name()));
    assert_eq!(first.metadata().unwrap().ino(), first.ino());
    let rest: Vec<_> = (&mut entries).map(|e| e.unwrap().file_name()).collect();
    let unique: std::collections::BTreeSet<_> = rest.iter().collect();
    assert_eq!((rest.len(), unique.len()), (500, 500));
    assert!(entries.next().is_none());
    let link = fs.read_dir("moved").unwrap().find(|e| {
        let e = e.as_ref().unwrap();
        e.name() == "link"
    });
    assert_eq!(
        link.unwrap().unwrap().file_type().unwrap(),
        FileType::Symlink
    );
    assert_error!(fs.read_dir("moved/f1"), Error::NotDirectory);
    assert_error!(fs.read_dir("none"), Error::NotFound);
}

#[test]
fn whole_file_read_and_write_take_any_size() {
    let fs = file_system();
    for len in [0, 1, 4095, 4096, 3 << 20] {
        let data: Vec<u8> = (0..len).map(|i: usize| (i % 251) as u8).collect();
        fs.write("f", &data).unwrap();
        assert_eq!(fs.read("f").unwrap(), data);
    }
    fs.write("f", "häß").unwrap();
    assert_eq!(fs.read_to_string("f").unwrap(), "häß");
    fs.write("f", [0xff]).unwrap();
    assert_error!(fs.read_to_string("f"), Error::NotUtf8);
    let full = fs.write("big", vec![1; 32 << 20]);
    assert_error!(full, Error::NoSpace(_));
}

#[test]
fn copy_preserves_contents_and_mode() {
    let fs = file_system();
    fs.write("a", vec![7; 100_000]).unwrap();
    fs.set_permissions("a", Permissions::from_mode(0o4711))
        .unwrap();
    fs.write("b", vec![1; 200_000]).unwrap();
    assert_eq!(fs.copy("a", "b").unwrap(), 100_000);
    assert_eq!(fs.copy("a", "c").unwrap(), 100_000);
    for path in ["b", "c"] {
        assert_eq!(fs.read(path).unwrap(), vec![7; 100_000]);
        assert_eq!(fs.metadata(path).unwrap().mode() & 0o7777, 0o4711);
    }
    fs.hard_link("a", "same").unwrap();
    assert_error!(fs.copy("a", "same"), Error::Invalid(_));
    assert_eq!(fs.metadata("a").unwrap().len(), 100_000);
    assert_error!(fs.copy("none", "x"), Error::NotFound);
    assert!(!fs.exists("x").unwrap());
}

#[test]
fn xattrs_by_path_agree_after_set_and_remove() {
    let fs = file_system();
    fs.write("f", "").unwrap();
    fs.set_xattr("f", "user.a", "1", XattrMode::Create).unwrap();
    fs.set_xattr("f", "user.b", [0; 5000], XattrMode::Set)
        .unwrap();
    assert_error!(
        fs.set_xattr("f", "user.a", "2", XattrMode::Create),
        Error::Exists
    );
    let mut list = fs.list_xattrs("f").unwrap();
    list.sort();
    assert_eq!(list, [b"user.a", b"user.b"]);
    assert_eq!(fs.xattr("f", "user.a").unwrap(), b"1");
    fs.remove_xattr("f", "user.a").unwrap();
    assert_error!(fs.xattr("f", "user.a"), Error::NoAttribute);
}

#[test]
fn read_exact_at_past_eof_is_unexpected_eof() {
    let fs = file_system();
    fs.write("f", "12345").unwrap();
    let file = fs.open("f").unwrap();
    let mut buf = [0; 4];
    file.read_exact_at(&mut buf, 1).unwrap();
    assert_eq!(&buf, b"2345");
    let e = file.read_exact_at(&mut buf, 2).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
    let e = FileExt::read_exact_at(&file, &mut buf, 2).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn file_position_is_shared_only_by_clones() -> io::Result<()> {
    let fs = file_system();
    let mut file = fs.create("f")?;
    let mut other = file.try_clone()?;
    file.write_all(b"one")?;
    other.write_all(b"two")?;
    let mut cursor = file.cursor();
    let mut text = String::new();
    cursor.read_to_string(&mut text)?;
    assert_eq!((text.as_str(), file.stream_position()?), ("onetwo", 6));
    assert_eq!(other.seek(SeekFrom::End(-3))?, 3);
    text.clear();
    file.read_to_string(&mut text)?;
    assert_eq!(text, "two");
    for wrong in [SeekFrom::Current(-7), SeekFrom::End(i64::MIN)] {
        assert_eq!(
            file.seek(wrong).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    Ok(())
}

#[test]
fn cursor_mixes_reads_lines_writes_and_seeks() -> io::Result<()> {
    let fs = file_system();
    let mut cursor = fs.create("f")?.into_cursor();
    for i in 0..20_000 {
        writeln!(cursor, "line {i}")?;
    }
    cursor.rewind()?;
    let mut line = String::new();
    cursor.read_line(&mut line)?;
    assert_eq!((line.as_str(), cursor.position()), ("line 0\n", 7));
    // A write within what has been buffered is seen by the next read.
    cursor.write_all(b"LINE")?;
    cursor.set_position(7);
    line.clear();
    cursor.read_line(&mut line)?;
    assert_eq!(line, "LINE 1\n");
    assert_eq!(BufRead::lines(&mut cursor).count(), 19_998);
    assert_eq!(cursor.read(&mut [0; 10])?, 0);
    assert_eq!(cursor.seek(SeekFrom::Start(1 << 40))?, 1 << 40);
    assert_eq!(cursor.read(&mut [0; 10])?, 0);
    let buffered = BufReader::new(Cursor::new(cursor.into_inner()));
    assert_eq!(buffered.lines().count(), 20_000);
    Ok(())
}

#[test]
fn append_file_writes_at_eof_at_any_position() -> io::Result<()> {
    let fs = file_system();
    fs.write("f", "start ")?;
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    let (mut a, mut b) = (options.open(&fs, "f")?, options.open(&fs, "f")?);
    a.write_all(b"a ")?;
    b.write_all(b"b ")?;
    a.rewind()?;
    a.write_all(b"c")?;
    assert_eq!(a.stream_position()?, 11);
    assert_eq!(fs.read_to_string("f")?, "start a b c");
    Ok(())
}

#[test]
fn io_error_keeps_kind_and_source() {
    let fs = file_system();
    let kind = |e: Error| io::Error::from(e).kind();
    assert_eq!(kind(fs.open("none").unwrap_err()), ErrorKind::NotFound);
    assert_eq!(
        kind(fs.create_dir("/").unwrap_err()),
        ErrorKind::AlreadyExists
    );
    assert_eq!(kind(fs.open("/").unwrap_err()), ErrorKind::IsADirectory);
    assert_eq!(kind(Error::NoSpace("")), ErrorKind::StorageFull);
    assert_eq!(kind(Error::ReadOnly("")), ErrorKind::ReadOnlyFilesystem);
    fs.write("latin1", [b'f', 0xfc, b'r']).unwrap();
    let not_text = fs.read_to_string("latin1").unwrap_err();
    assert_eq!(not_text.errno(), libc::EILSEQ);
    assert_eq!(kind(not_text), ErrorKind::InvalidData);
    let ino = fs.metadata("latin1").unwrap().ino();
    let damaged = Error::corrupt(pramfs::Damage::InodeDamaged, ino, "for this test");
    assert_eq!((damaged.ino(), damaged.errno()), (Some(ino), libc::EUCLEAN));
    assert_eq!(kind(damaged), ErrorKind::InvalidData);
    assert_eq!(kind(Error::Lost { ino, offset: 0 }), ErrorKind::InvalidData);
    let e = io::Error::from(fs.open("none").unwrap_err());
    assert_eq!(e.to_string(), Error::NotFound.to_string());
    assert!(matches!(
        e.get_ref().unwrap().downcast_ref(),
        Some(Error::NotFound)
    ));
}

#[test]
fn io_error_of_system_call_keeps_error_as_source() {
    let e = Error::io_failed("msync", io::Error::from_raw_os_error(libc::ENOSPC));
    assert_eq!(
        e.to_string(),
        "input/output error: msync: No space left on device (os error 28)"
    );
    let source = std::error::Error::source(&e).unwrap();
    let source: &io::Error = source.downcast_ref().unwrap();
    assert_eq!(source.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(e.errno(), libc::EIO);
}

#[test]
fn remove_dir_of_root_is_busy() {
    let fs = file_system();
    fs.write("f", "x").unwrap();
    for root in ["/", "//"] {
        assert_error!(fs.remove_dir(root), Error::Busy(_));
        let e = fs.remove_dir_all(root).unwrap_err();
        assert_eq!(e.errno(), libc::EBUSY);
    }
    assert_eq!(names(&fs, "/"), ["f"]);
}

#[test]
fn remove_file_of_root_fails_with_eisdir() {
    // As unlink(2) on Linux.
    assert_error!(file_system().remove_file("/"), Error::IsDirectory);
}

#[test]
fn rename_of_root_is_busy() {
    let fs = file_system();
    fs.create_dir("d").unwrap();
    assert_error!(fs.rename("/", "other"), Error::Busy(_));
    assert_error!(fs.rename("/", "/"), Error::Busy(_));
    assert_error!(fs.rename("d", "/"), Error::Busy(_));
    let noreplace = RenameFlags {
        noreplace: true,
        ..RenameFlags::default()
    };
    assert_error!(fs.rename_with("d", "/", noreplace), Error::Exists);
    assert_error!(fs.rename_with("/", "e", noreplace), Error::Busy(_));
}

#[test]
fn change_of_empty_path_fails_with_enoent() {
    let fs = file_system();
    fs.write("f", "x").unwrap();
    assert_error!(fs.create_dir(""), Error::NotFound);
    assert_error!(fs.remove_dir(""), Error::NotFound);
    assert_error!(fs.remove_file(""), Error::NotFound);
    assert_error!(fs.rename("", "g"), Error::NotFound);
    assert_error!(fs.rename("f", ""), Error::NotFound);
    assert_error!(fs.symlink("f", ""), Error::NotFound);
}

#[test]
fn unmount_with_open_directory_returns_file_system() {
    let fs = file_system();
    let entries = fs.read_dir("/").unwrap();
    let refused = fs.unmount().unwrap_err();
    assert_eq!(refused.errno(), libc::EBUSY);
    drop(entries);
    match refused {
        UnmountError::InUse { fs, handles: 1 } => fs.unmount().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn file_system_and_files_are_thread_safe() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<FileSystem>();
    is_send_and_sync::<File>();
    is_send_and_sync::<Cursor<File>>();
    is_send_and_sync::<pramfs::MappedFile>();
    is_send_and_sync::<pramfs::ReadDir>();
    is_send_and_sync::<Error>();

    let fs = file_system();
    let log = fs.create("log").unwrap();
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let (fs, log) = (&fs, &log);
            s.spawn(move || {
                for i in 0..100 {
                    log.append(&[t; 16]).unwrap();
                    fs.write(format!("{t}-{i}"), [t]).unwrap();
                }
            });
        }
    });
    let all = fs.read("log").unwrap();
    assert!(
        all.chunks(16)
            .all(|record| record.iter().all(|b| *b == record[0]))
    );
    assert_eq!((all.len(), names(&fs, "/").len()), (6400, 401));
}

/// The panic is the program's: the destructors of its handles end their operations well.
#[test]
fn thread_panic_with_open_files_keeps_fs_usable() {
    let fs = file_system();
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            let file = fs.create("/unlinked").unwrap();
            file.append(b"contents").unwrap();
            fs.remove_file("/unlinked").unwrap();
            std::panic::panic_any("of the program");
        });
        thread.join().unwrap_err();
    });
    fs.write("/after", "still here").unwrap();
    assert_eq!(fs.read("/after").unwrap(), b"still here");
    fs.unmount().unwrap();
}
