//! The head of a chunk: what a reader needs before it reads the body.

use std::ops::Deref;

use arrow_array::RecordBatch;
use chronotile_types::{BatchId, ChunkId, Damage, DamageKind, Tile, ZoneKey};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::packed::Compression;
use crate::text::{TextFilter, read_filters};
use crate::wire::{Reader, put_signed, put_varint};
use crate::{DECODED_BYTES_MAX, FORMAT_VERSION, ROWS_MAX};

const FLAG_COLUMNAR: u8 = 1;
const FLAG_UNIQUE_IDS: u8 = 1 << 1;
const FLAG_ROW_ORIGINS: u8 = 1 << 2;
const FLAG_ORDINALS: u8 = 1 << 3;
const COMPRESSION_SHIFT: u32 = 4;
const FLAG_TEXT_FILTERS: u8 = 1 << 6;
const FLAGS_UNUSED: u8 = 1 << 7;

/// Where a chunk is stored. It is part of the head's checksum but not of the head, so that a chunk under a wrong tile or id is
/// detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The tile of the chunk's rows.
    pub tile: Tile,
    /// The chunk's id.
    pub chunk: ChunkId,
}

impl Binding {
    /// Seed of the head's checksum: XXH3-64 of cell, window (both little-endian) and chunk id (big-endian).
    fn seed(&self) -> u64 {
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&self.tile.cell.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tile.window.0.to_le_bytes());
        bytes[12..].copy_from_slice(&self.chunk.to_bytes());
        xxh3_64(&bytes)
    }
}

/// The attempt at a batch that a row came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The batch.
    pub batch: BatchId,
    /// Write stamp, microseconds since the Unix epoch.
    pub written_us: i64,
    /// Distinguishes attempts with the same stamp.
    pub token: u32,
}

/// The origins of a chunk's rows: one for a freshly written chunk, several after consolidation. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origins(OriginList);

#[derive(Clone, Debug, PartialEq, Eq)]
enum OriginList {
    One(Origin),
    Many(Box<[Origin]>),
}

impl Deref for Origins {
    type Target = [Origin];

    fn deref(&self) -> &[Origin] {
        match &self.0 {
            OriginList::One(origin) => std::slice::from_ref(origin),
            OriginList::Many(origins) => origins,
        }
    }
}

/// The range of times and ids in a chunk; both ends are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The earliest time, in the unit of the dataset's time axis.
    pub time_min: i64,
    /// The latest time.
    pub time_max: i64,
    /// Lower bound of the keys of the rows' ids.
    pub id_min: ZoneKey,
    /// Upper bound of the keys of the rows' ids.
    pub id_max: ZoneKey,
}

/// A parsed and verified head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The schema version of the rows.
    pub schema_version: u32,
    /// Number of rows, at least one.
    pub rows: u32,
    /// The range of times and ids.
    pub zone: Zone,
    /// The origins of the rows.
    pub origins: Origins,
    /// Whether no two rows have the same id, as the writer found.
    pub unique_ids: bool,
    /// Whether the rows have ordinals, see [`crate::ordinals`].
    pub has_ordinals: bool,
    /// The form of the body.
    pub body_layout: BodyLayout,
    /// Length of the body in bytes.
    pub body_bytes: usize,
    pub(crate) has_row_origins: bool,
    pub(crate) compression: Compression,
    /// Length of the small block before compression.
    pub(crate) block_bytes: usize,
    pub(crate) text_filters: Box<[TextFilter]>,
    pub(crate) body_checksum: u64,
}

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLayout {
    /// One block with the plain values of every column, possibly compressed as a whole.
    Small,
    /// One compressed byte string per column, located by a directory.
    Columnar,
}

/// The rows of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct ChunkRows<'a> {
    /// Exactly the columns of the layout's schema, with its types.
    pub batch: &'a RecordBatch,
    /// The origins of the rows; at least one.
    pub origins: &'a [Origin],
    /// For each row an index into `origins`; `None` if all rows come from the first.
    pub row_origin: Option<&'a [u32]>,
    /// For each row its number within its batch, for datasets without id columns.
    pub ordinals: Option<&'a [i64]>,
    /// Positions of the text columns for which the head gets a filter, if it is worth its space.
    pub text: &'a [usize],
}

/// The properties of a body that its head states.
pub(crate) struct BodyInfo<'a> {
    pub(crate) body_layout: BodyLayout,
    pub(crate) compression: Compression,
    pub(crate) block_bytes: usize,
    pub(crate) body: &'a [u8],
    pub(crate) text_filters: Option<&'a [u8]>,
}

