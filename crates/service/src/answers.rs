//! Response bodies with rows, streamed in the format that the client asks for.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType as ArrowType, SchemaRef};
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use chronotile_io::{OutFormat, Sink, WriteOptions, Writer};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::time::Instant;

use chronotile_types::ErrorKind;

use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::work::apart;
use chronotile_archive::memory::{Charge, ChargedVec, Memory};

/// A stream of record batches with its schema.
pub(crate) struct RowStream {
    pub schema: SchemaRef,
    pub stream: BoxStream<'static, Result<RecordBatch>>,
}

impl RowStream {
    /// Keeps `charge` until the stream is dropped.
    pub fn holding(self, charge: Charge) -> Self {
        // A closure owns only what it mentions, so it mentions the charge.
        let held = move |batch| {
            let _ = &charge;
            batch
        };
        Self { schema: self.schema, stream: self.stream.map(held).boxed() }
    }

    pub fn of(batches: Vec<RecordBatch>) -> Self {
        let schema = batches.first().map_or_else(|| Arc::new(arrow_schema::Schema::empty()), RecordBatch::schema);
        Self { schema, stream: stream::iter(batches.into_iter().map(Ok)).boxed() }
    }
}

impl From<chronotile_historian::Batches> for RowStream {
    fn from(batches: chronotile_historian::Batches) -> Self {
        Self { schema: batches.schema, stream: batches.stream.map_err(Failure::from).boxed() }
    }
}

impl From<chronotile_archive::ReadStream> for RowStream {
    fn from(rows: chronotile_archive::ReadStream) -> Self {
        Self { schema: rows.schema(), stream: rows.map_err(Failure::from).boxed() }
    }
}

/// The response of an endpoint.
pub(crate) enum Reply {
    /// A complete response.
    Whole(Response),
    /// A content type and a streamed body. An error aborts the response, so that no client takes a part for the whole.
    Stream(&'static str, BoxStream<'static, Result<Bytes>>),
}

impl Reply {
    pub fn json(value: &serde_json::Value) -> Self {
        Self::text("application/json", value.to_string())
    }

    pub fn text(content_type: &'static str, text: impl Into<Body>) -> Self {
        let mut response = Response::new(text.into());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self::Whole(response)
    }

