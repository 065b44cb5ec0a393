//! Extracts the values of a chunk from Arrow arrays: one [`NodeData`] per node, in depth-first order, without values under nulls.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType, BooleanArray};
use arrow_buffer::BooleanBuffer;
use arrow_schema::{DataType, TimeUnit};

use crate::bits;
use crate::error::EncodeError;
use crate::layout::{Kind, Node};
use crate::number::Number;

/// The values of one node.
pub(crate) struct NodeData<'a> {
    /// Rows of the node, nulls included.
    pub(crate) rows: usize,
    /// Rows that are not null.
    pub(crate) present: usize,
    /// One bit per row, padded with zeros; `None` if no row is null.
    pub(crate) bitmap: Option<&'a [u8]>,
    /// The values that are not null.
    pub(crate) values: Values<'a>,
}

pub(crate) enum Values<'a> {
    /// Bits, padded with zeros.
    Bool(&'a [u8]),
    Fixed {
        width: usize,
        number: Option<Number>,
        bytes: &'a [u8],
    },
    Var {
        lens: &'a [u32],
        bytes: &'a [u8],
    },
    List {
        lens: &'a [u32],
    },
    Struct,
}

/// Receives the nodes of a column, parents before children.
pub(crate) trait Sink {
    fn node(&mut self, data: NodeData);
}

/// Marks a row below a null parent. It becomes null if the child is nullable, else a zero or empty value, so that equal rows
/// always give equal bytes.
const MASKED: u32 = u32::MAX;

/// The rows of an array that belong to a node.
#[derive(Clone, Copy)]
enum Slots<'a> {
    All(usize),
    Pick(&'a [u32]),
}

/// Buffers that are reused for each column.
#[derive(Default)]
pub(crate) struct Scratch {
    present: Vec<u32>,
    bitmap: Vec<u8>,
    bytes: Vec<u8>,
    lens: Vec<u32>,
}

/// Passes the nodes of a column to `sink`.
pub(crate) fn extract(
    node: &Node,
    array: &dyn Array,
    sink: &mut impl Sink,
    scratch: &mut Scratch,
) -> Result<(), EncodeError> {
    walk(node, array, Slots::All(array.len()), sink, scratch)
}

fn walk(
    node: &Node,
    array: &dyn Array,
    slots: Slots,
    sink: &mut impl Sink,
    scratch: &mut Scratch,
) -> Result<(), EncodeError> {
    let Scratch { present, bitmap, bytes, lens } = scratch;
    // An array may have a validity buffer without a null; then its values can be taken as they are.
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let rows = match slots {
        Slots::All(rows) => rows,
        Slots::Pick(rows) => rows.len(),
    };
    let mut has_nulls = false;
    let chosen = if let (Slots::All(rows), None) = (slots, nulls) {
        Slots::All(rows)
    } else {
        present.clear();
        bitmap.clear();
        let is_present = |row: u32| match row {
            MASKED => Some(!node.nullable),
            row if nulls.is_none_or(|nulls| nulls.is_valid(row as usize)) => Some(true),
            _ => node.nullable.then_some(false),
        };
        let mut push = |row: u32| -> Result<bool, EncodeError> {
            let is_present = is_present(row).ok_or(EncodeError::UnexpectedNull)?;
            if is_present {
                present.push(row);
            }
            Ok(is_present)
        };
        let valid: Vec<bool> = match slots {
            Slots::All(rows) => (0..rows as u32).map(&mut push).collect::<Result<_, _>>()?,
            Slots::Pick(rows) => rows.iter().map(|row| push(*row)).collect::<Result<_, _>>()?,
        };
        has_nulls = present.len() < rows;
        bits::pack(bitmap, valid.into_iter());
        Slots::Pick(present.as_slice())
    };
    let count = match chosen {
        Slots::All(rows) => rows,
        Slots::Pick(rows) => rows.len(),
    };
    let bitmap = has_nulls.then_some(bitmap.as_slice());
    let mut send = |values| sink.node(NodeData { rows, present: count, bitmap, values });
    match &node.kind {
        Kind::Bool => {
            let array = array.as_boolean_opt().ok_or(EncodeError::WrongType)?;
            send(Values::Bool(gather_bits(array, chosen, bytes)));
        }
        Kind::Fixed { width, number } => {
            let all = fixed_bytes(node, array).ok_or(EncodeError::WrongType)?;
            send(Values::Fixed { width: *width, number: *number, bytes: gather_fixed(all, *width, chosen, bytes) });
        }
        Kind::Var { utf8 } => {
            let (offsets, data) = var_parts(array, *utf8).ok_or(EncodeError::WrongType)?;
            send(gather_var(offsets, data, chosen, lens, bytes));
        }
        Kind::List(item) => {
            let array = array.as_list_opt::<i32>().ok_or(EncodeError::WrongType)?;
            let items = gather_list(array.value_offsets(), chosen, lens)?;
            send(Values::List { lens });
            walk(item, array.values().as_ref(), Slots::Pick(&items), sink, &mut Scratch::default())?;
        }
        Kind::Struct(children) => {
            let array = array.as_struct_opt().filter(|a| a.num_columns() == children.len());
            let array = array.ok_or(EncodeError::WrongType)?;
            let below = child_slots(slots, chosen, bitmap, rows);
            send(Values::Struct);
            for (child, column) in children.iter().zip(array.columns()) {
                let below = below.as_deref().map_or(Slots::All(rows), Slots::Pick);
                walk(child, column.as_ref(), below, sink, &mut Scratch::default())?;
            }
        }
    }
    Ok(())
}

