"""What a person meets who writes and reads points on the command line for the first time."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
from support_shell import Shell

from chronotile import InvalidInputError, historian

PERIOD = ("--start", "2026-01-01", "--end", "2026-01-02")


@pytest.fixture
def plant(shell: Shell) -> Shell:
    shell.write("points.csv", "tag,time,value\noven.temp,2026-01-01T00:00:00,200\noven.temp,2026-01-01T01:00:00,220\n")
    shell("historian", "write", "plant.db", "points.csv", "--define")
    return shell


def test_a_tag_is_named_by_the_number_that_its_definition_shows(plant: Shell) -> None:
    number = plant.json("historian", "tags", "plant.db")["number"]
    assert number > 10**18
    assert "220.0" in plant("historian", "latest", "plant.db", f"#{number}")
    for wrong in ("#1", "#9223372036854775808", "#99999999999999999999"):
        plant("historian", "latest", "plant.db", wrong, code=3)
        assert "no tag" in plant.errors


def test_qualities_are_written_in_the_words_in_which_they_are_read(plant: Shell) -> None:
    plant.write(
        "words.csv", "tag,time,value,status\noven.temp,2026-01-01,1,Bad\noven.temp,2026-01-01T01:00,2,uncertain\n"
    )
    plant("historian", "write", "plant.db", "words.csv")
    rows = plant("historian", "read", "plant.db", "oven.temp", *PERIOD, "--format", "csv", "--status", "words")
    assert [line.rpartition(",")[2] for line in rows.splitlines()] == ["status", "Bad", "Uncertain"]
    plant.write("again.csv", rows)
    plant("historian", "write", "plant.db", "again.csv")
    assert plant("historian", "read", "plant.db", "oven.temp", *PERIOD, "--format", "csv", "--status", "words") == rows
    plant.write("wrong.csv", "tag,time,value,status\noven.temp,2026-01-01,1,Fine\n")
    plant("historian", "write", "plant.db", "wrong.csv", code=2)
    assert "wrong.csv: unknown status 'Fine': give an OPC UA status code" in plant.errors


@pytest.mark.parametrize(
    "code", [0, 1025, 1029, 0x4000_0000, 0x4090_0000, 0x4090_0405, 0x8000_0000, 0x808C_0000, 0xFFFF_0000]
)
def test_the_words_of_a_status_lead_back_to_it(code: int) -> None:
    assert historian.status_code(historian.status_text(code)) == code
    assert historian.status_code(str(code)) == code


@pytest.mark.parametrize("wrong", ["", "-1", "4294967296", "0x", "0xG", "0x1_0", "Good, Bad", "Good,", "a" * 10_000])
def test_what_is_no_status_is_refused_with_what_is(wrong: str) -> None:
    with pytest.raises(InvalidInputError, match="give an OPC UA status code"):
        historian.status_code(wrong)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("tag,time,value\n", 0, "f.csv: no points in the file"),
        ("tag,time,value\noven.tmp,2026-01-01,1\n", 3,
         'no tag "oven.tmp" (did you mean oven.temp?): correct the name, or pass --define to define unknown tags'),
        ("tag,time,value\noven.temp,01/02/2026 10:00,1\n", 2, "write times as ISO 8601, such as 2026-01-31T12:00:00Z"),
        ("tag,time,value\noven.temp,1767225600,1\n", 2, "write times as ISO 8601, such as 2026-01-31T12:00:00Z"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_stored_says_what_to_do_with_options_of_the_command(
    text: str, code: int, said: str, plant: Shell
) -> None:
    plant("historian", "write", "plant.db", plant.write("f.csv", text), code=code)
    assert said in plant.errors
    assert "--types" not in plant.errors
    assert "--nulls" not in plant.errors


def test_a_batch_that_is_written_again_is_already_stored(plant: Shell) -> None:
    for said in ("2 points stored", "2 points were already stored"):
        plant("historian", "write", "plant.db", "points.csv", "--batch", "b1")
        assert f"points.csv: {said}\n" in plant.errors


def test_a_list_of_no_tags_says_so(plant: Shell) -> None:
    assert plant("historian", "tags", "plant.db", "--name", "mill*") == ""
    assert plant.errors == "no tag matches 'mill*'\n"


def test_a_tag_with_a_dot_is_no_archive_where_the_environment_names_one(plant: Shell) -> None:
    assert "220.0" in plant("historian", "latest", "oven.temp", CHRONOTILE_ARCHIVE="plant.db")
    assert "220.0" in plant("historian", "latest", "plant.db", "oven.temp", CHRONOTILE_ARCHIVE="other.db")
    assert "220.0" in plant("historian", "latest", "oven.temp", "-a", "plant.db", CHRONOTILE_ARCHIVE="other.db")
    assert plant("count", "historian_main_float", CHRONOTILE_ARCHIVE="plant.db") == "2\n"
    assert plant("count", "plant.db", "historian_main_float", CHRONOTILE_ARCHIVE="other.db") == "2\n"


def test_values_are_read_at_one_time_as_at_several(tmp_path: Path) -> None:
    with historian.open(tmp_path / "plant.db") as h:
        h.define("oven")
        h.write({"tag": ["oven"] * 2, "time": ["2026-01-01T00:00", "2026-01-01T01:00"], "value": [200.0, 220.0]})
        for moment in ("2026-01-01T00:30", datetime(2026, 1, 1, 0, 30), ["2026-01-01T00:30"]):
            assert h.at("oven", moment).to_arrow()["value"].to_pylist() == [210.0]
        with pytest.raises(InvalidInputError, match="time is 'tomorrow'"):
            h.at("oven", "tomorrow")


def test_a_column_of_qualities_in_another_case_is_not_passed_over(plant: Shell) -> None:
    """Bad points would be stored as good ones."""
    plant.write("points.csv", "time,value,Status\n2026-01-01,1,Bad\n")
    write = ("historian", "write", "plant.db", "points.csv", "--define", "--tag")
    plant(*write, "q", code=2)
    assert 'points.csv has a column "Status": give --status-column "Status" if it holds qualities' in plant.errors
    plant(*write, "q", "--status-column", "Status")
    plant(*write, "r", "--status-column", "")
    read = ("historian", "latest", "plant.db", "q", "r", "--format", "csv")
    assert plant(*read).splitlines()[1:] == ["q,2026-01-01T00:00:00Z,1.0,2147483648", "r,2026-01-01T00:00:00Z,1.0,0"]


def test_lists_of_numpy_scalars_are_written_and_other_values_are_named(tmp_path: Path) -> None:
    with historian.open(tmp_path / "plant.db") as h:
        h.define("speed")
        point = {"tag": ["speed"] * 2, "time": ["2026-01-01", "2026-01-02"]}
        h.write({**point, "value": [np.int64(3), np.float32(1.5)]})
        assert h.raw("speed", "2026-01-01", "2026-01-03").to_arrow()["value"].to_pylist() == [3.0, 1.5]
        with pytest.raises(InvalidInputError, match="a column has values of type Decimal, str: give numbers, texts"):
            h.write({**point, "value": [Decimal(1), "x"]})
        with pytest.raises(InvalidInputError, match="points is 1: give 2 or more"):
            h.plot("speed", "2026-01-01", "2026-01-03", points=1)
