//! Visibility: a row counts if it belongs to the attempt that its batch's record names.
//!
//! The head of a chunk lists the attempts and batches that its rows come from ([`Origin`]). A read looks up the batch
//! record to see which attempt counts, unless it already knows:
//!
//! - If the batch was never replaced or removed, rows in consolidated chunks count, and an attempt that this process
//!   has seen to count still counts. In a copy, consolidated chunks are trusted only once every batch with chunks
//!   there has its record, since chunks are copied before records.
//! - Before a batch is replaced or removed, it is entered in the list of *superseded* batches
//!   ([`Dataset::supersede`]). It stays there permanently, so that reads also recognize a chunk that returns from a
//!   node that missed its removal. Each read refreshes the list when it begins.
//!
//! A batch is shown completely or not at all, even if it ends or is replaced during the read. All chunks of a batch
//! that ended long before the read began ([`LATE_US`]) were in place before the read looked at its first chunk.
//! Chunks of a batch that ended later may appear at places that the read has passed. A read that finds such a batch
//! therefore looks at all heads first ([`Visibility::look_ahead`]): it then knows every batch that has ended so far,
//! and leaves out any batch that it finds for the first time after that. Rows that no longer count stay in place for
//! [`crate::catalog::superseded::SUPERSEDED_KEPT`], for reads that began earlier.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use chronotile_chunk::{Head, Origin};
use chronotile_store::{Scan, Store};
use chronotile_types::{BatchId, SliceId, Tile};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use crate::catalog::superseded::KnownSuperseded;
use crate::catalog::{self, BatchRecord};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::read::slices::slices_in;

/// Batch records looked up concurrently.
const LOOKED_UP_AT_ONCE: usize = 64;
/// For more batches than this, all records are listed instead. On a cluster, a listing is a request to each of a few
/// hundred partitions.
const LOOKED_UP: usize = 500;
/// Maximum number of attempts remembered as counting; about 40 bytes each.
const REMEMBERED: usize = 1 << 20;

/// Clock tolerance in microseconds: a batch whose end is stamped less than this before a read began may have ended
/// after it began, since the clocks of machines differ.
const LATE_US: i64 = 300_000_000;

/// What one read knows about the attempts in its chunks.
#[derive(Debug)]
pub(crate) struct Visibility {
    dataset: Dataset,
    began: Instant,
    /// A batch that ended at or after this stamp is late.
    late_us: i64,
    state: RwLock<State>,
    hides: AtomicBool,
    /// Whether the caller returns nothing until everything is read, perhaps from several datasets. If a batch is
    /// late, the whole read then starts again.
    joint: bool,
    late: AtomicBool,
}

#[derive(Debug)]
struct State {
    superseded: Arc<HashSet<BatchId>>,
    /// Whether consolidated chunks may contain rows that do not count.
    unsettled: bool,
    /// For each batch that was looked up, the attempt whose rows the read returns.
    chosen: HashMap<BatchId, Option<Origin>>,
    /// Attempts first found after all heads were looked at: if they ended at all, they ended after that.
    later: HashSet<Origin>,
    /// Batches that ended recently and took long to write: they are not consolidated yet.
    fresh: HashSet<BatchId>,
    /// Records that were looked up when a batch was found late, for the look at all heads.
    looked_up: HashMap<BatchId, BatchRecord>,
    /// Whether all heads were looked at: a batch first found now had not ended then.
    complete: bool,
}

impl State {
    fn knows(&self, origin: &Origin, settled: bool, counted: bool) -> bool {
        let lasts = !self.superseded.contains(&origin.batch) && (settled && !self.unsettled || counted);
        // A batch in `chosen` is known for all of its attempts: `hides` compares each of them with the chosen one.
        lasts || self.chosen.contains_key(&origin.batch) || self.later.contains(origin)
    }
}

