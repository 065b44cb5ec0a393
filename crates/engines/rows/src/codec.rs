//! The codec of a dataset: converts its chunks to rows and back.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use bytes::Bytes;
use chronotile_chunk::{Binding, Body, Columns, Defaults, Head, Layout};
use chronotile_cql::scylla::response::query_result::QueryRowsResult;
use chronotile_store::{Chunk, ChunkKey};
use chronotile_tables::{Decoder, Mapping};
use chronotile_types::NativeColumns;

use crate::error::{Result, RowsError};
use crate::lines::{Line, Lines};
use crate::types::{cql_text, cql_type, mapping, quoted};
use crate::values::{put_bytes, put_top, put_unset};
use crate::{READ, READ_COUNT, WRITTEN, WRITTEN_COUNT};

/// The columns of one schema version.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) layout: Layout,
    /// Its columns, all nullable: the checksum detects damaged rows.
    pub(crate) schema: SchemaRef,
}

/// Converts the chunks of one dataset to rows and back.
#[derive(Debug)]
pub struct Codec {
    native: Arc<NativeColumns>,
    versions: Vec<Version>,
    /// Name and type of each column in CQL.
    columns: Vec<(String, String)>,
    mappings: Vec<Mapping>,
    /// Page decoders, by the number of dataset columns selected.
    decoders: Mutex<HashMap<usize, Arc<Decoder>>>,
}

impl Codec {
    /// Compiles the columns of a dataset.
    ///
    /// # Errors
    /// [`RowsError::Column`] for a column without a CQL type.
    pub fn new(native: Arc<NativeColumns>) -> Result<Self> {
        let mut columns = Vec::new();
        let mut mappings = Vec::new();
        for field in native.schema.fields() {
            let column = || field.name().clone();
            let cql = cql_type(field.data_type())
                .ok_or_else(|| RowsError::Column { column: column(), reason: "it has no CQL type".to_owned() })?;
            columns.push((quoted(field.name()), cql_text(&cql)));
            mappings.push(mapping(field.data_type()));
        }
        let version = |count: &u32| {
            let fields = &native.schema.fields()[..(*count as usize).min(native.schema.fields().len())];
            let schema = Schema::new(fields.to_vec());
            let nullable = |field: &Arc<Field>| field.as_ref().clone().with_nullable(true);
            let nullable = Schema::new(fields.iter().map(nullable).collect::<Vec<_>>());
            let layout = Layout::new(Arc::new(schema));
            let layout = layout.map_err(|e| RowsError::Column { column: String::new(), reason: e.to_string() })?;
            Ok(Version { layout, schema: Arc::new(nullable) })
        };
        let versions = native.versions.iter().map(version).collect::<Result<_>>()?;
        Ok(Self { native, versions, columns, mappings, decoders: Mutex::default() })
    }

    /// The columns it was compiled from.
    pub fn native(&self) -> &Arc<NativeColumns> {
        &self.native
    }

    /// Names and types of the dataset's columns in CQL.
    pub fn columns(&self) -> &[(String, String)] {
        &self.columns
    }

    /// The names and markers of an `INSERT` with the first `columns` columns of the dataset.
    pub fn insert(&self, columns: usize) -> String {
        let names = names(&self.columns[..columns]);
        let markers = vec!["?"; WRITTEN_COUNT + columns].join(", ");
        format!("({WRITTEN}{names}) VALUES ({markers})")
    }

    /// The names of a `SELECT` with the first `columns` columns of the dataset.
    pub fn select(&self, columns: usize) -> String {
        format!("{READ}{}", names(&self.columns[..columns]))
    }

    pub(crate) fn version(&self, number: u32) -> Option<&Version> {
        self.versions.get(number as usize)
    }

    /// Refuses a chunk that [`Self::lines`] would refuse. Cheap if every value of the columns' types is allowed.
    ///
    /// # Errors
    /// As [`Self::lines`].
    pub fn check(&self, chunk: &Chunk) -> Result<()> {
        let head = self.plain_head(chunk)?;
        if self.native.schema.fields().iter().any(|field| may_refuse(field.data_type())) {
            self.lines_of(chunk, &head)?;
        }
        Ok(())
    }

    /// Number of the dataset's columns in a chunk.
    ///
    /// # Errors
    /// As [`Self::lines`].
    pub fn columns_of(&self, chunk: &Chunk) -> Result<usize> {
        let head = self.plain_head(chunk)?;
        self.version(head.schema_version)
            .map(|v| v.schema.fields().len())
            .ok_or(RowsError::Version(head.schema_version))
    }

    /// The rows of a chunk.
    ///
    /// # Errors
    /// A chunk that is not in plain form, damaged, or of an unknown version; [`RowsError::Column`] for a value that CQL cannot
    /// represent.
    pub fn lines(&self, chunk: &Chunk) -> Result<Lines> {
        self.lines_of(chunk, &self.plain_head(chunk)?)
    }

