//! External merge sort: sorts rows by columns in bounded memory, with sorted runs in temporary files.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader, UInt32Array};
use arrow_ipc::CompressionType;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, SchemaRef, SortOptions};
use arrow_select::concat::concat_batches;
use arrow_select::interleave::interleave_record_batch;
use arrow_select::take::take_record_batch;

/// Size of the rows that are sorted at once. With their sorted copies, four times this is in memory.
const RUN_BYTES: usize = 32 << 20;
/// Maximum number of runs merged at once.
const FAN_IN: usize = 16;
/// Number of batches in a run of full size.
const BLOCKS: usize = 32;
/// Maximum number of rows of an output batch.
const BATCH_ROWS: usize = 8_192;

/// A sort key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderKey {
    /// The index of the column in the schema.
    pub column: usize,
    /// Whether the largest value comes first. Nulls come last in either case.
    pub descending: bool,
}

/// Sorted rows, read batch by batch. Created by [`in_order`].
pub struct Ordered {
    schema: SchemaRef,
    state: State,
}

enum State {
    Unsorted { rows: Batches, sorter: Arc<Sorter> },
    Whole { batch: RecordBatch, at: usize },
    Merging(Box<Merge>),
    Ended,
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Sorts `rows` by `keys`, keeping at most `limit` of them.
///
/// Nothing is read before the first batch is requested; then all rows are. Memory is bounded by about 300 MiB plus one
/// batch of `rows`, for inputs of any size; the rest is in unnamed files in the temporary folder. With a `limit`, rows
/// that cannot be among the first are dropped early.
///
/// # Errors
/// The type of a column has no order.
pub fn in_order(
    rows: Batches,
    schema: SchemaRef,
    keys: &[OrderKey],
    limit: Option<usize>,
) -> Result<Ordered, ArrowError> {
    in_order_by_runs(rows, schema, keys, limit, RUN_BYTES)
}

fn in_order_by_runs(
    rows: Batches,
    schema: SchemaRef,
    keys: &[OrderKey],
    limit: Option<usize>,
    run_bytes: usize,
) -> Result<Ordered, ArrowError> {
    let field = |key: &OrderKey| {
        let options = SortOptions { descending: key.descending, nulls_first: false };
        SortField::new_with_options(schema.field(key.column).data_type().clone(), options)
    };
    let converter = RowConverter::new(keys.iter().map(field).collect())?;
    let columns = keys.iter().map(|key| key.column).collect();
    let sorter = Sorter { schema: schema.clone(), columns, converter, limit: limit.unwrap_or(usize::MAX), run_bytes };
    Ok(Ordered { schema, state: State::Unsorted { rows, sorter: Arc::new(sorter) } })
}

struct Sorter {
    schema: SchemaRef,
    columns: Vec<usize>,
    converter: RowConverter,
    limit: usize,
    run_bytes: usize,
}

impl Sorter {
    fn keys(&self, batch: &RecordBatch) -> Result<Rows, ArrowError> {
        let columns: Vec<_> = self.columns.iter().map(|&at| batch.column(at).clone()).collect();
        self.converter.convert_columns(&columns)
    }

    /// Sorts the rows of some batches, keeping at most `limit`.
    fn sorted(&self, batches: &[RecordBatch]) -> Result<RecordBatch, ArrowError> {
        let whole = concat_batches(&self.schema, batches)?;
        let keys = self.keys(&whole)?;
        let mut order: Vec<u32> = (0..whole.num_rows() as u32).collect();
        // A stable sort keeps rows with equal keys in the order of the input, as `Merge::first` does across runs.
        order.sort_by(|a, b| keys.row(*a as usize).cmp(&keys.row(*b as usize)));
        order.truncate(self.limit);
        take_record_batch(&whole, &UInt32Array::from(order))
    }

    fn sort(self: Arc<Self>, rows: Batches) -> Result<State, ArrowError> {
        let mut gathering = Gathering { sorter: &self, runs: Vec::new(), held: Vec::new(), bytes: 0 };
        for batch in rows {
            let batch = batch?;
            // Split the batch, since it may be larger than a run.
            let fits = batch.num_rows() * (self.run_bytes / 4) / batch_bytes(&batch).max(1);
            for start in (0..batch.num_rows()).step_by(fits.max(1)) {
                gathering.add(batch.slice(start, fits.max(1).min(batch.num_rows() - start)))?;
            }
        }
        let Gathering { mut runs, held, .. } = gathering;
        let last = self.sorted(&held)?;
        if runs.is_empty() {
            return Ok(State::Whole { batch: last, at: 0 });
        }
        runs.push(self.write_run([Ok(last)].into_iter())?);
        Ok(State::Merging(Box::new(self.merge(runs)?)))
    }

