//! Points as JSON: `{"points": [{"tag": ..., "time": ..., "value": ..., "status": ...}, ...]}`, the list alone, or columns.
//!
//! A first pass validates the body as JSON. Each point is then parsed from its own text, so that only one is decoded at
//! a time. A nested time or value is skipped without being built, however large it is.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::parameters::time_ns;
use crate::points::{Points, Value, shown};

/// An object of rows or of columns, depending on which fields are present.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    points: Option<&'a RawValue>,
    #[serde(borrow)]
    tag: Option<&'a RawValue>,
    #[serde(borrow)]
    time: Option<&'a RawValue>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(borrow)]
    tag: Cow<'a, str>,
    #[serde(borrow)]
    time: Scalar<'a>,
    #[serde(borrow)]
    value: Scalar<'a>,
    #[serde(default)]
    status: Option<u32>,
}

/// A JSON value other than a list or object.
#[derive(Clone, Debug, PartialEq)]
enum Scalar<'a> {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Cow<'a, str>),
    /// A list or an object, whose content is discarded.
    Nested(&'static str),
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Scalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Scalar::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(Scalar::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(Scalar::Integer(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                // Integer values have 64 bits with a sign; a larger number becomes a float.
                Ok(i64::try_from(value).map_or(Scalar::Float(value as f64), Scalar::Integer))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(Scalar::Float(value))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nested("a list"))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nested("an object"))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Scalar<'_> {
    /// The value as it appears in messages.
    fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Text(text) => shown(text),
            Self::Nested(kind) => (*kind).to_owned(),
        }
    }
}

/// Parses a body. Points that cannot be parsed are recorded by position, counted from 1.
///
/// # Errors
/// The body is not JSON of one of these forms.
pub fn read(body: &[u8], now_ns: i64, points: &mut Points) -> Result<(), String> {
    let refuse = |error: serde_json::Error| {
        format!(
            "the body is not a JSON object of points ({error}): write {{\"points\": [{{\"tag\": ..., \"time\": ..., \"value\": ...}}]}}"
        )
    };
    let text = std::str::from_utf8(body).map_err(|_| "the body is invalid UTF-8".to_owned())?;
    if text.trim_start().starts_with('[') {
        return read_rows(serde_json::from_str(text).map_err(refuse)?, now_ns, points);
    }
    match serde_json::from_str::<Body<'_>>(text).map_err(refuse)? {
        Body { points: Some(rows), tag: None, time: None, value: None, status: None } => {
            read_rows(rows, now_ns, points)
        }
        Body { points: None, tag: Some(tag), time: Some(time), value: Some(value), status } => {
            read_columns([Some(tag), Some(time), Some(value), status], now_ns, points)
        }
        _ => Err(refuse(serde_json::Error::custom("it has neither points nor tag, time and value"))),
    }
}

fn read_rows(rows: &RawValue, now_ns: i64, points: &mut Points) -> Result<(), String> {
    for (row, number) in Elements::of("points", rows)?.zip(1..) {
        if points.memory_error().is_some() {
            break;
        }
        let row = serde_json::from_str::<Row<'_>>(row).map_err(|error| error.to_string());
        let pushed = row.and_then(|row| push(points, number, &row.tag, &row.time, row.value, row.status, now_ns));
        if let Err(message) = pushed {
            points.refuse(number, message);
        }
    }
    Ok(())
}

