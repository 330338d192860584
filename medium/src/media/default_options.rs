//! Default options: what a mount does unless its command line says otherwise.
//!
//! The region decides them, and it may come from somebody who is not trusted. So each of them
//! either only forbids something, or concerns nothing but this file system: none lets a program
//! or a user do what it could not do without it. See `docs/security.md`.
//!
//! A version that does not know a bit ignores it.

use std::fmt;

/// A default option.
#[derive(Debug)]
struct Row {
    bit: u64,
    /// As after `-o` of a mount.
    name: &'static str,
    /// The option that takes it back.
    opposite: &'static str,
    /// Options that it replaces.
    replaces: u64,
}

const NOATIME: u64 = 1 << 0;
const STRICTATIME: u64 = 1 << 1;

const ROWS: &[Row] = &[
    row(NOATIME, "noatime", "relatime", STRICTATIME),
    row(STRICTATIME, "strictatime", "relatime", NOATIME),
    row(1 << 2, "nodiratime", "diratime", 0),
    row(1 << 3, "data=atomic", "data=inplace", 0),
    row(1 << 4, "discard", "nodiscard", 0),
    row(1 << 5, "nosuid", "suid", 0),
    row(1 << 6, "nodev", "dev", 0),
    row(1 << 7, "noexec", "exec", 0),
];

const fn row(bit: u64, name: &'static str, opposite: &'static str, replaces: u64) -> Row {
    Row {
        bit,
        name,
        opposite,
        replaces,
    }
}

/// A set of default options.
///
/// ```
/// use pramfs_medium::media::default_options::DefaultOptions;
/// let mut options = DefaultOptions::default();
/// options.change("noatime,nosuid")?;
/// options.change("^nosuid,data=atomic")?;
/// assert_eq!(options.to_string(), "noatime,data=atomic");
/// # Ok::<(), pramfs_medium::media::default_options::UnknownOption>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DefaultOptions(u64);

/// A word that is no default option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be a default option; these can: {all}, each with ^ before it to take it back", all = names())]
pub struct UnknownOption(pub String);

fn names() -> String {
    let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
    names.join(", ")
}

impl DefaultOptions {
    /// Returns the options of the bits in a superblock.
    pub fn from_bits(bits: u64) -> DefaultOptions {
        DefaultOptions(bits)
    }

    /// Returns the bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the bits that this version does not know.
    pub fn unknown(self) -> u64 {
        ROWS.iter().fold(self.0, |bits, row| bits & !row.bit)
    }

    /// Returns the names of the options, and for each the option that takes it back.
    pub fn names(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let set = ROWS.iter().filter(move |row| self.0 & row.bit != 0);
        set.map(|row| (row.name, row.opposite))
    }

    /// Returns all that there are.
    pub fn all() -> DefaultOptions {
        DefaultOptions(ROWS.iter().map(|row| row.bit).sum())
    }

    /// Adds the options of a list, separated by commas; takes those back that have a `^` before
    /// them. Bits that this version does not know stay.
    ///
    /// # Errors
    /// The first word that is no default option. Then nothing has changed.
    pub fn change(&mut self, list: &str) -> Result<(), UnknownOption> {
        let mut new = *self;
        for word in list.split(',') {
            let (name, on) = match word.strip_prefix('^') {
                Some(name) => (name, false),
                None => (word, true),
            };
            let found = ROWS.iter().find(|row| row.name == name);
            let row = found.ok_or_else(|| UnknownOption(name.to_owned()))?;
            match on {
                true => new.0 = new.0 & !row.replaces | row.bit,
                false => new.0 &= !row.bit,
            }
        }
        *self = new;
        Ok(())
    }
}

impl fmt::Display for DefaultOptions {
    /// As after `-o` of a mount; nothing if there are none that this version knows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().map(|(name, _)| name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(lists: &[&str]) -> String {
        let mut options = DefaultOptions::default();
        for list in lists {
            options.change(list).unwrap();
        }
        options.to_string()
    }

    #[test]
    fn change_adds_takes_back_and_replaces_options() {
        assert_eq!(changed(&[]), "");
        assert_eq!(changed(&["nosuid,nodev"]), "nosuid,nodev");
        assert_eq!(changed(&["nosuid,nodev", "^nosuid"]), "nodev");
        assert_eq!(changed(&["noatime", "strictatime"]), "strictatime");
        assert_eq!(changed(&["strictatime,noatime"]), "noatime");
        assert_eq!(changed(&["^noexec"]), "");
    }

    #[test]
    fn change_of_word_that_is_no_default_option_changes_nothing() {
        let mut options = DefaultOptions::default();
        options.change("noatime").unwrap();
        for list in [
            "",
            "nosuid,",
            "allow_other",
            "suid",
            "rw",
            "noatime ",
            "^^noatime",
            "data=atomic=1",
            "errors=panic",
            "direct=all",
            "durability=process",
        ] {
            let e = options.change(&format!("nodev,{list}")).unwrap_err();
            assert!(e.to_string().contains("nosuid"), "{e}");
            assert_eq!(options.to_string(), "noatime", "{list}");
        }
    }

    #[test]
    fn bits_of_later_version_are_kept_and_told() {
        let mut options = DefaultOptions::from_bits(1 << 40 | 1);
        assert_eq!(options.unknown(), 1 << 40);
        options.change("^noatime,nodev").unwrap();
        assert_eq!(options.bits(), 1 << 40 | 1 << 6);
        assert_eq!(options.to_string(), "nodev");
        assert_eq!(DefaultOptions::all().unknown(), 0);
        let mut bits: Vec<_> = ROWS.iter().map(|row| row.bit).collect();
        bits.dedup();
        assert_eq!(bits.len(), ROWS.len());
    }
}
