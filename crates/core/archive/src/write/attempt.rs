//! One attempt to store a batch: it reads the catalog, puts chunks and records, and ends or takes them back.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{Chunk, ChunkKey, Commit, DatasetRef, Expect, RecordPut, StoreError};
use chronotile_types::{BatchId, SliceId, Tile};

use crate::LOG;
use crate::catalog::fence::{self, Observed};
use crate::catalog::{self, BatchPart, BatchRecord, ChunkList, ChunkRef, Intent, REFS_PER_PART_MAX};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::maintenance::attempts::Leftovers;
use crate::maintenance::batches::Retirement;
use crate::report::WriteReport;
use crate::write::content::Content;
use crate::write::encode::{Repeats, encode_tiles};
use crate::write::sort::TiledRows;

/// The batch that is written, its datasets and options: constant through all phases of a write.
pub(crate) struct Target<'a> {
    pub dataset: &'a Dataset,
    /// The dataset under whose name the catalog stores the records of the batch.
    pub home: DatasetRef,
    /// The datasets to which the inputs belong, one for each input.
    pub frames: &'a [Frame],
    pub batch: BatchId,
    /// The name that the caller gave the batch.
    pub key: Option<String>,
    pub replace: bool,
    /// The token of this attempt.
    pub attempt: String,
}

impl Target<'_> {
    pub(crate) fn intent(&self, written_us: i64) -> Intent {
        Intent { key: self.key.clone(), written_us, attempt: self.attempt.clone() }
    }

    /// Commits. Fails if one of the datasets was dropped, and perhaps created again with another definition.
    async fn commit(&self, mut commit: Commit) -> Result<()> {
        if !commit.put.is_empty() && !self.is_atomic() {
            self.check_definitions().await?;
        }
        loop {
            let error = match self.dataset.commit(commit.clone()).await {
                Err(error) => error,
                Ok(()) => return Ok(()),
            };
            let frame = match &error {
                ArchiveError::Store(StoreError::RecordConflict { key }) => {
                    self.frames.iter().find(|frame| catalog::dataset_key(frame.spec.name.as_str()) == *key)
                }
                _ => None,
            };
            let Some(frame) = frame else { return Err(self.as_race(error)) };
            // Nothing was put. If another process has only added columns, the rows are still valid.
            let condition = frame.defined_as(self.dataset.definition(frame).await?);
            commit.before.retain(|put| put.key != condition.key);
            commit.before.push(condition);
        }
    }

    fn is_atomic(&self) -> bool {
        self.dataset.store().capabilities().atomic_commits
    }

    /// The conditions, on an engine with atomic commits, that the definitions are those of the rows.
    fn definitions(&self) -> Result<Vec<RecordPut>> {
        let frames = self.frames.iter().filter(|_| self.is_atomic());
        let stored = |frame: &Frame| catalog::to_json(&catalog::dataset_key(frame.spec.name.as_str()), &*frame.spec);
        frames.map(|frame| Ok(frame.defined_as(stored(frame)?))).collect()
    }

    /// On other engines, the name of a dropped dataset becomes free only once no writer relies on its definition.
    async fn check_definitions(&self) -> Result<()> {
        if !self.dataset.looked_recently() {
            self.dataset.refresh_group().await?;
        }
        let current = self.dataset.frames();
        let of = |frame: &Frame| current.iter().find(|now| now.spec.name == frame.spec.name);
        self.frames.iter().try_for_each(|frame| of(frame).map_or(Ok(()), |now| frame.check_still(&now.spec)))
    }

    /// Reports a record conflict as a batch race: a record that changed during this write means another writer of the
    /// batch.
    fn as_race(&self, error: ArchiveError) -> ArchiveError {
        match error {
            ArchiveError::Store(StoreError::RecordConflict { .. }) => ArchiveError::BatchRace {
                dataset: self.home.name.clone(),
                key: self.key.clone().unwrap_or_else(|| self.batch.to_string()),
            },
            error => error,
        }
    }
}

/// Row counts and content hash of the input so far.
pub(crate) struct InputTotals {
    /// Number of rows, by input.
    pub rows: Vec<i64>,
    pub content: Content,
}

impl InputTotals {
    pub(crate) fn new(inputs: usize) -> Self {
        Self { rows: vec![0; inputs], content: Content::default() }
    }

