"""Tables that alert files are read as, before any database has them: ids, units, times and what is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import chronotile as ct
from chronotile.apdb.alert_files import exact_ids
from chronotile.apdb.alerts import Tables, read_alerts

Row = dict[str, Any]
Read = Callable[..., list[Tables]]

SOURCE: Row = {
    "diaSourceId": 1, "diaObjectId": 7, "visit": 1, "detector": 2, "midpointMjdTai": 61_000.0, "ra": 150.0, "dec": 2.0,
}  # fmt: skip
FORCED: Row = {name: value for name, value in SOURCE.items() if name != "diaSourceId"}
OBJECT: Row = {"diaObjectId": 7, "ra": 150.0, "dec": 2.0}
DETECTION: Row = {
    "candid": 10, "pid": 1_756_139_88_15_42, "jd": 2_457_754.0, "fid": 1, "ra": 150.0, "dec": 2.0, "magpsf": 31.4,
    "sigmapsf": 0.1, "isdiffpos": "t", "rb": 0.5,
}  # fmt: skip
NAME, NUMBER = "ZTF18aaaaaab", 18 * 26**7 + 1
ZTF_NOTES = [
    "midpointMjdTai of ZTF detections is the start of the exposure",
    "ZTF fluxes were computed from magnitudes",
]
LARGE = 2**60
"""The nearest floats to it are 128 less and 256 more."""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read tables or lists of rows, each from a file of its own."""

    def read(*files: list[Row] | pa.Table) -> list[Tables]:
        paths = [tmp_path / f"{number}.parquet" for number in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path)
        return list(read_alerts(paths))

    return read


def source(number: float | None, **changes: Any) -> Row:
    return {**SOURCE, "diaSourceId": number, **changes}


def alert(candidate: Row, *before: Row, name: str | None = NAME) -> Row:
    return {"objectId": name, "candidate": candidate, "prv_candidates": list(before)}


def detection(**changes: Any) -> Row:
    return {**DETECTION, **changes}


def flat(**changes: Any) -> Row:
    return {**DETECTION, "objectId": NAME, **changes}


def column(rows: Any, name: str) -> list[Any]:
    values: list[Any] = rows[name].to_pylist()
    return values


# ---------------------------------------------------------------- detections of the ZTF


def test_a_detection_of_the_ztf_becomes_a_source_and_an_object(read: Read) -> None:
    (tables,) = read([flat(nid=1, rcid=15, field=7)])
    year_end = (datetime(2016, 12, 31, 12, tzinfo=UTC) - datetime(1858, 11, 17, tzinfo=UTC)) / timedelta(days=1)
    (row,) = tables.sources.to_pylist()
    assert row == {
        "diaSourceId": 10, "diaObjectId": NUMBER, "visit": 175_613_988, "detector": 15, "ra": 150.0, "dec": 2.0,
        "midpointMjdTai": pytest.approx(year_end + 36 / 86_400, abs=1e-10), "band": "g", "psfFlux": 1.0,
        "psfFluxErr": pytest.approx(0.1 * math.log(10) / 2.5), "snr": pytest.approx(2.5 / math.log(10) / 0.1),
        "reliability": 0.5, "nid": 1, "rcid": 15, "field": 7,
    }  # fmt: skip
    assert tables.objects.to_pylist() == [
        {"diaObjectId": NUMBER, "ra": 150.0, "dec": 2.0, "validityStartMjdTai": row["midpointMjdTai"]}
    ]
    assert (tables.forced_sources, tables.notes, tables.rounded, tables.dropped) == (None, ZTF_NOTES, None, {})
    assert (tables.no_column, tables.forced_unit_known) == (set(), True)


@pytest.mark.parametrize(
    ("name", "given", "into", "wanted"),
    [
        ("fid", [1, 2, 3, 0, 4, None], "band", ["g", "r", "i", None, None, None]),
        ("fid", [1.0, 2.0, 3.0, None], "band", ["g", "r", "i", None]),
        ("magpsf", [31.4, 28.9, 33.9, None], "psfFlux", [1.0, 10.0, 0.1, None]),
        ("sigmapsf", [0.0, 0.5, None], "psfFluxErr", [0.0, 0.5 * math.log(10) / 2.5, None]),
        # The largest 32-bit float, and more.
        ("sigmapsf", [3.6945686358550654e38, 3.7e38], "psfFluxErr", [float(np.finfo(np.float32).max), None]),
        ("pid", [99, 100, 6_399, 10_000, 19_999], "detector", [0, 1, 63, 0, 99]),
        ("pid", [9_999, 10_000, 19_999, 1_756_139_880_615], "visit", [0, 1, 1, 175_613_988]),
        ("candid", ["10", str(LARGE + 1)], "diaSourceId", [10, LARGE + 1]),
    ],
)  # fmt: skip
def test_values_of_detections_are_converted(
    name: str, given: list[Any], into: str, wanted: list[Any], read: Read
) -> None:
    (tables,) = read([flat(**{name: value}) for value in given])
    assert column(tables.sources, into) == [
        pytest.approx(value, rel=1e-6) if isinstance(value, float) else value for value in wanted
    ]


