//! InfluxDB line protocol: `measurement,label=value field=1.5,other=2i 1700000000000000000`.
//!
//! Field `value` is stored in the tag with the name of the measurement, any other field `f` in the tag `measurement.f`.
//! Labels are appended, as in `measurement.f{host="a"}`. An integer field `status` beside `value` is the status of that
//! point.

use std::borrow::Cow;

use crate::points::{Points, Value, check_series, check_texts, series_name, shown};

/// Parses a body. Times count units of `unit_ns` nanoseconds; a line without a time gets `now_ns`. Lines that cannot be
/// parsed are recorded by number, and parsing continues with the next line.
pub fn read(body: &[u8], unit_ns: i64, now_ns: i64, points: &mut Points) {
    points.marks_integers = true;
    let mut cursor = Cursor { body, at: 0, line: 1 };
    while points.memory_error().is_none() && cursor.skip_to_line() {
        let (line, mark) = (cursor.line, cursor.at);
        if let Err(message) = read_line(&mut cursor, line, unit_ns, now_ns, points) {
            points.refuse(line, message);
            // Rewind to the start of the line: an unclosed quote would otherwise consume the rest of the body.
            (cursor.at, cursor.line) = (mark, line);
            cursor.skip_rest();
        }
    }
}

type Parsed<T> = Result<T, String>;

/// Fields of one line. There are few, so a linear search of a list is fastest.
type Fields<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

/// Maximum number of labels of a line.
const LABELS_MAX: usize = 128;
/// Maximum number of fields of a line.
const FIELDS_MAX: usize = 4_096;

fn read_line<'a>(cursor: &mut Cursor<'a>, line: u64, unit_ns: i64, now_ns: i64, points: &mut Points) -> Parsed<()> {
    let measurement = cursor.word(false, "measurement")?;
    let mut labels: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
    while cursor.take(b',') {
        let label = cursor.word(true, "label")?;
        cursor.expect(b'=', "a label has no value: write label=value")?;
        let value = cursor.word(false, "value of a label")?;
        if labels.iter().any(|(known, _)| *known == label) {
            return Err(format!("label {} appears twice", shown(&label)));
        }
        if labels.len() == LABELS_MAX {
            return Err(format!("it has more than {LABELS_MAX} labels"));
        }
        labels.push((label, value));
    }
    cursor.expect(b' ', "no fields: write measurement field=value")?;
    cursor.skip_spaces();
    let mut fields: Fields<'a> = Vec::new();
    loop {
        if fields.len() == FIELDS_MAX {
            return Err(format!("it has more than {FIELDS_MAX} fields: write it as several lines"));
        }
        let name = cursor.word(true, "field")?;
        cursor.expect(b'=', "a field has no value: write field=value")?;
        fields.push((name, cursor.value()?));
        if !cursor.take(b',') {
            break;
        }
    }
    let time = match cursor.timestamp()? {
        Some(time) => time.checked_mul(unit_ns).ok_or("its time lies outside of 1677 to 2262")?,
        None => now_ns,
    };
    let mut labels: Vec<(&str, &str)> = labels.iter().map(|(label, value)| (&**label, &**value)).collect();
    push(points, line, &measurement, &mut labels, fields, time)
}

fn push(
    points: &mut Points,
    line: u64,
    measurement: &str,
    labels: &mut [(&str, &str)],
    fields: Fields<'_>,
    time: i64,
) -> Parsed<()> {
    let mut status = 0;
    // A line is stored whole or not at all, so check everything before pushing the first point.
    // A field `value` has the name of the measurement; any other adds a dot and its own name.
    let longest = fields.iter().map(|(name, _)| if name == "value" { 0 } else { name.len() + 1 }).max().unwrap_or(0);
    check_series(measurement, longest, labels)?;
    check_texts(fields.iter().map(|(_, value)| value))?;
    let has_value = fields.iter().any(|(name, _)| name == "value");
    for (name, value) in &fields {
        if let (true, "status", Value::Integer(code)) = (has_value, &**name, value) {
            status = u32::try_from(*code).map_err(|_| format!("invalid OPC UA status code {code}"))?;
        }
    }
    for (name, value) in fields {
        if has_value && name == "status" && matches!(value, Value::Integer(_)) {
            continue;
        }
        if name == "value" && labels.is_empty() {
            points.push(line, measurement, time, value, status)?;
            continue;
        }
        let own = if name == "value" { Cow::Borrowed(measurement) } else { format!("{measurement}.{name}").into() };
        let status = if name == "value" { status } else { 0 };
        points.push(line, &series_name(&own, labels), time, value, status)?;
    }
    Ok(())
}

struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
    line: u64,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8, message: &str) -> Parsed<()> {
        if self.take(byte) { Ok(()) } else { Err(message.to_owned()) }
    }

    fn skip_spaces(&mut self) {
        while self.take(b' ') {}
    }

    /// Moves to the next line that is not empty; returns false at the end of the body.
    fn skip_to_line(&mut self) -> bool {
        loop {
            match self.peek() {
                None => return false,
                Some(b'\n') => (self.at, self.line) = (self.at + 1, self.line + 1),
                Some(b' ' | b'\t' | b'\r') => self.at += 1,
                Some(b'#') => self.skip_rest(),
                Some(_) => return true,
            }
        }
    }

    /// Moves to the end of the line.
    fn skip_rest(&mut self) {
        let rest = &self.body[self.at..];
        self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }

    /// Parses a name up to a comma or space, or an equals sign if `key`. A backslash escapes any of them.
    fn word(&mut self, key: bool, what: &str) -> Parsed<Cow<'a, str>> {
        let start = self.at;
        let mut escaped = false;
        while let Some(byte) = self.peek() {
            if byte == b'\\'
                && self.body.get(self.at + 1).is_some_and(|next| matches!(next, b',' | b' ' | b'=' | b'\\'))
            {
                escaped = true;
                self.at += 2;
                continue;
            }
            if matches!(byte, b'\n' | b',' | b' ') || (key && byte == b'=') {
                break;
            }
            self.at += 1;
        }
        let word = text(&self.body[start..self.at])?.trim_end_matches('\r');
        if word.is_empty() {
            return Err(format!("missing {what}"));
        }
        Ok(if escaped { Cow::Owned(unescaped(word, &[',', ' ', '=', '\\'])) } else { Cow::Borrowed(word) })
    }

    fn value(&mut self) -> Parsed<Value<'a>> {
        if self.take(b'"') {
            return self.quoted();
        }
        let start = self.at;
        while self.peek().is_some_and(|byte| !matches!(byte, b',' | b' ' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let word = text(&self.body[start..self.at])?;
        match word {
            "" => Err("a field has no value: write field=value".to_owned()),
            "t" | "T" | "true" | "True" | "TRUE" => Ok(Value::Bool(true)),
            "f" | "F" | "false" | "False" | "FALSE" => Ok(Value::Bool(false)),
            _ => number(word),
        }
    }

    fn quoted(&mut self) -> Parsed<Value<'a>> {
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.peek() {
                None => return Err("a text in quotes is never closed".to_owned()),
                Some(b'"') => break,
                Some(b'\\') if matches!(self.body.get(self.at + 1), Some(b'"' | b'\\')) => {
                    escaped = true;
                    self.at += 2;
                }
                Some(byte) => {
                    self.line += u64::from(byte == b'\n');
                    self.at += 1;
                }
            }
        }
        let word = text(&self.body[start..self.at])?;
        self.at += 1;
        Ok(Value::Text(if escaped { unescaped(word, &['"', '\\']).into() } else { word.into() }))
    }

    /// Parses the optional time at the end of a line.
    fn timestamp(&mut self) -> Parsed<Option<i64>> {
        self.skip_spaces();
        let start = self.at;
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
        let word = text(&self.body[start..self.at])?.trim_end();
        if word.is_empty() {
            return Ok(None);
        }
        let wrong =
            || format!("invalid time {} after the fields: give a whole number, or nothing for now", shown(word));
        word.parse().map(Some).map_err(|_| wrong())
    }
}

fn number(word: &str) -> Parsed<Value<'static>> {
    let wrong = || format!("invalid value {}: write 1.5, 2i, true or \"text\"", shown(word));
    if let Some(whole) = word.strip_suffix(['i', 'u']) {
        return whole.parse().map(Value::Integer).map_err(|_| wrong());
    }
    // Rust also parses inf, infinity and nan, which the protocol does not have.
    if word.bytes().any(|byte| byte.is_ascii_alphabetic() && !matches!(byte, b'e' | b'E')) {
        return Err(wrong());
    }
    word.parse().map(Value::Float).map_err(|_| wrong())
}

