//! Verification: reads and decodes every chunk, and compares it with the batch records of the catalog.
//!
//! Besides damaged chunks it reports damaged catalog records (`Ledger`), rows of stored batches that no chunk contains
//! (`look_for`), and chunks with rows of no stored batch (`foreign`). Writers, removals and consolidations run
//! meanwhile, so every suspicion is checked again before it is reported.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use chronotile_chunk::{Body, Columns, Head, Origin};
use chronotile_store::{Cells, Chunk, ChunkKey, Record, Scan, Windows};
use chronotile_types::{BatchId, ChunkId, Damage, SliceId, Tile};
use futures::TryStreamExt;
use rayon::prelude::*;

use crate::catalog::{self, BatchRecord, ChunkList, ChunkRef, Intent, Retired, fence, superseded};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::{Frame, binding};
use crate::index::segment_name;
use crate::keys::{Key, Keys};
use crate::maintenance::consolidate::Progress;
use crate::maintenance::foreign::is_removal;
use crate::read::cells::cells_of;
use crate::read::on_pool;
use crate::read::part::ParsedChunk;
use crate::report::{DamageReport, ForeignChunk, RecordDamage, RowsMissing, VerifyReport};
use crate::time_axis::place_rows;

/// How long after a batch was replaced or removed a copy may still receive its old rows, which the source keeps for
/// readers.
const COPIED_LATER_US: i64 = 3_600_000_000;
/// Index segments read at once, of up to some MiB each.
const POSTINGS_AT_ONCE: usize = 16;

