"""Times as newcomers write them, for columns of timestamps and of Julian days; columns and tiles that files give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from conftest import Run

import chronotile as ct
from chronotile import historian
from chronotile.cli import levels

DAYS = {"mjd": 40_587.0, "jd": 2_440_587.5}
"""Days of 1970 in each format."""


@pytest.fixture(params=[("mjd", "utc"), ("mjd", "tai"), ("jd", "utc"), ("jd", "tai")], ids="-".join)
def by_days(request: pytest.FixtureRequest, memory: ct.Archive) -> ct.Dataset:
    """A record each noon of March 2024, UTC, its time in days."""
    format_, scale = request.param
    axis = (ct.mjd if format_ == "mjd" else ct.jd)("day", scale=scale)
    dataset = memory.create("d", schema={"id": "int64", "day": "float64"}, cell=ct.single(), time=axis, id="id")
    ahead = 37 / 86_400 if scale == "tai" else 0.0
    first = (datetime(2024, 3, 1, 12) - datetime(1970, 1, 1)) / timedelta(days=1) + DAYS[format_] + ahead
    dataset.write({"id": np.arange(31), "day": first + np.arange(31)})
    return dataset


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        ("2024-03-01", "2024-03-02", 1), ("2024-03-01T12:00:00Z", None, 31), ("2024-03-01T12:00:01", None, 30),
        ("2024-03-30T14:00+02:00", "now", 2), ("now-1h", "now+1d", 0), (None, "now-10d", 31),
        (datetime(2024, 3, 2), datetime(2024, 3, 4), 2), (np.datetime64("2024-03-31"), None, 1),
    ],
)  # fmt: skip
def test_text_says_a_time_of_a_column_of_days(by_days: ct.Dataset, start: Any, end: Any, count: int) -> None:
    assert by_days.count(start=start, end=end) == count


@pytest.mark.parametrize("wrong", ["soon", "now-", "now-6", "now*2", "now-9999999d", "2024-13-01", "n" * 1_000])
def test_what_is_no_time_is_refused_with_what_is(by_days: ct.Dataset, wrong: str) -> None:
    with pytest.raises(ct.InvalidInputError, match="start is"):
        by_days.count(start=wrong)


def test_a_condition_on_days_that_is_a_time_names_the_way(by_days: ct.Dataset) -> None:
    for where in ("day>2024-03-01", ("day", "<", "2024-03-01T00:00:00Z")):
        with pytest.raises(ct.InvalidInputError, match=r"is a time: to read a period, use start and end"):
            by_days.count(where=where)
    assert by_days.count(where="day>2024") == 31


def test_now_is_a_time_of_the_historian_too(memory: ct.Archive) -> None:
    h = historian.open(memory)
    h.define("oven")
    times = [datetime.now(UTC) - timedelta(hours=hours) for hours in (8, 5, 1)]
    h.write({"tag": ["oven"] * 3, "time": times, "value": [1.0, 2.0, 3.0]})
    assert h.raw("oven", "now-6h", "now").to_arrow()["value"].to_pylist() == [2.0, 3.0]


@pytest.mark.parametrize("command", ["count", "read", "retire", "prepare"])
def test_commands_take_text_for_a_column_of_days(command: str, chronotile: Run, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("candid,mjd,ra,dec\n1,60370,10,20\n2,60380,10,-20\n")
    # Whole numbers alone do not make places and days integers.
    made = chronotile("ingest", "m.db", "d", "m.csv", "--create", "--sky", "ra,dec", "--time", "mjd", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    options = {
        "count": ["--start", "2024-03-05"], "read": ["--start", "2024-03-05", "--end", "now", "--format", "csv"],
        "retire": ["--before", "2024-03-05", "--dry-run"], "prepare": ["--start", "2024-03-05", "--end", "2024-03-06"],
    }  # fmt: skip
    done = chronotile(command, "m.db", "d", *options[command], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if command in ("count", "read"):
        assert done.stdout == {"count": "1\n", "read": "candid,mjd,ra,dec\n2,60380.0,10.0,-20.0\n"}[command]


@pytest.mark.parametrize(
    ("format_", "first", "counts"), [("mjd", 61_071.5, "Modified Julian Dates"), ("jd", 2_461_072.0, "Julian Dates")]
)
def test_text_of_a_file_in_a_column_of_days_is_refused_with_what_it_counts(
    chronotile: Run, tmp_path: Path, format_: str, first: float, counts: str
) -> None:
    path = tmp_path / "days.db"
    made = chronotile("create", path, "d", "--schema", "n:int64,t:float64", "--single", "--time", f"t:{format_}")
    assert made.returncode == 0, made.stderr
    many = "".join(f"{n},{first + n}\n" for n in range(12_000))
    for name, text, line in (
        ("first.csv", "n,t\n1,2026-01-31T12:00:00\n", 2),
        ("word.csv", "n,t\n1,yesterday\n", 2),
        ("late.csv", f"n,t\n{many}12000,--\n", 12_002),
        ("first.ndjson", '{"n": 1, "t": "2026-01-31"}\n', 1),
    ):
        (tmp_path / name).write_text(text)
        refused = chronotile("ingest", path, "d", tmp_path / name)
        assert refused.returncode != 0
        assert f'line {line}, column "t"' in refused.stderr
        example = "61071.5" if format_ == "mjd" else "2461072.0"
        assert (
            f"the column counts {counts}: give numbers such as {example}, or create the dataset with" in refused.stderr
        )
        assert "--types" not in refused.stderr


def test_info_advises_smaller_tiles_where_they_are_large(
    chronotile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of 40 MiB in one pixel and window; a tile of a MiB beside it is none to complain of."""
    path = tmp_path / "large.db"
    schema = {"n": "int64", "jd": "float64", "ra": "float64", "dec": "float64", "image": "binary"}
    rng = np.random.default_rng(1)
    with ct.open(path) as archive:
        sky = archive.create("sky", schema=schema, cell=ct.sky("ra", "dec", level=4), time="jd", id="n")
        one = archive.create("one", schema=schema, cell=ct.single(), time="jd", id="n", window="7d")
        for part in range(10):
            rows = {
                "n": np.arange(4) + part * 4, "jd": np.full(4, 2_461_041.5), "ra": np.full(4, 150.0),
                "dec": np.full(4, 2.0), "image": pa.array([rng.bytes(1 << 20) for _ in range(4)]),
            }  # fmt: skip
            sky.write(rows)
            if not part:
                one.write(rows)
    told = chronotile("info", path, "sky").stdout
    assert (
        "advice: tiles are large: 40.0 MiB at the median; a dataset of --level 5 or more, or of shorter windows" in told
    )
    assert "advice" not in chronotile("info", path, "one").stdout
    with ct.open(path) as archive:
        monkeypatch.setattr(levels, "BYTES_LARGE", 1 << 20)
        small = levels.advice(archive["one"], archive["one"].info())
        assert small is not None
        assert "a dataset of shorter windows than 7d, or of more cells, reads less" in small
