//! Exact numbers, whatever type they were given in.

/// Where a constant is relative to the values of a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ConstantPosition<T> {
    /// Less than all values.
    Below,
    /// Equal to this value.
    At(T),
    /// Greater than this value and less than the next one.
    After(T),
    /// Greater than all values.
    Above,
    /// Not a number: neither less nor greater.
    Nan,
}

/// A numeric constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Float(f64),
    /// `digits * 10^exponent`; with `more`, digits were cut off, so the number is further from zero by less than one
    /// unit of the last digit.
    Decimal {
        negative: bool,
        digits: u128,
        exponent: i32,
        more: bool,
    },
}

/// Number of decimal digits that always fit in a 128-bit integer.
const DIGITS_MAX: usize = 38;

/// Floats from 2^53 to 2^126 are integers that fit in 128 bits, and are converted as such.
const WHOLE: std::ops::Range<f64> = 9_007_199_254_740_992.0..8.507059173023462e37;

impl From<i128> for Number {
    fn from(value: i128) -> Self {
        Self::decimal(value, 0)
    }
}

impl Number {
    pub(crate) fn decimal(value: i128, exponent: i32) -> Self {
        Self::Decimal { negative: value < 0, digits: value.unsigned_abs(), exponent, more: false }
    }

    /// A number as text: `12`, `-1.5e3`, `.5`, `nan`, `inf`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let sign = if negative { -1.0 } else { 1.0 };
        match rest.to_ascii_lowercase().as_str() {
            "nan" => return Some(Self::Float(f64::NAN)),
            "inf" | "infinity" => return Some(Self::Float(sign * f64::INFINITY)),
            _ => {}
        }
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, small_exponent(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let mut found = Self::Decimal { negative, digits: 0, exponent, more: false };
        let Self::Decimal { digits, exponent, more, .. } = &mut found else { return None };
        let mut kept = 0;
        for (place, byte) in whole.bytes().chain(fraction.bytes()).enumerate() {
            let (digit, in_fraction) = (byte - b'0', place >= whole.len());
            if kept == DIGITS_MAX {
                *more |= digit != 0;
                // A digit that is cut off still counts as a place if it is before the decimal point.
                *exponent = exponent.saturating_add(i32::from(!in_fraction));
                continue;
            }
            *digits = *digits * 10 + u128::from(digit);
            // Leading zeros take no room, so they do not count as kept digits.
            kept += usize::from(*digits != 0);
            *exponent = exponent.saturating_sub(i32::from(in_fraction));
        }
        Some(found)
    }

    /// Locates the number among the multiples of `10^-scale`, counted in these.
    pub(crate) fn among_steps(self, scale: i8) -> ConstantPosition<i128> {
        match self {
            Self::Float(value) if value.is_nan() => ConstantPosition::Nan,
            Self::Float(f64::INFINITY) => ConstantPosition::Above,
            Self::Float(f64::NEG_INFINITY) => ConstantPosition::Below,
            Self::Float(value) if WHOLE.contains(&value.abs()) => Self::from(value as i128).among_steps(scale),
            Self::Float(value) => {
                Self::parse(&format!("{value:e}")).map_or(ConstantPosition::Nan, |n| n.among_steps(scale))
            }
            Self::Decimal { negative, digits, exponent, more } => {
                decimal_step(negative, digits, exponent.saturating_add(i32::from(scale)), more)
            }
        }
    }

    /// Locates the number among floats; `narrow` for 32-bit floats.
    pub(crate) fn among_floats(self, narrow: bool) -> ConstantPosition<f64> {
        let spot = match self {
            Self::Float(value) => ConstantPosition::At(value),
            Self::Decimal { negative, digits, exponent, more } => {
                match decimal_step(negative, digits, exponent, more) {
                    // A whole number of up to 127 bits is located exactly. A fraction stands for the nearest float,
                    // which is how it is stored: hardly any decimal fraction is a float itself.
                    ConstantPosition::At(whole) => whole_among_floats(whole),
                    _ => {
                        let sign = if negative { "-" } else { "" };
                        finite(format!("{sign}{digits}e{exponent}").parse().unwrap_or(f64::NAN))
                    }
                }
            }
        };
        match spot {
            ConstantPosition::At(value) if narrow => ConstantPosition::At(narrowed(value)),
            spot => spot,
        }
    }
}

