//! Writing a batch: exactly once, durable before it is acknowledged, in bounded memory.
//!
//! A batch passes three stages in the catalog. Its *intent* is put first, under the condition that nobody else is at it with
//! another stamp. Each step then records the chunks it is about to put (a *part*) before putting them, so that whoever
//! repeats an interrupted write knows every chunk that may exist. At the end one commit takes away what no longer belongs
//! to the batch, puts its *record* and deletes the intent. Small batches go through all of it in a single commit.

pub(crate) mod content;
pub(crate) mod input;
pub(crate) mod pack;
pub(crate) mod sort;

use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::ops::Range;

use arrow_array::{Array, RecordBatch};
use arrow_schema::ArrowError;
use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{Chunk, ChunkKey, Commit, Expect, RecordPut, StoreError};
use chronotile_types::{BatchId, ChunkId, SliceId, Tile};
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use crate::catalog::clock;
use crate::catalog::fence::{self, Seen};
use crate::catalog::{self, BatchRecord, ChunkRef, Intent, Part, REFS_PER_PART_MAX};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::Keys;
use crate::maintenance::batches::Retirement;
use crate::report::WriteReport;
use crate::request::WriteOptions;
use crate::write::content::Content;
use crate::write::pack::{TileRows, pack, zones};
use crate::write::sort::Filed;

/// Bytes of rows that are joined, whatever the buffer may take: a column of text holds 2 GiB.
const JOINED_BYTES_MAX: usize = i32::MAX as usize;
/// Below this many rows a batch is encoded by the calling thread alone.
const PARALLEL_ROWS: usize = 4_096;

impl Dataset {
    /// Writes the rows of `batches` as one batch and returns when all of them are durable.
    ///
    /// With [`WriteOptions::batch`] the outcome is exactly-once: repeating the same content under the same name changes
    /// nothing, whether the first try ended, failed or was cut off. Other content under a stored name is refused, unless
    /// `replace` asks for it. Where slices with rows of the batch were retired since, all its rows are stored again. Rows may be up to `buffer_bytes` large before some of them are put; until the write ends,
    /// readers see those unless they ask for finished batches only.
    ///
    /// # Errors
    /// Rows that do not fit (nothing is acknowledged), the input's own failure, a stored batch of other content, or the
    /// engine, or [`ArchiveError::SliceRetired`]. [`ArchiveError::outcome`] tells whether any of it can have happened.
    pub async fn write<I>(&self, batches: I, options: WriteOptions) -> Result<WriteReport>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        let frame = self.frame();
        let buffer_bytes = options.buffer_bytes.clamp(1 << 20, 4 << 30);
        let mut write = Write::begin(self, &frame, options, self.stamp_us().await?);
        let result = write.run(batches, buffer_bytes).await;
        if result.is_err() && write.options.batch.is_none() {
            write.abandon().await;
        }
        result
    }
}

struct Write<'a> {
    dataset: &'a Dataset,
    frame: &'a Frame,
    options: WriteOptions,
    batch: BatchId,
    intent: Intent,
    /// Whether it is known what earlier writes of the batch left.
    looked: bool,
    /// The record of an earlier write that ended.
    stored: Option<(BatchRecord, Bytes)>,
    /// What of that went with slices that were retired.
    retired: Retirement,
    /// The intent that lies in the catalog: of an attempt that was cut off, then ours.
    intent_stored: Option<Bytes>,
    /// Whether an earlier attempt was cut off and is taken over by this one.
    resumes: bool,
    /// Parts of earlier attempts: chunks that may exist.
    old_parts: Vec<Part>,
    parts: Vec<Part>,
    content: Content,
    rows_given: i64,
    report: WriteReport,
    ticks: Option<(i64, i64)>,
    tiles: HashSet<Tile>,
    repeats: Repeats,
    /// The state of the archive's record of slices being dropped, from before chunks were put that an end in one step does not put.
    since: Option<String>,
}

impl<'a> Write<'a> {
    fn begin(dataset: &'a Dataset, frame: &'a Frame, options: WriteOptions, stamp: i64) -> Self {
        let batch = options.batch.as_deref().map_or_else(|| clock::unique_batch(stamp), BatchId::of_key);
        let attempt = clock::unique_batch(stamp).to_string();
        let intent = Intent { key: options.batch.clone(), written_us: stamp, attempt };
        let report = WriteReport { batch, stored: true, rows: 0, duplicates: 0, tiles: 0, chunks: 0, bytes: 0 };
        Self {
            dataset,
            frame,
            looked: options.batch.is_none(),
            options,
            batch,
            intent,
            stored: None,
            retired: Retirement::default(),
            intent_stored: None,
            resumes: false,
            old_parts: Vec::new(),
            parts: Vec::new(),
            content: Content::default(),
            rows_given: 0,
            report,
            ticks: None,
            tiles: HashSet::new(),
            repeats: Repeats::default(),
            since: None,
        }
    }

