//! Bit-packing with a frame of reference: numbers are stored as distances from a base in a fixed number of bits. Values outside
//! this range are exceptions, which are stored unchanged.
//!
//! Most measurements of a survey are noise, in which only a few of the top bits of each number are redundant; bit-packing drops
//! them. It takes up to four per cent more space than an entropy coder, and a fraction of its decoding time.

use chronotile_types::Damage;

use crate::number::{Number, numbers};
use crate::wire::{Reader, put_varint, varint_len};

/// Flag in the width of distances: the width is in bits.
pub(crate) const IN_BITS: u8 = 1 << 7;
/// Flag in the width of distances: floats are rotated left by one bit, which moves their sign to the end.
const ROTATED: u8 = 1 << 6;
const BITS_MASK: u8 = 0x3f;
/// Maximum width: a distance starts at any bit of a byte (up to bit 7), and is read as one word.
const BITS_MAX: u32 = 56;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Minimum number of values: with fewer, the base takes more space than it saves.
const VALUES_MIN: usize = 16;
/// Size of the sample from which base and width are chosen.
const SAMPLE: usize = 4_096;
/// Shares of exceptions that are tried: one value in this many.
const VALUES_PER_EXCEPTION: [usize; 4] = [128, 64, 32, 16];

/// How to bit-pack a column of numbers.
pub(crate) struct Plan {
    base: u64,
    bits: u32,
    rotated: bool,
    /// Positions of the exceptions, ascending.
    exceptions: Vec<u32>,
    /// Number of bytes that [`Plan::put`] writes.
    pub(crate) len: usize,
    /// Whether most values are distinct. Repeated values are left to compressors.
    pub(crate) is_varied: bool,
    /// Whether the values are unordered floats that use their last digits: an entropy coder saves a few per cent of them at most.
    pub(crate) is_noise: bool,
}

impl Plan {
    /// The plan with the smallest size; `None` if bit-packing does not help.
    pub(crate) fn of(bytes: &[u8], number: Number) -> Option<Self> {
        let width = number.width();
        let count = bytes.len() / width;
        if count < VALUES_MIN {
            return None;
        }
        let is_float = !number.is_integer();
        let rotated = is_float && has_both_signs(bytes, width);
        let keys = Keys { number, rotated };
        let all: Vec<u64> = keys.of_all(bytes);
        let mut sorted: Vec<u64> = all.iter().copied().step_by(count.div_ceil(SAMPLE)).collect();
        sorted.sort_unstable();
        let distinct = 1 + sorted.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let is_varied = distinct * 2 > sorted.len();
        // The plan without exceptions must cover every value, so its range comes from all values and not from the
        // sample.
        let (least, most) = all.iter().fold((u64::MAX, 0), |(least, most), key| (least.min(*key), most.max(*key)));
        // An exception is estimated as its value and one byte for the gap: in the shares that are tried, most gaps are
        // below 128. `len` below is exact.
        let in_bytes = |bits: u32, exceptions: usize| (count * bits as usize).div_ceil(8) + exceptions * (1 + width);
        let mut best = (in_bytes(bits_of(most - least), 0), least, bits_of(most - least));
        for exceptions in VALUES_PER_EXCEPTION.map(|values| sorted.len() / values) {
            let Some((base, range)) = narrowest_window(&sorted, sorted.len() - exceptions) else { continue };
            let bits = bits_of(range);
            // The share of exceptions in the sample is taken for the whole column.
            let len = in_bytes(bits, exceptions * count / sorted.len());
            if len < best.0 {
                best = (len, base, bits);
            }
        }
        let (_, base, bits) = best;
        if bits > BITS_MAX || bits as usize >= 8 * width {
            return None;
        }
        // A key below the base wraps to a large distance. If that distance fits nevertheless, the sum wraps back to the
        // key.
        let outside = |key: &u64| key.wrapping_sub(base) >> bits != 0;
        let exceptions: Vec<u32> =
            all.iter().enumerate().filter(|(_, key)| outside(key)).map(|(place, _)| place as u32).collect();
        let gaps: usize = gaps(&exceptions).map(|gap| varint_len(gap) + width).sum();
        let len = width + 1 + varint_len(exceptions.len() as u64) + (count * bits as usize).div_ceil(8) + gaps;
        let is_noise = is_float && is_varied && is_noise(&all, bits, rotated);
        Some(Self { base, bits, rotated, exceptions, len, is_varied, is_noise })
    }

