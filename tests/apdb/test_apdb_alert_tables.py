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
from chronotile.apdb.alert_files import exact_ids, mjd_of_timestamps
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


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list, lambda item: pa.list_(item, 2)])
def test_previous_candidates_are_detections_of_the_object_or_upper_limits(list_of: Any, read: Read) -> None:
    limit = dict.fromkeys(DETECTION) | {"jd": 2_457_750.0, "pid": 1}
    packets = pa.Table.from_pylist([
        {**alert(detection(), detection(candid=8, jd=2_457_752.0), limit), "publisher": "a", "candid": 10},
        {**alert(detection(candid=11, ra=151.0), limit, {**limit, "candid": math.nan}, name="ZTF18aaaaaac"),
         "publisher": "a", "candid": 11},
    ])  # fmt: skip
    place = packets.schema.get_field_index("prv_candidates")
    kind = list_of(packets.schema.field(place).type.value_type)
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
    for before, kind in ((["a text"], "list<element: string>"), ("[{'jd': 1}]", "string")):
        (tables,) = read([{**alert(detection()), "prv_candidates": before}])
        assert column(tables.sources, "diaSourceId") == [10]
        assert tables.notes == [*ZTF_NOTES, f"prv_candidates skipped: expected records, found {kind}"]
    for nothing in (None, [], [None]):
        (tables,) = read([{**alert(detection()), "prv_candidates": nothing}])
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


# ---------------------------------------------------------------- packets of the LSST


def test_a_packet_of_the_lsst_becomes_rows_of_three_tables(read: Read) -> None:
    packet: Row = {
        "diaSource": SOURCE, "prvDiaSources": [source(2, visit=3)], "diaObject": OBJECT,
        "prvDiaForcedSources": [{**FORCED, "visit": 4}, None], "alertId": 1, "ssSource": {"a": 1},
    }  # fmt: skip
    (tables,) = read([packet])
    assert tables.sources.to_pylist() == [SOURCE, source(2, visit=3)]
    assert tables.objects.to_pylist() == [{**OBJECT, "validityStartMjdTai": 61_000.0}]
    assert tables.forced_sources.to_pylist() == [{**FORCED, "visit": 4}]
    assert (tables.notes, tables.no_column, tables.dropped, tables.rounded) == ([], {"ssSource"}, {}, None)
    (tables,) = read([{"diaSource": {name: value for name, value in SOURCE.items() if name != "diaObjectId"}}])
    assert tables.sources.to_pylist() == [{**SOURCE, "diaObjectId": None}]
    assert (tables.objects, tables.forced_sources) == (None, None)
    # A part that is null in all packets has no fields.
    (tables,) = read([{**packet, "prvDiaSources": None, "diaObject": None, "prvDiaForcedSources": None}])
    assert (tables.sources.num_rows, tables.objects, tables.forced_sources, tables.notes) == (1, None, None, [])


def test_objects_are_valid_from_their_own_time_or_that_of_their_source(read: Read) -> None:
    def packets(*starts: Any) -> list[Row]:
        return [
            {"diaSource": source(n, midpointMjdTai=61_000.5 + n),
             "diaObject": {**OBJECT, "diaObjectId": n, "validityStartMjdTai": start}}
            for n, start in enumerate(starts)
        ]  # fmt: skip

    (tables,) = read(packets(60_000.0, None, 60_002.0))
    assert column(tables.objects, "validityStartMjdTai") == [60_000.0, 61_001.5, 60_002.0]
    (tables,) = read(packets(None, None))
    assert column(tables.objects, "validityStartMjdTai") == [61_000.5, 61_001.5]
    alone = packets(60_000.0, None, 60_002.0)
    alone[1]["diaSource"]["midpointMjdTai"] = None
    alone[2]["diaObject"] = dict.fromkeys(alone[2]["diaObject"])
    (tables,) = read(alone)
    assert column(tables.objects, "validityStartMjdTai") == [60_000.0]
    assert tables.dropped == {"objects without validityStartMjdTai": 1, "sources without midpointMjdTai": 1}