impl Dataset {
    /// Reads and decodes every chunk of the dataset; looks for the rows of every stored batch, for chunks that belong
    /// to no batch, and for damaged catalog records. Calls `progress` with the number of slices done and the total.
    ///
    /// # Errors
    /// The engine; a dataset that is dropped meanwhile. Damage is part of the report, not an error.
    pub async fn verify(&self, progress: Option<Progress<'_>>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        match self.refresh().await {
            // Continue with the definition that this process already has.
            Err(ArchiveError::Catalog { key, reason, .. }) => report.records.push(RecordDamage { key, reason }),
            refreshed => refreshed?,
        }
        let frame = self.frame();
        // Batches first: batches that end after this are not looked for.
        let ledger = self.ledger(&mut report).await?;
        report.batches_unfinished = ledger.changing.len() as u64;
        let mut found = SliceFindings::default();
        let slices = self.slices().await?;
        for (done, slice) in slices.iter().enumerate() {
            self.verify_slice(&frame, *slice, &ledger, &mut report, &mut found).await?;
            if let Some(progress) = progress {
                progress(done as u64 + 1, slices.len() as u64);
            }
        }
        // The records of drops are read after the slices, so that a drop during the scan explains the rows that the
        // scan did not find.
        let retired = self.retired(&mut report).await?;
        for (batch, record) in ledger.live() {
            let Some(record) = record.of_dataset(frame.spec.group.as_ref()) else { continue };
            report.batches += 1;
            let is_retired = |slice: &SliceId| retired.get(slice).is_some_and(|us| *us >= record.written_us);
            self.look_for(&frame, *batch, &record, &is_retired, &found, &mut report).await?;
        }
        self.foreign(&frame, &ledger, found.strangers, &mut report).await?;
        if !report.ok()
            && let Err(error @ ArchiveError::DatasetNotFound { .. }) = self.definition(&frame).await
        {
            return Err(error);
        }
        report.damage.sort_by_key(|damage| (damage.tile, damage.chunk));
        report.rows_missing.sort_by_key(|missing| (missing.tile, missing.batch));
        report.foreign.sort_by_key(|chunk| (chunk.tile, chunk.chunk));
        report.records.sort_by(|a, b| a.key.cmp(&b.key));
        report.records.dedup_by(|a, b| a.key == b.key);
        Ok(report)
    }

    /// Reads the records of batches, and checks that all other records of the dataset parse.
    async fn ledger(&self, report: &mut VerifyReport) -> Result<Ledger> {
        let (name, home) = (self.spec().name.clone(), self.frame().dataset);
        let mut ledger = Ledger::default();
        // Intents first: a write that ends in between then has a batch record.
        for record in catalog::list(self.store(), &catalog::items("intent", &home)).await? {
            let parsed = parsed::<Intent>(&record.key, &record.value, report);
            if let (Ok(batch), intent) = (catalog::id_of(&record.key), parsed) {
                match intent {
                    Some(intent) => _ = ledger.begun.insert(batch, intent),
                    None => _ = ledger.unknown.insert(batch),
                }
            }
        }
        for record in catalog::list(self.store(), &catalog::items("batch", &home)).await? {
            let parsed = parsed::<BatchRecord>(&record.key, &record.value, report);
            if let (Ok(batch), stored) = (catalog::id_of(&record.key), parsed) {
                match stored {
                    Some(stored) => _ = ledger.stored.insert(batch, stored),
                    None => _ = ledger.unknown.insert(batch),
                }
            }
        }
        let group = self.frame().spec.group.as_ref().map(|group| catalog::group_key(group.group.as_str()));
        let own = [superseded::head_key(&home), catalog::copy_key(&home), catalog::dropped_key(home.name.as_str())];
        for key in own.into_iter().chain(group).chain([fence::KEY.to_owned()]) {
            if let Some(value) = self.store().record(&key).await? {
                ledger.is_copy |= key == catalog::copy_key(&home);
                parsed::<serde_json::Value>(&key, &value, report);
            }
        }
        let of_index = |kind| format!("{kind}/{name}/");
        for prefix in [of_index("index"), of_index("lease"), catalog::items("superseded", &home)] {
            for record in catalog::list(self.store(), &prefix).await? {
                parsed::<serde_json::Value>(&record.key, &record.value, report);
            }
        }
        self.verify_postings(report).await?;
        ledger.find_changing();
        Ok(ledger)
    }

    /// Compares index segments with their names, which are hashes of their content.
    async fn verify_postings(&self, report: &mut VerifyReport) -> Result<()> {
        let prefix = format!("posting/{}/", self.spec().name);
        let mut after: Option<String> = None;
        loop {
            let page = self.store().records(&prefix, after.as_deref(), POSTINGS_AT_ONCE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.key.clone());
            let is_damaged = |record: &&Record| !record.key.ends_with(&segment_name(&record.value));
            report.records.extend(page.iter().filter(is_damaged).map(|record| {
                RecordDamage {
                    key: record.key.clone(),
                    reason: "its content does not match its checksum: reads bypass the index here; drop the index and \
                create it again"
                        .to_owned(),
                }
            }));
        }
    }

    async fn verify_slice(
        &self,
        frame: &Frame,
        slice: SliceId,
        ledger: &Ledger,
        report: &mut VerifyReport,
        found: &mut SliceFindings,
    ) -> Result<()> {
        let windows = frame.spec.windows().into();
        let scan = Scan { slices: vec![slice], cells: Cells::All, windows, bodies: true, older: true };
        let mut groups = self.store().scan(&frame.dataset, scan).await?;
        while let Some(chunks) = groups.try_next().await? {
            let heads: Vec<Head> = chunks.iter().filter_map(|chunk| frame.head(chunk).ok()).collect();
            self.learn_columns(frame, heads.iter()).await?;
            let worker = frame.clone();
            let check = move |chunk: Chunk| {
                let checked = check(&worker, &chunk);
                (chunk, checked)
            };
            for (chunk, checked) in on_pool(move || Ok(chunks.into_par_iter().map(check).collect::<Vec<_>>())).await? {
                report.chunks += 1;
                report.bytes += (chunk.head.len() + chunk.body.len()) as u64;
                match checked {
                    Ok((head, rows)) => {
                        report.rows += u64::from(head.rows);
                        found.enter(chunk.key, &head, &rows, ledger);
                    }
                    Err(damage) => {
                        found.chunks.insert(chunk.key);
                        found.damaged.insert(chunk.key.tile);
                        report.damage.push(damaged(&chunk.key, Some(damage), chunk.rows));
                    }
                }
            }
        }
        Ok(())
    }

    /// When slices were dropped, if ever.
    async fn retired(&self, report: &mut VerifyReport) -> Result<HashMap<SliceId, i64>> {
        let mut retired = HashMap::new();
        for record in catalog::list(self.store(), &catalog::items("retired", &self.frame().dataset)).await? {
            let slice = record.key.rsplit('/').next().and_then(|slice| slice.parse().ok());
            if let (Some(slice), Some(parsed)) = (slice, parsed::<Retired>(&record.key, &record.value, report)) {
                retired.insert(SliceId(slice), parsed.retired_us);
            }
        }
        Ok(retired)
    }

    /// Looks for the rows of a stored batch: each of its chunks must exist, unless its rows were consolidated or its
    /// slice retired.
    async fn look_for(
        &self,
        frame: &Frame,
        batch: BatchId,
        record: &BatchRecord,
        is_retired: &(dyn Fn(&SliceId) -> bool + Sync),
        found: &SliceFindings,
        report: &mut VerifyReport,
    ) -> Result<()> {
        let Some(lists) = self.lists(frame, batch, record, report).await? else { return Ok(()) };
        let written: HashSet<ChunkKey> = lists.refs().map(|chunk| chunk.key).collect();
        // Consolidation merges rows that the batch wrote twice, in two steps, and only the whole batch counts such
        // rows. So the missing rows of all tiles are collected first and judged together below.
        let mut missing: Vec<(RowsMissing, u64)> = Vec::new();
        for (tile, refs) in lists.by_tile() {
            let here = record.counting(batch).and_then(|origin| found.rows.get(&(tile, origin))).copied().unwrap_or(0);
            let expected: u64 = refs.iter().map(|chunk| u64::from(chunk.rows)).sum();
            let alone = found
                .holders
                .get(&(tile, batch))
                .is_none_or(|ids| ids.iter().all(|id| written.contains(&ChunkKey { id: *id, ..refs[0].key })));
            // A damaged chunk of the tile may hold the missing rows; it is reported itself.
            if here == expected || found.damaged.contains(&tile) || is_retired(&refs[0].key.slice) {
                continue;
            }
            if alone {
                // Nothing was consolidated: the batch's own chunks must exist.
                for chunk in refs.iter().filter(|chunk| !found.chunks.contains(&chunk.key)) {
                    if self.still_missing(frame, batch, record, chunk, found).await? {
                        report.damage.push(damaged(&chunk.key, None, chunk.rows));
                    }
                }
                continue;
            }
            let slice = refs[0].key.slice;
            let here = self.distinct_rows(frame, slice, tile, record.counting(batch)).await?;
            let (key, rows) = (record.key.clone(), expected.saturating_sub(here));
            // Rows of one step have different ids: at least these are missing, however many rows of different steps
            // were merged.
            let rows_min = lists.most_of_one_step(tile).saturating_sub(here);
            missing.push((RowsMissing { tile, batch, key, rows }, rows_min));
        }
        let rows: u64 = missing.iter().map(|(missing, _)| missing.rows).sum();
        // A chunk that two steps list was stored once: consolidation did not merge its rows.
        let repeated = record.repeated.map(|repeated| repeated.saturating_sub(lists.rows_listed_again));
        // Within one step all rows are different records, so that none are merged.
        let merged_max = if lists.steps < 2 { Some(0) } else { repeated };
        for (missing, rows_min) in missing {
            let reported = match merged_max {
                Some(merged_max) if rows > merged_max => missing,
                Some(_) => continue,
                None => RowsMissing { rows: rows_min, ..missing },
            };
            if reported.rows > 0 && self.is_unchanged(batch, record).await? {
                report.rows_missing.push(reported);
            }
        }
        Ok(())
    }

    /// The chunks that a batch was written as; `None`, with a report, if its records are damaged or inconsistent.
    async fn lists(
        &self,
        frame: &Frame,
        batch: BatchId,
        record: &BatchRecord,
        report: &mut VerifyReport,
    ) -> Result<Option<WrittenChunks>> {
        let parts = match catalog::parts(self.store(), &frame.dataset, batch).await {
            Err(ArchiveError::Catalog { key, reason, .. }) => {
                report.records.push(RecordDamage { key, reason });
                return Ok(None);
            }
            parts => record.own_parts(parts?).0,
        };
        let of_dataset = |mut part: ChunkList| {
            part.refs.retain(|chunk| frame.spec.has_window(chunk.key.slice, chunk.key.tile.window));
            part
        };
        let parts: Vec<ChunkList> = parts.into_iter().map(of_dataset).filter(|part| !part.refs.is_empty()).collect();
        let refs = parts.iter().flat_map(|part| &part.refs);
        let (chunks, rows) = refs.fold((0, 0), |(chunks, rows), chunk| (chunks + 1, rows + u64::from(chunk.rows)));
        let lists = WrittenChunks::new(parts);
        if (chunks, rows) != (record.chunks, record.rows) && self.is_unchanged(batch, record).await? {
            let key = catalog::batch_key(&frame.dataset, batch);
            let reason = format!(
                "it counts {} chunks with {} rows, but its part records list {chunks} with {rows}: write the batch \
                 again with replace",
                record.chunks, record.rows
            );
            report.records.push(RecordDamage { key, reason });
            return Ok(None);
        }
        Ok(Some(lists))
    }

    /// Whether a batch has not changed since verification began.
    async fn is_unchanged(&self, batch: BatchId, record: &BatchRecord) -> Result<bool> {
        let home = &self.frame().dataset;
        let begun = catalog::get::<Intent>(self.store(), &catalog::intent_key(home, batch)).await?;
        let now = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(home, batch)).await?;
        let same = now.is_some_and(|(now, _)| (now.written_us, now.removed) == (record.written_us, record.removed));
        Ok(same && begun.is_none_or(|(intent, _)| intent.written_us == record.written_us))
    }

    /// Whether still no chunk of the tile holds the chunk's rows: consolidation may have moved them since.
    async fn still_missing(
        &self,
        frame: &Frame,
        batch: BatchId,
        record: &BatchRecord,
        chunk: &ChunkRef,
        found: &SliceFindings,
    ) -> Result<bool> {
        let key = &chunk.key;
        let heads: Vec<Chunk> = self.tile_scan(frame, key.slice, key.tile, false).await?.try_concat().await?;
        // A chunk that the scan of the slice did not find may contain the rows of the missing one.
        let seen = |chunk: &Chunk| chunk.key != *key && found.chunks.contains(&chunk.key);
        Ok(heads.iter().all(seen) && self.is_unchanged(batch, record).await?)
    }

    async fn tile_scan(
        &self,
        frame: &Frame,
        slice: SliceId,
        tile: Tile,
        bodies: bool,
    ) -> Result<futures::stream::BoxStream<'static, chronotile_store::Result<Vec<Chunk>>>> {
        let cells = Cells::Ranges([(tile.cell, tile.cell)].into());
        let scan = Scan { slices: vec![slice], cells, windows: Windows::one(tile.window), bodies, older: true };
        Ok(self.store().scan(&frame.dataset, scan).await?)
    }

    /// How many different rows of a batch and stamp a tile holds now. Rows of a chunk that reappeared after its
    /// consolidation are not counted twice.
    async fn distinct_rows(&self, frame: &Frame, slice: SliceId, tile: Tile, of: Option<Origin>) -> Result<u64> {
        let mut rows: HashSet<u64> = HashSet::new();
        #[expect(clippy::disallowed_methods, reason = "only the number of hashes is used")]
        let hasher = std::hash::RandomState::new();
        let mut chunks = self.tile_scan(frame, slice, tile, true).await?;
        while let Some(chunks) = chunks.try_next().await? {
            for chunk in chunks {
                // `verify_slice` reports damaged heads.
                let Ok(head) = frame.head(&chunk) else { continue };
                if head.origins.iter().any(|origin| Some(*origin) == of) {
                    self.learn_columns(frame, std::iter::once(&head)).await?;
                    let part = ParsedChunk::new(chunk, head);
                    let found = part.with_body(frame, |body| identities(frame, &part, body, of, &hasher));
                    // `verify_slice` reports damaged bodies, too.
                    rows.extend(found.unwrap_or_default());
                }
            }
        }
        Ok(rows.len() as u64)
    }

    /// Reports chunks with rows of a batch that is not stored, unless the batch is being written or taken out now.
    async fn foreign(
        &self,
        frame: &Frame,
        ledger: &Ledger,
        strangers: Vec<(ChunkKey, Origin, u64)>,
        report: &mut VerifyReport,
    ) -> Result<()> {
        let home = &frame.dataset;
        let superseded = if self.puts_unclaimed() { self.superseded_batches().await } else { Ok(Arc::default()) };
        let superseded = match superseded {
            // `ledger` reports damaged records.
            Err(ArchiveError::Catalog { .. }) => Arc::default(),
            superseded => superseded?,
        };
        let mut known: HashMap<BatchId, (Option<Intent>, Option<BatchRecord>)> = HashMap::new();
        for (key, origin, rows) in strangers {
            let batch = origin.batch;
            let (begun, stored) = match known.entry(batch) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let begun = catalog::get::<Intent>(self.store(), &catalog::intent_key(home, batch)).await?;
                    let stored = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(home, batch)).await?;
                    unknown.insert((begun.map(|found| found.0), stored.map(|found| found.0)))
                }
            };
            // A copy puts chunks before the records of their batches.
            let arriving = stored.is_none() && ledger.is_copy;
            // A copy receives rows that no longer count for as long as its source keeps them for readers.
            let replaced = |record: &BatchRecord| {
                origin.written_us < record.written_us && self.clock().about_now_us() - record.ended_us < COPIED_LATER_US
            };
            let arriving = arriving || ledger.is_copy && stored.as_ref().is_some_and(replaced);
            let live = stored.as_ref().and_then(|record| record.counting(batch)) == Some(origin);
            // An attempt may put chunks before it writes anything to the catalog.
            let young = self.clock().about_now_us().saturating_sub(origin.written_us) < catalog::EXPIRES_US;
            let later = stored.as_ref().is_none_or(|record| origin.written_us > record.written_us);
            // If the batch was never replaced or removed, the chunk cannot be one that reappeared.
            let on_its_way = self.puts_unclaimed() && young && (later || !superseded.contains(&batch));
            let is_begun = begun.as_ref().is_some_and(|intent| !is_removal(intent));
            if is_begun
                || on_its_way
                || arriving
                || live
                // A removal or consolidation may have removed the chunk since the scan. This condition is the last one,
                // because it costs a request.
                || self.store().fetch(&frame.dataset, vec![key]).await?.is_empty()
            {
                continue;
            }
            let (batch_key, removed) = match stored {
                Some(record) => (record.key.clone(), record.removed),
                None => (None, false),
            };
            report.foreign.push(ForeignChunk {
                tile: key.tile,
                chunk: key.id,
                batch,
                key: batch_key,
                removed,
                replaced: stored.is_some() && !removed,
                rows,
            });
        }
        Ok(())
    }
}

