"""When operations of a load are due: arithmetic of whole nanoseconds, whatever rate and times are given."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("hdrh")
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chronotile.errors import InvalidInputError
from chronotile_tools import load

rates = st.floats(0.5, 1_000)
lengths = st.floats(0.1, 20)


@settings(max_examples=40)
@given(rates, lengths, st.just(0.0) | lengths)
def test_a_fixed_schedule_is_a_ruler(rate: float, seconds: float, warm_up_s: float) -> None:
    schedule = load.Schedule.fixed(rate, seconds, warm_up_s=warm_up_s)
    assert len(schedule) == round(rate * (seconds + warm_up_s))
    assert schedule.due_ns.dtype == np.int64
    for place in {0, len(schedule) // 2, len(schedule) - 1} if len(schedule) else ():
        assert schedule.due_ns[place] == round(place / rate * 1e9)
    assert schedule.warm_up_ns == int(warm_up_s * 1e9)
    assert schedule.end_ns == int((seconds + warm_up_s) * 1e9)
    assert schedule.seconds == pytest.approx(seconds, abs=2e-9)
    counted = sum(due >= schedule.warm_up_ns for due in schedule.due_ns.tolist())
    assert schedule.rate == pytest.approx(counted / seconds)


@settings(max_examples=40)
@given(rates, lengths, st.just(0.0) | lengths, st.integers(0, 1_000))
def test_a_poisson_schedule_fills_its_time_and_counts_one_at_least(
    rate: float, seconds: float, warm_up_s: float, seed: int
) -> None:
    schedule = load.Schedule.poisson(rate, seconds, warm_up_s=warm_up_s, seed=seed)
    expected = rate * (seconds + warm_up_s)
    assert abs(len(schedule) - expected) <= 7 * math.sqrt(expected) + 7
    assert (np.diff(schedule.due_ns) >= 0).all()
    assert 0 <= schedule.due_ns[0] <= schedule.due_ns[-1] < schedule.end_ns
    assert schedule.due_ns[-1] >= schedule.warm_up_ns
    assert schedule.warm_up_ns == int(warm_up_s * 1e9)
    assert schedule.end_ns == int((seconds + warm_up_s) * 1e9)
    assert schedule.due_ns.dtype == np.int64


def test_a_poisson_schedule_is_spread_evenly_and_its_seed_is_zero_by_default() -> None:
    schedule = load.Schedule.poisson(10_000, 10)
    quarters, _ = np.histogram(schedule.due_ns, bins=4, range=(0, 10e9))
    assert quarters == pytest.approx([25_000] * 4, rel=0.05)
    assert schedule.due_ns[0] < 10_000_000
    assert schedule.due_ns[-1] > 9.99e9
    assert np.array_equal(schedule.due_ns, load.Schedule.poisson(10_000, 10, seed=0).due_ns)
    assert schedule.warm_up_ns == 0
    assert load.Schedule.fixed(10, 1).warm_up_ns == 0
    # One alone, because none came of itself, lies anywhere in the counted time.
    alone = [load.Schedule.poisson(1e-9, 10, warm_up_s=30, seed=seed).due_ns.tolist() for seed in range(60)]
    assert all(len(each) == 1 for each in alone)
    assert {int(each[0] // 2e9) for each in alone} == {15, 16, 17, 18, 19}


@pytest.mark.parametrize("seed", range(40))
def test_one_more_is_made_only_where_none_is_counted(seed: int) -> None:
    schedule = load.Schedule.poisson(0.7, 1, warm_up_s=2, seed=seed)
    rng = np.random.default_rng(seed)
    drawn = rng.uniform(0, 3e9, rng.poisson(0.7 * 3))
    assert len(schedule) == len(drawn) + (not (drawn >= 2e9).any())
    assert schedule.due_ns[-1] >= 2e9


def test_a_backlog_is_due_at_once() -> None:
    for count in (1, 2, 5_000_000):
        schedule = load.Schedule.backlog(count)
        assert len(schedule) == count
        assert not schedule.due_ns.any()
        assert (schedule.warm_up_ns, schedule.end_ns, schedule.seconds, schedule.rate) == (0, 0, 0.0, math.inf)
    for count in (0, -1, 5_000_001):
        with pytest.raises(InvalidInputError, match=f"count={count} is out of range: use 1 to 5,000,000 operations"):
            load.Schedule.backlog(count)


def test_five_million_operations_are_the_most() -> None:
    assert len(load.Schedule.fixed(2_500_000, 1.5, warm_up_s=0.5)) == 5_000_000
    for make in (load.Schedule.fixed, load.Schedule.poisson):
        for rate, seconds, warm_up_s in (
            (2_500_001, 1.5, 0.5), (5_000_001, 0.5, 0.5), (0, 1, 0), (-1, 1, 0), (1, 0, 1), (1, -1, 3), (1, 2, -1),
            (math.nan, 1, 0), (1, math.nan, 0), (1, 1, math.nan), (math.inf, 1, 0), (1, math.inf, 0),
        ):  # fmt: skip
            with pytest.raises(InvalidInputError, match="invalid schedule of"):
                make(rate, seconds, warm_up_s=warm_up_s)
