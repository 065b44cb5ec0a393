"""Reads at QUORUM with replication factor 3, from tables with and without read repair: while other clients write, and
after a node missed writes.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from chronotile import apdb
from chronotile.apdb import Layout, names
from chronotile.apdb.schema import Schema
from chronotile_tools import lab
from chronotile_tools.load.experiments import archive_tables, growth
from chronotile_tools.load.experiments.archive_tables import COLUMNS
from chronotile_tools.load.experiments.base import (
    Harness,
    archive_url,
    cpu_s,
    load_survey,
    prepare_slices,
)  # fmt: skip
from chronotile_tools.survey.simulate.drivers import ChronotileDriver
from chronotile_tools.survey.simulate.universe import DETECTOR_DEG, PADDING_DEG, PLACES, Survey, Universe

__all__ = [
    "ALONE",
    "BEFORE",
    "BLOCKING",
    "COMPLETE",
    "FRESH",
    "MISSED",
    "MODES",
    "NONE",
    "OLDER",
    "REPAIRED",
    "WRITTEN",
    "Concurrent",
    "Load",
    "Missed",
    "Repaired",
    "Repairs",
    "Round",
    "read_beside_writers",
    "read_columns",
    "read_repairs",
    "read_what_was_missed",
    "round_name",
    "separate_detectors",
]  # fmt: skip

BLOCKING, NONE = "BLOCKING", "NONE"
MODES = (BLOCKING, NONE)
"""Values of the tables' option ``read_repair``: Cassandra's default, and no read repair."""

ALONE, WRITTEN = "nobody writes", "others write"
FRESH, OLDER = "being written", "older"
COMPLETE, MISSED = "complete", "missed"
BEFORE, REPAIRED = "before", "repaired"
_METRICS = "org.apache.cassandra.metrics"
_ORDER = (ALONE, WRITTEN, WRITTEN, ALONE)
_BEANS = "*:type=*a*e*,name=Re*i*e*,*"
"""Matches the beans of read repair, of the types ``ReadRepair`` and ``Table``, and few others. One pattern for both,
because each query starts a JVM."""

ReadSeconds = dict[str, dict[str, list[float]]]
"""Seconds of reads, by kind of footprint and mode. Reads at the same position in both modes are neighbours in time."""


def round_name(number: int) -> str:
    """Name of a read after the node's return, from 1."""
    return f"read {number}"


@dataclass(frozen=True)
class Load:
    """A survey whose detector-visits are stored in one database per mode.

    Attributes
    ----------
    schema : str
        Schema of the databases.
    days : float
        Days over which visits are spread.
    transients : float
        New sources per visit and field of view.
    warm_up : int
        Reads of another database before the measurements, and after the start of a node.
    """

    schema: str
    days: float
    transients: float
    warm_up: int

    def survey(self, visits: int, seed: int) -> Survey:
        """A survey of one field by all detectors of the camera."""
        return replace(growth.evenly(visits, self.days, len(PLACES), seed), transients=self.transients)


@dataclass(frozen=True)
class Repairs:
    """Counters of read repair, summed over all nodes: partition reads whose replicas returned different digests, and
    writes of missing rows to replicas.
    """

    mismatches: int
    writes: int

    def since(self, earlier: Repairs) -> Repairs:
        """Increase of the counters since `earlier`."""
        return Repairs(self.mismatches - earlier.mismatches, self.writes - earlier.writes)

    def plus(self, other: Repairs) -> Repairs:
        """The sum of both."""
        return Repairs(self.mismatches + other.mismatches, self.writes + other.writes)


def read_repairs(text: str, keyspaces: Mapping[str, str]) -> dict[str, Repairs]:
    """Counters of a node by mode, from the JSON of its beans; `keyspaces` has the keyspace of each mode.

    Cassandra counts mismatches per node, in one counter for tables with read repair and another for those without.
    """
    beans = {bean["name"]: bean for bean in json.loads(text[text.index("{") :])["beans"]}
    mismatches = {BLOCKING: "RepairedBlocking", NONE: "ReconcileRead"}
    found = {}
    for mode, keyspace in keyspaces.items():
        own = f"{_METRICS}:type=Table,keyspace={keyspace},"
        written = [name for name in beans if name.startswith(own) and name.endswith(",name=ReadRepairRequests")]
        counter = beans[f"{_METRICS}:type=ReadRepair,name={mismatches[mode]}"]
        found[mode] = Repairs(int(counter["Count"]), sum(int(beans[name]["Count"]) for name in written))
    return found


