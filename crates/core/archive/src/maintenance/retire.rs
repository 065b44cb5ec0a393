//! Dropping slices, also such that are in use: what a slice is dropped with is exactly what was reported, and no row of a write
//! that was acknowledged goes unseen.

use std::collections::{BTreeMap, BTreeSet};

use chronotile_chunk::Origin;
use chronotile_store::{Cells, DropSlice, Expect, RecordPut, Scan, StoreError, TileStatistics};
use chronotile_types::{Duration, Instant, SliceId, TimeRange, Window};
use futures::TryStreamExt;
use xxhash_rust::xxh3::xxh3_128;

use crate::LOG;
use crate::catalog::clock;
use crate::catalog::fence::{Closed, Observed};
use crate::catalog::{self, Retired};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::report::SliceInfo;
use crate::request::RetireLimit;
use crate::time_axis::Bounds;

/// Tries to drop a slice that others keep writing to.
const TRIES: usize = 5;
/// Looks at what a slice holds, in one try.
const LOOKS: usize = 20;

/// A slice to drop, with the fingerprint it must have; any where `None`.
type Wanted = (SliceId, Option<u128>);

/// What became of a slice.
enum Fate {
    Dropped(SliceInfo),
    /// It holds something else than it was to hold.
    Changed,
    /// Somebody wrote to it, and goes by its staying.
    Opened,
}

/// Attempts that do not count, of which a slice holds rows.
#[derive(Default)]
struct Pending {
    /// Names all of them: once one of them counts, a read of the slice gives other rows though it holds the same chunks.
    attempts: String,
    /// Whether one of them may count later.
    may_count: bool,
}

/// What was known of slices before chunks were taken out of them.
pub(crate) struct Watch {
    slices: BTreeSet<SliceId>,
    retired: BTreeMap<SliceId, i64>,
    pub seen: Observed,
}

impl Dataset {
    /// Drops the slices that lie wholly before the limit and returns them with what they held, oldest first; with `dry_run`
    /// says which they would be and drops none. A slice goes as a whole, so rows stay up to one slice longer than the limit
    /// asks. Rows that others write meanwhile are dropped too, and counted, or their write is refused.
    ///
    /// # Errors
    /// A limit by retention where the dataset has none; a slice that others keep writing to; the engine.
    pub async fn retire(&self, limit: RetireLimit, dry_run: bool) -> Result<Vec<SliceInfo>> {
        self.refresh().await?;
        let frame = self.frame();
        let limit = TimeRange { start: None, end: Some(limit_of(&frame, limit)?) };
        let limit = Bounds::new(&frame.spec, &limit)?;
        let mut slices = self.slices().await?;
        slices.retain(|slice| limit.ends_after(frame.spec.slice_ticks(*slice).1));
        if !dry_run {
            let all = slices.into_iter().map(|slice| (slice, None)).collect();
            return Ok(numbered(&frame, self.seeing_every_write().drop_slices(&frame, all).await?));
        }
        let mut retired = Vec::new();
        let token = self.change_token().await?;
        for slice in slices {
            let tiles = self.store().statistics(&frame.dataset, slice).await?;
            // Looked up after the tiles: what these hold counts by now, or is pending.
            let changes = format!("{token}{}", self.pending(&frame, slice).await?.attempts);
            retired.push(self.slice_info(&frame, slice, &tiles, &changes));
        }
        Ok(numbered(&frame, retired))
    }

    /// Drops those of the slices that hold exactly what they held when they had these fingerprints, and returns them, oldest
    /// first. Others stay as they are.
    ///
    /// # Errors
    /// A slice that others keep writing to; the engine.
    pub async fn retire_unchanged(&self, slices: &[(SliceId, u128)]) -> Result<Vec<SliceInfo>> {
        self.refresh().await?;
        let frame = self.frame();
        let wanted = slices.iter().map(|(slice, print)| (frame.spec.slice_numbered(slice.0), Some(*print))).collect();
        Ok(numbered(&frame, self.seeing_every_write().drop_slices(&frame, wanted).await?))
    }

