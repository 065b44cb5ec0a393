//! Decodes the bytes of a result into Arrow columns.
//!
//! A result contains its rows one after the other, each value after its length. Rows are decoded in blocks: first the values of
//! a block are located, then each column appends its values in a loop that is specialized for their type.

mod cells;
mod column;
mod nested;
mod number;
mod plain;

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Schema, SchemaRef};
use chronotile_cql::CqlError;
use chronotile_cql::scylla::deserialize::row::ColumnIterator;
use chronotile_cql::scylla::frame::response::result::{ColumnSpec, ColumnType};
use chronotile_cql::scylla::response::query_result::QueryRowsResult;

use crate::error::{Result, TablesError};
use crate::types::Mapping;
use cells::{Cell, Cursor, index};

/// Values located at a time; their positions fill half of an L2 cache.
const BLOCK_VALUES: usize = 32 * 1024;
/// Minimum number of rows in a block, for any number of columns.
const BLOCK_ROWS_MIN: usize = 64;

/// An error in a value, before its column is known.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The bytes do not match the type.
    Malformed(String),
    /// The value does not fit the Arrow type.
    Range(String),
}

impl Fault {
    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed(reason.into())
    }

    pub(crate) fn range(reason: impl Into<String>) -> Self {
        Self::Range(reason.into())
    }

    fn of_column(self, column: &str) -> TablesError {
        let column = column.to_owned();
        match self {
            Self::Malformed(reason) => TablesError::Malformed { column, reason },
            Self::Range(reason) => TablesError::Range { column, reason },
        }
    }
}

/// Builds one column.
trait Builder: Send {
    /// Appends values located in `frame`. After an error the builder must not be used again.
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> std::result::Result<(), Fault>;

    /// Returns the column.
    fn finish(self: Box<Self>) -> std::result::Result<ArrayRef, Fault>;
}

type BoxedBuilder = Box<dyn Builder>;

/// Decodes results of one statement.
#[derive(Clone, Debug)]
pub struct Decoder {
    schema: SchemaRef,
    types: Vec<ColumnType<'static>>,
    mappings: Vec<Mapping>,
    row_bytes: usize,
}

impl Decoder {
    /// A decoder for results with these columns.
    ///
    /// # Errors
    /// [`TablesError::Request`] for an invalid mapping, [`TablesError::UnknownType`] for a type that cannot be read.
    pub fn new(columns: &[ColumnSpec<'_>], mapping: Mapping) -> Result<Self> {
        Self::of_columns(columns, vec![mapping; columns.len()])
    }

    /// A decoder for results with these columns, with one mapping per column.
    ///
    /// # Errors
    /// As [`Self::new`], and [`TablesError::Request`] if the number of mappings differs from that of the columns.
    pub fn of_columns(columns: &[ColumnSpec<'_>], mappings: Vec<Mapping>) -> Result<Self> {
        if mappings.len() != columns.len() {
            let reason = format!("{} mappings for {} columns", mappings.len(), columns.len());
            return Err(TablesError::Request { reason });
        }
        mappings.iter().try_for_each(Mapping::check)?;
        let fields = columns.iter().zip(&mappings).map(|(column, mapping)| mapping.field(column.name(), column.typ()));
        let schema = Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?));
        let types = columns.iter().map(|column| column.typ().clone().into_owned()).collect();
        let row_bytes = schema.fields().iter().map(|field| bytes_of(field.data_type())).sum();
        Ok(Self { schema, types, mappings, row_bytes })
    }

