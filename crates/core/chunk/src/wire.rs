//! Little-endian primitives and variable-length integers.

use chronotile_types::{Damage, DamageKind};

/// Reads a byte string from front to back, never past its end.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Damage> {
        match self.rest.split_at_checked(count) {
            Some((front, rest)) => {
                self.rest = rest;
                Ok(front)
            }
            None => Err(Damage(DamageKind::Truncated)),
        }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        match self.rest.split_first_chunk::<N>() {
            Some((front, rest)) => {
                self.rest = rest;
                Ok(*front)
            }
            None => Err(Damage(DamageKind::Truncated)),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Damage> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// An unsigned LEB128 integer of at most ten bytes.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Damage> {
        let first = self.u8()?;
        if first < 0x80 { Ok(u64::from(first)) } else { self.varint_long(u64::from(first & 0x7f)) }
    }

    fn varint_long(&mut self, mut value: u64) -> Result<u64, Damage> {
        for shift in (7..70).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // Nine bytes hold 63 bits, so only the lowest bit of the tenth byte fits.
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damage::malformed("a variable-length integer exceeds 64 bits"))
    }

    /// The next `count` variable-length integers if each takes one byte, in which case the bytes are the integers.
    #[inline]
    pub(crate) fn single_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.rest.get(..count)?;
        if bytes.iter().fold(0, |all, byte| all | byte) >= 0x80 {
            return None;
        }
        self.rest = &self.rest[count..];
        Some(bytes)
    }

    /// A variable-length integer that is a count or a length: at most `max`.
    #[inline]
    pub(crate) fn size(&mut self, max: usize) -> Result<usize, Damage> {
        match usize::try_from(self.varint()?) {
            Ok(value) if value <= max => Ok(value),
            _ => Err(Damage::malformed("a length exceeds its limit")),
        }
    }

    /// A zigzag-coded signed integer.
    pub(crate) fn signed(&mut self) -> Result<i64, Damage> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Number of bytes that [`put_varint`] writes.
pub(crate) fn varint_len(value: u64) -> usize {
    // `| 1` makes zero take one byte, too.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn variable_length_integers_come_back(unsigned: u64, signed: i64, shift in 0u32..64) {
            let (unsigned, signed) = (unsigned >> shift, signed >> shift);
            let mut bytes = Vec::new();
            put_varint(&mut bytes, unsigned);
            prop_assert_eq!(bytes.len(), varint_len(unsigned));
            put_signed(&mut bytes, signed);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.varint(), Ok(unsigned));
            prop_assert_eq!(reader.signed(), Ok(signed));
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn integers_of_single_bytes_are_taken_only_where_all_are() {
        let bytes = [0x81, 0x81, 0x01, 0x7f];
        let mut reader = Reader::new(&bytes);
        // Continuation bits in two bytes, which would cancel out if combined by parity.
        assert_eq!(reader.single_bytes(2), None);
        assert_eq!(reader.single_bytes(5), None);
        assert_eq!(reader.varint(), Ok(0x4081));
        assert_eq!(reader.single_bytes(1), Some(&bytes[3..]));
        assert!(reader.is_empty());
    }

    #[test]
    fn integers_over_64_bits_are_refused() {
        assert!(Reader::new(&[0xff; 11]).varint().is_err());
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(Reader::new(&most).varint(), Ok(u64::MAX));
        most[9] = 2;
        assert!(Reader::new(&most).varint().is_err());
        assert_eq!(Reader::new(&[0x80]).varint(), Err(Damage(DamageKind::Truncated)));
    }
}
