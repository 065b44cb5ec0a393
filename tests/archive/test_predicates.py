"""Conditions: what is typed, what is written in Python, and the exact constants that a read is given."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import conditions, predicates, scanning
from chronotile.errors import InvalidInputError

KINDS = {
    "n": "int64", "u": "uint64", "f": "float64", "b": "bool", "d": "decimal128(10, 2)", "s": "utf8", "raw": "binary",
    "t": "timestamp[us]", "day": "date32", "clock": "time64[us]", "length": "duration[ms]", "large": "utf8view",
}  # fmt: skip
words = st.text("abcxyz019.- ", min_size=1, max_size=8).map(str.strip).filter(bool)


def constants(*condition: Any) -> list[Any]:
    """The constants of one condition, as the read gets them."""
    [(column, comparison, values)] = predicates.native_predicates(tuple(condition), KINDS)
    assert (column, comparison) == (condition[0], condition[1])
    return pa.array(values).to_pylist()


def refused(*condition: Any, match: str) -> None:
    with pytest.raises(InvalidInputError, match=match) as caught:
        predicates.native_predicates([tuple(condition)], KINDS)
    assert str(caught.value).count("condition on") <= 1
    assert caught.value.kind in ("invalid-request", "invalid-time", "invalid-rows")


# ---------------------------------------------------------------- as typed


@given(words, st.sampled_from(["'", '"']))
def test_quotes_are_taken_off_in_pairs_only(word: str, quote: str) -> None:
    assert conditions.unquoted(quote + word + quote) == word
    for other in (word, quote + word, word + quote, f"'{word}\"", f"x{quote}{word}{quote}"):
        assert conditions.unquoted(other) == other
    assert conditions.literal(quote + word + quote) == word


def test_two_quotes_are_an_empty_text_and_one_is_itself() -> None:
    assert conditions.unquoted('""') == conditions.unquoted("''") == ""
    assert conditions.unquoted('"') == '"'
    assert conditions.unquoted("") == ""
    assert conditions.literal("'12'") == "12"


@given(st.integers(-(10**38) + 1, 10**38 - 1))
@example(10**37)
@example(10**38 - 1)
@example(-(10**38) + 1)
def test_whole_numbers_are_whole_to_38_digits(number: int) -> None:
    found = conditions.literal(str(number))
    assert (type(found), found) == (int, number)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1.5", 1.5), ("1e3", 1000.0), ("-.5", -0.5), ("1" + "0" * 38, 1e38), ("true", True), ("False", False),
     ("TRUE", True), ("truer", "truer"), ("g", "g"), ("", "")],
)  # fmt: skip
def test_other_constants_as_typed(text: str, wanted: Any) -> None:
    found = conditions.literal(text)
    assert (type(found), found) == (type(wanted), wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("f<1.5", ("f", "<", 1.5)),
        ("n in 1,2", ("n", "in", [1, 2])),
        ("n in (1, 2)", ("n", "in", [1, 2])),
        ("n in [ 3 ]", ("n", "in", [3])),
        ("n in ()", ("n", "in", [])),
        ("n between 1,2", ("n", "between", [1, 2])),
        ("s in 1,'2'", ("s", "in", ["1", "2"])),
        ("s == 1", ("s", "==", "1")),
        ("d == 1.025", ("d", "==", "1.025")),
        ("d in 1.0,2", ("d", "in", ["1.0", "2"])),
        ("s contains '1'", ("s", "contains", "1")),
        ("n prefix 12", ("n", "prefix", "12")),
        ("s matches 7", ("s", "matches", "7")),
        ("s exists", ("s", "exists", True)),
        ("s exists false", ("s", "exists", False)),
        ("s exists true", ("s", "exists", True)),
        ("unknown == 1", ("unknown", "==", 1)),
    ],
)
def test_conditions_as_typed(text: str, wanted: tuple[str, str, Any]) -> None:
    assert conditions.condition(text, KINDS) == wanted
    assert predicates.listed(text, KINDS) == [wanted]
    assert predicates.listed([text, wanted], KINDS) == [wanted, wanted]


@pytest.mark.parametrize("word", ["and", "AND"])
@pytest.mark.parametrize("between", [0, 1, 20])
@pytest.mark.parametrize("comparison", ["==", "in", "between", "exists"])
def test_a_condition_has_one_comparison(comparison: str, between: int, word: str) -> None:
    others = f"x {word} " * between
    for second in ("n<3", "f in 1,2", "n exists"):
        with pytest.raises(InvalidInputError, match=r"a condition has one comparison, but .* follows") as caught:
            conditions.condition(f"s {comparison} a {word} {others}{second} {word} y", KINDS)
        assert scanning.shown(second) in str(caught.value)
        assert caught.value.kind == "invalid-request"


@pytest.mark.parametrize("text", ["a and b", "and n<3", "n<3", "n<3 and b", "a and other<3", "a and n", "Band n<3", ""])
def test_text_with_the_word_and_is_one_constant_unless_a_comparison_of_a_column_follows(text: str) -> None:
    assert conditions.condition(f"s == {text}", KINDS) == ("s", "==", text)


@pytest.mark.parametrize("text", ["a and n<3", "a AND n<3 and n>4"])
def test_a_quoted_text_and_a_part_of_a_line_may_contain_a_comparison(text: str) -> None:
    assert conditions.condition(f"s == '{text}'", KINDS) == ("s", "==", text)
    assert conditions.condition(f"s in '{text}'", KINDS) == ("s", "in", [text])
    for comparison in ("contains", "matches", "prefix"):
        assert conditions.condition(f"s {comparison} {text}", KINDS) == ("s", comparison, text)


def test_what_is_no_condition_is_shown_short() -> None:
    for text in ("", "n", "< 3", "n ~ 3", "n < 3" + " " * scanning.TEXT_CHARS_MAX):
        with pytest.raises(InvalidInputError, match=r"invalid condition .*at most 65,536 characters") as caught:
            conditions.condition(text, KINDS)
        assert len(str(caught.value)) < 400


def test_names_aggregates_and_days_as_typed() -> None:
    assert conditions.names(None) is None
    assert conditions.names("a, b,,c ,") == ["a", "b", "c"]
    assert conditions.aggregates(["sum(a)", "max(b)", "min(a)"]) == {"a": ["sum", "min"], "b": ["max"]}
    with pytest.raises(InvalidInputError, match="function of a column"):
        conditions.aggregates(["sum(a)", "b"])
    assert conditions.days(None) is None
    assert conditions.days("7") == 7
    assert conditions.days("1234567") == 1_234_567
    assert conditions.days("12345678") == "12345678"
    assert conditions.days("²") == "²"
    assert conditions.days(" 2026-01-31 ") == "2026-01-31"
    assert conditions.days("2026-01-30, 2026-01-31") == ("2026-01-30", "2026-01-31")
    assert conditions.days("2026-01-30,") == ("2026-01-30", "")


# ---------------------------------------------------------------- one or several


def test_one_condition_or_several() -> None:
    one = ("f", "<", 1.5)
    assert predicates.listed(None) == []
    assert predicates.listed([]) == []
    assert predicates.listed(one) == [one]
    assert predicates.listed([one]) == [one]
    assert predicates.listed("f<1.5") == [one]
    assert predicates.listed(("f<1.5", "f<1.5", "f<1.5")) == [one] * 3
    assert predicates.listed(("f<1.5", "f<1.5")) == [one] * 2
    assert predicates.listed((one, one, one)) == [one] * 3
    # Its constant is a text that could be a condition, and its column and comparison could not.
    assert predicates.listed(("s", "==", "a<b")) == [("s", "==", "a<b")]
    assert predicates.listed(iter(["f<1.5"])) == [one]
    # Three conditions, of which only the first is no text.
    assert predicates.listed((one, "f<1.5", "f<1.5")) == [one] * 3
    with pytest.raises(InvalidInputError, match=r"^where is 5, of type int: give a condition"):
        predicates.listed(5)  # type: ignore[arg-type]
    # Without types, constants are what they look like.
    assert predicates.listed("s == 1") == [("s", "==", 1)]
    assert predicates.listed("s == 1", KINDS) == [("s", "==", "1")]


def test_equal_to_one_value_or_to_one_of_several() -> None:
    several = [[1, 2], (1, 2), pa.array([1, 2]), pd.Series([1, 2]), np.array([1, 2]), iter([1, 2]), {1: 1, 2: 2}]
    for values in several:
        [(column, comparison, found)] = predicates.equalities({"n": values})
        assert (column, comparison, type(found), found) == ("n", "in", list, [1, 2])
        assert constants(column, comparison, found) == ["1", "2"]
    assert predicates.equalities({}) == []
    assert predicates.equalities({"s": "ab", "raw": b"ab", "n": 1, "f": None}) == [
        ("s", "==", "ab"), ("raw", "==", b"ab"), ("n", "==", 1), ("f", "==", None),
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [[5], [("f", "<")], [("f", "<", 1, 2)], [["a", "b"]], [{"f", "<", 1}]])
def test_what_is_not_three_things_is_no_condition(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"write \(column, comparison, value"):
        predicates.native_predicates(wrong, KINDS)


def test_lists_are_conditions_as_tuples_are() -> None:
    [(column, comparison, values)] = predicates.native_predicates([["n", "=", 3]], KINDS)  # type: ignore[list-item]
    assert (column, comparison, pa.array(values).to_pylist()) == ("n", "==", ["3"])
    assert predicates.native_predicates([("n", "<>", 3)], KINDS)[0][1] == "!="


@pytest.mark.parametrize("comparison", ["==", "!=", "<", "<=", ">", ">="])
def test_a_comparison_has_one_constant(comparison: str) -> None:
    assert constants("n", comparison, 5) == ["5"]
    refused("n", comparison, [5], match="is not a number")


def test_in_takes_any_list_and_between_takes_two() -> None:
    for values in ([1, 2], (1, 2), pd.Series([1, 2]), range(1, 3), iter([1, 2])):
        assert constants("n", "in", values) == ["1", "2"]
    # Numbers of an array go as they are, without a text for each.
    for array in (np.array([1, 2]), np.array([1, 2], ">i4"), np.array([0, 1, 0, 2], "uint8")[1::2]):
        assert constants("n", "in", array) == [1, 2]
    assert constants("n", "in", np.ma.array([1, 2], mask=False)) == ["1", "2"]
    assert constants("f", "in", np.array([1, 2])) == ["1", "2"]
    assert constants("n", "in", []) == []
    assert constants("n", "between", [1, 2]) == ["1", "2"]
    for count in (0, 1, 3):
        refused("n", "between", [1] * count, match=f"takes two values, not {count}")
    for wrong in ("12", b"12", 12, None, np.iinfo("int8"), np.int64(1)):
        refused("n", "in", wrong, match="takes a list of values")


def test_unknown_comparisons_and_columns_are_named() -> None:
    refused("n", "~", 1, match="unknown comparison '~': use one of == ")
    refused("nn", "==", 1, match="unknown column 'nn' in a condition; did you mean n")


def test_exists_takes_true_or_false() -> None:
    assert constants("raw", "exists", True) == [True]
    assert constants("n", "exists", False) == [False]
    for wrong in (1, 0, "true", None):
        refused("n", "exists", wrong, match="exists takes True or False")


@pytest.mark.parametrize("comparison", ["contains", "matches", "prefix"])
def test_parts_of_text_are_looked_for_in_text_only(comparison: str) -> None:
    assert constants("s", comparison, "ab") == ["ab"]
    refused("n", comparison, "ab", match=f"type is int64: {comparison} requires a text column")
    refused("s", comparison, 5, match=f"{comparison} takes one text, not 5")
    refused("s", comparison, ["a"], match=f"{comparison} takes one text")


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("column", ["n", "u", "f", "b", "d", "s", "t", "day", "clock", "length", "raw"])
def test_none_is_never_a_constant(column: str) -> None:
    refused(column, "==", None, match="comparison with None is never true")
    refused(column, "in", [None, 1], match="comparison with None is never true")


def value_of(text: str) -> Fraction:
    mantissa, _, exponent = text.partition("e")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


@given(st.integers(-(10**60), 10**60))
@example(10**40 - 1)
@example(10**40)
@example(-(10**40))
@example(2**133)
@example(2**64)
def test_whole_numbers_stay_exact_to_forty_digits_and_near_beyond(number: int) -> None:
    [text] = constants("n", "==", number)
    if abs(number) < 10**40:
        assert text == str(number)
    else:
        mantissa, mark, exponent = text.lstrip("-").partition("e")
        assert (mantissa.isdigit(), mark, exponent.isdigit()) == (True, "e", True)
        assert abs(value_of(text) - number) <= abs(Fraction(number)) / 10**39
        # Its digits are as many as any column of numbers has, and bounded.
        assert 40 <= len(mantissa) <= 42


@pytest.mark.parametrize("base", [2, 10])
def test_long_whole_numbers_have_40_or_41_digits(base: int) -> None:
    for exponent in range(40 if base == 10 else 133, 400):
        for number in (base**exponent, base**exponent + 1, base ** (exponent + 1) - 1):
            [text] = constants("n", "==", number)
            assert len(text.partition("e")[0]) in (40, 41)


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(float(2**53))
@example(-float(2**53))
@example(float(2**53) - 1)
@example(9.999999999999999e39)
@example(1e40)
@example(0.1)
def test_floats_are_the_number_that_they_are(number: float) -> None:
    [text] = constants("n", "==", number)
    assert float(text) == number
    if 2**53 <= abs(number) < 10**40:
        assert text == str(int(number))
    else:
        assert text == repr(number)
    assert constants("n", "==", np.float64(number)) == [text]


def test_numbers_of_every_kind() -> None:
    assert constants("n", "in", [True, False, 3, 2.5, Decimal("1.25"), "7", np.int8(4), np.bool_(True)]) == [
        "1", "0", "3", "2.5", "1.25", "7", "4", "1"
    ]  # fmt: skip
    for wrong in (b"1", [1], dt.date(2026, 1, 1), object()):
        refused("n", "==", wrong, match="^condition on 'n', whose type is int64: .* is not a number")


def test_times_are_no_numbers_but_years_are() -> None:
    for text in ("2026-01-31", "2026-01-31T12:00:00Z"):
        refused("n", "==", text, match="is a time: to read a period, use start and end")
        refused("f", "in", ["1", text], match="is a time")
    assert constants("n", "in", ["2026", "20260131", "x"]) == ["2026", "20260131", "x"]


def test_text_is_compared_with_text() -> None:
    assert constants("s", "in", ["a", "1"]) == ["a", "1"]
    refused("s", "in", ["a", 1], match="whose type is utf8: compare with text")
    refused("s", "==", 1, match="whose type is utf8: compare with text")
    assert constants("raw", "==", b"a") == [b"a"]
    refused("raw", "==", 1.5, match="^condition on 'raw': ")
    refused("raw", "in", [b"a", 5], match="^condition on 'raw' of type binary: value 1 is 5")


def text_of(value: dt.datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + "000Z"


@given(st.datetimes(min_value=dt.datetime(1000, 1, 1)))
def test_times_are_text_with_nanoseconds(value: dt.datetime) -> None:
    for column in ("t", "day"):
        assert constants(column, "==", value) == [text_of(value)]
        assert constants(column, "==", value.isoformat()) == [text_of(value)]
        assert constants(column, "in", [value, np.datetime64(value)]) == [text_of(value)] * 2
    assert constants("day", "==", value.date()) == [text_of(dt.datetime.combine(value.date(), dt.time()))]


def test_times_and_whole_numbers_of_the_unit_do_not_mix() -> None:
    assert constants("t", "in", [1, np.int64(2)]) == [1, 2]
    assert constants("length", "==", 7) == [7]
    assert constants("clock", "==", 7) == [7]
    assert constants("t", "in", []) == []
    refused("t", "in", [dt.datetime(2026, 1, 1), 5], match="all times as times or all as whole numbers")
    refused("t", "in", [5, dt.datetime(2026, 1, 1)], match="all times as times or all as whole numbers")
    refused("t", "==", 1.5, match="whole number in its unit")


@given(st.times())
def test_times_of_day_have_no_zone(value: dt.time) -> None:
    assert constants("clock", "==", value) == [value.isoformat()]
    assert constants("clock", "==", value.isoformat()) == [value.isoformat()]
    refused("clock", "==", value.replace(tzinfo=dt.UTC), match="time of day without zone")


@given(st.timedeltas(dt.timedelta(days=-100_000), dt.timedelta(days=100_000)))
def test_lengths_of_time_are_nanoseconds(value: dt.timedelta) -> None:
    nanoseconds = value // dt.timedelta(microseconds=1) * 1_000
    for each in (value, np.timedelta64(value)):
        [(_, _, native)] = predicates.native_predicates([("length", "==", each)], KINDS)
        array = pa.array(native)
        assert array.type == pa.duration("ns")
        assert array.cast(pa.int64()).to_pylist() == [nanoseconds]


def test_what_is_no_length_of_time_is_refused() -> None:
    for wrong in ("1h", 1.5, np.datetime64("2026-01-01"), dt.time(1)):
        refused("length", "==", wrong, match=r"^condition on 'length', whose type is duration\[ms\]: give a timedelta")
    refused("clock", "==", 1.5, match=r"^condition on 'clock', whose type is time64\[us\]: .* time of day without zone")


@given(words, words)
def test_a_typed_condition_and_a_written_one_are_the_same(column: str, value: str) -> None:
    assume(not set(column) & set(" .-") and column[0] not in "019")
    kinds = {column: "utf8"}
    [typed] = predicates.native_predicates(f"{column} == '{value}'", kinds)
    [written] = predicates.native_predicates([(column, "==", value)], kinds)
    assert typed[:2] == written[:2]
    assert pa.array(typed[2]).equals(pa.array(written[2]))


def test_conditions_reach_the_read(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"n": "int64", "t": "timestamp[s]"}, cell=ct.single(), time="t")
    dataset.write({"n": [1, 2, 3], "t": [1, 2, 3]})
    assert dataset.count(where=["n>1", ("n", "<", 3)]) == 1
