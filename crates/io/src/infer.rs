//! Infers types of CSV and NDJSON columns from a sample of their values.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow_array::timezone::Tz;
use arrow_cast::parse::{string_to_datetime, string_to_timestamp_nanos};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use chronotile_types::COLUMNS_MAX;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::text::{fraction_digits, time_with_seconds};

/// The error for an object with more members than a dataset may have columns.
pub(crate) const TOO_MANY: &str = "too many named values in one object";

/// The narrowest class that covers all values of a column so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Only nulls.
    Null,
    Bool,
    /// Fits int64; `negative` if any value is below zero.
    Int {
        negative: bool,
    },
    /// Beyond int64, none negative; fits uint64.
    UInt,
    /// Integers beyond 64 bits.
    BigInt,
    Float,
    Date,
    /// ISO 8601 date and time; `zoned` if with offset or `Z`, `nanos` if finer than a microsecond.
    Timestamp {
        zoned: bool,
        nanos: bool,
    },
    Text,
    List(Box<Kind>),
    Struct(Members),
    /// Objects, lists and plain values mixed: no column type holds them.
    Clash,
}

impl Kind {
    /// The class of an unquoted CSV field.
    pub(crate) fn of_field(text: &str) -> Self {
        let text = text.trim();
        match text.as_bytes().first() {
            None => Self::Text,
            Some(b'0'..=b'9' | b'+' | b'-' | b'.') => Self::of_number(text).unwrap_or_else(|| Self::of_string(text)),
            _ if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") => Self::Bool,
            _ if is_named_float(text) => Self::Float,
            _ => Self::Text,
        }
    }

    /// The class of a JSON string: a date, a timestamp or text.
    pub(crate) fn of_string(text: &str) -> Self {
        let bytes = text.as_bytes();
        if bytes.len() < 10 || bytes[4] != b'-' || bytes[7] != b'-' {
            return Self::Text;
        }
        let Ok(zone) = "+00:00".parse::<Tz>() else { return Self::Text };
        if string_to_datetime(&zone, &time_with_seconds(text)).is_err() {
            return Self::Text;
        }
        if bytes.len() == 10 {
            return Self::Date;
        }
        let zoned = bytes[10..].iter().any(|b| matches!(b, b'z' | b'Z' | b'+' | b'-' | b'/'));
        match fraction_digits(text) {
            0..=6 => Self::Timestamp { zoned, nanos: false },
            // 64-bit nanoseconds count only from 1677 to 2262; other times stay text.
            7..=9 if string_to_timestamp_nanos(text).is_ok() => Self::Timestamp { zoned, nanos: true },
            _ => Self::Text,
        }
    }

    fn of_number(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if is_named_float(text) {
            return Some(Self::Float);
        }
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            // A leading zero marks a code (a postal code, a serial number) whose zeros a number would lose.
            return Some(match (digits.len() > 1 && digits.starts_with('0'), text.parse::<i64>()) {
                (true, _) => Self::Text,
                (false, Ok(value)) => Self::Int { negative: value < 0 },
                (false, Err(_)) if text.parse::<u64>().is_ok() => Self::UInt,
                (false, Err(_)) => Self::BigInt,
            });
        }
        let number = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
        let value = number.then(|| text.parse::<f64>().ok()).flatten()?;
        // A number beyond float64, such as 1e999, would become infinite.
        Some(if value.is_finite() { Self::Float } else { Self::Text })
    }

    /// The narrowest class that covers both.
    pub(crate) fn merge(self, other: Self) -> Self {
        use Kind as K;
        match (self, other) {
            (a, b) if a == b => a,
            (K::Null, a) | (a, K::Null) => a,
            (K::Clash, _) | (_, K::Clash) => K::Clash,
            (K::List(a), K::List(b)) => match a.merge(*b) {
                K::Clash => K::Clash,
                item => K::List(Box::new(item)),
            },
            (K::Struct(a), K::Struct(b)) => K::Struct(a.merge(b)),
            (K::List(_) | K::Struct(_), _) | (_, K::List(_) | K::Struct(_)) => K::Clash,
            (K::Int { negative: a }, K::Int { negative: b }) => K::Int { negative: a || b },
            (K::Int { negative: false } | K::UInt, K::Int { negative: false } | K::UInt) => K::UInt,
            // No 64-bit integer holds both negative values and values beyond int64.
            (K::Int { .. } | K::UInt | K::BigInt, K::Int { .. } | K::UInt | K::BigInt) => K::BigInt,
            (K::Int { .. } | K::UInt | K::BigInt | K::Float, K::Int { .. } | K::UInt | K::BigInt | K::Float) => {
                K::Float
            }
            (K::Timestamp { zoned: a, nanos: m }, K::Timestamp { zoned: b, nanos: n }) if a == b => {
                K::Timestamp { zoned: a, nanos: m || n }
            }
            (K::Date, K::Timestamp { zoned: false, nanos }) | (K::Timestamp { zoned: false, nanos }, K::Date) => {
                K::Timestamp { zoned: false, nanos }
            }
            _ => K::Text,
        }
    }

    /// The column type of this class; `None` for [`Kind::Clash`] at any depth.
    pub(crate) fn data_type(&self) -> Option<DataType> {
        Some(match self {
            Self::Bool => DataType::Boolean,
            Self::Int { .. } => DataType::Int64,
            Self::UInt => DataType::UInt64,
            Self::Float => DataType::Float64,
            Self::Date => DataType::Date32,
            Self::Timestamp { zoned, nanos } => {
                let unit = if *nanos { TimeUnit::Nanosecond } else { TimeUnit::Microsecond };
                DataType::Timestamp(unit, zoned.then(|| "UTC".into()))
            }
            Self::Null | Self::BigInt | Self::Text => DataType::Utf8,
            Self::List(item) => DataType::List(Arc::new(Field::new_list_field(item.data_type()?, true))),
            Self::Struct(fields) => {
                let fields = fields.list.iter().map(|(name, kind)| Some(Field::new(name, kind.data_type()?, true)));
                DataType::Struct(fields.collect::<Option<Fields>>()?)
            }
            Self::Clash => return None,
        })
    }

    /// Whether no column type fits, which is the case if none fits a part of it.
    fn is_clash(&self) -> bool {
        match self {
            Self::Clash => true,
            Self::List(item) => item.is_clash(),
            Self::Struct(fields) => fields.list.iter().any(|(_, kind)| kind.is_clash()),
            _ => false,
        }
    }

    /// Number of named values, at any depth.
    pub(crate) fn members(&self) -> usize {
        match self {
            Self::List(item) => item.members(),
            Self::Struct(fields) => fields.total,
            _ => 0,
        }
    }
}

