//! Looking after a dataset: statistics, retention, verification.

use std::collections::{HashMap, HashSet};

use chronotile_chunk::{Body, Columns, Head};
use chronotile_store::{Cells, Chunk, ChunkKey, Commit, Expect, Scan, TileStatistics};
use chronotile_types::{BatchId, ChunkId, Damage, Instant, SliceId, Tile, TimeRange, Window};
use futures::TryStreamExt;
use rayon::prelude::*;

use crate::catalog::{self, Retired};
use crate::cells::cells_of;
use crate::clock;
use crate::consolidate::Progress;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::frame::{Frame, binding};
use crate::read::on_pool;
use crate::report::{DamageReport, DatasetInfo, SliceInfo, Spread, VerifyReport};
use crate::request::RetireLimit;
use crate::time_axis::{Bounds, place_rows};

impl Dataset {
    /// Statistics of every slice and of the sizes of tiles.
    pub async fn info(&self) -> Result<DatasetInfo> {
        let frame = self.frame();
        let mut tiles = Vec::new();
        let mut slices = Vec::new();
        for slice in self.store().slices(&frame.spec.name).await? {
            let found = self.store().statistics(&frame.spec.name, slice).await?;
            slices.push(self.slice_info(&frame, slice, &found));
            tiles.extend(found);
        }
        let largest = tiles.iter().max_by_key(|tile| tile.bytes).map(|tile| tile.tile);
        Ok(DatasetInfo {
            slices,
            tile_chunks: spread(tiles.iter().map(|tile| tile.chunks)),
            tile_rows: spread(tiles.iter().map(|tile| tile.rows)),
            tile_bytes: spread(tiles.iter().map(|tile| tile.bytes)),
            tile_largest: largest,
        })
    }

    fn slice_info(&self, frame: &Frame, slice: SliceId, tiles: &[TileStatistics]) -> SliceInfo {
        let good = self.store().capabilities().cell_bytes_good.unwrap_or(u64::MAX);
        // Tiles of a cell are neighbours, and so are cells that share a partition.
        let partition = |tile: &TileStatistics| frame.spec.partition_of(tile.tile.cell);
        let cells: Vec<u64> = tiles
            .chunk_by(|a, b| partition(a) == partition(b))
            .map(|cell| cell.iter().map(|tile| tile.bytes).sum())
            .collect();
        SliceInfo {
            slice,
            ticks: frame.spec.slice_ticks(slice),
            tiles: tiles.len() as u64,
            chunks: tiles.iter().map(|tile| tile.chunks).sum(),
            rows: tiles.iter().map(|tile| tile.rows).sum(),
            bytes: tiles.iter().map(|tile| tile.bytes).sum(),
            cell_bytes_max: cells.iter().copied().max().unwrap_or(0),
            cells_oversized: cells.iter().filter(|bytes| **bytes > good).count() as u64,
        }
    }

    /// Makes room for a period ahead of its writers, who on a cluster would otherwise wait for it; returns the slices that
    /// the period touches, oldest first, whether they were there already or not.
    ///
    /// # Errors
    /// A period without a start or an end, or of more than 1,000 slices; the engine.
    pub async fn prepare(&self, period: &TimeRange) -> Result<Vec<SliceId>> {
        const SLICES_MAX: usize = 1_000;
        let frame = self.frame();
        if period.start.is_none() || period.end.is_none() {
            return Err(frame.refuse("a period to prepare needs a start and an end"));
        }
        let (first, last) = Bounds::new(&frame.spec, period)?.windows(&frame.spec);
        if first > last || period.start == period.end {
            return Ok(vec![]);
        }
        let slices: Vec<SliceId> =
            (frame.spec.slice_of(first).0..=frame.spec.slice_of(last).0).map(SliceId).take(SLICES_MAX + 1).collect();
        if slices.len() > SLICES_MAX {
            return Err(frame.refuse("a period to prepare has at most 1,000 slices: give a shorter one"));
        }
        for slice in &slices {
            self.ensure_slices(&HashSet::from([*slice])).await?;
        }
        Ok(slices)
    }

