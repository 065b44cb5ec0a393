//! Growing columns: the decoder writes values directly into the buffers of Arrow arrays.

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;
use chronotile_types::Damage;

use crate::bit_packed::BitPacked;
use crate::bits::{Bits, Validity, for_each_one, for_each_word};
use crate::layout::{Kind, Node};
use crate::number::{Narrow, widen};

/// Number of bytes that a decoder may still write. Both forms charge it by the same rule before they allocate.
pub(crate) struct Budget(pub(crate) usize);

impl Budget {
    #[inline]
    pub(crate) fn charge(&mut self, bytes: Option<usize>) -> Result<(), Damage> {
        match bytes.and_then(|bytes| self.0.checked_sub(bytes)) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(Damage::malformed("the columns decode to more than a chunk may hold")),
        }
    }

    /// Checks that `bytes` are left, for memory that is needed only while values that are charged are decoded.
    pub(crate) fn check(&self, bytes: Option<usize>) -> Result<(), Damage> {
        Self(self.0).charge(bytes)
    }
}

/// One node of a column that grows chunk by chunk.
pub(crate) struct Builder {
    rows: usize,
    validity: Validity,
    pub(crate) store: Store,
    data_type: DataType,
    nullable: bool,
}

pub(crate) enum Store {
    Bool(Bits),
    Fixed { width: usize, values: MutableBuffer },
    Var { utf8: bool, offsets: Vec<i32>, bytes: Vec<u8> },
    List { offsets: Vec<i32>, item: Box<Builder> },
    Struct(Vec<Builder>),
}

/// Runs `$body` with `$W` as a constant for common widths, so that copies compile to moves; otherwise `$other`.
macro_rules! with_width {
    ($width:expr, $W:ident => $body:expr, $other:expr) => {
        match $width {
            1 => {
                const $W: usize = 1;
                $body
            }
            2 => {
                const $W: usize = 2;
                $body
            }
            4 => {
                const $W: usize = 4;
                $body
            }
            8 => {
                const $W: usize = 8;
                $body
            }
            16 => {
                const $W: usize = 16;
                $body
            }
            _ => $other,
        }
    };
}

impl Builder {
    pub(crate) fn new(node: &Node) -> Self {
        let store = match &node.kind {
            Kind::Bool => Store::Bool(Bits::default()),
            Kind::Fixed { width, .. } => Store::Fixed { width: *width, values: MutableBuffer::new(0) },
            Kind::Var { utf8 } => Store::Var { utf8: *utf8, offsets: vec![0], bytes: Vec::new() },
            Kind::List(item) => Store::List { offsets: vec![0], item: Box::new(Builder::new(item)) },
            Kind::Struct(children) => Store::Struct(children.iter().map(Builder::new).collect()),
        };
        Self {
            rows: 0,
            validity: Validity::default(),
            store,
            data_type: node.data_type.clone(),
            nullable: node.nullable,
        }
    }

    /// Reserves capacity for the fixed-width parts of `rows` more rows.
    pub(crate) fn reserve(&mut self, rows: usize) {
        match &mut self.store {
            Store::Bool(bits) => bits.reserve(rows),
            Store::Fixed { width, values } => values.reserve(rows * *width),
            Store::Var { offsets, .. } | Store::List { offsets, .. } => offsets.reserve(rows),
            Store::Struct(children) => children.iter_mut().for_each(|child| child.reserve(rows)),
        }
    }

    /// Appends the validity of `count` rows, null where `bitmap` is 0. The caller then appends values for the node's kind.
    #[inline]
    pub(crate) fn push_rows(&mut self, bitmap: Option<&[u8]>, count: usize) -> Result<(), Damage> {
        if let Some(bitmap) = bitmap {
            if !self.nullable {
                return Err(Damage::malformed("a null where the schema allows none"));
            }
            // The validity fills itself up with ones to `rows`, so it is extended before `rows` grows.
            self.validity.push_bitmap(self.rows, bitmap, count);
        }
        self.rows += count;
        Ok(())
    }

    /// Appends `count` nulls. The caller appends to the children of a struct.
    pub(crate) fn push_nulls(&mut self, count: usize) -> Result<(), Damage> {
        if count > 0 && !self.nullable {
            return Err(Damage::malformed("a null where the schema allows none"));
        }
        self.validity.push_nulls(self.rows, count);
        self.push_zeros(count);
        Ok(())
    }

    /// Appends zero values, but none to the children of a struct.
    fn push_zeros(&mut self, count: usize) {
        self.rows += count;
        match &mut self.store {
            Store::Bool(bits) => bits.push_run(false, count),
            Store::Fixed { width, values } => values.extend_zeros(count * *width),
            Store::Var { offsets, .. } | Store::List { offsets, .. } => repeat_last(offsets, count),
            Store::Struct(_) => {}
        }
    }

