//! The definition of a dataset and its rules.

mod slices;

use arrow_schema::{DataType, Schema, SchemaRef};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::slices::{GROUP_DATASETS_MAX, Membership, SliceOwner};
use crate::nearest::name_hint;
use crate::schema::{SchemaError, normalize_schema, schema_from_base64, schema_to_base64};
use crate::time::{Duration, TimeError, TimeSpec};
use crate::{Cell, DatasetName, NameError};

/// How a record's cell is computed from its columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum CellRule {
    /// Every record has cell 0.
    Single,
    /// Sky pixel of a position in degrees.
    Sky {
        /// Right ascension column, float64 or float32, degrees.
        ra: String,
        /// Declination column, float64 or float32, degrees.
        dec: String,
        /// `mq3c`, `q3c`, `htm` or `healpix` (nested).
        scheme: String,
        /// Subdivision level of the scheme.
        level: u8,
    },
    /// The column's own integer value: a tag number.
    Value {
        /// An integer column.
        column: String,
    },
    /// `floor(value / size)`: each range of `size` consecutive ids shares a cell.
    IdBucket {
        /// An integer column.
        column: String,
        /// Ids in one id bucket.
        size: u64,
    },
    /// Hash of the columns' values, cut to `buckets` cells (all 2^63 where `None`).
    Hash {
        /// Integer, bool, utf8 or binary columns.
        columns: Vec<String>,
        /// Number of cells.
        buckets: Option<u32>,
    },
}

impl CellRule {
    /// The columns the cell is computed from.
    pub fn columns(&self) -> Vec<&str> {
        match self {
            Self::Single => vec![],
            Self::Sky { ra, dec, .. } => vec![ra, dec],
            Self::Value { column } | Self::IdBucket { column, .. } => vec![column],
            Self::Hash { columns, .. } => columns.iter().map(String::as_str).collect(),
        }
    }
}

/// Which of several rows with the same id a read returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "merge", rename_all = "lowercase")]
pub enum MergeRule {
    /// Records never change. A read returns one row per id: of duplicates, the one written last.
    Append,
    /// Records have versions. A read returns the newest per id, by the version column if there is one, then by write time, then by
    /// batch.
    Latest {
        /// A column that orders versions: integer, float, timestamp or date. Null is older than any value.
        version: Option<String>,
    },
}

/// How an engine stores a dataset's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageLayout {
    /// Blocks of encoded columns: compact and fast, but readable only by Chronotile.
    #[default]
    Chunks,
    /// One table row per record, with columns in the engine's native types, so that other tools can read it.
    Rows,
}

impl StorageLayout {
    // By reference: serde calls it.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl std::str::FromStr for StorageLayout {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "chunks" => Ok(Self::Chunks),
            "rows" => Ok(Self::Rows),
            other => Err(SpecError::Limit {
                setting: "layout",
                value: format!("{other:?}"),
                expected: "use \"chunks\" or \"rows\"",
            }),
        }
    }
}

/// The definition of a dataset, stored in the archive's catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// Its name.
    pub name: DatasetName,
    /// The columns of the dataset: an Arrow schema in normalized form.
    #[serde(serialize_with = "write_schema", deserialize_with = "read_schema")]
    pub schema: SchemaRef,
    /// Column count of every schema version: version `k` has the first `schema_versions[k]` columns.
    pub schema_versions: Vec<u32>,
    /// How a record's cell is computed from its columns. Fixed at creation.
    pub cell: CellRule,
    /// The time axis. Fixed at creation.
    pub time: TimeSpec,
    /// Length of a window. Fixed at creation.
    pub window: Duration,
    /// Number of consecutive windows in a slice. Fixed at creation.
    pub windows_per_slice: u32,
    /// Columns that identify a record. If empty, each row of each batch is a separate record. Fixed at creation.
    pub id: Vec<String>,
    /// Which of several rows with the same id a read returns. Fixed at creation.
    pub merge: MergeRule,
    /// Age at which `retire` drops slices. May change.
    pub retention: Option<Duration>,
    /// The indexes. May change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexSpec>,
    /// How the engine stores the records. Fixed at creation.
    #[serde(default, skip_serializing_if = "StorageLayout::is_default")]
    pub layout: StorageLayout,
    /// Number of neighbouring cells that share a partition, in engines with partitions: cell `c` belongs to partition
    /// `floor(c / partition_cells)`. Fixed at creation.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub partition_cells: u32,
    /// Text columns with text filters, by which a substring search skips chunks. Fixed at creation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub text: Vec<String>,
    /// Maximum distance between two versions of a record, in degrees, for merge `latest` and cells that are sky pixels. A read of a
    /// region searches for newer versions within this distance around it. May change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moves_deg: f64,
    /// Its group, if any. Fixed at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Membership>,
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

