"""Discrete-event simulation of reads on a cluster, for quantities without a formula, such as tail latency with slow
nodes.

A node is a queue with as many servers as it has cores, first come, first served. A client sends a request to one of the
replicas of its partition, the coordinator. After some work, the coordinator asks as many replicas as must answer, which
may include itself, and replies once they have answered. Not simulated: disks, pauses for garbage collection, and
network congestion.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from chronotile.errors import InvalidInputError

__all__ = ["Clients", "Nodes", "Outcome", "Policy", "hint_delivery_s", "simulate"]

_EWMA = 0.25
"""Weight of a new latency in a coordinator's estimate of a replica's."""
_EXPLORED = 0.02
"""Share of requests whose replicas are chosen at random, so that estimates of slow replicas are updated."""


@dataclass(frozen=True)
class Nodes:
    """A cluster.

    Attributes
    ----------
    count, cores : int
        Nodes, and cores of each.
    replication, answers : int
        Replication factor, and replicas that must answer.
    coordinate_ms, read_ms : float
        Mean processor time of a request at its coordinator and at each replica asked; exponential.
    network_ms : float
        Latency between any two nodes, one way.
    slow : dict of int to float
        Factors on the processor time of slow nodes.
    delay_ms : dict of int to (float, float)
        Mean time that a request waits for a processor on a node that other programs keep busy: at a coordinator, and at
        a replica that another node asks; exponential.
    hung : dict of int to float
        Nodes that do not answer, each with the second at which all others notice: they then stop asking it, and repeat
        pending requests.
    down : set of int
        Nodes that all others know to be down.
    replays_per_s, replay_ms : dict of int to float, float
        Hints delivered to a node per second, and the processor time of each.
    """

    count: int = 3
    cores: int = 4
    replication: int = 3
    answers: int = 2
    coordinate_ms: float = 0.5
    read_ms: float = 1.0
    network_ms: float = 0.1
    slow: Mapping[int, float] = field(default_factory=dict)
    delay_ms: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    hung: Mapping[int, float] = field(default_factory=dict)
    down: frozenset[int] = frozenset()
    replays_per_s: Mapping[int, float] = field(default_factory=dict)
    replay_ms: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.answers <= self.replication <= self.count or self.cores < 1:
            raise InvalidInputError(
                "use 1 or more cores, and answers <= replication <= count", kind="invalid-setting"
            )  # fmt: skip
        if min(self.coordinate_ms, self.read_ms, self.network_ms, self.replay_ms) < 0:
            raise InvalidInputError("times must be 0 or more", kind="invalid-setting")
        live = self.replication - len(self.down)
        if live < self.answers:
            raise InvalidInputError(
                f"{len(self.down)} nodes down may leave fewer than {self.answers} replicas", kind="invalid-setting"
            )


@dataclass(frozen=True)
class Policy:
    """Replica selection and speculation.

    Attributes
    ----------
    fastest : bool
        Coordinators ask the replicas with the lowest recent latencies; otherwise random ones.
    server_ms : float, optional
        Time after which a coordinator asks one more replica (`speculative_retry`).
    client_ms : float, optional
        Time after which a client also sends the request to another replica (`speculative_ms`).
    """

    fastest: bool = True
    server_ms: float | None = None
    client_ms: float | None = None


@dataclass(frozen=True)
class Clients:
    """Clients that send a request, wait for its answer, and think.

    Attributes
    ----------
    count : int
        Number of clients.
    think_ms : float
        Mean time from an answer to the next request; exponential.
    at : int, optional
        The coordinator of all requests; by default a replica of a random partition.
    """

    count: int
    think_ms: float
    at: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Answered requests.

    Attributes
    ----------
    latency_ms, sent_ms : array, array
        Latency and time of sending of each request, in the order of sending.
    per_s : float
        Answers per second.
    busy : float
        Mean share of time for which cores were busy.
    extra : float
        Additional requests to coordinators and replicas due to speculation, per answer.
    """

    latency_ms: np.ndarray
    sent_ms: np.ndarray
    per_s: float
    busy: float
    extra: float

    def percentile(self, share: float) -> float:
        """Latency in milliseconds at this percentile."""
        return float(np.percentile(self.latency_ms, share))


