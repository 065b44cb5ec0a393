//! Decoding of integers and decimals of any length.

use std::fmt::Write as _;

use arrow_buffer::i256;

use super::Fault;

/// The integer in big-endian two's complement, if it fits into 256 bits. An empty value is zero.
pub(super) fn to_i256(bytes: &[u8]) -> Option<i256> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let filler = if negative { 0xff } else { 0 };
    // A longer value fits if its extra bytes only repeat the sign.
    let (extra, kept) = bytes.split_at(bytes.len().saturating_sub(32));
    let mut full = [filler; 32];
    full[32 - kept.len()..].copy_from_slice(kept);
    let same_sign = (full[0] & 0x80 != 0) == negative;
    (same_sign && extra.iter().all(|byte| *byte == filler)).then(|| i256::from_be_bytes(full))
}

/// The integer in big-endian two's complement, if it fits into 64 bits.
pub(super) fn to_i64(bytes: &[u8]) -> Option<i64> {
    to_i256(bytes)?.to_i128().and_then(|number| i64::try_from(number).ok())
}

/// Appends the decimal digits of an integer of any length.
pub(super) fn write_integer(bytes: &[u8], text: &mut Vec<u8>) {
    let (negative, digits) = digits_of(bytes);
    if negative {
        text.push(b'-');
    }
    text.extend_from_slice(digits.as_bytes());
}

/// Appends a decimal in the notation of Java's `BigDecimal` and Python's `Decimal`: `1.50`, and with an exponent (`1.5E+10`,
/// `1E-9`) only if the digits alone would not show the scale, or more than five zeros would follow the point.
pub(super) fn write_decimal(bytes: &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    let (scale, unscaled) = decimal_parts(bytes)?;
    let (negative, digits) = digits_of(unscaled);
    let mut shown = String::with_capacity(digits.len() + 8);
    if negative {
        shown.push('-');
    }
    let scale = i64::from(scale);
    let adjusted = digits.len() as i64 - 1 - scale;
    if scale >= 0 && adjusted >= -6 {
        // Here the scale exceeds the number of digits by at most six.
        let scale = scale as usize;
        let padded = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = padded.split_at(padded.len() - scale);
        shown.push_str(whole);
        if scale > 0 {
            shown.push('.');
            shown.push_str(fraction);
        }
    } else {
        let (first, rest) = digits.split_at(1);
        shown.push_str(first);
        if !rest.is_empty() {
            shown.push('.');
            shown.push_str(rest);
        }
        // Writing to a String does not fail.
        let _ = write!(shown, "E{adjusted:+}");
    }
    text.extend_from_slice(shown.as_bytes());
    Ok(())
}

/// A decimal as the number of units of `10^-scale`.
pub(super) fn rescale(bytes: &[u8], precision: u8, scale: u8) -> Result<i256, Fault> {
    let (value_scale, unscaled) = decimal_parts(bytes)?;
    let too_large = || {
        let mut shown = vec![];
        let shown = match write_decimal(bytes, &mut shown) {
            Ok(()) => String::from_utf8_lossy(&shown).into_owned(),
            Err(_) => "a value".to_owned(),
        };
        Fault::range(format!(
            "{shown} does not fit decimal({precision}, {scale}) exactly: choose another precision and scale, or read it as text"
        ))
    };
    let number = to_i256(unscaled).ok_or_else(too_large)?;
    // Zero fits every type, even if its own scale is out of the range of the powers below.
    if number == i256::ZERO {
        return Ok(number);
    }
    let shift = i64::from(scale) - i64::from(value_scale);
    // A shift of more than 76 digits in either direction leaves only zero.
    let power = u32::try_from(shift.unsigned_abs()).ok().filter(|power| *power <= 76).ok_or_else(too_large)?;
    let factor = i256::from_i128(10).checked_pow(power).ok_or_else(too_large)?;
    let shifted = if shift >= 0 {
        number.checked_mul(factor).ok_or_else(too_large)?
    } else {
        let exact = number.checked_rem(factor) == Some(i256::ZERO);
        number.checked_div(factor).filter(|_| exact).ok_or_else(too_large)?
    };
    if fits(shifted, precision) { Ok(shifted) } else { Err(too_large()) }
}

/// Whether a number has at most `digits` decimal digits; `digits` is at most 76.
pub(super) fn fits(number: i256, digits: u8) -> bool {
    let limit = i256::from_i128(10).checked_pow(u32::from(digits));
    limit.is_some_and(|limit| number < limit && number > i256::ZERO.wrapping_sub(limit))
}

/// Scale and unscaled number of a decimal.
fn decimal_parts(bytes: &[u8]) -> Result<(i32, &[u8]), Fault> {
    let (scale, unscaled) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| Fault::malformed(format!("a decimal of {} bytes", bytes.len())))?;
    Ok((i32::from_be_bytes(*scale), unscaled))
}

