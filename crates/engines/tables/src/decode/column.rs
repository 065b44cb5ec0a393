//! Chooses the builder for each CQL type and Arrow field.

use arrow_array::types::{
    Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64NanosecondType, TimestampMillisecondType,
};
use arrow_buffer::{IntervalMonthDayNano, i256};
use arrow_schema::Field;
use chronotile_cql::scylla::frame::response::result::{CollectionType, ColumnType, NativeType};

use super::nested::{Lists, Maps, Structs, Vectors};
use super::number;
use super::plain::{self, Binary, Booleans, Fixed, Text, Uuids, Variable};
use super::{BoxedBuilder, Fault};
use crate::types::{DECIMAL128_DIGITS, DECIMAL256_DIGITS, DecimalAs, DurationAs, Mapping, UuidAs, VarintAs};

/// The builder for a CQL type that is read as `field`, with capacity for `rows` values.
pub(super) fn builder(
    cql: &ColumnType<'_>,
    field: &Field,
    mapping: Mapping,
    rows: usize,
) -> Result<BoxedBuilder, Fault> {
    use arrow_schema::DataType as D;
    Ok(match (cql, field.data_type()) {
        (ColumnType::Native(native), _) => native_builder(native, field, mapping, rows)?,
        (
            ColumnType::Collection { typ: CollectionType::List(element) | CollectionType::Set(element), .. },
            D::List(item),
        ) => Box::new(Lists::new(item.clone(), builder(element, item, mapping, rows)?, rows)),
        (ColumnType::Collection { typ: CollectionType::Map(key, value), .. }, D::Map(entries, _)) => {
            let D::Struct(fields) = entries.data_type() else { return Err(no_builder(cql)) };
            let keys = builder(key, &fields[0], mapping, rows)?;
            let values = builder(value, &fields[1], mapping, rows)?;
            Box::new(Maps::new(entries.clone(), keys, values, rows))
        }
        (ColumnType::Vector { typ, dimensions }, D::FixedSizeList(item, _)) => {
            let width = usize::from(*dimensions);
            // No capacity is reserved: most of a page may be nulls.
            let items = builder(typ, item, mapping, 0)?;
            Box::new(Vectors::new(item.clone(), items, width, typ.type_size_for_vector(), rows))
        }
        (ColumnType::Tuple(types), D::Struct(fields)) => {
            let children = types.iter().zip(fields).map(|(cql, field)| builder(cql, field, mapping, rows));
            Box::new(Structs::new(fields.clone(), children.collect::<Result<_, _>>()?, rows))
        }
        (ColumnType::UserDefinedType { definition, .. }, D::Struct(fields)) => {
            let types = definition.field_types.iter().zip(fields);
            let children = types.map(|((_, cql), field)| builder(cql, field, mapping, rows));
            Box::new(Structs::new(fields.clone(), children.collect::<Result<_, _>>()?, rows))
        }
        _ => return Err(no_builder(cql)),
    })
}

fn no_builder(cql: &impl std::fmt::Debug) -> Fault {
    Fault::malformed(format!("{cql:?} has no reader"))
}

