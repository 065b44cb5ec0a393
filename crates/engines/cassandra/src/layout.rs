//! How the tables of a dataset's slices store its chunks: as rows of head and body, or as one row per record; and which cells
//! share a partition.

pub(crate) mod rows;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use chronotile_cql::scylla::serialize::SerializationError;
use chronotile_cql::scylla::serialize::row::{RowSerializationContext, SerializeRow};
use chronotile_cql::scylla::serialize::writers::RowWriter;
use chronotile_cql::scylla::value::CqlValue;
use chronotile_cql::{CqlError, Session};
use chronotile_rows::Line;
use chronotile_store::{Chunk, DatasetRef, Placement};
use chronotile_types::{Cell, SliceId, Tile};

use self::rows::{RowDatasets, RowLayout};
use crate::failure::malformed;
use crate::names;

/// Target bytes of a page, and limits of its row count.
const PAGE_BYTES: u64 = 1 << 20;
pub(crate) const PAGE_ROWS: (u64, u64) = (16, 5_000);
/// Maximum bytes and rows in one request for a chunk that is stored as one row per record.
const REQUEST_BYTES: usize = 512 << 10;
const REQUEST_LINES: usize = 4_096;

/// The layout of a dataset's tables.
#[derive(Clone, Debug)]
pub(crate) enum TableLayout {
    /// One row per chunk; this many neighbouring cells share a partition.
    Chunks { cells: i64 },
    /// One row per record.
    Rows(RowLayout),
}

/// Column names of one layout.
pub(crate) struct Names {
    /// The partition key: the cell or, if several cells share a partition, a separate column.
    pub partition: &'static str,
    pub cell: &'static str,
    pub window: &'static str,
    pub id: &'static str,
    /// Changes with every removal from the partition.
    pub epoch: &'static str,
    pub rows: &'static str,
    pub bytes: &'static str,
    pub head: &'static str,
    /// Suffix of a condition on a tile or chunk that selects one row per chunk.
    pub first: &'static str,
    /// The same for a condition without a chunk id.
    pub first_filtered: &'static str,
}

const CHUNK_NAMES: Names = Names {
    partition: "cell",
    cell: "cell",
    window: "time_window",
    id: "chunk_id",
    epoch: "epoch",
    rows: "row_count",
    bytes: "byte_count",
    head: "head",
    first: "",
    first_filtered: "",
};

const GROUP_NAMES: Names = Names { partition: "part", ..CHUNK_NAMES };

const ROW_NAMES: Names = Names {
    partition: "ct_cell",
    cell: "ct_cell",
    window: "ct_window",
    id: "ct_chunk",
    epoch: "ct_epoch",
    rows: "ct_rows",
    bytes: "ct_bytes",
    head: "ct_head",
    first: " AND ct_row = 0",
    first_filtered: " AND ct_row = 0 ALLOW FILTERING",
};

/// Running mean size of the chunks read, which determines the page size.
#[derive(Debug)]
pub(crate) struct Sizes {
    mean: AtomicU64,
}

impl Default for Sizes {
    fn default() -> Self {
        // Large at first: a page of large chunks that were assumed small could fill a node's memory.
        Self::of(64 << 10)
    }
}

impl Sizes {
    /// With an assumed number of bytes per row, before any was read.
    pub(crate) fn of(bytes: u64) -> Self {
        Self { mean: AtomicU64::new(bytes) }
    }

    pub(crate) fn page_rows(&self, bodies: bool) -> i32 {
        // Without bodies a row is a head, whose assumed size is 256 bytes.
        let mean = if bodies { self.mean.load(Ordering::Relaxed) } else { 256 };
        (PAGE_BYTES / mean.max(1)).clamp(PAGE_ROWS.0, PAGE_ROWS.1) as i32
    }

    pub(crate) fn observe(&self, bytes: usize, chunks: usize) {
        if let Some(seen) = (bytes as u64).checked_div(chunks as u64) {
            // The update is not atomic: an observation that is lost only makes a page larger or smaller.
            let old = self.mean.load(Ordering::Relaxed);
            self.mean.store((old + 3 * seen) / 4 + 1, Ordering::Relaxed);
        }
    }
}

/// The tables of a dataset in a keyspace: the context of every request about its chunks.
#[derive(Clone, Debug)]
pub(crate) struct DatasetTables {
    pub session: Arc<Session>,
    /// The dataset as the caller names it.
    pub dataset: DatasetRef,
    pub layout: TableLayout,
}

