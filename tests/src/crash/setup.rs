//! What a run of one workload depends on besides the workload, as options of `crash-explorer`. A
//! counterexample prints them.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use pramfs::DataMode;
use pramfs_medium::journal::Rules;

use super::explorer::Settings;
use super::fixture::{Fixture, Room};
use super::images::Limits;
use super::machine::Torn;

/// The options. Those that are left out have the values of a run over all workloads.
#[derive(Debug, Clone, Default, Args)]
pub struct Setup {
    /// Block size for --workload [default: 512].
    #[arg(long, requires = "workload", value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Length of the region for --workload.
    #[arg(long, requires = "workload", value_name = "BYTES")]
    pub len: Option<usize>,
    /// Free blocks when --workload begins.
    #[arg(long, requires = "workload", value_name = "BLOCKS")]
    pub free: Option<u64>,
    /// Free inodes when --workload begins.
    #[arg(long, requires = "workload", value_name = "INODES")]
    pub inodes: Option<u64>,
    /// Processes hold a lease of each file while --workload runs.
    #[arg(long, requires = "workload")]
    pub leased: bool,
    /// The data have checksums while --workload runs.
    #[arg(long, requires = "workload")]
    pub sums: bool,
    /// --workload runs on a mount with data=atomic.
    #[arg(long, requires = "workload")]
    pub atomic: bool,
    /// The mount ignores --atomic, for tests.
    #[arg(long, hide = true, requires = "workload")]
    pub ignore_atomic: bool,
    /// Images of --workload: uncertain lines of which all subsets are taken, pairs of lines,
    /// random choices, and torn values of a line (half, edges, words, strict).
    #[arg(long, requires = "workload", value_name = "LINES,PAIRS,RANDOM,TORN")]
    pub limits: Option<Limits>,
    /// The same for crashes in the recoveries of --workload; "none": they are not crashed.
    #[arg(long, requires = "workload", value_name = "LIMITS")]
    pub recovery: Option<Crashes>,
    /// The same for recoveries that make the same stores as another.
    #[arg(long, requires = "workload", value_name = "LIMITS")]
    pub same_recovery: Option<Crashes>,
    /// A rule that does not hold while --workload runs, for tests.
    #[arg(long, hide = true, requires = "workload", value_parser = rule)]
    pub without: Vec<String>,
}

/// Images of crashes in recoveries, if these are crashed.
#[derive(Debug, Clone, Copy)]
pub struct Crashes(pub Option<Limits>);

impl Setup {
    /// That of a run.
    pub fn of(fixture: &Fixture, settings: &Settings) -> Setup {
        let mut rules = settings.rules;
        let broken = switches(&mut rules).into_iter().filter(|(_, on)| !**on);
        Setup {
            block_size: Some(fixture.block_size),
            len: Some(fixture.image.len()),
            free: fixture.room.blocks,
            inodes: fixture.room.inodes,
            leased: fixture.room.leased,
            sums: fixture.room.summed,
            atomic: fixture.data == DataMode::Atomic,
            ignore_atomic: !fixture.keeps_data,
            limits: Some(settings.limits),
            recovery: Some(Crashes(settings.recovery)),
            same_recovery: Some(Crashes(settings.every_recovery)),
            without: broken.map(|(name, _)| name.to_owned()).collect(),
        }
    }

    /// Makes the fixture.
    ///
    /// # Errors
    /// As for [`Fixture::new`].
    pub fn fixture(&self) -> Result<Fixture, String> {
        let block_size = self.block_size.unwrap_or(512);
        let len = self.len.unwrap_or(match (self.sums, block_size > 1024) {
            (false, false) => 256 << 10,
            (false, true) => 512 << 10,
            (true, false) => 384 << 10,
            (true, true) => 1 << 20,
        });
        let room = Room {
            blocks: self.free,
            inodes: self.inodes,
            leased: self.leased,
            summed: self.sums,
        };
        let mut fixture = Fixture::with(block_size, len, room)?;
        if self.atomic || self.sums {
            fixture = fixture.atomic();
        }
        fixture.keeps_data = !self.ignore_atomic;
        Ok(fixture)
    }

