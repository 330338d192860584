//! Compares all structures, fields and numbers with `<linux/fuse.h>` of this machine.
//!
//! A C program prints what the header says of each row of the tables. In the other
//! direction, each name of the header must be in the tables or in [`LEFT_OUT`]. With
//! `PRAMFS_FUSE_INCLUDE=DIR` the header is `DIR/linux/fuse.h`, for example of a newer kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use pramfs_fuse_protocol::tables::{CONSTANTS, Constant, FLOOR, STRUCTS, Struct};
use pramfs_fuse_protocol::{Errno, numbers};

/// Names of the header that this crate has no use for, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("_LINUX_FUSE_H", "guard of the header"),
    (
        "FUSE_KERNEL_MINOR_VERSION",
        "that of the header; ours is numbers::MINOR",
    ),
    ("FUSE_REC_ALIGN", "computes"),
    ("FUSE_DIRENT_ALIGN", "computes"),
    ("FUSE_DIRENT_SIZE", "computes"),
    ("FUSE_DIRENTPLUS_SIZE", "computes"),
    ("FUSE_NAME_OFFSET", "the size of Dirent"),
    ("FUSE_NAME_OFFSET_DIRENTPLUS", "the size of Direntplus"),
    ("FUSE_REMOVEMAPPING_MAX_ENTRY", "computes"),
    ("FUSE_COMPAT_ENTRY_OUT_SIZE", "before 7.9"),
    ("FUSE_COMPAT_ATTR_OUT_SIZE", "before 7.9"),
    ("FUSE_COMPAT_MKNOD_IN_SIZE", "before 7.12"),
    ("FUSE_COMPAT_WRITE_IN_SIZE", "before 7.9"),
    ("FUSE_COMPAT_STATFS_SIZE", "before 7.4"),
    ("FUSE_COMPAT_INIT_OUT_SIZE", "before 7.5"),
    (
        "FUSE_WRITE_KILL_PRIV",
        "another name of FUSE_WRITE_KILL_SUIDGID",
    ),
    (
        "FUSE_DIRECT_IO_RELAX",
        "another name of FUSE_DIRECT_IO_ALLOW_MMAP",
    ),
    ("FUSE_NOTIFY_CODE_MAX", "the end of the list"),
    ("FUSE_IO_URING_CMD_INVALID", "no command"),
    ("FUSE_INIT_BSWAP_RESERVED", "INIT in the other byte order"),
    ("CUSE_INIT_BSWAP_RESERVED", "CUSE"),
    ("CUSE_INIT", "CUSE"),
    ("CUSE_INIT_INFO_MAX", "CUSE"),
    ("CUSE_UNRESTRICTED_IOCTL", "CUSE"),
    ("cuse_init_in", "CUSE"),
    ("cuse_init_out", "CUSE"),
];

fn constants() -> impl Iterator<Item = &'static Constant> {
    CONSTANTS.iter().copied().flatten()
}

fn structs() -> impl Iterator<Item = &'static Struct> {
    STRUCTS.iter().copied().flatten()
}

/// A line that is seen although the test passes.
fn say(line: &str) {
    let _unheard = writeln!(std::io::stderr(), "{line}");
}

/// Returns a compiler, ready for the header.
fn compiler() -> Command {
    let mut cc = Command::new("cc");
    if let Some(dir) = std::env::var_os("PRAMFS_FUSE_INCLUDE") {
        cc.arg("-I").arg(dir);
    }
    cc
}

/// Returns the path of the header, or says why there is none.
fn header() -> Option<PathBuf> {
    let mut cc = compiler();
    cc.args(["-M", "-include", "linux/fuse.h", "-x", "c", "/dev/null"]);
    let found = match cc.output() {
        Err(error) => Err(format!("there is no C compiler (cc): {error}")),
        Ok(out) if !out.status.success() => Err("<linux/fuse.h> is missing".to_owned()),
        Ok(out) => Ok(String::from_utf8(out.stdout).expect("paths")),
    };
    match found {
        Ok(list) => {
            let mut paths = list.split_whitespace();
            let path = paths.find(|path| path.ends_with("linux/fuse.h"));
            Some(path.expect("the compiler lists the header").into())
        }
        Err(why) => {
            say(&format!(
                "\n*** SKIPPED: comparison with the kernel's header: {why} ***\n"
            ));
            assert!(std::env::var_os("CI").is_none(), "{why}");
            None
        }
    }
}

