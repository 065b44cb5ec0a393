"""Versions of Cassandra in pairs under equal load: reads, writes, repair, compaction and garbage collection."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial

from chronotile_tools import published
from chronotile_tools.load.experiments import versions
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
)
from chronotile_tools.studies.record import Record, Values

__all__ = ["STUDY"]

_STATISTICS: tuple[float | str, ...] = (50.0, 95.0, 99.0)
_LEAST_S = 0.01
"""Lower bound for seconds of maintenance: shorter times are within the scatter of nodetool itself."""
_TABLE_FIGURES = {
    "read p50, ms": ("Read Latency 50%", 1e3), "read p95, ms": ("Read Latency 95%", 1e3),
    "read p99, ms": ("Read Latency 99%", 1e3), "write p99, us": ("Write Latency 99%", 1.0),
}  # fmt: skip
"""Rows of ``nodetool tablehistograms`` by published figure, and the figure's unit in microseconds."""


def _parts(parameters: Values) -> Iterator[Part]:
    for pair in parameters["pairs"]:
        yield Part(_part_name(pair), partial(_compare, parameters, pair), reports=True)


def _part_name(pair: Sequence[str]) -> str:
    return "-".join(pair)


def _compare(parameters: Values, pair: Sequence[str], echo: Echo) -> Values:
    load = versions.Load((pair[0], pair[1]), **parameters["load"])
    with harness(parameters, echo) as ready:
        found = versions.measure(ready, load)
    return {
        "names": found.names,
        "latency_ms": latencies(found.runs, found.names),
        "comparisons": comparisons(found.runs, found.names, _STATISTICS),
        "tables": found.histograms,
        "maintenance_s": {
            name: {what: [round(each, 3) for each in took] for what, took in every.items()}
            for name, every in found.maintenance_s.items()
        },
    }


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    load = record.parameters["load"]
    sections: list[str] = []
    for pair in record.parameters["pairs"]:
        sections += _pair_section(record, pair)
    values = load["tags"] * load["days"] * 86_400 // load["step_s"]
    text = markdown.page(
        record,
        STUDY.title,
        "Is a newer version of Cassandra faster, for clients and for maintenance? The study repeats a comparison of "
        f"{published.LOG_STORE_2020}, and continues it with later versions.",
        f"Two clusters of {load['nodes']} laboratory nodes with {min(load['nodes'], 3)} copies run side by side, and "
        f"the same load runs on them in turns: {load['rate']:g} reads per second, each of a day of a tag, and "
        f"{load['rate']:g} batches per second of 200 values, in runs of {load['seconds']:g} s, on {values:,} values "
        f"with {load['decimals']} decimals that Chronotile's historian stores in chunks. Before the measurements, each "
        f"cluster gets {load['warm_up']} runs, and as many as the control has, because newly started nodes compile "
        "their code. The published load was single log rows of 16 kB with a time to live. After the runs, each of "
        f"{load['rounds']} rounds stores {load['days_a_round']} more day(s) of values and maintains a node of each "
        "cluster in turns; the time of a no-op nodetool command is subtracted.",
        "**All nodes and clients share one machine.** Compare ratios, not milliseconds with those of other machines. "
        "Intervals are 95 % confidence intervals over pairs of neighbouring runs. Without a significant "
        "difference, the page gives the smallest one that would have been detected.",
        "## All pairs",
        "The newer version's time, compared with the older version's:",
        _summary(record),
        markdown.figure(record, "maintenance", "Seconds of maintenance, newer over older version, by pair"),
        *sections,
        "## Beside the published study",
        _compared(record),
        markdown.made_by(record),
    )
    return Page(text, {"maintenance": _figure(record)})


def _part(record: Record, pair: Sequence[str]) -> Values:
    return record.parts[_part_name(pair)]


def _own_s(part: Values, name: str, what: str) -> list[float]:
    """Seconds of maintenance by round, minus those of a no-op command."""
    took = part["maintenance_s"][name]
    nothing = statistics.median(took["no-op"])
    return [max(each - nothing, _LEAST_S) for each in took[what]]


def _speed(part: Values, what: str) -> Difference:
    older, newer = part["names"]
    return compare_values(_own_s(part, older, what), _own_s(part, newer, what))


def _client(part: Values, stream: str, what: float | str) -> Difference:
    return difference_of(part["comparisons"], part["names"][1], stream, what)


def _title(pair: Sequence[str]) -> str:
    return f"{pair[0]} against {pair[1]}"


def _summary(record: Record) -> str:
    pairs = record.parameters["pairs"]
    rows = [
        [f"{stream}s of clients, p{what:g}",
         *(ratio_text(_client(_part(record, pair), stream, what)) for pair in pairs)]
        for stream in ("read", "write")
        for what in _STATISTICS
    ]  # fmt: skip
    rows += [
        [what, *(ratio_text(_speed(_part(record, pair), what)) for pair in pairs)] for what in versions.MAINTENANCE
    ]
    return markdown.table(["", *map(_title, pairs)], rows)