fn native_builder(native: &NativeType, field: &Field, mapping: Mapping, rows: usize) -> Result<BoxedBuilder, Fault> {
    use NativeType as N;
    let kind = || field.data_type().clone();
    Ok(match native {
        N::Ascii | N::Text => Box::new(Text::new(rows, false, plain::write_text)),
        N::Inet => Box::new(Text::new(rows, true, plain::write_address)),
        N::Blob => Box::new(Binary::new(rows)),
        N::Boolean => Box::new(Booleans::new(rows)),
        N::TinyInt => Box::new(Fixed::<Int8Type, 1, _>::new(kind(), rows, i8::from_be_bytes)),
        N::SmallInt => Box::new(Fixed::<Int16Type, 2, _>::new(kind(), rows, i16::from_be_bytes)),
        N::Int => Box::new(Fixed::<Int32Type, 4, _>::new(kind(), rows, i32::from_be_bytes)),
        N::BigInt | N::Counter => Box::new(Fixed::<Int64Type, 8, _>::new(kind(), rows, i64::from_be_bytes)),
        N::Float => Box::new(Fixed::<Float32Type, 4, _>::new(kind(), rows, f32::from_be_bytes)),
        N::Double => Box::new(Fixed::<Float64Type, 8, _>::new(kind(), rows, f64::from_be_bytes)),
        // Day 2^31 is 1 January 1970: date32 covers all CQL dates.
        N::Date => Box::new(Fixed::<Date32Type, 4, _>::new(kind(), rows, |bytes| {
            (u32::from_be_bytes(bytes) ^ 0x8000_0000) as i32
        })),
        N::Time => Box::new(Fixed::<Time64NanosecondType, 8, _>::new(kind(), rows, i64::from_be_bytes)),
        N::Timestamp => Box::new(Fixed::<TimestampMillisecondType, 8, _>::new(kind(), rows, i64::from_be_bytes)),
        N::Uuid | N::Timeuuid => match mapping.uuid {
            UuidAs::Bytes => Box::new(Uuids::new(rows)),
            UuidAs::Text => Box::new(Text::new(rows, true, plain::write_uuid)),
        },
        N::Duration => match mapping.duration {
            DurationAs::Interval => {
                let zero = IntervalMonthDayNano::new(0, 0, 0);
                Box::new(Variable::<IntervalMonthDayNanoType, _>::new(kind(), rows, zero, plain::duration))
            }
            DurationAs::Text => Box::new(Text::new(rows, true, plain::write_duration)),
        },
        N::Varint => varint_builder(field, mapping, rows),
        N::Decimal => decimal_builder(field, mapping, rows),
        other => return Err(no_builder(other)),
    })
}

fn varint_builder(field: &Field, mapping: Mapping, rows: usize) -> BoxedBuilder {
    let kind = field.data_type().clone();
    let too_large = |bytes: &[u8], wide: &str| {
        let mut shown = vec![];
        number::write_integer(bytes, &mut shown);
        Fault::range(format!("{} does not fit {wide}: read varint as text", String::from_utf8_lossy(&shown)))
    };
    match mapping.varint {
        VarintAs::Text => Box::new(Text::new(rows, true, |bytes, text| {
            number::write_integer(bytes, text);
            Ok(())
        })),
        VarintAs::Int64 => Box::new(Variable::<Int64Type, _>::new(kind, rows, 0, move |bytes| {
            number::to_i64(bytes).ok_or_else(|| too_large(bytes, "int64"))
        })),
        VarintAs::Decimal => Box::new(Variable::<Decimal256Type, _>::new(kind, rows, i256::ZERO, move |bytes| {
            let number = number::to_i256(bytes).filter(|number| number::fits(*number, DECIMAL256_DIGITS));
            number.ok_or_else(|| too_large(bytes, "76 digits"))
        })),
    }
}

fn decimal_builder(field: &Field, mapping: Mapping, rows: usize) -> BoxedBuilder {
    let kind = field.data_type().clone();
    match mapping.decimal {
        DecimalAs::Text => Box::new(Text::new(rows, true, number::write_decimal)),
        DecimalAs::Number { precision, scale } if precision <= DECIMAL128_DIGITS => {
            Box::new(Variable::<Decimal128Type, _>::new(kind, rows, 0, move |bytes| {
                // 38 digits fit into 128 bits.
                Ok(number::rescale(bytes, precision, scale)?.as_i128())
            }))
        }
        DecimalAs::Number { precision, scale } => {
            Box::new(Variable::<Decimal256Type, _>::new(kind, rows, i256::ZERO, move |bytes| {
                number::rescale(bytes, precision, scale)
            }))
        }
    }
}
