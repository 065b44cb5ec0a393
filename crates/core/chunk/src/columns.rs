//! Decodes projected columns of many chunks into one record batch.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use chronotile_types::Damage;

use crate::builder::{Budget, Builder};
use crate::columnar_read::{self, Directory, read_column};
use crate::encode::Metered;
use crate::error::EncodeError;
use crate::extract::{Scratch, extract};
use crate::head::BodyLayout;
use crate::head::Head;
use crate::layout::Layout;
use crate::number::{Number, numbers};
use crate::packed::Compression;
use crate::small_read::{self, SmallReader};
use crate::small_write::SmallWriter;
use crate::stats::ColumnStats;
use crate::wire::Reader;
use crate::{DECODED_BYTES_MAX, MISSING_BYTES_MAX};

/// Size in decoded bytes at which a set of columns takes no more chunks, so that 32-bit offsets never overflow.
const SET_BYTES_MAX: usize = i32::MAX as usize - DECODED_BYTES_MAX - MISSING_BYTES_MAX;

/// Maximum number of rows for which capacity is reserved at a time.
const ROWS_RESERVED_MAX: usize = 1 << 20;

/// A body with a verified checksum, and a decompressed block if it is in the small form.
pub struct Body<'a> {
    head: &'a Head,
    block: Block<'a>,
}

enum Block<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
}

/// Verifies `body` and returns the plain block, decompressed into `scratch` if necessary.
fn open<'a>(head: &Head, body: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], Damage> {
    head.verify_body(body)?;
    if head.compression == Compression::None {
        return Ok(body);
    }
    scratch.resize(head.block_bytes, 0);
    head.compression.decompress(body, scratch)?;
    Ok(scratch)
}

impl<'a> Body<'a> {
    /// Verifies `bytes` against the head.
    ///
    /// # Errors
    /// Damage of any byte of the body.
    pub fn open(head: &'a Head, bytes: &'a [u8]) -> Result<Self, Damage> {
        let mut scratch = Vec::new();
        let is_plain = head.compression == Compression::None;
        open(head, bytes, &mut scratch)?;
        Ok(Self { head, block: if is_plain { Block::Borrowed(bytes) } else { Block::Owned(scratch) } })
    }

    fn bytes(&self) -> &[u8] {
        match &self.block {
            Block::Borrowed(bytes) => bytes,
            Block::Owned(bytes) => bytes,
        }
    }

    /// Whether single rows can be decoded without the others. True for the small form.
    pub fn decodes_single_rows(&self) -> bool {
        self.head.body_layout == BodyLayout::Small
    }

    /// For each row an index into the head's origins; `None` if all rows come from the first.
    ///
    /// # Errors
    /// A body that breaks a rule of the format.
    pub fn row_origins(&self) -> Result<Option<Vec<u32>>, Damage> {
        if !self.head.has_row_origins {
            return Ok(None);
        }
        let bytes = read_hidden(self.head, &mut Reader::new(self.bytes()), Number::U32)?;
        let indexes: Vec<u32> = numbers!(bytes, u32).collect();
        if indexes.iter().any(|index| *index as usize >= self.head.origins.len()) {
            return Err(Damage::malformed("an index refers to a missing origin"));
        }
        Ok(Some(indexes))
    }

    /// For each row its number within its batch; `None` if the chunk has none.
    ///
    /// # Errors
    /// A body that breaks a rule of the format.
    pub fn ordinals(&self) -> Result<Option<Vec<i64>>, Damage> {
        if !self.head.has_ordinals {
            return Ok(None);
        }
        let mut reader = Reader::new(self.bytes());
        if self.head.has_row_origins {
            skip_hidden(self.head, &mut reader, Number::U32)?;
        }
        let bytes = read_hidden(self.head, &mut reader, Number::I64)?;
        Ok(Some(numbers!(bytes, i64).collect()))
    }

