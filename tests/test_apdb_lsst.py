"""Chronotile under the LSST's own suite of tests for alert production databases, in a file."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from pathlib import Path

import pytest

pytest.importorskip("lsst.dax.apdb", reason="THE LSST ADAPTER IS NOT TESTED: pip install 'chronotile[lsst]'")

from lsst.dax.apdb.tests import ApdbSchemaUpdateTest, ApdbTest
from support_apdb_suite import SuiteOnChronotile

# The suite uses what pandas has since deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")


class InAFile(SuiteOnChronotile):
    """Archives in files of a folder of their own."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chronotile-apdb-"))
        self.count = 0

    def tearDown(self) -> None:
        shutil.rmtree(self.folder)

    def next_url(self) -> str:
        self.count += 1
        return f"sqlite:{self.folder}/apdb{self.count}.db"


class TestSuite(InAFile, ApdbTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbTest, without replication."""


class TestSuiteWithReplication(InAFile, ApdbTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbTest, with replication."""

    enable_replica = True
    meta_row_count = 4


class TestSchemaUpdates(InAFile, ApdbSchemaUpdateTest, unittest.TestCase):  # type: ignore[misc]
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
