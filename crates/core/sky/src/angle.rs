//! Parses angles: numbers with units, or in hours or degrees, minutes and seconds.

use crate::SkyError;

/// Maximum length of an angle's text.
const CHARS_MAX: usize = 64;

/// The use of an angle, which decides how `10:20:30` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AngleKind {
    /// A right ascension: `10:20:30` are hours, minutes and seconds.
    RightAscension,
    /// A declination, a radius or any other angle: `10:20:30` are degrees, minutes and seconds.
    Other,
}

/// Parses an angle and returns degrees. The text is a number of degrees (`0.1`), a number with a unit (`0.1deg`, `3arcsec`,
/// `1.5 arcmin`, `20mas`, `0.2rad`, `10.3h`), or sexagesimal (`10h20m30.5s`, `-5d20m10s`, `12\u{b0}30'10"`, `10:20:30`).
///
/// # Errors
/// [`SkyError::BadAngle`] for any other text, minutes or seconds of 60 and above, and numbers that are not finite.
pub fn parse_angle(text: &str, kind: AngleKind) -> Result<f64, SkyError> {
    let bad = |reason| SkyError::BadAngle { text: text.chars().take(CHARS_MAX).collect(), reason };
    if text.len() > CHARS_MAX {
        return Err(bad("it is too long"));
    }
    let plain = text.trim();
    let (negative, unsigned) = match plain.strip_prefix(['-', '\u{2212}']) {
        Some(rest) => (true, rest),
        None => (false, plain.strip_prefix('+').unwrap_or(plain)),
    };
    let parts = if unsigned.contains(':') { colons(unsigned, kind) } else { units(unsigned) };
    let degrees = sum(&parts.map_err(bad)?).map_err(bad)?;
    Ok(if negative { -degrees } else { degrees })
}

/// A number and its unit.
type Term<'a> = (f64, &'a str, Unit);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Degree,
    Hour,
    /// A sixtieth of the preceding unit, which it needs.
    Minute,
    Second,
    /// A unit that is used alone, in degrees.
    Alone(f64),
}

const NUMBER: &str = "a number is missing";

fn number(text: &str) -> Result<f64, &'static str> {
    // Rust also parses `inf` and `nan`, and a sign in front: the sign of the angle has already been taken.
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+'));
    match text.parse::<f64>() {
        Ok(value) if is_plain && value.is_finite() && !text.starts_with(['-', '+']) => Ok(value),
        _ => Err(NUMBER),
    }
}

fn colons(text: &str, kind: AngleKind) -> Result<Vec<Term<'_>>, &'static str> {
    let first = if kind == AngleKind::RightAscension { Unit::Hour } else { Unit::Degree };
    let units = [first, Unit::Minute, Unit::Second];
    let words: Vec<&str> = text.split(':').collect();
    if words.len() > units.len() {
        return Err("it has more than three parts");
    }
    words.into_iter().zip(units).map(|(word, unit)| Ok((number(word.trim())?, word, unit))).collect()
}

fn units(text: &str) -> Result<Vec<Term<'_>>, &'static str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, behind) = take_number(rest);
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (name, next) = behind.split_at(end);
        parts.push((number(word)?, word, unit(name.trim())?));
        rest = next;
    }
    if parts.is_empty() { Err(NUMBER) } else { Ok(parts) }
}

/// Splits a number from the rest of the text. An `e` is part of the number if digits follow.
fn take_number(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
    let mut end = digits(0);
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        // The text may end with the `e` or its sign.
        let exponent = digits((end + 1 + sign).min(bytes.len()));
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    text.split_at(end)
}

fn unit(name: &str) -> Result<Unit, &'static str> {
    Ok(match name {
        "" | "d" | "deg" | "degree" | "degrees" | "\u{b0}" => Unit::Degree,
        "h" | "hour" | "hours" | "hourangle" => Unit::Hour,
        "m" | "'" | "\u{2032}" | "min" => Unit::Minute,
        "s" | "\"" | "\u{2033}" | "''" | "sec" => Unit::Second,
        "arcmin" | "arcminute" | "arcminutes" | "amin" => Unit::Alone(1.0 / 60.0),
        "arcsec" | "arcsecond" | "arcseconds" | "asec" => Unit::Alone(1.0 / 3_600.0),
        "mas" => Unit::Alone(1.0 / 3_600_000.0),
        "rad" | "radian" | "radians" => Unit::Alone(1f64.to_degrees()),
        _ => return Err("its unit is not one of deg, arcmin, arcsec, mas, rad, h"),
    })
}