def test_an_object_takes_the_exact_id_of_the_source_in_its_packet(read: Read) -> None:
    def packet(number: int, of_source: int | None, of_object: float | None) -> Row:
        return {"diaSource": source(number, diaObjectId=of_source), "diaObject": {**OBJECT, "diaObjectId": of_object}}

    (tables,) = read([
        packet(1, LARGE + 7, float(LARGE + 7)), packet(2, LARGE + 2**20, float(LARGE + 2**21)), packet(3, 8, 9.0),
        packet(4, None, float(LARGE + 2**21)), packet(5, None, 5.0), packet(6, 6, None),
    ])  # fmt: skip
    assert column(tables.objects, "diaObjectId") == [LARGE + 7, 9, 5]
    assert tables.dropped == {"objects whose ids are rounded in the file": 2}


def test_times_that_are_seconds_are_converted_with_one_note_for_each_table(read: Read) -> None:
    seconds, mjd = 1_480_360_995.0, 40_587 + 1_480_360_995 / 86_400 + 36 / 86_400
    packet = {
        "diaSource": source(1, midpointMjdTai=seconds), "prvDiaSources": [source(2, midpointMjdTai=seconds)],
        "prvDiaForcedSources": [{**FORCED, "midpointMjdTai": seconds}], "diaObject": OBJECT,
    }  # fmt: skip
    (tables,) = read([packet])
    for rows in (tables.sources, tables.forced_sources):
        assert column(rows, "midpointMjdTai") == [pytest.approx(mjd, abs=1e-9)] * rows.num_rows
    assert column(tables.objects, "validityStartMjdTai") == [pytest.approx(mjd, abs=1e-9)]
    assert [note.split(" was ")[0] for note in tables.notes] == [
        "midpointMjdTai of sources", "midpointMjdTai of forced sources",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("times", "converted"),
    [
        ([1e8, 1_480_360_995.25, 4e9 - 1], True),
        ([1e8, math.nan], True),
        ([1e8, None], True),
        ([1e8 - 1, 2e8], False),
        ([2e8, 4e9], False),
        ([61_000.0, 2e8], False),
        ([61_000.0], False),
        ([1, 2], False),
    ],
)
def test_times_of_flattened_tables_are_seconds_if_all_are_between_1973_and_2096(
    times: list[Any], converted: bool, read: Read
) -> None:
    # The column may be anywhere, also the first.
    rows = [{"midpointMjdTai": time} | source(n, visit=n, midpointMjdTai=time) for n, time in enumerate(times)]
    (tables,) = read(rows, [{name: value for name, value in row.items() if name != "diaSourceId"} for row in rows])
    known = [time for time in times if time is not None and not math.isnan(time)]
    ahead = {1e8: 12, 1_480_360_995.25: 36, 4e9 - 1: 37}
    wanted = [40_587 + (time + ahead[time]) / 86_400 for time in known] if converted else known
    for part in (tables.sources, tables.forced_sources):
        assert column(part, "midpointMjdTai") == [pytest.approx(each, rel=1e-14) for each in wanted]
    what = ("sources", "forced sources") if converted else ()
    assert tables.notes == [
        f"midpointMjdTai of {each} was converted from seconds since 1970 (UTC) to MJD (TAI)" for each in what
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_become_mjd_in_tai(unit: str, zone: str | None) -> None:
    moments = [
        datetime(2016, 12, 31, 12, tzinfo=UTC), datetime(2017, 1, 1, tzinfo=UTC), datetime(1972, 1, 1, 6, tzinfo=UTC),
    ]  # fmt: skip
    given = pa.array([*(each.replace(tzinfo=None) for each in moments), None], pa.timestamp(unit)).cast(
        pa.timestamp(unit, zone)
    )
    found = mjd_of_timestamps(pa.chunked_array([given])).to_pylist()
    days = [(each - datetime(1858, 11, 17, tzinfo=UTC)) / timedelta(days=1) for each in moments]
    wanted = [pytest.approx(day + s / 86_400, abs=1e-10) for day, s in zip(days, (36, 37, 10), strict=True)]
    assert found == [*wanted, None]


def test_timestamps_keep_microseconds_and_lose_nanoseconds() -> None:
    last = datetime(1858, 11, 27, 23, 59, 59, 999_999)
    (found,) = mjd_of_timestamps(pa.chunked_array([pa.array([last], pa.timestamp("us"))])).to_pylist()
    assert found == pytest.approx(11 + 10 / 86_400 - 1e-6 / 86_400, abs=1e-12)
    (found,) = mjd_of_timestamps(pa.chunked_array([pa.array([1_500], pa.timestamp("ns"))])).to_pylist()
    assert found == pytest.approx(40_587 + 10 / 86_400, abs=1e-10)


def test_the_start_of_validity_may_be_a_timestamp(read: Read) -> None:
    start = {"validityStart": datetime(2026, 1, 1, tzinfo=UTC)}
    mjd = pytest.approx(61_041 + 37 / 86_400, abs=1e-10)
    (tables,) = read([{"diaSource": SOURCE, "diaObject": {**OBJECT, **start}}])
    assert tables.objects.to_pylist() == [{**OBJECT, "validityStartMjdTai": mjd}]
    (tables,) = read([{**start, **OBJECT}])
    assert tables.objects.to_pylist() == [{**OBJECT, "validityStartMjdTai": mjd}]
    assert tables.notes == []
    # What is no timestamp is left as it is, and so are other timestamps.
    for row in ({"validityStart": 61_041.0, **OBJECT}, {**OBJECT, "seen": start["validityStart"]}):
        (tables,) = read([row])
        assert tables.objects.to_pylist() == [row]


# ---------------------------------------------------------------- flattened tables


def test_flattened_tables_of_several_files_are_read_as_one(read: Read, tmp_path: Path) -> None:
    (packets, tables) = read(
        [source(1)], [FORCED, {**FORCED, "visit": 2}], [{"diaSource": SOURCE, "cutoutScience": b"an image"}], [OBJECT],
        [source(2, flux=1.5)],
    )  # fmt: skip
    assert (packets.path, packets.no_column) == (tmp_path / "2.parquet", {"cutoutScience"})
    assert tables.sources.to_pylist() == [source(1, flux=None), source(2, flux=1.5)]
    assert tables.forced_sources.to_pylist() == [FORCED, {**FORCED, "visit": 2}]
    assert tables.objects.to_pylist() == [OBJECT]
    assert tables.notes == ["object validity starts at the time of the last imported source"]
    assert (tables.path, tables.rounded, tables.dropped) == (None, None, {})


@pytest.mark.parametrize(("attribute", "row"), [("objects", OBJECT), ("sources", SOURCE), ("forced_sources", FORCED)])
@pytest.mark.parametrize("extra", [{}, {"band": "r"}])
def test_a_flattened_table_is_told_by_its_columns(attribute: str, row: Row, extra: Row, read: Read) -> None:
    (tables,) = read([{**row, **extra}])
    found = {name: getattr(tables, name) for name in ("objects", "sources", "forced_sources")}
    assert found.pop(attribute).to_pylist() == [{**row, **extra}]
    assert set(found.values()) == {None}


def test_rows_of_flattened_tables_that_lack_a_value_are_counted(read: Read) -> None:
    (tables,) = read(
        [source(1), source(2, ra=None), source(3, visit=None), source(None)],
        [FORCED, {**FORCED, "dec": math.nan}, {**FORCED, "midpointMjdTai": None}, {**FORCED, "diaObjectId": None}],
        [OBJECT, {**OBJECT, "ra": None}, {**OBJECT, "dec": None}, {**OBJECT, "dec": None}],
    )
    assert [column(tables.sources, "diaSourceId"), tables.forced_sources.num_rows, tables.objects.num_rows] == [
        [1], 1, 1,
    ]  # fmt: skip
    assert tables.dropped == {
        "sources without ra": 1, "sources without visit": 1, "sources without diaSourceId": 1,
        "forced sources without dec": 1, "forced sources without midpointMjdTai": 1,
        "forced sources without diaObjectId": 1, "objects without ra": 1, "objects without dec": 2,
    }  # fmt: skip
    # A table without a complete row is none.
    (tables,) = read([{**FORCED, "ra": None}], [{**OBJECT, "ra": None}], [SOURCE])
    assert (tables.forced_sources, tables.objects, tables.sources.num_rows) == (None, None, 1)
    assert tables.notes == []


def test_forced_sources_without_a_column_are_skipped(read: Read) -> None:
    (tables,) = read([{"diaObjectId": 7, "visit": 1, "detector": 2, "midpointMjdTai": 61_000.0}], [SOURCE])
    assert (tables.forced_sources, tables.sources.num_rows) == (None, 1)
    assert tables.notes == ["forced sources skipped: missing columns ra, dec"]
    (tables,) = read([{"diaObjectId": 7, "visit": 1, "detector": 2}])
    assert tables.notes == ["forced sources skipped: missing columns ra, dec, midpointMjdTai"]
    (tables,) = read([{"diaSource": SOURCE, "diaObject": {"diaObjectId": 7, "ra": 150.0}}])
    assert (tables.objects, tables.notes) == (None, ["diaObject skipped: missing column dec"])
    (tables,) = read([{"diaSource": SOURCE, "diaObject": "7"}])
    assert (tables.objects, tables.notes) == (None, ["diaObject skipped: expected records, found string"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"a": 1, "ra": 2.0}, "no known alert format (packets, ZTF detections, or LSST objects, sources or forced "
         "sources); its columns are a, ra"),
        ({"candidate": 5, "objectId": NAME}, "column candidate has type int64, expected a record"),
        ({"diaSource": "a"}, "column diaSource has type string, expected a record"),
        ({"candidate": DETECTION}, "alerts rejected: missing column objectId"),
        ({"candidate": {"candid": 1, "pid": 1, "jd": 1.0}, "objectId": NAME},
         "detections rejected: missing columns dec, magpsf, ra"),
        ({"candid": 1, "ra": 1.0, "dec": 1.0}, "detections rejected: missing columns jd, magpsf, objectId, pid"),
        ({"diaSourceId": 1, "ra": 1.0}, "sources rejected: missing columns visit, detector, dec, midpointMjdTai"),
        ({"diaSource": {"diaSourceId": 1, "ra": 1.0}},
         "sources rejected: missing columns visit, detector, dec, midpointMjdTai"),
    ],
)  # fmt: skip
def test_tables_that_are_no_alerts_are_refused_with_the_reason(
    row: Row, words: str, read: Read, tmp_path: Path
) -> None:
    with pytest.raises(ct.InvalidInputError) as caught:
        read([row])
    assert str(caught.value) == f"{tmp_path / '0.parquet'}: {words}"
    assert caught.value.kind == "invalid-rows"


