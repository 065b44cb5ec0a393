"""Analyse logs of simulations: times by visit with linear fits, and a page of plots.

A simulation that always points at one field observes it as often as a survey of a hemisphere with many more visits.
Equivalent visits count the latter: one visit of a field of 9.6 out of 20,626 square degrees represents 2,144 of them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from chronotile.apdb import names
from chronotile.errors import ChronotileError, DataFileError
from chronotile.pages import plot
from chronotile.pages.markup import GAP, document, section, table
from chronotile_tools import published
from chronotile_tools.survey.simulate.universe import FIELD_AREA_DEG2, HEMISPHERE_DEG2

__all__ = ["Fit", "Logs", "ScalingResult", "figures", "page", "read_logs", "scaling", "text"]

TARGETS = (180_000, 300_000)
PLATEAU_DAYS = 360.0
_FIT_VISITS_MIN = 5
VISITS_MIN, SHARE_MIN = 30, 0.1
"""Smallest number of visits for an extrapolation, and smallest share of the target that they must cover."""

_TABLES = names.MAIN_TABLES
_LABELS = {"read": "read, all three", "store": "store", **{name: f"read {name}" for name in _TABLES}}


@dataclass(frozen=True)
class Fit:
    """A straight line through times by equivalent visit, with its uncertainty.

    Attributes
    ----------
    offset, slope : float
        Seconds at visit 0; seconds per visit.
    covariance : tuple of float
        Variance of the slope, covariance, variance of the offset.
    scatter : float
        Standard deviation of the times around the line, seconds.
    """

    offset: float
    slope: float
    covariance: tuple[float, float, float]
    scatter: float

    @classmethod
    def through(cls, x: Any, y: Any) -> Fit | None:
        """Fit a line to times `y` at visits `x`; None if there are too few."""
        if len(x) < _FIT_VISITS_MIN:
            return None
        (slope, offset), covariance = np.polyfit(x, y, 1, cov=True)
        scatter = float(np.std(y - (offset + slope * x), ddof=2))
        spread = (float(covariance[0, 0]), float(covariance[0, 1]), float(covariance[1, 1]))
        return cls(float(offset), float(slope), spread, scatter)

    def at(self, visit: float) -> tuple[float, float]:
        """Seconds at a visit, and one standard error of the line there."""
        variance = self.covariance[0] * visit**2 + 2 * self.covariance[1] * visit + self.covariance[2]
        return self.offset + self.slope * visit, float(np.sqrt(max(variance, 0.0)))


@dataclass(frozen=True)
class Logs:
    """One simulation's logs.

    Attributes
    ----------
    name : str
        Name of its folder.
    run : dict
        Settings of the run.
    factor : float
        Equivalent hemisphere visits per visit.
    visits, days : array
        Equivalent visit, and days since the first, of each visit.
    seconds : dict of str to array
        Mean over detectors, by visit: read, store, and the reading of each table.
    rows : dict of str to array
        Mean rows read, by table and visit.
    cpu : dict of str to float
        Median processor seconds of the client, for reads and stores.
    cones : array
        Seconds of each concurrent cone read.
    """

    name: str
    run: dict[str, Any]
    factor: float
    visits: Any
    days: Any
    seconds: dict[str, Any]
    rows: dict[str, Any]
    cpu: dict[str, float]
    cones: Any

    @property
    def nodes(self) -> int | None:
        """Number of nodes, if the folder's name contains it: nodes-3."""
        found = re.search(r"nodes-(\d+)", self.name)
        return int(found[1]) if found else None

    def fit(self, what: str) -> Fit | None:
        """Line fitted to one kind of times before the plateau; None if there are too few visits."""
        keep = self.days < PLATEAU_DAYS
        return Fit.through(self.visits[keep], self.seconds[what][keep])

    def at_visit(self, what: str, visit: float) -> tuple[float, float] | None:
        """Expected seconds at a later visit and one standard error; None if the simulation is too short."""
        fit, before = self.fit(what), self.visits[self.days < PLATEAU_DAYS]
        if fit is None or len(before) < VISITS_MIN or before.max() < visit * SHARE_MIN:
            return None
        return fit.at(visit)

    def plateau(self, what: str) -> tuple[float, float] | None:
        """Mean and standard deviation of times after twelve months; None if the simulation is shorter."""
        late = self.seconds[what][self.days >= PLATEAU_DAYS]
        return (float(late.mean()), float(late.std())) if len(late) > 2 else None

    def first_month(self, what: str) -> float:
        """Mean of the times in the first thirty days."""
        return float(self.seconds[what][self.days < 30].mean())


