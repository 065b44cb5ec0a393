"""Changes of an alert production database: daily re-association; archiving, restoring and removal of old slices; in
files, and on three nodes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from chronotile import apdb
from chronotile.apdb import Apdb, Layout, names
from chronotile_tools import lab
from chronotile_tools.load.experiments.base import Harness, StoreCost, archive_url, cpu_s, load_survey
from chronotile_tools.survey.simulate.universe import PADDING_DEG, Survey

__all__ = [
    "ARCHIVED", "AS_STORED", "REASSOCIATED", "RESTORED", "RETIRED", "UNCHANGED", "WITH_FILES", "Changes", "Step",
    "change_file", "change_nodes",
]  # fmt: skip

UNCHANGED, REASSOCIATED = "unchanged", "re-associated"
AS_STORED, ARCHIVED, WITH_FILES, RESTORED, RETIRED = "as stored", "archived", "with files", "restored", "retired"
_MOMENT_DAYS = 1e-3


@dataclass(frozen=True)
class Step:
    """One call that archived, restored or removed slices.

    Attributes
    ----------
    name : str
        :data:`ARCHIVED`, :data:`RESTORED` or :data:`RETIRED`.
    seconds, cpu_s : float
        Duration, and processor time of all nodes.
    slices, rows, bytes : int
        Number of slices and of their rows, and bytes of files; 0 bytes without files.
    """

    name: str
    seconds: float
    cpu_s: float
    slices: int
    rows: int
    bytes: int = 0


@dataclass
class Changes:
    """A database whose sources are re-associated every day, and one that is never changed.

    Attributes
    ----------
    stored : dict of str to StoreCost
        Reads and stores of each visit, by database.
    change_s : list of float
        Seconds of each day's re-association.
    changed : list of int
        Sources changed by each re-association.
    change_cpu_s : float
        Total processor time of the nodes for all re-associations.
    steps : list of Step
        Archiving, restoring and removal of old slices at the end.
    recent_s, whole_s : dict of str to list of float
        Seconds of reads of the latest slices, and of the whole database, by state.
    rows : dict of str to int
        Sources and forced sources in a read of the whole database, by state.
    """

    stored: Mapping[str, StoreCost]
    change_s: list[float] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    change_cpu_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    recent_s: dict[str, list[float]] = field(default_factory=dict)
    whole_s: dict[str, list[float]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def change_file(
    survey: Survey, schema: str, one_in: int, keep_days: float, repeat: int, echo: Callable[[str], object]
) -> Changes:
    """Measure the changes in files."""
    with tempfile.TemporaryDirectory() as folder:
        urls = {name: f"sqlite:{Path(folder) / name}.db" for name in (UNCHANGED, REASSOCIATED)}
        return _change(urls, survey, schema, one_in, keep_days, repeat, [], echo)


def change_nodes(harness: Harness, survey: Survey, schema: str, one_in: int, keep_days: float, repeat: int) -> Changes:
    """Measure the changes on three nodes with replication factor 3 at QUORUM."""
    with harness.cluster(3) as cluster:
        urls = {
            name: archive_url(cluster, name.replace("-", "_"), replication=3, consistency="QUORUM")
            for name in (UNCHANGED, REASSOCIATED)
        }
        return _change(urls, survey, schema, one_in, keep_days, repeat, cluster.nodes, harness.echo)


def _change(
    urls: dict[str, str], survey: Survey, schema: str, one_in: int, keep_days: float, repeat: int,
    nodes: Sequence[lab.Node], echo: Callable[[str], object],
) -> Changes:  # fmt: skip
    found = Changes({})

    def before(visit: int) -> None:
        if visit == 0:
            return
        with apdb.open(urls[REASSOCIATED]) as database:
            chosen = _chosen(database, survey, visit - 1, one_in)
            spent, began = cpu_s(nodes), time.perf_counter()
            found.changed.append(database.reassociate(chosen))
            found.change_s.append(time.perf_counter() - began)
            found.change_cpu_s += cpu_s(nodes) - spent

    echo(f"storing {survey.visits} visits, one in {one_in} sources of each re-associated before the next")
    found.stored = load_survey(urls, survey, dict.fromkeys(urls, Layout()), nodes, schema, read_all=True, before=before)
    with apdb.open(urls[REASSOCIATED]) as database, tempfile.TemporaryDirectory() as folder:
        _move(database, survey, Path(folder), keep_days, repeat, nodes, found, echo)
    return found


def _chosen(database: Apdb, survey: Survey, visit: int, one_in: int) -> pa.Table:
    """Sources of a visit that are re-associated, as if a daily search for solar-system objects had linked them."""
    at = survey.time(visit)
    region = survey.footprint(visit, 0, PADDING_DEG)
    columns = [names.SOURCE_ID, names.RA, names.DEC, names.TIME]
    sources = database.sources(region, start=at - _MOMENT_DAYS, at=at + _MOMENT_DAYS, columns=columns).to_arrow()
    linked = sources.filter(pa.array(sources[names.SOURCE_ID].to_numpy() % one_in == 0))
    return linked.append_column(names.SS_OBJECT_ID, linked[names.SOURCE_ID])


def _move(
    database: Apdb, survey: Survey, folder: Path, keep_days: float, repeat: int, nodes: Sequence[lab.Node],
    found: Changes, echo: Callable[[str], object],
) -> None:  # fmt: skip
    """Archive the slices before the last `keep_days`, restore them, and remove them, with reads in between."""
    last = survey.time(survey.visits - 1)
    region = survey.footprint(0, 0, PADDING_DEG)

    def read(state: str, files: Path | None = None) -> None:
        asked: dict[str, Any] = {"at": last + _MOMENT_DAYS, "archived": files}
        found.recent_s[state], found.whole_s[state] = [], []
        for turn in range(repeat + 1):
            for days, kept in ((keep_days / 2, found.recent_s), (2 * last, found.whole_s)):
                began = time.perf_counter()
                tables = (database.sources, database.forced_sources)
                rows = sum(len(ask(region, history=days, **asked)) for ask in tables)
                # The first turn warms up.
                if turn:
                    kept[state].append(time.perf_counter() - began)
                    found.rows[state] = rows

    def step(name: str, call: Callable[[], tuple[int, int, int]]) -> None:
        spent, began = cpu_s(nodes), time.perf_counter()
        slices, rows, bytes = call()
        found.steps.append(Step(name, time.perf_counter() - began, cpu_s(nodes) - spent, slices, rows, bytes))
        echo(f"{name}: {slices} slices with {rows} rows in {found.steps[-1].seconds:.1f} s")

    def files(parts: Sequence[Any]) -> tuple[int, int, int]:
        return len(parts), sum(part.rows for part in parts), sum(part.bytes for part in parts)

    def retired(dropped: Mapping[str, Sequence[Any]]) -> tuple[int, int, int]:
        every = [part for parts in dropped.values() for part in parts]
        return len(every), sum(part.rows for part in every), 0

    read(AS_STORED)
    step(ARCHIVED, lambda: files(database.archive_before(last - keep_days, folder)))
    read(ARCHIVED)
    read(WITH_FILES, folder)
    step(RESTORED, lambda: files(database.restore(folder)))
    read(RESTORED)
    step(RETIRED, lambda: retired(database.retire(last - keep_days)))
    read(RETIRED)