impl DatasetTables {
    pub(crate) fn names(&self) -> &'static Names {
        self.layout.names()
    }

    /// The partition of a cell.
    pub(crate) fn partition(&self, cell: Cell) -> i64 {
        // The format defines partitions by floor(), also for negative cells; `/` rounds towards zero.
        cell.0.div_euclid(self.layout.cells())
    }

    /// The condition that selects one tile; [`Self::tile_values`] gives its values.
    pub(crate) fn tile_condition(&self) -> String {
        let Names { partition, cell, window, .. } = self.names();
        match self.layout.cells() {
            1 => format!("{cell} = ? AND {window} = ?"),
            _ => format!("{partition} = ? AND {cell} = ? AND {window} = ?"),
        }
    }

    pub(crate) fn tile_values(&self, tile: Tile) -> Vec<Option<CqlValue>> {
        let place = [CqlValue::BigInt(tile.cell.0), CqlValue::Int(tile.window.0)].map(Some);
        match self.layout.cells() {
            1 => place.to_vec(),
            _ => std::iter::once(Some(CqlValue::BigInt(self.partition(tile.cell)))).chain(place).collect(),
        }
    }

    /// The name of a slice's table.
    pub(crate) fn table(&self, slice: SliceId) -> String {
        let number = SliceId(slice.0.wrapping_sub(self.dataset.first_slice));
        match self.layout {
            TableLayout::Chunks { .. } => names::chunk_table(&self.dataset.label, number),
            TableLayout::Rows(_) => names::row_table(&self.dataset.label, number),
        }
    }

    /// Whether a node rejected a column that it does not know yet: columns are added while other clients read and write.
    pub(crate) fn lacks_column(&self, error: &CqlError) -> bool {
        // Nodes report an unknown column as an invalid request: only the text tells it from other mistakes.
        let reason = match error {
            CqlError::Invalid { reason } => reason.to_lowercase(),
            CqlError::InDoubt { last } => return self.lacks_column(last),
            _ => return false,
        };
        let unknown = ["undefined column", "unknown identifier", "unrecognized name"];
        matches!(self.layout, TableLayout::Rows(_)) && unknown.iter().any(|words| reason.contains(words))
    }

    /// The name of a slice's table with its keyspace.
    pub(crate) fn qualified_table(&self, slice: SliceId) -> String {
        format!("{}.{}", self.session.settings().keyspace, self.table(slice))
    }
}

impl TableLayout {
    /// The layout of a dataset's tables.
    pub(crate) fn of(dataset: &DatasetRef, rows: &RowDatasets) -> chronotile_store::Result<Self> {
        Ok(match &dataset.placement {
            Placement::Rows(native) => Self::Rows(rows.layout(&dataset.label, native)?),
            Placement::Chunks { partition_cells } => Self::Chunks { cells: (*partition_cells).max(1).into() },
        })
    }

    pub(crate) fn names(&self) -> &'static Names {
        match self {
            Self::Chunks { cells: 1 } => &CHUNK_NAMES,
            Self::Chunks { .. } => &GROUP_NAMES,
            Self::Rows(_) => &ROW_NAMES,
        }
    }

    /// Cells in a partition.
    pub(crate) fn cells(&self) -> i64 {
        match self {
            Self::Chunks { cells } => *cells,
            Self::Rows(_) => 1,
        }
    }

    /// Estimated bytes of a chunk in a request.
    pub(crate) fn bytes(&self, chunk: &Chunk) -> usize {
        let bytes = chunk.head.len() + chunk.body.len();
        match self {
            Self::Chunks { .. } => bytes,
            Self::Rows(layout) => 2 * bytes + chunk.rows as usize * (100 + 4 * layout.width()),
        }
    }

    /// The requests that write chunks of one partition, to be sent in this order. A chunk with one row per record is written last row
    /// first: if its first row is present, so are the others.
    pub(crate) fn requests(&self, chunks: &[Chunk]) -> Result<Vec<Vec<Insert>>, CqlError> {
        let Self::Rows(_) = self else { return Ok(vec![self.inserts(chunks)?]) };
        let (mut requests, mut request, mut bytes) = (Vec::new(), Vec::new(), 0);
        for chunk in chunks {
            // The reverse order puts row 0, which has the head, behind all other rows of the chunk.
            for insert in self.inserts(std::slice::from_ref(chunk))?.into_iter().rev() {
                let size = insert.values.bytes();
                if !request.is_empty() && (bytes + size > REQUEST_BYTES || request.len() == REQUEST_LINES) {
                    requests.push(std::mem::take(&mut request));
                    bytes = 0;
                }
                bytes += size;
                request.push(insert);
            }
        }
        requests.push(request);
        Ok(requests)
    }

    /// The inserts of chunks of one slice.
    pub(crate) fn inserts(&self, chunks: &[Chunk]) -> Result<Vec<Insert>, CqlError> {
        match self {
            Self::Chunks { cells } => {
                let columns: Arc<str> = if *cells == 1 { CHUNK_INSERT } else { GROUP_INSERT }.into();
                let insert = |chunk| Insert { columns: columns.clone(), values: chunk_values(chunk, *cells) };
                Ok(chunks.iter().map(insert).collect())
            }
            Self::Rows(layout) => {
                let codec = layout.codec();
                let mut inserts = Vec::new();
                for chunk in chunks {
                    let lines = codec.lines(chunk).map_err(malformed)?;
                    let columns: Arc<str> = codec.insert(lines.columns).into();
                    let insert = |line| Insert { columns: columns.clone(), values: Values::Line(line) };
                    inserts.extend(lines.lines.into_iter().map(insert));
                }
                Ok(inserts)
            }
        }
    }

    /// The common write time of all rows of a chunk in microseconds since 1970, if it has several: a removal then hides all of them
    /// or none. Later than every time that this process has returned before.
    pub(crate) fn stamp(&self) -> Option<i64> {
        static LAST: AtomicI64 = AtomicI64::new(0);
        let Self::Rows(_) = self else { return None };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as i64);
        // The update always succeeds and returns the former value, from which the new one is computed again.
        let last = LAST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last + 1)));
        Some(now.max(last.unwrap_or(0) + 1))
    }
}

