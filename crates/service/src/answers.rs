//! Rows as the body of an answer, streamed in the format that the client asks for.

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

use crate::app::{App, Call};
use crate::failure::{Failure, Result};

/// Rows that come.
pub(crate) struct Rows {
    pub schema: SchemaRef,
    pub stream: BoxStream<'static, Result<RecordBatch>>,
}

impl Rows {
    pub fn of(batches: Vec<RecordBatch>) -> Self {
        let schema = batches.first().map_or_else(|| Arc::new(arrow_schema::Schema::empty()), RecordBatch::schema);
        Self { schema, stream: stream::iter(batches.into_iter().map(Ok)).boxed() }
    }
}

impl From<chronotile_historian::Batches> for Rows {
    fn from(batches: chronotile_historian::Batches) -> Self {
        Self { schema: batches.schema, stream: batches.stream.map_err(Failure::from).boxed() }
    }
}

impl From<chronotile_archive::ReadStream> for Rows {
    fn from(rows: chronotile_archive::ReadStream) -> Self {
        Self { schema: rows.schema(), stream: rows.map_err(Failure::from).boxed() }
    }
}

/// What an endpoint answers.
pub(crate) enum Reply {
    /// All of it.
    Whole(Response),
    /// What comes; an error breaks the answer off, so that nobody takes a part for the whole.
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
enum Form {
    /// `{"rows": [...]}`
    Json,
    Plain(OutFormat),
}

/// Documents as they came, a line each.
pub(crate) const LINES: &str = "text/plain; charset=utf-8";
pub(crate) const ARROW: &str = "application/vnd.apache.arrow.stream";
pub(crate) const FORMATS: [&str; 5] =
    ["application/json", "application/x-ndjson", "text/csv", ARROW, "application/vnd.apache.parquet"];

impl Form {
    const ALL: [(&'static str, Self); 5] = [
        ("json", Self::Json),
        ("ndjson", Self::Plain(OutFormat::Ndjson)),
        ("csv", Self::Plain(OutFormat::Csv)),
        ("arrow", Self::Plain(OutFormat::ArrowStream)),
        ("parquet", Self::Plain(OutFormat::Parquet)),
    ];

    /// What `format` or the header `Accept` asks for; JSON where they leave it open.
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
        let message = format!("none of {accepted:?} can be given: accept one of {}", FORMATS.join(", "));
        Err(Failure::new(StatusCode::NOT_ACCEPTABLE, "not-acceptable", message))
    }

    fn content_type(self) -> &'static str {
        Self::ALL
            .iter()
            .zip(FORMATS)
            .find_map(|((_, form), name)| (*form == self).then_some(name))
            .unwrap_or(FORMATS[0])
    }
}

/// Rows that are looked at before an answer begins, so that errors among them have a status of their own.
const ROWS_BEFORE_ANSWER: usize = 65_536;

/// The rows as an answer. What is wrong before many rows have come is told by a status, later on the answer is broken off. A
/// client that goes away drops the stream, and with it the work of the engine.
pub(crate) async fn rows(app: &Arc<App>, call: &Call, rows: Rows) -> Result<Reply> {
    let form = Form::of(call)?;
    let deadline = call.deadline;
    let out_of_time = Failure::out_of_time(app.settings.limits.query_time.as_secs());
    let limited = limited(rows.stream, app.settings.limits.points, call.rows.clone());
    let mut stream = in_time(limited, deadline, out_of_time);
    let mut encoder = Encoder::new(rows.schema, form)?;
    let mut first = Vec::new();
    let mut count = 0;
    while count < ROWS_BEFORE_ANSWER {
        let Some(batch) = stream.next().await else {
            let mut body = Vec::new();
            for batch in first {
                encoder.write(&batch)?;
            }
            body.extend(encoder.finish()?);
            return Ok(Reply::text(form.content_type(), body));
        };
        let batch = batch?;
        count += batch.num_rows();
        first.push(batch);
    }
    let batches = stream::iter(first.into_iter().map(Ok)).chain(stream);
    let pieces = stream::unfold((batches.boxed(), Some(encoder)), |(mut batches, encoder)| async move {
        let mut encoder = encoder?;
        let piece = match batches.next().await {
            None => return Some((encoder.finish(), (batches, None))),
            Some(Err(failure)) => Err(failure),
            Some(Ok(batch)) => encoder.write(&batch).map(|()| encoder.take()),
        };
        let go_on = piece.is_ok();
        Some((piece, (batches, go_on.then_some(encoder))))
    });
    Ok(Reply::Stream(form.content_type(), pieces.boxed()))
}

