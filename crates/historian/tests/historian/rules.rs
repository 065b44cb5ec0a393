//! Properties of the rules: how a series is cut changes nothing, segments stand for their points, and every aggregate agrees
//! with a sum over every nanosecond.

use chronotile_historian::rules::{Aggregate, Calculator, Grid, Segment, Settings, Status};
use proptest::prelude::*;

use crate::support::{Row, assert_same, compute, good_series, grids, is_good, series, settings};

proptest! {
    #[test]
    fn how_a_series_is_cut_changes_nothing(
        rows in prop_oneof![series(), good_series()], settings in settings(), grid in grids(),
        cuts in prop::collection::vec(0..60usize, 0..5)
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(rows.len())).collect();
        cuts.extend([0, rows.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[Row]> = cuts.windows(2).map(|pair| &rows[pair[0]..pair[1]]).collect();
        let single: Vec<&[Row]> = rows.chunks(1).collect();
        for &aggregate in Aggregate::ALL {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            prop_assert_eq!(whole.times.len(), grid.count());
            assert_same(&whole, &compute(aggregate, settings, grid, &pieces), aggregate.name());
            assert_same(&whole, &compute(aggregate, settings, grid, &single), aggregate.name());
        }
    }

    #[test]
    fn points_that_lie_too_far_away_change_nothing(rows in series(), settings in settings(), grid in grids()) {
        for &aggregate in Aggregate::ALL {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            // What a reader of stored points gives: back to the last Good points but one, on to the next Good one.
            let before: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].0 < grid.low() && is_good(&rows[*i])).collect();
            let behind = (0..rows.len()).find(|i| rows[*i].0 > grid.high() && is_good(&rows[*i]));
            let start = before.len().checked_sub(2).map_or(0, |i| before[i]);
            let end = behind.map_or(rows.len(), |i| i + 1);
            assert_same(&whole, &compute(aggregate, settings, grid, &[&rows[start..end]]), aggregate.name());
        }
    }

    #[test]
    fn a_segment_stands_for_its_points(
        rows in good_series(), settings in settings(), grid in grids(), size in 1..12usize
    ) {
        for &aggregate in Aggregate::ALL {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            let mut calculator = Calculator::new(aggregate, settings, grid);
            for piece in rows.chunks(size) {
                let times: Vec<i64> = piece.iter().map(|row| row.0).collect();
                let values: Vec<f64> = piece.iter().map(|row| row.1).collect();
                let segment = Segment::of(&times, &values, None).unwrap();
                let taken = calculator.push_segment(&segment);
                let (first, last) = (times[0], times[times.len() - 1]);
                let boundaries = || (0..=grid.count()).map(|index| grid.boundary(index));
                // Backwards, aggregates differ in where a point at a boundary belongs.
                if !grid.backward() || boundaries().all(|boundary| boundary != first && boundary != last) {
                    let crosses = boundaries().any(|boundary| first < boundary && boundary <= last);
                    prop_assert_eq!(taken, aggregate.takes_segments(&settings) && !crosses, "{:?}", aggregate);
                }
                if !taken {
                    calculator.push(&times, &values, None).unwrap();
                }
            }
            assert_same(&whole, &calculator.finish(), aggregate.name());
        }
    }

    #[test]
    fn what_follows_once_all_is_known_changes_nothing(rows in series(), settings in settings(), grid in grids()) {
        for &aggregate in Aggregate::ALL {
            let mut calculator = Calculator::new(aggregate, settings, grid);
            let mut known = 0;
            while known < rows.len() && !calculator.done() {
                let (time, value, status) = rows[known];
                calculator.push(&[time], &[value], Some(&[status])).unwrap();
                known += 1;
                let behind = time > grid.high() && is_good(&rows[known - 1]);
                prop_assert!(calculator.done() == behind || time >= grid.high(), "{:?} at {}", aggregate, time);
                prop_assert!(calculator.done() || !behind, "{:?} at {}", aggregate, time);
            }
            assert_same(&compute(aggregate, settings, grid, &[&rows]), &calculator.finish(), aggregate.name());
        }
    }

    #[test]
    fn a_value_at_the_start_hides_those_before_it(
        rows in series(), value in -3..4i32, mut settings in settings(), grid in grids()
    ) {
        // A slope needs the value before.
        settings.sloped_extrapolation = false;
        let start = (grid.low(), f64::from(value), 0);
        let from_start: Vec<Row> =
            [start].into_iter().chain(rows.iter().copied().filter(|row| row.0 > grid.low())).collect();
        let all: Vec<Row> =
            rows.iter().copied().filter(|row| row.0 < grid.low()).chain(from_start.iter().copied()).collect();
        for aggregate in Aggregate::ALL.iter().copied().filter(|aggregate| !aggregate.looks_back_always()) {
            let whole = compute(aggregate, settings, grid, &[&all]);
            assert_same(&whole, &compute(aggregate, settings, grid, &[&from_start]), aggregate.name());
        }
    }

    #[test]
    fn aggregates_that_need_no_number_ignore_values(rows in series(), settings in settings(), grid in grids()) {
        let zeros: Vec<Row> = rows.iter().map(|row| (row.0, if row.1.is_nan() { row.1 } else { 0.0 }, row.2)).collect();
        for aggregate in Aggregate::ALL.iter().copied().filter(|aggregate| aggregate.needs_no_number()) {
            let whole = compute(aggregate, settings, grid, &[&rows]);
            assert_same(&whole, &compute(aggregate, settings, grid, &[&zeros]), aggregate.name());
        }
    }

    #[test]
    fn a_good_status_without_a_value_is_bad(rows in series(), settings in settings(), grid in grids()) {
        use Aggregate::{End, Start, WorstQuality, WorstQuality2};
        let without_value = |row: &Row| row.1.is_nan() && row.2 == 0;
        let bad: Vec<Row> =
            rows.iter().map(|row| if without_value(row) { (row.0, row.1, Status::BAD.0) } else { *row }).collect();
        // The others show the status that was stored.
        let shown = [Start, End, WorstQuality, WorstQuality2];
        for aggregate in Aggregate::ALL.iter().copied().filter(|aggregate| !shown.contains(aggregate)) {
            let expected = compute(aggregate, settings, grid, &[&bad]);
            assert_same(&expected, &compute(aggregate, settings, grid, &[&rows]), aggregate.name());
            let single: Vec<&[Row]> = rows.chunks(1).collect();
            assert_same(&expected, &compute(aggregate, settings, grid, &single), aggregate.name());
        }
    }

    #[test]
    fn an_offset_changes_no_deviation(rows in good_series(), sample_results: bool, grid in grids()) {
        use Aggregate::{StandardDeviationPopulation, StandardDeviationSample, VariancePopulation, VarianceSample};
        let settings = Settings { sample_results, ..Settings::default() };
        let far: Vec<Row> = rows.iter().map(|row| (row.0, row.1 + 1e9, row.2)).collect();
        for aggregate in [StandardDeviationPopulation, StandardDeviationSample, VariancePopulation, VarianceSample] {
            let expected = compute(aggregate, settings, grid, &[&rows]).values;
            let found = compute(aggregate, settings, grid, &[&far]).values;
            for (x, y) in expected.iter().zip(&found) {
                // Values between points are rounded, more so far from zero.
                prop_assert!((x - y).abs() < 1e-2 || x.is_nan() && y.is_nan(), "{:?}: {} and {}", aggregate, x, y);
            }
        }
    }

    #[test]
    fn areas_agree_with_a_sum_over_every_nanosecond(rows in good_series(), stepped: bool, grid in grids()) {
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
    fn durations_agree_with_a_count_of_nanoseconds(rows in series(), treat_uncertain_as_bad: bool, grid in grids()) {
        let settings = Settings { stepped: true, treat_uncertain_as_bad, percent_bad: 100.0, ..Settings::default() };
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let usable = |row: &Row| is_good(row) || row.2 == Status::UNCERTAIN.0 && !treat_uncertain_as_bad;
        for index in 0..grid.count() {
            let (start, end) = (grid.boundary(index), grid.boundary(index + 1));
            if end <= first.0 || start > last.0 {
                continue;
            }
            let before = |time: i64| rows.partition_point(|row| row.0 <= time).checked_sub(1).map(|row| rows[row]);
            let count = |fits: &dyn Fn(Option<Row>) -> bool| {
                (start..end).filter(|time| fits(before(*time))).count() as f64 * 1e-6
            };
            let good = |row: Option<Row>| row.is_some_and(|row| is_good(&row));
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

#[test]
fn aggregates_that_need_numbers_tell_values_apart() {
    let grid = Grid::new(0, 40, 0).unwrap();
    let rows = |values: [f64; 4]| -> Vec<Row> { values.into_iter().zip(0..).map(|(v, t)| (t * 10, v, 0)).collect() };
    let (one, other) = (rows([1.0, 2.0, 4.0, 9.0]), rows([0.0, 0.0, 0.0, 0.0]));
    for &aggregate in Aggregate::ALL {
        let values =
            |rows: &[Row]| compute(aggregate, Settings::default(), grid, &[rows, &[(50, rows[3].1, 0)]]).values;
        assert_eq!(values(&one) == values(&other), aggregate.needs_no_number(), "{aggregate:?}");
    }
}

#[test]
fn the_value_before_the_start_matters_to_transitions_alone() {
    let grid = Grid::new(0, 40, 0).unwrap();
    let rows = [(-10, 7.0, 0), (0, 1.0, 0), (10, 2.0, 0), (50, 3.0, 0)];
    let same = |aggregate, settings| {
        compute(aggregate, settings, grid, &[&rows]) == compute(aggregate, settings, grid, &[&rows[1..]])
    };
    let samples = Settings { sample_results: true, ..Settings::default() };
    for &aggregate in Aggregate::ALL {
        assert_eq!(!same(aggregate, samples), aggregate.looks_back_always(), "{aggregate:?}");
    }
}

#[test]
fn segments_stand_for_points_where_their_statistics_suffice() {
    use Aggregate::*;
    let needs_points = [Percentile, Distinct, Rate, DurationInStateZero, DurationInStateNonZero];
    let departs =
        [StandardDeviationSample, StandardDeviationPopulation, VarianceSample, VariancePopulation, AnnotationCount];
    let text = Settings::default();
    let samples = Settings { sample_results: true, ..text };
    for &aggregate in Aggregate::ALL {
        let suffices = !needs_points.contains(&aggregate);
        assert_eq!(aggregate.takes_segments(&text), suffices, "{aggregate:?}");
        assert_eq!(aggregate.takes_segments(&samples), suffices && !departs.contains(&aggregate), "{aggregate:?}");
        assert!(!aggregate.takes_segments(&Settings { sloped_extrapolation: true, ..text }), "{aggregate:?}");
    }
}

#[test]
fn only_good_points_make_a_segment() {
    assert_eq!(Segment::of(&[], &[], None), None);
    assert_eq!(Segment::of(&[1, 2], &[1.0, 2.0], Some(&[0, Status::UNCERTAIN.0])), None);
    for value in [f64::NAN, f64::INFINITY] {
        assert_eq!(Segment::of(&[1, 2], &[1.0, value], Some(&[0, 0])), None);
    }
    assert!(Segment::of(&[1, 2], &[1.0, 2.0], Some(&[0, 0])).is_some());
}

#[test]
fn squares_of_a_segment_are_exact_far_from_zero() {
    let values: Vec<f64> = (0..10).map(|row| 1e12 + f64::from(row % 3) * 0.125).collect();
    let away: Vec<f64> = values.iter().map(|value| value - 1e12).collect();
    let mean = away.iter().sum::<f64>() / 10.0;
    let squares: f64 = away.iter().map(|value| (value - mean).powi(2)).sum();
    let times: Vec<i64> = (0..10).collect();
    let found = Segment::of(&times, &values, None).unwrap().squares;
    assert!((found - squares).abs() < 1e-6, "{found}, expected {squares}");
}

#[test]
fn annotations_of_one_time_count_each() {
    let grid = Grid::new(0, 20, 10).unwrap();
    let rows = [(0, 1.0, 0), (0, 1.0, 0), (5, 1.0, 0), (5, 1.0, 0), (10, 1.0, 0), (10, 1.0, 0), (20, 1.0, 0)];
    assert_eq!(compute(Aggregate::AnnotationCount, Settings::default(), grid, &[&rows]).values, [4.0, 2.0]);
}

#[test]
fn lines_between_the_greatest_numbers_stay_finite_at_their_ends() {
    let grid = Grid::new(0, 2 * S, S).unwrap();
    let rows = [(0, 1e308, 0), (S, -1e308, 0), (2 * S, 1e308, 0)];
    let single: Vec<&[Row]> = rows.chunks(1).collect();
    for aggregate in [Aggregate::TimeAverage, Aggregate::TimeAverage2] {
        assert_eq!(compute(aggregate, Settings::default(), grid, &single).values, [0.0, 0.0], "{aggregate:?}");
    }
}

#[test]
fn a_bounding_extreme_at_the_far_end_is_stamped_inside_of_its_interval() {
    let ms = S / 1000;
    let rows = [(0, 0.0, 0), (30 * S, 30.0, 0)];
    for (start, end, least, greatest) in [(10 * S, 20 * S, 10 * S, 20 * S - ms), (20 * S, 10 * S, 10 * S + ms, 20 * S)]
    {
        let grid = Grid::new(start, end, 0).unwrap();
        for (aggregate, time) in [(Aggregate::MinimumActualTime2, least), (Aggregate::MaximumActualTime2, greatest)] {
            let output = compute(aggregate, Settings::default(), grid, &[&rows]);
            assert_eq!(output.times, [time], "{aggregate:?} from {start} to {end}");
        }
    }
}

#[test]
fn no_value_within_an_interval_has_no_difference() {
    let grid = Grid::new(0, 30, 10).unwrap();
    let rows = [(0, 1.0, 0), (5, 3.0, 0), (25, 4.0, 0), (26, 8.0, 0), (40, 8.0, 0)];
    for sample_results in [false, true] {
        let settings = Settings { sample_results, ..Settings::default() };
        let output = compute(Aggregate::Delta, settings, grid, &[&rows]);
        assert_eq!((output.values[0], output.values[2]), (2.0, 4.0));
        assert_eq!(Status(output.statuses[1]), Status::BAD_NO_DATA);
    }
}

#[test]
fn an_average_over_nothing_but_bad_values_has_no_data() {
    let grid = Grid::new(0, 10, 0).unwrap();
    let settings = Settings { percent_good: 0.0, ..Settings::default() };
    let rows = [(0, f64::NAN, Status::BAD.0), (20, 1.0, 0)];
    for aggregate in [Aggregate::TimeAverage2, Aggregate::Total2] {
        assert_eq!(of(aggregate, settings, grid, &rows).1, Status::BAD_NO_DATA, "{aggregate:?}");
    }
}

#[test]
fn bits_are_added_once() {
    let calculated = Status::GOOD.with(Status::CALCULATED);
    assert_eq!(calculated.with(Status::CALCULATED), calculated);
    assert_eq!(calculated.with(Status::PARTIAL), Status::GOOD.with(Status::PARTIAL | Status::CALCULATED));
    assert_eq!((calculated.with(0), calculated.code()), (calculated, Status::GOOD));
}

#[test]
fn a_backward_interval_behind_the_last_value_has_no_data() {
    let grid = Grid::new(30, 0, 10).unwrap();
    let rows = [(-5, 1.0, 0), (5, 1.0, 0), (10, 1.0, 0)];
    let output = compute(Aggregate::Count, Settings::default(), grid, &[&rows]);
    // The last value lies at the end of the first interval, which is whole.
    let whole = Status::GOOD.with(Status::CALCULATED);
    assert_eq!(output.statuses, [whole, Status::BAD_NO_DATA, Status::BAD_NO_DATA].map(|status| status.0));
    assert_eq!(output.values[0], 2.0);
}

#[test]
fn a_segment_lies_in_the_interval_that_holds_its_ends() {
    let grid = Grid::new(20, 0, 10).unwrap();
    // Backwards, the values of an interval include those at its later end; what lies between points begins there.
    for (first, last, of_values, between) in
        [(3, 9, true, true), (3, 10, true, false), (3, 11, false, false), (10, 15, false, true), (11, 20, true, false)]
    {
        let segment = Segment::of(&[first, last], &[1.0, 2.0], None).unwrap();
        for (aggregate, taken) in [(Aggregate::Count, of_values), (Aggregate::TimeAverage2, between)] {
            let mut calculator = Calculator::new(aggregate, Settings::default(), grid);
            assert_eq!(calculator.push_segment(&segment), taken, "{aggregate:?} {first} {last}");
        }
    }
}
