//! Options of reading and writing.

use std::collections::{HashMap, HashSet};

use arrow_schema::{DataType, Field, SchemaRef};
use chronotile_types::name_hint;

use crate::error::{IoError, Result};
use crate::format::Format;

/// How records are read.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// The format. Default: detected from the first bytes, else from the extension of the file.
    pub format: Option<Format>,
    /// The columns to read, by name, with their types and in this order; other columns of the input are ignored. CSV,
    /// Parquet and Arrow inputs must have all of them; in NDJSON a column missing from a record is null. Default: all
    /// columns of the input, with inferred or stored types.
    pub schema: Option<SchemaRef>,
    /// Types of single columns, by name; they take precedence over `schema` and inference.
    pub types: Vec<(String, DataType)>,
    /// Advice for errors in single columns, by column name, instead of general advice. For CSV and NDJSON.
    pub hints: Vec<(String, String)>,
    /// The columns to return, in this order. Default: all.
    pub columns: Option<Vec<String>>,
    /// Maximum number of rows of a batch. Default 65,536; at least 1. A batch ends earlier if its text exceeds 64 MiB.
    pub batch_rows: usize,
    /// Number of records at the start of a CSV or NDJSON input from which types are inferred. Default 10,000. The
    /// sample is held in memory and ends early at 64 MiB of text.
    pub sample_rows: usize,
    /// Number of records to skip at the start, for resuming. Types are still inferred from the start of the input, so
    /// that a resumed read has the same types. Parquet and Arrow files are decoded only from the first needed row group
    /// or batch.
    pub skip_rows: u64,
    /// Maximum size of the temporary copy, in TMPDIR, of a Parquet or Arrow input that is not seekable: a compressed
    /// one, or a pipe. Default 8 GiB; never more than half of the free space there.
    pub spool_bytes_max: u64,
    /// Options of CSV and TSV.
    pub csv: CsvOptions,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            format: None,
            schema: None,
            types: Vec::new(),
            hints: Vec::new(),
            columns: None,
            batch_rows: 65_536,
            sample_rows: 10_000,
            skip_rows: 0,
            spool_bytes_max: 8 << 30,
            csv: CsvOptions::default(),
        }
    }
}

/// How CSV text is split into fields.
#[derive(Debug, Clone)]
pub struct CsvOptions {
    /// One ASCII character. Default: a comma, for TSV a tab.
    pub delimiter: Option<u8>,
    /// The quote character; `None` to give quotes no meaning. Default `"`.
    pub quote: Option<u8>,
    /// Whether the first line names the columns. Default true.
    pub header: bool,
    /// The names of all columns in file order, which replace those of a header. Without header and names, columns are
    /// called `column_1`, `column_2` and so on.
    pub column_names: Option<Vec<String>>,
    /// Words that mean null, in addition to an empty unquoted field. In text columns a quoted word is text.
    pub nulls: Vec<String>,
    /// Lines that start with this character are skipped. Default: none.
    pub comment: Option<u8>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { delimiter: None, quote: Some(b'"'), header: true, column_names: None, nulls: Vec::new(), comment: None }
    }
}

impl ReadOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |setting, value: String, reason| Err(IoError::BadSetting { setting, value, reason });
        if self.batch_rows == 0 {
            return bad("batch_rows", "0".to_owned(), "a batch has at least one row");
        }
        if self.sample_rows == 0 {
            return bad("sample_rows", "0".to_owned(), "types are inferred from at least one record");
        }
        if let Some(names) = &self.columns
            && names.is_empty()
        {
            return bad("columns", "[]".to_owned(), "name at least one column");
        }
        let csv = &self.csv;
        for (setting, byte) in [("delimiter", csv.delimiter), ("quote", csv.quote), ("comment", csv.comment)] {
            if let Some(byte) = byte
                && (!byte.is_ascii() || byte == b'\n' || byte == b'\r')
            {
                return bad(setting, format!("{:?}", byte as char), "it is one ASCII character and no line end");
            }
        }
        if csv.delimiter.is_some() && csv.delimiter == csv.quote {
            return bad("delimiter", format!("{:?}", csv.delimiter.map(char::from)), "it is also the quote");
        }
        Ok(())
    }
}

