//! Cells, windows, slices, tiles, and the ids of chunks, batches and datasets.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The place of a record as one integer: a sky pixel, a tag number, a hash bucket or an id bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cell(pub i64);

/// Index of a time partition: `floor(t / width)` on the dataset's time axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Window(pub i32);

/// Index of a run of consecutive windows that an engine stores in one table: `floor(window / windows_per_slice)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SliceId(pub i32);

/// One cell in one window. Ordered by cell, then window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// The cell.
    pub cell: Cell,
    /// The window.
    pub window: Window,
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cell {} window {}", self.cell.0, self.window.0)
    }
}

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// Big-endian bytes, so that byte order equals numeric order in every engine.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// Reads big-endian bytes; `None` unless there are exactly 16.
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
            }

            /// Reads the 32 hexadecimal digits that `Display` writes.
            pub fn from_hex(text: &str) -> Option<Self> {
                let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                digits.then(|| u128::from_str_radix(text, 16).ok().map(Self))?
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:032x})"), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                Self::from_hex(&text).ok_or_else(|| serde::de::Error::custom("expected 32 hexadecimal digits"))
            }
        }
    };
}

id128! {
    /// The id of an immutable chunk. A repeated write produces the same ids.
    ChunkId
}

id128! {
    /// The id of a batch: a hash of the caller's key, or a unique number ordered by time.
    BatchId
}

impl ChunkId {
    const OLDER: u128 = 1 << 127;
    const SEPARATED: u128 = 1 << 126;
    const REWRITTEN: u128 = 1 << 125;

    /// The id of a chunk that a write created.
    pub fn of_write(hash: u128) -> Self {
        Self(hash & !(Self::OLDER | Self::SEPARATED | Self::REWRITTEN))
    }

    /// The id of a rewritten chunk from which no older versions were separated.
    pub fn of_any(hash: u128) -> Self {
        Self(Self::of_write(hash).0 | Self::REWRITTEN)
    }

    /// The id of a rewritten chunk from which older versions were separated into other chunks.
    pub fn of_newest(hash: u128) -> Self {
        Self(Self::of_any(hash).0 | Self::SEPARATED)
    }

    /// The id of a chunk of older versions: each has a newer one in the same tile. It sorts after all ids of other kinds.
    pub fn of_older(hash: u128) -> Self {
        Self(Self::of_any(hash).0 | Self::OLDER)
    }

    /// Whether a write created the chunk, rather than a rewrite.
    pub fn is_written(self) -> bool {
        self.0 & (Self::OLDER | Self::SEPARATED | Self::REWRITTEN) == 0
    }

    /// Whether older versions were separated from the rows of this rewritten chunk.
    pub fn is_separated(self) -> bool {
        self.0 & (Self::OLDER | Self::SEPARATED) == Self::SEPARATED
    }

    /// Whether each row of the chunk has a newer version in the same tile.
    pub fn is_older(self) -> bool {
        self.0 & Self::OLDER != 0
    }
}

impl BatchId {
    /// The id of the batch with key `key`: the first 16 bytes of the key's BLAKE3 hash.
    pub fn of_key(key: &str) -> Self {
        let hash = blake3::hash(key.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_bytes()[..16]);
        Self(u128::from_be_bytes(bytes))
    }
}

/// An order-preserving prefix of a record's first id column, with which chunks are pruned without being read.
///
/// Integers become 8 big-endian bytes, signed ones with the sign bit flipped; text and binary values become their first 16 bytes.
/// Truncation preserves the order, though not strictly, so `min <= key <= max` never excludes a chunk that contains the id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneKey {
    // The derived order compares `bytes` before `len`. Bytes after `len` are zero, so this is the order of the keys as
    // byte strings: `len` decides only between keys that differ in trailing zeros.
    bytes: [u8; 16],
    len: u8,
}

impl ZoneKey {
    /// Maximum number of bytes in a key.
    pub const LEN_MAX: usize = 16;
    /// Less than or equal to every key.
    pub const MIN: Self = Self { bytes: [0; 16], len: 0 };
    /// Greater than or equal to every key.
    pub const MAX: Self = Self { bytes: [0xff; 16], len: 16 };

