//! Datasets of layout `rows`: the columns of their tables, and how columns are added.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chronotile_cql::scylla::statement::Consistency;
use chronotile_cql::{Call, CqlError};
use chronotile_rows::{Codec, RowsError};
use chronotile_store::{Chunk, Result, StoreError};
use chronotile_types::{DatasetName, NativeColumns, SliceId};

use crate::failure::{ENGINE, malformed};
use crate::layout::{DatasetTables, Sizes};
use crate::requests::quorum_call;

/// How long the cached column count of a table that lacks columns is used.
const BELIEVED: Duration = Duration::from_secs(1);
/// Assumed bytes of a record before any was read.
const RECORD_BYTES: u64 = 4 << 10;

/// Compiled definitions that are cached per dataset: calls made before and after a change of columns need one each.
const CODECS: usize = 4;

/// Cached knowledge of this process about the tables of every dataset of layout `rows`.
#[derive(Debug, Default)]
pub(crate) struct RowDatasets {
    known: Mutex<HashMap<DatasetName, Arc<RowTables>>>,
}

impl RowDatasets {
    /// The layout of a dataset's tables for these columns.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a column that has no CQL type.
    pub(crate) fn layout(&self, dataset: &DatasetName, native: &Arc<NativeColumns>) -> Result<RowLayout> {
        let tables = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            match known.get(dataset) {
                Some(tables) => tables.clone(),
                None => known.entry(dataset.clone()).or_default().clone(),
            }
        };
        Ok(RowLayout { codec: tables.codec(native).map_err(refuse)?, tables })
    }
}

/// Cached knowledge of this process about the tables of one dataset.
#[derive(Debug)]
pub(crate) struct RowTables {
    /// Compiled definitions for the columns of recent calls, latest first.
    codecs: Mutex<Vec<Arc<Codec>>>,
    /// How many of the dataset's columns each slice's table has, and when a node reported it.
    columns: Mutex<HashMap<SliceId, (usize, Instant)>>,
    /// How many of them all nodes know.
    agreed: Mutex<HashMap<SliceId, usize>>,
    pub sizes: Sizes,
}

impl Default for RowTables {
    fn default() -> Self {
        Self {
            codecs: Mutex::default(),
            columns: Mutex::default(),
            agreed: Mutex::default(),
            sizes: Sizes::of(RECORD_BYTES),
        }
    }
}

impl RowTables {
    fn codec(&self, native: &Arc<NativeColumns>) -> std::result::Result<Arc<Codec>, RowsError> {
        let mut codecs = self.codecs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |codec: &&Arc<Codec>| Arc::ptr_eq(codec.native(), native) || codec.native() == native;
        if let Some(codec) = codecs.iter().find(is_it) {
            return Ok(codec.clone());
        }
        let codec = Arc::new(Codec::new(native.clone())?);
        if codecs.iter().any(|known| !known.native().extends_or_precedes(native)) {
            // Another dataset of the same name: the first was dropped.
            codecs.clear();
            self.forget();
        }
        codecs.insert(0, codec.clone());
        codecs.truncate(CODECS);
        Ok(codec)
    }

