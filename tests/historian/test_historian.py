"""The historian: tags, points, aggregates and what the standard says of them."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Run
from support_data import data_file, run_cli

import chronotile as ct
from chronotile import historian

MS = 10**6
S = 10**9
HOUR = 3_600 * S
DAY = 24 * HOUR
START = 20_000 * DAY

CODES = {
    "Good": historian.GOOD,
    "Uncertain": historian.UNCERTAIN,
    "UncertainDataSubNormal": historian.UNCERTAIN_SUB_NORMAL,
    "Bad": historian.BAD,
    "BadNoData": historian.BAD_NO_DATA,
    "Calculated": historian.CALCULATED,
    "Interpolated": historian.INTERPOLATED,
    "Partial": historian.PARTIAL,
    "MultipleValues": historian.MULTIPLE_VALUES,
}


def code(text: str) -> int:
    """A status code of its words."""
    found = 0
    for word in text.split(", "):
        found |= CODES[word]
    return found


def clock_ns(text: str) -> int:
    """Nanoseconds of a time of day."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    return (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * S + int(fraction.ljust(9, "0") or 0)


@pytest.fixture
def h(memory: ct.Archive) -> Iterator[historian.Historian]:
    with historian.open(memory) as opened:
        yield opened


def values(result: Any) -> list[Any]:
    """The values of a result."""
    return list(result.to_arrow()["value"].to_pylist())


def seconds_of(h: historian.Historian, tag: str, count: int, *, step: int = S, seed: int = 1) -> pa.Table:
    """Stores one value a step; gives the points."""
    rng = np.random.default_rng(seed)
    table = pa.table(
        {
            "tag": pa.array([tag] * count),
            "time": pa.array(START + np.arange(count) * step, pa.int64()),
            "value": np.round(np.cumsum(rng.normal(0, 0.01, count)) + 0.5, 2),
        }
    )
    h.write(table)
    return table


# ---------------------------------------------------------------- the standard


def test_every_published_result_is_reproduced_from_an_archive(h: historian.Historian) -> None:
    published = json.loads(data_file("opcua_aggregates.json").read_text())
    kinds = {"Historian1": "float", "Historian2": "float", "Historian4": "bool"}
    for name, raw in published["raw"].items():
        h.define(name, data_type=kinds[name])
        given = [point.get("Value") for point in raw]
        h.write(
            {
                "tag": [name] * len(raw),
                "time": [START + clock_ns(point["Timestamp"]) for point in raw],
                "value": [
                    None if value is None else float({"true": 1, "false": 0}.get(value, value)) for value in given
                ],
                "status": [code(point.get("Quality", "Good")) for point in raw],
            }
        )
    wrong = []
    for expected in published["processed"]:
        result = h.aggregate(
            expected["DataSetName"],
            START,
            START + 100 * S,
            int(expected["ProcessingInterval"]) * MS,
            expected["AggregateName"],
            stepped=expected["Stepped"] == "true",
            treat_uncertain_as_bad=expected["TreatUncertainAsBad"] == "true",
            percent_good=float(expected["PercentGood"]),
            percent_bad=float(expected["PercentBad"]),
            sloped_extrapolation=expected["UseSlopedExtrapolation"] == "true",
        ).to_arrow()
        assert result.num_rows == len(expected["Values"])
        for row, want in zip(result.to_pylist(), expected["Values"], strict=True):
            text = want.get("Value") or None
            value = {"true": 1.0, "false": 0.0, None: None}.get(text, text)
            if isinstance(value, str):
                value = float(CODES[value]) if value in CODES else float(value)
            found = None if row["value"] is None else float(row["value"])
            same = found is value is None or (None not in (found, value) and abs(found - value) < 1e-4)
            at = row["time"].value - START if hasattr(row["time"], "value") else None
            if not same or row["status"] != code(want["Quality"]) or at not in (None, clock_ns(want["Timestamp"])):
                wrong.append((expected["DataSetName"], expected["AggregateName"], want, row))
    assert not wrong


# Of OPC 10000-13, Annex A.36: variances of samples over 20 s. Partial bits differ between editions and are left out.
ANNEX_VARIANCE = {
    "Historian1": [(0, "Good"), (50, "Good"), (0, "Uncertain"), (0, "Uncertain"), (50, "Good")],
    "Historian2": [(0, "Good"), (25, "Good"), (50, "Uncertain"), (0, "Uncertain"), (100, "Good")],
}