    /// The key of a value's bytes: its first 16.
    pub fn from_bytes(full: &[u8]) -> Self {
        let len = full.len().min(Self::LEN_MAX);
        let mut bytes = [0; 16];
        bytes[..len].copy_from_slice(&full[..len]);
        Self { bytes, len: len as u8 }
    }

    /// Key of a signed integer.
    pub fn from_i64(value: i64) -> Self {
        Self::from_bytes(&((value as u64) ^ (1 << 63)).to_be_bytes())
    }

    /// Key of an unsigned integer.
    pub fn from_u64(value: u64) -> Self {
        Self::from_bytes(&value.to_be_bytes())
    }

    /// The bytes of the key, at most 16.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for ZoneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZoneKey(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ")")
    }
}

/// A dataset's name: 1 to 48 of `a-z 0-9 _`, beginning with a letter, so that every engine can use it in a table name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DatasetName(String);

/// A dataset name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dataset name {0:?} is not usable: give 1 to 48 characters of a-z, 0-9 and _, beginning with a letter")]
pub struct NameError(pub String);

impl DatasetName {
    /// Checks a name.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let begins_well = name.starts_with(|c: char| c.is_ascii_lowercase());
        if begins_well && name.len() <= 48 && name.chars().all(legal) { Ok(Self(name)) } else { Err(NameError(name)) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for DatasetName {
    type Error = NameError;
    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl From<DatasetName> for String {
    fn from(name: DatasetName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn zone_keys_keep_the_order_of_integers(a: i64, b: i64) {
            prop_assert_eq!(ZoneKey::from_i64(a).cmp(&ZoneKey::from_i64(b)), a.cmp(&b));
        }

        #[test]
        fn zone_keys_never_reverse_the_order_of_bytes(a: Vec<u8>, b: Vec<u8>) {
            if a <= b {
                prop_assert!(ZoneKey::from_bytes(&a) <= ZoneKey::from_bytes(&b));
            }
            prop_assert!(ZoneKey::from_bytes(&a) <= ZoneKey::MAX && ZoneKey::MIN <= ZoneKey::from_bytes(&a));
        }

        #[test]
        fn zone_keys_keep_the_first_16_bytes(bytes: Vec<u8>) {
            let key = ZoneKey::from_bytes(&bytes);
            prop_assert_eq!(key.as_bytes(), &bytes[..bytes.len().min(16)]);
        }

        #[test]
        fn ids_survive_text_and_bytes(id: u128) {
            prop_assert_eq!(ChunkId::from_hex(&ChunkId(id).to_string()), Some(ChunkId(id)));
            prop_assert_eq!(ChunkId::from_hex(&format!("+{:031x}", id >> 4)), None);
            prop_assert_eq!(ChunkId::from_bytes(&ChunkId(id).to_bytes()), Some(ChunkId(id)));
        }

        #[test]
        fn ids_encode_versions_and_those_of_older_versions_sort_last(a: u128, b: u128) {
            for bit in [ChunkId::OLDER, ChunkId::SEPARATED, ChunkId::REWRITTEN] {
                prop_assert!(!ChunkId(ChunkId::of_write(a).0 | bit).is_written());
            }
            let kinds = [ChunkId::of_write(b), ChunkId::of_any(b), ChunkId::of_newest(b), ChunkId::of_older(a)];
            prop_assert_eq!(kinds.map(ChunkId::is_written), [true, false, false, false]);
            prop_assert_eq!(kinds.map(ChunkId::is_separated), [false, false, true, false]);
            prop_assert_eq!(kinds.map(ChunkId::is_older), [false, false, false, true]);
            prop_assert!(kinds[..3].iter().all(|id| *id < kinds[3]));
            prop_assert!(kinds[..3].iter().all(|id| id.0 << 3 == b << 3));
        }
    }

    #[test]
    fn unusable_names_are_refused() {
        for bad in ["", "1a", "A", "a-b", "a b", "a\"b", &"a".repeat(49)] {
            assert!(DatasetName::new(bad).is_err(), "{bad:?} was taken");
        }
        assert!(DatasetName::new("dia_sources2").is_ok());
    }
}
