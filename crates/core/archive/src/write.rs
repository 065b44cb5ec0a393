//! Writing a batch: exactly once, durable before it is acknowledged, in bounded memory.
//!
//! A write is in one of three phases ([`Phase`]): its rows are *buffered* while nothing is known of earlier writes of the batch, then
//! either *compared* with what is stored or *stored* by an attempt ([`attempt::Attempt`]), which alone may put chunks.
//!
//! Each attempt at a batch has a write stamp of its own, which its rows carry, and one rule says which rows count: those of the attempt
//! that the *record* of the batch names (`read::visible`). An attempt at a batch that seems new, and fits in one step, puts its chunks
//! and then the record, if there is none and nobody else is at the batch. Any other attempt puts its *intent* first, under the condition that it takes over
//! what it found there: an earlier attempt can then put nothing more. Each step records the chunks it is about to put (a
//! *part*) before putting them, so that whoever comes after an interrupted write knows every chunk that may exist. Then the
//! record is put, by which all rows count at once and those of an attempt that counted before do no more. What was left of other
//! attempts is taken away last, with the intent. Small batches go through all of it in a single commit.

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
use crate::write::attempt::{Attempt, Given, Target};
use crate::write::pack::bytes_of;
use crate::write::sort::Filed;

/// The smallest buffer of a write.
const BUFFER_BYTES_MIN: usize = 16 << 10;
/// Bytes of rows that are joined, whatever the buffer may take: a column of text holds 2 GiB.
const JOINED_BYTES_MAX: usize = i32::MAX as usize;

impl Dataset {
    /// Writes the rows of `batches` as one batch and returns when all of them are durable.
    ///
    /// With [`WriteOptions::batch`] the outcome is exactly-once: repeating the same content under the same name changes
    /// nothing, whether the first try ended, failed or was cut off. Other content under a stored name is refused, unless
    /// `replace` asks for it; readers see the stored content until all of the new is durable. Where slices with rows of the batch were
    /// retired since, all its rows are stored again. Rows may be up to `buffer_bytes` large before some of them are put; no reader
    /// sees them before the write ends.
    ///
    /// # Errors
    /// Rows that do not fit (nothing is acknowledged), the input's own failure, a stored batch of other content, or the
    /// engine, or [`ArchiveError::SliceRetired`]. [`ArchiveError::outcome`] tells whether any of it can have happened.
    pub async fn write<I>(&self, batches: I, options: WriteOptions) -> Result<WriteReport>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        self.refresh_to_write().await?;
        let mut reports = write(self, vec![(self.frame(), batches)], options).await?;
        Ok(reports.swap_remove(0))
    }
}

/// Writes the rows of each input into its dataset, all as one batch, and returns a report for each. The inputs, at least one, are of
/// datasets of one group, in which `dataset` is.
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
    match write.take_in(inputs, buffer_bytes).await {
        Ok(buffer) => write.finish(buffer).await,
        Err(error) => {
            write.give_up().await;
            Err(error)
        }
    }
}

/// How far a write has come.
enum Phase<'a> {
    /// Nothing was put, and earlier writes of the batch are not looked for yet.
    Buffering,
    /// The name is taken and must not be replaced: rows are compared with what is stored, and then the attempt ends.
    Comparing(Attempt<'a>),
    /// Chunks may be put.
    Storing(Attempt<'a>),
}

struct Write<'a> {
    target: &'a Target<'a>,
    written_us: i64,
    given: Given,
    phase: Phase<'a>,
}

impl<'a> Write<'a> {
    async fn begin(target: &'a Target<'a>, written_us: i64) -> Result<Self> {
        let given = Given::new(target.frames.len());
        let mut write = Self { target, written_us, given, phase: Phase::Buffering };
        if target.key.is_none() {
            // Nobody else has its id.
            write.phase = Phase::Storing(Attempt::at_new(target, written_us));
        } else if target.replace {
            write.look_back().await?;
        }
        Ok(write)
    }

    /// Leaves the first phase.
    async fn look_back(&mut self) -> Result<()> {
        if matches!(self.phase, Phase::Buffering) {
            let attempt = Attempt::look_back(self.target, self.written_us).await?;
            let only_compared = attempt.earlier.only_compared(self.target);
            self.phase = if only_compared { Phase::Comparing(attempt) } else { Phase::Storing(attempt) };
        }
        Ok(())
    }

