"""Loading files of jobs: every record is stored once or told why not, wherever a load is cut off."""

from __future__ import annotations

import gzip
import io
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from support_data import assert_same_rows, job_log
from support_jobs import COLUMNS, generated, make

import chronotile as ct
from chronotile import jobs
from chronotile.jobs import blocks


@pytest.fixture
def done(sqlite: ct.Archive) -> jobs.Jobs:
    """An empty archive of jobs."""
    return make(sqlite)


def rejected(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def stored(done: jobs.Jobs) -> pa.Table:
    return done.find().to_arrow().select(list(COLUMNS))


def test_each_format_gives_the_same_jobs(tmp_path: Path, sqlite: ct.Archive) -> None:
    table = generated(2_000)
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    lines = [json.dumps({**row, "submitted": row["submitted"].isoformat(), "modified": row["modified"].isoformat()})
             for row in table.to_pylist()]  # fmt: skip
    (tmp_path / "c.ndjson").write_text("\n".join(lines))
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=300)
    for file in ("a.csv", "b.csv.gz", "c.ndjson", "d.parquet"):
        name = file.split(".")[0]
        done = jobs.create(sqlite, f"jobs_{name}", schema=COLUMNS, version="modified")
        report = jobs.load(done, tmp_path / file)
        assert (report.rows, report.rejected) == (2_000, 0), file
        assert_same_rows(stored(done), table, ["job_id"])


def test_bad_records_are_told_with_line_and_reason_and_the_rest_loads(tmp_path: Path, done: jobs.Jobs) -> None:
    table = generated(5_000)
    pyarrow.csv.write_csv(table, tmp_path / "jobs.csv")
    lines = (tmp_path / "jobs.csv").read_text().splitlines()
    lines[10] = lines[10].replace(",", ";")
    lines[2_000] = "x" + lines[2_000]
    lines[3_000] = ",".join(["3000", "", *lines[3_000].split(",")[2:]])
    lines[4_000] = ",".join(["4000", "no time", *lines[4_000].split(",")[2:]])
    lines.insert(4_500, "")
    (tmp_path / "jobs.csv").write_text("\n".join(lines) + "\n")
    report = jobs.load(done, tmp_path / "jobs.csv", rejects=tmp_path / "bad.ndjson")
    assert (report.rows, report.rejected) == (4_996, 4)
    bad = rejected(tmp_path / "bad.ndjson")
    assert [entry["line"] for entry in bad] == [11, 2_001, 3_001, 4_001]
    assert "9 columns" in bad[0]["reason"]
    assert "'job_id' cannot be read as int64" in bad[1]["reason"]
    assert bad[2]["reason"] == "submitted is missing"
    assert "'submitted' cannot be read as timestamp" in bad[3]["reason"]
    assert bad[1]["record"] == lines[2_000]
    good = table.filter(pa.array([i not in (9, 1_999, 2_999, 3_999) for i in range(5_000)]))
    assert_same_rows(stored(done), good, ["job_id"])


def test_numbers_out_of_range_are_rejected_and_infinite_ones_kept(tmp_path: Path, sqlite: ct.Archive) -> None:
    done = jobs.create(sqlite, schema={**COLUMNS, "load": "float32", "energy": "float64"}, version="modified")
    spelled = [("1e38", "1e300"), ("1e39", "1"), ("1", "-1e400"), ("-inf", "Infinity"), ("", "")]
    row = "{},2026-01-01T00:00:00Z,2026-01-01T00:00:00Z,{},{}"
    lines = [row.format(number, *values) for number, values in enumerate(spelled)]
    (tmp_path / "a.csv").write_text("\n".join(["job_id,submitted,modified,load,energy", *lines]))
    report = jobs.load(done, tmp_path / "a.csv", rejects=tmp_path / "bad.ndjson")
    assert (report.rows, report.rejected) == (3, 2)
    assert [(entry["line"], entry["reason"]) for entry in rejected(tmp_path / "bad.ndjson")] == [
        (3, "column 'load' holds a number that is out of the range of float"),
        (4, "column 'energy' holds a number that is out of the range of double"),
    ]
    found = done.get([0, 3, 4], columns=["load", "energy"]).to_arrow()
    assert found["load"].to_pylist() == [pytest.approx(1e38), -math.inf, None]
    assert found["energy"].to_pylist() == [1e300, math.inf, None]
    text = '{"job_id": 9, "submitted": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z", "load": 1e39}\n'
    (tmp_path / "b.ndjson").write_text(text)
    assert jobs.load(done, tmp_path / "b.ndjson", rejects=tmp_path / "worse.ndjson").rejected == 1
    assert "'load' holds a number that is out of the range" in rejected(tmp_path / "worse.ndjson")[0]["reason"]
    times = pa.array([0], pa.timestamp("us", "UTC"))
    table = pa.table({"job_id": [9], "submitted": times, "modified": times, "load": [1e39]})
    pq.write_table(table, tmp_path / "c.parquet")
    with pytest.raises(ct.DataFileError, match=r"'load'.*out of the range of float"):
        jobs.load(done, tmp_path / "c.parquet")


