//! The tests that `docs/consistency.md` names beside its guarantees exist.

const DOC: &str = include_str!("../../docs/consistency.md");

/// A file of `tests/tests/`, of `tests/ops/` if its name begins with `ops/`, or of the library
/// if it begins with `pramfs-rs/`.
fn source(file: &str) -> String {
    let dir = if file.starts_with("ops/") {
        ""
    } else if file.starts_with("pramfs-rs/") {
        "../"
    } else {
        "tests/"
    };
    let mut path = format!("{}/{dir}{file}", env!("CARGO_MANIFEST_DIR"));
    if !std::path::Path::new(&path).exists() {
        // The tests of damaged images are one program.
        path = format!("{}/{dir}bad/{file}", env!("CARGO_MANIFEST_DIR"));
    }
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn tests_named_in_consistency_doc_exist() {
    let mut named = 0;
    for quoted in DOC.split('`').skip(1).step_by(2) {
        let Some((file, test)) = quoted.split_once("::") else {
            continue;
        };
        if !file.ends_with(".rs") {
            continue;
        }
        named += 1;
        let needle = format!("#[test]\nfn {test}()");
        assert!(source(file).contains(&needle), "{file} has no test {test}");
    }
    assert!(named >= 20, "{named} tests are named");
}

#[test]
fn rule_tests_are_named_in_consistency_doc() {
    for file in ["rules.rs", "rules_recovery.rs"] {
        for test in source(file).split("#[test]\nfn ").skip(1) {
            let test = test.split('(').next().unwrap();
            assert!(
                DOC.contains(&format!("{file}::{test}")),
                "{file}::{test} is not named"
            );
        }
    }
}

#[test]
fn crash_sweep_cases_are_named_in_consistency_doc() {
    let joined = DOC.split_whitespace().collect::<Vec<_>>().join(" ");
    let sweep = source("crash_sweep.rs") + &source("crash_sweep_attributes.rs");
    let mut cases = 0;
    for rest in sweep.split("Case::new(").skip(1) {
        let Some(name) = rest
            .trim_start()
            .strip_prefix('"')
            .and_then(|r| r.split('"').next())
        else {
            continue;
        };
        cases += 1;
        assert!(
            joined.contains(&format!("\"{name}\"")),
            "the case \"{name}\" is not named"
        );
    }
    assert!(cases > 30, "{cases} cases");
}
