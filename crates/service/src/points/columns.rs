//! Checks points against the types of their tags, and converts them to the columns that the historian stores.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
};
use arrow_schema::ArrowError;
use chronotile_historian::rules::Status;
use chronotile_historian::{DataType, NotFinite, Tag, meant};

use super::Points;
use super::block::Block;
use super::refusals::Refusals;
use super::value::Value;

/// The largest magnitude (2^53) up to which a float represents every integer exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The rules by which points are refused.
pub(crate) struct Checks {
    /// Latest allowed time, ns.
    pub time_max: i64,
    pub not_finite: NotFinite,
    /// Tag names similar to the first unknown one.
    pub near: Vec<String>,
}

impl Points {
    /// The data types of new tags, inferred from their values. `places` are indexes in `names`.
    pub(crate) fn kinds(&self, places: &[usize]) -> Vec<DataType> {
        let mut kinds = vec![None; self.names.len()];
        for block in &self.blocks {
            for row in 0..block.len() {
                let kind = &mut kinds[block.tags[row] as usize];
                // A series of integers and floats is a series of floats.
                *kind = match (*kind, block.value(row)) {
                    (None, Value::Null) => None,
                    (None, Value::Integer(_)) if !self.marks_integers => Some(DataType::Float),
                    (None, value) => Some(value.data_type()),
                    (Some(DataType::Integer), Value::Float(_)) => Some(DataType::Float),
                    (known, _) => known,
                };
            }
        }
        places.iter().map(|place| kinds[*place].unwrap_or(DataType::Float)).collect()
    }

    /// Converts the points to tables for the historian, each of one data type, and returns the refused lines. Frees each block
    /// after its conversion; the caller must have charged the memory of the tables.
    pub(crate) fn tables(
        self,
        tags: &[Option<Arc<Tag>>],
        checks: &Checks,
    ) -> Result<(Vec<RecordBatch>, Refusals), ArrowError> {
        let checker = TypeCheck { names: &self.names, tags, checks };
        let (mut tables, mut rejected) = (Vec::new(), Refusals::default());
        for block in self.blocks {
            let mut kinds: [Vec<u32>; 4] = Default::default();
            for row in 0..block.len() {
                match checker.data_type(&block, row) {
                    Ok(kind) => kinds[kind as usize].push(row as u32),
                    Err(mismatch) => {
                        rejected.unknown += u64::from(matches!(mismatch, Mismatch::Unknown));
                        let line = u64::from(block.lines[row]);
                        rejected.note(line, || checker.message(&block, row, &mismatch));
                    }
                }
            }
            for (kind, rows) in kinds.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
                tables.push(table(&block, kind, rows, tags)?);
            }
        }
        Ok((tables, self.refused.merge(rejected)))
    }
}

/// Checks each point against its tag and the rules of the request.
struct TypeCheck<'a> {
    names: &'a [Box<str>],
    tags: &'a [Option<Arc<Tag>>],
    checks: &'a Checks,
}

/// Why a point is refused.
enum Mismatch {
    Unknown,
    Type,
    NoNumber,
    Future,
    Status,
}

impl TypeCheck<'_> {
    /// The data type of the table that a row belongs to, or why it is refused.
    fn data_type(&self, block: &Block, row: usize) -> Result<DataType, Mismatch> {
        let Some(tag) = &self.tags[block.tags[row] as usize] else { return Err(Mismatch::Unknown) };
        let (value, status) = (block.value(row), block.status(row));
        let fits = match (tag.data_type, &value) {
            (_, Value::Null) | (DataType::Float, Value::Float(_) | Value::Integer(_)) => true,
            (DataType::Integer, Value::Integer(_)) | (DataType::Bool, Value::Bool(_)) => true,
            (DataType::String, Value::Text(_)) => true,
            // A number that is not finite fits integers and bools too: the next check refuses it, or `Value::integer`
            // and `Value::bool` make it null.
            (DataType::Integer, Value::Float(number)) if !number.is_finite() => true,
            (DataType::Integer, Value::Float(number)) => number.fract() == 0.0 && number.abs() <= EXACT,
            (DataType::Bool, Value::Float(number)) => *number == 0.0 || *number == 1.0 || !number.is_finite(),
            (DataType::Bool, Value::Integer(number)) => matches!(number, 0 | 1),
            _ => false,
        };
        if !fits {
            return Err(Mismatch::Type);
        }
        let unusable = matches!(value, Value::Null) || matches!(value, Value::Float(number) if !number.is_finite());
        if unusable && !Status(status).is_bad() && self.checks.not_finite == NotFinite::Refuse {
            return Err(Mismatch::NoNumber);
        }
        if block.times[row] > self.checks.time_max {
            return Err(Mismatch::Future);
        }
        // The historian stores this status in its deletion markers, which hide points and are hidden themselves.
        if status == u32::MAX {
            return Err(Mismatch::Status);
        }
        Ok(tag.data_type)
    }

    fn message(&self, block: &Block, row: usize, mismatch: &Mismatch) -> String {
        let place = block.tags[row] as usize;
        let name = &self.names[place];
        match mismatch {
            Mismatch::Unknown => {
                let first = self.tags.iter().position(Option::is_none) == Some(place);
                let near = if first { meant(&self.checks.near) } else { String::new() };
                format!("no tag {name:?}{near}: define it first, or write with define=true")
            }
            Mismatch::Type => {
                let kind = self.tags[place].as_ref().map_or("none", |tag| tag.data_type.name());
                format!("tag {name:?} has type {kind}, but the value {}", block.value(row).description())
            }
            Mismatch::NoNumber => format!(
                "tag {name:?} has no finite value, and its status is not Bad: give a value, or write with \
                 not_finite=bad"
            ),
            Mismatch::Future => format!(
                "the time of tag {name:?} lies further ahead of this machine's clock than max_future allows: correct it, or \
                 have max_future raised"
            ),
            Mismatch::Status => "status 4294967295 is not an OPC UA status code".to_owned(),
        }
    }
}

/// Builds a table for the historian from the rows of one data type.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::refusals::{MESSAGE_BYTES_MAX, REFUSALS_KEPT_MAX};
    use chronotile_historian::rules::Settings;

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
            (Float, Value::Bool(true), "has type float, but the value is a bool"),
            (Float, Value::Text("1".into()), "has type float, but the value \"1\" is text"),
            (Integer, Value::Float(1.5), "has type integer, but the value is 1.5"),
            (Integer, Value::Float(1e300), "has type integer, but the value is 1000"),
            (Bool, Value::Float(2.0), "has type bool, but the value is 2"),
            (String, Value::Integer(2), "has type string, but the value is 2"),
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
        // The last two lines have times 6 and 7, below the limit of 10.
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
            for (marks_integers, expected) in [(true, by_format), (false, by_look)] {
                let mut points = Points { marks_integers, ..Points::default() };
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
}
