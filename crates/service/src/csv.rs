//! Points as CSV: a header with `tag`, `time`, `value` and optionally `status`, in any order.

use bytes::Bytes;
use chronotile_io::{CsvRecords, IoError};

use crate::parameters::time_ns;
use crate::points::{Points, Value, shown};

/// The positions of the columns in each line.
struct Columns {
    tag: usize,
    time: usize,
    value: usize,
    status: Option<usize>,
    count: usize,
}

/// Parses a body. Lines that cannot be parsed are recorded by number, and parsing continues with the next line.
///
/// # Errors
/// The header lacks a column or has an unknown one.
pub fn read(body: Bytes, now_ns: i64, points: &mut Points) -> Result<(), String> {
    let mut records = CsvRecords::new("the body", body).map_err(|error| error.to_string())?;
    let columns = {
        let mut header = Vec::new();
        let found = records.next_record(&mut header).map_err(|error| error.to_string())?;
        found.ok_or("the body is empty: its first line is tag,time,value")?;
        columns(&header)?
    };
    let mut last = 1;
    while points.memory_error().is_none() {
        let mut fields = Vec::new();
        match records.next_record(&mut fields) {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => {
                last = line;
                if let Err(message) = push(points, line, &columns, &fields, now_ns) {
                    points.refuse(line, message);
                }
            }
            Err(IoError::NotUtf8 { line, .. }) => points.refuse(line, "invalid UTF-8"),
            // After an unclosed quote, the end of a line cannot be determined.
            Err(error) => {
                points.refuse(last + 1, error.to_string());
                return Ok(());
            }
        }
    }
    Ok(())
}

fn columns(header: &[&str]) -> Result<Columns, String> {
    let place = |name: &str| header.iter().position(|field| field.trim() == name);
    let needed = |name| {
        place(name).ok_or_else(|| format!("line 1 lacks column {name}: write tag,time,value or tag,time,value,status"))
    };
    let known = |field: &&str| matches!(field.trim(), "tag" | "time" | "value" | "status");
    if let Some(other) = header.iter().find(|field| !known(field)) {
        return Err(format!(
            "line 1 has the unknown column {}: points have tag, time, value and status",
            shown(other.trim())
        ));
    }
    if let Some(twice) =
        header.iter().enumerate().find_map(|(at, field)| (place(field.trim()) != Some(at)).then_some(field))
    {
        return Err(format!("line 1 repeats column {}", twice.trim()));
    }
    let (tag, time, value) = (needed("tag")?, needed("time")?, needed("value")?);
    Ok(Columns { tag, time, value, status: place("status"), count: header.len() })
}

fn push(points: &mut Points, line: u64, columns: &Columns, fields: &[&str], now_ns: i64) -> Result<(), String> {
    if fields.len() != columns.count {
        return Err(format!("it has {} fields, the header {}", fields.len(), columns.count));
    }
    let time = time_ns(fields[columns.time].trim(), now_ns).map_err(|reason| format!("time {reason}"))?;
    let status = match columns.status.map(|place| fields[place].trim()) {
        None | Some("") => 0,
        Some(code) => {
            code.parse().map_err(|_| format!("status is {}: give an OPC UA status code, a number", shown(code)))?
        }
    };
    let tag = fields[columns.tag].trim();
    if tag.is_empty() {
        return Err("it has no tag".into());
    }
    points.push(line, tag, time, value(fields[columns.value]), status)
}

/// The value of a field: null if empty, else a boolean, a number or text.
fn value(field: &str) -> Value<'_> {
    match field.trim() {
        "" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        word => {
            let number = word.parse().map(Value::Integer).or_else(|_| word.parse().map(Value::Float));
            number.unwrap_or_else(|_| Value::Text(field.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows as text, and refused lines.
    type Read = (Vec<String>, Vec<(u64, String)>);

    fn parse(body: &str) -> Result<Read, String> {
        let mut points = Points::default();
        read(Bytes::from(body.to_owned()), 0, &mut points)?;
        let rows =
            points.rows().map(|(line, name, time, value, status)| format!("{line} {name} {time} {value:?} {status}"));
        let rows = rows.collect();
        Ok((rows, points.refused.kept.into_iter().map(|refused| (refused.line, refused.message)).collect()))
    }

    #[test]
    fn columns_are_found_by_name() {
        let (rows, refused) =
            parse("status,value,tag,time\n,1.5,a,1970-01-01T00:00:01Z\n2147483648,,\"b,c\",2000000000\n0,true,a,3000000000\n0,\"x\ny\",a,4000000000\n0,7,a,5000000000").unwrap();
        assert_eq!(refused, []);
        assert_eq!(
            rows,
            [
                "2 a 1000000000 Float(1.5) 0",
                "3 b,c 2000000000 Null 2147483648",
                "4 a 3000000000 Bool(true) 0",
                "5 a 4000000000 Text(\"x\\ny\") 0",
                "7 a 5000000000 Integer(7) 0",
            ]
        );
    }

    #[test]
    fn a_bad_line_is_named_and_the_next_one_read() {
        for (line, reason) in [
            ("a,1000000000", "2 fields"),
            ("a,1000000000,1,0", "4 fields"),
            ("a,soon,1", "time is \"soon\""),
            (",1000000000,1", "no tag"),
        ] {
            let (rows, refused) = parse(&format!("tag,time,value\n{line}\na,1000000000,1")).unwrap();
            assert_eq!((rows.len(), refused.len(), refused[0].0), (1, 1, 2), "{line}");
            assert!(refused[0].1.contains(reason), "{}", refused[0].1);
        }
        let (rows, refused) = parse("tag,time,value\na,1000000000,1\na,1000000000,\"open\n").unwrap();
        assert_eq!((rows.len(), refused.len(), refused[0].0), (1, 1, 3));
    }

    #[test]
    fn a_field_is_what_it_looks_like_and_text_otherwise() {
        for (field, expected) in [
            ("9223372036854775807", Value::Integer(i64::MAX)),
            ("9223372036854775808", Value::Float(9_223_372_036_854_775_808.0)),
            (" -1 ", Value::Integer(-1)),
            ("1e3", Value::Float(1_000.0)),
            (" true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("  ", Value::Null),
            (" True ", Value::Text(" True ".into())),
        ] {
            assert_eq!(value(field), expected, "{field}");
        }
    }

    #[test]
    fn a_header_must_name_the_columns() {
        for (body, reason) in [
            ("", "is empty"),
            ("tag,time\n", "lacks column value"),
            ("tag,time,value,unit\n", "\"unit\""),
            ("tag,time,value, tag \n", "repeats column tag"),
        ] {
            let message = parse(body).unwrap_err();
            assert!(message.contains(reason), "{message}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = b"tag,time,value,status\n".to_vec();
            bytes.extend(body);
            let _ = read(bytes.into(), 0, &mut Points::default());
        }
    }
}
