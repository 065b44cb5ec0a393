"""A grid's job archive: loading, daily indexes and lookups by several clients, compared with a relational database."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from chronotile_tools import published
from chronotile_tools.load.job_archive import generated, questions
from chronotile_tools.load.job_archive.relational import PostgreSQL, driver
from chronotile_tools.load.job_archive.systems import Chronotile
from chronotile_tools.load.postgresql import postgresql
from chronotile_tools.load.statistics import Difference, compare_values
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import Echo, agreement, ratio_text, times_text
from chronotile_tools.studies.record import Record, Values

__all__ = ["STUDY"]

_SYSTEMS = (Chronotile.name, PostgreSQL.name)
_INDEXED = ("count", "rows")
"""Questions that the published study answers from daily indexes; the others are lookups."""
_THEN = ("Cassandra, 2011", "Oracle, 2011")
_NOT_MEASURED = "not measured: no such number of clients"


def _parts(parameters: Values) -> Iterator[Part]:
    yield Part("load", partial(_load, parameters), reports=True)
    yield Part("questions", partial(_questions, parameters), reports=True)


# ---------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class _Jobs:
    """Jobs as a CSV file, a block of them, and an empty database."""

    rows: int
    folder: Path
    block: pa.Table
    database: str

    @property
    def csv(self) -> Path:
        return self.folder / "jobs.csv"

    @contextmanager
    def loaded(self, name: str) -> Iterator[Any]:
        """Load a system; its data are deleted at the end."""
        schema = self.block.schema
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            made = (
                Chronotile(Path(folder) / "jobs.db", schema, self.csv)
                if name == Chronotile.name
                else PostgreSQL(self.database, schema, self.csv, self.rows)
            )
            with closing(made) as system:
                yield system


@contextmanager
def _prepared(parameters: Values, echo: Echo) -> Iterator[_Jobs]:
    """Generate the jobs, and start a database server."""
    driver()
    with postgresql() as url, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="chronotile-study-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        rows = parameters["jobs"]
        echo(f"generating {rows:,} jobs")
        for block in generated.write_csv(generated.blocks(rows), folder / "jobs.csv"):
            last = block
        yield _Jobs(rows, folder, last, url)


def _in_turns(number: int) -> Sequence[str]:
    """The systems in the order of a round; each is first in every second round."""
    return _SYSTEMS if number % 2 == 0 else _SYSTEMS[::-1]


def _load(parameters: Values, echo: Echo) -> Values:
    found: dict[str, dict[str, list[float]]] = {name: {"rows_s": [], "index_s": []} for name in _SYSTEMS}
    sizes: dict[str, tuple[int, dict[str, int]]] = {}
    with _prepared(parameters, echo) as ready:
        for number in range(parameters["loads"]):
            for name in _in_turns(number):
                with ready.loaded(name) as system:
                    found[name]["rows_s"].append(round(system.load_rows_s, 1))
                    found[name]["index_s"].append(round(system.index_s, 4))
                    sizes[name] = system.sizes()
                echo(f"load {number + 1} of {parameters['loads']}, {name}: {found[name]['rows_s'][-1]:,.0f} rows/s")
        csv_bytes = ready.csv.stat().st_size
    return {
        "csv_bytes": csv_bytes, "loads": found, "bytes": {name: size for name, (size, _) in sizes.items()},
        "index_bytes": {name: indexes for name, (_, indexes) in sizes.items()},
    }  # fmt: skip


def _questions(parameters: Values, echo: Echo) -> Values:
    with _prepared(parameters, echo) as ready, ExitStack() as stack:
        systems = {name: stack.enter_context(ready.loaded(name)) for name in _SYSTEMS}
        asked = questions.Questions(ready.block, ready.rows, parameters["ids"])
        found = {
            kind: {str(clients): _ask(systems, asked, kind, clients, parameters, echo)
                   for clients in parameters["clients"]}
            for kind in published.JOB_SECONDS
        }  # fmt: skip
        version = systems[PostgreSQL.name].version
    return {"postgresql": version, "found": found}


def _ask(
    systems: Mapping[str, Any], asked: questions.Questions, kind: str, clients: int, parameters: Values, echo: Echo
) -> Values:
    """Let this many clients ask both systems in turns; the first round warms caches and is left out."""
    each, fresh = parameters["each"][kind], iter(range(10**9))
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    sizes: list[int] = []
    for number in range(parameters["rounds"] + 1):
        round_ = [[asked.of(kind, next(fresh)) for _ in range(each)] for _ in range(clients)]
        answered = {name: questions.ask_at_once(systems[name], round_) for name in _in_turns(number)}
        questions.check_alike(kind, {name: one.answers for name, one in answered.items()})
        if number == 0:
            continue
        for name, one in answered.items():
            seconds[name].append(round(statistics.mean(one.seconds), 6))
        sizes += [answer if isinstance(answer, int) else len(answer) for answer in answered[Chronotile.name].answers]
    medians = ", ".join(f"{name} {_seconds(statistics.median(each))} s" for name, each in seconds.items())
    echo(f"{_question(kind, parameters)}, {_clients(clients)}: {medians}")
    return {"seconds": seconds, "jobs": round(statistics.mean(sizes), 1)}


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    given = record.parameters
    found = record.parts["questions"]["found"]
    text = markdown.page(
        record,
        STUDY.title,
        "Finished jobs of a grid are loaded once and looked up for years: by id, by task, by jobset, and by user and "
        f"cloud within some days. The study repeats measurements of {published.JOB_ARCHIVE_2011}: the same questions, "
        "on generated jobs, to Chronotile in a file and to PostgreSQL instead of Oracle.",
        f"The data are {given['jobs']:,} jobs with {generated.COLUMNS} columns over a year, in runs of 2 to 200 ids, "
        f"{record.parts['load']['csv_bytes'] / 1e6:,.0f} MB of CSV. Clients are threads of one Python process, which "
        "start together and wait for complete answers: Arrow tables from Chronotile, tuples of Python objects from "
        "PostgreSQL, in its binary format. Both systems get the same questions in turns, each is first in every second "
        "round, and their answers must be equal. The first round is left out; all data are in memory or in the cache "
        "of the system.",
        f"PostgreSQL {record.parts['questions']['postgresql']} has its default settings, except that it does not sync "
        "to disk (`fsync = off`), and an index for each kind of question. Data that Chronotile loads are durable.",
        "**Published figures were measured in 2011, with another archive.** Compare orders of magnitude and ratios. A "
        f"figure here is the median of {given['rounds']} rounds, each the mean of its answers; intervals are 95 % "
        "confidence intervals over rounds. The load average at the end of the page is that at the start of a run: "
        "later work of other programs slows both systems and widens the intervals.",
        "## Loading",
        _loads_table(record),
        "## Indexes of days",
        _sizes_table(record),
        "Seconds for the failed jobs of a user in a cloud within five days, on average "
        f"{found['count'][str(given['clients'][0])]['jobs']:,.1f} jobs:",
        _seconds_table(record, _INDEXED),
        f"In the published study, reading the rows again took {published.JOB_ROWS_HOT_S:g} s.",
        "## Look-ups by several clients",
        "Seconds that each client waits for an answer:",
        _seconds_table(record, [kind for kind in found if kind not in _INDEXED]),
        markdown.figure(record, "clients", "Seconds to look up random ids by number of clients, published and here"),
        markdown.figure(record, "all", "Seconds to answer each question, published and here"),
        "## Beside the published study",
        _compared(record),
        markdown.made_by(record),
    )
    return Page(text, {"clients": _clients_figure(record), "all": _all_figure(record)})


def _question(kind: str, parameters: Values) -> str:
    return {
        "count": "failed jobs, count", "rows": "failed jobs, rows", "jobsets": "52 jobsets", "tasks": "100 tasks",
        "ids": f"{parameters['ids']:,} random ids", "one id": "one id",
    }[kind]  # fmt: skip


def _clients(count: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}"


def _seconds(value: float) -> str:
    """Format seconds with up to three digits, without exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 else f"{value:.5f}"


