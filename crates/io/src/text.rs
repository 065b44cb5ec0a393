//! Strict conversion of text to typed columns: a value either converts exactly or is reported with its position.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, NullArray, OffsetSizeTrait, StringArray, StructArray,
    new_empty_array,
};
use arrow_cast::{CastOptions, can_cast_types, cast_with_options};
use arrow_json::ReaderBuilder;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, TimeUnit};

/// The first value of a column that does not convert.
#[derive(Debug)]
pub(crate) struct BadValue {
    /// Position in the converted array.
    pub(crate) index: usize,
    /// Path below the column, such as `.flux[]`; empty for a flat column.
    pub(crate) path: String,
    /// The text; `None` if a required value is missing.
    pub(crate) value: Option<String>,
    /// The type of the column.
    pub(crate) data_type: DataType,
    /// Why it does not fit, if the type alone does not explain it.
    pub(crate) detail: String,
}

impl BadValue {
    fn new(index: usize, value: &str, data_type: &DataType, detail: &str) -> Self {
        Self {
            index,
            path: String::new(),
            value: Some(value.to_owned()),
            data_type: data_type.clone(),
            detail: detail.to_owned(),
        }
    }

    fn missing(array: &dyn Array, data_type: &DataType) -> Self {
        let index = (0..array.len()).find(|&i| array.is_null(i)).unwrap_or(0);
        Self { index, path: String::new(), value: None, data_type: data_type.clone(), detail: String::new() }
    }

    fn within(mut self, path: &str, index: usize) -> Self {
        self.path.insert_str(0, path);
        self.index = index;
        self
    }
}

/// Whether a column of this type can be read from text.
pub(crate) fn is_readable(data_type: &DataType) -> bool {
    use DataType as T;
    match data_type {
        T::Null | T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => true,
        T::List(f) | T::LargeList(f) | T::FixedSizeList(f, _) => is_readable(f.data_type()),
        T::Struct(fields) => fields.iter().all(|f| is_readable(f.data_type())),
        T::Dictionary(_, values) => is_readable(values) && !is_nested(values),
        T::Duration(_) | T::Interval(_) | T::Map(..) | T::Union(..) | T::RunEndEncoded(..) => false,
        other => can_cast_types(&T::Utf8, other),
    }
}

/// Whether a text cell of this type is JSON.
pub(crate) fn is_nested(data_type: &DataType) -> bool {
    matches!(data_type, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Struct(_))
}

/// Whether a quoted CSV field of this type is a value even if it is empty or a null word.
pub(crate) fn quotes_keep(data_type: &DataType) -> bool {
    match data_type {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        DataType::Dictionary(_, values) => quotes_keep(values),
        other => keeps_spaces(other),
    }
}

/// Whether spaces around a value of this type are part of it.
pub(crate) fn keeps_spaces(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => keeps_spaces(values),
        _ => false,
    }
}

/// Converts text to `target`. Nulls stay null; nothing else becomes null.
pub(crate) fn parse_column(texts: &StringArray, target: &DataType) -> Result<ArrayRef, BadValue> {
    use DataType as T;
    match target {
        T::Utf8 => Ok(Arc::new(texts.clone())),
        T::LargeUtf8 | T::Utf8View => lossless(texts, target),
        T::Null => match first_valid(texts) {
            Some(index) => Err(BadValue::new(index, texts.value(index), target, " (the column holds nulls only)")),
            None => Ok(Arc::new(NullArray::new(texts.len()))),
        },
        T::Binary => parse_hex(texts),
        T::LargeBinary | T::BinaryView => lossless(&parse_hex(texts)?, target),
        T::FixedSizeBinary(bytes) => parse_fixed_hex(texts, *bytes),
        T::Dictionary(_, values) => lossless(&parse_column(texts, values)?, target),
        nested if is_nested(nested) => parse_json_cells(texts, target),
        _ => parse_scalars(texts, target),
    }
}

fn first_valid(texts: &StringArray) -> Option<usize> {
    (0..texts.len()).find(|&i| texts.is_valid(i))
}

/// A cast that changes only the representation. An error (an overflowing dictionary) is reported at the first row.
fn lossless(array: &dyn Array, target: &DataType) -> Result<ArrayRef, BadValue> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, target, &options).map_err(|error| BadValue::new(0, "", target, &format!(" ({error})")))
}

