//! Prometheus remote write, version 1: a snappy block with a protobuf message.
//!
//! The message is decoded field by field straight into points, so that empty fields take no memory.

use crate::points::{Points, Value, check_series, series_name, shown};

/// Maximum number of labels of a series.
const LABELS_MAX: usize = 128;

/// The NaN with which Prometheus marks the end of a series (staleness marker).
const STALE: u64 = 0x7ff0_0000_0000_0002;
/// Bad_NoData.
const NO_DATA: u32 = 0x809B_0000;
/// Bad_SensorFailure: a NaN or infinite value.
const SENSOR_FAILURE: u32 = 0x808C_0000;

/// The unpacked length that a body declares, at least its own length.
pub(crate) fn unpacked_bytes(body: &[u8]) -> usize {
    snap::raw::decompress_len(body).unwrap_or(0).max(body.len())
}

/// Reads a body that unpacks to at most `bytes_max` bytes. Series that cannot be stored are refused by their number.
///
/// # Errors
/// The body is not a remote write message, or unpacks to more than `bytes_max` bytes.
pub fn read(body: &[u8], bytes_max: usize, points: &mut Points) -> Result<(), String> {
    // A snappy block declares its unpacked size, which is checked and charged before anything is unpacked.
    let size = snap::raw::decompress_len(body).map_err(|error| format!("the body is not a snappy block: {error}"))?;
    if size > bytes_max {
        return Err(format!("the body unpacks to {size} bytes, more than {bytes_max}: send fewer samples at a time"));
    }
    points.pay(size);
    if points.memory_error().is_some() {
        return Ok(());
    }
    let message = snap::raw::Decoder::new()
        .decompress_vec(body)
        .map_err(|error| format!("the body is not a snappy block: {error}"))?;
    let wrong = |error| format!("the body is not a WriteRequest: {error}");
    let (mut rest, mut number) = (&*message, 0);
    while let Some((tag, field)) = next_field(&mut rest).map_err(wrong)? {
        // Field 1 is a series; metadata are skipped.
        let (1, Field::Bytes(bytes)) = (tag, field) else { continue };
        number += 1;
        if points.memory_error().is_some() {
            break;
        }
        let series = Series::of(bytes).map_err(wrong)?;
        if let Err(message) = series.and_then(|series| series.push(points, number)) {
            points.refuse(number, message);
        }
    }
    Ok(())
}

/// The value of a protobuf field, by wire type.
enum Field<'a> {
    Bytes(&'a [u8]),
    Fixed64(u64),
    Varint(u64),
    Fixed32,
}

type Decoded<T> = Result<T, &'static str>;

const CUT_OFF: &str = "a field extends beyond its message";

/// The next field of a message, with its number; `None` at the end.
fn next_field<'a>(rest: &mut &'a [u8]) -> Decoded<Option<(u64, Field<'a>)>> {
    if rest.is_empty() {
        return Ok(None);
    }
    let key = varint(rest)?;
    let field = match key & 7 {
        0 => Field::Varint(varint(rest)?),
        1 => Field::Fixed64(taken(rest, 8)?.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte))),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| CUT_OFF)?;
            Field::Bytes(taken(rest, length)?)
        }
        5 => {
            taken(rest, 4)?;
            Field::Fixed32
        }
        _ => return Err("unknown wire type of a field"),
    };
    match key >> 3 {
        0 => Err("a field has number 0"),
        number => Ok(Some((number, field))),
    }
}

fn taken<'a>(rest: &mut &'a [u8], length: usize) -> Decoded<&'a [u8]> {
    let (bytes, behind) = rest.split_at_checked(length).ok_or(CUT_OFF)?;
    *rest = behind;
    Ok(bytes)
}

fn varint(rest: &mut &[u8]) -> Decoded<u64> {
    let mut value = 0;
    // Ten groups of seven bits hold 64 bits; the tenth gives only its lowest bit.
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first().ok_or(CUT_OFF)?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number has more than ten bytes")
}

fn text(bytes: &[u8]) -> Decoded<&str> {
    std::str::from_utf8(bytes).map_err(|_| "a label is invalid UTF-8")
}

/// A series and its undecoded bytes.
struct Series<'a> {
    bytes: &'a [u8],
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
}