@pytest.mark.parametrize("name", ANNEX_VARIANCE)
def test_variances_are_those_of_the_text_of_the_standard(name: str) -> None:
    raw = json.loads(data_file("opcua_aggregates.json").read_text())["raw"][name]
    points = {
        "time": [clock_ns(point["Timestamp"]) for point in raw],
        "value": [float(point["Value"]) if "Value" in point else None for point in raw],
        "status": [code(point.get("Quality", "Good")) for point in raw],
    }
    for aggregate, root in [("VarianceSample", 1), ("StandardDeviationSample", 2)]:
        uncertain_is_bad = name == "Historian2"
        found = historian.compute(
            points, 0, 100 * S, "20s", aggregate, treat_uncertain_as_bad=uncertain_is_bad, rules="standard"
        )
        for row, (value, severity) in zip(found.to_arrow().to_pylist(), ANNEX_VARIANCE[name], strict=True):
            assert row["value"] == pytest.approx(value ** (1 / root))
            assert historian.status_text(row["status"]).startswith(severity)


# Of OPC 10000-13, Annex A: Historian 3 has the values of Historian 2, stepped, and both percents of quality at 50.
# Seconds, value, status.
ANNEX_HISTORIAN_3 = {
    "Count": [(0, 1, "Good"), (16, 2, "Good"), (32, None, "Bad"), (48, 2, "Good"), (64, 1, "Good"), (80, 3, "Good")],
    "StartBound": [
        (0, None, "BadNoData"),
        (16, 10, "Good, Interpolated"),
        (32, 25, "Good, Interpolated"),
        (48, 40, "Good"),
        (64, 50, "Good, Interpolated"),
        (80, None, "BadNoData"),
    ],
    "MinimumActualTime2": [
        (2, 10, "Good"),
        (16, 10, "Good, Interpolated"),
        (32, 25, "Good, Interpolated"),
        (48, 40, "Good"),
        (64, 50, "Good, Interpolated"),
        (83, 70, "Good"),
    ],
    "MaximumActualTime": [
        (2, 10, "Good"),
        (28, 25, "Good"),
        (39, 30, "UncertainDataSubNormal"),
        (52, 50, "Good"),
        (72, 60, "UncertainDataSubNormal"),
        (90, 90, "Good"),
    ],
    "MaximumActualTime2": [
        (2, 10, "Good"),
        (28, 25, "Good"),
        (39, 30, "Good"),
        (52, 50, "Good"),
        (72, 60, "Good"),
        (90, 90, "Good"),
    ],
}


