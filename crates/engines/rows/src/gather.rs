//! Assembles chunks from the pages of a table's rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions};
use arrow_select::concat::concat;
use bytes::Bytes;
use chronotile_chunk::{ChunkRows, Head, plain_body};
use chronotile_cql::scylla::response::query_result::QueryRowsResult;
use chronotile_store::{Chunk, ChunkKey};
use chronotile_types::{BatchId, Cell, ChunkId, SliceId, Tile, Window};

use crate::READ_COUNT;
use crate::codec::{Codec, binding};
use crate::convert::convert;
use crate::error::{Result, RowsError};

/// The chunks that a page of rows completes.
#[derive(Debug, Default)]
pub struct GatheredChunks {
    /// Chunks whose last row has been read, in order.
    pub chunks: Vec<Chunk>,
    /// The keys of those with missing rows, whose bodies are empty. They may have been removed, or not yet written to the replicas
    /// that answered: read them again before reporting damage.
    pub incomplete: Vec<ChunkKey>,
    /// Whether a chunk has more columns than were selected, since the table was extended. Such a chunk is left out.
    pub narrow: bool,
    /// Whether the partition's epoch differs from that of earlier pages: chunks were removed, so the rows of the current tile may be
    /// inconsistent. No row of this page was used.
    pub epoch_changed: bool,
}

/// Assembles chunks from the rows of one partition.
#[derive(Debug)]
pub struct Gatherer {
    codec: Arc<Codec>,
    columns: usize,
    slice: SliceId,
    cell: Cell,
    epoch: Option<Option<i64>>,
    open: Option<OpenChunk>,
}

/// A chunk that may have further rows.
#[derive(Debug)]
struct OpenChunk {
    key: ChunkKey,
    /// From its first row, if that was read.
    head: Option<Bytes>,
    pieces: Vec<Piece>,
    /// Rows read so far without a gap.
    rows: i32,
    /// Whether a row is missing before one that was read.
    gap: bool,
}

/// Rows of a chunk within one page.
#[derive(Clone, Debug)]
struct Piece {
    page: Arc<Page>,
    rows: Range<usize>,
}

/// The decoded rows of a page.
#[derive(Debug)]
struct Page {
    windows: Int32Array,
    ids: BinaryArray,
    numbers: Int32Array,
    heads: BinaryArray,
    batches: BinaryArray,
    written: Int64Array,
    ordinals: Int64Array,
    /// The dataset's columns in its types; `None` if a value does not fit, which only another tool can have written.
    columns: Option<Vec<ArrayRef>>,
}

impl Page {
    fn new(codec: &Codec, columns: usize, rows: &RecordBatch) -> Result<(Self, Int64Array)> {
        let strange = || RowsError::Answer { reason: "its columns have other types".to_owned() };
        if rows.num_columns() != READ_COUNT + columns {
            return Err(RowsError::Answer { reason: format!("it has {} columns", rows.num_columns()) });
        }
        let big = |place: usize| rows.column(place).as_primitive_opt::<Int64Type>().cloned().ok_or_else(strange);
        let int = |place: usize| rows.column(place).as_primitive_opt::<Int32Type>().cloned().ok_or_else(strange);
        let blob = |place: usize| rows.column(place).as_binary_opt::<i32>().cloned().ok_or_else(strange);
        let fields = codec.native().schema.fields();
        let own = rows.columns()[READ_COUNT..].iter().zip(fields.iter());
        let page = Self {
            windows: int(1)?,
            ids: blob(2)?,
            numbers: int(3)?,
            heads: blob(4)?,
            batches: blob(5)?,
            written: big(6)?,
            ordinals: big(7)?,
            columns: own.map(|(array, field)| convert(array, field.data_type()).ok()).collect(),
        };
        Ok((page, big(0)?))
    }

