"""An alert production database over eighteen months: growth of reads and stores, replication factors and consistency
levels, time partitions, a lost node and other clients, in a file and on nodes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chronotile.apdb import names
from chronotile_tools import published
from chronotile_tools.load.arms import Runs
from chronotile_tools.load.experiments import growth
from chronotile_tools.load.experiments.base import HEMISPHERE_VISITS, StoreCost
from chronotile_tools.load.statistics import Difference, compare_values
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import (
    Echo,
    agreement,
    comparisons,
    control_text,
    difference_of,
    harness,
    latencies,
    ratio_text,
    times_text,
    verdict,
)
from chronotile_tools.studies.record import Record, Values
from chronotile_tools.survey.report import PLATEAU_DAYS, Fit
from chronotile_tools.survey.simulate.universe import VISITS_A_NIGHT

__all__ = ["STUDY"]

_MONTH_DAYS = 30.0
_YEAR_MONTHS = round(PLATEAU_DAYS / _MONTH_DAYS)
_WARM_MONTHS = 6
"""First months, which are left out when set-ups are compared, because reads of few rows cost the same in all."""
_FLAT = 0.25
"""Largest ratio of growth after twelve months to growth before that counts as a plateau."""
_LINEAR = 0.8
"""Smallest share of the variance explained by a line for growth to count as linear."""
_FAR_BELOW = 0.25
"""Largest ratio of a store's time to a read's that counts as far below."""
_LATE = 5.0
"""Smallest ratio to the usual read time that counts as waiting for a time-out."""
_ALONE = growth.setup_name(1, "ONE")
"""The set-up that others are compared with."""
_SMALL, _LARGE = published.FOOTPRINT_READS[-2:]
"""Published reads at 100,000 visits and on the plateau."""
_MS = 1e3


def _parts(parameters: Values) -> Iterator[Part]:
    for name, compute in (
        ("file", _file), ("windows-file", _windows_file), ("nodes", _nodes), ("windows-nodes", _windows_nodes),
        ("outage", _outage), ("others", _others),
    ):  # fmt: skip
        yield Part(name, partial(compute, parameters), reports=True)


# ---------------------------------------------------------------------- measurements


def _file(parameters: Values, echo: Echo) -> Values:
    given = parameters["file"]
    survey = growth.evenly(given["visits"], parameters["days"], given["detectors"], parameters["seed"])
    found = growth.grow_file(survey, parameters["schema"], parameters["maintain_days"], echo)
    return {"databases": _curves(found.stored, given["detectors"], _days(parameters, "file"))}


def _nodes(parameters: Values, echo: Echo) -> Values:
    given = parameters["nodes"]
    survey = growth.evenly(given["visits"], parameters["days"], given["detectors"], parameters["seed"])
    with harness(parameters, echo) as ready:
        found = growth.grow_nodes(
            ready, survey, parameters["schema"], parameters["maintain_days"],
            setups=[(copies, level) for copies, level in given["setups"]], clients=given["clients"],
            seconds=given["seconds"], warm_up=given["warm_up"],
        )  # fmt: skip
    return {
        "databases": _curves(found.stored, given["detectors"], _days(parameters, "nodes")),
        "per_s": {name: _per_s(found.runs, name) for name in found.stored},
    }


def _per_s(runs: Runs, name: str) -> list[float]:
    return [round(run["read"].per_second, 3) for run in runs[name]]


def _curves(stored: Mapping[str, StoreCost], detectors: int, days: Any) -> Values:
    """Milliseconds of each visit, as mean of its detectors; figures by table are stored per month."""
    months = _months(days)

    def visits(values: Sequence[float]) -> Any:
        return np.asarray(values, float).reshape(-1, detectors).mean(axis=1)

    def monthly(values: Any, places: int) -> list[float]:
        each = [float(np.median(values[months == month])) for month in np.unique(months)]
        return [round(value, places) for value in each]

    return {
        name: {
            "read_ms": (visits(cost.read_s) * _MS).round(2).tolist(),
            "store_ms": (visits(cost.seconds) * _MS).round(2).tolist(),
            "tables": {
                table: {
                    "read_ms": monthly(visits([each.seconds[table] for each in cost.reads]) * _MS, 2),
                    "rows": monthly(visits([each.counts[table] for each in cost.reads]), 0),
                }
                for table in names.MAIN_TABLES
            },
        }
        for name, cost in stored.items()
    }


def _windows_file(parameters: Values, echo: Echo) -> Values:
    given = parameters["windows"]
    survey = growth.evenly(given["visits"], PLATEAU_DAYS, 1, parameters["seed"])
    return _layouts(growth.partition_file(survey, parameters["schema"], given["lengths"], given["repeat"], echo))


def _windows_nodes(parameters: Values, echo: Echo) -> Values:
    given = parameters["windows"]
    survey = growth.evenly(given["visits"], PLATEAU_DAYS, 1, parameters["seed"])
    with harness(parameters, echo) as ready:
        found = growth.partition_nodes(
            ready, survey, parameters["schema"], given["lengths"], given["repeat"], parameters["nodes"]["warm_up"]
        )
    return _layouts(found)


def _layouts(found: Mapping[str, growth.Partitioned]) -> Values:
    return {
        "layouts": [
            {
                "name": name, "store_ms": round(statistics.median(each.stored.seconds) * _MS, 2),
                "store_cpu_ms": round(each.stored.cpu_s / len(each.stored.seconds) * _MS, 1),
                "read_ms": {state: [round(value * _MS, 3) for value in took] for state, took in each.read_s.items()},
                "read_cpu_ms": {state: round(value * _MS, 1) for state, value in each.read_cpu_s.items()},
                "slices": each.slices, "tiles": each.tiles, "bytes": each.bytes,
            }
            for name, each in found.items()
        ]
    }  # fmt: skip


def _outage(parameters: Values, echo: Echo) -> Values:
    given = parameters["outage"]
    visits = given["year"] + given["phase"] * (1 + 3 * given["rounds"])
    survey = growth.evenly(visits, PLATEAU_DAYS * visits / given["year"], 1, parameters["seed"])
    with harness(parameters, echo) as ready:
        found = growth.lose_node(ready, survey, parameters["schema"], given["year"], given["phase"])
    times = list(zip(found.phases, found.stored.read_s, found.stored.seconds, strict=True))[given["year"] :]
    turns = [times[at : at + given["phase"]] for at in range(0, len(times), given["phase"])]
    return {
        "turns": [
            {
                "phase": turn[0][0], "read_ms": [round(read * _MS, 2) for _, read, _ in turn],
                "store_ms": [round(store * _MS, 2) for _, _, store in turn],
            }
            for turn in turns
        ],
        "failures": found.stored.failures, "delivery_s": round(found.delivery_s, 1),
        "rows": found.rows, "rows_alone": found.rows_alone,
    }  # fmt: skip


def _others(parameters: Values, echo: Echo) -> Values:
    given = parameters["others"]
    survey = growth.evenly(given["visits"], PLATEAU_DAYS, 1, parameters["seed"])
    how = {name: given[name] for name in ("rate", "cones", "clients", "seconds")}
    with harness(parameters, echo) as ready:
        arms, runs = growth.share(ready, survey, parameters["schema"], **how)
    return {
        "arms": arms, "latency_ms": latencies(runs, arms),
        "comparisons": comparisons(runs, arms, ["mean", 99.0]),
    }  # fmt: skip


# ---------------------------------------------------------------------- growth


def _days(parameters: Values, part: str) -> Any:
    """Days from the first visit to each visit."""
    visits = parameters[part]["visits"]
    return np.arange(visits) * parameters["days"] / visits


def _months(days: Any) -> Any:
    return (days // _MONTH_DAYS).astype(int)


def _equivalent(days: Any) -> Any:
    """Number of visits of the published survey after these days."""
    return days * VISITS_A_NIGHT


def _databases(record: Record, part: str) -> dict[str, Values]:
    found: dict[str, Values] = record.parts[part]["databases"]
    return found


def _fits(record: Record, part: str, name: str, what: str) -> tuple[Fit, Fit]:
    """Lines fitted before and after twelve months."""
    values = np.asarray(_databases(record, part)[name][what])
    days = _days(record.parameters, part)
    early, visits = days < PLATEAU_DAYS, _equivalent(days)
    before, after = (Fit.through(visits[keep], values[keep]) for keep in (early, ~early))
    if before is None or after is None:
        raise AssertionError(f"{part} has too few visits for a line")
    return before, after


def _level(record: Record, part: str, name: str) -> str:
    """Whether reads stop growing after twelve months: ratio of the growth after to that before, with standard error."""
    before, after = _fits(record, part, name, "read_ms")
    if before.slope < 2 * np.sqrt(before.covariance[0]):
        return "not decided: no growth before twelve months"
    share, error = after.slope / before.slope, float(np.sqrt(after.covariance[0])) / before.slope
    words = f"{share:.2f} ± {error:.2f}"
    if share <= _FLAT:
        return f"agrees: {words}"
    return f"not decided: {words}" if share - 2 * error <= _FLAT else f"differs: {words}"


def _explained(record: Record, part: str, name: str) -> float:
    """Share of the variance of monthly medians before twelve months that a line explains."""
    months = _monthly(record, part, name, "read_ms")[:_YEAR_MONTHS]
    return float(np.corrcoef(np.arange(len(months)), months)[0, 1]) ** 2


def _plateau(record: Record, part: str, name: str, what: str) -> Any:
    values = np.asarray(_databases(record, part)[name][what])
    return values[_days(record.parameters, part) >= PLATEAU_DAYS]


def _rise(record: Record, part: str, name: str) -> Difference:
    """Ratio of reads on the plateau to those at 100,000 visits, plus or minus a fifth."""
    values = np.asarray(_databases(record, part)[name]["read_ms"])
    near = np.abs(_equivalent(_days(record.parameters, part)) / _SMALL.visits - 1) <= 0.2
    early, late = values[near], _plateau(record, part, name, "read_ms")
    count = min(len(early), len(late))
    chosen = [each[np.linspace(0, len(each) - 1, count).astype(int)].tolist() for each in (early, late)]
    return compare_values(*chosen)


def _growth_table(record: Record, part: str) -> str:
    rows = []
    for name in _databases(record, part):
        for what, words in (("read_ms", "read"), ("store_ms", "store")):
            before, after = _fits(record, part, name, what)
            late = _plateau(record, part, name, what)
            rows.append(
                [f"{words}, {name}", f"{before.at(_SMALL.visits)[0]:,.1f}", f"{np.median(late):,.1f}",
                 f"{_slope(before)}", f"{_slope(after)}"]
            )  # fmt: skip
    header = ["milliseconds", f"at {_SMALL.visits:,} visits", "median after 12 months",
              "growth per 100,000 visits, before 12 months", "after"]  # fmt: skip
    return markdown.table(header, rows)


def _slope(fit: Fit) -> str:
    return f"{fit.slope * 1e5:,.2f} ± {np.sqrt(fit.covariance[0]) * 1e5:,.2f}"


def _rows_table(record: Record, part: str, name: str) -> str:
    """Rows and milliseconds of a read, by table, at twelve months and at the end."""
    rows, ends = [], (_YEAR_MONTHS - 1, -1)
    for table, values in _databases(record, part)[name]["tables"].items():
        then = published.FOOTPRINT_ROWS.get(table)
        rows.append(
            [table, *(f"{values['rows'][at]:,.0f}" for at in ends),
             f"{then[0]:,} to {then[1]:,}" if then else "not given", *(f"{values['read_ms'][at]:,.1f}" for at in ends)]
        )  # fmt: skip
    header = ["", "rows, month 12", "rows, last month", "published", "ms, month 12", "ms, last month"]
    return markdown.table(header, rows)


def _monthly(record: Record, part: str, name: str, what: str) -> list[float]:
    values = np.asarray(_databases(record, part)[name][what])
    months = _months(_days(record.parameters, part))
    return [float(np.median(values[months == month])) for month in np.unique(months)]


def _growth_figure(record: Record, part: str, whats: Mapping[str, str], title: str) -> str:
    series: dict[str, charts.Points] = {}
    for what, words in whats.items():
        for name in _databases(record, part):
            values = _monthly(record, part, name, what)
            series[f"{words}{name}"] = ([month + 1.0 for month in range(len(values))], values)
    ticks = [(float(month), str(month)) for month in (1, 6, 12, 18)]
    hues = min(len(series), 4)
    return charts.lines(title, "month", "milliseconds", series, y_log=False, x_ticks=ticks, hues=hues)


# ---------------------------------------------------------------------- scatter


_SHARES = (5, 50, 95, 99)


def _scatter_table(record: Record) -> str:
    rows = []
    for part, where in (("file", "file"), ("nodes", "nodes")):
        for name in _databases(record, part):
            for what, words in (("read_ms", "read"), ("store_ms", "store")):
                late = _plateau(record, part, name, what)
                quantiles = np.percentile(late, _SHARES)
                rows.append(
                    [f"{where}, {name}: {words}", *(f"{value:,.1f}" for value in [*quantiles, late.max()]),
                     f"{quantiles[0] / quantiles[1]:.2f} to {quantiles[2] / quantiles[1]:.2f}"]
                )  # fmt: skip
    header = ["milliseconds", *(f"p{share}" for share in _SHARES), "worst", "p5 and p95 over p50"]
    return markdown.table(header, rows)


# ---------------------------------------------------------------------- copies and levels


def _then(name: str) -> float | None:
    """Ratio of a set-up's published seconds after 180,000 visits to those of the first set-up."""
    seconds = {
        growth.setup_name(2, "ONE"): published.FOOTPRINT_READS_180K["Cassandra", 2],
        growth.setup_name(3, "ONE"): published.FOOTPRINT_READS_180K["Cassandra, ONE", 3],
        growth.setup_name(3, "QUORUM"): published.FOOTPRINT_READS_180K["Cassandra, QUORUM", 3],
    }
    return seconds[name] / published.FOOTPRINT_READS_180K["Cassandra", 1] if name in seconds else None


