"""The study of a grid's job archive: questions have right answers on both systems, and the page says what was found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from chronotile.errors import MissingPackageError
from chronotile_tools import published, studies
from chronotile_tools.load import postgresql
from chronotile_tools.load.generator import LoadError
from chronotile_tools.load.job_archive import generated, questions
from chronotile_tools.load.job_archive.relational import PostgreSQL
from chronotile_tools.load.job_archive.systems import Chronotile
from chronotile_tools.studies import job_archive

JOBS = 3_000
STUDY = studies.find("job-archive")


class Plain:
    """Answers from the generated table itself."""

    name = "plain"

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def _where(self, *conditions: Any) -> pa.Table:
        found = self.table
        for condition in conditions:
            found = found.filter(condition)
        return found

    def by_ids(self, ids: list[int]) -> Any:
        return self._where(pc.field("job_id").isin(ids))

    def rows(self, user: str, cloud: str, start: int) -> Any:
        period = (
            pa.scalar(start, pa.timestamp("us", "UTC")),
            pa.scalar(start + 5 * generated.DAY_US, pa.timestamp("us", "UTC")),
        )
        submitted = pc.field("submitted")
        return self._where(
            pc.field("user") == user, pc.field("cloud") == cloud, pc.field("status") == "failed",
            submitted >= period[0], submitted < period[1],
        )  # fmt: skip

    def count(self, user: str, cloud: str, start: int) -> Any:
        return self.rows(user, cloud, start).num_rows

    def jobsets(self, user: str, jobsets: list[int]) -> Any:
        return self._where(pc.field("user") == user, pc.field("jobset").isin(jobsets))

    def tasks(self, tasks: list[int]) -> Any:
        return self._where(pc.field("task").isin(tasks))

    def year(self) -> Any:
        return self.table.num_rows


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plain, Path]:
    csv = tmp_path_factory.mktemp("jobs") / "jobs.csv"
    (table,) = generated.write_csv(generated.blocks(JOBS), csv)
    return Plain(table), csv


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of a database."""
    if postgresql.programs() is None:
        pytest.skip("POSTGRESQL ABSENT: install Debian's package postgresql to run this")
    with postgresql.postgresql() as url:
        yield url


