//! A file that one thread alone changes, every byte of which it knows, with a
//! name or without.

use pramfs::Fallocate;

use super::target::Target;
use super::worker::Worker;

pub(super) struct Own<N> {
    node: N,
    pub(super) name: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

impl<N> Own<N> {
    pub(super) fn new(node: N, name: Option<Vec<u8>>) -> Own<N> {
        Own {
            node,
            name,
            bytes: Vec::new(),
        }
    }

    /// One operation; false if it is to be let go.
    pub(super) fn step<D: Target<Node = N>>(
        &mut self,
        w: &mut Worker<'_, D>,
        most: usize,
    ) -> Result<bool, String> {
        let (access, full) = (w.access, [libc::ENOSPC]);
        let at = w.random.below(most as u64) as usize;
        let len = 1 + w.random.below(20_000) as usize;
        let end = at + len;
        let range = |size: usize| at.min(size)..end.min(size);
        match w.random.below(16) {
            0..=4 => {
                let mut new = vec![0; len];
                w.random.fill(&mut new);
                let n = access.write(&self.node, at as u64, &new);
                if let Some(n) = w.sort("write", n, &full)? {
                    self.grow(at + n);
                    self.bytes[at..at + n].copy_from_slice(&new[..n]);
                }
            }
            5 if self.bytes.len() < most => {
                let mut new = vec![0; len];
                w.random.fill(&mut new);
                let n = access.append(&self.node, &new);
                if let Some(n) = w.sort("append", n, &full)? {
                    self.bytes.extend(&new[..n]);
                }
            }
            6 | 7 => {
                let done = access.truncate(&self.node, at as u64);
                if w.sort("truncate", done, &[])?.is_some() {
                    self.bytes.resize(at, 0);
                }
            }
            8 => {
                let done =
                    access.fallocate(&self.node, Fallocate::PunchHole, at as u64, len as u64);
                if w.sort("punch", done, &full)?.is_some() {
                    let range = range(self.bytes.len());
                    self.bytes[range].fill(0);
                }
            }
            9 => {
                let what = Fallocate::ZeroRange { keep_size: false };
                let done = access.fallocate(&self.node, what, at as u64, len as u64);
                if w.sort("zero", done, &full)?.is_some() {
                    self.grow(end);
                    self.bytes[at..end].fill(0);
                }
            }
            10 => {
                let keep_size = w.random.one_in(2);
                let what = Fallocate::Allocate { keep_size };
                // Now and then enough for a leaf of 2 MiB.
                let len = if w.random.one_in(3) { most } else { len };
                let done = access.fallocate(&self.node, what, at as u64, len as u64);
                if w.sort("fallocate", done, &full)?.is_some() && !keep_size {
                    self.grow(at + len);
                }
            }
            11 | 12 if D::VIEWS => {
                let range = range(self.bytes.len() / 8 * 8);
                let (from, count) = (range.start / 8 * 8, range.len().min(4096) / 8);
                let words: Vec<u64> = (0..count).map(|_| w.random.word()).collect();
                if count > 0 {
                    let persist = w.random.one_in(2);
                    let stored = access.store(&self.node, from as u64, &words, persist);
                    if w.sort("store", stored, &full)?.is_some() {
                        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                        self.bytes[from..from + bytes.len()].copy_from_slice(&bytes);
                    }
                }
            }
            11..=14 => self.compare(w, at, len)?,
            _ => {
                self.compare_all(w)?;
                return Ok(!w.random.one_in(2));
            }
        }
        Ok(true)
    }

    fn grow(&mut self, to: usize) {
        if to > self.bytes.len() {
            self.bytes.resize(to, 0);
        }
    }

    pub(super) fn compare_all<D: Target<Node = N>>(
        &mut self,
        w: &mut Worker<'_, D>,
    ) -> Result<(), String> {
        self.compare(w, 0, self.bytes.len() + 1)
    }

    fn compare<D: Target<Node = N>>(
        &self,
        w: &mut Worker<'_, D>,
        at: usize,
        len: usize,
    ) -> Result<(), String> {
        let about = w.access.about(&self.node);
        let about = w.sort("getattr", about, &[])?.ok_or("no attributes")?;
        let expected = (self.bytes.len() as u64, u64::from(self.name.is_some()));
        if (about.size, about.nlink) != expected {
            return Err(format!(
                "own file {:?}: size and links are {} and {}, not {expected:?}",
                self.name, about.size, about.nlink
            ));
        }
        let mut got = vec![0xee; len];
        let n = w.access.read(&self.node, at as u64, &mut got);
        let n = w.sort("read", n, &[])?.unwrap_or(0);
        let expected = &self.bytes[at.min(self.bytes.len())..(at + len).min(self.bytes.len())];
        if got[..n] == *expected {
            return Ok(());
        }
        let i = got[..n].iter().zip(expected).position(|(a, b)| a != b);
        let i = i.unwrap_or(n.min(expected.len()));
        Err(format!(
            "own file {:?} of {} bytes: {n} bytes read at {at}, {} expected; byte {} is {:x?} instead of {:x?}",
            self.name,
            self.bytes.len(),
            expected.len(),
            at + i,
            got[..n].get(i),
            expected.get(i)
        ))
    }
}
