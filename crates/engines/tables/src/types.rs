//! The Arrow types of CQL types.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit};
use chronotile_cql::scylla::frame::response::result::{CollectionType, ColumnType, NativeType};

use crate::error::{Result, TablesError};

/// Maximum number of digits in a 256-bit decimal.
pub const DECIMAL256_DIGITS: u8 = 76;
/// Maximum number of digits in a 128-bit decimal.
pub const DECIMAL128_DIGITS: u8 = 38;

/// The Arrow types of the CQL types that have no single Arrow equivalent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Type for `decimal`.
    pub decimal: DecimalAs,
    /// Type for `varint`.
    pub varint: VarintAs,
    /// Type for `uuid` and `timeuuid`.
    pub uuid: UuidAs,
    /// Type for `duration`.
    pub duration: DurationAs,
}

/// The Arrow type of a `decimal`, whose values each have their own scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecimalAs {
    /// Text with every digit, as `1.50`. Lossless.
    #[default]
    Text,
    /// Decimals of at most `precision` digits, `scale` of them after the point. A value with more digits is an error; values are
    /// never rounded.
    Number {
        /// Total digits, 1 to 76.
        precision: u8,
        /// Digits after the point, 0 to `precision`.
        scale: u8,
    },
}

/// The Arrow type of a `varint`, an integer of any size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VarintAs {
    /// Decimal digits as text. Lossless.
    #[default]
    Text,
    /// Integers of 64 bits; a larger value is an error.
    Int64,
    /// Decimals of 76 digits with scale 0; a larger value is an error.
    Decimal,
}

/// The Arrow type of a `uuid` or `timeuuid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UuidAs {
    /// 16 bytes, marked with Arrow's canonical extension type `arrow.uuid`.
    #[default]
    Bytes,
    /// The usual 36 characters.
    Text,
}

/// The Arrow type of a `duration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DurationAs {
    /// Arrow's interval of months, days and nanoseconds.
    #[default]
    Interval,
    /// CQL's notation, `-1mo2d3ns`, for libraries and file formats without intervals.
    Text,
}

impl Mapping {
    /// Checks that a decimal can have the precision and scale.
    ///
    /// # Errors
    /// [`TablesError::Request`].
    pub fn check(&self) -> Result<()> {
        match self.decimal {
            DecimalAs::Number { precision, scale }
                if precision == 0 || precision > DECIMAL256_DIGITS || scale > precision =>
            {
                Err(TablesError::Request {
                    reason: format!(
                        "decimal({precision}, {scale}) is not a decimal type: give a precision from 1 to \
                         {DECIMAL256_DIGITS} and a scale from 0 to the precision"
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// The Arrow field for a column of a CQL type.
    ///
    /// # Errors
    /// [`TablesError::UnknownType`] for a type that only a later protocol has.
    pub fn field(&self, name: &str, cql: &ColumnType<'_>) -> Result<Field> {
        self.nullable(name, cql, true)
    }

    fn nullable(&self, name: &str, cql: &ColumnType<'_>, nullable: bool) -> Result<Field> {
        let field = Field::new(name, self.data_type(name, cql)?, nullable);
        let is_uuid = matches!(cql, ColumnType::Native(NativeType::Uuid | NativeType::Timeuuid));
        if !is_uuid || self.uuid != UuidAs::Bytes {
            return Ok(field);
        }
        let mark = (EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.uuid".to_owned());
        Ok(field.with_metadata(HashMap::from([mark])))
    }

    fn data_type(&self, name: &str, cql: &ColumnType<'_>) -> Result<DataType> {
        let item = |element: &ColumnType<'_>| -> Result<FieldRef> { Ok(Arc::new(self.field("item", element)?)) };
        Ok(match cql {
            ColumnType::Native(native) => self.native(name, native)?,
            ColumnType::Collection { typ: CollectionType::List(element) | CollectionType::Set(element), .. } => {
                DataType::List(item(element)?)
            }
            ColumnType::Collection { typ: CollectionType::Map(key, value), .. } => {
                let entries = vec![self.nullable("keys", key, false)?, self.field("values", value)?];
                let entries = Field::new("entries", DataType::Struct(entries.into()), false);
                DataType::Map(Arc::new(entries), false)
            }
            ColumnType::Vector { typ, dimensions } => DataType::FixedSizeList(item(typ)?, i32::from(*dimensions)),
            ColumnType::Tuple(elements) => {
                let fields = elements.iter().enumerate().map(|(i, cql)| self.field(&i.to_string(), cql));
                DataType::Struct(fields.collect::<Result<Fields>>()?)
            }
            ColumnType::UserDefinedType { definition, .. } => {
                let fields = definition.field_types.iter().map(|(name, cql)| self.field(name, cql));
                DataType::Struct(fields.collect::<Result<Fields>>()?)
            }
            other => return Err(unknown(name, other)),
        })
    }

    fn native(&self, name: &str, native: &NativeType) -> Result<DataType> {
        use NativeType as N;
        Ok(match native {
            N::Ascii | N::Text | N::Inet => DataType::Utf8,
            N::Blob => DataType::Binary,
            N::Boolean => DataType::Boolean,
            N::TinyInt => DataType::Int8,
            N::SmallInt => DataType::Int16,
            N::Int => DataType::Int32,
            N::BigInt | N::Counter => DataType::Int64,
            N::Float => DataType::Float32,
            N::Double => DataType::Float64,
            N::Date => DataType::Date32,
            N::Time => DataType::Time64(TimeUnit::Nanosecond),
            N::Timestamp => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            N::Duration => match self.duration {
                DurationAs::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
                DurationAs::Text => DataType::Utf8,
            },
            N::Uuid | N::Timeuuid => match self.uuid {
                UuidAs::Bytes => DataType::FixedSizeBinary(16),
                UuidAs::Text => DataType::Utf8,
            },
            N::Varint => match self.varint {
                VarintAs::Text => DataType::Utf8,
                VarintAs::Int64 => DataType::Int64,
                VarintAs::Decimal => DataType::Decimal256(DECIMAL256_DIGITS, 0),
            },
            N::Decimal => match self.decimal {
                DecimalAs::Text => DataType::Utf8,
                // `check` has ensured that the scale is at most 76.
                DecimalAs::Number { precision, scale } if precision <= DECIMAL128_DIGITS => {
                    DataType::Decimal128(precision, scale as i8)
                }
                DecimalAs::Number { precision, scale } => DataType::Decimal256(precision, scale as i8),
            },
            other => return Err(unknown(name, other)),
        })
    }
}

fn unknown(name: &str, cql: &impl std::fmt::Debug) -> TablesError {
    TablesError::UnknownType { column: name.to_owned(), cql: format!("{cql:?}") }
}