/// Sign and decimal digits, at least one, without leading zeros.
fn digits_of(bytes: &[u8]) -> (bool, String) {
    if let Some(number) = to_i256(bytes).and_then(i256::to_i128) {
        return (number < 0, number.unsigned_abs().to_string());
    }
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    // Beyond 128 bits: nine digits at a time, the lowest first.
    let mut limbs = magnitude(bytes, negative);
    let mut groups = vec![];
    while !limbs.is_empty() {
        groups.push(divide(&mut limbs, 1_000_000_000));
    }
    let mut digits = groups.pop().unwrap_or(0).to_string();
    for group in groups.iter().rev() {
        // Writing to a String does not fail.
        let _ = write!(digits, "{group:09}");
    }
    (negative, digits)
}

/// The absolute value in base 2^32, most significant first.
fn magnitude(bytes: &[u8], negative: bool) -> Vec<u32> {
    let mut limbs: Vec<u32> = vec![];
    for piece in bytes.rchunks(4) {
        let mut full = [if negative { 0xff } else { 0 }; 4];
        full[4 - piece.len()..].copy_from_slice(piece);
        limbs.push(u32::from_be_bytes(full));
    }
    if negative {
        let mut carry = true;
        for limb in &mut limbs {
            (*limb, carry) = (!*limb).overflowing_add(u32::from(carry));
        }
        if carry {
            limbs.push(1);
        }
    }
    limbs.reverse();
    limbs
}

/// Divides in place, drops leading zeros, and returns the remainder.
fn divide(limbs: &mut Vec<u32>, divisor: u32) -> u32 {
    let divisor = u64::from(divisor);
    let mut remainder = 0_u64;
    for limb in limbs.iter_mut() {
        let number = remainder << 32 | u64::from(*limb);
        // The remainder is less than the divisor, so the quotient fits.
        *limb = (number / divisor) as u32;
        remainder = number % divisor;
    }
    let zeros = limbs.iter().take_while(|limb| **limb == 0).count();
    limbs.drain(..zeros);
    remainder as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(scale: i32, unscaled: &[u8]) -> Vec<u8> {
        [&scale.to_be_bytes(), unscaled].concat()
    }

    fn shown(scale: i32, unscaled: &[u8]) -> String {
        let mut text = vec![];
        write_decimal(&decimal(scale, unscaled), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn integer(bytes: &[u8]) -> String {
        let mut text = vec![];
        write_integer(bytes, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn integers_of_any_length_keep_every_digit() {
        assert_eq!(integer(&[]), "0");
        assert_eq!(integer(&[0xff]), "-1");
        assert_eq!(integer(&[0, 0, 0, 0x80]), "128");
        // 2^256 and its negative, and -2^127 in seventeen bytes.
        let mut large = vec![1];
        large.extend([0; 32]);
        let digits = "115792089237316195423570985008687907853269984665640564039457584007913129639936";
        assert_eq!(integer(&large), digits);
        large[0] = 0xff;
        assert_eq!(integer(&large), format!("-{digits}"));
        let mut edge = vec![0xff, 0x80];
        edge.extend([0; 15]);
        assert_eq!(integer(&edge), i128::MIN.to_string());
        // -2^256 again, without the byte that only repeats the sign.
        let mut tight = vec![0x80];
        tight.extend([0; 31]);
        assert_eq!(integer(&tight), "-57896044618658097711785492504343953926634992332820282019728792003956564819968");
    }

    #[test]
    fn decimals_are_written_as_java_and_python_do() {
        assert_eq!(shown(2, &[0]), "0.00");
        assert_eq!(shown(1, &[0x96]), "-10.6");
        assert_eq!(shown(0, &[5]), "5");
        assert_eq!(shown(3, &[5]), "0.005");
        assert_eq!(shown(6, &[1]), "0.000001");
        assert_eq!(shown(7, &[1]), "1E-7");
        assert_eq!(shown(-3, &[15]), "1.5E+4");
        assert_eq!(shown(i32::MAX, &[1]), "1E-2147483647");
        assert_eq!(shown(i32::MIN, &[1]), "1E+2147483648");
        assert!(write_decimal(&[0, 0, 0], &mut vec![]).is_err());
    }

    #[test]
    fn rescaling_loses_nothing_or_fails() {
        let ok = |scale, unscaled: &[u8]| rescale(&decimal(scale, unscaled), 5, 2).map(|number| number.to_string());
        assert_eq!(ok(2, &[0x7f]).unwrap(), "127");
        assert_eq!(ok(0, &[0x7f]).unwrap(), "12700");
        assert_eq!(ok(3, &[0xf6]).unwrap(), "-1");
        assert_eq!(ok(i32::MAX, &[0]).unwrap(), "0");
        for (scale, unscaled) in [(3, 5_u8), (-1, 0x7f), (-2, 10), (i32::MAX, 1), (i32::MIN, 1)] {
            let Err(Fault::Range(reason)) = ok(scale, &[unscaled]) else { panic!("{scale} {unscaled}") };
            assert!(reason.contains("does not fit decimal(5, 2)"), "{reason}");
        }
    }

    #[test]
    fn only_what_fits_becomes_a_machine_number() {
        assert_eq!(to_i64(&i64::MIN.to_be_bytes()), Some(i64::MIN));
        assert_eq!(to_i64(&[0, 0x80, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(to_i256(&[0xff; 40]), Some(i256::MINUS_ONE));
        let mut large = vec![0x80];
        large.extend([0; 32]);
        assert_eq!(to_i256(&large), None);
    }
}