def test_packets_that_are_null_in_all_rows_lack_all_columns(read: Read) -> None:
    with pytest.raises(ct.InvalidInputError, match=r"sources rejected: missing columns diaSourceId, visit,"):
        read([{"diaSource": None, "diaSourceId": 1}])


# ---------------------------------------------------------------- names of columns


@pytest.mark.parametrize("between", [".", "_"])
def test_flattened_parts_become_records(between: str, read: Read) -> None:
    def flattened(part: str, row: Row) -> Row:
        return {f"{part}{between}{name}": value for name, value in row.items()}

    row = {**flattened("diaSource", SOURCE), **flattened("diaObject", OBJECT), "diaSourceId": 1, "diaSource": "a text"}
    (tables,) = read([row])
    assert tables.sources.to_pylist() == [SOURCE]
    assert tables.objects.to_pylist() == [{**OBJECT, "validityStartMjdTai": 61_000.0}]
    assert tables.no_column == set()
    (tables,) = read([{**flattened("candidate", DETECTION), "objectId": NAME, "publisher": "a"}])
    assert column(tables.sources, "diaSourceId") == [10]
    assert tables.no_column == {"publisher"}


def test_columns_with_a_prefix_of_their_family_lose_it_and_those_of_the_survey_come_first(read: Read) -> None:
    own = {f"i:{name}": value for name, value in flat(nid=3).items()}
    (plain,) = read([flat(nid=3, cdsxmatch="Star", other=4)])
    for row in (
        {**own, "d:cdsxmatch": "Star", "d:ra": 1.0, "ra": 2.0, "other": 4},
        {"other": 4, "d:ra": 1.0, "ra": 2.0, **own, "d:cdsxmatch": "Star"},
    ):
        (tables,) = read([row])
        (found,), (wanted,) = tables.sources.to_pylist(), plain.sources.to_pylist()
        assert found == wanted
    # Without an id of a survey, prefixes are parts of names.
    (tables,) = read([{**SOURCE, "d:class": "a", "x": 1}])
    assert tables.sources.to_pylist() == [{**SOURCE, "d:class": "a", "x": 1}]
    (tables,) = read([{f"r:{name}": value for name, value in OBJECT.items()}])
    assert tables.objects.to_pylist() == [OBJECT]


