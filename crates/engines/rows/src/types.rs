//! The CQL types of columns.

use std::fmt::Write as _;

use arrow_schema::{DataType, TimeUnit};
use chronotile_cql::scylla::frame::response::result::{CollectionType, ColumnType, NativeType};
use chronotile_tables::{DecimalAs, Mapping, VarintAs};

/// Maximum number of digits in a 128-bit decimal.
const DECIMAL_DIGITS: u8 = 38;

/// The CQL type of a column; `None` for a type that a dataset cannot have.
///
/// The mapping of values is one to one, within the limits that `values` checks. Durations, and times finer than CQL's
/// milliseconds, are stored as integers in their unit.
pub(crate) fn cql_type(data_type: &DataType) -> Option<ColumnType<'static>> {
    use NativeType as N;
    let native = match data_type {
        DataType::Boolean => N::Boolean,
        DataType::Int8 => N::TinyInt,
        DataType::Int16 | DataType::UInt8 => N::SmallInt,
        DataType::Int32 | DataType::UInt16 => N::Int,
        DataType::Int64 | DataType::UInt32 | DataType::Duration(_) => N::BigInt,
        DataType::UInt64 => N::Varint,
        DataType::Float32 => N::Float,
        DataType::Float64 => N::Double,
        DataType::Utf8 => N::Text,
        DataType::Binary | DataType::FixedSizeBinary(_) => N::Blob,
        DataType::Date32 => N::Date,
        DataType::Date64 | DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, _) => N::Timestamp,
        DataType::Timestamp(TimeUnit::Microsecond | TimeUnit::Nanosecond, _) => N::BigInt,
        DataType::Time32(_) | DataType::Time64(_) => N::Time,
        DataType::Decimal128(_, _) => N::Decimal,
        DataType::List(item) => {
            let typ = CollectionType::List(Box::new(cql_type(item.data_type())?));
            return Some(ColumnType::Collection { frozen: true, typ });
        }
        DataType::Struct(fields) => {
            let types = fields.iter().map(|field| cql_type(field.data_type()));
            return Some(ColumnType::Tuple(types.collect::<Option<_>>()?));
        }
        _ => return None,
    };
    Some(ColumnType::Native(native))
}

/// The CQL text of a type that `cql_type` returned.
pub(crate) fn cql_text(cql: &ColumnType<'_>) -> String {
    match cql {
        ColumnType::Native(native) => native_text(native).to_owned(),
        ColumnType::Collection { typ: CollectionType::List(item), .. } => format!("frozen<list<{}>>", cql_text(item)),
        ColumnType::Tuple(types) => {
            let mut text = String::from("frozen<tuple<");
            for (place, cql) in types.iter().enumerate() {
                let comma = if place > 0 { ", " } else { "" };
                // Writing to a string does not fail.
                let _ = write!(text, "{comma}{}", cql_text(cql));
            }
            text + ">>"
        }
        other => format!("{other:?}"),
    }
}

fn native_text(native: &NativeType) -> &'static str {
    use NativeType as N;
    match native {
        N::Boolean => "boolean",
        N::TinyInt => "tinyint",
        N::SmallInt => "smallint",
        N::Int => "int",
        N::BigInt => "bigint",
        N::Varint => "varint",
        N::Float => "float",
        N::Double => "double",
        N::Text => "text",
        N::Blob => "blob",
        N::Date => "date",
        N::Timestamp => "timestamp",
        N::Time => "time",
        // The only remaining type that `cql_type` returns.
        _ => "decimal",
    }
}

/// The lossless mapping of a column: decimals with their scale, integers of any size as decimals.
pub(crate) fn mapping(data_type: &DataType) -> Mapping {
    let decimal = match scale_of(data_type) {
        Some(scale) => DecimalAs::Number { precision: DECIMAL_DIGITS, scale },
        None => DecimalAs::Text,
    };
    Mapping { decimal, varint: VarintAs::Decimal, ..Mapping::default() }
}

/// The scale of a column's decimals, including its children's: with layout rows, a column has only one scale.
fn scale_of(data_type: &DataType) -> Option<u8> {
    match data_type {
        DataType::Decimal128(_, scale) => u8::try_from(*scale).ok(),
        DataType::List(item) => scale_of(item.data_type()),
        DataType::Struct(fields) => fields.iter().find_map(|field| scale_of(field.data_type())),
        _ => None,
    }
}

/// A quoted CQL name.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::Field;

    use super::*;

    #[test]
    fn nested_types_are_frozen_lists_and_tuples() {
        let field = |data_type| Field::new("x", data_type, true);
        let inner = DataType::Struct(vec![field(DataType::UInt64), field(DataType::Utf8)].into());
        let list = DataType::List(Arc::new(field(inner)));
        assert_eq!(cql_text(&cql_type(&list).unwrap()), "frozen<list<frozen<tuple<varint, text>>>>");
        assert_eq!(cql_type(&DataType::Float16), None);
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