fn text(bytes: &[u8]) -> Parsed<&str> {
    std::str::from_utf8(bytes).map_err(|_| "invalid UTF-8".to_owned())
}

fn unescaped(word: &str, known: &[char]) -> String {
    let mut out = String::with_capacity(word.len());
    let mut chars = word.chars().peekable();
    while let Some(c) = chars.next() {
        match chars.peek() {
            Some(next) if c == '\\' && known.contains(next) => out.extend(chars.next()),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(body: &str) -> (Vec<String>, Vec<(u64, String)>) {
        let mut points = Points::default();
        read(body.as_bytes(), 1, 42, &mut points);
        let rows = points.rows().map(|(line, name, time, value, status)| {
            format!("{line} {name} {time} {value:?}{}", if status == 0 { String::new() } else { format!(" {status}") })
        });
        let rows = rows.collect();
        (rows, points.refused.kept.into_iter().map(|refused| (refused.line, refused.message)).collect())
    }

    #[test]
    fn lines_become_points_of_named_series() {
        let (rows, refused) = parse(concat!(
            "boiler value=80.5 1000000000\n",
            "\n# a note\r\n",
            "cpu,host=b,dc=x usage=1i,idle=2.5e1,on=t,text=\"a b\" 7\r\n",
            "now value=1\n",
            "q value=1,status=2147483648i 9"
        ));
        assert_eq!(refused, []);
        assert_eq!(
            rows,
            [
                "1 boiler 1000000000 Float(80.5)",
                r#"4 cpu.usage{dc="x",host="b"} 7 Integer(1)"#,
                r#"4 cpu.idle{dc="x",host="b"} 7 Float(25.0)"#,
                r#"4 cpu.on{dc="x",host="b"} 7 Bool(true)"#,
                r#"4 cpu.text{dc="x",host="b"} 7 Text("a b")"#,
                "5 now 42 Float(1.0)",
                "6 q 9 Float(1.0) 2147483648",
            ]
        );
    }

    #[test]
    fn escapes_keep_commas_spaces_and_quotes() {
        let (rows, refused) = parse("a\\ b,l\\,x=v\\=y f\\ 1=\"say \\\"hi\\\"\nthere\" 5\nnext value=1 6");
        assert_eq!(refused, []);
        assert_eq!(
            rows,
            ["1 a b.f 1{l,x=\"v=y\"} 5 Text(\"say \\\"hi\\\"\\nthere\")".to_owned(), "3 next 6 Float(1.0)".to_owned(),]
        );
    }

    #[test]
    fn a_bad_line_is_named_and_the_next_one_read() {
        for (line, reason) in [
            ("m", "no fields"),
            ("m,l value=1", "label has no value"),
            ("m,l=1,l=2 value=1", "appears twice"),
            ("m value", "field has no value"),
            ("m value=", "field has no value"),
            ("m value=abc", "invalid value"),
            ("m value=nan", "invalid value"),
            ("m value=9223372036854775808i", "invalid value"),
            ("m value=1 soon", "invalid time"),
            ("m value=1 5 6", "invalid time"),
            ("m value=\"open", "never closed"),
            ("m value=1,status=-1i", "invalid OPC UA status"),
            (",l=1 value=1", "missing measurement"),
        ] {
            let (rows, refused) = parse(&format!("good value=1 1\n{line}\ngood value=2 2"));
            assert_eq!(rows.len(), 2, "{line}: {rows:?}");
            assert_eq!(refused.len(), 1, "{line}");
            assert_eq!(refused[0].0, 2, "{line}");
            assert!(refused[0].1.contains(reason), "{line}: {}", refused[0].1);
        }
    }

    #[test]
    fn truths_are_written_in_five_ways_each() {
        for (words, value) in
            [(["t", "T", "true", "True", "TRUE"], true), (["f", "F", "false", "False", "FALSE"], false)]
        {
            for word in words {
                assert_eq!(parse(&format!("m value={word} 1")).0, [format!("1 m 1 Bool({value})")], "{word}");
            }
        }
        let (rows, refused) = parse("m value=tRUE 1\nm value=F1 1\nm value=\"f\" 1");
        assert_eq!((rows, refused.len()), (vec!["3 m 1 Text(\"f\")".to_owned()], 2));
    }

    #[test]
    fn a_status_is_that_of_the_value_beside_it() {
        let (rows, refused) = parse(concat!(
            "a value=1,b=2,status=5i 1\n",
            "c,l=x value=1,status=6u 2\n",
            "d status=7i,b=2 3\n",
            "e value=1,status=8.5 4\n",
            "f state=9i,value=1i 5\n",
        ));
        assert_eq!(refused, []);
        assert_eq!(
            rows,
            [
                "1 a 1 Float(1.0) 5",
                "1 a.b 1 Float(2.0)",
                r#"2 c{l="x"} 2 Float(1.0) 6"#,
                "3 d.status 3 Integer(7)",
                "3 d.b 3 Float(2.0)",
                "4 e 4 Float(1.0)",
                "4 e.status 4 Float(8.5)",
                "5 f.state 5 Integer(9)",
                "5 f 5 Integer(1)",
            ]
        );
    }

    #[test]
    fn a_backslash_before_another_letter_is_one() {
        let (rows, refused) = parse("a\\b=c,d=e=f\\g value=\"h\\i\\\\\" 1\nj\\\nk value=\"\\\n\" 2\nl");
        assert_eq!(rows, [r#"1 a\b=c{d="e=f\\g"} 1 Text("h\\i\\")"#, r#"3 k 2 Text("\\\n")"#]);
        let lines: Vec<u64> = refused.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 5]);
    }

    #[test]
    fn notes_and_ends_of_lines_of_any_kind_are_passed_over() {
        for body in ["", "#", "# note", "\r\n \t# note", "#\n#", "\n\n"] {
            assert_eq!(parse(body), (vec![], vec![]), "{body:?}");
        }
        let (rows, refused) = parse("a value=1\r\n\tb value=t\n# note\n  c   value=2i   3  \r\n# note");
        assert_eq!(refused, []);
        assert_eq!(rows, ["1 a 42 Float(1.0)", "2 b 42 Bool(true)", "4 c 3 Integer(2)"]);
    }

    #[test]
    fn a_line_has_so_many_labels_and_fields_and_its_names_so_many_bytes() {
        let labels = |count: usize| (0..count).map(|i| format!(",{i}=x")).collect::<String>();
        let fields = |count: usize| (0..count).map(|i| format!("{i}=1")).collect::<Vec<_>>().join(",");
        let name = |bytes: usize| "n".repeat(bytes);
        for (line, reason) in [
            // So many labels exceed the length of a name anyway.
            (format!("m{} value=1", labels(LABELS_MAX)), "more than the 512"),
            (format!("m{} value=1", labels(LABELS_MAX + 1)), "more than 128 labels"),
            (format!("m {}", fields(FIELDS_MAX + 1)), "more than 4096 fields"),
            (format!("{} value=1", name(513)), "more than the 512"),
            (format!("{} value=1,ab=1", name(510)), "more than the 512"),
            (format!("{},a=b value=1", name(506)), "more than the 512"),
        ] {
            let (rows, refused) = parse(&line);
            assert_eq!((rows.len(), refused.len()), (0, 1), "{reason}");
            assert!(refused[0].1.contains(reason), "{}", refused[0].1);
        }
        for (line, count) in [
            (format!("m {}", fields(FIELDS_MAX)), FIELDS_MAX),
            (format!("{} value=1", name(512)), 1),
            (format!("{} value=1,ab=1", name(509)), 2),
            (format!("{},a=b value=1", name(505)), 1),
        ] {
            let (rows, refused) = parse(&line);
            assert_eq!((rows.len(), refused), (count, vec![]), "{}", &line[line.len() - 9..]);
        }
    }

    #[test]
    fn a_time_beyond_the_axis_is_refused() {
        let mut points = Points::default();
        read(b"m value=1 9223372036854775807", 1_000, 0, &mut points);
        assert_eq!((points.len(), points.refused.count), (0, 1));
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut points = Points::default();
            read(&body, 1_000_000, 0, &mut points);
        }

        #[test]
        fn any_text_of_the_protocol_ends_without_a_panic(body in "[a\\\\,= \"0-9i\n#.-]{0,80}") {
            let mut points = Points::default();
            read(body.as_bytes(), 1, 0, &mut points);
            let lines = body.lines().count() as u64;
            prop_assert!(points.refused.kept.iter().all(|refused| refused.line >= 1 && refused.line <= lines));
        }
    }
}