    async fn drop_slices(&self, frame: &Frame, mut left: Vec<Wanted>) -> Result<Vec<SliceInfo>> {
        let name = &frame.spec.name;
        self.end_drops(frame).await?;
        let mut dropped: Vec<SliceInfo> = Vec::new();
        for _ in 0..TRIES {
            if left.is_empty() {
                break;
            }
            let slices: Vec<SliceId> = left.iter().map(|(slice, _)| *slice).collect();
            let closed = self.fence().close(&frame.dataset, &slices).await?;
            let tried = self.try_to_drop(frame, &closed, left, &mut dropped).await;
            let gone: Vec<SliceId> = dropped.iter().map(|info| info.slice).collect();
            let opened = self.fence().open(&frame.dataset, &slices, &gone, &closed).await;
            left = tried?;
            opened?;
        }
        if let Some((slice, _)) = left.first() {
            return Err(ArchiveError::SliceInUse { dataset: name.clone(), slice: *slice });
        }
        dropped.sort_by_key(|info| info.slice);
        Ok(dropped)
    }

    /// Drops closed slices; returns those that somebody has opened.
    async fn try_to_drop(
        &self,
        frame: &Frame,
        closed: &Closed,
        slices: Vec<Wanted>,
        dropped: &mut Vec<SliceInfo>,
    ) -> Result<Vec<Wanted>> {
        let mut left = Vec::new();
        for (slice, print) in slices {
            match self.drop_slice(frame, closed, slice, print).await? {
                Fate::Dropped(info) => dropped.push(info),
                Fate::Changed if print.is_some() => {}
                Fate::Changed | Fate::Opened => left.push((slice, print)),
            }
        }
        Ok(left)
    }

