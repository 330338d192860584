//! git: a history, a clone over the protocol, garbage collection, checks. Its objects and
//! the files of its work tree are the same.

use pramfs_tests::suite::say;

use crate::{Both, full, same};

/// Makes `$1` commits. Names, times and contents are fixed.
const WORK: &str = r#"
git init -q -b main one
for n in $(seq "$1"); do
    for f in $(seq 5); do
        mkdir -p one/d$((n % 7))
        seq $((n * f)) $((n * f + 300)) > one/d$((n % 7))/f$f
    done
    git -C one add .
    export GIT_AUTHOR_DATE="$((1500000000 + n)) +0000" GIT_COMMITTER_DATE="$((1500000000 + n)) +0000"
    git -C one commit -q -m "change $n"
done
head -c 3000000 /dev/zero | tr '\0' x > one/large
git -C one add .
git -C one commit -q -m large
git clone -q "file://$PWD/one" two
git clone -q --no-hardlinks one three
git -C two checkout -q -b side HEAD~5
git -C two checkout -q main
git -C two repack -q -a -d -f --depth=10
git -C two gc -q --prune=now
git -C three rm -q -r d1
git -C three reset -q --hard
git -C three gc -q --aggressive --prune=now
"#;

/// What git says of its repositories.
const VIEW: &str = r#"
for repository in one two three; do
    git -C $repository fsck --full --strict --no-progress
    git -C $repository status --short
    git -C $repository log --format='%H %T %s' --stat
    git -C $repository ls-tree -r HEAD
    git -C $repository cat-file --batch-all-objects --batch-check --unordered | LC_ALL=C sort
    git -C $repository grep -c 77 | LC_ALL=C sort
    (cd $repository; find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
done
"#;

#[test]
fn git_repositories_are_those_of_tmpfs() {
    let test = "git with the preload library";
    let Some(both) = Both::new(test, &["git", "sha256sum"], 512) else {
        return;
    };
    let commits = if full() { "300" } else { "30" };
    let (on_mount, on_tmpfs) = (both.on_mount("git"), both.on_tmpfs("git"));
    let run = |place: &crate::Place<'_>, name, script| {
        place
            .script(name, script)
            .arg(commits)
            .env("HOME", &place.dir)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_AUTHOR_NAME", "A")
            .env("GIT_AUTHOR_EMAIL", "a@example.org")
            .env("GIT_COMMITTER_NAME", "A")
            .env("GIT_COMMITTER_EMAIL", "a@example.org")
            .succeed()
            .text
    };
    for (name, script) in [("git", WORK), ("git's view", VIEW)] {
        let (is, should) = (run(&on_mount, name, script), run(&on_tmpfs, name, script));
        same(name, &is, &should);
    }
    let share = both.library.share();
    // Another program, without the library, sees the same.
    let plain = crate::Place {
        dir: on_mount.dir.clone(),
        library: None,
    };
    let seen = run(&plain, "git's view", VIEW);
    same(
        "git without the library",
        &seen,
        &run(&on_tmpfs, "git's view", VIEW),
    );
    let check = both.end();
    say(format_args!(
        "{test}: {commits} commits, {} lines of its view, served: {share}; fsck: {check}",
        seen.lines().count()
    ));
}