    /// Appends base, width, number of exceptions, distances and exceptions.
    pub(crate) fn put(&self, out: &mut Vec<u8>, bytes: &[u8], number: Number) {
        let (width, keys) = (number.width(), Keys { number, rotated: self.rotated });
        let start = out.len();
        out.reserve(self.len);
        out.extend_from_slice(&keys.base_of(self.base).to_le_bytes()[..width]);
        out.push(IN_BITS | if self.rotated { ROTATED } else { 0 } | self.bits as u8);
        put_varint(out, self.exceptions.len() as u64);
        let (mut word, mut filled) = (0u64, 0);
        for key in keys.of_all(bytes) {
            let distance = key.wrapping_sub(self.base);
            // The distance stored for an exception is not read.
            word |= if distance >> self.bits == 0 { distance << filled } else { 0 };
            // At most 7 bits are left over and at most 56 are added, so the word does not overflow.
            filled += self.bits;
            let whole = filled as usize / 8;
            out.extend_from_slice(&word.to_le_bytes()[..whole]);
            word >>= 8 * whole;
            filled %= 8;
        }
        if filled > 0 {
            out.push(word as u8);
        }
        for (place, gap) in self.exceptions.iter().zip(gaps(&self.exceptions)) {
            put_varint(out, gap);
            out.extend_from_slice(&bytes[*place as usize * width..][..width]);
        }
        debug_assert_eq!(out.len() - start, self.len);
    }
}

/// The distances between consecutive positions, minus one; the first counts from the start.
fn gaps(places: &[u32]) -> impl Iterator<Item = u64> {
    let after = std::iter::once(0).chain(places.iter().map(|place| place + 1));
    places.iter().zip(after).map(|(place, after)| u64::from(place - after))
}

fn bits_of(range: u64) -> u32 {
    // The format has no distances of zero bits; columns of equal values have an encoding of their own.
    (64 - range.leading_zeros()).max(1)
}

/// The minimum and the range of the `count` consecutive values with the smallest range.
fn narrowest_window(sorted: &[u64], count: usize) -> Option<(u64, u64)> {
    let last = sorted.get(count.checked_sub(1)?..)?;
    last.iter().zip(sorted).map(|(most, least)| (*least, most - least)).min_by_key(|(_, range)| *range)
}

/// Whether keys use their last bits, and neighbours are seldom close to each other.
fn is_noise(keys: &[u64], bits: u32, rotated: bool) -> bool {
    /// Narrower values are not mostly unpredictable bits.
    const NOISE_BITS_MIN: u32 = 16;
    /// If all keys end with this many zeros, they are multiples of a coarser unit.
    const UNIT_BITS: u32 = 8;
    /// Neighbours are close if they differ by less than a sixteenth of the range.
    const CLOSE_BITS: u32 = 4;
    // The lowest bit of a rotated key is the sign, not a digit.
    let digits = keys.iter().fold(0, |all, key| all | key) >> u32::from(rotated);
    // `min` keeps the subtraction valid for narrow values, which the last line rejects.
    let close =
        keys.windows(2).take(SAMPLE).filter(|pair| pair[0].abs_diff(pair[1]) >> (bits - CLOSE_BITS.min(bits)) == 0);
    bits >= NOISE_BITS_MIN && digits.trailing_zeros() < UNIT_BITS && close.count() * 2 < keys.len().min(SAMPLE)
}

fn has_both_signs(bytes: &[u8], width: usize) -> bool {
    let mut signs = bytes.iter().skip(width - 1).step_by(width).map(|byte| byte >> 7);
    let first = signs.next();
    signs.any(|sign| Some(sign) != first)
}

/// Maps numbers to unsigned integers in the same order. Floats of one sign are ordered by magnitude; rotated floats by magnitude,
/// then sign.
#[derive(Clone, Copy)]
struct Keys {
    number: Number,
    rotated: bool,
}

impl Keys {
    fn of_all(self, bytes: &[u8]) -> Vec<u64> {
        let (flip, turn) = (self.flip(), u32::from(self.rotated));
        macro_rules! keys {
            ($T:ident) => {
                numbers!(bytes, $T).map(|bits| u64::from(bits.rotate_left(turn)) ^ flip).collect()
            };
        }
        match self.number.width() {
            1 => keys!(u8),
            2 => keys!(u16),
            4 => keys!(u32),
            _ => keys!(u64),
        }
    }