/// Encodes the head of a chunk; `encode` has checked its parts.
pub(crate) fn put_head(
    schema_version: u32,
    rows: &ChunkRows,
    zone: &Zone,
    unique_ids: bool,
    info: &BodyInfo,
    binding: &Binding,
) -> Vec<u8> {
    let filters = info.text_filters.unwrap_or_default();
    let mut out = Vec::with_capacity(96 + 24 * (rows.origins.len() - 1) + filters.len());
    out.push(FORMAT_VERSION);
    let flag = |on: bool, bit: u8| if on { bit } else { 0 };
    out.push(
        flag(info.body_layout == BodyLayout::Columnar, FLAG_COLUMNAR)
            | flag(unique_ids, FLAG_UNIQUE_IDS)
            | flag(rows.row_origin.is_some(), FLAG_ROW_ORIGINS)
            | flag(rows.ordinals.is_some(), FLAG_ORDINALS)
            | flag(info.text_filters.is_some(), FLAG_TEXT_FILTERS)
            | (info.compression as u8) << COMPRESSION_SHIFT,
    );
    put_varint(&mut out, u64::from(schema_version));
    put_varint(&mut out, rows.batch.num_rows() as u64);
    put_signed(&mut out, zone.time_min);
    // The distance of two i64 may exceed i64::MAX; as an unsigned number, the wrapped difference is right.
    put_varint(&mut out, zone.time_max.wrapping_sub(zone.time_min) as u64);
    put_keys(&mut out, zone);
    put_varint(&mut out, rows.origins.len() as u64);
    let mut before = 0i64;
    for origin in rows.origins {
        out.extend_from_slice(&origin.batch.to_bytes());
        put_signed(&mut out, origin.written_us.wrapping_sub(before));
        before = origin.written_us;
        out.extend_from_slice(&origin.token.to_le_bytes());
    }
    put_varint(&mut out, info.body.len() as u64);
    if info.compression != Compression::None {
        put_varint(&mut out, info.block_bytes as u64);
    }
    out.extend_from_slice(filters);
    out.extend_from_slice(&xxh3_64(info.body).to_le_bytes());
    let checksum = xxh3_64_with_seed(&out, binding.seed());
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

fn put_keys(out: &mut Vec<u8>, zone: &Zone) {
    let (min, max) = (zone.id_min.as_bytes(), zone.id_max.as_bytes());
    let shared = min.iter().zip(max).take_while(|(a, b)| a == b).count();
    out.push(min.len() as u8);
    out.extend_from_slice(min);
    out.extend_from_slice(&[shared as u8, (max.len() - shared) as u8]);
    out.extend_from_slice(&max[shared..]);
}

fn read_keys(reader: &mut Reader) -> Result<(ZoneKey, ZoneKey), Damage> {
    let min_len = usize::from(reader.u8()?);
    let min = reader.take(min_len)?;
    let (shared, rest) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
    if min_len > ZoneKey::LEN_MAX || shared > min_len || shared + rest > ZoneKey::LEN_MAX {
        return Err(Damage::malformed("an id range is longer than a key"));
    }
    let mut max = [0; ZoneKey::LEN_MAX];
    max[..shared].copy_from_slice(&min[..shared]);
    max[shared..shared + rest].copy_from_slice(reader.take(rest)?);
    Ok((ZoneKey::from_bytes(min), ZoneKey::from_bytes(&max[..shared + rest])))
}

fn read_origins(reader: &mut Reader) -> Result<Origins, Damage> {
    // Each origin takes at least 21 bytes, which bounds the allocation by the head's own size.
    let count = reader.size(reader.rest().len() / 21)?;
    let mut before = 0i64;
    let mut next = || -> Result<Origin, Damage> {
        let batch = BatchId(u128::from_be_bytes(reader.array()?));
        before = before.wrapping_add(reader.signed()?);
        Ok(Origin { batch, written_us: before, token: u32::from_le_bytes(reader.array()?) })
    };
    match count {
        0 => Err(Damage::malformed("a chunk has no origin")),
        1 => Ok(Origins(OriginList::One(next()?))),
        _ => Ok(Origins(OriginList::Many((0..count).map(|_| next()).collect::<Result<_, _>>()?))),
    }
}

impl Head {
    /// Drops the text filters, for readers that do not use them, to save memory.
    #[must_use]
    pub fn without_text_filters(self) -> Self {
        Self { text_filters: Box::default(), ..self }
    }

    /// Verifies and parses a head that is stored under `binding`.
    ///
    /// # Errors
    /// [`DamageKind::UnknownVersion`] for a newer container, [`DamageKind::Checksum`] if any byte changed or the head
    /// was written for another tile or id, and otherwise the rule that the head breaks.
    pub fn parse(bytes: &[u8], binding: &Binding) -> Result<Self, Damage> {
        // The version comes before the checksum, because only this version defines where and how the checksum is
        // stored.
        match bytes.first() {
            None => return Err(Damage(DamageKind::Truncated)),
            Some(&FORMAT_VERSION) => {}
            Some(&version) => return Err(Damage(DamageKind::UnknownVersion(version))),
        }
        let (content, checksum) = bytes.split_last_chunk::<8>().ok_or(Damage(DamageKind::Truncated))?;
        if xxh3_64_with_seed(content, binding.seed()) != u64::from_le_bytes(*checksum) {
            return Err(Damage(DamageKind::Checksum));
        }
        Self::read(&mut Reader::new(&content[1..]))
    }

    fn read(reader: &mut Reader) -> Result<Self, Damage> {
        let flags = reader.u8()?;
        let body_layout = if flags & FLAG_COLUMNAR != 0 { BodyLayout::Columnar } else { BodyLayout::Small };
        let compression = Compression::from_code(flags >> COMPRESSION_SHIFT & 3)?;
        if flags & FLAGS_UNUSED != 0 || (body_layout == BodyLayout::Columnar && compression != Compression::None) {
            return Err(Damage::malformed("unknown flags"));
        }
        let schema_version = reader.size(u32::MAX as usize)? as u32;
        let rows = reader.size(ROWS_MAX as usize)? as u32;
        if rows == 0 {
            return Err(Damage::malformed("a chunk has no rows"));
        }
        let time_min = reader.signed()?;
        let time_max = time_min.wrapping_add(reader.varint()? as i64);
        let (id_min, id_max) = read_keys(reader)?;
        // A span that leads past i64::MAX has wrapped to a time before `time_min`.
        if time_max < time_min || id_max < id_min {
            return Err(Damage::malformed("a range ends before it begins"));
        }
        let origins = read_origins(reader)?;
        let body_bytes = reader.size(DECODED_BYTES_MAX)?;
        // `open` allocates this much before it decompresses.
        let block_bytes = if compression == Compression::None { body_bytes } else { reader.size(DECODED_BYTES_MAX)? };
        let text_filters = if flags & FLAG_TEXT_FILTERS != 0 { read_filters(reader)? } else { Box::default() };
        let body_checksum = u64::from_le_bytes(reader.array()?);
        if !reader.is_empty() {
            return Err(Damage::malformed("bytes follow the head"));
        }
        Ok(Self {
            schema_version,
            rows,
            zone: Zone { time_min, time_max, id_min, id_max },
            origins,
            unique_ids: flags & FLAG_UNIQUE_IDS != 0,
            has_ordinals: flags & FLAG_ORDINALS != 0,
            body_layout,
            body_bytes,
            has_row_origins: flags & FLAG_ROW_ORIGINS != 0,
            compression,
            block_bytes,
            text_filters,
            body_checksum,
        })
    }

    /// Whether the rows have more than one origin, so that [`crate::row_origins`] returns indexes into `origins`.
    pub fn has_row_origins(&self) -> bool {
        self.has_row_origins
    }

    /// The text filter of a column, if the chunk has one.
    pub fn text_filter(&self, column: usize) -> Option<&TextFilter> {
        self.text_filters.iter().find(|filter| filter.column() == column)
    }

    /// Whether the chunk is in plain form, so that [`crate::plain_body`] can rebuild the body from the rows.
    pub fn is_plain(&self) -> bool {
        self.body_layout == BodyLayout::Small && self.compression == Compression::None
    }

    /// Sets the length of the body, for a fuzzer that generates bodies.
    #[doc(hidden)]
    pub fn set_body_bytes(&mut self, body_bytes: usize) {
        self.body_bytes = body_bytes;
    }

    /// Compares the body's length and checksum with those in the head.
    pub(crate) fn verify_body(&self, body: &[u8]) -> Result<(), Damage> {
        if body.len() < self.body_bytes {
            return Err(Damage(DamageKind::Truncated));
        }
        if body.len() != self.body_bytes || xxh3_64(body) != self.body_checksum {
            return Err(Damage(DamageKind::Checksum));
        }
        Ok(())
    }
}

/// Recomputes the checksums of a modified chunk, so that fuzzers and tests reach the decoder behind them. The head must be long
/// enough for both checksums; the body length in it is not changed.
#[doc(hidden)]
pub fn reseal(head: &mut [u8], body: &[u8], binding: &Binding) {
    let Some(content) = head.len().checked_sub(8) else { return };
    if let Some(at) = content.checked_sub(8) {
        head[at..content].copy_from_slice(&xxh3_64(body).to_le_bytes());
    }
    let checksum = xxh3_64_with_seed(&head[..content], binding.seed());
    head[content..].copy_from_slice(&checksum.to_le_bytes());
}
