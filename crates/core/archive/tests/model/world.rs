//! Random shapes of datasets, and their rows.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Date32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    TimestampNanosecondArray,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_sky::{Pixelization, Scheme};
use chronotile_types::{
    CellRule, DatasetName, DatasetSpec, Instant, MergeRule, TimeFormat, TimeScale, TimeSpec, Window,
};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// Default of the added column for older rows, if it was added with a default.
pub const EXTRA_DEFAULT: i32 = -5;
/// Values of `x`, distinguished by their bits.
pub const XS: [f64; 9] = [
    0.0,
    -0.0,
    1.5,
    -2.25,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::from_bits(0x7ff8_0000_0000_1234),
    f64::from_bits(0xfff8_0000_0000_0001),
];
pub const NOTES: [&str; 4] = ["", "a", "an alarm that goes on for a while", "µ"];
/// Substrings of `NOTES` and similar texts. As regular expressions, all match themselves literally.
pub const PARTS: [&str; 9] = ["", "a", "µ", "an ", "alarm", "alarms", "goes on for", "while", "bell"];
/// Positions close to each other, at a pole, and on both sides of ra 0.
pub const PLACES: [(f64, f64); 9] = [
    (10.0, 10.0),
    (10.2, 10.1),
    (10.7, 10.5),
    (11.5, 9.5),
    (0.0, 0.0),
    (359.99, 0.01),
    (-0.01, -0.01),
    (200.0, -89.99),
    (20.0, -90.0),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Micro,
    NanoZone,
    Date,
    Mjd,
    Jd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    None,
    Number,
    Text,
    Both,
    NumberAndTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Single,
    Value,
    TagBucket,
    IdBucket,
    HashOfTag,
    HashOfText,
    Sky,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    Append,
    Latest,
    LatestByVersion,
    LatestByFloat,
}

#[derive(Clone, Debug)]
pub struct Shape {
    pub axis: Axis,
    pub ids: Ids,
    pub rule: Rule,
    pub merge: Merge,
    pub window_steps: i64,
    pub windows_per_slice: u32,
    /// Whether chunks have text filters.
    pub filtered: bool,
}

/// A row, independent of the time axis. Its time is `k` steps, plus `fine` times the smallest difference of the axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub k: i64,
    pub fine: u8,
    pub id: i64,
    pub sub: u8,
    pub version: Option<i64>,
    pub place: usize,
    pub tag: i64,
    pub x: Option<usize>,
    pub note: Option<usize>,
    /// `None` if the row was written without the column.
    pub extra: Option<Option<i32>>,
}

/// A time in the unit of the column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum T {
    Tick(i64),
    Day(f64),
}

impl T {
    pub fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Tick(a), Self::Tick(b)) => a.cmp(b),
            (Self::Day(a), Self::Day(b)) => a.partial_cmp(b).unwrap(),
            _ => unreachable!("one axis has one kind of time"),
        }
    }

    pub fn instant(&self) -> Instant {
        match self {
            Self::Tick(tick) => Instant::NativeTicks(*tick),
            Self::Day(day) => Instant::Native(*day),
        }
    }
}

pub fn sub_text(sub: u8) -> String {
    format!("building-7/floor-2/sensor-{sub}")
}

impl Shape {
    pub fn strategy() -> impl Strategy<Value = Self> {
        use Axis::*;
        let axis = prop_oneof![Just(Micro), Just(NanoZone), Just(Date), Just(Mjd), Just(Jd)];
        let ids = prop_oneof![
            Just(Ids::None),
            Just(Ids::Number),
            Just(Ids::Number),
            Just(Ids::Text),
            Just(Ids::Both),
            Just(Ids::NumberAndTime)
        ];
        let rule = prop_oneof![
            Just(Rule::Single),
            Just(Rule::Value),
            Just(Rule::TagBucket),
            Just(Rule::IdBucket),
            Just(Rule::HashOfTag),
            Just(Rule::HashOfText),
            Just(Rule::Sky),
            Just(Rule::Sky)
        ];
        let merge = prop_oneof![
            Just(Merge::Append),
            Just(Merge::Append),
            Just(Merge::Latest),
            Just(Merge::LatestByVersion),
            Just(Merge::LatestByFloat)
        ];
        (axis, ids, rule, merge, 1..=3i64, 1..=3u32, any::<bool>()).prop_map(
            |(axis, ids, rule, merge, window_steps, windows_per_slice, filtered)| {
                let merge = if ids == Ids::None { Merge::Append } else { merge };
                // Float days cannot be id columns.
                let days = matches!(axis, Mjd | Jd);
                let ids = if days && ids == Ids::NumberAndTime { Ids::Number } else { ids };
                Self { axis, ids, rule, merge, window_steps, windows_per_slice, filtered }
            },
        )
    }

