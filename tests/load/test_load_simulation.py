"""The simulation of reads agrees with queueing theory where there is any, and policies do what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chronotile.errors import InvalidInputError
from chronotile_tools.load.simulation import Clients, Nodes, Outcome, Policy, hint_delivery_s, simulate

ALONE = Nodes(1, cores=1, replication=1, answers=1, coordinate_ms=0.0, read_ms=1.0, network_ms=0.0)
IDLE = Clients(1, think_ms=50.0)


def mean(found: Outcome) -> float:
    return float(found.latency_ms.mean())


@pytest.mark.parametrize("count", [1, 12])
def test_one_server_and_thinking_clients_have_the_exact_throughput_and_latency(count: int) -> None:
    queued = latency = 0.0
    think = 10.0
    for clients in range(1, count + 1):  # mean value analysis (Reiser & Lavenberg 1980)
        latency = 1.0 + queued
        queued = clients / (think + latency) * latency
    found = simulate(ALONE, Clients(count, think), requests=20_000)
    assert mean(found) == pytest.approx(latency, rel=0.05)
    assert found.per_s == pytest.approx(1e3 * count / (think + latency), rel=0.03)
    assert found.busy == pytest.approx(count / (think + latency), rel=0.03)


@pytest.mark.parametrize(("answers", "expected"), [(1, 1.0), (2, 1.5), (3, 1 + 1 / 2 + 1 / 3)])
def test_an_idle_request_waits_for_the_slowest_of_the_replicas_that_must_answer(answers: int, expected: float) -> None:
    nodes = Nodes(5, answers=answers, coordinate_ms=0.0, read_ms=2.0, network_ms=0.0)
    found = simulate(nodes, IDLE, requests=8_000, policy=Policy(fastest=False))
    assert mean(found) == pytest.approx(2 * expected, rel=0.05)


def test_network_and_coordinator_add_to_an_idle_request() -> None:
    nodes = Nodes(1, replication=1, answers=1, coordinate_ms=3.0, read_ms=0.0, network_ms=0.5)
    assert mean(simulate(nodes, IDLE, requests=5_000)) == pytest.approx(3.0 + 2 * 0.5, rel=0.05)
    remote = Nodes(2, replication=2, answers=2, coordinate_ms=0.0, read_ms=0.0, network_ms=0.5)
    assert mean(simulate(remote, IDLE, requests=10)) == pytest.approx(4 * 0.5)


def test_saturated_throughput_goes_with_the_cores_and_the_work_of_a_request() -> None:
    nodes = Nodes(4, cores=2, coordinate_ms=1.0, read_ms=2.0, network_ms=0.0)
    found = simulate(nodes, Clients(400, 0.0), requests=10_000)
    # A little less than all: now and then a core waits while others have a queue.
    assert found.per_s == pytest.approx(0.95 * 1e3 * 4 * 2 / (1 + 2 * 2), rel=0.05)
    assert found.per_s == pytest.approx(found.busy * 1e3 * 4 * 2 / (1 + 2 * 2), rel=0.03)
    one_down = dataclasses.replace(nodes, down=frozenset({1}))
    assert simulate(one_down, Clients(400, 0.0), requests=10_000).per_s == pytest.approx(found.per_s * 3 / 4, rel=0.05)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    first, again, other = (simulate(Nodes(), Clients(9, 5.0), requests=500, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.latency_ms, again.latency_ms)
    assert np.array_equal(first.sent_ms, again.sent_ms)
    assert not np.array_equal(first.latency_ms, other.latency_ms)
    assert (np.diff(first.sent_ms) >= 0).all()


SLOW = Nodes(12, slow={5: 20.0})
SOME = Clients(100, 100.0)


def p99(policy: Policy, nodes: Nodes = SLOW) -> float:
    return simulate(nodes, SOME, requests=8_000, policy=policy).percentile(99)


def test_choosing_the_fastest_replicas_leaves_what_a_slow_node_coordinates() -> None:
    assert p99(Policy(fastest=True)) < 0.7 * p99(Policy(fastest=False))


def test_a_client_that_asks_again_bounds_what_a_slow_coordinator_costs() -> None:
    nodes = Nodes(12, coordinate_ms=1.0, slow={5: 100.0})
    waits, asks = p99(Policy(), nodes), p99(Policy(client_ms=20.0), nodes)
    assert waits > 100
    assert 20 < asks < 45


def test_a_coordinator_that_asks_again_helps_where_replicas_are_slow() -> None:
    nodes = Nodes(12, delay_ms={5: (0.0, 200.0)})
    blind = Policy(fastest=False)
    assert p99(blind, nodes) > 200
    assert p99(dataclasses.replace(blind, server_ms=10.0), nodes) < 60


def test_nothing_is_asked_again_where_everything_is_fast() -> None:
    found = simulate(Nodes(), IDLE, requests=2_000, policy=Policy(client_ms=500.0, server_ms=500.0))
    assert found.extra == 0
    eager = simulate(Nodes(), IDLE, requests=2_000, policy=Policy(client_ms=0.0))
    assert eager.extra == pytest.approx(1.0, abs=0.01)


def test_requests_to_a_hung_node_wait_until_it_is_noticed_or_are_asked_again() -> None:
    nodes = Nodes(3, hung={2: 1.0})
    waited = simulate(nodes, Clients(30, 20.0), requests=4_000, warm_up=0.0)
    early = waited.latency_ms[waited.sent_ms < 500]
    assert early.max() == pytest.approx(1_000, rel=0.05)
    assert waited.latency_ms[waited.sent_ms > 1_000].max() < 50, "nobody asks it any more"
    again = simulate(
        nodes, Clients(30, 20.0), requests=4_000, warm_up=0.0, policy=Policy(client_ms=100.0, server_ms=10.0)
    )
    assert again.latency_ms[again.sent_ms < 500].max() < 150


def test_waits_of_a_node_count_as_coordinator_and_for_others_but_not_for_itself() -> None:
    nodes = Nodes(3, delay_ms={0: (7.0, 30.0)}, coordinate_ms=0.1, read_ms=0.1, network_ms=0.0)
    own, other = (
        mean(simulate(nodes, Clients(1, 20.0, at=at), requests=4_000, policy=Policy(fastest=False))) for at in (0, 1)
    )
    assert own == pytest.approx(7.0, rel=0.1)
    assert other == pytest.approx(30.0 / 2, rel=0.1), "one of two reads at node 1 asks it"


def test_replayed_hints_take_time_of_their_node() -> None:
    quiet = Nodes(3, cores=1)
    busy = dataclasses.replace(quiet, replays_per_s={0: 5_000}, replay_ms=0.1)
    found = simulate(busy, IDLE, requests=3_000)
    assert found.busy == pytest.approx(simulate(quiet, IDLE, requests=3_000).busy + 0.5 / 3, rel=0.05)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Nodes(2),
        lambda: Nodes(answers=0),
        lambda: Nodes(answers=4),
        lambda: Nodes(cores=0),
        lambda: Nodes(read_ms=-1.0),
        lambda: Nodes(down=frozenset({0, 1})),
    ],
)
def test_clusters_that_cannot_answer_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_hints_are_delivered_at_the_throttle_of_all_threads() -> None:
    assert hint_delivery_s(600 * 2**20) == 300
    assert hint_delivery_s(600 * 2**20, throttle_bytes_per_s=2 * 2**20, threads=1) == 300
