//! Errors of reading and writing record files.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use arrow_schema::ArrowError;
use parquet::errors::ParquetError;

use crate::format::{Format, UnknownFormat};

/// The type names, for messages and help texts.
pub const TYPE_NAMES: &str = "bool, int8 to int64, uint8 to uint64, float16, float32, float64, utf8, binary, \
    fixed_size_binary(16), date32, date64, time32[s|ms], time64[us|ns], timestamp[s|ms|us|ns] with an optional zone \
    (timestamp[us, UTC]), duration[s|ms|us|ns], decimal128(10, 2), decimal256(50, 2), list<int32>, large_list<int32>, \
    fixed_size_list<float32, 3>, struct<a: int64, b: utf8>, dictionary<int32, utf8>";

/// An error of reading or writing record files.
///
/// Every message is one sentence that names the input, says what is wrong and what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// Nothing exists at the path.
    #[error("{path:?} does not exist; check the spelling and the current folder")]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The path is a folder where a file is needed.
    #[error("{path:?} is a folder, not a file: give a path such as {}", path.join(example).display())]
    IsFolder {
        /// The path as given.
        path: PathBuf,
        /// Name of a file in it, to show what is wanted.
        example: &'static str,
    },
    /// The operating system denies access to the path.
    #[error("permission to {action} {path:?} is denied; check its owner and mode")]
    Denied {
        /// The path as given.
        path: PathBuf,
        /// `read` or `write`.
        action: &'static str,
    },
    /// The folder of the output file does not exist.
    #[error("the folder {folder:?} of the output file does not exist; create it first")]
    NoFolder {
        /// The missing folder.
        folder: PathBuf,
    },
    /// The input holds no bytes, or no header line.
    #[error("{name} is empty; a {format} input needs {needs}")]
    Empty {
        /// The input.
        name: String,
        /// What it was read as.
        format: String,
        /// What is missing.
        needs: &'static str,
    },
    /// The format is neither given nor visible in the name or the first bytes.
    #[error(transparent)]
    UnknownFormat(#[from] UnknownFormat),
    /// The content is not of the expected format.
    #[error("{name} is not a {expected} file: {reason}")]
    WrongFormat {
        /// The input.
        name: String,
        /// The format it was read as.
        expected: Format,
        /// What was found.
        reason: String,
    },
    /// The bytes are cut short or contradict themselves.
    #[error("{name} is damaged ({what}): {reason}; fetch or write the file again")]
    Damaged {
        /// The input.
        name: String,
        /// The layer and place that is damaged.
        what: String,
        /// What the decoder said.
        reason: String,
        /// The error of the decoder, if it returned one.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A CSV line has more or fewer fields than the first one.
    #[error(
        "{name}, line {line}: {found} fields where {expected} are expected; check the delimiter and the quotes of that line"
    )]
    FieldCount {
        /// The input.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// Fields on the line.
        found: usize,
        /// Fields of the header or of the given column names.
        expected: usize,
    },
    /// Text follows the closing quote of a CSV field.
    #[error("{name}, line {line}: text follows a closing quote; write a quote inside a quoted field twice")]
    StrayQuote {
        /// The input.
        name: String,
        /// Line number, from 1.
        line: u64,
    },
    /// A quoted CSV field is still open at the end of the input.
    #[error("{name}, line {line}: a quoted field that starts in this record is never closed")]
    OpenQuote {
        /// The input.
        name: String,
        /// Line number of the record's start, from 1.
        line: u64,
    },
    /// A record is longer than the limit.
    #[error(
        "{name}, line {line}: the record is longer than {bytes_max} bytes; is a quote not closed, or the format another one?"
    )]
    RecordTooLong {
        /// The input.
        name: String,
        /// Line number of the record's start, from 1.
        line: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// A stream that must be copied to a temporary file is larger than the limit of such copies.
    #[error(
        "{name} exceeds the limit for temporary copies ({bytes_max} bytes, in {folder:?}): unpack it or save it to a file and read that, \
         or set TMPDIR to a folder with more space"
    )]
    SpoolTooLarge {
        /// The input.
        name: String,
        /// The limit.
        bytes_max: u64,
        /// The folder of temporary copies.
        folder: PathBuf,
    },
    /// A record has more fields than a dataset may have columns.
    #[error(
        "{name}, line {line}: the record has more than {columns_max} fields, which is the limit; is the delimiter or the \
         format another one?"
    )]
    TooManyColumns {
        /// The input.
        name: String,
        /// Line number of the record's start, from 1.
        line: u64,
        /// The limit.
        columns_max: usize,
    },
    /// The text is not UTF-8.
    #[error("{name}, line {line}: the text is not UTF-8; convert the file (for example `iconv -f latin1 -t utf-8`)")]
    NotUtf8 {
        /// The input.
        name: String,
        /// Line number, from 1.
        line: u64,
    },
    /// A line is not one JSON object, or its shape contradicts the column types.
    #[error("{name}, line {line}: {reason}")]
    Json {
        /// The input.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// What is wrong and what to try.
        reason: String,
    },
    /// A column holds objects or lists in some records and plain values in others.
    #[error(
        "{name}, line {line}, column {column:?}: objects, lists and plain values are mixed in one column; leave it out by naming the other columns (--columns)"
    )]
    MixedShapes {
        /// The input.
        name: String,
        /// Line number of the first record that differs, from 1.
        line: u64,
        /// The column.
        column: String,
    },
    /// A value does not fit the type of its column.
    #[error("{name}, line {line}, column {column:?}: {value:?} is not {data_type}{detail}; {hint}")]
    BadValue {
        /// The input.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// The column, with the path inside a nested one.
        column: Box<str>,
        /// The value as written in the file, cut to 80 characters.
        value: Box<str>,
        /// The type of the column.
        data_type: Box<str>,
        /// Why it does not fit, if that is not obvious; starts with a space or is empty.
        detail: Box<str>,
        /// What to try.
        hint: Box<str>,
    },
    /// A null in a column that does not allow nulls.
    #[error("{name}, line {line}, column {column:?}: the value is missing, and the column may not hold nulls")]
    MissingValue {
        /// The input.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// The column.
        column: String,
    },
    /// A stored column cannot be converted to the requested type.
    #[error("{name}, column {column:?}: {from} does not convert to {to} without loss: {reason}")]
    Convert {
        /// The input.
        name: String,
        /// The column.
        column: String,
        /// The type in the file.
        from: Box<str>,
        /// The type asked for.
        to: Box<str>,
        /// The first value that fails.
        reason: String,
    },
    /// The input has no column of this name.
    #[error("{name} has no column {column:?}{hint}")]
    UnknownColumn {
        /// The input.
        name: String,
        /// The column asked for.
        column: String,
        /// The nearest column names and all columns; starts with a semicolon.
        hint: String,
    },
    /// Two columns have the same name.
    #[error("{name} has two columns named {column:?}; rename one, or give all names and skip the header")]
    DuplicateColumn {
        /// The input.
        name: String,
        /// The column.
        column: String,
    },
    /// A setting contradicts another or is out of range.
    #[error("the setting {setting} cannot be {value}: {reason}")]
    BadSetting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why it is refused.
        reason: &'static str,
    },
    /// A text is not the name of a data type.
    #[error("{text:?} is not a data type{detail}; known are {}", TYPE_NAMES)]
    UnknownType {
        /// The text.
        text: String,
        /// What is wrong inside it; starts with a colon or is empty.
        detail: String,
    },
    /// The format cannot store a column of this type.
    #[error("column {column:?} has the type {data_type}, which {format} files do not hold; leave it out or convert it")]
    UnsupportedType {
        /// The column.
        column: String,
        /// Its type.
        data_type: String,
        /// The format.
        format: String,
    },
    /// The output file exists already.
    #[error("{path:?} exists already; choose another name or allow overwriting (--overwrite)")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The schema of a batch differs from that of the output.
    #[error("a batch with columns {found} was written to an output with columns {expected}")]
    SchemaChanged {
        /// Columns of the batch.
        found: String,
        /// Columns of the output.
        expected: String,
    },
    /// The reader of the output has closed it (`| head`). Programs should end silently with success.
    #[error("the reader of the output has closed it")]
    BrokenPipe,
    /// The operating system failed to read.
    #[error("reading {name} failed: {source}")]
    Read {
        /// The input.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The operating system failed to write; nothing is left at the path.
    #[error("writing {name} failed: {source}{}", write_hint(source))]
    Write {
        /// The output.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// An encoder refused a batch.
    #[error("{name} cannot be written: {source}")]
    Encode {
        /// The output.
        name: String,
        /// The cause.
        source: ArrowError,
    },
}

/// Result of this crate's operations.
pub type Result<T, E = IoError> = std::result::Result<T, E>;

/// The message of a decoder, which may have many lines, as one line of limited length.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn write_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free some space or write elsewhere",
        io::ErrorKind::ReadOnlyFilesystem => "; write to another folder",
        _ => "",
    }
}