    /// Takes the rows of all inputs, and returns those that are left to put.
    async fn take_in<I>(&mut self, inputs: Vec<I>, buffer_bytes: usize) -> Result<Vec<Filed>>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        let mut buffer = Vec::new();
        let mut buffered = 0;
        for (input, batches) in inputs.into_iter().enumerate() {
            for batch in input::in_parts(batches) {
                let spec = &self.target.frames[input].spec;
                let rows = input::conform(spec, &batch.map_err(ArchiveError::Source)?)
                    .map_err(|error| error.behind_rows(self.given.rows[input] as u64))?;
                let bytes = bytes_of(&rows);
                if buffered + bytes > JOINED_BYTES_MAX && !buffer.is_empty() {
                    self.flush(std::mem::take(&mut buffer)).await?;
                    buffered = 0;
                }
                buffered += bytes;
                if let Some(filed) = self.file(input, rows)? {
                    buffer.push(filed);
                }
                if buffered >= buffer_bytes && !buffer.is_empty() {
                    self.flush(std::mem::take(&mut buffer)).await?;
                    buffered = 0;
                }
            }
        }
        Ok(buffer)
    }

    /// Checks and files rows; `None` where they are only compared.
    fn file(&mut self, input: usize, rows: RecordBatch) -> Result<Option<Filed>> {
        let filed = Filed::new(&self.target.frames[input], input, rows, self.given.rows[input])?;
        self.given.add(&filed);
        Ok((!matches!(self.phase, Phase::Comparing(_)) && filed.rows.num_rows() > 0).then_some(filed))
    }

    /// Puts buffered rows before the batch ends.
    async fn flush(&mut self, buffer: Vec<Filed>) -> Result<()> {
        self.look_back().await?;
        match &mut self.phase {
            Phase::Storing(attempt) => attempt.flush(buffer).await,
            Phase::Buffering | Phase::Comparing(_) => Ok(()),
        }
    }

    /// Puts what is left and ends the batch. One that fits in a single commit is taken to be new, which most are: where it is not,
    /// the commit says so and has done nothing.
    async fn finish(self, buffer: Vec<Filed>) -> Result<Vec<WriteReport>> {
        let Self { target, written_us, given, phase } = self;
        let mut attempt = match phase {
            Phase::Comparing(attempt) | Phase::Storing(attempt) => attempt,
            Phase::Buffering => {
                let mut first = Attempt::at_new(target, written_us);
                match first.end(buffer.clone(), &given).await {
                    // The chunks of the attempt that failed may lie about: this one has a stamp of its own, and so other chunks.
                    Err(ArchiveError::BatchRace { .. }) => {
                        let next = Attempt::look_back(target, target.dataset.stamp_us().await?).await?;
                        first.take_back_unclaimed(&next).await;
                        next
                    }
                    // The catalog tells what became of it. Its chunks stay: an answer that is late could make them count yet.
                    Err(error @ ArchiveError::Store(StoreError::Overtaken { .. })) => {
                        let next = Attempt::look_back(target, target.dataset.stamp_us().await?).await?;
                        match next.earlier.counted(&first) {
                            Some(false) => next,
                            counted => {
                                next.leave_stored().await?;
                                return if counted.is_some() { Ok(first.reports()) } else { Err(error) };
                            }
                        }
                    }
                    ended => return ended,
                }
            }
        };
        if let Some(stored) = attempt.finds_stored(&given) {
            let reports = stored.reports(target, &given);
            attempt.acknowledge_stored().await?;
            return Ok(reports);
        }
        if let Some(stored) = attempt.must_keep(&given) {
            let error = stored.differs(target, &given);
            attempt.leave_stored().await?;
            return Err(error);
        }
        let ended = attempt.end(buffer, &given).await;
        if ended.is_err() {
            attempt.take_back().await;
        }
        ended
    }

    /// Takes back what was put of an input that failed.
    async fn give_up(self) {
        match self.phase {
            Phase::Storing(attempt) | Phase::Comparing(attempt) => attempt.take_back().await,
            Phase::Buffering => {}
        }
    }
}