def test_quoted_line_ends_stay_in_their_records(
    tmp_path: Path, done: jobs.Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1_000)
    header = ",".join(["job_id", "submitted", "user", "status"])
    rows = [f'{i},2026-01-01T00:00:00Z,"ann, ""the\nsecond"" {i}",done' for i in range(300)]
    rows[200] = 'two hundred,2026-01-01T00:00:00Z,"a\nb",done'
    (tmp_path / "jobs.csv").write_text("\n".join([header, *rows]))
    report = jobs.load(done, tmp_path / "jobs.csv", rejects=tmp_path / "bad.ndjson")
    assert (report.rows, report.rejected) == (299, 1)
    assert rejected(tmp_path / "bad.ndjson")[0]["line"] == 2 + 2 * 200
    users = done.get([7, 299], columns=["user"]).to_arrow()["user"].to_pylist()
    assert users == ['ann, "the\nsecond" 7', 'ann, "the\nsecond" 299']
    assert len(done.dataset.batches()) > 5


def test_a_bad_line_of_a_log_is_told(tmp_path: Path, sqlite: ct.Archive) -> None:
    done = jobs.create(sqlite, schema=jobs.SWF_COLUMNS)
    lines = gzip.decompress(job_log().read_bytes()).decode().splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith(";"))
    count = len(lines) - first
    lines[first + 3] = "17 what is this"
    lines[first + 9] = lines[first + 9].replace(" 1 ", " x ", 1)
    lines.insert(first + 20, "; a comment between jobs")
    (tmp_path / "log.swf").write_text("\n".join(lines))
    report = jobs.load(done, tmp_path / "log.swf", rejects=tmp_path / "bad.ndjson")
    assert (report.rows, report.rejected) == (count - 2, 2)
    bad = rejected(tmp_path / "bad.ndjson")
    assert [entry["line"] for entry in bad] == [first + 4, first + 10]
    assert bad[0]["reason"] == "4 fields, a job has 18"
    assert "expected a number" in bad[1]["reason"]


def test_folders_columns_and_delimiters_are_as_given(tmp_path: Path, done: jobs.Jobs) -> None:
    folder = tmp_path / "dump" / "2026"
    folder.mkdir(parents=True)
    (folder / "one.csv").write_text("1|2026-01-01 00:00:00|ann\n2|2026-01-01 00:00:01|\\N\n")
    (folder / "two.csv").write_text("3|2026-01-02 00:00:00+01:00|bob\n")
    (folder / "notes.txt").write_text("nothing")
    names = ["job_id", "submitted", "user"]
    report = jobs.load(done, tmp_path / "dump", names=names, delimiter="|")
    assert (report.files, report.rows, report.rejected) == (2, 3, 0)
    rows = done.find(columns=["job_id", "submitted", "user"]).to_arrow().sort_by("job_id").to_pylist()
    assert [row["user"] for row in rows] == ["ann", None, "bob"]
    assert rows[2]["submitted"].isoformat() == "2026-01-01T23:00:00+00:00"