// By reference: serde calls it.
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// Limit of `moves_deg`, in degrees.
pub const MOVES_DEG_MAX: f64 = 10.0;

/// Maximum number of cells in a partition.
pub const PARTITION_CELLS_MAX: u32 = 256;

/// An index on a combination of columns: which values occur in which tile, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexSpec {
    /// Its name; unique in its dataset.
    pub name: String,
    /// Its id in the catalog, 16 hexadecimal digits. An index that is dropped and created again gets a new id.
    pub id: String,
    /// The columns, in the order given.
    pub columns: Vec<String>,
}

/// Maximum number of columns in an index.
pub const INDEX_COLUMNS_MAX: usize = 16;
/// Maximum number of indexes of a dataset.
pub const INDEXES_MAX: usize = 64;

/// A dataset definition that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The schema is invalid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The time axis is invalid.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// A column is not in the schema.
    #[error("{role} column {column:?} is not in the schema{hint}")]
    NoColumn {
        /// The use of the column.
        role: &'static str,
        /// The missing column.
        column: String,
        /// Similar columns and the known columns; begins with a semicolon.
        hint: String,
    },
    /// A column's type does not fit its use.
    #[error("{role} column {column:?} has type {data_type}: use {expected}")]
    ColumnType {
        /// The use of the column.
        role: &'static str,
        /// The column.
        column: String,
        /// Its Arrow type.
        data_type: String,
        /// Types that fit.
        expected: &'static str,
    },
    /// An index with this name exists.
    #[error("index {name} exists already, on {columns}: use it, choose another name, or drop it first")]
    IndexExists {
        /// Its name.
        name: String,
        /// Its columns.
        columns: String,
    },
    /// A setting is outside its limits.
    #[error("{setting} is {value}: {expected}")]
    Limit {
        /// The setting.
        setting: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
}

impl DatasetSpec {
    /// A dataset with one cell, no id columns, no retention and slices of one window. Set other fields with update syntax:
    /// `DatasetSpec { id, ..DatasetSpec::new(name, schema, time, window) }`.
    #[must_use]
    pub fn new(name: DatasetName, schema: SchemaRef, time: TimeSpec, window: Duration) -> Self {
        Self {
            name,
            schema,
            schema_versions: vec![],
            cell: CellRule::Single,
            time,
            window,
            windows_per_slice: 1,
            id: vec![],
            merge: MergeRule::Append,
            retention: None,
            indexes: vec![],
            layout: StorageLayout::Chunks,
            partition_cells: one(),
            text: vec![],
            moves_deg: 0.0,
            group: None,
        }
    }

    /// Checks names, types and limits, but not the pixelization. Returns the spec with its schema normalized.
    pub fn checked(mut self) -> Result<Self, SpecError> {
        self.schema = normalize_schema(&self.schema)?;
        if self.schema_versions.is_empty() {
            self.schema_versions = vec![self.schema.fields().len() as u32];
        }
        self.check_time()?;
        self.check_cell()?;
        self.check_layout()?;
        self.check_text()?;
        self.check_moves()?;
        for column in &self.id {
            self.check_type(
                "id",
                column,
                is_id,
                "an integer, bool, utf8, binary, date, time, timestamp or fixed-size binary column",
            )?;
        }
        if let MergeRule::Latest { version } = &self.merge {
            if self.id.is_empty() {
                let expected = "name the id columns, or use merge append";
                return Err(SpecError::Limit {
                    setting: "merge",
                    value: "latest without id columns".to_owned(),
                    expected,
                });
            }
            if let Some(column) = version {
                self.check_type("version", column, is_version, "an integer, float, date or timestamp column")?;
            }
        }
        Ok(self)
    }

