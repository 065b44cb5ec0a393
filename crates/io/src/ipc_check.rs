//! Checks the header of an Arrow IPC batch against its schema and its body.
//!
//! Arrow's decoder validates offsets, text, dictionary indices and null counts itself. But it panics at a buffer
//! outside the body, and ignores surplus nodes and buffers. This module refuses both before anything is decoded.

use arrow_ipc::{Message, MetadataVersion, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, UnionMode};

/// Refuses a record batch or dictionary whose header contradicts `schema`, or refers to bytes outside a body of
/// `body_bytes`. Other messages pass.
///
/// # Errors
/// The first contradiction, with its column.
pub fn check_batch(message: &Message<'_>, schema: &Schema, body_bytes: usize) -> Result<(), ArrowError> {
    if let Some(batch) = message.header_as_record_batch() {
        return check(&batch, message.version(), schema.fields().iter().map(AsRef::as_ref), body_bytes);
    }
    let Some(dictionary) = message.header_as_dictionary_batch() else { return Ok(()) };
    let batch = dictionary.data().ok_or_else(|| refused("a dictionary has no values"))?;
    #[expect(deprecated, reason = "the number of a dictionary is all that names its columns")]
    let fields = schema.fields_with_dict_id(dictionary.id());
    let Some((name, DataType::Dictionary(_, values))) = fields.first().map(|field| (field.name(), field.data_type()))
    else {
        return Err(refused(format!("dictionary {} belongs to no column", dictionary.id())));
    };
    check(&batch, message.version(), [&Field::new(name, values.as_ref().clone(), true)], body_bytes)
}

fn refused(reason: impl Into<String>) -> ArrowError {
    ArrowError::IpcError(reason.into())
}

fn check<'a>(
    batch: &RecordBatch<'_>,
    version: MetadataVersion,
    fields: impl IntoIterator<Item = &'a Field>,
    body_bytes: usize,
) -> Result<(), ArrowError> {
    let nodes: Vec<_> = batch.nodes().into_iter().flatten().map(|node| (node.length(), node.null_count())).collect();
    let buffers: Vec<_> =
        batch.buffers().into_iter().flatten().map(|buffer| (buffer.offset(), buffer.length())).collect();
    if let Some((offset, length)) = buffers.iter().find(|buffer| !is_inside(**buffer, body_bytes)) {
        return Err(refused(format!(
            "a batch names a buffer of {length} bytes at {offset}, outside of its {body_bytes} bytes"
        )));
    }
    let variadic: Vec<i64> = batch.variadicBufferCounts().into_iter().flatten().collect();
    let mut left = Unassigned { version, nodes: nodes.iter(), buffers: buffers.len(), variadic: variadic.iter() };
    for field in fields {
        let rows = left.take(field)?;
        if rows != batch.length() {
            let reason = format!("column {:?} has {rows} values in a batch of {} rows", field.name(), batch.length());
            return Err(refused(reason));
        }
    }
    match (left.nodes.len(), left.buffers, left.variadic.len()) {
        (0, 0, 0) => Ok(()),
        _ => Err(refused("a batch has more columns or buffers than its schema")),
    }
}

fn is_inside((offset, length): (i64, i64), body_bytes: usize) -> bool {
    let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) else { return false };
    offset.checked_add(length).is_some_and(|end| end <= body_bytes)
}

/// The nodes and buffers of a batch that are not assigned to a column yet.
struct Unassigned<'a> {
    version: MetadataVersion,
    /// Length and null count.
    nodes: std::slice::Iter<'a, (i64, i64)>,
    buffers: usize,
    /// For each column of views, its number of data buffers.
    variadic: std::slice::Iter<'a, i64>,
}

impl Unassigned<'_> {
    /// Assigns nodes and buffers to a column and its children; returns the column's length.
    fn take(&mut self, field: &Field) -> Result<i64, ArrowError> {
        let name = field.name();
        let Some((length, null_count)) = self.nodes.next().copied() else {
            return Err(refused(format!("a batch has fewer columns than its schema: {name:?} is missing")));
        };
        if length < 0 || !(0..=length).contains(&null_count) {
            return Err(refused(format!("column {name:?} has {length} values, {null_count} of them null")));
        }
        let buffers = self.own_buffers(field)?;
        let Some(left) = self.buffers.checked_sub(buffers) else {
            return Err(refused(format!("a batch has fewer buffers than its schema: those of {name:?} are missing")));
        };
        self.buffers = left;
        match field.data_type() {
            DataType::List(child)
            | DataType::LargeList(child)
            | DataType::ListView(child)
            | DataType::LargeListView(child)
            | DataType::FixedSizeList(child, _)
            | DataType::Map(child, _) => _ = self.take(child)?,
            DataType::Struct(children) => {
                for child in children {
                    self.take(child)?;
                }
            }
            DataType::RunEndEncoded(run_ends, values) => {
                self.take(run_ends)?;
                self.take(values)?;
            }
            DataType::Union(children, _) => {
                for (_, child) in children.iter() {
                    self.take(child)?;
                }
            }
            _ => {}
        }
        Ok(length)
    }

    /// Number of buffers of the column itself, without those of its children.
    fn own_buffers(&mut self, field: &Field) -> Result<usize, ArrowError> {
        Ok(match field.data_type() {
            DataType::Null | DataType::RunEndEncoded(..) => 0,
            DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
            DataType::ListView(_) | DataType::LargeListView(_) => 3,
            DataType::Utf8View | DataType::BinaryView => {
                let count = self.variadic.next().and_then(|count| usize::try_from(*count).ok());
                // Two more buffers come before the data buffers: the validity and the views.
                let count = count.and_then(|count| count.checked_add(2));
                count.ok_or_else(|| refused(format!("column {:?} lacks its number of data buffers", field.name())))?
            }
            // Before version 5, unions had a validity buffer.
            DataType::Union(_, mode) => {
                1 + usize::from(*mode == UnionMode::Dense) + usize::from(self.version < MetadataVersion::V5)
            }
            _ => 2,
        })
    }
}