    pub(crate) fn add(&mut self, tiled: &TiledRows) {
        self.rows[tiled.input] += tiled.rows.num_rows() as i64;
        tiled.hashes.iter().for_each(|hash| self.content.add(*hash));
    }
}

/// The batch record of a finished write, with its bytes for the condition of a put.
pub(crate) struct Stored {
    record: BatchRecord,
    bytes: Bytes,
}

impl Stored {
    pub(crate) fn has_content(&self, totals: &InputTotals) -> bool {
        !self.record.removed && self.record.content == totals.content.to_string()
    }

    /// The reports of a write that found its batch stored.
    pub(crate) fn reports(&self, target: &Target<'_>, totals: &InputTotals) -> Vec<WriteReport> {
        let report = |(frame, given): (&Frame, &i64)| {
            let own = self.record.of_dataset(frame.spec.group.as_ref());
            let (rows, tiles, chunks, bytes) =
                own.map_or((0, 0, 0, 0), |own| (own.rows, own.tiles, own.chunks, own.bytes));
            let duplicates = (*given as u64).saturating_sub(rows);
            WriteReport { batch: target.batch, stored: false, rows, duplicates, tiles, chunks, bytes }
        };
        target.frames.iter().zip(&totals.rows).map(report).collect()
    }

    pub(crate) fn differs(&self, target: &Target<'_>, totals: &InputTotals) -> ArchiveError {
        ArchiveError::BatchDiffers {
            dataset: target.home.name.clone(),
            key: target.key.clone().unwrap_or_default(),
            stored_rows: self.record.rows,
            given_rows: totals.rows.iter().sum::<i64>() as u64,
        }
    }
}

/// The claim of an attempt on its batch: its intent, and the value under the key of the intent.
struct Claim {
    intent: Intent,
    /// The value in the catalog: of an earlier attempt, then of this one; `None` if there is no record.
    found: Option<Bytes>,
}

impl Claim {
    fn key(target: &Target<'_>) -> String {
        catalog::intent_key(&target.home, target.batch)
    }

    /// The put of the intent, on condition that no other attempt changed it, and whether this value is put for the
    /// first time.
    fn put(&mut self, target: &Target<'_>) -> Result<(RecordPut, bool)> {
        let key = Self::key(target);
        let value = catalog::to_json(&key, &self.intent)?;
        // The intent counts as found before the commit is answered: if the answer is lost, the intent may be stored,
        // and `take_back` must delete it.
        let found = self.found.replace(value.clone());
        let first = found.as_ref() != Some(&value);
        Ok((catalog::put(key, value, found.map_or(Expect::Absent, Expect::Is)), first))
    }

    /// Deletes the intent, on condition that no other attempt has taken over the batch.
    fn release(&self, target: &Target<'_>) -> Result<RecordPut> {
        let key = Self::key(target);
        let intent = catalog::to_json(&key, &self.intent)?;
        Ok(catalog::delete_known(key, intent))
    }
}

/// What earlier writes of the batch left in the catalog.
#[derive(Default)]
pub(crate) struct PriorState {
    stored: Option<Stored>,
    /// The rows of the stored batch that were dropped with retired slices.
    retired: Retirement,
    /// Slices that were being dropped when `retired` was looked up.
    dropping: Vec<SliceId>,
    /// Whether an earlier attempt was interrupted: it may have left chunks that do not count.
    pub cut_off: bool,
    /// Lists of chunks that earlier attempts may have put.
    parts: Vec<ChunkList>,
}

impl PriorState {
    /// Whether the catalog has any record of the batch.
    fn is_known(&self) -> bool {
        self.stored.is_some() || self.cut_off || !self.parts.is_empty()
    }

    /// Whether rows are only compared with the stored batch: it is complete and must not be replaced.
    pub(crate) fn only_compared(&self, target: &Target<'_>) -> bool {
        let stored = self.stored.as_ref().is_some_and(|stored| !stored.record.removed);
        stored && !target.replace && self.retired.rows == 0
    }

    /// The stored batch if it is complete and has this content.
    fn same(&self, totals: &InputTotals) -> Option<&Stored> {
        self.stored.as_ref().filter(|stored| self.retired.rows == 0 && stored.has_content(totals))
    }

