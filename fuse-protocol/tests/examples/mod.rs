//! One request of each operation, as bytes that are put together here.

use pramfs_fuse_protocol::{Opcode, Rules};
use zerocopy::IntoBytes;

/// The number of each request.
pub const UNIQUE: u64 = 0x1234;

/// Rules with all that changes the form of a request.
pub const RULES: Rules = Rules {
    max_request: 1 << 20,
    max_reply: 1 << 20,
    name_max: 255,
    target_max: 4095,
    setxattr_ext: true,
    security_contexts: true,
    supplementary_groups: true,
};

/// A request with a body.
pub fn request(opcode: Opcode, body: &[&[u8]]) -> Vec<u8> {
    extended(opcode, body, &[])
}

fn extended(opcode: Opcode, body: &[&[u8]], extensions: &[u8]) -> Vec<u8> {
    let body = body.concat();
    let mut bytes = Vec::new();
    let len = 40 + body.len() + extensions.len();
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(opcode.number().to_ne_bytes());
    bytes.extend(UNIQUE.to_ne_bytes());
    bytes.extend(1u64.to_ne_bytes());
    bytes.extend([1000u32, 100, 4711].as_bytes());
    bytes.extend([(extensions.len() / 8) as u16, 0].as_bytes());
    bytes.extend(body);
    bytes.extend(extensions);
    bytes
}

/// CREATE with extensions.
pub fn create(extensions: &[u8]) -> Vec<u8> {
    let arg = [0x8241u32, 0o100_644, 0o22, 1];
    extended(Opcode::Create, &[arg.as_bytes(), b"name\0"], extensions)
}

/// Bytes of the extensions of [`create_with_extensions`].
pub const EXTENSIONS_LEN: usize = 64 + 16;

/// One supplementary group.
pub fn groups() -> Vec<u8> {
    [16u32, 32, 1, 27].as_bytes().to_vec()
}

/// Two security contexts: the first needs padding, and the second has no value.
pub fn contexts() -> Vec<u8> {
    let mut bytes = [64u32, 2].as_bytes().to_vec();
    bytes.extend([5u32, 0].as_bytes());
    bytes.extend(b"security.selinux\0label\0\0");
    bytes.extend([0u32, 0].as_bytes());
    bytes.extend(b"security.x\0\0\0\0\0\0");
    bytes
}

/// CREATE with all extensions.
pub fn create_with_extensions() -> Vec<u8> {
    create(&[contexts(), groups()].concat())
}

/// At least one request of each operation.
pub fn all() -> Vec<(Opcode, Vec<u8>)> {
    use Opcode::*;
    let name: &[u8] = b"name\0";
    let zeros = [0u8; 256];
    let plain: &[(Opcode, &[&[u8]])] = &[
        (Lookup, &[name]),
        (Forget, &[2u64.as_bytes()]),
        (Getattr, &[&zeros[..16]]),
        (Setattr, &[&zeros[..88]]),
        (Readlink, &[]),
        (Symlink, &[name, b"../a/target\0"]),
        (Mknod, &[[0o010_644u32, 0, 0o22, 0].as_bytes(), name]),
        (Mkdir, &[[0o755u32, 0o22].as_bytes(), name]),
        (Unlink, &[name]),
        (Rmdir, &[name]),
        (Rename, &[5u64.as_bytes(), name, b"other\0"]),
        (
            Rename2,
            &[5u64.as_bytes(), 1u64.as_bytes(), name, b"other\0"],
        ),
        (Link, &[5u64.as_bytes(), name]),
        (Open, &[[0x8000u32, 0].as_bytes()]),
        (Opendir, &[[0x18000u32, 0].as_bytes()]),
        (
            Read,
            &[
                [1u64, 4096].as_bytes(),
                [4096u32, 2].as_bytes(),
                &zeros[..16],
            ],
        ),
        (
            Readdir,
            &[[1u64, 0].as_bytes(), [4096u32, 0].as_bytes(), &zeros[..16]],
        ),
        (
            Readdirplus,
            &[[1u64, 7].as_bytes(), [4096u32, 0].as_bytes(), &zeros[..16]],
        ),
        (
            Write,
            &[
                [1u64, 4096].as_bytes(),
                [5u32, 1].as_bytes(),
                &zeros[..16],
                b"hello",
            ],
        ),
        (Statfs, &[]),
        (Syncfs, &[&zeros[..8]]),
        (
            Release,
            &[1u64.as_bytes(), [0x8002u32, 1].as_bytes(), 9u64.as_bytes()],
        ),
        (Releasedir, &[&zeros[..24]]),
        (Flush, &[&zeros[..24]]),
        (Fsync, &[[1u64, 1].as_bytes()]),
        (Fsyncdir, &[[1u64, 0].as_bytes()]),
        (
            Setxattr,
            &[[5u32, 1, 1, 0].as_bytes(), b"user.a/b\0", b"value"],
        ),
        (Getxattr, &[[256u32, 0].as_bytes(), b"user.name\0"]),
        (Listxattr, &[[0u32, 0].as_bytes()]),
        (Removexattr, &[b"user.name\0"]),
        (
            Init,
            &[
                [7u32, 45, 1 << 17, 1 | 1 << 30, 1 << 5].as_bytes(),
                &zeros[..44],
            ],
        ),
        (Destroy, &[]),
        (Getlk, &[&zeros[..48]]),
        (Setlk, &[&zeros[..48]]),
        (Setlkw, &[&zeros[..48]]),
        (Access, &[[4u32, 0].as_bytes()]),
        (Interrupt, &[77u64.as_bytes()]),
        (Bmap, &[&zeros[..16]]),
        (
            Ioctl,
            &[
                1u64.as_bytes(),
                [0u32, 0x4008_6602].as_bytes(),
                0xdeadu64.as_bytes(),
                [4u32, 8].as_bytes(),
                b"flag",
            ],
        ),
        (Poll, &[&zeros[..24]]),
        (
            NotifyReply,
            &[&zeros[..16], [3u32, 0].as_bytes(), &zeros[..16], b"abc"],
        ),
        (
            BatchForget,
            &[[2u32, 0].as_bytes(), [5u64, 1, 6, 2].as_bytes()],
        ),
        (Fallocate, &[&zeros[..32]]),
        (Lseek, &[&zeros[..24]]),
        (CopyFileRange, &[&zeros[..56]]),
        (CopyFileRange64, &[&zeros[..56]]),
        (Setupmapping, &[&zeros[..40]]),
        (
            Removemapping,
            &[1u32.as_bytes(), [4096u64, 8192].as_bytes()],
        ),
        (
            Tmpfile,
            &[[0x41_0002u32, 0o100_600, 0o77, 0].as_bytes(), b"/\0"],
        ),
        (Statx, &[&zeros[..16], [0u32, 0xfff].as_bytes()]),
    ];
    let mut all: Vec<_> = plain
        .iter()
        .map(|(op, body)| (*op, request(*op, body)))
        .collect();
    all.push((Create, create(&[])));
    all.push((Create, create_with_extensions()));
    all.push((Mkdir, extended(Mkdir, &[&zeros[..8], name], &groups())));
    all.push((
        Symlink,
        extended(Symlink, &[name, b"target\0"], &contexts()),
    ));
    // Security contexts of which there are none.
    all.push((
        Mknod,
        extended(Mknod, &[&zeros[..16], name], [8u32, 0].as_bytes()),
    ));
    all
}