    /// The extremes of a column's values without nulls, read without decoding the column. `None` if the chunk does not have them:
    /// for small chunks or short columns, types other than numbers, dates and times, and columns that the chunk lacks.
    ///
    /// # Errors
    /// A body that breaks a rule of the format.
    pub fn stats(
        &self,
        layout: &Layout,
        columns_in_schema: usize,
        column: usize,
    ) -> Result<Option<ColumnStats>, Damage> {
        let columns_in_schema = columns_in_schema.min(layout.columns().len());
        if self.head.body_layout == BodyLayout::Small || column >= columns_in_schema {
            return Ok(None);
        }
        let mut reader = Reader::new(self.bytes());
        skip_all_hidden(self.head, &mut reader)?;
        let mut directory = Directory::new(reader, columns_in_schema)?;
        for _ in 0..column {
            directory.next()?;
        }
        columnar_read::column_stats(directory.next()?, &layout.columns()[column])
    }
}

fn read_hidden(head: &Head, reader: &mut Reader, number: Number) -> Result<Vec<u8>, Damage> {
    match head.body_layout {
        BodyLayout::Small => small_read::read_hidden(reader, number, head.rows as usize),
        BodyLayout::Columnar => columnar_read::read_hidden(reader, number, head.rows as usize),
    }
}

fn skip_hidden(head: &Head, reader: &mut Reader, number: Number) -> Result<(), Damage> {
    match head.body_layout {
        BodyLayout::Small => small_read::skip_hidden(reader, number, head.rows as usize),
        BodyLayout::Columnar => columnar_read::skip_hidden(reader),
    }
}

fn skip_all_hidden(head: &Head, reader: &mut Reader) -> Result<(), Damage> {
    if head.has_row_origins {
        skip_hidden(head, reader, Number::U32)?;
    }
    if head.has_ordinals {
        skip_hidden(head, reader, Number::I64)?;
    }
    Ok(())
}

/// For each row an index into the head's origins; `None` if all rows come from the first. Verifies the body.
///
/// # Errors
/// Damage of any byte of the body.
pub fn row_origins(head: &Head, body: &[u8]) -> Result<Option<Vec<u32>>, Damage> {
    Body::open(head, body)?.row_origins()
}

/// For each row its number within its batch; `None` if the chunk has none. Verifies the body.
///
/// # Errors
/// Damage of any byte of the body.
pub fn ordinals(head: &Head, body: &[u8]) -> Result<Option<Vec<i64>>, Damage> {
    Body::open(head, body)?.ordinals()
}

/// Default values of columns that chunks of older schema versions lack. The default is null unless set.
#[derive(Clone, Default)]
pub struct Defaults(HashMap<usize, DefaultValue>);

#[derive(Clone)]
struct DefaultValue {
    /// One row of the column as a small block.
    block: Vec<u8>,
    /// Its decoded size.
    bytes: usize,
}

impl Defaults {
    /// Null for every missing column.
    pub fn none() -> Self {
        Self::default()
    }

    /// Sets the default of `column` to the first value of `value`, an array of the column's type.
    ///
    /// # Errors
    /// An empty array, or one whose type differs from the column's.
    pub fn set(&mut self, layout: &Layout, column: usize, value: &ArrayRef) -> Result<(), EncodeError> {
        if value.is_empty() {
            return Err(EncodeError::RowCount(0));
        }
        let (mut writer, mut bytes) = (SmallWriter::default(), 0);
        let mut metered = Metered { sink: &mut writer, bytes: &mut bytes };
        extract(&layout.columns()[column], value.slice(0, 1).as_ref(), &mut metered, &mut Scratch::default())?;
        let mut block = Vec::new();
        writer.append_to(&mut block);
        self.0.insert(column, DefaultValue { block, bytes });
        Ok(())
    }

    /// Decoded size in bytes of one row of the columns from `first` on, where a chunk lacks them.
    pub fn missing_row_bytes(&self, layout: &Layout, first: usize) -> usize {
        let columns = layout.columns().iter().enumerate().skip(first);
        columns.map(|(column, node)| self.0.get(&column).map_or(node.null_row_bytes(), |value| value.bytes)).sum()
    }
}

/// A set of projected columns that grows chunk by chunk and becomes one `RecordBatch`.
pub struct Columns {
    layout: Layout,
    schema: SchemaRef,
    defaults: Defaults,
    /// Position in the projection of each column of the layout, up to the last projected one.
    places: Vec<Option<u32>>,
    builders: Vec<Builder>,
    rows: usize,
    bytes: usize,
    /// Most decoded bytes of one chunk.
    decoded_bytes_max: usize,
    scratch: Vec<u8>,
}

