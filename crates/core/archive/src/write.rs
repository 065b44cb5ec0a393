//! Writing a batch: exactly once, durable before it is acknowledged, in bounded memory.
//!
//! A write is in one of three phases ([`Phase`]): its rows are *buffered* while nothing is known of earlier writes of
//! the batch, then either *compared* with what is stored or *stored* by an attempt ([`attempt::Attempt`]). Only an
//! attempt puts chunks.
//!
//! Each attempt at a batch has its own write stamp, which its rows carry. Only the rows of the attempt that the
//! *record* of the batch names count (`read::visible`). An attempt at a batch that seems new and fits in one step puts
//! its chunks and then the record, on condition that there is neither a record nor another attempt. Any other attempt
//! first puts its *intent*, on condition that it replaces the intent that it found: the earlier attempt can then put
//! nothing more. Each step records the chunks that it is about to put (a *part*) before it puts them, so that after an
//! interrupted write every chunk that may exist is known. Then the attempt puts the record: from then on all its rows
//! count, and those of the attempt that counted before do not. Last, it removes what other attempts left, and its
//! intent. Small batches do all of this in a single commit.

mod attempt;
pub(crate) mod content;
mod encode;
mod group;
pub(crate) mod input;
pub(crate) mod pack;
pub(crate) mod sort;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use chronotile_store::StoreError;
use chronotile_types::BatchId;

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::report::WriteReport;
use crate::request::WriteOptions;
use crate::write::attempt::{Attempt, InputTotals, Target};
use crate::write::pack::bytes_of;
use crate::write::sort::TiledRows;

/// The smallest buffer of a write.
const BUFFER_BYTES_MIN: usize = 16 << 10;
/// Most bytes of rows that are joined, whatever the buffer size: a text column holds at most 2 GiB.
const JOINED_BYTES_MAX: usize = i32::MAX as usize;

impl Dataset {
    /// Writes the rows of `batches` as one batch and returns when all of them are durable.
    ///
    /// With [`WriteOptions::batch`] a write is exactly-once: repeating the same content under the same name changes
    /// nothing, whether the first try ended, failed or was interrupted. Different content under a stored name is
    /// refused, unless `replace` is set; readers see the stored content until all of the new content is durable. If
    /// slices with rows of the batch were retired since, all its rows are stored again. Up to `buffer_bytes` of rows
    /// are buffered before some are put; readers see none before the write ends.
    ///
    /// # Errors
    /// Rows that do not match the schema (nothing is acknowledged), an error of the input, a stored batch with other
    /// content, an error of the engine, or [`ArchiveError::SliceRetired`]. [`ArchiveError::outcome`] tells whether the
    /// write may have taken effect.
    pub async fn write<I>(&self, batches: I, options: WriteOptions) -> Result<WriteReport>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        self.refresh_to_write().await?;
        let mut reports = write(self, vec![(self.frame(), batches)], options).await?;
        Ok(reports.swap_remove(0))
    }
}

/// Writes the rows of each input into its dataset, all as one batch, and returns a report for each. There is at least
/// one input, and all inputs belong to datasets of the group of `dataset`.
async fn write<I>(dataset: &Dataset, inputs: Vec<(Frame, I)>, options: WriteOptions) -> Result<Vec<WriteReport>>
where
    I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
{
    let (frames, inputs): (Vec<Frame>, Vec<I>) = inputs.into_iter().unzip();
    let buffer_bytes = options.buffer_bytes.clamp(BUFFER_BYTES_MIN, 4 << 30);
    let written_us = dataset.stamp_us().await?;
    let target = Target {
        dataset,
        home: dataset.frame().dataset,
        frames: &frames,
        batch: options.batch.as_deref().map_or_else(|| dataset.clock().unique_batch(written_us), BatchId::of_key),
        key: options.batch,
        replace: options.replace,
        attempt: dataset.clock().unique_batch(written_us).to_string(),
    };
    let mut write = Write::begin(&target, written_us).await?;
    match write.read_inputs(inputs, buffer_bytes).await {
        Ok(buffer) => write.finish(buffer).await,
        Err(error) => {
            write.abort().await;
            Err(error)
        }
    }
}

/// The phase of a write.
enum Phase<'a> {
    /// Nothing was put, and the catalog has not been searched for earlier writes of the batch.
    Buffering,
    /// The batch is stored and must not be replaced: rows are only compared with it, then the attempt ends.
    Comparing(Attempt<'a>),
    /// Chunks may be put.
    Storing(Attempt<'a>),
}

struct Write<'a> {
    target: &'a Target<'a>,
    written_us: i64,
    totals: InputTotals,
    phase: Phase<'a>,
}

impl<'a> Write<'a> {
    async fn begin(target: &'a Target<'a>, written_us: i64) -> Result<Self> {
        let totals = InputTotals::new(target.frames.len());
        let mut write = Self { target, written_us, totals, phase: Phase::Buffering };
        if target.key.is_none() {
            // The batch id is new, so no other writer uses it.
            write.phase = Phase::Storing(Attempt::at_new(target, written_us));
        } else if target.replace {
            write.load_earlier().await?;
        }
        Ok(write)
    }

