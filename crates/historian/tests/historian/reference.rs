//! Results by the definitions of OPC UA Part 13, computed the plain way: lists of rows, and every nanosecond by itself.

use std::cmp::Ordering;

use chronotile_historian::rules::{Aggregate, Output, Point, Settings, Status, ValuesAtTimes};
use proptest::prelude::*;

use crate::support::{Row, assert_same, compute, grids, is_good, series, settings};

/// Time where it is not the interval's own, value and status; `None` where there is no data.
type Expected = Option<(Option<i64>, f64, Status)>;

const GOOD: Status = Status::GOOD;
const SUB_NORMAL: Status = Status::UNCERTAIN_SUB_NORMAL;

fn usable(row: &Row, settings: &Settings) -> bool {
    let uncertain = Status(row.2).is_uncertain() && !row.1.is_nan();
    is_good(row) || uncertain && !settings.treat_uncertain_as_bad
}

fn calculated(code: Status) -> Status {
    code.with(Status::CALCULATED)
}

fn good_if(good: bool) -> Status {
    if good { GOOD } else { SUB_NORMAL }
}

/// The quality of a result by counting; Bad results carry no bits.
fn counted(rows: &[Row], settings: &Settings) -> Status {
    let part =
        |fits: &dyn Fn(&Row) -> bool| 100.0 * rows.iter().filter(|row| fits(row)).count() as f64 / rows.len() as f64;
    let code = |bad: f64| {
        if rows.is_empty() {
            GOOD
        } else if bad > 0.0 && bad >= settings.percent_bad {
            Status::BAD
        } else {
            good_if(part(&is_good) >= settings.percent_good)
        }
    };
    let bad = |row: &Row| !usable(row, settings);
    let found = match code(part(&|row| bad(row) && !Status(row.2).is_uncertain())) {
        SUB_NORMAL => code(part(&bad)),
        found => found,
    };
    if found.is_bad() { found } else { calculated(found) }
}

/// An aggregate of the rows of an interval, given the last usable row before them; the interval is stamped with `stamp`.
fn of_rows(aggregate: Aggregate, settings: &Settings, rows: &[Row], before: Option<&Row>, stamp: i64) -> Expected {
    use Aggregate::*;
    let good: Vec<&Row> = rows.iter().filter(|row| is_good(row)).collect();
    let mut values: Vec<f64> = good.iter().map(|row| row.1).collect();
    values.sort_by(f64::total_cmp);
    let quality = counted(rows, settings);
    let own = |row: &Row| Some((Some(row.0), row.1, Status(row.2)));
    match aggregate {
        Count => return Some((None, good.len() as f64, quality)),
        NumberOfTransitions => {
            let known: Vec<&Row> = before.into_iter().chain(rows.iter().filter(|row| usable(row, settings))).collect();
            let changes = known.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
            let first = before.is_none() && !known.is_empty();
            return Some((None, (changes + usize::from(first)) as f64, quality));
        }
        Distinct => {
            values.dedup();
            return Some((None, values.len() as f64, quality));
        }
        Start => return own(rows.first()?),
        End => return own(rows.last()?),
        WorstQuality => {
            let severity = |row: &Row| row.2 >> 30;
            let worst = rows.iter().map(severity).max()?;
            let as_bad: Vec<&Row> = rows.iter().filter(|row| severity(row) == worst).collect();
            let several = if worst > 0 && as_bad.len() > 1 { Status::MULTIPLE_VALUES } else { 0 };
            return Some((None, f64::from(as_bad[0].2), calculated(GOOD).with(several)));
        }
        _ if good.is_empty() => return None,
        _ => {}
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let of_sample = if values.len() == 1 { 0.0 } else { squares / (count - 1.0) };
    let all_good = calculated(good_if(good.len() == rows.len()));
    Some(match aggregate {
        Average => (None, mean, quality),
        Percentile => (None, percentile(&values, settings.percent), quality),
        VarianceSample => (None, of_sample, all_good),
        VariancePopulation => (None, squares / count, all_good),
        StandardDeviationSample => (None, of_sample.sqrt(), all_good),
        StandardDeviationPopulation => (None, (squares / count).sqrt(), all_good),
        Delta => {
            let ends_good = is_good(&rows[0]) && is_good(&rows[rows.len() - 1]);
            (None, good[good.len() - 1].1 - good[0].1, calculated(good_if(ends_good)))
        }
        _ => extreme(aggregate, settings, rows, &values, stamp),
    })
}

fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = percent / 100.0 * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    low + (high - low) * rank.fract()
}