    /// The Arrow schema.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Size of a row in Arrow in bytes, without parts whose size depends on the values.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Checks that a result has the columns of this decoder.
    ///
    /// # Errors
    /// [`TablesError::Altered`].
    pub fn check(&self, columns: &[ColumnSpec<'_>]) -> Result<()> {
        if columns.len() != self.types.len() {
            let reason = format!("it had {} columns and has {}", self.types.len(), columns.len());
            return Err(TablesError::Altered { reason });
        }
        let fields = self.schema.fields().iter().zip(&self.types);
        let changed =
            columns.iter().zip(fields).find(|(new, (field, cql))| new.name() != field.name() || new.typ() != *cql);
        match changed {
            Some((new, (field, _))) => {
                let reason = format!("column {:?} is now {:?} of type {:?}", field.name(), new.name(), new.typ());
                Err(TablesError::Altered { reason })
            }
            None => Ok(()),
        }
    }

    /// The rows of one result; `frame` begins with the first value of the first row.
    ///
    /// # Errors
    /// [`TablesError::Malformed`] and [`TablesError::Range`].
    pub fn decode(&self, frame: &[u8], rows: usize) -> Result<RecordBatch> {
        let name = |column: usize| self.schema.field(column).name();
        let whole = |fault: Fault| fault.of_column("");
        let columns = self.types.len();
        let mut cursor = Cursor::new(frame).map_err(whole)?;
        // Every value takes at least the four bytes of its length: a larger row count is invalid.
        if rows.checked_mul(columns * 4).is_none_or(|bytes| bytes > frame.len()) {
            return Err(whole(Fault::malformed(format!("{rows} rows in {} bytes", frame.len()))));
        }
        let mut builders = self.builders(rows)?;
        let block_rows = (BLOCK_VALUES / columns.max(1)).max(BLOCK_ROWS_MIN);
        let mut cells = vec![];
        let mut done = 0;
        while done < rows {
            let now = block_rows.min(rows - done);
            index(&mut cursor, columns, now, &mut cells).map_err(|(column, fault)| fault.of_column(name(column)))?;
            for (column, builder) in builders.iter_mut().enumerate() {
                let values = &cells[column * now..][..now];
                builder.append(frame, values).map_err(|fault| fault.of_column(name(column)))?;
            }
            done += now;
        }
        cursor.end().map_err(whole)?;
        let arrays = builders.into_iter().enumerate();
        let arrays = arrays.map(|(column, builder)| builder.finish().map_err(|fault| fault.of_column(name(column))));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), arrays.collect::<Result<Vec<_>>>()?, &options)
            .map_err(|error| whole(Fault::malformed(error.to_string())))
    }

    /// The rows of one result of the driver.
    ///
    /// # Errors
    /// As [`Self::check`] and [`Self::decode`].
    pub fn answer(&self, rows: &QueryRowsResult) -> Result<RecordBatch> {
        self.check(rows.column_specs().as_slice())?;
        self.decode(&row_bytes(rows)?, rows.rows_num())
    }

    fn builders(&self, rows: usize) -> Result<Vec<BoxedBuilder>> {
        let fields = self.schema.fields().iter().zip(&self.types).zip(&self.mappings);
        let builder = |((field, cql), mapping): ((&arrow_schema::FieldRef, &ColumnType<'_>), &Mapping)| {
            column::builder(cql, field, *mapping, rows).map_err(|fault| fault.of_column(field.name()))
        };
        fields.map(builder).collect()
    }
}

/// Bytes per value, as far as the type determines them.
fn bytes_of(data_type: &DataType) -> usize {
    match data_type {
        DataType::FixedSizeList(item, len) => {
            bytes_of(item.data_type()).saturating_mul(usize::try_from(*len).unwrap_or(0))
        }
        DataType::Struct(fields) => fields.iter().map(|field| bytes_of(field.data_type())).sum(),
        DataType::FixedSizeBinary(len) => usize::try_from(*len).unwrap_or(0),
        other => other.primitive_width().unwrap_or(4),
    }
}

/// The bytes of all rows. The driver exposes only single values, but each refers to the frame that contains it.
fn row_bytes(rows: &QueryRowsResult) -> Result<Cow<'_, [u8]>> {
    for row in rows.rows::<ColumnIterator<'_, '_>>().map_err(|error| unexpected(&error))? {
        for column in row.map_err(|error| unexpected(&error))? {
            let Some(value) = column.map_err(|error| unexpected(&error))?.slice else { continue };
            let whole = value.as_original_frame_bytes();
            if whole.len() != rows.rows_bytes_size() {
                return Err(unexpected(&"rows of an unknown layout"));
            }
            return Ok(Cow::Borrowed(whole));
        }
    }
    // All values are null, which four bytes of ones each represent.
    Ok(Cow::Owned(vec![0xff; rows.rows_bytes_size()]))
}

pub(crate) fn unexpected(error: &impl std::fmt::Display) -> TablesError {
    CqlError::Protocol { reason: error.to_string() }.into()
}

#[cfg(test)]
mod tests;