    /// Checks a new index against the columns and the other indexes.
    ///
    /// # Errors
    /// The name is taken or invalid, a column is missing, repeated or not comparable, or there are too many columns or indexes.
    pub fn check_index(&self, index: &IndexSpec) -> Result<(), SpecError> {
        let limit = |setting, value: String, expected| Err(SpecError::Limit { setting, value, expected });
        if DatasetName::new(index.name.as_str()).is_err() {
            let expected = "give 1 to 48 characters of a-z, 0-9 and _, beginning with a letter";
            return limit("index name", format!("{:?}", index.name), expected);
        }
        if let Some(other) = self.indexes.iter().find(|other| other.name == index.name) {
            return Err(SpecError::IndexExists { name: other.name.clone(), columns: other.columns.join(", ") });
        }
        if !(1..=INDEX_COLUMNS_MAX).contains(&index.columns.len()) {
            return limit("number of index columns", index.columns.len().to_string(), "name 1 to 16 columns");
        }
        if self.indexes.len() >= INDEXES_MAX {
            return limit("number of indexes", (self.indexes.len() + 1).to_string(), "a dataset has at most 64");
        }
        for (place, column) in index.columns.iter().enumerate() {
            if index.columns[..place].contains(column) {
                return limit("index columns", format!("{column:?} twice"), "name each column once");
            }
            self.check_type("index", column, |t| !t.is_nested(), "a column of a plain type, not a list or struct")?;
        }
        Ok(())
    }

    fn check_time(&self) -> Result<(), SpecError> {
        let data_type = self.column_type("time", &self.time.column)?;
        self.time.check_column(data_type)?;
        if TimeSpec::ticks_of(data_type, self.window).is_none() {
            let expected = "a whole number of the time column's units (whole days for date32)";
            return Err(SpecError::Limit { setting: "window", value: self.window.to_string(), expected });
        }
        if !(1..=100_000).contains(&self.windows_per_slice) {
            let value = self.windows_per_slice.to_string();
            return Err(SpecError::Limit { setting: "windows per slice", value, expected: "use 1 to 100000" });
        }
        Ok(())
    }

    fn check_cell(&self) -> Result<(), SpecError> {
        match &self.cell {
            CellRule::Single => Ok(()),
            CellRule::Sky { ra, dec, .. } => {
                self.check_type("ra", ra, is_float, "float64 or float32 degrees")?;
                self.check_type("dec", dec, is_float, "float64 or float32 degrees")
            }
            CellRule::Value { column } => {
                self.check_type("cell", column, is_integer, "an integer column, or ct.hash for text")
            }
            CellRule::IdBucket { column, size } => {
                if !(1..=1_000_000_000).contains(size) {
                    let expected = "use 1 to 1000000000 ids";
                    return Err(SpecError::Limit { setting: "id bucket size", value: size.to_string(), expected });
                }
                self.check_type("cell", column, is_integer, "an integer column")
            }
            CellRule::Hash { columns, buckets } => {
                if columns.is_empty() || *buckets == Some(0) {
                    let value = format!("{} columns, {buckets:?} buckets", columns.len());
                    return Err(SpecError::Limit {
                        setting: "hash",
                        value,
                        expected: "name a column and at least one bucket",
                    });
                }
                columns.iter().try_for_each(|c| {
                    self.check_type("hash", c, is_hashable, "an integer, bool, utf8 or binary column")
                })
            }
        }
    }

    /// The partition of a cell.
    pub fn partition_of(&self, cell: Cell) -> i64 {
        // `checked` refuses 0. For a definition that was not checked, `max` avoids a division by zero.
        cell.0.div_euclid(self.partition_cells.max(1).into())
    }

    /// Checks the limits of the layout. Only layout `rows` restricts columns.
    pub fn check_layout(&self) -> Result<(), SpecError> {
        let most = match self.layout {
            StorageLayout::Chunks => PARTITION_CELLS_MAX,
            StorageLayout::Rows => 1,
        };
        if !(1..=most).contains(&self.partition_cells) {
            return Err(SpecError::Limit {
                setting: "partition_cells",
                value: self.partition_cells.to_string(),
                expected: "use 1 to 256; with layout rows 1",
            });
        }
        if self.layout != StorageLayout::Rows {
            return Ok(());
        }
        for field in self.schema.fields() {
            let refuse = |expected| {
                let data_type = field.data_type().to_string();
                Err(SpecError::ColumnType { role: "layout rows:", column: field.name().clone(), data_type, expected })
            };
            if field.name().starts_with(ROWS_PREFIX) || field.name().is_empty() {
                return refuse("another name: names that begin with ct_ are the layout's own, and none may be empty");
            }
            let mut scales = std::collections::BTreeSet::new();
            decimal_scales(field.data_type(), &mut scales);
            if scales.len() > 1 || scales.first().is_some_and(|scale| *scale < 0) {
                return refuse("decimals of one scale, which is not negative, or layout chunks");
            }
        }
        Ok(())
    }