fn extreme(
    aggregate: Aggregate,
    settings: &Settings,
    rows: &[Row],
    sorted: &[f64],
    stamp: i64,
) -> (Option<i64>, f64, Status) {
    use Aggregate::*;
    let (least, greatest) = (sorted[0], sorted[sorted.len() - 1]);
    let wants_least = matches!(aggregate, Minimum | MinimumActualTime | Range);
    let wants_greatest = matches!(aggregate, Maximum | MaximumActualTime | Range);
    // A Bad row, or an Uncertain one beyond the result, makes it doubtful.
    let doubts =
        |row: &Row| !usable(row, settings) || wants_least && row.1 < least || wants_greatest && row.1 > greatest;
    let code = good_if(!rows.iter().any(doubts));
    if aggregate == Range {
        return (None, greatest - least, calculated(code));
    }
    let value = if wants_least { least } else { greatest };
    let found: Vec<&Row> = rows.iter().filter(|row| is_good(row) && row.1 == value).collect();
    let code = code.with(if found.len() > 1 { Status::MULTIPLE_VALUES } else { 0 });
    match aggregate {
        MinimumActualTime | MaximumActualTime => (Some(found[0].0), value, code),
        _ if found[0].0 == stamp => (None, value, code),
        _ => (None, value, calculated(code)),
    }
}

/// The rows around a time: the usable ones before and behind it, and whether a row that is not lies between.
struct Around {
    earlier: Option<Row>,
    before: Option<Row>,
    after: Option<Row>,
    first_bad: Option<i64>,
}

impl Around {
    /// A row at `time` itself counts as one before it where `inclusive`.
    fn of(rows: &[Row], settings: &Settings, time: i64, inclusive: bool) -> Self {
        let (before, after) = rows.split_at(rows.partition_point(|row| row.0 < time || inclusive && row.0 == time));
        let mut known = before.iter().rev().filter(|row| usable(row, settings));
        let (last, earlier) = (known.next().copied(), known.next().copied());
        let since = |row: &&Row| last.is_some_and(|last| row.0 > last.0);
        let after = after.iter().find(|row| usable(row, settings)).copied();
        let until = |row: &&Row| after.is_none_or(|after| row.0 < after.0);
        let first_bad = rows.iter().filter(since).filter(until).find(|row| !usable(row, settings)).map(|row| row.0);
        Self { earlier, before: last, after, first_bad }
    }

    fn good(&self) -> bool {
        self.before.as_ref().is_some_and(is_good)
    }

    fn value(&self, time: f64, settings: &Settings) -> Option<f64> {
        let before = self.before?;
        let line = |a: Row, b: Row| a.1 + (b.1 - a.1) * (time - a.0 as f64) / (b.0 - a.0) as f64;
        Some(match (self.earlier, self.after) {
            _ if settings.stepped => before.1,
            (_, Some(after)) => line(before, after),
            (Some(earlier), None) if settings.sloped_extrapolation => line(earlier, before),
            _ => before.1,
        })
    }
}