def _here(record: Record, kind: str, clients: int) -> Mapping[str, Sequence[float]] | None:
    """Seconds by system and round; None if this number of clients was not measured."""
    found = record.parts["questions"]["found"][kind].get(str(clients))
    return None if found is None else found["seconds"]


def _ratio(seconds: Mapping[str, Sequence[float]]) -> Difference:
    """Ratio of Chronotile's time to PostgreSQL's."""
    ours, other = _SYSTEMS
    return compare_values(seconds[other], seconds[ours])


def _spread(values: Sequence[float]) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{_seconds(middle)} ({_seconds(low)} to {_seconds(high)})"


def _loads_table(record: Record) -> str:
    loads = record.parts["load"]["loads"]
    size = record.parts["load"]["bytes"]
    rows = [
        [f"rows a second, {way}", f"{speed:,.0f}", "", ""] for way, speed in published.JOB_LOAD_ROWS_S.items()
    ] + [
        ["rows a second, from CSV", "", *(_spread(loads[name]["rows_s"]) for name in _SYSTEMS)],
        ["seconds for the indexes afterwards", "", *(_spread(loads[name]["index_s"]) for name in _SYSTEMS)],
        ["bytes per job", "", *(f"{size[name] / record.parameters['jobs']:,.0f}" for name in _SYSTEMS)],
    ]  # fmt: skip
    return markdown.table(["", _THEN[0], *_SYSTEMS], rows)