/// What a read has learned about the attempts of some chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum DecideOutcome {
    /// Every attempt is decided.
    All,
    /// Some batches ended so late that the read may have missed some of their rows.
    Late,
}

impl Visibility {
    /// As [`Dataset::learn_columns`].
    pub(crate) async fn learn_columns(&self, frame: &Frame, heads: impl Iterator<Item = &Head> + Clone) -> Result<()> {
        self.dataset.learn_columns(frame, heads).await
    }

    /// Decides which attempts in these heads count. Call this before asking about their rows.
    ///
    /// # Errors
    /// A damaged record; the engine.
    pub(crate) async fn decide(&self, heads: impl Iterator<Item = &Head> + Send) -> Result<DecideOutcome> {
        let Some((unknown, batches)) = self.to_decide(heads) else { return Ok(DecideOutcome::All) };
        let records = self.dataset.records_of(batches.clone()).await?;
        let is_late = |batch: &BatchId| records.get(batch).is_some_and(|record| record.ended_us >= self.late_us);
        if batches.iter().any(is_late) {
            self.state_mut().looked_up.extend(records);
            return Ok(DecideOutcome::Late);
        }
        self.choose_current(&batches, &records);
        self.note_hidden(&unknown);
        Ok(DecideOutcome::All)
    }

