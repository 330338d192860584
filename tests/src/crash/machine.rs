//! The processor and the medium: what is durable after which events of a
//! record, and what may be.
//!
//! Model, that of the sim backend: a store is on the medium for certain once
//! its line was flushed after it and the flushing thread has fenced; a
//! non-temporal store once its thread has fenced. Before that the line may
//! hold any prefix of the stores made to it since, in words of 8 bytes, and of
//! the words of non-temporal stores that follow each other any subset:
//! write-combining buffers go out in any order. An atomic read-modify-write is
//! a store like any other.
//!
//! Left to others: which of the possible images to look at ([`super::images`]),
//! and what must hold there ([`super::oracle`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use pramfs_medium::media::Geometry;
use pramfs_medium::pmem::{Event, EventKind, LINE};

use crate::random::Random;

/// A word that was stored and is not on the medium for certain.
#[derive(Debug, Clone, Copy)]
struct Word {
    /// Bytes from the start of the region, a multiple of 8.
    at: usize,
    value: [u8; 8],
    /// The event that stored it.
    seq: u64,
    /// Whether by a non-temporal store.
    nt: bool,
}

/// The stores of a line that are not on the medium for certain, oldest first.
#[derive(Debug, Default, Clone)]
struct Pending {
    words: Vec<Word>,
    /// How many words of this line have become certain and are not in `words`.
    settled: usize,
}

impl Pending {
    /// Words ever stored to the line.
    fn end(&self) -> usize {
        self.settled + self.words.len()
    }
}

/// The bytes of a line.
pub type Value = [u8; LINE as usize];

/// Which values a line may have that several stores have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Torn {
    /// One of those of `Edges`, from the middle.
    Half,
    /// Prefixes of its stores; of non-temporal words: each prefix, each word
    /// alone, all but each word.
    Edges,
    /// Prefixes of its stores, and every subset of non-temporal words.
    Words,
    /// Every subset of its stored words, in whichever order they were made:
    /// stricter than any processor. Lines of more than 10 stored words are
    /// taken as with `Words`.
    Strict,
}

/// A line whose value after a power failure is not certain.
#[derive(Debug, Clone)]
pub struct Uncertain {
    /// Its first byte, from the start of the region.
    pub at: usize,
    /// The event that stored to it first.
    pub since: u64,
    /// That was a non-temporal store.
    pub nt: bool,
    /// What it may hold: at the front what is certain, at the back all that
    /// was stored to it. At least two.
    pub values: Vec<Value>,
}

fn values(at: usize, certain: Value, words: &[Word], torn: Torn) -> Vec<Value> {
    let with = |mut value: Value, words: &[Word]| {
        for w in words {
            value[w.at - at..][..8].copy_from_slice(&w.value);
        }
        value
    };
    let subset = |value: Value, words: &[Word], mask: usize| {
        let chosen = (0..words.len()).filter(|i| mask >> i & 1 != 0);
        chosen.fold(value, |v, i| with(v, &words[i..=i]))
    };
    let mut out = vec![certain];
    if torn == Torn::Strict && words.len() <= 10 {
        out.extend((1..1 << words.len()).map(|mask| subset(certain, words, mask)));
    } else {
        let mut value = certain;
        for run in words.chunk_by(|a, b| a.nt && b.nt) {
            let n = run.len();
            if n == 1 || matches!(torn, Torn::Half | Torn::Edges) || n > 8 {
                let prefix = |k: usize| with(value, &run[..k]);
                let alone = |k: usize| with(value, &run[k..=k]);
                let without = |k: usize| with(with(value, &run[..k]), &run[k + 1..]);
                if n > 1 {
                    out.extend((0..n).map(alone));
                    out.extend((0..n).map(without));
                }
                out.extend((1..=n).map(prefix));
            } else {
                out.extend((1..1 << n).map(|mask| subset(value, run, mask)));
            }
            value = with(value, run);
        }
    }
    // All that was stored comes last. A value that a store left as it was, or
    // that another tear gives too, is one value.
    let last = with(certain, words);
    let mut seen = HashSet::from([certain, last]);
    let mut between = out.split_off(1);
    between.retain(|v| seen.insert(*v));
    if torn == Torn::Half {
        between = between
            .get(between.len() / 2)
            .copied()
            .into_iter()
            .collect();
    }
    out.append(&mut between);
    if last != certain || out.len() > 1 {
        out.push(last);
    }
    out
}

/// A machine that has run some of the events of a record and may lose power.
#[derive(Debug, Clone)]
pub struct Machine {
    /// What the medium holds for certain.
    durable: Vec<u8>,
    /// What the processor sees.
    current: Vec<u8>,
    pending: BTreeMap<usize, Pending>,
    /// For each thread, up to which word its next fence makes a line certain.
    covered: HashMap<u32, HashMap<usize, usize>>,
}