@pytest.mark.parametrize("aggregate", ANNEX_HISTORIAN_3)
def test_stepped_values_with_thresholds_are_those_of_the_standard(aggregate: str) -> None:
    raw = json.loads(data_file("opcua_aggregates.json").read_text())["raw"]["Historian2"]
    points = {
        "time": [clock_ns(point["Timestamp"]) for point in raw],
        "value": [float(point["Value"]) if "Value" in point else None for point in raw],
        "status": [code(point.get("Quality", "Good")) for point in raw],
    }
    found = historian.compute(points, 0, 96 * S, "16s", aggregate, stepped=True, percent_good=50, percent_bad=50)
    bits = historian.CALCULATED | historian.PARTIAL
    rows = [
        (row["time"].value // S, row["value"], historian.status_text(row["status"] & ~(bits & 0xFF)))
        for row in found.to_arrow().to_pylist()
    ]
    assert rows == ANNEX_HISTORIAN_3[aggregate]


def test_status_codes_have_words() -> None:
    assert historian.status_text(0x40A4_0405) == "UncertainDataSubNormal, Calculated, Partial"
    assert historian.status_text(0x8001_0000) == "0x80010000"


# ---------------------------------------------------------------- statistics of hours

BY_HOURS = [name for name in historian.AGGREGATES if name not in ("Percentile", "Distinct")]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[historian.Historian]:
    """Two days of a value every ten seconds, with bad and missing stretches, maintained."""
    with historian.open(tmp_path_factory.mktemp("plant") / "plant.db") as h:
        h.define_many([{"name": "good"}, {"name": "holes", "stepped": True}])
        seconds_of(h, "good", 17_280, step=10 * S)
        rng = np.random.default_rng(5)
        keep = np.arange(0, 2 * 86_400, 10)
        keep = keep[(keep < 20_000) | (keep > 31_000)]
        status = np.zeros(len(keep), np.uint32)
        status[500:540] = historian.BAD
        status[6_000:6_010] = historian.UNCERTAIN
        h.write(
            {
                "tag": pa.array(["holes"] * len(keep)),
                "time": pa.array(START + keep * S, pa.int64()),
                "value": np.round(rng.random(len(keep)), 2),
                "status": status,
            }
        )
        h.maintain()
        yield h


@pytest.mark.parametrize("name", BY_HOURS)
def test_statistics_of_hours_give_what_points_give(plant: historian.Historian, name: str) -> None:
    periods = [
        (START, START + 2 * DAY, HOUR),
        (START - 3 * HOUR, START + 3 * DAY, 6 * HOUR),
        (START + 1_234 * S + 5, START + DAY + 777 * S, 7_000 * S),
        (START + DAY + 5 * S, START + 5 * S, 5 * HOUR),
    ]
    for start, end, interval in periods:
        for tag in ("good", "holes"):
            both = [
                plant.aggregate(tag, start, end, interval, name, points_only=points_only).to_arrow()
                for points_only in (False, True)
            ]
            for column in ("time", "status"):
                assert both[0][column].equals(both[1][column]), (tag, start, interval)
            for one, other in zip(*(table["value"].to_pylist() for table in both), strict=True):
                assert one is other is None or one == pytest.approx(other, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rules", ["samples", "standard"])
def test_statistics_of_hours_stand_for_points_that_are_not_read(tmp_path: Path, rules: str) -> None:
    path = tmp_path / "plant.db"
    with historian.open(path) as h:
        h.define("t")
        h.write({"tag": ["t"] * 7_200, "time": START + np.arange(7_200) * 10 * S, "value": np.arange(7_200) % 7.0})
        assert h.maintain().hours == 20
    spoil_points(path)
    with historian.open(path) as h:
        for name in ("Average", "Count", "Minimum", "TimeAverage", "Total2", "Maximum2", "NumberOfTransitions"):
            h.aggregate("t", START, START + 20 * HOUR, HOUR, name, rules=rules).to_arrow()
            with pytest.raises(ct.DamagedError):
                h.aggregate("t", START, START + 20 * HOUR, HOUR, name, rules=rules, points_only=True).to_arrow()


def spoil_points(path: Path) -> None:
    """Put zeros in the place of all points in a file."""
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        spoilt = 0
        for name in tables:
            columns = [column for _, column, *_ in file.execute(f'PRAGMA table_info("{name}")')]
            if "main_float" in name and "body" in columns:
                spoilt += file.execute(f'UPDATE "{name}" SET body = zeroblob(length(body))').rowcount
        assert spoilt > 0


def test_a_range_of_years_is_gone_through_piece_by_piece(h: historian.Historian) -> None:
    h.define("t")
    origin = START - 1_300 * DAY
    days = [-3_000, -401, -400, -1, 0, 399, 400, 401, 1_200]
    h.write({"tag": ["t"] * len(days), "time": [origin + day * DAY for day in days], "value": [float(d) for d in days]})
    for start, end in [(origin - 900 * DAY, origin + 1_000 * DAY), (origin + 1_300 * DAY, origin - 4_000 * DAY)]:
        for name in ("TimeAverage", "Count", "Minimum2"):
            both = [
                h.aggregate("t", start, end, 100 * DAY, name, points_only=points_only).to_arrow()
                for points_only in (False, True)
            ]
            assert both[0].equals(both[1])


def test_late_points_corrections_and_deletions_are_in_the_next_aggregate(h: historian.Historian) -> None:
    h.define("t")
    seconds_of(h, "t", 86_400)
    assert h.maintain().tiles_summarized == 1

    def mean(hour: int) -> Any:
        return values(h.aggregate("t", START, START + DAY, "1h", "Average"))[hour]

    points = h.raw("t", START, START + DAY).to_arrow()["value"].to_numpy()
    assert mean(3) == pytest.approx(points[3 * 3600 : 4 * 3600].mean())
    h.write({"tag": ["t"], "time": [START + 3 * HOUR + 1], "value": [1e6]})  # late
    assert mean(3) == pytest.approx((points[3 * 3600 : 4 * 3600].sum() + 1e6) / 3601)
    assert h.maintain().tiles_summarized == 1
    h.write({"tag": ["t"], "time": [START + 3 * HOUR + 1], "value": [0.0]})  # a correction
    assert mean(3) == pytest.approx(points[3 * 3600 : 4 * 3600].sum() / 3601)
    assert h.maintain().tiles_summarized == 1
    assert h.maintain().tiles_summarized == 0
    assert h.delete("t", START + 3 * HOUR + 1, START + 4 * HOUR) == 3_600
    assert mean(3) == pytest.approx(points[3 * 3600])


# ---------------------------------------------------------------- points


def test_of_points_of_one_time_the_one_written_last_counts(h: historian.Historian) -> None:
    h.define("t")
    h.write({"tag": ["t"] * 3, "time": [START + 2, START, START], "value": [3.0, 1.0, 2.0]})
    h.write({"tag": ["t"], "time": [START + 1], "value": [9.0]})
    h.write({"tag": ["t"], "time": [START + 2], "value": [4.0]})
    assert values(h.raw("t", START, START + 10)) == [2.0, 9.0, 4.0]
    assert values(h.latest("t")) == [4.0]
    report = h.write({"tag": ["t"], "time": [START + 2], "value": [4.0]}, batch="again")
    assert report.stored
    assert not h.write({"tag": ["t"], "time": [START + 2], "value": [4.0]}, batch="again").stored


def test_entries_of_a_dictionary_that_no_row_refers_to_are_ignored(h: historian.Historian) -> None:
    """A filter of pyarrow or pandas leaves such entries."""
    h.define("a"), h.define("b")
    names = pa.array(["a", None, "b", "unknown"])
    tags = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2, 0, 1]), names)
    points = pa.table(
        {"tag": tags, "time": [START, START, START + 1, START + 2, START], "value": [1.0, 2.0, 3.0, 4.0, 5.0]}
    )
    h.write(points[:4])
    h.write(points[:0])
    assert [values(h.raw(name, START, START + 10)) for name in ("a", "b")] == [[2.0, 4.0], [1.0, 3.0]]
    with pytest.raises(ct.InvalidInputError, match="row 4 has no tag"):
        h.write(points)


