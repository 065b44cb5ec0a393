//! How the chunks of a dataset lie in the tables of its slices: as rows of head and body, or record by record.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use chronotile_cql::scylla::serialize::SerializationError;
use chronotile_cql::scylla::serialize::row::{RowSerializationContext, SerializeRow};
use chronotile_cql::scylla::serialize::writers::RowWriter;
use chronotile_cql::scylla::value::CqlValue;
use chronotile_cql::{CqlError, Session};
use chronotile_rows::Line;
use chronotile_store::Chunk;
use chronotile_types::{DatasetName, SliceId};

use crate::failure::malformed;
use crate::names;
use crate::rows::RowForm;

/// Bytes and lines in one request of a chunk that is kept record by record.
const REQUEST_BYTES: usize = 512 << 10;
const REQUEST_LINES: usize = 4_096;

/// The form of a dataset's tables.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// A chunk is a row.
    Chunks,
    /// A record is a row.
    Rows(Arc<RowForm>),
}

/// Names of the columns that both forms have, each in its own way.
pub(crate) struct Names {
    pub cell: &'static str,
    pub window: &'static str,
    pub id: &'static str,
    /// Changes with every removal from the partition.
    pub epoch: &'static str,
    pub rows: &'static str,
    pub bytes: &'static str,
    pub head: &'static str,
    /// What a condition on a tile or chunk needs to find one row for each chunk.
    pub first: &'static str,
    /// The same for a condition that names no chunk.
    pub first_filtered: &'static str,
}

const CHUNK_NAMES: Names = Names {
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

const ROW_NAMES: Names = Names {
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

/// A dataset in a keyspace: what every request about its chunks needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub session: Arc<Session>,
    pub dataset: DatasetName,
    pub form: Form,
}

impl Home {
    pub(crate) fn names(&self) -> &'static Names {
        match self.form {
            Form::Chunks => &CHUNK_NAMES,
            Form::Rows(_) => &ROW_NAMES,
        }
    }

    /// The table of a slice.
    pub(crate) fn table(&self, slice: SliceId) -> String {
        match self.form {
            Form::Chunks => names::chunk_table(&self.dataset, slice),
            Form::Rows(_) => names::row_table(&self.dataset, slice),
        }
    }

    /// Whether a node refused a column that it has not learnt of yet: columns are added while others read and write.
    pub(crate) fn lags(&self, error: &CqlError) -> bool {
        let reason = match error {
            CqlError::Invalid { reason } => reason.to_lowercase(),
            CqlError::InDoubt { last } => return self.lags(last),
            _ => return false,
        };
        let unknown = ["undefined column", "unknown identifier", "unrecognized name"];
        matches!(self.form, Form::Rows(_)) && unknown.iter().any(|words| reason.contains(words))
    }

    /// The table of a slice with its keyspace.
    pub(crate) fn place(&self, slice: SliceId) -> String {
        format!("{}.{}", self.session.settings().keyspace, self.table(slice))
    }
}

impl Form {
    /// About the bytes that a chunk takes in a request.
    pub(crate) fn bytes(&self, chunk: &Chunk) -> usize {
        let bytes = chunk.head.len() + chunk.body.len();
        match self {
            Self::Chunks => bytes,
            Self::Rows(form) => 2 * bytes + chunk.rows as usize * (100 + 4 * form.width()),
        }
    }

    /// What puts some chunks of one partition, in requests that must be done in this order. Those of a chunk that is kept
    /// record by record end with its first row: where that is, the others are.
    pub(crate) fn requests(&self, chunks: &[Chunk]) -> Result<Vec<Vec<Insert>>, CqlError> {
        let Self::Rows(_) = self else { return Ok(vec![self.inserts(chunks)?]) };
        let (mut requests, mut request, mut bytes) = (Vec::new(), Vec::new(), 0);
        for chunk in chunks {
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

    /// What puts some chunks of one slice.
    pub(crate) fn inserts(&self, chunks: &[Chunk]) -> Result<Vec<Insert>, CqlError> {
        match self {
            Self::Chunks => {
                let columns: Arc<str> = CHUNK_INSERT.into();
                Ok(chunks
                    .iter()
                    .map(|chunk| Insert { columns: columns.clone(), values: chunk_values(chunk) })
                    .collect())
            }
            Self::Rows(form) => {
                let codec = form.codec()?;
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

    /// The time that all rows of a chunk are written at, in microseconds since 1970, where it has several: a removal then
    /// hides all of them or none. Later than any that this process gave out before.
    pub(crate) fn stamp(&self) -> Option<i64> {
        static LAST: AtomicI64 = AtomicI64::new(0);
        let Self::Rows(_) = self else { return None };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as i64);
        let last = LAST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last + 1)));
        Some(now.max(last.unwrap_or(0) + 1))
    }
}

const CHUNK_INSERT: &str =
    "(cell, time_window, chunk_id, row_count, byte_count, head, body) VALUES (?, ?, ?, ?, ?, ?, ?)";

/// An `INSERT` into a slice's table.
#[derive(Clone, Debug)]
pub(crate) struct Insert {
    /// Names and markers.
    columns: Arc<str>,
    pub values: Values,
}

impl Insert {
    pub(crate) fn cql(&self, place: &str) -> String {
        format!("INSERT INTO {place} {}", self.columns)
    }

    /// Whether both are the same statement.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.columns == other.columns
    }
}

/// Cell, window, id, rows, bytes, head, body.
type ChunkValues = (i64, i32, Vec<u8>, i32, i32, Bytes, Bytes);

/// The values of one statement.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    Chunk(Box<ChunkValues>),
    Line(Line),
    Plain(Vec<Option<CqlValue>>),
}

fn chunk_values(chunk: &Chunk) -> Values {
    let (tile, id) = (chunk.key.tile, chunk.key.id.to_bytes().to_vec());
    let (rows, bytes) = (chunk.rows as i32, (chunk.head.len() + chunk.body.len()) as i32);
    Values::Chunk(Box::new((tile.cell.0, tile.window.0, id, rows, bytes, chunk.head.clone(), chunk.body.clone())))
}

impl Values {
    fn bytes(&self) -> usize {
        match self {
            Self::Chunk(values) => values.5.len() + values.6.len(),
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
            Self::Line(line) => line.serialize(context, writer),
            Self::Plain(values) => values.serialize(context, writer),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Chunk(_) => false,
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
        assert_eq!(Form::Chunks.stamp(), None);
    }
}
