//! tar, rsync, cp, sort and grep over a tree: the results are the same byte for byte.

use std::fs;
use std::path::Path;

use pramfs_tests::suite::{Run, say};

use crate::support::Share;
use crate::{Both, TIMEOUT, full, list, same};

/// Makes the tree in `$1` from the sources in `$2`, with `$3` MiB of random bytes and as many
/// lines, from a fixed seed. `$4` is a Python.
const TREE: &str = r#"
mkdir "$1/sources"
tar -C "$2" --exclude=./target --exclude=./.git --exclude=./fuzz -cf - . | tar -C "$1/sources" -xf -
cd "$1"
"$4" - "$3" <<'end'
import random, sys
chance, mib = random.Random(7), int(sys.argv[1])
open("random", "wb").write(chance.randbytes(mib << 20))
open("changed", "wb").write(chance.randbytes((mib << 20) - 12345))
with open("lines", "w") as lines:
    for _ in range(mib * 20000):
        lines.write("%x %d\n" % (chance.getrandbits(128), chance.randrange(100)))
with open("hole", "wb") as hole:
    hole.truncate(64 << 20)
    hole.seek(40 << 20)
    hole.write(b"x" * 5000)
end
ln random linked; ln -s random symbolic; : > empty; chmod 4755 empty; mkfifo fifo
touch -d '1999-12-31 01:02:03.5' random sources
"#;

/// Steps in a directory of their own. `$1` is the tree.
const STEPS: [(&str, &str); 6] = [
    (
        "tar",
        "tar -C \"$1\" --sort=name --format=gnu --sparse -cf tree.tar .
         mkdir tar; tar -C tar -xpf tree.tar; tar -C tar -df tree.tar",
    ),
    (
        "rsync",
        "rsync -aHS --checksum --modify-window=-1 \"$1/\" rsync/
         cp tar/changed rsync/random
         rsync -aH --checksum --inplace --no-whole-file --modify-window=-1 \"$1/\" rsync/
         test -z \"$(rsync -aHni --checksum --delete --modify-window=-1 \"$1/\" rsync/)\"",
    ),
    (
        "cp",
        "cp -a tar copied; cp --reflink=auto tar/random reflinked; cp -r tar/sources plain
         cp --sparse=always tar/hole sparse; cp --sparse=never tar/hole dense",
    ),
    (
        "sort",
        "mkdir temporary; LC_ALL=C sort -S 2M --parallel=2 -T temporary tar/lines -o sorted
         LC_ALL=C sort -c sorted; cp tar/lines in_place
         LC_ALL=C sort -u -k2n -S 2M -T temporary in_place -o in_place",
    ),
    (
        "grep",
        "LC_ALL=C grep -rc unsafe tar/sources | LC_ALL=C sort > counts
         LC_ALL=C grep -rlE 'f[n] ' tar/sources | LC_ALL=C sort > names; grep -c abc tar/lines > number",
    ),
    (
        "dd",
        "cp tar/random over
         dd if=tar/changed of=over bs=64k conv=notrunc oflag=seek_bytes seek=4096 status=none
         dd if=tar/changed of=over bs=4k count=200 conv=notrunc oflag=direct status=none
         dd if=over of=direct bs=1M iflag=direct status=none; cmp over direct; truncate -s -777 over",
    ),
];

/// Times of the copies that keep them.
fn times(dir: &Path) -> String {
    let script = "find tar rsync copied ! -type l -printf '%P\\t%T@\\n' | LC_ALL=C sort";
    let run = Run::script("list of times", script, TIMEOUT);
    run.dir(dir).succeed().text
}

#[test]
fn copies_are_those_of_tmpfs() {
    let test = "copies with the preload library";
    let programs = ["tar", "rsync", "python3", "sha256sum"];
    let Some(both) = Both::new(test, &programs, 1024) else {
        return;
    };
    let tree = both.tmpfs.path().join("tree");
    fs::create_dir(&tree).unwrap();
    Run::script("make a tree", TREE, TIMEOUT)
        .arg(&tree)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .arg(if full() { "64" } else { "4" })
        .arg(crate::PYTHON)
        .succeed();
    let (on_mount, on_tmpfs) = (both.on_mount("copies"), both.on_tmpfs("copies"));
    let (mut shares, mut sum) = (Vec::new(), Share::default());
    for (name, script) in STEPS {
        let run = |place: &crate::Place<'_>| place.script(name, script).arg(&tree).succeed().text;
        same(name, &run(&on_mount), &run(&on_tmpfs));
        let share = both.library.share();
        shares.push(format!("{name} {share}"));
        sum = sum + share;
    }
    same("files", &list(&on_mount.dir), &list(&on_tmpfs.dir));
    same("times", &times(&on_mount.dir), &times(&on_tmpfs.dir));
    let check = both.end();
    say(format_args!(
        "{test}: served: {}; of all {:.1} %; fsck: {check}",
        shares.join(", "),
        sum.percent()
    ));
}