def _figure(record: Record) -> str:
    pairs = record.parameters["pairs"]
    rows = [
        (f"{what}, {_title(pair)}", (_published_ratio(what) if place == 0 else None,
                                     _speed(_part(record, pair), what).ratio))
        for what in versions.MAINTENANCE
        for place, pair in enumerate(pairs)
    ]  # fmt: skip
    return charts.dots(
        "Seconds of maintenance, newer over older version", "ratio", rows, ["published, after 90 min", "here"]
    )  # fmt: skip


def _published_ratio(what: str) -> float:
    old, new = published.VERSIONS[f"{what}, s"]
    return new / old


def _pair_section(record: Record, pair: Sequence[str]) -> list[str]:
    part = _part(record, pair)
    return [
        f"## {_title(pair)}",
        "Response times of clients, milliseconds:",
        _clients_table(part),
        control_text(part["comparisons"]),
        "Figures of the nodes: histograms of the most used table, which have coarse steps, as median, smallest and "
        "largest of the nodes; and seconds of maintenance by round:",
        _inside_table(part),
    ]


def _clients_table(part: Values) -> str:
    rows = []
    for stream in ("read", "write"):
        for name in part["names"]:
            each = part["latency_ms"][name][stream]
            rows.append(
                [f"{stream}s, {name}", *(f"{each[share]:,.1f}" for share in ("mean", "p50", "p95", "p99")),
                 f"{each['failed'] + each['timed_out']:,}"]
            )  # fmt: skip
    return markdown.table(["", "mean", "p50", "p95", "p99", "failed"], rows)


def _inside_table(part: Values) -> str:
    rows = []
    for label, (row, unit) in _TABLE_FIGURES.items():
        rows.append([f"table: {label}", *(_spread(_inside(part, name, row, unit)) for name in part["names"])])
    for what in versions.MAINTENANCE:
        cells = [", ".join(f"{each:.1f}" for each in _own_s(part, name, what)) for name in part["names"]]
        rows.append([f"{what}, s", *cells])
    return markdown.table(["", *part["names"]], rows)


def _inside(part: Values, name: str, row: str, unit: float) -> list[float]:
    return [each[row] / unit for each in part["tables"][name] if row in each]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):,.2f} ({min(values):,.2f} to {max(values):,.2f})"


def _compared(record: Record) -> str:
    first = record.parameters["pairs"][0]
    part = _part(record, first)
    reads = {f"p{what:g}": _client(part, "read", what) for what in _STATISTICS}
    then_reads = {name: published.VERSIONS[f"read {name}, ms"] for name in ("p50", "p95", "p99")}
    rows = [
        ["Table: reads, p50, p95, p99", agreement({name: new / old for name, (old, new) in then_reads.items()}, reads),
         "Published: times reported by tables, in steps of a fifth. Compared here: times of clients, which have "
         "intervals; those of tables are above."],
        ["Table: writes, p99, alike", agreement({"p99": _write_ratio()}, {"p99": _client(part, "write", 99.0)}),
         "A batch of values here is a chunk and a lightweight transaction, not a row."],
    ]  # fmt: skip
    for what, (old, new) in published.MAINTENANCE_S.items():
        ratios = [newer / older for older, newer in zip(old, new, strict=True)]
        found = _speed(part, what)
        rows.append(
            [f"Table: {what} after {', '.join(published.MAINTENANCE_AFTER)}: {_list(old)} to {_list(new)} s",
             agreement({what: statistics.geometric_mean(ratios)}, {what: found}),
             f"Published: {', '.join(map(times_text, ratios))}. Here: {ratio_text(found)}. Each node "
             "had gigabytes there, and has megabytes here, so the fixed cost of a command weighs more."]
        )  # fmt: skip
    rows += [
        ["Setting: 3 million rows an hour with a time to live", "not repeated",
         "Values arrive as from a plant, and chunks have no time to live: whole slices are dropped."],
        ["Later versions", ", ".join(_title(pair) for pair in record.parameters["pairs"][1:]) or "none",
         "Not in the published study. 6.0 is an alpha version."],
    ]  # fmt: skip
    return markdown.table(["published, 3.11 against 4.0", "here", "why"], rows, words=3)


def _write_ratio() -> float:
    old, new = published.VERSIONS["write p99, us"]
    return new / old


def _list(values: Sequence[float]) -> str:
    return "/".join(f"{value:g}" for value in values)


STUDY = Study(
    name="log-store-versions",
    title="Versions of Cassandra under equal load",
    repeats="3.11 and 4.0 of a log store, 2020",
    scales={
        "full": {
            "pairs": [["3.11", "4.0"], ["4.0", "4.1"], ["4.1", "5.0"], ["5.0", "6.0"]], "heap": "400m", "seed": 1,
            "load": {"nodes": 3, "seconds": 3.0, "tags": 20, "days": 6, "step_s": 2, "rounds": 5, "decimals": 15,
                     "days_a_round": 1, "rate": 15.0, "warm_up": 20},
        },
        "quick": {
            "pairs": [["3.11", "4.0"]], "heap": "300m", "seed": 1,
            "load": {"nodes": 2, "seconds": 0.5, "tags": 10, "days": 2, "step_s": 30, "rounds": 2, "decimals": 15,
                     "days_a_round": 1, "rate": 8.0, "warm_up": 0},
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
