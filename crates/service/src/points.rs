//! Points on their way in: what every text format is read into, and how it becomes the columns that the historian stores.
//!
//! What is held is bounded by what was sent: a point takes some thirty bytes, in blocks that are made one by one and never copied
//! to make room, refusals are counted and the first of them kept, and all of it is charged to the service's memory beforehand.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
};
use arrow_schema::ArrowError;
use chronotile_historian::rules::Status;
use chronotile_historian::{DataType, NAME_BYTES_MAX, NotFinite, Tag, meant};
use hashbrown::{DefaultHashBuilder, HashTable};

use chronotile_archive::memory::{Charge, MemoryError};

/// A value as a format says it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number.
    Float(f64),
    /// A whole number, all digits of which count.
    Integer(i64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(Cow<'a, str>),
    /// None.
    Null,
}

impl Value<'_> {
    /// What a tag is, of which this is the first value.
    fn data_type(&self) -> DataType {
        match self {
            Self::Float(_) | Self::Null => DataType::Float,
            Self::Integer(_) => DataType::Integer,
            Self::Bool(_) => DataType::Bool,
            Self::Text(_) => DataType::String,
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Integer(number) => Some(*number as f64),
            _ => None,
        }
    }

    fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Float(number) if number.is_finite() => Some(*number as i64),
            _ => None,
        }
    }

    fn bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            other => other.float().filter(|number| number.is_finite()).map(|number| number != 0.0),
        }
    }

    /// As a message says it.
    fn shown(&self) -> String {
        match self {
            Self::Float(number) => format!("is {number}"),
            Self::Integer(number) => format!("is {number}"),
            Self::Bool(_) => "is a bool".to_owned(),
            Self::Text(text) => format!("{} is text", shown(text)),
            Self::Null => "is a null".to_owned(),
        }
    }
}

/// A line that cannot be stored, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Number of the line, from 1; of the record or sample in formats without lines.
    pub line: u64,
    /// What is wrong and what to do.
    pub message: String,
}

/// Lines that cannot be stored: how many, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// How many there are.
    pub count: u64,
    /// The first [`REFUSALS_KEPT_MAX`], in order.
    pub kept: Vec<Refused>,
    /// How many of all are points of tags that are unknown.
    pub(crate) unknown: u64,
}

/// Refused lines that an answer names; the others are counted.
pub const REFUSALS_KEPT_MAX: usize = 100;
/// Bytes of a message that are kept.
const MESSAGE_BYTES_MAX: usize = 1_000;

impl Refusals {
    /// Notes a line, which comes behind all that were noted before. Its message is made only where it is kept.
    pub fn note(&mut self, line: u64, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.kept.len() < REFUSALS_KEPT_MAX {
            let mut message = message();
            if message.len() > MESSAGE_BYTES_MAX {
                message = format!("{}...", cut(&message, MESSAGE_BYTES_MAX));
            }
            self.kept.push(Refused { line, message });
        }
    }

    /// Both together.
    fn with(mut self, other: Self) -> Self {
        self.count += other.count;
        self.unknown += other.unknown;
        self.kept.extend(other.kept);
        self.kept.sort_by_key(|refused| refused.line);
        self.kept.truncate(REFUSALS_KEPT_MAX);
        self
    }
}

/// The beginning of a text, of at most so many bytes.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A text as a message shows it: quoted, and cut where it is long.
pub(crate) fn shown(text: &str) -> String {
    const BYTES_MAX: usize = 100;
    match text.len() {
        0..=BYTES_MAX => format!("{text:?}"),
        bytes => format!("{:?}... ({bytes} bytes)", cut(text, BYTES_MAX)),
    }
}

/// Bytes of a value that is text.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Rows of a block.
const BLOCK_ROWS: usize = 65_536;
/// Rows for which a block has room at first.
const BLOCK_ROWS_FIRST: usize = 64;
/// Bytes of text at which a block ends.
const BLOCK_TEXT_BYTES: usize = 4 << 20;
/// What a row takes in a block, its status included: six columns.
const ROW_BYTES: usize = 4 + 8 + 1 + 8 + 4 + 4;
/// What the name of a tag takes besides its own bytes: here, and where it is looked up.
const NAME_BYTES: usize = 256;
/// Tags in one body.
pub(crate) const NAMES_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Float,
    Integer,
    Bool,
    Text,
    Null,
}

/// Some of the rows, by column. Values are bits, those of a text the place of its end in `texts`.
#[derive(Debug, Default)]
struct Block {
    tags: Vec<u32>,
    times: Vec<i64>,
    kinds: Vec<Kind>,
    bits: Vec<u64>,
    lines: Vec<u32>,
    /// Empty as long as all are Good.
    statuses: Vec<u32>,
    texts: String,
}

impl Block {
    fn len(&self) -> usize {
        self.tags.len()
    }

    fn has_room(&self, text_bytes: usize) -> bool {
        self.len() < BLOCK_ROWS && (self.texts.is_empty() || self.texts.len() + text_bytes <= BLOCK_TEXT_BYTES)
    }