@pytest.mark.parametrize(
    ("brighter", "fainter"),
    [(["t", "T", "1", "true", "True", "1.0", "y", "Yes"], ["f", "0", "false", "n", ""]), ([True], [False]), ([1], [0]),
     ([1.0], [0.0, -1.0])],
)  # fmt: skip
def test_detections_fainter_than_the_template_have_negative_fluxes(
    brighter: list[Any], fainter: list[Any], read: Read
) -> None:
    (tables,) = read([flat(isdiffpos=each) for each in (*brighter, *fainter)])
    assert column(tables.sources, "psfFlux") == [1.0] * len(brighter) + [-1.0] * len(fainter)
    assert min(column(tables.sources, "psfFluxErr")) > 0
    assert tables.notes == ZTF_NOTES
    (tables,) = read([flat(isdiffpos=each) for each in (*brighter, *fainter, None)])
    assert column(tables.sources, "psfFlux")[-1] == 1.0
    assert tables.notes == [*ZTF_NOTES, "detections without isdiffpos got positive fluxes"]


def test_values_out_of_range_are_counted_each(read: Read) -> None:
    (tables,) = read([flat(magpsf=-99.0), flat(magpsf=-99.0, sigmapsf=0.0), flat()])
    assert column(tables.sources, "psfFlux") == [None, None, 1.0]
    assert column(tables.sources, "snr")[1] is None
    assert tables.dropped == {
        "values of detections.psfFlux, out of range": 2, "values of detections.psfFluxErr, out of range": 1,
        "values of detections.snr, out of range": 1,
    }  # fmt: skip


def test_the_offset_of_tai_is_that_of_the_day(read: Read) -> None:
    days = [57_753.0, 57_753.75, 57_754.0, 41_499.0]
    (tables,) = read([flat(jd=day + 2_400_000.5) for day in days])
    seconds = [36, 36, 37, 11]
    assert column(tables.sources, "midpointMjdTai") == [
        pytest.approx(day + ahead / 86_400, abs=1e-9) for day, ahead in zip(days, seconds, strict=True)
    ]


@pytest.mark.parametrize("large", [False, True])
def test_previous_candidates_are_detections_of_the_object_or_upper_limits(large: bool, read: Read) -> None:
    limit = dict.fromkeys(DETECTION) | {"jd": 2_457_750.0, "pid": 1}
    packets = pa.Table.from_pylist([
        {**alert(detection(), detection(candid=8, jd=2_457_752.0), limit), "publisher": "a", "candid": 10},
        {**alert(detection(candid=11, ra=151.0), limit, {**limit, "candid": math.nan}, name="ZTF18aaaaaac"),
         "publisher": "a", "candid": 11},
    ])  # fmt: skip
    if large:
        place = packets.schema.get_field_index("prv_candidates")
        kind = pa.large_list(packets.schema.field(place).type.value_type)
        packets = packets.set_column(place, "prv_candidates", packets["prv_candidates"].cast(kind))
    (tables,) = read(packets)
    rows = zip(column(tables.sources, "diaSourceId"), column(tables.sources, "diaObjectId"), strict=True)
    assert list(rows) == [(10, NUMBER), (11, NUMBER + 1), (8, NUMBER)]
    assert tables.objects.num_rows == 3
    assert tables.dropped == {"upper limits of prv_candidates": 3}
    assert (tables.no_column, tables.notes, tables.rounded) == ({"publisher"}, ZTF_NOTES, None)


def test_alerts_of_the_ztf_without_what_identifies_and_places_them_are_counted(read: Read) -> None:
    lacking: list[Row] = [{name: None} for name in ("candid", "pid", "jd", "ra", "dec")]
    packets = [alert(detection(**each)) for each in lacking]
    (tables,) = read([*packets, alert(detection()), alert(detection(), name=None), {**packets[0], "candidate": None}])
    counted = {f"detections without {name}": 1 for each in lacking for name in each}
    assert tables.dropped == {**counted, "alerts without candidate": 1, "alerts without objectId": 1}
    assert column(tables.sources, "diaSourceId") == [10]
    (tables,) = read([*(flat(**each) for each in lacking), flat(objectId=None), flat(), flat(ra=math.nan)])
    assert tables.dropped == {**counted, "detections without objectId": 1, "detections without ra": 2}
    assert column(tables.sources, "diaSourceId") == [10]


