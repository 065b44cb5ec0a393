"""What a person meets who loads, counts and compares jobs for the first time."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("pyarrow")
from support_shell import Shell

DAY = "job_id,submitted,user,status,run_s\n1,2026-01-01T08:00:00,ann,done,3600\n2,2026-01-01T09:00:00,bob,failed,60\n"


@pytest.fixture
def grid(shell: Shell) -> Shell:
    shell("jobs", "load", "grid.db", "jobs", shell.write("day.csv", DAY), "--create")
    return shell


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", [], "empty.csv is empty; a CSV input needs a line with the column names"),
        ("id,submitted,user\n1,2026-01-01,x\n", [],
         'id column "job_id" is not in the schema; it has id, submitted, user: name the column with '
         "id= (--id)"),
        ("job_id,submit,user\n1,2026-01-01,x\n", [],
         'time column "submitted" is not in the schema; did you mean submit? It has job_id, submit, user: name the '
         "column with time= (--time)"),
        ("job_id,submitted\n1,2026-01-01\n", ["--version", "changed"], "name the column with version= (--version)"),
    ],
)  # fmt: skip
def test_a_file_without_the_usual_columns_says_how_to_name_them(
    text: str, options: list[str], said: str, shell: Shell
) -> None:
    before = {shell.write("empty.csv", text)}
    shell("jobs", "load", "new.db", "jobs", "empty.csv", "--create", *options, code=2)
    assert said in shell.errors
    assert "/tmp" not in shell.errors
    assert shell.files == before


def test_a_wrong_day_is_repeated_in_the_error(grid: Shell) -> None:
    for wrong in ("2026-13-01", "yesterday", "2026-01-01,2026-02-30"):
        grid("jobs", "count", "grid.db", "jobs", "--days", wrong, code=2)
        assert f"days is {wrong.rpartition(',')[2]!r}: give a date such as" in grid.errors


@pytest.mark.parametrize(("wrong", "right"), [("avg", "mean"), ("average", "mean"), ("std", "stddev"), ("summ", "sum")])
def test_an_aggregate_of_another_language_is_answered_with_ours(wrong: str, right: str, grid: Shell) -> None:
    grid("jobs", "group", "grid.db", "jobs", "--by", "user", "--aggregate", f"{wrong}(run_s)", code=2)
    assert f"unknown aggregate '{wrong}' of 'run_s': did you mean {right}? Use one of sum, mean" in grid.errors


def test_a_database_that_does_not_exist_is_not_made(grid: Shell) -> None:
    before = grid.files
    grid("jobs", "compare", "grid.db", "jobs", "sqlite:///production.db", "jobs", code=3)
    assert "no database at production.db: the file does not exist" in grid.errors
    grid("jobs", "create", "new.db", "jobs", "--database", "sqlite:///production.db", "jobs", code=3)
    assert grid.files <= before | {"grid.db-shm", "grid.db-wal"}


def test_a_table_that_is_not_there_is_told_with_the_nearest(grid: Shell) -> None:
    with closing(sqlite3.connect(grid.folder / "production.db")) as database:
        grid("jobs", "compare", "grid.db", "jobs", "sqlite:///production.db", "jobs", code=2)
        assert "the database has no table 'jobs'; it has no tables" in grid.errors
        database.execute("CREATE TABLE jobs_done (job_id INTEGER PRIMARY KEY, submitted TEXT)")
        grid("jobs", "compare", "grid.db", "jobs", "sqlite:///production.db", "job_done", code=2)
    assert "the database has no table 'job_done'; did you mean jobs_done?" in grid.errors


def test_one_of_a_kind_is_said_in_the_singular(grid: Shell) -> None:
    assert "nothing to do: no index" in grid("index", "build", "grid.db", "jobs")
    grid("index", "create", "grid.db", "jobs", "--columns", "user")
    assert grid("index", "build", "grid.db", "jobs").startswith("built 1 of 1 window: read 1 tile, 2 rows")
    assert grid("index", "build", "grid.db", "jobs") == "nothing to do: 1 window is up to date\n"
    assert "1 window through the index, 0 directly" in grid(
        "index", "explain", "grid.db", "jobs", "--where", "user=ann", "--count"
    )
    assert grid("index", "drop", "grid.db", "jobs", "user", "--yes") == "dropped index user with 1 window\n"
