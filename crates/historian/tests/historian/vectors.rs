//! The results that the OPC Foundation publishes with its samples.

use chronotile_historian::rules::{Aggregate, Calculator, Grid, Settings, Status};
use serde_json::Value;

const MS: i64 = 1_000_000;

fn millis(text: &str) -> i64 {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<i64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
    (parts[0] * 3600 + parts[1] * 60 + parts[2]) * 1000 + format!("{fraction:0<3}").parse::<i64>().unwrap()
}

fn number(text: &str) -> f64 {
    match text {
        "true" => 1.0,
        "false" => 0.0,
        "" => f64::NAN,
        text => text.parse().unwrap(),
    }
}

fn status(text: &str) -> Status {
    let mut parts = text.split(", ");
    let code = match parts.next().unwrap() {
        "Good" => Status::GOOD,
        "Uncertain" => Status::UNCERTAIN,
        "UncertainDataSubNormal" => Status::UNCERTAIN_SUB_NORMAL,
        "Bad" => Status::BAD,
        "BadNoData" => Status::BAD_NO_DATA,
        other => panic!("{other}"),
    };
    parts.fold(code, |status, bit| {
        status.with(match bit {
            "Calculated" => Status::CALCULATED,
            "Interpolated" => Status::INTERPOLATED,
            "Partial" => Status::PARTIAL,
            "MultipleValues" => Status::MULTIPLE_VALUES,
            other => panic!("{other}"),
        })
    })
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[test]
fn every_published_result_is_reproduced() {
    let samples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let file = std::fs::read_to_string(samples.join("opcua_aggregates.json")).unwrap();
    let data: Value = serde_json::from_str(&file).unwrap();
    let mut wrong = Vec::new();
    for set in data["processed"].as_array().unwrap() {
        let (source, name) = (text(set, "DataSetName"), text(set, "AggregateName"));
        let raw = data["raw"][&source].as_array().unwrap();
        let times: Vec<i64> = raw.iter().map(|point| millis(&text(point, "Timestamp")) * MS).collect();
        let values: Vec<f64> = raw.iter().map(|point| number(&text(point, "Value"))).collect();
        let quality = |point: &Value| point.get("Quality").and_then(Value::as_str).map_or(0, |q| status(q).0);
        let statuses: Vec<u32> = raw.iter().map(quality).collect();
        let settings = Settings {
            stepped: text(set, "Stepped") == "true",
            treat_uncertain_as_bad: text(set, "TreatUncertainAsBad") == "true",
            percent_good: number(&text(set, "PercentGood")),
            percent_bad: number(&text(set, "PercentBad")),
            sloped_extrapolation: text(set, "UseSlopedExtrapolation") == "true",
            sample_results: true,
            ..Settings::default()
        };
        let width = text(set, "ProcessingInterval").parse::<i64>().unwrap() * MS;
        let grid = Grid::new(0, 100_000 * MS, width).unwrap();
        let mut calculator = Calculator::new(Aggregate::from_name(&name).unwrap(), settings, grid);
        calculator.push(&times, &values, Some(&statuses)).unwrap();
        let output = calculator.finish();
        let expected = set["Values"].as_array().unwrap();
        assert_eq!(output.times.len(), expected.len(), "{source} {name}");
        for (index, row) in expected.iter().enumerate() {
            let time = millis(&text(row, "Timestamp")) * MS;
            let value = match text(row, "Value").as_str() {
                code if name.starts_with("WorstQuality") && !code.is_empty() => f64::from(status(code).0),
                value => number(value),
            };
            let (found, code) = (output.values[index], Status(output.statuses[index]));
            let same = (value.is_nan() && found.is_nan()) || (value - found).abs() < 1e-4;
            // The two that show the same raw point say so by their own times.
            if !same || code != status(&text(row, "Quality")) || output.times[index] != time {
                wrong.push(format!(
                    "{source} {name} at {} ms: {found} {:08x}, expected {value} {} at {}",
                    output.times[index] / MS,
                    code.0,
                    text(row, "Quality"),
                    time / MS
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
