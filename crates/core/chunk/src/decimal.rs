//! Encoding of floats that are decimals with few digits, as integers divided by a power of ten. All other values (NaN,
//! infinities, -0.0, decimals with more digits) are exceptions, which are stored unchanged.

use arrow_buffer::{ArrowNativeType, Buffer, MutableBuffer};

use crate::number::{Number, numbers};

/// Powers of ten that float64 represents exactly, by exponent.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// 1.5 * 2^52. Adding it to a value below 2^51 rounds the value to an integer, which is in the low bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// Approximate size of the sample that decides whether a column is encoded, and by which power.
const SAMPLE: usize = 64;
/// At most one value in this many may be an exception.
const VALUES_PER_EXCEPTION: usize = 16;
/// Between the minimum and the maximum of the sample there must be at least this many times more floats than scaled integers.
/// Noise, which uses all digits of its type, does not reach this ratio.
const GAIN: f64 = 16.0;
/// Values that are converted together, without branches unless there is an exception among them.
const BLOCK: usize = 64;

/// How the integers are converted to the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    exponent: u8,
    /// Whether quotients are rounded to float32; a column of float64 widens them afterwards.
    single: bool,
    /// Whether the integers are int64; else int32.
    wide: bool,
}

const EXPONENT_MASK: u8 = 0x1f;
const SINGLE: u8 = 1 << 5;
const WIDE: u8 = 1 << 6;

impl Scale {
    pub(crate) fn to_byte(self) -> u8 {
        self.exponent | if self.single { SINGLE } else { 0 } | if self.wide { WIDE } else { 0 }
    }

    /// `None` if the scale is invalid for columns of this type.
    pub(crate) fn from_byte(byte: u8, number: Number) -> Option<Self> {
        let scale = Self { exponent: byte & EXPONENT_MASK, single: byte & SINGLE != 0, wide: byte & WIDE != 0 };
        let is_allowed = match number {
            Number::F32 => scale.single && !scale.wide,
            Number::F64 => true,
            _ => false,
        };
        (is_allowed && usize::from(scale.exponent) < POWERS.len() && scale.to_byte() == byte).then_some(scale)
    }

    /// The type of the integers.
    pub(crate) fn whole_number(self) -> Number {
        if self.wide { Number::I64 } else { Number::I32 }
    }

    fn power(self) -> f64 {
        POWERS[usize::from(self.exponent)]
    }
}

/// The integer types of scaled values.
trait ScaledInteger: ArrowNativeType {
    /// Limit of the absolute scaled value.
    const END: f64;

    /// The integer in a sum with [`ROUNDER`].
    fn in_sum(sum: f64) -> Self;

    fn to_float(self) -> f64;
}

impl ScaledInteger for i32 {
    const END: f64 = i32::MAX as f64;

    #[inline]
    fn in_sum(sum: f64) -> Self {
        // The low 51 bits of `ROUNDER` are zero, so the low bits of the sum are the integer in two's complement.
        sum.to_bits() as i32
    }

    #[inline]
    fn to_float(self) -> f64 {
        f64::from(self)
    }
}

impl ScaledInteger for i64 {
    const END: f64 = (1u64 << 51) as f64;

    #[inline]
    fn in_sum(sum: f64) -> Self {
        sum.to_bits().wrapping_sub(ROUNDER.to_bits()) as i64
    }

    #[inline]
    fn to_float(self) -> f64 {
        self as f64
    }
}

/// The value of an integer. Writer and reader share this expression, so that results are equal bit for bit.
#[inline]
fn value_of<const SINGLE: bool>(whole: f64, power: f64) -> f64 {
    let quotient = whole / power;
    if SINGLE { f64::from(quotient as f32) } else { quotient }
}

/// The sum with [`ROUNDER`] that contains the integer for `value`, and whether that integer reproduces `value`.
#[inline]
fn sum_of<W: ScaledInteger, const SINGLE: bool>(value: f64, power: f64) -> (f64, bool) {
    let scaled = value * power;
    let sum = scaled + ROUNDER;
    // NaN is not below the limit. Comparing bits distinguishes -0.0 from 0.0.
    let same = value_of::<SINGLE>(sum - ROUNDER, power).to_bits() == value.to_bits();
    // `&` evaluates both sides, so that the loop over a block has no branch.
    (sum, same & (scaled.abs() < W::END))
}

/// A column of floats as scaled integers.
pub(crate) struct Decimals {
    pub(crate) scale: Scale,
    /// One integer per value; an exception repeats the one before it, or has zero.
    pub(crate) wholes: Buffer,
    /// Positions of the exceptions, ascending.
    pub(crate) exceptions: Vec<u32>,
}

