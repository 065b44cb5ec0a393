"""Measure the cost of partitioning: one simulated survey in databases with several layouts, on any engine.

Pixels, windows and slices are varied one at a time. In each database, the last twelve months of a footprint are read
with one request for all cells, and with one request per cell, before and after maintenance.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronotile import apdb as own
from chronotile.apdb import names, values
from chronotile.apdb.layout import Layout
from chronotile.apdb.schema import Schema
from chronotile.errors import ArchiveNotFoundError, DatasetNotFoundError, InvalidInputError
from chronotile.pages import markup, plot
from chronotile.sky import Region
from chronotile.terminal import bytes_text, table_text
from chronotile_tools.survey.simulate import ChronotileDriver, Survey, Universe
from chronotile_tools.survey.simulate.universe import PADDING_DEG

__all__ = ["READS", "Measured", "layouts", "measure", "sections", "text"]

READS = {
    "one request": "all cells in one request",
    "one by one": "a request for each cell, one after another",
    "side by side": "a request for each cell, eight at once",
}
"""Ways to read the tables of a footprint, all with the same rows."""

_AT_ONCE = 8


@dataclass(frozen=True)
class Measured:
    """Cost of one layout.

    Attributes
    ----------
    name : str
        Name of the layout.
    layout : Layout
        The layout.
    store_ms : tuple of float
        Milliseconds to store each detector-visit.
    read_ms, maintained_ms : dict of str to tuple of float
        Milliseconds to read the footprint's three tables, by kind of :data:`READS`; before and after maintenance.
    rows : int
        Rows read.
    cells : int
        Pixels that a footprint touches.
    tables : int
        Slices of sources, which are tables on a cluster.
    tiles, bytes, cell_bytes_max : int
        Tiles, bytes, and bytes of the largest cell in a slice (on a cluster a partition), of all three tables.
    """

    name: str
    layout: Layout
    store_ms: tuple[float, ...]
    read_ms: dict[str, tuple[float, ...]]
    maintained_ms: dict[str, tuple[float, ...]]
    rows: int
    cells: int
    tables: int
    tiles: int
    bytes: int
    cell_bytes_max: int


def layouts(
    scheme: str, level: int, levels: Iterable[int], windows: Sequence[str], slices: Sequence[str]
) -> dict[str, Layout]:
    """A base of this level, and layouts that each differ from it in one setting, by name.

    Parameters
    ----------
    scheme, level : str, int
        The base's pixels; its window and slice are the first of `windows` and `slices`.
    levels, windows, slices : iterables
        Settings to try. A slice holds at least a window.
    """
    if not windows or not slices:
        raise InvalidInputError("give at least one window and one slice", kind="invalid-setting")
    base = Layout(scheme, level, windows[0], slice=slices[0])
    found = {f"{scheme} {level}, windows {windows[0]}, slices {slices[0]}": base}
    found |= {f"level {other}": dataclasses.replace(base, level=other) for other in levels if other != level}
    for window in windows[1:]:
        # A slice must hold at least a window: use the longer of the window and the base's slice.
        longer = max(slices[0], window, key=lambda text: values.days(text, "window"))
        found[f"windows {window}"] = dataclasses.replace(base, window=window, slice=longer)
    found |= {f"slices {length}": dataclasses.replace(base, slice=length) for length in slices[1:]}
    return found


def measure(
    url: str, survey: Survey, wanted: dict[str, Layout], schema: Schema, repeat: int = 5,
    progress: Callable[[int, int], object] | None = None,
) -> list[Measured]:  # fmt: skip
    """Store the survey in a database of each layout, and read it.

    Parameters
    ----------
    url : str
        Databases are created next to it, ``survey-1.db`` for ``survey.db``, keyspace ``survey_1`` for ``survey``.
        They stay; any that exists is refused.
    survey : Survey
        Data to store, the same in each.
    wanted : dict of str to Layout
        Layouts by name.
    schema : Schema
        The tables.
    repeat : int
        Reads of each footprint.
    progress : callable, optional
        Called with the detector-visits stored so far and in total.
    """
    places = [_numbered(url, number + 1) for number in range(len(wanted))]
    for place in places:
        _refuse_existing(place)
    universe, found = Universe(survey, schema), []
    total, done = len(wanted) * survey.visits * survey.detectors, 0

    def stored() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for place, (name, layout) in zip(places, wanted.items(), strict=True):
        own.create(place, schema, layout).close()
        store_ms = _fill(place, universe, stored)
        with own.open(place) as database:
            footprints = [survey.footprint(0, detector, PADDING_DEG) for detector in range(survey.detectors)]
            at = survey.time(survey.visits - 1) + 0.01
            before, rows = _read_all(database, footprints, at, repeat)
            database.maintain()
            after, same = _read_all(database, footprints, at, repeat)
            if rows != same:
                raise AssertionError(f"{rows} rows became {same} by maintenance")
            info = database.info()
        main = [info[names.dataset_name(table)] for table in names.MAIN_TABLES]
        found.append(Measured(
            name, layout, tuple(store_ms), before, after, rows,
            round(np.mean([len(_cells(layout, each)) for each in footprints])), len(main[1].slices),
            sum(each.tiles for each in main), sum(each.bytes for each in main),
            max(part.cell_bytes_max for each in main for part in each.slices),
        ))  # fmt: skip
    return found


def _numbered(url: str, number: int) -> str:
    base, mark, query = url.partition("?")
    if base.startswith("cassandra:"):
        return f"{base}_{number}{mark}{query}"
    stem, dot, suffix = base.rpartition(".")
    return f"{stem}-{number}.{suffix}" if dot and "/" not in suffix else f"{base}-{number}"


def _refuse_existing(url: str) -> None:
    try:
        own.open(url, read_only=True).close()
    except (ArchiveNotFoundError, DatasetNotFoundError):
        return
    raise InvalidInputError(f"{url} exists: use another archive", kind="invalid-request")


def _fill(url: str, universe: Universe, stored: Callable[[], None]) -> list[float]:
    """Store all detector-visits; return the milliseconds of each."""
    survey, driver, spent = universe.survey, ChronotileDriver(url), []
    for visit in range(survey.visits):
        for detector in range(survey.detectors):
            e = survey.exposure(visit, detector)
            known = driver.read(e.footprint(PADDING_DEG), e.mjd).known
            found = universe.observe(e, known)
            began = time.perf_counter()
            driver.store(e, driver.rows(found))
            spent.append((time.perf_counter() - began) * 1e3)
            stored()
    driver.close()
    return spent


def _cells(layout: Layout, footprint: Region) -> list[int]:
    return [cell for low, high in footprint.cover(layout.scheme, layout.level) for cell in range(low, high)]


def _read_all(
    database: own.Apdb, footprints: Sequence[Region], at: float, repeat: int
) -> tuple[dict[str, tuple[float, ...]], int]:
    """Milliseconds of interleaved reads by kind, and the rows of the footprints. The first round warms up."""
    spent: dict[str, list[float]] = {kind: [] for kind in READS}
    rows = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for turn in range(repeat + 1):
            counts = dict.fromkeys(READS, 0)
            for footprint in footprints:
                for kind in READS:
                    began = time.perf_counter()
                    counts[kind] += _read(database, footprint, at, kind, pool)
                    if turn:
                        spent[kind].append((time.perf_counter() - began) * 1e3)
            if len(set(counts.values())) > 1:
                raise AssertionError(f"the same footprints gave {counts} rows")
            rows = counts["one request"]
    return {kind: tuple(each) for kind, each in spent.items()}, rows


def _read(database: own.Apdb, footprint: Region, at: float, kind: str, pool: ThreadPoolExecutor) -> int:
    """Number of rows in all cells of a footprint. Reads whole cells, so that every kind does the same work."""
    cells = _cells(database.layout, footprint)
    since = at - database.layout.history_days
    requests: list[tuple[str, list[int]]] = []
    for table in names.MAIN_TABLES:
        requests += [(table, cells)] if kind == "one request" else [(table, [cell]) for cell in cells]

    def ask(request: tuple[str, list[int]]) -> int:
        table, some = request
        place: dict[str, Any] = {} if table == names.OBJECT else {"start": since, "end": at}
        return int(database.dataset(table).read(cells=some, **place).to_arrow().num_rows)

    return sum(pool.map(ask, requests) if kind == "side by side" else map(ask, requests))


# ---------------------------------------------------------------------- report


def _median(times: Sequence[float]) -> str:
    return f"{np.median(times):.1f}"


_HEADER = [
    "layout", "cells", "rows", "tables", "tiles", "largest cell", "store, ms", *(f"{kind}, ms" for kind in READS),
    *(f"{kind}, after maintenance" for kind in READS),
]  # fmt: skip


def _lines(found: Sequence[Measured]) -> list[list[str]]:
    return [
        [
            each.name, str(each.cells), f"{each.rows:,}", str(each.tables), f"{each.tiles:,}",
            bytes_text(each.cell_bytes_max),
            _median(each.store_ms), *(_median(each.read_ms[kind]) for kind in READS),
            *(_median(each.maintained_ms[kind]) for kind in READS),
        ]
        for each in found
    ]  # fmt: skip


def text(found: Sequence[Measured]) -> str:
    """Medians as a table."""
    return table_text(_HEADER, _lines(found), frozenset(range(1, len(_HEADER))))


def sections(found: Sequence[Measured]) -> list[str]:
    """Parts of a page: plots and a table."""
    best = [min(np.median(each.maintained_ms[kind]) for kind in READS) for each in found]
    fastest = found[int(np.argmin(best))].name
    words = (
        "One survey in databases of several layouts; all rows of twelve months in the cells that a footprint touches. "
        f"Marks are medians; lines extend from the smallest to the largest value. Fastest after maintenance: {fastest}."
    )
    kinds = "; ".join(f"{kind}: {meaning}" for kind, meaning in READS.items())
    reads = _dots("milliseconds to read a footprint, after maintenance", [(e.name, e.maintained_ms) for e in found])
    early = _dots("milliseconds to read a footprint, before maintenance", [(e.name, e.read_ms) for e in found])
    stores = _dots("milliseconds to store a detector-visit", [(e.name, {"store": e.store_ms}) for e in found])
    return [
        markup.section("Measured: reads", f"{words} {kinds}.", reads + early),
        markup.section("Measured: stores", "", stores),
        markup.section(
            "Measured: figures",
            "Medians; sizes are of all three tables.",
            markup.table(_HEADER, _lines(found), "names"),
        ),
    ]


def _dots(label: str, lines: Sequence[tuple[str, dict[str, tuple[float, ...]]]]) -> str:
    """Plot one line per layout, with the median and range of each kind."""
    left, right, top, step = 330.0, 1050.0, 40.0, 44.0
    bottom = top + step * len(lines)
    every = [value for _, kinds in lines for times in kinds.values() for value in times]
    x = plot.log(label, min(every) / 1.15, max(every) * 1.15, left, right)
    parts = []
    for value, words in x.ticks:
        at = float(x.place(np.array(value)))
        parts += [plot.line(at, top, at, bottom, "grid"), plot.text(at, bottom + 20, words, "tick", "middle")]
    parts.append(plot.text((left + right) / 2, bottom + 42, label, "label", "middle"))
    for row, (name, kinds) in enumerate(lines):
        middle = top + step * (row + 0.5)
        parts.append(plot.text(left - 14, middle + 4, name, "label", "end"))
        for number, times in enumerate(kinds.values()):
            y = middle + 11 * (number - (len(kinds) - 1) / 2)
            low, at, high = (float(x.place(np.array(v))) for v in (min(times), np.median(times), max(times)))
            parts += [plot.line(low, y, high, y, f"s{number}"), plot.marker(_SHAPES[number], at, y, f"f{number}", 4.5)]
    if len(lines[0][1]) > 1:
        for number, kind in enumerate(lines[0][1]):
            parts.append(plot.marker(_SHAPES[number], left + 4 + 130 * number, 18, f"f{number}", 4.5))
            parts.append(plot.text(left + 16 + 130 * number, 22, kind, "label"))
    return plot.svg(1080, bottom + 56, label, *parts)


_SHAPES = ("circle", "square", "triangle")