def test_types_are_kept_and_mixed_types_widen(h: historian.Historian) -> None:
    h.define_many(
        [
            {"name": "f"},
            {"name": "i", "data_type": "integer"},
            {"name": "b", "data_type": "bool"},
            {"name": "s", "data_type": "string"},
        ]
    )
    h.write({"tag": ["f", "i", "b"], "time": [START] * 3, "value": [1.5, 7.0, 1.0]})
    h.write({"tag": ["i"], "time": [START + 1], "value": pa.array([2**60 + 1])})
    h.write({"tag": ["s"], "time": [START], "value": ["open"]})
    h.write({"tag": ["b"], "time": [START + 1], "value": [False]})
    assert values(h.raw("i", START, START + 5)) == [7, 2**60 + 1]
    assert values(h.raw("b", START, START + 5)) == [True, False]
    assert values(h.latest("s")) == ["open"]
    assert values(h.latest(["f", "i"])) == [1.5, float(2**60 + 1)]
    assert values(h.aggregate("s", START, START + 5, None, "Count")) == [1.0]
    with pytest.raises(ct.InvalidInputError, match="holds text, of which Average"):
        h.aggregate("s", START, START + 5, None, "Average")


def test_bounds_are_the_neighbours_of_a_range(h: historian.Historian) -> None:
    h.define("t")
    h.write({"tag": ["t"] * 4, "time": [START - 40 * DAY, START, START + 5, START + 90 * DAY], "value": [0, 1, 2, 3]})
    assert values(h.raw("t", START + 1, START + 5, bounds=True)) == [1.0, 2.0]
    assert values(h.raw("t", START, START + 6, bounds=True)) == [1.0, 2.0, 3.0]
    assert values(h.raw("t", START - 1, START, bounds=True)) == [0.0, 1.0]
    assert values(h.at("t", [START + 5, START, START - 20 * DAY, START + 91 * DAY])) == [2.0, 1.0, 0.5, 3.0]
    assert values(h.at("t", [START - 50 * DAY])) == [None]


def test_deleted_points_are_gone_from_every_read(h: historian.Historian) -> None:
    h.define("t")
    h.write({"tag": ["t"] * 5, "time": [START + i for i in range(5)], "value": [float(i) for i in range(5)]})
    assert h.delete("t", START + 3, START + 10) == 2
    assert h.delete("t", START + 3, START + 10) == 0
    assert values(h.latest("t")) == [2.0]
    assert values(h.raw("t", START, START + 10)) == [0.0, 1.0, 2.0]
    assert values(h.raw("t", START + 4, START + 5, bounds=True)) == [2.0]
    assert values(h.aggregate("t", START, START + 5, None, "Count")) == [3.0]
    h.write({"tag": ["t"], "time": [START + 4], "value": [9.0]})
    assert values(h.latest("t")) == [9.0]


def test_annotations_are_counted_and_read(h: historian.Historian) -> None:
    h.define("t")
    h.annotate("t", START + 1, "scanner fixed", author="Engineer1")
    h.annotate("t", START + 1, "checked again")
    assert values(h.aggregate("t", START, START + 4, 2, "AnnotationCount")) == [2.0, 0.0]
    texts = h.annotations("t", START, START + 2).to_arrow()["text"].to_pylist()
    assert sorted(texts) == ["checked again", "scanner fixed"]