impl Decimals {
    /// `None` if too few values are decimals, or if they have too many digits for integers to be smaller.
    pub(crate) fn of(bytes: &[u8], number: Number) -> Option<Self> {
        let sample = sample_of(bytes, number)?;
        let scale = scale_of(&sample, number)?;
        let exceptions_max = bytes.len() / number.width() / VALUES_PER_EXCEPTION;
        match number {
            Number::F32 => scaled(numbers!(bytes, f32).map(f64::from), scale, exceptions_max),
            _ => scaled(numbers!(bytes, f64), scale, exceptions_max),
        }
    }
}

/// A sample of values, evenly spaced over the column.
fn sample_of(bytes: &[u8], number: Number) -> Option<Vec<f64>> {
    let step = (bytes.len() / number.width()).div_ceil(SAMPLE).max(1);
    Some(match number {
        Number::F32 => numbers!(bytes, f32).step_by(step).map(f64::from).collect(),
        Number::F64 => numbers!(bytes, f64).step_by(step).collect(),
        _ => return None,
    })
}

fn scale_of(sample: &[f64], number: Number) -> Option<Scale> {
    if number == Number::F32 {
        return scale_by::<i32, true>(sample);
    }
    scale_by::<i64, false>(sample).or_else(|| scale_by::<i64, true>(sample))
}

/// The scale that turns the sample into integers, apart from a limited share of exceptions, if it saves enough.
fn scale_by<W: ScaledInteger, const SINGLE: bool>(sample: &[f64]) -> Option<Scale> {
    let mut exponent = 0;
    let (mut exceptions, mut extremes) = (0, None);
    for &value in sample {
        // All values share one exponent, the greatest that any of them needs.
        let end = POWERS[exponent..].iter().position(|power| sum_of::<W, SINGLE>(value, *power).1);
        let Some(more) = end else {
            exceptions += 1;
            if exceptions * VALUES_PER_EXCEPTION > sample.len() {
                return None;
            }
            continue;
        };
        exponent += more;
        let (least, greatest) = extremes.get_or_insert((value, value));
        *least = value.min(*least);
        *greatest = value.max(*greatest);
    }
    let (least, greatest) = extremes?;
    let power = POWERS[exponent];
    // In a column of float64, values of float32 precision have few significant bits, which pco detects as well.
    let floats = if SINGLE || sample.iter().all(|value| f64::from(*value as f32) == *value || value.is_nan()) {
        (place_of_single(greatest as f32) - place_of_single(least as f32)) as f64
    } else {
        (place_of(greatest) - place_of(least)) as f64
    };
    if (greatest - least) * power * GAIN > floats {
        return None;
    }
    // Values beyond `i32::END` would become exceptions; the factor leaves room for values above those of the sample.
    let wide = W::END > i32::END && least.abs().max(greatest.abs()) * power * 2.0 > i32::END;
    Some(Scale { exponent: exponent as u8, single: SINGLE, wide })
}

/// The rank of a float in the order of all floats, counted from zero.
fn place_of(value: f64) -> i128 {
    // The difference of two ranks of opposite sign may exceed an i64.
    let place = i128::from(value.abs().to_bits());
    if value < 0.0 { -place } else { place }
}

fn place_of_single(value: f32) -> i64 {
    let place = i64::from(value.abs().to_bits());
    if value < 0.0 { -place } else { place }
}

fn scaled(values: impl ExactSizeIterator<Item = f64>, scale: Scale, exceptions_max: usize) -> Option<Decimals> {
    let power = scale.power();
    let mut exceptions = Vec::new();
    let wholes = match (scale.wide, scale.single) {
        (false, false) => Buffer::from_vec(wholes::<i32, false>(values, power, exceptions_max, &mut exceptions)?),
        (false, true) => Buffer::from_vec(wholes::<i32, true>(values, power, exceptions_max, &mut exceptions)?),
        (true, false) => Buffer::from_vec(wholes::<i64, false>(values, power, exceptions_max, &mut exceptions)?),
        (true, true) => Buffer::from_vec(wholes::<i64, true>(values, power, exceptions_max, &mut exceptions)?),
    };
    Some(Decimals { scale, wholes, exceptions })
}