/// Parses a record; reports a damaged one and returns `None`.
fn parsed<T: serde::de::DeserializeOwned>(key: &str, value: &[u8], report: &mut VerifyReport) -> Option<T> {
    match catalog::from_json(key, value) {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            let reason = match error {
                ArchiveError::Catalog { reason, .. } => reason,
                other => other.to_string(),
            };
            report.records.push(RecordDamage { key: key.to_owned(), reason });
            None
        }
    }
}

/// What the catalog says of batches.
#[derive(Default)]
struct Ledger {
    begun: HashMap<BatchId, Intent>,
    /// Removed ones included.
    stored: BTreeMap<BatchId, BatchRecord>,
    /// Batches with a damaged record.
    unknown: HashSet<BatchId>,
    /// Those of `begun` whose write has not ended. A batch that is being replaced or removed may have lost chunks
    /// already.
    changing: HashSet<BatchId>,
    is_copy: bool,
}

impl Ledger {
    /// Fills `changing`. An intent with the stamp of the batch record is left over from a write that ended.
    fn find_changing(&mut self) {
        let ended = |batch: &BatchId, intent: &Intent| {
            self.stored.get(batch).is_some_and(|record| record.written_us == intent.written_us)
        };
        let is_writing = |batch: &BatchId, intent: &Intent| !is_removal(intent) && !ended(batch, intent);
        let changing = self.begun.iter().filter(|(batch, intent)| is_writing(batch, intent)).map(|(batch, _)| *batch);
        self.changing = changing.collect();
    }

