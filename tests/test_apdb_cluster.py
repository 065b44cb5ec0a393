"""The LSST's suite for alert production databases on a real cluster, and a detector-visit there."""

from __future__ import annotations

import json
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("lsst.dax.apdb", reason="THE LSST ADAPTER IS NOT TESTED: pip install 'chronotile[lsst]'")

from lsst.dax.apdb.tests import ApdbSchemaUpdateTest, ApdbTest
from support_apdb import FIELD, START, visit_of
from support_apdb_suite import SuiteOnChronotile

from chronotile import apdb, lab
from chronotile.apdb import names
from chronotile.apdb.simulate import Run, Survey, run

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")

QUICK = ("test_storeSources", "test_reassignDiaSourcesToDiaObjects")
"""What the default run tries on three nodes; the rest waits minutes there for tables to be made."""


class OnACluster(SuiteOnChronotile):
    """Each database in a keyspace of its own."""

    nodes = "shared_cluster"

    @pytest.fixture(autouse=True)
    def on_cluster(self, lab_home: Path, request: pytest.FixtureRequest) -> Iterator[None]:
        self.cluster: lab.Cluster = request.getfixturevalue(self.nodes)
        self.name = "".join(c for c in request.node.name.lower() if c.isalnum())[-24:]
        self.made: list[str] = []
        yield
        # Each database is some twenty tables: small nodes would not bear those of all tests.
        with self.cluster.nodes[0].connect(timeout_s=120) as connection:
            for keyspace in self.made:
                connection.run(f"DROP KEYSPACE IF EXISTS {keyspace}")

    def next_url(self) -> str:
        keyspace = f"{type(self).__name__.lower()[:12]}_{self.name}_{len(self.made)}"
        self.made.append(keyspace)
        return f"{self.cluster.url(keyspace)}?catalog_buckets=16"


LEFT_OUT = {name: None for name in dir(ApdbTest) if name.startswith("test_") and name not in QUICK}

TestSomeOfTheSuite = type("TestSomeOfTheSuite", (OnACluster, ApdbTest, unittest.TestCase), LEFT_OUT)


class TestSuite(OnACluster, ApdbTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbTest, with replication."""

    nodes = "single_node"
    enable_replica = True
    meta_row_count = 4


class TestSchemaUpdates(OnACluster, ApdbSchemaUpdateTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbSchemaUpdateTest."""

    nodes = "single_node"


@pytest.mark.slow
class TestSuiteOnThreeNodes(TestSuite):
    """The same on three nodes."""

    nodes = "shared_cluster"


@pytest.mark.slow
class TestSchemaUpdatesOnThreeNodes(TestSchemaUpdates):
    """The same on three nodes."""

    nodes = "shared_cluster"


def test_a_detector_visit_on_a_cluster_is_read_back_whole_and_stored_once(shared_cluster: lab.Cluster) -> None:
    with apdb.create(f"{shared_cluster.url('apdb_visit')}?catalog_buckets=16", "small") as survey:
        for number in range(2):
            assert survey.store(**visit_of(number, [1, 2, 3])).stored
            assert not survey.store(**visit_of(number, [1, 2, 3])).stored
        found = survey.footprint(FIELD, at=START + 1, complete_only=True)
        assert (len(found.objects), len(found.sources), len(found.forced_sources)) == (3, 6, 6)
        assert survey.contains(1, 1)
        assert survey.remove_visit(1).rows == 9
        assert len(survey.sources(FIELD)) == 3


def test_rows_for_other_tools_hold_what_chunks_do(shared_cluster: lab.Cluster, tmp_path: Path) -> None:
    survey = Survey(visits=2, detectors=1, nights=2, days_between=2)
    logs = []
    for storage in ("chunks", "rows"):
        url = f"{shared_cluster.url(f'apdb_as_{storage}')}?catalog_buckets=16"
        apdb.create(url, "small", storage=storage).close()
        files = run(Run(survey, url, tmp_path / storage))
        entries = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        logs.append([(entry["op"], entry["rows"]) for entry in entries])
        with apdb.open(url, read_only=True) as database:
            assert database.layout.storage == storage
            assert {database.dataset(table).layout for table in names.MAIN_TABLES} == {storage}
    assert logs[0] == logs[1]
    assert logs[0][2][1][names.SOURCE] > 0, "the second visit reads what the first one stored"
    with shared_cluster.nodes[0].connect(timeout_s=60) as connection:
        tables = connection.run("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'apdb_as_rows'")
        (name,) = [row[0] for row in tables.rows if row[0].startswith("r_dia_source")]
        found = connection.run(f'SELECT "diaSourceId", ra, "psfFlux" FROM apdb_as_rows.{name}').rows
    assert len(found) == sum(rows[names.SOURCE] for op, rows in logs[1] if op == "store")