def test_previous_candidates_without_a_column_are_skipped_and_the_alert_is_kept(read: Read) -> None:
    before = {name: value for name, value in DETECTION.items() if name not in ("ra", "magpsf")}
    (tables,) = read([alert(detection(), before)])
    assert column(tables.sources, "diaSourceId") == [10]
    assert tables.notes == [*ZTF_NOTES, "prv_candidates skipped: missing columns magpsf, ra"]
    assert tables.dropped == {}
    (tables,) = read([alert(detection())])
    assert (column(tables.sources, "diaSourceId"), tables.dropped, tables.notes) == ([10], {}, ZTF_NOTES)
    (tables,) = read([{**alert(detection()), "prv_candidates": ["a text"]}])
    assert (column(tables.sources, "diaSourceId"), tables.notes) == ([10], ZTF_NOTES)


# ---------------------------------------------------------------- ids that are floats


@given(
    exact=st.lists(st.integers(0, 2**62), max_size=20).map(lambda ids: ids + [each + 1 for each in ids]),
    chosen=st.lists(st.booleans(), min_size=40, max_size=40),
)
@settings(max_examples=50)
def test_a_rounded_id_becomes_the_only_known_one_that_it_can_be(exact: list[int], chosen: list[bool]) -> None:
    given_ids = [*exact, -(2**53) - 2]
    known = np.unique(np.array([each for each, taken in zip(exact, chosen, strict=False) if taken], np.int64))
    ids, inexact = exact_ids(pa.chunked_array([pa.array(map(float, given_ids), pa.float64())]), known, "visit")
    for whole, found, lost in zip(given_ids, ids.to_pylist(), inexact.tolist(), strict=True):
        fitting = [each for each in known.tolist() if float(each) == float(whole)]
        if abs(float(whole)) <= 2**53:
            assert (found, lost) == (int(float(whole)), False)
        elif len(fitting) == 1:
            assert (found, lost) == (fitting[0], False)
        else:
            assert (found, lost) == (int(float(whole)), True)


@pytest.mark.parametrize(("value", "lost"), [(2.0**53, False), (2.0**53 + 2, True), (None, False), (math.nan, False)])
def test_floats_are_exact_ids_up_to_a_limit_and_nulls_stay(value: float | None, lost: bool) -> None:
    known = np.array([0, 1, 2**53 + 1], np.int64)
    ids, inexact = exact_ids(pa.chunked_array([pa.array([value, 3.0], pa.float64())]), known, "visit")
    number = None if value is None or math.isnan(value) else int(value)
    assert (ids.to_pylist(), inexact.tolist()) == ([number, 3], [lost, False])


@pytest.mark.parametrize("value", [0.5, -1.5, 2.0**63, -(2.0**63), math.inf, 1e300])
def test_floats_that_are_no_id_are_refused_with_the_column_and_the_value(value: float, read: Read) -> None:
    key: Row = {"diaSource": source(value)}
    other: Row = {"diaSource": source(1), "prvDiaSources": [source(2, visit=value)]}
    for row, name in ((key, "diaSourceId"), (other, "visit")):
        with pytest.raises(ct.InvalidInputError) as caught:
            read([row])
        assert str(caught.value).endswith(
            f"0.parquet: column {name} holds {value!r} where other values are integers: give whole numbers"
        )
        assert caught.value.kind == "invalid-rows"


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_rounded_ids_take_exact_ones_of_any_type_of_integers(kind: pa.DataType, read: Read) -> None:
    exact = source(LARGE + 7, visit=LARGE + 9)
    before = [source(float(LARGE + 7), visit=float(LARGE + 9)), source(9.0, visit=3.0)]
    whole = pa.array([exact])
    fields = [pa.field(each.name, kind if pa.types.is_integer(each.type) else each.type) for each in whole.type]
    (tables,) = read(pa.table({"diaSource": whole.cast(pa.struct(fields)), "prvDiaSources": pa.array([before])}))
    assert column(tables.sources, "diaSourceId") == [LARGE + 7, LARGE + 7, 9]
    assert column(tables.sources, "visit") == [LARGE + 9, LARGE + 9, 3]
    assert (tables.rounded, tables.dropped) == (None, {})


