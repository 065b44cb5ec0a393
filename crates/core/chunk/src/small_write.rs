//! Encodes the small block: a tag of four bits per node, then the values of each node. It is made for few rows, where a
//! directory would take more space than the values.

use crate::bit_packed::Plan;
use crate::extract::{NodeData, Sink, Values};
use crate::number::{Number, narrowest, put_narrow};
use crate::wire::put_varint;

/// The low two bits of a tag: the encoding of the values that are not null.
pub(crate) const SHAPE_PLAIN: u8 = 0;
pub(crate) const SHAPE_CONSTANT: u8 = 1;
pub(crate) const SHAPE_NARROW: u8 = 2;
pub(crate) const SHAPE_ZERO: u8 = 3;
pub(crate) const SHAPE_MASK: u8 = 3;
/// A null bitmap precedes the values.
pub(crate) const TAG_BITMAP: u8 = 4;
/// Every row is null, or there are no rows. No other bit is set.
pub(crate) const TAG_ALL_NULL: u8 = 8;

/// Whether numbers may be bit-packed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Whole bytes: every release produces the same.
    #[default]
    Bytes,
    Bits,
}

/// Minimum number of values for bit-packing: for fewer, whole bytes are faster and take little more space.
const PACKED_VALUES_MIN: usize = 48;
/// Bit-packing must save at least one byte in this many.
const WORTH: usize = 16;

/// Collects tags and values.
#[derive(Default)]
pub(crate) struct SmallWriter {
    tags: Vec<u8>,
    node_count: usize,
    payload: Vec<u8>,
    packing: Packing,
}

impl SmallWriter {
    pub(crate) fn with_capacity(nodes: usize, payload: usize, packing: Packing) -> Self {
        let (tags, payload) = (Vec::with_capacity(nodes.div_ceil(2)), Vec::with_capacity(payload));
        Self { tags, node_count: 0, payload, packing }
    }

    /// Appends tags and values to `out`.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.tags.len() + self.payload.len());
        out.extend_from_slice(&self.tags);
        out.extend_from_slice(&self.payload);
    }
}

impl Sink for SmallWriter {
    fn node(&mut self, data: NodeData) {
        let tag = put_small(&mut self.payload, &data, self.packing);
        if self.node_count.is_multiple_of(2) {
            self.tags.push(tag);
        } else if let Some(last) = self.tags.last_mut() {
            *last |= tag << 4;
        }
        self.node_count += 1;
    }
}

/// Appends the bitmap and values of a node and returns its tag.
pub(crate) fn put_small(out: &mut Vec<u8>, data: &NodeData, packing: Packing) -> u8 {
    if data.present == 0 {
        return TAG_ALL_NULL;
    }
    let nulls = match data.bitmap {
        Some(bitmap) => {
            out.extend_from_slice(bitmap);
            TAG_BITMAP
        }
        None => 0,
    };
    let shape = match &data.values {
        Values::Bool(bits) => put_bools(out, bits, data.present),
        Values::Fixed { width, number, bytes } => put_fixed(out, bytes, *width, *number, packing),
        Values::Var { lens, bytes } => put_var(out, lens, bytes),
        Values::List { lens } => put_lens(out, lens),
        Values::Struct => SHAPE_PLAIN,
    };
    nulls | shape
}

/// The value of all `count` bits if they are equal.
pub(crate) fn uniform_bool(bits: &[u8], count: usize) -> Option<bool> {
    match crate::bits::count_ones(bits, count) {
        0 => Some(false),
        ones if ones == count => Some(true),
        _ => None,
    }
}

/// Whether all values of `width` bytes are equal.
pub(crate) fn is_uniform(bytes: &[u8], width: usize) -> bool {
    // Each value equals the next one if the bytes equal themselves shifted by one value. A comparison of bytes keeps
    // 0.0 and -0.0 apart, and finds equal NaN.
    bytes[width..] == bytes[..bytes.len() - width]
}

fn put_bools(out: &mut Vec<u8>, bits: &[u8], count: usize) -> u8 {
    match uniform_bool(bits, count) {
        Some(true) => SHAPE_CONSTANT,
        Some(false) => SHAPE_ZERO,
        None => {
            out.extend_from_slice(bits);
            SHAPE_PLAIN
        }
    }
}

fn put_fixed(out: &mut Vec<u8>, bytes: &[u8], width: usize, number: Option<Number>, packing: Packing) -> u8 {
    if is_uniform(bytes, width) {
        let value = &bytes[..width];
        if value.iter().all(|byte| *byte == 0) {
            return SHAPE_ZERO;
        }
        out.extend_from_slice(value);
        return SHAPE_CONSTANT;
    }
    let narrow = number.and_then(|number| Some((number, narrowest(bytes, number)?)));
    let narrow_bytes = narrow.map(|(_, (_, narrow))| width + 1 + bytes.len() / width * narrow);
    let whole_bytes = narrow_bytes.unwrap_or(bytes.len());
    if packing == Packing::Bits
        && bytes.len() >= PACKED_VALUES_MIN * width
        && let Some(number) = number
        && let Some(plan) = Plan::of(bytes, number)
        && plan.is_varied
        && plan.len + whole_bytes / WORTH < whole_bytes
    {
        plan.put(out, bytes, number);
        return SHAPE_NARROW;
    }
    if let Some((number, (base, narrow_width))) = narrow {
        out.extend_from_slice(&base.to_le_bytes()[..width]);
        out.push(narrow_width as u8);
        put_narrow(out, bytes, number, base, narrow_width);
        return SHAPE_NARROW;
    }
    out.extend_from_slice(bytes);
    SHAPE_PLAIN
}

/// Whether all texts are equal.
pub(crate) fn is_uniform_var(lens: &[u32], bytes: &[u8]) -> bool {
    // There is a first length: nodes without present rows do not get here.
    let first = lens[0] as usize;
    lens.iter().all(|len| *len as usize == first) && (first == 0 || is_uniform(bytes, first))
}

fn put_var(out: &mut Vec<u8>, lens: &[u32], bytes: &[u8]) -> u8 {
    if is_uniform_var(lens, bytes) {
        let value = &bytes[..lens[0] as usize];
        if value.is_empty() {
            return SHAPE_ZERO;
        }
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
        return SHAPE_CONSTANT;
    }
    lens.iter().for_each(|len| put_varint(out, u64::from(*len)));
    out.extend_from_slice(bytes);
    SHAPE_PLAIN
}

fn put_lens(out: &mut Vec<u8>, lens: &[u32]) -> u8 {
    if lens.iter().all(|len| *len == lens[0]) {
        if lens[0] == 0 {
            return SHAPE_ZERO;
        }
        put_varint(out, u64::from(lens[0]));
        return SHAPE_CONSTANT;
    }
    lens.iter().for_each(|len| put_varint(out, u64::from(*len)));
    SHAPE_PLAIN
}
