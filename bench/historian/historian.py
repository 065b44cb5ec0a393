"""Process history: ingest, size, requests A to D and the latest value, compared with DuckDB's table and Parquet.

    ./dev bench historian [--service | --lab | --cluster URL] [--writes N] [--open-loop RATE] [--tags N] [--days N]
                              [--repeat N] [--blocks N] [--latest-tags N] [--latest-only] [--quick] [--out FILE]

Each tag has one value a second, a random walk between 0 and 1 with two decimals. Requests: A is one tag, one day,
hourly averages; B the same for 10 tags; C one tag, one week, six-hour averages; D one tag, one month, daily averages.
The answers of all systems are compared before anything is timed.

Requests per second are measured in blocks: each system answers requests of one kind one after the other for a second,
then the next system does. Times of single requests are measured in turns: one request of each system after the other,
so that each finds caches and processors as the others left them.

With --cluster the archive is on a cluster instead of SQLite, with --lab on three nodes that `chronotile lab` starts
(1 GiB of heap each, three copies, QUORUM). --writes sets how many values a second of other tags are written to it
meanwhile, in one write every --write-every seconds (by default 0.25, which is two or three points of a tag; collectors
of a plant send 10 to 100 at once, like --write-every 5).

With --open-loop this many requests a second arrive at random times, independently of earlier ones, at one system after
the other, while --writes values a second are written to that system. Times count from the intended start, and failures
are counted. With --lab the open loop runs twice more: while one of the nodes is killed a third through, and with that
node down.

Finally, the latest value of one tag among --latest-tags is read, and tags are looked up by pattern. --latest-only does
only this.

With --service everything runs over HTTP: Chronotile with Arrow and with InfluxDB line protocol, QuestDB,
VictoriaMetrics and KairosDB. Maven downloads QuestDB and KairosDB, which need Java, and Go builds VictoriaMetrics.
Systems that are not available are skipped with a message. --only NAME,... selects systems.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import historian_http as over_http
import numpy as np
import pyarrow as pa
from common import RESULTS, commit, digits, hardware, load_average, percentile, table, timed_ms, versions
from historian_load import WARM_UP_S, in_blocks, open_loop
from historian_systems import (
    DAY,
    START_NS,
    Chronotile,
    Client,
    Duck,
    Parquet,
    Request,
    System,
    batches,
    other_points,
    tag_name,
)  # fmt: skip

from chronotile import historian
from chronotile_tools import lab, load
from chronotile_tools.load.recording import DONE, FAILED, TIMED_OUT

SETTLE_S = 15.0
LOOP_COLUMNS = ("written", "failed")


class Writing:
    """Context manager that writes values of other tags at a constant rate."""

    def __init__(self, client: Client, rate: int, every_s: float) -> None:
        self.client, self.every_s = client, every_s
        self.count, self.written, self.seconds = round(rate * every_s), 0, 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def work(self) -> None:
        began, number = time.monotonic(), 0
        while not self.ended.wait(max(0.0, began + number * self.every_s - time.monotonic())):
            self.client.write(other_points(number, self.count))
            number += 1
            self.written, self.seconds = number * self.count, time.monotonic() - began


@dataclass
class Figures:
    """Measurements of one system."""

    load_s: float = 0.0
    finish_s: float = 0.0
    bytes: int = 0
    request_ms: dict[str, list[float]] = field(default_factory=dict)
    """Times of single requests, measured in turns."""
    block_rates: dict[str, list[float]] = field(default_factory=dict)
    """Requests per second of each block."""
    open_loops: dict[str, dict[str, load.Recording]] = field(default_factory=dict)
    """Recordings by state of the nodes; "" if all are up."""

    def raw(self) -> dict[str, object]:
        """The figures for JSON, with open loops as distributions."""
        loops = {state: {kind: distributions(each) for kind, each in loop.items()}
                 for state, loop in self.open_loops.items()}  # fmt: skip
        return {**vars(self), "open_loops": loops}


def distributions(recording: load.Recording) -> dict[str, object]:
    """The summary of a recording for JSON."""
    return {
        "response": asdict(recording.latency()), "service": asdict(recording.latency("service")),
        "count": len(recording), "failed": failed(recording), "rate": recording.per_second,
        "saturated": recording.saturated, "errors": dict(recording.errors),
    }  # fmt: skip


def failed(recording: load.Recording) -> int:
    """Number of operations that failed or timed out. Operations that never began count as falling behind instead."""
    return recording.count(FAILED) + recording.count(TIMED_OUT)


def requests(tags: int, days: int, repeat: int, rng: np.random.Generator) -> list[Request]:
    """Requests of each kind for random tags and days."""
    kinds = {"A": (1, 1, 3_600), "B": (10, 1, 3_600), "C": (1, 7, 21_600), "D": (1, 30, 86_400)}
    made = []
    for _ in range(repeat):
        for name, (count, length, interval) in kinds.items():
            length = min(length, days)
            chosen = sorted(int(tag) for tag in rng.choice(tags, min(count, tags), replace=False))
            made.append(Request(name, chosen, int(rng.integers(0, days - length + 1)), length, interval))
    return made


def fill(systems: list[System], tags: int, days: int) -> dict[str, Figures]:
    """Load all systems."""
    figures = {system.name: Figures() for system in systems}
    for day, points in batches(tags, days):
        print(f"day {day + 1} of {days}", file=sys.stderr)
        for system in systems:
            prepared = system.prepare(points)
            spent = timed_ms(lambda system=system, prepared=prepared: system.load(prepared))
            figures[system.name].load_s += spent / 1e3
    for system in systems:
        figures[system.name].finish_s = timed_ms(system.finish) / 1e3
    # Wait for merges in the background before measuring sizes.
    time.sleep(SETTLE_S)
    for system in systems:
        figures[system.name].bytes = system.bytes()
    return figures


def compare(systems: list[System], asked: list[Request]) -> None:
    """Check that all systems return the same answers to the first requests."""
    for request in asked[:8]:
        answers = [system.client.answer(request) for system in systems]
        for system, answer in zip(systems[1:], answers[1:], strict=True):
            np.testing.assert_allclose(answer, answers[0], rtol=1e-12, err_msg=f"{system.name}: {request}")


def ask(systems: list[System], asked: list[Request], figures: dict[str, Figures]) -> None:
    """Time single requests, in turns."""
    for request in asked:
        for system in systems:
            spent = timed_ms(lambda system=system, request=request: system.client.answer(request))
            figures[system.name].request_ms.setdefault(request.name, []).append(spent)


def latest(folder: Path, tags: int, lookups: int = 2_000) -> dict[str, float]:
    """Milliseconds to define, write and look up the latest value of one tag among many, by name."""
    path = folder / "many.db"
    names = [f"site{i % 97}.unit{i % 1009}.point{i:07}" for i in range(tags)]
    began = time.perf_counter()
    with historian.open(path) as h:
        h.define_many([{"name": name} for name in names])
        defined = time.perf_counter()
        for start in range(0, tags, 100_000):
            part = names[start : start + 100_000]
            times = pa.array(np.full(len(part), START_NS), pa.timestamp("ns", "UTC"))
            h.write(pa.table({"tag": part, "time": times, "value": np.arange(len(part)) * 0.5}))
        written = time.perf_counter()
    rng = np.random.default_rng(2)
    with historian.open(path) as h:
        samples = []
        for index in rng.integers(0, tags, lookups):
            samples.append(timed_ms(lambda index=index: h.latest(names[index]).to_arrow()))
    found = {
        "define_s": defined - began,
        "write_s": written - defined,
        "latest_ms_p50": percentile(samples, 50),
        "latest_ms_p99": percentile(samples, 99),
    }
    return found | {f"{when}_ms": spent for when, spent in patterns(path).items()}


def patterns(path: Path, repeat: int = 9) -> dict[str, float]:
    """Median milliseconds of look-ups by pattern: wall and processor time of the first one after opening a historian,
    and wall time of a later one."""
    found = {}
    for name, pattern in {"prefix": "site5.unit5.*", "infix": "*unit77.point00010*"}.items():
        spent: dict[str, list[float]] = {"first": [], "first_cpu": [], "later": []}
        for _ in range(repeat):
            with historian.open(path) as h:
                began = time.process_time()
                look_up = lambda h=h, pattern=pattern: h.tags(pattern)  # noqa: E731
                spent["first"].append(timed_ms(look_up))
                spent["first_cpu"].append((time.process_time() - began) * 1e3)
                look_up()
                spent["later"].append(timed_ms(look_up))
        found |= {f"{name}_{when}": statistics.median(samples) for when, samples in spent.items()}
    return found


def report(figures: dict[str, Figures], tags: int, days: int) -> str:
    """The figures as Markdown tables."""
    points = tags * days * DAY
    rate: Callable[[float], str] = lambda seconds: f"{points / seconds:,.0f}"  # noqa: E731
    rows, turns, loops = [], [], []
    for name, figure in figures.items():
        medians = [statistics.median(rates) for rates in figure.block_rates.values()]
        in_block = [digits(median) if median < 100 else f"{median:,.0f}" for median in medians]
        rows.append(
            [
                name,
                rate(figure.load_s),
                rate(figure.load_s + figure.finish_s),
                f"{figure.bytes / points:.2f}",
                *in_block,
            ]
        )
        pairs = [[digits(percentile(samples, share)) for share in (50, 99)] for samples in figure.request_ms.values()]
        turns.append([name, *map(" / ".join, pairs)])
        for state, loop in figure.open_loops.items():
            loops.append([name + state, *map(shown, loop.values()), written(loop), failures(loop)])
    first = next(iter(figures.values()))
    kinds = list(first.request_ms)
    tables = [
        table(["in blocks", "values/s", "with maintenance", "bytes/value", *(f"{kind}, 1/s" for kind in kinds)], rows),
        table(["in turns, p50 / p99, ms", *kinds], turns),
    ]
    if loops:
        tables.append(table(["open loop, p50 / p99, ms", *next(iter(first.open_loops.values())), *LOOP_COLUMNS], loops))
    return "\n\n".join(tables)


def shown(recording: load.Recording) -> str:
    """Median and 99th percentile from the intended start."""
    if recording.saturated:
        return "fell behind"
    latency = recording.latency()
    return f"{digits(latency.p50)} / {digits(latency.p99)}"


def written(loop: dict[str, load.Recording]) -> str:
    """Number of successful writes, of those that were due."""
    writes = loop.get("writes")
    return f"{writes.count(DONE)} of {len(writes)}" if writes else "-"


def failures(loop: dict[str, load.Recording]) -> str:
    """Number of failed requests and writes, of all. Prints the errors."""
    for recording in loop.values():
        for kind, message in recording.errors.items():
            print(f"{recording.name} failed, {kind}: {message}", file=sys.stderr)
    return f"{sum(map(failed, loop.values()))} of {sum(map(len, loop.values())):,}"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tags", type=int, default=20)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=50, help="requests of each kind")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each system and kind; 0 skips them")
    parser.add_argument("--block-seconds", type=float, default=1.0)
    parser.add_argument("--latest-tags", type=int, default=1_000_000, help="0 skips the latest value")
    parser.add_argument("--latest-only", action="store_true", help="measure only the latest value and patterns")
    parser.add_argument("--cluster", metavar="URL", help="store the archive on a cluster instead of SQLite")
    parser.add_argument("--lab", action="store_true", help="store the archive on three nodes of chronotile lab")
    parser.add_argument("--writes", type=int, default=0, help="values per second written meanwhile")
    parser.add_argument("--write-every", type=float, default=0.25, metavar="SECONDS", help="interval between writes")
    parser.add_argument(
        "--open-loop", type=float, default=0.0, metavar="RATE", help="requests per second of all kinds together"
    )
    parser.add_argument("--open-loop-seconds", type=float, default=30.0)
    parser.add_argument("--service", action="store_true", help="measure over HTTP, with peers")
    parser.add_argument(
        "--only", metavar="NAME,...", help="with --service: systems whose names start with one of these"
    )
    parser.add_argument("--quick", action="store_true", help="a quick check that it works; the figures are meaningless")
    parser.add_argument("--out", type=Path, default=RESULTS / "historian.json")
    options = parser.parse_args()
    if options.quick:
        options.tags, options.days, options.repeat, options.latest_tags = 10, 2, 3, 2_000
        options.blocks, options.block_seconds, options.open_loop_seconds = 1, 0.1, 3.0
    if (options.service, options.lab, bool(options.cluster)).count(True) > 1:
        parser.error("--service, --lab and --cluster exclude each other")
    if options.service or options.lab or options.cluster:
        options.latest_tags = 0
    return options


@contextmanager
def killed(node: lab.Node, after_s: float) -> Iterator[None]:
    """Kill a node after some seconds."""
    timer = threading.Timer(after_s, node.kill)
    timer.start()
    yield
    timer.join()
    assert node.status == "down", f"{node} is {node.status}"


def open_loops(
    systems: list[System], asked: list[Request], figures: dict[str, Figures], options: argparse.Namespace
) -> None:
    """Run the open loop of each system, and those while a node dies and is down."""

    def run(system: System, state: str = "") -> None:
        print(f"open loop: {system.name}{state}", file=sys.stderr)
        figures[system.name].open_loops[state] = open_loop(
            system.opening, asked, options.open_loop, options.open_loop_seconds, options.writes, options.write_every
        )

    for system in systems:
        run(system)
    ours = systems[0]
    if isinstance(ours, Chronotile) and isinstance(ours.cluster, lab.Cluster):
        node = ours.cluster.nodes[1]
        with killed(node, WARM_UP_S + options.open_loop_seconds / 3):
            run(ours, ", a node dies")
        run(ours, ", a node down")


def measure(systems: list[System], options: argparse.Namespace) -> dict[str, Figures]:
    """Measure everything, and stop the systems."""
    figures = fill(systems, options.tags, options.days)
    asked = requests(options.tags, options.days, options.repeat, np.random.default_rng(1))
    compare(systems, asked)
    beside = options.writes and not options.service and not options.open_loop
    meanwhile: AbstractContextManager[None] = (
        Writing(systems[0].client, options.writes, options.write_every) if beside else nullcontext()
    )
    with meanwhile:
        ask(systems, asked, figures)
        if options.blocks:
            for name, rates in in_blocks(systems, asked, options.blocks, options.block_seconds).items():
                figures[name].block_rates = rates
    if isinstance(meanwhile, Writing):
        print(f"{meanwhile.written / meanwhile.seconds:,.0f} values/s were written meanwhile, of {options.writes:,}")
    for system in systems:
        system.close()
    if options.open_loop:
        open_loops([system for system in systems if not isinstance(system, Parquet)], asked, figures, options)
    for system in systems:
        system.stop()
    return figures


def systems(folder: Path, options: argparse.Namespace, stack: ExitStack) -> list[System]:
    """Start the systems in a folder; nodes stop when the stack closes."""
    if options.service:
        return over_http.systems(folder, [tag_name(tag) for tag in range(options.tags)], options.only)
    cluster = stack.enter_context(lab.up(nodes=3, heap="1g")) if options.lab else options.cluster
    return [Chronotile(folder, options.tags, cluster), Duck(folder), Parquet(folder)]


def main() -> None:
    """Measure and print."""
    options = arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = {} if options.latest_only else measure(systems(folder, options, stack), options)
        if figures:
            print(report(figures, options.tags, options.days))
        many = latest(folder, options.latest_tags) if options.latest_tags else {}
    if many:
        rows = [[key, digits(value)] for key, value in many.items()]
        print("\n" + table([f"of {options.latest_tags:,} tags", ""], rows))
    about = {
        "hardware": hardware(),
        "versions": versions("chronotile", "duckdb", "pyarrow"),
        "commit": commit(),
        "load": load_average(),
        "tags": options.tags,
        "days": options.days,
        "open loop": f"{options.open_loop:g} requests/s, "
        f"{options.writes:,} values/s written every {options.write_every:g} s",
    }
    print("\n".join(f"{key}: {value}" for key, value in about.items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    raw = {name: figure.raw() for name, figure in figures.items()}
    options.out.write_text(json.dumps({"about": about, "figures": raw, "latest": many}, indent=1))


if __name__ == "__main__":
    main()