def test_loading_again_changes_nothing(tmp_path: Path, done: jobs.Jobs) -> None:
    pyarrow.csv.write_csv(generated(1_000), tmp_path / "jobs.csv")
    jobs.load(done, tmp_path / "jobs.csv")
    before = done.dataset.info()
    (tmp_path / "jobs.csv").rename(tmp_path / "renamed.csv")
    report = jobs.load(done, tmp_path / "renamed.csv")
    assert (report.rows, report.rows_before) == (0, 1_000)
    assert done.dataset.info() == before


def test_jobs_that_were_retired_are_loaded_again(tmp_path: Path, done: jobs.Jobs) -> None:
    table = generated(500)
    pq.write_table(table, tmp_path / "jobs.parquet")
    jobs.load(done, tmp_path / "jobs.parquet")
    assert done.dataset.retire(before="2200-01-01")
    assert done.dataset.count() == 0
    jobs.load(done, tmp_path / "jobs.parquet")
    assert_same_rows(stored(done), table, ["job_id"])


def test_what_cannot_be_loaded_is_refused(tmp_path: Path, done: jobs.Jobs) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,submitted,owner\n1,2026-01-01,ann\n")
    with pytest.raises(ct.InvalidInputError, match="unknown column 'owner'"):
        jobs.load(done, tmp_path / "jobs.csv")
    (tmp_path / "jobs.csv").write_text("job_id,user\n1,ann\n")
    with pytest.raises(ct.InvalidInputError, match="required column 'submitted' is missing"):
        jobs.load(done, tmp_path / "jobs.csv")
    with pytest.raises(ct.DataFileError, match="no such file or folder"):
        jobs.load(done, tmp_path / "nothing.csv")
    (tmp_path / "jobs.dat").write_text("1")
    with pytest.raises(ct.InvalidInputError, match="cannot tell the format of"):
        jobs.load(done, tmp_path / "jobs.dat")
    (tmp_path / "many.csv").write_text("job_id,submitted\n" + "x,y\n" * 50)
    with pytest.raises(ct.DataFileError, match="50 records rejected"):
        jobs.load(done, tmp_path / "many.csv", rejects_max=10)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"job_id,submitted\n1,2026-01-01\n")[:-10])
    with pytest.raises(ct.DataFileError, match="cannot decompress"):
        jobs.load(done, tmp_path / "cut.csv.gz")
    # All of it is one line, the header.
    (tmp_path / "mac.csv").write_bytes(b"job_id,submitted\r1,2026-01-01\r")
    with pytest.raises(ct.DataFileError, match=r"^\S*mac.csv: its lines end in carriage returns alone"):
        jobs.load(done, tmp_path / "mac.csv")


