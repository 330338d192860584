//! git: creates a repository with history, clones it, checks it out, collects garbage and
//! checks it.

use std::fmt::Write as _;
use std::fs;

use pramfs_tests::random::Random;
use pramfs_tests::suite::{Run, mount_for, say, unmount_and_check};

use crate::{TIMEOUT, alone, full};

/// A history for `git fast-import`: files that change, appear and disappear, and a branch
/// that is merged now and then.
fn history(commits: u64) -> String {
    let mut random = Random::new(7);
    let mut text = String::new();
    let mut side = None;
    for n in 1..=commits {
        let on_side = side.is_some() && random.one_in(3);
        let branch = if on_side { "side" } else { "main" };
        let message = format!("change {n}");
        let time = 1_500_000_000 + n * 60;
        let who = format!("A U Thor <author@example.org> {time} +0000");
        write!(
            text,
            "commit refs/heads/{branch}\nmark :{n}\nauthor {who}\ncommitter {who}\ndata {}\n{message}\n",
            message.len()
        )
        .expect("into memory");
        if branch == "side"
            && let Some(from @ 1..) = side
        {
            writeln!(text, "from :{from}").expect("into memory");
            // From here on, the branch exists.
            side = Some(0);
        } else if branch == "main" && side == Some(0) && random.one_in(20) {
            writeln!(text, "merge refs/heads/side").expect("into memory");
        }
        for _ in 0..1 + random.below(4) {
            let path = format!(
                "d{}/e{}/f{}",
                random.below(8),
                random.below(8),
                random.below(40)
            );
            if n > 20 && random.one_in(8) {
                writeln!(text, "D {path}").expect("into memory");
                continue;
            }
            let lines = 1 + random.below(200);
            let body: String = (0..lines)
                .map(|_| format!("{:x}\n", random.word()))
                .collect();
            writeln!(text, "M 100644 inline {path}\ndata {}\n{body}", body.len())
                .expect("into memory");
        }
        if n.is_multiple_of(100) {
            writeln!(text, "reset refs/tags/t{n}\nfrom :{n}\n").expect("into memory");
        }
        if n == 30 {
            side = Some(n);
        }
    }
    text
}

const SCRIPT: &str = r#"
export HOME=$1 GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0
cd "$1"
git init -q --bare -b main origin.git
git -C origin.git fast-import --quiet < "$2"
git -C origin.git fsck --full --strict --no-dangling
# Over the protocol, not by links to the objects.
git clone -q "file://$1/origin.git" clone
cd clone
for tag in $(git tag); do
    git checkout -q "$tag"
    test -z "$(git status --porcelain)"
done
git checkout -q main
git config user.name A; git config user.email a@example.org
echo more > more; git add more; git commit -q -m more
git branch topic HEAD~5; git worktree add -q ../tree topic
git -C ../tree rebase -q main
git push -q origin main topic
git stash list; git gc -q --aggressive --prune=now
git fsck --full --strict --no-dangling
git -C ../origin.git gc -q --prune=now
git -C ../origin.git fsck --full --strict --no-dangling
test "$(git rev-parse main)" = "$(git -C ../origin.git rev-parse main)"
cd ..
# Objects in files of their own, one each.
git clone -q --local origin.git loose
cd loose
mkdir ../packs; mv .git/objects/pack/* ../packs
for pack in ../packs/*.pack; do git unpack-objects -q < "$pack"; done
git fsck --full --strict --no-dangling
git count-objects
"#;

#[test]
fn git_clone_checkout_gc_fsck_work() {
    let test = "git";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["git"], 1024, "") else {
        return;
    };
    let commits = if full() { 5000 } else { 600 };
    let dir = tempfile::tempdir().unwrap();
    let stream = dir.path().join("history");
    fs::write(&stream, history(commits)).unwrap();
    let out = Run::script("git", SCRIPT, TIMEOUT)
        .arg(mount.path())
        .arg(&stream)
        .succeed();
    mount.unmount();
    mount.mount("");
    Run::script("git fsck", "git -C \"$1\" fsck --full --strict --no-dangling && test -z \"$(git -C \"$1\" status --porcelain)\"", TIMEOUT)
        .arg(mount.at("clone"))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .succeed();
    let check = unmount_and_check(&mount);
    let objects = out.text.lines().last().unwrap_or_default();
    say(format_args!(
        "{test}: {commits} commits, {objects}, in {:.0} s; fsck: {check}",
        out.took.as_secs_f64()
    ));
}