    fn live(&self) -> impl Iterator<Item = (&BatchId, &BatchRecord)> {
        let quiet = |batch: &BatchId| !self.changing.contains(batch) && !self.unknown.contains(batch);
        self.stored.iter().filter(move |(batch, record)| !record.removed && quiet(batch))
    }

    /// Whether rows of this origin belong to a stored batch, or to one whose state is unknown or changing.
    fn has(&self, origin: &Origin) -> bool {
        let batch = &origin.batch;
        let stored = |record: &BatchRecord| record.counting(*batch) == Some(*origin);
        self.changing.contains(batch) || self.unknown.contains(batch) || self.stored.get(batch).is_some_and(stored)
    }
}

/// What verification found in the slices.
#[derive(Default)]
struct SliceFindings {
    chunks: HashSet<ChunkKey>,
    /// Number of rows of an attempt in a tile.
    rows: HashMap<(Tile, Origin), u64>,
    /// The chunks that hold rows of a batch in a tile.
    holders: HashMap<(Tile, BatchId), Vec<ChunkId>>,
    damaged: HashSet<Tile>,
    /// Rows of batches that seem not to be stored.
    strangers: Vec<(ChunkKey, Origin, u64)>,
}

impl SliceFindings {
    fn enter(&mut self, key: ChunkKey, head: &Head, rows: &[u64], ledger: &Ledger) {
        self.chunks.insert(key);
        for (origin, rows) in head.origins.iter().zip(rows) {
            *self.rows.entry((key.tile, *origin)).or_default() += rows;
            self.holders.entry((key.tile, origin.batch)).or_default().push(key.id);
            if !ledger.has(origin) {
                self.strangers.push((key, *origin, *rows));
            }
        }
    }
}

