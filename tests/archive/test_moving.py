"""Records that move over the sky: a region returns their newest state."""

from __future__ import annotations

from typing import Any

import pytest
from astropy import units

import chronotile as ct
from chronotile import apdb


@pytest.mark.parametrize(
    "moves", [0.001, "3.6arcsec", "0.001deg", "0.06 arcmin", units.Quantity(3.6, "arcsec")], ids=str
)
def test_records_that_cross_a_pixel_are_read_in_their_newest_state(memory: ct.Archive, moves: object) -> None:
    objects = memory.create(
        "objects", schema={"id": "int64", "t": "timestamp[us]", "ra": "float64", "dec": "float64", "n": "int64"},
        cell=ct.sky("ra", "dec", level=16), time="t", id="id", merge="latest", moves=moves,
    )  # fmt: skip
    assert objects.moves == pytest.approx(0.001, rel=1e-12)
    before, after = (ct.circle(ra, 0.001, 0.0001) for ra in (45 - 0.0003, 45 + 0.0003))
    for n, ra in enumerate((45 - 0.0003, 45 + 0.0003)):
        objects.write({"id": [1], "t": ["2026-01-01"], "ra": [ra], "dec": [0.001], "n": [n]})
    assert objects.read(region=before).to_arrow().num_rows == objects.count(region=before) == 0
    assert objects.read(region=after).to_arrow()["n"].to_pylist() == [1]
    assert objects.latest(region=before).to_arrow().num_rows == 0
    assert objects.count(region=before, history=True) == 1
    objects.set_moves(0)
    assert objects.count(region=before) == 1
    assert memory["objects"].moves == objects.moves == 0


def test_a_bound_of_motion_is_an_angle_of_versions_on_the_sky(memory: ct.Archive) -> None:
    schema = {"id": "int64", "t": "timestamp[us]", "ra": "float64", "dec": "float64"}
    arguments: dict[str, Any] = {
        "schema": schema,
        "cell": ct.sky("ra", "dec"),
        "time": "t",
        "id": "id",
        "merge": "latest",
    }
    for moves in ("5", "10.5deg", -1, "far", "arcsec", float("nan"), None, True):
        if moves == "5":
            assert memory.create("d", **arguments, moves=moves).moves == 5
            continue
        with pytest.raises(ct.InvalidInputError, match="moves"):
            memory.create("e", **arguments, moves=moves)
    for other in ({"merge": "append"}, {"cell": ct.key("id")}):
        with pytest.raises(ct.InvalidInputError, match="merge latest and sky pixels"):
            memory.create("e", **{**arguments, **other}, moves=1)


def test_an_object_of_a_survey_that_crosses_a_pixel_is_read_in_its_newest_state(memory: ct.Archive) -> None:
    survey = apdb.create(memory, schema="small", layout=apdb.Layout(level=16))
    assert survey.dataset("DiaObject").moves == pytest.approx(5 / 3600)
    assert survey.dataset("DiaSource").moves == 0
    for visit, ra in enumerate((45 - 0.0003, 45 + 0.0003), start=1):
        place = {"diaObjectId": [7], "ra": [ra], "dec": [0.001]}
        survey.store(
            visit_time=61_000.0 + visit, visit=visit, detector=1, objects={**place, "nDiaSources": [visit]},
            sources={**place, "diaSourceId": [visit], "midpointMjdTai": [61_000.0 + visit]},
        )  # fmt: skip
    assert len(survey.objects(region=ct.circle(45 - 0.0003, 0.001, 0.0001)).to_arrow()) == 0
    assert survey.objects(region=ct.circle(45 + 0.0003, 0.001, 0.0001)).to_arrow()["nDiaSources"].to_pylist() == [2]
