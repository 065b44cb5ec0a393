//! Least and greatest value of a column, kept in columnar chunks so that one can be passed over, or answered from, without
//! its values.

use chronotile_types::Damage;

use crate::number::{Number, numbers, with_integer};
use crate::wire::Reader;

/// In the first byte of a column's node: the least and greatest value stand behind it.
pub(crate) const NODE_STATS: u8 = 1 << 5;
/// Some value is not a number. Only beside `NODE_STATS`.
pub(crate) const NODE_HAS_NAN: u8 = 1 << 6;

/// Below this count of values the two extremes cost more than a hundredth of the column.
const COUNT_MIN: usize = 256;

/// What the directory of a columnar chunk says about a column of numbers, dates or times.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ColumnStats {
    /// Signed integers, dates, times, timestamps and durations, in the unit of the column.
    Signed {
        /// The least value.
        min: i64,
        /// The greatest value.
        max: i64,
    },
    /// Unsigned integers.
    Unsigned {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// Floating-point numbers (float32 widened).
    Float {
        /// The least value that is a number; -0.0 counts as less than 0.0.
        min: f64,
        /// The greatest value that is a number.
        max: f64,
        /// Whether some value is not a number.
        has_nan: bool,
    },
}

/// Appends the extremes of `bytes` and returns the flags that say so; `None` where they are not worth their space.
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
            if value.total_cmp(min).is_lt() {
                *min = value;
            }
            if value.total_cmp(max).is_gt() {
                *max = value;
            }
        }
    }
    let (min, max) = extremes?;
    out.extend_from_slice(&to_bytes(min));
    out.extend_from_slice(&to_bytes(max));
    Some(NODE_STATS | nan_flag)
}

/// Reads what [`put_stats`] wrote behind a node's `first` byte.
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
