"""Report about a recorded period of a cluster: plots over time in one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa

from chronotile import historian
from chronotile.archive import open as open_archive
from chronotile.errors import InvalidInputError
from chronotile.pages import markup, plot
from chronotile_tools.ops.recording import tag_parts

__all__ = ["html"]

_COLOURS = 4
_POINTS = 600
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560.0, 250.0, 62.0, 14.0, 30.0, 46.0
_STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
_EXTRA_STYLE = """
.sheet { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 16px; }
.legend { display: flex; gap: 18px; margin: 14px 0 18px; font-size: 14px; flex-wrap: wrap; }
.legend i { display: inline-block; width: 18px; height: 4px; border-radius: 2px; margin-right: 7px;
  vertical-align: 3px; }
.down { fill: var(--foot); opacity: 0.13; }
.s0, .s1, .s2, .s3 { stroke-width: 1.7; stroke-linejoin: round; }
.s1 { stroke-dasharray: 7 3; } .s2 { stroke-dasharray: 2 3; } .s3 { stroke-dasharray: 9 3 2 3; }
"""


@dataclass(frozen=True)
class Chart:
    """A plot of a recorded metric, as values or as growth per minute."""

    title: str
    metric: str
    unit: str
    growing: bool = False
    scale: float = 1.0


CHARTS = [
    Chart("Reads, 99th percentile", "latency_p99/Read", "ms"),
    Chart("Writes, 99th percentile", "latency_p99/Write", "ms"),
    Chart("Read of one row by the recorder", "probe", "ms"),
    Chart("Reads coordinated", "requests/Read", "a minute", growing=True),
    Chart("Writes coordinated", "requests/Write", "a minute", growing=True),
    Chart("Reads timed out", "timeouts/Read", "a minute", growing=True),
    Chart("Writes timed out", "timeouts/Write", "a minute", growing=True),
    Chart("Reads rejected for lack of replicas", "unavailable/Read", "a minute", growing=True),
    Chart("Writes rejected for lack of replicas", "unavailable/Write", "a minute", growing=True),
    Chart("Writes dropped", "dropped/MUTATION_REQ", "a minute", growing=True),
    Chart("Reads dropped", "dropped/READ_REQ", "a minute", growing=True),
    Chart("Hint files for other nodes", "hint_files", ""),
    Chart("Pending compactions", "compactions_pending", ""),
    Chart("Processor time of the process", "cpu", "% of the machine"),
    Chart("Heap after the last collection", "heap_used", "%"),
    Chart("Time in collections", "gc_time", "ms a minute", growing=True),
    Chart("Disk used", "disk_used", "%"),
    Chart("Data", "load", "MiB", scale=2.0**-20),
    Chart("Client connections", "clients", ""),
    Chart("Clock, ahead of the recorder's", "clock_offset", "s"),
]
"""Plots of the page, in order."""


@dataclass(frozen=True)
class _Series:
    node: str
    times: np.ndarray
    """Seconds since 1970."""
    values: np.ndarray


def html(archive: str | Path, cluster: str | None, start: datetime | None = None, end: datetime | None = None) -> str:
    """The page as HTML.

    Parameters
    ----------
    archive : str or path
        Archive of a :class:`~chronotile_tools.ops.recording.Recorder`.
    cluster : str, optional
        Name of the cluster; optional if only one was recorded.
    start, end : datetime, optional
        The period, half-open. By default it ends with the last record, and begins with the first record in the day
        before its end.

    Raises
    ------
    ArchiveNotFoundError
        The archive does not exist.
    InvalidInputError
        The archive has no records of the period, or records of several clusters while none is named.
    """
    if start is not None and end is not None and not start < end:
        raise InvalidInputError(f"the period from {start} to {end} is empty", kind="invalid-request")
    with open_archive(str(archive), create=False, read_only=True) as opened, historian.open(opened, create=False) as h:
        tags = [tag.name for tag in h.tags("ops/*")]
        cluster = _chosen_cluster(archive, tags, cluster)
        mine = {tag_parts(tag)[1:]: tag for tag in tags if tag_parts(tag)[0] == cluster}
        newest = _newest(h, list(mine.values()))
        to = newest + timedelta(seconds=1) if end is None else end
        since = to - timedelta(days=1) if start is None else start
        if not since < to:
            raise InvalidInputError(
                f"no data for cluster {cluster} from {_time_text(since)} on: the newest are from {_time_text(newest)}",
                kind="invalid-request",
            )
        charts = [(chart, _series(h, chart, mine, since, to)) for chart in CHARTS]
        up = _series(h, Chart("", "up", ""), mine, since, to)
    seen = [(chart, series) for chart, series in charts if series]
    if not seen:
        raise InvalidInputError(
            f"no data for cluster {cluster} from {_time_text(since)} to {_time_text(to)} in {archive}: the "
            f"newest are from {_time_text(newest)}",
            kind="invalid-request",
        )
    if start is None:
        first = min(float(one.times[0]) for _, series in seen for one in series)
        since = max(since, datetime.fromtimestamp(math.floor(first), UTC))
    drawn = [(chart, series) for chart, series in seen if any(one.values.any() for one in series)]
    quiet = [chart.title for chart, series in seen if not any(one.values.any() for one in series)]
    nodes = sorted({one.node for _, series in seen for one in series} | {one.node for one in up})
    missing = [chart.title for chart, series in charts if not series]
    sections = "".join(_section(chart, series, nodes, up, since, to) for chart, series in drawn)
    notes = _note("Zero throughout", quiet) + _note("No data for", missing)
    title = f"Cluster {cluster}"
    period = f"{_period_text(since, to)}. Shaded: a node was seen down."
    body = f"{_legend(nodes)}<div class='sheet'>{sections}</div>{_table(drawn, nodes)}{notes}"
    return markup.document(title, f"<h1>{escape(title)}</h1><p>{period}</p>{body}", style=_EXTRA_STYLE)


def _newest(history: historian.Historian, tags: Sequence[str]) -> datetime:
    """Time of the last record of these tags."""
    times = pa.table(history.latest(tags))["time"].cast("int64").to_numpy()
    return datetime.fromtimestamp(int(times.max()) / 1e9, UTC) if len(times) else datetime.now(UTC)


def _note(words: str, titles: list[str]) -> str:
    return f"<p>{words}: {escape('; '.join(titles))}.</p>" if titles else ""


def _chosen_cluster(archive: str | Path, tags: Sequence[str], cluster: str | None) -> str:
    clusters = sorted({tag_parts(tag)[0] for tag in tags})
    if not clusters:
        raise InvalidInputError(
            f"no metrics in {archive}: record some with chronotile ops record", kind="invalid-request"
        )
    if cluster is None and len(clusters) > 1:
        raise InvalidInputError(
            f"several clusters in {archive}, select one of: {', '.join(clusters)}", kind="invalid-request"
        )
    if cluster is not None and cluster not in clusters:
        raise InvalidInputError(
            f"no cluster {cluster} in {archive}; it has {', '.join(clusters)}", kind="invalid-request"
        )
    return cluster or clusters[0]


def _series(
    history: historian.Historian, chart: Chart, tags: dict[tuple[str, str], str], start: datetime, end: datetime
) -> list[_Series]:
    found = []
    for (node, metric), tag in sorted(tags.items()):
        if metric != chart.metric:
            continue
        # Counters need every point; for other metrics, reduce the points and keep the extremes.
        points = history.raw(tag, start, end).to_arrow() if chart.growing else _thinned(history, tag, start, end)
        times = points["time"].cast("int64").to_numpy() / 1e9
        values = points["value"].to_numpy().astype(float) * chart.scale
        if chart.growing:
            times, values = _per_minute(times, values)
        if len(times):
            found.append(_Series(node, times, values))
    return found


def _thinned(history: historian.Historian, tag: str, start: datetime, end: datetime) -> pa.Table:
    return pa.table(history.plot(tag, start, end, points=_POINTS))


def _per_minute(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Increase per minute between points; omitted where a restart reset the counter."""
    if len(times) < 2:
        return times[:0], values[:0]
    grown = np.diff(values) / np.maximum(np.diff(times), 1e-3) * 60
    kept = grown >= 0
    return times[1:][kept], grown[kept]