def _shares(record: Record, name: str) -> dict[str, float]:
    """Ratio of each index's bytes to those of the jobs."""
    part = record.parts["load"]
    return {index: size / part["bytes"][name] for index, size in part["index_bytes"][name].items()}


def _sizes_table(record: Record) -> str:
    ours, other = (_shares(record, name) for name in _SYSTEMS)
    low, high = published.JOB_INDEX_SHARE
    cells = [
        [index, *(f"{shares[index]:.2%}" if index in shares else "" for shares in (ours, other))]
        for index in dict.fromkeys([*ours, *other])
    ]
    rows = [["each", f"{low:.0%} to {high:.0%}", "", ""], *([index, "", *shares] for index, *shares in cells)]
    return markdown.table(["index, share of the jobs' bytes", _THEN[0], *_SYSTEMS], rows)


def _seconds_table(record: Record, kinds: Sequence[str]) -> str:
    rows = []
    for kind in kinds:
        then = published.JOB_SECONDS[kind]
        for clients in sorted({*then, *record.parameters["clients"]}):
            seconds = _here(record, kind, clients)
            before = [_seconds(each) for each in then[clients]] if clients in then else ["", ""]
            ratio = times_text(then[clients][0] / then[clients][1]) if clients in then else ""
            after = [_seconds(statistics.median(seconds[name])) for name in _SYSTEMS] if seconds else ["", ""]
            rows.append(
                [_question(kind, record.parameters), str(clients), *before, *after, ratio,
                 ratio_text(_ratio(seconds)) if seconds else ""]
            )  # fmt: skip
    header = ["", "clients", *_THEN, *_SYSTEMS, "Cassandra against Oracle", "Chronotile against PostgreSQL"]
    return markdown.table(header, rows)


def _clients_figure(record: Record) -> str:
    then, clients = published.JOB_SECONDS["ids"], record.parameters["clients"]
    series: dict[str, charts.Points] = {
        name: ([float(count) for count in then], [each[place] for each in then.values()])
        for place, name in enumerate(_THEN)
    }
    for name in _SYSTEMS:
        every = [record.parts["questions"]["found"]["ids"][str(count)]["seconds"][name] for count in clients]
        series[f"{name}, here"] = ([float(count) for count in clients], [statistics.median(each) for each in every])
    ticks = [(float(count), str(count)) for count in sorted({*then, *clients})]
    title = f"Seconds to look up {_question('ids', record.parameters)}"
    return charts.lines(title, "concurrent clients", "seconds", series, x_log=True, x_ticks=ticks)


def _all_figure(record: Record) -> str:
    rows: list[tuple[str, Sequence[float | None]]] = []
    for kind, then in published.JOB_SECONDS.items():
        for clients, before in then.items():
            seconds = _here(record, kind, clients)
            after = [statistics.median(seconds[name]) if seconds else None for name in _SYSTEMS]
            rows.append((f"{_question(kind, record.parameters)}, {_clients(clients)}", (*before, *after)))
    return charts.dots(
        "Seconds to answer each question", "seconds", rows, [*_THEN, *(f"{name}, here" for name in _SYSTEMS)]
    )


def _agreement(record: Record, kind: str) -> str:
    """Whether Chronotile compares with PostgreSQL as Cassandra did with Oracle, by published number of clients."""
    ratios, found = {}, {}
    for clients, (cassandra, oracle) in published.JOB_SECONDS[kind].items():
        if seconds := _here(record, kind, clients):
            ratios[str(clients)], found[str(clients)] = cassandra / oracle, _ratio(seconds)
    return agreement(ratios, found) if ratios else _NOT_MEASURED


