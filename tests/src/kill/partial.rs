//! What a crash may leave of an operation that is not atomic.
//!
//! The rule is that of `docs/consistency.md`: bytes that were there before are
//! old or new by aligned words of eight; past the old end there is a prefix of
//! what the call was to leave; everything else is as it was.

use super::found::Found;
use super::op::{Name, Op, change, contents};
use super::state::State;

/// The state with the part of the operation that was found, or why that is
/// none; nothing for an operation that has no parts.
pub fn explain(
    before: &State,
    after: &State,
    op: &Op,
    own: &Found,
    writer: u32,
) -> Option<Result<State, String>> {
    let name: &Name = match op {
        Op::Write(name, ..) | Op::Append(name, ..) | Op::Store(name, ..) => name,
        Op::Fallocate(name, ..) => name,
        _ => return None,
    };
    let (old, new) = (contents(before, name), contents(after, name));
    let found = found_bytes(before, name, own, writer)?;
    if let Err(what) = is_part(old, new, found) {
        return Some(Err(what));
    }
    let mut state = before.clone();
    change(&mut state, name, |bytes| *bytes = found.to_vec());
    let expected = Found::of(&state, writer);
    Some(if expected == *own {
        Ok(state)
    } else {
        let what = expected.differences(own);
        Err(format!("beside what may be a part of it:\n{what}"))
    })
}

fn found_bytes<'f>(state: &State, name: &Name, own: &'f Found, writer: u32) -> Option<&'f [u8]> {
    let path = super::found::path(state, name, writer);
    own.0.get(&path).map(|thing| &thing.data[..])
}

/// Whether `found` may be seen when a crash hits the change from `old` to
/// `new`, which is no shorter.
pub fn is_part(old: &[u8], new: &[u8], found: &[u8]) -> Result<(), String> {
    if found.len() < old.len() || found.len() > new.len() {
        return Err(format!(
            "the file has {} bytes, before it had {} and was to have {}",
            found.len(),
            old.len(),
            new.len()
        ));
    }
    for at in (0..old.len()).step_by(8) {
        let word = at..old.len().min(at + 8);
        let is = &found[word.clone()];
        if *is != old[word.clone()] && *is != new[word.clone()] {
            return Err(format!(
                "the word at {at} is {is:02x?}: neither {:02x?} nor {:02x?}",
                &old[word.clone()],
                &new[word]
            ));
        }
    }
    match (old.len()..found.len()).find(|i| found[*i] != new[*i]) {
        Some(i) => Err(format!(
            "byte {i} past the old end of {} is {:02x} and not {:02x}",
            old.len(),
            found[i],
            new[i]
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_part;

    #[test]
    fn partial_store_has_whole_words_and_prefix() {
        let (old, new) = ([1; 20], [2; 30]);
        let with = |len: usize, twos: &[(usize, usize)]| {
            let mut found = old.to_vec();
            found.resize(len, 2);
            twos.iter().for_each(|(from, to)| found[*from..*to].fill(2));
            found
        };
        let allowed = [
            with(20, &[]),
            with(20, &[(8, 16)]),
            with(25, &[(0, 8), (16, 20)]),
            with(30, &[]),
        ];
        for found in allowed {
            assert_eq!(is_part(&old, &new, &found), Ok(()), "{found:?}");
        }
        let mut hole = with(25, &[]);
        hole[22] = 0;
        let wrong = [
            with(20, &[(8, 12)]),
            with(20, &[(17, 20)]),
            vec![1; 19],
            vec![2; 31],
            hole,
        ];
        for found in wrong {
            assert!(is_part(&old, &new, &found).is_err(), "{found:?}");
        }
    }
}