const CHUNK_INSERT: &str =
    "(cell, time_window, chunk_id, row_count, byte_count, head, body) VALUES (?, ?, ?, ?, ?, ?, ?)";

const GROUP_INSERT: &str =
    "(part, cell, time_window, chunk_id, row_count, byte_count, head, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)";

/// An `INSERT` into a slice's table.
#[derive(Clone, Debug)]
pub(crate) struct Insert {
    /// Column names and bind markers.
    columns: Arc<str>,
    pub values: Values,
}

impl Insert {
    pub(crate) fn cql(&self, place: &str) -> String {
        format!("INSERT INTO {place} {}", self.columns)
    }

    /// Whether both have the same statement text.
    pub(crate) fn has_same_statement(&self, other: &Self) -> bool {
        self.columns == other.columns
    }
}

/// Cell, window, id, rows, bytes, head, body.
type ChunkValues = (i64, i32, Vec<u8>, i32, i32, Bytes, Bytes);
/// Partition, and the others.
type GroupValues = (i64, i64, i32, Vec<u8>, i32, i32, Bytes, Bytes);

/// The bound values of one statement.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    Chunk(Box<ChunkValues>),
    Grouped(Box<GroupValues>),
    Line(Line),
    Plain(Vec<Option<CqlValue>>),
}

fn chunk_values(chunk: &Chunk, cells: i64) -> Values {
    let (tile, id) = (chunk.key.tile, chunk.key.id.to_bytes().to_vec());
    let (rows, bytes) = (chunk.rows as i32, (chunk.head.len() + chunk.body.len()) as i32);
    let (cell, window, head, body) = (tile.cell.0, tile.window.0, chunk.head.clone(), chunk.body.clone());
    match cells {
        1 => Values::Chunk(Box::new((cell, window, id, rows, bytes, head, body))),
        _ => Values::Grouped(Box::new((cell.div_euclid(cells), cell, window, id, rows, bytes, head, body))),
    }
}

impl Values {
    fn bytes(&self) -> usize {
        match self {
            Self::Chunk(values) => values.5.len() + values.6.len(),
            Self::Grouped(values) => values.6.len() + values.7.len(),
            Self::Line(line) => line.bytes(),
            Self::Plain(_) => 0,
        }
    }
}

impl SerializeRow for Values {
    fn serialize(
        &self,
        context: &RowSerializationContext<'_>,
        writer: &mut RowWriter<'_>,
    ) -> Result<(), SerializationError> {
        match self {
            Self::Chunk(values) => values.as_ref().serialize(context, writer),
            Self::Grouped(values) => values.as_ref().serialize(context, writer),
            Self::Line(line) => line.serialize(context, writer),
            Self::Plain(values) => values.serialize(context, writer),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Chunk(_) | Self::Grouped(_) => false,
            Self::Line(line) => SerializeRow::is_empty(line),
            Self::Plain(values) => values.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_one_row_need_no_common_time() {
        assert_eq!(TableLayout::Chunks { cells: 1 }.stamp(), None);
    }
}