impl Machine {
    /// A machine whose medium holds `image`, all of it for certain.
    pub fn new(image: Vec<u8>) -> Machine {
        assert!(image.len().is_multiple_of(LINE as usize));
        Machine {
            current: image.clone(),
            durable: image,
            pending: BTreeMap::new(),
            covered: HashMap::new(),
        }
    }

    /// Runs one event.
    pub fn run(&mut self, e: &Event) {
        let at = e.offset as usize;
        match e.kind {
            EventKind::Store | EventKind::Discard => self.store(e, at, &e.bytes, false),
            EventKind::NtStore => {
                self.store(e, at, &e.bytes, true);
                self.cover(e.thread, at, e.bytes.len());
            }
            EventKind::Flush => {
                // What was stored past the backend shows only here.
                if self.current[at..at + e.bytes.len()] != e.bytes[..] {
                    self.store(e, at, &e.bytes, false);
                }
                self.cover(e.thread, at, e.bytes.len());
            }
            EventKind::Fence => {
                for (line, upto) in self.covered.remove(&e.thread).unwrap_or_default() {
                    self.settle(line, upto);
                }
            }
            // No promise beyond those of the fences on cache-line media.
            EventKind::SyncAll => {}
        }
    }

    /// Runs events in order.
    pub fn run_all<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        events.into_iter().for_each(|e| self.run(e));
    }

    fn store(&mut self, e: &Event, at: usize, bytes: &[u8], nt: bool) {
        self.current[at..at + bytes.len()].copy_from_slice(bytes);
        let (first, end) = (at & !7, (at + bytes.len()).next_multiple_of(8));
        for at in (first..end.min(self.current.len())).step_by(8) {
            let mut value = [0; 8];
            value.copy_from_slice(&self.current[at..at + 8]);
            let line = self.pending.entry(at / LINE as usize).or_default();
            line.words.push(Word {
                at,
                value,
                seq: e.seq,
                nt,
            });
        }
    }

    fn cover(&mut self, thread: u32, at: usize, len: usize) {
        let covered = self.covered.entry(thread).or_default();
        for line in at / LINE as usize..(at + len).div_ceil(LINE as usize) {
            if let Some(p) = self.pending.get(&line) {
                covered.insert(line, p.end());
            }
        }
    }

    fn settle(&mut self, line: usize, upto: usize) {
        let Some(p) = self.pending.get_mut(&line) else {
            return;
        };
        let n = upto.saturating_sub(p.settled).min(p.words.len());
        for w in p.words.drain(..n) {
            self.durable[w.at..w.at + 8].copy_from_slice(&w.value);
        }
        p.settled += n;
        // An empty line is forgotten, and with it how far others cover it.
        if p.words.is_empty() {
            self.pending.remove(&line);
            self.covered.values_mut().for_each(|c| {
                c.remove(&line);
            });
        }
    }

    /// Lines with stores that are not certain.
    pub fn uncertain_lines(&self) -> usize {
        self.pending.len()
    }

    /// The lines with stores that are not certain, by their first byte, each
    /// with the values that it may have: what is certain first, all that was
    /// stored last. The number is that of the event that stored to it first.
    pub fn uncertain(&self, torn: Torn) -> Vec<Uncertain> {
        let line = |(line, p): (&usize, &Pending)| {
            let at = line * LINE as usize;
            let mut value: Value = [0; LINE as usize];
            value.copy_from_slice(&self.durable[at..at + LINE as usize]);
            Uncertain {
                at,
                since: p.words[0].seq,
                nt: p.words[0].nt,
                values: values(at, value, &p.words, torn),
            }
        };
        let lines = self.pending.iter().map(line);
        // What was stored is what was there: nothing is uncertain.
        lines.filter(|l| l.values.len() > 1).collect()
    }

    /// What is certain.
    pub fn durable(&self) -> &[u8] {
        &self.durable
    }

    /// What the processor sees.
    pub fn current(&self) -> &[u8] {
        &self.current
    }

    /// Takes note of stores that were made past the backend and not flushed
    /// since, by what memory holds now: those of a view that nobody persisted.
    pub fn shadow(&mut self, memory: &[u8], seq: u64, thread: u32) {
        let line = LINE as usize;
        for at in (0..memory.len()).step_by(line) {
            if self.current[at..at + line] != memory[at..at + line] {
                let e = Event {
                    seq,
                    thread,
                    kind: EventKind::Store,
                    offset: at as u64,
                    bytes: memory[at..at + line].to_vec(),
                };
                self.run(&e);
            }
        }
    }

    /// Only what is certain.
    pub fn least(&self) -> Vec<u8> {
        self.durable.clone()
    }

    /// Everything that was stored.
    pub fn most(&self) -> Vec<u8> {
        self.current.clone()
    }

    /// What is certain, and all that was stored to the lines that `chosen`
    /// picks by the offset of their first byte.
    pub fn lines(&self, mut chosen: impl FnMut(u64) -> bool) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (line, p) in &self.pending {
            if chosen(*line as u64 * LINE) {
                put(&mut image, &p.words);
            }
        }
        image
    }

    /// What is certain, and of each other word that was stored whatever
    /// `chosen` picks by its offset and the number of its event. The caller
    /// answers for the choice being possible: for each line a prefix, or of one
    /// non-temporal store any words.
    pub fn words(&self, mut chosen: impl FnMut(u64, u64) -> bool) -> Vec<u8> {
        let mut image = self.durable.clone();
        for w in self.pending.values().flat_map(|p| &p.words) {
            if chosen(w.at as u64, w.seq) {
                put(&mut image, std::slice::from_ref(w));
            }
        }
        image
    }

    /// What is certain, with all that was stored to the journal and nothing
    /// else, or the other way round: records without their homes, homes without
    /// the records of later operations.
    pub fn journal_apart(&self, geo: &Geometry) -> [Vec<u8>; 2] {
        let journal = geo.journal_offset.0..geo.journal_offset.0 + geo.journal_len;
        [true, false].map(|inside| self.lines(|line| journal.contains(&line) == inside))
    }

    /// A random one of the possible images.
    pub fn random(&self, random: &mut Random) -> Vec<u8> {
        let mut image = self.durable.clone();
        for p in self.pending.values() {
            let n = match random.below(4) {
                0 => 0,
                1 => p.words.len(),
                _ => random.below(p.words.len() as u64 + 1) as usize,
            };
            put(&mut image, &p.words[..n]);
            // Of the non-temporal store that comes next, any words.
            let next = p.words[n..].first().filter(|w| w.nt).map(|w| w.seq);
            for w in p.words[n..].iter().take_while(|w| Some(w.seq) == next) {
                if random.one_in(2) {
                    put(&mut image, std::slice::from_ref(w));
                }
            }
        }
        image
    }
}