    fn merge(self: &Arc<Self>, runs: Vec<File>) -> Result<Merge, ArrowError> {
        let mut merge = Merge { sorter: self.clone(), cursors: Vec::new(), sources: Vec::new(), left: self.limit };
        for run in runs {
            let reader = StreamReader::try_new(BufReader::new(run), None)?;
            // `advance` replaces these empty keys by those of the first batch.
            let keys = self.keys(&RecordBatch::new_empty(self.schema.clone()))?;
            let cursor = Cursor { reader, source: 0, rows: 0, keys, at: 0 };
            merge.cursors.push(cursor);
            merge.advance(merge.cursors.len() - 1)?;
        }
        merge.cursors.retain(|cursor| cursor.rows > 0);
        Ok(merge)
    }

    /// Writes sorted batches to an unnamed file in small batches, and rewinds it.
    fn write_run(&self, batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>) -> Result<File, ArrowError> {
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?;
        let file = BufWriter::new(tempfile::tempfile()?);
        let mut writer = StreamWriter::try_new_with_options(file, &self.schema, options)?;
        for batch in batches {
            let batch = batch?;
            // A merge holds a batch of each run, so batches are a small part of a run.
            let fits = batch.num_rows() * (self.run_bytes / BLOCKS) / batch_bytes(&batch).max(1);
            let rows = fits.clamp(1, BATCH_ROWS);
            for start in (0..batch.num_rows()).step_by(rows) {
                writer.write(&batch.slice(start, rows.min(batch.num_rows() - start)))?;
            }
        }
        writer.finish()?;
        let mut file = writer.into_inner()?.into_inner().map_err(|error| ArrowError::from(error.into_error()))?;
        file.rewind()?;
        Ok(file)
    }
}

/// Collects rows into runs.
struct Gathering<'a> {
    sorter: &'a Arc<Sorter>,
    runs: Vec<File>,
    held: Vec<RecordBatch>,
    bytes: usize,
}

impl Gathering<'_> {
    fn add(&mut self, rows: RecordBatch) -> Result<(), ArrowError> {
        let more = batch_bytes(&rows);
        if self.bytes > 0 && self.bytes + more > self.sorter.run_bytes {
            let sorted = self.sorter.sorted(&self.held)?;
            self.bytes = batch_bytes(&sorted);
            self.held = vec![sorted];
            // With a small limit most rows are dropped here; then the remaining ones stay in memory for the next round.
            if self.bytes > self.sorter.run_bytes / 2 {
                self.runs.push(self.sorter.write_run(self.held.drain(..).map(Ok))?);
                self.bytes = 0;
            }
            if self.runs.len() == FAN_IN {
                let merged = self.sorter.merge(std::mem::take(&mut self.runs))?;
                // The list is empty now, so the merged run comes first again, and equal rows keep the order of the
                // input.
                self.runs.push(self.sorter.write_run(merged)?);
            }
        }
        self.bytes += more;
        self.held.push(rows);
        Ok(())
    }
}

/// The position of the merge in a run.
struct Cursor {
    reader: StreamReader<BufReader<File>>,
    /// Index of its current batch in `sources` of the merge.
    source: usize,
    rows: usize,
    keys: Rows,
    at: usize,
}

struct Merge {
    sorter: Arc<Sorter>,
    cursors: Vec<Cursor>,
    /// Batches with rows of the next output batch.
    sources: Vec<RecordBatch>,
    left: usize,
}

impl Merge {
    /// Reads the next batch of a run; at its end the cursor has no rows.
    fn advance(&mut self, index: usize) -> Result<(), ArrowError> {
        let cursor = &mut self.cursors[index];
        (cursor.rows, cursor.at) = (0, 0);
        if let Some(batch) = cursor.reader.next() {
            let batch = batch?;
            (cursor.rows, cursor.source) = (batch.num_rows(), self.sources.len());
            cursor.keys = self.sorter.keys(&batch)?;
            self.sources.push(batch);
        }
        Ok(())
    }

    /// The run whose next row comes first; of equal ones, the earlier run.
    fn first(&self) -> Option<usize> {
        let key = |index: &usize| self.cursors[*index].keys.row(self.cursors[*index].at);
        (0..self.cursors.len()).reduce(|a, b| if key(&b) < key(&a) { b } else { a })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut taken = Vec::new();
        // Used-up batches stay in `sources` until their rows are output, so their number also limits the output batch.
        while taken.len() < BATCH_ROWS.min(self.left) && self.sources.len() <= 2 * FAN_IN {
            let Some(first) = self.first() else { break };
            let cursor = &mut self.cursors[first];
            taken.push((cursor.source, cursor.at));
            cursor.at += 1;
            if cursor.at == cursor.rows {
                self.advance(first)?;
                if self.cursors[first].rows == 0 {
                    self.cursors.remove(first);
                }
            }
        }
        if taken.is_empty() {
            return Ok(None);
        }
        self.left -= taken.len();
        let batch = interleave_record_batch(&self.sources.iter().collect::<Vec<_>>(), &taken)?;
        self.forget_used();
        Ok(Some(batch))
    }