def _setups(record: Record) -> list[str]:
    return sorted(name for name in _databases(record, "nodes") if name != growth.MAINTAINED)


def _apart(record: Record, name: str, what: str) -> Difference:
    """Ratio of a set-up's times to those of the first set-up, by month."""
    first, other = (_monthly(record, "nodes", each, what)[_WARM_MONTHS:] for each in (_ALONE, name))
    return compare_values(first, other)


def _loaded(record: Record, name: str) -> Difference:
    """Ratio of the time of a read under load to that with the first set-up."""
    per_s = record.parts["nodes"]["per_s"]
    return compare_values(*([1 / each for each in per_s[arm]] for arm in (_ALONE, name)))


def _levels_table(record: Record) -> str:
    rows = []
    for name in _setups(record):
        then = _then(name)
        here = [_apart(record, name, "read_ms"), _loaded(record, name), _apart(record, name, "store_ms")]
        cells = ["baseline"] * 3 if name == _ALONE else [ratio_text(each) for each in here]
        rate = statistics.median(record.parts["nodes"]["per_s"][name])
        then_text = "baseline" if name == _ALONE else "" if then is None else times_text(then)
        rows.append([name, then_text, *cells, f"{rate:,.1f}"])
    clients = record.parameters["nodes"]["clients"]
    header = ["", "published read", "read, one client", f"read, {clients} clients", "store, one client",
              f"reads per second, {clients} clients"]  # fmt: skip
    return markdown.table(header, rows)