    fn plain_head(&self, chunk: &Chunk) -> Result<Head> {
        let head = Head::parse(&chunk.head, &binding(&chunk.key))?;
        // A row stores its origin by content, so equal origins could not be told apart when the body is rebuilt.
        let distinct: HashSet<_> = head.origins.iter().collect();
        if !head.is_plain() || distinct.len() < head.origins.len() {
            return Err(RowsError::NotPlain);
        }
        Ok(head)
    }

    fn lines_of(&self, chunk: &Chunk, head: &Head) -> Result<Lines> {
        let version = self.version(head.schema_version).ok_or(RowsError::Version(head.schema_version))?;
        let columns = version.schema.fields().len();
        let body = Body::open(head, &chunk.body)?;
        let mut set = Columns::new(&version.layout, &(0..columns).collect::<Vec<_>>(), &Defaults::none());
        set.append_body(&body, columns)?;
        let hidden = Hidden { origins: body.row_origins()?, ordinals: body.ordinals()? };
        let batch = set.finish();
        let bytes = batch.get_array_memory_size() + batch.num_rows() * (80 + 4 * columns);
        let mut out = Vec::with_capacity(bytes);
        let mut ends = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            hidden.put(&mut out, chunk, head, row);
            self.put_row(&mut out, &batch, row)?;
            ends.push(out.len());
        }
        let out = Bytes::from(out);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let lines = starts.zip(&ends).map(|(start, end)| Line(out.slice(start..*end))).collect();
        Ok(Lines { columns, lines })
    }

    fn put_row(&self, out: &mut Vec<u8>, batch: &RecordBatch, row: usize) -> Result<()> {
        for (place, array) in batch.columns().iter().enumerate() {
            put_top(out, array.as_ref(), row).map_err(|reason| RowsError::Column {
                column: self.native.schema.field(place).name().clone(),
                reason: reason.to_owned(),
            })?;
        }
        Ok(())
    }

    /// The rows of a page of a `SELECT` of the first `columns` columns.
    pub(crate) fn decode(&self, columns: usize, answer: &QueryRowsResult) -> Result<RecordBatch> {
        let answered = |error: chronotile_tables::TablesError| RowsError::Answer { reason: error.to_string() };
        let known = self.decoders.lock().unwrap_or_else(PoisonError::into_inner).get(&columns).cloned();
        let decoder = match known {
            Some(decoder) => decoder,
            None => {
                // The decoder is built without the lock. If two tasks build one, the first is kept.
                let own = std::iter::repeat_n(Mapping::default(), READ_COUNT);
                let mappings = own.chain(self.mappings[..columns].iter().copied()).collect();
                let decoder = Decoder::of_columns(answer.column_specs().as_slice(), mappings).map_err(answered)?;
                let decoder = Arc::new(decoder);
                let mut decoders = self.decoders.lock().unwrap_or_else(PoisonError::into_inner);
                decoders.entry(columns).or_insert(decoder).clone()
            }
        };
        decoder.answer(answer).map_err(answered)
    }
}

/// The bookkeeping values of a row.
struct Hidden {
    origins: Option<Vec<u32>>,
    ordinals: Option<Vec<i64>>,
}

impl Hidden {
    /// The values of [`WRITTEN`].
    fn put(&self, out: &mut Vec<u8>, chunk: &Chunk, head: &Head, row: usize) {
        let origin = head.origins[self.origins.as_ref().map_or(0, |origins| origins[row] as usize)];
        let tile = chunk.key.tile;
        put_bytes(out, &tile.cell.0.to_be_bytes());
        put_bytes(out, &tile.window.0.to_be_bytes());
        put_bytes(out, &chunk.key.id.to_bytes());
        put_bytes(out, &(row as i32).to_be_bytes());
        if row == 0 {
            put_bytes(out, &(chunk.rows as i32).to_be_bytes());
            put_bytes(out, &((chunk.head.len() + chunk.body.len()) as i32).to_be_bytes());
            put_bytes(out, &chunk.head);
        } else {
            (0..3).for_each(|_| put_unset(out));
        }
        put_bytes(out, &origin.batch.to_bytes());
        put_bytes(out, &origin.written_us.to_be_bytes());
        match &self.ordinals {
            Some(ordinals) => put_bytes(out, &ordinals[row].to_be_bytes()),
            None => put_unset(out),
        }
    }
}

pub(crate) fn binding(key: &ChunkKey) -> Binding {
    Binding { tile: key.tile, chunk: key.id }
}

fn names(columns: &[(String, String)]) -> String {
    columns.iter().map(|(name, _)| format!(", {name}")).collect()
}

/// Whether some values of a type cannot be represented in CQL.
fn may_refuse(data_type: &arrow_schema::DataType) -> bool {
    use arrow_schema::{DataType as D, TimeUnit};
    match data_type {
        // `time32` is not among them: 2^31 s are 2.1e18 ns, which fits an i64.
        D::List(_) | D::Decimal128(_, _) | D::Time64(TimeUnit::Microsecond) | D::Timestamp(TimeUnit::Second, _) => true,
        D::Struct(fields) => fields.iter().any(|field| may_refuse(field.data_type())),
        _ => false,
    }
}