    /// As [`Self::decide`], for callers that treat each tile by itself: batches that ended late count too.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub(crate) async fn decide_now(&self, heads: impl Iterator<Item = &Head> + Send) -> Result<DecideOutcome> {
        let Some((unknown, batches)) = self.to_decide(heads) else { return Ok(DecideOutcome::All) };
        let records = self.dataset.records_of(batches.clone()).await?;
        self.choose_current(&batches, &records);
        self.note_hidden(&unknown);
        let late = records.values().any(|record| record.ended_us >= self.late_us);
        Ok(if late { DecideOutcome::Late } else { DecideOutcome::All })
    }

    /// The undecided attempts in these heads and their batches, if any.
    fn to_decide<'a>(&self, heads: impl Iterator<Item = &'a Head>) -> Option<(HashSet<Origin>, BTreeSet<BatchId>)> {
        let heads: Vec<&Head> = heads.collect();
        if self.unknown(heads.iter().copied()).is_empty() {
            return None;
        }
        // Another read that shares this visibility may have decided meanwhile.
        let mut state = self.state_mut();
        let unknown = self.unknown_to(&state, heads.into_iter());
        if unknown.is_empty() {
            return None;
        }
        // A batch that is first found after the look at all heads had not ended then, so its attempts are left out
        // without a lookup of the record.
        if state.complete {
            self.hides.store(true, Ordering::Release);
            state.later.extend(unknown);
            return None;
        }
        let batches = unknown.iter().map(|origin| origin.batch).collect();
        Some((unknown, batches))
    }

    /// Records whether one of these attempts does not count. Until then, checks of rows skip the lookup.
    fn note_hidden(&self, origins: &HashSet<Origin>) {
        let state = self.state();
        if origins.iter().any(|origin| state.hides(origin)) {
            self.hides.store(true, Ordering::Release);
        }
    }

    /// Called when a read has looked at all heads in its range. A batch that the read finds for the first time after
    /// this ended later and is left out. If a batch in the heads ended `late`, so that the read may have missed some
    /// of it, a joint read has to look again.
    ///
    /// # Errors
    /// As [`Self::begin_again`], for a joint read that is late.
    pub(crate) fn looked_at_all(&self, frame: &Frame, late: bool) -> Result<()> {
        match (self.joint, late) {
            (false, _) => {
                self.complete();
                Ok(())
            }
            // Other reads that share this visibility have not looked at their heads yet, so `complete` stays unset: it
            // would hide their batches.
            (true, false) => Ok(()),
            (true, true) => self.begin_again(frame),
        }
    }

    /// Ends a read that is late. The caller restarts it if it has returned nothing.
    ///
    /// # Errors
    /// [`ArchiveError::ReadRace`], always.
    pub(crate) fn begin_again<T>(&self, frame: &Frame) -> Result<T> {
        self.late.store(true, Ordering::Release);
        Err(ArchiveError::ReadRace { dataset: frame.spec.name.clone() })
    }

    /// Sets whether the read has looked at all heads and therefore leaves out batches that it finds for the first
    /// time from now on.
    pub(crate) fn set_complete(&self, complete: bool) {
        self.state_mut().complete = complete;
    }

    fn complete(&self) {
        self.set_complete(true);
    }

    /// Looks at all heads that `scan` covers, in all slices that exist now, and decides about every batch that has
    /// ended. The read has already returned chunks up to `taken`; a batch that should have had rows there is left
    /// out, or shown in its previous state. Returns the slices to read from here on.
    ///
    /// # Errors
    /// [`ArchiveError::ReadRace`] for a batch that was replaced twice during the read; the engine.
    pub(crate) async fn look_ahead(
        &self,
        store: &dyn Store,
        frame: &Frame,
        scan: &Scan,
        taken: Option<(SliceId, Tile)>,
    ) -> Result<Vec<SliceId>> {
        if self.joint {
            return self.begin_again(frame);
        }
        // The list comes first: a batch that was replaced since the read began is then in it, and its record is looked
        // up although the process may remember an attempt that counted.
        let before = self.take_in_superseded().await?;
        self.look_at_heads(store, frame, scan, taken, &before).await?;
        self.complete();
        // A batch that ended meanwhile may have created a slice.
        slices_in(store, frame, scan.windows.outer()).await
    }

    /// As [`Self::look_ahead`], for one or more reads that share this visibility and have returned nothing. None of
    /// them may be running.
    ///
    /// # Errors
    /// A damaged record; the engine.
    pub(crate) async fn look_ahead_jointly(&self, store: &dyn Store, reads: &[(&Frame, Scan)]) -> Result<()> {
        let before = self.take_in_superseded().await?;
        {
            // Batches that an earlier look found unfinished may have ended since.
            let mut state = self.state_mut();
            state.chosen.clear();
            state.later.clear();
        }
        let looks = reads.iter().map(|(frame, scan)| self.look_at_heads(store, frame, scan, None, &before));
        futures::future::try_join_all(looks).await?;
        self.late.store(false, Ordering::Release);
        self.complete();
        Ok(())
    }

    /// Whether a read ended to be restarted, because a batch ended so late that the read may have missed some of its
    /// rows.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Acquire)
    }

    /// Refreshes the list of superseded batches; returns the previous list.
    async fn take_in_superseded(&self) -> Result<Arc<HashSet<BatchId>>> {
        let known = self.dataset.superseded().await?;
        let mut state = self.state_mut();
        state.unsettled = known.unsettled;
        Ok(std::mem::replace(&mut state.superseded, known.batches))
    }

    /// Decides about every batch in the heads that `scan` covers. Fails if the dataset was dropped.
    async fn look_at_heads(
        &self,
        store: &dyn Store,
        frame: &Frame,
        scan: &Scan,
        taken: Option<(SliceId, Tile)>,
        before: &HashSet<BatchId>,
    ) -> Result<()> {
        let slices = slices_in(store, frame, scan.windows.outer()).await?;
        let mut heads = store.scan(&frame.dataset, Scan { slices, ..scan.clone() }).await?;
        while let Some(chunks) = heads.try_next().await? {
            let heads = chunks.iter().map(|chunk| frame.head(chunk)).collect::<Result<Vec<_>>>()?;
            let batches: BTreeSet<BatchId> = self.unknown(heads.iter()).iter().map(|origin| origin.batch).collect();
            let mut records = std::mem::take(&mut self.state_mut().looked_up);
            let unknown = batches.iter().filter(|batch| !records.contains_key(batch)).copied().collect();
            records.extend(self.dataset.records_of(unknown).await?);
            let Some(taken) = taken else {
                self.choose_current(&batches, &records);
                continue;
            };
            for batch in batches {
                // A batch that was in the list when the read began was looked up at its first chunk. It is undecided,
                // so none of its rows were returned. Rows of other batches may have been returned without a lookup.
                let shown = !before.contains(&batch);
                let chosen = match records.get(&batch) {
                    Some(record) => self.choice_beside(frame, batch, record, (taken, shown)).await?,
                    None => None,
                };
                self.choose([(batch, chosen)].into_iter());
            }
        }
        // Another dataset may have been created under the name: its batches ended after the read began, and its chunks
        // must not be decoded with this definition.
        self.dataset.definition(frame).await.map(drop)
    }

    /// The attempt at a batch that a read shows if it has already returned chunks, up to `taken`. `shown` tells
    /// whether it may have returned rows of the attempt that counted when it began.
    async fn choice_beside(
        &self,
        frame: &Frame,
        batch: BatchId,
        record: &BatchRecord,
        (taken, shown): ((SliceId, Tile), bool),
    ) -> Result<Option<Origin>> {
        let current = record.counting(batch);
        // All chunks of such a batch were in place before the read looked at its first one.
        if record.ended_us < self.late_us {
            return Ok(current);
        }
        let parts = catalog::parts(self.dataset.store(), &frame.dataset, batch).await?;
        let (own, _) = record.own_parts(parts);
        // Lists of chunks cover all datasets of a group; this read has passed only the tiles of its own dataset.
        let here = own
            .iter()
            .flat_map(|part| &part.refs)
            .filter(|chunk| frame.spec.has_window(chunk.key.slice, chunk.key.tile.window));
        let missed = here.into_iter().any(|chunk| (chunk.key.slice, chunk.key.tile) <= taken);
        // Returned rows cannot be taken back. A batch that would lack rows in the tiles that the read has passed is
        // left out or shown in its previous state, as is one whose previous rows may have been returned.
        match &record.previous {
            None if missed => Ok(None),
            Some(previous) if missed || shown => {
                // A record names only one previous state. If that one is late too, the read may have returned rows of a
                // state before it.
                if previous.ended_us >= self.late_us {
                    return Err(ArchiveError::ReadRace { dataset: frame.spec.name.clone() });
                }
                Ok(previous.counting(batch))
            }
            _ => Ok(current),
        }
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn unknown<'a>(&self, heads: impl Iterator<Item = &'a Head>) -> HashSet<Origin> {
        self.unknown_to(&self.state(), heads)
    }

    /// The stamp before which rows in consolidated chunks count without a lookup of their batches.
    ///
    /// Consolidation only shows that a batch has ended, perhaps while this read ran, after it had passed some of the
    /// batch's tiles. Batches that took long are not consolidated for [`LATE_US`] after their end ([`State::fresh`]), so
    /// a short read meets none that ended after it began, except recent ones. A long read may meet any that was still
    /// being written.
    fn settled_before_us(&self) -> i64 {
        let long = self.began.elapsed() >= Duration::from_micros(LATE_US as u64 / 2);
        self.late_us - if long { catalog::EXPIRES_US } else { 0 }
    }

    fn unknown_to<'a>(&self, state: &State, heads: impl Iterator<Item = &'a Head>) -> HashSet<Origin> {
        let settled_before_us = self.settled_before_us();
        self.dataset.counting(|counting| {
            let mut unknown = HashSet::new();
            for head in heads {
                let consolidated = head.origins.len() > 1;
                let is_unknown = |origin: &&Origin| {
                    let settled = consolidated && origin.written_us < settled_before_us;
                    // A result obtained after this read began may be about a batch that ended since.
                    let counted = || counting.get(origin).is_some_and(|since| *since < self.began);
                    let known = state.knows(origin, settled, !settled && counted());
                    if known && state.hides(origin) {
                        self.hides.store(true, Ordering::Release);
                    }
                    !known
                };
                unknown.extend(head.origins.iter().filter(is_unknown).copied());
            }
            unknown
        })
    }

    fn choose_current(&self, batches: &BTreeSet<BatchId>, records: &HashMap<BatchId, BatchRecord>) {
        let current = |batch: &BatchId| records.get(batch).and_then(|record| record.counting(*batch));
        let counting = batches.iter().filter_map(current);
        {
            let mut state = self.state_mut();
            // The lock of the state is held while that of `counting` is taken, in the same order as in `unknown_to`.
            let superseded = state.superseded.clone();
            self.dataset.remember_counting(counting.filter(|origin| !superseded.contains(&origin.batch)));
            // Such a batch must not be consolidated yet: it was written long before it ended, so `unknown_to` of a read
            // that runs now would let its rows in consolidated chunks count without a lookup.
            let took_long = |record: &BatchRecord| {
                record.ended_us >= self.late_us && record.ended_us - record.written_us > LATE_US / 2
            };
            state.fresh.extend(records.iter().filter(|(_, record)| took_long(record)).map(|(batch, _)| *batch));
        }
        self.choose(batches.iter().map(|batch| (*batch, current(batch))));
    }

    fn choose(&self, chosen: impl Iterator<Item = (BatchId, Option<Origin>)>) {
        self.state_mut().chosen.extend(chosen);
    }

    /// Whether the rows of this attempt do not count.
    pub(crate) fn hides(&self, origin: &Origin) -> bool {
        self.hides.load(Ordering::Acquire) && self.state().hides(origin)
    }

    /// Whether some rows of the chunk with this head do not count.
    pub(crate) fn hides_rows_of(&self, head: &Head) -> bool {
        if !self.hides.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state();
        head.origins.iter().any(|origin| state.hides(origin))
    }

    /// Whether no row of the chunk with this head counts.
    pub(crate) fn hides_all_of(&self, head: &Head) -> bool {
        if !self.hides.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state();
        head.origins.iter().all(|origin| state.hides(origin))
    }

    /// Whether the chunk with this head may be consolidated with others: all of its rows count, also for reads that
    /// are already running.
    pub(crate) fn settles(&self, head: &Head) -> bool {
        let state = self.state();
        head.origins.iter().all(|origin| !state.hides(origin) && !state.fresh.contains(&origin.batch))
    }
}