fn parse_scalars(texts: &StringArray, target: &DataType) -> Result<ArrayRef, BadValue> {
    if let Some(check) = shape_check(target) {
        for (index, text) in texts.iter().enumerate() {
            if let Some(detail) = text.and_then(&check) {
                return Err(BadValue::new(index, text.unwrap_or_default(), target, detail));
            }
        }
    }
    let safe = CastOptions::default();
    let whole = matches!(target, DataType::Timestamp(..)).then(|| with_seconds(texts)).flatten();
    // The cast makes nulls of texts that do not convert, so a null that the texts do not have identifies one.
    let array = cast_with_options(whole.as_ref().unwrap_or(texts), target, &safe)
        .map_err(|error| BadValue::new(first_valid(texts).unwrap_or(0), "", target, &format!(" ({error})")))?;
    if array.null_count() != texts.null_count() {
        let index = (0..texts.len()).find(|&i| texts.is_valid(i) && array.is_null(i)).unwrap_or(0);
        return Err(BadValue::new(index, texts.value(index), target, ""));
    }
    match first_overflow(texts, &array) {
        Some(index) => Err(BadValue::new(index, texts.value(index), target, " (it is out of range)")),
        None => Ok(array),
    }
}

/// Adds seconds to times without seconds; `None` if there are no such times.
fn with_seconds(texts: &StringArray) -> Option<StringArray> {
    let any = texts.iter().flatten().any(|text| seconds_missing_at(text).is_some());
    any.then(|| texts.iter().map(|text| text.map(|text| time_with_seconds(text))).collect())
}

/// A date and time with its seconds: `2026-01-01 08:30` becomes `2026-01-01 08:30:00`. Any other text is unchanged.
pub(crate) fn time_with_seconds(text: &str) -> Cow<'_, str> {
    match seconds_missing_at(text) {
        Some(at) => Cow::Owned(format!("{}:00{}", &text[..at], &text[at..])),
        None => Cow::Borrowed(text),
    }
}

fn seconds_missing_at(text: &str) -> Option<usize> {
    const SHAPE: &[u8; 16] = b"0000-00-00 00:00";
    let bytes = text.as_bytes();
    let fits = bytes.len() >= SHAPE.len()
        && bytes.iter().zip(SHAPE).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            b' ' => matches!(byte, b' ' | b'T' | b't'),
            other => byte == other,
        });
    let ends = bytes.get(SHAPE.len()).is_none_or(|next| matches!(next, b'Z' | b'z' | b'+' | b'-' | b' '));
    (fits && ends).then_some(SHAPE.len())
}

/// Describes what is wrong with a text, if anything.
type Check = Box<dyn Fn(&str) -> Option<&'static str>>;

/// Checks a text for digits that the lenient cast would round or drop.
fn shape_check(target: &DataType) -> Option<Check> {
    use DataType as T;
    let digits = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    let fraction = |limit: usize| -> Check {
        Box::new(move |text| {
            if has_second_60(text) {
                return Some(" (seconds go up to 59: give a leap second as 59, or as the second after it)");
            }
            (fraction_digits(text) > limit).then_some(" (its fraction of a second is finer than the unit)")
        })
    };
    match target {
        T::Timestamp(unit, _) | T::Time32(unit) | T::Time64(unit) => Some(fraction(digits(unit))),
        T::Date32 => Some(Box::new(|text| (text.len() > 10).then_some(" (it is longer than YYYY-MM-DD)"))),
        T::Decimal32(_, scale) | T::Decimal64(_, scale) | T::Decimal128(_, scale) | T::Decimal256(_, scale) => {
            let scale = usize::try_from(*scale).unwrap_or(0);
            Some(Box::new(move |text| decimal_shape(text, scale)))
        }
        _ => None,
    }
}

/// Whether the seconds of a time are 60, which Arrow would read as the next minute.
fn has_second_60(text: &str) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let bytes = text.as_bytes();
    (0..bytes.len()).any(|at| match &bytes[at..] {
        [b':', b'0'..=b'9', b'0'..=b'9', b':', rest @ ..] => rest.starts_with(b"60") && digits(rest) == 2,
        // A time without colons.
        [b'T' | b't' | b' ', rest @ ..] => digits(rest) == 6 && rest[4..].starts_with(b"60"),
        _ => false,
    })
}

/// Number of digits after the first point, without trailing zeros.
pub(crate) fn fraction_digits(text: &str) -> usize {
    let Some((_, rest)) = text.split_once('.') else { return 0 };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].trim_end_matches('0').len()
}