    /// Rows for which there is no room yet, of those that it gets next.
    fn rows_missing(&self) -> usize {
        match self.len() < self.tags.capacity() {
            true => 0,
            false => self.len().clamp(BLOCK_ROWS_FIRST, BLOCK_ROWS - self.len()),
        }
    }

    fn reserve(&mut self, rows: usize) {
        self.tags.reserve_exact(rows);
        self.times.reserve_exact(rows);
        self.kinds.reserve_exact(rows);
        self.bits.reserve_exact(rows);
        self.lines.reserve_exact(rows);
    }

    fn push(&mut self, line: u32, tag: u32, time: i64, value: &Value<'_>, status: u32) {
        let (kind, bits) = match value {
            Value::Float(number) => (Kind::Float, number.to_bits()),
            Value::Integer(number) => (Kind::Integer, number.cast_unsigned()),
            Value::Bool(value) => (Kind::Bool, u64::from(*value)),
            Value::Text(text) => {
                let start = self.texts.len() as u64;
                self.texts.push_str(text);
                (Kind::Text, start << 32 | text.len() as u64)
            }
            Value::Null => (Kind::Null, 0),
        };
        if status != 0 && self.statuses.is_empty() {
            self.statuses = vec![0; self.len()];
        }
        self.tags.push(tag);
        self.times.push(time);
        self.kinds.push(kind);
        self.bits.push(bits);
        self.lines.push(line);
        if status != 0 || !self.statuses.is_empty() {
            self.statuses.push(status);
        }
    }

    fn status(&self, row: usize) -> u32 {
        self.statuses.get(row).copied().unwrap_or(0)
    }

    fn value(&self, row: usize) -> Value<'_> {
        let bits = self.bits[row];
        match self.kinds[row] {
            Kind::Float => Value::Float(f64::from_bits(bits)),
            Kind::Integer => Value::Integer(bits.cast_signed()),
            Kind::Bool => Value::Bool(bits != 0),
            Kind::Text => {
                let (start, length) = ((bits >> 32) as usize, (bits & u64::from(u32::MAX)) as usize);
                Value::Text(Cow::Borrowed(&self.texts[start..start + length]))
            }
            Kind::Null => Value::Null,
        }
    }
}

/// The points of one request, by row.
#[derive(Debug, Default)]
pub struct Points {
    names: Vec<Box<str>>,
    /// Places in `names`.
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Place of the name that came last: one often comes several times in a row.
    last: Option<u32>,
    blocks: Vec<Block>,
    count: usize,
    /// Lines that were not understood.
    pub refused: Refusals,
    /// Whether the format tells whole numbers from others by more than their look.
    pub(crate) tells_integers: bool,
    charge: Option<Charge>,
    over: Option<MemoryError>,
}

/// What becomes of points that may be stored.
pub(crate) struct Checks {
    /// No point lies beyond it, ns.
    pub time_max: i64,
    pub not_finite: NotFinite,
    /// Names of tags that are near that of the first unknown one.
    pub near: Vec<String>,
}

