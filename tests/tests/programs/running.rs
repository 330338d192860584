//! Programs and shared libraries on the mount are executed, replaced while they run, and
//! write-protected while they run.

use pramfs_tests::suite::{Run, mount_for, say, unmount_and_check};

use crate::{TIMEOUT, alone, let_others_in};

const SCRIPT: &str = r#"
cd "$1"
cat > lib.c <<'C'
int answer(void) { return ANSWER; }
C
cat > main.c <<'C'
#include <stdio.h>
#include <unistd.h>
int answer(void);
static char page[3 << 20] = { 1 };
int main(int argc, char **argv) {
    printf("%d %d\n", answer(), page[argc - 1]);
    fflush(stdout);
    if (argc > 1) { char c; if (read(0, &c, 1) != 1) return 9; printf("%d\n", answer()); }
    return 0;
}
C
cc -shared -fPIC -DANSWER=41 -o libanswer.so lib.c
cc -o main main.c -L. -lanswer -Wl,-rpath,"$1"
test "$(./main)" = "41 1"

# A library is replaced under a running program, as a package manager does.
coproc RUNNING { ./main wait; }
# The shell forgets all three as soon as the program has ended.
running=$RUNNING_PID; exec {from}<&"${RUNNING[0]}" {to}>&"${RUNNING[1]}"
read -r line <&"$from"; test "$line" = "41 0"
cc -shared -fPIC -DANSWER=42 -o new.so lib.c; mv new.so libanswer.so
test "$(./main)" = "42 1"
# A program that runs cannot be written, and can be replaced.
if { printf x >> main; } 2> said; then echo "a program that runs was written"; exit 1; fi
grep -q "Text file busy" said
cp main new; mv new main; ./main > /dev/null
echo >&"$to"; read -r line <&"$from"; test "$line" = 41
wait "$running"

# Programs of the system with all of their libraries, by the loader here.
mkdir bin lib
for program in bash ls sort python3; do
    program=$(readlink -f "$(command -v "/usr/bin/$program")"); cp "$program" bin/
    ldd "$program" | grep -o '/[^ ]*' | while read -r library; do cp -n "$library" lib/; done
done
loader=$(basename "$(ldd /usr/bin/bash | grep -o '/[^ ]*ld-linux[^ ]*' || ldd /usr/bin/bash | grep -o '/[^ ]*/ld[^ ]*')")
test "$("lib/$loader" --library-path lib bin/ls bin | "lib/$loader" --library-path lib bin/sort | head -n 1)" = bash
python=$(ls bin | grep python)
test "$(PYTHONDONTWRITEBYTECODE=1 "lib/$loader" --library-path lib "bin/$python" -c 'import ctypes; print(ctypes.CDLL("./libanswer.so").answer())')" = 42

# A script, permissions, setuid and memory that is executable only when allowed.
printf '#!%s/bin/bash\necho "$0 $1"\n' "$1" > script; chmod 755 script
test "$(./script x)" = "./script x"
chmod 644 script; if ./script x 2> said; then exit 1; fi; grep -q "Permission denied" said
cp /usr/bin/id id; chown daemon id; chmod 4755 id
test "$(runuser -u nobody -- ./id -un)" = daemon
cp /usr/bin/true true; chmod 700 true
if runuser -u nobody -- ./true 2> said; then exit 1; fi; grep -q "Permission denied" said
rm said
"#;

#[test]
fn programs_and_libraries_run_from_mount() {
    let test = "running programs";
    let programs = ["cc", "ldd", "runuser", "python3"];
    for options in ["cache=auto,suid", "cache=none,suid"] {
        let _alone = alone();
        let Some(mount) = mount_for(test, &programs, 256, options) else {
            return;
        };
        let_others_in(&mount);
        Run::script(test, SCRIPT, TIMEOUT)
            .arg(mount.path())
            .succeed();
        // After a remount, with an empty page cache.
        mount.unmount();
        mount.mount(options);
        let out = Run::new("main", mount.at("main"), TIMEOUT).succeed();
        assert_eq!(out.text, "42 1\n");
        mount.unmount();
        mount.mount("noexec");
        let refused = std::process::Command::new(mount.at("main"))
            .output()
            .unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "noexec");
        let check = unmount_and_check(&mount);
        say(format_args!(
            "{test}, {options}: as they should; fsck: {check}"
        ));
    }
}