/// The options for single columns, indexed by name because inputs may have thousands.
pub(crate) struct ColumnOptions<'a> {
    fields: HashMap<&'a str, &'a Field>,
    types: HashMap<&'a str, &'a DataType>,
    /// The columns to return, in order; `None` for all.
    names: Option<Vec<&'a str>>,
    /// The columns to return, if they are named, and those with a given type.
    wanted: Option<HashSet<&'a str>>,
}

impl<'a> ColumnOptions<'a> {
    pub(crate) fn new(options: &'a ReadOptions) -> Self {
        let fields = options.schema.iter().flat_map(|schema| schema.fields().iter());
        let names = match (&options.columns, &options.schema) {
            (Some(columns), _) => Some(columns.iter().map(String::as_str).collect()),
            (None, Some(schema)) => Some(schema.fields().iter().map(|field| field.name().as_str()).collect()),
            (None, None) => None,
        };
        let typed = options.types.iter().map(|(name, _)| name.as_str());
        let wanted = options.columns.as_ref().map(|columns| columns.iter().map(String::as_str).chain(typed).collect());
        Self {
            fields: fields.map(|field| (field.name().as_str(), field.as_ref())).collect(),
            types: options.types.iter().map(|(name, data_type)| (name.as_str(), data_type)).collect(),
            names,
            wanted,
        }
    }

    /// The type given for a column, if any; `types` take precedence over `schema`.
    pub(crate) fn data_type(&self, name: &str) -> Option<&'a DataType> {
        self.types.get(name).copied().or_else(|| self.fields.get(name).map(|field| field.data_type()))
    }

    /// Whether to read the column: it is returned, or has a given type.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(name))
    }

    /// Whether the column may hold nulls according to the given schema.
    pub(crate) fn nullable(&self, name: &str) -> bool {
        self.fields.get(name).is_none_or(|field| field.is_nullable())
    }

    /// The columns to return, in order, as indexes in the columns of the input.
    pub(crate) fn chosen(&self, input: &str, known: &[String]) -> Result<Vec<usize>> {
        let places: HashMap<&str, usize> = known.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let place = |column: &str| {
            let unknown = || IoError::UnknownColumn {
                name: input.to_owned(),
                column: column.to_owned(),
                hint: name_hint(column, known),
            };
            places.get(column).copied().ok_or_else(unknown)
        };
        for typed in self.types.keys() {
            place(typed)?;
        }
        let Some(names) = &self.names else { return Ok((0..known.len()).collect()) };
        refuse_duplicates("the list of columns", names)?;
        names.iter().map(|name| place(name)).collect()
    }
}

/// Refuses duplicate column names in `owner`.
pub(crate) fn refuse_duplicates<S: AsRef<str>>(owner: &str, names: &[S]) -> Result<()> {
    let mut seen = HashSet::with_capacity(names.len());
    for name in names {
        let name = name.as_ref();
        if !seen.insert(name) {
            return Err(IoError::DuplicateColumn { name: owner.to_owned(), column: name.to_owned() });
        }
    }
    Ok(())
}

/// How records are written.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Whether an existing file may be replaced. Default false.
    pub overwrite: bool,
    /// The CSV delimiter, one ASCII character. Default: a comma, for TSV a tab.
    pub delimiter: Option<u8>,
    /// Whether CSV starts without a header line. Default false.
    pub no_header: bool,
    /// The word for null in CSV. Default: an empty field; an empty text is then written as `""`.
    pub null: String,
    /// Encoded size at which a Parquet row group ends; it is held in memory until then. Default 128 MiB.
    pub row_group_bytes: Option<usize>,
    /// Limits of the table.
    pub table: TableOptions,
}

/// Limits of a table for people.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// Maximum number of rows shown; the others are counted. Default 40.
    pub max_rows: usize,
    /// Maximum width of a cell in terminal columns; longer values end in `…`. If the table has a width, cells are cut
    /// only if it would be exceeded, and not to less than this. Default 40.
    pub max_cell_width: usize,
    /// Width of the whole table in terminal columns; columns that do not fit are listed below it. Default: no limit.
    pub width: Option<usize>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { max_rows: 40, max_cell_width: 40, width: None }
    }
}
