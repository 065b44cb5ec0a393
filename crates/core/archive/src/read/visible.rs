//! Which rows count: those of the attempt that the record of their batch names.
//!
//! The head of a chunk tells from which attempts at which batches its rows are ([`Origin`]). A read asks the record of a batch which
//! attempt counts, unless it knows:
//!
//! - What a consolidation left has rows of such attempts alone, and what this process has seen to count goes on to count, as long as the
//!   batch was never replaced or removed. Of a copy this is not so until every batch that it has chunks of is there by its record:
//!   chunks come before records.
//! - Whoever replaces or removes a batch enters it in the list of *superseded* batches first ([`Dataset::supersede`]). It stays there
//!   for good, so that a chunk which comes back from a node that missed its removal is told apart too. A read takes in what was
//!   added to the list as it begins.
//!
//! A batch is shown whole or not at all, also where it ends or is replaced while it is read. What ended long before the read began
//! ([`LATE_US`]) was there before the first chunk was looked at. Of what ended later, the chunks may come to places that were looked at
//! before: a read that meets such a batch looks at all heads first ([`Visibility::look_ahead`]), so that what ended by then is known,
//! and whole, and what it meets for the first time after that is left out. Rows that count no more stay where they are for
//! [`crate::catalog::superseded::SUPERSEDED_KEPT`], for reads that began before.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

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

/// Records looked up at once.
const LOOKED_UP_AT_ONCE: usize = 64;
/// Of more batches than these all records are listed instead: on a cluster a listing is a request to each of some hundred partitions.
const LOOKED_UP: usize = 500;
/// Attempts remembered as counting; about 40 bytes each.
const REMEMBERED: usize = 1 << 20;

/// What ended less than so long before a read began, in microseconds, may have ended after it began: clocks of machines differ.
const LATE_US: i64 = 300_000_000;

/// What one read knows of the attempts whose rows it meets.
#[derive(Debug)]
pub(crate) struct Visibility {
    dataset: Dataset,
    began: Instant,
    /// What has a later stamp is late.
    late_us: i64,
    state: RwLock<State>,
    hides: AtomicBool,
    /// Whether who reads returns nothing before all is read, perhaps of several datasets: then all of it begins again where it is late.
    joint: bool,
    late: AtomicBool,
}

#[derive(Debug)]
struct State {
    superseded: Arc<HashSet<BatchId>>,
    /// Whether consolidated chunks may have rows that do not count.
    unsettled: bool,
    /// Of batches that were looked up, the attempt whose rows the read returns.
    chosen: HashMap<BatchId, Option<Origin>>,
    /// Attempts that were met for the first time after all heads were looked at: they ended after that, if at all.
    later: HashSet<Origin>,
    /// Batches that ended a moment ago and took long: they are not consolidated yet.
    fresh: HashSet<BatchId>,
    /// What was looked up when a batch was found late.
    looked_up: HashMap<BatchId, BatchRecord>,
    /// Whether all heads were looked at: no batch that is met now was there before.
    complete: bool,
}

impl State {
    fn knows(&self, origin: &Origin, settled: bool, counted: bool) -> bool {
        let lasts = !self.superseded.contains(&origin.batch) && (settled && !self.unsettled || counted);
        lasts || self.chosen.contains_key(&origin.batch) || self.later.contains(origin)
    }
}

/// What a read has found out about the attempts of some chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Found {
    /// All that it needs.
    All,
    /// Some ended so late that the read may have missed rows of theirs.
    Late,
}

impl Visibility {
    /// Finds out about the attempts in these heads. To be called before their rows are asked for.
    ///
    /// # Errors
    /// A damaged record; the engine.
    pub(crate) async fn decide(&self, heads: impl Iterator<Item = &Head> + Send) -> Result<Found> {
        let Some((unknown, batches)) = self.to_decide(heads) else { return Ok(Found::All) };
        let records = self.dataset.records_of(batches.clone()).await?;
        let is_late = |batch: &BatchId| records.get(batch).is_some_and(|record| record.ended_us >= self.late_us);
        if batches.iter().any(is_late) {
            self.state_mut().looked_up.extend(records);
            return Ok(Found::Late);
        }
        self.choose_current(&batches, &records);
        self.note_hidden(&unknown);
        Ok(Found::All)
    }