impl<'a> Series<'a> {
    /// Decodes name and labels, or says why the series cannot be stored. Checks all fields first, so that a series with a malformed
    /// end is not stored in part.
    fn of(bytes: &'a [u8]) -> Decoded<Result<Self, String>> {
        let (mut rest, mut name, mut labels) = (bytes, "", Vec::new());
        let (mut has_histograms, mut too_many, mut far) = (false, false, false);
        while let Some((tag, field)) = next_field(&mut rest)? {
            match (tag, field) {
                (1, Field::Bytes(label)) => {
                    let (label, value) = label_of(label)?;
                    // Labels beyond the limit are still decoded, because the name may be among them and messages show
                    // it.
                    match label {
                        "__name__" => name = value,
                        _ if labels.len() == LABELS_MAX => too_many = true,
                        _ => labels.push((label, value)),
                    }
                }
                (2, Field::Bytes(sample)) => far |= sample_of(sample)?.1.checked_mul(1_000_000).is_none(),
                // Native histograms.
                (4, Field::Bytes(_)) => has_histograms = true,
                _ => {}
            }
        }
        Ok(if name.is_empty() {
            Err("the series has no name: it lacks the label __name__".to_owned())
        } else if has_histograms {
            Err(format!("{} has native histograms, which are not stored: send classic ones", shown(name)))
        } else if too_many {
            Err(format!("{} has more than {LABELS_MAX} labels", shown(name)))
        } else if far {
            Err(format!("{} has a time outside of 1677 to 2262", shown(name)))
        } else {
            Ok(Self { bytes, name, labels })
        })
    }

    fn push(mut self, points: &mut Points, number: u64) -> Result<(), String> {
        check_series(self.name, 0, &self.labels)?;
        let name = series_name(self.name, &mut self.labels);
        let mut rest = self.bytes;
        // `of` has decoded these fields and checked their times, so no error occurs here and no time saturates.
        while let Ok(Some((tag, field))) = next_field(&mut rest) {
            let (2, Field::Bytes(sample)) = (tag, field) else { continue };
            let Ok((value, milliseconds)) = sample_of(sample) else { continue };
            let (value, status) = match value {
                value if value.to_bits() == STALE => (Value::Null, NO_DATA),
                value if !value.is_finite() => (Value::Null, SENSOR_FAILURE),
                value => (Value::Float(value), 0),
            };
            points.push(number, &name, milliseconds.saturating_mul(1_000_000), value, status)?;
        }
        Ok(())
    }
}

