"""Chronotile under the LSST's own suite of tests for alert production databases, in a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("lsst.dax.apdb", reason="THE LSST ADAPTER IS NOT TESTED: pip install 'chronotile[lsst]'")

from lsst.dax.apdb.tests import ApdbSchemaUpdateTest, ApdbTest
from support_apdb_suite import SuiteOnChronotile

# The suite uses what pandas has since deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")


class SuiteOnSqlite(SuiteOnChronotile):
    """Archives in files of a folder of their own."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chronotile-apdb-"))
        self.count = 0

    def tearDown(self) -> None:
        shutil.rmtree(self.folder)

    def next_url(self) -> str:
        self.count += 1
        return f"sqlite:{self.folder}/apdb{self.count}.db"


class TestSuite(SuiteOnSqlite, ApdbTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbTest, without replication."""


class TestSuiteWithReplication(SuiteOnSqlite, ApdbTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbTest, with replication."""

    enable_replica = True
    meta_row_count = 4


class TestSchemaUpdates(SuiteOnSqlite, ApdbSchemaUpdateTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbSchemaUpdateTest."""


def test_the_small_schema_is_felis_that_its_own_reader_takes() -> None:
    from felis.datamodel import Schema as Felis

    from chronotile import apdb

    path = Path(apdb.__file__).parent / "small.yaml"
    theirs = Felis.from_uri(str(path), context={"id_generation": True})
    ours = apdb.Schema.read("small")
    assert [(t.name, [c.name for c in t.columns]) for t in theirs.tables] == [
        (t.name, t.column_names) for t in ours.tables
    ]


def in_a_fresh_process(code: str, folder: Path, **environment: str) -> str:
    """Output and errors of a Python that has imported nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=folder,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_process_that_imports_nothing_of_ours_opens_a_database_by_its_configuration_file(tmp_path: Path) -> None:
    from chronotile.apdb.lsst import ChronotileApdb

    config = ChronotileApdb.init_database(f"sqlite:{tmp_path}/lsst.db")
    config.save(str(tmp_path / "apdb.yaml"))
    opening = "from lsst.dax.apdb import Apdb; print(type(Apdb.from_uri('apdb.yaml')).__name__)"
    # Their imports take seconds, so that one process does all that the hook is for; it imports nothing of ours itself.
    more = """
from lsst.dax.apdb import ApdbReplica
from lsst.dax.apdb.cli.apdb_cli import main
from lsst.dax.apdb.sql import ApdbSql
print(type(ApdbReplica.from_uri("apdb.yaml")).__name__)
ApdbSql.init_database("sqlite:///sql.db").save("sql.yaml")
print(type(Apdb.from_uri("sql.yaml")).__name__, flush=True)
main(["metadata", "show", "apdb.yaml"])
"""
    with ThreadPoolExecutor() as both:
        hooked = both.submit(in_a_fresh_process, f"{opening}\n{more}", tmp_path)
        # The hook can be switched off.
        alone = both.submit(in_a_fresh_process, opening, tmp_path, CHRONOTILE_NO_LSST_HOOK="1")
    lines = hooked.result().splitlines()
    # Their own back ends are as they were.
    classes = [line for line in lines if line in ("ChronotileApdb", "ChronotileApdbReplica", "ApdbSql")]
    assert classes == ["ChronotileApdb", "ChronotileApdbReplica", "ApdbSql"], lines
    assert any("version:ChronotileApdb" in line for line in lines), lines
    assert "Unknown Apdb implementation" in alone.result()


def test_the_hook_imports_nothing_when_python_starts(tmp_path: Path) -> None:
    code = "import sys; print(*(name in sys.modules for name in ('chronotile_lsst_hook', 'chronotile', 'typing')))"
    assert in_a_fresh_process(code, tmp_path) == "True False False\n"
