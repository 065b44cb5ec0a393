//! Indexes: which values of some columns occur in which tile, and how often.
//!
//! An index is built window by window, by any process and at any time after the rows were written. For each tile it
//! keeps a *print*: a hash of the ids of the chunks from which it was built. Chunk ids depend on content, so a reader
//! that finds the same chunks in the tile knows that the index is correct for it. If the chunks differ (one came late,
//! was consolidated, replaced or removed), the reader reads the tile itself. So an index may be late, lost or half
//! built without changing any result.

mod build;
mod cache;
mod count;
mod group;
mod lease;
mod observed;
mod plan;
mod record;
mod report;
mod segment;
mod tiles;

use std::collections::BTreeSet;
use std::time::Duration;

use arrow_schema::DataType;
use chronotile_store::{Commit, Expect};
use chronotile_types::{IndexSpec, Window, name_hint};

use crate::catalog;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::frame::Frame;
use lease::{Lease, held};
use record::Built;

pub(crate) use cache::IndexCache;
pub(crate) use record::segment_name;
pub use report::{IndexBuildOptions, IndexBuildReport, IndexStatus, IndexUse};

/// How long the lease keeps builders away from a window whose index is being removed.
const SWEEP_LEASE: Duration = Duration::from_secs(60);

impl Dataset {
    /// Defines an index, but does not build it. Until it is built, reads work as without it.
    ///
    /// # Errors
    /// A name that exists or is invalid; a column that does not exist, is named twice or holds lists or structs.
    pub async fn create_index(&self, name: &str, columns: &[String]) -> Result<()> {
        let id = format!("{:016x}", self.clock().random_bits());
        let index = IndexSpec { name: name.to_owned(), id, columns: columns.to_vec() };
        self.alter(|spec| {
            spec.check_index(&index)?;
            spec.indexes.push(index.clone());
            Ok(())
        })
        .await
    }

    /// Drops an index with everything that was built of it, and returns the number of windows removed.
    ///
    /// # Errors
    /// No index of this name; the engine.
    pub async fn drop_index(&self, name: &str) -> Result<u64> {
        self.refresh().await?;
        let index = self.index(&self.frame(), name)?;
        // The definition goes first. What a running builder stores after the removal, a later `sweep_indexes` removes,
        // because it belongs to no defined index.
        self.alter(|spec| {
            spec.indexes.retain(|other| other.id != index.id);
            Ok(())
        })
        .await?;
        self.remove_built(&index.id, &|_| true, false).await
    }

    /// The state of every index, in order of creation.
    pub async fn index_status(&self) -> Result<Vec<IndexStatus>> {
        let this = &self.reader();
        this.refresh().await?;
        let frame = this.frame();
        let mut all = Vec::new();
        for index in &frame.spec.indexes {
            let built = record::list(this.store(), &frame.spec.name, &index.id).await?;
            let mut status =
                IndexStatus { name: index.name.clone(), columns: index.columns.clone(), ..Default::default() };
            for (window, built) in &built {
                status.windows += 1;
                status.tiles += built.tiles;
                status.rows += built.rows;
                status.values += built.values;
                status.bytes += built.bytes;
                status.tiles_left_out += built.left_out;
                status.built_us = status.built_us.max(Some(built.built_us));
                let first = frame.spec.window_start(*window);
                let last = first.saturating_add(frame.spec.window_ticks());
                let (before, after) = status.ticks.unwrap_or((first, last));
                status.ticks = Some((before.min(first), after.max(last)));
            }
            all.push(status);
        }
        Ok(all)
    }

    fn index(&self, frame: &Frame, name: &str) -> Result<IndexSpec> {
        let found = frame.spec.indexes.iter().find(|index| index.name == name);
        found.cloned().ok_or_else(|| {
            let names: Vec<_> = frame.spec.indexes.iter().map(|index| index.name.as_str()).collect();
            let hint = if names.is_empty() { "; it has none".to_owned() } else { name_hint(name, &names) };
            frame.refuse(format!("no index {name:?}{hint}"))
        })
    }

    /// Removes what was built of an index for the windows for which `gone` is true. If `others` may build it, skips
    /// windows that another process is building.
    async fn remove_built(&self, id: &str, gone: &(dyn Fn(Window) -> bool + Sync), others: bool) -> Result<u64> {
        let dataset = &self.frame().dataset;
        let name = &self.spec().name;
        let built: BTreeSet<Window> = record::list(self.store(), name, id).await?.into_keys().collect();
        // A builder that was interrupted may have left postings of a window that has no record yet.
        let begun = record::leased(self.store(), name, id).await?;
        let mut removed = 0;
        for window in built.iter().chain(begun.difference(&built)).copied().filter(|window| gone(*window)) {
            // Without `others` the index has no definition any more, so that its lease goes, whoever holds it.
            let lease = if others {
                let holder = self.clock().token();
                let place = (name, id, window);
                let taken = Lease::take(self.store(), dataset, place, (&holder, SWEEP_LEASE, self.clock())).await?;
                let Some(lease) = taken else { continue };
                lease.release()
            } else {
                catalog::delete(record::lease_key(name, id, window))
            };
            let stored = catalog::list(self.store(), &record::posting_prefix(name, id, window)).await?;
            // One condition for all of it: if a builder took over the window meanwhile, its postings stay.
            let mut before = vec![lease, catalog::delete(record::built_key(name, id, window))];
            before.extend(stored.into_iter().map(|record| catalog::delete(record.key)));
            let is_removed = held(self.store().commit(dataset, Commit { before, ..Commit::default() }).await)?;
            removed += u64::from(is_removed && built.contains(&window));
        }
        Ok(removed)
    }

    /// Removes what is left of dropped indexes, and of windows whose slices were dropped.
    async fn sweep_indexes(&self, frame: &Frame) -> Result<()> {
        let name = &frame.spec.name;
        let slices = self.slices().await?;
        let mut ids: Vec<String> = record::ids(self.store(), name).await?;
        ids.dedup();
        for id in ids {
            let defined = frame.spec.indexes.iter().any(|index| index.id == id);
            let gone = |window| !defined || slices.binary_search(&frame.spec.slice_of(window)).is_err();
            self.remove_built(&id, &gone, defined).await?;
        }
        Ok(())
    }
}

/// Types of an index's columns, and their positions in the dataset.
fn columns_of(frame: &Frame, index: &IndexSpec) -> Result<(Vec<DataType>, Vec<usize>)> {
    let positions = index.columns.iter().map(|name| frame.column(name)).collect::<Result<Vec<_>>>()?;
    let types = positions.iter().map(|column| frame.spec.schema.field(*column).data_type().clone()).collect();
    Ok((types, positions))
}

/// An unconditional put of a record, as JSON.
fn put_built(key: String, built: &Built) -> Result<chronotile_store::RecordPut> {
    Ok(catalog::put(key.clone(), catalog::to_json(&key, built)?, Expect::Any))
}
