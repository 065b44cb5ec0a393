"""Short texts of users: what is read, what is refused, and that no text takes long."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import conditions, scanning, times
from chronotile.cli.define import schema_of_text

UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 7, "us": 8, "ns": 9}

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LENGTH = re.compile(r"\s*([0-9]{1,18})\s*(w|d|h|ms|us|ns|m|s)\s*")
CONDITION = re.compile(
    r"\s*(?P<column>(?P<quoted>\"[^\"]+\")|[^\s<>=!\"][^\s<>=!]*)\s*(?P<comparison><=|>=|==|!=|<>|=|<|>|"
    r"(?(quoted)|(?<=\s))(?:in|between|contains|matches|prefix|exists)(?!\w))\s*(?P<value>.*)",
    re.DOTALL,
)

numbers = st.text("+-.eE0123456789 x²٣", max_size=12)
lengths = st.text(" \t0123456789wdhmsun-", max_size=8)
pieces = st.sampled_from(["a", "mag", '"', '"a b"', " ", "\n", "<", "<=", "=", "==", "!", "!=", "<>", "in", "between",
    "exists", "prefix", "inner", "1", "x,y", "é"])  # fmt: skip


@given(numbers)
def test_numbers_are_what_the_grammar_says(text: str) -> None:
    assert scanning.is_number(text) == (NUMBER.fullmatch(text) is not None)


@given(lengths)
def test_lengths_of_time_are_what_the_grammar_says(text: str) -> None:
    found = LENGTH.fullmatch(text)
    assert scanning.length_of_time(text, UNITS) == (int(found[1]) * UNITS[found[2]] if found else None)


@given(st.lists(pieces, max_size=7).map("".join))
@example('a"in')
@example('"a"in')
def test_conditions_are_what_the_grammar_says(text: str) -> None:
    found = CONDITION.fullmatch(text)
    expected = found and (
        found["column"][1:-1] if text.strip().startswith('"') else found["column"],
        found["comparison"],
        found["value"].strip(),
    )
    assert scanning.comparison(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(run_s)", {"run_s": ["sum"]}),
        ("  count_distinct ( a (b) ) ", {"a (b)": ["count_distinct"]}),
    ],
)
def test_aggregates_are_functions_of_columns(text: str, expected: dict[str, list[str]]) -> None:
    assert conditions.aggregates([text]) == expected


@pytest.mark.parametrize("text", ["", "sum", "sum(", "sum()", "sum( )", "(a)", "s um(a)", "sum(a", "sum(a) b"])
def test_other_texts_are_no_aggregates(text: str) -> None:
    with pytest.raises(ct.InvalidInputError, match="write a function of a column"):
        conditions.aggregates([text])


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2026-01-31T12:00:00.123456789Z", 123_456_789),
        ("2026-01-31T12:00:00,5", 500_000_000),
        ("2026-01-31 12:00:00.0000000019+00:00", 1),
        ("20260131T120000.25Z", 250_000_000),
        ("2026-01-31T12:00:00", 0),
    ],
)
def test_fractions_of_a_second_are_read_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    noon = 1_769_860_800 * 10**9
    assert times.moment(text, times.timestamp("t"), "start") == ("utc_ns", noon + nanoseconds)


@pytest.mark.parametrize(
    "text", ["2026-01-31T12.5", "20260131.5", "2026-01-31T12:00.5", "2026-01-31T12:00:00.", "2026-01-31." + "1" * 99]
)
def test_a_fraction_belongs_to_seconds_alone(text: str) -> None:
    with pytest.raises(ct.InvalidInputError):
        times.moment(text, times.timestamp("t"), "start")


def test_json_has_a_bound_of_nesting_and_of_digits() -> None:
    deep = scanning.NESTING_MAX
    assert scanning.json_value("[" * deep + "]" * deep) == eval("[" * deep + "]" * deep)
    for text in ("[" * (deep + 1) + "]" * (deep + 1), '{"a":' * 40_000, "[" * 1_000_000):
        with pytest.raises(ValueError, match="nested"):
            scanning.json_value(text)
    assert scanning.json_value('["' + "[" * 1_000 + '\\"[[", 1]') == ["[" * 1_000 + '"[[', 1]
    assert scanning.json_value("[" + "9" * 5_000 + "]") == [float("inf")]
    assert scanning.json_value("[" + "9" * 30 + "]") == [int("9" * 30)]


def test_columns_may_have_commas_within_brackets() -> None:
    schema = schema_of_text("a:int64, t:timestamp[us, UTC],b:list<struct<x: int32, y: utf8>>")
    assert [name for name, *_ in schema.columns()] == ["a", "t", "b"]


HOSTILE: dict[str, Callable[[int], str]] = {
    "digits and a letter": lambda size: "1" * size + "x",
    "an exponent": lambda size: "1e" + "1" * size + "x",
    "a call of blanks": lambda size: "a(" + " " * size,
    "calls": lambda size: "a(" * (size // 2),
    "blanks": lambda size: " " * size,
    "a column and blanks": lambda size: "a" + " " * size + "!",
    "words that are no comparison": lambda size: "in" * (size // 2),
    "quotes": lambda size: '"' * size,
    "commas and brackets": lambda size: ",[" * (size // 2),
    "clocks": lambda size: "12:00:00." * (size // 9),
    "deep lists": lambda size: "[" * size,
    "escapes": lambda size: '"' + "\\" * size,
}


def _read(text: str) -> None:
    """By all that reads text of users."""
    readers: list[Callable[[], object]] = [
        lambda: conditions.literal(text), lambda: conditions.condition(text, {}),
        lambda: conditions.condition(f"a in {text}", {}), lambda: conditions.aggregates([text]),
        lambda: conditions.days(text), lambda: conditions.names(text), lambda: scanning.length_of_time(text, UNITS),
        lambda: scanning.json_value(text), lambda: scanning.outside_brackets(text),
        lambda: times.moment(text, times.timestamp("t"), "start"), lambda: times.duration_ns(text, "interval"),
    ]  # fmt: skip
    for reader in readers:
        with suppress(ct.InvalidInputError, ValueError):
            reader()


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_time_of_hostile_text_grows_no_faster_than_its_length(kind: str) -> None:
    def seconds(size: int) -> float:
        text = HOSTILE[kind](size)
        found = []
        for _ in range(3):
            began = time.process_time()
            _read(text)
            found.append(time.process_time() - began)
        return min(found)

    # Sixteen times the text may take sixteen times the time, with room for what a busy machine adds; by squares it
    # would be 256 times.
    small, large = seconds(4_000), seconds(64_000)
    assert large < 64 * small + 0.05, f"{small:.6f} s, then {large:.6f} s"


def test_messages_show_the_beginning_of_a_long_text() -> None:
    with pytest.raises(ct.InvalidInputError) as refused:
        conditions.condition("x" * 60_000, {})
    assert len(str(refused.value)) < 400
    assert "60,000 characters" in str(refused.value)