def test_a_plot_keeps_every_spike(h: historian.Historian) -> None:
    h.define("t")
    seconds_of(h, "t", 20_000)
    h.write({"tag": ["t"], "time": [START + 7_777 * S], "value": [99.0]})
    for method in ("minmax", "lttb"):
        plot = h.plot("t", START, START + 20_000 * S, points=200, method=method).to_arrow()
        assert plot.num_rows <= 200
        assert 99.0 in plot["value"].to_pylist()


def test_retention_goes_by_the_clock_and_not_by_the_newest_point(h: historian.Historian) -> None:
    h.define_many([{"name": "old", "group": "short"}, {"name": "kept"}])
    now = int(datetime.now(UTC).timestamp()) * S
    for tag in ("old", "kept"):
        h.write({"tag": [tag] * 3, "time": [now - 200 * DAY, now - DAY, now + DAY // 2], "value": [1, 2, 3]})
    h.set_retention("short", "100d")
    assert h.retire("short", dry_run=True) == 1
    assert h.retire("short") == 1
    assert values(h.raw("old", 0, now + DAY)) == [2.0, 3.0]
    assert values(h.raw("kept", 0, now + DAY)) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["mian", "fsat", "Main!", "other"])
def test_a_group_without_tags_and_points_is_unknown_to_retention(h: historian.Historian, name: str) -> None:
    before = list(h.archive)
    h.set_retention("main", "100d")
    assert h.retire("main") == 0, "no tag has to be defined first"
    with historian.open(h.archive) as other:
        other.define("t", group="fast")
    near = {"mian": "main", "fsat": "fast", "Main!": "main"}.get(name)
    hint = rf"; did you mean {near}\? It has fast, main" if near else "; it has fast, main"
    for call in (lambda: h.set_retention(name, "5d"), lambda: h.set_retention(name, None), lambda: h.retire(name)):
        with pytest.raises(ct.InvalidInputError, match=f'^no group "{name}"{hint}$') as error:
            call()
        assert error.value.kind == "group-not-found"
    assert not [each for each in set(h.archive).difference(before) if name in each]
    h.set_retention("fast", "5d")
    assert h.retire("fast", dry_run=True) == 0


def test_a_unit_is_as_long_as_a_name_at_most(h: historian.Historian) -> None:
    assert h.define("t", unit="\N{DEGREE SIGN}" * 256).unit == "\N{DEGREE SIGN}" * 256
    for unit in ("x" * 513, "\N{DEGREE SIGN}" * 257, "deg\nC"):
        with pytest.raises(ct.InvalidInputError, match='tag "t" cannot be defined: its unit must have up to 512 bytes'):
            h.define("t", unit=unit)
    assert h.tag("t").unit == "\N{DEGREE SIGN}" * 256


@pytest.mark.parametrize("as_given", [list, pa.array, np.array], ids=["list", "arrow", "numpy"])
def test_whole_numbers_that_floats_would_round_are_refused(h: historian.Historian, as_given: Any) -> None:
    h.define_many([{"name": "f"}, {"name": "i", "data_type": "integer"}])
    for value in (2**53 + 1, -(2**53) - 1, 2**63 - 1):
        points = {"tag": ["i", "f"], "time": [START] * 2, "value": as_given([value, value])}
        with pytest.raises(
            ct.InvalidInputError, match=rf'row 1, tag "f": .* its value {value} exactly: use a tag of int'
        ):
            h.write(points)
        h.write({name: given[:1] for name, given in points.items()})
        assert values(h.raw("i", START, START + 1)) == [value]
    h.write({"tag": ["f"] * 2, "time": [START, START + 1], "value": as_given([2**53, 2**62])})
    assert values(h.raw("f", START, START + 2)) == [2.0**53, 2.0**62]


# ---------------------------------------------------------------- bad input


def test_what_cannot_be_stored_is_refused_as_a_whole(h: historian.Historian) -> None:
    h.define_many([{"name": "f"}, {"name": "i", "data_type": "integer"}, {"name": "b", "data_type": "bool"}])
    soon = datetime.now(UTC) + timedelta(days=2)
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"tag": ["f"], "time": [START], "value": ["warm"]},
            'row 0, tag "f": .* the value "warm" is text',
        ),
        ({"tag": ["f"] * 3, "time": [START] * 3, "value": ["1", "x", "2"]}, 'row 1, tag "f": .* the value "x" is text'),
        ({"tag": ["f", "f"], "time": [START, START], "value": [1.0, float("nan")]}, 'row 1, tag "f"'),
        ({"tag": ["f"], "time": [START], "value": [float("inf")]}, "no finite value"),
        ({"tag": ["i"], "time": [START], "value": [1.5]}, "not an integer"),
        ({"tag": ["b"], "time": [START], "value": [2.0]}, "not a bool"),
        ({"tag": ["f"], "time": [soon], "value": [1.0]}, "max_future"),
        ({"tag": ["f"], "time": ["1500-01-01"], "value": [1.0]}, "1677"),
        ({"tag": ["f"], "value": [1.0]}, 'column "time" is missing'),
        ({"tag": ["f"], "time": [START], "value": [1.0], "status": [2**32 - 1]}, "status"),
    ]
    for points, words in cases:
        with pytest.raises(ct.InvalidInputError, match=words):
            h.write(points)
    with pytest.raises(ct.TagNotFoundError, match='no tag "x"'):
        h.write({"tag": ["f", "x"], "time": [START, START], "value": [1.0, 2.0]})
    assert len(h.latest(["f", "i", "b"])) == 0
    h.write({"tag": ["f"], "time": [START], "value": [float("nan")]}, not_finite="bad")
    assert h.raw("f", 0, START + 1).to_arrow().to_pylist()[0]["status"] == 0x808C_0000