    /// Learns, once, what earlier writes of the batch left, and takes over from one that was cut off.
    async fn look_back(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.looked, true) {
            return Ok(());
        }
        let (store, name) = (self.dataset.store(), &self.frame.spec.name);
        // The intent is read first: a write that ends in between is then found by its record.
        let begun = catalog::get::<Intent>(store, &catalog::intent_key(name, self.batch)).await?;
        self.stored = catalog::get::<BatchRecord>(store, &catalog::batch_key(name, self.batch)).await?;
        if let Some((begun, bytes)) = begun {
            self.intent_stored = Some(bytes);
            // With the record's own stamp the write did end; only the intent's deletion is missing.
            self.resumes = self.stored.as_ref().is_none_or(|(record, _)| record.written_us != begun.written_us);
            if self.resumes {
                self.intent.written_us = begun.written_us;
                let before = self.intent_puts()?;
                self.commit(Commit { before, ..Commit::default() }).await?;
            }
        }
        let stored_us = self.stored.as_ref().map_or(i64::MIN, |(record, _)| record.written_us);
        if !self.resumes && stored_us >= self.intent.written_us {
            // What replaces a batch is later than the batch, whichever machine wrote it.
            self.frame.clock.saw(stored_us);
            self.intent.written_us = self.dataset.stamp_us().await?;
        }
        if let Some((record, _)) = &self.stored {
            self.retired = self.dataset.retirement(self.frame, self.batch, record).await?;
            self.stamp_after(self.retired.retired_us).await?;
        }
        if self.resumes || self.stored.is_some() && !self.compares_only() {
            // From here on no earlier attempt can add parts.
            self.old_parts = catalog::parts(store, &self.frame.spec, self.batch).await?;
        }
        if self.resumes {
            // Rows of the stamp that is taken over would look as if they had gone with their slices.
            let slices = self.old_parts.iter().flat_map(|part| part.refs.iter().map(|r| r.key.slice));
            let notes = self.dataset.retired_since(self.frame, slices.collect(), self.intent.written_us).await?;
            self.stamp_after(notes.values().copied().max().unwrap_or(i64::MIN)).await?;
        }
        Ok(())
    }

    /// Gives the rows a later stamp than this one.
    async fn stamp_after(&mut self, retired_us: i64) -> Result<()> {
        if self.intent.written_us <= retired_us {
            self.frame.clock.saw(retired_us);
            self.intent.written_us = self.dataset.stamp_us().await?;
        }
        Ok(())
    }

    async fn run<I>(&mut self, batches: I, buffer_bytes: usize) -> Result<WriteReport>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        if self.options.replace {
            self.look_back().await?;
        }
        let mut buffer = Vec::new();
        let mut buffered = 0;
        for batch in input::in_parts(batches) {
            let rows = input::conform(&self.frame.spec, &batch.map_err(ArchiveError::Source)?)?;
            let bytes = bytes_of(&rows);
            if buffered + bytes > JOINED_BYTES_MAX && !buffer.is_empty() {
                self.flush(std::mem::take(&mut buffer)).await?;
                buffered = 0;
            }
            buffered += bytes;
            if let Some(filed) = self.file(rows)? {
                buffer.push(filed);
            }
            if buffered >= buffer_bytes && !buffer.is_empty() {
                self.flush(std::mem::take(&mut buffer)).await?;
                buffered = 0;
            }
        }
        self.finish(buffer).await
    }

    /// Takes back what a failed write without a name has put, which nobody could repeat or remove. Where this fails too, the
    /// batch stays unfinished; where the write had ended after all, the intent is gone and nothing is taken back.
    async fn abandon(&mut self) {
        let Some(intent) = self.intent_stored.clone() else { return };
        let name = &self.frame.spec.name;
        let key = catalog::intent_key(name, self.batch);
        let mut after: Vec<RecordPut> =
            self.parts.iter().map(|part| catalog::delete_part(name, self.batch, part.number)).collect();
        after.push(catalog::delete_known(key.clone(), intent.clone()));
        let commit = Commit {
            before: vec![catalog::put(key, intent.clone(), Expect::Is(intent))],
            remove: self.parts.iter().flat_map(|part| part.refs.iter().map(|r| r.key)).collect(),
            after,
            ..Commit::default()
        };
        // The write's own error is the one to tell.
        let _ = self.commit(commit).await;
    }

    /// Whether rows are only compared with what is stored: the name is taken and must not be replaced.
    fn compares_only(&self) -> bool {
        let stored = self.stored.as_ref().is_some_and(|(record, _)| !record.removed);
        stored && !self.resumes && !self.options.replace && self.retired.rows == 0
    }

    /// Checks and files rows; `None` where they are only compared.
    fn file(&mut self, rows: RecordBatch) -> Result<Option<Filed>> {
        let filed = Filed::new(self.frame, rows, self.rows_given)?;
        self.rows_given += filed.rows.num_rows() as i64;
        filed.hashes.iter().for_each(|hash| self.content.add(*hash));
        Ok((!self.compares_only() && filed.rows.num_rows() > 0).then_some(filed))
    }

    /// Encodes buffered rows, noting what they become.
    fn encode(&mut self, buffer: Vec<Filed>) -> Result<Vec<Chunk>> {
        if buffer.is_empty() {
            return Ok(vec![]);
        }
        let filed = Filed::concat(self.frame, buffer)?;
        let given = filed.rows.num_rows();
        let filed = filed.sorted(self.frame)?;
        self.repeats.enter(self.frame, &filed)?;
        self.report.duplicates += (given - filed.rows.num_rows()) as u64;
        self.report.rows += filed.rows.num_rows() as u64;
        let origin = Origin { batch: self.batch, written_us: self.intent.written_us };
        let chunks = encode_tiles(self.frame, &filed, origin)?;
        for tick in &filed.ticks {
            let (first, last) = self.ticks.unwrap_or((*tick, *tick));
            self.ticks = Some((first.min(*tick), last.max(*tick)));
        }
        self.tiles.extend(chunks.iter().map(|chunk| chunk.key.tile));
        self.report.chunks += chunks.len() as u64;
        self.report.bytes += chunks.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum::<u64>();
        Ok(chunks)
    }

    /// Puts buffered rows before the batch ends.
    async fn flush(&mut self, buffer: Vec<Filed>) -> Result<()> {
        self.look_back().await?;
        if self.compares_only() {
            return Ok(());
        }
        self.repeats.several = true;
        let chunks = self.encode(buffer)?;
        self.watch_slices().await?;
        for chunks in split(chunks) {
            let mut before = self.intent_puts()?;
            before.push(self.part(&chunks).put(&self.frame.spec.name, self.batch));
            self.commit(Commit { before, put: chunks, ..Commit::default() }).await?;
        }
        Ok(())
    }

    /// Puts what is left and ends the batch. One that fits in a single commit is taken to be new, which most are: where it is not,
    /// the commit says so and has done nothing.
    async fn finish(&mut self, buffer: Vec<Filed>) -> Result<WriteReport> {
        if !self.looked {
            let report = self.report.clone();
            match self.put_rest(buffer.clone()).await {
                Err(ArchiveError::BatchRace { .. }) => self.forget_try(report),
                ended => return ended,
            }
            self.look_back().await?;
        }
        if self.same_as_stored() {
            return Ok(self.already_stored());
        }
        // Where a replacement was cut off, what was stored before may be put back without asking; nothing else may.
        if self.compares_only() || !self.options.replace && self.stored_differs() {
            if !self.resumes {
                self.abandon().await;
            }
            return Err(self.differs());
        }
        self.put_rest(buffer).await
    }

    /// As if nothing had been put yet.
    fn forget_try(&mut self, report: WriteReport) {
        self.report = report;
        self.parts.clear();
        self.tiles.clear();
        (self.ticks, self.intent_stored) = (None, None);
    }

    async fn put_rest(&mut self, buffer: Vec<Filed>) -> Result<WriteReport> {
        let chunks = self.encode(buffer)?;
        let mut steps = split(chunks);
        let last = steps.pop().unwrap_or_default();
        if !steps.is_empty() || self.dataset.fence().needs_closing() {
            self.watch_slices().await?;
        }
        for chunks in steps {
            let mut before = self.intent_puts()?;
            before.push(self.part(&chunks).put(&self.frame.spec.name, self.batch));
            self.commit(Commit { before, put: chunks, ..Commit::default() }).await?;
        }
        self.report.tiles = self.tiles.len() as u64;
        self.end(last).await?;
        Ok(self.report.clone())
    }

    /// The last commit: remaining chunks, removal of what no longer belongs, the record.
    async fn end(&mut self, chunks: Vec<Chunk>) -> Result<()> {
        let spec = &self.frame.spec;
        let mut before = self.intent_puts()?;
        if !chunks.is_empty() {
            before.push(self.part(&chunks).put(&spec.name, self.batch));
        }
        let live: HashSet<ChunkKey> = self.parts.iter().flat_map(|part| part.refs.iter().map(|r| r.key)).collect();
        let stale: Vec<ChunkRef> =
            self.old_parts.iter().flat_map(|part| &part.refs).filter(|r| !live.contains(&r.key)).copied().collect();
        // The lists of what was removed go before the record comes: a finished batch lists only what it has.
        let mut after: Vec<RecordPut> =
            self.old_parts.iter().map(|part| catalog::delete_part(&spec.name, self.batch, part.number)).collect();
        // Where somebody else took the batch over meanwhile, it is theirs to end.
        let key = catalog::intent_key(&spec.name, self.batch);
        let intent = catalog::to_json(&key, &self.intent)?;
        after.extend([self.record_put()?, catalog::delete_known(key, intent)]);
        if self.stored.is_none() || stale.is_empty() {
            let remove = stale.iter().map(|r| r.key).collect();
            return self.end_plain(Commit { before, put: chunks, remove, after, ..Commit::default() }).await;
        }
        self.watch_slices().await?;
        self.put_watched(Commit { before, put: chunks, ..Commit::default() }).await?;
        self.dataset.list_changing(self.batch).await?;
        let of = (self.batch, Some(self.intent.written_us));
        let slices = stale.iter().map(|chunk| chunk.key.slice).collect();
        let watch = self.dataset.watch(self.frame, slices).await?;
        loop {
            let seen = self.slices_stay().await?;
            let mut before = self.intent_puts()?;
            before.extend(self.dataset.fence().no_drop_since(&seen));
            let last = Commit { before, after: after.clone(), ..Commit::default() };
            match self.dataset.clear_out(of, (&stale, &HashSet::new()), last, &watch).await {
                Err(error) if fence::has_changed(&error) => continue,
                result => break result.map_err(|error| self.told(error))?,
            }
        }
        self.dataset.unlist_changing(self.batch).await;
        Ok(())
    }

    /// The last commit of a batch that takes no rows out of chunks of others.
    async fn end_plain(&mut self, commit: Commit) -> Result<()> {
        if self.since.is_none() {
            // One step, in which the slices are there.
            return self.commit(commit).await;
        }
        if !self.dataset.fence().needs_closing() {
            loop {
                let mut last = commit.clone();
                let seen = self.slices_stay().await?;
                last.before.extend(self.dataset.fence().no_drop_since(&seen));
                match self.dataset.commit(last).await {
                    Err(error) if fence::has_changed(&error) => continue,
                    result => return result.map_err(|error| self.told(error)),
                }
            }
        }
        let Commit { before, put, remove, after, .. } = commit;
        self.put_watched(Commit { before, put, ..Commit::default() }).await?;
        self.slices_stay().await?;
        self.commit(Commit { remove, after, ..Commit::default() }).await
    }

    /// Notes, before the first chunk is put, which slices are being dropped.
    async fn watch_slices(&mut self) -> Result<()> {
        if self.since.is_none() {
            self.since = Some(self.dataset.fence().glance().await?.token().to_owned());
        }
        Ok(())
    }

    /// Puts chunks, and looks beside it which slices are being dropped where that was not looked at for long.
    async fn put_watched(&self, commit: Commit) -> Result<()> {
        let (put, ()) = futures::join!(self.commit(commit), self.dataset.fence().renew());
        put
    }

    /// Whether the chunks of this write, which are durable by now, have not gone with their slices, and will not go unseen.
    async fn slices_stay(&mut self) -> Result<Seen> {
        let name = &self.frame.spec.name;
        let refs: Vec<ChunkRef> = self.parts.iter().flat_map(|part| part.refs.iter().copied()).collect();
        let seen = if self.dataset.fence().needs_closing() {
            let slices: BTreeSet<SliceId> = refs.iter().map(|chunk| chunk.key.slice).collect();
            self.dataset.fence().pass(&self.frame.dataset, &slices).await?
        } else {
            self.dataset.fence().look().await?
        };
        if self.since.as_deref() != Some(seen.token()) {
            let there: HashSet<ChunkKey> = self.dataset.existing(self.frame, &refs).await?.into_iter().collect();
            if let Some(gone) = refs.iter().find(|chunk| !there.contains(&chunk.key)) {
                return Err(ArchiveError::SliceRetired { dataset: name.clone(), slice: gone.key.slice });
            }
            self.since = Some(seen.token().to_owned());
        }
        Ok(seen)
    }

    /// The conditions under which this write may go on: its intent, and at first what it found, still lie in the catalog.
    fn intent_puts(&mut self) -> Result<Vec<RecordPut>> {
        let name = &self.frame.spec.name;
        let key = catalog::intent_key(name, self.batch);
        let value = catalog::to_json(&key, &self.intent)?;
        let found = self.intent_stored.replace(value.clone());
        let first = found.as_ref() != Some(&value);
        let mut puts = vec![catalog::put(key, value, found.map_or(Expect::Absent, Expect::Is))];
        if let Some((_, bytes)) = self.stored.as_ref().filter(|_| first) {
            puts.push(catalog::put(catalog::batch_key(name, self.batch), bytes.clone(), Expect::Is(bytes.clone())));
        }
        // Somebody else may have begun and ended the batch since it was looked for.
        if first && self.stored.is_none() && self.options.batch.is_some() {
            puts.push(catalog::no_record(catalog::batch_key(name, self.batch)));
        }
        Ok(puts)
    }

    fn record_put(&self) -> Result<RecordPut> {
        let key = catalog::batch_key(&self.frame.spec.name, self.batch);
        let record = BatchRecord {
            key: self.intent.key.clone(),
            written_us: self.intent.written_us,
            removed: false,
            rows: self.report.rows,
            tiles: self.report.tiles,
            chunks: self.report.chunks,
            bytes: self.report.bytes,
            content: self.content.to_string(),
            ticks: self.ticks,
            copied: None,
            repeated: self.repeats.count(),
        };
        let expect = self.stored.as_ref().map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes.clone()));
        Ok(catalog::put(key.clone(), catalog::to_json(&key, &record)?, expect))
    }

    /// Numbers of parts go on from those of earlier attempts, whose lists of chunks are still needed.
    fn part(&mut self, chunks: &[Chunk]) -> Part {
        let number = self.old_parts.last().map_or(0, |part| part.number + 1) + self.parts.len() as u32;
        let refs = chunks.iter().map(|chunk| ChunkRef { key: chunk.key, rows: chunk.rows }).collect();
        let part = Part { number, refs };
        self.parts.push(part.clone());
        part
    }

    async fn commit(&self, commit: Commit) -> Result<()> {
        self.dataset.commit(commit).await.map_err(|error| self.told(error))
    }

    /// A record that changed under this write is another writer at the same batch.
    fn told(&self, error: ArchiveError) -> ArchiveError {
        match error {
            ArchiveError::Store(StoreError::RecordConflict { .. }) => ArchiveError::BatchRace {
                dataset: self.frame.spec.name.clone(),
                key: self.options.batch.clone().unwrap_or_else(|| self.batch.to_string()),
            },
            error => error,
        }
    }

    /// Whether a batch of this name is stored and has other content.
    fn stored_differs(&self) -> bool {
        let differs =
            |(record, _): &(BatchRecord, Bytes)| !record.removed && record.content != self.content.to_string();
        !self.retired.whole && self.stored.as_ref().is_some_and(differs)
    }

    fn same_as_stored(&self) -> bool {
        let untouched = !self.resumes && self.parts.is_empty() && self.retired.rows == 0;
        let same = |(record, _): &(BatchRecord, Bytes)| !record.removed && record.content == self.content.to_string();
        untouched && self.stored.as_ref().is_some_and(same)
    }

    fn already_stored(&self) -> WriteReport {
        let Some((record, _)) = &self.stored else { return self.report.clone() };
        let (rows, tiles, chunks, bytes) = (record.rows, record.tiles, record.chunks, record.bytes);
        let duplicates = self.rows_given as u64 - rows.min(self.rows_given as u64);
        WriteReport { batch: self.batch, stored: false, rows, duplicates, tiles, chunks, bytes }
    }

    fn differs(&self) -> ArchiveError {
        let stored_rows = self.stored.as_ref().map_or(0, |(record, _)| record.rows);
        ArchiveError::BatchDiffers {
            dataset: self.frame.spec.name.clone(),
            key: self.options.batch.clone().unwrap_or_default(),
            stored_rows,
            given_rows: self.rows_given as u64,
        }
    }
}