impl IoError {
    /// Maps an error of opening `path` for reading.
    pub(crate) fn opening(path: &Path, error: io::Error) -> Self {
        let path = path.to_path_buf();
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path, action: "read" },
            io::ErrorKind::IsADirectory => Self::IsFolder { path, example: "*.csv" },
            _ => Self::Read { name: format!("{path:?}"), source: error },
        }
    }

    /// Maps an error of creating or replacing `path`.
    pub(crate) fn creating(path: &Path, error: io::Error) -> Self {
        let path = path.to_path_buf();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { path, action: "write" },
            io::ErrorKind::IsADirectory => Self::IsFolder { path, example: "rows.csv" },
            io::ErrorKind::AlreadyExists => Self::Exists { path },
            _ => Self::Write { name: format!("{path:?}"), source: error },
        }
    }

    /// Maps an error of reading the byte stream of `name`, which may come from a decompressor.
    pub(crate) fn reading(name: &str, compression: Option<&'static str>, error: io::Error) -> Self {
        match (compression, error.kind()) {
            (Some(layer), io::ErrorKind::UnexpectedEof) => Self::Damaged {
                name: name.to_owned(),
                what: layer.to_owned(),
                reason: "it ends before its content does".to_owned(),
                source: Some(error.into()),
            },
            // flate2 reports damaged content as `InvalidInput`, zstd as `Other`.
            (Some(layer), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::Other) => {
                Self::damaged(name, layer, error.to_string(), error)
            }
            _ => Self::Read { name: name.to_owned(), source: error },
        }
    }

    /// Maps an error of the Arrow decoders of `name`.
    pub(crate) fn decoding(name: &str, format: Format, error: ArrowError) -> Self {
        match error {
            // An input that ends early is damaged; the other kinds are failures to read.
            ArrowError::IoError(_, source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                Self::Read { name: name.to_owned(), source }
            }
            other => Self::damaged(name, format, one_line(&other.to_string()), other),
        }
    }

    /// Maps an error of the Parquet decoder of `name`.
    pub(crate) fn parquet(name: &str, error: ParquetError) -> Self {
        Self::damaged(name, Format::Parquet, one_line(&error.to_string()), error)
    }

    fn damaged(
        name: &str,
        what: impl ToString,
        reason: String,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Damaged { name: name.to_owned(), what: what.to_string(), reason, source: Some(source.into()) }
    }
}