def separate_detectors(count: int) -> list[int]:
    """Detectors that share no pixel with each other, from the middle of the camera outwards."""
    chosen: list[int] = []
    for detector, (x, y) in enumerate(PLACES):
        if all(max(abs(x - PLACES[one][0]), abs(y - PLACES[one][1])) > 2 * DETECTOR_DEG for one in chosen):
            chosen.append(detector)
    if len(chosen) < count:
        raise AssertionError(f"the camera has {len(chosen)} such detectors, not {count}")
    return chosen[:count]


# ---------------------------------------------------------------------- databases of both modes


class _Databases:
    """Two databases, one per mode, with the same detector-visits on one cluster."""

    def __init__(self, cluster: lab.Cluster, load: Load, survey: Survey) -> None:
        self.cluster, self.survey = cluster, survey
        self.keyspaces = {mode: f"read_repair_{mode.lower()}" for mode in MODES}
        self.urls = {
            mode: archive_url(cluster, keyspace, replication=3, consistency="QUORUM")
            for mode, keyspace in self.keyspaces.items()
        }
        schema = Schema.read(load.schema)
        for url in self.urls.values():
            apdb.create(url, schema, Layout()).close()
            prepare_slices(url, survey)
        self._set_modes()
        self.universe = Universe(survey, schema)
        self.drivers = {mode: ChronotileDriver(url) for mode, url in self.urls.items()}
        self.rows: dict[int, int] = {}
        """Number of acknowledged sources and forced sources, by detector."""

    def close(self) -> None:
        """Close the databases, after checking that all tables still have their mode."""
        for driver in self.drivers.values():
            driver.close()
        for mode, keyspace in self.keyspaces.items():
            found = archive_tables.read_repairs(self.cluster, keyspace)
            if set(found.values()) != {mode}:
                raise AssertionError(f"tables of {keyspace} have other options than {mode}: {found}")

    def _set_modes(self) -> None:
        for mode, keyspace in self.keyspaces.items():
            archive_tables.set_read_repair(self.cluster, keyspace, mode)

    def store(self, visits: Sequence[int], detectors: Sequence[int]) -> None:
        """Store visits of these detectors in both databases."""
        for visit, detector in itertools.product(visits, detectors):
            e = self.survey.exposure(visit, detector)
            order = MODES if visit % 2 == 0 else MODES[::-1]
            found = self.universe.observe(e, self.drivers[order[0]].read(e.footprint(PADDING_DEG), e.mjd).known)
            for mode in order:
                self.drivers[mode].store(e, self.drivers[mode].rows(found))
            self.rows[detector] = self.rows.get(detector, 0) + measured(found.rows)
        # The first store creates tables.
        self._set_modes()

    def read(self, mode: str, detector: int) -> tuple[int, float, float]:
        """Read a footprint: number of sources and forced sources, seconds, and processor time of the nodes."""
        at = self.survey.time(self.survey.visits - 1) + 1 / 24
        region = self.survey.footprint(0, detector, PADDING_DEG)
        spent, began = cpu_s(self.cluster.nodes), time.perf_counter()
        counts = self.drivers[mode].read(region, at).counts
        took = time.perf_counter() - began
        return measured(counts), took, cpu_s(self.cluster.nodes) - spent

    def repairs(self) -> dict[str, Repairs]:
        """Counters of all nodes by mode."""
        return _counted(self.cluster.nodes, self.keyspaces)


def _counted(nodes: Sequence[lab.Node], keyspaces: Mapping[str, str]) -> dict[str, Repairs]:
    def one(node: lab.Node) -> dict[str, Repairs]:
        return read_repairs(node.nodetool("sjk", "mxdump", "-q", _BEANS), keyspaces)

    with ThreadPoolExecutor(len(nodes)) as pool:
        found = list(pool.map(one, nodes))
    return {mode: functools.reduce(Repairs.plus, (each[mode] for each in found)) for mode in keyspaces}


def measured(counts: Mapping[str, int]) -> int:
    """Number of sources and forced sources. Objects are not counted, because only these two tables never shrink."""
    return counts[names.SOURCE] + counts[names.FORCED]


