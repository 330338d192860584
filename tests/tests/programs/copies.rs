//! Copies of a tree with objects of every kind: a round trip with rsync, and tar with
//! extended attributes and ACLs.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pramfs_tests::suite::{Run, find, mount_for, say, unmount_and_check};

use crate::{TIMEOUT, alone, full, sources};

/// Creates the tree in `$1`: files of all kinds and sizes, holes, links, special files,
/// owners, permissions, times, attributes, and, if `$2` is "acl", ACLs. `$3` are the
/// sources, `$4` the number of additional files.
const TREE: &str = r#"
cd "$1"
mkdir plain deep special links attributes
tar -C "$3" --exclude=./target --exclude=./.git --exclude=./fuzz -cf - . | tar -C plain -xf -
for i in $(seq "$4"); do echo "$i" > "plain/f$i"; done
d=deep; for i in $(seq 30); do d=$d/level$i; done; mkdir -p "$d"; echo deep > "$d/file"
head -c 3000000 /dev/urandom > plain/random
truncate -s 100M plain/hole; printf x | dd of=plain/hole bs=1 seek=50M conv=notrunc status=none
: > plain/empty
mkfifo special/fifo; mknod special/char c 1 3; mknod special/block b 7 99
python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("special/socket")'
echo linked > links/one; for i in $(seq 20); do ln links/one "links/name$i"; done
ln -s one links/symlink; ln -s nowhere links/dangling; ln -s "$(printf 'x%.0s' $(seq 1000))" links/long
name=$(printf 'n%.0s' $(seq 255)); echo long > "links/$name"
printf 'odd' > "links/$(printf 'new\nline \\ and \xff')"
for i in $(seq 50); do setfattr -n "user.name$i" -v "value $i" attributes; done
echo x > attributes/file; setfattr -n user.big -v "$(head -c 3000 /dev/zero | tr '\0' v)" attributes/file
setfattr -n trusted.t -v 0x00ff00 attributes/file
setfattr -n security.s -v label attributes/file
echo c > attributes/capable; setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 attributes/capable
if test "$2" = acl; then
    echo a > attributes/acl; setfacl -m u:daemon:rw,g:nogroup:r,m::rwx attributes/acl
    mkdir attributes/default; setfacl -d -m u:daemon:rwx,g:nogroup:rx attributes/default
    echo inherited > attributes/default/file
fi
chown daemon:nogroup special/fifo plain/empty; chown -h nobody links/symlink
chmod 4755 plain/f1; chmod 2755 deep; chmod 1777 special; chmod 000 plain/f2
touch -d '1970-01-02 03:04:05.678901234' plain/f3; touch -d '2100-01-01 00:00:00.000000001' plain/f4
touch -h -d '2001-02-03 04:05:06.5' links/symlink; touch -d '1999-12-31' deep links
"#;

/// All attributes of a tree, one line for each file.
const LIST: &str = r#"
cd "$1"
find . -printf '%P\t%y\t%m\t%U:%G\t%n\t%s\t%T@\t%l\n' | sed -E 's/\td\t([0-7]+)\t([0-9:]+)\t[0-9]+\t[0-9]+\t/\td\t\1\t\2\t-\t-\t/' | LC_ALL=C sort
find . -print0 | LC_ALL=C sort -z | xargs -0 getfattr -h -d -m - -e hex
test "$2" != acl || find . ! -type l -print0 | LC_ALL=C sort -z | xargs -0 getfacl -p
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
# Which names are one file.
find . -type f -links +1 -printf '%i\t%P\n' | LC_ALL=C sort -k2 | awk '{ if (!($1 in n)) n[$1] = ++k; print n[$1] "\t" $2 }'
"#;

/// Whether a directory's file system implements ACLs, rather than storing them as
/// attributes: the mask of one is the group of the mode.
fn takes_acl(dir: &Path) -> bool {
    let probe = dir.join("probe");
    std::fs::write(&probe, "").unwrap();
    std::fs::set_permissions(&probe, PermissionsExt::from_mode(0o600)).unwrap();
    let out = Run::new("setfacl", find("setfacl").unwrap(), TIMEOUT)
        .args(["-m", "u:daemon:rwx"])
        .arg(&probe)
        .output();
    let mode = std::fs::metadata(&probe).unwrap().permissions().mode();
    std::fs::remove_file(&probe).unwrap();
    out.status.success() && mode & 0o777 == 0o670
}

