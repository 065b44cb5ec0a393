//! Decodes the small block directly into growing columns.

use chronotile_types::Damage;

use crate::bit_packed::{BitPacked, IN_BITS};
use crate::bits::count_ones;
use crate::builder::{
    Budget, Builder, Store, push_bit_packed, push_bools, push_bytes, push_constant, push_fixed, push_lens, push_narrow,
    push_uniform_bool,
};
use crate::layout::{Kind, Node};
use crate::number::{Narrow, Number};
use crate::small_write::{SHAPE_CONSTANT, SHAPE_MASK, SHAPE_NARROW, SHAPE_PLAIN, SHAPE_ZERO, TAG_ALL_NULL, TAG_BITMAP};
use crate::wire::Reader;
use crate::{DECODED_BYTES_MAX, FORMAT_VERSION};

const _: () = assert!(FORMAT_VERSION == 1, "this reads version 1");

pub(crate) const BAD_TAG: Damage = Damage(chronotile_types::DamageKind::Malformed("unknown tag"));

/// Reads the nodes of a block in order.
pub(crate) struct SmallReader<'a> {
    tags: &'a [u8],
    next: usize,
    pub(crate) payload: Reader<'a>,
}

/// The start of a node: the content of its tag, and its bitmap.
pub(crate) struct NodeStart<'a> {
    pub(crate) shape: u8,
    pub(crate) bitmap: Option<&'a [u8]>,
    pub(crate) present: usize,
}

impl<'a> SmallReader<'a> {
    /// A reader of the `node_count` nodes in `block`, after its hidden columns.
    pub(crate) fn new(mut block: Reader<'a>, node_count: usize) -> Result<Self, Damage> {
        let tags = block.take(node_count.div_ceil(2))?;
        Ok(Self { tags, next: 0, payload: block })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    #[inline]
    pub(crate) fn tag(&mut self) -> u8 {
        // `new` took a tag for every node that callers read, so the index is in range.
        let tag = self.tags[self.next / 2] >> (self.next % 2 * 4) & 0xf;
        self.next += 1;
        tag
    }

    #[inline]
    pub(crate) fn open(&mut self, tag: u8, rows: usize) -> Result<NodeStart<'a>, Damage> {
        // Callers handle `TAG_ALL_NULL` themselves; the format has no tag above it.
        if tag >= TAG_ALL_NULL {
            return Err(BAD_TAG);
        }
        let shape = tag & SHAPE_MASK;
        if tag & TAG_BITMAP == 0 {
            return Ok(NodeStart { shape, bitmap: None, present: rows });
        }
        let bitmap = self.payload.take(rows.div_ceil(8))?;
        Ok(NodeStart { shape, bitmap: Some(bitmap), present: count_ones(bitmap, rows) })
    }

    /// Appends the next node's `rows` rows to `builder`.
    #[inline]
    pub(crate) fn read(
        &mut self,
        node: &Node,
        builder: &mut Builder,
        rows: usize,
        budget: &mut Budget,
    ) -> Result<(), Damage> {
        budget.charge(rows.checked_mul(node.row_bytes()))?;
        let tag = self.tag();
        if tag == TAG_ALL_NULL {
            builder.push_nulls(rows)?;
            return self.read_children(node, builder, rows, budget);
        }
        let opened = self.open(tag, rows)?;
        builder.push_rows(opened.bitmap, rows)?;
        match &mut builder.store {
            Store::Fixed { width, values } if opened.shape == SHAPE_PLAIN => {
                // `present` is at most `rows`, whose product with the width was charged, so this product does not
                // overflow.
                let plain = self.payload.take(opened.present * *width)?;
                push_fixed(values, *width, plain, opened.bitmap, rows);
                Ok(())
            }
            Store::Fixed { width, values } if opened.shape == SHAPE_CONSTANT => {
                push_constant(values, self.payload.take(*width)?, opened.bitmap, rows);
                Ok(())
            }
            Store::Fixed { width, values } if opened.shape == SHAPE_ZERO => {
                values.extend_zeros(rows * *width);
                Ok(())
            }
            _ => self.read_rare(node, builder, rows, &opened, budget),
        }
    }