def since(later: Mapping[str, Repairs], earlier: Mapping[str, Repairs]) -> dict[str, Repairs]:
    """Increase of the counters, by mode."""
    return {mode: later[mode].since(earlier[mode]) for mode in later}


@contextmanager
def _databases(cluster: lab.Cluster, load: Load, survey: Survey) -> Iterator[tuple[_Databases, Callable[[], None]]]:
    """Both databases, and a function that warms up the nodes by reading another database."""
    url = archive_url(cluster, "warm_up", replication=3, consistency="QUORUM")
    few = growth.evenly(5, load.days, 1, survey.seed)
    load_survey({growth.WHOLE: url}, few, {growth.WHOLE: Layout()}, cluster.nodes, load.schema, read_all=True)
    with ExitStack() as stack:
        other = ChronotileDriver(url)
        stack.callback(other.close)
        databases = _Databases(cluster, load, survey)

        def warm_up() -> None:
            for _ in range(load.warm_up):
                other.read(few.footprint(0, 0, PADDING_DEG), few.time(few.visits - 1))

        warm_up()
        yield databases, warm_up
        databases.close()


# ---------------------------------------------------------------------- concurrent writers


@dataclass
class Concurrent:
    """Reads without and with concurrent writers; by :data:`ALONE` and :data:`WRITTEN`.

    Attributes
    ----------
    read_s : dict of str to ReadSeconds
        Reads of the footprint being written (:data:`FRESH`) and of another one (:data:`OLDER`).
    cpu_s : dict
        Processor time of the nodes during all reads, by mode. Includes the work for other clients.
    repairs : dict
        Counters by mode.
    store_s : dict of str to list of float
        Seconds of the writers' stores, by mode.
    """

    read_s: dict[str, ReadSeconds] = field(default_factory=dict)
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)
    repairs: dict[str, dict[str, Repairs]] = field(default_factory=dict)
    store_s: dict[str, list[float]] = field(default_factory=dict)


def read_beside_writers(
    harness: Harness, load: Load, visits: int, rounds: int, stores: int, every_s: float
) -> Concurrent:
    """Store `visits` visits; then read both databases alternately, without writers and while another client
    of each database stores a detector-visit every `every_s` seconds, `stores` in total.

    Raises
    ------
    AssertionError
        A read lacked acknowledged rows, or returned rows that no client had stored.
    """
    blocks = _ORDER * rounds
    survey = load.survey(visits + stores * blocks.count(WRITTEN), harness.settings.seed)
    found = Concurrent()
    with harness.cluster(3) as cluster, _databases(cluster, load, survey) as (databases, _):
        harness.echo(f"storing {visits} visits of two detectors in both databases")
        places = dict(zip((FRESH, OLDER), separate_detectors(2), strict=True))
        databases.store(range(visits), list(places.values()))
        writers = _Writers(databases, places[FRESH], visits)
        for phase, group in itertools.groupby(blocks):
            earlier = databases.repairs()
            for _ in group:
                period = writers.storing(stores, every_s) if phase == WRITTEN else _pause(stores * every_s)
                with period as lasts:
                    _read_pairs(databases, places, writers, found, phase, lasts)
            counted, known = since(databases.repairs(), earlier), found.repairs.get(phase)
            found.repairs[phase] = counted if known is None else {m: known[m].plus(counted[m]) for m in MODES}
            harness.echo(f"{phase}: {counted}")
        found.store_s = writers.store_s
        writers.close()
    return found


@contextmanager
def _pause(seconds: float) -> Iterator[Callable[[], bool]]:
    """Wait for some time; yields whether to continue."""
    ends = time.monotonic() + seconds
    yield lambda: time.monotonic() < ends