def _agreement_of_levels(record: Record, loaded: bool) -> str:
    then = {name: ratio for name in _setups(record) if (ratio := _then(name)) is not None}
    found = {name: _loaded(record, name) if loaded else _apart(record, name, "read_ms") for name in then}
    return agreement(then, found)


# ---------------------------------------------------------------------- windows


_STATES = (growth.AS_STORED, growth.MAINTAINED)


def _windows_table(record: Record, part: str) -> str:
    on_nodes = part == "windows-nodes"
    rows = []
    for each in record.parts[part]["layouts"]:
        cells = []
        for state in _STATES:
            found = _window_ratios(record, part, state).get(each["name"])
            cells += [f"{statistics.median(each['read_ms'][state]):,.1f}", ratio_text(found) if found else "baseline"]
        cells += [f"{each['store_ms']:,.1f}"]
        if on_nodes:
            cells += [*(f"{each['read_cpu_ms'][state]:,.0f}" for state in _STATES), f"{each['store_cpu_ms']:,.0f}"]
        rows.append(
            [each["name"], *cells, f"{each['slices']}", f"{each['tiles']:,}", f"{each['bytes'] / 2**20:,.1f}"]
        )  # fmt: skip
    processor = [f"nodes' processor: read, {state}" for state in _STATES] + ["store"]
    header = ["windows", "read, ms", "against the first", "maintained", "against the first", "store, ms",
              *(processor if on_nodes else []), "slices of sources", "tiles", "MiB"]  # fmt: skip
    return markdown.table(header, rows)


