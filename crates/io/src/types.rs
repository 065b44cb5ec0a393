//! Names of data types, as accepted by `--types` and printed in messages.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};

use crate::error::{IoError, Result};

/// Maximum nesting of types, so that no text can overflow the stack.
const DEPTH_MAX: usize = 32;

/// Parses the name of a data type.
///
/// Accepts the output of [`format_type`], the spelling of pyarrow (`timestamp[us, tz=UTC]`, `date32[day]`, `string`,
/// `double`, `halffloat`, `fixed_size_binary[16]`, `dictionary<values=string, indices=int32>`), the spelling of Arrow's
/// `Display` for simple types (`Int64`, `Utf8`) and common aliases (`int` = int64, `float` and `double` = float64,
/// `str`, `string`, `text` = utf8, `boolean`, `date`, `bytes`, `datetime` = `timestamp[us]`). Names are
/// case-insensitive, except for time zones. In pyarrow `float` has 32 bits; here, as in Python, it has 64: write
/// `float32`.
///
/// # Errors
/// [`IoError::UnknownType`] with the list of names.
pub fn parse_type(text: &str) -> Result<DataType> {
    parse_at(text.trim(), 0).map_err(|detail| IoError::UnknownType { text: text.to_owned(), detail })
}

fn parse_at(text: &str, depth: usize) -> Result<DataType, String> {
    if depth > DEPTH_MAX {
        return Err(": it is nested too deeply".to_owned());
    }
    let text = text.trim();
    let Some(open) = text.find(['[', '(', '<']) else {
        return simple(text);
    };
    let head = text[..open].trim().to_ascii_lowercase();
    // pyarrow prints the size of a fixed-size list after it: fixed_size_list<item: float>[3].
    if let ("fixed_size_list", Some((list, size))) =
        (head.as_str(), text.strip_suffix(']').and_then(|t| t.rsplit_once('[')))
    {
        let item = list.trim_end().strip_suffix('>').and_then(|list| list.get(open + 1..));
        let item = item.ok_or_else(|| ": '>' is missing at its end".to_owned())?;
        return Ok(DataType::FixedSizeList(item_field(item, depth)?, count(size)?));
    }
    let close = match text.as_bytes()[open] {
        b'[' => ']',
        b'(' => ')',
        _ => '>',
    };
    let inner = text[open + 1..].strip_suffix(close).ok_or_else(|| format!(": {close:?} is missing at its end"))?;
    let parts = split_top(inner);
    match (head.as_str(), parts.as_slice()) {
        ("timestamp" | "datetime", [unit]) => Ok(DataType::Timestamp(time_unit(unit)?, None)),
        ("timestamp" | "datetime", [unit, zone]) => {
            let zone = zone.strip_prefix("tz=").unwrap_or(zone).trim_matches(['"', '\'']).trim();
            zone.parse::<arrow_array::timezone::Tz>()
                .map_err(|_| format!(": {zone:?} is not a time zone (UTC, +02:00, Europe/Paris)"))?;
            Ok(DataType::Timestamp(time_unit(unit)?, Some(zone.into())))
        }
        ("duration", [unit]) => Ok(DataType::Duration(time_unit(unit)?)),
        ("time32", [unit]) => match time_unit(unit)? {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => Ok(DataType::Time32(unit)),
            _ => Err(": time32 takes s or ms".to_owned()),
        },
        ("time64", [unit]) => match time_unit(unit)? {
            unit @ (TimeUnit::Microsecond | TimeUnit::Nanosecond) => Ok(DataType::Time64(unit)),
            _ => Err(": time64 takes us or ns".to_owned()),
        },
        ("date32", [unit]) if unit.eq_ignore_ascii_case("day") => Ok(DataType::Date32),
        ("date64", [unit]) if unit.eq_ignore_ascii_case("ms") => Ok(DataType::Date64),
        ("decimal" | "decimal128", [precision, scale]) => {
            let (p, s) = decimal(precision, scale, 38)?;
            Ok(DataType::Decimal128(p, s))
        }
        ("decimal256", [precision, scale]) => {
            let (p, s) = decimal(precision, scale, 76)?;
            Ok(DataType::Decimal256(p, s))
        }
        ("fixed_size_binary" | "binary", [bytes]) => Ok(DataType::FixedSizeBinary(count(bytes)?)),
        ("list", [item]) => Ok(DataType::List(item_field(item, depth)?)),
        ("large_list", [item]) => Ok(DataType::LargeList(item_field(item, depth)?)),
        ("fixed_size_list", [item, size]) => Ok(DataType::FixedSizeList(item_field(item, depth)?, count(size)?)),
        ("list" | "fixed_size_list", _) => Err(": a list has one item type".to_owned()),
        ("struct", fields) => structure(fields, depth),
        // pyarrow also prints whether the dictionary is ordered, which is ignored.
        ("dictionary", [a, b] | [a, b, "ordered=0" | "ordered=1"]) => dictionary(a, b, depth),
        _ => Err(format!(": {head:?} does not take {} parameters", parts.len())),
    }
}

fn simple(text: &str) -> Result<DataType, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "null" => DataType::Null,
        "bool" | "boolean" => DataType::Boolean,
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int64" | "int" | "integer" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" | "uint" => DataType::UInt64,
        "float16" | "halffloat" => DataType::Float16,
        "float32" => DataType::Float32,
        "float64" | "double" | "float" => DataType::Float64,
        "utf8" | "string" | "str" | "text" => DataType::Utf8,
        "large_utf8" | "large_string" | "largeutf8" => DataType::LargeUtf8,
        "utf8_view" | "string_view" | "utf8view" => DataType::Utf8View,
        "binary" | "bytes" => DataType::Binary,
        "large_binary" | "largebinary" => DataType::LargeBinary,
        "binary_view" | "binaryview" => DataType::BinaryView,
        "date32" | "date" => DataType::Date32,
        "date64" => DataType::Date64,
        "timestamp" | "datetime" => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ => return Err(String::new()),
    })
}

