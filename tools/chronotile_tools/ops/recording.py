"""Record metrics of a cluster as process history: one tag per metric and node."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from chronotile import historian
from chronotile.archive import Archive
from chronotile.archive import open as open_archive
from chronotile.closing import Closing
from chronotile.errors import BusyError, ChronotileError, InvalidInputError, UnavailableError
from chronotile_tools.ops.measures import Baseline
from chronotile_tools.ops.metrics import samples
from chronotile_tools.ops.state import Snapshot

__all__ = ["GROUP", "Recorder", "read_baseline", "recording", "scrape", "tag_parts"]

GROUP = "ops"
BASELINE_POINTS = 10

_LINE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'\w+="((?:[^"\\]|\\.)*)"')


class Recorder(Closing):
    """Writes snapshots into an archive's history. A context manager.

    Parameters
    ----------
    archive : str, path or Archive
        Archive, as for :func:`chronotile.open`; created if missing. An open archive stays open.
    """

    def __init__(self, archive: str | Path | Archive) -> None:
        self._history = historian.open(archive)
        self._known: set[str] = set()

    def close(self) -> None:
        """Close the archive if this recorder opened it."""
        self._history.close()

    def write(self, snapshot: Snapshot, others: Mapping[str, Mapping[str, float]] | None = None) -> int:
        """Store a snapshot, and metrics of other sources with the same time; return the number of points. They are
        durable when this returns; repeating the call stores them once.
        """
        cluster = snapshot.cluster or "unknown"
        points = {"/".join(["ops", cluster, *sample.path]): sample.value for sample in samples(snapshot)}
        units = {"/".join(["ops", cluster, *sample.path]): sample.metric for sample in samples(snapshot)}
        for source, found in (others or {}).items():
            points |= {"/".join(["ops", cluster, source, name]): value for name, value in found.items()}
        new = [name for name in points if name not in self._known]
        if new:
            self._history.define_many(
                {"name": name, "group": GROUP, "stepped": True}
                | ({"unit": units[name].unit, "description": units[name].help} if name in units else {})
                for name in new
            )
            self._known.update(new)
        times = [snapshot.taken] * len(points)
        return self._history.write({"tag": list(points), "time": times, "value": list(points.values())}).points


@contextlib.contextmanager
def recording(
    recorder: Recorder, observe: Callable[[], Snapshot], every_s: float, failed: Callable[[ChronotileError], None]
) -> Iterator[None]:
    """Take and store snapshots on a thread, every `every_s` seconds, while the context lasts.

    A failed snapshot is reported to `failed` and skipped; so is a missed one, as a BusyError of kind ``behind``.
    """
    ended = threading.Event()

    def work() -> None:
        began = time.monotonic()
        due = 0
        while True:
            try:
                recorder.write(observe())
            except ChronotileError as error:
                failed(error)
            passed = time.monotonic() - began
            missed, due = int(passed / every_s) - due, int(passed / every_s) + 1
            if missed > 0:
                failed(BusyError(f"snapshots take longer than {every_s:g} s: {missed} skipped", kind="behind"))
            if ended.wait(due * every_s - passed):
                return

    thread = threading.Thread(target=work, name="recording")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def scrape(url: str, *, timeout_s: float = 10.0) -> dict[str, float]:
    """Metrics of a source that serves Prometheus' text format, such as a client program or a machine's exporter, by
    name and values of labels. Non-numeric values are omitted.

    Raises
    ------
    UnavailableError
        The source does not answer.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidInputError(f"{url!r} is not a metrics URL, such as http://host:9100/metrics", kind="invalid-url")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            text = response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        error.close()
        raise UnavailableError(f"{url} answered {error.code} {error.reason}", kind="no-connection") from None
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{url}: {getattr(error, 'reason', error)}", kind="no-connection") from None
    return read_prometheus(text)


def read_prometheus(text: str) -> dict[str, float]:
    """Numbers in Prometheus' text format by name and values of labels, joined by slashes."""
    found = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            found["/".join([match["name"], *_LABEL.findall(match["labels"] or "")])] = value
    return found


def tag_parts(tag: str) -> tuple[str, str, str]:
    """Cluster, node (or other source) and metric of a tag."""
    _, cluster, node, metric = tag.split("/", 3)
    return cluster, node, metric


def read_baseline(archive: str | Path, cluster: str, end: datetime, *, days: float = 7.0) -> Baseline:
    """Medians of a cluster's recorded metrics in the days before `end`.

    Raises
    ------
    ArchiveNotFoundError
        The archive does not exist.
    InvalidInputError
        The archive has no records of this cluster.
    """
    start = end - timedelta(days=days)
    with open_archive(str(archive), create=False, read_only=True) as opened, historian.open(opened, create=False) as h:
        tags = [tag.name for tag in h.tags(f"ops/{cluster}/*")]
        if not tags:
            raise InvalidInputError(
                f"no metrics of cluster {cluster} in {archive}: record some with chronotile ops record",
                kind="invalid-request",
            )
        counts = _by_tag(h, tags, start, end, "Count")
        medians = _by_tag(h, tags, start, end, "Percentile")
    return Baseline(
        {
            tag_parts(tag)[1:]: value
            for tag, value in medians.items()
            if value is not None and (counts.get(tag) or 0) >= BASELINE_POINTS
        }
    )


def _by_tag(
    history: historian.Historian, tags: Sequence[str], start: datetime, end: datetime, aggregate: str
) -> dict[str, float | None]:
    table = history.aggregate(tags, start, end, None, aggregate).to_arrow()
    return dict(zip(table["tag"].to_pylist(), table["value"].to_pylist(), strict=True))
