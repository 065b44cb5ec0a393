"""Short texts of users: what is read, what is refused, and that no text takes long."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import conditions, scanning, times, urls
from chronotile.apdb import names
from chronotile.cli import common
from chronotile.cli.define import schema_of_text
from chronotile.jobs import parsing, swf

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
@example("+5")
@example("-5e-3")
@example("5e")
def test_numbers_are_what_the_grammar_says(text: str) -> None:
    assert scanning.is_number(text) is (NUMBER.fullmatch(text) is not None)


@given(lengths)
@example("5ms")
@example("5 m")
@example("5w")
@example("5h")
@example("5s")
@example("9" * 18 + "d")
@example("9" * 19 + "d")
@example("-1d")
def test_lengths_of_time_are_what_the_grammar_says(text: str) -> None:
    found = LENGTH.fullmatch(text)
    length = int(found[1]) * UNITS[found[2]] if found else None
    assert scanning.length_of_time(text, UNITS) == length
    assert scanning.length_of_time(text) == (None if found and found[2] in ("ms", "us", "ns") else length)


@given(st.lists(pieces, max_size=7).map("".join))
@example('a"in')
@example('"a"in')
@example("a inn 1")
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


@pytest.mark.parametrize(
    ("reader", "text", "chars_max"),
    [
        (lambda text: scanning.is_number(text) or None, "1", 400),
        (lambda text: scanning.length_of_time(text, UNITS), "1d", 400),
        (scanning.call, "sum(a)", 65_536),
        (scanning.comparison, "a<1", 65_536),
    ],
)
def test_texts_have_a_longest_length(reader: Callable[[str], object], text: str, chars_max: int) -> None:
    padding = "0" if text == "1" else " "
    assert reader(padding * (chars_max - len(text)) + text) == reader(text)
    assert reader(padding * (chars_max - len(text) + 1) + text) is None
    assert scanning.is_number("1" * 401) is False


def test_whole_numbers_have_as_many_digits_as_asked_for() -> None:
    assert [scanning.whole_number(text, 3) for text in ("123", "-123", "+123", "1234", "--1", "1.", "")] == [
        123, -123, 123, None, None, None, None,
    ]  # fmt: skip


_JSON = st.recursive(
    st.one_of(st.none(), st.integers(), st.text('[{\\"]}', max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text('["', max_size=2), inner, max_size=2)),
    max_leaves=12,
)


@given(_JSON, st.integers(0, 34))
def test_json_is_read_as_deep_as_32_lists_and_objects(value: object, wrapped: int) -> None:
    def depth(each: object) -> int:
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    for at in range(wrapped):
        value = [value, []] if at % 2 else [[], "]", value]
    if depth(value) <= 32:
        assert scanning.json_value(json.dumps(value)) == value
    else:
        with pytest.raises(ValueError, match="nested more than 32 deep"):
            scanning.json_value(json.dumps(value))


@pytest.mark.parametrize(("digits", "kind"), [(39, int), (40, int), (41, float)])
def test_whole_numbers_of_json_have_40_digits_at_most(digits: int, kind: type) -> None:
    (value,) = scanning.json_value(b"[" + b"9" * digits + b"]")
    assert type(value) is kind
    assert value == kind("9" * digits)


def test_json_has_a_bound_of_nesting_and_of_digits() -> None:
    for text in ("[" * 33 + "]" * 33, '{"a":' * 40_000, "[" * 1_000_000):
        with pytest.raises(ValueError, match="nested"):
            scanning.json_value(text)
    assert scanning.json_value('["' + "[" * 1_000 + '\\"[[", 1]') == ["[" * 1_000 + '"[[', 1]
    assert scanning.json_value("[" + "9" * 5_000 + "]") == [float("inf")]
    assert scanning.json_value("[" + "9" * 30 + "]") == [int("9" * 30)]


def test_columns_may_have_commas_within_brackets() -> None:
    schema = schema_of_text("a:int64, t:timestamp[us, UTC],b:list<struct<x: int32, y: utf8>>")
    assert [name for name, *_ in schema.columns()] == ["a", "t", "b"]
    assert scanning.outside_brackets("(a,b),c") == ["(a,b)", "c"]
    assert scanning.outside_brackets("[a,<b,c>,d],e") == ["[a,<b,c>,d]", "e"]
    assert scanning.outside_brackets("a),b") == ["a)", "b"], "too many brackets close nothing"


SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
DATASET = re.compile(r"[a-z][a-z0-9_]{0,47}")
PARAMETER = re.compile(r"([?&;][^=&;]*(?:password|passwd|secret|token)=)[^&;]*", re.IGNORECASE)


@given(st.text("aA1:+-._é/ ", max_size=6) | st.text("ab1_", min_size=47, max_size=49))
def test_schemes_and_names_of_datasets_are_what_the_grammar_says(text: str) -> None:
    assert urls.has_scheme(text) == (SCHEME.match(text) is not None)
    assert common._may_be_dataset(text) == (DATASET.fullmatch(text) is not None)


@given(st.lists(st.sampled_from(["?", "&", ";", "=", "password", "Token", "a", "passwd", "secret", "/"])).map("".join))
@example("?a?token=b=c?secret=d;e=f")
def test_parameters_with_passwords_are_what_the_grammar_says(text: str) -> None:
    assert urls.without_password(text) == PARAMETER.sub(r"\1***", text)


@given(st.text("aB1_Cdé É", max_size=8))
@example("DiaForcedSource")
@example("SSObject")
def test_names_of_tables_become_words(text: str) -> None:
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text))
    assert names.dataset_name(text) == words.lower()


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
    "question marks": lambda size: "?" * size,
    "parameters": lambda size: "?password" * (size // 9),
    "equal signs": lambda size: "=" * size,
    "capitals": lambda size: "A" * size,
    "comments": lambda size: ";\n" * (size // 2) + "UnixStartTime:" + " " * size,
    "numbers of columns": lambda size: "column #" + "1" * size + ": ",
}


def _read(text: str) -> None:
    """By all that reads text of users."""
    readers: list[Callable[[], object]] = [
        lambda: conditions.literal(text), lambda: conditions.condition(text, {}),
        lambda: conditions.condition(f"a in {text}", {}), lambda: conditions.aggregates([text]),
        lambda: conditions.days(text), lambda: conditions.names(text), lambda: scanning.length_of_time(text, UNITS),
        lambda: scanning.json_value(text), lambda: scanning.outside_brackets(text),
        lambda: times.moment(text, times.timestamp("t"), "start"), lambda: times.duration_ns(text, "interval"),
        lambda: urls.without_password(f"x://h/?{text}"), lambda: urls.has_scheme(text),
        lambda: common.Target((text,), "a.db", dataset=True, optional=True, rest=None),
        lambda: names.dataset_name(text), lambda: swf.start_of(f"; {text}".encode(), "a.swf"),
        lambda: parsing._reason(ValueError(text), ["a"]),
    ]  # fmt: skip
    for reader in readers:
        with suppress(ct.InvalidInputError, ct.DataFileError, ValueError):
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
    assert scanning.shown("x" * 100) == repr("x" * 100)
    assert scanning.shown("x" * 101) == repr("x" * 100) + "... (101 characters)"
    with pytest.raises(ct.InvalidInputError) as refused:
        conditions.condition("x" * 60_000, {})
    assert len(str(refused.value)) < 400
    assert "60,000 characters" in str(refused.value)