def simulate(
    nodes: Nodes, clients: Clients, *, requests: int, policy: Policy | None = None, warm_up: float = 0.2, seed: int = 1
) -> Outcome:
    """Simulate until `requests` requests are answered; the first share `warm_up` of them is left out."""
    return _Simulation(nodes, clients, policy or Policy(), seed).run(requests, warm_up)


class _Request:
    __slots__ = ("asked", "client", "done", "place", "sent")

    def __init__(self, client: int, place: int, sent: float) -> None:
        self.client = client
        self.place = place
        self.sent = sent
        self.done = False
        self.asked = 0


class _Attempt:
    """A request at one coordinator."""

    __slots__ = ("answers", "at", "request", "spare")

    def __init__(self, request: _Request, at: int) -> None:
        self.request = request
        self.at = at
        self.answers = 0
        self.spare: list[int] = []


class _Simulation:
    """Times are milliseconds. Events are functions, run in order of time."""

    def __init__(self, nodes: Nodes, clients: Clients, policy: Policy, seed: int) -> None:
        self.nodes, self.clients, self.policy = nodes, clients, policy
        self.random = random.Random(seed)
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.number = 0
        self.now = 0.0
        self.free = [[0.0] * nodes.cores for _ in range(nodes.count)]
        self.busy = 0.0
        self.estimates = [dict.fromkeys(range(nodes.count), 0.0) for _ in range(nodes.count)]
        self.answered: list[tuple[float, float]] = []
        self.extra = 0

    def at(self, time: float, event: Callable[..., None], *arguments: object) -> None:
        # The number decides between events of the same time, because functions cannot be compared.
        self.number += 1
        heapq.heappush(self.events, (time, self.number, event, arguments))

    def run(self, requests: int, warm_up: float) -> Outcome:
        for client in range(self.clients.count):
            self.at(self.random.uniform(0, max(self.clients.think_ms, 0.01)), self.send, client)
        for node in self.nodes.replays_per_s:
            self.at(0.0, self.replay, node)
        skipped = int(requests * warm_up)
        began, busy, extra = 0.0, 0.0, 0
        while len(self.answered) < requests:
            self.now, _, event, arguments = heapq.heappop(self.events)
            event(*arguments)
            if began == 0.0 and len(self.answered) >= skipped:
                began, busy, extra = self.now, self.busy, self.extra
        seconds = (self.now - began) / 1e3
        kept = sorted(self.answered[skipped:])
        return Outcome(
            latency_ms=np.array([latency for _, latency in kept]),
            sent_ms=np.array([sent for sent, _ in kept]),
            per_s=len(kept) / seconds,
            busy=(self.busy - busy) / 1e3 / seconds / (self.nodes.count * self.nodes.cores),
            extra=(self.extra - extra) / len(kept),
        )

    # ------------------------------------------------------------------ requests

    def send(self, client: int) -> None:
        request = _Request(client, self.random.randrange(self.nodes.count), self.now)
        self.ask_coordinator(request)
        if self.policy.client_ms is not None:
            self.at(self.now + self.policy.client_ms, self.speculate_client, request)

    def ask_coordinator(self, request: _Request) -> None:
        places = self.live_replicas(request.place)
        chosen = self.clients.at
        if chosen is None:
            if request.asked == 0:
                self.random.shuffle(places)
                request.place = places[0]
            first = places.index(request.place) if request.place in places else 0
            chosen = places[(first + request.asked) % len(places)]
        request.asked += 1
        self.at(self.now + self.nodes.network_ms, self.coordinate, _Attempt(request, chosen))

    def speculate_client(self, request: _Request) -> None:
        if not request.done:
            self.extra += 1
            self.ask_coordinator(request)

    def coordinate(self, attempt: _Attempt) -> None:
        if attempt.at in self.nodes.hung:
            self.at(self.nodes.hung[attempt.at] * 1e3, self.repeat, attempt.request)
            return
        delay = self.waiting(attempt.at, 0)
        self.work(attempt.at, self.nodes.coordinate_ms, delay, self.ask_replicas, attempt)

    def repeat(self, request: _Request) -> None:
        if not request.done:
            self.ask_coordinator(request)

    def ask_replicas(self, attempt: _Attempt) -> None:
        places = self.live_replicas(attempt.request.place)
        self.random.shuffle(places)
        # If estimates are equal, as at the start, the coordinator asks itself first.
        places.sort(key=lambda place: place != attempt.at)
        if self.policy.fastest and self.random.random() >= _EXPLORED:
            places.sort(key=self.estimates[attempt.at].__getitem__)
        attempt.spare = places[self.nodes.answers :]
        for place in places[: self.nodes.answers]:
            self.ask_replica(attempt, place)
        if self.policy.server_ms is not None and attempt.spare:
            self.at(self.now + self.policy.server_ms, self.speculate_server, attempt)

    def speculate_server(self, attempt: _Attempt) -> None:
        if attempt.answers < self.nodes.answers and not attempt.request.done and attempt.spare:
            self.extra += 1
            self.ask_replica(attempt, attempt.spare.pop(0))

    def ask_replica(self, attempt: _Attempt, place: int) -> None:
        away = 0.0 if place == attempt.at else self.nodes.network_ms
        self.at(self.now + away, self.read, attempt, place, self.now)

    def read(self, attempt: _Attempt, place: int, asked: float) -> None:
        if place in self.nodes.hung:
            self.at(self.nodes.hung[place] * 1e3, self.speculate_server, attempt)
            return
        delay = 0.0 if place == attempt.at else self.waiting(place, 1)
        self.work(place, self.nodes.read_ms, delay, self.reply, attempt, place, asked)

    def reply(self, attempt: _Attempt, place: int, asked: float) -> None:
        away = 0.0 if place == attempt.at else self.nodes.network_ms
        self.at(self.now + away, self.answer, attempt, place, asked)

    def answer(self, attempt: _Attempt, place: int, asked: float) -> None:
        estimates = self.estimates[attempt.at]
        estimates[place] += _EWMA * (self.now - asked - estimates[place])
        attempt.answers += 1
        request = attempt.request
        if attempt.answers == self.nodes.answers and not request.done:
            request.done = True
            latency = self.now + self.nodes.network_ms - request.sent
            self.answered.append((request.sent, latency))
            self.at(self.now + self.nodes.network_ms + self.thought(), self.send, request.client)

    def replay(self, node: int) -> None:
        self.work(node, self.nodes.replay_ms, 0.0, _nothing)
        self.at(self.now + self.random.expovariate(self.nodes.replays_per_s[node] / 1e3), self.replay, node)

    # ------------------------------------------------------------------ nodes

    def live_replicas(self, place: int) -> list[int]:
        """Replicas not known to be down: the copies of a partition are on consecutive nodes of the ring."""
        nodes = self.nodes
        ring = [(place + step) % nodes.count for step in range(nodes.replication)]
        return [node for node in ring if node not in nodes.down and not self.is_noticed(node)]

    def is_noticed(self, node: int) -> bool:
        until = self.nodes.hung.get(node)
        return until is not None and self.now >= until * 1e3

    def work(self, node: int, mean_ms: float, delay: float, event: Callable[..., None], *arguments: object) -> None:
        """Queue for a core; then run the event."""
        took = self.random.expovariate(1 / mean_ms) * self.nodes.slow.get(node, 1.0) if mean_ms else 0.0
        # A heap of times, of which the first is that of the core that is free first.
        free = self.free[node]
        ends = max(self.now, free[0]) + took
        heapq.heapreplace(free, ends)
        self.busy += took
        self.at(ends + delay, event, *arguments)

    def waiting(self, node: int, role: int) -> float:
        mean = self.nodes.delay_ms.get(node, (0.0, 0.0))[role]
        return self.random.expovariate(1 / mean) if mean else 0.0

    def thought(self) -> float:
        return self.random.expovariate(1 / self.clients.think_ms) if self.clients.think_ms else 0.0


def _nothing() -> None:
    """Event at the end of a replayed hint: no request waits for it."""


def hint_delivery_s(missed_bytes: float, *, throttle_bytes_per_s: float = 2**20, threads: int = 2) -> float:
    """Seconds to deliver this many bytes of hints to one node. Cassandra divides the throttle of a thread by the number
    of other nodes, so that in total they send `threads` times the throttle, regardless of their number.
    """
    return missed_bytes / (throttle_bytes_per_s * threads)