impl Columns {
    /// An empty set with the layout's columns `projection`, in that order.
    ///
    /// # Panics
    /// If an index of `projection` is out of range or occurs twice.
    pub fn new(layout: &Layout, projection: &[usize], defaults: &Defaults) -> Self {
        let mut places = vec![None; projection.iter().max().map_or(0, |last| last + 1)];
        for (place, column) in projection.iter().enumerate() {
            assert!(places[*column].is_none(), "column {column} is repeated in the projection");
            places[*column] = Some(place as u32);
        }
        let fields = projection.iter().map(|column| layout.schema().fields()[*column].clone());
        let schema = Schema::new_with_metadata(fields.collect::<Vec<Arc<Field>>>(), layout.schema().metadata().clone());
        Self {
            layout: layout.clone(),
            schema: Arc::new(schema),
            defaults: defaults.clone(),
            places,
            builders: projection.iter().map(|column| Builder::new(&layout.columns()[*column])).collect(),
            rows: 0,
            bytes: 0,
            decoded_bytes_max: DECODED_BYTES_MAX,
            scratch: Vec::new(),
        }
    }

    /// Sets the limit of a chunk's decoded columns, at most [`DECODED_BYTES_MAX`]. For tests.
    #[doc(hidden)]
    pub fn limit_decoded_bytes(&mut self, decoded_bytes_max: usize) {
        self.decoded_bytes_max = decoded_bytes_max.min(DECODED_BYTES_MAX);
    }

    /// Reserves capacity for `rows` more rows. Text and lists still grow as needed.
    pub fn reserve(&mut self, rows: usize) {
        // The limit guards against a caller that adds up too many rows.
        let rows = rows.min(ROWS_RESERVED_MAX);
        self.builders.iter_mut().for_each(|builder| builder.reserve(rows));
    }

    /// Rows gathered so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Size of the decoded rows in bytes. The set takes no more chunks past about 1.8 GiB: finish it well before.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Verifies a chunk's body and appends its rows. `columns_in_schema` is the number of columns in the chunk's schema
    /// version; later columns get their default, or null.
    ///
    /// # Errors
    /// Damage of any byte of the body, a set that has reached about 1.8 GiB, or a missing column that is neither nullable nor
    /// has a default. The set is then unchanged.
    pub fn append(&mut self, head: &Head, body: &[u8], columns_in_schema: usize) -> Result<(), Damage> {
        // The buffer leaves `self` because `append_block` borrows all of it. It is put back even after an error, to be
        // used again.
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = open(head, body, &mut scratch).and_then(|block| self.append_block(head, block, columns_in_schema));
        self.scratch = scratch;
        result
    }

    /// Appends the rows of a body that was already verified, as [`Columns::append`] does.
    ///
    /// # Errors
    /// A body that breaks a rule of the format. The set is then unchanged.
    pub fn append_body(&mut self, body: &Body, columns_in_schema: usize) -> Result<(), Damage> {
        self.append_block(body.head, body.bytes(), columns_in_schema)
    }