fn decimal_shape(text: &str, scale: usize) -> Option<&'static str> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let well_formed = digits.bytes().any(|b| b.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && digits.bytes().filter(|&b| b == b'.').count() <= 1;
    match well_formed {
        false => Some(" (a decimal is digits with at most one point)"),
        true => (fraction_digits(text) > scale).then_some(" (it has more digits after the point)"),
    }
}

/// The first finite number whose conversion gave infinity.
fn first_overflow(texts: &StringArray, array: &dyn Array) -> Option<usize> {
    let infinite: Box<dyn Fn(usize) -> bool> = match array.data_type() {
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>();
            Box::new(move |i| values.value(i).is_infinite())
        }
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>();
            Box::new(move |i| values.value(i).is_infinite())
        }
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>();
            Box::new(move |i| values.value(i).is_infinite())
        }
        _ => return None,
    };
    // The words for infinity have no digits.
    (0..texts.len()).find(|&i| texts.is_valid(i) && infinite(i) && texts.value(i).bytes().any(|b| b.is_ascii_digit()))
}

fn hex_into(text: &str, out: &mut Vec<u8>) -> bool {
    let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    out.clear();
    let bytes = text.as_bytes();
    bytes.len().is_multiple_of(2)
        && bytes.chunks_exact(2).all(|pair| match (nibble(pair[0]), nibble(pair[1])) {
            (Some(high), Some(low)) => {
                out.push(high << 4 | low);
                true
            }
            _ => false,
        })
}

const HEX: &str = " (bytes are written as pairs of hexadecimal digits)";

