"""Cell rules and angles as users write them, and the definitions that an archive keeps of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import cells
from chronotile.errors import InvalidInputError

RULES: list[tuple[Any, dict[str, Any]]] = [
    (ct.sky("ra", "dec"), {"rule": "sky", "ra": "ra", "dec": "dec", "scheme": "mq3c", "level": 10}),
    (ct.sky("a", "b", scheme="htm", level=7), {"rule": "sky", "ra": "a", "dec": "b", "scheme": "htm", "level": 7}),
    (ct.key("tag"), {"rule": "value", "column": "tag"}),
    (ct.id_bucket("id", 500), {"rule": "id_bucket", "column": "id", "size": 500}),
    (ct.hash("a", "b"), {"rule": "hash", "columns": ["a", "b"], "buckets": None}),
    (ct.hash("a", buckets=16), {"rule": "hash", "columns": ["a"], "buckets": 16}),
    (ct.single(), {"rule": "single"}),
]


@pytest.mark.parametrize(("rule", "definition"), RULES, ids=str)
def test_rules_and_definitions_are_each_others_inverse(rule: Any, definition: dict[str, Any]) -> None:
    assert json.loads(cells.to_json(rule)) == definition
    assert cells.from_json(definition) == rule
    assert type(cells.from_json(definition)) is type(rule)


@pytest.mark.parametrize(("rule", "definition"), RULES, ids=str)
def test_a_rule_is_named_after_the_function_that_makes_it(rule: Any, definition: dict[str, Any]) -> None:
    name = cells.rule_name(rule)
    assert name == {"value": "key"}.get(definition["rule"], definition["rule"])
    assert callable(getattr(ct, name))


def test_what_is_no_rule_and_rules_of_later_releases_are_refused() -> None:
    for wrong in ("sky", None, ct.sky, cells.KeyCell, {"rule": "single"}):
        with pytest.raises(InvalidInputError, match=r"invalid cell rule .*: use"):
            cells.to_json(wrong)
    with pytest.raises(InvalidInputError, match="unknown cell rule 'ring', written by a later release"):
        cells.from_json({"rule": "ring"})
    assert repr(ct.sky).startswith("<chronotile.sky")


@given(st.floats(-1_000, 1_000), st.sampled_from(["", " "]))
def test_angles_are_degrees_of_any_unit(number: float, space: str) -> None:
    assert cells.angle_deg(number, "radius") == number
    assert cells.angle_deg(repr(number), "radius") == number
    for unit, parts in (("deg", 1), ("arcmin", 60), ("arcsec", 3_600)):
        assert cells.angle_deg(f" {number!r}{space}{unit} ", "radius") == number / parts
    quantity = SimpleNamespace(to_value=lambda unit: {"deg": number}[unit])
    assert cells.angle_deg(quantity, "radius") == number
    assert cells.angle_deg(int(number), "radius") == int(number)


@pytest.mark.parametrize(
    "wrong", [None, True, False, "", "deg", "arcsec", "1rad", "x1", "1 2deg", [1.0, 2.0], object()]
)
def test_what_is_no_angle_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"the radius is .*: give degrees"):
        cells.angle_deg(wrong, "the radius")
