//! Points as JSON: `{"points": [{"tag": ..., "time": ..., "value": ..., "status": ...}, ...]}`, the list alone, or columns.

use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::parameters::time_ns;
use crate::points::{Points, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows<'a> {
    #[serde(borrow)]
    points: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    tag: String,
    time: Json,
    value: Json,
    #[serde(default)]
    status: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Columns {
    tag: Vec<String>,
    time: Vec<Json>,
    value: Vec<Json>,
    #[serde(default)]
    status: Vec<Option<u32>>,
}

/// Reads a body. Points that are not understood are noted by their place, from 1.
///
/// # Errors
/// A body that is no JSON of these forms.
pub fn read(body: &[u8], now_ns: i64, points: &mut Points) -> Result<(), String> {
    let refuse = |error: serde_json::Error| {
        format!(
            "the body is no JSON of points ({error}): write {{\"points\": [{{\"tag\": ..., \"time\": ..., \"value\": ...}}]}}"
        )
    };
    let text = std::str::from_utf8(body).map_err(|_| "the body is no UTF-8 text".to_owned())?;
    if let Ok(columns) = serde_json::from_str::<Columns>(text) {
        return read_columns(columns, now_ns, points);
    }
    let rows: Vec<&RawValue> = match text.trim_start().starts_with('[') {
        true => serde_json::from_str(text).map_err(refuse)?,
        false => serde_json::from_str::<Rows<'_>>(text).map_err(refuse)?.points,
    };
    for (index, row) in rows.into_iter().enumerate() {
        let number = index as u64 + 1;
        let row = serde_json::from_str::<Row>(row.get()).map_err(|error| error.to_string());
        let pushed = row.and_then(|row| push(points, number, &row.tag, &row.time, row.value, row.status, now_ns));
        if let Err(message) = pushed {
            points.refuse(number, message);
        }
    }
    Ok(())
}

fn read_columns(columns: Columns, now_ns: i64, points: &mut Points) -> Result<(), String> {
    let count = columns.tag.len();
    let given = !columns.status.is_empty();
    if columns.time.len() != count || columns.value.len() != count || (given && columns.status.len() != count) {
        return Err("the columns tag, time, value and status differ in length".into());
    }
    for (index, (time, value)) in columns.time.iter().zip(columns.value).enumerate() {
        let status = columns.status.get(index).copied().flatten();
        if let Err(message) = push(points, index as u64 + 1, &columns.tag[index], time, value, status, now_ns) {
            points.refuse(index as u64 + 1, message);
        }
    }
    Ok(())
}

fn push(
    points: &mut Points,
    number: u64,
    tag: &str,
    time: &Json,
    value: Json,
    status: Option<u32>,
    now_ns: i64,
) -> Result<(), String> {
    let time = match time {
        Json::String(text) => time_ns(text, now_ns).map_err(|reason| format!("time {reason}"))?,
        Json::Number(count) if count.is_i64() => count.as_i64().unwrap_or_default(),
        other => return Err(format!("time is {other}: give ISO 8601 text, or nanoseconds since 1970")),
    };
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::String(text) => Value::Text(text.into()),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Value::Integer(whole),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        other => return Err(format!("value is {other}: give a number, true, false, text or null")),
    };
    points.push(number, tag, time, value, status.unwrap_or(0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as text, and refused lines.
    type Read = (Vec<String>, Vec<(u64, String)>);

    fn parse(body: &str) -> Result<Read, String> {
        let mut points = Points::default();
        read(body.as_bytes(), 0, &mut points)?;
        let rows =
            points.rows().map(|(line, name, time, value, status)| format!("{line} {name} {time} {value:?} {status}"));
        let rows = rows.collect();
        Ok((rows, points.refused.into_iter().map(|refused| (refused.line, refused.message)).collect()))
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
            (r#"{"tag": "a", "time": 1, "value": [1]}"#, "value is [1]"),
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
        for body in ["", "{", "7", r#"{"rows": []}"#, r#"{"tag": ["a"], "time": [], "value": []}"#] {
            assert!(parse(body).is_err(), "{body}");
        }
    }
}
