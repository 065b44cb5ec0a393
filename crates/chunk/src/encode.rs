//! Writing a chunk.

use arrow_array::RecordBatch;

use crate::columnar_write::ColumnWriter;
use crate::extract::{NodeData, Scratch, Sink, Values, extract};
use crate::head::{Binding, Origin, Sealed, Zone, put_head};
use crate::layout::Layout;
use crate::number::Number;
use crate::packed::{Compression, compress};
use crate::small_write::{SmallWriter, put_small};
use crate::wire::put_varint;
use crate::{DECODED_BYTES_MAX, ROWS_MAX};

/// Up to this many rows a chunk takes the small form (measured: `docs/decisions/001-chunk-format.md`).
const SMALL_ROWS_MAX: usize = 128;
/// Blocks shorter than this are not worth a try at compression.
const COMPRESS_BYTES_MIN: usize = 256;

/// How a body is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One block with the plain values of every column, possibly compressed as a whole.
    Small,
    /// One compressed byte string per column, found through a directory.
    Columnar,
}

/// The rows of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Exactly the columns of the layout's schema, in its types.
    pub batch: &'a RecordBatch,
    /// The batches the rows come from; at least one.
    pub origins: &'a [Origin],
    /// Per row an index into `origins`; `None` if all rows come from the first.
    pub row_origin: Option<&'a [u32]>,
    /// Per row its number within its batch, for datasets without id columns.
    pub ordinals: Option<&'a [i64]>,
}

/// A written chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// What [`crate::Head::parse`] reads.
    pub head: Vec<u8>,
    /// What [`crate::Columns::append`] reads.
    pub body: Vec<u8>,
    /// Number of rows.
    pub rows: u32,
}

/// Rows that cannot be written as a chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// No rows, or too many.
    #[error("a chunk holds 1 to {ROWS_MAX} rows, not {0}: split the rows")]
    RowCount(usize),
    /// The decoded columns would exceed the limit.
    #[error("the rows take more than {DECODED_BYTES_MAX} bytes: split them, or shorten the greatest values")]
    TooLarge,
    /// The batch has other columns than the layout.
    #[error("the batch has {found} columns where the schema has {expected}")]
    ColumnCount {
        /// Columns of the layout.
        expected: usize,
        /// Columns of the batch.
        found: usize,
    },
    /// A column does not fit its place in the schema.
    #[error("column {column:?}: {reason}")]
    Column {
        /// The column's name.
        column: String,
        /// What is wrong with it.
        reason: Box<EncodeError>,
    },
    /// An array has another type than its column.
    #[error("the array has another type than the schema says: cast it first")]
    WrongType,
    /// A null where the schema allows none.
    #[error("a value is null where the schema allows no nulls")]
    UnexpectedNull,
    /// Origins, row origins or ordinals do not match the rows.
    #[error("the rows' origins are inconsistent: {0}")]
    Origins(&'static str),
    /// A range of the zone ends before it begins.
    #[error("the zone ends before it begins")]
    Zone,
}

/// Writes a chunk, in the form that suits the number of rows. The same input gives the same bytes.
///
/// `zone` must cover every row; `unique_ids` is kept in the head for readers, unchecked. `binding` says where the chunk
/// will lie.
///
/// # Errors
/// Whatever in `rows` or `zone` does not fit the layout or the limits of the format.
pub fn encode(
    layout: &Layout,
    schema_version: u32,
    rows: &Rows,
    zone: &Zone,
    unique_ids: bool,
    binding: &Binding,
) -> Result<Encoded, EncodeError> {
    let form = if rows.batch.num_rows() <= SMALL_ROWS_MAX { Form::Small } else { Form::Columnar };
    encode_as(form, layout, schema_version, rows, zone, unique_ids, binding)
}

/// Writes a chunk as [`encode`] does, in the form given.
///
/// # Errors
/// As [`encode`].
pub fn encode_as(
    form: Form,
    layout: &Layout,
    schema_version: u32,
    rows: &Rows,
    zone: &Zone,
    unique_ids: bool,
    binding: &Binding,
) -> Result<Encoded, EncodeError> {
    check(layout, rows, zone)?;
    // Row origins say nothing where there is one origin.
    let rows = &Rows { row_origin: rows.row_origin.filter(|_| rows.origins.len() > 1), ..*rows };
    let (body, compression, block_bytes) = match form {
        Form::Small => small_body(layout, rows)?,
        Form::Columnar => {
            let body = columnar_body(layout, rows)?;
            let len = body.len();
            (body, Compression::None, len)
        }
    };
    if body.len() > DECODED_BYTES_MAX || block_bytes > DECODED_BYTES_MAX {
        return Err(EncodeError::TooLarge);
    }
    let sealed = Sealed { form, compression, block_bytes, body: &body };
    let head = put_head(schema_version, rows, zone, unique_ids, &sealed, binding);
    Ok(Encoded { head, body, rows: rows.batch.num_rows() as u32 })
}

