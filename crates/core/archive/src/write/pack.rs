//! Splits the sorted rows of a tile into chunks of a good size and encodes them.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use chronotile_chunk::{ChunkRows, Origin, Zone, encode, encode_plain};
use chronotile_store::{Chunk, ChunkKey};
use chronotile_types::{ChunkId, StorageLayout, Tile, ZoneKey};

use crate::error::{ArchiveError, Result};
use crate::frame::{CHUNK_ROWS_MAX, Frame, binding};
use crate::keys::zone_keys;

/// Target size of a chunk in decoded bytes: large enough for columns to compress, small enough to encode below the
/// limit.
const CHUNK_RAW_BYTES: usize = 1 << 20;
/// Encoded chunks above this are split again. Engines with replication move and repair small values better.
pub(crate) const CHUNK_BYTES_MAX: usize = 480 << 10;

/// Rows of one tile, sorted by time and ids.
pub(crate) struct TileRows<'a> {
    pub tile: Tile,
    pub rows: RecordBatch,
    pub ticks: &'a [i64],
    /// Zone keys of the first id column, or of the rows' batches if the dataset has no ids.
    pub zones: &'a [ZoneKey],
    pub origins: &'a [Origin],
    pub row_origin: Option<&'a [u32]>,
    pub ordinals: Option<&'a [i64]>,
    /// Whether no two rows have the same id.
    pub unique_ids: bool,
}

/// Zone keys of `ids`, the dataset's first id column; without ids, of the batch each row came from.
pub(crate) fn zones(
    ids: Option<&ArrayRef>,
    frame: &Frame,
    origins: impl Iterator<Item = Origin>,
) -> Result<Vec<ZoneKey>> {
    match ids {
        Some(ids) => zone_keys(ids).map_err(|e| frame.compute("making id zones", e)),
        None => Ok(origins.map(|origin| ZoneKey::from_bytes(&origin.batch.to_bytes())).collect()),
    }
}

/// Most rows of this size in a chunk.
pub(crate) fn rows_per_chunk(row_bytes: usize) -> usize {
    (CHUNK_RAW_BYTES / row_bytes.max(1)).clamp(1, CHUNK_ROWS_MAX)
}

/// Encodes the rows as chunks. `name` gives a chunk's id from the range of rows in it.
pub(crate) fn pack(
    frame: &Frame,
    rows: &TileRows,
    row_bytes: usize,
    name: &dyn Fn(std::ops::Range<usize>) -> ChunkId,
) -> Result<Vec<Chunk>> {
    let step = rows_per_chunk(row_bytes);
    let count = rows.rows.num_rows();
    let mut chunks = Vec::with_capacity(count.div_ceil(step));
    if count > step && has_great_values(&rows.rows) {
        for range in ranges_by_size(&rows.rows) {
            pack_range(frame, rows, range, name, &mut chunks)?;
        }
        return Ok(chunks);
    }
    // Even pieces: a remainder of a few rows would cost a chunk of its own.
    let step = count.div_ceil(count.div_ceil(step).max(1)).max(1);
    for start in (0..count).step_by(step) {
        pack_range(frame, rows, start..(start + step).min(count), name, &mut chunks)?;
    }
    Ok(chunks)
}

/// Whether a single text or binary value takes more than a quarter of a chunk, so that the mean row size is useless for
/// splitting.
fn has_great_values(rows: &RecordBatch) -> bool {
    let is_great = |ends: &[i32]| ends.windows(2).any(|pair| (pair[1] - pair[0]) as usize > CHUNK_RAW_BYTES / 4);
    rows.columns().iter().any(|column| match column.data_type() {
        DataType::Utf8 => is_great(column.as_string::<i32>().value_offsets()),
        DataType::Binary => is_great(column.as_binary::<i32>().value_offsets()),
        _ => false,
    })
}

/// Splits rows into ranges of at most a chunk's target size; a larger row is a range of its own.
fn ranges_by_size(rows: &RecordBatch) -> Vec<std::ops::Range<usize>> {
    let (mut ranges, mut start, mut bytes) = (Vec::new(), 0, 0);
    for row in 0..rows.num_rows() {
        let size = row_bytes_of(rows, row);
        if row > start && (bytes + size > CHUNK_RAW_BYTES || row - start >= CHUNK_ROWS_MAX) {
            ranges.push(start..row);
            (start, bytes) = (row, 0);
        }
        bytes += size;
    }
    ranges.push(start..rows.num_rows());
    ranges
}

/// Bytes of the rows themselves, without anything else in their buffers.
pub(crate) fn bytes_of(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// Bytes of one row; lists and structs count with their mean size.
pub(crate) fn row_bytes_of(rows: &RecordBatch, row: usize) -> usize {
    let column = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value_length(row) as usize,
        DataType::Binary => column.as_binary::<i32>().value_length(row) as usize,
        other => other.primitive_width().unwrap_or_else(|| column.get_array_memory_size() / column.len().max(1)),
    };
    rows.columns().iter().map(column).sum()
}

