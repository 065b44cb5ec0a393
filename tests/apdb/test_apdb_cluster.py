"""The LSST's suite for alert production databases on a real cluster, and a detector-visit there."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("lsst.dax.apdb", reason="THE LSST ADAPTER IS NOT TESTED: pip install 'chronotile[lsst]'")

from lsst.dax.apdb.tests import ApdbSchemaUpdateTest, ApdbTest
from support_apdb import FIELD, START, visit_of
from support_apdb_suite import SuiteOnChronotile

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names
from chronotile_tools import lab
from chronotile_tools.survey.simulate import Run, Survey, run

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")

QUICK = ("test_storeSources", "test_reassignDiaSourcesToDiaObjects")
"""What the default run tries on three nodes; the rest waits minutes there for tables to be made."""


class SuiteOnCassandra(SuiteOnChronotile):
    """Each database in a keyspace of its own."""

    nodes = "shared_cluster"

    @pytest.fixture(autouse=True)
    def on_cluster(self, lab_home: Path, request: pytest.FixtureRequest) -> None:
        self.cluster: lab.Cluster = request.getfixturevalue(self.nodes)
        self.name = "".join(c for c in request.node.name.lower() if c.isalnum())[-24:]
        self.made = itertools.count()

    def next_url(self) -> str:
        keyspace = f"{type(self).__name__.lower()[:12]}_{self.name}_{next(self.made)}"
        return f"{self.cluster.url(keyspace)}?catalog_buckets=16"


LEFT_OUT = {name: None for name in dir(ApdbTest) if name.startswith("test_") and name not in QUICK}

TestSomeOfTheSuite = type("TestSomeOfTheSuite", (SuiteOnCassandra, ApdbTest, unittest.TestCase), LEFT_OUT)


class TestSuite(SuiteOnCassandra, ApdbTest, unittest.TestCase):  # type: ignore[misc]
    """All of ApdbTest, with replication."""

    nodes = "single_node"
    enable_replica = True
    meta_row_count = 4


class TestSchemaUpdates(SuiteOnCassandra, ApdbSchemaUpdateTest, unittest.TestCase):  # type: ignore[misc]
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
        found = survey.footprint(FIELD, at=START + 1)
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


def test_what_is_stored_withdrawn_and_removed_while_slices_move_to_files_is_there_once(
    shared_cluster: lab.Cluster, tmp_path: Path
) -> None:
    """Writers go on for some seconds: the first files lack rows, and a slice that is about to go is written to."""
    url, cold = f"{shared_cluster.url('apdb_moving')}?catalog_buckets=16", tmp_path / "cold"
    later, end = START + 1_000, time.monotonic() + 8
    stored: set[int] = set()
    withdrawn: set[int] = set()
    removed: set[int] = set()

    def moment(number: int) -> dict[str, Any]:
        # All in one slice: a table for each day would take longer than the test.
        rows, when = visit_of(number, [number % 900 + 1, number % 900 + 2]), START + number / 10_000
        for table in ("sources", "forced_sources"):
            rows[table] = {**rows[table], "midpointMjdTai": np.full(2, when)}
        return {**rows, "visit_time": when}

    def write(first: int) -> None:
        with apdb.open(url) as own:
            for number in itertools.count(first, 2):
                if time.monotonic() > end:
                    return
                visit = moment(number)
                ids = [int(each) for each in visit["sources"]["diaSourceId"]]
                # What was not acknowledged may be there or not: only this test knows that nobody asks for it.
                with contextlib.suppress(ct.BusyError, ct.OutcomeUnknownError):
                    assert own.store(**visit).stored
                    stored.update(ids)
                    if number % 5 == 0:
                        if own.withdraw_sources(ids[:1], START + 1) == 1:
                            withdrawn.update(ids[:1])
                    elif number % 7 == 0:
                        stored.difference_update(ids)
                        # On a machine that is slow its slice may have gone to the file between the two calls.
                        if own.remove_visit(number, archived=False).rows == 6:
                            removed.update(ids)

    with apdb.create(url, "small") as survey:
        survey.store(**moment(0))
        stored.update(int(each) for each in moment(0)["sources"]["diaSourceId"])
        with ThreadPoolExecutor(2) as pool:
            end = time.monotonic() + 8
            writers = [pool.submit(write, first) for first in (1, 2)]
            time.sleep(1)
            began = time.monotonic()
            moved = survey.archive_before(later, cold)
            print(f"{len(stored)} sources stored, {len(withdrawn)} withdrawn, {len(removed)} removed; moved {moved} in "
                  f"{time.monotonic() - began:.1f} s")  # fmt: skip
            for writer in writers:
                writer.result()
        assert [part.table for part in moved] == [names.SOURCE, names.FORCED]
        assert len(stored) > 20
        assert withdrawn
        assert removed
        here = [
            row["diaSourceId"]
            for row in survey.dataset(names.SOURCE).read(columns=["diaSourceId"]).to_arrow().to_pylist()
        ]
        files = [row["diaSourceId"] for row in pq.read_table(moved[0].path, columns=["diaSourceId"]).to_pylist()]
        assert sorted(here + files) == sorted(set(here + files)), (
            "a source is twice in the tables, in a file, or in both"
        )
        found = survey.sources(archived=cold, withdrawn=True).to_arrow()
        seen = dict(zip(found["diaSourceId"].to_pylist(), found["timeWithdrawnMjdTai"].to_pylist(), strict=True))
        assert len(found) == len(seen)
        assert stored <= seen.keys()
        assert not removed & seen.keys()
        assert {each for each, when in seen.items() if when is not None} >= withdrawn
        assert set(here + files) == seen.keys()
        assert all(report.ok for report in survey.verify().values())