/// Exactly representable whole numbers end here.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Points {
    /// Points whose memory is paid for by a charge that grows with them.
    pub(crate) fn charged(charge: Charge) -> Self {
        Self { charge: Some(charge), ..Self::default() }
    }

    /// Takes a point. Without memory for it there are no points any more: `over` then says why.
    ///
    /// # Errors
    /// A name that no tag can have, a text that is too long.
    pub fn push(&mut self, line: u64, name: &str, time: i64, value: Value<'_>, status: u32) -> Result<(), String> {
        if name.len() > NAME_BYTES_MAX {
            let bytes = name.len();
            return Err(format!("the name {} has {bytes} bytes, a tag's has at most {NAME_BYTES_MAX}", shown(name)));
        }
        check_texts([&value])?;
        if self.over.is_none() {
            let stored = self.store(line, name, time, &value, status);
            self.over = stored.err();
        }
        Ok(())
    }

    fn store(&mut self, line: u64, name: &str, time: i64, value: &Value<'_>, status: u32) -> Result<(), MemoryError> {
        let text_bytes = if let Value::Text(text) = value { text.len() } else { 0 };
        if !self.blocks.last().is_some_and(|block| block.has_room(text_bytes)) {
            self.blocks.push(Block::default());
        }
        let tag = self.place(name)?;
        let charge = &mut self.charge;
        let mut pay = |bytes: usize| charge.as_mut().map_or(Ok(()), |charge| charge.grow(bytes));
        if let Some(block) = self.blocks.last_mut() {
            let rows = block.rows_missing();
            if rows > 0 {
                pay(rows * ROW_BYTES)?;
                block.reserve(rows);
            }
            if block.texts.len() + text_bytes > block.texts.capacity() {
                let more = text_bytes.max(block.texts.len()).max(BLOCK_ROWS_FIRST);
                pay(more)?;
                block.texts.reserve_exact(more);
            }
            block.push(u32::try_from(line).unwrap_or(u32::MAX), tag, time, value, status);
            self.count += 1;
        }
        Ok(())
    }

    /// The place of a name, which is added where it is new.
    fn place(&mut self, name: &str) -> Result<u32, MemoryError> {
        if let Some(last) = self.last.filter(|last| &*self.names[*last as usize] == name) {
            return Ok(last);
        }
        let hash = self.hasher.hash_one(name);
        let found = self.places.find(hash, |place| &*self.names[*place as usize] == name);
        let place = match found {
            Some(place) => *place,
            None => {
                if let Some(charge) = &mut self.charge {
                    charge.grow(NAME_BYTES + 2 * name.len())?;
                }
                let place = self.names.len() as u32;
                self.names.push(name.into());
                let (names, hasher) = (&self.names, &self.hasher);
                self.places.insert_unique(hash, place, |place| hasher.hash_one(&*names[*place as usize]));
                place
            }
        };
        self.last = Some(place);
        Ok(place)
    }

    /// Pays for memory beside that of the points, for as long as they are there. Without it there are no points any more.
    pub(crate) fn pay(&mut self, bytes: usize) {
        let paid = self.charge.as_mut().map_or(Ok(()), |charge| charge.grow(bytes));
        self.over = self.over.or(paid.err());
    }

    /// Why no more points are taken; those that were are worth nothing then.
    pub fn memory_error(&self) -> Option<MemoryError> {
        self.over
    }

    /// Notes a line that was not understood. Lines come in their order.
    pub fn refuse(&mut self, line: u64, message: impl Into<String>) {
        self.refused.note(line, || message.into());
    }

    /// The points: line, tag, time, value, status.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &str, i64, Value<'_>, u32)> {
        self.blocks.iter().flat_map(|block| {
            (0..block.len()).map(|row| {
                let name = &*self.names[block.tags[row] as usize];
                (u64::from(block.lines[row]), name, block.times[row], block.value(row), block.status(row))
            })
        })
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The names of the tags, each once.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// What kinds of values the tags at these places of `names` begin with.
    pub(crate) fn kinds(&self, places: &[usize]) -> Vec<DataType> {
        let mut kinds = vec![None; self.names.len()];
        for block in &self.blocks {
            for row in 0..block.len() {
                let kind = &mut kinds[block.tags[row] as usize];
                // A series that has whole numbers and others is one of numbers.
                *kind = match (*kind, block.value(row)) {
                    (None, Value::Null) => None,
                    (None, Value::Integer(_)) if !self.tells_integers => Some(DataType::Float),
                    (None, value) => Some(value.data_type()),
                    (Some(DataType::Integer), Value::Float(_)) => Some(DataType::Float),
                    (known, _) => known,
                };
            }
        }
        places.iter().map(|place| kinds[*place].unwrap_or(DataType::Float)).collect()
    }

    /// The points as tables that the historian takes, some for each kind of tag, and the lines that do not fit their tags. A
    /// block goes as soon as its tables are there; for these somebody else has to have paid.
    pub(crate) fn tables(
        self,
        tags: &[Option<Arc<Tag>>],
        checks: &Checks,
    ) -> Result<(Vec<RecordBatch>, Refusals), ArrowError> {
        let fitting = Fitting { names: &self.names, tags, checks };
        let (mut tables, mut unfit) = (Vec::new(), Refusals::default());
        for block in self.blocks {
            let mut kinds: [Vec<u32>; 4] = Default::default();
            for row in 0..block.len() {
                match fitting.kind(&block, row) {
                    Ok(kind) => kinds[kind as usize].push(row as u32),
                    Err(unfitting) => {
                        unfit.unknown += u64::from(matches!(unfitting, Unfitting::Unknown));
                        let line = u64::from(block.lines[row]);
                        unfit.note(line, || fitting.message(&block, row, &unfitting));
                    }
                }
            }
            for (kind, rows) in kinds.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
                tables.push(table(&block, kind, rows, tags)?);
            }
        }
        Ok((tables, self.refused.with(unfit)))
    }
}

/// What it takes for points to fit their tags.
struct Fitting<'a> {
    names: &'a [Box<str>],
    tags: &'a [Option<Arc<Tag>>],
    checks: &'a Checks,
}

/// Why a point does not fit its tag.
enum Unfitting {
    Unknown,
    Type,
    NoNumber,
    Future,
    Status,
}