def test_no_points_are_points_too(h: historian.Historian) -> None:
    none: dict[str, list[object]] = {"tag": [], "time": [], "value": []}
    assert h.write(none).points == 0
    h.define("t", exception_deviation=0.0)
    with h.buffered() as buffer:
        buffer.write(none)


def test_requests_that_make_no_sense_are_refused(h: historian.Historian) -> None:
    h.define("t")
    with pytest.raises(ct.InvalidInputError, match="same instant"):
        h.aggregate("t", START, START, "1h", "Average")
    with pytest.raises(ct.InvalidInputError, match="10000000"):
        h.aggregate("t", START, START + DAY, 1, "Average")
    with pytest.raises(ct.InvalidInputError, match='unknown aggregate "Median"; did you mean Percentile'):
        h.aggregate("t", START, START + DAY, "1h", "Median")
    with pytest.raises(ct.InvalidInputError, match="percentage"):
        h.aggregate("t", START, START + DAY, "1h", "Count", percent_good=101)
    with pytest.raises(ct.InvalidInputError, match="overlap"):
        h.aggregate("t", START, START + DAY, "1h", "Count", percent_good=0, percent_bad=80)
    with pytest.raises(ct.InvalidInputError, match="overlap"):
        h.define("u", percent_good=30.0, percent_bad=60.0)
    with pytest.raises(ct.InvalidInputError, match="ends before"):
        h.raw("t", START + 1, START)
    with pytest.raises(ct.TagNotFoundError) as refused:
        h.latest("nobody")
    assert refused.value.details["tag"] == "nobody"
    with pytest.raises(ct.InvalidInputError, match="cannot change"):
        h.define("t", data_type="bool")
    with pytest.raises(ct.InvalidInputError, match="no property"):
        h.define("t", units="m")


# ---------------------------------------------------------------- tags


def test_tags_are_found_by_name_number_and_pattern(memory: ct.Archive) -> None:
    with historian.open(memory) as h:
        h.define_many([{"name": f"a.{i:04}", "unit": "m"} for i in range(500)])
        tag = h.define("b.x", number=7, description="first")
        assert h.tag(7) == tag == h.tag("b.x")
        assert h.define("b.x", description="second").number == 7
        with pytest.raises(ct.InvalidInputError, match="already has number"):
            h.define("b.y", number=7)
    with historian.open(memory) as again:
        assert again.tag("b.x").description == "second"
        assert [tag.name for tag in again.tags("a.00?0")] == [f"a.00{i}0" for i in range(10)]
        assert len(again.tags("a.*")) == 500
        assert again.tags("*", limit=1)[0].name == "a.0000"


# ---------------------------------------------------------------- buffers


PLANT = [f"line{n % 7}.unit{n % 13}.sensor{n:04}" for n in range(2_000)]


def names_of(h: historian.Historian, pattern: str, limit: int | None = None) -> list[str]:
    return [tag.name for tag in h.tags(pattern, limit=limit)]


@pytest.mark.parametrize("pattern", ["line3.unit5.*", "line3.unit5*7", "*.sensor01?5", "*12.s*9", "line9*", "li?e2*99"])
def test_patterns_find_the_same_tags_with_and_without_the_list_of_names(path: Path, pattern: str) -> None:
    with historian.open(path) as h:
        h.define_many([{"name": name, "unit": name[:5]} for name in PLANT])
        known = h.tags(pattern)
    with historian.open(path) as h:
        assert h.tags(pattern) == known
        assert names_of(h, pattern, 3) == [tag.name for tag in known][:3]
        h.tags("*")
        assert h.tags(pattern) == known
    expected = sorted(name for name in PLANT if fnmatch.fnmatchcase(name, pattern))
    assert [tag.name for tag in known] == expected


