//! Decodes single rows of the small block, without decoding other rows.

use std::ops::Range;

use arrow_buffer::MutableBuffer;
use chronotile_types::Damage;

use crate::DECODED_BYTES_MAX;
use crate::bits::{Bits, count_ones, get, pack};
use crate::builder::{Budget, Builder, Store, TOO_LONG, append_short, push_bytes, push_uniform_bool};
use crate::layout::{Kind, Node};
use crate::number::{Number, widen};
use crate::small_read::{BAD_TAG, Narrowed, NodeStart, SmallReader, read_narrow, sum};
use crate::small_write::{SHAPE_CONSTANT, SHAPE_NARROW, SHAPE_PLAIN, SHAPE_ZERO, TAG_ALL_NULL};

/// The rows to decode, strictly ascending.
struct Picked<'a> {
    rows: &'a [u32],
    /// For each row the position of its value in the node; `None` for null.
    places: Vec<Option<u32>>,
    /// One bit per row, if the node has a bitmap.
    bitmap: Option<Vec<u8>>,
}

impl<'a> Picked<'a> {
    fn new(rows: &'a [u32], bitmap: Option<&[u8]>) -> Self {
        let Some(bitmap) = bitmap else {
            return Self { rows, places: rows.iter().copied().map(Some).collect(), bitmap: None };
        };
        // Counts the set bits of each byte of the bitmap only once, for any number of rows.
        let (mut counted, mut ones) = (0, 0);
        let mut place = |row: u32| {
            let row = row as usize;
            let whole = row / 8;
            ones += count_ones(&bitmap[counted..], (whole - counted) * 8);
            counted = whole;
            get(bitmap, row).then(|| (ones + count_ones(&bitmap[whole..], row % 8)) as u32)
        };
        let places: Vec<_> = rows.iter().map(|row| place(*row)).collect();
        let mut valid = Vec::with_capacity(rows.len().div_ceil(8));
        pack(&mut valid, places.iter().map(Option::is_some));
        Self { rows, places, bitmap: Some(valid) }
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        self.places.iter().flatten().map(|place| *place as usize)
    }

    /// Appends the value of each row, and `width` zeros for nulls.
    fn push_fixed<'v>(&self, values: &mut MutableBuffer, width: usize, value: impl Fn(usize) -> &'v [u8]) {
        for place in &self.places {
            match place {
                Some(place) => append_short(values, value(*place as usize)),
                None => values.extend_zeros(width),
            }
        }
    }

    /// Appends the end of each value or list; `ranges` has the ranges of those that are not null.
    fn push_ends(&self, offsets: &mut Vec<i32>, ranges: &[Range<usize>]) -> Result<(), Damage> {
        let mut end = offsets[offsets.len() - 1] as usize;
        let mut ranges = ranges.iter();
        for place in &self.places {
            if place.is_some() {
                end += ranges.next().map_or(0, Range::len);
            }
            offsets.push(i32::try_from(end).map_err(|_| TOO_LONG)?);
        }
        Ok(())
    }
}

