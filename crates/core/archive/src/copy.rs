//! Copying datasets to another archive, between any two engines.
//!
//! Chunks are copied unchanged and keep their ids; the catalog records follow. A copy works in passes. Each pass reads
//! which batches of the source are finished, compares the chunks of both archives tile by tile by their heads, puts the
//! chunks that the target lacks, and removes those that the source no longer has. Then it reads the source's catalog
//! again, and marks as finished on the target the batches that were finished before and after, and of whose tiles
//! nothing was missed.
//!
//! Invariants, so that the target can be read, and the copy interrupted, at any time:
//! - A batch that counts as finished on the target has all its rows there. Before a chunk is removed, every batch that has changed
//!   on the source gets an intent on the target, which makes it unfinished there (`marks`).
//! - Only what came from the source is removed. The dataset on the target is claimed first (`claim`), and every record that a copy
//!   puts carries the claim; a direct write to the target puts a record without it before its chunks.
//! - Repeating any step is harmless. The next pass finds by comparison whatever a pass has not done.

mod claim;
mod ledger;
mod marks;
mod pass;
mod tiles;
mod verify;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chronotile_store::{ChunkKey, DatasetRef, Store};
use chronotile_types::{BatchId, ChunkId, DatasetName, SliceId, Tile};

use crate::archive::Archive;
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::report::{CopyReport, DatasetCopyReport};
use ledger::Ledger;
use pass::{Pass, PassResult};
use tiles::Scope;
use verify::Verification;

/// Most passes that repair tiles which verification found to differ.
const ROUNDS: usize = 3;

/// Options of a copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Names of the datasets; all datasets of the source if `None`.
    pub datasets: Option<Vec<String>>,
    /// Whether to compare the archives without changing anything.
    pub verify_only: bool,
    /// Groups of chunks in flight, 1 to 64, each of up to 4 MiB.
    pub workers: usize,
    /// Most passes, at least 1: ends the copy of a source that is still being written.
    pub passes_max: u32,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { datasets: None, verify_only: false, workers: 4, passes_max: 10 }
    }
}

/// Progress of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// The dataset being copied.
    pub dataset: DatasetName,
    /// Whether tiles are being verified rather than copied.
    pub verifying: bool,
    /// The pass, from 1; 0 while verifying.
    pub pass: u32,
    /// Tiles compared in this pass or verification.
    pub tiles_done: u64,
    /// Number of tiles on the source when the pass began.
    pub tiles_total: u64,
    /// Bytes of this dataset's chunks copied, or verified.
    pub bytes: u64,
}

/// Called with the progress of a copy, at most once per tile.
pub type CopyReporter<'a> = &'a (dyn Fn(&CopyProgress) + Send + Sync);

impl Archive {
    /// Copies datasets to another archive, or compares the two. Safe to interrupt and repeat, and safe beside readers
    /// of both archives and writers of the source. Only one copy into a dataset can run at a time.
    ///
    /// A dataset that exists on the target must have the same definition, and be an earlier copy of the same dataset or
    /// empty. Differences between the archives and damage are part of the report, not errors.
    ///
    /// # Errors
    /// The same archive twice; an unknown dataset; a dataset of the target with another definition, or with batches
    /// that were never in the source; a chunk that is too large for the target; another copy into the same dataset;
    /// either engine.
    pub async fn copy_to(
        &self,
        target: &Archive,
        options: CopyOptions,
        progress: Option<CopyReporter<'_>>,
    ) -> Result<CopyReport> {
        claim::check_distinct(self, target)?;
        let names = match &options.datasets {
            Some(names) => names.clone(),
            None => self.dataset_names().await?,
        };
        // A wrong name stops the copy before anything is changed.
        let names: BTreeSet<&String> = names.iter().collect();
        let mut datasets: Vec<Dataset> = Vec::with_capacity(names.len());
        for name in &names {
            let dataset = self.dataset(name).await?;
            if let Some(missing) = dataset.frames().iter().find(|frame| !names.contains(&frame.spec.name.to_string())) {
                let reason =
                    format!("batches cover all datasets of its group: also name dataset {}", missing.spec.name);
                return Err(ArchiveError::Request { dataset: dataset.spec().name.clone(), reason });
            }
            // A group is copied as a whole.
            let home = dataset.frame().dataset.name;
            if datasets.iter().all(|other| other.frame().dataset.name != home) {
                datasets.push(dataset);
            }
        }
        let mut report = CopyReport::default();
        for dataset in datasets {
            let copy = if options.verify_only {
                claim::compare(&dataset, target, &options).await?
            } else {
                claim::begin(self, &dataset, target, &options).await?
            };
            report.datasets.push(copy.run(&options, progress).await?);
        }
        Ok(report)
    }
}