/// The chunks that a batch was written as.
struct WrittenChunks {
    /// By step of the write.
    refs: Vec<Vec<ChunkRef>>,
    steps: usize,
    /// Rows of chunks that a later step listed again because their content is the same.
    rows_listed_again: u64,
}

impl WrittenChunks {
    /// A chunk that is listed twice counts once.
    fn new(parts: Vec<ChunkList>) -> Self {
        let mut seen = HashSet::new();
        let (steps, mut rows_listed_again) = (parts.len(), 0);
        let mut first = |chunk: &ChunkRef| {
            let first = seen.insert(chunk.key);
            rows_listed_again += if first { 0 } else { u64::from(chunk.rows) };
            first
        };
        let refs = parts.into_iter().map(|part| part.refs.into_iter().filter(&mut first).collect()).collect();
        Self { refs, steps, rows_listed_again }
    }

    fn refs(&self) -> impl Iterator<Item = &ChunkRef> {
        self.refs.iter().flatten()
    }

    fn by_tile(&self) -> BTreeMap<Tile, Vec<ChunkRef>> {
        let mut tiles: BTreeMap<Tile, Vec<ChunkRef>> = BTreeMap::new();
        self.refs().for_each(|chunk| tiles.entry(chunk.key.tile).or_default().push(*chunk));
        tiles
    }