    /// Leaves the phase [`Phase::Buffering`].
    async fn load_earlier(&mut self) -> Result<()> {
        if matches!(self.phase, Phase::Buffering) {
            let attempt = Attempt::load_earlier(self.target, self.written_us).await?;
            let only_compared = attempt.earlier.only_compared(self.target);
            self.phase = if only_compared { Phase::Comparing(attempt) } else { Phase::Storing(attempt) };
        }
        Ok(())
    }

    /// Reads the rows of all inputs, puts full buffers, and returns the rest.
    async fn read_inputs<I>(&mut self, inputs: Vec<I>, buffer_bytes: usize) -> Result<Vec<TiledRows>>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        let mut buffer = Vec::new();
        let mut buffered = 0;
        for (input, batches) in inputs.into_iter().enumerate() {
            for batch in input::in_parts(batches) {
                let spec = &self.target.frames[input].spec;
                let rows = input::conform(spec, &batch.map_err(ArchiveError::Source)?)
                    .map_err(|error| error.behind_rows(self.totals.rows[input] as u64))?;
                let bytes = bytes_of(&rows);
                // Rows that would exceed the limit start a new buffer, because a step joins the buffered rows of an
                // input in one array.
                if buffered + bytes > JOINED_BYTES_MAX && !buffer.is_empty() {
                    self.flush(std::mem::take(&mut buffer)).await?;
                    buffered = 0;
                }
                buffered += bytes;
                if let Some(tiled) = self.tile_rows(input, rows)? {
                    buffer.push(tiled);
                }
                if buffered >= buffer_bytes && !buffer.is_empty() {
                    self.flush(std::mem::take(&mut buffer)).await?;
                    buffered = 0;
                }
            }
        }
        Ok(buffer)
    }

    /// Checks rows and assigns them to tiles; `None` if they are only compared.
    fn tile_rows(&mut self, input: usize, rows: RecordBatch) -> Result<Option<TiledRows>> {
        let tiled = TiledRows::new(&self.target.frames[input], input, rows, self.totals.rows[input])?;
        self.totals.add(&tiled);
        Ok((!matches!(self.phase, Phase::Comparing(_)) && tiled.rows.num_rows() > 0).then_some(tiled))
    }

    /// Puts buffered rows before the batch ends.
    async fn flush(&mut self, buffer: Vec<TiledRows>) -> Result<()> {
        self.load_earlier().await?;
        match &mut self.phase {
            Phase::Storing(attempt) => attempt.flush(buffer).await,
            // The totals already have the hashes of these rows, which are all that a comparison needs.
            Phase::Buffering | Phase::Comparing(_) => Ok(()),
        }
    }

    /// Puts the rest of the rows and ends the batch. A batch that fits in a single commit is assumed to be new, as most
    /// are: if it is not, the commit fails without any effect.
    async fn finish(self, buffer: Vec<TiledRows>) -> Result<Vec<WriteReport>> {
        let Self { target, written_us, totals, phase } = self;
        let mut attempt = match phase {
            Phase::Comparing(attempt) | Phase::Storing(attempt) => attempt,
            Phase::Buffering => {
                let mut first = Attempt::at_new(target, written_us);
                // A further attempt encodes the same rows with another stamp, so the buffer stays. Clones share the
                // columns.
                match first.end(buffer.clone(), &totals).await {
                    // Chunks of the failed attempt may remain, so this one has a new stamp, and therefore other chunk
                    // ids.
                    Err(ArchiveError::BatchRace { .. }) => {
                        let next = Attempt::load_earlier(target, target.dataset.stamp_us().await?).await?;
                        // `next` has read the record, which shows whether the rows of `first` count after all.
                        first.take_back_unclaimed(&next).await;
                        next
                    }
                    // The catalog tells the outcome. The chunks stay, because a delayed commit could still make them
                    // count.
                    Err(error @ ArchiveError::Store(StoreError::Overtaken { .. })) => {
                        let next = Attempt::load_earlier(target, target.dataset.stamp_us().await?).await?;
                        match next.earlier.counted(&first) {
                            Some(false) => next,
                            counted => {
                                // `next` writes nothing, so a claim that `next` has taken over ends here.
                                next.leave_stored().await?;
                                return if counted.is_some() { Ok(first.reports()) } else { Err(error) };
                            }
                        }
                    }
                    ended => return ended,
                }
            }
        };
        // The rows of a write in phase `Comparing` are not in the buffer. Such a write ends in one of the next two
        // branches: the stored batch is complete, so its content is either the same or another one.
        if let Some(stored) = attempt.finds_stored(&totals) {
            let reports = stored.reports(target, &totals);
            attempt.acknowledge_stored().await?;
            return Ok(reports);
        }
        if let Some(stored) = attempt.must_keep(&totals) {
            let error = stored.differs(target, &totals);
            attempt.leave_stored().await?;
            return Err(error);
        }
        let ended = attempt.end(buffer, &totals).await;
        if ended.is_err() {
            attempt.take_back().await;
        }
        ended
    }

    /// Takes back what was put before the input failed.
    async fn abort(self) {
        match self.phase {
            Phase::Storing(attempt) | Phase::Comparing(attempt) => attempt.take_back().await,
            Phase::Buffering => {}
        }
    }
}