/// Name and value of a label.
fn label_of(mut rest: &[u8]) -> Decoded<(&str, &str)> {
    let (mut name, mut value) = (&b""[..], &b""[..]);
    while let Some((tag, field)) = next_field(&mut rest)? {
        match (tag, field) {
            (1, Field::Bytes(bytes)) => name = bytes,
            (2, Field::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((text(name)?, text(value)?))
}

/// Value of a sample, and milliseconds since 1970.
fn sample_of(mut rest: &[u8]) -> Decoded<(f64, i64)> {
    let (mut value, mut milliseconds) = (0.0, 0);
    while let Some((tag, field)) = next_field(&mut rest)? {
        match (tag, field) {
            (1, Field::Fixed64(bits)) => value = f64::from_bits(bits),
            (2, Field::Varint(count)) => milliseconds = count.cast_signed(),
            _ => {}
        }
    }
    Ok((value, milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    /// `prometheus.WriteRequest`.
    #[derive(Clone, PartialEq, Message)]
    struct WriteRequest {
        #[prost(message, repeated, tag = "1")]
        timeseries: Vec<TimeSeries>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct TimeSeries {
        #[prost(message, repeated, tag = "1")]
        labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        samples: Vec<Sample>,
        #[prost(bytes = "vec", repeated, tag = "4")]
        histograms: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Label {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        value: String,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    struct Sample {
        #[prost(double, tag = "1")]
        value: f64,
        #[prost(int64, tag = "2")]
        timestamp: i64,
    }

    fn series(labels: &[(&str, &str)], samples: &[(f64, i64)]) -> TimeSeries {
        TimeSeries {
            labels: labels.iter().map(|(name, value)| Label { name: (*name).into(), value: (*value).into() }).collect(),
            samples: samples.iter().map(|(value, timestamp)| Sample { value: *value, timestamp: *timestamp }).collect(),
            histograms: vec![],
        }
    }

    fn packed(series: Vec<TimeSeries>) -> Vec<u8> {
        let message = WriteRequest { timeseries: series }.encode_to_vec();
        snap::raw::Encoder::new().compress_vec(&message).unwrap()
    }

    #[test]
    fn samples_become_points_and_nan_becomes_bad() {
        let stale = f64::from_bits(STALE);
        let body = packed(vec![
            series(&[("job", "x"), ("__name__", "up")], &[(1.0, 1_000), (stale, 2_000), (f64::INFINITY, 3_000)]),
            series(&[("job", "x")], &[(1.0, 1)]),
            series(&[("__name__", "far")], &[(1.0, 1), (1.0, i64::MAX)]),
            TimeSeries { histograms: vec![vec![]], ..series(&[("__name__", "h")], &[(1.0, 1)]) },
        ]);
        let mut points = Points::default();
        read(&body, 1 << 20, &mut points).unwrap();
        let rows: Vec<_> = points.rows().map(|(_, name, time, value, status)| (name, time, value, status)).collect();
        let name = "up{job=\"x\"}";
        assert_eq!(
            rows,
            [
                (name, 1_000_000_000, Value::Float(1.0), 0),
                (name, 2_000_000_000, Value::Null, NO_DATA),
                (name, 3_000_000_000, Value::Null, SENSOR_FAILURE),
            ]
        );
        assert_eq!(points.refused.kept.iter().map(|refused| refused.line).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn labels_are_counted_in_any_order_and_without_the_name() {
        let message = |count: usize, place: usize| {
            let mut labels = vec![("l", "x"); count];
            labels.insert(place, ("__name__", "up"));
            let mut points = Points::default();
            read(&packed(vec![series(&labels, &[(1.0, 1)])]), 1 << 20, &mut points).unwrap();
            points.refused.kept[0].message.clone()
        };
        // A tag name is too short for so many labels, but that is another message.
        for place in [0, 1, LABELS_MAX] {
            assert!(message(LABELS_MAX, place).contains("bytes"), "{}", message(LABELS_MAX, place));
            assert!(message(LABELS_MAX + 1, place).contains("more than 128 labels"), "{place}");
        }
    }

    #[test]
    fn a_body_that_unpacks_to_too_much_is_refused_unread() {
        let body = packed(vec![series(&[("__name__", &"x".repeat(10_000))], &[])]);
        let message = read(&body, 1_000, &mut Points::default()).unwrap_err();
        assert!(message.contains("more than 1000"), "{message}");
    }

    #[test]
    fn a_body_may_unpack_to_the_bytes_that_are_allowed() {
        let body = packed(vec![series(&[("__name__", "x")], &[(1.0, 1)])]);
        let bytes = snap::raw::decompress_len(&body).unwrap();
        let count = |bytes_max: usize| {
            let mut points = Points::default();
            read(&body, bytes_max, &mut points).map(|()| points.len())
        };
        assert_eq!(count(bytes), Ok(1));
        assert!(count(bytes - 1).is_err());
    }

    #[test]
    fn a_body_counts_as_what_it_says_or_has() {
        let zeros = snap::raw::Encoder::new().compress_vec(&[0; 10_000]).unwrap();
        assert_eq!(unpacked_bytes(&zeros), 10_000);
        let noise: Vec<u8> = (0..100_u8).map(|i| i.wrapping_mul(91)).collect();
        let longer = snap::raw::Encoder::new().compress_vec(&noise).unwrap();
        assert!(longer.len() > 100);
        assert_eq!(unpacked_bytes(&longer), longer.len());
        assert_eq!(unpacked_bytes(&[0xff; 7]), 7);
    }

    #[test]
    fn nothing_is_read_for_which_there_is_no_memory() {
        let memory = chronotile_archive::memory::Memory::new(10_000);
        let text = "x".repeat(20_000);
        let body = packed(vec![series(&[("__name__", "x"), ("l", &text)], &[(1.0, 1)])]);
        let mut points = Points::charged(memory.empty());
        read(&body, 1 << 20, &mut points).unwrap();
        assert!(points.memory_error().is_some());
        assert_eq!((points.len(), points.refused.count), (0, 0));
    }

    /// A field with this number, wire type and content.
    fn field(number: u8, kind: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | kind][..], content].concat()
    }

    fn message(number: u8, content: &[u8]) -> Vec<u8> {
        field(number, 2, &[&[content.len() as u8][..], content].concat())
    }

    fn read_message(message: &[u8]) -> Result<Vec<String>, String> {
        let mut points = Points::default();
        read(&snap::raw::Encoder::new().compress_vec(message).unwrap(), 1 << 20, &mut points)?;
        assert_eq!(points.refused.count, 0);
        Ok(points.rows().map(|(line, name, time, value, _)| format!("{line} {name} {time} {value:?}")).collect())
    }

    #[test]
    fn fields_that_are_not_known_are_passed_over_at_every_depth() {
        // Fields of every wire type, with numbers that have a meaning for another type.
        let others = |numbers: [u8; 4]| {
            [
                field(numbers[0], 0, &[0xff, 0x01]),
                field(numbers[1], 1, &[9; 8]),
                message(numbers[2], b"any"),
                field(numbers[3], 5, &[9; 4]),
            ]
            .concat()
        };
        let label = |name: &[u8], value: &[u8]| {
            let fields = [others([1, 2, 3, 1]), message(1, name), others([2, 1, 15, 2]), message(2, value)];
            message(1, &fields.concat())
        };
        let sample =
            [others([3, 2, 1, 1]), field(1, 1, &1.5_f64.to_le_bytes()), others([1, 2, 2, 2]), field(2, 0, &[7])];
        let series = [others([1, 2, 3, 4]), label(b"__name__", b"x"), label(b"l", b"y"), message(2, &sample.concat())];
        let series = series.concat();
        let long = [&[1 << 3 | 2][..], &[series.len() as u8 | 0x80, (series.len() >> 7) as u8], &series].concat();
        let body = [others([1, 1, 3, 1]), long].concat();
        assert_eq!(read_message(&body).unwrap(), [r#"1 x{l="y"} 7000000 Float(1.5)"#]);
    }

    #[test]
    fn a_message_that_breaks_the_rules_is_refused() {
        let longest = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(read_message(&field(3, 0, &longest)).unwrap(), [""; 0]);
        for (bytes, reason) in [
            (field(3, 0, &[&[0xff; 10][..], &[1]].concat()), "more than ten bytes"),
            (field(0, 0, &[1]), "number 0"),
            (field(3, 3, &[]), "unknown wire type"),
            (field(3, 4, &[]), "unknown wire type"),
            (field(3, 6, &[]), "unknown wire type"),
            (field(3, 7, &[]), "unknown wire type"),
            (field(3, 1, &[0; 7]), "extends beyond"),
            (field(3, 5, &[0; 3]), "extends beyond"),
            (field(3, 2, &[2, 0]), "extends beyond"),
            (field(3, 0, &[0x80]), "extends beyond"),
            (message(1, &message(1, &message(1, &[0xff]))), "invalid UTF-8"),
        ] {
            assert!(read_message(&bytes).unwrap_err().contains(reason), "{bytes:?}");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(read(b"", 1_000, &mut Points::default()).is_err());
        assert!(read(b"\x05hello", 1_000, &mut Points::default()).is_err());
        let text = snap::raw::Encoder::new().compress_vec(b"not protobuf").unwrap();
        assert!(read(&text, 1_000, &mut Points::default()).unwrap_err().contains("WriteRequest"));
    }

    #[test]
    fn a_series_of_many_labels_is_refused() {
        let labels: Vec<(&str, &str)> =
            std::iter::once(("__name__", "x")).chain((0..LABELS_MAX + 1).map(|_| ("", ""))).collect();
        let mut points = Points::default();
        read(&packed(vec![series(&labels, &[(1.0, 1)])]), 1 << 20, &mut points).unwrap();
        assert_eq!((points.len(), points.refused.count), (0, 1));
        assert!(points.refused.kept[0].message.contains("more than 128 labels"));
    }

    proptest! {
        #[test]
        fn what_the_standard_encoder_writes_is_read(
            name in "[a-z]{1,8}",
            value in ".{0,8}",
            samples in proptest::collection::vec((any::<f64>(), -9_000_000_000_000_i64..9_000_000_000_000), 0..8),
        ) {
            let mut points = Points::default();
            read(&packed(vec![series(&[("__name__", &name), ("l", &value)], &samples)]), 1 << 20, &mut points).unwrap();
            prop_assert_eq!(points.refused.count, 0);
            let found: Vec<(i64, f64)> = points
                .rows()
                .map(|(_, _, time, value, _)| (time, if let Value::Float(value) = value { value } else { f64::NAN }))
                .collect();
            prop_assert_eq!(found.len(), samples.len());
            for ((time, value), (sent, at)) in found.into_iter().zip(samples) {
                prop_assert_eq!(time, at * 1_000_000);
                prop_assert!(value == sent || value.is_nan() && !sent.is_finite());
            }
        }

        #[test]
        fn any_bytes_end_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&body, 1 << 20, &mut Points::default());
            let packed = snap::raw::Encoder::new().compress_vec(&body).unwrap();
            let _ = read(&packed, 1 << 20, &mut Points::default());
        }
    }
}
