"""The archive of jobs: every answer against one by hand, on the real log and on generated jobs."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import support_jobs
import support_workers
import swf
from conftest import Run
from support_data import assert_same_rows, job_log
from support_jobs import COLUMNS, generated, make

import chronotile as ct
from chronotile import jobs


@pytest.fixture(scope="module")
def log() -> pa.Table:
    """A log of batch jobs, read by the tests' own reader."""
    return swf.read_jobs(job_log())


@pytest.fixture(scope="module")
def nasa(tmp_path_factory: pytest.TempPathFactory, log: pa.Table) -> jobs.Jobs:
    """That log in an archive, with indexes built."""
    archive = ct.open(tmp_path_factory.mktemp("nasa") / "jobs.db")
    done = jobs.create(
        archive, schema=jobs.SWF_COLUMNS, indexes=[("user", "group"), "executable", ("user", "processors")]
    )
    report = jobs.load(done, job_log())
    assert (report.rows, report.rejected) == (log.num_rows, 0)
    done.dataset.build_indexes()
    return done


_rows: dict[int, list[dict[str, Any]]] = {}


def picked(log: pa.Table, start: datetime | None = None, end: datetime | None = None, **equal: Any) -> pa.Table:
    """Jobs of the log, picked one by one."""
    rows = _rows.setdefault(id(log), log.to_pylist())

    def fits(row: dict[str, Any]) -> bool:
        within = (start is None or row["submitted"] >= start) and (end is None or row["submitted"] < end)
        wanted = ((row[name], value if isinstance(value, list) else [value]) for name, value in equal.items())
        return within and all(found in values for found, values in wanted)

    return log.filter(pa.array([fits(row) for row in rows]))


SHARED = ["job_id", "submitted", "run_s", "processors", "user", "group", "executable"]
QUESTIONS: list[dict[str, Any]] = [
    {"user": 4},
    {"user": [1, 4, 19], "group": 1},
    {"user": 4, "processors": 32},
    {"executable": 7},
    {"executable": [3, 4, 999_999]},
    {"user": 12_345},
    {"group": 2, "run_s": 10},
]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_answers_about_the_real_log_are_those_by_hand(nasa: jobs.Jobs, log: pa.Table, question: dict[str, Any]) -> None:
    periods = [(None, None), (datetime(1993, 10, 20, tzinfo=UTC), datetime(1993, 11, 3, tzinfo=UTC)),
               (datetime(1993, 11, 5, 7, 30, tzinfo=UTC), datetime(1993, 11, 6, 9, tzinfo=UTC))]  # fmt: skip
    for start, end in periods:
        want = picked(log, start, end, **question)
        got = nasa.find(columns=SHARED, start=start, end=end, **question).to_arrow()
        assert_same_rows(got, want.select(SHARED), ["job_id"])
        assert nasa.count(start=start, end=end, **question) == want.num_rows
        counted = nasa.group_by("user", start=start, end=end, **question)
        by_hand = want.group_by("user").aggregate([([], "count_all")])
        assert dict(zip(*map(pa.ChunkedArray.to_pylist, counted.columns), strict=True)) == {
            row["user"]: row["count_all"] for row in by_hand.to_pylist()
        }


def test_the_log_is_looked_up_by_id_without_its_dates(nasa: jobs.Jobs, log: pa.Table) -> None:
    choose = random.Random(3)
    ids = log["job_id"].to_pylist()
    wanted = choose.sample(ids, 500) + [0, 10**12, -5]
    got = nasa.get(wanted, columns=SHARED).to_arrow()
    assert_same_rows(got, log.filter(pc.is_in(log["job_id"], pa.array(wanted))).select(SHARED), ["job_id"])
    assert nasa.get(ids[17], columns=["job_id"]).to_arrow().to_pylist() == [{"job_id": ids[17]}]
    assert nasa.get(10**12).to_arrow().num_rows == 0