    /// The mask that maps signed integers to unsigned ones in the same order.
    fn flip(self) -> u64 {
        let is_signed = matches!(self.number, Number::I8 | Number::I16 | Number::I32 | Number::I64);
        if is_signed { 1 << (8 * self.number.width() - 1) } else { 0 }
    }

    /// The base as written: for integers, a value of the column.
    fn base_of(self, key: u64) -> u64 {
        key ^ self.flip()
    }
}

/// Bit-packed numbers that are read.
pub(crate) struct BitPacked<'a> {
    base: u64,
    bits: usize,
    rotated: bool,
    packed: &'a [u8],
    exceptions: Vec<(usize, &'a [u8])>,
}

impl<'a> BitPacked<'a> {
    /// Reads `count` numbers after their base and width.
    pub(crate) fn read(
        reader: &mut Reader<'a>,
        base: &[u8],
        width: u8,
        number: Number,
        count: usize,
    ) -> Result<Self, Damage> {
        let (bits, rotated) = (usize::from(width & BITS_MASK), width & ROTATED != 0);
        let is_known = (1..=BITS_MAX as usize).contains(&bits) && bits < 8 * number.width();
        if !is_known || width & IN_BITS == 0 || (rotated && number.is_integer()) {
            return Err(Damage::malformed("distances of unknown width"));
        }
        let exceptions = reader.size(count)?;
        let len = count.checked_mul(bits).ok_or(Damage::malformed("a length exceeds its limit"))?.div_ceil(8);
        let packed = reader.take(len)?;
        // The vector grows with the exceptions that are read: a number in the chunk alone must not cause an allocation.
        let (mut found, mut next) = (Vec::new(), 0usize);
        for _ in 0..exceptions {
            let place = next.saturating_add(reader.size(count)?);
            if place >= count {
                return Err(Damage::malformed("an exception lies past the values"));
            }
            found.push((place, reader.take(number.width())?));
            // Gaps count from here, so positions ascend strictly, as the binary search in `put_value` requires.
            next = place + 1;
        }
        let mut wide = [0; 8];
        wide[..base.len()].copy_from_slice(base);
        Ok(Self { base: u64::from_le_bytes(wide), bits, rotated, packed, exceptions: found })
    }

    /// Fills `room` with all values of `width` bytes.
    pub(crate) fn fill(&self, width: usize, room: &mut [u8]) {
        let turn = u32::from(self.rotated);
        // Each value is written from a register: writes through a temporary array would wait for each other.
        match width {
            1 => self.fill_by(room.as_chunks_mut().0, |key| (key as u8).rotate_right(turn).to_le_bytes()),
            2 => self.fill_by(room.as_chunks_mut().0, |key| (key as u16).rotate_right(turn).to_le_bytes()),
            4 => self.fill_by(room.as_chunks_mut().0, |key| (key as u32).rotate_right(turn).to_le_bytes()),
            _ => self.fill_by(room.as_chunks_mut().0, |key| key.rotate_right(turn).to_le_bytes()),
        }
        for (place, value) in &self.exceptions {
            room[place * width..][..width].copy_from_slice(value);
        }
    }

