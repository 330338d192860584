//! Reads a saved region, and stores it into another one.
//!
//! Order: first the whole file is read and checked. Then the magics of both superblock pages
//! in the region are cleared, all blocks stored, and the superblock pages stored last, each
//! behind a fence. A restore that is interrupted leaves a region that does not mount.
//!
//! Invariant: nothing in the file is trusted. A file that is damaged changes nothing.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use pramfs::pmem::Region;
use pramfs_medium::media::probe::check_features;
use pramfs_medium::media::probe_superblock_pages;
use pramfs_medium::media::superblock::{COPY_OFFSET, PAGE};
use pramfs_medium::pmem::{PmemError, RegionAccess, Unfenced, WriteWindow};
use serde::{Deserialize, Serialize};

use super::format::{
    CHUNK_HEADER, CHUNK_MAX, ChunkHeader, END, End, HEADER, Header, Kind, RUN, damaged, run_at,
};
use crate::Failure;

/// A file that is being read.
pub(crate) struct Reader<R> {
    input: R,
    /// Its name, for messages.
    name: String,
    pub header: Header,
    seed: u32,
    len: u64,
    crc: u32,
    chunks: u64,
    blocks: u64,
    order: Order,
    /// The sums of a file that was checked before.
    end: Option<End>,
    decompressor: zstd::bulk::Decompressor<'static>,
    /// A chunk as stored, and decompressed.
    stored: Vec<u8>,
    payload: Vec<u8>,
}

/// How far a [`check`] is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Sum of the header.
    seed: u32,
    /// Bytes that are checked.
    pub len: u64,
    crc: u32,
    chunks: u64,
    blocks: u64,
    order: Order,
    pages: Pages,
}