fn check(layout: &Layout, rows: &Rows, zone: &Zone) -> Result<(), EncodeError> {
    let count = rows.batch.num_rows();
    if count == 0 || count > ROWS_MAX as usize {
        return Err(EncodeError::RowCount(count));
    }
    let (expected, found) = (layout.columns().len(), rows.batch.num_columns());
    if expected != found {
        return Err(EncodeError::ColumnCount { expected, found });
    }
    if rows.origins.is_empty() {
        return Err(EncodeError::Origins("there is none"));
    }
    if let Some(row_origin) = rows.row_origin {
        if row_origin.len() != count {
            return Err(EncodeError::Origins("not one index per row"));
        }
        if row_origin.iter().any(|index| *index as usize >= rows.origins.len()) {
            return Err(EncodeError::Origins("an index points at no origin"));
        }
    } else if rows.origins.len() > 1 {
        return Err(EncodeError::Origins("several without an index per row"));
    }
    if rows.ordinals.is_some_and(|ordinals| ordinals.len() != count) {
        return Err(EncodeError::Origins("not one ordinal per row"));
    }
    if zone.time_max < zone.time_min || zone.id_max < zone.id_min {
        return Err(EncodeError::Zone);
    }
    Ok(())
}

/// Counts what a chunk will take when decoded, by the same rule as the decoder, and passes the nodes on.
struct Metered<'a, S> {
    sink: &'a mut S,
    bytes: &'a mut usize,
}

impl<S: Sink> Sink for Metered<'_, S> {
    fn node(&mut self, data: NodeData) {
        *self.bytes += match &data.values {
            Values::Fixed { width, .. } => data.rows * width,
            Values::Var { bytes, .. } => data.rows * 4 + bytes.len(),
            Values::List { .. } => data.rows * 4,
            Values::Bool(_) | Values::Struct => data.rows,
        };
        self.sink.node(data);
    }
}

fn extract_column(
    layout: &Layout,
    rows: &Rows,
    column: usize,
    sink: &mut impl Sink,
    bytes: &mut usize,
    scratch: &mut Scratch,
) -> Result<(), EncodeError> {
    let array = rows.batch.column(column);
    let mut metered = Metered { sink, bytes };
    extract(&layout.columns()[column], array.as_ref(), &mut metered, scratch).map_err(|reason| {
        EncodeError::Column { column: layout.schema().field(column).name().clone(), reason: Box::new(reason) }
    })?;
    if *bytes > DECODED_BYTES_MAX { Err(EncodeError::TooLarge) } else { Ok(()) }
}

/// Sends the hidden columns, those that the schema does not name, to `put`.
fn hidden(rows: &Rows, mut put: impl FnMut(NodeData)) {
    let count = rows.batch.num_rows();
    let mut send = |bytes: &[u8], number: Number| {
        let values = Values::Fixed { width: number.width(), number: Some(number), bytes };
        put(NodeData { rows: count, present: count, bitmap: None, values });
    };
    if let Some(indexes) = rows.row_origin {
        send(&indexes.iter().flat_map(|index| index.to_le_bytes()).collect::<Vec<_>>(), Number::U32);
    }
    if let Some(ordinals) = rows.ordinals {
        send(&ordinals.iter().flat_map(|ordinal| ordinal.to_le_bytes()).collect::<Vec<_>>(), Number::I64);
    }
}

/// The body in the small form, how it is compressed, and its size before that.
fn small_body(layout: &Layout, rows: &Rows) -> Result<(Vec<u8>, Compression, usize), EncodeError> {
    let columns = layout.columns().len();
    let mut writer = SmallWriter::with_capacity(layout.nodes_before(columns), 4096);
    let (mut decoded_bytes, mut scratch) = (0, Scratch::default());
    for column in 0..columns {
        extract_column(layout, rows, column, &mut writer, &mut decoded_bytes, &mut scratch)?;
    }
    let mut block = Vec::new();
    hidden(rows, |data| {
        let at = block.len();
        block.push(0);
        block[at] = put_small(&mut block, &data);
    });
    writer.append_to(&mut block);
    let len = block.len();
    if len >= COMPRESS_BYTES_MIN
        && let Some(packed) = compress(&block, Compression::Lz4)
    {
        return Ok((packed, Compression::Lz4, len));
    }
    Ok((block, Compression::None, len))
}

fn columnar_body(layout: &Layout, rows: &Rows) -> Result<Vec<u8>, EncodeError> {
    let mut body = Vec::new();
    hidden(rows, |data| {
        let mut column = Vec::new();
        ColumnWriter { out: &mut column }.node(data);
        put_varint(&mut body, column.len() as u64);
        body.extend_from_slice(&column);
    });
    let (mut decoded_bytes, mut scratch) = (0, Scratch::default());
    let mut columns = Vec::new();
    for column in 0..layout.columns().len() {
        let start = columns.len();
        let mut writer = ColumnWriter { out: &mut columns };
        extract_column(layout, rows, column, &mut writer, &mut decoded_bytes, &mut scratch)?;
        put_varint(&mut body, (columns.len() - start) as u64);
    }
    body.extend_from_slice(&columns);
    Ok(body)
}