    /// Drops the slices that lie wholly before the limit and returns them, oldest first; with `dry_run` says which they would
    /// be and drops none. A slice goes as a whole, so rows stay up to one slice longer than the limit asks.
    ///
    /// # Errors
    /// A limit by retention where the dataset has none; the engine.
    pub async fn retire(&self, limit: RetireLimit, dry_run: bool) -> Result<Vec<SliceInfo>> {
        self.refresh().await?;
        let frame = self.frame();
        let before_now = |age: chronotile_types::Duration| {
            Instant::UtcNanoseconds(clock::now_ns() - i128::from(age.seconds()) * 1_000_000_000)
        };
        let instant = match limit {
            RetireLimit::Before(instant) => instant,
            RetireLimit::OlderThan(age) => before_now(age),
            RetireLimit::Retention => before_now(
                frame
                    .spec
                    .retention
                    .ok_or_else(|| frame.refuse("it has no retention: give a limit, or set one with set_retention"))?,
            ),
        };
        let limit = Bounds::new(&frame.spec, &TimeRange { start: None, end: Some(instant) })?;
        let mut retired = Vec::new();
        for slice in self.store().slices(&frame.spec.name).await? {
            if limit.ends_after(frame.spec.slice_ticks(slice).1) {
                let tiles = self.store().statistics(&frame.spec.name, slice).await?;
                retired.push(self.slice_info(&frame, slice, &tiles));
            }
        }
        if !dry_run {
            for slice in &retired {
                self.note_retired(slice.slice).await?;
                self.store().drop_slice(&frame.spec.name, slice.slice).await?;
                self.known_slices(|known| known.remove(&slice.slice));
            }
        }
        Ok(retired)
    }

    /// Records that a slice is about to be dropped, should later rows make it begin anew.
    async fn note_retired(&self, slice: SliceId) -> Result<()> {
        let name = &self.spec().name;
        let key = catalog::retired_key(name, slice);
        let value = catalog::to_json(&key, &Retired { retired_us: self.stamp_us().await? })?;
        let before = vec![catalog::put(key, value, Expect::Any)];
        Ok(self.store().commit(name, Commit { before, ..Commit::default() }).await?)
    }

    /// Reads and decodes every chunk of the dataset, and looks for every chunk of every finished batch. `progress` is called
    /// with slices done and in all.
    ///
    /// # Errors
    /// The engine. Damage is no error here but part of the report.
    pub async fn verify(&self, progress: Option<Progress<'_>>) -> Result<VerifyReport> {
        self.refresh().await?;
        let frame = self.frame();
        let mut report = VerifyReport::default();
        // Batches first: one that ends after this is not looked for.
        let finished = catalog::finished(self.store(), &frame.spec.name).await?;
        let begun = catalog::unfinished(self.store(), &frame.spec.name).await?;
        report.batches_unfinished = begun.len() as u64;
        // One that is being replaced or removed may have lost chunks already.
        let begun: HashSet<BatchId> = begun.into_iter().map(|(batch, _)| batch).collect();
        let mut found = Found::default();
        let slices = self.store().slices(&frame.spec.name).await?;
        for (done, slice) in slices.iter().enumerate() {
            self.verify_slice(&frame, *slice, &mut report, &mut found).await?;
            if let Some(progress) = progress {
                progress(done as u64 + 1, slices.len() as u64);
            }
        }
        let live = finished.iter().filter(|(batch, record)| !record.removed && !begun.contains(batch));
        let retired = self.retired(&frame, &slices).await?;
        for (batch, record) in live {
            report.batches += 1;
            let there = |slice: &SliceId| {
                slices.binary_search(slice).is_ok()
                    && retired.get(slice).is_none_or(|retired_us| *retired_us < record.written_us)
            };
            self.look_for(&frame, *batch, &there, &found, &mut report).await?;
        }
        report.damage.sort_by_key(|damage| (damage.tile, damage.chunk));
        Ok(report)
    }

    async fn verify_slice(
        &self,
        frame: &Frame,
        slice: SliceId,
        report: &mut VerifyReport,
        found: &mut Found,
    ) -> Result<()> {
        let windows = (Window(i32::MIN), Window(i32::MAX));
        let scan = Scan { slices: vec![slice], cells: Cells::All, windows, bodies: true };
        let mut groups = self.store().scan(&frame.spec.name, scan).await?;
        while let Some(chunks) = groups.try_next().await? {
            let worker = frame.clone();
            let check = move |chunk: Chunk| {
                let checked = check(&worker, &chunk);
                (chunk, checked)
            };
            for (chunk, checked) in on_pool(move || Ok(chunks.into_par_iter().map(check).collect::<Vec<_>>())).await? {
                found.chunks.insert(chunk.key);
                report.chunks += 1;
                report.bytes += (chunk.head.len() + chunk.body.len()) as u64;
                match checked {
                    Ok(head) => {
                        report.rows += u64::from(head.rows);
                        for origin in head.origins.iter() {
                            let place = (chunk.key.tile, origin.batch);
                            found.holders.entry(place).or_default().push(chunk.key.id);
                        }
                    }
                    Err(damage) => {
                        found.damaged.insert(chunk.key.tile);
                        report.damage.push(damaged(&chunk.key, Some(damage), chunk.rows));
                    }
                }
            }
        }
        Ok(())
    }