def read_logs(folder: Path) -> Logs:
    """The logs of one simulation.

    Raises
    ------
    DataFileError
        The folder contains no logs, or damaged ones.
    """
    try:
        return _logs_in(folder)
    except ChronotileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataFileError(
            f"a log in {folder} is damaged or not that of a simulation: {error}", kind="file-content"
        ) from error


def _logs_in(folder: Path) -> Logs:
    files = sorted(folder.glob("worker-*.jsonl"))
    if not files or not (folder / "run.json").exists():
        raise DataFileError(f"{folder} contains no simulation logs (run.json, worker-0.jsonl)", kind="file-not-found")
    run = json.loads((folder / "run.json").read_text())
    entries = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    cones = [
        json.loads(line)["seconds"]
        for file in sorted(folder.glob("reader-*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    area = FIELD_AREA_DEG2
    if radius := run["survey"]["radius"]:
        area = max(area, 2 * np.pi * (1 - np.cos(np.radians(radius))) * np.degrees(1) ** 2)
    factor = max(HEMISPHERE_DEG2 / area, 1.0)
    reads = [entry for entry in entries if entry["op"] == "read"]
    stores = [entry for entry in entries if entry["op"] == "store"]
    if not reads or not stores:
        raise DataFileError(f"{folder} has no complete visit", kind="file-content")
    numbers, times = _by_visit(reads, [entry["mjd_tai"] for entry in reads])
    seconds = {"read": _by_visit(reads, [entry["seconds"] for entry in reads])[1]}
    done, store = _by_visit(stores, [entry["seconds"] for entry in stores])
    keep = np.isin(numbers, done)
    seconds = {"read": seconds["read"][keep], "store": store}
    rows = {}
    for name in _TABLES:
        seconds[name] = _by_visit(reads, [entry["seconds_by_table"][name] for entry in reads])[1][keep]
        rows[name] = _by_visit(reads, [entry["rows"][name] for entry in reads])[1][keep]
    cpu = {op: float(np.median([e["cpu_s"] for e in part])) for op, part in (("read", reads), ("store", stores))}
    days = times[keep] - times.min()
    return Logs(folder.name, run, factor, done * factor, days, seconds, rows, cpu, np.array(cones))


def _by_visit(entries: Sequence[dict[str, Any]], values: Sequence[float]) -> tuple[Any, Any]:
    """Visits, and the mean of each over its detectors."""
    visits, places = np.unique([entry["visit"] for entry in entries], return_inverse=True)
    sums = np.bincount(places, np.asarray(values, float))
    return visits, sums / np.bincount(places)


def figures(logs: Logs) -> dict[str, Any]:
    """All figures, as JSON values."""
    out: dict[str, Any] = {"name": logs.name, "driver": logs.run["driver"], "visits": len(logs.visits)}
    out |= {"engine": logs.run.get("engine"), "machine": logs.run.get("machine")}
    out["equivalent_visits_a_visit"] = logs.factor
    for what in _LABELS:
        fit = logs.fit(what)
        out[what] = {
            "mean_s": float(logs.seconds[what].mean()),
            "p99_s": float(np.quantile(logs.seconds[what], 0.99)),
            "first_month_s": logs.first_month(what),
            "plateau_s": None if (flat := logs.plateau(what)) is None else flat[0],
            "slope_s_a_visit": None if fit is None else fit.slope,
            "scatter_s": None if fit is None else fit.scatter,
            "extrapolated_s": {str(visit): logs.at_visit(what, visit) for visit in TARGETS},
        }
    out["cpu_s"] = logs.cpu
    out["rows"] = {name: float(values[-max(len(values) // 10, 1) :].mean()) for name, values in logs.rows.items()}
    if len(logs.cones):
        out["cones"] = {"count": len(logs.cones), "median_s": float(np.median(logs.cones))}
    return out


def text(logs: Logs) -> str:
    """The main figures, as text."""
    lines = [f"{logs.name}: {logs.run['driver']}, {len(logs.visits)} visits (each {logs.factor:,.0f} of a hemisphere)"]
    lines += [f"  {where}"] if (where := _where(logs)) else []
    for what, label in _LABELS.items():
        values = logs.seconds[what]
        line = f"  {label:24} mean {_s(values.mean())}, 99% below {_s(np.quantile(values, 0.99))}"
        if (ahead := logs.at_visit(what, TARGETS[0])) is not None:
            line += f", at {TARGETS[0]:,} visits {_pair(ahead)}"
        if (flat := logs.plateau(what)) is not None:
            line += f", plateau {_s(flat[0])} ({flat[0] / max(logs.first_month(what), 1e-9):.1f} times the first month)"
        lines.append(line)
    if len(logs.cones):
        lines.append(f"  {'cones of other readers':24} median {_s(np.median(logs.cones))}, {len(logs.cones):,} of them")
    if logs.at_visit("read", TARGETS[0]) is None:
        lines.append(f"  too short to extrapolate to {TARGETS[0]:,} visits: {_too_short(logs)}")
    return "\n".join(lines)


def _where(logs: Logs) -> str:
    """Engine and machine, if the log names them."""
    given = {"engine": logs.run.get("engine"), "clients on": logs.run.get("machine")}
    return "; ".join(f"{name} {value}" for name, value in given.items() if value)


def _too_short(logs: Logs) -> str:
    wanted = max(VISITS_MIN, int(np.ceil(TARGETS[0] * SHARE_MIN / logs.factor)) + 1)
    return f"simulate at least {wanted:,} visits before the plateau of twelve months"


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _pair(value: tuple[float, float]) -> str:
    if value[0] < value[1]:
        # A falling line may reach negative times: report an upper bound instead.
        return f"below {_s(max(value[0], 0.0) + 2 * value[1])}"
    return f"{_s(value[0])} ± {_s(value[1])}"


# ---------------------------------------------------------------------- the page


def page(found: Sequence[Logs]) -> str:
    """A self-contained page: figures, plots, and the published numbers next to them."""
    sections = [
        section(
            "Reading",
            "Time to read the three tables, mean of the detectors of each visit, with linear fits.",
            _times(found, "read"),
        ),
        section(
            "Storing",
            "Time to store, mean of the detectors of each visit. A store is durable when it ends.",
            _times(found, "store"),
        ),
    ]
    for logs in found:
        title = f"{logs.name}: tables"
        sections.append(section(title, "Time to read each table, by visit.", _tables(logs)))
    words = "Mean times. Those at 180,000 and 300,000 visits are extrapolated from the fit, with one standard error"
    short = [logs for logs in found if logs.at_visit("read", TARGETS[0]) is None]
    words += "".join(f". {logs.name} is too short to extrapolate: {_too_short(logs)}" for logs in short)
    sections.append(section("Figures", f"{words}.", _figures(found)))
    sections.append(section("Published figures", "Seconds to read the three tables of a detector.", _published(found)))
    if lines := scaling(found):
        words = "Reading by number of nodes; the last column is 1 if time scales as 1/N. Bars are one standard error."
        sections.append(section("Scaling", words, _scaling(lines)))
    body = f"\n{GAP}".join(sections)
    return document("Simulated survey", f"<h1>Simulated survey</h1>{_about(found)}{body}")


def _about(found: Sequence[Logs]) -> str:
    """Software and hardware of the run, needed to interpret the times."""
    lines = [f"{logs.name}: {logs.run['driver']}; {where}" for logs in found if (where := _where(logs))]
    return "".join(f"<p>{escape(line)}</p>" for line in lines) + GAP


def _times(found: Sequence[Logs], what: str) -> str:
    return _plot(f"{what} by visit", [_Series(logs.name, logs, what) for logs in found])


def _tables(logs: Logs) -> str:
    return _plot(f"tables of {logs.name}", [_Series(name, logs, name) for name in _TABLES])


@dataclass(frozen=True)
class _Series:
    """Times of one simulation in a plot, and how they are drawn."""

    name: str
    logs: Logs
    what: str

    @property
    def seconds(self) -> Any:
        return self.logs.seconds[self.what]

    @property
    def trend(self) -> tuple[Any, Any] | None:
        """Ends of the fitted line, as visits and seconds; it stops where the plateau begins."""
        fit = self.logs.fit(self.what)
        if fit is None:
            return None
        ends = np.array([0.0, float(self.logs.visits[self.logs.days < PLATEAU_DAYS].max())])
        return ends, fit.offset + fit.slope * ends


def _plot(title: str, series: Sequence[_Series]) -> str:
    width, height, left, right, top, bottom = 1080.0, 340.0, 70.0, 1060.0, 40.0, 280.0
    last = max(float(each.logs.visits.max()) for each in series) or 1.0
    high = max(float(each.seconds.max()) for each in series) * 1.05 or 1.0
    x_axis = plot.linear(
        "equivalent visits", 0, last, left, right, [(t, f"{t:,.0f}") for t in plot.round_values(0, last, 5)]
    )
    y_axis = plot.linear("seconds", 0, high, bottom, top, [(t, f"{t:g}") for t in plot.round_values(0, high, 5)])
    panel = plot.Panel(left, top, right, bottom, x_axis, y_axis)
    parts = [panel.frame()]
    for number, each in enumerate(series):
        x, y = each.logs.visits, each.seconds
        hue = number % 4
        shape = ("circle", "square", "triangle")[number % 3]
        keep = slice(None, None, max(len(x) // 600, 1))
        points = zip(x_axis.place(x[keep]).tolist(), y_axis.place(y[keep]).tolist(), strict=True)
        css = f"f{hue} dot" if len(x) > 100 else f"f{hue}"
        parts += [plot.marker(shape, a, b, css, 3.0) for a, b in points]
        if (trend := each.trend) is not None:
            ends, fitted = trend
            parts.append(plot.path(x_axis.place(ends), y_axis.place(np.clip(fitted, 0, high)), f"s{hue} trend"))
        parts.append(plot.marker(shape, left + 104 + 210 * number, 16, f"f{hue}"))
        parts.append(plot.text(left + 116 + 210 * number, 20, each.name, "label"))
    return plot.svg(width, height, title, *parts)


def _figures(found: Sequence[Logs]) -> str:
    rows = []
    for logs in found:
        for what, label in _LABELS.items():
            fit, flat = logs.fit(what), logs.plateau(what)
            ahead = [_pair(value) if (value := logs.at_visit(what, visit)) else "—" for visit in TARGETS]
            rows.append([
                logs.name, label, _s(logs.seconds[what].mean()), _s(fit.scatter) if fit else "",
                _s(logs.first_month(what)), _s(flat[0]) if flat else "", *ahead,
            ])  # fmt: skip
    header = ["simulation", "what", "mean", "scatter", "first month", "plateau"]
    return table([*header, *(f"at {visit:,} visits" for visit in TARGETS)], rows, css="two")


def _published(found: Sequence[Logs]) -> str:
    rows = []
    for each in published.FOOTPRINT_READS:
        ours = []
        for logs in found:
            flat = logs.plateau("read")
            value = flat if "plateau" in each.label and flat else logs.at_visit("read", each.visits)
            ours.append(_pair(value) if value else "—")
        rows.append([each.label, f"{each.visits:,}", f"{each.seconds:g} s", *ours])
    return table(["published", "visits", "seconds", *(logs.name for logs in found)], rows, "names")


@dataclass(frozen=True)
class ScalingResult:
    """Reading on clusters of one size, from one or several simulations.

    Attributes
    ----------
    nodes : int
        Nodes of the cluster.
    seconds, error : float
        Seconds to read a detector's three tables at 180,000 visits, and one standard error.
    share : float
        Ratio of `seconds` times `nodes` to that of the smallest cluster: 1 if time is proportional to 1/N.
    """

    nodes: int
    seconds: float
    error: float
    share: float


def scaling(found: Sequence[Logs]) -> list[ScalingResult]:
    """Scaling of reads with the number of nodes; empty without clusters of two sizes."""
    by_nodes: dict[int, list[tuple[float, float]]] = {}
    for logs in found:
        ahead = logs.at_visit("read", TARGETS[0])
        if logs.nodes and ahead is not None:
            by_nodes.setdefault(logs.nodes, []).append(ahead)
    if len(by_nodes) < 2:
        return []
    lines: list[ScalingResult] = []
    for nodes, values in sorted(by_nodes.items()):
        seconds = float(np.mean([value for value, _ in values]))
        error = float(np.sqrt(np.sum([each**2 for _, each in values]))) / len(values)
        first = lines[0].nodes * lines[0].seconds if lines else nodes * seconds
        lines.append(ScalingResult(nodes, seconds, error, nodes * seconds / first))
    return lines


def _scaling(lines: Sequence[ScalingResult]) -> str:
    left, right, top, bottom = 70.0, 1060.0, 40.0, 280.0
    nodes = np.array([float(each.nodes) for each in lines])
    seconds = np.array([max(each.seconds, 1e-6) for each in lines])
    ideal = seconds[0] * nodes[0] / nodes
    high = max(each.seconds + each.error for each in lines)
    low = max(min(ideal.min(), *(each.seconds - each.error for each in lines)), 0.3 * ideal.min())
    x = dataclasses.replace(
        plot.log("nodes", nodes[0] / 1.1, nodes[-1] * 1.1, left, right), ticks=[(v, f"{v:g}") for v in nodes.tolist()]
    )
    y = plot.log(f"seconds at {TARGETS[0]:,} visits", low / 1.2, high * 1.2, bottom, top)
    parts = [plot.Panel(left, top, right, bottom, x, y).frame()]
    parts += [plot.path(x.place(nodes), y.place(ideal), "s1 trend"), plot.path(x.place(nodes), y.place(seconds), "s0")]
    middles = y.place(seconds).tolist()
    for each, at, middle in zip(lines, x.place(nodes).tolist(), middles, strict=True):
        ends = np.maximum([each.seconds - each.error, each.seconds + each.error], low / 1.2)
        below, above = y.place(ends).tolist()
        parts += [plot.line(at, below, at, above, "s0"), plot.marker("circle", at, middle, "f0", 5.0)]
    for number, label in enumerate(("measured", "1/N from the smallest cluster")):
        parts.append(plot.marker(("circle", "square")[number], left + 244 + 150 * number, 16, f"f{number}"))
        parts.append(plot.text(left + 256 + 150 * number, 20, label, "label"))
    rows = [[str(each.nodes), _pair((each.seconds, each.error)), f"{each.share:.2f}"] for each in lines]
    figures = table(["nodes", f"at {TARGETS[0]:,} visits", "times nodes, relative to the smallest"], rows, "names")
    return plot.svg(1080, 340, "Reading by number of nodes", *parts) + figures
