//! Users and groups as a guest numbers them, and as the region does: `--translate-uid` and
//! `--translate-gid`, in the form of virtiofsd.
//!
//! | map | from guest to region | from region to guest |
//! |---|---|---|
//! | `guest:G:R:N` | G.. becomes R.. | |
//! | `host:R:G:N` | | R.. becomes G.. |
//! | `map:G:R:N` | G.. becomes R.. | R.. becomes G.. |
//! | `squash-guest:G:R:N` | all become R | |
//! | `squash-host:R:G:N` | | all become G |
//! | `forbid-guest:G:N` | refused | |
//!
//! An id outside of every range stays as it is. Two ranges of one direction do not overlap.
//!
//! Not translated: ids within ACLs, which the guest's kernel reads from attributes.

use std::str::FromStr;

/// How the ids of a range change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// Each to its own, from this one on.
    From(u32),
    /// All to this one.
    One(u32),
    /// The guest may not use them.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    /// The last one, not the one after it: that may have no number.
    last: u32,
    to: To,
}

impl Range {
    fn new(first: u32, count: u32, to: To) -> Result<Range, String> {
        let end = |from: u32| from.checked_add(count.checked_sub(1)?);
        let target = match to {
            To::From(from) => end(from),
            To::One(id) => Some(id),
            To::Nothing => Some(0),
        };
        match (end(first), target) {
            (Some(last), Some(_)) => Ok(Range { first, last, to }),
            _ => Err("the range is empty, or ends beyond the last id".into()),
        }
    }
}

/// The map of users, or that of groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap {
    to_region: Vec<Range>,
    to_guest: Vec<Range>,
}

fn find(ranges: &[Range], id: u32) -> Option<u32> {
    match ranges.iter().find(|r| (r.first..=r.last).contains(&id)) {
        None => Some(id),
        Some(range) => match range.to {
            To::From(from) => Some(from + (id - range.first)),
            To::One(one) => Some(one),
            To::Nothing => None,
        },
    }
}

fn insert(ranges: &mut Vec<Range>, new: Range) -> Result<(), String> {
    if ranges
        .iter()
        .any(|r| r.first <= new.last && new.first <= r.last)
    {
        return Err("it overlaps an earlier map".into());
    }
    ranges.push(new);
    Ok(())
}

impl IdMap {
    /// Adds a map, as on the command line.
    ///
    /// # Errors
    /// It is malformed, or overlaps an earlier one.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        self.insert(text).map_err(|why| format!("{text}: {why}"))
    }

    fn insert(&mut self, text: &str) -> Result<(), String> {
        let mut fields = text.split(':');
        let kind = fields.next().unwrap_or_default();
        let numbers = fields
            .map(u32::from_str)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| "an id or a count is not a number".to_owned())?;
        match (kind, &*numbers) {
            ("guest", &[guest, region, count]) => {
                insert(&mut self.to_region, Range::new(guest, count, To::From(region))?)
            }
            ("host", &[region, guest, count]) => {
                insert(&mut self.to_guest, Range::new(region, count, To::From(guest))?)
            }
            ("map", &[guest, region, count]) => {
                insert(&mut self.to_region, Range::new(guest, count, To::From(region))?)?;
                insert(&mut self.to_guest, Range::new(region, count, To::From(guest))?)
            }
            ("squash-guest", &[guest, region, count]) => {
                insert(&mut self.to_region, Range::new(guest, count, To::One(region))?)
            }
            ("squash-host", &[region, guest, count]) => {
                insert(&mut self.to_guest, Range::new(region, count, To::One(guest))?)
            }
            ("forbid-guest", &[guest, count]) => {
                insert(&mut self.to_region, Range::new(guest, count, To::Nothing)?)
            }
            _ => Err("a map is map:GUEST:REGION:COUNT, guest:GUEST:REGION:COUNT, host:REGION:GUEST:COUNT, squash-guest:GUEST:REGION:COUNT, squash-host:REGION:GUEST:COUNT or forbid-guest:GUEST:COUNT".into()),
        }
    }

    /// Returns the id of the region. `None` if the guest may not use this one.
    pub fn to_region(&self, id: u32) -> Option<u32> {
        find(&self.to_region, id)
    }

    /// Returns the id that the guest sees.
    pub fn to_guest(&self, id: u32) -> u32 {
        // Nothing is forbidden in this direction.
        find(&self.to_guest, id).unwrap_or(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(maps: &[&str]) -> IdMap {
        let mut all = IdMap::default();
        for map in maps {
            all.add(map).unwrap();
        }
        all
    }

    #[test]
    fn each_kind_translates_its_direction() {
        let none = of(&[]);
        assert_eq!((none.to_region(5), none.to_guest(5)), (Some(5), 5));
        let map = of(&["map:0:100000:1000"]);
        assert_eq!(map.to_region(999), Some(100_999));
        assert_eq!(map.to_region(1000), Some(1000));
        assert_eq!(map.to_guest(100_000), 0);
        let one_way = of(&["guest:0:500:10", "host:700:20:1"]);
        assert_eq!(
            (one_way.to_region(3), one_way.to_guest(503)),
            (Some(503), 503)
        );
        assert_eq!(one_way.to_guest(700), 20);
        let squashed = of(&["squash-guest:0:65534:4294967295", "squash-host:0:9:100"]);
        assert_eq!(squashed.to_region(77), Some(65_534));
        assert_eq!((squashed.to_guest(99), squashed.to_guest(100)), (9, 100));
        let forbidden = of(&["forbid-guest:0:1", "map:1:1:4294967294"]);
        assert_eq!(forbidden.to_region(0), None);
        assert_eq!(forbidden.to_region(u32::MAX - 1), Some(u32::MAX - 1));
    }

    #[test]
    fn malformed_or_overlapping_map_is_refused() {
        for map in [
            "",
            "map",
            "map:0:0",
            "map:0:0:0",
            "map:0:0:x",
            "map:0:0:1:2",
            "guests:0:0:1",
            "map:2:0:4294967295",
            "map:0:2:4294967295",
            "forbid-guest:0:0",
            "map:-1:0:1",
        ] {
            assert!(IdMap::default().add(map).is_err(), "{map}");
        }
        let mut map = of(&["map:0:100:10"]);
        for overlaps in ["guest:9:0:1", "host:109:0:1", "forbid-guest:0:1"] {
            let why = map.add(overlaps).unwrap_err();
            assert!(why.contains("overlaps") && why.contains(overlaps), "{why}");
        }
        assert!(map.add("guest:10:0:1").is_ok());
    }
}