/// A run of blocks and its bytes.
pub(crate) struct Run<'a> {
    /// Offset in the region.
    pub offset: u64,
    pub bytes: &'a [u8],
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The file is no saved region, or its header is damaged.
    pub(crate) fn new(mut input: R, name: &str) -> Result<Reader<R>, Failure> {
        let mut bytes = [0; HEADER];
        let got = read_up_to(&mut input, &mut bytes).map_err(|e| cannot_read(name, e))?;
        if got != HEADER {
            return Err(damaged(name, "it is too short for a saved region"));
        }
        let header = Header::decode(&bytes).map_err(|why| damaged(name, &why))?;
        Ok(Reader {
            input,
            name: name.to_owned(),
            seed: header.seed(),
            header,
            len: HEADER as u64,
            crc: crc32c::crc32c(&bytes),
            chunks: 0,
            blocks: 0,
            order: Order::default(),
            end: None,
            decompressor: zstd::bulk::Decompressor::new().map_err(|e| cannot_read(name, e))?,
            stored: Vec::new(),
            payload: Vec::new(),
        })
    }

    /// Calls `f` for each run of blocks, and checks the end. Returns the number of blocks.
    ///
    /// # Errors
    /// The file is damaged or too short, and those of `f`. Then earlier calls have seen runs.
    pub(crate) fn runs(
        &mut self,
        f: &mut dyn FnMut(Run<'_>) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        loop {
            if let Some(blocks) = self.chunk(f)? {
                return Ok(blocks);
            }
        }
    }

    /// Calls `f` for each run of blocks of the next chunk. At the end of the file, checks that,
    /// and returns the number of blocks.
    fn chunk(
        &mut self,
        f: &mut dyn FnMut(Run<'_>) -> Result<(), Failure>,
    ) -> Result<Option<u64>, Failure> {
        let mut head = [0; CHUNK_HEADER];
        self.take(&mut head)?;
        if End::is_at(&head) {
            return self.check_end(&head).map(Some);
        }
        let (chunk, crc) =
            ChunkHeader::decode(&head, self.seed).map_err(|why| damaged(&self.name, why))?;
        self.crc = crc32c::crc32c_append(self.crc, &head);
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(chunk.stored as usize, 0);
        self.take(&mut stored)?;
        self.crc = crc32c::crc32c_append(self.crc, &stored);
        if crc32c::crc32c_append(self.seed, &stored) != crc || chunk.number != self.chunks {
            return Err(damaged(
                &self.name,
                &format!("chunk {} is damaged", self.chunks),
            ));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        payload.reserve(CHUNK_MAX);
        let unpacked = self
            .decompressor
            .decompress_to_buffer(&stored, &mut payload);
        if unpacked.ok() != Some(chunk.payload as usize) {
            return Err(damaged(
                &self.name,
                &format!("chunk {} cannot be decompressed", self.chunks),
            ));
        }
        self.runs_of(&payload, chunk.runs as usize, f)?;
        self.chunks += 1;
        (self.stored, self.payload) = (stored, payload);
        Ok(None)
    }

    fn runs_of(
        &mut self,
        payload: &[u8],
        runs: usize,
        f: &mut dyn FnMut(Run<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let bad = |name: &str| damaged(name, "a chunk names blocks that the region does not have");
        let mut at = runs * RUN;
        for index in 0..runs {
            let (first, count) = run_at(payload, index);
            let end = first
                .checked_add(count)
                .filter(|end| count > 0 && *end <= self.header.blocks)
                .ok_or_else(|| bad(&self.name))?;
            if !self.order.admits(first..end) {
                return Err(damaged(
                    &self.name,
                    "a chunk names blocks out of order or for the second time",
                ));
            }
            let bytes = (end - first) * self.header.block_size();
            let data = usize::try_from(bytes)
                .ok()
                .and_then(|len| payload.get(at..at.checked_add(len)?))
                .ok_or_else(|| bad(&self.name))?;
            f(Run {
                offset: first * self.header.block_size(),
                bytes: data,
            })?;
            at += data.len();
            self.blocks += count;
        }
        match at == payload.len() {
            true => Ok(()),
            false => Err(bad(&self.name)),
        }
    }

    fn check_end(&mut self, head: &[u8; CHUNK_HEADER]) -> Result<u64, Failure> {
        let mut bytes = [0; END];
        bytes[..CHUNK_HEADER].copy_from_slice(head);
        self.take(&mut bytes[CHUNK_HEADER..])?;
        let end = End::decode(&bytes, self.seed).map_err(|why| damaged(&self.name, why))?;
        let read = End {
            chunks: self.chunks,
            blocks: self.blocks,
            len: self.len,
            crc_of_all: self.crc,
        };
        let more = read_up_to(&mut self.input, &mut [0]).map_err(|e| cannot_read(&self.name, e))?;
        if end != read || more != 0 || self.end.is_some_and(|before| before != end) {
            return Err(damaged(
                &self.name,
                "its contents are not those that its end describes",
            ));
        }
        self.end = Some(end);
        Ok(self.blocks)
    }

    /// Reads exactly these bytes.
    fn take(&mut self, into: &mut [u8]) -> Result<(), Failure> {
        let got = read_up_to(&mut self.input, into).map_err(|e| cannot_read(&self.name, e))?;
        self.len += got as u64;
        match got == into.len() {
            true => Ok(()),
            false => Err(damaged(&self.name, "it has been cut off")),
        }
    }
}

/// The uuid of a saved file system, by its header. `None` if the file is no saved region.
///
/// # Errors
/// The header is that of a saved region, and is damaged or of another version.
pub(crate) fn uuid_of(mut file: impl Read, name: &str) -> Result<Option<[u8; 16]>, Failure> {
    let mut bytes = [0; HEADER];
    let got = read_up_to(&mut file, &mut bytes).map_err(|e| cannot_read(name, e))?;
    if got < HEADER || !Header::is_at(&bytes) {
        return Ok(None);
    }
    let header = Header::decode(&bytes).map_err(|why| damaged(name, &why))?;
    Ok(Some(header.uuid))
}

/// The order of the runs in a file: those of fixed places ascend, and then the others ascend,
/// without a block of those before. So no block is stored twice.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    /// The first runs, merged. More than there are fixed places: the file has no second part.
    first: Vec<Range<u64>>,
    is_second: bool,
    /// End of the last run.
    at: u64,
}

/// Superblock page, copy, and journal.
const FIXED_PLACES: usize = 3;

impl Order {
    pub(super) fn admits(&mut self, run: Range<u64>) -> bool {
        if run.start < self.at {
            if self.is_second || self.first.len() > FIXED_PLACES {
                return false;
            }
            self.is_second = true;
        }
        self.at = run.end;
        if self.is_second {
            let meets = |other: &Range<u64>| run.start < other.end && other.start < run.end;
            return !self.first.iter().any(meets);
        }
        let has_room = self.first.len() <= FIXED_PLACES;
        match self.first.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ if has_room => self.first.push(run),
            _ => {}
        }
        true
    }
}

/// A file that is being checked: the whole of it, before anything is stored.
pub(crate) struct Check<'a, R> {
    reader: &'a mut Reader<R>,
    pages: Pages,
}

