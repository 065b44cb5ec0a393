//! The encoder of chunks.

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch};

use crate::columnar_write::ColumnWriter;
use crate::error::EncodeError;
use crate::extract::{NodeData, Scratch, Sink, Values, extract};
use crate::head::{Binding, BodyInfo, BodyLayout, ChunkRows, Zone, put_head};
use crate::layout::Layout;
use crate::number::Number;
use crate::packed::{COMPRESS_BYTES_MIN, Compression, compress};
use crate::small_write::{Packing, SmallWriter, put_small};
use crate::text::put_filters;
use crate::wire::put_varint;
use crate::{DECODED_BYTES_MAX, ROWS_MAX};

/// Maximum number of rows of a chunk in the small form (measured: `docs/decisions/001-chunk-format.md`).
const SMALL_ROWS_MAX: usize = 128;
/// Maximum size of text and binary values of a chunk in the small form: more compress far better column by column, with zstd.
const SMALL_TEXT_BYTES_MAX: usize = 64 << 10;

/// An encoded chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The head, for [`crate::Head::parse`].
    pub head: Vec<u8>,
    /// The body, for [`crate::Columns::append`].
    pub body: Vec<u8>,
    /// Number of rows.
    pub rows: u32,
}

/// Encodes a chunk in the form that suits its rows. The same input gives the same bytes.
///
/// `zone` must cover every row; `unique_ids` is stored in the head for readers and not checked. `binding` is the place where the
/// chunk will be stored.
///
/// # Errors
/// `rows` or `zone` do not fit the layout or the limits of the format.
pub fn encode(
    layout: &Layout,
    schema_version: u32,
    rows: &ChunkRows,
    zone: &Zone,
    unique_ids: bool,
    binding: &Binding,
) -> Result<Encoded, EncodeError> {
    let is_small = rows.batch.num_rows() <= SMALL_ROWS_MAX && text_bytes(rows.batch) <= SMALL_TEXT_BYTES_MAX;
    let body_layout = if is_small { BodyLayout::Small } else { BodyLayout::Columnar };
    encode_as(body_layout, layout, schema_version, rows, zone, unique_ids, binding)
}

/// Size of the values of text and binary columns in bytes, without children of lists and structs.
fn text_bytes(batch: &RecordBatch) -> usize {
    // A sliced array keeps the offsets of the whole array, so they do not always begin at 0.
    let ends = |offsets: &[i32]| (offsets[offsets.len() - 1] - offsets[0]) as usize;
    let bytes = |column: &ArrayRef| {
        let text = column.as_string_opt::<i32>().map(|array| ends(array.value_offsets()));
        text.or_else(|| column.as_binary_opt::<i32>().map(|array| ends(array.value_offsets()))).unwrap_or(0)
    };
    batch.columns().iter().map(bytes).sum()
}

/// Encodes a chunk as [`encode`] does, in a given form.
///
/// # Errors
/// As [`encode`].
pub fn encode_as(
    body_layout: BodyLayout,
    layout: &Layout,
    schema_version: u32,
    rows: &ChunkRows,
    zone: &Zone,
    unique_ids: bool,
    binding: &Binding,
) -> Result<Encoded, EncodeError> {
    check(layout, rows, zone)?;
    let rows = &without_single_origin(rows);
    let (body, compression, block_bytes) = match body_layout {
        BodyLayout::Small => compressed(small_block(layout, rows, Packing::Bits)?),
        BodyLayout::Columnar => {
            let body = columnar_body(layout, rows)?;
            let len = body.len();
            (body, Compression::None, len)
        }
    };
    seal(body_layout, (body, compression, block_bytes), schema_version, rows, zone, unique_ids, binding)
}

/// Encodes a chunk in plain form: the small form without compression, for any number of rows. Every release produces the same
/// bytes for the same rows, so an engine can store the rows and rebuild the body ([`plain_body`]).
///
/// # Errors
/// As [`encode`].
pub fn encode_plain(
    layout: &Layout,
    schema_version: u32,
    rows: &ChunkRows,
    zone: &Zone,
    unique_ids: bool,
    binding: &Binding,
) -> Result<Encoded, EncodeError> {
    check(layout, rows, zone)?;
    let rows = &without_single_origin(rows);
    let block = small_block(layout, rows, Packing::Bytes)?;
    let len = block.len();
    seal(BodyLayout::Small, (block, Compression::None, len), schema_version, rows, zone, unique_ids, binding)
}

/// The body that [`encode_plain`] writes for these rows.
///
/// # Errors
/// As [`encode`].
pub fn plain_body(layout: &Layout, rows: &ChunkRows) -> Result<Vec<u8>, EncodeError> {
    check_rows(layout, rows)?;
    small_block(layout, &without_single_origin(rows), Packing::Bytes)
}

/// Leaves out row origins if there is only one origin.
fn without_single_origin<'a>(rows: &ChunkRows<'a>) -> ChunkRows<'a> {
    ChunkRows { row_origin: rows.row_origin.filter(|_| rows.origins.len() > 1), ..*rows }
}