# ---------------------------------------------------------------- radians


def radians(row: Row) -> Row:
    return {**row, **{name: math.radians(row[name]) for name in ("ra", "dec")}}


CONVERTED = "forced-source positions were converted from radians to degrees"


@pytest.mark.parametrize(
    ("ra", "dec"), [(150.0, 2.0), (150.0, 0.0), (150.0, -30.0), (0.5, 0.05), (359.9995, 0.05), (359.9995, 89.9)]
)
@pytest.mark.parametrize("by", ["objects", "sources", "packets"])
def test_forced_sources_in_radians_are_told_by_the_places_of_their_objects(
    by: str, ra: float, dec: float, read: Read
) -> None:
    place = {"ra": ra, "dec": dec}
    near = {"ra": (ra + 0.001) % 360, "dec": dec - 0.001}
    for forced, notes in ((radians(FORCED | near), [CONVERTED]), (FORCED | near, [])):
        match by:
            case "objects":
                (tables,) = read([forced], [{**OBJECT, **place, "validityStartMjdTai": 61_000.0}])
            case "sources":
                (tables,) = read([forced], [source(1, diaObjectId=3, ra=10.0), source(2, **place)])
            case _:
                (tables,) = read([{"diaSource": SOURCE, "diaObject": {**OBJECT, **place},
                                   "prvDiaForcedSources": [forced]}])  # fmt: skip
        (row,) = tables.forced_sources.to_pylist()
        assert row == {**FORCED, "ra": pytest.approx(near["ra"], abs=1e-9), "dec": pytest.approx(near["dec"], abs=1e-9)}
        assert tables.notes == notes
        assert tables.forced_unit_known


