"""An alert production database that changes: daily re-association, and archiving, restoring and removal of old slices,
in a file and on nodes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from chronotile_tools import published
from chronotile_tools.load.experiments import changes, growth
from chronotile_tools.load.statistics import compare_values
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import Echo, harness, ratio_text
from chronotile_tools.studies.record import Record, Values
from chronotile_tools.survey.simulate.universe import Survey

__all__ = ["STUDY"]

_MS = 1e3
_MIB = 2**20
_MONTHS = 12
_STATES = {
    changes.AS_STORED: "as stored",
    changes.ARCHIVED: "archived, from the database alone",
    changes.WITH_FILES: "archived, with the files",
    changes.RESTORED: "restored",
    changes.RETIRED: "removed",
}
_STEPS = {changes.ARCHIVED: "archive", changes.RESTORED: "restore", changes.RETIRED: "remove"}


def _parts(parameters: Values) -> Iterator[Part]:
    yield Part("file", partial(_file, parameters), reports=True)
    yield Part("nodes", partial(_nodes, parameters), reports=True)


def _file(parameters: Values, echo: Echo) -> Values:
    return _values(changes.change_file(*_arguments(parameters), echo))


def _nodes(parameters: Values, echo: Echo) -> Values:
    with harness(parameters, echo) as ready:
        return _values(changes.change_nodes(ready, *_arguments(parameters)))


def _arguments(parameters: Values) -> tuple[Survey, str, int, float, int]:
    survey = growth.evenly(parameters["visits"], parameters["days"], 1, parameters["seed"])
    return survey, parameters["schema"], parameters["one_in"], parameters["keep_days"], parameters["repeat"]


def _values(found: changes.Changes) -> Values:
    def ms(seconds: Sequence[float]) -> list[float]:
        return [round(each * _MS, 2) for each in seconds]

    return {
        "read_ms": {name: ms(cost.read_s) for name, cost in found.stored.items()},
        "store_ms": {name: ms(cost.seconds) for name, cost in found.stored.items()},
        "change_ms": ms(found.change_s), "changed": found.changed,
        "change_cpu_ms": round(found.change_cpu_s / len(found.changed) * _MS, 1),
        "steps": [{**asdict(step), "seconds": round(step.seconds, 3), "cpu_s": round(step.cpu_s, 2)}
                  for step in found.steps],
        "recent_ms": {state: ms(seconds) for state, seconds in found.recent_s.items()},
        "whole_ms": {state: ms(seconds) for state, seconds in found.whole_s.items()},
        "rows": found.rows,
    }  # fmt: skip


# ---------------------------------------------------------------------- the page


def _change_table(record: Record) -> str:
    rows = []
    for where, part in record.parts.items():
        half = len(part["change_ms"]) // 2
        late = np.asarray(part["change_ms"][half:])
        ratios = [
            ratio_text(compare_values(*(part[what][name][half:] for name in (changes.UNCHANGED, changes.REASSOCIATED))))
            for what in ("read_ms", "store_ms")
        ]
        rows.append(
            [where, f"{len(part['change_ms'])}", f"{statistics.median(part['changed']):g}",
             *(f"{value:,.1f}" for value in np.percentile(late, [50, 95])),
             f"{part['change_cpu_ms']:,.0f}" if part["change_cpu_ms"] else "", *ratios]
        )  # fmt: skip
    header = ["", "calls", "sources per call", "p50, ms", "p95", "nodes' processor, ms",
              "reads, against unchanged", "stores, against unchanged"]  # fmt: skip
    return markdown.table(header, rows)


def _step_table(record: Record) -> str:
    rows = []
    for where, part in record.parts.items():
        for step in part["steps"]:
            size = f"{step['bytes'] / _MIB:,.1f}" if step["bytes"] else ""
            rows.append(
                [f"{where}: {_STEPS[step['name']]}", f"{step['slices']}", f"{step['rows']:,}", size,
                 f"{step['seconds']:,.2f}", f"{step['cpu_s']:,.1f}" if step["cpu_s"] else ""]
            )  # fmt: skip
    return markdown.table(["", "slices", "rows", "MiB of files", "seconds", "nodes' processor, s"], rows)


def _read_table(record: Record) -> str:
    rows = []
    for where, part in record.parts.items():
        first = part["recent_ms"][changes.AS_STORED]
        for state, words in _STATES.items():
            recent = part["recent_ms"][state]
            over = "baseline" if state == changes.AS_STORED else ratio_text(compare_values(first, recent))
            rows.append(
                [f"{where}: {words}", f"{statistics.median(recent):,.1f}", over, f"{part['rows'][state]:,}",
                 f"{statistics.median(part['whole_ms'][state]):,.1f}"]
            )  # fmt: skip
    header = ["", "latest, ms", "against as stored", "rows, whole database", "whole database, ms"]
    return markdown.table(header, rows)


def _monthly(record: Record, where: str, name: str) -> list[float]:
    values = record.parts[where]["read_ms"][name]
    return [float(np.median(each)) for each in np.array_split(np.asarray(values), _MONTHS)]


def _figure(record: Record) -> str:
    months = [month + 1.0 for month in range(_MONTHS)]
    series = {
        f"{where}, {name}": (months, _monthly(record, where, name))
        for where in record.parts
        for name in (changes.UNCHANGED, changes.REASSOCIATED)
    }
    ticks = [(float(month), str(month)) for month in (1, 3, 6, 9, 12)]
    title = "Reads of a detector's footprint, with and without re-association by day, medians of months"
    return charts.lines(title, "month", "milliseconds", series, x_ticks=ticks)


def _page(record: Record) -> Page:
    given = record.parameters
    text = markdown.page(
        record,
        STUDY.title,
        "What do changes of an alert production database cost, and how do they affect reads? The changes are daily "
        "re-association of sources, and archiving, restoring and removal of old slices. The published studies name "
        f"these as not tested ({published.ALERTS_2020}).",
        f"One field is observed {given['visits']} times in {given['days']:g} days by one detector; schema "
        f"`{given['schema']}`, default layout. The same visits are stored in two databases in turns. In one of them, "
        f"sources are re-associated: before each visit, one in {given['one_in']} sources of the previous visit is "
        "assigned to a solar-system object, given with its position and time. At the end, the slices of sources and "
        f"forced sources that end {given['keep_days']:g} days before the last visit are archived to files, restored, "
        "and removed.",
        "**All nodes and clients share one machine.** Compare ratios. Intervals are 95 % confidence intervals.",
        "## Re-association by day",
        "Calls, reads and stores in the second half of the year; replication factor 3 at QUORUM on the nodes:",
        _change_table(record),
        "A re-associated source is a newer version in a separate chunk, which each read merges. Neither database was "
        "maintained during the year; `maintain` merges versions.",
        markdown.figure(record, "reads", "Milliseconds of reads by month, with and without re-association by day"),
        "## Archiving and removal",
        "On nodes, archiving and removal wait 12 s, until writers know that slices will be dropped.",
        _step_table(record),
        f"Reads of sources and forced sources in a footprint, for the latest {given['keep_days'] / 2:g} days and for "
        f"the whole database; medians of {given['repeat']}:",
        _read_table(record),
        markdown.made_by(record),
    )
    return Page(text, {"reads": _figure(record)})


STUDY = Study(
    name="alert-changes",
    title="An alert production database that changes",
    repeats="changes that were not tested in 2021: daily re-association, archiving and removal",
    scales={
        "full": {
            "visits": 180, "days": 365, "schema": "lsst", "one_in": 20, "keep_days": 120, "repeat": 25, "heap": "500m",
            "seed": 1,
        },
        "quick": {
            "visits": 24, "days": 365, "schema": "small", "one_in": 10, "keep_days": 120, "repeat": 3, "heap": "300m",
            "seed": 1,
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