    /// Checks that `moves_deg` is within its limits, and 0 for datasets whose records cannot move.
    pub fn check_moves(&self) -> Result<(), SpecError> {
        let limit = |expected| Err(SpecError::Limit { setting: "moves", value: self.moves_deg.to_string(), expected });
        if !(0.0..=MOVES_DEG_MAX).contains(&self.moves_deg) {
            return limit("give an angle of 0 to 10 degrees");
        }
        let has_place = matches!(self.cell, CellRule::Sky { .. });
        if self.moves_deg > 0.0 && !(has_place && matches!(self.merge, MergeRule::Latest { .. })) {
            return limit("only records with versions move: use merge latest and sky pixels as cells");
        }
        Ok(())
    }

    fn check_text(&self) -> Result<(), SpecError> {
        for (place, column) in self.text.iter().enumerate() {
            if self.text[..place].contains(column) {
                let value = format!("{column:?} twice");
                return Err(SpecError::Limit { setting: "text", value, expected: "name each column once" });
            }
            self.check_type("text", column, |t| *t == DataType::Utf8, "a utf8 column")?;
        }
        Ok(())
    }

    fn check_type(
        &self,
        role: &'static str,
        column: &str,
        fits: fn(&DataType) -> bool,
        expected: &'static str,
    ) -> Result<(), SpecError> {
        let data_type = self.column_type(role, column)?;
        if fits(data_type) {
            return Ok(());
        }
        Err(SpecError::ColumnType { role, column: column.to_owned(), data_type: data_type.to_string(), expected })
    }

    fn column_type(&self, role: &'static str, column: &str) -> Result<&DataType, SpecError> {
        match self.schema.field_with_name(column) {
            Ok(field) => Ok(field.data_type()),
            Err(_) => {
                Err(SpecError::NoColumn { role, column: column.to_owned(), hint: column_hint(column, &self.schema) })
            }
        }
    }

    /// Arrow type of the time column.
    pub fn time_type(&self) -> &DataType {
        // `checked` proved that the column is there; a spec from the catalog was checked when it was stored.
        self.schema.field_with_name(&self.time.column).map_or(&DataType::Null, |field| field.data_type())
    }

    /// The newest schema version, with which chunks are written.
    pub fn schema_version(&self) -> u32 {
        // `checked` ensures that there is a version.
        self.schema_versions.len() as u32 - 1
    }

    /// Number of columns in schema version `version`; `None` for a version newer than this spec.
    pub fn columns_in(&self, version: u32) -> Option<usize> {
        self.schema_versions.get(version as usize).map(|count| *count as usize)
    }
}

/// Prefix of the names of columns that layout [`StorageLayout::Rows`] adds.
pub const ROWS_PREFIX: &str = "ct_";

/// Collects the scales of the decimals in a type and its children.
fn decimal_scales(data_type: &DataType, scales: &mut std::collections::BTreeSet<i8>) {
    match data_type {
        DataType::Decimal128(_, scale) => {
            scales.insert(*scale);
        }
        DataType::List(item) => decimal_scales(item.data_type(), scales),
        DataType::Struct(fields) => fields.iter().for_each(|field| decimal_scales(field.data_type(), scales)),
        _ => {}
    }
}

/// The end of a message about a column that is not in the schema.
fn column_hint(column: &str, schema: &Schema) -> String {
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    name_hint(column, &names)
}

fn is_float(t: &DataType) -> bool {
    matches!(t, DataType::Float32 | DataType::Float64)
}

fn is_integer(t: &DataType) -> bool {
    t.is_integer()
}

fn is_hashable(t: &DataType) -> bool {
    t.is_integer() || matches!(t, DataType::Boolean | DataType::Utf8 | DataType::Binary)
}

fn is_id(t: &DataType) -> bool {
    use DataType::*;
    is_hashable(t) || matches!(t, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(_, _) | FixedSizeBinary(_))
}

fn is_version(t: &DataType) -> bool {
    t.is_integer() || is_float(t) || matches!(t, DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _))
}

fn write_schema<S: Serializer>(schema: &SchemaRef, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&schema_to_base64(schema))
}