    pub fn spec(&self) -> DatasetSpec {
        let text = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let (format, step_s) = match self.axis {
            Axis::Micro | Axis::NanoZone => (TimeFormat::Timestamp, 3_600),
            Axis::Date => (TimeFormat::Timestamp, 3 * 86_400),
            Axis::Mjd => (TimeFormat::Mjd, 3_600),
            Axis::Jd => (TimeFormat::Jd, 3_600),
        };
        let time = TimeSpec { column: "t".into(), format, scale: TimeScale::Utc };
        let window = chronotile_types::Duration::from_seconds(step_s * self.window_steps).unwrap();
        let name = DatasetName::new("model").unwrap();
        let spec = DatasetSpec {
            cell: match self.rule {
                Rule::Single => CellRule::Single,
                Rule::Value => CellRule::Value { column: "tag".into() },
                Rule::TagBucket => CellRule::IdBucket { column: "tag".into(), size: 2 },
                Rule::IdBucket => CellRule::IdBucket { column: "id".into(), size: 5 },
                Rule::HashOfTag => CellRule::Hash { columns: text(&["tag"]), buckets: Some(2) },
                Rule::HashOfText => CellRule::Hash { columns: text(&["sub", "note"]), buckets: Some(3) },
                Rule::Sky => {
                    CellRule::Sky { ra: "ra".into(), dec: "dec".into(), scheme: "mq3c".into(), level: SKY_LEVEL as u8 }
                }
            },
            windows_per_slice: self.windows_per_slice,
            id: match self.ids {
                Ids::None => vec![],
                Ids::Number => text(&["id"]),
                Ids::Text => text(&["sub"]),
                Ids::Both => text(&["sub", "id"]),
                Ids::NumberAndTime => text(&["id", "t"]),
            },
            merge: match self.merge {
                Merge::Append => MergeRule::Append,
                Merge::Latest => MergeRule::Latest { version: None },
                Merge::LatestByVersion => MergeRule::Latest { version: Some("version".into()) },
                Merge::LatestByFloat => MergeRule::Latest { version: Some("x".into()) },
            },
            text: if self.filtered { text(&["note", "sub"]) } else { vec![] },
            ..DatasetSpec::new(name, Arc::new(Schema::new(self.fields())), time, window)
        };
        spec.checked().unwrap()
    }

    fn fields(&self) -> Vec<Field> {
        let time = match self.axis {
            Axis::Micro => DataType::Timestamp(TimeUnit::Microsecond, None),
            Axis::NanoZone => DataType::Timestamp(TimeUnit::Nanosecond, Some("America/Santiago".into())),
            Axis::Date => DataType::Date32,
            Axis::Mjd | Axis::Jd => DataType::Float64,
        };
        vec![
            Field::new("t", time, true),
            Field::new("id", DataType::Int64, true),
            Field::new("sub", DataType::Utf8, true),
            Field::new("version", DataType::Int64, true),
            Field::new("ra", DataType::Float64, true),
            Field::new("dec", DataType::Float64, true),
            Field::new("tag", DataType::Int64, true),
            Field::new("x", DataType::Float64, true),
            Field::new("note", DataType::Utf8, true),
        ]
    }

    /// The time `k` steps after the epoch, plus `fine` times the smallest difference.
    pub fn time(&self, k: i64, fine: u8) -> T {
        let days = |epoch: f64| {
            let mut day = epoch + k as f64 / 144.0;
            (0..fine).for_each(|_| day = day.next_up());
            T::Day(day)
        };
        match self.axis {
            Axis::Micro => T::Tick(k * 600_000_000 + i64::from(fine)),
            Axis::NanoZone => T::Tick(k * 600_000_000_000 + i64::from(fine)),
            Axis::Date => T::Tick(k),
            Axis::Mjd => days(40_587.0),
            Axis::Jd => days(2_440_587.5),
        }
    }