def _compared(record: Record) -> str:
    speed, other = (statistics.median(record.parts["load"]["loads"][name]["rows_s"]) for name in _SYSTEMS)
    then_speed = published.JOB_LOAD_ROWS_S["threads"]
    low, high = published.JOB_INDEX_SHARE
    shares = list(_shares(record, Chronotile.name).values())
    place = "agrees" if min(shares) >= low and max(shares) <= high else "differs"
    place += ", smaller" if max(shares) < low else ""
    why = {
        "count": "Cassandra answered from an index for this question. Both systems here have an index on these "
        "columns.",
        "rows": "The same. Jobs of an answer are in runs: in the same chunk, and close together in a table that is "
        "loaded in the order of ids.",
        "jobsets": "Jobs of 52 jobsets are scattered over the user's year; Chronotile reads and unpacks whole chunks.",
        "tasks": "Jobs of a task are in neighbouring runs, and the tasks are scattered over the year. The published "
        "number of clients is unknown, and assumed to be one.",
        "ids": "Nearly every id is in a different chunk, from which one row is needed: chunks suit runs of rows, an "
        "index on the id suits single rows.",
        "one id": "The id determines the cell, so no date is needed.",
    }
    rows = [
        [f"Load: {then_speed:,.0f} rows a second with threads",
         f"{speed / then_speed:.2g} times that; PostgreSQL {other / then_speed:.2g} times",
         "Here into files of one machine, by two processes, or by one connection to PostgreSQL; there over a network "
         "into a cluster."],
        [f"Indexes: {low:.0%} to {high:.0%} of the disk each",
         f"{place}: {min(shares):.2%} to {max(shares):.2%}",
         "An index of Chronotile has a packed entry per value and run of jobs of a day; an index of PostgreSQL has one "
         "per job."],
        *(
            [f"{_question(kind, record.parameters)}: Cassandra against Oracle {_ratios(kind)}",
             _agreement(record, kind), words]
            for kind, words in why.items()
        ),
        _growth_row(record, "ids"),
        _growth_row(record, "jobsets"),
        ["Load into small virtual machines", "not repeated", "Such machines are not available here."],
        ["A hundred consecutive ids in a row; indexes by map-reduce", "not repeated",
         "A chunk holds the rows that are stored together, in any number; any process can index new chunks."],
    ]  # fmt: skip
    return markdown.table(["published", "here", "why"], rows, words=3)


def _ratios(kind: str) -> str:
    """Published ratios by number of clients."""
    listed = published.JOB_SECONDS[kind].items()
    return ", ".join(f"{times_text(cassandra / oracle)} ({_clients(count)})" for count, (cassandra, oracle) in listed)


def _growth_row(record: Record, kind: str) -> list[str]:
    then = published.JOB_SECONDS[kind]
    most = max(then)
    published_text = ", ".join(
        f"{name} {times_text(then[most][place] / then[1][place])}" for place, name in enumerate(("Cassandra", "Oracle"))
    )
    one, many = _here(record, kind, 1), _here(record, kind, most)
    here = ", ".join(f"{name} {times_text(compare_values(one[name], many[name]).ratio)}" for name in _SYSTEMS) if (
        one and many
    ) else _NOT_MEASURED  # fmt: skip
    return [
        f"{_question(kind, record.parameters)}, {most} clients against one: {published_text}", here,
        "Clients share the processors of one machine with both systems. If a question keeps a processor busy, thirty "
        "clients on two processors wait fifteen times as long as one client.",
    ]  # fmt: skip


STUDY = Study(
    name="job-archive",
    title="A grid's job archive, measured",
    repeats="loading, indexes and look-ups of a grid's job archive, 2011",
    scales={
        "full": {
            "jobs": 1_000_000, "ids": 10_000, "loads": 3, "rounds": 5, "clients": [1, 2, 10, 30],
            "each": {"count": 100, "rows": 50, "jobsets": 10, "tasks": 2, "ids": 1, "one id": 100},
        },
        "quick": {
            "jobs": 20_000, "ids": 1_000, "loads": 1, "rounds": 2, "clients": [1, 4],
            "each": {"count": 2, "rows": 2, "jobsets": 1, "tasks": 1, "ids": 1, "one id": 5},
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
