//! An overlay whose upper and work directories are on the mount.

use pramfs_tests::suite::{Run, mount_for, say, unmount_and_check};

use crate::{TIMEOUT, alone, sources};

/// `$1` the mount, `$2` a lower layer, `$3` the sources. Runs in a separate mount
/// namespace, so that the overlay disappears with it.
const SCRIPT: &str = r#"
mkdir "$1/upper" "$1/work" "$1/merged"
tar -C "$3" --exclude=./target --exclude=./.git --exclude=./fuzz -cf - . | tar -C "$2" -xf -
mkdir "$2/dir"; for i in $(seq 50); do echo "lower $i" > "$2/dir/f$i"; done
ln "$2/dir/f1" "$2/dir/linked"; setfattr -n user.x -v below "$2/dir/f9"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/merged"
cd "$1/merged"
diff -r --no-dereference "$2" .
# Copied up by a write, a change of attributes, a rename, a link.
echo more >> dir/f1; chmod 600 dir/f2; mv dir/f3 dir/renamed; ln dir/f4 dir/link4; touch -d 2001-01-01 dir/f5
setfattr -n user.y -v above dir/f9
test "$(cat dir/f1)" = "lower 1
more"
test "$(cat "$2/dir/f1")" = "lower 1"
test "$(getfattr --only-values -n user.x dir/f9)" = below
# Whiteouts, and opaque directories.
rm dir/f6; test ! -e dir/f6; test -c "$1/upper/dir/f6"
rm -r docs; mkdir docs; test -z "$(ls -A docs)"
rm -r scripts; test ! -e scripts
echo new > dir/f6; test "$(cat dir/f6)" = new
mkdir -p new/deep; echo x > new/deep/file; mv new/deep new/other
python3 - <<'P'
import os, mmap
f = os.open("dir/f7", os.O_RDWR)
m = mmap.mmap(f, 0); m[0:5] = b"UPPER"; m.flush(); m.close()
assert os.pread(f, 7, 0) == b"UPPER 7"
os.rename("dir/f7", "dir/f8")
P
# What somebody else changes runs with nobody's rights any more.
for how in "printf x >> dir/suid" "truncate -s 5 dir/suid" "fallocate -l 9000 dir/suid" \
    "dd if=/dev/zero of=dir/suid bs=1 count=1 conv=notrunc status=none"; do
    echo x > dir/suid; chmod 6777 dir/suid
    setpriv --reuid 1000 --regid 1000 --clear-groups bash -c "$how"
    left=$(stat -c %a dir/suid)
    test "$left" = 777 || { echo "$how leaves $left"; exit 1; }
done
find . -printf '%P %y %m %s %l\n' | LC_ALL=C sort > "$1/before"
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum > "$1/sums"
cd /; umount "$1/merged"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/merged"
cd "$1/merged"
find . -printf '%P %y %m %s %l\n' | LC_ALL=C sort | diff "$1/before" -
sha256sum --quiet -c "$1/sums"
cd /; umount "$1/merged"
rm -r "$1/upper" "$1/work" "$1/merged"
"#;

/// With `dev`, the kernel does not say on whose behalf the overlay asks.
#[test]
fn overlayfs_uses_mount_as_upper_layer() {
    for options in [
        "transport=fuser",
        "transport=dev",
        "transport=dev,cache=writeback",
    ] {
        use_with(options);
    }
}

fn use_with(options: &str) {
    let test = "overlay";
    let _alone = alone();
    let Some(mount) = mount_for(
        test,
        &["unshare", "setfattr", "setpriv", "python3"],
        512,
        options,
    ) else {
        return;
    };
    let lower = tempfile::tempdir().unwrap();
    let out = Run::new("overlay", "unshare", TIMEOUT)
        .args([
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            SCRIPT,
            "overlay",
        ])
        .arg(mount.path())
        .arg(lower.path())
        .arg(sources())
        .succeed();
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}, {options}: as it should, in {:.0} s; fsck: {check}",
        out.took.as_secs_f64()
    ));
}