fn list(dir: &Path, acl: &str) -> String {
    Run::script("list of a tree", LIST, TIMEOUT)
        .arg(dir)
        .arg(acl)
        .succeed()
        .text
}

fn same(is: &str, should: &str, what: &str) {
    if is == should {
        return;
    }
    let set = |text| -> BTreeSet<&str> { str::lines(text).collect() };
    let (is, should) = (set(is), set(should));
    let first = |a: &BTreeSet<&str>, b| -> Vec<String> {
        a.difference(b).take(10).map(|l| (*l).to_owned()).collect()
    };
    let (new, gone) = (first(&is, &should), first(&should, &is));
    panic!("{what}: has {new:#?} instead of {gone:#?}");
}

#[test]
fn rsync_and_tar_round_trip_tree() {
    let test = "rsync -aHAX and tar";
    let programs = [
        "rsync",
        "tar",
        "setfattr",
        "setfacl",
        "python3",
        "sha256sum",
    ];
    let _alone = alone();
    let Some(mount) = mount_for(test, &programs, 1024, "") else {
        return;
    };
    // On the file system for temporary files.
    let dir = tempfile::tempdir().unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    for dir in [&tree, &back] {
        std::fs::create_dir(dir).unwrap();
    }
    let acl = match (takes_acl(&tree), takes_acl(&mount.path())) {
        (true, true) => "acl",
        (here, there) => {
            say(format_args!(
                "\n*** NOT TESTED: ACLs and cp -a: ACLs are stored and not obeyed {} ***\n",
                match (here, there) {
                    (true, _) => "on the mount",
                    (_, true) => "in the temporary directory",
                    _ => "in either place",
                }
            ));
            ""
        }
    };
    let files = if full() { "20000" } else { "1000" };
    Run::script("make a tree", TREE, TIMEOUT)
        .arg(&tree)
        .arg(acl)
        .arg(sources())
        .arg(files)
        .succeed();
    let should = list(&tree, acl);

    let options = if acl.is_empty() { "-aHXS" } else { "-aHAXS" };
    // rsync treats times within the same second as equal by default.
    let rsync = |from: &Path, to: &Path, more: &[&str]| {
        Run::new("rsync", find("rsync").unwrap(), TIMEOUT)
            .arg("--modify-window=-1")
            .arg(options)
            .args(more)
            .arg(format!("{}/", from.display()))
            .arg(format!("{}/", to.display()))
            .succeed()
            .text
    };
    let there = mount.at("rsync");
    std::fs::create_dir(&there).unwrap();
    rsync(&tree, &there, &[]);
    same(&list(&there, acl), &should, "rsync to the mount");
    let again = rsync(&tree, &there, &["-ni", "--checksum", "--delete"]);
    assert!(again.trim().is_empty(), "rsync would change: {again}");
    let blocks = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).unwrap().blocks()
    };
    assert!(
        blocks(&there.join("plain/hole")) < 4096,
        "a hole has become blocks"
    );

    let script = r#"
mkdir "$2" "$3"
tar -C "$1" --xattrs --xattrs-include='*' $4 --sparse -cf "$2.tar" .
tar -C "$2" --xattrs --xattrs-include='*' $4 --same-owner -xpf "$2.tar"
tar -C "$2" --xattrs --xattrs-include='*' $4 -df "$2.tar"
cp -a "$2/." "$3"
"#;
    let (unpacked, copied) = (mount.at("tar"), mount.at("copied"));
    Run::script("tar", script, TIMEOUT)
        .arg(&there)
        .arg(&unpacked)
        .arg(&copied)
        .arg(if acl.is_empty() { "" } else { "--acls" })
        .succeed();
    // Archives contain no sockets: the socket's line is missing, and so is its list,
    // which ends with an empty line.
    let without = |text: &str| -> String {
        let mut list = false;
        text.lines()
            .filter(|l| {
                let skipped = list || *l == "# file: ./special/socket";
                list = skipped && !l.is_empty();
                !skipped && !l.starts_with("special/socket\t")
            })
            .map(|l| format!("{l}\n"))
            .collect()
    };
    same(&list(&unpacked, acl), &without(&should), "tar");
    // cp sets the mode by an ACL if it expects ACL support.
    if !acl.is_empty() {
        same(&list(&copied, acl), &without(&should), "cp -a");
    }

    mount.unmount();
    mount.mount("");
    rsync(&there, &back, &[]);
    same(&list(&back, acl), &should, "rsync back, after a remount");
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {} lines about a tree, the same 4 times; fsck: {check}",
        should.lines().count()
    ));
}
