//! Which Arrow type each CQL type is read as.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit};
use chronotile_cql::scylla::frame::response::result::{CollectionType, ColumnType, NativeType};

use crate::error::{Result, TablesError};

/// Digits that a 256-bit decimal holds.
pub const DECIMAL256_DIGITS: u8 = 76;
/// Digits that a 128-bit decimal holds.
pub const DECIMAL128_DIGITS: u8 = 38;

/// What values of the four types that have no one Arrow counterpart are read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// `decimal`.
    pub decimal: DecimalAs,
    /// `varint`.
    pub varint: VarintAs,
    /// `uuid` and `timeuuid`.
    pub uuid: UuidAs,
    /// `duration`.
    pub duration: DurationAs,
}

/// What a `decimal`, whose scale differs from value to value, is read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecimalAs {
    /// Text with every digit, as `1.50`. Loses nothing.
    #[default]
    Text,
    /// Numbers of at most `precision` digits, `scale` of them after the point. A value that needs more of either is an
    /// error; nothing is ever rounded.
    Number {
        /// Digits in all, 1 to 76.
        precision: u8,
        /// Digits after the point, 0 to `precision`.
        scale: u8,
    },
}

/// What a `varint`, which has no largest value, is read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VarintAs {
    /// Decimal digits as text. Loses nothing.
    #[default]
    Text,
    /// Whole numbers of 64 bits; a larger value is an error.
    Int64,
    /// Whole numbers of 76 digits; a larger value is an error.
    Decimal,
}

/// What a `uuid` or `timeuuid` is read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UuidAs {
    /// 16 bytes, marked with Arrow's canonical extension type `arrow.uuid`.
    #[default]
    Bytes,
    /// The usual 36 characters.
    Text,
}

/// What a `duration` is read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DurationAs {
    /// Months, days and nanoseconds, as Arrow's interval has them.
    #[default]
    Interval,
    /// CQL's own notation, `-1mo2d3ns`, for libraries and files that have no intervals.
    Text,
}

impl Mapping {
    /// Refuses a precision or scale that no decimal has.
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
    /// [`TablesError::UnknownType`] for a type of a later protocol.
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
                // A scale is at most 76 here, which `check` has seen to.
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