fn read_columns(columns: [Option<&RawValue>; 4], now_ns: i64, points: &mut Points) -> Result<(), String> {
    const NAMES: [&str; 4] = ["tag", "time", "value", "status"];
    let mut count = None;
    for (name, column) in NAMES.iter().zip(columns) {
        let Some(column) = column else { continue };
        let length = Elements::of(name, column)?.count();
        // Without statuses, a list of them may be empty.
        if *count.get_or_insert(length) != length && !(*name == "status" && length == 0) {
            return Err("the columns tag, time, value and status differ in length".into());
        }
    }
    let mut cells = Vec::with_capacity(columns.len());
    for (name, column) in NAMES.iter().zip(columns) {
        cells.push(column.map(|column| Elements::of(name, column)).transpose()?);
    }
    for number in 1..=count.unwrap_or(0) as u64 {
        if points.memory_error().is_some() {
            break;
        }
        let mut next = |place: usize| cells[place].as_mut().and_then(Iterator::next);
        let (tag, time, value, status) = (next(0), next(1), next(2), next(3));
        if let Err(message) = push_cells(points, number, [tag, time, value, status], now_ns) {
            points.refuse(number, message);
        }
    }
    Ok(())
}

fn push_cells(points: &mut Points, number: u64, cells: [Option<&str>; 4], now_ns: i64) -> Result<(), String> {
    fn of<'a, T: Deserialize<'a>>(name: &str, cell: Option<&'a str>) -> Result<T, String> {
        serde_json::from_str(cell.unwrap_or("null")).map_err(|error| format!("{name}: {error}"))
    }
    let [tag, time, value, status] = cells;
    let tag: Scalar<'_> = of("tag", tag)?;
    let Scalar::Text(tag) = tag else { return Err(format!("tag is {}: give a name", tag.shown())) };
    let (time, value, status): (Scalar<'_>, Scalar<'_>, Option<u32>) =
        (of("time", time)?, of("value", value)?, of("status", status)?);
    push(points, number, &tag, &time, value, status, now_ns)
}

fn push(
    points: &mut Points,
    number: u64,
    tag: &str,
    time: &Scalar<'_>,
    value: Scalar<'_>,
    status: Option<u32>,
    now_ns: i64,
) -> Result<(), String> {
    let time = match time {
        Scalar::Text(text) => time_ns(text, now_ns).map_err(|reason| format!("time {reason}"))?,
        Scalar::Integer(count) => *count,
        other => return Err(format!("time is {}: give ISO 8601 text, or nanoseconds since 1970", other.shown())),
    };
    let value = match value {
        Scalar::Null => Value::Null,
        Scalar::Bool(value) => Value::Bool(value),
        Scalar::Text(text) => Value::Text(text),
        Scalar::Integer(whole) => Value::Integer(whole),
        Scalar::Float(number) => Value::Float(number),
        other => return Err(format!("value is {}: give a number, true, false, text or null", other.shown())),
    };
    points.push(number, tag, time, value, status.unwrap_or(0))
}

/// Iterates over the elements of a JSON list as text.
#[derive(Clone)]
pub(crate) struct Elements<'a>(&'a str);

impl<'a> Elements<'a> {
    /// The elements of `list`. `name` is for the error if it is not a list.
    pub fn of(name: &str, list: &'a RawValue) -> Result<Self, String> {
        let inside = list.get().trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inside.map(|inside| Self(inside.trim_ascii())).ok_or_else(|| format!("{name} must be a list: [...]"))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a str;

    /// The text is valid JSON, so a comma separates elements unless it is inside a string or brackets.
    fn next(&mut self) -> Option<&'a str> {
        let bytes = self.0.as_bytes();
        if bytes.is_empty() {
            return None;
        }
        let (mut at, mut depth) = (0, 0_usize);
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => at = string_end(bytes, at),
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => break,
                _ => {}
            }
            at += 1;
        }
        // Only in invalid JSON is `at` beyond the text; `at + 1` is also beyond it after the last element.
        let element = &self.0[..at.min(self.0.len())];
        self.0 = self.0.get(at + 1..).unwrap_or_default();
        Some(element.trim_ascii())
    }
}