/// Splits at commas that are not inside brackets.
fn split_top(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'<' | b'[' | b'(' => depth += 1,
            b'>' | b']' | b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !(parts.is_empty() && last.is_empty()) {
        parts.push(last);
    }
    parts
}

fn time_unit(text: &str) -> Result<TimeUnit, String> {
    match text.to_ascii_lowercase().as_str() {
        "s" | "second" => Ok(TimeUnit::Second),
        "ms" | "millisecond" => Ok(TimeUnit::Millisecond),
        "us" | "µs" | "microsecond" => Ok(TimeUnit::Microsecond),
        "ns" | "nanosecond" => Ok(TimeUnit::Nanosecond),
        _ => Err(format!(": {text:?} is not a time unit (s, ms, us, ns)")),
    }
}

fn decimal(precision: &str, scale: &str, precision_max: u8) -> Result<(u8, i8), String> {
    match (precision.parse::<u8>(), scale.parse::<i8>()) {
        (Ok(p), Ok(s)) if (1..=precision_max).contains(&p) && s >= 0 && s as u8 <= p => Ok((p, s)),
        _ => Err(format!(": a decimal has 1 to {precision_max} digits, of which 0 to all stand after the point")),
    }
}

fn count(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!(": {text:?} is not a positive number")),
    }
}

fn item_field(text: &str, depth: usize) -> Result<Arc<Field>, String> {
    // pyarrow prints `list<item: int32>`; the name of the item is accepted and ignored.
    let item = match split_name(text) {
        Some((_, item)) => item,
        None => text,
    };
    Ok(Arc::new(Field::new_list_field(parse_at(item, depth + 1)?, true)))
}

/// Splits `name: type`; the colon must come before any bracket.
fn split_name(text: &str) -> Option<(&str, &str)> {
    let colon = text.find(':')?;
    let bracket = text.find(['<', '[', '(']).unwrap_or(usize::MAX);
    (colon < bracket).then(|| (text[..colon].trim(), text[colon + 1..].trim()))
}

fn structure(parts: &[&str], depth: usize) -> Result<DataType, String> {
    let mut fields: Vec<Field> = Vec::with_capacity(parts.len());
    for part in parts {
        let (name, kind) = split_name(part).ok_or_else(|| format!(": {part:?} is not `name: type`"))?;
        if fields.iter().any(|field| field.name() == name) {
            return Err(format!(": the field {name:?} occurs twice"));
        }
        fields.push(Field::new(name, parse_at(kind, depth + 1)?, true));
    }
    Ok(DataType::Struct(Fields::from(fields)))
}

fn dictionary(first: &str, second: &str, depth: usize) -> Result<DataType, String> {
    let (indices, values) = match (first.strip_prefix("values="), second.strip_prefix("indices=")) {
        (Some(values), Some(indices)) => (indices, values),
        _ => (first.strip_prefix("indices=").unwrap_or(first), second.strip_prefix("values=").unwrap_or(second)),
    };
    let (indices, values) = (parse_at(indices, depth + 1)?, parse_at(values, depth + 1)?);
    if !indices.is_dictionary_key_type() {
        return Err(": the indices of a dictionary are integers".to_owned());
    }
    Ok(DataType::Dictionary(Box::new(indices), Box::new(values)))
}

/// Prints a data type so that [`parse_type`] reads it back.
///
/// Types that Chronotile does not support (maps, unions, intervals) are printed as Arrow prints them. Names of list
/// items and the nullability of nested fields are omitted.
#[must_use]
pub fn format_type(data_type: &DataType) -> String {
    use DataType as T;
    match data_type {
        T::Boolean => "bool".to_owned(),
        T::Utf8 => "utf8".to_owned(),
        T::LargeUtf8 => "large_utf8".to_owned(),
        T::Utf8View => "utf8_view".to_owned(),
        T::Binary => "binary".to_owned(),
        T::LargeBinary => "large_binary".to_owned(),
        T::BinaryView => "binary_view".to_owned(),
        T::FixedSizeBinary(bytes) => format!("fixed_size_binary({bytes})"),
        T::Time32(unit) => format!("time32[{}]", unit_name(unit)),
        T::Time64(unit) => format!("time64[{}]", unit_name(unit)),
        T::Duration(unit) => format!("duration[{}]", unit_name(unit)),
        T::Timestamp(unit, None) => format!("timestamp[{}]", unit_name(unit)),
        T::Timestamp(unit, Some(zone)) => format!("timestamp[{}, {zone}]", unit_name(unit)),
        T::Decimal128(precision, scale) => format!("decimal128({precision}, {scale})"),
        T::Decimal256(precision, scale) => format!("decimal256({precision}, {scale})"),
        T::List(item) => format!("list<{}>", format_type(item.data_type())),
        T::LargeList(item) => format!("large_list<{}>", format_type(item.data_type())),
        T::FixedSizeList(item, size) => format!("fixed_size_list<{}, {size}>", format_type(item.data_type())),
        T::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|f| format!("{}: {}", f.name(), format_type(f.data_type()))).collect();
            format!("struct<{}>", fields.join(", "))
        }
        T::Dictionary(indices, values) => format!("dictionary<{}, {}>", format_type(indices), format_type(values)),
        other if other.is_primitive() || *other == T::Null => other.to_string().to_ascii_lowercase(),
        other => other.to_string(),
    }
}

fn unit_name(unit: &TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}
