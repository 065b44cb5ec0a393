//! Drops slices, also while they are in use. The report of a dropped slice covers exactly its content: no row of an
//! acknowledged write is dropped unreported.

use std::collections::{BTreeMap, BTreeSet};

use chronotile_chunk::Origin;
use chronotile_store::{Cells, DropSlice, Expect, RecordPut, Scan, StoreError, TileStatistics, Windows};
use chronotile_types::{DatasetName, Duration, Instant, SliceId, TimeRange};
use futures::TryStreamExt;
use futures::future::join_all;
use xxhash_rust::xxh3::xxh3_128;

use crate::LOG;
use crate::catalog::fence::{Closed, Observed};
use crate::catalog::{self, Retired};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::group::Group;
use crate::report::SliceInfo;
use crate::request::RetireLimit;
use crate::time_axis::Bounds;

/// Tries to drop a slice that other processes keep writing to.
const TRIES: usize = 5;
/// How often one try reads the content of a slice.
const LOOKS: usize = 20;

/// A slice to drop, with the fingerprint it must have; `None` accepts any.
type DropTarget = (SliceId, Option<u128>);

/// Outcome of the drop of a slice.
enum DropOutcome {
    /// Dropped; with its content, by dataset.
    Dropped(Vec<SliceInfo>),
    /// Its content differs from what the caller expects.
    Changed,
    /// A writer has reopened it and relies on it.
    Opened,
}

/// Attempts that do not count and have rows in a slice.
#[derive(Default)]
struct Pending {
    /// The names of all of them. Once one of them counts, a read of the slice returns other rows, though the chunks are
    /// the same.
    attempts: String,
    /// Whether one of them may count later, or counts by now.
    may_count: bool,
}

/// The state of slices before chunks are removed from them.
pub(crate) struct SliceWatch {
    slices: BTreeSet<SliceId>,
    retired: BTreeMap<SliceId, i64>,
    pub observed: Observed,
}

impl Dataset {
    /// Drops the slices that end before the limit and returns them with their content, oldest first. With `dry_run` it
    /// only returns the slices that it would drop. Slices are dropped as a whole, so rows may stay up to one slice
    /// longer than the limit. Rows that others write meanwhile are dropped and counted too, or their write is refused.
    ///
    /// # Errors
    /// A limit by retention where the dataset has none; a slice that others keep writing to; a dataset that is dropped
    /// meanwhile; the engine.
    ///
    /// A dry run also lists slices that other datasets share. To drop those, call [`crate::Group::retire`].
    pub async fn retire(&self, limit: RetireLimit, dry_run: bool) -> Result<Vec<SliceInfo>> {
        self.refresh().await?;
        let frame = self.frame();
        if !dry_run {
            self.check_unshared()?;
        }
        let frames = [frame];
        let retired = self.retire_before(&frames, limit_of(&frames, limit)?, dry_run).await?;
        Ok(retired.into_iter().flatten().collect())
    }

    /// Drops the slices, shared by these datasets, that end before the limit, or with `dry_run` only finds them. By
    /// dataset.
    async fn retire_before(&self, frames: &[Frame], limit: Instant, dry_run: bool) -> Result<Vec<Vec<SliceInfo>>> {
        let frame = &frames[0];
        let limit = Bounds::new(&frame.spec, &TimeRange { start: None, end: Some(limit) })?;
        let mut slices = self.slices().await?;
        slices.retain(|slice| limit.ends_after(frame.spec.slice_ticks(*slice).1));
        if !dry_run {
            let all = slices.into_iter().map(|slice| (slice, None)).collect();
            return self.seeing_every_write().drop_slices(frames, all).await;
        }
        let mut retired = Vec::new();
        let token = self.change_token().await?;
        // Read before the content of the slices, so that a later drop is noticed.
        let dropped = self.retired_since(slices.iter().copied().collect(), i64::MIN).await?;
        let mut found = self.statistics_of(frame, slices);
        while let Some((slice, tiles)) = found.try_next().await? {
            // Read after the tiles, so that each of their rows counts by now or is pending.
            let pending = self.pending(frame, slice).await?.attempts;
            let changes = format!("{token}{}{pending}", retired_text(&dropped, slice));
            retired.push(self.slice_infos(frames, slice, &tiles, &changes));
        }
        // Slices of a dataset that was created under the name meanwhile may end after the limit.
        self.as_defined(frames).await?;
        Ok(by_dataset(frames, retired))
    }

