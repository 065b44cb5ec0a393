//! Names of file formats, and detection of a format by file name or first bytes.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The format is not given, and cannot be detected from the name or the first bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the format of {name} is not known; give one of {}", Format::NAMES)]
pub struct UnknownFormat {
    /// The input, output or format word.
    pub name: String,
}

/// A format that records are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Comma-separated text, RFC 4180 with configurable delimiter.
    Csv,
    /// Tab-separated text: CSV whose default delimiter is a tab.
    Tsv,
    /// One JSON object a line.
    Ndjson,
    /// Apache Parquet.
    Parquet,
    /// Apache Arrow IPC, file or stream; distinguished by the first bytes.
    Arrow,
}

/// A format that records are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutFormat {
    /// Comma-separated text.
    Csv,
    /// Tab-separated text.
    Tsv,
    /// One JSON object a line.
    Ndjson,
    /// Apache Parquet.
    Parquet,
    /// Apache Arrow IPC file (with footer).
    Arrow,
    /// Apache Arrow IPC stream.
    ArrowStream,
    /// A table for people, limited to a number of rows.
    Table,
}

impl Format {
    /// The names of the formats, for messages and help texts.
    pub const NAMES: &'static str = "csv, tsv, ndjson, parquet, arrow";

    /// The format of the extension of `path`.
    ///
    /// Known: `.csv`, `.tsv`, `.tab`, `.ndjson`, `.jsonl`, `.parquet`, `.pq`, `.arrow`, `.arrows`, `.feather`,
    /// `.ipc`, each also followed by `.gz` or `.zst`.
    ///
    /// # Errors
    /// [`UnknownFormat`] with the list of known formats.
    pub fn of_path(path: &Path) -> Result<Self, UnknownFormat> {
        match Extension::of(path).kind.as_str() {
            "csv" => Ok(Self::Csv),
            "tsv" | "tab" => Ok(Self::Tsv),
            "ndjson" | "jsonl" => Ok(Self::Ndjson),
            "parquet" | "pq" => Ok(Self::Parquet),
            "arrow" | "arrows" | "feather" | "ipc" => Ok(Self::Arrow),
            _ => Err(UnknownFormat { name: format!("{path:?}") }),
        }
    }

    /// The format that the first bytes of a file identify, if any.
    pub(crate) fn of_magic(head: &[u8]) -> Option<Self> {
        let arrow_stream = [0xff, 0xff, 0xff, 0xff];
        if head.starts_with(b"PAR1") {
            Some(Self::Parquet)
        } else if head.starts_with(b"ARROW1") || head.starts_with(&arrow_stream) {
            Some(Self::Arrow)
        } else {
            None
        }
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text.to_ascii_lowercase().as_str() {
            "csv" => Ok(Self::Csv),
            "tsv" => Ok(Self::Tsv),
            "ndjson" | "jsonl" => Ok(Self::Ndjson),
            "parquet" => Ok(Self::Parquet),
            "arrow" | "ipc" | "feather" => Ok(Self::Arrow),
            _ => Err(UnknownFormat { name: format!("{text:?}") }),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csv => "CSV",
            Self::Tsv => "TSV",
            Self::Ndjson => "NDJSON",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow IPC",
        })
    }
}

impl OutFormat {
    /// The names of the formats, for messages and help texts.
    pub const NAMES: &'static str = "table, csv, tsv, ndjson, parquet, arrow, arrow-stream";

    /// The format of the extension of `path`, as in [`Format::of_path`]; `.arrows` is a stream.
    ///
    /// # Errors
    /// [`UnknownFormat`] with the list of known formats.
    pub fn of_path(path: &Path) -> Result<Self, UnknownFormat> {
        Ok(match Format::of_path(path)? {
            Format::Csv => Self::Csv,
            Format::Tsv => Self::Tsv,
            Format::Ndjson => Self::Ndjson,
            Format::Parquet => Self::Parquet,
            Format::Arrow if Extension::of(path).kind == "arrows" => Self::ArrowStream,
            Format::Arrow => Self::Arrow,
        })
    }
}

impl FromStr for OutFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text.to_ascii_lowercase().as_str() {
            "table" => Ok(Self::Table),
            "arrow-stream" | "arrows" => Ok(Self::ArrowStream),
            other => Ok(match Format::from_str(other)? {
                Format::Csv => Self::Csv,
                Format::Tsv => Self::Tsv,
                Format::Ndjson => Self::Ndjson,
                Format::Parquet => Self::Parquet,
                Format::Arrow => Self::Arrow,
            }),
        }
    }
}

impl fmt::Display for OutFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csv => "CSV",
            Self::Tsv => "TSV",
            Self::Ndjson => "NDJSON",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow IPC",
            Self::ArrowStream => "Arrow IPC stream",
            Self::Table => "table",
        })
    }
}

/// Compression of a whole file, of any format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileCompression {
    None,
    Gzip,
    Zstd,
}

impl FileCompression {
    pub(crate) fn of_magic(head: &[u8]) -> Self {
        if head.starts_with(&[0x1f, 0x8b]) {
            Self::Gzip
        } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Self::Zstd
        } else {
            Self::None
        }
    }

    pub(crate) fn of_path(path: &Path) -> Self {
        Extension::of(path).wrapping
    }

    pub(crate) fn label(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}

/// The lower-case extension of a path without its compression suffix.
struct Extension {
    kind: String,
    wrapping: FileCompression,
}

impl Extension {
    fn of(path: &Path) -> Self {
        let lower = |p: &Path| p.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let last = lower(path);
        let wrapping = match last.as_str() {
            "gz" | "gzip" => FileCompression::Gzip,
            "zst" | "zstd" => FileCompression::Zstd,
            _ => FileCompression::None,
        };
        let kind = match wrapping {
            FileCompression::None => last,
            _ => path.file_stem().map(|stem| lower(Path::new(stem))).unwrap_or_default(),
        };
        Self { kind, wrapping }
    }
}