def _window_ratios(record: Record, part: str, state: str) -> dict[str, Difference]:
    """Ratios of reads with each layout to those with the first."""
    first, *others = record.parts[part]["layouts"]
    return {each["name"]: compare_values(first["read_ms"][state], each["read_ms"][state]) for each in others}


# ---------------------------------------------------------------------- outage and others


def _turns(record: Record, phase: str, what: str) -> list[float]:
    return [value for turn in record.parts["outage"]["turns"] if turn["phase"] == phase for value in turn[what]]


def _outage_table(record: Record) -> str:
    rows = []
    for phase in growth.PHASES:
        cells = []
        for what in ("read_ms", "store_ms"):
            values = _turns(record, phase, what)
            starts = [turn[what][0] for turn in record.parts["outage"]["turns"] if turn["phase"] == phase]
            cells += [*(f"{value:,.1f}" for value in np.percentile(values, [50, 95])),
                      ", ".join(f"{value:,.0f}" for value in starts)]  # fmt: skip
        rows.append([phase, *cells])
    header = ["", "reads p50, ms", "p95", "first of each turn", "stores p50, ms", "p95", "first of each turn"]
    return markdown.table(header, rows)


def _gone(record: Record, what: str) -> Difference:
    """Ratio of times in the first turn after the others detected the outage to those before it."""
    first, away = (_first_turn(record, phase)[what] for phase in (growth.UP, growth.AWAY))
    return compare_values(first, away)


