"""Targets of experiments: process history and survey footprints. The same number always gives the same operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from chronotile import historian
from chronotile_tools.survey.simulate.drivers import ChronotileDriver
from chronotile_tools.survey.simulate.universe import PADDING_DEG, Survey

__all__ = ["REQUESTS", "Aggregates", "Cones", "Footprints", "History", "Ranges", "Writes"]

S = 10**9
DAY_S = 86_400
START_NS = 1_767_225_600 * S
"""2026-01-01T00:00 UTC."""

# Large primes spread operations over tags and days without a pattern.
_TAG_STEP, _DAY_STEP = 7_919, 104_729

REQUESTS = {"A": (1, 1, 3_600), "B": (10, 1, 3_600), "C": (1, 7, 21_600), "D": (1, 30, 86_400)}
"""Tags, days, and seconds of an interval, of the published requests."""


@dataclass(frozen=True)
class History:
    """Process data in an archive: `tags` tags with a value every `step_s` seconds for `days` days.

    Attributes
    ----------
    url : str
        URL of the archive.
    decimals : int
        Decimals of a value. With two, a value takes less than a byte; with fifteen, about seven bytes.
    """

    url: str
    tags: int
    days: int
    step_s: int
    decimals: int = 2

    @property
    def values(self) -> int:
        """Total number of values."""
        return self.tags * self.days * DAY_S // self.step_s

    def tag(self, number: int) -> str:
        """Name of a tag by number, modulo the number of tags."""
        return f"plant.sensor{number % self.tags:05}"

    def store(self) -> None:
        """Define the tags, store their values day by day, and compute hourly statistics."""
        with historian.open(self.url) as plant:
            defined = plant.define_many([{"name": self.tag(place)} for place in range(self.tags)])
            self._write(plant, np.array([tag.number for tag in defined]), range(self.days))
            plant.maintain()

    def extend(self, days: range) -> None:
        """Store further days by number; the days of the history are numbered from 0."""
        with historian.open(self.url, create=False) as plant:
            self._write(plant, np.array([plant.tag(self.tag(place)).number for place in range(self.tags)]), days)

    def _write(self, plant: historian.Historian, numbers: Any, days: range) -> None:
        for day in days:
            plant.write(self._day(numbers, day), batch=f"day-{day}")

    def _day(self, numbers: Any, day: int) -> Any:
        """A random walk between 0 and 1 for each tag."""
        count = DAY_S // self.step_s
        rng = np.random.default_rng([1, day])
        walk = np.cumsum(rng.normal(0, 0.004, (self.tags, count)), axis=1) + rng.random((self.tags, 1))
        times = START_NS + (day * DAY_S + np.arange(count) * self.step_s) * S
        return pa.table(
            {
                "tag": np.repeat(numbers, count),
                "time": pa.array(np.tile(times, self.tags), pa.timestamp("ns", "UTC")),
                "value": np.round(np.abs((walk + 1) % 2 - 1), self.decimals).ravel(),
            }
        )


class _Plant:
    """A client of a historian, or of a service."""

    def __init__(self, url: str, history: History) -> None:
        self.history = history
        self.plant = historian.connect(url) if url.startswith("http") else historian.open(url, create=False)
        # Read definitions now, not in the first measured operation.
        self.numbers = [self.plant.tag(history.tag(place)).number for place in range(history.tags)]

    def tag(self, number: int) -> int:
        return self.numbers[number * _TAG_STEP % len(self.numbers)]

    def close(self) -> None:
        self.plant.close()


@dataclass(frozen=True)
class Aggregates:
    """Interval averages: one of the published requests A to D.

    Attributes
    ----------
    url : str
        Archive URL with the consistency level.
    history : History
        Content of the archive.
    kind : {"A", "B", "C", "D"}
        Published request.
    points_only : bool
        Compute from values, without hourly statistics.
    """

    url: str
    history: History
    kind: str
    points_only: bool = False

    def connect(self) -> _AggregatesClient:
        """A new client."""
        return _AggregatesClient(self)


class _AggregatesClient(_Plant):
    def __init__(self, asked: Aggregates) -> None:
        super().__init__(asked.url, asked.history)
        self.asked = asked
        self.tags_each, self.days, self.interval_s = REQUESTS[asked.kind]

    def run(self, number: int) -> int:
        days = min(self.days, self.history.days)
        first = number * _DAY_STEP % (self.history.days - days + 1)
        start = START_NS + first * DAY_S * S
        tags = [self.tag(number * self.tags_each + place) for place in range(self.tags_each)]
        found = self.plant.aggregate(
            sorted(set(tags)), start, start + days * DAY_S * S, self.interval_s * S, "Average",
            points_only=self.asked.points_only,
        )  # fmt: skip
        return int(found.to_arrow().num_rows)


@dataclass(frozen=True)
class Ranges:
    """Values of a tag in a range of up to `days` days; with `growing`, of increasing length."""

    url: str
    history: History
    days: float
    growing: bool = False

    def connect(self) -> _RangesClient:
        """A new client."""
        return _RangesClient(self)


class _RangesClient(_Plant):
    def __init__(self, asked: Ranges) -> None:
        super().__init__(asked.url, asked.history)
        self.asked = asked

    def run(self, number: int) -> int:
        share = (number * 37 % 100 + 1) / 100 if self.asked.growing else 1.0
        length = int(min(self.asked.days * share, self.history.days) * DAY_S) * S
        last = self.history.days * DAY_S * S - length
        start = START_NS + number * _DAY_STEP * S % (last + 1)
        return int(self.plant.raw(self.tag(number), start, start + length).to_arrow().num_rows)


@dataclass(frozen=True)
class Writes:
    """Batches of `values` new values, spread over as many tags as possible.

    Attributes
    ----------
    run : int
        Each run writes to its own days after the history, so it is independent of earlier runs.
    """

    url: str
    history: History
    values: int
    run: int

    def connect(self) -> _WritesClient:
        """A new client."""
        return _WritesClient(self)


class _WritesClient(_Plant):
    def __init__(self, asked: Writes) -> None:
        super().__init__(asked.url, asked.history)
        self.asked = asked
        count = asked.values
        self.tags = np.resize(np.array(self.numbers), count)
        self.offsets = np.arange(count) // len(self.numbers) * 1_000_000
        self.values = np.round(np.random.default_rng(2).random(count), 2)

    def run(self, number: int) -> int:
        first = START_NS + (self.history.days + 1 + self.asked.run) * DAY_S * S + number * S
        times = pa.array(first + self.offsets, pa.timestamp("ns", "UTC"))
        return self.plant.write({"tag": self.tags, "time": times, "value": self.values}).points


@dataclass(frozen=True)
class Footprints:
    """All three tables of a detector's footprint over twelve months: the read of an alert production database."""

    url: str
    survey: Survey

    def connect(self) -> _FootprintsClient:
        """A new client."""
        return _FootprintsClient(self)


