"""Questions about jobs, on an archive in memory, against plain Python over the same rows."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chronotile as ct
from chronotile import counting, jobs
from chronotile.bounds import Bounds
from chronotile.errors import InvalidInputError
from chronotile.jobs import jobs as questions
from chronotile.jobs.percentiles import percentiles

FIRST = datetime(2026, 1, 30, tzinfo=UTC)
SCHEMA = {
    "job_id": "int64", "submitted": "timestamp[us, UTC]", "ended": "timestamp[ms, UTC]", "user": "utf8", "site": "utf8",
    "run_s": "int64", "load": "float64", "wait": "duration[ms]", "day": "date32",
}  # fmt: skip

Row = dict[str, Any]


def rows_of(count: int, seed: int) -> list[Row]:
    choose = random.Random(seed)
    rows = []
    for number in range(count):
        # Over the end of January, on whole days too.
        at = FIRST + timedelta(days=choose.randrange(5), seconds=choose.choice([0, 0, 1, 43_200, 86_399]))
        rows.append(
            {
                "job_id": number, "submitted": at, "ended": at + timedelta(milliseconds=choose.randrange(10**7)),
                "user": choose.choice(["ann", "bob", "cy", None]), "site": choose.choice(["north", "south"]),
                "run_s": choose.choice([None, 1, 2, 3, 50, 700]),
                "load": choose.choice([None, math.nan, 0.5, 1.5, -2.0]),
                "wait": choose.choice([None, timedelta(milliseconds=1_500), timedelta(seconds=4)]), "day": at.date(),
            }
        )  # fmt: skip
    return rows


ROWS = rows_of(120, 5)


@pytest.fixture(scope="module")
def done() -> Iterator[jobs.Jobs]:
    with ct.open("memory:") as archive:
        made = jobs.create(archive, schema=SCHEMA, indexes=["user", ("user", "site")])
        made.write(pa.Table.from_pylist(ROWS, made.dataset.schema), batch="all")
        made.dataset.build_indexes()
        yield made


def midnight(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


# ---------------------------------------------------------------- days


@given(st.dates(date(1, 1, 1), date(9999, 11, 30)))
def test_days_and_months_are_half_open_periods(day: date) -> None:
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    one = (begin, begin + timedelta(days=1))
    for given_ in (day, day.isoformat(), (day, day), [day, day.isoformat()]):
        assert questions._period(given_) == one
    month = begin.replace(day=1)
    following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    assert questions._period(f"{day:%Y}".rjust(4, "0") + f"-{day:%m}") == (month, following)
    assert questions._period((f"{day.year:04}-{day.month:02}", day)) == (month, one[1])
    assert questions._period((day, f"{day.year:04}-{day.month:02}")) == (begin, following)


def test_a_number_of_days_ends_today(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 3, 1, 13, 14, 15, 16, tzinfo=tz)

    monkeypatch.setattr(questions, "datetime", Clock)
    assert questions._period(1) == (midnight(2026, 3, 1), midnight(2026, 3, 2))
    assert questions._period(2) == (midnight(2026, 2, 28), midnight(2026, 3, 2))
    for count in (0, -1):
        with pytest.raises(InvalidInputError, match=f"days={count} is out of range: use at least 1"):
            questions._period(count)
    with pytest.raises(InvalidInputError, match="are out of range for dates"):
        questions._period(10**7)


def test_what_is_no_day_is_refused() -> None:
    wrong: list[Any] = [True, 1.5, "yesterday", "2026-02-30", "2026-13", datetime(2026, 1, 1), ("2026-01-01",), b"2026"]
    wrong += [("2026-01-01", "2026-01-02", "2026-01-03"), ("2026-01-01", None), (), {"2026-01-01", "2026-01-02"}]
    for days in wrong:
        with pytest.raises(InvalidInputError, match=r"days is .*: give a date such as"):
            questions._period(days)
    for first, last in (("2026-01-02", "2026-01-01"), ("2026-02", "2026-01")):
        with pytest.raises(InvalidInputError, match=f"the period of days ends at 20.*, before it starts at {first}"):
            questions._period((first, last))
    assert questions._period(("2026-01-02", "2026-01-02"))[0] == midnight(2026, 1, 2)
    for last in ("9999-12-31", "9999-12"):
        with pytest.raises(InvalidInputError, match="are out of range for dates"):
            questions._period(last)


@given(st.integers(-2, 6), st.integers(0, 4))
def test_days_choose_the_jobs_of_these_days(done: jobs.Jobs, offset: int, length: int) -> None:
    first, last = (FIRST + timedelta(days=days) for days in (offset, offset + length))
    wanted = [row["job_id"] for row in ROWS if first.date() <= row["day"] <= last.date()]
    days = (first.date(), last.date().isoformat())
    assert done.count(days=days) == len(wanted)
    assert sorted(done.find(days=days, columns=["job_id"]).to_arrow()["job_id"].to_pylist()) == wanted
    assert done.count(start=first, end=last + timedelta(days=1)) == len(wanted)


def test_days_and_moments_do_not_mix(done: jobs.Jobs) -> None:
    for more in ({"start": FIRST}, {"end": FIRST}, {"start": FIRST, "end": FIRST}):
        with pytest.raises(InvalidInputError, match="give either days, or start and end"):
            done.count(days=1, **more)
    assert done.count(start=FIRST + timedelta(days=1)) < done.count() == len(ROWS)
    assert done.count(end=FIRST + timedelta(days=1)) < len(ROWS)


# ---------------------------------------------------------------- conditions


def test_keywords_are_equal_to_one_value_or_to_one_of_several(done: jobs.Jobs) -> None:
    def wanted(*users: str) -> int:
        return sum(row["user"] in users for row in ROWS)

    assert done.count(user="ann") == wanted("ann") > 0
    for several in (["ann", "bob"], ("ann", "bob"), {"ann", "bob"}, iter(["ann", "bob"]), pa.array(["ann", "bob"]),
                    pa.chunked_array([["ann"], ["bob"]]), np.array(["ann", "bob"])):  # fmt: skip
        assert done.count(user=several) == wanted("ann", "bob")
    assert done.count(user=[]) == 0
    both = sum(row["user"] == "ann" and row["site"] == "north" and (row["run_s"] or 0) > 2 for row in ROWS)
    assert done.count(user="ann", site="north", where="run_s>2") == both
    assert done.find(user="ann", site="north", where=("run_s", ">", 2)).to_arrow().num_rows == both
    with pytest.raises(InvalidInputError, match="unknown column 'usr'; did you mean user"):
        done.count(usr="ann")
    assert done.explain(user="ann", by=[]).index is not None
    assert done.explain(load=0.5, by=[]).index is None


def test_an_explanation_is_of_the_same_question(done: jobs.Jobs) -> None:
    day, following = FIRST.date().isoformat(), (FIRST + timedelta(days=1)).date().isoformat()
    by_days = done.explain(by=[], days=day, user="ann")
    assert by_days == done.explain(by=[], start=FIRST, end=following, where=("user", "==", "ann"))
    both = done.explain(by=[], days=(day, following), user="ann")
    assert [len(use.windows_indexed) + len(use.windows_direct) for use in (by_days, both)] == [1, 2]
    assert done.explain(by=[], start=following, user="ann") != done.explain(by=[], end=following, user="ann")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("7m", 420), ("6h", 21_600), ("2d", 172_800), ("1w", 604_800)]
)
def test_windows_are_lengths_in_seconds(text: str, seconds: int) -> None:
    assert questions._seconds(text, "window") == seconds
    for wrong in ("0s", "1y", "s", ""):
        with pytest.raises(InvalidInputError, match=r"window is .*: give text such as"):
            questions._seconds(wrong, "window")


def test_an_archive_of_jobs_has_one_integer_id() -> None:
    with ct.open("memory:") as archive:
        archive.create("text", schema={"id": "utf8", "t": "timestamp[us]"}, cell=ct.hash("id"), time="t", id="id")
        archive.create("two", schema={"a": "int64", "b": "int64", "t": "timestamp[us]"}, cell=ct.key("a"), time="t",
                       id=["a", "b"])  # fmt: skip
        archive.create("unsigned", schema={"a": "uint32", "t": "timestamp[us]"}, cell=ct.key("a"), time="t", id="a")
        for name in ("text", "two"):
            with pytest.raises(InvalidInputError, match="exactly one integer id column"):
                jobs.open(archive, name)
        assert jobs.open(archive, "unsigned").id == "a"
        made = jobs.create(
            archive, "mine", schema={"job_id": "int64", "submitted": "timestamp[us]"}, indexes=["job_id"]
        )
        assert (made.id, made.dataset.window, made.dataset.merge) == ("job_id", "1d", "latest")
        assert made.dataset.cell == ct.id_bucket("job_id", 100)
        again = jobs.create(archive, "mine", schema={"job_id": "int64", "submitted": "timestamp[us]"}, exist_ok=True,
                            indexes=["job_id", ("job_id", "submitted")])  # fmt: skip
        assert [index.columns for index in again.dataset.indexes()] == [("job_id",), ("job_id", "submitted")]
        with pytest.raises(ct.ChronotileError):
            jobs.create(archive, "mine", schema={"job_id": "int64", "submitted": "timestamp[us]"})


def test_states_of_a_job_are_merged_unless_asked_for() -> None:
    with ct.open("memory:") as archive:
        made = jobs.create(archive, schema={"job_id": "int64", "submitted": "timestamp[us]", "user": "utf8"})
        for user in ("ann", "bob"):
            made.write({"job_id": [1], "submitted": [FIRST.replace(tzinfo=None)], "user": [user]}, batch=user)
        assert made.get(1).to_arrow()["user"].to_pylist() == ["bob"]
        assert sorted(made.get([1], history=True, columns=["user"]).to_arrow()["user"].to_pylist()) == ["ann", "bob"]
        assert made.find().to_arrow().num_rows == 1
        assert made.find(history=True).to_arrow().num_rows == 2
        changed = {"job_id": [1], "submitted": [FIRST.replace(tzinfo=None)], "user": ["cy"]}
        with pytest.raises(ct.ChronotileError):
            made.write(changed, batch="bob")
        made.write(changed, batch="bob", replace=True)
        assert made.get(1).to_arrow()["user"].to_pylist() == ["cy"]


# ---------------------------------------------------------------- summaries

columns = st.lists(st.sampled_from(["user", "site"]), min_size=1, max_size=2, unique=True)


def order_of(values: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is None, value) for value in values)


@given(columns)
def test_groups_are_counted_the_most_frequent_first(done: jobs.Jobs, by: list[str]) -> None:
    counts = Counter(tuple(row[name] for name in by) for row in ROWS)
    wanted = sorted(counts.items(), key=lambda each: (-each[1], order_of(each[0])))
    assert [tuple(row.values()) for row in done.group_by(by).to_pylist()] == [(*key, n) for key, n in wanted]
    summed = done.group_by(by, aggregates={"run_s": ["sum", "count_distinct"], "load": "max"})
    assert summed.column_names == [*by, "count", "run_s_sum", "run_s_count_distinct", "load_max"]
    for row in summed.to_pylist():
        mine = [r for r in ROWS if all(r[name] == row[name] for name in by)]
        runs = [r["run_s"] for r in mine if r["run_s"] is not None]
        assert (row["count"], row["run_s_sum"], row["run_s_count_distinct"]) == (len(mine), sum(runs), len(set(runs)))
    assert [row["count"] for row in summed.to_pylist()] == [count for _, count in wanted]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_the_top_values_have_their_share_of_all(done: jobs.Jobs, n: int) -> None:
    counts = Counter(row["user"] for row in ROWS if row["site"] == "north")
    best = sorted(counts.items(), key=lambda each: (-each[1], each[0] is None, each[0]))[:n]
    found = done.top("user", n, site="north").to_pylist()
    assert [(row["user"], row["count"]) for row in found] == best
    assert [row["share"] for row in found] == pytest.approx([count / counts.total() for _, count in best])


def test_top_of_nothing_and_of_fewer_than_one(done: jobs.Jobs) -> None:
    assert done.top("user", user="nobody").to_pylist() == []
    assert len(done.top(["job_id"])) == 10
    for n in (0, -1):
        with pytest.raises(InvalidInputError, match=f"n={n} is out of range: use at least 1"):
            done.top("user", n)
    with pytest.raises(InvalidInputError, match="unknown aggregate 'mode' of 'run_s'"):
        done.group_by("user", aggregates={"run_s": ["sum", "mode"]})
    with pytest.raises(InvalidInputError, match=r"aggregates is 'sum\(run_s\)': give functions by column"):
        done.group_by("user", aggregates="sum(run_s)")  # type: ignore[arg-type]


def test_percentiles_of_infinite_values_and_of_fine_times() -> None:
    def of(values: pa.Array, q: list[float]) -> list[float]:
        batch = pa.record_batch([values], names=["x"])
        [row] = percentiles([batch], batch.schema, "x", q, []).to_pylist()
        return list(row.values())[1:]

    infinity = math.inf
    with np.errstate(all="raise"):
        assert of(pa.array([-infinity, 1.5, infinity]), [0, 25, 50, 75, 100]) == [
            -infinity, -infinity, 1.5, infinity, infinity,
        ]  # fmt: skip
        assert of(pa.array([infinity, infinity]), [50]) == [infinity]
    assert of(pa.array([1_500, 2_500], pa.duration("ns")), [0, 100]) == [1e-6, 2e-6]
    times = pa.record_batch(
        [pa.array([0], pa.timestamp("ns")), pa.array([2_500], pa.timestamp("ns"))], names=["a", "b"]
    )
    assert percentiles([times], times.schema, ("a", "b"), [50], []).to_pylist() == [{"count": 1, "p50": 2e-6}]


@pytest.mark.parametrize("interval", ["1h", "12h", "1d", "2d", "7d", "36h", "1mo", "1y", timedelta(days=1)])
@pytest.mark.parametrize("by", [(), "user", ["site", "user"]], ids=str)
def test_histograms_count_every_job_in_its_interval(done: jobs.Jobs, interval: Any, by: Any) -> None:
    names = [by] if isinstance(by, str) else list(by)

    def start(at: datetime) -> datetime:
        if interval == "1mo":
            return at.replace(day=1, hour=0, minute=0, second=0)
        if interval == "1y":
            return at.replace(month=1, day=1, hour=0, minute=0, second=0)
        text = "1d" if isinstance(interval, timedelta) else interval
        width = int(text[:-1]) * {"h": 3_600, "d": 86_400}[text[-1]]
        return datetime.fromtimestamp(int(at.timestamp()) // width * width, UTC)

    counts = Counter((start(row["submitted"]), *(row[name] for name in names)) for row in ROWS)
    found = done.histogram(interval, by=by)
    assert found.column_names == ["start", *names, "count"]
    wanted = sorted(counts.items(), key=lambda each: order_of(each[0]))
    assert [tuple(row.values()) for row in found.to_pylist()] == [(*key, count) for key, count in wanted]


def test_histograms_need_times() -> None:
    schema = {"job_id": "int64", "mjd": "float64", "day": "date32"}
    with ct.open("memory:") as archive:
        days = jobs.create(archive, "days", schema=schema, time="day")
        days.write({"job_id": [1, 2], "mjd": [61_000.0, 61_001.0], "day": [date(2026, 1, 30), date(2026, 2, 2)]})
        assert days.histogram("1mo")["count"].to_pylist() == [1, 1]
        assert days.histogram("6h")["start"].to_pylist() == [datetime(2026, 1, 30), datetime(2026, 2, 2)]
        floats = jobs.create(archive, "floats", schema=schema, time=ct.mjd("mjd"))  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="mjd is a float column of days"):
            floats.histogram()


PERCENTILES = [0, 12.5, 50, 99, 100]


@pytest.mark.parametrize("by", [(), "user", ["site", "user"]], ids=str)
@pytest.mark.parametrize("duration", ["run_s", "load", "wait", ("submitted", "ended")], ids=str)
def test_percentiles_are_those_of_numpy(done: jobs.Jobs, duration: Any, by: Any) -> None:
    def seconds(row: Row) -> float | None:
        value = row["ended"] - row["submitted"] if isinstance(duration, tuple) else row[duration]
        return value.total_seconds() if isinstance(value, timedelta) else value

    names = [by] if isinstance(by, str) else list(by)
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in ROWS:
        value = seconds(row)
        if value is not None and not math.isnan(value):
            groups.setdefault(tuple(row[name] for name in names), []).append(value)
    found = done.percentiles(duration, PERCENTILES, by=by)
    assert found.column_names == [*names, "count", "p0", "p12.5", "p50", "p99", "p100"]
    got = {tuple(row[name] for name in names): row for row in found.to_pylist()}
    assert got.keys() == groups.keys()
    for key, values in groups.items():
        assert got[key]["count"] == len(values)
        assert [got[key][f"p{q:g}"] for q in PERCENTILES] == pytest.approx(list(np.percentile(values, PERCENTILES)))


# Arrow returns groups of several columns in any order, mostly when some have nulls.
GROUPS = st.tuples(st.none() | st.integers(0, 2), st.sampled_from([None, "", "ann", "bob"]))


@settings(max_examples=100)
@given(st.lists(st.tuples(GROUPS, st.integers(-1_000, 1_000)), max_size=20), st.floats(0, 100))
def test_percentiles_of_any_groups(values: list[tuple[tuple[Any, Any], int]], q: float) -> None:
    schema = pa.schema([("g", pa.int64()), ("h", pa.string()), ("v", pa.float64())])
    rows = [pa.record_batch({"g": [g], "h": [h], "v": [float(v)]}, schema=schema) for (g, h), v in values]
    found = percentiles(rows, schema, "v", [q], ["g", "h"]).to_pylist()
    groups: dict[tuple[Any, Any], list[int]] = {}
    for group, v in sorted(values, key=lambda each: order_of(each[0])):
        groups.setdefault(group, []).append(v)
    assert [((row["g"], row["h"]), row["count"]) for row in found] == [(g, len(each)) for g, each in groups.items()]
    for row in found:
        assert row[f"p{q:g}"] == pytest.approx(float(np.percentile(groups[row["g"], row["h"]], q)), abs=1e-9)


def test_a_whole_number_of_more_digits_than_a_float_has_is_rounded() -> None:
    schema = pa.schema([("v", pa.int64())])
    [found] = percentiles([pa.record_batch({"v": [2**53 + 1]}, schema=schema)], schema, "v", [50], []).to_pylist()
    assert found == {"count": 1, "p50": 2.0**53}


def test_columns_named_as_the_result_names_its_own_are_refused() -> None:
    names = ["count", "share", "start", "p50", "x_sum", "x"]
    schema = pa.schema(
        [("job_id", pa.int64()), ("submitted", pa.timestamp("us", "UTC")), *((n, pa.int64()) for n in names)]
    )
    with ct.open("memory:") as archive:
        done = jobs.create(archive, schema=schema)
        done.write(pa.table([[1], [FIRST], *([[1]] * len(names))], schema=schema))
        questions: list[tuple[str, Any]] = [
            ("count", lambda by: done.group_by(by, aggregates={"x": "sum"})),
            ("x_sum", lambda by: done.group_by(by, aggregates={"x": "sum"})),
            ("share", done.top),
            ("count", done.top),
            ("start", lambda by: done.histogram("6h", by=by)),
            ("count", lambda by: done.histogram("1h", by=by)),
            ("p50", lambda by: done.percentiles("x", [50], by=by)),
            ("count", lambda by: done.percentiles("x", by=by)),
        ]
        for name, question in questions:
            with pytest.raises(InvalidInputError, match=f"column '{name}' cannot be grouped by"):
                question(name)
            assert question("job_id").num_rows == 1


@pytest.mark.parametrize("columns", [{"columns": "uzer"}, {"columns": "user", "aggregates": {"uzer": "max"}}])
def test_unknown_columns_of_groups_are_refused_with_the_nearest(done: jobs.Jobs, columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match='no column "uzer"; did you mean user'):
        done.group_by(**columns)


def test_texts_of_arguments_that_are_refused(done: jobs.Jobs) -> None:
    refusals: list[tuple[str, Any]] = [
        ("^indexes is 5, of type int: give a list of column names",
         lambda archive: jobs.create(archive, schema=SCHEMA, indexes=5)),
        (r"^archive is '.*', of type str: give an open archive", lambda _: jobs.open("a.db")),  # type: ignore[arg-type]
        ("^q is 5, of type int: give a list of numbers", lambda _: done.percentiles("run_s", 5)),  # type: ignore[arg-type]
        ("^duration has 1 columns: give one, or a pair", lambda _: done.percentiles(["run_s"])),  # type: ignore[arg-type]
        ("^duration has 3 columns: give one, or a pair",
         lambda _: done.percentiles(("run_s", "run_s", "load"))),  # type: ignore[arg-type]
    ]  # fmt: skip
    with ct.open("memory:") as archive:
        for words, call in refusals:
            with pytest.raises(InvalidInputError, match=words):
                call(archive)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [("avg", "did you mean mean? Use"), ("Average", "did you mean mean? Use"), ("std", "did you mean stddev? Use"),
     ("maxx", "did you mean max? Use"), ("zzzzzzzz", "use")],
)  # fmt: skip
def test_an_unknown_aggregate_is_refused_with_the_nearest(done: jobs.Jobs, wrong: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        done.group_by("user", aggregates={"run_s": wrong})
    assert f"unknown aggregate {wrong!r} of 'run_s': {hint} one of sum, mean" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "argument", "words"),
    [
        ({"id": "number"}, "id", '^id column "number" is not in the schema'),
        ({"time": "began"}, "time", '^time column "began" is not in the schema'),
        ({"version": "changed"}, "version", '^version column "changed" is not in the schema'),
        ({"id": "cell column"}, "id", '^id column "cell column" is not in the schema'),
    ],
)
def test_a_column_that_jobs_lack_is_named_with_its_argument(columns: dict[str, str], argument: str, words: str) -> None:
    with ct.open("memory:") as archive:
        with pytest.raises(InvalidInputError, match=words) as caught:
            jobs.create(archive, schema=SCHEMA, **columns)  # type: ignore[arg-type]
        assert str(caught.value).endswith(f": name the column with {argument}= (--{argument})")
        for other in ({"id": "user"}, {"window": "0d"}):
            with pytest.raises(InvalidInputError) as caught:
                jobs.create(archive, schema=SCHEMA, **other)  # type: ignore[arg-type]
            assert "name the column" not in str(caught.value)


def test_the_definition_is_read_again_with_columns_of_other_processes() -> None:
    with ct.open("memory:") as archive:
        made = jobs.create(archive, schema=SCHEMA)
        archive.dataset("jobs").add_columns({"more": "int64"})
        made.refresh()
        assert "more" in made.dataset.column_types
        archive.drop("jobs")
        archive.create("jobs", schema={"id": "utf8", "t": "timestamp[us]"}, cell=ct.hash("id"), time="t", id="id")
        with pytest.raises(ct.ChronotileError):
            made.refresh()


def test_percentiles_that_are_refused(done: jobs.Jobs) -> None:
    assert done.percentiles("run_s").column_names == ["count", "p50", "p90", "p99"]
    assert done.percentiles("run_s", user="nobody").to_pylist() == [{"count": 0, "p50": None, "p90": None, "p99": None}]
    assert done.percentiles("run_s", by="user", user="nobody").to_pylist() == []
    for q in ([], [-0.1], [100.1], [50, 101], [math.nan]):
        with pytest.raises(InvalidInputError, match="give numbers from 0 to 100"):
            done.percentiles("run_s", q)
    with pytest.raises(InvalidInputError, match="column 'user' is string"):
        done.percentiles("user")
    for pair in (("submitted", "run_s"), ("run_s", "ended")):
        with pytest.raises(InvalidInputError, match="'run_s' is int64: a duration lies between two timestamps"):
            done.percentiles(pair)


def test_rows_are_counted_while_they_come_in_memory_for_those_that_differ() -> None:
    values = [n % 7 if n % 11 else None for n in range(40_000)]
    table = pa.table({"count": values, "b": [n % 2 for n in range(40_000)]})
    held: list[int] = []
    found = counting.count_equal(
        (table.slice(start, 100) for start in range(0, 40_000, 100)), table.schema, Bounds(held.append)
    )
    assert found.column_names == ["count", "b", "count"]
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    assert {row[:2]: row[2] for row in rows} == Counter(zip(values, table["b"].to_pylist(), strict=True))
    assert len(held) == 400
    assert max(held) < table.nbytes / 8
    with pytest.raises(ct.InvalidInputError, match="more than 15 groups"):
        counting.count_equal([table], table.schema, Bounds(groups_max=15))
    assert counting.count_equal([], table.schema).num_rows == 0


def test_percentiles_of_durations_that_repeat_are_those_of_all_of_them() -> None:
    """Also with groups of one and of no durations."""
    chance = np.random.default_rng(1)
    seconds = chance.choice([0.0, 1.0, 2.5, 1e6], 3_000, p=[0.5, 0.3, 0.15, 0.05])
    groups = chance.choice(["a", "b", None], 3_000)
    seconds[groups == "b"] = np.nan
    table = pa.table({
        "job_id": range(3_002), "submitted": pa.array([FIRST] * 3_002, pa.timestamp("us", "UTC")),
        "site": pa.array([*groups, "one", "null"]), "run_s": pa.array([*seconds, 7.0, None], from_pandas=False),
    })  # fmt: skip
    done = jobs.create(ct.open("memory:"), schema=table.schema)
    for start in range(0, 3_002, 500):
        done.write(table.slice(start, 500), batch=str(start))
    wanted = [0, 33.3, 50, 95, 100]
    columns = done.percentiles("run_s", wanted, by="site").columns
    found = {row[0]: row[1:] for row in zip(*(column.to_pylist() for column in columns), strict=True)}
    assert set(found) == {"a", None, "one"}
    for name in ("a", None):
        mine = seconds[groups == name]
        assert found[name][0] == len(mine)
        assert found[name][1:] == pytest.approx(np.percentile(mine, wanted))
    assert found["one"] == (1, 7.0, 7.0, 7.0, 7.0, 7.0)
    every = done.percentiles("run_s", wanted)
    assert every["count"].to_pylist() == [len(seconds[groups != "b"]) + 1]