    /// Whether the rows of an attempt at a new batch counted at any time. `None` if unknown: the catalog names only the
    /// attempt that counts and the one before it.
    pub(crate) fn counted(&self, attempt: &Attempt<'_>) -> Option<bool> {
        let Some(Stored { record, .. }) = &self.stored else { return Some(false) };
        let (batch, origin) = (attempt.target.batch, Some(attempt.origin()));
        let previous = record.previous.as_ref();
        if record.counting(batch) == origin || previous.is_some_and(|previous| previous.counting(batch) == origin) {
            return Some(true);
        }
        previous.is_none().then_some(false)
    }

    /// The stored batch if it has other content and was not retired as a whole.
    fn other(&self, totals: &InputTotals) -> Option<&Stored> {
        let other = |stored: &&Stored| !stored.record.removed && !stored.has_content(totals);
        self.stored.as_ref().filter(other).filter(|_| !self.retired.whole)
    }
}

/// What an attempt has put so far. A failed put may have stored chunks too, so they are included.
struct Progress {
    parts: Vec<ChunkList>,
    inputs: Vec<InputProgress>,
}

/// What an attempt has put of one input so far.
struct InputProgress {
    report: WriteReport,
    ticks: Option<(i64, i64)>,
    tiles: HashSet<Tile>,
    repeats: Repeats,
}

impl InputProgress {
    fn new(batch: BatchId) -> Self {
        let report = WriteReport { batch, stored: true, rows: 0, duplicates: 0, tiles: 0, chunks: 0, bytes: 0 };
        Self { report, ticks: None, tiles: HashSet::new(), repeats: Repeats::default() }
    }

    fn enter(&mut self, tiled: &TiledRows, given: usize, chunks: &[Chunk]) {
        for tick in &tiled.ticks {
            let (first, last) = self.ticks.unwrap_or((*tick, *tick));
            self.ticks = Some((first.min(*tick), last.max(*tick)));
        }
        self.tiles.extend(chunks.iter().map(|chunk| chunk.key.tile));
        let report = &mut self.report;
        report.duplicates += (given - tiled.rows.num_rows()) as u64;
        report.rows += tiled.rows.num_rows() as u64;
        report.tiles = self.tiles.len() as u64;
        report.chunks += chunks.len() as u64;
        report.bytes += chunks.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum::<u64>();
    }

    /// The entry of the batch record for dataset number `dataset` of a group.
    fn part(&self, dataset: u8) -> BatchPart {
        let WriteReport { rows, tiles, chunks, bytes, .. } = self.report;
        BatchPart { dataset, rows, tiles, chunks, bytes, ticks: self.ticks, repeated: self.repeats.count() }
    }
}

impl Progress {
    fn new(target: &Target<'_>) -> Self {
        let inputs = target.frames.iter().map(|_| InputProgress::new(target.batch)).collect();
        Self { parts: Vec::new(), inputs }
    }

    fn refs(&self) -> impl Iterator<Item = &ChunkRef> {
        self.parts.iter().flat_map(|part| &part.refs)
    }

    fn sum(&self, of: impl Fn(&WriteReport) -> u64) -> u64 {
        self.inputs.iter().map(|input| of(&input.report)).sum()
    }
}

/// An attempt that may put chunks. A caller that drops it without [`Attempt::end`] or [`Attempt::take_back`] leaves an
/// unfinished batch, which a repeated write takes over.
pub(crate) struct Attempt<'a> {
    target: &'a Target<'a>,
    pub earlier: PriorState,
    claim: Claim,
    progress: Progress,
    /// Token of the record of slices being dropped, read before the first chunk was put in a commit other than the
    /// last.
    fence: Option<String>,
}

impl<'a> Attempt<'a> {
    /// An attempt that assumes a new batch. If the batch exists, the first commit fails without any effect.
    pub(crate) fn at_new(target: &'a Target<'a>, written_us: i64) -> Self {
        Self {
            target,
            earlier: PriorState::default(),
            claim: Claim { intent: target.intent(written_us), found: None },
            progress: Progress::new(target),
            fence: None,
        }
    }