fn seal(
    body_layout: BodyLayout,
    (body, compression, block_bytes): (Vec<u8>, Compression, usize),
    schema_version: u32,
    rows: &ChunkRows,
    zone: &Zone,
    unique_ids: bool,
    binding: &Binding,
) -> Result<Encoded, EncodeError> {
    // No body is longer than its block.
    if block_bytes > DECODED_BYTES_MAX {
        return Err(EncodeError::TooLarge);
    }
    // Filters may take a share of the size of the body, so they come after its encoding.
    let text_filters = put_filters(rows.batch, rows.text, body.len());
    let info = BodyInfo { body_layout, compression, block_bytes, body: &body, text_filters: text_filters.as_deref() };
    let head = put_head(schema_version, rows, zone, unique_ids, &info, binding);
    Ok(Encoded { head, body, rows: rows.batch.num_rows() as u32 })
}

fn check(layout: &Layout, rows: &ChunkRows, zone: &Zone) -> Result<(), EncodeError> {
    if zone.time_max < zone.time_min || zone.id_max < zone.id_min {
        return Err(EncodeError::Zone);
    }
    check_rows(layout, rows)
}

fn check_rows(layout: &Layout, rows: &ChunkRows) -> Result<(), EncodeError> {
    let count = rows.batch.num_rows();
    if count == 0 || count > ROWS_MAX as usize {
        return Err(EncodeError::RowCount(count));
    }
    let (expected, found) = (layout.columns().len(), rows.batch.num_columns());
    if expected != found {
        return Err(EncodeError::ColumnCount { expected, found });
    }
    if rows.text.iter().any(|column| *column >= found) {
        return Err(EncodeError::ColumnCount { expected, found });
    }
    if rows.origins.is_empty() {
        return Err(EncodeError::Origins("no origin given"));
    }
    if let Some(row_origin) = rows.row_origin {
        if row_origin.len() != count {
            return Err(EncodeError::Origins("the number of indexes differs from the number of rows"));
        }
        if row_origin.iter().any(|index| *index as usize >= rows.origins.len()) {
            return Err(EncodeError::Origins("an index is past the last origin"));
        }
    } else if rows.origins.len() > 1 {
        return Err(EncodeError::Origins("several origins need an index for each row"));
    }
    if rows.ordinals.is_some_and(|ordinals| ordinals.len() != count) {
        return Err(EncodeError::Origins("the number of ordinals differs from the number of rows"));
    }
    Ok(())
}

/// Counts the decoded size of a chunk by the decoder's rule, and passes the nodes to `sink`.
pub(crate) struct Metered<'a, S> {
    pub sink: &'a mut S,
    pub bytes: &'a mut usize,
}

impl<S: Sink> Sink for Metered<'_, S> {
    fn node(&mut self, data: NodeData) {
        // Null rows count like others, because the decoder fills them with zeros. The sums must equal what `Budget`
        // charges: a chunk that the encoder counts as smaller may be one that no reader accepts.
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
    rows: &ChunkRows,
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

/// The decoded size of a chunk in bytes, as the encoder counts it. For tests.
#[doc(hidden)]
pub fn decoded_bytes(layout: &Layout, rows: &ChunkRows) -> Result<usize, EncodeError> {
    struct Ignore;
    impl Sink for Ignore {
        fn node(&mut self, _: NodeData) {}
    }
    let (mut bytes, mut scratch) = (0, Scratch::default());
    for column in 0..layout.columns().len() {
        extract_column(layout, rows, column, &mut Ignore, &mut bytes, &mut scratch)?;
    }
    Ok(bytes)
}

/// Passes the hidden columns, which are not part of the schema, to `put`.
fn hidden(rows: &ChunkRows, mut put: impl FnMut(NodeData)) {
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

/// The block of the small form.
fn small_block(layout: &Layout, rows: &ChunkRows, packing: Packing) -> Result<Vec<u8>, EncodeError> {
    let columns = layout.columns().len();
    let mut writer = SmallWriter::with_capacity(layout.nodes_before(columns), 4096, packing);
    let (mut decoded_bytes, mut scratch) = (0, Scratch::default());
    for column in 0..columns {
        extract_column(layout, rows, column, &mut writer, &mut decoded_bytes, &mut scratch)?;
    }
    let mut block = Vec::new();
    hidden(rows, |data| {
        let at = block.len();
        // The tag precedes the values but follows from encoding them, so a zero keeps its place.
        block.push(0);
        block[at] = put_small(&mut block, &data, packing);
    });
    writer.append_to(&mut block);
    Ok(block)
}

/// The body of a block, its compression, and the size of the block.
fn compressed(block: Vec<u8>) -> (Vec<u8>, Compression, usize) {
    let len = block.len();
    if len >= COMPRESS_BYTES_MIN
        && let Some(packed) = compress(&block, Compression::Lz4)
    {
        return (packed, Compression::Lz4, len);
    }
    (block, Compression::None, len)
}

fn columnar_body(layout: &Layout, rows: &ChunkRows) -> Result<Vec<u8>, EncodeError> {
    let mut body = Vec::new();
    hidden(rows, |data| {
        let mut column = Vec::new();
        ColumnWriter { out: &mut column }.node(data);
        put_varint(&mut body, column.len() as u64);
        body.extend_from_slice(&column);
    });
    // The directory in `body` precedes the columns, so encoded columns gather in `columns` until all lengths are known.
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