/// The rows of a struct's children: the rows of the struct, masked where it is null.
fn child_slots(slots: Slots, chosen: Slots, bitmap: Option<&[u8]>, rows: usize) -> Option<Vec<u32>> {
    let Slots::Pick(present) = chosen else { return None };
    let Some(bitmap) = bitmap else { return Some(present.to_vec()) };
    let row = |at: usize| match slots {
        Slots::All(_) => at as u32,
        Slots::Pick(rows) => rows[at],
    };
    Some((0..rows).map(|at| if bits::get(bitmap, at) { row(at) } else { MASKED }).collect())
}

fn gather_bits<'a>(array: &BooleanArray, chosen: Slots, out: &'a mut Vec<u8>) -> &'a [u8] {
    out.clear();
    let values: &BooleanBuffer = array.values();
    match chosen {
        Slots::All(rows) => bits::pack(out, values.iter().take(rows)),
        Slots::Pick(rows) => bits::pack(out, rows.iter().map(|&row| row != MASKED && values.value(row as usize))),
    }
    out
}

fn gather_fixed<'a>(all: &'a [u8], width: usize, chosen: Slots, out: &'a mut Vec<u8>) -> &'a [u8] {
    let Slots::Pick(rows) = chosen else { return all };
    out.clear();
    out.reserve(rows.len() * width);
    for &row in rows {
        if row == MASKED {
            out.resize(out.len() + width, 0);
        } else {
            let start = row as usize * width;
            out.extend_from_slice(&all[start..start + width]);
        }
    }
    out
}

fn gather_var<'a>(
    offsets: &[i32],
    data: &'a [u8],
    chosen: Slots,
    lens: &'a mut Vec<u32>,
    out: &'a mut Vec<u8>,
) -> Values<'a> {
    lens.clear();
    let Slots::Pick(rows) = chosen else {
        lens.extend(offsets.windows(2).map(|pair| (pair[1] - pair[0]) as u32));
        // A sliced array keeps offsets and bytes of the whole array, so its own bytes begin at its first offset.
        let bytes = &data[offsets[0] as usize..offsets[offsets.len() - 1] as usize];
        return Values::Var { lens, bytes };
    };
    out.clear();
    for &row in rows {
        let value = match row {
            MASKED => &[],
            row => &data[offsets[row as usize] as usize..offsets[row as usize + 1] as usize],
        };
        lens.push(value.len() as u32);
        out.extend_from_slice(value);
    }
    Values::Var { lens, bytes: out }
}