/// Returns what the header says of each row, by the row's name.
fn printed() -> BTreeMap<String, u64> {
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <errno.h>\n#include <sys/ioctl.h>\n\
         #include <linux/fuse.h>\n\
         #define SAY(name, value) printf(\"%s %llu\\n\", name, (unsigned long long)(value))\n\
         #define WIDTH(value) (sizeof(value) == 4 ? (unsigned)(value) : (value))\n\
         int main(void) {\nSAY(\"minor\", FUSE_KERNEL_MINOR_VERSION);\n",
    );
    let mut row = |since: u32, name: &str, value: &str| {
        writeln!(source, "#if FUSE_KERNEL_MINOR_VERSION >= {since}").unwrap();
        writeln!(source, "SAY(\"{name}\", {value});\n#endif").unwrap();
    };
    for c in constants() {
        row(c.since, c.name, &format!("WIDTH({})", c.name));
    }
    for s in structs() {
        row(s.since, s.name, &format!("sizeof(struct {})", s.name));
        for f in s.fields {
            let (name, since) = (format!("{}.{}", s.name, f.name), f.since.max(s.since));
            let offset = format!("offsetof(struct {}, {})", s.name, f.name);
            row(since, &format!("{name}@"), &offset);
            let size = format!("sizeof(((struct {} *)0)->{})", s.name, f.name);
            row(since, &name, &size);
        }
    }
    for name in [
        "EIO",
        "EAGAIN",
        "EINVAL",
        "ENAMETOOLONG",
        "ENOSYS",
        "EPROTO",
    ] {
        row(0, name, name);
    }
    source.push_str("return 0;\n}\n");

    let dir = tempfile::tempdir().unwrap();
    let (c, program) = (dir.path().join("rows.c"), dir.path().join("rows"));
    std::fs::write(&c, source).unwrap();
    let out = compiler().arg("-o").arg(&program).arg(&c).output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let out = Command::new(&program).output().unwrap();
    let lines = String::from_utf8(out.stdout).unwrap();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.lines().map(pair).collect()
}

#[test]
fn tables_agree_with_kernel_header() {
    if header().is_none() {
        return;
    }
    let printed = printed();
    let minor = printed["minor"];
    if minor < u64::from(FLOOR) {
        say(&format!(
            "\n*** SKIPPED: comparison with the kernel's header: it has 7.{minor}, and 7.{FLOOR} \
             is the oldest that the tables describe ***\n"
        ));
        return;
    }
    let mut newer = Vec::new();
    let mut compared = 0;
    let mut row = |name: String, since: u32, value: u64| {
        if u64::from(since) > minor {
            newer.push(format!("{name} (7.{since})"));
            return;
        }
        assert_eq!(printed.get(&name), Some(&value), "{name}");
        compared += 1;
    };
    for c in constants() {
        row(c.name.to_owned(), c.since, c.value);
    }
    for s in structs() {
        row(s.name.to_owned(), s.since, s.size as u64);
        for f in s.fields {
            let (name, since) = (format!("{}.{}", s.name, f.name), f.since.max(s.since));
            row(format!("{name}@"), since, f.offset as u64);
            row(name, since, f.size as u64);
        }
    }
    for errno in [
        ("EIO", Errno::EIO),
        ("EAGAIN", Errno::EAGAIN),
        ("EINVAL", Errno::EINVAL),
        ("ENAMETOOLONG", Errno::ENAMETOOLONG),
        ("ENOSYS", Errno::ENOSYS),
        ("EPROTO", Errno::EPROTO),
    ] {
        row(errno.0.to_owned(), 0, errno.1.number() as u64);
    }
    assert!(compared > 500, "{compared} rows were compared");
    newer.retain(|name| !name.contains('@'));
    if !newer.is_empty() {
        say(&format!(
            "{compared} rows agree with 7.{minor}. Not checked, because the header is older: {}",
            newer.join(", ")
        ));
    }
}

/// Returns the text of the header without comments.
fn text(path: &PathBuf) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code.push_str(part.split_once("*/").map_or("", |(_, after)| after));
    }
    code
}

/// Returns the names of all macros, enumerators and structures.
fn names(code: &str) -> BTreeSet<&str> {
    let word = |s: &'static str| move |line: &&str| line.starts_with(s);
    let identifier = |rest: &'_ str| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        end.unwrap_or(rest.len())
    };
    let lines = || code.lines().map(str::trim);
    let macros = lines().filter(word("#define"));
    let macros = macros.map(|l| l["#define".len()..].trim_start());
    let structs = lines().filter(|l| l.starts_with("struct ") && l.ends_with('{'));
    let structs = structs.map(|l| l["struct ".len()..].trim_start());
    let enumerators = code.split("enum ").skip(1).flat_map(|part| {
        let body = part.split_once('{').map_or("", |(_, body)| body);
        let body = body.split('}').next().unwrap_or_default();
        body.split(',').map(str::trim)
    });
    let all = macros.chain(structs).chain(enumerators);
    all.map(|rest| &rest[..identifier(rest)])
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_name_of_kernel_header_is_in_tables() {
    let Some(path) = header() else { return };
    let code = text(&path);
    let names = names(&code);
    assert!(names.len() > 200, "{} names", names.len());
    for name in [
        "FUSE_ASYNC_READ",
        "FUSE_LOOKUP",
        "FUSE_MAX_NR_SECCTX",
        "fuse_attr",
    ] {
        assert!(names.contains(name), "{name} is not seen in the header");
    }
    let ours = constants().map(|c| c.name).chain(structs().map(|s| s.name));
    let ours: BTreeSet<&str> = ours.chain(LEFT_OUT.iter().map(|(name, _)| *name)).collect();
    let unknown: Vec<_> = names.difference(&ours).collect();
    let minor = printed()["minor"];
    if minor > u64::from(numbers::MINOR) && !unknown.is_empty() {
        say(&format!(
            "The header has 7.{minor}, which is newer than this crate. Unknown: {unknown:?}"
        ));
        return;
    }
    assert_eq!(
        unknown,
        Vec::<&&str>::new(),
        "7.{minor}: {}",
        path.display()
    );
}

#[test]
fn structures_have_no_gaps_and_no_name_twice() {
    let mut seen = BTreeSet::new();
    for s in structs() {
        assert!(seen.insert(s.name), "{} is there twice", s.name);
        let mut end = 0;
        for f in s.fields {
            assert_eq!(f.offset, end, "{}.{}", s.name, f.name);
            end += f.size;
        }
        assert_eq!(end, s.size, "{}", s.name);
    }
    for c in constants() {
        assert!(seen.insert(c.name), "{} is there twice", c.name);
    }
    for (name, _) in LEFT_OUT {
        assert!(seen.insert(name), "{name} is left out and there");
    }
}