fn parse_hex(texts: &StringArray) -> Result<ArrayRef, BadValue> {
    let mut builder = BinaryBuilder::with_capacity(texts.len(), texts.value_data().len() / 2);
    let mut bytes = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match text {
            None => builder.append_null(),
            Some(text) if hex_into(text, &mut bytes) => builder.append_value(&bytes),
            Some(text) => return Err(BadValue::new(index, text, &DataType::Binary, HEX)),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn parse_fixed_hex(texts: &StringArray, width: i32) -> Result<ArrayRef, BadValue> {
    let target = DataType::FixedSizeBinary(width);
    let mut builder = FixedSizeBinaryBuilder::with_capacity(texts.len(), width);
    let mut bytes = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let Some(text) = text else {
            builder.append_null();
            continue;
        };
        if !hex_into(text, &mut bytes) || builder.append_value(&bytes).is_err() {
            return Err(BadValue::new(index, text, &target, HEX));
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// Parses JSON in CSV cells. Each cell is decoded separately, so that an error identifies its row.
fn parse_json_cells(texts: &StringArray, target: &DataType) -> Result<ArrayRef, BadValue> {
    let leaves = text_leaves(target);
    let field = Arc::new(Field::new("cell", leaves.clone(), true));
    let mut pieces: Vec<ArrayRef> = Vec::new();
    let mut decoder = json_decoder_of_values(&field, texts.len())
        .map_err(|error| BadValue::new(0, "", target, &format!(" ({error})")))?;
    for (index, text) in texts.iter().enumerate() {
        let text = text.unwrap_or("null");
        let bad = || BadValue::new(index, text, target, " (the cell holds JSON of that shape)");
        let mut cell = text.as_bytes().to_vec();
        cell.push(b'\n');
        let read = decoder.decode(&cell).map_err(|_| bad())?;
        if read != cell.len() || decoder.len() != index + 1 || decoder.has_partial_record() {
            return Err(bad());
        }
    }
    if let Some(batch) = decoder.flush().map_err(|_| first_bad_cell(texts, &field, target))? {
        pieces.push(batch.column(0).clone());
    }
    let array = match pieces.pop() {
        Some(array) => array,
        None => new_empty_array(&leaves),
    };
    parse_leaves(&array, &Field::new("cell", target.clone(), true))
}

/// The decoder reports shape errors for the whole batch, so decode the rows one by one.
fn first_bad_cell(texts: &StringArray, field: &FieldRef, target: &DataType) -> BadValue {
    let fits = |text: &str| {
        let Ok(mut decoder) = json_decoder_of_values(field, 1) else { return false };
        decoder.decode(text.as_bytes()).is_ok() && decoder.flush().is_ok()
    };
    let index = (0..texts.len()).find(|&i| texts.is_valid(i) && !fits(texts.value(i))).unwrap_or(0);
    BadValue::new(index, texts.value(index), target, " (the cell holds JSON of that shape)")
}

fn json_decoder_of_values(field: &FieldRef, rows: usize) -> Result<arrow_json::reader::Decoder, ArrowError> {
    // One spare row reveals a cell that holds two values.
    ReaderBuilder::new_with_field(field.clone()).with_batch_size(rows + 1).with_coerce_primitive(true).build_decoder()
}

/// The type with every scalar replaced by text, for the first decoding of JSON.
pub(crate) fn text_leaves(data_type: &DataType) -> DataType {
    use DataType as T;
    let item = |f: &FieldRef| Arc::new(Field::new(f.name(), text_leaves(f.data_type()), true));
    match data_type {
        T::List(f) | T::FixedSizeList(f, _) => T::List(item(f)),
        T::LargeList(f) => T::LargeList(item(f)),
        T::Struct(fields) => T::Struct(fields.iter().map(item).collect::<Fields>()),
        _ => T::Utf8,
    }
}

/// The schema with every scalar replaced by text.
pub(crate) fn text_schema(schema: &Schema) -> Schema {
    let field = |f: &FieldRef| Field::new(f.name(), text_leaves(f.data_type()), true);
    Schema::new(schema.fields().iter().map(field).collect::<Fields>())
}

/// Converts an array of [`text_leaves`] to the type of `field`.
pub(crate) fn parse_leaves(array: &ArrayRef, field: &Field) -> Result<ArrayRef, BadValue> {
    use DataType as T;
    let target = field.data_type();
    let parsed = match target {
        T::List(item) => parse_list(array.as_list::<i32>(), item, target)?,
        T::LargeList(item) => parse_list(array.as_list::<i64>(), item, target)?,
        T::FixedSizeList(item, size) => parse_fixed_list(array.as_list::<i32>(), item, *size, target)?,
        T::Struct(fields) => parse_struct(array.as_struct(), fields, target)?,
        _ => parse_column(array.as_string::<i32>(), target)?,
    };
    match !field.is_nullable() && parsed.null_count() > 0 {
        true => Err(BadValue::missing(&parsed, target)),
        false => Ok(parsed),
    }
}

fn arrow_error(target: &DataType) -> impl Fn(ArrowError) -> BadValue {
    move |error| BadValue::new(0, "", target, &format!(" ({error})"))
}

fn parse_list<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    item: &FieldRef,
    target: &DataType,
) -> Result<ArrayRef, BadValue> {
    let values = parse_leaves(list.values(), item).map_err(|bad| {
        // The row of a value is the last one whose offset is not above its index.
        let row = list.value_offsets().partition_point(|offset| offset.as_usize() <= bad.index);
        bad.within("[]", row.saturating_sub(1))
    })?;
    GenericListArray::<O>::try_new(item.clone(), list.offsets().clone(), values, list.nulls().cloned())
        .map(|array| Arc::new(array) as ArrayRef)
        .map_err(arrow_error(target))
}

fn parse_fixed_list(
    list: &GenericListArray<i32>,
    item: &FieldRef,
    size: i32,
    target: &DataType,
) -> Result<ArrayRef, BadValue> {
    let offsets = list.value_offsets();
    // The cast below would make a null of a list of another length.
    for index in (0..list.len()).filter(|&i| list.is_valid(i)) {
        let found = offsets[index + 1] - offsets[index];
        if found != size {
            return Err(BadValue::new(index, &format!("a list of {found}"), target, ""));
        }
    }
    let ragged = parse_list(list, item, target)?;
    let source = DataType::List(item.clone());
    let options = CastOptions::default();
    debug_assert_eq!(ragged.data_type(), &source);
    let fixed = cast_with_options(&ragged, target, &options).map_err(arrow_error(target))?;
    debug_assert!(fixed.as_any().is::<FixedSizeListArray>());
    Ok(fixed)
}

fn parse_struct(array: &StructArray, fields: &Fields, target: &DataType) -> Result<ArrayRef, BadValue> {
    let mut columns = Vec::with_capacity(fields.len());
    for (field, column) in fields.iter().zip(array.columns()) {
        // A field may be null where the struct itself is null, so nullability is checked below.
        let open = Field::new(field.name(), field.data_type().clone(), true);
        let parsed = parse_leaves(column, &open).map_err(|bad| {
            let row = bad.index;
            bad.within(&format!(".{}", field.name()), row)
        })?;
        if !field.is_nullable()
            && let Some(row) = (0..array.len()).find(|&i| array.is_valid(i) && parsed.is_null(i))
        {
            return Err(BadValue::missing(&parsed, field.data_type()).within(&format!(".{}", field.name()), row));
        }
        columns.push(parsed);
    }
    StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len())
        .map(|array| Arc::new(array) as ArrayRef)
        .map_err(arrow_error(target))
}
