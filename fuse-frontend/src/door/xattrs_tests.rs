//! Guests whose attributes have other names in the region.

use pramfs_fuse_protocol::Opcode;
use pramfs_fuse_protocol::flags::OpenInFlags;
use pramfs_fuse_protocol::wire::{FallocateIn, GetxattrOut, SetxattrIn, WriteIn};
use zerocopy::IntoBytes;

use super::*;

const SELINUX: &[u8] = b"security.selinux";
const CAPABILITY: &[u8] = b"security.capability";

/// A guest that has mounted, with this map.
fn with_map(scene: &Scene, map: &str) -> Guest {
    let translations = Translations {
        xattrs: Some(XattrMap::parse(map).unwrap()),
        ..Translations::default()
    };
    let guest = scene.door(DoorSettings::default(), translations);
    guest.init().unwrap();
    guest
}

/// Sends a request that makes `new`, with security contexts.
fn make_with(guest: &Guest, opcode: Opcode, body: &[u8], contexts: &[&[u8]]) -> Answered {
    let mut extension = Vec::new();
    for name in contexts {
        extension.extend_from_slice([5u32, 0].as_bytes());
        extension.extend_from_slice(&[name, &b"\0value"[..]].concat());
        extension.resize(extension.len().next_multiple_of(8), 0);
    }
    let head = [8 + extension.len() as u32, contexts.len() as u32];
    let extension = [head.as_bytes(), &extension].concat();
    let header = InHeader {
        len: (InHeader::SIZE + body.len() + extension.len()) as u32,
        opcode: opcode.number(),
        unique: 8,
        nodeid: ROOT,
        total_extlen: (extension.len() / 8) as u16,
        ..InHeader::default()
    };
    let mut heard = Heard::default();
    let request = [header.as_bytes(), body, &extension].concat();
    guest.0.serve(&request, &mut heard);
    let message = heard.0.expect("an answer");
    let (header, body) = OutHeader::read_from_prefix(&message).unwrap();
    match header.error {
        0 => Ok(body.to_vec()),
        error => Err(Errno::new(-error).unwrap()),
    }
}

#[test]
fn context_of_new_file_that_map_refuses_makes_no_file() {
    let scene = Scene::new();
    let guest = with_map(&scene, ":bad:all:security.capability:: :ok:all:::");
    let create = CreateIn::default();
    let requests: [(Opcode, Vec<u8>); 5] = [
        (Opcode::Create, [create.as_bytes(), b"new\0"].concat()),
        (Opcode::Tmpfile, [create.as_bytes(), b"/\0"].concat()),
        (Opcode::Mkdir, [&[0; 8], &b"new\0"[..]].concat()),
        (Opcode::Mknod, [&[0; 16], &b"new\0"[..]].concat()),
        (Opcode::Symlink, b"new\0target\0".to_vec()),
    ];
    for (opcode, body) in requests {
        for contexts in [&[CAPABILITY][..], &[SELINUX, CAPABILITY]] {
            let made = make_with(&guest, opcode, &body, contexts);
            assert_eq!(made, Err(Errno::EPERM), "{opcode:?}");
            assert!(scene.fs.lookup(Ino::ROOT, b"new").is_err(), "{opcode:?}");
        }
    }
    let body = [create.as_bytes(), b"new\0"].concat();
    make_with(&guest, Opcode::Create, &body, &[SELINUX]).unwrap();
    let made = scene.fs.lookup(Ino::ROOT, b"new").unwrap().ino;
    assert_eq!(scene.fs.getxattr(made, SELINUX).unwrap(), b"value");
}

#[test]
fn contexts_are_left_out_where_name_of_label_is_translated_or_refused() {
    let scene = Scene::new();
    for (map, are_asked_for) in [
        (":map:trusted.:user.g.:", true),
        (":map::user.g.:", false),
        (":bad:all:security.:: :ok:all:::", false),
        (":unsupported:client:security.selinux:: :ok:all:::", false),
    ] {
        let guest = with_map(&scene, map);
        let wanted = guest.0.wanted();
        assert_eq!(wanted.contains(InitFlags::SECURITY_CTX), are_asked_for);
        let body = [CreateIn::default().as_bytes(), b"new\0"].concat();
        let made = make_with(&guest, Opcode::Create, &body, &[SELINUX]);
        assert_eq!(made.is_ok(), are_asked_for, "{map}");
        let exists = scene.fs.unlink(Ino::ROOT, b"new").is_ok();
        assert_eq!(exists, are_asked_for, "{map}");
    }
}

#[test]
fn context_with_another_name_in_region_makes_no_file() {
    let scene = Scene::new();
    let guest = with_map(&scene, ":map:security.capability:user.g.:");
    let body = [CreateIn::default().as_bytes(), b"new\0"].concat();
    let made = make_with(&guest, Opcode::Create, &body, &[CAPABILITY]);
    assert_eq!(made, Err(Errno::EOPNOTSUPP));
    assert!(scene.fs.lookup(Ino::ROOT, b"new").is_err());
}