    /// Drops all batches except the current ones of the cursors.
    fn forget_used(&mut self) {
        let mut kept = Vec::with_capacity(self.cursors.len());
        for cursor in &mut self.cursors {
            kept.push(self.sources[cursor.source].clone());
            cursor.source = kept.len() - 1;
        }
        self.sources = kept;
    }
}

impl Iterator for Merge {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

impl Iterator for Ordered {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let State::Unsorted { .. } = self.state {
            // `Ended` remains if sorting fails, so the iteration ends after the error.
            let State::Unsorted { rows, sorter } = std::mem::replace(&mut self.state, State::Ended) else {
                return None;
            };
            match sorter.sort(rows) {
                Ok(state) => self.state = state,
                Err(error) => return Some(Err(error)),
            }
        }
        match &mut self.state {
            State::Whole { batch, at } if *at < batch.num_rows() => {
                let rows = BATCH_ROWS.min(batch.num_rows() - *at);
                *at += rows;
                Some(Ok(batch.slice(*at - rows, rows)))
            }
            State::Merging(merge) => merge.next(),
            _ => None,
        }
    }
}

impl RecordBatchReader for Ordered {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

fn batch_bytes(batch: &RecordBatch) -> usize {
    // Counts the memory of a slice only. The array's own memory size would count its whole buffers for every slice.
    let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0);
    batch.columns().iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};

    use super::*;

    /// Batches with a column `key` of many equal values, a column `row`, and text of `text_bytes` each.
    fn batches(count: i64, rows: i64, text_bytes: usize) -> (SchemaRef, Batches) {
        let batch = move |b: i64| {
            let rows = b * rows..(b + 1) * rows;
            let keys = Int64Array::from_iter(rows.clone().map(|i| (i % 101 != 0).then_some((i * 7_919) % 1_009)));
            let texts = StringArray::from_iter_values(rows.clone().map(|i| format!("{i:0text_bytes$}")));
            let columns: [(&str, ArrayRef, bool); 3] = [
                ("key", Arc::new(keys), true),
                ("row", Arc::new(Int64Array::from_iter_values(rows)), true),
                ("text", Arc::new(texts), true),
            ];
            RecordBatch::try_from_iter_with_nullable(columns)
        };
        (batch(0).unwrap().schema(), Box::new((0..count).map(batch)))
    }

    fn expected(rows: i64, descending: bool) -> Vec<(Option<i64>, i64)> {
        let mut all: Vec<_> = (0..rows).map(|i| ((i % 101 != 0).then_some((i * 7_919) % 1_009), i)).collect();
        all.sort_by_key(|&(key, row)| (key.is_none(), if descending { key.map(|k| -k) } else { key }, row));
        all
    }

    fn found(ordered: Ordered) -> Vec<(Option<i64>, i64)> {
        let mut all = Vec::new();
        for batch in ordered {
            let batch = batch.unwrap();
            assert!((1..=BATCH_ROWS).contains(&batch.num_rows()));
            let (keys, rows) =
                (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int64Type>());
            all.extend(keys.iter().zip(rows.values().iter().copied()));
        }
        all
    }

    #[test]
    fn rows_come_in_order_from_memory_and_from_runs() {
        // With runs of 64 KiB and batches of 24 KiB: one run, several runs, and more than are merged at once.
        for (count, text_bytes, rows) in [(1, 8, 1_000), (20, 8, 1_000), (90, 8, 1_000), (3, 60_000, 3)] {
            for descending in [false, true] {
                let keys = [OrderKey { column: 0, descending }, OrderKey { column: 1, descending: false }];
                let (schema, batches) = batches(count, rows, text_bytes);
                let ordered = in_order_by_runs(batches, schema, &keys, None, 64 << 10).unwrap();
                assert!(found(ordered) == expected(count * rows, descending), "{count} {text_bytes} {descending}");
            }
        }
    }

    #[test]
    fn a_limit_keeps_the_first_rows() {
        let keys = [OrderKey { column: 0, descending: true }, OrderKey { column: 1, descending: false }];
        for limit in [0, 1, 500, 25_000] {
            let (schema, batches) = batches(40, 1_000, 20);
            let ordered = found(in_order_by_runs(batches, schema, &keys, Some(limit), 64 << 10).unwrap());
            assert!(ordered == expected(40_000, true)[..limit], "{limit}");
        }
    }

    #[test]
    fn no_rows_are_in_order_and_an_error_of_the_rows_is_passed_on() {
        let (schema, _) = batches(1, 1, 8);
        let keys = [OrderKey { column: 0, descending: false }];
        assert!(found(in_order(Box::new(std::iter::empty()), schema.clone(), &keys, None).unwrap()).is_empty());
        let failing = std::iter::once(Err(ArrowError::ComputeError("lost".to_owned())));
        let mut ordered = in_order(Box::new(failing), schema, &keys, None).unwrap();
        assert!(ordered.next().unwrap().is_err());
        assert!(ordered.next().is_none());
    }
}