def _first_turn(record: Record, phase: str) -> Values:
    turn: Values = next(turn for turn in record.parts["outage"]["turns"] if turn["phase"] == phase)
    return turn


def _first_read_text(record: Record) -> str:
    """Compare the first read after the node was killed with the usual one."""
    usual = statistics.median(_turns(record, growth.UP, "read_ms"))
    first = _first_turn(record, growth.KILLED)["read_ms"][0]
    failed = f"{record.parts['outage']['failures']} operations failed"
    return verdict(first > _LATE * usual, f"the first read took {first / usual:.1f} times the usual; {failed}")


def _outage_text(record: Record) -> str:
    part = record.parts["outage"]
    whole = part["rows"] == part["rows_alone"]
    return (
        "After the others detected the outage, compared with before: reads: "
        f"{ratio_text(_gone(record, 'read_ms'))}; stores: {ratio_text(_gone(record, 'store_ms'))}. "
        f"{part['failures']} reads or stores failed and were retried. "
        f"{part['delivery_s']:.0f} s after the last visit, no node had hints left; the returned node alone then had "
        f"{part['rows_alone']:,} of the {part['rows']:,} rows of a footprint"
        + (", all of them." if whole else ": repair it, as after every outage.")
    )


def _others_table(record: Record) -> str:
    part, rows = record.parts["others"], []
    for arm in part["arms"]:
        read, cone = part["latency_ms"][arm]["read"], part["latency_ms"][arm].get("cone")
        found = [difference_of(part["comparisons"], arm, "read", what) for what in ("mean", 99.0)] if cone else []
        rows.append(
            [arm, *(f"{read[share]:,.1f}" for share in ("mean", "p50", "p99")), *(ratio_text(each) for each in found),
             *([""] * (2 - len(found))), f"{cone['p50']:,.1f}" if cone else ""]
        )  # fmt: skip
    header = ["", "reads mean, ms", "p50", "p99", "mean, against alone", "p99, against alone", "cones p50, ms"]
    return markdown.table(header, rows)


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    reads, both = {"read_ms": ""}, {"read_ms": "read, ", "store_ms": "store, "}
    figures = {
        "file": _growth_figure(record, "file", both, "Reads and stores of a detector in a file, medians of months"),
        "reads": _growth_figure(record, "nodes", reads, "Reads of a detector on three nodes, medians of months"),
        "stores": _growth_figure(
            record, "nodes", {"store_ms": ""}, "Stores of a detector on three nodes, medians of months"
        ),
    }
    given = record.parameters
    text = markdown.page(
        record,
        STUDY.title,
        "How do reads and stores of an alert production database grow over eighteen months, and what do copies, "
        "consistency levels, time partitions, a lost node and other clients cost? The study repeats measurements of "
        f"{published.ALERTS_2020}, scaled down.",
        f"In the published simulation, 189 clients, one per detector, read twelve months of their footprint and "
        "store the sources that they find, visit by visit, on a hemisphere of "
        f"{HEMISPHERE_VISITS:,.0f} fields. Here, one field is observed {given['file']['visits']} times in "
        f"{given['days']:g} days in a file and {given['nodes']['visits']} times on nodes. The published survey "
        f"observes each field {given['days'] * VISITS_A_NIGHT / HEMISPHERE_VISITS:.0f} times in as many days, with "
        f"{VISITS_A_NIGHT} visits a night; numbers of visits below are those of the published survey. "
        f"Detectors: {given['file']['detectors']} in the file, "
        f"{given['nodes']['detectors']} on nodes, one after another. Schema `{given['schema']}`, default layout.",
        "**All nodes and clients share one machine.** Compare shapes and ratios, not milliseconds with published "
        "seconds, which were measured with 189 concurrent clients. Databases take turns at each visit, so that a drift "
        "of the machine affects all of them. Intervals are 95 % confidence intervals; ± is one standard error.",
        *_growth_sections(record),
        "## Scatter",
        "Visits after twelve months. Published figures show a scatter from visit to visit, without numbers; each of "
        "their dots is the mean of 189 detectors, which hides the scatter of single detectors.",
        _scatter_table(record),
        *_levels_section(record),
        *_windows_section(record),
        *_company_sections(record),
        "## Beside the published study",
        _compared(record),
        markdown.made_by(record),
    )  # fmt: skip
    return Page(text, figures)


