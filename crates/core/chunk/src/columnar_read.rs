//! Decodes columns of the columnar form.

use arrow_buffer::MutableBuffer;
use chronotile_types::{Damage, DamageKind};

use crate::bits::count_ones;
use crate::builder::{
    Budget, Builder, Store, push_bit_packed, push_bools, push_bytes, push_constant, push_fixed, push_lens, push_narrow,
    push_uniform_bool,
};
use crate::columnar_write::{
    CODEC_CONSTANT, CODEC_DECIMAL, CODEC_DICTIONARY, CODEC_MASK, CODEC_NARROW, CODEC_PCO, CODEC_PLAIN, CODEC_SEQUENCE,
    CODEC_ZERO, NODE_ALL_NULL, NODE_BITMAP,
};
use crate::decimal::{Scale, push_decimals};
use crate::layout::{Kind, Node};
use crate::number::{Number, numbers, push_sequence};
use crate::packed::{pco_decompress, read_packed};
use crate::small_read::{Narrowed, read_narrow};
use crate::stats::{ColumnStats, NODE_HAS_NAN, NODE_STATS, read_stats};
use crate::wire::Reader;

const BAD_CODEC: Damage = Damage(DamageKind::Malformed("unknown codec"));

/// The directory of a columnar body.
pub(crate) struct Directory<'a> {
    lens: Reader<'a>,
    columns: Reader<'a>,
}

impl<'a> Directory<'a> {
    /// Reads the directory of `columns` columns, after the hidden columns.
    pub(crate) fn new(body: Reader<'a>, columns: usize) -> Result<Self, Damage> {
        // The reader is copied: `lens` stays at the first length, and `rest` passes all of them to where the columns
        // begin.
        let (lens, mut rest) = (body, body);
        let mut total = 0usize;
        for _ in 0..columns {
            total = total.saturating_add(rest.size(rest.rest().len())?);
        }
        if total != rest.rest().len() {
            return Err(Damage::malformed("the directory does not add up"));
        }
        Ok(Self { lens, columns: rest })
    }

    /// The bytes of the next column.
    pub(crate) fn next(&mut self) -> Result<Reader<'a>, Damage> {
        let len = self.lens.size(self.columns.rest().len())?;
        self.columns.take(len).map(Reader::new)
    }
}

/// Appends one column's `rows` rows to `builder`. No bytes may be left over.
pub(crate) fn read_column(
    mut reader: Reader,
    node: &Node,
    builder: &mut Builder,
    rows: usize,
    budget: &mut Budget,
) -> Result<(), Damage> {
    read_node(&mut reader, node, builder, rows, budget)?;
    if reader.is_empty() { Ok(()) } else { Err(Damage::malformed("bytes follow a column")) }
}

fn read_node(
    reader: &mut Reader,
    node: &Node,
    builder: &mut Builder,
    rows: usize,
    budget: &mut Budget,
) -> Result<(), Damage> {
    budget.charge(rows.checked_mul(node.row_bytes()))?;
    let first = reader.u8()?;
    if first & NODE_ALL_NULL != 0 {
        if first != NODE_ALL_NULL {
            return Err(BAD_CODEC);
        }
        builder.push_nulls(rows)?;
        return read_children(reader, node, builder, rows, budget);
    }
    if first & NODE_STATS != 0 {
        // Decoding does not use the extremes, but reads them to reach the bytes behind them and to refuse nodes that
        // cannot have any.
        read_stats(reader, first, node_number(node))?;
    } else if first & NODE_HAS_NAN != 0 {
        return Err(BAD_CODEC);
    }
    let mut bitmap_scratch = Vec::new();
    let bitmap = match first & NODE_BITMAP {
        0 => None,
        _ => Some(read_packed(reader, rows.div_ceil(8), &mut bitmap_scratch)?),
    };
    let present = bitmap.map_or(rows, |bitmap| count_ones(bitmap, rows));
    builder.push_rows(bitmap, rows)?;
    let codec = first & CODEC_MASK;
    let mut scratch = Vec::new();
    match (&mut builder.store, &node.kind) {
        (Store::Bool(bits), _) => match codec {
            CODEC_PLAIN => push_bools(bits, read_packed(reader, present.div_ceil(8), &mut scratch)?, bitmap, rows),
            CODEC_CONSTANT => push_uniform_bool(bits, true, bitmap, rows),
            CODEC_ZERO => push_uniform_bool(bits, false, bitmap, rows),
            _ => return Err(BAD_CODEC),
        },
        (Store::Fixed { width, values }, Kind::Fixed { number, .. }) => {
            read_fixed(reader, codec, *width, *number, values, bitmap, (rows, present))?;
        }
        (Store::Var { utf8, offsets, bytes }, _) => {
            let mut text = Text { utf8: *utf8, offsets, bytes };
            read_var(reader, codec, &mut text, bitmap, (rows, present), budget)?;
        }
        (Store::List { offsets, item }, Kind::List(item_node)) if codec == CODEC_PLAIN => {
            let lens = read_u32s(reader, present)?;
            let mut lens = lens.iter().map(|len| *len as usize);
            // `push_lens` takes one length for each present row, and there are exactly as many.
            let items = push_lens(offsets, bitmap, rows, || Ok(lens.next().unwrap_or(0)))?;
            read_node(reader, item_node, item, items, budget)?;
        }
        (Store::Struct(_), _) if codec == CODEC_PLAIN => read_children(reader, node, builder, rows, budget)?,
        _ => return Err(BAD_CODEC),
    }
    Ok(())
}

