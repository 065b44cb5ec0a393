"""The load generator is honest, the statistics are right, the plan agrees with what was published."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from support_lab import keyspace_of, require_software
from support_load import Broken, Failing, Server

from chronotile import historian
from chronotile.apdb import Layout
from chronotile.errors import DataFileError, InvalidInputError, UnavailableError
from chronotile.sky import Region
from chronotile.terminal import table_text
from chronotile_tools import lab, load
from chronotile_tools import published as published_figures
from chronotile_tools.lab import making
from chronotile_tools.lab.processes import Process
from chronotile_tools.load import arms, experiments, statistics, targets
from chronotile_tools.load import recording as recordings
from chronotile_tools.load.experiments import base, overload, reads, requests, versions, windows
from chronotile_tools.survey.simulate import Survey


@pytest.fixture(scope="module")
def generator() -> Iterator[load.Generator]:
    with load.Generator(processes=2) as made:
        yield made


def run(generator: load.Generator, target: load.Target, schedule: load.Schedule, **options: Any) -> load.Recording:
    clients = options.pop("clients", 4)
    return generator.run([load.Stream("work", target, schedule, clients)], **options)["work"]


# ---------------------------------------------------------------------- schedules


def test_a_fixed_schedule_has_equal_distances_and_a_warm_up() -> None:
    schedule = load.Schedule.fixed(100, 2, warm_up_s=0.5)
    assert len(schedule) == 250
    assert set(np.diff(schedule.due_ns).tolist()) == {10_000_000}
    assert (schedule.seconds, schedule.rate) == (2.0, 100.0)


def test_a_poisson_schedule_is_random_by_its_seed_and_has_exponential_distances() -> None:
    schedule = load.Schedule.poisson(1_000, 30, seed=7)
    again, other = load.Schedule.poisson(1_000, 30, seed=7), load.Schedule.poisson(1_000, 30, seed=8)
    assert np.array_equal(schedule.due_ns, again.due_ns)
    assert not np.array_equal(schedule.due_ns, other.due_ns)
    gaps = np.diff(schedule.due_ns) / 1e9
    assert gaps.mean() == pytest.approx(1e-3, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    # So few that there is often none: then one is made.
    rare = [load.Schedule.poisson(0.5, 1, warm_up_s=1, seed=seed) for seed in range(50)]
    assert all(schedule.due_ns[-1] >= schedule.warm_up_ns for schedule in rare)
    assert all(np.all(np.diff(schedule.due_ns) >= 0) for schedule in rare)


@pytest.mark.parametrize(("rate", "seconds", "warm_up"), [(0, 1, 0), (-1, 1, 0), (10, 0, 0), (10, 1, -1), (1e9, 60, 0)])
def test_a_schedule_that_cannot_be_run_is_refused(rate: float, seconds: float, warm_up: float) -> None:
    with pytest.raises(InvalidInputError, match="invalid schedule of"):
        load.Schedule.fixed(rate, seconds, warm_up_s=warm_up)


# ---------------------------------------------------------------------- the generator


def test_every_operation_is_run_once_and_the_warm_up_is_left_out(generator: load.Generator) -> None:
    schedule = load.Schedule.fixed(500, 1, warm_up_s=0.4)
    found = run(generator, Server(0.0), schedule, clients=5)
    # Server answers with the number it was asked.
    assert sorted(found.rows.tolist()) == list(range(200, 700))
    assert np.array_equal(found.due_ns, schedule.due_ns[200:])
    assert np.all(found.started_ns >= found.due_ns)
    assert np.all(found.ended_ns >= found.started_ns)
    assert set(found.worker.tolist()) == {0, 1}


def test_a_stall_is_paid_by_all_who_came_while_it_lasted(generator: load.Generator) -> None:
    # One client at 200 a second, one operation takes 0.5 s: about a hundred others are due meanwhile. A generator
    # that waits for each answer before it sends the next sees one slow operation in 400.
    found = run(generator, Server(0.0005, stall_at=100, stalled_s=0.5), load.Schedule.fixed(200, 2), clients=1)
    assert len(found) == 400
    service, response = found.times_ns("service") / 1e9, found.times_ns("response") / 1e9
    assert np.count_nonzero(service > 0.25) == 1
    assert np.count_nonzero(response > 0.25) >= 50
    assert found.latency("service").p95 < 100
    assert found.latency("response").p95 > 250
    assert np.array_equal(found.times_ns("waiting") + found.times_ns("service"), found.times_ns("response"))


def test_a_system_that_cannot_keep_up_is_called_saturated(generator: load.Generator) -> None:
    # Two processes with a server each, each good for a hundred operations a second at most.
    steady = run(generator, Server(0.005), load.Schedule.fixed(20, 1.5))
    assert not steady.saturated
    behind = run(generator, Server(0.01), load.Schedule.fixed(600, 1.5))
    assert behind.saturated
    assert behind.count(recordings.UNSERVED) == 0, "all were run, late"
    assert behind.latency("waiting").max > 1_000
    assert 20 < behind.per_second < 210


def test_what_is_given_up_stays_in_the_distribution(generator: load.Generator) -> None:
    found = run(generator, Server(0.05), load.Schedule.fixed(400, 1), clients=2, drain_s=0.2)
    unserved = found.count(recordings.UNSERVED)
    assert unserved > 300
    assert found.saturated
    assert found.latency().count == 400
    times = found.times_ns()[found.outcome == recordings.UNSERVED]
    assert np.all(times >= 0.2e9), "as late as it was when the run was given up"


def test_timeouts_and_failures_are_counted_apart_and_stay_in_the_distribution(generator: load.Generator) -> None:
    found = run(generator, Failing(), load.Schedule.fixed(350, 1))
    assert found.count(recordings.TIMED_OUT) == 70
    assert found.count(recordings.FAILED) == 40
    assert found.latency().count == 350
    assert found.latency("service").p95 > 19
    assert found.errors == {"busy": "nobody answered", "no-node": "no node"}


def test_a_throughput_is_what_is_worked_off_in_a_time(generator: load.Generator) -> None:
    found = run(generator, Server(0.01), load.Schedule.backlog(1_000), drain_s=1.0)
    assert 20 < found.per_second < 210
    assert found.count(recordings.UNSERVED) > 700


def test_the_generator_itself_is_cheap(generator: load.Generator) -> None:
    found = run(generator, load.Noop(), load.Schedule.fixed(500, 1))
    assert found.latency("service").p50 < 1


def test_a_target_that_cannot_be_reached_is_an_error_and_the_generator_goes_on(generator: load.Generator) -> None:
    with pytest.raises(UnavailableError, match="no node answers"):
        run(generator, Broken("refuses"), load.Schedule.fixed(10, 1))
    assert len(run(generator, load.Noop(), load.Schedule.fixed(10, 1))) == 10


def test_a_fault_of_a_target_ends_the_run_with_its_words(generator: load.Generator) -> None:
    with pytest.raises(load.LoadError, match="ZeroDivisionError"):
        run(generator, Broken("divides"), load.Schedule.fixed(10, 1))
    assert len(run(generator, load.Noop(), load.Schedule.fixed(10, 1))) == 10


def test_streams_run_side_by_side_in_their_own_recordings(generator: load.Generator) -> None:
    streams = [
        load.Stream("read", Server(0.001), load.Schedule.poisson(100, 1, seed=1), 2),
        load.Stream("write", load.Noop(), load.Schedule.fixed(50, 1), 1),
    ]
    found = generator.run(streams)
    assert len(found["read"]) == len(streams[0].schedule)
    assert len(found["write"]) == 50
    assert found["read"].started_ns.min() < 0.5e9 > found["write"].started_ns.min()


def test_streams_of_one_name_are_refused(generator: load.Generator) -> None:
    stream = load.Stream("twice", load.Noop(), load.Schedule.fixed(10, 1))
    with pytest.raises(InvalidInputError, match="needs a unique name"):
        generator.run([stream, stream])


# ---------------------------------------------------------------------- histograms


def made(milliseconds: Any, workers: int = 1) -> load.Recording:
    """A recording of given response times."""
    times = (np.asarray(milliseconds, float) * 1e6).astype(np.int64)
    due = np.arange(len(times)) * 1_000_000
    zeros = np.zeros(len(times), np.int64)
    worker = (np.arange(len(times)) % workers).astype(np.uint8)
    return load.Recording(
        "work", due, due, due + times, zeros.astype(np.uint8), zeros, worker, int(due[-1]) + 1, 1
    )  # fmt: skip


def test_percentiles_are_those_of_all_workers_together() -> None:
    # The slow worker has a tenth of the operations. The mean of the workers' medians would be 500 ms.
    times = np.where(np.arange(10_000) % 10 == 9, 1_000.0, 1.0)
    found = made(times, workers=10)
    assert found.latency().p50 == pytest.approx(1.0, rel=2e-3)
    assert found.latency().p95 == pytest.approx(1_000.0, rel=2e-3)
    assert found.latency().count == 10_000


def test_histograms_agree_with_the_samples_to_three_digits() -> None:
    times = np.random.default_rng(3).lognormal(1, 1.2, 20_000)
    found = made(times, workers=3).latency()
    for value, share in ((found.p50, 50), (found.p95, 95), (found.p99, 99), (found.p999, 99.9)):
        assert value == pytest.approx(np.sort(times)[round(share / 100 * len(times)) - 1], rel=3e-3)
    assert found.mean == pytest.approx(times.mean(), rel=2e-3)


def test_logs_of_workers_merge_to_the_whole(tmp_path: Path) -> None:
    first = made(np.random.default_rng(1).exponential(5, 3_000), workers=2)
    other = made([77.0] * 10, workers=2)
    files = sorted({*first.write_log(tmp_path, "a/1"), *other.write_log(tmp_path, "b, or\tc/1")})
    assert [file.name for file in files] == ["worker-0.hlog", "worker-1.hlog"]
    assert load.Latency.of(load.read_log(files, "a/1/response")) == first.latency()
    assert load.read_log(files, "b, or\tc/1/response").get_total_count() == 10
    assert load.read_log(files, "b_or_c/1/response").get_total_count() == 10
    assert load.read_log(files, "c/1/response").get_total_count() == 0


# ---------------------------------------------------------------------- statistics


def pairs(
    rng: np.random.Generator, count: int, ratio: float, noise: float
) -> tuple[list[load.Recording], list[load.Recording]]:
    """Pairs of runs on a machine whose speed drifts, the second `ratio` slower."""
    drift = np.exp(rng.normal(0, 0.2, count))
    sides = []
    for factor in (1.0, ratio):
        speeds = drift * np.exp(rng.normal(0, noise / math.sqrt(2), count))
        sides.append([made(10 * speed * factor * np.exp(rng.normal(0, 0.3, 80))) for speed in speeds])
    return sides[0], sides[1]


def test_a_known_difference_lies_in_the_interval_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    found = [load.compare(*pairs(rng, 5, 1.2, 0.05), seed=n) for n in range(80)]
    inside = np.mean([each.low <= 1.2 <= each.high for each in found])
    assert 0.89 <= inside <= 1.0
    assert np.median([each.ratio for each in found]) == pytest.approx(1.2, rel=0.02)
    # The plain percentile interval of five pairs covers 83 %: the widening is what makes up for it.
    assert np.median([each.high / each.low for each in found]) < 1.25


def test_no_difference_is_rarely_taken_for_one() -> None:
    rng = np.random.default_rng(12)
    found = [load.compare(*pairs(rng, 5, 1.0, 0.05), seed=n).significant for n in range(80)]
    assert np.mean(found) <= 0.11


def test_the_smallest_detectable_difference_is_detected_in_four_of_five_cases() -> None:
    # A noise of 10 % in five pairs. The bound, from Student's t: (2.776 + 0.941) * 0.10 / sqrt(5) = 16.6 %.
    rng = np.random.default_rng(13)
    bounds = [load.compare(*pairs(rng, 5, 1.0, 0.10), seed=n).detectable for n in range(40)]
    assert np.median(bounds) == pytest.approx(math.exp(0.166) - 1, rel=0.2)
    hits = [load.compare(*pairs(rng, 5, math.exp(0.166), 0.10), seed=n).significant for n in range(80)]
    assert 0.62 <= np.mean(hits) <= 0.95


@pytest.mark.parametrize(
    ("ratio", "low", "high", "detectable", "verdict"),
    [
        (1.10, 1.02, 1.19, 0.12, "below detectable"),
        (1.12, 1.02, 1.19, 0.12, "yes"),
        (1 / 1.10, 0.84, 0.98, 0.12, "below detectable"),
        (1 / 1.13, 0.84, 0.98, 0.12, "yes"),
        (1.30, 0.98, 1.60, 0.12, "no"),
        (1.0, 1.0, 1.0, 0.0, "no"),
    ],
)
def test_no_difference_below_the_detectable_one_is_claimed(
    ratio: float, low: float, high: float, detectable: float, verdict: str
) -> None:
    assert load.Difference(ratio, low, high, detectable, 5).verdict == verdict


def test_the_table_of_a_report_claims_no_difference_below_the_detectable_one(
    tmp_path: Path, generator: load.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences = {
        "mean": load.Difference(1.10, 1.02, 1.19, 0.12, 5), 50.0: load.Difference(1.30, 1.15, 1.45, 0.12, 5),
        99.0: load.Difference(1.02, 0.97, 1.05, 0.12, 5),
    }  # fmt: skip
    monkeypatch.setattr(arms, "compare", lambda first, second, what, part: differences[what])
    bench = base.Bench(base.Settings(), generator, str, "requests", tmp_path)
    runs = {name: [{"work": made([10.0] * 20)} for _ in range(5)] for name in ("ONE", "ALL")}
    found = bench.show_comparisons(runs, ["ONE", "ALL"])
    # The interval of the first leaves out "no difference", which is not enough.
    assert [each.difference.significant for each in found] == [True, True, False]
    title, rows = bench.report._tables[0]
    assert "no smaller difference can be claimed" in title
    assert rows[0][-1] == "differs"
    assert [(row[1], row[-1]) for row in rows[1:]] == [("mean", "below detectable"), ("p50", "yes"), ("p99", "no")]
    for shown in (bench.report.text(table_text), bench.report.html()):
        assert shown.count("below detectable") == 1


def test_percentiles_are_compared_as_percentiles() -> None:
    rng = np.random.default_rng(14)
    fast = [made(rng.exponential(5, 1_000)) for _ in range(5)]
    heavy = [made(np.where(rng.random(1_000) < 0.05, 100.0, rng.exponential(5, 1_000))) for _ in range(5)]
    assert load.compare(fast, heavy, 50).ratio == pytest.approx(1.05, abs=0.1)
    assert load.compare(fast, heavy, 99).ratio > 3
    assert load.compare(fast, heavy, 99).significant


def test_too_few_runs_are_refused(generator: load.Generator) -> None:
    one = [made([1.0, 2.0])]
    with pytest.raises(InvalidInputError, match="at least two pairs"):
        load.compare(one, one)
    arm = load.Arm("a", lambda number: [load.Stream("work", load.Noop(), load.Schedule.fixed(10, 0.1))])
    with pytest.raises(InvalidInputError, match="at least 5"):
        load.run_arms(generator, [arm], rounds=4)


def test_five_pairs_that_scatter_widely_to_one_side_prove_nothing() -> None:
    first = [made([10.0] * 50) for _ in range(5)]
    second = [made([10.0 / factor] * 50) for factor in (1.02, 1.03, 1.05, 1.2, 6.0)]
    found = load.compare(first, second, 50)
    assert not found.significant
    assert found.detectable > 1


def test_a_run_that_served_nothing_is_not_compared() -> None:
    served = [made([10.0] * 20) for _ in range(3)]
    lost = dataclasses.replace(served[0], outcome=np.full(20, recordings.UNSERVED, np.uint8))
    assert (lost.served, served[0].served) == (0, 20)
    with pytest.raises(InvalidInputError, match="no service time"):
        load.compare(served, [*served[:2], lost], part="service")


def test_figures_of_runs_are_compared_by_their_ratios() -> None:
    # Pairs drift together; the second is a tenth more, give or take 2 %.
    first = [10.0, 20.0, 15.0, 12.0, 30.0]
    second = [10.0 * 1.12, 20.0 * 1.08, 15.0 * 1.1, 12.0 * 1.12, 30.0 * 1.08]
    found = load.compare_values(first, second)
    assert found.ratio == pytest.approx(1.1, rel=1e-3)
    assert (found.pairs, found.verdict) == (5, "yes")
    # By hand: logarithms of the ratios scatter by 0.0182, Student's t of four degrees of freedom is 2.776 and 0.941.
    error = 0.0182 / math.sqrt(5)
    assert found.low == pytest.approx(found.ratio * math.exp(-2.776 * error), rel=1e-3)
    assert found.high == pytest.approx(found.ratio * math.exp(2.776 * error), rel=1e-3)
    assert found.detectable == pytest.approx(math.exp((2.776 + 0.941) * error) - 1, rel=1e-2)
    turned = load.compare_values(second, first)
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))
    narrower = load.compare_values(first, second, confidence=0.5)
    assert found.low < narrower.low < found.ratio < narrower.high < found.high
    single = [made([value] * 20) for value in first], [made([value] * 20) for value in second]
    assert load.compare(*single).detectable == pytest.approx(found.detectable, rel=0.05), "of runs of equal times"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1.0], [1.0], "cannot compare 1 with 1 figures"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], "cannot compare 2 with 3 figures"),
        ([1.0, 2.0], [1.0, 0.0], "above zero"),
        ([-1.0, 2.0], [1.0, 1.0], "above zero"),
    ],
)
def test_figures_that_have_no_ratios_are_refused(first: list[float], second: list[float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load.compare_values(first, second)


def autoregressive(rng: np.random.Generator, count: int, correlation: float) -> Any:
    noise = rng.normal(size=count)
    values = np.empty(count)
    values[0] = noise[0] / math.sqrt(1 - correlation**2)
    for place in range(1, count):
        values[place] = correlation * values[place - 1] + noise[place]
    return values + 100


def test_intervals_of_correlated_samples_are_wide_enough() -> None:
    rng = np.random.default_rng(15)
    samples = [autoregressive(rng, 1_500, 0.8) for _ in range(100)]
    found = [load.block_bootstrap(values, resamples=300, seed=n) for n, values in enumerate(samples)]
    inside = np.mean([each.low <= 100 <= each.high for each in found])
    assert inside >= 0.86
    # Were they independent, the interval would be three times too short: (1 + r) / (1 - r) = 9.
    naive = [abs(values.mean() - 100) <= 1.96 * values.std() / math.sqrt(len(values)) for values in samples]
    assert np.mean(naive) < 0.65
    assert np.median([each.independent for each in found]) == pytest.approx(1_500 / 9, rel=0.35)


def test_independent_samples_need_no_blocks() -> None:
    values = np.random.default_rng(16).normal(50, 5, 2_000)
    found = load.block_bootstrap(values)
    assert found.block <= 3
    assert found.independent == pytest.approx(2_000, rel=0.1)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 5 / math.sqrt(2_000), rel=0.2)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 4, 2.7764), (0.975, 1, 12.7062), (0.8, 4, 0.9410), (0.995, 9, 3.2498)],
)
def test_quantiles_of_student_t_are_those_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert statistics.student_t(probability, freedom) == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------------- arms


def test_runs_take_turns_and_the_control_comes_first(generator: load.Generator) -> None:
    order = [name for _, name in load.interleaved(["a", "b"], 5)]
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]
    # Far apart, so that a busy machine cannot hide it.
    schedule = load.Schedule.fixed(10, 0.3)
    two = [
        load.Arm("fast", lambda number: [load.Stream("work", Server(0.001), schedule)]),
        load.Arm("slow", lambda number: [load.Stream("work", Server(0.15), schedule)]),
    ]
    seen: list[tuple[str, int]] = []
    runs = load.run_arms(generator, two, done=lambda name, number, run: seen.append((name, number)))
    assert seen[:4] == [("fast (A)", 0), (arms.CONTROL, 0), (arms.CONTROL, 1), ("fast (A)", 1)]
    assert seen[10:14] == [("fast", 0), ("slow", 0), ("slow", 1), ("fast", 1)]
    found = load.Comparison.all_of(runs, ["fast", "slow"], whats=[50.0])
    assert [(each.arm, each.is_control) for each in found] == [(arms.CONTROL, True), ("slow", False)]
    assert found[1].difference.significant
    assert found[1].difference.low > 2


def test_every_server_has_had_the_same_load_before_it_is_compared(generator: load.Generator) -> None:
    begun: list[str] = []
    schedule = load.Schedule.fixed(50, 0.05)

    def arm(name: str, server: str) -> load.Arm:
        streams = [load.Stream("work", Server(0.0), schedule)]
        return load.Arm(name, lambda number: streams, lambda: begun.append(server), server)

    measured: list[int] = []
    three = [arm("old", "one"), arm("new", "two"), arm("new, tuned", "two")]
    load.run_arms(generator, three, warm_up=2, done=lambda name, number, run: measured.append(len(begun)))
    before = begun[: measured[10] - 1]
    assert before.count("one") == before.count("two") == 2 + 2 * arms.RUNS_MIN
    assert len(measured) == 5 * arms.RUNS_MIN


# ---------------------------------------------------------------------- the plan

TWELVE = load.Cluster(nodes=12, replication=1, consistency="ONE")
SURVEY = load.Demand()


def published(**how: Any) -> load.Measured:
    """Ten seconds a read after 180,000 visits on three nodes with one copy: DMTN-156."""
    return load.Measured.loaded(10.0, nodes=3, clients=189, visits=180_000, **how)


def test_three_nodes_predict_the_published_twelve() -> None:
    # DMTN-184: 1.65 s after 100,000 visits, and 4.5 s when twelve months are full.
    assert load.plan(published(), SURVEY, TWELVE, visits=100_000).read_s == pytest.approx(1.65, rel=0.2)
    assert load.plan(published(), SURVEY, TWELVE).read_s == pytest.approx(4.5, rel=0.2)


def test_the_first_months_of_twelve_nodes_predict_their_plateau() -> None:
    measured = load.Measured.loaded(1.65, nodes=12, clients=189, visits=100_000)
    assert load.plan(measured, SURVEY, TWELVE).read_s == pytest.approx(4.5, rel=0.1)
    # It stays there: 300,000 visits are past twelve months of 30 nights.
    assert load.plan(measured, SURVEY, TWELVE, visits=400_000) == load.plan(measured, SURVEY, TWELVE)


def test_three_copies_by_majority_cost_what_was_published() -> None:
    three = load.Cluster(nodes=3, replication=3, consistency="QUORUM")
    assert load.plan(published(), SURVEY, three, visits=180_000).read_s == pytest.approx(23.0, rel=0.2)


def full(**changes: Any) -> load.Measured:
    measured = load.Measured(
        visits=100_000, read_node_s=0.05, store_node_s=0.02, read_alone_s=0.01, store_rows=600, bytes_per_row=200,
        partition_bytes=2 * 2**20,
    )  # fmt: skip
    return dataclasses.replace(measured, **changes)


def test_the_plan_is_in_proportion() -> None:
    cluster = load.Cluster(nodes=10, replication=2, consistency="ONE", disks=2, disk_tb=1.0)
    found = load.plan(full(), SURVEY, cluster, visits=100_000)
    assert found.read_s == pytest.approx(189 * 0.05 / 10)
    assert found.store_s == pytest.approx(189 * 0.02 * 2 / 10)
    assert found.busy == pytest.approx((found.read_s + found.store_s) / 45)
    assert found.bytes_per_node == pytest.approx(600 * 189 * 100_000 * 200 * 2 / 10)
    assert found.disk_fill == pytest.approx(found.bytes_per_node / 2e12)
    assert load.plan(full(read_node_s=1e-6), SURVEY, cluster, visits=100_000).read_s == 0.01, "a read alone"


def test_the_fewest_nodes_are_enough_and_one_less_is_not() -> None:
    cluster = load.Cluster(nodes=60, replication=3, disk_tb=2.0)
    needed = load.plan(full(), SURVEY, cluster).nodes_needed
    assert needed is not None
    assert load.plan(full(), SURVEY, dataclasses.replace(cluster, nodes=needed)).problems == ()
    assert load.plan(full(), SURVEY, dataclasses.replace(cluster, nodes=needed - 1)).problems != ()


def test_more_nodes_are_not_offered_for_a_partition_that_is_too_large() -> None:
    found = load.plan(full(partition_bytes=8 * 2**20), SURVEY, load.Cluster(nodes=60))
    assert found.nodes_needed is None
    assert "23 MiB" in found.problems[0]


def test_every_measure_that_is_used_stands_among_the_assumptions() -> None:
    text = "\n".join(load.plan(full(), SURVEY, load.Cluster()).assumptions)
    for figure in ("100,000", "288,000", "50 ms", "20 ms", "10 ms", "600 rows", "200 bytes", "360 days", "189 clients"):
        assert figure in text
    assert "disks are not planned" in "\n".join(load.plan(published(), SURVEY, TWELVE).assumptions)


@pytest.mark.parametrize(
    "make",
    [
        lambda: load.Cluster(nodes=2, replication=3),
        lambda: load.Cluster(replication=3, consistency="ANY"),
        lambda: load.Cluster(replication=1, consistency="TWO"),
        lambda: load.Cluster(busy_max=0),
        lambda: load.Demand(clients=0),
        lambda: full(read_node_s=0),
        lambda: full(bytes_per_row=-1),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_measures_come_from_the_results_of_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"measured": dataclasses.asdict(full())}))
    assert load.Measured.from_results(path) == full()
    assert load.Measured.from_results(path, {"bytes_per_row": 50.0}) == full(bytes_per_row=50.0)
    for content in ("{}", "[]", '{"measured": 1}', '{"measured": {}}', '{"measured": {"unknown": 1}}'):
        path.write_text(content)
        with pytest.raises(DataFileError, match="scaling"):
            load.Measured.from_results(path)


def test_the_command_plans_from_results_and_ends_with_1_when_the_cluster_would_not_do(
    chronotile: Run, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"measured": dataclasses.asdict(full())}))
    few = chronotile("bench", "plan", path, "--nodes", 3, "--disk-tb", 1)
    assert few.returncode == 1
    assert "problem: data take" in few.stdout
    done = chronotile("bench", "plan", path, "--nodes", 60, "--bytes-per-row", 50, "--json")
    assert done.returncode == 0, done.stderr
    expected = load.plan(full(bytes_per_row=50.0), SURVEY, load.Cluster(nodes=60))
    assert json.loads(done.stdout) == json.loads(json.dumps(dataclasses.asdict(expected)))
    half = chronotile("bench", "plan", "--nodes", 3, "--read-node-s", 1)
    assert half.returncode == 2
    assert "--measured-visits" in half.stderr
    both = chronotile("bench", "plan", path, "--costs", path)
    assert (both.returncode, "not both" in both.stderr) == (2, True)


def test_the_command_plans_the_published_survey_from_the_costs_of_the_benchmarks(
    chronotile: Run, tmp_path: Path
) -> None:
    done = chronotile("bench", "plan", "--nodes", 12, "--cores", 32, "--json")
    assert done.returncode == 0, done.stderr
    measured = load.Measured.from_costs(load.Costs.read(), cores=32)
    expected = load.plan(measured, load.SurveyLoad().demand(), load.Cluster(nodes=12))
    assert json.loads(done.stdout) == json.loads(json.dumps(dataclasses.asdict(expected)))
    dear = tmp_path / "dear.toml"
    dear.write_text('[chronotile.maintain_tile]\nvalue = 1.44\nunit = "seconds"\nsource = "guessed"\n')
    text = chronotile("bench", "plan", "--costs", dear, "--maintenance-hours", 8).stdout
    assert "19 processes" in text, "368,550 tiles of 1.44 s in 8 h"
    dear.write_text('[chronotile.maintain_tiles]\nvalue = 1\nunit = "s"\nsource = "guessed"\n')
    refused = chronotile("bench", "plan", "--costs", dear)
    assert refused.returncode != 0
    assert "did you mean chronotile.maintain_tile" in refused.stderr


# ---------------------------------------------------------------------- experiments


def test_an_unknown_experiment_and_a_url_that_does_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="consistency, expansion, growing-reads"):
        experiments.run("speed", tmp_path / "out")
    with pytest.raises(InvalidInputError, match="omit the URL"):
        experiments.run("overload", tmp_path / "out", experiments.Settings(url="cassandra://127.0.0.1/bench"))
    with pytest.raises(InvalidInputError, match="unsupported version"):
        experiments.run("versions", tmp_path / "out", experiments.Settings(versions=("2.2", "4.0")))
    with pytest.raises(InvalidInputError, match="is not a cluster URL"):
        experiments.run("consistency", tmp_path / "out", experiments.Settings(url=f"sqlite:{tmp_path}/a.db"))


def test_a_folder_that_holds_an_experiment_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("kept\n")
    with pytest.raises(DataFileError, match="already contains an experiment"):
        experiments.run("consistency", tmp_path)
    assert (tmp_path / "samples.jsonl").read_text() == "kept\n"


HISTOGRAMS = {
    "4.1": """\