    /// An attempt that reads the records of earlier writes of the batch, and takes over from an interrupted one.
    pub(crate) async fn load_earlier(target: &'a Target<'a>, written_us: i64) -> Result<Self> {
        let mut attempt = Self::at_new(target, written_us);
        let (store, home) = (target.dataset.store(), &target.home);
        // The intent is read first, so that the record reveals a write that ends between the two reads.
        let begun = catalog::get::<Intent>(store, &Claim::key(target)).await?;
        let stored = catalog::get::<BatchRecord>(store, &catalog::batch_key(home, target.batch)).await?;
        if let Some((record, bytes)) = stored {
            // The replacement of a batch needs a later stamp than the batch, whichever machine wrote it.
            attempt.stamp_after(record.written_us).await?;
            // Looked up before the retirement: slices whose drop begins later were present when this write began.
            attempt.earlier.dropping = target.dataset.fence().drops_in_progress(&home.name).await?;
            attempt.earlier.retired = target.dataset.retirement(target.batch, &record, None).await?;
            // The retired rows are stored again: with an earlier stamp, the record of the drop would concern them too.
            attempt.stamp_after(attempt.earlier.retired.retired_us).await?;
            attempt.earlier.stored = Some(Stored { record, bytes });
        }
        if let Some((begun, bytes)) = begun {
            // Rows of interrupted attempts are removed by their stamps, so the rows of this attempt need a later stamp.
            attempt.stamp_after(begun.written_us).await?;
            attempt.claim.found = Some(bytes);
            attempt.earlier.cut_off = true;
            tracing::info!(
                target: LOG, dataset = %home.name, batch = target.key, "taking over a batch from an interrupted write"
            );
            let before = attempt.conditions()?;
            target.commit(Commit { before, ..Commit::default() }).await?;
        }
        let earlier = &mut attempt.earlier;
        if earlier.cut_off || earlier.stored.is_some() && !earlier.only_compared(target) {
            // From here on no earlier attempt can add parts.
            earlier.parts = catalog::parts(store, home, target.batch).await?;
        }
        Ok(attempt)
    }

    /// Acknowledges a batch that was found stored.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] if a drop that began before this write affects its rows: it may have been
    /// interrupted, and end after they were acknowledged. As [`Self::leave_stored`].
    pub(crate) async fn acknowledge_stored(&self) -> Result<()> {
        self.leave_stored().await?;
        let Some(Stored { record, .. }) = self.earlier.stored.as_ref().filter(|_| !self.earlier.dropping.is_empty())
        else {
            return Ok(());
        };
        let Target { dataset, home, batch, .. } = self.target;
        let (parts, _) = record.own_parts(catalog::parts(dataset.store(), home, *batch).await?);
        let mut slices = parts.iter().flat_map(|part| &part.refs).map(|chunk| chunk.key.slice);
        match slices.find(|slice| self.earlier.dropping.contains(slice)) {
            Some(slice) => Err(ArchiveError::SliceRetired { dataset: home.name.clone(), slice }),
            None => Ok(()),
        }
    }

    /// Ends an attempt that leaves the stored batch unchanged: removes what this attempt has put.
    pub(crate) async fn leave_stored(&self) -> Result<()> {
        let (Some(intent), Some(Stored { record, bytes })) = (&self.claim.found, &self.earlier.stored) else {
            return Ok(());
        };
        let Target { dataset, batch, .. } = *self.target;
        // Running reads may still need chunks in the earlier lists, so those are left to a consolidation.
        let leftovers = Leftovers { dead: self.progress.parts.clone(), others: !self.earlier.parts.is_empty() };
        let cleared = dataset.clear_dead(batch, intent.clone(), Some((record, bytes)), leftovers).await;
        cleared.map_err(|error| self.target.as_race(error))
    }

    /// Ensures that the stamp of the rows is later than `earlier_us`.
    async fn stamp_after(&mut self, earlier_us: i64) -> Result<()> {
        if self.claim.intent.written_us <= earlier_us {
            self.target.dataset.clock().saw(earlier_us);
            self.claim.intent.written_us = self.target.dataset.stamp_us().await?;
        }
        Ok(())
    }

    /// The stored batch if this attempt has put nothing and would store the same content again.
    pub(crate) fn finds_stored(&self, totals: &InputTotals) -> Option<&Stored> {
        self.earlier.same(totals).filter(|_| self.progress.parts.is_empty())
    }

