//! The completion scripts in the shells that they are for.

use std::path::Path;
use std::process::Command;

use crate::shells::has;
use pramfs_manuals::{completions, programs};

fn written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pramfs_manuals::write_all(dir.path()).unwrap();
    dir
}

/// What a command prints, without an error.
fn output(command: &mut Command) -> String {
    let output = command.env("LC_ALL", "C.UTF-8").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{command:?}: {errors}"
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_program_has_a_script_for_each_shell() {
    let scripts = completions::all();
    for program in programs() {
        for shell in ["bash", "zsh", "fish"] {
            let of = scripts
                .iter()
                .filter(|s| s.program == program.name && s.shell == shell);
            assert_eq!(of.count(), 1, "{} for {shell}", program.name);
        }
    }
}

#[test]
fn scripts_are_accepted_by_their_shells() {
    let dir = written();
    for shell in ["bash", "zsh", "fish"] {
        if !has(shell, "scripts_are_accepted_by_their_shells") {
            continue;
        }
        for script in completions::all().iter().filter(|s| s.shell == shell) {
            let file = dir
                .path()
                .join("completions")
                .join(shell)
                .join(&script.file);
            output(Command::new(shell).arg("-n").arg(&file));
        }
    }
}

/// What bash proposes for the last word of a line.
fn bash(dir: &Path, line: &str) -> Vec<String> {
    let words: Vec<_> = line.split(' ').collect();
    let (program, word) = (words[0], words[words.len() - 1]);
    let before = words[words.len() - 2];
    let script = dir.join("completions/bash").join(program);
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let code = format!(
        "source '{script}'
         spec=$(complete -p '{program}')
         function=${{spec##*-F }}; function=${{function%% *}}
         COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{line}'; COMP_POINT={length}
         $function '{program}' '{word}' '{before}'
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script = script.display(),
        words = quoted.join(" "),
        last = words.len() - 1,
        length = line.len(),
    );
    let text = output(Command::new("bash").args(["--norc", "-c", &code]));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_proposes_subcommands_flags_and_mount_options() {
    if !has("bash", "bash_proposes_subcommands_flags_and_mount_options") {
        return;
    }
    let dir = written();
    for (line, expected) in [
        ("pramfs sc", "scrub"),
        ("pramfs ls --rec", "--recursive"),
        ("mount.pramfs --req", "--require-dax"),
        ("mount.pramfs -o cache", "cache=writeback"),
        ("mount.pramfs --backend n", "native"),
        ("mkfs.pramfs --dry", "--dry-run"),
        ("fsck.pramfs --pre", "--preen"),
        ("umount.fuse.pramfs --la", "--lazy"),
        ("pramfs-virtiofsd --cache me", "metadata"),
    ] {
        let proposed = bash(dir.path(), line);
        assert!(
            proposed.iter().any(|word| word == expected),
            "{line}: {proposed:?}"
        );
    }
}

#[test]
fn fish_proposes_subcommands_and_flags() {
    if !has("fish", "fish_proposes_subcommands_and_flags") {
        return;
    }
    let dir = written();
    for (line, expected) in [
        ("pramfs sc", "scrub"),
        ("mount.pramfs --req", "--require-dax"),
        ("mkfs.pramfs --dry", "--dry-run"),
    ] {
        let program = line.split(' ').next().unwrap();
        let script = dir.path().join(format!("completions/fish/{program}.fish"));
        let code = format!("source {}; complete -C '{line}'", script.display());
        let home = dir.path().join("home");
        let text = output(
            Command::new("fish")
                .args(["--no-config", "-c", &code])
                .env("HOME", home),
        );
        let words: Vec<_> = text.lines().filter_map(|l| l.split('\t').next()).collect();
        assert!(words.contains(&expected), "{line}: {text}");
    }
}