    /// Puts its settings in place of the usual ones.
    #[must_use]
    pub fn settings(&self, usual: Settings) -> Settings {
        let mut rules = usual.rules;
        for (name, on) in switches(&mut rules) {
            *on &= !self.without.iter().any(|without| without == name);
        }
        Settings {
            limits: self.limits.unwrap_or(usual.limits),
            recovery: self.recovery.map_or(usual.recovery, |again| again.0),
            every_recovery: (self.same_recovery).map_or(usual.every_recovery, |again| again.0),
            rules,
            ..usual
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        let mut value = |name: &str, value: Option<String>| {
            options.extend(value.map(|value| format!("--{name} {value}")));
        };
        value("block-size", self.block_size.map(|n| n.to_string()));
        value("len", self.len.map(|n| n.to_string()));
        value("free", self.free.map(|n| n.to_string()));
        value("inodes", self.inodes.map(|n| n.to_string()));
        value("limits", self.limits.map(|l| l.to_string()));
        value("recovery", self.recovery.map(|l| l.to_string()));
        value("same-recovery", self.same_recovery.map(|l| l.to_string()));
        for rule in &self.without {
            value("without", Some(rule.clone()));
        }
        for (name, on) in [
            ("leased", self.leased),
            ("sums", self.sums),
            ("atomic", self.atomic),
            ("ignore-atomic", self.ignore_atomic),
        ] {
            options.extend(on.then(|| format!("--{name}")));
        }
        f.write_str(&options.join(" "))
    }
}

/// The switches of rules, by name.
fn switches(rules: &mut Rules) -> Vec<(&'static str, &mut bool)> {
    macro_rules! switches {
        ($($name:ident)*) => {
            // A new switch does not compile before it is here.
            match rules {
                Rules { $($name),* } => vec![$((stringify!($name), $name)),*],
            }
        };
    }
    switches! {
        hand_over delayed_release bit_masks orphan_chain two_slots leased_blocks merged_sizes
        copies_retired marks data_fence snapshot_retires inode_batches long_windows
    }
}

fn rule(name: &str) -> Result<String, String> {
    let mut rules = Rules::default();
    let known = switches(&mut rules).iter().any(|(known, _)| *known == name);
    known
        .then(|| name.to_owned())
        .ok_or_else(|| "no such rule".into())
}

const TORN: [(Torn, &str); 4] = [
    (Torn::Half, "half"),
    (Torn::Edges, "edges"),
    (Torn::Words, "words"),
    (Torn::Strict, "strict"),
];

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let torn = TORN.iter().find(|(torn, _)| *torn == self.torn);
        let torn = torn.map_or("", |(_, name)| name);
        write!(f, "{},{},{},{torn}", self.lines, self.pairs, self.random)
    }
}

impl FromStr for Limits {
    type Err = String;
    fn from_str(text: &str) -> Result<Limits, String> {
        let [lines, pairs, random, torn] = text.split(',').collect::<Vec<_>>()[..] else {
            return Err("four values with commas between them are wanted".into());
        };
        let wrong = |e: std::num::ParseIntError| e.to_string();
        let torn = TORN.iter().find(|(_, name)| *name == torn);
        Ok(Limits {
            lines: lines.parse().map_err(wrong)?,
            pairs: pairs.parse().map_err(wrong)?,
            random: random.parse().map_err(wrong)?,
            torn: torn
                .ok_or("the last value is half, edges, words or strict")?
                .0,
        })
    }
}

impl fmt::Display for Crashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(limits) => limits.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl FromStr for Crashes {
    type Err = String;
    fn from_str(text: &str) -> Result<Crashes, String> {
        match text {
            "none" => Ok(Crashes(None)),
            limits => limits.parse().map(|limits| Crashes(Some(limits))),
        }
    }
}
