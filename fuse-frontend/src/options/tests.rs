//! Parsing, and the rules of the table.

use super::table::{OPTIONS, Row};
use super::*;

fn parsed(list: &str) -> MountSettings {
    let mut settings = MountSettings::default();
    parse(list, &mut settings).unwrap_or_else(|refused| panic!("{list}: {refused:?}"));
    settings
}

fn refused(list: &str) -> Refused {
    parse(list, &mut MountSettings::default()).expect_err(list)
}

#[test]
fn missing_options_give_defaults() {
    let settings = parsed("");
    assert_eq!(settings, MountSettings::default());
    assert_eq!(parsed(",,defaults,,"), MountSettings::default());
    assert!(settings.dev && settings.suid && settings.exec && !settings.read_only);
}

#[test]
fn flags_and_opposites_are_parsed() {
    for (on, off, get) in [
        (
            "ro",
            "rw",
            (|s: &MountSettings| s.read_only) as fn(&MountSettings) -> bool,
        ),
        ("dev", "nodev", |s| s.dev),
        ("suid", "nosuid", |s| s.suid),
        ("exec", "noexec", |s| s.exec),
        ("symfollow", "nosymfollow", |s| s.symlinks),
        ("sync", "async", |s| s.sync),
    ] {
        assert!(get(&parsed(on)), "{on}");
        assert!(!get(&parsed(off)), "{off}");
        assert!(get(&parsed(&format!("{off},{on}"))), "the last one wins");
        assert!(!get(&parsed(&format!("{on},{off}"))), "the last one wins");
    }
    assert!(parsed("dirsync").dirsync);
}

#[test]
fn atime_options_are_parsed() {
    assert_eq!(parsed("noatime").atime, AtimePolicy::NoAtime);
    assert_eq!(parsed("strictatime").atime, AtimePolicy::StrictAtime);
    assert_eq!(parsed("norelatime").atime, AtimePolicy::StrictAtime);
    for relatime in ["relatime", "atime", "nostrictatime"] {
        assert_eq!(
            parsed(&format!("noatime,{relatime}")).atime,
            AtimePolicy::Relatime
        );
    }
    assert!(parsed("diratime").dir_atime);
    for other in ["lazytime", "nolazytime"] {
        assert_eq!(parsed(other), MountSettings::default());
    }
    assert!(!parsed("nodiratime").dir_atime);
    assert!(parsed("nodiratime,diratime").dir_atime);
}

#[test]
fn choice_options_are_parsed() {
    assert_eq!(parsed("errors=continue").errors, ErrorPolicy::Continue);
    assert_eq!(parsed("errors=remount-ro").errors, ErrorPolicy::RemountRo);
    assert_eq!(parsed("errors=panic").errors, ErrorPolicy::Panic);
    assert_eq!(parsed("data=inplace"), MountSettings::default());
    assert_eq!(parsed("data=atomic").data, DataMode::Atomic);
    assert_eq!(parsed("cache=auto").cache, CacheMode::Auto);
    assert_eq!(parsed("cache=none").cache, CacheMode::None);
    assert_eq!(parsed("cache=writeback").cache, CacheMode::Writeback);
    assert_eq!(parsed("backend=auto").backend, BackendKind::Auto);
    assert_eq!(parsed("backend=libpmem2").backend, BackendKind::Libpmem2);
    assert_eq!(parsed("backend=native").backend, BackendKind::Native);
    assert_eq!(parsed("durability=power").durability, Durability::Power);
    assert_eq!(parsed("durability=process").durability, Durability::Process);
    for way in [
        Protect::Off,
        Protect::Auto,
        Protect::Pkey,
        Protect::Mprotect,
    ] {
        assert_eq!(parsed(&format!("protect={way}")).protect, way);
    }
    assert_eq!(parsed("direct=off"), MountSettings::default());
    assert_eq!(parsed("direct=owner").direct, DirectPolicy::Owner);
    assert_eq!(parsed("direct=group").direct, DirectPolicy::Group);
    assert_eq!(parsed("direct=all").direct, DirectPolicy::All);
    assert_eq!(
        parsed("direct-write-is-root=yes,direct-write-is-root=no"),
        MountSettings::default()
    );
    assert_eq!(parsed("subtype=pramfs"), MountSettings::default());
    assert_eq!(parsed("default_permissions"), MountSettings::default());
}