bench/c_points_1 histograms
Percentile      Read Latency     Write Latency          SSTables    Partition Size        Cell Count
                    (micros)          (micros)                             (bytes)
50%                   126.93             24.60              1.00             29521                72
95%                   654.95             61.21              2.00             61214               124
99%                  1131.75            126.93              2.00             61214               124
Min                    51.01              8.24              0.00             20502                43
Max                  4055.27            454.83              2.00             61214               124
""",
    "3.11": """\
bench/c_points_1 histograms
Percentile  SSTables     Write Latency      Read Latency    Partition Size        Cell Count
                              (micros)          (micros)           (bytes)
50%             1.00             24.60            126.93             29521                72
99%             2.00            126.93           1131.75             61214               124
""",
}


@pytest.mark.parametrize("release", HISTOGRAMS)
def test_table_histograms_are_read_by_their_headings(release: str) -> None:
    found = versions.read_histograms(HISTOGRAMS[release])
    assert found["Read Latency 50%"] == 126.93
    assert found["Write Latency 99%"] == 126.93
    assert found["Partition Size 99%"] == 61_214
    assert versions.read_histograms("No SSTables exists, unable to calculate") == {}


def check_files(out: Path) -> dict[str, Any]:
    """What every experiment leaves; its results."""
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        assert len(line["due_us"]) == len(line["started_us"]) == len(line["ended_us"]) == len(line["outcome"]) > 0
        due, started, ended = (np.array(line[name]) for name in ("due_us", "started_us", "ended_us"))
        assert np.all((due <= started) & (started <= ended))
    logs = sorted(out.glob("worker-*.hlog"))
    busiest = max((line for line in lines if not line["given_up"]), key=lambda line: len(line["due_us"]))
    tag = f"{busiest['arm']}/{busiest['run']}/{busiest['stream']}/response"
    assert load.read_log(logs, tag).get_total_count() == len(busiest["due_us"])
    html = (out / "report.html").read_text()
    assert "<svg" in html
    assert "Compare the arms of one report" in html
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    assert results["harness_ms"]["p50"] < 50
    return results


def test_targets_ask_for_what_they_say_and_for_the_same_again(tmp_path: Path) -> None:
    history = targets.History(f"sqlite:{tmp_path}/plant.db", tags=10, days=30, step_s=600)
    history.store()
    asked: dict[load.Target, tuple[int, int]] = {
        targets.Aggregates(history.url, history, "A"): (24, 24),
        targets.Aggregates(history.url, history, "B"): (240, 240),
        targets.Aggregates(history.url, history, "C", points_only=True): (28, 28),
        targets.Aggregates(history.url, history, "D"): (30, 30),
        targets.Ranges(history.url, history, days=2.0): (288, 288),
        targets.Ranges(history.url, history, days=2.0, growing=True): (1, 289),
    }
    for target, (least, most) in asked.items():
        client = target.connect()
        rows = [client.run(number) for number in range(12)]
        assert least <= min(rows) <= max(rows) <= most, target
        assert rows == [client.run(number) for number in range(12)]
        client.close()
    writer = targets.Writes(history.url, history, values=25, run=3).connect()
    assert [writer.run(number) for number in range(3)] == [25, 25, 25]
    writer.close()
    with historian.open(history.url) as plant:
        assert len(plant.raw(history.tag(0), "2026-01-01", "2026-01-31").to_arrow()) == 30 * 144
        behind = plant.raw([history.tag(n) for n in range(10)], "2026-02-04", "2026-02-05").to_arrow()
        assert behind.num_rows == 75
    history.extend(range(40, 42))
    with historian.open(history.url) as plant:
        assert len(plant.raw(history.tag(3), "2026-02-10", "2026-02-12").to_arrow()) == 2 * 144


class FixedRuns:
    """A load generator that answers with given read times, run by run."""

    def __init__(self, *reads: load.Recording) -> None:
        self.reads = list(reads)
        self.asked: list[tuple[targets.Ranges, float]] = []

    def run(self, streams: list[load.Stream], drain_s: float) -> dict[str, load.Recording]:
        assert isinstance(streams[0].target, targets.Ranges)
        self.asked.append((streams[0].target, drain_s))
        return {"read": self.reads.pop(0)}


def test_a_ramp_ends_at_the_first_step_that_the_cluster_does_not_stand() -> None:
    fine = made([10.0] * 40)
    late = dataclasses.replace(fine, outcome=np.where(np.arange(40) < 1, recordings.TIMED_OUT, 0).astype(np.uint8))
    generator = FixedRuns(*[fine] * 6, late)
    harness = base.Harness(base.Settings(), generator, str)  # type: ignore[arg-type]
    history = targets.History("sqlite:nowhere.db", tags=5, days=11, step_s=60)
    steps = list(reads.ramp(harness, None, history, reads.Load(rate=20, seconds=2), iter(())))
    assert [(step.days, step.rate) for step in steps] == [
        (0.1, 20), (0.3, 20), (1.0, 20), (3.0, 20), (10.0, 20), (10.0, 40), (10.0, 80),
    ]  # fmt: skip
    assert [target.days for target, _ in generator.asked] == [step.days for step in steps]
    assert [reads.overloaded(step.reads) for step in steps] == [False] * 6 + [True]
    assert {(step.dropped, step.timeouts) for step in steps} == {(None, None)}, "unknown of an external cluster"


def test_setups_of_the_requests_are_the_published_ones() -> None:
    setups = requests.RateLoad().setups
    names = [requests.setup_name(nodes, live) for nodes, live in setups]
    assert sorted(names) == sorted(published_figures.SETUPS)
    # There and back, a cluster changes once a turn: its last node is stopped, and later started.
    order = [setup for _, setup in load.interleaved(names, 2)]
    assert order == [*names, *reversed(names)]


def test_a_survey_is_stored_alike_in_all_layouts_and_read_back(tmp_path: Path) -> None:
    survey = Survey(visits=4, detectors=1, nights=4, days_between=80.0)
    urls = {name: f"sqlite:{tmp_path}/{name}.db" for name in windows.LAYOUTS}
    begun: list[int] = []
    stored = base.load_survey(urls, survey, windows.LAYOUTS, [], "small", read_all=True, before=begun.append)
    assert begun == [0, 1, 2, 3]
    assert len({each.rows for each in stored.values()}) == 1
    assert all(len(each.seconds) == len(each.read_s) == 4 for each in stored.values())
    read = [[each.counts for each in cost.reads] for cost in stored.values()]
    assert read[0] == read[1] == read[2], "every database was read, and returned the same rows"
    assert [sum(each.values()) > 0 for each in read[0]] == [False, True, True, True]
    counts = []
    for url in urls.values():
        client = targets.Footprints(url, survey).connect()
        counts.append([client.run(number) for number in range(4)])
        client.close()
    assert counts[0] == counts[1] == counts[2]
    assert min(counts[0]) > 100


def test_a_read_of_a_survey_is_tried_again_while_nodes_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey = Survey(visits=2, detectors=1, nights=2)
    url, read, failures = f"sqlite:{tmp_path}/survey.db", base.ChronotileDriver.read, 2

    def unanswered(driver: base.ChronotileDriver, corners: Region, at: float) -> base.Footprint:
        nonlocal failures
        if failures:
            failures -= 1
            raise UnavailableError("no node answers", kind="unavailable")
        return read(driver, corners, at)

    monkeypatch.setattr(base.ChronotileDriver, "read", unanswered)
    how: dict[str, Any] = {"urls": {"a": url}, "survey": survey, "layouts": {"a": Layout()}, "nodes": []}
    with pytest.raises(UnavailableError):
        base.load_survey(**how, schema="small", tries=2)
    failures = 2
    (cost,) = base.load_survey(**how | {"urls": {"a": f"{url}-2"}}, schema="small", read_all=True, tries=3).values()
    assert (cost.failures, len(cost.read_s), len(cost.reads)) == (2, 2, 2)


def test_cones_are_rows_of_the_field_and_the_same_number_is_the_same_cone(tmp_path: Path) -> None:
    survey = Survey(visits=2, detectors=1, nights=2)
    url = f"sqlite:{tmp_path}/survey.db"
    base.load_survey({"a": url}, survey, {"a": Layout()}, [], "small")
    counts = []
    for _ in range(2):
        client = targets.Cones(url, survey).connect()
        counts.append([client.run(number) for number in range(4)])
        client.close()
    assert counts[0] == counts[1]
    assert len(set(counts[0])) > 1
    assert max(counts[0]) > 0


def test_a_starved_process_gets_little_time_and_is_never_left_suspended() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            process = Process.of(spinning.pid)
            assert process is not None
            with overload.CpuThrottle(0.8) as starver:
                starver.choose([process])
                before, began = process.cpu_s(), time.monotonic()
                while (passed := time.monotonic() - began) < 1.5:
                    time.sleep(0.05)
                assert process.cpu_s() - before < 0.5 * passed
                starver.choose([])
                before, began = process.cpu_s(), time.monotonic()
                while process.cpu_s() - before < 0.2:
                    assert time.monotonic() - began < 30
                    time.sleep(0.02)
                starver.choose([process])
            assert not process.stopped()
        finally:
            spinning.kill()


def test_consistency_levels_are_compared_on_a_cluster_that_exists(
    shared_cluster: lab.Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = shared_cluster.url(keyspace_of(request))
    out = tmp_path / "out"
    settings = experiments.Settings(quick=True, url=url, run_s=0.4)
    bench = experiments.run("consistency", out, settings, echo=lambda line: None)
    results = check_files(out)
    found = {(e["arm"], e["stream"], e["what"]): e["difference"] for e in results["comparisons"]}
    assert {arm for arm, _, _ in found} == {arms.CONTROL, "QUORUM", "ALL"}
    assert all(each["pairs"] == 5 and each["detectable"] > 0 for each in found.values())
    # Neither level makes reads of this size cheaper than half.
    assert found["ALL", "read", 50.0]["high"] > 0.5
    text = bench.report.text(table_text)
    assert "QUORUM over ONE, read" in text
    assert "1.15" in text
    with pytest.raises(InvalidInputError, match="holds data"):
        experiments.run("consistency", tmp_path / "again", settings, echo=lambda line: None)
    with historian.open(url) as plant:
        assert len(plant.tags()) == 20


Experiment = Callable[..., dict[str, Any]]


@pytest.fixture
def quick_experiment(lab_home: Path, tmp_path: Path) -> Experiment:
    """Runs an experiment on nodes of its own, and checks that none is left."""

    def run_it(name: str, heap: str = "300m", **settings: Any) -> dict[str, Any]:
        require_software()
        before = {each["name"] for each in making.survey()}
        out = tmp_path / name
        experiments.run(name, out, experiments.Settings(quick=True, heap=heap, **settings), echo=lambda line: None)
        assert {each["name"] for each in making.survey()} == before
        return check_files(out)

    return run_it


@pytest.mark.slow
def test_requests_are_answered_by_every_setup(quick_experiment: Experiment) -> None:
    found = quick_experiment("requests")["per_second"]
    assert set(found) == {name for kind in "ABCD" for name in (kind, f"{kind} from values")}
    assert all(set(each) == {"1 node", "3 nodes", "3 nodes, 2 live"} for each in found.values())
    assert all(speed > 0 for each in found.values() for speed in each.values())


@pytest.mark.slow
def test_nodes_are_compared_while_some_of_them_are_starved(quick_experiment: Experiment) -> None:
    # How much slower a starved node is, other work on the machine may drown: another test sees that it is starved.
    results = quick_experiment("overload")
    assert set(results["mean_ms"]) == {"none", "one node", "two nodes", "three nodes"}
    assert all(len(means) == 3 and min(means) > 0 for means in results["mean_ms"].values())
    assert {each["arm"] for each in results["comparisons"]} > {"one node", "two nodes", "three nodes"}


@pytest.mark.slow
def test_reads_grow_until_the_cluster_falls_behind(quick_experiment: Experiment) -> None:
    steps = list(quick_experiment("growing-reads")["steps"].values())
    assert len(steps) >= 5
    assert steps[-1]["p50_ms"] > steps[0]["p50_ms"]


@pytest.mark.slow
def test_hints_are_written_while_a_node_is_away_and_delivered_when_it_is_back(quick_experiment: Experiment) -> None:
    short, long = quick_experiment("outage")["outages"]
    assert 0 < short["hints"] < long["hints"]
    assert 0 < short["bytes"] < long["bytes"]
    assert min(each["delivery_s"] for each in (short, long)) >= 0


@pytest.mark.slow
def test_a_fourth_node_takes_a_share_that_the_others_drop_in_the_cleanup(quick_experiment: Experiment) -> None:
    found = quick_experiment("expansion")["expansion"]
    assert [len(found[name]) for name in ("before", "joined", "cleaned")] == [3, 4, 4]
    assert sum(found["joined"]) > 1.15 * sum(found["before"])
    assert sum(found["cleaned"]) < 1.1 * sum(found["before"])
    assert all(new < old for new, old in zip(found["cleaned"][:3], found["before"], strict=True))
    assert sum(found["growth_after"]) == pytest.approx(sum(found["growth_before"]), rel=0.15)


@pytest.mark.slow
def test_copies_cost_processor_time_and_a_plan_can_be_made(quick_experiment: Experiment, tmp_path: Path) -> None:
    results = quick_experiment("scaling")
    one, three = results["setups"]["3 nodes, RF 1"], results["setups"]["3 nodes, RF 3"]
    assert three["read_node_s"] > one["read_node_s"]
    assert three["bytes_per_row"] == pytest.approx(one["bytes_per_row"], rel=0.5)
    measured = load.Measured.from_results(tmp_path / "scaling" / "results.json")
    assert load.plan(measured, SURVEY, load.Cluster()).read_s > 0


@pytest.mark.slow
def test_windows_divide_the_same_rows_differently(quick_experiment: Experiment) -> None:
    # Three layouts are more than a hundred tables: nodes with less spend their time collecting garbage.
    found = quick_experiment("windows", heap="512m")["layouts"]
    assert found["months"]["tables"] > 2 * found["months_in_a_year"]["tables"]
    assert found["months"]["partition_bytes"] < found["a_year"]["partition_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("pair", [("3.11", "4.0"), ("4.1", "5.0")])
def test_two_versions_are_compared_side_by_side(quick_experiment: Experiment, pair: tuple[str, str]) -> None:
    results = quick_experiment("versions", versions=pair)
    names = set(results["histograms"])
    assert {name.rsplit(".", 1)[0] for name in names} == {f"Cassandra {version}" for version in pair}
    for name in names:
        assert results["histograms"][name]["Read Latency 99%"] > 0
        assert set(results["maintenance_s"][name]) == {"no-op", "repair", "compact", "garbagecollect"}


@pytest.mark.slow
def test_an_interrupted_experiment_leaves_no_node(lab_home: Path, tmp_path: Path) -> None:
    require_software()
    before = {each["name"] for each in making.survey()}
    command = [sys.executable, "-m", "chronotile", "bench", "cluster", "overload", "--quick", "--out", tmp_path / "out"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        # Nodes run, and the first values are on their way.
        assert any("storing" in line for line in process.stderr)
        assert [each for each in making.survey() if each["name"] not in before]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert {each["name"] for each in making.survey()} == before