    /// The most rows that one step wrote to a tile.
    fn most_of_one_step(&self, tile: Tile) -> u64 {
        let rows = |refs: &Vec<ChunkRef>| {
            refs.iter().filter(|chunk| chunk.key.tile == tile).map(|chunk| u64::from(chunk.rows)).sum::<u64>()
        };
        self.refs.iter().map(rows).max().unwrap_or(0)
    }
}

fn damaged(key: &ChunkKey, damage: Option<Damage>, rows: u32) -> DamageReport {
    DamageReport { tile: key.tile, chunk: key.id, damage, rows: rows.into() }
}

/// Hashes of what identifies a row within a batch and stamp: ids and version, or, without ids, the row's number in the
/// batch.
fn identities(
    frame: &Frame,
    part: &ParsedChunk,
    body: &Body,
    of: Option<Origin>,
    hasher: &std::hash::RandomState,
) -> Result<Vec<u64>> {
    use std::hash::BuildHasher;
    let mut columns: Vec<usize> = frame.ids.iter().copied().chain(frame.version).collect();
    columns.sort_unstable();
    columns.dedup();
    let damaged = |damage| frame.damaged(&part.chunk.key, damage);
    let origins = body.row_origins().map_err(damaged)?;
    let ordinals = body.ordinals().map_err(damaged)?;
    let frame = frame.decoding([&part.head]);
    let mut set = Columns::new(&frame.layout, &columns, &frame.defaults);
    set.append_body(body, frame.columns_in(&part.chunk.key, &part.head)?).map_err(damaged)?;
    let rows = set.finish();
    let keys = (!frame.ids.is_empty()).then(|| Keys::new(rows.columns())).transpose();
    let keys = keys.map_err(|e| frame.compute("comparing ids", e))?;
    let is_of = |row: usize| {
        let origin = part.head.origins[origins.as_ref().map_or(0, |origins| origins[row] as usize)];
        Some(origin) == of
    };
    let identity = |row: usize| {
        let ordinal = if keys.is_some() { 0 } else { ordinals.as_ref().map_or(0, |ordinals| ordinals[row]) };
        hasher.hash_one((keys.as_ref().map_or(Key::Null, |keys| keys.get(row)), ordinal))
    };
    Ok((0..part.head.rows as usize).filter(|row| is_of(*row)).map(identity).collect())
}