impl Fitting<'_> {
    /// The kind of table a row goes to, or what is wrong with it.
    fn kind(&self, block: &Block, row: usize) -> Result<DataType, Unfitting> {
        let Some(tag) = &self.tags[block.tags[row] as usize] else { return Err(Unfitting::Unknown) };
        let (value, status) = (block.value(row), block.status(row));
        let fits = match (tag.data_type, &value) {
            (_, Value::Null) | (DataType::Float, Value::Float(_) | Value::Integer(_)) => true,
            (DataType::Integer, Value::Integer(_)) | (DataType::Bool, Value::Bool(_)) => true,
            (DataType::String, Value::Text(_)) => true,
            (DataType::Integer, Value::Float(number)) if !number.is_finite() => true,
            (DataType::Integer, Value::Float(number)) => number.fract() == 0.0 && number.abs() <= EXACT,
            (DataType::Bool, Value::Float(number)) => *number == 0.0 || *number == 1.0 || !number.is_finite(),
            (DataType::Bool, Value::Integer(number)) => matches!(number, 0 | 1),
            _ => false,
        };
        if !fits {
            return Err(Unfitting::Type);
        }
        let unusable = matches!(value, Value::Null) || matches!(value, Value::Float(number) if !number.is_finite());
        if unusable && !Status(status).is_bad() && self.checks.not_finite == NotFinite::Refuse {
            return Err(Unfitting::NoNumber);
        }
        if block.times[row] > self.checks.time_max {
            return Err(Unfitting::Future);
        }
        if status == u32::MAX {
            return Err(Unfitting::Status);
        }
        Ok(tag.data_type)
    }

    fn message(&self, block: &Block, row: usize, unfitting: &Unfitting) -> String {
        let place = block.tags[row] as usize;
        let name = &self.names[place];
        match unfitting {
            Unfitting::Unknown => {
                let first = self.tags.iter().position(Option::is_none) == Some(place);
                let near = if first { meant(&self.checks.near) } else { String::new() };
                format!("no tag {name:?}{near}: define it first, or write with define=true")
            }
            Unfitting::Type => {
                let kind = self.tags[place].as_ref().map_or("none", |tag| tag.data_type.name());
                format!("tag {name:?} is of type {kind}, the value {}", block.value(row).shown())
            }
            Unfitting::NoNumber => format!(
                "tag {name:?} has no value that is a finite number, and its status is not Bad: give one, or write with \
                 not_finite=bad"
            ),
            Unfitting::Future => format!(
                "the time of tag {name:?} lies further ahead of this machine's clock than max_future allows: correct it, or \
                 have max_future raised"
            ),
            Unfitting::Status => "status 4294967295 is none of OPC UA".to_owned(),
        }
    }
}