    fn fill_by<const WIDTH: usize>(&self, room: &mut [[u8; WIDTH]], value_of: impl Fn(u64) -> [u8; WIDTH]) {
        // Eight values take as many bytes as one value has bits.
        // `key` reads whole words, so a group of eight is read in place only if a word follows it.
        let eights = self.packed.len().saturating_sub(WORD) / self.bits;
        let (whole, rest) = room.split_at_mut(8 * eights);
        for (eight, values) in whole.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let bytes = &self.packed[eight * self.bits..][..self.bits + WORD];
            for (at, slot) in values.iter_mut().enumerate() {
                *slot = value_of(self.key(bytes, at));
            }
        }
        // Fewer bytes are left than one group and one word, so all of them fit into the padded copy.
        let tail = self.padded(8 * eights);
        for (at, slot) in rest.iter_mut().enumerate() {
            *slot = value_of(self.key(&tail, at));
        }
    }

    /// The key at a position: the base plus the distance in these bytes.
    #[inline]
    fn key(&self, bytes: &[u8], place: usize) -> u64 {
        let bit = place * self.bits;
        let word = bytes.get(bit / 8..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word));
        self.base.wrapping_add(word >> (bit % 8) & ((1 << self.bits) - 1))
    }

    /// The packed bytes of the eight values that contain a position, padded with zeros after the last byte.
    fn padded(&self, place: usize) -> [u8; BITS_MAX as usize + 3 * WORD] {
        let mut padded = [0; BITS_MAX as usize + 3 * WORD];
        let rest = self.packed.get(place / 8 * self.bits..).unwrap_or_default();
        let len = rest.len().min(padded.len() - WORD);
        padded[..len].copy_from_slice(&rest[..len]);
        padded
    }

    /// Writes the value at a position to `slot`, which has the width of the numbers.
    pub(crate) fn put_value(&self, place: usize, slot: &mut [u8]) {
        if let Ok(at) = self.exceptions.binary_search_by_key(&place, |(place, _)| *place) {
            return slot.copy_from_slice(self.exceptions[at].1);
        }
        let (key, turn) = (self.key(&self.padded(place), place % 8), u32::from(self.rotated));
        match slot.len() {
            1 => slot.copy_from_slice(&(key as u8).rotate_right(turn).to_le_bytes()),
            2 => slot.copy_from_slice(&(key as u16).rotate_right(turn).to_le_bytes()),
            4 => slot.copy_from_slice(&(key as u32).rotate_right(turn).to_le_bytes()),
            _ => slot.copy_from_slice(&key.rotate_right(turn).to_le_bytes()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NUMBERS: [Number; 10] = [
        Number::I8,
        Number::I16,
        Number::I32,
        Number::I64,
        Number::U8,
        Number::U16,
        Number::U32,
        Number::U64,
        Number::F32,
        Number::F64,
    ];

    /// Numbers around a value, with some outliers.
    fn any_bytes() -> impl Strategy<Value = (Number, Vec<u8>)> {
        let number = prop::sample::select(NUMBERS.to_vec());
        (number, any::<u64>(), 0u32..64, 0u32..40, any::<bool>(), 0usize..700).prop_flat_map(
            |(number, around, shift, odd_every, signs, count)| {
                prop::collection::vec(any::<u64>(), count).prop_map(move |noise| {
                    let width = number.width();
                    let value = |(place, noise): (usize, &u64)| match odd_every {
                        0 => around.wrapping_add(noise >> shift),
                        _ if place % odd_every as usize == 0 => *noise,
                        _ => around.wrapping_add(noise >> shift) ^ if signs { noise << 63 } else { 0 },
                    };
                    let numbers = noise.iter().enumerate().map(value);
                    (number, numbers.flat_map(|n| n.to_le_bytes()[8 - width..].to_vec()).collect())
                })
            },
        )
    }

    fn written(bytes: &[u8], number: Number) -> Option<Vec<u8>> {
        let plan = Plan::of(bytes, number)?;
        let mut out = Vec::new();
        plan.put(&mut out, bytes, number);
        assert_eq!(out.len(), plan.len);
        Some(out)
    }

    fn read(out: &[u8], number: Number, count: usize) -> Result<BitPacked<'_>, Damage> {
        let mut reader = Reader::new(out);
        let (base, width) = (reader.take(number.width())?, reader.u8()?);
        let read = BitPacked::read(&mut reader, base, width, number, count)?;
        if reader.is_empty() { Ok(read) } else { Err(Damage::malformed("bytes follow")) }
    }

    fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
        values.flat_map(f32::to_le_bytes).collect()
    }

    fn noise(count: usize) -> impl Iterator<Item = f64> {
        let mut state = 1u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        })
        .take(count)
    }

    #[test]
    fn noise_of_one_and_of_both_signs_takes_little_more_than_its_entropy() {
        // Twenty-three bits of each, and two for the power of two.
        let positive = floats(noise(5_000).map(|x| (1_000.0 * x) as f32));
        assert!(written(&positive, Number::F32).unwrap().len() < 5_000 * 27 / 8);
        let both = floats(noise(5_000).map(|x| (x - 0.5) as f32));
        assert!(written(&both, Number::F32).unwrap().len() < 5_000 * 28 / 8);
    }

    #[test]
    fn floats_are_noise_unless_they_are_in_order_or_have_a_unit() {
        let doubles = |values: &mut dyn Iterator<Item = f64>| values.flat_map(f64::to_le_bytes).collect::<Vec<_>>();
        let is_noise = |bytes: &[u8], number| Plan::of(bytes, number).is_some_and(|plan| plan.is_noise);
        assert!(is_noise(&floats(noise(300).map(|x| (x - 0.5) as f32)), Number::F32));
        assert!(is_noise(&doubles(&mut noise(300).map(|x| 287.0 + x)), Number::F64));
        let mut sorted: Vec<f64> = noise(300).collect();
        sorted.sort_by(f64::total_cmp);
        assert!(!is_noise(&doubles(&mut sorted.into_iter()), Number::F64));
        // Measurements in float32, and repeated values.
        assert!(!is_noise(&doubles(&mut noise(300).map(|x| f64::from(x as f32))), Number::F64));
        let few: Vec<f64> = noise(10).collect();
        assert!(!is_noise(&doubles(&mut (0..300).map(|i| few[i * 7 % 10])), Number::F64));
        // Eight trailing zero bits mean a coarser unit; seven do not, nor do eight equal bits.
        let with_end = |bits: u32, end: u64| {
            let values: Vec<f64> =
                noise(300).map(|x| f64::from_bits((1.0 + x).to_bits() >> bits << bits | end)).collect();
            is_noise(&doubles(&mut values.into_iter()), Number::F64)
        };
        assert_eq!((with_end(8, 0), with_end(7, 0), with_end(8, 1)), (false, true, true));
        // Half of the values are close to their neighbour, and one fewer.
        let close = |count: usize| {
            let mut values: Vec<f64> =
                noise(300).enumerate().map(|(i, x)| (i / 2 % 2) as f64 + 1.2 + x / 100.0).collect();
            values[299] += count as f64;
            is_noise(&doubles(&mut values.into_iter()), Number::F64)
        };
        assert_eq!((close(0), close(1)), (false, true));
        let whole: Vec<u8> = noise(300).flat_map(|x| ((x * 1e9) as u64 * 1_000).to_le_bytes()).collect();
        assert!(!is_noise(&whole, Number::U64));
    }

    #[test]
    fn a_few_values_far_away_cost_themselves_alone() {
        let close: Vec<i64> = (0..1_000).map(|i| 5_000_000_000 + i * 37 % 501).collect();
        let bytes_of = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let without = written(&bytes_of(&close), Number::I64).unwrap().len();
        let mut far = close.clone();
        (far[3], far[700]) = (i64::MIN, i64::MAX);
        let with = written(&bytes_of(&far), Number::I64).unwrap().len();
        assert!(with <= without + 2 * 10, "{with} and {without} bytes");
    }

    #[test]
    fn unknown_widths_and_places_are_refused() {
        let bytes = floats(noise(100).map(|x| (x - 0.5) as f32));
        let good = written(&bytes, Number::F32).unwrap();
        assert!(read(&good, Number::F32, 100).is_ok());
        for width in [0, 1, IN_BITS, IN_BITS | 32, IN_BITS | 57, ROTATED | 20] {
            let mut bad = good.clone();
            bad[4] = width;
            let error = read(&bad, Number::F32, 100).err().unwrap();
            assert!(error.to_string().contains("unknown width"), "{width:#x}: {error}");
        }
        assert!(read(&good, Number::I32, 100).is_err(), "integers are not rotated");
        for (place, count) in [([100, 0].as_slice(), 1u8), ([99, 0, 0, 0, 0, 0, 9, 9, 9, 9].as_slice(), 2)] {
            let mut bad = vec![0, 0, 0, 0, IN_BITS | 8, count];
            bad.extend([0; 100]);
            bad.extend(place);
            bad.extend([0; 4]);
            let error = read(&bad, Number::U32, 100).err().unwrap();
            assert!(error.to_string().contains("past the values"), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn numbers_come_back_whole_and_one_by_one((number, bytes) in any_bytes()) {
            let (width, count) = (number.width(), bytes.len() / number.width());
            if let Some(out) = written(&bytes, number) {
                let packed = read(&out, number, count).unwrap();
                let mut room = vec![0; bytes.len()];
                packed.fill(width, &mut room);
                prop_assert_eq!(&room, &bytes);
                for place in 0..count {
                    let mut slot = vec![0; width];
                    packed.put_value(place, &mut slot);
                    prop_assert_eq!(&slot, &bytes[place * width..][..width]);
                }
                for cut in 0..out.len() {
                    prop_assert!(read(&out[..cut], number, count).is_err());
                }
            }
        }
    }
}