def _growth_sections(record: Record) -> list[str]:
    every = f"{record.parameters['maintain_days']:g} days"
    return [
        "## Growth in a file",
        f"Two databases store the same visits; one is maintained every {every}. Milliseconds of a detector's read of "
        "its three tables, and of its store, with lines fitted before and after twelve months:",
        _growth_table(record, "file"),
        markdown.figure(record, "file", "Milliseconds of reads and stores by month, in a file"),
        "Rows that a read returns from the maintained database:",
        _rows_table(record, "file", growth.MAINTAINED),
        "Sources and forced sources are those of twelve months. Objects include all that were ever observed, so their "
        "part of a read keeps growing.",
        "## Growth on three nodes",
        f"The same for each replication factor and consistency level, and for {growth.WHOLE} maintained every {every}. "
        "Where all of them rise or fall together, nodes compacted tables or compiled their code:",
        _growth_table(record, "nodes"),
        markdown.figure(record, "reads", "Milliseconds of reads by month, on three nodes"),
        markdown.figure(record, "stores", "Milliseconds of stores by month, on three nodes"),
        _rows_table(record, "nodes", growth.WHOLE),
    ]


def _levels_section(record: Record) -> list[str]:
    return [
        "## Replication factors and consistency levels",
        f"Ratios of times to those of {_ALONE}: single reads and stores, by month after the first {_WARM_MONTHS}; and "
        "reads by clients that never wait, after the last visit.",
        _levels_table(record),
    ]