impl State {
    fn hides(&self, origin: &Origin) -> bool {
        let other = self.chosen.get(&origin.batch).is_some_and(|chosen| *chosen != Some(*origin));
        other || self.later.contains(origin)
    }
}

/// What a read knows about attempts when it begins.
pub(crate) struct AttemptSnapshot {
    dataset: Dataset,
    began: Instant,
    late_us: i64,
    superseded: KnownSuperseded,
}

impl AttemptSnapshot {
    /// For one read.
    pub(crate) fn alone(self) -> Arc<Visibility> {
        self.visibility(false)
    }

    /// For reads that return nothing until all of them have ended. Reads of several datasets of a group show the same
    /// batches.
    pub(crate) fn jointly(self) -> Arc<Visibility> {
        self.visibility(true)
    }

    fn visibility(self, joint: bool) -> Arc<Visibility> {
        let Self { dataset, began, late_us, superseded: KnownSuperseded { batches: superseded, unsettled, .. } } = self;
        let (chosen, later, fresh, looked_up) = Default::default();
        let state = RwLock::new(State { superseded, unsettled, chosen, later, fresh, looked_up, complete: false });
        let (hides, late) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Visibility { dataset, began, late_us, state, hides, joint, late })
    }
}

impl Dataset {
    /// What a read that begins now knows about attempts.
    pub(crate) async fn begin_read(&self) -> Result<AttemptSnapshot> {
        let (dataset, began, late_us) = (self.clone(), Instant::now(), self.clock().about_now_us() - LATE_US);
        Ok(AttemptSnapshot { dataset, began, late_us, superseded: self.superseded().await? })
    }