    /// The stored batch if it has other content and this attempt must not replace it.
    pub(crate) fn must_keep(&self, totals: &InputTotals) -> Option<&Stored> {
        self.earlier.other(totals).filter(|_| !self.target.replace)
    }

    /// Puts buffered rows before the batch ends.
    pub(crate) async fn flush(&mut self, buffer: Vec<TiledRows>) -> Result<()> {
        self.progress.inputs.iter_mut().for_each(|input| input.repeats.several = true);
        let chunks = self.encode(buffer)?;
        self.watch_slices().await?;
        for chunks in split(chunks) {
            self.put_step(chunks).await?;
        }
        Ok(())
    }

    /// Puts what is left and ends the batch.
    pub(crate) async fn end(&mut self, buffer: Vec<TiledRows>, totals: &InputTotals) -> Result<Vec<WriteReport>> {
        let chunks = self.encode(buffer)?;
        let mut steps = split(chunks);
        let last = steps.pop().unwrap_or_default();
        if !steps.is_empty() || self.target.dataset.fence().needs_closing() {
            self.watch_slices().await?;
        }
        if steps.is_empty() && self.needs_no_claim() {
            self.end_unclaimed(last, totals).await?;
        } else {
            for chunks in steps {
                self.put_step(chunks).await?;
            }
            self.end_with(last, totals).await?;
        }
        // Where the batch was stored before, it is superseded, and readers look up the record of a superseded batch
        // each time.
        if self.earlier.stored.is_none() {
            // Later reads of this process then need not look up the record.
            self.target.dataset.remember_counting(std::iter::once(self.origin()));
        }
        Ok(self.reports())
    }

    /// The reports of this attempt once it has ended.
    pub(crate) fn reports(&self) -> Vec<WriteReport> {
        self.progress.inputs.iter().map(|input| input.report.clone()).collect()
    }

    fn origin(&self) -> Origin {
        self.claim.intent.origin(self.target.batch)
    }

    /// Whether this attempt may put its chunks before any catalog record: it has put no record yet and knows of no
    /// earlier attempt.
    fn needs_no_claim(&self) -> bool {
        let is_first = self.claim.found.is_none() && self.progress.parts.is_empty() && !self.earlier.is_known();
        is_first && self.target.dataset.puts_unclaimed()
    }

    /// Puts all chunks, then ends the batch with one conditional commit of its records. Chunks of an attempt that is
    /// interrupted between the two never count, since no record names them; a consolidation removes them a day later
    /// ([`Dataset::sweep_strays`]).
    async fn end_unclaimed(&mut self, chunks: Vec<Chunk>, totals: &InputTotals) -> Result<()> {
        // The list joins the progress before the put, so that `check_slices` and `take_back_unclaimed` cover the
        // chunks.
        let list = (!chunks.is_empty()).then(|| self.list(&chunks));
        self.put_watched(Commit { put: chunks, ..Commit::default() }).await?;
        // A process that closes a slice lists its chunks only once all older checks have expired, so the check follows
        // the put.
        self.check_slices().await?;
        // Intent, record and list belong to one record group, so a cluster decides them in one lightweight transaction.
        let mut before = vec![catalog::no_record(Claim::key(self.target)), self.put_record(&self.record(totals)?)];
        before.extend(list);
        self.target.commit(Commit { before, ..Commit::default() }).await
    }

    /// Takes back the chunks of an attempt that put them without a claim and lost the batch to another one.
    pub(crate) async fn take_back_unclaimed(self, other: &Self) {
        let batch = self.target.batch;
        let counting = other.earlier.stored.as_ref().and_then(|stored| stored.record.counting(batch));
        // An attempt with an intent has stored its lists, by which the attempt that took over removes the chunks. A
        // conflict may also come from the attempt's own record, if its commit was repeated after a lost answer: then
        // the chunks count.
        if self.claim.found.is_some() || counting == Some(self.origin()) {
            return;
        }
        let remove = self.progress.refs().map(|chunk| chunk.key).collect();
        // If this fails, the chunks still never count.
        let _ = self.target.dataset.commit(Commit { remove, ..Commit::default() }).await;
    }

