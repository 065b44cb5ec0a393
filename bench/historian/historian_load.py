"""Concurrent requests: each system in separate blocks, and an open loop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from historian_systems import other_points

from chronotile_tools import load

if TYPE_CHECKING:
    from historian_systems import Client, Opening, Request, System

WARM_UP_S = 3.0
DRAIN_S = 10.0
CLIENTS = 4
"""Maximum number of concurrent requests of one kind."""


def in_blocks(
    systems: list[System], requests: Iterable[Request], blocks: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    """Requests per second by system and kind, a figure for each block.

    In each block every system answers requests of one kind, one after the other, for `seconds`; then the next system
    does. The first block warms up and is discarded.
    """
    by_kind = _by_kind(requests)
    rates: dict[str, dict[str, list[float]]] = {system.name: {kind: [] for kind in by_kind} for system in systems}
    for block in range(blocks + 1):
        for kind, chosen in by_kind.items():
            for system in systems:
                rate = _rate(system.client, chosen, block, seconds)
                if block:
                    rates[system.name][kind].append(rate)
    return rates


def _by_kind(requests: Iterable[Request]) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in requests:
        found.setdefault(request.name, []).append(request)
    return found


def _rate(client: Client, requests: list[Request], first: int, seconds: float) -> float:
    turns = itertools.islice(itertools.cycle(requests), first, None)
    began, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds or count < 2:
        client.answer(next(turns))
        count += 1
    return count / spent


@dataclass(frozen=True)
class ReadLoad:
    """Requests of one kind, as a target of the load generator."""

    opening: Opening
    requests: list[Request]

    def connect(self) -> _ReadClient:
        return _ReadClient(self.opening.connect(), self.requests)


class _ReadClient:
    def __init__(self, client: Client, requests: list[Request]) -> None:
        self.client, self.requests = client, requests
        # Warm up: read the catalog before the first measured request.
        self.run(0)

    def run(self, number: int) -> int:
        return len(self.client.answer(self.requests[number % len(self.requests)]))

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True)
class WriteLoad:
    """Writes of `count` points of other tags, as a target of the load generator."""

    opening: Opening
    count: int

    def connect(self) -> _WriteClient:
        return _WriteClient(self.opening.connect(), self.count)


class _WriteClient:
    def __init__(self, client: Client, count: int) -> None:
        self.client, self.count = client, count
        # Warm up: define the tags before the first measured write.
        self.run(0)

    def run(self, number: int) -> int:
        self.client.write(other_points(number, self.count))
        return self.count

    def close(self) -> None:
        self.client.close()


def open_loop(
    opening: Opening, requests: Iterable[Request], rate: float, seconds: float, writes: int, write_every_s: float
) -> dict[str, load.Recording]:
    """Recordings by kind of request, and one of the writes.

    In total `rate` requests a second arrive, in equal shares of the kinds, at times that are independent of each other
    and of all answers (Poisson), while `writes` values a second are written, in one write every `write_every_s`
    seconds. A separate process runs all of it.
    """
    by_kind = _by_kind(requests)
    streams = []
    for place, (kind, chosen) in enumerate(by_kind.items()):
        schedule = load.Schedule.poisson(rate / len(by_kind), seconds, warm_up_s=WARM_UP_S, seed=place)
        streams.append(load.Stream(kind, ReadLoad(opening, chosen), schedule, CLIENTS))
    if writes:
        schedule = load.Schedule.fixed(1 / write_every_s, seconds, warm_up_s=WARM_UP_S)
        streams.append(load.Stream("writes", WriteLoad(opening, round(writes * write_every_s)), schedule, CLIENTS))
    with load.Generator(processes=1) as generator:
        return generator.run(streams, drain_s=DRAIN_S)
