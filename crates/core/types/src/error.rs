use std::fmt;

/// What is wrong with the bytes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// The bytes end before what they announce.
    Truncated,
    /// A checksum does not match: the bytes changed, or they lie under another tile or chunk id than they were written for.
    Checksum,
    /// The container says a version this release does not know.
    UnknownVersion(u8),
    /// The bytes match their checksum but break a rule of the format.
    Malformed(&'static str),
}

/// A chunk that cannot be decoded. Whoever knows where the bytes lay adds dataset, tile and chunk id.
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