fn sum(parts: &[Term<'_>]) -> Result<f64, &'static str> {
    let whole = match parts {
        [(value, _, Unit::Alone(degrees))] => return Ok(value * degrees),
        [(_, _, Unit::Degree), ..] => 1.0,
        [(_, _, Unit::Hour), ..] => 15.0,
        [(_, _, Unit::Minute | Unit::Second)] => {
            return Err("minutes and seconds alone can mean two things: write arcmin or arcsec");
        }
        _ => return Err("its units do not follow each other as in 10h20m30s or 5d20m10s"),
    };
    let in_order = match parts {
        [_] => true,
        [_, (_, _, second)] => *second == Unit::Minute,
        [_, (_, _, second), (_, _, third)] => *second == Unit::Minute && *third == Unit::Second,
        _ => false,
    };
    if !in_order {
        return Err("its units do not follow each other as in 10h20m30s or 5d20m10s");
    }
    if parts[1..].iter().any(|(value, _, _)| *value >= 60.0) {
        return Err("its minutes and seconds must be below 60");
    }
    if parts[..parts.len() - 1].iter().any(|(value, _, _)| value.fract() != 0.0) {
        return Err("only its last part may have a fraction");
    }
    let scales = [1.0, 60.0, 3_600.0];
    Ok(whole * parts.iter().zip(scales).map(|((value, _, _), scale)| value / scale).sum::<f64>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ra(text: &str) -> f64 {
        parse_angle(text, AngleKind::RightAscension).unwrap()
    }

    fn dec(text: &str) -> f64 {
        parse_angle(text, AngleKind::Other).unwrap()
    }

    #[track_caller]
    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }

    #[test]
    fn a_text_of_an_angle_has_64_bytes_at_most() {
        near(dec(&format!("{}1.5", "0".repeat(61))), 1.5);
        assert!(parse_angle(&format!("{}1.5", "0".repeat(62)), AngleKind::Other).is_err());
    }

    #[test]
    fn angles_are_read_as_people_write_them() {
        near(ra("150.1"), 150.1);
        near(dec("0.1deg"), 0.1);
        near(dec("3arcsec"), 3.0 / 3_600.0);
        near(dec(" 1.5 arcmin "), 0.025);
        near(dec("20mas"), 20.0 / 3_600_000.0);
        near(dec("1e-2 d"), 0.01);
        near(dec("3.141592653589793rad"), 180.0);
        near(ra("10h20m"), 155.0);
        near(ra("10h20m30.5s"), 15.0 * (10.0 + 20.0 / 60.0 + 30.5 / 3_600.0));
        near(ra("10:20:30"), 155.125);
        near(dec("10:20:30"), 10.0 + 20.0 / 60.0 + 30.0 / 3_600.0);
        near(dec("-05d20m10s"), -(5.0 + 20.0 / 60.0 + 10.0 / 3_600.0));
        near(dec("-00:30:00"), -0.5);
        near(dec("+12\u{b0}30'10\""), 12.0 + 0.5 + 10.0 / 3_600.0);
        near(ra("10.3h"), 154.5);
        near(ra("10h 20m 30s"), 155.125);
    }

    #[test]
    fn invalid_and_ambiguous_angles_are_refused() {
        for text in [
            "",
            " ",
            "abc",
            "10x",
            "20m",
            "30s",
            "10h70m",
            "10h20m60s",
            "10h20s",
            "10d20s10s",
            "10d20m10m",
            "10m20h",
            "1:2:3:4",
            "10.5h20m",
            "nan",
            "inf",
            "--1",
            "1e999",
            "10:",
            ":10",
            "1 2",
            "1deg2deg",
            "3arcsec2",
            "\u{661}",
            "1e",
            "+-1",
            "0x10",
            &"1".repeat(65),
        ] {
            assert!(parse_angle(text, AngleKind::Other).is_err(), "{text:?}");
        }
    }

    #[test]
    fn minutes_and_seconds_alone_are_refused_with_what_to_write() {
        for text in ["20m", "30s", "5'"] {
            let error = parse_angle(text, AngleKind::Other).unwrap_err().to_string();
            assert!(error.contains("write arcmin or arcsec"), "{text}: {error}");
        }
    }

    #[test]
    fn an_exponent_without_digits_is_no_part_of_the_number() {
        for text in ["1e", "1E+", "1e-"] {
            let error = parse_angle(text, AngleKind::Other).unwrap_err().to_string();
            assert!(error.contains("its unit is not one of"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_number_alone_is_its_own_degrees(value in -1e6f64..1e6) {
            prop_assert_eq!(parse_angle(&value.to_string(), AngleKind::Other).unwrap(), value);
            near(parse_angle(&format!("{value}deg"), AngleKind::RightAscension).unwrap(), value);
        }

        #[test]
        fn any_text_is_an_angle_or_refused(text in ".{0,70}") {
            if let Ok(angle) = parse_angle(&text, AngleKind::RightAscension) {
                prop_assert!(angle.is_finite());
            }
        }
    }
}