#[test]
fn cache_writeback_excludes_direct_access_and_opens_kernel() {
    for (list, is_right) in [
        ("cache=writeback", true),
        ("cache=writeback,direct=off", true),
        ("direct=owner,cache=writeback", false),
        ("cache=writeback,direct=all", false),
        ("cache=writeback,direct=all,cache=auto", true),
        ("cache=writeback,opens=kernel", false),
        ("opens=kernel,cache=writeback,opens=server", true),
    ] {
        let checked = parsed(list).check();
        assert_eq!(checked.is_ok(), is_right, "{list}");
        if let Err(refused) = checked {
            assert!(matches!(refused, Refused::Wrong(why) if why.contains("be combined with")));
        }
    }
}

#[test]
fn takeover_means_dev_and_excludes_what_ends_with_a_server() {
    let other = parsed("takeover=on,takeover=off");
    assert_eq!(other, MountSettings::default());
    for (list, excluded) in [
        ("takeover=on", None),
        ("transport=dev,takeover=on,opens=kernel", None),
        ("takeover=on,cache=none", None),
        ("transport=uring,takeover=on", Some("transport=uring")),
        ("takeover=on,transport=fuser", Some("transport=fuser")),
        ("takeover=on,direct=group", Some("direct=group")),
        ("cache=writeback,takeover=on", Some("cache=writeback")),
        ("cache=writeback,takeover=on,takeover=off", None),
    ] {
        let settings = parsed(list);
        match (settings.check(), excluded) {
            (Ok(()), None) => {}
            (Err(Refused::Wrong(why)), Some(excluded)) => {
                let pair = format!("takeover=on cannot be combined with {excluded}: ");
                assert!(why.starts_with(&pair), "{list}: {why}");
            }
            other => panic!("{list}: {other:?}"),
        }
        if settings.takeover {
            assert_eq!(settings.transport(), Transport::Dev);
        }
    }
    assert_eq!(parsed("").transport(), Transport::Auto);
    assert_eq!(parsed("takeover-deaths=1000000").takeover_deaths, 1_000_000);
    for wrong in ["0", "1000001", "x", ""] {
        assert!(matches!(
            refused(&format!("takeover-deaths={wrong}")),
            Refused::Wrong(_)
        ));
    }
}

#[test]
fn busy_poll_is_refused_where_it_has_no_effect() {
    for (list, is_right) in [
        ("busy-poll=50", true),
        ("busy-poll=50,transport=dev", true),
        ("transport=uring,busy-poll=0", true),
        ("transport=uring,busy-poll=50", false),
        ("busy-poll=50,transport=fuser", false),
        ("busy-poll=50,transport=fuser,transport=auto", true),
    ] {
        let checked = parsed(list).check();
        assert_eq!(checked.is_ok(), is_right, "{list}");
        if let Err(refused) = checked {
            assert!(matches!(refused, Refused::Wrong(why) if why.contains("transport=dev")));
        }
    }
}

#[test]
fn direct_write_is_root_needs_policy_for_others() {
    for (list, is_right) in [
        ("direct=group,direct-write-is-root=yes", true),
        ("direct-write-is-root=yes,direct=all", true),
        ("direct-write-is-root=no", true),
        ("direct-write-is-root=yes", false),
        ("direct=owner,direct-write-is-root=yes", false),
        ("direct=all,direct-write-is-root=yes,direct=off", false),
    ] {
        let checked = parsed(list).check();
        assert_eq!(checked.is_ok(), is_right, "{list}");
        if let Err(refused) = checked {
            assert!(matches!(refused, Refused::Wrong(why) if why.contains("direct=group")));
        }
    }
}

#[test]
fn sync_options_survive_power_failure() {
    for (list, durability) in [
        ("durability=process", Durability::Process),
        ("durability=process,sync", Durability::Power),
        ("dirsync,durability=process", Durability::Power),
        ("durability=process,sync,async", Durability::Process),
    ] {
        assert_eq!(parsed(list).durability(), durability, "{list}");
    }
}