/// Rows of a write in several steps that have the ids, version and tile of a row of an earlier step.
#[derive(Default)]
struct Repeats {
    /// Whether there is more than one step: within one every row is another record.
    several: bool,
    hasher: std::hash::RandomState,
    seen: HashSet<u64>,
    repeated: u64,
    /// Whether there were too many rows to keep account of.
    given_up: bool,
}

impl Repeats {
    /// Rows kept account of; some 16 bytes each.
    const ROWS_MAX: usize = 1 << 22;

    fn enter(&mut self, frame: &Frame, filed: &Filed) -> Result<()> {
        // Rows without ids are told apart by their numbers.
        if !self.several || self.given_up || frame.ids.is_empty() {
            return Ok(());
        }
        if self.seen.len() + filed.rows.num_rows() > Self::ROWS_MAX {
            (self.given_up, self.seen) = (true, HashSet::new());
            return Ok(());
        }
        let columns: Vec<_> = frame.ids.iter().copied().chain(frame.version).collect();
        let columns: Vec<_> = columns.into_iter().map(|column| filed.rows.column(column).clone()).collect();
        let keys = Keys::new(&columns).map_err(|e| frame.compute("comparing ids", e))?;
        for (row, tile) in filed.tiles.iter().enumerate() {
            self.repeated += u64::from(!self.seen.insert(self.hasher.hash_one((keys.get(row), tile))));
        }
        Ok(())
    }

