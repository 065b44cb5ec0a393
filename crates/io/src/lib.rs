//! Record files as streams of Arrow record batches, and back.
//!
//! [`open`] reads CSV, TSV, NDJSON, Parquet and Arrow IPC from files, standard input or any stream; [`writer()`] writes them and
//! tables for people. Nothing is converted silently: a value that does not fit its column is an error that names the input, the
//! line, the column and the value. Memory stays bounded for inputs of any size.

mod columnar_read;
mod csv_read;
mod csv_records;
mod csv_tokens;
mod csv_write;
mod error;
mod format;
mod infer;
mod ipc_check;
mod ipc_read;
mod ndjson_read;
mod options;
mod ordered;
mod reader;
mod sink;
mod source;
mod table;
mod text;
mod types;
mod writer;

pub use csv_records::CsvRecords;
pub use error::{IoError, Result, TYPE_NAMES};
pub use format::{Format, OutFormat, UnknownFormat};
pub use ipc_check::check_batch;
pub use ipc_read::IpcStream;
pub use options::{CsvOptions, ReadOptions, TableOptions, WriteOptions};
pub use ordered::{OrderKey, Ordered, in_order};
pub use reader::{Reader, open};
pub use sink::Sink;
pub use source::{Progress, Source, content_hash};
pub use types::{format_type, parse_type};
pub use writer::{Writer, writer};