def test_days_over_time_and_top_users_agree_with_the_log(nasa: jobs.Jobs, log: pa.Table) -> None:
    days: dict[datetime, int] = {}
    for moment in log["submitted"].to_pylist():
        day = moment.replace(hour=0, minute=0, second=0)
        days[day] = days.get(day, 0) + 1
    found = nasa.histogram("1d")
    assert dict(zip(found["start"].to_pylist(), found["count"].to_pylist(), strict=True)) == days
    hours = nasa.histogram("6h", days=("1993-10-04", "1993-10-06"), user=4)
    mine = picked(log, datetime(1993, 10, 4, tzinfo=UTC), datetime(1993, 10, 7, tzinfo=UTC), user=4)
    assert sum(hours["count"].to_pylist()) == mine.num_rows
    assert all(start.hour % 6 == 0 for start in hours["start"].to_pylist())
    weeks = nasa.histogram("7d", by="group")
    assert sum(weeks["count"].to_pylist()) == log.num_rows

    top = nasa.top("user", 5)
    by_hand = log.group_by("user").aggregate([([], "count_all")]).sort_by([("count_all", "descending")])
    assert top["count"].to_pylist() == by_hand["count_all"].to_pylist()[:5]
    assert top["share"].to_pylist()[0] == pytest.approx(top["count"][0].as_py() / log.num_rows)


def test_percentiles_are_exact(nasa: jobs.Jobs, log: pa.Table) -> None:
    for user in (4, 19):
        values = picked(log, user=user)["run_s"].drop_null().to_numpy()
        found = nasa.percentiles("run_s", [0, 12.5, 50, 99, 100], user=user)
        assert found["count"].to_pylist() == [len(values)]
        for q in (0, 12.5, 50, 99, 100):
            assert found[f"p{q:g}"][0].as_py() == pytest.approx(np.percentile(values, q))
    grouped = nasa.percentiles("run_s", [50], by=["group", "user"])
    for row in grouped.slice(0, 5).to_pylist():
        values = picked(log, user=row["user"], group=row["group"])["run_s"].drop_null().to_numpy()
        assert (row["count"], row["p50"]) == (len(values), pytest.approx(np.median(values)))
    assert nasa.percentiles("run_s", user=-7).to_pylist() == [{"count": 0, "p50": None, "p90": None, "p99": None}]


def test_aggregates_of_groups_are_those_by_hand(nasa: jobs.Jobs, log: pa.Table) -> None:
    found = nasa.group_by("group", aggregates={"run_s": ["sum", "max"], "processors": "mean"})
    for row in found.to_pylist():
        mine = picked(log, group=row["group"])
        assert row["count"] == mine.num_rows
        assert row["run_s_sum"] == pc.sum(mine["run_s"]).as_py()
        assert row["run_s_max"] == pc.max(mine["run_s"]).as_py()
        assert row["processors_mean"] == pytest.approx(pc.mean(mine["processors"]).as_py())


def test_an_index_answers_for_whole_days_and_says_so(nasa: jobs.Jobs) -> None:
    used = nasa.explain(by=[], user=4, group=1, days=("1993-10-20", "1993-10-24"))
    assert (used.index, used.chunks_read, len(used.windows_indexed)) == ("user_group", 0, 5)
    assert used.windows_direct == ()
    part = nasa.explain(by=[], user=4, start="1993-10-20T12:00", end="1993-10-24")
    assert part.index is not None
    assert part.tiles_partial > 0
    assert "partly outside the period" in str(part)
    none = nasa.explain(by=[], run_s=10)
    assert none.index is None
    assert "no index has all requested columns" in str(none)


def test_the_newest_state_wins_and_earlier_ones_are_kept(sqlite: ct.Archive) -> None:
    done = make(sqlite, indexes=[("user", "status")])
    first = generated(2_000, days=3)
    done.write(first, batch="first")
    done.dataset.build_indexes()
    changed = first.slice(500, 300)
    later = changed.set_column(
        2, "modified", pa.array([datetime(2026, 2, 1, tzinfo=UTC)] * 300, pa.timestamp("us", "UTC"))
    )
    later = later.set_column(5, "status", pa.array(["resubmitted"] * 300))
    done.write(later, batch="later")
    for _ in range(2):
        assert done.count(status="resubmitted") == 300
        assert done.count() == 2_000
        assert done.find(status="resubmitted", columns=["job_id"]).to_arrow()["job_id"].to_pylist() == sorted(
            changed["job_id"].to_pylist()
        )
        assert done.get(changed["job_id"], history=True, columns=["job_id"]).to_arrow().num_rows == 600
        states = sum(done.count(status=status) for status in ("done", "failed", "cancelled"))
        assert states == 1_700
        done.dataset.build_indexes()
    # An older state that comes late changes nothing.
    done.write(first.slice(500, 10), batch="late")
    assert done.count(status="resubmitted") == 300