fn wholes<W: ScaledInteger, const SINGLE: bool>(
    mut values: impl ExactSizeIterator<Item = f64>,
    power: f64,
    exceptions_max: usize,
    exceptions: &mut Vec<u32>,
) -> Option<Vec<W>> {
    let count = values.len();
    let mut wholes: Vec<W> = Vec::with_capacity(count);
    let (mut block, mut converted) = ([0.0; BLOCK], [W::default(); BLOCK]);
    while wholes.len() < count {
        let start = wholes.len();
        let len = BLOCK.min(count - start);
        block[..len].fill_with(|| values.next().unwrap_or(0.0));
        let mut all = true;
        // All of the block is converted, so that the length of the loop is fixed. In a short last block, values of the
        // previous block follow; they can only lead to the exact test below.
        for (whole, value) in converted.iter_mut().zip(&block) {
            let (sum, same) = sum_of::<W, SINGLE>(*value, power);
            *whole = W::in_sum(sum);
            all &= same;
        }
        if !all {
            let mut before = wholes.last().copied().unwrap_or_default();
            for at in 0..len {
                if !sum_of::<W, SINGLE>(block[at], power).1 {
                    exceptions.push((start + at) as u32);
                    // A repeated integer keeps the differences small, which pco encodes.
                    converted[at] = before;
                }
                before = converted[at];
            }
            if exceptions.len() > exceptions_max {
                return None;
            }
        }
        wholes.extend_from_slice(&converted[..len]);
    }
    Some(wholes)
}

/// Converts integers of the type that `scale` states, and appends them to a column of `number`.
pub(crate) fn push_decimals(out: &mut MutableBuffer, wholes: &MutableBuffer, scale: Scale, number: Number) {
    if scale.wide {
        push_values(out, wholes.typed_data::<i64>(), scale, number);
    } else {
        push_values(out, wholes.typed_data::<i32>(), scale, number);
    }
}