/// Rows of one kind as the historian takes them.
fn table(block: &Block, kind: usize, rows: &[u32], tags: &[Option<Arc<Tag>>]) -> Result<RecordBatch, ArrowError> {
    let places = || rows.iter().map(|row| *row as usize);
    let number = |row: usize| tags[block.tags[row] as usize].as_ref().map_or(0, |tag| tag.number);
    let times: Vec<i64> = places().map(|row| block.times[row]).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("tag", Arc::new(Int64Array::from_iter_values(places().map(number)))),
        ("time", Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"))),
        ("value", values(block, kind, rows)),
        ("status", Arc::new(UInt32Array::from_iter_values(places().map(|row| block.status(row))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, name == "value")))
}

fn values(block: &Block, kind: usize, rows: &[u32]) -> ArrayRef {
    let values = rows.iter().map(|row| block.value(*row as usize));
    if kind == DataType::Float as usize {
        return Arc::new(values.map(|value| value.float()).collect::<Float64Array>());
    }
    if kind == DataType::Integer as usize {
        return Arc::new(values.map(|value| value.integer()).collect::<Int64Array>());
    }
    if kind == DataType::Bool as usize {
        return Arc::new(values.map(|value| value.bool()).collect::<BooleanArray>());
    }
    let mut texts = StringBuilder::with_capacity(rows.len(), block.texts.len());
    for value in values {
        texts.append_option(if let Value::Text(text) = value { Some(text) } else { None });
    }
    let texts: StringArray = texts.finish();
    Arc::new(texts)
}

/// Refuses a series whose name, `more` bytes longer, cannot be that of a tag.
pub(crate) fn check_series(name: &str, more: usize, labels: &[(&str, &str)]) -> Result<(), String> {
    let escapes = |value: &str| value.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    let of_labels: usize = labels.iter().map(|(label, value)| label.len() + value.len() + escapes(value) + 4).sum();
    let bytes = name.len() + more + of_labels + usize::from(!labels.is_empty());
    if bytes > NAME_BYTES_MAX {
        let name = shown(name);
        return Err(format!(
            "the name of series {name} with its labels has {bytes} bytes, a tag's has at most {NAME_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// Refuses a text that is too long for a value.
pub(crate) fn check_texts<'a>(values: impl IntoIterator<Item = &'a Value<'a>>) -> Result<(), String> {
    let long = |value: &&Value<'_>| matches!(value, Value::Text(text) if text.len() > TEXT_BYTES_MAX);
    match values.into_iter().find(long) {
        Some(_) => Err(format!("a text is longer than {TEXT_BYTES_MAX} bytes, which a value may have")),
        None => Ok(()),
    }
}

/// The name of a series that others know by labels: `name{label="value",...}`, labels in the order of their names.
pub(crate) fn series_name(name: &str, labels: &mut [(&str, &str)]) -> String {
    let mut out = name.to_owned();
    if labels.is_empty() {
        return out;
    }
    labels.sort_unstable();
    let mut open = '{';
    for (label, value) in labels.iter() {
        out.push(open);
        open = ',';
        out.push_str(label);
        out.push_str("=\"");
        for c in value.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronotile_archive::memory::Memory;
    use chronotile_historian::rules::Settings;
    use proptest::prelude::*;

    fn tag(name: &str, data_type: DataType) -> Option<Arc<Tag>> {
        Some(Arc::new(Tag {
            number: 7,
            name: name.into(),
            unit: String::new(),
            description: String::new(),
            group: "main".into(),
            data_type,
            settings: Settings::default(),
            exception_deviation: -1.0,
            compression_deviation: -1.0,
        }))
    }

    fn refusal(data_type: DataType, value: Value<'_>, status: u32) -> Option<String> {
        let mut points = Points::default();
        points.push(3, "t", 0, value, status).unwrap();
        let checks = Checks { time_max: 10, not_finite: NotFinite::Refuse, near: vec![] };
        let (tables, refused) = points.tables(&[tag("t", data_type)], &checks).unwrap();
        assert_eq!((tables.len() as u64 + refused.count, refused.unknown), (1, 0));
        refused.kept.into_iter().next().map(|refused| {
            assert_eq!(refused.line, 3);
            refused.message
        })
    }

    #[test]
    fn a_value_goes_to_tags_of_its_kind_alone() {
        use DataType::*;
        for (kind, value) in [
            (Float, Value::Float(1.5)),
            (Float, Value::Integer(1)),
            (Integer, Value::Integer(i64::MAX)),
            (Integer, Value::Float(-3.0)),
            (Bool, Value::Bool(true)),
            (Bool, Value::Integer(0)),
            (String, Value::Text("x".into())),
        ] {
            assert_eq!(refusal(kind, value.clone(), 0), None, "{value:?}");
        }
        for (kind, value, says) in [
            (Float, Value::Bool(true), "of type float, the value is a bool"),
            (Float, Value::Text("1".into()), "of type float, the value \"1\" is text"),
            (Integer, Value::Float(1.5), "of type integer, the value is 1.5"),
            (Integer, Value::Float(1e300), "of type integer, the value is 1000"),
            (Bool, Value::Float(2.0), "of type bool, the value is 2"),
            (String, Value::Integer(2), "of type string, the value is 2"),
        ] {
            let message = refusal(kind, value.clone(), 0).unwrap();
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn a_point_without_a_number_needs_a_bad_status() {
        for value in [Value::Null, Value::Float(f64::NAN), Value::Float(f64::INFINITY)] {
            assert!(refusal(DataType::Float, value.clone(), 0).unwrap().contains("finite"));
            assert_eq!(refusal(DataType::Float, value, 0x8000_0000), None);
        }
    }

    #[test]
    fn lines_are_refused_each_for_itself_and_in_order() {
        let mut points = Points::default();
        points.push(1, "known", 0, Value::Float(1.0), 0).unwrap();
        points.push(2, "unknown", 0, Value::Float(1.0), 0).unwrap();
        points.push(4, "known", 99, Value::Float(1.0), 0).unwrap();
        points.refuse(3, "is no line");
        let checks = Checks { time_max: 10, not_finite: NotFinite::Refuse, near: vec![] };
        let (tables, refused) = points.tables(&[tag("known", DataType::Float), None], &checks).unwrap();
        assert_eq!(tables.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        assert_eq!((refused.count, refused.unknown), (3, 1));
        assert_eq!(refused.kept.iter().map(|refused| refused.line).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn the_first_refusals_are_kept_and_all_are_counted() {
        let mut points = Points::default();
        for line in 1..=10_000 {
            match line % 2 {
                0 => points.refuse(line, "x".repeat(5_000)),
                _ => points.push(line, "unknown", 0, Value::Null, 0).unwrap(),
            }
        }
        let checks = Checks { time_max: 10, not_finite: NotFinite::Refuse, near: vec![] };
        let (tables, refused) = points.tables(&[None], &checks).unwrap();
        assert_eq!((tables.len(), refused.count, refused.unknown), (0, 10_000, 5_000));
        let lines: Vec<u64> = refused.kept.iter().map(|refused| refused.line).collect();
        assert_eq!(lines, (1..=REFUSALS_KEPT_MAX as u64).collect::<Vec<_>>());
        assert!(refused.kept.iter().all(|refused| refused.message.len() <= MESSAGE_BYTES_MAX + 3));
    }

    #[test]
    fn what_is_held_is_paid_for_and_what_cannot_be_is_not_held() {
        let memory = Memory::new(64 << 20);
        let mut points = Points::charged(memory.empty());
        points.push(1, "t", 0, Value::Float(1.0), 0).unwrap();
        assert!(memory.bytes() < 4_096, "a single point is charged {} bytes", memory.bytes());
        let text = "x".repeat(1_000);
        for line in 2..=200_000 {
            points.push(line, "t", 0, Value::Float(1.0), 7).unwrap();
            points.push(line, &format!("t{}", line % 1_000), 0, Value::Text((&*text).into()), 0).unwrap();
            let room = |block: &Block| {
                block.tags.capacity() * (ROW_BYTES - 4) + block.statuses.len() * 4 + block.texts.capacity()
            };
            let held = points.blocks.iter().map(room).sum::<usize>();
            assert!(held <= memory.bytes() && memory.bytes() <= 64 << 20, "{held} {}", memory.bytes());
        }
        assert!(points.memory_error().is_some());
        assert!(points.len() > 50_000, "{} fit", points.len());
        drop(points);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn names_and_texts_that_are_too_long_are_refused() {
        let mut points = Points::default();
        assert!(points.push(1, &"n".repeat(NAME_BYTES_MAX), 0, Value::Null, 0).is_ok());
        assert!(
            points.push(1, &"n".repeat(NAME_BYTES_MAX + 1), 0, Value::Null, 0).unwrap_err().contains("at most 512")
        );
        let text = "é".repeat(TEXT_BYTES_MAX / 2);
        assert!(points.push(1, "t", 0, Value::Text((&*text).into()), 0).is_ok());
        assert!(points.push(1, "t", 0, Value::Text((text + "x").into()), 0).is_err());
        assert_eq!((NAME_BYTES_MAX, TEXT_BYTES_MAX), (512, 1_048_576));
        let long = "v".repeat(NAME_BYTES_MAX);
        assert!(check_series("up", 0, &[("l", &*long)]).unwrap_err().contains("at most 512"));
        assert!(shown(&"é".repeat(100)).ends_with("... (200 bytes)"));
    }

    fn checks() -> Checks {
        Checks { time_max: 10, not_finite: NotFinite::Refuse, near: vec![] }
    }

    #[test]
    fn tables_hold_the_points_of_each_kind_of_tag() {
        use DataType::*;
        const BAD: u32 = 0x8000_0000;
        let tags: Vec<_> = [Float, Integer, Bool, String].into_iter().map(|kind| tag("t", kind)).collect();
        let mut points = Points::default();
        let (nan, no_number) = (Value::Float(f64::NAN), BAD);
        for (line, (name, value, status)) in (1..).zip([
            ("s", Value::Text("a".into()), 0),
            ("f", Value::Float(1.5), 1),
            ("f", Value::Integer(2), 0),
            ("f", Value::Null, BAD),
            ("i", Value::Integer(i64::MAX), 2),
            ("i", Value::Float(-3.0), 0),
            ("i", nan.clone(), no_number),
            ("b", Value::Bool(true), 0),
            ("b", Value::Integer(0), 3),
            ("b", Value::Float(1.0), 0),
            ("b", nan, no_number),
            ("s", Value::Null, BAD),
        ]) {
            points.push(line, name, line as i64 - 5, value, status).unwrap();
        }
        assert_eq!(points.names().iter().map(|name| &**name).collect::<Vec<_>>(), ["s", "f", "i", "b"]);
        let tags = [3, 0, 1, 2].map(|place: usize| tags[place].clone());
        let (tables, refused) = points.tables(&tags, &checks()).unwrap();
        // The last two lines lie at 6 and 7, within the ten that are allowed.
        assert_eq!((refused, tables.len()), (Refusals::default(), 4));
        let expected: [(ArrayRef, Vec<i64>, Vec<u32>); 4] = [
            (Arc::new(Float64Array::from(vec![Some(1.5), Some(2.0), None])), vec![-3, -2, -1], vec![1, 0, BAD]),
            (Arc::new(Int64Array::from(vec![Some(i64::MAX), Some(-3), None])), vec![0, 1, 2], vec![2, 0, BAD]),
            (
                Arc::new(BooleanArray::from(vec![Some(true), Some(false), Some(true), None])),
                vec![3, 4, 5, 6],
                vec![0, 3, 0, BAD],
            ),
            (Arc::new(StringArray::from(vec![Some("a"), None])), vec![-4, 7], vec![0, BAD]),
        ];
        for (table, (values, times, statuses)) in tables.iter().zip(expected) {
            let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7; times.len()]));
            let times: ArrayRef = Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"));
            let statuses: ArrayRef = Arc::new(UInt32Array::from(statuses));
            assert_eq!(table.columns(), [numbers, times, values, statuses]);
        }
    }

    #[test]
    fn a_tag_begins_with_the_kind_of_its_first_value() {
        use DataType::*;
        let (float, integer) = (Value::Float(1.0), Value::Integer(1));
        for (values, by_format, by_look) in [
            (vec![], Float, Float),
            (vec![Value::Null, Value::Null], Float, Float),
            (vec![Value::Null, Value::Bool(true), float.clone()], Bool, Bool),
            (vec![Value::Text("x".into()), integer.clone()], String, String),
            (vec![integer.clone(), Value::Null, integer.clone()], Integer, Float),
            (vec![integer.clone(), Value::Bool(true), float.clone(), integer.clone()], Float, Float),
            (vec![float, integer], Float, Float),
        ] {
            for (tells_integers, expected) in [(true, by_format), (false, by_look)] {
                let mut points = Points { tells_integers, ..Points::default() };
                points.push(1, "other", 0, Value::Text("x".into()), 0).unwrap();
                points.push(1, "tag", 0, Value::Null, 0).unwrap();
                for value in &values {
                    points.push(1, "tag", 0, value.clone(), 0).unwrap();
                }
                assert_eq!(points.kinds(&[1, 0]), [expected, String], "{values:?}");
            }
        }
    }

    #[test]
    fn each_bound_of_a_point_is_within_it() {
        let refused = |data_type, time, value: Value<'_>, status, not_finite| {
            let mut points = Points::default();
            points.push(1, "t", time, value, status).unwrap();
            let checks = Checks { not_finite, ..checks() };
            let (tables, refused) = points.tables(&[tag("t", data_type)], &checks).unwrap();
            assert_eq!(tables.len() as u64 + refused.count, 1);
            refused.kept.first().map_or("", |refused| if refused.message.contains("ahead") { "ahead" } else { "other" })
        };
        use DataType::*;
        const BAD: u32 = 0x8000_0000;
        let one = || Value::Float(1.0);
        assert_eq!([10, 11].map(|time| refused(Float, time, one(), 0, NotFinite::Refuse)), ["", "ahead"]);
        assert_eq!(
            [u32::MAX - 1, u32::MAX].map(|code| refused(Float, 0, one(), code, NotFinite::Refuse)),
            ["", "other"]
        );
        for (kind, value, expected) in [
            (Integer, Value::Float(EXACT), ""),
            (Integer, Value::Float(-EXACT), ""),
            (Integer, Value::Float(EXACT + 2.0), "other"),
            (Bool, Value::Integer(1), ""),
            (Bool, Value::Integer(2), "other"),
            (Bool, Value::Integer(-1), "other"),
            (Bool, Value::Float(0.0), ""),
            (Bool, Value::Float(0.5), "other"),
            (String, Value::Integer(1), "other"),
            (String, Value::Bool(true), "other"),
            (Integer, Value::Bool(true), "other"),
            (Integer, Value::Text("1".into()), "other"),
            (Bool, Value::Text("true".into()), "other"),
            (String, Value::Float(f64::NAN), "other"),
        ] {
            assert_eq!(refused(kind, 0, value.clone(), 0, NotFinite::Refuse), expected, "{value:?}");
            assert_eq!(refused(kind, 0, value, BAD, NotFinite::Bad), expected);
        }
        for (kind, value) in [
            (Float, Value::Null),
            (Float, Value::Float(f64::NAN)),
            (Integer, Value::Float(f64::INFINITY)),
            (Bool, Value::Float(f64::NAN)),
            (String, Value::Null),
        ] {
            assert_eq!(refused(kind, 0, value.clone(), 0, NotFinite::Refuse), "other", "{value:?}");
            assert_eq!(refused(kind, 0, value.clone(), BAD, NotFinite::Refuse), "");
            assert_eq!(refused(kind, 0, value, 0, NotFinite::Bad), "");
        }
    }

    #[test]
    fn names_near_an_unknown_one_are_named_once() {
        let mut points = Points::default();
        for (line, name) in [(1, "known"), (2, "first"), (3, "second"), (4, "first")] {
            points.push(line, name, 0, Value::Null, 0x8000_0000).unwrap();
        }
        let checks = Checks { near: vec!["fist".into()], ..checks() };
        let (_, refused) = points.tables(&[tag("known", DataType::Float), None, None], &checks).unwrap();
        let near: Vec<bool> = refused.kept.iter().map(|refused| refused.message.contains("mean fist?")).collect();
        assert_eq!((near, refused.unknown), (vec![true, false, true], 3));
    }

    #[test]
    fn messages_are_cut_and_refusals_left_out_beyond_their_bounds() {
        let mut refused = Refusals::default();
        refused.note(1, || "x".repeat(MESSAGE_BYTES_MAX));
        refused.note(2, || "x".repeat(MESSAGE_BYTES_MAX + 1));
        let lengths: Vec<usize> = refused.kept.iter().map(|refused| refused.message.len()).collect();
        assert_eq!(lengths, [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 3]);
        assert!(refused.kept[1].message.ends_with("x..."));
        for line in 3..=REFUSALS_KEPT_MAX as u64 + 1 {
            refused.note(line, || "a line".into());
        }
        assert_eq!((refused.kept.len() as u64, refused.count), (100, 101));
        let other = Refusals { count: 5, unknown: 2, kept: vec![Refused { line: 0, message: String::new() }] };
        let both = refused.with(Refusals { unknown: 1, ..other.clone() }.with(other));
        assert_eq!((both.count, both.unknown, both.kept.len()), (111, 3, 100));
        assert_eq!(both.kept.iter().take(3).map(|refused| refused.line).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn blocks_are_filled_and_room_in_them_is_made_for_as_many_rows_as_there_are() {
        let rows = |points: &Points| points.blocks.iter().map(Block::len).collect::<Vec<_>>();
        let mut points = Points::default();
        assert!(points.is_empty());
        for line in 1..=65_537 {
            points.push(line, "t", 0, Value::Bool(true), 0).unwrap();
            let block = points.blocks.last().unwrap();
            // Twice as many each time, from 64 up to a whole block.
            assert_eq!(block.tags.capacity(), block.len().next_power_of_two().max(64));
        }
        assert_eq!((rows(&points), points.is_empty(), points.len()), (vec![65_536, 1], false, 65_537));
        let block = &points.blocks[0];
        let row_bytes = size_of_val(&*block.tags)
            + size_of_val(&*block.times)
            + size_of_val(&*block.kinds)
            + size_of_val(&*block.bits)
            + size_of_val(&*block.lines)
            + block.len() * size_of::<u32>();
        assert_eq!(row_bytes, ROW_BYTES * 65_536);

        let text = "x".repeat(1 << 20);
        let mut points = Points::default();
        for line in 1..=5 {
            points.push(line, "t", 0, Value::Text((&*text).into()), 0).unwrap();
        }
        points.push(6, "t", 0, Value::Null, 0).unwrap();
        assert_eq!(rows(&points), [4, 2]);
    }

    #[test]
    fn room_for_texts_is_paid_for_when_it_is_made() {
        let memory = Memory::new(1 << 20);
        let mut points = Points::charged(memory.empty());
        let mut push = |name: &str, text: &str| {
            let before = memory.bytes();
            points.push(1, name, 0, Value::Text(text.into()), 0).unwrap();
            memory.bytes() - before
        };
        let first = push("t", "1234567890");
        assert_eq!(first, ROW_BYTES * BLOCK_ROWS_FIRST + NAME_BYTES + 2 + 64);
        // They fit just so.
        assert_eq!(push("t", &"x".repeat(54)), 0);
        assert_eq!(push("t", "x"), 64);
        assert_eq!(push("t", &"x".repeat(1_000)), 1_000);
        assert_eq!(push("another", ""), NAME_BYTES + 2 * "another".len());
        assert_eq!(push("another", ""), 0);
        points.pay(5_000);
        assert!(memory.bytes() > 5_000 && points.memory_error().is_none());
        points.pay(1 << 20);
        assert!(points.memory_error().is_some());
    }

    #[test]
    fn a_name_has_at_most_so_many_bytes_with_all_that_belongs_to_it() {
        for more in [0, 1, 100] {
            let name = "n".repeat(NAME_BYTES_MAX - more);
            assert!(check_series(&name, more, &[]).is_ok());
            assert!(check_series(&name, more + 1, &[]).is_err());
            // One quote is escaped: {la="v\""} has ten bytes.
            let labels = [("la", "v\"")];
            assert!(check_series(&name[10..], more, &labels).is_ok());
            assert!(check_series(&name[9..], more, &labels).is_err());
            assert!(check_series(&name[5..], more, &[("", "")]).is_ok());
            assert!(check_series(&name[4..], more, &[("", "")]).is_err());
        }
    }

    proptest! {
        #[test]
        fn a_series_is_refused_by_the_bytes_of_its_name(name in "[a-zé]{1,40}", labels in proptest::collection::vec(("[a-z]{0,60}", "[\"\\\\a]{0,99}"), 0..6)) {
            let mut labels: Vec<(&str, &str)> = labels.iter().map(|(label, value)| (&**label, &**value)).collect();
            let fits = check_series(&name, 0, &labels).is_ok();
            prop_assert_eq!(fits, series_name(&name, &mut labels).len() <= NAME_BYTES_MAX);
        }

        #[test]
        fn rows_come_back_as_they_were_pushed(rows in proptest::collection::vec((0u8..5, 0u32..3, any::<i64>(), ".{0,5}"), 0..300)) {
            let value = |kind: u8, time: i64, text: &str| match kind {
                0 => Value::Float(time as f64 / 3.0),
                1 => Value::Integer(time),
                2 => Value::Bool(time > 0),
                3 => Value::Text(text.to_owned().into()),
                _ => Value::Null,
            };
            let mut points = Points::default();
            for (line, (kind, status, time, text)) in (1..).zip(&rows) {
                points.push(line, text, *time, value(*kind, *time, text), *status).unwrap();
            }
            prop_assert_eq!(points.len(), rows.len());
            for (found, (line, (kind, status, time, text))) in points.rows().zip((1u64..).zip(&rows)) {
                prop_assert_eq!(found, (line, &**text, *time, value(*kind, *time, text), *status));
            }
        }
    }

    #[test]
    fn labels_make_the_same_name_in_any_order() {
        assert_eq!(series_name("up", &mut []), "up");
        let name = r#"up{host="a\"b",job="x"}"#;
        assert_eq!(series_name("up", &mut [("job", "x"), ("host", "a\"b")]), name);
        assert_eq!(series_name("up", &mut [("host", "a\"b"), ("job", "x")]), name);
    }
}