/// The float32 that is written like the number, or the number itself: 0.1 means the float32 that 0.1 is stored as.
fn narrowed(value: f64) -> f64 {
    let narrow = value as f32;
    let same = narrow.is_finite() && format!("{narrow:e}") == format!("{value:e}");
    if same { f64::from(narrow) } else { value }
}

/// An exponent as text; one with very many digits counts as a large one.
fn small_exponent(text: &str) -> Option<i32> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let legal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    legal.then(|| sign * digits.parse::<i32>().unwrap_or(1_000_000).min(1_000_000))
}

fn whole_among_floats(whole: i128) -> ConstantPosition<f64> {
    let nearest = whole as f64;
    match (nearest as i128).cmp(&whole) {
        std::cmp::Ordering::Equal => ConstantPosition::At(nearest),
        std::cmp::Ordering::Less => ConstantPosition::After(nearest),
        std::cmp::Ordering::Greater => ConstantPosition::After(nearest.next_down()),
    }
}

/// A number that is infinite as a float only lies between the last finite float and infinity.
fn finite(value: f64) -> ConstantPosition<f64> {
    match value {
        f64::INFINITY => ConstantPosition::After(f64::MAX),
        f64::NEG_INFINITY => ConstantPosition::After(f64::NEG_INFINITY),
        value => ConstantPosition::At(value),
    }
}

