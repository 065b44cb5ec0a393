//! Encodes the columnar form: a directory of lengths, then one byte string per column that can be read without the others.

use std::collections::HashMap;

use crate::bit_packed::Plan;
use crate::decimal::Decimals;
use crate::extract::{NodeData, Sink, Values};
use crate::number::{Number, narrowest, numbers, put_narrow, with_integer};
use crate::packed::{COMPRESS_BYTES_MIN, PCO_LEVEL, PCO_LEVEL_DECIMALS, pco_compress, put_packed};
use crate::small_write::{is_uniform, is_uniform_var, uniform_bool};
use crate::stats;
use crate::wire::{put_varint, varint_len};

/// The low three bits of a node's first byte: the encoding of the values that are not null.
pub(crate) const CODEC_PLAIN: u8 = 0;
pub(crate) const CODEC_CONSTANT: u8 = 1;
pub(crate) const CODEC_NARROW: u8 = 2;
pub(crate) const CODEC_ZERO: u8 = 3;
pub(crate) const CODEC_PCO: u8 = 4;
pub(crate) const CODEC_DICTIONARY: u8 = 5;
pub(crate) const CODEC_DECIMAL: u8 = 6;
pub(crate) const CODEC_SEQUENCE: u8 = 7;
pub(crate) const CODEC_MASK: u8 = 7;
/// A packed null bitmap precedes the values.
pub(crate) const NODE_BITMAP: u8 = 1 << 3;
/// Every row is null, or there are no rows. No other bit is set.
pub(crate) const NODE_ALL_NULL: u8 = 1 << 4;

/// A slower codec is chosen over a faster one only if it saves at least one byte in this many.
const WORTH: usize = 32;
/// The same for pco over bit-packing, since pco takes three to six times as long to read.
const WORTH_PCO: usize = 8;
/// If more than one value in this many is an exception, pco is also tried on the floats.
const VALUES_PER_RARE_EXCEPTION: usize = 256;
/// Minimum number of values of a sequence.
const SEQUENCE_MIN: usize = 4;

/// Appends the nodes of one column.
pub(crate) struct ColumnWriter<'a> {
    pub(crate) out: &'a mut Vec<u8>,
}