    pub fn nothing() -> Self {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Self::Whole(response)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseFormat {
    /// `{"rows": [...]}`
    Json,
    Plain(OutFormat),
}

/// Documents as they were stored, one per line.
pub(crate) const LINES: &str = "text/plain; charset=utf-8";
pub(crate) const ARROW: &str = "application/vnd.apache.arrow.stream";
pub(crate) const FORMATS: [&str; 5] =
    ["application/json", "application/x-ndjson", "text/csv", ARROW, "application/vnd.apache.parquet"];

impl ResponseFormat {
    const ALL: [(&'static str, Self); 5] = [
        ("json", Self::Json),
        ("ndjson", Self::Plain(OutFormat::Ndjson)),
        ("csv", Self::Plain(OutFormat::Csv)),
        ("arrow", Self::Plain(OutFormat::ArrowStream)),
        ("parquet", Self::Plain(OutFormat::Parquet)),
    ];

    /// The format that the parameter `format` or the header `Accept` asks for; JSON by default.
    fn of(call: &Call) -> Result<Self> {
        if let Some(name) = call.parameters.one("format")? {
            let found = Self::ALL.iter().find(|(known, _)| *known == name);
            return found.map(|(_, form)| *form).ok_or_else(|| {
                Failure::invalid(format!("format is {name:?}: use json, ndjson, csv, arrow or parquet"))
            });
        }
        let accepted = call.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
        for wanted in accepted.split(',').map(|part| part.split(';').next().unwrap_or_default().trim()) {
            if matches!(wanted, "*/*" | "application/*" | "") {
                return Ok(Self::Json);
            }
            if let Some(place) = FORMATS.iter().position(|known| *known == wanted) {
                return Ok(Self::ALL[place].1);
            }
        }
        let message = format!("no format of {accepted:?} is available: accept one of {}", FORMATS.join(", "));
        Err(Failure::new(ErrorKind::NotAcceptable, message))
    }

    fn content_type(self) -> &'static str {
        Self::ALL
            .iter()
            .zip(FORMATS)
            .find_map(|((_, form), name)| (*form == self).then_some(name))
            .unwrap_or(FORMATS[0])
    }
}

/// Bytes of a response that are buffered before it is sent, so that an early error can still set the HTTP status.
const BYTES_BEFORE_ANSWER: usize = 4 << 20;
/// Encoded bytes of a Parquet row group, which stays in memory until it is complete.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// Maximum bytes of rows that are encoded at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of rows that are encoded at a time.
const PIECE_ROWS: usize = 16_384;
/// Memory of a streamed response: a batch, a piece of it, and the copies of its encoded bytes on the way out.
const STREAM_BYTES: usize = 8 << 20;

/// Responds with rows: see [`bytes()`].
pub(crate) async fn rows(app: &Arc<App>, call: &Call, rows: RowStream) -> Result<Reply> {
    let form = ResponseFormat::of(call)?;
    let limited = limited(rows.stream, app.settings.limits.points, call.rows.clone());
    let encoder = Encoder::new(rows.schema, form, &app.memory)?;
    bytes(app, call, form.content_type(), encoded(limited, encoder)).await
}

/// Encodes batches, large ones on a separate thread.
fn encoded(batches: BoxStream<'static, Result<RecordBatch>>, encoder: Encoder) -> BoxStream<'static, Result<Bytes>> {
    let cut = batches.flat_map(|batch| stream::iter(pieces(batch)));
    let pieces = stream::unfold((cut.boxed(), Some(encoder)), |(mut batches, encoder)| async move {
        let mut encoder = encoder?;
        let made = match batches.next().await {
            None => {
                let bytes = encoder.finish_bytes();
                let last = apart(bytes, move || encoder.finish()).await.and_then(|last| last);
                return Some((last, (batches, None)));
            }
            Some(Err(failure)) => Err(failure),
            Some(Ok(batch)) => {
                apart(bytes_of(&batch), move || encoder.write(&batch).map(|piece| (piece, encoder))).await
            }
        };
        match made.and_then(|made| made) {
            Ok((piece, encoder)) => Some((Ok(piece), (batches, Some(encoder)))),
            Err(failure) => Some((Err(failure), (batches, None))),
        }
    });
    pieces.boxed()
}

/// Responds with a stream of bytes. An error within the first [`BYTES_BEFORE_ANSWER`] sets the HTTP status; a later one aborts the
/// response. A client that disconnects drops the stream, which cancels the work of the engine.
pub(crate) async fn bytes(
    app: &App,
    call: &Call,
    content_type: &'static str,
    pieces: BoxStream<'static, Result<Bytes>>,
) -> Result<Reply> {
    let out_of_time = Failure::out_of_time(app.settings.limits.query_time.as_secs());
    let mut pieces = in_time(pieces, call.deadline, out_of_time);
    let mut head = ChargedVec::new(&app.memory);
    while head.len() < BYTES_BEFORE_ANSWER {
        // A response that ends here is sent whole, with its length.
        let Some(piece) = pieces.next().await else { return Ok(Reply::text(content_type, head.freeze())) };
        head.extend(&piece?)?;
    }
    let charge = app.memory.charge(STREAM_BYTES)?;
    let rest = pieces.filter(|piece| std::future::ready(!piece.as_ref().is_ok_and(Bytes::is_empty)));
    // As in `RowStream::holding`, mentioning the charge moves it into the closure.
    let rest = rest.map(move |piece| {
        let _ = &charge;
        piece
    });
    let head = stream::once(std::future::ready(Ok(head.freeze())));
    Ok(Reply::Stream(content_type, head.chain(rest).boxed()))
}

/// Splits a batch between rows into pieces that stay small as text.
fn pieces(batch: Result<RecordBatch>) -> Vec<Result<RecordBatch>> {
    pieces_of(batch, PIECE_ROWS)
}

/// Splits a batch between rows into pieces of at most `rows_max` rows.
pub(crate) fn pieces_of(batch: Result<RecordBatch>, rows_max: usize) -> Vec<Result<RecordBatch>> {
    let Ok(batch) = batch else { return vec![batch] };
    // A batch below PIECE_BYTES is cut only by its number of rows. If rows have more than PIECE_BYTES on average, each
    // is a piece of its own.
    let rows = (batch.num_rows() * PIECE_BYTES / bytes_of(&batch).max(PIECE_BYTES)).clamp(1, rows_max);
    let cut = |start: usize| Ok(batch.slice(start, rows.min(batch.num_rows() - start)));
    (0..batch.num_rows()).step_by(rows).map(cut).collect()
}

/// Memory of the rows of a batch, without the rest of a sliced array.
pub(crate) fn bytes_of(batch: &RecordBatch) -> usize {
    let of_column = |column: &arrow_array::ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0);
    batch.columns().iter().map(of_column).sum()
}

/// Responds with the texts of the first column, one per line.
pub(crate) async fn lines(app: &App, call: &Call, rows: RowStream) -> Result<Reply> {
    let limited = limited(rows.stream, app.settings.limits.points, call.rows.clone());
    let cut = limited.flat_map(|batch| stream::iter(pieces(batch)));
    let texts = cut.then(|batch| async move {
        let batch = batch?;
        apart(bytes_of(&batch), move || lines_of(&batch)).await?
    });
    bytes(app, call, LINES, texts.boxed()).await
}

fn lines_of(batch: &RecordBatch) -> Result<Bytes> {
    let texts = arrow_cast::cast(batch.column(0), &ArrowType::Utf8);
    let texts = texts.map_err(|error| Failure::invalid(format!("the documents are not text: {error}")))?;
    let texts = texts.as_string::<i32>();
    let mut out = Vec::with_capacity(texts.value_data().len() + texts.len());
    for text in texts.iter().flatten() {
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
    Ok(out.into())
}

/// Counts rows, and fails at more than `rows_max`.
pub(crate) fn limited(
    rows: BoxStream<'static, Result<RecordBatch>>,
    rows_max: u64,
    count: Arc<AtomicU64>,
) -> BoxStream<'static, Result<RecordBatch>> {
    rows.map(move |batch| {
        let batch = batch?;
        let before = count.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        if before + batch.num_rows() as u64 > rows_max { Err(too_many(rows_max)) } else { Ok(batch) }
    })
    .boxed()
}

pub(crate) fn too_many(rows_max: u64) -> Failure {
    Failure::too_large(format!(
        "the answer would have more than {rows_max} rows: ask for a shorter range, fewer tags, an aggregate or a plot"
    ))
}

fn in_time<T: Send + 'static>(
    items: BoxStream<'static, Result<T>>,
    deadline: Instant,
    failure: Failure,
) -> BoxStream<'static, Result<T>> {
    stream::unfold((items, Some(failure)), move |(mut items, failure)| async move {
        let failure = failure?;
        match tokio::time::timeout_at(deadline, items.next()).await {
            Ok(item) => item.map(|item| (item, (items, Some(failure)))),
            Err(_) => Some((Err(failure), (items, None))),
        }
    })
    .boxed()
}

