"""Messages of syslog, as the standards write them, and guesses of what rejected lines are."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
import pyarrow as pa

from chronotile.events import guessing, syslog
from chronotile.events.parsing import ReadOptions, Reject

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=6).filter(lambda w: w != "-")
NAMES = st.text("abcXYZ019_@", min_size=1, max_size=6)
VALUES = st.text('"\\] aé=\n', max_size=5)
ELEMENTS = st.lists(st.tuples(NAMES, st.lists(st.tuples(NAMES, VALUES), max_size=2)), min_size=1, max_size=2)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1))
MESSAGES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
BOM = "\ufeff"


def parsed(text: str, year: int | None = None) -> tuple[datetime | None, dict[str, str | None], bool]:
    times, fields, sound = syslog.parts(pa.array(["no message", text, None]), year)
    assert sound.to_pylist()[0] is False
    assert set(fields) == set(syslog.SYSLOG_FIELDS)
    assert {array.type for array in fields.values()} == {pa.utf8()}
    return times.to_pylist()[1], {name: array.to_pylist()[1] for name, array in fields.items()}, sound.to_pylist()[1]


def element(name: str, values: list[tuple[str, str]]) -> str:
    escaped = [(key, "".join(f"\\{c}" if c in '"\\]' else c for c in value)) for key, value in values]
    return "[" + " ".join([name, *(f'{key}="{value}"' for key, value in escaped)]) + "]"


@settings(max_examples=40)
@given(st.integers(0, 999), st.integers(1, 999), MOMENTS | st.none(), *[WORDS | st.none()] * 4,
       ELEMENTS | st.none(), MESSAGES | st.none(), st.booleans())  # fmt: skip
@example(191, 1, None, "h", "a", "p", "m", None, "", False)
@example(192, 1, None, "h", "a", "p", "m", None, "", False)
def test_messages_of_rfc_5424(
    priority: int, version: int, moment: datetime | None, host: str | None, app: str | None, procid: str | None,
    msgid: str | None, elements: list[Any] | None, message: str | None, marked: bool,
) -> None:  # fmt: skip
    data = None if elements is None else "".join(element(*each) for each in elements)
    header = [None if moment is None else f"{moment.isoformat()}Z", host, app, procid, msgid, data]
    words = " ".join("-" if each is None else each for each in header)
    text = f"<{priority}>{version} {words}" + ("" if message is None else f" {BOM if marked else ''}{message}")
    found, fields, sound = parsed(text)
    assert sound is (priority <= 191)
    assert found == (None if moment is None else moment.replace(tzinfo=UTC))
    if message is not None and not marked and message.startswith(BOM):
        message = message[1:]
    assert fields == {
        "facility": str(priority // 8), "severity": str(priority % 8), "host": host, "app": app, "procid": procid,
        "msgid": msgid, "structured_data": data, "message": message or (None if message is None or not marked else ""),
    }  # fmt: skip


@settings(max_examples=40)
@given(st.integers(0, 999) | st.none(), MOMENTS, st.booleans(), WORDS | st.just("-"), NAMES | st.none(),
       st.text("ab1 -", max_size=4) | st.none(), st.text("abc é-\n", min_size=1, max_size=8))  # fmt: skip
@example(191, datetime(2026, 1, 1), True, "h", "a", "1", "m")
@example(192, datetime(2026, 1, 1), True, "h", "a", "1", "m")
def test_messages_of_rfc_3164(
    priority: int | None, moment: datetime, iso: bool, host: str, app: str | None, procid: str | None, message: str
) -> None:
    moment = moment.replace(microsecond=0)
    month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][moment.month - 1]
    time = f"{moment.isoformat()}Z" if iso else f"{month} {moment.day:>2} {moment:%H:%M:%S}"
    tag = "" if app is None else f"{app}: " if procid is None else f"{app}[{procid}]: "
    begin = "" if priority is None else f"<{priority}>"
    found, fields, sound = parsed(f"{begin}{time} {host} {tag}{message}", moment.year)
    assert sound is (priority is None or priority <= 191)
    assert found == moment.replace(tzinfo=UTC)
    assert fields == {
        "facility": None if priority is None else str(priority // 8),
        "severity": None if priority is None else str(priority % 8),
        # A dash is no sign for nothing here.
        "host": host, "app": app, "procid": None if app is None else procid or None, "msgid": None,
        "structured_data": None, "message": message,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "<34>0 - h a p m -", "<34>1000 - h a p m -", "<34>01 - h a p m -", "<1234>1 - h a p m -", "<34>1 - h a p m",
        "<34>1 - h a p m x", "<34>1 - h a p m [", "<34>1 - h a p m [a]x", '<34>1 - h a p m [a b="]"]', "<34>1 - h a",
        "jan  1 00:00:00 h m", "Jan 1 00:00:00 h m", "<x>Jan  1 00:00:00 h m", "Jan  1 00:00:00 h", "",
    ],
)  # fmt: skip
def test_what_is_no_message_is_not_sound(text: str) -> None:
    assert parsed(text)[2] is False


# ---------------------------------------------------------------- guesses

SYSLOG_LINE = "Jan  1 00:00:04 web2 last message repeated 2 times"
NOW = {"epoch_s": 1_767_225_600, "epoch_ms": 1_767_225_600_000, "epoch_us": 1_767_225_600_000_000,
       "epoch_ns": 1_767_225_600_000_000_000}  # fmt: skip


def guessed(lines: list[Any], **options: Any) -> guessing.Guess | None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    rejects = [Reject(at, "a reason", text.encode()) for at, text in enumerate(texts, 1)]
    return guessing.guess(rejects, ReadOptions(**options))


def test_more_than_half_of_the_lines_make_a_guess() -> None:
    for good, found in ((SYSLOG_LINE, "syslog"), ({"time": "2026-01-31"}, "JSON with the time in 'time'")):
        for lines, is_known in (([good, good, "x"], True), ([good, "x"], False), ([good], True), (["x"], False)):
            guess = guessed(lines, format="lines")
            assert (guess and guess.what) == (found if is_known else None)
    assert guessed([]) is None


def test_lines_of_syslog_are_known_by_their_form_and_time() -> None:
    assert guessed([SYSLOG_LINE]) == guessing.Guess("syslog", {"format": "syslog"})
    assert guessed([SYSLOG_LINE + "\r"]) == guessing.Guess("syslog", {"format": "syslog"})
    assert guessed([SYSLOG_LINE], format="syslog") is None, "it is what was used"
    assert guessed(["<34>1 - web1 a - - - no time"]) is None
    # Of each of two ways to be no message, one line.
    assert guessed(["<192>" + SYSLOG_LINE, SYSLOG_LINE, "<34>1 - web1 a - - - no time"]) is None
    assert guessed(["Feb 29 00:00:04 web2 x"], year=2026) is None
    assert guessed(["Feb 29 00:00:04 web2 x"], year=2024) is not None


@pytest.mark.parametrize("name", guessing._TIMES)
def test_the_time_of_json_is_known_by_its_name(name: str) -> None:
    fields = {} if name == "time" else {"time_field": name}
    lines = [{"a": 1, name: "2026-01-31T12:00:00Z"}] * 2
    assert guessed(lines, format="lines") == guessing.Guess(
        f"JSON with the time in {name!r}", {"format": "ndjson", **fields}
    )
    found = guessed(lines)
    assert found == (guessing.Guess(f"JSON with the time in {name!r}", fields) if fields else None)
    assert guessed(lines, time_field=name) is None, "it is what was used"
    assert guessed(lines, format="syslog", time_field=name) is not None
    # Every line has to have it; of several, the likeliest counts.
    assert guessed([*lines, {"a": 1}]) is None
    everything = dict.fromkeys(guessing._TIMES, "2026-01-31")
    later = guessing._TIMES[guessing._TIMES.index(name) :]
    found = guessed([{each: everything[each] for each in reversed(later)}], format="lines")
    assert found is not None
    assert found.settings.get("time_field", "time") == name


@pytest.mark.parametrize(("form", "number"), NOW.items())
def test_numbers_are_times_in_the_unit_that_makes_them_present(form: str, number: int) -> None:
    for value in (number, float(number), 10 ** (len(str(number)) - 2)):
        assert guessed([{"time": value}]) == guessing.Guess("JSON with the time in 'time'", {"time_format": form})
        assert guessed([{"ts": value}], format="lines") == guessing.Guess(
            "JSON with the time in 'ts'", {"format": "ndjson", "time_field": "ts", "time_format": form}
        )
    assert guessed([{"time": number}], time_format=form) is None, "it is what was used"
    least = 10 ** (len(str(number)) - 2)
    below = guessed([{"time": least - 1}])
    assert below is None or below.settings["time_format"] != form


@pytest.mark.parametrize("value", ["soon", 99_999_999, -1, True, None, [1], {}])
def test_what_is_no_time_leaves_json_alone(value: Any) -> None:
    assert guessed([{"time": value}]) is None
    assert guessed([{"time": value}], format="lines") == guessing.Guess("JSON", {"format": "ndjson"})
    assert guessed([{"a": 1}], format="syslog") == guessing.Guess("JSON", {"format": "ndjson"})


def test_the_first_time_tells_the_format() -> None:
    text, number = "2026-01-31", NOW["epoch_ms"]
    for first, second, fields in ((text, number, {}), (number, text, {"time_format": "epoch_ms"})):
        found = guessed([{"time": first}, {"time": second}], format="lines")
        assert found is not None
        assert found.settings == {"format": "ndjson", **fields}


def test_lists_and_deep_text_are_no_objects() -> None:
    assert guessed([[1], [2]], format="lines") is None
    assert guessed(["[" * 100_000], format="lines") is None
    assert guessed(["[" * 60_000, "{}", "{}"], format="lines") == guessing.Guess("JSON", {"format": "ndjson"})


def test_fifty_lines_are_looked_at_and_none_that_is_long() -> None:
    asked = 0

    def rejects() -> Any:
        nonlocal asked
        for asked in range(1, 200):
            yield Reject(asked, "a reason", SYSLOG_LINE.encode() if asked <= 26 else b"x")

    assert guessing.guess(rejects(), ReadOptions()) is not None
    assert asked <= 51
    few = [Reject(at, "a reason", SYSLOG_LINE.encode() if at < 25 else b"x") for at in range(50)]
    assert guessing.guess(few, ReadOptions()) is None, "25 of 50 are no more than half"
    longest = SYSLOG_LINE + "x" * (65_536 - len(SYSLOG_LINE))
    assert guessed([longest]) is not None
    assert guessed([longest + "x"]) is None
    assert guessed([b"\xff".decode("latin-1")]) is None


def test_a_guess_is_shown_as_options() -> None:
    found = guessed([{"ts": NOW["epoch_ms"]}], format="lines")
    assert found is not None
    assert found.options == "--format ndjson --time-field ts --time-format epoch_ms"
    assert dataclasses.replace(found, settings={}).options == ""