#[test]
fn numeric_options_are_parsed() {
    assert_eq!(parsed("threads=1").threads, Some(1));
    assert_eq!(parsed("threads=64").threads, Some(64));
    assert_eq!(parsed("cache_mem=4096").cache_bytes, Some(4096));
    assert_eq!(parsed("cache_mem=64K").cache_bytes, Some(64 << 10));
    assert_eq!(parsed("cache_mem=8m").cache_bytes, Some(8 << 20));
    assert_eq!(parsed("cache_mem=1G").cache_bytes, Some(1 << 30));
    for bad in [
        "threads=0",
        "busy-poll=1001",
        "busy-poll=-1",
        "busy-poll=10us",
        "threads=65",
        "threads=x",
        "threads=",
        "cache_mem=",
        "cache_mem=K",
        "cache_mem=-1",
    ] {
        assert!(
            matches!(refused(bad), Refused::Wrong(why) if why.contains(bad)),
            "{bad}"
        );
    }
    assert!(matches!(
        refused("cache_mem=99999999999G"),
        Refused::Wrong(_)
    ));
}

#[test]
fn allow_other_option_is_parsed() {
    assert_eq!(parsed("").allow_other, None);
    assert_eq!(parsed("allow_other").allow_other, Some(true));
    assert_eq!(parsed("noallow_other").allow_other, Some(false));
}

#[test]
fn boolean_options_are_parsed() {
    assert!(parsed("nonempty").nonempty);
    assert!(parsed("discard").discard && !parsed("discard,nodiscard").discard);
    assert!(parsed("norecovery,ro").no_recovery && parsed("ro,norecovery").read_only);
    assert!(parsed("require-dax").require_dax);
    assert!(parsed("require_dax").require_dax);
    assert!(parsed("remount").remount);
    assert!(parsed("subtype=").plain_type);
    assert!(!parsed("subtype=,subtype=pramfs").plain_type);
    assert_eq!(parsed("fsname=pool").source.as_deref(), Some("pool"));
}

#[test]
fn fstab_only_options_are_accepted() {
    let list = "auto,noauto,nofail,_netdev,nouser,silent,loud,mand,nomand,iversion,noiversion,acl,user_xattr,\
                comment=a b,x-systemd.automount,\
                x-gvfs-name=P,X-mount.mkdir";
    assert_eq!(parsed(list), MountSettings::default());
}

#[test]
fn user_options_imply_nosuid_nodev_noexec() {
    for option in ["user", "user=joe", "users", "owner", "group"] {
        let settings = parsed(option);
        assert!(
            !settings.dev && !settings.suid && !settings.exec,
            "{option}"
        );
    }
    assert!(parsed("user,exec").exec, "a later option overrides it");
}

#[test]
fn unknown_options_are_refused_by_name() {
    for (list, name) in [
        ("frobnicate", "frobnicate"),
        ("ro,frobnicate=1,rw", "frobnicate"),
        ("allow_root", "allow_root"),
        ("RO", "RO"),
    ] {
        assert_eq!(refused(list), Refused::Unknown(name.to_owned()), "{list}");
    }
}

#[test]
fn wrong_values_are_refused_with_choices() {
    for (list, says) in [
        ("errors=sometimes", "errors=remount-ro"),
        ("errors", "errors=continue"),
        ("cache=maybe", "cache=none"),
        ("direct-write-is-root=maybe", "direct-write-is-root=no"),
        ("direct=maybe", "direct=off"),
        ("backend=disk", "backend=native"),
        ("backend", "backend=native"),
        ("durability=none", "durability=power"),
        ("protect=yes", "protect=auto"),
        ("subtype=ext4", "pramfs"),
        ("fsname=", "source"),
        ("threads", "1 to 64"),
    ] {
        assert!(
            matches!(refused(list), Refused::Wrong(why) if why.contains(says)),
            "{list}"
        );
    }
}

#[test]
fn root_owner_options_are_refused() {
    for list in ["uid=1000", "gid=1000", "mode=700", "uid"] {
        assert!(
            matches!(refused(list), Refused::Wrong(why) if why.contains("mkfs.pramfs")),
            "{list}"
        );
    }
}

/// Returns examples of the option of a row.
fn examples(row: &Row) -> Vec<String> {
    let with = |value: &str| row.names.iter().map(|n| format!("{n}{value}")).collect();
    match &row.takes {
        Takes::Nothing(_) | Takes::Anything => with(""),
        Takes::OneOf(choices) => choices
            .iter()
            .map(|c| format!("{}={}", row.names[0], c.value))
            .collect(),
        Takes::Text { .. } => with(match row.names[0] {
            "fsname" => "=pool",
            "slow" => "=4ms",
            _ => "=4",
        }),
        Takes::FromKernel => with("=1"),
        Takes::Refused(_) => Vec::new(),
    }
}

