//! Schemas of datasets: normalization, limits, and their stored text.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The columns of a dataset with layout `rows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeColumns {
    /// Every column, in order. New columns are added at the end.
    pub schema: SchemaRef,
    /// Column count of every schema version: version `k` has the first `versions[k]` columns.
    pub versions: Vec<u32>,
}

impl Default for NativeColumns {
    fn default() -> Self {
        Self { schema: Arc::new(Schema::empty()), versions: Vec::new() }
    }
}

impl NativeColumns {
    /// Whether `self` and `other` can belong to the same dataset, before and after columns were added.
    pub fn extends_or_precedes(&self, other: &Self) -> bool {
        let same_fields = self.schema.fields().iter().zip(other.schema.fields()).all(|(a, b)| a == b);
        same_fields && self.versions.iter().zip(&other.versions).all(|(a, b)| a == b)
    }
}

/// A schema that a dataset cannot have, or stored schema text that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A column's type is not part of the chunk format.
    #[error("column {column:?} has type {data_type}, which cannot be stored: {hint}")]
    Unsupported {
        /// Path of the column, children joined with a dot.
        column: String,
        /// The Arrow type.
        data_type: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// Two columns share a name.
    #[error("column {0:?} appears twice in the schema: rename one")]
    Duplicate(String),
    /// A column's name is reserved.
    #[error("column {0:?} begins with two underscores, which is reserved: rename it")]
    Reserved(String),
    /// A schema without columns.
    #[error("the schema has no columns")]
    Empty,
    /// More than [`COLUMNS_MAX`] columns.
    #[error("the schema has {0} columns; 10000 is the limit")]
    TooMany(usize),
    /// The stored text is not a schema.
    #[error("the stored schema cannot be read: {0}")]
    Unreadable(String),
}

/// Maximum number of columns in a dataset.
pub const COLUMNS_MAX: usize = 10_000;

/// The schema that a dataset stores for `schema`: large and view types become the plain types, dictionaries become their value
/// type, metadata is kept. Types outside the chunk format are refused with the name of the column.
pub fn normalize_schema(schema: &Schema) -> Result<SchemaRef, SchemaError> {
    if schema.fields().is_empty() {
        return Err(SchemaError::Empty);
    }
    if schema.fields().len() > COLUMNS_MAX {
        return Err(SchemaError::TooMany(schema.fields().len()));
    }
    let mut seen = HashSet::new();
    for field in schema.fields() {
        if !seen.insert(field.name().as_str()) {
            return Err(SchemaError::Duplicate(field.name().clone()));
        }
        if field.name().starts_with("__") {
            return Err(SchemaError::Reserved(field.name().clone()));
        }
    }
    let fields = schema.fields().iter().map(|f| normalize_field(f, f.name())).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

fn normalize_field(field: &Field, path: &str) -> Result<FieldRef, SchemaError> {
    let data_type = normalize_type(field.data_type(), path)?;
    Ok(Arc::new(Field::new(field.name(), data_type, field.is_nullable()).with_metadata(field.metadata().clone())))
}

fn normalize_type(data_type: &DataType, path: &str) -> Result<DataType, SchemaError> {
    use DataType::*;
    let refuse =
        |hint| Err(SchemaError::Unsupported { column: path.to_owned(), data_type: data_type.to_string(), hint });
    match data_type {
        Boolean
        | Int8
        | Int16
        | Int32
        | Int64
        | UInt8
        | UInt16
        | UInt32
        | UInt64
        | Float32
        | Float64
        | Date32
        | Date64
        | Time32(_)
        | Time64(_)
        | Timestamp(_, _)
        | Duration(_)
        | Decimal128(_, _)
        | Utf8
        | Binary => Ok(data_type.clone()),
        LargeUtf8 | Utf8View => Ok(Utf8),
        LargeBinary | BinaryView => Ok(Binary),
        FixedSizeBinary(size) if *size > 0 => Ok(data_type.clone()),
        FixedSizeBinary(_) => refuse("give it a positive size"),
        Dictionary(_, values) => normalize_type(values, path),
        List(item) | LargeList(item) | ListView(item) | LargeListView(item) => {
            Ok(List(normalize_field(item, &format!("{path}.{}", item.name()))?))
        }
        Struct(fields) if fields.is_empty() => refuse("give the struct at least one field"),
        Struct(fields) => {
            let child = |f: &FieldRef| normalize_field(f, &format!("{path}.{}", f.name()));
            Ok(Struct(fields.iter().map(child).collect::<Result<Vec<_>, _>>()?.into()))
        }
        FixedSizeList(_, _) => refuse("cast it to a list"),
        Decimal32(_, _) | Decimal64(_, _) | Decimal256(_, _) => refuse("cast it to decimal128"),
        Float16 => refuse("cast it to float32"),
        Null => refuse("give the column a type"),
        Map(_, _) => refuse("cast it to a list of structs"),
        Interval(_) | Union(_, _) | RunEndEncoded(_, _) => refuse("cast it to a plain type"),
    }
}

/// The schema as stored in the catalog: an Arrow IPC schema message in base64, which every Arrow library can read.
pub fn schema_to_base64(schema: &Schema) -> String {
    let mut tracker = arrow_ipc::writer::DictionaryTracker::new(false);
    let generator = arrow_ipc::writer::IpcDataGenerator::default();
    let encoded = generator.schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &IpcWriteOptions::default());
    let mut message = Vec::new();
    // Writing to a vector cannot fail. The reader below would refuse an empty message.
    let written = arrow_ipc::writer::write_message(&mut message, encoded, &IpcWriteOptions::default());
    debug_assert!(written.is_ok());
    BASE64.encode(message)
}