/// Encodes rows in one format.
struct Encoder {
    writer: Writer,
    bytes: Shared,
    form: ResponseFormat,
    /// Whether a row has been written.
    begun: bool,
    /// Memory of the rows that the writer buffers: only Parquet buffers many.
    charge: Charge,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn encoding(error: &chronotile_io::IoError) -> Failure {
    Failure::invalid(format!("the rows cannot be written in this format: {error}"))
}

impl Encoder {
    fn new(schema: SchemaRef, form: ResponseFormat, memory: &Memory) -> Result<Self> {
        let bytes = Shared::default();
        let sink = Sink::Stream { name: "the answer".into(), writer: Box::new(bytes.clone()) };
        let format = if let ResponseFormat::Plain(format) = form { format } else { OutFormat::Ndjson };
        let options = WriteOptions { row_group_bytes: Some(ROW_GROUP_BYTES), ..WriteOptions::default() };
        let writer = chronotile_io::writer(sink, format, schema, &options);
        let charge = memory.empty();
        Ok(Self { writer: writer.map_err(|error| encoding(&error))?, bytes, form, begun: false, charge })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<Bytes> {
        if self.form == ResponseFormat::Plain(OutFormat::Parquet) {
            // Parquet buffers rows until a row group is complete, so its memory is charged before the batch is added
            // and corrected after.
            self.charge.set(self.writer.held_bytes() + 2 * bytes_of(batch))?;
        }
        self.writer.write(batch).map_err(|error| encoding(&error))?;
        let piece = self.take();
        if self.form == ResponseFormat::Plain(OutFormat::Parquet) {
            self.charge.set(self.writer.held_bytes())?;
        }
        Ok(piece)
    }

    fn take(&mut self) -> Bytes {
        let bytes = self.bytes.take();
        self.formed(bytes).into()
    }

    /// Size of the buffered rows, which `finish` encodes at once.
    fn finish_bytes(&self) -> usize {
        self.charge.bytes()
    }

    fn finish(mut self) -> Result<Bytes> {
        let bytes = self.bytes.clone();
        let begun = self.take();
        let (form, was_begun) = (self.form, self.begun);
        self.writer.finish().map_err(|error| encoding(&error))?;
        let mut out = begun.to_vec();
        match form {
            ResponseFormat::Json if was_begun => out.extend(b"\n]}"),
            ResponseFormat::Json => out.extend(b"{\"rows\":[]}"),
            ResponseFormat::Plain(_) => out.extend(bytes.take()),
        }
        Ok(out.into())
    }

    /// Turns lines of JSON into elements of a list.
    fn formed(&mut self, mut lines: Vec<u8>) -> Vec<u8> {
        if self.form != ResponseFormat::Json || lines.is_empty() {
            return lines;
        }
        // The last newline goes; all others separate rows, because JSON escapes newlines within texts.
        lines.pop();
        let newlines = lines.iter().filter(|byte| **byte == b'\n').count();
        let mut out = Vec::with_capacity(lines.len() + newlines + 16);
        out.extend_from_slice(if self.begun { b",\n" } else { b"{\"rows\":[\n" });
        self.begun = true;
        for (index, line) in lines.split(|byte| *byte == b'\n').enumerate() {
            if index > 0 {
                out.extend_from_slice(b",\n");
            }
            out.extend_from_slice(line);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn rows_of(found: Vec<Result<RecordBatch>>) -> Vec<usize> {
        found.into_iter().map(|piece| piece.unwrap().num_rows()).collect()
    }

    #[test]
    fn a_batch_is_cut_by_its_bytes_and_by_its_rows() {
        let small: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        assert_eq!(rows_of(pieces(Ok(batch(vec![("x", small)])))), [10]);
        let many: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40_000));
        assert_eq!(rows_of(pieces(Ok(batch(vec![("x", many)])))), [16_384, 16_384, 7_232]);
        let text = "x".repeat(400_000);
        let large: ArrayRef = Arc::new(StringArray::from_iter_values((0..5).map(|_| &text)));
        assert_eq!(rows_of(pieces(Ok(batch(vec![("x", large.clone())])))), [2, 2, 1]);
        // A slice counts only the rows that it shows.
        assert_eq!(rows_of(pieces(Ok(batch(vec![("x", large.slice(1, 2))])))), [2]);
        let empty: ArrayRef = Arc::new(Int64Array::from_iter_values(0..0));
        assert_eq!(rows_of(pieces(Ok(batch(vec![("x", empty)])))), Vec::<usize>::new());
    }

    /// Texts that compress poorly.
    fn texts(count: usize, bytes: usize) -> RecordBatch {
        let text = |number: usize| {
            let mut reader = blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof();
            let mut noise = vec![0; bytes / 2];
            reader.fill(&mut noise);
            noise.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let column: ArrayRef = Arc::new(StringArray::from_iter_values((0..count).map(text)));
        batch(vec![("x", column)])
    }

    fn of(batches: &[RecordBatch], form: ResponseFormat, memory: &Memory) -> BoxStream<'static, Result<Bytes>> {
        let encoder = Encoder::new(batches[0].schema(), form, memory).unwrap();
        encoded(stream::iter(batches.to_vec()).map(Ok).boxed(), encoder)
    }

    #[tokio::test]
    async fn large_rows_are_encoded_away_from_the_threads_that_drive_connections() {
        // All tasks share the one thread of this test.
        let batches = [texts(4_000, 500)];
        for (name, form) in ResponseFormat::ALL {
            let turns = Arc::new(AtomicU64::new(0));
            // On a loaded machine this thread may get no CPU time while the other thread encodes, so retry.
            for _ in 0..20 {
                let counted = turns.clone();
                let others = tokio::spawn(async move {
                    loop {
                        counted.fetch_add(1, Ordering::Relaxed);
                        tokio::task::yield_now().await;
                    }
                });
                let pieces: Vec<_> = of(&batches, form, &Memory::new(64 << 20)).collect().await;
                others.abort();
                let bytes: usize = pieces.iter().map(|piece| piece.as_ref().unwrap().len()).sum();
                assert!(bytes > 500_000, "{name}: {bytes}");
                if turns.load(Ordering::Relaxed) > 100 {
                    break;
                }
            }
            assert!(turns.load(Ordering::Relaxed) > 100, "{name}: others came on {turns:?} times");
        }
    }

    #[tokio::test]
    async fn parquet_pays_for_the_row_group_that_it_holds() {
        let form = ResponseFormat::Plain(OutFormat::Parquet);
        let batches = vec![texts(16, 64 << 10); 24];
        let memory = Memory::new(64 << 20);
        let mut pieces = of(&batches, form, &memory);
        let mut most = 0;
        while let Some(piece) = pieces.next().await {
            piece.unwrap();
            most = most.max(memory.bytes());
        }
        drop(pieces);
        assert!((4 << 20..3 * ROW_GROUP_BYTES).contains(&most), "{most}");
        assert_eq!(memory.bytes(), 0);
        let small = Memory::new(6 << 20);
        let pieces: Vec<_> = of(&batches, form, &small).collect().await;
        assert_eq!(pieces.last().unwrap().as_ref().unwrap_err().kind, ErrorKind::TooLarge);
        assert_eq!(small.bytes(), 0);
    }
}
