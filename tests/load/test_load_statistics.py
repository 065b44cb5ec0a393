"""Statistics of load tests against their formulas, written out step by step."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest

pytest.importorskip("hdrh")
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_load import autoregressive, made

from chronotile.errors import InvalidInputError
from chronotile_tools import load
from chronotile_tools.load import statistics


def politis_white(values: Any) -> tuple[int, float]:
    """The block length of the circular bootstrap, as in Patton, Politis & White (2009), one lag at a time."""
    count, mean = len(values), sum(values) / len(values)

    def covariance(lag: int) -> float:
        return sum((values[k] - mean) * (values[k + lag] - mean) for k in range(count - lag)) / count

    first = covariance(0)
    if first <= 0:
        return 1, 0.0
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    lag_max = min(count - 1, math.ceil(math.sqrt(count)) + run)
    limit = 2 * math.sqrt(math.log10(count) / count)
    significant = [lag for lag in range(1, lag_max + 1) if abs(covariance(lag) / first) >= limit]
    last = None
    for lag in range(lag_max - run + 1):
        if not any(lag < other <= lag + run for other in significant):
            last = lag
            break
    if last is None:
        last = max(significant)
    reach = min(max(2 * last, 1), lag_max)
    longrun, slope = first, 0.0
    for lag in range(1, reach + 1):
        weight = 1.0 if lag / reach <= 0.5 else 2 * (1 - lag / reach)
        longrun += 2 * weight * covariance(lag)
        slope += 2 * weight * lag * covariance(lag)
    if longrun <= 0 or last == 0:
        return 1, max(longrun, 0.0)
    best = (2 * slope**2 / (4 / 3 * longrun**2) * count) ** (1 / 3)
    most = max(1, math.ceil(min(3 * math.sqrt(count), count / 3)))
    return min(max(round(best), 1), most), longrun


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 90), st.floats(-0.9, 0.97), st.integers(0, 10_000))
def test_blocks_are_as_long_as_the_formula_says(count: int, correlation: float, seed: int) -> None:
    values = autoregressive(np.random.default_rng(seed), count, correlation)
    block, longrun = statistics.block_length(values)
    expected = politis_white(values.tolist())
    assert block == expected[0]
    assert longrun == pytest.approx(expected[1], rel=1e-6, abs=1e-9)


def test_trends_and_constants_have_blocks_too() -> None:
    waves = [math.sin(place / 7) + 0.2 * (-1) ** place for place in range(300)]
    alternating = [[0.0, 1.0] * half for half in range(5, 40)]
    steps = [[1.0] * half + [9.0] * half for half in (5, 6, 30, 120)]
    trends = [list(range(count)) for count in (10, 11, 20, 60, 82, 200)]
    for values in ([5.0] * 10, waves, *trends, *steps, *alternating):
        block, longrun = statistics.block_length(values)
        expected = politis_white([float(each) for each in values])
        assert (block, longrun) == (expected[0], pytest.approx(expected[1], rel=1e-9, abs=1e-12))


def test_a_block_is_three_times_the_root_of_the_samples_at_most() -> None:
    count = 22_500
    assert statistics.block_length(np.arange(count))[0] == 3 * math.isqrt(count)


def test_samples_are_ten_at_least() -> None:
    assert statistics.block_length(range(10))[0] >= 1
    with pytest.raises(InvalidInputError, match="9 samples are too few: at least 10 are required"):
        statistics.block_length(range(9))


def test_a_bootstrap_is_of_the_samples_in_their_order() -> None:
    values = autoregressive(np.random.default_rng(3), 400, 0.7)
    found = statistics.block_bootstrap(values, resamples=400, seed=5)
    assert found == statistics.block_bootstrap(values, resamples=400, seed=5)
    assert found != statistics.block_bootstrap(values, resamples=400, seed=6)
    assert found.value == pytest.approx(values.mean())
    assert found.low < found.value < found.high
    block, longrun = politis_white(values.tolist())
    assert found.block == block > 1
    assert found.independent == pytest.approx(400 * values.var() / longrun)
    wide = statistics.block_bootstrap(values, resamples=400, seed=5, confidence=0.99)
    narrow = statistics.block_bootstrap(values, resamples=400, seed=5, confidence=0.5)
    assert wide.low < found.low < narrow.low < narrow.high < found.high < wide.high
    # A normal mean lies within 1.96 of its own deviations as often as the interval says.
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(longrun / 400), rel=0.25)
    assert statistics.block_bootstrap(values, 90.0, resamples=50).value == pytest.approx(np.percentile(values, 90))


@pytest.mark.parametrize("what", ["mean", 75.0])
def test_blocks_of_a_bootstrap_go_round_in_a_circle(what: Any) -> None:
    values = autoregressive(np.random.default_rng(4), 50, 0.9).tolist()
    block, _ = politis_white(values)
    assert 1 < block < 50
    rng = np.random.default_rng(0)
    statistic = []
    for _ in range(120):
        starts = rng.integers(0, 50, (math.ceil(50 / block), 1)).ravel()
        drawn = [values[(start + place) % 50] for start in starts for place in range(block)][:50]
        statistic.append(np.mean(drawn) if what == "mean" else np.percentile(drawn, what))
    found = statistics.block_bootstrap(values, what, resamples=120, confidence=0.9)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(statistic, [0.05, 0.95])), rel=1e-12)


def test_samples_that_do_not_differ_are_all_independent() -> None:
    found = statistics.block_bootstrap([7.0] * 12)
    assert (found.value, found.low, found.high, found.block, found.independent) == (7.0, 7.0, 7.0, 1, 12.0)
    alternating = statistics.block_bootstrap([0.0, 1.0] * 20)
    assert alternating.independent == 40, "never more than there are"
    # Their long-run variance is negative by the formula.
    opposite = [sign * size for size in (1e-3, 2e-3, 1e-3, 3e-3) * 5 for sign in (1, -1)]
    assert politis_white(opposite)[1] == 0
    assert statistics.block_bootstrap(opposite).independent == 40
    rising = statistics.block_bootstrap([1e-3 * place for place in range(40)])
    assert rising.independent == pytest.approx(1e-6 * np.var(range(40)) / (1e-6 * politis_white(range(40))[1]) * 40)


def test_pairs_are_compared_by_the_logarithms_of_their_ratios() -> None:
    ratios = [1.1, 1.2, 1.3, 1.25]
    first = [made([10.0] * 50) for _ in ratios]
    second = [made([10.0 * ratio] * 50) for ratio in ratios]
    found = load.compare(first, second)
    spread = np.std(np.log(ratios), ddof=1) / 2
    t = statistics.student_t(0.975, 3)
    assert found.pairs == 4
    assert found.ratio == pytest.approx(np.mean(ratios), rel=2e-3), "of the merged runs: histograms keep three digits"
    assert found.low <= found.ratio * math.exp(-t * spread) * 1.003
    assert found.high >= found.ratio * math.exp(t * spread) * 0.997
    power = statistics.student_t(0.8, 3)
    assert found.detectable == pytest.approx(math.exp((t + power) * spread) - 1, rel=0.02)
    assert found.significant == (found.low > 1)
    backwards = load.compare(second, first)
    assert backwards.ratio == pytest.approx(1 / found.ratio, rel=1e-9)
    surer = load.compare(first, second, confidence=0.999)
    assert surer.low < found.low < found.high < surer.high


def compared(first: list[list[float]], second: list[list[float]], what: Any) -> tuple[float, ...]:
    """Ratio, interval of 95 % and what could be detected, as :func:`load.compare` says, one resample at a time."""

    def log_ratio(chosen: Any) -> float:
        merged = [sorted(time for each in chosen for time in runs[each]) for runs in (second, first)]
        if what == "mean":
            return math.log(np.mean(merged[0]) / np.mean(merged[1]))
        ranks = [max(1, math.ceil(len(times) * what / 100)) for times in merged]
        return math.log(merged[0][ranks[0] - 1] / merged[1][ranks[1] - 1])

    count = len(first)
    drawn = np.random.default_rng(0).multinomial(count, [1 / count] * count, size=statistics.RESAMPLES)
    logs = [log_ratio(np.repeat(range(count), times)) for times in drawn]
    t = statistics.student_t(0.975, count - 1)
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * t)
    estimate = log_ratio(range(count))
    error = t * float(np.std([log_ratio([pair]) for pair in range(count)], ddof=1)) / math.sqrt(count)
    low, high = np.quantile(logs, [tail, 1 - tail])
    detectable = math.exp(error * (1 + statistics.student_t(0.8, count - 1) / t)) - 1
    return math.exp(estimate), math.exp(min(low, estimate - error)), math.exp(max(high, estimate + error)), detectable


# Whole microseconds below two thousand, which histograms hold exactly. Times rounded to three digits would not do: with
# few pairs, Student's t multiplies the rounding of their logarithms by more than six.
_RUN = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(lambda times: [float(each) for each in times])
_PAIRS = st.integers(2, 7).flatmap(lambda n: st.tuples(*[st.lists(_RUN, min_size=n, max_size=n)] * 2))


@settings(max_examples=25, deadline=None)
@given(_PAIRS, st.one_of(st.just("mean"), st.sampled_from([0.5, 1, 30, 50, 90, 99.5, 100])))
@example(([[1.0], [1.0]], [[1.0], [5.0]]), "mean")
@example(([[1.0]] * 9, [[1.0]] * 7 + [[2.0] * 40] * 2), "mean")
@example(([[1.0]] * 7 + [[2.0] * 40] * 2, [[1.0]] * 9), "mean")
@example(([[10.0], [12.0, 14.0]], [[11.0, 13.0], [18.0]]), 0.5)
@example(([[10.0], [12.0, 14.0], [50.0]], [[11.0, 13.0], [18.0], [90.0]]), 100)
@example(([[1.0] * 197 + [50.0] * 3] * 2, [[60.0] * 4, [50.0] * 4]), 99)
@example(([[10.0] * 90 + [20.0] * 10, [10.0] * 50], [[10.0] * 89 + [30.0] * 11, [30.0] * 30]), 90)
def test_the_interval_is_the_wider_of_two(pairs: Any, what: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 60)
        patch.setattr(statistics, "_BATCH", 7)
        found = load.compare(*([made(np.array(run) / 1_000) for run in runs] for runs in pairs), what)
        expected = compared(*pairs, what)
    assert (found.ratio, found.low, found.high) == pytest.approx(expected[:3], rel=1e-9)
    assert found.detectable == pytest.approx(expected[3], rel=1e-9, abs=1e-9)


def test_the_tails_of_the_bootstrap_widen_an_interval() -> None:
    # The pair that differs has most of the operations: the mean of the pairs' ratios does not show it.
    first, second = [[1.0]] * 9, [[1.0]] * 8 + [[2.0] * 40]
    logs = [0.0] * 8 + [math.log(2)]
    error = statistics.student_t(0.975, 8) * float(np.std(logs, ddof=1)) / 3
    found = load.compare([made(run) for run in first], [made(run) for run in second])
    assert math.log(found.low) < math.log(found.ratio) - 1.5 * error
    backwards = load.compare([made(run) for run in second], [made(run) for run in first])
    assert math.log(backwards.high) > math.log(backwards.ratio) + 1.5 * error


def test_the_resamples_are_those_of_a_seed_zero_by_default() -> None:
    rng = np.random.default_rng(3)
    first, second = ([made(run) for run in rng.uniform(1, 9, (9, 40))] for _ in range(2))
    found = load.compare(first, second)
    assert found == load.compare(first, second, seed=0)
    assert found != load.compare(first, second, seed=1)


def test_an_interval_that_touches_one_is_no_difference() -> None:
    for low, high, wanted in (
        (0.9, 1.1, False),
        (1.0, 1.1, False),
        (0.9, 1.0, False),
        (1.01, 1.1, True),
        (0.5, 0.99, True),
    ):
        assert load.Difference(1.0, low, high, 0.1, 5).significant is wanted


def test_a_verdict_needs_an_interval_without_one_and_a_difference_that_can_be_detected() -> None:
    for ratio, low, high, detectable, wanted in (
        (1.2, 1.1, 1.3, 0.1, "yes"), (2.0, 1.1, 2.3, 1.0, "yes"), (1.2, 1.1, 1.3, 0.21, "below detectable"),
        (1.2, 0.9, 1.3, 0.1, "no"), (1.0, 1.0, 1.0, 0.0, "no"), (0.8, 0.7, 0.9, 0.24, "yes"),
        (0.8, 0.7, 0.9, 0.26, "below detectable"),
    ):  # fmt: skip
        assert load.Difference(ratio, low, high, detectable, 5).verdict == wanted


def test_percentiles_are_of_the_merged_runs() -> None:
    first = [made([1.0] * 90 + [100.0] * 10) for _ in range(2)]
    second = [made([1.0] * 89 + [100.0] * 11) for _ in range(2)]
    assert load.compare(first, second, 90).ratio == pytest.approx(100, rel=0.01)
    assert load.compare(first, second, 89).ratio == pytest.approx(1)
    assert load.compare(first, second, 100).ratio == pytest.approx(1)
    assert load.compare(first, second, "mean").ratio == pytest.approx(11.89 / 10.9, rel=0.01)
    wrong: list[Any] = [0, -1, 100.5, "median"]
    for what in wrong:
        with pytest.raises(InvalidInputError, match="unknown statistic"):
            load.compare(first, second, what)


def test_runs_come_in_pairs_and_two_at_least() -> None:
    run = made([1.0, 2.0])
    for first, second in (([run], [run]), ([run, run], [run]), ([run, run], [run, run, run])):
        with pytest.raises(InvalidInputError, match="at least two pairs"):
            load.compare(first, second)
    assert load.compare([run, run], [run, run]).ratio == 1


def test_student_t_has_the_values_of_the_tables() -> None:
    table = {(0.975, 1): 12.7062, (0.975, 2): 4.30265, (0.975, 3): 3.18245, (0.995, 4): 4.60409, (0.8, 5): 0.91954,
             (0.975, 30): 2.04227, (0.025, 9): -2.26216, (0.9995, 60): 3.46020}  # fmt: skip
    for (probability, freedom), value in table.items():
        assert statistics.student_t(probability, freedom) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30])
def test_student_t_is_symmetric_and_falls_to_the_normal(freedom: int) -> None:
    quantile = statistics.student_t
    assert quantile(0.5, freedom) == pytest.approx(0, abs=1e-6)
    assert quantile(0.9, freedom) == pytest.approx(-quantile(0.1, freedom), rel=1e-6)
    assert quantile(0.975, freedom) > quantile(0.975, freedom + 1) > 1.96
    if freedom == 1:
        assert quantile(0.9, 1) == pytest.approx(math.tan(0.4 * math.pi), rel=1e-4)
    if freedom == 2:
        assert quantile(0.9, 2) == pytest.approx(0.8 / math.sqrt(2 * 0.9 * 0.1), rel=1e-4)
