//! The columnar form: a directory of lengths, then one byte string per column that can be read without the others.

use std::collections::HashMap;

use crate::extract::{NodeData, Sink, Values};
use crate::number::{Number, narrowest, put_narrow};
use crate::packed::{pco_compress, put_packed};
use crate::small_write::{is_uniform, is_uniform_var, uniform_bool};
use crate::stats;
use crate::wire::{put_varint, varint_len};

/// The low three bits of a node's first byte: how the present values are written.
pub(crate) const CODEC_PLAIN: u8 = 0;
pub(crate) const CODEC_CONSTANT: u8 = 1;
pub(crate) const CODEC_NARROW: u8 = 2;
pub(crate) const CODEC_ZERO: u8 = 3;
pub(crate) const CODEC_PCO: u8 = 4;
pub(crate) const CODEC_DICTIONARY: u8 = 5;
pub(crate) const CODEC_MASK: u8 = 7;
/// A packed null bitmap stands before the values.
pub(crate) const NODE_BITMAP: u8 = 1 << 3;
/// Every row is null, or there are no rows. No other bit is set.
pub(crate) const NODE_ALL_NULL: u8 = 1 << 4;

/// A faster codec wins over a smaller one that saves less than one byte in this many.
const WORTH: usize = 32;

/// Appends the nodes of one column.
pub(crate) struct ColumnWriter<'a> {
    pub(crate) out: &'a mut Vec<u8>,
}

impl Sink for ColumnWriter<'_> {
    fn node(&mut self, data: NodeData) {
        let at = self.out.len();
        self.out.push(NODE_ALL_NULL);
        if data.present == 0 {
            return;
        }
        let mut first = 0;
        if let Values::Fixed { number: Some(number), bytes, .. } = &data.values
            && let Some(flags) = stats::put_stats(self.out, bytes, *number)
        {
            first |= flags;
        }
        if let Some(bitmap) = data.bitmap {
            put_packed(self.out, bitmap);
            first |= NODE_BITMAP;
        }
        first |= match &data.values {
            Values::Bool(bits) => put_bools(self.out, bits, data.present),
            Values::Fixed { width, number, bytes } => put_fixed(self.out, bytes, *width, *number),
            Values::Var { lens, bytes } => put_var(self.out, lens, bytes),
            Values::List { lens } => {
                put_u32s(self.out, lens);
                CODEC_PLAIN
            }
            Values::Struct => CODEC_PLAIN,
        };
        self.out[at] = first;
    }
}

fn put_bools(out: &mut Vec<u8>, bits: &[u8], count: usize) -> u8 {
    match uniform_bool(bits, count) {
        Some(true) => CODEC_CONSTANT,
        Some(false) => CODEC_ZERO,
        None => {
            put_packed(out, bits);
            CODEC_PLAIN
        }
    }
}

fn put_fixed(out: &mut Vec<u8>, bytes: &[u8], width: usize, number: Option<Number>) -> u8 {
    if is_uniform(bytes, width) {
        let value = &bytes[..width];
        if value.iter().all(|byte| *byte == 0) {
            return CODEC_ZERO;
        }
        out.extend_from_slice(value);
        return CODEC_CONSTANT;
    }
    let Some(number) = number else {
        put_packed(out, bytes);
        return CODEC_PLAIN;
    };
    let narrow = narrowest(bytes, number);
    let narrow_bytes = narrow.map(|(_, narrow)| width + 2 + bytes.len() / width * narrow);
    let plain_bytes = 1 + bytes.len();
    let fast_bytes = narrow_bytes.unwrap_or(plain_bytes).min(plain_bytes);
    let pco = pco_compress(bytes, number)
        .filter(|pco| pco.len() + varint_len(pco.len() as u64) + fast_bytes / WORTH < fast_bytes);
    match (pco, narrow) {
        (Some(pco), _) => {
            put_varint(out, pco.len() as u64);
            out.extend_from_slice(&pco);
            CODEC_PCO
        }
        (None, Some((base, narrow_width))) => {
            out.extend_from_slice(&base.to_le_bytes()[..width]);
            out.push(narrow_width as u8);
            let mut distances = Vec::new();
            put_narrow(&mut distances, bytes, number, base, narrow_width);
            put_packed(out, &distances);
            CODEC_NARROW
        }
        (None, None) => {
            put_packed(out, bytes);
            CODEC_PLAIN
        }
    }
}

