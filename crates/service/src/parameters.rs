//! Query parameters of a request: parsing of names, values, times and durations.

use percent_encoding::percent_decode_str;

use chronotile_types::ErrorKind;

use crate::failure::{Failure, Result};
use crate::points::shown;

/// Names and values, in the order of the query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses a query string.
    pub fn parse(query: &str) -> Result<Self> {
        pairs(query).map(Self).map_err(Failure::invalid)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that may be given once.
    pub fn one(&self, name: &str) -> Result<Option<&str>> {
        let mut values = self.all(name);
        let first = values.next();
        match values.next() {
            Some(_) => Err(Failure::invalid(format!("{name} is given more than once"))),
            None => Ok(first),
        }
    }

    pub fn needed(&self, name: &str) -> Result<&str> {
        self.one(name)?.ok_or_else(|| Failure::invalid(format!("{name} is missing: the request needs it")))
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.one(name)? {
            None => Ok(None),
            Some("true" | "1" | "") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err(Failure::invalid(format!("{name} is {}: give true or false", shown(other)))),
        }
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let parse = |text: &str| {
            text.parse().map_err(|_| Failure::invalid(format!("{name} is {}: give a number that fits", shown(text))))
        };
        self.one(name)?.map(parse).transpose()
    }

    pub fn time(&self, name: &str, now_ns: i64) -> Result<Option<i64>> {
        self.one(name)?.map(|text| named(name, time_ns(text, now_ns))).transpose()
    }

    pub fn duration(&self, name: &str) -> Result<Option<i64>> {
        self.one(name)?.map(|text| named(name, duration_ns(text))).transpose()
    }
}

/// Splits a query string into decoded names and values.
///
/// # Errors
/// A name or value is not UTF-8 after decoding; the message quotes it.
pub fn pairs(query: &str) -> std::result::Result<Vec<(String, String)>, String> {
    let decode = |word: &str| {
        // Before decoding, so that `%2B` remains a plus sign.
        let word = word.replace('+', " ");
        let decoded = percent_decode_str(&word).decode_utf8().map(|text| text.into_owned());
        decoded.map_err(|_| format!("{} in the URL is invalid UTF-8 once decoded", shown(&word)))
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(name)?, decode(value)?))
    });
    pairs.collect()
}

fn named<T>(name: &str, parsed: std::result::Result<T, String>) -> Result<T> {
    parsed.map_err(|reason| Failure::new(ErrorKind::InvalidTime, format!("{name} {reason}")))
}

/// Maximum length of a time or duration.
const TEXT_BYTES_MAX: usize = 100;

/// Parses a time: ISO 8601 (UTC unless it has an offset), nanoseconds since 1970, `now`, or `now-6h`.
///
/// # Errors
/// The text is not a time. The message continues a sentence that starts with the name of the parameter.
pub fn time_ns(text: &str, now_ns: i64) -> std::result::Result<i64, String> {
    let refuse = || {
        format!(
            "is {}: give ISO 8601 such as 2026-01-31T12:00:00Z, nanoseconds since 1970, or now-6h, from 1677 to 2262",
            shown(text)
        )
    };
    if let Some(rest) = text.strip_prefix("now") {
        let offset = match rest.split_at_checked(1) {
            None => Some(0),
            Some(("-", back)) => duration_ns(back).ok().map(|ns| -ns),
            // A plus sign in a query string stands for a space.
            Some(("+" | " ", ahead)) => duration_ns(ahead).ok(),
            Some(_) => None,
        };
        return offset.and_then(|ns| now_ns.checked_add(ns)).ok_or_else(refuse);
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(refuse());
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.len() >= 9 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| refuse());
    }
    // Add seconds to a time that ends with minutes, which the parser of Arrow does not accept.
    let ends_with_minutes = matches!(text.as_bytes(), [.., b':', _, _]) && text.len() == 16
        || text.len() > 16 && text.is_char_boundary(16) && matches!(text.as_bytes()[16], b'Z' | b'+' | b'-');
    let whole = match ends_with_minutes {
        true => format!("{}:00{}", &text[..16], &text[16..]),
        false => text.to_owned(),
    };
    arrow_cast::parse::string_to_timestamp_nanos(&whole).map_err(|_| refuse())
}