    fn cached_columns(&self, slice: SliceId) -> Option<(usize, Instant)> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).get(&slice).copied()
    }

    fn cache_columns(&self, slice: SliceId, columns: usize) {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).insert(slice, (columns, Instant::now()));
    }

    fn forget(&self) {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn agreed<T>(&self, use_it: impl FnOnce(&mut HashMap<SliceId, usize>) -> T) -> T {
        use_it(&mut self.agreed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn refuse(error: RowsError) -> StoreError {
    StoreError::Refused { engine: ENGINE, reason: error.to_string() }
}

/// A dataset of layout `rows` with the columns that one call names.
#[derive(Clone, Debug)]
pub(crate) struct RowLayout {
    codec: Arc<Codec>,
    tables: Arc<RowTables>,
}

impl RowLayout {
    /// Columns of the dataset.
    pub(crate) fn width(&self) -> usize {
        self.codec.columns().len()
    }

    pub(crate) fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// Sizes of the dataset's records.
    pub(crate) fn sizes(&self) -> &Sizes {
        &self.tables.sizes
    }

    /// Refuses chunks with values that CQL cannot represent, before anything is written.
    pub(crate) fn check(&self, dataset: &DatasetName, chunks: &[Chunk]) -> Result<()> {
        chunks.iter().try_for_each(|chunk| self.codec.check(chunk)).map_err(|error| match error {
            RowsError::Column { .. } => StoreError::Unfit { dataset: dataset.clone(), reason: error.to_string() },
            other => refuse(other),
        })
    }

    /// Clears the cached columns, after a failure that a dropped and recreated table may have caused.
    pub(crate) fn forget(&self) {
        self.tables.forget();
    }

    /// How many of the dataset's first columns the table of a slice has; with `refresh` the cache is bypassed.
    pub(crate) async fn columns_of(
        &self,
        tables: &DatasetTables,
        slice: SliceId,
        refresh: bool,
    ) -> std::result::Result<usize, CqlError> {
        let all = self.width();
        // A table never loses columns: a count that covers the definition stays true, and a lower one may have grown.
        if let Some((columns, at)) = self.tables.cached_columns(slice)
            && !refresh
            && (columns >= all || at.elapsed() < BELIEVED)
        {
            return Ok(columns.min(all));
        }
        let cql = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";
        let select = tables.session.prepare(cql, true).await?;
        let call = Call { consistency: Consistency::One, ..quorum_call(&tables.session) };
        let values = (&tables.session.settings().keyspace, tables.table(slice));
        let found = tables.session.execute(&select, values, &call).await?.into_rows_result().map_err(malformed)?;
        let mut names = std::collections::HashSet::new();
        for row in found.rows::<(String,)>().map_err(malformed)? {
            names.insert(row.map_err(malformed)?.0);
        }
        // The schema's own tables report an unknown table by no rows, not by an error.
        if names.is_empty() {
            let reason = format!("table {} does not exist", tables.table(slice));
            return Err(CqlError::NoTable { reason });
        }
        // Writers add columns in the order of the definition, so a table has the first ones of them.
        let fields = self.codec.native().schema.fields().iter();
        let columns = fields.take_while(|field| names.contains(field.name())).count();
        self.tables.cache_columns(slice, columns);
        Ok(columns)
    }

    /// How many of the dataset's columns each slice's table needs for these chunks, for tables that not all nodes are known to have
    /// extended so far.
    pub(crate) fn missing_columns(&self, chunks: &[Chunk]) -> Result<HashMap<SliceId, usize>> {
        let mut wanted: HashMap<SliceId, usize> = HashMap::new();
        for chunk in chunks {
            let columns = self.codec.columns_of(chunk).map_err(refuse)?;
            let most = wanted.entry(chunk.key.slice).or_default();
            *most = columns.max(*most);
        }
        self.tables.agreed(|agreed| {
            wanted.retain(|slice, columns| agreed.get(slice).is_none_or(|known| *known < *columns));
        });
        Ok(wanted)
    }

    /// Records that all nodes know this many columns of a slice's table.
    pub(crate) fn agree(&self, slice: SliceId, columns: usize) {
        self.tables.agreed(|agreed| agreed.insert(slice, columns));
    }

    /// The statement that adds the missing columns to a slice's table; `None` if it has all.
    pub(crate) async fn addition(
        &self,
        tables: &DatasetTables,
        slice: SliceId,
    ) -> std::result::Result<Option<String>, CqlError> {
        let there = self.columns_of(tables, slice, true).await?;
        let missing: Vec<String> =
            self.codec.columns()[there..].iter().map(|(name, cql)| format!("{name} {cql}")).collect();
        if missing.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!("ALTER TABLE {} ADD ({})", tables.qualified_table(slice), missing.join(", "))))
    }

    /// The columns and the primary key of a new table.
    pub(crate) fn table_columns(&self) -> std::result::Result<String, CqlError> {
        let own: String = self.codec.columns().iter().map(|(name, cql)| format!(", {name} {cql}")).collect();
        Ok(format!("{}{own}, {}", chronotile_rows::OWN_COLUMNS, chronotile_rows::PRIMARY_KEY))
    }
}