#[test]
fn every_option_accepts_and_names_its_values() {
    for row in OPTIONS {
        for option in examples(row) {
            parsed(&option);
        }
        let name = row.names[0];
        let (bad, says) = match &row.takes {
            Takes::Nothing(_) => (format!("{name}=1"), "takes no value".to_owned()),
            Takes::OneOf(choices) => (
                format!("{name}=bad"),
                format!("{name}={}", choices[0].value),
            ),
            Takes::Text { what, .. } => (format!("{name}="), (*what).to_owned()),
            Takes::Refused(why) => (format!("{name}=1"), (*why).to_owned()),
            Takes::Anything | Takes::FromKernel => continue,
        };
        let Refused::Wrong(why) = refused(&bad) else {
            panic!("{bad} is unknown");
        };
        assert!(why.starts_with(name) && why.contains(&says), "{bad}: {why}");
    }
}

#[test]
fn option_names_are_unique() {
    let mut names: Vec<_> = OPTIONS.iter().flat_map(|row| row.names).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for name in names {
        assert!(table::row(name.trim_end_matches('*')).is_some() || name.ends_with('*'));
    }
}

#[test]
fn remount_changes_flags_of_row_and_no_others() {
    let flags_of = crate::remount::new_flags;
    for row in OPTIONS {
        for option in examples(row) {
            let given = parsed(&option).flags_given;
            assert_eq!(given, row.flags, "{option}");
            for current in ["rw,relatime", "ro,nodev,nosuid,noexec,nodiratime,sync"] {
                let (before, after) = (flags_of(&[current], &[]), flags_of(&[current], &given));
                for flag in Flag::all() {
                    let of_row = row.flags.iter().find(|(of_row, _)| *of_row == flag);
                    let wanted = match of_row {
                        Some((_, on)) => *on,
                        None => before.contains(flag.on_remount()),
                    };
                    assert_eq!(
                        after.contains(flag.on_remount()),
                        wanted,
                        "{option}, {flag:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn default_of_choice_is_first_value() {
    for row in OPTIONS {
        if let Takes::OneOf(choices) = &row.takes {
            let first = format!("{}={}", row.names[0], choices[0].value);
            assert_eq!(parsed(&first), MountSettings::default(), "{first}");
        }
    }
    for row in OPTIONS.iter().filter(|row| row.help.ends_with("(default)")) {
        let mut settings = parsed(row.names[0]);
        settings.flags_given.clear();
        assert_eq!(settings, MountSettings::default(), "{}", row.names[0]);
    }
}

#[test]
fn help_lines_fit_terminal_width() {
    let help = help();
    for row in OPTIONS.iter().filter(|row| !row.help.is_empty()) {
        assert!(
            help.contains(&format!("\n  {}", row.names[0])),
            "{}",
            row.names[0]
        );
    }
    for line in help.lines() {
        assert!(line.len() < 80, "{line}");
    }
}

/// `PRAMFS_BLESS=1` rewrites the table of the document.
#[test]
fn document_has_generated_option_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/mounting.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (start, end) = ("<!-- options -->\n", "<!-- end of options -->");
    let (before, rest) = page.split_once(start).expect("the mark before the table");
    let (table, after) = rest.split_once(end).expect("the mark after the table");
    let wanted = text::document();
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        std::fs::write(path, format!("{before}{start}{wanted}{end}{after}")).unwrap();
    } else {
        assert_eq!(table, wanted, "PRAMFS_BLESS=1 rewrites docs/mounting.md");
    }
}

#[test]
fn options_in_force_are_complete_and_parse_to_the_same() {
    let default = MountSettings::default().in_force();
    for option in [
        "rw",
        "relatime",
        "cache=auto",
        "transport=auto",
        "metrics=on",
        "slow=off",
    ] {
        assert!(
            default.split(',').any(|one| one == option),
            "{option}: {default}"
        );
    }
    for absent in ["ro", "noatime", "require-dax", "remount"] {
        assert!(
            default.split(',').all(|one| one != absent),
            "{absent}: {default}"
        );
    }
    let given = "ro,noatime,nosuid,cache=none,threads=3,slow=20ms,metrics=off,busy-poll=7,durability=process";
    let mut settings = MountSettings::default();
    parse(given, &mut settings).unwrap();
    let shown = settings.in_force();
    for option in given.replace("20ms", "20000us").split(',') {
        assert!(
            shown.split(',').any(|one| one == option),
            "{option}: {shown}"
        );
    }
    let mut again = MountSettings::default();
    parse(&shown, &mut again).unwrap();
    assert_eq!(again.in_force(), shown);
}