/// The dataset being copied, or the datasets of a group; shared by all parts of the copy.
struct Shared {
    from: Dataset,
    source: Arc<dyn Store>,
    target: Arc<dyn Store>,
    /// The dataset on the target; creates slices there as they are needed.
    into: Dataset,
    /// The dataset or group under which both catalogs keep the batches.
    home: DatasetRef,
    claim: claim::Claim,
    workers: usize,
}

impl Shared {
    /// The dataset of a slice on the source. Its layout may differ from the target's, and it may have more columns.
    fn on_source(&self, slice: SliceId) -> Result<DatasetRef> {
        self.from.home_of(slice)
    }

    /// The dataset of a slice on the target.
    fn on_target(&self, slice: SliceId) -> Result<DatasetRef> {
        self.into.home_of(slice)
    }
}

struct Copy {
    shared: Arc<Shared>,
}

impl Copy {
    fn name(&self) -> &DatasetName {
        &self.shared.home.name
    }

    async fn run(&self, options: &CopyOptions, reporter: Option<CopyReporter<'_>>) -> Result<DatasetCopyReport> {
        let mut report = DatasetCopyReport { dataset: self.name().to_string(), ..DatasetCopyReport::default() };
        let mut meter = Meter::new(self.name(), reporter);
        if !options.verify_only {
            self.passes(options, &mut report, &mut meter).await?;
        }
        let mut found = self.verify(&Scope::All, &report.damaged_chunks(), &mut meter).await?;
        report.count_verified(&found);
        let mut moved = HashMap::new();
        for _ in 0..if options.verify_only { 0 } else { ROUNDS } {
            if found.differing.is_empty() {
                break;
            }
            // The source may have changed since. A chunk that the target stored badly is put again.
            report.passes += 1;
            meter.pass = report.passes;
            let scope = found.scope();
            let prints = self.pass(&found.again, &scope, &mut report, &mut meter).await?;
            found = self.verify(&scope, &report.damaged_chunks(), &mut meter).await?;
            moved = prints;
        }
        // A comparison alone has no pass whose prints show which tiles the source has rewritten since.
        report.tiles_moved = if options.verify_only { 0 } else { found.leave_out_moved(&moved) };
        report.tiles_differing = found.tiles_differing;
        report.differences = found.differing.into_values().collect();
        self.last_look(options, &mut report).await?;
        Ok(report)
    }

    async fn passes(&self, options: &CopyOptions, report: &mut DatasetCopyReport, meter: &mut Meter<'_>) -> Result<()> {
        for pass in 1..=options.passes_max.max(1) {
            meter.pass = pass;
            report.passes = pass;
            // Only passes that repair tiles need their prints.
            let nothing = Scope::of(std::iter::empty());
            self.pass(&HashSet::new(), &nothing, report, meter).await?;
            if report.caught_up {
                break;
            }
        }
        Ok(())
    }

    /// One pass. Returns the prints of the watched tiles on the source.
    async fn pass(
        &self,
        again: &HashSet<ChunkKey>,
        watched: &Scope,
        report: &mut DatasetCopyReport,
        meter: &mut Meter<'_>,
    ) -> Result<HashMap<(SliceId, Tile), u64>> {
        meter.begin(self.tiles_of_source(&Scope::All).await?, false);
        let pass = Pass::begin(&self.shared, again, watched, report, meter).await?;
        let PassResult { caught_up, settled, prints } = pass.run().await?;
        report.caught_up = caught_up;
        if caught_up {
            self.shared.claim.note_caught_up(&self.shared, settled).await?;
        }
        Ok(prints)
    }

    async fn verify(
        &self,
        scope: &Scope,
        damaged: &HashSet<(Tile, ChunkId)>,
        meter: &mut Meter<'_>,
    ) -> Result<Verification> {
        meter.begin(self.tiles_of_source(scope).await?, true);
        verify::verify(&self.shared, scope, damaged, meter).await
    }

