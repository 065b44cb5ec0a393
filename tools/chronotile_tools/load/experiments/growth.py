"""An alert production database that grows past the twelve months that are read: in a file, and on three nodes with
several replication factors and consistency levels.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chronotile import apdb
from chronotile.apdb import Layout, names
from chronotile_tools import lab
from chronotile_tools.load.arms import RUNS_MIN, Arm, Runs, interleaved, run_arms
from chronotile_tools.load.experiments import outage
from chronotile_tools.load.experiments.base import Harness, StoreCost, archive_url, await_hints, cpu_s, load_survey
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import Cones, Footprints
from chronotile_tools.survey.simulate.universe import Survey

__all__ = [
    "AS_STORED", "AWAY", "KILLED", "MAINTAINED", "NOTICE_S", "PHASES", "RETURNED", "UP", "WHOLE", "Grown", "Outages",
    "Partitioned", "cones_name", "evenly", "grow_file", "grow_nodes", "layouts", "lose_node", "partition_file",
    "partition_nodes", "setup_name", "share",
]  # fmt: skip

BACKLOG = 5_000
TRIES = 5
"""Attempts per read or store while a node is down."""
SETTLE_S = 2 * outage.FLUSH_S + 10.0
"""Seconds after which the hints of timed-out writes are also in files."""
NOTICE_S = 20.0
"""Seconds after which the other nodes have detected that a node was killed."""
UP, KILLED, AWAY, RETURNED = "all up", "just killed", "one away", "returned"
PHASES = (UP, KILLED, AWAY, RETURNED)
AS_STORED, MAINTAINED = "as stored", "maintained"


def setup_name(copies: int, level: str) -> str:
    """Name of a replication factor and consistency level."""
    return f"RF {copies}, {level}"


WHOLE = setup_name(3, "QUORUM")
"""The set-up whose reads decide which objects are known; a second database of this set-up is maintained."""


@dataclass(frozen=True)
class Grown:
    """Results of databases that grew side by side.

    Attributes
    ----------
    stored : dict of str to StoreCost
        Reads and stores of each detector-visit, by database.
    runs : dict
        Reads of several clients at the end, by database; empty for files.
    """

    stored: Mapping[str, StoreCost]
    runs: Runs


def evenly(visits: int, days: float, detectors: int, seed: int) -> Survey:
    """A survey of one field at equal intervals."""
    return Survey(visits, detectors, visits, days / visits, seed=seed)


def grow_file(survey: Survey, schema: str, maintain_days: float, echo: Callable[[str], object]) -> Grown:
    """Store the survey in two files, one of which is maintained every `maintain_days`."""
    with tempfile.TemporaryDirectory() as folder:
        urls = {name: f"sqlite:{Path(folder) / name.replace(' ', '-')}.db" for name in (AS_STORED, MAINTAINED)}
        return Grown(_grow(urls, survey, schema, [], [MAINTAINED], maintain_days, echo), {})


def grow_nodes(
    harness: Harness, survey: Survey, schema: str, maintain_days: float, *, setups: Sequence[tuple[int, str]],
    clients: int, seconds: float, warm_up: int,
) -> Grown:  # fmt: skip
    """Store the survey on three nodes with each of `setups` (replication factor, consistency level), and once more with
    maintenance; then read with clients that never wait. Before that, `warm_up` visits are stored in another database,
    because newly started nodes compile their code.
    """
    with harness.cluster(3) as cluster:
        urls = {
            setup_name(copies, level): archive_url(
                cluster, f"rf{copies}_{level.lower()}", replication=copies, consistency=level
            )
            for copies, level in setups
        }
        _warm_up(cluster, survey, schema, warm_up, harness.echo)
        every = {**urls, MAINTAINED: archive_url(cluster, MAINTAINED, replication=3, consistency="QUORUM")}
        stored = _grow(every, survey, schema, cluster.nodes, [MAINTAINED], maintain_days, harness.echo)

        def streams(url: str, number: int) -> list[Stream]:
            return [Stream("read", Footprints(url, survey), Schedule.backlog(BACKLOG), clients)]

        arms = [Arm(name, functools.partial(streams, url)) for name, url in every.items()]
        runs = run_arms(harness.generator, arms, RUNS_MIN, drain_s=seconds, done=harness.keep)
    return Grown(stored, runs)


@dataclass(frozen=True)
class Outages:
    """Reads and stores past twelve months, while one of three nodes is killed and comes back.

    Attributes
    ----------
    stored : StoreCost
        Reads and stores of all detector-visits.
    phases : list of str
        Phase of each visit, one of :data:`PHASES`, or "" in the first twelve months.
    delivery_s : float
        Seconds from the last visit until no node had hints; at least :data:`SETTLE_S`.
    rows, rows_alone : int
        Rows of a footprint at the end, read from all nodes, and from the returned node while the others were stopped.
    """

    stored: StoreCost
    phases: Sequence[str]
    delivery_s: float
    rows: int
    rows_alone: int


def lose_node(harness: Harness, survey: Survey, schema: str, year: int, phase: int) -> Outages:
    """Store `year` visits; then go through :data:`PHASES` with `phase` visits each, and repeat all but the first phase
    until the survey ends.
    """
    phases = [_phase(visit - year, phase) for visit in range(survey.visits)]
    with harness.cluster(3) as cluster:
        last = cluster.nodes[-1]

        def before(visit: int) -> None:
            if visit == 0 or phases[visit] == phases[visit - 1]:
                return
            harness.echo(f"visit {visit}: {phases[visit]}")
            if phases[visit] == KILLED:
                last.kill()
            elif phases[visit] == AWAY:
                time.sleep(NOTICE_S)
            elif phases[visit] == RETURNED:
                last.start()

        url = archive_url(cluster, "outage", replication=3, consistency="QUORUM")
        urls, layouts = {WHOLE: url}, {WHOLE: Layout()}
        (stored,) = load_survey(
            urls, survey, layouts, cluster.nodes, schema, read_all=True, before=before, tries=TRIES
        ).values()  # fmt: skip
        last.start()
        began = time.monotonic()
        time.sleep(SETTLE_S)
        await_hints(cluster)
        took = time.monotonic() - began
        rows = _rows(Footprints(url, survey))
        for node in cluster.nodes[:-1]:
            node.stop()
        alone = _rows(Footprints(archive_url(cluster, "outage", consistency="ONE"), survey))
    return Outages(stored, phases, took, rows, alone)


def _phase(visit: int, length: int) -> str:
    """Phase of a visit by its number, counted from the first visit after twelve months."""
    if visit < 0:
        return ""
    turn = visit // length
    return PHASES[0] if turn == 0 else PHASES[1 + (turn - 1) % 3]


def _rows(target: Footprints) -> int:
    client = target.connect()
    try:
        return client.run(0)
    finally:
        client.close()


def share(
    harness: Harness, survey: Survey, schema: str, *, rate: float, cones: Sequence[float], clients: int, seconds: float
) -> tuple[list[str], Runs]:
    """Read footprints on three nodes, `rate` per second, while other clients read `cones` per second; return the names
    of the arms and their runs.
    """
    with harness.cluster(3) as cluster:
        url = archive_url(cluster, "shared", replication=3, consistency="QUORUM")
        harness.echo(f"storing {survey.visits} visits")
        load_survey({WHOLE: url}, survey, {WHOLE: Layout()}, cluster.nodes, schema, read_all=True)

        def streams(others: float, number: int) -> list[Stream]:
            def poisson(rate: float, seed: int) -> Schedule:
                return Schedule.poisson(rate, seconds, warm_up_s=0.5, seed=seed)

            seed = harness.settings.seed + 2 * number
            made = [Stream("read", Footprints(url, survey), poisson(rate, seed), clients)]
            if others:
                made.append(Stream("cone", Cones(url, survey), poisson(others, seed + 1), clients))
            return made

        rates = {cones_name(others): others for others in (0.0, *cones)}
        arms = [Arm(name, functools.partial(streams, others)) for name, others in rates.items()]
        return list(rates), run_arms(harness.generator, arms, done=harness.keep)


def cones_name(others: float) -> str:
    """Name of an arm with this many cones per second."""
    return f"{others:g} cones a second" if others else "alone"


def _warm_up(cluster: lab.Cluster, survey: Survey, schema: str, visits: int, echo: Callable[[str], object]) -> None:
    if visits:
        echo(f"warming up: {visits} visits")
        few = evenly(visits, survey.time(survey.visits - 1) - survey.time(0), 1, survey.seed)
        url = archive_url(cluster, "warm_up", replication=3)
        load_survey({WHOLE: url}, few, {WHOLE: Layout()}, cluster.nodes, schema, read_all=True)


def _grow(
    urls: dict[str, str], survey: Survey, schema: str, nodes: Sequence[lab.Node], maintained: Sequence[str],
    maintain_days: float, echo: Callable[[str], object],
) -> dict[str, StoreCost]:  # fmt: skip
    due = 0.0

    def before(visit: int) -> None:
        nonlocal due
        passed = survey.time(visit) - survey.time(0)
        if passed < due:
            return
        due += maintain_days
        echo(f"day {passed:.0f}: {visit} of {survey.visits} visits")
        for name in maintained:
            with apdb.open(urls[name]) as database:
                database.maintain()

    layouts = dict.fromkeys(urls, Layout())
    return load_survey(urls, survey, layouts, nodes, schema, read_all=True, before=before)


@dataclass
class Partitioned:
    """Costs of a layout.

    Attributes
    ----------
    stored : StoreCost
        Reads and stores of the survey.
    read_s : dict of str to list of float
        Seconds of reads of the last twelve months, by state: :data:`AS_STORED` and :data:`MAINTAINED`.
    read_cpu_s : dict of str to float
        Processor time of the nodes for such a read, by state.
    slices, tiles, bytes : int
        Slices of sources (on a cluster, each is a table); tiles and bytes of all tables, after maintenance.
    """

    stored: StoreCost
    read_s: dict[str, list[float]] = field(default_factory=dict)
    read_cpu_s: dict[str, float] = field(default_factory=dict)
    slices: int = 0
    tiles: int = 0
    bytes: int = 0


def partition_file(
    survey: Survey, schema: str, months: Sequence[str], repeat: int, echo: Callable[[str], object]
) -> dict[str, Partitioned]:
    """Measure the costs of :func:`layouts` in files."""
    with tempfile.TemporaryDirectory() as folder:
        urls = {name: f"sqlite:{Path(folder) / str(place)}.db" for place, name in enumerate(layouts(months))}
        return _partition(urls, survey, schema, months, repeat, [], echo)


def partition_nodes(
    harness: Harness, survey: Survey, schema: str, months: Sequence[str], repeat: int, warm_up: int
) -> dict[str, Partitioned]:
    """Measure the costs of :func:`layouts` on three nodes with replication factor 3 at QUORUM."""
    with harness.cluster(3) as cluster:
        _warm_up(cluster, survey, schema, warm_up, harness.echo)
        urls = {
            name: archive_url(cluster, f"layout_{place}", replication=3, consistency="QUORUM")
            for place, name in enumerate(layouts(months))
        }
        return _partition(urls, survey, schema, months, repeat, cluster.nodes, harness.echo)


def layouts(months: Sequence[str]) -> dict[str, Layout]:
    """Layouts by name: for each length in `months`, windows and slices of that length; and windows of the first length
    in slices of the last.
    """
    found = {f"{length}, a table each": Layout(window=length, slice=length) for length in months}
    return {**found, f"{months[0]} in tables of {months[-1]}": Layout(window=months[0], slice=months[-1])}


def _partition(
    urls: dict[str, str], survey: Survey, schema: str, months: Sequence[str], repeat: int, nodes: Sequence[lab.Node],
    echo: Callable[[str], object],
) -> dict[str, Partitioned]:  # fmt: skip
    echo(f"storing {survey.visits} visits in {len(urls)} layouts")
    stored = load_survey(urls, survey, layouts(months), nodes, schema, read_all=True)
    found = {name: Partitioned(cost) for name, cost in stored.items()}
    _read_in_turns(urls, survey, found, AS_STORED, repeat, nodes)
    for name, url in urls.items():
        echo(f"maintaining {name}")
        with apdb.open(url) as database:
            database.maintain()
            tables = [database.info()[names.dataset_name(table)] for table in names.MAIN_TABLES]
        found[name].slices = len(tables[1].slices)
        found[name].tiles = sum(each.tiles for each in tables)
        found[name].bytes = sum(each.bytes for each in tables)
    _read_in_turns(urls, survey, found, MAINTAINED, repeat, nodes)
    return found


def _read_in_turns(
    urls: dict[str, str], survey: Survey, found: dict[str, Partitioned], state: str, repeat: int,
    nodes: Sequence[lab.Node],
) -> None:  # fmt: skip
    """Read a footprint from each database in turns; the first turn warms up."""
    clients = {name: Footprints(url, survey).connect() for name, url in urls.items()}
    rows = {client.run(0) for client in clients.values()}
    if len(rows) > 1:
        raise AssertionError(f"layouts returned different numbers of rows: {rows}")
    for each in found.values():
        each.read_s[state], each.read_cpu_s[state] = [], 0.0
    for _, name in interleaved(list(urls), repeat):
        each, spent, began = found[name], cpu_s(nodes), time.perf_counter()
        clients[name].run(0)
        each.read_s[state].append(time.perf_counter() - began)
        each.read_cpu_s[state] += (cpu_s(nodes) - spent) / repeat
    for client in clients.values():
        client.close()
