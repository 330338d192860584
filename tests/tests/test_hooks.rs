//! Test hooks: the tested programs do not contain them, and a build that does reports it.

use pramfs_tests::mounted;

#[test]
fn programs_under_test_have_no_test_hooks() {
    for name in ["pramfs", "mkfs-pramfs", "fsck-pramfs", "mount-pramfs"] {
        let version = mounted::version_of(&mounted::program().with_file_name(name));
        let (_, number) = version.rsplit_once(' ').expect("a name and a number");
        assert!(
            number.chars().all(|c| c.is_ascii_digit() || c == '.'),
            "{name}: {version}"
        );
    }
}

#[test]
fn library_version_with_test_hooks_says_testing() {
    // These tests are built with the feature, as `crash` and `recorded` need it.
    assert!(pramfs::VERSION.ends_with("+testing"), "{}", pramfs::VERSION);
}