def _windows_section(record: Record) -> list[str]:
    given = record.parameters["windows"]
    return [
        "## Tables of one, two and four months",
        f"{given['visits']} visits in twelve months by one detector. Windows and slices of sources have the same "
        "length, or short windows are in long slices, like time partitions inside a table; on a cluster, each slice is "
        f"a table. Medians of {given['repeat']} interleaved reads of the footprint, as stored and after maintenance. "
        "In a file:",
        _windows_table(record, "windows-file"),
        f"On three nodes, {growth.WHOLE}, with total processor milliseconds of all nodes:",
        _windows_table(record, "windows-nodes"),
    ]


def _company_sections(record: Record) -> list[str]:
    given, others = record.parameters["outage"], record.parameters["others"]
    return [
        "## A node gone",
        f"After twelve months, {growth.WHOLE}: {given['phase']} visits with all nodes; as many right after one of the "
        f"three was killed, {growth.NOTICE_S:g} s later, when the others have detected it, and after its return. "
        f"Outages: {given['rounds']}. Published: one of eight nodes was down for hours.",
        _outage_table(record),
        _outage_text(record),
        "## Other clients",
        f"{others['rate']:g} reads of the footprint per second after twelve months, {growth.WHOLE}, while other "
        "clients read cones of 0.05 degrees in the same field; no client stores anything.",
        _others_table(record),
        control_text(record.parts["others"]["comparisons"]),
    ]


def _more_rows(record: Record, part: str, name: str) -> float:
    """Relative growth of the rows of a read after twelve months."""
    tables = _databases(record, part)[name]["tables"].values()
    then, last = (sum(each["rows"][at] for each in tables) for at in (_YEAR_MONTHS - 1, -1))
    return float(last / then - 1)


_GROWN = (("file", growth.MAINTAINED), ("nodes", growth.WHOLE))
"""Databases that represent the growth of their engine."""