fn put(image: &mut [u8], words: &[Word]) {
    for w in words {
        image[w.at..w.at + 8].copy_from_slice(&w.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pramfs_medium::pmem::RegionAccess;
    use pramfs_medium::pmem::{Region, SimBackend};

    fn recorded(run: impl FnOnce(&Region)) -> Vec<Event> {
        let sim = SimBackend::new(4096).unwrap();
        sim.recording(true);
        run(&Region::new("sim", Box::new(sim.clone())));
        sim.take_record()
    }

    fn word(image: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn store_is_durable_only_after_flush_and_fence() {
        let events = recorded(|r| {
            let w = r.window();
            w.store_u64_unflushed(0, 1).unwrap();
            let p = w.flush(0, 8).unwrap();
            w.store_u64_unflushed(8, 2).unwrap();
            w.fence(p);
            w.fence(w.flush(8, 8).unwrap());
        });
        let mut m = Machine::new(vec![0; 4096]);
        m.run_all(&events[..3]);
        assert_eq!((word(&m.least(), 0), word(&m.most(), 8)), (0, 2));
        m.run(&events[3]);
        assert_eq!((word(&m.least(), 0), word(&m.least(), 8)), (1, 0));
        m.run_all(&events[4..]);
        assert_eq!(word(&m.least(), 8), 2);
        assert_eq!(m.uncertain_lines(), 0);
    }

    #[test]
    fn fence_covers_only_its_thread() {
        let events = recorded(|r| {
            let p = r.window().store(0, &[1; 8]).unwrap();
            std::thread::scope(|s| {
                s.spawn(|| {
                    let other = r.window().nt_store(64, &[2; 8]).unwrap();
                    r.window().fence(other);
                });
            });
            drop(p);
        });
        let mut m = Machine::new(vec![0; 4096]);
        m.run_all(&events);
        let image = m.least();
        assert_eq!((image[0], image[64]), (0, 2));
    }

    #[test]
    fn line_keeps_store_prefix_and_any_torn_words() {
        let events = recorded(|r| {
            let w = r.window();
            let a = w.store(0, &[1; 16]).unwrap();
            let b = w.nt_store(64, &[2; 24]).unwrap();
            drop(a.join(b));
        });
        let mut m = Machine::new(vec![0; 4096]);
        m.run_all(&events);
        assert_eq!(
            m.lines(|line| line == 64)[..72],
            [[0; 64].as_slice(), &[2; 8]].concat()
        );
        let torn = m.words(|at, _| at == 80);
        assert_eq!((torn[0], torn[64], torn[80]), (0, 0, 2));
        let mut random = Random::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let i = m.random(&mut random);
            assert!(i[0] == 1 || i[8] == 0, "the second word without the first");
            seen.insert((i[0], i[8], i[64], i[72], i[80]));
        }
        assert_eq!(seen.len(), 3 * 8);
    }
}
