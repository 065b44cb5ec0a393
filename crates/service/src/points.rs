//! Points on their way in: what every text format is read into, and how it becomes the columns that the historian stores.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
};
use arrow_schema::ArrowError;
use chronotile_historian::rules::Status;
use chronotile_historian::{DataType, NotFinite, Tag};
use hashbrown::HashMap;

/// A value as a format says it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Float(f64),
    /// A whole number, all digits of which count.
    Integer(i64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(Box<str>),
    /// None.
    Null,
}

impl Value {
    /// What a tag is, of which this is the first value.
    fn data_type(&self) -> DataType {
        match self {
            Self::Float(_) | Self::Null => DataType::Float,
            Self::Integer(_) => DataType::Integer,
            Self::Bool(_) => DataType::Bool,
            Self::Text(_) => DataType::String,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Float(_) => "number",
            Self::Integer(_) => "whole number",
            Self::Bool(_) => "bool",
            Self::Text(_) => "text",
            Self::Null => "null",
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

/// The points of one request, by row.
#[derive(Debug, Default)]
pub struct Points {
    names: Vec<String>,
    places: HashMap<String, u32>,
    tags: Vec<u32>,
    times: Vec<i64>,
    values: Vec<Value>,
    statuses: Vec<u32>,
    lines: Vec<u64>,
    /// Lines that were not understood.
    pub refused: Vec<Refused>,
    /// Whether the format tells whole numbers from others by more than their look.
    pub(crate) tells_integers: bool,
}

/// What becomes of points that may be stored.
pub(crate) struct Checks {
    /// No point lies beyond it, ns.
    pub time_max: i64,
    pub not_finite: NotFinite,
}

/// Exactly representable whole numbers end here.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Points {
    /// Takes a point.
    pub fn push(&mut self, line: u64, name: &str, time: i64, value: Value, status: u32) {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => {
                let place = self.names.len() as u32;
                self.names.push(name.to_owned());
                self.places.insert(name.to_owned(), place);
                place
            }
        };
        self.tags.push(place);
        self.times.push(time);
        self.values.push(value);
        self.statuses.push(status);
        self.lines.push(line);
    }

    /// Notes a line that was not understood.
    pub fn refuse(&mut self, line: u64, message: impl Into<String>) {
        self.refused.push(Refused { line, message: message.into() });
    }

    /// The points: line, tag, time, value, status.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &str, i64, &Value, u32)> {
        (0..self.tags.len()).map(|row| {
            let name = self.names[self.tags[row] as usize].as_str();
            (self.lines[row], name, self.times[row], &self.values[row], self.statuses[row])
        })
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// The names of the tags, each once.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What kinds of values the tags at these places of `names` begin with.
    pub(crate) fn kinds(&self, places: &[usize]) -> Vec<DataType> {
        let mut kinds = vec![None; self.names.len()];
        for (place, value) in self.tags.iter().zip(&self.values) {
            let kind = &mut kinds[*place as usize];
            // A series that has whole numbers and others is one of numbers.
            *kind = match (*kind, value) {
                (None, Value::Null) => None,
                (None, Value::Integer(_)) if !self.tells_integers => Some(DataType::Float),
                (None, value) => Some(value.data_type()),
                (Some(DataType::Integer), Value::Float(_)) => Some(DataType::Float),
                (known, _) => known,
            };
        }
        places.iter().map(|place| kinds[*place].unwrap_or(DataType::Float)).collect()
    }

    /// The points as tables that the historian takes, one for each kind of tag, and the lines that do not fit their tags.
    pub(crate) fn tables(
        mut self,
        tags: &[Option<Arc<Tag>>],
        checks: &Checks,
    ) -> Result<(Vec<RecordBatch>, Vec<Refused>), ArrowError> {
        let mut refused = std::mem::take(&mut self.refused);
        let mut kinds: [Vec<usize>; 4] = Default::default();
        for row in 0..self.tags.len() {
            match self.fit(row, tags, checks) {
                Ok(kind) => kinds[kind as usize].push(row),
                Err(message) => refused.push(Refused { line: self.lines[row], message }),
            }
        }
        refused.sort_by_key(|refused| refused.line);
        let kept = kinds.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        let tables = kept.map(|(kind, rows)| self.table(kind, rows, tags)).collect::<Result<_, _>>()?;
        Ok((tables, refused))
    }

    /// The kind of table a row goes to, or what is wrong with it.
    fn fit(&self, row: usize, tags: &[Option<Arc<Tag>>], checks: &Checks) -> Result<DataType, String> {
        let place = self.tags[row] as usize;
        let Some(tag) = &tags[place] else {
            let name = &self.names[place];
            return Err(format!("no tag {name:?}: define it first, or write with define=true"));
        };
        let value = &self.values[row];
        let wrong = |what: &str| format!("tag {:?} is of type {}, the value {what}", tag.name, tag.data_type.name());
        let fits = match (tag.data_type, value) {
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
            let shown = match value {
                Value::Float(number) => format!("is {number}"),
                Value::Integer(number) => format!("is {number}"),
                Value::Text(text) => format!("{text:?} is text"),
                other => format!("is a {}", other.word()),
            };
            return Err(wrong(&shown));
        }
        let unusable = matches!(value, Value::Null) || matches!(value, Value::Float(number) if !number.is_finite());
        if unusable && !Status(self.statuses[row]).is_bad() && checks.not_finite == NotFinite::Refuse {
            return Err(format!(
                "tag {:?} has no value that is a finite number, and its status is not Bad: give one, or write with \
                 not_finite=bad",
                tag.name
            ));
        }
        if self.times[row] > checks.time_max {
            return Err(format!(
                "the time of tag {:?} lies further ahead of this machine's clock than max_future allows: correct it, or have \
                 max_future raised",
                tag.name
            ));
        }
        if self.statuses[row] == u32::MAX {
            return Err("status 4294967295 is none of OPC UA".into());
        }
        Ok(tag.data_type)
    }

    fn table(&self, kind: usize, rows: &[usize], tags: &[Option<Arc<Tag>>]) -> Result<RecordBatch, ArrowError> {
        let number = |row: &usize| tags[self.tags[*row] as usize].as_ref().map_or(0, |tag| tag.number);
        let times: Vec<i64> = rows.iter().map(|row| self.times[*row]).collect();
        let columns: [(&str, ArrayRef); 4] = [
            ("tag", Arc::new(Int64Array::from_iter_values(rows.iter().map(number)))),
            ("time", Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"))),
            ("value", self.column(kind, rows)),
            ("status", Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| self.statuses[*row])))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, name == "value")))
    }

    fn column(&self, kind: usize, rows: &[usize]) -> ArrayRef {
        let values = rows.iter().map(|row| &self.values[*row]);
        if kind == DataType::Float as usize {
            return Arc::new(values.map(Self::float).collect::<Float64Array>());
        }
        if kind == DataType::Integer as usize {
            return Arc::new(values.map(Self::integer).collect::<Int64Array>());
        }
        if kind == DataType::Bool as usize {
            let bool = |value: &Value| match value {
                Value::Bool(value) => Some(*value),
                other => Self::float(other).filter(|number| number.is_finite()).map(|number| number != 0.0),
            };
            return Arc::new(values.map(bool).collect::<BooleanArray>());
        }
        let text = |value: &Value| if let Value::Text(text) = value { Some(text.to_string()) } else { None };
        Arc::new(values.map(text).collect::<StringArray>())
    }

    fn float(value: &Value) -> Option<f64> {
        match value {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => Some(*number as f64),
            _ => None,
        }
    }

    fn integer(value: &Value) -> Option<i64> {
        match value {
            Value::Integer(number) => Some(*number),
            Value::Float(number) if number.is_finite() => Some(*number as i64),
            _ => None,
        }
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

    fn refusal(data_type: DataType, value: Value, status: u32) -> Option<String> {
        let mut points = Points::default();
        points.push(3, "t", 0, value, status);
        let checks = Checks { time_max: 10, not_finite: NotFinite::Refuse };
        let (tables, refused) = points.tables(&[tag("t", data_type)], &checks).unwrap();
        assert_eq!(tables.len() + refused.len(), 1);
        refused.into_iter().next().map(|refused| {
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
        for (kind, value) in [
            (Float, Value::Bool(true)),
            (Float, Value::Text("1".into())),
            (Integer, Value::Float(1.5)),
            (Integer, Value::Float(1e300)),
            (Bool, Value::Float(2.0)),
            (String, Value::Float(2.0)),
        ] {
            assert!(refusal(kind, value.clone(), 0).unwrap().contains("is of type"), "{value:?}");
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
        points.push(1, "known", 0, Value::Float(1.0), 0);
        points.push(2, "unknown", 0, Value::Float(1.0), 0);
        points.push(4, "known", 99, Value::Float(1.0), 0);
        points.refuse(3, "is no line");
        let checks = Checks { time_max: 10, not_finite: NotFinite::Refuse };
        let (tables, refused) = points.tables(&[tag("known", DataType::Float), None], &checks).unwrap();
        assert_eq!(tables.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        assert_eq!(refused.iter().map(|refused| refused.line).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn labels_make_the_same_name_in_any_order() {
        assert_eq!(series_name("up", &mut []), "up");
        let name = r#"up{host="a\"b",job="x"}"#;
        assert_eq!(series_name("up", &mut [("job", "x"), ("host", "a\"b")]), name);
        assert_eq!(series_name("up", &mut [("host", "a\"b"), ("job", "x")]), name);
    }
}