class _Writers:
    """One client per database that stores the visits of one detector, from visit `first`."""

    def __init__(self, databases: _Databases, detector: int, first: int) -> None:
        survey = databases.survey
        known = databases.drivers[BLOCKING].read(survey.footprint(0, detector, PADDING_DEG), survey.time(first)).known
        self._stored = [databases.universe.observe(survey.exposure(visit, detector), known)
                        for visit in range(first, survey.visits)]  # fmt: skip
        self._exposures = [survey.exposure(visit, detector) for visit in range(first, survey.visits)]
        self._drivers = {mode: ChronotileDriver(url) for mode, url in databases.urls.items()}
        rows = [measured(each.rows) for each in self._stored]
        self._rows = list(itertools.accumulate(rows, initial=databases.rows[detector]))
        self.store_s: dict[str, list[float]] = {mode: [] for mode in MODES}
        self._begun = dict.fromkeys(MODES, 0)
        self._ended = dict.fromkeys(MODES, 0)

    def close(self) -> None:
        """Close their databases."""
        for driver in self._drivers.values():
            driver.close()

    def acknowledged(self, mode: str) -> int:
        """Rows of the footprint whose store was acknowledged."""
        return self._rows[self._ended[mode]]

    def begun(self, mode: str) -> int:
        """Rows of the footprint whose store has begun."""
        return self._rows[self._begun[mode]]

    @contextmanager
    def storing(self, count: int, every_s: float) -> Iterator[Callable[[], bool]]:
        """Store `count` further visits in each database in the background; yields whether this still runs."""
        stop = threading.Event()

        def work(mode: str) -> None:
            start = time.monotonic()
            for number in range(count):
                if stop.wait(max(start + number * every_s - time.monotonic(), 0)):
                    return
                visit, driver = self._begun[mode], self._drivers[mode]
                rows = driver.rows(self._stored[visit])
                self._begun[mode] += 1
                began = time.perf_counter()
                driver.store(self._exposures[visit], rows)
                self.store_s[mode].append(time.perf_counter() - began)
                self._ended[mode] += 1

        with ThreadPoolExecutor(len(MODES)) as pool:
            working = [pool.submit(work, mode) for mode in MODES]
            try:
                yield lambda: not all(each.done() for each in working)
            finally:
                stop.set()
            for each in working:
                each.result()


def _read_pairs(
    databases: _Databases, places: Mapping[str, int], writers: _Writers, found: Concurrent, phase: str,
    lasts: Callable[[], bool],
) -> None:  # fmt: skip
    """Read each footprint from both databases alternately while the period lasts."""
    took = found.read_s.setdefault(phase, {kind: {mode: [] for mode in MODES} for kind in places})
    spent = found.cpu_s.setdefault(phase, dict.fromkeys(MODES, 0.0))
    for number in itertools.count():
        if not lasts():
            return
        for kind, detector in places.items():
            for mode in MODES if number % 2 == 0 else MODES[::-1]:
                fewest = writers.acknowledged(mode) if kind == FRESH else databases.rows[detector]
                rows, seconds, cpu = databases.read(mode, detector)
                most = writers.begun(mode) if kind == FRESH else databases.rows[detector]
                if not fewest <= rows <= most:
                    raise AssertionError(f"{mode}, {phase}, {kind}: {rows} rows instead of {fewest} to {most}")
                took[kind][mode].append(seconds)
                spent[mode] += cpu


# ---------------------------------------------------------------------- a node missed writes


@dataclass
class Round:
    """One read of every footprint from each database.

    Attributes
    ----------
    name : str
        :data:`BEFORE` the outage, :func:`round_name`, or :data:`REPAIRED`.
    read_s : ReadSeconds
        Footprints with visits that the node missed (:data:`MISSED`), and others (:data:`COMPLETE`).
    cpu_s : dict of str to dict of str to float
        Processor time of the nodes during these reads.
    repairs : dict of str to Repairs
        Counters by mode.
    """

    name: str
    read_s: ReadSeconds
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)
    repairs: dict[str, Repairs] = field(default_factory=dict)


@dataclass(frozen=True)
class Repaired:
    """Cost of the repair of a database: seconds, and processor time of the nodes."""

    seconds: float
    cpu_s: float


@dataclass
class Missed:
    """Reads after a node missed writes: all rounds, and the repair of each database before the last round."""

    rounds: list[Round] = field(default_factory=list)
    repaired: dict[str, Repaired] = field(default_factory=dict)