class _FootprintsClient:
    def __init__(self, asked: Footprints) -> None:
        self.survey = asked.survey
        self.driver = ChronotileDriver(asked.url)
        self.at = asked.survey.time(asked.survey.visits - 1) + 1 / 24

    def run(self, number: int) -> int:
        visit, detector = number % self.survey.visits, number % self.survey.detectors
        counts = self.driver.read(self.survey.footprint(visit, detector, PADDING_DEG), self.at).counts
        return sum(counts.values())

    def close(self) -> None:
        self.driver.close()


@dataclass(frozen=True)
class Cones:
    """All three tables around a position in a survey's field: the read of another client."""

    url: str
    survey: Survey
    radius_deg: float = 0.05

    def connect(self) -> _ConesClient:
        """A new client."""
        return _ConesClient(self)


class _ConesClient:
    def __init__(self, asked: Cones) -> None:
        self.asked = asked
        self.driver = ChronotileDriver(asked.url)
        self.at = asked.survey.time(asked.survey.visits - 1) + 1 / 24

    def run(self, number: int) -> int:
        survey = self.asked.survey
        ra, dec = survey.pointing(number % survey.visits)
        east, north = np.random.default_rng([survey.seed, 4, number]).uniform(-0.1, 0.1, 2)
        return sum(self.driver.cone(ra + east, dec + north, self.asked.radius_deg, self.at).values())

    def close(self) -> None:
        self.driver.close()