impl SmallReader<'_> {
    /// Appends the rows `picked` of the next node: strictly ascending numbers below `rows`, its number of rows.
    pub(crate) fn pick(
        &mut self,
        node: &Node,
        builder: &mut Builder,
        rows: usize,
        picked: &[u32],
        budget: &mut Budget,
    ) -> Result<(), Damage> {
        budget.charge(picked.len().checked_mul(node.row_bytes()))?;
        let tag = self.tag();
        if tag == TAG_ALL_NULL {
            builder.push_nulls(picked.len())?;
            return self.pick_children(node, builder, rows, picked, budget);
        }
        let opened = self.open(tag, rows)?;
        let picked = Picked::new(picked, opened.bitmap);
        builder.push_rows(picked.bitmap.as_deref(), picked.len())?;
        match (&mut builder.store, &node.kind) {
            (Store::Bool(bits), _) => self.pick_bools(bits, &opened, &picked),
            (Store::Fixed { width, values }, Kind::Fixed { number, .. }) => {
                self.pick_fixed(values, *width, *number, &opened, &picked)
            }
            (Store::Var { utf8, offsets, bytes }, _) => {
                let (ranges, total) = self.ranges(&opened, &picked, false)?;
                budget.charge(Some(ranges.iter().map(Range::len).sum()))?;
                let values = self.payload.take(total)?;
                picked.push_ends(offsets, &ranges)?;
                let chosen: Vec<u8> = ranges.into_iter().flat_map(|range| &values[range]).copied().collect();
                push_bytes(bytes, &chosen, offsets, picked.len(), *utf8)
            }
            (Store::List { offsets, item }, Kind::List(item_node)) => {
                let (ranges, total) = self.ranges(&opened, &picked, true)?;
                // The numbers of the items take memory before `pick` charges the items themselves.
                budget.check(ranges.iter().map(Range::len).sum::<usize>().checked_mul(item_node.row_bytes()))?;
                picked.push_ends(offsets, &ranges)?;
                let items: Vec<u32> = ranges.into_iter().flatten().map(|item| item as u32).collect();
                self.pick(item_node, item, total, &items, budget)
            }
            (Store::Struct(_), _) if opened.shape == SHAPE_PLAIN => {
                // Fields have a value for every row of the struct, null rows included, so rows and not `places` number
                // them.
                self.pick_children(node, builder, rows, picked.rows, budget)
            }
            _ => Err(BAD_TAG),
        }
    }

    /// Reads the children of a struct, or of lists that are all null.
    fn pick_children(
        &mut self,
        node: &Node,
        builder: &mut Builder,
        rows: usize,
        picked: &[u32],
        budget: &mut Budget,
    ) -> Result<(), Damage> {
        match (&mut builder.store, &node.kind) {
            (Store::Struct(children), Kind::Struct(nodes)) => children
                .iter_mut()
                .zip(nodes)
                .try_for_each(|(child, node)| self.pick(node, child, rows, picked, budget)),
            (Store::List { item, .. }, Kind::List(item_node)) => self.pick(item_node, item, 0, &[], budget),
            _ => Ok(()),
        }
    }

    fn pick_bools(&mut self, bits: &mut Bits, opened: &NodeStart, picked: &Picked) -> Result<(), Damage> {
        match opened.shape {
            SHAPE_PLAIN => {
                let values = self.payload.take(opened.present.div_ceil(8))?;
                for place in &picked.places {
                    bits.push_run(place.is_some_and(|place| get(values, place as usize)), 1);
                }
            }
            SHAPE_CONSTANT => push_uniform_bool(bits, true, picked.bitmap.as_deref(), picked.len()),
            SHAPE_ZERO => push_uniform_bool(bits, false, picked.bitmap.as_deref(), picked.len()),
            _ => return Err(BAD_TAG),
        }
        Ok(())
    }

    fn pick_fixed(
        &mut self,
        values: &mut MutableBuffer,
        width: usize,
        number: Option<Number>,
        opened: &NodeStart,
        picked: &Picked,
    ) -> Result<(), Damage> {
        match opened.shape {
            SHAPE_PLAIN => {
                let plain = self.payload.take(opened.present * width)?;
                picked.push_fixed(values, width, |place| &plain[place * width..][..width]);
            }
            SHAPE_CONSTANT => {
                let value = self.payload.take(width)?;
                picked.push_fixed(values, width, |_| value);
            }
            SHAPE_NARROW => {
                let start = values.len();
                values.extend_zeros(picked.len() * width);
                let slots = values.as_slice_mut()[start..].chunks_exact_mut(width);
                let wanted = slots.zip(&picked.places).filter_map(|(slot, place)| Some((slot, (*place)? as usize)));
                match read_narrow(&mut self.payload, width, number, opened.present)? {
                    Narrowed::Bytes(narrow) => {
                        let distances = self.payload.take(opened.present * narrow.width)?;
                        for (slot, place) in wanted {
                            widen(&narrow, &distances[place * narrow.width..][..narrow.width], width, slot);
                        }
                    }
                    Narrowed::Bits(packed) => wanted.for_each(|(slot, place)| packed.put_value(place, slot)),
                }
            }
            // Only `SHAPE_ZERO` is left of the four shapes.
            _ => values.extend_zeros(picked.len() * width),
        }
        Ok(())
    }

    /// The ranges of the picked texts or lists that are not null, and the total length of the node's data. A constant text is
    /// stored once; the items of lists of constant length (`repeat`) are stored for each list.
    fn ranges(
        &mut self,
        opened: &NodeStart,
        picked: &Picked,
        repeat: bool,
    ) -> Result<(Vec<Range<usize>>, usize), Damage> {
        let length = match opened.shape {
            SHAPE_PLAIN => return self.ranges_of_lengths(opened.present, picked),
            SHAPE_CONSTANT => self.payload.size(DECODED_BYTES_MAX)?,
            SHAPE_ZERO => 0,
            _ => return Err(BAD_TAG),
        };
        let wanted = picked.present();
        // A constant text is stored once, so the limit of the product holds only for lists.
        match length.checked_mul(opened.present).filter(|total| *total <= DECODED_BYTES_MAX) {
            Some(total) if repeat => Ok((wanted.map(|place| place * length..(place + 1) * length).collect(), total)),
            None if repeat => Err(TOO_LONG),
            _ => Ok((wanted.map(|_| 0..length).collect(), length)),
        }
    }

    /// [`SmallReader::ranges`] for texts or lists with individual lengths.
    fn ranges_of_lengths(&mut self, present: usize, picked: &Picked) -> Result<(Vec<Range<usize>>, usize), Damage> {
        let (mut ranges, mut end) = (Vec::with_capacity(picked.len()), 0);
        if let Some(lens) = self.payload.single_bytes(present) {
            let mut next = 0;
            for place in picked.present() {
                let start = end + sum(&lens[next..place]);
                end = start + usize::from(lens[place]);
                ranges.push(start..end);
                next = place + 1;
            }
            return Ok((ranges, end + sum(&lens[next..])));
        }
        let mut wanted = picked.present().peekable();
        for place in 0..present {
            let start = end;
            end += self.payload.size(DECODED_BYTES_MAX)?;
            if wanted.next_if_eq(&place).is_some() {
                ranges.push(start..end);
            }
        }
        if end > DECODED_BYTES_MAX { Err(TOO_LONG) } else { Ok((ranges, end)) }
    }
}
