//! Values for a statement's markers, and their serialization in the markers' types.

use std::net::IpAddr;

use chronotile_cql::scylla::frame::response::result::{CollectionType, ColumnSpec, ColumnType, NativeType};
use chronotile_cql::scylla::serialize::SerializationError;
use chronotile_cql::scylla::serialize::row::{RowSerializationContext, SerializeRow};
use chronotile_cql::scylla::serialize::writers::RowWriter;

use crate::error::{Result, TablesError};

/// A value given by a caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer: big-endian two's complement of any length.
    Int(Vec<u8>),
    /// A floating-point number.
    Float(f64),
    /// `unscaled * 10^-scale`, with `unscaled` as in [`Value::Int`].
    Decimal {
        /// The digits.
        unscaled: Vec<u8>,
        /// Number of digits after the point.
        scale: i32,
    },
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A UUID.
    Uuid([u8; 16]),
    /// An IP address.
    Address(IpAddr),
    /// Milliseconds since 1970-01-01T00:00:00Z.
    Timestamp(i64),
    /// Days since 1970-01-01.
    Date(i32),
    /// Nanoseconds since midnight.
    Time(i64),
    /// A duration. Its three parts cannot be converted into each other.
    Duration {
        /// Months.
        months: i32,
        /// Days.
        days: i32,
        /// Nanoseconds.
        nanoseconds: i64,
    },
    /// A list, set, tuple or vector.
    Sequence(Vec<Value>),
    /// A map, or a user-defined type if the keys are text.
    Pairs(Vec<(Value, Value)>),
}

/// Values for a statement's markers.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameters {
    /// One per marker, in order.
    ByPlace(Vec<Value>),
    /// By marker name; the name of a `?` is that of its column.
    ByName(Vec<(String, Value)>),
}

impl Parameters {
    /// No values.
    pub fn none() -> Self {
        Self::ByPlace(vec![])
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::ByPlace(values) => values.is_empty(),
            Self::ByName(values) => values.is_empty(),
        }
    }

    /// Serializes the values for a statement with these markers.
    ///
    /// # Errors
    /// [`TablesError::Parameter`] names the marker; [`TablesError::Request`] if the number or the names differ.
    pub fn bind(&self, markers: &[ColumnSpec<'_>]) -> Result<Bound> {
        let values = match self {
            Self::ByPlace(values) if values.len() == markers.len() => values.iter().collect::<Vec<_>>(),
            Self::ByPlace(values) => {
                let (found, wanted) = (values.len(), markers.len());
                let reason = format!("the number of values ({found}) differs from the number of markers ({wanted})");
                return Err(TablesError::Request { reason });
            }
            Self::ByName(values) => by_name(values, markers)?,
        };
        let cell = |(place, (value, marker)): (usize, (&Value, &ColumnSpec<'_>))| {
            let mut bytes = vec![];
            match write(value, marker.typ(), &mut bytes) {
                Ok(true) => Ok(Some(bytes)),
                Ok(false) => Ok(None),
                Err(reason) => {
                    Err(TablesError::Parameter { name: format!("{} ({})", place + 1, marker.name()), reason })
                }
            }
        };
        let cells = values.into_iter().zip(markers).enumerate().map(cell);
        Ok(Bound { cells: cells.collect::<Result<_>>()? })
    }
}

fn by_name<'a>(values: &'a [(String, Value)], markers: &[ColumnSpec<'_>]) -> Result<Vec<&'a Value>> {
    let names = || markers.iter().map(ColumnSpec::name).collect::<Vec<_>>().join(", ");
    if let Some((name, _)) = values.iter().find(|(name, _)| markers.iter().all(|marker| marker.name() != name)) {
        let reason = format!("the statement has no marker {name:?}; it has: {}", names());
        return Err(TablesError::Request { reason });
    }
    let value_of = |marker: &ColumnSpec<'_>| {
        let found = values.iter().find(|(name, _)| name == marker.name());
        found.map(|(_, value)| value).ok_or_else(|| TablesError::Request {
            reason: format!("no value is given for marker {:?}; the statement has: {}", marker.name(), names()),
        })
    };
    markers.iter().map(value_of).collect()
}

/// Serialized values. None is a null.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    cells: Vec<Option<Vec<u8>>>,
}

impl Bound {
    /// The values' bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.cells.iter().map(Option::as_deref)
    }

    /// Appends values of type `bigint`.
    pub(crate) fn with_bigints(mut self, numbers: &[i64]) -> Self {
        self.cells.extend(numbers.iter().map(|number| Some(number.to_be_bytes().to_vec())));
        self
    }
}