def _section(
    chart: Chart, series: list[_Series], nodes: list[str], up: list[_Series], start: datetime, end: datetime
) -> str:
    low, high = _limits(series)
    x = plot.linear(
        _period_text(start, end),
        start.timestamp(),
        end.timestamp(),
        _LEFT,
        _WIDTH - _RIGHT,
        _time_ticks(start.timestamp(), end.timestamp()),
    )
    y = plot.linear(chart.unit, low, high, _HEIGHT - _BOTTOM, _TOP, _value_ticks(low, high))
    panel = plot.Panel(_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, x, y)
    parts = [*_shades(up, x), panel.frame()]
    for one in series:
        css = f"s{nodes.index(one.node) % _COLOURS}"
        for times, values in _unbroken(one):
            if len(times) == 1:
                parts.append(plot.circle(float(x.place(times)[0]), float(y.place(values)[0]), 2, css))
            else:
                parts.append(plot.path(x.place(times), y.place(values), css))
    return markup.section(chart.title, "", plot.svg(_WIDTH, _HEIGHT, chart.title, *parts))


def _unbroken(one: _Series) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split a series at gaps much longer than usual, so that no line crosses missing data."""
    gaps = np.diff(one.times)
    breaks = np.flatnonzero(gaps > 5 * np.median(gaps)) + 1 if len(gaps) else np.empty(0, int)
    return list(zip(np.split(one.times, breaks), np.split(one.values, breaks), strict=True))


def _shades(up: list[_Series], x: plot.Axis) -> list[str]:
    """Shade each period in which a node was seen down."""
    parts = []
    for one in up:
        borders = np.append(one.times, one.times[-1])
        down = np.append(one.values < 0.5, False)
        starts = np.flatnonzero(down & ~np.append(False, down[:-1]))
        ends = np.flatnonzero(~down & np.append(False, down[:-1]))
        for first, last in zip(borders[starts], borders[ends], strict=True):
            left, right = (float(x.place(np.array(moment))) for moment in (first, last))
            parts.append(
                f'<rect x="{left:.1f}" y="{_TOP}" width="{max(right - left, 1):.1f}" '
                f'height="{_HEIGHT - _BOTTOM - _TOP}" class="down"/>'
            )
    return parts


def _limits(series: list[_Series]) -> tuple[float, float]:
    low = min(0.0, *(float(one.values.min()) for one in series))
    high = max(float(one.values.max()) for one in series)
    return low, high if high > low else low + 1.0


def _value_ticks(low: float, high: float) -> list[tuple[float, str]]:
    values = plot.round_values(low, high, 4)
    step = values[1] - values[0] if len(values) > 1 else 1.0
    return [(value, f"{value:,.10g}" if step >= 1 else f"{value:.3g}") for value in values]


def _time_ticks(start: float, end: float) -> list[tuple[float, str]]:
    step = next((step for step in _STEPS_S if (end - start) / step <= 6), _STEPS_S[-1])
    values = np.arange(np.ceil(start / step), np.floor(end / step) + 1) * step
    # Beyond a month, use wider steps to avoid overlapping dates.
    values = values[:: max(1, len(values) // 6)]
    return [(float(value), _tick_text(datetime.fromtimestamp(value, UTC), step)) for value in values]


def _tick_text(moment: datetime, step_s: int) -> str:
    """Text of a tick: a date, a date without the year at midnight, or a time of day."""
    if step_s >= 86_400:
        return f"{moment:%Y-%m-%d}"
    if step_s >= 60:
        return f"{moment:%m-%d}" if moment.hour == moment.minute == 0 else f"{moment:%H:%M}"
    return f"{moment:%H:%M:%S}"


def _legend(nodes: list[str]) -> str:
    items = "".join(
        f"<span><i style='background:var(--c{index % _COLOURS})'></i>{escape(node)}</span>"
        for index, node in enumerate(nodes)
    )
    return f"<div class='legend'>{items}</div>"


def _table(drawn: list[tuple[Chart, list[_Series]]], nodes: list[str]) -> str:
    rows = []
    for chart, series in drawn:
        by_node = {one.node: one for one in series}
        cells = [
            f"{np.median(by_node[node].values):,.4g} / {by_node[node].values.max():,.4g}" if node in by_node else "-"
            for node in nodes
        ]
        rows.append([chart.title, chart.unit, *cells])
    return markup.GAP + markup.section("Median / largest", "", markup.table(["", "", *nodes], rows))


def _period_text(start: datetime, end: datetime) -> str:
    """The period in words, with the year, because the ticks of a short period lack it."""
    return f"{_time_text(start)} to {_time_text(end)} (UTC)"


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