/// Members are found by linear search up to this number, by hash above it.
const FEW: usize = 16;

/// The members of objects, in the order in which they first occurred.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    pub(crate) list: Vec<(String, Kind)>,
    /// Positions in the list, used once it is longer than [`FEW`].
    places: HashMap<String, usize>,
    /// Number of named values in all members, at any depth.
    total: usize,
}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Members {
    fn place(&self, name: &str) -> Option<usize> {
        match self.list.len() <= FEW {
            true => self.list.iter().position(|(known, _)| known == name),
            false => self.places.get(name).copied(),
        }
    }

    fn push(&mut self, name: String, kind: Kind) {
        self.total += 1 + kind.members();
        self.list.push((name, kind));
        let len = self.list.len();
        if len <= FEW {
            return;
        }
        // The first member above the limit adds all earlier ones to the map.
        let from = if len == FEW + 1 { 0 } else { len - 1 };
        self.places.extend(self.list[from..].iter().enumerate().map(|(at, (name, _))| (name.clone(), from + at)));
    }

    fn merge(mut self, other: Self) -> Self {
        for (place, (name, kind)) in other.list.into_iter().enumerate() {
            // Records usually have their members in the same order, so try the same position before a search.
            let at = match self.list.get(place) {
                Some((known, _)) if *known == name => Some(place),
                _ => self.place(&name),
            };
            match at {
                Some(at) => {
                    let old = std::mem::replace(&mut self.list[at].1, Kind::Null);
                    // `set` below subtracts only the members of the null that takes the place of the old value.
                    self.total -= old.members();
                    self.set(at, old.merge(kind));
                }
                None => self.push(name, kind),
            }
        }
        self
    }

    /// The first requested member that no column type fits.
    pub(crate) fn clash(&self, asked: impl Fn(&str) -> bool) -> Option<String> {
        let clashes = |(name, kind): &&(String, Kind)| kind.is_clash() && asked(name);
        self.list.iter().find(clashes).map(|(name, _)| name.clone())
    }

    fn set(&mut self, at: usize, kind: Kind) {
        let old = std::mem::replace(&mut self.list[at].1, kind);
        self.total = self.total + self.list[at].1.members() - old.members();
    }
}

fn is_named_float(text: &str) -> bool {
    let word = text.strip_prefix(['+', '-']).unwrap_or(text);
    ["nan", "inf", "infinity"].iter().any(|name| word.eq_ignore_ascii_case(name))
}

/// Classifies a JSON value during parsing, without building it.
impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Kind, E> {
        Ok(Kind::Bool)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Int { negative: value < 0 })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(if i64::try_from(value).is_ok() { Kind::Int { negative: false } } else { Kind::UInt })
    }

    fn visit_f64<E>(self, _: f64) -> Result<Kind, E> {
        Ok(Kind::Float)
    }

    fn visit_str<E>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::of_string(text))
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut kind = Kind::Null;
        while let Some(item) = items.next_element::<Kind>()? {
            kind = kind.merge(item);
            if kind.members() > COLUMNS_MAX {
                return Err(serde::de::Error::custom(TOO_MANY));
            }
        }
        Ok(if kind == Kind::Clash { Kind::Clash } else { Kind::List(Box::new(kind)) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Kind, A::Error> {
        let mut fields = Members::default();
        while let Some((name, kind)) = entries.next_entry::<String, Kind>()? {
            match fields.place(&name) {
                Some(at) => fields.set(at, kind),
                None => fields.push(name, kind),
            }
            if fields.total > COLUMNS_MAX {
                return Err(serde::de::Error::custom(TOO_MANY));
            }
        }
        Ok(Kind::Struct(fields))
    }
}