fn at(rows: &[Row], settings: &Settings, time: i64) -> Expected {
    if let Some(row) = rows.iter().find(|row| row.0 == time && usable(row, settings)) {
        return Some((None, row.1, Status(row.2)));
    }
    let around = Around::of(rows, settings, time, false);
    let good = if settings.stepped {
        let followed = around.after.is_some() || around.first_bad.is_some();
        around.good() && followed && around.first_bad.is_none_or(|bad| bad > time)
    } else {
        around.good() && around.after.as_ref().is_some_and(is_good) && around.first_bad.is_none()
    };
    Some((None, around.value(time as f64, settings)?, good_if(good).with(Status::INTERPOLATED)))
}

/// `TimeAverage`, `Total` or `Rate` as a sum over every nanosecond.
fn of_nanoseconds(aggregate: Aggregate, settings: &Settings, rows: &[Row], start: i64, end: i64) -> Expected {
    let (mut area, mut covered, mut all_good) = (0.0, 0, true);
    for time in start..end {
        let around = Around::of(rows, settings, time, true);
        let both_good = around.good() && around.after.as_ref().is_some_and(is_good) && around.first_bad.is_none();
        let value = match (aggregate, around.before, around.after) {
            (Aggregate::Rate, Some(before), Some(after)) => {
                let increase = if after.1 < before.1 { after.1 } else { after.1 - before.1 };
                Some(increase / (after.0 - before.0) as f64 * 1e9)
            }
            (Aggregate::Rate, ..) => None,
            _ => around.value(time as f64 + 0.5, settings),
        };
        all_good &= if settings.stepped && aggregate != Aggregate::Rate {
            around.good() && around.after.is_some() && around.first_bad.is_none_or(|bad| bad > time)
        } else {
            both_good
        };
        if let Some(value) = value {
            area += value;
            covered += 1;
        }
    }
    let value = if aggregate == Aggregate::Total { area * 1e-9 } else { area / f64::from(covered) };
    (covered > 0).then(|| (None, value, calculated(good_if(all_good))))
}

fn put(output: &mut Output, stamp: i64, expected: Expected, partial: bool) {
    let (time, value, status) = expected.unwrap_or((None, f64::NAN, Status::BAD_NO_DATA));
    output.times.push(time.unwrap_or(stamp));
    output.values.push(if status.is_bad() { f64::NAN } else { value });
    output.statuses.push(status.with(if partial { Status::PARTIAL } else { 0 }).0);
}

