//! Properties of the rules: how a series is cut changes nothing, segments stand for their points, and every aggregate agrees
//! with a reference that does it the plain way, on lists.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

use chronotile_historian::rules::{Aggregate, Calculator, Grid, Output, Segment, Settings, Status};
use proptest::prelude::*;

type Row = (i64, f64, u32);

fn compute(aggregate: Aggregate, settings: Settings, grid: Grid, pieces: &[&[Row]]) -> Output {
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

fn assert_same(a: &Output, b: &Output, what: &str) {
    assert_eq!(a.times, b.times, "{what}");
    for (index, (x, y)) in a.values.iter().zip(&b.values).enumerate() {
        let close = (x - y).abs() <= 1e-9 * (1.0 + x.abs().max(y.abs()));
        assert!(close || x.is_nan() && y.is_nan(), "{what} at {index}: {x} and {y}");
        assert_eq!(a.statuses[index], b.statuses[index], "{what} at {index}, value {x}");
    }
}

fn series(bad: bool) -> impl Strategy<Value = Vec<Row>> {
    let status = if bad {
        prop_oneof![6 => Just(0), 1 => Just(Status::UNCERTAIN.0), 1 => Just(Status::BAD.0)].boxed()
    } else {
        Just(0).boxed()
    };
    let step = prop_oneof![3 => 1..20i64, 1 => 20..200i64];
    prop::collection::vec((step, -3..4i32, status), 0..60).prop_map(|steps| {
        let mut time = 0;
        steps
            .into_iter()
            .map(|(step, value, status)| {
                time += step;
                let bad = Status(status).is_bad();
                (time, if bad { f64::NAN } else { f64::from(value) }, status)
            })
            .collect()
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let percent = prop_oneof![Just(100.0), Just(50.0), Just(0.0)];
    (any::<bool>(), any::<bool>(), any::<bool>(), percent.clone(), percent, 0.0..100.0).prop_map(
        |(stepped, treat_uncertain_as_bad, sloped_extrapolation, percent_good, percent_bad, percent)| Settings {
            stepped,
            treat_uncertain_as_bad,
            sloped_extrapolation,
            percent_good,
            percent_bad,
            percent,
            sample_results: false,
        },
    )
}

fn grids() -> impl Strategy<Value = Grid> {
    (-50..400i64, -50..400i64, 1..150i64)
        .prop_filter_map("an empty range", |(start, end, width)| Grid::new(start, end, width).ok())
}

proptest! {
    #[test]
    fn how_a_series_is_cut_changes_nothing(
        rows in series(true), settings in settings(), grid in grids(), cuts in prop::collection::vec(0..60usize, 0..5)
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(rows.len())).collect();
        cuts.extend([0, rows.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[Row]> = cuts.windows(2).map(|pair| &rows[pair[0]..pair[1]]).collect();
        let single: Vec<&[Row]> = rows.chunks(1).collect();
        for aggregate in Aggregate::ALL {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            prop_assert_eq!(whole.times.len(), grid.count());
            assert_same(&whole, &compute(aggregate, settings, grid, &pieces), &aggregate.name());
            assert_same(&whole, &compute(aggregate, settings, grid, &single), &aggregate.name());
        }
    }

    #[test]
    fn points_that_lie_too_far_away_change_nothing(rows in series(true), settings in settings(), grid in grids()) {
        let good = |row: &Row| Status(row.2).is_good();
        for aggregate in Aggregate::ALL {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            // What a reader of stored points gives: back to the last Good points but one, on to the next Good one.
            let before: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].0 < grid.low() && good(&rows[*i])).collect();
            let behind = (0..rows.len()).find(|i| rows[*i].0 > grid.high() && good(&rows[*i]));
            let start = before.len().checked_sub(2).map_or(0, |i| before[i]);
            let end = behind.map_or(rows.len(), |i| i + 1);
            assert_same(&whole, &compute(aggregate, settings, grid, &[&rows[start..end]]), &aggregate.name());
        }
    }

    #[test]
    fn a_segment_stands_for_its_points(rows in series(false), settings in settings(), grid in grids(), size in 1..12usize) {
        for aggregate in Aggregate::ALL.into_iter().filter(|aggregate| aggregate.takes_segments(&settings)) {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            let mut calculator = Calculator::new(aggregate, settings, grid);
            for piece in rows.chunks(size) {
                let times: Vec<i64> = piece.iter().map(|row| row.0).collect();
                let values: Vec<f64> = piece.iter().map(|row| row.1).collect();
                let segment = Segment::of(&times, &values, None).unwrap();
                if !calculator.push_segment(&segment) {
                    calculator.push(&times, &values, None).unwrap();
                }
            }
            assert_same(&whole, &calculator.finish(), &aggregate.name());
        }
    }

    #[test]
    fn aggregates_of_values_agree_with_plain_lists(rows in series(true), mut settings in settings(), grid in grids()) {
        (settings.percent_good, settings.percent_bad) = (0.0, 100.0);
        for index in 0..grid.count() {
            let (start, end) = (grid.boundary(index), grid.boundary(index + 1));
            let inside = |time: i64| if grid.backward() { start < time && time <= end } else { start <= time && time < end };
            let values: Vec<f64> =
                rows.iter().filter(|row| inside(row.0) && row.2 == 0).map(|row| row.1).collect();
            if values.is_empty() {
                continue;
            }
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sample = if values.len() == 1 { 0.0 } else { squares / (count - 1.0) };
            for (aggregate, expected) in [
                (Aggregate::Average, mean),
                (Aggregate::Count, count),
                (Aggregate::Minimum, least),
                (Aggregate::MaximumActualTime, greatest),
                (Aggregate::Range, greatest - least),
                (Aggregate::VarianceSample, sample),
                (Aggregate::StandardDeviationSample, sample.sqrt()),
                (Aggregate::StandardDeviationPopulation, (squares / count).sqrt()),
            ] {
                let output = compute(aggregate, settings, grid, &[&rows]);
                let found = output.values[index];
                prop_assert!((found - expected).abs() < 1e-9, "{aggregate:?} at {index}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn areas_agree_with_a_sum_over_every_nanosecond(rows in series(false), stepped: bool, grid in grids()) {
        let settings = Settings { stepped, ..Settings::default() };
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let value = |time: f64| {
            let after = rows.partition_point(|row| row.0 as f64 <= time);
            let before = rows[after - 1];
            match rows.get(after) {
                Some(next) if !stepped => {
                    before.1 + (next.1 - before.1) * (time - before.0 as f64) / (next.0 - before.0) as f64
                }
                _ => before.1,
            }
        };
        for index in 0..grid.count() {
            let (start, end) = (grid.boundary(index).max(first.0), grid.boundary(index + 1).min(last.0));
            if start >= end || grid.boundary(index + 1) > last.0 {
                continue;
            }
            // The middle of each nanosecond: exact for lines that bend at whole ones.
            let area: f64 = (start..end).map(|time| value(time as f64 + 0.5)).sum();
            for (aggregate, expected) in [
                (Aggregate::Total, area * 1e-9),
                (Aggregate::Total2, area * 1e-9),
                (Aggregate::TimeAverage, area / (end - start) as f64),
                (Aggregate::TimeAverage2, area / (end - start) as f64),
                (Aggregate::DurationGood, (end - start) as f64 * 1e-6),
            ] {
                let found = compute(aggregate, settings, grid, &[&rows]).values[index];
                let close = (found - expected).abs() <= 1e-9 * expected.abs().max(1.0);
                prop_assert!(close, "{aggregate:?} at {index}: {found}, expected {expected}");
            }
        }
    }
}

proptest! {
    #[test]
    fn durations_agree_with_a_count_of_nanoseconds(rows in series(true), treat_uncertain_as_bad: bool, grid in grids()) {
        let settings = Settings { stepped: true, treat_uncertain_as_bad, percent_bad: 100.0, ..Settings::default() };
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let usable = |row: &Row| row.2 == 0 || row.2 == Status::UNCERTAIN.0 && !treat_uncertain_as_bad;
        for index in 0..grid.count() {
            let (start, end) = (grid.boundary(index), grid.boundary(index + 1));
            if end <= first.0 || start > last.0 {
                continue;
            }
            let before = |time: i64| rows.partition_point(|row| row.0 <= time).checked_sub(1).map(|row| rows[row]);
            let count = |fits: &dyn Fn(Option<Row>) -> bool| {
                (start..end).filter(|time| fits(before(*time))).count() as f64 * 1e-6
            };
            let good = |row: Option<Row>| row.is_some_and(|row| row.2 == 0);
            let bad = count(&|row| !row.is_some_and(|row| usable(&row)));
            for (aggregate, expected) in [
                (Aggregate::DurationBad, bad),
                (Aggregate::PercentBad, bad * 1e6 / (end - start) as f64 * 100.0),
                (Aggregate::DurationGood, count(&good)),
                (Aggregate::DurationInStateZero, count(&|row| good(row) && row.is_some_and(|row| row.1 == 0.0))),
                (Aggregate::DurationInStateNonZero, count(&|row| good(row) && row.is_some_and(|row| row.1 != 0.0))),
            ] {
                let output = compute(aggregate, settings, grid, &[&rows]);
                let (found, status) = (output.values[index], Status(output.statuses[index]));
                if status.is_bad() {
                    // Nothing but Bad: the time in a state is not known.
                    prop_assert!(found.is_nan() && bad > 0.0, "{aggregate:?} at {index}");
                } else {
                    prop_assert!((found - expected).abs() < 1e-9, "{aggregate:?} at {index}: {found}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn a_counter_that_falls_back_to_zero_goes_on_counting() {
    let second = 1_000_000_000;
    let rows: Vec<Row> = [0.0, 10.0, 20.0, 5.0, 15.0].into_iter().zip(0..).map(|(v, t)| (t * second, v, 0)).collect();
    let output = compute(Aggregate::Rate, Settings::default(), Grid::new(0, 4 * second, 0).unwrap(), &[&rows]);
    // 10 + 10 + 5 + 10 in 4 s.
    assert_eq!(output.values, [8.75]);
}

#[test]
fn an_increase_is_good_only_between_two_good_points() {
    let grid = Grid::new(0, 10 * S, 0).unwrap();
    let settings = Settings { treat_uncertain_as_bad: false, ..Settings::default() };
    for (before, after) in [(0, 0), (Status::UNCERTAIN.0, 0), (0, Status::UNCERTAIN.0)] {
        let (rate, status) = of(Aggregate::Rate, settings, grid, &[(0, 0.0, before), (20 * S, 20.0, after)]);
        assert_eq!(rate, 1.0);
        assert_eq!(status.is_good(), (before, after) == (0, 0), "{status:?}");
    }
}

#[test]
fn the_two_zeros_are_one_value() {
    let grid = Grid::new(0, 10, 0).unwrap();
    for (values, expected) in [([0.0, -0.0, 1.0], 2.0), ([-0.0, 0.0, -1.0], 2.0), ([0.5, 1.0, 2.0], 3.0)] {
        let rows: Vec<Row> = values.into_iter().zip(0..).map(|(value, time)| (time, value, 0)).collect();
        assert_eq!(of(Aggregate::Distinct, Settings::default(), grid, &rows).0, expected, "{values:?}");
    }
}

#[test]
fn a_backward_request_holds_its_later_end() {
    let rows: Vec<Row> = (0..=4).map(|t| (t, t as f64, 0)).collect();
    let mut output = compute(Aggregate::Average, Settings::default(), Grid::new(4, 0, 2).unwrap(), &[&rows]);
    output.reverse();
    assert_eq!((output.times, output.values), (vec![4, 2], vec![3.5, 1.5]));
}

#[test]
fn percentiles_lie_on_the_line_between_neighbours() {
    let rows: Vec<Row> = [4.0, 1.0, 3.0, 2.0].into_iter().zip(0..).map(|(v, t)| (t, v, 0)).collect();
    for (percent, expected) in [(0.0, 1.0), (50.0, 2.5), (25.0, 1.75), (100.0, 4.0)] {
        let settings = Settings { percent, ..Settings::default() };
        let output = compute(Aggregate::Percentile, settings, Grid::new(0, 10, 0).unwrap(), &[&rows]);
        assert_eq!(output.values, [expected]);
    }
}

const S: i64 = 1_000_000_000;

fn of(aggregate: Aggregate, settings: Settings, grid: Grid, rows: &[Row]) -> (f64, Status) {
    let output = compute(aggregate, settings, grid, &[rows]);
    (output.values[0], Status(output.statuses[0]))
}

#[test]
fn bad_comes_before_good_where_both_shares_reach_their_thresholds() {
    let half = Settings { stepped: true, percent_good: 50.0, percent_bad: 50.0, ..Settings::default() };
    let grid = Grid::new(0, 10 * S, 0).unwrap();
    // Half of the values, and half of the time.
    let rows = [(0, 1.0, 0), (5 * S, f64::NAN, Status::BAD.0), (20 * S, 1.0, 0)];
    for aggregate in [Aggregate::Count, Aggregate::NumberOfTransitions, Aggregate::Average, Aggregate::TimeAverage2] {
        assert!(of(aggregate, half, grid, &rows).1.is_bad(), "{aggregate:?}");
    }
    // Uncertain values that count as Bad decide only where too few are Good.
    let rows = [(0, 1.0, 0), (5 * S, 2.0, Status::UNCERTAIN.0), (20 * S, 1.0, 0)];
    assert_eq!(of(Aggregate::Count, half, grid, &rows), (1.0, Status::GOOD.with(Status::CALCULATED)));
    let rows = [(0, 1.0, Status::UNCERTAIN.0), (20 * S, 1.0, 0)];
    assert!(of(Aggregate::Count, half, grid, &rows).1.is_bad());
}

#[test]
fn no_bad_value_makes_a_result_bad_whatever_the_threshold() {
    let settings = Settings { percent_bad: 0.0, ..Settings::default() };
    let grid = Grid::new(0, 10 * S, 0).unwrap();
    let rows = [(0, 1.0, 0), (20 * S, 1.0, 0)];
    for aggregate in [Aggregate::Count, Aggregate::TimeAverage2, Aggregate::Minimum2] {
        assert!(of(aggregate, settings, grid, &rows).1.is_good(), "{aggregate:?}");
    }
}

#[test]
fn start_end_and_delta_speak_of_the_earliest_and_latest_value_in_both_directions() {
    let rows: Vec<Row> = (1..=4).map(|t| (t, t as f64, 0)).collect();
    for grid in [Grid::new(1, 5, 0).unwrap(), Grid::new(4, 0, 0).unwrap()] {
        for (aggregate, expected) in [(Aggregate::Start, 1.0), (Aggregate::End, 4.0), (Aggregate::Delta, 3.0)] {
            assert_eq!(of(aggregate, Settings::default(), grid, &rows).0, expected, "{aggregate:?}");
        }
    }
}

#[test]
fn the_text_and_the_samples_differ_where_a_series_begins_and_ends() {
    let text = Settings::default();
    let samples = Settings { sample_results: true, ..text };
    let grid = Grid::new(0, 30 * S, 10 * S).unwrap();
    // A first value is a transition by the text.
    let rows = [(2 * S, 1.0, 0), (4 * S, 2.0, 0), (12 * S, f64::NAN, Status::BAD.0)];
    for (settings, expected) in [(text, 2.0), (samples, 1.0)] {
        assert_eq!(of(Aggregate::NumberOfTransitions, settings, grid, &rows).0, expected);
    }
    // No Good value has no difference by the text; and data that end in an interval make it Partial.
    let partial = |status: Status| status.0 & Status::PARTIAL != 0;
    for (settings, difference, ends) in
        [(text, Status::BAD_NO_DATA, true), (samples, Status::UNCERTAIN_SUB_NORMAL, false)]
    {
        let output = compute(Aggregate::Delta, settings, grid, &[&rows]);
        let status = Status(output.statuses[1]);
        assert_eq!((status.code(), partial(status)), (difference, ends));
    }
}

#[test]
fn percents_of_quality_that_overlap_are_refused() {
    let percents = |percent_good, percent_bad| Settings { percent_good, percent_bad, ..Settings::default() }.check();
    assert_eq!(percents(50.0, 50.0), Ok(()));
    assert_eq!(percents(0.0, 100.0), Ok(()));
    assert!(percents(0.0, 80.0).unwrap_err().to_string().contains("overlap"));
    assert!(percents(101.0, 100.0).unwrap_err().to_string().contains("101"));
    assert!(percents(f64::NAN, 100.0).is_err());
}
