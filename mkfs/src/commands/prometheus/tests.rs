//! What `promtool check metrics` checks, and what Prometheus parses.

use std::collections::{BTreeMap, BTreeSet};

use pramfs_control::{
    DamageStatus, ErrorSeen, Latency, MountStatus, OperationStatus, Space, TakeoverStatus,
};

use super::text;

/// A sample: name, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

/// Parses the text format, version 0.0.4, and fails as promtool does.
fn parse(text: &str) -> Result<Vec<Sample>, String> {
    let (mut samples, mut kinds) = (Vec::<Sample>::new(), BTreeMap::new());
    let (mut helped, mut closed) = (BTreeSet::new(), BTreeSet::new());
    let mut open = String::new();
    let mut seen = BTreeSet::new();
    if !text.ends_with('\n') {
        return Err("no line feed at the end".into());
    }
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("no help")?;
            if !helped.insert(name.to_owned()) || help.trim().is_empty() {
                return Err(format!("a second or empty help: {line}"));
            }
            if !closed.insert(name.to_owned()) {
                return Err(format!("{name} is in two places"));
            }
            open = name.to_owned();
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("no type")?;
            if name != open || !["counter", "gauge", "histogram"].contains(&kind) {
                return Err(format!("a type out of place: {line}"));
            }
            if (kind == "counter") != name.ends_with("_total") {
                return Err(format!("counters end in _total, and nothing else: {line}"));
            }
            kinds.insert(name.to_owned(), kind.to_owned());
            continue;
        }
        let sample = parse_sample(line)?;
        let family = match kinds.get(&open).map(String::as_str) {
            Some("histogram") => ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| sample.0.strip_suffix(end)),
            Some(_) => Some(&*sample.0),
            None => return Err(format!("a sample without a type: {line}")),
        };
        if family != Some(&open) {
            return Err(format!("a sample among those of {open}: {line}"));
        }
        if !seen.insert((sample.0.clone(), sample.1.clone())) {
            return Err(format!("twice: {line}"));
        }
        samples.push(sample);
    }
    check_histograms(&samples)?;
    Ok(samples)
}

fn is_name(name: &str) -> bool {
    let first = name.chars().next();
    first.is_some_and(|c| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn parse_sample(line: &str) -> Result<Sample, String> {
    let wrong = || format!("malformed: {line}");
    let (before, value) = line.rsplit_once(' ').ok_or_else(wrong)?;
    let value: f64 = value.parse().map_err(|_| wrong())?;
    let (name, mut rest) = match before.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').ok_or_else(wrong)?),
        None => (before, ""),
    };
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").ok_or_else(wrong)?;
        let (mut text, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().ok_or_else(wrong)? {
                (at, '"') => break at,
                (_, '\\') => match chars.next().ok_or_else(wrong)?.1 {
                    'n' => text.push('\n'),
                    c @ ('\\' | '"') => text.push(c),
                    _ => return Err(wrong()),
                },
                (_, c) => text.push(c),
            }
        };
        if !is_name(label) || labels.insert(label.to_owned(), text).is_some() {
            return Err(wrong());
        }
        rest = &after[end + 1..];
        if !rest.is_empty() {
            rest = rest.strip_prefix(',').ok_or_else(wrong)?;
        }
    }
    match is_name(name) {
        true => Ok((name.to_owned(), labels, value)),
        false => Err(wrong()),
    }
}

/// The buckets of a histogram are in order, cumulative, and end with all.
fn check_histograms(samples: &[Sample]) -> Result<(), String> {
    let mut rows: BTreeMap<(String, String), Vec<(f64, f64)>> = BTreeMap::new();
    for (name, labels, value) in samples
        .iter()
        .filter(|(name, ..)| name.ends_with("_bucket"))
    {
        let mut labels = labels.clone();
        let bound = labels.remove("le").ok_or("a bucket without a bound")?;
        let bound = match &*bound {
            "+Inf" => f64::INFINITY,
            bound => bound.parse().map_err(|_| format!("the bound {bound}"))?,
        };
        let family = name.trim_end_matches("_bucket").to_owned();
        rows.entry((family, format!("{labels:?}")))
            .or_default()
            .push((bound, *value));
    }
    for ((family, labels), row) in rows {
        let ascends = row
            .windows(2)
            .all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let count = samples.iter().find(|(name, of, _)| {
            *name == format!("{family}_count") && format!("{of:?}") == labels
        });
        let last = row.last().copied();
        let is_whole = last
            .zip(count)
            .is_some_and(|((bound, all), (_, _, count))| bound.is_infinite() && all == *count);
        if !ascends || !is_whole {
            return Err(format!("the histogram {family} {labels}: {row:?}"));
        }
    }
    Ok(())
}

