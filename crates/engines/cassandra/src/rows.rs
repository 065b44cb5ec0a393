//! Datasets of layout `rows`: which columns their tables have, and how those get more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chronotile_cql::scylla::statement::Consistency;
use chronotile_cql::{Call, CqlError};
use chronotile_rows::{Codec, RowsError};
use chronotile_store::{Chunk, Definition, Result, StoreError};
use chronotile_types::{DatasetName, SliceId};

use crate::failure::{ENGINE, malformed, refused};
use crate::form::Home;
use crate::scan::{Sizes, unless_gone};
use crate::schema::{self, sure};

/// How long what was seen of a table that lacks columns is believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// Bytes of a record, before any was seen.
const RECORD_BYTES: u64 = 4 << 10;

/// A dataset whose records are rows.
#[derive(Debug)]
pub(crate) struct RowForm {
    definition: Arc<dyn Definition>,
    /// Compiled from the definition as it last was.
    codec: Mutex<Arc<Codec>>,
    /// How many of the dataset's columns each slice's table has, and when a node said so.
    columns: Mutex<HashMap<SliceId, (usize, Instant)>>,
    /// How many of them all nodes know of.
    agreed: Mutex<HashMap<SliceId, usize>>,
    pub sizes: Sizes,
}

fn compiled(definition: &dyn Definition) -> std::result::Result<Arc<Codec>, RowsError> {
    Codec::new(definition.current()).map(Arc::new)
}

fn refuse(error: RowsError) -> StoreError {
    StoreError::Refused { engine: ENGINE, reason: error.to_string() }
}

impl RowForm {
    pub(crate) fn new(definition: Arc<dyn Definition>) -> Result<Self> {
        let codec = Mutex::new(compiled(definition.as_ref()).map_err(refuse)?);
        Ok(Self {
            definition,
            codec,
            columns: Mutex::default(),
            agreed: Mutex::default(),
            sizes: Sizes::of(RECORD_BYTES),
        })
    }

    pub(crate) fn dataset(&self) -> DatasetName {
        self.definition.current().name.clone()
    }

    /// Columns of the dataset.
    pub(crate) fn width(&self) -> usize {
        self.definition.current().schema.fields().len()
    }

    /// The definition as it is now, compiled.
    pub(crate) fn codec(&self) -> std::result::Result<Arc<Codec>, CqlError> {
        let current = self.definition.current();
        let mut codec = self.codec.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(codec.spec(), &current) && codec.spec().schema_versions != current.schema_versions {
            *codec = compiled(self.definition.as_ref()).map_err(malformed)?;
        }
        Ok(codec.clone())
    }

    /// Refuses chunks with values that CQL has no place for, before anything is written.
    pub(crate) fn check(&self, chunks: &[Chunk]) -> Result<()> {
        let codec = self.codec().map_err(refused)?;
        chunks.iter().try_for_each(|chunk| codec.check(chunk)).map_err(|error| match error {
            RowsError::Column { .. } => StoreError::Unfit { dataset: self.dataset(), reason: error.to_string() },
            other => refuse(other),
        })
    }

    fn seen(&self, slice: SliceId) -> Option<(usize, Instant)> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).get(&slice).copied()
    }

    fn see(&self, slice: SliceId, columns: usize) {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).insert(slice, (columns, Instant::now()));
    }

    /// Forgets what tables have, after a failure that may come from a table made anew.
    pub(crate) fn forget(&self) {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn agreed<T>(&self, use_it: impl FnOnce(&mut HashMap<SliceId, usize>) -> T) -> T {
        use_it(&mut self.agreed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many of the dataset's first columns the table of a slice has; with `anew` as it is now.
    pub(crate) async fn columns_of(
        &self,
        home: &Home,
        slice: SliceId,
        anew: bool,
    ) -> std::result::Result<usize, CqlError> {
        let codec = self.codec()?;
        let all = codec.columns().len();
        if let Some((columns, at)) = self.seen(slice)
            && !anew
            && (columns >= all || at.elapsed() < BELIEVED)
        {
            return Ok(columns.min(all));
        }
        let cql = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";
        let select = home.session.prepare(cql, true).await?;
        let call = Call { consistency: Consistency::One, ..sure(&home.session) };
        let values = (&home.session.settings().keyspace, home.table(slice));
        let found = home.session.execute(&select, values, &call).await?.into_rows_result().map_err(malformed)?;
        let mut names = std::collections::HashSet::new();
        for row in found.rows::<(String,)>().map_err(malformed)? {
            names.insert(row.map_err(malformed)?.0);
        }
        if names.is_empty() {
            let reason = format!("table {} does not exist", home.table(slice));
            return Err(CqlError::NoTable { reason });
        }
        let fields = codec.spec().schema.fields().iter();
        let columns = fields.take_while(|field| names.contains(field.name())).count();
        self.see(slice, columns);
        Ok(columns)
    }

    /// Sees to it that the tables of some chunks have the columns that these have.
    pub(crate) async fn make_columns(&self, home: &Home, chunks: &[Chunk]) -> Result<()> {
        let codec = self.codec().map_err(refused)?;
        let mut wanted: HashMap<SliceId, usize> = HashMap::new();
        for chunk in chunks {
            let columns = codec.columns_of(chunk).map_err(refuse)?;
            let most = wanted.entry(chunk.key.slice).or_default();
            *most = columns.max(*most);
        }
        for (slice, columns) in wanted {
            if self.agreed(|agreed| agreed.get(&slice).is_some_and(|known| *known >= columns)) {
                continue;
            }
            let call = sure(&home.session);
            let found =
                unless_gone(home, slice, &call, || self.columns_of(home, slice, true)).await.map_err(refused)?;
            let Some(found) = found else {
                return Err(StoreError::NoSlice { dataset: home.dataset.clone(), slice });
            };
            if found < columns {
                schema::add_columns(home, self, slice).await?;
            }
            // Columns that one node knows of may be under way to the others.
            home.session.agree_on_schema().await.map_err(refused)?;
            self.agreed(|agreed| agreed.insert(slice, columns));
        }
        Ok(())
    }

    /// The statement that gives a slice's table the columns it lacks; `None` where it has all.
    pub(crate) async fn addition(&self, home: &Home, slice: SliceId) -> std::result::Result<Option<String>, CqlError> {
        let codec = self.codec()?;
        let there = self.columns_of(home, slice, true).await?;
        let missing: Vec<String> = codec.columns()[there..].iter().map(|(name, cql)| format!("{name} {cql}")).collect();
        if missing.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!("ALTER TABLE {} ADD ({})", home.place(slice), missing.join(", "))))
    }

    /// The columns of a new table, and its key.
    pub(crate) fn table_columns(&self) -> std::result::Result<String, CqlError> {
        let codec = self.codec()?;
        let own: String = codec.columns().iter().map(|(name, cql)| format!(", {name} {cql}")).collect();
        Ok(format!("{}{own}, {}", chronotile_rows::OWN_COLUMNS, chronotile_rows::PRIMARY_KEY))
    }
}