    async fn tiles_of_source(&self, scope: &Scope) -> Result<u64> {
        if let Scope::Tiles(slices) = scope {
            return Ok(slices.values().map(|tiles| tiles.len() as u64).sum());
        }
        let mut tiles = 0;
        for slice in self.shared.source.slices(&self.shared.home).await? {
            tiles += self.shared.source.statistics(&self.shared.on_source(slice)?, slice).await?.len() as u64;
        }
        Ok(tiles)
    }

    /// Reports which batches of the source the target has at the end.
    async fn last_look(&self, options: &CopyOptions, report: &mut DatasetCopyReport) -> Result<()> {
        // The target is read first: the source then knows every batch that this copy has brought.
        let there = Ledger::read(self.shared.target.as_ref(), &self.shared.home).await?;
        let now = Ledger::read(self.shared.source.as_ref(), &self.shared.home).await?;
        report.batches =
            there.finished.iter().filter(|(id, known)| !known.removed && there.is_whole(**id)).count() as u64;
        let lacking = |id: &BatchId| now.is_whole(*id) && !there.is_as_in(*id, &now);
        report.batches_left = now.finished.keys().filter(|id| lacking(id)).count() as u64;
        report.batches_foreign = there.finished.keys().filter(|id| !now.finished.contains_key(id)).count() as u64;
        report.batches_unfinished = now.unfinished_names();
        report.verify_only = options.verify_only;
        report.damage.sort_by_key(|damage| (damage.tile, damage.chunk));
        report.damage.dedup();
        Ok(())
    }
}

impl DatasetCopyReport {
    fn damaged_chunks(&self) -> HashSet<(Tile, ChunkId)> {
        self.damage.iter().map(|damage| (damage.tile, damage.chunk)).collect()
    }

    fn count_verified(&mut self, found: &Verification) {
        self.tiles_verified = found.tiles;
        self.chunks_verified = found.chunks;
        self.rows_verified = found.rows;
        self.bytes_verified = found.bytes;
    }
}

/// Counts progress and reports it to the caller.
struct Meter<'a> {
    dataset: DatasetName,
    reporter: Option<CopyReporter<'a>>,
    verifying: bool,
    pass: u32,
    tiles_done: u64,
    tiles_total: u64,
    bytes: u64,
}

impl<'a> Meter<'a> {
    fn new(dataset: &DatasetName, reporter: Option<CopyReporter<'a>>) -> Self {
        let dataset = dataset.clone();
        Self { dataset, reporter, verifying: false, pass: 0, tiles_done: 0, tiles_total: 0, bytes: 0 }
    }

    fn begin(&mut self, tiles_total: u64, verifying: bool) {
        if self.verifying != verifying {
            self.bytes = 0;
        }
        (self.verifying, self.tiles_done, self.tiles_total) = (verifying, 0, tiles_total);
    }

    /// Counts a compared tile.
    fn tile(&mut self) {
        self.tiles_done += 1;
        if let Some(reporter) = self.reporter {
            reporter(&CopyProgress {
                dataset: self.dataset.clone(),
                verifying: self.verifying,
                pass: if self.verifying { 0 } else { self.pass },
                tiles_done: self.tiles_done,
                // Writers may have added tiles since they were counted.
                tiles_total: self.tiles_total.max(self.tiles_done),
                bytes: self.bytes,
            });
        }
    }
}

/// Slices of both archives, oldest first.
async fn slices(shared: &Shared, scope: &Scope) -> Result<Vec<SliceId>> {
    if let Scope::Tiles(slices) = scope {
        return Ok(slices.keys().copied().collect());
    }
    let mut slices: BTreeSet<_> = shared.target.slices(&shared.home).await?.into_iter().collect();
    slices.extend(shared.source.slices(&shared.home).await?);
    Ok(slices.into_iter().collect())
}

/// The error if another copy, or a direct write, changed the dataset on the target.
fn lost_race(shared: &Shared) -> ArchiveError {
    ArchiveError::CopyRace { dataset: shared.home.name.clone() }
}

type TilesBySlice = BTreeMap<SliceId, BTreeSet<Tile>>;
