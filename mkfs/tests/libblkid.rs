//! The prober for libblkid in docs/libblkid.md: it compiles, and finds what we find.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use common::*;

/// The first block of the page in this language: the file of the prober, or the commands.
fn text(language: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/libblkid.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split("```").next().unwrap().to_owned()
}

fn compiled(dir: &std::path::Path) -> PathBuf {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libblkid");
    let (source, program) = (dir.join("pramfs.c"), dir.join("probe"));
    fs::write(&source, text("c")).unwrap();
    let cc = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            here,
            "-o",
        ])
        .args([&program, &source, &PathBuf::from(here).join("main.c")])
        .output()
        .expect("a C compiler, which the build needs too");
    assert!(
        cc.status.success(),
        "{}",
        String::from_utf8_lossy(&cc.stderr)
    );
    program
}

#[test]
fn prober_of_libblkid_finds_what_export_finds() {
    let dir = scratch();
    let probe = compiled(dir.path());
    let probe = |path: &str| run(probe.to_str().unwrap(), [path]);
    let path = dir.path().join("region").to_str().unwrap().to_owned();
    mkfs(["-q", "-b", "1024", "-L", "my disk", &path, "16M"]).ok();
    // Each property that both have.
    let exported = pramfs(["info", "--export", &path]).ok().out;
    let of_export = |name: &str| {
        let line = exported
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap().to_owned()
    };
    let expected = format!(
        "LABEL={}\nUUID={}\nVERSION={}\nBLOCK_SIZE={}\nTYPE={}\n",
        of_export("ID_FS_LABEL"),
        of_export("ID_FS_UUID"),
        of_export("ID_FS_VERSION"),
        of_export("ID_FS_BLOCKSIZE"),
        of_export("ID_FS_TYPE"),
    );
    assert_eq!(probe(&path).ok().out, expected);
    // A damaged first page, with and without its magic.
    let region = fs::File::options().write(true).open(&path).unwrap();
    for damaged in [100, 0] {
        region.write_all_at(&[0xff; 8], damaged).unwrap();
        assert_eq!(probe(&path).ok().out, expected, "{damaged}");
    }
    region.write_all_at(&[0xff; 8], (64 << 10) + 100).unwrap();
    let none = probe(&path);
    assert_eq!((none.status, &*none.out), (2, ""));
    let other = dir.path().join("other");
    fs::write(&other, [b"PRAMFSrs".as_slice(), &[0; 300_000]].concat()).unwrap();
    assert_eq!(probe(other.to_str().unwrap()).status, 2);
}

/// Each file, and the line that follows that of XFS. Around it are lines that resemble it.
#[test]
fn commands_of_page_add_prober_beside_that_of_xfs() {
    let dir = scratch();
    let files = [
        (
            "src/superblocks/superblocks.h",
            "extern const struct blkid_idinfo jfs_idinfo;\nextern const struct blkid_idinfo xfs_idinfo;\nextern const struct blkid_idinfo xfs_log_idinfo;\n",
            "extern const struct blkid_idinfo pramfs_idinfo;",
        ),
        (
            "src/superblocks/superblocks.c",
            "static const struct blkid_idinfo *idinfos[] =\n{\n\t/* Filesystems */\n\t&swap_idinfo,\n\t&xfs_idinfo,\n\t&xfs_log_idinfo,\n};\n",
            "\t&pramfs_idinfo,",
        ),
        (
            "src/Makemodule.am",
            "libblkid_la_SOURCES = \\\n\tlibblkid/src/superblocks/vxfs.c \\\n\tlibblkid/src/superblocks/xfs.c \\\n\tlibblkid/src/superblocks/zfs.c \\\n\t\\\n\tlibblkid/src/topology/topology.c\n",
            "\tlibblkid/src/superblocks/pramfs.c \\",
        ),
        (
            "meson.build",
            "lib_blkid_sources = '''\n  src/superblocks/vxfs.c\n  src/superblocks/xfs.c\n  src/superblocks/zfs.c\n'''.split()\n",
            "  src/superblocks/pramfs.c",
        ),
    ];
    for (name, before, _) in files {
        let path = dir.path().join("libblkid").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, before).unwrap();
    }
    let applied = Command::new("sh")
        .args(["-euc", &text("sh")])
        .current_dir(dir.path())
        .status();
    assert!(applied.unwrap().success());
    for (name, before, line) in files {
        let after = fs::read_to_string(dir.path().join("libblkid").join(name)).unwrap();
        let added: Vec<_> = after.lines().filter(|l| l.contains("pramfs")).collect();
        assert_eq!(added, [line], "{name}");
        assert_eq!(after.replace(&format!("{line}\n"), ""), before, "{name}");
        let of_xfs = line.replace("pramfs", "xfs");
        assert!(
            after.contains(&format!("\n{of_xfs}\n{line}\n")),
            "{name}: {after}"
        );
    }
}