    /// The part of `read` for node kinds and shapes that are rare in columns of a survey.
    fn read_rare(
        &mut self,
        node: &Node,
        builder: &mut Builder,
        rows: usize,
        opened: &NodeStart,
        budget: &mut Budget,
    ) -> Result<(), Damage> {
        let NodeStart { shape, bitmap, present } = *opened;
        match (&mut builder.store, &node.kind) {
            (Store::Bool(bits), _) => match shape {
                SHAPE_PLAIN => push_bools(bits, self.payload.take(present.div_ceil(8))?, bitmap, rows),
                SHAPE_CONSTANT => push_uniform_bool(bits, true, bitmap, rows),
                SHAPE_ZERO => push_uniform_bool(bits, false, bitmap, rows),
                _ => return Err(BAD_TAG),
            },
            (Store::Fixed { width, values }, Kind::Fixed { number, .. }) => {
                match read_narrow(&mut self.payload, *width, *number, present)? {
                    Narrowed::Bytes(narrow) => {
                        let distances = self.payload.take(present * narrow.width)?;
                        push_narrow(values, *width, &narrow, distances, bitmap, rows);
                    }
                    Narrowed::Bits(packed) => push_bit_packed(values, *width, &packed, bitmap, (rows, present)),
                }
            }
            (Store::Var { utf8, offsets, bytes }, _) => {
                let (total, repeated) = self.read_lens(opened, offsets, rows)?;
                budget.charge(Some(total))?;
                match repeated {
                    Some(len) => {
                        // `repeat` allocates `total` bytes, which a constant of a few bytes can make large: the budget
                        // has accepted them above.
                        let value = self.payload.take(len)?;
                        push_bytes(bytes, &value.repeat(present), offsets, rows, *utf8)?;
                    }
                    None => push_bytes(bytes, self.payload.take(total)?, offsets, rows, *utf8)?,
                }
            }
            (Store::List { offsets, item }, Kind::List(item_node)) => {
                let (items, _) = self.read_lens(opened, offsets, rows)?;
                self.read(item_node, item, items, budget)?;
            }
            (Store::Struct(_), _) if shape == SHAPE_PLAIN => self.read_children(node, builder, rows, budget)?,
            _ => return Err(BAD_TAG),
        }
        Ok(())
    }

    /// Reads the children of a struct, or of lists that are all null.
    fn read_children(
        &mut self,
        node: &Node,
        builder: &mut Builder,
        rows: usize,
        budget: &mut Budget,
    ) -> Result<(), Damage> {
        match (&mut builder.store, &node.kind) {
            (Store::Struct(children), Kind::Struct(nodes)) => {
                children.iter_mut().zip(nodes).try_for_each(|(child, node)| self.read(node, child, rows, budget))
            }
            (Store::List { item, .. }, Kind::List(item_node)) => self.read(item_node, item, 0, budget),
            _ => Ok(()),
        }
    }

    /// Appends the ends of values or lists. Returns the sum of their lengths, and the length if it is constant.
    fn read_lens(
        &mut self,
        opened: &NodeStart,
        offsets: &mut Vec<i32>,
        rows: usize,
    ) -> Result<(usize, Option<usize>), Damage> {
        let NodeStart { shape, bitmap, present } = *opened;
        match shape {
            SHAPE_PLAIN => {
                let payload = &mut self.payload;
                let total = match payload.single_bytes(present) {
                    Some(lens) => {
                        let mut lens = lens.iter();
                        push_lens(offsets, bitmap, rows, || Ok(lens.next().map_or(0, |len| usize::from(*len))))
                    }
                    None => push_lens(offsets, bitmap, rows, || payload.size(DECODED_BYTES_MAX)),
                };
                Ok((total?, None))
            }
            SHAPE_CONSTANT => {
                let len = self.payload.size(DECODED_BYTES_MAX)?;
                Ok((push_lens(offsets, bitmap, rows, || Ok(len))?, Some(len)))
            }
            SHAPE_ZERO => Ok((push_lens(offsets, bitmap, rows, || Ok(0))?, None)),
            _ => Err(BAD_TAG),
        }
    }

    /// Skips the next node and its children.
    pub(crate) fn skip(&mut self, node: &Node, rows: usize) -> Result<(), Damage> {
        let tag = self.tag();
        if tag == TAG_ALL_NULL {
            // Children have tags even if no row is present, so the walk must pass these to reach the tags of the next
            // column.
            return match &node.kind {
                Kind::Struct(children) => children.iter().try_for_each(|child| self.skip(child, rows)),
                Kind::List(item) => self.skip(item, 0),
                _ => Ok(()),
            };
        }
        let NodeStart { shape, present, .. } = self.open(tag, rows)?;
        match &node.kind {
            Kind::Fixed { width, number } => {
                let len = match shape {
                    SHAPE_PLAIN => present * width,
                    SHAPE_CONSTANT => *width,
                    SHAPE_ZERO => 0,
                    _ => narrow_bytes_left(&mut self.payload, *width, *number, present)?,
                };
                self.payload.take(len)?;
            }
            Kind::Bool => {
                self.payload.take(if shape == SHAPE_PLAIN { present.div_ceil(8) } else { 0 })?;
            }
            Kind::Var { .. } => {
                let len = self.skip_lens(shape, present, false)?;
                self.payload.take(len)?;
            }
            Kind::List(item) => {
                let items = self.skip_lens(shape, present, true)?;
                self.skip(item, items)?;
            }
            Kind::Struct(children) => children.iter().try_for_each(|child| self.skip(child, rows))?,
        }
        Ok(())
    }