/// Appends unsigned integers as a node of their own without nulls: one byte saying the codec, then the values.
fn put_u32s(out: &mut Vec<u8>, values: &[u32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let at = out.len();
    out.push(0);
    out[at] = put_fixed(out, &bytes, 4, Some(Number::U32));
}

fn put_plain_var(out: &mut Vec<u8>, lens: &[u32], bytes: &[u8]) {
    put_u32s(out, lens);
    put_varint(out, bytes.len() as u64);
    put_packed(out, bytes);
}

fn put_var(out: &mut Vec<u8>, lens: &[u32], bytes: &[u8]) -> u8 {
    if is_uniform_var(lens, bytes) {
        let value = &bytes[..lens[0] as usize];
        if value.is_empty() {
            return CODEC_ZERO;
        }
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
        return CODEC_CONSTANT;
    }
    let mut plain = Vec::new();
    put_plain_var(&mut plain, lens, bytes);
    match dictionary(lens, bytes) {
        Some(coded) if coded.len() < plain.len() => {
            out.extend_from_slice(&coded);
            CODEC_DICTIONARY
        }
        _ => {
            out.extend_from_slice(&plain);
            CODEC_PLAIN
        }
    }
}

/// Distinct values in order of appearance and an index per value; `None` if more than half of the values are distinct.
fn dictionary(lens: &[u32], bytes: &[u8]) -> Option<Vec<u8>> {
    let mut seen: HashMap<&[u8], u32> = HashMap::new();
    let (mut distinct_lens, mut distinct_bytes) = (Vec::new(), Vec::new());
    let mut indexes = Vec::with_capacity(lens.len());
    let mut rest = bytes;
    for &len in lens {
        let (value, tail) = rest.split_at(len as usize);
        rest = tail;
        let next = seen.len() as u32;
        let index = *seen.entry(value).or_insert(next);
        if index == next {
            if seen.len() * 2 > lens.len() {
                return None;
            }
            distinct_lens.push(len);
            distinct_bytes.extend_from_slice(value);
        }
        indexes.push(index);
    }
    let mut out = Vec::new();
    put_varint(&mut out, distinct_lens.len() as u64);
    put_plain_var(&mut out, &distinct_lens, &distinct_bytes);
    put_u32s(&mut out, &indexes);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sums of small steps, of which pco makes more than distances do, and noise, of which it saves the bits on top.
    fn any_integers() -> impl Strategy<Value = Vec<i64>> {
        let scale = prop::sample::select(vec![1, 40, 10_000, 1 << 40]);
        let sums = (prop::collection::vec(0..6i64, 2..200), scale).prop_map(|(steps, scale)| {
            let sums = steps.iter().scan(0, |sum, step| {
                *sum += step * scale;
                Some(*sum)
            });
            sums.collect()
        });
        let noise = (prop::collection::vec(any::<u64>(), 2..200), 0..8u32)
            .prop_map(|(noise, top)| noise.iter().map(|value| (value >> top) as i64).collect());
        prop_oneof![sums, noise]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn pco_is_chosen_where_it_saves_more_than_one_byte_in_thirty_two(values in any_integers()) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            if is_uniform(&bytes, 8) {
                return Ok(());
            }
            // A byte says whether what follows is packed; base and width stand before distances.
            let narrow = narrowest(&bytes, Number::I64).map_or(usize::MAX, |(_, width)| 1 + 8 + 1 + values.len() * width);
            let fast = narrow.min(1 + bytes.len());
            let mut pco = Vec::new();
            if let Some(packed) = pco_compress(&bytes, Number::I64) {
                put_varint(&mut pco, packed.len() as u64);
                pco.extend(packed);
            }
            let mut out = Vec::new();
            let codec = put_fixed(&mut out, &bytes, 8, Some(Number::I64));
            let is_worth = !pco.is_empty() && pco.len() + fast / 32 < fast;
            prop_assert_eq!(codec == CODEC_PCO, is_worth, "{} bytes for {}", pco.len(), fast);
            let bytes_max = if is_worth { pco.len() } else { fast };
            prop_assert!(out.len() <= bytes_max, "{} bytes for {}", out.len(), bytes_max);
        }
    }
}