impl<'a, R: Read> Check<'a, R> {
    pub(crate) fn new(reader: &'a mut Reader<R>) -> Check<'a, R> {
        let pages = Pages::new(&reader.header);
        Check { reader, pages }
    }

    /// Checks the next chunk. At the end of the file, returns the number of blocks in it.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub(crate) fn step(&mut self) -> Result<Option<u64>, Failure> {
        let Check { reader, pages } = self;
        let blocks = reader.chunk(&mut |run| {
            pages.take(&run);
            Ok(())
        })?;
        if blocks.is_some() {
            pages
                .check(&reader.header)
                .map_err(|why| damaged(&reader.name, &why))?;
        }
        Ok(blocks)
    }

    /// Returns the position after the last step that succeeded.
    pub(crate) fn position(&self) -> Position {
        let reader = &self.reader;
        Position {
            seed: reader.seed,
            len: reader.len,
            crc: reader.crc,
            chunks: reader.chunks,
            blocks: reader.blocks,
            order: reader.order.clone(),
            pages: self.pages.clone(),
        }
    }

    /// Bytes of the file that are checked.
    pub(crate) fn at(&self) -> u64 {
        self.reader.len
    }

    /// Checks the rest of the file. Returns the number of blocks in all of it.
    ///
    /// # Errors
    /// As of [`step`](Self::step).
    pub(crate) fn rest(mut self, progress: &dyn Fn(u64)) -> Result<u64, Failure> {
        loop {
            if let Some(blocks) = self.step()? {
                return Ok(blocks);
            }
            progress(self.reader.len);
        }
    }
}

impl<R: Read + Seek> Check<'_, R> {
    /// Goes on from a position. One that is wrong in any way fails at the end of the file, whose
    /// sum is that of all bytes.
    ///
    /// # Errors
    /// It is not a position in this file, or the file cannot be read.
    pub(crate) fn resume(&mut self, position: Position) -> Result<(), Failure> {
        let reader = &mut *self.reader;
        if position.seed != reader.seed || !position.pages.fit(&reader.header) {
            return Err(Failure::new(
                "position",
                format!(
                    "{}: is another file than the one whose check was interrupted; remove the position to begin anew",
                    reader.name
                ),
            ));
        }
        reader
            .input
            .seek(SeekFrom::Start(position.len))
            .map_err(|e| cannot_read(&reader.name, e))?;
        (reader.len, reader.crc) = (position.len, position.crc);
        (reader.chunks, reader.blocks) = (position.chunks, position.blocks);
        reader.order = position.order;
        self.pages = position.pages;
        Ok(())
    }
}

/// Stores a file that was checked into a region, which is large enough. `checked` is the reader of
/// the first pass.
///
/// # Errors
/// Those of reading and storing. The region does not mount then.
pub(crate) fn restore<A: Read, R: Read>(
    checked: &Reader<A>,
    mut reader: Reader<R>,
    region: &Region,
    progress: &dyn Fn(u64),
) -> Result<u64, Failure> {
    let name = region.info().name;
    let medium = |e: PmemError| incomplete(&name, &e.to_string());
    reader.end = checked.end;
    let header = reader.header.clone();
    if checked.end.is_none() || header != checked.header {
        return Err(damaged(&reader.name, "it was replaced while it was read"));
    }
    let w = region.window();
    // Of the old file system, and a copy that it may have elsewhere is not looked for.
    let mut cleared = w.store(0, &[0; 8]).map_err(medium)?;
    for at in [COPY_OFFSET, header.copy_offset] {
        cleared = cleared.join(w.store(at, &[0; 8]).map_err(medium)?);
    }
    let _ = w.fence(cleared);
    // Before the first block replaces one of the old file system.
    settled(region, &name)?;
    match w.discard(PAGE, header.region_len - PAGE) {
        // Checks and sums of an image count on zeros in the place of data.
        Err(e) if e.kind() == io::ErrorKind::Unsupported && header.kind == Kind::Metadata => {
            return Err(incomplete(
                &name,
                "an image of metadata needs a region that can be emptied; restore it into a file",
            ));
        }
        Err(e) if e.kind() != io::ErrorKind::Unsupported => {
            return Err(incomplete(
                &name,
                &format!("its memory cannot be freed: {e}"),
            ));
        }
        _ => {}
    }

    let mut pages = Pages::new(&header);
    let blocks = reader.runs(&mut |run| {
        let pending = pages.rest(&run, &w).map_err(medium)?;
        let _ = w.fence(pending);
        progress(run.bytes.len() as u64);
        Ok(())
    });
    // The first pass has found the file sound.
    let blocks = blocks.map_err(|e| incomplete(&name, &e.message))?;
    pages
        .check(&header)
        .map_err(|why| incomplete(&name, &why))?;
    settled(region, &name)?;

    let places = [0, header.copy_offset];
    let mut pending = Unfenced::none();
    for (page, at) in pages.pages.iter().zip(places) {
        pending = pending.join(w.store(at + 8, &page[8..]).map_err(medium)?);
    }
    let _ = w.fence(pending);
    settled(region, &name)?;
    // Everything that they vouch for is durable.
    let [first, copy] = &pages.pages;
    let mut magics = w.store(header.copy_offset, &copy[..8]).map_err(medium)?;
    magics = magics.join(w.store(0, &first[..8]).map_err(medium)?);
    let _ = w.fence(magics);
    settled(region, &name)?;
    Ok(blocks)
}

