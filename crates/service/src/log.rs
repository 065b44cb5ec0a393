//! The log: a line for each request and event, on standard error.

use std::io::Write;

use serde_json::{Map, Value};

use crate::settings::LogFormat;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Log(pub LogFormat);

impl Log {
    /// Something that operators should see, whatever the format.
    pub fn event(self, level: &str, message: &str) {
        let mut fields = Map::new();
        fields.insert("message".into(), message.into());
        match self.0 {
            LogFormat::Json => self.line(level, fields),
            LogFormat::Text => put(&format!("{} {level} {message}", now_text())),
            LogFormat::Off if level == "info" => {}
            LogFormat::Off => put(&format!("{level}: {message}")),
        }
    }

    /// A request that has ended.
    pub fn request(self, level: &str, fields: Map<String, Value>) {
        match self.0 {
            LogFormat::Json => self.line(level, fields),
            LogFormat::Text => {
                let words = fields.iter().filter(|(_, value)| !value.is_null());
                let words: Vec<String> = words.map(|(name, value)| format!("{name}={value}")).collect();
                put(&format!("{} {level} {}", now_text(), words.join(" ")));
            }
            LogFormat::Off => {}
        }
    }

    fn line(self, level: &str, fields: Map<String, Value>) {
        let mut line = Map::new();
        line.insert("time".into(), now_text().into());
        line.insert("level".into(), level.into());
        line.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
        put(&Value::Object(line).to_string());
    }
}

/// A log that cannot be written must not end the service.
fn put(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn now_text() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    time_text(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// A time as ISO 8601 text.
pub(crate) fn time_text(ns: i64) -> String {
    let array = arrow_array::TimestampNanosecondArray::from(vec![ns]).with_timezone("+00:00");
    arrow_cast::display::array_value_to_string(&array, 0).unwrap_or_else(|_| ns.to_string())
}