def test_a_pattern_is_looked_up_without_reading_the_definitions_of_other_tags(path: Path) -> None:
    with historian.open(path) as h:
        h.define_many([{"name": name} for name in PLANT])
        assert h.maintain().tiles_summarized == 0
        wanted = h.tags("line3.unit5.*")
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        like = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'chunks_historian_tags%'"
        ((chunks,),) = file.execute(like).fetchall()
        spoil = f'UPDATE "{chunks}" SET body = zeroblob(length(body)) WHERE chunk % 2 = 0'
        assert file.execute(spoil).rowcount > 100
    with historian.open(path) as h:
        found = []
        for tag in wanted:
            with contextlib.suppress(ct.DamagedError):
                found += names_of(h, tag.name + "*")
        assert 0 < len(found) < len(wanted)
        with pytest.raises(ct.DamagedError):
            h.tags("*")


def test_tags_that_others_define_are_found_by_pattern_at_once(path: Path) -> None:
    with historian.open(path) as mine, historian.open(path) as theirs:
        theirs.define("a.first")
        assert names_of(mine, "a.*") == ["a.first"]
        theirs.define_many([{"name": "a.second"}, {"name": "b.third"}])
        assert names_of(mine, "a.*") == ["a.first", "a.second"]
        assert names_of(mine, "a.second") == ["a.second"]


def test_an_archive_without_a_list_of_names_gets_one(path: Path) -> None:
    with historian.open(path) as h:
        h.define_many([{"name": name} for name in PLANT[:50]])
    older = path.with_name("older.db")
    with ct.open(path) as archive:
        ct.copy(archive, older, [name for name in archive.datasets() if name != "historian_names"])
    with historian.open(older) as h:
        assert names_of(h, "line3.*") == sorted(name for name in PLANT[:50] if name.startswith("line3."))
        h.define("line3.new")
    with historian.open(older) as h:
        assert names_of(h, "line3.*") == sorted(
            ["line3.new", *(name for name in PLANT[:50] if name.startswith("line3."))]
        )
        assert h.archive["historian_names"].count() == 52


def test_a_buffer_stores_at_its_limits_and_at_its_end(h: historian.Historian) -> None:
    h.define_many([{"name": "t", "exception_deviation": 0.5}, {"name": "c", "compression_deviation": 0.1}])
    with h.buffered(points=3) as buffer:
        assert not buffer.write({"tag": ["t", "t"], "time": [START, START + 1], "value": [1.0, 1.4]})
        assert len(h.latest("t")) == 0
        assert buffer.pending == 1
        assert buffer.write({"tag": ["t", "t"], "time": [START + 2, START + 3], "value": [2.0, 3.0]})
        assert values(h.raw("t", START, START + 9)) == [1.0, 2.0, 3.0]
        ramp = [float(i) for i in range(100)]
        buffer.write({"tag": ["c"] * 100, "time": [START + i for i in range(100)], "value": ramp})
    assert values(h.raw("c", START, START + 999)) == [0.0, 99.0]


def test_a_buffer_stores_whole_numbers_of_tags_without_deviations_as_they_are(h: historian.Historian) -> None:
    """Deviations are compared in doubles, which cannot hold all of them."""
    h.define_many([{"name": "count", "data_type": "integer"}, {"name": "t", "exception_deviation": 0.5}])
    large = 2**53 + 1
    with h.buffered() as buffer:
        buffer.write({"tag": ["count", "t", "t"], "time": [START] * 2 + [START + 1], "value": [large, 1, 1]})
        with pytest.raises(ct.InvalidInputError, match="cannot hold exactly: deviations are compared in doubles"):
            buffer.write({"tag": ["t"], "time": [START + 2], "value": [large]})
    assert values(h.raw("count", START, START + 9)) == [large]
    assert values(h.raw("t", START, START + 9)) == [1.0]


def test_a_buffer_keeps_the_points_that_it_holds_back_if_a_write_fails(h: historian.Historian) -> None:
    h.define_many([{"name": "c", "compression_deviation": 0.1}])

    def points(tag: str, offset: int, value: float) -> pa.Table:
        return pa.table({"tag": [tag], "time": pa.array([START + offset], pa.timestamp("ns", "UTC")), "value": [value]})

    with h.buffered() as buffer:
        buffer.write(pa.concat_tables([points("c", 0, 0.0), points("c", 10, 10.0)]))
        # The first batch ends the line, so it would release the point that is held back.
        with pytest.raises(ct.TagNotFoundError):
            buffer.write(pa.concat_tables([points("c", 20, -50.0), points("unknown", 20, 1.0)]))
    assert values(h.raw("c", START, START + 99)) == [0.0, 10.0]