    pub(super) fn slice_infos(
        &self,
        frames: &[Frame],
        slice: SliceId,
        tiles: &[TileStatistics],
        changes: &str,
    ) -> Vec<SliceInfo> {
        frames.iter().map(|frame| self.slice_info(frame, slice, tiles, changes)).collect()
    }

    /// Refuses to drop slices that also hold rows of other datasets.
    fn check_unshared(&self) -> Result<()> {
        let names: Vec<String> = self.shares_slices_with().iter().map(DatasetName::to_string).collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(self.frame().refuse(format!(
            "its slices also hold rows of {}, which are dropped with them: retire them together, from their group",
            names.join(", ")
        )))
    }

    /// Drops those slices whose content still has the given fingerprint, and returns them, oldest first. Keeps the
    /// others.
    ///
    /// # Errors
    /// A slice that others keep writing to; the engine.
    pub async fn retire_unchanged(&self, slices: &[(SliceId, u128)]) -> Result<Vec<SliceInfo>> {
        self.refresh().await?;
        self.check_unshared()?;
        let frame = self.frame();
        Ok(self.drop_unchanged(&[frame], slices).await?.into_iter().flatten().collect())
    }

    async fn drop_unchanged(&self, frames: &[Frame], slices: &[(SliceId, u128)]) -> Result<Vec<Vec<SliceInfo>>> {
        let spec = &frames[0].spec;
        let wanted = slices.iter().map(|(slice, print)| (spec.slice_numbered(slice.0), Some(*print))).collect();
        self.seeing_every_write().drop_slices(frames, wanted).await
    }

    /// Drops slices shared by these datasets; returns what was dropped, by dataset.
    async fn drop_slices(&self, frames: &[Frame], mut left: Vec<DropTarget>) -> Result<Vec<Vec<SliceInfo>>> {
        let frame = &frames[0];
        let name = &frame.spec.name;
        self.end_drops(frame).await?;
        let mut dropped: Vec<Vec<SliceInfo>> = Vec::new();
        for _ in 0..TRIES {
            if left.is_empty() {
                break;
            }
            let slices: Vec<SliceId> = left.iter().map(|(slice, _)| *slice).collect();
            let closed = self.fence().close(&frame.dataset, &slices).await?;
            let tried = self.try_to_drop(frames, &closed, left, &mut dropped).await;
            let gone: Vec<SliceId> = dropped.iter().map(|infos| infos[0].slice).collect();
            // Slices are opened after a failed try too, so that none stays closed; the error of the try is reported
            // first.
            let opened = self.fence().open(&frame.dataset, &slices, &gone, &closed).await;
            left = tried?;
            opened?;
        }
        if let Some((slice, _)) = left.first() {
            return Err(ArchiveError::SliceInUse { dataset: name.clone(), slice: *slice });
        }
        dropped.sort_by_key(|infos| infos[0].slice);
        Ok(by_dataset(frames, dropped))
    }

    /// Drops closed slices; returns those that a writer has reopened.
    async fn try_to_drop(
        &self,
        frames: &[Frame],
        closed: &Closed,
        slices: Vec<DropTarget>,
        dropped: &mut Vec<Vec<SliceInfo>>,
    ) -> Result<Vec<DropTarget>> {
        let mut left = Vec::new();
        for (slice, print) in slices {
            match self.drop_slice(frames, closed, slice, print).await? {
                DropOutcome::Dropped(infos) => dropped.push(infos),
                DropOutcome::Changed if print.is_some() => {}
                DropOutcome::Changed | DropOutcome::Opened => left.push((slice, print)),
            }
        }
        Ok(left)
    }