    fn count(&self) -> Option<u64> {
        (!self.given_up).then_some(self.repeated)
    }
}

/// Chunks in steps whose parts and commits stay within limits.
fn split(mut chunks: Vec<Chunk>) -> Vec<Vec<Chunk>> {
    let mut steps = Vec::new();
    while chunks.len() > REFS_PER_PART_MAX {
        let rest = chunks.split_off(REFS_PER_PART_MAX);
        steps.push(std::mem::replace(&mut chunks, rest));
    }
    steps.push(chunks);
    steps
}

/// Bytes that the rows themselves take, whatever else their buffers hold.
pub(crate) fn bytes_of(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// Encodes sorted rows tile by tile, on all cores where there are many.
fn encode_tiles(frame: &Frame, filed: &Filed, origin: Origin) -> Result<Vec<Chunk>> {
    let ids = frame.ids.first().map(|id| filed.rows.column(*id));
    let zones = zones(ids, frame, std::iter::repeat_n(origin, filed.rows.num_rows()))?;
    let row_bytes = bytes_of(&filed.rows) / filed.rows.num_rows().max(1);
    let encode = |range: Range<usize>| {
        let rows = TileRows {
            tile: filed.tiles[range.start],
            rows: filed.rows.slice(range.start, range.len()),
            ticks: &filed.ticks[range.clone()],
            zones: &zones[range.clone()],
            origins: &[origin],
            row_origin: None,
            ordinals: frame.ids.is_empty().then(|| &filed.ordinals[range.clone()]),
            unique_ids: !frame.keeps_latest(),
        };
        let hashes = &filed.hashes[range];
        let tile = rows.tile;
        pack(frame, &rows, row_bytes, &|within| chunk_id(origin, tile, &hashes[within]))
    };
    let ranges = filed.tile_ranges();
    let chunks: Result<Vec<Vec<Chunk>>> = if filed.rows.num_rows() < PARALLEL_ROWS {
        ranges.into_iter().map(encode).collect()
    } else {
        ranges.into_par_iter().map(encode).collect()
    };
    Ok(chunks?.into_iter().flatten().collect())
}

/// The same rows of the same batch and stamp in the same tile always have the same id.
fn chunk_id(origin: Origin, tile: Tile, hashes: &[u64]) -> ChunkId {
    let mut content = Content::default();
    hashes.iter().for_each(|hash| content.add(*hash));
    let mut bytes = Vec::with_capacity(64);
    bytes.extend_from_slice(&origin.batch.to_bytes());
    bytes.extend_from_slice(&origin.written_us.to_be_bytes());
    bytes.extend_from_slice(&tile.cell.0.to_be_bytes());
    bytes.extend_from_slice(&tile.window.0.to_be_bytes());
    bytes.extend_from_slice(&content.to_bytes());
    bytes.extend_from_slice(&(hashes.len() as u32).to_be_bytes());
    ChunkId(xxh3_128(&bytes))
}
