"""Shared parts of experiments: temporary clusters, raw samples on disk, tables of runs, the report."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import chronotile as ct
from chronotile.apdb import Layout, create, names
from chronotile.apdb.schema import Schema
from chronotile.apdb.simulation import Exposure
from chronotile.errors import BusyError, DataFileError, InvalidInputError, OutcomeUnknownError, UnavailableError
from chronotile_tools import lab
from chronotile_tools.load import page
from chronotile_tools.load.arms import Comparison, Run, Runs
from chronotile_tools.load.generator import Generator, Noop, Stream
from chronotile_tools.load.recording import FAILED, TIMED_OUT, UNSERVED, Recording, merged
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.statistics import block_bootstrap
from chronotile_tools.survey.simulate.drivers import ChronotileDriver, Footprint
from chronotile_tools.survey.simulate.universe import HEMISPHERE_VISITS, PADDING_DEG, Survey, Universe

__all__ = [
    "HEMISPHERE_VISITS",
    "Bench",
    "Harness",
    "Settings",
    "archive_url",
    "await_hints",
    "bean_value",
    "cpu_s",
    "disk_bytes",
    "hint_bytes",
    "load_survey",
    "node_bytes",
    "prepare_slices",
    "timeouts",
]

ONE_MACHINE = (
    "All nodes, the clients and other programs share one machine. Compare the arms of one report; absolute figures "
    "differ from those of separate machines, and cannot be compared with other reports."
)
_POLL_S = 0.25
OTHERS_CLUSTER = (
    "The cluster existed before: its state and its other work affect the figures. Compare the arms of one report."
)


@dataclass(frozen=True)
class Settings:
    """Settings of an experiment.

    Attributes
    ----------
    quick : bool
        Finish within about three minutes: less data, shorter runs.
    url : str, optional
        An existing cluster and keyspace, instead of laboratory nodes.
    heap : str
        Heap of each laboratory node.
    versions : tuple of str
        The two versions to compare.
    seed : int
        Random seed of the schedules.
    run_s : float, optional
        Seconds of each run. Default: set by the experiment.
    """

    quick: bool = False
    url: str | None = None
    heap: str = "400m"
    versions: tuple[str, str] = ("4.1", "5.0")
    seed: int = 1
    run_s: float | None = None


@dataclass
class Harness:
    """Runs loads on temporary clusters, and reports progress. Does not store results.

    Attributes
    ----------
    settings : Settings
        Settings of the experiment.
    generator : Generator
        Load generator.
    echo : callable
        Called with lines of progress.
    """

    settings: Settings
    generator: Generator
    echo: Callable[[str], object]

    def seconds(self, quick: float, full: float) -> float:
        """Seconds of a run."""
        return self.settings.run_s or (quick if self.settings.quick else full)

    @contextlib.contextmanager
    def cluster(self, nodes: int, **options: Any) -> Iterator[lab.Cluster]:
        """A laboratory cluster, which ends with the block or with this process, even if that is killed."""
        with lab.up(nodes=nodes, heap=self.settings.heap, echo=self.echo, **options) as cluster:
            yield cluster

    def keep(self, arm: str, number: int, run: Run) -> None:
        """Report a run."""
        for stream, found in run.items():
            self.echo(f"{arm}, run {number + 1}, {stream}: {_summary(found)}")


@dataclass
class Bench(Harness):
    """A running experiment, with its files and its report.

    Attributes
    ----------
    name : str
        Name of the experiment.
    out : path
        Folder of its files.
    """

    name: str
    out: Path
    report: page.Report = field(init=False)
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.report = page.Report(f"chronotile bench cluster {self.name}")
        self.report.notes.append(ONE_MACHINE if self.settings.url is None else OTHERS_CLUSTER)
        if (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
            self.report.notes.append(
                f"The machine was busy at the start: load {load:.1f} on {os.cpu_count()} processors. Repeat "
                "the experiment when the machine is idle."
            )
        if (self.out / "samples.jsonl").exists():
            raise DataFileError(f"{self.out} already contains an experiment: use another folder", kind="file-exists")
        self.out.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def url(self, nodes: int) -> Iterator[tuple[str, lab.Cluster | None]]:
        """URL of the keyspace and its cluster: those of a new cluster, or the given URL and None."""
        given = self.settings.url
        if given is None:
            with self.cluster(nodes) as cluster:
                yield cluster.url("bench"), cluster
            return
        if not given.startswith("cassandra:"):
            raise InvalidInputError(
                f"{given} is not a cluster URL: write cassandra://HOST/KEYSPACE", kind="invalid-url"
            )
        with ct.open(given) as archive:
            if archive.datasets():
                raise InvalidInputError(f"{given} holds data: use an empty keyspace", kind="invalid-request")
        self.report.notes.append(f"The keyspace of {given} was created for this experiment and is kept.")
        yield given, None

    def measure_harness(self, rate: float, clients: int) -> None:
        """Measure the load generator with a no-op target at the experiment's rate; its cost is part of all figures."""
        stream = Stream("no-op", Noop(), Schedule.poisson(rate, 1.5, warm_up_s=0.3, seed=self.settings.seed), clients)
        found = self.generator.run([stream])["no-op"]
        self.keep("no-op", 0, {"no-op": found})
        took = found.latency()
        self.results["harness_ms"] = asdict(took)
        self.report.notes.append(
            f"The load generator itself, with a no-op target and {rate:g} operations per second: response "
            f"{page.duration(took.p50)} (p50), {page.duration(took.p99)} (p99), "
            f"{found.client_cpu_s / max(len(found), 1) * 1e6:.0f} us of processor time per operation."
        )

    def keep(self, arm: str, number: int, run: Run) -> None:
        """Report a run, and write its samples, one line per stream, and its histograms."""
        with (self.out / "samples.jsonl").open("a", encoding="utf-8") as file:
            for stream, found in run.items():
                line = {"arm": arm, "run": number, "stream": stream, **_samples(found)}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                found.write_log(self.out, f"{arm}/{number}/{stream}")
        super().keep(arm, number, run)

    # ------------------------------------------------------------------ sections of the report

    def show_latencies(self, title: str, runs: Runs, arms: Sequence[str]) -> None:
        """Add a table and curves of the merged runs of all arms."""
        words = "From the intended start to the end; runs merged. Waiting: from the intended start to the start."
        streams = list(runs[arms[0]][0])
        parts = {(arm, stream): [run[stream] for run in runs[arm]] for arm in arms for stream in streams}
        rows = [[f"{arm}: {stream}", *latency_cells(made)] for (arm, stream), made in parts.items()]
        self.report.table(title, words, LATENCY_HEADER, rows)
        for stream in streams:
            curves = {arm: merged(each.histogram() for each in parts[arm, stream]) for arm in arms}
            drawing = page.percentiles(stream, curves)
            self.report.drawing(f"Response time by percentile: {stream}", "", drawing)

    def show_comparisons(
        self, runs: Runs, arms: Sequence[str], *, title: str = "Differences", **how: Any
    ) -> list[Comparison]:
        """Compare every arm, and the control, with the first arm. Skipped with a note if a run served nothing."""
        empty = {name for name, made in runs.items() for run in made for each in run.values() if not each.served}
        if empty:
            idle = ", ".join(sorted(empty))
            self.report.notes.append(f"{title}: not compared, because runs of {idle} served nothing.")
            return []
        found = Comparison.all_of(runs, arms, **how)
        rows = [
            [
                f"{each.arm}, {each.stream}", each.what if isinstance(each.what, str) else f"p{each.what:g}",
                f"{each.difference.ratio:.3f}", f"{each.difference.low:.3f} to {each.difference.high:.3f}",
                f"{each.difference.detectable:.1%}", each.difference.verdict,
            ]
            for each in found
        ]  # fmt: skip
        words = (
            f"Ratio of times to those of {arms[0]}, with 95 % intervals over {found[0].difference.pairs} pairs "
            "of neighbouring runs. The control is the first arm against itself. Detectable is the smallest difference "
            "that runs with this scatter would show in four of five cases: no smaller difference can be claimed, so a "
            "smaller one is marked, regardless of its interval."
        )
        header = ["arm, stream", "statistic", "ratio", "95 % interval", "detectable", "differs"]
        self.report.table(title, words, header, rows)
        self.report.drawing(
            "Differences and their intervals", "Purple: the control.", page.ratios("Differences", found, arms[0])
        )
        control = [each.difference.significant for each in found if each.is_control]
        self.report.notes.append(
            f"{title}: the control's interval excludes 1 (no difference) in {sum(control)} of "
            f"{len(control)} cases; one in twenty is expected."
        )
        self.results.setdefault("comparisons", []).extend(asdict(each) for each in found)
        return found

    def finish(self) -> Path:
        """Write ``results.json`` and ``report.html``."""
        described = [
            f"chronotile {ct.__version__}, Cassandra {lab.versions.release(lab.versions.DEFAULT).version} by default, "
            f"Python {platform.python_version()}, {os.cpu_count()} processors, {platform.platform()}; load average "
            f"{os.getloadavg()[0]:.1f} at the end."
        ]
        self.report.notes += described
        settings = asdict(self.settings)
        record = {"experiment": self.name, "settings": settings, "notes": self.report.notes, **self.results}
        (self.out / "results.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        path = self.out / "report.html"
        path.write_text(self.report.html(), encoding="utf-8")
        return path


def _samples(found: Recording) -> dict[str, Any]:
    """Samples of a stream as lists. Unserved operations of a backlog are only counted."""
    part = (found.outcome != UNSERVED) | (found.end_ns > 0)
    return {
        "clients": found.clients, "saturated": found.saturated, "given_up": found.count(UNSERVED),
        "due_us": (found.due_ns[part] // 1_000).tolist(), "started_us": (found.started_ns[part] // 1_000).tolist(),
        "ended_us": (found.ended_ns[part] // 1_000).tolist(), "outcome": found.outcome[part].tolist(),
        "rows": found.rows[part].tolist(), "errors": dict(found.errors),
    }  # fmt: skip


def _summary(found: Recording) -> str:
    words = [(TIMED_OUT, "timed out"), (FAILED, "failed"), (UNSERVED, "not served")]
    if not found.end_ns:
        words, begin = words[:2], f"{found.per_second:,.1f} a second"
    else:
        begin = f"{len(found)} operations, p50 {page.duration(found.latency().p50)}"
    troubles = [f"{found.count(outcome)} {word}" for outcome, word in words if found.count(outcome)]
    troubles += ["saturated"] if found.saturated and found.end_ns else []
    return ", ".join([begin, *troubles])


LATENCY_HEADER = ("arm", "operations", "mean", "p50", "p95", "p99", "worst", "waiting p99", "timed out, failed", "")


def latency_cells(parts: Sequence[Recording]) -> list[str]:
    """Table cells for the merged runs of an arm, without its name."""
    histogram = merged(each.histogram() for each in parts)
    waiting = merged(each.histogram("waiting") for each in parts)
    took = page.duration
    late, failed, left = (sum(each.count(k) for each in parts) for k in (TIMED_OUT, FAILED, UNSERVED))
    at = histogram.get_percentile_to_value_dict([50.0, 95.0, 99.0])
    saturated = sum(each.saturated for each in parts)
    return [
        f"{histogram.get_total_count():,}", took(histogram.get_mean_value() / 1e3),
        *(took(at[share] / 1e3) for share in (50.0, 95.0, 99.0)), took(histogram.get_max_value() / 1e3),
        took(waiting.get_value_at_percentile(99) / 1e3), f"{late + left:,}, {failed:,}",
        f"{saturated} of {len(parts)} runs saturated" if saturated else "",
    ]  # fmt: skip


def mean_interval(found: Recording) -> str:
    """Mean response of one run with a confidence interval that accounts for correlation between neighbours."""
    if len(found) < 10:
        return ""
    estimate = block_bootstrap(found.times_ns() / 1e6)
    return f"{page.duration(estimate.low)} to {page.duration(estimate.high)}"


def archive_url(cluster: lab.Cluster, keyspace: str, **parameters: Any) -> str:
    """URL of a keyspace of a cluster, with parameters."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{cluster.url(keyspace)}?{query}" if query else cluster.url(keyspace)


def with_parameters(url: str, **parameters: Any) -> str:
    """Add parameters to a URL."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{url}{'&' if '?' in url else '?'}{query}"


def cpu_s(nodes: Iterable[lab.Node]) -> float:
    """Processor time that nodes have used so far."""
    return sum(node.cpu_s for node in nodes)


def disk_bytes(cluster: lab.Cluster, keyspace: str) -> int:
    """Bytes of a keyspace's tables on all nodes, after a flush."""
    return sum(node_bytes(cluster, keyspace))


def node_bytes(cluster: lab.Cluster, keyspace: str) -> list[int]:
    """Bytes of a keyspace's tables on each node, after a flush."""
    found = []
    for node in cluster.nodes:
        node.nodetool("flush", keyspace)
        found.append(_folder_bytes(node.folder / "data" / "data" / keyspace))
    return found


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        # Compaction and the delivery of hints may delete files during the walk.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def hint_bytes(cluster: lab.Cluster) -> int:
    """Bytes of the hint files that nodes keep for others."""
    return sum(_folder_bytes(node.folder / "data" / "hints") for node in cluster.nodes)


def await_hints(cluster: lab.Cluster, timeout_s: float = 600.0) -> None:
    """Wait until all hints are delivered.

    Raises
    ------
    LabTimeoutError
        After `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while left := hint_bytes(cluster):
        if time.monotonic() > deadline:
            raise lab.LabTimeoutError(f"{left:,} bytes of hints are not delivered after {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def timeouts(nodes: Sequence[lab.Node]) -> int:
    """Requests between nodes that timed out since the nodes started. Nodes of 4.0 and later count them."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return sum(pool.map(lambda node: bean_value(node, "Connection", "TotalTimeouts"), nodes))


def bean_value(node: lab.Node, kind: str, name: str) -> int:
    """Value of a node's metric, a counter or gauge."""
    bean = f"org.apache.cassandra.metrics:type={kind},name={name}"
    return int(node.nodetool("sjk", "mx", "-mg", "-b", bean, "-f", "Count").split()[-1])


@dataclass
class StoreCost:
    """Cost of storing a survey.

    Attributes
    ----------
    seconds : list of float
        Seconds of each detector-visit's store.
    cpu_s : float
        Processor time of the nodes over all stores.
    rows : int
        Rows stored.
    read_s : list of float
        Seconds of each read of a detector-visit's footprint from this database, before the store.
    reads : list of Footprint
        Rows and seconds of these reads by table, without failed attempts; `known` is not kept.
    failures : int
        Reads and stores that failed and were retried.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    rows: int = 0
    read_s: list[float] = field(default_factory=list)
    reads: list[Footprint] = field(default_factory=list)
    failures: int = 0


def load_survey(
    urls: dict[str, str], survey: Survey, layouts: dict[str, Layout], nodes: Sequence[lab.Node], schema: str, *,
    read_all: bool = False, before: Callable[[int], object] = lambda visit: None, tries: int = 1,
) -> dict[str, StoreCost]:  # fmt: skip
    """Create databases and store the same survey in each, interleaved.

    Parameters
    ----------
    read_all : bool
        Whether each detector-visit reads its footprint from every database instead of only one. The known objects are
        those that the first database returns.
    before : callable
        Called before each visit with its number, to change the state of databases or nodes; not measured.
    tries : int
        Attempts per read or store; the time of failed ones counts.
    """
    wanted = Schema.read(schema)
    for name, url in urls.items():
        create(url, wanted, layouts[name]).close()
        prepare_slices(url, survey)
    universe = Universe(survey, wanted)
    drivers = {name: ChronotileDriver(url) for name, url in urls.items()}
    stored = {name: StoreCost() for name in urls}
    for visit in range(survey.visits):
        before(visit)
        turn = list(urls) if visit % 2 == 0 else list(reversed(urls))
        for detector in range(survey.detectors):
            e = survey.exposure(visit, detector)
            known = _read_known(drivers, stored, turn if read_all else turn[:1], e, tries)
            found = universe.observe(e, known)
            for name in turn:
                entry, rows, spent = stored[name], drivers[name].rows(found), cpu_s(nodes)
                began = time.perf_counter()
                _try(functools.partial(drivers[name].store, e, rows), entry, tries)
                entry.seconds.append(time.perf_counter() - began)
                entry.cpu_s += cpu_s(nodes) - spent
                entry.rows += sum(found.rows.values())
    for driver in drivers.values():
        driver.close()
    return stored


def _read_known(
    drivers: dict[str, ChronotileDriver], stored: dict[str, StoreCost], turn: Sequence[str], e: Exposure, tries: int
) -> Any:
    """Read a footprint from the databases in `turn`; return the objects of the first of `drivers` that was read."""
    known = {}
    for name in turn:
        entry, began = stored[name], time.perf_counter()
        read = _try(functools.partial(drivers[name].read, e.footprint(PADDING_DEG), e.mjd), entry, tries)
        entry.read_s.append(time.perf_counter() - began)
        known[name] = read.known
        entry.reads.append(replace(read, known=None))
    return known[next(name for name in drivers if name in known)]


def _try(call: Callable[[], Any], entry: StoreCost, tries: int) -> Any:
    """Result of a call that is retried while nodes do not answer; the last failure is raised."""
    for _ in range(tries - 1):
        try:
            return call()
        except (BusyError, OutcomeUnknownError, UnavailableError):
            entry.failures += 1
    return call()


def prepare_slices(url: str, survey: Survey) -> None:
    """Create the tables of all slices first, so that stores are measured without schema changes."""
    with ct.open(url) as archive:
        for name in (*map(names.dataset_name, names.MAIN_TABLES), names.VISITS, names.OBJECT_INDEX):
            archive[name].prepare(survey.time(0), survey.time(survey.visits - 1) + 1)