/// Fills `lens` and returns the rows of the item array that belong to the chosen lists.
fn gather_list(offsets: &[i32], chosen: Slots, lens: &mut Vec<u32>) -> Result<Vec<u32>, EncodeError> {
    lens.clear();
    let mut items = Vec::new();
    let mut push = |row: u32| {
        let (start, end) = if row == MASKED { (0, 0) } else { (offsets[row as usize], offsets[row as usize + 1]) };
        lens.push((end - start) as u32);
        items.extend(start as u32..end as u32);
        // Every item decodes to a byte or more, so more items exceed the limit whatever their type. The test comes here
        // because the list of items itself takes memory.
        if items.len() > crate::DECODED_BYTES_MAX { Err(EncodeError::TooLarge) } else { Ok(()) }
    };
    match chosen {
        Slots::All(rows) => (0..rows as u32).try_for_each(&mut push)?,
        Slots::Pick(rows) => rows.iter().try_for_each(|row| push(*row))?,
    }
    Ok(items)
}

fn var_parts(array: &dyn Array, utf8: bool) -> Option<(&[i32], &[u8])> {
    if utf8 {
        array.as_string_opt::<i32>().map(|a| (a.value_offsets(), a.value_data()))
    } else {
        array.as_binary_opt::<i32>().map(|a| (a.value_offsets(), a.value_data()))
    }
}

fn primitive_bytes<T: ArrowPrimitiveType>(array: &dyn Array) -> Option<&[u8]> {
    array.as_primitive_opt::<T>().map(|a| a.values().inner().as_slice())
}

/// The values of a fixed-width array, with the array's offset applied; `None` if its type differs from the node's.
fn fixed_bytes<'a>(node: &Node, array: &'a dyn Array) -> Option<&'a [u8]> {
    use DataType::*;
    if array.data_type() != &node.data_type {
        return None;
    }
    match &node.data_type {
        Int8 => primitive_bytes::<Int8Type>(array),
        Int16 => primitive_bytes::<Int16Type>(array),
        Int32 => primitive_bytes::<Int32Type>(array),
        Int64 => primitive_bytes::<Int64Type>(array),
        UInt8 => primitive_bytes::<UInt8Type>(array),
        UInt16 => primitive_bytes::<UInt16Type>(array),
        UInt32 => primitive_bytes::<UInt32Type>(array),
        UInt64 => primitive_bytes::<UInt64Type>(array),
        Float32 => primitive_bytes::<Float32Type>(array),
        Float64 => primitive_bytes::<Float64Type>(array),
        Date32 => primitive_bytes::<Date32Type>(array),
        Date64 => primitive_bytes::<Date64Type>(array),
        Decimal128(_, _) => primitive_bytes::<Decimal128Type>(array),
        FixedSizeBinary(width) => {
            let array = array.as_fixed_size_binary_opt()?;
            Some(&array.value_data()[..array.len() * *width as usize])
        }
        Time32(TimeUnit::Second) => primitive_bytes::<Time32SecondType>(array),
        Time32(_) => primitive_bytes::<Time32MillisecondType>(array),
        Time64(TimeUnit::Microsecond) => primitive_bytes::<Time64MicrosecondType>(array),
        Time64(_) => primitive_bytes::<Time64NanosecondType>(array),
        Timestamp(TimeUnit::Second, _) => primitive_bytes::<TimestampSecondType>(array),
        Timestamp(TimeUnit::Millisecond, _) => primitive_bytes::<TimestampMillisecondType>(array),
        Timestamp(TimeUnit::Microsecond, _) => primitive_bytes::<TimestampMicrosecondType>(array),
        Timestamp(TimeUnit::Nanosecond, _) => primitive_bytes::<TimestampNanosecondType>(array),
        Duration(TimeUnit::Second) => primitive_bytes::<DurationSecondType>(array),
        Duration(TimeUnit::Millisecond) => primitive_bytes::<DurationMillisecondType>(array),
        Duration(TimeUnit::Microsecond) => primitive_bytes::<DurationMicrosecondType>(array),
        Duration(TimeUnit::Nanosecond) => primitive_bytes::<DurationNanosecondType>(array),
        _ => None,
    }
}