/// Locates `digits * 10^exponent` among integers.
fn decimal_step(negative: bool, digits: u128, exponent: i32, more: bool) -> ConstantPosition<i128> {
    let beyond = if negative { ConstantPosition::Below } else { ConstantPosition::Above };
    if digits == 0 && !more {
        return ConstantPosition::At(0);
    }
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let (steps, exact) = match (exponent >= 0, power) {
        (true, None) => return beyond,
        (true, Some(power)) => match digits.checked_mul(power) {
            Some(steps) => (steps, !more),
            None => return beyond,
        },
        // The power of ten exceeds 128 bits and therefore `digits`, so the number is less than 1 away from 0.
        (false, None) => (0, false),
        (false, Some(power)) => (digits / power, digits.is_multiple_of(power) && !more),
    };
    let Ok(steps) = i128::try_from(steps) else { return beyond };
    match (negative, exact) {
        (false, true) => ConstantPosition::At(steps),
        (false, false) => ConstantPosition::After(steps),
        (true, true) => ConstantPosition::At(-steps),
        // `After` names the value below, which for negative numbers is the one farther from zero.
        (true, false) => ConstantPosition::After(-steps - 1),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(text: &str, scale: i8) -> ConstantPosition<i128> {
        Number::parse(text).unwrap().among_steps(scale)
    }

    #[test]
    fn text_is_read_exactly() {
        for (text, scale, spot) in [
            ("1.025", 3, ConstantPosition::At(1025)),
            ("1.025", 2, ConstantPosition::After(102)),
            ("-1.025", 2, ConstantPosition::After(-103)),
            ("-1.5", 0, ConstantPosition::After(-2)),
            ("1e3", 0, ConstantPosition::At(1000)),
            ("1000", -3, ConstantPosition::At(1)),
            ("1001", -3, ConstantPosition::After(1)),
            (".5", 1, ConstantPosition::At(5)),
            ("5.", 0, ConstantPosition::At(5)),
            ("0.00e9999999999", 0, ConstantPosition::At(0)),
            ("1e-9999999999", 5, ConstantPosition::After(0)),
            ("-1e-400", 5, ConstantPosition::After(-1)),
            ("1e400", 0, ConstantPosition::Above),
            ("-1e99", 0, ConstantPosition::Below),
            ("-inf", 0, ConstantPosition::Below),
            ("99999999999999999999999999999999999999", 0, ConstantPosition::At(10_i128.pow(38) - 1)),
            ("99999999999999999999999999999999999998.0001", 0, ConstantPosition::After(10_i128.pow(38) - 2)),
            ("999999999999999999999999999999999999999", 0, ConstantPosition::Above),
        ] {
            assert_eq!(steps(text, scale), spot, "{text} in steps of 10^-{scale}");
        }
        assert_eq!(steps("NaN", 0), ConstantPosition::Nan);
        for text in ["", "-", ".", "e5", "1e", "1e+", "1_000", "0x10", "1.2.3", "one", "１"] {
            assert_eq!(Number::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn large_floats_are_whole_numbers_and_the_largest_lie_above() {
        for value in [2f64.powi(53), 2f64.powi(53) + 2.0, 2f64.powi(90), 2f64.powi(125), -(2f64.powi(100))] {
            assert_eq!(Number::Float(value).among_steps(0), ConstantPosition::At(value as i128), "{value}");
        }
        assert_eq!(Number::Float(2f64.powi(53) - 1.0).among_steps(0), ConstantPosition::At((1 << 53) - 1));
        assert_eq!(Number::Float(1e39).among_steps(0), ConstantPosition::Above);
        assert_eq!(Number::Float(-1e39).among_steps(0), ConstantPosition::Below);
        assert_eq!(Number::Float(2f64.powi(60)).among_steps(2), ConstantPosition::At(100 << 60));
        assert_eq!(Number::Float(2f64.powi(60)).among_steps(-2), ConstantPosition::After((1 << 60) / 100));
        for value in [f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(
                Number::Float(value).among_steps(3),
                if value > 0.0 { ConstantPosition::Above } else { ConstantPosition::Below }
            );
            assert_eq!(Number::Float(value).among_floats(true), ConstantPosition::At(value));
            assert_eq!(Number::parse(&value.to_string()), Some(Number::Float(value)));
        }
        for (text, value) in
            [("+INFINITY", f64::INFINITY), ("-Inf", f64::NEG_INFINITY), ("+1.5", 1.5), (" -2e-1", -0.2)]
        {
            assert_eq!(Number::parse(text).unwrap().among_floats(false), ConstantPosition::At(value), "{text}");
        }
        // An exponent of more than a million is one of a million.
        for (text, spot) in [
            ("1e1000000", ConstantPosition::Above),
            ("1e-1000001", ConstantPosition::After(0)),
            ("-0e7", ConstantPosition::At(0)),
        ] {
            assert_eq!(steps(text, 0), spot, "{text}");
        }
        assert_eq!(steps(&format!("{}e-37", i128::MAX / 10), 0), ConstantPosition::After(1));
        assert_eq!(steps("17e37", 0), ConstantPosition::At(17 * 10_i128.pow(37)));
        assert_eq!(steps("18e37", 0), ConstantPosition::Above);
        assert_eq!(steps("-18e37", 0), ConstantPosition::Below);
    }

    #[test]
    fn a_number_between_two_floats_is_neither() {
        let among = |number: Number, narrow| number.among_floats(narrow);
        let past = Number::from((1 << 53) + 1);
        assert_eq!(among(past, false), ConstantPosition::After(9_007_199_254_740_992.0));
        assert_eq!(
            among(Number::parse("9007199254740993.0").unwrap(), false),
            ConstantPosition::After(9_007_199_254_740_992.0)
        );
        assert_eq!(among(Number::parse("1e400").unwrap(), false), ConstantPosition::After(f64::MAX));
        assert_eq!(among(Number::parse("-1e400").unwrap(), false), ConstantPosition::After(f64::NEG_INFINITY));
        assert_eq!(among(Number::Float(0.1), true), ConstantPosition::At(f64::from(0.1_f32)));
        assert_eq!(among(Number::Float(f64::from(0.1_f32)), true), ConstantPosition::At(f64::from(0.1_f32)));
        assert_eq!(among(Number::Float(16_777_217.0), true), ConstantPosition::At(16_777_217.0));
        assert_eq!(among(Number::Float(0.100_000_000_1), true), ConstantPosition::At(0.100_000_000_1));
    }

    proptest! {
        #[test]
        fn floats_keep_their_order_among_steps(a: f64, b: f64, scale in -3..9_i8) {
            let place = |value: f64| match Number::Float(value).among_steps(scale) {
                ConstantPosition::Below => (0, 0, 0),
                ConstantPosition::At(step) => (1, step, 0),
                ConstantPosition::After(step) => (1, step, 1),
                ConstantPosition::Above => (2, 0, 0),
                ConstantPosition::Nan => (3, 0, 0),
            };
            prop_assume!(!a.is_nan() && !b.is_nan());
            if a < b {
                prop_assert!(place(a) <= place(b));
            }
        }

        #[test]
        fn decimals_lie_where_whole_arithmetic_puts_them(digits in -999_999_999..1_000_000_000_i64, exponent in -12..12_i32, scale in -4..9_i8) {
            let digits = i128::from(digits);
            let power = exponent + i32::from(scale);
            let ten = 10_i128.pow(power.unsigned_abs());
            let expected = match power >= 0 {
                true => ConstantPosition::At(digits * ten),
                false if digits % ten == 0 => ConstantPosition::At(digits / ten),
                false => ConstantPosition::After(digits.div_euclid(ten)),
            };
            prop_assert_eq!(Number::decimal(digits, exponent).among_steps(scale), expected);
            prop_assert_eq!(steps(&format!("{digits}e{exponent}"), scale), expected);
            prop_assert_eq!(steps(&format!(" {digits}.000E{exponent:+} "), scale), expected);
        }

        #[test]
        fn digits_beyond_those_kept_only_tell_whether_there_is_more(head in 1..=9_u8, zeros in 36..60_usize, tail in 0..=9_u8, point in 0..60_usize) {
            // A digit, zeros and another digit, with a point somewhere between: what is cut off lies behind the 38th digit.
            let mut text = format!("{head}{}{tail}", "0".repeat(zeros));
            let point = point.min(text.len());
            let exponent = text.len() - point;
            text.insert(point, '.');
            let Some(Number::Decimal { digits, exponent: found, more, .. }) = Number::parse(&text) else { unreachable!() };
            let is_kept = zeros + 2 <= DIGITS_MAX;
            prop_assert_eq!(more, !is_kept && tail != 0);
            let kept = (zeros + 2).min(DIGITS_MAX);
            prop_assert_eq!(digits, u128::from(head) * 10_u128.pow(kept as u32 - 1) + u128::from(if is_kept { tail } else { 0 }));
            prop_assert_eq!(found, (zeros + 2 - kept) as i32 - exponent as i32);
        }

        #[test]
        fn a_whole_number_lies_at_a_float_or_between_two(value in -(1_i128 << 120)..1_i128 << 120, shift in 0..120_u32) {
            let value = value >> shift;
            match Number::from(value).among_floats(false) {
                ConstantPosition::At(float) => prop_assert_eq!(float as i128, value),
                ConstantPosition::After(float) => prop_assert!((float as i128) < value && value < float.next_up() as i128),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn floats_written_out_are_the_floats(value: f64, narrow: bool) {
            prop_assume!(value.is_finite() && value.fract() != 0.0);
            let text = Number::parse(&format!("{value:e}")).unwrap();
            prop_assert_eq!(text.among_floats(narrow), Number::Float(value).among_floats(narrow));
            let ConstantPosition::At(found) = text.among_floats(false) else { unreachable!("a float") };
            prop_assert_eq!(found.to_bits(), value.to_bits());
        }

        #[test]
        fn whole_numbers_stay_what_they_are(value: i64, scale in 0..9_i8) {
            let spot = ConstantPosition::At(i128::from(value) * 10_i128.pow(scale as u32));
            prop_assert_eq!(Number::from(i128::from(value)).among_steps(scale), spot);
            prop_assert_eq!(steps(&value.to_string(), scale), spot);
        }
    }
}
