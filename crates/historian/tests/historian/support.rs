//! Random series and requests for the rules, and how they are computed and compared.

use chronotile_historian::rules::{Aggregate, Calculator, Grid, Output, Settings, Status};
use proptest::prelude::*;

/// Time, value and status.
pub type Row = (i64, f64, u32);

pub fn compute(aggregate: Aggregate, settings: Settings, grid: Grid, pieces: &[&[Row]]) -> Output {
    let mut calculator = Calculator::new(aggregate, settings, grid);
    for piece in pieces {
        let times: Vec<i64> = piece.iter().map(|row| row.0).collect();
        let values: Vec<f64> = piece.iter().map(|row| row.1).collect();
        let statuses: Vec<u32> = piece.iter().map(|row| row.2).collect();
        let good = statuses.iter().all(|status| *status == 0);
        calculator.push(&times, &values, (!good).then_some(&statuses[..])).unwrap();
    }
    calculator.finish()
}

pub fn assert_same(a: &Output, b: &Output, what: &str) {
    assert_eq!(a.times, b.times, "{what}");
    for (index, (x, y)) in a.values.iter().zip(&b.values).enumerate() {
        let close = (x - y).abs() <= 1e-9 * (1.0 + x.abs().max(y.abs()));
        assert!(close || x.is_nan() && y.is_nan(), "{what} at {index}: {x} and {y}");
        assert_eq!(a.statuses[index], b.statuses[index], "{what} at {index}, value {x}");
    }
}

/// Whether a row has a Good status and a value.
pub fn is_good(row: &Row) -> bool {
    Status(row.2).is_good() && !row.1.is_nan()
}

/// Rows of any quality; some lack a value.
pub fn series() -> impl Strategy<Value = Vec<Row>> {
    let bad = Just((Status::BAD.0, false));
    rows(prop_oneof![9 => Just((0, true)), 2 => Just((Status::UNCERTAIN.0, true)), 1 => bad, 1 => Just((0, false))])
}

/// Rows that are all Good.
pub fn good_series() -> impl Strategy<Value = Vec<Row>> {
    rows(Just((0, true)))
}

fn rows(quality: impl Strategy<Value = (u32, bool)>) -> impl Strategy<Value = Vec<Row>> {
    let step = prop_oneof![3 => 1..20i64, 1 => 20..200i64];
    prop::collection::vec((step, -3..4i32, quality), 0..60).prop_map(|steps| {
        let mut time = 0;
        steps
            .into_iter()
            .map(|(step, value, (status, has_value))| {
                time += step;
                (time, if has_value { f64::from(value) } else { f64::NAN }, status)
            })
            .collect()
    })
}

pub fn settings() -> impl Strategy<Value = Settings> {
    let percent = prop_oneof![Just(100.0), Just(50.0), Just(0.0)];
    (any::<[bool; 4]>(), percent.clone(), percent, 0.0..100.0).prop_map(
        |(flags, percent_good, percent_bad, percent)| {
            let [stepped, treat_uncertain_as_bad, sloped_extrapolation, sample_results] = flags;
            Settings {
                stepped,
                treat_uncertain_as_bad,
                percent_good,
                percent_bad,
                sloped_extrapolation,
                percent,
                sample_results,
            }
        },
    )
}

pub fn grids() -> impl Strategy<Value = Grid> {
    (-50..400i64, -50..400i64, 1..150i64)
        .prop_filter_map("an empty range", |(start, end, width)| Grid::new(start, end, width).ok())
}