/// Reads what [`schema_to_base64`] wrote.
pub fn schema_from_base64(text: &str) -> Result<SchemaRef, SchemaError> {
    let unreadable = |e: &dyn std::fmt::Display| SchemaError::Unreadable(e.to_string());
    let message = BASE64.decode(text).map_err(|e| unreadable(&e))?;
    try_schema_from_ipc_buffer(&message).map(Arc::new).map_err(|e| unreadable(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::TimeUnit;

    #[test]
    fn stored_schema_text_gives_the_same_schema_back() {
        let schema = Schema::new(vec![
            Field::new("t", DataType::Timestamp(TimeUnit::Nanosecond, Some("Europe/Paris".into())), false),
            Field::new("tags", DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))), true)
                .with_metadata([("unit".to_owned(), "deg".to_owned())].into()),
        ]);
        assert_eq!(schema_from_base64(&schema_to_base64(&schema)).unwrap().as_ref(), &schema);
        assert!(schema_from_base64("AAAA").is_err());
    }

    #[test]
    fn columns_are_only_ever_added_at_the_end() {
        let columns = |names: &[&str], versions: &[u32]| {
            let fields: Vec<_> = names.iter().map(|name| Field::new(*name, DataType::Int8, true)).collect();
            NativeColumns { schema: Arc::new(Schema::new(fields)), versions: versions.to_vec() }
        };
        let now = columns(&["a", "b"], &[1, 2]);
        for (other, fits) in [
            (columns(&["a", "b"], &[1, 2]), true),
            (columns(&["a"], &[1]), true),
            (columns(&["a", "b", "c"], &[1, 2, 3]), true),
            (columns(&["b", "a"], &[1, 2]), false),
            (columns(&["a", "x"], &[1, 2]), false),
            (columns(&["a", "b"], &[2]), false),
            (columns(&["x", "b"], &[2, 2]), false),
            (NativeColumns::default(), true),
        ] {
            assert_eq!((now.extends_or_precedes(&other), other.extends_or_precedes(&now)), (fits, fits), "{other:?}");
        }
    }

    #[test]
    fn a_schema_has_1_to_10000_columns() {
        for (count, good) in [(0, false), (1, true), (10_000, true), (10_001, false)] {
            let fields: Vec<_> = (0..count).map(|n| Field::new(format!("c{n}"), DataType::Int8, true)).collect();
            assert_eq!(normalize_schema(&Schema::new(fields)).is_ok(), good, "{count}");
        }
    }

    #[test]
    fn values_of_a_fixed_size_have_at_least_one_byte_and_structs_one_field() {
        let stored = |data_type: DataType| normalize_schema(&Schema::new(vec![Field::new("x", data_type, true)]));
        let field = Arc::new(Field::new("a", DataType::LargeUtf8, true));
        assert!(stored(DataType::FixedSizeBinary(1)).is_ok());
        assert!(stored(DataType::Struct(vec![field].into())).is_ok());
        for (refused, hint) in [
            (DataType::FixedSizeBinary(0), "give it a positive size"),
            (DataType::FixedSizeBinary(-1), "give it a positive size"),
            (DataType::Struct(arrow_schema::Fields::empty()), "give the struct at least one field"),
        ] {
            let message = stored(refused).unwrap_err().to_string();
            assert!(message.contains("column \"x\"") && message.contains(hint), "{message}");
        }
    }

    #[test]
    fn unsupported_types_are_refused_by_column_name() {
        let inner = Field::new("half", DataType::Float16, true);
        let schema = Schema::new(vec![Field::new("outer", DataType::Struct(vec![inner].into()), true)]);
        let message = normalize_schema(&schema).unwrap_err().to_string();
        assert!(message.contains("\"outer.half\"") && message.contains("float32"), "{message}");
    }

    #[test]
    fn dictionaries_and_large_types_become_plain() {
        let key = Box::new(DataType::Int32);
        let schema = Schema::new(vec![
            Field::new("band", DataType::Dictionary(key, Box::new(DataType::LargeUtf8)), true),
            Field::new("raw", DataType::BinaryView, true),
        ]);
        let plain = normalize_schema(&schema).unwrap();
        assert_eq!(plain.field(0).data_type(), &DataType::Utf8);
        assert_eq!(plain.field(1).data_type(), &DataType::Binary);
    }
}