@pytest.mark.parametrize("name", ["jobs.csv.gz", "jobs.parquet"])
def test_files_with_changed_bytes_are_loaded_or_named(tmp_path: Path, done: jobs.Jobs, name: str) -> None:
    path, table = tmp_path / name, generated(300).select(["job_id", "submitted", "user"])
    if name.endswith(".gz"):
        text = io.BytesIO()
        pyarrow.csv.write_csv(table, text)
        path.write_bytes(gzip.compress(text.getvalue()))
    else:
        pq.write_table(table, path)
    good, refused = path.read_bytes(), 0
    for place in range(0, len(good), max(1, len(good) // 40)):
        path.write_bytes(good[:place] + b"\xff" * 30 + good[place + 30 :])
        try:
            jobs.load(done, path)
        except ct.DataFileError as error:
            refused += path.name in str(error)
        except ct.InvalidInputError:
            # The name of a column changed.
            pass
    assert refused > 20


def test_unknown_columns_are_named_with_the_nearest_and_all_there_are(tmp_path: Path, done: jobs.Jobs) -> None:
    known = ", ".join(done.dataset.column_types)

    def refused(header: str, name: str = "jobs.csv") -> str:
        if name.endswith(".csv"):
            (tmp_path / name).write_text(f"{header}\n" + ",".join("1" for _ in header.split(",")) + "\n")
        else:
            pq.write_table(pa.table({column: [1] for column in header.split(",")}), tmp_path / name)
        with pytest.raises(ct.InvalidInputError) as caught:
            jobs.load(done, tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        return str(caught.value).removeprefix(f"{tmp_path / name}: ")

    advice = "Rename columns of the file, or add columns to the dataset (add-columns)"
    for name in ("jobs.csv", "jobs.parquet"):
        assert refused("job_id,submitted,usr", name) == (
            f"unknown column 'usr'; did you mean user? It has {known}. {advice}"
        )
    assert refused("job_id,submitted,zzzz") == f"unknown column 'zzzz'; it has {known}. {advice}"
    assert refused("job_id,submitted,usr,zzzz,SUBMITTED") == (
        f"unknown columns 'usr', 'zzzz', 'SUBMITTED'; did you mean user, submitted? Known columns: {known}. {advice}"
    )
    many = refused(",".join(["job_id", "submitted", *(f"x{number}" for number in range(100_000))]))
    assert "'x19', ... (100000 in all)" in many
    assert refused("job_id,user") == "required column 'submitted' is missing: the file has job_id, user"
    lines = ['{"job_id": 1, "submitted": "2026-01-01", "usr": "ann"}', '{"job_id": 2, "submitted": "2026-01-01"}']
    (tmp_path / "jobs.ndjson").write_text("\n".join(lines))
    report = jobs.load(done, tmp_path / "jobs.ndjson")
    assert (report.rows, report.first_reject) == (
        1, (str(tmp_path / "jobs.ndjson"), 1, f"unknown column 'usr'; did you mean user? It has {known}"),
    )  # fmt: skip


def test_what_a_value_says_is_no_part_of_the_reason(tmp_path: Path, done: jobs.Jobs) -> None:
    values = ["x column #99: y", "Row #4: x", "CSV conversion error to x", "In CSV column #0: x"]
    lines = [f"{value},2026-01-01" for value in values]
    (tmp_path / "jobs.csv").write_text("job_id,submitted\n7,2026-01-01\n" + "\n".join(lines))
    report = jobs.load(done, tmp_path / "jobs.csv", rejects=tmp_path / "bad")
    assert (report.rows, report.rejected) == (1, 4)
    assert [each["reason"] for each in rejected(tmp_path / "bad")] == [
        f"column 'job_id' cannot be read as int64: invalid value '{value}'" for value in values
    ]


LOAD = """
import sys
import chronotile as ct
from chronotile import jobs
from chronotile.jobs import blocks

if __name__ == "__main__":
    blocks.BLOCK_BYTES = 20_000
    with ct.open(sys.argv[1]) as archive:
        done = jobs.open(archive)
        print(jobs.load(done, sys.argv[2], url=archive.url, workers=2, rejects=sys.argv[3]), flush=True)
"""


def test_a_killed_load_goes_on_where_it_ended(tmp_path: Path, path: Path) -> None:
    table = generated(20_000)
    pyarrow.csv.write_csv(table, tmp_path / "jobs.csv")
    lines = (tmp_path / "jobs.csv").read_text().splitlines()
    for place in range(50, 20_000, 997):
        lines[place] = "bad"
    (tmp_path / "jobs.csv").write_text("\n".join(lines) + "\n")
    with ct.open(path) as archive:
        make(archive)
    (tmp_path / "load.py").write_text(LOAD)
    command = [sys.executable, tmp_path / "load.py", path, tmp_path / "jobs.csv", tmp_path / "bad.ndjson"]
    for seconds in (1.5, 2.5):
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        running.kill()
        running.wait(20)
    time.sleep(0.5)
    last = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert last.returncode == 0, last.stderr
    bad = rejected(tmp_path / "bad.ndjson")
    assert sorted(entry["line"] for entry in bad) == [place + 1 for place in range(50, 20_000, 997)]
    keep = pa.array([not (i + 1 >= 50 and (i + 1 - 50) % 997 == 0) for i in range(20_000)])
    with ct.open(path) as archive:
        done = jobs.open(archive)
        assert_same_rows(stored(done), table.filter(keep), ["job_id"])
        assert done.find(history=True, columns=["job_id"]).to_arrow().num_rows == done.count()
