"""Cost of read repair for reads at QUORUM: with concurrent writers, and after a node missed writes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from chronotile_tools import published
from chronotile_tools.load.experiments import read_repair as experiment
from chronotile_tools.load.statistics import compare_values
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import Echo, harness, ratio_text
from chronotile_tools.studies.record import Record, Values

__all__ = ["STUDY"]

_MS = 1e3
_BLOCKING, _NONE = experiment.MODES
_PERCENTILES = (50, 95, 99)
_LEFT_OUT = "143, 170 and 209"
"""Mismatches of the run of 2026-11-27 at commit 8519bbb, whose reads left out a column."""
_ROWS, _TURNS = 20, 3


def _parts(parameters: Values) -> Iterator[Part]:
    yield Part("concurrent", partial(_concurrent, parameters), reports=True)
    yield Part("missed", partial(_missed, parameters), reports=True)
    yield Part("columns", partial(_columns, parameters), reports=True)


def _load(parameters: Values) -> experiment.Load:
    return experiment.Load(
        parameters["schema"], parameters["days"], parameters["transients"], parameters["warm_up"]
    )  # fmt: skip


def _concurrent(parameters: Values, echo: Echo) -> Values:
    given = parameters["concurrent"]
    with harness(parameters, echo) as ready:
        found = experiment.read_beside_writers(
            ready, _load(parameters), given["visits"], given["rounds"], given["stores"], given["every_s"]
        )
    return {
        "read_ms": {phase: _milliseconds(each) for phase, each in found.read_s.items()},
        "cpu_ms": {
            phase: {mode: _each(spent, [kind[mode] for kind in found.read_s[phase].values()])
                    for mode, spent in by_mode.items()}
            for phase, by_mode in found.cpu_s.items()
        },
        "repairs": {phase: _counters(each) for phase, each in found.repairs.items()},
        "store_ms": _milliseconds({"": found.store_s})[""],
    }  # fmt: skip


def _missed(parameters: Values, echo: Echo) -> Values:
    given = parameters["missed"]
    with harness(parameters, echo) as ready:
        found = experiment.read_what_was_missed(
            ready, _load(parameters), given["footprints"], given["visits"], given["missed"], given["turns"]
        )
    return {
        "turns": [
            {
                "name": turn.name,
                "read_ms": _milliseconds(turn.read_s),
                "cpu_ms": {kind: {mode: _each(spent, [turn.read_s[kind][mode]]) for mode, spent in by_mode.items()}
                           for kind, by_mode in turn.cpu_s.items()},
                "repairs": _counters(turn.repairs),
            }
            for turn in found.rounds
        ],
        "repaired": {mode: {"seconds": round(each.seconds, 2), "cpu_s": round(each.cpu_s, 2)}
                     for mode, each in found.repaired.items()},
    }  # fmt: skip


def _columns(parameters: Values, echo: Echo) -> Values:
    with harness(parameters, echo) as ready:
        found = experiment.read_columns(ready, _ROWS, _TURNS)
    return {"rows": _ROWS, "turns": {name: [asdict(each) for each in turns] for name, turns in found.items()}}


def _milliseconds(read_s: experiment.ReadSeconds) -> Values:
    return {
        kind: {mode: [round(each * _MS, 2) for each in took] for mode, took in by_mode.items()}
        for kind, by_mode in read_s.items()
    }


def _each(spent_s: float, reads: Sequence[Sequence[float]]) -> float:
    """Processor milliseconds per read."""
    return round(spent_s / sum(map(len, reads)) * _MS, 1)


def _counters(repairs: Mapping[str, experiment.Repairs]) -> Values:
    return {mode: asdict(each) for mode, each in repairs.items()}


# ---------------------------------------------------------------------- the page


def _none_over_blocking(read_ms: Values) -> str:
    return ratio_text(compare_values(read_ms[_BLOCKING], read_ms[_NONE]))


def _concurrent_table(part: Values) -> str:
    rows = []
    for phase, kinds in part["read_ms"].items():
        for kind, read_ms in kinds.items():
            for mode, took in read_ms.items():
                over = "baseline" if mode == _BLOCKING else _none_over_blocking(read_ms)
                times = (f"{value:,.1f}" for value in np.percentile(took, _PERCENTILES))
                rows.append([f"{phase}, {kind}: `{mode}`", f"{len(took):,}", *times, over])
    return markdown.table(["", "reads", "p50, ms", "p95", "p99", "against `BLOCKING`"], rows)


def _concurrent_counters(part: Values) -> str:
    rows = []
    for phase, repairs in part["repairs"].items():
        for mode, counted in repairs.items():
            reads = sum(len(read_ms[mode]) for read_ms in part["read_ms"][phase].values())
            rows.append([f"{phase}: `{mode}`", *_per_read(counted, reads), f"{part['cpu_ms'][phase][mode]:,.1f}"])
    header = ["", "mismatches in 100 reads", "repairing writes in 100 reads", "nodes' processor, ms per read"]
    return markdown.table(header, rows)


def _per_read(counted: Values, reads: int) -> list[str]:
    return [f"{100 * counted[what] / reads:,.1f}" for what in ("mismatches", "writes")]


def _missed_table(part: Values) -> str:
    rows = []
    after = [turn for turn in part["turns"] if turn["name"] != experiment.BEFORE]
    until_repair = _together([turn for turn in after if turn["name"] != experiment.REPAIRED])
    for name, read_ms in [*((turn["name"], turn["read_ms"]) for turn in after), ("all before repair", until_repair)]:
        complete, missed = (read_ms[kind] for kind in (experiment.COMPLETE, experiment.MISSED))
        for mode in experiment.MODES:
            over = ratio_text(compare_values(complete[mode], missed[mode]))
            rows.append(
                [f"{name}: `{mode}`", f"{len(missed[mode])}", f"{statistics.median(missed[mode]):,.1f}",
                 f"{statistics.median(complete[mode]):,.1f}", over,
                 "baseline" if mode == _BLOCKING else _none_over_blocking(missed)]
            )  # fmt: skip
    header = ["", "reads", "missed, ms", "complete, ms", "missed against complete", "missed, against `BLOCKING`"]
    return markdown.table(header, rows)


def _together(turns: Sequence[Values]) -> Values:
    """The reads of all turns."""
    return {
        kind: {mode: [each for turn in turns for each in turn["read_ms"][kind][mode]] for mode in experiment.MODES}
        for kind in (experiment.COMPLETE, experiment.MISSED)
    }


def _missed_counters(part: Values) -> str:
    rows = []
    for turn in part["turns"]:
        for mode, counted in turn["repairs"].items():
            reads = sum(len(read_ms[mode]) for read_ms in turn["read_ms"].values())
            spent = (f"{turn['cpu_ms'][kind][mode]:,.1f}" for kind in (experiment.MISSED, experiment.COMPLETE))
            rows.append([f"{turn['name']}: `{mode}`", *_per_read(counted, reads), *spent])
    header = [
        "",
        "mismatches in 100 reads",
        "repairing writes in 100 reads",
        "nodes' processor, ms: missed",
        "complete",
    ]
    return markdown.table(header, rows)


def _column_table(part: Values) -> str:
    rows = [
        [f"{name}, {experiment.round_name(number)}", f"{part['rows']}", f"{each['mismatches']}", f"{each['writes']}"]
        for name, turns in part["turns"].items()
        for number, each in enumerate(turns, 1)
    ]
    return markdown.table(["", "rows", "mismatches", "repairing writes"], rows)


def _conclusions(concurrent: Values, missed: Values) -> Iterator[str]:
    written = concurrent["read_ms"][experiment.WRITTEN][experiment.FRESH]
    counted = concurrent["repairs"][experiment.WRITTEN]
    mismatches = sum(each["mismatches"] for each in counted.values())
    yield (
        "**Concurrent reads and writes**, the open question: "
        f"{mismatches} partitions differed in {2 * sum(map(len, written.values()))} reads, because a write had reached "
        f"one copy and not yet the other; writes of repair: {counted[_BLOCKING]['writes']}. `NONE` compared "
        f"with `BLOCKING`, for reads of the footprint being written: {_none_over_blocking(written)}."
    )
    reads = _together(
        [turn for turn in missed["turns"] if turn["name"] not in (experiment.BEFORE, experiment.REPAIRED)]
    )
    over = {
        mode: ratio_text(
            compare_values(reads[experiment.COMPLETE][mode], reads[experiment.MISSED][mode])
        )
        for mode in experiment.MODES
    }  # fmt: skip
    yield (
        "**After missed writes**, a read that finds a difference reads both copies in full, with either option. "
        f"Compared with complete footprints: `BLOCKING`: {over[_BLOCKING]}; `NONE`: {over[_NONE]}."
    )
    first, *_, last = (
        {mode: _per_read(each["repairs"][mode], sum(len(read_ms[mode]) for read_ms in each["read_ms"].values()))[0]
         for mode in experiment.MODES}
        for each in missed["turns"] if each["name"] not in (experiment.BEFORE, experiment.REPAIRED)
    )  # fmt: skip
    yield (
        "**Reads repair the rows that they return**, if the option permits it and they request every column: "
        f"mismatches in 100 reads went from {first[_BLOCKING]} to {last[_BLOCKING]} with `BLOCKING`, and from "
        f"{first[_NONE]} to {last[_NONE]} with `NONE`. A read uses two of three copies, so only some reads use the "
        "node's copy, and rows that are not read stay missing: run `chronotile ops repair` after an outage that "
        "outlasted the hints."
    )
    yield (
        "**Leave the option as it is.** Reads at QUORUM are correct with either value. `NONE` avoids the writes of "
        "repair, but its reads keep finding the differences. The table `catalog` needs `BLOCKING`: batch records are "
        "read by a majority, not by serial reads, so without read repair a record whose write was interrupted may be "
        "returned by one read and not by the next."
    )


def _figure(record: Record) -> str:
    turns = [turn for turn in record.parts["missed"]["turns"] if turn["name"] != experiment.BEFORE]
    places = [float(place) for place in range(len(turns))]
    series = {
        f"read_repair {mode}": (
            places,
            [compare_values(turn["read_ms"][experiment.COMPLETE][mode], turn["read_ms"][experiment.MISSED][mode]).ratio
             for turn in turns],
        )
        for mode in experiment.MODES
    }  # fmt: skip
    ticks = [(place, turn["name"]) for place, turn in zip(places, turns, strict=True)]
    title = "Reads of footprints with missed writes, ratio to complete footprints"
    return charts.lines(title, "", "ratio", series, x_ticks=ticks, y_log=False)


def _page(record: Record) -> Page:
    given, concurrent, missed = record.parameters, record.parts["concurrent"], record.parts["missed"]
    stored = concurrent["store_ms"]
    text = markdown.page(
        record,
        STUDY.title,
        "How much does read repair cost reads at QUORUM, with concurrent writers and after a node has missed writes? "
        f"The first published study of an alert database leaves this open ({published.ALERTS_2020}). A read at QUORUM "
        "compares digests of two copies. If they differ, Cassandra reads both copies in full. By default (`read_repair "
        "= 'BLOCKING'`) it then writes missing data to a copy and waits for that before it answers; with `'NONE'` it "
        "only merges the copies for this answer.",
        "Three laboratory nodes with replication factor 3, all requests at QUORUM; schema "
        f"`{given['schema']}`, default layout. Two databases store the same detector-visits. All tables of one have "
        "`BLOCKING`, as Chronotile creates them, those of the other `NONE`. Each footprint is read from both, one "
        "after the other in alternating order, and these pairs are compared. **All nodes and clients share one "
        "machine.** Compare ratios. Intervals are 95 % confidence intervals.",
        "Every read returned exactly the acknowledged sources and forced sources. With concurrent writers, every read "
        "returned all acknowledged rows, and no rows that no client was storing.",
        "## While others write",
        f"Another client of each database stores a detector-visit every {given['concurrent']['every_s']:g} s "
        f"({len(stored[_BLOCKING])} in each), alternating with periods without writers. Two footprints are read: the "
        "one being written, which includes the newest rows, and an older one.",
        _concurrent_table(concurrent),
        "With so few reads, the 99th percentile is close to the maximum. Mismatches are partitions whose copies "
        "differed; a footprint covers several. The processor time includes concurrent work for other clients.",
        _concurrent_counters(concurrent),
        "Without writers and missed writes, digests agree, and the option has no effect.",
        "## After a node missed writes",
        f"{given['missed']['footprints']} footprints have {given['missed']['visits']} visits, of which a node missed "
        f"the last {given['missed']['missed']}; as many other footprints are complete on the node. Hints are disabled. "
        f"After its return, the node is warmed up by {given['warm_up']} reads of another database, and each footprint "
        "is read several times from both databases; then both keyspaces are repaired. Reads of complete footprints are "
        "interleaved with the others and show other effects.",
        _missed_table(missed),
        markdown.figure(record, "missed", "Times of reads after a node missed writes, over those of complete "
                        "footprints, with and without read repair"),
        _missed_counters(missed),
        f"`nodetool repair -full` took {missed['repaired'][_BLOCKING]['seconds']:.1f} s for the database with "
        f"`BLOCKING` ({missed['repaired'][_BLOCKING]['cpu_s']:.1f} s of processor time), partly repaired by reads, "
        f"and {missed['repaired'][_NONE]['seconds']:.1f} s for the other ({missed['repaired'][_NONE]['cpu_s']:.1f} s).",
        "## Which columns are repaired",
        "A node missed rows of two columns, each in its own partition. The rows are read at QUORUM through that node, "
        "from a table with `BLOCKING`:",
        _column_table(record.parts["columns"]),
        "Cassandra repairs the columns that a read selects. Digests cover the write times of all columns of a row, so "
        "they keep differing if a read leaves out a column. Chronotile's reads of chunks therefore select every "
        f"column. While they left out `byte_count`, this study counted {_LEFT_OUT} mismatches in 100 reads (reads 1, 2 "
        "and 3) with `BLOCKING`.",
        "## What follows",
        *_conclusions(concurrent, missed),
        markdown.made_by(record),
    )  # fmt: skip
    return Page(text, {"missed": _figure(record)})


STUDY = Study(
    name="read-repair",
    title="What read repair costs",
    repeats="an open question of 2020: read repair with concurrent reads and writes",
    scales={
        "full": {
            "schema": "lsst", "days": 180, "transients": 1_000, "warm_up": 100, "heap": "500m", "seed": 1,
            "concurrent": {"visits": 20, "rounds": 2, "stores": 40, "every_s": 0.2},
            "missed": {"footprints": 22, "visits": 6, "missed": 3, "turns": 3},
        },
        "quick": {
            "schema": "small", "days": 60, "transients": 1_000, "warm_up": 20, "heap": "300m", "seed": 1,
            "concurrent": {"visits": 4, "rounds": 1, "stores": 15, "every_s": 0.25},
            "missed": {"footprints": 4, "visits": 4, "missed": 2, "turns": 2},
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