    /// Takes back what this attempt has put. If this fails too, the batch stays unfinished. If the write had ended
    /// after all, its record has changed, and nothing is taken back.
    pub(crate) async fn take_back(self) {
        // Errors are ignored: the caller reports the error of the write, and no reader sees the rows.
        if self.earlier.stored.is_some() {
            let _ = self.leave_stored().await;
            return;
        }
        let Some(intent) = self.claim.found else { return };
        let Target { dataset, batch, .. } = *self.target;
        // Without a record no row has ever counted, so no reader needs the chunks of earlier attempts either.
        let dead = self.progress.parts.into_iter().chain(self.earlier.parts).collect();
        let _ = dataset.clear_dead(batch, intent, None, Leftovers { dead, others: false }).await;
    }

    /// Encodes buffered rows and updates the progress.
    fn encode(&mut self, buffer: Vec<TiledRows>) -> Result<Vec<Chunk>> {
        let mut by_input: Vec<Vec<TiledRows>> = self.target.frames.iter().map(|_| Vec::new()).collect();
        buffer.into_iter().for_each(|tiled| by_input[tiled.input].push(tiled));
        let origin = self.origin();
        let mut all = Vec::new();
        for (input, buffer) in by_input.into_iter().enumerate().filter(|(_, buffer)| !buffer.is_empty()) {
            let frame = &self.target.frames[input];
            let tiled = TiledRows::concat(frame, buffer)?;
            let given = tiled.rows.num_rows();
            let tiled = tiled.sorted(frame)?;
            let put = &mut self.progress.inputs[input];
            put.repeats.enter(frame, &tiled)?;
            let chunks = encode_tiles(frame, &tiled, origin)?;
            put.enter(&tiled, given, &chunks);
            all.extend(chunks);
        }
        Ok(all)
    }

    /// Puts chunks with their list.
    async fn put_step(&mut self, chunks: Vec<Chunk>) -> Result<()> {
        let mut before = self.conditions()?;
        before.push(self.list(&chunks));
        self.target.commit(Commit { before, put: chunks, ..Commit::default() }).await
    }

    /// The last commit: puts the remaining chunks and the record, and removes chunks of earlier attempts.
    async fn end_with(&mut self, chunks: Vec<Chunk>, totals: &InputTotals) -> Result<()> {
        let (dataset, batch, home) = (self.target.dataset, self.target.batch, &self.target.home);
        let mut before = self.conditions()?;
        if !chunks.is_empty() {
            before.push(self.list(&chunks));
        }
        let Some(Stored { record: old, .. }) = &self.earlier.stored else {
            // No row of earlier attempts ever counted. Their lists are deleted before the record is put.
            let live: HashSet<ChunkKey> = self.progress.refs().map(|r| r.key).collect();
            let dead = self.earlier.parts.iter().flat_map(|part| &part.refs).map(|chunk| chunk.key);
            let remove = dead.filter(|key| !live.contains(key)).collect();
            let mut after: Vec<RecordPut> =
                self.earlier.parts.iter().map(|part| catalog::delete_part(home, batch, part.number)).collect();
            let record = self.record(totals)?;
            after.extend([self.put_record(&record), self.claim.release(self.target)?]);
            return self.end_plain(Commit { before, put: chunks, remove, after, ..Commit::default() }).await;
        };
        // From here on the attempt replaces a stored or removed batch. First its chunks become durable; no reader
        // returns them until the record names the attempt.
        let slices: BTreeSet<SliceId> =
            self.earlier.parts.iter().flat_map(|part| &part.refs).map(|chunk| chunk.key.slice).collect();
        let counts = !old.removed;
        self.watch_slices().await?;
        self.put_watched(Commit { before, put: chunks, ..Commit::default() }).await?;
        // A reader that remembers the stored attempt as counting must look up the record before the record names
        // another one.
        if counts {
            dataset.supersede(batch).await?;
        }
        // Rows of a slice that a process is moving elsewhere must not be replaced.
        let watch = dataset.watch(slices).await?;
        // This commit switches readers from the old rows to the new ones. If old rows remain, the intent stays until a
        // consolidation finds that no reader needs them.
        let record = loop {
            let observed = self.check_slices().await?;
            let record = self.record(totals)?;
            let mut before = match self.earlier.parts.is_empty() {
                true => vec![self.claim.release(self.target)?],
                false => self.conditions()?,
            };
            before.push(self.put_record(&record));
            before.extend(dataset.fence().no_drop_since(&observed));
            match dataset.commit_and_announce(Commit { before, ..Commit::default() }).await {
                Err(error) if fence::has_changed(&error) => continue,
                result => result.map_err(|error| self.target.as_race(error))?,
            }
            break record;
        };
        // With atomic drops, the condition in the commit above has already excluded a drop in between.
        if dataset.fence().needs_closing() {
            dataset.nothing_dropped(&watch).await.map_err(ArchiveError::behind_record)?;
        }
        // Running reads may still need the old chunks, so a consolidation removes them after the time for which they
        // are kept.
        if dataset.kept_us() > 0 || self.earlier.parts.is_empty() {
            return Ok(());
        }
        let Some(intent) = self.claim.found.clone() else { return Ok(()) };
        let stored = Some((&record.record, &record.bytes));
        match dataset.clear_all_dead(batch, intent, stored).await {
            // The batch has ended, and its intent stays, by which a consolidation finds the old chunks.
            Err(error) if !matches!(error, ArchiveError::SliceRetired { .. }) => {
                tracing::warn!(
                    target: LOG, dataset = %home.name, batch = self.target.key,
                    "the new rows are visible; consolidation will remove the old ones: {error}"
                );
                Ok(())
            }
            cleared => cleared.map_err(ArchiveError::behind_record),
        }
    }