/// Reads the children of a struct, or of lists that are all null.
fn read_children(
    reader: &mut Reader,
    node: &Node,
    builder: &mut Builder,
    rows: usize,
    budget: &mut Budget,
) -> Result<(), Damage> {
    match (&mut builder.store, &node.kind) {
        (Store::Struct(children), Kind::Struct(nodes)) => {
            children.iter_mut().zip(nodes).try_for_each(|(child, node)| read_node(reader, node, child, rows, budget))
        }
        (Store::List { item, .. }, Kind::List(item_node)) => read_node(reader, item_node, item, 0, budget),
        _ => Ok(()),
    }
}

fn node_number(node: &Node) -> Option<Number> {
    match &node.kind {
        Kind::Fixed { number, .. } => *number,
        _ => None,
    }
}

fn read_fixed(
    reader: &mut Reader,
    codec: u8,
    width: usize,
    number: Option<Number>,
    values: &mut MutableBuffer,
    bitmap: Option<&[u8]>,
    (rows, present): (usize, usize),
) -> Result<(), Damage> {
    let mut scratch = Vec::new();
    match (codec, number) {
        (CODEC_PLAIN, _) => {
            let plain = read_packed(reader, present * width, &mut scratch)?;
            push_fixed(values, width, plain, bitmap, rows);
        }
        (CODEC_CONSTANT, _) => push_constant(values, reader.take(width)?, bitmap, rows),
        (CODEC_ZERO, _) => values.extend_zeros(rows * width),
        (CODEC_NARROW, number) => match read_narrow(reader, width, number, present)? {
            Narrowed::Bytes(narrow) => {
                let distances = read_packed(reader, present * narrow.width, &mut scratch)?;
                push_narrow(values, width, &narrow, distances, bitmap, rows);
            }
            Narrowed::Bits(packed) => push_bit_packed(values, width, &packed, bitmap, (rows, present)),
        },
        (CODEC_PCO, Some(number)) => {
            let len = reader.size(reader.rest().len())?;
            let packed = reader.take(len)?;
            spread(values, width, bitmap, (rows, present), |out| pco_decompress(packed, number, present, out))?;
        }
        (CODEC_DECIMAL, Some(number)) if !number.is_integer() => {
            spread(values, width, bitmap, (rows, present), |out| read_decimals(reader, number, present, out))?;
        }
        (CODEC_SEQUENCE, Some(number)) if number.is_integer() => {
            let (first, second) = (reader.take(width)?, reader.take(width)?);
            spread(values, width, bitmap, (rows, present), |out| {
                push_sequence(out, first, second, number, present);
                Ok(())
            })?;
        }
        _ => return Err(BAD_CODEC),
    }
    Ok(())
}

/// Appends all values with `push`, then moves them to the rows that are not null.
fn spread(
    values: &mut MutableBuffer,
    width: usize,
    bitmap: Option<&[u8]>,
    (rows, present): (usize, usize),
    push: impl FnOnce(&mut MutableBuffer) -> Result<(), Damage>,
) -> Result<(), Damage> {
    if bitmap.is_none() {
        return push(values);
    }
    let mut plain = MutableBuffer::new(present * width);
    push(&mut plain)?;
    push_fixed(values, width, &plain, bitmap, rows);
    Ok(())
}

/// Appends decimals: converts integers by their scale, then writes the exceptions to their positions.
fn read_decimals(reader: &mut Reader, number: Number, count: usize, out: &mut MutableBuffer) -> Result<(), Damage> {
    let scale = Scale::from_byte(reader.u8()?, number).ok_or(Damage::malformed("unknown decimal scale"))?;
    let exceptions = reader.size(count)?;
    let first = reader.u8()?;
    if first & !CODEC_MASK != 0 {
        return Err(BAD_CODEC);
    }
    let wholes = read_numbers(reader, first, scale.whole_number(), count)?;
    let start = out.len();
    push_decimals(out, &wholes, scale, number);
    if exceptions == 0 {
        return Ok(());
    }
    let (width, mut scratch) = (number.width(), Vec::new());
    let places = read_u32s(reader, exceptions)?;
    let kept = read_packed(reader, exceptions * width, &mut scratch)?;
    if !places.is_sorted_by(|a, b| a < b) || places.last().is_some_and(|place| *place as usize >= count) {
        return Err(Damage::malformed("decimal exceptions are out of order"));
    }
    for (place, value) in places.iter().zip(kept.chunks_exact(width)) {
        out.as_slice_mut()[start + *place as usize * width..][..width].copy_from_slice(value);
    }
    Ok(())
}

