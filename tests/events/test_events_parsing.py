"""Lines of text as documents: what each line becomes, and why a line is rejected."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
import pyarrow as pa

import chronotile as ct
from chronotile.events import parsing
from chronotile.events.parsing import Documents, Field, ReadOptions

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
TIME = '"time": "2026-01-01"'
GOOD = f"{{{TIME}}}"
MIB = 1 << 20


def fields_of(types: Mapping[str, pa.DataType]) -> list[Field]:
    """Fields in columns named by their paths."""
    return [Field(path.replace(".", "_"), path, kind) for path, kind in types.items()]


def parse(
    text: str | bytes, types: Mapping[str, pa.DataType] | None = None, *, first: int = 1, **options: Any
) -> Documents:
    """Parse lines; documents are of one stream unless the options say otherwise."""
    given = ReadOptions(**({"stream": "s"} | options))
    return parsing.parse(text.encode() if isinstance(text, str) else text, first, given, fields_of(types or {}))


def reasons(documents: Documents) -> dict[int, str]:
    return {reject.line: reject.reason for reject in documents.rejects.kept}


def values(documents: Documents, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(documents.table[name].to_pylist() for name in columns), strict=True))


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (GOOD, {}),
        ("2026-01-01T00:00:00Z h app: m", {"format": "syslog"}),
        ("2026-01-01 m", {"format": "lines", "pattern": r"^(?P<time>\S+)"}),
    ],
    ids=["ndjson", "syslog", "lines"],
)
def test_a_byte_order_mark_before_the_first_line_is_no_part_of_it(line: str, options: dict[str, str]) -> None:
    found = parse(f"\ufeff{line}\n{line}", **options)
    assert values(found, "line", "body", "time") == [(number, line, FIRST) for number in (1, 2)]
    # In a later line it is text, as it is in a later part of a file.
    assert parse(f"{line}\n\ufeff{line}", **options).table.num_rows == 1
    assert parse(f"\ufeff{line}", first=2, **options).table.num_rows == 0


def test_a_line_is_a_document_with_its_number_and_size_blank_or_rejected() -> None:
    lines = [GOOD, "", "bad", " \t\r\x00", '{"time": "2026-01-02", "x": "é"}\r', ""]
    found = parse("\n".join(lines), first=10)
    assert values(found, "line", "body", "body_bytes", "stream") == [
        (10, GOOD, len(GOOD), "s"), (14, lines[4], len(lines[4]) + 1, "s"),
    ]  # fmt: skip
    assert found.table["time"].to_pylist() == [FIRST, FIRST.replace(day=2)]
    assert (found.blank, found.rejects.count, reasons(found)) == (2, 1, {12: "the line is not a JSON object"})
    assert found.rejects.kept[0].record == b"bad"


@pytest.mark.parametrize("format", ["ndjson", "lines"])
@pytest.mark.parametrize("text", ["", "\n", "\n\n \n"])
def test_text_without_documents_has_all_columns(text: str, format: str) -> None:
    found = parse(text, {"a.b": pa.int32(), "t": pa.timestamp("us")}, format=format, pattern="(?P<time>.*) (?P<t>.*)")
    assert (found.table.num_rows, found.blank, found.rejects.count) == (0, text.count("\n"), 0)
    assert {field.name: str(field.type) for field in found.table.schema} == {
        "time": "timestamp[us, tz=UTC]", "stream": "string", "a_b": "int32", "t": "timestamp[us]", "body": "string",
        "body_bytes": "int64", "line": "int64",
    }  # fmt: skip


def test_blocks_are_whole_lines_of_a_bounded_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"123456789\n" * 10
    for size, lines, lengths in (
        (40, 99, [40, 40, 20]), (41, 99, [50, 50]), (1, 99, [10] * 10), (99, 99, [100]),
        (40, 4, [40, 40, 20]), (40, 3, [20] * 5), (40, 2, [20] * 5), (40, 1, [10] * 10), (1_000, 99, [100]),
    ):  # fmt: skip
        monkeypatch.setattr(parsing, "_BLOCK_BYTES", size)
        monkeypatch.setattr(parsing, "_BLOCK_LINES", lines)
        assert [len(block) for block in itertools.islice(parsing._blocks(text), 99)] == lengths
        assert b"".join(parsing._blocks(text + b"end")) == text + b"end"
    assert list(parsing._blocks(b"")) == []


LINES = st.lists(st.sampled_from([GOOD, "", "bad", '{"time": }', f'{{{TIME}, "n": 5}}', f'{{{TIME}, "n": "x"}}', " "]))


@settings(max_examples=20)
@given(LINES, st.integers(1, 60), st.integers(1, 3), st.booleans())
def test_documents_do_not_depend_on_the_size_of_blocks(lines: list[str], size: int, count: int, ended: bool) -> None:
    text = "\n".join(lines) + "\n" * ended
    kinds = {"n": pa.int64()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsing, "_BLOCK_BYTES", size)
        patched.setattr(parsing, "_BLOCK_LINES", count)
        parts = parse(text, kinds, first=5)
    whole = parse(text, kinds, first=5)
    assert parts.table.equals(whole.table)
    assert parts.blank == whole.blank
    assert parts.rejects == whole.rejects


# ---------------------------------------------------------------- rejected lines


def test_what_is_kept_of_rejected_lines_is_bounded() -> None:
    count = parsing.REJECTS_MAX + 2
    found = parse(f"bad\n{GOOD}\n" * count)
    assert (found.table.num_rows, found.rejects.count) == (count, count)
    assert found.rejects.reasons == {"the line is not a JSON object": count}
    assert [reject.line for reject in found.rejects.kept] == list(range(1, 20_001, 2))


@pytest.mark.parametrize(
    ("sizes", "kept"), [([6, 6, 6, 6], [6, 6, 4]), ([8, 8, 1], [8, 8]), ([16, 1], [16]), ([1, 15, 1], [1, 15])], ids=str
)
def test_sixteen_mebibytes_of_rejected_lines_are_kept(sizes: list[int], kept: list[int]) -> None:
    found = parse(b"\n".join(b"x" * (size * MIB) for size in sizes))
    assert [len(reject.record) for reject in found.rejects.kept] == [size * MIB for size in kept]
    assert found.rejects.count == len(sizes)
    # One byte of room is left.
    found = parse(b"\n".join([b"x" * (16 * MIB - 1), b"yy", b"z"]))
    assert [reject.record[-1:] for reject in found.rejects.kept] == [b"x", b"y"]
    assert len(found.rejects.kept[1].record) == 1


def test_a_line_has_sixteen_mebibytes_at_most() -> None:
    pattern = "^(?P<time>.{10})"
    longest = "2026-01-01" + "x" * (16 * MIB - 10)
    found = parse(f"{longest}\n{longest}y", format="lines", pattern=pattern)
    assert values(found, "line", "body_bytes") == [(1, 16 * MIB)]
    assert reasons(found) == {2: "the line has 16777217 bytes, more than 16,777,216: truncated"}
    assert found.rejects.kept[0].record == longest.encode()
    text = b"2026-01-01\n2026-01-01x"
    given = ReadOptions("lines", pattern, stream="s")
    short = parsing.parse(text, 1, given, [], line_bytes_max=10)
    assert (short.table["line"].to_pylist(), reasons(short)) == (
        [1],
        {2: "the line has 11 bytes, more than 10: truncated"},
    )


def test_a_hundred_reasons_are_told_apart() -> None:
    many = [f'{{"time": "no {number}"}}' for number in range(102)]
    found = parse("\n".join([*many, many[0], many[101]])).rejects
    assert len(found.reasons) == 101
    assert found.reasons["'time' is not a time: 'no 0'"] == 2
    assert found.reasons["'time' is not a time: 'no 99'"] == 1
    assert found.reasons["other reasons"] == 3
    assert (found.count, sum(found.reasons.values())) == (104, 104)
    assert found.kept[101].reason == "'time' is not a time: 'no 101'"


def test_a_long_value_is_shortened_in_its_reason() -> None:
    found = reasons(parse("\n".join(f'{{"time": "{"x" * count}"}}' for count in (77, 78, 79, 80))))
    assert [reason.removeprefix("'time' is not a time: ") for reason in found.values()] == [
        f"'{'x' * 77}'", f"'{'x' * 78}'", f"'{'x' * 76}...", f"'{'x' * 76}...",
    ]  # fmt: skip


@pytest.mark.parametrize("format", ["ndjson", "lines"])
def test_the_first_reason_of_a_line_is_told(format: str) -> None:
    bad = b'2026-01-01 \xff {"time": 5'
    found = parse(bad + b"\n" + GOOD.encode(), format=format, pattern=r"^(?P<time>\S+) .*$")
    assert reasons(found)[1] == "invalid UTF-8 at byte 12 of the line"
    given = ReadOptions(format, r"^(?P<time>\S+) .*$", stream="s")
    found = parsing.parse(bad, 1, given, [], line_bytes_max=5)
    assert reasons(found) == {1: f"the line has {len(bad)} bytes, more than 5: truncated"}


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "line", ["{", "}", "x", "{}x", "x{}", "[{}]", '{"time": "2026-01-01"', '"time": 1}', "{} x", "x {}", "5"]
)
def test_a_line_is_an_object_with_both_braces(line: str) -> None:
    for text in (line, f" {line}\t", f"\t{line}\r"):
        assert reasons(parse(f"{GOOD}\n{text}\n{GOOD}")) == {2: "the line is not a JSON object"}


def test_white_space_around_an_object_is_no_part_of_it() -> None:
    lines = [f"{GOOD} ", f" {GOOD}", f"\t{GOOD}\r"]
    assert [body for (body,) in values(parse("\n".join(lines)), "body")] == lines


@pytest.mark.parametrize("between", ["", " ", ", ", "\n"])
def test_halves_of_objects_and_several_in_a_line_are_rejected(between: str) -> None:
    two = f'{{"a": {{}}{between}{GOOD}'
    assert parse(f"{two}\n{GOOD}").table["body"].to_pylist() == [GOOD] * (2 if between == "\n" else 1)
    assert reasons(parse(f"{GOOD}\n{GOOD}{GOOD}")) == {2: "the line holds several JSON objects"}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.utf8(), {'"x"': "x", '""': "", "null": None},
         {"1": "is number, declared as string", "true": "is boolean, declared as string",
          "[1]": "is array, declared as string", "{}": "is object, declared as string"}),
        (pa.bool_(), {"true": True, "false": False}, {'"true"': "is string, declared as boolean"}),
        (pa.int64(), {"-5": -5, str(2**63 - 1): 2**63 - 1},
         {'"5"': "is string, declared as number", "true": "is boolean, declared as number", "1.5": "1.5",
          str(2**63): str(2**63), str(2**64): str(2**64), "1e3": "1e3"}),
        (pa.uint64(), {"0": 0, str(2**64 - 1): 2**64 - 1}, {"-1": "-1", str(2**64): str(2**64)}),
        (pa.int8(), {"127": 127}, {"128": "128"}),
        (pa.float64(), {"1": 1.0, "-2.5e3": -2_500.0}, {'"1"': "is string, declared as number",
                                                      "false": "is boolean, declared as number"}),
        (pa.timestamp("us"), {'"2026-01-01T00:00:01"': datetime(2026, 1, 1, 0, 0, 1)},
         {'"soon"': "field 'f': 'soon' is not a valid timestamp[us]", "5": "is number, declared as string"}),
    ],
    ids=str,
)  # fmt: skip
def test_values_of_json_have_the_type_of_their_field(
    kind: pa.DataType, good: dict[str, Any], bad: dict[str, str]
) -> None:
    lines = [f'{{{TIME}, "f": {text}}}' for text in [*good, *bad]]
    found = parse("\n".join([*lines, GOOD]), {"f": kind})
    assert found.table["f"].to_pylist() == [*good.values(), None]
    assert found.table["f"].type == kind
    for reason, says in zip(reasons(found).values(), bad.values(), strict=True):
        assert says in reason
        assert "row" not in reason


def test_a_path_leads_through_objects_or_is_a_name_with_dots() -> None:
    lines = [
        '{%s, "a": {"b": {"c": 1}, "d": "x"}}', '{%s, "a.b": {"c": 2}, "a.d": "y"}',
        '{%s, "a": {"b.c": 3}, "a.d": "z"}',
        '{%s, "a.b.c": 4}', '{%s, "a": {"b": {"c": 5}}, "a.b.c": 6}', '{%s, "a": null}', '{%s, "a": {"b": null}}',
    ]  # fmt: skip
    found = parse("\n".join(line % TIME for line in lines), {"a.b.c": pa.int64(), "a.d": pa.utf8()})
    assert values(found, "a_b_c", "a_d") == [
        (1, "x"), (None, "y"), (3, "z"), (4, None), (5, None), (None, None), (None, None)
    ]  # fmt: skip
    bad = reasons(
        parse('{%s, "a": {"b": {"c": "x"}}}\n{%s, "a": {"b": 5}}\n{%s, "a": []}' % ((TIME,) * 3), {"a.b.c": pa.int64()})
    )
    assert bad == {
        1: "field 'a.b.c' is string, declared as number", 2: "field 'a.b' is number, declared as object",
        3: "field 'a' is array, declared as object",
    }  # fmt: skip


MISFITS = {
    '{%s, "n": "x"}': "field 'n' is string, declared as number",
    '{%s, "n": true}': "field 'n' is boolean, declared as number",
    '{%s, "n": []}': "field 'n' is array, declared as number",
    '{%s, "n": {}}': "field 'n' is object, declared as number",
    '{%s, "s": 5}': "field 's' is number, declared as string",
    '{%s, "s": 5.5}': "field 's' is number, declared as string",
    '{%s, "b": "true"}': "field 'b' is string, declared as boolean",
    '{%s, "b": 1}': "field 'b' is number, declared as boolean",
    '{%s, "o": [5]}': "field 'o' is array, declared as object",
    '{%s, "o": {"p": {"q": "x"}}}': "field 'o.p.q' is string, declared as number",
    '{%s, "o": {"p": 1}}': "field 'o.p' is number, declared as object",
}
"""Lines with a value of another type, and why they are rejected."""
KINDS = {"n": pa.int64(), "s": pa.utf8(), "b": pa.bool_(), "o.p.q": pa.int32(), "f": pa.float64()}


@pytest.mark.parametrize("line", MISFITS)
def test_a_bad_line_is_rejected_for_the_same_reason_alone_and_among_many(line: str) -> None:
    good = f'{{{TIME}, "n": 5, "s": "x", "b": true, "o": {{"p": {{"q": 7}}}}, "f": 1}}'
    nulls = f'{{{TIME}, "n": null, "o": {{"p": null}}, "f": 2.5}}'
    bad = line % TIME
    assert reasons(parse(f"{good}\n{bad}", KINDS)) == {2: MISFITS[line]}
    found = parse("\n".join([good, bad, nulls, GOOD] * 60), KINDS)
    assert reasons(found) == dict.fromkeys(range(2, 241, 4), MISFITS[line])
    assert values(found, "line", "n", "s", "b", "o_p_q", "f") == [
        row for at in range(0, 240, 4)
        for row in ((at + 1, 5, "x", True, 7, 1.0), (at + 3, None, None, None, None, 2.5), (at + 4, *[None] * 5))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"time": }', "invalid JSON: expecting value at character 10"),
        ('{"time" 1}', "invalid JSON: expecting ':' delimiter at character 9"),
        ('{%s, "n": 1.5}', "field 'n': 1.5 does not fit int64"),
        ('{%s, "n": 18446744073709551616}', "field 'n': 18446744073709551616 does not fit int64"),
        ('{%s, "n": -18446744073709551616}', "field 'n': -18446744073709551616 does not fit int64"),
        (f'{{%s, "n": {"1" * 100}}}', f"field 'n': {'1' * 80} does not fit int64"),
        ('{%s, "o": {"p": {"q": 0.5}}}', "field 'o.p.q': 0.5 does not fit int32"),
    ],
)  # fmt: skip
def test_of_many_bad_lines_the_first_are_parsed_alone_and_the_others_read_quickly(line: str, says: str) -> None:
    bad = line % TIME if "%s" in line else line
    found = reasons(parse("\n".join([bad, GOOD] * 200), KINDS))
    assert sorted(found) == list(range(1, 400, 2))
    told = list(found.values())
    assert says not in told[:32]
    assert told[-100:] == [says] * 100


def test_large_numbers_are_good_among_many_bad_lines() -> None:
    kinds = {"n": pa.int64(), "u": pa.uint64()}
    good = f'{{{TIME}, "n": {-(2**63)}, "u": {2**64 - 1}}}\n{{{TIME}, "n": 129, "u": {2**63}}}'
    found = parse("\n".join([f'{{{TIME}, "n": 1.5}}', good] * 100), kinds)
    assert values(found, "n", "u") == [(-(2**63), 2**64 - 1), (129, 2**63)] * 100


@pytest.mark.parametrize("number", ["1e39", "-1e39", "3.5e38", "1e999"])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_number_out_of_the_range_of_its_field_is_rejected(kind: pa.DataType, number: str) -> None:
    fits = kind == pa.float64() and number != "1e999"
    for text in (f'{{{TIME}, "f": {number}}}', "\n".join([f'{{{TIME}, "f": {number}}}', '{"time": }'] * 50)):
        found = parse(text, {"f": kind})
        assert found.table["f"].to_pylist() == [float(number)] * (1 + text.count("\n") // 2 if fits else 0), text[:90]


@pytest.mark.parametrize(("count", "alone"), [(512, 32), (496, 33)])
def test_lines_are_parsed_alone_in_sixteenths_until_thirty_two_are_bad(count: int, alone: int) -> None:
    found = list(reasons(parse('{"time": }\n' * count)).values())
    assert found.index("invalid JSON: expecting value at character 10") == alone


@pytest.mark.parametrize(
    "line", ['{%s, "n": 18446744073709551615}', '{%s, "n": -18446744073709551615}', '{%s, "n": 9223372036854775808}',
             '{%s}{%s}', '{%s, "f": 1e999}', '{%s, "s": "\\ud800"}', '{%s, "x": %s}'],
)  # fmt: skip
def test_bad_lines_that_only_the_parser_can_tell_are_rejected_among_many(line: str) -> None:
    deep = "[" * 2_000 + "]" * 2_000
    bad = line.replace("%s", TIME, 1).replace("%s", TIME if "}{" in line else deep)
    one = reasons(parse(bad, KINDS))
    found = parse("\n".join([bad, GOOD] * 50), KINDS)
    assert found.table["line"].to_pylist() == (list(range(2, 101, 2)) if one else list(range(1, 101)))
    assert sorted(reasons(found)) == (list(range(1, 100, 2)) if one else [])


@pytest.mark.parametrize(
    ("time_format", "written", "microsecond"),
    [
        ("epoch_s", "1767225600.25", 250_000), ("epoch_s", "1767225600", 0), ("epoch_ms", "1767225600007", 7_000),
        ("epoch_us", "1767225600000001", 1), ("epoch_ns", "1767225600000001999", 1),
        ("iso8601", '"2026-01-01T00:00:00.5Z"', 500_000), ("%Y", '"2026"', 0), ("%m-%d", '"01-01"', 0),
    ],
)  # fmt: skip
def test_the_time_is_a_field_too_where_it_is_declared(time_format: str, written: str, microsecond: int) -> None:
    lines = f'{{"at": {{"t": {written}}}}}\n{{"at": {{}}}}'
    options = {"time_field": "at.t", "time_format": time_format, "year": 2026}
    kinds = {"at.t": pa.timestamp("us", "UTC")}
    parsing.check(ReadOptions(**options), fields_of(kinds))  # type: ignore[arg-type]
    if time_format in ("%Y", "%m-%d"):
        kinds = {"at.t": pa.utf8()}
    found = parse(lines, kinds, **options)
    moment = FIRST.replace(microsecond=microsecond)
    assert values(found, "time", "at_t") == [(moment, written.strip('"') if kinds["at.t"] == pa.utf8() else moment)]
    assert reasons(found) == {2: "'at.t' is missing: every document needs a time"}
    seconds = parse(lines, {"at.t": pa.timestamp("s")}, **options) if kinds["at.t"] != pa.utf8() else found
    assert seconds.table.num_rows == 1


@pytest.mark.parametrize(
    ("time_format", "kind", "says"),
    [
        ("epoch_s", pa.float64(), None), ("epoch_ms", pa.int64(), None), ("epoch_ms", pa.timestamp("s"), None),
        ("iso8601", pa.utf8(), None), ("iso8601", pa.timestamp("ms"), None),
        ("epoch_s", pa.int64(), "read as epoch_s: declare it as float64 or a timestamp"),
        ("epoch_ms", pa.utf8(), "read as epoch_ms: declare it as int64 or a timestamp"),
        ("epoch_ns", pa.float64(), "read as epoch_ns: declare it as int64 or a timestamp"),
    ],
)  # fmt: skip
def test_a_field_that_is_the_time_has_a_type_of_the_time(time_format: str, kind: pa.DataType, says: str | None) -> None:
    options = ReadOptions(time_format=time_format, stream="s")
    fields = [Field("a", "a", pa.bool_()), Field("t", "time", kind)]
    if says is not None:
        with pytest.raises(ct.InvalidInputError, match=f"field 't' is the time, {says}"):
            parsing.check(options, fields)
        return
    parsing.check(options, fields)
    written = '"2026-01-01"' if time_format == "iso8601" else "1767225600"
    found = parsing.parse(f'{{"time": {written}}}'.encode(), 1, options, fields)
    assert found.table["t"].type == kind
    assert found.table["t"].null_count == found.rejects.count == 0


@pytest.mark.parametrize("stream", [None, "other"])
def test_a_document_without_a_stream_is_of_the_given_one(stream: str | None) -> None:
    lines = ['{%s, "h": {"n": "a"}}', '{%s, "h": {"n": ""}}', '{%s, "h": null}', "{%s}", '{%s, "h": {"n": 5}}']
    text = "\n".join(line % TIME for line in lines)
    found = parse(text, {"h.n": pa.utf8()}, stream_field="h.n", stream=stream)
    known = [(1, "a", "a"), (2, "other", ""), (3, "other", None), (4, "other", None)]
    assert values(found, "line", "stream", "h_n") == known[: None if stream else 1]
    told = {5: "field 'h.n' is number, declared as string"}
    assert reasons(found) == told | ({} if stream else dict.fromkeys((2, 3, 4), "'h.n' names no stream"))
    undeclared = parse(text, stream_field="h.n", stream=stream)
    assert values(undeclared, "line", "stream") == [row[:2] for row in known[: None if stream else 1]]
    assert reasons(undeclared) == reasons(found)
    nameless = parse(f"{GOOD}\nbad", stream=stream)
    assert nameless.table["stream"].to_pylist() == ([stream] if stream else [])
    assert nameless.table["stream"].type == pa.utf8()
    assert reasons(nameless) == {} | ({} if stream else {1: "the line names no stream"}) | {
        2: "the line is not a JSON object"
    }


# ---------------------------------------------------------------- text


def lines_of(text: str, kind: pa.DataType) -> Documents:
    """Parse lines of a time, and one field behind it."""
    return parse(text, {"f": kind}, format="lines", pattern=r"^(?P<time>\S*) ?(?P<f>.*)$")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.utf8(), {"x y": "x y", "": None}, []),
        (pa.int32(), {"5": 5, "+5": 5, "-5": -5, "007": 7, "": None, str(2**31 - 1): 2**31 - 1},
         ["x", "5.0", "+-5", "++5", "5 ", str(2**31), "1" * 20, "1" * 21]),
        (pa.uint64(), {"0": 0, str(2**64 - 1): 2**64 - 1}, ["-1", str(2**64)]),
        (pa.float64(), {"1": 1.0, "+1.": 1.0, "-.5": -0.5, "1e3": 1_000.0, "2.5E-1": 0.25, "": None},
         ["x", "nan", "inf", ".", "1e", "1e999", "-1e999"]),
        (pa.float32(), {"0.5": 0.5}, ["1e39", "0x1"]),
        (pa.bool_(), {"true": True, "false": False, "": None}, ["True", "1", "yes"]),
        (pa.timestamp("ms"), {"2026-01-01T00:00:00.0019": datetime(2026, 1, 1, 0, 0, 0, 1_000), "": None}, ["x", "5"]),
    ],
    ids=str,
)  # fmt: skip
def test_fields_of_text_are_converted_or_the_line_is_rejected(
    kind: pa.DataType, good: dict[str, Any], bad: list[str]
) -> None:
    for texts in ([*good], [*good, *bad]):
        found = lines_of("\n".join(f"2026-01-01 {text}" for text in texts), kind)
        assert found.table["f"].to_pylist() == list(good.values())
        assert found.table["f"].type == kind
    first = len(good) + 1
    assert reasons(found) == {at: f"field 'f': {text!r} is not a valid {kind}" for at, text in enumerate(bad, first)}


def test_lines_of_a_pattern_have_its_groups() -> None:
    pattern = r"^(?P<time>\S*) (?P<stream>\S*) (?P<other>\S*) (?P<n>\d*)$"
    text = "2026-01-01 a b 5\n2026-01-01  c \r\n2026-01-01 d  6\n a b 7\nsoon a b 8\nnothing\n2026-01-01 e f 9x"
    kinds = {"n": pa.int8(), "no.group": pa.int64()}
    found = parse(text, kinds, format="lines", pattern=pattern)
    assert values(found, "line", "stream", "n", "no_group") == [
        (1, "a", 5, None),
        (2, "s", None, None),
        (3, "d", 6, None),
    ]
    assert found.table["no_group"].type == pa.int64()
    assert reasons(found) == {
        4: "'time' is missing: every document needs a time", 5: "'time' is not a time: 'soon'",
        6: "the line does not match the pattern", 7: "the line does not match the pattern",
    }  # fmt: skip
    other = parse(text, kinds, format="lines", pattern=pattern, stream_field="other", stream=None)
    assert values(other, "line", "stream") == [(1, "b"), (2, "c")]
    assert reasons(other)[3] == "'other' names no stream"
    alone = parse("2026-01-01 a", format="lines", pattern=r"^(?P<time>\S*) .*$", stream=None)
    assert reasons(alone) == {1: "the line names no stream"}
    formatted = parse("01.02.26 x", format="lines", pattern=r"^(?P<time>\S*) .*$", time_format="%d.%m.%y")
    assert formatted.table["time"].to_pylist() == [FIRST.replace(month=2)]
    year = parse("01.02. x", format="lines", pattern=r"^(?P<time>\S*) .*$", time_format="%d.%m.", year=2020)
    assert year.table["time"].to_pylist() == [FIRST.replace(year=2020, month=2)]


def test_lines_of_syslog_have_its_parts() -> None:
    text = (
        "<13>Jan  1 00:00:03 web2 su[5]: failed\r\n<34>1 2026-01-01T00:00:02Z - app - - -\nhello\n"
        "<34>1 - web1 a - - - no time"
    )
    kinds = {"app": pa.utf8(), "message": pa.utf8(), "severity": pa.int32(), "none": pa.bool_()}
    found = parse(text, kinds, format="syslog", year=2026, stream_field="host")
    assert values(found, "line", "stream", "app", "message", "severity", "none") == [
        (1, "web2", "su", "failed", 5, None), (2, "s", "app", None, 2, None),
    ]  # fmt: skip
    assert found.table["time"].to_pylist() == [FIRST.replace(second=3), FIRST.replace(second=2)]
    assert found.table["body"].to_pylist()[0].endswith("failed\r")
    assert reasons(found) == {
        3: "the line is not a syslog message", 4: "'time' is not a time: '<34>1 - web1 a - - - no time'",
    }  # fmt: skip
    assert parse(text, format="syslog", year=2026).table["stream"].to_pylist() == ["s", "s"]
    assert reasons(parse(text, format="syslog", year=2026, stream=None))[1] == "the line names no stream"


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({}, {"a": pa.utf8(), "b": pa.int8(), "c": pa.float16(), "d": pa.bool_(), "e": pa.timestamp("ns")}),
        ({"time_field": "a.t", "stream_field": "a.s"}, {"a.b": pa.int64(), "ab": pa.int64()}),
        ({"format": "lines", "pattern": "(?P<time>.*)"}, {"time": pa.utf8(), "time.x": pa.utf8()}),
        ({"format": "lines", "pattern": "(?P<time>.*) (?P<h>.*)", "stream_field": "h"}, {"h": pa.utf8()}),
        ({"format": "syslog", "stream_field": "host"}, {"host": pa.utf8(), "severity": pa.int32()}),
    ],
)
def test_settings_that_work_are_accepted(options: dict[str, Any], types: dict[str, pa.DataType]) -> None:
    parsing.check(ReadOptions(**options), fields_of(types))


@pytest.mark.parametrize(
    ("options", "types", "says"),
    [
        ({}, {"a": pa.int8(), "d": pa.date32()}, "field 'd' has unsupported type date32[day]: use text, numbers, bool"),
        ({"format": "xml"}, {}, "unknown format 'xml': use one of ndjson, syslog, lines"),
        ({"time_format": "rfc"}, {}, "is unknown"),
        ({"format": "lines"}, {}, "format lines needs pattern= (--pattern), a regular expression with a group time"),
        ({"pattern": "(?P<time>.*)"}, {}, "pattern= (--pattern) belongs to format lines, not ndjson"),
        ({"format": "syslog", "pattern": "(?P<time>.*)"}, {}, "belongs to format lines, not syslog"),
        ({"format": "lines", "pattern": "(?P<when>.*)"}, {}, "has no group (?P<time>...)"),
        ({"format": "lines", "pattern": "(?P<time>.*"}, {}, "invalid pattern '(?P<time>.*'"),
        ({"format": "lines", "pattern": "(?P<time>.*)", "stream_field": "h"}, {}, "has no group 'h' for the stream"),
        ({}, {"a": pa.int8(), "a.b": pa.int8()}, "field 'a' is declared both as a value and as an object"),
        ({}, {"time.b": pa.int8()}, "field 'time' is declared both as a value and as an object"),
        ({"stream_field": "a.s"}, {"b": pa.int8(), "a": pa.int8()}, "field 'a' is declared both as a value"),
        ({"stream_field": "a"}, {"a.b": pa.int8()}, "field 'a' is declared both as a value and as an object"),
        ({"stream_field": "a"}, {"b": pa.utf8(), "a": pa.int8()}, "field 'a' names the stream: declare it as utf8"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(
    options: dict[str, Any], types: dict[str, pa.DataType], says: str
) -> None:
    with pytest.raises(ct.InvalidInputError) as error:
        parsing.check(ReadOptions(**options), fields_of(types))
    assert says in str(error.value)
    assert error.value.kind == "invalid-setting"