    /// As [`Self::decide`], for callers that look at each tile for itself: what ended late counts too.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub(crate) async fn decide_now(&self, heads: impl Iterator<Item = &Head> + Send) -> Result<Found> {
        let Some((unknown, batches)) = self.to_decide(heads) else { return Ok(Found::All) };
        let records = self.dataset.records_of(batches.clone()).await?;
        self.choose_current(&batches, &records);
        self.note_hidden(&unknown);
        let late = records.values().any(|record| record.ended_us >= self.late_us);
        Ok(if late { Found::Late } else { Found::All })
    }

    /// The attempts in these heads of which nothing is known, with their batches, if any.
    fn to_decide<'a>(&self, heads: impl Iterator<Item = &'a Head>) -> Option<(HashSet<Origin>, BTreeSet<BatchId>)> {
        let heads: Vec<&Head> = heads.collect();
        if self.unknown(heads.iter().copied()).is_empty() {
            return None;
        }
        // Another read that shares this may have decided meanwhile.
        let mut state = self.state_mut();
        let unknown = self.unknown_to(&state, heads.into_iter());
        if unknown.is_empty() {
            return None;
        }
        if state.complete {
            self.hides.store(true, Ordering::Release);
            state.later.extend(unknown);
            return None;
        }
        let batches = unknown.iter().map(|origin| origin.batch).collect();
        Some((unknown, batches))
    }

    /// Notes whether one of these attempts does not count. As long as none does not, nobody asks which.
    fn note_hidden(&self, origins: &HashSet<Origin>) {
        let state = self.state();
        if origins.iter().any(|origin| state.hides(origin)) {
            self.hides.store(true, Ordering::Release);
        }
    }

    /// A read has looked at the heads of all that it covers. What it meets for the first time from here on ended after that, and is left
    /// out; where a batch in the heads ended so `late` that the read may have missed some of it, it is to look at them again.
    ///
    /// # Errors
    /// As [`Self::begin_again`], where it is late and shares this with others.
    pub(crate) fn looked_at_all(&self, frame: &Frame, late: bool) -> Result<()> {
        match (self.joint, late) {
            (false, _) => {
                self.complete();
                Ok(())
            }
            (true, false) => Ok(()),
            (true, true) => self.begin_again(frame),
        }
    }

    /// Ends a read that is late. It begins again where it has returned nothing.
    ///
    /// # Errors
    /// [`ArchiveError::ReadRace`], always.
    pub(crate) fn begin_again<T>(&self, frame: &Frame) -> Result<T> {
        self.late.store(true, Ordering::Release);
        Err(ArchiveError::ReadRace { dataset: frame.spec.name.clone() })
    }

    /// Whether batches that the read meets for the first time from here on are left out: where it has looked at all heads before.
    pub(crate) fn set_complete(&self, complete: bool) {
        self.state_mut().complete = complete;
    }

    fn complete(&self) {
        self.set_complete(true);
    }

    /// Looks at the heads of all that `scan` covers, whatever slices there are by now, and decides about every batch that has ended
    /// by now. Chunks up to `taken` were returned before; a batch that would lack rows there is left out, or shown as it was. Returns
    /// the slices to read from here on.
    ///
    /// # Errors
    /// [`ArchiveError::ReadRace`] for a batch that was replaced twice meanwhile; the engine.
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
        let before = self.take_in_superseded().await?;
        self.look_at_heads(store, frame, scan, taken, &before).await?;
        self.complete();
        // A batch that ended meanwhile may have made one.
        slices_in(store, frame, scan.windows.outer()).await
    }

    /// As [`Self::look_ahead`], for reads that share this, one or several, and have returned nothing. None of them is at work meanwhile.
    ///
    /// # Errors
    /// A damaged record; the engine.
    pub(crate) async fn look_ahead_jointly(&self, store: &dyn Store, reads: &[(&Frame, Scan)]) -> Result<()> {
        let before = self.take_in_superseded().await?;
        {
            // What an earlier look has found may have ended since.
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

    /// Whether a read ended to begin again, because a batch ended so late that the read may have missed rows of it.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Acquire)
    }

    /// Takes in the list of superseded batches; returns what was known of it before.
    async fn take_in_superseded(&self) -> Result<Arc<HashSet<BatchId>>> {
        let known = self.dataset.superseded().await?;
        let mut state = self.state_mut();
        state.unsettled = known.unsettled;
        Ok(std::mem::replace(&mut state.superseded, known.batches))
    }

    /// Decides about every batch in the heads of all that `scan` covers.
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
                let shown = !before.contains(&batch);
                let chosen = match records.get(&batch) {
                    Some(record) => self.choice_beside(frame, batch, record, (taken, shown)).await?,
                    None => None,
                };
                self.choose([(batch, chosen)].into_iter());
            }
        }
        Ok(())
    }

    /// The attempt at a batch that a read shows which has returned chunks before; `shown` tells whether it may have returned some of the
    /// attempt that counted when it began.
    async fn choice_beside(
        &self,
        frame: &Frame,
        batch: BatchId,
        record: &BatchRecord,
        (taken, shown): ((SliceId, Tile), bool),
    ) -> Result<Option<Origin>> {
        let current = record.counting(batch);
        if record.ended_us < self.late_us {
            return Ok(current);
        }
        let parts = catalog::parts(self.dataset.store(), &frame.dataset, batch).await?;
        let (own, _) = record.own_parts(parts);
        let here = own
            .iter()
            .flat_map(|part| &part.refs)
            .filter(|chunk| frame.spec.has_window(chunk.key.slice, chunk.key.tile.window));
        let missed = here.into_iter().any(|chunk| (chunk.key.slice, chunk.key.tile) <= taken);
        match &record.previous {
            None if missed => Ok(None),
            Some(previous) if missed || shown => {
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

    fn unknown_to<'a>(&self, state: &State, heads: impl Iterator<Item = &'a Head>) -> HashSet<Origin> {
        self.dataset.counting(|counting| {
            let mut unknown = HashSet::new();
            for head in heads {
                let consolidated = head.origins.len() > 1;
                let is_unknown = |origin: &&Origin| {
                    let settled = consolidated && origin.written_us < self.late_us;
                    // What was found out since this read began may have ended since.
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
            let superseded = state.superseded.clone();
            self.dataset.remember_counting(counting.filter(|origin| !superseded.contains(&origin.batch)));
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

    /// Whether rows of this attempt do not count.
    pub(crate) fn hides(&self, origin: &Origin) -> bool {
        self.hides.load(Ordering::Acquire) && self.state().hides(origin)
    }

    /// Whether some rows of a chunk of this head do not count.
    pub(crate) fn hides_rows_of(&self, head: &Head) -> bool {
        if !self.hides.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state();
        head.origins.iter().any(|origin| state.hides(origin))
    }

    /// Whether no row of a chunk of this head counts.
    pub(crate) fn hides_all_of(&self, head: &Head) -> bool {
        if !self.hides.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state();
        head.origins.iter().all(|origin| state.hides(origin))
    }

    /// Whether a chunk of this head may be consolidated with others: all of its rows count, also for reads that run already.
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

/// What a read knows of attempts as it begins.
pub(crate) struct Beginning {
    dataset: Dataset,
    began: Instant,
    late_us: i64,
    superseded: KnownSuperseded,
}

impl Beginning {
    /// For one read.
    pub(crate) fn alone(self) -> Arc<Visibility> {
        self.visibility(false)
    }

    /// For reads that return nothing before all of them have ended. Those of several datasets of a group show the same batches.
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
    /// What a read that begins now knows of attempts.
    pub(crate) async fn begin_read(&self) -> Result<Beginning> {
        let (dataset, began, late_us) = (self.clone(), Instant::now(), self.clock().about_now_us() - LATE_US);
        Ok(Beginning { dataset, began, late_us, superseded: self.superseded().await? })
    }

    /// As [`Self::begin_read`], for one read.
    pub(crate) async fn visibility(&self) -> Result<Arc<Visibility>> {
        Ok(self.begin_read().await?.alone())
    }

    /// The records of those of the batches that have one.
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
        let found = stream::iter(batches).map(look_up).buffer_unordered(LOOKED_UP_AT_ONCE);
        found.try_filter_map(|found| std::future::ready(Ok(found))).try_collect().await
    }

    /// Notes attempts that count.
    pub(crate) fn remember_counting(&self, origins: impl Iterator<Item = Origin>) {
        let now = Instant::now();
        self.counting(|counting| {
            if counting.len() > REMEMBERED {
                counting.clear();
            }
            origins.for_each(|origin| _ = counting.entry(origin).or_insert(now));
        });
    }
}
