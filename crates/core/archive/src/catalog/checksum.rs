//! Checksums of catalog records: XXH3-64 of the key, a zero byte and the value without its checksum.
//!
//! The checksum is the last member of a JSON object, `"checksum":"<16 hexadecimal digits>"`, and the last item of a
//! JSON list, `"checksum:<16 hexadecimal digits>"`. In binary values it is the last 8 bytes, big-endian.

use xxhash_rust::xxh3::Xxh3;

const MISMATCH: &str = "its checksum does not match: bytes of it were changed";
const HEX_DIGITS: usize = 16;

/// The bytes before and after the digits, at the end of an object and of a list.
const FORMS: [(&[u8], &[u8]); 2] = [(b",\"checksum\":\"", b"\"}"), (b",\"checksum:", b"\"]")];

pub(crate) fn of(key: &str, value: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    // With the key in the hash, a value under another key fails. The zero byte, which no key contains, ends the key.
    hash.update(key.as_bytes());
    hash.update(&[0]);
    hash.update(value);
    hash.digest()
}

/// Adds the checksum to JSON: an object or a list, not empty.
pub(crate) fn seal(key: &str, mut text: Vec<u8>) -> Vec<u8> {
    let Some((before, behind)) = FORMS.iter().find(|(_, behind)| text.last() == behind.last()) else { return text };
    // `before` begins with a comma, so an empty object or list would become invalid JSON.
    let checksum = of(key, &text);
    text.pop();
    text.extend_from_slice(before);
    text.extend_from_slice(format!("{checksum:016x}").as_bytes());
    text.extend_from_slice(behind);
    text
}

/// Verifies the checksum of JSON and removes it.
pub(crate) fn open(key: &str, value: &[u8]) -> Result<Vec<u8>, &'static str> {
    let opened = FORMS.iter().find_map(|(before, behind)| {
        let (text, digits) =
            value.strip_suffix(*behind)?.split_at_checked(value.len().checked_sub(behind.len() + HEX_DIGITS)?)?;
        let mut plain = text.strip_suffix(*before)?.to_vec();
        // `seal` hashes the text with its closing bracket and then replaces the bracket by the checksum.
        plain.extend(behind.last());
        (digits == format!("{:016x}", of(key, &plain)).as_bytes()).then_some(plain)
    });
    opened.ok_or(MISMATCH)
}

/// Verifies the checksum at the end of a binary value and removes it.
pub(crate) fn open_bytes<'a>(key: &str, value: &'a [u8]) -> Result<&'a [u8], &'static str> {
    let (bytes, checksum) = value.split_last_chunk::<8>().ok_or(MISMATCH)?;
    if of(key, bytes) == u64::from_be_bytes(*checksum) { Ok(bytes) } else { Err(MISMATCH) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_under_its_key_alone() {
        for text in [&br#"{"a":1}"#[..], br#"["x","y"]"#] {
            let sealed = seal("key", text.to_vec());
            assert_ne!(sealed, text);
            assert_eq!(open("key", &sealed).unwrap(), text);
            assert!(open("other", &sealed).is_err());
            assert!(open("key", text).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for text in [&br#"{"retention":"3650d","rows":12}"#[..], br#"["x","y"]"#] {
            let sealed = seal("key", text.to_vec());
            for bit in 0..sealed.len() * 8 {
                let mut bad = sealed.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(open("key", &bad).is_err(), "{}", String::from_utf8_lossy(&bad));
            }
        }
    }

    #[test]
    fn bytes_carry_their_checksum_behind_them() {
        let mut sealed = vec![1, 2, 3];
        sealed.extend_from_slice(&of("key", &sealed).to_be_bytes());
        assert_eq!(open_bytes("key", &sealed).unwrap(), [1, 2, 3]);
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open_bytes("key", &bad).is_err());
        }
    }
}