/// Writes a medium of pages out, and asks whether stores were lost.
fn settled(region: &Region, name: &str) -> Result<(), Failure> {
    region
        .sync_all()
        .map_err(|e| incomplete(name, &format!("it could not be written out: {e}")))?;
    match region.faults() {
        0 => Ok(()),
        _ => Err(incomplete(
            name,
            "some of its pages could not be accessed: its host file system is full, or the medium failed",
        )),
    }
}

fn incomplete(name: &str, why: &str) -> Failure {
    let why = why.trim_end_matches("; nothing was changed");
    Failure::new(
        "incomplete",
        format!("{name}: not restored: {why}. It holds no file system now"),
    )
}

/// The superblock pages, which are stored last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pages {
    places: [u64; 2],
    pages: [Vec<u8>; 2],
    /// Bytes of each page that were in the file.
    found: [u64; 2],
}

impl Pages {
    fn new(header: &Header) -> Pages {
        Pages {
            places: [0, header.copy_offset],
            pages: [vec![0; PAGE as usize], vec![0; PAGE as usize]],
            found: [0; 2],
        }
    }

    /// Whether they may be pages of the region that the header describes.
    fn fit(&self, header: &Header) -> bool {
        self.places == [0, header.copy_offset]
            && self.pages.iter().all(|page| page.len() as u64 == PAGE)
            && self.found.iter().all(|found| *found <= PAGE)
    }

    /// Takes what a run has of them.
    fn take(&mut self, run: &Run<'_>) {
        for (i, place) in self.places.into_iter().enumerate() {
            let end = run.offset + run.bytes.len() as u64;
            let (from, to) = (run.offset.max(place), end.min(place + PAGE));
            if from < to {
                let bytes = &run.bytes[(from - run.offset) as usize..(to - run.offset) as usize];
                self.pages[i][(from - place) as usize..(to - place) as usize]
                    .copy_from_slice(bytes);
                self.found[i] += to - from;
            }
        }
    }

    /// Takes what a run has of them, and stores the rest.
    fn rest(&mut self, run: &Run<'_>, w: &WriteWindow<'_>) -> Result<Unfenced, PmemError> {
        self.take(run);
        let end = run.offset + run.bytes.len() as u64;
        let mut pending = Unfenced::none();
        let mut keep = |from: u64, to: u64| {
            if from < to {
                let bytes = &run.bytes[(from - run.offset) as usize..(to - run.offset) as usize];
                pending = std::mem::take(&mut pending).join(w.nt_store(from, bytes)?);
            }
            Ok::<(), PmemError>(())
        };
        let mut at = run.offset;
        for place in self.places {
            if place < end && at < place + PAGE {
                keep(at, place.min(end))?;
                at = at.max((place + PAGE).min(end));
            }
        }
        keep(at, end)?;
        Ok(pending)
    }

    /// Both are whole, of the region that the header describes, and of a version and features
    /// that this program knows.
    fn check(&self, header: &Header) -> Result<(), String> {
        if self.found != [PAGE; 2] {
            return Err("it has no superblock of the region that its header describes".into());
        }
        let [first, copy] = &self.pages;
        // Of an image, one page may be damaged.
        let is_valid =
            |page: &&Vec<u8>| probe_superblock_pages(page, page, header.region_len).is_ok();
        let (first, copy) = match header.kind {
            Kind::Save => (first, copy),
            Kind::Metadata => {
                let page = [first, copy].into_iter().find(is_valid).unwrap_or(first);
                (page, page)
            }
        };
        let found = probe_superblock_pages(first, copy, header.region_len)
            .and_then(|found| check_features(&found.fixed, true).map(|()| found.fixed))
            .map_err(|e| e.to_string())?;
        let is_described = found.uuid == header.uuid
            && found.region_len == header.region_len
            && found.copy_offset == header.copy_offset
            && found.block_size_log2 == header.block_size_log2;
        match is_described {
            true => Ok(()),
            false => Err("its superblock is not of the region that its header describes".into()),
        }
    }
}

fn read_up_to(input: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match input.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

fn cannot_read(name: &str, e: io::Error) -> Failure {
    Failure::os("cannot read", name, e)
}