def read_what_was_missed(
    harness: Harness, load: Load, footprints: int, visits: int, missed: int, rounds: int
) -> Missed:
    """Store `visits` visits of 2 x `footprints` footprints in both databases; for half of them, store the last `missed`
    visits while a node is down and the others keep no hints for it. After it returns, read all footprints `rounds`
    times, repair, and read again.

    Raises
    ------
    AssertionError
        A read did not return exactly the acknowledged rows.
    """
    survey = load.survey(visits, harness.settings.seed)
    found = Missed()
    detectors = separate_detectors(2 * footprints)
    places = {COMPLETE: detectors[::2], MISSED: detectors[1::2]}
    with (
        harness.cluster(3, settings={"hinted_handoff_enabled": False}) as cluster,
        _databases(cluster, load, survey) as (databases, warm_up),
    ):
        last = cluster.nodes[-1]
        harness.echo(f"storing {visits} visits of {2 * footprints} detectors in both databases")
        databases.store(range(visits), places[COMPLETE])
        databases.store(range(visits - missed), places[MISSED])
        _read_rounds(databases, places, [BEFORE], found, harness.echo)
        last.stop()
        databases.store(range(visits - missed, visits), places[MISSED])
        last.start()
        warm_up()
        _read_rounds(databases, places, list(map(round_name, range(1, rounds + 1))), found, harness.echo)
        for mode in MODES:
            found.repaired[mode] = _repair(cluster, databases.keyspaces[mode])
            harness.echo(f"{mode}: {found.repaired[mode]}")
        _read_rounds(databases, places, [REPAIRED], found, harness.echo)
    return found


def _read_rounds(
    databases: _Databases, places: Mapping[str, Sequence[int]], rounds: Sequence[str], found: Missed,
    echo: Callable[[str], object],
) -> None:  # fmt: skip
    """In each round, read each footprint from both databases, alternating between complete and other footprints."""
    earlier = databases.repairs()
    for name in rounds:
        current = Round(name, {kind: {mode: [] for mode in MODES} for kind in places})
        current.cpu_s = {kind: dict.fromkeys(MODES, 0.0) for kind in places}
        for number, pair in enumerate(zip(*places.values(), strict=True)):
            order = MODES if number % 2 == len(found.rounds) % 2 else MODES[::-1]
            for (kind, detector), mode in itertools.product(zip(places, pair, strict=True), order):
                rows, seconds, cpu = databases.read(mode, detector)
                if rows != databases.rows[detector]:
                    raise AssertionError(f"{mode}, {name}: {rows} rows instead of {databases.rows[detector]}")
                current.read_s[kind][mode].append(seconds)
                current.cpu_s[kind][mode] += cpu
        later = databases.repairs()
        current.repairs, earlier = since(later, earlier), later
        found.rounds.append(current)
        echo(f"{name}: {current.repairs}")


def _repair(cluster: lab.Cluster, keyspace: str) -> Repaired:
    """Repair a keyspace."""
    spent, began = cpu_s(cluster.nodes), time.perf_counter()
    cluster.nodes[0].nodetool("repair", "-full", keyspace)
    return Repaired(time.perf_counter() - began, cpu_s(cluster.nodes) - spent)


# ---------------------------------------------------------------------- which columns are repaired


def read_columns(harness: Harness, rows: int, rounds: int) -> dict[str, list[Repairs]]:
    """Write rows of two columns while a node is down and the others keep no hints for it. After its return, it
    coordinates reads of `rows` rows, `rounds` times for each of :data:`COLUMNS`.

    Returns
    -------
    dict of str to list of Repairs
        Counters of each round.
    """
    found: dict[str, list[Repairs]] = {name: [] for name in COLUMNS}
    with harness.cluster(3, settings={"hinted_handoff_enabled": False}) as cluster:
        first, *_, last = cluster.nodes
        keyspaces = {BLOCKING: archive_tables.create_pairs(first)}
        last.stop()
        for id in range(rows * len(COLUMNS)):
            archive_tables.write_pair(first, id)
        last.start()
        earlier = _counted(cluster.nodes, keyspaces)
        for place, (name, columns) in enumerate(COLUMNS.items()):
            for _ in range(rounds):
                for id in range(place * rows, (place + 1) * rows):
                    if archive_tables.read_pair(last, id, columns) != 1:
                        raise AssertionError(f"row {id} was not read")
                later = _counted(cluster.nodes, keyspaces)
                found[name].append(since(later, earlier)[BLOCKING])
                earlier = later
            harness.echo(f"{name}: {found[name]}")
    return found