@pytest.mark.parametrize(
    ("ra", "dec", "known"),
    [
        (2 * math.pi, math.pi / 2, False),
        (0.0, -math.pi / 2, False),
        (6.29, 1.0, True),
        (1.0, 1.58, True),
        (1.0, -1.58, True),
    ],
)
@pytest.mark.parametrize("others", [[], [source(1, diaObjectId=3)], [source(1, diaObjectId=None)]], ids=len)
def test_the_unit_of_forced_sources_is_unknown_if_their_objects_are_and_it_may_be_radians(
    ra: float, dec: float, known: bool, others: list[Row], read: Read
) -> None:
    (tables,) = read(
        [{**FORCED, "ra": 1.0, "dec": 0.5}, {**FORCED, "ra": ra, "dec": dec}], *([others] if others else ())
    )
    assert tables.forced_unit_known is known
    assert (column(tables.forced_sources, "ra"), tables.notes) == ([1.0, ra], [])


def test_forced_sources_are_converted_all_or_none(read: Read) -> None:
    objects = [{**OBJECT, "validityStartMjdTai": 61_000.0}]
    other = {"diaObjectId": 8, "ra": 200.0, "dec": -20.0}
    # One object is enough.
    (tables,) = read([radians(FORCED | other), radians(FORCED)], objects)
    assert column(tables.forced_sources, "ra") == [pytest.approx(200.0), pytest.approx(150.0)]
    assert (tables.notes, tables.forced_unit_known) == ([CONVERTED], True)
    # Among radians, nothing is in degrees.
    for rows in (
        [FORCED | other, radians(FORCED)],
        [radians(FORCED), radians(FORCED | {"ra": 150.2})],
        [radians(FORCED), radians(FORCED | {"dec": 2.2})],
    ):
        (tables,) = read(rows, objects)
        assert column(tables.forced_sources, "ra") == [row["ra"] for row in rows]
        assert (tables.notes, tables.forced_unit_known) == ([], True)


def test_the_unit_is_told_beside_the_origin_of_coordinates(read: Read) -> None:
    origin = {"diaObjectId": 8, "ra": 0.0, "dec": 0.0}
    start = {"validityStartMjdTai": 61_000.0}
    (tables,) = read([radians(FORCED), FORCED | origin], [OBJECT | start, origin | start])
    assert column(tables.forced_sources, "ra") == [pytest.approx(150.0), 0.0]
    assert tables.notes == [CONVERTED]
    for place in ({"ra": 0.0, "dec": 0.0}, {"ra": 0.001, "dec": 0.0005}):
        (tables,) = read([FORCED | place], [OBJECT | place | start])
        assert (tables.forced_sources.to_pylist(), tables.notes) == ([FORCED | place], [])


def test_sources_without_objects_tell_no_unit(read: Read) -> None:
    without = {name: value for name, value in SOURCE.items() if name != "diaObjectId"}
    (tables,) = read([without], [FORCED])
    assert (tables.sources.to_pylist(), tables.forced_sources.to_pylist()) == ([without], [FORCED])
    (tables,) = read([without], [radians(FORCED)])
    assert not tables.forced_unit_known