def test_questions_that_make_no_sense_are_refused_with_advice(sqlite: ct.Archive) -> None:
    done = make(sqlite)
    for question, words in [
        ({"owner": "ann"}, "unknown column 'owner'"),
        ({"days": "yesterday"}, "days is 'yesterday': give a date"),
        ({"days": ("2026-01-05", "2026-01-01")}, "before it starts at 2026-01-05"),
        ({"days": 0}, "use at least 1"),
        ({"days": 3, "start": "2026-01-01"}, "give either days"),
    ]:
        with pytest.raises(ct.InvalidInputError, match=words):
            done.count(**question)  # type: ignore[arg-type]
    with pytest.raises(ct.InvalidInputError, match="numbers from 0 to 100"):
        done.percentiles("run_s", [101])
    with pytest.raises(ct.InvalidInputError, match="two time columns"):
        done.percentiles("user")
    with pytest.raises(ct.InvalidInputError, match="unknown aggregate"):
        done.group_by("user", aggregates={"run_s": "mode"})
    sqlite.create("text", schema={"id": "utf8", "t": "timestamp[us]"}, cell=ct.hash("id"), time="t", id="id")
    with pytest.raises(ct.InvalidInputError, match="exactly one integer id column"):
        jobs.open(sqlite, "text")


def test_days_and_durations_between_two_times(sqlite: ct.Archive) -> None:
    done = make(sqlite)
    table = generated(3_000, days=4)
    done.write(table, batch="all")
    day = pc.strftime(table["submitted"], "%Y-%m-%d")
    assert done.count(days="2026-01-02") == pc.sum(pc.equal(day, "2026-01-02")).as_py()
    assert done.count(days=(date(2026, 1, 1), date(2026, 1, 2))) == pc.sum(pc.less_equal(day, "2026-01-02")).as_py()
    assert done.count(days=2) == 0
    waits = done.percentiles(("submitted", "modified"), [50])
    assert waits.to_pylist() == [{"count": 3_000, "p50": 3_600.0}]


# ---------------------------------------------------------------------- indexes of several processes


def test_processes_build_an_index_together(path: Path) -> None:
    with ct.open(path) as archive:
        done = make(archive, indexes=[("user", "cloud", "status"), "task"])
        table = generated(30_000, days=12)
        done.write(table, batch="all")
    built = support_workers.run(support_jobs.build, str(path), 3)
    with ct.open(path) as archive:
        done = jobs.open(archive)
        info = done.dataset.indexes()
        assert sum(built) == sum(index.windows for index in info)
        assert [index.rows for index in info] == [30_000, 30_000]
        assert done.explain(by=[], user="u1", status="failed").chunks_read == 0
        want = pc.sum(pc.and_(pc.equal(table["user"], "u1"), pc.equal(table["status"], "failed"))).as_py()
        assert done.count(user="u1", status="failed") == want


def test_a_killed_builder_costs_nothing_but_time(path: Path) -> None:
    with ct.open(path) as archive:
        done = make(archive, indexes=["user", ("cloud", "status"), "task", ("user", "run_s")])
        table = generated(20_000, days=40)
        done.write(table, batch="all")
        want = pc.sum(pc.equal(table["user"], "u3")).as_py()
        for delay_s in (0.15, 0.3, 0.5):
            command = [sys.executable, "-m", "chronotile", "index", "build", str(path), "jobs", "--lease", "1"]
            builder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.4 + delay_s)
            builder.send_signal(signal.SIGKILL)
            builder.wait(20)
            assert done.count(user="u3") == want
            assert done.find(user="u3", columns=["job_id"]).to_arrow().num_rows == want
        done.dataset.build_indexes()
        assert done.count(user="u3") == want
        assert done.explain(by=[], user="u3").chunks_read == 0


# ---------------------------------------------------------------------- the command line