/// The texts of the first column, a line each.
pub(crate) fn lines(app: &App, call: &Call, rows: Rows) -> Reply {
    let out_of_time = Failure::out_of_time(app.settings.limits.query_time.as_secs());
    let limited = limited(rows.stream, app.settings.limits.points, call.rows.clone());
    let pieces = in_time(limited, call.deadline, out_of_time).map(|batch| lines_of(&batch?));
    Reply::Stream(LINES, pieces.boxed())
}

fn lines_of(batch: &RecordBatch) -> Result<Bytes> {
    let texts = arrow_cast::cast(batch.column(0), &ArrowType::Utf8);
    let texts = texts.map_err(|error| Failure::invalid(format!("the documents are no texts: {error}")))?;
    let texts = texts.as_string::<i32>();
    let mut out = Vec::with_capacity(texts.value_data().len() + texts.len());
    for text in texts.iter().flatten() {
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
    Ok(out.into())
}

/// Counts rows, and fails where there are more than allowed.
fn limited(
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

fn in_time(
    rows: BoxStream<'static, Result<RecordBatch>>,
    deadline: Instant,
    failure: Failure,
) -> BoxStream<'static, Result<RecordBatch>> {
    stream::unfold((rows, Some(failure)), move |(mut rows, failure)| async move {
        let failure = failure?;
        match tokio::time::timeout_at(deadline, rows.next()).await {
            Ok(batch) => batch.map(|batch| (batch, (rows, Some(failure)))),
            Err(_) => Some((Err(failure), (rows, None))),
        }
    })
    .boxed()
}

/// Rows to bytes of one format.
struct Encoder {
    writer: Writer,
    bytes: Shared,
    form: Form,
    /// Whether a row has been written.
    begun: bool,
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
    Failure::invalid(format!("the rows do not go into this format: {error}"))
}

impl Encoder {
    fn new(schema: SchemaRef, form: Form) -> Result<Self> {
        let bytes = Shared::default();
        let sink = Sink::Stream { name: "the answer".into(), writer: Box::new(bytes.clone()) };
        let format = if let Form::Plain(format) = form { format } else { OutFormat::Ndjson };
        let writer = chronotile_io::writer(sink, format, schema, &WriteOptions::default());
        Ok(Self { writer: writer.map_err(|error| encoding(&error))?, bytes, form, begun: false })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(batch).map_err(|error| encoding(&error))
    }

    fn take(&mut self) -> Bytes {
        let bytes = self.bytes.take();
        self.formed(bytes).into()
    }

    fn finish(mut self) -> Result<Bytes> {
        let bytes = self.bytes.clone();
        let begun = self.take();
        let (form, was_begun) = (self.form, self.begun);
        self.writer.finish().map_err(|error| encoding(&error))?;
        let mut out = begun.to_vec();
        match form {
            Form::Json if was_begun => out.extend(b"\n]}"),
            Form::Json => out.extend(b"{\"rows\":[]}"),
            Form::Plain(_) => out.extend(bytes.take()),
        }
        Ok(out.into())
    }

    /// Lines of JSON become elements of a list.
    fn formed(&mut self, mut lines: Vec<u8>) -> Vec<u8> {
        if self.form != Form::Json || lines.is_empty() {
            return lines;
        }
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