CRASH = """
import os, sys
from chronotile import historian
h = historian.open(sys.argv[1])
h.define("t")
h.write({"tag": ["t"], "time": [10**9], "value": [5.0]})
print("acknowledged", flush=True)
os._exit(9)
"""


def test_what_was_acknowledged_survives_a_crash(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("acknowledged\n", 9)
    with historian.open(path) as h:
        assert values(h.latest("t")) == [5.0]


# ---------------------------------------------------------------- command line


def test_the_command_line_writes_reads_and_aggregates(tmp_path: Path) -> None:
    archive, points = tmp_path / "plant.db", tmp_path / "points.csv"
    points.write_text("tag,time,value\nx.y,2026-01-01T00:00:00,1\nx.y,2026-01-01T01:00:00,3\n")
    run_cli("historian", "write", archive, points, code=3)
    run_cli("historian", "write", archive, points, "--define")
    period = ("--start", "2026-01-01", "--end", "2026-01-02", "--format", "ndjson")
    lines = run_cli("historian", "read", archive, "x.y", *period).splitlines()
    assert [json.loads(line)["value"] for line in lines] == [1, 3]
    line = run_cli("historian", "latest", archive, "x.y", "--format", "ndjson")
    assert json.loads(line)["value"] == 3
    line = run_cli("historian", "aggregate", archive, "x.y", *period, "--aggregate", "Average")
    assert json.loads(line)["value"] == 2
    assert json.loads(run_cli("historian", "tags", archive, "--name", "x*", "--json"))["name"] == "x.y"
    assert "0 tiles" in run_cli("historian", "maintain", archive)
    run_cli("historian", "latest", archive, "nobody", code=3)
    run_cli("historian", "aggregate", archive, "x.y", *period, "--aggregate", "Median", code=2)


def test_the_command_line_names_file_and_row_of_a_bad_value(tmp_path: Path, chronotile: Run) -> None:
    with historian.open(tmp_path / "plant.db") as h:
        h.define("x.y")
    points = tmp_path / "points.csv"
    points.write_text("tag,time,value\nx.y,2026-01-02,1\nx.y,2026-01-03,oops\n")
    done = chronotile("historian", "write", tmp_path / "plant.db", points)
    assert done.returncode == 2
    assert "points.csv: row 1" in done.stderr
    assert 'the value "oops" is text' in done.stderr


def test_the_latest_value_takes_no_longer_with_history(sqlite: ct.Archive) -> None:
    """Counts what is read, not time: of a year in daily batches the newest slice alone."""
    with historian.open(sqlite) as h:
        h.define("t")
        now = time.time_ns() // DAY * DAY
        for day in range(0, 360, 30):
            h.write({"tag": ["t"], "time": [now - day * DAY], "value": [float(day)]})
        assert values(h.latest("t")) == [0.0]


def test_compute_takes_points_in_ascending_time(h: historian.Historian) -> None:
    points: Callable[[list[int]], dict[str, Any]] = lambda times: {"time": times, "value": [1.0] * len(times)}  # noqa: E731
    assert values(historian.compute(points([0, 5]), 0, 10, None, "Count")) == [2.0]
    with pytest.raises(ct.InvalidInputError, match="ascending"):
        historian.compute(points([5, 0]), 0, 10, None, "Count")


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"time": [0, 5], "value": [1.0, 2.0], "status": [0.0, 0.5]}, "status.*number 1.*cannot hold exactly"),
        ({"time": [0, 5], "value": [1.0, 2.0], "status": [0, -1]}, "status.*number 1.*cannot hold exactly"),
        (pa.table({"time": pa.array([0, None], pa.timestamp("ns")), "value": [1.0, 2.0]}), "time.*without a time"),
    ],
)
def test_compute_refuses_points_that_it_would_have_to_change(points: Any, reason: str) -> None:
    with pytest.raises(ct.InvalidInputError, match=reason):
        historian.compute(points, 0, 10, None, "Count")


def test_compute_takes_whole_numbers_of_any_type_as_statuses() -> None:
    points = {"time": [0, 5], "value": [1.0, 2.0], "status": [0.0, float(0x8000_0000)]}
    assert values(historian.compute(points, 0, 10, None, "Count")) == [1.0]
