//! Random operations on a file, compared with a plain vector, at every block size.

use crate::api::MappedFile;
use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::ops::file_tests::{Rng, STALE, check_blocks, mount_with, new_file, truncate};
use pramfs_medium::error::Error;
use pramfs_medium::pmem::{HeapBackend, PmemBackend, SimBackend};
use pramfs_medium::types::{Access, Fallocate, FileExtent, Ino, SeekWhence};

/// A view for writing, and its offset in the file.
type View = (u64, MappedFile);

/// A file and its model.
struct Fixture {
    fs: Fs,
    ino: Ino,
    model: Vec<u8>,
    rng: Rng,
    /// Size up to which the file grows, bytes.
    most: u64,
    /// Distinguishes the bytes of one write from those of others.
    record_id: u8,
    /// Bytes that were compared with their sums.
    summed: u64,
    /// Views for writing, if the steps have any.
    views: Option<Vec<View>>,
    /// Bytes that were marked when sums were compared.
    marked: u64,
}

impl Fixture {
    fn offset(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => self.model.len() as u64,
            1 => self.rng.below(self.most) & !0xfff,
            2 => {
                (self.rng.below(self.most) & !0x1f_ffff) + self.rng.below(2) * self.rng.below(5000)
            }
            _ => self.rng.below(self.most),
        }
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(10) {
            0 => 1 + self.rng.below(self.most / 3),
            1 => 4096 * (1 + self.rng.below(8)),
            n => 1 + self.rng.below(1 << (n + 5)),
        }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        self.record_id = self.record_id.wrapping_add(1);
        if self.record_id == 0 || self.record_id == STALE {
            self.record_id += 1;
        }
        (0..len)
            .map(|i| {
                if i % 61 == 0 {
                    self.record_id ^ 1
                } else {
                    self.record_id
                }
            })
            .map(|b| if b == STALE { 3 } else { b })
            .collect()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if self.model.len() < at + bytes.len() {
            self.model.resize(at + bytes.len(), 0);
        }
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn write(&mut self, append: bool) {
        let offset = if append {
            self.model.len() as u64
        } else {
            self.offset()
        };
        let len = self.len();
        if offset + len > self.most * 2 {
            return;
        }
        let bytes = self.bytes(len);
        if append {
            match self.fs.append(&Credentials::ROOT, self.ino, &bytes) {
                Ok(at) => {
                    assert_eq!(at, offset);
                    self.put(at as usize, &bytes);
                }
                Err(Error::NoSpace(_)) => {}
                Err(e) => panic!("{e}"),
            }
        } else {
            match self.fs.write(&Credentials::ROOT, self.ino, offset, &bytes) {
                Ok(n) => self.put(offset as usize, &bytes[..n]),
                Err(Error::NoSpace(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn fallocate(&mut self) {
        let (offset, len) = (self.offset(), self.len());
        let end = offset + len;
        if end > self.most * 2 {
            return;
        }
        let keep_size = self.rng.below(2) == 0;
        let what = match self.rng.below(3) {
            0 => Fallocate::Allocate { keep_size },
            1 => Fallocate::PunchHole,
            _ => Fallocate::ZeroRange { keep_size },
        };
        match self
            .fs
            .fallocate(&Credentials::ROOT, self.ino, what, offset, len)
        {
            Ok(()) => {}
            // Without space, the written blocks are zeroed in place nevertheless.
            Err(Error::NoSpace(_)) if matches!(what, Fallocate::Allocate { .. }) => return,
            Err(Error::NoSpace(_)) => {
                let end = end.min(self.model.len() as u64);
                if offset < end {
                    self.model[offset as usize..end as usize].fill(0);
                }
                return;
            }
            Err(e) => panic!("{e}"),
        }
        if !matches!(what, Fallocate::Allocate { .. }) {
            let end = end.min(self.model.len() as u64);
            if offset < end {
                self.model[offset as usize..end as usize].fill(0);
            }
        }
        let grows = matches!(
            what,
            Fallocate::Allocate { keep_size: false } | Fallocate::ZeroRange { keep_size: false }
        );
        if grows && end > self.model.len() as u64 {
            self.model.resize(end as usize, 0);
        }
    }

    fn truncate(&mut self) {
        let size = if self.rng.below(6) == 0 {
            self.rng.below(5000)
        } else {
            self.offset()
        };
        truncate(&self.fs, self.ino, size).unwrap();
        self.model.resize(size as usize, 0);
    }

    fn seek(&mut self) {
        let offset = self.offset();
        let size = self.model.len() as u64;
        for whence in [SeekWhence::Data, SeekWhence::Hole] {
            match self.fs.seek(self.ino, offset, whence) {
                Ok(at) => {
                    assert!(offset < size && at >= offset && at <= size);
                    if whence == SeekWhence::Data {
                        assert!(
                            self.model[offset as usize..at as usize]
                                .iter()
                                .all(|b| *b == 0)
                        );
                    }
                }
                Err(Error::NoSuchAddress(_)) => {
                    assert!(offset >= size || whence == SeekWhence::Data);
                    if offset < size {
                        assert!(self.model[offset as usize..].iter().all(|b| *b == 0));
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn extents(&mut self) {
        let size = self.model.len() as u64;
        let list = self.fs.file_extents(self.ino, 0, u64::MAX).unwrap();
        let mut at = 0;
        for FileExtent {
            file_offset,
            region_offset,
            len,
            unwritten,
            lost,
        } in list
        {
            assert!(!lost);
            assert_eq!(file_offset, at);
            let want = &self.model[at as usize..(at + len) as usize];
            match region_offset.filter(|_| !unwritten) {
                Some(r) => {
                    let mut got = vec![0; len as usize];
                    self.fs.region().read(r, &mut got).unwrap();
                    assert!(got == want);
                }
                None => assert!(want.iter().all(|b| *b == 0)),
            }
            at += len;
        }
        assert_eq!(at, size);
    }

    fn read(&mut self, offset: u64, len: u64) {
        let mut got = vec![0xee; len as usize];
        let n = self.fs.read(self.ino, offset, &mut got).unwrap();
        let from = self.model.len().min(offset as usize);
        let to = self.model.len().min((offset + len) as usize);
        assert_eq!(n, to - from);
        if let Some(i) = (0..n).find(|&i| got[i] != self.model[from + i]) {
            panic!(
                "byte {}: {:#x} for {:#x}",
                from + i,
                got[i],
                self.model[from + i]
            );
        }
        let mut lent = 0;
        let there = self
            .fs
            .with_contiguous(self.ino, offset, len as usize, &mut |bytes| {
                lent = bytes.len()
            })
            .unwrap();
        assert!(there.is_none_or(|m| m == n && lent == n));
    }

    /// Maps, stores to or ends a view of a part of the file, or sums what no view can store to.
    fn view(&mut self) {
        let size = self.model.len() as u64;
        let mut views = self.views.take().unwrap();
        match self.rng.below(6) {
            0..2 if views.len() < 3 && size > 0 => {
                let start = self.rng.below(size);
                let end = size.min(start + 1 + self.rng.below(40_000));
                let file = self.fs.open_file(self.ino).unwrap();
                match file.map(start..end, Access::Write) {
                    Ok(view) => views.push((start, view)),
                    Err(Error::NoSpace(_)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            0..3 if !views.is_empty() => {
                let at = self.rng.below(views.len() as u64) as usize;
                views.swap_remove(at);
            }
            3 => drop(self.fs.sum_marked_part()),
            4 => {
                let offset = self.offset();
                match self.fs.gather(self.ino, offset) {
                    Ok(_) | Err(Error::NoSpace(_)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            _ if !views.is_empty() => {
                let view = &views[self.rng.below(views.len() as u64) as usize];
                self.store(view);
            }
            _ => {}
        }
        self.views = Some(views);
    }

    /// Stores to a view. Its blocks may have left the file.
    fn store(&mut self, (start, view): &View) {
        let at = self.rng.below(view.len());
        let in_file = start + at;
        let byte = self.bytes(1)[0];
        view.write(at, &[byte]).unwrap();
        let place = |list: &[FileExtent]| {
            let held = |e: &&FileExtent| (e.file_offset..e.file_offset + e.len).contains(&in_file);
            let extent = list.iter().find(held).copied()?;
            let at = extent.region_offset.filter(|_| !extent.unwritten)?;
            Some(at + (in_file - extent.file_offset))
        };
        let now = self.fs.file_extents(self.ino, 0, u64::MAX).unwrap();
        if in_file < self.model.len() as u64 && place(&now) == place(view.extents()) {
            self.model[in_file as usize] = byte;
        }
    }

    fn step(&mut self) {
        if self.views.is_some() && self.rng.below(2) == 0 {
            return self.view();
        }
        match self.rng.below(16) {
            0..6 => self.write(false),
            6..8 => self.write(true),
            8..10 => self.truncate(),
            10..13 => self.fallocate(),
            13 => self.seek(),
            14 => self.extents(),
            _ => {
                let (offset, len) = (self.offset(), self.len());
                self.read(offset, len);
            }
        }
    }

    fn check(&mut self) {
        assert_eq!(
            self.fs.getattr(self.ino).unwrap().size,
            self.model.len() as u64
        );
        self.read(0, self.model.len() as u64 + 10);
        check_blocks(&self.fs, self.ino);
        let verified = self.fs.verify_data(self.ino, 0..u64::MAX).unwrap();
        assert!(verified.wrong.is_empty(), "{verified:?}");
        assert!(!verified.is_marked || self.views.is_some());
        self.marked += verified
            .unsummed
            .iter()
            .map(|r| r.end - r.start)
            .sum::<u64>();
        if self.fs.vol.geo.data_sums {
            self.summed += verified.compared;
        }
    }
}

/// Compares a file with its model after random steps. Finally removes the file, and checks
/// that its blocks are free.
fn model(block_size: u32, region: usize, most: u64, steps: u32) {
    model_with(block_size, region, most, steps, &[]);
}

fn model_with(block_size: u32, region: usize, most: u64, steps: u32, features: &[&str]) {
    model_of(block_size, region, most, steps, features, false);
}

fn model_of(block_size: u32, region: usize, most: u64, steps: u32, features: &[&str], views: bool) {
    for seed in 1..=4 {
        let backend: Box<dyn PmemBackend> = match views {
            true => Box::new(SimBackend::new(region).unwrap()),
            false => HeapBackend::boxed(region),
        };
        let fs = mount_with(backend, block_size, features);
        let free = |fs: &Fs| fs.statfs().unwrap().free;
        // The first file allocates the directory's block and the groups.
        let filler = new_file(&fs, b"filler");
        let all = fs.vol.geo.bytes(free(&fs));
        let _ = fs.fallocate(
            &Credentials::ROOT,
            filler,
            Fallocate::Allocate { keep_size: false },
            0,
            all - all / 16,
        );
        fs.unlink(Ino::ROOT, b"filler").unwrap();
        let ino = new_file(&fs, b"file");
        fs.vol.retire_pending().unwrap();
        let before = free(&fs);
        let mut fixture = Fixture {
            fs,
            ino,
            model: Vec::new(),
            rng: Rng(0x9876_5432_1fed * seed),
            most,
            record_id: 0,
            summed: 0,
            views: views.then(Vec::new),
            marked: 0,
        };
        for i in 0..steps {
            fixture.step();
            if i % 8 == 0 {
                fixture.check();
            }
        }
        if fixture.views.take().is_some() {
            assert!(fixture.marked > most);
            assert!(fixture.fs.sum_marked_files());
        }
        fixture.check();
        let has_sums = fixture.fs.vol.geo.data_sums;
        assert_eq!(has_sums, fixture.summed > most);
        fixture.fs.unlink(Ino::ROOT, b"file").unwrap();
        fixture.fs.vol.retire_pending().unwrap();
        let after = free(&fixture.fs);
        assert!(
            after >= before - 2 && after <= before + 1,
            "{before} {after}"
        );
    }
}

#[test]
fn files_match_vec_with_512_byte_blocks() {
    model(512, 4 << 20, 300 << 10, 300);
}

#[test]
fn files_match_vec_with_1024_byte_blocks() {
    model(1024, 4 << 20, 700 << 10, 300);
}

#[test]
fn files_match_vec_with_2048_byte_blocks() {
    model(2048, 8 << 20, 1 << 20, 300);
}

#[test]
fn files_match_vec_with_4096_byte_blocks() {
    model(4096, 64 << 20, 10 << 20, 300);
}

#[test]
fn files_match_vec_in_nearly_full_region() {
    model(512, 1 << 20, 700 << 10, 300);
    model(4096, 8 << 20, 8 << 20, 200);
}

/// After each few steps, each written block has the right sum.
#[test]
fn files_with_checksums_match_vec_and_sums() {
    const SUMS: &[&str] = &["data_checksums"];
    model_with(512, 4 << 20, 300 << 10, 300, SUMS);
    model_with(1024, 8 << 20, 700 << 10, 200, SUMS);
    model_with(4096, 64 << 20, 10 << 20, 300, SUMS);
}

/// Views for writing mark ranges of the file meanwhile: after each few steps, each written block
/// beside the mark has the right sum, and in the end all have.
#[test]
fn files_with_views_match_vec_and_sums() {
    const SUMS: &[&str] = &["data_checksums"];
    model_of(4096, 8 << 20, 500 << 10, 1500, SUMS, true);
    model_of(4096, 64 << 20, 10 << 20, 500, SUMS, true);
}