    /// Appends single rows of a verified body for which [`Body::decodes_single_rows`] is true. The row numbers `rows` must be
    /// strictly ascending.
    ///
    /// # Errors
    /// As [`Columns::append_body`]; other rows are not checked.
    ///
    /// # Panics
    /// If the body does not support it, or a number is out of range or not greater than the one before.
    pub fn append_rows(&mut self, body: &Body, columns_in_schema: usize, rows: &[u32]) -> Result<(), Damage> {
        assert!(body.decodes_single_rows(), "rows of a columnar body are decoded together");
        assert!(rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|last| *last < body.head.rows));
        self.append_counted(columns_in_schema, rows.len(), |set, present, budget| {
            set.append_small(body.head, body.bytes(), present, Some(rows), budget)
        })
    }

    fn append_block(&mut self, head: &Head, block: &[u8], columns_in_schema: usize) -> Result<(), Damage> {
        self.append_counted(columns_in_schema, head.rows as usize, |set, present, budget| match head.body_layout {
            BodyLayout::Small => set.append_small(head, block, present, None, budget),
            BodyLayout::Columnar => set.append_columnar(head, block, present, budget),
        })
    }

    /// Appends `rows` rows with `append`, which gets the number of columns in the chunk: all of them or none.
    fn append_counted(
        &mut self,
        columns_in_schema: usize,
        rows: usize,
        append: impl FnOnce(&mut Self, usize, &mut Budget) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        // One call adds at most the two budgets below, so a set that passes this test stays below 2 GiB.
        if self.bytes > SET_BYTES_MAX {
            return Err(Damage::malformed("the set of columns is full: finish it and start another"));
        }
        // Missing columns have a separate budget, so that a chunk at the limit stays readable after columns were added.
        let (mut budget, mut missing) = (Budget(self.decoded_bytes_max), Budget(MISSING_BYTES_MAX));
        let present = columns_in_schema.min(self.layout.columns().len());
        match append(self, present, &mut budget).and_then(|()| self.append_missing(rows, present, &mut missing)) {
            Ok(()) => {
                self.rows += rows;
                self.bytes += self.decoded_bytes_max - budget.0 + MISSING_BYTES_MAX - missing.0;
                Ok(())
            }
            Err(damage) => {
                // Columns that were decoded before the error have grown; `self.rows` does not count their new rows yet.
                self.builders.iter_mut().for_each(|builder| builder.truncate(self.rows));
                Err(damage)
            }
        }
    }

    /// Appends the rows of a small block: all, or those numbered in `picked`.
    fn append_small(
        &mut self,
        head: &Head,
        block: &[u8],
        present: usize,
        picked: Option<&[u32]>,
        budget: &mut Budget,
    ) -> Result<(), Damage> {
        let mut reader = Reader::new(block);
        skip_all_hidden(head, &mut reader)?;
        let mut reader = SmallReader::new(reader, self.layout.nodes_before(present))?;
        let rows = head.rows as usize;
        // The small form has no offsets of columns, so columns without a place are walked, too. `places` ends with the
        // last projected column, where the walk stops.
        for (node, place) in self.layout.columns()[..present].iter().zip(&self.places) {
            match (place.map(|place| &mut self.builders[place as usize]), picked) {
                (Some(builder), None) => reader.read(node, builder, rows, budget)?,
                (Some(builder), Some(picked)) => reader.pick(node, builder, rows, picked, budget)?,
                (None, _) => reader.skip(node, rows)?,
            }
        }
        // Only a walk through all columns of the chunk shows whether bytes are left over.
        if self.places.len() >= present && !reader.is_empty() {
            return Err(Damage::malformed("bytes follow the last column"));
        }
        Ok(())
    }

    fn append_columnar(&mut self, head: &Head, body: &[u8], present: usize, budget: &mut Budget) -> Result<(), Damage> {
        let mut reader = Reader::new(body);
        skip_all_hidden(head, &mut reader)?;
        let mut directory = Directory::new(reader, present)?;
        for (node, place) in self.layout.columns()[..present].iter().zip(&self.places) {
            let column = directory.next()?;
            if let Some(place) = place {
                read_column(column, node, &mut self.builders[*place as usize], head.rows as usize, budget)?;
            }
        }
        Ok(())
    }

    /// Fills the columns that are not in the chunk's schema version.
    fn append_missing(&mut self, rows: usize, present: usize, budget: &mut Budget) -> Result<(), Damage> {
        let columns = self.layout.columns().iter().zip(&self.places).enumerate().skip(present);
        for (column, (node, place)) in columns {
            let Some(place) = place else { continue };
            let builder = &mut self.builders[*place as usize];
            match self.defaults.0.get(&column) {
                Some(value) => {
                    for _ in 0..rows {
                        SmallReader::new(Reader::new(&value.block), node.node_count)?.read(node, builder, 1, budget)?;
                    }
                }
                None if node.nullable => {
                    budget.charge(rows.checked_mul(node.null_row_bytes()))?;
                    builder.push_masked(rows)?;
                }
                None => return Err(Damage::malformed("a column is missing that has neither nulls nor a default")),
            }
        }
        Ok(())
    }

    /// The appended rows, in the order of their chunks.
    pub fn finish(self) -> RecordBatch {
        let arrays = self.builders.into_iter().map(Builder::finish).collect();
        // A projection without columns has no array from which Arrow could take the number of rows.
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        // Lengths, types and the absence of nulls are guaranteed by construction.
        RecordBatch::try_new_with_options(self.schema, arrays, &options).expect("decoded columns fit their schema")
    }
}