fn push_values<W: ScaledInteger>(out: &mut MutableBuffer, wholes: &[W], scale: Scale, number: Number) {
    let (start, power) = (out.len() / number.width(), scale.power());
    out.resize(out.len() + wholes.len() * number.width(), 0);
    if number == Number::F32 {
        let room = &mut out.typed_data_mut::<f32>()[start..];
        // `value_of` without its last widening, so that the values equal those that the writer compared bit for bit.
        room.iter_mut().zip(wholes).for_each(|(value, whole)| *value = (whole.to_float() / power) as f32);
        return;
    }
    let room = &mut out.typed_data_mut::<f64>()[start..];
    if scale.single {
        room.iter_mut().zip(wholes).for_each(|(value, whole)| *value = value_of::<true>(whole.to_float(), power));
    } else {
        room.iter_mut().zip(wholes).for_each(|(value, whole)| *value = value_of::<false>(whole.to_float(), power));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn bytes_of_singles(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The bytes decoded from the integers and the exceptions.
    fn again(decimals: &Decimals, bytes: &[u8], number: Number) -> Vec<u8> {
        let mut wholes = MutableBuffer::new(0);
        wholes.extend_from_slice(decimals.wholes.as_slice());
        let mut out = MutableBuffer::new(0);
        push_decimals(&mut out, &wholes, decimals.scale, number);
        let mut out = out.as_slice().to_vec();
        for at in &decimals.exceptions {
            let place = *at as usize * number.width();
            out[place..place + number.width()].copy_from_slice(&bytes[place..place + number.width()]);
        }
        out
    }

    #[test]
    fn texts_with_few_digits_are_whole_numbers_of_their_last_digit() {
        for (digits, wide) in [(0, false), (2, false), (6, false), (9, true), (12, true)] {
            let values: Vec<f64> = (0..500)
                .map(|i| format!("{:.digits$}", (i * 37 % 501 - 250) as f64 * 0.123_456_789_012).parse().unwrap())
                .collect();
            // Zero is not written as -0.0.
            let values: Vec<f64> = values.iter().map(|value| value + 0.0).collect();
            let bytes = bytes_of(&values);
            let found = Decimals::of(&bytes, Number::F64).unwrap();
            assert_eq!(found.scale, Scale { exponent: digits as u8, single: false, wide });
            assert!(found.exceptions.is_empty());
            assert_eq!(again(&found, &bytes, Number::F64), bytes);
        }
    }

    #[test]
    fn float32_is_found_in_columns_of_both_types() {
        let values: Vec<f32> = (0..500).map(|i| (i * 37 % 501) as f32 / 100.0).collect();
        let found = Decimals::of(&bytes_of_singles(&values), Number::F32).unwrap();
        assert_eq!(found.scale, Scale { exponent: 2, single: true, wide: false });
        assert_eq!(again(&found, &[], Number::F32), bytes_of_singles(&values));
        let widened = bytes_of(&values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
        let found = Decimals::of(&widened, Number::F64).unwrap();
        assert_eq!(found.scale, Scale { exponent: 2, single: true, wide: false });
        assert!(found.exceptions.is_empty());
        assert_eq!(again(&found, &[], Number::F64), widened);
    }

    #[test]
    fn noise_is_left_alone() {
        let mut state = 7u64;
        let noise: Vec<f64> = (0..1_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 11) as f64 / (1u64 << 53) as f64
            })
            .collect();
        for factor in [1e-3, 1.0, 360.0, 1e6] {
            let values: Vec<f64> = noise.iter().map(|value| value * factor).collect();
            assert!(Decimals::of(&bytes_of(&values), Number::F64).is_none(), "{factor}");
            let values: Vec<f32> = noise.iter().map(|value| (value * factor) as f32).collect();
            assert!(Decimals::of(&bytes_of_singles(&values), Number::F32).is_none(), "{factor}");
            let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            assert!(Decimals::of(&bytes_of(&values), Number::F64).is_none(), "{factor}");
        }
    }

    #[test]
    fn decimals_with_nearly_as_many_digits_as_floats_are_left_alone() {
        // Between 18 and 22 there are 2^21 float32, 400,000 decimals with five digits and 4,000 with three.
        let values = |power: i32| (0..500).map(move |i| (18 * power + i * 7_919 % (4 * power)) as f32 / power as f32);
        assert!(Decimals::of(&bytes_of_singles(&values(100_000).collect::<Vec<_>>()), Number::F32).is_none());
        assert!(Decimals::of(&bytes_of_singles(&values(1_000).collect::<Vec<_>>()), Number::F32).is_some());
    }

    #[test]
    fn whole_numbers_are_wide_from_half_of_what_int32_holds() {
        for (around, wide) in [(1_000_000_000, false), (1_500_000_000, true)] {
            let values: Vec<f64> = (0..500).map(|i| f64::from(around + i * 37 % 501)).collect();
            assert_eq!(Decimals::of(&bytes_of(&values), Number::F64).unwrap().scale.wide, wide);
        }
        // A value outside the sample is an exception if it is at least the maximum of int32.
        for (odd, exceptions) in [(f64::from(i32::MAX), vec![101]), (f64::from(i32::MAX) - 1.0, vec![])] {
            let mut values: Vec<f64> = (0..500).map(|i| f64::from(i * 37 % 501)).collect();
            values[101] = odd;
            let found = Decimals::of(&bytes_of(&values), Number::F64).unwrap();
            assert_eq!(found.exceptions, exceptions);
            assert_eq!(again(&found, &bytes_of(&values), Number::F64), bytes_of(&values));
        }
    }

    #[test]
    fn a_sample_with_too_many_exceptions_is_enough() {
        // The sample has every hundredth value, 64 of them: four may be exceptions.
        for (count, is_decimal) in [(4, true), (5, false)] {
            let mut values: Vec<f64> = (0..6_400).map(|i| f64::from(i * 37 % 501) / 10.0).collect();
            (0..count).for_each(|i| values[i * 700] = f64::NAN);
            assert_eq!(Decimals::of(&bytes_of(&values), Number::F64).is_some(), is_decimal);
        }
    }

    #[test]
    fn a_scale_that_a_column_cannot_have_is_refused() {
        for byte in 0..=255u8 {
            let (of_f64, of_f32) = (Scale::from_byte(byte, Number::F64), Scale::from_byte(byte, Number::F32));
            let is_known = byte & 0x80 == 0 && byte & 0x1f < 23;
            assert_eq!(of_f64.map(Scale::to_byte), is_known.then_some(byte));
            assert_eq!(of_f32.map(Scale::to_byte), (is_known && byte & 0x60 == 0x20).then_some(byte));
            assert!(Scale::from_byte(byte, Number::I64).is_none());
        }
    }

    /// Decimals, mixed with values that are not decimals, or only nearly.
    fn any_value(exponent: u8) -> impl Strategy<Value = f64> {
        let power = POWERS[usize::from(exponent)];
        prop_oneof![
            60 => (-1_000i64..1_000).prop_map(move |whole| whole as f64 / power),
            3 => (i64::MIN / 4_096..i64::MAX / 4_096).prop_map(move |whole| whole as f64 / power),
            1 => any::<u64>().prop_map(f64::from_bits),
            1 => (-1_000i64..1_000, -2i64..3)
                .prop_map(move |(whole, ulps)| f64::from_bits(((whole as f64 / power).to_bits() as i64).wrapping_add(ulps) as u64)),
            1 => prop::sample::select(vec![-0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn whole_numbers_and_exceptions_give_the_same_bits(
            values in (0..23u8).prop_flat_map(|exponent| prop::collection::vec(any_value(exponent), 1..300)),
        ) {
            let bytes = bytes_of(&values);
            if let Some(found) = Decimals::of(&bytes, Number::F64) {
                prop_assert!(found.exceptions.len() * VALUES_PER_EXCEPTION <= values.len());
                prop_assert_eq!(again(&found, &bytes, Number::F64), bytes);
            }
            let singles: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            let bytes = bytes_of_singles(&singles);
            if let Some(found) = Decimals::of(&bytes, Number::F32) {
                prop_assert_eq!(again(&found, &bytes, Number::F32), bytes);
            }
        }
    }
}