    async fn drop_slice(
        &self,
        frames: &[Frame],
        closed: &Closed,
        slice: SliceId,
        print: Option<u128>,
    ) -> Result<DropOutcome> {
        let frame = &frames[0];
        for _ in 0..LOOKS {
            // Read first, so that a later drop by another process is noticed.
            let Some(record) = self.fence().dropping(&frame.dataset, slice, closed).await? else {
                return Ok(DropOutcome::Opened);
            };
            let dropped = self.retired_since(BTreeSet::from([slice]), i64::MIN).await?;
            let tiles = self.store().statistics(&frame.dataset, slice).await?;
            // Processes change the token before they remove chunks: if chunks of `tiles` are gone, the token has
            // changed.
            let (token, unchanged) = self.unchanged().await?;
            // Only a caller that gives a fingerprint relies on the rows that a read of the slice returned before.
            let pending = if print.is_some() { self.pending(frame, slice).await? } else { Pending::default() };
            let changes = format!("{token}{}{}", retired_text(&dropped, slice), pending.attempts);
            let infos = self.slice_infos(frames, slice, &tiles, &changes);
            if pending.may_count || print.is_some_and(|print| print != infos[0].fingerprint) {
                return Ok(DropOutcome::Changed);
            }
            // The definition says which slices end before the limit.
            let mut before = self.as_defined(frames).await?;
            before.extend([record, self.note_retired(frame, slice).await?, unchanged]);
            let when = DropSlice { holding: Some(tiles), before };
            match self.store().drop_slice(&frame.dataset, slice, when).await {
                Ok(()) => {
                    // The next write of this process to the slice must create it again.
                    self.known_slices(|known| known.remove(&slice));
                    return Ok(DropOutcome::Dropped(infos));
                }
                Err(StoreError::SliceConflict { .. } | StoreError::RecordConflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(DropOutcome::Changed)
    }

    /// Attempts with rows in the slice that do not count. Empty on engines where a drop notices the end of an attempt
    /// anyway.
    async fn pending(&self, frame: &Frame, slice: SliceId) -> Result<Pending> {
        if !self.fence().needs_closing() {
            return Ok(Pending::default());
        }
        let windows = Windows::ALL;
        let scan = Scan { slices: vec![slice], cells: Cells::All, windows, bodies: false, older: true };
        let visible = self.visibility().await?;
        let all = frame.dataset.together(self.sharers().iter().map(|sharer| &sharer.dataset));
        let mut heads = self.store().scan(&all, scan).await?;
        let mut hidden = BTreeSet::new();
        while let Some(chunks) = heads.try_next().await? {
            let heads = chunks.iter().map(|chunk| frame.head(chunk)).collect::<Result<Vec<_>>>()?;
            let _ = visible.decide_now(heads.iter()).await?;
            let origins = heads.iter().flat_map(|head| head.origins.iter()).filter(|origin| visible.hides(origin));
            hidden.extend(origins.copied());
        }
        let records = self.records_of(hidden.iter().map(|origin| origin.batch).collect()).await?;
        // An attempt that does not count may still begin to: for a day after it began, and unless the batch has a
        // record with a later stamp.
        let alive_us = self.clock().about_now_us() - catalog::EXPIRES_US;
        let may_count = hidden.iter().any(|origin| {
            let is_alive = origin.written_us > alive_us;
            records.get(&origin.batch).map_or(is_alive, |record| {
                // It may have begun to count since the heads were read.
                record.counting(origin.batch) == Some(*origin) || is_alive && origin.written_us > record.written_us
            })
        });
        let name = |origin: &Origin| format!("{}{}{}", origin.batch, origin.written_us, origin.token);
        let attempts = hidden.iter().map(name).collect();
        Ok(Pending { attempts, may_count })
    }

    /// Records the state of slices before chunks are removed from them.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] if one of the slices is being dropped.
    pub(crate) async fn watch(&self, slices: BTreeSet<SliceId>) -> Result<SliceWatch> {
        let name = &self.frame().dataset.name;
        // A drop that begins after this read shows in the fence below, or in a later `retired` record.
        let retired = self.retired_since(slices.clone(), i64::MIN).await?;
        let observed = self.fence().read().await?;
        match slices.iter().find(|slice| observed.is_dropping(name, **slice)) {
            Some(slice) => Err(ArchiveError::SliceRetired { dataset: name.clone(), slice: *slice }),
            None => Ok(SliceWatch { slices, retired, observed }),
        }
    }

    /// Checks that no watched slice was dropped together with the chunks that were to be removed: a process that moves
    /// slices elsewhere would have copied those chunks. Call it once the chunks are gone.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] if a slice was dropped, or still may be.
    pub(crate) async fn nothing_dropped(&self, watch: &SliceWatch) -> Result<()> {
        let home = &self.frame().dataset;
        // Closing and dropping change the token. If it is the same, no slice was dropped since the watch, and the
        // records of drops need not be read.
        if self.fence().ensure_open(home, &watch.slices).await?.token() == watch.observed.token() {
            return Ok(());
        }
        let retired = self.retired_since(watch.slices.clone(), i64::MIN).await?;
        match retired.iter().find(|(slice, retired_us)| watch.retired.get(slice) != Some(retired_us)) {
            Some((slice, _)) => Err(ArchiveError::SliceRetired { dataset: home.name.clone(), slice: *slice }),
            None => Ok(()),
        }
    }

    /// The record that a slice was dropped, in case later rows create it again.
    async fn note_retired(&self, frame: &Frame, slice: SliceId) -> Result<RecordPut> {
        let key = catalog::retired_key(&frame.dataset, slice);
        let value = catalog::to_json(&key, &Retired { retired_us: self.stamp_us().await? })?;
        Ok(catalog::put(key, value, Expect::Any))
    }

    /// Completes interrupted drops; until then their slices accept no rows.
    async fn end_drops(&self, frame: &Frame) -> Result<()> {
        let name = &frame.spec.name;
        if !self.fence().needs_closing() {
            return Ok(());
        }
        for slice in self.fence().read().await?.dropping(&frame.dataset.name) {
            if !frame.spec.has_slice(slice) {
                continue;
            }
            let Some((closed, record)) = self.fence().take_over(&frame.dataset, slice).await? else { continue };
            tracing::info!(target: LOG, dataset = %name, slice = slice.0, "finishing the interrupted drop of a slice");
            // Nothing is compared again: a slice is marked as being dropped only after its content was compared, and
            // accepts no rows from then on.
            let when = DropSlice { holding: None, before: vec![record, self.note_retired(frame, slice).await?] };
            match self.store().drop_slice(&frame.dataset, slice, when).await {
                Ok(()) => self.fence().open(&frame.dataset, &[slice], &[slice], &closed).await?,
                // Another process is completing it.
                Err(StoreError::RecordConflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.known_slices(|known| known.remove(&slice));
        }
        Ok(())
    }
}

impl Group {
    /// Drops slices as [`Dataset::retire`] does, for datasets that share them; all of these must be named. A limit by
    /// retention is the longest retention among them. Returns by dataset what was dropped or, with `dry_run`, what
    /// would be.
    ///
    /// # Errors
    /// A dataset that is not in the group, or shares its slices with one that is not named; as [`Dataset::retire`].
    pub async fn retire(
        &self,
        names: &[&str],
        limit: RetireLimit,
        dry_run: bool,
    ) -> Result<Vec<(DatasetName, Vec<SliceInfo>)>> {
        let sets = self.sharing(names).await?;
        let retire = async |(dataset, frames): &(Dataset, Vec<Frame>)| {
            let limit = limit_of(frames, limit)?;
            dataset.retire_before(frames, limit, dry_run).await
        };
        // Concurrently: on a cluster each waits until writers notice. `join_all` lets the others finish if one fails.
        let found = join_all(sets.iter().map(retire)).await;
        let mut retired = Vec::new();
        for ((_, frames), found) in sets.iter().zip(found) {
            retired.extend(frames.iter().map(|frame| frame.spec.name.clone()).zip(found?));
        }
        Ok(retired)
    }

    /// Drops slices as [`Dataset::retire_unchanged`] does, for datasets that share them; all of these must be named.
    ///
    /// # Errors
    /// Datasets that do not share their slices, or share them with one that is not named; as
    /// [`Dataset::retire_unchanged`].
    pub async fn retire_unchanged(
        &self,
        names: &[&str],
        slices: &[(SliceId, u128)],
    ) -> Result<Vec<(DatasetName, Vec<SliceInfo>)>> {
        let mut sharing = self.sharing(names).await?;
        let Some((dataset, frames)) = sharing.pop().filter(|_| sharing.is_empty()) else {
            let reason = format!("{} do not share their slices: retire them one after the other", names.join(", "));
            return Err(self.first().frame().refuse(reason));
        };
        let dropped = dataset.drop_unchanged(&frames, slices).await?;
        Ok(frames.iter().map(|frame| frame.spec.name.clone()).zip(dropped).collect())
    }

    /// As [`Self::by_slices`].
    ///
    /// # Errors
    /// A dataset that shares its slices with one that is not named.
    async fn sharing(&self, names: &[&str]) -> Result<Vec<(Dataset, Vec<Frame>)>> {
        let sets = self.by_slices(names).await?;
        for (dataset, frames) in &sets {
            let is_named = |name: &DatasetName| frames.iter().any(|frame| frame.spec.name == *name);
            if let Some(missing) = dataset.shares_slices_with().into_iter().find(|name| !is_named(name)) {
                let reason = format!("its slices also hold rows of {missing}: name {missing} too");
                return Err(dataset.frame().refuse(reason));
            }
        }
        Ok(sets)
    }

    /// Groups the named datasets by the slices that they share: one dataset of each set, and the frames of all its
    /// named members.
    pub(super) async fn by_slices(&self, names: &[&str]) -> Result<Vec<(Dataset, Vec<Frame>)>> {
        self.first().refresh_together(self.datasets(), false).await?;
        let mut sets: Vec<(Dataset, Vec<Frame>)> = Vec::new();
        for name in names {
            let dataset = self.dataset(name)?;
            let frame = dataset.frame();
            match sets.iter_mut().find(|(_, frames)| frames[0].spec.slices_name() == frame.spec.slices_name()) {
                Some((_, frames)) if frames.iter().any(|other| other.spec.name == frame.spec.name) => {}
                Some((_, frames)) => frames.push(frame),
                None => sets.push((dataset.clone(), vec![frame])),
            }
        }
        Ok(sets)
    }
}

/// Regroups slice infos from by slice to by dataset, and numbers each slice as its dataset does.
pub(super) fn by_dataset(frames: &[Frame], slices: Vec<Vec<SliceInfo>>) -> Vec<Vec<SliceInfo>> {
    let mut found: Vec<Vec<SliceInfo>> = frames.iter().map(|_| Vec::with_capacity(slices.len())).collect();
    for infos in slices {
        for (found, info) in found.iter_mut().zip(infos) {
            found.push(info);
        }
    }
    for (frame, infos) in frames.iter().zip(&mut found) {
        infos.iter_mut().for_each(|info| info.slice = SliceId(frame.spec.own_slice(info.slice)));
    }
    found
}

/// When a slice was last dropped, as text; empty if never. It distinguishes a slice that was filled and dropped since,
/// and may have been read in between, from one that was empty all the time.
pub(crate) fn retired_text(retired: &BTreeMap<SliceId, i64>, slice: SliceId) -> String {
    retired.get(&slice).map_or_else(String::new, i64::to_string)
}

/// The time before which slices of these datasets are retired. By retention, the longest of theirs decides.
fn limit_of(frames: &[Frame], limit: RetireLimit) -> Result<Instant> {
    let now_ns = i128::from(frames[0].clock.about_now_us()) * 1_000;
    let before_now = |age: Duration| Instant::UtcNanoseconds(now_ns - i128::from(age.seconds()) * 1_000_000_000);
    let retention = |frame: &Frame| {
        let unlimited = || frame.refuse("it has no retention: give a limit, or set one with set_retention");
        frame.spec.retention.ok_or_else(unlimited)
    };
    Ok(match limit {
        RetireLimit::Before(instant) => instant,
        RetireLimit::OlderThan(age) => before_now(age),
        RetireLimit::Retention => {
            let ages = frames.iter().map(retention).collect::<Result<Vec<_>>>()?;
            before_now(ages.into_iter().reduce(Duration::max).ok_or_else(|| frames[0].refuse("no dataset"))?)
        }
    })
}

/// A fingerprint of the content of a slice: it differs if any chunk differs. `changes` makes it differ also if a batch
/// was written and removed in between, or the slice was dropped, since somebody may have read those rows.
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
