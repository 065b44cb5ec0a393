//! The rows of a chunk as lines: the serialized values of `INSERT` statements.

use bytes::Bytes;
use chronotile_cql::scylla::serialize::SerializationError;
use chronotile_cql::scylla::serialize::row::{RowSerializationContext, SerializeRow};
use chronotile_cql::scylla::serialize::writers::RowWriter;

/// The rows of a chunk.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Number of dataset columns in each line.
    pub columns: usize,
    /// The lines in row order. The first one contains the chunk's head and is written last: it marks the chunk as complete.
    pub lines: Vec<Line>,
}

/// The serialized values of one row, each after its length of four bytes, which is negative for an unset value.
#[derive(Clone, Debug)]
pub struct Line(pub(crate) Bytes);

impl Line {
    /// Size of the values in bytes.
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
                // `values` wrote the length and as many bytes.
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