/// The position of the closing quote of the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at,
            // The character after a backslash never ends the string.
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value as Json;

    /// Rows as text, and refused lines.
    type Read = (Vec<String>, Vec<(u64, String)>);

    fn parse(body: &str) -> Result<Read, String> {
        let mut points = Points::default();
        read(body.as_bytes(), 0, &mut points)?;
        let rows =
            points.rows().map(|(line, name, time, value, status)| format!("{line} {name} {time} {value:?} {status}"));
        let rows = rows.collect();
        Ok((rows, points.refused.kept.into_iter().map(|refused| (refused.line, refused.message)).collect()))
    }

    #[test]
    fn rows_and_columns_say_the_same() {
        let rows = r#"[{"tag": "a", "time": "1970-01-01T00:00:01Z", "value": 1.5}, {"time": 5, "tag": "b", "value": null, "status": 2147483648}]"#;
        let columns = r#"{"tag": ["a", "b"], "time": ["1970-01-01T00:00:01Z", 5], "value": [1.5, null], "status": [null, 2147483648]}"#;
        let expected = vec!["1 a 1000000000 Float(1.5) 0".to_owned(), "2 b 5 Null 2147483648".to_owned()];
        assert_eq!(parse(rows).unwrap(), (expected.clone(), vec![]));
        assert_eq!(parse(&format!("{{\"points\": {rows}}}")).unwrap(), (expected.clone(), vec![]));
        assert_eq!(parse(columns).unwrap(), (expected, vec![]));
    }

    #[test]
    fn a_point_that_is_not_understood_is_numbered() {
        for (row, reason) in [
            (r#"{"tag": "a", "value": 1}"#, "missing field `time`"),
            (r#"{"tag": "a", "time": "soon", "value": 1}"#, "time is \"soon\""),
            (r#"{"tag": "a", "time": 1.5, "value": 1}"#, "time is 1.5"),
            (r#"{"tag": "a", "time": 1, "value": [1]}"#, "value is a list"),
            (r#"{"tag": "a", "time": {"a": [1]}, "value": 1}"#, "time is an object"),
            ("[1, 2]", "invalid type"),
            ("7", "invalid type"),
            (r#"{"tag": "a", "time": 1, "value": 1, "unit": "m"}"#, "unknown field `unit`"),
            (r#"{"tag": "a", "time": 1, "value": 1, "status": -1}"#, "invalid value"),
        ] {
            let (rows, refused) = parse(&format!(r#"[{row}, {{"tag": "a", "time": 2, "value": 2}}]"#)).unwrap();
            assert_eq!((rows.len(), refused.len(), refused[0].0), (1, 1, 1), "{row}");
            assert!(refused[0].1.contains(reason), "{}", refused[0].1);
        }
    }

    #[test]
    fn another_form_is_refused_as_a_whole() {
        for body in [
            "",
            "{",
            "7",
            "[1,",
            r#"{"rows": []}"#,
            r#"{"tag": ["a"], "time": [], "value": []}"#,
            r#"{"tag": ["a"], "time": [1], "value": 1}"#,
            r#"{"points": [], "tag": []}"#,
            r#"{"points": {}}"#,
            r#"{"tag": ["a"], "time": [1]}"#,
        ] {
            assert!(parse(body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_cell_that_is_not_understood_is_numbered() {
        let columns = r#"{"tag": ["a", 1, "a", "a,\"]"], "time": [1, 2, [3, "]"], 4], "value": [1, 2, 3, "x\\"], "status": [null, 0, 0, "1"]}"#;
        let (rows, refused) = parse(columns).unwrap();
        assert_eq!(rows, ["1 a 1 Integer(1) 0"]);
        let lines: Vec<u64> = refused.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 4]);
        assert!(refused[0].1.contains("tag is 1") && refused[1].1.contains("time is a list"), "{refused:?}");
    }

    #[test]
    fn numbers_keep_their_digits_and_texts_their_letters() {
        let values = r#"[9223372036854775807, 9223372036854775808, -9223372036854775808, 1e3, true, false, "a\n\u00e9", "", null]"#;
        let columns = format!(
            r#"{{"tag": {0}, "time": {1}, "value": {values}}}"#,
            format_args!("[{}]", ["\"a\""; 9].join(",")),
            "[1,2,3,4,5,6,7,8,9]"
        );
        let (rows, refused) = parse(&columns).unwrap();
        assert_eq!(refused, []);
        let shown = [
            "Integer(9223372036854775807)",
            "Float(9.223372036854776e18)",
            "Integer(-9223372036854775808)",
            "Float(1000.0)",
            "Bool(true)",
            "Bool(false)",
            "Text(\"a\\né\")",
            "Text(\"\")",
            "Null",
        ];
        let expected: Vec<String> =
            (1..).zip(shown).map(|(line, value)| format!("{line} a {line} {value} 0")).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_time_that_is_none_is_shown_as_it_was_sent() {
        for (time, shown) in
            [("null", "null"), ("true", "true"), ("-2.5", "-2.5"), ("[]", "a list"), ("{}", "an object")]
        {
            let (_, refused) = parse(&format!(r#"[{{"tag": "a", "time": {time}, "value": 1}}]"#)).unwrap();
            assert!(refused[0].1.starts_with(&format!("time is {shown}:")), "{refused:?}");
        }
        let (_, refused) = parse(r#"{"tag": [7, "\"", null], "time": [1, 1, 1], "value": [1, {}, 1]}"#).unwrap();
        let messages: Vec<&str> = refused.iter().map(|(_, message)| message.split(':').next().unwrap()).collect();
        assert_eq!(messages, ["tag is 7", "value is an object", "tag is null"]);
    }

    #[test]
    fn columns_are_of_one_length_but_for_a_status_without_any() {
        for (status, is_read) in [("", true), ("0", true), ("null", true), ("0, 0", false)] {
            let body = format!(r#"{{"tag": ["a"], "time": [1], "value": [1], "status": [{status}]}}"#);
            assert_eq!(
                parse(&body).is_ok_and(|(rows, refused)| (rows.len(), refused.len()) == (1, 0)),
                is_read,
                "{status}"
            );
        }
        for other in ["", "1, 1"] {
            for place in 0..3 {
                let column = |at: usize| if at == place { other } else { "1" };
                let body = format!(r#"{{"tag": [{}], "time": [{}], "value": [{}]}}"#, column(0), column(1), column(2));
                assert!(parse(&body).unwrap_err().contains("differ in length"), "{body}");
            }
        }
        assert_eq!(parse(r#"{"tag": [], "time": [], "value": [], "status": []}"#).unwrap(), (vec![], vec![]));
    }

    #[test]
    fn nesting_of_any_depth_is_refused_or_passed_over() {
        let deep = format!("{}1{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        let (rows, refused) = parse(&format!(r#"[{{"tag": "a", "time": 1, "value": {deep}}}, {deep}]"#)).unwrap();
        assert_eq!((rows.len(), refused.len()), (0, 2));
        assert!(refused.iter().all(|(_, message)| message.len() < 200), "{refused:?}");
    }

    proptest! {
        #[test]
        fn the_elements_of_a_list_are_those_that_a_parser_finds(items in proptest::collection::vec(any_json(), 0..6), spaces in " {0,2}") {
            let texts: Vec<String> = items.iter().map(|item| format!("{spaces}{item}\n")).collect();
            let text = format!("{spaces}[{}]{spaces}", texts.join(","));
            let list: &RawValue = serde_json::from_str(&text).unwrap();
            let found: Vec<Json> = Elements::of("x", list).unwrap().map(|text| serde_json::from_str(text).unwrap()).collect();
            prop_assert_eq!(found, items);
        }

        #[test]
        fn any_bytes_end_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..300), text in "[\\[\\]{}\",:a0\\\\ ]{0,60}") {
            let _ = read(&body, 0, &mut Points::default());
            let _ = read(text.as_bytes(), 0, &mut Points::default());
        }
    }

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            "[a\\[\\]{}\",\\\\é]{0,6}".prop_map(Json::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
                proptest::collection::vec(("[a\",\\]]{0,3}", inner), 0..4)
                    .prop_map(|pairs| Json::Object(pairs.into_iter().collect())),
            ]
        })
    }
}
