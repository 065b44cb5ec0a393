"""What a person meets who fills, reads and corrects an alert production database for the first time."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import pyarrow.parquet as pq
from support_shell import Shell

DATA = Path(__file__).parent.parent / "data"
SOURCE = "diaSourceId,diaObjectId,ra,dec,midpointMjdTai,visit,detector,band\n"


@pytest.fixture
def night(shell: Shell) -> Shell:
    """A database with one detector-visit."""
    shell("apdb", "create", "s.db", "--schema", "small")
    shell.write("s.csv", SOURCE + "1,7,150.1,2.2,61041.2,1,42,g\n")
    shell.write("o.csv", "diaObjectId,ra,dec,nDiaSources\n7,150.1,2.2,1\n")
    shown = shell("apdb", "store", "s.db", "--time", "61041.2", "--sources", "s.csv", "--objects", "o.csv")
    assert shown == "stored 1 object, 1 source, 0 forced sources\n"
    return shell


@pytest.mark.parametrize(
    ("options", "text", "code", "said"),
    [
        (["--time", "2461041.7"], "2,7,150.1,2.2,61041.2,2,42,g\n", 2,
         "visit_time is 2461041.7, which looks like a Julian Date: give a Modified Julian Date in TAI"),
        (["--time", "200000"], "2,7,150.1,2.2,61041.2,2,42,g\n", 2, "not an MJD (TAI) from 0 to 106,000"),
        (["--time", "61041.2"], "1,7,150.3,2.2,61041.2,1,42,g\n", 4,
         "visit 1, detector 42 is stored with other rows: pass replace=True (--replace) to replace them"),
        (["--time", "61041.2", "--visit", "9"], "2,7,150.1,2.2,61041.2,2,42,g\n", 2,
         "rows of DiaSource belong to visit 2, expected 9: store each detector-visit in its own call"),
        (["--time", "61041.2"], "2,7,150.1,2.2,61041.2,2,42,g\n3,7,150.1,2.2,61041.2,3,42,g\n", 2,
         "rows of DiaSource belong to visits 2 to 3, expected 2"),
        (["--time", "61041.2"], "", 2, "there are no rows to store: give visit and detector (--visit, --detector)"),
    ],
)  # fmt: skip
def test_a_detector_visit_that_is_not_stored_says_what_to_change(
    options: list[str], text: str, code: int, said: str, night: Shell
) -> None:
    night("apdb", "store", "s.db", *options, "--sources", night.write("n.csv", SOURCE + text), code=code)
    assert said in night.errors
    assert night("count", "s.db", "apdb_visits", "--where", "visit>=1") == "1\n"


def test_an_object_version_too_late_for_its_number_is_refused(night: Shell) -> None:
    night("apdb", "store", "s.db", "--time", "120000", "--objects", "o.csv", code=2)
    assert "time 120000 is not an MJD (TAI) from 0 to 106,000" in night.errors


def test_a_column_in_the_wrong_case_is_told_with_the_right_one(night: Shell) -> None:
    night.write("n.csv", SOURCE.replace(",ra,", ",RA,") + "2,7,150.1,2.2,61041.2,2,42,g\n")
    night("apdb", "store", "s.db", "--time", "61041.2", "--sources", "n.csv", code=2)
    assert "unknown columns of table DiaSource: RA; did you mean ra? Otherwise leave them out" in night.errors


def test_a_time_in_the_wrong_count_is_named_as_it_was_typed(night: Shell) -> None:
    night("apdb", "read", "s.db", "sources", "--at", "2461041.5", code=2)
    assert "at is 2461041.5, which looks like a Julian Date" in night.errors
    night("apdb", "read", "s.db", "sources", "--history", "90d", code=2)
    assert "also pass at (--at), such as --at now" in night.errors


def test_tables_are_read_by_their_names_in_the_schema_too(night: Shell) -> None:
    for name in ("sources", "DiaSource"):
        assert night("apdb", "read", "s.db", name, "--columns", "diaSourceId", "--format", "csv") == "diaSourceId\n1\n"
    night("apdb", "read", "s.db", "source", code=2)
    assert "use objects, sources or forced-sources. Did you mean sources?" in night.errors


def test_a_removal_shows_what_it_would_remove_before_it_asks(night: Shell) -> None:
    night("apdb", "remove", "s.db", "--visit", "1", code=2)
    assert "Remove visit 1 (1 detector-visit with 2 rows) from s.db? Pass --yes to confirm" in night.errors
    night("apdb", "remove", "s.db", "--night", "yesterday", "--yes", code=2)
    assert "night is 'yesterday'" in night.errors
    for what in (["--visit", "4711"], ["--visit", "1", "--detector", "3"], ["--night", "2020-01-01"]):
        assert "is not stored: nothing to remove" in night("apdb", "remove", "s.db", *what)
    assert night("apdb", "remove", "s.db", "--visit", "1", "--yes") == "removed 1 detector-visit with 2 rows\n"
    assert night("apdb", "remove", "s.db", "--visit", "1") == "visit 1 is not stored: nothing to remove\n"


def test_a_refused_removal_names_the_options(night: Shell) -> None:
    night("apdb", "archive", "s.db", "cold", "--before", "2028-01-01", "--yes")
    night("apdb", "remove", "s.db", "--visit", "1", "--yes", code=2)
    assert "archived=FOLDER (--archived FOLDER)" in night.errors
    assert "archived=False (--not-archived)" in night.errors
    night("apdb", "restore", "s.db", "cold")
    night("apdb", "remove", "s.db", "--visit", "1", "--yes", code=2)
    assert "1 record changed since the store" in night.errors
    assert "changed=True (--changed)" in night.errors


# ---------------------------------------------------------------- import


def flat(kind: str) -> Path:
    return DATA / f"lsst_dia_{kind}.parquet"


def test_an_import_says_whether_anything_is_new(shell: Shell) -> None:
    shell("apdb", "create", "s.db", "--relaxed")
    files = [flat("objects"), flat("sources")]
    first = shell.json("apdb", "import", "s.db", *files)
    assert (first["objects"], first["stored"]) == (50, True)
    assert shell("apdb", "import", "s.db", *files).endswith("detector-visits; all were already stored\n")
    assert shell.json("apdb", "import", "s.db", *files) == {**first, "stored": False}


def test_forced_sources_in_radians_are_never_stored_as_degrees(shell: Shell) -> None:
    positions = pq.read_table(flat("forced_sources"), columns=["dec"])["dec"].to_numpy()
    assert abs(positions).max() < 0.04, "the sample is in radians"
    shell("apdb", "create", "s.db", "--relaxed")
    shell("apdb", "import", "s.db", flat("forced_sources"), code=2)
    assert "their positions may be in radians" in shell.errors
    assert "give the files of their objects or sources in the same command" in shell.errors
    shell("apdb", "import", "s.db", flat("objects"), flat("sources"))
    # Their objects are in the database now: they tell the unit.
    shell("apdb", "import", "s.db", flat("forced_sources"))
    assert "converted from radians to degrees" in shell.errors
    rows = shell("apdb", "read", "s.db", "forced-sources", "--columns", "ra,dec", "--format", "csv").splitlines()
    assert len(rows) == 51
    assert all(float(row.split(",")[0]) > 200 for row in rows[1:])


def test_every_command_that_prints_figures_prints_them_as_json(night: Shell) -> None:
    again = night.json("apdb", "store", "s.db", "--time", "61041.2", "--sources", "s.csv", "--objects", "o.csv")
    assert (again["stored"], again["objects"], again["sources"]) == (False, 1, 1)
    assert "apdb_visits" in night.json("apdb", "maintain", "s.db")["consolidated"]
    (planned,) = night.json("apdb", "archive", "s.db", "cold", "--before", "2028-01-01", "--dry-run")
    (moved,) = night.json("apdb", "archive", "s.db", "cold", "--before", "2028-01-01", "--yes")
    assert (planned["table"], planned["rows"]) == (moved["table"], moved["rows"]) == ("DiaSource", 1)
    assert len(night.json("apdb", "restore", "s.db", "cold")) == 1
    assert night.json("apdb", "remove", "s.db", "--visit", "9") == {"detector_visits": 0, "rows": 0}
    remove = ("apdb", "remove", "s.db", "--visit", "1", "--changed", "--archived", "cold", "--yes")
    assert night.json(*remove)["detector_visits"] == 1
    assert night.json("backup", "s.db", "b.db")["datasets"] == night.json("restore", "b.db", "r.db")["datasets"] > 3