    /// When those slices were dropped that have begun anew since.
    async fn retired(&self, frame: &Frame, slices: &[SliceId]) -> Result<HashMap<SliceId, i64>> {
        let mut retired = HashMap::new();
        for slice in slices {
            let key = catalog::retired_key(&frame.spec.name, *slice);
            if let Some((record, _)) = catalog::get::<Retired>(self.store(), &key).await? {
                retired.insert(*slice, record.retired_us);
            }
        }
        Ok(retired)
    }

    /// Looks for the chunks of a finished batch: each exists, or its rows were consolidated, or its slice was retired.
    async fn look_for(
        &self,
        frame: &Frame,
        batch: BatchId,
        slice_there: &(dyn Fn(&SliceId) -> bool + Sync),
        found: &Found,
        report: &mut VerifyReport,
    ) -> Result<()> {
        let parts = catalog::parts(self.store(), &frame.spec, batch).await?;
        let written: HashSet<ChunkId> = parts.iter().flat_map(|part| &part.refs).map(|chunk| chunk.key.id).collect();
        for chunk in parts.iter().flat_map(|part| &part.refs) {
            let tile = chunk.key.tile;
            let there = found.chunks.contains(&chunk.key)
                // Only a consolidated chunk stands for others; one that the batch was written as stands for itself.
                || found.holders.get(&(tile, batch)).is_some_and(|ids| ids.iter().any(|id| !written.contains(id)))
                // A damaged chunk of the tile may hold them; it is reported itself.
                || found.damaged.contains(&tile);
            if !there && slice_there(&chunk.key.slice) && self.still_missing(frame, &chunk.key, found).await? {
                report.damage.push(damaged(&chunk.key, None, chunk.rows));
            }
        }
        Ok(())
    }

    /// Whether nothing in the tile holds the chunk's rows even now: consolidation may have moved them since.
    async fn still_missing(&self, frame: &Frame, key: &ChunkKey, found: &Found) -> Result<bool> {
        let cells = Cells::Ranges([(key.tile.cell, key.tile.cell)].into());
        let windows = (key.tile.window, key.tile.window);
        let scan = Scan { slices: vec![key.slice], cells, windows, bodies: false };
        let chunks: Vec<Chunk> = self.store().scan(&frame.spec.name, scan).await?.try_concat().await?;
        let seen = |chunk: &Chunk| chunk.key != *key && found.chunks.contains(&chunk.key);
        Ok(chunks.iter().all(seen))
    }
}

/// What the slices hold.
#[derive(Default)]
struct Found {
    chunks: HashSet<ChunkKey>,
    /// The chunks that hold rows of a batch in a tile.
    holders: HashMap<(Tile, BatchId), Vec<ChunkId>>,
    damaged: HashSet<Tile>,
}

fn damaged(key: &ChunkKey, damage: Option<Damage>, rows: u32) -> DamageReport {
    DamageReport { tile: key.tile, chunk: key.id, damage, rows: rows.into() }
}

/// Decodes every column of a chunk and checks that its rows belong where they lie.
fn check(frame: &Frame, chunk: &Chunk) -> std::result::Result<Head, Damage> {
    let head = Head::parse(&chunk.head, &binding(&chunk.key))?;
    let columns = frame.spec.columns_in(head.schema_version);
    let columns = columns.ok_or(Damage::malformed("its schema version is newer than the dataset's"))?;
    let body = Body::open(&head, &chunk.body)?;
    body.row_origins()?;
    body.ordinals()?;
    let all: Vec<usize> = (0..frame.spec.schema.fields().len()).collect();
    let mut set = Columns::new(&frame.layout, &all, &frame.defaults);
    set.append_body(&body, columns)?;
    let rows = set.finish();
    if rows.num_rows() != chunk.rows as usize {
        return Err(Damage::malformed("its number of rows is not the one it is filed with"));
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
    Ok(head)
}

fn spread(values: impl Iterator<Item = u64>) -> Spread {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    let at = |share: f64| values.get(((values.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied();
    let get = |share| at(share).unwrap_or(0);
    Spread { min: get(0.0), median: get(0.5), p99: get(0.99), max: get(1.0) }
}