impl Sink for ColumnWriter<'_> {
    fn node(&mut self, data: NodeData) {
        let at = self.out.len();
        // The byte stays as it is for a node without present rows; otherwise it is replaced when the codec is known.
        self.out.push(NODE_ALL_NULL);
        if data.present == 0 {
            return;
        }
        let mut first = 0;
        // The extremes come before the bitmap, so that `column_stats` reads them without unpacking anything.
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
            Values::Fixed { width, number, bytes } => put_fixed(self.out, bytes, *width, *number, PCO_LEVEL),
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

fn put_fixed(out: &mut Vec<u8>, bytes: &[u8], width: usize, number: Option<Number>, level: usize) -> u8 {
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
    if let Some(sequence) = sequence(bytes, number) {
        out.extend_from_slice(sequence);
        return CODEC_SEQUENCE;
    }
    // The candidates come from the fastest to the slowest to read: whole bytes, bits, decimals and pco. Sizes of whole
    // bytes are those before zstd, with the byte that says whether zstd was used.
    let narrow = narrowest(bytes, number);
    let narrow_bytes = narrow.map(|(_, narrow)| width + 2 + bytes.len() / width * narrow);
    let plain_bytes = 1 + bytes.len();
    let whole_bytes = narrow_bytes.unwrap_or(plain_bytes).min(plain_bytes);
    let in_bits = Plan::of(bytes, number).filter(|plan| plan.len + whole_bytes / WORTH < whole_bytes);
    let (fast_bytes, worth) = match &in_bits {
        Some(plan) if level == PCO_LEVEL => (plan.len, WORTH_PCO),
        // Integers of decimals have the other level. For them, pco needs to save only a thirty-second.
        Some(plan) => (plan.len, WORTH),
        None => (whole_bytes, WORTH),
    };
    let is_worth = |len: usize| len + fast_bytes / worth < fast_bytes;
    let decimals = Decimals::of(bytes, number);
    let has_rare_exceptions = decimals
        .as_ref()
        .is_some_and(|decimals| decimals.exceptions.len() * VALUES_PER_RARE_EXCEPTION <= bytes.len() / width);
    let decimals =
        decimals.map(|decimals| decimal_bytes(&decimals, bytes, width)).filter(|coded| is_worth(coded.len()));
    // pco takes most of the time of encoding, so it is tried only on columns where it may save enough.
    let skip_pco = has_rare_exceptions && decimals.is_some() || in_bits.as_ref().is_some_and(|plan| plan.is_noise);
    let pco = if skip_pco { None } else { pco_compress(bytes, number, level) };
    let pco = pco.filter(|pco| is_worth(pco.len() + varint_len(pco.len() as u64)));
    match (decimals, pco, narrow) {
        (Some(decimals), pco, _) if pco.as_ref().is_none_or(|pco| decimals.len() <= pco.len()) => {
            out.extend_from_slice(&decimals);
            CODEC_DECIMAL
        }
        (_, Some(pco), _) => {
            put_varint(out, pco.len() as u64);
            out.extend_from_slice(&pco);
            CODEC_PCO
        }
        (_, None, _) if let Some(plan) = in_bits => {
            plan.put(out, bytes, number);
            CODEC_NARROW
        }
        (_, None, Some((base, narrow_width))) => {
            out.extend_from_slice(&base.to_le_bytes()[..width]);
            out.push(narrow_width as u8);
            let mut distances = Vec::new();
            put_narrow(&mut distances, bytes, number, base, narrow_width);
            put_packed(out, &distances);
            CODEC_NARROW
        }
        (_, None, None) => {
            put_packed(out, bytes);
            CODEC_PLAIN
        }
    }
}

/// The first two values if the integers are an arithmetic sequence; else `None`.
fn sequence(bytes: &[u8], number: Number) -> Option<&[u8]> {
    let width = number.width();
    if bytes.len() < SEQUENCE_MIN * width {
        return None;
    }
    with_integer!(number, T => {
        let (mut values, mut after) = (numbers!(bytes, T), numbers!(bytes[width..], T));
        let step = after.next()?.wrapping_sub(values.next()?);
        values.zip(after).all(|(value, next)| next.wrapping_sub(value) == step).then(|| &bytes[..2 * width])
    }, None)
}

/// The encoding of decimals.
fn decimal_bytes(decimals: &Decimals, bytes: &[u8], width: usize) -> Vec<u8> {
    let mut out = vec![decimals.scale.to_byte()];
    put_varint(&mut out, decimals.exceptions.len() as u64);
    put_numbers(&mut out, &decimals.wholes, decimals.scale.whole_number(), PCO_LEVEL_DECIMALS);
    if !decimals.exceptions.is_empty() {
        put_u32s(&mut out, &decimals.exceptions);
        let value = |at: &u32| &bytes[*at as usize * width..][..width];
        put_packed(&mut out, &decimals.exceptions.iter().flat_map(value).copied().collect::<Vec<_>>());
    }
    out
}

/// Appends integers as a separate node without nulls: one byte for the codec, then the values.
fn put_numbers(out: &mut Vec<u8>, bytes: &[u8], number: Number, level: usize) {
    let at = out.len();
    out.push(0);
    out[at] = put_fixed(out, bytes, number.width(), Some(number), level);
}

fn put_u32s(out: &mut Vec<u8>, values: &[u32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    put_numbers(out, &bytes, Number::U32, PCO_LEVEL);
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
        // A constant is stored plain; a long one, such as a document, is compressed if that saves bytes.
        if value.len() >= COMPRESS_BYTES_MIN {
            let mut packed = Vec::new();
            let codec = put_long(&mut packed, lens, value);
            if packed.len() < varint_len(value.len() as u64) + value.len() {
                out.extend_from_slice(&packed);
                return codec;
            }
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

/// Appends a constant value in a form that compresses it.
fn put_long(out: &mut Vec<u8>, lens: &[u32], value: &[u8]) -> u8 {
    if lens.len() == 1 {
        put_plain_var(out, lens, value);
        return CODEC_PLAIN;
    }
    put_varint(out, 1);
    put_plain_var(out, &lens[..1], value);
    // Indexes that are all zero take one byte.
    put_u32s(out, &vec![0; lens.len()]);
    CODEC_DICTIONARY
}

/// Distinct values in order of appearance and an index per value; `None` if more than half of the values are distinct.
fn dictionary(lens: &[u32], bytes: &[u8]) -> Option<Vec<u8>> {
    // Values are written in order of appearance. The map serves only for look-ups, because its order differs between
    // runs, but equal rows must give equal bytes.
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

    /// Random walks, which pco compresses better than distances, and noise, of which pco saves the top bits.
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

    fn codec_of(bytes: &[u8], number: Number) -> (u8, usize) {
        let mut out = Vec::new();
        let codec = put_fixed(&mut out, bytes, number.width(), Some(number), PCO_LEVEL);
        (codec, out.len())
    }

    fn bytes_of(values: impl Iterator<Item = f64>) -> Vec<u8> {
        values.flat_map(f64::to_le_bytes).collect()
    }

    /// A random walk with steps of -1, 0 and 1 hundredths, and random bits in one of every `odd_every` values.
    fn walk(odd_every: usize) -> Vec<u8> {
        let (mut level, mut state) = (50i64, 1u64);
        bytes_of((1..20_001).map(|row| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            level += (state >> 33) as i64 % 3 - 1;
            if row % odd_every == 0 { f64::from_bits(state | 1) } else { level as f64 / 100.0 }
        }))
    }

    #[test]
    fn decimals_take_little_more_than_the_entropy_of_their_steps() {
        let (codec, len) = codec_of(&walk(usize::MAX), Number::F64);
        assert_eq!(codec, CODEC_DECIMAL);
        // log2(3) bits per value are 0.198 bytes.
        assert!(len < 20_000 * 205 / 1_000, "{len} bytes");
    }

    #[test]
    fn decimals_with_exceptions_are_kept_where_they_are_smaller_than_pco() {
        for (odd_every, is_decimal) in [(1_000, true), (100, true), (10, false)] {
            let bytes = walk(odd_every);
            let (codec, len) = codec_of(&bytes, Number::F64);
            let pco = pco_compress(&bytes, Number::F64, PCO_LEVEL).map_or(usize::MAX, |pco| pco.len() + 3);
            assert_eq!(codec == CODEC_DECIMAL, is_decimal, "every {odd_every}");
            assert!(len <= pco, "every {odd_every}: {len} bytes, {pco} with pco");
        }
    }

    #[test]
    fn integers_at_even_distances_take_two_of_them() {
        for (start, step) in
            [(1_767_225_600_000_000_000i64, 1_000_000_000i64), (i64::MIN + 9, -5), (i64::MAX, i64::MAX)]
        {
            let even: Vec<i64> = (0..1_000).map(|row| start.wrapping_add(step.wrapping_mul(row))).collect();
            let bytes: Vec<u8> = even.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(codec_of(&bytes, Number::I64), (CODEC_SEQUENCE, 16));
            // A single deviating value, even the last, breaks the sequence; three values are too few for one.
            let mut odd = bytes.clone();
            odd[999 * 8] ^= 1;
            assert_ne!(codec_of(&odd, Number::I64).0, CODEC_SEQUENCE);
            assert_ne!(codec_of(&bytes[..24], Number::I64).0, CODEC_SEQUENCE);
            assert_eq!(codec_of(&bytes[..32], Number::I64).0, CODEC_SEQUENCE);
        }
        let small: Vec<u8> = (0..100).map(|row: u8| row.wrapping_mul(7)).collect();
        assert_eq!(codec_of(&small, Number::U8), (CODEC_SEQUENCE, 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn pco_is_chosen_where_it_saves_enough(values in any_integers()) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            if is_uniform(&bytes, 8) || sequence(&bytes, Number::I64).is_some() {
                return Ok(());
            }
            // One byte tells whether the content is packed; base and width precede the distances.
            let narrow = narrowest(&bytes, Number::I64).map_or(usize::MAX, |(_, width)| 1 + 8 + 1 + values.len() * width);
            let whole = narrow.min(1 + bytes.len());
            let in_bits = Plan::of(&bytes, Number::I64).map(|plan| plan.len).filter(|len| len + whole / 32 < whole);
            let mut pco = Vec::new();
            if let Some(packed) = pco_compress(&bytes, Number::I64, PCO_LEVEL) {
                put_varint(&mut pco, packed.len() as u64);
                pco.extend(packed);
            }
            let mut out = Vec::new();
            let codec = put_fixed(&mut out, &bytes, 8, Some(Number::I64), PCO_LEVEL);
            let (fast, worth) = in_bits.map_or((whole, 32), |len| (len, 8));
            let is_worth = !pco.is_empty() && pco.len() + fast / worth < fast;
            prop_assert_eq!(codec == CODEC_PCO, is_worth, "{} bytes for {}", pco.len(), fast);
            let bytes_max = if is_worth { pco.len() } else { fast };
            prop_assert!(out.len() <= bytes_max, "{} bytes for {}", out.len(), bytes_max);
        }
    }
}