def test_the_command_line_loads_looks_up_and_counts(chronotile: Run, path: Path, log: pa.Table) -> None:
    file = job_log()
    loaded = chronotile("jobs", "load", path, "jobs", file, "--create", "--index", "user,status", "--workers", 1)
    assert loaded.returncode == 0, loaded.stderr
    assert f"stored {log.num_rows:,} jobs of 1 file " in loaded.stdout
    again = chronotile("jobs", "load", path, "jobs", file)
    assert f"{log.num_rows:,} jobs already stored" in again.stdout
    built = chronotile("index", "build", path, "jobs")
    assert built.returncode == 0, built.stderr
    assert "windows" in built.stdout
    assert "nothing to do" in chronotile("index", "build", path, "jobs").stdout
    status = chronotile("index", "status", path, "jobs")
    assert "user_status" in status.stdout
    want = picked(log, user=4).num_rows
    assert chronotile("jobs", "count", path, "jobs", "user=4").stdout == f"{want}\n"
    several = chronotile("jobs", "count", path, "jobs", "user=4,19", "--where", "run_s>100")
    assert int(several.stdout) == sum(1 for run in picked(log, user=[4, 19])["run_s"].to_pylist() if run > 100)
    explained = chronotile("index", "explain", path, "jobs", "--where", "user=4", "--count")
    assert "index user_status answers" in explained.stdout
    first, second = picked(log, user=4)["job_id"].to_pylist()[:2]
    got = chronotile("jobs", "get", path, "jobs", f"{first},{second}", "--columns", "job_id,user", "--format", "csv")
    assert got.stdout == f"job_id,user\n{first},4\n{second},4\n"
    found = chronotile("jobs", "find", path, "jobs", "user=4", "--days", "1993-10-01", "--format", "csv")
    assert (
        len(found.stdout.splitlines()) - 1
        == picked(log, datetime(1993, 10, 1, tzinfo=UTC), datetime(1993, 10, 2, tzinfo=UTC), user=4).num_rows
    )
    top = chronotile("jobs", "top", path, "jobs", "--by", "user", "--limit", 3, "--format", "csv")
    assert len(top.stdout.splitlines()) == 4
    bars = chronotile("jobs", "histogram", path, "jobs", "--interval", "30d", "--plot")
    assert "#" in bars.stdout
    percentiles = chronotile("jobs", "percentiles", path, "jobs", "--of", "run_s", "--format", "csv")
    assert percentiles.stdout.startswith(f"count,p50,p90,p99\n{log.num_rows},")
    dropped = chronotile("index", "drop", path, "jobs", "user_status", "--yes")
    assert "dropped index user_status" in dropped.stdout
    assert chronotile("jobs", "count", path, "jobs", "user=4").stdout == f"{want}\n"
    assert chronotile("index", "drop", path, "jobs", "user_status", "--yes").returncode == 2
    assert chronotile("jobs", "find", path, "jobs", "user").returncode == 2


def test_a_dataset_of_another_kind_has_indexes_too(survey: ct.Dataset, detections: pa.Table) -> None:
    survey.create_index(["band"], "by_band")
    want = pc.sum(pc.equal(detections["band"], "g")).as_py()
    assert survey.count(where=("band", "==", "g")) == want
    survey.build_indexes()
    assert survey.explain(by=["band"]).index == "by_band"
    counts = survey.count_by("band", by_window=True)
    assert sum(counts["count"].to_pylist()) == detections.num_rows
    assert all(start % 30 == pytest.approx(2_440_587.5 % 30) for start in counts["window"].to_pylist())
    assert survey.count(where=("band", "==", "g")) == want
    extra = detections.slice(0, 1).set_column(0, "candid", pa.array([9_999], pa.int64()))
    survey.write(extra, batch="late")
    assert len(survey.explain(by=["band"]).windows_direct) == 1
    assert survey.count_by("band")["count"].to_pylist() != counts["count"].to_pylist()
    assert survey.count() == detections.num_rows + 1
    info = survey.indexes()
    assert (info[0].name, info[0].columns) == ("by_band", ("band",))
    assert info[0].built is not None
    assert datetime.now(UTC) - info[0].built < timedelta(minutes=5)
    with pytest.raises(ct.InvalidInputError, match="index by_band exists already, on band: use it") as caught:
        survey.create_index(["mag"], "by_band")
    assert caught.value.kind == "index-exists"
    assert survey.drop_index("by_band") == info[0].windows


def test_columns_of_the_tests_fit_the_library() -> None:
    assert set(COLUMNS) == set(generated(10).column_names)