    /// As [`Self::begin_read`], for one read.
    pub(crate) async fn visibility(&self) -> Result<Arc<Visibility>> {
        Ok(self.begin_read().await?.alone())
    }

    /// The records of these batches; batches without a record are absent from the result.
    pub(crate) async fn records_of(&self, batches: BTreeSet<BatchId>) -> Result<HashMap<BatchId, BatchRecord>> {
        let home = &self.frame().dataset;
        if batches.len() > LOOKED_UP {
            let mut records: HashMap<_, _> = catalog::finished(self.store(), home).await?.into_iter().collect();
            records.retain(|batch, _| batches.contains(batch));
            return Ok(records);
        }
        let look_up = async |batch: BatchId| {
            let found = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(home, batch)).await?;
            Ok::<_, ArchiveError>(found.map(|(record, _)| (batch, record)))
        };
        // The set is ordered, so that a seed of the simulation repeats its calls to the engine in the same order.
        let found = stream::iter(batches).map(look_up).buffer_unordered(LOOKED_UP_AT_ONCE);
        found.try_filter_map(|found| std::future::ready(Ok(found))).try_collect().await
    }

    /// Remembers attempts that count.
    pub(crate) fn remember_counting(&self, origins: impl Iterator<Item = Origin>) {
        let now = Instant::now();
        self.counting(|counting| {
            // A forgotten attempt only costs another lookup of its record.
            if counting.len() > REMEMBERED {
                counting.clear();
            }
            // The earliest time stays: all reads that began after it can use the result.
            origins.for_each(|origin| _ = counting.entry(origin).or_insert(now));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use arrow_array::{RecordBatch, TimestampMicrosecondArray};
    use chronotile_memory::MemoryStore;
    use chronotile_store::{Cells, Windows};

    use super::*;
    use crate::testing::spec;
    use crate::{Archive, ConsolidateOptions, WriteOptions};

    #[tokio::test(start_paused = true)]
    async fn a_long_read_looks_up_batches_that_may_have_ended_since_it_began() {
        const HOUR_US: i64 = 3_600_000_000;
        let (store, now_us): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::new()), Arc::new(AtomicI64::new(HOUR_US)));
        let open = || {
            let now_us = now_us.clone();
            Archive::on("memory:", store.clone()).with_machine_time(move || now_us.load(Ordering::SeqCst))
        };
        let writer = open().create(spec(), false).await.unwrap();
        for time in 1..=2 {
            let times = Arc::new(TimestampMicrosecondArray::from(vec![time]));
            let rows = RecordBatch::try_new(writer.spec().schema.clone(), vec![times]).unwrap();
            writer.write([Ok(rows)], WriteOptions::default()).await.unwrap();
        }
        writer.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        for (age_us, unknown) in [(HOUR_US, 2), (25 * HOUR_US, 0)] {
            now_us.store(HOUR_US + age_us, Ordering::SeqCst);
            let reader = open().dataset("records").await.unwrap();
            let visible = reader.visibility().await.unwrap();
            let slices = reader.slices().await.unwrap();
            let all = Scan { slices, cells: Cells::All, windows: Windows::ALL, bodies: false, older: true };
            let chunks = store.scan(&reader.frame().dataset, all).await.unwrap().try_concat().await.unwrap();
            let heads: Vec<Head> = chunks.iter().map(|chunk| reader.frame().head(chunk).unwrap()).collect();
            assert_eq!((heads.len(), heads[0].origins.len()), (1, 2));
            assert_eq!(visible.unknown(heads.iter()).len(), 0);
            tokio::time::advance(Duration::from_secs(150)).await;
            assert_eq!(visible.unknown(heads.iter()).len(), unknown, "written {age_us} us before the read");
        }
    }
}