    /// The last commit of a batch that replaces no stored one.
    async fn end_plain(&mut self, commit: Commit) -> Result<()> {
        let target = self.target;
        if self.fence.is_none() {
            // A single commit puts everything, so no drop can come between chunks and record.
            return target.commit(commit).await;
        }
        // The check comes between durable chunks and the record: a drop is either visible to the check or lists the
        // chunks.
        if target.dataset.fence().needs_closing() {
            let Commit { before, put, remove, after, .. } = commit;
            self.put_watched(Commit { before, put, ..Commit::default() }).await?;
            self.check_slices().await?;
            return target.commit(Commit { remove, after, ..Commit::default() }).await;
        }
        loop {
            // Commits are atomic here: a refused one has changed nothing, so the conditions hold for another try. The
            // clone shares the bytes of the chunks.
            let mut last = commit.clone();
            let observed = self.check_slices().await?;
            last.before.extend(target.dataset.fence().no_drop_since(&observed));
            match target.dataset.commit_and_announce(last).await {
                Err(error) if fence::has_changed(&error) => continue,
                result => return result.map_err(|error| target.as_race(error)),
            }
        }
    }

    /// Remembers, before the first chunk is put, which slices are being dropped.
    async fn watch_slices(&mut self) -> Result<()> {
        if self.fence.is_none() {
            self.fence = Some(self.target.dataset.fence().cached().await?.token().to_owned());
        }
        Ok(())
    }

    /// Puts chunks and, in parallel, refreshes the record of slices being dropped if it is stale.
    async fn put_watched(&self, commit: Commit) -> Result<()> {
        let (put, ()) = futures::join!(self.target.commit(commit), self.target.dataset.fence().refresh());
        put
    }

    /// Checks that no chunk of this write, all of which are durable, was dropped with its slice, and that no later drop
    /// can miss them.
    async fn check_slices(&mut self) -> Result<Observed> {
        let Target { dataset, home, .. } = self.target;
        let refs: Vec<ChunkRef> = self.progress.refs().copied().collect();
        let observed = if dataset.fence().needs_closing() {
            let slices: BTreeSet<SliceId> = refs.iter().map(|chunk| chunk.key.slice).collect();
            dataset.fence().ensure_open(home, &slices).await?
        } else {
            dataset.fence().read().await?
        };
        // Another token means that a slice may have been dropped since the first chunk was put.
        if self.fence.as_deref() != Some(observed.token()) {
            let there: HashSet<ChunkKey> = dataset.existing(&refs).await?.into_iter().collect();
            if let Some(gone) = refs.iter().find(|chunk| !there.contains(&chunk.key)) {
                return Err(ArchiveError::SliceRetired { dataset: home.name.clone(), slice: gone.key.slice });
            }
            // All chunks existed after this state of the record, so a repeated check concerns later drops only.
            self.fence = Some(observed.token().to_owned());
        }
        Ok(observed)
    }