fn read_schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SchemaRef, D::Error> {
    let text = String::deserialize(deserializer)?;
    schema_from_base64(&text).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{TimeFormat, TimeScale};
    use crate::{SliceId, Window};
    use arrow_schema::Field;
    use std::sync::Arc;

    pub(super) fn spec() -> DatasetSpec {
        let field = |name: &str, t| Field::new(name, t, true);
        let schema = Schema::new(vec![
            field("ra", DataType::Float64),
            field("dec", DataType::Float64),
            field("jd", DataType::Float64),
            field("candid", DataType::Int64),
            field("name", DataType::Utf8),
        ]);
        let time = TimeSpec { column: "jd".into(), format: TimeFormat::Jd, scale: TimeScale::Utc };
        let name = DatasetName::new("detections").unwrap();
        DatasetSpec {
            cell: CellRule::Sky { ra: "ra".into(), dec: "dec".into(), scheme: "mq3c".into(), level: 10 },
            id: vec!["candid".into()],
            ..DatasetSpec::new(name, Arc::new(schema), time, "30d".parse().unwrap())
        }
    }

    #[test]
    fn a_spec_survives_json() {
        let spec = spec().checked().unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<DatasetSpec>(&text).unwrap(), spec);
        // Definitions stored before layouts existed have layout chunks.
        assert!(!text.contains("layout") && !text.contains("\"text\"") && !text.contains("partition_cells"));
        assert!(!text.contains("moves"));
        let moving = DatasetSpec { moves_deg: 0.5, ..spec.clone() };
        assert_eq!(serde_json::from_str::<DatasetSpec>(&serde_json::to_string(&moving).unwrap()).unwrap(), moving);
        let grouped = DatasetSpec { partition_cells: 16, ..spec.clone() };
        let text = serde_json::to_string(&grouped).unwrap();
        assert_eq!(serde_json::from_str::<DatasetSpec>(&text).unwrap(), grouped);
        let rows = DatasetSpec { layout: StorageLayout::Rows, ..spec };
        let text = serde_json::to_string(&rows).unwrap();
        assert!(text.contains("\"layout\":\"rows\""));
        assert_eq!(serde_json::from_str::<DatasetSpec>(&text).unwrap(), rows);
    }

    #[test]
    fn cells_are_computed_from_the_columns_that_a_rule_names() {
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(CellRule::Single.columns().is_empty());
        assert_eq!(spec().cell.columns(), ["ra", "dec"]);
        assert_eq!(CellRule::Value { column: "a".into() }.columns(), ["a"]);
        assert_eq!(CellRule::IdBucket { column: "a".into(), size: 2 }.columns(), ["a"]);
        assert_eq!(CellRule::Hash { columns: text(&["a", "b"]), buckets: None }.columns(), ["a", "b"]);
    }

    #[test]
    fn layouts_have_the_names_of_the_stored_definition() {
        for layout in [StorageLayout::Chunks, StorageLayout::Rows] {
            let stored = serde_json::to_string(&layout).unwrap();
            assert_eq!(stored.trim_matches('"').parse(), Ok(layout));
        }
        let error = "row".parse::<StorageLayout>().unwrap_err();
        assert!(error.to_string().contains("use \"chunks\" or \"rows\""), "{error}");
    }

    #[test]
    fn layout_rows_refuses_unsupported_columns_by_name() {
        let with = |name: &str, data_type: DataType| {
            let mut spec = DatasetSpec { layout: StorageLayout::Rows, ..spec() };
            let mut fields: Vec<Field> = spec.schema.fields().iter().map(|field| field.as_ref().clone()).collect();
            fields.push(Field::new(name, data_type, true));
            spec.schema = Arc::new(Schema::new(fields));
            spec.checked()
        };
        let decimals = |scales: [i8; 2]| {
            let fields = scales.map(|scale| Field::new(format!("s{scale}"), DataType::Decimal128(20, scale), true));
            DataType::Struct(fields.to_vec().into())
        };
        for scale in [0, 2] {
            assert!(with("price", DataType::Decimal128(20, scale)).is_ok());
        }
        for (name, data_type) in [
            ("ct_row", DataType::Int32),
            ("", DataType::Int32),
            ("tens", DataType::Decimal128(20, -1)),
            ("mixed", decimals([2, 3])),
            ("list", DataType::new_list(decimals([2, 3]), true)),
        ] {
            let message = with(name, data_type).unwrap_err().to_string();
            assert!(message.contains(&format!("layout rows: column {name:?}")), "{message}");
        }
    }

    #[test]
    fn wrong_columns_are_named() {
        let wrong = |change: fn(&mut DatasetSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.checked().unwrap_err().to_string()
        };
        assert!(wrong(|s| s.id = vec!["nope".into()]).contains("\"nope\""));
        assert!(wrong(|s| s.id = vec!["candidate".into()]).contains("did you mean candid?"));
        assert!(wrong(|s| s.time.column = "name".into()).contains("mjd or jd"));
        assert!(wrong(|s| s.cell = CellRule::Value { column: "name".into() }).contains("ct.hash"));
        assert!(wrong(|s| s.text = vec!["candid".into()]).contains("text column \"candid\""));
        assert!(wrong(|s| s.text = vec!["name".into(), "name".into()]).contains("each column once"));
        assert!(wrong(|s| s.windows_per_slice = 0).contains("1 to 100000"));
        assert!(wrong(|s| (s.id, s.merge) = (vec![], MergeRule::Latest { version: None })).contains("id columns"));
    }

    /// Whether a definition passes the checks after a change.
    fn taken(change: impl FnOnce(&mut DatasetSpec)) -> bool {
        let mut spec = spec();
        change(&mut spec);
        spec.checked().is_ok()
    }

    #[test]
    fn limits_hold_at_their_bounds_and_not_before() {
        for (size, good) in [(0, false), (1, true), (1_000_000_000, true), (1_000_000_001, false)] {
            let rule = CellRule::IdBucket { column: "candid".into(), size };
            assert_eq!(taken(|s| s.cell = rule), good, "id buckets of {size}");
        }
        for (count, good) in [(0, false), (1, true), (100_000, true), (100_001, false)] {
            assert_eq!(taken(|s| s.windows_per_slice = count), good, "{count} windows in a slice");
        }
        for (cells, good) in [(0, false), (1, true), (256, true), (257, false)] {
            assert_eq!(taken(|s| s.partition_cells = cells), good, "{cells} cells in a partition");
        }
        for cells in [2, 256] {
            assert!(!taken(|s| (s.layout, s.partition_cells) = (StorageLayout::Rows, cells)));
        }
        assert!(taken(|s| (s.layout, s.partition_cells) = (StorageLayout::Rows, 1)));
        let hash = |columns: &[&str], buckets| {
            let columns = columns.iter().map(|name| (*name).to_owned()).collect();
            taken(|s| s.cell = CellRule::Hash { columns, buckets })
        };
        assert!(hash(&["name"], None) && hash(&["name", "candid"], Some(1)));
        assert!(!hash(&[], None) && !hash(&["name"], Some(0)) && !hash(&["name", "jd"], None));
    }

    #[test]
    fn only_versions_of_records_with_a_place_move() {
        let latest = || MergeRule::Latest { version: None };
        for (angle, good) in
            [(0.0, true), (1e-9, true), (10.0, true), (10.001, false), (-0.001, false), (f64::NAN, false)]
        {
            assert_eq!(taken(|s| (s.merge, s.moves_deg) = (latest(), angle)), good, "{angle}");
        }
        assert!(!taken(|s| s.moves_deg = 0.5), "merge append keeps no versions");
        assert!(!taken(|s| (s.merge, s.moves_deg, s.cell) = (latest(), 0.5, CellRule::Single)));
        assert!(taken(|s| (s.merge, s.moves_deg, s.cell) = (latest(), 0.0, CellRule::Single)));
    }

    #[test]
    fn each_part_takes_the_types_that_it_can_use() {
        use arrow_schema::TimeUnit::Microsecond;
        let with = |data_type: DataType, change: fn(&mut DatasetSpec)| {
            taken(|s| {
                let mut fields: Vec<Field> = s.schema.fields().iter().map(|field| field.as_ref().clone()).collect();
                fields.push(Field::new("x", data_type, true));
                s.schema = Arc::new(Schema::new(fields));
                change(s);
            })
        };
        type Change = fn(&mut DatasetSpec);
        let id: Change = |s| s.id = vec!["candid".into(), "x".into()];
        let version: Change = |s| s.merge = MergeRule::Latest { version: Some("x".into()) };
        let place: Change = |s| {
            let (scheme, level) = ("mq3c".into(), 10);
            s.cell = CellRule::Sky { ra: "ra".into(), dec: "x".into(), scheme, level };
        };
        let value: Change = |s| s.cell = CellRule::Value { column: "x".into() };
        let hash: Change = |s| s.cell = CellRule::Hash { columns: vec!["x".into()], buckets: None };
        let text: Change = |s| s.text = vec!["x".into()];
        let moment = DataType::Timestamp(Microsecond, None);
        for (data_type, wanted) in [
            (DataType::Int16, [true, true, false, true, true, false]),
            (DataType::UInt64, [true, true, false, true, true, false]),
            (DataType::Float32, [false, true, true, false, false, false]),
            (DataType::Float64, [false, true, true, false, false, false]),
            (DataType::Boolean, [true, false, false, false, true, false]),
            (DataType::Utf8, [true, false, false, false, true, true]),
            (DataType::Binary, [true, false, false, false, true, false]),
            (DataType::Date32, [true, true, false, false, false, false]),
            (DataType::Time64(Microsecond), [true, false, false, false, false, false]),
            (moment, [true, true, false, false, false, false]),
            (DataType::FixedSizeBinary(4), [true, false, false, false, false, false]),
            (DataType::Duration(Microsecond), [false; 6]),
        ] {
            let found = [id, version, place, value, hash, text].map(|change| with(data_type.clone(), change));
            assert_eq!(found, wanted, "{data_type}: id, version, place, value, hash, text");
        }
    }

    #[test]
    fn indexes_have_a_name_of_their_own_and_1_to_16_plain_columns() {
        let mut spec = spec().checked().unwrap();
        let index = |name: &str, columns: &[&str]| IndexSpec {
            name: name.to_owned(),
            id: format!("{:016x}", 7),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        };
        assert_eq!(spec.check_index(&index("by_name", &["name", "candid"])), Ok(()));
        for wrong in [
            index("By name", &["name"]),
            index("by_name", &[]),
            index("by_name", &["nope"]),
            index("by_name", &["name", "name"]),
            index("by_name", &["name", "candid", "name"]),
        ] {
            assert!(spec.check_index(&wrong).is_err(), "{wrong:?}");
        }
        let mut fields: Vec<Field> = spec.schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        fields.extend((0..17).map(|number| Field::new(format!("c{number}"), DataType::Int64, true)));
        fields.push(Field::new("list", DataType::new_list(DataType::Int64, true), true));
        spec.schema = Arc::new(Schema::new(fields));
        let many: Vec<String> = (0..17).map(|number| format!("c{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(spec.check_index(&index("wide", &many[..16])).is_ok());
        assert!(spec.check_index(&index("wide", &many)).is_err());
        assert!(spec.check_index(&index("deep", &["list"])).is_err());
        spec.indexes = (0..63).map(|number| index(&format!("i{number}"), &["name"])).collect();
        assert!(spec.check_index(&index("i62", &["name"])).is_err(), "the name is taken");
        assert!(spec.check_index(&index("last", &["name"])).is_ok());
        spec.indexes.push(index("last", &["name"]));
        let message = spec.check_index(&index("more", &["name"])).unwrap_err().to_string();
        assert!(message.contains("65") && message.contains("at most 64"), "{message}");
    }

    #[test]
    fn cells_of_a_partition_are_neighbours_on_both_sides_of_zero() {
        let spec = DatasetSpec { partition_cells: 4, ..spec() }.checked().unwrap();
        for (cell, partition) in [(-5, -2), (-4, -1), (-1, -1), (0, 0), (3, 0), (4, 1), (i64::MAX, i64::MAX / 4)] {
            assert_eq!(spec.partition_of(Cell(cell)), partition);
        }
        assert_eq!((spec.schema_version(), spec.columns_in(0), spec.columns_in(1)), (0, Some(5), None));
        let grown = DatasetSpec { schema_versions: vec![3, 5], ..spec.clone() };
        assert_eq!((grown.schema_version(), grown.columns_in(0), grown.columns_in(1)), (1, Some(3), Some(5)));
        assert_eq!(spec.time_type(), &DataType::Float64);
        let width = spec.window_ticks();
        assert_eq!(width, 30 * 86_400_000_000, "days count microseconds");
        assert_eq!(spec.window_of(width - 1), Some(Window(0)));
        assert_eq!(spec.window_of(i64::MAX).map(|window| i64::from(window.0)), Some(i64::MAX / width));
        let start = i64::from(i32::MAX).saturating_mul(width);
        assert_eq!(spec.slice_ticks(SliceId(i32::MAX)), (start, start.saturating_add(width)));
    }
}