/// Parses a duration: an integer and a unit, `w d h m s ms us ns`; nanoseconds without a unit.
///
/// # Errors
/// The text is not a duration; see [`time_ns`].
pub fn duration_ns(text: &str) -> std::result::Result<i64, String> {
    // The first matching suffix counts, so `ns`, `us` and `ms` are before `s`.
    const UNITS: [(&str, i64); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("w", 604_800_000_000_000),
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
    ];
    let refuse = || format!("is {}: give a length of time such as 15m, 1h or 500ms", shown(text));
    if text.len() > TEXT_BYTES_MAX {
        return Err(refuse());
    }
    let found = UNITS.iter().find_map(|(name, ns)| text.strip_suffix(name).map(|count| (count, *ns)));
    let (count, unit) = found.unwrap_or((text, 1));
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refuse());
    }
    count.parse::<i64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_decoded_and_counted() {
        let given = Parameters::parse("tag=a%20b&tag=c+d&x=%E2%82%AC&bare").unwrap();
        assert_eq!(given.all("tag").collect::<Vec<_>>(), ["a b", "c d"]);
        assert_eq!(given.one("x").unwrap(), Some("€"));
        assert_eq!(given.flag("bare").unwrap(), Some(true));
        assert!(given.one("tag").unwrap_err().message.contains("more than once"));
        assert!(given.needed("start").unwrap_err().message.contains("start is missing"));
        assert!(Parameters::parse("a=%FF").is_err());
    }

    #[test]
    fn times_are_read_in_their_forms_and_nothing_else() {
        let day = 86_400_000_000_000;
        for (text, expected) in [
            ("1970-01-02", day),
            ("1970-01-02T00:00", day),
            ("1970-01-02T00:00Z", day),
            ("1970-01-02T02:00+02:00", day),
            ("1970-01-02T00:00:00Z", day),
            ("1970-01-02T01:00:00+01:00", day),
            ("1000000000", 1_000_000_000),
            ("now", 5),
            ("now-1d", 5 - day),
            ("now+1s", 1_000_000_005),
        ] {
            assert_eq!(time_ns(text, 5), Ok(expected), "{text}");
        }
        for text in [
            "",
            "12",
            "aaaaaaaaaaaa:éé",
            "1970-01-01é00:00:00",
            "1970-13-01",
            "1970-01-02T01:00:00+01:00:00.5",
            "now-",
            "now*1h",
            "now-1x",
            "9999-01-01",
            "99999999999999999999",
        ] {
            assert!(time_ns(text, 5).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_of_time_need_a_whole_number() {
        assert_eq!(duration_ns("15m"), Ok(900_000_000_000));
        assert_eq!(duration_ns("500ms"), Ok(500_000_000));
        assert_eq!(duration_ns("7"), Ok(7));
        for text in ["", "m", "-1h", "1.5h", "99999999w", "1y"] {
            assert!(duration_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_word_is_read_as_what_its_name_stands_for() {
        let given =
            Parameters::parse("&yes=true&one=1&no=false&zero=0&odd=2&n=7&&big=300&a=b=c&t=now-1s&d=2m&soon=soon&")
                .unwrap();
        let flags = ["yes", "one", "no", "zero", "none"].map(|name| given.flag(name).unwrap());
        assert_eq!(flags, [Some(true), Some(true), Some(false), Some(false), None]);
        assert!(given.flag("odd").unwrap_err().message.contains("odd is \"2\""));
        assert_eq!((given.number("n").unwrap(), given.number::<u8>("none").unwrap()), (Some(7_u8), None));
        assert!(given.number::<u8>("big").unwrap_err().message.contains("big is \"300\""));
        assert_eq!((given.one("a").unwrap(), given.needed("n").unwrap()), (Some("b=c"), "7"));
        assert_eq!(
            (given.time("t", 3_000_000_000).unwrap(), given.time("none", 3).unwrap()),
            (Some(2_000_000_000), None)
        );
        assert_eq!((given.duration("d").unwrap(), given.duration("none").unwrap()), (Some(120_000_000_000), None));
        for failure in [given.time("soon", 0).unwrap_err(), given.duration("soon").unwrap_err()] {
            assert_eq!(failure.kind, ErrorKind::InvalidTime);
            assert!(failure.message.starts_with("soon is \"soon\""), "{}", failure.message);
        }
        let names: Vec<&str> = given.names().collect();
        assert_eq!(names, ["yes", "one", "no", "zero", "odd", "n", "big", "a", "t", "d", "soon"]);
        assert_eq!(given.pairs().nth(7), Some(("a", "b=c")));
    }

    #[test]
    fn a_time_is_at_most_as_long_as_the_longest() {
        let zeros = |count: usize| format!("{}7", "0".repeat(count - 1));
        for read in [|text: &str| time_ns(text, 0), duration_ns] {
            assert_eq!(read(&zeros(TEXT_BYTES_MAX)), Ok(7));
            assert!(read(&zeros(TEXT_BYTES_MAX + 1)).is_err());
        }
        assert_eq!(time_ns(&format!("now-{}", zeros(TEXT_BYTES_MAX)), 8), Ok(1));
        assert!(time_ns(&format!("now-{}", zeros(TEXT_BYTES_MAX + 1)), 8).is_err());
    }

    #[test]
    fn nine_digits_are_nanoseconds_and_minutes_may_end_a_time() {
        assert_eq!(time_ns("100000000", 0), Ok(100_000_000));
        assert_eq!(time_ns("-100000000", 0), Ok(-100_000_000));
        assert!(time_ns("10000000", 0).is_err() && time_ns("-10000000", 0).is_err());
        let minute = 60_000_000_000;
        for (text, expected) in [
            ("1970-01-01T00:01", minute),
            ("1970-01-01 00:01", minute),
            ("1970-01-01T00:01-00:01", 2 * minute),
            ("1970-01-01T00:01:00", minute),
            ("1970-01-01T00:00:59.5", minute - 500_000_000),
            ("1970-01-01T00:01:00-00:01", 2 * minute),
        ] {
            assert_eq!(time_ns(text, 0), Ok(expected), "{text}");
        }
        // Texts with the length of a time that ends with minutes.
        for text in
            ["1970-01-01T00-01", "1970-01-01T00001", "1970-01-01T00:01X", "1970-01-01T00:01é", "é970-01-01T00:01"]
        {
            assert!(time_ns(text, 0).is_err(), "{text}");
        }
    }

    #[test]
    fn every_unit_is_its_own() {
        let ns = ["1ns", "1us", "1ms", "1s", "1m", "1h", "1d", "1w"].map(|text| duration_ns(text).unwrap());
        let steps: Vec<i64> = ns.windows(2).map(|pair| pair[1] / pair[0]).collect();
        assert_eq!((ns[0], &*steps), (1, &[1_000, 1_000, 1_000, 60, 60, 24, 7][..]));
        assert_eq!(duration_ns("9223372036854775807"), Ok(i64::MAX));
        assert_eq!(duration_ns("9223372036s"), Ok(9_223_372_036_000_000_000));
        for text in ["9223372036854775808", "9223372037s", "1 s", "1S"] {
            assert!(duration_ns(text).is_err(), "{text}");
        }
    }
}