fn pack_range(
    frame: &Frame,
    rows: &TileRows,
    range: std::ops::Range<usize>,
    name: &dyn Fn(std::ops::Range<usize>) -> ChunkId,
    chunks: &mut Vec<Chunk>,
) -> Result<()> {
    let key = ChunkKey { slice: frame.spec.slice_of(rows.tile.window), tile: rows.tile, id: name(range.clone()) };
    match encode_range(frame, rows, range.clone(), key) {
        Ok(chunk) if chunk.head.len() + chunk.body.len() <= CHUNK_BYTES_MAX || range.len() == 1 => {
            chunks.push(chunk);
            return Ok(());
        }
        // Sizes of lists and structs are means: several large ones may be adjacent.
        Err(ArchiveError::Encode { source, .. }) if source.is_too_large() && range.len() > 1 => {}
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    // The encoded size is known only after encoding, so a chunk that is too large is halved and encoded again.
    let middle = range.start + range.len() / 2;
    pack_range(frame, rows, range.start..middle, name, chunks)?;
    pack_range(frame, rows, middle..range.end, name, chunks)
}

fn encode_range(frame: &Frame, rows: &TileRows, range: std::ops::Range<usize>, key: ChunkKey) -> Result<Chunk> {
    let ticks = &rows.ticks[range.clone()];
    let zones = &rows.zones[range.clone()];
    let zone = Zone {
        // Rows are sorted by time, not by id.
        time_min: ticks.first().copied().unwrap_or(0),
        time_max: ticks.last().copied().unwrap_or(0),
        id_min: zones.iter().min().copied().unwrap_or(ZoneKey::MIN),
        id_max: zones.iter().max().copied().unwrap_or(ZoneKey::MAX),
    };
    let batch = rows.rows.slice(range.start, range.len());
    let (origins, row_origin) = used_origins(rows, range.clone());
    // With layout `rows` the engine rebuilds the chunk from its rows, so its bytes must follow from the rows alone.
    let write = match frame.spec.layout {
        StorageLayout::Chunks => encode,
        StorageLayout::Rows => encode_plain,
    };
    let encoded = write(
        &frame.layout,
        frame.spec.schema_version(),
        &ChunkRows {
            batch: &batch,
            origins: &origins,
            row_origin: row_origin.as_deref(),
            ordinals: rows.ordinals.map(|ordinals| &ordinals[range.clone()]),
            text: &frame.text,
        },
        &zone,
        rows.unique_ids,
        &binding(&key),
    );
    let encoded = encoded.map_err(|source| ArchiveError::Encode { dataset: frame.spec.name.clone(), source })?;
    Ok(Chunk { key, rows: encoded.rows, head: encoded.head.into(), body: encoded.body.into() })
}

/// The origins that occur in the range, and each row's index among them.
fn used_origins(rows: &TileRows, range: std::ops::Range<usize>) -> (Vec<Origin>, Option<Vec<u32>>) {
    let Some(row_origin) = rows.row_origin else { return (rows.origins.to_vec(), None) };
    // Readers and maintenance conclude from the origins in a head whether the chunk has rows of a batch, so an origin
    // without rows in the range must not be among them.
    let mut places = vec![u32::MAX; rows.origins.len()];
    let mut used = Vec::new();
    let mut indexes = Vec::with_capacity(range.len());
    for origin in &row_origin[range] {
        let place = &mut places[*origin as usize];
        if *place == u32::MAX {
            *place = used.len() as u32;
            used.push(rows.origins[*origin as usize]);
        }
        indexes.push(*place);
    }
    (used, Some(indexes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int64Type;
    use arrow_array::{BinaryArray, Int64Array, ListArray, StringArray};

    use super::*;

    const GREAT: usize = CHUNK_RAW_BYTES / 4;

    fn texts(lengths: &[usize]) -> RecordBatch {
        let texts = StringArray::from_iter_values(lengths.iter().map(|length| "x".repeat(*length)));
        RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap()
    }

    fn bytes(lengths: &[usize]) -> RecordBatch {
        let bytes = BinaryArray::from_iter_values(lengths.iter().map(|length| vec![0; *length]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX; lengths.len()]));
        RecordBatch::try_from_iter([("number", numbers), ("bytes", Arc::new(bytes) as ArrayRef)]).unwrap()
    }

    #[test]
    fn a_value_is_great_if_it_takes_more_than_a_quarter_of_a_chunk() {
        for (lengths, great) in [
            (vec![GREAT; 4], false),
            (vec![1, GREAT + 1, 0], true),
            (vec![GREAT * 2], true),
            (vec![0; 3], false),
            (vec![], false),
        ] {
            assert_eq!((has_great_values(&texts(&lengths)), has_great_values(&bytes(&lengths))), (great, great));
        }
    }

    #[test]
    fn rows_of_unequal_size_are_cut_where_a_chunk_is_full() {
        let half = CHUNK_RAW_BYTES / 2;
        for (lengths, cuts) in [
            (vec![half, half], vec![0, 2]),
            (vec![half, half, 1, 1], vec![0, 2, 4]),
            (vec![half, half + 1], vec![0, 1, 2]),
            (vec![3 * half, 1, 1], vec![0, 1, 3]),
            (vec![1, 3 * half], vec![0, 1, 2]),
            (vec![0; 2 * CHUNK_ROWS_MAX + 1], vec![0, CHUNK_ROWS_MAX, 2 * CHUNK_ROWS_MAX, 2 * CHUNK_ROWS_MAX + 1]),
        ] {
            let expected: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            assert_eq!(ranges_by_size(&texts(&lengths)), expected);
        }
    }

    #[test]
    fn the_size_of_a_row_is_that_of_its_values() {
        let rows = bytes(&[5, 0, 7]);
        assert_eq!([0, 1, 2].map(|row| row_bytes_of(&rows, row)), [13, 8, 15]);
        assert_eq!(row_bytes_of(&texts(&[1, 9]), 1), 9);
        let lists = (0..1_000).map(|_| Some((0..10).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        let mean = row_bytes_of(&RecordBatch::try_from_iter([("list", lists)]).unwrap(), 3);
        assert!((80..200).contains(&mean), "{mean}");
    }
}