    /// The conditions under which this attempt may continue: its intent is unchanged and, the first time, so are the
    /// batch record and the definitions. A drop deletes the intent.
    fn conditions(&mut self) -> Result<Vec<RecordPut>> {
        let (intent, first) = self.claim.put(self.target)?;
        let mut puts = vec![intent];
        // Later steps need only the intent: the last one compares the record again (`put_record`).
        if first {
            puts.extend(self.target.definitions()?);
            let key = catalog::batch_key(&self.target.home, self.target.batch);
            match &self.earlier.stored {
                // A put of the value that is already stored serves as a condition and changes nothing.
                Some(Stored { bytes, .. }) => puts.push(catalog::unchanged(key, bytes.clone())),
                // Another writer may have begun and ended the batch since this attempt read the catalog.
                None if self.target.key.is_some() => puts.push(catalog::no_record(key)),
                None => {}
            }
        }
        Ok(puts)
    }

    fn record(&self, totals: &InputTotals) -> Result<Stored> {
        let key = catalog::batch_key(&self.target.home, self.target.batch);
        let put = &self.progress;
        let number = |frame: &Frame| frame.spec.group.as_ref().map(|group| group.number);
        let parts = self.target.frames.iter().zip(&put.inputs);
        let datasets: Vec<BatchPart> = parts.filter_map(|(frame, input)| Some(input.part(number(frame)?))).collect();
        // Datasets of a group may differ in the length of their ticks, so the record has none for the group as a whole.
        let only = put.inputs.first().filter(|_| datasets.is_empty());
        let record = BatchRecord {
            key: self.target.key.clone(),
            written_us: self.claim.intent.written_us,
            token: self.origin().token,
            // A stamp may be ahead of the clock, because it is later than every stamp that the process has seen.
            ended_us: self.target.dataset.clock().about_now_us().max(self.claim.intent.written_us),
            removed: false,
            rows: put.sum(|report| report.rows),
            tiles: put.sum(|report| report.tiles),
            chunks: put.sum(|report| report.chunks),
            bytes: put.sum(|report| report.bytes),
            content: totals.content.to_string(),
            ticks: only.and_then(|input| input.ticks),
            parts: (self.first_part(), self.first_part() + self.progress.parts.len() as u32),
            previous: self.earlier.stored.as_ref().map(|stored| stored.record.as_previous()),
            copied: None,
            repeated: only.and_then(|input| input.repeats.count()),
            datasets,
        };
        let bytes = catalog::to_json(&key, &record)?;
        Ok(Stored { record, bytes })
    }

    /// The put of the batch record, on condition that the record that was read is unchanged.
    fn put_record(&self, record: &Stored) -> RecordPut {
        let key = catalog::batch_key(&self.target.home, self.target.batch);
        let expect = self.earlier.stored.as_ref().map_or(Expect::Absent, |stored| Expect::Is(stored.bytes.clone()));
        catalog::put(key, record.bytes.clone(), expect)
    }

    /// The number of the first list of this attempt. It follows those of earlier attempts, whose lists are still
    /// needed.
    fn first_part(&self) -> u32 {
        // The last list has the greatest number: lists are read in the order of their keys, which pad numbers to eight
        // digits.
        self.earlier.parts.last().map_or(0, |part| part.number + 1)
    }

    /// Adds the list of chunks that are about to be put, and returns the put of its record.
    fn list(&mut self, chunks: &[Chunk]) -> RecordPut {
        let number = self.first_part() + self.progress.parts.len() as u32;
        let refs = chunks.iter().map(|chunk| ChunkRef { key: chunk.key, rows: chunk.rows }).collect();
        let part = ChunkList { number, refs };
        let record = part.put(&self.target.home, self.target.batch);
        self.progress.parts.push(part);
        record
    }
}

/// Splits chunks into steps whose part records and commits stay within the limits.
fn split(mut chunks: Vec<Chunk>) -> Vec<Vec<Chunk>> {
    let mut steps = Vec::new();
    while chunks.len() > REFS_PER_PART_MAX {
        let rest = chunks.split_off(REFS_PER_PART_MAX);
        steps.push(std::mem::replace(&mut chunks, rest));
    }
    steps.push(chunks);
    steps
}
