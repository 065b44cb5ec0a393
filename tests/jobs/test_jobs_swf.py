"""The Standard Workload Format: lines of 18 numbers, with -1 for unknown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from chronotile.errors import DataFileError
from chronotile.jobs import SWF_COLUMNS, swf

NAMES = list(SWF_COLUMNS)
GOOD = b"1 0 -1 17 128 3.5 -1 -1 -1 -1 1 4 1 -1 2 -1 -1 -1"


def line_of(**fields: Any) -> bytes:
    words = dict(zip(NAMES, GOOD.split(), strict=True))
    return b" ".join({**words, **{name: str(value).encode() for name, value in fields.items()}}.values())


def test_time_zero_stands_in_the_header() -> None:
    for header in (
        b"; UnixStartTime: 749458803",
        b";UnixStartTime:749458803\n",
        b"; Version: 2\n;   UnixStartTime:  749458803 (x)",
    ):
        assert swf.start_of(header, "a.swf") == 749_458_803
    assert swf.start_of(b"; UnixStartTime: " + b"1" * 18, "a.swf") == int("1" * 18)
    label = b"; UnixStartTime:"
    for header in (b"", label, label + b" none", label[2:] + b" 5", label + b" " + b"1" * 19):
        with pytest.raises(DataFileError, match=r"a\.swf: no UnixStartTime"):
            swf.start_of(header, "a.swf")


@settings(max_examples=40)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "job_id": st.integers(-1, 2**53 - 1), "submitted": st.integers(-2, 10**9),
                "run_s": st.integers(-2, 10**6),
                "status": st.integers(-2, 7), "cpu_mean_s": st.sampled_from([-1.0, -1.5, 0.0, 0.25, 1e6]),
                "processors": st.integers(-1, 2**31 - 1), "user": st.integers(-1, 3),
            }
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_unknown_is_null_and_everything_else_is_kept(jobs: list[dict[str, Any]]) -> None:
    start_s = 749_458_803
    lines = [line_of(**job) for job in jobs]
    assert [swf.fault_of(line) for line in lines] == [None] * len(lines)
    table = swf.parse(b"\n".join(lines) + b"\n", start_s)
    assert table.column_names == NAMES
    assert table.schema.field("submitted").type == pa.timestamp("s", "UTC")
    for row, job in zip(table.to_pylist(), jobs, strict=True):
        for name in ("job_id", "run_s", "cpu_mean_s", "processors", "user"):
            assert row[name] == (None if job[name] == -1 else job[name])
        at = None if job["submitted"] == -1 else datetime.fromtimestamp(start_s + job["submitted"], UTC)
        assert row["submitted"] == at
        code = job["status"]
        assert row["status"] == (swf.STATUSES[code] if 0 <= code <= 5 else None)
        assert (row["wait_s"], row["memory_mean_kib"], row["queue"]) == (None, None, 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "0 fields, a job has 18"),
        (GOOD.rsplit(b" ", 1)[0], "17 fields, a job has 18"),
        (GOOD + b" 1", "19 fields, a job has 18"),
        (line_of(user="x"), "user is 'x', expected a number"),
        (line_of(run_s="1.5"), "run_s is 1.5, out of range for int64"),
        (line_of(run_s="inf"), "run_s is inf, out of range for int64"),
        (line_of(run_s="nan"), "run_s is nan, out of range for int64"),
        (line_of(status="nan"), "status is nan, out of range for int64"),
        (line_of(status="1.5"), "status is 1.5, out of range for int64"),
        (line_of(status=7), None),
        (line_of(submitted="inf"), "submitted is inf, out of range for timestamp[s, UTC]"),
        (line_of(submitted="nan"), "submitted is nan, out of range for timestamp[s, UTC]"),
        (line_of(submitted=2**53), f"submitted is {2**53}, out of range for timestamp[s, UTC]"),
        (line_of(submitted=2**53 - 1), None),
        (line_of(submitted="1.5"), None),
        (line_of(processors=2**31), f"processors is {2**31}, out of range for int32"),
        (line_of(processors=-(2**31)), f"processors is {-(2**31)}, out of range for int32"),
        (line_of(processors=2**31 - 1), None),
        (line_of(job_id=2**53), f"job_id is {2**53}, out of range for int64"),
        (line_of(job_id=2**53 - 1), None),
        (line_of(run_s="3.0"), None),
        (line_of(cpu_mean_s="1.5"), None),
        (line_of(cpu_mean_s="x"), "cpu_mean_s is 'x', expected a number"),
        (b"  " + GOOD.replace(b" ", b"\t"), None),
    ],
)
def test_what_is_wrong_with_a_line(line: bytes, words: str | None) -> None:
    assert swf.fault_of(line) == words