    /// The end of the run of rows that belong to the same chunk as row `start`.
    fn run(&self, start: usize) -> usize {
        let (window, id) = (self.windows.value(start), self.ids.value(start));
        let same = |row: &usize| self.windows.value(*row) == window && self.ids.value(*row) == id;
        (start + 1..self.windows.len()).take_while(same).last().unwrap_or(start) + 1
    }
}

fn opt(array: &Int64Array, row: usize) -> Option<i64> {
    array.is_valid(row).then(|| array.value(row))
}

impl Gatherer {
    /// Assembles the rows of a cell in a slice, read by a `SELECT` of the first `columns` columns ([`Codec::select`]) in key order.
    pub fn new(codec: Arc<Codec>, columns: usize, slice: SliceId, cell: Cell) -> Self {
        Self { codec, columns, slice, cell, epoch: None, open: None }
    }

    /// The window of the current chunk.
    pub fn window(&self) -> Option<Window> {
        self.open.as_ref().map(|open| open.key.tile.window)
    }

    /// Discards the current chunk and the epoch, before its tile is read again from the beginning.
    pub fn forget(&mut self) {
        self.epoch = None;
        self.open = None;
    }

    /// Adds the next page.
    ///
    /// # Errors
    /// [`RowsError::Answer`] if the columns are not the selected ones.
    pub fn push(&mut self, answer: &QueryRowsResult) -> Result<GatheredChunks> {
        let rows = self.codec.decode(self.columns, answer)?;
        self.push_rows(&rows)
    }

    pub(crate) fn push_rows(&mut self, rows: &RecordBatch) -> Result<GatheredChunks> {
        let (page, epochs) = Page::new(&self.codec, self.columns, rows)?;
        let mut gathered = GatheredChunks::default();
        // All epochs are compared before any row is used: two epochs show that chunks were removed in between.
        for row in 0..rows.num_rows() {
            let epoch = opt(&epochs, row);
            if *self.epoch.get_or_insert(epoch) != epoch {
                gathered.epoch_changed = true;
                return Ok(gathered);
            }
        }
        // Chunks that are still open keep their pages until their last row has been read.
        let page = Arc::new(page);
        let mut start = 0;
        while start < rows.num_rows() {
            // A partition without rows may still have an epoch.
            if page.windows.is_null(start) {
                start += 1;
                continue;
            }
            let end = page.run(start);
            self.take(&page, start..end, &mut gathered)?;
            start = end;
        }
        Ok(gathered)
    }