    async fn drop_slice(&self, frame: &Frame, closed: &Closed, slice: SliceId, print: Option<u128>) -> Result<Fate> {
        for _ in 0..LOOKS {
            let tiles = self.store().statistics(&frame.dataset, slice).await?;
            // Whoever takes chunks away says so before: where these are gone, this is another.
            let (token, unchanged) = self.unchanged().await?;
            let pending = if print.is_some() { self.pending(frame, slice).await? } else { Pending::default() };
            let changes = format!("{token}{}", pending.attempts);
            let info = self.slice_info(frame, slice, &tiles, &changes);
            if pending.may_count || print.is_some_and(|print| print != info.fingerprint) {
                return Ok(Fate::Changed);
            }
            let Some(record) = self.fence().dropping(&frame.dataset, slice, closed).await? else {
                return Ok(Fate::Opened);
            };
            let before = vec![record, self.note_retired(frame, slice).await?, unchanged];
            let when = DropSlice { holding: Some(tiles), before };
            match self.store().drop_slice(&frame.dataset, slice, when).await {
                Ok(()) => {
                    self.known_slices(|known| known.remove(&slice));
                    return Ok(Fate::Dropped(info));
                }
                Err(StoreError::SliceConflict { .. } | StoreError::RecordConflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Fate::Changed)
    }

    /// The attempts of which a slice holds rows that do not count, where the end of an attempt changes nothing that a drop compares.
    async fn pending(&self, frame: &Frame, slice: SliceId) -> Result<Pending> {
        if !self.puts_unclaimed() {
            return Ok(Pending::default());
        }
        let windows = (Window(i32::MIN), Window(i32::MAX));
        let scan = Scan { slices: vec![slice], cells: Cells::All, windows, bodies: false, older: true };
        let visible = self.visibility().await?;
        let mut heads = self.store().scan(&frame.dataset, scan).await?;
        let mut hidden = BTreeSet::new();
        while let Some(chunks) = heads.try_next().await? {
            let heads = chunks.iter().map(|chunk| frame.head(chunk)).collect::<Result<Vec<_>>>()?;
            let _ = visible.decide_now(heads.iter()).await?;
            let origins = heads.iter().flat_map(|head| head.origins.iter()).filter(|origin| visible.hides(origin));
            hidden.extend(origins.copied());
        }
        let records = self.records_of(hidden.iter().map(|origin| origin.batch).collect()).await?;
        let alive_us = self.clock().about_now_us() - catalog::EXPIRES_US;
        let is_later = |Origin { batch, written_us, .. }: &Origin| {
            *written_us > alive_us && records.get(batch).is_none_or(|record| *written_us > record.written_us)
        };
        let may_count = hidden.iter().any(is_later);
        let name = |origin: &Origin| format!("{}{}{}", origin.batch, origin.written_us, origin.token);
        let attempts = hidden.iter().map(name).collect();
        Ok(Pending { attempts, may_count })
    }

    /// Begins to take chunks out of slices.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] where one of the slices is being dropped.
    pub(crate) async fn watch(&self, slices: BTreeSet<SliceId>) -> Result<Watch> {
        let name = &self.frame().dataset.name;
        // A drop that begins after the notes were read is seen, or noted later.
        let retired = self.retired_since(slices.clone(), i64::MIN).await?;
        let seen = self.fence().look().await?;
        match slices.iter().find(|slice| seen.is_dropping(name, **slice)) {
            Some(slice) => Err(ArchiveError::SliceRetired { dataset: name.clone(), slice: *slice }),
            None => Ok(Watch { slices, retired, seen }),
        }
    }

    /// Whether nobody dropped one of the slices with what it held before chunks were taken out of it: who keeps slices
    /// elsewhere has what they held. To be called once the chunks are gone.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] where somebody did, or may do so still.
    pub(crate) async fn nothing_dropped(&self, watch: &Watch) -> Result<()> {
        let home = &self.frame().dataset;
        if self.fence().pass(home, &watch.slices).await?.token() == watch.seen.token() {
            return Ok(());
        }
        let retired = self.retired_since(watch.slices.clone(), i64::MIN).await?;
        match retired.iter().find(|(slice, retired_us)| watch.retired.get(slice) != Some(retired_us)) {
            Some((slice, _)) => Err(ArchiveError::SliceRetired { dataset: home.name.clone(), slice: *slice }),
            None => Ok(()),
        }
    }

    /// Records that a slice is dropped, should later rows make it begin anew.
    async fn note_retired(&self, frame: &Frame, slice: SliceId) -> Result<RecordPut> {
        let key = catalog::retired_key(&frame.dataset, slice);
        let value = catalog::to_json(&key, &Retired { retired_us: self.stamp_us().await? })?;
        Ok(catalog::put(key, value, Expect::Any))
    }

    /// Ends drops that were cut off: their slices take no rows until then.
    async fn end_drops(&self, frame: &Frame) -> Result<()> {
        let name = &frame.spec.name;
        if !self.fence().needs_closing() {
            return Ok(());
        }
        for slice in self.fence().look().await?.dropping(&frame.dataset.name) {
            if !frame.spec.has_slice(slice) {
                continue;
            }
            let Some((closed, record)) = self.fence().take_over(&frame.dataset, slice).await? else { continue };
            tracing::info!(target: LOG, dataset = %name, slice = slice.0, "finishing the drop of a slice that was cut off");
            let when = DropSlice { holding: None, before: vec![record, self.note_retired(frame, slice).await?] };
            match self.store().drop_slice(&frame.dataset, slice, when).await {
                Ok(()) => self.fence().open(&frame.dataset, &[slice], &[slice], &closed).await?,
                // Somebody else is at it.
                Err(StoreError::RecordConflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.known_slices(|known| known.remove(&slice));
        }
        Ok(())
    }
}

/// Slices by their numbers among those of the dataset alone.
pub(crate) fn numbered(frame: &Frame, mut slices: Vec<SliceInfo>) -> Vec<SliceInfo> {
    slices.iter_mut().for_each(|info| info.slice = SliceId(frame.spec.own_slice(info.slice)));
    slices
}

fn limit_of(frame: &Frame, limit: RetireLimit) -> Result<Instant> {
    let before_now =
        |age: Duration| Instant::UtcNanoseconds(clock::now_ns() - i128::from(age.seconds()) * 1_000_000_000);
    let unlimited = || frame.refuse("it has no retention: give a limit, or set one with set_retention");
    Ok(match limit {
        RetireLimit::Before(instant) => instant,
        RetireLimit::OlderThan(age) => before_now(age),
        RetireLimit::Retention => before_now(frame.spec.retention.ok_or_else(unlimited)?),
    })
}

/// Tells what slices hold apart: it differs as soon as one has another chunk. With the token of changes it differs also where a
/// batch came and was removed in between, whose rows somebody may have read.
pub(crate) fn fingerprint(tiles: &[TileStatistics], changes: &str) -> u128 {
    let mut bytes = Vec::with_capacity(tiles.len() * 36 + changes.len());
    bytes.extend_from_slice(changes.as_bytes());
    for tile in tiles {
        bytes.extend_from_slice(&tile.tile.cell.0.to_be_bytes());
        bytes.extend_from_slice(&tile.tile.window.0.to_be_bytes());
        bytes.extend_from_slice(&tile.chunks.to_be_bytes());
        bytes.extend_from_slice(&tile.ids.to_be_bytes());
    }
    xxh3_128(&bytes)
}
