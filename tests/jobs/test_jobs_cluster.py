"""The archive of jobs and its indexes on a real Cassandra: the same answers, and builders that share the work."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import support_jobs
import support_workers
from support_jobs import generated, make

import chronotile as ct
from chronotile import jobs
from chronotile_tools import lab


@pytest.fixture
def url(shared_cluster: lab.Cluster) -> str:
    """A keyspace of its own on the shared cluster."""
    return f"{shared_cluster.url('jobs_indexes')}?catalog_buckets=16"


@pytest.mark.slow
def test_an_index_on_a_cluster_is_built_by_several_and_changes_no_answer(url: str) -> None:
    table = generated(6_000, days=4)

    def check(done: jobs.Jobs, want: pa.Table) -> None:
        for user, status in (("u1", "failed"), ("u2", "done"), ("nobody", "done")):
            mask = pc.and_(pc.equal(want["user"], user), pc.equal(want["status"], status))
            assert done.count(user=user, status=status) == pc.sum(mask).as_py()
            found = done.find(user=user, status=status, columns=["job_id"]).to_arrow()["job_id"]
            assert sorted(found.to_pylist()) == sorted(want.filter(mask)["job_id"].to_pylist())

    with ct.open(url) as archive:
        done = make(archive, indexes=[("user", "status"), "task"])
        done.write(table.slice(0, 5_500), batch="first")
        check(done, table.slice(0, 5_500))
    built = support_workers.run(support_jobs.build, url, 2)
    with ct.open(url) as archive:
        done = jobs.open(archive)
        info = done.dataset.indexes()
        assert sum(built) == sum(index.windows for index in info)
        assert [index.rows for index in info] == [5_500, 5_500]
        assert done.explain(by=[], user="u1", status="failed").chunks_read == 0
        check(done, table.slice(0, 5_500))

        # Late jobs, and tiles that are consolidated: both are read until the index is built again.
        done.write(table.slice(5_500), batch="late")
        check(done, table)
        assert done.explain(by=[], user="u1", status="failed").windows_direct != ()
        done.dataset.consolidate()
        check(done, table)
        report = done.dataset.build_indexes()
        assert report.windows_built > 0
        assert done.explain(by=[], user="u1", status="failed").chunks_read == 0
        check(done, table)
        assert done.dataset.drop_index("task") == info[1].windows
        check(done, table)