    pub fn time_of(&self, row: &Row) -> T {
        self.time(row.k, row.fine)
    }

    pub fn tick(&self, spec: &DatasetSpec, time: T) -> i64 {
        match time {
            T::Tick(tick) => tick,
            T::Day(day) => spec.time.tick_of_days(day).unwrap(),
        }
    }

    pub fn window(&self, spec: &DatasetSpec, row: &Row) -> Window {
        spec.window_of(self.tick(spec, self.time_of(row))).unwrap()
    }

    pub fn cell(&self, row: &Row) -> i64 {
        let hash = |bytes: Vec<u8>, buckets: i64| (xxh3_64(&bytes) & (i64::MAX as u64)) as i64 % buckets;
        match self.rule {
            Rule::Single => 0,
            Rule::Value => row.tag,
            Rule::TagBucket => row.tag.div_euclid(2),
            Rule::IdBucket => row.id.div_euclid(5),
            Rule::HashOfTag => {
                let mut bytes = vec![1];
                bytes.extend(row.tag.to_le_bytes());
                hash(bytes, 2)
            }
            Rule::HashOfText => {
                let mut bytes = vec![];
                for text in [Some(sub_text(row.sub)), row.note.map(|n| NOTES[n].to_owned())] {
                    bytes.push(u8::from(text.is_some()));
                    if let Some(text) = text {
                        bytes.extend((text.len() as u32).to_le_bytes());
                        bytes.extend(text.bytes());
                    }
                }
                hash(bytes, 3)
            }
            Rule::Sky => {
                let (ra, dec) = PLACES[row.place];
                pixels().index(ra, dec).unwrap() as i64
            }
        }
    }

    /// Rows as the archive takes and returns them. With `extra`, they include the added column, which has that value in older rows.
    pub fn batch(&self, rows: &[&Row], extra: Option<Option<i32>>) -> RecordBatch {
        let times: Vec<T> = rows.iter().map(|row| self.time_of(row)).collect();
        let ticks = || times.iter().map(|t| if let T::Tick(tick) = t { *tick } else { 0 });
        let time: ArrayRef = match self.axis {
            Axis::Micro => Arc::new(TimestampMicrosecondArray::from_iter_values(ticks())),
            Axis::NanoZone => {
                Arc::new(TimestampNanosecondArray::from_iter_values(ticks()).with_timezone("America/Santiago"))
            }
            Axis::Date => Arc::new(Date32Array::from_iter_values(ticks().map(|t| t as i32))),
            Axis::Mjd | Axis::Jd => Arc::new(Float64Array::from_iter_values(
                times.iter().map(|t| if let T::Day(day) = t { *day } else { 0.0 }),
            )),
        };
        let float = |pick: fn(&Row) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| pick(row))))
        };
        let mut columns: Vec<ArrayRef> = vec![
            time,
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.id))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| sub_text(row.sub)))),
            Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.version))),
            float(|row| PLACES[row.place].0),
            float(|row| PLACES[row.place].1),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.tag))),
            Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.x.map(|x| XS[x])))),
            Arc::new(StringArray::from_iter(rows.iter().map(|row| row.note.map(|n| NOTES[n])))),
        ];
        let mut fields = self.fields();
        if let Some(absent) = extra {
            columns.push(Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.extra.unwrap_or(absent)))));
            fields.push(Field::new("extra", DataType::Int32, true));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }
}

const SKY_LEVEL: u32 = 8;

pub fn pixels() -> Pixelization {
    Pixelization::new(Scheme::Mq3c, SKY_LEVEL).unwrap()
}

impl Row {
    pub fn strategy() -> impl Strategy<Value = Self> {
        // Few values each, so that ids, times and cells repeat.
        (
            (-15..30i64, 0..3u8, -12..12i64, 0..4u8, prop::option::of(-2..3i64)),
            (0..PLACES.len(), -3..4i64, prop::option::of(0..XS.len()), prop::option::of(0..NOTES.len())),
            prop::option::of(0..3i32),
        )
            .prop_map(|((k, fine, id, sub, version), (place, tag, x, note), extra)| Self {
                k,
                fine,
                id,
                sub,
                version,
                place,
                tag,
                x,
                note,
                extra: Some(extra),
            })
    }
}