#[test]
fn capability_with_another_name_is_dropped_by_what_changes_the_file() {
    let scene = Scene::new();
    let guest = with_map(&scene, ":map:security.:user.g.:");
    let (made, open) = guest.create(0, b"file").unwrap();
    let node = made.nodeid;
    let source = guest.create(0, b"source").unwrap().0.nodeid;
    let (fh, size) = (open.fh, 1);
    let write = WriteIn {
        fh,
        size,
        ..WriteIn::default()
    };
    let truncate = SetattrIn {
        valid: SetattrValid::SIZE,
        size: 10,
        ..SetattrIn::default()
    };
    let fallocate = FallocateIn {
        fh,
        length: 10,
        ..FallocateIn::default()
    };
    let copy = CopyFileRangeIn {
        nodeid_out: node,
        len: 1,
        ..CopyFileRangeIn::default()
    };
    let opened = OpenIn {
        flags: libc::O_RDWR.cast_unsigned(),
        open_flags: OpenInFlags::KILL_SUIDGID,
    };
    let read = ReadIn {
        fh,
        size: 1,
        ..ReadIn::default()
    };
    let data = Data::from(&b"x"[..]);
    let chmod = SetattrIn {
        valid: SetattrValid::MODE,
        mode: 0o600,
        ..SetattrIn::default()
    };
    for (at, asked, drops) in [
        (node, Operation::Write { arg: write, data }, true),
        (node, Operation::Setattr(truncate), true),
        (node, Operation::Fallocate(fallocate), true),
        (source, Operation::CopyFileRange(copy), true),
        (node, Operation::Open(opened), true),
        (node, Operation::Read(read), false),
        (node, Operation::Setattr(chmod), false),
    ] {
        let value = &b"rights"[..];
        let arg = SetxattrIn {
            size: value.len() as u32,
            ..SetxattrIn::default()
        };
        let name = CAPABILITY;
        let set = Operation::Setxattr { arg, name, value };
        guest.ask(node, set).unwrap();
        let kept = || scene.fs.getxattr(Ino(node), b"user.g.security.capability");
        assert!(kept().is_ok());
        let opcode = asked.opcode();
        guest.ask(at, asked).unwrap();
        assert_eq!(kept().is_err(), drops, "{opcode:?}");
    }
}

#[test]
fn names_of_attributes_are_translated_in_requests_and_lists() {
    let scene = Scene::new();
    let guest = with_map(&scene, ":map:trusted.:user.guest.:");
    let node = guest.create(0, b"file").unwrap().0.nodeid;
    for hosts in [&b"trusted.hosts"[..], b"user.plain"] {
        let set = scene.fs.setxattr(
            &Credentials::ROOT,
            Ino(node),
            hosts,
            b"host",
            pramfs::XattrMode::Set,
        );
        set.unwrap();
    }
    let set = |name| {
        let value = &b"value"[..];
        let arg = SetxattrIn {
            size: value.len() as u32,
            ..SetxattrIn::default()
        };
        guest.ask(node, Operation::Setxattr { arg, name, value })
    };
    set(b"trusted.x").unwrap();
    assert_eq!(set(b"user.guest.trusted.x"), Err(Errno::EPERM));
    let stored = scene.fs.getxattr(Ino(node), b"user.guest.trusted.x");
    assert_eq!(stored.unwrap(), b"value");
    let get = |name, size| guest.ask(node, Operation::Getxattr { size, name });
    assert_eq!(get(b"trusted.x", 100).unwrap(), b"value");
    assert_eq!(get(b"trusted.hosts", 100), Err(Errno::ENODATA));
    // The list is shorter than that of the region, whose length would not fit.
    let list = |size| guest.ask(node, Operation::Listxattr { size });
    let mut names = list(21).unwrap();
    let wanted = [&b"trusted.x\0user.plain\0"[..], b"user.plain\0trusted.x\0"];
    assert!(wanted.contains(&&*names), "{names:?}");
    assert_eq!(list(20), Err(Errno::ERANGE));
    let size = GetxattrOut::read_from_bytes(&list(0).unwrap()).unwrap();
    assert_eq!(size.size, 21);
    let remove = |name| guest.ask(node, Operation::Removexattr { name });
    remove(b"trusted.x").unwrap();
    names = list(100).unwrap();
    assert_eq!(names, b"user.plain\0");
    assert_eq!(remove(b"trusted.hosts"), Err(Errno::ENODATA));
}

#[test]
fn acls_are_left_out_where_their_names_are_translated() {
    let scene = Scene::new();
    let negotiated = |map: Option<&str>| {
        let translations = Translations {
            xattrs: map.map(|map| XattrMap::parse(map).unwrap()),
            ..Translations::default()
        };
        scene.door(DoorSettings::default(), translations).0.wanted()
    };
    assert!(negotiated(None).contains(InitFlags::POSIX_ACL));
    assert!(negotiated(Some(":map:trusted.:user.g.:")).contains(InitFlags::POSIX_ACL));
    assert!(!negotiated(Some(":map::user.g.:")).intersects(InitFlags::POSIX_ACL));
}