/// Reads `count` numbers of a hidden or auxiliary column without nulls, little-endian.
fn read_numbers(reader: &mut Reader, first: u8, number: Number, count: usize) -> Result<MutableBuffer, Damage> {
    // Of the callers, only hidden columns may have extremes: the others refuse the flag before they call this function.
    if first & !(CODEC_MASK | NODE_STATS) != 0 {
        return Err(BAD_CODEC);
    }
    if first & NODE_STATS != 0 {
        read_stats(reader, first, Some(number))?;
    }
    let mut values = MutableBuffer::new(count * number.width());
    read_fixed(reader, first & CODEC_MASK, number.width(), Some(number), &mut values, None, (count, count))?;
    Ok(values)
}

fn read_u32s(reader: &mut Reader, count: usize) -> Result<Vec<u32>, Damage> {
    let first = reader.u8()?;
    if first & NODE_STATS != 0 {
        return Err(BAD_CODEC);
    }
    let bytes = read_numbers(reader, first, Number::U32, count)?;
    Ok(numbers!(bytes.as_slice(), u32).collect())
}

/// A growing text column.
struct Text<'a> {
    utf8: bool,
    offsets: &'a mut Vec<i32>,
    bytes: &'a mut Vec<u8>,
}

fn read_var(
    reader: &mut Reader,
    codec: u8,
    text: &mut Text,
    bitmap: Option<&[u8]>,
    (rows, present): (usize, usize),
    budget: &mut Budget,
) -> Result<(), Damage> {
    let Text { utf8, offsets, bytes } = text;
    match codec {
        CODEC_PLAIN => {
            let (lens, mut scratch) = (read_u32s(reader, present)?, Vec::new());
            let mut lens = lens.iter().map(|len| *len as usize);
            let total = push_lens(offsets, bitmap, rows, || Ok(lens.next().unwrap_or(0)))?;
            budget.charge(Some(total))?;
            push_bytes(bytes, read_text(reader, total, &mut scratch)?, offsets, rows, *utf8)
        }
        CODEC_CONSTANT => {
            let len = reader.size(reader.rest().len())?;
            let value = reader.take(len)?;
            let total = push_lens(offsets, bitmap, rows, || Ok(len))?;
            budget.charge(Some(total))?;
            push_bytes(bytes, &value.repeat(present), offsets, rows, *utf8)
        }
        CODEC_ZERO => push_lens(offsets, bitmap, rows, || Ok(0)).map(|_| ()),
        CODEC_DICTIONARY => {
            let mut scratch = Vec::new();
            let count = reader.size(present)?;
            let lens = read_u32s(reader, count)?;
            let distinct_bytes: usize = lens.iter().map(|len| *len as usize).sum();
            // The encoder counts only the joined values, which contain each distinct value at least once.
            budget.check(Some(distinct_bytes))?;
            let distinct = read_text(reader, distinct_bytes, &mut scratch)?;
            let indexes = read_u32s(reader, present)?;
            if indexes.iter().any(|index| *index as usize >= count) {
                return Err(Damage::malformed("an index points past the dictionary"));
            }
            let mut each = indexes.iter().map(|index| lens[*index as usize] as usize);
            let total = push_lens(offsets, bitmap, rows, || Ok(each.next().unwrap_or(0)))?;
            budget.charge(Some(total))?;
            let mut end = 0;
            let ends: Vec<usize> = lens
                .iter()
                .map(|len| {
                    end += *len as usize;
                    end
                })
                .collect();
            let mut joined = Vec::with_capacity(total);
            for index in indexes {
                let (end, len) = (ends[index as usize], lens[index as usize] as usize);
                joined.extend_from_slice(&distinct[end - len..end]);
            }
            push_bytes(bytes, &joined, offsets, rows, *utf8)
        }
        _ => Err(BAD_CODEC),
    }
}

/// The concatenated values, of `total` bytes.
fn read_text<'s, 'a: 's>(reader: &mut Reader<'a>, total: usize, scratch: &'s mut Vec<u8>) -> Result<&'s [u8], Damage> {
    if reader.varint()? != total as u64 {
        return Err(Damage::malformed("lengths do not add up"));
    }
    read_packed(reader, total, scratch)
}

/// Reads a hidden column of `rows` numbers, which is never null.
pub(crate) fn read_hidden(reader: &mut Reader, number: Number, rows: usize) -> Result<Vec<u8>, Damage> {
    let len = reader.size(reader.rest().len())?;
    let mut column = Reader::new(reader.take(len)?);
    let first = column.u8()?;
    let values = read_numbers(&mut column, first, number, rows)?;
    if column.is_empty() { Ok(values.as_slice().to_vec()) } else { Err(Damage::malformed("bytes follow a column")) }
}

/// Skips a hidden column.
pub(crate) fn skip_hidden(reader: &mut Reader) -> Result<(), Damage> {
    let len = reader.size(reader.rest().len())?;
    reader.take(len).map(|_| ())
}

/// The extremes at the start of a column, if it has them.
pub(crate) fn column_stats(mut column: Reader, node: &Node) -> Result<Option<ColumnStats>, Damage> {
    let first = column.u8()?;
    if first & NODE_STATS == 0 { Ok(None) } else { read_stats(&mut column, first, node_number(node)).map(Some) }
}