def test_values_that_lost_bits_are_counted_and_columns_of_one_type_stay(read: Read) -> None:
    extra = {"parent": 5, "flux": 0.5, "kind": "a"}
    lost = {"parent": float(LARGE + 7), "flux": 1.5, "kind": "b"}
    before = [source(2, **lost), source(3, **lost), source(4, **{**lost, "parent": 6.0, "flux": 2.5})]
    (tables,) = read([{"diaSource": source(1, **extra), "prvDiaSources": before}])
    assert tables.dropped == {"values of DiaSource.parent, rounded in the file": 2}
    assert column(tables.sources, "parent") == [5, None, None, 6]
    assert column(tables.sources, "flux") == [0.5, 1.5, 1.5, 2.5]
    assert column(tables.sources, "kind") == ["a", "b", "b", "b"]
    assert tables.sources.schema.names == [*SOURCE, *extra]


@pytest.mark.parametrize("change", [{}, {"visit": 9}, {"detector": 9}, {"ra": 150.5}, {"dec": 2.5}], ids=str)
def test_a_rounded_id_takes_the_exact_one_of_the_same_detection_alone(change: Row, read: Read) -> None:
    before = [source(5.0, visit=5), source(float(LARGE + 7), **change), source(float(LARGE + 2**20), visit=6)]
    (tables,) = read([{"diaSource": source(LARGE + 7), "prvDiaSources": before}])
    second = LARGE if change else LARGE + 7
    assert column(tables.sources, "diaSourceId") == [LARGE + 7, 5, second, LARGE + 2**20]
    assert tables.rounded.tolist() == ([LARGE] if change else []) + [LARGE + 2**20]
    assert tables.dropped == {}


@pytest.mark.parametrize("change", [{}, {"pid": 7}, {"ra": 150.5}, {"dec": 2.5}], ids=str)
def test_a_rounded_candid_takes_the_exact_one_of_the_same_detection_alone(change: Row, read: Read) -> None:
    (tables,) = read([alert(detection(candid=LARGE + 7), detection(candid=float(LARGE + 7), **change))])
    assert column(tables.sources, "diaSourceId") == [LARGE + 7, LARGE if change else LARGE + 7]
    assert (tables.rounded is None) is (not change)
    # A table has no exact ids, unless floats hold them.
    (tables,) = read([flat(candid=float(LARGE + 7)), flat(candid=8.0)])
    assert (tables.rounded.tolist(), column(tables.sources, "diaSourceId")) == ([LARGE], [LARGE, 8])


def test_rounded_ids_of_objects_take_exact_ones_from_all_tables(read: Read) -> None:
    sources = [source(n, diaObjectId=float(LARGE + 7 if n < 3 else LARGE + 2**20)) for n in (1, 2, 3)]
    (tables,) = read(sources, [{**OBJECT, "diaObjectId": LARGE + 7}])
    assert column(tables.sources, "diaObjectId") == [LARGE + 7, LARGE + 7, None]
    assert tables.dropped == {"values of DiaSource.diaObjectId, rounded in the file": 1}
    forced = [{**FORCED, "diaObjectId": each} for each in (float(LARGE + 7), float(LARGE + 2**20), 8.0)]
    objects = [{**OBJECT, "diaObjectId": each} for each in (float(LARGE + 7), float(LARGE + 2**21))]
    (tables,) = read([source(1, diaObjectId=LARGE + 7), source(2, diaObjectId=None)], forced, objects)
    assert column(tables.sources, "diaObjectId") == [LARGE + 7, None]
    assert column(tables.forced_sources, "diaObjectId") == [LARGE + 7, 8]
    assert column(tables.objects, "diaObjectId") == [LARGE + 7]
    assert tables.dropped == {
        "forced sources whose ids are rounded in the file": 1, "objects whose ids are rounded in the file": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["diaSourceId", "alertId"])
def test_the_source_of_an_alert_has_the_exact_id_of_the_alert_if_all_match(name: str, read: Read) -> None:
    exact = [LARGE + 7, LARGE + 2**20 + 7]
    rows = [{name: each, "diaSource": source(float(each), visit=n)} for n, each in enumerate(exact)]
    (tables,) = read(rows)
    assert (column(tables.sources, "diaSourceId"), tables.rounded, tables.no_column) == (exact, None, set())
    for other in (5, None):
        (tables,) = read([rows[0], {**rows[1], name: other}])
        assert column(tables.sources, "diaSourceId") == [int(float(each)) for each in exact]
        assert len(tables.rounded) == 2
    # Ids that are floats or texts, or already exact, add nothing.
    (tables,) = read([{**rows[0], name: float(LARGE + 7)}])
    assert tables.rounded.tolist() == [LARGE]
    (tables,) = read([{**rows[0], name: 5, "diaSource": source(LARGE + 7)}])
    assert column(tables.sources, "diaSourceId") == [LARGE + 7]
