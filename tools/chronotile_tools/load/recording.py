"""Recordings of a load run: times of every operation, and their histograms.

Every operation has three times. *Service*: from its start to its end. *Waiting*: from its intended start to its start,
which grows when the system cannot keep up. *Response*: the sum of both, as experienced by a client that arrives at the
intended start. A load generator that measures only service time omits clients that would have arrived during a stall
(coordinated omission).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader, HistogramLogWriter

__all__ = ["DONE", "FAILED", "PARTS", "TIMED_OUT", "UNSERVED", "Latency", "Part", "Recording", "merged", "read_log"]

DONE, TIMED_OUT, FAILED, UNSERVED = range(4)
"""Outcomes of an operation. Unserved: not started by the end of the run; its time is a lower bound."""

Part = Literal["response", "service", "waiting"]
PARTS: tuple[Part, ...] = ("response", "service", "waiting")

_US_MAX, _DIGITS = 3_600_000_000, 3
_SATURATED_SHARE = 0.05


def new_histogram() -> Any:
    """An empty histogram of microseconds up to an hour, to three significant digits."""
    return HdrHistogram(1, _US_MAX, _DIGITS)


def _histogram(nanoseconds: Any) -> Any:
    histogram = new_histogram()
    # The histogram holds values from 1 to its maximum only.
    microseconds = np.clip(-(-nanoseconds // 1_000), 1, _US_MAX)
    values, counts = np.unique(microseconds, return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        histogram.record_value(value, count)
    return histogram


@dataclass(frozen=True)
class Latency:
    """The distribution of one kind of time, in milliseconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, histogram: Any) -> Latency:
        """From a histogram of microseconds."""
        at = histogram.get_percentile_to_value_dict([50.0, 95.0, 99.0, 99.9])
        p50, p95, p99, p999 = (at.get(share, 0) / 1e3 for share in (50.0, 95.0, 99.0, 99.9))
        mean, most = histogram.get_mean_value() / 1e3, histogram.get_max_value() / 1e3
        return cls(histogram.get_total_count(), mean, p50, p95, p99, p999, most)


@dataclass(frozen=True, eq=False)
class Recording:
    """Counted operations of one stream, in the order in which they were due.

    Attributes
    ----------
    name : str
        Name of the stream.
    due_ns, started_ns, ended_ns : array of int64
        Intended start, start and end of each operation, in nanoseconds from the start of the run.
    outcome : array of uint8
        :data:`DONE`, :data:`TIMED_OUT`, :data:`FAILED` or :data:`UNSERVED`. Distributions include operations of all
        outcomes.
    rows : array of int64
        Rows returned or stored by each operation.
    worker : array of uint8
        The process that ran it.
    end_ns : int
        The end of the period in which operations became due.
    clients : int
        Maximum number of concurrent operations.
    errors : dict
        Errors by kind, with one message each.
    client_cpu_s : float
        Total processor time of the load generator's processes, for all streams.
    """

    name: str
    due_ns: Any
    started_ns: Any
    ended_ns: Any
    outcome: Any
    rows: Any
    worker: Any
    end_ns: int
    clients: int
    errors: Mapping[str, str] = field(default_factory=dict)
    client_cpu_s: float = 0.0

    def __len__(self) -> int:
        return len(self.due_ns)

    def times_ns(self, part: Part = "response") -> Any:
        """Nanoseconds of every operation."""
        if part == "service":
            return self.ended_ns - self.started_ns
        return (self.started_ns if part == "waiting" else self.ended_ns) - self.due_ns

    def histogram(self, part: Part = "response") -> Any:
        """The histograms of all workers, merged."""
        return merged(self._of_worker(worker, part) for worker in np.unique(self.worker))

    def _of_worker(self, worker: int, part: Part) -> Any:
        mine = self.worker == worker
        if part == "service":
            # Operations that never started have no service time.
            mine = mine & (self.outcome != UNSERVED)
        return _histogram(self.times_ns(part)[mine])

    def latency(self, part: Part = "response") -> Latency:
        """The distribution of one kind of time."""
        return Latency.of(self.histogram(part))

    def count(self, outcome: int) -> int:
        """Number of operations with this outcome."""
        return int(np.count_nonzero(self.outcome == outcome))

    @property
    def served(self) -> int:
        """Number of operations started, regardless of outcome."""
        return len(self) - self.count(UNSERVED)

    @cached_property
    def unstarted(self) -> int:
        """Number of operations that were due but not started when the last one became due."""
        return int(np.count_nonzero(self.started_ns > self.end_ns))

    @property
    def saturated(self) -> bool:
        """Whether the system fell behind: operations were unserved, or more than a twentieth were queued at the end.
        Times then depend on the length of the run and do not characterize the system.
        """
        return self.count(UNSERVED) > 0 or self.unstarted > max(2.0, _SATURATED_SHARE * len(self))

    @property
    def per_second(self) -> float:
        """Operations done per second, from the first intended start to the end of the last operation done."""
        done = self.outcome == DONE
        if not done.any():
            return 0.0
        # The end of unserved operations is the time at which they were given up.
        took = (self.ended_ns[done | (self.outcome == UNSERVED)].max() - self.due_ns.min()) / 1e9
        return float(np.count_nonzero(done) / max(took, 1e-9))

    def write_log(self, folder: Path, tag: str) -> list[Path]:
        """Append to HdrHistogram logs, one per worker, an interval for each kind of time, tagged ``TAG/PART``. Commas
        and white space, which a tag must not contain, are replaced by ``_``.
        """
        files = []
        for worker in np.unique(self.worker).tolist():
            path = folder / f"worker-{worker}.hlog"
            with path.open("a", encoding="utf-8") as file:
                writer = HistogramLogWriter(file)
                if not file.tell():
                    writer.output_log_format_version()
                    writer.output_legend()
                for part in PARTS:
                    file.write(f"Tag={_tag(f'{tag}/{part}')},")
                    # Zero would select the histogram's own timestamps.
                    writer.output_interval_histogram(
                        self._of_worker(worker, part), 1e-6, max(self.end_ns / 1e9, 1e-6), 1e3
                    )
            files.append(path)
        return files


def merged(histograms: Iterable[Any]) -> Any:
    """Merge histograms by adding their counts. Percentiles of parts must never be averaged."""
    total = new_histogram()
    for histogram in histograms:
        total.add(histogram)
    return total


def _tag(text: str) -> str:
    return re.sub(r"[,\s]+", "_", text)


def read_log(paths: Sequence[Path], tag: str) -> Any:
    """The merged histogram of one tag in several workers' logs."""
    found = []
    for path in paths:
        reader = HistogramLogReader(str(path), new_histogram())
        try:
            while (histogram := reader.get_next_interval_histogram()) is not None:
                if histogram.get_tag() == _tag(tag):
                    found.append(histogram)
        finally:
            reader.close()
    return merged(found)
