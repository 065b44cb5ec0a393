"""Source counts of objects are what the database holds, and never less where sources may have left it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb

LATER = START + 400
"""The slice of the first visits ends before, and that of visit 600 begins after."""


@pytest.fixture
def survey(path: Path) -> Iterator[apdb.Apdb]:
    """A small database in a file, with a list of changes."""
    with apdb.create(path, "small", feed=True) as made:
        yield made


def visit(number: int, counts: dict[int, int | None], ra: float = 150.1, dec: float = 2.1) -> dict[str, Any]:
    """A detector-visit that saw objects in one place, each with the count that its new version claims."""
    rows = visit_of(number, list(counts))
    for table in (rows["objects"], rows["sources"], rows["forced_sources"]):
        table |= {"ra": np.full(len(counts), ra), "dec": np.full(len(counts), dec)}
    rows["objects"]["nDiaSources"] = pa.array(list(counts.values()), pa.int32())
    return rows


def source(number: int, object_id: int) -> int:
    """Id of the source of an object in a visit."""
    return number * 10_000 + 1_000 + object_id


def counts_of(database: apdb.Apdb) -> dict[int, int | None]:
    """The count of each object, closed ones too."""
    rows = database.objects(columns=["diaObjectId", "nDiaSources"], closed=True).to_arrow()
    assert len(set(rows["diaObjectId"].to_pylist())) == rows.num_rows
    return dict(zip(rows["diaObjectId"].to_pylist(), rows["nDiaSources"].to_pylist(), strict=True))


def held(database: apdb.Apdb) -> Counter[int]:
    """The sources of each object that the database has."""
    return Counter(database.sources(columns=["diaObjectId"])["diaObjectId"].drop_null().to_pylist())


def listed_counts(database: apdb.Apdb) -> list[tuple[int, int]]:
    """Object and count of each record of the feed that sets a count, in order."""
    feed = apdb.Feed(database)
    rows = feed.changes([chunk.id for chunk in feed.chunks()]).to_pylist()
    return [(row["diaObjectId"], row["nDiaSources"]) for row in rows if row["kind"] == "update_n_dia_sources"]


def versions_of(database: apdb.Apdb) -> int:
    """Number of stored object versions, newer ones of the same visit included."""
    return database.dataset("DiaObject").count(history=True)


# ---------------------------------------------------------------------- reassign


def test_reassign_sets_wrong_counts_right_where_sources_come_and_go(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1, 4: None}))
    survey.store(**visit(1, {1: 0, 2: 77, 3: 9, 4: None}))
    assert survey.reassign({source(0, 2): 1, source(1, 4): 1}) == 2
    assert counts_of(survey) == {1: 4, 2: 1, 3: 9, 4: 1}, "of 3, no source moved"
    assert sorted(listed_counts(survey)) == [(1, 4), (2, 1), (4, 1)]


@pytest.mark.parametrize(
    ("increment", "decrement", "wanted"),
    [(True, True, {1: 3, 2: 1}), (True, False, {1: 3, 2: 50}), (False, True, {1: 40, 2: 1}), (False, False, None)],
)
def test_counts_of_objects_that_gain_or_lose_are_left_alone_on_request(
    survey: apdb.Apdb, increment: bool, decrement: bool, wanted: dict[int, int] | None
) -> None:
    survey.store(**visit(0, {1: 1, 2: 1}))
    survey.store(**visit(1, {1: 40, 2: 50}))
    assert survey.reassign({source(0, 2): 1}, increment=increment, decrement=decrement) == 1
    assert counts_of(survey) == (wanted or {1: 40, 2: 50})


def test_withdrawn_sources_count_and_deleted_ones_do_not(survey: apdb.Apdb) -> None:
    for number in range(3):
        survey.store(**visit(number, {1: number + 1, 2: number + 1}))
    survey.withdraw_sources([source(0, 1), source(0, 2)])
    assert survey.delete("DiaSource", [source(1, 1)], archived=False) == 1
    assert survey.reassign({source(2, 2): 1}) == 1
    assert counts_of(survey) == {1: 3, 2: 2}


def test_an_object_whose_count_stays_right_gets_no_new_version(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1}))
    before = versions_of(survey)
    assert survey.reassign({source(0, 1): 2, source(0, 2): 3, source(0, 3): 1}) == 3
    assert counts_of(survey) == {1: 1, 2: 1, 3: 1}
    assert (versions_of(survey), listed_counts(survey)) == (before, [])


def test_deleted_objects_take_no_sources_and_stay_deleted(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1}))
    survey.delete("DiaObject", [2, 3], archived=False)
    with pytest.raises(ct.InvalidInputError, match=r"DiaObject.*: 2;"):
        survey.reassign({source(0, 1): 2})
    assert survey.reassign({source(0, 3): 1}) == 1
    assert counts_of(survey) == {1: 2}
    assert listed_counts(survey) == [(1, 2)]


# ---------------------------------------------------------------------- sources that left the database


def leave(database: apdb.Apdb, how: str, folder: Path) -> None:
    """Have the old slices leave the database, or be in files beside it."""
    if how == "retired":
        assert database.retire(LATER)["dia_source"]
    else:
        assert database.archive_before(LATER, folder)
    if how == "restored":
        assert database.restore(folder)


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("how", ["retired", "archived", "restored"])
def test_counts_are_never_lowered_where_sources_may_have_left(
    survey: apdb.Apdb, tmp_path: Path, how: str, consolidated: bool
) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1, 4: 1}))
    survey.store(**visit(600, {1: 2, 2: 2, 3: 2, 4: 0, 5: 9, 6: 9}))
    # An old source of an object that is first seen later.
    assert survey.reassign({source(0, 3): 6}) == 1
    assert counts_of(survey) == {1: 2, 2: 2, 3: 1, 4: 0, 5: 9, 6: 2}
    leave(survey, how, tmp_path / "cold")
    if consolidated:
        survey.maintain()
    assert survey.reassign({source(600, 2): 1}) == 1
    assert counts_of(survey) == {1: 3, 2: 1, 3: 1, 4: 0, 5: 9, 6: 2}