    /// Adds rows of one chunk.
    fn take(&mut self, page: &Arc<Page>, rows: Range<usize>, gathered: &mut GatheredChunks) -> Result<()> {
        let window = Window(page.windows.value(rows.start));
        let id = ChunkId::from_bytes(page.ids.value(rows.start));
        let id = id.ok_or_else(|| RowsError::Answer { reason: "a chunk id does not have 16 bytes".to_owned() })?;
        let key = ChunkKey { slice: self.slice, tile: Tile { cell: self.cell, window }, id };
        // Rows come in the order of keys, so another key ends the current chunk.
        if self.open.as_ref().is_none_or(|open| open.key != key) {
            self.close(gathered);
            let first = page.numbers.value(rows.start) == 0 && page.heads.is_valid(rows.start);
            let head = first.then(|| Bytes::copy_from_slice(page.heads.value(rows.start)));
            self.open = Some(OpenChunk { key, head, pieces: vec![], rows: 0, gap: false });
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        // Rows are used as long as their numbers continue those before: a row after a gap has no known place in the
        // arrays.
        let numbers = &page.numbers.values()[rows.clone()];
        let there = numbers.iter().zip(open.rows..).take_while(|(number, due)| *number == due).count();
        if !open.gap && there > 0 {
            open.rows += there as i32;
            open.pieces.push(Piece { page: page.clone(), rows: rows.start..rows.start + there });
        }
        open.gap |= there < rows.len();
        Ok(())
    }

    /// Completes the current chunk.
    pub fn finish(&mut self) -> GatheredChunks {
        let mut gathered = GatheredChunks::default();
        self.close(&mut gathered);
        gathered
    }

    fn close(&mut self, gathered: &mut GatheredChunks) {
        let Some(open) = self.open.take() else { return };
        // Without its first row, a chunk was written incompletely, or is the remainder of a deletion.
        let Some(head) = open.head.clone() else { return };
        let parsed = Head::parse(&head, &binding(&open.key));
        let mut chunk = Chunk { key: open.key, rows: 0, head, body: Bytes::new() };
        // The reader of the chunk reports a damaged head.
        if let Ok(parsed) = parsed {
            chunk.rows = parsed.rows;
            let version = self.codec.version(parsed.schema_version);
            if version.is_some_and(|version| version.schema.fields().len() > self.columns) {
                gathered.narrow = true;
                return;
            }
            match self.body(open, &parsed) {
                Some(body) => chunk.body = body,
                None => gathered.incomplete.push(chunk.key),
            }
        }
        gathered.chunks.push(chunk);
    }

    /// The body; `None` if rows are missing.
    fn body(&self, mut open: OpenChunk, head: &Head) -> Option<Bytes> {
        let version = self.codec.version(head.schema_version)?;
        let columns = version.schema.fields().len();
        if open.rows < head.rows as i32 {
            return None;
        }
        // Rows past the last one remain from another chunk under this key.
        let mut left = head.rows as usize;
        for piece in &mut open.pieces {
            piece.rows.end = piece.rows.start + piece.rows.len().min(left);
            left -= piece.rows.len();
        }
        open.pieces.retain(|piece| !piece.rows.is_empty());
        let arrays: Option<Vec<ArrayRef>> = (0..columns).map(|column| one_array(&open.pieces, column)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(head.rows as usize));
        let batch = RecordBatch::try_new_with_options(version.schema.clone(), arrays?, &options).ok()?;
        let row_origin = if head.has_row_origins() { Some(row_origins(&open.pieces, head)?) } else { None };
        let ordinals = if head.has_ordinals { Some(ordinals(&open.pieces)) } else { None };
        let rows = ChunkRows {
            batch: &batch,
            origins: &head.origins,
            row_origin: row_origin.as_deref(),
            ordinals: ordinals.as_deref(),
            // Text filters are in the head, which is stored as it is: the body does not depend on them.
            text: &[],
        };
        plain_body(&version.layout, &rows).ok().map(Bytes::from)
    }
}

fn one_array(pieces: &[Piece], column: usize) -> Option<ArrayRef> {
    let slice = |piece: &Piece| Some(piece.page.columns.as_ref()?[column].slice(piece.rows.start, piece.rows.len()));
    let slices: Vec<ArrayRef> = pieces.iter().map(slice).collect::<Option<_>>()?;
    match slices.as_slice() {
        [one] => Some(one.clone()),
        several => concat(&several.iter().map(AsRef::as_ref).collect::<Vec<_>>()).ok(),
    }
}

fn row_origins(pieces: &[Piece], head: &Head) -> Option<Vec<u32>> {
    // Rows do not store the tokens of their attempts; within one chunk, batch and stamp identify an attempt.
    let places: HashMap<(BatchId, i64), u32> =
        head.origins.iter().map(|origin| (origin.batch, origin.written_us)).zip(0..).collect();
    let mut indexes = Vec::with_capacity(head.rows as usize);
    for piece in pieces {
        for row in piece.rows.clone() {
            let batch = BatchId::from_bytes(piece.page.batches.value(row))?;
            indexes.push(*places.get(&(batch, piece.page.written.value(row)))?);
        }
    }
    Some(indexes)
}

fn ordinals(pieces: &[Piece]) -> Vec<i64> {
    pieces.iter().flat_map(|piece| piece.page.ordinals.values()[piece.rows.clone()].iter().copied()).collect()
}
