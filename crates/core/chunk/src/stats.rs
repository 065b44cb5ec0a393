//! Minimum and maximum of a column, stored in columnar chunks so that a reader can skip a chunk, or answer from it, without
//! decoding values.

use chronotile_types::Damage;

use crate::number::{Number, numbers, with_integer};
use crate::wire::Reader;

/// Flag in the first byte of a column's node: minimum and maximum follow it.
pub(crate) const NODE_STATS: u8 = 1 << 5;
/// Flag: some value is NaN. Only together with `NODE_STATS`.
pub(crate) const NODE_HAS_NAN: u8 = 1 << 6;

/// Minimum number of values: with fewer, the extremes would take more than a hundredth of the column.
const COUNT_MIN: usize = 256;

/// Statistics of a column of numbers, dates or times in a columnar chunk.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ColumnStats {
    /// Signed integers, dates, times, timestamps and durations, in the unit of the column.
    Signed {
        /// The minimum.
        min: i64,
        /// The maximum.
        max: i64,
    },
    /// Unsigned integers.
    Unsigned {
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// Floating-point numbers (float32 widened).
    Float {
        /// The minimum without NaN; -0.0 is less than 0.0.
        min: f64,
        /// The maximum without NaN.
        max: f64,
        /// Whether some value is NaN.
        has_nan: bool,
    },
}

/// Appends the extremes of `bytes` and returns the flags for them; `None` if they are not worth their space.
pub(crate) fn put_stats(out: &mut Vec<u8>, bytes: &[u8], number: Number) -> Option<u8> {
    if bytes.len() < COUNT_MIN * number.width() {
        return None;
    }
    with_integer!(number, T => {
        let (mut min, mut max) = (T::MAX, T::MIN);
        for value in numbers!(bytes, T) {
            min = min.min(value);
            max = max.max(value);
        }
        out.extend_from_slice(&min.to_le_bytes());
        out.extend_from_slice(&max.to_le_bytes());
        Some(NODE_STATS)
    }, match number {
        // Widening a float32 and narrowing it again changes no bit of values other than NaN, so both widths share a
        // function.
        Number::F32 => put_float_stats(out, numbers!(bytes, f32).map(f64::from), |value| (value as f32).to_le_bytes()),
        _ => put_float_stats(out, numbers!(bytes, f64), f64::to_le_bytes),
    })
}

fn put_float_stats<const N: usize>(
    out: &mut Vec<u8>,
    values: impl Iterator<Item = f64>,
    to_bytes: impl Fn(f64) -> [u8; N],
) -> Option<u8> {
    let mut extremes: Option<(f64, f64)> = None;
    let mut nan_flag = 0;
    for value in values {
        if value.is_nan() {
            nan_flag = NODE_HAS_NAN;
        } else {
            let (min, max) = extremes.get_or_insert((value, value));
            // `total_cmp` orders -0.0 before 0.0, as the format requires. `f64::min` may return either of the two.
            if value.total_cmp(min).is_lt() {
                *min = value;
            }
            if value.total_cmp(max).is_gt() {
                *max = value;
            }
        }
    }
    // A column of only NaN returns here, before any byte or flag is written: it has no extremes in the format.
    let (min, max) = extremes?;
    out.extend_from_slice(&to_bytes(min));
    out.extend_from_slice(&to_bytes(max));
    Some(NODE_STATS | nan_flag)
}

/// Reads what [`put_stats`] wrote after a node's `first` byte.
pub(crate) fn read_stats(reader: &mut Reader, first: u8, number: Option<Number>) -> Result<ColumnStats, Damage> {
    let number = number.ok_or(Damage::malformed("extremes of values that are not numbers"))?;
    let has_nan = first & NODE_HAS_NAN != 0;
    let mut next = |width: usize| -> Result<u64, Damage> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(reader.take(width)?);
        Ok(u64::from_le_bytes(wide))
    };
    let width = number.width();
    let (min, max) = (next(width)?, next(width)?);
    let unused = 64 - 8 * width as u32;
    // The shift to the right is arithmetic: it extends the sign from the width of the column to 64 bits.
    let signed = |bits: u64| (bits << unused) as i64 >> unused;
    Ok(match number {
        Number::F32 => {
            let float = |bits: u64| f64::from(f32::from_bits(bits as u32));
            ColumnStats::Float { min: float(min), max: float(max), has_nan }
        }
        Number::F64 => ColumnStats::Float { min: f64::from_bits(min), max: f64::from_bits(max), has_nan },
        Number::I8 | Number::I16 | Number::I32 | Number::I64 => {
            ColumnStats::Signed { min: signed(min), max: signed(max) }
        }
        Number::U8 | Number::U16 | Number::U32 | Number::U64 => ColumnStats::Unsigned { min, max },
    })
}
