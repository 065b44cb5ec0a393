"""Chronotile under the LSST's own suite of tests for alert production databases, in a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
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
    assert in_a_fresh_process(opening, tmp_path).endswith("ChronotileApdb\n")
    replica = "from lsst.dax.apdb import ApdbReplica; print(type(ApdbReplica.from_uri('apdb.yaml')).__name__)"
    assert in_a_fresh_process(replica, tmp_path).endswith("ChronotileApdbReplica\n")
    command = "from lsst.dax.apdb.cli.apdb_cli import main; main(['metadata', 'show', 'apdb.yaml'])"
    assert "version:ChronotileApdb" in in_a_fresh_process(command, tmp_path)
    # Their own back ends are as they were, and the hook can be switched off.
    sql = "from lsst.dax.apdb.sql import ApdbSql; ApdbSql.init_database('sqlite:///sql.db').save('sql.yaml')"
    in_a_fresh_process(sql, tmp_path)
    assert in_a_fresh_process(opening.replace("apdb.yaml", "sql.yaml"), tmp_path).endswith("ApdbSql\n")
    assert "Unknown Apdb implementation" in in_a_fresh_process(opening, tmp_path, CHRONOTILE_NO_LSST_HOOK="1")


def test_the_hook_imports_nothing_when_python_starts(tmp_path: Path) -> None:
    code = "import sys; print(*(name in sys.modules for name in ('chronotile_lsst_hook', 'chronotile', 'typing')))"
    assert in_a_fresh_process(code, tmp_path) == "True False False\n"