/// Decodes every column of a chunk and checks that its rows belong to its tile; also counts the rows of each origin.
fn check(frame: &Frame, chunk: &Chunk) -> std::result::Result<(Head, Vec<u64>), Damage> {
    let head = Head::parse(&chunk.head, &binding(&chunk.key))?;
    let frame = frame.decoding([&head]);
    let columns = frame.spec.columns_in(head.schema_version);
    let columns = columns.ok_or(Damage::malformed("its schema version is newer than the dataset's"))?;
    let body = Body::open(&head, &chunk.body)?;
    // A head has at least one origin, and `row_origins` refuses indexes of others.
    let mut of_origin = vec![0; head.origins.len()];
    match body.row_origins()? {
        None => of_origin[0] = u64::from(head.rows),
        Some(origins) => origins.into_iter().for_each(|origin| of_origin[origin as usize] += 1),
    }
    body.ordinals()?;
    let all: Vec<usize> = (0..frame.spec.schema.fields().len()).collect();
    let mut set = Columns::new(&frame.layout, &all, &frame.defaults);
    set.append_body(&body, columns)?;
    let rows = set.finish();
    if rows.num_rows() != chunk.rows as usize {
        return Err(Damage::malformed("its row count differs from the stored one"));
    }
    let unfiled = Damage::malformed("a row does not belong to its tile");
    let (ticks, windows) = place_rows(&frame.spec, rows.column(frame.time)).map_err(|_| unfiled.clone())?;
    let cells = cells_of(&frame.spec, &rows).map_err(|_| unfiled.clone())?;
    let tile = chunk.key.tile;
    if windows.iter().any(|window| *window != tile.window) || cells.iter().any(|cell| *cell != tile.cell.0) {
        return Err(unfiled);
    }
    let in_zone = |tick: &i64| (head.zone.time_min..=head.zone.time_max).contains(tick);
    if !ticks.iter().all(in_zone) {
        return Err(Damage::malformed("a row lies outside the time range of its head"));
    }
    Ok((head, of_origin))
}