    /// The sum of the lengths. A constant length counts once, or if `repeat`, once per value.
    fn skip_lens(&mut self, shape: u8, present: usize, repeat: bool) -> Result<usize, Damage> {
        match shape {
            SHAPE_PLAIN => {
                let total = match self.payload.single_bytes(present) {
                    Some(lens) => sum(lens),
                    None => (0..present).try_fold(0, |total, _| Ok(total + self.payload.size(DECODED_BYTES_MAX)?))?,
                };
                // The limit also holds for the number of items, so that the products of widths and items in `skip` do
                // not overflow.
                if total > DECODED_BYTES_MAX { Err(Damage::malformed("a length exceeds its limit")) } else { Ok(total) }
            }
            SHAPE_CONSTANT => {
                let len = self.payload.size(DECODED_BYTES_MAX)?;
                // A few bytes can announce any product. A saturated one fails the comparison with the limit.
                let total = if repeat { len.saturating_mul(present) } else { len };
                if total > DECODED_BYTES_MAX { Err(Damage::malformed("a length exceeds its limit")) } else { Ok(total) }
            }
            SHAPE_ZERO => Ok(0),
            _ => Err(BAD_TAG),
        }
    }
}

/// The sum of lengths that take one byte each.
pub(crate) fn sum(lens: &[u8]) -> usize {
    lens.iter().map(|len| usize::from(*len)).sum()
}

/// The distances of a node in narrow shape.
pub(crate) enum Narrowed<'a> {
    /// In whole bytes, which have not been read yet.
    Bytes(Narrow<'a>),
    /// In bits, already read.
    Bits(BitPacked<'a>),
}

/// Reads the base and the width of `count` distances, and the distances themselves if they are in bits.
pub(crate) fn read_narrow<'a>(
    reader: &mut Reader<'a>,
    width: usize,
    number: Option<Number>,
    count: usize,
) -> Result<Narrowed<'a>, Damage> {
    let number = number.ok_or(BAD_TAG)?;
    let base = reader.take(width)?;
    match reader.u8()? {
        bits if bits & IN_BITS != 0 => Ok(Narrowed::Bits(BitPacked::read(reader, base, bits, number, count)?)),
        narrow @ (1 | 2 | 4) if usize::from(narrow) < width && number.is_integer() => {
            Ok(Narrowed::Bytes(Narrow { base, width: usize::from(narrow) }))
        }
        _ => Err(Damage::malformed("distances of unknown width")),
    }
}

/// Reads the start of `count` distances, and returns the number of bytes that remain.
fn narrow_bytes_left(reader: &mut Reader, width: usize, number: Option<Number>, count: usize) -> Result<usize, Damage> {
    Ok(match read_narrow(reader, width, number, count)? {
        Narrowed::Bytes(narrow) => count * narrow.width,
        Narrowed::Bits(_) => 0,
    })
}

/// Reads a hidden column of `rows` numbers, which is never null: a tag in a byte of its own, then the values.
pub(crate) fn read_hidden(reader: &mut Reader, number: Number, rows: usize) -> Result<Vec<u8>, Damage> {
    let width = number.width();
    let mut values = arrow_buffer::MutableBuffer::new(rows * width);
    match reader.u8()? {
        SHAPE_PLAIN => return Ok(reader.take(rows * width)?.to_vec()),
        SHAPE_CONSTANT => push_constant(&mut values, reader.take(width)?, None, rows),
        SHAPE_ZERO => values.extend_zeros(rows * width),
        SHAPE_NARROW => match read_narrow(reader, width, Some(number), rows)? {
            Narrowed::Bytes(narrow) => {
                let distances = reader.take(rows * narrow.width)?;
                push_narrow(&mut values, width, &narrow, distances, None, rows);
            }
            Narrowed::Bits(packed) => push_bit_packed(&mut values, width, &packed, None, (rows, rows)),
        },
        _ => return Err(BAD_TAG),
    }
    Ok(values.as_slice().to_vec())
}

/// Skips a hidden column.
pub(crate) fn skip_hidden(reader: &mut Reader, number: Number, rows: usize) -> Result<(), Damage> {
    let width = number.width();
    let len = match reader.u8()? {
        SHAPE_PLAIN => rows * width,
        SHAPE_CONSTANT => width,
        SHAPE_ZERO => 0,
        SHAPE_NARROW => narrow_bytes_left(reader, width, Some(number), rows)?,
        _ => return Err(BAD_TAG),
    };
    reader.take(len).map(|_| ())
}