proptest! {
    #[test]
    fn aggregates_of_values_agree_with_lists(rows in series(), mut settings in settings(), grid in grids()) {
        use Aggregate::*;
        settings.sample_results = false;
        for aggregate in [
            Average, Minimum, Maximum, MinimumActualTime, MaximumActualTime, Range, Count, NumberOfTransitions, Start,
            End, Delta, WorstQuality, StandardDeviationSample, StandardDeviationPopulation, VarianceSample,
            VariancePopulation, Percentile, Distinct,
        ] {
            let mut expected = Output::default();
            for index in 0..grid.count() {
                let (start, end) = (grid.boundary(index), grid.boundary(index + 1));
                // Backwards, an interval holds its later end.
                let shift = i64::from(grid.backward());
                let place = |row: &Row| match row.0 {
                    time if time < start + shift => Ordering::Less,
                    time if time < end + shift => Ordering::Equal,
                    _ => Ordering::Greater,
                };
                let inside: Vec<Row> = rows.iter().copied().filter(|row| place(row) == Ordering::Equal).collect();
                let before = rows.iter().rev().find(|row| place(row) == Ordering::Less && usable(row, &settings));
                let outside = rows.is_empty()
                    || rows.iter().all(|row| place(row) == Ordering::Less)
                    || rows.iter().all(|row| place(row) == Ordering::Greater);
                let found = (!outside).then(|| of_rows(aggregate, &settings, &inside, before, grid.stamp(index)));
                let begins = rows.first().is_some_and(|row| place(row) == Ordering::Equal && row.0 > start);
                let ends = rows.last().is_some_and(|row| place(row) == Ordering::Equal && row.0 < end);
                put(&mut expected, grid.stamp(index), found.flatten(), begins || ends);
            }
            assert_same(&expected, &compute(aggregate, settings, grid, &[&rows]), aggregate.name());
            let single: Vec<&[Row]> = rows.chunks(1).collect();
            assert_same(&expected, &compute(aggregate, settings, grid, &single), aggregate.name());
        }
    }

    #[test]
    fn interpolated_aggregates_agree_with_every_nanosecond(
        rows in series(), mut settings in settings(), grid in grids()
    ) {
        settings.sample_results = false;
        let single: Vec<&[Row]> = rows.chunks(1).collect();
        for aggregate in [Aggregate::TimeAverage, Aggregate::Total, Aggregate::Rate] {
            let mut expected = Output::default();
            for index in 0..grid.count() {
                let (start, end) = (grid.boundary(index), grid.boundary(index + 1));
                let found = of_nanoseconds(aggregate, &settings, &rows, start, end);
                let begins = rows.first().is_some_and(|row| start < row.0 && row.0 < end);
                let ends = rows.last().is_some_and(|row| start <= row.0 && row.0 < end);
                // What is extrapolated covers the interval to its end.
                let partial = begins || ends && (found.is_none() || aggregate == Aggregate::Rate);
                put(&mut expected, grid.stamp(index), found, partial);
            }
            // In units per nanosecond, as rounding is relative to the rates that cancel.
            let scaled = |mut output: Output| {
                let scale = if aggregate == Aggregate::Rate { 1e-9 } else { 1.0 };
                output.values.iter_mut().for_each(|value| *value *= scale);
                output
            };
            let expected = scaled(expected);
            for pieces in [&[&rows[..]][..], &single] {
                assert_same(&expected, &scaled(compute(aggregate, settings, grid, pieces)), aggregate.name());
            }
        }
        let mut expected = Output::default();
        for index in 0..grid.count() {
            put(&mut expected, grid.stamp(index), at(&rows, &settings, grid.stamp(index)), false);
        }
        assert_same(&expected, &compute(Aggregate::Interpolative, settings, grid, &[&rows]), "Interpolative");
        assert_same(&expected, &compute(Aggregate::Interpolative, settings, grid, &single), "Interpolative");
    }

    #[test]
    fn values_at_times_are_those_of_the_points_or_lie_between(
        rows in series(), settings in settings(), mut times in prop::collection::vec(-50..1200i64, 0..40)
    ) {
        times.extend(rows.iter().step_by(3).map(|row| row.0));
        times.sort_unstable();
        let mut values = ValuesAtTimes::new(times.clone(), settings);
        for row in &rows {
            values.push(Point { time: row.0, value: row.1, status: Status(row.2) });
            let known = rows.iter().rfind(|other| other.0 <= row.0 && usable(other, &settings));
            let last = times.last();
            prop_assert_eq!(values.done(), last.is_none_or(|last| known.is_some_and(|known| known.0 >= *last)));
        }
        let mut expected = Output::default();
        for time in times {
            put(&mut expected, time, at(&rows, &settings, time), false);
        }
        assert_same(&expected, &values.finish(), "values at times");
    }
}

#[test]
fn a_line_may_be_longer_than_a_count_of_nanoseconds() {
    let quarter = i64::MAX / 2;
    let mut values = ValuesAtTimes::new(vec![-quarter, 0, quarter], Settings::default());
    for (time, value) in [(i64::MIN, 1.0), (i64::MAX, 5.0)] {
        values.push(Point { time, value, status: Status::GOOD });
    }
    assert_eq!(values.finish().values, [2.0, 3.0, 4.0]);
}

#[test]
fn a_line_is_exact_to_the_nanosecond_in_our_time() {
    let now = 1_790_000_000_000_000_001;
    let mut values = ValuesAtTimes::new(vec![now + 1, now + 3], Settings::default());
    for (time, value) in [(now, 0.0), (now + 4, 4.0)] {
        values.push(Point { time, value, status: Status::GOOD });
    }
    assert_eq!(values.finish().values, [1.0, 3.0]);
}