impl SerializeRow for Bound {
    fn serialize(
        &self,
        _: &RowSerializationContext<'_>,
        writer: &mut RowWriter,
    ) -> std::result::Result<(), SerializationError> {
        for cell in &self.cells {
            let place = writer.make_cell_writer();
            match cell {
                None => place.set_null(),
                Some(bytes) => place.set_value(bytes).map_err(SerializationError::new)?,
            };
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

type Refusal<T> = std::result::Result<T, String>;

/// Appends a value's bytes without their length. Returns false for a null, which has none.
fn write(value: &Value, cql: &ColumnType<'_>, out: &mut Vec<u8>) -> Refusal<bool> {
    if *value == Value::Null {
        return Ok(false);
    }
    match (cql, value) {
        (ColumnType::Native(native), _) => write_native(value, native, out)?,
        (
            ColumnType::Collection { typ: CollectionType::List(element) | CollectionType::Set(element), .. },
            Value::Sequence(values),
        ) => {
            out.extend(length(values.len())?);
            for value in values {
                element_of(value, element, "element", out)?;
            }
        }
        (ColumnType::Collection { typ: CollectionType::Map(key, mapped), .. }, Value::Pairs(pairs)) => {
            out.extend(length(pairs.len())?);
            for (name, value) in pairs {
                element_of(name, key, "key", out)?;
                element_of(value, mapped, "value", out)?;
            }
        }
        (ColumnType::Vector { typ, dimensions }, Value::Sequence(values)) => {
            if values.len() != usize::from(*dimensions) {
                return Err(format!("expected a vector of {dimensions} elements, got {}", values.len()));
            }
            for value in values {
                vector_element(value, typ, out)?;
            }
        }
        (ColumnType::Tuple(types), Value::Sequence(values)) => {
            if values.len() > types.len() {
                return Err(format!("{} values for a tuple of {}", values.len(), types.len()));
            }
            for (value, cql) in values.iter().zip(types) {
                field_of(value, cql, out)?;
            }
        }
        (ColumnType::UserDefinedType { definition, .. }, Value::Pairs(pairs)) => {
            let known =
                |key: &Value| definition.field_types.iter().any(|(name, _)| *key == Value::Text(name.to_string()));
            if let Some((key, _)) = pairs.iter().find(|(key, _)| !known(key)) {
                let names = definition.field_types.iter().map(|(name, _)| name.as_ref()).collect::<Vec<_>>();
                return Err(format!(
                    "{key:?} is not a field of type {}, which has {}",
                    definition.name,
                    names.join(", ")
                ));
            }
            for (name, cql) in &definition.field_types {
                let found = pairs.iter().find(|(key, _)| *key == Value::Text(name.to_string()));
                field_of(found.map_or(&Value::Null, |(_, value)| value), cql, out)
                    .map_err(|reason| format!("field {name}: {reason}"))?;
            }
        }
        _ => return Err(mismatch(value, &wanted(cql))),
    }
    Ok(true)
}

/// Appends a value after its length. Nulls are refused.
fn element_of(value: &Value, cql: &ColumnType<'_>, what: &str, out: &mut Vec<u8>) -> Refusal<()> {
    if *value == Value::Null {
        return Err(format!("CQL collections cannot hold a null {what}"));
    }
    field_of(value, cql, out)
}

/// Appends a value after its length, or the length that marks a null.
fn field_of(value: &Value, cql: &ColumnType<'_>, out: &mut Vec<u8>) -> Refusal<()> {
    let start = out.len();
    out.extend((-1_i32).to_be_bytes());
    if write(value, cql, out)? {
        let bytes = length(out.len() - start - 4)?;
        out[start..start + 4].copy_from_slice(&bytes);
    }
    Ok(())
}

fn vector_element(value: &Value, cql: &ColumnType<'_>, out: &mut Vec<u8>) -> Refusal<()> {
    let mut bytes = vec![];
    if !write(value, cql, &mut bytes)? {
        return Err("CQL vectors cannot hold a null element".to_owned());
    }
    if cql.type_size_for_vector().is_none() {
        write_unsigned(bytes.len() as u64, out);
    }
    out.extend(bytes);
    Ok(())
}

fn length(count: usize) -> Refusal<[u8; 4]> {
    i32::try_from(count).map(i32::to_be_bytes).map_err(|_| "the value exceeds 2 GiB".to_owned())
}

fn write_native(value: &Value, native: &NativeType, out: &mut Vec<u8>) -> Refusal<()> {
    use NativeType as N;
    use Value as V;
    match (native, value) {
        (N::Ascii, V::Text(text)) if !text.is_ascii() => return Err(format!("{text:?} is not ASCII")),
        (N::Ascii | N::Text, V::Text(text)) => out.extend(text.as_bytes()),
        (N::Blob, V::Bytes(bytes)) => out.extend(bytes),
        (N::Boolean, V::Bool(flag)) => out.push(u8::from(*flag)),
        (N::TinyInt, V::Int(number)) => out.extend(fixed::<1>(number, "tinyint")?),
        (N::SmallInt, V::Int(number)) => out.extend(fixed::<2>(number, "smallint")?),
        (N::Int, V::Int(number)) => out.extend(fixed::<4>(number, "int")?),
        (N::BigInt, V::Int(number)) => out.extend(fixed::<8>(number, "bigint")?),
        (N::Counter, V::Int(number)) => out.extend(fixed::<8>(number, "counter")?),
        (N::Timestamp, V::Int(number)) => out.extend(fixed::<8>(number, "timestamp (milliseconds)")?),
        (N::Varint, V::Int(number)) => out.extend(shortest(number)),
        (N::Decimal, V::Int(number)) => {
            out.extend(0_i32.to_be_bytes());
            out.extend(shortest(number));
        }
        (N::Decimal, V::Decimal { unscaled, scale }) => {
            out.extend(scale.to_be_bytes());
            out.extend(shortest(unscaled));
        }
        (N::Double, V::Float(number)) => out.extend(number.to_be_bytes()),
        (N::Double, V::Int(number)) => out.extend(whole_float(number, 53)?.to_be_bytes()),
        (N::Float, V::Float(number)) => out.extend((*number as f32).to_be_bytes()),
        (N::Float, V::Int(number)) => out.extend((whole_float(number, 24)? as f32).to_be_bytes()),
        (N::Date, V::Date(days)) => out.extend((*days as u32 ^ 0x8000_0000).to_be_bytes()),
        (N::Time, V::Time(nanoseconds)) => out.extend(nanoseconds.to_be_bytes()),
        (N::Timestamp, V::Timestamp(milliseconds)) => out.extend(milliseconds.to_be_bytes()),
        (N::Duration, V::Duration { months, days, nanoseconds }) => {
            for part in [i64::from(*months), i64::from(*days), *nanoseconds] {
                // Zigzag: the sign becomes the lowest bit, so that small negative numbers are short, too.
                write_unsigned((part << 1 ^ part >> 63) as u64, out);
            }
        }
        (N::Duration, V::Sequence(parts)) => write_native(&duration_of(parts)?, native, out)?,
        (N::Inet, V::Address(IpAddr::V4(address))) => out.extend(address.octets()),
        (N::Inet, V::Address(IpAddr::V6(address))) => out.extend(address.octets()),
        (N::Inet, V::Text(text)) => {
            let address = text.parse().map_err(|_| format!("invalid IP address {text:?}"))?;
            write_native(&V::Address(address), native, out)?;
        }
        (N::Uuid | N::Timeuuid, V::Uuid(bytes)) => out.extend(bytes),
        (N::Uuid | N::Timeuuid, V::Text(text)) => {
            out.extend(uuid(text).ok_or_else(|| format!("invalid UUID {text:?}"))?)
        }
        _ => return Err(mismatch(value, native_name(native))),
    }
    Ok(())
}

/// A duration given as its three parts.
fn duration_of(parts: &[Value]) -> Refusal<Value> {
    let wanted = || native_name(&NativeType::Duration).to_owned();
    let [Value::Int(months), Value::Int(days), Value::Int(nanoseconds)] = parts else { return Err(wanted()) };
    Ok(Value::Duration {
        months: i32::from_be_bytes(fixed(months, "its months")?),
        days: i32::from_be_bytes(fixed(days, "its days")?),
        nanoseconds: i64::from_be_bytes(fixed(nanoseconds, "its nanoseconds")?),
    })
}

/// The number in exactly `N` bytes, if it fits.
fn fixed<const N: usize>(number: &[u8], name: &str) -> Refusal<[u8; N]> {
    let short = shortest(number);
    let filler = if short[0] & 0x80 != 0 { 0xff } else { 0 };
    let mut bytes = [filler; N];
    let start = N.checked_sub(short.len()).ok_or_else(|| format!("the number does not fit {name}"))?;
    bytes[start..].copy_from_slice(short);
    Ok(bytes)
}

/// Two's complement without redundant sign bytes; at least one byte.
fn shortest(number: &[u8]) -> &[u8] {
    let mut rest = if number.is_empty() { &[0][..] } else { number };
    while let [first, second, ..] = rest {
        let repeats = (*first == 0 && second & 0x80 == 0) || (*first == 0xff && second & 0x80 != 0);
        if !repeats {
            break;
        }
        rest = &rest[1..];
    }
    rest
}

/// An integer as a float; refused if a precision of `bits` cannot represent it exactly.
fn whole_float(number: &[u8], bits: u32) -> Refusal<f64> {
    let refuse = || "the whole number has more digits than the type holds: give a float".to_owned();
    let number = i64::from_be_bytes(fixed::<8>(number, "a float").map_err(|_| refuse())?);
    // Up to 2^bits every whole number is exact.
    if number.unsigned_abs() > 1 << bits { Err(refuse()) } else { Ok(number as f64) }
}

/// Appends an integer in one to nine bytes: the leading ones of the first byte count the bytes that follow it.
fn write_unsigned(number: u64, out: &mut Vec<u8>) {
    // Zero has one bit here, so that it takes one byte.
    let bits = 64 - (number | 1).leading_zeros();
    // Each byte adds seven bits, the ninth one eight.
    let more = if bits > 56 { 8 } else { (bits as usize - 1) / 7 };
    let bytes = number.to_be_bytes();
    if more == 8 {
        out.push(0xff);
    } else {
        // The leading ones and the number's own bits do not overlap.
        out.push(bytes[7 - more] | !(0xff_u8 >> more));
    }
    out.extend(&bytes[8 - more..]);
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.split('-').collect();
    let shape = text.len() == 36 && text.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    if !shape || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

fn mismatch(value: &Value, wanted: &str) -> String {
    let given = match value {
        Value::Null => "a null",
        Value::Bool(_) => "a boolean",
        Value::Int(_) => "a whole number",
        Value::Float(_) => "a float",
        Value::Decimal { .. } => "a decimal",
        Value::Text(_) => "text",
        Value::Bytes(_) => "bytes",
        Value::Uuid(_) => "a UUID",
        Value::Address(_) => "an address",
        Value::Timestamp(_) => "a date with time",
        Value::Date(_) => "a date",
        Value::Time(_) => "a time of day",
        Value::Duration { .. } => "a duration",
        Value::Sequence(_) => "a sequence",
        Value::Pairs(_) => "a mapping",
    };
    format!("{given} was given for {wanted}")
}

fn wanted(cql: &ColumnType<'_>) -> String {
    match cql {
        ColumnType::Native(native) => native_name(native).to_owned(),
        ColumnType::Collection { typ: CollectionType::List(_), .. } => "a list: give a sequence".to_owned(),
        ColumnType::Collection { typ: CollectionType::Set(_), .. } => "a set: give a set or sequence".to_owned(),
        ColumnType::Collection { .. } => "a map: give a mapping".to_owned(),
        ColumnType::Vector { dimensions, .. } => format!("a vector: give a sequence of {dimensions}"),
        ColumnType::Tuple(types) => format!("a tuple: give a sequence of {}", types.len()),
        ColumnType::UserDefinedType { definition, .. } => {
            format!("the type {}: give a mapping of its fields", definition.name)
        }
        other => format!("{other:?}, which cannot be written"),
    }
}

fn native_name(native: &NativeType) -> &'static str {
    use NativeType as N;
    match native {
        N::Ascii => "ascii",
        N::Boolean => "boolean",
        N::Blob => "blob: give bytes",
        N::Counter => "counter: give a whole number",
        N::Date => "date: give a date without time",
        N::Decimal => "decimal: give a decimal or whole number",
        N::Double => "double: give a number",
        N::Duration => "duration: give a timedelta, or (months, days, nanoseconds)",
        N::Float => "float: give a number",
        N::Int => "int: give a whole number",
        N::BigInt => "bigint: give a whole number",
        N::Text => "text",
        N::Timestamp => "timestamp: give a date with time, or milliseconds since 1970",
        N::Inet => "inet: give an address",
        N::SmallInt => "smallint: give a whole number",
        N::TinyInt => "tinyint: give a whole number",
        N::Time => "time: give a time of day",
        N::Timeuuid => "timeuuid: give a UUID",
        N::Uuid => "uuid: give a UUID",
        N::Varint => "varint: give a whole number",
        _ => "a type that cannot be written",
    }
}
