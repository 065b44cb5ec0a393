//! A chunk as lines, one for each row: the values of an `INSERT`.

use bytes::Bytes;
use chronotile_cql::scylla::serialize::SerializationError;
use chronotile_cql::scylla::serialize::row::{RowSerializationContext, SerializeRow};
use chronotile_cql::scylla::serialize::writers::RowWriter;

/// The rows of a chunk.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Columns of the dataset that each line has values for.
    pub columns: usize,
    /// In the order of the rows. The first one has the chunk's head: written last, it tells that all of them are there.
    pub lines: Vec<Line>,
}

/// The values of one row, serialized: each behind its length of four bytes, which is negative for none.
#[derive(Clone, Debug)]
pub struct Line(pub(crate) Bytes);

impl Line {
    /// Bytes of the values.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl SerializeRow for Line {
    fn serialize(&self, _: &RowSerializationContext<'_>, writer: &mut RowWriter<'_>) -> Result<(), SerializationError> {
        let mut rest = self.0.as_ref();
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let cell = writer.make_cell_writer();
            rest = match usize::try_from(i32::from_be_bytes(*len)) {
                // `values` wrote as many bytes as it said.
                Ok(len) => {
                    let (value, rest) = after.split_at(len);
                    cell.set_value(value).map_err(SerializationError::new)?;
                    rest
                }
                Err(_) => {
                    cell.set_unset();
                    after
                }
            };
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