@pytest.mark.parametrize("name", [Chronotile.name, PostgreSQL.name])
def test_every_question_is_answered_as_from_the_generated_jobs(
    name: str, plain: tuple[Plain, Path], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    table, csv = plain
    schema = table.table.schema
    asked = questions.Questions(table.table, JOBS, many=500)
    found = dict.fromkeys(questions.KINDS, 0)
    made: Any = (
        Chronotile(tmp_path / "jobs.db", schema, csv)
        if name == Chronotile.name
        else PostgreSQL(request.getfixturevalue("server"), schema, csv, JOBS)
    )
    with closing(made) as system:
        for kind in questions.KINDS:
            clients = [[asked.of(kind, 4 * client + number) for number in range(4)] for client in range(3)]
            answered, right = (questions.ask_at_once(each, clients) for each in (system, table))
            questions.check_alike(kind, {"plain": right.answers, name: answered.answers})
            assert len(answered.seconds) == len(answered.answers) == 12
            found[kind] = sum(each if isinstance(each, int) else len(each) for each in right.answers)
        size, indexes = system.sizes()
    assert all(found.values()), f"every kind finds some jobs: {found}"
    assert found["ids"] == 12 * 500
    assert found["one id"] == 12
    assert {"user, cloud, status", "cloud, status", "task", "user, jobset"} <= set(indexes)
    assert 0 < min(indexes.values()) <= max(indexes.values()) < size


def test_clients_ask_at_once() -> None:
    together = threading.Barrier(3)

    class Waiting(Plain):
        """Answers when three clients have asked."""

        def year(self) -> int:
            together.wait(10)
            return 1

    asked = [[lambda system: system.year()]] * 3
    assert questions.ask_at_once(Waiting(pa.table({})), asked).answers == [1, 1, 1]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([1, 2], [1, 3], "count, question 1: A answers 2, B answers 3"),
        ([[1, 2]], [[1]], r"count, question 0: A answers 2 jobs \[1, 2\], B answers 1 jobs \[1\]"),
    ],
)
def test_different_answers_are_an_error_that_names_the_question(ours: list[Any], theirs: list[Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        questions.check_alike("count", {"A": ours, "B": theirs})
    questions.check_alike("count", {"A": ours, "B": ours})


def test_a_machine_without_the_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgresql, "programs", lambda: None)
    with pytest.raises(MissingPackageError, match="install Debian's package postgresql"):
        studies.run(STUDY, tmp_path, "quick", str)
    assert not (tmp_path / "data").exists()


# ---------------------------------------------------------------------- the page

SYSTEMS = (Chronotile.name, PostgreSQL.name)
WORDS = {
    "count": "failed jobs, count", "rows": "failed jobs, rows", "jobsets": "52 jobsets", "tasks": "100 tasks",
    "ids": "10,000 random ids",
}  # fmt: skip


def part_load(share: float) -> dict[str, Any]:
    return {
        "csv_bytes": 4e8,
        "loads": {
            "Chronotile": {"rows_s": [90e3, 100e3, 110e3], "index_s": [1.0, 1.0, 1.5]},
            "PostgreSQL": {"rows_s": [40e3, 50e3, 55e3], "index_s": [2.0, 2.0, 2.0]},
        },
        "bytes": {"Chronotile": 100_000_000, "PostgreSQL": 700_000_000},
        "index_bytes": {"Chronotile": {"task": int(share * 1e8)}, "PostgreSQL": {"job_id": 21e6, "task": 7e6}},
    }


def part_questions(seconds: Callable[[str, int], tuple[float, float]]) -> dict[str, Any]:
    """Seconds of Chronotile and PostgreSQL by question and number of clients, with some scatter."""
    return {
        "postgresql": "15.1",
        "found": {
            kind: {
                str(clients): {
                    "seconds": {
                        name: [middle * scatter for scatter in (0.99, 1.0, 1.01)]
                        for name, middle in zip(SYSTEMS, seconds(kind, clients), strict=True)
                    },
                    "jobs": 12.0,
                }
                for clients in STUDY.scales["full"]["clients"]
            }
            for kind in published.JOB_SECONDS
        },
    }


def page_of(load: dict[str, Any], found: dict[str, Any]) -> str:
    parts = {"load": {"run": 0, **load}, "questions": {"run": 0, **found}}
    page = STUDY.page(studies.Record("job-archive", dict(STUDY.scales["full"]), [], parts))
    assert set(page.figures) == {"clients", "all"}
    return page.text


def line(page: str, begin: str) -> str:
    (found,) = (each for each in page.splitlines() if each.startswith(begin))
    return found


def test_the_page_has_each_published_figure_beside_ours() -> None:
    page = page_of(part_load(0.02), part_questions(lambda kind, clients: (0.5 * clients, 0.25 * clients)))
    assert "| rows a second, threads | 10,000 |" in page
    assert "| rows a second, from CSV |  | 100,000 (90,000 to 110,000) | 50,000 (40,000 to 55,000) |" in page
    assert "| task |  | 2.00% | 1.00% |" in page
    assert "| job_id |  |  | 3.00% |" in page
    assert line(page, "| Indexes: 1% to 3%").startswith("| Indexes: 1% to 3% of the disk each | agrees: 2.00% to 2.00%")
    assert line(page, "| Load: 10,000").split(" | ")[1] == "10 times that; PostgreSQL 5 times"
    for kind, then in published.JOB_SECONDS.items():
        for clients, (cassandra, oracle) in then.items():
            begin = f"| {WORDS.get(kind, kind)} | {clients} | "
            cells = line(page, begin).split(" | ")
            assert float(cells[2].replace(",", "")) == cassandra
            assert float(cells[3].replace(",", "")) == oracle
            assert [float(cell) for cell in cells[4:6]] == [0.5 * clients, 0.25 * clients]
            assert cells[7].startswith("2x slower (2x to 2x)")
    assert line(page, "| 10,000 random ids | 2 |").split(" | ")[2:4] == ["401", "512"]
    assert line(page, "| one id | 1 |").split(" | ")[2:4] == ["", ""], "not published"


def test_ratios_are_judged_by_the_number_of_clients() -> None:
    """Chronotile is faster with few clients and slower with many, as Cassandra was for random ids."""
    page = page_of(
        part_load(0.001), part_questions(lambda kind, clients: (clients, 3.0 if clients < 10 else 0.5 * clients))
    )
    assert "| all four ratios agree" in line(
        page, "| 10,000 random ids: Cassandra against Oracle 1.47x faster (1 client), 1.28x"
    )
    assert "| one of two ratios agrees |" in line(page, "| 52 jobsets: Cassandra")
    assert "| differs |" in line(page, "| one id: Cassandra against Oracle 1.39x faster (30 clients)")
    assert line(page, "| failed jobs, count: Cassandra against Oracle 12,000x").split(" | ")[1] == "agrees"
    assert "| Chronotile 30x slower, PostgreSQL 5x slower |" in line(
        page, "| 10,000 random ids, 30 clients against one"
    )
    assert "| differs, smaller: 0.10% to 0.10% |" in line(page, "| Indexes: ")


def test_a_study_measures_both_in_turns_and_leaves_out_numbers_of_clients_that_it_has_not(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def running() -> Iterator[str]:
        yield server

    monkeypatch.setattr(job_archive, "postgresql", running)
    monkeypatch.setitem(STUDY.scales["quick"], "jobs", 1_000)
    lines: list[str] = []
    record = studies.run(STUDY, tmp_path, "quick", lines.append)
    for clients in record.parts["questions"]["found"].values():
        assert [len(each["seconds"][name]) for each in clients.values() for name in SYSTEMS] == [2, 2, 2, 2]
    assert record.parts["questions"]["found"]["ids"]["4"]["jobs"] == 1_000
    assert any(each.startswith("1,000 random ids, 4 clients: Chronotile ") for each in lines)
    page = studies.write_page(STUDY, tmp_path).read_text()
    assert "not measured: no such number of clients" in line(page, "| one id: Cassandra against Oracle")