    /// Appends `count` rows below a null parent, or of a column that a chunk lacks: null if the node is nullable, else zero.
    pub(crate) fn push_masked(&mut self, count: usize) -> Result<(), Damage> {
        if self.nullable {
            self.push_nulls(count)?;
        } else {
            self.push_zeros(count);
        }
        match &mut self.store {
            Store::Struct(children) => children.iter_mut().try_for_each(|child| child.push_masked(count)),
            _ => Ok(()),
        }
    }

    /// Removes all rows after the first `rows`.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.rows = self.rows.min(rows);
        self.validity.truncate(rows);
        match &mut self.store {
            Store::Bool(bits) => bits.truncate(rows),
            Store::Fixed { width, values } => values.truncate(rows * *width),
            Store::Var { offsets, bytes, .. } => {
                // Offsets are cut first: the last one that stays tells how many bytes belong to the rows that stay.
                offsets.truncate(rows + 1);
                bytes.truncate(offsets[offsets.len() - 1] as usize);
            }
            Store::List { offsets, item } => {
                offsets.truncate(rows + 1);
                item.truncate(offsets[offsets.len() - 1] as usize);
            }
            Store::Struct(children) => children.iter_mut().for_each(|child| child.truncate(rows)),
        }
    }

    pub(crate) fn finish(self) -> ArrayRef {
        let nulls = self.validity.finish(self.rows);
        let builder = ArrayData::builder(self.data_type).len(self.rows).nulls(nulls);
        let builder = match self.store {
            Store::Bool(bits) => builder.add_buffer(BooleanBuffer::into_inner(bits.into_buffer())),
            Store::Fixed { values, .. } => builder.add_buffer(values.into()),
            Store::Var { offsets, bytes, .. } => {
                builder.add_buffer(Buffer::from_vec(offsets)).add_buffer(Buffer::from_vec(bytes))
            }
            Store::List { offsets, item } => {
                builder.add_buffer(Buffer::from_vec(offsets)).add_child_data(item.finish().to_data())
            }
            Store::Struct(children) => {
                builder.child_data(children.into_iter().map(|child| child.finish().to_data()).collect())
            }
        };
        // The decoder has checked every value: text, offsets, nulls and lengths are valid by construction.
        make_array(builder.build().expect("decoded columns are valid arrays"))
    }
}

fn repeat_last(offsets: &mut Vec<i32>, count: usize) {
    let last = offsets[offsets.len() - 1];
    offsets.resize(offsets.len() + count, last);
}

/// Appends `bits`: `count` of them without a bitmap, else one for each bit set in `bitmap`.
pub(crate) fn push_bools(store: &mut Bits, bits: &[u8], bitmap: Option<&[u8]>, count: usize) {
    let Some(bitmap) = bitmap else { return store.push_bytes(bits, count) };
    let mut next = 0;
    for_each_word(bitmap, count, |mut mask, step| {
        let mut word = 0;
        while mask != 0 {
            let bit = mask & mask.wrapping_neg();
            if crate::bits::get(bits, next) {
                word |= bit;
            }
            next += 1;
            mask ^= bit;
        }
        store.push_word(word, step);
    });
}

/// Appends `bit` for every row that is not null.
pub(crate) fn push_uniform_bool(store: &mut Bits, bit: bool, bitmap: Option<&[u8]>, count: usize) {
    // True values under a bitmap have the bits of the bitmap. False values need none: rows that are null are false,
    // too.
    match bitmap.filter(|_| bit) {
        Some(bitmap) => store.push_bytes(bitmap, count),
        None => store.push_run(bit, count),
    }
}

/// Appends bytes. The few values in a column of a small chunk are copied through registers, for which the compiler must know
/// their length: calling `memcpy` takes longer than the copy itself.
#[inline]
pub(crate) fn append_short(values: &mut MutableBuffer, bytes: &[u8]) {
    macro_rules! by_length {
        ($($length:literal)*) => {
            match bytes.len() {
                $($length => if let Some(bytes) = bytes.first_chunk::<$length>() {
                    values.extend_from_slice(bytes.as_slice());
                })*
                _ => values.extend_from_slice(bytes),
            }
        };
    }
    by_length!(4 8 12 16 20 24 28 32 40 48 56 64);
}

/// Appends plain values, one for every row that is not null.
#[inline]
pub(crate) fn push_fixed(values: &mut MutableBuffer, width: usize, plain: &[u8], bitmap: Option<&[u8]>, count: usize) {
    match bitmap {
        None => append_short(values, plain),
        Some(bitmap) => {
            let mut rest = plain;
            scatter(values, width, bitmap, count, |slot| {
                let (value, tail) = rest.split_at(slot.len());
                slot.copy_from_slice(value);
                rest = tail;
            });
        }
    }
}

