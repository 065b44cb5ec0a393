//! Damage: why the bytes of a chunk cannot be decoded.

use std::fmt;

/// What is wrong with the bytes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// The bytes end before a length that they state.
    Truncated,
    /// A checksum does not match: the bytes changed, or they are stored under a tile or chunk id for which they were not written.
    Checksum,
    /// The container's version is newer than this release reads.
    UnknownVersion(u8),
    /// The bytes match their checksum but break a rule of the format.
    Malformed(&'static str),
}

/// A chunk cannot be decoded. Callers that know the chunk's place add dataset, tile and chunk id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage(pub DamageKind);

impl Damage {
    /// Bytes that break a rule of the format.
    pub fn malformed(rule: &'static str) -> Self {
        Self(DamageKind::Malformed(rule))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DamageKind::Truncated => f.write_str("the bytes end too early"),
            DamageKind::Checksum => f.write_str("the checksum does not match"),
            DamageKind::UnknownVersion(version) => {
                write!(f, "format version {version} is newer than this release reads")
            }
            DamageKind::Malformed(rule) => write!(f, "malformed: {rule}"),
        }
    }
}

impl std::error::Error for Damage {}
