//! Prometheus remote write, version 1: a snappy block with a protobuf message.

use prost::Message;

use crate::points::{Points, Value, series_name};

/// `prometheus.WriteRequest`; what is not stored is left out.
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
    /// Native histograms, taken as bytes to tell that they are there.
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
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

/// The NaN by which Prometheus says that a series has ended.
const STALE: u64 = 0x7ff0_0000_0000_0002;
/// Bad_NoData.
const NO_DATA: u32 = 0x809B_0000;
/// Bad_SensorFailure: a value that is no number.
const SENSOR_FAILURE: u32 = 0x808C_0000;

/// Reads a body that unpacks to `bytes_max` bytes at most. Series that cannot be stored are noted by their number.
///
/// # Errors
/// A body that is no such message.
pub fn read(body: &[u8], bytes_max: usize, points: &mut Points) -> Result<(), String> {
    let size = snap::raw::decompress_len(body).map_err(|error| format!("the body is no snappy block: {error}"))?;
    if size > bytes_max {
        return Err(format!("the body unpacks to {size} bytes, more than {bytes_max}: send fewer samples at a time"));
    }
    let message = snap::raw::Decoder::new()
        .decompress_vec(body)
        .map_err(|error| format!("the body is no snappy block: {error}"))?;
    let request = WriteRequest::decode(&*message).map_err(|error| format!("the body is no WriteRequest: {error}"))?;
    for (index, series) in request.timeseries.iter().enumerate() {
        if let Err(message) = push(points, index as u64 + 1, series) {
            points.refuse(index as u64 + 1, message);
        }
    }
    Ok(())
}

fn push(points: &mut Points, number: u64, series: &TimeSeries) -> Result<(), String> {
    let name = series.labels.iter().find(|label| label.name == "__name__").map(|label| label.value.as_str());
    let name = name.filter(|name| !name.is_empty()).ok_or("the series has no name: it lacks the label __name__")?;
    let rest = series.labels.iter().filter(|label| label.name != "__name__");
    let mut labels: Vec<(&str, &str)> = rest.map(|label| (label.name.as_str(), label.value.as_str())).collect();
    let name = series_name(name, &mut labels);
    if !series.histograms.is_empty() {
        return Err(format!("{name} has native histograms, which are not stored: send classic ones"));
    }
    for sample in &series.samples {
        let Some(time) = sample.timestamp.checked_mul(1_000_000) else {
            return Err(format!("{name} has a time outside of 1677 to 2262"));
        };
        let (value, status) = match sample.value {
            value if value.to_bits() == STALE => (Value::Null, NO_DATA),
            value if !value.is_finite() => (Value::Null, SENSOR_FAILURE),
            value => (Value::Float(value), 0),
        };
        points.push(number, &name, time, value, status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            series(&[("__name__", "far")], &[(1.0, i64::MAX)]),
        ]);
        let mut points = Points::default();
        read(&body, 1 << 20, &mut points).unwrap();
        let rows: Vec<_> = points.rows().map(|(_, name, time, value, status)| (name, time, value, status)).collect();
        let name = "up{job=\"x\"}";
        assert_eq!(
            rows,
            [
                (name, 1_000_000_000, &Value::Float(1.0), 0),
                (name, 2_000_000_000, &Value::Null, NO_DATA),
                (name, 3_000_000_000, &Value::Null, SENSOR_FAILURE),
            ]
        );
        assert_eq!(points.refused.iter().map(|refused| refused.line).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn a_body_that_unpacks_to_too_much_is_refused_unread() {
        let body = packed(vec![series(&[("__name__", &"x".repeat(10_000))], &[])]);
        let message = read(&body, 1_000, &mut Points::default()).unwrap_err();
        assert!(message.contains("more than 1000"), "{message}");
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(read(b"", 1_000, &mut Points::default()).is_err());
        assert!(read(b"\x05hello", 1_000, &mut Points::default()).is_err());
        let text = snap::raw::Encoder::new().compress_vec(b"not protobuf").unwrap();
        assert!(read(&text, 1_000, &mut Points::default()).unwrap_err().contains("WriteRequest"));
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&body, 1 << 20, &mut Points::default());
            let packed = snap::raw::Encoder::new().compress_vec(&body).unwrap();
            let _ = read(&packed, 1 << 20, &mut Points::default());
        }
    }
}