/// Appends `value` for every row that is not null.
#[inline]
pub(crate) fn push_constant(values: &mut MutableBuffer, value: &[u8], bitmap: Option<&[u8]>, count: usize) {
    let width = value.len();
    match bitmap {
        None => {
            let start = values.len();
            values.extend_zeros(count * width);
            let room = &mut values.as_slice_mut()[start..];
            with_width!(width, W => {
                if let Some(value) = value.first_chunk::<W>() {
                    room.as_chunks_mut::<W>().0.fill(*value);
                }
            }, room.chunks_exact_mut(width).for_each(|slot| slot.copy_from_slice(value)));
        }
        Some(bitmap) => scatter(values, width, bitmap, count, |slot| slot.copy_from_slice(value)),
    }
}

/// Appends the values of `distances` for every row that is not null.
pub(crate) fn push_narrow(
    values: &mut MutableBuffer,
    width: usize,
    narrow: &Narrow,
    distances: &[u8],
    bitmap: Option<&[u8]>,
    count: usize,
) {
    match bitmap {
        None => {
            let start = values.len();
            values.extend_zeros(count * width);
            widen(narrow, distances, width, &mut values.as_slice_mut()[start..]);
        }
        Some(bitmap) => {
            let mut plain = vec![0; distances.len() / narrow.width * width];
            widen(narrow, distances, width, &mut plain);
            push_fixed(values, width, &plain, Some(bitmap), count);
        }
    }
}

/// Appends bit-packed numbers, one for every row that is not null.
pub(crate) fn push_bit_packed(
    values: &mut MutableBuffer,
    width: usize,
    packed: &BitPacked,
    bitmap: Option<&[u8]>,
    (count, present): (usize, usize),
) {
    if bitmap.is_none() {
        let start = values.len();
        values.extend_zeros(count * width);
        return packed.fill(width, &mut values.as_slice_mut()[start..]);
    }
    let mut plain = vec![0; present * width];
    packed.fill(width, &mut plain);
    push_fixed(values, width, &plain, bitmap, count);
}

/// Appends `count` zeros of `width` bytes and calls `fill` on those whose bit is set.
#[inline]
fn scatter(values: &mut MutableBuffer, width: usize, bitmap: &[u8], count: usize, mut fill: impl FnMut(&mut [u8])) {
    let start = values.len();
    values.extend_zeros(count * width);
    let room = &mut values.as_slice_mut()[start..];
    with_width!(width, W => {
        let slots = room.as_chunks_mut::<W>().0;
        for_each_one(bitmap, count, |at| fill(&mut slots[at]));
    }, for_each_one(bitmap, count, |at| fill(&mut room[at * width..(at + 1) * width])));
}

/// Appends the ends of values or lists. `lens` yields one length per row that is not null.
///
/// # Errors
/// Errors of `lens`, and offsets past 2^31.
pub(crate) fn push_lens(
    offsets: &mut Vec<i32>,
    bitmap: Option<&[u8]>,
    count: usize,
    mut lens: impl FnMut() -> Result<usize, Damage>,
) -> Result<usize, Damage> {
    let start = offsets[offsets.len() - 1] as usize;
    let mut end = start;
    offsets.reserve(count);
    let mut push = |is_present: bool| {
        if is_present {
            end = end.checked_add(lens()?).filter(|end| *end <= i32::MAX as usize).ok_or(TOO_LONG)?;
        }
        offsets.push(end as i32);
        Ok(())
    };
    match bitmap {
        None => (0..count).try_for_each(|_| push(true))?,
        Some(bitmap) => (0..count).try_for_each(|row| push(crate::bits::get(bitmap, row)))?,
    }
    Ok(end - start)
}

pub(crate) const TOO_LONG: Damage =
    Damage(chronotile_types::DamageKind::Malformed("lengths exceed what a column can hold"));

/// Appends text or bytes that end at the last `count` of `offsets`, and checks that each text is UTF-8.
pub(crate) fn push_bytes(
    bytes: &mut Vec<u8>,
    more: &[u8],
    offsets: &[i32],
    count: usize,
    utf8: bool,
) -> Result<(), Damage> {
    let start = bytes.len();
    bytes.extend_from_slice(more);
    // Every position in ASCII is the boundary of a character, so most text needs no further check.
    if utf8 && !more.is_ascii() {
        let text = std::str::from_utf8(more).map_err(|_| Damage::malformed("text is not UTF-8"))?;
        // Joined texts can be valid although one of them ends within a character that the next one completes.
        let ends = &offsets[offsets.len() - count..];
        if !ends.iter().all(|end| text.is_char_boundary(*end as usize - start)) {
            return Err(Damage::malformed("text is cut within a character"));
        }
    }
    Ok(())
}