def _compared(record: Record) -> str:
    rise = _LARGE.seconds / _SMALL.seconds
    part = record.parts["outage"]
    rows = []
    for where, name in _GROWN:
        explained = _explained(record, where, name)
        found = _rise(record, where, name)
        below = float(np.median(_plateau(record, where, name, "store_ms")))
        below /= float(np.median(_plateau(record, where, name, "read_ms")))
        rows += [
            [f"Figure: reads grow linearly with visits; {where}", verdict(explained >= _LINEAR, f"a line explains "
             f"{explained:.0%} of the variance"), f"Database {name!r}; monthly medians. Other work of the nodes "
             "affects them." if where == "nodes" else f"Database {name!r}; monthly medians."],
            [f"Figure: reads stay level after twelve months; {where}", _level(record, where, name),
             "Ratio of the growth after to that before. Objects are not limited to twelve months, and each has a "
             f"forced source at every visit: a read returns {_more_rows(record, where, name):.0%} more rows in the "
             f"last month than in month {_YEAR_MONTHS}."],
            [f"Figure: plateau over reads at {_SMALL.visits:,} visits, {times_text(rise)}; {where}",
             agreement({"rise": rise}, {"rise": found}),
             f"Here: {ratio_text(found)}. The fixed cost of a read weighs more in small reads."],
            [f"Figure: stores are nearly constant and far below reads; {where}",
             verdict(below <= _FAR_BELOW, f"a store takes {below:.2f} of a read"),
             "Here, a read decodes a few chunks of many rows, and a transaction decides each store; there, rows were "
             "returned one by one."],
        ]  # fmt: skip
    rows += [
        ["Figure: scatter of reads and stores", "above", "Published without numbers."],
        ["Figure: saw-teeth of 30-day tables", "not examined", "Tables hold 120 days here."],
        ["Figures: reads with RF 1, RF 2, RF 3 at ONE and at QUORUM; one client", _agreement_of_levels(record, False),
         f"Ratios to {_ALONE}. One client waits for the slowest replica; nodes are not busy."],
        ["The same; clients that never wait", _agreement_of_levels(record, True),
         "As in the published study, nodes are busy, and each further replica costs processor time."],
        ["Text: no visible change for clients with tables of 60 instead of 30 days; nodes",
         _windows_agreement(record, 0), "As stored, before maintenance merges the chunks of a window."],
        ["Text: somewhat less work for servers then", _less_work(record), "Processor time of all nodes for a read."],
        ["Text: no difference between partitions of time and tables; nodes", _windows_agreement(record, -1),
         "Short windows in long slices, compared with one table per window."],
        ["Text: one of eight nodes down, no change in latencies",
         agreement(dict.fromkeys(("reads", "stores"), published.NODE_GONE),
                   {"reads": _gone(record, "read_ms"), "stores": _gone(record, "store_ms")}),
         "Here, one of three; the others then share the machine's processors among fewer nodes."],
        ["Text: time-outs at first", _first_read_text(record),
         "The others send requests to a killed node until they detect that it is down."],
        ["Text: recovery worked", verdict(part["rows"] == part["rows_alone"], f"{part['rows_alone']:,} of "
         f"{part['rows']:,} rows on the returned node"), "The rows come from hints."],
        ["Text: other concurrent clients, not tested", "above", "Not in the published study."],
        ["Figures: Scylla; 14 nodes in containers; 6 and 12 nodes", "not repeated",
         "Scylla is not available here, and more nodes do not add processors."],
    ]  # fmt: skip
    return markdown.table(["published", "here", "why"], rows, words=3)


def _less_work(record: Record) -> str:
    first, second, *_ = (each["read_cpu_ms"][growth.AS_STORED] for each in record.parts["windows-nodes"]["layouts"])
    return verdict(second < first, f"{first:,.0f} and {second:,.0f} ms")


def _windows_agreement(record: Record, place: int) -> str:
    found = list(_window_ratios(record, "windows-nodes", growth.AS_STORED).values())[place]
    return f"{agreement({'time': published.TIME_PARTITIONS}, {'time': found})}; {ratio_text(found)}"


_SETUPS = [[3, "QUORUM"], [1, "ONE"], [2, "ONE"], [2, "QUORUM"], [3, "ONE"]]

STUDY = Study(
    name="alert-database",
    title="An alert production database over eighteen months",
    repeats="growth, copies, time partitions and a lost node of an alert production database, 2020 and 2021",
    scales={
        "full": {
            "days": 540, "maintain_days": 30, "schema": "lsst", "heap": "500m", "seed": 1,
            "file": {"visits": 201, "detectors": 4},
            "windows": {"visits": 134, "lengths": ["30d", "60d", "120d"], "repeat": 25},
            "nodes": {"visits": 201, "detectors": 1, "setups": _SETUPS, "clients": 8, "seconds": 3.0, "warm_up": 150},
            "outage": {"year": 134, "phase": 15, "rounds": 2},
            "others": {"visits": 134, "rate": 5.0, "cones": [5.0, 20.0], "clients": 4, "seconds": 8.0},
        },
        "quick": {
            "days": 540, "maintain_days": 90, "schema": "small", "heap": "300m", "seed": 1,
            "file": {"visits": 36, "detectors": 1},
            "windows": {"visits": 12, "lengths": ["60d", "120d"], "repeat": 3},
            "nodes": {"visits": 36, "detectors": 1, "setups": [[3, "QUORUM"], [1, "ONE"]], "clients": 4,
                      "seconds": 0.3, "warm_up": 0},
            "outage": {"year": 12, "phase": 4, "rounds": 1},
            "others": {"visits": 12, "rate": 10.0, "cones": [10.0], "clients": 4, "seconds": 1.0},
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
