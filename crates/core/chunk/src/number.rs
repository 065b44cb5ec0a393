//! Number types, and the macros that dispatch from a type tag to generic code.

use arrow_buffer::MutableBuffer;
use arrow_schema::DataType;

/// The type of fixed-width numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

impl Number {
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        use DataType::*;
        Some(match data_type {
            Int8 => Self::I8,
            Int16 => Self::I16,
            Int32 | Date32 | Time32(_) => Self::I32,
            Int64 | Date64 | Time64(_) | Timestamp(_, _) | Duration(_) => Self::I64,
            UInt8 => Self::U8,
            UInt16 => Self::U16,
            UInt32 => Self::U32,
            UInt64 => Self::U64,
            Float32 => Self::F32,
            Float64 => Self::F64,
            _ => return None,
        })
    }

    pub(crate) fn width(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64)
    }
}

/// Runs `$body` with `$T` as the Rust type of `$number`.
macro_rules! with_number {
    ($number:expr, $T:ident => $body:expr) => {
        $crate::number::match_number!(
            $number, $T => $body,
            [I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64]
        )
    };
}

/// As `with_number`, for integers only; `$other` is the value for floats.
macro_rules! with_integer {
    ($number:expr, $T:ident => $body:expr, $other:expr) => {
        $crate::number::match_number!(
            $number, $T => $body,
            [I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64], F32 | F64 => $other
        )
    };
}

/// A `match` with an arm for each listed variant of [`Number`], in which `$T` is the type listed with it.
macro_rules! match_number {
    ($number:expr, $T:ident => $body:expr, [$($variant:ident $type:ty),*] $(, $($rest:ident)|* => $other:expr)?) => {
        match $number {
            $($crate::number::Number::$variant => {
                type $T = $type;
                $body
            })*
            $($($crate::number::Number::$rest)|* => $other,)?
        }
    };
}
pub(crate) use {match_number, with_integer, with_number};

/// Iterates over the little-endian numbers in `$bytes`.
macro_rules! numbers {
    ($bytes:expr, $T:ident) => {
        $bytes.as_chunks::<{ size_of::<$T>() }>().0.iter().map(|bytes| $T::from_le_bytes(*bytes))
    };
}
pub(crate) use numbers;

/// Integers stored as unsigned distances from their minimum.
pub(crate) struct Narrow<'a> {
    /// The minimum, in the width of the column.
    pub(crate) base: &'a [u8],
    /// Bytes per distance: 1, 2 or 4, and less than the column's width.
    pub(crate) width: usize,
}

// One of the types of `$T` is u64 itself.
#[allow(clippy::unnecessary_cast)]
/// The minimum of `bytes` and the smallest sufficient distance width; `None` if that saves nothing.
pub(crate) fn narrowest(bytes: &[u8], number: Number) -> Option<(u64, usize)> {
    let (base, range) = with_integer!(number, T => {
        let (mut least, mut most) = (T::MAX, T::MIN);
        for value in numbers!(bytes, T) {
            least = least.min(value);
            most = most.max(value);
        }
        // The casts extend the sign, so the wrapping difference is the distance even between the ends of a signed type.
        (least as u64, (most as u64).wrapping_sub(least as u64))
    }, return None);
    let width = match range {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => return None,
    };
    let count = bytes.len() / number.width();
    // The plain form depends on this comparison and on the widths above: another choice would change its bytes, and the
    // checksums of chunks that are stored as rows would no longer match.
    (number.width() + 1 + count * width < bytes.len()).then_some((base, width))
}

#[allow(clippy::unnecessary_cast)]
/// Appends the distances of `bytes` from `base`, each in `width` bytes.
pub(crate) fn put_narrow(out: &mut Vec<u8>, bytes: &[u8], number: Number, base: u64, width: usize) {
    with_integer!(number, T => {
        for value in numbers!(bytes, T) {
            out.extend_from_slice(&(value as u64).wrapping_sub(base).to_le_bytes()[..width]);
        }
    }, ())
}

/// Fills `room` with the values of `width` bytes that have these distances.
pub(crate) fn widen(narrow: &Narrow, distances: &[u8], width: usize, room: &mut [u8]) {
    macro_rules! by_width {
        ($($from:literal => $to:literal,)*) => {
            match (narrow.width, width) {
                $(($from, $to) => add_base(
                    narrow.base_number(),
                    distances.as_chunks::<$from>().0,
                    room.as_chunks_mut::<$to>().0,
                ),)*
                // `read_narrow` refuses other widths.
                _ => unreachable!("distances are narrower than their values"),
            }
        };
    }
    by_width!(1 => 2, 1 => 4, 1 => 8, 2 => 4, 2 => 8, 4 => 8,);
}

fn add_base<const FROM: usize, const TO: usize>(base: u64, distances: &[[u8; FROM]], room: &mut [[u8; TO]]) {
    for (value, distance) in room.iter_mut().zip(distances) {
        let mut wide = [0; 8];
        wide[..FROM].copy_from_slice(distance);
        // The base is extended with zeros even if it is negative: only the low bytes of the sum are kept, and these do
        // not depend on the bytes above them.
        value.copy_from_slice(&base.wrapping_add(u64::from_le_bytes(wide)).to_le_bytes()[..TO]);
    }
}

impl Narrow<'_> {
    fn base_number(&self) -> u64 {
        let mut base = [0; 8];
        base[..self.base.len()].copy_from_slice(self.base);
        u64::from_le_bytes(base)
    }
}

/// Appends an arithmetic sequence of `count` integers that begins with `first` and `second`.
pub(crate) fn push_sequence(out: &mut MutableBuffer, first: &[u8], second: &[u8], number: Number, count: usize) {
    with_integer!(number, T => {
        let number_in = |bytes: &[u8]| numbers!(bytes, T).next().unwrap_or_default();
        let (first, second) = (number_in(first), number_in(second));
        // Steps and values wrap, as in the writer, so a sequence may run across the end of its type.
        let step = second.wrapping_sub(first);
        let start = out.len() / size_of::<T>();
        out.resize(out.len() + count * size_of::<T>(), 0);
        let mut next = first;
        for value in &mut out.typed_data_mut::<T>()[start..] {
            *value = next;
            next = next.wrapping_add(step);
        }
    }, ())
}