fn status(nth: u32) -> MountStatus {
    let mut latency = Latency::default();
    for nanos in [300, 1024, 1_000_000, 5_000_000, 90_000_000_000] {
        latency.add(nanos);
    }
    let operation = |name: &str| OperationStatus {
        name: name.into(),
        count: 7,
        errors: 2,
        latency: latency.clone(),
        ..OperationStatus::default()
    };
    MountStatus {
        region: "/secret/region".into(),
        mount_point: "/secret/place".into(),
        options: "fsname=secret".into(),
        device: (0, nth),
        uuid: format!("uuid-{nth}"),
        label: "a \"label\"\n\\".into(),
        space: (nth != 2).then_some(Space {
            block_size: 4096,
            blocks: 100,
            free: 40,
            ..Space::default()
        }),
        takeover: (nth == 1).then(TakeoverStatus::default),
        damage: DamageStatus {
            errors: 1,
            first: None,
            last: Some(ErrorSeen::default()),
        },
        operations: vec![operation("READ"), operation("COPY_FILE_RANGE_64")],
        ..MountStatus::default()
    }
}

#[test]
fn metrics_of_mounts_are_valid_and_have_no_paths() {
    for states in [
        vec![],
        vec![status(1)],
        vec![status(1), status(2), MountStatus::default()],
    ] {
        let text = text(&states);
        let samples = parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
        assert!(!text.contains("secret"), "{text}");
        let mounts = samples
            .iter()
            .find(|(name, ..)| name == "pramfs_mounts")
            .unwrap();
        assert_eq!(mounts.2, states.len() as f64);
    }
    let text = text(&[status(1)]);
    let samples = parse(&text).unwrap();
    let value = |name: &str| {
        let found = samples.iter().find(|(of, ..)| of == name);
        found.unwrap_or_else(|| panic!("{name}: {text}")).2
    };
    assert_eq!(value("pramfs_used_bytes"), 60.0 * 4096.0);
    assert_eq!(value("pramfs_requests_total"), 7.0);
    assert_eq!(value("pramfs_request_duration_seconds_count"), 5.0);
    let info = samples
        .iter()
        .find(|(name, ..)| name == "pramfs_info")
        .unwrap();
    assert_eq!(info.1["label"], "a \"label\"\n\\");
    // 300 ns is below the first bound, 1024 ns is not below it.
    let first = samples
        .iter()
        .find(|(name, ..)| name.ends_with("_bucket"))
        .unwrap();
    assert_eq!((first.1["le"].as_str(), first.2), ("0.000001024", 1.0));
}

#[test]
fn parser_refuses_what_promtool_refuses() {
    let head = "# HELP pramfs_x help\n# TYPE pramfs_x gauge\n";
    assert!(parse(&format!("{head}pramfs_x 1\n")).is_ok());
    for wrong in [
        format!("{head}pramfs_x 1"),
        format!("{head}pramfs_x\n"),
        format!("{head}pramfs_x x\n"),
        format!("{head}pramfs_y 1\n"),
        format!("{head}pramfs_x 1\npramfs_x 1\n"),
        format!("{head}pramfs_x{{a=\"1}} 1\n"),
        format!("{head}pramfs_x{{A=\"1\"}} 1\n"),
        format!("{head}pramfs_x 1\n{head}"),
        "pramfs_x 1\n".to_owned(),
        "# HELP pramfs_x h\n# TYPE pramfs_x counter\npramfs_x 1\n".to_owned(),
    ] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}
