//! renameat2 with its flags, of each type of file over each (xfstests 023-025 078 245 309
//! 626).

use std::fs;

use pramfs_tests::syscalls::errno;
use rustix::fs::{CWD, RenameFlags};

use crate::support::file::{KINDS, make, seen};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

#[test]
fn rename_of_each_type_over_each_matches_kernel() {
    agree("renameat2", &[Tmpfs, Ext4], |dir, n| {
        for flags in [
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
            RenameFlags::WHITEOUT,
            RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE | RenameFlags::WHITEOUT,
        ] {
            for (across, from, to) in KINDS
                .iter()
                .flat_map(|from| KINDS.iter().map(move |to| (from, to)))
                .flat_map(|(from, to)| [false, true].map(|across| (across, from, to)))
            {
                let what = format!("{flags:?} {from} to {to}, across {across}");
                let base = dir.join("base");
                fs::create_dir_all(base.join("other")).expect("directories");
                let old = base.join("old");
                let new = if across {
                    base.join("other/new")
                } else {
                    base.join("new")
                };
                make(&old, from);
                make(&new, to);
                n.call(
                    &what,
                    errno(rustix::fs::renameat_with(CWD, &old, CWD, &new, flags)),
                );
                n.note(&what, (seen(&old), seen(&new)));
                n.note(&what, (seen(&base), seen(&base.join("other"))));
                fs::remove_dir_all(&base).expect("remove all of it");
            }
        }
    });
}
